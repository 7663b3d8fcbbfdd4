//! Conversations made by hand, one incident each, with every count written
//! down from the definitions: READs and atomics.

mod common;

use common::talk::{CLIENT, SERVER, Talk, clean, flow, follow, requests, responses};
use roce_sniff::track::PsnCounts;

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
