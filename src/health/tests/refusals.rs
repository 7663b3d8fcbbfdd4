//! Requests and connections that were refused.

use super::*;
use crate::track::{CmKind, CmRecord};

#[test]
fn a_refused_request_is_told_with_what_it_asked_for() {
    for (syndrome, id) in [
        (0x61, "invalid-request"),
        (0x62, "remote-access-error"),
        (0x63, "remote-operational-error"),
    ] {
        let mut story = Story::new();
        story.write(0);
        let asked = story.ask(ONLY, 1);
        let refused = story.reply(ACK, 1, syndrome);
        let found = story.only(id);
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(found.subject, Subject::Flow(forth()));
        assert_eq!(found.frames(), [asked, refused]);
        let [request] = found.evidence.requests[..] else {
            panic!("{found:#?}");
        };
        assert_eq!(
            (request.request, request.refusal),
            ((0, asked), (0, refused))
        );
        assert_eq!(request.remote.unwrap().rkey, RKey::new(0x4d2));
        let words = "an RDMA WRITE of 1024 bytes at 0x1000 with rkey 0x000004d2";
        assert!(found.summary.contains(words), "{}", found.summary);
    }
}

#[test]
fn a_refusal_without_its_request_says_so() {
    let mut story = Story::new();
    let refused = story.reply(ACK, 1, 0x62);
    let found = story.one("remote-access-error");
    assert_eq!(
        (found.subject, found.frames()),
        (Subject::Flow(back()), vec![refused])
    );
    assert!(
        found.summary.contains("not in the capture"),
        "{}",
        found.summary
    );
}

/// WRITEs with keys from 0x1000 on, each refused on a connection of its own.
fn guesses(keys: u32) -> Story {
    let mut story = Story::new();
    for i in 0..keys {
        let mut guess = story.sent(key(1, 2, 0x100 + i), ONLY, 5);
        guess.remote = Some(Remote {
            va: VirtualAddr::new(0),
            rkey: RKey::new(0x1000 + i),
            len: 8,
        });
        story.seen(guess);
        story.answer(key(2, 1, 0x200 + i), ACK, 5, 0x62);
    }
    story
}

#[test]
fn many_keys_refused_are_a_scan() {
    let found = guesses(5).one("rkey-scan");
    assert_eq!(found.severity, Severity::Error);
    let hosts = Subject::Hosts {
        src: host(1),
        dst: host(2),
    };
    assert_eq!((found.subject, found.count("rkeys")), (hosts, 5));
    assert!(
        found.summary.contains("from 0x00001000 to 0x00001004"),
        "{}",
        found.summary
    );
    guesses(4).none("rkey-scan");
    // One key, wrong again and again, is a mistake.
    let mut story = Story::new();
    for i in 0..10 {
        story.send(key(1, 2, 0x100 + i), ONLY, 5);
        story.answer(key(2, 1, 0x200 + i), ACK, 5, 0x62);
    }
    story.none("rkey-scan");
}

#[test]
fn many_queue_pairs_that_do_not_answer_are_a_scan() {
    let mut story = Story::new();
    for qp in 0..5 {
        story.send(key(1, 2, 0x100 + qp), ONLY, 5);
    }
    // No answer of that host is in the capture at all.
    story.none("qp-scan");
    assert_eq!(story.one("one-way-capture").count("requests"), 5);
    story.write(0);
    let found = story.one("qp-scan");
    assert_eq!((found.count("queue_pairs"), found.count("packets")), (5, 5));
    story.thresholds.scan = 6;
    story.none("qp-scan");
}

/// A message of the communication manager.
fn cm(story: &mut Story, forth: bool, kind: CmKind, ids: (u32, Option<u32>), reason: Option<u16>) {
    let flow = if forth { key(1, 2, 1) } else { key(2, 1, 1) };
    let mut record = story.sent(flow, 0x64, 0);
    record.src_qp = Some(QpNumber::GSI);
    record.cm = Some(Box::new(CmRecord {
        kind,
        local_id: ids.0,
        remote_id: ids.1,
        service_id: (kind == CmKind::Req).then_some(0x106_1144),
        qpn: (kind == CmKind::Req).then_some(QpNumber::new(0x99)),
        starting_psn: None,
        path_mtu: None,
        reason,
    }));
    story.seen(record);
}

#[test]
fn a_rejected_connection_is_told_with_its_reason() {
    let mut story = Story::new();
    for id in 7..9 {
        cm(&mut story, true, CmKind::Req, (id, None), None);
        cm(&mut story, false, CmKind::Rej, (0, Some(id)), Some(8));
    }
    let found = story.only("cm-rejected");
    assert_eq!(found.severity, Severity::Error);
    assert_eq!((found.count("attempts"), found.count("reason")), (2, 8));
    assert_eq!(
        found.summary,
        "2 attempts to connect to port 4420 (NVMe-oF) were rejected, reason 8: invalid service \
         ID: nothing listens there."
    );
    assert!(
        found.hint.contains("whether the server runs"),
        "{}",
        found.hint
    );
    assert_eq!(found.frames(), [1, 2, 3, 4]);
    let Subject::Connection { a, b } = found.subject else {
        panic!("{found:#?}");
    };
    assert_eq!((a.ip, b.ip), (host(1), host(2)));
}
