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

/// Runs of packets sent again, by what was before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// A sequence NAK with the number of the first.
    pub sequence_nak: u64,
    /// An RNR NAK with the number of the first.
    pub rnr: u64,
    /// Neither, but silence.
    pub timeout: u64,
    /// None of these.
    pub other: u64,
}

impl Runs {
    /// All of them.
    pub fn total(self) -> u64 {
        self.sequence_nak + self.rnr + self.timeout + self.other
    }
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
    /// Packets sent again before the answer.
    pub retransmits: u32,
    /// Those after it as well.
    pub retransmits_in_all: u32,
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
    /// Requests after the last one seen that only answers show.
    pub tail: u64,
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
    pub runs: Runs,
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
        let peers = pairs(&packets);
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

/// Which flow answers which: an answer is to the latest packet that asked for
/// its sequence number, and those flows belong together that most answers say.
fn pairs(packets: &[Seen]) -> BTreeMap<Key, Key> {
    let good = |p: &&Seen| p.icrc != Some(false);
    let asks: Vec<&Seen> = packets.iter().filter(good).collect();
    let asks: Vec<&Seen> = asks
        .into_iter()
        .filter(|p| p.kind() == Kind::Request)
        .collect();
    let is_answer = |p: &&Seen| matches!(p.kind(), Kind::Response | Kind::Answer);
    let mut votes: BTreeMap<(Key, Key), u64> = BTreeMap::new();
    for answer in packets.iter().filter(good).filter(is_answer) {
        let asked = asks.iter().filter(|ask| ask.index < answer.index).rev();
        let hit = asked
            .filter(|ask| (ask.key.0, ask.key.1) == (answer.key.1, answer.key.0))
            // Up to the shortest path MTU there is.
            .find(|ask| (0..ask.span(Some(256))).contains(&distance(answer.psn, ask.psn)));
        if let Some(ask) = hit {
            *votes.entry((ask.key, answer.key)).or_default() += 1;
        }
    }
    let mut votes: Vec<_> = votes.into_iter().collect();
    votes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut peers = BTreeMap::new();
    for ((a, b), _) in votes {
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
    if !requests.is_empty() {
        let mut sequence = Sequence::of(&requests, mtu);
        sequence.walk(&requests, &answers, None);
        let mut answered = Sequence::of(&requests, mtu);
        answered.walk(
            &good(back, Kind::Response),
            &[],
            Some(&sequence.reads(&requests)),
        );
        flow.requests = sequence.counts;
        flow.tail = sequence.tail;
        flow.goodput += sequence.goodput;
        flow.runs = sequence.runs;
        flow.messages = messages(&sequence, &answered, &requests, &answers);
        own_acks(&mut flow, &requests, &answers, sequence.base);
    }
    if !responses.is_empty() {
        let asks = good(back, Kind::Request);
        let mut sequence = Sequence::of(if asks.is_empty() { &responses } else { &asks }, mtu);
        sequence.walk(&responses, &[], Some(&sequence.reads(&asks)));
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
    tail: u64,
    goodput: u64,
    runs: Runs,
    /// The first packet with each number; a READ has several.
    first: BTreeMap<i64, Seen>,
    /// Number and place of the packets that were sent again.
    again: Vec<(i64, usize)>,
    /// Places of the packets that are copies.
    copies: BTreeSet<usize>,
}

impl Sequence {
    /// Counts numbers from the first of these packets.
    fn of(packets: &[Seen], mtu: Option<u64>) -> Self {
        Self {
            base: packets[0].psn,
            mtu,
            counts: Counts::default(),
            tail: 0,
            goodput: 0,
            runs: Runs::default(),
            first: BTreeMap::new(),
            again: Vec::new(),
            copies: BTreeSet::new(),
        }
    }

    fn at(&self, p: &Seen) -> i64 {
        distance(p.psn, self.base)
    }

    /// The numbers that the responses to these requests have.
    fn reads(&self, requests: &[Seen]) -> BTreeSet<i64> {
        let reads = requests.iter().filter(|p| p.is_read());
        let span = |p: &Seen| self.at(p)..self.at(p) + p.span(self.mtu);
        reads.flat_map(span).collect()
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
        let mut asked: BTreeSet<usize> = BTreeSet::new();
        let mut next: Option<i64> = None;
        let mut before: Option<&Seen> = None;
        let mut latest_id = packets.first().map_or(0, |p| p.copy.1);
        for (n, p) in packets.iter().enumerate() {
            let at = self.at(p);
            let end = at + p.span(self.mtu);
            let copy = packets[..n]
                .iter()
                .rfind(|c| c.copy == p.copy && c.psn == p.psn);
            let late = copy.is_some_and(|c| !(0..=COPY_NS).contains(&(p.ts_ns - c.ts_ns)));
            let fills = !self.first.contains_key(&at);
            // Senders number their packets: what was overtaken has a lower
            // number than what overtook it.
            let overtaken = (p.copy.1.wrapping_sub(latest_id) as i16) < 0 || p.copy.1 == 0;
            if !overtaken {
                latest_id = p.copy.1;
            }
            self.counts.packets += 1;
            if next.is_none_or(|next| at >= next) {
                let from = next.unwrap_or(at);
                self.counts.new += 1;
                self.counts.gaps += u64::from(counts(from, at) > 0);
                self.counts.skipped += counts(from, at);
            } else if fills && overtaken {
                self.counts.reordered += 1;
            } else if copy.is_some() && (!late || p.copy.1 != 0) {
                self.copies.insert(p.index);
                match extra.iter().position(|index| *index > p.index) {
                    Some(n) => {
                        extra.remove(n);
                        self.counts.duplicates += 1;
                    }
                    None if late => self.counts.duplicates += 1,
                    None => self.counts.mirror_duplicates += 1,
                }
            } else {
                self.counts.retransmitted += 1;
                self.counts.refilled += u64::from(fills);
                self.again.push((at, p.index));
                let before_end = before.map(|b| self.at(b) + b.span(self.mtu));
                if before_end != Some(at) {
                    let silence = p.ts_ns - before.map_or(p.ts_ns, |b| b.ts_ns);
                    // The one says where to go on, the other what was refused:
                    // its message may begin before it. Not being ready comes
                    // first, and what follows it is out of sequence as well.
                    let said = answers.iter().filter(|a| a.index < p.index);
                    let fresh: Vec<&Seen> = said
                        .filter(|a| match a.syndrome {
                            Some(0x60) => self.at(a) == at,
                            Some(0x20..0x40) => self.at(a) >= at,
                            _ => false,
                        })
                        .filter(|a| asked.insert(a.index))
                        .collect();
                    match fresh.iter().filter_map(|a| a.syndrome).min() {
                        Some(0x60) => self.runs.sequence_nak += 1,
                        Some(0x20..0x40) => self.runs.rnr += 1,
                        _ if silence >= TIMEOUT_NS => self.runs.timeout += 1,
                        _ => self.runs.other += 1,
                    }
                }
            }
            next = next.max(Some(end));
            before = Some(p);
            if fills {
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
            // Requests after the last one seen show in what answers say.
            let end = |a: &Seen| self.at(a) + i64::from(a.syndrome.is_some_and(|s| s < 0x20));
            let shown = answers
                .iter()
                .filter(|a| a.opcode & 0x1f == 0x11)
                .map(end)
                .max();
            if let (None, Some(shown)) = (expected, shown) {
                self.tail = (shown - to - 1).max(0) as u64;
            }
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
fn messages(
    sequence: &Sequence,
    answered: &Sequence,
    requests: &[Seen],
    answers: &[Seen],
) -> Vec<Msg> {
    let mut list = Vec::new();
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
        let mut message = Msg {
            opcode: first.opcode,
            first_psn: first.psn,
            last_psn: (i64::from(sequence.base) + end) as u32 & 0xff_ffff,
            bytes: first.remote.map_or(bytes, |(_, _, len)| u64::from(len)),
            remote: first.remote,
            start_ns: requests.iter().find(own).map_or(0, |p| p.ts_ns),
            end_ns: 0,
            acked_ns: None,
            retransmits: 0,
            retransmits_in_all: 0,
            complete: whole,
            refused: None,
        };
        let answer = answer(&mut message, first, (start, end), answered, answers);
        // What comes after the answer has no part in it.
        let until = answer.unwrap_or(usize::MAX);
        let sent = |p: &&Seen| own(p) && p.index < until && !sequence.copies.contains(&p.index);
        let ended = requests.iter().rfind(sent);
        if let (true, Some(answered)) = (first.is_read(), message.acked_ns) {
            message.end_ns = answered;
        } else {
            message.end_ns = ended.map_or(0, |p| p.ts_ns);
        }
        let again = sequence.again.iter().chain(&answered.again);
        let again = again.filter(|(n, _)| (start..=end).contains(n));
        message.retransmits_in_all = again.clone().count() as u32;
        message.retransmits = again.filter(|(_, index)| *index <= until).count() as u32;
        list.push(message);
    }
    list
}

/// Finds what answers a message, and its place: the first answer that covers
/// its end, or the last one that a READ lacked.
fn answer(
    msg: &mut Msg,
    first: &Seen,
    span: (i64, i64),
    answered: &Sequence,
    answers: &[Seen],
) -> Option<usize> {
    let (start, end) = span;
    let at = |a: &Seen| distance(a.psn, answered.base);
    let later = answers.iter().filter(|a| a.index > first.index);
    let mut covers = None;
    for a in later {
        let syndrome = a.syndrome.unwrap_or(0);
        let inside = (start..=end).contains(&at(a));
        if syndrome >> 5 == 3 && syndrome != 0x60 && inside {
            msg.refused = Some(syndrome);
            msg.complete &= !first.is_read() && !first.is_atomic();
            return Some(a.index);
        }
        let right = match a.opcode & 0x1f {
            _ if first.is_read() => false,
            0x12 if first.is_atomic() => at(a) == start,
            _ if first.is_atomic() => false,
            // A NAK or RNR NAK acknowledges what is before it.
            _ if matches!(syndrome >> 5, 1 | 3) => at(a) > end,
            _ => at(a) >= end,
        };
        if right {
            covers = Some(a);
            break;
        }
    }
    if first.is_read() {
        let got: Vec<&Seen> = answered.first.range(start..=end).map(|(_, a)| a).collect();
        msg.complete = got.len() as i64 == end - start + 1;
        covers = got
            .into_iter()
            .max_by_key(|a| a.index)
            .filter(|_| msg.complete);
    } else if first.is_atomic() {
        msg.complete = covers.is_some();
    }
    msg.acked_ns = covers.map(|a| a.ts_ns);
    covers.map(|a| a.index)
}
