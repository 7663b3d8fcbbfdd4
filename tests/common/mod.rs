//! Helpers the integration tests share: running the command, reading its JSON
//! and comparing packets field by field.

// Every test binary compiles this module and uses its own part of it.
#![allow(dead_code)]

pub mod capfile;
pub mod craft;
pub mod flaws;
pub mod mangle;
#[cfg(all(feature = "live", target_os = "linux"))]
pub mod net;
pub mod recount;
pub mod seen;
pub mod talk;
pub mod tracked;
pub mod tshark;
pub mod tunnel;
pub mod vm;

use assert_cmd::Command;
use serde_json::Value;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Fixtures small enough to rewrite in dozens of ways: together they hold
/// every header the tests look at, over IPv4 and IPv6.
pub const VARIED: [&str; 7] = [
    "write_1k",
    "send_3k",
    "read_8k",
    "atomic_fa",
    "v6_write",
    "badrkey",
    "cm_rping",
];

/// What a packet says on the wire, whatever file or tunnel it came in.
pub const WIRE_FIELDS: [&str; 29] = [
    "src",
    "dst",
    "sport",
    "dscp",
    "ecn",
    "ttl",
    "opcode",
    "op",
    "dest_qp",
    "psn",
    "ack_req",
    "se",
    "migreq",
    "pad",
    "pkey",
    "fecn",
    "becn",
    "payload_len",
    "reth",
    "aeth",
    "deth",
    "atomic",
    "atomic_ack",
    "imm",
    "ieth_rkey",
    "xrc_srq",
    "cm",
    "roce",
    "rdeth",
];

/// What one run of the command left behind.
#[derive(Debug)]
pub struct Run {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit status.
    pub status: i32,
}

impl Run {
    /// Standard output as JSON lines.
    pub fn rows(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| {
                let row = serde_json::from_str(line);
                without_nulls(row.unwrap_or_else(|e| panic!("not JSON ({e}): {line}")))
            })
            .collect()
    }

    /// Panics unless the command ended well and said nothing on stderr.
    pub fn ok(self, what: &str) -> Self {
        assert_eq!(self.status, 0, "{what}: exit status; {}", self.stderr);
        assert_eq!(self.stderr, "", "{what}: stderr");
        self
    }
}

/// Runs the command; it is killed after a minute so that nothing waits for ever.
pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Run {
    finish(command().args(args))
}

/// Runs the command with these bytes on standard input, through a pipe.
pub fn run_with_stdin<S: AsRef<OsStr>>(args: &[S], input: &[u8]) -> Run {
    finish(command().args(args).write_stdin(input))
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce-sniff"));
    command.timeout(Duration::from_secs(60));
    command.env_remove("RUST_LOG");
    command
}

fn finish(command: &mut Command) -> Run {
    let output = command.output().expect("the command under test starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = output.status.code();
    Run {
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        status: status.unwrap_or_else(|| panic!("killed by a signal or after 60 s: {stderr}")),
        stderr,
    }
}

/// Runs `packets --format json` on a file.
pub fn packets(path: &Path) -> Run {
    run(&[
        "packets".as_ref(),
        "--format".as_ref(),
        "json".as_ref(),
        path.as_os_str(),
    ])
}

/// The JSON rows of a whole, readable file.
pub fn rows(path: &Path) -> Vec<Value> {
    packets(path).ok(&path.display().to_string()).rows()
}

/// The JSON rows of a file with these contents; `name` gives its extension.
pub fn rows_of(name: &str, contents: &[u8]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    rows(&write(dir.path(), name, contents))
}

/// The table of `packets` for a file with these contents; its summary counts
/// what was skipped and why.
pub fn summary_of(contents: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "a.pcap", contents);
    let run = run(&["packets".as_ref(), path.as_os_str()]);
    run.ok("packets as a table").stdout
}

/// Writes a file in a directory and returns its path.
pub fn write(dir: &Path, name: &str, contents: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, contents).unwrap();
    path
}

/// The path of a fixture by its name.
pub fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    fixtures.join(format!("{name}.pcap"))
}

/// The packets of a fixture.
pub fn capture(name: &str) -> capfile::Capture {
    capfile::Capture::read(&fixture(name))
}

/// The JSON rows of a fixture as it is.
pub fn plain(name: &str) -> Vec<Value> {
    rows(&fixture(name))
}

/// The names of all fixtures, in order.
pub fn fixtures() -> Vec<String> {
    let directory = fixture("any").parent().unwrap().to_owned();
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension() == Some(OsStr::new("pcap")))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 17, "fixtures are missing: {names:?}");
    names
}

/// What is known about the fixtures, by their names.
pub fn truth() -> Value {
    let files = ["truth.json", "truth-faults.json"];
    let all = files.map(|file| {
        let path = fixture("any").with_file_name(file);
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str::<serde_json::Map<String, Value>>(&text).unwrap()
    });
    Value::Object(all.into_iter().flatten().collect())
}

/// Whether tshark can be asked. Without it a test returns early, and says so;
/// where the build must have it, `ROCE_SNIFF_REQUIRE_TSHARK=1` makes that an
/// error instead.
pub fn tshark_available() -> bool {
    if tool_available("tshark") {
        return true;
    }
    let required = std::env::var("ROCE_SNIFF_REQUIRE_TSHARK").is_ok_and(|v| v == "1");
    assert!(
        !required,
        "ROCE_SNIFF_REQUIRE_TSHARK=1 but tshark is not here"
    );
    eprintln!("skipped: tshark is not installed, nothing to compare with");
    false
}

/// Whether a program answers `--version`.
pub fn tool_available(name: &str) -> bool {
    std::process::Command::new(name)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Leaves out members that are null: the contract writes absent as absent, and
/// a reader treats both alike.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => members
            .into_iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| (k, without_nulls(v)))
            .collect(),
        other => other,
    }
}

/// The value at a dotted path such as `reth.va`.
pub fn at<'v>(row: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(row, |value, key| value.get(key))
}

/// An integer at a dotted path: a JSON number, or a string of hex digits of
/// any width, or a boolean.
pub fn number(row: &Value, path: &str) -> Option<u64> {
    match at(row, path)? {
        Value::Number(n) => n.as_u64(),
        Value::Bool(b) => Some(u64::from(*b)),
        Value::String(s) => hex(s),
        _ => None,
    }
}

/// Hex digits with or without `0x`.
pub fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// Text at a dotted path.
pub fn text<'v>(row: &'v Value, path: &str) -> &'v str {
    at(row, path).and_then(Value::as_str).unwrap_or("")
}

/// An address at a dotted path; an IPv4-mapped one counts as IPv4.
pub fn address(row: &Value, path: &str) -> Option<IpAddr> {
    let address: IpAddr = at(row, path)?.as_str()?.parse().ok()?;
    Some(address.to_canonical())
}

/// A list of numbers; absent is empty.
pub fn numbers(row: &Value, path: &str) -> Vec<u64> {
    at(row, path)
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_u64).collect())
        .unwrap_or_default()
}

/// The `encap` names; absent is empty.
pub fn encap(row: &Value) -> Vec<&str> {
    at(row, "encap")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// Whether `truncated` is set; absent means no.
pub fn truncated(row: &Value) -> bool {
    number(row, "truncated") == Some(1)
}

/// The kind of an AETH, as one of four words.
pub fn aeth_kind(row: &Value) -> &'static str {
    let kind = text(row, "aeth.kind").to_lowercase();
    match () {
        () if kind.contains("rnr") => "rnr",
        () if kind.starts_with("nak") => "nak",
        () if kind.starts_with("ack") => "ack",
        () if kind.starts_with("res") => "reserved",
        () => panic!("no such AETH kind: {kind:?} in {row}"),
    }
}

/// Panics unless both lists hold the same packets on the wire, in order.
pub fn assert_same_wire(what: &str, plain: &[Value], variant: &[Value]) {
    assert_same(what, &WIRE_FIELDS, plain, variant);
}

/// Panics unless both lists agree in the fields named.
pub fn assert_same(what: &str, fields: &[&str], plain: &[Value], variant: &[Value]) {
    assert_eq!(variant.len(), plain.len(), "{what}: packets listed");
    for (a, b) in plain.iter().zip(variant) {
        for field in fields {
            assert_eq!(b.get(field), a.get(field), "{what}: {field}\n{a}\n{b}");
        }
    }
}

/// Panics unless every packet's ICRC was checked and found right.
pub fn assert_icrc_valid(what: &str, rows: &[Value]) {
    for row in rows {
        assert_eq!(text(row, "icrc"), "valid", "{what}: icrc of {row}");
    }
}
