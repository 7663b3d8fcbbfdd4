//! Control frames: marked frames from a netdev to itself, which prove that a
//! listener on it hears, and up to where it has heard everything.
//!
//! Silence proves nothing unless the listener is known to hear. So a frame
//! that looks like RoCE to every capture filter is sent through the netdev
//! under watch and must be seen there.
//!
//! Nothing acts on such a frame. Its Ethernet source and destination are the
//! netdev's own address, so the port at the other end has nowhere to send it
//! but back, which switches do not do, and a host there takes it for someone
//! else's. Should it reach an RDMA device all the same, its transport header
//! version 15 makes it drop the packet in silence (IBTA vol. 1, 9.6: only
//! version 0 is defined; `hdr_check` in Linux's rxe), before any counter.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
};

use super::{CONTROL_MARK as MARK, RawPacket};

/// Layout of what follows the mark.
const LAYOUT: u16 = 1;
/// Base transport header up to the sequence number: a manufacturer's opcode,
/// transport version 15, the default partition, a queue pair that no driver
/// hands out (0xffffff would be the multicast one, which rxe counts).
const BTH: [u8; 8] = [0xff, 0x0f, 0xff, 0xff, 0x00, 0xff, 0xff, 0xfe];
/// From the BTH to the ICRC: BTH, mark, layout, nonce, number, ICRC.
const IB_LEN: usize = 12 + MARK.len() + 2 + 16 + 4 + 4;
/// A source address for devices that have none; the group bit is clear, the
/// local bit set.
const NO_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// What tells the control frames of one listener from those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(pub [u8; 16]);

impl Nonce {
    /// A nonce that no other listener has: not a secret, only unlikely to be
    /// drawn twice.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        for half in bytes.chunks_exact_mut(8) {
            // Each state is keyed from the system's random numbers.
            half.copy_from_slice(
                &RandomState::new()
                    .hash_one(std::process::id())
                    .to_be_bytes(),
            );
        }
        Self(bytes)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Control frames of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlFrame {
    mac: [u8; 6],
    address: IpAddr,
    port: u16,
    nonce: Nonce,
}

impl ControlFrame {
    /// Frames from the netdev with Ethernet address `mac` and IP address
    /// `address` to itself, UDP port `port`. `mac` is `None` for `lo`, whose
    /// frames then are not its own either, so that no socket answers.
    #[must_use]
    pub fn new(mac: Option<[u8; 6]>, address: IpAddr, port: u16, nonce: Nonce) -> Self {
        Self {
            mac: mac.unwrap_or(NO_MAC),
            address,
            port,
            nonce,
        }
    }

    /// The whole Ethernet frame with the number `seq`.
    #[must_use]
    pub fn encode(&self, seq: u32) -> Vec<u8> {
        let mut ib = Vec::with_capacity(IB_LEN);
        ib.extend(BTH);
        ib.extend((seq & 0xff_ffff).to_be_bytes());
        ib.extend(MARK);
        ib.extend(LAYOUT.to_be_bytes());
        ib.extend(self.nonce.0);
        ib.extend(seq.to_be_bytes());

        // The length counts the ICRC; no checksum, as RoCE has it.
        let udp_len = (8 + IB_LEN) as u16;
        let mut udp = [0; 8];
        udp[..2].copy_from_slice(&self.source_port().to_be_bytes());
        udp[2..4].copy_from_slice(&self.port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let ip = self.ip_header(udp_len);
        let icrc = invariant_crc(&ip, udp, &ib);

        let ethertype: u16 = if self.address.is_ipv4() {
            0x0800
        } else {
            0x86dd
        };
        let mut frame = Vec::with_capacity(14 + ip.len() + usize::from(udp_len));
        frame.extend(self.mac);
        frame.extend(self.mac);
        frame.extend(ethertype.to_be_bytes());
        frame.extend(ip);
        frame.extend(udp);
        frame.extend(ib);
        frame.extend(icrc.to_le_bytes());
        frame
    }

    /// In the range RoCE takes source ports from, 0xc000 and up.
    fn source_port(&self) -> u16 {
        0xc000 | u16::from_be_bytes([self.nonce.0[0], self.nonce.0[1]])
    }

    /// A header with a hop limit of one: no router passes it on.
    fn ip_header(&self, udp_len: u16) -> Vec<u8> {
        match self.address {
            IpAddr::V4(address) => {
                let mut ip = vec![0x45, 0];
                ip.extend((20 + udp_len).to_be_bytes());
                // No identification, do not fragment, checksum to come.
                ip.extend([0, 0, 0x40, 0, 1, 17, 0, 0]);
                ip.extend(address.octets());
                ip.extend(address.octets());
                let sum = header_checksum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                ip
            }
            IpAddr::V6(address) => {
                let mut ip = vec![0x60, 0, 0, 0];
                ip.extend(udp_len.to_be_bytes());
                ip.extend([17, 1]);
                ip.extend(address.octets());
                ip.extend(address.octets());
                ip
            }
        }
    }
}

/// Internet checksum (RFC 1071).
fn header_checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Invariant CRC (IBTA annex A17): everything a router may change counts as
/// ones.
fn invariant_crc(ip: &[u8], udp: [u8; 8], ib: &[u8]) -> u32 {
    let mut masked = vec![0xff; 8];
    masked.extend(ip);
    masked.extend(udp);
    masked.extend(ib);
    let (ip_at, udp_at, bth_at) = (8, 8 + ip.len(), 16 + ip.len());
    if ip[0] >> 4 == 4 {
        // Type of service, time to live, header checksum.
        for at in [1, 8, 10, 11] {
            masked[ip_at + at] = 0xff;
        }
    } else {
        // Traffic class, flow label, hop limit.
        masked[ip_at] |= 0x0f;
        masked[ip_at + 1..ip_at + 4].fill(0xff);
        masked[ip_at + 7] = 0xff;
    }
    masked[udp_at + 6..bth_at].fill(0xff);
    masked[bth_at + 4] = 0xff;
    crc32fast::hash(&masked)
}

/// The nonce and the number of a control frame, whoever sent it; `None` for
/// every other packet.
#[must_use]
pub fn recognise(packet: &RawPacket<'_>) -> Option<(Nonce, u32)> {
    // The InfiniBand part ends the frame, whatever link type or tag is in
    // front of it.
    let at = packet.data.len().checked_sub(IB_LEN)?;
    let (bth, payload) = packet.data[at..].split_at(12);
    let rest = payload.strip_prefix(MARK)?;
    let rest = rest.strip_prefix(&LAYOUT.to_be_bytes())?;
    let (nonce, rest) = rest.split_first_chunk::<16>()?;
    let (seq, _icrc) = rest.split_first_chunk::<4>()?;
    bth.starts_with(&BTH)
        .then_some((Nonce(*nonce), u32::from_be_bytes(*seq)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dissect, source::LinkType};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn raw(data: &[u8]) -> RawPacket<'_> {
        RawPacket {
            input: 0,
            frame: 1,
            ts_ns: 0,
            len: data.len() as u32,
            link: LinkType::ETHERNET,
            path: None,
            data,
        }
    }

    #[test]
    fn a_valid_packet_that_no_device_acts_on() {
        let nonce = Nonce::random();
        for address in ["10.0.0.1", "fe80::1"] {
            let control = ControlFrame::new(Some(MAC), address.parse().unwrap(), 4791, nonce);
            let frame = control.encode(0x0102_0304);
            assert_eq!(frame[..6], frame[6..12], "to itself");
            let packet = dissect(&frame, LinkType::ETHERNET).unwrap();
            assert_eq!(packet.icrc.name(), "valid", "{address}");
            assert_eq!(packet.bth.version, 15);
            assert_eq!(packet.bth.opcode.0, 0xff);
            assert_eq!(packet.bth.dest_qp.get(), 0xff_fffe);
            assert_eq!(packet.bth.psn.get(), 0x02_0304);
            assert!(!packet.bth.ack_req && !packet.malformed);
            assert_eq!(packet.datagram.src, packet.datagram.dst);
            assert_eq!(packet.datagram.src.to_string(), address);
            assert_eq!(recognise(&raw(&frame)), Some((nonce, 0x0102_0304)));
        }
    }

    #[test]
    fn header_checksum_of_ipv4_adds_up() {
        let control = ControlFrame::new(None, "10.0.0.1".parse().unwrap(), 4791, Nonce([9; 16]));
        let frame = control.encode(1);
        assert_eq!(header_checksum(&frame[14..34]), 0);
        assert_eq!(frame[..6], NO_MAC);
    }

    #[test]
    fn recognised_behind_a_vlan_tag_and_only_when_whole() {
        let nonce = Nonce([7; 16]);
        let control = ControlFrame::new(Some(MAC), "10.0.0.1".parse().unwrap(), 4791, nonce);
        let mut frame = control.encode(5);
        frame.splice(12..12, [0x81, 0, 0, 100]);
        assert_eq!(recognise(&raw(&frame)), Some((nonce, 5)));
        for len in 0..frame.len() {
            assert_eq!(recognise(&raw(&frame[..len])), None, "cut to {len}");
        }
        let bth = frame.len() - IB_LEN;
        for at in [bth, bth + 12, bth + 31] {
            let mut other = frame.clone();
            other[at] ^= 1;
            assert_eq!(recognise(&raw(&other)), None, "byte {at} changed");
        }
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(Nonce::random(), Nonce::random());
        assert_eq!(Nonce([0xab; 16]).to_string(), "ab".repeat(16));
    }
}
