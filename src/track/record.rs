//! The compact form of a decoded packet: what state is kept about, without
//! the bytes.

use std::net::IpAddr;

use crate::{
    frame::{Reason, RoceVersion},
    source::{LinkType, RawPacket},
    wire::{
        Packet,
        aeth::Aeth,
        icrc::Icrc,
        opcode::Opcode,
        types::{Psn, QpNumber},
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

/// A decoded packet without its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Flow the packet belongs to.
    pub flow: FlowKey,
    /// Number of the input, from 0.
    pub input: u16,
    /// Number of the packet in its input, from 1.
    pub frame: u64,
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub ts_ns: i64,
    /// Operation.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: Psn,
    /// Acknowledgement, where the packet has one.
    pub aeth: Option<Aeth>,
    /// Bytes of payload on the wire.
    pub payload_len: u32,
    /// Explicit congestion notification bits.
    pub ecn: u8,
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
}

impl Record {
    /// Takes down what matters of a packet.
    #[must_use]
    pub fn new(raw: &RawPacket<'_>, packet: &Packet<'_>) -> Self {
        Self {
            flow: FlowKey {
                src: packet.datagram.src,
                dst: packet.datagram.dst,
                dest_qp: packet.bth.dest_qp,
            },
            input: raw.input,
            frame: raw.frame,
            ts_ns: raw.ts_ns,
            opcode: packet.bth.opcode,
            psn: packet.bth.psn,
            aeth: packet.ext.aeth,
            payload_len: packet.payload_len,
            ecn: packet.datagram.ecn(),
            icrc: match packet.icrc {
                Icrc::Valid => IcrcState::Valid,
                Icrc::Invalid { .. } => IcrcState::Invalid,
                Icrc::Unverifiable(_) => IcrcState::Unverifiable,
            },
            v1: packet.datagram.version == RoceVersion::V1,
            truncated: packet.truncated,
            malformed: packet.malformed,
            fragment: packet.datagram.fragment,
        }
    }
}

/// What became of one captured frame.
#[derive(Debug, Clone, Copy)]
pub enum Observed {
    /// A RoCE packet.
    Packet(Record),
    /// A RoCE packet that the user's filter left out.
    FilteredOut,
    /// No RoCE packet, or none that could be decoded.
    Skipped(Reason, LinkType),
}
