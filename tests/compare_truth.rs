//! `compare` where the answer is known beforehand: both ends of real traffic,
//! and senders whose packets are all alike.

mod common;

use common::{
    Run,
    capfile::{Capture, ETHERNET, Pkt},
    craft, fixture, number, run, text, write,
};
use serde_json::Value;

fn compare(args: &[&str], files: &[&std::path::Path]) -> Run {
    let mut all = vec!["compare".as_ref()];
    all.extend(args.iter().map(std::ffi::OsStr::new));
    all.extend(files.iter().map(|file| file.as_os_str()));
    run(&all)
}

fn document(args: &[&str], files: &[&std::path::Path]) -> Value {
    let args = [args, &["--format", "json"]].concat();
    let run = compare(&args, files).ok("compare");
    serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {}", run.stdout))
}

fn list<'v>(document: &'v Value, key: &str) -> &'v Vec<Value> {
    document[key].as_array().expect("a list")
}

fn truth() -> Value {
    let path = fixture("any").with_file_name("truth-faults.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// What is known of a lost packet: source, queue pair, opcode, PSN, frame.
type Lost = (String, u64, u64, u64, u64);

#[test]
fn losses_of_real_traffic_are_found_frame_by_frame() {
    let truth = truth();
    for (near, far) in [
        ("lossy_sender", "lossy_receiver"),
        ("read_loss", "read_loss_responder"),
    ] {
        let known = |row: &Value, frame: &str| -> Lost {
            let number = |key: &str| number(row, key).unwrap();
            (
                text(row, "src").to_owned(),
                number("dest_qp"),
                number("opcode"),
                number("psn"),
                number(frame),
            )
        };
        let expected = list(&truth[near], "lost").iter();
        let mut expected: Vec<Lost> = expected.map(|row| known(row, "frame_at_sender")).collect();
        expected.sort();
        assert!(!expected.is_empty());
        let files = [fixture(near), fixture(far)];
        for files in [[&*files[0], &*files[1]], [&*files[1], &*files[0]]] {
            let found = document(&[], &files);
            let lost = list(&found, "lost").iter();
            let mut lost: Vec<Lost> = lost.map(|row| known(row, "frame")).collect();
            lost.sort();
            assert_eq!(lost, expected, "{near}");
            let leg = &found["legs"][0];
            for key in [
                "only",
                "before",
                "after",
                "elsewhere",
                "ce_marked",
                "corrupted",
            ] {
                assert_eq!(leg[key], 0, "{near}: {key}");
            }
            // One machine, one clock.
            let offset = &leg["offset"];
            let wrong = offset["ns"].as_i64().unwrap().unsigned_abs();
            assert!(wrong <= number(offset, "error_ns").unwrap(), "{offset}");
        }
    }
}

#[test]
fn a_path_that_is_slower_one_way() {
    let truth = &truth()["delay"];
    let files = [fixture("delay"), fixture("delay_responder")];
    let files = [&*files[0], &*files[1]];
    // Half the round trip is all that can be known of clocks that may differ.
    let found = document(&[], &files);
    let offset = &found["legs"][0]["offset"];
    let wrong = offset["ns"].as_i64().unwrap().unsigned_abs();
    assert!(wrong > 4_000_000 && wrong <= number(offset, "error_ns").unwrap());
    // With clocks that agree, each way is what it is.
    let found = document(&["--synced"], &files);
    let flows = found["legs"][0]["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 2);
    for flow in flows {
        let way = &truth[match text(flow, "from") {
            "A" => "way_to_server",
            _ => "way_to_client",
        }];
        // The first operation went before the delay was set: it counts here,
        // and not in what is known.
        for (key, known) in [("p50", "median_ns"), ("max", "max_ns")] {
            let found = number(&flow["delay_ns"], key).unwrap();
            let known = number(way, known).unwrap();
            assert!(found.abs_diff(known) <= known / 100, "{key} of {flow}");
        }
    }
}

#[test]
fn both_ends_of_lossy_traffic_as_a_table() {
    let files = [fixture("lossy_sender"), fixture("lossy_receiver")];
    let printed = compare(&[], &[&files[0], &files[1]]).ok("a table").stdout;
    let directory = fixture("any").parent().unwrap().display().to_string();
    insta::assert_snapshot!(printed.replace(&directory, "fixtures"));
}

/// Frames of a sender that gives all its packets one IPv4 identification, so
/// that those sent again are the same to the last bit.
fn alike(packets: &[(u64, u8, u32)], delay: u64, offset: i64) -> Vec<Pkt> {
    let start = 1_700_000_000_000_000_000u64;
    let pkt = |&(ts_ns, opcode, psn): &(u64, u8, u32)| {
        let ip = craft::roce_v4(&craft::bth(opcode, 0x40, 0x12, true, psn));
        let frame = craft::ethernet(craft::ethertype(&ip), &ip);
        Pkt::whole((start + ts_ns + delay).wrapping_add_signed(offset), frame)
    };
    packets.iter().map(pkt).collect()
}

fn alike_lost(sent: &[(u64, u8, u32)], arrived: &[(u64, u8, u32)]) -> Vec<u64> {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, packets: Vec<Pkt>| {
        let capture = Capture {
            packets,
            link: ETHERNET,
        };
        write(dir.path(), name, &capture.pcap_as(false, true))
    };
    let a = file("a.pcap", alike(sent, 0, 0));
    let b = file("b.pcap", alike(arrived, 12_000, 5_000_000_000));
    let found = document(&[], &[&a, &b]);
    let lost = list(&found, "lost").iter();
    assert!(list(&found, "only_in").is_empty(), "{found}");
    lost.map(|row| number(row, "frame").unwrap()).collect()
}

#[test]
fn the_copy_that_was_lost_is_the_one_that_is_named() {
    const SEND_ONLY: u8 = 0x04;
    let mut sent: Vec<(u64, u8, u32)> = (0..40)
        .map(|n| (u64::from(n) * 100_000, SEND_ONLY, n))
        .collect();
    // Packet 20 is sent three times, and only the second one arrives.
    sent.extend([(70_000_000, SEND_ONLY, 20), (140_000_000, SEND_ONLY, 20)]);
    sent.push((200_000_000, SEND_ONLY, 40));
    let mut arrived = sent.clone();
    arrived.remove(41);
    arrived.remove(20);
    assert_eq!(alike_lost(&sent, &arrived), [21, 42]);
}

#[test]
fn notifications_are_all_alike_and_still_told_apart() {
    const CNP: u8 = 0x81;
    let sent: Vec<(u64, u8, u32)> = (0..1_500)
        .map(|n| (n * 50_000 + n * n % 9_000, CNP, 0))
        .collect();
    let lost = [3u64, 200, 201, 777, 1_400];
    let arrived: Vec<_> = (0u64..)
        .zip(&sent)
        .filter(|(n, _)| !lost.contains(n))
        .map(|(_, packet)| *packet)
        .collect();
    let frames: Vec<u64> = lost.iter().map(|n| n + 1).collect();
    assert_eq!(alike_lost(&sent, &arrived), frames);
}

#[test]
fn both_ends_of_lossy_traffic_in_80_columns() {
    let files = [fixture("read_loss"), fixture("read_loss_responder")];
    let printed = compare(&["--width", "80"], &[&files[0], &files[1]]).ok("a table");
    let directory = fixture("any").parent().unwrap().display().to_string();
    insta::assert_snapshot!(printed.stdout.replace(&directory, "fixtures"));
}
