//! `health`: what it finds in captures whose faults are known, and what it
//! makes of its options.

mod common;

use std::path::Path;

use common::{Run, fixture, fixtures, run};
use serde_json::{Value, json};

fn health(args: &[&str], names: &[&str]) -> Run {
    let paths: Vec<String> = names
        .iter()
        .map(|name| fixture(name).display().to_string())
        .collect();
    let mut all = vec!["health"];
    all.extend(args);
    all.extend(paths.iter().map(String::as_str));
    run(&all)
}

fn document(args: &[&str], names: &[&str]) -> Value {
    let mut all = vec!["--format", "json"];
    all.extend(args);
    let ran = health(&all, names).ok(&format!("{names:?}"));
    serde_json::from_str(&ran.stdout).expect("one document")
}

fn findings(name: &str) -> Vec<Value> {
    let mut document = document(&[], &[name]);
    let findings = document["findings"].take();
    serde_json::from_value(findings).expect("a list")
}

fn ids(findings: &[Value]) -> Vec<(&str, &str)> {
    let word =
        |finding: &'_ Value, key: &str| finding[key].as_str().unwrap().to_owned().leak() as &str;
    findings
        .iter()
        .map(|finding| (word(finding, "severity"), word(finding, "id")))
        .collect()
}

/// Sum of a count over the findings of a kind.
fn sum(findings: &[Value], id: &str, count: &str) -> u64 {
    let of_kind = findings.iter().filter(|finding| finding["id"] == id);
    of_kind
        .map(|finding| finding["evidence"]["counts"][count].as_u64().unwrap())
        .sum()
}

fn truth(name: &str) -> Value {
    let path = fixture("any").with_file_name("truth-faults.json");
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[name].take()
}

#[test]
fn traffic_without_faults_has_none() {
    for name in [
        "write_1k",
        "write_64k",
        "send_3k",
        "send_ud",
        "write_uc",
        "read_8k",
        "bidi",
        "multi_qp",
        "atomic_fa",
        "cm_rping",
        "v6_write",
        "vlan_write",
        "jumbo",
        "delay",
        "delay_responder",
    ] {
        assert_eq!(findings(name), [] as [Value; 0], "{name}");
    }
}

#[test]
fn faults_are_those_known() {
    let known: &[(&str, &[(&str, &str)])] = &[
        ("ack_loss", &[("info", "ack-loss")]),
        ("send_loss", &[("warning", "packet-loss")]),
        ("write_dup", &[("warning", "duplicates")]),
        ("write_ecn", &[("warning", "ce-without-cnp")]),
        ("badrkey", &[("error", "remote-access-error")]),
        ("imm", &[("error", "rnr")]),
        (
            "retry_exceeded",
            &[
                ("error", "peer-vanished"),
                ("warning", "timeout"),
                ("info", "unfinished"),
            ],
        ),
        (
            "peer_dies",
            &[
                ("error", "peer-vanished"),
                ("warning", "timeout"),
                ("info", "unfinished"),
            ],
        ),
        ("lossy_receiver", &[("warning", "packet-loss")]),
        (
            "lossy_sender",
            &[("warning", "packet-loss"), ("info", "ack-loss")],
        ),
        (
            "psn_wrap",
            &[
                ("warning", "packet-loss"),
                ("warning", "read-response-loss"),
            ],
        ),
        ("read_loss", &[("warning", "read-response-loss")]),
        (
            "rnr",
            &[
                ("warning", "rnr"),
                ("warning", "rnr"),
                ("info", "sent-again"),
            ],
        ),
        ("qp_reuse", &[("info", "qp-reused")]),
        (
            "cm_refused",
            &[("error", "cm-rejected"), ("error", "cm-rejected")],
        ),
    ];
    for (name, known) in known {
        assert_eq!(ids(&findings(name)), *known, "{name}");
    }
}

#[test]
fn numbers_are_those_known() {
    let found = findings("ack_loss");
    assert_eq!(sum(&found, "ack-loss", "acks_missing"), 3);
    let found = findings("send_loss");
    assert_eq!(sum(&found, "packet-loss", "sequence_naks"), 6);
    assert_eq!(sum(&found, "packet-loss", "packets_lost"), 6);
    let found = findings("write_ecn");
    assert_eq!(sum(&found, "ce-without-cnp", "ce"), 3);
    let found = findings("retry_exceeded");
    assert_eq!(sum(&found, "timeout", "timeouts"), 6);
    assert_eq!(sum(&found, "timeout", "timer_code"), 14);
    assert_eq!(sum(&found, "peer-vanished", "times_sent_again"), 6);
    let found = findings("imm");
    assert_eq!(sum(&found, "rnr", "rnr_naks"), 4);
    assert_eq!(sum(&found, "rnr", "given_up"), 1);
}

/// Losses are counted at either end as the drivers and the other end's capture
/// count them.
#[test]
fn losses_are_those_that_the_other_end_did_not_get() {
    for name in ["lossy_sender", "lossy_receiver"] {
        let (found, truth) = (findings(name), truth(name));
        assert_eq!(
            sum(&found, "packet-loss", "packets_lost"),
            truth["lost_from_client"],
            "{name}"
        );
        let naks = &truth["driver_counters_delta"]["rxe0"]["out_of_seq_request"];
        assert_eq!(sum(&found, "packet-loss", "sequence_naks"), *naks, "{name}");
    }
    assert_eq!(
        sum(&findings("lossy_sender"), "ack-loss", "acks_missing"),
        truth("lossy_sender")["lost_from_server"]
    );
    assert_eq!(
        sum(&findings("read_loss"), "read-response-loss", "packets_lost"),
        truth("read_loss")["lost_from_server"]
    );
}

#[test]
fn packets_that_overtake_each_other_are_not_lost() {
    let (found, truth) = (findings("reorder"), truth("reorder"));
    assert_eq!(truth["lost_from_client"], 0);
    assert!(
        found.iter().all(|finding| finding["id"] != "packet-loss"),
        "{found:#?}"
    );
    assert_eq!(
        sum(&found, "reordering", "sequence_naks"),
        truth["sequence_naks"]
    );
}

#[test]
fn a_receiver_that_is_not_ready_loses_nothing() {
    let (found, truth) = (findings("rnr"), truth("rnr"));
    assert_eq!(sum(&found, "rnr", "rnr_naks"), truth["rnr_naks"]);
    let naks = &truth["driver_counters_delta"]["rxe0"]["out_of_seq_request"];
    assert_eq!(sum(&found, "rnr", "sequence_naks"), *naks);
}

#[test]
fn corruption_is_told_from_loss() {
    let found = findings("corrupt");
    assert_eq!(sum(&found, "icrc-invalid", "icrc_invalid"), 23);
    assert_eq!(sum(&found, "packet-loss", "icrc_invalid"), 20);
    let loss = found.iter().find(|finding| finding["id"] == "packet-loss");
    let hint = loss.expect("packets thrown away")["hint"].as_str().unwrap();
    assert!(hint.contains("icrc-invalid"), "{hint}");
}

/// What the program that made the traffic asked for is what was refused.
#[test]
fn refused_requests_are_those_that_were_made() {
    let (found, truth) = (findings("bad_rkey"), truth("bad_rkey"));
    assert_eq!(found[0]["id"], "rkey-scan", "nine connections, nine keys");
    let attempts = truth["attempts"].as_array().unwrap();
    let made: Vec<_> = attempts
        .iter()
        .filter(|a| !a["frame_of_nak"].is_null())
        .collect();
    let refused: Vec<_> = found
        .iter()
        .filter(|finding| finding["id"] == "remote-access-error")
        .collect();
    assert_eq!(refused.len(), made.len());
    for (refused, made) in refused.iter().zip(made) {
        let number = |text: &Value| common::hex(text.as_str().unwrap());
        let request = &refused["evidence"]["requests"][0];
        assert_eq!(number(&request["rkey"]), number(&made["rkey"]));
        assert_eq!(number(&request["va"]), number(&made["va"]));
        assert_eq!(request["answer_frame"], made["frame_of_nak"]);
        assert_eq!(
            refused["flow"]["dest_qp"].as_u64(),
            number(&made["dest_qp"])
        );
    }
}

#[test]
fn rejections_have_their_reason() {
    let found = findings("cm_refused");
    let reasons: Vec<_> = found
        .iter()
        .map(|finding| finding["evidence"]["counts"]["reason"].as_u64().unwrap())
        .collect();
    assert_eq!(reasons, [8, 28]);
}

#[test]
fn status_tells_what_was_asked_to_fail() {
    let status = |level: &str, name: &str| health(&["--fail-on", level], &[name]).status;
    for (name, error, warning, info) in [
        ("badrkey", 1, 1, 1),
        ("send_loss", 0, 1, 1),
        ("ack_loss", 0, 0, 1),
        ("write_1k", 0, 0, 0),
    ] {
        let got = ["error", "warning", "info"].map(|level| status(level, name));
        assert_eq!(got, [error, warning, info], "{name}");
    }
}

#[test]
fn a_damaged_capture_is_judged_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(fixture("send_loss")).unwrap();
    let cut = common::write(dir.path(), "cut.pcap", &whole[..whole.len() - 100]);
    let ran = run(&[Path::new("health"), Path::new("--fail-on=warning"), &cut]);
    assert_eq!(ran.status, 2);
    assert!(
        ran.stderr.contains("damaged at record 511"),
        "{}",
        ran.stderr
    );
    assert!(ran.stdout.contains("packet-loss"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("not every input could be read"),
        "{}",
        ran.stdout
    );
}

#[test]
fn the_document_has_the_keys_it_promises() {
    let json = health(&["--format", "json"], &["badrkey"])
        .ok("badrkey")
        .stdout;
    let at = |key: &str| {
        json.find(&format!("\"{key}\":"))
            .unwrap_or_else(|| panic!("{key}"))
    };
    let order = [
        "capture",
        "thresholds",
        "findings",
        "id",
        "severity",
        "summary",
        "evidence",
        "frames",
        "counts",
        "naks",
        "requests",
        "hint",
        "flow",
    ];
    assert!(order.map(at).is_sorted(), "{json}");
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        document["thresholds"],
        json!({"stall_ns": 100_000_000, "retries": 3, "scan": 5, "cnp_rate": 100})
    );
    let finding = &document["findings"][0];
    assert_eq!(finding["evidence"]["frames"], json!([1, 2]));
    assert_eq!(
        finding["flow"],
        json!({"src": "10.0.0.1", "dst": "10.0.0.2", "dest_qp": 0x11})
    );
    assert_eq!(
        finding["evidence"]["requests"],
        json!([{
            "op": "RDMA WRITE", "bytes": 64, "va": "0x00007f2d573d1000", "rkey": "0x0000fdde",
            "frame": 1, "answer": "remote_access_error", "answer_frame": 2
        }])
    );
    assert_eq!(self::document(&[], &["write_1k"])["findings"], json!([]));
}

#[test]
fn frames_of_several_files_have_their_file() {
    let document = document(&[], &["write_1k", "badrkey"]);
    let evidence = &document["findings"][0]["evidence"];
    let name = fixture("badrkey").display().to_string();
    assert_eq!(evidence["frames"], json!([1, 2]));
    assert_eq!(evidence["files"], json!([name, name]));
    let table = health(&[], &["write_1k", "badrkey"]).ok("two files").stdout;
    assert!(table.contains("frames 2:1, 2:2"), "{table}");
}

#[test]
fn csv_has_a_row_a_finding() {
    let csv = health(&["--format", "csv"], &["badrkey"])
        .ok("badrkey")
        .stdout;
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(
        lines[0],
        "id,severity,src,dst,dest_qp,summary,counts,frames,hint"
    );
    assert_eq!(lines.len(), 2);
    assert!(
        lines[1]
            .starts_with("remote-access-error,error,10.0.0.1,10.0.0.2,17,The responder refused"),
        "{csv}"
    );
    assert!(lines[1].contains(",naks=1,1 2,\"Compare "), "{csv}");
}

#[test]
fn threads_and_width_change_nothing_else() {
    for name in fixtures() {
        let one = health(&["--threads", "1"], &[&name]).ok(&name).stdout;
        let many = health(&["--threads", "4"], &[&name]).ok(&name).stdout;
        assert_eq!(one, many, "{name}");
        let narrow = health(&["--width", "80"], &[&name]).ok(&name).stdout;
        for line in narrow.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
        let words = |text: &str| {
            text.split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&one), words(&narrow), "{name}");
    }
}

#[test]
fn thresholds_change_what_is_told() {
    let has = |args: &[&str], name: &str, id: &str| {
        let document = document(args, &[name]);
        let mut findings = document["findings"].as_array().unwrap().iter();
        findings.any(|finding| finding["id"] == id)
    };
    assert!(has(&["--retries", "6"], "retry_exceeded", "peer-vanished"));
    assert!(!has(&["--retries", "7"], "retry_exceeded", "peer-vanished"));
    assert!(has(&["--scan", "8"], "bad_rkey", "rkey-scan"));
    assert!(!has(&["--scan", "10"], "bad_rkey", "rkey-scan"));
    // Each request of this capture waits 20 ms for its answer.
    assert!(has(&["--stall", "10ms"], "delay", "stall"));
    assert!(!has(&["--stall", "1s"], "delay", "stall"));
}

#[test]
fn flows_are_chosen_after_all_were_followed() {
    let all = document(&[], &["corrupt"]);
    let one = document(&["--qp", "0x19"], &["corrupt"]);
    let of_one = |document: &Value| -> Vec<Value> {
        let findings = document["findings"].as_array().unwrap().iter();
        let chosen = |f: &&Value| f["flow"].is_null() || f["flow"]["dest_qp"] == 0x19;
        findings.filter(chosen).cloned().collect()
    };
    assert!(of_one(&all).len() < all["findings"].as_array().unwrap().len());
    assert_eq!(json!(of_one(&all)), one["findings"]);
    // By the queue pair that requests come from, which their packets do not say.
    let from = document(&["--qp", "0x23"], &["reorder"]);
    assert!(from["findings"].as_array().unwrap().len() > 1, "{from}");
    let refused = health(&["--nak"], &["badrkey"]);
    assert_eq!(refused.status, 2);
    assert!(
        refused.stderr.contains("judged by all of its packets"),
        "{}",
        refused.stderr
    );
}

#[test]
fn kinds_are_explained() {
    let one = run(&["health", "--explain", "rnr"]).ok("rnr").stdout;
    assert!(
        one.starts_with("warning  rnr · Receiver not ready\n"),
        "{one}"
    );
    let all = run(&["health", "--explain", "all"]).ok("all").stdout;
    assert!(all.contains(&one) && all.lines().count() > 60, "{all}");
    let unknown = run(&["health", "--explain", "gremlins"]);
    assert_eq!(unknown.status, 2);
    assert!(unknown.stderr.contains("packet-loss"), "{}", unknown.stderr);
}

#[test]
fn the_readme_lists_every_kind() {
    let readme = include_str!("../README.md");
    for kind in roce_sniff::health::KINDS {
        assert!(readme.contains(&format!("`{}`", kind.id)), "{}", kind.id);
    }
}
