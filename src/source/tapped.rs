//! What a kernel tap saw, as plain data: also builds without the tap can hold
//! it against a ledger.

use super::OwnedPacket;

/// What the program counted of one input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TapCounters {
    /// Packets that passed the probe.
    pub seen: u64,
    /// Of these, left out by the options.
    pub filtered: u64,
    /// Of these, lost because the ring was full.
    pub lost: u64,
    /// Of these, without a link-layer header: never on a netdev.
    pub looped: u64,
}

impl TapCounters {
    /// Packets that were put into the ring.
    #[must_use]
    pub const fn submitted(&self) -> u64 {
        self.seen
            .saturating_sub(self.filtered)
            .saturating_sub(self.lost)
    }

    /// Adds the counts of one netdev on one CPU, in the program's order.
    #[cfg(all(feature = "tap", target_os = "linux"))]
    pub(super) fn add(&mut self, counts: [u64; 4]) {
        let [seen, filtered, lost, looped] = counts;
        self.seen += seen;
        self.filtered += filtered;
        self.lost += lost;
        self.looped += looped;
    }
}

/// What the tap saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TapHeard {
    /// Names of the inputs, by number.
    pub names: Vec<String>,
    /// Packets, as many as there was room for.
    pub packets: Vec<OwnedPacket>,
    /// Packets that were not kept: as good as lost.
    pub not_kept: u64,
    /// Of all packets, those that never touched a netdev.
    pub looped: u64,
    /// What the program counted, by input.
    pub counters: Vec<TapCounters>,
}

impl TapHeard {
    /// Packets lost because the ring was full, or that were not kept.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let in_kernel: u64 = self.counters.iter().map(|counters| counters.lost).sum();
        in_kernel + self.not_kept
    }
}
