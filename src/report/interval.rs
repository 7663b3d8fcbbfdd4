//! How flows moved since they were last shown.

use std::{collections::HashMap, time::Duration};

use crate::track::{Flow, FlowId, Tracker};

/// What a flow carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets.
    pub packets: u64,
    /// Messages that ended.
    pub messages: u64,
    /// Bytes of payload, each once.
    pub goodput_bytes: u64,
}

impl Carried {
    const fn by(flow: &Flow) -> Self {
        Self {
            packets: flow.packets,
            messages: flow.messages,
            goodput_bytes: flow.goodput_bytes,
        }
    }

    const fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(before.packets),
            messages: self.messages.saturating_sub(before.messages),
            goodput_bytes: self.goodput_bytes.saturating_sub(before.goodput_bytes),
        }
    }
}

/// A stretch of a live capture, between two snapshots.
#[derive(Debug, Default)]
pub struct Interval {
    before: HashMap<FlowId, Carried, foldhash::fast::RandomState>,
    /// When it ends, in nanoseconds since 1970.
    pub end_ns: i64,
    /// How long it lasted.
    pub length: Duration,
}

impl Interval {
    /// What a flow carried in it.
    #[must_use]
    pub fn of(&self, flow: &Flow) -> Carried {
        let before = self.before.get(&flow.id).copied().unwrap_or_default();
        Carried::by(flow).since(before)
    }

    /// Counts a second in the interval.
    #[must_use]
    pub fn per_s(&self, count: u64) -> f64 {
        let seconds = self.length.as_secs_f64();
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    }

    /// Ends it: the next one begins here.
    pub fn next(&mut self, tracker: &Tracker) {
        self.before.clear();
        let flows = tracker.flows().map(|flow| (flow.id, Carried::by(flow)));
        self.before.extend(flows);
    }
}
