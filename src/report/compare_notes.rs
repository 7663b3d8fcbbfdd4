//! What is to be said of a comparison besides its numbers.

use super::{
    compare::{letter, saw},
    text::plural,
};
use crate::compare::{Comparison, End, Fate, FlowLeg, How, Learned, Leg, Offset};

/// What else is to be said of a leg.
pub(super) fn notes(comparison: &Comparison, leg: &Leg) -> Vec<String> {
    let mut notes = Vec::new();
    if leg.counts.matched == 0 {
        notes.push(
            "packets are the same when addresses, queue pair, PSN, opcode and ICRC agree: are \
             these captures of one traffic, and are addresses translated between the points?"
                .into(),
        );
    }
    for end in [End::Near, End::Far] {
        let (there, _) = saw(leg, end);
        notes.extend(not_lost(comparison, leg, end));
        let point = &comparison.points()[there];
        if let Some(dropped) = point.dropped.filter(|dropped| *dropped > 0) {
            notes.push(format!(
                "{}: the capturing program dropped {}, which cannot be told from packets lost on \
                 the way",
                letter(there),
                plural(dropped, "packet", "packets")
            ));
        }
        if point.beyond_cap > 0 {
            notes.push(format!(
                "{}: {} beyond the number that is kept",
                letter(there),
                plural(point.beyond_cap, "packet", "packets")
            ));
        }
    }
    let agree = |offset: &Offset| {
        let error = offset.error_ns.filter(|_| offset.how == How::BothWays);
        error.is_some_and(|error| offset.ns.unsigned_abs() <= error)
    };
    if leg.offset.as_ref().is_some_and(agree) {
        notes.push(
            "the clocks may well agree, as on one machine; --synced then shows the delay of each \
             way as it is, not half of both"
                .into(),
        );
    }
    let learned = |how: Learned| {
        let of = |flow: &&FlowLeg| flow.bound.is_some_and(|(_, learned)| learned == how);
        leg.flows.iter().filter(of).count() as u64
    };
    for (how, words) in [
        (
            Learned::Loss,
            "go the way that their losses suggest: their delays do not tell",
        ),
        (
            Learned::Order,
            "are taken to pass the points in the order these were named: neither delays nor \
             losses tell",
        ),
    ] {
        if learned(how) > 0 {
            notes.push(format!("{} {words}", plural(learned(how), "flow", "flows")));
        }
    }
    notes
}

/// Fates of packets that only one point saw and that are not counted as lost.
const NOT_LOST: [Fate; 4] = [Fate::Before, Fate::After, Fate::Elsewhere, Fate::Twice];

/// Packets that are not counted as lost though only one point saw them.
fn not_lost(comparison: &Comparison, leg: &Leg, end: End) -> Vec<String> {
    if NOT_LOST.iter().all(|fate| leg.counts.fate(*fate) == 0) {
        return Vec::new();
    }
    let mut counts = [0u64; NOT_LOST.len()];
    for packet in comparison.lone(leg).filter(|packet| packet.end == end) {
        if let Some(place) = NOT_LOST.iter().position(|fate| *fate == packet.fate) {
            counts[place] += 1;
        }
    }
    let (there, other) = saw(leg, end);
    let (there, other) = (letter(there), letter(other));
    let words = [
        format!("passed {there} before the capture at {other} began"),
        format!("passed {there} after the capture at {other} ended"),
        format!("at {there} between hosts of which {other} saw no packet that {there} saw"),
        format!("captured twice at {there}, as by a mirror of both directions"),
    ];
    let some = counts
        .into_iter()
        .zip(words)
        .filter(|(count, _)| *count > 0);
    some.map(|(count, words)| {
        let packets = plural(count, "packet", "packets");
        format!("{packets} {words}: not counted as lost")
    })
    .collect()
}
