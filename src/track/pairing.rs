//! Finding the flow that a flow answers, by its packet sequence numbers.
//!
//! RC packets name the queue pair they go to and not the one they come from.
//! So requests that wait for an answer are kept by addresses and PSN, and the
//! first answers of a flow are looked up there.

use std::{collections::HashMap, net::IpAddr};

use crate::wire::types::Psn;

/// Requests kept at most, over all flows; beyond, all are forgotten, and the
/// next ones begin anew.
const MAX_WAITING: usize = 1 << 18;
/// Requests of one flow that are kept before it is taken for one whose answers
/// are not captured.
const MAX_ADVERTISED: u32 = 4096;
/// Flows that may wait for an answer with the same PSN.
const MAX_ALIKE: usize = 64;
/// What speaks for a candidate when it is the only one, and what is needed to
/// be believed.
const CERTAIN: u32 = 4;

type Host = (IpAddr, IpAddr, Psn);

/// Requests that wait for an answer, of flows whose peer is not known.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    flows: HashMap<Host, Vec<u32>, foldhash::fast::RandomState>,
}

impl Waiting {
    /// Takes note of a request from `src` to `dst` that an answer with `psn`
    /// will meet; `advertised` counts those of the flow.
    pub fn advertise(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        psn: Psn,
        slot: u32,
        advertised: &mut u32,
    ) {
        if *advertised >= MAX_ADVERTISED {
            return;
        }
        *advertised += 1;
        if self.flows.len() >= MAX_WAITING {
            self.flows.clear();
        }
        let flows = self.flows.entry((src, dst, psn)).or_default();
        if flows.len() < MAX_ALIKE && !flows.contains(&slot) {
            flows.push(slot);
        }
    }

    /// The flows, of those `usable`, that an answer from `src` to `dst` with
    /// `psn` may be for, the one that waited longest first.
    pub fn candidates(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        psn: Psn,
        usable: impl FnMut(&u32) -> bool,
    ) -> Vec<u32> {
        let Some(mut flows) = self.flows.remove(&(dst, src, psn)) else {
            return Vec::new();
        };
        flows.retain(usable);
        if flows.len() > 1 {
            // Others with the same PSN still wait.
            self.flows.insert((dst, src, psn), flows[1..].to_vec());
        }
        flows
    }
}

/// Weighs candidates for the peer of one flow; returns the one that is
/// believed. The first of several has waited longest, which speaks for it.
pub(super) fn vote(votes: &mut Vec<(u32, u32)>, candidates: &[u32]) -> Option<u32> {
    let alone = candidates.len() == 1;
    for (rank, slot) in candidates.iter().enumerate() {
        let weight = match (alone, rank) {
            (true, _) => CERTAIN,
            (false, 0) => 2,
            (false, _) => 1,
        };
        if let Some((_, sum)) = votes.iter_mut().find(|(voted, _)| voted == slot) {
            *sum += weight;
        } else if votes.len() < MAX_ALIKE {
            votes.push((*slot, weight));
        }
    }
    let best = votes.iter().max_by_key(|(_, sum)| *sum).copied()?;
    let others = votes.iter().filter(|(slot, _)| *slot != best.0);
    let second = others.map(|(_, sum)| *sum).max().unwrap_or(0);
    (best.1 >= CERTAIN && best.1 >= second * 2).then_some(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn an_answer_meets_the_request_with_its_psn() {
        let mut waiting = Waiting::default();
        let mut advertised = 0;
        waiting.advertise(ip(1), ip(2), Psn::new(7), 3, &mut advertised);
        waiting.advertise(ip(1), ip(2), Psn::new(8), 4, &mut advertised);
        assert!(
            waiting
                .candidates(ip(1), ip(2), Psn::new(7), |_| true)
                .is_empty()
        );
        assert_eq!(waiting.candidates(ip(2), ip(1), Psn::new(7), |_| true), [3]);
        assert!(
            waiting
                .candidates(ip(2), ip(1), Psn::new(7), |_| true)
                .is_empty()
        );
        assert!(
            waiting
                .candidates(ip(2), ip(1), Psn::new(8), |slot| *slot != 4)
                .is_empty()
        );
        assert_eq!(advertised, 2);
    }

    #[test]
    fn alike_flows_are_told_apart_by_turn() {
        let mut votes = Vec::new();
        assert_eq!(vote(&mut votes, &[5, 6]), None);
        assert_eq!(vote(&mut votes, &[5, 6]), Some(5));
        let mut votes = Vec::new();
        assert_eq!(vote(&mut votes, &[9]), Some(9), "alone is certain");
    }
}
