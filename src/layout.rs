//! Bit layouts of headers as tables.
//!
//! Every header this crate knows has a list of [`Field`]s: where each field
//! stands, how wide it is and how it reads best. The field-by-field view and
//! the longer management messages are driven by these tables, so an offset is
//! written down once.

use std::borrow::Cow;

/// How a field's value is best shown.
#[derive(Debug, Clone, Copy)]
pub enum Show {
    /// Decimal.
    Dec,
    /// Hexadecimal, zero-padded to the field's width.
    Hex,
    /// One bit: set or not set.
    Flag,
    /// A number with words for it; `None` leaves the bare number.
    Words(fn(u64) -> Option<Cow<'static, str>>),
    /// 48-bit Ethernet address.
    Mac,
    /// 32-bit IPv4 address.
    Ipv4,
    /// 128-bit IPv6 address or GID.
    Ipv6,
    /// Bytes without inner structure, shown as a hexadecimal run.
    Bytes,
}

/// One field of a header: `bit` and `width` count bits, most significant bit
/// of the first byte first, as the specifications draw them.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name in the specification's own words.
    pub name: &'static str,
    /// First bit, from the start of the header.
    pub bit: u16,
    /// Width in bits.
    pub width: u16,
    /// How to show the value.
    pub show: Show,
}

impl Field {
    /// Describes a field.
    #[must_use]
    pub const fn new(name: &'static str, bit: u16, width: u16, show: Show) -> Self {
        Self {
            name,
            bit,
            width,
            show,
        }
    }

    /// The field's value, or `None` when the header was cut before its end or
    /// the field is wider than 64 bits (use [`Field::bytes`] for those).
    #[must_use]
    pub fn get(&self, header: &[u8]) -> Option<u64> {
        let (bit, width) = (usize::from(self.bit), usize::from(self.width));
        if width == 0 || width > 64 {
            return None;
        }
        let bytes = header.get(bit / 8..(bit + width).div_ceil(8))?;
        // A field of up to 64 bits may straddle nine bytes.
        let value = bytes
            .iter()
            .fold(0u128, |value, &byte| value << 8 | u128::from(byte));
        let spare = bytes.len() * 8 - bit % 8 - width;
        Some((value >> spare) as u64 & (u64::MAX >> (64 - width)))
    }

    /// The bytes that hold the field, as many as were captured.
    #[must_use]
    pub fn bytes<'a>(&self, header: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.bit / 8).min(header.len());
        let end = usize::from(self.bit + self.width)
            .div_ceil(8)
            .clamp(start, header.len());
        &header[start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fields_that_straddle_bytes() {
        let bytes = [0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0x9a];
        let field = |bit, width| Field::new("x", bit, width, Show::Dec).get(&bytes);
        assert_eq!(field(0, 8), Some(0xab));
        assert_eq!(field(4, 8), Some(0xbc));
        assert_eq!(field(8, 24), Some(0xcdef01));
        assert_eq!(field(4, 64), Some(0xbcdef01234567899));
        assert_eq!(field(7, 1), Some(1));
        assert_eq!(field(64, 16), None, "past the end");
        assert_eq!(field(0, 65), None, "too wide for a number");
    }
}
