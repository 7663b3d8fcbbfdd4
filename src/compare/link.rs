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

/// Packets of one place in one flow that have not found their like.
#[derive(Default)]
struct Left {
    indices: Vec<u32>,
    /// Those whose print did find its like, in another copy.
    copies: Vec<u32>,
}

impl Left {
    /// Takes in what is not in `taken`, which is in order.
    fn add(&mut self, group: &[u32], taken: impl Iterator<Item = usize>, found: bool) {
        let mut taken = taken.peekable();
        for (place, &index) in group.iter().enumerate() {
            if taken.next_if_eq(&place).is_none() {
                self.indices.push(index);
                if found {
                    self.copies.push(index);
                }
            }
        }
    }

    /// Copies but for what found its like in the end.
    fn copies(mut self, mut taken: Vec<u32>) -> Vec<u32> {
        taken.sort_unstable();
        self.copies
            .retain(|index| taken.binary_search(index).is_err());
        self.copies
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
            self.timing.gap(near.flow) * 2
        } else {
            REACH_NS
        };
        self.timing.near(near.flow, near.ts_ns, far.ts_ns, reach)
    }

    /// Packets of one place in one flow: sent again, duplicated, or after the
    /// numbers wrapped.
    fn several(&mut self, a: &[u32], b: &[u32]) {
        let (near, far) = (self.near.only(a), self.far.only(b));
        let mut near_left = Left::default();
        let mut far_left = Left::default();
        for (a, b) in Join::new(near, far, Seen::print) {
            let pairs = self.group(a, b, |_, _| true);
            let found = !pairs.is_empty();
            near_left.add(a, pairs.iter().map(|pair| pair.0), found);
            far_left.add(b, pairs.iter().map(|pair| pair.1), found);
        }
        let (near_taken, far_taken) = self.leftovers(&mut near_left, &mut far_left);
        for index in near_left.copies(near_taken) {
            (self.found)(Found::NearCopy(index));
        }
        for index in far_left.copies(far_taken) {
            (self.found)(Found::FarCopy(index));
        }
    }

    /// Pairs up packets whose prints are not alike; returns what was taken.
    fn leftovers(&mut self, near_left: &mut Left, far_left: &mut Left) -> (Vec<u32>, Vec<u32>) {
        let body = |side: Side<'_>, index: u32| (side.get(index).body(), index);
        let (near, far) = (self.near, self.far);
        near_left.indices.sort_unstable_by_key(|&i| body(near, i));
        far_left.indices.sort_unstable_by_key(|&i| body(far, i));
        let (near, far) = (near.only(&near_left.indices), far.only(&far_left.indices));
        let mut taken = (Vec::new(), Vec::new());
        for (a, b) in Join::new(near, far, Seen::body) {
            for (i, j) in self.group(a, b, Seen::may_be) {
                taken.0.push(a[i]);
                taken.1.push(b[j]);
            }
        }
        taken
    }

    /// Pairs packets up by time, reports the pairs and returns their places.
    fn group(
        &mut self,
        a: &[u32],
        b: &[u32],
        may: impl Fn(&Seen, &Seen) -> bool,
    ) -> Vec<(usize, usize)> {
        let (near, far) = (self.near, self.far);
        let may = |i: usize, j: usize| may(near.get(a[i]), far.get(b[j]));
        let pairs = match (a, b) {
            ([], _) | (_, []) => return Vec::new(),
            ([one], [other]) => {
                if !may(0, 0) || !self.in_reach(near.get(*one), far.get(*other)) {
                    return Vec::new();
                }
                vec![(0, 0)]
            }
            _ => {
                let arrived: Vec<i64> = b.iter().map(|&j| far.get(j).ts_ns).collect();
                let gap = self.timing.gap(near.get(a[0]).flow);
                align(&self.expected(a, b), &arrived, gap, may)
            }
        };
        for &(i, j) in &pairs {
            (self.found)(Found::Pair(a[i], b[j]));
        }
        pairs
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
