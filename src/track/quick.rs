//! The packets that most are: the next request of a flow whose answers are
//! captured too, and the acknowledgement of requests that were all seen.
//!
//! Whatever could make a packet special is looked at before anything is
//! changed, and what is special takes the long way, [`Tracker::add`]. What a
//! quick packet changes it changes by the same functions.

use super::{
    FlowId, IcrcState, Listener, Tracker,
    brief::{Brief, Class, InStretch, Numbers},
    burst::{BURST_NS, Burst},
    digest::Digest,
    flow::Size,
    open::By,
    record::Facts,
    sequence::{self, Pos},
    tracker::{MAX_OPEN, OPEN, UNANSWERED},
};
use crate::wire::{
    aeth::AethKind,
    opcode::{Position, Transport},
    types::Psn,
};

impl Tracker {
    /// Takes in the packets of a stretch; stretches come in the order of the
    /// capture.
    pub fn add_all<L: Listener>(&mut self, digest: &Digest, listener: &mut L) {
        let mut known = std::mem::take(&mut self.known);
        known.clear();
        known.resize(digest.numbers.len(), None);
        for burst in digest.bursts() {
            let brief = burst.first;
            if brief.class == Class::Long {
                self.add(&digest.record(brief), listener);
                continue;
            }
            let known = &mut known[brief.flow as usize];
            if self.quick(*known, burst, &digest.numbers, listener) {
                continue;
            }
            for brief in burst.briefs() {
                let alone = Burst::alone(brief);
                if !burst.is_many() || !self.quick(*known, alone, &digest.numbers, listener) {
                    *known = self.slow(brief, &digest.numbers, listener);
                }
            }
        }
        self.known = known;
    }

    /// The place of an entry that is still there and goes on.
    #[inline]
    fn current(&self, id: Option<FlowId>) -> Option<usize> {
        let id = id?;
        let flow = self.flows.get(id.slot as usize)?;
        (flow.id == id && !flow.ended).then_some(id.slot as usize)
    }

    /// Takes in a packet the long way; the entry of its flow, for the next
    /// one.
    fn slow<L: Listener>(
        &mut self,
        brief: &Brief,
        numbers: &Numbers,
        listener: &mut L,
    ) -> Option<FlowId> {
        self.add(&InStretch { brief, numbers }.record(), listener);
        // Where the packet began a new entry, the next one of the flow looks
        // that up.
        let key = numbers.key(brief.flow);
        let last = self.flows.get(self.last);
        last.filter(|flow| flow.key == key).map(|flow| flow.id)
    }

    /// Takes in packets if there is nothing special about them.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    fn quick<L: Listener>(
        &mut self,
        flow: Option<FlowId>,
        burst: Burst<'_>,
        numbers: &Numbers,
        listener: &mut L,
    ) -> bool {
        let Some(slot) = self.current(flow) else {
            return false;
        };
        let flow = &self.flows[slot];
        if burst.first.dscp() != flow.dscp || flow.transport != Transport::Rc {
            return false;
        }
        match burst.first.class {
            Class::Request => self.quick_requests(slot, burst, numbers, listener),
            Class::Acknowledge => {
                let brief = burst.first;
                self.quick_ack(slot, InStretch { brief, numbers }, listener)
            }
            Class::Other | Class::Long => false,
        }
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    fn quick_requests<L: Listener>(
        &mut self,
        slot: usize,
        burst: Burst<'_>,
        numbers: &Numbers,
        listener: &mut L,
    ) -> bool {
        let packet = |brief| InStretch { brief, numbers };
        let (first, last) = (packet(burst.first), packet(burst.last));
        let count = burst.size.packets;
        let position = first.opcode().info().position;
        let flow = &self.flows[slot];
        let state = &flow.state;
        let Some(peer) = flow.peer else { return false };
        let Some(mtu) = flow.mtu else { return false };
        let full = matches!(position, Position::First | Position::Middle);
        // Where a burst is many packets, room for one message more.
        let more = usize::from(burst.is_many());
        if (full && u32::from(mtu) != first.payload_len())
            || self.flows[peer.slot as usize].mtu.is_none()
            || !state.awaits(first.psn())
            || state.silence_before(first.ts_ns()) >= self.limits.stall_ns
            || (burst.is_many() && self.limits.stall_ns < BURST_NS)
            || state.messages.len() + more >= OPEN[0]
            || state.messages.unanswered as usize >= UNANSWERED
            || self.open + more >= MAX_OPEN
        {
            return false;
        }
        let flow = &mut self.flows[slot];
        flow.tally(&last, burst.size);
        flow.ops.add(first.opcode(), 1);
        if let Some(brief) = burst.inner.first() {
            flow.ops.add(brief.opcode, burst.inner.len() as u64);
        }
        flow.requests.packets += count;
        let state = &mut flow.state;
        state.used = true;
        state.active(first.ts_ns());
        let pos = state.requests.next();
        state.requests.advance(pos, count as u32);
        let before = state.messages.len();
        flow.newest_request(&first, pos, 1, 0, listener);
        if burst.is_many() {
            flow.ops.add(last.opcode(), 1);
            let more = burst.size.without(&first);
            flow.more_requests(burst.inner.last().map(packet), &last, more);
        }
        self.icrc.0 += count * u64::from(first.icrc() == IcrcState::Valid);
        self.open = self.open + flow.state.messages.len() - before;
        let connection = flow.connection;
        for brief in burst.briefs() {
            self.recent.remember(slot as u32, &packet(brief));
        }
        if let Some(id) = connection {
            self.manager.carries_data(id);
        }
        true
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    fn quick_ack<L: Listener>(
        &mut self,
        slot: usize,
        packet: InStretch<'_>,
        listener: &mut L,
    ) -> bool {
        let flow = &self.flows[slot];
        let Some(AethKind::Ack(_)) = packet.brief.aeth().map(crate::wire::aeth::Aeth::kind) else {
            return false;
        };
        let Some(peer) = flow.peer else { return false };
        let peer = peer.slot as usize;
        let asked = &self.flows[peer].state;
        let pos = asked.requests.position(packet.psn());
        if flow.state.uncertain
            || !asked.is_covered_by(pos, &self.limits)
            || asked.silence_before(packet.ts_ns()) >= self.limits.stall_ns
            || self.recent.earlier(slot as u32, &packet).is_some()
        {
            return false;
        }
        self.icrc.0 += u64::from(packet.icrc() == IcrcState::Valid);
        self.recent.remember(slot as u32, &packet);
        let flow = &mut self.flows[slot];
        flow.tally(&packet, Size::of(&packet));
        flow.ops.add(packet.opcode(), 1);
        flow.acknowledgements += 1;
        flow.acks += 1;
        flow.state.used = true;
        flow.state.misfits = 0;
        if flow.requests.packets + flow.responses.packets == 0 {
            flow.last_psn = packet.psn();
        }
        let flow = &mut self.flows[peer];
        flow.state.active(packet.ts_ns());
        let before = flow.state.messages.len();
        flow.acknowledge(pos + 1, &packet, By::Ack, listener);
        self.open = self.open + flow.state.messages.len() - before;
        true
    }
}

impl super::state::FlowState {
    /// Whether a request is the next one, with nothing open about those before
    /// it.
    #[inline]
    fn awaits(&self, psn: Psn) -> bool {
        self.requests.started()
            && sequence::psn(self.requests.next()) == psn
            && self.tail.is_none()
            && self.unsized_read.is_none()
            && !self.uncertain
    }

    /// Whether an acknowledgement of `pos` covers requests that were all seen.
    #[inline]
    fn is_covered_by(&self, pos: Pos, limits: &super::Limits) -> bool {
        let ahead = pos - self.requests.next();
        self.requests.started()
            && self.requests.is_settled()
            && (-limits.behind..0).contains(&ahead)
            && self.copies == 0
    }
}
