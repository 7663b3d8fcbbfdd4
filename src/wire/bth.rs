//! Base transport header, on every InfiniBand packet (IBTA vol. 1, 9.2).

use nom::{IResult, Parser, bytes::complete::take};

use super::{
    opcode::Opcode,
    types::{PKey, Psn, QpNumber},
};
use crate::layout::{Field, Show};

/// Base transport header, 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the responder shall raise an event.
    pub solicited: bool,
    /// Migration request: the path migration state of the sender.
    pub mig_req: bool,
    /// Bytes (0 to 3) that fill the payload up to a multiple of four.
    pub pad: u8,
    /// Transport header version; 0 is the only one defined.
    pub version: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward congestion notification: this packet met congestion.
    pub fecn: bool,
    /// Backward congestion notification: the other direction met congestion.
    pub becn: bool,
    /// Queue pair at the destination.
    pub dest_qp: QpNumber,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const SIZE: usize = 12;

    /// Where each field stands.
    pub const FIELDS: &'static [Field] = &[
        Field::new(
            "Opcode",
            0,
            8,
            Show::Words(|v| Some(Opcode(v as u8).to_string().into())),
        ),
        Field::new("Solicited event", 8, 1, Show::Flag),
        Field::new("MigReq", 9, 1, Show::Flag),
        Field::new("Pad count", 10, 2, Show::Dec),
        Field::new("Transport header version", 12, 4, Show::Dec),
        Field::new("Partition key", 16, 16, Show::Hex),
        Field::new("FECN", 32, 1, Show::Flag),
        Field::new("BECN", 33, 1, Show::Flag),
        Field::new("Reserved", 34, 6, Show::Hex),
        Field::new("Destination QP", 40, 24, Show::Hex),
        Field::new("AckReq", 64, 1, Show::Flag),
        Field::new("Reserved", 65, 7, Show::Hex),
        Field::new("PSN", 72, 24, Show::Hex),
    ];

    /// Takes a BTH off the front of `input`; fails only when `input` has
    /// fewer than 12 bytes.
    ///
    /// # Errors
    /// `nom::Err::Error` when the input is too short.
    #[inline]
    pub fn parse(input: &[u8]) -> IResult<&[u8], Self> {
        // All at once: this is on every packet.
        let (rest, header) = take(Self::SIZE).parse(input)?;
        let word = |at: usize| {
            let bytes = header[at..].first_chunk().copied();
            u32::from_be_bytes(bytes.unwrap_or_default())
        };
        let ([opcode, bits, high, low], qp, psn) = (word(0).to_be_bytes(), word(4), word(8));
        let pkey = u16::from_be_bytes([high, low]);
        Ok((
            rest,
            Self {
                opcode: Opcode(opcode),
                solicited: bits & 0x80 != 0,
                mig_req: bits & 0x40 != 0,
                pad: bits >> 4 & 3,
                version: bits & 0x0f,
                pkey: PKey::new(pkey),
                fecn: qp & 0x8000_0000 != 0,
                becn: qp & 0x4000_0000 != 0,
                dest_qp: QpNumber::new(qp),
                ack_req: psn & 0x8000_0000 != 0,
                psn: Psn::new(psn),
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_table_agrees_with_the_parser() {
        let bytes = [
            0x0a, 0xe3, 0xff, 0xfe, 0xc0, 0x12, 0x34, 0x56, 0x80, 0xbb, 0x7a, 0x8f,
        ];
        let (rest, bth) = Bth::parse(&bytes).unwrap();
        assert!(rest.is_empty());
        let table: Vec<u64> = Bth::FIELDS.iter().map(|f| f.get(&bytes).unwrap()).collect();
        assert_eq!(
            table,
            [0x0a, 1, 1, 2, 3, 0xfffe, 1, 1, 0, 0x123456, 1, 0, 0xbb7a8f]
        );
        assert_eq!(bth.opcode, Opcode::RC_WRITE_ONLY);
        assert!(bth.solicited && bth.mig_req && bth.fecn && bth.becn && bth.ack_req);
        assert_eq!((bth.pad, bth.version), (2, 3));
        assert_eq!(bth.pkey.get(), 0xfffe);
        assert_eq!(bth.dest_qp.get(), 0x123456);
        assert_eq!(bth.psn.get(), 0xbb7a8f);
    }

    #[test]
    fn too_short_at_every_length() {
        for len in 0..Bth::SIZE {
            assert!(Bth::parse(&vec![0xff; len]).is_err(), "{len} bytes");
        }
    }
}
