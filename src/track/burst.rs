//! Packets of one message that follow each other in a capture: they are taken
//! in at once.

use super::{
    brief::{Brief, Class},
    flow::Size,
};
use crate::wire::{
    opcode::{Position, Verb},
    types::Psn,
};

/// Time that the packets of a burst take at most: less than any silence that
/// means something.
pub(super) const BURST_NS: i64 = 1_000_000;

/// Packets of one message of a flow, one right after the other: the first one,
/// then such that have the PSN after the one before, carry as much as that
/// unless they are the last ones of the message, and differ in nothing that
/// anything is concluded from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Burst<'a> {
    pub first: &'a Brief,
    /// Those between the first and the last one.
    pub inner: &'a [Brief],
    /// The same as the first one where that is alone.
    pub last: &'a Brief,
    pub size: Size,
}

/// What of a packet decides whether it goes on with a burst, and whether that
/// may go on after it, as far as its headers tell: the same for all packets
/// alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// Flow, input and kind of a packet that others may follow, else zero.
    opens: u64,
    /// The same of a packet that may follow others.
    joins: u64,
    payload: u16,
    /// Bits of the payload's length that count.
    full: u16,
}

impl Link {
    /// That of a packet on its own.
    pub const NONE: Self = Self {
        opens: 0,
        joins: 0,
        payload: 0,
        full: 0,
    };

    pub fn of(brief: &Brief) -> Self {
        let info = brief.opcode.info();
        if brief.class != Class::Request {
            return Self::NONE;
        }
        let write = u32::from(info.verb == Verb::Write);
        // Never zero.
        let key = u64::from(brief.flow) << 32 | u64::from(brief.kind() << 2 | write << 1 | 1);
        let when = |is: bool| if is { key } else { 0 };
        Self {
            opens: when(!info.position.ends() && !brief.asks()),
            joins: when(!info.position.begins() && !brief.names_memory()),
            payload: brief.payload_len,
            full: if info.position == Position::Last {
                0
            } else {
                !0
            },
        }
    }
}

/// Where the newest burst stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    link: Link,
    began_ns: i64,
    ts_ns: i64,
    psn: u32,
}

impl End {
    /// No packet can follow.
    pub const CLOSED: Self = Self {
        link: Link::NONE,
        began_ns: 0,
        ts_ns: 0,
        psn: 0,
    };

    /// Takes in the next packet of the capture; `true` where it goes on with
    /// the burst.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    pub fn take(&mut self, link: Link, brief: &Brief) -> bool {
        let end = *self;
        let joins = link.joins == end.link.opens
            && link.joins != 0
            && (link.payload ^ end.link.payload) & link.full == 0
            && brief.psn == Psn::new(end.psn + 1).get()
            && brief.ts_ns >= end.ts_ns
            && brief.ts_ns.saturating_sub(end.began_ns) < BURST_NS;
        *self = Self {
            link,
            began_ns: if joins { end.began_ns } else { brief.ts_ns },
            ts_ns: brief.ts_ns,
            psn: brief.psn,
        };
        joins
    }
}

impl Size {
    /// That of one packet.
    #[inline]
    pub fn brief(brief: &Brief) -> Self {
        Self {
            packets: 1,
            payload: brief.payload_len.into(),
            wire: brief.len.into(),
        }
    }

    /// Takes in another packet.
    #[inline]
    pub fn extend(&mut self, brief: &Brief) {
        self.packets += 1;
        self.payload += u64::from(brief.payload_len);
        self.wire += u64::from(brief.len);
    }
}

impl<'a> Burst<'a> {
    /// The packets in front, which are so many.
    #[inline]
    pub fn split(briefs: &'a [Brief], size: Size) -> Option<(Self, &'a [Brief])> {
        let (packets, rest) = briefs.split_at_checked(size.packets as usize)?;
        let (first, others) = packets.split_first()?;
        let (last, inner) = others.split_last().unwrap_or((first, &[]));
        Some((
            Self {
                first,
                inner,
                last,
                size,
            },
            rest,
        ))
    }

    /// A packet alone.
    #[inline]
    pub fn alone(brief: &'a Brief) -> Self {
        Self {
            first: brief,
            inner: &[],
            last: brief,
            size: Size::brief(brief),
        }
    }

    /// Whether it is more than one packet.
    #[inline]
    pub const fn is_many(&self) -> bool {
        self.size.packets > 1
    }

    /// The packets.
    #[inline]
    pub fn briefs(&self) -> impl Iterator<Item = &'a Brief> {
        let last = self.is_many().then_some(self.last);
        std::iter::once(self.first).chain(self.inner).chain(last)
    }
}
