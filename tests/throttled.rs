//! Whether a sender that was told of congestion slowed down.

mod common;

use common::talk::{Talk, printed};
use serde_json::Value;

/// WRITEs of a packet each from a PSN on, `every` microseconds apart, and the
/// answer to the last.
fn writes(mut talk: Talk, from: u32, count: u32, every_us: u64) -> Talk {
    for psn in from..from + count {
        // A packet takes ten by itself.
        talk = talk.write(psn).wait_us(every_us - 10);
    }
    talk.ack(from + count - 1)
}

/// What `flows` and `health` make of it: the flow's row, the finding.
fn judged(talk: &Talk) -> (Value, Value) {
    let document = |command: &str| -> Value {
        serde_json::from_str(&printed(&[command, "--format", "json"], talk)).unwrap()
    };
    let mut flows = document("flows");
    let mut health = document("health");
    let findings = health["findings"].as_array_mut().unwrap();
    let of = |finding: &&mut Value| finding["id"] == "congestion";
    let finding = findings.iter_mut().find(of).expect("CNPs are told of");
    (flows["flows"][0].take(), finding.take())
}

fn percent(row: &Value) -> f64 {
    let throttled = &row["throttled"];
    let rate = |key: &str| throttled[key].as_f64().unwrap_or_else(|| panic!("{row}"));
    rate("after_bps") * 100.0 / rate("before_bps")
}

#[test]
fn a_sender_that_slows_down_does_so_to_a_share_of_its_rate() {
    let talk = writes(Talk::default(), 0, 100, 20);
    let talk = writes(talk.cnp(), 100, 100, 50);
    let (row, finding) = judged(&talk);
    assert!((percent(&row) - 40.0).abs() < 2.0, "{row}");
    assert_eq!(row["throttled"]["while_told"], false);
    let summary = finding["summary"].as_str().unwrap();
    assert!(summary.contains("from then on: slowed to 4"), "{summary}");
    let counts = &finding["evidence"]["counts"];
    let share = counts["percent_of_before"].as_u64().unwrap();
    assert!((39..=41).contains(&share), "{counts}");
}

#[test]
fn what_it_sends_when_nobody_tells_it_any_more_does_not_count() {
    let mut talk = writes(Talk::default(), 0, 100, 20);
    for round in 0..10 {
        talk = writes(talk.cnp(), 100 + 10 * round, 10, 80);
    }
    let talk = writes(talk.cnp(), 200, 2000, 20);
    let (row, _) = judged(&talk);
    assert!((percent(&row) - 25.0).abs() < 2.0, "{row}");
    assert_eq!(row["throttled"]["while_told"], true);
}

#[test]
fn a_sender_that_goes_on_as_before_did_not_slow_down() {
    let mut talk = writes(Talk::default(), 0, 100, 20);
    for round in 0..10 {
        talk = writes(talk.cnp(), 100 + 10 * round, 10, 20);
    }
    let (row, finding) = judged(&talk.cnp());
    assert!(percent(&row) > 90.0, "{row}");
    let summary = finding["summary"].as_str().unwrap();
    assert!(summary.contains("it did not slow down"), "{summary}");
    assert!(finding["hint"].as_str().unwrap().contains("DCQCN"));
}

/// Before and after the first CNP the application has nothing to send for a
/// while.
#[test]
fn pauses_are_no_change_of_rate() {
    let talk = writes(Talk::default(), 0, 50, 20).wait_us(300_000);
    let talk = writes(talk, 50, 50, 20).wait_us(200_000).cnp();
    let mut talk = talk.wait_us(500_000);
    for round in 0..10 {
        talk = writes(talk, 100 + 10 * round, 10, 40).cnp();
    }
    let (row, _) = judged(&talk);
    assert!((percent(&row) - 50.0).abs() < 4.0, "{row}");
}

/// One request at a time, and answers that take longer and longer.
#[test]
fn a_sender_that_waits_for_its_answers_does_not_pause() {
    let mut talk = Talk::default();
    for psn in 0..100 {
        talk = talk.write(psn).ack(psn);
    }
    talk = talk.cnp();
    for psn in 100..200 {
        talk = talk.write(psn).wait_us(12_000).ack(psn);
    }
    let (row, finding) = judged(&talk.cnp());
    assert!(percent(&row) < 1.0, "{row}");
    let summary = finding["summary"].as_str().unwrap();
    assert!(summary.contains("slowed to 0 %"), "{summary}");
}

/// Whether the application or the network card makes these wait cannot be told.
#[test]
fn packets_now_and_then_have_no_rate() {
    let mut talk = writes(Talk::default(), 0, 100, 20).cnp();
    for psn in 100..200 {
        talk = talk.write(psn).ack(psn).wait_us(11_000);
    }
    let (row, _) = judged(&talk.cnp());
    assert!(row["throttled"].is_null(), "{row}");
}

#[test]
fn of_few_packets_nothing_is_said() {
    for (before, after) in [(20, 200), (200, 20)] {
        let talk = writes(Talk::default(), 0, before, 20);
        let talk = writes(talk.cnp(), before, after, 80);
        let (row, finding) = judged(&talk);
        assert!(row["throttled"].is_null(), "{row}");
        let summary = finding["summary"].as_str().unwrap();
        assert!(!summary.contains("it sent"), "{summary}");
        assert!(finding["evidence"]["counts"]["bps_before"].is_null());
    }
    // One CNP, and then as fast as before: it may have been slower in between.
    let talk = writes(writes(Talk::default(), 0, 100, 20).cnp(), 100, 1000, 20);
    assert!(judged(&talk).0["throttled"].is_null());
}

/// The one that answers READs is slowed down by CNPs to its queue pair.
#[test]
fn responders_slow_down_too() {
    let reads = |mut talk: Talk, from: u32, count: u32, wait_us: u64| {
        for psn in (from..from + 4 * count).step_by(4) {
            talk = talk
                .read(psn, 4096)
                .responses(psn, 4, 0, 4)
                .wait_us(wait_us);
        }
        talk
    };
    let told = |mut talk: Talk| {
        // From the one that asks to the queue pair that its requests go to.
        talk = talk.cnp();
        let ip = &mut talk.packets.last_mut().unwrap().data[14..];
        (ip[15], ip[19]) = (1, 2);
        let bth = common::craft::udp_at(ip) + 8;
        ip[bth + 4..bth + 8].copy_from_slice(&common::talk::SERVER.to_be_bytes());
        common::craft::finish_v4(ip);
        common::craft::seal(ip);
        talk
    };
    let talk = reads(Talk::default(), 0, 20, 0);
    let talk = reads(told(talk), 80, 20, 50);
    let document = printed(&["flows", "--format", "json"], &talk);
    let document: Value = serde_json::from_str(&document).unwrap();
    let flows = document["flows"].as_array().unwrap();
    let responses = flows.iter().find(|flow| flow["dest_qp"] == 0x11).unwrap();
    // Five packets in 50 µs, and then in 100.
    assert!((percent(responses) - 50.0).abs() < 4.0, "{responses}");
    let table = printed(&["flows"], &talk);
    assert!(table.contains("after CNPs"), "{table}");
}
