//! What both ends of a run must agree on: which bytes go where, and what they
//! are.
//!
//! Memory is divided into slots of one operation each. There are fewer slots
//! than operations in long runs; operation `n` (from 0) then uses slot
//! `n mod slots`, after what was there has been checked.

use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};

use crate::rdma::ledger::Op;

use super::{memory::Memory, plan::MAX_MEMORY};

/// Operations, and the memory they act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub op: Op,
    pub count: u32,
    /// Bytes of each operation; 8 for atomics.
    pub size: u32,
    /// Operations that have memory of their own at the same time.
    pub slots: u32,
    /// Makes the bytes of this run different from those of any other.
    pub seed: u64,
}

/// [`Job`] as it travels: the operation as a word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobRecord {
    op: String,
    count: u32,
    size: u32,
    slots: u32,
    seed: u64,
}

impl Job {
    /// A job with as many slots as memory allows.
    ///
    /// # Errors
    /// Says what does not fit.
    pub fn new(op: Op, count: u32, size: u32, depth: u32) -> Result<Self, String> {
        let size = if op.is_atomic() { 8 } else { size };
        if size > MAX_MEMORY {
            return Err(format!(
                "an operation of {size} bytes is over the {MAX_MEMORY} this program registers: \
                 ask for a smaller --size"
            ));
        }
        let fit = MAX_MEMORY / stride(size);
        let slots = fit.min(count).max(1);
        if depth.min(count) > slots {
            return Err(format!(
                "{depth} operations of {size} bytes at once need more than the {MAX_MEMORY} bytes \
                 this program registers: ask for --depth {fit} or less"
            ));
        }
        Ok(Self {
            op,
            count,
            size,
            slots,
            seed: random(),
        })
    }

    /// Slot of operation `n`.
    pub const fn slot(&self, n: u32) -> u32 {
        n % self.slots
    }

    /// Where the bytes of operation `n` are on the requester's side.
    pub fn local_offset(&self, n: u32) -> usize {
        self.slot(n) as usize * stride(self.size) as usize
    }

    /// Where operation `n` goes on the responder's side. Atomics all act on
    /// one word, so that each must see what the one before left.
    pub fn remote_offset(&self, n: u32) -> usize {
        if self.op.is_atomic() {
            0
        } else {
            self.local_offset(n)
        }
    }

    /// Bytes of memory on the requester's side.
    pub fn local_len(&self) -> usize {
        self.slots as usize * stride(self.size) as usize
    }

    /// Bytes of memory on the responder's side.
    pub fn remote_len(&self) -> usize {
        if self.op.is_atomic() {
            8
        } else {
            self.local_len()
        }
    }

    /// The eight bytes at `8 * index` of what operation `n` carries. None of
    /// them is ever 0, so that untouched memory never passes for written.
    pub fn word(&self, n: u32, index: u64) -> u64 {
        // The responder of READs fills its slots once.
        let key = if self.op == Op::Read { self.slot(n) } else { n };
        mix(self.seed ^ (u64::from(key) << 32) ^ index) | 0x0101_0101_0101_0101
    }

    /// What the word that atomics act on holds before operation `n`.
    pub const fn before_atomic(&self, n: u32) -> u64 {
        self.seed.wrapping_add(n as u64)
    }

    /// Whether `memory` holds, from `offset` on, the bytes of operation `n`.
    pub fn is_in(&self, memory: &Memory, offset: usize, n: u32) -> bool {
        memory.holds(offset, self.size as usize, |index| self.word(n, index))
    }

    /// Puts the bytes of operation `n` into `memory` at `offset`.
    pub fn put(&self, memory: &mut Memory, offset: usize, n: u32) {
        memory.fill(offset, self.size as usize, |index| self.word(n, index));
    }

    /// Whether a responder's memory holds what it should after the first
    /// `completed` of `posted` operations completed at the requester; `None`
    /// when it can tell nothing. What later operations have overwritten, or
    /// begun to, is not looked at.
    pub fn is_done(&self, memory: &Memory, completed: u32, posted: u32) -> Option<bool> {
        if completed == 0 || completed > posted || posted > self.count {
            return None;
        }
        match self.op {
            // The requester's memory tells.
            Op::Read => None,
            // One that failed at the requester may have been done.
            Op::FetchAdd | Op::CmpSwap => {
                let done = memory.read(0).wrapping_sub(self.before_atomic(completed));
                Some(done <= u64::from(posted - completed))
            }
            Op::Write | Op::WriteImm | Op::Send => {
                let mut kept = posted.saturating_sub(self.slots)..completed;
                Some(kept.all(|n| self.is_in(memory, self.remote_offset(n), n)))
            }
        }
    }

    /// Immediate data of operation `n`: its number from 1.
    pub const fn immediate(n: u32) -> u32 {
        n.wrapping_add(1)
    }

    /// Whether each operation takes up a receive.
    pub const fn takes_receives(&self) -> bool {
        matches!(self.op, Op::Send | Op::WriteImm)
    }

    pub fn record(&self) -> JobRecord {
        JobRecord {
            op: self.op.word().to_owned(),
            count: self.count,
            size: self.size,
            slots: self.slots,
            seed: self.seed,
        }
    }
}

impl TryFrom<&JobRecord> for Job {
    type Error = String;

    /// Checks a peer's job: nothing it says may make this side register more
    /// than its limit.
    fn try_from(record: &JobRecord) -> Result<Self, String> {
        let op = Op::ALL
            .iter()
            .find(|(word, _)| *word == record.op)
            .map(|(_, op)| *op)
            .ok_or_else(|| format!("unknown operation {:?}", record.op))?;
        let job = Self {
            op,
            count: record.count,
            size: record.size,
            slots: record.slots,
            seed: record.seed,
        };
        if job.count == 0 || job.slots == 0 || job.slots > job.count {
            return Err(format!(
                "{} slots for {} operations make no sense",
                job.slots, job.count
            ));
        }
        if job.op.is_atomic() && job.size != 8 {
            return Err(format!("atomics act on 8 bytes, not {}", job.size));
        }
        let memory = u64::from(job.slots) * u64::from(job.size).next_multiple_of(8);
        if memory > u64::from(MAX_MEMORY) {
            return Err(format!(
                "{memory} bytes of memory are over the limit of {MAX_MEMORY}"
            ));
        }
        Ok(job)
    }
}

/// Bytes from one slot to the next: whole words, and never none.
const fn stride(size: u32) -> u32 {
    if size == 0 {
        8
    } else {
        size.next_multiple_of(8)
    }
}

/// The finaliser of `SplitMix64`: every bit of the result depends on every bit
/// of the argument.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A random number: the standard library seeds its hash maps from the system's
/// generator. Good for starting sequence numbers, not for secrets.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_only_where_memory_runs_out() {
        let job = Job::new(Op::Write, 10, 64, 1).unwrap();
        assert_eq!((job.slots, job.local_len()), (10, 640));
        assert_eq!(job.remote_offset(9), 576);
        let job = Job::new(Op::Write, 1000, 1 << 20, 16).unwrap();
        assert_eq!((job.slots, job.remote_len()), (32, 32 << 20));
        assert_eq!(job.remote_offset(33), 1 << 20);
        let job = Job::new(Op::FetchAdd, 100, 4096, 16).unwrap();
        assert_eq!((job.size, job.local_len(), job.remote_len()), (8, 800, 8));
        assert_eq!((job.local_offset(3), job.remote_offset(3)), (24, 0));
        assert_eq!(Job::new(Op::Write, 3, 0, 1).unwrap().local_len(), 24);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        let error = Job::new(Op::Write, 100, 4 << 20, 16).unwrap_err();
        assert!(error.ends_with("--depth 8 or less"), "{error}");
        Job::new(Op::Write, 4, 4 << 20, 16).unwrap();
        Job::new(Op::Write, 1, u32::MAX, 1).unwrap_err();
    }

    #[test]
    fn bytes_differ_between_operations_and_are_never_zero() {
        let job = Job::new(Op::Write, 1000, 16, 1).unwrap();
        let mut words: Vec<u64> = (0..1000)
            .flat_map(|n| [job.word(n, 0), job.word(n, 1)])
            .collect();
        assert!(
            words
                .iter()
                .all(|w| w.to_ne_bytes().iter().all(|b| *b != 0))
        );
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 2000);
    }

    #[test]
    fn memory_is_held_against_what_completed() {
        // Two slots for five operations.
        let job = Job {
            count: 5,
            slots: 2,
            ..Job::new(Op::Write, 2, 100, 1).unwrap()
        };
        let mut memory = Memory::new(job.remote_len()).unwrap();
        assert_eq!(job.is_done(&memory, 0, 0), None, "nothing was done");
        assert_eq!(job.is_done(&memory, 2, 2), Some(false), "nothing arrived");
        for n in 0..4 {
            job.put(&mut memory, job.remote_offset(n), n);
        }
        assert_eq!(job.is_done(&memory, 4, 4), Some(true));
        // The fifth failed, and may have torn what the third had left.
        memory.fill(job.remote_offset(4), 8, |_| 0);
        assert_eq!(job.is_done(&memory, 4, 5), Some(true));
        memory.fill(job.remote_offset(3), 8, |_| 0);
        assert_eq!(job.is_done(&memory, 4, 5), Some(false));
        assert_eq!(job.is_done(&memory, 5, 4), None, "nonsense of a peer");
        assert_eq!(job.is_done(&memory, u32::MAX, u32::MAX), None);
    }

    #[test]
    fn an_atomic_that_failed_may_have_been_done() {
        let job = Job::new(Op::FetchAdd, 5, 8, 1).unwrap();
        let mut memory = Memory::new(job.remote_len()).unwrap();
        for (value, good) in [(2, false), (3, true), (4, true), (5, false)] {
            memory.fill(0, 8, |_| job.before_atomic(value));
            assert_eq!(job.is_done(&memory, 3, 4), Some(good), "{value}");
        }
    }

    #[test]
    fn a_peers_job_cannot_ask_for_more_than_the_limit() {
        let job = Job::new(Op::Send, 100, 1 << 20, 8).unwrap();
        assert_eq!(Job::try_from(&job.record()), Ok(job));
        let spoilt = |spoil: fn(&mut JobRecord)| {
            let mut record = job.record();
            spoil(&mut record);
            Job::try_from(&record).unwrap_err()
        };
        assert!(spoilt(|r| r.op = "erase".into()).contains("unknown operation"));
        assert!(spoilt(|r| r.slots = 0).contains("make no sense"));
        assert!(spoilt(|r| r.slots = 101).contains("make no sense"));
        assert!(spoilt(|r| r.size = u32::MAX).contains("over the limit"));
        assert!(spoilt(|r| r.op = "cmp-swap".into()).contains("8 bytes"));
    }
}
