//! Feeding packets to the tracker, and what it says in a form that can be
//! compared and printed.

use super::capfile::Pkt;
use roce_sniff::{
    Options, decode,
    source::{LinkType, RawPacket},
    track::{Event, EventKind, Flow, FlowId, FlowKey, Limits, Listener, Message, Record, Tracker},
};
use std::fmt::Debug;

/// An event without the packet it happened at.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub flow: FlowId,
    pub frame: u64,
    pub kind: EventKind,
}

/// Everything a tracker told.
#[derive(Debug, Default)]
pub struct Log {
    pub events: Vec<Told>,
    pub messages: Vec<Message>,
}

impl Listener for Log {
    fn event(&mut self, event: &Event<'_>) {
        self.events.push(Told {
            flow: event.flow,
            frame: event.record.frame,
            kind: event.kind,
        });
    }

    fn message(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }
}

/// A tracker that saw a whole capture.
#[derive(Debug)]
pub struct Tracked {
    pub tracker: Tracker,
    pub log: Log,
    /// Packets that were fed.
    pub fed: u64,
}

/// Ethernet frames as the crate decodes them; what is no RoCE is left out.
pub fn records(packets: &[Pkt]) -> Vec<Record> {
    let record = |(n, packet): (usize, &Pkt)| {
        let raw = RawPacket {
            input: 0,
            frame: n as u64 + 1,
            ts_ns: packet.ts_ns as i64,
            len: packet.len,
            link: LinkType::ETHERNET,
            path: None,
            data: &packet.data,
        };
        let decoded = decode(&raw, &Options::default()).ok()?;
        Some(Record::new(&raw, &decoded))
    };
    packets.iter().enumerate().filter_map(record).collect()
}

/// Follows the packets of a capture to its end.
pub fn track(packets: &[Pkt]) -> Tracked {
    track_within(packets, Limits::default())
}

/// The same with limits of the caller's.
pub fn track_within(packets: &[Pkt], limits: Limits) -> Tracked {
    let mut tracker = Tracker::new(limits);
    let mut log = Log::default();
    let records = records(packets);
    for record in &records {
        tracker.add(record, &mut log);
    }
    tracker.finish(&mut log);
    Tracked {
        tracker,
        log,
        fed: records.len() as u64,
    }
}

impl Tracked {
    /// The entries of one flow, in order.
    pub fn entries(&self, key: FlowKey) -> Vec<&Flow> {
        self.tracker.flows().filter(|f| f.key == key).collect()
    }

    /// Events of one kind, as their frames.
    pub fn frames(&self, wanted: impl Fn(&EventKind) -> bool) -> Vec<u64> {
        let hits = self.log.events.iter().filter(|told| wanted(&told.kind));
        hits.map(|told| told.frame).collect()
    }

    /// Messages of one entry.
    pub fn messages(&self, id: FlowId) -> Vec<&Message> {
        let own = self.log.messages.iter().filter(|m| m.flow == id);
        own.collect()
    }
}

/// A flow's name in a failure.
pub fn name(key: FlowKey) -> String {
    format!("{} > {} QP {}", key.src, key.dst, key.dest_qp)
}

/// A flow's counts by name, those of sequences with their prefix.
pub fn counts(flow: &Flow) -> Vec<(String, String)> {
    let mut list = Vec::new();
    let mut add = |name: &str, value: &dyn Debug| {
        list.push((name.to_owned(), format!("{value:?}")));
    };
    add("transport", &flow.transport);
    add("packets", &flow.packets);
    add("payload_bytes", &flow.payload_bytes);
    add("wire_bytes", &flow.wire_bytes);
    add("goodput_bytes", &flow.goodput_bytes);
    add("ops", &flow.ops.sorted());
    add("requests", &flow.requests);
    add("responses", &flow.responses);
    add("untracked", &flow.untracked);
    add("acknowledgements", &flow.acknowledgements);
    add("acks", &flow.acks);
    add("naks", &flow.naks);
    add("rnr_naks", &flow.rnr_naks);
    add("cnps", &flow.cnps);
    add("ce", &flow.ce);
    add("ecn_capable", &flow.ecn_capable);
    add("icrc_invalid", &flow.icrc_invalid);
    add("corrupted", &flow.corrupted);
    add("icrc_valid", &flow.icrc_valid);
    add("fragments", &flow.fragments);
    add("mtu", &flow.mtu);
    add("messages", &flow.messages);
    add("message_bytes", &flow.message_bytes);
    add("latencies", &flow.latency.count());
    add("latency", &flow.latency.quantile(0.5));
    add("longest latency", &flow.latency.max());
    add("acks_own", &flow.acks_own);
    add("acks_skipped", &flow.acks_skipped);
    add("retransmit_runs", &flow.retransmit_runs);
    add("dscp", &flow.dscp);
    add("ended", &flow.ended);
    add("outstanding", &flow.outstanding());
    list
}
