//! Invalidate extended transport header: the rkey a SEND revokes (IBTA
//! vol. 1, 9.3.7).

use nom::{IResult, Parser, number::complete::be_u32};

use super::types::RKey;
use crate::layout::{Field, Show};

/// Invalidate extended transport header, 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ieth {
    /// The remote key that is no longer valid once the message is received.
    pub rkey: RKey,
}

impl Ieth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[Field::new("Invalidated R_Key", 0, 32, Show::Hex)];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        be_u32
            .map(|rkey| Self {
                rkey: RKey::new(rkey),
            })
            .parse(input)
    }
}
