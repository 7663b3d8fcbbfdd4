//! More tests for bugs that were found: of what is said, and how.

mod common;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use common::{
    capfile::{Capture, ETHERNET, Pkt},
    craft, run,
    talk::Talk,
    write,
};

/// Writes packets down as a capture file.
fn capture_of(dir: &Path, name: &str, packets: Vec<Pkt>) -> PathBuf {
    let mut capture = Capture::of(ETHERNET, []);
    capture.packets = packets;
    write(dir, name, &capture.pcap_as(false, true))
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
