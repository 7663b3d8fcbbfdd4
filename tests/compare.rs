//! `compare`: what was done to a capture on its way to a second point is what
//! the command finds.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{
    Run,
    capfile::{Capture, ETHERNET, Pkt},
    craft, fixture, number, run, text, write,
};
use proptest::prelude::*;
use serde_json::Value;

/// Clock of the second point against the first.
const OFFSET_NS: i64 = -1_234_567_890;

/// What happens to a packet between the points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fortune {
    Arrives,
    Lost,
    Corrupted,
    Marked,
    Rewritten,
    Duplicated,
}

impl Fortune {
    const fn changes(self) -> bool {
        matches!(self, Self::Corrupted | Self::Marked | Self::Rewritten)
    }
}

/// A point of the test: its packets, each with the place it has in the
/// original.
#[derive(Default)]
struct Seen(Vec<(usize, Pkt)>);

impl Seen {
    fn file(&self, dir: &std::path::Path, name: &str) -> std::path::PathBuf {
        let packets = self.0.iter().map(|(_, pkt)| pkt.clone()).collect();
        let capture = Capture {
            packets,
            link: ETHERNET,
        };
        write(dir, name, &capture.pcap_as(false, true))
    }

    fn sort(&mut self) {
        self.0.sort_by_key(|(_, pkt)| pkt.ts_ns);
    }

    /// Place in the original of a frame, by its number.
    fn original(&self, frame: Option<u64>) -> usize {
        self.0[frame.expect("a frame number") as usize - 1].0
    }
}

/// The two points of a leg.
struct Pair {
    near: Seen,
    far: Seen,
}

/// Whether a packet goes the way the first one of the capture does.
fn ahead(capture: &Capture, packet: &Pkt) -> bool {
    let source = |pkt: &Pkt| {
        let ip = craft::ip_part(&pkt.data);
        if craft::is_v6(ip) {
            ip[8..24].to_vec()
        } else {
            ip[12..16].to_vec()
        }
    };
    source(packet) == source(&capture.packets[0])
}

/// Sends the packets of a capture past two points.
fn pass(capture: &Capture, fortunes: &[Fortune], delays: &[u64]) -> Pair {
    let mut pair = Pair {
        near: Seen::default(),
        far: Seen::default(),
    };
    for (n, packet) in capture.packets.iter().enumerate() {
        let delay = 20_000 + delays[n % delays.len()] % 30_000;
        let ahead = ahead(capture, packet);
        let (first, second) = if ahead {
            (&mut pair.near, &mut pair.far)
        } else {
            (&mut pair.far, &mut pair.near)
        };
        // The original times are those of the point that is passed first.
        let (first_offset, second_offset) = if ahead {
            (0, OFFSET_NS)
        } else {
            (OFFSET_NS, 0)
        };
        let mut passed = packet.clone();
        passed.ts_ns = packet.ts_ns.wrapping_add_signed(first_offset);
        first.0.push((n, passed));
        let mut arrived = packet.clone();
        arrived.ts_ns = (packet.ts_ns + delay).wrapping_add_signed(second_offset);
        match fortunes[n] {
            Fortune::Arrives => {}
            Fortune::Lost => continue,
            Fortune::Corrupted => {
                let end = arrived.data.len();
                arrived.data[end - 2] ^= 0x10;
            }
            Fortune::Marked => change_class(&mut arrived, |class| class | 3),
            Fortune::Rewritten => change_class(&mut arrived, |class| class ^ 0x60),
            Fortune::Duplicated => {
                let mut copy = arrived.clone();
                copy.ts_ns += 300;
                second.0.push((n, copy));
            }
        }
        second.0.push((n, arrived));
    }
    pair.near.sort();
    pair.far.sort();
    pair
}

/// Rewrites the traffic class and what has to change with it.
fn change_class(packet: &mut Pkt, change: impl Fn(u8) -> u8) {
    let at = packet.data.len() - craft::ip_part(&packet.data).len();
    let ip = &mut packet.data[at..];
    if craft::is_v6(ip) {
        let class = change(ip[0] << 4 | ip[1] >> 4);
        ip[0] = 0x60 | class >> 4;
        ip[1] = class << 4 | ip[1] & 0x0f;
    } else {
        ip[1] = change(ip[1]);
        craft::finish_v4(ip);
    }
}

fn compare(args: &[&str], files: &[&std::path::Path]) -> Run {
    let mut all = vec!["compare".as_ref()];
    all.extend(args.iter().map(std::ffi::OsStr::new));
    all.extend(files.iter().map(|file| file.as_os_str()));
    run(&all)
}

fn document(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {}", run.stdout))
}

fn list<'v>(document: &'v Value, key: &str) -> &'v Vec<Value> {
    document[key].as_array().expect("a list")
}

/// A count of the first leg.
fn count(document: &Value, key: &str) -> u64 {
    number(&document["legs"][0], key).unwrap_or_else(|| panic!("no {key}"))
}

/// How often each packet is there, packets alike counted together.
fn classes(capture: &Capture, packets: impl Iterator<Item = usize>) -> BTreeMap<&[u8], i64> {
    let mut classes = BTreeMap::new();
    for n in packets {
        *classes
            .entry(capture.packets[n].data.as_slice())
            .or_default() += 1;
    }
    classes
}

fn fortunes(n: usize) -> impl Strategy<Value = Vec<Fortune>> {
    let fortune = prop_oneof![
        12 => Just(Fortune::Arrives),
        3 => Just(Fortune::Lost),
        1 => Just(Fortune::Corrupted),
        1 => Just(Fortune::Marked),
        1 => Just(Fortune::Rewritten),
        1 => Just(Fortune::Duplicated),
    ];
    proptest::collection::vec(fortune, n)
}

/// Fixtures with packets both ways: IPv4 and IPv6, every kind of operation,
/// packets sent again and packets that the network duplicated.
const BOTH_WAYS: [&str; 9] = [
    "write_1k",
    "send_3k",
    "read_8k",
    "atomic_fa",
    "v6_write",
    "cm_rping",
    "send_loss",
    "write_dup",
    "bidi",
];

/// A fixture and what happens to its packets. Those at either end arrive: what
/// is lost there cannot be told from a capture that began later or ended
/// earlier. Of packets that are alike none is changed where another one is
/// duplicated: it might as well have been the duplicate that was changed.
fn journeys() -> impl Strategy<Value = (&'static str, Vec<Fortune>, Vec<u64>)> {
    proptest::sample::select(&BOTH_WAYS).prop_flat_map(|name| {
        let capture = common::capture(name);
        let count = capture.packets.len();
        let delays = proptest::collection::vec(0..30_000u64, 7..50);
        (Just(name), fortunes(count), delays).prop_map(move |(name, mut fortunes, delays)| {
            for way in [true, false] {
                let mut of_way: Vec<usize> = (0..count)
                    .filter(|&n| ahead(&capture, &capture.packets[n]) == way)
                    .collect();
                let last = of_way.split_off(of_way.len().saturating_sub(2));
                for n in of_way.into_iter().take(2).chain(last) {
                    fortunes[n] = Fortune::Arrives;
                }
            }
            let duplicated = (0..count).filter(|&n| fortunes[n] == Fortune::Duplicated);
            let duplicated: BTreeSet<_> = duplicated.map(|n| &capture.packets[n].data).collect();
            for (fortune, packet) in fortunes.iter_mut().zip(&capture.packets) {
                if duplicated.contains(&packet.data) && fortune.changes() {
                    *fortune = Fortune::Arrives;
                }
            }
            (name, fortunes, delays)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_lost_packet_is_named_and_none_invented((name, fortunes, delays) in journeys()) {
        let capture = common::capture(name);
        let pair = pass(&capture, &fortunes, &delays);
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (pair.near.file(dir.path(), "a.pcap"), pair.far.file(dir.path(), "b.pcap"));
        let found = document(&compare(&["--format", "json"], &[&a, &b]).ok(name));

        // Lost, and seen at the second point only, by what is alike.
        let place = |row: &Value, point: &str| match text(row, point) {
            "A" => pair.near.original(number(row, "frame")),
            "B" => pair.far.original(number(row, "frame")),
            other => panic!("no point {other}"),
        };
        let lost: Vec<usize> = list(&found, "lost").iter().map(|row| place(row, "from")).collect();
        let only: Vec<usize> = list(&found, "only_in").iter().map(|row| place(row, "at")).collect();
        let fortunes = &fortunes;
        let with = |fortune: Fortune| {
            (0..fortunes.len()).filter(move |n| fortunes[*n] == fortune)
        };
        let mut apart = classes(&capture, with(Fortune::Lost));
        for (class, more) in classes(&capture, with(Fortune::Duplicated)) {
            *apart.entry(class).or_default() -= more;
        }
        let mut expected_lost = apart.clone();
        expected_lost.retain(|_, n| *n > 0);
        let mut expected_only: BTreeMap<_, _> = apart.into_iter().map(|(c, n)| (c, -n)).collect();
        expected_only.retain(|_, n| *n > 0);
        prop_assert_eq!(classes(&capture, lost.iter().copied()), expected_lost, "lost");
        prop_assert_eq!(classes(&capture, only.iter().copied()), expected_only, "only");
        for key in ["before", "after", "elsewhere", "missed", "mended"] {
            prop_assert_eq!(count(&found, key), 0, "{}", key);
        }
        // What is bound back is lost on its way back.
        for row in list(&found, "lost") {
            let from = if ahead(&capture, &capture.packets[place(row, "from")]) { "A" } else { "B" };
            prop_assert_eq!(text(row, "from"), from);
        }

        // Changes, at the right packets.
        let mut changed: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for row in list(&found, "changed") {
            let corrupted = row["corrupted"] == Value::Bool(true);
            for (key, is) in [
                ("corrupted", corrupted),
                ("ecn", row.get("ecn").is_some()),
                ("dscp", row.get("dscp").is_some()),
            ] {
                if is {
                    changed.entry(key).or_default().push(place(row, "from"));
                }
            }
        }
        for (key, fortune) in [
            ("corrupted", Fortune::Corrupted),
            ("ecn", Fortune::Marked),
            ("dscp", Fortune::Rewritten),
        ] {
            let got = changed.remove(key).unwrap_or_default();
            // A packet that was marked already shows no mark.
            let expected = with(fortune).filter(|&n| {
                let ip = craft::ip_part(&capture.packets[n].data);
                fortune != Fortune::Marked || ip[1] & 3 != 3
            });
            let (got, expected) = (classes(&capture, got.into_iter()), classes(&capture, expected));
            prop_assert_eq!(got, expected, "{}", key);
        }

        // The offset is right to half the difference of the fastest packets.
        let offset = &found["legs"][0]["offset"];
        let ns = offset["ns"].as_i64().unwrap();
        prop_assert!(ns.abs_diff(OFFSET_NS) <= 15_000, "{}", offset);
        prop_assert_eq!(text(offset, "how"), "both_ways");
    }
}

/// Every packet of a fixture arrives, after 20 µs or a bit more.
fn unharmed(name: &str) -> (Capture, Pair) {
    let capture = common::capture(name);
    let fortunes = vec![Fortune::Arrives; capture.packets.len()];
    let pair = pass(&capture, &fortunes, &[0, 700, 1_900, 400]);
    (capture, pair)
}

#[test]
fn a_capture_that_begins_later_or_ends_earlier_lost_nothing() {
    let (_, mut pair) = unharmed("write_64k");
    let all = pair.near.0.len();
    pair.far.0.drain(..57);
    pair.far.0.truncate(200);
    let dir = tempfile::tempdir().unwrap();
    let a = pair.near.file(dir.path(), "a.pcap");
    let b = pair.far.file(dir.path(), "b.pcap");
    for (files, begins) in [([&*a, &*b], "A"), ([&*b, &*a], "B")] {
        let run = compare(&["--format", "json", "--fail-on", "loss"], &files);
        let found = document(&run.ok("the shorter capture"));
        assert_eq!(count_all(&found), [200, 0, 0], "{begins} is longer");
        assert_eq!(count(&found, "before"), 57);
        assert_eq!(count(&found, "after") as usize, all - 57 - 200);
    }
}

/// Matched, lost and seen at one point only, of the first leg.
fn count_all(found: &Value) -> [u64; 3] {
    ["matched", "lost", "only"].map(|key| count(found, key))
}

#[test]
fn truncated_captures_are_matched_without_icrc() {
    let (_, pair) = unharmed("send_loss");
    let dir = tempfile::tempdir().unwrap();
    let a = pair.near.file(dir.path(), "a.pcap");
    let b = pair.far.file(dir.path(), "b.pcap");
    let short = Capture::read(&b).cut(64).pcap_as(false, true);
    let short = write(dir.path(), "short.pcap", &short);
    let shorter = Capture::read(&a).cut(60).pcap_as(false, true);
    let shorter = write(dir.path(), "shorter.pcap", &shorter);
    let all = pair.near.0.len() as u64;
    for files in [[&*a, &*short], [&*shorter, &*b], [&*shorter, &*short]] {
        let run = compare(&["--format", "json", "--fail-on", "any"], &files);
        let found = document(&run.ok("cut captures"));
        assert_eq!(count_all(&found), [all, 0, 0], "{files:?}");
    }
}

#[test]
fn a_capture_agrees_with_itself() {
    for name in common::fixtures() {
        let path = fixture(&name);
        let run = compare(&["--format", "json", "--fail-on", "any"], &[&path, &path]);
        let found = document(&run.ok(&name));
        let packets = number(&found["points"][0], "packets").unwrap();
        assert_eq!(count_all(&found), [packets, 0, 0], "{name}");
        assert_eq!(found["legs"][0]["offset"]["ns"], 0, "{name}");
    }
}

#[test]
fn unrelated_captures_share_nothing() {
    let files = [&*fixture("write_1k"), &*fixture("v6_write")];
    let run = compare(&["--fail-on", "loss"], &files);
    assert_eq!((run.status, &*run.stderr), (1, ""));
    let words = "not one packet was seen at both points";
    assert!(run.stdout.contains(words), "{}", run.stdout);
    let found = document(&compare(&["--format", "json"], &files).ok("unrelated"));
    assert_eq!(count_all(&found), [0, 0, 0]);
    assert!(found["legs"][0]["offset"].is_null());
    let packets = |n: usize| number(&found["points"][n], "packets").unwrap();
    let elsewhere = ["before", "after", "elsewhere"].map(|key| count(&found, key));
    assert_eq!(elsewhere.iter().sum::<u64>(), packets(0) + packets(1));
}

#[test]
fn one_way_tells_no_offset_from_delay() {
    let capture = common::capture("write_uc");
    let count = capture.packets.len();
    let mut fortunes = vec![Fortune::Arrives; count];
    fortunes[count / 2] = Fortune::Lost;
    let pair = pass(&capture, &fortunes, &[300, 0, 4_000]);
    let dir = tempfile::tempdir().unwrap();
    let a = pair.near.file(dir.path(), "a.pcap");
    let b = pair.far.file(dir.path(), "b.pcap");
    // The point that misses a packet is the second one, whichever is named
    // first.
    for (files, from, sign) in [([&*a, &*b], "A", 1), ([&*b, &*a], "B", -1)] {
        let found = document(&compare(&["--format", "json"], &files).ok("one way"));
        assert_eq!(count_all(&found), [count as u64 - 1, 1, 0]);
        let lost = &list(&found, "lost")[0];
        assert_eq!(text(lost, "from"), from);
        assert_eq!(number(lost, "frame"), Some(count as u64 / 2 + 1));
        let offset = &found["legs"][0]["offset"];
        assert_eq!(text(offset, "how"), "one_way");
        assert_eq!(offset["ns"], sign * (OFFSET_NS + 20_000), "the fastest");
        assert!(offset["error_ns"].is_null());
        let flow = &found["legs"][0]["flows"][0];
        assert_eq!(text(flow, "known_by"), "loss");
        assert_eq!(flow["delay_ns"]["min"], 0);
        assert_eq!(number(flow, "delay_ns.max"), Some(4_000));
    }
}

#[test]
fn synced_clocks_show_true_delays() {
    let (_, mut pair) = unharmed("write_uc");
    for (_, packet) in &mut pair.far.0 {
        packet.ts_ns = packet.ts_ns.wrapping_add_signed(-OFFSET_NS);
    }
    let dir = tempfile::tempdir().unwrap();
    let a = pair.near.file(dir.path(), "a.pcap");
    let b = pair.far.file(dir.path(), "b.pcap");
    for (files, way) in [([&*a, &*b], ["A", "B"]), ([&*b, &*a], ["B", "A"])] {
        let run = compare(&["--format", "json", "--synced"], &files);
        let found = document(&run.ok("synced"));
        let flow = &found["legs"][0]["flows"][0];
        assert_eq!([text(flow, "from"), text(flow, "to")], way);
        assert_eq!(text(flow, "known_by"), "delay");
        assert_eq!(number(flow, "delay_ns.min"), Some(20_000));
        assert_eq!(number(flow, "delay_ns.max"), Some(21_900));
    }
}

#[test]
fn a_packet_is_followed_over_three_points() {
    // B is half way: what it did not see of what C saw was not lost.
    let (capture, pair) = unharmed("write_1k");
    let dir = tempfile::tempdir().unwrap();
    let mut middle = Seen::default();
    for (n, packet) in &pair.near.0 {
        let mut packet = packet.clone();
        let way = if ahead(&capture, &packet) { 1 } else { -1 };
        packet.ts_ns = packet.ts_ns.wrapping_add_signed(777_000_000 + way * 10_000);
        middle.0.push((*n, packet));
    }
    middle.sort();
    let mut end = pair.far;
    let requests: Vec<usize> = (0..capture.packets.len())
        .filter(|n| ahead(&capture, &capture.packets[*n]))
        .collect();
    let (missed, lost_early, lost_late) = (requests[6], requests[9], requests[12]);
    middle.0.retain(|(n, _)| ![missed, lost_early].contains(n));
    end.0.retain(|(n, _)| ![lost_early, lost_late].contains(n));
    let a = pair.near.file(dir.path(), "a.pcap");
    let b = middle.file(dir.path(), "b.pcap");
    let c = end.file(dir.path(), "c.pcap");
    let found = document(&compare(&["--format", "json"], &[&a, &b, &c]).ok("three"));
    let lost: Vec<_> = list(&found, "lost")
        .iter()
        .map(|row| (text(row, "from"), text(row, "to"), number(row, "frame")))
        .collect();
    let frame = |seen: &Seen, n: usize| {
        let place = seen.0.iter().position(|(original, _)| *original == n);
        place.map(|place| place as u64 + 1)
    };
    assert_eq!(
        lost,
        [
            ("A", "B", frame(&pair.near, lost_early)),
            ("B", "C", frame(&middle, lost_late))
        ]
    );
    let row = &list(&found, "missed")[0];
    assert_eq!(row["by"], serde_json::json!(["B"]));
    assert_eq!(number(row, "frame"), frame(&pair.near, missed));
    assert_eq!(number(row, "far_frame"), frame(&end, missed));
    assert!(list(&found, "only_in").is_empty());
    let ok = compare(&["--fail-on", "any"], &[&a, &b, &c]);
    assert_eq!(ok.status, 1);
    let words = "Not captured at a point that they passed";
    assert!(ok.stdout.contains(words), "{}", ok.stdout);
}

#[test]
fn a_damaged_capture_is_compared_as_far_as_it_goes() {
    let (_, pair) = unharmed("send_3k");
    let dir = tempfile::tempdir().unwrap();
    let a = pair.near.file(dir.path(), "a.pcap");
    let b = pair.far.file(dir.path(), "b.pcap");
    let mut bytes = std::fs::read(&b).unwrap();
    bytes.truncate(bytes.len() / 2);
    let half = write(dir.path(), "half.pcap", &bytes);
    let run = compare(&["--format", "json"], &[&a, &half]);
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(
        run.stderr.contains("half.pcap: damaged at record"),
        "{}",
        run.stderr
    );
    let found = document(&run);
    let there = number(&found["points"][1], "packets").unwrap();
    assert!(there > 10);
    assert_eq!(count_all(&found), [there, 0, 0]);
    let after = pair.near.0.len() as u64 - there;
    assert_eq!(count(&found, "after"), after);

    let missing = dir.path().join("missing.pcap");
    let run = compare(&[], &[&a, &missing]);
    assert_eq!((run.status, &*run.stdout), (2, ""));
    assert!(
        run.stderr.contains("missing.pcap: cannot open"),
        "{}",
        run.stderr
    );
}

#[test]
fn bad_usage_is_named() {
    let path = fixture("write_1k");
    for args in [
        vec!["compare"],
        vec!["compare", path.to_str().unwrap()],
        vec!["compare", "-", "-"],
    ] {
        let run = run(&args);
        assert_eq!((run.status, &*run.stdout), (2, ""), "{args:?}");
        assert!(!run.stderr.is_empty());
    }
}

#[test]
fn what_is_to_fail_fails() {
    let capture = common::capture("write_1k");
    let dir = tempfile::tempdir().unwrap();
    let status = |fortune: Fortune, fail_on: &str| {
        let mut fortunes = vec![Fortune::Arrives; capture.packets.len()];
        fortunes[11] = fortune;
        let pair = pass(&capture, &fortunes, &[500, 0]);
        let a = pair.near.file(dir.path(), "a.pcap");
        let b = pair.far.file(dir.path(), "b.pcap");
        compare(&["--fail-on", fail_on], &[&a, &b]).status
    };
    for (fortune, expected) in [
        (Fortune::Arrives, [0, 0, 0]),
        (Fortune::Lost, [1, 1, 1]),
        (Fortune::Marked, [0, 1, 1]),
        (Fortune::Corrupted, [0, 1, 1]),
        (Fortune::Duplicated, [0, 0, 1]),
    ] {
        let got = ["loss", "change", "any"].map(|fail_on| status(fortune, fail_on));
        assert_eq!(got, expected, "{fortune:?}");
    }
}

#[test]
fn rows_and_document_tell_the_same() {
    let capture = common::capture("write_dup");
    let mut fortunes = vec![Fortune::Arrives; capture.packets.len()];
    for (n, fortune) in [
        (8, Fortune::Lost),
        (11, Fortune::Lost),
        (15, Fortune::Marked),
        (16, Fortune::Corrupted),
        (19, Fortune::Duplicated),
        (22, Fortune::Rewritten),
    ] {
        fortunes[n] = fortune;
    }
    let pair = pass(&capture, &fortunes, &[0, 300, 900]);
    let dir = tempfile::tempdir().unwrap();
    let a = pair.near.file(dir.path(), "a.pcap");
    let b = pair.far.file(dir.path(), "b.pcap");
    let found = document(&compare(&["--format", "json"], &[&a, &b]).ok("json"));
    let csv = compare(&["--format", "csv"], &[&a, &b]).ok("csv").stdout;
    let mut rows: Vec<Vec<&str>> = csv.lines().map(|row| row.split(',').collect()).collect();
    let columns = rows.remove(0);
    assert!(rows.iter().all(|row| row.len() == columns.len()), "{csv}");
    let column = |row: &[&str], name: &str| {
        let place = columns.iter().position(|column| *column == name);
        row[place.unwrap()].to_owned()
    };
    let of =
        |event: &str| -> Vec<&Vec<&str>> { rows.iter().filter(|row| row[0] == event).collect() };
    for (event, key, frame) in [
        ("lost", "lost", "frame"),
        ("only_in", "only_in", "to_frame"),
    ] {
        let frames: Vec<String> = of(event).iter().map(|row| column(row, frame)).collect();
        let expected = list(&found, key).iter().map(|row| row["frame"].to_string());
        assert_eq!(frames, expected.collect::<Vec<_>>(), "{event}");
    }
    let events = ["lost", "only_in", "ecn", "icrc", "dscp"].map(|event| of(event).len());
    assert_eq!(events, [2, 1, 1, 1, 1]);
    let ecn = of("ecn")[0];
    assert_eq!(column(ecn, "after"), "3");
    let icrc = of("icrc")[0];
    assert_eq!(
        [column(icrc, "before"), column(icrc, "after")],
        ["valid", "invalid"]
    );
    // The table names the same packets.
    let table = compare(&[], &[&a, &b]).ok("table").stdout;
    for words in [
        "Lost A→B",
        "corrupted: its ICRC is wrong now",
        "→ CE",
        "a copy of it was seen at both points",
    ] {
        assert!(table.contains(words), "{words}:\n{table}");
    }
}
