//! The same traffic at several points, as one JSON document or as rows.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::{
    compare::{ends, letter, saw},
    text::{dec, ip, opcode},
};
use crate::{
    compare::{
        Bound, Changed, Comparison, Counts, Fate, FlowLeg, Leg, Lone, Missed, Offset, Sighting,
    },
    track::IcrcState,
};

/// Writes the comparison as one JSON document; the keys are a contract.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_json(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    let document = Document {
        points: points(comparison),
        legs: comparison.legs().iter().map(LegRow::new).collect(),
        lost: Rows(|| lone(comparison, Fate::Lost).map(|(leg, lone)| LostRow::new(leg, &lone))),
        only_in: Rows(|| lone(comparison, Fate::Only).map(|(leg, lone)| OnlyRow::new(leg, &lone))),
        changed: Rows(|| changed(comparison).map(|changed| ChangedRow::new(&changed))),
        missed: Rows(|| comparison.missed().into_iter().map(|m| MissedRow::new(&m))),
    };
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}

/// Packets that one point of a leg saw, of one fate, over all legs.
fn lone(comparison: &Comparison, fate: Fate) -> impl Iterator<Item = (&Leg, Lone)> {
    let legs = comparison.legs().iter();
    let all = legs.flat_map(move |leg| comparison.lone(leg).map(move |lone| (leg, lone)));
    all.filter(move |(_, lone)| lone.fate == fate)
}

/// Packets that changed, over all legs.
fn changed(comparison: &Comparison) -> impl Iterator<Item = Changed> {
    let legs = comparison.legs().iter();
    legs.flat_map(|leg| comparison.changed(leg))
}

/// Rows that are made while they are written: there may be millions.
struct Rows<F>(F);

impl<F, I> Serialize for Rows<F>
where
    F: Fn() -> I,
    I: Iterator,
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

#[derive(Serialize)]
struct Document<'a, L, O, C, M> {
    points: Vec<PointRow<'a>>,
    legs: Vec<LegRow>,
    lost: L,
    only_in: O,
    changed: C,
    missed: M,
}

#[derive(Serialize)]
struct PointRow<'a> {
    point: char,
    file: &'a str,
    frames: u64,
    packets: usize,
    first_ts_ns: Option<i64>,
    last_ts_ns: Option<i64>,
    dropped: Option<u64>,
}

fn points(comparison: &Comparison) -> Vec<PointRow<'_>> {
    let places = comparison.points().iter().enumerate();
    let rows = places.map(|(place, point)| {
        let (first_ts_ns, last_ts_ns) = point.time_range.unzip();
        PointRow {
            point: letter(place),
            file: &point.name,
            frames: point.frames,
            packets: point.packets(),
            first_ts_ns,
            last_ts_ns,
            dropped: point.dropped,
        }
    });
    rows.collect()
}

#[derive(Serialize)]
struct LegRow {
    near: char,
    far: char,
    offset: Option<OffsetRow>,
    #[serde(flatten)]
    counts: CountsRow,
    hops: Vec<HopsRow>,
    flows: Vec<FlowRow>,
}

#[derive(Serialize)]
struct OffsetRow {
    ns: i64,
    at_ns: i64,
    how: &'static str,
    packets_ahead: u64,
    packets_back: u64,
    error_ns: Option<u64>,
    drift_ppb: i64,
    stretches: usize,
    spread_ns: u64,
}

impl OffsetRow {
    const fn new(offset: &Offset) -> Self {
        Self {
            ns: offset.ns,
            at_ns: offset.at_ns,
            how: offset.how.word(),
            packets_ahead: offset.ahead,
            packets_back: offset.back,
            error_ns: offset.error_ns,
            drift_ppb: offset.drift_ppb,
            stretches: offset.windows,
            spread_ns: offset.spread_ns,
        }
    }
}

#[derive(Serialize)]
struct CountsRow {
    matched: u64,
    lost: u64,
    only: u64,
    missed: u64,
    before: u64,
    after: u64,
    elsewhere: u64,
    captured_twice: u64,
    changed: u64,
    ce_marked: u64,
    ecn_changed: u64,
    dscp_changed: u64,
    corrupted: u64,
    mended: u64,
}

impl CountsRow {
    const fn new(counts: &Counts) -> Self {
        Self {
            matched: counts.matched,
            lost: counts.fate(Fate::Lost),
            only: counts.fate(Fate::Only),
            missed: counts.fate(Fate::Missed),
            before: counts.fate(Fate::Before),
            after: counts.fate(Fate::After),
            elsewhere: counts.fate(Fate::Elsewhere),
            captured_twice: counts.fate(Fate::Twice),
            changed: counts.changed,
            ce_marked: counts.ce_marked,
            ecn_changed: counts.ecn_changed,
            dscp_changed: counts.dscp_changed,
            corrupted: counts.corrupted,
            mended: counts.mended,
        }
    }
}

#[derive(Serialize)]
struct HopsRow {
    from: char,
    to: char,
    steps: i16,
    packets: u64,
}

#[derive(Serialize)]
struct FlowRow {
    src: std::net::IpAddr,
    dst: std::net::IpAddr,
    dest_qp: u32,
    from: Option<char>,
    to: Option<char>,
    known_by: Option<&'static str>,
    near_packets: u64,
    far_packets: u64,
    #[serde(flatten)]
    counts: CountsRow,
    delay_ns: Option<DelayRow>,
}

#[derive(Serialize)]
struct DelayRow {
    min: i64,
    p50: u64,
    p99: u64,
    max: u64,
}

fn letters(leg: &Leg, bound: Bound) -> (char, char) {
    let (from, to) = ends(leg, bound);
    (letter(from), letter(to))
}

impl LegRow {
    fn new(leg: &Leg) -> Self {
        let hops = leg.hops.iter().map(|(&(bound, steps), &packets)| {
            let (from, to) = letters(leg, bound);
            HopsRow {
                from,
                to,
                steps,
                packets,
            }
        });
        Self {
            near: letter(leg.near),
            far: letter(leg.far),
            offset: leg.offset.as_ref().map(OffsetRow::new),
            counts: CountsRow::new(&leg.counts),
            hops: hops.collect(),
            flows: leg
                .flows
                .iter()
                .map(|flow| FlowRow::new(leg, flow))
                .collect(),
        }
    }
}

impl FlowRow {
    fn new(leg: &Leg, flow: &FlowLeg) -> Self {
        let (from, to) = flow.bound.map(|(bound, _)| letters(leg, bound)).unzip();
        Self {
            src: flow.key.src,
            dst: flow.key.dst,
            dest_qp: flow.key.dest_qp.get(),
            from,
            to,
            known_by: flow.bound.map(|(_, learned)| learned.word()),
            near_packets: flow.near,
            far_packets: flow.far,
            counts: CountsRow::new(&flow.counts),
            delay_ns: flow.delays.map(|delays| DelayRow {
                min: delays.min_ns,
                p50: delays.p50_ns,
                p99: delays.p99_ns,
                max: delays.max_ns,
            }),
        }
    }
}

/// A packet where it was seen.
#[derive(Serialize)]
struct PacketRow {
    frame: u64,
    ts_ns: i64,
    src: std::net::IpAddr,
    dst: std::net::IpAddr,
    dest_qp: u32,
    opcode: u8,
    op: String,
    psn: u32,
    icrc: &'static str,
}

impl PacketRow {
    fn new(seen: &Sighting) -> Self {
        Self {
            frame: seen.frame,
            ts_ns: seen.ts_ns,
            src: seen.flow.src,
            dst: seen.flow.dst,
            dest_qp: seen.flow.dest_qp.get(),
            opcode: seen.opcode.0,
            op: seen.opcode.to_string(),
            psn: seen.psn.get(),
            icrc: icrc(seen.icrc),
        }
    }
}

const fn icrc(state: IcrcState) -> &'static str {
    match state {
        IcrcState::Valid => "valid",
        IcrcState::Invalid => "invalid",
        IcrcState::Unverifiable => "unverifiable",
    }
}

#[derive(Serialize)]
struct LostRow {
    from: char,
    to: char,
    #[serde(flatten)]
    packet: PacketRow,
    copy: bool,
}

impl LostRow {
    fn new(leg: &Leg, lone: &Lone) -> Self {
        let (from, to) = saw(leg, lone.end);
        Self {
            from: letter(from),
            to: letter(to),
            packet: PacketRow::new(&lone.seen),
            copy: lone.seen.copy,
        }
    }
}

#[derive(Serialize)]
struct OnlyRow {
    at: char,
    not_at: char,
    #[serde(flatten)]
    packet: PacketRow,
    copy: bool,
}

impl OnlyRow {
    fn new(leg: &Leg, lone: &Lone) -> Self {
        let (at, not_at) = saw(leg, lone.end);
        Self {
            at: letter(at),
            not_at: letter(not_at),
            packet: PacketRow::new(&lone.seen),
            copy: lone.seen.copy,
        }
    }
}

#[derive(Serialize)]
struct ChangedRow {
    from: char,
    to: char,
    #[serde(flatten)]
    packet: PacketRow,
    to_frame: u64,
    to_ts_ns: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ecn: Option<(u8, u8)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dscp: Option<(u8, u8)>,
    corrupted: bool,
}

impl ChangedRow {
    fn new(changed: &Changed) -> Self {
        let changes = &changed.changes;
        let broken = |(_, after)| after == IcrcState::Invalid;
        Self {
            from: letter(changed.first.point),
            to: letter(changed.second.point),
            packet: PacketRow::new(&changed.first),
            to_frame: changed.second.frame,
            to_ts_ns: changed.second.ts_ns,
            ecn: changes.ecn,
            dscp: changes.dscp,
            corrupted: changes.icrc.is_some_and(broken),
        }
    }
}

#[derive(Serialize)]
struct MissedRow {
    by: Vec<char>,
    near: char,
    far: char,
    #[serde(flatten)]
    packet: PacketRow,
    far_frame: u64,
    far_ts_ns: i64,
}

impl MissedRow {
    fn new(missed: &Missed) -> Self {
        Self {
            by: (missed.near.point + 1..missed.far.point)
                .map(letter)
                .collect(),
            near: letter(missed.near.point),
            far: letter(missed.far.point),
            packet: PacketRow::new(&missed.near),
            far_frame: missed.far.frame,
            far_ts_ns: missed.far.ts_ns,
        }
    }
}

/// Columns of the CSV output.
const COLUMNS: &str = "event,from,to,frame,to_frame,ts_ns,src,dst,dest_qp,opcode,op,psn,icrc,copy,\
before,after\n";

/// A row of the CSV output.
struct Event {
    what: &'static str,
    from: usize,
    to: usize,
    frame: Option<u64>,
    to_frame: Option<u64>,
    /// Where it was seen, first if at both points.
    seen: Sighting,
    before: Option<String>,
    after: Option<String>,
}

/// Writes a row for every packet that was lost, seen at one point only, missed
/// or changed; one that changed in two ways has two.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_csv(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    let mut text = COLUMNS.as_bytes().to_vec();
    let mut put = |text: &mut Vec<u8>, event: Event| -> io::Result<()> {
        row(text, &event);
        if text.len() > 1 << 16 {
            out.write_all(text)?;
            text.clear();
        }
        Ok(())
    };
    for leg in comparison.legs() {
        for lone in comparison.lone(leg) {
            if let Some(event) = lone_event(leg, &lone) {
                put(&mut text, event)?;
            }
        }
        for changed in comparison.changed(leg) {
            for event in changed_events(&changed) {
                put(&mut text, event)?;
            }
        }
    }
    for missed in comparison.missed() {
        put(
            &mut text,
            Event {
                what: "missed",
                from: missed.near.point,
                to: missed.far.point,
                frame: Some(missed.near.frame),
                to_frame: Some(missed.far.frame),
                seen: missed.near,
                before: None,
                after: None,
            },
        )?;
    }
    out.write_all(&text)
}

fn lone_event(leg: &Leg, lone: &Lone) -> Option<Event> {
    let frame = Some(lone.seen.frame);
    let (there, other) = saw(leg, lone.end);
    let (what, from, to, frame, to_frame) = match lone.fate {
        Fate::Lost => ("lost", there, other, frame, None),
        Fate::Only => ("only_in", other, there, None, frame),
        _ => return None,
    };
    Some(Event {
        what,
        from,
        to,
        frame,
        to_frame,
        seen: lone.seen,
        before: None,
        after: None,
    })
}

fn changed_events(changed: &Changed) -> impl Iterator<Item = Event> {
    let changes = changed.changes;
    let numbers = |pair: Option<(u8, u8)>| pair.map(|(a, b)| (a.to_string(), b.to_string()));
    let words = changes
        .icrc
        .map(|(a, b)| (icrc(a).to_owned(), icrc(b).to_owned()));
    let (first, second) = (changed.first, changed.second);
    [
        ("ecn", numbers(changes.ecn)),
        ("dscp", numbers(changes.dscp)),
        ("icrc", words),
    ]
    .into_iter()
    .filter_map(move |(what, values)| {
        let (before, after) = values?;
        Some(Event {
            what,
            from: first.point,
            to: second.point,
            frame: Some(first.frame),
            to_frame: Some(second.frame),
            seen: first,
            before: Some(before),
            after: Some(after),
        })
    })
}

fn row(out: &mut Vec<u8>, event: &Event) {
    let seen = &event.seen;
    let comma = |out: &mut Vec<u8>| out.push(b',');
    let maybe = |out: &mut Vec<u8>, value: Option<u64>| {
        comma(out);
        if let Some(value) = value {
            dec(out, value);
        }
    };
    let _ = write!(
        out,
        "{},{},{}",
        event.what,
        letter(event.from),
        letter(event.to)
    );
    maybe(out, event.frame);
    maybe(out, event.to_frame);
    comma(out);
    dec(out, seen.ts_ns);
    comma(out);
    ip(out, seen.flow.src);
    comma(out);
    ip(out, seen.flow.dst);
    maybe(out, Some(seen.flow.dest_qp.get().into()));
    maybe(out, Some(seen.opcode.0.into()));
    comma(out);
    opcode(out, seen.opcode);
    maybe(out, Some(seen.psn.get().into()));
    let _ = write!(out, ",{},{}", icrc(seen.icrc), seen.copy);
    for value in [&event.before, &event.after] {
        comma(out);
        out.extend_from_slice(value.as_deref().unwrap_or("").as_bytes());
    }
    out.push(b'\n');
}
