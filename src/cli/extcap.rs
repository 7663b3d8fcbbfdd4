//! `extcap`: the kernel tap as a capture interface of Wireshark and tshark.
//!
//! `install` puts a two-line script where Wireshark looks for capture
//! programs; Wireshark then calls it with the arguments of extcap(4).

use std::{
    fs,
    io::{self, Write},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roce_sniff::{
    rdma::sysfs::{Device, Sysfs},
    report::{
        Counted, Dlt, ExtcapOption, Interface, PcapngWriter, print_dlt, print_interfaces,
        print_options,
    },
    source::{
        Batch, LinkType, PacketSource, Stop,
        tap::{TapOptions, TapSource},
    },
    wire::types::QpNumber,
};

use super::{Outcome, args::qp_number, interrupt, tap::TapArgs};

/// What to do, or what Wireshark asks.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ExtcapArgs {
    #[command(subcommand)]
    action: Option<Action>,

    // The rest is Wireshark's to say.
    #[arg(long, hide = true)]
    extcap_interfaces: bool,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    extcap_version: Option<String>,
    #[arg(long, hide = true)]
    extcap_interface: Option<String>,
    #[arg(long, hide = true)]
    extcap_dlts: bool,
    #[arg(long, hide = true)]
    extcap_config: bool,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    extcap_reload_option: Option<String>,
    #[arg(long, hide = true)]
    extcap_cleanup_postkill: bool,
    #[arg(long, hide = true)]
    capture: bool,
    #[arg(long, hide = true)]
    fifo: Option<PathBuf>,
    #[arg(long, hide = true)]
    extcap_capture_filter: Option<String>,
    #[arg(long, hide = true)]
    extcap_control_in: Option<PathBuf>,
    #[arg(long, hide = true)]
    extcap_control_out: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = optional_qp)]
    qp: Option<OptionalQp>,
    #[arg(long, hide = true, default_value_t = TapOptions::SNAPLEN)]
    snaplen: u32,
    #[arg(long, hide = true)]
    looped_only: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the kernel tap a capture interface of Wireshark
    Install(Place),
    /// Take it out again
    Uninstall(Place),
}

#[derive(Debug, Args)]
struct Place {
    /// Directory for capture programs; by default the one that
    /// `tshark -G folders` names, your own if it has one
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A queue pair, or an empty field of Wireshark's dialog.
#[derive(Debug, Clone, Copy)]
struct OptionalQp(Option<QpNumber>);

fn optional_qp(text: &str) -> Result<OptionalQp, String> {
    match text.trim() {
        "" => Ok(OptionalQp(None)),
        text => qp_number(text).map(|qp| OptionalQp(Some(qp))),
    }
}

/// What interfaces are called on Wireshark's command line, before the device.
const PREFIX: &str = "roce-tap-";
/// Name of the script.
const SCRIPT: &str = "roce-sniff";

const OPTIONS: [ExtcapOption<'_>; 3] = [
    ExtcapOption {
        call: "--qp",
        display: "Destination QP",
        tooltip: "Only packets to this queue pair, decimal or 0x…; empty for every one",
        kind: "string",
        more: "{required=false}",
    },
    ExtcapOption {
        call: "--snaplen",
        display: "Bytes kept of a packet",
        tooltip: "From the IP header on",
        kind: "integer",
        more: "{range=1,4224}{default=4224}",
    },
    ExtcapOption {
        call: "--looped-only",
        display: "Looped packets only",
        tooltip: "Leave out what came over a netdev and can be captured there",
        kind: "boolflag",
        more: "{default=false}",
    },
];

/// Runs the command.
pub fn run(args: &ExtcapArgs) -> anyhow::Result<Outcome> {
    match &args.action {
        Some(Action::Install(place)) => install(place)?,
        Some(Action::Uninstall(place)) => uninstall(place)?,
        None => answer(args)?,
    }
    Ok(Outcome::Done)
}

fn answer(args: &ExtcapArgs) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.extcap_interfaces {
        let devices = devices();
        let interfaces: Vec<_> = devices
            .iter()
            .map(|name| {
                (
                    format!("{PREFIX}{name}"),
                    format!("RoCE kernel tap: {name}"),
                )
            })
            .collect();
        let interfaces = interfaces.iter().map(|(a, b)| (a.as_str(), b.as_str()));
        print_interfaces(&mut out, interfaces)?;
    } else if args.extcap_dlts {
        print_dlt(
            &mut out,
            Dlt {
                number: LinkType::RAW.0,
                name: "RAW",
                display: "IP packets",
            },
        )?;
    } else if args.extcap_config {
        print_options(&mut out, &OPTIONS)?;
    } else if args.capture {
        let filter = args.extcap_capture_filter.as_deref().unwrap_or_default();
        match (&args.fifo, filter.is_empty()) {
            (Some(fifo), true) => capture(args, fifo)?,
            // Wireshark asks whether the filter is one.
            (None, false) => writeln!(out, "{NO_FILTER}")?,
            (Some(_), false) => bail!(NO_FILTER),
            (None, true) => {}
        }
    } else if !args.extcap_cleanup_postkill {
        bail!("extcap: say install or uninstall; the rest is for Wireshark to say");
    }
    out.flush()?;
    Ok(())
}

const NO_FILTER: &str = "the kernel tap takes no capture filter; set a destination QP in the \
                         interface's options";

fn devices() -> Vec<String> {
    let devices = Sysfs::default().devices().unwrap_or_default();
    let rxe = devices.into_iter().filter(Device::is_rxe);
    rxe.map(|device| device.name).collect()
}

/// Taps a device into Wireshark's pipe, until either end has enough.
fn capture(args: &ExtcapArgs, fifo: &Path) -> anyhow::Result<()> {
    let interface = args.extcap_interface.as_deref().unwrap_or_default();
    let device = interface
        .strip_prefix(PREFIX)
        .with_context(|| format!("{interface}: no interface of this program"))?;
    let tap = TapArgs {
        tap: true,
        tap_dev: Some(device.into()),
        tap_qp: args.qp.and_then(|qp| qp.0),
        tap_snaplen: args.snaplen.clamp(1, TapOptions::SNAPLEN),
        tap_buffer: TapOptions::BUFFER >> 10,
    };
    let options = TapOptions {
        looped_only: args.looped_only,
        ..tap.options(&Sysfs::default())?
    };
    let stop = Stop::default();
    interrupt::sets(&stop.flag())?;
    let mut source = TapSource::open(&options, stop.clone())?;
    let names = source.names().map(|name| Interface {
        name: name.into(),
        link: LinkType::RAW,
        snaplen: source.snaplen(),
        filter: None,
    });
    let names: Vec<_> = names.collect();
    let pipe = fs::OpenOptions::new()
        .write(true)
        .open(fifo)
        .with_context(|| format!("{}: cannot write", fifo.display()))?;
    let watched = pipe.try_clone()?;
    let mut writer = PcapngWriter::new(pipe, &names)?;
    let mut batch = Batch::new();
    while source.next_batch(&mut batch)? {
        for packet in batch.packets() {
            writer.packet(&packet)?;
        }
        if !batch.is_empty() {
            writer.flush()?;
        }
        if closed(&watched) {
            stop.set();
        }
    }
    if closed(&watched) {
        return Ok(());
    }
    for (number, input) in (0..).zip(source.statistics()) {
        let counted = Counted {
            start_ns: source.started_ns(),
            end_ns: source.started_ns(),
            counters: input.live.unwrap_or_default(),
            delivered: input.packets,
        };
        writer.statistics(number, &counted)?;
    }
    Ok(())
}

/// Whether the reader of a pipe is gone.
fn closed(pipe: &fs::File) -> bool {
    let mut fd = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
    let _ = poll(&mut fd, PollTimeout::ZERO);
    fd[0]
        .revents()
        .is_some_and(|it| it.contains(PollFlags::POLLERR))
}

fn install(place: &Place) -> anyhow::Result<()> {
    let dir = directory(place)?;
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let script = dir.join(SCRIPT);
    let quoted = program.display().to_string().replace('\'', r"'\''");
    fs::create_dir_all(&dir)
        .and_then(|()| {
            fs::write(
                &script,
                format!("#!/bin/sh\nexec '{quoted}' extcap \"$@\"\n"),
            )
        })
        .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
        .with_context(|| {
            format!(
                "{}: cannot write (try sudo, or another directory: --dir)",
                script.display()
            )
        })?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "installed {}: restart Wireshark, and look for \"RoCE kernel tap\"",
        script.display()
    )?;
    if let Err(error) = roce_sniff::source::tap::can_run() {
        writeln!(out, "it will not run yet: {error}")?;
    }
    Ok(())
}

fn uninstall(place: &Place) -> anyhow::Result<()> {
    let script = directory(place)?.join(SCRIPT);
    match fs::read_to_string(&script) {
        Ok(text) if text.contains(" extcap \"$@\"") => {
            fs::remove_file(&script)
                .with_context(|| format!("{}: cannot remove", script.display()))?;
            writeln!(io::stdout(), "removed {}", script.display())?;
        }
        Ok(_) => bail!("{}: not what install put there", script.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            writeln!(io::stdout(), "{} is not there", script.display())?;
        }
        Err(error) => return Err(error).with_context(|| script.display().to_string()),
    }
    Ok(())
}

/// Where Wireshark looks for the user's own capture programs. It moved from
/// one version to the next, so it is asked.
fn directory(place: &Place) -> anyhow::Result<PathBuf> {
    if let Some(dir) = &place.dir {
        return Ok(dir.clone());
    }
    for program in ["tshark", "wireshark"] {
        let Ok(said) = Command::new(program).args(["-G", "folders"]).output() else {
            continue;
        };
        if let Some(dir) = personal(&String::from_utf8_lossy(&said.stdout)) {
            return Ok(dir);
        }
    }
    let home = std::env::var_os("HOME").context("HOME is not set: name a directory with --dir")?;
    Ok(PathBuf::from(home).join(".local/lib/wireshark/extcap"))
}

/// The directory in what `tshark -G folders` prints: the user's own, or where
/// the version has none, everybody's.
fn personal(folders: &str) -> Option<PathBuf> {
    let named = |wanted: &str| {
        folders.lines().find_map(|line| {
            let (name, path) = line.split_once(':')?;
            let path = path.trim();
            (name.trim().eq_ignore_ascii_case(wanted) && !path.is_empty())
                .then(|| PathBuf::from(path))
        })
    };
    named("Personal Extcap path").or_else(|| named("Extcap path"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_directory_as_tshark_names_it() {
        let folders = "Temp:                \t/tmp\n\
                       Personal Extcap path:\t/home/me/.local/lib/wireshark/extcap\n\
                       Global Extcap path:  \t/usr/lib/wireshark/extcap\n";
        let expected = PathBuf::from("/home/me/.local/lib/wireshark/extcap");
        assert_eq!(personal(folders), Some(expected));
        let old = "Extcap path: \t/usr/lib/wireshark/extcap\n";
        let expected = PathBuf::from("/usr/lib/wireshark/extcap");
        assert_eq!(personal(old), Some(expected));
        assert_eq!(personal("Plugins: /usr/lib\n"), None);
    }
}
