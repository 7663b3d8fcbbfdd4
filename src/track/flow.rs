//! What is known about one directed flow.

use super::{
    EventKind, FlowId, FlowKey, How, IcrcState, Latency, Listener, Record,
    connection::ConnectionId, record::Facts, sequence, state::FlowState, throttle::Told,
};
use crate::wire::{
    aeth::NakCode,
    opcode::{Opcode, Transport, Verb},
    types::{Psn, QpNumber},
};

/// Counts of packets by PSN state, of the requests or of the READ responses
/// of a flow. Every packet counted in `packets` is in exactly one of `new`,
/// `retransmitted`, `reordered`, `duplicates` and `mirror_duplicates`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PsnCounts {
    /// Packets.
    pub packets: u64,
    /// Packets with the expected PSN, or ahead of it.
    pub new: u64,
    /// Of `new`, those ahead of the expected PSN.
    pub gaps: u64,
    /// PSNs skipped by gaps, whether or not they came later, and those after
    /// the last request that only acknowledgements showed.
    pub skipped: u64,
    /// PSNs inside the seen range that were never seen.
    pub missing: u64,
    /// Of `missing`, those that the responder acknowledged all the same,
    /// without their being sent again: the capture lost them, not the network.
    pub capture_loss: u64,
    /// Packets sent again: the PSN was seen before, or the packet fills a hole
    /// after something asked for it.
    pub retransmitted: u64,
    /// Of `retransmitted`, those that fill a hole in what was captured.
    pub refilled: u64,
    /// Packets that fill a hole with nothing to ask for them.
    pub reordered: u64,
    /// PSNs that came twice with nothing to ask for them.
    pub duplicates: u64,
    /// Copies byte for byte within a short time, that nobody answered.
    pub mirror_duplicates: u64,
}

/// Packets and what they add up to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub packets: u64,
    /// Bytes of payload.
    pub payload: u64,
    /// Bytes of the frames on the wire.
    pub wire: u64,
}

impl Size {
    /// That of one packet.
    #[inline]
    pub fn of(packet: &impl Facts) -> Self {
        Self {
            packets: 1,
            payload: packet.payload_len().into(),
            wire: packet.len().into(),
        }
    }

    /// What is left without one of the packets.
    #[inline]
    pub fn without(self, packet: &impl Facts) -> Self {
        let one = Self::of(packet);
        Self {
            packets: self.packets - one.packets,
            payload: self.payload - one.payload,
            wire: self.wire - one.wire,
        }
    }
}

/// Counts by opcode: few different ones in a flow, so a short list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpCounts {
    list: Vec<(Opcode, u64)>,
}

impl OpCounts {
    /// Counts packets.
    #[inline]
    pub fn add(&mut self, opcode: Opcode, packets: u64) {
        match self.list.iter_mut().find(|(op, _)| *op == opcode) {
            Some((_, count)) => *count += packets,
            None => self.list.push((opcode, packets)),
        }
    }

    /// Counts in the order of opcodes.
    #[must_use]
    pub fn sorted(&self) -> Vec<(Opcode, u64)> {
        let mut list = self.list.clone();
        list.sort_by_key(|(opcode, _)| opcode.0);
        list
    }

    /// Packets with this opcode.
    #[must_use]
    pub fn get(&self, opcode: Opcode) -> u64 {
        let hit = self.list.iter().find(|(op, _)| *op == opcode);
        hit.map_or(0, |(_, count)| *count)
    }
}

/// A directed flow, from its first packet to its last, or to the packet with
/// which a new connection took over its queue pair number.
///
/// It carries the requests of the source's queue pair and, where that answers
/// requests of the other side, its responses; the two have PSNs of their own.
/// `packets` is the sum of `requests.packets`, `responses.packets`,
/// `acknowledgements`, `cnps`, `untracked` and `corrupted`.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Number of this entry.
    pub id: FlowId,
    /// Addresses and destination queue pair.
    pub key: FlowKey,
    /// Transport of its first packet that is not a CNP.
    pub transport: Transport,
    /// Packets of every kind.
    pub packets: u64,
    /// Bytes of payload, packets sent again included.
    pub payload_bytes: u64,
    /// Bytes of the frames on the wire.
    pub wire_bytes: u64,
    /// Bytes of payload of new packets: each byte once.
    pub goodput_bytes: u64,
    /// Packets by operation.
    pub ops: OpCounts,
    /// Requests by PSN state.
    pub requests: PsnCounts,
    /// READ responses by PSN state.
    pub responses: PsnCounts,
    /// Packets that have no place in a PSN sequence that is followed: datagrams
    /// to queue pair 1, opcodes unknown, reliable datagrams.
    pub untracked: u64,
    /// Acknowledgements of every kind (ACK, NAK, RNR NAK, atomic answers).
    pub acknowledgements: u64,
    /// Of these, copies byte for byte within a short time: they are counted in
    /// nothing else.
    pub answer_copies: u64,
    /// Of these, positive ones.
    pub acks: u64,
    /// Of these, NAKs by code; the four codes there are, then all others.
    pub naks: [u64; NAK_SLOTS],
    /// Of these, RNR NAKs.
    pub rnr_naks: u64,
    /// Congestion notification packets.
    pub cnps: u64,
    /// Packets marked congestion experienced.
    pub ce: u64,
    /// Packets that could have been marked: ECT(0), ECT(1) or CE.
    pub ecn_capable: u64,
    /// Packets whose invariant CRC is wrong.
    pub icrc_invalid: u64,
    /// Of these, those from which nothing was concluded: they are counted in
    /// nothing but `packets`, bytes and `ops`. Where no packet of a flow has a
    /// right CRC, something rewrote its addresses, and its packets are followed
    /// all the same.
    pub corrupted: u64,
    /// Packets whose invariant CRC was checked and is right.
    pub icrc_valid: u64,
    /// First fragments of IP datagrams.
    pub fragments: u64,
    /// First PSN of the requests, else of the responses.
    pub first_psn: Psn,
    /// Furthest PSN of the requests, else of the responses.
    pub last_psn: Psn,
    /// Time of the first packet, nanoseconds since 1970.
    pub first_ts_ns: i64,
    /// Time of the last packet.
    pub last_ts_ns: i64,
    /// Input and frame of the first packet.
    pub first_frame: (u16, u64),
    /// Input and frame of the last packet.
    pub last_frame: (u16, u64),
    /// Path MTU in bytes, once packets or a CM message have shown it.
    pub mtu: Option<u16>,
    /// Messages ended so far, those cut off included.
    pub messages: u64,
    /// Bytes of messages that are complete.
    pub message_bytes: u64,
    /// From a message's first packet to its answer.
    pub latency: Latency,
    /// Requests that asked for an acknowledgement of their own and got it.
    pub acks_own: u64,
    /// Requests that asked for one and were covered by a later one.
    pub acks_skipped: u64,
    /// Runs of packets sent again, by what began them.
    pub retransmit_runs: RunCounts,
    /// The flow of the opposite direction, once known.
    pub peer: Option<FlowId>,
    /// How the two were found to belong together.
    pub how: How,
    /// Queue pair that the flow comes from, once its peer is known; of
    /// datagrams that of the last one.
    pub src_qp: Option<QpNumber>,
    /// The connection, where the communication manager set it up.
    pub connection: Option<ConnectionId>,
    /// DSCP of the first packet.
    pub dscp: u8,
    /// Priority in the VLAN tag of the first packet, where it had one.
    pub priority: Option<u8>,
    /// UDP source port of the first packet; 0 with RoCEv1.
    pub sport: u16,
    /// Another entry with the same key took over.
    pub ended: bool,
    /// Once its sender was told of congestion.
    pub(super) told: Option<Box<Told>>,
    pub(super) state: FlowState,
}

/// Runs of packets sent again, by what began them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// A PSN sequence error NAK.
    pub sequence_nak: u64,
    /// An RNR NAK.
    pub rnr: u64,
    /// Time.
    pub timeout: u64,
    /// A missed READ response.
    pub implied_nak: u64,
    /// Not known: the answers were not captured.
    pub unknown: u64,
}

impl RunCounts {
    /// All of them.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.sequence_nak + self.rnr + self.timeout + self.implied_nak + self.unknown
    }
}

/// Codes of NAKs that are counted apart, and one for all others.
pub const NAK_SLOTS: usize = 6;

impl Flow {
    /// An entry for the flow of a packet, which is not counted yet.
    pub(super) fn new(id: FlowId, record: &Record) -> Self {
        Self {
            id,
            key: record.flow,
            transport: record.opcode.info().transport,
            packets: 0,
            payload_bytes: 0,
            wire_bytes: 0,
            goodput_bytes: 0,
            ops: OpCounts::default(),
            requests: PsnCounts::default(),
            responses: PsnCounts::default(),
            untracked: 0,
            acknowledgements: 0,
            answer_copies: 0,
            acks: 0,
            naks: [0; NAK_SLOTS],
            rnr_naks: 0,
            cnps: 0,
            ce: 0,
            ecn_capable: 0,
            icrc_invalid: 0,
            corrupted: 0,
            icrc_valid: 0,
            fragments: 0,
            first_psn: record.psn,
            last_psn: record.psn,
            first_ts_ns: record.ts_ns,
            last_ts_ns: record.ts_ns,
            first_frame: (record.input, record.frame),
            last_frame: (record.input, record.frame),
            mtu: None,
            messages: 0,
            message_bytes: 0,
            latency: Latency::default(),
            acks_own: 0,
            acks_skipped: 0,
            retransmit_runs: RunCounts::default(),
            peer: None,
            how: How::Unpaired,
            src_qp: record.src_qp,
            connection: None,
            dscp: record.dscp,
            priority: record.priority,
            sport: record.sport,
            ended: false,
            told: None,
            state: FlowState::default(),
        }
    }

    /// NAKs by code, those that did not occur left out; `None` for codes
    /// that no specification assigns.
    pub fn naks(&self) -> impl Iterator<Item = (Option<NakCode>, u64)> {
        let code = |slot: usize| (slot < NAK_SLOTS - 1).then_some(NakCode(slot as u8));
        let counts = self.naks.into_iter().enumerate();
        counts
            .filter(|(_, count)| *count != 0)
            .map(move |(slot, count)| (code(slot), count))
    }

    /// Requests that wait for an answer now.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.state.messages.len()
    }
}

impl Flow {
    /// Counts packets that are no fragments, not marked and not damaged, in
    /// everything but operations; `last` is the last one of them.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    pub(super) fn tally(&mut self, last: &impl Facts, size: Size) {
        self.packets += size.packets;
        self.payload_bytes += size.payload;
        self.wire_bytes += size.wire;
        self.last_ts_ns = self.last_ts_ns.max(last.ts_ns());
        self.last_frame = last.origin();
        self.ecn_capable += u64::from(last.ecn() != 0) * size.packets;
        self.icrc_valid += u64::from(last.icrc() == IcrcState::Valid) * size.packets;
    }

    /// Counts a packet of any kind and tells what is special about it.
    pub(super) fn count<L: Listener>(&mut self, record: &Record, listener: &mut L) {
        self.tally(record, Size::of(record));
        self.ops.add(record.opcode, 1);
        if self.transport == Transport::Cnp {
            self.transport = record.opcode.info().transport;
        }
        if record.ecn == 3 {
            self.ce += 1;
            self.emit(listener, record, EventKind::CongestionExperienced);
        }
        if record.icrc == IcrcState::Invalid {
            self.icrc_invalid += 1;
            self.emit(listener, record, EventKind::BadIcrc);
        }
        if record.fragment {
            self.fragments += 1;
            self.emit(listener, record, EventKind::Fragment);
        }
        if record.malformed {
            self.emit(listener, record, EventKind::Malformed);
        }
        // NICs send CNPs, and some acknowledgements, in a class of their own.
        if record.dscp != self.dscp && record.opcode.info().verb != Verb::Cnp {
            let first = self.dscp;
            self.emit(listener, record, EventKind::OtherDscp { first });
        }
        // Untagged packets are those of a mirror that takes tags off.
        if let (Some(first), Some(priority)) = (self.priority, record.priority)
            && first != priority
            && record.opcode.info().verb != Verb::Cnp
        {
            self.emit(listener, record, EventKind::OtherPriority { first });
        }
    }

    /// PSN after the last READ response.
    pub(super) fn next_response(&self) -> Option<Psn> {
        let sequence = &self.state.responses;
        sequence.started().then(|| sequence::psn(sequence.next()))
    }
}
