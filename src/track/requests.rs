//! Requests: which packets of a sender are new, sent again, late or twice.

use super::{
    Cause, Event, EventKind, Flow, Limits, Listener, Record, RunCounts,
    flow::Size,
    open::Open,
    record::Facts,
    sequence::{Place, Pos},
    state::{Context, Earlier, Tail, Verdict},
};
use crate::wire::opcode::{Position, Transport, Verb};

/// Path MTUs there are (IBTA vol. 1, 7.7.8), the largest first.
const MTUS: [u16; 5] = [4096, 2048, 1024, 512, 256];

impl RunCounts {
    fn add(&mut self, cause: Cause) {
        *match cause {
            Cause::SequenceNak => &mut self.sequence_nak,
            Cause::Rnr => &mut self.rnr,
            Cause::Timeout { .. } => &mut self.timeout,
            Cause::ImpliedNak => &mut self.implied_nak,
            Cause::ReadAgain | Cause::Unknown => &mut self.unknown,
        } += 1;
    }
}

impl Flow {
    pub(super) fn emit<L: Listener>(&self, listener: &mut L, packet: &impl Facts, kind: EventKind) {
        listener.event(&Event {
            flow: self.id,
            peer: self.peer,
            kind,
            record: &packet.record(),
        });
    }

    /// Takes in a request, or a datagram of a connected transport.
    pub(super) fn request<L: Listener>(
        &mut self,
        record: &Record,
        earlier: impl FnOnce() -> Option<Earlier>,
        answers: bool,
        limits: &Limits,
        listener: &mut L,
    ) {
        self.learn_mtu(record, listener);
        self.requests.packets += 1;
        let span = self.span(record);
        let pos = self.state.requests.position(record.psn);
        if !self.state.requests.started() {
            self.first_psn = record.psn;
            self.last_psn = record.psn;
        }
        if self.is_in_tail(record, pos, span, listener) {
            return;
        }
        match self.state.requests.place(pos) {
            Place::Expected => self.new_request(record, pos, span, 0, listener),
            Place::Ahead(_) if self.explains(pos) => {
                // The path MTU is known now, and with it what a READ takes.
                let span = self.span(record);
                self.new_request(record, pos, span, 0, listener);
            }
            Place::Ahead(gap) => self.new_request(record, pos, span, gap, listener),
            place => {
                let earlier = earlier();
                self.old_request(record, pos, span, place, earlier, answers, limits, listener);
            }
        }
    }

    fn new_request<L: Listener>(
        &mut self,
        record: &Record,
        pos: Pos,
        span: u32,
        gap: u32,
        listener: &mut L,
    ) {
        let next = self.state.requests.next();
        let gap = if gap > 0 {
            self.requests.skipped += u64::from(gap);
            self.state.requests.skip_to(pos, span, [(next, pos)]);
            self.count_missing();
            gap
        } else {
            self.state.requests.advance(pos, span);
            0
        };
        // What only answers showed before it is a gap from here on.
        let tail = self.state.tail.take();
        let shown = tail.as_ref().map_or(0, Tail::len);
        let missing = tail.as_ref().map_or(0, Tail::untold);
        if missing > 0 {
            self.emit(listener, record, EventKind::CaptureLoss { missing });
        }
        self.newest_request(record, pos, span, gap + shown, listener);
    }

    /// Takes in the newest request, before which `gap` are missing.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "on every packet")]
    pub(super) fn newest_request<L: Listener>(
        &mut self,
        packet: &impl Facts,
        pos: Pos,
        span: u32,
        gap: u32,
        listener: &mut L,
    ) {
        self.requests.new += 1;
        self.goodput_bytes += u64::from(packet.payload_len());
        self.state.newest(packet);
        if gap > 0 {
            self.requests.gaps += 1;
            let kind = EventKind::Gap {
                missing: gap,
                responses: false,
            };
            self.emit(listener, packet, kind);
        }
        self.last_psn = packet.psn();
        let unsized_read = packet.opcode().info().verb == Verb::Read && self.mtu.is_none();
        self.state.unsized_read = if unsized_read {
            let remote = packet.remote().filter(|remote| remote.len > 256);
            remote.map(|remote| (pos, remote.len))
        } else {
            None
        };
        let in_place = self.state.messages.append(packet, pos, span, gap, self.mtu);
        if !in_place {
            self.emit(listener, packet, EventKind::OutOfPlace);
        }
    }

    /// Takes in the packets that follow the newest request in its burst: the
    /// last one of them, the one before that, where it is one of them too, and
    /// what the burst adds up to.
    #[inline]
    pub(super) fn more_requests(
        &mut self,
        before: Option<impl Facts>,
        last: &impl Facts,
        more: Size,
    ) {
        self.requests.new += more.packets;
        self.goodput_bytes += more.payload;
        if let Some(before) = before {
            self.state.active(before.ts_ns());
            self.state.newest(&before);
        }
        self.state.active(last.ts_ns());
        self.state.newest(last);
        self.last_psn = last.psn();
        self.state.messages.extend(last, more);
    }

    /// Whether a request is one of those that an answer came before: where a
    /// mirror or a merge puts answers in front of requests, that is no loss.
    fn is_in_tail<L: Listener>(
        &mut self,
        record: &Record,
        pos: Pos,
        span: u32,
        listener: &mut L,
    ) -> bool {
        let Some(mut tail) = self.state.tail.take() else {
            return false;
        };
        if pos < tail.from || tail.to <= pos {
            self.state.tail = Some(tail);
            return false;
        }
        let end = (pos + Pos::from(span)).min(tail.to);
        let gap = (pos - tail.from) as u32;
        let told = tail.told;
        if end < tail.to {
            tail.from = end;
            self.state.tail = Some(tail);
        }
        self.state.requests.fill(pos, span);
        self.state.requests.stretch(pos + Pos::from(span));
        self.requests.skipped -= (end - pos) as u64;
        self.count_missing();
        if gap > 0 && !told {
            self.emit(listener, record, EventKind::CaptureLoss { missing: gap });
        }
        self.newest_request(record, pos, span, gap, listener);
        true
    }

    /// A request behind the expected PSN.
    #[allow(clippy::too_many_arguments, reason = "what a judgement rests on")]
    fn old_request<L: Listener>(
        &mut self,
        record: &Record,
        pos: Pos,
        span: u32,
        place: Place,
        earlier: Option<Earlier>,
        answers: bool,
        limits: &Limits,
        listener: &mut L,
    ) {
        let read = record.opcode.info().verb == Verb::Read;
        let reliable = record.opcode.info().transport != Transport::Uc;
        let seen = place == Place::Seen;
        let verdict = if seen {
            let context = Context {
                answers,
                read,
                reliable,
            };
            self.state.judge_seen(record, pos, earlier, context, limits)
        } else {
            let hole = self.state.requests.fill(pos, span);
            let verdict = self.state.judge_unseen(record, pos, hole, limits);
            self.goodput_bytes += u64::from(record.payload_len);
            self.state.messages.insert(record, pos, span);
            self.count_missing();
            verdict
        };
        match verdict {
            Verdict::Again { cause, begins } => {
                self.requests.retransmitted += 1;
                self.requests.refilled += u64::from(!seen);
                if begins {
                    self.retransmit_runs.add(cause);
                }
                if let Some(at_ns) = self.state.rnr_over() {
                    let waited_ns = record.ts_ns.saturating_sub(at_ns);
                    self.emit(listener, record, EventKind::RnrOver { waited_ns });
                }
                self.state.went_back(record, pos, span, cause);
                if read {
                    let end = pos + Pos::from(span);
                    self.state.read_again = Some(match self.state.read_again {
                        Some((from, to)) if from <= end && pos <= to => {
                            (from.min(pos), to.max(end))
                        }
                        _ => (pos, end),
                    });
                }
                self.state.messages.again(record, pos);
                let kind = EventKind::Retransmitted {
                    cause,
                    begins,
                    fills: !seen,
                    responses: false,
                };
                self.emit(listener, record, kind);
            }
            Verdict::Late => {
                self.requests.reordered += 1;
                self.emit(listener, record, EventKind::Reordered { responses: false });
            }
            Verdict::Twice => {
                self.requests.duplicates += 1;
                self.emit(listener, record, EventKind::Duplicate);
            }
            Verdict::Copy => {
                self.requests.mirror_duplicates += 1;
                self.state.copies += 1;
                self.state.copied.note(record.psn);
                self.emit(listener, record, EventKind::MirrorDuplicate);
            }
        }
    }

    pub(super) fn count_missing(&mut self) {
        (self.requests.missing, self.requests.capture_loss) = self.state.requests.missing();
    }

    /// PSNs that a request takes: one a packet, but for READs one a response.
    fn span(&self, record: &Record) -> u32 {
        let read = record.opcode.info().verb == Verb::Read;
        let Some(remote) = record.remote.filter(|_| read) else {
            return 1;
        };
        // The least it can be, until the path MTU is known.
        let mtu = self.mtu.unwrap_or(MTUS[0]);
        remote.len.div_ceil(mtu.into()).clamp(1, 1 << 22)
    }

    /// Whether what seems a gap is the rest of a READ, whose number of
    /// responses was not known: the next request tells the path MTU.
    fn explains(&mut self, pos: Pos) -> bool {
        let Some((at, len)) = self.state.unsized_read else {
            return false;
        };
        let fits = |mtu: &&u16| at + Pos::from(len.div_ceil(u32::from(**mtu))) == pos;
        let Some(mtu) = MTUS.iter().find(fits) else {
            return false;
        };
        self.mtu = Some(*mtu);
        self.size_read();
        true
    }

    /// Stretches a READ whose number of responses was not known.
    pub(super) fn size_read(&mut self) {
        if let (Some((at, len)), Some(mtu)) = (self.state.unsized_read, self.mtu) {
            let span = len.div_ceil(mtu.into()).max(1);
            self.state.requests.stretch(at + Pos::from(span));
            self.state.messages.stretch(at, span);
            self.state.unsized_read = None;
        }
    }

    /// Learns the path MTU from packets that are full by their kind.
    pub(super) fn learn_mtu<L: Listener>(&mut self, record: &Record, listener: &mut L) {
        let full = matches!(
            record.opcode.info().position,
            Position::First | Position::Middle
        );
        if !full || record.malformed {
            return;
        }
        match self.mtu {
            Some(mtu) if record.payload_len == u32::from(mtu) => {}
            Some(mtu) => self.emit(listener, record, EventKind::OddMtu { mtu }),
            None => {
                let mtu = MTUS
                    .iter()
                    .find(|mtu| u32::from(**mtu) == record.payload_len);
                self.mtu = mtu.copied();
                self.size_read();
            }
        }
    }

    /// Whether a request cannot belong to the connection so far: its PSN is
    /// further away than any window of packets under way, and a message begins
    /// with it.
    pub(super) fn is_replaced_by(&self, record: &Record, limits: &Limits) -> bool {
        let sequence = &self.state.requests;
        if !sequence.started() || !record.opcode.info().position.begins() {
            return false;
        }
        let ahead = sequence.position(record.psn) - sequence.next();
        let idle_ns = record.ts_ns.saturating_sub(self.last_ts_ns);
        ahead < -limits.behind
            || ahead > limits.ahead
            || (ahead > limits.behind && idle_ns > limits.idle_ns)
    }

    /// Counts a message that ended and tells of it.
    pub(super) fn ended<L: Listener>(
        &mut self,
        open: &Open,
        acked_ns: Option<i64>,
        listener: &mut L,
    ) {
        self.messages += 1;
        if open.complete(acked_ns.is_some()) {
            self.message_bytes += open.bytes();
        }
        if let Some(latency_ns) = open.latency_ns(acked_ns) {
            self.latency.add(latency_ns);
        }
        if L::MESSAGES {
            listener.message(&open.message(self, acked_ns));
        }
    }
}
