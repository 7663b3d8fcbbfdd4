//! Appending numbers and names to a byte buffer without allocating.

use std::{io::Write, net::IpAddr};

use crate::wire::opcode::{Opcode, Verb};
use crate::words::scaled;
pub(super) use crate::words::{bit_rate, grouped, plural, span};

/// Decimal number.
pub(super) fn dec(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// `0x` and exactly `digits` hexadecimal digits.
pub(super) fn hex(out: &mut Vec<u8>, value: u64, digits: u32) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"0x");
    for place in (0..digits).rev() {
        out.push(DIGITS[(value >> (place * 4)) as usize & 15]);
    }
}

/// `0x` and as many hexadecimal digits as the value needs.
pub(super) fn hex_short(out: &mut Vec<u8>, value: u64) {
    hex(out, value, (64 - value.leading_zeros()).div_ceil(4).max(1));
}

/// IPv4 or IPv6 address; GIDs that map an IPv4 address as they stand.
pub(super) fn ip(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            for (i, octet) in v4.octets().into_iter().enumerate() {
                if i > 0 {
                    out.push(b'.');
                }
                dec(out, octet);
            }
        }
        IpAddr::V6(v6) => {
            let _ = write!(out, "{v6}");
        }
    }
}

/// Name of an operation, as its `Display` has it.
pub(super) fn opcode(out: &mut Vec<u8>, opcode: Opcode) {
    let (transport, name) = opcode.name_parts();
    match opcode.info().verb {
        Verb::Unknown => {
            let _ = write!(out, "{opcode}");
        }
        Verb::Cnp => out.extend_from_slice(transport.as_bytes()),
        _ => {
            out.extend_from_slice(transport.as_bytes());
            out.push(b' ');
            out.extend_from_slice(name.as_bytes());
        }
    }
}

/// Seconds with `digits` (up to 9) decimals; negative values too.
pub(super) fn seconds(out: &mut Vec<u8>, ns: i64, digits: u32) {
    if ns < 0 {
        out.push(b'-');
    }
    let ns = ns.unsigned_abs();
    dec(out, ns / 1_000_000_000);
    out.push(b'.');
    let fraction = ns % 1_000_000_000;
    for place in 0..digits {
        let unit = 10u64.pow(8 - place);
        out.push(b'0' + (fraction / unit % 10) as u8);
    }
}

/// A number of bytes: `64 B`, `1.50 KiB`.
pub(super) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    scaled(count as f64, 1024.0, &units)
}

/// Things a second: `12.5 k/s`.
pub(super) fn rate(per_s: f64) -> String {
    match per_s {
        ..9.95 => format!("{per_s:.1} /s"),
        _ => scaled(per_s, 1000.0, &["/s", "k/s", "M/s", "G/s"]),
    }
}

/// A point in time as people write it; the number where it is none.
pub(super) fn moment(ts_ns: i64) -> String {
    jiff::Timestamp::from_nanosecond(ts_ns.into())
        .map_or_else(|_| format!("{ts_ns} ns"), |time| format!("{time:.6}"))
}

/// Places a byte string takes on a terminal: characters, since nothing wide
/// is ever printed.
pub(super) fn width(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(f: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        f(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers() {
        assert_eq!(text(|o| hex(o, 0x1a, 6)), "0x00001a");
        assert_eq!(text(|o| hex(o, u64::MAX, 16)), "0xffffffffffffffff");
        assert_eq!(text(|o| hex_short(o, 0)), "0x0");
        assert_eq!(text(|o| hex_short(o, 0x5559)), "0x5559");
        assert_eq!(text(|o| seconds(o, 1_000_001_500, 6)), "1.000001");
        assert_eq!(text(|o| seconds(o, -1_500_000_000, 9)), "-1.500000000");
        assert_eq!(text(|o| seconds(o, i64::MIN, 0)), "-9223372036.");
    }

    #[test]
    fn quantities_have_three_digits_and_a_unit() {
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(65_536), "64.0 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(bit_rate(9.4e8), "940 Mb/s");
        assert_eq!(rate(0.25), "0.2 /s");
        assert_eq!(rate(12_480.0), "12.5 k/s");
        assert_eq!(moment(1), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn names_as_display_has_them() {
        for code in 0..=255 {
            assert_eq!(text(|o| opcode(o, Opcode(code))), Opcode(code).to_string());
        }
        assert_eq!(text(|o| ip(o, "10.0.200.1".parse().unwrap())), "10.0.200.1");
        assert_eq!(width("a → b".as_bytes()), 5);
    }
}
