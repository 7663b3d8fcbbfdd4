//! One finding: what is the matter, the packets that prove it, what to do.

use std::net::IpAddr;

use crate::{
    filter::FlowFilter,
    track::{Endpoint, FlowKey, Operation, Remote},
    wire::aeth::AethKind,
};

/// Packets named as evidence of one finding.
pub const FRAMES_KEPT: usize = 10;

/// Input, from 0, and frame in it, from 1.
pub type FrameRef = (u16, u64);

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A limit of the capture, or an oddity that harms nothing.
    Info,
    /// Something slows the traffic down, or will.
    Warning,
    /// Operations failed, or a connection was lost.
    Error,
}

impl Severity {
    /// The worst first.
    pub const ALL: [Self; 3] = [Self::Error, Self::Warning, Self::Info];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The capture, or many flows of it.
    Capture,
    /// One directed flow.
    Flow(FlowKey),
    /// What one host sends another.
    Hosts {
        /// The one.
        src: IpAddr,
        /// The other.
        dst: IpAddr,
    },
    /// A connection, or the attempt at one.
    Connection {
        /// The side that asked for it.
        a: Endpoint,
        /// The other side.
        b: Endpoint,
    },
}

impl Subject {
    /// Whether it is one that a filter of flows lets through; what is about
    /// the whole capture is told whatever flows are chosen.
    #[must_use]
    pub fn chosen(&self, filter: &FlowFilter) -> bool {
        match self {
            Self::Capture => true,
            Self::Flow(key) => filter.matches(key, None),
            Self::Hosts { src, dst } => filter.ends([*src, *dst], [None; 2]),
            Self::Connection { a, b } => filter.ends([a.ip, b.ip], [a.qp, b.qp]),
        }
    }
}

/// A request that its responder refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refused {
    /// The answer.
    pub answer: AethKind,
    /// What was asked for.
    pub operation: Operation,
    /// The memory it named.
    pub remote: Option<Remote>,
    /// Its bytes.
    pub bytes: u64,
    /// Its first packet.
    pub request: FrameRef,
    /// The packet that refused it.
    pub refusal: FrameRef,
}

/// What proves a finding.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// The first packets that show it, [`FRAMES_KEPT`] at most.
    pub frames: Vec<FrameRef>,
    /// Named numbers, the one that matters most first.
    pub counts: Vec<(&'static str, u64)>,
    /// Requests that were refused, where that is the matter.
    pub requests: Vec<Refused>,
}

/// Something worth knowing about a capture.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Which kind; see [`super::KINDS`].
    pub id: &'static str,
    /// How bad.
    pub severity: Severity,
    /// What it is about.
    pub subject: Subject,
    /// One sentence with the numbers.
    pub summary: String,
    /// What proves it.
    pub evidence: Evidence,
    /// What to do next.
    pub hint: String,
    /// Nanoseconds that it cost, as far as can be told: ranks findings of one
    /// severity.
    pub cost_ns: u64,
}

/// A finding before its kind has put its name and hint to it.
#[derive(Debug)]
pub(super) struct Draft {
    pub subject: Subject,
    /// Where it is not the kind's usual one.
    pub severity: Option<Severity>,
    pub summary: String,
    pub evidence: Evidence,
    /// Where there is something better to say than the kind's hint.
    pub hint: Option<String>,
    pub cost_ns: u64,
}

/// What a packet counts for in the ranking, next to times that were measured.
const PACKET_NS: u64 = 1000;

impl Draft {
    pub fn new(subject: Subject, summary: String) -> Self {
        Self {
            subject,
            severity: None,
            summary,
            evidence: Evidence::default(),
            hint: None,
            cost_ns: 0,
        }
    }

    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn count(mut self, name: &'static str, value: u64) -> Self {
        self.evidence.counts.push((name, value));
        self
    }

    /// Leaves out what is zero.
    pub fn count_some(self, name: &'static str, value: u64) -> Self {
        if value == 0 {
            self
        } else {
            self.count(name, value)
        }
    }

    /// Adds packets; they end up in the order of the capture, each once.
    pub fn frames<'f>(mut self, frames: impl IntoIterator<Item = &'f FrameRef>) -> Self {
        let list = &mut self.evidence.frames;
        list.extend(frames);
        list.sort_unstable();
        list.dedup();
        list.truncate(FRAMES_KEPT);
        self
    }

    pub fn requests(mut self, requests: Vec<Refused>) -> Self {
        self.evidence.requests = requests;
        self
    }

    pub fn cost(mut self, ns: u64, packets: u64) -> Self {
        self.cost_ns = ns.saturating_add(packets.saturating_mul(PACKET_NS));
        self
    }
}
