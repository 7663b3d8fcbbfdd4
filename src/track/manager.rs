//! The lives of connections, by the messages of the communication manager.

use std::{collections::HashMap, net::IpAddr};

use super::{CmKind, CmLife, CmRecord, CmState, ConnectionId, Endpoint, FlowKey, Record};

/// Connections kept; further ones are only counted.
const MAX_CONNECTIONS: usize = 1 << 16;

/// A connection as its messages described it.
#[derive(Debug, Clone)]
pub(super) struct Managed {
    /// The side that asked.
    pub a: Endpoint,
    /// The other side.
    pub b: Endpoint,
    pub path_mtu: Option<u16>,
    pub life: CmLife,
    /// Communication IDs: of the side that asked, and of the other once known.
    ids: (u32, Option<u32>),
}

impl Managed {
    /// The flows it will use, from `a` to `b` and back, once both queue pairs
    /// are known.
    pub fn flows(&self) -> Option<(FlowKey, FlowKey)> {
        let forward = FlowKey {
            src: self.a.ip,
            dst: self.b.ip,
            dest_qp: self.b.qp?,
        };
        let backward = FlowKey {
            src: self.b.ip,
            dst: self.a.ip,
            dest_qp: self.a.qp?,
        };
        Some((forward, backward))
    }
}

/// All connections whose messages were seen.
#[derive(Debug, Default)]
pub(super) struct Manager {
    list: Vec<Managed>,
    /// By address and communication ID of either side.
    by_id: HashMap<(IpAddr, u32), usize, foldhash::fast::RandomState>,
    /// Connections that were not kept.
    pub beyond: u64,
}

impl Manager {
    /// The connections, in the order of their first message.
    pub fn list(&self) -> &[Managed] {
        &self.list
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Managed> {
        self.list.get(id.0 as usize)
    }

    /// Takes in a message; returns the connection whose second queue pair came
    /// to light with it.
    pub fn message(&mut self, record: &Record, cm: &CmRecord) -> Option<ConnectionId> {
        let (from, to) = (record.flow.src, record.flow.dst);
        let at = match cm.kind {
            CmKind::Req => self.request(record, cm)?,
            _ => self.find(from, to, cm)?,
        };
        let managed = &mut self.list[at];
        let by_a = from == managed.a.ip && (from != managed.b.ip || cm.local_id == managed.ids.0);
        let life = &mut managed.life;
        life.last_frame = (record.input, record.frame);
        match cm.kind {
            CmKind::Req => {
                life.requests += 1;
                return None;
            }
            CmKind::Rep => {
                let first = life.rep_ns.is_none();
                life.rep_ns.get_or_insert(record.ts_ns);
                if !first {
                    return None;
                }
                if life.state == CmState::Requested {
                    life.state = CmState::Replied;
                }
                managed.b.qp = cm.qpn;
                // Each side says what it expects to receive.
                managed.a.initial_psn = cm.starting_psn;
                managed.ids.1 = Some(cm.local_id);
                self.by_id.insert((from, cm.local_id), at);
                return Some(ConnectionId(at as u32));
            }
            CmKind::Rtu => {
                life.rtu_ns.get_or_insert(record.ts_ns);
                if matches!(life.state, CmState::Requested | CmState::Replied) {
                    life.state = CmState::Established;
                }
            }
            CmKind::Rej => {
                life.state = CmState::Rejected(cm.reason.unwrap_or(0));
                life.end_ns.get_or_insert(record.ts_ns);
                life.ended_by_a.get_or_insert(by_a);
            }
            CmKind::Dreq => {
                if !matches!(life.state, CmState::Rejected(_)) {
                    life.state = CmState::Disconnected;
                }
                life.end_ns.get_or_insert(record.ts_ns);
                life.ended_by_a.get_or_insert(by_a);
            }
            CmKind::Drep | CmKind::Other => {}
        }
        None
    }

    /// The connection that a REQ is for: the one it asked for before, or a new
    /// one.
    fn request(&mut self, record: &Record, cm: &CmRecord) -> Option<usize> {
        let key = (record.flow.src, cm.local_id);
        if let Some(at) = self.by_id.get(&key) {
            let known = &self.list[*at];
            let same = known.a.qp == cm.qpn && known.b.initial_psn == cm.starting_psn;
            if same {
                return Some(*at);
            }
        }
        if self.list.len() >= MAX_CONNECTIONS {
            self.beyond += 1;
            return None;
        }
        let frame = (record.input, record.frame);
        self.list.push(Managed {
            a: Endpoint {
                ip: record.flow.src,
                qp: cm.qpn,
                initial_psn: None,
            },
            b: Endpoint {
                ip: record.flow.dst,
                qp: None,
                initial_psn: cm.starting_psn,
            },
            path_mtu: cm.path_mtu,
            life: CmLife {
                state: CmState::Requested,
                service_id: cm.service_id,
                requests: 0,
                req_ns: Some(record.ts_ns),
                rep_ns: None,
                rtu_ns: None,
                end_ns: None,
                first_frame: frame,
                last_frame: frame,
                ended_by_a: None,
            },
            ids: (cm.local_id, None),
        });
        let at = self.list.len() - 1;
        self.by_id.insert(key, at);
        Some(at)
    }

    fn find(&self, from: IpAddr, to: IpAddr, cm: &CmRecord) -> Option<usize> {
        let by_receiver = cm.remote_id.and_then(|id| self.by_id.get(&(to, id)));
        by_receiver
            .or_else(|| self.by_id.get(&(from, cm.local_id)))
            .copied()
    }

    /// Takes note that a connection carries data: its RTU may not have been
    /// captured.
    pub fn carries_data(&mut self, id: ConnectionId) {
        if let Some(managed) = self.list.get_mut(id.0 as usize)
            && matches!(managed.life.state, CmState::Requested | CmState::Replied)
        {
            managed.life.state = CmState::Established;
        }
    }
}
