//! What was lost, late, or waited for.

use super::*;

#[test]
fn a_lost_request_costs_what_is_sent_again() {
    let mut story = Story::new();
    story.write4(0, &[]);
    story.ack(3);
    story.write4(4, &[5]);
    let nak = story.reply(ACK, 5, SEQUENCE_NAK);
    for (opcode, psn) in [(MIDDLE, 5), (MIDDLE, 6), (LAST, 7)] {
        story.ask(opcode, psn);
    }
    story.ack(7);
    let found = story.only("packet-loss");
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(found.subject, Subject::Flow(forth()));
    assert_eq!(
        (found.count("packets_lost"), found.count("sequence_naks")),
        (1, 1)
    );
    assert_eq!(
        (
            found.count("packets_sent_again"),
            found.count("bytes_sent_again")
        ),
        (3, 3072)
    );
    assert_eq!(found.frames(), [nak]);
    assert!(
        found.summary.starts_with("1 request was lost"),
        "{}",
        found.summary
    );
    assert!(
        found.summary.contains("(3.0 for each, 3072 bytes"),
        "{}",
        found.summary
    );
}

#[test]
fn a_request_lost_past_the_capture_shows_in_the_nak() {
    let mut story = Story::new();
    story.write(0);
    story.ask(ONLY, 1);
    story.ask(ONLY, 2);
    story.reply(ACK, 1, SEQUENCE_NAK);
    for psn in 1..=2 {
        story.ask(ONLY, psn);
    }
    story.ack(1);
    story.ack(2);
    let found = story.only("packet-loss");
    assert_eq!(
        (
            found.count("packets_lost"),
            found.count("packets_sent_again")
        ),
        (1, 2)
    );
    assert!(
        found.summary.starts_with("At least 1 request was lost"),
        "{}",
        found.summary
    );
}

#[test]
fn two_losses_before_one_nak_are_two() {
    let mut story = Story::new();
    story.write(0);
    story.write4(1, &[2, 3]);
    story.reply(ACK, 2, SEQUENCE_NAK);
    for (opcode, psn) in [(MIDDLE, 2), (MIDDLE, 3), (LAST, 4)] {
        story.ask(opcode, psn);
    }
    story.ack(4);
    let found = story.only("packet-loss");
    assert_eq!(
        (found.count("packets_lost"), found.count("sequence_naks")),
        (2, 1)
    );
    assert!(
        found.summary.contains("asked for some with 1"),
        "{}",
        found.summary
    );
}

#[test]
fn what_was_only_late_is_no_loss() {
    let mut story = Story::new();
    story.write(0);
    let late = story.sent(forth(), ONLY, 1);
    story.ask(ONLY, 2);
    story.reply(ACK, 1, SEQUENCE_NAK);
    let late = story.seen(late);
    for psn in 1..=2 {
        story.ask(ONLY, psn);
    }
    story.ack(1);
    story.ack(2);
    let found = story.only("reordering");
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(
        (found.count("packets_late"), found.count("sequence_naks")),
        (1, 1)
    );
    assert_eq!(found.count("packets_sent_again"), 2);
    assert_eq!(found.frames(), [late]);
}

#[test]
fn late_packets_that_nobody_missed_are_a_note() {
    let mut story = Story::new();
    story.write(0);
    let late = story.sent(forth(), ONLY, 1);
    story.ask(ONLY, 2);
    story.seen(late);
    story.ack(2);
    let found = story.one("reordering");
    assert_eq!(found.severity, Severity::Info);
    story.none("packet-loss");
}

#[test]
fn a_packet_that_came_too_early_is_no_loss_either() {
    let mut story = Story::new();
    story.write(0);
    let late = story.sent(forth(), ONLY, 1);
    let early = story.sent(forth(), ONLY, 2);
    story.seen(early);
    story.seen(late);
    // The responder threw the early one away.
    story.reply(ACK, 2, SEQUENCE_NAK);
    story.ask(ONLY, 2);
    story.ack(2);
    let found = story.one("reordering");
    assert_eq!(found.count("sequence_naks"), 1);
    story.none("packet-loss");
}

#[test]
fn responses_lost_before_the_capture_leave_holes() {
    let mut story = Story::new();
    story.write(0);
    story.ask(READ, 1);
    story.reply(READ_FIRST, 1, POSITIVE);
    story.send(back(), READ_MIDDLE, 2);
    story.reply(READ_LAST, 4, POSITIVE);
    story.ask(READ, 3);
    let filled = story.reply(READ_FIRST, 3, POSITIVE);
    story.reply(READ_LAST, 4, POSITIVE);
    let found = story.one("read-response-loss");
    assert_eq!(found.subject, Subject::Flow(back()));
    assert_eq!(
        (
            found.count("packets_lost"),
            found.count("packets_sent_again")
        ),
        (1, 2)
    );
    assert_eq!(found.frames(), [filled]);
    story.none("packet-loss");
}

#[test]
fn responses_lost_past_the_capture_are_asked_for_again() {
    let mut story = Story::new();
    story.write(0);
    story.ask(READ, 1);
    story.reply(READ_FIRST, 1, POSITIVE);
    story.send(back(), READ_MIDDLE, 2);
    story.send(back(), READ_MIDDLE, 3);
    story.reply(READ_LAST, 4, POSITIVE);
    story.ask(READ, 3);
    let again = story.reply(READ_FIRST, 3, POSITIVE);
    story.reply(READ_LAST, 4, POSITIVE);
    let found = story.one("read-response-loss");
    assert_eq!(
        (found.count("packets_lost"), found.frames()),
        (1, vec![again])
    );
}

#[test]
fn missing_acks_that_cost_nothing_are_a_note() {
    let mut story = Story::new();
    for psn in 0..10 {
        story.write(psn);
    }
    story.ask(ONLY, 10);
    story.ask(ONLY, 11);
    let ack = story.ack(11);
    let found = story.only("ack-loss");
    assert_eq!(found.severity, Severity::Info);
    assert_eq!(
        (found.count("acks_missing"), found.count("acks_own")),
        (1, 11)
    );
    assert_eq!(found.frames(), [ack]);
}

#[test]
fn a_responder_that_gathers_acks_loses_none() {
    let mut story = Story::new();
    for i in 0..10 {
        for psn in 4 * i..4 * i + 4 {
            story.ask(ONLY, psn);
        }
        story.ack(4 * i + 3);
    }
    assert_eq!(story.findings(), []);
}

/// One request sent `times` again, after 70 ms each.
fn repeated(times: u32) -> Story {
    let mut story = Story::new();
    story.write(0);
    story.ask(ONLY, 1);
    for _ in 0..times {
        story.wait_ms(70);
        story.ask(ONLY, 1);
    }
    story
}

#[test]
fn timeouts_tell_the_timer() {
    let mut story = repeated(2);
    story.ack(1);
    let found = story.only("timeout");
    assert_eq!(
        (found.count("timeouts"), found.count("timer_code")),
        (2, 14)
    );
    assert_eq!(found.count("median_silence_ns"), 70_010_000);
    assert_eq!(
        (found.count("packets_sent_again"), found.frames()),
        (2, vec![4, 5])
    );
    assert!(
        found.summary.contains("2^14 = 67.1 ms"),
        "{}",
        found.summary
    );
}

#[test]
fn a_peer_that_never_answers_again_is_gone() {
    let mut story = repeated(3);
    let found = story.one("peer-vanished");
    assert_eq!(found.severity, Severity::Error);
    assert_eq!(found.count("times_sent_again"), 3);
    assert_eq!(found.count("silent_ns"), 3 * 70_010_000 + 10_000);
    assert_eq!(found.frames(), [4, 5, 6]);
    assert_eq!(story.findings()[0].id, "peer-vanished");
    story.thresholds.retries = 4;
    story.none("peer-vanished");
}

#[test]
fn a_peer_that_answers_in_the_end_is_not_gone() {
    let mut story = repeated(5);
    story.ack(1);
    story.only("timeout");
    // Nor one that refuses.
    let mut story = repeated(5);
    story.reply(ACK, 1, 0x63);
    story.none("peer-vanished");
}

#[test]
fn a_peer_that_was_never_heard_may_not_be_in_the_capture() {
    let mut story = Story::new();
    for _ in 0..5 {
        story.ask(ONLY, 1);
        story.wait_ms(70);
    }
    let found = story.one("peer-vanished");
    assert!(
        found.summary.contains("no answer is in the capture"),
        "{}",
        found.summary
    );
}

#[test]
fn a_requester_that_goes_on_was_answered_somewhere() {
    let mut story = Story::new();
    for _ in 0..5 {
        story.ask(ONLY, 1);
        story.wait_ms(70);
    }
    story.wait_ms(70);
    for psn in 2..10 {
        story.ask(ONLY, psn);
    }
    story.none("peer-vanished");
}

#[test]
fn a_receiver_that_is_not_ready_costs_its_timer() {
    let mut story = Story::new();
    story.write(0);
    story.ask(ONLY, 1);
    // Timer code 20: 10.24 ms.
    let nak = story.reply(ACK, 1, 0x34);
    story.wait_ms(12);
    story.ask(ONLY, 1);
    story.ack(1);
    let found = story.only("rnr");
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(
        (found.count("rnr_naks"), found.count("asked_ns")),
        (1, 10_240_000)
    );
    assert_eq!(found.count("waited_ns"), 12_010_000);
    assert_eq!(
        (found.count("packets_sent_again"), found.frames()),
        (1, vec![nak])
    );
}

#[test]
fn what_follows_a_request_that_was_not_ready_for_is_not_lost() {
    let mut story = Story::new();
    story.write(0);
    story.ask(ONLY, 1);
    story.ask(ONLY, 2);
    story.reply(ACK, 1, 0x34);
    story.reply(ACK, 1, SEQUENCE_NAK);
    story.wait_ms(12);
    story.ask(ONLY, 1);
    story.ask(ONLY, 2);
    story.ack(2);
    let found = story.one("rnr");
    assert_eq!(
        (
            found.count("sequence_naks"),
            found.count("packets_sent_again")
        ),
        (1, 2)
    );
    story.none("packet-loss");
}

#[test]
fn a_requester_that_gives_up_lost_its_operation() {
    let mut story = Story::new();
    story.write(0);
    for _ in 0..3 {
        story.ask(ONLY, 1);
        story.reply(ACK, 1, 0x34);
        story.wait_ms(12);
    }
    let found = story.only("rnr");
    assert_eq!(
        (found.severity, found.count("given_up")),
        (Severity::Error, 1)
    );
    assert!(found.hint.contains("rnr_retry"), "{}", found.hint);
}

#[test]
fn silence_is_a_stall_unless_it_has_a_name() {
    let mut story = Story::new();
    story.write(0);
    story.ask(ONLY, 1);
    story.wait_ms(150);
    let ended = story.ack(1);
    let found = story.only("stall");
    assert_eq!(
        (found.count("stalls"), found.count("silence_ns")),
        (1, 150_010_000)
    );
    assert_eq!(
        (found.subject, found.frames()),
        (Subject::Flow(forth()), vec![ended])
    );
    // A pause with nothing to wait for.
    story.wait_ms(1000);
    story.write(2);
    assert_eq!(story.one("stall").count("stalls"), 1);
    // A timeout, and the wait after an RNR NAK.
    story.ask(ONLY, 3);
    story.wait_ms(500);
    story.ask(ONLY, 3);
    story.ack(3);
    story.ask(ONLY, 4);
    story.reply(ACK, 4, 0x20);
    story.wait_ms(700);
    story.ask(ONLY, 4);
    story.ack(4);
    assert_eq!(story.one("stall").count("stalls"), 1);
    assert_eq!(story.one("timeout").count("timeouts"), 1);
    assert_eq!(story.one("rnr").count("rnr_naks"), 1);
}

#[test]
fn marks_want_a_notification() {
    let mut story = Story::new();
    story.write(0);
    let mut marked = story.sent(forth(), ONLY, 1);
    marked.ecn = 3;
    let marked = story.seen(marked);
    story.ack(1);
    let found = story.only("ce-without-cnp");
    assert_eq!((found.count("ce"), found.count("ecn_capable")), (1, 1));
    assert_eq!(found.frames(), [marked]);
    let cnp = story.send(back(), CNP, 0);
    let found = story.only("congestion");
    assert_eq!(found.severity, Severity::Info);
    assert_eq!(found.subject, Subject::Flow(forth()));
    assert_eq!((found.count("cnps"), found.count("ce")), (1, 1));
    assert_eq!(found.frames(), [cnp]);
}

#[test]
fn many_notifications_are_a_warning() {
    let mut story = Story::new();
    story.write(0);
    for _ in 0..150 {
        story.send(back(), CNP, 0);
    }
    let found = story.one("congestion");
    // From the ACK to the last of them, a packet every 10 µs: no rate, but of
    // a second there are as many at least.
    assert_eq!(
        (found.severity, found.count("within_ns")),
        (Severity::Warning, 1_500_000)
    );
    assert!(
        found.summary.starts_with("150 CNPs told QP ")
            && found.summary.contains(" to slow down within 1.50 ms"),
        "{}",
        found.summary
    );
    assert!(!found.summary.contains("a second"), "{}", found.summary);
    // None of the packets they are about is marked.
    let found = story.one("cnp-without-ce");
    assert_eq!((found.severity, found.count("cnps")), (Severity::Info, 150));
    assert!(found.hint.contains("not ECN-capable"), "{}", found.hint);
    story.thresholds.cnp_rate = 200;
    assert_eq!(story.one("congestion").severity, Severity::Info);
}

#[test]
fn notifications_of_seconds_have_a_rate() {
    let mut story = Story::new();
    story.write(0);
    for _ in 0..20 {
        story.wait_ms(100);
        story.send(back(), CNP, 0);
    }
    let found = story.one("congestion");
    assert_eq!(found.count("cnps_per_s"), 10);
    assert!(found.summary.contains(", 10 a second"), "{}", found.summary);
}

#[test]
fn marks_say_nothing_where_the_way_back_is_not_captured() {
    let mut story = Story::new();
    let mut marked = story.sent(forth(), ONLY, 1);
    marked.ecn = 3;
    story.seen(marked);
    story.none("ce-without-cnp");
}

#[test]
fn reads_asked_again_were_mixed_between_queue_pairs_with_the_same_psns() {
    let mut story = Story::new();
    let (other, other_back) = (key(1, 2, 0x33), key(2, 1, 0x44));
    story.write(0);
    story.send(other, ONLY, 0);
    story.answer(other_back, ACK, 0, POSITIVE);
    let answered = |story: &mut Story, flow| {
        story.answer(flow, READ_FIRST, 1, POSITIVE);
        story.send(flow, READ_MIDDLE, 2);
        story.send(flow, READ_MIDDLE, 3);
        story.answer(flow, READ_LAST, 4, POSITIVE);
    };
    story.ask(READ, 1);
    answered(&mut story, back());
    story.send(other, READ, 1);
    answered(&mut story, other_back);
    // Both ask again; the second for a later response of those with the same
    // numbers, and its answer comes first.
    story.ask(READ, 3);
    story.send(other, READ, 2);
    story.send(other_back, READ_MIDDLE, 2);
    story.send(other_back, READ_MIDDLE, 3);
    let lost = story.reply(READ_FIRST, 3, POSITIVE);
    let mut found = story.findings();
    found.retain(|finding| finding.id == "read-response-loss");
    let of = |subject| {
        let mut of = found.iter().filter(|found| found.subject == subject);
        of.next().unwrap_or_else(|| panic!("{found:#?}"))
    };
    let first = of(Subject::Flow(back()));
    assert_eq!(
        (first.count("packets_lost"), first.frames()),
        (1, vec![lost])
    );
    assert_eq!(of(Subject::Flow(other_back)).count("packets_lost"), 1);
}

#[test]
fn what_fills_a_hole_after_a_timeout_was_counted_twice() {
    let mut story = Story::new();
    story.write(0);
    story.write4(1, &[2]);
    story.wait_ms(70);
    for (psn, opcode) in (1..).zip([FIRST, MIDDLE, MIDDLE, LAST]) {
        story.ask(opcode, psn);
    }
    story.ack(4);
    let timeout = story.one("timeout").count("packets_sent_again");
    let loss = story.one("packet-loss");
    assert_eq!((timeout, loss.count("packets_sent_again")), (4, 0));
    assert_eq!(
        (loss.count("packets_lost"), loss.count("lost_in_other_runs")),
        (1, 1)
    );
    assert!(
        loss.summary.contains("1 lost packet came again in a run"),
        "{}",
        loss.summary
    );
}

#[test]
fn packets_sent_again_for_no_known_reason_were_in_no_finding() {
    let mut story = Story::new();
    // No answer is in the capture.
    for psn in 0..4 {
        story.ask(ONLY, psn);
    }
    let again = [2, 3].map(|psn| story.ask(ONLY, psn));
    let found = story.one("sent-again");
    assert_eq!(
        (found.severity, found.count("packets_sent_again")),
        (Severity::Info, 2)
    );
    assert_eq!(found.frames(), again);
    // A READ asked for again at once, of which no response shows a loss.
    let mut story = Story::new();
    story.write(0);
    story.ask(READ, 1);
    story.ask(READ, 1);
    let found = story.one("sent-again");
    assert_eq!(
        (found.count("packets_sent_again"), found.count("reads")),
        (1, 1)
    );
}
