//! `health`: what is wrong in a capture, with evidence.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use anyhow::bail;
use clap::{Args, ValueEnum, builder::PossibleValuesParser};
use roce_sniff::{
    filter::FlowFilter,
    health::{Health, KINDS, Kind, Severity, Subject, Thresholds},
    report::{
        HealthReport, print_health, print_health_csv, print_health_csv_header, print_health_json,
        print_kinds,
    },
    track::{Event, FlowKey, Limits, Listener, Message},
};

use super::{
    Outcome,
    analyse::{self, AnalyseArgs, Analysis, Followed},
    args::{Format, duration},
    flows::layout,
    output::Output,
};

/// Arguments of `health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// End with status 1 where something is that bad, or worse
    #[arg(long, value_enum, value_name = "SEVERITY")]
    fail_on: Option<FailOn>,

    /// Tell what a kind of finding means and when it is reported, and end;
    /// `all` for all kinds
    #[arg(long, value_name = "ID", hide_possible_values = true, value_parser = kind_ids(),
        conflicts_with_all = ["files", "live"])]
    explain: Option<String>,

    #[command(flatten)]
    analyse: AnalyseArgs,

    #[command(flatten)]
    thresholds: ThresholdArgs,

    #[arg(long, hide = true)]
    op: Option<String>,
}

/// From where on things are told.
#[derive(Debug, Args)]
#[command(next_help_heading = "Thresholds")]
struct ThresholdArgs {
    /// Silence while a request waits for its answer that is a stall
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = nanoseconds)]
    stall: i64,

    /// Times that one request is sent again before its peer counts as gone
    #[arg(long, value_name = "N", default_value_t = Thresholds::default().retries)]
    retries: u64,

    /// Distinct rkeys refused, or queue pairs that do not answer, that make a
    /// scan
    #[arg(long, value_name = "N", default_value_t = Thresholds::default().scan)]
    scan: u64,

    /// Congestion notifications a second that are a warning
    #[arg(long, value_name = "N", default_value_t = Thresholds::default().cnp_rate)]
    cnp_rate: u64,
}

/// What is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// Operations failed, or a connection was lost
    Error,
    /// What slows the traffic down, too
    Warning,
    /// Anything that is reported
    Info,
}

impl FailOn {
    const fn severity(self) -> Severity {
        match self {
            Self::Error => Severity::Error,
            Self::Warning => Severity::Warning,
            Self::Info => Severity::Info,
        }
    }
}

fn kind_ids() -> PossibleValuesParser {
    PossibleValuesParser::new(KINDS.iter().map(|kind| kind.id).chain(["all"]))
}

fn nanoseconds(text: &str) -> Result<i64, String> {
    i64::try_from(duration(text)?.as_nanos()).map_err(|_| "too long".into())
}

impl HealthArgs {
    fn thresholds(&self) -> Thresholds {
        let table = self.analyse.output.format == Format::Table;
        let given = &self.thresholds;
        Thresholds {
            stall_ns: given.stall,
            retries: given.retries,
            scan: given.scan,
            cnp_rate: given.cnp_rate,
            // Programs count for themselves.
            told_apart: if table && !self.analyse.rows.all {
                Thresholds::default().told_apart
            } else {
                usize::MAX
            },
        }
    }
}

struct Analysed<'a> {
    args: &'a AnalyseArgs,
    filter: FlowFilter,
    thresholds: Thresholds,
    health: Health,
    /// Of what was reported last.
    worst: Option<Severity>,
}

impl Listener for Analysed<'_> {
    fn event(&mut self, event: &Event<'_>) {
        self.health.event(event);
    }

    fn message(&mut self, message: &Message) {
        self.health.message(message);
    }
}

impl Analysis for Analysed<'_> {
    fn limits(&self) -> Limits {
        Limits {
            stall_ns: self.thresholds.stall_ns,
            ..Limits::default()
        }
    }

    fn begin(&mut self, _: &[String], out: &mut Output) -> io::Result<()> {
        match self.args.output.format {
            Format::Csv => print_health_csv_header(out, self.args.interval.is_some()),
            _ => Ok(()),
        }
    }

    fn report(&mut self, followed: &Followed<'_>, out: &mut Output) -> io::Result<()> {
        let Followed {
            capture, tracker, ..
        } = *followed;
        let mut findings =
            self.health
                .findings(tracker, capture.summary, capture.inputs, self.thresholds);
        if !self.filter.is_empty() {
            let flows = tracker.flows();
            let chosen = flows.filter(|flow| self.filter.matches(&flow.key, flow.src_qp));
            let chosen: HashSet<FlowKey> = chosen.map(|flow| flow.key).collect();
            findings.retain(|finding| match finding.subject {
                Subject::Flow(key) if chosen.contains(&key) => true,
                subject => subject.chosen(&self.filter),
            });
        }
        self.worst = findings.iter().map(|finding| finding.severity).max();
        let report = HealthReport {
            capture,
            tracker,
            findings: &findings,
            thresholds: self.thresholds,
            interval: followed.interval,
        };
        match self.args.output.format {
            Format::Json => print_health_json(out, &report),
            Format::Csv => print_health_csv(out, &report),
            Format::Table => {
                let layout = layout(self.args, out);
                print_health(out, &report, layout)
            }
        }
    }
}

/// Runs the command.
pub fn run(args: &HealthArgs) -> anyhow::Result<Outcome> {
    if args.op.is_some() {
        analyse::refuse("--op")?;
    }
    if let Some(id) = &args.explain {
        return explain(args, id);
    }
    let mut analysed = Analysed {
        args: &args.analyse,
        filter: args.analyse.rows.filter()?,
        thresholds: args.thresholds(),
        health: Health::new(),
        worst: None,
    };
    let outcome = analyse::run(&args.analyse, &mut analysed)?;
    let fails = |fail: FailOn| analysed.worst >= Some(fail.severity());
    Ok(match outcome {
        Outcome::Done if args.fail_on.is_some_and(fails) => Outcome::NotAsExpected,
        // What could not be read may have been worse.
        outcome => outcome,
    })
}

fn explain(args: &HealthArgs, id: &str) -> anyhow::Result<Outcome> {
    let output = &args.analyse.output;
    if output.format != Format::Table {
        bail!("--explain goes with --format table only");
    }
    let kinds: Vec<&Kind> = match Kind::named(id) {
        Some(kind) => vec![kind],
        None => KINDS.iter().collect(),
    };
    let mut output = Output::open(output, &[], false)?;
    let (style, width) = (output.style, output.width);
    print_kinds(&mut output, style, &kinds, width)?;
    output.flush()?;
    Ok(Outcome::Done)
}
