//! What a report says about the capture that it is made of.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    flows::Layout,
    lines::line,
    style::Style,
    summary::{all_wrong, closing, totals},
    text::plural,
};
use crate::{
    source::InputStatistics,
    track::{Evicted, Flow, IcrcState, Summary, Tracker},
};

/// A capture, as far as it was read.
#[derive(Debug, Clone, Copy)]
pub struct Capture<'a> {
    /// Counts over all packets.
    pub summary: &'a Summary,
    /// Names of the files.
    pub files: &'a [String],
    /// What the inputs counted.
    pub inputs: &'a [InputStatistics],
    /// Every input was read to its end.
    pub complete: bool,
}

/// The same for programs: the keys are a contract.
#[derive(Debug, Serialize)]
pub(super) struct CaptureDocument<'a> {
    files: &'a [String],
    packets: u64,
    roce_packets: u64,
    skipped: BTreeMap<&'static str, u64>,
    first_ts_ns: Option<i64>,
    last_ts_ns: Option<i64>,
    link_types: Vec<String>,
    icrc: IcrcDocument,
    interfaces: Vec<&'a str>,
    roce_v1_packets: u64,
    truncated: u64,
    malformed: u64,
    dropped_by_capture: Option<u64>,
    evicted: EvictedDocument,
    complete: bool,
}

#[derive(Debug, Serialize)]
struct IcrcDocument {
    valid: u64,
    invalid: u64,
    unverifiable: u64,
}

#[derive(Debug, Serialize)]
struct EvictedDocument {
    flows: u64,
    packets: u64,
}

impl<'a> Capture<'a> {
    pub(super) fn document(&self, tracker: &Tracker) -> CaptureDocument<'a> {
        let summary = self.summary;
        let dropped = self.inputs.iter().filter_map(|input| input.dropped);
        let live = self.inputs.iter().filter(|input| input.live.is_some());
        let link = |(link, _): (crate::source::LinkType, u64)| {
            link.name().map_or_else(|| link.0.to_string(), String::from)
        };
        let Evicted { flows, packets } = tracker.evicted();
        CaptureDocument {
            files: self.files,
            packets: summary.frames,
            roce_packets: summary.packets,
            skipped: summary
                .skipped()
                .map(|(reason, count)| (reason.key(), count))
                .collect(),
            first_ts_ns: summary.time_range.map(|(first, _)| first),
            last_ts_ns: summary.time_range.map(|(_, last)| last),
            link_types: summary.links.iter().map(link).collect(),
            icrc: IcrcDocument {
                valid: summary.icrc(IcrcState::Valid),
                invalid: summary.icrc(IcrcState::Invalid),
                unverifiable: summary.icrc(IcrcState::Unverifiable),
            },
            interfaces: live.map(|input| input.name.as_str()).collect(),
            roce_v1_packets: summary.v1,
            truncated: summary.truncated,
            malformed: summary.malformed,
            dropped_by_capture: dropped.reduce(|a, b| a + b),
            evicted: EvictedDocument { flows, packets },
            complete: self.complete,
        }
    }

    /// Appends the line that heads a report.
    pub(super) fn head(&self, text: &mut Vec<u8>, style: Style) {
        totals(text, style, self.summary);
    }

    /// Appends what is said behind the tables.
    pub(super) fn foot(&self, text: &mut Vec<u8>, layout: Layout, tracker: &Tracker) {
        let Layout { style, width, .. } = layout;
        let all_wrong = |flow: &&Flow| {
            let checked = flow.icrc_valid + flow.icrc_invalid;
            all_wrong(checked, flow.icrc_invalid)
        };
        let rewritten = tracker.flows().filter(all_wrong).count() as u64;
        closing(text, style, self.summary, self.inputs, rewritten, width);
        let Evicted { flows, packets } = tracker.evicted();
        if flows > 0 {
            let note = format!(
                "{} with {} forgotten, to make room for later ones: their messages and latencies \
                 are counted in no row",
                plural(flows, "quiet flow", "quiet flows"),
                plural(packets, "packet", "packets"),
            );
            line(text, style, "Note", &note, width);
        }
        if !self.complete {
            let note = "not every input could be read to its end: this is what was read of them";
            line(text, style, "Note", note, width);
        }
    }
}
