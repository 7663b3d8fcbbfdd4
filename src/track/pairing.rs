//! Finding the flow that a flow answers, by its packet sequence numbers.
//!
//! RC packets name the queue pair they go to and not the one they come from.
//! So requests that wait for an answer are kept by addresses and PSN, and the
//! first answers of a flow are looked up there. Where several flows sent the
//! same PSN, those drop out that have not sent a PSN yet which is answered; and
//! the UDP source port may tell, which some drivers make of the two queue
//! pairs' numbers. Nothing is guessed: where nothing tells the candidates
//! apart, the flow stays without a peer.

use std::{collections::HashMap, net::IpAddr};

use crate::wire::types::{Psn, QpNumber};

/// Requests kept at most, over all flows; beyond, all are forgotten, and the
/// next ones begin anew.
const MAX_WAITING: usize = 1 << 18;
/// Requests of one flow that are kept before it is taken for one whose answers
/// are not captured.
const MAX_ADVERTISED: u32 = 4096;
/// Flows that may wait for an answer with the same PSN.
const MAX_ALIKE: usize = 256;
/// Answers that a flow's peer is looked for by; well below
/// [`MAX_ADVERTISED`], so that a flow that is no longer advertised does not
/// seem to drop out.
const MAX_ANSWERS: u16 = 1024;

type Host = (IpAddr, IpAddr, Psn);

/// Requests that wait for an answer, of flows whose peer is not known.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// How often all were forgotten.
    generation: u32,
    flows: HashMap<Host, Slots, foldhash::fast::RandomState>,
}

/// Flows, in the order in which they came: nearly always one, which needs no
/// memory of its own.
#[derive(Debug)]
enum Slots {
    One([u32; 1]),
    Many(Vec<u32>),
}

impl Slots {
    fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }

    fn add(&mut self, slot: u32) {
        let slots = self.as_slice();
        if slots.len() >= MAX_ALIKE || slots.contains(&slot) {
            return;
        }
        match self {
            Self::One([first]) => *self = Self::Many(vec![*first, slot]),
            Self::Many(many) => many.push(slot),
        }
    }

    fn retain(&mut self, mut usable: impl FnMut(&u32) -> bool) {
        match self {
            Self::One([first]) if usable(first) => {}
            Self::One(_) => *self = Self::Many(Vec::new()),
            Self::Many(many) => many.retain(usable),
        }
    }
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
            self.generation += 1;
        }
        let flows = self.flows.entry((src, dst, psn));
        flows
            .and_modify(|flows| flows.add(slot))
            .or_insert(Slots::One([slot]));
        true
    }

    /// The flows that an answer from `src` to `dst` with `psn` may be for, the
    /// one that waited longest first; those that are no longer `usable` are
    /// forgotten.
    pub fn candidates(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        psn: Psn,
        usable: impl FnMut(&u32) -> bool,
    ) -> Candidates<'_> {
        let generation = self.generation;
        let Some(flows) = self.flows.get_mut(&(dst, src, psn)) else {
            return Candidates {
                flows: &[],
                shared: false,
                generation,
            };
        };
        let before = flows.as_slice().len();
        flows.retain(usable);
        let flows = flows.as_slice();
        Candidates {
            shared: flows.len() < before,
            flows,
            generation,
        }
    }
}

/// Flows that an answer may be for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidates<'a> {
    pub flows: &'a [u32],
    /// Another flow had been one before it found its peer.
    pub shared: bool,
    generation: u32,
}

/// What the answers of a flow say so far about whom it answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Suspects {
    /// Flows that sent every PSN answered so far, before it was answered.
    flows: Vec<u32>,
    answers: u16,
    generation: u32,
    /// There were several at some time.
    several: bool,
}

/// Whom a flow answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub slot: u32,
    /// No other flow sent this PSN, so that there can be no mistake.
    pub certain: bool,
}

impl Suspects {
    /// Takes in the candidates for one more answer; `tells` says of one that
    /// the UDP source ports tell that it is the one.
    pub fn narrow(
        &mut self,
        candidates: Candidates<'_>,
        tells: impl Fn(u32) -> bool,
    ) -> Option<Found> {
        if candidates.flows.is_empty() || self.answers >= MAX_ANSWERS {
            return None;
        }
        if let ([slot], 0) = (candidates.flows, self.answers)
            && !candidates.shared
            && !self.several
        {
            // Nearly always: nobody else is to be remembered.
            let slot = *slot;
            return Some(Found {
                slot,
                certain: true,
            });
        }
        if self.answers == 0 || self.generation != candidates.generation {
            self.flows = candidates.flows.to_vec();
            self.generation = candidates.generation;
        } else {
            self.flows.retain(|slot| candidates.flows.contains(slot));
            if self.flows.is_empty() {
                // Contradictory, as after losses of the capture: begin anew.
                self.answers = 0;
                return None;
            }
        }
        self.answers += 1;
        self.several |= self.flows.len() > 1 || candidates.shared;
        if let [slot] = self.flows[..] {
            let certain = !self.several;
            return Some(Found { slot, certain });
        }
        let mut told = self.flows.iter().filter(|slot| tells(**slot));
        match (told.next(), told.next()) {
            (Some(slot), None) => Some(Found {
                slot: *slot,
                certain: true,
            }),
            _ => None,
        }
    }
}

/// The UDP source port that Linux drivers make of the two queue pairs of a
/// reliable connection, the same in both directions (`rdma_calc_flow_label`
/// and `rdma_flow_label_to_udp_sport` in `include/rdma/ib_verbs.h`).
pub(super) fn source_port(one: QpNumber, other: QpNumber) -> u16 {
    let product = u64::from(one.get()) * u64::from(other.get());
    let folded = product ^ product >> 20;
    let label = (folded ^ folded >> 40) & 0xf_ffff;
    ((label & 0x3fff) ^ label >> 14) as u16 | 0xc000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn candidates(flows: &[u32]) -> Candidates<'_> {
        Candidates {
            flows,
            shared: false,
            generation: 0,
        }
    }

    #[test]
    fn an_answer_meets_the_request_with_its_psn() {
        let mut waiting = Waiting::default();
        let mut advertised = 0;
        waiting.advertise(ip(1), ip(2), Psn::new(7), 3, &mut advertised);
        waiting.advertise(ip(1), ip(2), Psn::new(8), 4, &mut advertised);
        let mut ask = |src, dst, psn, without| {
            let usable = |slot: &u32| Some(*slot) != without;
            let found = waiting.candidates(ip(src), ip(dst), Psn::new(psn), usable);
            (found.flows.to_vec(), found.shared)
        };
        assert_eq!(ask(1, 2, 7, None), (vec![], false), "the wrong way");
        assert_eq!(ask(2, 1, 7, None), (vec![3], false));
        assert_eq!(ask(2, 1, 8, Some(4)), (vec![], true));
        assert_eq!(advertised, 2);
    }

    #[test]
    fn whoever_has_not_sent_what_is_answered_drops_out() {
        let silent = |_| false;
        let mut suspects = Suspects::default();
        assert_eq!(suspects.narrow(candidates(&[5, 6, 7]), silent), None);
        assert_eq!(suspects.narrow(candidates(&[7, 6]), silent), None);
        let found = Found {
            slot: 6,
            certain: false,
        };
        assert_eq!(suspects.narrow(candidates(&[6, 9]), silent), Some(found));
        let alone = Suspects::default().narrow(candidates(&[9]), silent);
        assert!(alone.is_some_and(|found| found.certain));
    }

    #[test]
    fn source_ports_tell_alike_flows_apart() {
        // As on the wire of Soft-RoCE of Linux 6.1.
        assert_eq!(source_port(QpNumber::new(0x1d), QpNumber::new(0x11)), 49645);
        assert_eq!(source_port(QpNumber::new(0x1b), QpNumber::new(0x1c)), 49908);
        let found = Suspects::default().narrow(candidates(&[5, 6]), |slot| slot == 6);
        assert_eq!(found.map(|found| found.slot), Some(6));
        let both = Suspects::default().narrow(candidates(&[5, 6]), |_| true);
        assert_eq!(both, None);
    }
}
