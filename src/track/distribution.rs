//! How long messages took, by flow and operation.

use std::collections::HashMap;

use super::{FlowId, FlowKey, Latency, Listener, Message, Operation};

/// Kept one by one; messages of further ones are counted together.
pub const MAX_SPREADS: usize = 4096;

/// Messages of one operation in one flow.
#[derive(Debug, Clone)]
pub struct Spread {
    /// The flow.
    pub key: FlowKey,
    /// The operation.
    pub operation: Operation,
    /// Messages, whatever became of them.
    pub messages: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Payload that was seen of them, each byte once.
    pub payload: u64,
    /// Of the messages, those of which not everything was seen.
    pub incomplete: u64,
    /// Of the messages, those that do not carry what they name.
    pub malformed: u64,
    /// Of the messages, those that the responder refused.
    pub refused: u64,
    /// Packets sent again.
    pub retransmits: u64,
    /// From first packet to answer.
    pub latency: Latency,
    /// Time of the first packet of the first one.
    pub first_ns: i64,
    /// Time of the end of the last one, its answer included.
    pub last_ns: i64,
}

impl Spread {
    fn new(message: &Message) -> Self {
        Self {
            key: message.key,
            operation: message.operation,
            messages: 0,
            bytes: 0,
            payload: 0,
            incomplete: 0,
            malformed: 0,
            refused: 0,
            retransmits: 0,
            latency: Latency::default(),
            first_ns: message.start_ns,
            last_ns: message.end_ns,
        }
    }

    fn add(&mut self, message: &Message) {
        self.messages += 1;
        self.bytes += message.bytes;
        self.payload += message.payload;
        self.incomplete += u64::from(!message.complete && !message.malformed);
        self.malformed += u64::from(message.malformed);
        self.refused += u64::from(message.refused.is_some());
        self.retransmits += u64::from(message.retransmits);
        if let Some(ns) = message.latency_ns() {
            self.latency.add(ns);
        }
        let end = message.acked_ns.unwrap_or(message.end_ns);
        self.first_ns = self.first_ns.min(message.start_ns);
        self.last_ns = self.last_ns.max(end).max(message.end_ns);
    }

    /// From the first packet to the last answer, in nanoseconds.
    #[must_use]
    pub const fn span_ns(&self) -> u64 {
        self.last_ns.abs_diff(self.first_ns)
    }
}

/// Messages by flow and operation.
#[derive(Debug, Default)]
pub struct Distribution {
    places: HashMap<(FlowId, Operation), usize, foldhash::fast::RandomState>,
    spreads: Vec<Spread>,
    /// Messages beyond [`MAX_SPREADS`].
    pub beyond_cap: u64,
}

impl Distribution {
    /// Takes in a message.
    pub fn add(&mut self, message: &Message) {
        let key = (message.flow, message.operation);
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None if self.spreads.len() >= MAX_SPREADS => {
                self.beyond_cap += 1;
                return;
            }
            None => {
                self.spreads.push(Spread::new(message));
                self.places.insert(key, self.spreads.len() - 1);
                self.spreads.len() - 1
            }
        };
        self.spreads[place].add(message);
    }

    /// In the order in which the first message of each ended.
    #[must_use]
    pub fn spreads(&self) -> &[Spread] {
        &self.spreads
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.places.clear();
        self.spreads.clear();
        self.beyond_cap = 0;
    }
}

impl Listener for Distribution {
    fn message(&mut self, message: &Message) {
        self.add(message);
    }
}
