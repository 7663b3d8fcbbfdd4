//! Link layer: from the first byte of a frame to an ethertype, through VLAN
//! tags and MPLS labels.

use etherparse::{Ethernet2HeaderSlice, SingleVlanHeaderSlice};

use super::{Cursor, Encap, Layer, Next, Path, Reason, Skip, Trace, tunnel};
use crate::source::LinkType;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const PROVIDER_VLAN: u16 = 0x88a8;
/// What some switches wrote for the outer tag before 802.1ad.
const OLD_QINQ: u16 = 0x9100;
const MPLS: u16 = 0x8847;
const MPLS_UPSTREAM: u16 = 0x8848;
const TRANSPARENT_ETHERNET: u16 = 0x6558;
const ROCE_V1: u16 = 0x8915;

/// The first step: by link type.
pub(super) fn first<T: Trace>(
    link: LinkType,
    cursor: &mut Cursor<'_>,
    trace: &mut T,
) -> Result<Next, Skip> {
    Ok(match link {
        LinkType::ETHERNET => Next::Ethernet,
        LinkType::RAW | LinkType(12 | 14) => Next::Ip,
        LinkType::IPV4 => Next::Ipv4,
        LinkType::IPV6 => Next::Ipv6,
        LinkType::LINUX_SLL => {
            trace.layer(Layer::LinuxSll, cursor.at, 16);
            let header = cursor.take(Layer::LinuxSll, 16)?;
            Next::EtherType(u16::from_be_bytes([header[14], header[15]]))
        }
        LinkType::LINUX_SLL2 => {
            trace.layer(Layer::LinuxSll2, cursor.at, 20);
            let header = cursor.take(Layer::LinuxSll2, 20)?;
            Next::EtherType(u16::from_be_bytes([header[0], header[1]]))
        }
        LinkType::NULL | LinkType::LOOP => {
            trace.layer(Layer::Loopback, cursor.at, 4);
            let header = cursor.take(Layer::Loopback, 4)?;
            // NULL is in the order of the host that captured, which the file
            // does not tell: a family is a small number in the right one.
            let family = u32::from_be_bytes(header.try_into().unwrap_or_default());
            match family.min(family.swap_bytes()) {
                2 => Next::Ipv4,
                // Linux, NetBSD, FreeBSD, macOS.
                10 | 24 | 28 | 30 => Next::Ipv6,
                _ => return Err(cursor.skip(Reason::NotIp, Layer::Loopback)),
            }
        }
        _ => return Err(cursor.skip(Reason::UnsupportedLink, Layer::Link)),
    })
}

pub(super) fn ethernet<T: Trace>(cursor: &mut Cursor<'_>, trace: &mut T) -> Result<Next, Skip> {
    trace.layer(Layer::Ethernet, cursor.at, 14);
    let bytes = cursor.take(Layer::Ethernet, 14)?;
    let header = Ethernet2HeaderSlice::from_slice(bytes)
        .map_err(|_| cursor.skip(Reason::Malformed, Layer::Ethernet))?;
    Ok(Next::EtherType(header.ether_type().0))
}

pub(super) fn ethertype<T: Trace>(
    ethertype: u16,
    cursor: &mut Cursor<'_>,
    path: &mut Path,
    trace: &mut T,
) -> Result<Next, Skip> {
    Ok(match ethertype {
        IPV4 => Next::Ipv4,
        IPV6 => Next::Ipv6,
        ROCE_V1 => Next::Grh,
        VLAN | PROVIDER_VLAN | OLD_QINQ => {
            trace.layer(Layer::Vlan, cursor.at, 4);
            let bytes = cursor.take(Layer::Vlan, 4)?;
            let tag = SingleVlanHeaderSlice::from_slice(bytes)
                .map_err(|_| cursor.skip(Reason::Malformed, Layer::Vlan))?;
            path.vlans.push(tag.vlan_identifier().value());
            path.priority = Some(tag.priority_code_point().value());
            Next::EtherType(tag.ether_type().0)
        }
        MPLS | MPLS_UPSTREAM => mpls(cursor, path, trace)?,
        TRANSPARENT_ETHERNET => Next::Ethernet,
        _ => return Err(cursor.skip(Reason::NotIp, Layer::Link)),
    })
}

/// A label stack to its bottom, then IP or a pseudowire.
pub(super) fn mpls<T: Trace>(
    cursor: &mut Cursor<'_>,
    path: &mut Path,
    trace: &mut T,
) -> Result<Next, Skip> {
    tunnel::enter(Encap::Mpls, Layer::Mpls, cursor, path)?;
    loop {
        trace.layer(Layer::Mpls, cursor.at, 4);
        let label = cursor.take(Layer::Mpls, 4)?;
        if label[2] & 1 != 0 {
            break;
        }
    }
    match cursor.peek(Layer::Mpls, 1)?[0] >> 4 {
        4 => Ok(Next::Ipv4),
        6 => Ok(Next::Ipv6),
        // A pseudowire with control word (RFC 4385) carries Ethernet.
        0 => {
            cursor.take(Layer::Mpls, 4)?;
            Ok(Next::Ethernet)
        }
        _ => Err(cursor.skip(Reason::NotIp, Layer::Mpls)),
    }
}
