//! The short cut for the frames that most are: Ethernet, IPv4 without options
//! and UDP, one right after the other.

use std::net::Ipv4Addr;

use super::{Datagram, Encap, FrameOptions, RoceVersion, Stack, link, net};
use crate::{
    source::{LinkType, RawPacket},
    wire::bth::Bth,
};

const IP: usize = 14;
const UDP: usize = IP + 20;
const BTH: usize = UDP + 8;
const END: usize = BTH + Bth::SIZE;

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
