//! The same traffic in other files: byte orders, time resolutions, pcapng in
//! its many shapes, compression, pipes and snapshot lengths must not change
//! what the packets say.

mod common;

use common::capfile::{Block, ETHERNET, Interface, Pkt, Section, pcapng};
use common::{
    VARIED, assert_icrc_valid, assert_same_wire, capture, number, plain, rows_of, run_with_stdin,
    summary_of, text, tool_available, truncated,
};
use serde_json::Value;
use std::io::Write;

/// Times of the rows must be these, within the nanosecond that a clock whose
/// rate is a power of two costs.
fn assert_times(what: &str, rows: &[Value], times: &[u64]) {
    assert_eq!(rows.len(), times.len(), "{what}");
    for (row, time) in rows.iter().zip(times) {
        let seen = number(row, "ts_ns").unwrap();
        assert!(seen.abs_diff(*time) <= 1, "{what}: {seen} is not {time}");
    }
}

/// Cut packets keep every header that was captured whole, say that they are
/// cut, and make no claim about a checksum that is not there.
#[test]
fn snapshot_length() {
    for name in VARIED {
        for snaplen in [64, 128] {
            let what = format!("{name} cut at {snaplen}");
            let cut = capture(name).cut(snaplen).pcap();
            let rows = rows_of("cut.pcap", &cut);
            let mut whole = plain(name);
            // In an IPv6 frame the BTH ends at byte 74. Such packets may be
            // listed by what is left or not at all, but not pass unmentioned.
            if snaplen < 74 && rows.is_empty() && name == "v6_write" {
                let summary = summary_of(&cut);
                let said = summary.contains("cut") || summary.contains("truncated");
                assert!(said, "{what}: {summary}");
                whole.clear();
            }
            assert_eq!(rows.len(), whole.len(), "{what}");
            for (full, cut) in whole.iter().zip(&rows) {
                check_cut(&what, snaplen as u64, full, cut);
            }
        }
    }
}

fn check_cut(what: &str, snaplen: u64, full: &Value, cut: &Value) {
    // The payload's length is in the headers, however little was captured.
    const BTH: [&str; 17] = [
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
        "len",
        "payload_len",
    ];
    let len = number(full, "len").unwrap();
    let is_cut = len > snaplen;
    assert_eq!(number(cut, "caplen"), Some(len.min(snaplen)), "{what}");
    assert_eq!(truncated(cut), is_cut, "{what}: truncated\n{cut}");
    let icrc = if is_cut { "unverifiable" } else { "valid" };
    assert_eq!(text(cut, "icrc"), icrc, "{what}: icrc\n{cut}");
    // What was captured of an IPv6 packet at 64 bytes is only the first half
    // word of the BTH; the rest may not be made up.
    let v6 = text(full, "src").contains(':');
    let bth_end = if v6 { 74 } else { 54 };
    if len.min(snaplen) < bth_end {
        for field in ["dest_qp", "psn"] {
            let shown = cut.get(field);
            assert!(shown.is_none() || shown == full.get(field), "{what}: {cut}");
        }
        return;
    }
    for field in BTH {
        assert_eq!(cut.get(field), full.get(field), "{what}: {field}\n{cut}");
    }
    for (header, size) in [("reth", 16), ("aeth", 4), ("deth", 8), ("atomic", 28)] {
        // Only the first header after the BTH occurs in these fixtures, but
        // for the AETH in front of an atomic's answer.
        if bth_end + size <= snaplen {
            assert_eq!(cut.get(header), full.get(header), "{what}: {header}");
        } else if let Some(partial) = cut.get(header) {
            assert_eq!(Some(partial), full.get(header), "{what}: {header} invented");
        }
    }
}

/// Big-endian files and nanosecond files, alone and together.
#[test]
fn classic_pcap_of_every_kind() {
    for name in VARIED {
        let mut capture = capture(name);
        for (n, packet) in capture.packets.iter_mut().enumerate() {
            packet.ts_ns += n as u64 * 7 % 1000;
        }
        for (big, nano) in [(true, false), (false, true), (true, true)] {
            let what = format!("{name}: big-endian {big}, nanoseconds {nano}");
            let rows = rows_of("a.pcap", &capture.pcap_as(big, nano));
            assert_same_wire(&what, &plain(name), &rows);
            assert_icrc_valid(&what, &rows);
            let unit = if nano { 1 } else { 1000 };
            let times: Vec<u64> = capture.packets.iter().map(|p| p.ts_ns).collect();
            let times: Vec<u64> = times.iter().map(|t| t / unit * unit).collect();
            assert_times(&what, &rows, &times);
        }
    }
}

/// The packets of a fixture dealt in turn to `interfaces`, as one section.
fn dealt(name: &str, big_endian: bool, interfaces: Vec<Interface>) -> Section {
    let mut packets = capture(name).packets;
    for (n, packet) in packets.iter_mut().enumerate() {
        packet.iface = (n % interfaces.len()) as u32;
        packet.ts_ns += n as u64 * 7 % 1000;
    }
    Section::new(big_endian, interfaces, packets)
}

fn times(section: &Section) -> Vec<u64> {
    let packets = section.packets.iter();
    packets
        .map(|p| section.interfaces[p.iface as usize].rounded(p.ts_ns))
        .collect()
}

/// pcapng of both byte orders, two interfaces with clocks of different
/// resolution: decimal, a power of two (2^30 and 2^20 ticks a second), the
/// default.
#[test]
fn pcapng_interfaces_with_their_own_clocks() {
    let clocks = [
        (Some(6), Some(9)),
        (Some(9), Some(0x9e)),
        (Some(0x94), None),
        (None, Some(3)),
    ];
    for name in VARIED {
        for big_endian in [false, true] {
            for (a, b) in clocks {
                let what = format!("{name}: big-endian {big_endian}, {a:?} and {b:?}");
                let interfaces = vec![Interface::ethernet(a), Interface::ethernet(b)];
                let section = dealt(name, big_endian, interfaces);
                let rows = rows_of("a.pcapng", &section.bytes());
                assert_same_wire(&what, &plain(name), &rows);
                assert_icrc_valid(&what, &rows);
                assert_times(&what, &rows, &times(&section));
            }
        }
    }
}

/// An interface whose clock has an offset in seconds.
#[test]
fn pcapng_clock_offset() {
    let mut interface = Interface::ethernet(Some(9));
    interface.tsoffset = Some(1_600_000_000);
    let section = dealt("write_1k", false, vec![interface]);
    let rows = rows_of("a.pcapng", &section.bytes());
    assert_same_wire("offset", &plain("write_1k"), &rows);
    assert_times("offset", &rows, &times(&section));
}

/// Comments, statistics, name resolution, custom and unknown blocks stand
/// between the packets of real files and are none.
#[test]
fn pcapng_with_everything_around_the_packets() {
    for name in VARIED {
        for big_endian in [false, true] {
            let interfaces = vec![Interface::ethernet(None), Interface::ethernet(Some(9))];
            let mut section = dealt(name, big_endian, interfaces);
            section.comments = true;
            section.statistics = true;
            section.strangers = true;
            let rows = rows_of("a.pcapng", &section.bytes());
            assert_same_wire(name, &plain(name), &rows);
            assert_icrc_valid(name, &rows);
            assert_times(name, &rows, &times(&section));
            let frames: Vec<u64> = rows.iter().map(|r| number(r, "frame").unwrap()).collect();
            let expected: Vec<u64> = (1..=rows.len() as u64).collect();
            assert_eq!(frames, expected, "{name}: only packets are numbered");
        }
    }
}

/// A second section starts afresh: its own byte order, and interfaces whose
/// numbers, clocks and link types are not those of the first.
#[test]
fn pcapng_second_section() {
    for name in VARIED {
        let first = vec![Interface::ethernet(Some(6)), Interface::ethernet(Some(9))];
        let first = dealt(name, false, first);
        let mut raw = Interface::ethernet(Some(0x9e));
        raw.link = 101;
        let mut second = dealt(name, true, vec![raw, Interface::ethernet(None)]);
        for packet in second.packets.iter_mut().filter(|p| p.iface == 0) {
            packet.data.drain(..14);
            packet.len -= 14;
        }
        let rows = rows_of("a.pcapng", &pcapng(&[first.clone(), second.clone()]));
        let plain = plain(name);
        assert_same_wire(name, &[plain.clone(), plain].concat(), &rows);
        assert_icrc_valid(name, &rows);
        assert_times(name, &rows, &[times(&first), times(&second)].concat());
    }
}

/// Simple Packet Blocks and the obsolete Packet Blocks hold packets too.
#[test]
fn pcapng_other_packet_blocks() {
    for block in [Block::Simple, Block::Old] {
        for big_endian in [false, true] {
            let what = format!("{block:?}, big-endian {big_endian}");
            let mut interfaces = vec![Interface::ethernet(Some(9))];
            if block == Block::Old {
                interfaces.push(Interface::ethernet(Some(6)));
            }
            let mut section = dealt("write_1k", big_endian, interfaces);
            section.block = block;
            let rows = rows_of("a.pcapng", &section.bytes());
            assert_same_wire(&what, &plain("write_1k"), &rows);
            assert_icrc_valid(&what, &rows);
            if block == Block::Old {
                assert_times(&what, &rows, &times(&section));
            }
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Compresses with the `zstd` command, or tells why not.
fn zstd(bytes: &[u8]) -> Option<Vec<u8>> {
    if !tool_available("zstd") {
        eprintln!("skipped: the zstd command is not installed");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = common::write(dir.path(), "plain", bytes);
    let output = std::process::Command::new("zstd")
        .args(["-q", "-c"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success());
    Some(output.stdout)
}

/// gzip and Zstandard files are known by their contents, whatever their name,
/// and so are concatenated gzip members.
#[test]
fn compressed() {
    for name in VARIED {
        let pcap = capture(name).pcap();
        let section = dealt(name, true, vec![Interface::ethernet(Some(9))]);
        let (head, tail) = pcap.split_at(pcap.len() / 2);
        let mut files = vec![
            ("a.pcap.gz", gzip(&pcap)),
            ("a.pcapng.gz", gzip(&section.bytes())),
            ("no-extension", gzip(&pcap)),
            ("members.pcap.gz", [gzip(head), gzip(tail)].concat()),
        ];
        files.extend(zstd(&pcap).map(|bytes| ("a.pcap.zst", bytes)));
        files.extend(zstd(&pcap).map(|bytes| ("misnamed.pcap", bytes)));
        for (file, bytes) in files {
            let rows = rows_of(file, &bytes);
            let what = format!("{name} as {file}");
            assert_same_wire(&what, &plain(name), &rows);
            assert_icrc_valid(&what, &rows);
        }
    }
}

/// `-` reads standard input, of any format, through a pipe.
#[test]
fn standard_input() {
    for name in VARIED {
        let pcap = capture(name).pcap();
        let section = dealt(name, true, vec![Interface::ethernet(Some(9))]);
        let mut inputs = vec![
            ("pcap", pcap.clone()),
            ("pcapng", section.bytes()),
            ("gzip", gzip(&pcap)),
        ];
        inputs.extend(zstd(&pcap).map(|bytes| ("zstd", bytes)));
        for (format, bytes) in inputs {
            let what = format!("{name}: {format} on stdin");
            let run = run_with_stdin(&["packets", "--format", "json", "-"], &bytes);
            let rows = run.ok(&what).rows();
            assert_same_wire(&what, &plain(name), &rows);
            assert_icrc_valid(&what, &rows);
        }
    }
}

/// A capture far longer than any reader's buffer, with a jumbo frame of
/// another protocol in it: records that straddle buffers are neither lost nor
/// changed, and the place of damage is counted from the start of the file.
#[test]
fn longer_than_any_buffer() {
    let mut capture = capture("write_64k");
    let mut jumbo = vec![0x5a; 250_000];
    jumbo[12..14].copy_from_slice(&[0x88, 0xb5]);
    let jumbo = Pkt::whole(capture.packets[0].ts_ns, jumbo);
    let mut expected = plain("write_64k");
    let (packets, rows) = (capture.packets.clone(), expected.clone());
    for _ in 0..14 {
        capture.packets.push(jumbo.clone());
        capture.packets.extend(packets.clone());
        expected.extend(rows.clone());
    }
    let section = Section::new(
        true,
        vec![Interface::ethernet(Some(9))],
        capture.packets.clone(),
    );
    let (pcap, pcapng) = (capture.pcap(), section.bytes());
    assert!(pcap.len() > 8_000_000);
    let stdin = run_with_stdin(&["packets", "--format", "json", "-"], &pcap);
    for (what, rows) in [
        ("pcap", rows_of("a.pcap", &pcap)),
        ("pcapng", rows_of("a.pcapng", &pcapng)),
        ("gzip", rows_of("a.pcap.gz", &gzip(&pcap))),
        ("stdin", stdin.ok("stdin").rows()),
    ] {
        assert_same_wire(what, &expected, &rows);
        assert_icrc_valid(what, &rows);
        let last = rows.last().and_then(|row| number(row, "frame"));
        assert_eq!(last, Some(capture.packets.len() as u64), "{what}");
    }
    let last = capture.packets.last().unwrap().data.len() + 16;
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, last) in [
        ("cut.pcap", pcap, last),
        ("cut.pcapng", pcapng, last.next_multiple_of(4) + 16),
    ] {
        let cut = common::write(dir.path(), name, &bytes[..bytes.len() - 1]);
        let run = common::packets(&cut);
        assert_eq!(run.status, 2, "{name}");
        assert_eq!(run.rows().len(), expected.len() - 1, "{name}");
        for number in [capture.packets.len(), bytes.len() - last] {
            let number = number.to_string();
            assert!(run.stderr.contains(&number), "{number} in {}", run.stderr);
        }
    }
}

/// Several files are read one after the other, whatever each one's format.
#[test]
fn several_files() {
    let dir = tempfile::tempdir().unwrap();
    let first = common::write(dir.path(), "a.pcap", &capture("write_1k").pcap());
    let section = dealt("v6_write", true, vec![Interface::ethernet(Some(9))]);
    let second = common::write(dir.path(), "b.pcapng", &section.bytes());
    let third = common::write(dir.path(), "c.gz", &gzip(&capture("cm_rping").pcap()));
    let paths = [first, second, third].map(|path| path.display().to_string());
    let mut args = vec!["packets", "--format", "json"];
    args.extend(paths.iter().map(String::as_str));
    let rows = common::run(&args).ok("three files").rows();
    let expected = ["write_1k", "v6_write", "cm_rping"].map(plain).concat();
    assert_same_wire("three files", &expected, &rows);
    assert_icrc_valid("three files", &rows);
}

/// Bytes that Ethernet adds behind the IP packet belong to no payload, and
/// the ICRC is where the IP length says.
#[test]
fn ethernet_trailer() {
    for name in VARIED {
        for trailer in [1, 4, 18] {
            let capture = capture(name).map(ETHERNET, |frame| {
                let mut frame = frame.to_vec();
                frame.resize(frame.len() + trailer, 0xa5);
                frame
            });
            let rows = rows_of("a.pcap", &capture.pcap());
            assert_same_wire(name, &plain(name), &rows);
            assert_icrc_valid(name, &rows);
        }
    }
}
