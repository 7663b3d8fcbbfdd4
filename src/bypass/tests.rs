//! Every verdict is reached, and what only looks like a bypass is not called
//! one.

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::*;
use crate::{
    rdma::ledger::{Completion, Endpoint, Op, Peer, Posted, WcStatus},
    track::{FlowKey, Record},
    wire::{
        aeth::Aeth,
        opcode::Opcode,
        types::{Msn, Psn, QpNumber, RKey, VirtualAddr},
    },
};

const MTU: u32 = 1024;
const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn endpoint(own: bool) -> Endpoint {
    Endpoint {
        device: "rxe0".into(),
        port: 1,
        netdev: Some("eth0".into()),
        gid_index: 1,
        gid: HERE.to_ipv6_mapped(),
        mtu: MTU,
        qp: QpNumber::new(0x12),
        dest_gid: if own { HERE } else { THERE }.to_ipv6_mapped(),
        dest_qp: QpNumber::new(if own { 0x12 } else { 0x13 }),
        peer: if own {
            Peer::Itself
        } else {
            Peer::LocalDevice("rxe1".into())
        },
    }
}

/// `count` operations of `len` bytes that ended in `status`, from PSN
/// 0xfffffe on, so that every test crosses the wrap.
fn ledger(own: bool, op: Op, count: u32, len: u32, status: Option<WcStatus>) -> Ledger {
    let span = op.psn_span(len, MTU);
    let posted = (0..count).map(|i| Posted {
        n: i + 1,
        psn: Psn::new(0xff_fffe).advance(i * span),
        psn_span: span,
        va: VirtualAddr::new(0x1000),
        rkey: RKey::new(0x4d2),
        len,
        completion: status.map(|status| Completion {
            status,
            latency_ns: 40_000,
        }),
    });
    Ledger {
        endpoint: Some(endpoint(own)),
        op,
        wanted: count,
        posted: posted.collect(),
        payload_verified: (status == Some(WcStatus::SUCCESS)).then_some(true),
        stopped: status.is_none().then(|| "no completion within 5 s".into()),
        elapsed_ns: 1_000_000,
    }
}

fn record(own: bool, frame: u64, response: bool, opcode: u8, psn: u32, syndrome: u8) -> Record {
    let far = if own { HERE } else { THERE };
    let (src, dst) = if response { (far, HERE) } else { (HERE, far) };
    let flow = FlowKey {
        src: src.into(),
        dst: dst.into(),
        dest_qp: QpNumber::new(if response || own { 0x12 } else { 0x13 }),
    };
    Record {
        frame,
        aeth: response.then_some(Aeth {
            syndrome,
            msn: Msn::new(1),
        }),
        ..Record::plain(flow, Opcode(opcode), Psn::new(psn))
    }
}

fn seen_of(ledger: &Ledger, records: &[Record]) -> Seen {
    let mut matcher = Matcher::new(ledger);
    for record in records {
        matcher.packet(record);
    }
    matcher.finish()
}

fn evidence(ledger: Ledger, seen: Seen, sent: i64, received: i64) -> Evidence {
    let own = ledger
        .endpoint
        .as_ref()
        .is_some_and(|e| e.gid == e.dest_gid);
    Evidence {
        ledger,
        counters: vec![CounterDelta {
            device: "rxe0".into(),
            sent: Some(sent),
            received: Some(received),
            changed: BTreeMap::new(),
        }],
        listening: Some(Listening {
            netdev: "eth0".into(),
            packets: seen.packets(),
            kernel_dropped: 0,
            control: Some(Control { sent: 2, seen: 2 }),
            complete: true,
            trouble: None,
            seen,
        }),
        tap: None,
        driver: DriverKind::SoftRoce,
        own_address: own,
    }
}

/// Ten writes to itself that completed, none of them seen.
fn looped() -> Evidence {
    let ledger = ledger(true, Op::Write, 10, 64, Some(WcStatus::SUCCESS));
    let nothing = seen_of(&ledger, &[]);
    evidence(ledger, nothing, 20, 20)
}

fn listening(evidence: &mut Evidence) -> &mut Listening {
    evidence.listening.as_mut().unwrap()
}

#[test]
fn silence_of_a_proven_listener_is_a_bypass() {
    let judgement = judge(&looped());
    assert_eq!(judgement.verdict, Verdict::LoopbackBypassed);
    assert_eq!(judgement.finding, "20 of 20 packets never touched eth0.");
    assert!(judgement.why.contains("10.0.0.1 is rxe0's own address"));
    assert!(judgement.next.iter().any(|step| step.contains("lab up")));
}

#[test]
fn silence_without_proof_is_not_a_bypass() {
    let mut deaf = looped();
    listening(&mut deaf).control = Some(Control { sent: 20, seen: 0 });
    assert_eq!(judge(&deaf).verdict, Verdict::Inconclusive);

    let mut unproven = looped();
    listening(&mut unproven).control = None;
    assert_eq!(judge(&unproven).verdict, Verdict::Inconclusive);

    let mut elsewhere = looped();
    listening(&mut elsewhere).netdev = "eth1".into();
    let judgement = judge(&elsewhere);
    assert_eq!(judgement.verdict, Verdict::Inconclusive);
    assert!(
        judgement.why.contains("listener was on eth1"),
        "{judgement:?}"
    );

    let mut overrun = looped();
    listening(&mut overrun).kernel_dropped = 7;
    assert_eq!(judge(&overrun).verdict, Verdict::Inconclusive);

    let mut ended_early = looped();
    listening(&mut ended_early).complete = false;
    assert_eq!(judge(&ended_early).verdict, Verdict::Inconclusive);

    let mut nobody = looped();
    nobody.listening = None;
    assert_eq!(judge(&nobody).verdict, Verdict::Inconclusive);

    // Counters that were read too early, or of another device.
    let mut stale = looped();
    stale.counters[0].sent = Some(0);
    stale.counters[0].received = Some(0);
    assert_eq!(judge(&stale).verdict, Verdict::Inconclusive);
}

#[test]
fn silence_towards_another_address_is_not_a_bypass() {
    let ledger = ledger(false, Op::Write, 10, 64, Some(WcStatus::SUCCESS));
    let nothing = seen_of(&ledger, &[]);
    let mut evidence = evidence(ledger, nothing, 10, 10);
    assert_eq!(judge(&evidence).verdict, Verdict::Inconclusive);
    evidence.driver = DriverKind::Hardware;
    let judgement = judge(&evidence);
    assert_eq!(judgement.verdict, Verdict::Inconclusive);
    assert!(
        judgement.why.contains("below every sniffer"),
        "{judgement:?}"
    );
}

#[test]
fn the_tap_proves_a_bypass_without_a_listener() {
    let mut evidence = looped();
    listening(&mut evidence).control = None;
    let ledger = &evidence.ledger;
    let mut records = Vec::new();
    for i in 0..10u32 {
        let psn = (0xff_fffe + i) & 0xff_ffff;
        records.push(record(true, u64::from(i), false, 0x0a, psn, 0));
        records.push(record(true, u64::from(i), true, 0x11, psn, 0x1f));
    }
    let seen = seen_of(ledger, &records);
    assert_eq!((seen.requests, seen.responses), (10, 10));
    evidence.tap = Some(Tapped {
        packets: 20,
        lost: 0,
        looped: 20,
        seen,
    });
    assert_eq!(judge(&evidence).verdict, Verdict::LoopbackBypassed);
}

#[test]
fn every_request_seen_is_on_the_wire() {
    let ledger = ledger(false, Op::Write, 3, 3000, Some(WcStatus::SUCCESS));
    let mut records = Vec::new();
    for i in 0..9u32 {
        let opcode = [6, 7, 8][i as usize % 3];
        let psn = (0xff_fffe + i) & 0xff_ffff;
        records.push(record(false, u64::from(i) + 1, false, opcode, psn, 0));
    }
    // One acknowledgement for all three.
    records.push(record(false, 10, true, 0x11, 6, 0x1f));
    let seen = seen_of(&ledger, &records);
    assert_eq!((seen.requests, seen.responses, seen.again), (9, 1, 0));
    assert_eq!(seen.whole(&ledger), 3);
    assert_eq!(seen.writes[2].request_frame, Some(7));
    assert!(seen.writes.iter().all(|w| w.response_frame == Some(10)));
    let judgement = judge(&evidence(ledger, seen, 9, 1));
    assert_eq!(judgement.verdict, Verdict::OnTheWire);
}

#[test]
fn loss_and_retransmission_are_still_on_the_wire() {
    let ledger = ledger(false, Op::Write, 2, 64, Some(WcStatus::SUCCESS));
    let records = [
        record(false, 1, false, 0x0a, 0xff_fffe, 0),
        record(false, 2, false, 0x0a, 0xff_ffff, 0),
        record(false, 3, true, 0x11, 0xff_fffe, 0x60),
        record(false, 4, false, 0x0a, 0xff_fffe, 0),
        record(false, 5, false, 0x0a, 0xff_ffff, 0),
        record(false, 6, true, 0x11, 0xff_ffff, 0x1f),
    ];
    let seen = seen_of(&ledger, &records);
    assert_eq!((seen.requests, seen.again, seen.naks), (2, 2, 1));
    assert_eq!(seen.writes[0].naks, 1);
    assert_eq!(
        seen.writes[0].response_frame,
        Some(6),
        "the NAK is no ACK of it"
    );
    let judgement = judge(&evidence(ledger, seen, 4, 2));
    assert_eq!(judgement.verdict, Verdict::OnTheWire);
    assert!(judgement.finding.contains("again"), "{}", judgement.finding);
}

#[test]
fn some_requests_seen_is_partly_captured() {
    let ledger = ledger(false, Op::Write, 2, 64, Some(WcStatus::SUCCESS));
    let seen = seen_of(&ledger, &[record(false, 1, false, 0x0a, 0xff_fffe, 0)]);
    let mut evidence = evidence(ledger, seen, 2, 2);
    listening(&mut evidence).kernel_dropped = 3;
    let judgement = judge(&evidence);
    assert_eq!(judgement.verdict, Verdict::PartlyCaptured);
    assert!(judgement.why.contains("lost 3"), "{}", judgement.why);
}

#[test]
fn reads_are_matched_to_their_responses() {
    let ledger = ledger(false, Op::Read, 2, 2048, Some(WcStatus::SUCCESS));
    let records = [
        record(false, 1, false, 0x0c, 0xff_fffe, 0),
        record(false, 2, true, 0x0d, 0xff_fffe, 0x1f),
        record(false, 3, true, 0x0f, 0xff_ffff, 0x1f),
        record(false, 4, false, 0x0c, 0, 0),
        record(false, 5, true, 0x0d, 0, 0x1f),
        record(false, 6, true, 0x0f, 1, 0x1f),
    ];
    let seen = seen_of(&ledger, &records);
    assert_eq!((seen.requests, seen.responses), (2, 4));
    assert_eq!(seen.writes[0].responses, 2);
    assert_eq!(seen.writes[1].response_frame, Some(6));
    assert_eq!(
        judge(&evidence(ledger, seen, 2, 4)).verdict,
        Verdict::OnTheWire
    );
}

#[test]
fn a_retry_that_gave_up_has_failed() {
    let mut ledger = ledger(false, Op::Write, 3, 64, Some(WcStatus::FLUSHED));
    ledger.posted[0].completion = Some(Completion {
        status: WcStatus::RETRY_EXCEEDED,
        latency_ns: 1,
    });
    let records: Vec<_> = (0..7)
        .map(|i| record(false, i, false, 0x0a, 0xff_fffe, 0))
        .collect();
    let seen = seen_of(&ledger, &records);
    let judgement = judge(&evidence(ledger, seen, 7, 0));
    assert_eq!(judgement.verdict, Verdict::Failed);
    assert!(
        judgement.why.contains("retry exceeded"),
        "{}",
        judgement.why
    );
    assert!(
        judgement.finding.contains("2 flushed"),
        "{}",
        judgement.finding
    );
}

/// A qdisc that drops on the sender's own egress drops before the packet tap:
/// counted as sent, seen by nobody, like a looped packet.
#[test]
fn a_drop_on_the_senders_egress_is_not_a_bypass() {
    let ledger = ledger(false, Op::Write, 1, 64, Some(WcStatus::RETRY_EXCEEDED));
    let nothing = seen_of(&ledger, &[]);
    let judgement = judge(&evidence(ledger, nothing, 7, 0));
    assert_eq!(judgement.verdict, Verdict::Failed);
    assert!(
        judgement.why.contains("7 sent, 0 received"),
        "{}",
        judgement.why
    );
}

#[test]
fn what_was_never_posted_or_never_left_was_never_sent() {
    let mut stuck = ledger(true, Op::Write, 0, 64, None);
    stuck.endpoint = None;
    stuck.wanted = 10;
    stuck.stopped = Some("modify QP to RTR: invalid argument".into());
    let mut never = looped();
    never.ledger = stuck;
    let judgement = judge(&never);
    assert_eq!(judgement.verdict, Verdict::NeverSent);
    assert!(judgement.why.contains("RTR"));

    let mut silent = looped();
    silent.ledger = ledger(true, Op::Write, 10, 64, None);
    silent.counters[0].sent = Some(0);
    assert_eq!(judge(&silent).verdict, Verdict::NeverSent);
}

#[test]
fn wrong_memory_has_failed() {
    let mut wrong = looped();
    wrong.ledger.payload_verified = Some(false);
    assert_eq!(judge(&wrong).verdict, Verdict::Failed);
}

#[test]
fn packets_of_others_are_not_matched() {
    let ledger = ledger(false, Op::Write, 2, 64, Some(WcStatus::SUCCESS));
    let mut other_qp = record(false, 1, false, 0x0a, 0xff_fffe, 0);
    other_qp.flow.dest_qp = QpNumber::new(0x99);
    let mut other_host = record(false, 1, false, 0x0a, 0xff_fffe, 0);
    other_host.flow.src = Ipv4Addr::new(10, 0, 0, 9).into();
    let later = record(false, 1, false, 0x0a, 5, 0);
    let seen = seen_of(&ledger, &[other_qp, other_host, later]);
    assert_eq!(seen.packets(), 0);
}
