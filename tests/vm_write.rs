//! Write runs on a real Soft-RoCE driver: what crossed the wire, what never
//! did, and what never left.

#![cfg(all(feature = "live", feature = "verbs", target_os = "linux"))]

mod common;

use std::{sync::OnceLock, time::Duration};

use common::vm::{Machine, boot};
use serde_json::Value;

fn machine() -> Option<&'static Machine> {
    static CELL: OnceLock<Option<Machine>> = OnceLock::new();
    boot(&CELL, "write.sh", Duration::from_secs(900))
}

/// Runs `check` where there is a machine.
fn with(check: impl FnOnce(&Machine)) {
    if let Some(machine) = machine() {
        check(machine);
    }
}

fn verdict<'d>(name: &str, document: &'d Value, expected: &str) -> &'d Value {
    assert_eq!(document["verdict"], expected, "{name}: {document:#}");
    document
}

/// Ten writes to itself: completed, verified, counted by the driver, and not
/// one packet on a netdev whose listener saw the control frame.
fn assert_looped(name: &str, document: &Value, packets: i64) {
    verdict(name, document, "loopback-bypassed");
    assert_eq!(document["completed"], document["posted"], "{name}");
    assert_eq!(document["payload_verified"], true, "{name}");
    assert_eq!(document["netdev"]["packets"], 0, "{name}");
    assert_eq!(document["netdev"]["kernel_dropped"], 0, "{name}");
    assert!(document["control"]["seen"].as_u64() > Some(0), "{name}");
    let counters = &document["counters_delta"]["rxe0"];
    let (sent, received) = (&counters["sent_pkts"], &counters["rcvd_pkts"]);
    if document["expected"]["requests"] == document["posted"] {
        assert_eq!(
            (sent, received),
            (&packets.into(), &packets.into()),
            "{name}"
        );
    } else {
        // The driver now and then sends part of a long message once more.
        assert!(sent.as_i64() >= Some(packets), "{name}: {counters}");
        assert!(received.as_i64() >= Some(packets), "{name}: {counters}");
    }
    for write in document["writes"].as_array().expect("rows") {
        assert_eq!(write["seen_on_netdev"], false, "{name}");
        assert_eq!(write["status"], "success", "{name}");
    }
}

#[test]
fn to_itself_is_bypassed() {
    with(|vm| {
        let document = vm.json("self");
        assert_looped("self", &document, 20);
        assert_eq!(document["completed"], 10);
        assert_eq!(document["expected"]["requests"], 10);
        assert_looped("self-v6", &vm.json("self-v6"), 20);
        assert_looped("self-64k", &vm.json("self-64k"), 5 * 64 + 5);
        assert_looped("self-other-qp", &vm.json("self-other-qp"), 20);
    });
}

#[test]
fn every_operation_to_itself_is_bypassed() {
    with(|vm| {
        for op in ["write-imm", "send", "read", "fetch-add", "cmp-swap"] {
            let name = format!("self-{op}");
            assert_looped(&name, &vm.json(&name), 20);
        }
    });
}

#[test]
fn the_screen_says_it_in_words() {
    with(|vm| {
        let screen = vm.text("self-table.out");
        for words in [
            "rxe0 on veth0 · port 1 active · GID 1 ::ffff:10.0.0.1 (RoCE v2) · path MTU 1024",
            "10 RDMA WRITEs of 64 bytes",
            "posted, completed, payload verified    10, 10, yes",
            "sent +20, received +20",
            "control frame seen; 0 dropped by the kernel",
            "Verdict: LOOPBACK-BYPASSED. 20 of 20 packets never touched veth0.",
            "10.0.0.1 is rxe0's own address",
            "lab up",
        ] {
            let folded = screen.split_whitespace().collect::<Vec<_>>().join(" ");
            let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(folded.contains(&words), "{words:?} is not in\n{screen}");
        }
        let screen = vm.text("peer-table.out");
        assert!(screen.contains("Verdict: ON-THE-WIRE."), "{screen}");
    });
}

/// Every request and every answer is matched to its write by PSN.
fn assert_on_the_wire(name: &str, document: &Value) {
    verdict(name, document, "on-the-wire");
    assert_eq!(document["payload_verified"], true, "{name}");
    assert_eq!(document["completed"], document["posted"], "{name}");
    let seen = &document["netdev"];
    assert_eq!(
        seen["requests"], document["expected"]["requests"],
        "{name}: {seen}"
    );
    assert_eq!(seen["kernel_dropped"], 0, "{name}");
    for write in document["writes"].as_array().expect("rows") {
        assert_eq!(write["seen_on_netdev"], true, "{name}: {write}");
        let latency = write["latency_ns"].as_u64().expect("a latency");
        assert!(
            (500..2_000_000_000).contains(&latency),
            "{name}: {latency} ns"
        );
    }
}

#[test]
fn to_another_device_is_on_the_wire() {
    with(|vm| {
        let document = vm.json("peer");
        assert_on_the_wire("peer", &document);
        assert_eq!(document["netdev"]["packets"], 20);
        assert_eq!(document["netdev"]["responses"], 10);
        // Request and answer of each write, one after the other.
        for write in document["writes"].as_array().expect("rows") {
            let (request, response) = (
                write["netdev_request_frame"].as_u64().expect("a frame"),
                write["netdev_response_frame"].as_u64().expect("a frame"),
            );
            assert!(request < response, "{write}");
        }
        assert_on_the_wire("peer-v6", &vm.json("peer-v6"));
        let long = vm.json("peer-64k");
        assert_on_the_wire("peer-64k", &long);
        assert_eq!(long["netdev"]["requests"], 5 * 64);
        for op in ["write-imm", "send", "read", "fetch-add", "cmp-swap"] {
            let name = format!("peer-{op}");
            assert_on_the_wire(&name, &vm.json(&name));
        }
        let fast = vm.json("peer-bandwidth");
        verdict("peer-bandwidth", &fast, "on-the-wire");
        assert!(fast["bandwidth_bps"].as_f64() > Some(0.0));
        assert_eq!(fast["completed"], 200);
    });
}

#[test]
fn loss_on_the_way_is_still_on_the_wire() {
    with(|vm| {
        let document = vm.json("loss");
        verdict("loss", &document, "on-the-wire");
        assert_eq!(document["completed"], 100);
        let seen = &document["netdev"];
        assert!(seen["naks"].as_u64() > Some(0), "{seen}");
        assert!(seen["retransmitted"].as_u64() > Some(0), "{seen}");
        let sum = |key: &str| -> u64 {
            let rows = document["writes"].as_array().expect("rows");
            rows.iter().filter_map(|write| write[key].as_u64()).sum()
        };
        assert_eq!(sum("retransmits"), seen["retransmitted"].as_u64().unwrap());
        assert!(sum("naks") > 0);
    });
}

#[test]
fn silence_of_the_peer_is_a_failure() {
    with(|vm| {
        for name in ["silence", "egress-drop"] {
            let document = vm.json(name);
            verdict(name, &document, "failed");
            assert!(
                document["failed"]["retry exceeded"].as_u64() > Some(0),
                "{name}: {document:#}"
            );
            let why = document["why"].as_str().expect("a reason");
            assert!(why.contains("retry exceeded"), "{name}: {why}");
        }
    });
}

#[test]
fn what_cannot_leave_was_never_sent() {
    with(|vm| {
        let document = vm.json("never-sent");
        verdict("never-sent", &document, "never-sent");
        assert_eq!(document["posted"], 0);
        let why = document["why"].as_str().expect("a reason");
        assert!(why.contains("RTR") && why.contains("GID"), "{why}");
    });
}

#[test]
fn what_proves_nothing_is_inconclusive() {
    with(|vm| {
        let document = vm.json("wrong-device");
        verdict("wrong-device", &document, "inconclusive");
        assert!(document["why"].as_str().unwrap().contains("dummy0"));
        verdict(
            "self-no-control",
            &vm.json("self-no-control"),
            "inconclusive",
        );
    });
}

#[test]
fn a_device_is_set_up_for_the_run_only() {
    with(|vm| {
        let document = vm.json("setup-rxe");
        verdict("setup-rxe", &document, "loopback-bypassed");
        let links = vm.text("setup-rxe-after.out");
        assert!(!links.contains("dummy0"), "{links}");
        assert!(links.contains("rxe0"), "others stay: {links}");
    });
}

#[test]
fn refusals_are_one_sentence() {
    with(|vm| {
        let no_device = vm.refusal("no-device");
        assert!(no_device.contains("--setup-rxe"), "{no_device}");
        assert!(vm.refusal("missing-interface").contains("nosuch0"));
        assert!(vm.refusal("mtu").contains("4096"));
        let unprivileged = vm.refusal("unprivileged");
        assert!(unprivileged.contains("sudo"), "{unprivileged}");
        assert_eq!(vm.status("self-expect-wire"), 1, "--expect");
        let unexpected = vm.text("self-expect-wire.err");
        assert!(unexpected.contains("expected on-the-wire"), "{unexpected}");
    });
}
