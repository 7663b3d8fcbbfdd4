//! One test for every bug that was found, named after it.

mod common;

use std::{
    io::{Read, Write},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::{
    capfile::{Capture, ETHERNET, Interface, Section},
    capture, craft, fixture, rows_of, run, write,
};

/// Starts the command with its standard input left open.
fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_roce-sniff"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command under test starts")
}

/// Whether the command ends by itself within ten seconds.
fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if child.try_wait().expect("a child").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    false
}

/// Bytes of the section header and the one interface description.
fn headers(pcapng: &[u8]) -> usize {
    let length = pcapng[28 + 4..28 + 8].try_into().unwrap();
    28 + u32::from_le_bytes(length) as usize
}

/// The bytes of a fixture.
fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).expect("a fixture")
}

#[test]
fn output_onto_its_own_input_destroyed_the_capture() {
    let dir = tempfile::tempdir().unwrap();
    let original = bytes("write_1k");
    let path = write(dir.path(), "a.pcap", &original);
    let link = dir.path().join("link.pcap");
    std::fs::hard_link(&path, &link).unwrap();
    for output in [&path, &link] {
        let ran = run(&[path.as_os_str(), "-o".as_ref(), output.as_os_str()]);
        assert_eq!(ran.status, 2);
        assert!(ran.stderr.contains("overwritten"), "{}", ran.stderr);
        assert_eq!(std::fs::read(&path).unwrap(), original);
    }
}

#[test]
fn limit_did_not_end_a_live_pipe() {
    let mut child = start(&["-", "--limit", "3", "--threads", "8"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&bytes("write_1k")).unwrap();
    assert!(ends(&mut child), "it waits for packets it will not print");
    drop(input);
    let mut printed = String::new();
    child.stdout.unwrap().read_to_string(&mut printed).unwrap();
    assert!(printed.contains("3 frames read"), "{printed}");
}

#[test]
fn times_were_epoch_seconds_when_the_first_batch_was_empty() {
    let section = Section::new(
        false,
        vec![Interface::ethernet(None)],
        capture("write_1k").packets,
    );
    let file = section.bytes();
    // Capturing programs flush the headers before the first packet.
    let headers = headers(&file);
    let mut child = start(&["-", "--limit", "1", "-q"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&file[..headers]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    input.write_all(&file[headers..]).unwrap();
    assert!(ends(&mut child));
    let mut printed = String::new();
    child.stdout.unwrap().read_to_string(&mut printed).unwrap();
    let row = printed.lines().nth(1).expect("a packet");
    assert!(row.contains(" 0.000000 "), "{row}");

    // The same where the first input is damaged before its first packet.
    let dir = tempfile::tempdir().unwrap();
    let damaged = write(dir.path(), "damaged.pcap", &bytes("write_1k")[..50]);
    let ran = run(&[damaged.as_os_str(), fixture("write_1k").as_os_str()]);
    assert_eq!(ran.status, 2);
    let row = ran.stdout.lines().nth(1).expect("a packet");
    assert!(row.contains(" 0.000000 "), "{row}");
}

#[test]
fn more_files_than_descriptors_were_not_read() {
    let path = fixture("badrkey");
    let script = "ulimit -n 32; exec \"$0\" packets --format csv \"$@\"";
    let files = std::iter::repeat_n(path.as_os_str(), 100);
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_roce-sniff")])
        .args(files)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.lines().count(), 201);
}

#[test]
fn verbose_read_headers_from_the_icrc() {
    // RETH needs 16 bytes; the UDP length leaves 8, and padding follows.
    let mut transport = craft::bth(0x0a, 0, 5, true, 6);
    transport.extend([0xab; 4]);
    let mut frame = craft::ethernet(0x0800, &craft::roce_v4(&transport));
    frame.extend([0xee; 20]);
    let dir = tempfile::tempdir().unwrap();
    let file = Capture::of(ETHERNET, [frame]).pcap();
    let path = write(dir.path(), "a.pcap", &file);
    let ran = run(&["-v".as_ref(), "-q".as_ref(), path.as_os_str()]);
    let value = |name: &str| {
        let line = ran.stdout.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("{name}: {}", ran.stdout))
            .to_owned()
    };
    for name in ["Virtual address", "R_Key", "DMA length"] {
        assert!(value(name).ends_with("(no room)"), "{}", value(name));
    }
}

#[test]
fn first_fragment_was_called_cut() {
    let packet = &capture("write_1k").packets[0].data;
    let halves = craft::fragments(craft::ip_part(packet), 512);
    let first = craft::ethernet(0x0800, &halves[0]);
    let whole = rows_of("a.pcap", &Capture::of(ETHERNET, [first.clone()]).pcap());
    assert_eq!(whole[0]["fragment"], true);
    assert_eq!(whole[0]["truncated"], false, "the rest is in other packets");
    let cut = Capture::of(ETHERNET, [first]).cut(200).pcap();
    let cut = rows_of("a.pcap", &cut);
    assert_eq!(cut[0]["truncated"], true, "and this one is cut too");
}

#[test]
fn useless_pcapng_metadata_lost_the_rest_of_the_file() {
    let block = |kind: u32, body: &[u8]| {
        let len = body.len() as u32 + 12;
        let mut block = kind.to_le_bytes().to_vec();
        block.extend(len.to_le_bytes());
        block.extend(body);
        block.extend(len.to_le_bytes());
        block
    };
    let section = Section::new(
        false,
        vec![Interface::ethernet(None)],
        capture("badrkey").packets,
    );
    let file = section.bytes();
    let headers = headers(&file);
    // Statistics of an interface that is not there; an interface that nobody
    // uses and that counts in 10^-20 s.
    let statistics = block(5, &[&7u32.to_le_bytes()[..], &[0; 8]].concat());
    let mut options = vec![1, 0, 0, 0, 0, 0, 0, 0];
    options.extend([9, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0]);
    let interface = block(1, &options);
    let odd = [&file[..headers], &statistics, &interface, &file[headers..]].concat();
    assert_eq!(rows_of("a.pcapng", &odd).len(), 2);
}

#[test]
fn threads_that_could_not_be_had_ended_in_a_panic() {
    let ran = run(&[
        fixture("write_1k").as_os_str(),
        "--threads".as_ref(),
        "100000".as_ref(),
    ]);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
}

#[test]
fn write_errors_did_not_name_the_output() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let ran = run(&[
        fixture("write_1k").as_os_str(),
        "-o".as_ref(),
        "/dev/full".as_ref(),
    ]);
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("/dev/full: "), "{}", ran.stderr);
}

#[test]
fn dash_as_output_made_a_file_of_that_name() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_roce-sniff"))
        .args([fixture("badrkey").as_os_str(), "-o".as_ref(), "-".as_ref()])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(!output.stdout.is_empty());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_table_was_headed_though_nothing_could_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let ran = run(&["no-such-file".as_ref(), "-o".as_ref(), output.as_os_str()]);
    assert_eq!((ran.status, ran.stdout.as_str()), (2, ""));
    assert!(!output.exists());
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
}

#[test]
fn authentication_header_was_followed_in_ipv6_only() {
    let packet = &capture("write_1k").packets[0].data;
    let ip = craft::ip_part(packet);
    let (header, payload) = ip.split_at(20);
    let mut with = header.to_vec();
    with[9] = 51;
    // Next header UDP, length 4 (24 bytes), SPI, sequence, 12 bytes of check.
    with.extend([17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    with.extend([0x55; 12]);
    with.extend(payload);
    craft::finish_v4(&mut with);
    let rows = rows_of(
        "a.pcap",
        &Capture::of(ETHERNET, [craft::ethernet(0x0800, &with)]).pcap(),
    );
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["op"], "RC RDMA WRITE Only");
}

#[test]
fn long_cells_ran_over_the_width() {
    for name in ["atomic_fa", "cm_rping", "imm", "v6_write"] {
        let path = fixture(name);
        let ran = run(&[path.as_os_str(), "--width".as_ref(), "80".as_ref()]);
        for line in ran.stdout.lines().filter(|line| !line.contains('·')) {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}

#[test]
fn control_frames_of_a_write_run_were_listed_as_traffic() {
    let mut transport = craft::bth(0xff, 0x0f, 0xff_fffe, false, 1);
    transport.extend(b"roce-sniff control");
    transport.extend([0; 22]);
    let frame = craft::ethernet(0x0800, &craft::roce_v4(&transport));
    let file = Capture::of(ETHERNET, [frame]).pcap();
    assert_eq!(rows_of("a.pcap", &file).len(), 0);
    let summary = common::summary_of(&file);
    assert!(summary.contains("1 control frame"), "{summary}");
}
