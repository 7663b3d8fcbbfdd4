//! Captures as they may come: packets lost, doubled, out of order, cut, from
//! the middle of a connection, and under other sequence numbers.

use super::capfile::Pkt;
use super::craft;
use proptest::prelude::*;
use proptest::sample::Index;
use std::fmt;
use std::sync::LazyLock;

/// A fixture; a failure prints its name rather than its bytes.
#[derive(Clone)]
pub struct Fixture {
    /// Its name.
    pub name: &'static str,
    /// Its packets.
    pub packets: &'static [Pkt],
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

static ALL: LazyLock<Vec<(String, Vec<Pkt>)>> = LazyLock::new(|| {
    let read = |name: String| {
        let packets = super::capture(&name).packets;
        (name, packets)
    };
    super::fixtures().into_iter().map(read).collect()
});

impl Fixture {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let all = ALL.iter().map(|(name, packets)| Self { name, packets });
        all.collect()
    }

    /// One by its name.
    pub fn named(name: &str) -> Self {
        let hit = Self::all().into_iter().find(|fixture| fixture.name == name);
        hit.unwrap_or_else(|| panic!("no fixture {name}"))
    }

    /// Any of them.
    pub fn any() -> impl Strategy<Value = Self> {
        prop::sample::select(Self::all())
    }

    /// One of these.
    pub fn one_of(names: &[&str]) -> impl Strategy<Value = Self> + use<> {
        let list: Vec<Self> = names.iter().map(|name| Self::named(name)).collect();
        prop::sample::select(list)
    }
}

/// A few places.
pub fn places() -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 1..12)
}

/// How many cases to try.
pub fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// One thing that happens to a capture.
#[derive(Clone, Debug)]
pub enum Mangle {
    /// Packets are lost.
    Drop(Vec<Index>),
    /// Packets come again so many places later, byte for byte.
    Double(Vec<(Index, usize)>),
    /// Packets change places; their times stay.
    Swap(Vec<(Index, usize)>),
    /// All packets in any order.
    Shuffle(u64),
    /// The capture starts late and ends early.
    Chop(Index, Index),
    /// The last packet comes first.
    Reverse,
    /// The snapshot length.
    Cut(usize),
    /// All PSNs move by this.
    Shift(u32),
    /// The capture comes again, under PSNs moved by this, so many
    /// microseconds after its end; before it where that is negative.
    Again(u32, i64),
    /// Times stretch, or shrink, by this.
    Pace(u64, u64),
}

/// Anything that may happen to a capture, several things one after another.
pub fn mangles() -> impl Strategy<Value = Vec<Mangle>> {
    let moved = || prop::collection::vec((any::<Index>(), 1..40usize), 1..12);
    let psn = || prop_oneof![Just(0), 0..=0xff_ffffu32, 0xff_ff00..=0xff_ffffu32];
    let one = prop_oneof![
        3 => places().prop_map(Mangle::Drop),
        3 => moved().prop_map(Mangle::Double),
        3 => moved().prop_map(Mangle::Swap),
        1 => any::<u64>().prop_map(Mangle::Shuffle),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Mangle::Chop(a, b)),
        1 => Just(Mangle::Reverse),
        1 => (14..200usize).prop_map(Mangle::Cut),
        2 => psn().prop_map(Mangle::Shift),
        2 => (psn(), -2_000_000..2_000_000i64).prop_map(|(psn, us)| Mangle::Again(psn, us)),
        1 => (1..2000u64, 1..2000u64).prop_map(|(a, b)| Mangle::Pace(a, b)),
    ];
    prop::collection::vec(one, 1..5)
}

/// What becomes of a capture.
pub fn apply(packets: &[Pkt], mangles: &[Mangle]) -> Vec<Pkt> {
    let mut packets = packets.to_vec();
    for mangle in mangles {
        packets = mangle.apply(packets);
    }
    packets
}

impl Mangle {
    fn apply(&self, mut packets: Vec<Pkt>) -> Vec<Pkt> {
        if packets.is_empty() {
            return packets;
        }
        let len = packets.len();
        match self {
            Self::Drop(list) => {
                let gone: Vec<usize> = list.iter().map(|n| n.index(len)).collect();
                let mut n = 0..;
                packets.retain(|_| !gone.contains(&n.next().unwrap()));
            }
            Self::Double(list) => {
                for (from, later) in list {
                    let from = from.index(packets.len());
                    let to = (from + later).min(packets.len());
                    let mut copy = packets[from].clone();
                    copy.ts_ns = packets[to - 1].ts_ns + 1;
                    packets.insert(to, copy);
                }
            }
            Self::Swap(list) => {
                for (from, later) in list {
                    let from = from.index(len);
                    let to = (from + later).min(len - 1);
                    let (a, b) = (packets[from].ts_ns, packets[to].ts_ns);
                    packets.swap(from, to);
                    (packets[from].ts_ns, packets[to].ts_ns) = (a, b);
                }
            }
            Self::Shuffle(seed) => {
                let mut state = *seed | 1;
                for n in (1..len).rev() {
                    // An LCG: any order will do.
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    packets.swap(n, (state >> 33) as usize % (n + 1));
                }
            }
            Self::Chop(front, back) => {
                let (a, b) = (front.index(len), back.index(len));
                packets = packets[a.min(b)..=a.max(b)].to_vec();
            }
            Self::Reverse => packets.reverse(),
            Self::Cut(snaplen) => {
                for p in &mut packets {
                    p.data.truncate(*snaplen);
                }
            }
            Self::Shift(by) => packets = shifted(&packets, *by),
            Self::Again(by, after_us) => {
                let first = packets.iter().map(|p| p.ts_ns).min().unwrap_or(0);
                let last = packets.iter().map(|p| p.ts_ns).max().unwrap_or(0);
                let offset = (last - first) as i64 + after_us * 1000;
                let mut again = shifted(&packets, *by);
                for p in &mut again {
                    p.ts_ns = p.ts_ns.saturating_add_signed(offset);
                }
                packets.append(&mut again);
            }
            Self::Pace(times, over) => {
                let first = packets[0].ts_ns;
                for p in &mut packets {
                    p.ts_ns = first + p.ts_ns.saturating_sub(first) * times / over;
                }
            }
        }
        packets
    }
}

/// The same capture under PSNs moved by `by`: those of the packets and those
/// that the communication manager announces. Packets to queue pair 1 keep
/// theirs, and so do packets that were cut, whose ICRC could not be mended.
pub fn shifted(packets: &[Pkt], by: u32) -> Vec<Pkt> {
    let shift = |packet: &Pkt| {
        let mut packet = packet.clone();
        if by != 0 {
            shift_one(&mut packet.data, by);
        }
        packet
    };
    packets.iter().map(shift).collect()
}

fn shift_one(frame: &mut [u8], by: u32) -> Option<()> {
    if frame.len() < 62 {
        return None;
    }
    let start = frame.len() - craft::ip_part(frame).len();
    let ip = &mut frame[start..];
    let plain = matches!(ip[0], 0x45) || (craft::is_v6(ip) && ip[6] == 17);
    if !plain || !craft::is_roce(ip) {
        return None;
    }
    let bth = craft::udp_at(ip) + 8;
    let word = |ip: &[u8], at: usize| {
        let bytes = ip.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    // Behind a VLAN tag, a packet may be cut in its UDP header.
    let udp_len = (word(ip, bth - 4)? >> 16) as usize;
    let ip = ip.get_mut(..bth - 8 + udp_len)?;
    // A CRC that was wrong stays wrong, by the same bits.
    let end = ip.len() - 4;
    let wrong: Vec<u8> = craft::icrc(ip)
        .iter()
        .zip(&ip[end..])
        .map(|(a, b)| a ^ b)
        .collect();
    if word(ip, bth + 4)? & 0xff_ffff == 1 {
        // The starting PSN in REQ and REP, three bytes of the message.
        let mad = bth + 20;
        let at = match word(ip, mad + 16)? >> 16 {
            0x10 => mad + 24 + 44,
            0x13 => mad + 24 + 20,
            _ => return None,
        };
        let old = word(ip, at)?;
        let moved = (old >> 8).wrapping_add(by) << 8 | old & 0xff;
        ip[at..at + 4].copy_from_slice(&moved.to_be_bytes());
    } else {
        let psn = word(ip, bth + 8)?;
        let moved = psn & 0xff00_0000 | psn.wrapping_add(by) & 0xff_ffff;
        ip[bth + 8..bth + 12].copy_from_slice(&moved.to_be_bytes());
    }
    craft::seal(ip);
    for (byte, wrong) in ip[end..].iter_mut().zip(wrong) {
        *byte ^= wrong;
    }
    Some(())
}
