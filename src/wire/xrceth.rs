//! XRC extended transport header: which shared receive queue (IBTA annex
//! A14).

use nom::{IResult, Parser, number::complete::be_u32};

use super::types::QpNumber;
use crate::layout::{Field, Show};

/// XRC extended transport header, 4 bytes: on XRC requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xrceth {
    /// Number of the shared receive queue at the destination, 24 bits.
    pub srq: QpNumber,
}

impl Xrceth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Reserved", 0, 8, Show::Hex),
        Field::new("XRC SRQ", 8, 24, Show::Hex),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        be_u32
            .map(|srq| Self {
                srq: QpNumber::new(srq),
            })
            .parse(input)
    }
}
