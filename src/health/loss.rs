//! Packets that did not arrive, or arrived late.

use std::fmt::Write;

use super::{
    Case, Draft, FlowCase, Severity,
    trail::{Mark, Sign},
};
use crate::words::{grouped, percent, plural};

/// `3.4 for each`.
fn for_each(packets: u64, lost: u64) -> String {
    format!("{:.1} for each", packets as f64 / lost.max(1) as f64)
}

/// In front of a number that may be greater.
const AT_LEAST: &str = "At least ";

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
        summary.insert_str(0, AT_LEAST);
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
            ", and {} sent again ({}, {} of payload)",
            plural(again.count, "packet was", "packets were"),
            for_each(again.count, lost),
            plural(again.amount, "byte", "bytes"),
        );
    }
    let in_run = trail.count(Sign::LostInRun);
    if in_run > 0 {
        let _ = write!(
            summary,
            "; {} again in a run that another finding counts",
            plural(in_run, "lost packet came", "lost packets came"),
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
            .count_some("lost_in_other_runs", in_run)
            .count_some("request_packets", all)
            .count_some("icrc_invalid", corrupted)
            .frames(&naks.frames)
            .frames(&losses.frames)
            .cost(0, again.count.max(lost)),
    )
}

/// `read-response-loss`.
pub(super) fn responses(case: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let lost = flow.trail.mark(Sign::ResponseLoss);
    if lost.count == 0 {
        return None;
    }
    let again = flow.trail.mark(Sign::ResponseAgain);
    let asking = flow.peer.and_then(|peer| case.trail(peer.id));
    let reads = asking.map_or(0, |asking| asking.count(Sign::AgainResponse));
    let all = flow.flow.map_or(0, |flow| flow.responses.packets);
    let summary = format!(
        "{}{} lost{}; {} sent again ({}, {} of payload).",
        // Lost past the capture, only the first shows that was asked for again.
        if flow.trail.count(Sign::ResponseFilled) < lost.count {
            AT_LEAST
        } else {
            ""
        },
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
        plural(again.amount, "byte", "bytes"),
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("packets_lost", lost.count)
            .count("packets_sent_again", again.count)
            .count("bytes_sent_again", again.amount)
            .count_some("reads_sent_again", reads)
            .count_some("response_packets", all)
            .frames(&lost.frames)
            .cost(0, again.count),
    )
}

/// What requests sent again count as, and the signs of the finding that tells
/// of them.
const AGAIN: &[(Sign, &[Sign])] = &[
    (Sign::AgainLost, &[Sign::LossNak, Sign::Loss]),
    (Sign::AgainLate, &[Sign::Reordered]),
    (Sign::AgainRnr, &[Sign::Rnr]),
    (Sign::AgainTimeout, &[Sign::Timeout]),
    (Sign::AgainUnknown, &[]),
];

/// `sent-again`.
pub(super) fn unexplained(case: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let trail = flow.trail;
    let untold = AGAIN
        .iter()
        .filter(|(_, told)| told.iter().all(|sign| trail.count(*sign) == 0));
    let mut again: Vec<&Mark> = untold.map(|(sign, _)| trail.mark(*sign)).collect();
    // Told of with the responses, where these show that any was lost.
    let answers = flow.peer.and_then(|peer| case.trail(peer.id));
    let mut reads = 0;
    if answers.is_none_or(|answers| answers.count(Sign::ResponseLoss) == 0) {
        let mark = trail.mark(Sign::AgainResponse);
        reads = mark.count;
        again.push(mark);
    }
    let count = again.iter().map(|mark| mark.count).sum::<u64>();
    if count == 0 {
        return None;
    }
    let bytes = again.iter().map(|mark| mark.amount).sum::<u64>();
    let mut summary = format!(
        "{} sent again ({} of payload), and no NAK or silence in the capture says why",
        plural(count, "request packet was", "request packets were"),
        plural(bytes, "byte", "bytes"),
    );
    if reads > 0 {
        let _ = write!(
            summary,
            "; {} of a READ whose requester missed a response",
            plural(reads, "is", "are")
        );
    }
    summary.push('.');
    let mut draft = Draft::new(flow.subject(), summary)
        .count("packets_sent_again", count)
        .count("bytes_sent_again", bytes)
        .count_some("reads", reads)
        .cost(0, count);
    for mark in again {
        draft = draft.frames(&mark.frames);
    }
    Some(draft)
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
