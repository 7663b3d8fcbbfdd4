//! What a writer is to do.

use std::{net::Ipv6Addr, time::Duration};

use crate::rdma::ledger::Op;

use super::{
    error::{Step, VerbsError},
    exchange::Remote,
};

/// Operations that one run can hold in its ledger.
pub const MAX_COUNT: u32 = 1 << 24;
/// Memory that one side of a run registers at most, in bytes: both sides
/// together stay within 64 MiB.
pub const MAX_MEMORY: u32 = 32 << 20;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A run of a writer: from where, to where, what and how many.
#[derive(Debug, Clone)]
pub struct Plan {
    /// RDMA device, as `rxe0`.
    pub device: String,
    /// Port of the device, from 1.
    pub port: u8,
    /// Index of the source GID in the port's table.
    pub gid_index: u8,
    /// Source GID, as it stands at that index.
    pub gid: Ipv6Addr,
    /// Network device under the GID, where there is one.
    pub netdev: Option<String>,
    /// Path MTU in bytes; by default the port's active MTU. More than that is
    /// refused: rxe would accept it and then send nothing.
    pub mtu: Option<u32>,
    /// Operation.
    pub op: Op,
    /// How many.
    pub count: u32,
    /// Bytes of each; atomics act on 8 whatever this says.
    pub size: u32,
    /// Operations outstanding at most; 1 is one after the other.
    pub depth: u32,
    /// Time from one post to the next at least.
    pub interval: Duration,
    /// How long to wait for the next completion before giving up.
    pub timeout: Duration,
    /// Retransmissions after a timeout or a sequence NAK; at most 6, as 7
    /// means for ever on rxe.
    pub retry_count: u8,
    /// Local ACK timeout: 4.096 µs × 2^n (IBTA vol. 1, 11.2.5.2). 0 would wait
    /// for ever and is refused.
    pub ack_timeout: u8,
    /// Where the operations go.
    pub target: Target,
}

/// Where the operations of a [`Plan`] go.
#[derive(Debug, Clone)]
pub enum Target {
    /// The queue pair is connected to itself.
    Itself,
    /// A queue pair on another device (or port) of this machine.
    Local {
        /// RDMA device, as `rxe1`.
        device: String,
        /// Port of the device, from 1.
        port: u8,
        /// Index of the destination GID in that port's table.
        gid_index: u8,
        /// Destination GID.
        gid: Ipv6Addr,
        /// Network device under the GID, where there is one.
        netdev: Option<String>,
    },
    /// A `roce-sniff responder` on another host.
    Remote(Remote),
}

impl Plan {
    /// Ten RDMA WRITEs of 64 bytes to itself, one after the other.
    #[must_use]
    pub fn new(device: &str, port: u8, gid_index: u8, gid: Ipv6Addr) -> Self {
        Self {
            device: device.to_owned(),
            port,
            gid_index,
            gid,
            netdev: None,
            mtu: None,
            op: Op::Write,
            count: 10,
            size: 64,
            depth: 1,
            interval: Duration::ZERO,
            timeout: Duration::from_secs(5),
            retry_count: 6,
            ack_timeout: 14,
            target: Target::Itself,
        }
    }

    /// Checks what needs no device to be checked.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        let rules = [
            (self.count == 0, "a count of 0 does nothing".to_owned()),
            (
                self.count > MAX_COUNT,
                format!(
                    "a run holds at most {MAX_COUNT} operations, not {}",
                    self.count
                ),
            ),
            (
                self.depth == 0,
                "a depth of 0 would never post anything: 1 is one after the other".to_owned(),
            ),
            (
                self.retry_count > 6,
                format!(
                    "a retry count of {} is not 0 to 6 (7 would retry for ever)",
                    self.retry_count
                ),
            ),
            (
                !(1..=31).contains(&self.ack_timeout),
                format!(
                    "an ACK timeout of {} is not 1 to 31 (0 would wait for ever)",
                    self.ack_timeout
                ),
            ),
            (
                self.mtu.is_some_and(|mtu| mtu_code(mtu).is_none()),
                format!(
                    "a path MTU is 256, 512, 1024, 2048 or 4096 bytes, not {}",
                    self.mtu.unwrap_or(0)
                ),
            ),
            (
                self.interval > DAY,
                "an interval of more than a day is hardly meant".to_owned(),
            ),
            (
                self.timeout.is_zero(),
                "a timeout of 0 leaves no time for any completion".to_owned(),
            ),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(VerbsError::refused(&self.device, Step::Plan, why)),
            None => Ok(()),
        }
    }
}

/// The code of a path MTU in bytes (`enum ibv_mtu`).
pub(super) const fn mtu_code(bytes: u32) -> Option<u32> {
    match bytes {
        256 | 512 | 1024 | 2048 | 4096 => Some(bytes.trailing_zeros() - 7),
        _ => None,
    }
}

/// The bytes of a path MTU's code; `None` for a code that is not one.
pub(super) const fn mtu_bytes(code: u32) -> Option<u32> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_are_those_of_verbs() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(mtu_code(bytes), Some(code));
            assert_eq!(mtu_bytes(code), Some(bytes));
        }
        assert_eq!(
            (mtu_code(1500), mtu_bytes(0), mtu_bytes(6)),
            (None, None, None)
        );
    }

    type Spoil = fn(&mut Plan);

    #[test]
    fn plans_that_would_wait_for_ever_are_refused() {
        let plan = Plan::new("rxe0", 1, 1, Ipv6Addr::LOCALHOST);
        plan.check().unwrap();
        let spoils: [(Spoil, &str); 7] = [
            (|p| p.count = 0, "count of 0"),
            (|p| p.depth = 0, "depth of 0"),
            (|p| p.retry_count = 7, "retry for ever"),
            (|p| p.ack_timeout = 0, "wait for ever"),
            (|p| p.mtu = Some(1500), "not 1500"),
            (|p| p.interval = Duration::MAX, "more than a day"),
            (|p| p.timeout = Duration::ZERO, "timeout of 0"),
        ];
        for (spoil, words) in spoils {
            let mut spoilt = plan.clone();
            spoil(&mut spoilt);
            let error = spoilt.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
