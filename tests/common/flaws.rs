//! What must add up in a tracker, whatever it was fed.

use super::tracked::{Tracked, name};
use proptest::{prop_assert, test_runner::TestCaseError};
use roce_sniff::track::{EventKind, Flow, PsnCounts};
use std::collections::BTreeSet;

/// Fails a case unless everything adds up.
pub fn check_flawless(tracked: &Tracked) -> Result<(), TestCaseError> {
    let flaws = all_flaws(tracked);
    prop_assert!(flaws.is_empty(), "\n{}", flaws.join("\n"));
    Ok(())
}

/// What does not add up in a tracker, one line each.
pub fn all_flaws(tracked: &Tracked) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut sum = tracked.tracker.evicted().packets;
    let (mut messages, mut bytes) = (0, 0);
    for flow in tracked.tracker.flows() {
        let named = |what| format!("{}: {what}", name(flow.key));
        wrong.extend(flow_flaws(flow).into_iter().map(named));
        sum += flow.packets;
        messages += flow.messages;
        bytes += flow.message_bytes;
        let own = tracked.tracker.flow(flow.id).map(|own| own.packets);
        if own != Some(flow.packets) {
            wrong.push(named(format!("looked up by its number: {own:?}")));
        }
        if let Some(peer) = flow.peer.and_then(|id| tracked.tracker.flow(id)) {
            let opposite = (peer.key.src, peer.key.dst) == (flow.key.dst, flow.key.src);
            if !opposite {
                wrong.push(named(format!("its peer is {}", name(peer.key))));
            }
            if peer.peer != Some(flow.id) {
                wrong.push(named(format!("its peer's peer is {:?}", peer.peer)));
            }
        }
    }
    if sum != tracked.fed {
        wrong.push(format!("{} packets fed, {sum} counted", tracked.fed));
    }
    if tracked.tracker.evicted().flows == 0 {
        let told = tracked.log.messages.len() as u64;
        if told != messages {
            wrong.push(format!("{told} messages told, {messages} counted"));
        }
        let whole = tracked.log.messages.iter().filter(|m| m.complete);
        let told: u64 = whole.map(|m| m.bytes).sum();
        if told != bytes {
            wrong.push(format!("{told} bytes of messages told, {bytes} counted"));
        }
        wrong.extend(event_flaws(tracked));
    }
    wrong.extend(connection_flaws(tracked));
    wrong
}

/// Runs of packets sent again for which there is no NAK: in captures whose
/// pairs are never in doubt, since a flow keeps the runs of an earlier peer.
pub fn run_flaws(tracked: &Tracked) -> Vec<String> {
    let mut wrong = Vec::new();
    for flow in tracked.tracker.flows() {
        let Some(peer) = flow.peer.and_then(|id| tracked.tracker.flow(id)) else {
            continue;
        };
        let runs = flow.retransmit_runs;
        if runs.sequence_nak > peer.naks[0] || runs.rnr > peer.rnr_naks {
            let naks = format!("{} sequence NAKs, {} RNR NAKs", peer.naks[0], peer.rnr_naks);
            wrong.push(format!("{}: {runs:?} of {naks}", name(flow.key)));
        }
    }
    wrong
}

/// Events are what the counts are made of.
fn event_flaws(tracked: &Tracked) -> Vec<String> {
    let mut wrong = Vec::new();
    for flow in tracked.tracker.flows() {
        let count = |wanted: &dyn Fn(&EventKind) -> bool| {
            let own = tracked
                .log
                .events
                .iter()
                .filter(|told| told.flow == flow.id);
            own.filter(|told| wanted(&told.kind)).count() as u64
        };
        let (asks, answers) = (&flow.requests, &flow.responses);
        let naks: u64 = flow.naks.iter().sum();
        let gaps = |of: bool| {
            count(&|kind| matches!(kind, EventKind::Gap { responses, .. } if *responses == of))
        };
        let sent_again = |of: bool| {
            count(
                &|kind| matches!(kind, EventKind::Retransmitted { responses, .. } if *responses == of),
            )
        };
        let reordered = |of: bool| {
            count(&|kind| matches!(kind, EventKind::Reordered { responses } if *responses == of))
        };
        let begun = count(&|kind| {
            matches!(
                kind,
                EventKind::Retransmitted {
                    begins: true,
                    responses: false,
                    ..
                }
            )
        });
        let pairs = [
            ("request gaps", asks.gaps, gaps(false)),
            ("response gaps", answers.gaps, gaps(true)),
            ("requests sent again", asks.retransmitted, sent_again(false)),
            (
                "responses sent again",
                answers.retransmitted,
                sent_again(true),
            ),
            ("requests reordered", asks.reordered, reordered(false)),
            ("responses reordered", answers.reordered, reordered(true)),
            ("runs", flow.retransmit_runs.total(), begun),
            (
                "NAKs",
                naks,
                count(&|kind| matches!(kind, EventKind::Nak { .. })),
            ),
            (
                "RNR NAKs",
                flow.rnr_naks,
                count(&|kind| matches!(kind, EventKind::Rnr { .. })),
            ),
            ("CNPs", flow.cnps, count(&|kind| *kind == EventKind::Cnp)),
            (
                "CE",
                flow.ce,
                count(&|kind| *kind == EventKind::CongestionExperienced),
            ),
            (
                "bad ICRCs",
                flow.icrc_invalid,
                count(&|kind| *kind == EventKind::BadIcrc),
            ),
            (
                "fragments",
                flow.fragments,
                count(&|kind| *kind == EventKind::Fragment),
            ),
        ];
        for (what, counted, told) in pairs {
            if counted != told {
                let flow = name(flow.key);
                wrong.push(format!("{flow}: {what}: counted {counted}, told {told}"));
            }
        }
    }
    wrong
}

/// Every flow is in one connection.
fn connection_flaws(tracked: &Tracked) -> Vec<String> {
    let mut wrong = Vec::new();
    let connections = tracked.tracker.connections();
    let ids = connections.iter().flat_map(|c| [c.forward, c.backward]);
    let mut seen = BTreeSet::new();
    for id in ids.flatten() {
        if !seen.insert(id) {
            wrong.push(format!("{id:?} is in two connections"));
        }
    }
    for c in &connections {
        for (id, from, to) in [(c.forward, c.a, c.b), (c.backward, c.b, c.a)] {
            let Some(flow) = id.and_then(|id| tracked.tracker.flow(id)) else {
                continue;
            };
            let key = flow.key;
            if (key.src, key.dst, Some(key.dest_qp)) != (from.ip, to.ip, to.qp) {
                wrong.push(format!("{} in {c:?}", name(key)));
            }
        }
    }
    wrong
}

/// What does not add up in the counts of a sequence.
fn uneven(counts: &PsnCounts) -> Vec<String> {
    let c = counts;
    let mut wrong = Vec::new();
    let mut check = |right: bool, what: &str| {
        if !right {
            wrong.push(what.to_owned());
        }
    };
    let parts = c.new + c.retransmitted + c.reordered + c.duplicates + c.mirror_duplicates;
    check(c.packets == parts, "packets is not the sum of its parts");
    check(c.gaps <= c.new, "more gaps than new packets");
    check(c.gaps <= c.skipped, "more gaps than PSNs skipped");
    // What only answers showed is skipped, and no packet came after it.
    check(
        c.gaps > 0 || c.skipped == c.missing,
        "skipped without a gap, and not missing",
    );
    check(c.missing <= c.skipped, "more missing than skipped");
    check(
        c.capture_loss <= c.missing,
        "more lost by the capture than missing",
    );
    check(
        c.refilled <= c.retransmitted,
        "more refilled than retransmitted",
    );
    wrong
}

/// What does not add up in a flow; empty where all does.
pub fn flow_flaws(flow: &Flow) -> Vec<String> {
    let f = flow;
    let mut wrong = Vec::new();
    for (name, counts) in [("requests", &f.requests), ("responses", &f.responses)] {
        let uneven = uneven(counts).into_iter();
        wrong.extend(uneven.map(|what| format!("{name}: {what}: {counts:?}")));
    }
    let mut check = |right: bool, what: String| {
        if !right {
            wrong.push(what);
        }
    };
    let (requests, responses) = (f.requests.packets, f.responses.packets);
    let parts = [
        requests,
        responses,
        f.acknowledgements,
        f.cnps,
        f.untracked,
        f.corrupted,
    ];
    let sum: u64 = parts.iter().sum();
    check(
        f.packets == sum,
        format!(
            "{} packets, but {parts:?} (requests, responses, acknowledgements, CNPs, untracked, \
             corrupted) are {sum}",
            f.packets
        ),
    );
    let ops: u64 = f.ops.sorted().iter().map(|(_, count)| count).sum();
    check(
        f.packets == ops,
        format!("{} packets, {ops} by operation", f.packets),
    );
    let naks: u64 = f.naks.iter().sum();
    let answers = f.acks + naks + f.rnr_naks;
    check(
        answers <= f.acknowledgements,
        format!("{} acknowledgements, {answers} by kind", f.acknowledgements),
    );
    check(
        f.corrupted <= f.icrc_invalid,
        format!("{} corrupted, {} bad ICRCs", f.corrupted, f.icrc_invalid),
    );
    check(
        f.ce <= f.ecn_capable && f.ecn_capable <= f.packets,
        format!(
            "{} CE, {} ECN-capable of {}",
            f.ce, f.ecn_capable, f.packets
        ),
    );
    check(
        f.goodput_bytes <= f.payload_bytes && f.payload_bytes <= f.wire_bytes,
        format!(
            "{} bytes of goodput, {} of payload, {} on the wire",
            f.goodput_bytes, f.payload_bytes, f.wire_bytes
        ),
    );
    check(
        f.latency.count() <= f.messages,
        format!("{} latencies of {} messages", f.latency.count(), f.messages),
    );
    check(
        f.icrc_valid + f.icrc_invalid <= f.packets,
        format!("{} right and {} wrong ICRCs", f.icrc_valid, f.icrc_invalid),
    );
    let again = f.requests.retransmitted + f.responses.retransmitted;
    check(
        f.retransmit_runs.total() <= again,
        format!("{:?} of {again} packets sent again", f.retransmit_runs),
    );
    wrong
}
