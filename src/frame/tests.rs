//! The short cut and the general walk must agree on every frame; the wider
//! set of encapsulations is shown by captures in the integration tests.

use super::*;
use crate::source::LinkType;

fn raw(data: &[u8], len: usize) -> RawPacket<'_> {
    RawPacket {
        input: 0,
        frame: 1,
        ts_ns: 0,
        len: len as u32,
        link: LinkType::ETHERNET,
        path: None,
        data,
    }
}

/// Ethernet, IPv4, UDP to 4791, then `payload`.
fn frame(payload: &[u8]) -> Vec<u8> {
    let udp_len = 8 + payload.len() as u16;
    let mut f = vec![2; 12];
    f.extend([0x08, 0x00, 0x45, 0x02]);
    f.extend((20 + udp_len).to_be_bytes());
    f.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend([0xc0, 0, 0x12, 0xb7]);
    f.extend(udp_len.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    f
}

fn assert_same(data: &[u8], len: usize) {
    let raw = raw(data, len);
    let options = FrameOptions::default();
    let short = walk(&raw, options, &mut ());
    let long = general(&raw, options, &mut ());
    assert_eq!(format!("{short:?}"), format!("{long:?}"), "{data:02x?}");
}

#[test]
fn short_cut_and_general_walk_agree() {
    let whole = frame(&[7; 20]);
    assert!(Plain::find(&raw(&whole, whole.len()), FrameOptions::default()).is_some());
    for cut in 0..=whole.len() {
        assert_same(&whole[..cut], whole.len());
        assert_same(&whole[..cut], cut);
    }
    // Every single-byte change of the headers, and trailing padding.
    let mut padded = whole.clone();
    padded.extend([0; 6]);
    for at in 0..42 {
        for value in [0x00, 0x01, 0x3f, 0x45, 0x46, 0x80, 0xb7, 0xff] {
            let mut changed = padded.clone();
            changed[at] = value;
            assert_same(&changed, changed.len());
        }
    }
}

#[test]
fn trailing_bytes_are_not_payload() {
    let mut padded = frame(&[7; 20]);
    padded.extend([0xee; 10]);
    let raw = raw(&padded, padded.len());
    let datagram = walk(&raw, FrameOptions::default(), &mut ()).unwrap();
    assert_eq!(datagram.ib, [7; 20]);
    assert_eq!(datagram.ib_len, 20);
}

#[test]
fn cut_frames_are_truncated_and_short_ones_malformed() {
    let whole = frame(&[7; 20]);
    let options = FrameOptions::default();
    for cut in 1..42 {
        let skip = walk(&raw(&whole[..cut], whole.len()), options, &mut ()).unwrap_err();
        assert_eq!(skip.reason, Reason::Truncated, "cut at {cut}");
    }
    let mut short = whole;
    short[17] = 24; // IP total length leaves 4 bytes for UDP
    let skip = walk(&raw(&short, short.len()), options, &mut ()).unwrap_err();
    assert_eq!((skip.reason, skip.layer), (Reason::Malformed, Layer::Udp));
    assert_eq!(skip.offset, 34);
}

#[test]
fn only_the_destination_port_decides() {
    let mut f = frame(&[7; 20]);
    f[34..36].copy_from_slice(&4791u16.to_be_bytes());
    f[36..38].copy_from_slice(&53u16.to_be_bytes());
    let skip = walk(&raw(&f, f.len()), FrameOptions::default(), &mut ()).unwrap_err();
    assert_eq!(skip.reason, Reason::OtherPort);
    let port = FrameOptions { port: 53 };
    assert!(walk(&raw(&f, f.len()), port, &mut ()).is_ok());
}

#[test]
fn nesting_is_bounded() {
    // IPv4 in IPv4, many times over.
    let inner = frame(&[7; 20]);
    let mut packet = inner[14..].to_vec();
    for depth in 1..=8 {
        let mut outer = inner[14..34].to_vec();
        outer[9] = 4;
        outer[2..4].copy_from_slice(&(20 + packet.len() as u16).to_be_bytes());
        outer.extend(&packet);
        packet = outer;
        let mut raw = raw(&packet, packet.len());
        raw.link = LinkType::RAW;
        let result = walk(&raw, FrameOptions::default(), &mut ());
        if depth <= MAX_TUNNELS {
            assert_eq!(result.unwrap().encaps.as_slice().len(), depth);
        } else {
            assert_eq!(result.unwrap_err().reason, Reason::TooDeep);
        }
    }
}
