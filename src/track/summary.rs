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

    /// Counts one captured frame.
    pub fn add(&mut self, observed: &Observed) {
        self.frames += 1;
        match observed {
            Observed::Packet(record) => self.packet(record),
            Observed::FilteredOut => self.filtered_out += 1,
            Observed::Skipped(reason, link) => {
                self.skipped[*reason as usize] += 1;
                if *reason == Reason::UnsupportedLink {
                    *self.unsupported.entry(*link).or_default() += 1;
                }
            }
        }
    }

    fn packet(&mut self, record: &Record) {
        self.packets += 1;
        self.v1 += u64::from(record.v1);
        self.truncated += u64::from(record.truncated);
        self.malformed += u64::from(record.malformed);
        self.fragments += u64::from(record.fragment);
        self.congested += u64::from(record.ecn == 3);
        self.time_steps_back += u64::from(record.ts_ns < self.last_ts);
        self.last_ts = record.ts_ns;
        let (first, last) = self.time_range.unwrap_or((record.ts_ns, record.ts_ns));
        self.time_range = Some((first.min(record.ts_ns), last.max(record.ts_ns)));
        let operation = &mut self.operations[usize::from(record.opcode.0)];
        operation.0 += 1;
        operation.1 += u64::from(record.payload_len);
        self.icrc[record.icrc as usize] += 1;

        if self.by_flow {
            self.flow(record);
        }
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
