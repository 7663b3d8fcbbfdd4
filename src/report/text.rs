//! Appending numbers and names to a byte buffer without allocating.

use std::{io::Write, net::IpAddr, sync::LazyLock};

use crate::wire::opcode::Opcode;
use crate::words::scaled;
pub(super) use crate::words::{bit_rate, either, grouped, plural, span};

/// A number that [`dec`] writes.
pub(super) trait Number: Copy {
    /// Whether it is below zero, and its distance from zero.
    fn parts(self) -> (bool, u64);
}

macro_rules! numbers {
    ($($unsigned:ty)*) => {
        $(impl Number for $unsigned {
            #[inline]
            fn parts(self) -> (bool, u64) {
                (false, self as u64)
            }
        })*
    };
}
numbers!(u8 u16 u32 u64 usize);

macro_rules! signed_numbers {
    ($($signed:ty)*) => {
        $(impl Number for $signed {
            #[inline]
            fn parts(self) -> (bool, u64) {
                (self < 0, self.unsigned_abs().into())
            }
        })*
    };
}
signed_numbers!(i32 i64);

/// Appends the first `len` of `bytes`. Copying a fixed number of bytes takes
/// two instructions, any other a call.
#[inline]
fn append<const N: usize>(out: &mut Vec<u8>, bytes: &[u8; N], len: usize) {
    let end = out.len() + len;
    out.extend_from_slice(bytes);
    out.truncate(end);
}

/// Eight decimal digits of a number below 10^8, one a byte, the first one
/// lowest: divided by 10000, by 100 and by 10, two, four and eight of them at
/// once.
#[inline]
const fn eight_digits(value: u64) -> u64 {
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let high = ((fours * 10_486) >> 20) & 0x7f_0000_007f;
    let twos = ((fours - high * 100) << 16) | high;
    let high = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    ((twos - high * 10) << 8) | high
}

const ZEROS: u64 = u64::from_le_bytes(*b"00000000");
const EIGHT: u64 = 100_000_000;

/// The numbers that a byte can be, with a dot behind them, and their digits.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut octets = [([b'.'; 4], 1); 256];
    let mut value = 0;
    while value < 256 {
        let digits = [value / 100, value / 10 % 10, value % 10];
        let (text, len) = &mut octets[value];
        *len = if value < 10 {
            1
        } else if value < 100 {
            2
        } else {
            3
        };
        let mut place = 0;
        while place < *len {
            text[place as usize] = b'0' + digits[(3 - *len + place) as usize] as u8;
            place += 1;
        }
        value += 1;
    }
    octets
};

/// Decimal number.
#[inline]
pub(super) fn dec(out: &mut Vec<u8>, value: impl Number) {
    let (negative, value) = value.parts();
    if negative {
        out.push(b'-');
    }
    if value < 256 {
        let (text, len) = &OCTETS[value as usize];
        append(out, text, usize::from(*len));
    } else {
        larger_dec(out, value);
    }
}

fn larger_dec(out: &mut Vec<u8>, value: u64) {
    if value < EIGHT {
        let digits = eight_digits(value);
        // Of a zero one digit is written.
        let leading = (digits.trailing_zeros() / 8).min(7);
        let text = (digits | ZEROS) >> (leading * 8);
        append(out, &text.to_le_bytes(), 8 - leading as usize);
    } else {
        larger_dec(out, value / EIGHT);
        out.extend_from_slice(&(eight_digits(value % EIGHT) | ZEROS).to_le_bytes());
    }
}

/// `0x` and exactly `digits` hexadecimal digits, 16 at most.
#[inline]
pub(super) fn hex(out: &mut Vec<u8>, value: u64, digits: u32) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = *b"0x0123456789abcdef";
    let value = value << (64 - digits * 4);
    for (place, digit) in text[2..].iter_mut().enumerate() {
        *digit = DIGITS[(value >> (60 - place * 4)) as usize & 15];
    }
    append(out, &text, 2 + digits as usize);
}

/// `0x` and as many hexadecimal digits as the value needs.
pub(super) fn hex_short(out: &mut Vec<u8>, value: u64) {
    hex(out, value, (64 - value.leading_zeros()).div_ceil(4).max(1));
}

/// IPv4 or IPv6 address; GIDs that map an IPv4 address as they stand.
pub(super) fn ip(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            let mut text = [0; 16];
            let mut end = 0;
            for octet in v4.octets() {
                let (digits, len) = &OCTETS[usize::from(octet)];
                if let Some(place) = text.get_mut(end..end + 4) {
                    place.copy_from_slice(digits);
                }
                end += usize::from(*len) + 1;
            }
            // But for the last dot.
            append(out, &text, end - 1);
        }
        IpAddr::V6(v6) => {
            let _ = write!(out, "{v6}");
        }
    }
}

/// No name of an operation is longer.
const LONGEST_NAME: usize = 48;

/// Name of an operation, as its `Display` has it.
#[inline]
pub(super) fn opcode(out: &mut Vec<u8>, opcode: Opcode) {
    static NAMES: LazyLock<Vec<([u8; LONGEST_NAME], usize)>> = LazyLock::new(|| {
        let padded = |code| {
            let mut bytes = [0; LONGEST_NAME];
            let name = Opcode(code).to_string();
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            (bytes, name.len())
        };
        (0..=255).map(padded).collect()
    });
    let (bytes, len) = &NAMES[usize::from(opcode.0)];
    append(out, bytes, *len);
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
        let powers = (0..20).map(|power| 10u64.pow(power));
        for value in powers.flat_map(|power| [power - 1, power, power + 7, power.wrapping_mul(9)]) {
            assert_eq!(text(|o| dec(o, value)), value.to_string());
        }
        for value in (0..100_000_000u64).step_by(9_973) {
            assert_eq!(text(|o| dec(o, value)), value.to_string());
        }
        for value in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(text(|o| dec(o, value)), value.to_string());
        }
        assert_eq!(text(|o| dec(o, u64::MAX)), u64::MAX.to_string());
        assert_eq!(text(|o| dec(o, 255u8)), "255");
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
