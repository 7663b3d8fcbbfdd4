//! The table of connections: who talks to whom, and how that is known.

use std::cmp::Reverse;

use super::{
    flows::{FlowsReport, Layout, ROWS},
    lines::more,
    panels::{self, Cell, Column},
    style::Kind,
    text::span,
};
use crate::{
    filter::FlowFilter,
    track::{CmLife, CmState, Connection, Endpoint, service_name},
    wire::cm::{ip_service, reject_reason},
};

/// Whether one of a connection's ends is chosen.
pub(super) fn chosen(connection: &Connection, filter: &FlowFilter) -> bool {
    let Connection { a, b, .. } = connection;
    filter.ends([a.ip, b.ip], [a.qp, b.qp])
}

/// Appends the table of connections.
pub(super) fn print(text: &mut Vec<u8>, report: &FlowsReport<'_>, layout: Layout) {
    let mut rows = report.tracker.connections();
    rows.retain(|connection| chosen(connection, report.filter));
    // What was refused must not be hidden by what went well.
    rows.sort_by_key(|connection| Reverse(connection.cm.is_some_and(|cm| unanswered(&cm))));
    let total = rows.len();
    if !layout.all {
        rows.truncate(ROWS);
    }
    if rows.is_empty() {
        return;
    }
    let columns = [
        Column::numbers(&rows),
        Column::new("asks", false, &rows, |c| Cell::plain(end(&c.a))),
        Column::new("⇄ answers", false, &rows, |c| {
            Cell::plain(format!("⇄ {}", end(&c.b)))
        }),
        Column::new("paired", false, &rows, |c| {
            Cell::kind(c.how.word(), Kind::Quiet)
        }),
        Column::new("service", false, &rows, |c| {
            Cell::or_nothing(c.cm.and_then(|cm| cm.service_id).map(service))
        }),
        Column::new("MTU", true, &rows, |c| {
            Cell::or_nothing(c.path_mtu.map(|mtu| mtu.to_string()))
        }),
        Column::new("set up in", true, &rows, |c| {
            let ns = c.cm.and_then(|cm| cm.setup_ns());
            Cell::or_nothing(ns.map(|ns| span(ns.max(0) as u64)))
        }),
        Column::new("state", false, &rows, |c| {
            c.cm.map_or_else(Cell::nothing, |cm| state(c, &cm))
        }),
    ];
    panels::print(text, layout.style, &columns, layout.width);
    let left = total - rows.len();
    more(text, left, "more connection", "more connections");
}

fn end(end: &Endpoint) -> String {
    match end.qp {
        Some(qp) => format!("{} {qp}", end.ip),
        None => format!("{} QP ?", end.ip),
    }
}

fn service(id: u64) -> String {
    match (service_name(id), ip_service(id)) {
        (Some(name), _) => name.into(),
        (None, Some((_, port))) => format!("port {port}"),
        (None, None) => format!("{id:#x}"),
    }
}

const fn unanswered(cm: &CmLife) -> bool {
    matches!(
        cm.state,
        CmState::Rejected(_) | CmState::Requested | CmState::Replied
    )
}

fn state(connection: &Connection, cm: &CmLife) -> Cell {
    let again = if cm.requests > 1 {
        format!(", {} REQs", cm.requests)
    } else {
        String::new()
    };
    match cm.state {
        CmState::Requested => Cell::kind(format!("no answer to REQ{again}"), Kind::Bad),
        CmState::Replied => Cell::kind(format!("no RTU{again}"), Kind::Notice),
        CmState::Rejected(code) => {
            let words = reject_reason(code).map_or_else(|| format!("reason {code}"), String::from);
            Cell::kind(format!("rejected: {words}{again}"), Kind::Bad)
        }
        CmState::Established => Cell::plain(format!("established{again}")),
        CmState::Disconnected => {
            let by = cm.ended_by_a.map(|a| {
                let end = if a { connection.a } else { connection.b };
                format!(" by {}", end.ip)
            });
            Cell::plain(format!(
                "{}{}",
                state_word(cm.state),
                by.unwrap_or_default()
            ))
        }
    }
}

/// The word for how far a connection got.
pub(super) const fn state_word(state: CmState) -> &'static str {
    match state {
        CmState::Requested => "requested",
        CmState::Replied => "replied",
        CmState::Established => "established",
        CmState::Rejected(_) => "rejected",
        CmState::Disconnected => "disconnected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_connections_have_words() {
        let end = |ip: &str| Endpoint {
            ip: ip.parse().unwrap(),
            qp: None,
            initial_psn: None,
        };
        let life = |state, requests, ended_by_a| CmLife {
            state,
            service_id: None,
            requests,
            req_ns: None,
            rep_ns: None,
            rtu_ns: None,
            end_ns: None,
            first_frame: (0, 1),
            last_frame: (0, 2),
            ended_by_a,
        };
        let connection = Connection {
            a: end("10.0.0.1"),
            b: end("10.0.0.2"),
            how: crate::track::How::Cm,
            path_mtu: None,
            forward: None,
            backward: None,
            cm: None,
        };
        for (life, words) in [
            (
                life(CmState::Requested, 3, None),
                "no answer to REQ, 3 REQs",
            ),
            (life(CmState::Replied, 1, None), "no RTU"),
            (life(CmState::Established, 1, None), "established"),
            (
                life(CmState::Rejected(10), 1, None),
                "rejected: stale connection",
            ),
            (
                life(CmState::Rejected(999), 1, None),
                "rejected: reason 999",
            ),
            (
                life(CmState::Disconnected, 1, Some(false)),
                "disconnected by 10.0.0.2",
            ),
        ] {
            assert_eq!(state(&connection, &life).text(), words);
        }
        assert_eq!(service(0x0106_1c06), "rping");
        assert_eq!(service(0x0106_0007), "port 7");
        assert_eq!(service(0x7), "0x7");
    }
}
