//! Packets as a table that is written as it is read.
//!
//! Cells stand at fixed columns. Where a terminal is too narrow for all of
//! them, the later ones flow onto a second line, the same ones in every row.

use std::{cell::Cell, io::Write, net::IpAddr};

use super::{
    PacketPrinter,
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
    style: Style,
    inputs: usize,
    /// Time that is shown as zero.
    start_ns: i64,
    columns: [Column; 9],
    /// Width of the terminal, if it is one.
    wrap: Option<usize>,
    /// Follow each row by the bytes of the frame.
    bytes: bool,
}

#[derive(Clone, Copy)]
struct Column {
    title: &'static str,
    width: usize,
    right: bool,
    /// Begins a new line.
    breaks: bool,
    start: usize,
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

const GAP: usize = 2;
/// Places kept for the flags, which come last and have no fixed width.
const FLAGS: usize = 12;

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
        let column = |title, width, right| Column {
            title,
            width,
            right,
            breaks: false,
            start: 0,
        };
        let number = if inputs > 1 { 7 } else { 5 };
        let mut columns = [
            column("#", number, true),
            column("time", 10, true),
            column("source", widths.source.max(8), false),
            column("→ destination", widths.destination.max(11) + 2, false),
            column("operation", widths.operation.max(18), false),
            column("dest QP", 8, false),
            column("PSN", 8, false),
            column("VA              rkey         DMA len", 36, false),
            column("payload", 7, true),
        ];
        let indent = number + GAP;
        let (last, mut at) = (columns.len() - 1, 0);
        for (i, column) in columns.iter_mut().enumerate() {
            let end = at + column.width + if i == last { GAP + FLAGS } else { 0 };
            if i > 0 && wrap.is_some_and(|wrap| end > wrap) && at > indent {
                column.breaks = true;
                at = indent;
            }
            column.start = at;
            at += column.width + GAP;
        }
        Self {
            style,
            inputs,
            start_ns: widths.start_ns.unwrap_or(0),
            columns,
            wrap,
            bytes,
        }
    }
}

thread_local! {
    static WORDS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A row being written.
struct Row<'t, 'o> {
    table: &'t TablePackets,
    out: &'o mut Vec<u8>,
    /// Places written on the current line.
    at: usize,
}

impl Row<'_, '_> {
    fn cell(&mut self, index: usize, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        let column = self.table.columns[index];
        if column.breaks {
            self.out.push(b'\n');
            self.at = 0;
        }
        self.place(
            column.start,
            kind,
            column.right.then_some(column.width),
            write,
        );
    }

    /// Writes text that begins at a place of the line, or right-aligned in
    /// `right` places from there.
    fn place(
        &mut self,
        start: usize,
        kind: Kind,
        right: Option<usize>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let line = self.out.len();
        // Text that outgrew its column pushes the next one along.
        let mut pad = start
            .saturating_sub(self.at)
            .max(if self.at > 0 { GAP } else { 0 });
        let color = self.table.style.color && kind != Kind::Plain;
        if color {
            self.table.style.begin(self.out, kind);
        }
        let text = self.out.len();
        write(self.out);
        let written = width(&self.out[text..]);
        if written == 0 {
            self.out.truncate(line);
            return;
        }
        if color {
            Style::end(self.out);
        }
        pad += right.map_or(0, |width| width.saturating_sub(written));
        let indent = self.table.columns[NUMBER].width + GAP;
        let breaks = self.at > indent
            && self
                .table
                .wrap
                .is_some_and(|wrap| self.at + pad + written > wrap);
        if breaks {
            pad = indent;
            self.at = 0;
        }
        // The padding goes in front, now that its length is known.
        let end = self.out.len();
        let gap = pad + usize::from(breaks);
        self.out.resize(end + gap, b' ');
        self.out.copy_within(line..end, line + gap);
        self.out[line..line + gap].fill(b' ');
        if breaks {
            self.out[line] = b'\n';
        }
        self.at += pad + written;
    }

    fn flags(&mut self, raw: &RawPacket<'_>, packet: &Packet<'_>) {
        // Their look is known only once all are; the words wait in a buffer
        // that is used again.
        let mut words = WORDS.take();
        words.clear();
        let kind = flags(raw, packet, &mut words);
        if !words.is_empty() {
            let last = self.table.columns[PAYLOAD];
            self.place(last.start + last.width + GAP, kind, None, |out| {
                out.extend_from_slice(&words);
            });
        }
        WORDS.set(words);
    }
}

impl PacketPrinter for TablePackets {
    fn header(&self, out: &mut Vec<u8>) {
        let mut row = Row {
            table: self,
            out,
            at: 0,
        };
        for (i, column) in self.columns.iter().enumerate() {
            row.cell(i, Kind::Heading, |out| {
                out.extend_from_slice(column.title.as_bytes());
            });
        }
        let last = self.columns[PAYLOAD];
        row.place(last.start + last.width + GAP, Kind::Heading, None, |out| {
            out.extend_from_slice(b"flags");
        });
        out.push(b'\n');
    }

    fn packet(&self, raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>) {
        let kind = kind(packet);
        let mut row = Row {
            table: self,
            out,
            at: 0,
        };
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
        row.flags(raw, packet);
        out.push(b'\n');
        if self.bytes {
            super::hex_dump(out, raw.data, self.columns[NUMBER].width + GAP);
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

/// Appends the words for what is special about a packet; returns how they
/// look.
fn flags(raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>) -> Kind {
    let mut kind = Kind::Quiet;
    let mut word = |out: &mut Vec<u8>, is: bool, text: &str, severity: Kind| {
        if is {
            if !out.is_empty() {
                out.push(b' ');
            }
            out.extend_from_slice(text.as_bytes());
            if severity == Kind::Bad || kind == Kind::Quiet {
                kind = severity;
            }
        }
    };
    let (bth, datagram) = (&packet.bth, &packet.datagram);
    if let Some(path) = raw.path {
        let kind = match path {
            PacketPath::Looped => Kind::Notice,
            PacketPath::Wire => Kind::Quiet,
        };
        word(out, true, path.word(), kind);
    }
    word(out, bth.ack_req, "ack-req", Kind::Quiet);
    word(out, bth.solicited, "solicited", Kind::Quiet);
    word(out, matches!(datagram.ecn(), 1 | 2), "ECT", Kind::Quiet);
    word(out, datagram.ecn() == 3, "CE", Kind::Notice);
    word(out, bth.fecn, "FECN", Kind::Notice);
    word(out, bth.becn, "BECN", Kind::Notice);
    let bad = matches!(packet.icrc, Icrc::Invalid { .. });
    word(out, bad, "bad-ICRC", Kind::Bad);
    word(out, packet.malformed, "malformed", Kind::Bad);
    word(out, packet.truncated, "cut", Kind::Notice);
    word(out, datagram.fragment, "fragment", Kind::Notice);
    let unchecked = !packet.truncated
        && !datagram.fragment
        && !packet.malformed
        && matches!(packet.icrc, Icrc::Unverifiable(_));
    word(out, unchecked, "ICRC-unchecked", Kind::Quiet);
    word(
        out,
        datagram.version == RoceVersion::V1,
        "RoCEv1",
        Kind::Quiet,
    );
    if let Some(imm) = packet.ext.imm {
        word(out, true, "imm ", Kind::Quiet);
        hex(out, imm.data.into(), 8);
    }
    for vlan in datagram.vlans.as_slice() {
        word(out, true, "vlan ", Kind::Quiet);
        dec(out, *vlan);
    }
    for encap in datagram.encaps.as_slice() {
        word(out, true, encap.name(), Kind::Quiet);
    }
    kind
}
