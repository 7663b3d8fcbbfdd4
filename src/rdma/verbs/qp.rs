//! Reliable connected queue pairs: their states, and posting to them.
#![allow(unsafe_code)]

use std::{
    net::Ipv6Addr,
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_sys::{
    atomic_t, ibv_create_qp, ibv_destroy_qp, ibv_gid, ibv_modify_qp, ibv_post_recv, ibv_post_send,
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_query_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t,
};

use crate::{rdma::ledger::Op, wire::types::Psn};

use super::{
    device::{Cq, Mr, Pd, access},
    error::{Fault, Step},
    plan::mtu_code,
};

/// A reliable connected queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    ptr: NonNull<ibv_qp>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    /// Held, so that the domain outlives the queue pair.
    _pd: Arc<Pd>,
}

// SAFETY: every function of libibverbs is thread-safe, posting included, and
// the pointer is owned by this value.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

/// State of a queue pair (`enum ibv_qp_state`). Every value is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QpState(pub u32);

impl QpState {
    pub const fn words(self) -> &'static str {
        match self.0 {
            0 => "RESET",
            1 => "INIT",
            2 => "RTR",
            3 => "RTS",
            4 => "SQD",
            5 => "SQE",
            6 => "ERR",
            _ => "unknown",
        }
    }
}

/// Everything a queue pair must know of its connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub port: u8,
    pub gid_index: u8,
    pub dest_gid: Ipv6Addr,
    pub dest_qp: u32,
    /// Bytes.
    pub mtu: u32,
    /// First sequence number that this side sends.
    pub send_psn: Psn,
    /// First sequence number that it expects.
    pub receive_psn: Psn,
    pub retry_count: u8,
    pub ack_timeout: u8,
    /// READs and atomics outstanding at once, in either direction.
    pub reads: Reads,
    /// Whether the device knows atomics.
    pub atomics: bool,
}

/// READs and atomics at once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reads {
    /// That this side has outstanding.
    pub issued: u8,
    /// That this side serves.
    pub served: u8,
}

/// A step of the state machine with the attributes that it must set (IBTA
/// vol. 1, 11.2.5.2; `qp_state_table` in drivers/infiniband/core/verbs.c).
struct Transition {
    to: ibv_qp_state::Type,
    step: Step,
    mask: u32,
}

const TRANSITIONS: [Transition; 3] = [
    Transition {
        to: ibv_qp_state::IBV_QPS_INIT,
        step: Step::ToInit,
        mask: ibv_qp_attr_mask::IBV_QP_STATE.0
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0
            | ibv_qp_attr_mask::IBV_QP_PORT.0
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0,
    },
    Transition {
        to: ibv_qp_state::IBV_QPS_RTR,
        step: Step::ToRtr,
        mask: ibv_qp_attr_mask::IBV_QP_STATE.0
            | ibv_qp_attr_mask::IBV_QP_AV.0
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU.0
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN.0
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN.0
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0,
    },
    Transition {
        to: ibv_qp_state::IBV_QPS_RTS,
        step: Step::ToRts,
        mask: ibv_qp_attr_mask::IBV_QP_STATE.0
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT.0
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN.0
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
    },
];

/// Code of the time that a peer waits after an RNR NAK: 10.24 ms (IBTA vol. 1,
/// table 45). With [`RNR_RETRIES`] a responder that is slow to post receives
/// has 60 ms.
const RNR_TIMER: u8 = 20;
/// Tries after an RNR NAK; 7 would be for ever.
const RNR_RETRIES: u8 = 6;
/// Routers that a packet may cross, as in an IPv4 header.
const HOP_LIMIT: u8 = 64;

impl Path {
    /// Attributes for a transition; which of them count, its mask says.
    fn attributes(&self, to: ibv_qp_state::Type) -> ibv_qp_attr {
        // SAFETY: integers and unions of integers, for which zero is a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = to;
        attr.port_num = self.port;
        attr.qp_access_flags = access(self.atomics);
        // Bytes that are no MTU were refused with the plan; 0 is refused by
        // the kernel.
        attr.path_mtu = mtu_code(self.mtu).unwrap_or(0);
        attr.dest_qp_num = self.dest_qp;
        attr.rq_psn = self.receive_psn.get();
        attr.sq_psn = self.send_psn.get();
        attr.max_rd_atomic = self.reads.issued;
        attr.max_dest_rd_atomic = self.reads.served;
        attr.min_rnr_timer = RNR_TIMER;
        attr.timeout = self.ack_timeout;
        attr.retry_cnt = self.retry_count;
        attr.rnr_retry = RNR_RETRIES;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = self.port;
        attr.ah_attr.grh.dgid = ibv_gid {
            raw: self.dest_gid.octets(),
        };
        attr.ah_attr.grh.sgid_index = self.gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        attr
    }
}

/// How many work requests a queue pair holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub sends: u32,
    pub receives: u32,
}

/// A stretch of registered memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    va: u64,
    len: u32,
    lkey: u32,
}

impl Stretch {
    /// `len` bytes of `memory` from `offset` on.
    pub fn of(memory: &Mr, offset: usize, len: u32) -> Self {
        assert!(
            offset + len as usize <= memory.len(),
            "a stretch outside of the region"
        );
        Self {
            va: memory.va() + offset as u64,
            len,
            lkey: memory.lkey(),
        }
    }

    const fn sge(&self) -> ibv_sge {
        ibv_sge {
            addr: self.va,
            length: self.len,
            lkey: self.lkey,
        }
    }
}

/// An operation to post.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub id: u64,
    pub op: Op,
    /// Where the bytes come from or, for READs and atomics, go to.
    pub local: Stretch,
    /// Remote address and key; not looked at for a SEND.
    pub va: u64,
    pub rkey: u32,
    pub immediate: u32,
    /// What an atomic adds or compares with.
    pub add_or_compare: u64,
    /// What a compare and swap puts in place.
    pub swap: u64,
}

/// Operations by their verbs opcodes.
const OPCODES: [(Op, ibv_wr_opcode::Type); 6] = [
    (Op::Write, ibv_wr_opcode::IBV_WR_RDMA_WRITE),
    (Op::WriteImm, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM),
    (Op::Send, ibv_wr_opcode::IBV_WR_SEND),
    (Op::Read, ibv_wr_opcode::IBV_WR_RDMA_READ),
    (Op::FetchAdd, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD),
    (Op::CmpSwap, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP),
];

impl Qp {
    /// Creates a queue pair, in state RESET, with queues of its own for what
    /// completes.
    pub fn new(pd: &Arc<Pd>, room: Room) -> Result<Self, Fault> {
        let send_cq = Cq::new(pd.context(), room.sends.max(1))?;
        let recv_cq = Cq::new(pd.context(), room.receives.max(1))?;
        // SAFETY: integers and pointers, for which zero is a value.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        init.send_cq = send_cq.as_ptr();
        init.recv_cq = recv_cq.as_ptr();
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        init.sq_sig_all = 1;
        init.cap.max_send_wr = room.sends.max(1);
        init.cap.max_recv_wr = room.receives.max(1);
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        // SAFETY: domain and completion queues are alive, and are held for as
        // long as the queue pair is.
        let qp = unsafe { ibv_create_qp(pd.as_ptr(), &raw mut init) };
        Ok(Self {
            ptr: NonNull::new(qp).ok_or_else(|| Fault::last(Step::CreateQp))?,
            send_cq,
            recv_cq,
            _pd: Arc::clone(pd),
        })
    }

    pub const fn number(&self) -> u32 {
        // SAFETY: created and not yet destroyed; the number never changes.
        unsafe { (*self.ptr.as_ptr()).qp_num }
    }

    pub const fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    pub const fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// Takes the queue pair from RESET to RTS.
    pub fn connect(&self, path: &Path) -> Result<(), Fault> {
        TRANSITIONS.iter().try_for_each(|transition| {
            self.modify(
                transition.step,
                path.attributes(transition.to),
                transition.mask as i32,
            )
        })
    }

    /// Takes the queue pair from RESET to RTS with the attributes that a
    /// handshake found (`found`, with their mask), but for what `path` says
    /// better. Returns the path as it is then.
    pub fn follow(
        &self,
        path: &Path,
        found: impl Fn(Step, ibv_qp_state::Type) -> Result<(ibv_qp_attr, i32), Fault>,
    ) -> Result<Path, Fault> {
        let mut taken = *path;
        for transition in &TRANSITIONS {
            let own = path.attributes(transition.to);
            let (mut attr, mask) = found(transition.step, transition.to)?;
            attr.qp_access_flags = own.qp_access_flags;
            attr.path_mtu = own.path_mtu;
            attr.min_rnr_timer = own.min_rnr_timer;
            attr.timeout = own.timeout;
            attr.retry_cnt = own.retry_cnt;
            attr.rnr_retry = own.rnr_retry;
            match transition.step {
                Step::ToRtr => {
                    taken.gid_index = attr.ah_attr.grh.sgid_index;
                    taken.dest_qp = attr.dest_qp_num;
                    taken.receive_psn = Psn::new(attr.rq_psn);
                }
                Step::ToRts => taken.send_psn = Psn::new(attr.sq_psn),
                _ => {}
            }
            self.modify(transition.step, attr, mask)?;
        }
        Ok(taken)
    }

    /// Sets the attributes that `mask` names.
    fn modify(&self, step: Step, mut attr: ibv_qp_attr, mask: i32) -> Result<(), Fault> {
        // SAFETY: the queue pair is alive, `attr` outlives the call.
        let returned = unsafe { ibv_modify_qp(self.ptr.as_ptr(), &raw mut attr, mask) };
        Fault::check(step, returned)
    }

    /// The state the device says it is in.
    pub fn state(&self) -> Option<QpState> {
        // SAFETY: integers, pointers and unions of integers: zero is a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the queue pair is alive, both structures outlive the call.
        let returned = unsafe {
            ibv_query_qp(
                self.ptr.as_ptr(),
                &raw mut attr,
                ibv_qp_attr_mask::IBV_QP_STATE.0 as i32,
                &raw mut init,
            )
        };
        (returned == 0).then_some(QpState(attr.qp_state))
    }

    /// Posts one operation. After a failure the queue may hold it all the
    /// same: destroy the queue pair.
    pub fn post(&self, request: &Request) -> Result<(), Fault> {
        let mut sge = request.local.sge();
        // SAFETY: integers, pointers and unions of such: zero is a value.
        let mut work: ibv_send_wr = unsafe { std::mem::zeroed() };
        work.wr_id = request.id;
        work.opcode = OPCODES
            .iter()
            .find(|(op, _)| *op == request.op)
            .map_or(ibv_wr_opcode::IBV_WR_RDMA_WRITE, |(_, opcode)| *opcode);
        work.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        if sge.length > 0 {
            work.sg_list = &raw mut sge;
            work.num_sge = 1;
        }
        if request.op == Op::WriteImm {
            work.imm_data_invalidated_rkey_union.imm_data = request.immediate.to_be();
        }
        if request.op.is_atomic() {
            work.wr.atomic = atomic_t {
                remote_addr: request.va,
                compare_add: request.add_or_compare,
                swap: request.swap,
                rkey: request.rkey,
            };
        } else if request.op.names_memory() {
            work.wr.rdma = rdma_t {
                remote_addr: request.va,
                rkey: request.rkey,
            };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the request and its list outlive
        // the call, which copies them; the memory is registered, and the
        // device itself checks the key at every access.
        let returned = unsafe { ibv_post_send(self.ptr.as_ptr(), &raw mut work, &raw mut bad) };
        Fault::check(Step::PostSend, returned)
    }

    /// Posts a receive, for a SEND into `into` or for immediate data alone.
    pub fn post_receive(&self, id: u64, into: Option<Stretch>) -> Result<(), Fault> {
        let mut sge = into.filter(|stretch| stretch.len > 0).map(|s| s.sge());
        let mut work = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        if let Some(sge) = &mut sge {
            work.sg_list = sge;
            work.num_sge = 1;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post`.
        let returned = unsafe { ibv_post_recv(self.ptr.as_ptr(), &raw mut work, &raw mut bad) };
        Fault::check(Step::PostReceive, returned)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and nobody else knows the pointer.
        unsafe { ibv_destroy_qp(self.ptr.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_complete_for_each_transition() {
        let path = Path {
            port: 1,
            gid_index: 3,
            dest_gid: "::ffff:10.0.0.2".parse().unwrap(),
            dest_qp: 0x12,
            mtu: 1024,
            send_psn: Psn::new(7),
            receive_psn: Psn::new(9),
            retry_count: 6,
            ack_timeout: 14,
            reads: Reads {
                issued: 4,
                served: 5,
            },
            atomics: true,
        };
        let rtr = path.attributes(ibv_qp_state::IBV_QPS_RTR);
        assert_eq!((rtr.path_mtu, rtr.rq_psn, rtr.dest_qp_num), (3, 9, 0x12));
        assert_eq!(rtr.ah_attr.grh.sgid_index, 3);
        let rts = path.attributes(ibv_qp_state::IBV_QPS_RTS);
        assert_eq!((rts.sq_psn, rts.retry_cnt, rts.timeout), (7, 6, 14));
        let all = TRANSITIONS.iter().fold(0, |all, t| all | t.mask);
        assert_eq!(
            all.count_ones(),
            15,
            "no attribute is set twice but the state"
        );
    }

    #[test]
    fn every_operation_has_an_opcode() {
        for (_, op) in Op::ALL {
            assert!(OPCODES.iter().any(|(known, _)| *known == op));
        }
    }
}
