//! Counts over a whole capture: by operation, by flow, by outcome.

use std::collections::{BTreeMap, HashMap};

use super::{FlowKey, IcrcState, Observed, Record};
use crate::{frame::Reason, source::LinkType, wire::opcode::Opcode};

/// Flows counted one by one; packets of further flows are counted together.
pub const MAX_FLOWS: usize = 1 << 17;

/// Counts of one directed flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowCount {
    /// Packets.
    pub packets: u64,
    /// Payload bytes.
    pub payload: u64,
    /// NAKs and RNR NAKs carried by this flow.
    pub naks: u64,
    /// Packets whose invariant CRC was checked.
    pub icrc_checked: u64,
    /// Packets whose invariant CRC is wrong.
    pub icrc_invalid: u64,
    /// Place in the order of first appearance.
    pub order: u64,
}

/// Counts of frames by link type: few different ones in a capture, so a short
/// list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkCounts {
    list: Vec<(LinkType, u64)>,
}

impl LinkCounts {
    /// Counts one frame.
    #[inline]
    pub fn add(&mut self, link: LinkType) {
        self.add_many(link, 1);
    }

    fn add_many(&mut self, link: LinkType, frames: u64) {
        match self.list.iter_mut().find(|(known, _)| *known == link) {
            Some((_, count)) => *count += frames,
            None => self.list.push((link, frames)),
        }
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Counts in the order in which the link types appeared.
    pub fn iter(&self) -> impl Iterator<Item = (LinkType, u64)> {
        self.list.iter().copied()
    }
}

/// What is counted of a RoCE packet besides its operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    pub truncated: bool,
    pub malformed: bool,
    pub congested: bool,
    pub icrc: IcrcState,
}

/// Counts over all packets seen so far.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Captured frames, of every kind.
    pub frames: u64,
    /// RoCE packets, those filtered out not counted.
    pub packets: u64,
    /// RoCE packets that a filter left out.
    pub filtered_out: u64,
    /// Of `packets`, RoCEv1.
    pub v1: u64,
    /// Of `packets`, cut by the capture.
    pub truncated: u64,
    /// Of `packets`, with lengths that contradict the opcode.
    pub malformed: u64,
    /// Of `packets`, first fragments of IP datagrams.
    pub fragments: u64,
    /// Of `packets`, marked congestion experienced.
    pub congested: u64,
    /// Packets whose time is before that of the packet in front of them.
    pub time_steps_back: u64,
    /// Time of the earliest and the latest packet, in nanoseconds.
    pub time_range: Option<(i64, i64)>,
    operations: [(u64, u64); 256],
    icrc: [u64; 3],
    skipped: [u64; Reason::ALL.len()],
    unsupported: BTreeMap<LinkType, u64>,
    /// Frames by link type, where they were counted; see
    /// [`Summary::add_links`].
    pub links: LinkCounts,
    /// Whether packets are counted by flow.
    by_flow: bool,
    flows: HashMap<FlowKey, FlowCount, foldhash::fast::RandomState>,
    /// Packets of flows beyond [`MAX_FLOWS`].
    pub beyond_cap: u64,
    /// Times of the packet that came first and of the one that came last.
    first_ts: i64,
    last_ts: i64,
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            frames: 0,
            packets: 0,
            filtered_out: 0,
            v1: 0,
            truncated: 0,
            malformed: 0,
            fragments: 0,
            congested: 0,
            time_steps_back: 0,
            time_range: None,
            operations: [(0, 0); 256],
            icrc: [0; 3],
            skipped: [0; Reason::ALL.len()],
            unsupported: BTreeMap::new(),
            links: LinkCounts::default(),
            by_flow: true,
            flows: HashMap::default(),
            beyond_cap: 0,
            first_ts: i64::MIN,
            last_ts: i64::MIN,
        }
    }
}

impl Summary {
    /// A summary that leaves out [`Summary::flows`], for use beside a tracker,
    /// which keeps them.
    #[must_use]
    pub fn without_flows() -> Self {
        Self {
            by_flow: false,
            ..Self::default()
        }
    }

    /// Takes in the link types of a batch. They are counted where frames are
    /// decoded, since a decoded packet does not carry its own.
    pub fn add_links(&mut self, links: &LinkCounts) {
        for (link, frames) in links.iter() {
            self.links.add_many(link, frames);
        }
    }

    /// Takes in the counts of the frames that follow, but for those by flow.
    pub fn absorb(&mut self, later: &Self) {
        for (sum, more) in [
            (&mut self.frames, later.frames),
            (&mut self.packets, later.packets),
            (&mut self.filtered_out, later.filtered_out),
            (&mut self.v1, later.v1),
            (&mut self.truncated, later.truncated),
            (&mut self.malformed, later.malformed),
            (&mut self.fragments, later.fragments),
            (&mut self.congested, later.congested),
            (&mut self.time_steps_back, later.time_steps_back),
        ] {
            *sum += more;
        }
        for (sum, (packets, payload)) in self.operations.iter_mut().zip(later.operations) {
            sum.0 += packets;
            sum.1 += payload;
        }
        let sums = self.icrc.iter_mut().chain(&mut self.skipped);
        for (sum, more) in sums.zip(later.icrc.iter().chain(&later.skipped)) {
            *sum += more;
        }
        for (link, frames) in &later.unsupported {
            *self.unsupported.entry(*link).or_default() += frames;
        }
        self.add_links(&later.links);
        if let Some((first, last)) = later.time_range {
            if self.time_range.is_none() {
                self.first_ts = later.first_ts;
            }
            let (from, to) = self.time_range.unwrap_or((first, last));
            self.time_range = Some((from.min(first), to.max(last)));
            self.time_steps_back += u64::from(later.first_ts < self.last_ts);
            self.last_ts = later.last_ts;
        }
    }

    /// Counts one captured frame.
    pub fn add(&mut self, observed: &Observed) {
        match observed {
            Observed::Packet(record) => {
                self.add_packet(record);
                if self.by_flow {
                    self.flow(record);
                }
                return;
            }
            Observed::FilteredOut => self.filtered_out += 1,
            Observed::Skipped(reason, link) => {
                self.skipped[*reason as usize] += 1;
                if *reason == Reason::UnsupportedLink {
                    *self.unsupported.entry(*link).or_default() += 1;
                }
            }
        }
        self.frames += 1;
    }

    /// Counts a RoCE packet in everything but its flow.
    fn add_packet(&mut self, record: &Record) {
        self.v1 += u64::from(record.v1);
        self.fragments += u64::from(record.fragment);
        self.pass(record.ts_ns);
        self.add_operations(record.opcode, 1, record.payload_len.into());
        let marks = Marks {
            truncated: record.truncated,
            malformed: record.malformed,
            congested: record.ecn == 3,
            icrc: record.icrc,
        };
        self.add_marks(marks, 1);
    }

    /// Takes note of the time of the next packet.
    #[inline]
    pub(super) fn pass(&mut self, ts_ns: i64) {
        self.time_steps_back += u64::from(ts_ns < self.last_ts);
        self.last_ts = ts_ns;
        let (first, last) = self.time_range.unwrap_or_else(|| {
            self.first_ts = ts_ns;
            (ts_ns, ts_ns)
        });
        self.time_range = Some((first.min(ts_ns), last.max(ts_ns)));
    }

    /// Counts packets of an operation.
    pub(super) const fn add_operations(&mut self, opcode: Opcode, packets: u64, payload: u64) {
        let operation = &mut self.operations[opcode.0 as usize];
        operation.0 += packets;
        operation.1 += payload;
    }

    /// Counts packets that have these marks.
    pub(super) const fn add_marks(&mut self, marks: Marks, packets: u64) {
        self.frames += packets;
        self.packets += packets;
        self.truncated += if marks.truncated { packets } else { 0 };
        self.malformed += if marks.malformed { packets } else { 0 };
        self.congested += if marks.congested { packets } else { 0 };
        self.icrc[marks.icrc as usize] += packets;
    }

    fn flow(&mut self, record: &Record) {
        let order = self.flows.len();
        if order >= MAX_FLOWS && !self.flows.contains_key(&record.flow) {
            self.beyond_cap += 1;
            return;
        }
        let flow = self.flows.entry(record.flow).or_insert(FlowCount {
            packets: 0,
            payload: 0,
            naks: 0,
            icrc_checked: 0,
            icrc_invalid: 0,
            order: order as u64,
        });
        flow.packets += 1;
        flow.payload += u64::from(record.payload_len);
        flow.naks += u64::from(record.aeth.is_some_and(|aeth| aeth.kind().is_nak()));
        flow.icrc_checked += u64::from(record.icrc != IcrcState::Unverifiable);
        flow.icrc_invalid += u64::from(record.icrc == IcrcState::Invalid);
    }

    /// Packets and payload bytes by operation, in the order of opcodes.
    pub fn operations(&self) -> impl Iterator<Item = (Opcode, u64, u64)> {
        (0..=255u8)
            .map(|opcode| (Opcode(opcode), self.operations[usize::from(opcode)]))
            .filter(|(_, (packets, _))| *packets != 0)
            .map(|(opcode, (packets, payload))| (opcode, packets, payload))
    }

    /// Packets whose invariant CRC ended in this state.
    #[must_use]
    pub const fn icrc(&self, state: IcrcState) -> u64 {
        self.icrc[state as usize]
    }

    /// Frames passed over, by reason; reasons that did not occur left out.
    pub fn skipped(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL
            .into_iter()
            .zip(self.skipped)
            .filter(|(_, count)| *count != 0)
    }

    /// Frames of link types that are not decoded.
    pub fn unsupported_links(&self) -> impl Iterator<Item = (LinkType, u64)> {
        self.unsupported.iter().map(|(link, count)| (*link, *count))
    }

    /// Flows, the one with most packets first; equal ones as they appeared.
    #[must_use]
    pub fn flows(&self) -> Vec<(FlowKey, FlowCount)> {
        let mut flows: Vec<_> = self.flows.iter().map(|(k, v)| (*k, *v)).collect();
        flows.sort_by_key(|(_, count)| (std::cmp::Reverse(count.packets), count.order));
        flows
    }
}
