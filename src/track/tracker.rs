//! The state of all flows, updated packet by packet.

use super::{Connection, Flow, Listener, Record};

/// Number of a flow's entry in a tracker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    /// Entries whose place was given to another flow have an older generation.
    generation: u32,
    slot: u32,
}

/// What bounds a tracker and what it takes for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Flows kept at once; beyond, one that was quiet for long makes room.
    pub flows: usize,
    /// A copy later than this is no copy of the mirror or the network.
    pub copy_window_ns: i64,
    /// A shorter silence is no timeout of the requester.
    pub timeout_floor_ns: i64,
    /// Silence with a request outstanding that is called a stall.
    pub stall_ns: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: 1 << 20,
            copy_window_ns: 1_000_000,
            timeout_floor_ns: 1_000_000,
            stall_ns: 100_000_000,
        }
    }
}

/// What was forgotten to make room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Entries of flows.
    pub flows: u64,
    /// Packets counted in them.
    pub packets: u64,
}

/// Follows all flows of a capture.
#[derive(Debug, Default)]
pub struct Tracker {
    flows: Vec<Flow>,
}

impl Tracker {
    /// A tracker that has seen nothing.
    #[must_use]
    pub fn new(_limits: Limits) -> Self {
        Self::default()
    }

    /// Takes in a packet; packets come in the order of the capture.
    pub fn add(&mut self, _record: &Record, _listener: &mut impl Listener) {}

    /// Ends the messages that still wait; packets may follow all the same.
    pub fn finish(&mut self, _listener: &mut impl Listener) {}

    /// The flows that are kept, in the order in which they appeared.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter()
    }

    /// One flow, unless it was forgotten.
    #[must_use]
    pub fn flow(&self, _id: FlowId) -> Option<&Flow> {
        None
    }

    /// Which ends talk to which: first the connections that the communication
    /// manager set up or refused, then pairs that were inferred, then flows
    /// that nothing answers.
    #[must_use]
    pub fn connections(&self) -> Vec<Connection> {
        Vec::new()
    }

    /// What was forgotten to make room for other flows.
    #[must_use]
    pub fn evicted(&self) -> Evicted {
        Evicted::default()
    }
}
