//! `lab`: Soft-RoCE whose packets can be seen, set up and removed.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    Outcome,
    args::{Format, OutputArgs},
    interrupt,
    output::Output,
};
use anyhow::bail;
use clap::{Args, Subcommand};
use roce_sniff::{
    host::{Host, Network},
    lab::{self, ADDRESSES, MTU, PREFIX, Plan, Status},
    report::{print_down, print_status, print_up},
};

/// Arguments of `lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Make a virtual wire (a veth pair) with a Soft-RoCE device at each end
    #[command(
        after_help = "Nothing of the machine is changed but for the two network devices, the two \
                      RDMA devices on them and the module rdma_rxe, which is loaded and stays. \
                      Names, addresses or routes in use are never touched."
    )]
    Up(UpArgs),
    /// Remove it, or whatever an interrupted `lab up` left of it
    Down(OtherArgs),
    /// Tell what there is of it, and the command to try next
    Status(OtherArgs),
}

#[derive(Debug, Args)]
struct UpArgs {
    /// Names begin with this: PREFIX-veth0, PREFIX-veth1, `PREFIX_rxe0`,
    /// `PREFIX_rxe1`
    #[arg(long, value_name = "PREFIX", default_value = PREFIX)]
    prefix: String,

    /// Address of the first end
    #[arg(long, value_name = "ADDR/LEN", default_value = ADDRESSES[0])]
    addr_a: Network,

    /// Address of the second end, in the same network
    #[arg(long, value_name = "ADDR/LEN", default_value = ADDRESSES[1])]
    addr_b: Network,

    /// MTU of the virtual wire; 4176 and more carry a path MTU of 4096
    #[arg(long, value_name = "BYTES", default_value_t = MTU)]
    mtu: u32,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct OtherArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &LabArgs) -> anyhow::Result<Outcome> {
    let options = match &args.command {
        LabCommand::Up(args) => &args.output,
        LabCommand::Down(args) | LabCommand::Status(args) => &args.output,
    };
    if options.format == Format::Csv {
        bail!("lab has --format table and json");
    }
    let host = Host::default();
    let mut output = Output::open(options, &[], false)?;
    let style = output.style;
    match &args.command {
        LabCommand::Up(args) => {
            let plan = Plan::new(&args.prefix, [args.addr_a, args.addr_b], args.mtu)?;
            // A second signal leaves the rest to `lab down`.
            let stop = Arc::new(AtomicBool::new(false));
            interrupt::sets(&stop)?;
            let up = lab::up(&host, &plan, &|| stop.load(Ordering::Relaxed))?;
            match options.format {
                Format::Json => json(&mut output, &up.status)?,
                _ if options.quiet => {}
                _ => print_up(&mut output, style, &up)?,
            }
        }
        LabCommand::Down(_) => {
            let down = lab::down(&host)?;
            match options.format {
                Format::Json => json(&mut output, &lab::status(&host)?)?,
                _ if options.quiet => {}
                _ => print_down(&mut output, style, &down)?,
            }
        }
        LabCommand::Status(_) => {
            let status = lab::status(&host)?;
            match options.format {
                Format::Json => json(&mut output, &status)?,
                _ => print_status(&mut output, style, &status)?,
            }
        }
    }
    output.flush()?;
    Ok(Outcome::Done)
}

fn json(output: &mut Output, status: &Status) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *output, status)?;
    writeln!(output)?;
    Ok(())
}
