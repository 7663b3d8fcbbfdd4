//! What a message of the communication manager says about a connection,
//! without its bytes.

use crate::wire::{
    cm::{CmMessage, Role},
    types::{Psn, QpNumber},
};

/// Kinds of messages that matter to a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmKind {
    /// Request for a connection.
    Req,
    /// Reply to it.
    Rep,
    /// Ready to use.
    Rtu,
    /// Rejection of a request or a reply.
    Rej,
    /// Request to disconnect.
    Dreq,
    /// Reply to that.
    Drep,
    /// Any other: MRA, SIDR, alternate paths.
    Other,
}

/// A message of the communication manager (IBTA vol. 1, chapter 12), as far
/// as it was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmRecord {
    /// Which message.
    pub kind: CmKind,
    /// Communication ID of the sender.
    pub local_id: u32,
    /// Communication ID of the receiver; `None` in a REQ.
    pub remote_id: Option<u32>,
    /// Service asked for, in a REQ.
    pub service_id: Option<u64>,
    /// The sender's queue pair, in REQ and REP.
    pub qpn: Option<QpNumber>,
    /// First PSN that the sender expects to *receive*, in REQ and REP: the
    /// other side begins with it (Linux `cm.c`).
    pub starting_psn: Option<Psn>,
    /// Path MTU in bytes, in a REQ.
    pub path_mtu: Option<u16>,
    /// Reason of a REJ.
    pub reason: Option<u16>,
}

impl CmRecord {
    /// Takes down what matters of a message.
    #[must_use]
    pub fn new(cm: &CmMessage<'_>) -> Self {
        let kind = match cm.layout().map_or("", |layout| layout.name) {
            "REQ" => CmKind::Req,
            "REP" => CmKind::Rep,
            "RTU" => CmKind::Rtu,
            "REJ" => CmKind::Rej,
            "DREQ" => CmKind::Dreq,
            "DREP" => CmKind::Drep,
            _ => CmKind::Other,
        };
        let carries_qp = matches!(kind, CmKind::Req | CmKind::Rep);
        Self {
            kind,
            local_id: cm.get(Role::LocalCommId).unwrap_or(0) as u32,
            remote_id: cm.get(Role::RemoteCommId).map(|id| id as u32),
            service_id: cm.get(Role::ServiceId),
            qpn: cm.qpn().filter(|_| carries_qp),
            starting_psn: cm.starting_psn().filter(|_| carries_qp),
            path_mtu: cm.path_mtu(),
            reason: cm.get(Role::RejectReason).map(|reason| reason as u16),
        }
    }
}
