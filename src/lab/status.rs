//! What there is of a lab.

use serde::Serialize;

use super::{
    End, LabError, Plan,
    journal::Journal,
    steps::{is_ours, is_rxe_on},
};
use crate::{
    host::{Host, Network},
    rdma::mtu,
};

/// How much of a lab there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing.
    Down,
    /// Not everything: setting it up was interrupted, or somebody removed
    /// some of it.
    Partial,
    /// Everything.
    Up,
}

/// What there is of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// How much there is.
    pub state: State,
    /// Its ends; empty when there is nothing.
    pub ends: Vec<EndStatus>,
    /// The command to go on with.
    pub next: String,
}

/// What there is of an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndStatus {
    /// Name of its network device.
    pub netdev: String,
    /// Whether that is there and the lab's.
    pub netdev_present: bool,
    /// Whether that is up.
    pub netdev_up: bool,
    /// Its address.
    pub address: Network,
    /// Its hardware address.
    pub mac: String,
    /// Name of its Soft-RoCE device.
    pub device: String,
    /// Whether that is there and on the network device.
    pub device_present: bool,
    /// State of its port in the kernel's word.
    pub port_state: Option<String>,
    /// Entry of the GID table that holds the address.
    pub gid_index: Option<u8>,
    /// Path MTU in bytes.
    pub path_mtu: Option<u32>,
}

impl EndStatus {
    fn of(host: &Host, end: &End) -> Self {
        let netdev_present = is_ours(host, end);
        let netdev = host.sysfs().netdev(&end.netdev).filter(|_| netdev_present);
        let device_present = is_rxe_on(host, &end.device, &end.netdev) == Some(true);
        let device = host.sysfs().device(&end.device).filter(|_| device_present);
        let port = device.and_then(|device| device.ports.into_iter().next());
        Self {
            netdev: end.netdev.clone(),
            netdev_present,
            netdev_up: netdev.as_ref().is_some_and(|netdev| netdev.up),
            address: end.address,
            mac: end.mac.clone(),
            device: end.device.clone(),
            device_present,
            gid_index: port.as_ref().and_then(|port| end.gid_index(port)),
            path_mtu: netdev.and_then(|netdev| mtu::active(netdev.mtu, true)),
            port_state: port.map(|port| port.state.name),
        }
    }

    /// Whether it works.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.netdev_up && self.gid_index.is_some() && self.port_state.as_deref() == Some("ACTIVE")
    }
}

/// What there is of the lab; needs no root.
///
/// # Errors
/// [`LabError::Journal`] when the journal cannot be read.
pub fn status(host: &Host) -> Result<Status, LabError> {
    let journal = Journal::load(host)?.filter(|journal| journal.is_current(host));
    Ok(journal.map_or_else(nothing, |journal| of(host, &journal)))
}

fn nothing() -> Status {
    Status {
        state: State::Down,
        ends: Vec::new(),
        next: "sudo roce-sniff lab up".to_owned(),
    }
}

/// What there is of the lab of a journal.
pub(super) fn of(host: &Host, journal: &Journal) -> Status {
    let plan: &Plan = &journal.plan;
    let ends: Vec<_> = plan
        .ends
        .iter()
        .map(|end| EndStatus::of(host, end))
        .collect();
    let there = ends
        .iter()
        .any(|end| end.netdev_present || end.device_present);
    if !there {
        return nothing();
    }
    let up = journal.complete && ends.iter().all(EndStatus::is_up);
    Status {
        state: if up { State::Up } else { State::Partial },
        ends,
        next: if up {
            plan.try_next()
        } else {
            "sudo roce-sniff lab down".to_owned()
        },
    }
}
