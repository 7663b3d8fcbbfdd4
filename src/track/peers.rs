//! Which flow answers which: known beforehand, or found by what is answered.

use super::{
    ConnectionId, FlowKey, How, Listener, Record, Tracker,
    pairing::{Found, Suspects, source_port},
};
use crate::wire::types::Psn;

/// Pairs of flows that are known before their packets come.
const MAX_EXPECTED: usize = 1 << 17;
/// Pairs remembered that were made although others fitted.
const MAX_UNCERTAIN: usize = 1 << 12;
/// Answers that do not fit before a pair is taken apart.
const MAX_MISFITS: u8 = 3;

/// A peer that is known before the flow's packets come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub peer: FlowKey,
    pub how: How,
    pub connection: Option<ConnectionId>,
}

impl Tracker {
    /// Two flows are known to belong together before their packets come.
    pub fn expect(&mut self, one: FlowKey, other: FlowKey, how: How) {
        self.expect_for(one, other, how, None);
    }

    fn expect_for(
        &mut self,
        one: FlowKey,
        other: FlowKey,
        how: How,
        connection: Option<ConnectionId>,
    ) {
        if self.expected.len() >= MAX_EXPECTED {
            self.expected.clear();
        }
        for (key, peer) in [(one, other), (other, one)] {
            let expected = Expected {
                peer,
                how,
                connection,
            };
            self.expected.insert(key, expected);
        }
    }

    /// A connection's second queue pair came to light: flows with these keys
    /// belong to it from here on.
    pub(super) fn connected<L: Listener>(&mut self, id: ConnectionId, listener: &mut L) {
        let Some((forward, backward)) = self
            .manager
            .get(id)
            .and_then(super::manager::Managed::flows)
        else {
            return;
        };
        for key in [forward, backward] {
            if let Some(slot) = self.by_key.get(&key).copied() {
                self.retire(slot as usize, listener);
            }
        }
        self.expect_for(forward, backward, How::Cm, Some(id));
    }

    pub(super) fn pair(&mut self, one: usize, other: usize, how: How) {
        let ends = [one, other].map(|slot| (self.flows[slot].id, self.flows[slot].key.dest_qp));
        let mtu = self.flows[one].mtu.or(self.flows[other].mtu);
        for (slot, (peer, src_qp)) in [(one, ends[1]), (other, ends[0])] {
            let flow = &mut self.flows[slot];
            flow.peer = Some(peer);
            flow.src_qp = Some(src_qp);
            flow.how = how;
            flow.mtu = mtu;
            flow.state.uncertain = false;
            flow.state.misfits = 0;
            flow.size_read();
        }
    }

    pub(super) fn peer(&self, slot: usize) -> Option<usize> {
        self.flows[slot].peer.map(|peer| peer.slot as usize)
    }

    /// The flow whose requests an answer is for, as far as known.
    pub(super) fn requester(&mut self, slot: usize, record: &Record) -> Option<usize> {
        if let Some(peer) = self.peer(slot) {
            let asked = &self.flows[peer].state;
            if !asked.requests.started() {
                // Requests went before the capture began, or are not in it.
                return Some(peer);
            }
            let fits = asked.may_be_answered(record.psn, &self.limits);
            let ahead = asked.requests.position(record.psn) >= asked.requests.next();
            let state = &mut self.flows[slot].state;
            // One of several that fitted, and it did not send what is answered.
            let mistaken = state.uncertain && ahead;
            if fits && !mistaken {
                state.misfits = 0;
                return Some(peer);
            }
            state.misfits += 1;
            if !mistaken && (state.misfits < MAX_MISFITS || self.flows[slot].how != How::Inferred) {
                return None;
            }
            if mistaken {
                // Whoever took the right one is mistaken as well.
                self.part_uncertain(record.flow);
            }
            self.part(slot, peer);
        }
        let found = self.find(slot, record, record.psn).or_else(|| {
            // A NAK may name a packet that was lost before the capture; the
            // one before it was received.
            let nak = record.aeth.is_some_and(|aeth| aeth.kind().is_nak());
            nak.then(|| self.find(slot, record, record.psn.advance(0xff_ffff)))?
        })?;
        self.pair(slot, found.slot as usize, How::Inferred);
        if !found.certain && self.uncertain.len() < MAX_UNCERTAIN {
            let peer = found.slot as usize;
            self.flows[slot].state.uncertain = true;
            self.flows[peer].state.uncertain = true;
            self.uncertain.push((slot, peer));
        }
        Some(found.slot as usize)
    }

    /// Takes apart all pairs between the hosts of a flow of answers that were
    /// made although others fitted.
    fn part_uncertain(&mut self, answers: FlowKey) {
        let mut pairs = std::mem::take(&mut self.uncertain);
        pairs.retain(|(slot, peer)| {
            let flow = &self.flows[*slot];
            let lasts = flow.state.uncertain && self.peer(*slot) == Some(*peer);
            let hosts = (flow.key.src, flow.key.dst) == (answers.src, answers.dst);
            if lasts && hosts {
                self.part(*slot, *peer);
            }
            lasts && !hosts
        });
        self.uncertain = pairs;
    }

    /// Takes a pair apart.
    fn part(&mut self, one: usize, other: usize) {
        for slot in [one, other] {
            let flow = &mut self.flows[slot];
            flow.peer = None;
            flow.src_qp = None;
            flow.how = How::Unpaired;
            flow.state.misfits = 0;
            flow.state.uncertain = false;
            flow.state.advertised = 0;
            flow.state.suspects = Suspects::default();
        }
    }

    /// The flow that one more answer, with this PSN, leaves as the only one.
    fn find(&mut self, slot: usize, record: &Record, psn: Psn) -> Option<Found> {
        let FlowKey { src, dst, .. } = record.flow;
        let mut suspects = std::mem::take(&mut self.flows[slot].state.suspects);
        let flows = &self.flows;
        let limits = &self.limits;
        let candidates = self.waiting.candidates(src, dst, psn, |slot| {
            let flow = &flows[*slot as usize];
            flow.peer.is_none()
                && !flow.ended
                // Another flow may have got the place of one forgotten.
                && (flow.key.src, flow.key.dst) == (dst, src)
                && flow.state.may_be_answered(record.psn, limits)
        });
        let (to, sport) = (record.flow.dest_qp, self.flows[slot].sport);
        let found = suspects.narrow(candidates, |candidate| {
            let asks = &flows[candidate as usize];
            sport != 0 && asks.sport == sport && sport == source_port(asks.key.dest_qp, to)
        });
        self.flows[slot].state.suspects = suspects;
        found.filter(|found| {
            let flow = &self.flows[found.slot as usize];
            flow.peer.is_none() && !flow.ended
        })
    }
}
