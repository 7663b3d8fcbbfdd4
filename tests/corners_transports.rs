//! Conversations made by hand over what Soft-RoCE of Linux 6.1 does not send:
//! FLUSH, ATOMIC WRITE and extended reliable connections.

mod common;

use common::talk::{CLIENT, SERVER, Talk, clean, flow, follow, requests, responses, reth};
use common::tracked::Tracked;
use roce_sniff::{track::PsnCounts, wire::opcode::Transport};

/// An acknowledgement in front of a response.
const AETH: [u8; 4] = [31, 0, 0, 1];
/// A shared receive queue.
const XRCETH: [u8; 4] = [0, 0, 0, 0x33];
/// FLUSH of a range, to be visible globally.
const FETH: [u8; 4] = [0, 0, 0, 2];

/// FLUSH and ATOMIC WRITE are answered by READ responses without payload (IBTA
/// vol. 1, annex A19), not by acknowledgements.
fn flushed() -> Talk {
    let flush = [&FETH[..], &reth(0x1000, 64)].concat();
    Talk::default()
        .write(0)
        .ask(0x1c, 1, true, &flush, 0)
        .ask(0x1d, 2, true, &reth(0x1040, 8), 8)
        .ack(0)
        .reply(0x10, 1, &AETH, 0)
        .reply(0x10, 2, &AETH, 0)
}

/// Names, and whether all is there.
fn messages(tracked: &Tracked) -> Vec<(&'static str, bool, bool)> {
    let list = tracked.messages(flow(tracked, SERVER).id);
    list.iter()
        .map(|m| (m.operation.name(), m.complete, m.acked_ns.is_some()))
        .collect()
}

#[test]
fn flush_and_atomic_write_end_with_their_responses() {
    let tracked = follow(&flushed());
    assert_eq!(requests(&tracked), clean(3));
    assert_eq!(responses(&tracked), clean(2));
    assert_eq!(flow(&tracked, CLIENT).acks, 1);
    let want = ["RDMA WRITE", "FLUSH", "ATOMIC WRITE"];
    assert_eq!(messages(&tracked), want.map(|name| (name, true, true)));
}

#[test]
fn flush_asked_again_after_its_response_was_lost() {
    let flush = [&FETH[..], &reth(0x1000, 64)].concat();
    let talk = Talk::default()
        .ask(0x1c, 0, true, &flush, 0)
        .reply(0x10, 0, &AETH, 0)
        .unseen()
        .wait_us(70_000)
        .ask(0x1c, 0, true, &flush, 0)
        .reply(0x10, 0, &AETH, 0)
        .write(1)
        .ack(1);
    let tracked = follow(&talk);
    let want = PsnCounts {
        packets: 3,
        retransmitted: 1,
        ..clean(2)
    };
    assert_eq!(requests(&tracked), want);
    assert_eq!(
        messages(&tracked),
        [("FLUSH", true, true), ("RDMA WRITE", true, true)]
    );
}

/// Opcodes from 0xa0 on, requests with the queue they are for.
#[test]
fn extended_reliable_connection() {
    let write = [&XRCETH[..], &reth(0x1000, 64)].concat();
    let read = [&XRCETH[..], &reth(0x2000, 2048)].concat();
    let talk = Talk::default()
        .ask(0xaa, 0, true, &write, 64)
        .reply(0xb1, 0, &AETH, 0)
        .ask(0xa4, 1, true, &XRCETH, 32)
        .reply(0xb1, 1, &AETH, 0)
        .ask(0xac, 2, true, &read, 0)
        .reply(0xad, 2, &AETH, 1024)
        .reply(0xaf, 3, &AETH, 1024);
    let tracked = follow(&talk);
    let client = flow(&tracked, SERVER);
    assert_eq!(client.transport, Transport::Xrc);
    assert_eq!(client.peer, Some(flow(&tracked, CLIENT).id));
    assert_eq!(requests(&tracked), clean(3));
    assert_eq!(responses(&tracked), clean(2));
    assert_eq!(client.acks_own, 2);
    let want = ["RDMA WRITE", "SEND", "RDMA READ"];
    assert_eq!(messages(&tracked), want.map(|name| (name, true, true)));
}

/// A packet is lost and asked for by a NAK, as on a plain connection.
#[test]
fn extended_reliable_connection_with_a_loss() {
    let write = [&XRCETH[..], &reth(0x1000, 64)].concat();
    let talk = Talk::default()
        .ask(0xaa, 0, true, &write, 64)
        .reply(0xb1, 0, &AETH, 0)
        .ask(0xaa, 1, true, &write, 64)
        .unseen()
        .ask(0xaa, 2, true, &write, 64)
        .reply(0xb1, 1, &[0x60, 0, 0, 1], 0)
        .ask(0xaa, 1, true, &write, 64)
        .ask(0xaa, 2, true, &write, 64)
        .reply(0xb1, 2, &AETH, 0);
    let tracked = follow(&talk);
    let want = PsnCounts {
        packets: 4,
        new: 2,
        gaps: 1,
        skipped: 1,
        retransmitted: 2,
        refilled: 1,
        ..PsnCounts::default()
    };
    assert_eq!(requests(&tracked), want);
    assert_eq!(flow(&tracked, SERVER).retransmit_runs.sequence_nak, 1);
}
