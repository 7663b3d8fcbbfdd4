//! Atomic operations: request header and the old value that comes back
//! (IBTA vol. 1, 9.3.4 and 9.5.3).

use nom::{
    IResult, Parser,
    number::complete::{be_u32, be_u64},
};

use super::types::{RKey, VirtualAddr};
use crate::layout::{Field, Show};

/// Atomic extended transport header, 28 bytes: on `CmpSwap` and `FetchAdd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of the 8 bytes at the responder.
    pub va: VirtualAddr,
    /// Key of the remote memory region.
    pub rkey: RKey,
    /// Value to swap in, or to add.
    pub swap_add: u64,
    /// Value to compare with (`CmpSwap` only).
    pub compare: u64,
}

impl AtomicEth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Virtual address", 0, 64, Show::Hex),
        Field::new("R_Key", 64, 32, Show::Hex),
        Field::new("Swap or add data", 96, 64, Show::Hex),
        Field::new("Compare data", 160, 64, Show::Hex),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        (be_u64, be_u32, be_u64, be_u64)
            .map(|(va, rkey, swap_add, compare)| Self {
                va: VirtualAddr::new(va),
                rkey: RKey::new(rkey),
                swap_add,
                compare,
            })
            .parse(input)
    }
}

/// Atomic acknowledge header, 8 bytes: the value before the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// What the 8 bytes held before.
    pub original: u64,
}

impl AtomicAckEth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[Field::new("Original remote data", 0, 64, Show::Hex)];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        be_u64.map(|original| Self { original }).parse(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_table_agrees_with_the_parser() {
        let bytes: [u8; 28] = std::array::from_fn(|i| i as u8 + 1);
        let (_, atomic) = AtomicEth::parse(&bytes).unwrap();
        let table: Vec<u64> = AtomicEth::FIELDS
            .iter()
            .map(|f| f.get(&bytes).unwrap())
            .collect();
        assert_eq!(
            table,
            [
                atomic.va.get(),
                atomic.rkey.get().into(),
                atomic.swap_add,
                atomic.compare
            ]
        );
        assert_eq!(atomic.compare, 0x1516_1718_191a_1b1c);
        assert!(AtomicEth::parse(&bytes[..27]).is_err());
        let (_, ack) = AtomicAckEth::parse(&bytes).unwrap();
        assert_eq!(ack.original, 0x0102_0304_0506_0708);
    }
}
