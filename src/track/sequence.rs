//! Packet sequence numbers of one sender, without the wrap-around.
//!
//! A [`Sequence`] unrolls the circle of 2^24 into positions on a line, so that
//! everything else compares plain integers. The low 24 bits of a position are
//! its PSN.

use super::event::Cause;
use crate::wire::types::Psn;

/// A PSN on a line rather than on a circle.
pub(super) type Pos = i64;

/// The PSN of a position.
pub(super) const fn psn(pos: Pos) -> Psn {
    Psn::new(pos as u32)
}

/// The positions noted last, a few.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Few {
    /// PSNs, one added, so that zero is none.
    psns: [u32; 8],
    next: u8,
}

impl Few {
    #[inline]
    pub const fn note(&mut self, psn: Psn) {
        self.psns[(self.next % 8) as usize] = psn.get() + 1;
        self.next = self.next.wrapping_add(1);
    }

    pub fn contains(&self, psn: Psn) -> bool {
        self.psns.contains(&(psn.get() + 1))
    }
}

/// Holes kept apart; beyond, the oldest are only counted.
const MAX_HOLES: usize = 1024;

/// Positions that were skipped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    /// First position.
    pub from: Pos,
    /// One past the last.
    pub to: Pos,
    /// What asked for them since, if anything did.
    pub asked: Option<Cause>,
    /// The responder acknowledged them all the same.
    pub acked: bool,
}

/// Where a position stands among those seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The next one.
    Expected,
    /// So many positions further on.
    Ahead(u32),
    /// Skipped before.
    Hole,
    /// Seen before.
    Seen,
    /// Before the first one seen.
    Before,
}

/// Which positions of a sender were seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequence {
    started: bool,
    /// Lowest position seen.
    first: Pos,
    /// One past the highest seen.
    next: Pos,
    /// In order, without overlap.
    holes: Vec<Hole>,
    /// There may be holes that were neither acknowledged nor asked for.
    unsettled: bool,
    /// Positions in holes, those no longer kept included, and of these the
    /// acknowledged ones.
    missing: (u64, u64),
}

impl Sequence {
    /// Whether anything was seen.
    pub const fn started(&self) -> bool {
        self.started
    }

    /// Whether there is no hole that an acknowledgement could show to be the
    /// capture's.
    pub const fn is_settled(&self) -> bool {
        !self.unsettled
    }

    /// One past the highest position seen.
    pub const fn next(&self) -> Pos {
        self.next
    }

    /// The position of `psn` that is nearest to the next one expected; of the
    /// PSN itself before anything was seen.
    pub const fn position(&self, number: Psn) -> Pos {
        if self.started {
            self.next + number.distance_from(psn(self.next)) as Pos
        } else {
            number.get() as Pos
        }
    }

    /// Where a position stands.
    pub fn place(&self, pos: Pos) -> Place {
        if pos == self.next || !self.started {
            Place::Expected
        } else if pos > self.next {
            Place::Ahead((pos - self.next) as u32)
        } else if pos < self.first {
            Place::Before
        } else if self
            .holes
            .iter()
            .any(|hole| hole.from <= pos && pos < hole.to)
        {
            Place::Hole
        } else {
            Place::Seen
        }
    }

    /// Takes in `span` positions from `pos` on, the expected one or further.
    pub fn advance(&mut self, pos: Pos, span: u32) {
        if !self.started {
            self.started = true;
            self.first = pos;
        }
        self.next = pos + Pos::from(span);
    }

    /// Takes in a position ahead of the expected one; all between are a hole,
    /// or those in `holes` where not every position counts.
    pub fn skip_to(&mut self, pos: Pos, span: u32, holes: impl IntoIterator<Item = (Pos, Pos)>) {
        for (from, to) in holes {
            self.push_hole(from, to);
        }
        self.advance(pos, span);
    }

    fn push_hole(&mut self, from: Pos, to: Pos) {
        if from >= to {
            return;
        }
        if self.holes.len() >= MAX_HOLES {
            self.holes.remove(0);
        }
        self.missing.0 += (to - from) as u64;
        self.unsettled = true;
        let hole = Hole {
            from,
            to,
            asked: None,
            acked: false,
        };
        let at = self.holes.partition_point(|other| other.from < from);
        self.holes.insert(at, hole);
    }

    /// Says further on where the highest packet ends: how many positions a
    /// READ takes may come to light later.
    pub fn stretch(&mut self, next: Pos) {
        self.next = self.next.max(next);
    }

    /// Takes `pos` out of its hole; returns what the hole was.
    pub fn fill(&mut self, pos: Pos, span: u32) -> Option<Hole> {
        let at = self
            .holes
            .iter()
            .position(|hole| hole.from <= pos && pos < hole.to)?;
        let hole = self.holes[at];
        let end = (pos + Pos::from(span)).min(hole.to);
        let filled = (end - pos) as u64;
        self.missing.0 -= filled;
        self.missing.1 -= if hole.acked { filled } else { 0 };
        match (hole.from == pos, hole.to == end) {
            (true, true) => _ = self.holes.remove(at),
            (true, false) => self.holes[at].from = end,
            (false, true) => self.holes[at].to = pos,
            (false, false) => {
                self.holes[at].to = pos;
                self.holes.insert(at + 1, Hole { from: end, ..hole });
            }
        }
        Some(hole)
    }

    /// Notes that everything from `from` on was asked for again.
    pub fn ask(&mut self, from: Pos, cause: Cause) {
        for hole in &mut self.holes {
            if hole.to > from && hole.asked.is_none() {
                hole.asked = Some(cause);
            }
        }
    }

    /// Notes that everything before `to` was acknowledged; returns how many
    /// positions that were never seen, nor asked for, are among them.
    pub fn acknowledge(&mut self, to: Pos) -> u32 {
        if !self.unsettled {
            return 0;
        }
        let mut lost = 0;
        let mut split = None;
        self.unsettled = false;
        for (at, hole) in self.holes.iter_mut().enumerate() {
            if hole.acked || hole.asked.is_some() {
                continue;
            }
            if hole.to > to {
                self.unsettled = true;
            }
            if hole.from >= to {
                break;
            }
            if hole.to > to {
                split = Some((at, Hole { from: to, ..*hole }));
                hole.to = to;
            }
            hole.acked = true;
            lost += (hole.to - hole.from) as u32;
        }
        if let Some((at, rest)) = split {
            self.holes.insert(at + 1, rest);
        }
        self.missing.1 += u64::from(lost);
        lost
    }

    /// Positions inside the seen range that were never seen, and of these the
    /// ones that were acknowledged.
    pub const fn missing(&self) -> (u64, u64) {
        self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(psn: u32) -> Psn {
        Psn::new(psn)
    }

    #[test]
    fn positions_pass_the_wrap() {
        let mut seq = Sequence::default();
        let first = seq.position(at(0xff_fffe));
        assert_eq!(seq.place(first), Place::Expected);
        seq.advance(first, 1);
        seq.advance(seq.position(at(0xff_ffff)), 1);
        let zero = seq.position(at(0));
        assert_eq!(seq.place(zero), Place::Expected);
        assert_eq!(psn(zero), at(0));
        let two = seq.position(at(2));
        assert_eq!(seq.place(two), Place::Ahead(2));
        seq.skip_to(two, 1, [(zero, two)]);
        assert_eq!(seq.missing(), (2, 0));
        assert_eq!(seq.place(seq.position(at(1))), Place::Hole);
        assert_eq!(seq.place(seq.position(at(0xff_ffff))), Place::Seen);
        assert_eq!(seq.place(seq.position(at(0xff_fffd))), Place::Before);
        assert!(seq.fill(seq.position(at(0)), 1).is_some());
        assert!(seq.fill(seq.position(at(0)), 1).is_none());
        assert_eq!(seq.missing(), (1, 0));
    }

    #[test]
    fn holes_are_split_filled_and_acknowledged() {
        let mut seq = Sequence::default();
        seq.advance(100, 1);
        seq.skip_to(110, 1, [(101, 110)]);
        seq.fill(105, 1);
        assert_eq!(seq.missing(), (8, 0));
        assert_eq!(seq.acknowledge(103), 2);
        assert_eq!(seq.missing(), (8, 2));
        seq.ask(104, Cause::SequenceNak);
        // The hole 103..105 was asked for in part, so it is no capture loss.
        assert_eq!(seq.acknowledge(111), 0);
        let hole = seq.fill(108, 1).unwrap();
        assert_eq!(hole.asked, Some(Cause::SequenceNak));
        assert_eq!(seq.missing(), (7, 2));
    }

    #[test]
    fn the_last_few_are_remembered() {
        let mut few = Few::default();
        assert!(!few.contains(at(0)));
        for psn in 0..300 {
            few.note(at(psn));
            assert!(few.contains(at(psn)) && few.contains(at(psn.saturating_sub(7))));
        }
        assert!(!few.contains(at(291)));
    }

    #[test]
    fn only_so_many_holes_are_kept() {
        let mut seq = Sequence::default();
        seq.advance(0, 1);
        for i in 1..=5000 {
            seq.skip_to(i * 2, 1, [(i * 2 - 1, i * 2)]);
        }
        assert_eq!(seq.missing(), (5000, 0));
        assert!(seq.holes.len() <= MAX_HOLES);
    }
}
