//! Numbers that must not be mixed up: each of the transport's identifiers is
//! a type of its own.

use std::fmt;

/// Defines a newtype over an unsigned integer, masked to its width on the
/// wire and shown in hexadecimal padded to that width.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), bits $bits:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($inner);

        impl $name {
            /// Bits the number has on the wire.
            pub const BITS: u32 = $bits;

            /// Keeps the low bits that exist on the wire.
            #[must_use]
            pub const fn new(value: $inner) -> Self {
                Self(value & (<$inner>::MAX >> (<$inner>::BITS - $bits)))
            }

            /// The plain number.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "0x{:0width$x}", self.0, width = $bits / 4)
            }
        }
    };
}

number! {
    /// Packet sequence number: 24 bits, modulo 2^24 (IBTA vol. 1, 9.7.1).
    ///
    /// There is no order over a whole circle, so there is no `Ord`:
    /// [`Psn::distance_from`] says how far one number is ahead of another.
    Psn(u32), bits 24
}
number! {
    /// Queue pair number, 24 bits (IBTA vol. 1, 3.5.1); 0 and 1 are the
    /// management queue pairs.
    QpNumber(u32), bits 24
}
number! {
    /// Remote key: what a memory region is addressed by from the other side.
    RKey(u32), bits 32
}
number! {
    /// Partition key; the top bit is the membership (1 = full).
    PKey(u16), bits 16
}
number! {
    /// Queue key, which datagram queue pairs check on arrival.
    QKey(u32), bits 32
}
number! {
    /// Message sequence number in an AETH: messages completed, modulo 2^24.
    Msn(u32), bits 24
}
number! {
    /// Address in the remote memory region.
    VirtualAddr(u64), bits 64
}

impl Psn {
    /// How many packets `self` is ahead of `other`: negative when behind, in
    /// the half-circle window of 2^23 (IBTA vol. 1, 9.7.1.1).
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// The number `n` packets further on.
    #[must_use]
    pub const fn advance(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
}

impl QpNumber {
    /// Queue pair 1, the general services interface: CM messages go there.
    pub const GSI: Self = Self(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        let first = Psn::new(0);
        assert_eq!(first.distance_from(last), 1);
        assert_eq!(last.distance_from(first), -1);
        assert_eq!(last.advance(1), first);
        assert_eq!(Psn::new(0x80_0000).distance_from(first), -(1 << 23));
        assert_eq!(Psn::new(0x7f_ffff).distance_from(first), (1 << 23) - 1);
    }

    #[test]
    fn shows_hex_at_wire_width() {
        assert_eq!(QpNumber::new(0x12).to_string(), "0x000012");
        assert_eq!(QpNumber::new(0x0112_3456).get(), 0x12_3456, "masked");
        assert_eq!(RKey::new(0x4d2).to_string(), "0x000004d2");
        assert_eq!(VirtualAddr::new(0x5559).to_string(), "0x0000000000005559");
        assert_eq!(PKey::new(0xffff).to_string(), "0xffff");
    }
}
