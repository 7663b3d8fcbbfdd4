//! Packets as JSON, one object a line.
//!
//! The keys are a contract: they may grow, they do not change. Addresses of
//! memory, rkeys and 64-bit values are strings in hexadecimal, everything else
//! is a number, a word or a truth value.

use super::{
    PacketPrinter,
    object::{Object, key},
    text::{dec, hex, hex_short, opcode},
};
use crate::{
    frame::RoceVersion,
    source::RawPacket,
    wire::{
        Packet,
        cm::{CmMessage, Role, reject_reason},
        icrc::Icrc,
    },
};

/// Prints packets as JSON lines.
pub struct JsonPackets {
    /// Names of the inputs; a key `file` is written when there are several.
    pub inputs: Vec<String>,
}

impl PacketPrinter for JsonPackets {
    fn packet(&self, raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>) {
        let mut o = Object::open(out);
        if self.inputs.len() > 1
            && let Some(name) = self.inputs.get(usize::from(raw.input))
        {
            o.text(key!("file"), name);
        }
        o.num(key!("frame"), raw.frame);
        o.num(key!("ts_ns"), raw.ts_ns);
        o.num(key!("caplen"), raw.data.len());
        o.num(key!("len"), raw.len);
        if let Some(path) = raw.path {
            o.str(key!("path"), path.word());
        }
        datagram(&mut o, packet);
        bth(&mut o, packet);
        extensions(&mut o, packet);
        if let Some(cm) = packet.cm() {
            o.object(key!("cm"), |o| communication(o, &cm));
        }
        o.str(key!("icrc"), packet.icrc.name());
        match packet.icrc {
            Icrc::Valid => {}
            Icrc::Invalid { computed, found } => {
                o.word(key!("icrc_computed"), |out| hex(out, computed.into(), 8));
                o.word(key!("icrc_found"), |out| hex(out, found.into(), 8));
            }
            Icrc::Unverifiable(why) => o.str(key!("icrc_why"), why.words()),
        }
        o.flag(key!("truncated"), packet.truncated);
        if packet.malformed {
            o.flag(key!("malformed"), true);
        }
        if packet.datagram.fragment {
            o.flag(key!("fragment"), true);
        }
        o.close();
        out.push(b'\n');
    }
}

fn datagram(o: &mut Object<'_>, packet: &Packet<'_>) {
    let datagram = &packet.datagram;
    o.num(
        key!("roce"),
        match datagram.version {
            RoceVersion::V1 => 1u8,
            RoceVersion::V2 => 2,
        },
    );
    o.address(key!("src"), datagram.src);
    o.address(key!("dst"), datagram.dst);
    if let Some(sport) = datagram.sport {
        o.num(key!("sport"), sport);
    }
    o.list(key!("vlan"), datagram.vlans.as_slice(), dec);
    o.list(key!("encap"), datagram.encaps.as_slice(), |out, encap| {
        out.push(b'"');
        out.extend_from_slice(encap.name().as_bytes());
        out.push(b'"');
    });
    o.num(key!("dscp"), datagram.dscp());
    o.num(key!("ecn"), datagram.ecn());
    o.num(key!("ttl"), datagram.ttl);
}

fn bth(o: &mut Object<'_>, packet: &Packet<'_>) {
    let bth = &packet.bth;
    o.num(key!("opcode"), bth.opcode.0);
    o.word(key!("op"), |out| opcode(out, bth.opcode));
    o.num(key!("dest_qp"), bth.dest_qp.get());
    o.num(key!("psn"), bth.psn.get());
    o.flag(key!("ack_req"), bth.ack_req);
    o.flag(key!("se"), bth.solicited);
    o.flag(key!("migreq"), bth.mig_req);
    o.num(key!("pad"), bth.pad);
    o.num(key!("pkey"), bth.pkey.get());
    o.flag(key!("fecn"), bth.fecn);
    o.flag(key!("becn"), bth.becn);
    o.num(key!("payload_len"), packet.payload_len);
}

fn extensions(o: &mut Object<'_>, packet: &Packet<'_>) {
    let ext = &packet.ext;
    if let Some(rdeth) = ext.rdeth {
        o.num(key!("rdeth_ee_context"), rdeth.ee_context);
    }
    if let Some(deth) = ext.deth {
        o.object(key!("deth"), |o| {
            o.num(key!("qkey"), deth.qkey.get());
            o.num(key!("src_qp"), deth.src_qp.get());
        });
    }
    if let Some(xrc) = ext.xrceth {
        o.num(key!("xrc_srq"), xrc.srq.get());
    }
    if let Some(feth) = ext.feth {
        o.object(key!("feth"), |o| {
            o.num(key!("placement"), feth.placement);
            o.num(key!("selectivity"), feth.selectivity);
        });
    }
    if let Some(reth) = ext.reth {
        o.object(key!("reth"), |o| {
            o.hex64(key!("va"), reth.va.get());
            o.rkey(key!("rkey"), reth.rkey);
            o.num(key!("dma_len"), reth.dma_len);
        });
    }
    if let Some(atomic) = ext.atomic {
        o.object(key!("atomic"), |o| {
            o.hex64(key!("va"), atomic.va.get());
            o.rkey(key!("rkey"), atomic.rkey);
            o.hex64(key!("swap_add"), atomic.swap_add);
            o.hex64(key!("compare"), atomic.compare);
        });
    }
    if let Some(aeth) = ext.aeth {
        let kind = aeth.kind();
        o.object(key!("aeth"), |o| {
            o.str(key!("kind"), kind.name());
            o.num(key!("value"), kind.value());
            o.num(key!("msn"), aeth.msn.get());
        });
    }
    if let Some(ack) = ext.atomic_ack {
        o.hex64(key!("atomic_ack"), ack.original);
    }
    if let Some(imm) = ext.imm {
        o.num(key!("imm"), imm.data);
    }
    if let Some(ieth) = ext.ieth {
        o.rkey(key!("ieth_rkey"), ieth.rkey);
    }
}

fn communication(o: &mut Object<'_>, cm: &CmMessage<'_>) {
    o.num(key!("attr"), cm.mad.attribute_id);
    if let Some(layout) = cm.layout() {
        o.str(key!("msg"), layout.name);
    }
    for (role, key) in [
        (Role::LocalCommId, key!("local_comm_id")),
        (Role::RemoteCommId, key!("remote_comm_id")),
        (Role::Qpn, key!("qpn")),
        (Role::StartingPsn, key!("psn")),
        (Role::PKey, key!("pkey")),
        (Role::QKey, key!("qkey")),
        (Role::RetryCount, key!("retry_count")),
        (Role::RnrRetryCount, key!("rnr_retry_count")),
        (Role::Refers, key!("refers_to")),
        (Role::Status, key!("status")),
    ] {
        if let Some(value) = cm.get(role) {
            o.num(key, value);
        }
    }
    if let Some(service) = cm.get(Role::ServiceId) {
        o.word(key!("service_id"), |out| hex(out, service, 16));
    }
    if let Some(mtu) = cm.path_mtu() {
        o.num(key!("path_mtu"), mtu);
    }
    for (role, key) in [
        (Role::LocalGid, key!("local_gid")),
        (Role::RemoteGid, key!("remote_gid")),
    ] {
        if let Some(gid) = cm.gid(role) {
            o.address(key, gid.into());
        }
    }
    if let Some(reason) = cm.get(Role::RejectReason) {
        o.num(key!("reason"), reason);
        match reject_reason(reason as u16) {
            Some(words) => o.str(key!("reason_text"), words),
            None => o.word(key!("reason_text"), |out| {
                out.extend_from_slice(b"reserved ");
                hex_short(out, reason);
            }),
        }
    }
    if let Some(ip_cm) = cm.ip_cm() {
        o.object(key!("ip_cm"), |o| {
            o.address(key!("src"), ip_cm.src);
            o.address(key!("dst"), ip_cm.dst);
            o.num(key!("sport"), ip_cm.sport);
        });
    }
}
