//! Packets that are not as they should be: corrupted, copied, of odd sizes.

use super::{Case, Draft, FlowCase, Subject, trail::Sign};
use crate::{
    frame::Reason,
    wire::cm::mtu_bytes,
    words::{either, grouped, percent, plural},
};

/// So many wrong ICRCs and not one right: rewriting, no corruption.
const REWRITTEN: u64 = 4;

/// Wrong ICRCs and right ones of a flow.
fn icrcs(flow: &FlowCase<'_>) -> Option<(u64, u64)> {
    let bad = flow.trail.count(Sign::BadIcrc);
    (bad > 0).then(|| (bad, flow.flow.map_or(0, |flow| flow.icrc_valid)))
}

/// `icrc-invalid`.
pub(super) fn icrc(case: &Case<'_>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    let mut strays = super::Sum::default();
    for flow in case.flows() {
        let Some((bad, good)) = icrcs(&flow) else {
            continue;
        };
        let mark = flow.trail.mark(Sign::BadIcrc);
        if good > 0 {
            let summary = format!(
                "{} a wrong ICRC ({} of those checked): corrupted on the way.",
                plural(bad, "packet has", "packets have"),
                percent(bad, bad + good)
            );
            drafts.push(
                Draft::new(flow.subject(), summary)
                    .count("icrc_invalid", bad)
                    .count("icrc_valid", good)
                    .frames(&mark.frames)
                    .cost(0, bad),
            );
        } else if bad < REWRITTEN {
            strays.add(&flow, mark);
        }
    }
    if strays.mark.count > 0 {
        let summary = format!(
            "{} with a wrong ICRC {} of flows that have no right one: what was hit may be the \
             address or the queue pair number.",
            plural(strays.mark.count, "packet", "packets"),
            if strays.mark.count == 1 { "is" } else { "are" },
        );
        drafts.push(
            Draft::new(strays.subject(), summary)
                .count("icrc_invalid", strays.mark.count)
                .count("flows", strays.flows)
                .frames(&strays.mark.frames)
                .cost(0, strays.mark.count),
        );
    }
    drafts
}

/// `icrc-rewritten`.
pub(super) fn rewritten(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let (bad, good) = icrcs(flow)?;
    if good > 0 || bad < REWRITTEN {
        return None;
    }
    let summary = format!(
        "All {} packets that could be checked have a wrong ICRC: they were rewritten, not \
         corrupted.",
        grouped(bad)
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("icrc_invalid", bad)
            .frames(&flow.trail.mark(Sign::BadIcrc).frames)
            .cost(0, bad),
    )
}

/// `duplicates`.
pub(super) fn duplicates(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let copies = flow.trail.mark(Sign::Duplicate);
    let answered = flow.trail.mark(Sign::DuplicateAnswered);
    let count = copies.count + answered.count;
    if count == 0 {
        return None;
    }
    let all = flow.flow.map_or(0, |flow| flow.packets);
    let summary = format!(
        "{} twice although nothing had asked for it{}{}.",
        plural(count, "packet came", "packets came"),
        match all {
            0 => String::new(),
            all => format!(" ({} of the flow)", percent(count, all)),
        },
        match answered.count {
            0 => String::new(),
            n => format!("; the responder answered {} of the copies", grouped(n)),
        },
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("duplicates", count)
            .count("answered", answered.count)
            .count_some("packets", all)
            .frames(&copies.frames)
            .frames(&answered.frames)
            .cost(0, count),
    )
}

/// `mirror-duplicates`.
pub(super) fn mirror_duplicates(case: &Case<'_>) -> Vec<Draft> {
    let mut copies = super::Sum::default();
    for flow in case.flows() {
        let mut mark = flow.trail.mark(Sign::MirrorDuplicate).clone();
        // What was answered is told as a duplicate of the network.
        let answered = flow.trail.count(Sign::DuplicateAnswered);
        mark.count = mark.count.saturating_sub(answered);
        copies.add(&flow, &mark);
    }
    if copies.mark.count == 0 {
        return Vec::new();
    }
    let summary = format!(
        "{}{} {} in the capture twice.",
        plural(copies.mark.count, "packet", "packets"),
        copies.of_flows(),
        either(copies.mark.count, "is", "are"),
    );
    let draft = Draft::new(copies.subject(), summary)
        .count("mirror_duplicates", copies.mark.count)
        .count("flows", copies.flows)
        .frames(&copies.mark.frames)
        .cost(0, copies.mark.count);
    vec![draft]
}

/// `ip-fragments`.
pub(super) fn fragments(case: &Case<'_>) -> Vec<Draft> {
    let firsts = case.sum(Sign::Fragment);
    let later = skipped(case, Reason::Fragment);
    if firsts.mark.count == 0 {
        return Vec::new();
    }
    let summary = format!(
        "{}{} came in IP fragments; {} followed.",
        plural(firsts.mark.count, "packet", "packets"),
        firsts.of_flows(),
        plural(later, "later fragment", "later fragments")
    );
    let draft = Draft::new(firsts.subject(), summary)
        .count("first_fragments", firsts.mark.count)
        .count("later_fragments", later)
        .count("flows", firsts.flows)
        .frames(&firsts.mark.frames)
        .cost(0, firsts.mark.count);
    vec![draft]
}

/// `malformed`.
pub(super) fn malformed(case: &Case<'_>) -> Vec<Draft> {
    let packets = case.sum(Sign::Malformed);
    let messages = case.sum(Sign::MalformedMessage);
    let headers = skipped(case, Reason::Malformed);
    if packets.mark.count + messages.mark.count + headers == 0 {
        return Vec::new();
    }
    let mut parts = Vec::new();
    if packets.mark.count > 0 {
        parts.push(format!(
            "{}{} with lengths that contradict the opcode",
            plural(packets.mark.count, "packet", "packets"),
            packets.of_flows()
        ));
    }
    if messages.mark.count > 0 {
        parts.push(format!(
            "{}{} that do not carry the bytes they name",
            plural(messages.mark.count, "WRITE", "WRITEs"),
            messages.of_flows()
        ));
    }
    if headers > 0 {
        parts.push(plural(
            headers,
            "frame with a header that contradicts itself",
            "frames with a header that contradicts itself",
        ));
    }
    let summary = format!("The capture has {}.", parts.join(" and "));
    let subject = match (packets.flows, messages.flows) {
        (0, _) => messages.subject(),
        (_, 0) => packets.subject(),
        _ => Subject::Capture,
    };
    let draft = Draft::new(subject, summary)
        .count_some("malformed_packets", packets.mark.count)
        .count_some("malformed_messages", messages.mark.count)
        .count_some("malformed_headers", headers)
        .frames(&packets.mark.frames)
        .frames(&messages.mark.frames)
        .cost(0, packets.mark.count + messages.mark.count + headers);
    vec![draft]
}

fn skipped(case: &Case<'_>, reason: Reason) -> u64 {
    let mut skipped = case.summary.skipped();
    let of = skipped.find(|(skipped, _)| *skipped == reason);
    of.map_or(0, |(_, count)| count)
}

/// The path MTU of a direction whose packets are not of the one that the other
/// direction showed first.
fn own_mtu(flow: &FlowCase<'_>) -> Option<u64> {
    let odd = flow.trail.mark(Sign::OddMtu);
    // One packet is no direction.
    let size = odd
        .amount
        .checked_div(odd.count)
        .filter(|_| odd.count > 1)?;
    let sizes = (1..=5).filter_map(mtu_bytes);
    let known = sizes.map(u64::from).any(|mtu| mtu == size);
    (known && size * odd.count == odd.amount).then_some(size)
}

/// `odd-mtu`.
pub(super) fn odd_mtu(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let odd = flow.trail.mark(Sign::OddMtu);
    if odd.count == 0 || own_mtu(flow).is_some() {
        return None;
    }
    let mtu = flow.flow.and_then(|flow| flow.mtu).unwrap_or(0);
    let summary = format!(
        "{} in the middle of a message not of the size of the path MTU, {mtu} bytes.",
        plural(odd.count, "packet is", "packets are"),
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("odd_packets", odd.count)
            .count("path_mtu", mtu.into())
            .frames(&odd.frames)
            .cost(0, odd.count),
    )
}

/// `mtu-differs`.
pub(super) fn mtu_differs(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let own = own_mtu(flow)?;
    let mtu = flow.flow?.mtu?;
    let summary =
        format!("Packets of this direction are of {own} bytes, those of the other of {mtu}.");
    Some(
        Draft::new(flow.subject(), summary)
            .count("path_mtu", own)
            .count("path_mtu_back", mtu.into())
            .frames(&flow.trail.mark(Sign::OddMtu).frames),
    )
}

/// `mixed-dscp`.
pub(super) fn dscp(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let other = flow.trail.mark(Sign::OtherDscp);
    let known = flow.flow?;
    if other.count == 0 {
        return None;
    }
    let summary = format!(
        "{} of {} {} another DSCP than the flow's first, {}.",
        grouped(other.count),
        plural(known.packets, "packet", "packets"),
        either(other.count, "has", "have"),
        known.dscp,
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("other_dscp", other.count)
            .count("first_dscp", known.dscp.into())
            .count("packets", known.packets)
            .frames(&other.frames)
            .cost(0, other.count),
    )
}

/// `mixed-priority`.
pub(super) fn priority(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let other = flow.trail.mark(Sign::OtherPriority);
    let known = flow.flow?;
    let first = known.priority.filter(|_| other.count > 0)?;
    let summary = format!(
        "{} of {} {} another VLAN priority than the flow's first, {first}.",
        grouped(other.count),
        plural(known.packets, "packet", "packets"),
        either(other.count, "has", "have"),
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("other_priority", other.count)
            .count("first_priority", first.into())
            .count("packets", known.packets)
            .frames(&other.frames)
            .cost(0, other.count),
    )
}

/// `out-of-place`.
pub(super) fn out_of_place(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let odd = flow.trail.mark(Sign::OutOfPlace);
    if odd.count == 0 {
        return None;
    }
    let summary = format!(
        "{} where the order of First, Middle, Last and Only forbids it.",
        plural(odd.count, "packet stands", "packets stand")
    );
    Some(
        Draft::new(flow.subject(), summary)
            .count("packets", odd.count)
            .frames(&odd.frames)
            .cost(0, odd.count),
    )
}
