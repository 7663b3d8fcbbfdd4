//! The tracker against a slow recount of every fixture.

mod common;

use common::capfile::Pkt;
use common::recount::{self, Recount};
use common::seen::{self, Seen};
use common::tracked::{self, Tracked};
use common::{capture, fixtures};
use roce_sniff::track::{Flow, FlowKey, Message, Operation, PsnCounts};
use roce_sniff::wire::{
    aeth::{AethKind, NakCode},
    opcode::{Opcode, Verb},
    types::QpNumber,
};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Follows a fixture.
fn follow(name: &str) -> Tracked {
    tracked::track(&capture(name).packets)
}

fn key(key: seen::Key) -> FlowKey {
    FlowKey {
        src: key.0,
        dst: key.1,
        dest_qp: QpNumber::new(key.2),
    }
}

/// Differences between what was counted and what was recounted, collected so
/// that a failure shows all of them.
struct Differences {
    place: String,
    list: Vec<String>,
}

impl Differences {
    fn new() -> Self {
        Self {
            place: String::new(),
            list: Vec::new(),
        }
    }

    fn at(&mut self, place: String) {
        self.place = place;
    }

    fn say(&mut self, what: &str) {
        self.list.push(format!("{}: {what}", self.place));
    }

    #[allow(clippy::needless_pass_by_value)] // most are numbers
    fn check<T: PartialEq + Debug>(&mut self, field: &str, tracker: T, recount: T) {
        if tracker != recount {
            self.say(&format!(
                "{field}: tracker {tracker:?}, recount {recount:?}"
            ));
        }
    }

    fn none(self) {
        assert!(self.list.is_empty(), "\n{}", self.list.join("\n"));
    }
}

/// The recount's own numbers in the tracker's struct; the recount does not
/// judge what the capture lost.
fn counts(recount: &recount::Counts, tracker: &PsnCounts) -> PsnCounts {
    PsnCounts {
        packets: recount.packets,
        new: recount.new,
        gaps: recount.gaps,
        skipped: recount.skipped,
        missing: recount.missing,
        capture_loss: tracker.capture_loss,
        retransmitted: recount.retransmitted,
        refilled: recount.refilled,
        reordered: recount.reordered,
        duplicates: recount.duplicates,
        mirror_duplicates: recount.mirror_duplicates,
    }
}

fn compare_flow(diff: &mut Differences, got: &Flow, want: &recount::Flow) {
    let ops = |list: Vec<(Opcode, u64)>| -> BTreeMap<u8, u64> {
        list.into_iter().map(|(op, n)| (op.0, n)).collect()
    };
    diff.check("packets", got.packets, want.packets);
    diff.check("payload bytes", got.payload_bytes, want.payload);
    diff.check("wire bytes", got.wire_bytes, want.wire);
    diff.check("goodput bytes", got.goodput_bytes, want.goodput);
    diff.check("ops", ops(got.ops.sorted()), want.ops.clone());
    let requests = counts(&want.requests, &got.requests);
    diff.check("requests", got.requests, requests);
    let responses = counts(&want.responses, &got.responses);
    diff.check("responses", got.responses, responses);
    diff.check("untracked", got.untracked, want.untracked);
    diff.check(
        "acknowledgements",
        got.acknowledgements,
        want.acknowledgements,
    );
    diff.check("acks", got.acks, want.acks);
    let naks: BTreeMap<u8, u64> = got
        .naks()
        .map(|(code, count)| (code.map_or(0xff, |code| code.0), count))
        .collect();
    diff.check("naks", naks, want.naks.clone());
    diff.check("RNR NAKs", got.rnr_naks, want.rnr);
    diff.check("CNPs", got.cnps, want.cnps);
    diff.check("CE", got.ce, want.ce);
    diff.check("ECN-capable", got.ecn_capable, want.ecn_capable);
    diff.check("valid ICRCs", got.icrc_valid, want.icrc_valid);
    diff.check("invalid ICRCs", got.icrc_invalid, want.icrc_invalid);
    let times = (got.first_ts_ns, got.last_ts_ns);
    diff.check("times", times, (want.first_ns, want.last_ns));
    if let Some(psns) = want.psns {
        let got = (got.first_psn.get(), got.last_psn.get());
        diff.check("first and last PSN", got, psns);
    }
    if got.requests.packets > 0 && want.mtu.is_some() {
        diff.check("path MTU", got.mtu.map(u64::from), want.mtu);
    }
    diff.check("messages", got.messages, want.messages.len() as u64);
    let complete = want.messages.iter().filter(|m| m.complete);
    let bytes: u64 = complete.map(|m| m.bytes).sum();
    diff.check("message bytes", got.message_bytes, bytes);
}

fn compare_runs(diff: &mut Differences, got: &Flow, want: &recount::Flow) {
    let (runs, recounted) = (got.retransmit_runs, want.runs);
    diff.check("runs", runs.total(), recounted.total());
    diff.check(
        "runs after sequence NAKs",
        runs.sequence_nak,
        recounted.sequence_nak,
    );
    diff.check("runs after RNR NAKs", runs.rnr, recounted.rnr);
    // A READ that is asked for again after a while: what made its requester
    // do so can be told in two ways.
    if !want.ops.contains_key(&0x0c) {
        diff.check("runs after silence", runs.timeout, recounted.timeout);
    }
}

fn compare_message(diff: &mut Differences, got: &Message, want: &recount::Msg) {
    let operation = Operation::of(Opcode(want.opcode));
    diff.check("verb", got.operation.verb, operation.verb);
    let psns = (got.first_psn.get(), got.last_psn.get());
    diff.check("PSNs", psns, (want.first_psn, want.last_psn));
    diff.check("bytes", got.bytes, want.bytes);
    let remote = got.remote.map(|r| (r.va.get(), r.rkey.get(), r.len));
    diff.check("remote memory", remote, want.remote);
    diff.check("start", got.start_ns, want.start_ns);
    diff.check("end", got.end_ns, want.end_ns);
    diff.check("answer", got.acked_ns, want.acked_ns);
    let latency = want.acked_ns.map(|ns| ns - want.start_ns);
    diff.check("latency", got.latency_ns(), latency);
    // A READ waits for those before it, and what comes for it meanwhile counts.
    let most = match operation.verb {
        Verb::Read => want.retransmits_in_all,
        _ => want.retransmits,
    };
    let possible = want.retransmits..=most;
    if !possible.contains(&got.retransmits) {
        diff.check("retransmits", got.retransmits, want.retransmits);
    }
    diff.check("complete", got.complete, want.complete);
    let refused = |kind: AethKind| match kind {
        AethKind::Nak(NakCode(code)) => Some(0x60 | code),
        _ => None,
    };
    diff.check("refused", got.refused.and_then(refused), want.refused);
}

/// Compares all of a capture, or of a part in which no queue pair number is
/// used twice: `entry` is the entry of each flow that belongs to the part.
fn compare(diff: &mut Differences, fixture: &str, part: &[Pkt], tracked: &Tracked, entry: usize) {
    let recount = Recount::of(part);
    for (flow_key, want) in &recount.flows {
        let entries = tracked.entries(key(*flow_key));
        let place = format!("{fixture}: {}", tracked::name(key(*flow_key)));
        diff.at(place.clone());
        let Some(got) = entries.get(entry) else {
            diff.say("not among the tracker's flows");
            continue;
        };
        compare_flow(diff, got, want);
        // Packets that were lost on the way or overtaken on it leave more than
        // one way to say what began a run.
        if !matches!(fixture, "corrupt" | "reorder") {
            compare_runs(diff, got, want);
        }
        let peer = got.peer.and_then(|id| tracked.tracker.flow(id));
        diff.check("peer", peer.map(|peer| peer.key), want.peer.map(key));
        let mut messages = tracked.messages(got.id);
        messages.sort_by_key(|m| m.first_psn.distance_from(got.first_psn));
        for (n, (got, want)) in messages.iter().zip(&want.messages).enumerate() {
            diff.at(format!("{place}, message {n} of {:#x}", want.opcode));
            compare_message(diff, got, want);
        }
    }
}

/// Every count of every flow and every message of every fixture is what the
/// recount finds.
#[test]
fn every_fixture_is_counted_like_the_recount() {
    let mut diff = Differences::new();
    for fixture in fixtures() {
        let packets = capture(&fixture).packets;
        let tracked = follow(&fixture);
        diff.at(fixture.clone());
        let frame = common::truth()[&fixture]["first_frame_of_second_run"].as_u64();
        let (first, second) = packets.split_at(frame.map_or(packets.len(), |n| n as usize - 1));
        compare(&mut diff, &fixture, first, &tracked, 0);
        compare(&mut diff, &fixture, second, &tracked, 1);
        diff.at(fixture.clone());
        let parts = [first, second].map(|part| Recount::of(part).flows.len());
        let flows = tracked.tracker.flows().count();
        diff.check("flows", flows, parts.iter().sum());
        diff.check("packets", tracked.fed, Seen::all(&packets).len() as u64);
    }
    diff.none();
}

/// Real traffic that nothing happened to gives no events.
#[test]
fn undisturbed_traffic_is_quiet() {
    let quiet = [
        "atomic_fa",
        "bidi",
        "cm_rping",
        "multi_qp",
        "read_8k",
        "send_3k",
        "send_ud",
        "v6_write",
        "vlan_write",
        "write_1k",
        "write_64k",
        "write_uc",
    ];
    for fixture in quiet {
        let tracked = follow(fixture);
        assert!(tracked.tracker.flows().count() > 0, "{fixture}: no flows");
        let events = &tracked.log.events;
        assert!(events.is_empty(), "{fixture}: {events:#?}");
    }
}

/// The recount itself: its packets, operations and syndromes are those an
/// independent decoder found, and its sums those of the driver's counters.
#[test]
fn the_recount_agrees_with_what_is_known() {
    let truth = common::truth();
    for fixture in fixtures() {
        let truth = &truth[&fixture];
        let recount = Recount::of(&capture(&fixture).packets);
        let mut ops: BTreeMap<String, u64> = BTreeMap::new();
        let mut syndromes: BTreeMap<String, u64> = BTreeMap::new();
        for p in &recount.packets {
            *ops.entry(p.opcode.to_string()).or_default() += 1;
            if let Some(syndrome) = p.syndrome {
                *syndromes.entry(syndrome.to_string()).or_default() += 1;
            }
            let damaged = fixture == "corrupt";
            assert!(damaged || p.icrc == Some(true), "{fixture}: ICRC of {p:?}");
        }
        let known = |key: &str| -> BTreeMap<String, u64> {
            serde_json::from_value(truth[key].clone()).unwrap()
        };
        assert_eq!(ops, known("opcodes"), "{fixture}: opcodes");
        assert_eq!(syndromes, known("syndromes"), "{fixture}: syndromes");
        let driver = &truth["driver_counters_delta"]["rxe0"];
        let sum = |of: &dyn Fn(&recount::Flow) -> u64| recount.flows.values().map(of).sum::<u64>();
        let sequence_naks = sum(&|f| f.naks.get(&0).copied().unwrap_or(0));
        let known = common::number(driver, "out_of_seq_request").unwrap_or(0);
        let lost = truth["lost_from_server"].as_u64().unwrap_or(0);
        if lost == 0 || truth["captured_at"] == "the server's end" {
            assert_eq!(sequence_naks, known, "{fixture}: sequence NAKs");
        } else {
            let possible = known.saturating_sub(lost)..=known;
            let right = possible.contains(&sequence_naks);
            assert!(right, "{fixture}: {sequence_naks} sequence NAKs of {known}");
        }
        if fixture == "write_dup" {
            let copies = sum(&|f| f.requests.duplicates);
            let known = common::number(driver, "duplicate_request");
            assert_eq!(Some(copies), known, "{fixture}: duplicates");
        }
    }
}
