//! The JSON document of a write run.

use std::collections::BTreeMap;

use serde::Serialize;

use super::write::{Speed, completion};
use crate::bypass::{Evidence, Judgement, Seen};

/// The JSON document of a run: the keys are a contract.
#[derive(Debug, Serialize)]
pub struct WriteDocument {
    device: Option<String>,
    port: Option<u8>,
    /// Netdev that the device sends through; `netdev` is the one listened on.
    device_netdev: Option<String>,
    gid_index: Option<u8>,
    gid: Option<String>,
    dest_gid: Option<String>,
    mtu: Option<u32>,
    qp: Option<u32>,
    op: &'static str,
    posted: u32,
    completed: u32,
    failed: BTreeMap<String, u32>,
    payload_verified: Option<bool>,
    expected: Expected,
    control: Option<ControlNumbers>,
    netdev: Option<NetdevNumbers>,
    tap: TapNumbers,
    counters_delta: BTreeMap<String, BTreeMap<String, i64>>,
    elapsed_ns: u64,
    bandwidth_bps: Option<f64>,
    messages_per_s: Option<f64>,
    latency_ns: Option<BTreeMap<&'static str, u64>>,
    verdict: &'static str,
    finding: String,
    why: String,
    next: Vec<String>,
    writes: Vec<WriteRow>,
}

#[derive(Debug, Serialize)]
struct Expected {
    requests: u32,
    acks: u32,
}

#[derive(Debug, Serialize)]
struct ControlNumbers {
    sent: u32,
    seen: u32,
}

#[derive(Debug, Serialize)]
struct NetdevNumbers {
    name: String,
    packets: u64,
    requests: u64,
    responses: u64,
    retransmitted: u64,
    naks: u64,
    others: u64,
    kernel_dropped: u64,
}

#[derive(Debug, Serialize)]
struct TapNumbers {
    enabled: bool,
    packets: u64,
    looped: u64,
    lost: u64,
}

#[derive(Debug, Serialize)]
struct WriteRow {
    n: u32,
    psn: u32,
    va: String,
    rkey: String,
    dma_len: u32,
    dest_qp: u32,
    status: String,
    seen_on_netdev: bool,
    netdev_request_frame: Option<u64>,
    netdev_response_frame: Option<u64>,
    retransmits: u32,
    naks: u32,
    seen_at_tap: Option<bool>,
    latency_ns: Option<u64>,
}

impl WriteDocument {
    /// Puts the document together.
    #[must_use]
    pub fn new(evidence: &Evidence, judgement: &Judgement) -> Self {
        let ledger = &evidence.ledger;
        let endpoint = ledger.endpoint.as_ref();
        let need = ledger.need();
        let listening = evidence.listening.as_ref();
        let speed = Speed::of(ledger);
        let failed = ledger.failures().into_iter();
        Self {
            device: endpoint.map(|e| e.device.clone()),
            port: endpoint.map(|e| e.port),
            device_netdev: endpoint.and_then(|e| e.netdev.clone()),
            gid_index: endpoint.map(|e| e.gid_index),
            gid: endpoint.map(|e| e.gid.to_string()),
            dest_gid: endpoint.map(|e| e.dest_gid.to_string()),
            mtu: endpoint.map(|e| e.mtu),
            qp: endpoint.map(|e| e.qp.get()),
            op: ledger.op.word(),
            posted: ledger.posted.len() as u32,
            completed: ledger.completed(),
            failed: failed.map(|(s, count)| (s.to_string(), count)).collect(),
            payload_verified: ledger.payload_verified,
            expected: Expected {
                requests: need.requests,
                acks: need.responses,
            },
            control: listening.and_then(|l| l.control).map(|c| ControlNumbers {
                sent: c.sent,
                seen: c.seen,
            }),
            netdev: listening.map(|l| NetdevNumbers {
                name: l.netdev.clone(),
                packets: l.seen.packets(),
                requests: l.seen.requests,
                responses: l.seen.responses,
                retransmitted: l.seen.again,
                naks: l.seen.naks,
                others: l.packets.saturating_sub(l.seen.packets()),
                kernel_dropped: l.kernel_dropped,
            }),
            tap: evidence.tap.as_ref().map_or(
                TapNumbers {
                    enabled: false,
                    packets: 0,
                    looped: 0,
                    lost: 0,
                },
                |tap| TapNumbers {
                    enabled: true,
                    packets: tap.seen.packets(),
                    looped: tap.looped,
                    lost: tap.lost,
                },
            ),
            counters_delta: evidence
                .counters
                .iter()
                .map(|c| (c.device.clone(), c.changed.clone()))
                .collect(),
            elapsed_ns: ledger.elapsed_ns,
            bandwidth_bps: speed.as_ref().map(|s| s.bits_per_s),
            messages_per_s: speed.as_ref().map(|s| s.messages_per_s),
            latency_ns: speed.map(|s| {
                ["p50", "p99", "max"]
                    .into_iter()
                    .zip(s.latency_ns)
                    .collect()
            }),
            verdict: judgement.verdict.word(),
            finding: judgement.finding.clone(),
            why: judgement.why.clone(),
            next: judgement.next.clone(),
            writes: write_rows(evidence),
        }
    }
}

fn write_rows(evidence: &Evidence) -> Vec<WriteRow> {
    let ledger = &evidence.ledger;
    let Some(endpoint) = &ledger.endpoint else {
        return Vec::new();
    };
    let listening = evidence.listening.as_ref();
    let rows = ledger.posted.iter().enumerate().map(|(index, posted)| {
        let need = ledger.op.packets(posted.len, endpoint.mtu);
        let at = |seen: &Seen| seen.writes.get(index).copied().unwrap_or_default();
        let heard = listening.map(|l| at(&l.seen)).unwrap_or_default();
        WriteRow {
            n: posted.n,
            psn: posted.psn.get(),
            va: format!("{:#018x}", posted.va.get()),
            rkey: posted.rkey.to_string(),
            dma_len: posted.len,
            dest_qp: endpoint.dest_qp.get(),
            status: completion(posted),
            seen_on_netdev: heard.requests >= need.requests,
            netdev_request_frame: heard.request_frame,
            netdev_response_frame: heard.response_frame,
            retransmits: heard.again,
            naks: heard.naks,
            seen_at_tap: evidence
                .tap
                .as_ref()
                .map(|tap| at(&tap.seen).requests >= need.requests),
            latency_ns: posted.completion.map(|c| c.latency_ns),
        }
    });
    rows.collect()
}
