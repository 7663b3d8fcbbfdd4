//! The short cut for the frames that most are: Ethernet, IPv4 without options
//! and UDP, one right after the other.

use std::net::Ipv4Addr;

use super::{Datagram, Encap, FrameOptions, RoceVersion, Stack, link, net};
use crate::{
    source::{LinkType, RawPacket},
    wire::{bth::Bth, types::Psn},
};

const IP: usize = 14;
const UDP: usize = IP + 20;
const BTH: usize = UDP + 8;
const END: usize = BTH + Bth::SIZE;

/// Where the words of a [`Head`] begin, and how many there are.
const WORDS_AT: usize = 8;
const WORDS: usize = 6;

/// Bits of those words that say what a packet is. Left out: MAC addresses, IPv4
/// identification and checksum, UDP checksum, FECN, BECN and the reserved bits
/// beside them, PSN, and what comes after the BTH.
const TELLING: [u64; WORDS] = {
    let mut bytes = [0xff; WORDS * 8];
    let left_out = [
        (0, IP - 2),
        (IP + 4, IP + 6),
        (IP + 10, IP + 12),
        (UDP + 6, UDP + 8),
        (BTH + 4, BTH + 5),
        (BTH + 9, WORDS_AT + WORDS * 8),
    ];
    let mut n = 0;
    while n < left_out.len() {
        let mut at = left_out[n].0;
        while at < left_out[n].1 {
            if at >= WORDS_AT {
                bytes[at - WORDS_AT] = 0;
            }
            at += 1;
        }
        n += 1;
    }
    words(&bytes)
};

const fn words(bytes: &[u8; WORDS * 8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut n = 0;
    while n < WORDS {
        let at = n * 8;
        words[n] = u64::from_le_bytes([
            bytes[at],
            bytes[at + 1],
            bytes[at + 2],
            bytes[at + 3],
            bytes[at + 4],
            bytes[at + 5],
            bytes[at + 6],
            bytes[at + 7],
        ]);
        n += 1;
    }
    words
}

/// The headers of a frame as far as they tell plain packets apart, addresses,
/// queue pair, operation and lengths included: what two packets with equal ones
/// are, up to the BTH, differs in PSN and IPv4 identification alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head([u64; WORDS]);

impl Head {
    /// That of no frame at all.
    pub const NONE: Self = Self([u64::MAX; WORDS]);

    /// `None` where the frame is too short to have a plain packet.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        let bytes = frame.get(WORDS_AT..)?.first_chunk()?;
        let mut words = words(bytes);
        for (word, telling) in words.iter_mut().zip(TELLING) {
            *word &= telling;
        }
        Some(Self(words))
    }

    /// Packet sequence number and IPv4 identification of a plain packet.
    #[inline]
    pub fn numbers(frame: &[u8]) -> Option<(Psn, u16)> {
        let head: &[u8; END] = frame.first_chunk()?;
        let [.., a, b, c] = *head;
        let psn = Psn::new(u32::from_be_bytes([0, a, b, c]));
        Some((psn, u16::from_be_bytes([head[IP + 4], head[IP + 5]])))
    }

    /// What was captured of a plain packet behind its BTH.
    #[inline]
    pub fn rest(frame: &[u8]) -> &[u8] {
        frame.get(END..).unwrap_or_default()
    }

    /// Whether two are equal.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        // Without a branch for each word.
        let words = self.0.iter().zip(other.0);
        words.fold(0, |unlike, (one, other)| unlike | (one ^ other)) == 0
    }

    /// A number that spreads heads over a table.
    #[inline]
    pub const fn scatter(&self) -> u64 {
        let [_, _, source, ends, operation, qp] = self.0;
        // Both halves of a wide product: every bit of the one depends on every
        // bit of the other.
        let local = operation ^ qp.rotate_left(40) ^ 0x9e37_79b9_7f4a_7c15;
        let remote = source ^ ends.rotate_left(32) ^ 0xd1b5_4a32_d192_ed03;
        let wide = local as u128 * remote as u128;
        wide as u64 ^ (wide >> 64) as u64
    }
}

/// A frame with all headers up to the BTH where most frames have them, and
/// nothing special about them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain<'a> {
    frame: &'a [u8],
    head: &'a [u8; END],
    ib_len: usize,
}

impl<'a> Plain<'a> {
    /// `None` sends a frame the long way, which tells what is the matter.
    #[inline]
    pub fn find(raw: &RawPacket<'a>, options: FrameOptions) -> Option<Self> {
        if raw.link != LinkType::ETHERNET {
            return None;
        }
        let plain = Self {
            frame: raw.data,
            head: raw.data.first_chunk()?,
            ib_len: 0,
        };
        let fragments = plain.half(IP + 6) & 0x3fff != 0;
        if plain.half(12) != link::IPV4
            || plain.head[IP] != 0x45
            || plain.head[IP + 9] != net::UDP
            || fragments
            || plain.half(UDP + 2) != options.port
        {
            return None;
        }
        let ip_len = usize::from(plain.half(IP + 2));
        let udp_len = usize::from(plain.half(UDP + 4));
        if udp_len < 8 || udp_len + 20 > ip_len {
            return None;
        }
        Some(Self {
            ib_len: udp_len - 8,
            ..plain
        })
    }

    #[inline]
    const fn half(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.head[at], self.head[at + 1]])
    }

    #[inline]
    const fn address(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::new(
            self.head[at],
            self.head[at + 1],
            self.head[at + 2],
            self.head[at + 3],
        )
    }

    /// Source and destination address.
    #[inline]
    pub const fn addresses(&self) -> [Ipv4Addr; 2] {
        [self.address(IP + 12), self.address(IP + 16)]
    }

    /// UDP source port.
    #[inline]
    pub const fn sport(&self) -> u16 {
        self.half(UDP)
    }

    /// DSCP and ECN.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        self.head[IP + 1]
    }

    /// Time to live.
    #[inline]
    pub const fn ttl(&self) -> u8 {
        self.head[IP + 8]
    }

    /// IPv4 identification.
    #[inline]
    pub const fn ip_id(&self) -> u16 {
        self.half(IP + 4)
    }

    /// As [`Datagram::ib`]; it holds a whole BTH.
    #[inline]
    pub fn ib(&self) -> &'a [u8] {
        &self.frame[BTH..self.frame.len().min(BTH + self.ib_len)]
    }

    /// As [`Datagram::ib_len`].
    #[inline]
    pub const fn ib_len(&self) -> usize {
        self.ib_len
    }

    /// As [`Datagram::cut`].
    #[inline]
    pub const fn cut(&self) -> bool {
        self.frame.len() < BTH + self.ib_len
    }

    /// The same with everything that frames can have.
    #[inline]
    pub fn datagram(&self) -> Datagram<'a> {
        let [src, dst] = self.addresses();
        Datagram {
            frame: self.frame,
            version: RoceVersion::V2,
            src: src.into(),
            dst: dst.into(),
            sport: Some(self.sport()),
            traffic_class: self.traffic_class(),
            ttl: self.ttl(),
            vlans: Stack::new(0),
            priority: None,
            encaps: Stack::new(Encap::Vxlan),
            ip_offset: IP,
            udp_offset: UDP,
            bth_offset: BTH,
            ib: self.ib(),
            ib_len: self.ib_len,
            cut: self.cut(),
            fragment: false,
            ip_options: false,
            bad_length: false,
        }
    }
}
