//! Captures that nobody could have taken: frames of the fixtures lost, doubled,
//! changed, out of order, at any time. Flows are followed and reported all the
//! same, and every packet is counted once.

mod common;

use proptest::prelude::*;
use roce_sniff::{
    Options, decode,
    filter::FlowFilter,
    health::{FRAMES_KEPT, Health, Thresholds},
    report::{
        Capture, CsvMessages, FlowsReport, HealthReport, Interval, JsonMessages, Layout,
        MemoryReport, MessagePrinter, MessagesReport, Style, TableMessages, print_flows,
        print_flows_csv, print_flows_csv_header, print_flows_json, print_health, print_health_csv,
        print_health_json, print_memory, print_memory_csv, print_memory_csv_header,
        print_memory_json, print_messages,
    },
    source::{Batch, LinkType, PacketSource, RawPacket, open},
    track::{
        Distribution, Event, Limits, Listener, MemoryMap, Message, Observed, Record, Summary,
        Tracker,
    },
};

/// Frames that hold every kind of packet, each with its time.
fn frames() -> &'static [(i64, Vec<u8>)] {
    static FRAMES: std::sync::LazyLock<Vec<(i64, Vec<u8>)>> = std::sync::LazyLock::new(|| {
        let mut frames = Vec::new();
        for name in common::fixtures() {
            let mut source = open(&common::fixture(&name), 0).expect("a fixture");
            let mut batch = Batch::new();
            assert!(source.next_batch(&mut batch).expect("a whole fixture"));
            let some = batch.packets().take(30);
            frames.extend(some.map(|raw| (raw.ts_ns, raw.data.to_vec())));
        }
        frames
    });
    &FRAMES
}

/// Prints every message in every format.
#[derive(Default)]
struct Everything {
    memory: MemoryMap,
    distribution: Distribution,
    health: Health,
}

impl Listener for Everything {
    fn event(&mut self, event: &Event<'_>) {
        self.health.event(event);
    }

    fn message(&mut self, message: &Message) {
        self.memory.message(message);
        self.distribution.message(message);
        self.health.message(message);
        let inputs = || vec![String::from("a"), String::from("b")];
        let mut json = Vec::new();
        JsonMessages { inputs: inputs() }.message(message, &mut json);
        serde_json::from_slice::<serde_json::Value>(&json).expect("JSON");
        let csv = CsvMessages { inputs: inputs() };
        let mut text = Vec::new();
        csv.header(&mut text);
        csv.message(message, &mut text);
        same_fields(&text);
        let mut text = Vec::new();
        let style = Style { color: true };
        for wrap in [None, Some(1), Some(80)] {
            TableMessages::new(style, 2, 15, 0, wrap).message(message, &mut text);
        }
        String::from_utf8(text).expect("UTF-8");
    }
}

/// Every line of a CSV file has as many fields as the first.
fn same_fields(text: &[u8]) {
    let text = std::str::from_utf8(text).expect("UTF-8");
    let mut fields = text.lines().map(|line| line.split(',').count());
    let header = fields.next().expect("a header");
    assert!(fields.all(|count| count == header), "{text}");
}

fn json(print: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> serde_json::Value {
    let mut out = Vec::new();
    print(&mut out).unwrap();
    serde_json::from_slice(&out).expect("JSON")
}

/// Prints every report in every format.
fn report(summary: &Summary, tracker: &Tracker, told: &Everything) {
    let (filter, interval) = (FlowFilter::default(), Interval::default());
    let capture = Capture {
        summary,
        files: &[String::from("a"), String::from("b")],
        inputs: &[],
        complete: false,
    };
    let thresholds = Thresholds::default();
    let findings = told.health.findings(tracker, summary, &[], thresholds);
    for finding in &findings {
        assert!(finding.evidence.frames.len() <= FRAMES_KEPT, "{finding:?}");
        assert!(!finding.evidence.counts.is_empty(), "{finding:?}");
    }
    assert!(findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)));
    for interval in [None, Some(&interval)] {
        let health = HealthReport {
            capture,
            tracker,
            findings: &findings,
            thresholds,
            interval,
        };
        let flows = FlowsReport {
            capture,
            tracker,
            filter: &filter,
            interval,
        };
        let memory = MemoryReport {
            capture,
            tracker,
            memory: &told.memory,
            interval,
        };
        let messages = MessagesReport {
            capture,
            tracker,
            filter: &filter,
            some_operations: false,
            distribution: &told.distribution,
            interval,
        };
        let document = json(|out| print_flows_json(out, &flows));
        let listed = document["flows"].as_array().unwrap();
        let packets: u64 = listed.iter().filter_map(|f| f["packets"].as_u64()).sum();
        assert_eq!(packets, summary.packets);
        json(|out| print_memory_json(out, &memory));
        let document = json(|out| print_health_json(out, &health));
        assert_eq!(
            document["findings"].as_array().unwrap().len(),
            findings.len()
        );
        let mut rows = Vec::new();
        print_health_csv(&mut rows, &health).unwrap();
        assert_eq!(
            String::from_utf8(rows).expect("UTF-8").lines().count(),
            findings.len()
        );

        let mut csv = Vec::new();
        print_flows_csv_header(&mut csv, interval.is_some()).unwrap();
        print_flows_csv(&mut csv, &flows).unwrap();
        same_fields(&csv);
        csv.clear();
        print_memory_csv_header(&mut csv, interval.is_some()).unwrap();
        print_memory_csv(&mut csv, &memory).unwrap();
        same_fields(&csv);

        for (width, all) in [(None, true), (Some(80), false), (Some(1), true)] {
            let layout = Layout {
                style: Style { color: true },
                width,
                all,
                quiet: false,
            };
            let mut out = Vec::new();
            print_flows(&mut out, &flows, layout).unwrap();
            print_memory(&mut out, &memory, layout).unwrap();
            print_messages(&mut out, &messages, layout).unwrap();
            print_health(&mut out, &health, layout).unwrap();
            String::from_utf8(out).expect("UTF-8");
        }
    }
}

/// What is done to a frame on its way.
#[derive(Debug, Clone)]
struct Harm {
    frame: prop::sample::Index,
    change: Option<(usize, u8)>,
    at: Option<i64>,
    copies: usize,
}

fn harm() -> impl Strategy<Value = Harm> {
    let change = prop::option::weighted(0.3, (14usize..80, any::<u8>()));
    let at = prop::option::weighted(0.1, any::<i64>());
    (any::<prop::sample::Index>(), change, at, 1usize..4).prop_map(|(frame, change, at, copies)| {
        Harm {
            frame,
            change,
            at,
            copies,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_captured_is_reported(
        start in any::<prop::sample::Index>(),
        harms in prop::collection::vec(harm(), 1..40),
        few in any::<bool>(),
    ) {
        // Half the time room for so few flows that most are forgotten.
        let limits = Limits { flows: if few { 2 } else { 1 << 20 }, ..Limits::default() };
        let (mut summary, mut tracker) = (Summary::default(), Tracker::new(limits));
        let mut told = Everything::default();
        let frames = frames();
        // A stretch of a capture as it was, then frames from anywhere.
        let start = start.index(frames.len());
        let whole = frames[start..].iter().take(60).map(|(ts, data)| (*ts, data.clone()));
        let harmed = harms.iter().flat_map(|harm| {
            let (ts, data) = harm.frame.get(frames);
            let mut data = data.clone();
            if let Some((at, value)) = harm.change
                && let Some(byte) = data.get_mut(at)
            {
                *byte = value;
            }
            std::iter::repeat_n((harm.at.unwrap_or(*ts), data), harm.copies)
        });
        for (number, (ts_ns, data)) in (1..).zip(whole.chain(harmed)) {
            let raw = RawPacket {
                input: (number % 2) as u16,
                frame: number,
                ts_ns,
                len: data.len() as u32,
                link: LinkType::ETHERNET,
                path: None,
                data: &data,
            };
            if let Ok(packet) = decode(&raw, &Options::default()) {
                let record = Record::new(&raw, &packet);
                tracker.add(&record, &mut told);
                summary.add(&Observed::Packet(record));
            }
        }
        tracker.finish(&mut told);
        summary.packets -= tracker.evicted().packets;
        report(&summary, &tracker, &told);
    }
}
