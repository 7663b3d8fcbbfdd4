//! Classic pcap files: a 24-byte header, then records of 16 bytes and data
//! (draft-ietf-opsawg-pcap).

use super::{LinkType, Record};

/// Largest packet a record may claim, as in Wireshark: more is damage.
pub(super) const MAX_CAPTURED: u32 = 256 * 1024 * 1024 / 16;

const NANOSECONDS: u32 = 0xa1b2_3c4d;
const MICROSECONDS: u32 = 0xa1b2_c3d4;
/// Kuznetzov's variant, written by old Linux tools: 24-byte record headers.
const MODIFIED: u32 = 0xa1b2_cd34;

/// What is wrong at which offset of the buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub at: usize,
    pub reason: String,
}

/// A walk over the records in a buffer: what was consumed, and whether the
/// walk ended at damage.
pub(super) type Walk = (usize, Option<Damage>);

/// How to read the records of one pcap file.
#[derive(Debug)]
pub(super) struct Pcap {
    big_endian: bool,
    ns_per_tick: i64,
    link: LinkType,
    record_header: usize,
}

pub(super) const HEADER: usize = 24;

fn word(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let bytes = bytes[at..at + 4].try_into().unwrap_or_default();
    if big_endian {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    }
}

impl Pcap {
    /// True when a file that begins with these four bytes is classic pcap.
    pub(super) fn recognises(magic: [u8; 4]) -> bool {
        [u32::from_le_bytes(magic), u32::from_be_bytes(magic)]
            .iter()
            .any(|m| matches!(*m, MICROSECONDS | NANOSECONDS | MODIFIED))
    }

    /// Reads the file header; `header` is at least [`HEADER`] bytes of which
    /// [`Pcap::recognises`] accepted the first four.
    pub(super) fn new(header: &[u8]) -> Self {
        let little = word(header, 0, false);
        let big_endian = !matches!(little, MICROSECONDS | NANOSECONDS | MODIFIED);
        let magic = word(header, 0, big_endian);
        Self {
            big_endian,
            ns_per_tick: if magic == NANOSECONDS { 1 } else { 1000 },
            // The upper half holds the length of a frame check sequence.
            link: LinkType(word(header, 20, big_endian) as u16),
            record_header: if magic == MODIFIED { 24 } else { 16 },
        }
    }

    /// Indexes the whole records at the front of `bytes`.
    pub(super) fn walk(&self, bytes: &[u8], out: &mut Vec<Record>) -> Walk {
        if self.big_endian {
            self.walk_as::<true>(bytes, out)
        } else {
            self.walk_as::<false>(bytes, out)
        }
    }

    fn walk_as<const BIG: bool>(&self, bytes: &[u8], out: &mut Vec<Record>) -> Walk {
        let mut at = 0;
        while let Some(header) = bytes[at..].first_chunk::<16>() {
            let caplen = word(header, 8, BIG);
            if caplen > MAX_CAPTURED {
                let reason = format!("the record claims {caplen} captured bytes");
                return (at, Some(Damage { at, reason }));
            }
            let start = at + self.record_header;
            if bytes.len() < start + caplen as usize {
                break;
            }
            let seconds = i64::from(word(header, 0, BIG));
            let fraction = i64::from(word(header, 4, BIG));
            out.push(Record {
                ts_ns: seconds * 1_000_000_000 + fraction * self.ns_per_tick,
                offset: start as u32,
                caplen,
                len: word(header, 12, BIG),
                link: self.link,
                path: None,
            });
            at = start + caplen as usize;
        }
        (at, None)
    }

    /// Why the bytes left over at the end of the file are not a record.
    pub(super) fn explain_rest(&self, rest: &[u8]) -> String {
        if rest.len() < self.record_header {
            return format!(
                "the file ends inside a record header ({} of {} bytes)",
                rest.len(),
                self.record_header
            );
        }
        format!(
            "the file ends inside a packet ({} of {} bytes)",
            rest.len() - self.record_header,
            word(rest, 8, self.big_endian)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(magic: [u8; 4], big: bool, link: u32) -> Vec<u8> {
        let mut h = magic.to_vec();
        h.resize(20, 0);
        h.extend(if big {
            link.to_be_bytes()
        } else {
            link.to_le_bytes()
        });
        h
    }

    fn record(big: bool, words: [u32; 4], data: &[u8]) -> Vec<u8> {
        let mut r = Vec::new();
        for w in words {
            r.extend(if big {
                w.to_be_bytes()
            } else {
                w.to_le_bytes()
            });
        }
        r.extend(data);
        r
    }

    #[test]
    fn both_byte_orders_and_resolutions() {
        for (magic, big, nanos, ts) in [
            (MICROSECONDS.to_le_bytes(), false, false, 5_000_007_000),
            (MICROSECONDS.to_be_bytes(), true, false, 5_000_007_000),
            (NANOSECONDS.to_le_bytes(), false, true, 5_000_000_007),
            (NANOSECONDS.to_be_bytes(), true, true, 5_000_000_007),
        ] {
            assert!(Pcap::recognises(magic));
            let pcap = Pcap::new(&header(magic, big, 1));
            let mut bytes = record(big, [5, 7, 3, 60], b"abc");
            bytes.extend(record(big, [6, 0, 2, 2], b"de"));
            bytes.extend(record(big, [6, 0, 9, 9], b"cut"));
            let mut out = Vec::new();
            let (used, damage) = pcap.walk(&bytes, &mut out);
            assert_eq!(damage, None);
            assert_eq!(used, 16 + 3 + 16 + 2);
            assert_eq!(out.len(), 2);
            assert_eq!((out[0].ts_ns, out[0].caplen, out[0].len), (ts, 3, 60));
            assert_eq!(out[1].offset, 16 + 3 + 16);
            assert!(
                pcap.explain_rest(&bytes[used..]).contains("3 of 9 bytes"),
                "{nanos}"
            );
        }
    }

    #[test]
    fn absurd_length_is_damage() {
        let pcap = Pcap::new(&header(MICROSECONDS.to_le_bytes(), false, 1));
        let mut bytes = record(false, [0, 0, 1, 1], b"x");
        bytes.extend(record(false, [0, 0, u32::MAX, 1], b""));
        let mut out = Vec::new();
        let (used, damage) = pcap.walk(&bytes, &mut out);
        assert_eq!((used, out.len()), (17, 1));
        assert_eq!(damage.unwrap().at, 17);
    }
}
