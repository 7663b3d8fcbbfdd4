//! The tests' own tools checked against real traffic, so that what they craft
//! can be trusted.

mod common;

use common::capfile::Capture;
use common::{capture, craft, fixtures};

/// The hand-made ICRC is the one the kernel's driver put on the wire.
#[test]
fn icrc_equals_that_of_real_packets() {
    let mut checked = 0;
    for name in fixtures() {
        if name == "corrupt" {
            continue; // damaged after the driver had made them
        }
        // Every fifth packet is plenty, and keeps the bitwise CRC quick.
        for packet in capture(&name).packets.iter().step_by(5) {
            let ip = craft::ip_part(&packet.data);
            if !craft::is_roce(ip) {
                continue; // neighbour discovery on the tagged network
            }
            assert_eq!(ip[ip.len() - 4..], craft::icrc(ip), "{name}");
            checked += 1;
        }
    }
    assert!(checked > 400, "only {checked} packets checked");
}

/// What the pcap writer writes, the reader reads back.
#[test]
fn pcap_round_trip() {
    let original = capture("write_1k");
    for (big_endian, nano) in [(false, false), (true, false), (false, true), (true, true)] {
        let again = Capture::parse(&original.pcap_as(big_endian, nano));
        assert_eq!(again.packets, original.packets);
        assert_eq!(again.link, original.link);
    }
}
