//! What the capture cannot tell.

use super::{Case, Draft, FlowCase, Subject, trail::Sign};
use crate::{
    track::IcrcState,
    words::{either, grouped, percent, plural},
};

/// `capture-loss`.
pub(super) fn capture_loss(case: &Case<'_>) -> Vec<Draft> {
    let lost = case.sum(Sign::CaptureLoss);
    if lost.mark.amount == 0 {
        return Vec::new();
    }
    let summary = format!(
        "{}{} {} acknowledged and never captured.",
        plural(lost.mark.amount, "request packet", "request packets"),
        lost.of_flows(),
        either(lost.mark.amount, "was", "were"),
    );
    let draft = Draft::new(lost.subject(), summary)
        .count("missing", lost.mark.amount)
        .count("flows", lost.flows)
        .frames(&lost.mark.frames)
        .cost(0, lost.mark.amount);
    vec![draft]
}

/// `capture-drops`.
pub(super) fn drops(case: &Case<'_>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for input in case.inputs {
        let Some(dropped) = input.dropped.filter(|dropped| *dropped > 0) else {
            continue;
        };
        let summary = format!(
            "{}: {} dropped while it was captured, {} kept.",
            input.name,
            plural(dropped, "packet was", "packets were"),
            grouped(input.packets)
        );
        drafts.push(
            Draft::new(Subject::Capture, summary)
                .count("dropped", dropped)
                .count("packets", input.packets)
                .cost(0, dropped),
        );
    }
    drafts
}

/// `one-way-capture`.
pub(super) fn one_way(case: &Case<'_>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    if case.forgetful() {
        return drafts;
    }
    for ((src, dst), pair) in &case.pairs {
        let (src, dst) = (*src, *dst);
        let back = case.pair(dst, src);
        let (share, name, one, other) = if pair.requests.packets > 0 && back.answers.packets == 0 {
            (pair.requests, "requests", "request packet", "answer")
        } else if pair.answers.packets > 0 && back.requests.packets == 0 {
            (pair.answers, "answers", "answer", "request")
        } else {
            continue;
        };
        let flows = match share.flows {
            1 => String::new(),
            n => format!(" on {} flows", grouped(n)),
        };
        let summary = format!(
            "{} of {src} to {dst}{flows}, and not one {other} of {dst} is in the capture.",
            plural(share.packets, one, &format!("{one}s")),
        );
        let draft = Draft::new(Subject::Hosts { src, dst }, summary)
            .count(name, share.packets)
            .count("flows", share.flows)
            .frames(&share.first_frame)
            .cost(0, share.packets);
        drafts.push(draft);
    }
    // A map has no order that lasts.
    drafts.sort_by(|a, b| a.summary.cmp(&b.summary));
    drafts
}

/// `truncated`.
pub(super) fn truncated(case: &Case<'_>) -> Vec<Draft> {
    let cut = case.summary.truncated;
    let unchecked = case.summary.icrc(IcrcState::Unverifiable);
    if cut == 0 || unchecked == 0 {
        return Vec::new();
    }
    let summary = format!(
        "{} ({} of all) cut by the capture: the ICRC of {} could not be checked.",
        plural(cut, "packet is", "packets are"),
        percent(cut, case.summary.packets),
        grouped(unchecked),
    );
    let draft = Draft::new(Subject::Capture, summary)
        .count("truncated", cut)
        .count("icrc_unverifiable", unchecked)
        .count("packets", case.summary.packets)
        .cost(0, cut);
    vec![draft]
}

/// `qp-reused`.
pub(super) fn reused(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let again = flow.trail.mark(Sign::Reused);
    if again.count == 0 {
        return None;
    }
    let summary = "From this packet on the queue pair number belongs to another connection.".into();
    Some(
        Draft::new(flow.subject(), summary)
            .count("reused", again.count)
            .frames(&again.frames),
    )
}

/// `unfinished`.
pub(super) fn unfinished(case: &Case<'_>) -> Vec<Draft> {
    let open = case.sum(Sign::Unanswered);
    let partial = case.sum(Sign::Partial);
    let mut parts = Vec::new();
    if open.mark.count > 0 {
        parts.push(plural(
            open.mark.count,
            "message has no answer in the capture",
            "messages have no answer in the capture",
        ));
    }
    if partial.mark.count > 0 {
        parts.push(plural(
            partial.mark.count,
            "message lacks packets",
            "messages lack packets",
        ));
    }
    if parts.is_empty() {
        return Vec::new();
    }
    let subject = match (open.flows, partial.flows) {
        (_, 0) => open.subject(),
        (0, _) => partial.subject(),
        _ => Subject::Capture,
    };
    let draft = Draft::new(subject, format!("{}.", parts.join("; ")))
        .count("unanswered", open.mark.count)
        .count("partial", partial.mark.count)
        .frames(&open.mark.frames)
        .frames(&partial.mark.frames)
        .cost(0, open.mark.count + partial.mark.count);
    vec![draft]
}

/// `flows-evicted`.
pub(super) fn evicted(case: &Case<'_>) -> Vec<Draft> {
    let evicted = case.tracker.evicted();
    let beyond = case.summary.beyond_cap;
    let unheard = case.health.beyond;
    if evicted.flows == 0 && beyond == 0 && unheard == 0 {
        return Vec::new();
    }
    let mut parts = Vec::new();
    if evicted.flows > 0 {
        parts.push(format!(
            "{} with {} {} forgotten to make room",
            plural(evicted.flows, "flow", "flows"),
            plural(evicted.packets, "packet", "packets"),
            either(evicted.flows, "was", "were"),
        ));
    }
    for (count, one, many) in [(beyond, "packet", "packets"), (unheard, "event", "events")] {
        if count > 0 {
            let what = plural(count, one, many);
            let were = either(count, "was", "were");
            parts.push(format!("{what} of further flows {were} only counted"));
        }
    }
    let draft = Draft::new(Subject::Capture, format!("{}.", parts.join("; ")))
        .count("flows_evicted", evicted.flows)
        .count("packets_evicted", evicted.packets)
        .count("packets_beyond", beyond)
        .count("events_beyond", unheard);
    vec![draft]
}
