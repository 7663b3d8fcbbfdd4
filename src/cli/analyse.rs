//! What the commands have in common that follow flows: packets in, state kept,
//! a report at the end or every so often.

use std::{
    io,
    net::IpAddr,
    ops::ControlFlow,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::bail;
use clap::Args;
#[cfg(all(feature = "live", unix))]
use roce_sniff::source::Batch;
use roce_sniff::{
    filter::FlowFilter,
    pipeline,
    report::{Capture, Interval},
    source::{BATCH_BYTES, InputStatistics, PacketSource, SourceError},
    track::{Digest, Limits, Listener, Summary, Tracker},
    wire::types::QpNumber,
};

use super::{
    Outcome,
    args::{InputArgs, OutputArgs, duration, qp_number},
    complain,
    live::LiveArgs,
    output::Output,
    progress::{Counting, Progress, Tally},
    tap::TapArgs,
};

/// What is said above the options that choose rows.
pub const ROWS: &str = "Rows (all packets are followed; all must hold; within one, any)";

/// Where packets come from, which rows to show, how they are written.
#[derive(Debug, Args)]
pub struct AnalyseArgs {
    #[command(flatten)]
    pub input: InputArgs,

    #[command(flatten)]
    pub live: LiveArgs,

    #[command(flatten)]
    pub tap: TapArgs,

    /// Report every so often while the capture goes on, as 1s
    #[arg(long, value_name = "TIME", value_parser = interval, requires = "live", conflicts_with = "files",
        help_heading = "Live capture")]
    pub interval: Option<Duration>,

    #[command(flatten)]
    pub rows: RowArgs,

    /// Flows kept at once; one that was quiet for long makes room for a further
    /// one, and is counted as evicted
    #[arg(long, value_name = "N", default_value_t = Limits::default().flows as u32,
        value_parser = clap::value_parser!(u32).range(2..), help_heading = "Limits")]
    pub max_flows: u32,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Which flows to show. All packets are followed, whatever is shown: a flow
/// without some of its packets would look like one that lost them.
#[derive(Debug, Args)]
#[command(next_help_heading = ROWS)]
pub struct RowArgs {
    /// To or, where known, from this queue pair, decimal or 0x…
    #[arg(long, value_name = "QPN", value_delimiter = ',', value_parser = qp_number)]
    pub qp: Vec<QpNumber>,

    /// From or to this address
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub host: Vec<IpAddr>,

    /// Every row of tables, else 20 of each
    #[arg(long)]
    pub all: bool,

    // Known, so that the answer to them can be more than that they are not.
    #[arg(long, hide = true)]
    psn: Option<String>,
    #[arg(long, hide = true)]
    nak: bool,
    #[arg(long, hide = true)]
    cm: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < Duration::from_millis(100) => Err("shorter than 100ms".into()),
        time => Ok(time),
    }
}

impl RowArgs {
    /// The flows to show.
    pub fn filter(&self) -> anyhow::Result<FlowFilter> {
        for (given, name) in [
            (self.psn.is_some(), "--psn"),
            (self.nak, "--nak"),
            (self.cm, "--cm"),
        ] {
            if given {
                refuse(name)?;
            }
        }
        Ok(FlowFilter {
            qps: self.qp.clone(),
            hosts: self.host.clone(),
        })
    }
}

/// Refuses a filter of packets.
pub fn refuse(name: &str) -> anyhow::Result<()> {
    bail!(
        "{name} picks packets, and a flow is judged by all of its packets: choose flows by --qp \
         and --host, or packets with `roce-sniff packets {name}`"
    )
}

/// A capture, as far as it was followed.
pub struct Followed<'a> {
    pub capture: Capture<'a>,
    pub tracker: &'a Tracker,
    /// The stretch of time that is over, where the capture goes on.
    pub interval: Option<&'a Interval>,
}

/// What a command makes of flows and messages: it is told of them as a
/// [`Listener`], and asked for its report.
pub trait Analysis: Listener + Send {
    /// Whether rows are written while packets are read, rather than a report
    /// afterwards.
    const ROWS: bool = false;

    /// What bounds the tracker, and what it takes for what.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Writes what comes before everything else. `names` are those of the
    /// inputs, by number.
    fn begin(&mut self, _names: &[String], _out: &mut Output) -> io::Result<()> {
        Ok(())
    }

    /// Writes what the last packets brought.
    fn drain(&mut self, _out: &mut Output) -> io::Result<()> {
        Ok(())
    }

    /// Writes the report.
    fn report(&mut self, followed: &Followed<'_>, out: &mut Output) -> io::Result<()>;
}

/// Runs a command.
pub fn run(args: &AnalyseArgs, analysis: &mut impl Analysis) -> anyhow::Result<Outcome> {
    if args.live.iface.is_some() || args.tap.tap {
        capture(args, analysis)
    } else {
        read(args, analysis)
    }
}

/// Follows the packets of files.
fn read<A: Analysis>(args: &AnalyseArgs, analysis: &mut A) -> anyhow::Result<Outcome> {
    let counts = Tally::default();
    let mut source = Counting::new(args.input.source(BATCH_BYTES)?, &counts);
    let names = args.input.names();
    let mut output = Output::open(&args.output, &args.input.files, false)?;
    let mut fold = Fold::new(args, analysis, None);
    if !A::ROWS || output.to_file {
        fold.progress = Progress::new(&counts, &args.input.files, args.output.quiet);
    }
    fold.begin(&names, &mut output);
    follow(args, &mut source, &mut fold, &mut output);
    let statistics = source.statistics();
    // Where not one input could be opened there is nothing to report.
    if !statistics.is_empty() {
        fold.end(&names, &statistics, &mut output);
    }
    fold.outcome()
}

/// Follows packets as they pass a network device, or the driver.
#[cfg(all(feature = "live", unix))]
fn capture(args: &AnalyseArgs, analysis: &mut impl Analysis) -> anyhow::Result<Outcome> {
    let mut source = super::live::LiveCapture::open(&args.live, &args.tap, args.input.port)?;
    let mut output = Output::open(&args.output, &[], args.live.takes_stdout())?;
    if !args.output.quiet {
        source.announce();
    }
    let counted = Counted::default();
    let mut fold = Fold::new(args, analysis, Some(&counted));
    fold.begin(&source.names(), &mut output);
    let mut watched = Watched {
        source: &mut source,
        counted: &counted,
        // Counters are read once a report at most.
        every: args.interval,
        read: Instant::now(),
    };
    follow(args, &mut watched, &mut fold, &mut output);
    // The recording is ended whatever became of the report.
    let statistics = source.finish();
    let no_files: &[String] = &[];
    if let Ok(statistics) = &statistics {
        fold.end(no_files, statistics, &mut output);
    }
    let outcome = fold.outcome()?;
    let statistics = statistics?;
    if args.output.format != super::args::Format::Table || args.output.quiet {
        super::packets::tell_dropped(&statistics);
    }
    Ok(outcome)
}

#[cfg(not(all(feature = "live", unix)))]
fn capture(_: &AnalyseArgs, _: &mut impl Analysis) -> anyhow::Result<Outcome> {
    bail!("this roce-sniff cannot capture: it was built without the feature `live`, for Unix only")
}

fn follow<A: Analysis>(
    args: &AnalyseArgs,
    source: &mut impl PacketSource,
    fold: &mut Fold<'_, A>,
    output: &mut Output,
) {
    let options = args.input.options();
    pipeline::run(
        source,
        args.input.threads(),
        |batch, chunk: &mut Digest| chunk.decode(batch, &options),
        |chunk| fold.chunk(chunk, output),
    );
}

/// What the inputs counted last, for reports while the capture goes on.
#[derive(Default)]
struct Counted(Mutex<Vec<InputStatistics>>);

impl Counted {
    #[cfg(all(feature = "live", unix))]
    fn put(&self, statistics: Vec<InputStatistics>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = statistics;
    }

    fn get(&self) -> Vec<InputStatistics> {
        let counted = self.0.lock();
        counted.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A source whose counters are read between batches.
#[cfg(all(feature = "live", unix))]
struct Watched<'a, S> {
    source: &'a mut S,
    counted: &'a Counted,
    every: Option<Duration>,
    read: Instant,
}

#[cfg(all(feature = "live", unix))]
impl<S: PacketSource> PacketSource for Watched<'_, S> {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        let more = self.source.next_batch(batch);
        if let Some(every) = self.every
            && self.read.elapsed() >= every / 2
        {
            self.counted.put(self.source.statistics());
            self.read = Instant::now();
        }
        more
    }

    fn may_block(&self) -> bool {
        self.source.may_block()
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        self.source.statistics()
    }
}

/// When the next report is due, and what the last one said.
struct Clock<'a> {
    every: Duration,
    last: Instant,
    interval: Interval,
    counted: &'a Counted,
}

/// Takes the chunks in order.
struct Fold<'a, A> {
    analysis: &'a mut A,
    summary: Summary,
    tracker: Tracker,
    clock: Option<Clock<'a>>,
    progress: Option<Progress<'a>>,
    complete: bool,
    written: io::Result<()>,
}

impl<'a, A: Analysis> Fold<'a, A> {
    fn new(args: &AnalyseArgs, analysis: &'a mut A, counted: Option<&'a Counted>) -> Self {
        let clock = args.interval.zip(counted).map(|(every, counted)| Clock {
            every,
            last: Instant::now(),
            interval: Interval::default(),
            counted,
        });
        let limits = Limits {
            flows: args.max_flows as usize,
            ..analysis.limits()
        };
        Self {
            tracker: Tracker::new(limits),
            analysis,
            summary: Summary::without_flows(),
            clock,
            progress: None,
            complete: true,
            written: Ok(()),
        }
    }

    fn begin(&mut self, names: &[String], output: &mut Output) {
        self.written = self.analysis.begin(names, output);
    }

    fn chunk(
        &mut self,
        chunk: Result<&mut Digest, SourceError>,
        output: &mut Output,
    ) -> ControlFlow<()> {
        if self.written.is_err() {
            return ControlFlow::Break(());
        }
        match chunk {
            Ok(chunk) => {
                self.summary.absorb(chunk.summary());
                self.tracker.add_all(chunk, self.analysis);
                if let Some(progress) = &mut self.progress {
                    progress.tick();
                }
            }
            Err(error) => {
                self.complete = false;
                if let Some(progress) = &mut self.progress {
                    progress.clear();
                }
                // What was found comes first, also where both go to one
                // terminal or file.
                self.written = self.analysis.drain(output);
                complain(&error.to_string());
            }
        }
        if self.written.is_ok() {
            self.written = self.analysis.drain(output);
        }
        if self.written.is_ok() {
            self.written = self.tick(output);
        }
        if self.written.is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Reports where it is time to.
    fn tick(&mut self, output: &mut Output) -> io::Result<()> {
        let Some(clock) = &mut self.clock else {
            return Ok(());
        };
        let length = clock.last.elapsed();
        if length < clock.every {
            return Ok(());
        }
        clock.last = Instant::now();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        clock.interval.end_ns = now.map_or(0, |now| now.as_nanos() as i64);
        clock.interval.length = length;
        let inputs = clock.counted.get();
        let followed = Followed {
            capture: Capture {
                summary: &self.summary,
                files: &[],
                inputs: &inputs,
                complete: self.complete,
            },
            tracker: &self.tracker,
            interval: Some(&clock.interval),
        };
        self.analysis.report(&followed, output)?;
        clock.interval.next(&self.tracker);
        io::Write::flush(output)
    }

    fn end(&mut self, files: &[String], inputs: &[InputStatistics], output: &mut Output) {
        self.progress = None;
        if self.written.is_err() {
            return;
        }
        self.tracker.finish(self.analysis);
        self.written = self.last(files, inputs, output);
    }

    fn last(
        &mut self,
        files: &[String],
        inputs: &[InputStatistics],
        output: &mut Output,
    ) -> io::Result<()> {
        self.analysis.drain(output)?;
        let followed = Followed {
            capture: Capture {
                summary: &self.summary,
                files,
                inputs,
                complete: self.complete,
            },
            tracker: &self.tracker,
            interval: None,
        };
        self.analysis.report(&followed, output)?;
        io::Write::flush(output)
    }

    fn outcome(self) -> anyhow::Result<Outcome> {
        let outcome = if self.complete {
            Outcome::Done
        } else {
            Outcome::Incomplete
        };
        match self.written {
            // Whoever read our output has seen enough; what could not be read
            // is still worth telling.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(outcome),
            written => written.map(|()| outcome).map_err(Into::into),
        }
    }
}
