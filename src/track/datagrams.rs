//! Datagrams: PSNs of unreliable datagram queue pairs.
//!
//! A datagram queue pair numbers what it sends whomever it goes to, so the
//! numbers are followed by sender; a capture that does not hold all its
//! destinations shows gaps that are no loss.

use std::{collections::HashMap, net::IpAddr};

use super::{
    EventKind, Flow, Listener, Record,
    open::Open,
    sequence::{Place, Sequence},
    state::{Earlier, Likeness},
};
use crate::wire::types::QpNumber;

/// Senders followed; beyond, all begin anew.
const MAX_SENDERS: usize = 1 << 16;
/// A sender whose PSN jumps further began anew.
const FAR: i64 = 1 << 16;

/// The senders of datagrams.
#[derive(Debug, Default)]
pub(super) struct Senders {
    by_sender: HashMap<(IpAddr, QpNumber), Sequence, foldhash::fast::RandomState>,
}

impl Senders {
    /// Takes in a datagram.
    pub fn datagram<L: Listener>(
        &mut self,
        flow: &mut Flow,
        record: &Record,
        earlier: Option<Earlier>,
        window_ns: i64,
        listener: &mut L,
    ) {
        let Some(src_qp) = record.src_qp else {
            flow.untracked += 1;
            return;
        };
        flow.src_qp = Some(src_qp);
        if self.by_sender.len() >= MAX_SENDERS {
            self.by_sender.clear();
        }
        let sequence = self.by_sender.entry((record.flow.src, src_qp)).or_default();
        let pos = sequence.position(record.psn);
        let place = sequence.place(pos);
        flow.requests.packets += 1;
        if flow.requests.packets == 1 {
            flow.first_psn = record.psn;
        }
        flow.last_psn = record.psn;
        let kind = match place {
            Place::Ahead(gap) if i64::from(gap) <= FAR => {
                flow.requests.gaps += 1;
                flow.requests.skipped += u64::from(gap);
                flow.requests.missing += u64::from(gap);
                let next = sequence.next();
                sequence.skip_to(pos, 1, [(next, pos)]);
                flow.requests.new += 1;
                Some(EventKind::Gap {
                    missing: gap,
                    responses: false,
                })
            }
            Place::Hole => {
                sequence.fill(pos, 1);
                flow.requests.reordered += 1;
                // The gap may have come to light in another flow.
                flow.requests.missing = flow.requests.missing.saturating_sub(1);
                Some(EventKind::Reordered { responses: false })
            }
            Place::Seen if sequence.next() - pos <= FAR => {
                let copy = earlier.is_some_and(|earlier| {
                    earlier.age_ns <= window_ns && earlier.likeness != Likeness::Different
                });
                if copy {
                    flow.requests.mirror_duplicates += 1;
                    Some(EventKind::MirrorDuplicate)
                } else {
                    flow.requests.duplicates += 1;
                    Some(EventKind::Duplicate)
                }
            }
            // The next one, the first one, or a sender that began anew.
            _ => {
                *sequence = Sequence::default();
                sequence.advance(pos, 1);
                flow.requests.new += 1;
                None
            }
        };
        let new = !matches!(
            kind,
            Some(EventKind::MirrorDuplicate | EventKind::Duplicate)
        );
        if new {
            flow.goodput_bytes += u64::from(record.payload_len);
            let open = Open::new(record, pos, 1);
            flow.ended(&open, None, listener);
        }
        if let Some(kind) = kind {
            flow.emit(listener, record, kind);
        }
    }
}
