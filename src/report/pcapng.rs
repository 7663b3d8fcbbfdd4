//! Captures as pcapng (draft-ietf-opsawg-pcapng), for Wireshark and for
//! ourselves.
//!
//! Blocks are built in a buffer and handed to the writer whole, many at once:
//! a program killed between two writes leaves a valid file behind.

use std::io::{self, Write};

use crate::source::{LOOPED_COMMENT, LinkType, LiveCounters, PacketPath, RawPacket};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const OPT_SHB_USERAPPL: u16 = 4;
const OPT_IF_NAME: u16 = 2;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_IF_FILTER: u16 = 11;
const OPT_ISB_STARTTIME: u16 = 2;
const OPT_ISB_ENDTIME: u16 = 3;
const OPT_ISB_IFDROP: u16 = 5;
const OPT_ISB_FILTERACCEPT: u16 = 6;
const OPT_ISB_OSDROP: u16 = 7;
const OPT_ISB_USRDELIV: u16 = 8;

/// Timestamps count in units of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// What `if_filter` begins with when a string of libpcap's follows.
const FILTER_IS_TEXT: u8 = 0;

/// An interface that packets were captured on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name, as `eth0`.
    pub name: String,
    /// Link type of its packets.
    pub link: LinkType,
    /// Bytes kept of a packet; 0 for no limit.
    pub snaplen: u32,
    /// Capture filter, in the language of pcap-filter(7).
    pub filter: Option<String>,
}

/// Blocks in this machine's byte order, appended to a buffer.
///
/// The section begins with the first block, whose interfaces are numbered in
/// the order given.
pub(super) struct Blocks<'b>(pub &'b mut Vec<u8>);

impl Blocks<'_> {
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_ne_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let fill = bytes.len().next_multiple_of(4) - bytes.len();
        self.0.extend_from_slice(&[0; 3][..fill]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        // What is longer has no length that could be written.
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    /// Two halves, the high one first, whatever the byte order.
    fn timestamp(&mut self, ts_ns: i64) {
        let ts = ts_ns as u64;
        self.u32((ts >> 32) as u32);
        self.u32(ts as u32);
    }

    /// A block: its type, twice its length, and what `body` writes.
    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.u32(kind);
        self.u32(0);
        body(self);
        let len = (self.0.len() - start + 4) as u32;
        self.u32(len);
        self.0[start + 4..start + 8].copy_from_slice(&len.to_ne_bytes());
    }

    /// The blocks that a section begins with.
    pub(super) fn begin(&mut self, interfaces: &[Interface]) {
        self.block(SECTION_HEADER, |b| {
            b.u32(BYTE_ORDER_MAGIC);
            b.u16(1);
            b.u16(0);
            // Length of the section: not known beforehand.
            b.0.extend([0xff; 8]);
            let program = concat!("roce-sniff ", env!("CARGO_PKG_VERSION"));
            b.option(OPT_SHB_USERAPPL, program.as_bytes());
            b.option(OPT_END, &[]);
        });
        for interface in interfaces {
            self.block(INTERFACE_DESCRIPTION, |b| {
                b.u16(interface.link.0);
                b.u16(0);
                b.u32(interface.snaplen);
                b.option(OPT_IF_NAME, interface.name.as_bytes());
                b.option(OPT_IF_TSRESOL, &[NANOSECONDS]);
                if let Some(filter) = &interface.filter {
                    let value: Vec<_> =
                        [FILTER_IS_TEXT].into_iter().chain(filter.bytes()).collect();
                    b.option(OPT_IF_FILTER, &value);
                }
                b.option(OPT_END, &[]);
            });
        }
    }

    /// A packet of the interface whose number is the packet's input.
    pub(super) fn packet(&mut self, packet: &RawPacket<'_>) {
        self.block(ENHANCED_PACKET, |b| {
            b.u32(packet.input.into());
            b.timestamp(packet.ts_ns);
            b.u32(packet.data.len() as u32);
            b.u32(packet.len);
            b.padded(packet.data);
            if packet.path == Some(PacketPath::Looped) {
                b.option(OPT_COMMENT, LOOPED_COMMENT.as_bytes());
                b.option(OPT_END, &[]);
            }
        });
    }

    /// What was counted on an interface between two times.
    pub(super) fn statistics(&mut self, interface: u32, counted: &Counted) {
        self.block(INTERFACE_STATISTICS, |b| {
            b.u32(interface);
            b.timestamp(counted.end_ns);
            for (code, ts) in [
                (OPT_ISB_STARTTIME, counted.start_ns),
                (OPT_ISB_ENDTIME, counted.end_ns),
            ] {
                b.u16(code);
                b.u16(8);
                b.timestamp(ts);
            }
            for (code, value) in [
                (OPT_ISB_IFDROP, counted.counters.if_dropped),
                (OPT_ISB_FILTERACCEPT, counted.counters.received),
                (OPT_ISB_OSDROP, counted.counters.dropped),
                (OPT_ISB_USRDELIV, counted.delivered),
            ] {
                b.option(code, &value.to_ne_bytes());
            }
            b.option(OPT_END, &[]);
        });
    }
}

/// What a capture counted on one interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// When the capture began, in nanoseconds since 1970-01-01 00:00 UTC.
    pub start_ns: i64,
    /// When it ended.
    pub end_ns: i64,
    /// What the kernel counted.
    pub counters: LiveCounters,
    /// Packets that reached the program.
    pub delivered: u64,
}

/// Writes one section of pcapng.
pub struct PcapngWriter<W> {
    out: W,
    buffer: Vec<u8>,
}

/// Bytes of blocks that are collected before they are written.
const BUFFER: usize = 1 << 16;

impl<W: Write> PcapngWriter<W> {
    /// Begins a section with these interfaces, numbered from 0.
    ///
    /// # Errors
    /// What writing returns.
    pub fn new(out: W, interfaces: &[Interface]) -> io::Result<Self> {
        let mut writer = Self {
            out,
            buffer: Vec::new(),
        };
        Blocks(&mut writer.buffer).begin(interfaces);
        writer.flush()?;
        Ok(writer)
    }

    /// Writes a packet of the interface whose number is the packet's input.
    ///
    /// # Errors
    /// What writing returns.
    pub fn packet(&mut self, packet: &RawPacket<'_>) -> io::Result<()> {
        Blocks(&mut self.buffer).packet(packet);
        if self.buffer.len() >= BUFFER {
            self.hand_out()?;
        }
        Ok(())
    }

    /// Writes what was counted on an interface.
    ///
    /// # Errors
    /// What writing returns.
    pub fn statistics(&mut self, interface: u32, counted: &Counted) -> io::Result<()> {
        Blocks(&mut self.buffer).statistics(interface, counted);
        self.flush()
    }

    fn hand_out(&mut self) -> io::Result<()> {
        let written = self.out.write_all(&self.buffer);
        self.buffer.clear();
        written
    }

    /// Writes all blocks collected so far.
    ///
    /// # Errors
    /// What writing returns.
    pub fn flush(&mut self) -> io::Result<()> {
        self.hand_out()?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Batch, FileSource, PacketSource};

    fn packet(input: u16, ts_ns: i64, len: u32, data: &[u8]) -> RawPacket<'_> {
        RawPacket {
            input,
            frame: 1,
            ts_ns,
            len,
            link: [LinkType::ETHERNET, LinkType::RAW][usize::from(input)],
            path: None,
            data,
        }
    }

    fn written(packets: &[RawPacket<'_>], counted: Option<Counted>) -> Vec<u8> {
        let interface = |name: &str, link| Interface {
            name: name.into(),
            link,
            snaplen: 9216,
            filter: Some("udp dst port 4791".into()),
        };
        let interfaces = [
            interface("veth0", LinkType::ETHERNET),
            interface("tap", LinkType::RAW),
        ];
        let mut out = Vec::new();
        let mut writer = PcapngWriter::new(&mut out, &interfaces).unwrap();
        for packet in packets {
            writer.packet(packet).unwrap();
        }
        writer.flush().unwrap();
        if let Some(counted) = counted {
            writer.statistics(0, &counted).unwrap();
        }
        drop(writer);
        out
    }

    #[test]
    fn our_reader_reads_back_what_was_written() {
        let bytes: Vec<u8> = (0..=255).collect();
        let packets: Vec<_> = (0..40u16)
            .map(|n| {
                let ts_ns = 1_700_000_000_000_000_001 + i64::from(n) * 7;
                packet(n % 2, ts_ns, 300, &bytes[..usize::from(n)])
            })
            .collect();
        let counted = Counted {
            start_ns: 1_700_000_000_000_000_000,
            end_ns: 1_700_000_001_000_000_000,
            counters: LiveCounters {
                received: 45,
                dropped: 4,
                if_dropped: 1,
            },
            delivered: 40,
        };
        let file = written(&packets, Some(counted));
        let input = Box::new(io::Cursor::new(file));
        let mut source = FileSource::new("test".into(), 0, input, false).unwrap();
        let (mut batch, mut read) = (Batch::new(), Vec::new());
        while source.next_batch(&mut batch).unwrap() {
            read.extend(
                batch
                    .packets()
                    .map(|p| (p.ts_ns, p.len, p.link, p.data.to_vec())),
            );
        }
        let expected: Vec<_> = packets
            .iter()
            .map(|p| (p.ts_ns, p.len, p.link, p.data.to_vec()))
            .collect();
        assert_eq!(read, expected);
        assert_eq!(source.statistics()[0].dropped, Some(5));
    }

    #[test]
    fn looped_packets_say_so() {
        let wired = packet(1, 1, 5, &[1, 2, 3, 4, 5]);
        let looped = RawPacket {
            path: Some(PacketPath::Looped),
            ..wired
        };
        let (without, with) = (written(&[wired], None), written(&[looped], None));
        // The comment's head, its 17 bytes padded to 20, and the end.
        assert_eq!(with.len(), without.len() + 4 + 20 + 4);
        let input = Box::new(io::Cursor::new(with));
        let mut source = FileSource::new("test".into(), 0, input, false).unwrap();
        let mut batch = Batch::new();
        assert!(source.next_batch(&mut batch).unwrap());
        let read = batch.packets().next().unwrap();
        assert_eq!((read.data, read.path), (looped.data, looped.path));
    }

    #[test]
    fn blocks_are_whole_words_and_say_their_length_twice() {
        let file = written(
            &[packet(0, 1, 5, &[1, 2, 3, 4, 5])],
            Some(Counted::default()),
        );
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < file.len() {
            let len = word(at + 4) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(at + len - 4) as usize, len);
            kinds.push(word(at));
            at += len;
        }
        assert_eq!(kinds, [SECTION_HEADER, 1, 1, 6, 5]);
    }
}
