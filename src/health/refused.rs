//! Requests and connections that were refused, and who tries too many.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    Case, Draft, FRAMES_KEPT, FlowCase, FrameRef, Refused, Subject,
    trail::{Mark, Sign},
};
use crate::{
    track::{CmState, Connection, service_name},
    wire::{
        aeth::{AethKind, NakCode},
        cm::{ip_service, reject_reason},
        opcode::Transport,
    },
    words::plural,
};

/// A flow with more request packets than this is traffic, no attempt.
const ATTEMPT_PACKETS: u64 = 4;

/// `remote-access-error`.
pub(super) fn remote_access(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    refused(flow, Sign::RemoteAccess, "remote access error", |code| {
        code == NakCode::REMOTE_ACCESS
    })
}

/// `remote-operational-error`.
pub(super) fn remote_operation(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    let words = "remote operational error";
    refused(flow, Sign::RemoteOperation, words, |code| {
        code == NakCode::REMOTE_OPERATION
    })
}

/// `invalid-request`.
pub(super) fn invalid_request(_: &Case<'_>, flow: &FlowCase<'_>) -> Option<Draft> {
    refused(flow, Sign::InvalidRequest, "invalid request", |code| {
        !matches!(
            code,
            NakCode::SEQUENCE | NakCode::REMOTE_ACCESS | NakCode::REMOTE_OPERATION
        )
    })
}

fn refused(
    flow: &FlowCase<'_>,
    sign: Sign,
    words: &str,
    of_kind: impl Fn(NakCode) -> bool,
) -> Option<Draft> {
    let naks = flow.trail.mark(sign);
    if naks.count == 0 {
        return None;
    }
    let kind = |refused: &&Refused| matches!(refused.answer, AethKind::Nak(code) if of_kind(code));
    let requests: Vec<Refused> = flow.trail.refused.iter().filter(kind).copied().collect();
    let summary = match requests.first() {
        Some(first) => format!(
            "The responder refused {}: {words}{}.",
            asked(first),
            match naks.count {
                1 => String::new(),
                n => format!("; {n} such NAKs in all"),
            }
        ),
        None => format!(
            "The responder sent {}, {words}; the request is not in the capture.",
            plural(naks.count, "NAK", "NAKs")
        ),
    };
    let frames: Vec<FrameRef> = requests.iter().map(|refused| refused.request).collect();
    Some(
        Draft::new(flow.subject(), summary)
            .count("naks", naks.count)
            .frames(&frames)
            .frames(&naks.frames)
            .requests(requests)
            .cost(0, naks.count),
    )
}

/// The request in words.
fn asked(refused: &Refused) -> String {
    let name = refused.operation.name();
    // R is read with a vowel.
    let a = if name.starts_with(['R', 'A']) {
        "an"
    } else {
        "a"
    };
    match refused.remote {
        Some(remote) => format!(
            "{a} {name} of {} at {:#x} with rkey {}",
            plural(remote.len.into(), "byte", "bytes"),
            remote.va.get(),
            remote.rkey
        ),
        None => format!("{a} {name} of {}", plural(refused.bytes, "byte", "bytes")),
    }
}

/// `rkey-scan`.
pub(super) fn rkey_scan(case: &Case<'_>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for ((src, dst), tried) in &case.health.tried {
        let keys = tried.keys.len() as u64;
        if keys < case.thresholds.scan {
            continue;
        }
        let (low, high) = tried.keys.iter().fold((u32::MAX, 0), |(low, high), key| {
            (low.min(key.get()), high.max(key.get()))
        });
        let more = if tried.more { " at least" } else { "" };
        let summary = format!(
            "{src} had {}{more} refused by {dst}, from {low:#010x} to {high:#010x}, in {}.",
            plural(keys, "rkey", "different rkeys"),
            plural(tried.refusals.count, "request", "requests")
        );
        drafts.push(
            Draft::new(
                Subject::Hosts {
                    src: *src,
                    dst: *dst,
                },
                summary,
            )
            .count("rkeys", keys)
            .count("refused", tried.refusals.count)
            .frames(&tried.refusals.frames)
            .cost(0, tried.refusals.count),
        );
    }
    // A map has no order that lasts.
    drafts.sort_by(|a, b| a.summary.cmp(&b.summary));
    drafts
}

/// `qp-scan`.
pub(super) fn qp_scan(case: &Case<'_>) -> Vec<Draft> {
    let mut tried: BTreeMap<(IpAddr, IpAddr), (Mark, u64)> = BTreeMap::new();
    if case.forgetful() {
        return Vec::new();
    }
    for flow in case.tracker.flows() {
        let unanswered = flow.peer.is_none()
            && matches!(flow.transport, Transport::Rc | Transport::Xrc)
            && (1..=ATTEMPT_PACKETS).contains(&flow.requests.packets)
            && flow.acknowledgements + flow.responses.packets == 0;
        if unanswered {
            let (mark, packets) = tried.entry((flow.key.src, flow.key.dst)).or_default();
            mark.add(flow.first_frame, 0);
            *packets += flow.requests.packets;
        }
    }
    let scan = |((src, dst), (mark, packets)): ((IpAddr, IpAddr), (Mark, u64))| {
        // Where none of the other side's answers are captured, silence says
        // nothing.
        if mark.count < case.thresholds.scan || case.pair(dst, src).answers.packets == 0 {
            return None;
        }
        let summary = format!(
            "{src} sent {} to {} of {dst} that never answered, while others there did.",
            plural(packets, "request", "requests"),
            plural(mark.count, "queue pair", "different queue pairs")
        );
        Some(
            Draft::new(Subject::Hosts { src, dst }, summary)
                .count("queue_pairs", mark.count)
                .count("packets", packets)
                .frames(&mark.frames)
                .cost(0, packets),
        )
    };
    tried.into_iter().filter_map(scan).collect()
}

/// What helps against some reasons of a rejection (IBTA vol. 1, 12.6.7.2).
const REASONS: &[(u16, &str)] = &[
    (3, "The server is out of queue pairs or memory."),
    (
        4,
        "The server waited in vain for the next message: see whether its replies get back.",
    ),
    (
        8,
        "Nothing listens on that port: see whether the server runs, and on which port and address.",
    ),
    (
        10,
        "One side still holds an old connection: wait for it to end, or restart that side.",
    ),
    (
        12,
        "The address the client asked for is none of the server's GIDs: roce-sniff doctor on the \
         server shows them.",
    ),
    (
        26,
        "The server's port cannot take that path MTU: use a smaller one.",
    ),
    (
        28,
        "The application on the server refused: its log knows why (access rights, version, \
         number of clients).",
    ),
];

/// Attempts that failed alike.
struct Rejected<'c> {
    first: &'c Connection,
    service: Option<u64>,
    reason: u16,
    attempts: Mark,
}

/// More kinds of rejection than anyone reads.
const MAX_ALIKE: usize = 256;

/// `cm-rejected`.
pub(super) fn cm_rejected(case: &Case<'_>) -> Vec<Draft> {
    let connections = case.tracker.connections();
    let mut alike: Vec<Rejected<'_>> = Vec::new();
    for connection in &connections {
        let Some(cm) = &connection.cm else { continue };
        let CmState::Rejected(reason) = cm.state else {
            continue;
        };
        let same = |known: &Rejected<'_>| {
            known.reason == reason
                && known.service == cm.service_id
                && (known.first.a.ip, known.first.b.ip) == (connection.a.ip, connection.b.ip)
        };
        let place = alike.iter().position(same).unwrap_or(alike.len());
        if place == alike.len() {
            if place == MAX_ALIKE {
                continue;
            }
            alike.push(Rejected {
                first: connection,
                service: cm.service_id,
                reason,
                attempts: Mark::default(),
            });
        }
        let at = &mut alike[place];
        at.attempts.add(cm.first_frame, 0);
        if at.attempts.frames.len() < FRAMES_KEPT {
            at.attempts.frames.push(cm.last_frame);
        }
    }
    alike.iter().map(rejection).collect()
}

fn rejection(rejected: &Rejected<'_>) -> Draft {
    let Connection { a, b, .. } = rejected.first;
    let reason = rejected.reason;
    let to = rejected.service.map_or(String::new(), |id| {
        match (ip_service(id), service_name(id)) {
            (Some((_, port)), Some(name)) => format!(" to port {port} ({name})"),
            (Some((_, port)), None) => format!(" to port {port}"),
            (None, _) => format!(" to service {id:#x}"),
        }
    });
    let words = reject_reason(reason).unwrap_or("not one of the specification's");
    let summary = match rejected.attempts.count {
        1 => format!("The connection{to} was rejected, reason {reason}: {words}."),
        n => format!("{n} attempts to connect{to} were rejected, reason {reason}: {words}."),
    };
    let draft = Draft::new(Subject::Connection { a: *a, b: *b }, summary)
        .count("attempts", rejected.attempts.count)
        .count("reason", reason.into())
        .frames(&rejected.attempts.frames)
        .cost(0, rejected.attempts.count);
    let better = REASONS.iter().find(|(known, _)| *known == reason);
    match better {
        Some((_, hint)) => draft.hint(*hint),
        None => draft,
    }
}
