//! The screen and the JSON document of a write run: what was posted, where it
//! was seen, the numbers that prove it, the verdict.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::{IpAddr, Ipv6Addr},
};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::{
    style::{Kind, Style},
    text::grouped,
};
use crate::{
    bypass::{Evidence, Judgement, Seen, SeenWrite, Verdict},
    rdma::ledger::{Endpoint, Ledger, Peer, Posted, WcStatus},
};

/// Rows shown of a long run: the first, some that failed, the last.
const FIRST_ROWS: usize = 16;
const FAILED_ROWS: usize = 8;
const LAST_ROWS: usize = 4;
/// From this many bytes or operations on, a run says something about speed.
const SPEED_BYTES: u64 = 1 << 20;
const SPEED_COUNT: u32 = 1000;

/// An address as people know it: IPv4 where the GID maps one.
fn address(gid: Ipv6Addr) -> IpAddr {
    IpAddr::V6(gid).to_canonical()
}

/// The lines before a run: the device, the path, what will be done.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_write_plan(
    out: &mut impl Write,
    endpoint: &Endpoint,
    ledger_op: crate::rdma::ledger::Op,
    count: u32,
    size: u32,
) -> io::Result<()> {
    let netdev = endpoint.netdev.as_deref().unwrap_or("an unknown netdev");
    writeln!(
        out,
        "{} on {netdev} · port {} active · GID {} {} (RoCE v2) · path MTU {}",
        endpoint.device, endpoint.port, endpoint.gid_index, endpoint.gid, endpoint.mtu
    )?;
    let size = if ledger_op.is_atomic() { 8 } else { size };
    let plural = if count == 1 { "" } else { "s" };
    let bytes = if size == 1 { "byte" } else { "bytes" };
    let to = match &endpoint.peer {
        Peer::Itself => "itself".into(),
        Peer::LocalDevice(device) => format!(
            "QP {:#x} on {device} ({})",
            endpoint.dest_qp.get(),
            address(endpoint.dest_gid)
        ),
        Peer::Host(host) => format!("QP {:#x} at {host}", endpoint.dest_qp.get()),
    };
    writeln!(
        out,
        "{count} {}{plural} of {size} {bytes}, QP {:#x} to {to}\n",
        ledger_op.name(),
        endpoint.qp.get()
    )
}

/// Prints the whole report of a run.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_write(
    out: &mut impl Write,
    style: Style,
    evidence: &Evidence,
    judgement: &Judgement,
    width: Option<usize>,
) -> io::Result<()> {
    let mut text = Vec::new();
    if !evidence.ledger.posted.is_empty() {
        rows(&mut text, style, evidence, width);
        speed(&mut text, &evidence.ledger);
        proof(&mut text, style, evidence);
    }
    verdict(&mut text, style, judgement, width);
    out.write_all(&text)
}

fn rows(text: &mut Vec<u8>, style: Style, evidence: &Evidence, width: Option<usize>) {
    let ledger = &evidence.ledger;
    let Some(endpoint) = &ledger.endpoint else {
        return;
    };
    let mut titles = vec![
        "#".into(),
        "operation".into(),
        "dest QP".into(),
        "PSN".into(),
        "VA".into(),
        "rkey".into(),
        "DMA len".into(),
        "completion".into(),
        "latency".into(),
    ];
    let mut places: Vec<&Seen> = Vec::new();
    if let Some(listening) = &evidence.listening {
        titles.push(format!("on {}", listening.netdev));
        places.push(&listening.seen);
    }
    if let Some(tap) = &evidence.tap {
        titles.push("at the kernel tap".into());
        places.push(&tap.seen);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles);
    if let Some(width) = width {
        table
            .set_content_arrangement(comfy_table::ContentArrangement::Dynamic)
            .set_width(width.try_into().unwrap_or(u16::MAX));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 2 } else { 1 }, 1));
        if matches!(index, 0 | 6 | 8) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let shown = shown_rows(ledger);
    let mut previous = None;
    for index in shown {
        if previous.is_some_and(|previous| index > previous + 1) {
            table.add_row(["…"]);
        }
        previous = Some(index);
        let posted = &ledger.posted[index];
        let need = ledger.op.packets(posted.len, endpoint.mtu);
        let memory = ledger.op.names_memory();
        let mut row = vec![
            posted.n.to_string(),
            operation(ledger, need.requests),
            endpoint.dest_qp.to_string(),
            posted.psn.to_string(),
            if memory {
                format!("{:#x}", posted.va.get())
            } else {
                "–".into()
            },
            if memory {
                posted.rkey.to_string()
            } else {
                "–".into()
            },
            posted.len.to_string(),
            completion(posted),
            latency(posted),
        ];
        for seen in &places {
            let write = seen.writes.get(index).copied().unwrap_or_default();
            row.push(where_seen(write, need.requests, need.responses));
        }
        table.add_row(row);
    }
    for (i, line) in table.lines().enumerate() {
        let kind = if i == 0 { Kind::Heading } else { Kind::Plain };
        style.paint(text, kind, line.trim_end().as_bytes());
        text.push(b'\n');
    }
    text.push(b'\n');
}

/// Which work requests get a row.
fn shown_rows(ledger: &Ledger) -> Vec<usize> {
    let count = ledger.posted.len();
    if count <= FIRST_ROWS + FAILED_ROWS + LAST_ROWS {
        return (0..count).collect();
    }
    let bad = |index: &usize| {
        let completion = ledger.posted[*index].completion;
        completion.is_none_or(|c| c.status != WcStatus::SUCCESS)
    };
    let middle = FIRST_ROWS..count - LAST_ROWS;
    let mut rows: Vec<usize> = (0..FIRST_ROWS).collect();
    rows.extend(middle.filter(bad).take(FAILED_ROWS));
    rows.extend(count - LAST_ROWS..count);
    rows
}

fn operation(ledger: &Ledger, requests: u32) -> String {
    use crate::rdma::ledger::Op;
    let name = ledger.op.name();
    match (ledger.op, requests) {
        (Op::Read | Op::FetchAdd | Op::CmpSwap, _) => name.into(),
        (Op::WriteImm, 1) => "RDMA WRITE Only+Imm".into(),
        (Op::WriteImm, n) => format!("RDMA WRITE+Imm ×{n}"),
        (_, 1) => format!("{name} Only"),
        (_, n) => format!("{name} ×{n}"),
    }
}

fn completion(posted: &Posted) -> String {
    posted
        .completion
        .map_or("none".into(), |completion| completion.status.to_string())
}

fn latency(posted: &Posted) -> String {
    match posted.completion {
        Some(completion) if completion.status == WcStatus::SUCCESS => {
            microseconds(completion.latency_ns)
        }
        _ => "–".into(),
    }
}

fn microseconds(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000..10_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// `#3 → #4`: frame of the request, frame of the answer; or `no`.
fn where_seen(seen: SeenWrite, requests: u32, responses: u32) -> String {
    if seen.requests == 0 && seen.responses == 0 {
        return "no".into();
    }
    let request = match seen.request_frame {
        None => "?".into(),
        Some(frame) if requests > 1 => format!("#{frame} ({} of {requests})", seen.requests),
        Some(frame) => format!("#{frame}"),
    };
    let response = match seen.response_frame {
        None => "no ACK".into(),
        Some(frame) if responses > 1 => format!("#{frame} ({} of {responses})", seen.responses),
        Some(frame) => format!("#{frame}"),
    };
    let again = match seen.again {
        0 => String::new(),
        n => format!(", {n} again"),
    };
    format!("{request} → {response}{again}")
}

/// Bandwidth, rate and latencies of a run that is long enough to have any.
struct Speed {
    bits_per_s: f64,
    messages_per_s: f64,
    latency_ns: [u64; 3],
}

impl Speed {
    fn of(ledger: &Ledger) -> Option<Self> {
        let done = ledger.posted.iter().filter_map(|posted| {
            let completion = posted.completion?;
            (completion.status == WcStatus::SUCCESS).then_some((posted.len, completion.latency_ns))
        });
        let (bytes, mut latencies) = done.fold((0u64, Vec::new()), |(sum, mut all), (len, ns)| {
            all.push(ns);
            (sum + u64::from(len), all)
        });
        if latencies.is_empty() || ledger.elapsed_ns == 0 {
            return None;
        }
        latencies.sort_unstable();
        let seconds = ledger.elapsed_ns as f64 / 1e9;
        let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
        Some(Self {
            bits_per_s: bytes as f64 * 8.0 / seconds,
            messages_per_s: latencies.len() as f64 / seconds,
            latency_ns: [at(0.5), at(0.99), at(1.0)],
        })
    }
}

fn speed(text: &mut Vec<u8>, ledger: &Ledger) {
    let bytes: u64 = ledger.posted.iter().map(|p| u64::from(p.len)).sum();
    if bytes < SPEED_BYTES && (ledger.posted.len() as u32) < SPEED_COUNT {
        return;
    }
    let Some(speed) = Speed::of(ledger) else {
        return;
    };
    let [p50, p99, most] = speed.latency_ns.map(microseconds);
    let bandwidth = if speed.bits_per_s >= 1e9 {
        format!("{:.2} Gb/s", speed.bits_per_s / 1e9)
    } else {
        format!("{:.1} Mb/s", speed.bits_per_s / 1e6)
    };
    let _ = writeln!(
        text,
        "{bandwidth} payload, {:.0} messages/s, latency p50 {p50}, p99 {p99}, max {most}\n",
        speed.messages_per_s
    );
}

fn proof(text: &mut Vec<u8>, style: Style, evidence: &Evidence) {
    let ledger = &evidence.ledger;
    let need = ledger.need();
    style.paint(text, Kind::Heading, b"Evidence");
    text.push(b'\n');
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<37}  {value}");
    };
    let verified = match ledger.payload_verified {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "not checked",
    };
    line(
        "posted, completed, payload verified",
        &format!(
            "{}, {}, {verified}",
            ledger.posted.len(),
            ledger.completed()
        ),
    );
    let answers = match ledger.op {
        crate::rdma::ledger::Op::Read => "READ responses",
        _ => "ACKs",
    };
    line(
        "packets these operations need",
        &format!(
            "{}  ({} requests, {} {answers})",
            grouped(u64::from(need.requests + need.responses)),
            grouped(need.requests.into()),
            grouped(need.responses.into()),
        ),
    );
    for counters in &evidence.counters {
        let show = |n: Option<i64>| n.map_or("not counted".into(), |n| format!("{n:+}"));
        let mut value = format!(
            "sent {}, received {}",
            show(counters.sent),
            show(counters.received)
        );
        for (name, delta) in &counters.changed {
            if !matches!(name.as_str(), "sent_pkts" | "rcvd_pkts") {
                value += &[", ", name, " ", &format!("{delta:+}")].concat();
            }
        }
        line(&format!("{} counters", counters.device), &value);
    }
    if let Some(listening) = &evidence.listening {
        let control = match listening.control {
            None => "no control frame".into(),
            Some(c) if c.seen == 0 => format!("{} control frames NOT seen", c.sent),
            Some(_) => "control frame seen".into(),
        };
        let others = listening.packets.saturating_sub(listening.seen.packets());
        let others = match others {
            0 => String::new(),
            n => format!(", {} of others", grouped(n)),
        };
        line(
            &format!("{}, UDP 4791", listening.netdev),
            &format!(
                "{}   ({control}; {} dropped by the kernel{others})",
                grouped(listening.seen.packets()),
                grouped(listening.kernel_dropped),
            ),
        );
    }
    if let Some(tap) = &evidence.tap {
        line(
            "kernel tap",
            &format!(
                "{}   ({} of them looped; {} lost)",
                grouped(tap.seen.packets()),
                grouped(tap.looped),
                grouped(tap.lost)
            ),
        );
    }
    text.push(b'\n');
}

fn verdict(text: &mut Vec<u8>, style: Style, judgement: &Judgement, width: Option<usize>) {
    let kind = match judgement.verdict {
        Verdict::OnTheWire => Kind::Response,
        Verdict::Failed | Verdict::NeverSent => Kind::Bad,
        _ => Kind::Notice,
    };
    style.paint(text, Kind::Heading, b"Verdict: ");
    let word = judgement.verdict.word().to_uppercase();
    style.paint(text, kind, format!("{word}.").as_bytes());
    let used = "Verdict: ".len() + word.len() + 2;
    wrap(text, &judgement.finding, used, 0, width);
    let mut labelled = |label: &str, sentence: &str| {
        let _ = write!(text, "  {label:<5}");
        wrap(text, sentence, 7, 8, width);
    };
    if !judgement.why.is_empty() {
        labelled("Why", &judgement.why);
    }
    for (i, step) in judgement.next.iter().enumerate() {
        labelled(if i == 0 { "Next" } else { "" }, step);
    }
}

/// Appends a sentence, folded at spaces to `width`; `at` places are taken on
/// the first line, later ones are indented.
fn wrap(text: &mut Vec<u8>, sentence: &str, mut at: usize, indent: usize, width: Option<usize>) {
    // Piped output is folded too, to what reads well.
    let width = width.unwrap_or(100).max(40);
    for word in sentence.split_whitespace() {
        let len = word.chars().count();
        if at + 1 + len > width && at > indent {
            text.push(b'\n');
            text.resize(text.len() + indent, b' ');
            at = indent;
        } else {
            text.push(b' ');
            at += 1;
        }
        text.extend_from_slice(word.as_bytes());
        at += len;
    }
    text.push(b'\n');
}

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
