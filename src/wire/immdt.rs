//! Immediate data: four bytes handed to the receiver's completion (IBTA
//! vol. 1, 9.3.6).

use nom::{IResult, Parser, number::complete::be_u32};

use crate::layout::{Field, Show};

/// Immediate data, 4 bytes; the transport gives them no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImmDt {
    /// The four bytes, first byte on the wire most significant.
    pub data: u32,
}

impl ImmDt {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[Field::new("Immediate data", 0, 32, Show::Hex)];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        be_u32.map(|data| Self { data }).parse(input)
    }
}
