//! The ledger: what a writer posted, what became of it, and what it means on
//! the wire. Plain data, so that it can be reconciled and tested anywhere.

use std::{fmt, net::Ipv6Addr};

use crate::wire::types::{Psn, QpNumber, RKey, VirtualAddr};

/// An operation that a writer can drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data; the responder posts receives.
    WriteImm,
    /// SEND; the responder posts receives.
    Send,
    /// RDMA READ.
    Read,
    /// Fetch and add of 8 bytes.
    FetchAdd,
    /// Compare and swap of 8 bytes.
    CmpSwap,
}

impl Op {
    /// All operations with the word for each.
    pub const ALL: [(&'static str, Self); 6] = [
        ("write", Self::Write),
        ("write-imm", Self::WriteImm),
        ("send", Self::Send),
        ("read", Self::Read),
        ("fetch-add", Self::FetchAdd),
        ("cmp-swap", Self::CmpSwap),
    ];

    /// The word for it on the command line and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Send => "send",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
            Self::CmpSwap => "cmp-swap",
        }
    }

    /// The specification's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA WRITE",
            Self::WriteImm => "RDMA WRITE with Immediate",
            Self::Send => "SEND",
            Self::Read => "RDMA READ",
            Self::FetchAdd => "FetchAdd",
            Self::CmpSwap => "CmpSwap",
        }
    }

    /// The specification's name for several.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Write => "RDMA WRITEs",
            Self::WriteImm => "RDMA WRITEs with Immediate",
            Self::Send => "SENDs",
            Self::Read => "RDMA READs",
            Self::FetchAdd => "FetchAdds",
            Self::CmpSwap => "CmpSwaps",
        }
    }

    /// Atomics act on 8 bytes, whatever size was asked for.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }

    /// Whether the request addresses memory of the responder (a SEND does
    /// not).
    #[must_use]
    pub const fn names_memory(self) -> bool {
        !matches!(self, Self::Send)
    }

    /// Packets of one operation of `len` bytes at `mtu` bytes a packet.
    #[must_use]
    pub const fn packets(self, len: u32, mtu: u32) -> PacketNeed {
        let payload = if len == 0 { 1 } else { len.div_ceil(mtu) };
        match self {
            Self::Read => PacketNeed {
                requests: 1,
                responses: payload,
            },
            Self::FetchAdd | Self::CmpSwap => PacketNeed {
                requests: 1,
                responses: 1,
            },
            Self::Write | Self::WriteImm | Self::Send => PacketNeed {
                requests: payload,
                responses: 1,
            },
        }
    }

    /// Packet sequence numbers that one operation takes up: its request
    /// packets, or for a READ its response packets (IBTA vol. 1, 9.7.2).
    #[must_use]
    pub const fn psn_span(self, len: u32, mtu: u32) -> u32 {
        let need = self.packets(len, mtu);
        if need.requests > need.responses {
            need.requests
        } else {
            need.responses
        }
    }
}

/// Packets that an operation needs at least, without loss. Responders may
/// answer several operations with one acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketNeed {
    /// Packets from requester to responder.
    pub requests: u32,
    /// Packets back: acknowledgements or READ responses.
    pub responses: u32,
}

/// Status of a work completion (`enum ibv_wc_status`). Every value is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WcStatus(pub u32);

impl WcStatus {
    /// Completed.
    pub const SUCCESS: Self = Self(0);
    /// Flushed: the queue pair had already failed.
    pub const FLUSHED: Self = Self(5);
    /// The peer never answered.
    pub const RETRY_EXCEEDED: Self = Self(12);

    /// The status in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self.0 {
            0 => "success",
            1 => "local length error",
            2 => "local QP operation error",
            3 => "local EE context error",
            4 => "local protection error",
            5 => "flushed",
            6 => "memory window bind error",
            7 => "bad response",
            8 => "local access error",
            9 => "remote invalid request",
            10 => "remote access error",
            11 => "remote operation error",
            12 => "retry exceeded",
            13 => "RNR retry exceeded",
            14 => "local RDD violation",
            15 => "remote invalid RD request",
            16 => "remote aborted",
            17 => "invalid EE context number",
            18 => "invalid EE context state",
            19 => "fatal error",
            20 => "response timeout",
            21 => "general error",
            22 => "tag matching error",
            23 => "tag matching rendezvous incomplete",
            _ => "unknown status",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

/// How one work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Status of the completion.
    pub status: WcStatus,
    /// From posting to polling the completion, in nanoseconds.
    pub latency_ns: u64,
}

/// One work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posted {
    /// Number, from 1.
    pub n: u32,
    /// First packet sequence number.
    pub psn: Psn,
    /// Packet sequence numbers it takes up.
    pub psn_span: u32,
    /// Remote address; 0 for a SEND.
    pub va: VirtualAddr,
    /// Key of the remote memory; 0 for a SEND.
    pub rkey: RKey,
    /// Bytes.
    pub len: u32,
    /// How it ended; `None` when no completion came before the deadline.
    pub completion: Option<Completion>,
}

/// Where the writer's operations go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// The queue pair is connected to itself.
    Itself,
    /// A queue pair on another device of this machine.
    LocalDevice(String),
    /// A responder on another host.
    Host(String),
}

/// The path that the queue pair uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// RDMA device, as `rxe0`.
    pub device: String,
    /// Port of the device, from 1.
    pub port: u8,
    /// Network device under the GID in use, where there is one.
    pub netdev: Option<String>,
    /// Index of the source GID.
    pub gid_index: u8,
    /// Source GID.
    pub gid: Ipv6Addr,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Queue pair of the writer; acknowledgements go to it.
    pub qp: QpNumber,
    /// GID of the destination.
    pub dest_gid: Ipv6Addr,
    /// Queue pair of the destination.
    pub dest_qp: QpNumber,
    /// Where the operations go.
    pub peer: Peer,
}

/// Everything a writer did.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// The path; `None` when no queue pair got as far as being connected.
    pub endpoint: Option<Endpoint>,
    /// Operation.
    pub op: Op,
    /// Work requests the user asked for.
    pub wanted: u32,
    /// Work requests that were posted.
    pub posted: Vec<Posted>,
    /// Whether the memory holds afterwards what it should; `None` when it was
    /// not or could not be checked.
    pub payload_verified: Option<bool>,
    /// Why the run ended before everything was done, in words: the step that
    /// failed, what the system said, the likely cause.
    pub stopped: Option<String>,
    /// From the first post to the last completion, in nanoseconds.
    pub elapsed_ns: u64,
}

impl Ledger {
    /// Work requests that completed with success.
    #[must_use]
    pub fn completed(&self) -> u32 {
        self.count(|completion| completion.is_some_and(|c| c.status == WcStatus::SUCCESS))
    }

    /// Work requests for which no completion came.
    #[must_use]
    pub fn silent(&self) -> u32 {
        self.count(|completion| completion.is_none())
    }

    fn count(&self, holds: impl Fn(Option<Completion>) -> bool) -> u32 {
        let hits = self.posted.iter().filter(|posted| holds(posted.completion));
        hits.count() as u32
    }

    /// Failed work requests by status, flushed ones last.
    #[must_use]
    pub fn failures(&self) -> Vec<(WcStatus, u32)> {
        let mut failures: Vec<(WcStatus, u32)> = Vec::new();
        for completion in self.posted.iter().filter_map(|posted| posted.completion) {
            if completion.status == WcStatus::SUCCESS {
                continue;
            }
            match failures.iter_mut().find(|(s, _)| *s == completion.status) {
                Some((_, count)) => *count += 1,
                None => failures.push((completion.status, 1)),
            }
        }
        failures.sort_by_key(|(status, _)| (*status == WcStatus::FLUSHED, *status));
        failures
    }

    /// Packets that what was posted needs, without loss.
    #[must_use]
    pub fn need(&self) -> PacketNeed {
        let mtu = self.endpoint.as_ref().map_or(1024, |e| e.mtu);
        self.posted
            .iter()
            .fold(PacketNeed::default(), |sum, posted| {
                let need = self.op.packets(posted.len, mtu);
                PacketNeed {
                    requests: sum.requests + need.requests,
                    responses: sum.responses + need.responses,
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_sequence_numbers_of_operations() {
        let need = |op: Op, len| {
            let need = op.packets(len, 1024);
            (need.requests, need.responses, op.psn_span(len, 1024))
        };
        assert_eq!(need(Op::Write, 64), (1, 1, 1));
        assert_eq!(need(Op::Write, 0), (1, 1, 1), "an empty write is a packet");
        assert_eq!(need(Op::Write, 65536), (64, 1, 64));
        assert_eq!(need(Op::Send, 1025), (2, 1, 2));
        assert_eq!(need(Op::Read, 8192), (1, 8, 8));
        assert_eq!(need(Op::FetchAdd, 8), (1, 1, 1));
    }
}
