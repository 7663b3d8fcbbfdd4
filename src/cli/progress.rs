//! How far the reading of files has come, on the terminal, where it takes
//! long.

use std::{
    fs::File,
    io::{self, IsTerminal},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roce_sniff::source::{Batch, InputStatistics, PacketSource, SourceError};

/// What is read sooner shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time from one drawing to the next.
const PACE: Duration = Duration::from_millis(100);
/// Columns of the bar itself.
const BAR: usize = 20;

/// What was read so far.
#[derive(Debug, Default)]
pub struct Tally {
    bytes: AtomicU64,
    packets: AtomicU64,
}

/// A source that counts what is read from it.
pub struct Counting<'a, S> {
    source: S,
    counts: &'a Tally,
    /// Bytes of the sources before this one.
    before: u64,
    counted: Instant,
}

impl<'a, S: PacketSource> Counting<'a, S> {
    pub fn new(source: S, counts: &'a Tally) -> Self {
        Self {
            source,
            counts,
            before: counts.bytes.load(Ordering::Relaxed),
            counted: Instant::now(),
        }
    }
}

impl<S: PacketSource> PacketSource for Counting<'_, S> {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        let more = self.source.next_batch(batch);
        if !matches!(more, Ok(true)) || self.counted.elapsed() >= PACE / 2 {
            let bytes = self.before + self.source.bytes_read();
            self.counts.bytes.store(bytes, Ordering::Relaxed);
            self.counted = Instant::now();
        }
        if let Ok(true) = more {
            let packets = batch.len() as u64;
            self.counts.packets.fetch_add(packets, Ordering::Relaxed);
        }
        more
    }

    fn may_block(&self) -> bool {
        self.source.may_block()
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        self.source.statistics()
    }

    fn bytes_read(&self) -> u64 {
        self.source.bytes_read()
    }
}

/// A bar on standard error; gone when it is dropped.
pub struct Progress<'a> {
    counts: &'a Tally,
    total: u64,
    began: Instant,
    drawn: Instant,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    /// A bar for the reading of `files`. `None` where nobody sees it, or where
    /// nobody knows how much there is to read.
    pub fn new(counts: &'a Tally, files: &[PathBuf], quiet: bool) -> Option<Self> {
        if quiet || !io::stderr().is_terminal() {
            return None;
        }
        let mut total = 0;
        for file in files {
            let metadata = file.metadata().ok()?;
            if !metadata.is_file() {
                return None;
            }
            total += metadata.len();
        }
        let now = Instant::now();
        Some(Self {
            counts,
            total,
            began: now,
            drawn: now,
            bar: None,
        })
    }

    /// Draws the bar, where it is time to.
    pub fn tick(&mut self) {
        if self.drawn.elapsed() < PACE {
            return;
        }
        let elapsed = self.began.elapsed();
        if elapsed < PATIENCE {
            return;
        }
        self.drawn = Instant::now();
        let bytes = self.counts.bytes.load(Ordering::Relaxed);
        let packets = self.counts.packets.load(Ordering::Relaxed);
        let words = message(elapsed, packets, bytes, self.total);
        let bar = self
            .bar
            .get_or_insert_with(|| bar(self.total).with_position(bytes));
        // Each of these draws.
        bar.set_message(words);
        bar.set_position(bytes);
    }

    /// Takes the bar away, so that something else can be written; it comes
    /// back with the next drawing.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    // A message that does not fit is cut rather than folded.
    let template =
        format!("{{bar:{BAR}}} {{decimal_bytes}} of {{decimal_total_bytes}}, {{wide_msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// How fast it goes, and how long it will take if it goes on like that.
fn message(elapsed: Duration, packets: u64, bytes: u64, total: u64) -> String {
    let elapsed = elapsed.as_secs_f64();
    let rate = rate(packets as f64 / elapsed);
    if bytes == 0 {
        return rate;
    }
    let left = total.saturating_sub(bytes) as f64 / bytes as f64;
    format!("{rate}, {} left", span(elapsed * left))
}

/// Short, so that the whole line fits 80 columns.
fn rate(packets: f64) -> String {
    match packets {
        ..0.5 => "0 packets/s".into(),
        ..1.5 => "1 packet/s".into(),
        ..999.5 => format!("{packets:.0} packets/s"),
        ..999_500.0 => format!("{:.0} k packets/s", packets / 1e3),
        _ => format!("{:.1} M packets/s", packets / 1e6),
    }
}

/// No finer than an estimate can be.
fn span(seconds: f64) -> String {
    match seconds {
        ..99.5 => format!("{seconds:.0} s"),
        ..5970.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

/// Whether standard output is a file on disk.
#[cfg(unix)]
pub fn stdout_is_file() -> bool {
    use std::os::fd::AsFd;
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    stdout.is_ok_and(|stdout| File::from(stdout).metadata().is_ok_and(|m| m.is_file()))
}

#[cfg(not(unix))]
pub fn stdout_is_file() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::DecimalBytes;

    #[test]
    fn speed_and_time_left() {
        let second = Duration::from_secs(2);
        for (packets, bytes, words) in [
            (9_000_000, 100, "4.5 M packets/s, 6 s left"),
            (1_998_999, 100, "999 k packets/s, 6 s left"),
            (1_999_000, 100, "1.0 M packets/s, 6 s left"),
            (3, 400, "2 packets/s, 0 s left"),
            (2, 400, "1 packet/s, 0 s left"),
            // A file that grew while it was read.
            (2, 500, "1 packet/s, 0 s left"),
            (0, 0, "0 packets/s"),
        ] {
            assert_eq!(message(second, packets, bytes, 400), words);
        }
        let words = message(Duration::from_secs(60), 60_000, 1, 30);
        assert_eq!(words, "1 k packets/s, 29 min left");
        let words = message(Duration::from_secs(60), 60_000, 1, 121);
        assert_eq!(words, "1 k packets/s, 2 h left");
    }

    /// The widest words at their widest numbers fit a narrow terminal.
    #[test]
    fn fits_80_columns() {
        let words = message(Duration::from_secs(600), 600_000_000_000, 1, 8);
        let bytes = format!(
            "{} of {}",
            DecimalBytes(999_990_000_000),
            DecimalBytes(999_990_000_000)
        );
        let line = format!("{} {bytes}, {words}", "#".repeat(BAR));
        assert!(line.len() < 80, "{}: {line}", line.len());
    }
}
