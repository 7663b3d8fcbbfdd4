//! Stories of a few packets each, and what is found in them.

mod oddities;
mod refusals;
mod traffic;

use std::{collections::BTreeSet, net::IpAddr};

use super::*;
use crate::{
    track::{Fingerprint, IcrcState, Limits, Observed, Remote},
    wire::{
        aeth::Aeth,
        opcode::Opcode,
        types::{Msn, Psn, QpNumber, RKey, VirtualAddr},
    },
};

const FIRST: u8 = 0x06;
const MIDDLE: u8 = 0x07;
const LAST: u8 = 0x08;
const ONLY: u8 = 0x0a;
const READ: u8 = 0x0c;
const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
const ACK: u8 = 0x11;
const CNP: u8 = 0x81;

const POSITIVE: u8 = 0x1f;
const SEQUENCE_NAK: u8 = 0x60;

const MTU: u32 = 1024;
/// Queue pairs of the requester and the responder.
const ASKER: u32 = 0x11;
const ANSWERER: u32 = 0x22;

fn host(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn key(src: u8, dst: u8, qp: u32) -> FlowKey {
    FlowKey {
        src: host(src),
        dst: host(dst),
        dest_qp: QpNumber::new(qp),
    }
}

/// From 10.0.0.1, which asks, to 10.0.0.2, which answers.
fn forth() -> FlowKey {
    key(1, 2, ANSWERER)
}

fn back() -> FlowKey {
    key(2, 1, ASKER)
}

/// Packets 10 µs apart, numbered by their senders.
struct Story {
    tracker: Tracker,
    health: Health,
    summary: Summary,
    inputs: Vec<InputStatistics>,
    thresholds: Thresholds,
    frame: u64,
    now_ns: i64,
    id: u16,
}

impl Story {
    fn new() -> Self {
        Self::within(Limits::default())
    }

    fn within(limits: Limits) -> Self {
        Self {
            tracker: Tracker::new(limits),
            health: Health::new(),
            summary: Summary::default(),
            inputs: Vec::new(),
            thresholds: Thresholds::default(),
            frame: 0,
            now_ns: 0,
            id: 100,
        }
    }

    /// A packet that is sent, but not seen yet.
    fn sent(&mut self, flow: FlowKey, opcode: u8, psn: u32) -> Record {
        self.id += 1;
        let opcode = Opcode(opcode);
        let info = opcode.info();
        Record {
            payload_len: if info.payload { MTU } else { 0 },
            len: 1100,
            ack_req: info.position.ends() && !opcode.is_response(),
            fingerprint: Fingerprint {
                icrc: Some(psn.wrapping_mul(77)),
                ip_id: self.id,
            },
            remote: matches!(opcode.0, FIRST | ONLY | READ).then_some(Remote {
                va: VirtualAddr::new(0x1000),
                rkey: RKey::new(0x4d2),
                len: if opcode.0 == ONLY { MTU } else { 4 * MTU },
            }),
            ..Record::plain(flow, opcode, Psn::new(psn))
        }
    }

    /// The packet is seen now; returns its frame.
    fn seen(&mut self, mut record: Record) -> u64 {
        self.frame += 1;
        self.now_ns += 10_000;
        record.frame = self.frame;
        record.ts_ns = self.now_ns;
        self.summary.add(&Observed::Packet(record.clone()));
        self.tracker.add(&record, &mut self.health);
        self.frame
    }

    fn send(&mut self, flow: FlowKey, opcode: u8, psn: u32) -> u64 {
        let record = self.sent(flow, opcode, psn);
        self.seen(record)
    }

    fn ask(&mut self, opcode: u8, psn: u32) -> u64 {
        self.send(forth(), opcode, psn)
    }

    fn reply(&mut self, opcode: u8, psn: u32, syndrome: u8) -> u64 {
        self.answer(back(), opcode, psn, syndrome)
    }

    fn answer(&mut self, flow: FlowKey, opcode: u8, psn: u32, syndrome: u8) -> u64 {
        let mut record = self.sent(flow, opcode, psn);
        record.aeth = Some(Aeth {
            syndrome,
            msn: Msn::new(0),
        });
        self.seen(record)
    }

    fn ack(&mut self, psn: u32) -> u64 {
        self.reply(ACK, psn, POSITIVE)
    }

    /// A WRITE of one packet and its ACK: the two flows are known to each
    /// other from here on.
    fn write(&mut self, psn: u32) {
        self.ask(ONLY, psn);
        self.ack(psn);
    }

    /// A WRITE of four packets, without those in `lost`.
    fn write4(&mut self, psn: u32, lost: &[u32]) {
        for (psn, opcode) in (psn..).zip([FIRST, MIDDLE, MIDDLE, LAST]) {
            if !lost.contains(&psn) {
                self.ask(opcode, psn);
            }
        }
    }

    fn wait_ms(&mut self, ms: i64) {
        self.now_ns += ms * 1_000_000;
    }

    fn findings(&mut self) -> Vec<Finding> {
        self.tracker.finish(&mut self.health);
        self.health
            .findings(&self.tracker, &self.summary, &self.inputs, self.thresholds)
    }

    /// The findings, of which there must be this one and no other.
    fn only(&mut self, id: &str) -> Finding {
        let found = self.findings();
        let ids: Vec<_> = found.iter().map(|finding| finding.id).collect();
        assert_eq!(ids, [id], "{found:#?}");
        found.into_iter().next().unwrap()
    }

    /// The finding of this kind, of which there must be one.
    fn one(&mut self, id: &str) -> Finding {
        let mut found = self.findings();
        found.retain(|finding| finding.id == id);
        assert_eq!(found.len(), 1, "{id}: {found:#?}");
        found.remove(0)
    }

    fn none(&mut self, id: &str) {
        let found = self.findings();
        assert!(found.iter().all(|finding| finding.id != id), "{found:#?}");
    }
}

impl Finding {
    /// A count by its name.
    fn count(&self, name: &str) -> u64 {
        let counts = self.evidence.counts.iter();
        let mut named = counts.filter(|(known, _)| *known == name);
        named
            .next()
            .unwrap_or_else(|| panic!("{name}: {self:#?}"))
            .1
    }

    fn frames(&self) -> Vec<u64> {
        self.evidence.frames.iter().map(|frame| frame.1).collect()
    }
}

#[test]
fn kinds_are_named_once_and_explained() {
    let ids: BTreeSet<_> = KINDS.iter().map(|kind| kind.id).collect();
    assert_eq!(ids.len(), KINDS.len());
    for kind in KINDS {
        let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(kind.id.chars().all(kebab), "{}", kind.id);
        for words in [kind.title, kind.about, kind.hint] {
            assert!(words.len() > 10 && !words.contains("  "), "{}", kind.id);
        }
        assert!(kind.about.ends_with('.') && kind.hint.ends_with('.'));
        assert!(std::ptr::eq(Kind::named(kind.id).unwrap(), kind));
    }
    assert!(Kind::named("no-such-kind").is_none());
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let mut story = Story::new();
    assert_eq!(story.findings(), []);
    for i in 0..20 {
        story.write4(4 * i, &[]);
        story.ack(4 * i + 3);
    }
    assert_eq!(story.findings(), []);
}

#[test]
fn the_worst_comes_first_then_what_cost_most() {
    let mut story = Story::new();
    // An ACK that is missing, a packet that is lost, many that are lost on
    // another flow, an access that is refused.
    for psn in 0..10 {
        story.write(psn);
    }
    story.ask(ONLY, 10);
    story.write(11);
    story.write4(12, &[13]);
    story.reply(ACK, 13, SEQUENCE_NAK);
    for (opcode, psn) in [(MIDDLE, 13), (MIDDLE, 14), (LAST, 15)] {
        story.ask(opcode, psn);
    }
    story.ack(15);
    let (other, answers) = (key(1, 2, 0x33), key(2, 1, 0x44));
    story.send(other, ONLY, 0);
    story.answer(answers, ACK, 0, POSITIVE);
    for psn in 2..30 {
        story.send(other, ONLY, psn);
    }
    story.answer(answers, ACK, 1, SEQUENCE_NAK);
    for psn in 1..30 {
        story.send(other, ONLY, psn);
    }
    story.answer(answers, ACK, 29, POSITIVE);
    story.ask(ONLY, 16);
    story.reply(ACK, 16, 0x62);
    let found = story.findings();
    let ranked: Vec<_> = found
        .iter()
        .map(|finding| (finding.severity.word(), finding.id, finding.subject))
        .collect();
    assert_eq!(
        ranked,
        [
            ("error", "remote-access-error", Subject::Flow(forth())),
            ("warning", "packet-loss", Subject::Flow(other)),
            ("warning", "packet-loss", Subject::Flow(forth())),
            ("info", "ack-loss", Subject::Flow(forth())),
        ]
    );
}

#[test]
fn of_many_alike_the_rest_are_one() {
    let mut story = Story::new();
    for qp in 0..30 {
        let (there, here) = (key(1, 2, 0x100 + qp), key(2, 1, 0x200 + qp));
        story.send(there, ONLY, 5);
        story.answer(here, ACK, 5, 0x62);
    }
    story.thresholds.scan = 100;
    let found = story.findings();
    assert_eq!(found.len(), 21);
    let rest = &found[20];
    assert_eq!(
        (rest.id, rest.subject),
        ("remote-access-error", Subject::Capture)
    );
    assert_eq!((rest.count("more"), rest.count("naks")), (10, 10));
    assert_eq!(rest.evidence.frames.len(), FRAMES_KEPT);
    story.thresholds.told_apart = usize::MAX;
    assert_eq!(story.findings().len(), 30);
}

#[test]
fn a_filter_of_flows_chooses_findings() {
    let filter = |qp: &[u32], hosts: &[u8]| crate::filter::FlowFilter {
        qps: qp.iter().map(|qp| QpNumber::new(*qp)).collect(),
        hosts: hosts.iter().map(|last| host(*last)).collect(),
    };
    let flow = Subject::Flow(forth());
    assert!(flow.chosen(&filter(&[], &[])));
    assert!(flow.chosen(&filter(&[ANSWERER], &[2])));
    assert!(!flow.chosen(&filter(&[ASKER], &[])));
    let hosts = Subject::Hosts {
        src: host(1),
        dst: host(2),
    };
    assert!(hosts.chosen(&filter(&[], &[1])) && !hosts.chosen(&filter(&[], &[3])));
    assert!(Subject::Capture.chosen(&filter(&[7], &[3])));
}
