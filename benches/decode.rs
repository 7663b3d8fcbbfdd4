//! What the steps cost that every packet goes through, on real captures:
//! `cargo bench --bench decode`. Whole runs are measured by scripts/bench.sh.

use std::{hint::black_box, path::Path, time::Duration};

use criterion::{BatchSize, Criterion, Throughput};
use roce_sniff::{
    Options, decode,
    frame::{self, FrameOptions},
    source::{self, Batch, PacketSource},
    track::{Digest, Limits, Listener, Message, Observed, Tracker},
    wire::icrc::Icrc,
};

/// A capture from the fixtures, held in memory.
fn capture(name: &str) -> Batch {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name);
    let mut source = source::open(&path, 0).expect("a fixture");
    let mut batch = Batch::new();
    let more = source.next_batch(&mut batch).expect("a sound fixture");
    assert!(more && !batch.is_empty(), "{name} has packets");
    batch
}

fn digest(batch: &Batch) -> Digest {
    let options = Options {
        // Cheaper: nothing here depends on the outcome.
        verify_icrc: false,
        ..Options::default()
    };
    let mut digest = Digest::default();
    digest.decode(batch, &options);
    digest
}

/// From frames to what is kept of them: as a batch, and each for itself, which
/// is how packets are taken that are not plain.
fn decoding(criterion: &mut Criterion) {
    let batch = capture("write_64k.pcap");
    let options = Options::default();
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements(batch.len() as u64));
    let mut digest = Digest::default();
    group.bench_function("a batch", |bencher| {
        bencher.iter(|| digest.decode(black_box(&batch), &options));
    });
    group.bench_function("packet by packet", |bencher| {
        bencher.iter(|| {
            for raw in batch.packets() {
                black_box(Observed::of(&raw, &options));
            }
        });
    });
    group.finish();
}

/// A packet of 4096 bytes, with and without its invariant CRC.
fn icrc(criterion: &mut Criterion) {
    let batch = capture("jumbo.pcap");
    let longest = batch.packets().max_by_key(|raw| raw.data.len());
    let raw = longest.expect("a packet");
    let packet = decode(&raw, &Options::default()).expect("a RoCE packet");
    assert_eq!((packet.payload.len(), packet.icrc), (4096, Icrc::Valid));
    let datagram = frame::walk(&raw, FrameOptions::default(), &mut ()).expect("a RoCE packet");
    let mut group = criterion.benchmark_group("icrc");
    group.throughput(Throughput::Bytes(raw.data.len() as u64));
    group.bench_function("check", |bencher| {
        bencher.iter(|| Icrc::check(black_box(&datagram)));
    });
    for (name, verify_icrc) in [("decode, verified", true), ("decode, not verified", false)] {
        let options = Options {
            verify_icrc,
            ..Options::default()
        };
        group.bench_function(name, |bencher| {
            bencher.iter(|| decode(black_box(&raw), &options).is_ok());
        });
    }
    group.finish();
}

/// Wants messages, and does nothing with them.
struct Messages;

impl Listener for Messages {
    fn message(&mut self, message: &Message) {
        black_box(message);
    }
}

/// From what is kept of packets to flows and messages. Tracker and flows are
/// new each time, so the first packets of each flow weigh more here than in a
/// long capture.
fn tracking(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("track");
    for name in ["write_64k", "multi_qp", "ack_loss"] {
        let digest = digest(&capture(&format!("{name}.pcap")));
        group.throughput(Throughput::Elements(digest.records().count() as u64));
        let tracker = || Tracker::new(Limits::default());
        group.bench_function(format!("{name}, flows"), |bencher| {
            bencher.iter_batched(
                tracker,
                |mut tracker| {
                    tracker.add_all(&digest, &mut ());
                    tracker.finish(&mut ());
                    tracker
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("{name}, messages"), |bencher| {
            bencher.iter_batched(
                tracker,
                |mut tracker| {
                    tracker.add_all(&digest, &mut Messages);
                    tracker.finish(&mut Messages);
                    tracker
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30)
        .configure_from_args();
    decoding(&mut criterion);
    icrc(&mut criterion);
    tracking(&mut criterion);
    criterion.final_summary();
}
