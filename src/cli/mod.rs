//! The command line: arguments, exit status, one file a command.

mod args;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod lab;
mod output;
mod packets;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit status for a verdict that the user asked to fail on.
#[cfg(target_os = "linux")]
const VERDICT: u8 = 1;

/// Exit status for bad usage and unreadable input; clap uses the same.
const UNUSABLE: u8 = 2;

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
    after_help = "Exit status: 0 done; 1 a verdict that was asked to be a failure (doctor --fail-on); 2 bad usage, an input that could not be read to its end, or a machine that cannot do it."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    packets: packets::PacketsArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print every RoCE packet, then a summary
    Packets(packets::PacketsArgs),

    /// Find out what of this machine stands in the way of RDMA or of capturing
    /// it
    #[cfg(target_os = "linux")]
    Doctor(doctor::DoctorArgs),

    /// Set up two Soft-RoCE devices on this machine whose packets can be seen
    #[cfg(target_os = "linux")]
    Lab(lab::LabArgs),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Command::Packets(args)) => packets::run(&args),
        #[cfg(target_os = "linux")]
        Some(Command::Doctor(args)) => match doctor::run(&args) {
            Ok(false) => return ExitCode::from(VERDICT),
            result => result,
        },
        #[cfg(target_os = "linux")]
        Some(Command::Lab(args)) => lab::run(&args),
        None => packets::run(&cli.packets),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        // What went wrong was reported where it happened.
        Ok(false) => ExitCode::from(UNUSABLE),
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
