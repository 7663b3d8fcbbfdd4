//! Files that are cut short, are something else, or hold nonsense: what comes
//! before the damage is listed, one line says where the damage is, and nothing
//! panics.

mod common;

use common::capfile::{Capture, Interface, Section};
use common::{Run, assert_same, capture, number, packets, plain, tool_available, write};
use proptest::prelude::*;
use roce_sniff::source::{Batch, FileSource, PacketSource};
use std::io::{Read, Write};
use std::path::Path;

/// Everything a row says but for its time, which differs between formats.
fn all_fields() -> Vec<&'static str> {
    let mut fields = common::WIRE_FIELDS.to_vec();
    fields.extend(["frame", "icrc", "caplen", "len"]);
    fields
}

/// Runs `packets` on a file with these contents.
fn listed(name: &str, contents: &[u8]) -> Run {
    let dir = tempfile::tempdir().unwrap();
    packets(&write(dir.path(), name, contents))
}

/// The numbers in a line; digits of hexadecimal numbers count as one.
fn numbers_in(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_alphanumeric())
        .filter_map(|word| match word.strip_prefix("0x") {
            Some(digits) => common::hex(digits),
            None => word.parse().ok(),
        })
        .collect()
}

/// The one line on stderr, which must name the file.
fn complaint<'r>(what: &str, run: &'r Run, file: &str) -> &'r str {
    assert_eq!(run.status, 2, "{what}: exit status; {}", run.stderr);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{what}: one line, not {lines:?}");
    assert!(lines[0].contains(file), "{what}: names the file: {lines:?}");
    assert!(!lines[0].contains("panicked"), "{what}: {lines:?}");
    lines[0]
}

/// Checks a file cut in its record number `whole + 1`, which begins at
/// `start`: the records before are listed, the complaint tells both numbers.
fn check_cut(
    name: &str,
    bytes: &[u8],
    cut: usize,
    whole: usize,
    start: usize,
    plain: &[serde_json::Value],
) {
    let what = format!("{name} cut at byte {cut}");
    let run = listed(name, &bytes[..cut]);
    let rows = run.rows();
    assert_same(&what, &all_fields(), &plain[..whole], &rows);
    if cut == start {
        assert_eq!(
            (run.status, run.stderr.as_str()),
            (0, ""),
            "{what}: ends between records"
        );
        return;
    }
    let line = complaint(&what, &run, name);
    let numbers = numbers_in(line);
    let record = whole as u64 + 1;
    assert!(
        numbers.contains(&record),
        "{what}: record {record} in: {line}"
    );
    let damage = start as u64..=cut as u64;
    assert!(
        numbers.iter().any(|n| damage.contains(n)),
        "{what}: an offset in {damage:?} in: {line}"
    );
}

/// Byte offsets to cut a record at: its start, inside its header, between
/// header and data, inside the data, one byte before its end.
fn cuts(start: usize, header: usize, end: usize) -> [usize; 6] {
    [
        start,
        start + 1,
        start + header - 1,
        start + header,
        usize::midpoint(start + header, end),
        end - 1,
    ]
}

/// Classic pcap cut in the first, a middle and the last record.
#[test]
fn truncated_pcap() {
    for name in ["write_1k", "cm_rping"] {
        let capture = capture(name);
        let plain = plain(name);
        for big_endian in [false, true] {
            let bytes = capture.pcap_as(big_endian, false);
            let mut start = 24;
            for (n, packet) in capture.packets.iter().enumerate() {
                let end = start + 16 + packet.data.len();
                if n == 0 || n == 17 || n + 1 == capture.packets.len() {
                    for cut in cuts(start, 16, end) {
                        check_cut("cut.pcap", &bytes, cut, n, start, &plain);
                    }
                }
                start = end;
            }
        }
    }
}

/// pcapng cut in the first, a middle and the last packet block.
#[test]
fn truncated_pcapng() {
    let packets = capture("write_1k").packets;
    let plain = plain("write_1k");
    for big_endian in [false, true] {
        let section = Section::new(
            big_endian,
            vec![Interface::ethernet(Some(9))],
            packets.clone(),
        );
        let bytes = section.bytes();
        let sizes: Vec<usize> = packets
            .iter()
            .map(|p| 32 + p.data.len().next_multiple_of(4))
            .collect();
        let mut start = bytes.len() - sizes.iter().sum::<usize>();
        for (n, size) in sizes.iter().enumerate() {
            let end = start + size;
            if n == 0 || n == 17 || n + 1 == sizes.len() {
                for cut in cuts(start, 28, end) {
                    check_cut("cut.pcapng", &bytes, cut, n, start, &plain);
                }
            }
            start = end;
        }
    }
}

/// A file cut inside its own header is no capture, and says so.
#[test]
fn truncated_file_headers() {
    let pcap = capture("badrkey").pcap();
    for cut in [1, 4, 23] {
        let run = listed("short.pcap", &pcap[..cut]);
        complaint(&format!("pcap header cut at {cut}"), &run, "short.pcap");
        assert_eq!(run.stdout, "");
    }
    let section = Section::new(false, vec![Interface::ethernet(None)], Vec::new());
    let pcapng = section.bytes();
    for cut in [4, 8, 12, 27, 30, pcapng.len() - 1] {
        let run = listed("short.pcapng", &pcapng[..cut]);
        complaint(&format!("pcapng header cut at {cut}"), &run, "short.pcapng");
        assert_eq!(run.stdout, "");
    }
}

/// How many whole records these first bytes of a pcap file hold.
fn whole_records(pcap: &[u8], available: usize) -> usize {
    let mut end = 24;
    let packets = Capture::parse(pcap).packets;
    packets
        .iter()
        .take_while(|p| {
            end += 16 + p.data.len();
            end <= available
        })
        .count()
}

/// Lists a compressed file that was cut; at least `least` packets, all of them
/// right, must come before the complaint.
fn check_compressed_cut(name: &str, bytes: &[u8], least: usize, plain: &[serde_json::Value]) {
    let what = format!("{name} cut at byte {}", bytes.len());
    let run = listed(name, bytes);
    let line = complaint(&what, &run, name);
    assert!(
        numbers_in(line).len() >= 2,
        "{what}: record and offset in: {line}"
    );
    let rows = run.rows();
    assert!(
        rows.len() >= least,
        "{what}: {} of {least} packets",
        rows.len()
    );
    assert_same(&what, &all_fields(), &plain[..rows.len()], &rows);
}

/// gzip cut anywhere: whatever can be decompressed is listed.
#[test]
fn truncated_gzip() {
    let pcap = capture("send_3k").pcap();
    let plain = plain("send_3k");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&pcap).unwrap();
    let gzip = encoder.finish().unwrap();
    let len = gzip.len();
    for cut in [len / 4, len / 2, len * 3 / 4, len - 9, len - 8, len - 1] {
        let mut available = Vec::new();
        // An error at the cut is what this is about; the bytes count.
        let _ = flate2::read::GzDecoder::new(&gzip[..cut]).read_to_end(&mut available);
        let least = whole_records(&pcap, available.len());
        check_compressed_cut("cut.pcap.gz", &gzip[..cut], least, &plain);
    }
}

/// Zstandard cut anywhere: whatever can be decompressed is listed.
#[test]
fn truncated_zstd() {
    if !tool_available("zstd") {
        eprintln!("skipped: the zstd command is not installed");
        return;
    }
    let pcap = capture("read_8k").pcap();
    let plain = plain("read_8k");
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "plain.pcap", &pcap);
    let tool = |args: &[&str], path: &Path| {
        let mut command = std::process::Command::new("zstd");
        command.args(args).arg(path).output().unwrap().stdout
    };
    // Small blocks, so that a cut leaves some of them whole.
    let zstd = tool(&["-q", "-c", "--ultra", "--zstd=wlog=12"], &path);
    let len = zstd.len();
    for cut in [len / 4, len / 2, len * 3 / 4, len - 4, len - 1] {
        let path = write(dir.path(), "cut.zst", &zstd[..cut]);
        let available = tool(&["-q", "-d", "-c"], &path);
        let least = whole_records(&pcap, available.len());
        check_compressed_cut("cut.pcap.zst", &zstd[..cut], least, &plain);
    }
}

/// A damaged byte inside a gzip stream is caught by its checksum.
#[test]
fn damaged_gzip() {
    let pcap = capture("send_3k").pcap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all(&pcap).unwrap();
    let mut gzip = encoder.finish().unwrap();
    let last = gzip.len() - 6;
    gzip[last] ^= 0xff;
    let run = listed("bad.pcap.gz", &gzip);
    complaint("bad checksum", &run, "bad.pcap.gz");
}

/// A record that claims gigabytes is damage, and nothing is allocated for it.
#[test]
fn absurd_lengths() {
    let plain = plain("write_1k");
    let capture = capture("write_1k");
    let mut pcap = capture.pcap();
    let start = 24
        + capture.packets[..5]
            .iter()
            .map(|p| 16 + p.data.len())
            .sum::<usize>();
    for claimed in [u32::MAX, 0x7fff_ffff, 0x4000_0000] {
        pcap[start + 8..start + 12].copy_from_slice(&claimed.to_le_bytes());
        let run = listed("huge.pcap", &pcap);
        let line = complaint("huge record", &run, "huge.pcap");
        let numbers = numbers_in(line);
        assert!(
            numbers.contains(&6) && numbers.contains(&(start as u64)),
            "{line}"
        );
        assert_same("huge record", &all_fields(), &plain[..5], &run.rows());
    }
    let section = Section::new(
        false,
        vec![Interface::ethernet(None)],
        capture.packets.clone(),
    );
    let mut pcapng = section.bytes();
    let end: usize = capture.packets[5..]
        .iter()
        .map(|p| 32 + p.data.len().next_multiple_of(4))
        .sum();
    let start = pcapng.len() - end;
    for claimed in [u32::MAX, 0x4000_0000, 0, 11] {
        pcapng[start + 4..start + 8].copy_from_slice(&claimed.to_le_bytes());
        let run = listed("huge.pcapng", &pcapng);
        complaint("huge block", &run, "huge.pcapng");
        assert_same("huge block", &all_fields(), &plain[..5], &run.rows());
    }
}

/// A capture without packets is a capture; a file without bytes is not.
#[test]
fn empty_files() {
    let section = Section::new(true, vec![Interface::ethernet(None)], Vec::new());
    let empty = Capture::of(1, []).pcap();
    for (name, contents) in [("e.pcap", &empty), ("e.pcapng", &section.bytes())] {
        let run = listed(name, contents).ok(name);
        assert_eq!(run.stdout, "", "{name}");
    }
    let run = listed("zero.pcap", b"");
    let line = complaint("no bytes", &run, "zero.pcap");
    assert!(line.to_lowercase().contains("empty"), "says why: {line}");
}

/// Text, and other files that are no captures.
#[test]
fn files_of_another_kind() {
    let text = b"No.,Time,Source,Destination\n1,0.000,10.0.0.1,10.0.0.2\n".repeat(20);
    let others: [(&str, &[u8]); 4] = [
        ("notes.txt", &text),
        (
            "image.png",
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01",
        ),
        ("zeroes.pcap", &[0; 4096]),
        ("fake.gz", b"\x1f\x8b but not really gzip"),
    ];
    for (name, contents) in others {
        let run = listed(name, contents);
        complaint(name, &run, name);
        assert_eq!(run.stdout, "", "{name}");
    }
}

/// A file that is not there, and a directory.
#[test]
fn unreadable_paths() {
    let dir = tempfile::tempdir().unwrap();
    let run = packets(&dir.path().join("nowhere.pcap"));
    let line = complaint("missing file", &run, "nowhere.pcap");
    assert!(line.contains("No such file"), "{line}");
    complaint(
        "directory",
        &packets(dir.path()),
        &dir.path().display().to_string(),
    );
}

/// A damaged file among others does not keep the others from being listed.
#[test]
fn damaged_file_among_others() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture("badrkey");
    let pcap = capture.pcap();
    let cut = write(dir.path(), "cut.pcap", &pcap[..pcap.len() - 1]);
    let whole = write(dir.path(), "whole.pcap", &pcap);
    let paths = [cut, whole].map(|path| path.display().to_string());
    let run = common::run(&["packets", "--format", "json", &paths[0], &paths[1]]);
    complaint("one of two", &run, "cut.pcap");
    let plain = plain("badrkey");
    let expected = [&plain[..plain.len() - 1], &plain[..]].concat();
    assert_eq!(run.rows().len(), expected.len());
}

/// What bytes to put where.
fn mutations() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)
}

/// Runs a mutated file; it may be read or refused, and every line that is
/// written is still JSON.
fn survives(name: &str, mut bytes: Vec<u8>, mutations: &[(prop::sample::Index, u8)]) {
    for (index, value) in mutations {
        let at = index.index(bytes.len());
        bytes[at] = *value;
    }
    let run = listed(name, &bytes);
    assert!(
        matches!(run.status, 0 | 2),
        "{}: {}",
        run.status,
        run.stderr
    );
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    for row in run.rows() {
        assert!(number(&row, "frame").is_some(), "{row}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random bytes in whole pcap files.
    #[test]
    fn mutated_pcap(which in 0..common::VARIED.len(), mutations in mutations()) {
        let path = common::fixture(common::VARIED[which]);
        survives("mutated.pcap", std::fs::read(path).unwrap(), &mutations);
    }

    /// Random bytes in whole pcapng files with all kinds of blocks.
    #[test]
    fn mutated_pcapng(big_endian: bool, mutations in mutations()) {
        let interfaces = vec![Interface::ethernet(Some(9)), Interface::ethernet(None)];
        let mut section = Section::new(big_endian, interfaces, capture("cm_rping").packets);
        section.comments = true;
        section.statistics = true;
        section.strangers = true;
        survives("mutated.pcapng", section.bytes(), &mutations);
    }

    /// Random bytes where they hurt most: in the headers of packets, behind
    /// file structures that are right.
    #[test]
    fn mutated_packets(which in 0..common::VARIED.len(), mutations in mutations()) {
        let mut capture = capture(common::VARIED[which]);
        for (n, (index, value)) in mutations.iter().enumerate() {
            let packets = capture.packets.len();
            let data = &mut capture.packets[n % packets].data;
            let at = index.index(data.len().min(120));
            data[at] = *value;
        }
        let run = listed("headers.pcap", &capture.pcap());
        prop_assert_eq!((run.status, run.stderr.as_str()), (0, ""));
        run.rows();
    }
}

/// Reads a whole file in this process and decodes what is in it; returns the
/// number of packets and of their bytes.
fn read_through(bytes: Vec<u8>, eager: bool) -> (u64, usize) {
    let input = Box::new(std::io::Cursor::new(bytes));
    let Ok(mut source) = FileSource::new("a file".into(), 0, input, eager) else {
        return (0, 0);
    };
    let (mut count, mut sum) = (0, 0);
    let mut batch = Batch::new();
    while let Ok(true) = source.next_batch(&mut batch) {
        for raw in batch.packets() {
            count += 1;
            sum += raw.data.len();
            assert_eq!(raw.frame, count, "packets are numbered in order");
            assert!(raw.len as usize >= raw.data.len());
            let _ = roce_sniff::decode(&raw, &roce_sniff::Options::default());
        }
    }
    (count, sum)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Many more mutations of whole files than processes could be started
    /// for: no panic, no endless loop, no packet made of nothing, and the same
    /// packets from a pipe as from a file.
    #[test]
    fn mutated_in_process(
        which in 0..common::VARIED.len(),
        ng: bool,
        big_endian: bool,
        cut in any::<prop::sample::Index>(),
        mutations in mutations(),
    ) {
        let capture = capture(common::VARIED[which]);
        let mut bytes = if ng {
            let interfaces = vec![Interface::ethernet(Some(9)), Interface::ethernet(None)];
            let mut section = Section::new(big_endian, interfaces, capture.packets);
            section.comments = true;
            section.statistics = true;
            section.strangers = true;
            section.bytes()
        } else {
            capture.pcap_as(big_endian, false)
        };
        for (index, value) in &mutations {
            // Half of them near the front, where the structure is.
            let end = if value % 2 == 0 { bytes.len() } else { 400.min(bytes.len()) };
            bytes[index.index(end)] = *value;
        }
        bytes.truncate(cut.index(bytes.len() * 4).max(64));
        let size = bytes.len();
        let (count, sum) = read_through(bytes.clone(), false);
        prop_assert!(sum <= size && count <= size as u64 / 16);
        prop_assert_eq!(read_through(bytes, true), (count, sum));
    }
}
