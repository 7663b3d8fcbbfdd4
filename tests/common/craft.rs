//! Packets made by hand: headers, tunnels and the invariant CRC.
//!
//! Everything here follows the published layouts and shares no code with the
//! crate under test; `tests/craft_check.rs` proves the ICRC against traffic of
//! a real driver.

/// UDP destination port of `RoCEv2`.
pub const ROCE: u16 = 4791;

const UDP: u8 = 17;

/// The IP packet inside an Ethernet frame, past any VLAN tags.
pub fn ip_part(frame: &[u8]) -> &[u8] {
    let mut at = 12;
    while matches!(be16(frame, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    &frame[at + 2..]
}

/// True for an IPv6 packet.
pub fn is_v6(ip: &[u8]) -> bool {
    ip[0] >> 4 == 6
}

/// True for a packet straight to UDP port 4791.
pub fn is_roce(ip: &[u8]) -> bool {
    let (protocol, udp) = if is_v6(ip) { (ip[6], 40) } else { (ip[9], 20) };
    protocol == UDP && be16(ip, udp + 2) == ROCE
}

/// Ethertype of an IP packet.
pub fn ethertype(ip: &[u8]) -> u16 {
    if is_v6(ip) { 0x86dd } else { 0x0800 }
}

/// Where the UDP header starts, past IPv4 options or IPv6 extension headers.
pub fn udp_at(ip: &[u8]) -> usize {
    if !is_v6(ip) {
        return usize::from(ip[0] & 0x0f) * 4;
    }
    let (mut next, mut at) = (ip[6], 40);
    while next != UDP {
        let len = if next == 44 {
            8
        } else {
            8 + usize::from(ip[at + 1]) * 8
        };
        next = ip[at];
        at += len;
    }
    at
}

/// An Ethernet frame between two locally administered addresses.
pub fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0xb1, 2, 0, 0, 0, 0, 0xa1];
    frame.extend(kind.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Puts a tag in front of whatever ethertype the frame has.
pub fn tag(tpid: u16, vlan: u16, frame: &[u8]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    out.extend(tpid.to_be_bytes());
    // Priority 3, as RoCE networks tag their lossless class.
    out.extend((0x6000 | vlan).to_be_bytes());
    out.extend(&frame[12..]);
    out
}

/// An IPv4 packet from 192.0.2.1 to 192.0.2.2.
pub fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0];
    ip.extend([192, 0, 2, 1, 192, 0, 2, 2]);
    ip.extend(payload);
    finish_v4(&mut ip);
    ip
}

/// An IPv6 packet from `2001:db8::1` to `2001:db8::2`.
pub fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend((payload.len() as u16).to_be_bytes());
    ip.extend([next, 64]);
    for last in [1, 2] {
        ip.extend([
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last,
        ]);
    }
    ip.extend(payload);
    ip
}

/// A UDP datagram without checksum.
pub fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = source.to_be_bytes().to_vec();
    out.extend(destination.to_be_bytes());
    out.extend((payload.len() as u16 + 8).to_be_bytes());
    out.extend([0, 0]);
    out.extend(payload);
    out
}

/// An `RoCEv2` IPv4 packet around a BTH, its extension headers and payload; the
/// ICRC is added here.
pub fn roce_v4(transport: &[u8]) -> Vec<u8> {
    let mut body = transport.to_vec();
    body.extend([0; 4]);
    let mut ip = ipv4(UDP, &udp(49152, ROCE, &body));
    seal(&mut ip);
    ip
}

/// A BTH with the default partition key; `flags` is its second byte.
pub fn bth(opcode: u8, flags: u8, dest_qp: u32, ack_req: bool, psn: u32) -> Vec<u8> {
    let mut out = vec![opcode, flags, 0xff, 0xff];
    out.extend(dest_qp.to_be_bytes());
    out.extend((psn | (u32::from(ack_req) << 31)).to_be_bytes());
    out
}

/// Sets the total length and header checksum of an IPv4 packet.
pub fn finish_v4(ip: &mut [u8]) {
    let total = (ip.len() as u16).to_be_bytes();
    ip[2..4].copy_from_slice(&total);
    ip[10..12].fill(0);
    let header = usize::from(ip[0] & 0x0f) * 4;
    let mut sum: u32 = ip[..header].chunks(2).map(|w| u32::from(be16(w, 0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// The ICRC of an `RoCEv2` IP packet whose last four bytes are its place.
pub fn icrc(ip: &[u8]) -> [u8; 4] {
    let bth = udp_at(ip) + 8;
    let mut masked = ip.to_vec();
    masked[bth - 2..bth].fill(0xff);
    icrc_masked(masked, bth)
}

/// The ICRC of an `RoCEv1` packet, which starts at its GRH.
pub fn icrc_v1(grh: &[u8]) -> [u8; 4] {
    icrc_masked(grh.to_vec(), 40)
}

/// Masks what routers may change and sums the rest, after eight bytes of ones
/// in place of the link header InfiniBand would have had.
fn icrc_masked(mut packet: Vec<u8>, bth: usize) -> [u8; 4] {
    if is_v6(&packet) {
        packet[0] |= 0x0f;
        packet[1..4].fill(0xff);
        packet[7] = 0xff;
    } else {
        packet[1] = 0xff;
        packet[8] = 0xff;
        packet[10..12].fill(0xff);
    }
    packet[bth + 4] = 0xff;
    let mut crc = crc32(u32::MAX, &[0xff; 8]);
    crc = crc32(crc, &packet[..packet.len() - 4]);
    (!crc).to_le_bytes()
}

/// The reflected CRC-32 of Ethernet, without its final complement.
fn crc32(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |mut crc, &byte| {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
        crc
    })
}

/// Rewrites the ICRC of an `RoCEv2` packet after its bytes were changed.
pub fn seal(ip: &mut [u8]) {
    let end = ip.len() - 4;
    let icrc = icrc(ip);
    ip[end..].copy_from_slice(&icrc);
}

/// The same packet with IPv4 options (a multiple of four bytes).
pub fn with_ipv4_options(ip: &[u8], options: &[u8]) -> Vec<u8> {
    let mut out = ip[..20].to_vec();
    out.extend(options);
    out.extend(&ip[20..]);
    out[0] = 0x40 | ((20 + options.len()) / 4) as u8;
    finish_v4(&mut out);
    seal(&mut out);
    out
}

/// The same IPv6 packet with a hop-by-hop and a destination options header.
pub fn with_ipv6_options(ip: &[u8]) -> Vec<u8> {
    let mut out = ip[..40].to_vec();
    out[6] = 0;
    let payload = be16(ip, 4) + 24;
    out[4..6].copy_from_slice(&payload.to_be_bytes());
    // Hop-by-hop of 8 bytes (a router alert), destination options of 16 (padding).
    out.extend([60, 0, 5, 2, 0, 0, 1, 0]);
    out.extend([UDP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out.extend(&ip[40..]);
    seal(&mut out);
    out
}

/// An `RoCEv1` frame that carries the transport headers of an IPv6 packet.
pub fn roce_v1(ip: &[u8]) -> Vec<u8> {
    let mut grh = ip[..40].to_vec();
    grh[6] = 0x1b;
    let payload = be16(ip, 4) - 8;
    grh[4..6].copy_from_slice(&payload.to_be_bytes());
    grh.extend(&ip[48..]);
    let end = grh.len() - 4;
    let icrc = icrc_v1(&grh);
    grh[end..].copy_from_slice(&icrc);
    ethernet(0x8915, &grh)
}

/// Splits a packet in two IP fragments, `at` bytes of IP payload in the first.
pub fn fragments(ip: &[u8], at: usize) -> [Vec<u8>; 2] {
    assert_eq!(at % 8, 0, "fragments are cut at multiples of eight");
    if is_v6(ip) {
        let piece = |offset: u16, more: u16, body: &[u8]| {
            let mut out = ip[..40].to_vec();
            out[6] = 44;
            let payload = (body.len() as u16 + 8).to_be_bytes();
            out[4..6].copy_from_slice(&payload);
            out.extend([UDP, 0]);
            out.extend((offset | more).to_be_bytes());
            out.extend(0x1234_5678u32.to_be_bytes());
            out.extend(body);
            out
        };
        return [
            piece(0, 1, &ip[40..40 + at]),
            piece(at as u16, 0, &ip[40 + at..]),
        ];
    }
    let piece = |flags: u16, body: &[u8]| {
        let mut out = ip[..20].to_vec();
        out[6..8].copy_from_slice(&flags.to_be_bytes());
        out.extend(body);
        finish_v4(&mut out);
        out
    };
    [
        piece(0x2000, &ip[20..20 + at]),
        piece((at / 8) as u16, &ip[20 + at..]),
    ]
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
