//! `packets`: every RoCE packet, then a summary.

use std::{
    collections::VecDeque,
    io::{self, Write},
    num::NonZeroU64,
    ops::ControlFlow,
};

use anyhow::bail;
use clap::Args;
use roce_sniff::{
    Options, decode,
    filter::Filter,
    frame::Reason,
    pipeline,
    report::{
        CsvPackets, DetailPackets, JsonPackets, PacketPrinter, TablePackets, Widths, print_summary,
    },
    source::{BATCH_BYTES, Batch, InputStatistics, PacketSource, SourceError},
    track::{Observed, Record, Summary},
};

use super::{
    Outcome,
    args::{FilterArgs, Format, InputArgs, OutputArgs},
    complain,
    live::LiveArgs,
    output::Output,
    progress::{Counting, Progress, Tally},
    tap::TapArgs,
};

/// Arguments of `packets`, and of `roce-sniff` without a command.
#[derive(Debug, Args)]
pub struct PacketsArgs {
    #[command(flatten)]
    pub input: InputArgs,

    #[command(flatten)]
    pub live: LiveArgs,

    #[command(flatten)]
    pub tap: TapArgs,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// Stop after this many packets
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroU64>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Every header field by field, with bit layout and offsets
    #[arg(short, long)]
    verbose: bool,

    /// The bytes of every packet
    #[arg(short = 'x', long)]
    hex: bool,
}

impl PacketsArgs {
    fn summarises(&self) -> bool {
        self.output.format == Format::Table && !self.output.quiet
    }
}

/// Runs the command.
pub fn run(args: &PacketsArgs) -> anyhow::Result<Outcome> {
    if args.output.format != Format::Table && (args.verbose || args.hex) {
        bail!("-v and -x go with --format table only");
    }
    if args.live.iface.is_some() || args.tap.tap {
        capture(args)
    } else {
        read(args)
    }
}

/// Prints the packets of files.
fn read(args: &PacketsArgs) -> anyhow::Result<Outcome> {
    // A packet of a hundred bytes becomes kilobytes of text field by field.
    let detailed = args.verbose || args.hex;
    let batch_bytes = BATCH_BYTES >> if detailed { 5 } else { 0 };
    let counts = Tally::default();
    let mut source = Peeked::new(Counting::new(args.input.source(batch_bytes)?, &counts));
    if source.statistics().is_empty() {
        // Not one input could be opened: there is nothing to head a table for.
        for error in &source.errors {
            complain(&error.to_string());
        }
        return Ok(Outcome::Incomplete);
    }
    let job = Job::new(args)?;
    let widths = job.widths(source.peek(), args.limit);
    let mut output = Output::open(&args.output, &args.input.files, false)?;
    let mut fold = Fold::new(args);
    if output.to_file {
        fold.progress = Progress::new(&counts, &args.input.files, args.output.quiet);
    }
    print(
        args,
        &job,
        args.input.names(),
        &widths,
        &mut source,
        &mut fold,
        &mut output,
    )?;
    fold.progress = None;
    let outcome = fold.outcome();
    match fold.written {
        // Whoever read our output has seen enough; what could not be read is
        // still worth telling.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(outcome),
        written => written?,
    }
    // Where a limit ended the reading, how far ahead a file had been read is
    // no business of the user's.
    let statistics = if fold.left == Some(0) {
        Vec::new()
    } else {
        source.statistics()
    };
    end(args, &fold.summary, &statistics, &mut output)?;
    Ok(outcome)
}

/// Prints packets as they pass a network device, or the driver.
#[cfg(all(feature = "live", unix))]
fn capture(args: &PacketsArgs) -> anyhow::Result<Outcome> {
    let mut source = super::live::LiveCapture::open(&args.live, &args.tap, args.input.port)?;
    let job = Job::new(args)?;
    let mut output = Output::open(&args.output, &[], args.live.takes_stdout())?;
    let mut fold = Fold::new(args);
    if !args.output.quiet {
        source.announce();
    }
    let widths = source.widths();
    let names = source.names();
    let printed = print(
        args,
        &job,
        names,
        &widths,
        &mut source,
        &mut fold,
        &mut output,
    );
    // The recording is ended whatever became of the printing.
    let statistics = source.finish();
    printed?;
    let outcome = fold.outcome();
    fold.written?;
    let statistics = statistics?;
    end(args, &fold.summary, &statistics, &mut output)?;
    if !args.summarises() {
        tell_dropped(&statistics);
    }
    Ok(outcome)
}

#[cfg(not(all(feature = "live", unix)))]
fn capture(_: &PacketsArgs) -> anyhow::Result<Outcome> {
    bail!("this roce-sniff cannot capture: it was built without the feature `live`, for Unix only")
}

/// Where no summary is printed, lost packets are told on standard error.
#[cfg(all(feature = "live", unix))]
pub fn tell_dropped(statistics: &[InputStatistics]) {
    for input in statistics {
        if let Some(dropped) = input.dropped.filter(|dropped| *dropped > 0) {
            complain(&format!(
                "{}: {dropped} {} dropped by the kernel",
                input.name,
                if dropped == 1 { "frame" } else { "frames" }
            ));
        }
    }
}

/// Prints the packets of a source.
fn print<S: PacketSource>(
    args: &PacketsArgs,
    job: &Job,
    names: Vec<String>,
    widths: &Widths,
    source: &mut S,
    fold: &mut Fold<'_>,
    output: &mut Output,
) -> io::Result<()> {
    let printer: Box<dyn PacketPrinter> = match args.output.format {
        Format::Json => Box::new(JsonPackets { inputs: names }),
        Format::Csv => Box::new(CsvPackets {
            inputs: names,
            path: args.tap.tap,
        }),
        Format::Table if args.verbose => Box::new(DetailPackets {
            style: output.style,
            inputs: names,
            frame: job.options.frame,
            bytes: args.hex,
        }),
        Format::Table => Box::new(TablePackets::new(
            output.style,
            names.len(),
            widths,
            output.width,
            args.hex,
        )),
    };
    if job.print {
        let mut header = Vec::new();
        printer.header(&mut header);
        output.write_all(&header)?;
        output.flush()?;
    }
    pipeline::run(
        source,
        args.input.threads(),
        |batch, chunk| job.map(&*printer, batch, chunk),
        |chunk| fold.chunk(chunk, output),
    );
    Ok(())
}

/// Prints the summary, where there is one.
fn end(
    args: &PacketsArgs,
    summary: &Summary,
    statistics: &[InputStatistics],
    output: &mut Output,
) -> io::Result<()> {
    if args.summarises() {
        let (style, width) = (output.style, output.width);
        print_summary(output, style, summary, statistics, width)?;
    }
    output.flush()
}

/// What to do with each batch.
struct Job {
    options: Options,
    filter: Filter,
    /// Whether counts for the summary are wanted.
    observe: bool,
    /// Whether packets are shown at all.
    print: bool,
}

/// Packets of a batch, formatted.
#[derive(Default)]
struct Chunk {
    text: Vec<u8>,
    /// Where each printed packet ends in `text`.
    ends: Vec<usize>,
    observed: Vec<Observed>,
}

impl Job {
    fn new(args: &PacketsArgs) -> anyhow::Result<Self> {
        Ok(Self {
            options: args.input.options(),
            filter: args.filter.filter()?,
            observe: args.output.format == Format::Table,
            print: !args.live.takes_stdout() || args.output.output.is_some(),
        })
    }

    fn map(&self, printer: &dyn PacketPrinter, batch: &Batch, chunk: &mut Chunk) {
        chunk.text.clear();
        chunk.ends.clear();
        chunk.observed.clear();
        for raw in batch.packets() {
            // Borrowed: a decoded packet is hundreds of bytes.
            let observed = match &decode(&raw, &self.options) {
                Ok(packet) if packet.is_control() => Observed::Skipped(Reason::Control, raw.link),
                Ok(packet) if self.filter.is_empty() || self.filter.matches(packet) => {
                    if self.print {
                        printer.packet(&raw, packet, &mut chunk.text);
                    }
                    chunk.ends.push(chunk.text.len());
                    if !self.observe {
                        continue;
                    }
                    Observed::Packet(Record::new(&raw, packet))
                }
                Ok(_) => Observed::FilteredOut,
                Err(skip) => Observed::Skipped(skip.reason, raw.link),
            };
            if self.observe {
                chunk.observed.push(observed);
            }
        }
    }

    /// Widths that the packets of the first batch need.
    fn widths(&self, batch: Option<&Batch>, limit: Option<NonZeroU64>) -> Widths {
        let mut widths = Widths::default();
        let mut left = limit.map_or(u64::MAX, NonZeroU64::get);
        let options = Options {
            verify_icrc: false,
            ..self.options
        };
        for raw in batch.iter().flat_map(|batch| batch.packets()) {
            // Times count from the start of the capture, whatever is shown.
            widths.begin(raw.ts_ns);
            if left == 0 {
                break;
            }
            if let Ok(packet) = decode(&raw, &options)
                && self.filter.matches(&packet)
            {
                widths.see(&raw, &packet);
                left -= 1;
            }
        }
        widths
    }
}

/// Takes the chunks in order.
struct Fold<'a> {
    progress: Option<Progress<'a>>,
    summary: Summary,
    /// Packets that may still be printed.
    left: Option<u64>,
    complete: bool,
    written: io::Result<()>,
}

impl Fold<'_> {
    const fn outcome(&self) -> Outcome {
        if self.complete {
            Outcome::Done
        } else {
            Outcome::Incomplete
        }
    }

    fn new(args: &PacketsArgs) -> Self {
        Self {
            progress: None,
            summary: Summary::default(),
            left: args.limit.map(NonZeroU64::get),
            complete: true,
            written: Ok(()),
        }
    }

    fn chunk(
        &mut self,
        chunk: Result<&mut Chunk, SourceError>,
        output: &mut Output,
    ) -> ControlFlow<()> {
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => {
                self.complete = false;
                if let Some(progress) = &mut self.progress {
                    progress.clear();
                }
                // What was decoded comes first, also where both go to one
                // terminal or file.
                self.written = output.flush();
                complain(&error.to_string());
                return ControlFlow::Continue(());
            }
        };
        let printed = chunk.ends.len() as u64;
        let take = self.left.map_or(printed, |left| left.min(printed));
        let last = self.left.is_some_and(|left| left <= printed);
        let end = match take {
            0 => 0,
            n => chunk.ends[n as usize - 1],
        };
        self.written = output.write_all(&chunk.text[..end]);
        let mut left = take;
        for observed in &chunk.observed {
            // Frames after the last one that may be printed were not read, as
            // far as the user is concerned.
            if last && left == 0 {
                break;
            }
            left -= u64::from(matches!(observed, Observed::Packet(_)));
            self.summary.add(observed);
        }
        self.left = self.left.map(|left| left - take);
        if let Some(progress) = &mut self.progress {
            progress.tick();
        }
        if last || self.written.is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// A source whose first packets have been looked at ahead of time.
struct Peeked<S> {
    /// Errors met before the first packet.
    errors: VecDeque<SourceError>,
    first: Option<Batch>,
    source: S,
}

impl<S: PacketSource> Peeked<S> {
    fn new(mut source: S) -> Self {
        let mut errors = VecDeque::new();
        let mut batch = Batch::new();
        let first = loop {
            match source.next_batch(&mut batch) {
                Ok(true) if batch.is_empty() => {}
                Ok(true) => break Some(batch),
                Ok(false) => break None,
                Err(error) => errors.push_back(error),
            }
        };
        Self {
            errors,
            first,
            source,
        }
    }

    fn peek(&self) -> Option<&Batch> {
        self.first.as_ref()
    }
}

impl<S: PacketSource> PacketSource for Peeked<S> {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        if let Some(error) = self.errors.pop_front() {
            return Err(error);
        }
        match self.first.take() {
            Some(first) => {
                *batch = first;
                Ok(true)
            }
            None => self.source.next_batch(batch),
        }
    }

    fn may_block(&self) -> bool {
        self.source.may_block()
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        self.source.statistics()
    }
}
