//! Every packet of every fixture against tshark, an independent dissector.

mod common;

use common::capfile::{Capture, ETHERNET};
use common::{VARIED, capture, craft, fixture, fixtures, tshark, tshark_available, tunnel};

fn agree(what: &str, path: &std::path::Path) -> usize {
    match tshark::compare(path) {
        Ok(packets) => packets,
        Err(found) => {
            let shown = &found[..found.len().min(20)];
            panic!("{what}: {} differences\n{}", found.len(), shown.join("\n"))
        }
    }
}

/// All header fields of all real traffic are what tshark reads.
#[test]
fn fixtures_agree_with_tshark() {
    if !tshark_available() {
        return;
    }
    for name in fixtures() {
        assert!(agree(&name, &fixture(&name)) > 0, "{name}: no packets");
    }
}

/// A packet of each opcode with distinct values in every header field.
#[test]
fn every_opcode_agrees_with_tshark() {
    if !tshark_available() {
        return;
    }
    // Left out are the formats tshark 4.0 does not know, FLUSH, ATOMIC WRITE
    // and the header of XRC, and all of RD: it looks for what follows the
    // RDETH eight bytes too far. `tests/opcodes.rs` has them all.
    let opcodes = (0x00..=0x17)
        .filter(|op| *op != 0x15)
        .chain(0x20..=0x2b)
        .chain([0x64, 0x65]);
    let frames = opcodes.map(|opcode| {
        let mut packet = craft::bth(opcode, 0xf0 & (opcode << 4), 0x123456, true, 0x654321);
        packet.extend((0..64u8).map(|n| n.wrapping_mul(7) ^ opcode));
        craft::ethernet(0x0800, &craft::roce_v4(&packet))
    });
    let frames: Vec<Vec<u8>> = frames.collect();
    assert_eq!(agree_on("opcodes", ETHERNET, frames.clone()), frames.len());
}

fn agree_on(what: &str, link: u16, frames: Vec<Vec<u8>>) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Capture::of(link, frames).pcap();
    agree(what, &common::write(dir.path(), "a.pcap", &bytes))
}

/// The inner packets of every kind of tunnel, link type and IP option that
/// other tests craft, so that tshark vouches for the crafting too.
#[test]
fn tunnels_agree_with_tshark() {
    type Wrap = fn(&[u8]) -> Vec<u8>;
    if !tshark_available() {
        return;
    }
    let wraps: [(&str, u16, Wrap); 16] = [
        ("VXLAN", ETHERNET, tunnel::vxlan),
        ("VXLAN over IPv6", ETHERNET, tunnel::vxlan_v6),
        ("GENEVE", ETHERNET, tunnel::geneve),
        ("GRE, bridged", ETHERNET, |f| tunnel::gre_bridged(0xb000, f)),
        ("GRE, IP", ETHERNET, |f| {
            tunnel::gre_ip(0, craft::ip_part(f))
        }),
        ("ERSPAN II", ETHERNET, tunnel::erspan2),
        ("ERSPAN III", ETHERNET, |f| tunnel::erspan3(false, f)),
        ("ERSPAN III with sub-header", ETHERNET, |f| {
            tunnel::erspan3(true, f)
        }),
        ("IP in IPv4", ETHERNET, |f| {
            tunnel::ip_in_ipv4(craft::ip_part(f))
        }),
        ("IP in IPv6", ETHERNET, |f| {
            tunnel::ip_in_ipv6(craft::ip_part(f))
        }),
        ("MPLS", ETHERNET, |f| tunnel::mpls(craft::ip_part(f))),
        ("QinQ", ETHERNET, |f| {
            craft::tag(0x88a8, 200, &craft::tag(0x8100, 100, f))
        }),
        ("VXLAN in a VLAN", ETHERNET, |f| {
            craft::tag(0x8100, 300, &tunnel::vxlan(f))
        }),
        ("SLL", 113, |f| tunnel::sll(craft::ip_part(f))),
        ("SLL2", 276, |f| tunnel::sll2(craft::ip_part(f))),
        ("NULL", 0, |f| tunnel::null(false, 30, craft::ip_part(f))),
    ];
    for (what, link, wrap) in wraps {
        let frames: Vec<Vec<u8>> = VARIED
            .iter()
            .flat_map(|name| capture(name).packets)
            .map(|packet| wrap(&packet.data))
            .collect();
        assert_eq!(agree_on(what, link, frames.clone()), frames.len());
    }
}

/// IPv4 options and IPv6 extension headers.
#[test]
fn ip_options_agree_with_tshark() {
    if !tshark_available() {
        return;
    }
    let options = |name: &str| {
        let frames = capture(name).packets.into_iter().map(|packet| {
            let ip = craft::ip_part(&packet.data);
            let ip = if craft::is_v6(ip) {
                craft::with_ipv6_options(ip)
            } else {
                craft::with_ipv4_options(ip, &[0x94, 4, 0, 0])
            };
            craft::ethernet(craft::ethertype(&ip), &ip)
        });
        frames.collect::<Vec<Vec<u8>>>()
    };
    for name in VARIED {
        assert!(agree_on(name, ETHERNET, options(name)) > 0);
    }
}
