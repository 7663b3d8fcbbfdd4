//! Every fixture against what is known about it: the counts of an independent
//! decoder and what the traffic generator printed about its own queue pairs.

mod common;

use common::{assert_icrc_valid, capture, fixtures, number, plain, text, truth};
use serde_json::Value;
use std::collections::BTreeMap;

/// How often each value of `key` occurs, keyed as `truth.json` keys it.
fn counts(rows: &[Value], key: impl Fn(&Value) -> Option<String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for value in rows.iter().filter_map(key) {
        *counts.entry(value).or_default() += 1;
    }
    counts
}

fn known(truth: &Value, key: &str) -> BTreeMap<String, u64> {
    serde_json::from_value(truth[key].clone()).unwrap()
}

fn syndrome(row: &Value) -> Option<u64> {
    row.get("aeth")?;
    let kind = match common::aeth_kind(row) {
        "ack" => 0,
        "rnr" => 1,
        "reserved" => 2,
        _ => 3,
    };
    Some(kind << 5 | number(row, "aeth.value")?)
}

/// Packets, opcodes, syndromes and destination queue pairs are counted right,
/// and every ICRC of this whole traffic is valid, but for those damaged on
/// purpose.
#[test]
fn counts_are_those_known() {
    let truth = truth();
    for name in fixtures() {
        let truth = &truth[&name];
        let rows = plain(&name);
        let packets = capture(&name).packets.len() as u64;
        assert_eq!(truth["packets"], packets, "{name}: packets in the file");
        let opcodes = counts(&rows, |row| Some(number(row, "opcode")?.to_string()));
        assert_eq!(opcodes, known(truth, "opcodes"), "{name}: opcodes");
        let syndromes = counts(&rows, |row| Some(syndrome(row)?.to_string()));
        assert_eq!(syndromes, known(truth, "syndromes"), "{name}: syndromes");
        let qps = counts(&rows, |row| {
            Some(format!("{:#08x}", number(row, "dest_qp")?))
        });
        assert_eq!(qps, known(truth, "dest_qps"), "{name}: destination QPs");
        match truth["icrc_wrong"].as_u64() {
            Some(known) => {
                let wrong = rows.iter().filter(|row| text(row, "icrc") == "invalid");
                assert_eq!(wrong.count() as u64, known, "{name}: ICRCs that are wrong");
            }
            None => assert_icrc_valid(&name, &rows),
        }
    }
}

/// Last digit of the server's addresses, 10.0.0.1 and `fe80::ff:fe00:1`.
const SERVER: char = '1';
/// Last digit of the client's.
const CLIENT: char = '2';

/// One side of a connection as its generator described it.
struct Side {
    qpn: u64,
    psn: u64,
    memory: Option<(u64, u64)>,
}

fn sides(truth: &Value, which: &str) -> Vec<Side> {
    let all = truth["generator_qps"].as_array();
    all.into_iter()
        .flatten()
        .filter(|qp| qp["side"] == which)
        .map(|qp| Side {
            qpn: number(qp, "qpn").unwrap(),
            psn: number(qp, "psn").unwrap(),
            memory: number(qp, "rkey").zip(number(qp, "va")),
        })
        .collect()
}

/// Not a response of the RC transport: not 0x0d to 0x12.
fn is_request(row: &Value) -> bool {
    !(0x0d..=0x12).contains(&number(row, "opcode").unwrap())
}

/// Checks the requests that one side sent to its peer's queue pair.
fn check_requests(name: &str, rows: &[Value], from: &Side, from_ip: char, to: &Side) {
    let requests: Vec<&Value> = rows
        .iter()
        .filter(|row| is_request(row) && text(row, "src").ends_with(from_ip))
        .filter(|row| number(row, "dest_qp") == Some(to.qpn))
        .collect();
    let first = requests
        .first()
        .unwrap_or_else(|| panic!("{name}: no request to QP {:#x}", to.qpn));
    assert_eq!(number(first, "psn"), Some(from.psn), "{name}: first PSN");
    // Only one-sided operations name memory; theirs is the peer's.
    let remote = requests.iter().find(|row| row.get("reth").is_some());
    if let (Some(row), Some((rkey, va))) = (remote, to.memory) {
        assert_eq!(number(row, "reth.rkey"), Some(rkey), "{name}: rkey");
        assert_eq!(number(row, "reth.va"), Some(va), "{name}: VA");
    }
}

/// The first request PSN towards a queue pair is the one its peer announced
/// as its own, and memory is addressed with the key and address its owner
/// announced.
#[test]
fn first_requests_match_what_the_generator_printed() {
    let truth = truth();
    let mut checked = 0;
    for name in fixtures() {
        let servers = sides(&truth[&name], "server");
        let clients = sides(&truth[&name], "client");
        assert_eq!(servers.len(), clients.len(), "{name}");
        if servers.is_empty() {
            continue;
        }
        let rows = plain(&name);
        for (server, client) in servers.iter().zip(&clients) {
            check_requests(&name, &rows, client, CLIENT, server);
            if name == "bidi" {
                check_requests(&name, &rows, server, SERVER, client);
            }
            checked += 1;
        }
    }
    assert!(checked >= 15, "only {checked} queue pairs checked");
}

/// Requests reach only announced queue pairs, and answers the requester's.
#[test]
fn answers_go_to_the_requesters_queue_pair() {
    let truth = truth();
    for name in ["write_64k", "multi_qp", "ack_loss", "v6_write", "write_dup"] {
        let clients = sides(&truth[name], "client");
        for row in plain(name).iter().filter(|row| !is_request(row)) {
            let qp = number(row, "dest_qp");
            assert!(clients.iter().any(|c| Some(c.qpn) == qp), "{name}: {row}");
        }
    }
}

/// Members have the JSON types the contract names: integers are numbers,
/// what may exceed 53 bits and keys are strings of hexadecimal digits.
#[test]
fn members_have_the_types_of_the_contract() {
    const NUMBERS: [&str; 19] = [
        "frame",
        "ts_ns",
        "caplen",
        "len",
        "sport",
        "dscp",
        "ecn",
        "ttl",
        "opcode",
        "dest_qp",
        "psn",
        "pad",
        "pkey",
        "payload_len",
        "reth.dma_len",
        "aeth.value",
        "aeth.msn",
        "deth.qkey",
        "deth.src_qp",
    ];
    const HEX: [&str; 8] = [
        "reth.va",
        "reth.rkey",
        "atomic.va",
        "atomic.rkey",
        "atomic.swap_add",
        "atomic.compare",
        "atomic_ack",
        "cm.service_id",
    ];
    const TEXT: [&str; 5] = ["src", "dst", "op", "icrc", "aeth.kind"];
    const BOOLEANS: [&str; 5] = ["ack_req", "se", "migreq", "fecn", "becn"];
    let mut seen = std::collections::BTreeSet::new();
    for name in ["cm_rping", "atomic_fa", "send_ud", "v6_write", "read_8k"] {
        for row in plain(name) {
            let mut check = |path: &'static str, right: fn(&Value) -> bool| {
                if let Some(value) = common::at(&row, path) {
                    assert!(right(value), "{name}: {path} is {value}");
                    seen.insert(path);
                }
            };
            for path in NUMBERS {
                check(path, Value::is_u64);
            }
            for path in TEXT {
                check(path, Value::is_string);
            }
            for path in BOOLEANS {
                check(path, Value::is_boolean);
            }
            for path in HEX {
                check(path, |value| {
                    let text = value.as_str().unwrap_or("");
                    text.starts_with("0x") && common::hex(text).is_some()
                });
            }
        }
    }
    let all = NUMBERS.len() + HEX.len() + TEXT.len() + BOOLEANS.len();
    assert_eq!(seen.len(), all, "some members never occurred: {seen:?}");
}
