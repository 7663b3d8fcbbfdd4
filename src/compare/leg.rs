//! From one point to the next: what both saw, and what only one did.

use std::collections::BTreeMap;

use super::{
    NONE, Point, SeenOn,
    clock::Offset,
    join::{Join, Side},
    link::{Found, link, sure},
    pace::{Pace, Timing},
    point::{Flows, Seen},
    way::{self, Bound, Edge, Learned, WayState},
};
use crate::track::{FlowKey, IcrcState, Latency};

/// One of the two points of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The point that was named first.
    Near,
    /// The other one.
    Far,
}

/// What became of a packet that one point saw and the other did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It passed the first point, and not the second.
    Lost,
    /// The second point saw it, the first one did not.
    Only,
    /// It passed before the other capture began.
    Before,
    /// It passed after the other capture ended.
    After,
    /// Its hosts have no packet that both points saw: it does not pass the
    /// other point.
    Elsewhere,
    /// Points beyond the other one saw it: it passed, and was not captured.
    Missed,
    /// A copy of a packet that both points saw, where so many have one that it
    /// is the capture's doing.
    Twice,
}

impl Fate {
    /// All of them; the place of one is its number as `usize`.
    pub const ALL: [Self; 7] = [
        Self::Lost,
        Self::Only,
        Self::Before,
        Self::After,
        Self::Elsewhere,
        Self::Missed,
        Self::Twice,
    ];
}

/// Packets of one leg or one flow, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that both points saw.
    pub matched: u64,
    /// Of these, packets that something changed, each once.
    pub changed: u64,
    /// Of these, marked congestion experienced between the points.
    pub ce_marked: u64,
    /// Of these, with ECN bits changed in another way.
    pub ecn_changed: u64,
    /// Of these, with another DSCP.
    pub dscp_changed: u64,
    /// Of these, with an invariant CRC that was right at the first point and
    /// wrong at the second.
    pub corrupted: u64,
    /// Of these, the other way round: a damaged capture, or a wrong idea of
    /// the direction.
    pub mended: u64,
    fates: [u64; Fate::ALL.len()],
}

impl Counts {
    /// Packets with this fate.
    #[must_use]
    pub const fn fate(&self, fate: Fate) -> u64 {
        self.fates[fate as usize]
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.matched += other.matched;
        self.changed += other.changed;
        self.ce_marked += other.ce_marked;
        self.ecn_changed += other.ecn_changed;
        self.dscp_changed += other.dscp_changed;
        self.corrupted += other.corrupted;
        self.mended += other.mended;
        for (sum, more) in self.fates.iter_mut().zip(other.fates) {
            *sum += more;
        }
    }
}

/// Times that packets took from the first point to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// Shortest.
    pub min_ns: i64,
    /// Half are no longer; right to 1 %, as the next one.
    pub p50_ns: u64,
    /// 99 of 100 are no longer.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// One flow along a leg.
#[derive(Debug, Clone, Copy)]
pub struct FlowLeg {
    /// The flow.
    pub key: FlowKey,
    /// Which way it goes and how that was learned; `None` when no packet
    /// between its hosts was seen by both points.
    pub bound: Option<(Bound, Learned)>,
    /// Packets that the near point saw.
    pub near: u64,
    /// Packets that the far point saw.
    pub far: u64,
    /// Packets by what became of them.
    pub counts: Counts,
    /// Times of those that both points saw.
    pub delays: Option<Delays>,
}

/// From one point to the next.
#[derive(Debug)]
pub struct Leg {
    /// Place of the near point among all.
    pub near: usize,
    /// Place of the far point.
    pub far: usize,
    /// How far the clocks are apart; `None` when no packet was seen by both.
    pub offset: Option<Offset>,
    /// Every flow that one of the points saw, in the order they appeared.
    pub flows: Vec<FlowLeg>,
    /// All flows together.
    pub counts: Counts,
    /// Steps of TTL or hop limit from the first point to the second, and how
    /// many packets went so many steps.
    pub hops: BTreeMap<(Bound, i16), u64>,
    pub(super) ahead: Vec<u32>,
    pub(super) back: Vec<u32>,
    pub(super) pace: Pace,
    pub(super) ways: Vec<WayState>,
}

impl Leg {
    /// Finds the packets that both points saw.
    pub(super) fn new(flows: &Flows, points: &mut [Point], near: usize) -> Self {
        let far = near + 1;
        let mut pace = Pace::new(flows.ways());
        let (a, b) = (points[near].side(), points[far].side());
        sure(a, b, |a, b| pace.add(flows.way(a.flow), a.ts_ns, b.ts_ns));
        pace.settle();
        let mut ahead = vec![NONE; a.seen.len()];
        let mut back = vec![NONE; b.seen.len()];
        let mut copies = Vec::new();
        let mut alike = Vec::new();
        let timing = Timing {
            flows,
            paces: &[&pace],
        };
        link(a, b, timing, false, |found| match found {
            Found::Pair(a, b) => {
                ahead[a as usize] = b;
                back[b as usize] = a;
            }
            Found::NearCopy(a) => copies.push((near, a)),
            Found::FarCopy(b) => copies.push((far, b)),
            Found::Alike(a) => alike.push(a),
        });
        // Packets that no print tells apart say how long they took all the same,
        // where there are no others.
        let unsure = |way: usize| pace.way(way).count() == 0;
        let pairs = a.seen.iter().zip(&ahead).filter_map(|(a, &link)| {
            let b = b.seen.get(link as usize)?;
            let way = flows.way(a.flow);
            unsure(way).then_some((way, a.ts_ns, b.ts_ns))
        });
        let pairs: Vec<_> = pairs.collect();
        if !pairs.is_empty() {
            for (way, near_ns, far_ns) in pairs {
                pace.add(way, near_ns, far_ns);
            }
            pace.settle();
        }
        for (point, index) in copies {
            points[point].seen[index as usize].copy = true;
        }
        for index in alike {
            points[near].seen[index as usize].alike = true;
        }
        Self {
            near,
            far,
            offset: None,
            flows: Vec::new(),
            counts: Counts::default(),
            hops: BTreeMap::new(),
            ahead,
            back,
            pace,
            ways: vec![WayState::default(); flows.ways()],
        }
    }

    /// Learns which way packets go and how far the clocks are apart.
    pub(super) fn orient(&mut self, flows: &Flows, points: &[Point], synced: bool) {
        let (near, far) = (&points[self.near].seen, &points[self.far].seen);
        let mut ways = std::mem::take(&mut self.ways);
        for (a, &link) in near.iter().zip(&self.ahead) {
            if let Some(b) = far.get(link as usize) {
                let way = &mut ways[flows.way(a.flow)];
                way.near.see(a.ts_ns);
                way.far.see(b.ts_ns);
            }
        }
        Edge::count(&mut ways, flows, near, &self.ahead, |way| &mut way.near);
        Edge::count(&mut ways, flows, far, &self.back, |way| &mut way.far);
        let find = |ways: &[WayState]| {
            let of = |alike: bool| {
                Offset::find(|| {
                    let near = near.iter().zip(&self.ahead);
                    near.filter_map(|(a, &link)| {
                        let b = far.get(link as usize).filter(|_| alike || !a.alike)?;
                        let (bound, _) = ways[flows.way(a.flow)].bound?;
                        Some((bound, a.ts_ns, b.ts_ns))
                    })
                })
            };
            of(false).or_else(|| of(true))
        };
        way::by_delay(&mut ways, flows, &self.pace, synced);
        if synced {
            self.offset = Some(Offset::synced());
        } else if let Some(offset) = find(&ways) {
            way::by_offset(&mut ways, &self.pace, &offset);
        }
        way::by_loss(&mut ways, flows, &self.pace);
        if !synced {
            self.offset = find(&ways);
        }
        self.ways = ways;
    }

    /// Which way a flow's packets go.
    pub(super) fn bound(&self, flows: &Flows, seen: &Seen) -> Option<Bound> {
        self.ways[flows.way(seen.flow)]
            .bound
            .map(|(bound, _)| bound)
    }

    /// What became of a packet that `end` saw and the other one did not.
    pub(super) fn fate(&self, on: &SeenOn<'_>, end: End, seen: &Seen, further: bool) -> Fate {
        let way = &self.ways[on.flows.way(seen.flow)];
        let edge = match end {
            End::Near => &way.near,
            End::Far => &way.far,
        };
        if seen.copy && edge.twice() {
            return Fate::Twice;
        }
        if let Some(fate) = self.outside(on, end, seen) {
            return fate;
        }
        let Some((bound, _)) = way.bound else {
            return Fate::Elsewhere;
        };
        match (bound, end) {
            _ if further => Fate::Missed,
            (Bound::Ahead, End::Near) | (Bound::Back, End::Far) => Fate::Lost,
            (Bound::Ahead, End::Far) | (Bound::Back, End::Near) => Fate::Only,
        }
    }

    /// Whether a packet passed the other point when nothing was captured
    /// there. Between two packets that both points saw it did not.
    fn outside(&self, on: &SeenOn<'_>, end: End, seen: &Seen) -> Option<Fate> {
        let way = on.flows.way(seen.flow);
        let state = &self.ways[way];
        let (edge, other, there) = match end {
            End::Near => (
                &state.near,
                self.far,
                self.pace.arrival(on.flows, way, seen.ts_ns),
            ),
            End::Far => (
                &state.far,
                self.near,
                self.pace.departure(on.flows, way, seen.ts_ns),
            ),
        };
        let (first, last) = on.points[other].time_range?;
        let there = there?;
        let slack = i64::try_from(self.pace.spread(on.flows, way)).unwrap_or(i64::MAX);
        let seen_before = edge.first <= seen.ts_ns;
        let seen_after = edge.last >= seen.ts_ns;
        if !seen_before && there < first.saturating_add(slack) {
            Some(Fate::Before)
        } else if !seen_after && there > last.saturating_sub(slack) {
            Some(Fate::After)
        } else {
            None
        }
    }

    /// Counts, flow by flow.
    pub(super) fn tally(&mut self, on: &SeenOn<'_>) {
        let mut flows = Vec::new();
        let (near, far) = (on.points[self.near].side(), on.points[self.far].side());
        for (a, b) in Join::new(near, far, |seen| seen.flow) {
            let Some(flow) = self.flow(on, near.only(a), far.only(b)) else {
                continue;
            };
            self.counts.add(&flow.counts);
            flows.push(flow);
        }
        self.flows = flows;
    }

    fn flow(&mut self, on: &SeenOn<'_>, near: Side<'_>, far: Side<'_>) -> Option<FlowLeg> {
        let number = near
            .order
            .first()
            .map(|&index| near.get(index).flow)
            .or_else(|| far.order.first().map(|&index| far.get(index).flow))?;
        let bound = self.ways[on.flows.way(number)].bound;
        let mut counts = Counts::default();
        let mut times = Times::default();
        let mut unsure = Times::default();
        for &index in near.order {
            let a = near.get(index);
            let link = self.ahead[index as usize];
            let Some(b) = far.seen.get(link as usize) else {
                let fate = self.fate(on, End::Near, a, on.skips.ahead(self.near, index));
                counts.fates[fate as usize] += 1;
                continue;
            };
            counts.matched += 1;
            let Some((bound, _)) = bound else { continue };
            let delta = b.ts_ns.saturating_sub(a.ts_ns);
            let delay = delta.saturating_sub(self.offset.map_or(0, |offset| offset.at(a.ts_ns)));
            let (first, second, delay) = match bound {
                Bound::Ahead => (a, b, delay),
                Bound::Back => (b, a, delay.saturating_neg()),
            };
            if a.alike {
                unsure.add(delay);
            } else {
                times.add(delay);
            }
            let hops = i16::from(first.ttl) - i16::from(second.ttl);
            *self.hops.entry((bound, hops)).or_default() += 1;
            Changes::between(first, second).count(&mut counts);
        }
        for &index in far.order {
            if self.back[index as usize] == NONE {
                let b = far.get(index);
                let skipped = on.skips.back(self.far, index);
                let fate = self.fate(on, End::Far, b, skipped);
                // Told where the skip begins.
                if fate != Fate::Missed {
                    counts.fates[fate as usize] += 1;
                }
            }
        }
        Some(FlowLeg {
            key: on.flows.key(number),
            bound,
            near: near.order.len() as u64,
            far: far.order.len() as u64,
            counts,
            delays: times.delays().or_else(|| unsure.delays()),
        })
    }
}

/// Times of one flow.
#[derive(Default)]
struct Times {
    min_ns: Option<i64>,
    latency: Latency,
}

impl Times {
    fn add(&mut self, ns: i64) {
        self.min_ns = Some(self.min_ns.map_or(ns, |min| min.min(ns)));
        self.latency.add(ns);
    }

    fn delays(&self) -> Option<Delays> {
        Some(Delays {
            min_ns: self.min_ns?,
            p50_ns: self.latency.quantile(0.5)?,
            p99_ns: self.latency.quantile(0.99)?,
            max_ns: self.latency.max()?,
        })
    }
}

/// What changed of a packet between two points: before and after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Explicit congestion notification bits.
    pub ecn: Option<(u8, u8)>,
    /// Differentiated services code point.
    pub dscp: Option<(u8, u8)>,
    /// Outcome of the invariant CRC.
    pub icrc: Option<(IcrcState, IcrcState)>,
}

impl Changes {
    pub(super) fn between(first: &Seen, second: &Seen) -> Self {
        let differ = |a: u8, b: u8| (a != b).then_some((a, b));
        let icrc = (first.icrc_state, second.icrc_state);
        let checked = icrc.0 != IcrcState::Unverifiable && icrc.1 != IcrcState::Unverifiable;
        Self {
            ecn: differ(first.ecn(), second.ecn()),
            dscp: differ(first.dscp(), second.dscp()),
            icrc: (checked && icrc.0 != icrc.1).then_some(icrc),
        }
    }

    /// Whether nothing changed.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.ecn.is_none() && self.dscp.is_none() && self.icrc.is_none()
    }

    fn count(self, counts: &mut Counts) {
        let ce = self.ecn.is_some_and(|(_, after)| after == 3);
        let broken = self
            .icrc
            .is_some_and(|(_, after)| after == IcrcState::Invalid);
        counts.changed += u64::from(!self.is_empty());
        counts.ce_marked += u64::from(ce);
        counts.ecn_changed += u64::from(self.ecn.is_some() && !ce);
        counts.dscp_changed += u64::from(self.dscp.is_some());
        counts.corrupted += u64::from(broken);
        counts.mended += u64::from(self.icrc.is_some() && !broken);
    }
}
