//! Flows and connections: who talks to whom, what was lost and sent again, how
//! long it took.

use std::{
    cmp::Reverse,
    io::{self, Write},
};

use super::{
    capture::Capture,
    connections,
    flows_document::{FlowsDocument, csv_header, csv_rows},
    interval::Interval,
    lines::{at_the_top, remark},
    panels::{self, Cell, Column},
    style::{Kind, Style},
    text::{bit_rate, bytes, grouped, moment, plural, rate, span},
};
use crate::{
    filter::FlowFilter,
    track::{Flow, PsnCounts, Tracker},
    wire::aeth::NakCode,
};

/// Rows of a table; the rest are counted in one line.
pub(super) const ROWS: usize = 20;

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
        connections::print(&mut text, report, layout);
    }
    flows(&mut text, report, layout);
    if report.interval.is_none() && !layout.quiet {
        report.capture.foot(&mut text, layout, report.tracker);
    } else if report.interval.is_some() {
        text.push(b'\n');
    }
    out.write_all(at_the_top(&text))
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
            let copies = both(flow).map(|counts| counts.mirror_duplicates);
            copies.iter().sum::<u64>() + flow.answer_copies
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
    columns.push(Column::new("after CNPs", true, rows, |flow| {
        let throttled = report.tracker.throttled(flow);
        Cell::or_nothing(throttled.map(|throttled| format!("{} %", throttled.percent())))
    }));
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
    naks(text, rows, layout);
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
fn naks(text: &mut Vec<u8>, rows: &[&Flow], layout: Layout) {
    for (n, flow) in (1..).zip(rows) {
        let words: Vec<_> = flow
            .naks()
            .map(|(code, count)| {
                let words = code.and_then(NakCode::words);
                format!("{} × {}", grouped(count), words.unwrap_or("reserved code"))
            })
            .collect();
        if !words.is_empty() {
            let mut line = Vec::new();
            let sentence = format!("flow {n}: NAK: {}", words.join(", "));
            remark(&mut line, &sentence, layout.width);
            layout.style.paint(text, Kind::Bad, line.trim_ascii_end());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        track::{FlowKey, Limits, Observed, Record, Summary},
        wire::{
            opcode::Opcode,
            types::{Psn, QpNumber},
        },
    };

    const WRITE: Opcode = Opcode(0x0a);

    /// One flow for each of `qps`, with a packet for each of the PSNs.
    fn tracked(qps: u32, psns: &[u32]) -> (Summary, Tracker) {
        let (mut summary, mut tracker) = (Summary::default(), Tracker::new(Limits::default()));
        for qp in 0..qps {
            let key = FlowKey {
                src: "10.0.0.1".parse().unwrap(),
                dst: "10.0.0.2".parse().unwrap(),
                dest_qp: QpNumber::new(qp + 16),
            };
            for psn in psns {
                let mut record = Record::plain(key, WRITE, Psn::new(*psn));
                record.ts_ns = (*psn).into();
                record.payload_len = 64;
                tracker.add(&record, &mut ());
                summary.add(&Observed::Packet(record));
            }
        }
        tracker.finish(&mut ());
        (summary, tracker)
    }

    fn report<'a>(summary: &'a Summary, tracker: &'a Tracker) -> FlowsReport<'a> {
        static ALL: FlowFilter = FlowFilter {
            qps: Vec::new(),
            hosts: Vec::new(),
        };
        FlowsReport {
            capture: Capture {
                summary,
                files: &[],
                inputs: &[],
                complete: true,
            },
            tracker,
            filter: &ALL,
            interval: None,
        }
    }

    fn printed(report: &FlowsReport<'_>, layout: Layout) -> String {
        let mut out = Vec::new();
        print_flows(&mut out, report, layout).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rows_beyond_those_shown_are_summed_up() {
        let (summary, tracker) = tracked(25, &[1, 2, 9]);
        let report = report(&summary, &tracker);
        let text = printed(&report, Layout::default());
        let more = "… and 5 more flows with 15 packets, 5 of them not without trouble (--all)";
        assert!(text.contains(more), "{text}");
        assert!(text.contains("… and 5 more connections (--all)"), "{text}");
        let all = Layout {
            all: true,
            ..Layout::default()
        };
        let text = printed(&report, all);
        assert!(!text.contains("more"), "{text}");
        assert!(text.contains("0x000028"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_asked() {
        let (summary, tracker) = tracked(3, &[1, 2, 9, 2]);
        let report = report(&summary, &tracker);
        for width in [60, 80, 160] {
            let layout = Layout {
                width: Some(width),
                ..Layout::default()
            };
            for line in printed(&report, layout).lines().skip(1) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn an_interval_has_what_came_in_it() {
        let (summary, mut tracker) = tracked(1, &[1, 2]);
        let mut interval = Interval::default();
        interval.next(&tracker);
        interval.length = std::time::Duration::from_millis(500);
        let key = tracker.flows().next().unwrap().key;
        for psn in 3..8 {
            let mut record = Record::plain(key, WRITE, Psn::new(psn));
            record.payload_len = 100;
            tracker.add(&record, &mut ());
        }
        let report = FlowsReport {
            interval: Some(&interval),
            ..report(&summary, &tracker)
        };
        let text = printed(&report, Layout::default());
        assert!(text.contains("the last 500 ms"), "{text}");
        let row = text.lines().find(|line| line.contains("0x000010")).unwrap();
        let cells: Vec<_> = row
            .split("  ")
            .map(str::trim)
            .filter(|c| !c.is_empty())
            .collect();
        assert!(
            cells.contains(&"10 /s"),
            "five packets in half a second: {row}"
        );
        assert!(cells.contains(&"8.00 kb/s"), "{row}");
    }
}
