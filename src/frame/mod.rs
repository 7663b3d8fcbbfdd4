//! From a captured frame to the InfiniBand headers in it: link layer, VLAN
//! tags, MPLS, IP, tunnels, UDP; or the global route header of RoCEv1.
//!
//! [`walk`] is the one function. It is lax about truncation: what was cut off
//! is told apart from what is malformed, and what was captured is kept.

mod cursor;
pub mod layers;
mod link;
mod net;
mod plain;
mod tunnel;

use std::net::IpAddr;

pub use layers::Layer;
pub(crate) use plain::{Head, Plain};

use crate::source::RawPacket;
use cursor::Cursor;

/// UDP destination port of RoCEv2 (IBTA annex A17; IANA "roce").
pub const ROCE_PORT: u16 = 4791;

/// Tunnels that may be nested around a packet; deeper ones are skipped and
/// counted.
pub const MAX_TUNNELS: usize = 4;

/// What the frame walk shall take for RoCE.
#[derive(Debug, Clone, Copy)]
pub struct FrameOptions {
    /// UDP destination port that carries RoCEv2.
    pub port: u16,
}

impl Default for FrameOptions {
    fn default() -> Self {
        Self { port: ROCE_PORT }
    }
}

/// Told of every layer the walk passes; the unit type listens to nothing and
/// costs nothing.
pub trait Trace {
    /// Whether anyone listens.
    const LISTENS: bool;
    /// A layer whose header is the `len` bytes at `start` of the frame.
    fn layer(&mut self, layer: Layer, start: usize, len: usize);
}

impl Trace for () {
    const LISTENS: bool = false;
    fn layer(&mut self, _: Layer, _: usize, _: usize) {}
}

impl Trace for Vec<(Layer, std::ops::Range<usize>)> {
    const LISTENS: bool = true;
    fn layer(&mut self, layer: Layer, start: usize, len: usize) {
        self.push((layer, start..start + len));
    }
}

/// Which RoCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoceVersion {
    /// Ethertype 0x8915, global route header, BTH (IBTA annex A16).
    V1,
    /// UDP port 4791 (IBTA annex A17).
    V2,
}

/// A tunnel around a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encap {
    /// RFC 7348.
    Vxlan,
    /// RFC 8926.
    Geneve,
    /// RFC 2784, 2890.
    Gre,
    /// Mirror over GRE without a header of its own.
    Erspan1,
    /// Mirror over GRE with an 8-byte header.
    Erspan2,
    /// Mirror over GRE with a 12-byte header and an optional sub-header.
    Erspan3,
    /// IPv4 or IPv6 in either (RFC 2003, 2473, 4213).
    IpIp,
    /// Label stack (RFC 3032).
    Mpls,
}

impl Encap {
    /// Name in machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
            Self::Gre => "gre",
            Self::Erspan1 => "erspan1",
            Self::Erspan2 => "erspan2",
            Self::Erspan3 => "erspan3",
            Self::IpIp => "ipip",
            Self::Mpls => "mpls",
        }
    }
}

/// A short list that lives on the stack; what does not fit is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack<T> {
    items: [T; MAX_TUNNELS],
    len: u8,
}

impl<T: Copy> Stack<T> {
    const fn new(fill: T) -> Self {
        Self {
            items: [fill; MAX_TUNNELS],
            len: 0,
        }
    }

    fn push(&mut self, item: T) -> bool {
        match self.items.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = item;
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// The items, outermost first.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }
}

/// What carries an InfiniBand packet: the addresses around it and where it
/// stands in the frame.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// The whole captured frame; offsets below count from its start.
    pub frame: &'a [u8],
    /// Which RoCE.
    pub version: RoceVersion,
    /// Source address; for RoCEv1 the source GID.
    pub src: IpAddr,
    /// Destination address; for RoCEv1 the destination GID.
    pub dst: IpAddr,
    /// UDP source port; RoCEv1 has none.
    pub sport: Option<u16>,
    /// IPv4 TOS or IPv6 traffic class: DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// VLAN identifiers, outermost first, inside tunnels too.
    pub vlans: Stack<u16>,
    /// Priority in the innermost VLAN tag (IEEE 802.1Q PCP).
    pub priority: Option<u8>,
    /// Tunnels, outermost first.
    pub encaps: Stack<Encap>,
    /// Start of the innermost IP header (RoCEv1: of the global route header).
    pub ip_offset: usize,
    /// Start of the UDP header (RoCEv1: end of the global route header).
    pub udp_offset: usize,
    /// Start of the BTH.
    pub bth_offset: usize,
    /// Captured bytes from the BTH to the end of the ICRC, link-layer padding
    /// left out.
    pub ib: &'a [u8],
    /// Bytes `ib` has by the length fields; more than `ib.len()` when the
    /// packet was cut or fragmented.
    pub ib_len: usize,
    /// Something cut the packet: bytes of `ib` are missing that do not belong
    /// to a later fragment.
    pub cut: bool,
    /// First fragment of a fragmented IP datagram.
    pub fragment: bool,
    /// IPv4 options or IPv6 extension headers stand before the UDP header.
    pub ip_options: bool,
    /// The UDP length and the IP length contradict each other.
    pub bad_length: bool,
}

impl Datagram<'_> {
    /// Differentiated services code point, 6 bits (RFC 2474).
    #[must_use]
    pub const fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }

    /// Explicit congestion notification, 2 bits (RFC 3168): 0 not capable,
    /// 1 and 2 capable, 3 congestion experienced.
    #[must_use]
    pub const fn ecn(&self) -> u8 {
        self.traffic_class & 3
    }

    /// IPv4 identification; 0 with IPv6, which has none.
    #[must_use]
    pub fn ip_id(&self) -> u16 {
        match self.frame.get(self.ip_offset..) {
            Some([0x40..=0x4f, _, _, _, high, low, ..]) => u16::from_be_bytes([*high, *low]),
            _ => 0,
        }
    }
}

/// Why a frame holds no RoCE packet that could be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The link type is not one this crate decodes.
    UnsupportedLink,
    /// No IP: ARP, LLDP, spanning tree and their like.
    NotIp,
    /// IP, but not UDP.
    NotUdp,
    /// UDP, but not to the RoCE port.
    OtherPort,
    /// A later fragment of an IP datagram.
    Fragment,
    /// More tunnels around it than [`MAX_TUNNELS`].
    TooDeep,
    /// Cut by the capture before the end of the BTH.
    Truncated,
    /// A header that contradicts itself.
    Malformed,
    /// A marked frame by which a listener of this program proves that it
    /// hears: RoCE in form, and nobody's traffic.
    Control,
}

impl Reason {
    /// All reasons; a reason's place is its number as `usize`.
    pub const ALL: [Self; 9] = [
        Self::UnsupportedLink,
        Self::NotIp,
        Self::NotUdp,
        Self::OtherPort,
        Self::Fragment,
        Self::TooDeep,
        Self::Truncated,
        Self::Malformed,
        Self::Control,
    ];

    /// Key in machine-readable output.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::UnsupportedLink => "unsupported_link_type",
            Self::NotIp => "not_ip",
            Self::NotUdp => "not_udp",
            Self::OtherPort => "other_port",
            Self::Fragment => "ip_fragment",
            Self::TooDeep => "tunnels_too_deep",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::Control => "control_frame",
        }
    }

    /// The reason in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::UnsupportedLink => "unsupported link type",
            Self::NotIp => "not IP",
            Self::NotUdp => "IP, not UDP",
            Self::OtherPort => "UDP to another port",
            Self::Fragment => "later IP fragment",
            Self::TooDeep => "too many nested tunnels",
            Self::Truncated => "cut before the end of the BTH",
            Self::Malformed => "malformed header",
            Self::Control => "control frame of a roce-sniff write run",
        }
    }
}

/// A frame that was passed over: why, at which layer, at which offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skip {
    /// Why.
    pub reason: Reason,
    /// Layer that could not be read, or that led elsewhere.
    pub layer: Layer,
    /// Byte offset of that layer in the frame.
    pub offset: usize,
}

/// What the walk has gathered on its way down.
struct Path {
    vlans: Stack<u16>,
    priority: Option<u8>,
    encaps: Stack<Encap>,
}

/// Finds the InfiniBand packet in a frame.
///
/// # Errors
/// [`Skip`] when there is none, or when it is cut or malformed before its
/// first header.
#[inline]
pub fn walk<'a, T: Trace>(
    raw: &RawPacket<'a>,
    options: FrameOptions,
    trace: &mut T,
) -> Result<Datagram<'a>, Skip> {
    if !T::LISTENS
        && let Some(plain) = Plain::find(raw, options)
    {
        return Ok(plain.datagram());
    }
    general(raw, options, trace)
}

/// [`walk`] without its short cut for plain Ethernet, IPv4 and UDP.
fn general<'a, T: Trace>(
    raw: &RawPacket<'a>,
    options: FrameOptions,
    trace: &mut T,
) -> Result<Datagram<'a>, Skip> {
    let mut cursor = Cursor::new(raw.data, raw.len as usize);
    let mut path = Path {
        vlans: Stack::new(0),
        priority: None,
        encaps: Stack::new(Encap::Vxlan),
    };
    let mut next = link::first(raw.link, &mut cursor, trace)?;
    // Each step consumes bytes or ends the walk, so this ends with the frame.
    loop {
        next = match next {
            Next::Ethernet => link::ethernet(&mut cursor, trace)?,
            Next::EtherType(ethertype) => {
                link::ethertype(ethertype, &mut cursor, &mut path, trace)?
            }
            Next::Ip => net::ip(&mut cursor)?,
            Next::Ipv4 => net::ipv4(&mut cursor, trace)?,
            Next::Ipv6 => net::ipv6(&mut cursor, trace)?,
            Next::Protocol(packet) => {
                match net::protocol(&packet, &mut cursor, &mut path, options, trace)? {
                    net::Step::Next(next) => next,
                    net::Step::Found(datagram) => return Ok(datagram),
                }
            }
            Next::Grh => return net::grh(&mut cursor, &path, trace),
        };
    }
}

/// What stands at the cursor.
enum Next {
    Ethernet,
    EtherType(u16),
    /// IPv4 or IPv6 by the version nibble.
    Ip,
    Ipv4,
    Ipv6,
    Protocol(net::IpPacket),
    Grh,
}

#[cfg(test)]
mod tests;
