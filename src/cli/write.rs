//! `--iface IF --write`: a writer drives RDMA operations while a listener
//! watches the netdev; the two are held against each other.

use std::{
    collections::BTreeMap,
    net::Ipv6Addr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use roce_sniff::{
    Options,
    bypass::{
        Control, CounterDelta, DriverKind, Evidence, Judgement, Listening, Matcher, Seen, Verdict,
        judge,
    },
    decode,
    rdma::{
        ledger::{Ledger, Op},
        sysfs::{Counters, Device, Family, Gid, GidWish, Sysfs, choose_gid},
        verbs::{Plan, Session, Target},
    },
    report::{WriteDocument, print_write, print_write_plan},
    source::{Heard, Listener},
    track::Record,
};

use super::{
    args::{Format, OutputArgs, duration},
    output::Output,
};

/// Arguments of a write run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Write run (--write; needs --iface)")]
pub struct WriteArgs {
    /// Drive RDMA operations and tell what of them crossed the netdev
    #[arg(long, requires = "iface")]
    pub write: bool,

    /// RDMA device; by default the one on the netdev
    #[arg(long, value_name = "DEVICE", requires = "write")]
    dev: Option<String>,

    /// Write to a queue pair on this second RDMA device of this machine
    #[arg(long, value_name = "DEVICE", requires = "write")]
    peer_dev: Option<String>,

    /// Write to `roce-sniff responder` on another host
    #[arg(long, value_name = "HOST[:PORT]", requires = "write", conflicts_with = "peer_dev")]
    peer: Option<String>,

    /// Bytes of each operation (atomics: always 8)
    #[arg(long, value_name = "BYTES", default_value_t = 64, requires = "write")]
    size: u32,

    /// Operations in flight at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "write")]
    depth: u32,

    /// Time between operations, as 10ms
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s", requires = "write")]
    interval: Duration,

    /// Path MTU in bytes; by default the port's
    #[arg(long, value_name = "BYTES", requires = "write")]
    mtu: Option<u32>,

    /// Index of the source GID; by default the RoCE v2 one of the netdev's
    /// address
    #[arg(long, value_name = "N", requires = "write")]
    gid_index: Option<u8>,

    /// Address family of the source GID
    #[arg(long, value_name = "4|6", value_parser = family, requires = "write")]
    gid_family: Option<Family>,

    /// Give up when no operation completes for this long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s", requires = "write")]
    timeout: Duration,

    /// Send no control frame; silence of the listener then proves nothing
    #[arg(long, requires = "write")]
    no_control: bool,

    /// Set up Soft-RoCE on the netdev first, and remove it afterwards
    #[arg(long, requires = "write", conflicts_with = "dev")]
    setup_rxe: bool,

    /// Exit with status 1 unless this is the verdict
    #[arg(long, value_name = "VERDICT", value_parser = verdict, requires = "write")]
    expect: Option<Verdict>,
}

fn family(text: &str) -> Result<Family, String> {
    match text {
        "4" => Ok(Family::V4),
        "6" => Ok(Family::V6),
        _ => Err("not 4 or 6".into()),
    }
}

fn verdict(text: &str) -> Result<Verdict, String> {
    let all = [
        Verdict::NeverSent,
        Verdict::LoopbackBypassed,
        Verdict::OnTheWire,
        Verdict::PartlyCaptured,
        Verdict::Failed,
        Verdict::Inconclusive,
    ];
    all.into_iter().find(|verdict| verdict.word() == text).ok_or_else(|| {
        let words: Vec<_> = all.iter().map(|verdict| verdict.word()).collect();
        format!("not one of {}", words.join(", "))
    })
}
