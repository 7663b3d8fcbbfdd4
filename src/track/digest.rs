//! A stretch of a capture, decoded: what can be made of packets before their
//! order matters, so that it can be done on several processors at once.

use std::borrow::Cow;

use super::{
    Observed, Record, Summary,
    brief::{Brief, Class, InStretch, Numbers},
    burst::{Burst, End},
    flow::Size,
    pattern::Patterns,
    record::Facts,
};
use crate::{Options, source::Batch, wire::opcode::Opcode};

/// The packets of a batch, decoded and counted; [`super::Tracker::add_all`]
/// and [`Summary::absorb`] take them in. Meant to be used again for the next
/// batch.
#[derive(Debug)]
pub struct Digest {
    /// Longer than what is in use: they are written in place.
    briefs: Vec<Brief>,
    used: usize,
    /// What of them follows each other.
    bursts: Vec<Size>,
    /// Packets that are not plain: [`Class::Long`].
    pub(super) records: Vec<Record>,
    pub(super) numbers: Numbers,
    patterns: Patterns,
    summary: Summary,
}

/// Counts of plain packets by what they have in common: few numbers to change
/// a packet.
struct PlainCounts {
    operations: [(u32, u64); 256],
    marks: [u32; Brief::MARKS],
}

impl Default for PlainCounts {
    fn default() -> Self {
        Self {
            operations: [(0, 0); 256],
            marks: [0; Brief::MARKS],
        }
    }
}

impl PlainCounts {
    #[inline]
    fn add(&mut self, brief: &Brief) {
        let operation = &mut self.operations[usize::from(brief.opcode.0)];
        operation.0 += 1;
        operation.1 += u64::from(brief.payload_len);
        self.marks[brief.marks()] += 1;
    }

    fn add_to(&self, summary: &mut Summary) {
        for (opcode, (packets, payload)) in (0..=255).map(Opcode).zip(self.operations) {
            summary.add_operations(opcode, u64::from(packets), payload);
        }
        for (marks, count) in self.marks.into_iter().enumerate() {
            if count > 0 {
                summary.add_marks(Brief::marked(marks), u64::from(count));
            }
        }
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self {
            briefs: Vec::new(),
            used: 0,
            bursts: Vec::new(),
            records: Vec::new(),
            numbers: Numbers::default(),
            patterns: Patterns::default(),
            summary: Summary::without_flows(),
        }
    }
}

impl Digest {
    /// Decodes the packets of a batch, in place of what was decoded before.
    pub fn decode(&mut self, batch: &Batch, options: &Options) {
        if self.briefs.len() < batch.len() {
            self.briefs.resize(batch.len(), Brief::NONE);
        }
        self.bursts.clear();
        self.records.clear();
        self.numbers.clear();
        self.patterns.begin();
        self.summary = Summary::without_flows();
        self.used = 0;
        let mut counts = PlainCounts::default();
        let mut end = End::CLOSED;
        for raw in batch.packets() {
            self.summary.links.add(raw.link);
            // Not full: a batch has no more packets than were made room for.
            let Some(brief) = self.briefs.get_mut(self.used) else {
                break;
            };
            if let Some(link) = self.patterns.fill(brief, &raw, *options, &mut self.numbers) {
                counts.add(brief);
                self.summary.pass(brief.ts_ns);
                let joins = end.take(link, brief);
                match self.bursts.last_mut() {
                    Some(burst) if joins => burst.extend(brief),
                    _ => self.bursts.push(Size::brief(brief)),
                }
                self.used += 1;
                continue;
            }
            let observed = Observed::of(&raw, options);
            self.summary.add(&observed);
            if let Observed::Packet(record) = observed {
                *brief = Brief::long(self.records.len() as u32);
                self.bursts.push(Size::brief(brief));
                end = End::CLOSED;
                self.records.push(record);
                self.used += 1;
            }
        }
        counts.add_to(&mut self.summary);
    }

    /// The packets, in order.
    pub(super) fn briefs(&self) -> &[Brief] {
        &self.briefs[..self.used]
    }

    /// The packets, in order, those together that follow each other.
    #[inline]
    pub(super) fn bursts(&self) -> impl Iterator<Item = Burst<'_>> {
        let mut rest = self.briefs();
        self.bursts.iter().map_while(move |size| {
            let burst;
            (burst, rest) = Burst::split(rest, *size)?;
            Some(burst)
        })
    }

    /// A packet at length.
    pub(super) fn record<'a>(&'a self, brief: &'a Brief) -> Cow<'a, Record> {
        if brief.class == Class::Long {
            return Cow::Borrowed(&self.records[brief.flow as usize]);
        }
        let numbers = &self.numbers;
        Cow::Owned(InStretch { brief, numbers }.record().into_owned())
    }

    /// Counts over the batch, flows left out.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The packets at length, in order.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.briefs()
            .iter()
            .map(|brief| self.record(brief).into_owned())
    }
}
