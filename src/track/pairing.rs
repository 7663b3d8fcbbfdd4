//! Finding the flow that a flow answers, by its packet sequence numbers.
//!
//! RC packets name the queue pair they go to and not the one they come from.
//! So requests that wait for an answer are kept by addresses and PSN, and the
//! first answers of a flow are looked up there. Where several flows sent the
//! same PSN, those drop out that have not sent a PSN yet which is answered.

use std::{collections::HashMap, net::IpAddr};

use crate::wire::types::Psn;

/// Requests kept at most, over all flows; beyond, all are forgotten, and the
/// next ones begin anew.
const MAX_WAITING: usize = 1 << 18;
/// Requests of one flow that are kept before it is taken for one whose answers
/// are not captured.
const MAX_ADVERTISED: u32 = 4096;
/// Flows that may wait for an answer with the same PSN.
const MAX_ALIKE: usize = 256;
/// Answers after which the flow that waited longest is believed, where nothing
/// tells the candidates apart; each mistake doubles them.
const PATIENCE: u16 = 8;
/// Answers after which it is believed at the latest.
const MAX_PATIENCE: u16 = 1024;

type Host = (IpAddr, IpAddr, Psn);

/// Requests that wait for an answer, of flows whose peer is not known.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    flows: HashMap<Host, Vec<u32>, foldhash::fast::RandomState>,
}

impl Waiting {
    /// Takes note of a request from `src` to `dst` that an answer with `psn`
    /// will meet; `advertised` counts those of the flow. False once there were
    /// too many of them.
    pub fn advertise(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        psn: Psn,
        slot: u32,
        advertised: &mut u32,
    ) -> bool {
        if *advertised >= MAX_ADVERTISED {
            return false;
        }
        *advertised += 1;
        if self.flows.len() >= MAX_WAITING {
            self.flows.clear();
        }
        let flows = self.flows.entry((src, dst, psn)).or_default();
        if flows.len() < MAX_ALIKE && !flows.contains(&slot) {
            flows.push(slot);
        }
        true
    }

    /// The flows that an answer from `src` to `dst` with `psn` may be for, the
    /// one that waited longest first; those that are no longer `usable` are
    /// forgotten, and the flag says whether there were any.
    pub fn candidates(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        psn: Psn,
        usable: impl FnMut(&u32) -> bool,
    ) -> (&[u32], bool) {
        let Some(flows) = self.flows.get_mut(&(dst, src, psn)) else {
            return (&[], false);
        };
        let before = flows.len();
        flows.retain(usable);
        (flows, flows.len() < before)
    }
}

/// What the answers of a flow say so far about whom it answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Suspects {
    /// Flows that sent every PSN answered so far, before it was answered.
    flows: Vec<u32>,
    answers: u16,
    /// Mistakes so far.
    mistakes: u8,
}

/// Whom a flow answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub slot: u32,
    /// No other flow sent this PSN, so that there can be no mistake.
    pub certain: bool,
}

impl Suspects {
    /// Begins anew after a mistake.
    pub fn restart(&mut self) {
        self.flows.clear();
        self.answers = 0;
        self.mistakes = self.mistakes.saturating_add(1);
    }

    /// Takes in the candidates for one more answer; `shared` says that another
    /// flow had been one before it found its peer.
    pub fn narrow(&mut self, candidates: &[u32], shared: bool) -> Option<Found> {
        if candidates.is_empty() {
            return None;
        }
        if self.answers == 0 {
            self.flows = candidates.to_vec();
        } else {
            self.flows.retain(|slot| candidates.contains(slot));
            if self.flows.is_empty() {
                // Contradictory, as after losses of the capture: begin anew.
                self.answers = 0;
                return None;
            }
        }
        self.answers = self.answers.saturating_add(1);
        let alone = self.flows.len() == 1;
        let patience = (PATIENCE << self.mistakes.min(7)).min(MAX_PATIENCE);
        (alone || self.answers >= patience).then(|| Found {
            slot: self.flows[0],
            certain: alone && candidates.len() == 1 && !shared,
        })
    }
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
        let mut ask = |src, dst, psn, without| {
            let usable = |slot: &u32| Some(*slot) != without;
            let (flows, shared) = waiting.candidates(ip(src), ip(dst), Psn::new(psn), usable);
            (flows.to_vec(), shared)
        };
        assert_eq!(ask(1, 2, 7, None), (vec![], false), "the wrong way");
        assert_eq!(ask(2, 1, 7, None), (vec![3], false));
        assert_eq!(ask(2, 1, 8, Some(4)), (vec![], true));
        assert_eq!(advertised, 2);
    }

    #[test]
    fn whoever_has_not_sent_what_is_answered_drops_out() {
        let mut suspects = Suspects::default();
        assert_eq!(suspects.narrow(&[5, 6, 7], false), None);
        assert_eq!(suspects.narrow(&[7, 6], false), None);
        let found = Found {
            slot: 6,
            certain: false,
        };
        assert_eq!(suspects.narrow(&[6, 9], false), Some(found));
        let alone = Suspects::default().narrow(&[9], false);
        assert!(alone.is_some_and(|found| found.certain));
    }

    #[test]
    fn alike_flows_are_told_apart_by_who_waited_longest() {
        let mut suspects = Suspects::default();
        let found = (0..PATIENCE).find_map(|_| suspects.narrow(&[5, 6], false));
        assert_eq!(found.map(|found| found.slot), Some(5));
    }
}
