//! Queue pairs of other programs, and how far they got.

use std::{collections::BTreeMap, thread};

use serde::Deserialize;

use super::{Finding, Probe};

/// A queue pair as `rdma -j resource show qp` has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct QueuePair {
    ifname: String,
    lqpn: u32,
    #[serde(rename = "type")]
    kind: String,
    state: String,
    /// Missing for those of the kernel.
    pid: Option<u32>,
    #[serde(default)]
    comm: String,
}

/// What a state means for one who waits for packets.
const MEANING: [(&str, &str); 4] = [
    (
        "INIT",
        "its ibv_modify_qp to RTR failed or was never called, and nothing it posts is sent. Usual \
         causes: GID index 0, a destination that does not answer ARP, a return value that nobody \
         looks at",
    ),
    (
        "RTR",
        "it can receive and not send: right for one that only answers, else its ibv_modify_qp to \
         RTS failed or is missing",
    ),
    (
        "ERR",
        "it has failed: the first completion that is no success tells why, all later ones are \
         flushed",
    ),
    (
        "SQE",
        "its send queue has failed: the first completion that is no success tells why",
    ),
];

/// Queue pairs that do not get on.
pub(super) fn states(probe: &Probe) -> Vec<Finding> {
    if probe.devices.is_empty() {
        return Vec::new();
    }
    let Some(before) = list(probe) else {
        return vec![
            Finding::note("not readable: `rdma resource show qp` does not work here").detail(
                "A queue pair that never left INIT sends nothing; only its own program can tell, \
                 by ibv_query_qp.",
            ),
        ];
    };
    if before.is_empty() {
        return vec![Finding::ok("no program has one open").detail(
            "While a program waits in vain, run the doctor again: a queue pair in INIT never \
             connected.",
        )];
    }
    let counters = |probe: &Probe| -> BTreeMap<String, u64> {
        let of = |name: &String| {
            let counters = probe.host.sysfs().counters(name, 1)?;
            Some((name.clone(), counters.sent()? + counters.received()?))
        };
        let names = probe.devices.iter().map(|device| &device.name);
        names.filter_map(of).collect()
    };
    let counted = counters(probe);
    thread::sleep(probe.idle);
    let after = list(probe).unwrap_or_default();
    let counted_after = counters(probe);
    // What changes by itself is still on its way.
    let still = before.iter().filter(|qp| after.contains(qp));
    let mut findings: Vec<_> = still
        .filter_map(|qp| {
            let (_, meaning) = MEANING.iter().find(|(state, _)| *state == qp.state)?;
            let moved = counted.get(&qp.ifname) != counted_after.get(&qp.ifname);
            if moved && qp.state == "RTR" {
                return None;
            }
            let who = format!("{} (pid {})", qp.comm, qp.pid.unwrap_or(0));
            let idle = match counted.get(&qp.ifname) {
                Some(_) if !moved => format!(". The counters of {} stand still", qp.ifname),
                _ => String::new(),
            };
            Some(
                Finding::warn(format!(
                    "{} {} of {who} on {} is in {}",
                    qp.kind, qp.lqpn, qp.ifname, qp.state
                ))
                .detail(format!("If it stays so, {meaning}{idle}.")),
            )
        })
        .collect();
    let rest = before.len() - findings.len();
    if rest > 0 {
        let pairs = if rest == 1 { "pair" } else { "pairs" };
        findings.push(Finding::ok(format!(
            "{rest} queue {pairs} of programs get on"
        )));
    }
    findings
}

/// Queue pairs of programs on the devices to look at.
fn list(probe: &Probe) -> Option<Vec<QueuePair>> {
    let ran = probe
        .host
        .run("rdma", &["-j", "resource", "show", "qp"])
        .ok()?;
    if !ran.success() {
        return None;
    }
    let mut pairs: Vec<QueuePair> = match ran.stdout.trim() {
        "" => Vec::new(),
        text => serde_json::from_str(text).ok()?,
    };
    pairs.retain(|qp| {
        let ours = probe.devices.iter().any(|device| device.name == qp.ifname);
        ours && qp.pid.is_some()
    });
    Some(pairs)
}
