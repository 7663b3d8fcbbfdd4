//! The same traffic captured at two points or more: what was lost between
//! them, what was changed on the way, how long it took.
//!
//! A [`Collector`] takes in what each point saw and pairs packets up by flow,
//! packet sequence number, opcode and invariant CRC, which covers everything
//! that does not change from hop to hop. Where a capture cut the packets short
//! of their CRC, length and IPv4 identification stand in for it. Copies that
//! agree in all of this are told apart by time. Address translation is out of
//! scope: it changes the flow.
//!
//! All packets are held in memory: 40 bytes for each at each point, 4 for its
//! place in the order of matching, and 4 for its link to each neighbouring
//! point.

mod align;
mod clock;
mod join;
mod leg;
mod link;
mod pace;
mod point;
mod way;

use std::collections::HashMap;

pub use clock::{How, Offset};
pub use leg::{Changes, Counts, Delays, End, Fate, FlowLeg, Leg};
pub use point::{Collector, Point};
pub use way::{Bound, Learned};

use crate::{
    track::{FlowKey, IcrcState},
    wire::{opcode::Opcode, types::Psn},
};
use join::Side;
use link::{Found, link};
use pace::{Pace, Timing};
use point::{Flows, Seen};

/// A packet without a link.
const NONE: u32 = u32::MAX;

/// A packet as a point saw it.
#[derive(Debug, Clone, Copy)]
pub struct Sighting {
    /// Place of the point among all.
    pub point: usize,
    /// Number of the frame in its capture, from 1.
    pub frame: u64,
    /// Nanoseconds since 1970-01-01 00:00 UTC, by the point's own clock.
    pub ts_ns: i64,
    /// Flow the packet belongs to.
    pub flow: FlowKey,
    /// Operation.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: Psn,
    /// Outcome of the invariant CRC.
    pub icrc: IcrcState,
    /// Another copy, alike in everything, was seen at both points.
    pub copy: bool,
}

/// A packet that only one point of a leg saw.
#[derive(Debug, Clone, Copy)]
pub struct Lone {
    /// Which point that is.
    pub end: End,
    /// The packet there.
    pub seen: Sighting,
    /// What became of it.
    pub fate: Fate,
}

/// A packet that changed between two points.
#[derive(Debug, Clone, Copy)]
pub struct Changed {
    /// At the point it passed first.
    pub first: Sighting,
    /// At the point it passed second.
    pub second: Sighting,
    /// What changed.
    pub changes: Changes,
}

/// A packet that was seen on both sides of points that did not see it.
#[derive(Debug, Clone, Copy)]
pub struct Missed {
    /// Before the points that missed it, in the order these were named.
    pub near: Sighting,
    /// Beyond them.
    pub far: Sighting,
}

/// Packets that were seen again beyond points that did not see them.
#[derive(Debug, Default)]
struct Skips {
    ahead: HashMap<(usize, u32), (usize, u32)>,
    back: HashMap<(usize, u32), (usize, u32)>,
}

impl Skips {
    fn ahead(&self, point: usize, index: u32) -> bool {
        self.ahead.contains_key(&(point, index))
    }

    fn back(&self, point: usize, index: u32) -> bool {
        self.back.contains_key(&(point, index))
    }

    fn add(&mut self, near: (usize, u32), far: (usize, u32)) {
        self.ahead.insert(near, far);
        self.back.insert(far, near);
    }
}

/// What a leg needs to know of everything else.
struct SeenOn<'a> {
    flows: &'a Flows,
    points: &'a [Point],
    skips: &'a Skips,
}

impl Point {
    fn side(&self) -> Side<'_> {
        Side {
            seen: &self.seen,
            order: &self.order,
        }
    }
}

/// What the comparison found.
#[derive(Debug)]
pub struct Comparison {
    flows: Flows,
    points: Vec<Point>,
    legs: Vec<Leg>,
    skips: Skips,
}

impl Collector {
    /// Compares what the points saw, each with the next; `synced` when their
    /// clocks agree.
    #[must_use]
    pub fn compare(self, synced: bool) -> Comparison {
        let Self { flows, mut points } = self;
        for point in &mut points {
            point.sort(flows.len());
        }
        let pairs = points.len().saturating_sub(1);
        let mut legs: Vec<Leg> = (0..pairs)
            .map(|near| Leg::new(&flows, &mut points, near))
            .collect();
        let skips = skips(&flows, &points, &legs);
        for leg in &mut legs {
            leg.orient(&flows, &points, synced);
            leg.tally(&SeenOn {
                flows: &flows,
                points: &points,
                skips: &skips,
            });
        }
        Comparison {
            flows,
            points,
            legs,
            skips,
        }
    }
}

/// Finds packets again beyond points that did not see them, nearest first.
fn skips(flows: &Flows, points: &[Point], legs: &[Leg]) -> Skips {
    let mut skips = Skips::default();
    for over in 2..points.len() {
        for near in 0..points.len() - over {
            let far = near + over;
            let free = |point: usize, links: &[u32], skipped: &dyn Fn(u32) -> bool| {
                let order = points[point].order.iter().copied();
                order
                    .filter(|&index| {
                        let seen = &points[point].seen[index as usize];
                        links[index as usize] == NONE && !seen.copy && !skipped(index)
                    })
                    .collect::<Vec<u32>>()
            };
            let a = free(near, &legs[near].ahead, &|i| skips.ahead(near, i));
            let b = free(far, &legs[far - 1].back, &|i| skips.back(far, i));
            let paces: Vec<&Pace> = legs[near..far].iter().map(|leg| &leg.pace).collect();
            let timing = Timing {
                flows,
                paces: &paces,
            };
            let mut found = Vec::new();
            let (a, b) = (points[near].side().only(&a), points[far].side().only(&b));
            link(a, b, timing, true, |what| {
                if let Found::Pair(a, b) = what {
                    found.push((a, b));
                }
            });
            for (a, b) in found {
                skips.add((near, a), (far, b));
            }
        }
    }
    skips
}

impl Comparison {
    /// The points, in the order they were named.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// From each point to the next.
    #[must_use]
    pub fn legs(&self) -> &[Leg] {
        &self.legs
    }

    fn on(&self) -> SeenOn<'_> {
        SeenOn {
            flows: &self.flows,
            points: &self.points,
            skips: &self.skips,
        }
    }

    fn sighting(&self, point: usize, seen: &Seen) -> Sighting {
        Sighting {
            point,
            frame: seen.frame,
            ts_ns: seen.ts_ns,
            flow: self.flows.key(seen.flow),
            opcode: seen.opcode(),
            psn: seen.psn(),
            icrc: seen.icrc_state,
            copy: seen.copy,
        }
    }

    /// Packets that only one point of a leg saw, those of the near point
    /// first, each in the order of capture. What a point further on saw again
    /// is not among them.
    pub fn lone<'a>(&'a self, leg: &'a Leg) -> impl Iterator<Item = Lone> + 'a {
        let at = move |end: End, point: usize, links: &'a [u32]| {
            let seen = (0u32..).zip(&self.points[point].seen).zip(links);
            seen.filter(|(_, link)| **link == NONE)
                .filter_map(move |((index, seen), _)| {
                    let further = match end {
                        End::Near => self.skips.ahead(point, index),
                        End::Far => self.skips.back(point, index),
                    };
                    let fate = leg.fate(&self.on(), end, seen, further);
                    let seen = self.sighting(point, seen);
                    (fate != Fate::Missed).then_some(Lone { end, seen, fate })
                })
        };
        let near = at(End::Near, leg.near, &leg.ahead);
        near.chain(at(End::Far, leg.far, &leg.back))
    }

    /// Packets that changed along a leg, in the order of capture at the near
    /// point.
    pub fn changed<'a>(&'a self, leg: &'a Leg) -> impl Iterator<Item = Changed> + 'a {
        let near = self.points[leg.near].seen.iter().zip(&leg.ahead);
        near.filter_map(move |(a, link)| {
            let b = self.points[leg.far].seen.get(*link as usize)?;
            let (near, far) = ((leg.near, a), (leg.far, b));
            let (first, second) = match leg.bound(&self.flows, a)? {
                Bound::Ahead => (near, far),
                Bound::Back => (far, near),
            };
            let changes = Changes::between(first.1, second.1);
            (!changes.is_empty()).then(|| Changed {
                first: self.sighting(first.0, first.1),
                second: self.sighting(second.0, second.1),
                changes,
            })
        })
    }

    /// Packets that a point did not see and points on both sides of it did, in
    /// the order of points and of capture.
    #[must_use]
    pub fn missed(&self) -> Vec<Missed> {
        let at = |(point, index): (usize, u32)| {
            self.sighting(point, &self.points[point].seen[index as usize])
        };
        let mut skips: Vec<_> = self.skips.ahead.iter().collect();
        skips.sort_unstable();
        skips
            .into_iter()
            .filter(|((point, index), _)| {
                let seen = &self.points[*point].seen[*index as usize];
                let fate = self.legs[*point].fate(&self.on(), End::Near, seen, true);
                fate == Fate::Missed
            })
            .map(|(near, far)| Missed {
                near: at(*near),
                far: at(*far),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
