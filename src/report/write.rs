//! The screen of a write run: what was posted, where it
//! was seen, the numbers that prove it, the verdict.

use std::{
    io::{self, Write},
    net::{IpAddr, Ipv6Addr},
};

use super::{
    lines::wrap,
    style::{Kind, Style},
    text::grouped,
};
use crate::{
    bypass::{Evidence, Judgement, Seen, SeenWrite, Verdict},
    rdma::ledger::{Endpoint, Ledger, Peer, Posted, WcStatus},
};
use comfy_table::{CellAlignment, Table, presets};

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
    let operations = if count == 1 {
        ledger_op.name()
    } else {
        ledger_op.plural()
    };
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
        "{count} {operations} of {size} {bytes}, QP {:#x} to {to}\n",
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

/// Text for a work request: its place in the ledger, and what was posted.
type Cell<'e> = Box<dyn Fn(usize, &Posted) -> String + 'e>;

/// A column of the table of work requests.
struct Column<'e> {
    title: String,
    right: bool,
    /// Tables that are too wide lose the columns of rank 1 first, whose values
    /// are the same in every row, then those of rank 2.
    rank: u8,
    cell: Cell<'e>,
}

fn columns<'e>(evidence: &'e Evidence, endpoint: &'e Endpoint) -> Vec<Column<'e>> {
    let ledger = &evidence.ledger;
    let memory = ledger.op.names_memory();
    let named = move |text: String| if memory { text } else { "–".into() };
    let need = move |posted: &Posted| ledger.op.packets(posted.len, endpoint.mtu);
    let column = |title: &str, right, rank, cell| Column {
        title: title.into(),
        right,
        rank,
        cell,
    };
    let mut columns = vec![
        column("#", true, 0, Box::new(|_, p: &Posted| p.n.to_string()) as _),
        column(
            "operation",
            false,
            0,
            Box::new(move |_, p| operation(ledger, need(p).requests)),
        ),
        column(
            "dest QP",
            false,
            1,
            Box::new(|_, _| endpoint.dest_qp.to_string()),
        ),
        column("PSN", false, 0, Box::new(|_, p| p.psn.to_string())),
        column(
            "VA",
            false,
            2,
            Box::new(move |_, p| named(format!("{:#x}", p.va.get()))),
        ),
        column(
            "rkey",
            false,
            1,
            Box::new(move |_, p| named(p.rkey.to_string())),
        ),
        column("DMA len", true, 1, Box::new(|_, p| p.len.to_string())),
        column("completion", false, 0, Box::new(|_, p| completion(p))),
        column("latency", true, 0, Box::new(|_, p| latency(p))),
    ];
    let mut place = |title: String, seen: &'e Seen| {
        let cell = Box::new(move |index: usize, posted: &Posted| {
            let write = seen.writes.get(index).copied().unwrap_or_default();
            let need = need(posted);
            where_seen(write, need.requests, need.responses)
        });
        columns.push(column(&title, false, 0, cell));
    };
    if let Some(listening) = &evidence.listening {
        place(format!("on {}", listening.netdev), &listening.seen);
    }
    if let Some(tap) = &evidence.tap {
        place("at the kernel tap".into(), &tap.seen);
    }
    columns
}

fn rows(text: &mut Vec<u8>, style: Style, evidence: &Evidence, width: Option<usize>) {
    let Some(endpoint) = &evidence.ledger.endpoint else {
        return;
    };
    let mut columns = columns(evidence, endpoint);
    let mut lines = lines(&evidence.ledger, &columns);
    let mut left_out = false;
    for rank in [1, 2] {
        let widest = lines.iter().map(|line| line.chars().count()).max();
        if width.is_none_or(|width| widest <= Some(width)) {
            break;
        }
        columns.retain(|column| column.rank != rank);
        lines = self::lines(&evidence.ledger, &columns);
        left_out = true;
    }
    if left_out && let Some(posted) = evidence.ledger.posted.first() {
        let _ = write!(text, "  dest QP {}", endpoint.dest_qp);
        if evidence.ledger.op.names_memory() {
            let _ = write!(text, " · rkey {}", posted.rkey);
        }
        let _ = writeln!(text, " · DMA length {}\n", posted.len);
    }
    for (i, line) in lines.iter().enumerate() {
        let kind = if i == 0 { Kind::Heading } else { Kind::Plain };
        style.paint(text, kind, line.as_bytes());
        text.push(b'\n');
    }
    text.push(b'\n');
}

fn lines(ledger: &Ledger, columns: &[Column<'_>]) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.title.as_str()));
    for (index, (column, described)) in table.column_iter_mut().zip(columns).enumerate() {
        column.set_padding((if index == 0 { 2 } else { 1 }, 1));
        if described.right {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut previous = None;
    for index in shown_rows(ledger) {
        if previous.is_some_and(|previous| index > previous + 1) {
            table.add_row(["…"]);
        }
        previous = Some(index);
        let posted = &ledger.posted[index];
        table.add_row(columns.iter().map(|column| (column.cell)(index, posted)));
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
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

pub(super) fn completion(posted: &Posted) -> String {
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
        10_000..1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
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
pub(super) struct Speed {
    pub bits_per_s: f64,
    pub messages_per_s: f64,
    /// Median, 99th percentile, maximum.
    pub latency_ns: [u64; 3],
}

impl Speed {
    pub fn of(ledger: &Ledger) -> Option<Self> {
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
        // Nearest rank: of ten, the 99th percentile is the largest.
        let rank = |share: f64| (latencies.len() as f64 * share).ceil() as usize;
        let at = |share: f64| latencies[rank(share).clamp(1, latencies.len()) - 1];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        rdma::ledger::{Completion, Op},
        wire::types::{Psn, RKey, VirtualAddr},
    };

    /// It was the second largest of ten.
    #[test]
    fn p99_of_few_operations_is_the_largest() {
        let posted = (1..=10).map(|n| Posted {
            n,
            psn: Psn::new(n),
            psn_span: 1,
            va: VirtualAddr::new(0),
            rkey: RKey::new(0),
            len: 64,
            completion: Some(Completion {
                status: WcStatus::SUCCESS,
                latency_ns: u64::from(n) * 100,
            }),
        });
        let ledger = Ledger {
            endpoint: None,
            op: Op::Write,
            wanted: 10,
            posted: posted.collect(),
            payload_verified: Some(true),
            stopped: None,
            elapsed_ns: 1_000_000,
        };
        let speed = Speed::of(&ledger).expect("operations completed");
        assert_eq!(speed.latency_ns, [500, 1000, 1000]);
        assert_eq!(microseconds(1_500), "1.5 µs");
        assert_eq!(microseconds(48_430_000), "48.43 ms");
    }
}
