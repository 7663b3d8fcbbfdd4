//! Messages of one flow that have not ended yet.

use std::collections::VecDeque;

use super::{
    Flow, Message, Operation, Record, Remote,
    flow::Size,
    record::Facts,
    sequence::{Pos, psn},
};
use crate::wire::{
    aeth::AethKind,
    opcode::{Opcode, Transport, Verb},
};

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// An acknowledgement of its last packet, or of a later one.
    Ack,
    /// READ responses: so many have come.
    Responses(u32),
    /// The answer of an atomic.
    Atomic,
    /// Nothing: unreliable transports.
    None,
}

/// A message under way.
#[derive(Debug, Clone)]
pub(super) struct Open {
    /// Opcode of the packet that shows most of the operation.
    opcode: Opcode,
    /// What the operation does, whichever packet shows it.
    verb: Verb,
    pub first: Pos,
    pub last: Pos,
    /// Positions seen, of those from `first` to `last`.
    seen: u32,
    payload: u64,
    remote: Option<Remote>,
    start_ns: i64,
    end_ns: i64,
    retransmits: u32,
    /// Inputs and frames of its first packet and of the latest one.
    input: u16,
    last_input: u16,
    first_frame: u64,
    last_frame: u64,
    /// Its first packet was seen.
    head: bool,
    /// Its last packet was seen.
    tail: bool,
    /// Another message began where this one should have gone on.
    cut: bool,
    /// Its last packet asks for an acknowledgement.
    ack_req: bool,
    /// Time of the first acknowledgement that covers more than was seen of it:
    /// its own, where no more of it comes.
    covered_ns: Option<i64>,
    answer: Answer,
    refused: Option<AethKind>,
}

impl Open {
    /// A message that begins, as far as seen, with this packet.
    #[inline]
    pub fn new(packet: &impl Facts, pos: Pos, span: u32) -> Self {
        let info = packet.opcode().info();
        let (input, frame) = packet.origin();
        let answer = match (info.transport, info.verb) {
            (Transport::Uc | Transport::Ud, _) => Answer::None,
            (_, Verb::Read) => Answer::Responses(0),
            (_, Verb::CompareSwap | Verb::FetchAdd | Verb::Flush | Verb::AtomicWrite) => {
                Answer::Atomic
            }
            _ => Answer::Ack,
        };
        Self {
            opcode: packet.opcode(),
            verb: info.verb,
            first: pos,
            last: pos + Pos::from(span) - 1,
            // A READ request is one packet, whatever it takes of PSNs.
            seen: span,
            payload: packet.payload_len().into(),
            remote: packet.remote(),
            start_ns: packet.ts_ns(),
            end_ns: packet.ts_ns(),
            retransmits: 0,
            input,
            last_input: input,
            first_frame: frame,
            last_frame: frame,
            head: info.position.begins(),
            tail: info.position.ends(),
            cut: false,
            ack_req: packet.ack_req(),
            covered_ns: None,
            answer,
            refused: None,
        }
    }

    const fn verb(&self) -> Verb {
        self.verb
    }

    fn holds(&self, pos: Pos) -> bool {
        self.first <= pos && pos <= self.last
    }

    /// Whether more packets of it may come.
    const fn grows(&self) -> bool {
        !self.tail && !self.cut
    }

    /// Takes note of its latest packet, or of an answer to it.
    #[inline]
    fn latest(&mut self, packet: &impl Facts) {
        (self.last_input, self.last_frame) = packet.origin();
    }

    /// Takes in a packet of it that was not seen before.
    #[inline]
    fn take(&mut self, packet: &impl Facts, pos: Pos) {
        let position = packet.opcode().info().position;
        self.seen += 1;
        self.payload += u64::from(packet.payload_len());
        self.end_ns = packet.ts_ns();
        self.latest(packet);
        if pos < self.first {
            self.first = pos;
            self.start_ns = self.start_ns.min(packet.ts_ns());
        }
        if position.begins() {
            // One that goes on where a WRITE was left begins with a First, too.
            self.head |= pos == self.first;
            self.remote = self.remote.or(packet.remote());
        }
        if pos >= self.last {
            self.last = pos;
            self.covered_ns = None;
            if position.ends() {
                self.tail = true;
                self.opcode = packet.opcode();
                self.verb = packet.opcode().info().verb;
                self.ack_req = packet.ack_req();
            }
        }
    }

    /// Joins the rest of the same message, which begins where this one stops,
    /// and the latest packet of which came before that of this one.
    fn join(&mut self, rest: &Self) {
        self.last = rest.last;
        self.seen += rest.seen;
        self.payload += rest.payload;
        self.end_ns = self.end_ns.max(rest.end_ns);
        self.start_ns = self.start_ns.min(rest.start_ns);
        self.retransmits += rest.retransmits;
        self.tail = rest.tail;
        self.cut = rest.cut;
        if rest.tail {
            self.opcode = rest.opcode;
            self.ack_req = rest.ack_req;
        }
    }

    /// Bytes: those that the request names, unless its packets carry others.
    pub fn bytes(&self) -> u64 {
        let named = self.remote.filter(|_| !self.malformed());
        named.map_or(self.payload, |remote| remote.len.into())
    }

    /// Time of an acknowledgement that came before its last packet was seen,
    /// where that never was.
    pub const fn covered_ns(&self) -> Option<i64> {
        self.covered_ns
    }

    /// As [`Message::latency_ns`].
    pub fn latency_ns(&self, acked_ns: Option<i64>) -> Option<i64> {
        let ns = acked_ns?.saturating_sub(self.start_ns);
        (ns >= 0).then_some(ns)
    }

    /// Whether every request packet of it was seen.
    const fn whole(&self) -> bool {
        let span = (self.last - self.first + 1) as u32;
        self.head && self.tail && self.seen >= span
    }

    /// Whether its packets carry other bytes than its first one names.
    fn malformed(&self) -> bool {
        let named = self.remote.map(|remote| u64::from(remote.len));
        self.verb() == Verb::Write && self.whole() && named.is_some_and(|n| n != self.payload)
    }

    /// Whether every packet of it was seen, answers included.
    pub fn complete(&self, answered: bool) -> bool {
        let span = (self.last - self.first + 1) as u32;
        let answer = match self.answer {
            Answer::Responses(seen) => seen >= span,
            Answer::Atomic => answered,
            Answer::Ack | Answer::None => true,
        };
        self.whole() && answer && !self.malformed()
    }

    /// The message as it stands at its end.
    pub fn message(&self, flow: &Flow, acked_ns: Option<i64>) -> Message {
        Message {
            flow: flow.id,
            key: flow.key,
            src_qp: flow.src_qp,
            operation: Operation::of(self.opcode),
            first_psn: psn(self.first),
            last_psn: psn(self.last),
            bytes: self.bytes(),
            payload: self.payload,
            remote: self.remote,
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            acked_ns,
            retransmits: self.retransmits,
            complete: self.complete(acked_ns.is_some()),
            malformed: self.malformed(),
            refused: self.refused.filter(|_| acked_ns.is_none()),
            input: self.input,
            first_frame: self.first_frame,
            last_input: self.last_input,
            last_frame: self.last_frame,
        }
    }
}

/// How messages under way stand to an acknowledgement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Acked {
    /// Messages whose own acknowledgement this is.
    pub own: u32,
    /// Messages that asked for one of their own and are covered by this one.
    pub covered: u32,
}

/// What acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// An ACK.
    Ack,
    /// A NAK or RNR NAK, of what is before it.
    Nak,
    /// A response to a later request.
    Response,
}

/// A READ response's place in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    /// First position of the READ.
    pub first: Pos,
    /// Last position of the READ.
    pub last: Pos,
}

/// The messages of a flow that are under way, in the order of their PSNs.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenMessages {
    list: VecDeque<Open>,
    /// Messages given up for want of an answer since the last answer.
    pub unanswered: u32,
}

/// Whether a packet stood where the order of opcodes allows it.
pub(super) type InPlace = bool;

impl OpenMessages {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Messages that are under way or wait for an answer that they asked for.
    pub fn waiting(&self) -> u32 {
        let waits = |open: &&Open| match open.answer {
            Answer::Ack => (open.ack_req || open.grows()) && open.covered_ns.is_none(),
            Answer::Responses(_) | Answer::Atomic => true,
            Answer::None => false,
        };
        self.list.iter().filter(waits).count() as u32
    }

    /// Takes in a packet at or ahead of the expected PSN. `gap` is the number
    /// of positions skipped before it; `mtu` the path MTU, where known.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    pub fn append(
        &mut self,
        packet: &impl Facts,
        pos: Pos,
        span: u32,
        gap: u32,
        mtu: Option<u16>,
    ) -> InPlace {
        let info = packet.opcode().info();
        let back = self.list.back_mut().filter(|back| back.grows());
        if !info.position.begins() {
            if let Some(back) = back {
                let same = back.verb() == info.verb && (gap <= 1 || Self::reaches(back, pos, mtu));
                if same {
                    back.take(packet, pos);
                    return true;
                }
                back.cut = true;
                self.push(Open::new(packet, pos, span));
                return gap > 0;
            }
            let begins = self.list.is_empty();
            self.push(Open::new(packet, pos, span));
            return gap > 0 || begins;
        }
        if let Some(back) = back {
            // A requester that goes back into the middle of a WRITE may begin
            // it anew from there.
            if Self::resumes(back, packet, pos) {
                back.take(packet, pos);
                return true;
            }
            back.cut = true;
            self.push(Open::new(packet, pos, span));
            return gap > 0;
        }
        self.push(Open::new(packet, pos, span));
        true
    }

    /// Takes in the packets that follow the newest one in its burst: the last
    /// one of them and what they add up to.
    #[inline]
    pub fn extend(&mut self, last: &impl Facts, more: Size) {
        if let Some(back) = self.list.back_mut() {
            let others = more.without(last);
            back.seen += others.packets as u32;
            back.payload += others.payload;
            back.last += others.packets as Pos;
            let pos = back.last + 1;
            back.take(last, pos);
        }
    }

    #[inline]
    fn push(&mut self, open: Open) {
        if self.list.capacity() == 0 {
            // Of a million flows most have one message at a time.
            self.list.reserve_exact(1);
        }
        self.list.push_back(open);
    }

    /// Whether a WRITE whose length is known goes as far as `pos`.
    fn reaches(open: &Open, pos: Pos, mtu: Option<u16>) -> bool {
        match (open.remote, mtu) {
            (Some(remote), Some(mtu)) if open.head => {
                pos < open.first + Pos::from(remote.len.div_ceil(mtu.into()))
            }
            _ => false,
        }
    }

    /// Whether a First or Only goes on where a WRITE was left.
    fn resumes(open: &Open, packet: &impl Facts, pos: Pos) -> bool {
        match (open.remote, packet.remote()) {
            (Some(whole), Some(rest)) => {
                open.verb() == Verb::Write
                    && packet.opcode().info().verb == Verb::Write
                    && open.last + 1 == pos
                    && whole.rkey == rest.rkey
                    && whole.va.get().wrapping_add(open.payload) == rest.va.get()
                    && u64::from(whole.len) == open.payload + u64::from(rest.len)
            }
            _ => false,
        }
    }

    /// Takes in a packet behind the expected PSN that was not seen before.
    #[allow(clippy::single_match_else, reason = "two ways of equal weight")]
    pub fn insert(&mut self, record: &Record, pos: Pos, span: u32) {
        let at = self.list.partition_point(|open| open.last < pos);
        if let Some(open) = self.list.get_mut(at).filter(|open| open.holds(pos)) {
            open.take(record, pos);
            return;
        }
        let info = record.opcode.info();
        let before = at.checked_sub(1);
        let joins = !info.position.begins()
            && before.is_some_and(|before| {
                let open = &self.list[before];
                !open.tail && open.last + 1 == pos && open.verb() == info.verb
            });
        let current = match before.filter(|_| joins) {
            Some(before) => {
                let open = &mut self.list[before];
                open.cut = false;
                open.take(record, pos);
                before
            }
            None => {
                let mut open = Open::new(record, pos, span);
                // Others that were captured before come after it.
                open.cut = self.list.len() > at && !open.tail;
                self.list.insert(at, open);
                at
            }
        };
        self.join_next(current);
    }

    /// Joins a message with its rest, where that follows at once.
    fn join_next(&mut self, at: usize) {
        let Some(rest) = self.list.get(at + 1) else {
            self.list[at].cut = false;
            return;
        };
        let open = &self.list[at];
        let fits =
            !open.tail && !rest.head && open.last + 1 == rest.first && open.verb() == rest.verb();
        if fits && let Some(rest) = self.list.remove(at + 1) {
            self.list[at].join(&rest);
        } else if !self.list[at].tail {
            self.list[at].cut = true;
        }
    }

    /// Notes that a packet was sent again.
    pub fn again(&mut self, record: &Record, pos: Pos) {
        if let Some(open) = self.find(pos) {
            open.retransmits += 1;
            open.latest(record);
            if pos == open.last || open.verb() == Verb::Read {
                open.end_ns = record.ts_ns;
            }
        }
    }

    fn find(&mut self, pos: Pos) -> Option<&mut Open> {
        let at = self.list.partition_point(|open| open.last < pos);
        self.list.get_mut(at).filter(|open| open.holds(pos))
    }

    /// What a NAK says about the message at `pos`.
    pub fn refuse(&mut self, pos: Pos, kind: AethKind) {
        if let Some(open) = self.find(pos) {
            open.refused = Some(kind);
        }
    }

    /// Says how many positions the READ at `first` takes.
    pub fn stretch(&mut self, first: Pos, span: u32) {
        if let Some(open) = self.find(first).filter(|open| open.verb() == Verb::Read) {
            open.last = open.first + Pos::from(span) - 1;
            open.seen = span;
        }
    }

    /// Takes out the next message, from place `at` on, that an acknowledgement
    /// of `pos` covers; `None` when there are no more.
    pub fn next_acked(
        &mut self,
        at: &mut usize,
        pos: Pos,
        packet: &impl Facts,
        by: By,
        acked: &mut Acked,
    ) -> Option<Open> {
        loop {
            let over = self.list.get(*at + 1).is_some_and(|next| next.first <= pos);
            let Some(open) = self.list.get_mut(*at).filter(|open| open.first <= pos) else {
                self.unanswered = 0;
                return None;
            };
            let waits = match open.answer {
                Answer::Ack if open.tail || over => open.last > pos,
                // The end of one that was cut may still come, until what
                // follows it is acknowledged.
                Answer::Ack => {
                    if open.last < pos {
                        open.covered_ns.get_or_insert(packet.ts_ns());
                    }
                    true
                }
                // Answers of their own are to come, again if need be.
                Answer::Responses(_) | Answer::Atomic => true,
                Answer::None => false,
            };
            if waits {
                *at += 1;
                continue;
            }
            match by {
                By::Ack if open.ack_req && open.last == pos => acked.own += 1,
                By::Ack | By::Nak if open.ack_req => acked.covered += 1,
                _ => {}
            }
            let mut open = match *at {
                0 => self.list.pop_front(),
                at => self.list.remove(at),
            }?;
            if open.covered_ns.is_none() {
                open.latest(packet);
            }
            return Some(open);
        }
    }

    /// Whether `pos` is the last packet of a message that asks for an
    /// acknowledgement.
    pub fn awaits(&self, pos: Pos) -> bool {
        let at = self.list.partition_point(|open| open.last < pos);
        let open = self.list.get(at);
        open.is_some_and(|open| open.last == pos && open.ack_req && open.answer == Answer::Ack)
    }

    /// The READ or atomic that a response at `pos` belongs to.
    pub fn read_at(&self, pos: Pos) -> Option<Read> {
        let at = self.list.partition_point(|open| open.last < pos);
        let open = self.list.get(at)?;
        let reads = matches!(open.answer, Answer::Responses(_) | Answer::Atomic);
        (reads && open.holds(pos)).then_some(Read {
            first: open.first,
            last: open.last,
        })
    }

    /// Positions between `from` and `to` that READ responses are due at.
    pub fn reads_between(&self, from: Pos, to: Pos) -> impl Iterator<Item = (Pos, Pos)> {
        let start = self.list.partition_point(|open| open.last < from);
        self.list
            .iter()
            .skip(start)
            .take_while(move |open| open.first < to)
            .filter(|open| matches!(open.answer, Answer::Responses(_)))
            .map(move |open| (open.first.max(from), (open.last + 1).min(to)))
    }

    /// Takes in an answer that was not seen before: a READ response or the
    /// answer of an atomic. Takes out the message with its last one.
    pub fn answer(&mut self, pos: Pos, record: &Record, again: bool) -> Option<Open> {
        self.unanswered = 0;
        let at = self.list.partition_point(|open| open.last < pos);
        let open = self.list.get_mut(at).filter(|open| open.holds(pos))?;
        open.latest(record);
        open.retransmits += u32::from(again);
        let done = match &mut open.answer {
            Answer::Responses(seen) => {
                *seen += 1;
                open.payload += u64::from(record.payload_len);
                open.end_ns = record.ts_ns;
                i64::from(*seen) > open.last - open.first
            }
            Answer::Atomic => true,
            Answer::Ack | Answer::None => false,
        };
        if done { self.list.remove(at) } else { None }
    }

    /// Takes out the next one that no answer will come for: messages of
    /// unreliable transports that are over, and the oldest ones beyond `limit`.
    pub fn settle(&mut self, limit: usize) -> Option<Open> {
        let front = self.list.front()?;
        let over = front.answer == Answer::None && !front.grows();
        if !over && self.list.len() <= limit {
            return None;
        }
        self.unanswered += u32::from(front.answer != Answer::None);
        self.list.pop_front()
    }

    /// Takes out the message at `pos`, which was refused.
    pub fn end_refused(&mut self, pos: Pos, record: &Record) -> Option<Open> {
        let at = self.list.partition_point(|open| open.last < pos);
        self.list.get(at).filter(|open| open.holds(pos))?;
        let mut open = self.list.remove(at)?;
        open.latest(record);
        Some(open)
    }
}
