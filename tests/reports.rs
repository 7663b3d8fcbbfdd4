//! `flows`, `messages` and `memory`: the contract of their keys, and that what
//! they say adds up to what `packets` lists.

mod common;

use std::{collections::BTreeMap, fmt};

use common::{fixture, fixtures, number, plain, run, text};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

/// Keys of a JSON object, in the order in which they are written.
#[derive(Debug)]
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Keys;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// Runs a command on fixtures.
fn output(command: &str, format: &str, names: &[&str], more: &[&str]) -> String {
    let mut args = vec![command.to_string(), "--format".into(), format.into()];
    args.extend(more.iter().map(ToString::to_string));
    args.extend(names.iter().map(|name| fixture(name).display().to_string()));
    run(&args).ok(&format!("{args:?}")).stdout
}

fn document(command: &str, name: &str) -> Value {
    serde_json::from_str(&output(command, "json", &[name], &[])).unwrap()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().expect(key)
}

/// Rows of a CSV file whose fields hold no commas, by column.
fn csv(text: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut lines = text.lines();
    let header: Vec<_> = lines.next().expect("a header").split(',').collect();
    lines
        .map(|line| {
            let fields: Vec<_> = line.split(',').collect();
            assert_eq!(fields.len(), header.len(), "{line}");
            header.iter().copied().zip(fields).collect()
        })
        .collect()
}

#[test]
fn keys_of_flows_are_those_promised_in_that_order() {
    #[derive(Deserialize)]
    struct Document {
        capture: Keys,
        flows: Vec<Keys>,
        connections: Vec<Keys>,
    }
    let json = output("flows", "json", &["cm_rping"], &[]);
    let document: Document = serde_json::from_str(&json).unwrap();
    let begins = |keys: &Keys, with: &str| {
        let with: Vec<_> = with.split(',').collect();
        assert_eq!(keys.0[..with.len()], with);
    };
    begins(
        &document.capture,
        "files,packets,roce_packets,skipped,first_ts_ns,last_ts_ns,link_types,icrc",
    );
    assert_eq!(document.flows.len(), 4);
    for flow in &document.flows {
        begins(
            flow,
            "src,dst,dest_qp,transport,packets,payload_bytes,ops,first_psn,last_psn,gaps,missing,\
             retransmitted,reordered,duplicates,acks,naks,rnr_naks,cnps,ce,messages",
        );
    }
    for connection in &document.connections {
        begins(connection, "a,b,how");
    }
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["capture"]["link_types"],
        serde_json::json!(["ETHERNET"])
    );
    for end in ["a", "b"] {
        let end = &json["connections"][0][end];
        assert_eq!(end["qp"], 0x1a);
        assert!(
            end["ip"].is_string() && end["initial_psn"].is_u64(),
            "{end}"
        );
    }
}

#[test]
fn keys_of_messages_are_those_promised_in_that_order() {
    let promised = "src,dst,dest_qp,op,first_psn,last_psn,bytes,va,rkey,start_ns,end_ns,acked_ns,\
                    latency_ns,complete,retransmits";
    for line in output("messages", "json", &["cm_rping"], &[]).lines() {
        let keys: Keys = serde_json::from_str(line).unwrap();
        assert_eq!(keys.0[..15].join(","), promised);
    }
    let table = output("messages", "csv", &["cm_rping"], &[]);
    assert!(table.starts_with(promised), "{table}");
}

/// Every packet is in exactly one flow, with its operation and its bytes.
#[test]
fn flows_add_up_to_the_packets() {
    for name in fixtures() {
        type Sums = BTreeMap<(String, String, u64), (u64, u64, BTreeMap<String, u64>)>;
        let mut expected = Sums::new();
        for row in plain(&name) {
            let key = (
                text(&row, "src").to_owned(),
                text(&row, "dst").to_owned(),
                number(&row, "dest_qp").unwrap(),
            );
            let (packets, bytes, ops) = expected.entry(key).or_default();
            *packets += 1;
            *bytes += number(&row, "payload_len").unwrap();
            *ops.entry(text(&row, "op").to_owned()).or_default() += 1;
        }
        let document = document("flows", &name);
        let mut found = Sums::new();
        for flow in list(&document, "flows") {
            let key = (
                text(flow, "src").to_owned(),
                text(flow, "dst").to_owned(),
                number(flow, "dest_qp").unwrap(),
            );
            // A queue pair that was reused has more than one.
            let (packets, bytes, ops) = found.entry(key).or_default();
            *packets += number(flow, "packets").unwrap();
            *bytes += number(flow, "payload_bytes").unwrap();
            for (op, count) in flow["ops"].as_object().unwrap() {
                *ops.entry(op.clone()).or_default() += count.as_u64().unwrap();
            }
            let parts: u64 = ["acknowledgements", "cnps", "untracked", "corrupted"]
                .into_iter()
                .chain(["requests.packets", "responses.packets"])
                .map(|part| number(flow, part).unwrap())
                .sum();
            assert_eq!(Some(parts), number(flow, "packets"), "{name}: {flow}");
        }
        assert_eq!(found, expected, "{name}");
        let roce: u64 = expected.values().map(|(packets, ..)| packets).sum();
        assert_eq!(number(&document, "capture.roce_packets"), Some(roce));
    }
}

/// The answer of a flow is the flow that it answers, and both are in the list.
#[test]
fn peers_point_at_each_other() {
    let mut paired = 0;
    for name in fixtures() {
        let document = document("flows", &name);
        let flows = list(&document, "flows");
        for (place, flow) in flows.iter().enumerate() {
            let Some(peer) = number(flow, "peer") else {
                continue;
            };
            paired += 1;
            let peer = &flows[peer as usize];
            assert_eq!(number(peer, "peer"), Some(place as u64), "{name}");
            assert_eq!(peer["src"], flow["dst"], "{name}");
            assert_eq!(peer["dest_qp"], flow["src_qp"], "{name}");
        }
        for connection in list(&document, "connections") {
            if let Some(forward) = number(connection, "forward") {
                let forward = &flows[forward as usize];
                assert_eq!(forward["dest_qp"], connection["b"]["qp"], "{name}");
                assert_eq!(forward["src"], connection["a"]["ip"], "{name}");
            }
        }
    }
    assert!(paired > 30, "{paired} flows have a peer");
}

#[test]
fn csv_says_what_json_says() {
    for name in fixtures() {
        let document = document("flows", &name);
        let table = output("flows", "csv", &[&name], &[]);
        let rows = csv(&table);
        assert_eq!(rows.len(), list(&document, "flows").len(), "{name}");
        for (row, flow) in rows.iter().zip(list(&document, "flows")) {
            for (column, field) in row {
                if let Some(value) = flow.get(column)
                    && (value.is_number() || value.is_null())
                    && !column.ends_with("_s")
                    && !column.ends_with("_bps")
                {
                    let expected = value.as_i64().map_or(String::new(), |n| n.to_string());
                    assert_eq!(*field, expected, "{name}: {column}");
                }
            }
            let ops: u64 = row["ops"]
                .split(';')
                .map(|op| op.rsplit_once('=').unwrap().1.parse::<u64>().unwrap())
                .sum();
            assert_eq!(Some(ops), number(flow, "packets"), "{name}");
        }
        let lines = output("messages", "json", &[&name], &[]);
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let table = output("messages", "csv", &[&name], &[]);
        let rows = csv(&table);
        assert_eq!(rows.len(), lines.len(), "{name}");
        for (row, line) in rows.iter().zip(&lines) {
            for (column, field) in row {
                let expected = match &line[column] {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                assert_eq!(*field, expected, "{name}: {column}");
            }
        }
    }
}

/// Messages of a flow are as many as the flow says.
#[test]
fn messages_add_up_to_the_flows() {
    for name in fixtures() {
        let mut expected: BTreeMap<(String, u64), u64> = BTreeMap::new();
        for flow in list(&document("flows", &name), "flows") {
            let key = (text(flow, "src").into(), number(flow, "dest_qp").unwrap());
            *expected.entry(key).or_default() += number(flow, "messages").unwrap();
        }
        expected.retain(|_, count| *count > 0);
        let mut found = BTreeMap::new();
        for line in output("messages", "json", &[&name], &[]).lines() {
            let message: Value = serde_json::from_str(line).unwrap();
            let key = (
                text(&message, "src").into(),
                number(&message, "dest_qp").unwrap(),
            );
            *found.entry(key).or_default() += 1;
        }
        assert_eq!(found, expected, "{name}");
    }
}

/// Memory by the byte, from what `messages` lists.
#[test]
fn memory_is_what_the_messages_name() {
    for name in fixtures() {
        // By responder and key: how often each byte was written and read.
        type Bytes = BTreeMap<u64, [u32; 2]>;
        let mut expected: BTreeMap<(String, String), Bytes> = BTreeMap::new();
        for line in output("messages", "json", &[&name], &[]).lines() {
            let message: Value = serde_json::from_str(line).unwrap();
            let op = text(&message, "op");
            let kind = match op {
                _ if op.contains("WRITE") => 0,
                _ if op.contains("READ") => 1,
                _ => continue,
            };
            if let (Some(va), true) = (number(&message, "va"), message["refused"].is_null()) {
                let key = (text(&message, "dst").into(), text(&message, "rkey").into());
                let bytes = expected.entry(key).or_default();
                for address in va..va + number(&message, "bytes").unwrap() {
                    bytes.entry(address).or_default()[kind] += 1;
                }
            }
        }
        for region in list(&document("memory", &name), "regions") {
            let key = (
                text(region, "responder").into(),
                text(region, "rkey").into(),
            );
            let bytes = expected.remove(&key).unwrap_or_default();
            let count = |holds: &dyn Fn(&[u32; 2]) -> bool| {
                Some(bytes.values().filter(|times| holds(times)).count() as u64)
            };
            let found = |path: &str| number(region, path);
            assert_eq!(
                found("written.distinct_bytes"),
                count(&|t| t[0] > 0),
                "{name}"
            );
            assert_eq!(found("read.distinct_bytes"), count(&|t| t[1] > 0), "{name}");
            assert_eq!(
                found("overwritten.distinct_bytes"),
                count(&|t| t[0] > 1),
                "{name}"
            );
            let again: u64 = bytes
                .values()
                .map(|t| u64::from(t[0].saturating_sub(1)))
                .sum();
            assert_eq!(found("overwritten.bytes"), Some(again), "{name}");
            for (kind, place) in [("written", 0), ("read", 1)] {
                for interval in list(&region[kind], "intervals") {
                    let va = number(interval, "va").unwrap();
                    let end = va + number(interval, "len").unwrap();
                    assert!(
                        (va..end).all(|address| bytes[&address][place] > 0),
                        "{name}"
                    );
                    assert!(
                        !bytes.contains_key(&end) || bytes[&end][place] == 0,
                        "{name}"
                    );
                }
            }
        }
        assert!(expected.is_empty(), "{name}: {:?}", expected.keys());
    }
}

#[test]
fn threads_change_nothing() {
    let names = fixtures();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for command in ["flows", "messages", "memory"] {
        for format in ["table", "json", "csv"] {
            let one = output(command, format, &names, &["--threads", "1"]);
            for threads in ["2", "8"] {
                let more = output(command, format, &names, &["--threads", threads]);
                assert_eq!(more, one, "{command} as {format}, {threads} threads");
            }
        }
    }
}

#[test]
fn rows_are_chosen_after_all_packets_were_followed() {
    let all = document("flows", "multi_qp");
    let one = output("flows", "json", &["multi_qp"], &["--qp", "0x1b"]);
    let one: Value = serde_json::from_str(&one).unwrap();
    // The flow to the queue pair, and the one that answers it.
    let flows = list(&one, "flows");
    assert_eq!(flows.len(), 2);
    assert_eq!(
        (number(&flows[0], "peer"), number(&flows[1], "peer")),
        (Some(1), Some(0))
    );
    for flow in flows {
        let same =
            |other: &&Value| other["dest_qp"] == flow["dest_qp"] && other["src"] == flow["src"];
        let whole = list(&all, "flows").iter().find(same).unwrap();
        assert_eq!(flow["acks"], whole["acks"]);
        assert_eq!(flow["latency_ns"], whole["latency_ns"]);
    }
    assert_eq!(one["capture"], all["capture"]);
    assert_eq!(list(&one, "connections").len(), 1);
    let none = output("flows", "json", &["multi_qp"], &["--host", "192.0.2.1"]);
    let none: Value = serde_json::from_str(&none).unwrap();
    assert!(list(&none, "flows").is_empty() && list(&none, "connections").is_empty());

    let reads = output("messages", "json", &["cm_rping"], &["--op", "read"]);
    assert_eq!(reads.lines().count(), 5);
    assert!(
        reads.lines().all(|line| line.contains("RC RDMA READ")),
        "{reads}"
    );
    let limited = output("messages", "csv", &["cm_rping"], &["--limit", "3"]);
    assert_eq!(limited.lines().count(), 4, "{limited}");
    let table = output("messages", "table", &["cm_rping"], &["--limit", "3"]);
    assert!(
        table.contains("RC SEND              10"),
        "all are summed up: {table}"
    );
    let nothing = output("memory", "table", &["cm_rping"], &["--qp", "1"]);
    assert!(nothing.contains("no message names memory"), "{nothing}");
}

#[test]
fn filters_of_packets_are_refused_with_the_reason() {
    let file = fixture("badrkey").display().to_string();
    for command in ["flows", "messages", "memory"] {
        for filter in [
            &["--psn", "1..2"][..],
            &["--nak"],
            &["--cm"],
            &["--op", "ack"],
        ] {
            let mut args = vec![command];
            args.extend(filter);
            args.push(&file);
            let ran = run(&args);
            assert_eq!((ran.status, ran.stdout.as_str()), (2, ""), "{args:?}");
            let reason = if filter[0] == "--op" && command == "messages" {
                "no message is of this kind"
            } else {
                "a flow is judged by all of its packets"
            };
            assert!(ran.stderr.contains(reason), "{args:?}: {}", ran.stderr);
        }
        let ran = run(&[command, "--interval", "1s", &file]);
        assert_eq!(ran.status, 2, "{command}: --interval is for live captures");
    }
}

#[test]
fn a_damaged_file_is_reported_as_far_as_it_goes() {
    let whole = std::fs::read(fixture("write_1k")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cut = common::write(dir.path(), "cut.pcap", &whole[..whole.len() / 2]);
    let cut = cut.display().to_string();
    for command in ["flows", "messages", "memory"] {
        let ran = run(&[command, "--format", "json", &cut]);
        assert_eq!(ran.status, 2, "{command}");
        assert!(
            ran.stderr.contains("ends inside a packet"),
            "{command}: {}",
            ran.stderr
        );
        assert!(!ran.stdout.is_empty(), "{command}");
        if command != "messages" {
            let document: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert_eq!(document["capture"]["complete"], false, "{command}");
            assert!(number(&document, "capture.packets") > Some(10), "{command}");
        }
        let table = run(&[command, &cut]);
        assert!(
            table.stdout.contains("not every input could be read"),
            "{command}"
        );
        // A whole file after it is read all the same.
        let more = run(&[command, &cut, &fixture("read_8k").display().to_string()]);
        assert_eq!(more.status, 2);
        assert!(
            more.stdout.contains("10.0.0.1"),
            "{command}: {}",
            more.stdout
        );

        let ran = run(&[command, "/nowhere/at.pcap"]);
        assert_eq!(ran.status, 2, "{command}");
        assert!(
            ran.stderr.contains("cannot open"),
            "{command}: {}",
            ran.stderr
        );
    }
}

#[test]
fn several_files_are_told_apart() {
    let names = ["badrkey", "cm_rping"];
    let lines = output("messages", "json", &names, &[]);
    let files: Vec<String> = lines
        .lines()
        .map(|line| {
            let message: Value = serde_json::from_str(line).unwrap();
            text(&message, "file")
                .rsplit('/')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(files[0], "badrkey.pcap");
    assert_eq!(files[1], "cm_rping.pcap");
    let memory: Value = serde_json::from_str(&output("memory", "json", &names, &[])).unwrap();
    let refused = &memory["regions"][0]["refused"]["accesses"][0];
    assert!(text(refused, "file").ends_with("badrkey.pcap"), "{refused}");
    assert_eq!(list(&memory["capture"], "files").len(), 2);
}

#[test]
fn what_was_skipped_is_counted_by_reason() {
    let document = document("flows", "vlan_write");
    let capture = &document["capture"];
    let skipped: u64 = capture["skipped"]
        .as_object()
        .unwrap()
        .values()
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert!(skipped > 0, "{capture}");
    let roce = number(capture, "roce_packets").unwrap();
    assert_eq!(number(capture, "packets"), Some(roce + skipped));
}
