//! Packets as CSV: one row a packet, one column a field, empty where the
//! packet has no such field (RFC 4180).

use super::{
    PacketPrinter,
    fields::Fields,
    text::{dec, hex, opcode},
};
use crate::{
    frame::RoceVersion,
    source::{PacketPath, RawPacket},
    wire::{Packet, icrc::Icrc},
};

/// Prints packets as CSV.
pub struct CsvPackets {
    /// Whether there is a column `path`: where packets were tapped.
    pub path: bool,
    /// Names of the inputs; a last column `file` is written when there are
    /// several.
    pub inputs: Vec<String>,
}

/// Column names, in order; the names of the JSON output with the object a key
/// stands in put in front where it would not be clear.
const COLUMNS: &str = "frame,ts_ns,caplen,len,roce,src,dst,sport,vlan,encap,dscp,ecn,ttl,\
opcode,op,dest_qp,psn,ack_req,se,migreq,pad,pkey,fecn,becn,payload_len,\
va,rkey,dma_len,aeth_kind,aeth_value,msn,qkey,src_qp,swap_add,compare,atomic_ack,imm,\
ieth_rkey,xrc_srq,cm,icrc,truncated,malformed,fragment,feth_placement,feth_selectivity,\
rdeth_ee_context,icrc_computed,icrc_found,icrc_why";

impl PacketPrinter for CsvPackets {
    fn header(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(COLUMNS.as_bytes());
        if self.path {
            out.extend_from_slice(b",path");
        }
        if self.inputs.len() > 1 {
            out.extend_from_slice(b",file");
        }
        out.push(b'\n');
    }

    fn packet(&self, raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>) {
        let (datagram, bth, ext) = (&packet.datagram, &packet.bth, &packet.ext);
        dec(out, raw.frame);
        let mut row = Fields(out);
        row.num(raw.ts_ns);
        row.num(raw.data.len());
        row.num(raw.len);
        row.num(match datagram.version {
            RoceVersion::V1 => 1u8,
            RoceVersion::V2 => 2,
        });
        row.address(datagram.src);
        row.address(datagram.dst);
        row.opt_num(datagram.sport);
        row.list(datagram.vlans.as_slice(), dec);
        row.list(datagram.encaps.as_slice(), |out, encap| {
            out.extend_from_slice(encap.name().as_bytes());
        });
        row.num(datagram.dscp());
        row.num(datagram.ecn());
        row.num(datagram.ttl);
        row.num(bth.opcode.0);
        row.0.push(b',');
        opcode(row.0, bth.opcode);
        row.num(bth.dest_qp.get());
        row.num(bth.psn.get());
        row.flag(bth.ack_req);
        row.flag(bth.solicited);
        row.flag(bth.mig_req);
        row.num(bth.pad);
        row.num(bth.pkey.get());
        row.flag(bth.fecn);
        row.flag(bth.becn);
        row.num(packet.payload_len);
        // RETH and AtomicETH never stand together.
        let memory = ext
            .reth
            .map(|reth| (reth.va, reth.rkey))
            .or(ext.atomic.map(|atomic| (atomic.va, atomic.rkey)));
        row.hex64(memory.map(|(va, _)| va.get()));
        row.rkey(memory.map(|(_, rkey)| rkey));
        row.opt_num(ext.reth.map(|reth| reth.dma_len));
        row.str(ext.aeth.map_or("", |aeth| aeth.kind().name()));
        row.opt_num(ext.aeth.map(|aeth| aeth.kind().value()));
        row.opt_num(ext.aeth.map(|aeth| aeth.msn.get()));
        row.opt_num(ext.deth.map(|deth| deth.qkey.get()));
        row.opt_num(ext.deth.map(|deth| deth.src_qp.get()));
        row.hex64(ext.atomic.map(|atomic| atomic.swap_add));
        row.hex64(ext.atomic.map(|atomic| atomic.compare));
        row.hex64(ext.atomic_ack.map(|ack| ack.original));
        row.opt_num(ext.imm.map(|imm| imm.data));
        row.rkey(ext.ieth.map(|ieth| ieth.rkey));
        row.opt_num(ext.xrceth.map(|xrc| xrc.srq.get()));
        row.str(
            packet
                .cm()
                .and_then(|cm| cm.layout())
                .map_or("", |layout| layout.name),
        );
        row.str(packet.icrc.name());
        row.flag(packet.truncated);
        row.flag(packet.malformed);
        row.flag(datagram.fragment);
        row.opt_num(ext.feth.map(|feth| feth.placement));
        row.opt_num(ext.feth.map(|feth| feth.selectivity));
        row.opt_num(ext.rdeth.map(|rdeth| rdeth.ee_context));
        let (values, why) = match packet.icrc {
            Icrc::Valid => (None, ""),
            Icrc::Invalid { computed, found } => (Some([computed, found]), ""),
            Icrc::Unverifiable(why) => (None, why.words()),
        };
        for place in 0..2 {
            row.0.push(b',');
            if let Some(values) = values {
                hex(row.0, values[place].into(), 8);
            }
        }
        row.str(why);
        if self.path {
            row.str(raw.path.map_or("", PacketPath::word));
        }
        if self.inputs.len() > 1 {
            row.text(self.inputs.get(usize::from(raw.input)).map_or("", |s| s));
        }
        out.push(b'\n');
    }
}
