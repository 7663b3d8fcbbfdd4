//! What a tracker tells while packets pass, to whoever listens.

use super::{FlowId, Message, Record};
use crate::wire::aeth::NakCode;

/// Why a requester sent packets again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The responder sent a PSN sequence error NAK.
    SequenceNak,
    /// The responder was not ready (RNR NAK).
    Rnr,
    /// Nothing asked for it but time; the silence before it in nanoseconds.
    Timeout {
        /// Time since the flow's packet before it.
        silence_ns: i64,
    },
    /// READ responses came again because the requester asked again.
    ReadAgain,
    /// A READ was asked for again at once: its requester missed a response,
    /// which no NAK tells (IBTA vol. 1, 9.7.5.2.8, implied NAK).
    ImpliedNak,
    /// Answers were not captured, so that what asked for it is not known.
    Unknown,
}

/// What happened to a packet, or at it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EventKind {
    /// A packet ahead of the expected PSN.
    Gap {
        /// PSNs skipped.
        missing: u32,
        /// A gap among READ responses rather than requests.
        responses: bool,
    },
    /// A packet sent again.
    Retransmitted {
        /// Why.
        cause: Cause,
        /// The first of a run: what follows goes back with it (go-back-N).
        begins: bool,
        /// It fills a hole in what was captured, rather than repeating a
        /// packet that was.
        fills: bool,
        /// A READ response rather than a request.
        responses: bool,
    },
    /// A hole filled although nothing asked for a packet again.
    Reordered {
        /// A READ response rather than a request.
        responses: bool,
    },
    /// The same PSN twice, although nothing asked for it.
    Duplicate,
    /// A copy, byte for byte, a short time after its original. Where the
    /// responder answers it once more, it reached the responder, and
    /// [`EventKind::DuplicateAnswered`] follows.
    MirrorDuplicate,
    /// The responder answered a copy: what was taken for a duplicate of the
    /// mirror was one of the network. The event's packet is the answer.
    DuplicateAnswered,
    /// A NAK; the event's packet is the NAK, its flow the one it travels in.
    Nak {
        /// What the responder complains about.
        code: NakCode,
        /// Flow of the request, where the two are paired.
        request_flow: Option<FlowId>,
    },
    /// An RNR NAK; as [`EventKind::Nak`].
    Rnr {
        /// Timer code: the time to wait is `wire::aeth::rnr_timer_us` of it.
        timer: u8,
        /// Flow of the request, where the two are paired.
        request_flow: Option<FlowId>,
    },
    /// The first request after an RNR NAK.
    RnrOver {
        /// Nanoseconds since the RNR NAK.
        waited_ns: i64,
    },
    /// Silence while a request waited for its answer, before this packet.
    Stall {
        /// Nanoseconds of silence.
        silence_ns: i64,
        /// Requests that waited.
        outstanding: u32,
    },
    /// The responder acknowledged requests that were never seen: they were
    /// lost by the capture. The event's packet is the acknowledgement, its
    /// flow that of the requests.
    CaptureLoss {
        /// PSNs acknowledged and not seen.
        missing: u32,
    },
    /// Requests that asked for an acknowledgement of their own were covered
    /// by a later one. The event's packet is the acknowledgement, its flow
    /// that of the requests.
    AckSkipped {
        /// Requests without their own acknowledgement.
        count: u32,
    },
    /// The queue pair number is used by a new connection from this packet on;
    /// the event's flow is the new entry.
    Reused {
        /// The entry that ended.
        old: FlowId,
    },
    /// Marked congestion experienced on its way.
    CongestionExperienced,
    /// A congestion notification packet.
    Cnp,
    /// Its invariant CRC is wrong; nothing else is concluded from it.
    BadIcrc,
    /// The first fragment of an IP datagram.
    Fragment,
    /// Lengths that contradict its opcode.
    Malformed,
    /// Its DSCP differs from that of the flow's first packet.
    OtherDscp {
        /// That of the first packet.
        first: u8,
    },
    /// The priority in its VLAN tag differs from that of the flow's first
    /// packet.
    OtherPriority {
        /// That of the first packet.
        first: u8,
    },
    /// A packet in the middle of a message whose payload is not the path MTU
    /// that the flow's other packets show.
    OddMtu {
        /// The path MTU, in bytes.
        mtu: u16,
    },
    /// A packet that the order of opcodes forbids: a Middle or Last without
    /// its First, or a message begun before the last one ended, although no
    /// PSN is missing.
    OutOfPlace,
}

/// An event and the packet at which it came to light.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Flow it happened to; its entry is current in the tracker.
    pub flow: FlowId,
    /// The flow of the opposite direction, once known: of a READ response that
    /// of its request, of a CNP the one that it slows down.
    pub peer: Option<FlowId>,
    /// What happened.
    pub kind: EventKind,
    /// The packet.
    pub record: &'a Record,
}

/// Somebody who is told what happens. Every method may be left out.
pub trait Listener {
    /// Whether messages are wanted; where nobody wants them they are not made.
    const MESSAGES: bool = true;

    /// Something worth telling happened.
    fn event(&mut self, _event: &Event<'_>) {}

    /// A message ended: answered, cut off, or given up.
    fn message(&mut self, _message: &Message) {}
}

impl Listener for () {
    const MESSAGES: bool = false;
}

impl<A: Listener, B: Listener> Listener for (A, B) {
    const MESSAGES: bool = A::MESSAGES || B::MESSAGES;

    fn event(&mut self, event: &Event<'_>) {
        self.0.event(event);
        self.1.event(event);
    }

    fn message(&mut self, message: &Message) {
        self.0.message(message);
        self.1.message(message);
    }
}

impl<L: Listener> Listener for &mut L {
    const MESSAGES: bool = L::MESSAGES;

    fn event(&mut self, event: &Event<'_>) {
        (**self).event(event);
    }

    fn message(&mut self, message: &Message) {
        (**self).message(message);
    }
}
