//! Which flow answers which.

use super::*;

/// Four queue pairs that all begin with PSN 0 and take turns.
fn alike(sport: fn(u32) -> u16) -> Vec<(Option<u32>, u32, How)> {
    let mut story = Story::default();
    for psn in 0..8 {
        for qp in 0..4 {
            let mut ask = story.record(key(true, 0x20 + qp), ONLY, psn);
            ask.sport = sport(qp);
            story.tell(&ask);
        }
        for qp in 0..4 {
            let mut ack = story.record(key(false, 0x10 + qp), ACK, psn);
            ack.sport = sport(qp);
            ack.aeth = Some(Aeth {
                syndrome: 0x1f,
                msn: Msn::new(0),
            });
            story.tell(&ack);
        }
    }
    let connections = story.tracker.connections();
    let ends = connections.iter().filter(|c| c.a.initial_psn.is_some());
    ends.map(|c| (c.a.qp.map(QpNumber::get), c.b.qp.unwrap().get(), c.how))
        .collect()
}

#[test]
fn alike_queue_pairs_are_paired_by_their_source_ports() {
    let sport =
        |qp| crate::track::pairing::source_port(QpNumber::new(0x10 + qp), QpNumber::new(0x20 + qp));
    let right: Vec<_> = (0..4)
        .map(|qp| (Some(0x10 + qp), 0x20 + qp, How::Inferred))
        .collect();
    assert_eq!(alike(sport), right);
}

#[test]
fn what_nothing_tells_apart_is_not_guessed() {
    let unpaired: Vec<_> = (0..4).map(|qp| (None, 0x20 + qp, How::Unpaired)).collect();
    assert_eq!(alike(|_| 0xc000), unpaired);
}

#[test]
fn a_first_packet_that_is_refused_finds_its_answer() {
    let mut story = Story::default();
    story.ask(FIRST, 5);
    story.reply(ACK, 5, 0x62);
    story.end();
    assert_eq!(story.flow(true).how, How::Inferred);
    assert!(story.heard.messages[0].refused.is_some());
}

#[test]
fn a_queue_pair_connected_to_itself_answers_itself() {
    let mut story = Story::default();
    let end = IpAddr::from([10, 0, 0, 1]);
    let own = FlowKey {
        src: end,
        dst: end,
        dest_qp: QpNumber::new(0x12),
    };
    for psn in 0..5 {
        let ask = story.record(own, ONLY, psn);
        story.tell(&ask);
        let mut ack = story.record(own, ACK, psn);
        ack.aeth = Some(Aeth {
            syndrome: 0x1f,
            msn: Msn::new(psn),
        });
        story.tell(&ack);
    }
    story.end();
    let flow = story.tracker.flows().next().unwrap();
    assert_eq!((flow.requests.new, flow.acks, flow.acks_own), (5, 5, 5));
    assert_eq!(flow.peer, Some(flow.id));
    assert_eq!(flow.latency.count(), 5);
    let connections = story.tracker.connections();
    assert_eq!(connections.len(), 1);
    assert_eq!(connections[0].a.qp, connections[0].b.qp);
}
