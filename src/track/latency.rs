//! Distribution of times.

use hdrhistogram::Histogram;

/// Values kept one by one before a histogram takes over: most flows have few,
/// and a histogram takes kilobytes.
const FEW: usize = 32;
/// Longest time told apart: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Distribution of times in nanoseconds; quantiles are right to 1 %.
#[derive(Debug, Clone)]
pub struct Latency {
    kept: Kept,
    max: u64,
}

#[derive(Debug, Clone)]
enum Kept {
    Few(Vec<u64>),
    Many(Box<Histogram<u32>>),
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            kept: Kept::Few(Vec::new()),
            max: 0,
        }
    }
}

impl Latency {
    /// Takes a time in; one below zero, as clocks that step back give, counts
    /// as zero.
    pub fn add(&mut self, ns: i64) {
        let ns = u64::try_from(ns).unwrap_or(0);
        self.max = self.max.max(ns);
        match &mut self.kept {
            Kept::Few(few) if few.len() < FEW => few.push(ns),
            Kept::Few(few) => {
                let Ok(mut many) = Histogram::new_with_bounds(1, LONGEST_NS, 2) else {
                    return;
                };
                for value in few.iter().copied().chain([ns]) {
                    many.saturating_record(value);
                }
                self.kept = Kept::Many(Box::new(many));
            }
            Kept::Many(many) => many.saturating_record(ns),
        }
    }

    /// How many times were taken in.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.kept {
            Kept::Few(few) => few.len() as u64,
            Kept::Many(many) => many.len(),
        }
    }

    /// The time that a share (0 to 1) of all is no longer than; `None` when
    /// there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        match &self.kept {
            Kept::Few(few) if few.is_empty() => None,
            Kept::Few(few) => {
                let mut sorted = few.clone();
                sorted.sort_unstable();
                let rank = (share * sorted.len() as f64).ceil() as usize;
                Some(sorted[rank.clamp(1, sorted.len()) - 1])
            }
            Kept::Many(many) => Some(many.value_at_quantile(share).min(self.max)),
        }
    }

    /// The longest time; `None` when there are none.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_few_and_of_many() {
        let mut latency = Latency::default();
        assert_eq!((latency.quantile(0.5), latency.max()), (None, None));
        for ns in (1..=20).rev() {
            latency.add(ns * 1000);
        }
        assert_eq!(latency.quantile(0.5), Some(10_000));
        assert_eq!(latency.quantile(0.99), Some(20_000));
        for ns in 21..=1000 {
            latency.add(ns * 1000);
        }
        assert_eq!(latency.count(), 1000);
        let near = |share: f64, value: f64| {
            let got = latency.quantile(share).unwrap() as f64;
            assert!((got / value - 1.0).abs() < 0.01, "{share}: {got}");
        };
        near(0.5, 500_000.0);
        near(0.99, 990_000.0);
        assert_eq!(latency.max(), Some(1_000_000));
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
