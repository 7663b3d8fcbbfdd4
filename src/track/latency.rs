//! Distribution of times.

/// Buckets between two powers of two: a value is known to one part in 128.
const STEPS: u32 = 64;

/// Times kept one by one before buckets take over.
const FEW: usize = 32;

/// Distribution of times in nanoseconds; quantiles are exact for few times and
/// right to 1 % for many.
///
/// Only buckets that hold something are kept: the times of one flow lie close
/// together, and there may be a million flows.
#[derive(Debug, Clone, Default)]
pub struct Latency {
    /// In order, while there are few.
    few: Vec<u64>,
    /// Buckets and how many times each holds, the shortest first.
    buckets: Vec<(u16, u32)>,
    count: u64,
    min: u64,
    max: u64,
}

/// The bucket of a time: exact below `STEPS`, then `STEPS` to each doubling.
const fn bucket(ns: u64) -> u16 {
    if ns < STEPS as u64 {
        return ns as u16;
    }
    let doubling = ns.ilog2() - STEPS.ilog2();
    let step = (ns >> doubling) as u32 - STEPS;
    ((doubling + 1) * STEPS + step) as u16
}

/// The middle of a bucket.
const fn middle(bucket: u16) -> u64 {
    let bucket = bucket as u32;
    if bucket < STEPS {
        return bucket as u64;
    }
    let (doubling, step) = (bucket / STEPS - 1, bucket % STEPS);
    let from = ((STEPS + step) as u64) << doubling;
    from + (1 << doubling) / 2
}

impl Latency {
    /// Takes a time in; one below zero, as clocks that step back give, counts
    /// as zero.
    pub fn add(&mut self, ns: i64) {
        let ns = u64::try_from(ns).unwrap_or(0);
        self.min = if self.count == 0 {
            ns
        } else {
            self.min.min(ns)
        };
        self.max = self.max.max(ns);
        self.count += 1;
        if self.buckets.is_empty() {
            if self.few.len() < FEW {
                let at = self.few.partition_point(|other| *other <= ns);
                self.few.insert(at, ns);
                return;
            }
            for ns in std::mem::take(&mut self.few) {
                self.count_in(ns);
            }
        }
        self.count_in(ns);
    }

    fn count_in(&mut self, ns: u64) {
        let bucket = bucket(ns);
        let at = self.buckets.partition_point(|(other, _)| *other < bucket);
        match self.buckets.get_mut(at) {
            Some((other, count)) if *other == bucket => *count = count.saturating_add(1),
            _ => self.buckets.insert(at, (bucket, 1)),
        }
    }

    /// How many times were taken in.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The time that a share (0 to 1) of all is no longer than; `None` when
    /// there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        if self.buckets.is_empty() {
            return self.few.get(rank as usize - 1).copied();
        }
        let mut seen = 0;
        let holds = |(_, count): &&(u16, u32)| {
            seen += u64::from(*count);
            seen >= rank
        };
        let (bucket, _) = self.buckets.iter().find(holds)?;
        // The middle of the first or the last bucket may lie beyond every time.
        Some(middle(*bucket).clamp(self.min, self.max))
    }

    /// The longest time; `None` when there are none.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_their_middle() {
        let mut last = 0;
        for ns in (0..5000).chain((13..64).map(|shift| (1u64 << shift) - 1)) {
            let bucket = bucket(ns);
            assert!(bucket >= last, "{ns}");
            last = bucket;
            let off = middle(bucket).abs_diff(ns);
            assert!(off as f64 <= ns as f64 / 127.0, "{ns}: {off}");
        }
        assert_eq!(bucket(u64::MAX), 59 * 64 - 1);
    }

    #[test]
    fn quantiles_of_few_and_of_many() {
        let mut latency = Latency::default();
        assert_eq!((latency.quantile(0.5), latency.max()), (None, None));
        let near = |latency: &Latency, share: f64, value: f64| {
            let got = latency.quantile(share).unwrap() as f64;
            assert!((got / value - 1.0).abs() < 0.01, "{share}: {got}");
        };
        for ns in (1..=20).rev() {
            latency.add(ns * 1000);
        }
        assert_eq!(latency.quantile(0.5), Some(10_000));
        assert_eq!(latency.quantile(0.99), Some(20_000));
        for ns in 21..=1000 {
            latency.add(ns * 1000);
        }
        assert_eq!(latency.count(), 1000);
        near(&latency, 0.5, 500_000.0);
        near(&latency, 0.99, 990_000.0);
        assert_eq!(latency.max(), Some(1_000_000));
    }

    #[test]
    fn quantiles_lie_between_the_least_and_the_greatest_time() {
        // The middles of their buckets are 2992 and 3024.
        for ns in [3000, 3010] {
            let mut latency = Latency::default();
            for _ in 0..500 {
                latency.add(ns);
            }
            for share in [0.0, 0.5, 0.99, 1.0] {
                assert_eq!(latency.quantile(share), Some(ns as u64), "{share}");
            }
        }
    }

    #[test]
    fn absurd_times_are_kept_in_bounds() {
        let mut latency = Latency::default();
        for _ in 0..40 {
            latency.add(i64::MAX);
            latency.add(-5);
        }
        assert_eq!(latency.count(), 80);
        assert_eq!(latency.max(), Some(i64::MAX as u64));
        assert_eq!(latency.quantile(0.1), Some(0));
    }
}
