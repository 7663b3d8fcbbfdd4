//! Which of several packets alike at one point is which at the other, by time.

/// No packet is under way so much longer than others are.
pub(super) const REACH_NS: u64 = 1_000_000_000;

/// Where more pairs than this are possible, time is cut into stretches.
const MAX_PAIRS: usize = 1 << 17;
/// Packets of a stretch.
const STRETCH: usize = 256;

/// Pairs up times: `expected` at the far point with `arrived` there, both in
/// order. Leaving a time alone costs `gap`, so that two are rather left alone
/// than paired when they are more than two gaps apart; of all ways to pair
/// them up the cheapest is taken. `may` rules pairs out.
pub(super) fn align(
    expected: &[i64],
    arrived: &[i64],
    gap: u64,
    may: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let gap = gap.min(REACH_NS / 2);
    if expected.len().saturating_mul(arrived.len()) > MAX_PAIRS {
        return by_stretches(expected, arrived, gap, may);
    }
    cheapest(expected, arrived, gap, may)
}

/// The step that leads to a cell of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Pair,
    SkipExpected,
    SkipArrived,
}

fn cheapest(
    expected: &[i64],
    arrived: &[i64],
    gap: u64,
    may: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let width = arrived.len() + 1;
    let mut steps = vec![Step::SkipArrived; (expected.len() + 1) * width];
    let mut above: Vec<u64> = (0..width as u64).map(|n| n * gap).collect();
    let mut row = above.clone();
    for (i, &at) in expected.iter().enumerate() {
        row[0] = above[0] + gap;
        steps[(i + 1) * width] = Step::SkipExpected;
        for (j, &seen) in arrived.iter().enumerate() {
            let mut best = (row[j] + gap, Step::SkipArrived);
            if above[j + 1] + gap < best.0 {
                best = (above[j + 1] + gap, Step::SkipExpected);
            }
            let pair = above[j] + at.abs_diff(seen).min(REACH_NS * 2);
            if pair <= best.0 && may(i, j) {
                best = (pair, Step::Pair);
            }
            (row[j + 1], steps[(i + 1) * width + j + 1]) = best;
        }
        std::mem::swap(&mut above, &mut row);
    }
    let (mut i, mut j) = (expected.len(), arrived.len());
    let mut pairs = Vec::new();
    while i > 0 && j > 0 {
        match steps[i * width + j] {
            Step::Pair => {
                i -= 1;
                j -= 1;
                pairs.push((i, j));
            }
            Step::SkipExpected => i -= 1,
            Step::SkipArrived => j -= 1,
        }
    }
    pairs.reverse();
    pairs
}

/// The same, a stretch at a time: what is more than two gaps away is never the
/// other half of a pair, so that only what is near the end of a stretch can
/// depend on what comes next, and that is done again with the next stretch.
fn by_stretches(
    expected: &[i64],
    arrived: &[i64],
    gap: u64,
    may: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let reach = (gap * 2) as i64;
    let (mut i, mut j) = (0, 0);
    let mut all = Vec::new();
    while i < expected.len() && j < arrived.len() {
        let sent = &expected[i..(i + STRETCH).min(expected.len())];
        let begin = sent[0].saturating_sub(reach);
        j += arrived[j..].iter().take_while(|ts| **ts < begin).count();
        let end = sent[sent.len() - 1].saturating_add(reach);
        let come = arrived[j..].iter().take(STRETCH * 2);
        let come = come.take_while(|ts| **ts <= end).count();
        let pairs = cheapest(sent, &arrived[j..j + come], gap, |a, b| may(i + a, j + b));
        let settled = if i + sent.len() < expected.len() {
            sent.len() * 3 / 4
        } else {
            sent.len()
        };
        let (from, at) = (i, j);
        for (a, b) in pairs.into_iter().filter(|(a, _)| *a < settled) {
            all.push((from + a, at + b));
            j = at + b + 1;
        }
        i += settled;
    }
    all
}

/// Packets at either end of a list that are tried against one another.
const TRIED: usize = 8;

/// How much later the second times are, on the whole, where nothing else tells:
/// the difference that leaves the fewest of the first without one of the second
/// close by. Both are in order and not empty.
pub(super) fn shift(sent: &[i64], arrived: &[i64], gap: u64) -> i64 {
    let ends = |times: &[i64]| {
        let last = times.len().saturating_sub(TRIED);
        let first = times.iter().take(TRIED).copied().collect::<Vec<_>>();
        [first, times[last..].to_vec()]
    };
    let candidates = std::iter::zip(ends(sent), ends(arrived)).flat_map(|(sent, arrived)| {
        let pairs = sent.into_iter().flat_map(move |at| {
            let arrived = arrived.clone().into_iter();
            arrived.map(move |seen| seen.saturating_sub(at))
        });
        pairs.collect::<Vec<_>>()
    });
    candidates
        .min_by_key(|&by| (apart(sent, arrived, by, gap), by.unsigned_abs()))
        .unwrap_or(0)
}

/// How far the first times, shifted, are from the nearest of the second in
/// all; nothing counts for more than `gap`.
fn apart(sent: &[i64], arrived: &[i64], by: i64, gap: u64) -> u64 {
    let mut next = 0;
    let distances = sent.iter().map(|at| {
        let at = at.saturating_add(by);
        while arrived.get(next).is_some_and(|seen| *seen < at) {
            next += 1;
        }
        let near = arrived[next.saturating_sub(1)..].iter().take(2);
        near.map(|seen| seen.abs_diff(at))
            .min()
            .unwrap_or(gap)
            .min(gap)
    });
    distances.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(_: usize, _: usize) -> bool {
        true
    }

    #[test]
    fn a_lost_first_copy_is_not_paired_with_the_second() {
        let pairs = align(&[0, 70_000_000], &[70_010_000], 50_000, any);
        assert_eq!(pairs, [(1, 0)]);
        // Nor where the second was duplicated on the way.
        let pairs = align(&[0, 70_000_000], &[70_010_000, 70_011_000], 50_000, any);
        assert_eq!(pairs, [(1, 0)]);
    }

    #[test]
    fn a_delay_that_all_share_shifts_no_pairs() {
        let pairs = align(&[0, 1_000], &[40_000, 41_000], 50_000, any);
        assert_eq!(pairs, [(0, 0), (1, 1)]);
    }

    #[test]
    fn one_lost_of_a_regular_stream() {
        let sent: Vec<i64> = (0..2_000).map(|n| n * 50_000).collect();
        let mut seen: Vec<i64> = sent.iter().map(|t| t + t % 7_000).collect();
        seen.remove(1_340);
        let pairs = align(&sent, &seen, 100_000, any);
        assert_eq!(pairs.len(), 1_999);
        assert!(pairs.iter().all(|&(i, j)| i == j + usize::from(i > 1_340)));
        assert_eq!(cheapest(&sent, &seen, 100_000, any), pairs);
    }

    #[test]
    fn a_shift_that_explains_most() {
        let sent: Vec<i64> = (0..200).map(|n| n * 50_000 + n * n % 9_000).collect();
        let mut arrived: Vec<i64> = sent.iter().map(|t| t - 5_000_000 + t % 700).collect();
        arrived.drain(60..63);
        arrived.remove(2);
        let found = shift(&sent, &arrived, 50_000);
        assert!(found.abs_diff(-5_000_000) < 1_000, "{found}");
        assert_eq!(shift(&[1], &[9], 5), 8);
    }

    #[test]
    fn distances_as_far_as_time_goes_overflowed_their_sum() {
        let sent = [i64::MIN, i64::MIN, i64::MIN];
        assert_eq!(apart(&sent, &[i64::MAX], 0, u64::MAX), u64::MAX);
    }

    #[test]
    fn what_may_not_be_paired_is_not() {
        let pairs = align(&[0, 10], &[0, 10], 100, |i, j| i != j);
        assert_eq!(pairs.len(), 1);
        assert!(pairs[0].0 != pairs[0].1);
        assert_eq!(align(&[], &[1], 5, any), []);
        // Far apart beyond anything that could be under way.
        assert_eq!(align(&[0], &[i64::MAX], u64::MAX, any), []);
    }
}
