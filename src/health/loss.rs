//! Packets that did not arrive, or arrived late.

use std::fmt::Write;

use super::{Case, Draft, FlowCase, Severity, trail::Sign};
use crate::words::{grouped, percent, plural};

/// `3.4 for each`.
fn for_each(packets: u64, lost: u64) -> String {
    format!("{:.1} for each", packets as f64 / lost.max(1) as f64)
}

/// Says where to look first when packets arrived corrupted.
fn hinted(draft: Draft, corrupted: u64) -> Draft {
    if corrupted == 0 {
        return draft;
    }
    draft.hint(
        "Packets of this flow arrived with a wrong ICRC, and a receiver counts those as lost: see \
         icrc-invalid first.",
    )
}

/// `packet-loss`.
pub(super) fn requests(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let trail = flow.trail;
    let naks = trail.mark(Sign::LossNak);
    let losses = trail.mark(Sign::Loss);
    let again = trail.mark(Sign::AgainLost);
    let lost = naks.count + losses.count;
    if lost == 0 {
        return None;
    }
    let mut summary = plural(lost, "request was lost", "requests were lost");
    if trail.count(Sign::NakFilled) < naks.count {
        // Lost further on: a NAK tells of the first of those lost at a time.
        summary.insert_str(0, "at least ");
        summary.replace_range(..1, "A");
    }
    let all = flow.flow.map_or(0, |flow| flow.requests.packets);
    if all > 0 {
        let _ = write!(
            summary,
            " ({} of {})",
            percent(lost, all),
            plural(all, "request packet", "request packets")
        );
    }
    if naks.count > 0 {
        let naks = plural(naks.count, "sequence error NAK", "sequence error NAKs");
        let them = if losses.count == 0 { "them" } else { "some" };
        let _ = write!(summary, "; the responder asked for {them} with {naks}");
    }
    if again.count > 0 {
        let _ = write!(
            summary,
            ", and {} sent again ({}, {} bytes of payload)",
            plural(again.count, "packet was", "packets were"),
            for_each(again.count, lost),
            grouped(again.amount),
        );
    }
    summary.push('.');
    let corrupted = trail.count(Sign::BadIcrc);
    Some(
        hinted(Draft::new(flow.subject(), summary), corrupted)
            .count("packets_lost", lost)
            .count("sequence_naks", naks.count)
            .count("packets_sent_again", again.count)
            .count("bytes_sent_again", again.amount)
            .count_some("request_packets", all)
            .count_some("icrc_invalid", corrupted)
            .frames(&naks.frames)
            .frames(&losses.frames)
            .cost(0, again.count.max(lost)),
    )
}

/// `read-response-loss`.
pub(super) fn responses(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let lost = flow.trail.mark(Sign::ResponseLoss);
    if lost.count == 0 {
        return None;
    }
    let again = flow.trail.mark(Sign::ResponseAgain);
    let all = flow.flow.map_or(0, |flow| flow.responses.packets);
    let summary = format!(
        "{} lost{}; {} sent again ({}, {} bytes of payload).",
        plural(lost.count, "READ response was", "READ responses were"),
        match all {
            0 => String::new(),
            all => format!(
                " ({} of {})",
                percent(lost.count, all),
                plural(all, "response packet", "response packets")
            ),
        },
        plural(again.count, "was", "were"),
        for_each(again.count, lost.count),
        grouped(again.amount),
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("packets_lost", lost.count)
            .count("packets_sent_again", again.count)
            .count("bytes_sent_again", again.amount)
            .count_some("response_packets", all)
            .frames(&lost.frames)
            .cost(0, again.count),
    )
}

/// `reordering`.
pub(super) fn reordering(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let late = flow.trail.mark(Sign::Reordered);
    if late.count == 0 {
        return None;
    }
    let naks = flow.trail.mark(Sign::LateNak);
    let again = flow.trail.mark(Sign::AgainLate);
    let mut summary = format!(
        "{} after packets that had been sent later",
        plural(late.count, "packet came", "packets came")
    );
    let severity = if naks.count > 0 {
        let _ = write!(
            summary,
            "; the responder took {} of them for lost, and {} sent again for nothing",
            grouped(naks.count),
            plural(again.count, "packet was", "packets were"),
        );
        Severity::Warning
    } else {
        summary += ", and nobody took them for lost";
        Severity::Info
    };
    summary.push('.');
    Some(
        Draft::new(flow.subject(), summary)
            .severity(severity)
            .count("packets_late", late.count)
            .count("sequence_naks", naks.count)
            .count("packets_sent_again", again.count)
            .frames(&late.frames)
            .cost(0, late.count + again.count),
    )
}

/// `ack-loss`.
pub(super) fn acks(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let skipped = flow.trail.mark(Sign::AckSkipped);
    let own = flow.flow?.acks_own;
    // A responder that gathers acknowledgements is no loss.
    if skipped.amount == 0 || own <= skipped.amount {
        return None;
    }
    let summary = format!(
        "{} missing: {} acknowledged by a later ACK, while {} asked for one got their own. Nothing \
         was sent again for that.",
        plural(skipped.amount, "ACK is", "ACKs are"),
        plural(skipped.amount, "request was", "requests were"),
        plural(own, "other that", "others that"),
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("acks_missing", skipped.amount)
            .count("acks_own", own)
            .frames(&skipped.frames)
            .cost(0, skipped.amount),
    )
}
