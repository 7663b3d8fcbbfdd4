//! `flows`, `messages` and `memory` on a veth pair: reports come at intervals,
//! also while nothing passes, and say what came in each.

#![cfg(all(feature = "live", target_os = "linux"))]

mod common;

use common::{
    net::{Capturing, FAR, Net, wait_until},
    number,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Documents that were printed so far, whole lines only.
fn documents(capture: &Capturing) -> Vec<Value> {
    let printed = capture.printed();
    let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Packets of all flows, by a path in each.
fn packets(document: &Value, path: &str) -> u64 {
    let flows = document["flows"].as_array().unwrap();
    flows.iter().filter_map(|flow| number(flow, path)).sum()
}

#[test]
fn flows_are_reported_at_intervals_whether_packets_pass_or_not() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    let file = net.path("a.pcapng");
    let name = file.display().to_string();
    let capture = net.capture(&[
        "flows",
        "--iface",
        FAR,
        "--interval",
        "200ms",
        "--format",
        "json",
        "-w",
        &name,
    ]);
    wait_until("reports of silence", || documents(&capture).len() >= 3);
    assert!(
        documents(&capture)
            .iter()
            .all(|d| packets(d, "packets") == 0)
    );
    net.send(fixture.packets.iter().map(|packet| packet.data.as_slice()));
    wait_until("all packets in a report", || {
        documents(&capture)
            .last()
            .is_some_and(|d| packets(d, "packets") == 40)
    });
    let busy = documents(&capture).len();
    wait_until("more silence", || documents(&capture).len() >= busy + 2);
    capture.signal(Signal::SIGINT);
    let run = capture.finish();
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    let documents: Vec<Value> = run
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (last, intervals) = documents.split_last().unwrap();
    assert!(
        last.get("interval").is_none(),
        "the last one is of the whole"
    );
    assert_eq!(packets(last, "packets"), 40);
    assert_eq!(last["capture"]["interfaces"], serde_json::json!([FAR]));
    assert_eq!(last["capture"]["dropped_by_capture"], 0);
    // Each packet came in one interval.
    let sum: u64 = intervals
        .iter()
        .map(|d| packets(d, "interval.packets"))
        .sum();
    assert_eq!(sum, 40);
    assert_eq!(packets(intervals.last().unwrap(), "interval.packets"), 0);
    for pair in intervals.windows(2) {
        let end = |document| number(document, "interval.end_ns").unwrap();
        let length = number(&pair[1], "interval.length_ns").unwrap();
        assert!(length >= 200_000_000, "{length}");
        assert!(end(&pair[1]) - end(&pair[0]) > 150_000_000);
    }
    assert_eq!(common::rows(&file).len(), 40, "the recording has them too");
}

#[test]
fn tables_of_intervals_have_rates() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    for (command, words) in [
        ("flows", "packets now"),
        ("messages", "RC RDMA WRITE        20"),
        ("memory", "20 × 1000 B"),
    ] {
        let capture = net.capture(&[command, "--iface", FAR, "--interval", "200ms"]);
        capture.wait_for("the last");
        net.send(fixture.packets.iter().map(|packet| packet.data.as_slice()));
        capture.wait_for(words);
        capture.signal(Signal::SIGINT);
        let run = capture.finish().ok(command);
        let counted = "v1: 40 frames passed the capture filter, 0 dropped by the kernel";
        assert!(run.stdout.contains(counted), "{command}: {}", run.stdout);
    }
}

#[test]
fn messages_are_lines_as_soon_as_they_end() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    let capture = net.capture(&["messages", "--iface", FAR, "--format", "csv"]);
    net.send(fixture.packets.iter().map(|packet| packet.data.as_slice()));
    wait_until("twenty messages", || {
        capture.printed().lines().count() == 21
    });
    capture.signal(Signal::SIGINT);
    let run = capture.finish().ok("ended by Ctrl-C");
    assert_eq!(run.stdout.lines().count(), 21, "{}", run.stdout);
    let refused = common::run(&[
        "messages",
        "--iface",
        "lo",
        "--format",
        "json",
        "--interval",
        "1s",
    ]);
    assert_eq!(refused.status, 2);
    assert!(
        refused.stderr.contains("--format table"),
        "{}",
        refused.stderr
    );
}
