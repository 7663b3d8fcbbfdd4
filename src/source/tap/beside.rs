//! A netdev and the tap at once, packets in the order of their times.
//!
//! Each packet is there once, by construction and not by comparison: what
//! comes over a netdev passes the netdev's listeners before it reaches the
//! driver, so the tap beside one leaves such packets out
//! ([`TapOptions::looped_only`](super::TapOptions::looped_only)), and what is
//! looped reaches no netdev.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::TapSource;
use crate::source::{
    Batch, InputStatistics, LiveSource, PacketPath, PacketSource, RawPacket, SourceError, Stop,
};

/// How long packets are held for earlier ones from the other place. A netdev's
/// may lie in the kernel's buffer for as long as its timeout, twice over.
const HOLD: Duration = Duration::from_millis(100);
/// Batches of the tap that are taken after one of the netdev's.
const ROUNDS: usize = 8;

/// Packets of a netdev, input 0, and of the tap, whose inputs follow.
///
/// The netdev's source should have a timeout well below 50 ms.
pub struct Beside {
    live: Option<LiveSource>,
    /// Statistics of the netdev's source once that has ended.
    live_ended: Vec<InputStatistics>,
    tap: TapSource,
    tap_ended: bool,
    stop: Stop,
    /// Packets that may still be handed out.
    left: Option<u64>,
    held: Batch,
    scratch: Batch,
}

impl Beside {
    /// Joins two captures that end with the same `stop`; together they end
    /// after `count` packets.
    #[must_use]
    pub fn new(live: LiveSource, tap: TapSource, stop: Stop, count: Option<u64>) -> Self {
        Self {
            live: Some(live),
            live_ended: Vec::new(),
            tap,
            tap_ended: false,
            stop,
            left: count,
            held: Batch::new(),
            scratch: Batch::new(),
        }
    }

    /// The tap.
    #[must_use]
    pub const fn tap(&self) -> &TapSource {
        &self.tap
    }

    /// Reads both into what is held.
    fn read(&mut self) -> Result<(), SourceError> {
        let mut quiet = true;
        if let Some(live) = &mut self.live {
            match live.next_batch(&mut self.scratch) {
                Ok(true) => {
                    quiet = false;
                    for packet in self.scratch.packets() {
                        self.held.push(&RawPacket {
                            path: Some(PacketPath::Wire),
                            ..packet
                        });
                    }
                }
                Ok(false) => {
                    self.live_ended = live.statistics();
                    self.live = None;
                    // By itself, as when its time is over.
                    self.stop.set();
                }
                Err(error) => {
                    self.stop.set();
                    return Err(error);
                }
            }
        }
        for _ in 0..ROUNDS {
            if self.tap_ended {
                break;
            }
            // The netdev's source has waited already, if there was need to.
            self.tap_ended = !self.tap.next(&mut self.scratch, quiet);
            if self.scratch.is_empty() {
                break;
            }
            for packet in self.scratch.packets() {
                self.held.push(&RawPacket {
                    input: packet.input + 1,
                    ..packet
                });
            }
        }
        Ok(())
    }

    fn ended(&self) -> bool {
        self.live.is_none() && self.tap_ended
    }
}

/// Moves the packets up to a time from `held` to `out`, earliest first.
fn release(held: &mut Batch, out: &mut Batch, until_ns: i64, left: &mut Option<u64>) {
    let mut order: Vec<_> = held.packets().collect();
    order.sort_by_key(|packet| packet.ts_ns);
    let due = order.partition_point(|packet| packet.ts_ns <= until_ns);
    let mut rest = Batch::new();
    for (place, packet) in order.into_iter().enumerate() {
        if place >= due {
            rest.push(&packet);
        } else if left.is_none_or(|left| left > 0) {
            out.push(&packet);
            *left = left.map(|left| left - 1);
        }
    }
    *held = rest;
}

impl PacketSource for Beside {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        batch.clear();
        if self.left == Some(0) || (self.ended() && self.held.is_empty()) {
            self.stop.set();
            return Ok(false);
        }
        if !self.ended() {
            self.read()?;
        }
        let until_ns = if self.ended() {
            i64::MAX
        } else {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(i64::MAX, |now| now.saturating_sub(HOLD).as_nanos() as i64)
        };
        release(&mut self.held, batch, until_ns, &mut self.left);
        Ok(true)
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        let live = match &self.live {
            Some(live) => live.statistics(),
            None => self.live_ended.clone(),
        };
        live.into_iter().chain(self.tap.statistics()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::LinkType;

    #[test]
    fn packets_of_both_places_come_out_in_order() {
        let mut held = Batch::new();
        for (input, ts_ns) in [(0, 30), (0, 10), (1, 20), (1, 40), (0, 50)] {
            held.push(&RawPacket {
                input,
                frame: 1,
                ts_ns,
                len: 1,
                link: LinkType::RAW,
                path: None,
                data: &[ts_ns as u8],
            });
        }
        let times = |batch: &Batch| batch.packets().map(|p| p.ts_ns).collect::<Vec<_>>();
        let (mut out, mut left) = (Batch::new(), None);
        release(&mut held, &mut out, 30, &mut left);
        assert_eq!(times(&out), [10, 20, 30]);
        assert_eq!(times(&held), [40, 50]);
        assert!(out.packets().all(|p| p.data == [p.ts_ns as u8]));
        out.clear();
        left = Some(1);
        release(&mut held, &mut out, 100, &mut left);
        assert_eq!((times(&out), left), (vec![40], Some(0)));
        assert!(held.is_empty());
    }
}
