//! A recount of a capture: slow, over all packets at once, and apart from the
//! crate under test.
//!
//! It keeps every packet, sorts sequence numbers into sets, and looks ahead wherever that is simpler than
//! to remember. Sequence numbers are counted from the first request of a
//! flow, so no flow may be longer than 2^23 packets.

use super::capfile::Pkt;
use super::seen::{Key, Kind, Seen, distance};
use std::collections::{BTreeMap, BTreeSet};

/// A copy later than this is no copy of the network.
const COPY_NS: i64 = 1_000_000;
/// A shorter silence is no timeout.
const TIMEOUT_NS: i64 = 1_000_000;

/// Packets by what their PSN says, as the crate counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub packets: u64,
    pub new: u64,
    pub gaps: u64,
    pub skipped: u64,
    pub missing: u64,
    pub retransmitted: u64,
    pub refilled: u64,
    pub reordered: u64,
    pub duplicates: u64,
    pub mirror_duplicates: u64,
}

/// A message put together from the packets of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Msg {
    /// Opcode of its first packet.
    pub opcode: u8,
    pub first_psn: u32,
    pub last_psn: u32,
    pub bytes: u64,
    pub remote: Option<(u64, u32, u32)>,
    pub start_ns: i64,
    pub end_ns: i64,
    pub acked_ns: Option<i64>,
    pub retransmits: u32,
    pub complete: bool,
    /// Syndrome of a NAK that refused it.
    pub refused: Option<u8>,
}

/// What the recount says of a flow.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    pub packets: u64,
    pub payload: u64,
    pub wire: u64,
    pub goodput: u64,
    pub ops: BTreeMap<u8, u64>,
    pub requests: Counts,
    pub responses: Counts,
    pub untracked: u64,
    pub acknowledgements: u64,
    pub acks: u64,
    pub naks: BTreeMap<u8, u64>,
    pub rnr: u64,
    pub cnps: u64,
    pub ce: u64,
    pub ecn_capable: u64,
    pub icrc_valid: u64,
    pub icrc_invalid: u64,
    pub first_ns: i64,
    pub last_ns: i64,
    pub mtu: Option<u64>,
    /// First and furthest PSN of the requests, else of the responses.
    pub psns: Option<(u32, u32)>,
    pub messages: Vec<Msg>,
    /// Requests that asked for an acknowledgement and got their own, or one
    /// that covers them; SENDs and WRITEs only.
    pub acks_own: u64,
    pub acks_skipped: u64,
    /// Runs of retransmissions after sequence NAKs, RNR NAKs and silence.
    pub runs: [u64; 3],
    pub peer: Option<Key>,
}

/// All flows of a capture.
#[derive(Debug, Default)]
pub struct Recount {
    pub packets: Vec<Seen>,
    pub flows: BTreeMap<Key, Flow>,
}

impl Recount {
    /// Counts a capture.
    pub fn of(packets: &[Pkt]) -> Self {
        let packets = Seen::all(packets);
        let keys: BTreeSet<Key> = packets.iter().map(|p| p.key).collect();
        let peers = pairs(&packets, &keys);
        let mut flows = BTreeMap::new();
        for key in &keys {
            let own: Vec<&Seen> = packets.iter().filter(|p| p.key == *key).collect();
            let peer = peers.get(key).copied();
            let back: Vec<&Seen> = packets.iter().filter(|p| Some(p.key) == peer).collect();
            flows.insert(*key, count(&own, &back, peer));
        }
        Self { packets, flows }
    }
}

/// Which flow answers which: the one whose answers name the most sequence
/// numbers that were asked for before, best pairs first.
fn pairs(packets: &[Seen], keys: &BTreeSet<Key>) -> BTreeMap<Key, Key> {
    let mut asked: BTreeMap<Key, Vec<(usize, u32, u32)>> = BTreeMap::new();
    for p in packets.iter().filter(|p| p.kind() == Kind::Request) {
        let len = p.remote.map_or(0, |(_, _, len)| len);
        // Up to the shortest path MTU there is.
        let span = if p.is_read() {
            len.div_ceil(256).max(1)
        } else {
            1
        };
        asked.entry(p.key).or_default().push((p.index, p.psn, span));
    }
    let mut scores = Vec::new();
    for (request_key, asked) in &asked {
        for answer_key in keys {
            if (answer_key.0, answer_key.1) != (request_key.1, request_key.0) {
                continue;
            }
            let answers = packets.iter().filter(|p| p.key == *answer_key);
            let fits = |p: &&Seen| {
                matches!(p.kind(), Kind::Response | Kind::Answer)
                    && asked.iter().any(|(index, psn, span)| {
                        let offset = distance(p.psn, *psn);
                        *index < p.index && (0..i64::from(*span)).contains(&offset)
                    })
            };
            let score = answers.filter(fits).count();
            if score > 0 {
                scores.push((score, *request_key, *answer_key));
            }
        }
    }
    scores.sort_by_key(|score| std::cmp::Reverse(score.0));
    let mut peers = BTreeMap::new();
    for (_, a, b) in scores {
        if peers.get(&a).is_none_or(|p| *p == b) && peers.get(&b).is_none_or(|p| *p == a) {
            peers.insert(a, b);
            peers.insert(b, a);
        }
    }
    peers
}

/// The path MTU: every packet before the last of a message is full.
fn mtu(packets: &[&Seen]) -> Option<u64> {
    let full = |p: &&&Seen| {
        p.icrc != Some(false)
            && matches!(p.opcode >> 5, 0 | 1 | 5)
            && matches!(p.opcode & 0x1f, 0x00 | 0x01 | 0x06 | 0x07 | 0x0d | 0x0e)
    };
    packets.iter().find(full).map(|p| p.payload)
}

fn count(own: &[&Seen], back: &[&Seen], peer: Option<Key>) -> Flow {
    let mut flow = Flow {
        peer,
        first_ns: own[0].ts_ns,
        last_ns: own[own.len() - 1].ts_ns,
        mtu: mtu(own).or_else(|| mtu(back)),
        ..Flow::default()
    };
    for p in own {
        flow.packets += 1;
        flow.payload += p.payload;
        flow.wire += p.wire;
        *flow.ops.entry(p.opcode).or_default() += 1;
        flow.icrc_valid += u64::from(p.icrc == Some(true));
        if p.icrc == Some(false) {
            flow.icrc_invalid += 1;
            continue;
        }
        flow.ce += u64::from(p.ecn == 3);
        flow.ecn_capable += u64::from(p.ecn != 0);
        match p.kind() {
            Kind::Other if p.opcode == 0x81 => flow.cnps += 1,
            Kind::Other => flow.untracked += 1,
            Kind::Answer => {
                flow.acknowledgements += 1;
                let syndrome = p.syndrome.unwrap_or(0x40);
                match syndrome >> 5 {
                    0 => flow.acks += 1,
                    1 => flow.rnr += 1,
                    3 => *flow.naks.entry(syndrome & 0x1f).or_default() += 1,
                    _ => {}
                }
            }
            Kind::Request | Kind::Response => {}
        }
    }
    let good = |list: &[&Seen], kind| -> Vec<Seen> {
        let wanted = |p: &&&Seen| p.kind() == kind && p.icrc != Some(false);
        list.iter().filter(wanted).map(|p| (*p).clone()).collect()
    };
    let requests = good(own, Kind::Request);
    let responses = good(own, Kind::Response);
    let answers: Vec<Seen> = {
        let mut all = good(back, Kind::Answer);
        all.extend(good(back, Kind::Response));
        all.sort_by_key(|p| p.index);
        all
    };
    let ends = |list: &[Seen]| {
        let furthest = |p: &&Seen| distance(p.psn, list[0].psn);
        let last = list.iter().max_by_key(furthest)?;
        Some((list[0].psn, last.psn))
    };
    let mtu = flow.mtu;
    flow.psns = ends(&requests).or_else(|| ends(&responses));
    if let Some(first) = requests.first() {
        let base = first.psn;
        let mut sequence = Sequence::new(base, mtu);
        sequence.walk(&requests, &answers, None);
        flow.requests = sequence.counts;
        flow.goodput += sequence.goodput;
        flow.runs = sequence.runs;
        flow.messages = messages(&sequence, &requests, &answers);
        own_acks(&mut flow, &requests, &answers, base);
    }
    if let Some(first) = responses.first() {
        let reads = good(back, Kind::Request);
        let base = reads.first().map_or(first.psn, |p| p.psn);
        let mut expected = BTreeSet::new();
        for read in reads.iter().filter(|p| p.is_read()) {
            let at = distance(read.psn, base);
            expected.extend(at..at + read.span(mtu));
        }
        let mut sequence = Sequence::new(base, mtu);
        sequence.walk(&responses, &[], Some(&expected));
        flow.responses = sequence.counts;
        flow.goodput += sequence.goodput;
    }
    flow
}

/// The sequence numbers of a flow's requests or responses.
struct Sequence {
    base: u32,
    mtu: Option<u64>,
    counts: Counts,
    goodput: u64,
    runs: [u64; 3],
    /// The first packet with each number; a READ has several.
    first: BTreeMap<i64, Seen>,
    /// Numbers of the packets that were sent again.
    again: Vec<i64>,
    /// Places of the packets that are copies.
    copies: BTreeSet<usize>,
}

impl Sequence {
    fn new(base: u32, mtu: Option<u64>) -> Self {
        Self {
            base,
            mtu,
            counts: Counts::default(),
            goodput: 0,
            runs: [0; 3],
            first: BTreeMap::new(),
            again: Vec::new(),
            copies: BTreeSet::new(),
        }
    }

    fn at(&self, p: &Seen) -> i64 {
        distance(p.psn, self.base)
    }

    /// Sorts packets into their counts. `expected` holds the numbers that
    /// count as skipped when they are; all do where it is not given.
    fn walk(&mut self, packets: &[Seen], answers: &[Seen], expected: Option<&BTreeSet<i64>>) {
        let counts = |from: i64, to: i64| match expected {
            Some(expected) if from < to => expected.range(from..to).count() as u64,
            Some(_) => 0,
            None => (to - from).max(0) as u64,
        };
        let mut extra = extra_acks(packets, answers, self.base);
        let mut next: Option<i64> = None;
        // What was asked for again: from, to, when, and by what.
        let mut asked: Option<(i64, i64, usize, bool)> = None;
        let mut heard = 0;
        let mut last_ns = i64::MIN;
        let mut copies: Vec<&Seen> = Vec::new();
        for p in packets {
            let at = self.at(p);
            let end = at + p.span(self.mtu);
            while let Some(answer) = answers.get(heard).filter(|a| a.index < p.index) {
                heard += 1;
                let syndrome = answer.syndrome.unwrap_or(0);
                let cause = match syndrome {
                    0x60 => 0,
                    0x20..0x40 => 1,
                    _ => continue,
                };
                let to = next.unwrap_or(i64::MIN);
                asked = Some((self.at(answer), to, cause, false));
            }
            self.counts.packets += 1;
            let past = next.is_some_and(|next| at < next);
            let silence = p.ts_ns.saturating_sub(last_ns);
            let copy_of = copies.iter().find(|c| {
                c.copy == p.copy && c.psn == p.psn && (0..=COPY_NS).contains(&(p.ts_ns - c.ts_ns))
            });
            let is_copy = copy_of.is_some();
            copies.push(p);
            if !past {
                let from = next.unwrap_or(at);
                self.counts.new += 1;
                self.counts.gaps += u64::from(counts(from, at) > 0);
                self.counts.skipped += counts(from, at);
                next = Some(end);
            } else if is_copy {
                self.copies.insert(p.index);
                match extra.iter().position(|index| *index > p.index) {
                    Some(n) => {
                        extra.remove(n);
                        self.counts.duplicates += 1;
                    }
                    None => self.counts.mirror_duplicates += 1,
                }
            } else {
                let within = |asked: &Option<(i64, i64, usize, bool)>| {
                    asked.is_some_and(|(from, to, ..)| (from..to).contains(&at))
                };
                if !within(&asked) && last_ns != i64::MIN && silence >= TIMEOUT_NS {
                    asked = Some((at, next.unwrap_or(at), 2, false));
                }
                let fills = !self.first.contains_key(&at);
                match &mut asked {
                    Some((from, to, cause, begun)) if (*from..*to).contains(&at) => {
                        if !*begun {
                            self.runs[*cause] += 1;
                            *begun = true;
                        } else if silence >= TIMEOUT_NS && *cause == 2 {
                            self.runs[2] += 1;
                        }
                        self.counts.retransmitted += 1;
                        self.counts.refilled += u64::from(fills);
                        self.again.push(at);
                    }
                    _ if fills => self.counts.reordered += 1,
                    _ => self.counts.duplicates += 1,
                }
                next = next.max(Some(end));
            }
            last_ns = p.ts_ns;
            if !self.first.contains_key(&at) {
                self.goodput += p.payload;
            }
            for number in at..end {
                self.first.entry(number).or_insert_with(|| p.clone());
            }
        }
        // The seen range starts with the first packet: what was sent before it
        // and came later is no hole.
        let from = packets.first().map_or(0, |p| self.at(p));
        if let Some((to, _)) = self.first.last_key_value() {
            let counted = |n: &&i64| expected.is_none_or(|expected| expected.contains(n));
            let seen = self.first.range(from..=*to).map(|(n, _)| n).filter(counted);
            self.counts.missing = counts(from, *to + 1) - seen.count() as u64;
        }
    }
}

/// Positive acknowledgements that no request of its own asked for, by their
/// place in the capture: answers to copies.
fn extra_acks(packets: &[Seen], answers: &[Seen], base: u32) -> Vec<usize> {
    let at = |p: &Seen| distance(p.psn, base);
    let mut due: BTreeSet<i64> = packets.iter().filter(|p| p.ack_req).map(at).collect();
    let acks = answers.iter().filter(|a| a.opcode & 0x1f == 0x11);
    let acks = acks.filter(|a| a.syndrome.is_some_and(|s| s >> 5 == 0));
    acks.filter(|a| !due.remove(&at(a)))
        .map(|a| a.index)
        .collect()
}

/// Which requests got the acknowledgement that they asked for.
fn own_acks(flow: &mut Flow, requests: &[Seen], answers: &[Seen], base: u32) {
    let at = |p: &Seen| distance(p.psn, base);
    let asks = |p: &&Seen| p.ack_req && !p.is_read() && !p.is_atomic();
    let asking: BTreeSet<i64> = requests.iter().filter(asks).map(at).collect();
    let positive = |a: &&Seen| a.syndrome.is_none_or(|s| s >> 5 == 0);
    let acked: BTreeSet<i64> = answers.iter().filter(positive).map(at).collect();
    let last = acked.last().copied().unwrap_or(i64::MIN);
    flow.acks_own = asking.intersection(&acked).count() as u64;
    let covered = asking.range(..=last).count() as u64;
    flow.acks_skipped = covered - flow.acks_own;
}

/// Puts messages together from the first packet with each number.
fn messages(sequence: &Sequence, requests: &[Seen], answers: &[Seen]) -> Vec<Msg> {
    let mut list: Vec<(Msg, i64, i64)> = Vec::new();
    let mut at = i64::MIN;
    while let Some((&start, first)) = sequence.first.range(at..).next() {
        let mut end = start;
        let mut last = first;
        let mut bytes = first.payload;
        let mut whole = first.begins() && first.ends();
        if first.is_read() {
            end += first.span(sequence.mtu) - 1;
        } else {
            while !last.ends() {
                let Some(next) = sequence.first.get(&(end + 1)) else {
                    break;
                };
                if next.begins() {
                    break;
                }
                end += 1;
                last = next;
                bytes += next.payload;
                whole = first.begins() && next.ends();
            }
        }
        at = end + 1;
        let own = |p: &&Seen| (start..=end).contains(&sequence.at(p));
        let sent = |p: &&Seen| own(p) && !sequence.copies.contains(&p.index);
        let mut message = Msg {
            opcode: first.opcode,
            first_psn: first.psn,
            last_psn: (i64::from(sequence.base) + end) as u32 & 0xff_ffff,
            bytes: first.remote.map_or(bytes, |(_, _, len)| u64::from(len)),
            remote: first.remote,
            start_ns: requests.iter().find(own).map_or(0, |p| p.ts_ns),
            // A READ ends with its last response, which the caller knows.
            end_ns: requests.iter().rfind(sent).map_or(0, |p| p.ts_ns),
            acked_ns: None,
            retransmits: sequence
                .again
                .iter()
                .filter(|n| (start..=end).contains(n))
                .count() as u32,
            complete: whole,
            refused: None,
        };
        answer(&mut message, first, (start, end), sequence, answers);
        list.push((message, start, end));
    }
    list.into_iter().map(|(message, ..)| message).collect()
}

/// Finds what answers a message: the first answer that covers its end.
fn answer(msg: &mut Msg, first: &Seen, span: (i64, i64), sequence: &Sequence, answers: &[Seen]) {
    let (start, end) = span;
    let later = answers.iter().filter(|a| a.index > first.index);
    if first.is_read() {
        let own: Vec<&Seen> = later
            .filter(|a| a.kind() == Kind::Response && (start..=end).contains(&sequence.at(a)))
            .collect();
        let numbers: BTreeSet<i64> = own.iter().map(|a| sequence.at(a)).collect();
        msg.complete = numbers.len() as i64 == end - start + 1;
        msg.acked_ns = own.iter().find(|a| sequence.at(a) == end).map(|a| a.ts_ns);
        msg.end_ns = own.last().map_or(msg.end_ns, |a| a.ts_ns);
        return;
    }
    if first.is_atomic() {
        let own = later
            .filter(|a| a.opcode & 0x1f == 0x12)
            .find(|a| sequence.at(a) == start);
        msg.complete = own.is_some();
        msg.acked_ns = own.map(|a| a.ts_ns);
        return;
    }
    for a in later {
        let syndrome = a.syndrome.unwrap_or(0);
        match syndrome >> 5 {
            0 if sequence.at(a) >= end => {}
            // A NAK or RNR NAK acknowledges what is before it.
            1 | 3 if sequence.at(a) > end => {}
            3 if syndrome != 0x60 && sequence.at(a) >= start => {
                msg.refused = Some(syndrome);
                return;
            }
            _ => continue,
        }
        msg.acked_ns = Some(a.ts_ns);
        return;
    }
}
