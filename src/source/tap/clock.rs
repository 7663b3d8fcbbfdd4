//! Times of the kernel's monotonic clock as times of day.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// How often the two clocks are compared: NTP moves one against the other by
/// at most half a millisecond a second.
const COMPARE: Duration = Duration::from_secs(1);

/// The difference between `CLOCK_REALTIME` and `CLOCK_MONOTONIC`.
///
/// The latter stands still while the machine sleeps, and the former is set by
/// people: a comparison holds for packets of about that time, no longer.
pub(super) struct WallClock {
    difference_ns: i64,
    compared: Instant,
}

impl WallClock {
    pub fn new() -> Self {
        Self {
            difference_ns: difference(),
            compared: Instant::now(),
        }
    }

    /// Compares again, if it is time to.
    pub fn refresh(&mut self) {
        if self.compared.elapsed() >= COMPARE {
            *self = Self::new();
        }
    }

    /// Nanoseconds since 1970 of a time of `bpf_ktime_get_ns()`.
    pub fn wall_ns(&self, ktime_ns: u64) -> i64 {
        (ktime_ns as i64).wrapping_add(self.difference_ns)
    }
}

/// Of a few comparisons the one between the closest readings: a thread may
/// have to wait for its turn between two.
fn difference() -> i64 {
    let now = |clock| clock_gettime(clock).map_or(0, |t| t.tv_sec() * 1_000_000_000 + t.tv_nsec());
    let compare = |_| {
        let before = now(ClockId::CLOCK_MONOTONIC);
        let wall = now(ClockId::CLOCK_REALTIME);
        let after = now(ClockId::CLOCK_MONOTONIC);
        (after - before, wall - before - (after - before) / 2)
    };
    let closest = (0..5).map(compare).min_by_key(|(apart, _)| *apart);
    closest.map_or(0, |(_, difference)| difference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn monotonic_times_become_times_of_day() {
        let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let ktime = monotonic.tv_sec() as u64 * 1_000_000_000 + monotonic.tv_nsec() as u64;
        let wall = WallClock::new().wall_ns(ktime);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let apart = now.as_nanos() as i64 - wall;
        assert!((0..1_000_000_000).contains(&apart), "{apart} ns");
    }
}
