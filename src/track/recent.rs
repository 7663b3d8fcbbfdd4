//! The packets that passed last, to know a copy from a packet sent again.

use super::{
    Fingerprint, Record,
    state::{Earlier, Likeness},
};

/// Packets remembered: a power of two. With one flow at 100 Gb/s of 1024-byte
/// packets that is a time of 700 µs.
const PLACES: usize = 1 << 13;

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// PSN and opcode.
    which: u32,
    slot: u32,
    fingerprint: Fingerprint,
    ts_ns: i64,
}

/// A table with one place a hash: what falls on a place replaces what was
/// there.
#[derive(Debug)]
pub(super) struct Recent {
    places: Vec<Option<Seen>>,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            places: vec![None; PLACES],
        }
    }
}

impl Recent {
    /// Remembers a packet of the flow at `slot`; returns the earlier one with
    /// the same PSN and opcode, if that is still remembered.
    pub fn replace(&mut self, slot: u32, record: &Record) -> Option<Earlier> {
        let which = record.psn.get() | u32::from(record.opcode.0) << 24;
        let mixed = (u64::from(which) ^ u64::from(slot) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &mut self.places[(mixed >> 51) as usize % PLACES];
        let new = Seen {
            which,
            slot,
            fingerprint: record.fingerprint,
            ts_ns: record.ts_ns,
        };
        let old = place.replace(new)?;
        (old.which == which && old.slot == slot).then(|| Earlier {
            age_ns: record.ts_ns.saturating_sub(old.ts_ns).saturating_abs(),
            likeness: likeness(old.fingerprint, record.fingerprint),
        })
    }
}

fn likeness(a: Fingerprint, b: Fingerprint) -> Likeness {
    if a != b {
        Likeness::Different
    } else if a.ip_id == 0 {
        Likeness::Alike
    } else {
        Likeness::Identical
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_alike_in_bytes_and_number() {
        let print = |icrc, ip_id| Fingerprint {
            icrc: Some(icrc),
            ip_id,
        };
        assert_eq!(likeness(print(1, 2), print(1, 2)), Likeness::Identical);
        assert_eq!(likeness(print(1, 2), print(1, 3)), Likeness::Different);
        assert_eq!(likeness(print(1, 0), print(1, 0)), Likeness::Alike);
        assert_eq!(likeness(print(1, 0), print(2, 0)), Likeness::Different);
    }
}
