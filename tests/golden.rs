//! Golden outputs: what a user sees, on real captures, letter by letter. A
//! change of any of them is read by eye before it is accepted.

mod common;

use common::{fixture, run};

/// What the command prints for a fixture.
fn output(fixture_name: &str, args: &[&str]) -> String {
    let path = fixture(fixture_name);
    let mut all: Vec<&str> = args.to_vec();
    let path = path.to_str().expect("fixture paths are UTF-8");
    all.push(path);
    let ran = run(&all);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
    // Documents name the file; where this clone lies is nothing to remember.
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    ran.stdout.replace(here, "")
}

macro_rules! golden {
    ($name:ident, $fixture:literal, [$($arg:literal),*]) => {
        #[test]
        fn $name() {
            insta::assert_snapshot!(output($fixture, &[$($arg),*]));
        }
    };
}

// The table as it is piped: one line a packet, whatever the width.
golden!(table_write, "write_1k", ["--limit", "6"]);
golden!(table_connection, "cm_rping", []);
golden!(table_atomic, "atomic_fa", ["--limit", "4"]);
golden!(table_datagram, "send_ud", ["--limit", "2"]);
golden!(table_bad_rkey, "badrkey", []);
golden!(table_receiver_not_ready, "imm", []);
golden!(table_retries, "retry_exceeded", []);
golden!(table_read_responses, "read_8k", ["--limit", "10"]);
golden!(table_vlan_ipv6, "vlan_write", []);
golden!(table_congestion, "write_ecn", ["--limit", "40"]);

// Folded to a terminal's width, and in colour.
golden!(
    table_80_columns,
    "write_1k",
    ["--limit", "4", "--width", "80"]
);
golden!(
    table_80_columns_ipv6,
    "v6_write",
    ["--limit", "4", "--width", "80"]
);
golden!(
    table_160_columns,
    "cm_rping",
    ["--limit", "6", "--width", "160"]
);
golden!(table_colour, "badrkey", ["--color", "always"]);

// Filters.
golden!(filter_naks, "send_loss", ["--nak"]);
golden!(filter_connection, "cm_rping", ["--cm"]);
golden!(filter_psn, "write_1k", ["--psn", "0xbb7a90..0xbb7a91"]);
golden!(
    filter_all_hold,
    "cm_rping",
    [
        "--op",
        "read,write",
        "--host",
        "10.0.0.2",
        "--qp",
        "26",
        "--limit",
        "3"
    ]
);
golden!(filter_none_left, "write_1k", ["--host", "192.0.2.1"]);

// Field by field, and the bytes.
golden!(verbose_write, "write_1k", ["-v", "-q", "--limit", "2"]);
golden!(
    verbose_connection_request,
    "cm_rping",
    ["-v", "-q", "--limit", "1"]
);
golden!(
    verbose_vlan_ipv6,
    "vlan_write",
    ["-v", "-q", "--limit", "1"]
);
golden!(verbose_atomic, "atomic_fa", ["-v", "-q", "--limit", "2"]);
golden!(bytes_with_table, "badrkey", ["-x", "-q"]);
golden!(bytes_with_fields, "badrkey", ["-vx", "-q"]);

// For programs.
golden!(json_connection, "cm_rping", ["--format", "json"]);
golden!(json_write, "write_1k", ["--format", "json", "--limit", "2"]);
golden!(
    json_atomic,
    "atomic_fa",
    ["--format", "json", "--limit", "2"]
);
golden!(
    csv_connection,
    "cm_rping",
    ["--format", "csv", "--limit", "8"]
);
golden!(csv_receiver_not_ready, "imm", ["--format", "csv"]);

// Flows, messages, memory.
golden!(flows_connection, "cm_rping", ["flows"]);
golden!(flows_80_columns, "cm_rping", ["flows", "--width", "80"]);
golden!(flows_loss, "lossy_receiver", ["flows"]);
golden!(flows_read_loss, "read_loss", ["flows", "-q"]);
golden!(flows_refused, "cm_refused", ["flows"]);
golden!(flows_reuse, "qp_reuse", ["flows", "--width", "100"]);
golden!(flows_congestion, "write_ecn", ["flows"]);
golden!(flows_colour, "rnr", ["flows", "--color", "always"]);
golden!(flows_json, "badrkey", ["flows", "--format", "json"]);
golden!(
    flows_json_connection,
    "cm_rping",
    ["flows", "--format", "json", "--qp", "0x1a"]
);
golden!(flows_csv, "lossy_receiver", ["flows", "--format", "csv"]);
golden!(
    messages_connection,
    "cm_rping",
    ["messages", "--limit", "6"]
);
golden!(
    messages_loss,
    "lossy_receiver",
    ["messages", "--limit", "5"]
);
golden!(messages_bad_rkey, "badrkey", ["messages"]);
golden!(
    messages_80_columns,
    "v6_write",
    ["messages", "--limit", "3", "--width", "80"]
);
golden!(
    messages_json,
    "read_8k",
    ["messages", "--format", "json", "--limit", "2"]
);
golden!(
    messages_csv,
    "atomic_fa",
    ["messages", "--format", "csv", "--limit", "2"]
);
golden!(memory_connection, "cm_rping", ["memory"]);
golden!(memory_bad_rkey, "badrkey", ["memory"]);
golden!(memory_bad_rkeys, "bad_rkey", ["memory"]);
golden!(memory_80_columns, "atomic_fa", ["memory", "--width", "80"]);
golden!(memory_json, "cm_rping", ["memory", "--format", "json"]);
golden!(memory_csv, "badrkey", ["memory", "--format", "csv"]);

/// The help text is part of the product.
#[test]
fn help() {
    insta::assert_snapshot!(run(&["packets", "--help"]).stdout);
}

#[test]
fn help_messages() {
    insta::assert_snapshot!(run(&["messages", "--help"]).stdout);
}

// What is wrong, with its evidence.
golden!(health_loss, "send_loss", ["health", "--width", "80"]);
golden!(health_refused, "badrkey", ["health"]);
golden!(
    health_peer_gone,
    "retry_exceeded",
    ["health", "--width", "100"]
);
golden!(health_several, "psn_wrap", ["health", "--width", "100"]);
golden!(health_note, "ack_loss", ["health"]);
golden!(health_nothing, "write_1k", ["health"]);
golden!(health_colour, "imm", ["health", "--color", "always"]);
golden!(health_json, "cm_refused", ["health", "--format", "json"]);

#[test]
fn help_health() {
    insta::assert_snapshot!(run(&["health", "--help"]).stdout);
}
