//! `flows`: who talks to whom, what was lost and sent again, how long it took.

use std::io;

use clap::Args;
use roce_sniff::{
    filter::FlowFilter,
    report::{
        FlowsReport, Layout, print_flows, print_flows_csv, print_flows_csv_header, print_flows_json,
    },
    track::Listener,
};

use super::{
    Outcome,
    analyse::{self, AnalyseArgs, Analysis, Followed, refuse},
    args::Format,
    output::Output,
};

/// Arguments of `flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    #[command(flatten)]
    analyse: AnalyseArgs,

    #[arg(long, hide = true)]
    op: Option<String>,
}

struct Flows<'a> {
    args: &'a AnalyseArgs,
    filter: FlowFilter,
}

impl Listener for Flows<'_> {
    const MESSAGES: bool = false;
}

impl Analysis for Flows<'_> {
    fn begin(&mut self, _: &[String], out: &mut Output) -> io::Result<()> {
        match self.args.output.format {
            Format::Csv => print_flows_csv_header(out, self.args.interval.is_some()),
            _ => Ok(()),
        }
    }

    fn report(&mut self, followed: &Followed<'_>, out: &mut Output) -> io::Result<()> {
        let report = FlowsReport {
            capture: followed.capture,
            tracker: followed.tracker,
            filter: &self.filter,
            interval: followed.interval,
        };
        match self.args.output.format {
            Format::Json => print_flows_json(out, &report),
            Format::Csv => print_flows_csv(out, &report),
            Format::Table => {
                let layout = layout(self.args, out);
                print_flows(out, &report, layout)
            }
        }
    }
}

/// How tables are laid out.
pub fn layout(args: &AnalyseArgs, out: &Output) -> Layout {
    Layout {
        style: out.style,
        width: out.width,
        all: args.rows.all,
        quiet: args.output.quiet,
    }
}

/// Runs the command.
pub fn run(args: &FlowsArgs) -> anyhow::Result<Outcome> {
    if args.op.is_some() {
        refuse("--op")?;
    }
    let args = &args.analyse;
    let filter = args.rows.filter()?;
    analyse::run(args, &mut Flows { args, filter })
}
