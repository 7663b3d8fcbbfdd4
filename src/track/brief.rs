//! Plain packets in the 64 bytes of a cache line each: what nearly all packets
//! of a capture are, and what most of the time goes into.

use std::borrow::Cow;

use super::{Fingerprint, FlowKey, IcrcState, Record, Remote, record::Facts, summary::Marks};
use crate::{
    Options,
    frame::{Head, Plain},
    source::RawPacket,
    wire::{
        aeth::Aeth,
        bth::Bth,
        icrc::Icrc,
        opcode::{Ext, Opcode, OpcodeInfo},
        reth::Reth,
        types::{Msn, Psn, QpNumber, RKey, VirtualAddr},
    },
};

/// Extension header of a plain packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extended {
    Not,
    Aeth,
    Reth,
}

impl Extended {
    /// `None` where the headers of an opcode are others.
    fn of(info: &OpcodeInfo) -> Option<Self> {
        match info.ext_size {
            0 => Some(Self::Not),
            4 if info.ext.contains(Ext::Aeth) => Some(Self::Aeth),
            16 if info.ext.contains(Ext::Reth) => Some(Self::Reth),
            _ => None,
        }
    }

    /// Virtual address, rkey, and DMA length or AETH, as far as there are any;
    /// `None` where the header is not whole.
    #[inline]
    fn read(self, ext: &[u8]) -> Option<(u64, u32, u32)> {
        match self {
            Self::Not => Some((0, 0, 0)),
            Self::Aeth => {
                let word = ext.first_chunk()?;
                Some((0, 0, u32::from_be_bytes(*word)))
            }
            Self::Reth => {
                let (_, reth) = Reth::parse(ext).ok()?;
                Some((reth.va.get(), reth.rkey.get(), reth.dma_len))
            }
        }
    }
}

/// Bits of [`Brief::flags`].
mod flag {
    pub const ACK_REQ: u8 = 1;
    pub const TRUNCATED: u8 = 2;
    pub const MALFORMED: u8 = 4;
    pub const CONGESTED: u8 = 8;
    /// Bits there are.
    pub const BITS: u32 = 4;
}

/// What a packet is to the tracker, as far as it shows by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// SEND or WRITE of a reliable connection, the opcodes up to 0x0b, with
    /// nothing to tell of it.
    Request,
    /// ACK, NAK or RNR NAK of a reliable connection, likewise.
    Acknowledge,
    /// All others.
    Other,
    /// Not plain: one of the records of the stretch, with the number that else
    /// is the flow's.
    Long,
}

/// A decoded plain packet; [`InStretch::record`] says the same at length.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Brief {
    pub ts_ns: i64,
    frame: u64,
    va: u64,
    rkey: u32,
    /// DMA length, or the AETH.
    word: u32,
    pub len: u32,
    icrc_word: u32,
    pub psn: u32,
    /// Place of the flow among those of its stretch.
    pub flow: u32,
    /// No IPv4 packet has more.
    pub payload_len: u16,
    input: u16,
    sport: u16,
    ip_id: u16,
    pub opcode: Opcode,
    traffic_class: u8,
    ttl: u8,
    flags: u8,
    icrc: IcrcState,
    extended: Extended,
    pub class: Class,
}

// A cache line: the tracker reads them one after the other.
const _: () = assert!(size_of::<Brief>() == 64);

/// Places for flows seen a moment ago: a power of two.
const PLACES: usize = 1 << 10;

/// Addresses and queue pair, compared in one go.
type Ends = [u32; 3];

/// Numbers the flows of a stretch. One that was not seen for a while may get
/// another number.
#[derive(Debug)]
pub(super) struct Numbers {
    flows: Vec<Ends>,
    places: [u32; PLACES],
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            places: [0; PLACES],
        }
    }
}

impl Numbers {
    pub fn clear(&mut self) {
        // What the places hold is compared before it is believed.
        self.flows.clear();
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.flows.len()
    }

    /// The flow with this number.
    pub fn key(&self, number: u32) -> FlowKey {
        let [src, dst, qp] = self.flows[number as usize];
        FlowKey {
            src: std::net::Ipv4Addr::from_bits(src).into(),
            dst: std::net::Ipv4Addr::from_bits(dst).into(),
            dest_qp: QpNumber::new(qp),
        }
    }

    #[inline]
    fn number(&mut self, ends: Ends) -> u32 {
        let mixed = u64::from(ends[0]) ^ u64::from(ends[1]) << 32 ^ u64::from(ends[2]) << 20;
        let place = &mut self.places[(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize];
        if self.flows.get(*place as usize) != Some(&ends) {
            *place = self.flows.len() as u32;
            self.flows.push(ends);
        }
        *place
    }
}

impl Brief {
    /// No packet at all.
    pub const NONE: Self = Self {
        ts_ns: 0,
        frame: 0,
        va: 0,
        rkey: 0,
        word: 0,
        len: 0,
        icrc_word: 0,
        psn: 0,
        flow: 0,
        payload_len: 0,
        input: 0,
        sport: 0,
        ip_id: 0,
        opcode: Opcode(0xff),
        traffic_class: 0,
        ttl: 0,
        flags: 0,
        icrc: IcrcState::Unverifiable,
        extended: Extended::Not,
        class: Class::Other,
    };

    /// A packet that is not plain: the one at this place among the records.
    pub fn long(place: u32) -> Self {
        Self {
            flow: place,
            class: Class::Long,
            ..Self::NONE
        }
    }

    /// What [`Record::new`] makes of a packet, in one go, where the packet is
    /// plain: with no extension header, with a RETH or an AETH. `None` sends
    /// all others the long way.
    pub fn of(raw: &RawPacket<'_>, options: Options, numbers: &mut Numbers) -> Option<Self> {
        let plain = Plain::find(raw, options.frame)?;
        let (after, bth) = Bth::parse(plain.ib()).ok()?;
        let info = bth.opcode.info();
        if bth.opcode.0 == 0xff || bth.dest_qp == QpNumber::GSI {
            return None;
        }
        let body = plain.ib_len().checked_sub(Bth::SIZE + Icrc::SIZE)?;
        let ext = &after[..after.len().min(body)];
        let extended = Extended::of(info)?;
        let (va, rkey, word) = extended.read(ext)?;
        let overhead = usize::from(info.ext_size) + usize::from(bth.pad);
        let cut = plain.cut();
        let (icrc_word, icrc) = Self::invariant(&plain, options);
        let set = |flag: u8, is: bool| flag * u8::from(is);
        let flags = set(flag::ACK_REQ, bth.ack_req)
            | set(flag::TRUNCATED, cut)
            | set(flag::MALFORMED, body < overhead)
            | set(flag::CONGESTED, plain.traffic_class() & 3 == 3);
        let special =
            flags & (flag::MALFORMED | flag::CONGESTED) != 0 || icrc == IcrcState::Invalid;
        let [src, dst] = plain.addresses();
        Some(Self {
            ts_ns: raw.ts_ns,
            frame: raw.frame,
            va,
            rkey,
            word,
            payload_len: body.saturating_sub(overhead) as u16,
            len: raw.len,
            icrc_word,
            psn: bth.psn.get(),
            flow: numbers.number([src.to_bits(), dst.to_bits(), bth.dest_qp.get()]),
            input: raw.input,
            sport: plain.sport(),
            ip_id: plain.ip_id(),
            opcode: bth.opcode,
            traffic_class: plain.traffic_class(),
            ttl: plain.ttl(),
            flags,
            icrc,
            extended,
            class: match bth.opcode {
                _ if special => Class::Other,
                Opcode(0..=0x0b) => Class::Request,
                Opcode::RC_ACKNOWLEDGE => Class::Acknowledge,
                _ => Class::Other,
            },
        })
    }

    /// Invariant CRC as it stands in a packet that is not cut, and what it is
    /// worth.
    #[inline]
    fn invariant(plain: &Plain<'_>, options: Options) -> (u32, IcrcState) {
        if plain.cut() {
            return (0, IcrcState::Unverifiable);
        }
        let word = plain.ib().last_chunk().copied().unwrap_or_default();
        let state = if options.verify_icrc {
            Icrc::check(&plain.datagram()).into()
        } else {
            IcrcState::Unverifiable
        };
        (u32::from_le_bytes(word), state)
    }

    /// Goes over to a packet whose headers are alike, that is as long and of
    /// which as much was captured. Whether its invariant CRC is worth what that
    /// of the other one is; `None` where headers are not there, which those of a
    /// packet like a whole one always are.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    pub fn renew(&mut self, raw: &RawPacket<'_>, options: Options) -> Option<bool> {
        let (psn, ip_id) = Head::numbers(raw.data)?;
        self.ts_ns = raw.ts_ns;
        self.frame = raw.frame;
        self.psn = psn.get();
        self.ip_id = ip_id;
        if self.extended != Extended::Not {
            (self.va, self.rkey, self.word) = self.extended.read(Head::rest(raw.data))?;
        }
        if self.is(flag::TRUNCATED) {
            return Some(true);
        }
        let before = self.icrc;
        let plain = Plain::find(raw, options.frame)?;
        (self.icrc_word, self.icrc) = Self::invariant(&plain, options);
        if self.icrc == IcrcState::Invalid {
            self.class = Class::Other;
        }
        Some(self.icrc == before)
    }

    /// Input, marks and traffic class in 30 bits, of which those of packets of
    /// one burst are equal.
    pub const fn kind(&self) -> u32 {
        let marks = ((self.flags & !flag::ACK_REQ) as u32) << 2 | self.icrc as u32;
        (self.input as u32) << 14 | marks << 8 | self.traffic_class as u32
    }

    /// Whether its sender asks for an acknowledgement.
    pub const fn asks(&self) -> bool {
        self.is(flag::ACK_REQ)
    }

    /// Whether it has a RETH.
    pub fn names_memory(&self) -> bool {
        self.extended == Extended::Reth
    }

    /// Whether a frame of the same input has the same length.
    #[inline]
    pub const fn is_as_long(&self, raw: &RawPacket<'_>) -> bool {
        self.len == raw.len && self.input == raw.input
    }

    /// Whether its class is that of all packets whose headers are alike.
    pub fn is_sound(&self) -> bool {
        self.icrc != IcrcState::Invalid
    }

    /// What is counted over all packets, as one number below [`Brief::MARKS`].
    #[inline]
    pub const fn marks(&self) -> usize {
        self.flags as usize | (self.icrc as usize) << flag::BITS
    }

    /// Numbers that [`Brief::marks`] may be.
    pub const MARKS: usize = 4 << flag::BITS;

    /// What marks stand for.
    pub const fn marked(marks: usize) -> Marks {
        let flags = marks as u8;
        Marks {
            truncated: flags & flag::TRUNCATED != 0,
            malformed: flags & flag::MALFORMED != 0,
            congested: flags & flag::CONGESTED != 0,
            icrc: match marks >> flag::BITS {
                0 => IcrcState::Valid,
                1 => IcrcState::Invalid,
                _ => IcrcState::Unverifiable,
            },
        }
    }

    const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Acknowledgement, where the packet has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        (self.extended == Extended::Aeth).then(|| Aeth {
            syndrome: (self.word >> 24) as u8,
            msn: Msn::new(self.word),
        })
    }

    /// Differentiated services code point.
    #[inline]
    pub const fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }
}

/// A plain packet in its stretch, which knows the flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct InStretch<'a> {
    pub brief: &'a Brief,
    pub numbers: &'a Numbers,
}

impl Facts for InStretch<'_> {
    #[inline]
    fn opcode(&self) -> Opcode {
        self.brief.opcode
    }
    #[inline]
    fn psn(&self) -> Psn {
        Psn::new(self.brief.psn)
    }
    #[inline]
    fn ts_ns(&self) -> i64 {
        self.brief.ts_ns
    }
    #[inline]
    fn origin(&self) -> (u16, u64) {
        (self.brief.input, self.brief.frame)
    }
    #[inline]
    fn payload_len(&self) -> u32 {
        self.brief.payload_len.into()
    }
    #[inline]
    fn len(&self) -> u32 {
        self.brief.len
    }
    #[inline]
    fn ack_req(&self) -> bool {
        self.brief.is(flag::ACK_REQ)
    }
    #[inline]
    fn remote(&self) -> Option<Remote> {
        (self.brief.extended == Extended::Reth).then(|| Remote {
            va: VirtualAddr::new(self.brief.va),
            rkey: RKey::new(self.brief.rkey),
            len: self.brief.word,
        })
    }
    #[inline]
    fn ecn(&self) -> u8 {
        self.brief.traffic_class & 3
    }
    #[inline]
    fn icrc(&self) -> IcrcState {
        self.brief.icrc
    }
    #[inline]
    fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            // Of a packet that is not cut it is there.
            icrc: (!self.brief.is(flag::TRUNCATED)).then_some(self.brief.icrc_word),
            ip_id: self.brief.ip_id,
        }
    }
    fn record(&self) -> Cow<'_, Record> {
        Cow::Owned(Record {
            flow: self.numbers.key(self.brief.flow),
            input: self.brief.input,
            frame: self.brief.frame,
            ts_ns: self.brief.ts_ns,
            sport: self.brief.sport,
            opcode: self.brief.opcode,
            psn: self.psn(),
            aeth: self.brief.aeth(),
            remote: self.remote(),
            src_qp: None,
            payload_len: self.brief.payload_len.into(),
            len: self.brief.len,
            fingerprint: self.fingerprint(),
            ack_req: self.ack_req(),
            ecn: self.ecn(),
            dscp: self.brief.dscp(),
            priority: None,
            ttl: self.brief.ttl,
            icrc: self.brief.icrc,
            v1: false,
            truncated: self.brief.is(flag::TRUNCATED),
            malformed: self.brief.is(flag::MALFORMED),
            fragment: false,
            cm: None,
        })
    }
}
