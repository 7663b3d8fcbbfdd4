//! Messages: every RDMA operation as it travelled, a row each; and how long
//! they took.
//!
//! The printers append to a byte buffer: a capture has millions of messages.

use std::{
    cmp::Reverse,
    io::{self, Write},
};

use super::{
    capture::Capture,
    fields::Fields,
    flows::{Layout, heading},
    grid::{Flags, GAP, Grid},
    interval::Interval,
    lines::remark,
    object::{Object, key},
    panels::{self, Cell, Column, Count},
    style::{Kind, Style},
    text::{bit_rate, bytes, dec, grouped, hex, hex_short, ip, plural, rate, seconds, span, width},
};
use crate::{
    filter::FlowFilter,
    track::{Distribution, Message, Spread, Tracker},
    wire::aeth::AethKind,
};

/// Rows of the table of distributions.
const ROWS: usize = 20;

/// Turns messages into text, one after the other.
pub trait MessagePrinter: Send {
    /// What comes before the first message.
    fn header(&self, _out: &mut Vec<u8>) {}

    /// Appends one message.
    fn message(&self, message: &Message, out: &mut Vec<u8>);
}

/// Appends the name of an operation, its transport in front.
fn operation(out: &mut Vec<u8>, message: &Message) {
    out.extend_from_slice(message.operation.transport.name().as_bytes());
    out.push(b' ');
    out.extend_from_slice(message.operation.name().as_bytes());
}

/// Key for what a responder answered instead of an acknowledgement.
pub(super) fn refusal(kind: AethKind) -> &'static str {
    match kind {
        AethKind::Nak(code) => code.key(),
        AethKind::Rnr(_) => "receiver_not_ready",
        AethKind::Ack(_) | AethKind::Reserved(_) => "other",
    }
}

/// Prints messages as JSON, one object a line: the keys are a contract.
pub struct JsonMessages {
    /// Names of the inputs; keys `file` and `last_file` are written when there
    /// are several.
    pub inputs: Vec<String>,
}

impl MessagePrinter for JsonMessages {
    fn message(&self, message: &Message, out: &mut Vec<u8>) {
        let mut o = Object::open(out);
        o.address(key!("src"), message.key.src);
        o.address(key!("dst"), message.key.dst);
        o.num(key!("dest_qp"), message.key.dest_qp.get());
        o.word(key!("op"), |out| operation(out, message));
        o.num(key!("first_psn"), message.first_psn.get());
        o.num(key!("last_psn"), message.last_psn.get());
        o.num(key!("bytes"), message.bytes);
        if let Some(remote) = message.remote {
            o.hex64(key!("va"), remote.va.get());
            o.rkey(key!("rkey"), remote.rkey);
        } else {
            o.null(key!("va"));
            o.null(key!("rkey"));
        }
        o.num(key!("start_ns"), message.start_ns);
        o.num(key!("end_ns"), message.end_ns);
        o.opt_num(key!("acked_ns"), message.acked_ns);
        o.opt_num(key!("latency_ns"), message.latency_ns());
        o.flag(key!("complete"), message.complete);
        o.num(key!("retransmits"), message.retransmits);
        match message.refused {
            Some(kind) => o.str(key!("refused"), refusal(kind)),
            None => o.null(key!("refused")),
        }
        o.num(key!("first_frame"), message.first_frame);
        o.num(key!("last_frame"), message.last_frame);
        o.flag(key!("malformed"), message.malformed);
        if self.inputs.len() > 1 {
            let inputs = [
                (key!("file"), message.input),
                (key!("last_file"), message.last_input),
            ];
            for (key, input) in inputs {
                o.text(key, self.inputs.get(usize::from(input)).map_or("", |s| s));
            }
        }
        o.close();
        out.push(b'\n');
    }
}

/// Prints messages as CSV, the columns named as the keys of the JSON output.
pub struct CsvMessages {
    /// Names of the inputs; last columns `file` and `last_file` are written when
    /// there are several.
    pub inputs: Vec<String>,
}

const COLUMNS: &str = "src,dst,dest_qp,op,first_psn,last_psn,bytes,va,rkey,start_ns,end_ns,\
acked_ns,latency_ns,complete,retransmits,refused,first_frame,last_frame,malformed";

impl MessagePrinter for CsvMessages {
    fn header(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(COLUMNS.as_bytes());
        if self.inputs.len() > 1 {
            out.extend_from_slice(b",file,last_file");
        }
        out.push(b'\n');
    }

    fn message(&self, message: &Message, out: &mut Vec<u8>) {
        ip(out, message.key.src);
        let mut row = Fields(out);
        row.address(message.key.dst);
        row.num(message.key.dest_qp.get());
        row.0.push(b',');
        operation(row.0, message);
        row.num(message.first_psn.get());
        row.num(message.last_psn.get());
        row.num(message.bytes);
        row.hex64(message.remote.map(|remote| remote.va.get()));
        row.rkey(message.remote.map(|remote| remote.rkey));
        row.num(message.start_ns);
        row.num(message.end_ns);
        row.opt_num(message.acked_ns);
        row.opt_num(message.latency_ns());
        row.flag(message.complete);
        row.num(message.retransmits);
        row.str(message.refused.map_or("", refusal));
        row.num(message.first_frame);
        row.num(message.last_frame);
        row.flag(message.malformed);
        if self.inputs.len() > 1 {
            for input in [message.input, message.last_input] {
                row.text(self.inputs.get(usize::from(input)).map_or("", |s| s));
            }
        }
        out.push(b'\n');
    }
}

/// Prints messages as a table that is written as they end.
pub struct TableMessages {
    grid: Grid,
    inputs: usize,
    /// Time that is shown as zero.
    start_ns: i64,
}

impl TableMessages {
    /// A table for messages from `inputs` inputs, addresses `address` places
    /// wide, that counts times from `start_ns`.
    #[must_use]
    pub fn new(
        style: Style,
        inputs: usize,
        address: usize,
        start_ns: i64,
        wrap: Option<usize>,
    ) -> Self {
        let specs = [
            ("#", if inputs > 1 { 7 } else { 5 }, true),
            ("time", 10, true),
            ("source", address.max(8), false),
            ("→ destination", address.max(11) + 2, false),
            ("dest QP", 8, false),
            ("operation", 13, false),
            ("first PSN", 9, false),
            ("PSNs", 6, true),
            ("VA              rkey", 26, false),
            ("bytes", 8, true),
            ("latency", 7, true),
        ];
        Self {
            grid: Grid::new(style, wrap, &specs),
            inputs,
            start_ns,
        }
    }
}

impl MessagePrinter for TableMessages {
    fn header(&self, out: &mut Vec<u8>) {
        self.grid.header(out);
    }

    fn message(&self, message: &Message, out: &mut Vec<u8>) {
        let mut row = self.grid.row(out);
        let mut columns = 0..;
        let mut cell = |kind: Kind, write: &dyn Fn(&mut Vec<u8>)| {
            row.cell(columns.next().unwrap_or(0), kind, write);
        };
        cell(Kind::Quiet, &|out| {
            if self.inputs > 1 {
                dec(out, message.input + 1);
                out.push(b':');
            }
            dec(out, message.first_frame);
        });
        cell(Kind::Quiet, &|out| {
            seconds(out, message.start_ns.saturating_sub(self.start_ns), 6);
        });
        cell(Kind::Plain, &|out| ip(out, message.key.src));
        cell(Kind::Plain, &|out| {
            out.extend_from_slice("→ ".as_bytes());
            ip(out, message.key.dst);
        });
        cell(Kind::Plain, &|out| {
            hex(out, message.key.dest_qp.get().into(), 6);
        });
        cell(Kind::Request, &|out| operation(out, message));
        cell(Kind::Plain, &|out| {
            hex(out, message.first_psn.get().into(), 6);
        });
        cell(Kind::Plain, &|out| {
            let last = message.last_psn.distance_from(message.first_psn);
            dec(out, last + 1);
        });
        cell(Kind::Plain, &|out| memory(out, message));
        cell(Kind::Plain, &|out| dec(out, message.bytes));
        cell(Kind::Plain, &|out| {
            if let Some(ns) = message.latency_ns() {
                out.extend_from_slice(span(ns.unsigned_abs()).as_bytes());
            }
        });
        row.flags(|words| flags(message, words));
        row.end();
    }
}

fn memory(out: &mut Vec<u8>, message: &Message) {
    if let Some(remote) = message.remote {
        let start = out.len();
        hex_short(out, remote.va.get());
        let written = width(&out[start..]);
        out.resize(out.len() + 14usize.saturating_sub(written) + GAP, b' ');
        hex(out, remote.rkey.get().into(), 8);
    }
}

fn flags(message: &Message, words: &mut Flags<'_>) {
    if let Some(kind) = message.refused {
        words.more(Kind::Bad, |out| _ = write!(out, "{kind}"));
    }
    if message.retransmits > 0 {
        words.more(Kind::Notice, |out| {
            out.extend_from_slice("retransmitted ×".as_bytes());
            dec(out, message.retransmits);
        });
    }
    words.word(message.malformed, "malformed", Kind::Bad);
    let incomplete = !message.complete && !message.malformed;
    words.word(incomplete, "incomplete", Kind::Notice);
}

/// How long messages took.
pub struct MessagesReport<'a> {
    /// The capture.
    pub capture: Capture<'a>,
    /// Its flows.
    pub tracker: &'a Tracker,
    /// Which of them to show.
    pub filter: &'a FlowFilter,
    /// Messages of some operations only were chosen.
    pub some_operations: bool,
    /// The messages of these, by flow and operation.
    pub distribution: &'a Distribution,
    /// The stretch of time that is over, in a capture that goes on.
    pub interval: Option<&'a Interval>,
}

/// Prints how long messages took as a table.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_messages(
    out: &mut impl Write,
    report: &MessagesReport<'_>,
    layout: Layout,
) -> io::Result<()> {
    let mut text = Vec::new();
    if let Some(interval) = report.interval {
        heading(&mut text, layout.style, interval, &report.capture);
    } else {
        text.push(b'\n');
        report.capture.head(&mut text, layout.style);
    }
    distribution(&mut text, report, layout);
    if report.interval.is_none() {
        efficiency(&mut text, report, layout.width);
        report.capture.foot(&mut text, layout, report.tracker);
    } else {
        text.push(b'\n');
    }
    out.write_all(&text)
}

fn distribution(text: &mut Vec<u8>, report: &MessagesReport<'_>, layout: Layout) {
    let mut rows: Vec<&Spread> = report.distribution.spreads().iter().collect();
    if rows.is_empty() {
        text.extend_from_slice(b"\n  no messages\n");
        return;
    }
    rows.sort_by_key(|spread| Reverse(spread.messages));
    let shown = if layout.all {
        rows.len()
    } else {
        rows.len().min(ROWS)
    };
    let (rows, more) = rows.split_at(shown);
    let per_s = |count: u64, spread: &Spread| {
        let ns = spread.span_ns();
        (ns > 0 && count > 0).then(|| count as f64 * 1e9 / ns as f64)
    };
    let right = |title, cell: &dyn Fn(&Spread) -> Option<String>| {
        Column::new(title, true, rows, |spread| Cell::or_nothing(cell(spread)))
    };
    let mut columns = vec![
        Column::numbers(rows),
        Column::new("source", false, rows, |spread| {
            Cell::plain(spread.key.src.to_string())
        }),
        Column::new("→ destination", false, rows, |spread| {
            Cell::plain(format!("→ {}", spread.key.dst))
        }),
        Column::new("dest QP", false, rows, |spread| {
            Cell::plain(spread.key.dest_qp.to_string())
        }),
        Column::new("operation", false, rows, |spread| {
            let operation = spread.operation;
            Cell::plain(format!(
                "{} {}",
                operation.transport.name(),
                operation.name()
            ))
        }),
        right("messages", &|spread| Some(grouped(spread.messages))),
        right("bytes", &|spread| Some(bytes(spread.bytes))),
        right("latency p50", &|spread| {
            spread.latency.quantile(0.5).map(span)
        }),
        right("p99", &|spread| spread.latency.quantile(0.99).map(span)),
        right("max", &|spread| spread.latency.max().map(span)),
        right("rate", &|spread| per_s(spread.messages, spread).map(rate)),
        right("goodput", &|spread| {
            per_s(spread.payload.saturating_mul(8), spread).map(bit_rate)
        }),
    ];
    let counts: [Count<&Spread>; 4] = [
        ("retransmits", Kind::Notice, |spread| spread.retransmits),
        ("incomplete", Kind::Notice, |spread| spread.incomplete),
        ("malformed", Kind::Bad, |spread| spread.malformed),
        ("refused", Kind::Bad, |spread| spread.refused),
    ];
    for (title, kind, count) in counts {
        columns.extend(Column::counts(title, kind, rows, count));
    }
    panels::print(text, layout.style, &columns, layout.width);
    let more: u64 = more.iter().map(|spread| spread.messages).sum();
    let more = more + report.distribution.beyond_cap;
    if more > 0 {
        let more = plural(more, "message", "messages");
        let _ = writeln!(text, "  … and {more} of other flows and operations (--all)");
    }
}

/// What of the bytes on the wire was payload that counts.
fn efficiency(text: &mut Vec<u8>, report: &MessagesReport<'_>, width: Option<usize>) {
    let chosen = report
        .tracker
        .flows()
        .filter(|flow| report.filter.matches(&flow.key, flow.src_qp));
    let (mut good, mut again, mut wire) = (0, 0, 0);
    for flow in chosen {
        wire += flow.wire_bytes;
        good += flow.goodput_bytes;
        // Management datagrams carry payload that is of no message.
        if flow.goodput_bytes > 0 {
            again += flow.payload_bytes.saturating_sub(flow.goodput_bytes);
        }
    }
    if wire == 0 {
        return;
    }
    let share = good as f64 / wire as f64 * 100.0;
    let which = if report.some_operations {
        ", whatever their operation"
    } else {
        ""
    };
    let mut sentence = format!(
        "All packets of these flows{which}: {} on the wire carried {} of payload ({share:.1} %)",
        bytes(wire),
        bytes(good),
    );
    if again > 0 {
        let _ = std::fmt::Write::write_fmt(
            &mut sentence,
            format_args!(", and {} of it once more", bytes(again)),
        );
    }
    text.push(b'\n');
    remark(text, &sentence, width);
}
