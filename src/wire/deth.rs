//! Datagram extended transport header: who sent a datagram (IBTA vol. 1,
//! 9.3.2).

use nom::{IResult, Parser, number::complete::be_u32};

use super::types::{QKey, QpNumber};
use crate::layout::{Field, Show};

/// Datagram extended transport header, 8 bytes: on every UD packet and on RD
/// requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deth {
    /// Key that the receiving queue pair checks.
    pub qkey: QKey,
    /// Queue pair of the sender.
    pub src_qp: QpNumber,
}

impl Deth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Queue key", 0, 32, Show::Hex),
        Field::new("Reserved", 32, 8, Show::Hex),
        Field::new("Source QP", 40, 24, Show::Hex),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        (be_u32, be_u32)
            .map(|(qkey, src_qp)| Self {
                qkey: QKey::new(qkey),
                src_qp: QpNumber::new(src_qp),
            })
            .parse(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_table_agrees_with_the_parser() {
        let bytes = [0x80, 1, 0, 0, 0xff, 0, 0, 0x2a];
        let (_, deth) = Deth::parse(&bytes).unwrap();
        assert_eq!(deth.qkey.get(), 0x8001_0000);
        assert_eq!(deth.src_qp.get(), 0x2a, "the reserved byte is not part");
        assert_eq!(Deth::FIELDS[2].get(&bytes), Some(0x2a));
        assert!(Deth::parse(&bytes[..7]).is_err());
    }
}
