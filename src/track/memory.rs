//! Which memory of which responder the messages touched.
//!
//! How large a registered region is, and where it begins, is not on the wire:
//! what is known is what was touched, and what was refused.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use super::{Listener, Message, Operation};
use crate::wire::{
    aeth::AethKind,
    opcode::Verb,
    types::{QpNumber, RKey, VirtualAddr},
};

/// Keys kept one by one; accesses with further ones are counted together.
pub const MAX_REGIONS: usize = 1 << 16;
/// Intervals kept over all regions.
pub const MAX_INTERVALS: usize = 1 << 18;
/// Queue pairs named of a region.
const MAX_QPS: usize = 16;
/// Refused accesses described of a region.
const MAX_REFUSED: usize = 16;

/// What an operation does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// RDMA WRITE and ATOMIC WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Compare and swap, fetch and add.
    Atomic,
    /// FLUSH, which changes nothing.
    Flush,
}

impl Access {
    /// All kinds; a kind's place is its number as `usize`.
    pub const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Atomic, Self::Flush];

    /// What an operation does to memory that it names; `None` for those that
    /// name none.
    #[must_use]
    pub const fn of(operation: Operation) -> Option<Self> {
        match operation.verb {
            Verb::Write | Verb::AtomicWrite => Some(Self::Write),
            Verb::Read => Some(Self::Read),
            Verb::CompareSwap | Verb::FetchAdd => Some(Self::Atomic),
            Verb::Flush => Some(Self::Flush),
            _ => None,
        }
    }

    /// The word for memory that this was done to.
    #[must_use]
    pub const fn done(self) -> &'static str {
        match self {
            Self::Write => "written",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Flush => "flushed",
        }
    }
}

/// Stretches of addresses that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intervals {
    /// End by start; the end is the first address behind.
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Intervals {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes in all of them.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// First address and bytes of each, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (VirtualAddr, u64)> {
        self.ends
            .iter()
            .map(|(start, end)| (VirtualAddr::new(*start), end - start))
    }

    /// The last one that begins no later than `end` and reaches `start`.
    fn touching(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (from, to) = self.ends.range(..=end).next_back()?;
        (*to >= start).then_some((*from, *to))
    }

    /// Adds the addresses from `start` up to, not including, `end`; `twice`
    /// is told what of them was there before.
    fn add(&mut self, start: u64, end: u64, mut twice: impl FnMut(u64, u64)) {
        if start >= end {
            return;
        }
        let (mut first, mut last) = (start, end);
        while let Some((from, to)) = self.touching(start, end) {
            let (low, high) = (from.max(start), to.min(end));
            if low < high {
                twice(low, high);
            }
            if from <= start && to >= end {
                return;
            }
            self.ends.remove(&from);
            self.bytes -= to - from;
            first = first.min(from);
            last = last.max(to);
        }
        self.ends.insert(first, last);
        self.bytes += last - first;
    }

    /// Appends to `out` what lies between `start` and `end`.
    fn clip(&self, start: u64, end: u64, out: &mut Self) {
        let before = self.ends.range(..start).next_back();
        let inside = self.ends.range(start..end);
        for (from, to) in before.into_iter().chain(inside) {
            out.add((*from).max(start), (*to).min(end), |_, _| ());
        }
    }
}

/// Accesses of one kind to one region, those that were refused not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Operations.
    pub operations: u64,
    /// Bytes that they name, one after the other.
    pub bytes: u64,
    /// Addresses that they name, each once.
    pub intervals: Intervals,
}

/// An access that the responder refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// What it was.
    pub access: Access,
    /// Queue pair of the responder.
    pub qp: QpNumber,
    /// First address.
    pub va: VirtualAddr,
    /// Bytes.
    pub len: u32,
    /// The refusal.
    pub answer: AethKind,
    /// Number of the input, from 0.
    pub input: u16,
    /// Frame of the request.
    pub frame: u64,
}

/// Memory of a responder that one key leads to, as far as it was touched.
#[derive(Debug, Clone)]
pub struct Region {
    /// Address of the responder.
    pub responder: IpAddr,
    /// The key.
    pub rkey: RKey,
    /// Queue pairs of the responder over which it was reached, the first few.
    pub qps: Vec<QpNumber>,
    /// Accesses came over further queue pairs.
    pub more_qps: bool,
    accesses: [Accesses; Access::ALL.len()],
    /// Bytes written that had been written before, each time.
    pub overwritten_bytes: u64,
    /// Addresses written more than once.
    pub overwritten: Intervals,
    /// Operations whose answer was not seen: it was not captured, never came,
    /// or their transport has none.
    pub unconfirmed: u64,
    /// Accesses that were refused.
    pub refused: u64,
    /// The first few of these.
    pub refusals: Vec<Refused>,
    /// Operations whose addresses were not kept, for there were too many.
    pub left_out: u64,
    /// Time of the first access.
    pub first_ns: i64,
    /// Time of the last access.
    pub last_ns: i64,
}

impl Region {
    fn new(responder: IpAddr, rkey: RKey, first_ns: i64) -> Self {
        Self {
            responder,
            rkey,
            qps: Vec::new(),
            more_qps: false,
            accesses: Default::default(),
            overwritten_bytes: 0,
            overwritten: Intervals::default(),
            unconfirmed: 0,
            refused: 0,
            refusals: Vec::new(),
            left_out: 0,
            first_ns,
            last_ns: first_ns,
        }
    }

    /// Accesses of a kind.
    #[must_use]
    pub const fn accesses(&self, kind: Access) -> &Accesses {
        &self.accesses[kind as usize]
    }

    /// Operations of every kind that were not refused.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.accesses.iter().map(|kind| kind.operations).sum()
    }

    /// Lowest address touched, and the first one behind the highest.
    #[must_use]
    pub fn span(&self) -> Option<(VirtualAddr, VirtualAddr)> {
        let sets = || self.accesses.iter().map(|kind| &kind.intervals.ends);
        let first = sets().filter_map(|ends| ends.first_key_value()).min()?.0;
        let last = sets().filter_map(|ends| ends.last_key_value());
        let last = last.map(|(_, end)| end).max()?;
        Some((VirtualAddr::new(*first), VirtualAddr::new(*last)))
    }

    /// Bytes from one address up to another that were touched, each once.
    #[must_use]
    pub fn touched(&self, start: u64, end: u64) -> u64 {
        let mut inside = Intervals::default();
        for kind in &self.accesses {
            kind.intervals.clip(start, end, &mut inside);
        }
        inside.bytes()
    }

    /// Bytes of a refused access that no other one touched.
    #[must_use]
    pub fn outside(&self, refused: &Refused) -> u64 {
        let len = u64::from(refused.len);
        let (start, end) = bounds(refused.va, len);
        // What is past the last address is nowhere.
        len - self.touched(start, end)
    }

    fn intervals(&self) -> usize {
        let sets = self.accesses.iter().map(|kind| kind.intervals.len());
        sets.sum::<usize>() + self.overwritten.len()
    }

    fn add_qp(&mut self, qp: QpNumber) {
        if self.qps.contains(&qp) {
            return;
        }
        if self.qps.len() < MAX_QPS {
            self.qps.push(qp);
        } else {
            self.more_qps = true;
        }
    }

    fn touch(&mut self, kind: Access, start: u64, end: u64, room: bool) {
        let Self {
            accesses,
            overwritten,
            overwritten_bytes,
            left_out,
            ..
        } = self;
        let accesses = &mut accesses[kind as usize];
        if !room && start < end && accesses.intervals.touching(start, end).is_none() {
            *left_out += 1;
            return;
        }
        accesses.intervals.add(start, end, |low, high| {
            if kind == Access::Write {
                *overwritten_bytes += high - low;
                if room || overwritten.touching(low, high).is_some() {
                    overwritten.add(low, high, |_, _| ());
                }
            }
        });
    }
}

/// First address, and the first one behind; memory ends where addresses do.
const fn bounds(va: VirtualAddr, len: u64) -> (u64, u64) {
    (va.get(), va.get().saturating_add(len))
}

/// Messages and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Volume {
    fn add(&mut self, message: &Message) {
        self.messages += 1;
        self.bytes += message.bytes;
    }
}

/// Collects what messages say about memory.
#[derive(Debug, Default)]
pub struct MemoryMap {
    places: HashMap<(IpAddr, RKey), usize, foldhash::fast::RandomState>,
    regions: Vec<Region>,
    intervals: usize,
    /// SENDs: where they go is the receiver's choice, and not on the wire.
    pub sends: Volume,
    /// Messages whose first packet, which names the memory, was not captured.
    pub unplaced: Volume,
    /// Messages to keys beyond [`MAX_REGIONS`].
    pub beyond_cap: Volume,
}

impl MemoryMap {
    /// The regions, in the order in which they were first reached.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Takes in a message.
    pub fn add(&mut self, message: &Message) {
        let Some(kind) = Access::of(message.operation) else {
            if message.operation.verb == Verb::Send {
                self.sends.add(message);
            }
            return;
        };
        let Some(remote) = message.remote else {
            self.unplaced.add(message);
            return;
        };
        let key = (message.key.dst, remote.rkey);
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None if self.regions.len() >= MAX_REGIONS => {
                self.beyond_cap.add(message);
                return;
            }
            None => {
                let region = Region::new(key.0, key.1, message.start_ns);
                self.regions.push(region);
                self.places.insert(key, self.regions.len() - 1);
                self.regions.len() - 1
            }
        };
        let region = &mut self.regions[place];
        region.first_ns = region.first_ns.min(message.start_ns);
        region.last_ns = region.last_ns.max(message.end_ns);
        region.add_qp(message.key.dest_qp);
        if let Some(answer) = message.refused {
            region.refused += 1;
            if region.refusals.len() < MAX_REFUSED {
                region.refusals.push(Refused {
                    access: kind,
                    qp: message.key.dest_qp,
                    va: remote.va,
                    len: remote.len,
                    answer,
                    input: message.input,
                    frame: message.first_frame,
                });
            }
            return;
        }
        region.unconfirmed += u64::from(message.acked_ns.is_none());
        let accesses = &mut region.accesses[kind as usize];
        accesses.operations += 1;
        // Of one that does not carry what it names, what it carries.
        accesses.bytes += message.bytes;
        let before = region.intervals();
        let (start, end) = bounds(remote.va, message.bytes);
        region.touch(kind, start, end, self.intervals < MAX_INTERVALS);
        self.intervals = self.intervals + region.intervals() - before;
    }
}

impl Listener for MemoryMap {
    fn message(&mut self, message: &Message) {
        self.add(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        track::{FlowId, FlowKey, Remote},
        wire::{aeth::NakCode, opcode::Opcode, types::Psn},
    };

    const WRITE: Opcode = Opcode(0x0a);
    const READ: Opcode = Opcode(0x0c);
    const FETCH_ADD: Opcode = Opcode(0x14);
    const SEND: Opcode = Opcode(0x04);

    fn message(opcode: Opcode, va: u64, len: u32) -> Message {
        let operation = Operation::of(opcode);
        Message {
            flow: FlowId::default(),
            key: FlowKey {
                src: "10.0.0.1".parse().unwrap(),
                dst: "10.0.0.2".parse().unwrap(),
                dest_qp: QpNumber::new(0x11),
            },
            src_qp: None,
            operation,
            first_psn: Psn::new(1),
            last_psn: Psn::new(1),
            bytes: len.into(),
            remote: Access::of(operation).map(|_| Remote {
                va: VirtualAddr::new(va),
                rkey: RKey::new(7),
                len,
            }),
            start_ns: 10,
            end_ns: 20,
            acked_ns: Some(30),
            retransmits: 0,
            payload: len.into(),
            complete: true,
            malformed: false,
            refused: None,
            input: 0,
            first_frame: 1,
            last_input: 0,
            last_frame: 2,
        }
    }

    fn intervals(set: &Intervals) -> Vec<(u64, u64)> {
        set.iter().map(|(va, len)| (va.get(), len)).collect()
    }

    #[test]
    fn intervals_merge_and_tell_what_was_there() {
        let mut set = Intervals::default();
        let mut twice = Vec::new();
        let mut add = |start, end| {
            set.add(start, end, |low, high| twice.push((low, high)));
            intervals(&set)
        };
        assert_eq!(add(100, 200), [(100, 100)]);
        assert_eq!(add(300, 400), [(100, 100), (300, 100)]);
        assert_eq!(add(200, 250), [(100, 150), (300, 100)], "touching");
        assert_eq!(add(120, 130), [(100, 150), (300, 100)], "inside");
        assert_eq!(add(240, 310), [(100, 300)], "bridges");
        assert_eq!(add(5, 5), [(100, 300)], "empty");
        assert_eq!(add(0, u64::MAX), [(0, u64::MAX)]);
        twice.sort_unstable();
        assert_eq!(twice, [(100, 400), (120, 130), (240, 250), (300, 310)]);
        assert_eq!(set.bytes(), u64::MAX);
    }

    /// The same from a table of single addresses, on pseudo-random input.
    #[test]
    fn intervals_agree_with_a_plain_table() {
        let mut set = Intervals::default();
        let mut table = [false; 256];
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let start = next(240);
            let end = start + next(9);
            let mut twice = 0;
            set.add(start, end, |low, high| twice += high - low);
            let range = &mut table[start as usize..end as usize];
            let expected = range.iter().filter(|there| **there).count() as u64;
            assert_eq!(twice, expected);
            range.fill(true);
            let bytes = table.iter().filter(|there| **there).count() as u64;
            assert_eq!(set.bytes(), bytes);
            assert_eq!(set.iter().map(|(_, len)| len).sum::<u64>(), bytes);
        }
    }

    #[test]
    fn kinds_are_kept_apart_and_rewriting_is_seen() {
        let mut map = MemoryMap::default();
        for message in [
            message(WRITE, 0x1000, 64),
            message(WRITE, 0x1040, 64),
            message(WRITE, 0x1060, 64),
            message(READ, 0x2000, 4096),
            message(FETCH_ADD, 0x1000, 8),
            message(SEND, 0, 100),
        ] {
            map.add(&message);
        }
        let [region] = map.regions() else {
            panic!("one region: {:?}", map.regions());
        };
        let written = region.accesses(Access::Write);
        assert_eq!((written.operations, written.bytes), (3, 192));
        assert_eq!(intervals(&written.intervals), [(0x1000, 0xa0)]);
        assert_eq!(region.overwritten_bytes, 0x20);
        assert_eq!(intervals(&region.overwritten), [(0x1060, 0x20)]);
        let read = region.accesses(Access::Read);
        assert_eq!(intervals(&read.intervals), [(0x2000, 4096)]);
        assert_eq!(region.accesses(Access::Atomic).bytes, 8);
        let (first, last) = region.span().unwrap();
        assert_eq!((first.get(), last.get()), (0x1000, 0x3000));
        assert_eq!(
            map.sends,
            Volume {
                messages: 1,
                bytes: 100
            }
        );
    }

    #[test]
    fn a_refused_access_touches_nothing_and_is_measured() {
        let mut map = MemoryMap::default();
        map.add(&message(WRITE, 0x1000, 0x100));
        let mut beyond = message(READ, 0x10c0, 0x80);
        beyond.refused = Some(AethKind::Nak(NakCode::REMOTE_ACCESS));
        map.add(&beyond);
        let region = &map.regions()[0];
        assert_eq!((region.operations(), region.refused), (1, 1));
        assert!(region.accesses(Access::Read).intervals.is_empty());
        assert_eq!(region.outside(&region.refusals[0]), 0x40);
    }

    #[test]
    fn answers_that_were_not_seen_are_counted() {
        let mut map = MemoryMap::default();
        let mut lost = message(WRITE, 0, 1);
        lost.acked_ns = None;
        map.add(&lost);
        let mut unplaced = message(READ, 0, 9);
        unplaced.remote = None;
        map.add(&unplaced);
        assert_eq!(map.regions()[0].unconfirmed, 1);
        assert_eq!(
            map.unplaced,
            Volume {
                messages: 1,
                bytes: 9
            }
        );
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_not_is_counted() {
        let mut map = MemoryMap::default();
        for n in 0..MAX_INTERVALS as u64 + 10 {
            map.add(&message(WRITE, n * 100, 8));
        }
        let region = &map.regions()[0];
        assert_eq!(region.intervals(), MAX_INTERVALS);
        assert_eq!(region.left_out, 10);
        // What is next to something known is still taken in.
        map.add(&message(WRITE, 8, 8));
        assert_eq!(map.regions()[0].left_out, 10);
        assert_eq!(map.regions()[0].operations(), MAX_INTERVALS as u64 + 11);
    }

    #[test]
    fn memory_ends_where_addresses_do() {
        let mut map = MemoryMap::default();
        map.add(&message(WRITE, u64::MAX - 4, u32::MAX));
        map.add(&message(WRITE, 0, 0));
        let region = &map.regions()[0];
        assert_eq!(region.accesses(Access::Write).intervals.bytes(), 4);
        assert_eq!(region.operations(), 2);
    }
}
