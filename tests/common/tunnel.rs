//! What overlays and mirror ports put around a frame, and the pseudo headers
//! of link types without Ethernet.

use super::craft::{ethernet, ethertype, ipv4, ipv6, is_v6, udp};

/// VXLAN over IPv4.
pub fn vxlan(frame: &[u8]) -> Vec<u8> {
    ethernet(0x0800, &ipv4(17, &vxlan_udp(frame)))
}

/// VXLAN over IPv6.
pub fn vxlan_v6(frame: &[u8]) -> Vec<u8> {
    ethernet(0x86dd, &ipv6(17, &vxlan_udp(frame)))
}

fn vxlan_udp(frame: &[u8]) -> Vec<u8> {
    // Flags: VNI present; VNI 5001.
    let mut body = vec![0x08, 0, 0, 0, 0, 0x13, 0x89, 0];
    body.extend(frame);
    udp(51000, 4789, &body)
}

/// GENEVE over IPv4 with one option of eight bytes.
pub fn geneve(frame: &[u8]) -> Vec<u8> {
    let mut body = vec![2, 0, 0x65, 0x58, 0, 0x13, 0x89, 0];
    body.extend([0x01, 0x02, 0x80, 1, 0xde, 0xad, 0xbe, 0xef]);
    body.extend(frame);
    ethernet(0x0800, &ipv4(17, &udp(51000, 6081, &body)))
}

/// GRE over IPv4: `flags` says which of checksum (0x8000), key (0x2000) and
/// sequence number (0x1000) follow.
pub fn gre(flags: u16, protocol: u16, payload: &[u8]) -> Vec<u8> {
    let mut body = flags.to_be_bytes().to_vec();
    body.extend(protocol.to_be_bytes());
    for bit in [0x8000, 0x2000, 0x1000] {
        if flags & bit != 0 {
            body.extend([0, 0, 0, 7]);
        }
    }
    body.extend(payload);
    ethernet(0x0800, &ipv4(47, &body))
}

/// GRE with a whole Ethernet frame in it (transparent Ethernet bridging).
pub fn gre_bridged(flags: u16, frame: &[u8]) -> Vec<u8> {
    gre(flags, 0x6558, frame)
}

/// GRE with an IP packet in it.
pub fn gre_ip(flags: u16, ip: &[u8]) -> Vec<u8> {
    gre(flags, ethertype(ip), ip)
}

/// ERSPAN type II: GRE with a sequence number, then an 8-byte header.
pub fn erspan2(frame: &[u8]) -> Vec<u8> {
    // Version 1, VLAN 10; session 5; port index 3.
    let mut body = vec![0x10, 0x0a, 0x00, 0x05, 0, 0, 0, 3];
    body.extend(frame);
    gre(0x1000, 0x88be, &body)
}

/// ERSPAN type III: a 12-byte header, and the optional platform sub-header of
/// 8 bytes that its last bit announces.
pub fn erspan3(platform: bool, frame: &[u8]) -> Vec<u8> {
    // Version 2, VLAN 10; session 5; a timestamp; security group 0.
    let mut body = vec![0x20, 0x0a, 0x00, 0x05, 0x11, 0x22, 0x33, 0x44, 0, 0];
    // Frame type 0 is Ethernet; granularity 1 is 100 ns.
    body.extend([0x00, 0x02 | u8::from(platform)]);
    if platform {
        body.extend([0x0c, 0, 0, 0x05, 0x60, 0, 0, 1]);
    }
    body.extend(frame);
    gre(0x1000, 0x22eb, &body)
}

/// An IP packet directly in IPv4.
pub fn ip_in_ipv4(ip: &[u8]) -> Vec<u8> {
    ethernet(0x0800, &ipv4(if is_v6(ip) { 41 } else { 4 }, ip))
}

/// An IP packet directly in IPv6.
pub fn ip_in_ipv6(ip: &[u8]) -> Vec<u8> {
    ethernet(0x86dd, &ipv6(if is_v6(ip) { 41 } else { 4 }, ip))
}

/// MPLS over Ethernet with two labels; the last one has the bottom bit.
pub fn mpls(ip: &[u8]) -> Vec<u8> {
    let entry = |label: u32, bottom: u32| (label << 12 | bottom << 8 | 63).to_be_bytes();
    let mut body = entry(16001, 0).to_vec();
    body.extend(entry(24002, 1));
    body.extend(ip);
    ethernet(0x8847, &body)
}

/// `LINUX_SLL`, what `tcpdump -i any` wrote for years.
pub fn sll(ip: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 0xa1, 0, 0];
    out.extend(ethertype(ip).to_be_bytes());
    out.extend(ip);
    out
}

/// `LINUX_SLL2`, what `tcpdump -i any` writes now.
pub fn sll2(ip: &[u8]) -> Vec<u8> {
    let mut out = ethertype(ip).to_be_bytes().to_vec();
    out.extend([0, 0, 0, 0, 0, 7, 0, 1, 0, 6, 2, 0, 0, 0, 0, 0xa1, 0, 0]);
    out.extend(ip);
    out
}

/// BSD loopback: the address family in the byte order of the file.
pub fn null(big_endian: bool, v6_family: u32, ip: &[u8]) -> Vec<u8> {
    let family = if is_v6(ip) { v6_family } else { 2 };
    let mut out = if big_endian {
        family.to_be_bytes().to_vec()
    } else {
        family.to_le_bytes().to_vec()
    };
    out.extend(ip);
    out
}
