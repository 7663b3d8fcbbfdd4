//! Finds the same packet at two points.

use super::{
    align::{REACH_NS, align, shift},
    join::{Join, Side},
    pace::Timing,
    point::Seen,
};

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// One packet at both points.
    Pair(u32, u32),
    /// A copy at the near point, of a packet that both saw, without its like.
    NearCopy(u32),
    /// The same at the far point.
    FarCopy(u32),
    /// A packet of the near point that has others like it.
    Alike(u32),
}

/// Pairs that need no timing: packets whose print each point saw once.
pub(super) fn sure(near: Side<'_>, far: Side<'_>, mut found: impl FnMut(&Seen, &Seen)) {
    for (a, b) in Join::new(near, far, |seen| (seen.place(), seen.print())) {
        if let ([a], [b]) = (a, b) {
            found(near.get(*a), far.get(*b));
        }
    }
}

/// Finds pairs: the same print first, then packets whose invariant CRC one
/// point did not keep or that was broken on the way. Several alike are told
/// apart by time; `strict` trusts no print that is not where time has it.
pub(super) fn link(
    near: Side<'_>,
    far: Side<'_>,
    timing: Timing<'_>,
    strict: bool,
    found: impl FnMut(Found),
) {
    let mut linker = Linker {
        near,
        far,
        timing,
        strict,
        found,
    };
    for (a, b) in Join::new(near, far, Seen::place) {
        match (a, b) {
            ([], _) | (_, []) => {}
            ([a], [b]) => linker.one(*a, *b),
            _ => linker.several(a, b),
        }
    }
}

struct Linker<'a, F> {
    near: Side<'a>,
    far: Side<'a>,
    timing: Timing<'a>,
    strict: bool,
    found: F,
}

impl<F: FnMut(Found)> Linker<'_, F> {
    /// The one packet that each point has of a place in a flow: nearly all.
    fn one(&mut self, a: u32, b: u32) {
        let (near, far) = (self.near.get(a), self.far.get(b));
        let same = near.print() == far.print() || near.body() == far.body() && near.may_be(far);
        if same && self.in_reach(near, far) {
            (self.found)(Found::Pair(a, b));
        }
    }

    fn in_reach(&self, near: &Seen, far: &Seen) -> bool {
        let reach = if self.strict {
            self.timing.gap(near.flow).saturating_mul(2)
        } else {
            REACH_NS
        };
        self.timing.near(near.flow, near.ts_ns, far.ts_ns, reach)
    }

    /// Packets of one place in one flow: sent again, duplicated, or after the
    /// numbers wrapped.
    fn several(&mut self, a: &[u32], b: &[u32]) {
        let (near, far) = (self.near.only(a), self.far.only(b));
        let mut near_left = Vec::new();
        let mut far_left = Vec::new();
        for (a, b) in Join::new(near, far, Seen::print) {
            match (a, b) {
                ([a], [b]) if self.in_reach(near.get(*a), far.get(*b)) => {
                    (self.found)(Found::Pair(*a, *b));
                }
                _ => {
                    near_left.extend_from_slice(a);
                    far_left.extend_from_slice(b);
                }
            }
        }
        near_left.sort_unstable_by_key(|&index| (near.get(index).body(), index));
        far_left.sort_unstable_by_key(|&index| (far.get(index).body(), index));
        let (near, far) = (near.only(&near_left), far.only(&far_left));
        for (a, b) in Join::new(near, far, Seen::body) {
            match (a, b) {
                ([], _) | (_, []) => {}
                ([a], [b]) => self.one(*a, *b),
                _ => self.by_time(a, b),
            }
        }
    }

    /// Packets that only time tells apart.
    fn by_time(&mut self, a: &[u32], b: &[u32]) {
        let (near, far) = (self.near, self.far);
        let arrived: Vec<i64> = b.iter().map(|&j| far.get(j).ts_ns).collect();
        let gap = self.timing.gap(near.get(a[0]).flow);
        let pairs = align(&self.expected(a, b), &arrived, gap, |i, j| {
            let (near, far) = (near.get(a[i]), far.get(b[j]));
            near.print() == far.print() || near.may_be(far)
        });
        for &index in a {
            (self.found)(Found::Alike(index));
        }
        for &(i, j) in &pairs {
            (self.found)(Found::Pair(a[i], b[j]));
        }
        for index in copies(near, a, pairs.iter().map(|pair| pair.0)) {
            (self.found)(Found::NearCopy(index));
        }
        for index in copies(far, b, pairs.iter().map(|pair| pair.1)) {
            (self.found)(Found::FarCopy(index));
        }
    }

    /// When packets of the near point may be expected at the far one.
    fn expected(&self, a: &[u32], b: &[u32]) -> Vec<i64> {
        let (near, far) = (self.near, self.far);
        let arrival = |&i: &u32| {
            let seen = near.get(i);
            self.timing.arrival(seen.flow, seen.ts_ns)
        };
        if let Some(expected) = a.iter().map(arrival).collect() {
            return expected;
        }
        // Not one packet is sure, of any way.
        let times = |side: Side<'_>, group: &[u32]| -> Vec<i64> {
            group.iter().map(|&index| side.get(index).ts_ns).collect()
        };
        let (sent, arrived) = (times(near, a), times(far, b));
        let usual = shift(&sent, &arrived, self.timing.gap(near.get(a[0]).flow));
        let times = sent.into_iter().map(|ts_ns| ts_ns.saturating_add(usual));
        times.collect()
    }
}

/// Packets of a group that were not taken, where another with the same print
/// was; places in `taken` are in order.
fn copies(side: Side<'_>, group: &[u32], taken: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut taken = taken.peekable();
    let mut prints = Vec::new();
    let mut left = Vec::new();
    for (place, &index) in group.iter().enumerate() {
        if taken.next_if_eq(&place).is_some() {
            prints.push(side.get(index).print());
        } else {
            left.push(index);
        }
    }
    prints.sort_unstable();
    left.retain(|&index| prints.binary_search(&side.get(index).print()).is_ok());
    left
}
