//! Memory that was touched, and accesses that were refused.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::{
    capture::Capture,
    fields::Fields,
    flows::{Layout, heading},
    interval::Interval,
    lines::{at_the_top, line, more},
    panels::{self, Cell, Column, Count},
    style::Kind,
    text::{bytes, either, grouped, ip, plural},
};
use crate::track::{Access, Accesses, Intervals, MemoryMap, Refused, Region, Tracker, Volume};

/// Rows of a table; the rest are counted in one line.
const ROWS: usize = 20;
/// What no capture says.
const UNKNOWN_SIZE: &str =
    "How large a registered region is, is not on the wire: shown is what was touched.";

/// What there is to report about memory.
pub struct MemoryReport<'a> {
    /// The capture.
    pub capture: Capture<'a>,
    /// Its flows.
    pub tracker: &'a Tracker,
    /// The memory.
    pub memory: &'a MemoryMap,
    /// The stretch of time that is over, in a capture that goes on.
    pub interval: Option<&'a Interval>,
}

/// Prints touched memory as tables.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_memory(
    out: &mut impl Write,
    report: &MemoryReport<'_>,
    layout: Layout,
) -> io::Result<()> {
    let mut text = Vec::new();
    match report.interval {
        Some(interval) => heading(&mut text, layout.style, interval, &report.capture),
        None if !layout.quiet => report.capture.head(&mut text, layout.style),
        None => {}
    }
    let regions = report.memory.regions();
    if regions.is_empty() {
        text.extend_from_slice(b"\n  no message names memory of a responder\n");
    } else {
        overview(&mut text, regions, layout);
        stretches(&mut text, regions, layout);
        refusals(&mut text, report, layout);
    }
    if report.interval.is_none() && !layout.quiet {
        notes(&mut text, report, layout);
        report.capture.foot(&mut text, layout, report.tracker);
    } else if report.interval.is_some() {
        text.push(b'\n');
    }
    out.write_all(at_the_top(&text))
}

fn limited<T>(rows: &[T], all: bool) -> (&[T], usize) {
    let shown = if all {
        rows.len()
    } else {
        rows.len().min(ROWS)
    };
    (&rows[..shown], rows.len() - shown)
}

fn overview(text: &mut Vec<u8>, regions: &[Region], layout: Layout) {
    let (rows, left) = limited(regions, layout.all);
    let mut columns = vec![
        Column::numbers(rows),
        Column::new("responder", false, rows, |region| {
            Cell::plain(region.responder.to_string())
        }),
        Column::new("rkey", false, rows, |region| {
            Cell::plain(region.rkey.to_string())
        }),
        Column::new("over QP", false, rows, |region| Cell::plain(qps(region))),
    ];
    for kind in Access::ALL {
        columns.push(Column::new(kind.done(), true, rows, |region| {
            let Accesses {
                operations,
                bytes: total,
                ..
            } = region.accesses(kind);
            let (operations, total) = (*operations, *total);
            Cell::or_nothing(
                (operations > 0)
                    .then(|| format!("{} × {}", grouped(operations), each(total, operations))),
            )
        }));
    }
    columns.push(Column::new("touched", true, rows, |region| {
        let (first, last) = region.span().map_or((0, 0), |(a, b)| (a.get(), b.get()));
        Cell::or_nothing((last > first).then(|| bytes(region.touched(first, last))))
    }));
    columns.push(Column::new("written again", true, rows, |region| {
        let again = region.overwritten_bytes;
        Cell::or_nothing((again > 0).then(|| bytes(again)))
    }));
    let counts: [Count<Region>; 3] = [
        ("refused", Kind::Bad, |region| region.refused),
        ("unconfirmed", Kind::Notice, |region| region.unconfirmed),
        ("not placed", Kind::Notice, |region| region.left_out),
    ];
    for (title, kind, count) in counts {
        columns.extend(Column::counts(title, kind, rows, count));
    }
    panels::print(text, layout.style, &columns, layout.width);
    more(text, left, "more region", "more regions");
}

/// Bytes of one operation, where all have the same; else on average.
fn each(total: u64, operations: u64) -> String {
    let mean = bytes(total / operations.max(1));
    if total.is_multiple_of(operations.max(1)) {
        mean
    } else {
        format!("~{mean}")
    }
}

fn qps(region: &Region) -> String {
    match region.qps.as_slice() {
        [only] => only.to_string(),
        [first, rest @ ..] => {
            let or_more = if region.more_qps { " or more" } else { "" };
            format!("{first} + {}{or_more}", rest.len())
        }
        [] => String::new(),
    }
}

/// One stretch of memory of a region.
struct Stretch {
    /// Number of the region in its table.
    region: usize,
    what: &'static str,
    va: u64,
    len: u64,
}

/// The intervals of a region, with the words for what was done to them.
fn sets(region: &Region) -> impl Iterator<Item = (&'static str, &Intervals)> {
    let kinds = Access::ALL.into_iter();
    kinds
        .map(|kind| (kind.done(), &region.accesses(kind).intervals))
        .chain([("written again", &region.overwritten)])
}

fn stretches(text: &mut Vec<u8>, regions: &[Region], layout: Layout) {
    let (regions, _) = limited(regions, layout.all);
    let every = (1..).zip(regions);
    let every = every.flat_map(|(n, region)| sets(region).map(move |(what, set)| (n, what, set)));
    let (mut rows, mut count) = (Vec::new(), 0);
    for (region, what, set) in every {
        count += set.len();
        let room = if layout.all {
            set.len()
        } else {
            ROWS - rows.len()
        };
        rows.extend(set.iter().take(room).map(|(va, len)| Stretch {
            region,
            what,
            va: va.get(),
            len,
        }));
    }
    if rows.is_empty() {
        return;
    }
    let columns = [
        Column::new("of #", true, &rows, |row| {
            Cell::kind(row.region.to_string(), Kind::Quiet)
        }),
        Column::new("from VA", true, &rows, |row| {
            Cell::plain(format!("{:#x}", row.va))
        }),
        Column::new("up to, not including", true, &rows, |row| {
            Cell::plain(format!("{:#x}", row.va + row.len))
        }),
        Column::new("bytes", true, &rows, |row| Cell::plain(grouped(row.len))),
        Column::new("", false, &rows, |row| Cell::plain(row.what)),
    ];
    panels::print(text, layout.style, &columns, layout.width);
    more(text, count - rows.len(), "more stretch", "more stretches");
}

/// What a refused access has to do with those that succeeded.
fn place(region: &Region, refused: &Refused) -> String {
    if region.operations() == 0 {
        return "nothing with this rkey succeeded".into();
    }
    if refused.len == 0 {
        return "no byte, so neither inside nor outside".into();
    }
    match region.outside(refused) {
        0 => "inside what was touched".into(),
        outside if outside == u64::from(refused.len) => "outside of what was touched".into(),
        outside => format!("{} of it outside of what was touched", bytes(outside)),
    }
}

fn refusals(text: &mut Vec<u8>, report: &MemoryReport<'_>, layout: Layout) {
    let several = report.capture.files.len() > 1;
    let regions = (1..).zip(report.memory.regions());
    let list: Vec<(usize, &Region, &Refused)> = regions
        .flat_map(|(number, region)| {
            let refusals = region.refusals.iter();
            refusals.map(move |refused| (number, region, refused))
        })
        .collect();
    let (rows, left) = limited(&list, layout.all);
    if rows.is_empty() {
        return;
    }
    let columns = [
        Column::new("of #", true, rows, |(number, ..)| {
            Cell::kind(number.to_string(), Kind::Quiet)
        }),
        Column::new("frame", true, rows, |(_, _, refused)| {
            Cell::plain(if several {
                format!("{}:{}", refused.input + 1, refused.frame)
            } else {
                refused.frame.to_string()
            })
        }),
        Column::new("refused VA", true, rows, |(_, _, refused)| {
            Cell::plain(format!("{:#x}", refused.va.get()))
        }),
        Column::new("bytes", true, rows, |(_, _, refused)| {
            Cell::plain(grouped(refused.len.into()))
        }),
        Column::new("to be", false, rows, |(_, _, refused)| {
            Cell::plain(refused.access.done())
        }),
        Column::new("answer", false, rows, |(_, _, refused)| {
            Cell::kind(refused.answer.to_string(), Kind::Bad)
        }),
        Column::new("", false, rows, |(_, region, refused)| {
            Cell::plain(place(region, refused))
        }),
    ];
    panels::print(text, layout.style, &columns, layout.width);
    more(text, left, "more refused access", "more refused accesses");
}

fn notes(text: &mut Vec<u8>, report: &MemoryReport<'_>, layout: Layout) {
    let Layout { style, width, .. } = layout;
    text.push(b'\n');
    line(text, style, "Note", UNKNOWN_SIZE, width);
    let MemoryMap {
        sends,
        unplaced,
        beyond_cap,
        ..
    } = report.memory;
    for (volume, words) in [
        (sends, "the receiver chooses the place"),
        (
            unplaced,
            "the packet that names the memory was not captured",
        ),
        (beyond_cap, "more keys than are kept"),
    ] {
        if volume.messages > 0 {
            let what = if std::ptr::eq(volume, sends) {
                plural(volume.messages, "SEND", "SENDs")
            } else {
                plural(volume.messages, "message", "messages")
            };
            let are = either(volume.messages, "is", "are");
            let note = format!(
                "{what} with {} {are} in no row: {words}",
                bytes(volume.bytes)
            );
            line(text, style, "Note", &note, width);
        }
    }
}

/// Prints touched memory as one JSON document in a line: the keys are a
/// contract.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_memory_json(out: &mut impl Write, report: &MemoryReport<'_>) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 16, out);
    let interval = report.interval;
    let document = Document {
        capture: report.capture.document(report.tracker),
        regions: Regions(report),
        sends: report.memory.sends.into(),
        unplaced: report.memory.unplaced.into(),
        beyond_cap: report.memory.beyond_cap.into(),
        interval_end_ns: interval.map(|interval| interval.end_ns),
    };
    serde_json::to_writer(&mut out, &document)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Serialize)]
struct Document<'a> {
    capture: super::capture::CaptureDocument<'a>,
    regions: Regions<'a>,
    sends: VolumeDocument,
    unplaced: VolumeDocument,
    beyond_cap: VolumeDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_end_ns: Option<i64>,
}

#[derive(Serialize)]
struct VolumeDocument {
    messages: u64,
    bytes: u64,
}

impl From<Volume> for VolumeDocument {
    fn from(Volume { messages, bytes }: Volume) -> Self {
        Self { messages, bytes }
    }
}

struct Regions<'a>(&'a MemoryReport<'a>);

impl Serialize for Regions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let files = self.0.capture.files;
        let regions = self.0.memory.regions().iter();
        serializer.collect_seq(regions.map(|region| RegionRow::new(region, files)))
    }
}

#[derive(Serialize)]
struct RegionRow<'a> {
    responder: std::net::IpAddr,
    rkey: String,
    dest_qps: Vec<u32>,
    more_qps: bool,
    first_va: Option<String>,
    end_va: Option<String>,
    touched_bytes: u64,
    written: AccessesRow<'a>,
    read: AccessesRow<'a>,
    atomic: AccessesRow<'a>,
    flushed: AccessesRow<'a>,
    overwritten: AccessesRow<'a>,
    refused: RefusedRows<'a>,
    unconfirmed: u64,
    left_out: u64,
    first_ts_ns: i64,
    last_ts_ns: i64,
}

#[derive(Serialize)]
struct AccessesRow<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<u64>,
    bytes: u64,
    distinct_bytes: u64,
    intervals: Stretches<'a>,
}

struct Stretches<'a>(&'a Intervals);

impl Serialize for Stretches<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(va, len)| StretchRow {
            va: va.to_string(),
            len,
        }))
    }
}

#[derive(Serialize)]
struct StretchRow {
    va: String,
    len: u64,
}

#[derive(Serialize)]
struct RefusedRows<'a> {
    operations: u64,
    accesses: Vec<RefusedRow<'a>>,
}

#[derive(Serialize)]
struct RefusedRow<'a> {
    access: &'static str,
    dest_qp: u32,
    va: String,
    len: u32,
    answer: &'static str,
    frame: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    outside_bytes: u64,
}

impl<'a> RegionRow<'a> {
    fn new(region: &'a Region, files: &'a [String]) -> Self {
        let accesses = |kind| {
            let accesses: &Accesses = region.accesses(kind);
            AccessesRow {
                operations: Some(accesses.operations),
                bytes: accesses.bytes,
                distinct_bytes: accesses.intervals.bytes(),
                intervals: Stretches(&accesses.intervals),
            }
        };
        let refused = region.refusals.iter().map(|refused| RefusedRow {
            access: refused.access.done(),
            dest_qp: refused.qp.get(),
            va: refused.va.to_string(),
            len: refused.len,
            answer: super::messages::refusal(refused.answer),
            frame: refused.frame,
            file: (files.len() > 1)
                .then(|| files.get(usize::from(refused.input)).map(String::as_str))
                .flatten(),
            outside_bytes: region.outside(refused),
        });
        let span = region.span();
        Self {
            responder: region.responder,
            rkey: region.rkey.to_string(),
            dest_qps: region.qps.iter().map(|qp| qp.get()).collect(),
            more_qps: region.more_qps,
            first_va: span.map(|(first, _)| first.to_string()),
            end_va: span.map(|(_, end)| end.to_string()),
            touched_bytes: span.map_or(0, |(a, b)| region.touched(a.get(), b.get())),
            written: accesses(Access::Write),
            read: accesses(Access::Read),
            atomic: accesses(Access::Atomic),
            flushed: accesses(Access::Flush),
            overwritten: AccessesRow {
                operations: None,
                bytes: region.overwritten_bytes,
                distinct_bytes: region.overwritten.bytes(),
                intervals: Stretches(&region.overwritten),
            },
            refused: RefusedRows {
                operations: region.refused,
                accesses: refused.collect(),
            },
            unconfirmed: region.unconfirmed,
            left_out: region.left_out,
            first_ts_ns: region.first_ns,
            last_ts_ns: region.last_ns,
        }
    }
}

/// Prints the header of the CSV output; `interval` where snapshots follow.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_memory_csv_header(out: &mut impl Write, interval: bool) -> io::Result<()> {
    let more = if interval { ",interval_end_ns" } else { "" };
    writeln!(
        out,
        "responder,rkey,kind,va,len,answer,frame,outside_bytes{more}"
    )
}

/// Prints touched memory as CSV, a row for each stretch and for each refused
/// access.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_memory_csv(out: &mut impl Write, report: &MemoryReport<'_>) -> io::Result<()> {
    let mut text = Vec::new();
    for region in report.memory.regions() {
        text.clear();
        let end = |mut row: Fields<'_>| {
            if let Some(interval) = report.interval {
                row.num(interval.end_ns);
            }
            row.0.push(b'\n');
        };
        for (what, set) in sets(region) {
            // One word, as the keys of the JSON document.
            let kind = if what == "written again" {
                "overwritten"
            } else {
                what
            };
            for (va, len) in set.iter() {
                ip(&mut text, region.responder);
                let mut row = Fields(&mut text);
                row.rkey(Some(region.rkey));
                row.str(kind);
                row.hex64(Some(va.get()));
                row.num(len);
                row.str(",,");
                end(row);
            }
        }
        for refused in &region.refusals {
            ip(&mut text, region.responder);
            let mut row = Fields(&mut text);
            row.rkey(Some(region.rkey));
            row.str("refused");
            row.hex64(Some(refused.va.get()));
            row.num(refused.len);
            row.str(super::messages::refusal(refused.answer));
            row.num(refused.frame);
            row.num(region.outside(refused));
            end(row);
        }
        out.write_all(&text)?;
    }
    Ok(())
}
