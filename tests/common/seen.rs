//! Packets taken apart by hand, for the recount: Ethernet, VLAN tags, IP, UDP
//! and the headers of the transport.

use super::{capfile::Pkt, craft};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Source, destination, destination queue pair.
pub type Key = (IpAddr, IpAddr, u32);

/// What an opcode's packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SEND, WRITE, READ, atomic of a transport with a sequence.
    Request,
    /// READ response.
    Response,
    /// ACK, NAK, RNR NAK, atomic answer.
    Answer,
    /// Nothing with a sequence that is followed.
    Other,
}

/// One packet, from its bytes.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Place in the capture, from 0.
    pub index: usize,
    /// Time.
    pub ts_ns: i64,
    /// Flow.
    pub key: Key,
    /// Opcode.
    pub opcode: u8,
    /// Sequence number as it stands in the packet.
    pub psn: u32,
    /// An acknowledgement is asked for.
    pub ack_req: bool,
    /// Bytes of payload.
    pub payload: u64,
    /// Bytes of the frame.
    pub wire: u64,
    /// Syndrome of its AETH.
    pub syndrome: Option<u8>,
    /// Address, key and length of remote memory.
    pub remote: Option<(u64, u32, u32)>,
    /// What copies have in common: the ICRC and the IPv4 identification.
    pub copy: ([u8; 4], u16),
    /// Congestion bits.
    pub ecn: u8,
    /// Whether the ICRC is right; `None` where it was cut off.
    pub icrc: Option<bool>,
    /// Management datagram of QP 1.
    pub mad: Option<Vec<u8>>,
}

fn be(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + len)?;
    Some(bytes.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)))
}

/// Bytes of extension headers, and where RETH, `AtomicETH` and AETH stand.
#[derive(Default)]
struct Layout {
    size: usize,
    reth: Option<usize>,
    atomic: Option<usize>,
    aeth: Option<usize>,
}

fn layout(opcode: u8) -> Layout {
    let mut layout = Layout::default();
    let low = opcode & 0x1f;
    let mut take = |size: usize| {
        layout.size += size;
        Some(layout.size - size)
    };
    let mut reth = None;
    let mut atomic = None;
    let mut aeth = None;
    if opcode == 0x81 {
        take(16);
    } else {
        if opcode >> 5 == 3 {
            take(8);
        }
        match low {
            0x06 | 0x0a | 0x0c | 0x1d => reth = take(16),
            0x0b => {
                reth = take(16);
                take(4);
            }
            0x1c => {
                take(4);
                reth = take(16);
            }
            0x03 | 0x05 | 0x09 | 0x16 | 0x17 => {
                take(4);
            }
            0x0d | 0x0f | 0x10 | 0x11 => aeth = take(4),
            0x12 => {
                aeth = take(4);
                take(8);
            }
            0x13 | 0x14 => atomic = take(28),
            _ => {}
        }
    }
    Layout {
        reth,
        atomic,
        aeth,
        ..layout
    }
}

impl Seen {
    /// Takes an Ethernet frame apart; `None` where it holds no `RoCEv2`.
    pub fn parse(index: usize, packet: &Pkt) -> Option<Self> {
        let frame = &packet.data;
        let mut at = 12;
        while matches!(be(frame, at, 2)?, 0x8100 | 0x88a8) {
            at += 4;
        }
        let kind = be(frame, at, 2)?;
        let ip = &frame[at + 2..];
        let (udp, src, dst, ecn, ip_id) = match kind {
            0x0800 if be(ip, 0, 1)? >> 4 == 4 && be(ip, 9, 1)? == 17 => {
                // A later fragment has no headers of its own.
                if be(ip, 6, 2)? & 0x1fff != 0 {
                    return None;
                }
                let address = |at| Some(IpAddr::V4(Ipv4Addr::from_bits(be(ip, at, 4)? as u32)));
                let udp = usize::from(ip[0] & 0x0f) * 4;
                (
                    udp,
                    address(12)?,
                    address(16)?,
                    ip[1] & 3,
                    be(ip, 4, 2)? as u16,
                )
            }
            0x86dd if be(ip, 0, 1)? >> 4 == 6 && be(ip, 6, 1)? == 17 => {
                let address = |at| {
                    let high = u128::from(be(ip, at, 8)?) << 64;
                    let all = high | u128::from(be(ip, at + 8, 8)?);
                    Some(IpAddr::V6(Ipv6Addr::from_bits(all)))
                };
                (40, address(8)?, address(24)?, ip[1] >> 4 & 3, 0)
            }
            _ => return None,
        };
        if be(ip, udp + 2, 2)? != 4791 {
            return None;
        }
        let udp_len = be(ip, udp + 4, 2)? as usize;
        let bth = udp + 8;
        let opcode = *ip.get(bth)?;
        let pad = usize::from(ip.get(bth + 1)? >> 4 & 3);
        let qp = be(ip, bth + 5, 3)? as u32;
        let psn = be(ip, bth + 9, 3)? as u32;
        let layout = layout(opcode);
        let ext = |at: Option<usize>| at.map(|at| bth + 12 + at);
        let memory = |at: usize| {
            Some((
                be(ip, at, 8)?,
                be(ip, at + 8, 4)? as u32,
                be(ip, at + 12, 4)? as u32,
            ))
        };
        let reth = ext(layout.reth).and_then(memory);
        let atomic = ext(layout.atomic).and_then(memory);
        let end = udp + udp_len;
        let whole = ip.get(..end);
        let trailer = whole.and_then(|ip| ip[end - 4..].try_into().ok());
        Some(Self {
            index,
            ts_ns: packet.ts_ns as i64,
            key: (src, dst, qp),
            opcode,
            psn,
            ack_req: ip[bth + 8] >> 7 == 1,
            payload: udp_len.saturating_sub(8 + 12 + layout.size + pad + 4) as u64,
            wire: u64::from(packet.len),
            syndrome: ext(layout.aeth).and_then(|at| ip.get(at).copied()),
            remote: reth.or(atomic.map(|(va, rkey, _)| (va, rkey, 8))),
            copy: (trailer.unwrap_or_default(), ip_id),
            ecn,
            icrc: whole.map(|ip| craft::icrc(ip)[..] == ip[end - 4..]),
            mad: (qp == 1 && opcode == 0x64)
                .then(|| ip.get(bth + 20..bth + 20 + 256).map(<[u8]>::to_vec))
                .flatten(),
        })
    }

    /// All packets of a capture.
    pub fn all(packets: &[Pkt]) -> Vec<Self> {
        let parse = |(index, packet)| Self::parse(index, packet);
        packets.iter().enumerate().filter_map(parse).collect()
    }

    /// What its opcode makes it.
    pub fn kind(&self) -> Kind {
        let low = self.opcode & 0x1f;
        match self.opcode >> 5 {
            3 if self.key.2 == 1 => Kind::Other,
            3 if matches!(low, 4 | 5) => Kind::Request,
            1 if low <= 0x0b => Kind::Request,
            0 | 5 => match low {
                0x0d..=0x10 => Kind::Response,
                0x11 | 0x12 => Kind::Answer,
                0x00..=0x0c | 0x13 | 0x14 | 0x16 | 0x17 => Kind::Request,
                0x1c | 0x1d if self.opcode >> 5 == 0 => Kind::Request,
                _ => Kind::Other,
            },
            _ => Kind::Other,
        }
    }

    /// A message begins with it.
    pub fn begins(&self) -> bool {
        !matches!(self.opcode & 0x1f, 0x01..=0x03 | 0x07..=0x09 | 0x16)
    }

    /// A message ends with it.
    pub fn ends(&self) -> bool {
        !matches!(self.opcode & 0x1f, 0x00 | 0x01 | 0x06 | 0x07)
    }

    /// A READ request.
    pub fn is_read(&self) -> bool {
        self.opcode & 0x1f == 0x0c
    }

    /// An atomic request.
    pub fn is_atomic(&self) -> bool {
        matches!(self.opcode & 0x1f, 0x13 | 0x14)
    }

    /// PSNs that the packet takes up.
    pub fn span(&self, mtu: Option<u64>) -> i64 {
        let len = self.remote.map_or(0, |(_, _, len)| u64::from(len));
        match mtu {
            Some(mtu) if self.is_read() => len.div_ceil(mtu).max(1) as i64,
            _ => 1,
        }
    }
}

/// Distance of a PSN from another, forwards or backwards.
pub fn distance(psn: u32, base: u32) -> i64 {
    let ahead = i64::from(psn.wrapping_sub(base) & 0xff_ffff);
    if ahead < 1 << 23 {
        ahead
    } else {
        ahead - (1 << 24)
    }
}
