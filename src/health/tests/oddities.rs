//! Packets that are not as they should be, and what the capture cannot tell.

use super::*;
use crate::{frame::Reason, source::LinkType};

/// Tells a request that `change` made odd, and its ACK.
fn odd(story: &mut Story, psn: u32, change: impl FnOnce(&mut Record)) -> u64 {
    let mut record = story.sent(forth(), ONLY, psn);
    change(&mut record);
    let frame = story.seen(record);
    story.ack(psn);
    frame
}

#[test]
fn some_wrong_crcs_are_corruption() {
    let mut story = Story::new();
    story.write(0);
    let mut bad = story.sent(forth(), ONLY, 1);
    bad.icrc = IcrcState::Invalid;
    let bad = story.seen(bad);
    story.write(1);
    let found = story.only("icrc-invalid");
    assert_eq!(
        (found.count("icrc_invalid"), found.count("icrc_valid")),
        (1, 2)
    );
    assert_eq!(found.frames(), [bad]);
    story.none("icrc-rewritten");
}

#[test]
fn only_wrong_crcs_are_rewriting() {
    let mut story = Story::new();
    for psn in 0..4 {
        odd(&mut story, psn, |record| record.icrc = IcrcState::Invalid);
    }
    let found = story.only("icrc-rewritten");
    assert_eq!(
        (found.severity, found.count("icrc_invalid")),
        (Severity::Info, 4)
    );
}

#[test]
fn corrupted_addresses_are_no_flows_of_their_own() {
    let mut story = Story::new();
    story.write(0);
    for last in 7..9 {
        let mut stray = story.sent(key(last, 2, ANSWERER), ONLY, 1);
        stray.icrc = IcrcState::Invalid;
        story.seen(stray);
    }
    let found = story.one("icrc-invalid");
    assert_eq!((found.subject, found.count("flows")), (Subject::Capture, 2));
}

#[test]
fn copies_of_the_network_reach_the_responder() {
    let mut story = Story::new();
    story.write(0);
    let packet = story.sent(forth(), ONLY, 1);
    story.seen(packet.clone());
    story.seen(packet.clone());
    let ack = story.sent(back(), ACK, 1);
    story.seen(Record {
        aeth: Some(Aeth {
            syndrome: POSITIVE,
            msn: Msn::new(1),
        }),
        ..ack
    });
    // So far the mirror may have made the copy.
    assert_eq!(story.one("mirror-duplicates").count("mirror_duplicates"), 1);
    story.none("duplicates");
    story.ack(1);
    let found = story.one("duplicates");
    assert_eq!(
        (found.severity, found.count("duplicates")),
        (Severity::Warning, 1)
    );
    assert_eq!(found.count("answered"), 1);
    story.none("mirror-duplicates");
}

#[test]
fn odd_packets_are_told_with_their_frames() {
    let mut story = Story::new();
    story.write4(0, &[]);
    story.ack(3);
    let other = odd(&mut story, 4, |record| record.dscp = 26);
    story.none("mixed-priority");
    let fragment = odd(&mut story, 5, |record| record.fragment = true);
    let malformed = odd(&mut story, 6, |record| record.malformed = true);
    let found = story.one("mixed-dscp");
    assert_eq!(
        (found.frames(), found.severity),
        (vec![other], Severity::Info)
    );
    let found = story.one("ip-fragments");
    assert_eq!(
        (found.frames(), found.severity),
        (vec![fragment], Severity::Warning)
    );
    let found = story.one("malformed");
    assert_eq!(
        (found.frames(), found.severity),
        (vec![malformed], Severity::Warning)
    );
}

#[test]
fn frames_that_were_not_decoded_count_too() {
    let mut story = Story::new();
    story.write(0);
    let skipped = Observed::Skipped(Reason::Malformed, LinkType::ETHERNET);
    story.summary.add(&skipped);
    let found = story.only("malformed");
    assert_eq!(
        (found.count("malformed_headers"), found.subject),
        (1, Subject::Capture)
    );
}

#[test]
fn packets_in_the_middle_are_of_the_path_mtu() {
    let mut story = Story::new();
    story.write4(0, &[]);
    story.ack(3);
    story.ask(FIRST, 4);
    let mut short = story.sent(forth(), MIDDLE, 5);
    short.payload_len = 900;
    let short = story.seen(short);
    story.ask(MIDDLE, 6);
    story.ask(LAST, 7);
    story.ack(7);
    let found = story.one("odd-mtu");
    assert_eq!(
        (found.count("path_mtu"), found.frames()),
        (1024, vec![short])
    );
}

#[test]
fn path_mtus_of_two_directions_may_differ() {
    let mut story = Story::new();
    story.write4(0, &[]);
    story.ack(3);
    for (psn, opcode) in (0..).zip([FIRST, MIDDLE, MIDDLE, LAST]) {
        let mut large = story.sent(back(), opcode, 0x900 + psn);
        large.payload_len = 4096;
        large.remote = None;
        story.seen(large);
    }
    story.answer(forth(), ACK, 0x903, POSITIVE);
    let found = story.one("mtu-differs");
    assert_eq!(found.subject, Subject::Flow(back()));
    assert_eq!(
        (found.count("path_mtu"), found.count("path_mtu_back")),
        (4096, 1024)
    );
    story.none("odd-mtu");
}

#[test]
fn a_message_in_the_middle_of_another_is_out_of_place() {
    let mut story = Story::new();
    story.write(0);
    story.ask(FIRST, 1);
    // A SEND, where the WRITE should go on.
    let odd = story.ask(0x04, 2);
    story.ack(2);
    let found = story.one("out-of-place");
    assert_eq!(
        (found.severity, found.frames()),
        (Severity::Warning, vec![odd])
    );
}

#[test]
fn what_was_acknowledged_was_missed_by_the_capture() {
    let mut story = Story::new();
    story.write4(0, &[]);
    story.ack(3);
    story.write4(4, &[5, 6]);
    story.ack(7);
    let found = story.one("capture-loss");
    assert_eq!(
        (found.severity, found.count("missing")),
        (Severity::Info, 2)
    );
    story.none("packet-loss");
}

#[test]
fn dropped_packets_are_told_by_input() {
    let mut story = Story::new();
    story.write(0);
    for (name, dropped) in [
        ("a.pcapng", Some(12)),
        ("b.pcapng", Some(0)),
        ("c.pcap", None),
    ] {
        story.inputs.push(InputStatistics {
            name: name.into(),
            packets: 100,
            dropped,
            live: None,
        });
    }
    let found = story.only("capture-drops");
    assert_eq!(
        (found.severity, found.count("dropped")),
        (Severity::Info, 12)
    );
    assert!(
        found.summary.starts_with("a.pcapng: 12 packets"),
        "{}",
        found.summary
    );
}

#[test]
fn one_direction_is_not_both() {
    let mut story = Story::new();
    for psn in 0..3 {
        story.ask(ONLY, psn);
    }
    let found = story.one("one-way-capture");
    assert_eq!(
        (found.severity, found.count("requests")),
        (Severity::Info, 3)
    );
    let mut story = Story::new();
    for psn in 0..3 {
        story.ack(psn);
    }
    assert_eq!(story.one("one-way-capture").count("answers"), 3);
    // Datagrams are never answered.
    let mut story = Story::new();
    story.send(forth(), 0x64, 1);
    assert_eq!(story.findings(), []);
}

#[test]
fn one_direction_of_both_kinds_is_shown_by_packets_of_the_kind_named() {
    let mut story = Story::new();
    // Of a queue pair that answers only, of one that does both, and requests.
    story.answer(key(1, 2, 0x33), ACK, 7, POSITIVE);
    story.answer(forth(), ACK, 700, POSITIVE);
    let asked = story.ask(ONLY, 0);
    story.ask(ONLY, 1);
    let found = story.one("one-way-capture");
    assert_eq!((found.count("requests"), found.count("flows")), (2, 1));
    assert_eq!(found.frames(), [asked]);
}

#[test]
fn cut_packets_matter_where_the_crc_is_gone() {
    let mut story = Story::new();
    story.write(0);
    odd(&mut story, 1, |record| record.truncated = true);
    story.none("truncated");
    odd(&mut story, 2, |record| {
        record.truncated = true;
        record.icrc = IcrcState::Unverifiable;
    });
    let found = story.only("truncated");
    assert_eq!(
        (found.count("truncated"), found.count("icrc_unverifiable")),
        (2, 1)
    );
}

#[test]
fn a_queue_pair_number_may_be_used_again() {
    let mut story = Story::new();
    story.write4(100, &[]);
    story.ack(103);
    let again = story.ask(ONLY, 0x80_0000);
    story.ack(0x80_0000);
    let found = story.one("qp-reused");
    assert_eq!(
        (found.severity, found.frames()),
        (Severity::Info, vec![again])
    );
}

#[test]
fn what_is_under_way_at_the_end_is_not_finished() {
    let mut story = Story::new();
    story.write(0);
    let open = story.ask(ONLY, 1);
    let found = story.only("unfinished");
    assert_eq!((found.count("unanswered"), found.count("partial")), (1, 0));
    assert_eq!(found.frames(), [open]);
}

#[test]
fn forgotten_flows_are_told() {
    let limits = Limits {
        flows: 4,
        ..Limits::default()
    };
    let mut story = Story::within(limits);
    for qp in 0..50 {
        story.send(key(1, 2, 0x100 + qp), ONLY, 5);
        story.answer(key(2, 1, 0x200 + qp), ACK, 5, POSITIVE);
    }
    let found = story.one("flows-evicted");
    assert_eq!(found.severity, Severity::Info);
    assert!(found.count("flows_evicted") > 0, "{found:#?}");
}

#[test]
fn priorities_of_vlan_tags_are_compared() {
    let mut story = Story::new();
    let first = odd(&mut story, 0, |record| record.priority = Some(3));
    story.ack(0);
    // Without a tag there is nothing to compare.
    story.write4(1, &[]);
    story.none("mixed-priority");
    let other = odd(&mut story, 5, |record| record.priority = Some(0));
    assert!(first < other);
    let found = story.one("mixed-priority");
    assert_eq!(found.frames(), vec![other]);
    assert_eq!(found.count("first_priority"), 3);
}
