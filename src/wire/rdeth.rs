//! Reliable datagram extended transport header (IBTA vol. 1, 9.3.1).

use nom::{IResult, Parser, number::complete::be_u32};

use crate::layout::{Field, Show};

/// Reliable datagram extended transport header, 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rdeth {
    /// End-to-end context at the destination, 24 bits.
    pub ee_context: u32,
}

impl Rdeth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Reserved", 0, 8, Show::Hex),
        Field::new("EE context", 8, 24, Show::Hex),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        be_u32
            .map(|word| Self {
                ee_context: word & 0xff_ffff,
            })
            .parse(input)
    }
}
