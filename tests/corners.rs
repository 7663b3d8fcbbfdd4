//! Conversations made by hand, one incident each, with every count written
//! down from the definitions.

mod common;

use common::capfile::Pkt;
use common::talk::{CLIENT, SERVER, Talk, clean, flow, follow, kinds, requests};
use roce_sniff::track::{EventKind, How, Message, PsnCounts};
use roce_sniff::wire::types::QpNumber;

/// Acknowledgements that a mirror delivers before what they acknowledge: the
/// requests still come in their own order.
#[test]
fn answer_in_front_of_its_request() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .ack(1)
        .write(1)
        .write(2)
        .ack(2);
    let tracked = follow(&talk);
    assert_eq!(requests(&tracked), clean(3));
}

/// A packet that only the sniffer missed, acknowledged before the next one.
#[test]
fn lost_by_the_capture_then_acknowledged() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .write(1)
        .unseen()
        .ack(1)
        .write(2)
        .ack(2);
    let tracked = follow(&talk);
    let want = PsnCounts {
        gaps: 1,
        skipped: 1,
        missing: 1,
        capture_loss: 1,
        ..clean(2)
    };
    assert_eq!(requests(&tracked), want);
}

/// Several in a row, each acknowledged: one packet came ahead, so one gap.
#[test]
fn several_lost_by_the_capture() {
    let mut talk = Talk::default().write(0).ack(0);
    for psn in 1..4 {
        talk = talk.write(psn).unseen().ack(psn);
    }
    let tracked = follow(&talk.write(4).ack(4));
    let want = PsnCounts {
        gaps: 1,
        skipped: 3,
        missing: 3,
        capture_loss: 3,
        ..clean(2)
    };
    assert_eq!(requests(&tracked), want);
}

/// A packet lost on the network before the sniffer, and never sent again as
/// far as was seen: missing, and nothing says that the capture lost it.
#[test]
fn lost_and_never_seen_again() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .write(1)
        .unseen()
        .write(2)
        .nak(1);
    let tracked = follow(&talk);
    let want = PsnCounts {
        gaps: 1,
        skipped: 1,
        missing: 1,
        ..clean(2)
    };
    assert_eq!(requests(&tracked), want);
}

/// Go-back-N after a timeout: one run, begun by its first packet.
#[test]
fn timeout_goes_back() {
    let talk = Talk::default()
        .long_write(0, 4)
        .wait_us(60_000)
        .long_write(0, 4)
        .ack(3);
    let tracked = follow(&talk);
    let want = PsnCounts {
        packets: 8,
        retransmitted: 4,
        ..clean(4)
    };
    assert_eq!(requests(&tracked), want);
    let runs = flow(&tracked, SERVER).retransmit_runs;
    assert_eq!((runs.timeout, runs.total()), (1, 1));
    let begins: Vec<bool> = kinds(&tracked)
        .into_iter()
        .filter_map(|(_, kind)| match kind {
            EventKind::Retransmitted { begins, .. } => Some(begins),
            _ => None,
        })
        .collect();
    assert_eq!(begins, [true, false, false, false]);
    let [message] = &tracked.log.messages[..] else {
        panic!("{:#?}", tracked.log)
    };
    assert_eq!((message.retransmits, message.complete), (4, true));
    assert_eq!(message.bytes, 4096);
    assert_eq!(flow(&tracked, SERVER).goodput_bytes, 4096);
}

/// Two losses in one flight: each is asked for, each is filled.
#[test]
fn two_naks() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .write(1)
        .write(2)
        .unseen()
        .write(3)
        .nak(2)
        .write(2)
        .write(3)
        .unseen()
        .write(4)
        .nak(3)
        .write(3)
        .write(4)
        .ack(4);
    let tracked = follow(&talk);
    // Seen: 0, 1, 3, then 2 which fills, 4 which is new, 3 and 4 again.
    let want = PsnCounts {
        packets: 7,
        gaps: 1,
        skipped: 1,
        retransmitted: 3,
        refilled: 1,
        ..clean(4)
    };
    assert_eq!(requests(&tracked), want);
    let runs = flow(&tracked, SERVER).retransmit_runs;
    assert_eq!((runs.sequence_nak, runs.total()), (2, 2));
}

/// A sequence NAK acknowledges what is before it.
#[test]
fn nak_acknowledges_what_is_before_it() {
    let talk = Talk::default().write(9).ack(9);
    let talk = talk.write(10).write(11).write(12).unseen().write(13);
    let talk = talk.nak(12).write(12).write(13).ack(13);
    let tracked = follow(&talk);
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    let said = |m: &&Message| (m.first_psn.get(), m.latency_ns(), m.retransmits);
    let mut list: Vec<_> = messages.iter().map(said).collect();
    list.sort_unstable();
    let want = [
        (9, Some(10_000), 0),
        (10, Some(40_000), 0),
        (11, Some(30_000), 0),
        (12, Some(20_000), 1),
        (13, Some(40_000), 1),
    ];
    assert_eq!(list, want);
}

/// The first thing a responder says may be a NAK, about a packet that was
/// never seen; it tells who answers whom all the same.
#[test]
fn first_answer_is_a_nak() {
    let talk = Talk::default()
        .write(10)
        .write(11)
        .write(12)
        .unseen()
        .write(13);
    let talk = talk.nak(12).write(12).write(13).ack(13);
    let tracked = follow(&talk);
    let want = PsnCounts {
        packets: 5,
        gaps: 1,
        skipped: 1,
        retransmitted: 2,
        refilled: 1,
        ..clean(3)
    };
    assert_eq!(requests(&tracked), want);
    assert_eq!(flow(&tracked, SERVER).retransmit_runs.sequence_nak, 1);
}

/// The first thing a responder says may be that it is not ready.
#[test]
fn first_answer_is_not_ready() {
    let send = |talk: Talk| {
        let talk = talk.ask(0x00, 0, false, &[], 1024);
        talk.ask(0x02, 1, true, &[], 1024)
    };
    let talk = send(send(Talk::default()).answer(0x2c, 0).wait_us(640)).ack(1);
    let tracked = follow(&talk);
    let runs = flow(&tracked, SERVER).retransmit_runs;
    assert_eq!((runs.rnr, runs.total()), (1, 1));
}

/// What was sent before the first packet seen, and comes after it, is no
/// hole; nor are the numbers between.
#[test]
fn older_than_the_first_packet() {
    let talk = Talk::default().write(100).write(90).write(101).ack(101);
    let tracked = follow(&talk);
    let got = requests(&tracked);
    assert_eq!(
        (got.packets, got.new, got.gaps, got.skipped),
        (3, 2, 0, 0),
        "{got:?}"
    );
    assert_eq!(got.missing, 0, "{got:?}");
}

/// A packet that arrived broken says nothing; the whole one that follows is
/// what counts.
#[test]
fn broken_packet() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .write(1)
        .corrupted()
        .write(1)
        .ack(1);
    let tracked = follow(&talk);
    let flow = flow(&tracked, SERVER);
    assert_eq!(
        (flow.icrc_invalid, flow.corrupted, flow.icrc_valid),
        (1, 1, 2)
    );
    assert_eq!(flow.packets, 3);
    assert_eq!(flow.requests, clean(2));
    assert_eq!(kinds(&tracked), [(3, EventKind::BadIcrc)]);
}

/// Where no packet of a flow has a right CRC, something on the way rewrote it:
/// the flow is followed, and each packet is counted once.
#[test]
fn all_packets_broken() {
    let talk = Talk::default()
        .write(0)
        .corrupted()
        .write(1)
        .corrupted()
        .write(2)
        .corrupted();
    let tracked = follow(&talk);
    let flow = flow(&tracked, SERVER);
    assert_eq!((flow.packets, flow.icrc_invalid), (3, 3));
    assert_eq!(flow.requests.packets + flow.corrupted, 3);
}

/// The same, one packet alone.
#[test]
fn one_packet_and_broken() {
    let tracked = follow(&Talk::default().write(0).corrupted());
    let flow = flow(&tracked, SERVER);
    assert_eq!((flow.packets, flow.icrc_invalid), (1, 1));
    assert_eq!(flow.requests.packets + flow.corrupted, 1);
}

/// The refusal of a long message names its first packet, which asks for no
/// acknowledgement.
#[test]
fn first_packet_refused() {
    let talk = Talk::default()
        .ask(0x06, 5, false, &[0; 16], 1024)
        .answer(0x62, 5);
    let tracked = follow(&talk);
    let request = flow(&tracked, SERVER);
    assert_eq!(request.peer, Some(flow(&tracked, CLIENT).id));
    let [message] = &tracked.log.messages[..] else {
        panic!("{:#?}", tracked.log);
    };
    assert!(message.refused.is_some(), "{message:#?}");
}

/// One NAK begins one run, though the capture missed the packet that it
/// begins with.
#[test]
fn one_run_for_one_nak() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .write(1)
        .unseen()
        .write(2)
        .nak(1);
    let talk = talk.write(1).unseen().write(2).write(3);
    // The requester's time runs out, and in the middle of the run comes a NAK
    // for what follows.
    let talk = talk.wait_us(30_000).write(1).write(2).unseen().write(3);
    let talk = talk.nak(2).write(4).write(2).write(3).write(4).ack(4);
    let tracked = follow(&talk);
    let runs = flow(&tracked, SERVER).retransmit_runs;
    assert!(runs.sequence_nak <= 2, "{runs:?}");
}

/// A copy that nobody answers, and one that is answered.
#[test]
fn copies() {
    let talk = Talk::default().write(0).copy().ack(0).write(1).ack(1);
    let want = PsnCounts {
        packets: 3,
        mirror_duplicates: 1,
        ..clean(2)
    };
    assert_eq!(requests(&follow(&talk)), want);
    let talk = Talk::default()
        .write(0)
        .copy()
        .ack(0)
        .ack(0)
        .write(1)
        .ack(1);
    let want = PsnCounts {
        packets: 3,
        duplicates: 1,
        ..clean(2)
    };
    assert_eq!(requests(&follow(&talk)), want);
    // The mirror copies the answer as well.
    let talk = Talk::default()
        .write(0)
        .copy()
        .ack(0)
        .copy()
        .write(1)
        .copy()
        .ack(1)
        .copy();
    let want = PsnCounts {
        packets: 4,
        mirror_duplicates: 2,
        ..clean(2)
    };
    assert_eq!(requests(&follow(&talk)), want);
}

/// The capture starts in the middle of a message: it is no message out of
/// place, only one that is not complete.
#[test]
fn starts_in_the_middle() {
    let mut talk = Talk::default()
        .long_write(0, 6)
        .ack(5)
        .long_write(6, 4)
        .ack(9);
    talk.packets.drain(..3);
    let tracked = follow(&talk);
    assert_eq!(requests(&tracked), clean(7));
    assert_eq!(kinds(&tracked), []);
    let complete: Vec<bool> = tracked.log.messages.iter().map(|m| m.complete).collect();
    assert_eq!(complete, [false, true]);
}

/// The requester answers an RNR NAK in the middle of a message by going back.
#[test]
fn not_ready_in_the_middle() {
    let send = |talk: Talk| {
        let talk = talk.ask(0x00, 1, false, &[], 1024);
        let talk = talk.ask(0x01, 2, false, &[], 1024);
        talk.ask(0x02, 3, true, &[], 1024)
    };
    let talk = send(Talk::default().write(0).ack(0))
        .answer(0x2c, 1)
        .wait_us(640);
    let tracked = follow(&send(talk).ack(3));
    let want = PsnCounts {
        packets: 7,
        retransmitted: 3,
        ..clean(4)
    };
    assert_eq!(requests(&tracked), want);
    let runs = flow(&tracked, SERVER).retransmit_runs;
    assert_eq!((runs.rnr, runs.total()), (1, 1));
    let over = kinds(&tracked)
        .into_iter()
        .filter_map(|(frame, kind)| match kind {
            EventKind::RnrOver { waited_ns } => Some((frame, waited_ns)),
            _ => None,
        });
    assert_eq!(over.collect::<Vec<_>>(), [(7, 650_000)]);
    let messages = &tracked.log.messages;
    let said = |m: &Message| (m.refused, m.complete, m.retransmits, m.acked_ns.is_some());
    let said: Vec<_> = messages.iter().map(said).collect();
    assert_eq!(said, [(None, true, 0, true), (None, true, 3, true)]);
}

/// Packets sent again, and the capture holds no answers at all.
#[test]
fn only_one_direction_was_captured() {
    let talk = Talk::default().write(0).write(1).write(2).unseen().write(3);
    let tracked = follow(&talk.write(2).write(3).write(4));
    let got = requests(&tracked);
    assert_eq!((got.packets, got.new), (6, 4), "{got:?}");
    assert_eq!((got.gaps, got.skipped, got.missing), (1, 1, 0), "{got:?}");
    assert_eq!(got.mirror_duplicates, 0, "{got:?}");
    let connections = tracked.tracker.connections();
    assert_eq!(connections[0].how, How::Unpaired);
    for message in &tracked.log.messages {
        assert_eq!(
            (message.complete, message.acked_ns),
            (true, None),
            "{message:#?}"
        );
    }
}

/// One acknowledgement for several messages.
#[test]
fn acknowledgements_coalesce() {
    let talk = Talk::default().write(0).write(1).write(2).ack(2);
    let tracked = follow(&talk);
    let flow = flow(&tracked, SERVER);
    assert_eq!((flow.acks_own, flow.acks_skipped), (1, 2));
    let latencies: Vec<_> = tracked
        .log
        .messages
        .iter()
        .map(Message::latency_ns)
        .collect();
    assert_eq!(latencies, [Some(30_000), Some(20_000), Some(10_000)]);
    let skipped = kinds(&tracked)
        .into_iter()
        .filter_map(|(frame, kind)| match kind {
            EventKind::AckSkipped { count } => Some((frame, count)),
            _ => None,
        });
    assert_eq!(skipped.collect::<Vec<_>>(), [(4, 2)]);
}

/// Nothing waits for an answer during a silence: it is only a silence.
#[test]
fn a_long_silence_is_no_retransmission() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .wait_us(5_000_000)
        .write(1)
        .ack(1);
    let tracked = follow(&talk);
    assert_eq!(requests(&tracked), clean(2));
    assert_eq!(kinds(&tracked), []);
}

/// Two queue pairs begin with the same number and are answered the other way
/// round, once. What follows tells who answers whom.
#[test]
fn first_answers_the_other_way_round() {
    let one = |psn| Talk::default().write(psn).ack(psn);
    let mut talk = Talk::default();
    for psn in 0..6 {
        let (a, b) = (one(psn), one(psn).between(0x33, 0x44));
        let (a, b) = (a.packets, b.packets);
        let order = if psn == 0 {
            [&a[0], &b[0], &b[1], &a[1]]
        } else {
            [&a[0], &a[1], &b[0], &b[1]]
        };
        for packet in order {
            talk.packets
                .push(Pkt::whole(talk.now_ns, packet.data.clone()));
            talk.now_ns += 10_000;
        }
    }
    let tracked = follow(&talk);
    let connections = tracked.tracker.connections();
    let mut pairs: Vec<_> = connections
        .iter()
        .map(|c| (c.a.qp.map(QpNumber::get), c.b.qp.map(QpNumber::get)))
        .collect();
    pairs.sort_unstable();
    let wanted = [(Some(CLIENT), Some(SERVER)), (Some(0x33), Some(0x44))];
    assert_eq!(pairs, wanted, "{:#?}", kinds(&tracked));
    assert_eq!(requests(&tracked), clean(6));
    assert_eq!(flow(&tracked, 0x44).requests, clean(6));
}
