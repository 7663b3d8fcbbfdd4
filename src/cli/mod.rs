//! The command line: arguments, exit status, one file a command.

mod analyse;
mod args;
mod compare;
#[cfg(all(feature = "verbs", target_os = "linux"))]
mod device;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(all(feature = "tap", target_os = "linux"))]
mod extcap;
mod flows;
mod health;
#[cfg(unix)]
mod interrupt;
#[cfg(target_os = "linux")]
mod lab;
mod live;
mod memory;
mod messages;
mod output;
mod packets;
mod progress;
#[cfg(all(feature = "verbs", target_os = "linux"))]
mod responder;
mod tap;
#[cfg(all(feature = "live", feature = "verbs", target_os = "linux"))]
mod write;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(all(feature = "live", feature = "verbs", target_os = "linux"))]
use write::OPTIONS;

/// Exit status for bad usage and unreadable input; clap uses the same.
const UNUSABLE: u8 = 2;
/// Exit status for a verdict that the user asked to fail on.
const NOT_AS_EXPECTED: u8 = 1;
/// Where there are no write runs, no option is about them.
#[cfg(not(all(feature = "live", feature = "verbs", target_os = "linux")))]
const OPTIONS: [(&str, &str); 0] = [];

/// How a command that could do its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All done.
    Done,
    /// An input could not be read to its end; that was reported where it
    /// happened.
    Incomplete,
    /// The verdict is one that the user asked to fail on.
    NotAsExpected,
}

/// Tells what RDMA over Converged Ethernet really did.
///
/// Without a command, prints every RoCE packet of the captures as a table,
/// then a summary.
#[derive(Debug, Parser)]
#[command(
    name = "roce-sniff",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Exit status: 0 done; 1 a verdict that was asked to be a failure (--expect, --fail-on); 2 bad usage, an input that could not be read to its end, or a machine that cannot do it."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    packets: packets::PacketsArgs,

    #[cfg(all(feature = "live", feature = "verbs", target_os = "linux"))]
    #[command(flatten)]
    write: write::WriteArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print every RoCE packet, then a summary
    Packets(Box<packets::PacketsArgs>),

    /// Who talks to whom, what was lost and sent again, how long it took
    Flows(Box<flows::FlowsArgs>),

    /// Every RDMA operation as it travelled, and how long they took
    Messages(Box<messages::MessagesArgs>),

    /// Which memory of which host was touched, and what was refused
    Memory(Box<memory::MemoryArgs>),

    /// Find out what is wrong in a capture: losses, waits, refusals,
    /// congestion, each with its evidence
    Health(Box<health::HealthArgs>),

    /// Compare the same traffic captured at several points: what was lost or
    /// changed between them, how long it took
    Compare(Box<compare::CompareArgs>),

    /// Find out what of this machine stands in the way of RDMA or of capturing
    /// it
    #[cfg(target_os = "linux")]
    Doctor(doctor::DoctorArgs),

    /// Set up two Soft-RoCE devices on this machine whose packets can be seen
    #[cfg(target_os = "linux")]
    Lab(lab::LabArgs),

    /// Lend memory to `--write --peer` on other hosts
    #[cfg(all(feature = "verbs", target_os = "linux"))]
    Responder(responder::ResponderArgs),

    /// The kernel tap as a capture interface of Wireshark
    #[cfg(all(feature = "tap", target_os = "linux"))]
    Extcap(extcap::ExtcapArgs),
}

/// The arguments; what is wrong with them ends the program.
fn parse() -> Cli {
    let mut matches = command().get_matches();
    Cli::from_arg_matches_mut(&mut matches)
        .unwrap_or_else(|error| error.format(&mut command()).exit())
}

/// The command line. Some options mean something of their own beside `--write`,
/// which commands do not have.
fn command() -> clap::Command {
    let options = OPTIONS.iter();
    options.fold(Cli::command(), |command, (option, help)| {
        command.mut_arg(option, |arg| arg.help(*help))
    })
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = parse();
    let result = match cli.command {
        Some(Command::Packets(args)) => packets::run(&args),
        Some(Command::Flows(args)) => flows::run(&args),
        Some(Command::Messages(args)) => messages::run(&args),
        Some(Command::Memory(args)) => memory::run(&args),
        Some(Command::Health(args)) => health::run(&args),
        Some(Command::Compare(args)) => compare::run(&args),
        #[cfg(all(feature = "verbs", target_os = "linux"))]
        Some(Command::Responder(args)) => responder::run(&args),
        #[cfg(all(feature = "live", feature = "verbs", target_os = "linux"))]
        None if cli.write.write => write::run(&cli.write, &cli.packets),
        #[cfg(target_os = "linux")]
        Some(Command::Doctor(args)) => doctor::run(&args),
        #[cfg(target_os = "linux")]
        Some(Command::Lab(args)) => lab::run(&args),
        #[cfg(all(feature = "tap", target_os = "linux"))]
        Some(Command::Extcap(args)) => extcap::run(&args),
        None => packets::run(&cli.packets),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Incomplete) => ExitCode::from(UNUSABLE),
        Ok(Outcome::NotAsExpected) => ExitCode::from(NOT_AS_EXPECTED),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(UNUSABLE)
        }
    }
}

/// Prints one line on standard error; a closed standard error is no reason to
/// fail.
fn complain(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "roce-sniff: {message}");
}
