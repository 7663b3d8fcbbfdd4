//! `doctor`: what of this machine stands in the way.

use std::{io::Write, net::IpAddr};

use anyhow::bail;
use clap::{Args, ValueEnum};
use roce_sniff::{
    doctor::{Probe, Status, examine},
    host::Host,
    report::{Verbosity, print_doctor},
};

use super::{
    Outcome,
    args::{Format, OutputArgs},
    output::Output,
};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Look at this network device only
    #[arg(short, long, value_name = "IF")]
    iface: Option<String>,

    /// Tell whether packets to this address would be looped or go on the wire
    #[arg(long, value_name = "ADDR")]
    to: Option<IpAddr>,

    /// Explain what is as it should be, too
    #[arg(short, long)]
    verbose: bool,

    /// End with status 1 where something is that bad
    #[arg(long, value_enum, value_name = "STATUS")]
    fail_on: Option<FailOn>,

    #[command(flatten)]
    output: OutputArgs,
}

/// What is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// What does not work
    Fail,
    /// What may surprise, too
    Warn,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> anyhow::Result<Outcome> {
    if args.output.format == Format::Csv {
        bail!("doctor has --format table and json");
    }
    let mut output = Output::open(&args.output, &[], false)?;
    let mut probe = Probe::new(Host::default(), args.iface.clone(), args.to);
    connect(&mut probe);
    #[cfg(feature = "verbs")]
    {
        probe.ask_mtu = Some(Box::new(roce_sniff::rdma::verbs::active_mtu));
    }
    let examination = examine(&probe);
    if args.output.format == Format::Json {
        serde_json::to_writer(&mut output, &examination)?;
        writeln!(output)?;
    } else {
        let verbosity = match (args.output.quiet, args.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Usual,
        };
        let (style, width) = (output.style, output.width);
        print_doctor(&mut output, style, &examination, verbosity, width)?;
    }
    output.flush()?;
    let worst = match args.fail_on {
        None => return Ok(Outcome::Done),
        Some(FailOn::Fail) => Status::Fail,
        Some(FailOn::Warn) => Status::Warn,
    };
    let mut findings = examination.checks.iter();
    Ok(if findings.all(|finding| finding.status < worst) {
        Outcome::Done
    } else {
        Outcome::NotAsExpected
    })
}

/// Lets the probe try what this build can do.
#[cfg(feature = "live")]
fn connect(probe: &mut Probe) {
    probe.try_capture = Some(Box::new(|netdev| {
        let capture = pcap::Capture::from_device(netdev).map_err(|error| error.to_string())?;
        // Opened and closed: nothing is read.
        let opened = capture.snaplen(64).timeout(100).open();
        opened.map(|_| ()).map_err(|error| error.to_string())
    }));
}

#[cfg(not(feature = "live"))]
fn connect(_: &mut Probe) {}
