//! What of this machine stands between an RDMA program and its packets, and
//! between the packets and a capture.
//!
//! [`CHECKS`] is a table; each check looks at a [`Probe`] and finds one or
//! more things, with the command that repairs what is wrong. Nothing is
//! changed.

mod access;
mod congestion;
mod device;
mod kernel;
mod path;
mod programs;
mod queue_pairs;
#[cfg(test)]
mod tests;

use std::{net::IpAddr, time::Duration};

use serde::Serialize;

use crate::{
    host::Host,
    rdma::sysfs::{Device, Port},
};

/// How good or bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Worth knowing, neither good nor bad.
    Note,
    /// Works, but may surprise.
    Warn,
    /// Does not work.
    Fail,
}

impl Status {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check.
    pub id: &'static str,
    /// Its title.
    #[serde(skip)]
    pub title: &'static str,
    /// How good or bad it is.
    pub status: Status,
    /// One sentence.
    pub summary: String,
    /// Why, and what follows from it.
    pub detail: Option<String>,
    /// The command that repairs it.
    pub repair: Option<String>,
}

impl Finding {
    fn new(status: Status, summary: impl Into<String>) -> Self {
        Self {
            id: "",
            title: "",
            status,
            summary: summary.into(),
            detail: None,
            repair: None,
        }
    }

    fn ok(summary: impl Into<String>) -> Self {
        Self::new(Status::Ok, summary)
    }

    fn note(summary: impl Into<String>) -> Self {
        Self::new(Status::Note, summary)
    }

    fn warn(summary: impl Into<String>) -> Self {
        Self::new(Status::Warn, summary)
    }

    fn fail(summary: impl Into<String>) -> Self {
        Self::new(Status::Fail, summary)
    }

    fn detail(self, detail: impl Into<String>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..self
        }
    }

    fn repair(self, repair: impl Into<String>) -> Self {
        Self {
            repair: Some(repair.into()),
            ..self
        }
    }
}

/// One check.
pub struct Check {
    /// Name for programs; stable.
    pub id: &'static str,
    /// Name for people, at most 15 characters.
    pub title: &'static str,
    /// Looks; finds nothing where there is nothing to look at.
    pub run: fn(&Probe) -> Vec<Finding>,
}

/// All checks, in the order in which one depends on another.
pub const CHECKS: &[Check] = &[
    Check {
        id: "kernel-module",
        title: "kernel module",
        run: kernel::module,
    },
    Check {
        id: "network-namespace",
        title: "namespace",
        run: kernel::namespace,
    },
    Check {
        id: "netdev",
        title: "netdev",
        run: device::netdevs,
    },
    Check {
        id: "rdma-device",
        title: "RDMA device",
        run: device::devices,
    },
    Check {
        id: "gid-table",
        title: "GID table",
        run: device::gids,
    },
    Check {
        id: "path-mtu",
        title: "path MTU",
        run: device::mtus,
    },
    Check {
        id: "device-files",
        title: "device files",
        run: access::device_files,
    },
    Check {
        id: "verbs-library",
        title: "verbs library",
        run: programs::verbs_library,
    },
    Check {
        id: "verbs-headers",
        title: "verbs headers",
        run: programs::verbs_headers,
    },
    Check {
        id: "memlock",
        title: "locked memory",
        run: access::memlock,
    },
    Check {
        id: "capabilities",
        title: "capabilities",
        run: access::capabilities,
    },
    Check {
        id: "capture",
        title: "capture",
        run: access::capture,
    },
    Check {
        id: "libpcap",
        title: "libpcap",
        run: programs::libpcap,
    },
    Check {
        id: "kernel-tap",
        title: "kernel tap",
        run: kernel::tap,
    },
    Check {
        id: "programs",
        title: "programs",
        run: programs::iproute,
    },
    Check {
        id: "capture-tools",
        title: "other tools",
        run: programs::capture_tools,
    },
    Check {
        id: "loopback",
        title: "loopback",
        run: path::loopback,
    },
    Check {
        id: "destination",
        title: "destination",
        run: path::destination,
    },
    Check {
        id: "firewall",
        title: "firewall",
        run: path::firewall,
    },
    Check {
        id: "congestion-control",
        title: "PFC and ECN",
        run: congestion::settings,
    },
    Check {
        id: "queue-pairs",
        title: "queue pairs",
        run: queue_pairs::states,
    },
];

/// Tries to open a capture on a network device; says what the system said.
pub type TryCapture = Box<dyn Fn(&str) -> Result<(), String>>;

/// Asks a device's port for its active MTU in bytes.
pub type AskMtu = Box<dyn Fn(&str, u8) -> Option<u32>>;

/// What checks look at.
pub struct Probe {
    /// The machine.
    pub host: Host,
    /// Look at this network device and what is on it; `None` for all that have
    /// an RDMA device.
    pub iface: Option<String>,
    /// Where packets are to go.
    pub to: Option<IpAddr>,
    /// Opens a capture; `None` in builds that have none.
    pub try_capture: Option<TryCapture>,
    /// Asks verbs; `None` in builds that have none, which reckon instead.
    pub ask_mtu: Option<AskMtu>,
    /// Whether this build calls verbs.
    pub has_verbs: bool,
    /// How long counters must stand still to be called idle.
    pub idle: Duration,
    /// RDMA devices to look at.
    devices: Vec<Device>,
}

impl Probe {
    /// Looks at a machine.
    #[must_use]
    pub fn new(host: Host, iface: Option<String>, to: Option<IpAddr>) -> Self {
        let sysfs = host.sysfs();
        let mut devices = sysfs.devices().unwrap_or_default();
        if let Some(iface) = &iface {
            let on = sysfs.for_netdev(iface).map(|(device, _)| device.name);
            devices.retain(|device| Some(&device.name) == on.as_ref());
        }
        Self {
            host,
            iface,
            to,
            try_capture: None,
            ask_mtu: None,
            has_verbs: cfg!(feature = "verbs"),
            idle: Duration::from_millis(300),
            devices,
        }
    }

    /// RoCE ports to look at.
    fn ports(&self) -> impl Iterator<Item = (&Device, &Port)> {
        self.devices.iter().flat_map(|device| {
            let ports = device.ports.iter().filter(|port| port.is_ethernet());
            ports.map(move |port| (device, port))
        })
    }

    /// Network devices to look at.
    fn netdevs(&self) -> Vec<&str> {
        if let Some(iface) = &self.iface {
            return vec![iface];
        }
        let mut netdevs: Vec<_> = self
            .ports()
            .filter_map(|(_, port)| port.netdev.as_deref())
            .collect();
        netdevs.dedup();
        netdevs
    }
}

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// In the order of [`CHECKS`].
    pub checks: Vec<Finding>,
    /// Whether nothing failed.
    pub ok: bool,
}

impl Examination {
    /// Findings of a status.
    #[must_use]
    pub fn count(&self, status: Status) -> usize {
        let of = |finding: &&Finding| finding.status == status;
        self.checks.iter().filter(of).count()
    }
}

/// Runs every check.
#[must_use]
pub fn examine(probe: &Probe) -> Examination {
    let mut checks = Vec::new();
    for check in CHECKS {
        let findings = (check.run)(probe);
        checks.extend(findings.into_iter().map(|finding| Finding {
            id: check.id,
            title: check.title,
            ..finding
        }));
    }
    Examination {
        ok: checks.iter().all(|finding| finding.status != Status::Fail),
        checks,
    }
}

/// The name of a port: of the device alone where it has one.
fn port_name(device: &Device, port: &Port) -> String {
    if device.ports.len() == 1 {
        device.name.clone()
    } else {
        format!("{}/{}", device.name, port.number)
    }
}
