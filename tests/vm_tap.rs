//! The kernel tap on a real Soft-RoCE driver: what no netdev ever shows.

#![cfg(all(feature = "tap", feature = "verbs", target_os = "linux"))]

mod common;

use std::{collections::BTreeMap, process::Command, sync::OnceLock, time::Duration};

use common::vm::{Machine, boot};
use serde_json::Value;

fn with(check: impl FnOnce(&Machine)) {
    static CELL: OnceLock<Option<Machine>> = OnceLock::new();
    if let Some(machine) = boot(&CELL, "tap.sh", Duration::from_secs(1500)) {
        check(machine);
    }
}

/// JSON lines of a scenario that ended with status 0.
fn lines(vm: &Machine, name: &str) -> Vec<Value> {
    assert_eq!(vm.status(name), 0, "{}", vm.text(&format!("{name}.err")));
    let text = vm.text(&format!("{name}.out"));
    let parse = |line| serde_json::from_str(line).expect("JSON");
    text.lines().map(parse).collect()
}

/// The packets of a recording, as this program reads them.
fn recorded(vm: &Machine, file: &str) -> Vec<Value> {
    let done = Command::new(env!("CARGO_BIN_EXE_roce-sniff"))
        .args(["packets", "--format", "json"])
        .arg(vm.path(file))
        .output()
        .expect("run");
    assert!(done.status.success());
    let text = String::from_utf8(done.stdout).expect("text");
    let parse = |line| serde_json::from_str(line).expect("JSON");
    text.lines().map(parse).collect()
}

fn tally<'v>(packets: &'v [Value], key: &str) -> BTreeMap<&'v str, usize> {
    let mut tally = BTreeMap::new();
    for packet in packets {
        *tally
            .entry(packet[key].as_str().unwrap_or("-"))
            .or_default() += 1;
    }
    tally
}

/// A driver's counter of received packets between two printings of the script.
fn received(vm: &Machine, name: &str, device: &str) -> u64 {
    let counter = |file: String| -> u64 {
        let text = vm.text(&file);
        let line = text.lines().find(|line| line.starts_with(device));
        let word = line.and_then(|line| line.split_whitespace().last());
        word.and_then(|word| word.parse().ok()).expect("a counter")
    };
    counter(format!("{name}-after.out")) - counter(format!("{name}-before.out"))
}

/// Every packet of the run at the tap, each matched to its write, and none on
/// the netdev: as many as the driver counted, and at least so many. On a slow
/// machine the driver's own loop now and then sends part of a long message
/// again.
fn assert_tapped(document: &Value, least: u64) {
    assert_eq!(document["verdict"], "loopback-bypassed", "{document:#}");
    assert_eq!(document["netdev"]["packets"], 0);
    let tap = &document["tap"];
    assert_eq!(tap["enabled"], true);
    let packets = tap["packets"].as_u64().expect("a number");
    assert!(packets >= least, "{tap}");
    assert_eq!(tap["looped"], packets, "{tap}");
    assert_eq!(tap["lost"], 0, "{tap}");
    let counted = &document["counters_delta"]["rxe0"]["rcvd_pkts"];
    assert_eq!(counted, packets, "as many as the driver counted");
    for write in document["writes"].as_array().expect("rows") {
        assert_eq!(write["seen_at_tap"], true, "{write}");
        assert_eq!(write["seen_on_netdev"], false, "{write}");
    }
}

#[test]
fn looped_writes_are_seen_packet_by_packet() {
    with(|vm| {
        assert_tapped(&vm.json("self"), 20);
        assert_tapped(&vm.json("self-v6"), 20);
        assert_tapped(&vm.json("self-64k"), 5 * 64 + 5);
        assert_tapped(&vm.json("self-read"), 10 + 40);
        let packets = recorded(vm, "self.pcapng");
        assert_eq!(
            tally(&packets, "op"),
            BTreeMap::from([("RC RDMA WRITE Only", 10), ("RC Acknowledge", 10)])
        );
        assert_eq!(tally(&packets, "icrc"), BTreeMap::from([("valid", 20)]));
        let screen = vm.text("self-table.out");
        for words in [
            "at the kernel tap",
            "20   (20 of them looped; 0 lost)",
            "The kernel tap saw 20 of them",
        ] {
            assert!(screen.contains(words), "{words:?} is not in\n{screen}");
        }
        assert!(!screen.contains("--tap"), "no hint at what was there");
    });
}

/// An ICRC covers every byte of its packet, so valid ones say that no byte of
/// the 64 KiB is missing or wrong. Each counts once, however often the driver
/// sent it.
#[test]
fn large_writes_are_complete_to_the_byte() {
    with(|vm| {
        let packets = recorded(vm, "self-64k.pcapng");
        let all = packets.len();
        assert_eq!(tally(&packets, "icrc"), BTreeMap::from([("valid", all)]));
        let whole = |p: &Value| p["caplen"] == p["len"] && p["truncated"] == false;
        assert!(packets.iter().all(whole));
        let number = |p: &Value, key: &str| p[key].as_u64().expect("a number");
        let writes = packets.iter().filter(|p| p["op"] != "RC Acknowledge");
        let once: BTreeMap<u64, u64> = writes
            .map(|p| (number(p, "psn"), number(p, "payload_len")))
            .collect();
        assert_eq!(once.len(), 5 * 64);
        assert_eq!(once.values().sum::<u64>(), 5 * 65536);
        assert!(all >= once.len() + 5, "{all} with acknowledgements");
    });
}

#[test]
fn wired_packets_are_seen_at_both_places_of_a_run() {
    with(|vm| {
        let document = vm.json("peer");
        assert_eq!(document["verdict"], "on-the-wire", "{document:#}");
        assert_eq!(document["netdev"]["packets"], 20);
        assert_eq!(document["tap"]["packets"], 20);
        assert_eq!(document["tap"]["looped"], 0);
    });
}

/// Ten writes from rxe0 to rxe1 over the veth pair, ten of rxe1 to itself.
#[test]
fn devices_are_inputs_of_their_own_and_paths_are_told_apart() {
    with(|vm| {
        let packets = lines(vm, "two");
        let count = |file: &str, path: &str| {
            let both = |p: &&Value| p["file"] == file && p["path"] == path;
            packets.iter().filter(both).count()
        };
        assert_eq!(count("rxe0 kernel tap", "wire"), 10);
        assert_eq!(count("rxe0 kernel tap", "looped"), 0);
        assert_eq!(count("rxe1 kernel tap", "wire"), 10);
        assert_eq!(count("rxe1 kernel tap", "looped"), 20);
        assert_eq!(received(vm, "two", "rxe0"), 10);
        assert_eq!(received(vm, "two", "rxe1"), 30);
        assert_eq!(tally(&packets, "icrc"), BTreeMap::from([("valid", 40)]));
        // tshark reads the recording alike.
        if vm.status("two-tshark") == 0 {
            let text = vm.text("two-tshark.out");
            let count = |words: &[&str]| {
                let all = |line: &&str| words.iter().all(|word| line.contains(word));
                text.lines().filter(all).count()
            };
            assert_eq!(text.lines().count(), 40, "{text}");
            assert_eq!(
                count(&["rxe1 kernel tap", "loopback-bypassed"]),
                20,
                "{text}"
            );
            assert_eq!(count(&["rxe0 kernel tap"]), 10, "{text}");
            assert_eq!(count(&["loopback-bypassed"]), 20, "{text}");
        }
    });
}

/// The netdev shows what crosses it, the tap what is looped: each packet once.
#[test]
fn beside_a_netdev_no_packet_is_shown_twice() {
    with(|vm| {
        let packets = lines(vm, "both");
        assert_eq!(packets.len(), 40);
        assert_eq!(
            tally(&packets, "path"),
            BTreeMap::from([("looped", 20), ("wire", 20)])
        );
        assert_eq!(
            tally(&packets, "file"),
            BTreeMap::from([("veth0", 20), ("rxe0 kernel tap", 20)])
        );
        let times: Vec<_> = packets.iter().map(|p| p["ts_ns"].as_i64()).collect();
        assert!(times.is_sorted(), "in the order of their times");
        assert_eq!(recorded(vm, "both.pcapng").len(), 40);
        let screen = vm.text("table.out");
        assert!(screen.contains("looped"), "{screen}");
        assert!(screen.contains("rxe0 kernel tap: 4 frames"), "{screen}");
    });
}

#[test]
fn limits_and_filters() {
    with(|vm| {
        assert_eq!(vm.status("count"), 0);
        let csv = vm.text("count.out");
        assert_eq!(csv.lines().count(), 1 + 5, "{csv}");
        assert!(
            csv.lines()
                .next()
                .is_some_and(|head| head.ends_with(",path,file"))
        );
        let only = lines(vm, "dev");
        assert_eq!(
            tally(&only, "file"),
            BTreeMap::from([("rxe1 kernel tap", 10)])
        );
        let short = lines(vm, "short");
        assert_eq!(short.len(), 20);
        for packet in &short {
            assert!(packet["caplen"].as_u64() <= Some(60), "{packet}");
        }
        let cut = short.iter().find(|p| p["opcode"] == 0x0a).expect("a WRITE");
        assert_eq!(cut["len"], 20 + 8 + 12 + 16 + 1000 + 4, "{cut}");
        assert_eq!(lines(vm, "qp").len(), 0);
        assert!(
            vm.refusal("no-such-device")
                .ends_with("there are: rxe0, rxe1")
        );
    });
}

/// A hundred writes of four packets and their ACKs, into a ring that is read
/// by nobody meanwhile.
#[test]
fn what_is_lost_is_counted_to_the_packet() {
    with(|vm| {
        let seen = lines(vm, "overflow").len() as u64;
        let errors = vm.text("overflow.err");
        let lost: u64 = errors
            .lines()
            .find_map(|line| {
                let words = line.strip_prefix("roce-sniff: rxe0 kernel tap: ")?;
                words.split(' ').next()?.parse().ok()
            })
            .unwrap_or_else(|| panic!("nothing lost: {errors}"));
        assert!(seen > 0 && lost > 0, "{seen} seen, {lost} lost");
        assert_eq!(seen + lost, received(vm, "overflow", "rxe0"));
    });
}

#[test]
fn killed_it_leaves_no_probe() {
    with(|vm| {
        assert!(vm.text("probes-during.out").contains("rxe_rcv"));
        assert_eq!(vm.text("probes-after.out"), "");
    });
}

#[test]
fn wireshark_captures_through_it() {
    with(|vm| {
        assert_eq!(vm.status("extcap-install"), 0);
        let config = vm.text("extcap-config.out");
        assert!(config.contains("{call=--qp}"), "{config}");
        assert_eq!(vm.status("extcap-uninstall"), 0);
        if !vm.path("extcap-live.status").exists() {
            return;
        }
        let list = vm.text("extcap-list.out");
        for device in ["rxe0", "rxe1"] {
            let line = format!("roce-tap-{device} (RoCE kernel tap: {device})");
            assert!(list.contains(&line), "{list}");
        }
        let (text, errors) = (vm.text("extcap-live.out"), vm.text("extcap-live.err"));
        assert_eq!(vm.status("extcap-live"), 0, "{errors}");
        assert_eq!(text.lines().count(), 20, "{text}\n{errors}");
        assert!(text.lines().all(|line| line.contains("loopback-bypassed")));
    });
}

#[test]
fn what_is_missing_is_named() {
    with(|vm| {
        assert!(vm.refusal("no-driver").contains("sudo modprobe rdma_rxe"));
        let refusal = vm.refusal("unprivileged");
        assert!(refusal.contains("CAP_BPF and CAP_PERFMON"), "{refusal}");
    });
}
