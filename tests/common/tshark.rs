//! The second opinion: what tshark reads in the same file, compared field by
//! field with our JSON rows.

use super::{address, aeth_kind, at, hex, number, numbers, rows};
use serde_json::Value;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// The columns asked for, one tshark call a file.
const FIELDS: [&str; 75] = [
    "frame.number",
    "frame.time_epoch",
    "frame.cap_len",
    "frame.len",
    "frame.protocols",
    "ip.src",
    "ip.dst",
    "ip.ttl",
    "ip.dsfield.dscp",
    "ip.dsfield.ecn",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.hlim",
    "ipv6.tclass.dscp",
    "ipv6.tclass.ecn",
    "ieee8021ad.id",
    "vlan.id",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "infiniband.reserved",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.rdeth",
    "infiniband.deth",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.mad.mgmtclass",
    "infiniband.mad.attributeid",
    "infiniband.cm.req",
    "infiniband.cm.req.serviceid",
    "infiniband.cm.req.localqpn",
    "infiniband.cm.req.startpsn",
    "infiniband.cm.req.pkey",
    "infiniband.cm.req.pppmtu",
    "infiniband.cm.req.prim_localgid",
    "infiniband.cm.req.prim_remotegid",
    "infiniband.cm.req.prim_localgid_ipv4",
    "infiniband.cm.req.prim_remotegid_ipv4",
    "infiniband.cm.req.ip_cm.sport",
    "infiniband.cm.req.ip_cm.sip4",
    "infiniband.cm.req.ip_cm.dip4",
    "infiniband.cm.req.ip_cm.sip6",
    "infiniband.cm.req.ip_cm.dip6",
    "infiniband.cm.rep",
    "infiniband.cm.rep.remotecommid",
    "infiniband.cm.rep.localqpn",
    "infiniband.cm.rep.startpsn",
    "infiniband.cm.rtu.localcommid",
    "infiniband.cm.rtu.remotecommid",
    "infiniband.cm.rej.localcommid",
    "infiniband.cm.rej.remotecommid",
    "infiniband.cm.rej.reason",
    "infiniband.cm.dreq.localcommid",
    "infiniband.cm.dreq.remotecommid",
];

/// Asked for in the same call; kept apart because they exist only in some
/// messages and have odd names.
const MORE_FIELDS: [&str; 3] = [
    "infiniband.cm.req.remoteqpneecn",
    "infiniband.cm.drsp.localcommid",
    "infiniband.cm.drsp.remotecommid",
];

/// Columns tshark prints in hexadecimal without saying so in JSON terms.
struct Seen(HashMap<&'static str, String>);

impl Seen {
    /// All occurrences, outermost first.
    fn all(&self, field: &str) -> Vec<&str> {
        match self.0[field].as_str() {
            "" => Vec::new(),
            list => list.split(',').collect(),
        }
    }

    /// The innermost occurrence: a tunnel's own headers come before it.
    fn last(&self, field: &str) -> Option<&str> {
        self.all(field).last().copied()
    }

    fn has(&self, field: &str) -> bool {
        !self.0[field].is_empty()
    }

    fn number(&self, field: &str) -> Option<u64> {
        let text = self.last(field)?;
        match text.strip_prefix("0x") {
            Some(digits) => hex(digits),
            None => text.parse().ok(),
        }
    }

    /// Whether the innermost IP header is one of IPv6.
    fn inner_is_v6(&self) -> bool {
        let mut layers = self.0["frame.protocols"].split(':');
        let last = layers.rfind(|layer| matches!(*layer, "ip" | "ipv6"));
        last == Some("ipv6")
    }

    fn address(&self, fields: &[&str]) -> Option<IpAddr> {
        fields
            .iter()
            .find_map(|field| self.last(field))
            .map(|text| text.parse::<IpAddr>().unwrap().to_canonical())
    }

    /// Nanoseconds since the epoch.
    fn ts_ns(&self) -> u64 {
        let (seconds, fraction) = self.0["frame.time_epoch"].split_once('.').unwrap();
        seconds.parse::<u64>().unwrap() * 1_000_000_000 + fraction.parse::<u64>().unwrap()
    }

    /// The payload by the lengths in the headers, and not by what is captured.
    fn payload_len(&self) -> Option<u64> {
        const EXTENSIONS: [(&str, u64); 8] = [
            ("infiniband.rdeth", 4),
            ("infiniband.deth", 8),
            ("infiniband.reth", 16),
            ("infiniband.atomiceth", 28),
            ("infiniband.aeth", 4),
            ("infiniband.atomicacketh", 8),
            ("infiniband.immdt", 4),
            ("infiniband.ieth", 4),
        ];
        let extensions: u64 = EXTENSIONS
            .iter()
            .filter(|(field, _)| self.has(field))
            .map(|(_, size)| size)
            .sum();
        let pad = self.number("infiniband.bth.padcnt")?;
        self.number("udp.length")?
            .checked_sub(8 + 12 + extensions + pad + 4)
    }
}

/// Every RoCE packet tshark finds in the file.
fn ask(path: &Path) -> Vec<Seen> {
    let names: Vec<&'static str> = FIELDS.iter().chain(&MORE_FIELDS).copied().collect();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path);
    command.args(["-n", "-T", "fields", "-E", "separator=/t", "-E"]);
    command.args([
        "occurrence=a",
        "-Y",
        "infiniband.bth && udp.dstport == 4791",
    ]);
    for name in &names {
        command.args(["-e", name]);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark failed: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| {
            let columns = line.split('\t').map(str::to_owned);
            Seen(names.iter().copied().zip(columns).collect())
        })
        .collect()
}

/// Collects what differs, so that one run shows every mistake.
struct Differences<'r> {
    frame: u64,
    row: &'r Value,
    found: Vec<String>,
}

impl Differences<'_> {
    fn note<T: PartialEq + std::fmt::Debug>(&mut self, field: &str, ours: &T, theirs: &T) {
        if ours != theirs {
            let frame = self.frame;
            self.found.push(format!(
                "frame {frame}: {field}: ours {ours:?}, tshark {theirs:?}"
            ));
        }
    }

    fn number(&mut self, field: &str, theirs: Option<u64>) {
        self.note(field, &number(self.row, field), &theirs);
    }

    fn address(&mut self, field: &str, theirs: Option<IpAddr>) {
        self.note(field, &address(self.row, field), &theirs);
    }
}

/// Compares every RoCE packet of a file; returns how many there were, or what
/// differs.
pub fn compare(path: &Path) -> Result<usize, Vec<String>> {
    let theirs = ask(path);
    let ours = rows(path);
    if ours.len() != theirs.len() {
        let (a, b) = (ours.len(), theirs.len());
        return Err(vec![format!("packets: ours {a}, tshark {b}")]);
    }
    let mut found = Vec::new();
    for (row, seen) in ours.iter().zip(&theirs) {
        let mut differences = Differences {
            frame: seen.number("frame.number").unwrap(),
            row,
            found: Vec::new(),
        };
        frame_fields(&mut differences, seen);
        transport_fields(&mut differences, seen);
        extension_fields(&mut differences, seen);
        cm_fields(&mut differences, seen);
        found.append(&mut differences.found);
    }
    if found.is_empty() {
        Ok(ours.len())
    } else {
        Err(found)
    }
}

fn frame_fields(d: &mut Differences<'_>, seen: &Seen) {
    d.number("frame", seen.number("frame.number"));
    d.number("ts_ns", Some(seen.ts_ns()));
    d.number("caplen", seen.number("frame.cap_len"));
    d.number("len", seen.number("frame.len"));
    // A tunnel may carry the one IP version over the other.
    let [src, dst, ttl, dscp, ecn] = if seen.inner_is_v6() {
        ["src", "dst", "hlim", "tclass.dscp", "tclass.ecn"].map(|f| format!("ipv6.{f}"))
    } else {
        ["src", "dst", "ttl", "dsfield.dscp", "dsfield.ecn"].map(|f| format!("ip.{f}"))
    };
    d.address("src", seen.address(&[&src]));
    d.address("dst", seen.address(&[&dst]));
    d.number("ttl", seen.number(&ttl));
    d.number("dscp", seen.number(&dscp));
    d.number("ecn", seen.number(&ecn));
    d.number("sport", seen.number("udp.srcport"));
    // Service tags (0x88a8) are another protocol to tshark; they stand first.
    let tags = [seen.all("ieee8021ad.id"), seen.all("vlan.id")].concat();
    let vlans: Vec<u64> = tags.iter().map(|v| v.parse().unwrap()).collect();
    d.note("vlan", &numbers(d.row, "vlan"), &vlans);
}

fn transport_fields(d: &mut Differences<'_>, seen: &Seen) {
    d.number("opcode", seen.number("infiniband.bth.opcode"));
    d.number("se", seen.number("infiniband.bth.se"));
    d.number("migreq", seen.number("infiniband.bth.m"));
    d.number("pad", seen.number("infiniband.bth.padcnt"));
    d.number("pkey", seen.number("infiniband.bth.p_key"));
    d.number("dest_qp", seen.number("infiniband.bth.destqp"));
    d.number("ack_req", seen.number("infiniband.bth.a"));
    d.number("psn", seen.number("infiniband.bth.psn"));
    // tshark shows the byte of FECN and BECN only as its first reserved field.
    let byte = hex(seen.all("infiniband.reserved")[0]).unwrap();
    d.number("fecn", Some(byte >> 7));
    d.number("becn", Some(byte >> 6 & 1));
    d.number("payload_len", seen.payload_len());
}

fn extension_fields(d: &mut Differences<'_>, seen: &Seen) {
    let atomic = seen.has("infiniband.atomiceth");
    let only = |wanted: bool, value: Option<u64>| value.filter(|_| wanted);
    // tshark names the first fields of an AtomicETH after the RETH.
    let va = seen.number("infiniband.reth.va");
    let rkey = seen.number("infiniband.reth.r_key");
    d.number("reth.va", only(!atomic, va));
    d.number("reth.rkey", only(!atomic, rkey));
    d.number("reth.dma_len", seen.number("infiniband.reth.dmalen"));
    d.number("atomic.va", only(atomic, va));
    d.number("atomic.rkey", only(atomic, rkey));
    d.number(
        "atomic.swap_add",
        seen.number("infiniband.atomiceth.swapdt"),
    );
    d.number("atomic.compare", seen.number("infiniband.atomiceth.cmpdt"));
    d.number(
        "atomic_ack",
        seen.number("infiniband.atomicacketh.origremdt"),
    );
    d.number("deth.qkey", seen.number("infiniband.deth.q_key"));
    d.number("deth.src_qp", seen.number("infiniband.deth.srcqp"));
    // These two are plain bytes to tshark.
    d.number("imm", seen.last("infiniband.immdt").and_then(hex));
    d.number("ieth_rkey", seen.last("infiniband.ieth").and_then(hex));
    d.number("aeth.msn", seen.number("infiniband.aeth.msn"));
    if let Some(syndrome) = seen.number("infiniband.aeth.syndrome") {
        let kinds = ["ack", "rnr", "reserved", "nak"];
        let kind = kinds[(syndrome >> 5) as usize & 3];
        d.note("aeth.kind", &aeth_kind(d.row), &kind);
        d.number("aeth.value", Some(syndrome & 31));
    }
}

fn cm_fields(d: &mut Differences<'_>, seen: &Seen) {
    if seen.number("infiniband.mad.mgmtclass") != Some(7) {
        d.note("cm", &at(d.row, "cm").is_some(), &false);
        return;
    }
    let number = |suffixes: &[&str]| {
        suffixes
            .iter()
            .find_map(|suffix| seen.number(&format!("infiniband.cm.{suffix}")))
    };
    d.number("cm.attr", seen.number("infiniband.mad.attributeid"));
    let local = ["req", "rep", "rtu.localcommid", "rej.localcommid"];
    let leaving = ["dreq.localcommid", "drsp.localcommid"];
    let both: Vec<&str> = local.into_iter().chain(leaving).collect();
    d.number("cm.local_comm_id", number(&both));
    let remote = [
        "rep.remotecommid",
        "rtu.remotecommid",
        "rej.remotecommid",
        "dreq.remotecommid",
        "drsp.remotecommid",
    ];
    d.number("cm.remote_comm_id", number(&remote));
    let qpn = ["req.localqpn", "rep.localqpn", "req.remoteqpneecn"];
    d.number("cm.qpn", number(&qpn));
    d.number("cm.psn", number(&["req.startpsn", "rep.startpsn"]));
    d.number("cm.service_id", number(&["req.serviceid"]));
    d.number("cm.reason", number(&["rej.reason"]));
    d.number("cm.pkey", number(&["req.pkey"]));
    // MTU codes 1 to 5 stand for 256 to 4096 bytes.
    let mtu = number(&["req.pppmtu"]);
    d.number("cm.path_mtu", mtu.map(|code| 128 << code));
    let address = |names: [&str; 2]| {
        let full = names.map(|name| format!("infiniband.cm.req.{name}"));
        seen.address(&[&full[0], &full[1]])
    };
    let local = address(["prim_localgid_ipv4", "prim_localgid"]);
    d.address("cm.local_gid", local);
    let remote = address(["prim_remotegid_ipv4", "prim_remotegid"]);
    d.address("cm.remote_gid", remote);
    d.number("cm.ip_cm.sport", number(&["req.ip_cm.sport"]));
    let source = address(["ip_cm.sip4", "ip_cm.sip6"]);
    d.address("cm.ip_cm.src", source);
    let destination = address(["ip_cm.dip4", "ip_cm.dip6"]);
    d.address("cm.ip_cm.dst", destination);
}
