//! What is wrong with the traffic of a capture, what is odd, and what the
//! capture cannot tell.
//!
//! [`Health`] listens to a [`Tracker`] while packets pass and remembers, flow
//! by flow and within bounds, what happened and at which packets.
//! [`Health::findings`] then judges that: [`KINDS`] has one row for each kind
//! of [`Finding`].

mod case;
mod congestion;
mod finding;
mod kinds;
mod limits;
mod loss;
mod packets;
mod refused;
mod trail;
mod waiting;

use std::{cmp::Reverse, collections::HashMap, net::IpAddr};

pub use finding::{Evidence, FRAMES_KEPT, Finding, FrameRef, Refused, Severity, Subject};
pub use kinds::{KINDS, Kind};

use crate::{
    source::InputStatistics,
    track::{
        Cause, Event, EventKind, FlowId, FlowKey, Listener, Message, Record, Summary, Tracker,
    },
    wire::{
        aeth::{AethKind, NakCode, rnr_timer_us},
        opcode::{Transport, Verb},
    },
};
use case::{Case, FlowCase, Pair, Sum};
use finding::Draft;
use kinds::Look;
use trail::{Run, Sign, Trail, Tried};

/// Flows whose events are kept apart; those of further flows are only counted.
const MAX_FLOWS: usize = 1 << 15;
/// Pairs of hosts whose refused keys are kept.
const MAX_PAIRS: usize = 1 << 12;

/// From where on something is worth telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Silence while a request waits for its answer that is a stall. A
    /// tracker tells of none that is shorter than its own limit.
    pub stall_ns: i64,
    /// Times that one request is sent again, in vain, by a requester whose
    /// peer is gone.
    pub retries: u64,
    /// Distinct rkeys refused, or queue pairs that do not answer, that make a
    /// scan of one host's attempts on another.
    pub scan: u64,
    /// CNPs a second that harm a flow.
    pub cnp_rate: u64,
    /// Findings of one kind that are told one by one; the rest become one.
    pub told_apart: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            stall_ns: 100_000_000,
            retries: 3,
            scan: 5,
            cnp_rate: 100,
            told_apart: 20,
        }
    }
}

/// By source and destination.
type Pairs<T> = HashMap<(IpAddr, IpAddr), T, foldhash::fast::RandomState>;

/// Remembers what a tracker tells.
#[derive(Debug, Default)]
pub struct Health {
    places: HashMap<FlowId, usize, foldhash::fast::RandomState>,
    trails: Vec<(FlowId, Trail)>,
    tried: Pairs<Tried>,
    /// Events of flows, and keys of hosts, beyond those that are kept.
    beyond: u64,
}

impl Health {
    /// Nothing remembered yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a tracker's counts and the events it told add up to: the worst
    /// first, then what cost most. `summary` and `inputs` are of the packets
    /// that the tracker was given.
    #[must_use]
    pub fn findings(
        &self,
        tracker: &Tracker,
        summary: &Summary,
        inputs: &[InputStatistics],
        thresholds: Thresholds,
    ) -> Vec<Finding> {
        let case = Case {
            health: self,
            tracker,
            summary,
            inputs,
            thresholds,
            pairs: Pair::all(tracker, self),
        };
        let mut findings = Vec::new();
        for kind in KINDS {
            let mut drafts = match kind.look {
                Look::Flows(look) => case.flows().filter_map(|flow| look(&case, &flow)).collect(),
                Look::Whole(look) => look(&case),
            };
            // A sort that keeps the order of the flows where costs are equal.
            drafts.sort_by_key(|draft| {
                Reverse((draft.severity.unwrap_or(kind.severity), draft.cost_ns))
            });
            fold_rest(&mut drafts, thresholds.told_apart);
            findings.extend(drafts.into_iter().map(|draft| kind.finding(draft)));
        }
        findings.sort_by_key(|finding| Reverse((finding.severity, finding.cost_ns)));
        findings
    }

    /// What happened to one flow.
    fn trail_of(&self, flow: FlowId) -> Option<&Trail> {
        let place = self.places.get(&flow)?;
        Some(&self.trails[*place].1)
    }

    fn trail(&mut self, flow: FlowId, subject: impl FnOnce() -> Subject) -> Option<&mut Trail> {
        let next = self.trails.len();
        let place = match self.places.get(&flow) {
            Some(place) => *place,
            None if next < MAX_FLOWS => {
                self.places.insert(flow, next);
                self.trails.push((flow, Trail::new(subject())));
                next
            }
            None => {
                self.beyond += 1;
                return None;
            }
        };
        Some(&mut self.trails[place].1)
    }

    /// The trail of the flow that the packet belongs to.
    fn own(&mut self, flow: FlowId, record: &Record) -> Option<&mut Trail> {
        let key = record.flow;
        let trail = self.trail(flow, || Subject::Flow(key))?;
        trail.named(key);
        Some(trail)
    }

    /// The trail of the requests that the packet answers. What queue pair
    /// they go to is not in the packet.
    fn answered(&mut self, flow: FlowId, record: &Record) -> Option<&mut Trail> {
        let FlowKey { src, dst, .. } = record.flow;
        self.trail(flow, || Subject::Hosts { src: dst, dst: src })
    }

    fn note(&mut self, event: &Event<'_>, sign: Sign, amount: u64) {
        let frame = frame_of(event.record);
        if let Some(trail) = self.own(event.flow, event.record) {
            trail.add(sign, frame, amount);
        }
    }

    fn note_answer(&mut self, event: &Event<'_>, sign: Sign, amount: u64) {
        let frame = frame_of(event.record);
        if let Some(trail) = self.answered(event.flow, event.record) {
            trail.add(sign, frame, amount);
        }
    }

    /// The trail that a NAK is put down to: that of the requests, where they
    /// are known.
    fn refusing(&mut self, event: &Event<'_>, requests: Option<FlowId>) -> Option<&mut Trail> {
        let trail = match requests {
            Some(flow) => self.answered(flow, event.record),
            None => self.own(event.flow, event.record),
        }?;
        // Whoever refuses is there.
        trail.repeat = None;
        Some(trail)
    }

    fn sent_again(&mut self, event: &Event<'_>, cause: Cause, begins: bool, fills: bool) {
        let record = event.record;
        let frame = frame_of(record);
        let bytes = u64::from(record.payload_len);
        let Some(trail) = self.own(event.flow, record) else {
            return;
        };
        if begins {
            trail.run = match cause {
                Cause::SequenceNak => trail.asked(record.psn),
                Cause::Rnr => Run::Rnr,
                Cause::Timeout { .. } => Run::Timeout,
                Cause::ImpliedNak | Cause::ReadAgain => Run::Response,
                Cause::Unknown => Run::Unknown,
            };
        }
        if fills {
            trail.filled(record.psn, frame);
        }
        // A packet is told of once, by what began its run where that is known.
        let sign = match trail.run.sign() {
            Sign::AgainResponse | Sign::AgainUnknown if fills => Sign::AgainLost,
            sign => sign,
        };
        trail.add(sign, frame, bytes);
        if fills && sign != Sign::AgainLost {
            trail.add(Sign::LostInRun, frame, bytes);
        }
        if !begins {
            return;
        }
        if record.opcode.info().verb == Verb::Read {
            trail.asked_again.add(record.psn);
        }
        match cause {
            Cause::Timeout { silence_ns } => {
                trail.waited(Sign::Timeout, frame, silence_ns);
                if record.opcode.info().verb == Verb::Read {
                    trail.add(Sign::TimeoutRead, frame, 0);
                }
                trail.repeated(record.psn, record.ts_ns, frame);
            }
            Cause::Unknown => trail.repeated(record.psn, record.ts_ns, frame),
            // Somebody asked.
            _ => trail.repeat = None,
        }
    }

    /// What fills a hole was lost before it came here, what the requester
    /// asked for by its PSN further on.
    fn response_again(&mut self, event: &Event<'_>, fills: bool) {
        let record = event.record;
        let asker = event.peer.and_then(|peer| self.places.get(&peer));
        let asked = asker.is_some_and(|at| self.trails[*at].1.asked_again.take(record.psn));
        if fills || asked {
            self.note(event, Sign::ResponseLoss, 0);
        }
        if fills {
            self.note(event, Sign::ResponseFilled, 0);
        }
        self.note(event, Sign::ResponseAgain, record.payload_len.into());
    }

    fn refused(&mut self, message: &Message, answer: AethKind) {
        let request = (message.input, message.first_frame);
        let refusal = (message.last_input, message.last_frame);
        let key = message.key;
        if let Some(trail) = self.trail(message.flow, || Subject::Flow(key)) {
            trail.named(key);
            trail.refuse(Refused {
                answer,
                operation: message.operation,
                remote: message.remote,
                bytes: message.bytes,
                request,
                refusal,
            });
            if matches!(answer, AethKind::Rnr(_)) {
                trail.add(Sign::GaveUp, request, 0);
            }
        }
        if answer == AethKind::Nak(NakCode::REMOTE_ACCESS)
            && let Some(remote) = message.remote
        {
            let pair = (key.src, key.dst);
            if self.tried.len() < MAX_PAIRS || self.tried.contains_key(&pair) {
                let tried = self.tried.entry(pair).or_default();
                tried.add(remote.rkey, request);
            } else {
                self.beyond += 1;
            }
        }
    }
}

impl Listener for Health {
    fn event(&mut self, event: &Event<'_>) {
        let record = event.record;
        let frame = frame_of(record);
        match event.kind {
            // A hole says nothing before it is known what became of it.
            EventKind::Gap {
                responses: true, ..
            } => {}
            EventKind::Gap { .. } => {
                if let Some(trail) = self.own(event.flow, record) {
                    trail.came_early(record.psn);
                }
            }
            EventKind::Retransmitted {
                fills,
                responses: true,
                ..
            } => {
                self.response_again(event, fills);
            }
            EventKind::Retransmitted {
                cause,
                begins,
                fills,
                ..
            } => self.sent_again(event, cause, begins, fills),
            EventKind::Reordered { responses: true } => self.note(event, Sign::Reordered, 0),
            EventKind::Reordered { responses: false } => {
                if let Some(trail) = self.own(event.flow, record) {
                    trail.came_late(record.psn, frame);
                }
            }
            EventKind::Duplicate => self.note(event, Sign::Duplicate, 0),
            EventKind::MirrorDuplicate => self.note(event, Sign::MirrorDuplicate, 0),
            EventKind::DuplicateAnswered => self.note_answer(event, Sign::DuplicateAnswered, 0),
            EventKind::Nak { code, request_flow } => {
                let Some(trail) = self.refusing(event, request_flow) else {
                    return;
                };
                match code {
                    NakCode::SEQUENCE => trail.missed(record.psn, frame),
                    NakCode::REMOTE_ACCESS => trail.add(Sign::RemoteAccess, frame, 0),
                    NakCode::REMOTE_OPERATION => trail.add(Sign::RemoteOperation, frame, 0),
                    _ => trail.add(Sign::InvalidRequest, frame, 0),
                }
            }
            EventKind::Rnr {
                timer,
                request_flow,
            } => {
                if let Some(trail) = self.refusing(event, request_flow) {
                    trail.add(Sign::Rnr, frame, rnr_timer_us(timer).into());
                    trail.not_ready(record.psn);
                }
            }
            EventKind::RnrOver { waited_ns } => {
                if let Some(trail) = self.own(event.flow, record) {
                    trail.waited(Sign::RnrOver, frame, waited_ns);
                }
            }
            EventKind::Stall { silence_ns, .. } => {
                let FlowKey { src, dst, .. } = record.flow;
                // The packet that ended it may be the answer.
                let subject = || Subject::Hosts { src: dst, dst: src };
                if let Some(trail) = self.trail(event.flow, subject) {
                    trail.stalled(frame, silence_ns);
                }
            }
            EventKind::CaptureLoss { missing } => {
                self.note_answer(event, Sign::CaptureLoss, missing.into());
            }
            EventKind::AckSkipped { count } => {
                self.note_answer(event, Sign::AckSkipped, count.into());
            }
            EventKind::Reused { .. } => self.note(event, Sign::Reused, 0),
            EventKind::CongestionExperienced => self.note(event, Sign::Congested, 0),
            EventKind::Cnp => self.note(event, Sign::Cnp, 0),
            EventKind::BadIcrc => self.note(event, Sign::BadIcrc, 0),
            EventKind::Fragment => self.note(event, Sign::Fragment, 0),
            EventKind::Malformed => self.note(event, Sign::Malformed, 0),
            // CNPs have a class of their own everywhere.
            EventKind::OtherDscp { .. } if record.opcode.info().verb == Verb::Cnp => {}
            EventKind::OtherDscp { .. } => self.note(event, Sign::OtherDscp, 0),
            EventKind::OtherPriority { .. } => self.note(event, Sign::OtherPriority, 0),
            EventKind::OddMtu { .. } => {
                self.note(event, Sign::OddMtu, record.payload_len.into());
            }
            EventKind::OutOfPlace => self.note(event, Sign::OutOfPlace, 0),
        }
    }

    fn message(&mut self, message: &Message) {
        let key = message.key;
        if message.malformed
            && let Some(trail) = self.trail(message.flow, || Subject::Flow(key))
        {
            trail.named(key);
            let frame = (message.input, message.first_frame);
            trail.add(Sign::MalformedMessage, frame, 0);
        }
        if let Some(answer) = message.refused {
            self.refused(message, answer);
            return;
        }
        if message.acked_ns.is_some()
            && let Some(place) = self.places.get(&message.flow)
        {
            // Somebody answers.
            self.trails[*place].1.repeat = None;
        }
        let reliable = matches!(
            message.operation.transport,
            Transport::Rc | Transport::Xrc | Transport::Rd
        );
        let sign = match message.acked_ns {
            None if reliable => Sign::Unanswered,
            _ if !message.complete && !message.malformed => Sign::Partial,
            _ => return,
        };
        if let Some(trail) = self.trail(message.flow, || Subject::Flow(key)) {
            trail.named(key);
            trail.add(sign, (message.input, message.first_frame), 0);
        }
    }
}

fn frame_of(record: &Record) -> FrameRef {
    (record.input, record.frame)
}

/// Beyond so many findings of one kind, the rest become one.
fn fold_rest(drafts: &mut Vec<Draft>, told_apart: usize) {
    if drafts.len() <= told_apart.saturating_add(1) {
        return;
    }
    let rest = drafts.split_off(told_apart);
    let severity = rest[0].severity;
    let mut folded = Draft::new(
        Subject::Capture,
        format!(
            "The same of {} more; the one that cost most: {}",
            crate::words::grouped(rest.len() as u64),
            rest[0].summary
        ),
    );
    folded.severity = severity;
    folded = folded.count("more", rest.len() as u64);
    // Sums of what they have in common.
    for (name, _) in &rest[0].evidence.counts {
        let of = |draft: &Draft| {
            let counts = draft.evidence.counts.iter();
            counts.filter(|(n, _)| n == name).map(|(_, v)| *v).sum()
        };
        let sum = rest.iter().map(of).fold(0, u64::saturating_add);
        folded.evidence.counts.push((name, sum));
    }
    folded = folded.frames(
        rest.iter()
            .filter_map(|draft| draft.evidence.frames.first()),
    );
    // Ranked behind those that are told apart.
    folded.cost_ns = rest[0].cost_ns;
    drafts.push(folded);
}

#[cfg(test)]
mod tests;
