//! What must hold of the tracker whatever happens to a capture: counts add
//! up, nothing depends on where sequence numbers start, and damage whose size
//! is known is counted at that size.

mod common;

use common::capfile::Pkt;
use common::flaws::{all_flaws, check_flawless, run_flaws};
use common::mangle::{self, Fixture, Mangle, config, mangles, places, shifted};
use common::recount::Recount;
use common::seen::Seen;
use common::tracked::{Tracked, counts, name, records, track, track_within};
use proptest::prelude::*;
use roce_sniff::track::{Connection, Flow, Limits, Message, Tracker};
use roce_sniff::wire::types::Psn;

proptest! {
    #![proptest_config(config(400))]

    /// Whatever happens to captures, counts are sums of their parts, and every
    /// packet is counted once.
    #[test]
    fn counts_add_up(first in Fixture::any(), second in Fixture::any(), mangles in mangles()) {
        let packets = mangle::apply(&[first.packets, second.packets].concat(), &mangles);
        check_flawless(&track(&packets))?;
    }

    /// The same with one capture, in which less is new at once.
    #[test]
    fn counts_of_one_add_up(fixture in Fixture::any(), mangles in mangles()) {
        check_flawless(&track(&mangle::apply(fixture.packets, &mangles)))?;
    }

    /// The same with room for a few flows only.
    #[test]
    fn counts_add_up_with_little_room(first in Fixture::any(), second in Fixture::any(),
                                      flows in 2..8usize, mangles in mangles()) {
        let many = Fixture::named("multi_qp");
        let packets = [first.packets, many.packets, second.packets].concat();
        let limits = Limits { flows, ..Limits::default() };
        let tracked = track_within(&mangle::apply(&packets, &mangles), limits);
        let kept = tracked.tracker.flows().count();
        prop_assert!(kept <= flows, "{kept} flows kept of {flows}");
        check_flawless(&tracked)?;
    }

    /// Asking for the end in between, as a live display does, changes no
    /// count of packets.
    #[test]
    fn an_end_in_between(fixture in Fixture::any(), ends in places(), mangles in mangles()) {
        let packets = mangle::apply(fixture.packets, &mangles);
        let records = records(&packets);
        let ends: Vec<usize> = ends.iter().map(|n| n.index(records.len() + 1)).collect();
        let mut tracker = Tracker::new(Limits::default());
        for (n, record) in records.iter().enumerate() {
            if ends.contains(&n) {
                tracker.finish(&mut ());
            }
            tracker.add(record, &mut ());
        }
        tracker.finish(&mut ());
        let plain = track(&packets);
        let sequences = |flow: &Flow| (name(flow.key), flow.packets, flow.requests.packets,
                                       flow.requests.new, flow.responses.new, flow.acks);
        let got: Vec<_> = tracker.flows().map(sequences).collect();
        let want: Vec<_> = plain.tracker.flows().map(sequences).collect();
        prop_assert_eq!(got, want);
    }
}

/// Everything a tracker says, in lines, with PSNs moved back by `by`.
fn story(tracked: &Tracked, by: u32) -> Vec<String> {
    let back = |psn: Psn| Psn::new(psn.get().wrapping_sub(by));
    let mut lines = Vec::new();
    for flow in tracked.tracker.flows() {
        // Packets to queue pair 1 are not moved.
        let back = |psn| {
            if flow.key.dest_qp.get() == 1 {
                psn
            } else {
                back(psn)
            }
        };
        let peer = flow.peer.and_then(|id| tracked.tracker.flow(id));
        let peer = peer.map(|peer| name(peer.key));
        let key = name(flow.key);
        lines.push(format!(
            "flow {key} PSNs {} {}, peer {peer:?}",
            back(flow.first_psn),
            back(flow.last_psn)
        ));
        let counts = counts(flow).into_iter();
        lines.extend(counts.map(|(what, value)| format!("flow {key} {what}: {value}")));
    }
    for told in &tracked.log.events {
        lines.push(format!("frame {}: {:?}", told.frame, told.kind));
    }
    for message in &tracked.log.messages {
        let message = Message {
            first_psn: back(message.first_psn),
            last_psn: back(message.last_psn),
            ..message.clone()
        };
        lines.push(format!("{message:?}"));
    }
    for mut connection in tracked.tracker.connections() {
        let Connection { a, b, .. } = &mut connection;
        for end in [a, b] {
            end.initial_psn = end.initial_psn.map(back);
        }
        lines.push(format!("{connection:?}"));
    }
    lines
}

/// Lines that differ, both of them.
fn difference(got: &[String], want: &[String]) -> String {
    let mut lines = Vec::new();
    for (got, want) in got
        .iter()
        .zip(want)
        .filter(|(got, want)| got != want)
        .take(12)
    {
        lines.push(format!(" got {got}\nwant {want}"));
    }
    if got.len() != want.len() {
        lines.push(format!("{} lines, not {}", got.len(), want.len()));
    }
    lines.join("\n")
}

/// Where the sequence starts changes nothing, wherever it wraps around.
fn check_shift(packets: &[Pkt], by: u32) -> Result<(), TestCaseError> {
    let want = story(&track(packets), 0);
    let got = story(&track(&shifted(packets, by)), by);
    prop_assert!(
        got == want,
        "PSNs moved by {by:#x}\n{}",
        difference(&got, &want)
    );
    Ok(())
}

/// PSNs start over within the capture, for every fixture.
#[test]
fn sequence_numbers_may_wrap_around() {
    let mut wrapped = 0;
    for Fixture { name, packets } in Fixture::all() {
        let recount = Recount::of(packets);
        for flow in recount.flows.values() {
            let Some((first, last)) = flow.psns.filter(|(first, last)| first != last) else {
                continue;
            };
            let length = last.wrapping_sub(first) & 0xff_ffff;
            for before in [1, length / 2 + 1, length] {
                let by = 0u32.wrapping_sub(first).wrapping_sub(before) & 0xff_ffff;
                if let Err(error) = check_shift(packets, by) {
                    panic!("{name}: {error}");
                }
                wrapped += 1;
            }
        }
    }
    assert!(wrapped > 30, "only {wrapped} wraps");
}

proptest! {
    #![proptest_config(config(120))]

    /// Nor does it in a capture with losses, copies and disorder.
    #[test]
    fn sequence_numbers_may_start_anywhere(fixture in Fixture::any(), by in 0..=0xff_ffffu32,
                                           lost in places(), moved in places(),
                                           front in 0..50usize) {
        let swaps = moved.into_iter().map(|n| (n, 2)).collect();
        let mangles = [Mangle::Drop(lost), Mangle::Swap(swaps)];
        let mut packets = mangle::apply(fixture.packets, &mangles);
        packets.drain(..front.min(packets.len()));
        check_shift(&packets, by)?;
        // A wrap in the middle of a flow.
        if let Some(seen) = Seen::all(&packets).get(packets.len() / 2) {
            check_shift(&packets, 0u32.wrapping_sub(seen.psn) & 0xff_ffff)?;
        }
    }

    /// Nor does when it was: times before 1970 count as well.
    #[test]
    fn times_may_start_anywhere(fixture in Fixture::any(), seconds in 0..2_000_000_000i64) {
        let counts = |tracker: &Tracker| -> Vec<_> { tracker.flows().map(counts).collect() };
        let mut tracker = Tracker::new(Limits::default());
        for mut record in records(fixture.packets) {
            record.ts_ns -= seconds * 1_000_000_000;
            tracker.add(&record, &mut ());
        }
        tracker.finish(&mut ());
        prop_assert_eq!(counts(&tracker), counts(&track(fixture.packets).tracker));
    }

    /// A snapshot length that leaves the headers whole changes nothing but
    /// what needs the ICRC: that it is right, and that copies are copies.
    #[test]
    fn cut_payload(fixture in Fixture::any(), snaplen in 110..300usize) {
        prop_assume!(!matches!(fixture.name, "write_dup" | "cm_rping" | "cm_refused" | "corrupt"));
        let steady = |packets: &[Pkt]| -> Vec<String> {
            let lines = story(&track(packets), 0).into_iter();
            lines.filter(|line| !line.contains("icrc_valid")).collect()
        };
        let want = steady(fixture.packets);
        let got = steady(&mangle::apply(fixture.packets, &[Mangle::Cut(snaplen)]));
        prop_assert!(got == want, "cut at {snaplen}\n{}", difference(&got, &want));
    }
}

/// What a capture says that comes again under other sequence numbers, a
/// second later: every flow that has a sequence is there twice, each entry as
/// if it were alone.
#[test]
fn queue_pair_numbers_used_again() {
    for Fixture {
        name: fixture,
        packets,
    } in Fixture::all()
    {
        // A lone request, or one that nobody answers, says too little; one is
        // such a capture already.
        let little = [
            "bad_rkey",
            "badrkey",
            "cm_refused",
            "corrupt",
            "imm",
            "peer_dies",
            "qp_reuse",
            "retry_exceeded",
            "send_ud",
        ];
        if little.contains(&fixture) {
            continue;
        }
        for by in [0x40_0000, 0x7f_ffff, 0xc0_0000] {
            let alone = track(packets);
            let twice = mangle::apply(packets, &[Mangle::Again(by, 1_000_000)]);
            let twice = track(&twice);
            let flaws = all_flaws(&twice);
            assert!(flaws.is_empty(), "{fixture}: {flaws:#?}");
            for flow in alone.tracker.flows().filter(|f| f.key.dest_qp.get() != 1) {
                let place = format!("{fixture} + {by:#x}: {}", name(flow.key));
                let entries = twice.entries(flow.key);
                assert_eq!(entries.len(), 2, "{place}: entries");
                assert!(entries[0].ended && !entries[1].ended, "{place}: ended");
                for (n, entry) in entries.iter().enumerate() {
                    for (got, want) in counts(entry).into_iter().zip(counts(flow)) {
                        if got.0 != "ended" {
                            assert_eq!(got, want, "{place}: entry {n}");
                        }
                    }
                }
            }
        }
    }
}

/// Captures of different connections, interleaved by time: each flow is as if
/// it were alone.
#[test]
fn flows_do_not_disturb_one_another() {
    let pairs = [
        ("v6_write", "write_dup"),
        ("send_loss", "multi_qp"),
        ("read_8k", "ack_loss"),
        ("cm_rping", "imm"),
        ("retry_exceeded", "bidi"),
    ];
    for (a, b) in pairs {
        let [first, second] = [a, b].map(|name| Fixture::named(name).packets.to_vec());
        let mut second = second;
        let offset = first[0].ts_ns as i64 - second[0].ts_ns as i64;
        for p in &mut second {
            p.ts_ns = p.ts_ns.saturating_add_signed(offset + 7_000);
        }
        let mut both = [first.clone(), second.clone()].concat();
        both.sort_by_key(|p| p.ts_ns);
        let mixed = track(&both);
        let mut seen = 0;
        for alone in [track(&first), track(&second)] {
            for flow in alone.tracker.flows() {
                let entries = mixed.entries(flow.key);
                assert_eq!(entries.len(), 1, "{a} and {b}: {}", name(flow.key));
                assert_eq!(
                    counts(entries[0]),
                    counts(flow),
                    "{a}, {b}: {}",
                    name(flow.key)
                );
                seen += 1;
            }
        }
        assert_eq!(mixed.tracker.flows().count(), seen, "{a} and {b}");
    }
}

/// A listener is told of nothing that the counts do not know, and the other
/// way round.
#[test]
fn fixtures_are_flawless() {
    for Fixture { name, packets } in Fixture::all() {
        let tracked = track(packets);
        let flaws = [all_flaws(&tracked), run_flaws(&tracked)].concat();
        assert!(flaws.is_empty(), "{name}: {flaws:#?}");
    }
}

/// The means of these tests: packets under other PSNs are still right, and no
/// byte of them moved but their PSN and ICRC.
#[test]
fn moved_sequence_numbers_are_sealed() {
    for Fixture { name, packets } in Fixture::all() {
        let (plain, moved) = (Seen::all(packets), Seen::all(&shifted(packets, 0x12_3456)));
        assert_eq!(plain.len(), moved.len(), "{name}");
        for (a, b) in plain.iter().zip(&moved) {
            let by = if a.key.2 == 1 { 0 } else { 0x12_3456 };
            assert_eq!(b.psn, (a.psn + by) & 0xff_ffff, "{name}: {b:?}");
            assert_eq!(b.icrc, a.icrc, "{name}: {b:?}");
            assert_eq!((b.key, b.opcode, b.payload), (a.key, a.opcode, a.payload));
        }
        let back = shifted(&shifted(packets, 0x12_3456), 0u32.wrapping_sub(0x12_3456));
        assert!(back == packets, "{name}: there and back");
    }
}
