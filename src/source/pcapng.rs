//! pcapng files: blocks in sections, packets on numbered interfaces
//! (draft-ietf-opsawg-pcapng).
//!
//! Read here by hand: the crates that parse pcapng read some options in the
//! wrong byte order in big-endian sections and refuse time resolutions that
//! are powers of two, and both occur.

use super::{
    LOOPED_COMMENT, LinkType, PacketPath, Record,
    pcap::{Damage, MAX_CAPTURED, Walk},
};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
/// Obsolete packet block, still in old files.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const OPT_IF_TSRESOL: u16 = 9;
const OPT_IF_TSOFFSET: u16 = 14;
const OPT_COMMENT: u16 = 1;
const OPT_ISB_IFDROP: u16 = 5;
const OPT_ISB_OSDROP: u16 = 7;

#[derive(Debug, Clone)]
struct Interface {
    link: LinkType,
    snaplen: u32,
    /// Clock ticks in a second; 0 for a resolution that cannot be counted in.
    resolution: u64,
    /// Seconds to add to every timestamp.
    offset: i64,
    dropped: Option<u64>,
}

impl Interface {
    fn ts_ns(&self, high: u32, low: u32) -> i64 {
        let ticks = u64::from(high) << 32 | u64::from(low);
        let ns = match self.resolution {
            1_000_000_000 => i128::from(ticks),
            1_000_000 => i128::from(ticks) * 1000,
            resolution => i128::from(ticks) * 1_000_000_000 / i128::from(resolution),
        };
        let ns = ns + i128::from(self.offset) * 1_000_000_000;
        ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// State of the section being read.
#[derive(Debug, Default)]
pub(super) struct PcapNg {
    big_endian: bool,
    interfaces: Vec<Interface>,
    /// Drops reported in sections that have ended.
    earlier_dropped: Option<u64>,
}

/// Fields of one block in the section's byte order; reads past the end are 0,
/// which every caller has excluded by a length check.
#[derive(Clone, Copy)]
struct Block<'a> {
    bytes: &'a [u8],
    big_endian: bool,
}

impl<'a> Block<'a> {
    fn u16(self, at: usize) -> u16 {
        let bytes = self.array(at);
        if self.big_endian {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        }
    }

    fn u32(self, at: usize) -> u32 {
        let bytes = self.array(at);
        if self.big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }
    }

    fn u64(self, at: usize) -> u64 {
        let bytes = self.array(at);
        if self.big_endian {
            u64::from_be_bytes(bytes)
        } else {
            u64::from_le_bytes(bytes)
        }
    }

    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().unwrap_or([0; N])
    }

    /// Options from `at` to the trailing length: code and value.
    fn options(self, mut at: usize) -> impl Iterator<Item = (u16, Block<'a>)> {
        let end = self.bytes.len() - 4;
        std::iter::from_fn(move || {
            if at + 4 > end {
                return None;
            }
            let (code, len) = (self.u16(at), usize::from(self.u16(at + 2)));
            let bytes = self.bytes.get(at + 4..(at + 4 + len).min(end))?;
            at += 4 + len.next_multiple_of(4);
            let value = Block { bytes, ..self };
            (code != 0).then_some((code, value))
        })
    }
}

/// A recording of the kernel tap says of looped packets that they are.
fn path(block: Block<'_>, caplen: u32) -> Option<PacketPath> {
    let looped = |(code, value): (u16, Block<'_>)| {
        code == OPT_COMMENT && value.bytes == LOOPED_COMMENT.as_bytes()
    };
    block
        .options(28 + caplen.next_multiple_of(4) as usize)
        .any(looped)
        .then_some(PacketPath::Looped)
}

impl PcapNg {
    /// True when a file that begins with these four bytes is pcapng.
    pub(super) fn recognises(magic: [u8; 4]) -> bool {
        u32::from_be_bytes(magic) == SECTION_HEADER
    }

    /// Packets reported as dropped, over all sections and interfaces so far.
    pub(super) fn dropped(&self) -> Option<u64> {
        self.interfaces
            .iter()
            .map(|interface| interface.dropped)
            .fold(self.earlier_dropped, add)
    }

    /// Indexes the packets of the whole blocks at the front of `bytes`.
    pub(super) fn walk(&mut self, bytes: &[u8], out: &mut Vec<Record>) -> Walk {
        let mut at = 0;
        while bytes.len() - at >= 12 {
            let rest = &bytes[at..];
            let head = Block {
                bytes: rest,
                big_endian: self.big_endian,
            };
            let kind = head.u32(0);
            if kind == SECTION_HEADER
                && let Err(reason) = self.section(rest)
            {
                return (at, Some(Damage { at, reason }));
            }
            let head = Block {
                bytes: rest,
                big_endian: self.big_endian,
            };
            let len = head.u32(4);
            if !len.is_multiple_of(4) || !(12..=MAX_CAPTURED).contains(&len) {
                let reason = format!("a block of type {kind:#x} claims {len} bytes");
                return (at, Some(Damage { at, reason }));
            }
            let len = len as usize;
            let Some(bytes) = rest.get(..len) else { break };
            let block = Block { bytes, ..head };
            if block.u32(len - 4) as usize != len {
                let reason = format!(
                    "a block of type {kind:#x} has length {len} at its front, {} at its end",
                    block.u32(len - 4)
                );
                return (at, Some(Damage { at, reason }));
            }
            if let Err(reason) = self.block(kind, block, at, out) {
                return (at, Some(Damage { at, reason }));
            }
            at += len;
        }
        (at, None)
    }

    fn section(&mut self, rest: &[u8]) -> Result<(), String> {
        let magic = rest[8..12].try_into().unwrap_or_default();
        self.big_endian = match BYTE_ORDER_MAGIC {
            m if m == u32::from_be_bytes(magic) => true,
            m if m == u32::from_le_bytes(magic) => false,
            _ => return Err(format!("section header with byte order mark {magic:02x?}")),
        };
        Ok(())
    }

    fn block(
        &mut self,
        kind: u32,
        block: Block<'_>,
        at: usize,
        out: &mut Vec<Record>,
    ) -> Result<(), String> {
        let short = |need: usize| {
            if block.bytes.len() < need {
                return Err(format!(
                    "a block of type {kind:#x} has {} bytes, needs {need}",
                    block.bytes.len()
                ));
            }
            Ok(())
        };
        match kind {
            SECTION_HEADER => {
                short(28)?;
                self.earlier_dropped = self.dropped();
                self.interfaces.clear();
            }
            INTERFACE_DESCRIPTION => {
                short(20)?;
                self.interfaces.push(interface(block));
            }
            INTERFACE_STATISTICS => {
                short(24)?;
                // Statistics of an interface that is not there help nobody and
                // harm nobody.
                let Ok(interface) = self.interface_mut(block.u32(8)) else {
                    return Ok(());
                };
                // Counters are totals: the last block of an interface counts.
                interface.dropped = block
                    .options(20)
                    .filter(|(code, value)| {
                        matches!(*code, OPT_ISB_IFDROP | OPT_ISB_OSDROP) && value.bytes.len() == 8
                    })
                    .map(|(_, value)| Some(value.u64(0)))
                    .fold(None, add);
            }
            ENHANCED_PACKET | PACKET => {
                short(32)?;
                let id = if kind == PACKET {
                    block.u16(8).into()
                } else {
                    block.u32(8)
                };
                let interface = self.interface_mut(id)?;
                if interface.resolution == 0 {
                    return Err(format!(
                        "interface {id} counts time in units too small to count"
                    ));
                }
                let caplen = block.u32(20);
                if caplen as usize > block.bytes.len() - 32 {
                    return Err(format!(
                        "a packet of {caplen} bytes in a block of {}",
                        block.bytes.len()
                    ));
                }
                out.push(Record {
                    ts_ns: interface.ts_ns(block.u32(12), block.u32(16)),
                    offset: (at + 28) as u32,
                    caplen,
                    len: block.u32(24),
                    link: interface.link,
                    path: path(block, caplen),
                });
            }
            SIMPLE_PACKET => {
                short(16)?;
                let interface = self.interface_mut(0)?;
                let len = block.u32(8);
                let mut caplen = len.min(block.bytes.len() as u32 - 16);
                if interface.snaplen != 0 {
                    caplen = caplen.min(interface.snaplen);
                }
                // The format gives such packets no time.
                out.push(Record {
                    ts_ns: 0,
                    offset: (at + 12) as u32,
                    caplen,
                    len,
                    link: interface.link,
                    path: None,
                });
            }
            // Name resolution, secrets, journal entries, custom blocks.
            _ => {}
        }
        Ok(())
    }

    fn interface_mut(&mut self, id: u32) -> Result<&mut Interface, String> {
        let count = self.interfaces.len();
        self.interfaces
            .get_mut(id as usize)
            .ok_or_else(|| format!("reference to interface {id}, but the section has {count}"))
    }

    /// Why the bytes left over at the end of the file are not a block.
    pub(super) fn explain_rest(&self, rest: &[u8]) -> String {
        let block = Block {
            bytes: rest,
            big_endian: self.big_endian,
        };
        if rest.len() < 12 {
            return format!("the file ends inside a block header ({} bytes)", rest.len());
        }
        format!(
            "the file ends inside a block of type {:#x} ({} of {} bytes)",
            block.u32(0),
            rest.len(),
            block.u32(4)
        )
    }
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

fn interface(block: Block<'_>) -> Interface {
    let mut interface = Interface {
        link: LinkType(block.u16(8)),
        snaplen: block.u32(12),
        resolution: 1_000_000,
        offset: 0,
        dropped: None,
    };
    for (code, value) in block.options(16) {
        match (code, value.bytes.len()) {
            (OPT_IF_TSRESOL, 1) => {
                interface.resolution = resolution(value.bytes[0]).unwrap_or(0);
            }
            (OPT_IF_TSOFFSET, 8) => interface.offset = value.u64(0) as i64,
            _ => {}
        }
    }
    interface
}

/// Ticks a second: a power of ten, or of two when the top bit is set.
fn resolution(code: u8) -> Option<u64> {
    let exponent = u32::from(code & 0x7f);
    let base: u64 = if code & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolutions() {
        assert_eq!(resolution(6), Some(1_000_000));
        assert_eq!(resolution(9), Some(1_000_000_000));
        assert_eq!(resolution(0x80 | 0x14), Some(1 << 20));
        assert!(resolution(20).is_none());
        assert!(resolution(0xff).is_none());
    }

    #[test]
    fn timestamps_in_any_resolution() {
        let at = |resolution, offset, ticks: u64| {
            let interface = Interface {
                link: LinkType::ETHERNET,
                snaplen: 0,
                resolution,
                offset,
                dropped: None,
            };
            interface.ts_ns((ticks >> 32) as u32, ticks as u32)
        };
        assert_eq!(at(1_000_000, 0, 1_500_000), 1_500_000_000);
        assert_eq!(at(1_000_000_000, 2, 5), 2_000_000_005);
        assert_eq!(at(1 << 10, 0, 512), 500_000_000);
        assert_eq!(at(1, -3, 1), -2_000_000_000);
        assert_eq!(at(1, i64::MAX, u64::MAX), i64::MAX, "clamped, no overflow");
    }

    /// Other readers take these options as little-endian whatever the section.
    #[test]
    fn big_endian_drop_counter() {
        let mut file = Vec::new();
        let mut block = |kind: u32, body: &[u8]| {
            let len = (body.len() + 12) as u32;
            file.extend(kind.to_be_bytes());
            file.extend(len.to_be_bytes());
            file.extend(body);
            file.extend(len.to_be_bytes());
        };
        let mut shb = BYTE_ORDER_MAGIC.to_be_bytes().to_vec();
        shb.extend([0, 1, 0, 0]);
        shb.extend([0xff; 8]);
        block(SECTION_HEADER, &shb);
        block(INTERFACE_DESCRIPTION, &[0, 1, 0, 0, 0, 0, 0, 0]);
        let mut isb = vec![0; 12];
        isb.extend([0, 5, 0, 8, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0]);
        block(INTERFACE_STATISTICS, &isb);
        let mut ng = PcapNg::default();
        let mut out = Vec::new();
        assert_eq!(ng.walk(&file, &mut out), (file.len(), None));
        assert_eq!(ng.dropped(), Some(0x102));
    }
}
