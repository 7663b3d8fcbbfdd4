//! Priority flow control and congestion notification, as far as they can be
//! read.

use super::{Finding, Probe};
use crate::host::Host;

/// What is switched on for each network device.
pub(super) fn settings(probe: &Probe) -> Vec<Finding> {
    probe
        .ports()
        .filter_map(|(device, port)| {
            let netdev = port.netdev.as_deref()?;
            Some(if device.is_rxe() {
                Finding::note(format!(
                    "not readable on {netdev}: {} is software",
                    device.name
                ))
                .detail(
                    "Soft-RoCE neither pauses nor slows down; what happens is decided by \
                         switches and by the network device under it. net.ipv4.tcp_ecn has no \
                         part in it.",
                )
            } else {
                of(&probe.host, netdev)
            })
        })
        .collect()
}

fn of(host: &Host, netdev: &str) -> Finding {
    let pfc = pfc(host, netdev);
    let pause = pause(host, netdev);
    let ecn = ecn(host, netdev);
    let known: Vec<_> = [
        pfc.as_ref().map(|priorities| match priorities.as_slice() {
            [] => "PFC off".to_owned(),
            on => format!("PFC on priority {}", on.join(", ")),
        }),
        pause.map(|on| format!("global pause {}", if on { "on" } else { "off" })),
        ecn.as_ref().map(|priorities| match priorities.as_slice() {
            [] => "ECN off".to_owned(),
            on => format!("ECN on priority {}", on.join(", ")),
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    if known.is_empty() {
        return Finding::note(format!("not readable on {netdev}"))
            .detail("Neither dcb nor ethtool -a tells, nor the driver in /sys.");
    }
    let summary = format!("{netdev}: {}", known.join(", "));
    let lossless = pfc.as_ref().is_some_and(|on| !on.is_empty()) || pause == Some(true);
    let slows = ecn.as_ref().is_some_and(|on| !on.is_empty());
    if !lossless && !slows {
        return Finding::warn(summary).detail(
            "Nothing keeps the network from dropping under load, and RoCE sends again from the \
             first lost packet on. net.ipv4.tcp_ecn has no part in it.",
        );
    }
    Finding::ok(summary)
}

/// Priorities with PFC: "prio-pfc 0:off 1:off 2:off 3:on …".
fn pfc(host: &Host, netdev: &str) -> Option<Vec<String>> {
    let ran = host.run("dcb", &["pfc", "show", "dev", netdev]).ok()?;
    let line = ran
        .stdout
        .lines()
        .find_map(|line| line.trim().strip_prefix("prio-pfc"))
        .filter(|_| ran.success())?;
    let on = line
        .split_whitespace()
        .filter_map(|word| Some(word.strip_suffix(":on")?.to_owned()));
    Some(on.collect())
}

/// Whether frames are paused whatever their priority.
fn pause(host: &Host, netdev: &str) -> Option<bool> {
    let ran = host.run("ethtool", &["-a", netdev]).ok()?;
    let line = ran
        .stdout
        .lines()
        .find_map(|line| line.trim().strip_prefix("RX:"))
        .filter(|_| ran.success())?;
    Some(line.trim() == "on")
}

/// Priorities on which the adapter answers CE marks with CNPs (mlx5).
fn ecn(host: &Host, netdev: &str) -> Option<Vec<String>> {
    let path = format!("sys/class/net/{netdev}/ecn/roce_np/enable");
    if !host.exists(&path) {
        return None;
    }
    let on =
        (0..8).filter(|priority| host.read(&format!("{path}/{priority}")).as_deref() == Some("1"));
    Some(on.map(|priority| priority.to_string()).collect())
}
