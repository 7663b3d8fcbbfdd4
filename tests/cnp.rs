//! A congestion notification as a hardware NIC really sends it.

mod common;

use common::capfile::{Capture, ETHERNET};
use common::{number, rows_of, text};

/// A whole frame of a ConnectX-4 Lx: UDP source port 0, `MigReq` set.
const CNP: &str = "e41d2dab2bc27cfe90643b320800\
    45c2003c718c4000401191610a0011010a001201\
    000012b700280000\
    8100ffff4000011800000000\
    0000000000000000000000000000000082fd002a";

fn frame() -> Vec<u8> {
    (0..CNP.len() / 2)
        .map(|n| u8::from_str_radix(&CNP[2 * n..2 * n + 2], 16).unwrap())
        .collect()
}

/// The notification is recognised by its destination port alone, with every
/// field as the NIC set it and its ICRC valid.
#[test]
fn real_cnp() {
    let frame = frame();
    assert_eq!(frame.len(), 74);
    let rows = rows_of("cnp.pcap", &Capture::of(ETHERNET, [frame]).pcap());
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!(number(row, "opcode"), Some(129));
    assert_eq!(text(row, "op"), "CNP");
    assert_eq!(number(row, "becn"), Some(1));
    assert_eq!(number(row, "fecn"), Some(0));
    assert_eq!(number(row, "dest_qp"), Some(0x118));
    assert_eq!(number(row, "sport"), Some(0));
    assert_eq!(number(row, "psn"), Some(0));
    assert_eq!(number(row, "pkey"), Some(0xffff));
    // Traffic class 0xc2: CS6 and ECT(0).
    assert_eq!(number(row, "dscp"), Some(48));
    assert_eq!(number(row, "ecn"), Some(2));
    assert_eq!(text(row, "src"), "10.0.17.1");
    assert_eq!(text(row, "dst"), "10.0.18.1");
    assert_eq!(text(row, "icrc"), "valid");
    assert!(!common::truncated(row));
}

/// A router may change ECN, DSCP and TTL, and nothing else, without harm to
/// the ICRC.
#[test]
fn only_mutable_fields_escape_the_icrc() {
    let verdict = |at: usize, flip: u8| {
        let mut frame = frame();
        frame[at] ^= flip;
        let rows = rows_of("cnp.pcap", &Capture::of(ETHERNET, [frame]).pcap());
        text(&rows[0], "icrc").to_owned()
    };
    // TOS, TTL, IP checksum, UDP checksum, FECN/BECN byte.
    for at in [15, 22, 24, 25, 40, 41, 46] {
        assert_eq!(verdict(at, 0x40), "valid", "byte {at}");
    }
    // IP ID, addresses, UDP source port, P_Key, QP, PSN, payload, ICRC itself.
    for at in [18, 29, 33, 35, 44, 49, 53, 60, 73] {
        assert_eq!(verdict(at, 0x40), "invalid", "byte {at}");
    }
}

/// The reserved bits beside FECN and BECN, which a real NIC was seen to set,
/// change neither flag nor the ICRC.
#[test]
fn reserved_bits_beside_becn() {
    let mut frame = frame();
    frame[46] = 0x10;
    let rows = rows_of("cnp.pcap", &Capture::of(ETHERNET, [frame]).pcap());
    assert_eq!(number(&rows[0], "becn"), Some(0));
    assert_eq!(number(&rows[0], "fecn"), Some(0));
    assert_eq!(number(&rows[0], "dest_qp"), Some(0x118));
    assert_eq!(text(&rows[0], "icrc"), "valid");
}
