//! Flows and connections: who talks to whom, what was lost and sent again, how
//! long it took.

use std::{
    cmp::Reverse,
    io::{self, Write},
};

use super::{
    capture::Capture,
    flows_document::{FlowsDocument, csv_header, csv_rows, state_word},
    interval::Interval,
    panels::{self, Cell, Column},
    style::{Kind, Style},
    text::{bit_rate, bytes, grouped, moment, plural, rate, span},
};
use crate::{
    filter::FlowFilter,
    track::{CmLife, CmState, Connection, Endpoint, Flow, PsnCounts, Tracker, service_name},
    wire::{
        aeth::NakCode,
        cm::{ip_service, reject_reason},
    },
};

/// Rows of a table; the rest are counted in one line.
const ROWS: usize = 20;

/// What there is to report about flows.
pub struct FlowsReport<'a> {
    /// The capture.
    pub capture: Capture<'a>,
    /// Its flows.
    pub tracker: &'a Tracker,
    /// Which of them to show.
    pub filter: &'a FlowFilter,
    /// The stretch of time that is over, in a capture that goes on.
    pub interval: Option<&'a Interval>,
}

/// How a table is laid out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Layout {
    /// Colours.
    pub style: Style,
    /// Places of a line, where there is a limit.
    pub width: Option<usize>,
    /// Every row, however many.
    pub all: bool,
    /// Tables only.
    pub quiet: bool,
}

impl<'a> FlowsReport<'a> {
    /// The flows to show, in the order in which they appeared.
    pub(super) fn chosen(&self) -> impl Iterator<Item = &'a Flow> {
        let (tracker, filter) = (self.tracker, self.filter);
        tracker.flows().filter(move |flow| {
            let opposite = flow.peer.and_then(|peer| tracker.flow(peer));
            filter.matches(&flow.key, opposite.map(|flow| flow.key.dest_qp))
        })
    }
}

/// Prints flows as one JSON document in a line.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_flows_json(out: &mut impl Write, report: &FlowsReport<'_>) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 16, out);
    serde_json::to_writer(&mut out, &FlowsDocument::new(report))?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Prints the header of the CSV output; `interval` where snapshots follow.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_flows_csv_header(out: &mut impl Write, interval: bool) -> io::Result<()> {
    csv_header(out, interval)
}

/// Prints flows as CSV, a row each.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_flows_csv(out: &mut impl Write, report: &FlowsReport<'_>) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 16, out);
    csv_rows(&mut out, report)?;
    out.flush()
}

/// Prints connections and flows as tables.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_flows(
    out: &mut impl Write,
    report: &FlowsReport<'_>,
    layout: Layout,
) -> io::Result<()> {
    let mut text = Vec::new();
    match report.interval {
        Some(interval) => heading(&mut text, layout.style, interval, &report.capture),
        None if !layout.quiet => report.capture.head(&mut text, layout.style),
        None => {}
    }
    if report.interval.is_none() {
        connections(&mut text, report, layout);
    }
    flows(&mut text, report, layout);
    if report.interval.is_none() && !layout.quiet {
        report.capture.foot(&mut text, layout.style, report.tracker);
    } else {
        text.push(b'\n');
    }
    out.write_all(&text)
}

/// Appends the line that heads a snapshot.
pub(super) fn heading(
    text: &mut Vec<u8>,
    style: Style,
    interval: &Interval,
    capture: &Capture<'_>,
) {
    let length = u64::try_from(interval.length.as_nanos()).unwrap_or(u64::MAX);
    let mut line = format!(
        "{} · the last {} · {} so far",
        moment(interval.end_ns),
        span(length),
        plural(capture.summary.packets, "RoCE packet", "RoCE packets")
    );
    let dropped = capture.inputs.iter().filter_map(|input| input.dropped);
    match dropped.sum() {
        0 => {}
        dropped => line.extend([" · ", &grouped(dropped), " dropped by the kernel"]),
    }
    style.paint(text, Kind::Heading, line.as_bytes());
    text.push(b'\n');
}

/// A count a second over a flow's own time; `None` where that has no length.
pub(super) fn per_s(flow: &Flow, count: u64) -> Option<f64> {
    let ns = flow.last_ts_ns.saturating_sub(flow.first_ts_ns);
    let per_s = count as f64 * 1e9 / ns as f64;
    (ns > 0).then(|| (per_s * 1000.0).round() / 1000.0)
}

/// Whether one of a connection's ends is chosen.
pub(super) fn connection_chosen(connection: &Connection, filter: &FlowFilter) -> bool {
    let Connection { a, b, .. } = connection;
    filter.ends([a.ip, b.ip], [a.qp, b.qp])
}

fn connections(text: &mut Vec<u8>, report: &FlowsReport<'_>, layout: Layout) {
    let mut rows = report.tracker.connections();
    rows.retain(|connection| connection_chosen(connection, report.filter));
    // What was refused must not be hidden by what went well.
    rows.sort_by_key(|connection| Reverse(connection.cm.is_some_and(|cm| unanswered(&cm))));
    let total = rows.len();
    if !layout.all {
        rows.truncate(ROWS);
    }
    if rows.is_empty() {
        return;
    }
    let columns = [
        Column::numbers(&rows),
        Column::new("asks", false, &rows, |c| Cell::plain(end(&c.a))),
        Column::new("⇄ answers", false, &rows, |c| {
            Cell::plain(format!("⇄ {}", end(&c.b)))
        }),
        Column::new("paired", false, &rows, |c| {
            Cell::kind(c.how.word(), Kind::Quiet)
        }),
        Column::new("service", false, &rows, |c| {
            Cell::or_nothing(c.cm.and_then(|cm| cm.service_id).map(service))
        }),
        Column::new("MTU", true, &rows, |c| {
            Cell::or_nothing(c.path_mtu.map(|mtu| mtu.to_string()))
        }),
        Column::new("set up in", true, &rows, |c| {
            let ns = c.cm.and_then(|cm| cm.setup_ns());
            Cell::or_nothing(ns.map(|ns| span(ns.max(0) as u64)))
        }),
        Column::new("state", false, &rows, |c| {
            c.cm.map_or_else(Cell::nothing, |cm| state(c, &cm))
        }),
    ];
    panels::print(text, layout.style, &columns, layout.width);
    let more = total - rows.len();
    if more > 0 {
        let more = plural(more as u64, "more connection", "more connections");
        let _ = writeln!(text, "  … and {more} (--all)");
    }
}

fn end(end: &Endpoint) -> String {
    match end.qp {
        Some(qp) => format!("{} {qp}", end.ip),
        None => format!("{} QP ?", end.ip),
    }
}

fn service(id: u64) -> String {
    match (service_name(id), ip_service(id)) {
        (Some(name), _) => name.into(),
        (None, Some((_, port))) => format!("port {port}"),
        (None, None) => format!("{id:#x}"),
    }
}

const fn unanswered(cm: &CmLife) -> bool {
    matches!(
        cm.state,
        CmState::Rejected(_) | CmState::Requested | CmState::Replied
    )
}

fn state(connection: &Connection, cm: &CmLife) -> Cell {
    let again = if cm.requests > 1 {
        format!(", {} REQs", cm.requests)
    } else {
        String::new()
    };
    match cm.state {
        CmState::Requested => Cell::kind(format!("no answer to REQ{again}"), Kind::Bad),
        CmState::Replied => Cell::kind(format!("no RTU{again}"), Kind::Notice),
        CmState::Rejected(code) => {
            let words = reject_reason(code).map_or_else(|| format!("reason {code}"), String::from);
            Cell::kind(format!("rejected: {words}{again}"), Kind::Bad)
        }
        CmState::Established => Cell::plain(format!("established{again}")),
        CmState::Disconnected => {
            let by = cm.ended_by_a.map(|a| {
                let end = if a { connection.a } else { connection.b };
                format!(" by {}", end.ip)
            });
            Cell::plain(format!(
                "{}{}",
                state_word(cm.state),
                by.unwrap_or_default()
            ))
        }
    }
}

/// Something that a flow without trouble has none of.
struct Trouble {
    /// Title of the column, and name where there is none of it.
    name: &'static str,
    kind: Kind,
    count: fn(&Flow) -> u64,
}

const fn both(flow: &Flow) -> [&PsnCounts; 2] {
    [&flow.requests, &flow.responses]
}

/// All there is, in the order of the columns.
const TROUBLES: &[Trouble] = &[
    Trouble {
        name: "gaps",
        kind: Kind::Bad,
        count: |flow| both(flow).iter().map(|counts| counts.gaps).sum(),
    },
    Trouble {
        name: "missing",
        kind: Kind::Bad,
        count: |flow| both(flow).iter().map(|counts| counts.missing).sum(),
    },
    Trouble {
        name: "capture loss",
        kind: Kind::Notice,
        count: |flow| both(flow).iter().map(|counts| counts.capture_loss).sum(),
    },
    Trouble {
        name: "retransmitted",
        kind: Kind::Bad,
        count: |flow| both(flow).iter().map(|counts| counts.retransmitted).sum(),
    },
    Trouble {
        name: "reordered",
        kind: Kind::Bad,
        count: |flow| both(flow).iter().map(|counts| counts.reordered).sum(),
    },
    Trouble {
        name: "duplicates",
        kind: Kind::Bad,
        count: |flow| both(flow).iter().map(|counts| counts.duplicates).sum(),
    },
    Trouble {
        name: "mirror duplicates",
        kind: Kind::Notice,
        count: |flow| {
            both(flow)
                .iter()
                .map(|counts| counts.mirror_duplicates)
                .sum()
        },
    },
    Trouble {
        name: "NAKs",
        kind: Kind::Bad,
        count: |flow| flow.naks.iter().sum(),
    },
    Trouble {
        name: "RNR NAKs",
        kind: Kind::Bad,
        count: |flow| flow.rnr_naks,
    },
    Trouble {
        name: "CNPs",
        kind: Kind::Notice,
        count: |flow| flow.cnps,
    },
    Trouble {
        name: "CE",
        kind: Kind::Notice,
        count: |flow| flow.ce,
    },
    Trouble {
        name: "wrong ICRCs",
        kind: Kind::Bad,
        count: |flow| flow.icrc_invalid,
    },
];

fn flows(text: &mut Vec<u8>, report: &FlowsReport<'_>, layout: Layout) {
    let mut list: Vec<_> = report.chosen().collect();
    let packets = |flow: &Flow| {
        report
            .interval
            .map_or(flow.packets, |interval| interval.of(flow).packets)
    };
    // The busiest pair comes first, its two flows together.
    list.sort_by_cached_key(|flow| {
        let opposite = flow.peer.and_then(|peer| report.tracker.flow(peer));
        let pair = opposite.map_or(0, packets) + packets(flow);
        let first = opposite.map_or(flow.id, |opposite| opposite.id.min(flow.id));
        (Reverse(pair), first, Reverse(packets(flow)))
    });
    let shown = if layout.all {
        list.len()
    } else {
        list.len().min(ROWS)
    };
    let (rows, more) = list.split_at(shown);
    if rows.is_empty() {
        let _ = writeln!(
            text,
            "\n  {}",
            if report.filter.is_empty() {
                "no flows"
            } else {
                "no such flow"
            }
        );
        return;
    }
    let mut columns = identity(rows);
    if let Some(interval) = report.interval {
        columns.extend(now(rows, interval));
    }
    columns.extend(volume(rows));
    columns.extend(latency(rows));
    let mut none = Vec::new();
    for trouble in TROUBLES {
        let count = |flow: &&Flow| (trouble.count)(flow);
        match Column::counts(trouble.name, trouble.kind, rows, count) {
            Some(column) => columns.push(column),
            None => none.push(trouble.name),
        }
    }
    columns.push(Column::new("ended", false, rows, |flow| {
        let reused = "by reuse of its QP";
        Cell::or_nothing(flow.ended.then(|| reused.into()))
    }));
    panels::print(text, layout.style, &columns, layout.width);
    rest(text, more);
    if !none.is_empty() {
        let line = fold("  none in these flows:", &none, layout.width);
        layout.style.paint(text, Kind::Quiet, line.as_bytes());
        text.push(b'\n');
    }
    naks(text, rows, layout.style);
}

fn identity(rows: &[&Flow]) -> Vec<Column> {
    vec![
        Column::numbers(rows),
        Column::new("source", false, rows, |flow| {
            Cell::plain(flow.key.src.to_string())
        }),
        Column::new("→ destination", false, rows, |flow| {
            Cell::plain(format!("→ {}", flow.key.dst))
        }),
        Column::new("dest QP", false, rows, |flow| {
            Cell::plain(flow.key.dest_qp.to_string())
        }),
    ]
}

/// What passed in the interval.
fn now(rows: &[&Flow], interval: &Interval) -> [Column; 3] {
    let column = |title, cell: &dyn Fn(&Flow) -> Option<String>| {
        Column::new(title, true, rows, |flow| Cell::or_nothing(cell(flow)))
    };
    let some =
        |count: u64, show: &dyn Fn(f64) -> String| (count > 0).then(|| show(interval.per_s(count)));
    [
        column("packets now", &|flow| {
            some(interval.of(flow).packets, &rate)
        }),
        column("messages now", &|flow| {
            some(interval.of(flow).messages, &rate)
        }),
        column("goodput now", &|flow| {
            some(interval.of(flow).goodput_bytes * 8, &bit_rate)
        }),
    ]
}

fn volume(rows: &[&Flow]) -> [Column; 4] {
    let count = |count: u64| (count > 0).then(|| grouped(count));
    let column = |title, cell: &dyn Fn(&Flow) -> Option<String>| {
        Column::new(title, true, rows, |flow| Cell::or_nothing(cell(flow)))
    };
    [
        column("packets", &|flow| count(flow.packets)),
        column("payload", &|flow| {
            (flow.payload_bytes > 0).then(|| bytes(flow.payload_bytes))
        }),
        column("messages", &|flow| count(flow.messages)),
        column("goodput", &|flow| {
            let bits = per_s(flow, flow.goodput_bytes * 8)?;
            (bits > 0.0).then(|| bit_rate(bits))
        }),
    ]
}

fn latency(rows: &[&Flow]) -> [Column; 3] {
    let column = |title, of: &dyn Fn(&Flow) -> Option<u64>| {
        Column::new(title, true, rows, |flow| {
            Cell::or_nothing(of(flow).map(span))
        })
    };
    [
        column("latency p50", &|flow| flow.latency.quantile(0.5)),
        column("p99", &|flow| flow.latency.quantile(0.99)),
        column("max", &|flow| flow.latency.max()),
    ]
}

/// Says what the rows that are not shown hold.
fn rest(text: &mut Vec<u8>, more: &[&Flow]) {
    if more.is_empty() {
        return;
    }
    let packets = more.iter().map(|flow| flow.packets).sum();
    let troubled = |flow: &&&Flow| TROUBLES.iter().any(|trouble| (trouble.count)(flow) > 0);
    let troubled = more.iter().filter(troubled).count() as u64;
    let _ = write!(
        text,
        "  … and {} with {}",
        plural(more.len() as u64, "more flow", "more flows"),
        plural(packets, "packet", "packets")
    );
    if troubled > 0 {
        let _ = write!(text, ", {} of them not without trouble", grouped(troubled));
    }
    text.extend_from_slice(b" (--all)\n");
}

/// Says what the responders complained about.
fn naks(text: &mut Vec<u8>, rows: &[&Flow], style: Style) {
    for (n, flow) in (1..).zip(rows) {
        let words: Vec<_> = flow
            .naks()
            .map(|(code, count)| {
                let words = code.and_then(NakCode::words);
                format!("{} × {}", grouped(count), words.unwrap_or("reserved code"))
            })
            .collect();
        if !words.is_empty() {
            let line = format!("  flow {n}: NAK: {}", words.join(", "));
            style.paint(text, Kind::Bad, line.as_bytes());
            text.push(b'\n');
        }
    }
}

/// A line of names with commas between, folded at `width`.
fn fold(start: &str, names: &[&str], width: Option<usize>) -> String {
    let mut text = String::from(start);
    let mut at = start.chars().count();
    for (i, name) in names.iter().enumerate() {
        let comma = if i + 1 < names.len() { "," } else { "" };
        let places = 1 + name.chars().count() + comma.len();
        if width.is_some_and(|width| at + places > width) && i > 0 {
            text.push_str("\n   ");
            at = 3;
        }
        text.extend([" ", name, comma]);
        at += places;
    }
    text
}
