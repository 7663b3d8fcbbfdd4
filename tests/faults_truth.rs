//! The tracker against captures of faults, for which is known what was done to
//! the packets, and what both ends' drivers counted.

mod common;

use common::tracked::{Tracked, track};
use common::{capture, number, truth};
use roce_sniff::track::{
    Cause, CmState, EventKind, Flow, FlowId, How, Message, PsnCounts, service_name,
};
use roce_sniff::wire::aeth::{AethKind, NakCode};
use serde_json::Value;

fn follow(name: &str) -> (Tracked, Value) {
    (track(&capture(name).packets), truth()[name].clone())
}

/// The flow with most requests.
fn requester(tracked: &Tracked) -> &Flow {
    let flows = tracked.tracker.flows();
    flows.max_by_key(|flow| flow.requests.packets).unwrap()
}

fn peer<'t>(tracked: &'t Tracked, flow: &Flow) -> &'t Flow {
    let peer = flow.peer.and_then(|id| tracked.tracker.flow(id));
    peer.expect("it is answered")
}

/// Packets whose PSN came before.
fn repeated(counts: &PsnCounts) -> u64 {
    counts.retransmitted - counts.refilled + counts.duplicates + counts.mirror_duplicates
}

fn sequence_naks(flow: &Flow) -> u64 {
    let hit = flow
        .naks()
        .find(|(code, _)| *code == Some(NakCode::SEQUENCE));
    hit.map_or(0, |(_, count)| count)
}

fn check_answered(messages: &[&Message], count: usize) {
    assert_eq!(messages.len(), count);
    for message in messages {
        assert!(
            message.complete && message.acked_ns.is_some(),
            "{message:#?}"
        );
    }
}

/// Loss on the way, at the end that sends: everything is there once, and what
/// was lost again with what follows it.
#[test]
fn loss_at_the_sender() {
    let (tracked, known) = follow("lossy_sender");
    let flow = requester(&tracked);
    let requests = flow.requests;
    let again = known["repeated_in_this_capture"]["10.0.0.2"].as_u64();
    assert_eq!(Some(repeated(&requests)), again, "{requests:?}");
    assert_eq!(
        Some(requests.packets),
        number(&known, "packets_from_client")
    );
    assert_eq!(
        (requests.gaps, requests.missing, requests.refilled),
        (0, 0, 0)
    );
    assert_eq!(
        (requests.reordered, requests.duplicates),
        (0, 0),
        "{requests:?}"
    );
    assert_eq!(sequence_naks(peer(&tracked, flow)), 14);
    assert_eq!(
        flow.retransmit_runs.sequence_nak, 14,
        "{:?}",
        flow.retransmit_runs
    );
    check_answered(&tracked.messages(flow.id), 70);
}

/// The same at the end that receives: each packet lost is a gap, and is filled
/// when it was sent again.
#[test]
fn loss_at_the_receiver() {
    let (tracked, known) = follow("lossy_receiver");
    let flow = requester(&tracked);
    let requests = flow.requests;
    let lost = number(&known, "lost_from_client");
    assert_eq!(Some(requests.skipped), lost, "{requests:?}");
    assert_eq!(Some(requests.refilled), lost, "{requests:?}");
    assert_eq!(
        (requests.missing, requests.capture_loss),
        (0, 0),
        "{requests:?}"
    );
    let again = known["repeated_in_this_capture"]["10.0.0.2"].as_u64();
    assert_eq!(Some(repeated(&requests)), again, "{requests:?}");
    assert_eq!(sequence_naks(peer(&tracked, flow)), 14);
    assert_eq!(
        flow.retransmit_runs.sequence_nak, 14,
        "{:?}",
        flow.retransmit_runs
    );
    check_answered(&tracked.messages(flow.id), 70);
}

/// Lost READ responses: gaps where they did not arrive, none where they left.
#[test]
fn lost_responses() {
    let (tracked, known) = follow("read_loss");
    let flow = requester(&tracked);
    let responses = peer(&tracked, flow).responses;
    let lost = number(&known, "lost_from_server").unwrap();
    assert!(
        responses.skipped > 0 && responses.skipped <= lost,
        "{responses:?}"
    );
    assert_eq!(responses.refilled, responses.skipped, "{responses:?}");
    assert_eq!(
        (responses.missing, responses.reordered),
        (0, 0),
        "{responses:?}"
    );
    check_answered(&tracked.messages(flow.id), 24);
    let (tracked, known) = follow("read_loss_responder");
    let flow = requester(&tracked);
    let responses = peer(&tracked, flow).responses;
    let again = known["repeated_in_this_capture"]["10.0.0.1"].as_u64();
    assert_eq!(Some(repeated(&responses)), again, "{responses:?}");
    assert_eq!((responses.new, responses.gaps), (96, 0), "{responses:?}");
    check_answered(&tracked.messages(flow.id), 24);
}

/// PSNs that start over while packets are lost.
#[test]
fn loss_while_numbers_wrap_around() {
    let (tracked, _) = follow("psn_wrap");
    for (qp, packets) in [(0x13, 48), (0x14, 6)] {
        let mut flows = tracked.tracker.flows();
        let flow = flows.find(|f| f.key.dest_qp.get() == qp).unwrap();
        let requests = flow.requests;
        assert_eq!(
            (requests.new, requests.gaps, requests.missing),
            (packets, 0, 0)
        );
        assert_eq!(requests.new + requests.retransmitted, requests.packets);
        let count = flow.messages as usize;
        check_answered(&tracked.messages(flow.id), count);
    }
}

/// Receivers that were not ready, and the requesters' patience.
#[test]
fn not_ready() {
    let (tracked, known) = follow("rnr");
    let list = known["rnr"].as_array().unwrap();
    let frames = tracked.frames(|kind| matches!(kind, EventKind::Rnr { .. }));
    let wanted: Vec<u64> = list.iter().filter_map(|nak| number(nak, "frame")).collect();
    assert_eq!(frames, wanted);
    let timers = tracked
        .log
        .events
        .iter()
        .filter_map(|told| match told.kind {
            EventKind::Rnr { timer, .. } => Some(u64::from(timer)),
            _ => None,
        });
    let wanted = list.iter().filter_map(|nak| number(nak, "timer_code"));
    assert_eq!(timers.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    let naks: u64 = tracked.tracker.flows().map(|flow| flow.rnr_naks).sum();
    assert_eq!(Some(naks), number(&known, "rnr_naks"));
    let again: u64 = tracked
        .tracker
        .flows()
        .map(|flow| repeated(&flow.requests))
        .sum();
    assert_eq!(
        Some(again),
        known["repeated_in_this_capture"]["10.0.0.2"].as_u64()
    );
    let flows: Vec<FlowId> = tracked.tracker.flows().map(|flow| flow.id).collect();
    for id in flows {
        let messages = tracked.messages(id);
        check_answered(&messages, messages.len());
        assert!(
            messages.iter().all(|m| m.refused.is_none()),
            "{messages:#?}"
        );
    }
}

/// Packets that overtook others, which nobody had lost.
#[test]
fn overtaken_packets() {
    let (tracked, known) = follow("reorder");
    let flow = requester(&tracked);
    let requests = flow.requests;
    assert_eq!(requests.missing, 0, "{requests:?}");
    assert_eq!(requests.refilled, 0, "nothing was lost: {requests:?}");
    assert!(requests.reordered > 0, "{requests:?}");
    let overtaken = number(&known, "arrived_after_one_sent_later").unwrap();
    assert!(requests.reordered <= overtaken, "{requests:?}");
    assert_eq!(
        Some(sequence_naks(peer(&tracked, flow))),
        number(&known, "sequence_naks")
    );
    let again = known["repeated_in_this_capture"]["10.0.0.2"].as_u64();
    assert_eq!(Some(repeated(&requests)), again, "{requests:?}");
    check_answered(&tracked.messages(flow.id), 40);
}

/// Bits that changed on the way, where the ICRC covers them.
#[test]
fn changed_bits() {
    let (tracked, known) = follow("corrupt");
    let wrong = tracked.frames(|kind| *kind == EventKind::BadIcrc);
    let list = known["corrupted_packets"].as_array().unwrap();
    let bad = list.iter().filter(|p| p["icrc_ok"] == false);
    let wanted: Vec<u64> = bad.filter_map(|p| number(p, "frame")).collect();
    assert_eq!(wrong, wanted);
    let count: u64 = tracked.tracker.flows().map(|flow| flow.icrc_invalid).sum();
    assert_eq!(Some(count), number(&known, "icrc_wrong"));
    // The operations all succeeded in the end.
    let answered = tracked
        .log
        .messages
        .iter()
        .filter(|m| m.acked_ns.is_some() && m.complete);
    assert_eq!(answered.count(), 370);
}

/// Memory that may not be touched.
#[test]
fn refused_keys() {
    let (tracked, known) = follow("bad_rkey");
    for attempt in known["attempts"].as_array().unwrap() {
        let qp = number(attempt, "dest_qp").unwrap();
        let named = (number(attempt, "va"), number(attempt, "rkey"));
        let of = |m: &&Message| {
            let remote = m.remote.map(|r| (r.va.get(), u64::from(r.rkey.get())));
            u64::from(m.key.dest_qp.get()) == qp && remote == named.0.zip(named.1)
        };
        let messages: Vec<&Message> = tracked.log.messages.iter().filter(of).collect();
        let [message] = messages[..] else {
            panic!("{attempt}: {messages:#?}");
        };
        let remote = message.remote.unwrap();
        assert_eq!(
            Some(u64::from(remote.len)),
            number(attempt, "size"),
            "{attempt}"
        );
        let refusal = AethKind::Nak(NakCode::REMOTE_ACCESS);
        if attempt["status"] == "success" {
            assert_eq!(message.refused, None, "{attempt}");
            assert!(message.acked_ns.is_some(), "{attempt}");
        } else {
            assert_eq!(message.refused, Some(refusal), "{attempt}");
            assert_eq!(message.acked_ns, None, "{attempt}");
            let nak = number(attempt, "frame_of_nak").unwrap();
            assert_eq!(message.last_frame, nak, "{attempt}");
        }
    }
}

/// A responder that dies: its requester tries six times, then gives up.
#[test]
fn dead_responder() {
    let (tracked, known) = follow("peer_dies");
    let flow = requester(&tracked);
    let messages = tracked.messages(flow.id);
    assert_eq!(messages.len(), 13);
    let dead: Vec<_> = messages.iter().filter(|m| m.acked_ns.is_none()).collect();
    assert_eq!(dead.len(), 3, "{dead:#?}");
    for message in dead {
        assert!(message.complete, "{message:#?}");
        assert_eq!(message.retransmits, 2 * 5, "{message:#?}");
        assert_eq!(message.refused, None, "{message:#?}");
    }
    assert_eq!(flow.requests.retransmitted, 3 * 2 * 5);
    let runs = flow.retransmit_runs;
    assert_eq!((runs.timeout, runs.total()), (5, 5));
    let silences = tracked
        .log
        .events
        .iter()
        .filter_map(|told| match told.kind {
            EventKind::Retransmitted {
                cause: Cause::Timeout { silence_ns },
                begins: true,
                ..
            } => Some(silence_ns),
            _ => None,
        });
    // Between the copies of the first there are those of the others.
    let between = known["between_copies_of_the_first_unanswered_ns"]
        .as_array()
        .unwrap();
    for (silence, between) in silences.zip(between) {
        let between = between.as_i64().unwrap();
        assert!(
            silence <= between && silence > between / 2,
            "{silence} of {between}"
        );
    }
}

/// Connections that were asked for and refused.
#[test]
fn refused_connections() {
    let (tracked, known) = follow("cm_refused");
    let connections = tracked.tracker.connections();
    let requests = known["requests"].as_array().unwrap();
    let rejections = known["rejections"].as_array().unwrap();
    assert_eq!(connections.len(), requests.len(), "{connections:#?}");
    for ((connection, request), rejection) in connections.iter().zip(requests).zip(rejections) {
        assert_eq!(connection.how, How::Cm);
        let life = connection.cm.unwrap();
        assert_eq!(life.service_id, number(request, "service_id"));
        let reason = number(rejection, "reason").unwrap() as u16;
        assert_eq!(life.state, CmState::Rejected(reason));
        let frames = (life.first_frame.1, life.last_frame.1);
        let wanted = (number(request, "frame"), number(rejection, "frame"));
        assert_eq!((Some(frames.0), Some(frames.1)), wanted);
        assert_eq!(life.setup_ns(), None);
        assert_eq!(life.service_id.and_then(service_name), None);
    }
}

/// Frames as long as a path MTU of 4096 makes them.
#[test]
fn long_frames() {
    let (tracked, known) = follow("jumbo");
    let flow = requester(&tracked);
    assert_eq!(flow.mtu.map(u64::from), number(&known, "path_mtu"));
    let messages = tracked.messages(flow.id);
    check_answered(&messages, 8);
    assert!(messages.iter().all(|m| m.bytes == 16384), "{messages:#?}");
}

/// From a request to its answer, as measured by hand at either end, but for
/// the first, which was not delayed.
#[test]
fn latencies() {
    for name in ["delay", "delay_responder"] {
        let (tracked, known) = follow(name);
        let flow = requester(&tracked);
        assert_eq!(flow.latency.count(), 20, "{name}");
        let messages = tracked.messages(flow.id);
        let later = messages.iter().filter(|m| m.first_psn != flow.first_psn);
        let mut list: Vec<i64> = later.filter_map(|m| m.latency_ns()).collect();
        list.sort_unstable();
        assert_eq!(list.len(), 19, "{name}");
        let known = &known["request_to_answer_in_this_capture"];
        let known = ["min_ns", "median_ns", "max_ns"].map(|what| known[what].as_i64().unwrap());
        assert_eq!([list[0], list[9], list[18]], known, "{name}: {list:?}");
        assert_eq!(flow.latency.max(), Some(known[2] as u64), "{name}");
    }
}

/// Queue pair numbers that are used again.
#[test]
fn numbers_used_again() {
    let (tracked, known) = follow("qp_reuse");
    let first = number(&known, "first_frame_of_second_run").unwrap();
    let reused = tracked.frames(|kind| matches!(kind, EventKind::Reused { .. }));
    assert_eq!(reused.first(), Some(&first));
    assert_eq!(tracked.tracker.flows().count(), 4);
    for flow in tracked.tracker.flows() {
        let second = flow.first_frame.1 >= first;
        assert_eq!(flow.ended, !second, "{flow:?}");
        assert_eq!(flow.requests.gaps + flow.requests.missing, 0, "{flow:?}");
        let before = flow.last_frame.1 < first;
        assert_eq!(before, !second, "{flow:?}");
    }
    assert_eq!(tracked.log.messages.len(), 10);
}
