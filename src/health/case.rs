//! What a judgement can look at.

use std::net::IpAddr;

use super::{
    FRAMES_KEPT, FrameRef, Health, Pairs, Subject, Thresholds,
    trail::{Mark, Sign, Trail},
};
use crate::{
    source::InputStatistics,
    track::{Flow, FlowId, Summary, Tracker},
    wire::opcode::Transport,
    words::grouped,
};

/// Everything that a judgement can look at.
pub(super) struct Case<'a> {
    pub health: &'a Health,
    pub tracker: &'a Tracker,
    pub summary: &'a Summary,
    pub inputs: &'a [InputStatistics],
    pub thresholds: Thresholds,
    pub pairs: Pairs<Pair>,
}

/// A flow something happened to.
pub(super) struct FlowCase<'a> {
    pub trail: &'a Trail,
    /// `None` where the tracker forgot it.
    pub flow: Option<&'a Flow>,
    pub peer: Option<&'a Flow>,
}

impl<'a> Case<'a> {
    /// Flows that something happened to, in the order in which it began to.
    pub fn flows(&self) -> impl Iterator<Item = FlowCase<'a>> + use<'_, 'a> {
        self.health.trails.iter().map(|(id, trail)| {
            let flow = self.tracker.flow(*id);
            let peer = flow.and_then(|flow| self.tracker.flow(flow.peer?));
            FlowCase { trail, flow, peer }
        })
    }

    /// What happened to one flow.
    pub fn trail(&self, flow: FlowId) -> Option<&'a Trail> {
        self.health.trail_of(flow)
    }

    /// A sign over all flows.
    pub fn sum(&self, sign: Sign) -> Sum {
        let mut sum = Sum::default();
        for flow in self.flows() {
            sum.add(&flow, flow.trail.mark(sign));
        }
        sum
    }

    /// Whether flows were forgotten: what is missing may have been there.
    pub fn forgetful(&self) -> bool {
        self.tracker.evicted().flows > 0
    }

    /// What the two hosts exchange, in this direction.
    pub fn pair(&self, src: IpAddr, dst: IpAddr) -> Pair {
        self.pairs.get(&(src, dst)).copied().unwrap_or_default()
    }
}

impl FlowCase<'_> {
    /// The flow, or at least its hosts.
    pub fn subject(&self) -> Subject {
        self.flow
            .map_or(self.trail.subject, |flow| Subject::Flow(flow.key))
    }
}

/// Marks of several flows.
#[derive(Default)]
pub(super) struct Sum {
    pub flows: u64,
    pub subject: Option<Subject>,
    pub mark: Mark,
}

impl Sum {
    pub fn add(&mut self, flow: &FlowCase<'_>, mark: &Mark) {
        if mark.count == 0 {
            return;
        }
        self.flows += 1;
        self.subject = Some(flow.subject());
        self.mark.count += mark.count;
        self.mark.amount = self.mark.amount.saturating_add(mark.amount);
        let room = FRAMES_KEPT - self.mark.frames.len();
        self.mark.frames.extend(mark.frames.iter().take(room));
    }

    /// The one flow, or the capture.
    pub fn subject(&self) -> Subject {
        let one = self.subject.filter(|_| self.flows == 1);
        one.unwrap_or(Subject::Capture)
    }

    /// Nothing for one flow, which the subject names.
    pub fn of_flows(&self) -> String {
        if self.flows == 1 {
            String::new()
        } else {
            format!(" of {} flows", grouped(self.flows))
        }
    }
}

/// What one host sends another, over all flows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pair {
    pub packets: u64,
    /// Requests that are to be answered.
    pub requests: Share,
    /// ACKs, NAKs and READ responses.
    pub answers: Share,
    pub cnps: u64,
}

impl Pair {
    pub fn all(tracker: &Tracker, health: &Health) -> Pairs<Self> {
        let mut pairs: Pairs<Self> = Pairs::default();
        for flow in tracker.flows() {
            let pair = pairs.entry((flow.key.src, flow.key.dst)).or_default();
            pair.packets += flow.packets;
            pair.cnps += flow.cnps;
            let answers = flow.acknowledgements + flow.responses.packets;
            pair.answers.add(flow, answers, || None);
            if matches!(flow.transport, Transport::Rc | Transport::Xrc) {
                let open = || {
                    let open = health.trail_of(flow.id)?.mark(Sign::Unanswered);
                    open.frames.iter().min().copied()
                };
                pair.requests.add(flow, flow.requests.packets, open);
            }
        }
        pairs
    }
}

/// Packets of one kind between two hosts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    pub packets: u64,
    /// Flows that carry some.
    pub flows: u64,
    /// One of the first, where it is known of a packet that it is one.
    pub first_frame: Option<FrameRef>,
}

impl Share {
    /// Takes in what a flow has of them; `known` is one of several kinds that
    /// the flow may carry.
    fn add(&mut self, flow: &Flow, packets: u64, known: impl FnOnce() -> Option<FrameRef>) {
        if packets == 0 {
            return;
        }
        self.packets += packets;
        self.flows += 1;
        if self.first_frame.is_none() {
            // Of a flow that carries others too, the first may be one of those.
            self.first_frame = if packets == flow.packets {
                Some(flow.first_frame)
            } else {
                known()
            };
        }
    }
}
