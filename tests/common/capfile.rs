//! Capture files for the tests: a reader for classic pcap, writers for pcap
//! and pcapng.
//!
//! Written by hand and apart from the crate under test, so that a mistake in
//! the crate's readers cannot hide behind the same mistake here.

use std::path::Path;

/// Ethernet, the link type of every fixture.
pub const ETHERNET: u16 = 1;

/// One captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkt {
    /// Time since the epoch in nanoseconds.
    pub ts_ns: u64,
    /// Length on the wire; more than `data` holds when the packet was cut.
    pub len: u32,
    /// What was captured.
    pub data: Vec<u8>,
    /// Interface of its pcapng section; classic pcap has only one.
    pub iface: u32,
}

impl Pkt {
    /// A whole packet.
    pub fn whole(ts_ns: u64, data: Vec<u8>) -> Self {
        Self {
            ts_ns,
            len: data.len() as u32,
            data,
            iface: 0,
        }
    }
}

/// The packets of one file and their link type.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The packets in file order.
    pub packets: Vec<Pkt>,
    /// Link type as tcpdump.org numbers them.
    pub link: u16,
}

impl Capture {
    /// A capture of whole packets a millisecond apart.
    pub fn of(link: u16, frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let start = 1_700_000_000_000_000_000u64;
        let packets = (0u64..)
            .zip(frames)
            .map(|(n, data)| Pkt::whole(start + n * 1_000_000, data))
            .collect();
        Self { packets, link }
    }

    /// Reads a classic pcap file.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self::parse(&bytes)
    }

    /// Parses classic pcap of any byte order and resolution.
    pub fn parse(bytes: &[u8]) -> Self {
        let magic: [u8; 4] = bytes[..4].try_into().unwrap();
        let (big, nano) = match u32::from_le_bytes(magic) {
            0xa1b2_c3d4 => (false, false),
            0xa1b2_3c4d => (false, true),
            0xd4c3_b2a1 => (true, false),
            0x4d3c_b2a1 => (true, true),
            other => panic!("not classic pcap: magic {other:#x}"),
        };
        let word = |at: usize| {
            let raw: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
            if big {
                u32::from_be_bytes(raw)
            } else {
                u32::from_le_bytes(raw)
            }
        };
        let mut packets = Vec::new();
        let mut at = 24;
        while at < bytes.len() {
            let unit = if nano { 1 } else { 1000 };
            let ts_ns = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit;
            let (caplen, len) = (word(at + 8) as usize, word(at + 12));
            let data = bytes[at + 16..at + 16 + caplen].to_vec();
            packets.push(Pkt {
                ts_ns,
                len,
                data,
                iface: 0,
            });
            at += 16 + caplen;
        }
        let link = word(20) as u16;
        Self { packets, link }
    }

    /// The same packets and times, each frame rewritten.
    pub fn map(&self, link: u16, rewrite: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        let packets = self
            .packets
            .iter()
            .map(|p| Pkt::whole(p.ts_ns, rewrite(&p.data)))
            .collect();
        Self { packets, link }
    }

    /// The same packets as a sniffer with this snapshot length keeps them.
    pub fn cut(&self, snaplen: usize) -> Self {
        let mut cut = self.clone();
        for p in &mut cut.packets {
            p.data.truncate(snaplen);
        }
        cut
    }

    /// The plain file: little-endian pcap with microseconds.
    pub fn pcap(&self) -> Vec<u8> {
        self.pcap_as(false, false)
    }

    /// Classic pcap with the byte order and resolution asked for.
    pub fn pcap_as(&self, big_endian: bool, nano: bool) -> Vec<u8> {
        let mut out = Writer::new(big_endian);
        out.u32(if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 });
        out.u16(2).u16(4).u32(0).u32(0).u32(262_144);
        out.u32(u32::from(self.link));
        for p in &self.packets {
            let fraction = (p.ts_ns % 1_000_000_000) as u32;
            out.u32((p.ts_ns / 1_000_000_000) as u32);
            out.u32(if nano { fraction } else { fraction / 1000 });
            out.u32(p.data.len() as u32).u32(p.len).bytes(&p.data);
        }
        out.bytes
    }
}

/// A pcapng interface description.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Link type.
    pub link: u16,
    /// `if_tsresol`; microseconds when absent.
    pub tsresol: Option<u8>,
    /// `if_tsoffset` in seconds.
    pub tsoffset: Option<i64>,
}

impl Interface {
    /// Ethernet with the resolution given.
    pub fn ethernet(tsresol: Option<u8>) -> Self {
        Self {
            link: ETHERNET,
            tsresol,
            tsoffset: None,
        }
    }

    /// Ticks a second of this interface's clock.
    fn rate(&self) -> i128 {
        match self.tsresol.unwrap_or(6) {
            power if power & 0x80 != 0 => 1 << (power & 0x7f),
            digits => 10i128.pow(u32::from(digits)),
        }
    }

    fn ticks(&self, ts_ns: u64) -> u64 {
        let offset = i128::from(self.tsoffset.unwrap_or(0)) * 1_000_000_000;
        ((i128::from(ts_ns) - offset) * self.rate() / 1_000_000_000) as u64
    }

    /// The time a reader can get back: finer digits than a tick are lost.
    pub fn rounded(&self, ts_ns: u64) -> u64 {
        let offset = i128::from(self.tsoffset.unwrap_or(0)) * 1_000_000_000;
        (i128::from(self.ticks(ts_ns)) * 1_000_000_000 / self.rate() + offset) as u64
    }
}

/// Which block holds the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Enhanced Packet Block, what every tool writes today.
    Enhanced,
    /// Simple Packet Block: no interface, no time.
    Simple,
    /// The obsolete Packet Block of early pcapng files.
    Old,
}

/// One pcapng section and how to write it.
#[derive(Clone, Debug)]
pub struct Section {
    /// Byte order of the section.
    pub big_endian: bool,
    /// Its interfaces; packets name them by index.
    pub interfaces: Vec<Interface>,
    /// Comments on the section, the interfaces and every packet.
    pub comments: bool,
    /// Interface statistics after every tenth packet and at the end.
    pub statistics: bool,
    /// Name resolution, custom and unknown blocks between the packets.
    pub strangers: bool,
    /// The block that holds the packets.
    pub block: Block,
    /// The packets.
    pub packets: Vec<Pkt>,
}

impl Section {
    /// A section without any extras.
    pub fn new(big_endian: bool, interfaces: Vec<Interface>, packets: Vec<Pkt>) -> Self {
        Self {
            big_endian,
            interfaces,
            comments: false,
            statistics: false,
            strangers: false,
            block: Block::Enhanced,
            packets,
        }
    }

    /// This section's blocks.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.header(&mut out);
        for (n, interface) in self.interfaces.iter().enumerate() {
            self.describe(&mut out, n, interface);
        }
        for (n, packet) in self.packets.iter().enumerate() {
            if self.strangers && n % 3 == 0 {
                self.stranger(&mut out, n);
            }
            self.packet(&mut out, n, packet);
            if self.statistics && n % 10 == 9 {
                self.statistics(&mut out);
            }
        }
        if self.statistics {
            self.statistics(&mut out);
        }
        out
    }

    fn writer(&self) -> Writer {
        Writer::new(self.big_endian)
    }

    fn header(&self, out: &mut Vec<u8>) {
        let mut body = self.writer();
        body.u32(0x1a2b_3c4d).u16(1).u16(0).u64(u64::MAX);
        if self.comments {
            body.option(1, "traffic of a test, in several words".as_bytes());
            body.option(3, b"Linux").end_of_options();
        }
        body.block(0x0a0d_0d0a, out);
    }

    fn describe(&self, out: &mut Vec<u8>, n: usize, interface: &Interface) {
        let mut body = self.writer();
        body.u16(interface.link).u16(0).u32(262_144);
        body.option(2, format!("port{n}").as_bytes());
        if let Some(tsresol) = interface.tsresol {
            body.option(9, &[tsresol]);
        }
        if let Some(tsoffset) = interface.tsoffset {
            let mut value = self.writer();
            value.u64(tsoffset as u64);
            body.option(14, &value.bytes);
        }
        if self.comments {
            body.option(1, b"mirror of a switch port");
        }
        body.end_of_options();
        body.block(1, out);
    }

    fn packet(&self, out: &mut Vec<u8>, n: usize, packet: &Pkt) {
        let mut body = self.writer();
        let interface = self.interfaces.get(packet.iface as usize);
        let ticks = interface.map_or(0, |i| i.ticks(packet.ts_ns));
        let caplen = packet.data.len() as u32;
        let kind = match self.block {
            Block::Simple => {
                body.u32(packet.len);
                3
            }
            Block::Enhanced => {
                body.u32(packet.iface);
                body.u32((ticks >> 32) as u32).u32(ticks as u32);
                body.u32(caplen).u32(packet.len);
                6
            }
            Block::Old => {
                // The second number counts drops, and is part of no other.
                body.u16(packet.iface as u16).u16(3);
                body.u32((ticks >> 32) as u32).u32(ticks as u32);
                body.u32(caplen).u32(packet.len);
                2
            }
        };
        body.bytes(&packet.data).pad();
        // A Simple Packet Block has no room for options.
        if self.comments && self.block != Block::Simple {
            body.option(1, format!("packet {n}").as_bytes());
            body.option(2, &[0; 4]).end_of_options();
        }
        body.block(kind, out);
    }

    fn statistics(&self, out: &mut Vec<u8>) {
        for n in 0..self.interfaces.len() as u32 {
            let mut body = self.writer();
            body.u32(n).u32(0x0006_0000).u32(0);
            let mut count = self.writer();
            count.u64(self.packets.len() as u64);
            body.option(4, &count.bytes).option(5, &[0; 8]);
            body.end_of_options();
            body.block(5, out);
        }
    }

    fn stranger(&self, out: &mut Vec<u8>, n: usize) {
        let mut body = self.writer();
        match n % 9 {
            0 => {
                // Name resolution: 10.0.0.1 is "server".
                body.u16(1).u16(11).bytes(b"\x0a\x00\x00\x01server\0").pad();
                body.u16(0).u16(0);
                body.block(4, out);
            }
            3 => {
                body.u32(32473).bytes(b"private data of somebody");
                body.block(0x0bad, out);
            }
            _ => {
                body.bytes(&[0x55; 40]);
                body.block(0x0000_1234, out);
            }
        }
    }
}

/// Sections one after the other, as `mergecap` and `cat` leave them.
pub fn pcapng(sections: &[Section]) -> Vec<u8> {
    sections.iter().flat_map(Section::bytes).collect()
}

/// Bytes in one byte order.
struct Writer {
    bytes: Vec<u8>,
    big: bool,
}

impl Writer {
    fn new(big: bool) -> Self {
        Self {
            bytes: Vec::new(),
            big,
        }
    }

    fn u16(&mut self, v: u16) -> &mut Self {
        let raw = if self.big {
            v.to_be_bytes()
        } else {
            v.to_le_bytes()
        };
        self.bytes(&raw)
    }

    fn u32(&mut self, v: u32) -> &mut Self {
        let raw = if self.big {
            v.to_be_bytes()
        } else {
            v.to_le_bytes()
        };
        self.bytes(&raw)
    }

    fn u64(&mut self, v: u64) -> &mut Self {
        let raw = if self.big {
            v.to_be_bytes()
        } else {
            v.to_le_bytes()
        };
        self.bytes(&raw)
    }

    fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(v);
        self
    }

    /// Zeroes up to the next multiple of four, as pcapng pads everything.
    fn pad(&mut self) -> &mut Self {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
        self
    }

    fn option(&mut self, code: u16, value: &[u8]) -> &mut Self {
        self.u16(code).u16(value.len() as u16).bytes(value).pad()
    }

    fn end_of_options(&mut self) -> &mut Self {
        self.u16(0).u16(0)
    }

    /// Wraps what was written as one block and appends it to `out`.
    fn block(&mut self, kind: u32, out: &mut Vec<u8>) {
        self.pad();
        let total = self.bytes.len() as u32 + 12;
        let mut block = Self::new(self.big);
        block.u32(kind).u32(total).bytes(&self.bytes).u32(total);
        out.append(&mut block.bytes);
    }
}
