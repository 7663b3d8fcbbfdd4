//! Management datagrams: 256 bytes on queue pair 1 (IBTA vol. 1, 13.4).

use std::borrow::Cow;

use nom::{
    IResult, Parser,
    number::complete::{be_u8, be_u16, be_u32, be_u64},
};

use crate::layout::{Field, Show};

/// Header common to all management datagrams, 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of the MAD format.
    pub base_version: u8,
    /// Management class; 0x07 is communication management.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method; 0x03 is Send.
    pub method: u8,
    /// Status of the operation.
    pub status: u16,
    /// Left to the class.
    pub class_specific: u16,
    /// Transaction identifier.
    pub transaction_id: u64,
    /// Attribute: which message of the class.
    pub attribute_id: u16,
    /// Refines the attribute.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = 24;
    /// Management class of communication management.
    pub const CLASS_CM: u8 = 0x07;

    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new("Base version", 0, 8, Show::Dec),
        Field::new("Management class", 8, 8, Show::Words(class_words)),
        Field::new("Class version", 16, 8, Show::Dec),
        Field::new("Method", 24, 8, Show::Hex),
        Field::new("Status", 32, 16, Show::Hex),
        Field::new("Class specific", 48, 16, Show::Hex),
        Field::new("Transaction ID", 64, 64, Show::Hex),
        Field::new("Attribute ID", 128, 16, Show::Hex),
        Field::new("Reserved", 144, 16, Show::Hex),
        Field::new("Attribute modifier", 160, 32, Show::Hex),
    ];

    /// Takes the header off the front of `input`.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        let head = (be_u8, be_u8, be_u8, be_u8, be_u16, be_u16);
        let tail = (be_u64, be_u16, be_u16, be_u32);
        let (rest, (head, tail)) = (head, tail).parse(input)?;
        Ok((
            rest,
            Self {
                base_version: head.0,
                class: head.1,
                class_version: head.2,
                method: head.3,
                status: head.4,
                class_specific: head.5,
                transaction_id: tail.0,
                attribute_id: tail.1,
                attribute_modifier: tail.3,
            },
        ))
    }
}

fn class_words(value: u64) -> Option<Cow<'static, str>> {
    let words = match value {
        0x01 | 0x81 => "subnet management",
        0x03 => "subnet administration",
        0x04 => "performance management",
        0x05 => "baseboard management",
        0x06 => "device management",
        0x07 => "communication management",
        0x08 => "SNMP tunnelling",
        _ => return None,
    };
    Some(words.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_table_agrees_with_the_parser() {
        let bytes: [u8; 24] = std::array::from_fn(|i| i as u8 + 1);
        let (_, mad) = MadHeader::parse(&bytes).unwrap();
        let table: Vec<u64> = MadHeader::FIELDS
            .iter()
            .map(|f| f.get(&bytes).unwrap())
            .collect();
        assert_eq!(table[1], u64::from(mad.class));
        assert_eq!(table[3], u64::from(mad.method));
        assert_eq!(table[6], mad.transaction_id);
        assert_eq!(table[7], u64::from(mad.attribute_id));
        assert_eq!(table[9], u64::from(mad.attribute_modifier));
        assert!(MadHeader::parse(&bytes[..23]).is_err());
    }
}
