//! Which packets a user wants to see, in the words of the field.

use std::{net::IpAddr, str::FromStr};

use crate::{
    track::FlowKey,
    wire::{
        Packet,
        opcode::Verb,
        types::{Psn, QpNumber},
    },
};

/// Conditions that a packet must meet, all of them; within one list, any.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Destination queue pair, or the source queue pair where the packet has
    /// one.
    pub qps: Vec<QpNumber>,
    /// Kind of operation.
    pub ops: Vec<OpClass>,
    /// Source or destination address.
    pub hosts: Vec<IpAddr>,
    /// Packet sequence number in a range.
    pub psn: Option<PsnRange>,
    /// NAKs and RNR NAKs only.
    pub nak: bool,
    /// Communication management messages only.
    pub cm: bool,
}

impl Filter {
    /// Whether a packet passes.
    #[must_use]
    pub fn matches(&self, packet: &Packet<'_>) -> bool {
        let any = |empty: bool, hit: bool| empty || hit;
        let source_qp = packet.ext.deth.map(|deth| deth.src_qp);
        any(
            self.qps.is_empty(),
            self.qps
                .iter()
                .any(|qp| packet.bth.dest_qp == *qp || source_qp == Some(*qp)),
        ) && any(
            self.ops.is_empty(),
            self.ops.iter().any(|op| op.holds(packet)),
        ) && any(
            self.hosts.is_empty(),
            self.hosts.iter().any(|host| {
                let host = host.to_canonical();
                packet.datagram.src.to_canonical() == host
                    || packet.datagram.dst.to_canonical() == host
            }),
        ) && self.psn.is_none_or(|range| range.contains(packet.bth.psn))
            && (!self.nak || packet.ext.aeth.is_some_and(|aeth| aeth.kind().is_nak()))
            && (!self.cm || packet.cm().is_some())
    }

    /// True when every packet passes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.qps.is_empty()
            && self.ops.is_empty()
            && self.hosts.is_empty()
            && self.psn.is_none()
            && !self.nak
            && !self.cm
    }
}

/// Which flows a user wants to see. What a flow's state is takes all of its
/// packets, so this chooses among flows and messages after they were followed.
#[derive(Debug, Clone, Default)]
pub struct FlowFilter {
    /// Queue pair at either end, where known.
    pub qps: Vec<QpNumber>,
    /// Source or destination address.
    pub hosts: Vec<IpAddr>,
}

impl FlowFilter {
    /// Whether a flow is chosen; `src_qp` is the queue pair it comes from,
    /// where known.
    #[must_use]
    pub fn matches(&self, flow: &FlowKey, src_qp: Option<QpNumber>) -> bool {
        self.ends([flow.src, flow.dst], [Some(flow.dest_qp), src_qp])
    }

    /// Whether one of two ends is chosen by its address and one by its queue
    /// pair.
    #[must_use]
    pub fn ends(&self, ips: [IpAddr; 2], qps: [Option<QpNumber>; 2]) -> bool {
        let ips = ips.map(|ip| ip.to_canonical());
        let host = |host: &IpAddr| ips.contains(&host.to_canonical());
        (self.hosts.is_empty() || self.hosts.iter().any(host))
            && (self.qps.is_empty() || self.qps.iter().any(|qp| qps.contains(&Some(*qp))))
    }

    /// True when every flow is chosen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.qps.is_empty() && self.hosts.is_empty()
    }
}

/// A kind of operation to filter by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpClass {
    /// SEND packets.
    Send,
    /// RDMA WRITE packets, ATOMIC WRITE included.
    Write,
    /// RDMA READ requests and responses.
    Read,
    /// Acknowledgements: ACK, NAK, RNR NAK, and answers to atomics.
    Ack,
    /// Atomic requests and their answers.
    Atomic,
    /// FLUSH.
    Flush,
    /// Congestion notification packets.
    Cnp,
    /// Opcodes that no specification assigns.
    Unknown,
}

impl OpClass {
    /// All kinds with the word for each.
    pub const ALL: [(&'static str, Self); 8] = [
        ("send", Self::Send),
        ("write", Self::Write),
        ("read", Self::Read),
        ("ack", Self::Ack),
        ("atomic", Self::Atomic),
        ("flush", Self::Flush),
        ("cnp", Self::Cnp),
        ("unknown", Self::Unknown),
    ];

    fn holds(self, packet: &Packet<'_>) -> bool {
        self.covers(packet.bth.opcode.info().verb)
    }

    /// Whether an operation is of this kind.
    #[must_use]
    pub const fn covers(self, verb: Verb) -> bool {
        match self {
            Self::Send => matches!(verb, Verb::Send),
            Self::Write => matches!(verb, Verb::Write | Verb::AtomicWrite),
            Self::Read => matches!(verb, Verb::Read | Verb::ReadResponse),
            Self::Ack => matches!(verb, Verb::Acknowledge | Verb::AtomicAcknowledge),
            Self::Atomic => matches!(
                verb,
                Verb::CompareSwap | Verb::FetchAdd | Verb::AtomicAcknowledge
            ),
            Self::Flush => matches!(verb, Verb::Flush),
            Self::Cnp => matches!(verb, Verb::Cnp),
            Self::Unknown => matches!(verb, Verb::Unknown),
        }
    }
}

impl FromStr for OpClass {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(word))
            .map(|(_, class)| *class)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
                format!("not one of {}", names.join(", "))
            })
    }
}

/// Packet sequence numbers from `first` to `last`, both included; the range
/// may wrap around 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PsnRange {
    /// First number of the range.
    pub first: Psn,
    /// Last number of the range.
    pub last: Psn,
}

impl PsnRange {
    /// Whether the range holds `psn`.
    #[must_use]
    pub const fn contains(self, psn: Psn) -> bool {
        ahead_of(self.first, psn) <= ahead_of(self.first, self.last)
    }
}

/// Steps forward from `from` to `to` around the circle of 2^24.
const fn ahead_of(from: Psn, to: Psn) -> u32 {
    to.get().wrapping_sub(from.get()) & 0xff_ffff
}

impl FromStr for PsnRange {
    type Err = String;

    /// `A..B`, `A..` (half the circle from A on) or `A`, decimal or 0x-hex.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| parse_number(text, 24).map(Psn::new);
        let Some((first, last)) = text.split_once("..") else {
            let psn = number(text)?;
            return Ok(Self {
                first: psn,
                last: psn,
            });
        };
        let first = number(first)?;
        let last = match last.strip_prefix('=').unwrap_or(last) {
            "" => first.advance((1 << 23) - 1),
            last => number(last)?,
        };
        Ok(Self { first, last })
    }
}

/// Reads a number in decimal or 0x-hex that fits into `bits` bits.
///
/// # Errors
/// A sentence for the user.
pub fn parse_number(text: &str, bits: u32) -> Result<u32, String> {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |hex| (hex, 16));
    // `from_str_radix` would take a sign.
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(format!("{text:?} is not a number (decimal or 0x…)"));
    }
    match u32::from_str_radix(digits, radix) {
        Ok(value) if u64::from(value) < 1 << bits => Ok(value),
        _ => Err(format!("{text} does not fit into {bits} bits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_ranges_wrap() {
        let range: PsnRange = "0xfffffe..0x000002".parse().unwrap();
        let inside = |psn| range.contains(Psn::new(psn));
        assert!(inside(0xfffffe) && inside(0xffffff) && inside(0) && inside(2));
        assert!(!inside(3) && !inside(0xfffffd));
        let one: PsnRange = "7".parse().unwrap();
        assert!(one.contains(Psn::new(7)) && !one.contains(Psn::new(8)));
        let open: PsnRange = "10..".parse().unwrap();
        assert!(open.contains(Psn::new(0x7fffff)) && !open.contains(Psn::new(9)));
        assert!("0x1000000..".parse::<PsnRange>().is_err());
        assert!("x..y".parse::<PsnRange>().is_err());
    }

    #[test]
    fn numbers_say_what_is_wrong_with_them() {
        assert_eq!(parse_number("0x12", 24), Ok(0x12));
        for large in ["16777216", "4294967296", "0x100000000"] {
            assert!(
                parse_number(large, 24).unwrap_err().contains("24 bits"),
                "{large}"
            );
        }
        for none in ["", "+5", "0x+5", "-1", "0x", "1e3", "٣"] {
            assert!(
                parse_number(none, 24).unwrap_err().contains("not a number"),
                "{none}"
            );
        }
    }

    #[test]
    fn words_for_operations() {
        assert_eq!("WRITE".parse(), Ok(OpClass::Write));
        assert!(
            "writes"
                .parse::<OpClass>()
                .unwrap_err()
                .contains("send, write")
        );
    }
}
