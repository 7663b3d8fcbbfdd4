//! More tests for bugs that were found: of what is said, and how.

mod common;

use std::ffi::OsStr;

use common::{
    capfile::Pkt,
    craft, run,
    talk::{Talk, capture_of, printed},
};
use serde_json::{Value, json};

/// The one finding of a kind.
fn finding(id: &str, args: &[&str], talk: &Talk) -> Value {
    let args = [&["health", "--format", "json"], args].concat();
    let document: Value = serde_json::from_str(&printed(&args, talk)).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let of_kind: Vec<_> = findings.iter().filter(|found| found["id"] == id).collect();
    assert_eq!(of_kind.len(), 1, "{document}");
    of_kind[0].clone()
}

fn summary(id: &str, args: &[&str], talk: &Talk) -> String {
    let found = finding(id, args, talk);
    found["summary"].as_str().unwrap().replace('\u{a0}', " ")
}

/// A packet with other bits of DSCP and ECN than none.
fn set_tos(packet: &mut Pkt, tos: u8) {
    let ip = &mut packet.data[14..];
    ip[1] = tos;
    craft::finish_v4(ip);
}

#[test]
fn comparing_named_only_some_kinds_of_change() {
    let dir = tempfile::tempdir().unwrap();
    let mut talk = Talk::default();
    for psn in 0..8 {
        talk = talk.write(psn).ack(psn);
    }
    let mut before = talk.packets;
    let mut after = before.clone();
    for packet in &mut after {
        packet.ts_ns += 1000;
    }
    // DSCP 8 in three, CE in one, ECT(0) in two.
    for (at, tos) in [(0, 0x20), (2, 0x20), (4, 0x20), (6, 3), (8, 2), (10, 2)] {
        set_tos(&mut after[at], tos);
    }
    set_tos(&mut before[6], 2);
    let near = capture_of(dir.path(), "near.pcap", before);
    let far = capture_of(dir.path(), "far.pcap", after);
    let args = ["compare", "--synced"].map(OsStr::new);
    let files = [near.as_os_str(), far.as_os_str()];
    let table = run(&[&args[..], &files].concat()).ok("two captures").stdout;
    let line = table.lines().find(|line| line.starts_with("A–B"));
    let line = line.unwrap_or_else(|| panic!("{table}"));
    for words in [
        "1 marked CE",
        "2 with other ECN bits",
        "3 with another DSCP",
    ] {
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn answers_of_one_way_were_shown_by_a_request() {
    let mut talk = Talk::default().write(0).ack(0).write(1).ack(1);
    // An answer of the side that asks, to a queue pair that asked nothing.
    let mut stray = Talk::default().wait_us(1000);
    stray = stray.ask(0x11, 500, false, &[31, 0, 0, 1], 0);
    talk.packets.extend(stray.between(0x44, 0x33).packets);
    let found = finding("one-way-capture", &[], &talk);
    assert_eq!(found["evidence"]["frames"], json!([5]));
    assert_eq!(
        found["evidence"]["counts"],
        json!({"answers": 1, "flows": 1})
    );
    assert_eq!(
        found["summary"],
        "1 answer of 192.0.2.1 to 192.0.2.2, and not one request of 192.0.2.2 is in the capture."
    );
}

#[test]
fn notifications_of_a_moment_were_said_to_be_a_rate() {
    let mut talk = Talk::default().write(0).ack(0);
    for _ in 0..20 {
        talk = talk.wait_us(240).cnp();
    }
    let found = finding("congestion", &[], &talk);
    let said = found["summary"].as_str().unwrap();
    assert!(said.starts_with("20 CNPs told QP 0x000011 of 192.0.2.1 to slow down within 5.00 ms"));
    assert!(!said.contains("a second"), "{said}");
    let counts = &found["evidence"]["counts"];
    assert_eq!(
        (&counts["within_ns"], &counts["cnps_per_s"]),
        (&json!(5_000_000), &Value::Null)
    );
}

#[test]
fn sentences_about_copies_were_broken() {
    let copied = |psn| Talk::default().write(0).ack(0).write(psn).copy().ack(psn);
    let mut talk = copied(1);
    assert_eq!(
        summary("mirror-duplicates", &[], &talk),
        "1 packet is in the capture twice."
    );
    talk.packets.extend(copied(1).between(0x44, 0x33).packets);
    assert_eq!(
        summary("mirror-duplicates", &[], &talk),
        "2 packets of 2 flows are in the capture twice."
    );
}

#[test]
fn one_message_were_in_no_row() {
    let send = Talk::default().ask(0x04, 0, true, &[], 1).ack(0);
    let note = "1 SEND with 1 B is in no row";
    let table = printed(&["memory"], &send);
    assert!(table.contains(note), "{table}");
    // The end of a WRITE whose beginning was not captured.
    let rest = Talk::default().ask(0x08, 0, true, &[], 1).ack(0);
    let note = "1 message with 1 B is in no row";
    let table = printed(&["memory"], &rest);
    assert!(table.contains(note), "{table}");
}

#[test]
fn nothing_was_said_to_have_been_only_counted() {
    let talk = |qp: u32| Talk::default().write(0).ack(0).between(0x100 + qp, qp);
    let mut all = talk(1);
    for qp in 2..20 {
        all.packets.extend(talk(qp).packets);
    }
    assert_eq!(
        summary("flows-evicted", &["--max-flows", "4"], &all),
        "34 flows with 34 packets were forgotten to make room."
    );
}

#[test]
fn one_packet_have_another_dscp() {
    let mut talk = Talk::default();
    for psn in 0..10 {
        talk = talk.write(psn).ack(psn);
    }
    set_tos(&mut talk.packets[6], 0x20);
    assert_eq!(
        summary("mixed-dscp", &[], &talk),
        "1 of 10 packets has another DSCP than the flow's first, 0."
    );
    set_tos(&mut talk.packets[8], 0x20);
    assert!(summary("mixed-dscp", &[], &talk).starts_with("2 of 10 packets have another"));
}
