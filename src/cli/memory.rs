//! `memory`: which memory of which responder was touched.

use std::io;

use clap::Args;
use roce_sniff::{
    filter::FlowFilter,
    report::{
        MemoryReport, print_memory, print_memory_csv, print_memory_csv_header, print_memory_json,
    },
    track::{Listener, MemoryMap, Message},
};

use super::{
    Outcome,
    analyse::{self, AnalyseArgs, Analysis, Followed, refuse},
    args::Format,
    flows::layout,
    output::Output,
};

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    #[command(flatten)]
    analyse: AnalyseArgs,

    #[arg(long, hide = true)]
    op: Option<String>,
}

struct Memory<'a> {
    args: &'a AnalyseArgs,
    filter: FlowFilter,
    map: MemoryMap,
}

impl Listener for Memory<'_> {
    fn message(&mut self, message: &Message) {
        if self.filter.matches(&message.key, message.src_qp) {
            self.map.add(message);
        }
    }
}

impl Analysis for Memory<'_> {
    fn begin(&mut self, _: &[String], out: &mut Output) -> io::Result<()> {
        match self.args.output.format {
            Format::Csv => print_memory_csv_header(out, self.args.interval.is_some()),
            _ => Ok(()),
        }
    }

    fn report(&mut self, followed: &Followed<'_>, out: &mut Output) -> io::Result<()> {
        let report = MemoryReport {
            capture: followed.capture,
            tracker: followed.tracker,
            memory: &self.map,
            interval: followed.interval,
        };
        match self.args.output.format {
            Format::Json => print_memory_json(out, &report),
            Format::Csv => print_memory_csv(out, &report),
            Format::Table => {
                let layout = layout(self.args, out);
                print_memory(out, &report, layout)
            }
        }
    }
}

/// Runs the command.
pub fn run(args: &MemoryArgs) -> anyhow::Result<Outcome> {
    if args.op.is_some() {
        refuse("--op")?;
    }
    let args = &args.analyse;
    let mut memory = Memory {
        args,
        filter: args.rows.filter()?,
        map: MemoryMap::default(),
    };
    analyse::run(args, &mut memory)
}
