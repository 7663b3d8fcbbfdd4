//! How far the clocks of two points are apart.

use super::way::Bound;

/// Stretches of time looked at one by one, to see the clocks drift.
const WINDOWS: usize = 16;
/// Packets each way that a stretch shall have: a minimum over fewer says more
/// about queues than about clocks.
const PACKETS_A_WINDOW: u64 = 32;
/// A drift is believed from so many stretches on.
const MIN_WINDOWS: usize = 4;
/// Less than this is no drift but noise.
const MIN_DRIFT_NS: u64 = 1_000;

/// How an offset was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Half of what lies between the fastest packet one way and the fastest
    /// the other way: right where the path is as fast both ways.
    BothWays,
    /// The fastest packet is taken to need no time: there are packets one way
    /// only, and these cannot tell delay from offset.
    OneWay,
    /// The user says that the clocks agree.
    Synced,
}

impl How {
    /// The word for it in machine-readable output.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::BothWays => "both_ways",
            Self::OneWay => "one_way",
            Self::Synced => "synced",
        }
    }
}

/// How far the clock of the far point is ahead of the near point's.
#[derive(Debug, Clone, Copy)]
pub struct Offset {
    /// At `at_ns`.
    pub ns: i64,
    /// Time at the near point.
    pub at_ns: i64,
    /// How it was found.
    pub how: How,
    /// Packets bound ahead that it was found from.
    pub ahead: u64,
    /// Packets bound back that it was found from.
    pub back: u64,
    /// How wrong it can be where the path is not as fast both ways: half of
    /// the fastest round trip. Known with packets both ways.
    pub error_ns: Option<u64>,
    /// Drift of the far clock against the near one, in billionths.
    pub drift_ppb: i64,
    /// Stretches of time of which each was looked at for itself.
    pub windows: usize,
    /// Width of what these gave, the drift taken out.
    pub spread_ns: u64,
}

impl Offset {
    /// What the user says.
    pub(super) const fn synced() -> Self {
        Self {
            ns: 0,
            at_ns: 0,
            how: How::Synced,
            ahead: 0,
            back: 0,
            error_ns: None,
            drift_ppb: 0,
            windows: 0,
            spread_ns: 0,
        }
    }

    /// The offset at a time of the near point.
    #[must_use]
    pub fn at(&self, near_ns: i64) -> i64 {
        let since = near_ns.saturating_sub(self.at_ns);
        self.ns.saturating_add(drifted(self.drift_ppb, since))
    }

    /// Finds the offset from packets that both points saw: which way each
    /// goes, its time at the near point and at the far one. `packets` is asked
    /// several times.
    pub(super) fn find<I>(packets: impl Fn() -> I) -> Option<Self>
    where
        I: Iterator<Item = (Bound, i64, i64)>,
    {
        let mut range = (i64::MAX, i64::MIN);
        let mut whole = Window::default();
        for (bound, near, far) in packets() {
            range = (range.0.min(near), range.1.max(near));
            whole.add(bound, far.saturating_sub(near));
        }
        let how = whole.how()?;
        let fewest = match how {
            How::BothWays => whole.ahead.min(whole.back),
            _ => whole.ahead.max(whole.back),
        };
        let count = ((fewest / PACKETS_A_WINDOW) as usize).clamp(1, WINDOWS);
        let mut windows = vec![Window::default(); count];
        let length = (range.1.abs_diff(range.0) / count as u64)
            .saturating_add(1)
            .min(i64::MAX as u64);
        for (bound, near, far) in packets() {
            let window = (near.abs_diff(range.0) / length) as usize;
            windows[window.min(count - 1)].add(bound, far.saturating_sub(near));
        }
        let points: Vec<(i64, i64)> = (0i64..)
            .zip(&windows)
            .filter(|(_, window)| window.how() == Some(how))
            .map(|(n, window)| {
                let begin = (length as i64).saturating_mul(n);
                (begin.saturating_add(length as i64 / 2), window.offset())
            })
            .collect();
        let before = width(&points, 0);
        let slope = slope(&points);
        let after = width(&points, slope);
        let believed = points.len() >= MIN_WINDOWS
            && before >= MIN_DRIFT_NS
            && after.saturating_mul(2) < before;
        let (drift_ppb, spread_ns) = if believed {
            (slope, after)
        } else {
            (0, before)
        };
        if drift_ppb != 0 {
            whole = Window::default();
            for (bound, near, far) in packets() {
                let since = near.saturating_sub(range.0);
                let drift = drifted(drift_ppb, since);
                whole.add(bound, far.saturating_sub(near).saturating_sub(drift));
            }
        }
        Some(Self {
            ns: whole.offset(),
            at_ns: range.0,
            how,
            ahead: whole.ahead,
            back: whole.back,
            error_ns: (how == How::BothWays).then(|| whole.round_trip() / 2),
            drift_ppb,
            windows: points.len(),
            spread_ns,
        })
    }
}

fn drifted(ppb: i64, since_ns: i64) -> i64 {
    bounded(i128::from(since_ns) * i128::from(ppb) / 1_000_000_000)
}

/// The nearest number that fits.
fn bounded(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The fastest packets of a stretch of time.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    ahead: u64,
    back: u64,
    /// Least difference of the packets bound ahead: offset plus delay.
    least: i64,
    /// Greatest of those bound back: offset less delay.
    greatest: i64,
}

impl Window {
    fn add(&mut self, bound: Bound, delta: i64) {
        match bound {
            Bound::Ahead => {
                self.least = if self.ahead == 0 {
                    delta
                } else {
                    self.least.min(delta)
                };
                self.ahead += 1;
            }
            Bound::Back => {
                self.greatest = if self.back == 0 {
                    delta
                } else {
                    self.greatest.max(delta)
                };
                self.back += 1;
            }
        }
    }

    const fn how(&self) -> Option<How> {
        match (self.ahead, self.back) {
            (0, 0) => None,
            (0, _) | (_, 0) => Some(How::OneWay),
            _ => Some(How::BothWays),
        }
    }

    const fn offset(&self) -> i64 {
        match (self.ahead, self.back) {
            (_, 0) => self.least,
            (0, _) => self.greatest,
            _ => self.least.midpoint(self.greatest),
        }
    }

    const fn round_trip(&self) -> u64 {
        self.least.abs_diff(self.greatest)
    }
}

/// The middle one of the slopes between any two points, in billionths: a few
/// points far off do not move it.
fn slope(points: &[(i64, i64)]) -> i64 {
    let mut slopes: Vec<i64> = Vec::new();
    for (n, (t0, o0)) in points.iter().enumerate() {
        for (t1, o1) in &points[n + 1..] {
            let rise = i128::from(*o1) - i128::from(*o0);
            let run = i128::from(t1 - t0).max(1);
            slopes.push(bounded(rise * 1_000_000_000 / run));
        }
    }
    slopes.sort_unstable();
    slopes.get(slopes.len() / 2).copied().unwrap_or(0)
}

/// How far the points are off a line of this slope, from one side to the
/// other.
fn width(points: &[(i64, i64)], slope: i64) -> u64 {
    let rest = || {
        points
            .iter()
            .map(|&(t, offset)| offset.saturating_sub(drifted(slope, t)))
    };
    match (rest().min(), rest().max()) {
        (Some(least), Some(greatest)) => greatest.abs_diff(least),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets each way, a millisecond apart, over clocks `offset` apart.
    fn traffic(n: i64, offset: impl Fn(i64) -> i64) -> Vec<(Bound, i64, i64)> {
        (0..n)
            .flat_map(|n| {
                let t = n * 1_000_000;
                let delay = 10_000 + n * 7_919 % 30_000;
                [
                    (Bound::Ahead, t, t + offset(t) + delay),
                    (Bound::Back, t + 500_000, t + 500_000 + offset(t) - delay),
                ]
            })
            .collect()
    }

    #[test]
    fn half_of_what_lies_between() {
        let packets = traffic(1_000, |_| -7_654_321);
        let offset = Offset::find(|| packets.iter().copied()).unwrap();
        assert_eq!((offset.how, offset.drift_ppb), (How::BothWays, 0));
        assert!(offset.ns.abs_diff(-7_654_321) < 100, "{offset:?}");
        assert!(offset.error_ns.unwrap() < 10_100, "{offset:?}");
        assert_eq!((offset.ahead, offset.back), (1_000, 1_000));
        assert!(
            offset.windows == 16 && offset.spread_ns < 5_000,
            "{offset:?}"
        );
    }

    #[test]
    fn drift_is_taken_out() {
        // 40 parts in a million over 10 s.
        let packets = traffic(10_000, |t| 1_000_000 + t / 25_000);
        let offset = Offset::find(|| packets.iter().copied()).unwrap();
        assert!(offset.drift_ppb.abs_diff(40_000) < 400, "{offset:?}");
        for t in [0, 5_000_000_000, 10_000_000_000] {
            let wrong = offset.at(t).abs_diff(1_000_000 + t / 25_000);
            assert!(wrong < 3_000, "{t}: {wrong}");
        }
    }

    #[test]
    fn one_way_is_not_told_from_delay() {
        let mut packets = traffic(100, |_| 5_000);
        packets.retain(|(bound, ..)| *bound == Bound::Ahead);
        let offset = Offset::find(|| packets.iter().copied()).unwrap();
        assert_eq!((offset.how, offset.error_ns), (How::OneWay, None));
        assert!(offset.ns.abs_diff(15_000) < 500, "{offset:?}");
        assert!(Offset::find(std::iter::empty).is_none());
    }

    #[test]
    fn absurd_times_do_no_harm() {
        let packets = [
            (Bound::Ahead, i64::MIN, i64::MAX),
            (Bound::Back, i64::MAX, i64::MIN),
            (Bound::Ahead, 0, 0),
        ];
        let offset = Offset::find(|| packets.into_iter().cycle().take(3_000)).unwrap();
        for t in [i64::MIN, 0, i64::MAX] {
            let _ = offset.at(t);
        }
    }
}
