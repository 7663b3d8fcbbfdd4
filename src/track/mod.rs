//! What the packets of a capture add up to, seen in order.

mod record;
mod summary;

pub use record::{FlowKey, IcrcState, Observed, Record};
pub use summary::{FlowCount, MAX_FLOWS, Summary};
