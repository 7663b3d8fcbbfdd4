//! What the packets of a capture add up to, seen in order.
//!
//! [`Tracker`] takes decoded packets one by one and keeps, for every directed
//! flow, the state of its packet sequence numbers, its messages, and the flow
//! that answers it; a [`Listener`] is told what happens while it happens.

mod answers;
mod brief;
mod burst;
mod cm;
mod connection;
mod datagrams;
mod digest;
mod distribution;
mod event;
mod flow;
mod latency;
mod manager;
mod memory;
mod message;
mod open;
mod pairing;
mod pattern;
mod peers;
mod quick;
mod recent;
mod record;
mod requests;
mod sequence;
mod state;
mod summary;
mod throttle;
mod tracker;

pub use cm::{CmKind, CmRecord};
pub use connection::{CmLife, CmState, Connection, ConnectionId, Endpoint, How, service_name};
pub use digest::Digest;
pub use distribution::{Distribution, MAX_SPREADS, Spread};
pub use event::{Cause, Event, EventKind, Listener};
pub use flow::{Flow, NAK_SLOTS, OpCounts, PsnCounts, RunCounts};
pub use latency::Latency;
pub use memory::{
    Access, Accesses, Intervals, MAX_INTERVALS, MAX_REGIONS, MemoryMap, Refused, Region, Volume,
};
pub use message::{Message, Operation};
pub use record::{Fingerprint, FlowKey, IcrcState, Observed, Record, Remote};
pub use summary::{FlowCount, LinkCounts, MAX_FLOWS, Summary};
pub use throttle::Throttled;
pub use tracker::{Evicted, FlowId, Limits, Tracker};

#[cfg(test)]
mod tests;
