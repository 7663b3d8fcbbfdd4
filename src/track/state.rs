//! What a flow remembers to judge its next packet, and the judgement of
//! packets that came before or were skipped.

use super::{
    Cause, Limits, Record,
    open::OpenMessages,
    pairing::Suspects,
    record::Facts,
    sequence::{Few, Hole, Pos, Sequence},
    throttle::PAUSE_NS,
};
use crate::wire::types::Psn;

/// An earlier packet with the same flow, PSN and opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Earlier {
    /// Time since then.
    pub age_ns: i64,
    /// How the two compare.
    pub likeness: Likeness,
}

impl Earlier {
    /// Whether the later one is a copy of this one, made on the way or by the
    /// capture, beyond doubt.
    pub const fn is_copy(&self, limits: &Limits) -> bool {
        self.age_ns <= limits.copy_window_ns && matches!(self.likeness, Likeness::Identical)
    }
}

/// How two packets with the same PSN compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likeness {
    /// The same in all that is kept, the sender's numbering included.
    Identical,
    /// The same, but the sender does not number its packets.
    Alike,
    /// Numbered differently, or other bytes: sent twice.
    Different,
}

/// What asked for packets again, and from where on.
#[derive(Debug, Clone, Copy)]
struct Asked {
    from: Pos,
    at_ns: i64,
}

/// A run of packets that are being sent again.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Where it stands.
    next: Pos,
    cause: Cause,
}

/// Requests that only an answer to them showed so far.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    /// First position.
    pub from: Pos,
    /// One past the last.
    pub to: Pos,
    /// The answer.
    pub answer: Box<Record>,
    /// They were reported as lost by the capture.
    pub told: bool,
}

impl Tail {
    /// Positions in it.
    pub const fn len(&self) -> u32 {
        (self.to - self.from) as u32
    }

    /// Positions in it that were not reported yet.
    pub const fn untold(&self) -> u32 {
        if self.told { 0 } else { self.len() }
    }
}

/// The judgement of a packet behind the expected PSN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// Sent again.
    Again {
        /// Why.
        cause: Cause,
        /// The first of its run.
        begins: bool,
    },
    /// Overtaken on its way.
    Late,
    /// Twice, with nothing to ask for it.
    Twice,
    /// A copy.
    Copy,
}

/// What a flow remembers.
#[derive(Debug, Clone, Default)]
pub(super) struct FlowState {
    /// PSNs of requests.
    pub requests: Sequence,
    /// PSNs of READ responses.
    pub responses: Sequence,
    /// Requests that wait.
    pub messages: OpenMessages,
    run: Option<Run>,
    /// Why packets were sent again last.
    last_cause: Option<Cause>,
    nak: Option<Asked>,
    rnr: Option<Asked>,
    /// One past the last position acknowledged.
    pub acked: Option<Pos>,
    /// Time of the last request or answer.
    pub active_ns: i64,
    /// Silences between them that are pauses, in all: nothing waits for an
    /// answer, as far as there are answers.
    pub paused_ns: i64,
    /// Such pauses.
    pub pauses: u64,
    /// Time between the packet before the current one, in either direction,
    /// and that.
    silence_ns: i64,
    /// A READ whose number of responses is not known yet: its position and
    /// bytes.
    pub unsized_read: Option<(Pos, u32)>,
    /// Positions of READ responses that were asked for again.
    pub read_again: Option<(Pos, Pos)>,
    /// A READ response began and has not ended.
    pub in_response: bool,
    /// Copies that the responder may still answer.
    pub copies: u32,
    /// The last packets of which there were copies, and the last ones that
    /// asked for an acknowledgement.
    pub copied: Few,
    pub asked_ack: Few,
    /// IPv4 identification of the newest packet, and whether it counts up.
    newest_id: u16,
    counts_up: bool,
    /// Flows that may be the peer.
    pub suspects: Suspects,
    /// The peer was one of several that fitted.
    pub uncertain: bool,
    /// Answers that do not fit the peer.
    pub misfits: u8,
    /// Positions at the end of the sequence that only answers showed.
    pub tail: Option<Tail>,
    /// Requests by which a peer may be found.
    pub advertised: u32,
    /// Used since the hand of the clock last passed.
    pub used: bool,
}

/// Identifications of one flow's packets are this close when its sender
/// numbers them one by one, and others' packets come between.
const NEAR_ID: u16 = 512;

impl FlowState {
    /// Whether an answer with this PSN may be for requests of this flow.
    pub fn may_be_answered(&self, psn: Psn, limits: &Limits) -> bool {
        let ahead = self.requests.position(psn) - self.requests.next();
        (-limits.behind..=limits.behind).contains(&ahead)
    }

    /// Takes note of a request that was not seen before and is the newest.
    #[inline]
    pub fn newest(&mut self, packet: &impl Facts) {
        let id = packet.fingerprint().ip_id;
        let step = id.wrapping_sub(self.newest_id);
        self.counts_up = id != 0 && (1..NEAR_ID).contains(&step);
        self.newest_id = id;
        // A requester sends new packets only once it has caught up.
        self.run = None;
        if packet.ack_req() {
            self.asked_ack.note(packet.psn());
        }
    }

    /// Takes note that everything before `end` was acknowledged.
    #[inline]
    pub fn acknowledged(&mut self, end: Pos) {
        self.acked = Some(self.acked.map_or(end, |acked| acked.max(end)));
        self.rnr = self.rnr.filter(|rnr| rnr.from >= end);
    }

    /// Takes note of the time of a request or of its answer; returns the
    /// silence before it.
    #[inline]
    pub fn active(&mut self, ts_ns: i64) -> i64 {
        self.silence_ns = self.silence_before(ts_ns);
        if self.silence_ns >= PAUSE_NS && (self.acked.is_none() || self.messages.is_empty()) {
            self.paused_ns = self.paused_ns.saturating_add(self.silence_ns);
            self.pauses += 1;
        }
        self.active_ns = ts_ns;
        self.silence_ns
    }

    /// The silence before a request or an answer at this time.
    #[inline]
    pub const fn silence_before(&self, ts_ns: i64) -> i64 {
        if self.requests.started() {
            ts_ns.saturating_sub(self.active_ns)
        } else {
            0
        }
    }

    /// Whether the sender numbered a packet before its newest one.
    fn sent_before(&self, record: &Record) -> bool {
        let id = record.fingerprint.ip_id;
        let back = self.newest_id.wrapping_sub(id);
        self.counts_up && id != 0 && (1..NEAR_ID).contains(&back)
    }

    /// Takes note of a NAK that asks for everything from `from` on.
    pub fn sequence_nak(&mut self, from: Pos, at_ns: i64) {
        // One before it may not have been heeded yet.
        let first = self.nak.map_or(from, |nak| nak.from.min(from));
        self.nak = Some(Asked { from: first, at_ns });
        self.requests.ask(from, Cause::SequenceNak);
    }

    /// Takes note of an RNR NAK of the packet at `from`.
    pub fn receiver_not_ready(&mut self, from: Pos, at_ns: i64) {
        self.rnr = Some(Asked { from, at_ns });
        self.requests.ask(from, Cause::Rnr);
    }

    /// The time an RNR NAK came after which the requester goes on now.
    pub fn rnr_over(&mut self) -> Option<i64> {
        self.rnr.take().map(|rnr| rnr.at_ns)
    }

    /// What asked for a packet at `pos` again, if anything did: an answer, or
    /// a run of packets sent again that it belongs to.
    fn asked(&self, record: &Record, pos: Pos, limits: &Limits) -> Option<(Cause, bool)> {
        // Packets behind one that met no receive draw sequence NAKs as well,
        // and the requester may go back to the beginning of the message.
        if self.rnr.is_some() {
            return Some((Cause::Rnr, true));
        }
        if self.run.is_some_and(|run| run.next == pos) {
            return self.run.map(|run| (run.cause, false));
        }
        if let Some(nak) = self.nak
            && pos >= nak.from
        {
            // What it asked for came late and was acknowledged; the requester
            // goes back all the same, but soon.
            let met = self.acked.is_some_and(|acked| nak.from < acked);
            if !met || record.ts_ns.saturating_sub(nak.at_ns) < limits.stall_ns {
                return Some((Cause::SequenceNak, true));
            }
        }
        let run = self.run.filter(|run| pos >= run.next)?;
        Some((run.cause, false))
    }

    /// Judges a request whose PSN was skipped, or is before the first one
    /// seen.
    pub fn judge_unseen(
        &self,
        record: &Record,
        pos: Pos,
        hole: Option<Hole>,
        limits: &Limits,
    ) -> Verdict {
        if self.sent_before(record) {
            return Verdict::Late;
        }
        if let Some((cause, begins)) = self.asked(record, pos, limits) {
            return Verdict::Again { cause, begins };
        }
        let silence_ns = self.silence_ns;
        if silence_ns >= limits.timeout_floor_ns && hole.is_none_or(|hole| !hole.acked) {
            return Verdict::Again {
                cause: Cause::Timeout { silence_ns },
                begins: true,
            };
        }
        if let Some(cause) = hole.and_then(|hole| hole.asked) {
            // Of the run that answered what asked for it.
            return Verdict::Again {
                cause,
                begins: false,
            };
        }
        if hole.is_none() && self.counts_up {
            // Numbered after what was seen: it went back, and why was not seen.
            return Verdict::Again {
                cause: Cause::Unknown,
                begins: true,
            };
        }
        Verdict::Late
    }

    /// Judges a request whose PSN was seen. `answers` says whether answers to
    /// this flow are captured at all; `reads`, whether it is a READ.
    pub fn judge_seen(
        &self,
        record: &Record,
        pos: Pos,
        earlier: Option<Earlier>,
        context: Context,
        limits: &Limits,
    ) -> Verdict {
        let again = |cause| Verdict::Again {
            cause,
            begins: true,
        };
        let in_turn = self.run.is_some_and(|run| run.next == pos);
        if let Some(earlier) = earlier
            && earlier.age_ns <= limits.copy_window_ns
        {
            match earlier.likeness {
                Likeness::Identical => return Verdict::Copy,
                // A run sends its packets one after the other.
                Likeness::Alike if !in_turn && self.asked_now(pos).is_none() => {
                    return Verdict::Copy;
                }
                _ => {}
            }
        }
        if let Some(cause) = self.last_cause.filter(|_| self.sent_before(record)) {
            // Of an earlier run, overtaken on its way.
            return Verdict::Again {
                cause,
                begins: false,
            };
        }
        if let Some((cause, begins)) = self.asked(record, pos, limits) {
            return Verdict::Again { cause, begins };
        }
        let acked = self.acked.is_some_and(|acked| pos < acked);
        let identical = earlier.is_some_and(|e| e.likeness == Likeness::Identical);
        if acked && identical {
            return Verdict::Twice;
        }
        let silence_ns = self.silence_ns;
        if context.reliable && silence_ns >= limits.timeout_floor_ns {
            return again(Cause::Timeout { silence_ns });
        }
        if context.reliable && context.read {
            return again(Cause::ImpliedNak);
        }
        let different = earlier.is_none_or(|e| e.likeness == Likeness::Different);
        if context.reliable && (different || !context.answers) {
            return again(Cause::Unknown);
        }
        Verdict::Twice
    }

    /// A NAK or RNR NAK that asks for the packet at `pos`, apart from runs.
    fn asked_now(&self, pos: Pos) -> Option<Pos> {
        let asked = self.nak.or(self.rnr)?;
        (pos >= asked.from).then_some(asked.from)
    }

    /// Takes note that the packet at `pos` was sent again.
    pub fn went_back(&mut self, record: &Record, pos: Pos, span: u32, cause: Cause) {
        let continues = self.run.is_some_and(|run| run.next == pos);
        self.last_cause = Some(cause);
        self.rnr = None;
        if !continues {
            // A NAK that came meanwhile will be heeded later.
            self.nak = None;
        }
        if self.sent_before(record) {
            return;
        }
        self.run = Some(Run {
            next: pos + Pos::from(span),
            cause,
        });
    }
}

/// What else matters when a repeated request is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    /// Answers to this flow are captured.
    pub answers: bool,
    /// A READ: its requester may miss a response, which no NAK tells.
    pub read: bool,
    /// The transport sends again at all.
    pub reliable: bool,
}
