//! Which way packets take.

use std::net::IpAddr;

use serde::Deserialize;

use super::{Finding, Probe, port_name};
use crate::{
    host::HostAddress,
    lab,
    rdma::sysfs::{Device, GidWish, Port, choose_gid},
};

/// Why packets of Soft-RoCE to itself cannot be captured.
const WHY_LOOPED: &str = "The driver hands such packets straight to its own receive path: they \
     reach no network device, not even lo, and no packet filter, so that no capture sees them. \
     This is how Soft-RoCE works, no fault of a capture filter.";

/// What a Soft-RoCE device sends to itself.
pub(super) fn loopback(probe: &Probe) -> Vec<Finding> {
    // --to asks the same of one address.
    if probe.to.is_some() {
        return Vec::new();
    }
    let lab = lab::status(&probe.host);
    let lab_is_up = lab.is_ok_and(|lab| lab.state == lab::State::Up);
    let finding = |(device, port): (&Device, &Port)| {
        let gid = choose_gid(port, None, GidWish::default()).ok()?;
        let netdev = port.netdev.as_deref()?;
        let name = port_name(device, port);
        let finding = Finding::note(format!(
            "{name} to its own {} never touches {netdev}",
            gid.ip()
        ))
        .detail(WHY_LOOPED);
        Some(if lab_is_up {
            finding
        } else {
            finding.repair("sudo roce-sniff lab up")
        })
    };
    let soft = probe.ports().filter(|(device, _)| device.is_rxe());
    soft.filter_map(finding).collect()
}

/// Where packets to `--to` would go.
pub(super) fn destination(probe: &Probe) -> Vec<Finding> {
    let Some(to) = probe.to else {
        return Vec::new();
    };
    if probe.ports().next().is_none() {
        return vec![Finding::warn(format!(
            "{to}: there is no RDMA device here to send from"
        ))];
    }
    let local = probe.host.addresses();
    let local = local.iter().find(|local| local.address == to);
    probe
        .ports()
        .filter_map(|(device, port)| {
            let from = From {
                device,
                name: port_name(device, port),
                netdev: port.netdev.as_deref()?,
            };
            let own_gid = port.gids.iter().any(|gid| gid.ip() == to);
            Some(match local {
                _ if own_gid => from.to_itself(probe, to),
                Some(local) if local.netdev.as_deref() == Some(from.netdev) => {
                    from.to_itself(probe, to)
                }
                Some(local) => from.to_neighbour(probe, local),
                None => from.to_elsewhere(probe, to),
            })
        })
        .collect()
}

/// A port that sends.
struct From<'a> {
    device: &'a Device,
    name: String,
    netdev: &'a str,
}

#[derive(Deserialize)]
struct IpRoute {
    dev: Option<String>,
    gateway: Option<IpAddr>,
}

impl From<'_> {
    fn to_itself(&self, probe: &Probe, to: IpAddr) -> Finding {
        let name = &self.name;
        if !self.device.is_rxe() {
            return Finding::warn(format!("{to} is {name}'s own address"))
                .detail("Most adapters loop such packets inside; no capture here sees them.");
        }
        // Where the lab is up, the way to its other end is a wire.
        let lab = lab::status(&probe.host);
        Finding::warn(format!("LOOPED: {to} is {name}'s own address"))
            .detail(WHY_LOOPED)
            .repair(lab.map_or_else(|_| "sudo roce-sniff lab up".to_owned(), |lab| lab.next))
    }

    /// Another network device of this machine has the address.
    fn to_neighbour(&self, probe: &Probe, local: &HostAddress) -> Finding {
        let to = local.address;
        let Some(netdev) = &local.netdev else {
            return Finding::note(format!(
                "{to} is this machine's own, on another netdev than {}",
                self.netdev
            ));
        };
        if netdev == "lo" {
            return Finding::fail(format!("{to} is on lo, where no RDMA device is"))
                .detail("Choose an address in the GID table of an RDMA device.");
        }
        let (name, from) = (&self.name, self.netdev);
        let host = &probe.host;
        let link = |netdev: &str, file: &str| host.read(&format!("sys/class/net/{netdev}/{file}"));
        let peers =
            link(from, "iflink").is_some() && link(from, "iflink") == link(netdev, "ifindex");
        if !peers {
            return Finding::warn(format!(
                "{to} is on {netdev} of this machine: {name} sends it out of {from}"
            ))
            .detail(format!(
                "The packets come back only if what {from} is connected to leads to {netdev}; \
                 they are seen on {from} on their way out."
            ));
        }
        let on_wire = Finding::ok(format!(
            "on the wire: {name} reaches {to} from {from} to {netdev}"
        ));
        if to.is_ipv6() {
            return on_wire;
        }
        let conf = |device: &str, name: &str| {
            let value = host.sysctl(&format!("net/ipv4/conf/{device}/{name}"));
            value
                .and_then(|value| value.parse::<u8>().ok())
                .unwrap_or(0)
        };
        // The larger of the two holds; strict is 1.
        let strict = conf("all", "rp_filter").max(conf(netdev, "rp_filter")) == 1;
        let refused = conf("all", "accept_local") == 0 && conf(netdev, "accept_local") == 0;
        let conf = format!("net.ipv4.conf.{netdev}");
        if strict || refused {
            Finding::fail(format!(
                "{netdev} drops what comes from an address of this machine"
            ))
            .detail(format!(
                "{conf}.accept_local has to be 1, rp_filter 0 or 2."
            ))
            .repair(format!(
                "sudo sysctl -w {conf}.accept_local=1 {conf}.rp_filter=2"
            ))
        } else {
            on_wire
        }
    }

    /// Another machine, presumably.
    fn to_elsewhere(&self, probe: &Probe, to: IpAddr) -> Finding {
        let (name, from) = (&self.name, self.netdev);
        let address = to.to_string();
        let ran = probe.host.run("ip", &["-j", "route", "get", &address]);
        let Ok(ran) = ran else {
            return Finding::note(format!(
                "{to} is not this machine's: {name} sends it out of {from}"
            ));
        };
        if !ran.success() {
            return Finding::fail(format!("there is no way to {to}: {}", ran.complaint()));
        }
        let routes: Vec<IpRoute> = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let route = routes.into_iter().next();
        let through = route.as_ref().and_then(|route| route.dev.as_deref());
        let gateway = route.as_ref().and_then(|route| route.gateway);
        match (through, gateway) {
            (Some(dev), _) if dev != from => Finding::warn(format!(
                "the way to {to} leaves through {dev}, not {from} of {name}"
            ))
            .detail(
                "Connecting waits about a second for an answer to ARP, then ibv_modify_qp to RTR \
                 returns ETIMEDOUT (110).",
            ),
            (_, Some(gateway)) => Finding::ok(format!(
                "on the wire: {name} reaches {to} from {from} through {gateway}"
            )),
            _ => Finding::ok(format!("on the wire: {name} reaches {to} from {from}")),
        }
    }
}

/// Whether a firewall may drop what arrives.
pub(super) fn firewall(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    // Only root may list the rules.
    if !host.is_root() || host.find("nft").is_none() {
        return Vec::new();
    }
    let Ok(ran) = host.run("nft", &["list", "ruleset"]) else {
        return Vec::new();
    };
    if !ran.success() {
        return Vec::new();
    }
    let rules = ran.stdout;
    let drops = rules
        .lines()
        .any(|line| line.contains("hook input") && line.contains("policy drop"));
    let firewalld = rules.contains("table inet firewalld");
    if !drops && !firewalld {
        return vec![Finding::ok("no rule set drops what arrives by default")];
    }
    if rules.contains("4791") {
        return vec![Finding::ok("the rules name port 4791")];
    }
    let repair = if firewalld {
        "sudo firewall-cmd --add-port=4791/udp"
    } else if host.find("ufw").is_some() {
        "sudo ufw allow 4791/udp"
    } else {
        "sudo nft insert rule inet filter input udp dport 4791 accept"
    };
    vec![
        Finding::warn("incoming packets are dropped unless a rule names them; none names 4791")
            .detail(
                "Soft-RoCE receives through the machine's firewall, hardware does not; a capture \
                 sees the packets all the same.",
            )
            .repair(repair),
    ]
}
