//! The verdict: one word, one sentence why, and what to do next.

use super::{Control, DriverKind, Evidence, Listening};
use crate::{
    rdma::ledger::{Ledger, Peer, WcStatus},
    words::{grouped, plural},
};

/// What became of the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not one packet left the device.
    NeverSent,
    /// Completed, and handed back to the receive path without touching a
    /// netdev.
    LoopbackBypassed,
    /// Completed, every request seen on the netdev.
    OnTheWire,
    /// Completed, and only some of the packets seen.
    PartlyCaptured,
    /// Some did not complete, or the memory does not hold what was written.
    Failed,
    /// The evidence does not decide it.
    Inconclusive,
}

impl Verdict {
    /// The word for it in machine-readable output.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NeverSent => "never-sent",
            Self::LoopbackBypassed => "loopback-bypassed",
            Self::OnTheWire => "on-the-wire",
            Self::PartlyCaptured => "partly-captured",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A verdict and its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The word.
    pub verdict: Verdict,
    /// The finding in numbers.
    pub finding: String,
    /// Why it is so.
    pub why: String,
    /// What the user can do now, most useful first.
    pub next: Vec<String>,
}

/// Decides. The order of the questions matters: what never left the device
/// cannot have been bypassed, what failed is not explained by where it was
/// seen, and only proven silence of a proven listener is called a bypass.
#[must_use]
pub fn judge(evidence: &Evidence) -> Judgement {
    never_sent(evidence)
        .or_else(|| failed(evidence))
        .or_else(|| seen(evidence))
        .or_else(|| tapped(evidence))
        .or_else(|| deaf(evidence))
        .or_else(|| hardware(evidence))
        .or_else(|| bypassed(evidence))
        .unwrap_or_else(|| unexplained(evidence))
}

fn judgement(verdict: Verdict, finding: String, why: String, next: &[&str]) -> Judgement {
    Judgement {
        verdict,
        finding,
        why,
        next: next.iter().map(|&step| step.into()).collect(),
    }
}

const LAB: &str = "put them on a (virtual) wire: sudo roce-sniff lab up";
const DOCTOR: &str = "see what stands in the way: roce-sniff doctor";

const OTHER_NETDEVS: &str = "listen on the other netdevs: the route to the destination may lead \
                             through one of them (ip route get ADDRESS)";
const TAP: &str = "see them all the same: add --tap";
const TAP_TELLS: &str = "see at the driver what it received: add --tap";

/// A hint at the kernel tap, where it was not there, would help and can be
/// had.
fn tap_hint(evidence: &Evidence, hint: &'static str) -> Option<&'static str> {
    let helps = evidence.tap.is_none() && evidence.driver != DriverKind::Hardware;
    (helps && cfg!(tap_program)).then_some(hint)
}

fn never_sent(evidence: &Evidence) -> Option<Judgement> {
    let ledger = &evidence.ledger;
    let stopped = || ledger.stopped.clone().unwrap_or_default();
    if ledger.posted.is_empty() {
        return Some(judgement(
            Verdict::NeverSent,
            format!("0 of {} operations were posted.", ledger.wanted),
            stopped(),
            &[DOCTOR],
        ));
    }
    let seen_anywhere = evidence.listening.as_ref().map_or(0, |l| l.seen.packets())
        + evidence.tap.as_ref().map_or(0, |t| t.seen.packets());
    let sent = evidence.counters.first().and_then(|counters| counters.sent);
    if ledger.completed() == 0 && seen_anywhere == 0 && sent == Some(0) {
        let device = &evidence.counters[0].device;
        let mut why = format!("{device} counted not one packet sent");
        if let Some(stopped) = &ledger.stopped {
            why += ": ";
            why += stopped;
        }
        return Some(judgement(
            Verdict::NeverSent,
            format!(
                "{} operations were posted, none completed, no packet left {device}.",
                ledger.posted.len()
            ),
            why + ".",
            &[DOCTOR],
        ));
    }
    None
}

fn failed(evidence: &Evidence) -> Option<Judgement> {
    let ledger = &evidence.ledger;
    let (posted, completed) = (ledger.posted.len() as u32, ledger.completed());
    if completed == posted && ledger.payload_verified == Some(false) {
        return Some(judgement(
            Verdict::Failed,
            format!("{completed} operations completed, but the memory does not hold what was written."),
            "a completion promises that the data arrived: something else writes to this memory, or \
             the device does not do what it says."
                .into(),
            &[],
        ));
    }
    if completed == posted {
        return None;
    }
    let failures = ledger.failures();
    let mut counts: Vec<String> = failures
        .iter()
        .map(|(status, count)| format!("{count} {status}"))
        .collect();
    if ledger.silent() > 0 {
        counts.push(format!("{} without a completion", ledger.silent()));
    }
    let first = failures.first().map(|(status, _)| *status);
    let (why, next): (String, &[&str]) = match first {
        Some(status) => (explain(status, evidence), advice(status)),
        None => (ledger.stopped.clone().unwrap_or_default(), &[DOCTOR]),
    };
    Some(judgement(
        Verdict::Failed,
        format!(
            "{completed} of {posted} operations completed; {}.",
            counts.join(", ")
        ),
        why,
        next,
    ))
}

/// Why a work request ended in this status, as far as the evidence tells.
fn explain(status: WcStatus, evidence: &Evidence) -> String {
    let heard = evidence.listening.as_ref();
    let (requests, responses) = heard.map_or((0, 0), |l| {
        (l.seen.requests + l.seen.again, l.seen.responses)
    });
    let words: String = match status.0 {
        2 => "the queue pair refused the operation".into(),
        4 => "the local buffer is not registered under this key".into(),
        9 => "the responder refused the request (NAK 0x61): the operation is not allowed on its queue pair".into(),
        10 => "the responder refused the address or key (NAK 0x62): wrong rkey, past the end of the region, or no permission".into(),
        11 => "the responder could not complete it (NAK 0x63)".into(),
        12 if requests > 0 && responses == 0 => format!(
            "retry exceeded: {requests} request packets were seen leaving, not one answer came back"
        ),
        12 => "retry exceeded: no acknowledgement came back, after every retry".into(),
        13 => "RNR retry exceeded: the responder has no receive posted".into(),
        _ => status.words().into(),
    };
    let looped_back = evidence.counters.first().map_or(String::new(), |counters| {
        match (counters.sent, counters.received) {
            (Some(sent), Some(received)) if status == WcStatus::RETRY_EXCEEDED => format!(
                " ({} counted {sent} sent, {received} received)",
                counters.device
            ),
            _ => String::new(),
        }
    });
    format!("{words}{looped_back}.")
}

fn advice(status: WcStatus) -> &'static [&'static str] {
    match status.0 {
        12 => &[
            "check that the peer's queue pair is up and its address reachable, and that nothing on \
             the way drops UDP 4791",
        ],
        13 => &["post receives at the responder before the requests arrive"],
        _ => &[],
    }
}

/// Something of it was seen on the netdev.
fn seen(evidence: &Evidence) -> Option<Judgement> {
    let listening = evidence.listening.as_ref()?;
    let seen = &listening.seen;
    if seen.packets() == 0 {
        return None;
    }
    let ledger = &evidence.ledger;
    let netdev = &listening.netdev;
    let need = ledger.need();
    let finding = format!(
        "{} of {} request packets and {} responses crossed {netdev}{}.",
        seen.requests,
        need.requests,
        seen.responses,
        repeats(listening)
    );
    if seen.requests >= u64::from(need.requests) {
        let why = match seen.responses {
            0 => format!("every request was seen on {netdev}; the answers take another way."),
            _ => format!("every request was seen on {netdev}, and the answers to them."),
        };
        return Some(judgement(Verdict::OnTheWire, finding, why, &[]));
    }
    let why = if listening.kernel_dropped > 0 {
        format!(
            "the operations completed, so the packets crossed; the listener lost {} for want of buffer space.",
            listening.kernel_dropped
        )
    } else if seen.requests == 0 {
        format!("only answers were seen on {netdev}: the requests take another way.")
    } else {
        "the operations completed, so the packets crossed; the listener did not see all of them."
            .into()
    };
    Some(judgement(
        Verdict::PartlyCaptured,
        finding,
        why,
        &["capture less at a time: a smaller --count or --size, or a longer --interval"],
    ))
}

fn repeats(listening: &Listening) -> String {
    let seen = &listening.seen;
    match (seen.again, seen.naks) {
        (0, 0) => String::new(),
        (again, 0) => format!(", {again} of the requests again"),
        (again, naks) => format!(", {again} of the requests again after {naks} NAKs or a timeout"),
    }
}

/// The kernel tap saw it come round the loop.
fn tapped(evidence: &Evidence) -> Option<Judgement> {
    let tap = evidence.tap.as_ref()?;
    let need = evidence.ledger.need();
    (tap.looped > 0 && tap.seen.requests >= u64::from(need.requests)).then(|| bypass(evidence))
}

/// A listener that was not proven says nothing by its silence.
fn deaf(evidence: &Evidence) -> Option<Judgement> {
    let completed = evidence.ledger.completed();
    let inconclusive = |why: String, next: &[&str]| {
        let next: Vec<_> = next
            .iter()
            .copied()
            .chain(tap_hint(evidence, TAP_TELLS))
            .collect();
        Some(judgement(
            Verdict::Inconclusive,
            format!("{completed} operations completed, none of their packets was seen."),
            why,
            &next,
        ))
    };
    let Some(listening) = &evidence.listening else {
        return inconclusive("nobody listened.".into(), &[]);
    };
    let netdev = &listening.netdev;
    let path = evidence
        .ledger
        .endpoint
        .as_ref()
        .and_then(|endpoint| endpoint.netdev.as_ref());
    if let Some(path) = path.filter(|path| *path != netdev) {
        return inconclusive(
            format!("the listener was on {netdev}, but the device sends through {path}."),
            &["listen where the packets go: --iface with that netdev"],
        );
    }
    if listening.kernel_dropped > 0 {
        return inconclusive(
            format!(
                "the kernel dropped {} that the listener should have had.",
                plural(listening.kernel_dropped, "packet", "packets")
            ),
            &["run again, or with a smaller --count"],
        );
    }
    match listening.control {
        Some(Control { seen: 0, sent }) => inconclusive(
            format!(
                "the listener did not see one of {sent} control frames on {netdev} either: it is deaf."
            ),
            &["check that the netdev is up: ip link show"],
        ),
        None => inconclusive(
            "without a control frame (--no-control) silence proves nothing.".into(),
            &["run again without --no-control"],
        ),
        Some(_) if !listening.complete => inconclusive(
            format!(
                "the control frame sent after them was not seen on {netdev}: what came before it may \
                 not have been heard either{}.",
                listening
                    .trouble
                    .as_ref()
                    .map_or(String::new(), |trouble| format!(" ({trouble})"))
            ),
            &["run again"],
        ),
        Some(_) => None,
    }
}

/// Adapters build packets below everything a host can listen to.
fn hardware(evidence: &Evidence) -> Option<Judgement> {
    if evidence.driver != DriverKind::Hardware || evidence.own_address {
        return None;
    }
    let device = device(&evidence.ledger);
    Some(judgement(
        Verdict::Inconclusive,
        format!(
            "{} operations completed, none of their packets was seen.",
            evidence.ledger.completed()
        ),
        format!(
            "{device} is an adapter that builds RoCE packets itself: they leave the host below every sniffer."
        ),
        &[
            "capture at a mirror port of the switch, or with the adapter's own sniffer, then: roce-sniff FILE",
        ],
    ))
}

fn bypassed(evidence: &Evidence) -> Option<Judgement> {
    if !evidence.own_address {
        return None;
    }
    let need = evidence.ledger.need();
    // What the driver looped it counted as sent and as received, requests and
    // at least one answer.
    let counted = evidence.counters.first().is_none_or(|counters| {
        let enough = |count: Option<i64>| count.is_none_or(|n| n > i64::from(need.requests));
        enough(counters.sent) && enough(counters.received)
    });
    counted.then(|| bypass(evidence))
}

fn bypass(evidence: &Evidence) -> Judgement {
    let ledger = &evidence.ledger;
    let need = ledger.need();
    let device = device(ledger);
    let listening = evidence.listening.as_ref();
    let netdev = listening.map_or("any netdev", |l| l.netdev.as_str());
    let sent = evidence.counters.first().and_then(|counters| counters.sent);
    let packets = sent.map_or(i64::from(need.requests + need.responses), |sent| sent);
    let address = ledger.endpoint.as_ref().map_or(String::new(), |endpoint| {
        std::net::IpAddr::V6(endpoint.dest_gid)
            .to_canonical()
            .to_string()
    });
    let why = match evidence.driver {
        DriverKind::Hardware => format!(
            "{address} is {device}'s own address: the adapter loops such packets back inside itself, where no sniffer can see them."
        ),
        _ => format!(
            "{address} is {device}'s own address, so the driver hands each packet straight to its receive path; \
             no sniffer on {netdev}, lo or any can see it."
        ),
    };
    let why = match &evidence.tap {
        Some(tap) if tap.looped > 0 => {
            format!(
                "{why} The kernel tap saw {} of them come round.",
                tap.looped
            )
        }
        _ => why,
    };
    let mut next: Vec<String> = Vec::new();
    next.extend(tap_hint(evidence, TAP).map(Into::into));
    next.push(LAB.into());
    if ledger
        .endpoint
        .as_ref()
        .is_some_and(|e| e.peer == Peer::Itself)
    {
        next.push("or write to another host: roce-sniff responder there, --peer HOST here".into());
    }
    Judgement {
        verdict: Verdict::LoopbackBypassed,
        finding: format!(
            "{} of {} never touched {netdev}.",
            grouped(packets.unsigned_abs()),
            plural(packets.unsigned_abs(), "packet", "packets")
        ),
        why,
        next,
    }
}

fn unexplained(evidence: &Evidence) -> Judgement {
    let netdev = evidence
        .listening
        .as_ref()
        .map_or("the netdev", |l| l.netdev.as_str());
    let counts: Vec<String> = evidence
        .counters
        .iter()
        .map(|c| {
            let show = |n: Option<i64>| n.map_or("an unknown number".into(), |n| n.to_string());
            format!(
                "{} counted {} sent, {} received",
                c.device,
                show(c.sent),
                show(c.received)
            )
        })
        .collect();
    judgement(
        Verdict::Inconclusive,
        format!(
            "{} operations completed, none of their packets was seen on {netdev}.",
            evidence.ledger.completed()
        ),
        format!(
            "the destination is not {}'s own address, so the driver does not loop, and yet a listener \
             that saw the control frame saw nothing else ({}).",
            device(&evidence.ledger),
            counts.join("; ")
        ),
        &[OTHER_NETDEVS]
            .into_iter()
            .chain(tap_hint(evidence, TAP_TELLS))
            .collect::<Vec<_>>(),
    )
}

fn device(ledger: &Ledger) -> &str {
    ledger
        .endpoint
        .as_ref()
        .map_or("the device", |endpoint| endpoint.device.as_str())
}
