//! Two flows that belong together, and how that is known.

use std::net::IpAddr;

use super::{Flow, FlowId, Tracker, manager::Managed};
use crate::wire::{
    opcode::Transport,
    types::{Psn, QpNumber},
};

/// Number of a connection that the communication manager set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// How two flows were found to belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// Seen in an exchange of the communication manager.
    Cm,
    /// PSNs of requests match those of acknowledgements and responses.
    Inferred,
    /// This program's own writer knows.
    Ledger,
    /// Nothing matched.
    Unpaired,
}

impl How {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cm => "cm",
            Self::Inferred => "inferred",
            Self::Ledger => "ledger",
            Self::Unpaired => "unpaired",
        }
    }
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Address.
    pub ip: IpAddr,
    /// Queue pair; `None` where no packet to it was seen.
    pub qp: Option<QpNumber>,
    /// First PSN that this end sends requests with: said by the communication
    /// manager, else the first one seen.
    pub initial_psn: Option<Psn>,
}

/// How far a connection got, by the communication manager's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmState {
    /// A REQ, and nothing after it.
    Requested,
    /// A REP, and no RTU yet.
    Replied,
    /// All three, or data.
    Established,
    /// Rejected, with the reason's code.
    Rejected(u16),
    /// Taken down by DREQ.
    Disconnected,
}

/// What the communication manager's messages said about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmLife {
    /// How far it got.
    pub state: CmState,
    /// Service asked for.
    pub service_id: Option<u64>,
    /// REQs, those sent again included.
    pub requests: u32,
    /// Time of the first REQ.
    pub req_ns: Option<i64>,
    /// Time of the first REP.
    pub rep_ns: Option<i64>,
    /// Time of the first RTU.
    pub rtu_ns: Option<i64>,
    /// Time of the REJ or the first DREQ.
    pub end_ns: Option<i64>,
    /// Input and frame of the first message.
    pub first_frame: (u16, u64),
    /// Input and frame of the last message.
    pub last_frame: (u16, u64),
    /// Which side ended it: true for the side that had asked (`a`).
    pub ended_by_a: Option<bool>,
}

impl CmLife {
    /// From REQ to RTU, or to REP where no RTU was seen; nanoseconds.
    #[must_use]
    pub fn setup_ns(&self) -> Option<i64> {
        Some(self.rtu_ns.or(self.rep_ns)?.saturating_sub(self.req_ns?))
    }
}

/// Two ends that talk, as far as known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The side that asked for the connection, or that sent the first request.
    pub a: Endpoint,
    /// The other side.
    pub b: Endpoint,
    /// How the two were found to belong together.
    pub how: How,
    /// Path MTU in bytes, where known.
    pub path_mtu: Option<u16>,
    /// Flow from `a` to `b`.
    pub forward: Option<FlowId>,
    /// Flow from `b` to `a`.
    pub backward: Option<FlowId>,
    /// What the communication manager's messages said.
    pub cm: Option<CmLife>,
}

/// The well-known name of a service, by its service ID: the port of the IP CM
/// service (IANA's RDMA port assignments, and what common programs use).
#[must_use]
pub fn service_name(service_id: u64) -> Option<&'static str> {
    const NAMES: &[(u16, &str)] = &[
        (445, "SMB-Direct"),
        (3260, "iSER"),
        (4420, "NVMe-oF"),
        (7174, "rping"),
        (18515, "perftest"),
        (20049, "NFS-RDMA"),
    ];
    let (_, port) = crate::wire::cm::ip_service(service_id)?;
    let named = NAMES.iter().find(|(known, _)| *known == port);
    named.map(|(_, name)| *name)
}

impl Tracker {
    /// Which ends talk to which: first the connections that the communication
    /// manager set up or refused, then pairs that were inferred, then flows
    /// that nothing answers.
    #[must_use]
    pub fn connections(&self) -> Vec<Connection> {
        let mut managed: Vec<_> = self.managed().iter().map(Connection::from).collect();
        let mut rest = Vec::new();
        for flow in self.flows() {
            if let Some(id) = flow.connection
                && let Some(connection) = managed.get_mut(id.0 as usize)
            {
                connection.carry(flow);
            } else if !matches!(
                flow.transport,
                Transport::Ud | Transport::Cnp | Transport::Rd
            ) && flow.key.dest_qp.get() > 1
            {
                match flow.peer.and_then(|peer| self.flow(peer)) {
                    Some(peer) if flow.leads(peer) => rest.push(Connection::paired(flow, peer)),
                    Some(_) => {}
                    None => rest.push(Connection::unpaired(flow)),
                }
            }
        }
        rest.sort_by_key(|connection| connection.how == How::Unpaired);
        managed.extend(rest);
        managed
    }
}

impl Flow {
    /// Whether this one of two flows names the pair: the one that sent the
    /// first request.
    fn leads(&self, peer: &Self) -> bool {
        let rank = |flow: &Self| (flow.requests.packets == 0, flow.first_ts_ns, flow.id);
        rank(self) <= rank(peer)
    }

    fn end_of(&self) -> Endpoint {
        Endpoint {
            ip: self.key.src,
            qp: None,
            initial_psn: (self.requests.packets > 0).then_some(self.first_psn),
        }
    }
}

impl From<&Managed> for Connection {
    fn from(managed: &Managed) -> Self {
        Self {
            a: managed.a,
            b: managed.b,
            how: How::Cm,
            path_mtu: managed.path_mtu,
            forward: None,
            backward: None,
            cm: Some(managed.life),
        }
    }
}

impl Connection {
    fn carry(&mut self, flow: &Flow) {
        let forward = flow.key.src == self.a.ip && Some(flow.key.dest_qp) == self.b.qp;
        if forward {
            self.forward = Some(flow.id);
        } else {
            self.backward = Some(flow.id);
        }
        self.path_mtu = self.path_mtu.or(flow.mtu);
    }

    fn paired(flow: &Flow, peer: &Flow) -> Self {
        Self {
            a: Endpoint {
                qp: Some(peer.key.dest_qp),
                ..flow.end_of()
            },
            b: Endpoint {
                qp: Some(flow.key.dest_qp),
                ..peer.end_of()
            },
            how: flow.how,
            path_mtu: flow.mtu.or(peer.mtu),
            forward: Some(flow.id),
            backward: Some(peer.id),
            cm: None,
        }
    }

    fn unpaired(flow: &Flow) -> Self {
        Self {
            a: flow.end_of(),
            b: Endpoint {
                ip: flow.key.dst,
                qp: Some(flow.key.dest_qp),
                initial_psn: None,
            },
            how: How::Unpaired,
            path_mtu: flow.mtu,
            forward: Some(flow.id),
            backward: None,
            cm: None,
        }
    }

    /// Whether the two ends could talk.
    #[must_use]
    pub fn established(&self) -> bool {
        self.cm
            .is_none_or(|life| matches!(life.state, CmState::Established | CmState::Disconnected))
    }
}
