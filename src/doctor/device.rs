//! Network and RDMA devices, their addresses and sizes.

use std::net::IpAddr;

use super::{Finding, Probe, port_name};
use crate::{
    lab::name_for,
    rdma::{
        mtu,
        sysfs::{Device, Gid, GidKind, GidWish, Port, choose_gid},
    },
};

/// Whether the network devices carry.
pub(super) fn netdevs(probe: &Probe) -> Vec<Finding> {
    let sysfs = probe.host.sysfs();
    let finding = |name: &str| {
        let Some(netdev) = sysfs.netdev(name) else {
            return Finding::fail(format!("there is no network device {name}"))
                .detail(format!("There are: {}.", sysfs.netdevs().join(", ")));
        };
        let what = format!("{name} ({}, MTU {})", netdev.kind, netdev.mtu);
        if !netdev.up {
            Finding::fail(format!("{what} is down")).repair(format!("sudo ip link set {name} up"))
        } else if netdev.carrier == Some(false) {
            Finding::fail(format!("{what} has no carrier")).detail(
                "It is up, but nothing is at the other end: a cable, an access point, the peer \
                 of a veth pair that is down.",
            )
        } else {
            Finding::ok(format!("{what} is up"))
        }
    };
    probe.netdevs().into_iter().map(finding).collect()
}

/// Which RDMA devices there are, and whether their ports are active.
pub(super) fn devices(probe: &Probe) -> Vec<Finding> {
    if let Some(iface) = &probe.iface
        && probe.host.sysfs().netdev(iface).is_none()
    {
        // Said already.
        return Vec::new();
    }
    if probe.devices.is_empty() {
        return vec![no_device(probe)];
    }
    let mut findings = Vec::new();
    for device in &probe.devices {
        findings.extend(device.ports.iter().map(|port| state(probe, device, port)));
    }
    findings
}

fn no_device(probe: &Probe) -> Finding {
    let Some(iface) = &probe.iface else {
        return Finding::fail("there is none")
            .detail(
                "No program can use RDMA. The lab makes two Soft-RoCE devices; on a network \
                 device NETDEV of your own: sudo rdma link add rxe0 type rxe netdev NETDEV",
            )
            .repair("sudo roce-sniff lab up");
    };
    let others = probe.host.sysfs().devices().unwrap_or_default();
    let others: Vec<_> = others
        .iter()
        .flat_map(|device| device.ports.iter().map(move |port| (device, port)))
        .map(|(device, port)| format!("{} on {}", port_name(device, port), on(port)))
        .collect();
    let finding = Finding::fail(format!("{iface} has none")).repair(format!(
        "sudo rdma link add {} type rxe netdev {iface}",
        name_for(iface)
    ));
    if others.is_empty() {
        finding
    } else {
        finding.detail(format!("There are: {}.", others.join(", ")))
    }
}

fn on(port: &Port) -> &str {
    port.netdev.as_deref().unwrap_or("no network device")
}

fn state(probe: &Probe, device: &Device, port: &Port) -> Finding {
    let name = port_name(device, port);
    if !port.is_ethernet() {
        return Finding::note(format!("{name} is InfiniBand, not RoCE"))
            .detail("Its packets are not Ethernet: no capture on a network device sees them.");
    }
    let driver = match device.driver.as_deref() {
        _ if device.is_rxe() => "Soft-RoCE",
        Some(driver) => driver,
        None => "unknown driver",
    };
    let what = format!("{name} ({driver}) on {}", on(port));
    if port.state.is_active() {
        Finding::ok(format!("{what} is ACTIVE"))
    } else {
        let finding = Finding::fail(format!("{what} is {}", port.state.name));
        let sysfs = probe.host.sysfs();
        let netdev = port.netdev.as_deref().and_then(|name| sysfs.netdev(name));
        match netdev {
            Some(netdev) if !netdev.up => {
                finding.repair(format!("sudo ip link set {} up", netdev.name))
            }
            _ => finding.detail("The port follows the link of the network device."),
        }
    }
}

/// Which GID to use, and why not the first.
pub(super) fn gids(probe: &Probe) -> Vec<Finding> {
    probe
        .ports()
        .map(|(device, port)| gid(probe, &port_name(device, port), port))
        .collect()
}

fn gid(probe: &Probe, name: &str, port: &Port) -> Finding {
    let address = |finding: Finding| match &port.netdev {
        Some(netdev) => finding.repair(format!("sudo ip address add ADDRESS/24 dev {netdev}")),
        None => finding,
    };
    let iface = probe.iface.as_deref();
    let chosen = match choose_gid(port, iface, GidWish::default()) {
        Ok(chosen) => chosen,
        Err(error) => return address(Finding::fail(format!("{name}: {error}"))),
    };
    let table: Vec<_> = port.gids.iter().map(entry).collect();
    let table = format!("{}: {}.", name, table.join(", "));
    if matches!(chosen.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return address(
            Finding::warn(format!(
                "{name} has link-local addresses only (index {}: {})",
                chosen.index,
                chosen.ip()
            ))
            .detail(format!(
                "They reach the same link, and no IPv4 destination. {table}"
            )),
        );
    }
    let why = port.gid(0).filter(|_| chosen.index != 0).map(why_not);
    Finding::ok(format!(
        "{name}: use index {}, {} ({}){}",
        chosen.index,
        chosen.ip(),
        chosen.kind,
        why.as_ref().map_or("", |(short, _)| short),
    ))
    .detail(match why {
        Some((_, long)) => format!("{long} {table}"),
        None => table,
    })
}

fn entry(gid: &Gid) -> String {
    format!("{} {} ({})", gid.index, gid.ip(), gid.kind)
}

/// Why the first entry of a table is seldom right, in short and at length.
fn why_not(first: &Gid) -> (&'static str, &'static str) {
    match (&first.kind, first.ip()) {
        (GidKind::RoceV1, _) => (
            "; index 0 is RoCE v1",
            "RoCE v1 has neither IP nor UDP: nothing of it shows at port 4791.",
        ),
        (_, IpAddr::V6(v6)) if v6.is_unicast_link_local() => (
            "; index 0 is link-local",
            "From a link-local GID no IPv4 destination can be reached: ibv_modify_qp to RTR \
             returns EINVAL, and a program that ignores this posts into a queue pair that never \
             sends.",
        ),
        _ => ("", "Index 0 is another address."),
    }
}

/// Sizes of packets.
pub(super) fn mtus(probe: &Probe) -> Vec<Finding> {
    let ports = probe.ports();
    let findings = ports.filter_map(|(device, port)| path_mtu(probe, device, port));
    findings.collect()
}

/// The path MTU that an Ethernet of 1500 bytes carries.
const USUAL: u32 = 1024;

fn path_mtu(probe: &Probe, device: &Device, port: &Port) -> Option<Finding> {
    let netdev = probe.host.sysfs().netdev(port.netdev.as_deref()?)?;
    let rxe = device.is_rxe();
    let name = port_name(device, port);
    let told = probe
        .ask_mtu
        .as_ref()
        .and_then(|ask| ask(&device.name, port.number));
    let reckoned = mtu::active(netdev.mtu, rxe);
    let Some(active) = told.or(reckoned) else {
        return Some(
            Finding::fail(format!(
                "the MTU of {}, {}, is too small for RoCE",
                netdev.name, netdev.mtu
            ))
            .repair(format!("sudo ip link set {} mtu 1500", netdev.name)),
        );
    };
    let source = if told.is_some() {
        ""
    } else {
        " (reckoned from the netdev's)"
    };
    let summary = format!("{name}: {active} bytes a packet{source}");
    let finding = if active < USUAL {
        Finding::warn(summary)
    } else {
        Finding::ok(summary)
    };
    Some(match mtu::larger(netdev.mtu, rxe) {
        Some((size, needs)) => {
            let detail = format!(
                "{} has an MTU of {}. A larger path MTU is accepted when connecting, then nothing \
                 is sent. For {size}, both ends and everything between need {needs}.",
                netdev.name, netdev.mtu
            );
            let finding = finding.detail(detail);
            if active < USUAL {
                finding.repair(format!("sudo ip link set {} mtu 1500", netdev.name))
            } else {
                finding
            }
        }
        None => finding,
    })
}
