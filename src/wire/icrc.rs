//! Invariant CRC: the check that travels from end to end (IBTA vol. 1, 7.8.1
//! and annex A17.3.3; Linux `rxe_icrc.c`).
//!
//! CRC-32 over everything from the IP header to the padded payload, with the
//! fields that a router may change taken as ones, and eight bytes of ones in
//! front in place of the local route header.

use std::net::IpAddr;

use crate::frame::{Datagram, RoceVersion};

/// Outcome of checking the invariant CRC of a packet. Values are as they
/// stand on the wire, read least significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icrc {
    /// Found as computed.
    Valid,
    /// Not as computed.
    Invalid {
        /// What the bytes of the packet call for.
        computed: u32,
        /// What the packet carries.
        found: u32,
    },
    /// Cannot be checked.
    Unverifiable(Why),
}

/// Why an invariant CRC could not be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The capture cut the packet.
    Cut,
    /// The packet is one fragment of a datagram.
    Fragment,
    /// Its length fields contradict each other, or leave no room for it.
    BadLength,
    /// IPv4 options or IPv6 extension headers, which the specification says
    /// nothing about, and a mismatch when they are taken as they are.
    IpOptions,
    /// Nobody asked.
    NotAsked,
}

impl Why {
    /// The reason in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Cut => "the capture cut the packet",
            Self::Fragment => "one fragment of a datagram",
            Self::BadLength => "contradictory lengths",
            Self::IpOptions => "IP options or extension headers in between",
            Self::NotAsked => "not checked",
        }
    }
}

impl Icrc {
    /// Bytes on the wire.
    pub const SIZE: usize = 4;

    /// The outcome in one word, as machine-readable output has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Invalid { .. } => "invalid",
            Self::Unverifiable(_) => "unverifiable",
        }
    }

    /// Checks the invariant CRC of a packet.
    #[must_use]
    pub fn check(datagram: &Datagram<'_>) -> Self {
        if datagram.fragment {
            return Self::Unverifiable(Why::Fragment);
        }
        if datagram.bad_length {
            return Self::Unverifiable(Why::BadLength);
        }
        if datagram.cut {
            return Self::Unverifiable(Why::Cut);
        }
        let Some((covered, found)) = datagram.ib.split_last_chunk::<4>() else {
            return Self::Unverifiable(Why::BadLength);
        };
        let Some(computed) = compute(datagram, covered) else {
            return Self::Unverifiable(Why::BadLength);
        };
        let found = u32::from_le_bytes(*found);
        match (computed == found, datagram.ip_options) {
            (true, _) => Self::Valid,
            (false, true) => Self::Unverifiable(Why::IpOptions),
            (false, false) => Self::Invalid { computed, found },
        }
    }
}

/// CRC-32 of the eight bytes of ones that stand for the local route header;
/// its complement is the seed in Linux's driver, 0xdebb20e3.
const AFTER_DUMMY_LRH: u32 = !0xdebb_20e3;

/// Bytes of payload that are copied more quickly than summed on their own.
const SHORT: usize = 48;

/// CRC over the headers from IP to BTH and over `covered`, which begins with
/// the BTH and ends before the ICRC. `None` when a header is not whole.
fn compute(datagram: &Datagram<'_>, covered: &[u8]) -> Option<u32> {
    let network = datagram
        .frame
        .get(datagram.ip_offset..datagram.udp_offset)?;
    let udp = datagram
        .frame
        .get(datagram.udp_offset..datagram.bth_offset)?;
    let (bth, payload) = covered.split_first_chunk::<12>()?;

    // Up to 60 bytes of IPv4 or 40 of IPv6, 8 of UDP, 12 of BTH: masked in a
    // copy and summed in one go, with the payload where that is short.
    let mut head = [0u8; 60 + 8 + 12 + SHORT];
    let mut len = 0;
    let mut crc = crc32fast::Hasher::new_with_initial(AFTER_DUMMY_LRH);
    match (datagram.version, datagram.src) {
        (RoceVersion::V2, IpAddr::V4(_)) => {
            len = network.len();
            let ip = head.get_mut(..len)?;
            ip.copy_from_slice(network);
            // TOS, TTL, header checksum.
            for at in [1, 8, 10, 11] {
                *ip.get_mut(at)? = 0xff;
            }
        }
        // The global route header has the layout of an IPv6 header.
        (RoceVersion::V2, IpAddr::V6(_)) | (RoceVersion::V1, _) => {
            let (fixed, extensions) = network.split_first_chunk::<40>()?;
            let ip = &mut head[..40];
            ip.copy_from_slice(fixed);
            // Traffic class, flow label, hop limit.
            ip[0] |= 0x0f;
            ip[1..4].fill(0xff);
            ip[7] = 0xff;
            if extensions.is_empty() {
                len = 40;
            } else {
                crc.update(ip);
                crc.update(extensions);
            }
        }
    }
    if datagram.version == RoceVersion::V2 {
        let out = head.get_mut(len..len + 8)?;
        out.copy_from_slice(udp.get(..8)?);
        out[6..8].fill(0xff);
        len += 8;
    }
    let out = head.get_mut(len..len + 12)?;
    out.copy_from_slice(bth);
    // FECN, BECN and six reserved bits.
    out[4] = 0xff;
    len += 12;
    if let Some(out) = head[len..]
        .get_mut(..payload.len())
        .filter(|out| out.len() <= SHORT)
    {
        out.copy_from_slice(payload);
        crc.update(&head[..len + payload.len()]);
    } else {
        crc.update(&head[..len]);
        crc.update(payload);
    }
    Some(crc.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        frame::{FrameOptions, walk},
        source::{LinkType, RawPacket},
    };

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn check(frame: &[u8]) -> Icrc {
        let raw = RawPacket {
            input: 0,
            frame: 1,
            ts_ns: 0,
            len: frame.len() as u32,
            link: LinkType::ETHERNET,
            path: None,
            data: frame,
        };
        Icrc::check(&walk(&raw, FrameOptions::default(), &mut ()).unwrap())
    }

    /// A congestion notification packet as a ConnectX-4 Lx sent it.
    pub(crate) const CNP: &str = "e41d2dab2bc2 7cfe90643b32 0800
        45c2003c718c400040119161 0a001101 0a001201 0000 12b7 0028 0000
        8100ffff 40000118 00000000 00000000000000000000000000000000 82fd002a";

    #[test]
    fn seed_is_the_crc_of_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), AFTER_DUMMY_LRH);
    }

    #[test]
    fn congestion_notification_of_a_real_nic() {
        let frame = bytes(CNP);
        assert_eq!(check(&frame), Icrc::Valid);
        let mut changed = frame.clone();
        // What routers may change does not matter: TOS, TTL, IP checksum,
        // UDP checksum, FECN and BECN.
        for at in [15, 22, 24, 25, 40, 41, 46] {
            changed[at] ^= 0x55;
        }
        assert_eq!(check(&changed), Icrc::Valid);
        // Anything else does: identification, addresses, QP, PSN, payload.
        for at in [18, 26, 30, 47, 51, 53, 60] {
            let mut changed = frame.clone();
            changed[at] ^= 1;
            assert!(
                matches!(
                    check(&changed),
                    Icrc::Invalid {
                        found: 0x2a00_fd82,
                        ..
                    }
                ),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_cut_packet_is_not_a_bad_one() {
        let frame = bytes(CNP);
        for cut in 54..frame.len() {
            let raw = RawPacket {
                input: 0,
                frame: 1,
                ts_ns: 0,
                len: frame.len() as u32,
                link: LinkType::ETHERNET,
                path: None,
                data: &frame[..cut],
            };
            let datagram = walk(&raw, FrameOptions::default(), &mut ()).unwrap();
            assert_eq!(Icrc::check(&datagram), Icrc::Unverifiable(Why::Cut));
        }
    }
}
