//! The responder's half of a run: the memory that operations act on, the
//! receives they take up, and the check of what they left behind.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::rdma::ledger::{Op, WcStatus};

use super::{
    device::{Done, Mr, POLLED, Pd},
    error::Fault,
    exchange::Window,
    job::Job,
    qp::{Qp, Stretch},
};

/// How long the last receives may take to be found.
const LAST_RECEIVES: Duration = Duration::from_millis(200);

/// Memory and receives of a responder.
#[derive(Debug)]
pub(super) struct Served {
    job: Job,
    memory: Mr,
    /// Receives posted so far.
    posted: u32,
    /// Receives posted at once at most.
    window: u32,
    received: u32,
    /// Operations whose bytes, length or immediate data were wrong.
    wrong: u32,
}

impl Served {
    /// Registers and fills the memory. `queue` is the most receives that the
    /// device holds.
    pub fn new(pd: &Arc<Pd>, job: Job, atomics: bool) -> Result<Self, Fault> {
        let mut memory = Mr::new(pd, job.remote_len(), atomics)?;
        if job.op == Op::Read {
            for slot in 0..job.slots {
                job.put(memory.memory_mut(), job.remote_offset(slot), slot);
            }
        }
        if job.op.is_atomic() {
            memory.memory_mut().fill(0, 8, |_| job.before_atomic(0));
        }
        Ok(Self {
            job,
            memory,
            posted: 0,
            window: 0,
            received: 0,
            wrong: 0,
        })
    }

    /// Receives that a queue pair for this job should hold, of `most` that the
    /// device allows and with `depth` operations outstanding.
    pub fn receives(job: &Job, depth: u32, most: u32) -> u32 {
        if job.takes_receives() {
            depth
                .saturating_mul(2)
                .max(64)
                .min(job.slots)
                .min(most)
                .max(1)
        } else {
            0
        }
    }

    /// The memory as the peer must know it.
    pub fn window(&self) -> Window {
        Window {
            va: self.memory.va(),
            rkey: self.memory.rkey(),
            len: self.memory.len() as u64,
        }
    }

    pub const fn received(&self) -> u32 {
        self.received
    }

    /// Posts the first `window` receives: before the peer may send.
    pub fn open(&mut self, qp: &Qp, window: u32) -> Result<(), Fault> {
        self.window = window;
        while self.posted < window.min(self.job.count) {
            self.post(qp)?;
        }
        Ok(())
    }

    fn post(&mut self, qp: &Qp) -> Result<(), Fault> {
        let n = self.posted;
        let into = (self.job.op == Op::Send)
            .then(|| Stretch::of(&self.memory, self.job.remote_offset(n), self.job.size));
        qp.post_receive(u64::from(n), into)?;
        self.posted += 1;
        Ok(())
    }

    /// Takes what was received, checks it, and posts receives anew. Returns
    /// how many were received.
    pub fn poll(&mut self, qp: &Qp) -> Result<u32, Fault> {
        if !self.job.takes_receives() {
            return Ok(0);
        }
        let mut done = [Done::EMPTY; POLLED];
        let count = qp.recv_cq().poll(&mut done)?;
        let mut received = 0;
        for done in &done[..count] {
            // Receives that are flushed when the run is over say nothing.
            if done.status != WcStatus::SUCCESS {
                continue;
            }
            let n = self.received;
            let immediate = (self.job.op == Op::WriteImm).then(|| Job::immediate(n));
            if done.id != u64::from(n) || done.bytes != self.job.size || done.immediate != immediate
            {
                self.wrong += 1;
            }
            self.received += 1;
            received += 1;
            if self.posted < self.job.count {
                if let Some(before) = self.posted.checked_sub(self.job.slots)
                    && self.job.op == Op::Send
                {
                    self.check(before);
                }
                self.post(qp)?;
            }
        }
        Ok(received)
    }

    /// Waits for the receives of the first `completed` operations: one may be
    /// found a moment after its SEND was acknowledged.
    pub fn receive_rest(&mut self, qp: &Qp, completed: u32) {
        let deadline = Instant::now() + LAST_RECEIVES;
        while self.job.takes_receives()
            && self.received < completed.min(self.job.count)
            && Instant::now() < deadline
        {
            match self.poll(qp) {
                Ok(0) => thread::sleep(Duration::from_micros(100)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Checks what operation `n` left in its slot.
    pub fn check(&mut self, n: u32) {
        let at = self.job.remote_offset(n);
        if !self.job.is_in(self.memory.memory(), at, n) {
            self.wrong += 1;
        }
    }

    /// Whether memory holds what it should, and everything was received, after
    /// the first `completed` of `posted` operations completed; `None` when
    /// nothing can be said.
    pub fn verify(&self, completed: u32, posted: u32) -> Option<bool> {
        let done = self.job.is_done(self.memory.memory(), completed, posted)?;
        let all_received = !self.job.takes_receives() || self.received >= completed;
        Some(done && self.wrong == 0 && all_received)
    }
}
