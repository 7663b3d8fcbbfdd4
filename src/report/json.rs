//! Packets as JSON, one object a line.
//!
//! The keys are a contract: they may grow, they do not change. Addresses of
//! memory, rkeys and 64-bit values are strings in hexadecimal, everything else
//! is a number, a word or a truth value.

use super::{
    PacketPrinter,
    object::Object,
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
            o.text("file", name);
        }
        o.num("frame", raw.frame);
        o.num("ts_ns", raw.ts_ns);
        o.num("caplen", raw.data.len());
        o.num("len", raw.len);
        if let Some(path) = raw.path {
            o.str("path", path.word());
        }
        datagram(&mut o, packet);
        bth(&mut o, packet);
        extensions(&mut o, packet);
        if let Some(cm) = packet.cm() {
            o.object("cm", |o| communication(o, &cm));
        }
        o.str("icrc", packet.icrc.name());
        match packet.icrc {
            Icrc::Valid => {}
            Icrc::Invalid { computed, found } => {
                o.word("icrc_computed", |out| hex(out, computed.into(), 8));
                o.word("icrc_found", |out| hex(out, found.into(), 8));
            }
            Icrc::Unverifiable(why) => o.str("icrc_why", why.words()),
        }
        o.flag("truncated", packet.truncated);
        if packet.malformed {
            o.flag("malformed", true);
        }
        if packet.datagram.fragment {
            o.flag("fragment", true);
        }
        o.close();
        out.push(b'\n');
    }
}

fn datagram(o: &mut Object<'_>, packet: &Packet<'_>) {
    let datagram = &packet.datagram;
    o.num(
        "roce",
        match datagram.version {
            RoceVersion::V1 => 1,
            RoceVersion::V2 => 2,
        },
    );
    o.address("src", datagram.src);
    o.address("dst", datagram.dst);
    if let Some(sport) = datagram.sport {
        o.num("sport", sport);
    }
    o.list("vlan", datagram.vlans.as_slice(), dec);
    o.list("encap", datagram.encaps.as_slice(), |out, encap| {
        out.push(b'"');
        out.extend_from_slice(encap.name().as_bytes());
        out.push(b'"');
    });
    o.num("dscp", datagram.dscp());
    o.num("ecn", datagram.ecn());
    o.num("ttl", datagram.ttl);
}

fn bth(o: &mut Object<'_>, packet: &Packet<'_>) {
    let bth = &packet.bth;
    o.num("opcode", bth.opcode.0);
    o.word("op", |out| opcode(out, bth.opcode));
    o.num("dest_qp", bth.dest_qp.get());
    o.num("psn", bth.psn.get());
    o.flag("ack_req", bth.ack_req);
    o.flag("se", bth.solicited);
    o.flag("migreq", bth.mig_req);
    o.num("pad", bth.pad);
    o.num("pkey", bth.pkey.get());
    o.flag("fecn", bth.fecn);
    o.flag("becn", bth.becn);
    o.num("payload_len", packet.payload_len);
}

fn extensions(o: &mut Object<'_>, packet: &Packet<'_>) {
    let ext = &packet.ext;
    if let Some(rdeth) = ext.rdeth {
        o.num("rdeth_ee_context", rdeth.ee_context);
    }
    if let Some(deth) = ext.deth {
        o.object("deth", |o| {
            o.num("qkey", deth.qkey.get());
            o.num("src_qp", deth.src_qp.get());
        });
    }
    if let Some(xrc) = ext.xrceth {
        o.num("xrc_srq", xrc.srq.get());
    }
    if let Some(feth) = ext.feth {
        o.object("feth", |o| {
            o.num("placement", feth.placement);
            o.num("selectivity", feth.selectivity);
        });
    }
    if let Some(reth) = ext.reth {
        o.object("reth", |o| {
            o.hex64("va", reth.va.get());
            o.rkey("rkey", reth.rkey);
            o.num("dma_len", reth.dma_len);
        });
    }
    if let Some(atomic) = ext.atomic {
        o.object("atomic", |o| {
            o.hex64("va", atomic.va.get());
            o.rkey("rkey", atomic.rkey);
            o.hex64("swap_add", atomic.swap_add);
            o.hex64("compare", atomic.compare);
        });
    }
    if let Some(aeth) = ext.aeth {
        let kind = aeth.kind();
        o.object("aeth", |o| {
            o.str("kind", kind.name());
            o.num("value", kind.value());
            o.num("msn", aeth.msn.get());
        });
    }
    if let Some(ack) = ext.atomic_ack {
        o.hex64("atomic_ack", ack.original);
    }
    if let Some(imm) = ext.imm {
        o.num("imm", imm.data);
    }
    if let Some(ieth) = ext.ieth {
        o.rkey("ieth_rkey", ieth.rkey);
    }
}

fn communication(o: &mut Object<'_>, cm: &CmMessage<'_>) {
    o.num("attr", cm.mad.attribute_id);
    if let Some(layout) = cm.layout() {
        o.str("msg", layout.name);
    }
    for (role, key) in [
        (Role::LocalCommId, "local_comm_id"),
        (Role::RemoteCommId, "remote_comm_id"),
        (Role::Qpn, "qpn"),
        (Role::StartingPsn, "psn"),
        (Role::PKey, "pkey"),
        (Role::QKey, "qkey"),
        (Role::RetryCount, "retry_count"),
        (Role::RnrRetryCount, "rnr_retry_count"),
        (Role::Refers, "refers_to"),
        (Role::Status, "status"),
    ] {
        if let Some(value) = cm.get(role) {
            o.num(key, value);
        }
    }
    if let Some(service) = cm.get(Role::ServiceId) {
        o.word("service_id", |out| hex(out, service, 16));
    }
    if let Some(mtu) = cm.path_mtu() {
        o.num("path_mtu", mtu);
    }
    for (role, key) in [
        (Role::LocalGid, "local_gid"),
        (Role::RemoteGid, "remote_gid"),
    ] {
        if let Some(gid) = cm.gid(role) {
            o.address(key, gid.into());
        }
    }
    if let Some(reason) = cm.get(Role::RejectReason) {
        o.num("reason", reason);
        match reject_reason(reason as u16) {
            Some(words) => o.str("reason_text", words),
            None => o.word("reason_text", |out| {
                out.extend_from_slice(b"reserved ");
                hex_short(out, reason);
            }),
        }
    }
    if let Some(ip_cm) = cm.ip_cm() {
        o.object("ip_cm", |o| {
            o.address("src", ip_cm.src);
            o.address("dst", ip_cm.dst);
            o.num("sport", ip_cm.sport);
        });
    }
}
