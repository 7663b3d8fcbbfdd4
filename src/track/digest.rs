//! A stretch of a capture, decoded: what can be made of packets before their
//! order matters, so that it can be done on several processors at once.

use super::{
    Observed, Record, Summary,
    brief::{Brief, InStretch, Numbers},
    record::Facts,
};
use crate::{Options, source::Batch, wire::opcode::Opcode};

/// One packet of a stretch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entry {
    Plain(Brief),
    /// Place in [`Digest::records`].
    Other(u32),
}

// A cache line: the tracker reads them one after the other.
const _: () = assert!(size_of::<Entry>() == 64);

/// The packets of a batch, decoded and counted; [`super::Tracker::add_all`]
/// and [`Summary::absorb`] take them in. Meant to be used again for the next
/// batch.
#[derive(Debug)]
pub struct Digest {
    /// Longer than what is in use: entries are written in place.
    entries: Vec<Entry>,
    used: usize,
    /// Packets that are not plain.
    pub(super) records: Vec<Record>,
    pub(super) numbers: Numbers,
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
            entries: Vec::new(),
            used: 0,
            records: Vec::new(),
            numbers: Numbers::default(),
            summary: Summary::without_flows(),
        }
    }
}

impl Digest {
    /// Decodes the packets of a batch, in place of what was decoded before.
    pub fn decode(&mut self, batch: &Batch, options: &Options) {
        if self.entries.len() < batch.len() {
            self.entries.resize(batch.len(), Entry::Other(0));
        }
        self.records.clear();
        self.numbers.clear();
        self.summary = Summary::without_flows();
        self.used = 0;
        let mut counts = PlainCounts::default();
        for raw in batch.packets() {
            self.summary.links.add(raw.link);
            // Not full: a batch has no more packets than were made room for.
            let Some(entry) = self.entries.get_mut(self.used) else {
                break;
            };
            if let Some(brief) = Brief::of(&raw, *options, &mut self.numbers) {
                counts.add(&brief);
                self.summary.pass(brief.ts_ns);
                *entry = Entry::Plain(brief);
                self.used += 1;
                continue;
            }
            let observed = Observed::of(&raw, options);
            self.summary.add(&observed);
            if let Observed::Packet(record) = observed {
                *entry = Entry::Other(self.records.len() as u32);
                self.used += 1;
                self.records.push(record);
            }
        }
        counts.add_to(&mut self.summary);
    }

    /// The packets, in order.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries[..self.used]
    }

    /// Counts over the batch, flows left out.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The packets at length, in order.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.entries().iter().map(|entry| match entry {
            Entry::Plain(brief) => {
                let numbers = &self.numbers;
                InStretch { brief, numbers }.record().into_owned()
            }
            Entry::Other(place) => self.records[*place as usize].clone(),
        })
    }
}
