//! Whether a sender slowed down when it was told of congestion.
//!
//! Rates are bytes of payload over the time in which the connection was busy:
//! an application that pauses, with nothing that waits for an answer, has not
//! slowed down. What a flow had sent is taken down when its first CNP comes and
//! when its latest one does; before that, nothing is kept.

use super::{Flow, Tracker};

/// Silence, of requests and of their answers, that is a pause.
pub(super) const PAUSE_NS: i64 = 10_000_000;
/// Packets of data on either side of the first CNP that make a rate.
const ENOUGH: u64 = 32;
/// Packets of data that there are to a pause, at least, where there is a rate.
const PACKETS_A_PAUSE: u64 = 8;
/// What a sender slows down to at least, in per cent of what it sent before.
const SLOWED: u64 = 90;

/// What a sender had sent when the connection was busy last.
#[derive(Debug, Clone, Copy)]
struct Sent {
    ts_ns: i64,
    packets: u64,
    bytes: u64,
    paused_ns: i64,
    pauses: u64,
}

impl Sent {
    /// `asks` is the flow of the requests: the sender's own, or, where it sends
    /// READ responses, the other one.
    const fn now(sender: &Flow, asks: &Flow) -> Self {
        Self {
            // Not the time of the CNP: it may have come in a pause.
            ts_ns: asks.state.active_ns,
            packets: sender.requests.packets + sender.responses.packets,
            bytes: sender.payload_bytes,
            paused_ns: asks.state.paused_ns,
            pauses: asks.state.pauses,
        }
    }

    /// Bits a second from here on, where there are packets enough to say so.
    fn rate(&self, to: &Self) -> Option<f64> {
        let paused_ns = to.paused_ns.saturating_sub(self.paused_ns);
        let busy_ns = to
            .ts_ns
            .saturating_sub(self.ts_ns)
            .saturating_sub(paused_ns);
        let (packets, bytes) = (to.packets - self.packets, to.bytes - self.bytes);
        // What is left between many pauses is no time to tell a rate from; and
        // who sends a packet now and then may be held back to that.
        let pauses = (to.pauses - self.pauses).saturating_mul(PACKETS_A_PAUSE);
        let enough = packets >= ENOUGH.max(pauses) && bytes > 0 && busy_ns > 0;
        enough.then(|| bytes as f64 * 8e9 / busy_ns as f64)
    }
}

/// What a sender had sent when its first CNP came, and its latest one.
#[derive(Debug, Clone)]
pub(super) struct Told {
    /// Its own requests keep the connection busy, rather than the other side's.
    asks: bool,
    first: Sent,
    latest: Sent,
}

impl Told {
    /// What a sender has sent by now, by the same clock as before.
    const fn now(&self, sender: &Flow, other: &Flow) -> Sent {
        Sent::now(sender, if self.asks { sender } else { other })
    }
}

/// What a sender made of being told of congestion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throttled {
    /// Payload, in bits a second, up to the first CNP.
    pub before_bps: f64,
    /// The same from there on.
    pub after_bps: f64,
    /// `after_bps` is that up to the latest CNP, rather than up to the end.
    pub while_told: bool,
}

impl Throttled {
    /// The later rate in per cent of the earlier one.
    #[must_use]
    pub fn percent(&self) -> u64 {
        (self.after_bps * 100.0 / self.before_bps).round() as u64
    }

    /// Whether it slowed down.
    #[must_use]
    pub fn slowed(&self) -> bool {
        self.percent() < SLOWED
    }
}

impl Tracker {
    /// A CNP came in this flow: takes down what the sender that it is for has
    /// sent so far.
    pub(super) fn told(&mut self, slot: usize) {
        let Some(peer) = self.peer(slot) else { return };
        let (sender, other) = (&self.flows[peer], &self.flows[slot]);
        let told = sender.told.as_deref();
        let asks = told.map_or(
            sender.requests.packets >= sender.responses.packets,
            |told| told.asks,
        );
        let now = Sent::now(sender, if asks { sender } else { other });
        let told = self.flows[peer].told.get_or_insert_with(|| {
            Box::new(Told {
                asks,
                first: now,
                latest: now,
            })
        });
        told.latest = now;
    }

    /// How fast a flow was before its sender was told of congestion and after;
    /// `None` where it was not, or too little was sent to say.
    #[must_use]
    pub fn throttled(&self, flow: &Flow) -> Option<Throttled> {
        let told = flow.told.as_ref()?;
        let other = self.flow(flow.peer?)?;
        let start = Sent {
            ts_ns: flow.first_ts_ns,
            packets: 0,
            bytes: 0,
            paused_ns: 0,
            pauses: 0,
        };
        let before_bps = start.rate(&told.first)?;
        if let Some(after_bps) = told.first.rate(&told.latest) {
            return Some(Throttled {
                before_bps,
                after_bps,
                while_told: true,
            });
        }
        // Who was told once and is as fast as before may have been slower in
        // between.
        let end = told.now(flow, other);
        let throttled = Throttled {
            before_bps,
            after_bps: told.first.rate(&end)?,
            while_told: false,
        };
        throttled.slowed().then_some(throttled)
    }
}
