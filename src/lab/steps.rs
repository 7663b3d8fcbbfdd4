//! The steps that make a lab, and what undoes them.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{End, LabError, Plan, module};
use crate::host::Host;

/// One end of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    const BOTH: [Self; 2] = [Self::A, Self::B];

    fn end(self, plan: &Plan) -> &End {
        let [a, b] = &plan.ends;
        match self {
            Self::A => a,
            Self::B => b,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// One step, small enough to be done or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Step {
    /// Load `rdma_rxe`.
    Module,
    /// Make both network devices, with their hardware addresses.
    Pair,
    /// Let an end take packets from an address of this same machine.
    Tune(Side),
    Up(Side),
    Address(Side),
    /// Tell an end the other's hardware address.
    Neighbour(Side),
    /// Make the Soft-RoCE device of an end.
    Rxe(Side),
}

/// Settings of an end, below `net/ipv4/conf`. The kernel takes the larger of a
/// device's `rp_filter` and that of `all`, so that 2 (loose) holds whatever
/// `all` says, and either `accept_local`: nothing but the lab's own devices
/// has to be touched, and nothing to be restored.
const TUNING: [(&str, &str); 2] = [("rp_filter", "2"), ("accept_local", "1")];

/// How long the Soft-RoCE devices may take to get their addresses.
const READY_WITHIN: Duration = Duration::from_secs(5);

impl Step {
    /// All steps in order.
    pub(super) fn all() -> Vec<Self> {
        let mut steps = vec![Self::Module, Self::Pair];
        for step in [
            Self::Tune,
            Self::Up,
            Self::Address,
            Self::Neighbour,
            Self::Rxe,
        ] {
            steps.extend(Side::BOTH.map(step));
        }
        steps
    }

    /// Takes the step.
    pub(super) fn perform(self, host: &Host, plan: &Plan) -> Result<(), LabError> {
        match self {
            Self::Module => module::load(host),
            Self::Pair => {
                pair(host, plan)?;
                // udev applies the distribution's settings to new devices; it
                // must not do so after us.
                if host.find("udevadm").is_some() {
                    let _ = host.run("udevadm", &["settle", "--timeout=5"]);
                }
                Ok(())
            }
            Self::Tune(side) => tune(host, side.end(plan)),
            Self::Up(side) => ip(host, &["link", "set", &side.end(plan).netdev, "up"]),
            Self::Address(side) => {
                let end = side.end(plan);
                let address = end.address.to_string();
                ip(host, &["address", "add", &address, "dev", &end.netdev])
            }
            Self::Neighbour(side) => {
                let (end, other) = (side.end(plan), side.other().end(plan));
                let address = other.address.address.to_string();
                // Without it the first connection waits for ARP, which
                // settings of the machine may forbid between its own addresses.
                let [mac, netdev] = [&other.mac, &end.netdev];
                ip(
                    host,
                    &[
                        "neighbour",
                        "replace",
                        &address,
                        "lladdr",
                        mac,
                        "dev",
                        netdev,
                        "nud",
                        "permanent",
                    ],
                )
            }
            Self::Rxe(side) => {
                let End { netdev, device, .. } = side.end(plan);
                run(
                    host,
                    "rdma",
                    &["link", "add", device, "type", "rxe", "netdev", netdev],
                )
            }
        }
    }

    /// Undoes the step as far as it was taken; steps that end with the network
    /// devices need nothing.
    pub(super) fn undo(self, host: &Host, plan: &Plan) -> Option<Undone> {
        match self {
            Self::Rxe(side) => {
                let end = side.end(plan);
                Some(Undone {
                    what: format!("Soft-RoCE device {}", end.device),
                    outcome: undo_rxe(host, &end.device, &end.netdev),
                })
            }
            Self::Pair => Some(Undone {
                what: format!(
                    "network devices {} and {}",
                    plan.ends[0].netdev, plan.ends[1].netdev
                ),
                outcome: undo_pair(host, plan),
            }),
            // Other programs may use the module by now, and unloading it would
            // take their devices away.
            Self::Module | Self::Tune(_) | Self::Up(_) | Self::Address(_) | Self::Neighbour(_) => {
                None
            }
        }
    }
}

/// What became of something the lab had made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// What it is.
    pub what: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// How undoing a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was removed.
    Removed,
    /// It was not there.
    Absent,
    /// It is somebody else's by now: why.
    LeftAlone(String),
    /// It could not be removed: why.
    Failed(String),
}

/// Runs a program that must succeed.
pub(super) fn run(host: &Host, program: &str, args: &[&str]) -> Result<(), LabError> {
    let fail = |why| LabError::Step {
        what: format!("{program} {}", args.join(" ")),
        why,
    };
    match host.run(program, args) {
        Ok(ran) if ran.success() => Ok(()),
        Ok(ran) => Err(fail(ran.complaint())),
        Err(error) => Err(fail(error.to_string())),
    }
}

fn ip(host: &Host, args: &[&str]) -> Result<(), LabError> {
    run(host, "ip", args)
}

fn pair(host: &Host, plan: &Plan) -> Result<(), LabError> {
    let [a, b] = &plan.ends;
    let mtu = plan.mtu.to_string();
    // In one command: a device without our hardware address was never ours.
    let args = [
        "link", "add", &a.netdev, "address", &a.mac, "mtu", &mtu, "type", "veth", "peer", "name",
        &b.netdev, "address", &b.mac, "mtu", &mtu,
    ];
    ip(host, &args)
}

fn tune(host: &Host, end: &End) -> Result<(), LabError> {
    for (name, value) in TUNING {
        let path = format!("net/ipv4/conf/{}/{name}", end.netdev);
        host.set_sysctl(&path, value)
            .map_err(|error| LabError::Step {
                what: format!("writing {value} to /proc/sys/{path}"),
                why: error.to_string(),
            })?;
    }
    Ok(())
}

/// Whether a network device is the one the lab made.
pub(super) fn is_ours(host: &Host, end: &End) -> bool {
    let netdev = host.sysfs().netdev(&end.netdev);
    netdev.is_some_and(|netdev| netdev.mac.is_some_and(|mac| mac.to_string() == end.mac))
}

/// Whether an RDMA device is Soft-RoCE on a network device.
pub(super) fn is_rxe_on(host: &Host, device: &str, netdev: &str) -> Option<bool> {
    let device = host.sysfs().device(device)?;
    let on = |port: &crate::rdma::sysfs::Port| port.netdev.as_deref() == Some(netdev);
    Some(device.is_rxe() && device.ports.iter().any(on))
}

/// Removes a Soft-RoCE device if it is still the one on `netdev`.
pub(super) fn undo_rxe(host: &Host, device: &str, netdev: &str) -> Outcome {
    match is_rxe_on(host, device, netdev) {
        None => return Outcome::Absent,
        Some(false) => {
            return Outcome::LeftAlone(format!("it is not Soft-RoCE on {netdev} any more"));
        }
        Some(true) => {}
    }
    let removed = run(host, "rdma", &["link", "delete", device]);
    match removed {
        Ok(()) => Outcome::Removed,
        // Somebody was faster.
        Err(_) if host.sysfs().device(device).is_none() => Outcome::Removed,
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn undo_pair(host: &Host, plan: &Plan) -> Outcome {
    let mut outcome = Outcome::Absent;
    // The second goes with the first, unless that was moved elsewhere.
    for end in &plan.ends {
        if host.sysfs().netdev(&end.netdev).is_none() {
            continue;
        }
        if !is_ours(host, end) {
            outcome = Outcome::LeftAlone(format!(
                "{} has not the hardware address {} that the lab gives",
                end.netdev, end.mac
            ));
            continue;
        }
        match ip(host, &["link", "delete", &end.netdev]) {
            Ok(()) => outcome = Outcome::Removed,
            Err(_) if host.sysfs().netdev(&end.netdev).is_none() => outcome = Outcome::Removed,
            Err(error) => return Outcome::Failed(error.to_string()),
        }
    }
    outcome
}

/// Waits until both Soft-RoCE devices are active and have their addresses.
pub(super) fn wait_until_ready(host: &Host, plan: &Plan) -> Result<(), LabError> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let late = plan.ends.iter().find(|end| !is_ready(host, end));
        let Some(late) = late else { return Ok(()) };
        if Instant::now() >= deadline {
            return Err(LabError::NotReady {
                device: late.device.clone(),
                address: late.address,
            });
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_ready(host: &Host, end: &End) -> bool {
    let device = host.sysfs().device(&end.device);
    device.is_some_and(|device| {
        let mut ports = device.ports.iter();
        ports.any(|port| port.state.is_active() && end.gid_index(port).is_some())
    })
}
