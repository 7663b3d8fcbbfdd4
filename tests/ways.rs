//! Whatever way bytes take through the program, what it makes of them is the
//! same: short cut or not, mapped or read, one thread or many, one file or
//! several.

mod common;

use std::{
    fs::File,
    path::Path,
    time::{Duration, SystemTime},
};

use common::capfile::{Capture, Pkt};
use roce_sniff::{
    Options,
    source::{Batch, LinkType, RawPacket},
    track::{Digest, Event, Limits, Listener, Message, Observed, Summary, Tracker},
};
use serde_json::Value;

/// Numbers that look random, the same ones every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % sides.max(1)
    }
}

/// Frames of one batch decoded the short way, as far as it goes, and the long
/// way: the packets and what is counted of them.
fn both(frames: &[(Vec<u8>, u32)]) -> [Vec<String>; 2] {
    let options = Options::default();
    let mut batch = Batch::new();
    let mut records = Vec::new();
    let mut summary = Summary::without_flows();
    for (n, (data, len)) in (0..).zip(frames) {
        let raw = RawPacket {
            input: 3,
            frame: 70_000_000_000 + n,
            ts_ns: -5 + n as i64,
            len: (*len).max(data.len() as u32),
            link: LinkType::ETHERNET,
            path: None,
            data,
        };
        batch.push(&raw);
        let observed = Observed::of(&raw, &options);
        summary.add(&observed);
        summary.links.add(raw.link);
        if let Observed::Packet(record) = observed {
            records.push(record);
        }
    }
    let mut digest = Digest::default();
    digest.decode(&batch, &options);
    let written = |records: Vec<_>, summary: &Summary| {
        let mut lines: Vec<_> = records.iter().map(|record| format!("{record:?}")).collect();
        lines.push(format!("{summary:?}"));
        lines
    };
    [
        written(digest.records().collect(), digest.summary()),
        written(records, &summary),
    ]
}

#[test]
fn the_short_cut_decodes_like_the_long_way() {
    let mut dice = Dice(1);
    for name in common::fixtures() {
        // Each among others like it, of which some differ in a bit or in what
        // was captured.
        let mut frames = Vec::new();
        for packet in common::capture(&name).packets.iter().take(60) {
            frames.push((packet.data.clone(), packet.len));
            for _ in 0..30 {
                let mut data = packet.data.clone();
                for _ in 0..=dice.roll(3) {
                    // Mostly in the headers, where it matters.
                    let reach = if dice.roll(4) == 0 { data.len() } else { 80 };
                    let at = dice.roll(reach.min(data.len()));
                    data[at] ^= 1 << dice.roll(8);
                }
                data.truncate(if dice.roll(2) == 0 {
                    data.len()
                } else {
                    dice.roll(120)
                });
                let len = packet.len + dice.roll(8) as u32 / 7;
                frames.push((data, len));
                if dice.roll(4) == 0 {
                    frames.push((packet.data.clone(), packet.len));
                }
            }
        }
        let [short, long] = both(&frames);
        for (short, long) in short.iter().zip(&long) {
            assert_eq!(short, long, "{name}");
        }
        assert_eq!(short.len(), long.len(), "{name}");
        for frame in frames {
            let [short, long] = both(std::slice::from_ref(&frame));
            assert_eq!(short, long, "{name}: {frame:02x?}");
        }
    }
}

/// Writes down all that it is told.
#[derive(Default)]
struct Clerk(Vec<String>);

impl Listener for Clerk {
    fn event(&mut self, event: &Event<'_>) {
        self.0.push(format!("{event:?}"));
    }

    fn message(&mut self, message: &Message) {
        self.0.push(format!("{message:?}"));
    }
}

/// What a tracker and its listener know in the end.
fn known(tracker: &mut Tracker, mut clerk: Clerk, summary: &Summary) -> String {
    tracker.finish(&mut clerk);
    let mut all = clerk.0;
    all.extend(tracker.flows().map(|flow| format!("{flow:?}")));
    all.extend(
        tracker
            .connections()
            .iter()
            .map(|connection| format!("{connection:?}")),
    );
    all.push(format!("{:?} {summary:?}", tracker.evicted()));
    all.join("\n")
}

/// A capture tracked in stretches of so many packets, and packet by packet.
fn tracked(packets: &[Pkt], stretch: usize, limits: Limits) -> [String; 2] {
    let options = Options::default();
    let (mut quick, mut slow) = (Tracker::new(limits), Tracker::new(limits));
    let (mut quick_clerk, mut slow_clerk) = (Clerk::default(), Clerk::default());
    let mut sums = [Summary::without_flows(), Summary::without_flows()];
    let mut digest = Digest::default();
    for (n, part) in packets.chunks(stretch).enumerate() {
        let mut batch = Batch::new();
        for (at, packet) in part.iter().enumerate() {
            let raw = RawPacket {
                input: 0,
                frame: (n * stretch + at) as u64 + 1,
                ts_ns: packet.ts_ns as i64,
                len: packet.len.max(packet.data.len() as u32),
                link: LinkType::ETHERNET,
                path: None,
                data: &packet.data,
            };
            batch.push(&raw);
            let observed = Observed::of(&raw, &options);
            sums[1].add(&observed);
            sums[1].links.add(raw.link);
            if let Observed::Packet(record) = observed {
                slow.add(&record, &mut slow_clerk);
            }
        }
        digest.decode(&batch, &options);
        sums[0].absorb(digest.summary());
        quick.add_all(&digest, &mut quick_clerk);
    }
    [
        known(&mut quick, quick_clerk, &sums[0]),
        known(&mut slow, slow_clerk, &sums[1]),
    ]
}

#[test]
fn quick_packets_are_tracked_like_all_others() {
    let mut dice = Dice(11);
    for name in common::fixtures() {
        let capture = common::capture(&name);
        for round in 0..8 {
            let mut packets = capture.packets.clone();
            if round > 1 {
                // Lost, doubled and late ones, and bits that flip.
                for _ in 0..=dice.roll(12) {
                    let at = dice.roll(packets.len());
                    match dice.roll(5) {
                        0 => _ = packets.remove(at),
                        1 => packets.insert(at, packets[at].clone()),
                        2 => packets.swap(at, dice.roll(capture.packets.len()).min(at)),
                        3 => packets[at].ts_ns += 1 << dice.roll(34),
                        _ => {
                            let data = &mut packets[at].data;
                            let byte = dice.roll(data.len().min(70));
                            data[byte] ^= 1 << dice.roll(8);
                        }
                    }
                    if packets.is_empty() {
                        break;
                    }
                }
            }
            let limits = Limits {
                // Few enough, now and then, that flows make room for others.
                flows: if round == 1 { 3 } else { 1 << 20 },
                // Now and then, packets of one message are far apart.
                stall_ns: [Limits::default().stall_ns, 300_000][dice.roll(2)],
                ..Limits::default()
            };
            let stretch = [1, 7, 64, 100_000][dice.roll(4)];
            let [quick, slow] = tracked(&packets, stretch, limits);
            for (quick, slow) in quick.lines().zip(slow.lines()) {
                assert_eq!(quick, slow, "{name}, round {round}, stretches of {stretch}");
            }
            assert_eq!(quick.len(), slow.len(), "{name}, round {round}");
        }
    }
}

/// What the analysing commands print of files, with so many threads.
fn printed(files: &[&Path], threads: &str) -> Vec<String> {
    let commands = ["flows", "messages", "health", "memory"];
    commands
        .map(|command| {
            let mut args = vec![command, "--format", "json", "--threads", threads];
            args.extend(files.iter().map(|file| file.to_str().unwrap()));
            let ran = common::run(&args);
            format!("{}\n{}", ran.stdout, ran.stderr)
        })
        .to_vec()
}

/// Makes a file look as if it had not changed for a while, so that it is
/// mapped.
fn settle(path: &Path) {
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_modified(hour_ago))
        .unwrap();
}

/// Fixtures, and 200 captures that somebody tampered with.
fn captures() -> Vec<(String, Vec<u8>)> {
    let mut dice = Dice(7);
    let names = common::fixtures();
    let mut all: Vec<_> = names
        .iter()
        .map(|name| (name.clone(), std::fs::read(common::fixture(name)).unwrap()))
        .collect();
    for n in 0..200 {
        let (name, bytes) = &all[dice.roll(names.len())];
        let mut bytes = bytes.clone();
        for _ in 0..=dice.roll(20) {
            let at = 24 + dice.roll(bytes.len() - 24);
            bytes[at] ^= 1 << dice.roll(8);
        }
        if dice.roll(3) == 0 {
            bytes.truncate(dice.roll(bytes.len()));
        }
        all.push((format!("{name}, tampered with ({n})"), bytes));
    }
    all
}

#[test]
fn mapped_or_read_with_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in captures() {
        let path = common::write(dir.path(), "capture.pcap", &bytes);
        let read = printed(&[&path], "1");
        settle(&path);
        assert_eq!(printed(&[&path], "1"), read, "{name}: mapped");
        assert_eq!(
            printed(&[&path], "3"),
            read,
            "{name}: mapped, three threads"
        );
    }
}

/// The flows of a report, without where their packets stand.
fn flows(files: &[&Path]) -> Value {
    let mut args = vec!["flows", "--format", "json"];
    args.extend(files.iter().map(|file| file.to_str().unwrap()));
    let ran = common::run(&args);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    Value::Array(vec![
        document["flows"].clone(),
        document["connections"].clone(),
    ])
}

#[test]
fn one_file_or_the_same_in_three() {
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice(3);
    for name in common::fixtures() {
        let capture = common::capture(&name);
        let whole = flows(&[&common::fixture(&name)]);
        let count = capture.packets.len();
        let (first, second) = (dice.roll(count), dice.roll(count));
        let cuts = [0, first.min(second), first.max(second), count];
        let parts: Vec<_> = (0..3)
            .map(|n| {
                let part = Capture {
                    packets: capture.packets[cuts[n]..cuts[n + 1]].to_vec(),
                    ..capture.clone()
                };
                let name = format!("part{n}.pcap");
                common::write(dir.path(), &name, &part.pcap_as(false, true))
            })
            .collect();
        let parts: Vec<&Path> = parts.iter().map(std::path::PathBuf::as_path).collect();
        assert_eq!(flows(&parts), whole, "{name} in three");
    }
}
