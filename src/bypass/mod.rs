//! Did it cross the wire? Holds what a writer posted against what completed,
//! what the driver counted and what was seen where, and gives a verdict with
//! the numbers that prove it.
//!
//! Nothing here measures anything: [`Evidence`] is plain data, so every
//! verdict can be reached from a test.

mod reconcile;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;

pub use reconcile::{Matcher, Seen, SeenWrite};
pub use verdict::{Judgement, Verdict, judge};

use crate::rdma::ledger::Ledger;

/// How a device's counters moved during a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CounterDelta {
    /// RDMA device.
    pub device: String,
    /// Packets sent, looped ones included; `None` where the driver has no such
    /// counter.
    pub sent: Option<i64>,
    /// Packets received, looped ones included.
    pub received: Option<i64>,
    /// Every counter that moved, by the driver's own name.
    pub changed: BTreeMap<String, i64>,
}

/// Control frames: marked frames from the netdev to itself, which show that
/// the listener hears at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Sent.
    pub sent: u32,
    /// Seen by the listener.
    pub seen: u32,
}

/// What the listener on a netdev heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// The netdev.
    pub netdev: String,
    /// RoCE packets it saw, those of others included, control frames not.
    pub packets: u64,
    /// Packets that the kernel dropped for want of buffer space.
    pub kernel_dropped: u64,
    /// Control frames; `None` when there were to be none.
    pub control: Option<Control>,
    /// Whether the control frame sent after the run was seen: everything
    /// before it was heard. False where there was none.
    pub complete: bool,
    /// Why control frames could not be sent or the listener ended early.
    pub trouble: Option<String>,
    /// What of the ledger it saw.
    pub seen: Seen,
}

/// What the kernel tap saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tapped {
    /// RoCE packets of the device, those of others included.
    pub packets: u64,
    /// Records lost because the ring was full.
    pub lost: u64,
    /// Of the ledger's packets, those that came round the loop.
    pub looped: u64,
    /// What of the ledger it saw.
    pub seen: Seen,
}

/// How packets leave a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverKind {
    /// Soft-RoCE, which sends through the network stack and loops packets to
    /// its own addresses back to itself (`rxe_net.c`).
    SoftRoce,
    /// An adapter that builds RoCE packets itself: none of them passes the
    /// host's network stack, looped or not.
    Hardware,
    /// Could not be told.
    Unknown,
}

/// All that is known about a run.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// What was posted and what became of it.
    pub ledger: Ledger,
    /// Counters of the writer's device, then of the peer's where it is local.
    pub counters: Vec<CounterDelta>,
    /// What the listener heard; `None` when it never listened.
    pub listening: Option<Listening>,
    /// What the kernel tap saw; `None` when there was none.
    pub tap: Option<Tapped>,
    /// Kind of the writer's device.
    pub driver: DriverKind,
    /// Whether the destination is an address of the writer's own device.
    pub own_address: bool,
}
