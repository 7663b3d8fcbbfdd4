//! A run under way: what was posted, what completed, how long to be patient.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::rdma::ledger::{Completion, Posted, WcStatus};

use super::device::Done;

/// A run under way. Everything is allocated before the first post.
pub(super) struct Run {
    pub begun: Instant,
    pub posted: Vec<Posted>,
    /// When each was posted, in nanoseconds since `begun`.
    pub posted_at: Vec<u64>,
    /// Packet sequence numbers used so far.
    pub psns: u32,
    /// Completions, good and bad.
    pub done: u32,
    /// Good ones: always the first so many, as queue pairs complete in order.
    pub completed: u32,
    pub failed: bool,
    /// The first failure that is not a flush.
    pub first_failure: Option<(u32, WcStatus)>,
    /// The last sign of life.
    pub progress: Instant,
    pub elapsed_ns: u64,
    /// Operations that fetched something wrong.
    pub wrong: u32,
}

impl Run {
    pub fn new(count: u32) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            posted: Vec::with_capacity(count as usize),
            posted_at: Vec::with_capacity(count as usize),
            psns: 0,
            done: 0,
            completed: 0,
            failed: false,
            first_failure: None,
            progress: begun,
            elapsed_ns: 0,
            wrong: 0,
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    pub fn outstanding(&self) -> u32 {
        self.posted.len() as u32 - self.done
    }

    pub fn may_post(&self, count: u32, depth: u32) -> bool {
        (self.posted.len() as u32) < count && self.outstanding() < depth
    }

    pub fn complete(&mut self, done: &Done, now_ns: u64) {
        let index = usize::try_from(done.id).unwrap_or(usize::MAX);
        let (Some(posted), Some(at)) = (self.posted.get_mut(index), self.posted_at.get(index))
        else {
            return;
        };
        if posted.completion.is_some() {
            return;
        }
        posted.completion = Some(Completion {
            status: done.status,
            latency_ns: now_ns.saturating_sub(*at),
        });
        self.done += 1;
        self.progress = Instant::now();
        self.elapsed_ns = now_ns.saturating_sub(self.posted_at[0]);
        if done.status == WcStatus::SUCCESS {
            self.completed += 1;
        } else {
            self.failed = true;
            let told = self
                .first_failure
                .is_some_and(|(_, s)| s != WcStatus::FLUSHED);
            if !told && (self.first_failure.is_none() || done.status != WcStatus::FLUSHED) {
                self.first_failure = Some((posted.n, done.status));
            }
        }
    }
}

/// Waits a little longer each time nothing has happened.
#[derive(Debug, Default)]
pub(super) struct Patience {
    idle: u32,
}

impl Patience {
    pub fn reset(&mut self) {
        self.idle = 0;
    }

    pub fn wait(&mut self) {
        self.idle = self.idle.saturating_add(1);
        match self.idle {
            ..200 => std::hint::spin_loop(),
            200..400 => thread::yield_now(),
            400..1000 => thread::sleep(Duration::from_micros(50)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A time as people say it.
pub(super) fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{} ms", time.as_millis())
    }
}
