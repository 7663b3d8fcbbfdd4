//! The compact form of a decoded packet: what state is kept about, without
//! the bytes.

use std::{borrow::Cow, net::IpAddr};

use super::cm::CmRecord;
use crate::{
    Options, decode,
    frame::{Reason, RoceVersion},
    source::{LinkType, RawPacket},
    wire::{
        Packet,
        aeth::Aeth,
        icrc::Icrc,
        opcode::Opcode,
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
    #[must_use]
    pub fn of(raw: &RawPacket<'_>, options: &Options) -> Self {
        match decode(raw, options) {
            Ok(packet) if packet.is_control() => Self::Skipped(Reason::Control, raw.link),
            Ok(packet) => Self::Packet(Record::new(raw, &packet)),
            Err(skip) => Self::Skipped(skip.reason, raw.link),
        }
    }
}

/// What the tracker asks of every packet, however it is kept.
pub(super) trait Facts {
    /// Operation.
    fn opcode(&self) -> Opcode;
    /// Packet sequence number.
    fn psn(&self) -> Psn;
    /// Nanoseconds since 1970.
    fn ts_ns(&self) -> i64;
    /// Numbers of the input and of the packet in it.
    fn origin(&self) -> (u16, u64);
    /// Bytes of payload on the wire.
    fn payload_len(&self) -> u32;
    /// Bytes of the frame on the wire.
    fn len(&self) -> u32;
    /// Whether the sender asks for an acknowledgement.
    fn ack_req(&self) -> bool;
    /// Remote memory of a request, where the packet names it.
    fn remote(&self) -> Option<Remote>;
    /// Explicit congestion notification bits.
    fn ecn(&self) -> u8;
    /// Outcome of the invariant CRC.
    fn icrc(&self) -> IcrcState;
    /// Tells a copy from a packet sent again.
    fn fingerprint(&self) -> Fingerprint;
    /// Everything, for those who are told of the packet.
    fn record(&self) -> Cow<'_, Record>;
}

impl Facts for Record {
    #[inline]
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    #[inline]
    fn psn(&self) -> Psn {
        self.psn
    }
    #[inline]
    fn ts_ns(&self) -> i64 {
        self.ts_ns
    }
    #[inline]
    fn origin(&self) -> (u16, u64) {
        (self.input, self.frame)
    }
    #[inline]
    fn payload_len(&self) -> u32 {
        self.payload_len
    }
    #[inline]
    fn len(&self) -> u32 {
        self.len
    }
    #[inline]
    fn ack_req(&self) -> bool {
        self.ack_req
    }
    #[inline]
    fn remote(&self) -> Option<Remote> {
        self.remote
    }
    #[inline]
    fn ecn(&self) -> u8 {
        self.ecn
    }
    #[inline]
    fn icrc(&self) -> IcrcState {
        self.icrc
    }
    #[inline]
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
    #[inline]
    fn record(&self) -> Cow<'_, Record> {
        Cow::Borrowed(self)
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
