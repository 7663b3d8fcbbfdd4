//! `compare`: the same traffic captured at several points.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use anyhow::bail;
use clap::{Args, ValueEnum};
use roce_sniff::{
    Options,
    compare::{Collector, Comparison, Counts, Fate},
    decode,
    filter::Filter,
    frame::ROCE_PORT,
    pipeline,
    report::{CompareOptions, print_compare, print_compare_csv, print_compare_json},
    source::{BATCH_BYTES, Batch, PacketSource},
    track::Record,
};

use super::{
    Outcome,
    args::{FilterArgs, Format, InputArgs, OutputArgs},
    complain,
    output::Output,
    progress::{Counting, Progress, Tally},
};

/// Points that have a letter.
const MAX_POINTS: usize = 26;

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Captures of the same traffic, in the order that packets pass them, one
    /// way or the other: pcap or pcapng, plain, gzip or zstd; `-` is standard
    /// input
    #[arg(value_name = "FILE", num_args = 2.., required = true)]
    files: Vec<PathBuf>,

    /// The captures' clocks agree (one machine, or synchronised ones): do not
    /// estimate how far they are apart
    #[arg(long)]
    synced: bool,

    /// List every flow and packet, else 20 of each
    #[arg(long)]
    all: bool,

    /// End with status 1 where this happened to a packet (each includes those
    /// before it), or where the captures have no packet in common
    #[arg(long, value_enum, value_name = "WHAT")]
    fail_on: Option<FailOn>,

    /// UDP destination port that carries RoCEv2
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT)]
    port: u16,

    /// Threads that decode; by default one a core
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// What is a failure; each includes those above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum FailOn {
    /// A packet passed one point and not the next
    Loss,
    /// ECN bits, DSCP or ICRC changed on the way
    Change,
    /// A packet was seen at one point only, whatever the reason
    Any,
}

impl FailOn {
    fn fails(self, counts: &Counts) -> bool {
        let lone: u64 = match self {
            Self::Any => Fate::ALL.iter().map(|fate| counts.fate(*fate)).sum(),
            Self::Loss | Self::Change => counts.fate(Fate::Lost),
        };
        counts.matched == 0 || lone > 0 || self > Self::Loss && counts.changed > 0
    }
}

/// Runs the command.
pub fn run(args: &CompareArgs) -> anyhow::Result<Outcome> {
    if args.files.len() > MAX_POINTS {
        bail!("no more than {MAX_POINTS} captures can be compared");
    }
    let stdin = |file: &&PathBuf| file.as_path() == Path::new("-");
    if args.files.iter().filter(stdin).count() > 1 {
        bail!("standard input (-) can be read only once");
    }
    let filter = args.filter.filter()?;
    let mut collector = Collector::new();
    let mut opened = true;
    let mut complete = true;
    let counts = Tally::default();
    let mut progress = Progress::new(&counts, &args.files, args.output.quiet);
    for file in &args.files {
        let input = InputArgs {
            files: vec![file.clone()],
            merge: false,
            port: args.port,
            threads: args.threads,
        };
        collector.point(file.display().to_string());
        let mut source = Counting::new(input.source(BATCH_BYTES)?, &counts);
        complete &= read(&input, &mut source, &filter, &mut collector, &mut progress);
        let statistics = source.statistics();
        opened &= !statistics.is_empty();
        collector.dropped(statistics.first().and_then(|input| input.dropped));
    }
    drop(progress);
    if !opened {
        // There is nothing to compare with.
        return Ok(Outcome::Incomplete);
    }
    let comparison = collector.compare(args.synced);
    let mut output = Output::open(&args.output, &args.files, false)?;
    print(args, &comparison, &mut output)?;
    let failed = args.fail_on.is_some_and(|fail_on| {
        let mut legs = comparison.legs().iter();
        legs.any(|leg| fail_on.fails(&leg.counts))
    });
    Ok(match (complete, failed) {
        (false, _) => Outcome::Incomplete,
        (true, true) => Outcome::NotAsExpected,
        (true, false) => Outcome::Done,
    })
}

fn print(args: &CompareArgs, comparison: &Comparison, output: &mut Output) -> io::Result<()> {
    let options = CompareOptions {
        all: args.all,
        quiet: args.output.quiet,
        width: output.width,
    };
    let style = output.style;
    // Rows are made one by one.
    let mut buffered = io::BufWriter::with_capacity(1 << 16, output);
    match args.output.format {
        Format::Table => print_compare(&mut buffered, style, comparison, options)?,
        Format::Json => print_compare_json(&mut buffered, comparison)?,
        Format::Csv => print_compare_csv(&mut buffered, comparison)?,
    }
    buffered.flush()
}

/// Packets of a batch, decoded.
#[derive(Default)]
struct Chunk {
    frames: Vec<(i64, Option<Record>)>,
}

impl Chunk {
    fn fill(&mut self, batch: &Batch, options: Options, filter: &Filter) {
        self.frames.clear();
        self.frames.extend(batch.packets().map(|raw| {
            let packet = decode(&raw, &options).ok();
            // A write run's control frames are nobody's traffic.
            let packet = packet.filter(|packet| !packet.is_control());
            let packet = packet.filter(|packet| filter.is_empty() || filter.matches(packet));
            (raw.ts_ns, packet.map(|packet| Record::new(&raw, &packet)))
        }));
    }
}

/// Takes in a capture; whether it could be read to its end.
fn read(
    input: &InputArgs,
    source: &mut impl PacketSource,
    filter: &Filter,
    collector: &mut Collector,
    progress: &mut Option<Progress<'_>>,
) -> bool {
    let options = input.options();
    let mut complete = true;
    pipeline::run(
        source,
        input.threads(),
        |batch, chunk: &mut Chunk| chunk.fill(batch, options, filter),
        |chunk| {
            match chunk {
                Ok(chunk) => {
                    for (ts_ns, record) in &chunk.frames {
                        collector.frame(*ts_ns);
                        if let Some(record) = record {
                            collector.packet(record);
                        }
                    }
                    if let Some(progress) = progress {
                        progress.tick();
                    }
                }
                Err(error) => {
                    complete = false;
                    if let Some(progress) = progress {
                        progress.clear();
                    }
                    complain(&error.to_string());
                }
            }
            ControlFlow::Continue(())
        },
    );
    complete
}
