//! What a capture adds up to, for people.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::{
    lines::line,
    style::{Kind, Style},
    text::{grouped, plural, seconds},
};
use crate::{
    source::{InputStatistics, LiveCounters},
    track::{FlowCount, FlowKey, IcrcState, Summary},
};

/// Narrower tables break words and numbers.
const MIN_WIDTH: usize = 60;
/// Flows listed; the rest are counted in one line.
const FLOWS_SHOWN: usize = 20;

/// Prints the summary that follows a packet table, `width` places wide where
/// the output is a terminal.
///
/// # Errors
/// What writing to `out` returns.
pub fn print(
    out: &mut impl Write,
    style: Style,
    summary: &Summary,
    inputs: &[InputStatistics],
    width: Option<usize>,
) -> io::Result<()> {
    let mut text = Vec::new();
    text.push(b'\n');
    totals(&mut text, style, summary);
    let flow_list = summary.flows();
    if summary.packets > 0 {
        operations(&mut text, style, summary, width);
        flows(&mut text, style, &flow_list, width);
    }
    // Corruption does not hit every packet of a flow and none of another.
    let rewritten = flow_list
        .iter()
        .filter(|(_, count)| all_wrong(count.icrc_checked, count.icrc_invalid))
        .count();
    closing(&mut text, style, summary, inputs, rewritten as u64, width);
    out.write_all(&text)
}

/// Whether an address was rewritten on the way rather than packets corrupted:
/// every invariant CRC is wrong, of enough that this is no chance.
pub(super) const fn all_wrong(checked: u64, invalid: u64) -> bool {
    checked > 3 && invalid == checked
}

/// Appends what is said about the capture behind the tables; `rewritten` flows
/// have nothing but wrong ICRCs.
pub(super) fn closing(
    text: &mut Vec<u8>,
    style: Style,
    summary: &Summary,
    inputs: &[InputStatistics],
    rewritten: u64,
    width: Option<usize>,
) {
    if summary.packets > 0 {
        text.push(b'\n');
    }
    let mut line = |name: &str, value: &str| line(text, style, name, value, width);
    if summary.packets > 0 {
        line("ICRC", &icrc(summary));
    }
    let skipped = skipped(summary);
    if !skipped.is_empty() {
        line("Skipped", &skipped);
    }
    for input in inputs {
        if let Some(live) = &input.live {
            line("Capture", &captured(&input.name, live));
        }
    }
    for note in notes(summary, rewritten, inputs) {
        line("Note", &note);
    }
}

/// Appends the line about all that was read.
pub(super) fn totals(text: &mut Vec<u8>, style: Style, summary: &Summary) {
    let filtered = summary.filtered_out > 0;
    let roce = match (summary.v1, summary.packets) {
        // Which version the others were was not kept.
        _ if filtered => "RoCE",
        (0, _) => "RoCEv2",
        (v1, all) if v1 == all => "RoCEv1",
        _ => "RoCE",
    };
    let mut line = format!(
        "{}, {} {roce}",
        plural(summary.frames, "frame read", "frames read"),
        grouped(summary.packets + summary.filtered_out)
    );
    if filtered {
        let count = grouped(summary.packets);
        let verb = if summary.packets == 1 {
            "matches"
        } else {
            "match"
        };
        line.extend([", of which ", &count, " ", verb, " the filter"]);
    }
    if summary.v1 > 0 && summary.v1 < summary.packets {
        line.extend([" (", &grouped(summary.v1), " of them v1)"]);
    }
    style.paint(text, Kind::Heading, line.as_bytes());
    if let Some((first, last)) = summary.time_range {
        text.extend_from_slice(" · ".as_bytes());
        seconds(text, last.saturating_sub(first), 6);
        text.extend_from_slice(b" s");
        if let Ok(time) = jiff::Timestamp::from_nanosecond(first.into()) {
            let _ = write!(text, " from {time:.6}");
        }
    }
    text.push(b'\n');
}

/// A table without lines; numbers in all columns but the first.
pub(super) fn table(titles: &[&str], width: Option<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles.iter().copied());
    if let Some(width) = width {
        table
            .set_content_arrangement(comfy_table::ContentArrangement::Dynamic)
            .set_width(width.max(MIN_WIDTH).try_into().unwrap_or(u16::MAX));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 2 } else { 1 }, 1));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Appends a table and the empty line before it.
pub(super) fn put(text: &mut Vec<u8>, style: Style, table: &Table) {
    text.push(b'\n');
    for (i, line) in table.lines().enumerate() {
        let kind = if i == 0 { Kind::Heading } else { Kind::Plain };
        style.paint(text, kind, line.trim_end().as_bytes());
        text.push(b'\n');
    }
}

fn operations(text: &mut Vec<u8>, style: Style, summary: &Summary, width: Option<usize>) {
    let mut table = table(&["operation", "packets", "payload bytes"], width);
    for (opcode, packets, payload) in summary.operations() {
        table.add_row([opcode.to_string(), grouped(packets), grouped(payload)]);
    }
    put(text, style, &table);
}

fn flows(text: &mut Vec<u8>, style: Style, flows: &[(FlowKey, FlowCount)], width: Option<usize>) {
    let mut table = table(
        &[
            "flow",
            "dest QP",
            "packets",
            "payload bytes",
            "NAKs",
            "ICRC",
        ],
        width,
    );
    for (key, count) in flows.iter().take(FLOWS_SHOWN) {
        table.add_row([
            format!("{} → {}", key.src, key.dst),
            key.dest_qp.to_string(),
            grouped(count.packets),
            grouped(count.payload),
            grouped(count.naks),
            flow_icrc(count),
        ]);
    }
    put(text, style, &table);
    let more = flows.len().saturating_sub(FLOWS_SHOWN);
    if more > 0 {
        let packets = flows[FLOWS_SHOWN..].iter().map(|(_, c)| c.packets).sum();
        let _ = writeln!(
            text,
            "  … and {} with {}",
            plural(more as u64, "more flow", "more flows"),
            plural(packets, "packet", "packets")
        );
    }
}

fn flow_icrc(count: &FlowCount) -> String {
    match (count.icrc_invalid, count.icrc_checked) {
        (_, 0) => "unchecked".into(),
        (0, _) => "valid".into(),
        (bad, all) if bad == all => "all bad".into(),
        (bad, _) => format!("{} bad", grouped(bad)),
    }
}

fn icrc(summary: &Summary) -> String {
    let mut parts = vec![format!("{} valid", grouped(summary.icrc(IcrcState::Valid)))];
    for (state, words) in [
        (IcrcState::Invalid, "invalid"),
        (IcrcState::Unverifiable, "unverifiable"),
    ] {
        if summary.icrc(state) > 0 {
            parts.push(format!("{} {words}", grouped(summary.icrc(state))));
        }
    }
    parts.join(", ")
}

fn skipped(summary: &Summary) -> String {
    let parts: Vec<_> = summary
        .skipped()
        .map(|(reason, count)| format!("{} {}", grouped(count), reason.words()))
        .collect();
    let mut line = parts.join(", ");
    let links: Vec<_> = summary
        .unsupported_links()
        .map(|(link, count)| format!("{link}: {}", grouped(count)))
        .collect();
    if !links.is_empty() {
        line.extend([" (", &links.join(", "), ")"]);
    }
    line
}

/// What the kernel counted of a live capture.
fn captured(name: &str, live: &LiveCounters) -> String {
    let mut line = format!(
        "{name}: {}, {} dropped by the kernel",
        plural(
            live.received,
            "frame passed the capture filter",
            "frames passed the capture filter"
        ),
        grouped(live.dropped)
    );
    if live.if_dropped > 0 {
        let count = grouped(live.if_dropped);
        line.extend([", ", &count, " of any kind dropped by the device"]);
    }
    line
}

fn notes(summary: &Summary, rewritten: u64, inputs: &[InputStatistics]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: u64, one: &str, many: &str| {
        if count > 0 {
            notes.push(plural(count, one, many));
        }
    };
    note(
        summary.truncated,
        "packet cut by the capture",
        "packets cut by the capture",
    );
    note(
        summary.malformed,
        "packet with lengths that contradict its opcode",
        "packets with lengths that contradict their opcode",
    );
    note(summary.fragments, "first IP fragment", "first IP fragments");
    note(
        summary.congested,
        "packet marked congestion experienced (CE)",
        "packets marked congestion experienced (CE)",
    );
    note(
        summary.time_steps_back,
        "packet is earlier than the one before it",
        "packets are earlier than the one before them",
    );
    note(
        summary.beyond_cap,
        "packet of flows beyond the number that is kept",
        "packets of flows beyond the number that is kept",
    );
    for input in inputs {
        let Some(dropped) = input.dropped.filter(|dropped| *dropped > 0) else {
            continue;
        };
        if input.live.is_some() {
            notes.push(format!(
                "{}: packets are missing: a larger --buffer, a smaller --snaplen or a narrower \
                 --bpf loses fewer",
                input.name
            ));
        } else {
            notes.push(format!(
                "{}: the capturing program dropped {}",
                input.name,
                plural(dropped, "packet", "packets")
            ));
        }
    }
    if rewritten > 0 {
        notes.push(format!(
            "{}: every ICRC is wrong, as when addresses or the IP identification were rewritten \
             (NAT, an anonymiser), not as when packets are corrupted",
            plural(rewritten, "flow", "flows")
        ));
    }
    notes
}
