//! The same traffic at several points, for people.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use comfy_table::{CellAlignment, Table};

use super::{
    compare_notes::notes,
    lines::{at_the_top, line, more},
    style::{Kind, Style},
    summary::{put, table},
    text::{grouped, plural, seconds, span},
};
use crate::{
    compare::{Bound, Changed, Comparison, Counts, Delays, End, Fate, FlowLeg, How, Leg, Sighting},
    track::IcrcState,
};

/// Rows of a list that are shown unless all are asked for.
const ROWS_SHOWN: usize = 20;

/// How much of it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompareOptions {
    /// Every row of every list.
    pub all: bool,
    /// Only the lists of packets.
    pub quiet: bool,
    /// Width of the terminal, where the output is one.
    pub width: Option<usize>,
}

impl CompareOptions {
    const fn rows(&self) -> usize {
        if self.all { usize::MAX } else { ROWS_SHOWN }
    }

    /// How many of `rows` are left out.
    const fn left(&self, rows: usize) -> usize {
        rows.saturating_sub(self.rows())
    }
}

/// The letter that stands for a point.
pub(super) fn letter(point: usize) -> char {
    char::from(b'A' + point.min(25) as u8)
}

/// A direction along a leg, as `A→B`.
fn arrow(leg: &Leg, bound: Bound) -> String {
    let (from, to) = ends(leg, bound);
    format!("{}→{}", letter(from), letter(to))
}

/// The points that packets pass, in that order.
pub(super) const fn ends(leg: &Leg, bound: Bound) -> (usize, usize) {
    match bound {
        Bound::Ahead => (leg.near, leg.far),
        Bound::Back => (leg.far, leg.near),
    }
}

/// The point of a leg that saw a packet and the one that did not.
pub(super) const fn saw(leg: &Leg, end: End) -> (usize, usize) {
    match end {
        End::Near => (leg.near, leg.far),
        End::Far => (leg.far, leg.near),
    }
}

/// Prints what the comparison found.
///
/// # Errors
/// What writing to `out` returns.
pub fn print(
    out: &mut impl Write,
    style: Style,
    comparison: &Comparison,
    options: CompareOptions,
) -> io::Result<()> {
    let (mut text, mut top) = (Vec::new(), true);
    if !options.quiet {
        points(&mut text, style, comparison);
    }
    for leg in comparison.legs() {
        if !options.quiet {
            text.push(b'\n');
            totals(&mut text, style, leg, options.width);
            flows(&mut text, style, leg, options);
        }
        // Lists may be long.
        flush(out, &mut text, &mut top)?;
        let lists = Lists {
            comparison,
            leg,
            style,
            options,
        };
        lists.lone(&mut text, Fate::Lost);
        lists.lone(&mut text, Fate::Only);
        lists.changed(&mut text);
        if !options.quiet {
            let notes = notes(comparison, leg);
            if !notes.is_empty() {
                text.push(b'\n');
            }
            for note in notes {
                line(&mut text, style, "Note", &note, options.width);
            }
        }
    }
    missed(&mut text, style, comparison, options);
    flush(out, &mut text, &mut top)
}

/// Writes what was put together so far; `top` where nothing was before.
fn flush(out: &mut impl Write, text: &mut Vec<u8>, top: &mut bool) -> io::Result<()> {
    let rest: &[u8] = if *top { at_the_top(text) } else { &*text };
    out.write_all(rest)?;
    *top &= text.is_empty();
    text.clear();
    Ok(())
}

fn points(text: &mut Vec<u8>, style: Style, comparison: &Comparison) {
    for (place, point) in comparison.points().iter().enumerate() {
        let name = format!("{}  {}", letter(place), point.name);
        style.paint(text, Kind::Heading, name.as_bytes());
        let packets = plural(point.packets() as u64, "RoCE packet", "RoCE packets");
        let frames = plural(point.frames, "frame", "frames");
        let _ = write!(text, "  {packets} in {frames}");
        if let Some((first, last)) = point.time_range {
            text.extend_from_slice(" · ".as_bytes());
            seconds(text, last.saturating_sub(first), 6);
            text.extend_from_slice(b" s");
        }
        text.push(b'\n');
    }
}

fn totals(text: &mut Vec<u8>, style: Style, leg: &Leg, width: Option<usize>) {
    let name = format!("{}–{}", letter(leg.near), letter(leg.far));
    let counts = &leg.counts;
    if counts.matched == 0 {
        let words = "not one packet was seen at both points";
        style.paint(text, Kind::Heading, format!("{name:<9} ").as_bytes());
        style.paint(text, Kind::Bad, words.as_bytes());
        text.push(b'\n');
        return;
    }
    let mut parts = vec![format!(
        "{} at both",
        plural(counts.matched, "packet", "packets")
    )];
    let lost = by_bound(leg, |flow| flow.counts.fate(Fate::Lost));
    for (bound, count) in lost {
        parts.push(format!("{} lost {}", grouped(count), arrow(leg, bound)));
    }
    if counts.fate(Fate::Lost) == 0 {
        parts.push("none lost".into());
    }
    for (count, words) in [
        (counts.fate(Fate::Only), "at the second point only"),
        (counts.fate(Fate::Missed), "missed by the capture"),
        (counts.corrupted, "corrupted"),
        (counts.mended, "with an ICRC wrong only before"),
        (counts.ce_marked, "marked CE"),
        (counts.ecn_changed, "with other ECN bits"),
        (counts.dscp_changed, "with another DSCP"),
    ] {
        if count > 0 {
            parts.push(format!("{} {words}", grouped(count)));
        }
    }
    line(text, style, &name, &parts.join(", "), width);
    clocks(text, style, leg, width);
    let hops: Vec<String> = leg
        .hops
        .iter()
        .map(|((bound, steps), packets)| {
            let packets = plural(*packets, "packet", "packets");
            format!("{} {steps} ({packets})", arrow(leg, *bound))
        })
        .collect();
    if leg.hops.keys().any(|(_, steps)| *steps != 0) {
        line(text, style, "TTL steps", &hops.join(", "), width);
    }
}

/// Sums of a count over flows, by direction; those that are zero left out.
fn by_bound(leg: &Leg, count: impl Fn(&FlowLeg) -> u64) -> BTreeMap<Bound, u64> {
    let mut sums = BTreeMap::new();
    for flow in &leg.flows {
        let count = count(flow);
        if let Some((bound, _)) = flow.bound.filter(|_| count > 0) {
            *sums.entry(bound).or_default() += count;
        }
    }
    sums
}

fn clocks(text: &mut Vec<u8>, style: Style, leg: &Leg, width: Option<usize>) {
    use std::fmt::Write as _;
    let Some(offset) = &leg.offset else { return };
    let (near, far) = (letter(leg.near), letter(leg.far));
    let mut words = match offset.ns {
        _ if offset.how == How::Synced => "said to agree".to_owned(),
        0 => format!("{far} agrees with {near}"),
        ns => {
            let side = if ns > 0 { "ahead of" } else { "behind" };
            format!("{far} is {} {side} {near}", exact(ns.unsigned_abs()))
        }
    };
    if let Some(error) = offset.error_ns {
        words.extend([" ± ", &span(error)]);
    }
    let (ahead, back) = (arrow(leg, Bound::Ahead), arrow(leg, Bound::Back));
    match offset.how {
        How::Synced => {}
        How::BothWays => {
            let _ = write!(
                words,
                ", half way between the fastest of {} {ahead} and of {} {back}",
                plural(offset.ahead, "packet", "packets"),
                grouped(offset.back)
            );
        }
        How::OneWay => {
            let (count, way) = if offset.back == 0 {
                (offset.ahead, ahead)
            } else {
                (offset.back, back)
            };
            let _ = write!(
                words,
                ", if the fastest of {} {way} took no time: without packets the other way, delay \
                 and offset cannot be told apart",
                plural(count, "packet", "packets")
            );
        }
    }
    line(text, style, "Clocks", &words, width);
    if offset.windows > 1 {
        let mut words = format!(
            "offsets of {} stretches of time lie within {}",
            offset.windows,
            span(offset.spread_ns)
        );
        if offset.drift_ppb != 0 {
            let _ = write!(
                words,
                " of a line: {far} gains {:.3} parts in a million",
                offset.drift_ppb as f64 / 1e3
            );
        }
        line(text, style, "", &words, width);
    }
}

/// A time with all its digits, in a unit that suits it.
fn exact(ns: u64) -> String {
    let (unit, per_unit, digits) = match ns {
        0..1_000_000 => ("µs", 1_000, 3),
        1_000_000..1_000_000_000 => ("ms", 1_000_000, 6),
        _ => ("s", 1_000_000_000, 9),
    };
    let (whole, rest) = (ns / per_unit, ns % per_unit);
    format!("{}.{rest:0digits$} {unit}", grouped(whole))
}

/// A column of the table of flows.
type Column = (&'static str, fn(&Leg, &FlowLeg) -> String);

/// Which flow a row is about.
const KEY: [Column; 3] = [
    ("flow", |_, flow| {
        format!("{} → {}", flow.key.src, flow.key.dst)
    }),
    ("dest QP", |_, flow| flow.key.dest_qp.to_string()),
    ("way", |leg, flow| {
        flow.bound
            .map_or(String::new(), |(bound, _)| arrow(leg, bound))
    }),
];

/// What became of its packets.
const COUNTS: [Column; 4] = [
    ("matched", |_, flow| grouped(flow.counts.matched)),
    ("lost", |_, flow| some(flow.counts.fate(Fate::Lost))),
    ("only", |_, flow| some(flow.counts.fate(Fate::Only))),
    ("changed", |_, flow| some(flow.counts.changed)),
];

/// How long they took.
const DELAYS: [Column; 4] = [
    ("delay min", |_, flow| {
        delay(flow, |delays| u64::try_from(delays.min_ns).unwrap_or(0))
    }),
    ("p50", |_, flow| delay(flow, |delays| delays.p50_ns)),
    ("p99", |_, flow| delay(flow, |delays| delays.p99_ns)),
    ("max", |_, flow| delay(flow, |delays| delays.max_ns)),
];

/// Narrower terminals get counts and delays one below the other.
const WIDE: usize = 104;

/// A count; none is easier to pass over as a dot.
fn some(count: u64) -> String {
    if count == 0 {
        "·".to_owned()
    } else {
        grouped(count)
    }
}

fn delay(flow: &FlowLeg, of: fn(&Delays) -> u64) -> String {
    let delays = flow.delays.as_ref();
    delays.map_or("–".to_owned(), |delays| span(of(delays)))
}

fn flows(text: &mut Vec<u8>, style: Style, leg: &Leg, options: CompareOptions) {
    let all = leg.flows.iter();
    let mut list: Vec<&FlowLeg> = all.filter(|flow| flow.bound.is_some()).collect();
    if list.is_empty() {
        return;
    }
    // Trouble first; equal ones as they appeared.
    let trouble = |counts: &Counts| counts.fate(Fate::Lost) + counts.fate(Fate::Only);
    list.sort_by_key(|flow| std::cmp::Reverse(trouble(&flow.counts)));
    let tables = if options.width.is_none_or(|width| width >= WIDE) {
        vec![[KEY.as_slice(), &COUNTS, &DELAYS].concat()]
    } else {
        vec![
            [KEY.as_slice(), &COUNTS].concat(),
            [KEY.as_slice(), &DELAYS].concat(),
        ]
    };
    for columns in tables {
        let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
        let mut table = table(&titles, options.width);
        for flow in list.iter().take(options.rows()) {
            table.add_row(columns.iter().map(|(_, cell)| cell(leg, flow)));
        }
        put(text, style, &table);
        more(text, options.left(list.len()), "more flow", "more flows");
    }
}

/// Lists of packets.
struct Lists<'a> {
    comparison: &'a Comparison,
    leg: &'a Leg,
    style: Style,
    options: CompareOptions,
}

/// Columns that describe a packet where it was seen, behind those of its frame
/// and time.
const PACKET: [&str; 4] = ["flow", "dest QP", "operation", "PSN"];

fn packet(seen: &Sighting) -> [String; 4] {
    [
        format!("{} → {}", seen.flow.src, seen.flow.dst),
        seen.flow.dest_qp.to_string(),
        seen.opcode.to_string(),
        seen.psn.to_string(),
    ]
}

impl Lists<'_> {
    /// A table whose columns of words stand to the left.
    fn table(&self, titles: &[&str]) -> Table {
        let mut table = table(titles, self.options.width);
        for (title, column) in titles.iter().zip(table.column_iter_mut()) {
            let words = ["flow", "operation", "remark", "change"].contains(title);
            column.set_cell_alignment(if words {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            });
        }
        table
    }

    /// Time since the capture began, as the packets themselves are listed.
    fn time(&self, seen: &Sighting) -> String {
        let start = self.comparison.points()[seen.point].start_ns;
        let mut text = Vec::new();
        let since = seen.ts_ns.saturating_sub(start.unwrap_or(seen.ts_ns));
        seconds(&mut text, since, 6);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Packets of one fate, those of each point in a table of its own.
    fn lone(&self, text: &mut Vec<u8>, fate: Fate) {
        for end in [End::Near, End::Far] {
            let of_end = |counts: &FlowLeg| match (counts.bound, end) {
                (Some((Bound::Ahead, _)), End::Near) | (Some((Bound::Back, _)), End::Far) => {
                    fate == Fate::Lost
                }
                (Some(_), _) => fate == Fate::Only,
                (None, _) => false,
            };
            let flows = self.leg.flows.iter().filter(|flow| of_end(flow));
            let count: u64 = flows.map(|flow| flow.counts.fate(fate)).sum();
            if count == 0 {
                continue;
            }
            let (there, other) = saw(self.leg, end);
            let (there, other) = (letter(there), letter(other));
            let heading = if fate == Fate::Lost {
                format!("Lost {there}→{other}, by their frames at {there}")
            } else {
                format!("At {there} only, which packets pass after {other}")
            };
            let lone = self.comparison.lone(self.leg);
            let lone = lone.filter(|lone| lone.fate == fate && lone.end == end);
            let rows = lone.take(self.options.rows()).map(|lone| {
                let mut row = vec![lone.seen.frame.to_string(), self.time(&lone.seen)];
                row.extend(packet(&lone.seen));
                row.push(remark(&lone.seen));
                row
            });
            let mut rows: Vec<Vec<String>> = rows.collect();
            let mut titles = vec!["frame", "time"];
            titles.extend(PACKET);
            if rows
                .iter()
                .all(|row| row.last().is_none_or(String::is_empty))
            {
                for row in &mut rows {
                    row.pop();
                }
            } else {
                titles.push("remark");
            }
            let mut table = self.table(&titles);
            table.add_rows(rows);
            self.list(text, &heading, &table, count);
        }
    }

    /// Packets that something changed.
    fn changed(&self, text: &mut Vec<u8>) {
        let counts = &self.leg.counts;
        if counts.changed == 0 {
            return;
        }
        let (near, far) = (letter(self.leg.near), letter(self.leg.far));
        let frames = [format!("frame at {near}"), format!("at {far}")];
        let titles = [
            &[frames[0].as_str(), frames[1].as_str()],
            PACKET.as_slice(),
            &["change"],
        ];
        let mut table = self.table(&titles.concat());
        let mut count = 0;
        for changed in self.comparison.changed(self.leg) {
            count += 1;
            if count > self.options.rows() {
                continue;
            }
            let (first, second) = (&changed.first, &changed.second);
            let (near, far) = if first.point == self.leg.near {
                (first, second)
            } else {
                (second, first)
            };
            let mut row = vec![near.frame.to_string(), far.frame.to_string()];
            row.extend(packet(first));
            row.push(change(&changed));
            table.add_row(row);
        }
        self.list(text, "Changed on the way", &table, count as u64);
    }

    fn list(&self, text: &mut Vec<u8>, heading: &str, table: &Table, count: u64) {
        text.push(b'\n');
        self.style.paint(text, Kind::Notice, heading.as_bytes());
        put(text, self.style, table);
        let left = self.options.left(count as usize);
        more(text, left, "more packet", "more packets");
    }
}

/// What is odd about a packet that one point saw.
fn remark(seen: &Sighting) -> String {
    let remarks = [
        (seen.copy, "a copy of it was seen at both points"),
        (seen.icrc == IcrcState::Invalid, "wrong ICRC"),
    ];
    let words = remarks.into_iter().filter(|(is, _)| *is);
    words.map(|(_, words)| words).collect::<Vec<_>>().join(", ")
}

/// What changed, in words.
fn change(changed: &Changed) -> String {
    let mut parts = Vec::new();
    let changes = &changed.changes;
    if let Some((before, after)) = changes.ecn {
        let word = |ecn: u8| ["not ECT", "ECT(1)", "ECT(0)", "CE"][usize::from(ecn & 3)];
        parts.push(format!("ECN {} → {}", word(before), word(after)));
    }
    if let Some((before, after)) = changes.dscp {
        parts.push(format!("DSCP {before} → {after}"));
    }
    match changes.icrc {
        Some((_, IcrcState::Invalid)) => parts.push("corrupted: its ICRC is wrong now".into()),
        Some(_) => parts.push("its ICRC was wrong, and is right".into()),
        None => {}
    }
    parts.join(", ")
}

fn missed(text: &mut Vec<u8>, style: Style, comparison: &Comparison, options: CompareOptions) {
    let missed = comparison.missed();
    if missed.is_empty() {
        return;
    }
    text.push(b'\n');
    let heading = "Not captured at a point that they passed";
    style.paint(text, Kind::Notice, heading.as_bytes());
    let titles = [&["not at", "before", "beyond"], PACKET.as_slice()].concat();
    let mut table = table(&titles, options.width);
    for missed in missed.iter().take(options.rows()) {
        let points = missed.near.point + 1..missed.far.point;
        let points: Vec<_> = points.map(|point| letter(point).to_string()).collect();
        let place = |seen: &Sighting| format!("{}:{}", letter(seen.point), seen.frame);
        let mut row = vec![points.join(", "), place(&missed.near), place(&missed.far)];
        row.extend(packet(&missed.near));
        table.add_row(row);
    }
    put(text, style, &table);
    let left = options.left(missed.len());
    more(text, left, "more packet", "more packets");
}
