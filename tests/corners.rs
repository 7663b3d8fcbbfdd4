//! Conversations made by hand, one incident each, with every count written
//! down from the definitions.

mod common;

use common::flaws::all_flaws;
use common::talk::{CLIENT, SERVER, Talk};
use common::tracked::{Tracked, track};
use roce_sniff::track::{EventKind, Flow, How, Message, PsnCounts};

fn follow(talk: &Talk) -> Tracked {
    let tracked = track(&talk.packets);
    let flaws = all_flaws(&tracked);
    assert!(flaws.is_empty(), "{flaws:#?}\n{:?}", kinds(&tracked));
    tracked
}

fn flow(tracked: &Tracked, dest_qp: u32) -> &Flow {
    let mut own = tracked
        .tracker
        .flows()
        .filter(|f| f.key.dest_qp.get() == dest_qp);
    let flow = own.next().expect("a flow");
    assert!(own.next().is_none(), "one entry for QP {dest_qp:#x}");
    flow
}

fn requests(tracked: &Tracked) -> PsnCounts {
    flow(tracked, SERVER).requests
}

fn responses(tracked: &Tracked) -> PsnCounts {
    flow(tracked, CLIENT).responses
}

/// The counts of a sequence in which nothing happened.
fn clean(packets: u64) -> PsnCounts {
    PsnCounts {
        packets,
        new: packets,
        ..PsnCounts::default()
    }
}

fn kinds(tracked: &Tracked) -> Vec<(u64, EventKind)> {
    tracked
        .log
        .events
        .iter()
        .map(|told| (told.frame, told.kind))
        .collect()
}

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

/// A READ response acknowledges the WRITE before the READ.
#[test]
fn response_acknowledges_what_is_before_it() {
    let talk = Talk::default().write(0).read(1, 1024).responses(1, 1, 0, 1);
    let tracked = follow(&talk);
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    assert_eq!(messages.len(), 2);
    assert!(
        messages.iter().all(|m| m.acked_ns.is_some() && m.complete),
        "{messages:#?}"
    );
}

/// READs one after another before any response tells the path MTU: each takes
/// as many numbers as the next one leaves it.
#[test]
fn reads_ahead_of_their_responses() {
    let mut talk = Talk::default().read(0, 8192).read(8, 8192).read(16, 8192);
    for first in [0, 8, 16] {
        talk = talk.responses(first, 8, 0, 8);
    }
    let tracked = follow(&talk.write(24).ack(24));
    assert_eq!(requests(&tracked), clean(4));
    assert_eq!(responses(&tracked), clean(24));
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    assert_eq!(messages.len(), 4);
    assert!(
        messages.iter().all(|m| m.complete && m.acked_ns.is_some()),
        "{messages:#?}"
    );
}

/// A response is lost; the requester asks for the rest of the READ again.
#[test]
fn read_goes_on_where_it_was_cut() {
    let talk = Talk::default()
        .read(0, 8192)
        .responses(0, 8, 0, 3)
        .responses(0, 8, 3, 4)
        .unseen()
        .responses(0, 8, 4, 8)
        .read(3, 5 * 1024)
        .responses(3, 5, 0, 5)
        .write(8)
        .ack(8);
    let tracked = follow(&talk);
    let want = PsnCounts {
        packets: 3,
        retransmitted: 1,
        ..clean(2)
    };
    assert_eq!(requests(&tracked), want);
    let got = responses(&tracked);
    assert_eq!(
        (got.packets, got.new, got.gaps, got.skipped),
        (12, 7, 1, 1),
        "{got:?}"
    );
    assert_eq!(
        (got.retransmitted, got.refilled, got.missing),
        (5, 1, 0),
        "{got:?}"
    );
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    assert_eq!(messages.len(), 2, "{messages:#?}");
    let read = messages.iter().find(|m| m.first_psn.get() == 0).unwrap();
    assert_eq!((read.bytes, read.complete), (8192, true), "{read:#?}");
}

/// A READ before any packet tells the path MTU, then something else.
#[test]
fn write_after_the_first_read() {
    let talk = Talk::default()
        .read(0, 8192)
        .responses(0, 8, 0, 8)
        .write(8)
        .ack(8);
    let tracked = follow(&talk);
    assert_eq!(requests(&tracked), clean(2));
    assert_eq!(responses(&tracked), clean(8));
    // The WRITE is sent before the responses.
    let talk = Talk::default()
        .read(0, 8192)
        .write(8)
        .responses(0, 8, 0, 8)
        .ack(8);
    let tracked = follow(&talk);
    assert_eq!(requests(&tracked), clean(2));
    assert_eq!(responses(&tracked), clean(8));
}

/// READs in the wrong order: the one whose number is lower fills a hole of
/// all its numbers.
#[test]
fn reads_out_of_order() {
    let talk = Talk::default()
        .read(0, 4096)
        .responses(0, 4, 0, 4)
        .read(8, 4096)
        .read(4, 4096)
        .responses(4, 4, 0, 4)
        .responses(8, 4, 0, 4);
    let tracked = follow(&talk);
    let want = PsnCounts {
        packets: 3,
        gaps: 1,
        skipped: 4,
        reordered: 1,
        ..clean(2)
    };
    assert_eq!(requests(&tracked), want);
    assert_eq!(responses(&tracked), clean(12));
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

/// An atomic whose answer was lost: asked again, answered again.
#[test]
fn atomic_asked_again() {
    let talk = Talk::default()
        .fetch_add(0)
        .atomic_answer(0)
        .unseen()
        .wait_us(70_000)
        .fetch_add(0)
        .atomic_answer(0)
        .fetch_add(1)
        .atomic_answer(1);
    let tracked = follow(&talk);
    let want = PsnCounts {
        packets: 3,
        retransmitted: 1,
        ..clean(2)
    };
    assert_eq!(requests(&tracked), want);
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    assert!(
        messages.iter().all(|m| m.complete && m.acked_ns.is_some()),
        "{messages:#?}"
    );
    assert_eq!(messages.iter().map(|m| m.retransmits).sum::<u32>(), 1);
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

/// A READ that is asked for again before anything came: its responses are
/// the first ones.
#[test]
fn read_asked_again_before_any_response() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .read(1, 4096)
        .wait_us(60_000)
        .read(1, 4096);
    let tracked = follow(&talk.responses(1, 4, 0, 4));
    assert_eq!(responses(&tracked), clean(4));
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    let said: Vec<_> = messages
        .iter()
        .map(|m| (m.retransmits, m.complete))
        .collect();
    assert_eq!(said, [(0, true), (1, true)]);
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

/// An acknowledgement in front of the first response is no response.
#[test]
fn first_number_of_the_responses() {
    let talk = Talk::default()
        .write(7)
        .ack(7)
        .read(8, 1024)
        .responses(8, 1, 0, 1);
    let tracked = follow(&talk);
    let flow = flow(&tracked, CLIENT);
    assert_eq!((flow.first_psn.get(), flow.last_psn.get()), (8, 8));
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
        .map(|m| m.latency_ns())
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
