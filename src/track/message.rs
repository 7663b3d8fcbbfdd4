//! RDMA operations as they travelled: one message, one to many packets.

use super::{FlowId, FlowKey, Remote};
use crate::wire::{
    aeth::AethKind,
    opcode::{Opcode, Transport, Verb},
    types::{Psn, QpNumber},
};

/// The kind of an operation: what a work request asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Transport service.
    pub transport: Transport,
    /// What it does.
    pub verb: Verb,
    /// With immediate data.
    pub immediate: bool,
    /// With invalidation of a key.
    pub invalidate: bool,
}

impl Operation {
    /// The operation that a request packet belongs to, as far as this packet
    /// shows.
    #[must_use]
    pub fn of(opcode: Opcode) -> Self {
        use crate::wire::opcode::Ext;
        let info = opcode.info();
        Self {
            transport: info.transport,
            verb: info.verb,
            immediate: info.ext.contains(Ext::ImmDt),
            invalidate: info.ext.contains(Ext::Ieth),
        }
    }

    /// Name without the transport: that of its packets, without First, Last
    /// or Only.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.verb, self.immediate, self.invalidate) {
            (Verb::Send, true, _) => "SEND with Immediate",
            (Verb::Send, _, true) => "SEND with Invalidate",
            (Verb::Send, ..) => "SEND",
            (Verb::Write, true, _) => "RDMA WRITE with Immediate",
            (Verb::Write, ..) => "RDMA WRITE",
            (Verb::Read, ..) => "RDMA READ",
            (Verb::CompareSwap, ..) => "CmpSwap",
            (Verb::FetchAdd, ..) => "FetchAdd",
            (Verb::Flush, ..) => "FLUSH",
            (Verb::AtomicWrite, ..) => "ATOMIC WRITE",
            (Verb::Resync, ..) => "RESYNC",
            _ => "unknown",
        }
    }
}

/// One operation, from its first packet to its answer. What was not captured
/// is missing from it, and `complete` says so.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Entry of its flow in the tracker.
    pub flow: FlowId,
    /// The flow.
    pub key: FlowKey,
    /// Queue pair that it comes from, where known by its end.
    pub src_qp: Option<QpNumber>,
    /// What it does.
    pub operation: Operation,
    /// PSN of its first packet that was seen.
    pub first_psn: Psn,
    /// PSN of its last packet; for a READ that of its last response.
    pub last_psn: Psn,
    /// Bytes: those that the request names where it names any, else the
    /// payload that was seen; the latter also where the two contradict each
    /// other.
    pub bytes: u64,
    /// Payload that was seen, each byte once; for a READ that of its responses.
    pub payload: u64,
    /// Remote memory, where the packet that names it was seen.
    pub remote: Option<Remote>,
    /// Time of its first packet, nanoseconds since 1970.
    pub start_ns: i64,
    /// Time of its last request packet; for a READ of its last response.
    pub end_ns: i64,
    /// Time of the acknowledgement that covers it, of the atomic answer or of
    /// the last READ response; `None` where it was not seen. Unreliable
    /// transports have none.
    pub acked_ns: Option<i64>,
    /// Packets of it that were sent again, READ responses included.
    pub retransmits: u32,
    /// Every packet of it was seen: its first, its last, all between, and for
    /// READs and atomics the answers; and what they carry is what the request
    /// names.
    pub complete: bool,
    /// All packets of a WRITE were seen, and they do not carry the bytes that
    /// it names.
    pub malformed: bool,
    /// A NAK other than a sequence error ended it.
    pub refused: Option<AethKind>,
    /// Number of the input of its first packet, from 0.
    pub input: u16,
    /// Frame of its first packet.
    pub first_frame: u64,
    /// Number of the input of its last packet: with several inputs it may be
    /// another one.
    pub last_input: u16,
    /// Frame of its last packet, the answer included.
    pub last_frame: u64,
}

impl Message {
    /// From its first packet to its answer, in nanoseconds; `None` also where
    /// the clock stepped back meanwhile, so that the answer came before it.
    #[must_use]
    pub fn latency_ns(&self) -> Option<i64> {
        let ns = self.acked_ns?.saturating_sub(self.start_ns);
        (ns >= 0).then_some(ns)
    }
}
