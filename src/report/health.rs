//! Findings about a capture, for people and for programs.

use std::io::{self, Write};

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    capture::{Capture, CaptureDocument},
    fields::Fields,
    flows::{Layout, heading},
    interval::Interval,
    lines::{line, wrap},
    messages::refusal,
    style::{Kind as Look, Style},
    text::{grouped, hex, ip, plural, span},
};
use crate::{
    health::{Evidence, Finding, FrameRef, Kind, Refused, Severity, Subject, Thresholds},
    track::Tracker,
};

/// Column at which the words begin.
const INDENT: usize = 9;
/// Column at which what is labelled begins.
const LABELLED: usize = INDENT + 7;

/// What there is to tell about a capture.
#[derive(Debug, Clone, Copy)]
pub struct HealthReport<'a> {
    /// The capture.
    pub capture: Capture<'a>,
    /// Its flows.
    pub tracker: &'a Tracker,
    /// What was found, in the order in which it is told.
    pub findings: &'a [Finding],
    /// From where on things are told.
    pub thresholds: Thresholds,
    /// The stretch of time that is over, in a capture that goes on.
    pub interval: Option<&'a Interval>,
}

/// How many inputs there are: with several, frames are numbered by input.
fn inputs(capture: &Capture<'_>) -> usize {
    capture.files.len().max(capture.inputs.len())
}

impl Severity {
    const fn look(self) -> Look {
        match self {
            Self::Error => Look::Bad,
            Self::Warning => Look::Notice,
            Self::Info => Look::Request,
        }
    }
}

/// A packet as the packet table numbers it.
fn frame_number(frame: FrameRef, inputs: usize) -> String {
    if inputs > 1 {
        format!("{}:{}", u32::from(frame.0) + 1, frame.1)
    } else {
        frame.1.to_string()
    }
}

fn subject(subject: &Subject) -> String {
    match subject {
        Subject::Capture => "the capture".into(),
        Subject::Flow(key) => format!("{} → {}, QP {}", key.src, key.dst, key.dest_qp),
        Subject::Hosts { src, dst } => format!("{src} → {dst}"),
        Subject::Connection { a, b } => {
            let qp = |qp: Option<_>| qp.map_or(String::new(), |qp| format!(" QP {qp}"));
            format!("{}{} → {}{}", a.ip, qp(a.qp), b.ip, qp(b.qp))
        }
    }
}

/// Prints findings: the severity, what it is and about whom, one sentence,
/// then what proves it and what to do.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_health(
    out: &mut impl Write,
    report: &HealthReport<'_>,
    layout: Layout,
) -> io::Result<()> {
    let mut text = Vec::new();
    match report.interval {
        Some(interval) => heading(&mut text, layout.style, interval, &report.capture),
        None if !layout.quiet => report.capture.head(&mut text, layout.style),
        None => {}
    }
    if !text.is_empty() {
        text.push(b'\n');
    }
    let mut before = "";
    for finding in report.findings {
        // Two flows need no two explanations of the same.
        let hinted = finding.hint == before;
        before = &finding.hint;
        one(&mut text, finding, inputs(&report.capture), layout, hinted);
    }
    if !layout.quiet {
        last_line(&mut text, layout, report);
    }
    if report.interval.is_some() {
        text.push(b'\n');
    }
    out.write_all(&text)
}

fn one(text: &mut Vec<u8>, finding: &Finding, inputs: usize, layout: Layout, hinted: bool) {
    let Layout { style, width, .. } = layout;
    let word = format!("{:<8}", finding.severity.word());
    style.paint(text, finding.severity.look(), word.as_bytes());
    text.push(b' ');
    style.paint(text, Look::Heading, finding.id.as_bytes());
    let about = subject(&finding.subject);
    let at = INDENT + finding.id.len() + 1;
    wrap(text, &format!("· {about}"), at, INDENT, width);
    indent(text, INDENT - 1);
    wrap(text, &finding.summary, INDENT - 1, INDENT, width);
    let mut labelled = |label: &str, words: &str| {
        indent(text, INDENT);
        style.paint(text, Look::Quiet, format!("{label:<6}").as_bytes());
        wrap(text, words, LABELLED - 1, LABELLED, width);
    };
    let evidence = &finding.evidence;
    if !evidence.frames.is_empty() {
        let frames = evidence.frames.iter();
        let numbers: Vec<_> = frames.map(|frame| frame_number(*frame, inputs)).collect();
        labelled("frames", &numbers.join(", "));
    }
    for refused in evidence.requests.iter().skip(1) {
        labelled("also", &request(refused, inputs));
    }
    let counts: Vec<_> = evidence.counts.iter().map(counted).collect();
    labelled("counts", &counts.join(", "));
    if !hinted {
        labelled("next", &finding.hint);
    }
    text.push(b'\n');
}

fn indent(text: &mut Vec<u8>, places: usize) {
    text.resize(text.len() + places, b' ');
}

/// `packets lost 6`, which a line does not break at a space of its own.
fn counted((name, value): &(&'static str, u64)) -> String {
    let (name, value) = match name.strip_suffix("_ns") {
        Some(name) => (name, span(*value).replace(' ', "\u{a0}")),
        None => (*name, grouped(*value)),
    };
    format!("{}\u{a0}{value}", name.replace('_', "\u{a0}"))
}

fn request(refused: &Refused, inputs: usize) -> String {
    let memory = refused.remote.map_or(String::new(), |remote| {
        format!(
            " of {} at {:#x} with rkey {}",
            plural(remote.len.into(), "byte", "bytes"),
            remote.va.get(),
            remote.rkey
        )
    });
    format!(
        "{}{memory}, {} → {}",
        refused.operation.name(),
        frame_number(refused.request, inputs),
        frame_number(refused.refusal, inputs)
    )
}

fn last_line(text: &mut Vec<u8>, layout: Layout, report: &HealthReport<'_>) {
    let Layout { style, width, .. } = layout;
    let flows = report.tracker.flows().count() as u64;
    let of = format!(
        "{} of {}",
        plural(report.capture.summary.packets, "packet", "packets"),
        plural(flows, "flow", "flows")
    );
    let count = |severity| {
        let of = |finding: &&Finding| finding.severity == severity;
        report.findings.iter().filter(of).count() as u64
    };
    let parts: Vec<_> = [
        (Severity::Error, "error", "errors"),
        (Severity::Warning, "warning", "warnings"),
        (Severity::Info, "info", "infos"),
    ]
    .into_iter()
    .filter(|(severity, ..)| count(*severity) > 0)
    .map(|(severity, one, many)| plural(count(severity), one, many))
    .collect();
    let (look, words) = match report.findings.iter().map(|finding| finding.severity).max() {
        None if report.capture.summary.packets == 0 => {
            (Look::Notice, "Nothing to judge: no RoCE packets.".into())
        }
        None => (Look::Response, format!("Nothing to report: {of}.")),
        Some(Severity::Info) => (
            Look::Response,
            format!("Nothing is wrong; {} about {of}.", parts.join(", ")),
        ),
        Some(worst) => (worst.look(), format!("{} in {of}.", parts.join(", "))),
    };
    style.paint(text, look, words.as_bytes());
    text.push(b'\n');
    if report.capture.summary.packets == 0 {
        // What there was instead.
        report.capture.foot(text, layout, report.tracker);
    } else if !report.capture.complete {
        let note = "not every input could be read to its end: this is what was read of them";
        line(text, style, "Note", note, width);
    }
}

/// Explains kinds of findings.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_kinds(
    out: &mut impl Write,
    style: Style,
    kinds: &[&Kind],
    width: Option<usize>,
) -> io::Result<()> {
    let mut text = Vec::new();
    for (i, kind) in kinds.iter().enumerate() {
        if i > 0 {
            text.push(b'\n');
        }
        let word = format!("{:<8}", kind.severity.word());
        style.paint(&mut text, kind.severity.look(), word.as_bytes());
        text.push(b' ');
        style.paint(&mut text, Look::Heading, kind.id.as_bytes());
        let at = INDENT + kind.id.len() + 1;
        wrap(&mut text, &format!("· {}", kind.title), at, INDENT, width);
        indent(&mut text, INDENT - 1);
        wrap(&mut text, kind.about, INDENT - 1, INDENT, width);
        indent(&mut text, INDENT);
        style.paint(&mut text, Look::Quiet, format!("{:<6}", "next").as_bytes());
        wrap(&mut text, kind.hint, LABELLED - 1, LABELLED, width);
    }
    out.write_all(&text)
}

/// Column names of the CSV.
const COLUMNS: &str = "id,severity,src,dst,dest_qp,summary,counts,frames,hint";

/// Prints the header of the CSV output; `interval` where snapshots follow.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_health_csv_header(out: &mut impl Write, interval: bool) -> io::Result<()> {
    let more = if interval { ",interval_end_ns" } else { "" };
    writeln!(out, "{COLUMNS}{more}")
}

/// Prints findings as CSV: one row each.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_health_csv(out: &mut impl Write, report: &HealthReport<'_>) -> io::Result<()> {
    let inputs = inputs(&report.capture);
    let mut text = Vec::new();
    for finding in report.findings {
        text.extend_from_slice(finding.id.as_bytes());
        let mut row = Fields(&mut text);
        row.str(finding.severity.word());
        let flow = FlowDocument::of(&finding.subject);
        row.str(flow.as_ref().map_or("", |flow| &flow.src));
        row.str(flow.as_ref().map_or("", |flow| &flow.dst));
        row.opt_num(flow.and_then(|flow| flow.dest_qp));
        row.text(&finding.summary);
        row.counts(finding.evidence.counts.iter().copied());
        let frames = finding.evidence.frames.iter();
        let frames: Vec<_> = frames.map(|frame| frame_number(*frame, inputs)).collect();
        row.str(&frames.join(" "));
        row.text(&finding.hint);
        if let Some(interval) = report.interval {
            row.num(interval.end_ns);
        }
        text.push(b'\n');
    }
    out.write_all(&text)
}

/// Prints findings as one JSON document: the keys are a contract.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_health_json(out: &mut impl Write, report: &HealthReport<'_>) -> io::Result<()> {
    let document = HealthDocument {
        capture: report.capture.document(report.tracker),
        thresholds: ThresholdsDocument {
            stall_ns: report.thresholds.stall_ns,
            retries: report.thresholds.retries,
            scan: report.thresholds.scan,
            cnp_rate: report.thresholds.cnp_rate,
        },
        findings: report
            .findings
            .iter()
            .map(|finding| FindingDocument::new(finding, report.capture.files))
            .collect(),
        interval_end_ns: report.interval.map(|interval| interval.end_ns),
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

#[derive(Debug, Serialize)]
struct HealthDocument<'a> {
    capture: CaptureDocument<'a>,
    thresholds: ThresholdsDocument,
    findings: Vec<FindingDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_end_ns: Option<i64>,
}

#[derive(Debug, Serialize)]
struct ThresholdsDocument {
    stall_ns: i64,
    retries: u64,
    scan: u64,
    cnp_rate: u64,
}

#[derive(Debug, Serialize)]
struct FindingDocument<'a> {
    id: &'static str,
    severity: &'static str,
    summary: &'a str,
    evidence: EvidenceDocument<'a>,
    hint: &'a str,
    flow: Option<FlowDocument>,
}

/// Who sends to whom; null where a finding is about the whole capture.
#[derive(Debug, Serialize)]
struct FlowDocument {
    src: String,
    dst: String,
    dest_qp: Option<u32>,
}

#[derive(Debug, Serialize)]
struct EvidenceDocument<'a> {
    frames: Vec<u64>,
    counts: Counts<'a>,
    /// Of each frame, where there are several inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requests: Vec<RequestDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct RequestDocument<'a> {
    op: &'static str,
    bytes: u64,
    va: Option<String>,
    rkey: Option<String>,
    frame: u64,
    answer: &'static str,
    answer_frame: u64,
    /// Of the frames, where there are several inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_file: Option<&'a str>,
}

/// An object whose keys keep their order.
#[derive(Debug)]
struct Counts<'a>(&'a [(&'static str, u64)]);

impl Serialize for Counts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'a> FindingDocument<'a> {
    fn new(finding: &'a Finding, names: &'a [String]) -> Self {
        Self {
            id: finding.id,
            severity: finding.severity.word(),
            summary: &finding.summary,
            evidence: EvidenceDocument::new(&finding.evidence, names),
            hint: &finding.hint,
            flow: FlowDocument::of(&finding.subject),
        }
    }
}

impl<'a> EvidenceDocument<'a> {
    fn new(evidence: &'a Evidence, names: &'a [String]) -> Self {
        let files = || {
            let frames = evidence.frames.iter();
            frames.map(|frame| file(*frame, names)).collect()
        };
        let requests = evidence.requests.iter();
        Self {
            frames: evidence.frames.iter().map(|(_, frame)| *frame).collect(),
            counts: Counts(&evidence.counts),
            files: (names.len() > 1).then(files),
            requests: requests
                .map(|refused| RequestDocument::new(refused, names))
                .collect(),
        }
    }
}

/// Name of the input that a frame is of.
fn file((input, _): FrameRef, names: &[String]) -> &str {
    names.get(usize::from(input)).map_or("", |name| name)
}

impl<'a> RequestDocument<'a> {
    fn new(refused: &Refused, names: &'a [String]) -> Self {
        let several = |frame: FrameRef| (names.len() > 1).then(|| file(frame, names));
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        let remote = refused.remote;
        Self {
            op: refused.operation.name(),
            bytes: refused.bytes,
            va: remote.map(|remote| text(&|out| hex(out, remote.va.get(), 16))),
            rkey: remote.map(|remote| remote.rkey.to_string()),
            frame: refused.request.1,
            answer: refusal(refused.answer),
            answer_frame: refused.refusal.1,
            file: several(refused.request),
            answer_file: several(refused.refusal),
        }
    }
}

impl FlowDocument {
    fn of(subject: &Subject) -> Option<Self> {
        let (src, dst, dest_qp) = match subject {
            Subject::Capture => return None,
            Subject::Flow(key) => (key.src, key.dst, Some(key.dest_qp)),
            Subject::Hosts { src, dst } => (*src, *dst, None),
            Subject::Connection { a, b } => (a.ip, b.ip, b.qp),
        };
        let text = |address| {
            let mut out = Vec::new();
            ip(&mut out, address);
            String::from_utf8_lossy(&out).into_owned()
        };
        Some(Self {
            src: text(src),
            dst: text(dst),
            dest_qp: dest_qp.map(crate::wire::types::QpNumber::get),
        })
    }
}
