//! Damage whose size is known, done to real traffic: the tracker counts it at
//! that size and as what it is.

mod common;

use common::capfile::Pkt;
use common::flaws::check_flawless;
use common::mangle::{self, Fixture, Mangle, config, places};
use common::recount::Recount;
use common::seen::{Kind, Seen};
use common::talk::Talk;
use common::tracked::{Tracked, track};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseError;
use roce_sniff::track::{Endpoint, EventKind, Flow, How, PsnCounts};
use std::collections::BTreeSet;

/// Fixtures to which nothing happened, with SENDs and WRITEs that are
/// acknowledged, mostly more than one packet at once.
const CLEAN: &[&str] = &[
    "write_1k",
    "write_64k",
    "send_3k",
    "multi_qp",
    "v6_write",
    "bidi",
    "vlan_write",
    "write_ecn",
];

/// Places of the requests of a capture but for the first and the last one of
/// each flow, whose loss could not be told.
fn inner(packets: &[Pkt], kind: Kind) -> Vec<usize> {
    let seen = Seen::all(packets);
    let wanted = |p: &&Seen| p.kind() == kind;
    let of = |key| seen.iter().filter(wanted).filter(move |p| p.key == key);
    let keys: BTreeSet<_> = seen.iter().map(|p| p.key).collect();
    let mut inner = Vec::new();
    for key in keys {
        let own: Vec<usize> = of(key).map(|p| p.index).collect();
        if own.len() > 2 {
            inner.extend(&own[1..own.len() - 1]);
        }
    }
    inner.sort_unstable();
    inner
}

fn pick(from: &[usize], choice: &[Index]) -> BTreeSet<usize> {
    choice.iter().map(|n| from[n.index(from.len())]).collect()
}

fn without(packets: &[Pkt], gone: &BTreeSet<usize>) -> Vec<Pkt> {
    let kept = packets
        .iter()
        .enumerate()
        .filter(|(n, _)| !gone.contains(n));
    kept.map(|(_, p)| p.clone()).collect()
}

/// The counts of all flows together.
fn total(tracked: &Tracked, of: impl Fn(&Flow) -> PsnCounts) -> PsnCounts {
    tracked
        .tracker
        .flows()
        .map(of)
        .fold(PsnCounts::default(), |a, b| PsnCounts {
            packets: a.packets + b.packets,
            new: a.new + b.new,
            gaps: a.gaps + b.gaps,
            skipped: a.skipped + b.skipped,
            missing: a.missing + b.missing,
            capture_loss: a.capture_loss + b.capture_loss,
            retransmitted: a.retransmitted + b.retransmitted,
            refilled: a.refilled + b.refilled,
            reordered: a.reordered + b.reordered,
            duplicates: a.duplicates + b.duplicates,
            mirror_duplicates: a.mirror_duplicates + b.mirror_duplicates,
        })
}

fn requests(tracked: &Tracked) -> PsnCounts {
    total(tracked, |flow| flow.requests)
}

proptest! {
    #![proptest_config(config(150))]

    /// Requests that only the sniffer missed: the responder acknowledged them
    /// and nobody asked for them again.
    #[test]
    fn packets_lost_by_the_capture(fixture in Fixture::one_of(CLEAN), choice in places()) {
        let Fixture { name, packets } = fixture;
        let gone = pick(&inner(packets, Kind::Request), &choice);
        let tracked = track(&without(packets, &gone));
        let all = requests(&tracked);
        let lost = gone.len() as u64;
        prop_assert_eq!(all.missing, lost, "{}: missing: {:?}", name, all);
        prop_assert_eq!(all.skipped, lost, "{}: skipped: {:?}", name, all);
        prop_assert_eq!(all.capture_loss, lost, "{}: lost by the capture: {:?}", name, all);
        let noise = all.retransmitted + all.reordered + all.duplicates + all.mirror_duplicates;
        prop_assert_eq!(noise, 0, "{}: {:?}", name, all);
        let told: u64 = tracked.log.events.iter().map(|told| match told.kind {
            EventKind::CaptureLoss { missing } => u64::from(missing),
            _ => 0,
        }).sum();
        prop_assert_eq!(told, lost, "{}: told: {:#?}", name, tracked.log.events);
        check_flawless(&tracked)?;
    }

    /// READ responses that were lost leave holes of their number.
    #[test]
    fn responses_lost(choice in places()) {
        let packets = Fixture::named("read_8k").packets;
        let gone = pick(&inner(packets, Kind::Response), &choice);
        let tracked = track(&without(packets, &gone));
        let all = total(&tracked, |flow| flow.responses);
        prop_assert_eq!(all.missing, gone.len() as u64, "{:?}", all);
        prop_assert_eq!(all.packets, 80 - gone.len() as u64);
        prop_assert_eq!(all.new, all.packets, "{:?}", all);
        let asked = requests(&tracked);
        prop_assert_eq!((asked.new, asked.gaps), (10, 0), "{:?}", asked);
        let seen = Seen::all(packets);
        let first = seen.iter().find(|p| p.kind() == Kind::Response).unwrap().psn;
        let hit: BTreeSet<u32> = gone.iter().map(|n| seen[*n].psn.wrapping_sub(first) / 8).collect();
        let whole = tracked.log.messages.iter().filter(|m| m.complete).count();
        prop_assert_eq!(whole, 10 - hit.len(), "{:#?}", tracked.log.messages);
    }

    /// Neighbours that changed places, with nothing to ask for them.
    #[test]
    fn packets_out_of_order(fixture in Fixture::one_of(CLEAN), choice in places()) {
        let Fixture { name, packets } = fixture;
        let seen = Seen::all(packets);
        let inner = inner(packets, Kind::Request);
        let key = |n: usize| seen.iter().find(|p| p.index == n).map(|p| p.key);
        let close = |n: &&usize| {
            packets[**n + 1].ts_ns - packets[**n].ts_ns < 500_000
                && inner.contains(&(**n + 1)) && key(**n) == key(**n + 1)
        };
        let places: Vec<usize> = inner.iter().filter(close).copied().collect();
        prop_assume!(!places.is_empty());
        let mut swapped = packets.to_vec();
        let mut swaps: u64 = 0;
        let mut last = None;
        for n in pick(&places, &choice) {
            if last.is_some_and(|last| n < last + 2) {
                continue;
            }
            last = Some(n);
            swaps += 1;
            let (a, b) = (packets[n].ts_ns, packets[n + 1].ts_ns);
            swapped.swap(n, n + 1);
            (swapped[n].ts_ns, swapped[n + 1].ts_ns) = (a, b);
        }
        let (before, after) = (track(packets), track(&swapped));
        let all = requests(&after);
        prop_assert_eq!(all.reordered, swaps, "{}: {:?}", name, all);
        prop_assert_eq!((all.gaps, all.skipped), (swaps, swaps), "{}: {:?}", name, all);
        let noise = all.missing + all.retransmitted + all.duplicates + all.mirror_duplicates;
        prop_assert_eq!(noise, 0, "{}: {:?}", name, all);
        let bytes = |t: &Tracked| t.tracker.flows().map(|f| f.goodput_bytes).sum::<u64>();
        prop_assert_eq!(bytes(&after), bytes(&before), "{}: bytes that arrived", name);
        check_flawless(&after)?;
    }

    /// A mirror that sends some packets twice, or all of them: the copies are
    /// told apart, and change nothing else about the requests.
    #[test]
    fn copies_of_a_mirror(fixture in Fixture::one_of(CLEAN), choice in places(), all: bool) {
        let Fixture { name, packets } = fixture;
        let inner = inner(packets, Kind::Request);
        let chosen = if all { (0..packets.len()).collect() } else { pick(&inner, &choice) };
        let seen = Seen::all(packets);
        let mut doubled = Vec::new();
        let mut copies = 0;
        for (n, packet) in packets.iter().enumerate() {
            doubled.push(packet.clone());
            if chosen.contains(&n) {
                let copy = Pkt { ts_ns: packet.ts_ns + 300, ..packet.clone() };
                doubled.push(copy);
                let request = |p: &&Seen| p.index == n && p.kind() == Kind::Request;
                copies += seen.iter().filter(request).count() as u64;
            }
        }
        let (before, after) = (requests(&track(packets)), track(&doubled));
        let got = requests(&after);
        let want = PsnCounts {
            packets: before.packets + copies,
            mirror_duplicates: copies,
            ..before
        };
        prop_assert_eq!(got, want, "{}", name);
        prop_assert_eq!(after.log.messages.len(), track(packets).log.messages.len());
        check_flawless(&after)?;
    }
}

/// Packets that come later than they should, those three places behind them
/// earlier; then some twice, and some not at all.
fn damage(packets: &[Pkt], moved: &[Index], doubled: &[Index], lost: &[Index]) -> Vec<Pkt> {
    let swaps = moved.iter().map(|n| (*n, 3)).collect();
    let copies = doubled.iter().map(|n| (*n, 2)).collect();
    let mangles = [
        Mangle::Swap(swaps),
        Mangle::Double(copies),
        Mangle::Drop(lost.to_vec()),
    ];
    mangle::apply(packets, &mangles)
}

/// What the numbers of a flow's packets say, without what made them so.
fn check_numbers(name: &str, packets: &[Pkt]) -> Result<(), TestCaseError> {
    let recount = Recount::of(packets);
    let tracked = track(packets);
    for (key, want) in &recount.flows {
        let own = |f: &&Flow| (f.key.src, f.key.dst, f.key.dest_qp.get()) == *key;
        let got: Vec<&Flow> = tracked.tracker.flows().filter(own).collect();
        let place = format!("{name}: {key:?}");
        prop_assert_eq!(got.len(), 1, "{}: entries", place);
        let pairs = [
            ("requests", got[0].requests, want.requests),
            ("responses", got[0].responses, want.responses),
        ];
        for (what, mut got, r) in pairs {
            // An answer that shows one more request may have come before it
            // was known whom it answers.
            let tail = got.skipped.wrapping_sub(r.skipped);
            if tail != 0 && tail == want.tail {
                got.skipped -= tail;
                got.missing -= tail;
            }
            let counted = (got.packets, got.new, got.gaps, got.skipped, got.missing);
            let recounted = (r.packets, r.new, r.gaps, r.skipped, r.missing);
            let names = "packets, new, gaps, skipped, missing";
            prop_assert_eq!(counted, recounted, "{} {}: {}", place, what, names);
        }
    }
    check_flawless(&tracked)
}

/// Fixtures without READs, whose numbers tell all.
const READLESS: &[&str] = &[
    "write_1k",
    "write_64k",
    "send_3k",
    "multi_qp",
    "v6_write",
    "bidi",
    "vlan_write",
    "write_ecn",
    "write_uc",
    "write_dup",
    "send_loss",
    "ack_loss",
    "lossy_sender",
    "lossy_receiver",
    "reorder",
    "rnr",
    "peer_dies",
];

/// Fixtures in which no queue pair number is used twice, and all that arrived
/// was right.
const RIGHT: &[&str] = &[
    "read_8k",
    "atomic_fa",
    "cm_rping",
    "jumbo",
    "delay",
    "read_loss",
    "read_loss_responder",
    "read_write_mix",
    "psn_wrap",
    "lossy_sender",
    "reorder",
    "rnr",
    "peer_dies",
    "bidi",
];

proptest! {
    #![proptest_config(config(150))]

    /// Losses, copies and disorder where only requests were captured, against
    /// the slow recount.
    #[test]
    fn requests_alone_are_counted_like_the_recount(
        fixture in Fixture::one_of(READLESS),
        moved in places(), doubled in places(), lost in places(),
    ) {
        let Fixture { name, packets } = fixture;
        let seen = Seen::all(packets);
        let requests = seen.iter().filter(|p| p.kind() == Kind::Request);
        let requests: Vec<Pkt> = requests.map(|p| packets[p.index].clone()).collect();
        check_numbers(name, &damage(&requests, &moved, &doubled, &lost))?;
    }

    /// The same with answers between them.
    #[test]
    fn requests_and_answers_are_counted_like_the_recount(
        fixture in Fixture::one_of(CLEAN),
        moved in places(), doubled in places(), lost in places(),
    ) {
        let Fixture { name, packets } = fixture;
        check_numbers(name, &damage(packets, &moved, &doubled, &lost))?;
    }

    /// Answers and responses that were not captured change nothing about the
    /// numbers of the others.
    #[test]
    fn lost_answers_are_counted_like_the_recount(
        fixture in Fixture::one_of(RIGHT), choice in places(),
    ) {
        let Fixture { name, packets } = fixture;
        let kinds = [inner(packets, Kind::Answer), inner(packets, Kind::Response)].concat();
        prop_assume!(!kinds.is_empty());
        check_numbers(name, &without(packets, &pick(&kinds, &choice)))?;
    }
}

proptest! {
    #![proptest_config(config(150))]

    /// Queue pairs between the same hosts that all begin with the same number,
    /// each with a few requests outstanding, in any order: once they have got
    /// on, it is known who answers whom, and nothing seems lost.
    #[test]
    fn queue_pairs_are_told_apart(seed: u64, window in 1..5u32) {
        let mut talk = Talk::default();
        let mut sent = [0u32; 4];
        let mut answered = [0u32; 4];
        let mut state = seed | 1;
        for _ in 0..400 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let (who, asks) = ((state >> 33) as usize % 4, state >> 63 == 1);
            let outstanding = sent[who] - answered[who];
            let one = if (asks && outstanding < window) || outstanding == 0 {
                sent[who] += 1;
                Talk::default().write(sent[who] - 1)
            } else {
                answered[who] += 1;
                Talk::default().ack(answered[who] - 1)
            };
            let n = who as u32;
            let frame = one.between(0x100 + n, 0x200 + n).packets.remove(0).data;
            talk.packets.push(Pkt::whole(talk.now_ns, frame));
            talk.now_ns += 10_000;
        }
        prop_assume!(answered.iter().all(|count| *count > 20));
        let tracked = track(&talk.packets);
        for connection in tracked.tracker.connections() {
            let qp = |end: &Endpoint| end.qp.map(|qp| qp.get() & 0xff);
            // Where nothing tells the candidates apart, none is named.
            if connection.how == How::Inferred {
                prop_assert_eq!(qp(&connection.a), qp(&connection.b), "{:?}", connection);
            }
        }
        let all = requests(&tracked);
        let sent = u64::from(sent.iter().sum::<u32>());
        prop_assert_eq!((all.new, all.gaps, all.reordered), (sent, 0, 0), "{:?}", all);
        check_flawless(&tracked)?;
    }
}
