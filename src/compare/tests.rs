use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::{
    track::{Fingerprint, Record},
    wire::types::QpNumber,
};

/// A packet in the numbers that matter; small ones, so that many are alike.
#[derive(Debug, Clone, Copy)]
struct Number {
    ts_ns: i64,
    hosts: (u8, u8),
    psn: u32,
    icrc: Option<u32>,
    ip_id: u16,
    state: IcrcState,
}

fn record(number: Number) -> Record {
    let host = |last: u8| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    Record {
        flow: FlowKey {
            src: host(number.hosts.0),
            dst: host(number.hosts.1),
            dest_qp: QpNumber::new(7),
        },
        input: 0,
        frame: 1,
        ts_ns: number.ts_ns,
        sport: 0,
        opcode: Opcode(10),
        psn: Psn::new(number.psn),
        aeth: None,
        remote: None,
        src_qp: None,
        payload_len: 64,
        len: 138,
        fingerprint: Fingerprint {
            icrc: number.icrc,
            ip_id: number.ip_id,
        },
        ack_req: true,
        ecn: 2,
        dscp: 0,
        priority: None,
        ttl: 64,
        icrc: number.state,
        v1: false,
        truncated: false,
        malformed: false,
        fragment: false,
        cm: None,
    }
}

fn collect(points: &[Vec<Number>]) -> Collector {
    let mut collector = Collector::new();
    for (place, point) in points.iter().enumerate() {
        collector.point(format!("point {place}"));
        for (frame, number) in (1u64..).zip(point) {
            let mut record = record(*number);
            record.frame = frame;
            collector.frame(record.ts_ns);
            collector.packet(&record);
        }
    }
    collector
}

fn numbers() -> impl Strategy<Value = Number> {
    let time = prop_oneof![
        6 => 0..3_000_000i64,
        1 => any::<i64>(),
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX)],
    ];
    let icrc = prop_oneof![
        3 => (0..3u32).prop_map(Some),
        1 => Just(None),
    ];
    let state = prop_oneof![
        Just(IcrcState::Valid),
        Just(IcrcState::Invalid),
        Just(IcrcState::Unverifiable),
    ];
    (time, (1..4u8, 1..4u8), 0..3u32, icrc, 0..2u16, state).prop_map(
        |(ts_ns, hosts, psn, icrc, ip_id, state)| Number {
            ts_ns,
            hosts,
            psn,
            icrc,
            ip_id,
            state,
        },
    )
}

proptest! {
    #[test]
    fn every_packet_has_one_fate_whatever_is_compared(
        points in proptest::collection::vec(proptest::collection::vec(numbers(), 0..40), 0..5),
        synced in any::<bool>(),
    ) {
        let comparison = collect(&points).compare(synced);
        prop_assert_eq!(comparison.points().len(), points.len());
        prop_assert_eq!(comparison.legs().len(), points.len().saturating_sub(1));
        for leg in comparison.legs() {
            let lone: Vec<Lone> = comparison.lone(leg).collect();
            for (end, point) in [(End::Near, leg.near), (End::Far, leg.far)] {
                let here = lone.iter().filter(|lone| lone.end == end).count();
                let missed = match end {
                    End::Near => leg.counts.fate(Fate::Missed),
                    // Counted where the packet was seen first.
                    End::Far => {
                        let unseen = points[point].len() - leg.counts.matched as usize - here;
                        unseen as u64
                    }
                };
                let all = leg.counts.matched + here as u64 + missed;
                prop_assert_eq!(all, points[point].len() as u64);
            }
            for fate in Fate::ALL.into_iter().filter(|fate| *fate != Fate::Missed) {
                let listed = lone.iter().filter(|lone| lone.fate == fate).count();
                prop_assert_eq!(leg.counts.fate(fate), listed as u64, "{:?}", fate);
            }
            let of_flows = leg.flows.iter().map(|flow| flow.counts.matched);
            prop_assert_eq!(of_flows.sum::<u64>(), leg.counts.matched);
            // Each packet is linked once, and to its like.
            for (index, link) in (0u32..).zip(&leg.ahead) {
                if let Some(back) = leg.back.get(*link as usize) {
                    prop_assert_eq!(*back, index);
                    let near = &comparison.points[leg.near].seen[index as usize];
                    let far = &comparison.points[leg.far].seen[*link as usize];
                    prop_assert_eq!(near.place(), far.place());
                    prop_assert!(near.print() == far.print() || near.may_be(far));
                }
            }
            let linked = |links: &[u32]| links.iter().filter(|link| **link != NONE).count();
            prop_assert_eq!(linked(&leg.ahead), linked(&leg.back));
            prop_assert_eq!(linked(&leg.ahead) as u64, leg.counts.matched);
        }
        let missed: u64 = comparison.legs().iter().map(|leg| leg.counts.fate(Fate::Missed)).sum();
        prop_assert_eq!(comparison.missed().len() as u64, missed);
    }
}

/// A request every millisecond, each with an answer.
fn exchange(n: u32, offset: i64, sign: i64) -> Vec<Number> {
    let number = |n: u32, hosts: (u8, u8), delay: i64| Number {
        ts_ns: i64::from(n) * 1_000_000 + offset + delay,
        hosts,
        psn: n,
        icrc: Some(n),
        ip_id: 0,
        state: IcrcState::Valid,
    };
    (0..n)
        .flat_map(|n| {
            let delay = sign * (10_000 + i64::from(n % 7) * 100);
            [number(n, (1, 2), delay), number(n, (2, 1), 500_000 - delay)]
        })
        .collect()
}

#[test]
fn what_a_mirror_copied_twice_was_not_lost() {
    let near = exchange(50, 0, 0);
    let far = exchange(50, 7_000_000_000, 1);
    let twice = |points: &[Number]| {
        let copies = points.iter().flat_map(|number| {
            let mut copy = *number;
            copy.ts_ns += 2_000;
            [*number, copy]
        });
        copies.collect::<Vec<_>>()
    };
    for points in [[twice(&near), far.clone()], [near.clone(), twice(&far)]] {
        let comparison = collect(&points).compare(false);
        let counts = comparison.legs()[0].counts;
        let found = [Fate::Twice, Fate::Lost, Fate::Only].map(|fate| counts.fate(fate));
        assert_eq!((counts.matched, found), (100, [100, 0, 0]));
    }
    // A few copies are what the network made, or what was sent again.
    let mut some = far.clone();
    let mut copy = far[20];
    copy.ts_ns += 2_000;
    some.insert(21, copy);
    let comparison = collect(&[near, some]).compare(false);
    let counts = comparison.legs()[0].counts;
    assert_eq!((counts.matched, counts.fate(Fate::Only)), (100, 1));
    let lone: Vec<Lone> = comparison.lone(&comparison.legs()[0]).collect();
    assert!(lone[0].seen.copy);
}

#[test]
fn delays_are_those_of_each_way() {
    let points = [exchange(200, 0, 0), exchange(200, -3_000, 1)];
    let comparison = collect(&points).compare(false);
    let leg = &comparison.legs()[0];
    let offset = leg.offset.expect("packets were matched");
    assert_eq!((offset.ns, offset.error_ns), (-3_000, Some(10_000)));
    for flow in &leg.flows {
        let delays = flow.delays.expect("packets were matched");
        assert_eq!((delays.min_ns, delays.max_ns), (10_000, 10_600));
        assert!(flow.bound.is_some_and(|(_, how)| how == Learned::Delay));
    }
    assert_eq!(leg.hops.values().sum::<u64>(), 400);
}
