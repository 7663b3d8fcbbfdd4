//! Matches captured packets to the work requests they belong to.
//!
//! A request belongs to the write whose sequence numbers hold its PSN; an
//! acknowledgement to every write up to its PSN, since responders may answer
//! several at once; a READ response to the read whose numbers hold its PSN.

use std::net::IpAddr;

use crate::{
    rdma::ledger::{Endpoint, Ledger, Op, Posted},
    track::Record,
    wire::{aeth::AethKind, opcode::Verb, types::Psn},
};

/// What was seen of one work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeenWrite {
    /// Different request packets.
    pub requests: u32,
    /// Different response packets of a READ; for everything else 1 once an
    /// acknowledgement covered the write.
    pub responses: u32,
    /// Request packets seen again: retransmitted, or duplicated on the way.
    pub again: u32,
    /// NAKs and RNR NAKs for one of its sequence numbers.
    pub naks: u32,
    /// Frame number of the first request packet.
    pub request_frame: Option<u64>,
    /// Frame number of the packet that acknowledged it, or of the last READ
    /// response.
    pub response_frame: Option<u64>,
}

/// What was seen of a ledger at one place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// One entry a work request, in the ledger's order.
    pub writes: Vec<SeenWrite>,
    /// Different request packets.
    pub requests: u64,
    /// Response packets: acknowledgements, NAKs, READ responses.
    pub responses: u64,
    /// Request packets seen again.
    pub again: u64,
    /// NAKs and RNR NAKs.
    pub naks: u64,
}

impl Seen {
    /// Packets of the ledger that were seen, repeated ones counted each time.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.requests + self.again + self.responses
    }

    /// Work requests of which every request packet was seen.
    #[must_use]
    pub fn whole(&self, ledger: &Ledger) -> u64 {
        let mtu = ledger.endpoint.as_ref().map_or(1024, |e| e.mtu);
        let whole = ledger.posted.iter().zip(&self.writes);
        whole
            .filter(|(posted, seen)| seen.requests >= ledger.op.packets(posted.len, mtu).requests)
            .count() as u64
    }
}

/// Matches packets to a ledger, one after the other.
pub struct Matcher<'l> {
    ledger: &'l Ledger,
    endpoint: Option<&'l Endpoint>,
    base: Psn,
    /// Sequence numbers taken up by all writes together.
    span: u32,
    /// For every sequence number: its request was seen, its response was seen.
    requested: Vec<bool>,
    responded: Vec<bool>,
    /// Writes below this place are acknowledged.
    acknowledged: usize,
    seen: Seen,
}

/// Sequence numbers that can be told apart: half the circle.
const WINDOW: u32 = 1 << 23;

impl<'l> Matcher<'l> {
    /// Matches packets to `ledger`.
    #[must_use]
    pub fn new(ledger: &'l Ledger) -> Self {
        let total: u64 = ledger.posted.iter().map(|p| u64::from(p.psn_span)).sum();
        let span = total.min(u64::from(WINDOW)) as u32;
        Self {
            ledger,
            endpoint: ledger.endpoint.as_ref(),
            base: ledger.posted.first().map_or(Psn::new(0), |p| p.psn),
            span,
            requested: vec![false; span as usize],
            responded: vec![false; span as usize],
            acknowledged: 0,
            seen: Seen {
                writes: vec![SeenWrite::default(); ledger.posted.len()],
                ..Seen::default()
            },
        }
    }

    /// Takes a packet; false when it is none of the ledger's.
    pub fn packet(&mut self, record: &Record) -> bool {
        let Some(endpoint) = self.endpoint else {
            return false;
        };
        let (here, there) = (
            IpAddr::V6(endpoint.gid).to_canonical(),
            IpAddr::V6(endpoint.dest_gid).to_canonical(),
        );
        let (src, dst) = (
            record.flow.src.to_canonical(),
            record.flow.dst.to_canonical(),
        );
        let response = record.opcode.is_response();
        let ours = if response {
            src == there && dst == here && record.flow.dest_qp == endpoint.qp
        } else {
            src == here && dst == there && record.flow.dest_qp == endpoint.dest_qp
        };
        if !ours {
            return false;
        }
        let ahead = record.psn.distance_from(self.base);
        let offset = u32::try_from(ahead).ok().filter(|at| *at < self.span);
        if response {
            self.response(record, offset)
        } else {
            offset.is_some_and(|offset| self.request(record, offset))
        }
    }

    fn request(&mut self, record: &Record, offset: u32) -> bool {
        let Some(index) = self.find(offset) else {
            return false;
        };
        let write = &mut self.seen.writes[index];
        if std::mem::replace(&mut self.requested[offset as usize], true) {
            write.again += 1;
            self.seen.again += 1;
        } else {
            write.requests += 1;
            self.seen.requests += 1;
        }
        write.request_frame.get_or_insert(record.frame);
        true
    }

    fn response(&mut self, record: &Record, offset: Option<u32>) -> bool {
        let kind = record.aeth.map(crate::wire::aeth::Aeth::kind);
        self.seen.responses += 1;
        if kind.is_some_and(AethKind::is_nak) {
            self.seen.naks += 1;
            if let Some(index) = offset.and_then(|offset| self.find(offset)) {
                self.seen.writes[index].naks += 1;
            }
            // A NAK acknowledges what came before the number it names; when
            // the receiver is not ready, too (IBTA vol. 1, 9.7.5.1.1).
            self.acknowledge(offset.unwrap_or(0), record.frame);
            return true;
        }
        let Some(offset) = offset else { return true };
        if record.opcode.info().verb == Verb::ReadResponse && self.ledger.op == Op::Read {
            let fresh = !std::mem::replace(&mut self.responded[offset as usize], true);
            if let Some(index) = self.find(offset) {
                let write = &mut self.seen.writes[index];
                write.responses += u32::from(fresh);
                write.response_frame = Some(record.frame);
            }
            return true;
        }
        self.acknowledge(offset + 1, record.frame);
        true
    }

    /// Everything below `offset` is acknowledged.
    fn acknowledge(&mut self, offset: u32, frame: u64) {
        while let Some(posted) = self.ledger.posted.get(self.acknowledged) {
            let start = posted.psn.distance_from(self.base);
            let end = u32::try_from(start).map_or(u32::MAX, |start| start + posted.psn_span);
            if end > offset || self.ledger.op == Op::Read {
                break;
            }
            let write = &mut self.seen.writes[self.acknowledged];
            write.responses = 1;
            write.response_frame = Some(frame);
            self.acknowledged += 1;
        }
    }

    /// The write that holds the sequence number `offset` after the first.
    fn find(&self, offset: u32) -> Option<usize> {
        let starts_at_or_before = |posted: &Posted| {
            u32::try_from(posted.psn.distance_from(self.base)).is_ok_and(|start| start <= offset)
        };
        let after = self.ledger.posted.partition_point(starts_at_or_before);
        after.checked_sub(1)
    }

    /// What was seen.
    #[must_use]
    pub fn finish(self) -> Seen {
        self.seen
    }
}
