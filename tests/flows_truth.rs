//! The tracker against what is known of the fixtures from elsewhere: the
//! traffic's generator, the driver's counters, and reading them by hand.

mod common;

use common::capfile::Pkt;
use common::mangle::shifted;
use common::seen::Seen;
use common::tracked::{self, Tracked};
use common::{capture, fixtures, number, truth};
use roce_sniff::track::{Cause, CmState, Connection, Endpoint, EventKind, Flow, How};
use roce_sniff::wire::{
    aeth::{AethKind, NakCode},
    cm::ip_service,
    opcode::Verb,
    types::{Psn, QpNumber},
};
use serde_json::Value;
use std::net::IpAddr;

/// Follows a fixture.
fn follow(name: &str) -> Tracked {
    tracked::track(&capture(name).packets)
}

/// The flow that carries the requests: the one with most of them.
fn requester(tracked: &Tracked) -> &Flow {
    let flows = tracked.tracker.flows();
    flows.max_by_key(|flow| flow.requests.packets).unwrap()
}

/// The flow of the answers to it.
fn responder(tracked: &Tracked) -> &Flow {
    let peer = requester(tracked).peer.expect("the requests are answered");
    tracked.tracker.flow(peer).expect("the peer is kept")
}

/// 6 of 400 packets were lost before the capture: the responder asked for
/// each, and the requester went back to it and sent the one after it again.
#[test]
fn send_loss() {
    let tracked = follow("send_loss");
    let requests = requester(&tracked).requests;
    let answers = responder(&tracked);
    let sequence: u64 = answers.naks().map(|(_, count)| count).sum();
    assert_eq!(sequence, 6, "NAKs");
    assert_eq!(answers.naks().next(), Some((Some(NakCode::SEQUENCE), 6)));
    assert_eq!(answers.acks, 100, "ACKs");
    assert_eq!((requests.gaps, requests.skipped), (6, 6));
    assert_eq!((requests.missing, requests.capture_loss), (0, 0));
    assert_eq!((requests.retransmitted, requests.refilled), (12, 6));
    assert_eq!((requests.reordered, requests.duplicates), (0, 0));
    assert_eq!(requester(&tracked).retransmit_runs.sequence_nak, 6);
    assert_eq!(requester(&tracked).retransmit_runs.total(), 6);
    let gaps = tracked.frames(|kind| {
        matches!(
            kind,
            EventKind::Gap {
                missing: 1,
                responses: false
            }
        )
    });
    assert_eq!(gaps, [6, 54, 252, 279, 405, 498]);
    let naks = tracked.frames(|kind| matches!(kind, EventKind::Nak { .. }));
    assert_eq!(naks, [7, 55, 253, 280, 406, 499]);
    let begun = tracked.frames(|kind| {
        matches!(
            kind,
            EventKind::Retransmitted {
                cause: Cause::SequenceNak,
                begins: true,
                fills: true,
                responses: false
            }
        )
    });
    assert_eq!(begun, [8, 56, 254, 281, 407, 500]);
    let follows = tracked.frames(|kind| {
        matches!(
            kind,
            EventKind::Retransmitted {
                begins: false,
                fills: false,
                ..
            }
        )
    });
    assert_eq!(follows, [9, 57, 255, 282, 408, 501]);
    assert_eq!(tracked.log.events.len(), 4 * 6, "{:#?}", tracked.log.events);
}

/// 3 of 100 acknowledgements were lost; later ones cover their messages.
#[test]
fn ack_loss() {
    let tracked = follow("ack_loss");
    let flow = requester(&tracked);
    assert_eq!(flow.requests.new, 400);
    assert_eq!(flow.requests.packets, 400);
    assert_eq!(flow.requests.missing, 0);
    assert_eq!((flow.acks_own, flow.acks_skipped), (97, 3));
    assert_eq!(responder(&tracked).acks, 97);
    let skipped = tracked.log.events.iter().map(|told| match told.kind {
        EventKind::AckSkipped { count } => u64::from(count),
        ref other => panic!("frame {}: {other:?}", told.frame),
    });
    assert_eq!(skipped.sum::<u64>(), 3);
    let messages = tracked.messages(flow.id);
    assert_eq!(messages.len(), 100);
    let answered = messages
        .iter()
        .filter(|m| m.complete && m.acked_ns.is_some());
    assert_eq!(answered.count(), 100);
}

/// The network doubled 8 packets, as the responder's driver counted; it
/// answered each of them.
#[test]
fn write_dup() {
    let tracked = follow("write_dup");
    let flow = requester(&tracked);
    let known = &truth()["write_dup"]["driver_counters_delta"]["rxe0"];
    assert_eq!(number(known, "duplicate_request"), Some(8));
    assert_eq!(flow.requests.duplicates, 8, "{:?}", flow.requests);
    assert_eq!(flow.requests.mirror_duplicates, 0);
    assert_eq!(flow.requests.retransmitted, 0);
    assert_eq!(flow.requests.new, 200);
    assert_eq!(flow.requests.gaps + flow.requests.reordered, 0);
    assert_eq!(flow.messages, 50);
    let answered = tracked.frames(|kind| *kind == EventKind::DuplicateAnswered);
    assert_eq!(answered.len(), 8);
}

/// 3 packets were marked; Soft-RoCE tells nobody.
#[test]
fn write_ecn() {
    let tracked = follow("write_ecn");
    let flow = requester(&tracked);
    assert_eq!(flow.ce, 3);
    assert_eq!(flow.ecn_capable, 50);
    assert!(tracked.tracker.flows().all(|flow| flow.cnps == 0));
    let marked = tracked.frames(|kind| *kind == EventKind::CongestionExperienced);
    assert_eq!(marked.len(), 3);
    assert_eq!(tracked.log.events.len(), 3, "{:#?}", tracked.log.events);
}

/// One WRITE with a wrong key, refused.
#[test]
fn badrkey() {
    let tracked = follow("badrkey");
    let [message] = &tracked.log.messages[..] else {
        panic!("{:#?}", tracked.log.messages);
    };
    let refusal = AethKind::Nak(NakCode::REMOTE_ACCESS);
    assert_eq!(message.refused, Some(refusal));
    assert_eq!(message.acked_ns, None);
    assert_eq!(message.bytes, 64);
    let naks = responder(&tracked).naks().collect::<Vec<_>>();
    assert_eq!(naks, [(Some(NakCode::REMOTE_ACCESS), 1)]);
    let told = &tracked.log.events[..];
    let [told] = told else { panic!("{told:#?}") };
    let request_flow = Some(requester(&tracked).id);
    let code = NakCode::REMOTE_ACCESS;
    assert_eq!(told.kind, EventKind::Nak { code, request_flow });
}

/// The second WRITE with immediate meets no receive: four RNR NAKs, three
/// repetitions, then the requester gives up.
#[test]
fn imm() {
    let tracked = follow("imm");
    let flow = requester(&tracked);
    assert_eq!(responder(&tracked).rnr_naks, 4);
    assert_eq!((flow.requests.new, flow.requests.retransmitted), (2, 3));
    assert_eq!(
        (flow.retransmit_runs.rnr, flow.retransmit_runs.total()),
        (3, 3)
    );
    let [first, second] = &tracked.log.messages[..] else {
        panic!("{:#?}", tracked.log.messages);
    };
    assert!(first.operation.immediate && second.operation.immediate);
    assert_eq!(first.latency_ns(), Some(3_317_000));
    assert_eq!((first.retransmits, second.retransmits), (0, 3));
    assert_eq!(second.acked_ns, None);
    let waited: Vec<i64> = tracked
        .log
        .events
        .iter()
        .filter_map(|told| match told.kind {
            EventKind::RnrOver { waited_ns } => Some(waited_ns),
            _ => None,
        })
        .collect();
    assert_eq!(waited, [6_546_000, 7_636_000, 7_929_000]);
    let timers = tracked.frames(|kind| matches!(kind, EventKind::Rnr { timer: 12, .. }));
    assert_eq!(timers, [4, 6, 8, 10]);
}

/// A responder that is gone: 7 copies of a WRITE, about 70 ms apart.
#[test]
fn retry_exceeded() {
    let tracked = follow("retry_exceeded");
    let flow = requester(&tracked);
    assert_eq!((flow.requests.new, flow.requests.retransmitted), (2, 6));
    assert_eq!(flow.retransmit_runs.timeout, 6);
    assert_eq!(flow.retransmit_runs.total(), 6);
    let silences: Vec<i64> = tracked
        .log
        .events
        .iter()
        .filter_map(|told| match told.kind {
            EventKind::Retransmitted {
                cause: Cause::Timeout { silence_ns },
                ..
            } => Some(silence_ns / 1_000_000),
            _ => None,
        })
        .collect();
    assert_eq!(silences, [66, 67, 79, 72, 75, 78]);
    let [first, second] = &tracked.log.messages[..] else {
        panic!("{:#?}", tracked.log.messages);
    };
    assert_eq!((first.acked_ns.is_some(), first.retransmits), (true, 0));
    assert_eq!((second.acked_ns, second.retransmits), (None, 6));
}

/// Messages of one flow, all alike.
fn check_messages(name: &str, count: usize, verb: Verb, bytes: u64) {
    let tracked = follow(name);
    let flow = requester(&tracked);
    let messages = tracked.messages(flow.id);
    assert_eq!(messages.len(), count, "{name}: messages");
    for message in &messages {
        assert_eq!(message.operation.verb, verb, "{name}: {message:?}");
        assert_eq!(message.bytes, bytes, "{name}: {message:?}");
        assert!(message.complete, "{name}: {message:?}");
        assert!(message.acked_ns.is_some(), "{name}: {message:?}");
        assert_eq!(message.retransmits, 0, "{name}: {message:?}");
    }
    assert_eq!(flow.messages, count as u64, "{name}");
    assert_eq!(flow.message_bytes, count as u64 * bytes, "{name}");
    assert_eq!(flow.latency.count(), count as u64, "{name}");
    assert_eq!(flow.outstanding(), 0, "{name}");
    let servers = qps(&truth()[name]["generator_qps"], "server");
    let Some((rkey, va)) = servers.first().and_then(|qp| qp.memory) else {
        return;
    };
    // The generator goes through its buffer where messages are small.
    let cycles = bytes <= 1024;
    for (n, message) in messages.iter().enumerate() {
        let remote = message.remote.expect("memory is named");
        assert_eq!(u64::from(remote.rkey.get()), rkey, "{name}: rkey");
        assert_eq!(u64::from(remote.len), bytes, "{name}: length");
        let offset = remote.va.get() - va;
        let right = offset == 0 || (n > 0 && cycles && offset < 4096);
        assert!(right, "{name}: VA {} of message {n}", remote.va);
    }
}

/// Operations are put together as the generator was told to send them.
#[test]
fn messages_are_whole() {
    check_messages("write_1k", 20, Verb::Write, 1000);
    check_messages("write_64k", 5, Verb::Write, 65536);
    check_messages("send_3k", 20, Verb::Send, 3001);
    check_messages("read_8k", 10, Verb::Read, 8192);
    check_messages("atomic_fa", 20, Verb::FetchAdd, 8);
    check_messages("ack_loss", 100, Verb::Write, 4096);
    let read = follow("read_8k");
    let responses = responder(&read).responses;
    assert_eq!((responses.packets, responses.new), (80, 80));
    assert_eq!(requester(&read).mtu, Some(1024));
}

/// Transports without acknowledgements have messages, and no latencies.
#[test]
fn unreliable_messages() {
    for (name, count, bytes) in [("write_uc", 20, 4096), ("send_ud", 20, 1024)] {
        let tracked = follow(name);
        let flow = requester(&tracked);
        let messages = tracked.messages(flow.id);
        assert_eq!(messages.len(), count, "{name}");
        for message in messages {
            assert_eq!(message.bytes, bytes, "{name}: {message:?}");
            assert!(message.complete, "{name}: {message:?}");
            assert_eq!(message.acked_ns, None, "{name}: {message:?}");
        }
        assert_eq!(flow.latency.count(), 0, "{name}");
        assert_eq!(flow.peer, None, "{name}");
    }
}

/// A queue pair as its generator described it.
#[derive(Debug)]
struct Qp {
    number: u64,
    psn: u64,
    memory: Option<(u64, u64)>,
}

fn qps(run: &Value, side: &str) -> Vec<Qp> {
    let all = run.as_array();
    let own = all.into_iter().flatten().filter(|qp| qp["side"] == side);
    own.map(|qp| Qp {
        number: number(qp, "qpn").unwrap(),
        psn: number(qp, "psn").unwrap(),
        memory: number(qp, "rkey").zip(number(qp, "va")),
    })
    .collect()
}

fn ends(connection: &Connection) -> (Option<u32>, Option<u32>) {
    let qp = |qp: Option<QpNumber>| qp.map(QpNumber::get);
    (qp(connection.a.qp), qp(connection.b.qp))
}

fn last_digit(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    }
}

/// Every pair of queue pairs that the generator used, and the PSN each of them
/// begins with.
fn pairs(truth: &Value) -> Vec<(Qp, Qp)> {
    let runs = [&truth["generator_qps"], &truth["second_run_qps"]];
    let of = |run: &Value| {
        let (servers, clients) = (qps(run, "server"), qps(run, "client"));
        assert_eq!(servers.len(), clients.len());
        servers.into_iter().zip(clients)
    };
    runs.into_iter().flat_map(of).collect()
}

/// The i-th queue pair of the server talks to the i-th of the client, and
/// each begins with the PSN that the generator printed.
#[test]
fn queue_pairs_are_paired_as_the_generator_paired_them() {
    let truth = truth();
    let mut checked = 0;
    for name in fixtures() {
        let pairs = pairs(&truth[&name]);
        // Datagrams make no connection.
        if pairs.is_empty() || name == "send_ud" {
            continue;
        }
        let connections = follow(&name).tracker.connections();
        let answered = name != "write_uc";
        // Damaged addresses look like other ends.
        if name != "corrupt" {
            assert_eq!(connections.len(), pairs.len(), "{name}: {connections:#?}");
        }
        for (server, client) in pairs {
            let client_qp = answered.then_some(client.number as u32);
            let wanted = (client_qp, Some(server.number as u32));
            // With both sides asking, either may come first.
            let sorted = connections.iter().map(|c| match last_digit(c.a.ip) {
                2 => (c, c.a, c.b),
                _ => (c, c.b, c.a),
            });
            let psn = |end: &Endpoint| end.initial_psn.map(|psn| u64::from(psn.get()));
            let qps =
                |a: &Endpoint, b: &Endpoint| (a.qp.map(QpNumber::get), b.qp.map(QpNumber::get));
            let hit = sorted
                .into_iter()
                .find(|(_, c, s)| qps(c, s) == wanted && psn(c) == Some(client.psn));
            let Some((connection, _, at_server)) = hit else {
                panic!(
                    "{name}: no {wanted:x?} from PSN {:#x} in {connections:#?}",
                    client.psn
                );
            };
            let how = if answered {
                How::Inferred
            } else {
                How::Unpaired
            };
            assert_eq!(connection.how, how, "{name}: {connection:?}");
            if name == "bidi" {
                assert_eq!(psn(&at_server), Some(server.psn), "{name}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 40, "only {checked} pairs checked");
}

/// Many programs begin every queue pair with the same PSN: whatever the first
/// answers seem to say, the pairs are right in the end, and nothing is said
/// to be lost or out of order.
#[test]
fn queue_pairs_that_begin_with_the_same_psn() {
    let pairs = pairs(&truth()["multi_qp"]);
    let packets = capture("multi_qp").packets;
    let seen = Seen::all(&packets);
    assert_eq!(seen.len(), packets.len());
    let moved: Vec<Pkt> = seen
        .iter()
        .map(|p| {
            let (_, dst, qp) = p.key;
            let own = pairs.iter().find(|(server, client)| {
                let end = if last_digit(dst) == 1 { server } else { client };
                end.number == u64::from(qp)
            });
            let by = 0u32.wrapping_sub(own.unwrap().1.psn as u32) & 0xff_ffff;
            shifted(&packets[p.index..=p.index], by).remove(0)
        })
        .collect();
    let tracked = tracked::track(&moved);
    let connections = tracked.tracker.connections();
    for (server, client) in &pairs {
        let wanted = (Some(client.number as u32), Some(server.number as u32));
        let hit = connections.iter().any(|c| ends(c) == wanted);
        assert!(hit, "no {wanted:x?} in {connections:#?}");
    }
    let events = &tracked.log.events;
    assert!(events.is_empty(), "{events:#?}");
}

/// A connection of the communication manager: its queue pairs, its service,
/// and who starts with which PSN. Each side says what it expects to receive.
#[test]
fn cm_rping() {
    let tracked = follow("cm_rping");
    let connections = tracked.tracker.connections();
    let cm: Vec<_> = connections.iter().filter(|c| c.how == How::Cm).collect();
    let [connection] = cm[..] else {
        panic!("{connections:#?}");
    };
    assert_eq!(ends(connection), (Some(0x1a), Some(0x1a)));
    assert_eq!(last_digit(connection.a.ip), 2, "the client asked");
    assert_eq!(last_digit(connection.b.ip), 1);
    let psn = |end: &Endpoint| end.initial_psn.map(Psn::get);
    assert_eq!(psn(&connection.a), Some(0x9f9dce), "what the REP says");
    assert_eq!(psn(&connection.b), Some(0x128103), "what the REQ says");
    assert_eq!(connection.path_mtu, Some(1024));
    let life = connection.cm.expect("what the messages said");
    let service = life.service_id.and_then(ip_service);
    assert_eq!(service.map(|(_, port)| port), Some(7174));
    assert_eq!(life.requests, 1);
    assert_eq!(life.setup_ns(), Some(19_570_000));
    assert_eq!(life.state, CmState::Disconnected);
    assert_eq!(life.ended_by_a, Some(true));
    for (id, last) in [(connection.forward, 1), (connection.backward, 2)] {
        let flow = id.and_then(|id| tracked.tracker.flow(id)).expect("a flow");
        assert_eq!(last_digit(flow.key.dst), last);
        assert_eq!(flow.key.dest_qp.get(), 0x1a);
        assert!(flow.connection.is_some());
    }
    let rest = connections.iter().filter(|c| c.how != How::Cm);
    assert_eq!(
        rest.filter(|c| ends(c).1 != Some(1)).count(),
        0,
        "{connections:#?}"
    );
}
