//! IP and UDP: addresses, fragments, lengths; and the global route header of
//! RoCEv1.

use std::net::IpAddr;

use etherparse::{
    IpAuthHeaderSlice, Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice,
    Ipv6RawExtHeaderSlice, UdpHeaderSlice,
};

use super::{
    Cursor, Datagram, Encap, FrameOptions, Layer, Next, Path, Reason, RoceVersion, Skip, Trace,
    link, tunnel,
};

const HOP_BY_HOP: u8 = 0;
const IP_IN_IP: u8 = 4;
pub(super) const UDP: u8 = 17;
const IPV6_IN_IP: u8 = 41;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const GRE: u8 = 47;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const MPLS_IN_IP: u8 = 137;
/// Next header of a global route header: an InfiniBand transport header.
const IB_TRANSPORT: u8 = 0x1b;

/// What an IP header said, on the way to its payload.
pub(super) struct IpPacket {
    offset: usize,
    src: IpAddr,
    dst: IpAddr,
    traffic_class: u8,
    ttl: u8,
    protocol: u8,
    fragment: bool,
    options: bool,
}

pub(super) enum Step<'a> {
    Next(Next),
    Found(Datagram<'a>),
}

/// IPv4 or IPv6, by the version nibble.
pub(super) fn ip(cursor: &mut Cursor<'_>) -> Result<Next, Skip> {
    match cursor.peek(Layer::Link, 1)?[0] >> 4 {
        4 => Ok(Next::Ipv4),
        6 => Ok(Next::Ipv6),
        _ => Err(cursor.skip(Reason::NotIp, Layer::Link)),
    }
}

pub(super) fn ipv4<T: Trace>(cursor: &mut Cursor<'_>, trace: &mut T) -> Result<Next, Skip> {
    let start = cursor.at;
    let first = cursor.peek(Layer::Ipv4, 1)?[0];
    let header_len = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header_len < 20 {
        return Err(cursor.skip(Reason::Malformed, Layer::Ipv4));
    }
    let bytes = cursor.peek(Layer::Ipv4, header_len)?;
    let header = Ipv4HeaderSlice::from_slice(bytes)
        .map_err(|_| cursor.skip(Reason::Malformed, Layer::Ipv4))?;
    match usize::from(header.total_len()) {
        // Left to the NIC by segmentation offload: the frame is the limit.
        0 => {}
        total if total < header_len => return Err(cursor.skip(Reason::Malformed, Layer::Ipv4)),
        total => cursor.limit(start, total),
    }
    trace.layer(Layer::Ipv4, start, header_len);
    let mut packet = IpPacket {
        offset: start,
        src: header.source_addr().into(),
        dst: header.destination_addr().into(),
        traffic_class: bytes[1],
        ttl: header.ttl(),
        protocol: header.protocol().0,
        fragment: header.more_fragments(),
        options: header_len > 20,
    };
    if header.fragments_offset().value() != 0 {
        return Err(cursor.skip(Reason::Fragment, Layer::Ipv4));
    }
    cursor.take(Layer::Ipv4, header_len)?;
    if packet.protocol == AUTHENTICATION {
        extensions(&mut packet, cursor, trace)?;
    }
    Ok(Next::Protocol(packet))
}

pub(super) fn ipv6<T: Trace>(cursor: &mut Cursor<'_>, trace: &mut T) -> Result<Next, Skip> {
    let start = cursor.at;
    let bytes = cursor.peek(Layer::Ipv6, 40)?;
    let header = Ipv6HeaderSlice::from_slice(bytes)
        .map_err(|_| cursor.skip(Reason::Malformed, Layer::Ipv6))?;
    trace.layer(Layer::Ipv6, start, 40);
    cursor.take(Layer::Ipv6, 40)?;
    // Zero: a jumbogram, or left to the NIC.
    if header.payload_length() != 0 {
        cursor.limit(cursor.at, header.payload_length().into());
    }
    let mut packet = IpPacket {
        offset: start,
        src: header.source_addr().into(),
        dst: header.destination_addr().into(),
        traffic_class: header.traffic_class(),
        ttl: header.hop_limit(),
        protocol: header.next_header().0,
        fragment: false,
        options: false,
    };
    extensions(&mut packet, cursor, trace)?;
    Ok(Next::Protocol(packet))
}

/// Passes the extension headers of IPv6 (RFC 8200, 4.1).
fn extensions<T: Trace>(
    packet: &mut IpPacket,
    cursor: &mut Cursor<'_>,
    trace: &mut T,
) -> Result<(), Skip> {
    loop {
        let start = cursor.at;
        let malformed = cursor.skip(Reason::Malformed, Layer::Ipv6Extension);
        let (len, next) = match packet.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY => {
                let head = cursor.peek(Layer::Ipv6Extension, 8)?;
                let bytes = cursor.peek(Layer::Ipv6Extension, (usize::from(head[1]) + 1) * 8)?;
                let header = Ipv6RawExtHeaderSlice::from_slice(bytes).map_err(|_| malformed)?;
                (header.slice().len(), header.next_header())
            }
            AUTHENTICATION => {
                let head = cursor.peek(Layer::Ipv6Extension, 12)?;
                let bytes = cursor.peek(Layer::Ipv6Extension, (usize::from(head[1]) + 2) * 4)?;
                let header = IpAuthHeaderSlice::from_slice(bytes).map_err(|_| malformed)?;
                (header.slice().len(), header.next_header())
            }
            FRAGMENT => {
                let bytes = cursor.peek(Layer::Ipv6Extension, 8)?;
                let header = Ipv6FragmentHeaderSlice::from_slice(bytes).map_err(|_| malformed)?;
                if header.fragment_offset().value() != 0 {
                    return Err(cursor.skip(Reason::Fragment, Layer::Ipv6Extension));
                }
                packet.fragment |= header.more_fragments();
                (8, header.next_header())
            }
            _ => return Ok(()),
        };
        trace.layer(Layer::Ipv6Extension, start, len);
        cursor.take(Layer::Ipv6Extension, len)?;
        packet.options = true;
        packet.protocol = next.0;
    }
}

/// What the IP payload is: the UDP header of RoCE, or another tunnel.
pub(super) fn protocol<'a, T: Trace>(
    packet: &IpPacket,
    cursor: &mut Cursor<'a>,
    path: &mut Path,
    options: FrameOptions,
    trace: &mut T,
) -> Result<Step<'a>, Skip> {
    let inner = |next, cursor: &Cursor<'_>, path: &mut Path| {
        tunnel::enter(Encap::IpIp, Layer::Ipv4, cursor, path).map(|()| Step::Next(next))
    };
    match packet.protocol {
        UDP => udp(packet, cursor, path, options, trace),
        GRE => tunnel::gre(cursor, path, trace).map(Step::Next),
        IP_IN_IP => inner(Next::Ipv4, cursor, path),
        IPV6_IN_IP => inner(Next::Ipv6, cursor, path),
        MPLS_IN_IP => link::mpls(cursor, path, trace).map(Step::Next),
        _ => Err(cursor.skip(Reason::NotUdp, Layer::Ipv4)),
    }
}

fn udp<'a, T: Trace>(
    packet: &IpPacket,
    cursor: &mut Cursor<'a>,
    path: &mut Path,
    options: FrameOptions,
    trace: &mut T,
) -> Result<Step<'a>, Skip> {
    let start = cursor.at;
    trace.layer(Layer::Udp, start, 8);
    let bytes = cursor.take(Layer::Udp, 8)?;
    let header = UdpHeaderSlice::from_slice(bytes)
        .map_err(|_| cursor.skip(Reason::Malformed, Layer::Udp))?;
    let length = usize::from(header.length());
    if header.destination_port() != options.port {
        if length >= 8 && !packet.fragment {
            cursor.limit(start, length);
        }
        return tunnel::udp(header.destination_port(), cursor, path, trace).map(Step::Next);
    }
    let room = cursor.end.saturating_sub(cursor.at);
    // Zero stands for a length the field cannot hold (RFC 2675), or one that
    // offload left open.
    let (ib_len, bad_length) = match length {
        0 => (room, false),
        1..8 => return Err(cursor.skip(Reason::Malformed, Layer::Udp)),
        _ if length - 8 <= room || packet.fragment => (length - 8, false),
        _ => (room, true),
    };
    let rest = cursor.rest();
    Ok(Step::Found(Datagram {
        frame: cursor.frame,
        version: RoceVersion::V2,
        src: packet.src,
        dst: packet.dst,
        sport: Some(header.source_port()),
        traffic_class: packet.traffic_class,
        ttl: packet.ttl,
        vlans: path.vlans,
        priority: path.priority,
        encaps: path.encaps,
        ip_offset: packet.offset,
        udp_offset: start,
        bth_offset: cursor.at,
        ib: &rest[..rest.len().min(ib_len)],
        ib_len,
        cut: rest.len() < ib_len.min(room),
        fragment: packet.fragment,
        ip_options: packet.options,
        bad_length,
    }))
}

/// The global route header of RoCEv1, which is laid out like an IPv6 header
/// (IBTA vol. 1, 8.3).
pub(super) fn grh<'a, T: Trace>(
    cursor: &mut Cursor<'a>,
    path: &Path,
    trace: &mut T,
) -> Result<Datagram<'a>, Skip> {
    let start = cursor.at;
    trace.layer(Layer::Grh, start, 40);
    let bytes = cursor.take(Layer::Grh, 40)?;
    let header = Ipv6HeaderSlice::from_slice(bytes)
        .map_err(|_| cursor.skip(Reason::Malformed, Layer::Grh))?;
    if header.next_header().0 != IB_TRANSPORT {
        return Err(cursor.skip(Reason::Malformed, Layer::Grh));
    }
    let ib_len = usize::from(header.payload_length());
    cursor.limit(cursor.at, ib_len);
    Ok(Datagram {
        frame: cursor.frame,
        version: RoceVersion::V1,
        src: header.source_addr().into(),
        dst: header.destination_addr().into(),
        sport: None,
        traffic_class: header.traffic_class(),
        ttl: header.hop_limit(),
        vlans: path.vlans,
        priority: path.priority,
        encaps: path.encaps,
        ip_offset: start,
        udp_offset: cursor.at,
        bth_offset: cursor.at,
        ib: cursor.rest(),
        ib_len,
        cut: cursor.rest().len() < ib_len,
        fragment: false,
        ip_options: false,
        bad_length: false,
    })
}
