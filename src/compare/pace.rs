//! How much later, by its own clock, the far point sees what the near one saw.

use super::point::Flows;

/// Differences kept of one way; of more, every second is let go.
const SAMPLES: usize = 4096;
/// Neighbours in time whose middle is taken, so that one late packet does not
/// count.
const NEIGHBOURS: usize = 9;
/// Clocks of captures are rarely finer than a microsecond, and hosts wake up
/// late.
const MIN_GAP_NS: u64 = 50_000;

/// Differences of the two clocks' times, of packets sent one way.
#[derive(Debug, Default)]
pub(super) struct WayPace {
    /// Time at the near point, time at the far point less that one.
    samples: Vec<(i64, i64)>,
    stride: u64,
    count: u64,
    low: i64,
    high: i64,
    /// The middle one of all.
    pub middle: i64,
    /// Width that nine of ten fit in, drift of the clocks left out.
    pub spread: u64,
}

impl WayPace {
    fn add(&mut self, ts_ns: i64, delta: i64) {
        let stride = self.stride.max(1);
        if self.count.is_multiple_of(stride) {
            if self.samples.len() == SAMPLES {
                let mut keep = false;
                self.samples.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.stride = stride * 2;
            }
            self.samples.push((ts_ns, delta));
        }
        self.count += 1;
    }

    fn settle(&mut self) {
        if self.samples.is_empty() {
            return;
        }
        self.samples.sort_unstable();
        let mut deltas: Vec<i64> = self.samples.iter().map(|(_, delta)| *delta).collect();
        deltas.sort_unstable();
        self.middle = deltas[deltas.len() / 2];
        self.low = deltas[0];
        self.high = deltas[deltas.len() - 1];
        let mut rest: Vec<i64> = self
            .samples
            .iter()
            .map(|&(ts_ns, delta)| delta.saturating_sub(self.at(ts_ns).unwrap_or(delta)))
            .collect();
        rest.sort_unstable();
        let cut = rest.len() / 20;
        self.spread = rest[rest.len() - 1 - cut].abs_diff(rest[cut]);
    }

    /// The usual difference around a time at the near point.
    pub(super) fn at(&self, ts_ns: i64) -> Option<i64> {
        let next = self.samples.partition_point(|(ts, _)| *ts < ts_ns);
        let begin = next.saturating_sub(NEIGHBOURS / 2);
        let begin = begin.min(self.samples.len().saturating_sub(NEIGHBOURS));
        let near = self.samples.iter().skip(begin).take(NEIGHBOURS);
        let mut deltas = [0; NEIGHBOURS];
        let mut len = 0;
        for (slot, (_, delta)) in deltas.iter_mut().zip(near) {
            *slot = *delta;
            len += 1;
        }
        deltas[..len].sort_unstable();
        deltas[..len].get(len / 2).copied()
    }

    /// Times at the near point of a few packets.
    pub(super) fn times(&self) -> impl Iterator<Item = i64> {
        let step = (self.samples.len() / 64).max(1);
        self.samples.iter().step_by(step).map(|(ts, _)| *ts)
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }
}

/// The same for every way between hosts.
#[derive(Debug, Default)]
pub(super) struct Pace {
    ways: Vec<WayPace>,
    all: WayPace,
}

impl Pace {
    /// Takes differences in, of packets that are the same beyond doubt.
    pub(super) fn new(ways: usize) -> Self {
        Self {
            ways: (0..ways).map(|_| WayPace::default()).collect(),
            all: WayPace::default(),
        }
    }

    pub(super) fn add(&mut self, way: usize, near_ns: i64, far_ns: i64) {
        let delta = far_ns.saturating_sub(near_ns);
        self.ways[way].add(near_ns, delta);
        self.all.add(near_ns, delta);
    }

    pub(super) fn settle(&mut self) {
        self.ways.iter_mut().for_each(WayPace::settle);
        self.all.settle();
    }

    pub(super) fn way(&self, way: usize) -> &WayPace {
        &self.ways[way]
    }

    /// The way itself, else the way back, else all that there is.
    fn best(&self, flows: &Flows, way: usize) -> &WayPace {
        let reverse = flows.reverse(way);
        [Some(way), reverse]
            .into_iter()
            .flatten()
            .map(|way| &self.ways[way])
            .find(|pace| pace.count > 0)
            .unwrap_or(&self.all)
    }

    /// When the far point may be expected to see what the near one saw.
    pub(super) fn arrival(&self, flows: &Flows, way: usize, near_ns: i64) -> Option<i64> {
        let delta = self.best(flows, way).at(near_ns)?;
        Some(near_ns.saturating_add(delta))
    }

    /// When the near point may be expected to have seen what the far one saw.
    pub(super) fn departure(&self, flows: &Flows, way: usize, far_ns: i64) -> Option<i64> {
        let pace = self.best(flows, way);
        let delta = pace.at(far_ns.saturating_sub(pace.middle))?;
        Some(far_ns.saturating_sub(delta))
    }

    pub(super) fn spread(&self, flows: &Flows, way: usize) -> u64 {
        self.best(flows, way).spread
    }
}

/// What is known of the time between two points, with others between them or
/// not.
#[derive(Clone, Copy)]
pub(super) struct Timing<'a> {
    pub flows: &'a Flows,
    pub paces: &'a [&'a Pace],
}

impl Timing<'_> {
    /// When the far point may be expected to see what the near one saw.
    pub(super) fn arrival(&self, flow: u32, near_ns: i64) -> Option<i64> {
        let way = self.flows.way(flow);
        let mut paces = self.paces.iter();
        paces.try_fold(near_ns, |ts_ns, pace| pace.arrival(self.flows, way, ts_ns))
    }

    /// What leaving a packet without its like shall cost.
    pub(super) fn gap(&self, flow: u32) -> u64 {
        let way = self.flows.way(flow);
        let spreads = self.paces.iter().map(|pace| pace.spread(self.flows, way));
        let spread = spreads.fold(0, u64::saturating_add);
        spread.saturating_mul(4).max(MIN_GAP_NS)
    }

    /// Whether two times are no further apart than `reach` from what is usual.
    /// Where nothing is known, they are not.
    pub(super) fn near(&self, flow: u32, near_ns: i64, far_ns: i64, reach: u64) -> bool {
        // Most packets need no look at their neighbours.
        if let [pace] = self.paces {
            let pace = pace.best(self.flows, self.flows.way(flow));
            let delta = far_ns.saturating_sub(near_ns);
            if pace.count > 0
                && delta >= pace.low
                && delta <= pace.high
                && pace.low.abs_diff(pace.high) <= reach
            {
                return true;
            }
        }
        self.arrival(flow, near_ns)
            .is_none_or(|arrival| arrival.abs_diff(far_ns) <= reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_clocks_that_drift_and_ignores_one_late_packet() {
        let mut pace = WayPace::default();
        // 100 parts in a million over 10 s: a millisecond.
        for n in 0..10_000i64 {
            let late = if n % 100 == 50 { 300_000 } else { 0 };
            pace.add(n * 1_000_000, 5_000_000 + n * 100 + n % 13 + late);
        }
        pace.settle();
        for n in [0, 777, 5_000, 9_999] {
            let usual = pace.at(n * 1_000_000).unwrap();
            let drifted = 5_000_000 + n * 100;
            assert!(usual.abs_diff(drifted) < 2_000, "{n}: {usual}");
        }
        assert!(pace.spread < 2_000, "{}", pace.spread);
        assert_eq!(pace.count(), 10_000);
        assert!(pace.samples.len() <= SAMPLES);
    }

    #[test]
    fn knows_nothing_of_nothing() {
        let mut pace = WayPace::default();
        pace.settle();
        assert_eq!(pace.at(5), None);
        pace.add(1, 7);
        pace.settle();
        assert_eq!((pace.at(i64::MIN), pace.at(i64::MAX)), (Some(7), Some(7)));
        assert_eq!(pace.spread, 0);
    }
}
