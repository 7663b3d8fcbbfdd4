//! Flush extended transport header: what a FLUSH makes visible or durable
//! (IBTA memory placement extensions, annex A19; Linux `rxe_hdr.h`).

use std::borrow::Cow;

use nom::{IResult, Parser, number::complete::be_u32};

use crate::layout::{Field, Show};

/// Flush extended transport header, 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feth {
    /// Placement type, bits 3 to 0: 1 = global visibility, 2 = persistence.
    pub placement: u8,
    /// Selectivity, bits 5 and 4: 0 = the RETH's range, 1 = whole region.
    pub selectivity: u8,
}

impl Feth {
    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Reserved", 0, 26, Show::Hex),
        Field::new("Selectivity level", 26, 2, Show::Words(selectivity_words)),
        Field::new("Placement type", 28, 4, Show::Words(placement_words)),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        be_u32
            .map(|word| Self {
                placement: word as u8 & 0x0f,
                selectivity: word as u8 >> 4 & 3,
            })
            .parse(input)
    }
}

fn selectivity_words(value: u64) -> Option<Cow<'static, str>> {
    match value {
        0 => Some("the range of the RETH".into()),
        1 => Some("the whole memory region".into()),
        _ => None,
    }
}

fn placement_words(value: u64) -> Option<Cow<'static, str>> {
    match value {
        1 => Some("global visibility".into()),
        2 => Some("persistence".into()),
        3 => Some("global visibility and persistence".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_table_agrees_with_the_parser() {
        let bytes = [0, 0, 0, 0x12];
        let (_, feth) = Feth::parse(&bytes).unwrap();
        assert_eq!((feth.selectivity, feth.placement), (1, 2));
        assert_eq!(Feth::FIELDS[1].get(&bytes), Some(1));
        assert_eq!(Feth::FIELDS[2].get(&bytes), Some(2));
    }
}
