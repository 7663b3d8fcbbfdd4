//! Flows and connections for programs: one JSON document, or CSV with a row a
//! flow.

use std::{
    collections::HashMap,
    io::{self, Write},
    net::IpAddr,
};

use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeStruct},
};

use super::{
    connections::{chosen, state_word},
    fields::Fields,
    flows::{FlowsReport, per_s},
    interval::Interval,
    text::ip,
};
use crate::{
    track::{CmState, Connection, Endpoint, Flow, FlowId, Latency, OpCounts, PsnCounts, Throttled},
    wire::{cm::reject_reason, opcode::Opcode, types::QpNumber},
};

/// Places of flows in the list that is printed.
type Places = HashMap<FlowId, usize, foldhash::fast::RandomState>;

/// The whole document. Rows are made as they are written, so that a million
/// flows need no second copy.
pub(super) struct FlowsDocument<'a> {
    report: &'a FlowsReport<'a>,
    flows: Vec<&'a Flow>,
    places: Places,
}

impl<'a> FlowsDocument<'a> {
    pub fn new(report: &'a FlowsReport<'a>) -> Self {
        let flows: Vec<_> = report.chosen().collect();
        let places = flows.iter().enumerate().map(|(i, flow)| (flow.id, i));
        Self {
            report,
            places: places.collect(),
            flows,
        }
    }

    fn place(&self, id: Option<FlowId>) -> Option<usize> {
        self.places.get(&id?).copied()
    }

    fn flow(&self, flow: &Flow) -> FlowRow {
        FlowRow::new(flow, self.place(flow.peer), self.report)
    }
}

impl Serialize for FlowsDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let FlowsReport {
            capture,
            tracker,
            interval,
            ..
        } = self.report;
        let mut document = serializer.serialize_struct("flows", 4)?;
        document.serialize_field("capture", &capture.document(tracker))?;
        document.serialize_field("flows", &Rows(self))?;
        document.serialize_field("connections", &Connections(self))?;
        if let Some(interval) = interval {
            let interval = IntervalDocument {
                end_ns: interval.end_ns,
                length_ns: interval.length.as_nanos() as u64,
            };
            document.serialize_field("interval", &interval)?;
        }
        document.end()
    }
}

struct Rows<'a>(&'a FlowsDocument<'a>);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.flows.iter().map(|flow| self.0.flow(flow)))
    }
}

struct Connections<'a>(&'a FlowsDocument<'a>);

impl Serialize for Connections<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let FlowsReport {
            tracker, filter, ..
        } = self.0.report;
        let connections = tracker.connections();
        let rows = connections
            .iter()
            .filter(|connection| chosen(connection, filter));
        serializer.collect_seq(rows.map(|connection| ConnectionRow::new(connection, self.0)))
    }
}

#[derive(Serialize)]
struct IntervalDocument {
    end_ns: i64,
    length_ns: u64,
}

/// One flow: the keys are a contract.
#[derive(Serialize)]
struct FlowRow {
    src: IpAddr,
    dst: IpAddr,
    dest_qp: u32,
    transport: &'static str,
    packets: u64,
    payload_bytes: u64,
    ops: Ops,
    first_psn: u32,
    last_psn: u32,
    gaps: u64,
    missing: u64,
    retransmitted: u64,
    reordered: u64,
    duplicates: u64,
    acks: u64,
    naks: Naks,
    rnr_naks: u64,
    cnps: u64,
    ce: u64,
    messages: u64,
    mirror_duplicates: u64,
    capture_loss: u64,
    requests: Counts,
    responses: Counts,
    wire_bytes: u64,
    goodput_bytes: u64,
    message_bytes: u64,
    latency_ns: Option<Quantiles>,
    mtu: Option<u16>,
    first_ts_ns: i64,
    last_ts_ns: i64,
    messages_per_s: Option<f64>,
    goodput_bps: Option<f64>,
    acknowledgements: u64,
    acks_own: u64,
    acks_skipped: u64,
    retransmit_runs: Runs,
    untracked: u64,
    ecn_capable: u64,
    icrc_valid: u64,
    icrc_invalid: u64,
    corrupted: u64,
    fragments: u64,
    dscp: u8,
    /// Place of the opposite flow in the list.
    peer: Option<usize>,
    /// Queue pair that it comes from.
    src_qp: Option<u32>,
    /// How that is known.
    how: &'static str,
    ended: bool,
    /// What its sender made of being told of congestion.
    throttled: Option<ThrottledRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<Moved>,
}

#[derive(Serialize)]
struct ThrottledRow {
    before_bps: f64,
    after_bps: f64,
    while_told: bool,
}

impl From<Throttled> for ThrottledRow {
    fn from(throttled: Throttled) -> Self {
        Self {
            before_bps: throttled.before_bps,
            after_bps: throttled.after_bps,
            while_told: throttled.while_told,
        }
    }
}

#[derive(Serialize)]
struct Counts {
    packets: u64,
    new: u64,
    gaps: u64,
    skipped: u64,
    missing: u64,
    capture_loss: u64,
    retransmitted: u64,
    refilled: u64,
    reordered: u64,
    duplicates: u64,
    mirror_duplicates: u64,
}

impl From<PsnCounts> for Counts {
    fn from(counts: PsnCounts) -> Self {
        let PsnCounts {
            packets,
            new,
            gaps,
            skipped,
            missing,
            capture_loss,
            retransmitted,
            refilled,
            reordered,
            duplicates,
            mirror_duplicates,
        } = counts;
        Self {
            packets,
            new,
            gaps,
            skipped,
            missing,
            capture_loss,
            retransmitted,
            refilled,
            reordered,
            duplicates,
            mirror_duplicates,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Quantiles {
    count: u64,
    p50: u64,
    p99: u64,
    max: u64,
}

impl Quantiles {
    pub fn of(latency: &Latency) -> Option<Self> {
        Some(Self {
            count: latency.count(),
            p50: latency.quantile(0.5)?,
            p99: latency.quantile(0.99)?,
            max: latency.max()?,
        })
    }
}

#[derive(Serialize)]
struct Runs {
    sequence_nak: u64,
    rnr: u64,
    timeout: u64,
    implied_nak: u64,
    unknown: u64,
}

#[derive(Serialize)]
struct Moved {
    packets: u64,
    messages: u64,
    goodput_bytes: u64,
    packets_per_s: f64,
    messages_per_s: f64,
    goodput_bps: f64,
}

/// Packets by operation, in the order of opcodes.
struct Ops(Vec<(Opcode, u64)>);

impl Serialize for Ops {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (opcode, count) in &self.0 {
            map.serialize_entry(&format_args!("{opcode}"), count)?;
        }
        map.end()
    }
}

/// NAKs by code.
struct Naks(Vec<(&'static str, u64)>);

impl Serialize for Naks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

impl FlowRow {
    fn new(flow: &Flow, peer: Option<usize>, report: &FlowsReport<'_>) -> Self {
        let both = |count: fn(&PsnCounts) -> u64| count(&flow.requests) + count(&flow.responses);
        let moved = |interval: &Interval| {
            let carried = interval.of(flow);
            Moved {
                packets: carried.packets,
                messages: carried.messages,
                goodput_bytes: carried.goodput_bytes,
                packets_per_s: interval.per_s(carried.packets),
                messages_per_s: interval.per_s(carried.messages),
                goodput_bps: interval.per_s(carried.goodput_bytes * 8),
            }
        };
        let naks = flow.naks();
        let runs = flow.retransmit_runs;
        Self {
            src: flow.key.src,
            dst: flow.key.dst,
            dest_qp: flow.key.dest_qp.get(),
            transport: flow.transport.name(),
            packets: flow.packets,
            payload_bytes: flow.payload_bytes,
            ops: Ops(OpCounts::sorted(&flow.ops)),
            first_psn: flow.first_psn.get(),
            last_psn: flow.last_psn.get(),
            gaps: both(|counts| counts.gaps),
            missing: both(|counts| counts.missing),
            retransmitted: both(|counts| counts.retransmitted),
            reordered: both(|counts| counts.reordered),
            duplicates: both(|counts| counts.duplicates),
            acks: flow.acks,
            naks: Naks(
                naks.map(|(code, count)| (code.map_or("other", |code| code.key()), count))
                    .collect(),
            ),
            rnr_naks: flow.rnr_naks,
            cnps: flow.cnps,
            ce: flow.ce,
            messages: flow.messages,
            mirror_duplicates: both(|counts| counts.mirror_duplicates) + flow.answer_copies,
            capture_loss: both(|counts| counts.capture_loss),
            requests: flow.requests.into(),
            responses: flow.responses.into(),
            wire_bytes: flow.wire_bytes,
            goodput_bytes: flow.goodput_bytes,
            message_bytes: flow.message_bytes,
            latency_ns: Quantiles::of(&flow.latency),
            mtu: flow.mtu,
            first_ts_ns: flow.first_ts_ns,
            last_ts_ns: flow.last_ts_ns,
            messages_per_s: per_s(flow, flow.messages),
            goodput_bps: per_s(flow, flow.goodput_bytes * 8),
            acknowledgements: flow.acknowledgements,
            acks_own: flow.acks_own,
            acks_skipped: flow.acks_skipped,
            retransmit_runs: Runs {
                sequence_nak: runs.sequence_nak,
                rnr: runs.rnr,
                timeout: runs.timeout,
                implied_nak: runs.implied_nak,
                unknown: runs.unknown,
            },
            untracked: flow.untracked,
            ecn_capable: flow.ecn_capable,
            icrc_valid: flow.icrc_valid,
            icrc_invalid: flow.icrc_invalid,
            corrupted: flow.corrupted,
            fragments: flow.fragments,
            dscp: flow.dscp,
            peer,
            src_qp: flow.src_qp.map(QpNumber::get),
            how: flow.how.word(),
            ended: flow.ended,
            throttled: report.tracker.throttled(flow).map(Into::into),
            interval: report.interval.map(moved),
        }
    }
}

/// One connection: the keys are a contract.
#[derive(Serialize)]
struct ConnectionRow {
    a: End,
    b: End,
    how: &'static str,
    path_mtu: Option<u16>,
    service: Option<Service>,
    state: Option<&'static str>,
    setup_ns: Option<i64>,
    reject: Option<Reject>,
    /// `a` or `b`.
    ended_by: Option<&'static str>,
    requests_sent: Option<u32>,
    req_ts_ns: Option<i64>,
    rep_ts_ns: Option<i64>,
    rtu_ts_ns: Option<i64>,
    end_ts_ns: Option<i64>,
    /// Places of the two flows in the list of flows.
    forward: Option<usize>,
    backward: Option<usize>,
}

#[derive(Serialize)]
struct End {
    ip: IpAddr,
    qp: Option<u32>,
    initial_psn: Option<u32>,
}

impl From<Endpoint> for End {
    fn from(end: Endpoint) -> Self {
        Self {
            ip: end.ip,
            qp: end.qp.map(crate::wire::types::QpNumber::get),
            initial_psn: end.initial_psn.map(crate::wire::types::Psn::get),
        }
    }
}

#[derive(Serialize)]
struct Service {
    id: String,
    name: Option<&'static str>,
}

#[derive(Serialize)]
struct Reject {
    reason: u16,
    words: Option<&'static str>,
}

impl ConnectionRow {
    fn new(connection: &Connection, document: &FlowsDocument<'_>) -> Self {
        let cm = connection.cm;
        let service = cm.and_then(|cm| cm.service_id);
        let rejected = cm.and_then(|cm| match cm.state {
            CmState::Rejected(reason) => Some(reason),
            _ => None,
        });
        Self {
            a: connection.a.into(),
            b: connection.b.into(),
            how: connection.how.word(),
            path_mtu: connection.path_mtu,
            service: service.map(|id| Service {
                id: format!("{id:#018x}"),
                name: crate::track::service_name(id),
            }),
            state: cm.map(|cm| state_word(cm.state)),
            setup_ns: cm.and_then(|cm| cm.setup_ns()),
            reject: rejected.map(|reason| Reject {
                reason,
                words: reject_reason(reason),
            }),
            ended_by: cm
                .and_then(|cm| cm.ended_by_a)
                .map(|a| if a { "a" } else { "b" }),
            requests_sent: cm.map(|cm| cm.requests),
            req_ts_ns: cm.and_then(|cm| cm.req_ns),
            rep_ts_ns: cm.and_then(|cm| cm.rep_ns),
            rtu_ts_ns: cm.and_then(|cm| cm.rtu_ns),
            end_ts_ns: cm.and_then(|cm| cm.end_ns),
            forward: document.place(connection.forward),
            backward: document.place(connection.backward),
        }
    }
}

/// Column names of the CSV output: the keys of a flow in the JSON document,
/// what stands in an object after its name.
const COLUMNS: &str = "src,dst,dest_qp,transport,packets,payload_bytes,ops,first_psn,last_psn,\
gaps,missing,retransmitted,reordered,duplicates,acks,naks,rnr_naks,cnps,ce,messages,\
mirror_duplicates,capture_loss,request_packets,response_packets,wire_bytes,goodput_bytes,\
message_bytes,latency_count,latency_p50_ns,latency_p99_ns,latency_max_ns,mtu,first_ts_ns,\
last_ts_ns,messages_per_s,goodput_bps,acknowledgements,acks_own,acks_skipped,retransmit_runs,\
icrc_valid,icrc_invalid,dscp,src_qp,ended,before_cnps_bps,after_cnps_bps";
/// Further ones with `--interval`.
const INTERVAL_COLUMNS: &str =
    ",interval_end_ns,interval_packets,interval_messages,interval_goodput_bytes";

/// Writes the names of the columns.
pub(super) fn csv_header(out: &mut impl Write, interval: bool) -> io::Result<()> {
    let more = if interval { INTERVAL_COLUMNS } else { "" };
    writeln!(out, "{COLUMNS}{more}")
}

/// Writes a row a flow.
pub(super) fn csv_rows(out: &mut impl Write, report: &FlowsReport<'_>) -> io::Result<()> {
    let mut text = Vec::new();
    for flow in report.chosen() {
        let row = FlowRow::new(flow, None, report);
        text.clear();
        csv_row(&mut text, &row, report.interval);
        out.write_all(&text)?;
    }
    Ok(())
}

fn csv_row(out: &mut Vec<u8>, row: &FlowRow, interval: Option<&Interval>) {
    ip(out, row.src);
    let mut f = Fields(out);
    f.address(row.dst);
    f.num(row.dest_qp);
    f.str(row.transport);
    f.num(row.packets);
    f.num(row.payload_bytes);
    f.counts(row.ops.0.iter().copied());
    f.num(row.first_psn);
    f.num(row.last_psn);
    for count in [
        row.gaps,
        row.missing,
        row.retransmitted,
        row.reordered,
        row.duplicates,
        row.acks,
    ] {
        f.num(count);
    }
    f.counts(row.naks.0.iter().copied());
    for count in [
        row.rnr_naks,
        row.cnps,
        row.ce,
        row.messages,
        row.mirror_duplicates,
        row.capture_loss,
        row.requests.packets,
        row.responses.packets,
        row.wire_bytes,
        row.goodput_bytes,
        row.message_bytes,
    ] {
        f.num(count);
    }
    let latency = row.latency_ns.as_ref();
    f.num(latency.map_or(0, |latency| latency.count));
    f.opt_num(latency.map(|latency| latency.p50));
    f.opt_num(latency.map(|latency| latency.p99));
    f.opt_num(latency.map(|latency| latency.max));
    f.opt_num(row.mtu);
    f.num(row.first_ts_ns);
    f.num(row.last_ts_ns);
    f.opt_float(row.messages_per_s);
    f.opt_float(row.goodput_bps);
    f.num(row.acknowledgements);
    f.num(row.acks_own);
    f.num(row.acks_skipped);
    let runs = &row.retransmit_runs;
    f.num(runs.sequence_nak + runs.rnr + runs.timeout + runs.implied_nak + runs.unknown);
    f.num(row.icrc_valid);
    f.num(row.icrc_invalid);
    f.num(row.dscp);
    f.opt_num(row.src_qp);
    f.flag(row.ended);
    let throttled = row.throttled.as_ref();
    f.opt_float(throttled.map(|throttled| throttled.before_bps));
    f.opt_float(throttled.map(|throttled| throttled.after_bps));
    if let (Some(interval), Some(moved)) = (interval, &row.interval) {
        f.num(interval.end_ns);
        f.num(moved.packets);
        f.num(moved.messages);
        f.num(moved.goodput_bytes);
    }
    out.push(b'\n');
}
