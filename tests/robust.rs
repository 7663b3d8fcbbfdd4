//! Bytes from outside: frames cut at every length and changed at random,
//! through every printer. Nothing panics, and what is still decoded is what
//! the whole frame says.

mod common;

use proptest::prelude::*;
use roce_sniff::{
    Options, decode,
    frame::FrameOptions,
    report::{CsvPackets, DetailPackets, JsonPackets, PacketPrinter, Style, TablePackets, Widths},
    source::{Batch, LinkType, PacketSource, RawPacket, open},
    wire::Packet,
};

/// Link types that are decoded, and some that are not.
const LINKS: [LinkType; 12] = [
    LinkType::ETHERNET,
    LinkType::RAW,
    LinkType::IPV4,
    LinkType::IPV6,
    LinkType::NULL,
    LinkType::LOOP,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::ERF,
    LinkType::INFINIBAND,
    LinkType(12),
    LinkType(u16::MAX),
];

/// The first frames of every fixture: all headers occur among them.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for name in common::fixtures() {
        let mut source = open(&common::fixture(&name), 0).expect("a fixture");
        let mut batch = Batch::new();
        assert!(source.next_batch(&mut batch).expect("a whole fixture"));
        frames.extend(batch.packets().take(12).map(|raw| raw.data.to_vec()));
    }
    frames
}

fn raw(data: &[u8], len: usize, link: LinkType) -> RawPacket<'_> {
    RawPacket {
        input: 0,
        frame: 1,
        ts_ns: -1,
        len: len as u32,
        link,
        path: None,
        data,
    }
}

/// Sends a packet through every printer; the JSON must be JSON, the CSV must
/// have as many fields as its header.
fn print(raw: &RawPacket<'_>, packet: &Packet<'_>) {
    let inputs = || vec![String::from("a"), String::from("b")];
    let mut json = Vec::new();
    JsonPackets { inputs: inputs() }.packet(raw, packet, &mut json);
    serde_json::from_slice::<serde_json::Value>(&json).expect("JSON");

    let csv = CsvPackets {
        path: true,
        inputs: inputs(),
    };
    let mut lines = Vec::new();
    csv.header(&mut lines);
    csv.packet(raw, packet, &mut lines);
    let text = String::from_utf8(lines).expect("UTF-8");
    let fields: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(fields[0], fields[1], "{text}");

    let mut widths = Widths::default();
    widths.see(raw, packet);
    for wrap in [None, Some(1), Some(80)] {
        let mut out = Vec::new();
        let style = Style { color: true };
        TablePackets::new(style, 2, &widths, wrap, true).packet(raw, packet, &mut out);
        String::from_utf8(out).expect("UTF-8");
    }
    let mut out = Vec::new();
    let detail = DetailPackets {
        style: Style { color: false },
        inputs: inputs(),
        frame: FrameOptions::default(),
        bytes: true,
    };
    detail.packet(raw, packet, &mut out);
    String::from_utf8(out).expect("UTF-8");
}

/// What is decoded of a cut frame is what the whole frame says.
#[test]
fn cut_at_every_length() {
    let options = Options::default();
    for frame in frames() {
        let whole = raw(&frame, frame.len(), LinkType::ETHERNET);
        let Ok(whole) = decode(&whole, &options) else {
            continue;
        };
        for cut in 0..frame.len() {
            let part = raw(&frame[..cut], frame.len(), LinkType::ETHERNET);
            let Ok(packet) = decode(&part, &options) else {
                let headers = whole.datagram.bth_offset + 12;
                assert!(cut < headers, "{cut} bytes hold the whole BTH");
                continue;
            };
            // Every header ends in the first 330 bytes; the middle of a
            // payload prints as its neighbours do.
            if cut < 330 || cut + 8 > frame.len() {
                print(&part, &packet);
            }
            assert_eq!(packet.bth, whole.bth);
            assert_eq!(packet.payload_len, whole.payload_len);
            assert!(whole.payload.starts_with(packet.payload));
            assert!(packet.truncated, "cut at {cut} of {}", frame.len());
            assert_eq!(packet.icrc.name(), "unverifiable");
            macro_rules! same_or_cut {
                ($($field:ident),*) => {$(
                    assert!(packet.ext.$field.is_none() || packet.ext.$field == whole.ext.$field);
                )*};
            }
            same_or_cut!(deth, reth, atomic, aeth, atomic_ack, imm, ieth);
        }
    }
}

/// A frame that claims fewer bytes than it needs is malformed, never a panic.
#[test]
fn short_at_every_length() {
    for frame in frames() {
        for cut in 0..frame.len().min(200) {
            for link in LINKS {
                let part = raw(&frame[..cut], cut, link);
                if let Ok(packet) = decode(&part, &Options::default()) {
                    print(&part, &packet);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Headers changed at random places, on any link type.
    #[test]
    fn changed_at_random(
        pick in any::<prop::sample::Index>(),
        link in prop::sample::select(&LINKS[..]),
        changes in prop::collection::vec((0usize..120, any::<u8>()), 1..12),
        extra in 0usize..100,
    ) {
        let frames = frames();
        let mut frame = pick.get(&frames).clone();
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        for link in [LinkType::ETHERNET, link] {
            let changed = raw(&frame, frame.len() + extra, link);
            if let Ok(packet) = decode(&changed, &Options::default()) {
                print(&changed, &packet);
            }
        }
    }

    /// Bytes that never were a frame.
    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..300), link in prop::sample::select(&LINKS[..])) {
        let noise = raw(&bytes, bytes.len(), link);
        if let Ok(packet) = decode(&noise, &Options::default()) {
            print(&noise, &packet);
        }
    }
}
