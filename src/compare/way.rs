//! Which of two points packets pass first.

use super::{
    clock::Offset,
    pace::Pace,
    point::{Flows, Seen},
};

/// Which way packets go, along a leg from its near point to its far one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bound {
    /// From the near point to the far one.
    Ahead,
    /// From the far point to the near one.
    Back,
}

impl Bound {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ahead, Self::Back];

    const fn opposite(self) -> Self {
        match self {
            Self::Ahead => Self::Back,
            Self::Back => Self::Ahead,
        }
    }

    /// Ahead where the number is above zero, back where it is below.
    const fn of_sign(sign: i64) -> Option<Self> {
        match sign {
            0 => None,
            1.. => Some(Self::Ahead),
            _ => Some(Self::Back),
        }
    }
}

/// How a direction was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// One point sees the packets later than the other, and the answers
    /// earlier.
    Delay,
    /// One point misses more of the packets than the other.
    Loss,
    /// Neither told: packets pass the points in the order these were named.
    Order,
}

impl Learned {
    /// The word for it in machine-readable output.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Loss => "loss",
            Self::Order => "order",
        }
    }
}

/// The packets of one way between hosts that one point saw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    /// Times of the first and the last that both points saw.
    pub first: i64,
    pub last: i64,
    /// Packets that both points saw.
    matched: u64,
    /// Packets between first and last that the other point did not see.
    lone: u64,
    /// More of these, of which both points saw another copy.
    copies: u64,
}

/// Where so many packets have a copy too many, one in this many of those that
/// both points saw, the capture took them twice.
const TWICE: u64 = 2;

impl Default for Edge {
    fn default() -> Self {
        Self {
            first: i64::MAX,
            last: i64::MIN,
            matched: 0,
            lone: 0,
            copies: 0,
        }
    }
}

impl Edge {
    pub(super) fn see(&mut self, ts_ns: i64) {
        self.first = self.first.min(ts_ns);
        self.last = self.last.max(ts_ns);
        self.matched += 1;
    }

    /// Whether the point captured packets twice, as a mirror does that copies
    /// them where they come in and where they go out: that is no loss.
    pub(super) const fn twice(&self) -> bool {
        self.copies > 0 && self.copies * TWICE >= self.matched
    }

    /// Packets that the other point missed, as far as that can be told.
    const fn missed(&self) -> i64 {
        let copies = if self.twice() { 0 } else { self.copies };
        (self.lone + copies) as i64
    }

    /// Counts the packets of `seen` that have no link, between first and last.
    pub(super) fn count(
        ways: &mut [WayState],
        flows: &Flows,
        seen: &[Seen],
        links: &[u32],
        edge: impl Fn(&mut WayState) -> &mut Self,
    ) {
        for (seen, link) in seen.iter().zip(links) {
            if *link == super::NONE {
                let edge = edge(&mut ways[flows.way(seen.flow)]);
                let within = (edge.first..=edge.last).contains(&seen.ts_ns);
                edge.lone += u64::from(within && !seen.copy);
                edge.copies += u64::from(within && seen.copy);
            }
        }
    }
}

/// What is known of a directed pair of hosts along a leg.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WayState {
    pub near: Edge,
    pub far: Edge,
    pub bound: Option<(Bound, Learned)>,
}

/// Learns the directions that delays give away: packets take time, so what is
/// bound ahead shows at the far point later than what is bound back, whatever
/// the clocks say.
pub(super) fn by_delay(ways: &mut [WayState], flows: &Flows, pace: &Pace, synced: bool) {
    for way in 0..ways.len() {
        let this = pace.way(way);
        if this.count() == 0 {
            continue;
        }
        if synced {
            let bound = Bound::of_sign(this.middle);
            ways[way].bound = bound.map(|bound| (bound, Learned::Delay));
            continue;
        }
        let Some(reverse) = flows.reverse(way).filter(|reverse| way < *reverse) else {
            continue;
        };
        let other = pace.way(reverse);
        let sparser = if this.count() < other.count() {
            this
        } else {
            other
        };
        let mut apart: Vec<i64> = sparser
            .times()
            .filter_map(|ts| Some(this.at(ts)?.saturating_sub(other.at(ts)?)))
            .collect();
        apart.sort_unstable();
        let middle = apart.get(apart.len() / 2).copied().unwrap_or(0);
        if let Some(bound) = Bound::of_sign(middle) {
            ways[way].bound = Some((bound, Learned::Delay));
            ways[reverse].bound = Some((bound.opposite(), Learned::Delay));
        }
    }
}

/// Learns the directions of ways without answers, once the clocks' offset is
/// known from others.
pub(super) fn by_offset(ways: &mut [WayState], pace: &Pace, offset: &Offset) {
    for (way, state) in ways.iter_mut().enumerate() {
        let this = pace.way(way);
        if state.bound.is_some() || this.count() == 0 {
            continue;
        }
        let mut delays: Vec<i64> = this
            .times()
            .filter_map(|ts| Some(this.at(ts)?.saturating_sub(offset.at(ts))))
            .collect();
        delays.sort_unstable();
        let middle = delays.get(delays.len() / 2).copied().unwrap_or(0);
        state.bound = Bound::of_sign(middle).map(|bound| (bound, Learned::Delay));
    }
}

/// Gives a direction to every way that can have one.
pub(super) fn by_loss(ways: &mut [WayState], flows: &Flows, pace: &Pace) {
    let lead = |state: &WayState| state.near.missed() - state.far.missed();
    for way in 0..ways.len() {
        if ways[way].bound.is_some() || pace.way(way).count() == 0 {
            continue;
        }
        let reverse = flows.reverse(way);
        if let Some((bound, learned)) = reverse.and_then(|way| ways[way].bound) {
            ways[way].bound = Some((bound.opposite(), learned));
            continue;
        }
        // What is missed of the answers counts the other way round.
        let answers = reverse.map_or(0, |reverse| lead(&ways[reverse]));
        ways[way].bound = Some(match Bound::of_sign(lead(&ways[way]) - answers) {
            Some(bound) => (bound, Learned::Loss),
            None => (Bound::Ahead, Learned::Order),
        });
    }
    // Ways of which nothing was seen twice, where the answers were.
    for way in 0..ways.len() {
        if ways[way].bound.is_none() {
            let reverse = flows.reverse(way).and_then(|way| ways[way].bound);
            ways[way].bound = reverse.map(|(bound, learned)| (bound.opposite(), learned));
        }
    }
}
