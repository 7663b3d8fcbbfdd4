//! The compact form of a decoded packet: what state is kept about, without
//! the bytes.

use std::net::IpAddr;

use super::cm::CmRecord;
use crate::{
    Options, decode,
    frame::{self, Reason, RoceVersion},
    source::{LinkType, RawPacket},
    wire::{
        Packet,
        aeth::Aeth,
        bth::Bth,
        icrc::Icrc,
        opcode::{Ext, Opcode},
        reth::Reth,
        types::{Psn, QpNumber, RKey, VirtualAddr},
    },
};

/// A directed flow: RC packets carry no source queue pair, so this is all
/// that tells one stream of packets from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Queue pair at the destination.
    pub dest_qp: QpNumber,
}

impl FlowKey {
    /// A number that spreads keys over a table; not for keys that somebody
    /// chose in order to collide.
    #[inline]
    #[must_use]
    pub(super) fn scatter(&self) -> u64 {
        let fold = |address: IpAddr| match address {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
        };
        let mixed =
            fold(self.src) ^ fold(self.dst).rotate_left(32) ^ u64::from(self.dest_qp.get()) << 20;
        mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

/// Outcome of the invariant CRC, without the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcrcState {
    /// Found as computed.
    Valid,
    /// Not as computed.
    Invalid,
    /// Could not be checked.
    Unverifiable,
}

/// Memory of the responder that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// First address.
    pub va: VirtualAddr,
    /// Key of the memory region.
    pub rkey: RKey,
    /// Bytes; 8 for atomics.
    pub len: u32,
}

/// What tells copies of one packet from a packet sent again: the invariant
/// CRC covers everything that does not change from hop to hop, and senders
/// number their IPv4 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// Invariant CRC as it stands in the packet, where it was captured.
    pub icrc: Option<u32>,
    /// IPv4 identification; 0 with IPv6.
    pub ip_id: u16,
}

/// A decoded packet without its bytes.
#[derive(Debug, Clone)]
pub struct Record {
    /// Flow the packet belongs to.
    pub flow: FlowKey,
    /// Number of the input, from 0.
    pub input: u16,
    /// Number of the packet in its input, from 1.
    pub frame: u64,
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub ts_ns: i64,
    /// UDP source port; 0 with RoCEv1.
    pub sport: u16,
    /// Operation.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: Psn,
    /// Acknowledgement, where the packet has one.
    pub aeth: Option<Aeth>,
    /// Remote memory of a request, where the packet names it.
    pub remote: Option<Remote>,
    /// Source queue pair, which only datagrams carry.
    pub src_qp: Option<QpNumber>,
    /// Bytes of payload on the wire.
    pub payload_len: u32,
    /// Bytes of the frame on the wire.
    pub len: u32,
    /// Tells a copy from a packet sent again.
    pub fingerprint: Fingerprint,
    /// Whether the sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Explicit congestion notification bits.
    pub ecn: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// Priority in the innermost VLAN tag, where there is one.
    pub priority: Option<u8>,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// Outcome of the invariant CRC.
    pub icrc: IcrcState,
    /// RoCEv1 rather than v2.
    pub v1: bool,
    /// Cut by the capture.
    pub truncated: bool,
    /// Lengths that contradict the opcode.
    pub malformed: bool,
    /// First fragment of an IP datagram.
    pub fragment: bool,
    /// Message of the communication manager, where the packet is one. Boxed:
    /// few packets are.
    pub cm: Option<Box<CmRecord>>,
}

impl Record {
    /// Takes down what matters of a packet.
    #[must_use]
    pub fn new(raw: &RawPacket<'_>, packet: &Packet<'_>) -> Self {
        let ext = &packet.ext;
        let reth = ext.reth.map(|reth| Remote {
            va: reth.va,
            rkey: reth.rkey,
            len: reth.dma_len,
        });
        let atomic = ext.atomic.map(|atomic| Remote {
            va: atomic.va,
            rkey: atomic.rkey,
            len: 8,
        });
        Self {
            flow: FlowKey {
                src: packet.datagram.src,
                dst: packet.datagram.dst,
                dest_qp: packet.bth.dest_qp,
            },
            input: raw.input,
            frame: raw.frame,
            ts_ns: raw.ts_ns,
            sport: packet.datagram.sport.unwrap_or(0),
            opcode: packet.bth.opcode,
            psn: packet.bth.psn,
            aeth: ext.aeth,
            remote: reth.or(atomic),
            src_qp: ext.deth.map(|deth| deth.src_qp),
            payload_len: packet.payload_len,
            len: raw.len,
            fingerprint: Fingerprint {
                icrc: packet.icrc_bytes().map(u32::from_le_bytes),
                ip_id: packet.datagram.ip_id(),
            },
            ack_req: packet.bth.ack_req,
            ecn: packet.datagram.ecn(),
            dscp: packet.datagram.dscp(),
            priority: packet.datagram.priority,
            ttl: packet.datagram.ttl,
            icrc: packet.icrc.into(),
            v1: packet.datagram.version == RoceVersion::V1,
            truncated: packet.truncated,
            malformed: packet.malformed,
            fragment: packet.datagram.fragment,
            cm: packet.cm().map(|cm| Box::new(CmRecord::new(&cm))),
        }
    }
}

#[cfg(test)]
impl Record {
    /// A packet with nothing special about it, for tests to build on.
    pub(crate) fn plain(flow: FlowKey, opcode: Opcode, psn: Psn) -> Self {
        Self {
            flow,
            input: 0,
            frame: 1,
            ts_ns: 0,
            sport: 0,
            opcode,
            psn,
            aeth: None,
            remote: None,
            src_qp: None,
            payload_len: 0,
            len: 0,
            fingerprint: Fingerprint {
                icrc: None,
                ip_id: 0,
            },
            ack_req: false,
            ecn: 0,
            dscp: 0,
            priority: None,
            ttl: 64,
            icrc: IcrcState::Valid,
            v1: false,
            truncated: false,
            malformed: false,
            fragment: false,
            cm: None,
        }
    }
}

impl Record {
    /// [`Record::new`] of what [`crate::decode`] makes of a plain frame, in
    /// one go, for the packets that most are: with no extension header, with a
    /// RETH or an AETH. `None` sends all others the long way.
    #[inline]
    fn quick(raw: &RawPacket<'_>, options: Options) -> Option<Self> {
        let datagram = frame::plain(raw, options.frame)?;
        let (after, bth) = Bth::parse(datagram.ib).ok()?;
        let info = bth.opcode.info();
        if bth.opcode.0 == 0xff || bth.dest_qp == QpNumber::GSI {
            return None;
        }
        let body = datagram.ib_len.checked_sub(Bth::SIZE + Icrc::SIZE)?;
        let ext = &after[..after.len().min(body)];
        let (aeth, remote) = match info.ext_size {
            0 => (None, None),
            4 if info.ext.contains(Ext::Aeth) => (Some(Aeth::parse(ext).ok()?.1), None),
            16 if info.ext.contains(Ext::Reth) => {
                let (_, reth) = Reth::parse(ext).ok()?;
                let remote = Remote {
                    va: reth.va,
                    rkey: reth.rkey,
                    len: reth.dma_len,
                };
                (None, Some(remote))
            }
            _ => return None,
        };
        let overhead = usize::from(info.ext_size) + usize::from(bth.pad);
        let icrc = datagram.ib.last_chunk::<4>().filter(|_| !datagram.cut);
        Some(Self {
            flow: FlowKey {
                src: datagram.src,
                dst: datagram.dst,
                dest_qp: bth.dest_qp,
            },
            input: raw.input,
            frame: raw.frame,
            ts_ns: raw.ts_ns,
            sport: datagram.sport.unwrap_or(0),
            opcode: bth.opcode,
            psn: bth.psn,
            aeth,
            remote,
            src_qp: None,
            payload_len: body.saturating_sub(overhead) as u32,
            len: raw.len,
            fingerprint: Fingerprint {
                icrc: icrc.map(|bytes| u32::from_le_bytes(*bytes)),
                ip_id: datagram.ip_id(),
            },
            ack_req: bth.ack_req,
            ecn: datagram.ecn(),
            dscp: datagram.dscp(),
            priority: datagram.priority,
            ttl: datagram.ttl,
            icrc: if options.verify_icrc {
                Icrc::check(&datagram).into()
            } else {
                IcrcState::Unverifiable
            },
            v1: false,
            truncated: datagram.cut,
            malformed: body < overhead,
            fragment: false,
            cm: None,
        })
    }
}

impl From<Icrc> for IcrcState {
    fn from(icrc: Icrc) -> Self {
        match icrc {
            Icrc::Valid => Self::Valid,
            Icrc::Invalid { .. } => Self::Invalid,
            Icrc::Unverifiable(_) => Self::Unverifiable,
        }
    }
}

impl Observed {
    /// Decodes a captured frame and takes down what matters of it.
    #[inline]
    #[must_use]
    pub fn of(raw: &RawPacket<'_>, options: &Options) -> Self {
        match Record::quick(raw, *options) {
            Some(record) => Self::Packet(record),
            None => Self::of_any(raw, options),
        }
    }

    /// [`Observed::of`] without its short cut: the same for every frame, and
    /// slower for most.
    #[must_use]
    pub fn of_any(raw: &RawPacket<'_>, options: &Options) -> Self {
        match decode(raw, options) {
            Ok(packet) if packet.is_control() => Self::Skipped(Reason::Control, raw.link),
            Ok(packet) => Self::Packet(Record::new(raw, &packet)),
            Err(skip) => Self::Skipped(skip.reason, raw.link),
        }
    }
}

/// What became of one captured frame.
#[derive(Debug, Clone)]
pub enum Observed {
    /// A RoCE packet.
    Packet(Record),
    /// A RoCE packet that the user's filter left out.
    FilteredOut,
    /// No RoCE packet, or none that could be decoded.
    Skipped(Reason, LinkType),
}
