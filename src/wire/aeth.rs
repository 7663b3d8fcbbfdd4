//! ACK extended transport header: how a request fared (IBTA vol. 1, 9.3.5
//! and 9.7.5.1).

use std::{borrow::Cow, fmt};

use nom::{IResult, Parser, number::complete::be_u32};

use super::types::Msn;
use crate::layout::{Field, Show};

/// ACK extended transport header, 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// The raw syndrome byte.
    pub syndrome: u8,
    /// Messages the responder has completed, modulo 2^24.
    pub msn: Msn,
}

/// The syndrome taken apart: two bits of kind, five bits of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AethKind {
    /// Acknowledged; the value is a credit code (31 = no limit).
    Ack(u8),
    /// Receiver not ready; the value is a timer code.
    Rnr(u8),
    /// Negative acknowledgement; the value is an error code.
    Nak(NakCode),
    /// A kind no specification assigns, with its value.
    Reserved(u8),
}

/// Error code of a NAK (IBTA vol. 1, table 45). Every value is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A packet ahead of the expected PSN arrived.
    pub const SEQUENCE: Self = Self(0);
    /// The request was malformed or not permitted on this queue pair.
    pub const INVALID_REQUEST: Self = Self(1);
    /// Wrong rkey, out of bounds, or no permission.
    pub const REMOTE_ACCESS: Self = Self(2);
    /// The responder could not complete the request.
    pub const REMOTE_OPERATION: Self = Self(3);

    /// Key in machine-readable output, and the specification's words.
    const NAMES: [(&'static str, &'static str); 5] = [
        ("sequence_error", "PSN sequence error"),
        ("invalid_request", "invalid request"),
        ("remote_access_error", "remote access error"),
        ("remote_operational_error", "remote operational error"),
        ("invalid_rd_request", "invalid RD request"),
    ];

    /// The specification's words for the code.
    #[must_use]
    pub fn words(self) -> Option<&'static str> {
        Self::NAMES
            .get(usize::from(self.0))
            .map(|(_, words)| *words)
    }

    /// Key for the code in machine-readable output.
    #[must_use]
    pub fn key(self) -> &'static str {
        Self::NAMES
            .get(usize::from(self.0))
            .map_or("other", |(key, _)| key)
    }
}

impl Aeth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Syndrome", 0, 8, Show::Words(syndrome_words)),
        Field::new("MSN", 8, 24, Show::Dec),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        be_u32
            .map(|word| Self {
                syndrome: (word >> 24) as u8,
                msn: Msn::new(word),
            })
            .parse(input)
    }

    /// The syndrome taken apart.
    #[must_use]
    pub const fn kind(self) -> AethKind {
        let value = self.syndrome & 0x1f;
        match self.syndrome >> 5 {
            0 => AethKind::Ack(value),
            1 => AethKind::Rnr(value),
            3 => AethKind::Nak(NakCode(value)),
            // Kind 2, or the reserved top bit.
            _ => AethKind::Reserved(value),
        }
    }
}

impl AethKind {
    /// One word for the kind, as machine-readable output has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ack(_) => "ack",
            Self::Rnr(_) => "rnr",
            Self::Nak(_) => "nak",
            Self::Reserved(_) => "reserved",
        }
    }

    /// The five-bit value.
    #[must_use]
    pub const fn value(self) -> u8 {
        match self {
            Self::Ack(v) | Self::Rnr(v) | Self::Reserved(v) | Self::Nak(NakCode(v)) => v,
        }
    }

    /// True for RNR NAKs and NAKs.
    #[must_use]
    pub const fn is_nak(self) -> bool {
        matches!(self, Self::Rnr(_) | Self::Nak(_))
    }
}

impl fmt::Display for AethKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ack(code) => match credits(code) {
                Some(n) => write!(f, "ACK, {n} credits"),
                None => f.write_str("ACK"),
            },
            Self::Rnr(code) => {
                let us = rnr_timer_us(code);
                write!(f, "RNR NAK, wait {}.{:02} ms", us / 1000, us % 1000 / 10)
            }
            Self::Nak(code) => match code.words() {
                Some(words) => write!(f, "NAK, {words}"),
                None => write!(f, "NAK, reserved code {}", code.0),
            },
            Self::Reserved(value) => write!(f, "reserved syndrome, value {value}"),
        }
    }
}

fn syndrome_words(value: u64) -> Option<Cow<'static, str>> {
    let aeth = Aeth {
        syndrome: value as u8,
        msn: Msn::new(0),
    };
    Some(aeth.kind().to_string().into())
}

/// Time a requester shall wait after an RNR NAK, in microseconds, by the five
/// bits of timer code (IBTA vol. 1, table 46).
#[must_use]
pub const fn rnr_timer_us(code: u8) -> u32 {
    const US: [u32; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560,
        3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880,
        163_840, 245_760, 327_680, 491_520,
    ];
    US[(code & 0x1f) as usize]
}

/// Receive work requests available at the responder by the five bits of
/// credit code (IBTA vol. 1, table 43); `None` is code 31, no limit.
#[must_use]
pub const fn credits(code: u8) -> Option<u32> {
    const CREDITS: [u32; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];
    let code = (code & 0x1f) as usize;
    if code < CREDITS.len() {
        Some(CREDITS[code])
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(syndrome: u8) -> AethKind {
        Aeth::parse(&[syndrome, 0, 1, 2]).unwrap().1.kind()
    }

    #[test]
    fn syndromes_have_words() {
        assert_eq!(kind(0x1f).to_string(), "ACK");
        assert_eq!(kind(0x05).to_string(), "ACK, 6 credits");
        assert_eq!(kind(0x2c).to_string(), "RNR NAK, wait 0.64 ms");
        assert_eq!(kind(0x20).to_string(), "RNR NAK, wait 655.36 ms");
        assert_eq!(kind(0x60).to_string(), "NAK, PSN sequence error");
        assert_eq!(kind(0x62).to_string(), "NAK, remote access error");
        assert_eq!(kind(0x7f).to_string(), "NAK, reserved code 31");
        assert_eq!(kind(0x41).to_string(), "reserved syndrome, value 1");
        assert_eq!(kind(0xe0), AethKind::Reserved(0), "top bit is reserved");
    }

    #[test]
    fn msn_is_the_low_24_bits() {
        let (_, aeth) = Aeth::parse(&[0x1f, 0xff, 0xff, 0xfe]).unwrap();
        assert_eq!(aeth.msn.get(), 0xff_fffe);
        assert_eq!(
            Aeth::FIELDS[1].get(&[0x1f, 0xff, 0xff, 0xfe]),
            Some(0xff_fffe)
        );
        assert!(Aeth::parse(&[0; 3]).is_err());
    }
}
