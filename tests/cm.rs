//! Connection management messages that the fixtures do not hold, made from
//! those they do.

mod common;

use common::capfile::{Capture, ETHERNET};
use common::{address, at, capture, craft, number, plain, rows_of, text, tshark, tshark_available};
use std::net::IpAddr;

/// Frame offset of the MAD: Ethernet, IPv4, UDP, BTH, DETH.
const MAD: usize = 14 + 20 + 8 + 12 + 8;
/// Frame offset of a message's own fields.
const BODY: usize = MAD + 24;

/// The REQ of the fixture as another message, its body filled by `fill`.
fn message(attribute: u16, fill: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut frame = capture("cm_rping").packets[0].data.clone();
    frame[MAD + 16..MAD + 18].copy_from_slice(&attribute.to_be_bytes());
    let end = frame.len() - 4;
    fill(&mut frame[BODY..end]);
    let mut ip = craft::ip_part(&frame).to_vec();
    craft::seal(&mut ip);
    craft::ethernet(0x0800, &ip)
}

fn put(body: &mut [u8], offset: usize, bytes: &[u8]) {
    body[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// A REJ that answers a REQ, with this reason.
fn reject(reason: u16) -> Vec<u8> {
    message(0x12, |body| {
        body.fill(0);
        put(body, 0, &0x1111_2222u32.to_be_bytes());
        put(body, 4, &0x3333_4444u32.to_be_bytes());
        put(body, 10, &reason.to_be_bytes());
    })
}

/// The REQ over IPv6, with IPv6 addresses in its GIDs and its private data.
fn request_v6() -> Vec<u8> {
    let addresses: [IpAddr; 2] = [
        "2001:db8::a".parse().unwrap(),
        "2001:db8::b".parse().unwrap(),
    ];
    let frame = message(0x10, |body| {
        for (n, address) in addresses.iter().enumerate() {
            let IpAddr::V6(address) = address else {
                unreachable!()
            };
            put(body, 56 + 16 * n, &address.octets());
            put(body, 140 + 4 + 16 * n, &address.octets());
        }
        body[141] = 0x60;
    });
    let mut ip = craft::ipv6(17, &craft::ip_part(&frame)[20..]);
    craft::seal(&mut ip);
    craft::ethernet(0x86dd, &ip)
}

/// The five messages of a real connection, in order, with their own names.
#[test]
fn real_exchange() {
    let rows = plain("cm_rping");
    let messages: Vec<&serde_json::Value> = rows.iter().filter(|r| r.get("cm").is_some()).collect();
    let names: Vec<&str> = messages.iter().map(|r| text(r, "cm.msg")).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let request = messages[0];
    assert_eq!(number(request, "cm.attr"), Some(0x10));
    assert_eq!(number(request, "cm.local_comm_id"), Some(0x2da5_c2d5));
    assert_eq!(number(request, "cm.qpn"), Some(0x1a));
    assert_eq!(number(request, "cm.psn"), Some(0x12_8103));
    assert_eq!(number(request, "cm.pkey"), Some(0xffff));
    assert_eq!(number(request, "cm.path_mtu"), Some(1024));
    // RDMA-CM over TCP port space, port 7174.
    assert_eq!(number(request, "cm.service_id"), Some(0x0106_1c06));
    assert_eq!(address(request, "cm.ip_cm.src"), "10.0.0.2".parse().ok());
    assert_eq!(address(request, "cm.ip_cm.dst"), "10.0.0.1".parse().ok());
    assert_eq!(number(request, "cm.ip_cm.sport"), Some(0x9a24));
    for absent in ["cm.remote_comm_id", "cm.reason", "cm.reason_text"] {
        assert_eq!(at(request, absent), None, "{absent} in a REQ");
    }
    for absent in ["cm.service_id", "cm.local_gid", "cm.ip_cm", "cm.path_mtu"] {
        assert_eq!(at(messages[1], absent), None, "{absent} in a REP");
    }
    for absent in ["cm.qpn", "cm.psn", "cm.ip_cm"] {
        assert_eq!(at(messages[2], absent), None, "{absent} in a RTU");
    }
}

/// Each side's starting PSN is the first one its *peer* sends with.
#[test]
fn starting_psn_is_the_peers() {
    let rows = plain("cm_rping");
    let first_psn = |from: &str| {
        let data = rows
            .iter()
            .filter(|r| number(r, "dest_qp") != Some(1) && text(r, "src") == from);
        // Responses carry the requester's numbers.
        let mut requests = data.filter(|r| !(0x0d..=0x12).contains(&number(r, "opcode").unwrap()));
        number(requests.next().unwrap(), "psn")
    };
    let announced = |name: &str| {
        let row = rows.iter().find(|r| text(r, "cm.msg") == name).unwrap();
        number(row, "cm.psn")
    };
    assert_eq!(announced("REQ"), first_psn("10.0.0.1"));
    assert_eq!(announced("REP"), first_psn("10.0.0.2"));
}

/// Rejections carry a reason and words for it.
#[test]
fn reject_reasons() {
    let words = [
        (4, "timeout"),
        (8, "service"),
        (10, "stale"),
        (12, "gid"),
        (26, "mtu"),
        (28, "consumer"),
    ];
    for (reason, word) in words {
        let rows = rows_of("rej.pcap", &Capture::of(ETHERNET, [reject(reason)]).pcap());
        let row = &rows[0];
        assert_eq!(text(row, "cm.msg"), "REJ");
        assert_eq!(number(row, "cm.local_comm_id"), Some(0x1111_2222));
        assert_eq!(number(row, "cm.remote_comm_id"), Some(0x3333_4444));
        assert_eq!(number(row, "cm.reason"), Some(u64::from(reason)));
        let shown = text(row, "cm.reason_text").to_lowercase();
        assert!(shown.contains(word), "{reason}: {shown:?}");
        assert_eq!(text(row, "icrc"), "valid");
    }
}

/// A reason nobody assigned stays a number.
#[test]
fn unknown_reject_reason() {
    let rows = rows_of("rej.pcap", &Capture::of(ETHERNET, [reject(999)]).pcap());
    assert_eq!(number(&rows[0], "cm.reason"), Some(999));
}

/// IPv6 addresses in the GIDs and in the private data of RDMA-CM.
#[test]
fn request_with_ipv6_addresses() {
    let rows = rows_of("req.pcap", &Capture::of(ETHERNET, [request_v6()]).pcap());
    let row = &rows[0];
    for (path, expected) in [
        ("cm.local_gid", "2001:db8::a"),
        ("cm.remote_gid", "2001:db8::b"),
        ("cm.ip_cm.src", "2001:db8::a"),
        ("cm.ip_cm.dst", "2001:db8::b"),
    ] {
        assert_eq!(address(row, path), expected.parse().ok(), "{path}");
    }
}

/// Names of the messages the fixture does not hold, by attribute; one that
/// nobody assigned stays a number.
#[test]
fn other_messages() {
    for (attribute, name) in [(0x11, "MRA"), (0x12, "REJ"), (0x19, "LAP"), (0x1a, "APR")] {
        let frame = message(attribute, |body| body.fill(0));
        let rows = rows_of("cm.pcap", &Capture::of(ETHERNET, [frame]).pcap());
        assert_eq!(text(&rows[0], "cm.msg"), name);
        assert_eq!(number(&rows[0], "cm.attr"), Some(u64::from(attribute)));
    }
    let frame = message(0x77, |_| ());
    let rows = rows_of("cm.pcap", &Capture::of(ETHERNET, [frame]).pcap());
    assert_eq!(number(&rows[0], "cm.attr"), Some(0x77));
}

/// A message cut by the snapshot length shows what is left of it and makes
/// nothing up.
#[test]
fn cut_messages() {
    let whole = plain("cm_rping");
    for snaplen in (BODY - 30..BODY + 232).step_by(3) {
        let cut = capture("cm_rping").cut(snaplen);
        let rows = rows_of("cut.pcap", &cut.pcap());
        assert_eq!(rows.len(), whole.len());
        for (full, cut) in whole.iter().zip(&rows) {
            let Some(serde_json::Value::Object(shown)) = cut.get("cm") else {
                continue;
            };
            for (key, value) in shown {
                let real = &full["cm"][key];
                assert_eq!(value, real, "{key} with snaplen {snaplen}\n{cut}");
            }
        }
    }
}

/// A MAD to queue pair 1 that is of another class is no CM message, and a
/// datagram to another queue pair is none whatever it holds.
#[test]
fn not_cm() {
    let mut other_class = message(0x10, |_| ());
    other_class[MAD + 1] = 0x03;
    let mut other_qp = message(0x10, |_| ());
    other_qp[14 + 20 + 8 + 7] = 0x55;
    let frames = Capture::of(ETHERNET, [other_class, other_qp]);
    for row in rows_of("mad.pcap", &frames.pcap()) {
        assert_eq!(row.get("cm"), None, "{row}");
    }
}

/// The crafted messages read the same in tshark.
#[test]
fn crafted_messages_agree_with_tshark() {
    if !tshark_available() {
        return;
    }
    let frames = [reject(8), reject(28), request_v6()];
    let dir = tempfile::tempdir().unwrap();
    let bytes = Capture::of(ETHERNET, frames).pcap();
    let path = common::write(dir.path(), "cm.pcap", &bytes);
    assert_eq!(tshark::compare(&path), Ok(3));
}
