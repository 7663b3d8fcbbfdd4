//! Packets as a table that is written as it is read.

use std::{io::Write, net::IpAddr};

use super::{
    PacketPrinter,
    grid::{Flags, GAP, Grid},
    style::{Kind, Style},
    text::{dec, hex, hex_short, ip, opcode, seconds, width},
};
use crate::{
    frame::RoceVersion,
    source::{PacketPath, RawPacket},
    wire::{
        Packet,
        cm::{CmMessage, Role, ip_service, reject_reason},
        icrc::Icrc,
        opcode::Verb,
    },
};

/// Prints packets as a table.
pub struct TablePackets {
    grid: Grid,
    inputs: usize,
    /// Time that is shown as zero.
    start_ns: i64,
    /// Follow each row by the bytes of the frame.
    bytes: bool,
}

/// What the first packets show about the widths that will be needed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Widths {
    source: usize,
    destination: usize,
    operation: usize,
    start_ns: Option<i64>,
}

impl Widths {
    /// Widths for packets that are yet to come, in a table that counts times
    /// from `start_ns`.
    #[must_use]
    pub fn expected(address: usize, operation: usize, start_ns: i64) -> Self {
        Self {
            source: address,
            destination: address,
            operation,
            start_ns: Some(start_ns),
        }
    }

    /// The first time given is the one that the table counts from.
    pub fn begin(&mut self, ts_ns: i64) {
        self.start_ns.get_or_insert(ts_ns);
    }

    /// Takes a packet into account.
    pub fn see(&mut self, raw: &RawPacket<'_>, packet: &Packet<'_>) {
        let measure = |address: IpAddr| address.to_string().len();
        self.source = self.source.max(measure(packet.datagram.src));
        self.destination = self.destination.max(measure(packet.datagram.dst));
        let operation = packet.bth.opcode.to_string().len();
        self.operation = self.operation.max(operation);
        self.begin(raw.ts_ns);
    }
}

const NUMBER: usize = 0;
const TIME: usize = 1;
const SOURCE: usize = 2;
const DESTINATION: usize = 3;
const OPERATION: usize = 4;
const DEST_QP: usize = 5;
const PSN: usize = 6;
const DETAIL: usize = 7;
const PAYLOAD: usize = 8;

impl TablePackets {
    /// A table for packets from `inputs` inputs, `wrap` places wide.
    #[must_use]
    pub fn new(
        style: Style,
        inputs: usize,
        widths: &Widths,
        wrap: Option<usize>,
        bytes: bool,
    ) -> Self {
        let specs = [
            ("#", if inputs > 1 { 7 } else { 5 }, true),
            ("time", 10, true),
            ("source", widths.source.max(8), false),
            ("→ destination", widths.destination.max(11) + 2, false),
            ("operation", widths.operation.max(18), false),
            ("dest QP", 8, false),
            ("PSN", 8, false),
            ("VA              rkey         DMA len", 36, false),
            ("payload", 7, true),
        ];
        Self {
            grid: Grid::new(style, wrap, &specs),
            inputs,
            start_ns: widths.start_ns.unwrap_or(0),
            bytes,
        }
    }
}

impl PacketPrinter for TablePackets {
    fn header(&self, out: &mut Vec<u8>) {
        self.grid.header(out);
    }

    fn packet(&self, raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>) {
        let kind = kind(packet);
        let mut row = self.grid.row(out);
        row.cell(NUMBER, Kind::Quiet, |out| {
            if self.inputs > 1 {
                dec(out, raw.input + 1);
                out.push(b':');
            }
            dec(out, raw.frame);
        });
        row.cell(TIME, Kind::Quiet, |out| {
            seconds(out, raw.ts_ns.saturating_sub(self.start_ns), 6);
        });
        row.cell(SOURCE, Kind::Plain, |out| ip(out, packet.datagram.src));
        row.cell(DESTINATION, Kind::Plain, |out| {
            out.extend_from_slice("→ ".as_bytes());
            ip(out, packet.datagram.dst);
        });
        row.cell(OPERATION, kind, |out| opcode(out, packet.bth.opcode));
        row.cell(DEST_QP, Kind::Plain, |out| {
            hex(out, packet.bth.dest_qp.get().into(), 6);
        });
        row.cell(PSN, Kind::Plain, |out| {
            hex(out, packet.bth.psn.get().into(), 6);
        });
        row.cell(DETAIL, detail_kind(packet), |out| detail(packet, out));
        row.cell(PAYLOAD, Kind::Plain, |out| dec(out, packet.payload_len));
        row.flags(|words| flags(raw, packet, words));
        row.end();
        if self.bytes {
            super::hex_dump(out, raw.data, self.grid.indent());
        }
    }
}

fn kind(packet: &Packet<'_>) -> Kind {
    if packet.ext.aeth.is_some_and(|aeth| aeth.kind().is_nak()) {
        return Kind::Bad;
    }
    match packet.bth.opcode.info().verb {
        Verb::Cnp | Verb::Unknown => Kind::Notice,
        _ if packet.bth.opcode.is_response() => Kind::Response,
        _ => Kind::Request,
    }
}

fn detail_kind(packet: &Packet<'_>) -> Kind {
    match packet.ext.aeth {
        Some(aeth) if aeth.kind().is_nak() => Kind::Bad,
        _ => Kind::Plain,
    }
}

/// What the operation is about: remote memory, the acknowledgement in words,
/// the message of a connection.
fn detail(packet: &Packet<'_>, out: &mut Vec<u8>) {
    let ext = &packet.ext;
    let memory = |out: &mut Vec<u8>, va: u64, rkey: u32| {
        let start = out.len();
        hex_short(out, va);
        let written = width(&out[start..]);
        out.resize(out.len() + 14usize.saturating_sub(written) + GAP, b' ');
        hex(out, rkey.into(), 8);
    };
    if let Some(cm) = packet.cm() {
        communication(&cm, out);
    } else if let Some(reth) = ext.reth {
        memory(out, reth.va.get(), reth.rkey.get());
        let _ = write!(out, "  {:>8}", reth.dma_len);
    } else if let Some(atomic) = ext.atomic {
        memory(out, atomic.va.get(), atomic.rkey.get());
        if packet.bth.opcode.info().verb == Verb::CompareSwap {
            let _ = write!(out, "  {:#x} → {:#x}", atomic.compare, atomic.swap_add);
        } else {
            let _ = write!(out, "  + {:#x}", atomic.swap_add);
        }
    } else if let Some(aeth) = ext.aeth {
        let _ = write!(out, "{}, MSN {}", aeth.kind(), aeth.msn.get());
        if let Some(ack) = ext.atomic_ack {
            let _ = write!(out, ", was {:#x}", ack.original);
        }
    } else if let Some(deth) = ext.deth {
        let _ = write!(out, "from QP {}, Q_Key {}", deth.src_qp, deth.qkey);
    } else if let Some(ieth) = ext.ieth {
        let _ = write!(out, "invalidates rkey {}", ieth.rkey);
    }
}

fn communication(cm: &CmMessage<'_>, out: &mut Vec<u8>) {
    let Some(layout) = cm.layout() else {
        let _ = write!(out, "CM attribute {:#06x}", cm.mad.attribute_id);
        return;
    };
    let _ = write!(out, "CM {}", layout.name);
    if let Some(reason) = cm.get(Role::RejectReason) {
        match reject_reason(reason as u16) {
            Some(words) => _ = write!(out, ", {words}"),
            None => _ = write!(out, ", reason {reason}"),
        }
    }
    if let Some(qpn) = cm.qpn() {
        let _ = write!(out, ", QP {qpn}");
    }
    if let Some((_, port)) = cm.get(Role::ServiceId).and_then(ip_service) {
        let _ = write!(out, ", port {port}");
    }
}

/// Appends the words for what is special about a packet.
fn flags(raw: &RawPacket<'_>, packet: &Packet<'_>, words: &mut Flags<'_>) {
    let (bth, datagram) = (&packet.bth, &packet.datagram);
    if let Some(path) = raw.path {
        let kind = match path {
            PacketPath::Looped => Kind::Notice,
            PacketPath::Wire => Kind::Quiet,
        };
        words.word(true, path.word(), kind);
    }
    words.word(bth.ack_req, "ack-req", Kind::Quiet);
    words.word(bth.solicited, "solicited", Kind::Quiet);
    words.word(matches!(datagram.ecn(), 1 | 2), "ECT", Kind::Quiet);
    words.word(datagram.ecn() == 3, "CE", Kind::Notice);
    words.word(bth.fecn, "FECN", Kind::Notice);
    words.word(bth.becn, "BECN", Kind::Notice);
    let bad = matches!(packet.icrc, Icrc::Invalid { .. });
    words.word(bad, "bad-ICRC", Kind::Bad);
    words.word(packet.malformed, "malformed", Kind::Bad);
    words.word(packet.truncated, "cut", Kind::Notice);
    words.word(datagram.fragment, "fragment", Kind::Notice);
    let unchecked = !packet.truncated
        && !datagram.fragment
        && !packet.malformed
        && matches!(packet.icrc, Icrc::Unverifiable(_));
    words.word(unchecked, "ICRC-unchecked", Kind::Quiet);
    let v1 = datagram.version == RoceVersion::V1;
    words.word(v1, "RoCEv1", Kind::Quiet);
    if let Some(imm) = packet.ext.imm {
        words.more(Kind::Quiet, |out| {
            out.extend_from_slice(b"imm ");
            hex(out, imm.data.into(), 8);
        });
    }
    for vlan in datagram.vlans.as_slice() {
        words.more(Kind::Quiet, |out| {
            out.extend_from_slice(b"vlan ");
            dec(out, *vlan);
        });
    }
    for encap in datagram.encaps.as_slice() {
        words.word(true, encap.name(), Kind::Quiet);
    }
}
