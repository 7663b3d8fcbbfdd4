//! Live capture on a veth pair: every frame is listed and saved once, the
//! capture ends as told, and what cannot be captured is refused in a sentence.

#![cfg(all(feature = "live", target_os = "linux"))]

mod common;

use common::{
    capfile::Capture,
    net::{FAR, NEAR, Net, ip},
};
use nix::sys::signal::Signal;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

/// The frames of a fixture.
fn frames(capture: &Capture) -> Vec<&[u8]> {
    capture.packets.iter().map(|p| p.data.as_slice()).collect()
}

/// Enough to find a second copy of a frame, or a frame too few.
fn bytes_of(path: &std::path::Path) -> Vec<Vec<u8>> {
    use roce_sniff::source::{Batch, PacketSource, open};
    let mut source = open(path, 0).unwrap();
    let (mut batch, mut all) = (Batch::new(), Vec::new());
    while source.next_batch(&mut batch).unwrap() {
        all.extend(batch.packets().map(|packet| packet.data.to_vec()));
    }
    all
}

#[test]
fn every_frame_is_listed_and_saved_once() {
    let Some(mut net) = Net::new() else { return };
    for name in common::VARIED.into_iter().chain(["vlan_write"]) {
        let fixture = common::capture(name);
        let expected = common::plain(name);
        let file = net.path("a.pcapng");
        let count = expected.len().to_string();
        let file_name = file.display().to_string();
        let capture = net.capture(&[
            "--iface", FAR, "--format", "json", "--count", &count, "-w", &file_name,
        ]);
        net.send(frames(&fixture));
        let run = capture.finish();
        assert_eq!(run.status, 0, "{name}: {}", run.stderr);
        assert_eq!(run.stderr, "", "{name}");
        let rows = run.rows();
        common::assert_same_wire(name, &expected, &rows);
        common::assert_same(name, &["vlan", "icrc", "len", "caplen"], &expected, &rows);
        // The file holds the same, to the nanosecond.
        assert_eq!(common::rows(&file), rows, "{name}");
        if name != "vlan_write" {
            assert_eq!(bytes_of(&file), frames(&fixture), "{name}");
        }
        if common::tshark_available() {
            let output = std::process::Command::new("tshark")
                .args([
                    "-r",
                    &file_name,
                    "-T",
                    "fields",
                    "-e",
                    "frame.interface_name",
                ])
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(text, format!("{FAR}\n").repeat(rows.len()), "{name}");
        }
    }
}

#[test]
fn rows_appear_as_packets_pass_and_ctrl_c_ends_with_the_summary() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    let file = net.path("a.pcapng");
    let capture = net.capture(&["-i", FAR, "-w", &file.display().to_string()]);
    capture.wait_for("destination");
    net.send(frames(&fixture));
    capture.wait_for("MSN 20");
    capture.signal(Signal::SIGINT);
    let run = capture.finish().ok("ended by Ctrl-C");
    let summary = "40 frames read, 40 RoCEv2";
    assert!(run.stdout.contains(summary), "{}", run.stdout);
    let counted = "v1: 40 frames passed the capture filter, 0 dropped by the kernel";
    assert!(run.stdout.contains(counted), "{}", run.stdout);
    assert_eq!(bytes_of(&file), frames(&fixture));
}

#[test]
fn a_killed_capture_leaves_a_valid_file() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("read_8k");
    let file = net.path("a.pcapng");
    let name = file.display().to_string();
    let mut capture = net.capture(&["--iface", FAR, "--format", "csv", "-w", &name]);
    let head = std::fs::metadata(&file).unwrap().len();
    net.send(frames(&fixture));
    common::net::wait_until("the file", || {
        std::fs::metadata(&file).unwrap().len() > head
            && bytes_of(&file).len() == fixture.packets.len()
    });
    capture.signal(Signal::SIGKILL);
    assert_eq!(capture.end().0, -1);
    assert_eq!(bytes_of(&file), frames(&fixture));
}

#[test]
fn the_end_of_the_time_is_exact_and_loses_no_frame() {
    const TIME: Duration = Duration::from_millis(1500);
    // Between the clock of the test and the one of the timestamps.
    const SLACK: Duration = Duration::from_millis(10);
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    // The capture begins after `before` and before `after`.
    let before = Instant::now();
    let capture = net.capture(&["--iface", FAR, "--duration", "1500ms", "--format", "json"]);
    let after = Instant::now();
    // Frames that were sent before the earliest end are all there, though the
    // last ones are still in the kernel's buffer when the time is up; those
    // sent after the latest end are not.
    let (mut within, mut at_most) = (0, 0);
    for frame in frames(&fixture).into_iter().cycle() {
        let start = Instant::now();
        net.send([frame]);
        within += usize::from(before.elapsed() + SLACK < TIME);
        at_most += usize::from(start.duration_since(after) < TIME + SLACK);
        if start.duration_since(after) > TIME + Duration::from_millis(400) {
            break;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    let rows = capture.finish().ok("ended by time").rows().len();
    assert!(
        (within..=at_most).contains(&rows),
        "{within}..{at_most}: {rows}"
    );
    assert!(within > 0);
}

#[test]
fn counts_and_limits() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    let file = net.path("a.pcapng");
    let name = file.display().to_string();
    let capture = net.capture(&["--iface", FAR, "--count", "7", "-w", &name]);
    net.send(frames(&fixture));
    let run = capture.finish().ok("--count");
    assert!(
        run.stdout.contains("7 frames read, 7 RoCEv2"),
        "{}",
        run.stdout
    );
    assert_eq!(bytes_of(&file).len(), 7);

    // A limit is of packets that are shown; those filtered out pass by.
    let args = [
        "--iface", FAR, "--op", "ack", "--limit", "3", "--format", "csv",
    ];
    let capture = net.capture(&args);
    net.send(frames(&fixture));
    let run = capture.finish().ok("--limit");
    assert_eq!(run.stdout.lines().count(), 4, "{}", run.stdout);
    assert!(
        run.stdout
            .lines()
            .skip(1)
            .all(|line| line.contains("RC Acknowledge"))
    );
}

#[test]
fn standard_output_can_take_the_recording() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("send_3k");
    let count = fixture.packets.len().to_string();
    let mut capture = net.capture(&["--iface", FAR, "--count", &count, "-w", "-"]);
    net.send(frames(&fixture));
    let (status, stderr) = capture.end();
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains(&format!("{count} frames read")), "{stderr}");
    assert_eq!(bytes_of(capture.stdout()), frames(&fixture));
}

#[test]
fn capture_filters_hold_with_and_without_vlan_tags() {
    let Some(mut net) = Net::new() else { return };
    let mut sent = common::capture("vlan_write");
    let plain = common::capture("write_1k");
    let double: Vec<_> = sent.packets[4..14]
        .iter()
        .filter(|p| p.data[12..14] == [0x81, 0])
        .map(|p| {
            let mut packet = p.clone();
            packet.data.splice(12..12, [0x88, 0xa8, 0, 7]);
            packet.len += 4;
            packet
        })
        .collect();
    let doubled = double.len();
    assert!(doubled > 0);
    sent.packets.extend(plain.packets.clone());
    sent.packets.extend(double);
    let dir = tempfile::tempdir().unwrap();
    let path = common::write(dir.path(), "sent.pcap", &sent.pcap());
    let all = common::rows(&path);
    // The sender's end sees tags where they are in the frame; at the other
    // end the kernel keeps the outermost one beside it.
    for iface in [NEAR, FAR] {
        for (bpf, host, vlans) in [
            (None, None, None),
            (Some("src host 10.0.0.1"), Some("10.0.0.1"), None),
            (Some("src host 10.0.0.1 or arp"), Some("10.0.0.1"), None),
            (Some("vlan 100"), None, Some(vec![100])),
        ] {
            let expected: Vec<_> = all
                .iter()
                .filter(|row| host.is_none_or(|host| common::text(row, "src") == host))
                .filter(|row| {
                    let tags = common::numbers(row, "vlan");
                    vlans.as_ref().is_none_or(|vlans| *vlans == tags)
                })
                .cloned()
                .collect();
            assert!(!expected.is_empty());
            let mut args = vec!["--iface", iface, "--format", "json"];
            if let Some(bpf) = bpf {
                args.extend(["--bpf", bpf]);
            }
            let capture = net.capture(&args);
            net.send(frames(&sent));
            let what = format!("{iface} {bpf:?}");
            let rows = capture.finish_after(expected.len()).ok(&what).rows();
            common::assert_same_wire(&what, &expected, &rows);
            common::assert_same(&what, &["vlan"], &expected, &rows);
        }
    }
}

#[test]
fn tunnels_are_captured_when_asked_for() {
    use common::tunnel;
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    let wrapped: Vec<Vec<u8>> = fixture.packets[..10]
        .iter()
        .map(|p| p.data.as_slice())
        .zip(
            [
                tunnel::vxlan,
                tunnel::vxlan_v6,
                tunnel::geneve,
                tunnel::erspan2,
            ]
            .into_iter()
            .cycle(),
        )
        .map(|(frame, wrap)| wrap(frame))
        .collect();
    for (args, found) in [(&["--tunnels"][..], 10), (&[], 0)] {
        let all = [&["--iface", FAR, "--format", "json"], args].concat();
        let capture = net.capture(&all);
        net.send(wrapped.iter().map(Vec::as_slice));
        // A last frame that every filter passes.
        net.send(frames(&fixture).into_iter().take(1));
        let rows = capture.finish_after(found + 1).ok("tunnels").rows();
        let wrapped = rows.iter().filter(|row| !common::encap(row).is_empty());
        assert_eq!((wrapped.count(), rows.len()), (found, found + 1));
    }
}

#[test]
fn the_loopback_device_and_all_devices() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for iface in ["lo", "any"] {
        let capture = net.capture(&["--iface", iface, "--count", "1", "--format", "json"]);
        // UDP payload of the first frame: BTH to ICRC.
        let sent = socket.send_to(&fixture.packets[0].data[42..], "127.0.0.1:4791");
        sent.unwrap();
        let rows = capture.finish().ok(iface).rows();
        assert_eq!(rows.len(), 1);
        assert_eq!(common::text(&rows[0], "op"), "RC RDMA WRITE Only");
        assert_eq!(common::text(&rows[0], "src"), "127.0.0.1");
    }
    let capture = net.capture(&["--iface", "any", "--format", "csv"]);
    net.send(frames(&fixture));
    // Each frame leaves one end and enters at the other.
    let run = capture.finish_after(81).ok("any");
    assert_eq!(run.stdout.lines().count(), 81);
}

/// The one sentence with which the command refuses.
fn refusal(args: &[&str]) -> String {
    let run = common::run(args);
    assert_eq!(run.status, 2, "{args:?}: {}", run.stderr);
    assert_eq!(run.stdout, "", "{args:?}");
    assert_eq!(run.stderr.lines().count(), 1, "{args:?}: {}", run.stderr);
    run.stderr
}

#[test]
fn what_cannot_be_captured_is_refused_in_a_sentence() {
    let Some(net) = Net::new() else { return };
    assert_eq!(
        refusal(&["--iface", "eth99"]),
        "roce-sniff: no network device eth99; there are: lo, v0, v1\n"
    );
    let text = refusal(&["--iface", FAR, "--bpf", "host and"]);
    assert!(
        text.starts_with("roce-sniff: v1: capture filter 'host and': "),
        "{text}"
    );
    // A file that is there stays as it was when no capture begins.
    let file = common::write(net.dir.path(), "old.pcapng", b"old");
    let name = file.display().to_string();
    refusal(&["--iface", FAR, "--bpf", "(", "-w", &name]);
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    let nowhere = net.path("none/a.pcapng").display().to_string();
    let text = refusal(&["--iface", FAR, "-w", &nowhere]);
    assert!(
        text.contains("none/a.pcapng: cannot write: No such file"),
        "{text}"
    );
    ip("link set v1 down");
    assert_eq!(
        refusal(&["--iface", FAR]),
        "roce-sniff: v1 is down: sudo ip link set v1 up\n"
    );
    ip("link set v1 up");

    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_roce-sniff"));
    let nobody = command
        .args(["--iface", FAR])
        .uid(65534)
        .gid(65534)
        .output();
    // The program may be where nobody else may go.
    if let Ok(output) = nobody {
        let text = String::from_utf8(output.stderr).unwrap();
        let begins = "roce-sniff: v1: capturing needs CAP_NET_RAW: run with sudo, or once: ";
        assert!(text.starts_with(begins), "{text}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn a_device_that_goes_down_or_away_ends_the_capture_with_what_it_has() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    for (change, words) in [
        ("link set v1 down", "roce-sniff: v1 went down: "),
        ("link del v1", "roce-sniff: v1: cannot capture: "),
    ] {
        let capture = net.capture(&["--iface", FAR]);
        net.send(frames(&fixture));
        capture.wait_for("MSN 20");
        ip(change);
        let run = capture.finish();
        assert_eq!(run.status, 2, "{change}");
        assert!(run.stderr.starts_with(words), "{change}: {}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{change}: {}", run.stderr);
        let summary = "40 frames read, 40 RoCEv2";
        assert!(run.stdout.contains(summary), "{change}: {}", run.stdout);
        if change.ends_with("down") {
            ip("link set v1 up");
        }
    }
}

#[test]
fn arguments_that_contradict_each_other() {
    for args in [
        &["--iface", "lo", "a.pcap"][..],
        &["--iface", "lo", "--merge"],
        &["--bpf", "ip", "a.pcap"],
        &["-w", "a.pcapng", "b.pcap"],
        &["--iface", "lo", "--duration", "0s"],
        &["--iface", "lo", "--duration", "soon"],
        &["--iface", "lo", "--count", "0"],
        &["--iface", "lo", "--snaplen", "0"],
    ] {
        let run = common::run(args);
        assert_eq!(run.status, 2, "{args:?}: {}", run.stderr);
        assert!(
            run.stderr.starts_with("error: "),
            "{args:?}: {}",
            run.stderr
        );
    }
}
