//! `responder`: lends memory to writers on other hosts.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context, bail};
use clap::Args;
use roce_sniff::rdma::{
    sysfs::{GidWish, Sysfs, choose_gid},
    verbs::{DEFAULT_PORT, Responder, ResponderEvent, ResponderPlan, Step, VerbsError},
};
use serde_json::{Value, json};

use super::{
    Outcome,
    args::{Format, OutputArgs},
    device, interrupt,
    output::Output,
};

/// Arguments of `responder`.
#[derive(Debug, Args)]
pub struct ResponderArgs {
    /// RDMA device; by default the one on --iface, or the only one there is
    #[arg(long, value_name = "DEVICE")]
    dev: Option<String>,

    /// Network device with the RDMA device
    #[arg(short, long, value_name = "IF")]
    iface: Option<String>,

    /// Index of the GID; by default the RoCE v2 one of the device's address
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,

    /// Where to listen for writers (TCP): an address, a port or both; by
    /// default port 14791 of every address
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen)]
    listen: Option<SocketAddr>,

    /// Serve one writer, then end
    #[arg(long)]
    once: bool,

    /// Serve only writers that connect through the RDMA connection manager
    #[arg(long)]
    cm: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Every address of this host, where it has IPv6.
const EVERYWHERE: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), DEFAULT_PORT);
/// Every address, where it has not.
const EVERYWHERE_V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), DEFAULT_PORT);

fn listen(text: &str) -> Result<SocketAddr, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse()
        .or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, DEFAULT_PORT)))
        .or_else(|_| {
            let port = text.trim_start_matches(':').parse();
            port.map(|port| SocketAddr::new(EVERYWHERE.ip(), port))
        })
        .map_err(|_| "not ADDR, PORT or ADDR:PORT".into())
}

/// Serves writers until it is interrupted, or one with `--once`.
pub fn run(args: &ResponderArgs) -> anyhow::Result<Outcome> {
    if args.output.format == Format::Csv {
        bail!("the responder prints lines or --format json");
    }
    let json = args.output.format == Format::Json;
    let plan = plan(args)?;
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::sets(&stop)?;
    let responder = match bind(&plan, args.listen) {
        Err(error) if error.step == Step::Exchange && args.listen.is_none() => {
            bind(&plan, Some(EVERYWHERE_V4))
        }
        bound => bound,
    }?;
    let address = responder.address()?;
    let mut out = Output::open(&args.output, &[], false)?;
    let mut say = |object: Value, line: String| {
        if json {
            serde_json::to_writer(&mut out, &object)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{line}")?;
        }
        // Somebody may be waiting for it.
        out.flush()
    };
    let netdev = plan.netdev.as_deref().unwrap_or("-");
    say(
        json!({
            "event": "listening", "device": plan.device, "port": plan.port, "netdev": plan.netdev,
            "gid_index": plan.gid_index, "gid": plan.gid, "address": address,
        }),
        format!(
            "{} on {netdev} · port {} · GID {} {} · listening at {address}; Ctrl-C ends",
            plan.device, plan.port, plan.gid_index, plan.gid
        ),
    )?;

    let mut outcome = Outcome::Done;
    let mut written = Ok(());
    responder.serve(&stop, &mut |event| {
        if args.once {
            outcome = match event {
                ResponderEvent::Connected { .. } => outcome,
                ResponderEvent::Finished { verified, .. } if *verified != Some(false) => {
                    Outcome::Done
                }
                ResponderEvent::Finished { .. } | ResponderEvent::Failed { .. } => {
                    Outcome::Incomplete
                }
            };
        }
        if written.is_ok() {
            written = say(object(event), line(event));
        }
    })?;
    written?;
    Ok(outcome)
}

fn bind(plan: &ResponderPlan, listen: Option<SocketAddr>) -> Result<Responder, VerbsError> {
    Responder::bind(ResponderPlan {
        listen: listen.unwrap_or(EVERYWHERE),
        ..plan.clone()
    })
}

fn plan(args: &ResponderArgs) -> anyhow::Result<ResponderPlan> {
    let sysfs = Sysfs::default();
    let (device, port) = device(args, &sysfs)?;
    let table = device.port(port).context("the port has vanished")?;
    let wish = GidWish {
        index: args.gid_index,
        family: None,
    };
    let gid =
        choose_gid(table, args.iface.as_deref(), wish).with_context(|| device.name.clone())?;
    Ok(ResponderPlan {
        netdev: gid.netdev.clone().or_else(|| table.netdev.clone()),
        device: device.name,
        port,
        gid_index: gid.index,
        gid: gid.gid,
        listen: EVERYWHERE,
        once: args.once,
        cm: args.cm,
    })
}

/// The device named, the one on the netdev named, or the only one.
fn device(args: &ResponderArgs, sysfs: &Sysfs) -> anyhow::Result<device::Port> {
    if let (None, Some(iface)) = (&args.dev, &args.iface) {
        return device::on_netdev(iface, sysfs, "");
    }
    let mut devices = sysfs.devices().context("/sys/class/infiniband")?;
    let names: Vec<_> = devices.iter().map(|device| device.name.clone()).collect();
    match (devices.pop(), devices.is_empty(), &args.dev) {
        (None, _, _) => bail!(
            "this machine has no RDMA device; for Soft-RoCE on a network device: \
             `sudo modprobe rdma_rxe` and `sudo rdma link add rxe0 type rxe netdev IF`"
        ),
        (Some(_), _, Some(name)) => device::named(name, sysfs),
        (Some(device), true, None) => Ok(device::first_port(device)),
        (Some(_), false, None) => {
            let names = names.join(", ");
            bail!("there are several RDMA devices ({names}): name one with --dev")
        }
    }
}

fn object(event: &ResponderEvent) -> Value {
    match event {
        ResponderEvent::Connected {
            peer,
            op,
            count,
            size,
            qp,
            dest_gid,
            dest_qp,
            mtu,
            cm,
        } => json!({
            "event": "connected", "peer": peer, "op": op.word(), "count": count, "size": size,
            "qp": qp.get(), "dest_gid": dest_gid, "dest_qp": dest_qp.get(), "mtu": mtu, "cm": cm,
        }),
        ResponderEvent::Finished {
            peer,
            posted,
            completed,
            received,
            verified,
        } => json!({
            "event": "finished", "peer": peer, "posted": posted, "completed": completed,
            "received": received, "payload_verified": verified,
        }),
        ResponderEvent::Failed { peer, why } => {
            json!({ "event": "failed", "peer": peer, "why": why })
        }
    }
}

fn line(event: &ResponderEvent) -> String {
    match event {
        ResponderEvent::Connected {
            peer,
            op,
            count,
            size,
            qp,
            dest_gid,
            dest_qp,
            mtu,
            cm,
        } => format!(
            "{peer}: {count} × {} of {size} bytes from QP {dest_qp} at {} to QP {qp} here, \
             path MTU {mtu}{}",
            op.name(),
            dest_gid.to_canonical(),
            if *cm {
                ", connected by the RDMA-CM"
            } else {
                ""
            },
        ),
        ResponderEvent::Finished {
            peer,
            posted,
            completed,
            received,
            verified,
        } => {
            let receives = match received {
                0 => String::new(),
                received => format!(", {received} receives taken up"),
            };
            let memory = match verified {
                Some(true) => "memory here holds what it should",
                Some(false) => "memory here does NOT hold what it should",
                None => "nothing to check here",
            };
            format!(
                "{peer}: {completed} of {posted} posted operations completed{receives}; {memory}"
            )
        }
        ResponderEvent::Failed { peer, why } => format!("{peer}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_listen() {
        let place = |text| listen(text).map(|address| address.to_string());
        assert_eq!(place("10.0.0.2"), Ok("10.0.0.2:14791".into()));
        assert_eq!(place("10.0.0.2:99"), Ok("10.0.0.2:99".into()));
        assert_eq!(place("fd00::2"), Ok("[fd00::2]:14791".into()));
        assert_eq!(place("[fd00::2]"), Ok("[fd00::2]:14791".into()));
        assert_eq!(place("[fd00::2]:99"), Ok("[fd00::2]:99".into()));
        assert_eq!(place("99"), Ok("[::]:99".into()));
        assert_eq!(place(":99"), Ok("[::]:99".into()));
        for broken in ["", "node7", "10.0.0.2:99999", "[::1]x"] {
            assert!(place(broken).is_err(), "{broken}");
        }
    }
}
