//! An InfiniBand packet: BTH, the extension headers its opcode calls for,
//! payload, ICRC.

use nom::IResult;

use super::{
    aeth::Aeth,
    atomic::{AtomicAckEth, AtomicEth},
    bth::Bth,
    cm::CmMessage,
    deth::Deth,
    feth::Feth,
    icrc::{Icrc, Why},
    ieth::Ieth,
    immdt::ImmDt,
    opcode::Ext,
    rdeth::Rdeth,
    reth::Reth,
    xrceth::Xrceth,
};
use crate::{
    frame::{Datagram, Layer, Reason, Skip},
    source::CONTROL_MARK,
};

/// The extension headers that were found; `None` where the opcode has none of
/// that kind or the capture cut it off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extensions {
    /// End-to-end context.
    pub rdeth: Option<Rdeth>,
    /// Queue key and source queue pair.
    pub deth: Option<Deth>,
    /// XRC shared receive queue.
    pub xrceth: Option<Xrceth>,
    /// What a FLUSH flushes.
    pub feth: Option<Feth>,
    /// Remote memory.
    pub reth: Option<Reth>,
    /// Atomic request.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// Atomic answer.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Key to invalidate.
    pub ieth: Option<Ieth>,
}

/// A decoded RoCE packet, borrowed from the captured frame.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// Addresses and place in the frame.
    pub datagram: Datagram<'a>,
    /// Base transport header.
    pub bth: Bth,
    /// Extension headers.
    pub ext: Extensions,
    /// Captured part of the payload, without pad bytes.
    pub payload: &'a [u8],
    /// Bytes of payload the packet had on the wire, without pad bytes.
    pub payload_len: u32,
    /// The capture cut the packet: something between the BTH and the end of
    /// the ICRC is missing.
    pub truncated: bool,
    /// The lengths leave no room for the headers the opcode calls for.
    pub malformed: bool,
    /// Outcome of the invariant CRC.
    pub icrc: Icrc,
}

/// Decodes the InfiniBand packet in a datagram, as far as it was captured.
/// `verify_icrc` decides whether the invariant CRC is computed, which reads
/// every byte of the packet.
///
/// # Errors
/// [`Skip`] when the BTH is not whole.
#[inline]
pub fn parse(datagram: Datagram<'_>, verify_icrc: bool) -> Result<Packet<'_>, Skip> {
    let Ok((after, bth)) = Bth::parse(datagram.ib) else {
        return Err(Skip {
            reason: if datagram.ib_len >= Bth::SIZE {
                Reason::Truncated
            } else {
                Reason::Malformed
            },
            layer: Layer::Bth,
            offset: datagram.bth_offset,
        });
    };
    let info = bth.opcode.info();
    // The last four bytes are the ICRC's, also where the lengths leave too
    // little room for the headers.
    let body = datagram.ib_len.saturating_sub(Bth::SIZE + Icrc::SIZE);
    let mut rest = &after[..after.len().min(body)];
    let mut ext = Extensions::default();
    if info.ext_size != 0 {
        for kind in info.ext.iter() {
            let Ok((after, ())) = extension(kind, rest, &mut ext) else {
                rest = &[];
                break;
            };
            rest = after;
        }
    }
    let overhead = Bth::SIZE + usize::from(info.ext_size) + usize::from(bth.pad) + Icrc::SIZE;
    let payload_len = datagram.ib_len.saturating_sub(overhead);
    Ok(Packet {
        datagram,
        bth,
        ext,
        payload: &rest[..rest.len().min(payload_len)],
        payload_len: payload_len as u32,
        truncated: datagram.cut,
        malformed: datagram.bad_length || datagram.ib_len < overhead,
        icrc: if verify_icrc {
            Icrc::check(&datagram)
        } else {
            Icrc::Unverifiable(Why::NotAsked)
        },
    })
}

/// Reads one extension header into its place.
fn extension<'a>(kind: Ext, input: &'a [u8], out: &mut Extensions) -> IResult<&'a [u8], ()> {
    /// Parses and stores.
    fn put<'a, H>(
        parse: impl Fn(&'a [u8]) -> IResult<&'a [u8], H>,
        input: &'a [u8],
        slot: &mut Option<H>,
    ) -> IResult<&'a [u8], ()> {
        let (rest, header) = parse(input)?;
        *slot = Some(header);
        Ok((rest, ()))
    }
    match kind {
        Ext::Rdeth => put(Rdeth::parse, input, &mut out.rdeth),
        Ext::Deth => put(Deth::parse, input, &mut out.deth),
        Ext::Xrceth => put(Xrceth::parse, input, &mut out.xrceth),
        Ext::Feth => put(Feth::parse, input, &mut out.feth),
        Ext::Reth => put(Reth::parse, input, &mut out.reth),
        Ext::AtomicEth => put(AtomicEth::parse, input, &mut out.atomic),
        Ext::Aeth => put(Aeth::parse, input, &mut out.aeth),
        Ext::AtomicAckEth => put(AtomicAckEth::parse, input, &mut out.atomic_ack),
        Ext::ImmDt => put(ImmDt::parse, input, &mut out.imm),
        Ext::Ieth => put(Ieth::parse, input, &mut out.ieth),
        Ext::CnpReserved => {
            nom::bytes::complete::take(kind.size())(input).map(|(rest, _): (_, &[u8])| (rest, ()))
        }
    }
}

impl<'a> Packet<'a> {
    /// The communication management message in the payload, if it is one.
    #[must_use]
    pub fn cm(&self) -> Option<CmMessage<'a>> {
        CmMessage::find(self.bth.opcode, self.bth.dest_qp, self.payload)
    }

    /// Whether it is a control frame, by which a write run's listener proves
    /// that it hears: RoCE in form, and nobody's traffic.
    #[must_use]
    #[inline]
    pub fn is_control(&self) -> bool {
        self.bth.opcode.0 == 0xff && self.payload.starts_with(CONTROL_MARK)
    }

    /// The invariant CRC as it stands in the packet, where it was captured.
    #[must_use]
    pub fn icrc_bytes(&self) -> Option<[u8; 4]> {
        let whole = !self.truncated && !self.datagram.fragment;
        let (_, icrc) = self.datagram.ib.split_last_chunk::<4>()?;
        (whole && self.datagram.ib_len >= Bth::SIZE + Icrc::SIZE).then_some(*icrc)
    }
}
