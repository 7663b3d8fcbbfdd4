//! The listener of a write run: control frames prove that it hears, are told
//! from what it listens for, and mark that everything was heard.

#![cfg(all(feature = "live", target_os = "linux"))]

mod common;

use std::time::{Duration, Instant};

use common::net::{FAR, NEAR, Net, ip};
use roce_sniff::source::Listener;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn proves_that_it_hears_and_hears_everything() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    for iface in [NEAR, FAR] {
        let start = Instant::now();
        let mut listener = Listener::start(iface, 4791, true).unwrap();
        let mut other = Listener::start(iface, 4791, true).unwrap();
        let proof = listener.prove(2 * SECOND);
        assert!(proof.seen >= 1 && proof.seen <= proof.sent, "{proof:?}");
        assert_eq!(proof.trouble, None);
        assert!(other.prove(2 * SECOND).seen >= 1);
        net.send(fixture.packets.iter().map(|p| p.data.as_slice()));
        let heard = listener.finish(2 * SECOND);
        assert!(start.elapsed() < 3 * SECOND, "{:?}", start.elapsed());
        assert!(heard.complete, "{:?}", heard.trouble);
        // Neither its own control frames nor the other listener's.
        assert_eq!((heard.roce_packets, heard.packets.len()), (40, 40));
        for (packet, sent) in heard.packets.iter().zip(&fixture.packets) {
            assert_eq!(*packet.bytes, *sent.data);
            assert_eq!(packet.raw().len as usize, sent.data.len());
        }
        assert_eq!(heard.netdev, iface);
        assert_eq!(heard.kernel_dropped, 0);
        assert!(heard.control_seen >= 2 && heard.control_seen <= heard.control_sent);
        assert!(heard.received >= 40 + u64::from(heard.control_seen));
        let heard = other.finish(2 * SECOND);
        assert_eq!(heard.roce_packets, 40);
    }
}

#[test]
fn without_control_frames_it_waits_for_what_the_kernel_holds() {
    let Some(mut net) = Net::new() else { return };
    let fixture = common::capture("write_1k");
    let mut listener = Listener::start(FAR, 4791, false).unwrap();
    let proof = listener.prove(2 * SECOND);
    assert_eq!((proof.sent, proof.seen, proof.trouble), (0, 0, None));
    net.send(fixture.packets.iter().map(|p| p.data.as_slice()));
    let heard = listener.finish(2 * SECOND);
    assert_eq!(heard.roce_packets, 40);
    assert!(!heard.complete);
    assert_eq!((heard.control_sent, heard.control_seen), (0, 0));
}

#[test]
fn nothing_answers_a_control_frame_on_the_loopback_device() {
    let Some(_net) = Net::new() else { return };
    let mut listener = Listener::start("lo", 4791, true).unwrap();
    let proof = listener.prove(2 * SECOND);
    assert!(proof.seen >= 1, "{proof:?}");
    // A socket on the port gets nothing.
    let socket = std::net::UdpSocket::bind("127.0.0.1:4791").unwrap();
    socket.set_read_timeout(Some(SECOND / 5)).unwrap();
    listener.prove(2 * SECOND);
    assert!(socket.recv(&mut [0; 200]).is_err());
    let heard = listener.finish(2 * SECOND);
    assert_eq!(heard.roce_packets, 0);
}

#[test]
fn says_why_no_control_frame_can_be_sent() {
    let Some(_net) = Net::new() else { return };
    let mut listener = Listener::start("any", 4791, true).unwrap();
    let proof = listener.prove(SECOND / 5);
    assert_eq!((proof.sent, proof.seen), (0, 0));
    let trouble = proof.trouble.unwrap();
    assert!(trouble.contains("not Ethernet"), "{trouble}");
    assert!(listener.finish(SECOND).trouble.is_some());
}

#[test]
fn a_device_that_goes_down_is_trouble_and_no_silence() {
    let Some(_net) = Net::new() else { return };
    let mut listener = Listener::start(FAR, 4791, true).unwrap();
    assert!(listener.prove(2 * SECOND).seen >= 1);
    ip("link set v1 down");
    let start = Instant::now();
    let heard = listener.finish(3 * SECOND);
    assert!(start.elapsed() < 6 * SECOND);
    assert!(!heard.complete);
    let trouble = heard.trouble.unwrap();
    assert!(trouble.contains("v1"), "{trouble}");
}
