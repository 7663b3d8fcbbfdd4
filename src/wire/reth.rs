//! RDMA extended transport header: which remote memory (IBTA vol. 1, 9.3.3).

use nom::{
    IResult, Parser,
    number::complete::{be_u32, be_u64},
};

use super::types::{RKey, VirtualAddr};
use crate::layout::{Field, Show};

/// RDMA extended transport header, 16 bytes: on WRITE First and Only, READ
/// Request, FLUSH and ATOMIC WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// Address in the remote memory region.
    pub va: VirtualAddr,
    /// Key of the remote memory region.
    pub rkey: RKey,
    /// Bytes of the whole message, up to 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Virtual address", 0, 64, Show::Hex),
        Field::new("R_Key", 64, 32, Show::Hex),
        Field::new("DMA length", 96, 32, Show::Dec),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        let (rest, (va, rkey, dma_len)) = (be_u64, be_u32, be_u32).parse(input)?;
        Ok((
            rest,
            Self {
                va: VirtualAddr::new(va),
                rkey: RKey::new(rkey),
                dma_len,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_table_agrees_with_the_parser() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
        let (_, reth) = Reth::parse(&bytes).unwrap();
        assert_eq!(Reth::FIELDS[0].get(&bytes), Some(reth.va.get()));
        assert_eq!(Reth::FIELDS[1].get(&bytes), Some(reth.rkey.get().into()));
        assert_eq!(Reth::FIELDS[2].get(&bytes), Some(reth.dma_len.into()));
        assert_eq!(reth.va.get(), 0x0102_0304_0506_0708);
        assert!(Reth::parse(&bytes[..15]).is_err());
    }
}
