//! The state of all flows, updated packet by packet.

use std::collections::HashMap;

use super::{
    EventKind, Flow, FlowKey, How, IcrcState, Listener, Record,
    datagrams::Senders,
    manager::{Managed, Manager},
    pairing::Waiting,
    peers::Expected,
    recent::Recent,
    state::Earlier,
};
use crate::wire::opcode::{Transport, Verb};

/// Number of a flow's entry in a tracker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    /// Entries whose place was given to another flow have an older generation.
    generation: u32,
    pub(super) slot: u32,
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
    /// PSNs that a connection's next message may lie behind the newest one:
    /// more than is ever under way.
    pub behind: i64,
    /// PSNs that it may lie ahead, when the capture lost what is between.
    pub ahead: i64,
    /// Silence after which a message further than `behind` ahead belongs to a
    /// new connection.
    pub idle_ns: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: 1 << 20,
            copy_window_ns: 1_000_000,
            timeout_floor_ns: 1_000_000,
            stall_ns: 100_000_000,
            behind: 1 << 16,
            ahead: 1 << 20,
            idle_ns: 1_000_000_000,
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

/// Messages of a flow kept under way while answers come, when none come, and
/// when there are too many over all flows.
pub(super) const OPEN: [usize; 3] = [1 << 14, 64, 8];
/// Messages given up since the last answer from which on no answers come.
pub(super) const UNANSWERED: usize = 1024;
/// Messages under way over all flows before each flow has to keep fewer.
pub(super) const MAX_OPEN: usize = 1 << 19;

/// Places of the cache in front of the map of flows: a power of two.
const CACHE: usize = 1 << 10;

#[derive(Debug)]
struct Cache([u32; CACHE]);

impl Default for Cache {
    fn default() -> Self {
        Self([0; CACHE])
    }
}

/// Follows all flows of a capture.
#[derive(Debug, Default)]
pub struct Tracker {
    pub(super) limits: Limits,
    pub(super) flows: Vec<Flow>,
    /// In the order of appearance; entries whose flow was forgotten have
    /// another id in their slot.
    order: Vec<FlowId>,
    pub(super) by_key: HashMap<FlowKey, u32, foldhash::fast::RandomState>,
    pub(super) expected: HashMap<FlowKey, Expected, foldhash::fast::RandomState>,
    pub(super) manager: Manager,
    pub(super) waiting: Waiting,
    pub(super) recent: Recent,
    /// Entries by a hash of their key, one place each, in front of `by_key`.
    cache: Cache,
    /// Entry of the packet before.
    pub(super) last: usize,
    /// Datagrams are numbered by sender, whomever they go to.
    senders: Senders,
    /// Flows of answers and their peers, where others fitted as well.
    pub(super) uncertain: Vec<(usize, usize)>,
    /// Messages under way over all flows.
    pub(super) open: usize,
    /// Where the search for a flow to forget goes on.
    hand: usize,
    evicted: Evicted,
    /// Invariant CRCs over all flows: right and wrong ones.
    pub(super) icrc: (u64, u64),
    /// Entries of the flows of a stretch by their numbers.
    pub(super) known: Vec<Option<FlowId>>,
}

impl Tracker {
    /// A tracker that has seen nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Takes in a packet; packets come in the order of the capture.
    pub fn add<L: Listener>(&mut self, record: &Record, listener: &mut L) {
        let damaged = record.icrc == IcrcState::Invalid;
        match record.icrc {
            IcrcState::Valid => self.icrc.0 += 1,
            IcrcState::Invalid => self.icrc.1 += 1,
            IcrcState::Unverifiable => {}
        }
        if let Some(cm) = &record.cm
            && !damaged
            && let Some(connection) = self.manager.message(record, cm)
        {
            self.connected(connection, listener);
        }
        let mut slot = self.entry(record, listener);
        let tracked = !(damaged && self.is_corruption(slot));
        let info = record.opcode.info();
        let connected = matches!(
            info.transport,
            Transport::Rc | Transport::Uc | Transport::Xrc
        );
        let request = connected && info.verb != Verb::Unknown && !record.opcode.is_response();
        if tracked && request && self.flows[slot].is_replaced_by(record, &self.limits) {
            let old = self.flows[slot].id;
            slot = self.renew(slot, record, listener);
            self.flows[slot].emit(listener, record, EventKind::Reused { old });
        }
        let flow = &mut self.flows[slot];
        flow.count(record, listener);
        if !tracked {
            flow.corrupted += 1;
            return;
        }
        if request {
            self.request(slot, record, listener);
        } else if connected && record.opcode.is_response() {
            self.answer(slot, record, listener);
        } else if info.verb == Verb::Cnp {
            flow.cnps += 1;
            flow.emit(listener, record, EventKind::Cnp);
            self.told(slot);
        } else if info.transport == Transport::Ud
            && info.verb == Verb::Send
            && record.flow.dest_qp.get() > 1
        {
            let earlier = self.recent.earlier(slot as u32, record);
            self.recent.remember(slot as u32, record);
            let window_ns = self.limits.copy_window_ns;
            self.senders
                .datagram(flow, record, earlier, window_ns, listener);
        } else {
            flow.untracked += 1;
        }
    }

    /// Whether a wrong invariant CRC means that the packet was damaged, rather
    /// than that addresses were rewritten in all packets of the flow.
    fn is_corruption(&self, slot: usize) -> bool {
        let flow = &self.flows[slot];
        flow.icrc_valid > 0 || (flow.icrc_invalid == 0 && self.icrc.0 > self.icrc.1)
    }

    /// The entry of a packet's flow.
    fn entry<L: Listener>(&mut self, record: &Record, listener: &mut L) -> usize {
        // Packets of one message come one after the other.
        if let Some(flow) = self.flows.get_mut(self.last)
            && flow.key == record.flow
            && !flow.ended
        {
            flow.state.used = true;
            return self.last;
        }
        let place = record.flow.scatter() as usize % CACHE;
        let cached = self.cache.0[place] as usize;
        if let Some(flow) = self.flows.get_mut(cached)
            && flow.key == record.flow
            && !flow.ended
        {
            flow.state.used = true;
            self.last = cached;
            return cached;
        }
        let slot = match self.by_key.get(&record.flow) {
            Some(slot) => *slot as usize,
            None => self.insert(record, listener),
        };
        self.flows[slot].state.used = true;
        self.cache.0[place] = slot as u32;
        self.last = slot;
        slot
    }

    fn insert<L: Listener>(&mut self, record: &Record, listener: &mut L) -> usize {
        let slot = if self.flows.len() < self.limits.flows.max(2) {
            let id = FlowId {
                generation: 0,
                slot: self.flows.len() as u32,
            };
            self.flows.push(Flow::new(id, record));
            id.slot as usize
        } else {
            let slot = self.make_room(listener);
            let id = FlowId {
                generation: self.flows[slot].id.generation + 1,
                slot: slot as u32,
            };
            self.flows[slot] = Flow::new(id, record);
            slot
        };
        self.flows[slot].state.used = true;
        if self.order.len() >= self.flows.len() * 2 + 64 {
            let flows = &self.flows;
            self.order.retain(|id| flows[id.slot as usize].id == *id);
        }
        self.order.push(self.flows[slot].id);
        self.by_key.insert(record.flow, slot as u32);
        if let Some(expected) = self.expected.get(&record.flow).copied() {
            self.flows[slot].connection = expected.connection;
            let managed = expected.connection.and_then(|id| self.manager.get(id));
            self.flows[slot].mtu = managed.and_then(|managed| managed.path_mtu);
            if let Some(peer) = self.by_key.get(&expected.peer) {
                self.pair(slot, *peer as usize, expected.how);
            }
        }
        slot
    }

    /// Forgets a flow that was quiet for long; returns its place.
    fn make_room<L: Listener>(&mut self, listener: &mut L) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.flows.len();
            let state = &mut self.flows[self.hand].state;
            if !std::mem::take(&mut state.used) {
                break;
            }
        }
        let slot = self.hand;
        self.end(slot, 0, listener);
        let flow = &self.flows[slot];
        self.evicted.flows += 1;
        self.evicted.packets += flow.packets;
        if !flow.ended {
            self.by_key.remove(&flow.key);
        }
        if let Some(peer) = flow.peer {
            let peer = &mut self.flows[peer.slot as usize];
            peer.peer = None;
            peer.how = How::Unpaired;
        }
        slot
    }

    /// Begins a new entry for a flow whose queue pair number is used again.
    fn renew<L: Listener>(&mut self, slot: usize, record: &Record, listener: &mut L) -> usize {
        self.retire(slot, listener);
        if let Some(peer) = self.flows[slot].peer {
            // The other direction begins anew as well.
            let peer = peer.slot as usize;
            if peer != slot {
                self.retire(peer, listener);
            }
        }
        let key = self.flows[slot].key;
        if let Some(expected) = self.expected.remove(&key) {
            self.expected.remove(&expected.peer);
        }
        self.insert(record, listener)
    }

    pub(super) fn retire<L: Listener>(&mut self, slot: usize, listener: &mut L) {
        self.end(slot, 0, listener);
        let flow = &mut self.flows[slot];
        flow.ended = true;
        if self.by_key.get(&flow.key) == Some(&(slot as u32)) {
            self.by_key.remove(&flow.key);
        }
    }

    /// Ends messages of a flow until at most `keep` are under way.
    fn end<L: Listener>(&mut self, slot: usize, keep: usize, listener: &mut L) {
        let flow = &mut self.flows[slot];
        if keep == 0
            && let Some(mut tail) = flow.state.tail.take()
        {
            let missing = tail.untold();
            if missing > 0 {
                flow.emit(listener, &*tail.answer, EventKind::CaptureLoss { missing });
            }
            tail.told = true;
            flow.state.tail = Some(tail);
        }
        let before = flow.state.messages.len();
        while let Some(open) = flow.state.messages.settle(keep) {
            flow.ended(&open, open.covered_ns(), listener);
        }
        self.open -= before - flow.state.messages.len();
    }

    /// Notes silence while the flow's requests wait.
    fn watch<L: Listener>(&mut self, slot: usize, record: &Record, listener: &mut L) {
        let flow = &mut self.flows[slot];
        let silence_ns = flow.state.active(record.ts_ns);
        if silence_ns < self.limits.stall_ns {
            return;
        }
        let outstanding = flow.state.messages.waiting();
        if outstanding > 0 {
            let kind = EventKind::Stall {
                silence_ns,
                outstanding,
            };
            flow.emit(listener, record, kind);
        }
    }

    fn request<L: Listener>(&mut self, slot: usize, record: &Record, listener: &mut L) {
        self.watch(slot, record, listener);
        let peer = self.peer(slot);
        let answers = peer.is_some_and(|peer| {
            let peer = &self.flows[peer];
            peer.acknowledgements + peer.responses.packets > 0
        });
        let flow = &mut self.flows[slot];
        let before = flow.state.messages.len();
        let earlier = || self.recent.earlier(slot as u32, record);
        flow.request(record, earlier, answers, &self.limits, listener);
        self.recent.remember(slot as u32, record);
        let after = flow.state.messages.len();
        self.open = self.open + after - before;
        if let Some(id) = flow.connection {
            self.manager.carries_data(id);
        }
        let info = record.opcode.info();
        let reliable = info.transport != Transport::Uc;
        if let Some(peer) = peer
            && self.flows[peer].mtu.is_none()
        {
            self.flows[peer].mtu = self.flows[slot].mtu;
        }
        let state = &mut self.flows[slot].state;
        if (peer.is_none() || state.uncertain)
            && reliable
            // What a message begins with may be refused before its end.
            && (record.ack_req || info.position.begins())
        {
            let FlowKey { src, dst, .. } = record.flow;
            let advertised = &mut state.advertised;
            let more = self
                .waiting
                .advertise(src, dst, record.psn, slot as u32, advertised);
            // Nothing spoke against the peer for long.
            state.uncertain &= more;
        }
        let keep = if self.open > MAX_OPEN {
            OPEN[2]
        } else if self.flows[slot].state.messages.unanswered as usize >= UNANSWERED {
            OPEN[1]
        } else {
            OPEN[0]
        };
        if after > keep || !reliable {
            self.end(slot, keep, listener);
        }
    }

    fn answer<L: Listener>(&mut self, slot: usize, record: &Record, listener: &mut L) {
        let earlier = self.recent.earlier(slot as u32, record);
        self.recent.remember(slot as u32, record);
        let response = record.opcode.info().verb == Verb::ReadResponse;
        if !response && earlier.is_some_and(|earlier| earlier.is_copy(&self.limits)) {
            // It says nothing that the original did not say.
            let flow = &mut self.flows[slot];
            flow.acknowledgements += 1;
            flow.answer_copies += 1;
            flow.emit(listener, record, EventKind::MirrorDuplicate);
            return;
        }
        let requester = self.requester(slot, record);
        if let Some(requester) = requester {
            self.watch(requester, record, listener);
        }
        if response {
            self.read_response(slot, requester, record, earlier, listener);
        } else {
            let flow = &mut self.flows[slot];
            flow.count_answer(record);
            if flow.requests.packets + flow.responses.packets == 0 {
                flow.last_psn = record.psn;
            }
            if let Some(requester) = requester {
                let flow = &mut self.flows[requester];
                let before = flow.state.messages.len();
                flow.answered(record, earlier, &self.limits, listener);
                self.open = self.open + flow.state.messages.len() - before;
            }
            if let Some(aeth) = record.aeth {
                use crate::wire::aeth::AethKind;
                let request_flow = requester.map(|slot| self.flows[slot].id);
                let kind = match aeth.kind() {
                    AethKind::Nak(code) => EventKind::Nak { code, request_flow },
                    AethKind::Rnr(timer) => EventKind::Rnr {
                        timer,
                        request_flow,
                    },
                    AethKind::Ack(_) | AethKind::Reserved(_) => return,
                };
                self.flows[slot].emit(listener, record, kind);
            }
        }
    }

    fn read_response<L: Listener>(
        &mut self,
        slot: usize,
        requester: Option<usize>,
        record: &Record,
        earlier: Option<Earlier>,
        listener: &mut L,
    ) {
        self.flows[slot].learn_mtu(record, listener);
        if let Some(requester) = requester
            && self.flows[requester].mtu.is_none()
        {
            self.flows[requester].mtu = self.flows[slot].mtu;
            self.flows[requester].size_read();
        }
        let asked = requester.map(|requester| self.flows[requester].asks(record));
        let last = self.flows[slot].next_response();
        let due = match (requester, asked) {
            (Some(requester), Some(asked)) => self.flows[requester].due(last, asked),
            _ => Vec::new(),
        };
        let sight =
            self.flows[slot].read_response(record, asked, due, earlier, &self.limits, listener);
        if let (Some(requester), Some(asked)) = (requester, asked) {
            let flow = &mut self.flows[requester];
            let before = flow.state.messages.len();
            flow.read_answered(record, asked, sight, listener);
            self.open = self.open + flow.state.messages.len() - before;
        }
    }

    /// Ends the messages that still wait; packets may follow all the same.
    pub fn finish<L: Listener>(&mut self, listener: &mut L) {
        for slot in 0..self.flows.len() {
            self.end(slot, 0, listener);
        }
    }

    /// The flows that are kept, in the order in which they appeared.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.order.iter().filter_map(|id| self.flow(*id))
    }

    /// One flow, unless it was forgotten.
    #[must_use]
    pub fn flow(&self, id: FlowId) -> Option<&Flow> {
        let flow = self.flows.get(id.slot as usize)?;
        (flow.id == id).then_some(flow)
    }

    /// Connections by the messages of the communication manager.
    pub(super) fn managed(&self) -> &[Managed] {
        self.manager.list()
    }

    /// What was forgotten to make room for other flows.
    #[must_use]
    pub const fn evicted(&self) -> Evicted {
        self.evicted
    }

    /// Connections whose messages were seen, beyond the number that is kept.
    #[must_use]
    pub const fn connections_beyond(&self) -> u64 {
        self.manager.beyond
    }
}
