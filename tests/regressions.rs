//! One test for every bug that was found, named after it.

mod common;

use std::{
    ffi::OsStr,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::{
    capfile::{Capture, ETHERNET, Interface, Section},
    capture, craft, fixture, rows_of, run,
    talk::{Talk, capture_of, printed, reth},
    write,
};
use serde_json::{Value, json};

/// The JSON lines, or the document, of a conversation.
fn lines(command: &str, talk: &Talk) -> Vec<Value> {
    let printed = printed(&[command, "--format", "json"], talk);
    let lines = printed.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

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

/// A request that one host's capture has, refused in that of the other.
#[test]
fn last_frames_were_said_to_be_of_the_input_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let talk = Talk::default().write(7).answer(0x62, 7);
    let [request, nak] = talk.packets.try_into().unwrap();
    // The NAK is the third frame of its capture.
    let mut early = [request.clone(), request.clone()];
    for (n, packet) in (1..).zip(&mut early) {
        packet.ts_ns -= 1_000_000 * n;
        packet.data = craft::ethernet(0x0800, &craft::ipv4(6, &[0; 20]));
    }
    let asker = capture_of(dir.path(), "asker.pcap", [request]);
    let answerer = capture_of(
        dir.path(),
        "answerer.pcap",
        early.into_iter().rev().chain([nak]),
    );
    let merged = |args: &[&str]| {
        let mut all: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        all.extend(["--merge".as_ref(), asker.as_os_str(), answerer.as_os_str()]);
        run(&all).ok("two captures").stdout
    };
    let [asker, answerer] = [&asker, &answerer].map(|path| path.display().to_string());
    let message: Value =
        serde_json::from_str(&merged(&["messages", "--format", "json"])).expect("one message");
    assert_eq!(
        [&message["first_frame"], &message["last_frame"]],
        [&json!(1), &json!(3)]
    );
    assert_eq!(
        [&message["file"], &message["last_file"]],
        [&json!(asker), &json!(answerer)]
    );
    let csv = merged(&["messages", "--format", "csv"]);
    let row = csv.lines().nth(1).expect("one message");
    assert!(
        row.ends_with(&format!(",1,3,false,{asker},{answerer}")),
        "{row}"
    );
    let health: Value = serde_json::from_str(&merged(&["health", "--format", "json"])).unwrap();
    let evidence = &health["findings"][0]["evidence"];
    assert_eq!(evidence["frames"], json!([1, 3]));
    assert_eq!(evidence["files"], json!([asker, answerer]));
    let request = &evidence["requests"][0];
    assert_eq!(
        [&request["file"], &request["answer_file"]],
        [&json!(asker), &json!(answerer)]
    );
}

#[test]
fn a_dma_length_was_believed_against_the_payload() {
    let huge = reth(0x1000, u32::MAX);
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .ask(0x0a, 1, true, &huge, 64)
        .ack(1)
        .ask(0x06, 2, false, &huge, 1024)
        .ask(0x08, 3, true, &[], 16)
        .ack(3);
    for (message, bytes) in lines("messages", &talk)[1..].iter().zip([64, 1040]) {
        assert_eq!(message["bytes"], bytes, "{message}");
        assert_eq!(message["complete"], false, "{message}");
        assert_eq!(message["malformed"], true, "{message}");
    }
    assert_eq!(lines("messages", &talk)[0]["malformed"], false);
    let table = printed(&["messages"], &talk);
    assert_eq!(table.matches(" malformed").count(), 3, "{table}");
    assert!(!table.contains("GiB") && !table.contains("Gb/s"), "{table}");
    let flow = &lines("flows", &talk)[0]["flows"][0];
    assert_eq!(flow["goodput_bytes"], 64 + 64 + 1040);
    assert_eq!(flow["message_bytes"], 64);
    let region = &lines("memory", &talk)[0]["regions"][0];
    assert_eq!(region["written"]["distinct_bytes"], 1040);
    let health = &lines("health", &talk)[0];
    let finding = &health["findings"][0];
    assert_eq!(finding["id"], "malformed");
    assert_eq!(finding["evidence"]["counts"]["malformed_messages"], 2);
    assert_eq!(finding["evidence"]["frames"], json!([3, 5]));
    // Of a packet cut by the capture, its lengths still tell.
    let mut cut = Talk::default().write(0).ack(0);
    cut.packets[0].data.truncate(80);
    assert_eq!(lines("messages", &cut)[0]["malformed"], false);
}

/// What was announced and never came is no goodput.
#[test]
fn goodput_of_messages_counted_bytes_that_never_came() {
    let talk = Talk::default()
        .ask(0x06, 0, false, &reth(0x1000, u32::MAX), 1024)
        .ask(0x07, 1, false, &[], 1024);
    let table = printed(&["messages"], &talk);
    let row = table.lines().rfind(|line| line.contains("RC RDMA WRITE"));
    let row = row.expect("a row of the distribution");
    // 2048 bytes in 10 µs.
    assert!(row.contains("1.64 Gb/s"), "{table}");
}

#[test]
fn a_clock_that_stepped_back_made_latencies_negative() {
    let mut talk = Talk::default().write(0).ack(0).write(1).ack(1);
    talk.packets[3].ts_ns -= 1_000_000;
    let messages = lines("messages", &talk);
    assert_eq!(messages[0]["latency_ns"], 10_000);
    assert!(messages[1]["latency_ns"].is_null(), "{}", messages[1]);
    let (acked, start) = (&messages[1]["acked_ns"], &messages[1]["start_ns"]);
    assert!(acked.as_i64() < start.as_i64(), "{}", messages[1]);
    let flow = &lines("flows", &talk)[0]["flows"][0];
    assert_eq!(flow["latency_ns"]["count"], 1);
    let table = printed(&["messages"], &talk);
    assert!(
        table.contains("1 packet is earlier than the one before it"),
        "{table}"
    );
}

#[test]
fn refused_accesses_of_no_byte_or_past_the_last_address_were_called_inside() {
    let talk = Talk::default()
        .ask(0x0a, 0, true, &reth(u64::MAX - 64, 64), 64)
        .ack(0)
        .ask(0x0a, 1, true, &reth(u64::MAX - 32, 0), 0)
        .answer(0x62, 1)
        .ask(0x0a, 2, true, &reth(u64::MAX - 32, 64), 64)
        .answer(0x62, 2);
    let table = printed(&["memory"], &talk);
    assert!(!table.contains("inside what was touched"), "{table}");
    assert!(table.contains("no byte, so neither"), "{table}");
    assert!(
        table.contains("32 B of it outside of what was touched"),
        "{table}"
    );
    let region = &lines("memory", &talk)[0]["regions"][0];
    let outside = |n: usize| &region["refused"]["accesses"][n]["outside_bytes"];
    assert_eq!([outside(0), outside(1)], [&json!(0), &json!(32)]);
}

/// The line under the table of messages.
fn efficiency(args: &[&str], talk: &Talk) -> String {
    let table = printed(&[&["messages"], args].concat(), talk);
    let line = table.lines().find(|line| line.contains("on the wire"));
    line.unwrap_or_else(|| panic!("{table}")).trim().to_owned()
}

#[test]
fn bytes_on_the_wire_lacked_the_answers_of_a_chosen_queue_pair() {
    let talk = Talk::default().write(0).ack(0).write(1).ack(1);
    let all = efficiency(&[], &talk);
    assert!(all.starts_with("All packets of these flows: "), "{all}");
    assert_eq!(efficiency(&["--qp", "0x22"], &talk), all);
    let writes = efficiency(&["--op", "write"], &talk);
    assert!(writes.contains("whatever their operation"), "{writes}");
    assert_eq!(writes.replace(", whatever their operation", ""), all);
}

#[test]
fn packets_changed_in_two_ways_were_counted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let before = Talk::default().write(0).ack(0).write(1).ack(1).packets;
    let mut after = before.clone();
    for packet in &mut after {
        packet.ts_ns += 1000;
    }
    // Marked CE, and of another DSCP.
    let ip = &mut after[0].data[14..];
    ip[1] = 0x23;
    craft::finish_v4(ip);
    let near = capture_of(dir.path(), "near.pcap", before);
    let far = capture_of(dir.path(), "far.pcap", after);
    let compare = |format: &str| {
        let args = ["compare", "--synced", "--format", format].map(OsStr::new);
        let files = [near.as_os_str(), far.as_os_str()];
        run(&[&args[..], &files].concat()).ok("two captures").stdout
    };
    let document: Value = serde_json::from_str(&compare("json")).unwrap();
    let leg = &document["legs"][0];
    let count = |key: &str| leg[key].as_u64().unwrap_or_else(|| panic!("{leg}"));
    assert_eq!(count("dscp_changed"), 1);
    assert_eq!(count("ce_marked") + count("ecn_changed"), 1);
    assert_eq!(count("changed"), 1);
    let table = compare("table");
    let titles = table.lines().find(|line| line.contains("changed"));
    let titles: Vec<_> = titles.expect("a table").split_whitespace().collect();
    let place = titles.iter().position(|title| *title == "changed").unwrap();
    let row = table.lines().find(|line| line.contains("0x000022"));
    let row: Vec<_> = row.expect("a flow").split_whitespace().collect();
    // The flow is three words, and its title and that of the queue pair are
    // three.
    assert_eq!(row[place + 1], "1", "{table}");
}

#[test]
fn lines_between_tables_ran_over_the_width() {
    let one = |name: &str| fixture(name).display().to_string();
    let [sender, receiver] = ["lossy_sender", "lossy_receiver"].map(one);
    for args in [
        vec!["compare", &sender, &receiver],
        vec!["messages", &sender],
        vec!["memory", &one("cm_rping")],
        vec!["flows", &one("bad_rkey")],
        vec!["flows", &one("corrupt")],
    ] {
        let ran = run(&[&args[..], &["--width", "80"]].concat());
        let of_words = ["A–B", "Clocks", "Note", "  All", "  flow ", "ICRC", "   "];
        let lines = ran.stdout.lines();
        for line in lines.filter(|line| of_words.iter().any(|words| line.starts_with(words))) {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
    }
}

#[test]
fn quiet_tables_began_with_an_empty_line() {
    let one = |name: &str| fixture(name).display().to_string();
    let [sender, receiver] = ["lossy_sender", "lossy_receiver"].map(one);
    for args in [
        vec!["flows", &sender],
        vec!["messages", &sender],
        vec!["memory", &sender],
        vec!["health", &sender],
        vec!["compare", &sender, &receiver],
    ] {
        let ran = run(&[&args[..], &["-q"]].concat()).ok("a fixture");
        let first = ran.stdout.lines().next();
        assert!(first.is_some_and(|line| !line.is_empty()), "{args:?}");
    }
}

#[test]
fn one_was_many_in_what_health_says() {
    let talk = Talk::default()
        .write(0)
        .ack(0)
        .write(1)
        .wait_us(70_000)
        .write(1)
        .ack(1);
    let table = printed(&["health"], &talk);
    assert!(table.contains("1 packet altogether"), "{table}");
    assert!(!table.contains(" 1 packets"), "{table}");
    let mut marked = Talk::default().write(0).ack(0).write(1);
    marked = marked.copy().ack(1);
    let table = printed(&["health"], &marked);
    assert!(table.contains("1 info about 5 packets"), "{table}");
}

#[test]
fn the_number_of_flows_kept_could_not_be_chosen() {
    let talk = |qp: u32| Talk::default().write(0).ack(0).between(0x100 + qp, qp);
    let mut all = talk(1);
    for qp in 2..20 {
        all.packets.extend(talk(qp).packets);
    }
    let evicted = |command: &str, args: &[&str]| {
        let args = [&[command, "--format", "json"], args].concat();
        let document: Value = serde_json::from_str(&printed(&args, &all)).unwrap();
        document["capture"]["evicted"]["flows"].clone()
    };
    for command in ["flows", "memory", "health"] {
        assert_eq!(evicted(command, &[]), 0, "{command}");
        assert_eq!(evicted(command, &["--max-flows", "4"]), 34, "{command}");
    }
    let table = printed(&["messages", "--max-flows", "4"], &all);
    assert!(table.contains("34 quiet flows with 34 packets"), "{table}");
    let ran = run(&["flows", "--max-flows", "1", "x.pcap"]);
    assert_eq!(ran.status, 2);
}
