//! Congestion marks and notifications.

use std::fmt::Write;

use super::{Case, Draft, FlowCase, Severity, Subject, trail::Sign};
use crate::{
    track::{Flow, Throttled},
    words::{bit_rate, percent, plural, span},
};

/// What comes within less is no rate: a burst says nothing of the second it is
/// part of.
const RATE_OVER_NS: u64 = 1_000_000_000;

/// Flows that carry CNPs, each with the flow whose sender they slow down,
/// where that is known.
fn told<'a>(case: &Case<'a>) -> impl Iterator<Item = (&'a Flow, Option<&'a Flow>)> + use<'a> {
    let tracker = case.tracker;
    let carrying = tracker.flows().filter(|flow| flow.cnps > 0);
    carrying.map(|flow| (flow, flow.peer.and_then(|peer| tracker.flow(peer))))
}

fn subject(carrier: &Flow, sender: Option<&Flow>) -> Subject {
    // A sender's flow has the receiver's queue pair in its key, a CNP the
    // sender's.
    sender.map_or(
        Subject::Hosts {
            src: carrier.key.dst,
            dst: carrier.key.src,
        },
        |sender| Subject::Flow(sender.key),
    )
}

/// Packets that show the CNPs of a flow.
fn frames(case: &Case<'_>, carrier: &Flow) -> Vec<super::FrameRef> {
    case.trail(carrier.id)
        .map_or_else(Vec::new, |trail| trail.mark(Sign::Cnp).frames.clone())
}

/// What the sender made of it.
fn reaction(throttled: &Throttled) -> String {
    let since = if throttled.while_told {
        "while they came"
    } else {
        "from then on"
    };
    let rates = format!(
        "it sent {} before the first, and {} {since}",
        bit_rate(throttled.before_bps),
        bit_rate(throttled.after_bps)
    );
    if throttled.slowed() {
        format!("{rates}: slowed to {} %", throttled.percent())
    } else {
        format!("{rates}: it did not slow down")
    }
}

/// `congestion`.
pub(super) fn notified(case: &Case<'_>) -> Vec<Draft> {
    let draft = |(carrier, sender): (&Flow, Option<&Flow>)| {
        let over = carrier.last_ts_ns.saturating_sub(carrier.first_ts_ns);
        let over = u64::try_from(over).unwrap_or(0);
        // Of a shorter time, what a second saw at least.
        let rate_over = over.max(RATE_OVER_NS);
        let rate = (carrier.cnps as f64 * 1e9 / rate_over as f64).round() as u64;
        let measured = over >= RATE_OVER_NS;
        let pace = match (carrier.cnps, over) {
            _ if measured && rate > 0 => format!(", {rate} a second"),
            (1, _) | (_, 0) => String::new(),
            _ => format!(" within {}", span(over)),
        };
        let of_time = if measured {
            ("cnps_per_s", rate)
        } else {
            ("within_ns", over)
        };
        let marked = sender.map_or(0, |sender| sender.ce);
        let mut summary = format!(
            "{} told QP {} of {} to slow down{pace}",
            plural(carrier.cnps, "CNP", "CNPs"),
            carrier.key.dest_qp,
            carrier.key.dst,
        );
        if let Some(sender) = sender.filter(|_| marked > 0) {
            let _ = write!(
                summary,
                "; {} of its packets carried a congestion mark",
                percent(marked, sender.packets)
            );
        }
        let throttled = sender.and_then(|sender| case.tracker.throttled(sender));
        if let Some(throttled) = throttled {
            let _ = write!(summary, "; {}", reaction(&throttled));
        }
        summary.push('.');
        let severity = if rate >= case.thresholds.cnp_rate {
            Severity::Warning
        } else {
            Severity::Info
        };
        let mut draft = Draft::new(subject(carrier, sender), summary)
            .severity(severity)
            .count("cnps", carrier.cnps)
            .count(of_time.0, of_time.1)
            .count("ce", marked)
            .frames(&frames(case, carrier))
            .cost(0, carrier.cnps);
        if let Some(throttled) = throttled {
            draft = draft
                .count("bps_before", throttled.before_bps as u64)
                .count("bps_after", throttled.after_bps as u64)
                .count("percent_of_before", throttled.percent());
            if !throttled.slowed() {
                draft = draft.hint(
                    "Switch rate control (DCQCN) on at the sender, or see why it has no effect. \
                     An application that sends less than its link carries need not slow down.",
                );
            }
        }
        draft
    };
    told(case).map(draft).collect()
}

/// `ce-without-cnp`.
pub(super) fn unanswered(case: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let marked = flow.trail.mark(Sign::Congested);
    let known = flow.flow?;
    let back = case.pair(known.key.dst, known.key.src);
    // Where it is not known which queue pair a CNP would go to, any will do.
    let cnps = flow.peer.map_or(back.cnps, |peer| peer.cnps);
    if marked.count == 0 || back.packets == 0 || cnps > 0 {
        return None;
    }
    let summary = format!(
        "{} marked congestion experienced ({} of the flow), and no CNP came back.",
        plural(marked.count, "packet is", "packets are"),
        percent(marked.count, known.packets),
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("ce", marked.count)
            .count("cnps", 0)
            .count("ecn_capable", known.ecn_capable)
            .count("packets", known.packets)
            .frames(&marked.frames)
            .cost(0, marked.count),
    )
}

/// `cnp-without-ce`.
pub(super) fn unmarked(case: &Case<'_>) -> Vec<Draft> {
    let draft = |(carrier, sender): (&Flow, Option<&Flow>)| {
        let sender = sender.filter(|sender| sender.ce == 0 && sender.requests.packets > 0)?;
        let summary = format!(
            "{} came back, and none of the {} that they are about is marked here.",
            plural(carrier.cnps, "CNP", "CNPs"),
            plural(sender.packets, "packet", "packets"),
        );
        let draft = Draft::new(Subject::Flow(sender.key), summary)
            .count("cnps", carrier.cnps)
            .count("ecn_capable", sender.ecn_capable)
            .count("packets", sender.packets)
            .frames(&frames(case, carrier))
            .cost(0, carrier.cnps);
        Some(if sender.ecn_capable == 0 {
            draft.hint(
                "The sender's packets are not ECN-capable, so that no switch can mark them: see \
                 what makes the receiver send CNPs.",
            )
        } else {
            draft
        })
    };
    told(case).filter_map(draft).collect()
}
