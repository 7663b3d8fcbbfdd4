//! Conversations made by hand, one incident each: what waits for an answer, how
//! long, and whose answer it is.

mod common;

use common::talk::{CLIENT, SERVER, Talk, clean, flow, follow, kinds, requests, reth};
use roce_sniff::track::{EventKind, PsnCounts};

fn stalls(talk: &Talk) -> usize {
    let kinds = kinds(&follow(talk));
    let stall = |(_, kind): &&(u64, EventKind)| matches!(kind, EventKind::Stall { .. });
    kinds.iter().filter(stall).count()
}

/// The last packet of a message was not captured, its acknowledgement was: the
/// silence behind that is the application's.
#[test]
fn end_lost_by_the_capture_is_acknowledged_in_time() {
    let talk = Talk::default().write(0).ack(0).long_write(1, 4).unseen();
    let talk = talk.ack(4).wait_us(500_000).write(5).ack(5);
    assert_eq!(stalls(&talk), 0);
    let tracked = follow(&talk);
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    let latencies: Vec<_> = messages.iter().map(|m| m.latency_ns()).collect();
    assert_eq!(latencies, [Some(10_000), Some(40_000), Some(10_000)]);
    let complete: Vec<_> = messages.iter().map(|m| m.complete).collect();
    assert_eq!(complete, [true, false, true]);
}

/// More of the message comes after all: only its own acknowledgement counts.
#[test]
fn acknowledged_in_the_middle_and_going_on() {
    let talk = Talk::default().write(0).ack(0).long_write(1, 4).unseen();
    let mut talk = talk.unseen().ack(3);
    talk = talk.ask(0x08, 4, true, &[], 1024).ack(4);
    let tracked = follow(&talk);
    let messages = tracked.messages(flow(&tracked, SERVER).id);
    let latencies: Vec<_> = messages.iter().map(|m| m.latency_ns()).collect();
    assert_eq!(latencies, [Some(10_000), Some(60_000)]);
}

#[test]
fn requests_that_asked_for_nothing_do_not_wait() {
    let quiet = |talk: Talk, psn| talk.ask(0x0a, psn, false, &reth(0x1000, 64), 64);
    let talk = quiet(Talk::default().write(0).ack(0), 1).wait_us(500_000);
    assert_eq!(stalls(&talk.write(2).ack(2)), 0);
    let asked = Talk::default().write(0).ack(0).write(1).wait_us(500_000);
    assert_eq!(stalls(&asked.ack(1)), 1);
}

#[test]
fn thousands_of_messages_under_way() {
    const COUNT: u32 = 3000;
    let talk = (0..COUNT).fold(Talk::default(), Talk::write);
    let talk = (0..COUNT).fold(talk, Talk::ack);
    let tracked = follow(&talk);
    let sender = flow(&tracked, SERVER);
    assert_eq!(sender.acks_own, u64::from(COUNT));
    assert_eq!(sender.latency.count(), u64::from(COUNT));
    assert_eq!(flow(&tracked, CLIENT).acks, u64::from(COUNT));
}

/// Packets in the middle of a message ask for acknowledgements, too: these
/// answer the packets, not the copies that a mirror made of them.
#[test]
fn copies_of_packets_that_asked_in_the_middle() {
    let first = reth(0x1000, 3 * 1024);
    let talk = Talk::default().ask(0x06, 0, false, &first, 1024).copy();
    let talk = talk.ask(0x07, 1, true, &[], 1024).copy().ack(1);
    let talk = talk.ask(0x08, 2, true, &[], 1024).copy().ack(2);
    let want = PsnCounts {
        packets: 6,
        mirror_duplicates: 3,
        ..clean(3)
    };
    assert_eq!(requests(&follow(&talk)), want);
}

/// Nor does the acknowledgement of a packet that the capture lost.
#[test]
fn copies_and_a_request_that_was_not_captured() {
    let talk = Talk::default().write(0).copy().ack(0);
    let talk = talk.write(1).unseen().ack(1).write(2).ack(2);
    assert_eq!(requests(&follow(&talk)).duplicates, 0);
    assert_eq!(requests(&follow(&talk)).mirror_duplicates, 1);
}

/// A mirror that copies everything copies NAKs too; each was sent once.
#[test]
fn copies_of_answers_count_once() {
    let talk = Talk::default().write(0).copy().ack(0).copy();
    let talk = talk.write(1).unseen().write(2).copy().nak(1).copy();
    let talk = talk.write(1).copy().write(2).copy().ack(2).copy();
    let talk = talk.write(3).copy().answer(0x20, 3).copy().wait_us(700);
    let tracked = follow(&talk.write(3).copy().ack(3).copy());
    let answers = flow(&tracked, CLIENT);
    assert_eq!((answers.acks, answers.rnr_naks), (3, 1));
    assert_eq!(answers.naks().collect::<Vec<_>>().len(), 1);
    assert_eq!(answers.naks[0], 1);
    assert_eq!((answers.acknowledgements, answers.answer_copies), (10, 5));
    assert_eq!(requests(&tracked).duplicates, 0);
}
