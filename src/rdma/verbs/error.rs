//! What failed at which step, why it probably did, and what repairs it.

use std::{fmt, io, net::Ipv6Addr};

use crate::rdma::ledger::Ledger;

use super::plan::Plan;

/// A step on the way to a connected queue pair, or of using it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Checking what was asked for against what the device can do.
    Plan,
    /// Listing the RDMA devices of this machine.
    ListDevices,
    /// Opening the device.
    OpenDevice,
    /// Asking the device for its limits.
    QueryDevice,
    /// Asking the port for its state.
    QueryPort,
    /// Allocating a protection domain.
    AllocPd,
    /// Getting memory from the system.
    Allocate,
    /// Registering memory with the device.
    RegisterMemory,
    /// Creating a completion queue.
    CreateCq,
    /// Creating the queue pair.
    CreateQp,
    /// Moving the queue pair from RESET to INIT.
    ToInit,
    /// Moving the queue pair from INIT to RTR (ready to receive): here the
    /// device looks for the destination.
    ToRtr,
    /// Moving the queue pair from RTR to RTS (ready to send).
    ToRts,
    /// Posting a receive.
    PostReceive,
    /// Posting an operation.
    PostSend,
    /// Polling a completion queue.
    Poll,
    /// Agreeing with the responder over TCP.
    Exchange,
    /// Opening the RDMA connection manager.
    CmOpen,
    /// The connection manager's looking for the device and the neighbour.
    CmResolve,
    /// The connection manager's connecting.
    CmConnect,
    /// The connection manager's listening.
    CmListen,
}

impl Step {
    /// The step in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Plan => "checking what was asked for",
            Self::ListDevices => "listing the RDMA devices",
            Self::OpenDevice => "opening the device",
            Self::QueryDevice => "asking the device for its limits",
            Self::QueryPort => "asking the port for its state",
            Self::AllocPd => "allocating a protection domain",
            Self::Allocate => "getting memory",
            Self::RegisterMemory => "registering memory",
            Self::CreateCq => "creating a completion queue",
            Self::CreateQp => "creating the queue pair",
            Self::ToInit => "moving the queue pair to INIT",
            Self::ToRtr => "moving the queue pair to RTR",
            Self::ToRts => "moving the queue pair to RTS",
            Self::PostReceive => "posting a receive",
            Self::PostSend => "posting an operation",
            Self::Poll => "polling the completion queue",
            Self::Exchange => "agreeing with the responder",
            Self::CmOpen => "opening the RDMA connection manager",
            Self::CmResolve => "resolving the destination (RDMA-CM)",
            Self::CmConnect => "connecting (RDMA-CM)",
            Self::CmListen => "listening (RDMA-CM)",
        }
    }

    /// Whether it is one that connects the queue pair: the device was fine,
    /// and what it was told to do was not.
    #[must_use]
    pub const fn connects(self) -> bool {
        matches!(self, Self::ToInit | Self::ToRtr | Self::ToRts)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {}{said}{}", failed(*.step, *.errno), after_semicolon(.cause))]
pub struct VerbsError {
    /// The device, as `rxe0`.
    pub device: String,
    /// What was being done.
    pub step: Step,
    /// The system's error number, where it was the system that refused.
    pub errno: Option<i32>,
    /// What the system said, or what the plan's check found.
    pub said: String,
    /// The likely cause and what repairs it; empty when nothing is known.
    pub cause: String,
}

/// Names the step where the system refused it; what this program refuses says
/// so by itself.
fn failed(step: Step, errno: Option<i32>) -> String {
    match errno {
        Some(_) => format!("{step} failed: "),
        None => String::new(),
    }
}

fn after_semicolon(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("; {text}")
    }
}

impl VerbsError {
    /// A refusal of this program's own, before the system was asked.
    pub(super) fn refused(device: &str, step: Step, said: String) -> Self {
        Self {
            device: device.to_owned(),
            step,
            errno: None,
            said,
            cause: String::new(),
        }
    }

    /// The ledger of a run that never got to its first post.
    #[must_use]
    pub fn ledger(&self, plan: &Plan) -> Ledger {
        Ledger {
            endpoint: None,
            op: plan.op,
            wanted: plan.count,
            posted: Vec::new(),
            payload_verified: None,
            stopped: Some(self.to_string()),
            elapsed_ns: 0,
        }
    }
}

/// A system call of a step that failed, before anybody said what it was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub step: Step,
    pub errno: i32,
}

impl Fault {
    /// The failure that `errno` of this thread tells of.
    pub fn last(step: Step) -> Self {
        let errno = io::Error::last_os_error().raw_os_error();
        Self {
            step,
            errno: errno.unwrap_or(libc::EIO),
        }
    }

    /// Checks what a function of libibverbs returned: 0, an error number, or
    /// -1 with the number in `errno`.
    pub fn check(step: Step, returned: i32) -> Result<(), Self> {
        match returned {
            0 => Ok(()),
            errno if errno > 0 => Err(Self { step, errno }),
            _ => Err(Self::last(step)),
        }
    }

    /// Puts the failure into words for somebody who knows the plan.
    pub fn explain(self, facts: &Facts) -> VerbsError {
        let row = CAUSES.iter().find(|row| {
            row.steps.contains(&self.step) && row.errno == self.errno && (row.when)(facts)
        });
        VerbsError {
            device: facts.device.clone(),
            step: self.step,
            errno: Some(self.errno),
            said: io::Error::from_raw_os_error(self.errno).to_string(),
            cause: row.map_or_else(String::new, |row| facts.fill(row.text)),
        }
    }
}

/// What an explanation may name.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub device: String,
    pub port: u8,
    pub gid_index: u8,
    pub gid: Option<Ipv6Addr>,
    /// GID of the destination, once it is known.
    pub dest: Option<Ipv6Addr>,
    pub netdev: Option<String>,
}

impl Facts {
    fn fill(&self, text: &str) -> String {
        let address = |gid: Option<Ipv6Addr>| gid.map_or_else(|| "?".to_owned(), shown);
        text.replace("{device}", &self.device)
            .replace("{port}", &self.port.to_string())
            .replace("{index}", &self.gid_index.to_string())
            .replace("{gid}", &address(self.gid))
            .replace("{dest}", &address(self.dest))
            .replace("{netdev}", self.netdev.as_deref().unwrap_or("its netdev"))
    }

    /// Whether source and destination are of different address families, as
    /// a link-local source and an IPv4 destination are.
    fn families_differ(&self) -> bool {
        match (self.gid, self.dest) {
            (Some(gid), Some(dest)) => Family::of(gid) != Family::of(dest),
            _ => false,
        }
    }
}

/// What kind of address a GID is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    LinkLocal,
    V6,
}

impl Family {
    fn of(gid: Ipv6Addr) -> Self {
        if gid.to_ipv4_mapped().is_some() {
            Self::V4
        } else if gid.is_unicast_link_local() {
            Self::LinkLocal
        } else {
            Self::V6
        }
    }
}

/// A GID as people write the address: IPv4 where it is one.
pub(super) fn shown(gid: Ipv6Addr) -> String {
    match gid.to_ipv4_mapped() {
        Some(v4) => v4.to_string(),
        None => gid.to_string(),
    }
}

/// A known cause of a failure; the first row that fits is the one.
struct Cause {
    steps: &'static [Step],
    errno: i32,
    when: fn(&Facts) -> bool,
    text: &'static str,
}

const fn row(steps: &'static [Step], errno: i32, text: &'static str) -> Cause {
    Cause {
        steps,
        errno,
        when: |_| true,
        text,
    }
}

const PERMISSION: &str =
    "this user may not use /dev/infiniband/uverbs*: sudo chmod 0666 /dev/infiniband/uverbs*";
const MEMLOCK: &str = "the limit of locked memory is likely too low (see ulimit -l): \
    run as root, or put \"* - memlock unlimited\" into /etc/security/limits.conf and log in again";
const TOO_MANY: &str =
    "the device does not take that many work requests at once: ask for fewer with --depth";
const NO_CM: &str = "/dev/infiniband/rdma_cm is missing: sudo modprobe rdma_ucm";
const NO_NEIGHBOUR: &str = "{dest} does not answer address resolution (ARP or neighbour discovery) \
    from {netdev}: ping {dest}, then see ip route get {dest} and ip neigh show {dest}";
const GIDS: &str =
    "look at the GIDs with: grep . /sys/class/infiniband/{device}/ports/{port}/gids/*";

/// What these errors have meant on real kernels.
const CAUSES: &[Cause] = &[
    row(
        &[Step::ListDevices],
        libc::ENOSYS,
        "this kernel has no RDMA support loaded: sudo modprobe ib_uverbs",
    ),
    row(&[Step::OpenDevice], libc::EACCES, PERMISSION),
    row(&[Step::OpenDevice], libc::EPERM, PERMISSION),
    row(
        &[Step::OpenDevice],
        libc::ENOENT,
        "its /dev/infiniband/uverbs* is missing: sudo modprobe ib_uverbs",
    ),
    row(
        &[Step::OpenDevice],
        libc::ENODEV,
        "the device went away: see rdma link",
    ),
    row(
        &[Step::QueryPort, Step::ToInit],
        libc::EINVAL,
        "it probably has no port {port}: see rdma link",
    ),
    row(&[Step::RegisterMemory], libc::ENOMEM, MEMLOCK),
    row(&[Step::RegisterMemory], libc::EAGAIN, MEMLOCK),
    row(
        &[Step::Allocate],
        libc::ENOMEM,
        "the machine is out of memory: ask for less with --size or --count",
    ),
    row(&[Step::CreateQp, Step::CreateCq], libc::EINVAL, TOO_MANY),
    row(&[Step::CreateQp, Step::CreateCq], libc::ENOMEM, MEMLOCK),
    // The learner's trap: index 0 is a link-local IPv6 address, the
    // destination an IPv4 one. A program that ignores this error posts into
    // the void and waits for ever.
    Cause {
        steps: &[Step::ToRtr, Step::CmResolve],
        errno: libc::EINVAL,
        when: Facts::families_differ,
        text: "source GID {index} ({gid}) and destination {dest} are not of one kind (IPv4, IPv6, \
               link-local), so nothing can ever be sent from here: take the GID index whose \
               address reaches {dest}; grep . /sys/class/infiniband/{device}/ports/{port}/gids/* \
               lists them",
    },
    row(
        &[Step::ToRtr],
        libc::EINVAL,
        "GID index {index} is likely empty, not of RoCE v2, or without a route to {dest}: \
         grep . /sys/class/infiniband/{device}/ports/{port}/gids/* lists the GIDs",
    ),
    row(&[Step::ToRtr], libc::ETIMEDOUT, NO_NEIGHBOUR),
    row(
        &[Step::ToRtr],
        libc::EHOSTUNREACH,
        "{dest} cannot be reached from {netdev}: see ip route get {dest}",
    ),
    row(
        &[Step::ToRtr],
        libc::ENETUNREACH,
        "there is no route to {dest}: see ip route get {dest}",
    ),
    row(
        &[Step::ToRtr],
        libc::ENODATA,
        "GID index {index} is empty: grep . /sys/class/infiniband/{device}/ports/{port}/gids/* lists the GIDs",
    ),
    row(&[Step::ToRtr], libc::ENODEV, GIDS),
    row(&[Step::ToRtr], libc::ENOENT, GIDS),
    row(
        &[Step::ToRts],
        libc::EINVAL,
        "the queue pair is not in RTR: an earlier step was refused",
    ),
    row(&[Step::CmOpen], libc::ENODEV, NO_CM),
    row(&[Step::CmOpen], libc::ENOENT, NO_CM),
    row(
        &[Step::CmOpen],
        libc::EACCES,
        "this user may not use it: sudo chmod 0666 /dev/infiniband/rdma_cm",
    ),
    row(
        &[Step::CmResolve],
        libc::ENODEV,
        "no RDMA device holds the address {gid}, or none reaches {dest}: see rdma link",
    ),
    row(&[Step::CmResolve], libc::ETIMEDOUT, NO_NEIGHBOUR),
    row(
        &[Step::CmResolve, Step::CmListen],
        libc::EADDRNOTAVAIL,
        "no network device of this machine holds {gid}: see ip addr",
    ),
    row(
        &[Step::CmConnect],
        libc::ETIMEDOUT,
        "the connection manager of {dest} does not answer: UDP port 4791 may be filtered on \
         the way, and the kernel there needs rdma_ucm",
    ),
    row(
        &[Step::PostSend],
        libc::ENOMEM,
        "the send queue is full: ask for fewer with --depth",
    ),
    row(
        &[Step::PostSend],
        libc::EINVAL,
        "the queue pair is not in RTS, or the device does not know the operation",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(gid: &str, dest: &str) -> Facts {
        Facts {
            device: "rxe0".into(),
            port: 1,
            gid_index: 0,
            gid: gid.parse().ok(),
            dest: dest.parse().ok(),
            netdev: Some("veth0".into()),
        }
    }

    fn text(step: Step, errno: i32, facts: &Facts) -> String {
        Fault { step, errno }.explain(facts).to_string()
    }

    #[test]
    fn a_link_local_source_for_an_ipv4_destination_is_named() {
        let error = text(
            Step::ToRtr,
            libc::EINVAL,
            &facts("fe80::1", "::ffff:10.0.0.2"),
        );
        assert!(
            error.starts_with("rxe0: moving the queue pair to RTR failed: Invalid argument"),
            "{error}"
        );
        assert!(error.contains("GID 0 (fe80::1) and destination 10.0.0.2"));
        let error = text(
            Step::ToRtr,
            libc::EINVAL,
            &facts("::ffff:10.0.0.1", "::ffff:10.0.0.2"),
        );
        assert!(error.contains("likely empty"), "{error}");
    }

    #[test]
    fn silence_of_the_neighbour_and_the_memory_limit_have_repairs() {
        let facts = facts("::ffff:10.0.0.1", "::ffff:10.0.0.9");
        let error = text(Step::ToRtr, libc::ETIMEDOUT, &facts);
        assert!(error.contains("from veth0: ping 10.0.0.9"), "{error}");
        let error = text(Step::RegisterMemory, libc::ENOMEM, &facts);
        assert!(error.contains("ulimit -l"), "{error}");
        let error = text(Step::ToRts, libc::EIO, &facts);
        assert!(error.ends_with("(os error 5)"), "no cause known: {error}");
    }

    #[test]
    fn no_cause_leaves_a_placeholder_behind() {
        for cause in CAUSES {
            let filled = facts("fe80::1", "::ffff:10.0.0.2").fill(cause.text);
            assert!(!filled.contains(['{', '}']), "{filled}");
        }
    }
}
