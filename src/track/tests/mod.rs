//! Stories of a few packets each, told to a tracker.

mod pairing;

use std::net::IpAddr;

use super::*;
use crate::wire::{
    aeth::{Aeth, NakCode},
    opcode::Opcode,
    types::{Msn, Psn, QpNumber, RKey, VirtualAddr},
};

const FIRST: u8 = 0x06;
const MIDDLE: u8 = 0x07;
const LAST: u8 = 0x08;
const ONLY: u8 = 0x0a;
const READ: u8 = 0x0c;
const ACK: u8 = 0x11;
const MTU: u32 = 1024;

/// Keeps all that it is told.
#[derive(Default)]
struct Heard {
    events: Vec<(u64, EventKind)>,
    messages: Vec<Message>,
}

impl Listener for Heard {
    fn event(&mut self, event: &Event<'_>) {
        self.events.push((event.record.frame, event.kind));
    }

    fn message(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }
}

/// Packets between two ends, 10 µs apart, numbered by their senders.
struct Story {
    tracker: Tracker,
    heard: Heard,
    frame: u64,
    now_ns: i64,
    numbered: bool,
    id: u16,
}

impl Default for Story {
    fn default() -> Self {
        Self {
            tracker: Tracker::new(Limits::default()),
            heard: Heard::default(),
            frame: 0,
            now_ns: 0,
            numbered: true,
            id: 100,
        }
    }
}

fn key(forth: bool, qp: u32) -> FlowKey {
    let end = |last: u8| IpAddr::from([10, 0, 0, last]);
    let (src, dst) = if forth { (1, 2) } else { (2, 1) };
    FlowKey {
        src: end(src),
        dst: end(dst),
        dest_qp: QpNumber::new(qp),
    }
}

impl Story {
    fn record(&mut self, flow: FlowKey, opcode: u8, psn: u32) -> Record {
        self.frame += 1;
        self.now_ns += 10_000;
        self.id += 1;
        let opcode = Opcode(opcode);
        let info = opcode.info();
        Record {
            frame: self.frame,
            ts_ns: self.now_ns,
            payload_len: if info.payload { MTU } else { 0 },
            len: 1100,
            ack_req: info.position.ends() && !opcode.is_response(),
            fingerprint: Fingerprint {
                icrc: Some(psn.wrapping_mul(77)),
                ip_id: if self.numbered { self.id } else { 0 },
            },
            remote: matches!(opcode.0, FIRST | ONLY | READ).then_some(Remote {
                va: VirtualAddr::new(0x1000),
                rkey: RKey::new(0x4d2),
                len: if opcode.0 == ONLY { MTU } else { 4 * MTU },
            }),
            ..Record::plain(flow, opcode, Psn::new(psn))
        }
    }

    fn tell(&mut self, record: &Record) -> Record {
        self.tracker.add(record, &mut self.heard);
        record.clone()
    }

    /// A request to queue pair 0x22.
    fn ask(&mut self, opcode: u8, psn: u32) -> Record {
        let record = self.record(key(true, 0x22), opcode, psn);
        self.tell(&record)
    }

    /// A packet of the responder, to queue pair 0x11.
    fn reply(&mut self, opcode: u8, psn: u32, syndrome: u8) -> Record {
        let mut record = self.record(key(false, 0x11), opcode, psn);
        record.aeth = Some(Aeth {
            syndrome,
            msn: Msn::new(0),
        });
        self.tell(&record)
    }

    fn ack(&mut self, psn: u32) -> Record {
        self.reply(ACK, psn, 0x1f)
    }

    fn wait_ms(&mut self, ms: i64) {
        self.now_ns += ms * 1_000_000;
    }

    /// A WRITE of four packets from `psn` on, without those in `lost`.
    fn write4(&mut self, psn: u32, lost: &[u32]) {
        for (i, opcode) in [FIRST, MIDDLE, MIDDLE, LAST].into_iter().enumerate() {
            let psn = (psn + i as u32) & 0xff_ffff;
            if !lost.contains(&psn) {
                self.ask(opcode, psn);
            }
        }
    }

    fn flow(&self, forth: bool) -> &Flow {
        self.flows(forth)[0]
    }

    fn flows(&self, forth: bool) -> Vec<&Flow> {
        let qp = if forth { 0x22 } else { 0x11 };
        let flows = self.tracker.flows();
        flows.filter(|flow| flow.key == key(forth, qp)).collect()
    }

    fn end(&mut self) {
        self.tracker.finish(&mut self.heard);
        for flow in self.tracker.flows() {
            adds_up(flow);
        }
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.heard.events.iter().map(|(_, kind)| *kind).collect()
    }
}

fn adds_up(flow: &Flow) {
    let sum = flow.requests.packets
        + flow.responses.packets
        + flow.acknowledgements
        + flow.cnps
        + flow.untracked
        + flow.corrupted;
    assert_eq!(flow.packets, sum);
    for c in [&flow.requests, &flow.responses] {
        let sum = c.new + c.retransmitted + c.reordered + c.duplicates + c.mirror_duplicates;
        assert_eq!(c.packets, sum);
    }
}

#[test]
fn go_back_n_after_a_nak_across_the_wrap() {
    let mut story = Story::default();
    story.write4(0xff_fffc, &[]);
    story.ack(0xff_ffff);
    story.write4(0, &[1]);
    story.reply(ACK, 1, 0x60);
    for (opcode, psn) in [(MIDDLE, 1), (MIDDLE, 2), (LAST, 3)] {
        story.ask(opcode, psn);
    }
    story.ack(3);
    story.write4(4, &[]);
    story.ack(7);
    story.end();
    let flow = story.flow(true);
    assert_eq!(
        (flow.first_psn, flow.last_psn),
        (Psn::new(0xff_fffc), Psn::new(7))
    );
    let r = flow.requests;
    assert_eq!((r.gaps, r.skipped, r.missing), (1, 1, 0));
    assert_eq!(
        (r.retransmitted, r.refilled, r.reordered, r.duplicates),
        (3, 1, 0, 0)
    );
    assert_eq!(flow.retransmit_runs.sequence_nak, 1);
    assert_eq!(flow.messages, 3);
    assert_eq!(flow.message_bytes, 3 * 4 * u64::from(MTU));
    assert!(
        story
            .heard
            .messages
            .iter()
            .all(|m| m.complete && m.bytes == 4096)
    );
    assert_eq!(story.heard.messages[1].retransmits, 3);
    let peer = story.flow(false);
    assert_eq!(
        peer.naks().collect::<Vec<_>>(),
        [(Some(NakCode::SEQUENCE), 1)]
    );
    assert_eq!((flow.how, peer.how), (How::Inferred, How::Inferred));
}

#[test]
fn a_message_lost_and_sent_again_whole_is_one_message() {
    let mut story = Story::default();
    story.write4(10, &[]);
    story.ack(13);
    // The end of one message and the beginning of the next.
    story.write4(14, &[17]);
    story.write4(18, &[18, 19]);
    story.reply(ACK, 17, 0x60);
    story.ask(LAST, 17);
    story.write4(18, &[]);
    story.ack(21);
    story.end();
    let spans: Vec<_> = story
        .heard
        .messages
        .iter()
        .map(|m| (m.first_psn.get(), m.last_psn.get(), m.complete))
        .collect();
    assert_eq!(spans, [(10, 13, true), (14, 17, true), (18, 21, true)]);
    assert_eq!(story.flow(true).requests.retransmitted, 5);
}

#[test]
fn what_the_peer_acknowledged_was_lost_by_the_capture() {
    let mut story = Story::default();
    story.write4(10, &[]);
    story.ack(13);
    story.write4(14, &[15]);
    story.ack(17);
    // The last packets show only in the acknowledgement.
    story.write4(18, &[20, 21]);
    story.ack(21);
    story.end();
    let r = story.flow(true).requests;
    assert_eq!((r.missing, r.capture_loss, r.retransmitted), (3, 3, 0));
    let lost: Vec<_> = story
        .kinds()
        .into_iter()
        .filter(|kind| matches!(kind, EventKind::CaptureLoss { .. }))
        .collect();
    assert_eq!(
        lost,
        [
            EventKind::CaptureLoss { missing: 1 },
            EventKind::CaptureLoss { missing: 2 }
        ]
    );
    let complete: Vec<_> = story.heard.messages.iter().map(|m| m.complete).collect();
    assert_eq!(complete, [true, false, false]);
}

#[test]
fn a_timeout_is_silence_and_then_the_same_again() {
    let mut story = Story::default();
    story.ask(ONLY, 5);
    story.ack(5);
    for _ in 0..3 {
        story.ask(ONLY, 6);
        story.wait_ms(70);
    }
    story.ack(6);
    story.end();
    let flow = story.flow(true);
    assert_eq!(
        (flow.requests.retransmitted, flow.retransmit_runs.timeout),
        (2, 2)
    );
    let silences: Vec<_> = story
        .kinds()
        .into_iter()
        .filter_map(|kind| match kind {
            EventKind::Retransmitted {
                cause: Cause::Timeout { silence_ns },
                ..
            } => Some(silence_ns),
            _ => None,
        })
        .collect();
    assert_eq!(silences, [70_010_000, 70_010_000]);
    assert_eq!(story.heard.messages[1].retransmits, 2);
}

#[test]
fn copies_are_told_from_packets_sent_again() {
    let mut story = Story::default();
    let packet = story.ask(ONLY, 5);
    let mut copy = packet.clone();
    copy.ts_ns += 3_000;
    copy.frame = 99;
    story.tell(&copy);
    let ack = story.ack(5);
    // The mirror copies the acknowledgement too.
    let mut copied = ack.clone();
    copied.ts_ns += 3_000;
    story.tell(&copied);
    assert_eq!(story.flow(true).requests.mirror_duplicates, 1);
    assert_eq!(story.flow(true).requests.duplicates, 0);
    // An answer of its own: the responder got both.
    story.ack(5);
    story.end();
    let r = story.flow(true).requests;
    assert_eq!(
        (r.mirror_duplicates, r.duplicates, r.retransmitted),
        (0, 1, 0)
    );
    assert!(story.kinds().contains(&EventKind::DuplicateAnswered));
}

#[test]
fn a_late_packet_is_reordered_whatever_the_responder_made_of_it() {
    let mut story = Story::default();
    story.ask(ONLY, 5);
    let late = story.record(key(true, 0x22), ONLY, 6);
    story.ask(ONLY, 7);
    story.ack(5);
    story.reply(ACK, 6, 0x60);
    let late = Record {
        ts_ns: story.now_ns,
        frame: 50,
        ..late
    };
    story.tell(&late);
    story.end();
    let r = story.flow(true).requests;
    // Numbered before the packet that overtook it.
    assert_eq!((r.reordered, r.retransmitted, r.missing), (1, 0, 0));
}

#[test]
fn without_numbers_a_hole_filled_after_a_nak_was_sent_again() {
    let mut story = Story {
        numbered: false,
        ..Story::default()
    };
    story.ask(ONLY, 5);
    story.ack(5);
    story.ask(ONLY, 7);
    story.ask(ONLY, 6);
    let r = story.flow(true).requests;
    assert_eq!((r.reordered, r.retransmitted), (1, 0), "nothing asked");
    story.ask(ONLY, 9);
    story.reply(ACK, 8, 0x60);
    story.ask(ONLY, 8);
    story.ask(ONLY, 9);
    story.end();
    let r = story.flow(true).requests;
    assert_eq!((r.reordered, r.retransmitted, r.refilled), (1, 2, 1));
}

#[test]
fn lost_read_responses_are_asked_for_again() {
    let mut story = Story::default();
    story.ask(ONLY, 4);
    story.ack(4);
    story.ask(READ, 5);
    story.reply(0x0d, 5, 0x1f);
    story.reply(0x0e, 6, 0x1f);
    story.reply(0x0f, 8, 0x1f);
    let mut again = story.record(key(true, 0x22), READ, 7);
    again.remote = Some(Remote {
        va: VirtualAddr::new(0x1000 + 2048),
        rkey: RKey::new(0x4d2),
        len: 2048,
    });
    story.tell(&again);
    story.reply(0x0d, 7, 0x1f);
    story.reply(0x0f, 8, 0x1f);
    story.ask(ONLY, 9);
    story.ack(9);
    story.end();
    let (asked, answered) = (story.flow(true), story.flow(false));
    assert_eq!(
        (asked.requests.retransmitted, asked.requests.missing),
        (1, 0)
    );
    assert_eq!(asked.retransmit_runs.implied_nak, 1);
    let r = answered.responses;
    assert_eq!(
        (r.packets, r.new, r.gaps, r.skipped, r.missing),
        (5, 3, 1, 1, 0)
    );
    assert_eq!((r.retransmitted, r.refilled, r.duplicates), (2, 1, 0));
    let read = &story.heard.messages[1];
    assert_eq!(read.operation.name(), "RDMA READ");
    assert!(read.complete);
    assert_eq!(
        (read.first_psn.get(), read.last_psn.get(), read.bytes),
        (5, 8, 4096)
    );
}

#[test]
fn a_read_of_unknown_packets_takes_what_the_next_request_leaves() {
    let mut story = Story::default();
    story.ask(READ, 5);
    // Four responses of 1024 bytes, or two of 2048: the next request tells.
    story.ask(READ, 7);
    let flow = story.flow(true);
    assert_eq!((flow.mtu, flow.requests.gaps), (Some(2048), 0));
}

#[test]
fn a_new_start_is_a_new_entry() {
    let mut story = Story::default();
    story.write4(100, &[]);
    story.ack(103);
    story.write4(0x80_0000, &[]);
    story.ack(0x80_0003);
    story.end();
    let flows = story.flows(true);
    assert_eq!(flows.len(), 2);
    assert!(flows[0].ended && !flows[1].ended);
    assert_eq!(flows.iter().map(|f| f.requests.missing).sum::<u64>(), 0);
    assert_eq!(story.flows(false).len(), 2);
    let connections = story.tracker.connections();
    assert_eq!(connections.len(), 2);
    assert!(connections.iter().all(|c| c.how == How::Inferred));
    let starts: Vec<_> = connections.iter().map(|c| c.a.initial_psn).collect();
    assert_eq!(starts, [Some(Psn::new(100)), Some(Psn::new(0x80_0000))]);
}

#[test]
fn a_capture_that_begins_in_the_middle_invents_nothing() {
    let mut story = Story::default();
    story.ask(MIDDLE, 52);
    story.ask(LAST, 53);
    story.ack(53);
    // Sent again from before the beginning.
    story.reply(ACK, 50, 0x60);
    for (opcode, psn) in [(FIRST, 50), (MIDDLE, 51), (MIDDLE, 52), (LAST, 53)] {
        story.ask(opcode, psn);
    }
    story.end();
    let r = story.flow(true).requests;
    assert_eq!((r.gaps, r.missing, r.retransmitted), (0, 0, 4));
    assert!(!story.kinds().contains(&EventKind::OutOfPlace));
}

#[test]
fn a_refused_request_says_what_it_asked_for() {
    let mut story = Story::default();
    story.ask(ONLY, 5);
    story.reply(ACK, 5, 0x62);
    story.end();
    let message = &story.heard.messages[0];
    assert!(message.refused.is_some() && message.acked_ns.is_none());
    assert_eq!(
        message.remote.map(|remote| remote.rkey),
        Some(RKey::new(0x4d2))
    );
    let nak = story.kinds().into_iter().find_map(|kind| match kind {
        EventKind::Nak { code, request_flow } => Some((code, request_flow)),
        _ => None,
    });
    let id = story.flow(true).id;
    assert_eq!(nak, Some((NakCode::REMOTE_ACCESS, Some(id))));
}

#[test]
fn one_direction_alone_is_followed_all_the_same() {
    let mut story = Story::default();
    story.write4(10, &[]);
    story.write4(14, &[15]);
    for (opcode, psn) in [(MIDDLE, 15), (MIDDLE, 16), (LAST, 17)] {
        story.ask(opcode, psn);
    }
    story.write4(18, &[]);
    story.end();
    let flow = story.flow(true);
    assert_eq!(flow.peer, None);
    assert_eq!(flow.requests.missing, 0);
    assert_eq!(flow.messages, 3);
    assert!(
        story
            .heard
            .messages
            .iter()
            .all(|m| m.complete && m.acked_ns.is_none())
    );
    let Connection { how, a, b, .. } = story.tracker.connections()[0];
    assert_eq!(
        (how, a.qp, b.qp),
        (How::Unpaired, None, Some(QpNumber::new(0x22)))
    );
}

#[test]
fn a_damaged_packet_proves_nothing() {
    let mut story = Story::default();
    story.write4(10, &[]);
    let mut bad = story.record(key(true, 0x22), ONLY, 0x70_0000);
    bad.icrc = IcrcState::Invalid;
    story.tell(&bad);
    story.write4(14, &[]);
    story.ack(17);
    story.end();
    let flow = story.flow(true);
    assert_eq!((flow.corrupted, flow.icrc_invalid), (1, 1));
    assert_eq!((flow.requests.gaps, flow.messages), (0, 2));
}

#[test]
fn the_number_of_flows_is_bounded() {
    let mut story = Story {
        tracker: Tracker::new(Limits {
            flows: 8,
            ..Limits::default()
        }),
        ..Story::default()
    };
    let mut packets = 0;
    for round in 0..50u32 {
        for qp in 0..10 {
            let ask = story.record(key(true, 0x100 + (round * 7 + qp) % 40), ONLY, round);
            story.tell(&ask);
            packets += 1;
        }
    }
    story.end();
    let kept: u64 = story.tracker.flows().map(|flow| flow.packets).sum();
    let evicted = story.tracker.evicted();
    assert_eq!(story.tracker.flows().count(), 8);
    assert!(evicted.flows > 0);
    assert_eq!(kept + evicted.packets, packets);
    assert_eq!(story.heard.messages.len() as u64, packets);
}

/// Clocks may jump as far as they can: what is told of congestion meanwhile
/// has no rate, and nothing overflows.
#[test]
fn pauses_as_long_as_time_goes_add_up_to_no_more() {
    let mut story = Story::default();
    for (round, now_ns) in (0..6).zip([i64::MIN, i64::MAX - 1_000_000].iter().cycle()) {
        story.now_ns = *now_ns;
        for psn in 40 * round..40 * (round + 1) {
            story.ask(ONLY, psn);
        }
        story.ack(40 * round + 39);
        story.reply(0x81, 0, 0);
    }
    let flow = story.flow(true);
    assert!(flow.peer.is_some() && flow.requests.packets == 240);
    let throttled = story.tracker.throttled(flow);
    assert!(throttled.is_none_or(|t| t.before_bps > 0.0 && t.after_bps.is_finite()));
}
