//! Every header of a packet, field by field: byte offset in the frame, the
//! bits of the field, its name, its value and what that means.

use std::{
    io::Write,
    net::{Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use super::{
    PacketPrinter,
    style::{Kind, Style},
    text::{dec, hex, opcode, plural, width},
};
use crate::{
    frame::{FrameOptions, Layer, walk},
    layout::{Field, Show},
    source::RawPacket,
    wire::{Packet, bth::Bth, cm::CmMessage, ext_layout, icrc::Icrc, mad::MadHeader},
};

/// Prints packets header by header.
pub struct DetailPackets {
    /// Colours.
    pub style: Style,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// What was taken for RoCE, to walk the frame once more.
    pub frame: FrameOptions,
    /// Follow each packet by the bytes of the frame.
    pub bytes: bool,
}

impl PacketPrinter for DetailPackets {
    fn packet(&self, raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>) {
        self.heading(raw, packet, out);
        let mut layers: Vec<(Layer, Range<usize>)> = Vec::new();
        // The walk led here before, so it does again.
        let _ = walk(raw, self.frame, &mut layers);
        let mut view = View {
            style: self.style,
            frame: raw.data,
            missing: "(cut)",
            out,
        };
        for (layer, range) in layers {
            view.header(layer.name(), layer.fields(), range);
        }
        // What ends before the ICRC cannot be read from it or beyond it.
        let end = packet
            .datagram
            .ib
            .len()
            .min(packet.datagram.ib_len.saturating_sub(Icrc::SIZE));
        view.frame = &raw.data[..packet.datagram.bth_offset + end];
        view.missing = if packet.truncated || packet.datagram.fragment {
            "(cut)"
        } else {
            "(no room)"
        };
        view.transport(packet);
        view.payload(packet);
        view.icrc(packet);
        if self.bytes {
            out.extend_from_slice(b"  Bytes\n");
            super::hex_dump(out, raw.data, 4);
        }
        out.push(b'\n');
    }
}

impl DetailPackets {
    fn heading(&self, raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>) {
        let mut line = Vec::new();
        line.extend_from_slice(b"Frame ");
        dec(&mut line, raw.frame);
        if let (true, Some(name)) = (
            self.inputs.len() > 1,
            self.inputs.get(usize::from(raw.input)),
        ) {
            let _ = write!(line, " of {name}");
        }
        line.extend_from_slice(" · ".as_bytes());
        opcode(&mut line, packet.bth.opcode);
        self.style.paint(out, Kind::Heading, &line);
        let time = jiff::Timestamp::from_nanosecond(raw.ts_ns.into())
            .map_or_else(|_| raw.ts_ns.to_string(), |time| format!("{time:.9}"));
        let _ = write!(out, " · {time} · {} bytes", raw.len);
        if raw.data.len() < raw.len as usize {
            let _ = write!(out, ", {} captured", raw.data.len());
        }
        if let Some(path) = raw.path {
            let _ = write!(out, " · {}", path.word());
        }
        out.push(b'\n');
    }
}

struct View<'a, 'o> {
    style: Style,
    /// The bytes that may be read.
    frame: &'a [u8],
    /// Stands for a field that is not among them.
    missing: &'static str,
    out: &'o mut Vec<u8>,
}

impl View<'_, '_> {
    /// A header's title line and its fields, as far as captured.
    fn header(&mut self, name: &str, fields: &[Field], range: Range<usize>) {
        let mut title = Vec::new();
        let _ = write!(title, "  {name}");
        self.style.paint(self.out, Kind::Request, &title);
        let _ = write!(
            self.out,
            "  bytes {}..{}",
            range.start,
            range.end.saturating_sub(1).max(range.start)
        );
        if range.end > self.frame.len() {
            let _ = write!(self.out, ", not whole {}", self.missing);
        }
        self.out.push(b'\n');
        for field in fields {
            self.field(field, range.start);
        }
    }

    /// `offset  bits  name  value`, the bits of a field that is not made of
    /// whole bytes drawn in their bytes.
    fn field(&mut self, field: &Field, header: usize) {
        let bytes = self.frame.get(header..).unwrap_or_default();
        let start = header + usize::from(field.bit / 8);
        let _ = write!(self.out, "    {start:>4}  ");
        let bits = self.out.len();
        draw_bits(self.out, field, bytes);
        let drawn = width(&self.out[bits..]);
        self.out
            .resize(self.out.len() + 19usize.saturating_sub(drawn), b' ');
        let _ = write!(self.out, "  {:<29} ", field.name);
        if !value(self.out, field, bytes) {
            self.out.extend_from_slice(self.missing.as_bytes());
        }
        self.out.push(b'\n');
    }

    fn transport(&mut self, packet: &Packet<'_>) {
        let mut at = packet.datagram.bth_offset;
        self.header(Layer::Bth.name(), Layer::Bth.fields(), at..at + Bth::SIZE);
        at += Bth::SIZE;
        for ext in packet.bth.opcode.info().ext.iter() {
            let (name, fields) = ext_layout(ext);
            self.header(name, fields, at..at + ext.size());
            at += ext.size();
        }
        if let Some(cm) = packet.cm() {
            self.communication(&cm, at);
        }
    }

    fn communication(&mut self, cm: &CmMessage<'_>, at: usize) {
        self.header(
            "Management datagram",
            MadHeader::FIELDS,
            at..at + MadHeader::SIZE,
        );
        let Some(layout) = cm.layout() else { return };
        let body = at + MadHeader::SIZE;
        let fields: Vec<Field> = layout.fields.iter().map(|(_, field)| *field).collect();
        self.header(
            &format!("CM {}", layout.name),
            &fields,
            body..body + layout.private_data,
        );
        let mut private = body + layout.private_data;
        let mut data = cm.private_data();
        if let Some(fields) = cm.ip_cm_fields() {
            self.header("RDMA-CM private data", fields, private..private + 36);
            private += 36;
            data = data.get(36..).unwrap_or_default();
        }
        if data.iter().any(|byte| *byte != 0) {
            // A datagram has no more than 232 bytes for it.
            let bits = data.len().min(232) as u16 * 8;
            let field = Field::new("Bytes", 0, bits, Show::Bytes);
            self.header("Private data", &[field], private..private + data.len());
        }
    }

    fn payload(&mut self, packet: &Packet<'_>) {
        if packet.payload_len == 0 && packet.bth.pad == 0 {
            return;
        }
        self.style.paint(self.out, Kind::Request, b"  Payload");
        let _ = write!(
            self.out,
            "  {}",
            plural(packet.payload_len.into(), "byte", "bytes")
        );
        if packet.payload.len() < packet.payload_len as usize {
            let _ = write!(self.out, ", {} captured", packet.payload.len());
        }
        if packet.bth.pad > 0 {
            let _ = write!(
                self.out,
                ", then {}",
                plural(packet.bth.pad.into(), "pad byte", "pad bytes")
            );
        }
        self.out.push(b'\n');
    }

    fn icrc(&mut self, packet: &Packet<'_>) {
        self.style.paint(self.out, Kind::Request, b"  ICRC");
        let out = &mut *self.out;
        if let Some(bytes) = packet.icrc_bytes() {
            out.extend_from_slice(b"  ");
            hex(out, u32::from_le_bytes(bytes).into(), 8);
        }
        match packet.icrc {
            Icrc::Valid => self.style.paint(out, Kind::Response, b"  valid"),
            Icrc::Invalid { computed, .. } => {
                let text = format!("  INVALID: the packet calls for 0x{computed:08x}");
                self.style.paint(out, Kind::Bad, text.as_bytes());
            }
            Icrc::Unverifiable(why) => {
                let _ = write!(out, "  unverifiable: {}", why.words());
            }
        }
        out.push(b'\n');
    }
}

/// `.... ..10` for a field inside bytes, nothing for whole bytes and for
/// fields wider than two bytes.
fn draw_bits(out: &mut Vec<u8>, field: &Field, header: &[u8]) {
    let (bit, bits) = (usize::from(field.bit % 8), usize::from(field.width));
    let bytes = field.bytes(header);
    let whole = bit == 0 && bits % 8 == 0;
    if whole || bit + bits > 16 || bytes.len() * 8 < bit + bits {
        return;
    }
    for place in 0..bytes.len() * 8 {
        if place > 0 && place % 4 == 0 {
            out.push(b' ');
        }
        out.push(if !(bit..bit + bits).contains(&place) {
            b'.'
        } else if bytes[place / 8] >> (7 - place % 8) & 1 == 1 {
            b'1'
        } else {
            b'0'
        });
    }
}

/// Writes the value; false when it was cut off.
fn value(out: &mut Vec<u8>, field: &Field, header: &[u8]) -> bool {
    let bytes = field.bytes(header);
    if bytes.len() < usize::from(field.width).div_ceil(8) {
        return false;
    }
    let number = field.get(header);
    match (field.show, number) {
        (Show::Mac, _) => {
            for (i, byte) in bytes.iter().enumerate() {
                let _ = write!(out, "{}{byte:02x}", if i > 0 { ":" } else { "" });
            }
        }
        (Show::Ipv4, Some(n)) => _ = write!(out, "{}", Ipv4Addr::from_bits(n as u32)),
        (Show::Ipv6, _) => {
            if let Ok(octets) = <[u8; 16]>::try_from(bytes) {
                let _ = write!(out, "{}", Ipv6Addr::from(octets));
            }
        }
        (Show::Flag, Some(n)) => {
            out.extend_from_slice(if n == 1 { b"yes" } else { b"no" });
        }
        (Show::Dec, Some(n)) => dec(out, n),
        (Show::Hex, Some(n)) => hex(out, n, u32::from(field.width).div_ceil(4)),
        (Show::Words(words), Some(n)) => {
            hex(out, n, u32::from(field.width).div_ceil(4));
            if let Some(words) = words(n) {
                let _ = write!(out, "  {words}");
            }
        }
        // Too wide for a number: the bytes, the first of them when many.
        (Show::Bytes | Show::Dec | Show::Hex | Show::Flag | Show::Words(_) | Show::Ipv4, _) => {
            const MOST: usize = 16;
            for byte in bytes.iter().take(MOST) {
                let _ = write!(out, "{byte:02x}");
            }
            if bytes.len() > MOST {
                let _ = write!(out, "… ({} bytes)", bytes.len());
            }
        }
    }
    true
}
