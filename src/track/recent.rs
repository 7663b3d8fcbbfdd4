//! The packets that passed last, to know a copy from a packet sent again.

use super::{
    Fingerprint,
    record::Facts,
    state::{Earlier, Likeness},
};

/// Packets remembered: a power of two. With one flow at 100 Gb/s of 1024-byte
/// packets that is a time of 350 µs.
const PLACES: usize = 1 << 12;

/// Sixteen bytes, four to a cache line.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Flow, PSN and opcode, mixed; zero where nothing was seen.
    which: u32,
    /// Invariant CRC and the sender's number, mixed.
    what: u32,
    ts_ns: i64,
}

/// A table with one place a packet: what falls on a place replaces what was
/// there. Packets that follow each other in a flow have places next to each
/// other, so that few of them miss the cache.
#[derive(Debug)]
pub(super) struct Recent {
    places: Vec<Seen>,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            places: vec![Seen::default(); PLACES],
        }
    }
}

impl Seen {
    #[inline]
    fn new(slot: u32, packet: &impl Facts) -> Self {
        let Fingerprint { icrc, ip_id } = packet.fingerprint();
        let which = packet.psn().get() ^ u32::from(packet.opcode().0) << 24;
        let numbered = u32::from(ip_id) << 1 | u32::from(icrc.is_some());
        Self {
            which: (which ^ slot.wrapping_mul(0x9e37_79b9)) | 1 << 31,
            what: icrc.unwrap_or(0) ^ numbered.wrapping_mul(0x85eb_ca6b),
            ts_ns: packet.ts_ns(),
        }
    }
}

impl Recent {
    #[inline]
    fn place(slot: u32, packet: &impl Facts) -> usize {
        let start = slot.wrapping_mul(0x9e37_79b9) >> 7;
        start.wrapping_add(packet.psn().get()) as usize % PLACES
    }

    /// Remembers a packet of the flow at `slot`.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    pub fn remember(&mut self, slot: u32, packet: &impl Facts) {
        self.places[Self::place(slot, packet)] = Seen::new(slot, packet);
    }

    /// The earlier packet of the flow at `slot` with the same PSN and opcode,
    /// if that is still remembered.
    #[inline]
    pub fn earlier(&self, slot: u32, packet: &impl Facts) -> Option<Earlier> {
        let old = self.places[Self::place(slot, packet)];
        let new = Seen::new(slot, packet);
        (old.which == new.which).then(|| Earlier {
            age_ns: packet.ts_ns().saturating_sub(old.ts_ns).saturating_abs(),
            likeness: match (old.what == new.what, packet.fingerprint().ip_id) {
                (false, _) => Likeness::Different,
                (true, 0) => Likeness::Alike,
                (true, _) => Likeness::Identical,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        track::{FlowKey, Record},
        wire::{
            opcode::Opcode,
            types::{Psn, QpNumber},
        },
    };

    #[test]
    fn copies_are_alike_in_bytes_and_number() {
        let flow = FlowKey {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            dest_qp: QpNumber::new(5),
        };
        let packet = |psn, icrc, ip_id| Record {
            fingerprint: Fingerprint {
                icrc: Some(icrc),
                ip_id,
            },
            ..Record::plain(flow, Opcode::RC_WRITE_ONLY, Psn::new(psn))
        };
        let mut recent = Recent::default();
        let likeness = |recent: &Recent, record: &Record| {
            recent.earlier(3, record).map(|earlier| earlier.likeness)
        };
        recent.remember(3, &packet(7, 1, 2));
        assert_eq!(
            likeness(&recent, &packet(7, 1, 2)),
            Some(Likeness::Identical)
        );
        assert_eq!(
            likeness(&recent, &packet(7, 1, 3)),
            Some(Likeness::Different)
        );
        assert_eq!(
            likeness(&recent, &packet(7, 9, 2)),
            Some(Likeness::Different)
        );
        assert_eq!(likeness(&recent, &packet(8, 1, 2)), None);
        assert_eq!(recent.earlier(4, &packet(7, 1, 2)), None, "another flow");
        recent.remember(3, &packet(8, 1, 0));
        assert_eq!(likeness(&recent, &packet(8, 1, 0)), Some(Likeness::Alike));
    }
}
