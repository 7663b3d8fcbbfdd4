//! Captures beside other programs' traffic, the lab, the doctor and runs
//! between hosts, on a real Soft-RoCE driver.
#![cfg(all(feature = "live", feature = "verbs", target_os = "linux"))]

mod common;

use std::{sync::OnceLock, time::Duration};

use common::vm::{Machine, boot};
use serde_json::Value;

fn with(check: impl FnOnce(&Machine)) {
    static CELL: OnceLock<Option<Machine>> = OnceLock::new();
    if let Some(machine) = boot(&CELL, "capture.sh", Duration::from_secs(900)) {
        check(machine);
    }
}

/// A driver's counters of sent and received packets, as the script prints
/// them: `rxe0 sent 12 received 34`.
fn counted(vm: &Machine, name: &str, device: &str) -> (i64, i64) {
    let text = vm.text(&format!("{name}.out"));
    let line = text
        .lines()
        .find(|line| line.starts_with(device))
        .expect("counters of the device");
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[2].parse().unwrap(), words[4].parse().unwrap())
}

/// perftest beside a plain capture: every packet that the driver sent and
/// received passed the netdev once and was decoded.
#[test]
fn perftest_is_captured_whole() {
    with(|vm| {
        // On a busy machine perftest cannot tell how fast the emulated
        // processor is, and fails for that once all was sent.
        let said = vm.text("perftest-client.out");
        let unmeasured = said.contains("Can't produce a report");
        assert!(vm.status("perftest-client") == 0 || unmeasured, "{said}");
        assert_eq!(vm.status("perftest"), 0, "{}", vm.text("perftest.err"));
        let delta = |device| {
            let (sent, received) = counted(vm, "perftest-before", device);
            let (sent_after, received_after) = counted(vm, "perftest-after", device);
            (sent_after - sent, received_after - received)
        };
        let (sent, received) = delta("rxe0");
        assert_eq!(
            (received, sent),
            delta("rxe1"),
            "nothing was lost between them"
        );
        let text = vm.text("perftest.out");
        let rows: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(rows.len() as i64, sent + received);
        let count = |verb: &str| {
            let of = |row: &&Value| row["op"].as_str().is_some_and(|op| op.contains(verb));
            rows.iter().filter(of).count()
        };
        // 50 messages of 4096 bytes at a path MTU of 1024; on a slow machine
        // the driver's timer may have sent some of them twice.
        let writes = rows.iter().filter(|row| {
            row["op"]
                .as_str()
                .is_some_and(|op| op.contains("RDMA WRITE"))
        });
        let numbers: std::collections::BTreeSet<_> =
            writes.map(|row| row["psn"].as_u64()).collect();
        assert_eq!(numbers.len(), 200);
        assert_eq!(count("Acknowledge") as i64, sent);
        assert!(rows.iter().all(|row| row["icrc"] == "valid"));

        let saved = common::rows(&vm.path("perftest.pcapng"));
        assert_eq!(saved.len(), rows.len(), "the recording holds the same");
        let key = |row: &Value| {
            (
                row["opcode"].clone(),
                row["psn"].clone(),
                row["ts_ns"].clone(),
            )
        };
        assert!(saved.iter().map(key).eq(rows.iter().map(key)));
    });
}

#[test]
fn lab_goes_up_and_leaves_nothing() {
    with(|vm| {
        assert_eq!(vm.status("lab-up"), 0, "{}", vm.text("lab-up.err"));
        assert!(vm.text("lab-status.out").contains("rs_rxe1"));
        let document = vm.json("lab-write");
        assert_eq!(document["verdict"], "on-the-wire", "{document:#}");
        assert_eq!(document["netdev"]["packets"], 20);
        assert_eq!(vm.status("lab-down"), 0, "{}", vm.text("lab-down.err"));
        assert_eq!(
            vm.status("lab-down-again"),
            0,
            "{}",
            vm.text("lab-down-again.err")
        );
        assert!(!vm.text("links-after.out").contains("rs-veth"));
        assert_eq!(vm.text("sysctl-before.out"), vm.text("sysctl-after.out"));
    });
}

#[test]
fn lab_killed_half_way_is_taken_down() {
    with(|vm| {
        let errors = vm.text("lab-killed-down.err");
        assert_eq!(vm.status("lab-killed-down"), 0, "{errors}");
        assert!(!vm.text("links-after-kill.out").contains("rs-veth"));
    });
}

#[test]
fn doctor_tells_loops_from_wires() {
    with(|vm| {
        let check = |document: &Value, id: &str| -> Value {
            let checks = document["checks"].as_array().expect("checks");
            let found = checks.iter().find(|check| check["id"] == id);
            found
                .unwrap_or_else(|| panic!("{id}: {document:#}"))
                .clone()
        };
        let own = check(&vm.json("doctor"), "destination");
        assert_eq!(own["status"], "warn", "{own}");
        let peer = check(&vm.json("doctor-peer"), "destination");
        assert_ne!(peer["status"], "fail", "{peer}");
        assert!(vm.text("doctor-table.out").contains("GID"));
    });
}

#[test]
fn two_hosts_agree_over_tcp_and_over_the_connection_manager() {
    with(|vm| {
        for (name, responder) in [("peer-host", "responder"), ("peer-cm", "responder-cm")] {
            let document = vm.json(name);
            assert_eq!(document["verdict"], "on-the-wire", "{name}: {document:#}");
            assert_eq!(document["payload_verified"], true, "{name}");
            assert_eq!(document["netdev"]["requests"], 10, "{name}");
            let errors = vm.text(&format!("{responder}.err"));
            assert_eq!(vm.status(responder), 0, "{responder}: {errors}");
        }
        let nobody = vm.refusal("peer-nobody");
        assert!(nobody.contains("10.0.0.2"), "{nobody}");
    });
}
