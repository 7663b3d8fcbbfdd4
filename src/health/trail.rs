//! What is kept of the events of a flow: counts, sums and a few packets.

use std::collections::VecDeque;

use super::finding::{FRAMES_KEPT, FrameRef, Refused, Subject};
use crate::{
    track::FlowKey,
    wire::types::{Psn, RKey},
};

/// NAKs and late packets remembered: those of the last round trips.
const LATEST_KEPT: usize = 64;
/// A request that came so much too early did not overtake the late one.
const EARLY_BY: i32 = 1024;
/// Silences kept for their median.
const SILENCES_KEPT: usize = 64;

/// What can be seen of a flow. What the amount of a mark adds up is said
/// where it is not always zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// A sequence error NAK for a request that was lost.
    LossNak,
    /// A hole that such a NAK was for, filled.
    NakFilled,
    /// A lost request, of which no NAK told.
    Loss,
    /// A sequence error NAK for a request that was only late.
    LateNak,
    /// A sequence error NAK for a request that the receiver was not ready for.
    RnrNak,
    /// Requests sent again after one was lost, after one was late, after an
    /// RNR NAK, after a timeout, READs for a response that was missed, and for
    /// what is not in the capture; bytes of payload. Each counts as one of
    /// these.
    AgainLost,
    AgainLate,
    AgainRnr,
    AgainTimeout,
    AgainResponse,
    AgainUnknown,
    /// Of those after a timeout or an RNR NAK, one that was lost before.
    LostInRun,
    /// A READ response that was lost for certain; of these, one that fills a
    /// hole. A READ asked for again tells of the first one lost only.
    ResponseLoss,
    ResponseFilled,
    /// A READ response sent again; bytes of payload.
    ResponseAgain,
    /// A run of requests sent again because time was up; nanoseconds.
    Timeout,
    /// Such a run that begins with a READ.
    TimeoutRead,
    /// An RNR NAK that answers it; microseconds it asked to wait.
    Rnr,
    /// The first request after one; nanoseconds since.
    RnrOver,
    /// A NAK of these codes that answers it.
    InvalidRequest,
    RemoteAccess,
    RemoteOperation,
    /// A hole filled late, and nothing asked for it.
    Reordered,
    /// A copy that the network made.
    Duplicate,
    /// A copy that the mirror made.
    MirrorDuplicate,
    /// A copy of the mirror that turned out to be one of the network.
    DuplicateAnswered,
    /// Silence; nanoseconds.
    Stall,
    /// Requests answered and not captured; PSNs.
    CaptureLoss,
    /// Requests without an answer of their own; how many.
    AckSkipped,
    /// The queue pair number changed hands.
    Reused,
    Congested,
    Cnp,
    BadIcrc,
    Fragment,
    Malformed,
    /// A message that does not carry what it names.
    MalformedMessage,
    OtherDscp,
    OtherPriority,
    /// A packet that is not of the path MTU; bytes of payload.
    OddMtu,
    OutOfPlace,
    /// A message without an answer.
    Unanswered,
    /// A message with packets that were not captured.
    Partial,
    /// A message given up after RNR NAKs.
    GaveUp,
}

/// How often a sign was seen, and where.
#[derive(Debug, Clone, Default)]
pub(super) struct Mark {
    pub count: u64,
    pub amount: u64,
    pub frames: Vec<FrameRef>,
}

impl Mark {
    pub fn add(&mut self, frame: FrameRef, amount: u64) {
        self.count += 1;
        self.amount = self.amount.saturating_add(amount);
        if self.frames.len() < FRAMES_KEPT {
            self.frames.push(frame);
        }
    }

    /// Takes back what was added.
    fn undo(&mut self, frame: FrameRef, amount: u64) {
        self.count = self.count.saturating_sub(1);
        self.amount = self.amount.saturating_sub(amount);
        self.frames.retain(|known| *known != frame);
    }
}

static NEVER: Mark = Mark {
    count: 0,
    amount: 0,
    frames: Vec::new(),
};

/// One request sent again and again.
#[derive(Debug, Clone)]
pub(super) struct Repeat {
    pub psn: Psn,
    pub times: u64,
    pub first_ns: i64,
    pub last_ns: i64,
    pub frames: Vec<FrameRef>,
}

/// Why requests are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Lost,
    Late,
    Rnr,
    Timeout,
    /// For a READ response that was missed.
    Response,
    Unknown,
}

impl Run {
    /// What its packets count as.
    pub const fn sign(self) -> Sign {
        match self {
            Self::Lost => Sign::AgainLost,
            Self::Late => Sign::AgainLate,
            Self::Rnr => Sign::AgainRnr,
            Self::Timeout => Sign::AgainTimeout,
            Self::Response => Sign::AgainResponse,
            Self::Unknown => Sign::AgainUnknown,
        }
    }
}

/// A sequence error NAK.
#[derive(Debug, Clone, Copy)]
struct Asked {
    psn: Psn,
    frame: FrameRef,
    why: Run,
    /// The hole it was for was filled.
    filled: bool,
}

/// What is known of one flow.
#[derive(Debug, Clone)]
pub(super) struct Trail {
    pub subject: Subject,
    marks: Vec<(Sign, Mark)>,
    /// Silences before runs that time began.
    pub silences: Vec<u64>,
    pub refused: Vec<Refused>,
    pub repeat: Option<Repeat>,
    /// Packet and length of the last stall, of the last wait that has a name
    /// of its own.
    stall: Option<(FrameRef, u64)>,
    wait: Option<FrameRef>,
    /// Why the current run of requests is sent again.
    pub run: Run,
    /// READs of the flow that were asked for again.
    pub asked_again: AskedAgain,
    /// Last PSNs for which there was a NAK, and why; that came late; that came
    /// early; for which the receiver was not ready.
    asked: VecDeque<Asked>,
    late: VecDeque<Psn>,
    early: VecDeque<Psn>,
    not_ready: Option<Psn>,
}

impl Trail {
    pub fn new(subject: Subject) -> Self {
        Self {
            subject,
            marks: Vec::new(),
            silences: Vec::new(),
            refused: Vec::new(),
            repeat: None,
            stall: None,
            wait: None,
            run: Run::Unknown,
            asked_again: AskedAgain::default(),
            asked: VecDeque::new(),
            late: VecDeque::new(),
            early: VecDeque::new(),
            not_ready: None,
        }
    }

    /// Learns the flow's key, from a packet of its own.
    pub fn named(&mut self, key: FlowKey) {
        self.subject = Subject::Flow(key);
    }

    pub fn add(&mut self, sign: Sign, frame: FrameRef, amount: u64) {
        let known = self.marks.iter_mut().find(|(known, _)| *known == sign);
        if let Some((_, mark)) = known {
            mark.add(frame, amount);
        } else {
            let mut mark = Mark::default();
            mark.add(frame, amount);
            self.marks.push((sign, mark));
        }
    }

    pub fn mark(&self, sign: Sign) -> &Mark {
        let known = self.marks.iter().find(|(known, _)| *known == sign);
        known.map_or(&NEVER, |(_, mark)| mark)
    }

    pub fn count(&self, sign: Sign) -> u64 {
        self.mark(sign).count
    }

    /// A wait that is told under a name of its own, and so is no stall too.
    pub fn waited(&mut self, sign: Sign, frame: FrameRef, ns: i64) {
        let ns = u64::try_from(ns).unwrap_or(0);
        self.add(sign, frame, ns);
        if sign == Sign::Timeout && self.silences.len() < SILENCES_KEPT {
            self.silences.push(ns);
        }
        self.wait = Some(frame);
        if let Some((at, silence)) = self.stall
            && at == frame
            && let Some((_, mark)) = self.marks.iter_mut().find(|(s, _)| *s == Sign::Stall)
        {
            mark.undo(frame, silence);
            self.stall = None;
        }
    }

    pub fn stalled(&mut self, frame: FrameRef, ns: i64) {
        if self.wait == Some(frame) {
            return;
        }
        let ns = u64::try_from(ns).unwrap_or(0);
        self.stall = Some((frame, ns));
        self.add(Sign::Stall, frame, ns);
    }

    /// A sequence error NAK for this PSN.
    pub fn missed(&mut self, psn: Psn, frame: FrameRef) {
        let (sign, why) = if self.not_ready == Some(psn) {
            (Sign::RnrNak, Run::Rnr)
        } else if self.overtaken(psn) {
            (Sign::LateNak, Run::Late)
        } else {
            (Sign::LossNak, Run::Lost)
        };
        self.add(sign, frame, 0);
        let filled = false;
        keep(
            &mut self.asked,
            Asked {
                psn,
                frame,
                why,
                filled,
            },
        );
    }

    /// A hole filled by a request sent again: one more that was lost, unless
    /// there was a NAK for it.
    pub fn filled(&mut self, psn: Psn, frame: FrameRef) {
        let mut asked = self.asked.iter_mut();
        match asked.find(|asked| asked.psn == psn && !asked.filled) {
            Some(asked) => {
                asked.filled = true;
                self.add(Sign::NakFilled, frame, 0);
            }
            None => self.add(Sign::Loss, frame, 0),
        }
    }

    /// Whether a request arrived, only not in its turn: late, or so early that
    /// the responder, which waited for a late one, threw it away.
    fn overtaken(&self, psn: Psn) -> bool {
        let before = |late: &Psn| (1..EARLY_BY).contains(&psn.distance_from(*late));
        self.late.contains(&psn) || self.early.contains(&psn) && self.late.iter().any(before)
    }

    /// A request ahead of the one expected.
    pub fn came_early(&mut self, psn: Psn) {
        keep(&mut self.early, psn);
    }

    /// A request that came late: a NAK for it was for nothing.
    pub fn came_late(&mut self, psn: Psn, frame: FrameRef) {
        self.add(Sign::Reordered, frame, 0);
        keep(&mut self.late, psn);
        let lost = |asked: &&mut Asked| asked.psn == psn && asked.why == Run::Lost;
        if let Some(asked) = self.asked.iter_mut().find(lost) {
            asked.why = Run::Late;
            let nak = asked.frame;
            if let Some((_, mark)) = self.marks.iter_mut().find(|(s, _)| *s == Sign::LossNak) {
                mark.undo(nak, 0);
            }
            self.add(Sign::LateNak, nak, 0);
        }
    }

    /// An RNR NAK for this PSN: what follows it will find a gap.
    pub fn not_ready(&mut self, psn: Psn) {
        self.not_ready = Some(psn);
    }

    /// Why a run that a sequence error NAK asked for was.
    pub fn asked(&self, psn: Psn) -> Run {
        let mut latest = self.asked.iter().rev();
        let exact = latest.clone().find(|asked| asked.psn == psn);
        let asked = exact.or_else(|| latest.next());
        asked.map_or(Run::Lost, |asked| asked.why)
    }

    /// A run began that no NAK asked for.
    pub fn repeated(&mut self, psn: Psn, ts_ns: i64, frame: FrameRef) {
        match &mut self.repeat {
            Some(repeat) if repeat.psn == psn => {
                repeat.times += 1;
                repeat.last_ns = ts_ns;
                if repeat.frames.len() < FRAMES_KEPT {
                    repeat.frames.push(frame);
                }
            }
            _ => {
                self.repeat = Some(Repeat {
                    psn,
                    times: 1,
                    first_ns: ts_ns,
                    last_ns: ts_ns,
                    frames: vec![frame],
                });
            }
        }
    }

    pub fn refuse(&mut self, refused: Refused) {
        if self.refused.len() < FRAMES_KEPT {
            self.refused.push(refused);
        }
    }
}

/// Adds to a list of the latest few.
fn keep<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() >= LATEST_KEPT {
        list.pop_front();
    }
    list.push_back(item);
}

/// PSNs of the READs that a flow asked for again last.
#[derive(Debug, Clone, Default)]
pub(super) struct AskedAgain(VecDeque<Psn>);

impl AskedAgain {
    pub fn add(&mut self, psn: Psn) {
        keep(&mut self.0, psn);
    }

    /// Whether this response was asked for again; true once.
    pub fn take(&mut self, psn: Psn) -> bool {
        let place = self.0.iter().position(|asked| *asked == psn);
        place.is_some_and(|place| self.0.remove(place).is_some())
    }
}

/// Keys that one host tried on another, and that were refused.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub keys: Vec<RKey>,
    /// The list is full: there may be more.
    pub more: bool,
    pub refusals: Mark,
}

/// Keys kept of one pair of hosts; so many are a scan whatever the threshold.
const KEYS_KEPT: usize = 1024;

impl Tried {
    pub fn add(&mut self, rkey: RKey, frame: FrameRef) {
        self.refusals.add(frame, 0);
        if self.keys.contains(&rkey) {
            return;
        }
        if self.keys.len() < KEYS_KEPT {
            self.keys.push(rkey);
        } else {
            self.more = true;
        }
    }
}
