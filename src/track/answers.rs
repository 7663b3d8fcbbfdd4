//! Answers: what acknowledgements and READ responses say about requests.

use super::{
    Cause, EventKind, Flow, Limits, Listener, Record,
    flow::NAK_SLOTS,
    open::{Acked, By},
    record::Facts,
    sequence::{Place, Pos},
    state::{Earlier, Likeness, Tail},
};
use crate::wire::{
    aeth::{AethKind, NakCode},
    opcode::Verb,
};

/// How a READ response stands to the requests it answers, in positions of the
/// requester's flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// Position of the response among the requests.
    pos: Pos,
    /// The requester asked for it again.
    again: bool,
}

/// Whether a READ response was seen before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// It was not.
    pub new: bool,
    /// It was sent again.
    pub again: bool,
}

impl Flow {
    /// Counts an acknowledgement in the flow that carries it.
    pub(super) fn count_answer(&mut self, record: &Record) {
        self.acknowledgements += 1;
        match record.aeth.map(super::super::wire::aeth::Aeth::kind) {
            Some(AethKind::Ack(_)) => self.acks += 1,
            Some(AethKind::Rnr(_)) => self.rnr_naks += 1,
            Some(AethKind::Nak(NakCode(code))) => {
                self.naks[usize::from(code).min(NAK_SLOTS - 1)] += 1;
            }
            // A reserved syndrome, or one that was cut off.
            Some(AethKind::Reserved(_)) | None => {}
        }
    }

    /// Takes in an answer to this flow's requests: an ACK, NAK, RNR NAK or
    /// the answer of an atomic.
    pub(super) fn answered<L: Listener>(
        &mut self,
        record: &Record,
        earlier: Option<Earlier>,
        limits: &Limits,
        listener: &mut L,
    ) {
        let Some(kind) = record.aeth.map(super::super::wire::aeth::Aeth::kind) else {
            return;
        };
        let pos = self.state.requests.position(record.psn);
        if record.opcode.info().verb == Verb::AtomicAcknowledge {
            let again = self.asked_again(pos);
            if let Some(open) = self.state.messages.answer(pos, record, again) {
                self.ended(&open, Some(record.ts_ns), listener);
            }
            self.cover(pos + 1, record, By::Response, listener);
            return;
        }
        match kind {
            AethKind::Ack(_) => {
                self.answer_to_copy(pos, record, earlier, limits, listener);
                self.cover(pos + 1, record, By::Ack, listener);
            }
            // Both acknowledge what is before the packet they are about.
            AethKind::Nak(NakCode::SEQUENCE) => {
                self.cover(pos, record, By::Nak, listener);
                self.state.sequence_nak(pos, record.ts_ns);
            }
            AethKind::Rnr(_) => {
                self.cover(pos, record, By::Nak, listener);
                self.state.receiver_not_ready(pos, record.ts_ns);
                self.state.messages.refuse(pos, kind);
            }
            AethKind::Nak(_) => {
                self.cover(pos, record, By::Nak, listener);
                self.state.messages.refuse(pos, kind);
                if let Some(open) = self.state.messages.end_refused(pos, record) {
                    self.ended(&open, None, listener);
                }
            }
            AethKind::Reserved(_) => {}
        }
    }

    /// Whether an ACK shows that the responder got a copy too: it says again
    /// what another one said, and is no copy of that.
    fn answer_to_copy<L: Listener>(
        &mut self,
        pos: Pos,
        record: &Record,
        earlier: Option<Earlier>,
        limits: &Limits,
        listener: &mut L,
    ) {
        if self.state.copies == 0 {
            return;
        }
        let copied = earlier.is_some_and(|earlier| {
            earlier.age_ns <= limits.copy_window_ns && earlier.likeness != Likeness::Different
        });
        let stale = self.state.acked.is_some_and(|acked| pos < acked);
        // The first one answers the original, if that asked.
        let asked = self.state.asked_ack.contains(record.psn) && earlier.is_none();
        let of_copy = self.state.copied.contains(record.psn) && !asked;
        if of_copy && !copied && (stale || !self.state.messages.awaits(pos)) {
            self.state.copies -= 1;
            self.requests.mirror_duplicates -= 1;
            self.requests.duplicates += 1;
            self.emit(listener, record, EventKind::DuplicateAnswered);
        }
    }

    /// Takes note that everything before `end` is acknowledged.
    fn cover<L: Listener>(&mut self, end: Pos, record: &Record, by: By, listener: &mut L) {
        if !self.state.requests.started() {
            return;
        }
        let lost = self.state.requests.acknowledge(end);
        self.beyond(end, record);
        if lost > 0 {
            self.count_missing();
            let kind = EventKind::CaptureLoss { missing: lost };
            self.emit(listener, record, kind);
        }
        self.acknowledge(end, record, by, listener);
    }

    /// Ends the messages that an acknowledgement of everything before `end`
    /// covers.
    #[inline]
    pub(super) fn acknowledge<L: Listener>(
        &mut self,
        end: Pos,
        packet: &impl Facts,
        by: By,
        listener: &mut L,
    ) {
        let mut acked = Acked::default();
        let mut at = 0;
        while let Some(open) =
            self.state
                .messages
                .next_acked(&mut at, end - 1, packet, by, &mut acked)
        {
            let acked_ns = open.covered_ns().unwrap_or(packet.ts_ns());
            self.ended(&open, Some(acked_ns), listener);
        }
        self.acks_own += u64::from(acked.own);
        self.acks_skipped += u64::from(acked.covered);
        if acked.covered > 0 {
            let count = acked.covered;
            self.emit(listener, packet, EventKind::AckSkipped { count });
        }
        self.state.acknowledged(end);
    }

    /// An acknowledgement of requests further on than any that was seen: they
    /// were lost by the capture, or are yet to come where captures of several
    /// places were merged.
    fn beyond(&mut self, end: Pos, record: &Record) {
        let next = self.state.requests.next();
        if end <= next {
            return;
        }
        if let Some((at, len)) = self.state.unsized_read
            && end <= at + Pos::from(len.div_ceil(256))
        {
            self.state.requests.stretch(end);
            return;
        }
        let missing = (end - next) as u32;
        self.requests.skipped += u64::from(missing);
        // Nothing at `end` itself was seen, so the sequence stops before it.
        self.state.requests.skip_to(end, 0, [(next, end)]);
        self.state.requests.acknowledge(end);
        self.count_missing();
        let from = self.state.tail.take().map_or(next, |tail| tail.from);
        self.state.tail = Some(Tail {
            from,
            to: end,
            answer: Box::new(record.clone()),
            told: false,
        });
    }

    fn asked_again(&self, pos: Pos) -> bool {
        let again = self.state.read_again;
        again.is_some_and(|(from, to)| from <= pos && pos < to)
    }

    /// What the requester's flow says about a READ response.
    pub(super) fn asks(&self, record: &Record) -> Asked {
        let pos = self.state.requests.position(record.psn);
        Asked {
            pos,
            again: self.asked_again(pos),
        }
    }

    /// Takes in a READ response in the requester's flow, where `sight` says
    /// whether it was seen before.
    pub(super) fn read_answered<L: Listener>(
        &mut self,
        record: &Record,
        asked: Asked,
        sight: Sight,
        listener: &mut L,
    ) {
        if let Some(read) = self.state.messages.read_at(asked.pos) {
            // Everything before a READ that is answered was carried out.
            self.cover(read.first, record, By::Response, listener);
        }
        if sight.new {
            let messages = &mut self.state.messages;
            if let Some(open) = messages.answer(asked.pos, record, sight.again) {
                self.ended(&open, Some(record.ts_ns), listener);
            }
        } else if sight.again {
            self.state.messages.again(record, asked.pos);
        }
    }

    /// Takes in a READ response in the flow that carries it. `due` gives the positions between two of the
    /// requester's that responses are due at; without a requester's flow only
    /// the inside of a message is known to hold no other PSNs.
    pub(super) fn read_response<L: Listener>(
        &mut self,
        record: &Record,
        asked: Option<Asked>,
        due: Vec<(Pos, Pos)>,
        earlier: Option<Earlier>,
        limits: &Limits,
        listener: &mut L,
    ) -> Sight {
        const FIRST_TIME: Sight = Sight {
            new: true,
            again: false,
        };
        let position = record.opcode.info().position;
        self.responses.packets += 1;
        let pos = self.state.responses.position(record.psn);
        let place = self.state.responses.place(pos);
        let again = asked.is_some_and(|asked| asked.again);
        let copy = earlier.is_some_and(|earlier| earlier.is_copy(limits));
        let event = match place {
            Place::Expected | Place::Ahead(_) => {
                self.new_response(record, pos, asked, due, listener);
                self.state.in_response = !position.ends();
                self.goodput_bytes += u64::from(record.payload_len);
                return FIRST_TIME;
            }
            Place::Before if !again && !copy => {
                // Answers to READs that came before the capture's first.
                self.responses.new += 1;
                self.goodput_bytes += u64::from(record.payload_len);
                return FIRST_TIME;
            }
            _ => {
                let hole = self.state.responses.fill(pos, 1);
                let new = hole.is_some();
                if new {
                    self.goodput_bytes += u64::from(record.payload_len);
                    self.count_missing_responses();
                }
                let sent_again = EventKind::Retransmitted {
                    cause: if again {
                        Cause::ReadAgain
                    } else {
                        Cause::Unknown
                    },
                    begins: false,
                    fills: new,
                    responses: true,
                };
                match (new, again, copy) {
                    (_, true, false) | (true, true, true) => sent_again,
                    (true, false, _) => EventKind::Reordered { responses: true },
                    (false, _, true) => EventKind::MirrorDuplicate,
                    // Whether it was asked for again was not captured.
                    (false, false, false) if asked.is_none() => sent_again,
                    (false, false, false) => EventKind::Duplicate,
                }
            }
        };
        let counts = &mut self.responses;
        let sight = match event {
            EventKind::Retransmitted { fills, .. } => {
                counts.retransmitted += 1;
                counts.refilled += u64::from(fills);
                Sight {
                    new: fills,
                    again: true,
                }
            }
            EventKind::Reordered { .. } => {
                counts.reordered += 1;
                FIRST_TIME
            }
            other => {
                match other {
                    EventKind::MirrorDuplicate => counts.mirror_duplicates += 1,
                    _ => counts.duplicates += 1,
                }
                Sight {
                    new: false,
                    again: false,
                }
            }
        };
        self.emit(listener, record, event);
        sight
    }

    fn new_response<L: Listener>(
        &mut self,
        record: &Record,
        pos: Pos,
        asked: Option<Asked>,
        due: Vec<(Pos, Pos)>,
        listener: &mut L,
    ) {
        self.responses.new += 1;
        let sequence = &mut self.state.responses;
        let next = sequence.next();
        let holes = match asked {
            _ if !sequence.started() => Vec::new(),
            // From the requester's positions to this flow's.
            Some(asked) => {
                let shift = pos - asked.pos;
                due.into_iter()
                    .map(|(from, to)| (from + shift, to + shift))
                    .collect()
            }
            None if self.state.in_response && pos > next => vec![(next, pos)],
            None => Vec::new(),
        };
        let missing: Pos = holes.iter().map(|(from, to)| to - from).sum();
        sequence.skip_to(pos, 1, holes);
        if missing > 0 {
            self.responses.gaps += 1;
            self.responses.skipped += missing as u64;
            self.count_missing_responses();
            let kind = EventKind::Gap {
                missing: missing as u32,
                responses: true,
            };
            self.emit(listener, record, kind);
        }
        if !self.state.requests.started() {
            if self.responses.packets == 1 {
                self.first_psn = record.psn;
            }
            self.last_psn = record.psn;
        }
    }

    fn count_missing_responses(&mut self) {
        self.responses.missing = self.state.responses.missing().0;
    }

    /// Positions of this flow's requests at which READ responses are due
    /// between the one after the carrier's last response and `asked`.
    pub(super) fn due(
        &self,
        last: Option<crate::wire::types::Psn>,
        asked: Asked,
    ) -> Vec<(Pos, Pos)> {
        let Some(last) = last else {
            return Vec::new();
        };
        let from = self.state.requests.position(last);
        if from >= asked.pos {
            return Vec::new();
        }
        self.state.messages.reads_between(from, asked.pos).collect()
    }
}
