//! What one point saw, as compactly as it can be kept.

use std::{collections::HashMap, net::IpAddr};

use crate::{
    track::{FlowKey, IcrcState, Record},
    wire::{opcode::Opcode, types::Psn},
};

type Index<K> = HashMap<K, u32, foldhash::fast::RandomState>;

/// Packets kept of one point: a place among them fits 32 bits.
const MAX_PACKETS: usize = u32::MAX as usize - 1;

/// A packet that a point saw. Millions are held at once, so it is kept small.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub ts_ns: i64,
    pub frame: u64,
    pub flow: u32,
    /// Packet sequence number and, in the low byte, the opcode.
    pub place: u32,
    icrc: u32,
    payload_len: u32,
    ip_id: u16,
    tos: u8,
    pub ttl: u8,
    pub icrc_state: IcrcState,
    has_icrc: bool,
    /// Another copy of the packet was seen at both points.
    pub copy: bool,
    /// The next point or this one saw several alike, so that time alone says
    /// which is which: how long such a packet took is not sure.
    pub alike: bool,
}

const _: () = assert!(
    size_of::<Seen>() == 40,
    "the documentation says how much memory a packet takes"
);

/// What copies of one packet have in common and packets sent again with
/// another IPv4 identification have not.
pub(super) type Print = (Option<u32>, u16, u32);

impl Seen {
    fn new(record: &Record, flow: u32) -> Self {
        Self {
            ts_ns: record.ts_ns,
            frame: record.frame,
            flow,
            place: record.psn.get() << 8 | u32::from(record.opcode.0),
            icrc: record.fingerprint.icrc.unwrap_or(0),
            payload_len: record.payload_len,
            ip_id: record.fingerprint.ip_id,
            tos: record.dscp << 2 | record.ecn,
            ttl: record.ttl,
            icrc_state: record.icrc,
            has_icrc: record.fingerprint.icrc.is_some(),
            copy: false,
            alike: false,
        }
    }

    /// Copies of one packet agree in this, changed on the way or not.
    pub(super) const fn place(&self) -> (u32, u32) {
        (self.flow, self.place)
    }

    /// Copies that nothing changed but what may change agree in this too.
    pub(super) fn print(&self) -> Print {
        (
            self.has_icrc.then_some(self.icrc),
            self.ip_id,
            self.payload_len,
        )
    }

    /// Copies agree in this whatever became of the invariant CRC.
    pub(super) const fn body(&self) -> (u16, u32) {
        (self.ip_id, self.payload_len)
    }

    /// Whether two packets alike in place and body may be one though their
    /// invariant CRCs are not alike: one point did not keep it, or it was
    /// right at one and wrong at the other.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        use IcrcState::{Invalid, Valid};
        self.has_icrc != other.has_icrc
            || matches!(
                (self.icrc_state, other.icrc_state),
                (Valid, Invalid) | (Invalid, Valid)
            )
    }

    pub(super) const fn psn(&self) -> Psn {
        Psn::new(self.place >> 8)
    }

    pub(super) const fn opcode(&self) -> Opcode {
        Opcode((self.place & 0xff) as u8)
    }

    pub(super) const fn ecn(&self) -> u8 {
        self.tos & 3
    }

    pub(super) const fn dscp(&self) -> u8 {
        self.tos >> 2
    }
}

/// The flows of all points, by number, and the hosts they run between.
#[derive(Debug, Default)]
pub(super) struct Flows {
    keys: Vec<FlowKey>,
    index: Index<FlowKey>,
    /// Number of the directed pair of hosts of each flow.
    ways: Vec<u32>,
    hosts: Vec<(IpAddr, IpAddr)>,
    host_index: Index<(IpAddr, IpAddr)>,
}

impl Flows {
    fn number(&mut self, key: FlowKey) -> u32 {
        if let Some(&flow) = self.index.get(&key) {
            return flow;
        }
        let flow = self.keys.len() as u32;
        let hosts = (key.src, key.dst);
        let next = self.hosts.len() as u32;
        let way = *self.host_index.entry(hosts).or_insert(next);
        if way == next {
            self.hosts.push(hosts);
        }
        self.keys.push(key);
        self.ways.push(way);
        self.index.insert(key, flow);
        flow
    }

    pub(super) fn key(&self, flow: u32) -> FlowKey {
        self.keys[flow as usize]
    }

    pub(super) const fn len(&self) -> usize {
        self.keys.len()
    }

    /// The directed pair of hosts that a flow runs between.
    pub(super) fn way(&self, flow: u32) -> usize {
        self.ways[flow as usize] as usize
    }

    pub(super) const fn ways(&self) -> usize {
        self.hosts.len()
    }

    /// The same hosts the other way round; none where a host talks to itself.
    pub(super) fn reverse(&self, way: usize) -> Option<usize> {
        let (src, dst) = self.hosts[way];
        let reverse = self.host_index.get(&(dst, src)).map(|way| *way as usize);
        reverse.filter(|reverse| *reverse != way)
    }
}

/// What was captured at one point.
#[derive(Debug)]
pub struct Point {
    /// Name of the capture.
    pub name: String,
    /// Captured frames of every kind.
    pub frames: u64,
    /// Packets that the capturing program reported as dropped; `None` when it
    /// reported nothing.
    pub dropped: Option<u64>,
    /// Time of the earliest and the latest frame of any kind.
    pub time_range: Option<(i64, i64)>,
    /// Time of the first packet, from which tables count.
    pub start_ns: Option<i64>,
    /// Packets beyond the number that is kept.
    pub beyond_cap: u64,
    pub(super) seen: Vec<Seen>,
    /// Places in `seen`, by flow, place in the flow, print and time.
    pub(super) order: Vec<u32>,
}

impl Point {
    fn new(name: String) -> Self {
        Self {
            name,
            frames: 0,
            dropped: None,
            time_range: None,
            start_ns: None,
            beyond_cap: 0,
            seen: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Packets that take part in the comparison.
    #[must_use]
    pub const fn packets(&self) -> usize {
        self.seen.len()
    }

    fn frame(&mut self, ts_ns: i64) {
        self.frames += 1;
        self.start_ns.get_or_insert(ts_ns);
        let (first, last) = self.time_range.unwrap_or((ts_ns, ts_ns));
        self.time_range = Some((first.min(ts_ns), last.max(ts_ns)));
    }

    pub(super) fn sort(&mut self, flows: usize) {
        // By flow first, by counting, so that what is compared at length is
        // short and, within a flow, nearly in order already.
        let mut ends = vec![0u32; flows + 1];
        for seen in &self.seen {
            ends[seen.flow as usize + 1] += 1;
        }
        for flow in 0..flows {
            ends[flow + 1] += ends[flow];
        }
        let mut next = ends.clone();
        let mut order = vec![0u32; self.seen.len()];
        for (index, seen) in self.seen.iter().enumerate() {
            let slot = &mut next[seen.flow as usize];
            order[*slot as usize] = index as u32;
            *slot += 1;
        }
        for bounds in ends.windows(2) {
            order[bounds[0] as usize..bounds[1] as usize].sort_unstable_by_key(|&index| {
                let seen = &self.seen[index as usize];
                (seen.place, seen.print(), index)
            });
        }
        self.order = order;
    }
}

/// Takes in what the points saw, one point after the other.
#[derive(Debug, Default)]
pub struct Collector {
    pub(super) flows: Flows,
    pub(super) points: Vec<Point>,
}

impl Collector {
    /// A collector without points.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a point; frames and packets are of this one from now on.
    pub fn point(&mut self, name: String) {
        self.points.push(Point::new(name));
    }

    /// Counts a captured frame of any kind: even one that is no RoCE tells
    /// that the capture was running.
    pub fn frame(&mut self, ts_ns: i64) {
        if let Some(point) = self.points.last_mut() {
            point.frame(ts_ns);
        }
    }

    /// Takes in a packet, of a frame that was counted.
    pub fn packet(&mut self, record: &Record) {
        let flow = self.flows.number(record.flow);
        let Some(point) = self.points.last_mut() else {
            return;
        };
        if point.seen.len() < MAX_PACKETS {
            point.seen.push(Seen::new(record, flow));
        } else {
            point.beyond_cap += 1;
        }
    }

    /// Takes down what the capturing program reported as dropped.
    pub fn dropped(&mut self, dropped: Option<u64>) {
        if let Some(point) = self.points.last_mut() {
            point.dropped = dropped;
        }
    }
}
