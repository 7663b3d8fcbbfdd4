//! The writer: connects a queue pair, drives it, and keeps the ledger.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    rdma::ledger::{Endpoint, Ledger, Op, Posted},
    wire::types::{Psn, RKey, VirtualAddr},
};

use super::{
    connect::{Connected, Far, Side, connect, facts},
    device::{Done, Mr, POLLED},
    error::{Facts, Fault, VerbsError},
    exchange::Window,
    job::Job,
    plan::Plan,
    qp::{Qp, Request, Stretch},
    run::{Patience, Run, seconds},
};

/// How long a run that was told to stop waits for what is outstanding.
const STOPPING: Duration = Duration::from_millis(500);

/// A connected queue pair with its memory, ready to run.
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: queue pairs before the memory they act on.
    qp: Qp,
    far: Far,
    local: Mr,
    job: Job,
    endpoint: Endpoint,
    window: Window,
    first_psn: Psn,
    depth: u32,
    interval: Duration,
    timeout: Duration,
    ran: bool,
}

impl Session {
    /// Opens the devices, registers memory and connects the queue pairs.
    /// Nothing is posted, and nothing but address resolution is sent.
    ///
    /// # Errors
    /// Names the step that failed, what the system said and what repairs it.
    /// Address resolution of a destination that does not answer takes the
    /// kernel about a second.
    pub fn prepare(plan: &Plan) -> Result<Self, VerbsError> {
        plan.check()?;
        let mut side = Side::open(facts(plan))?;
        let depth = plan.depth.min(plan.count);
        let job =
            Job::new(plan.op, plan.count, plan.size, depth).map_err(|said| side.refuse(said))?;
        let local =
            Mr::new(&side.pd, job.local_len(), side.limits.atomics).map_err(side.explain())?;
        let Connected {
            qp,
            far,
            window,
            first_psn,
            endpoint,
        } = connect(plan, &mut side, job, depth)?;
        Ok(Self {
            qp,
            far,
            local,
            job,
            endpoint,
            window,
            first_psn,
            depth,
            interval: plan.interval,
            timeout: plan.timeout,
            ran: false,
        })
    }

    /// The path of the connected queue pair.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Posts everything, waits for what completes and checks what memory
    /// holds then. Comes back when all is done, when an operation failed and
    /// the others were flushed, soon after `stop` is set, or when nothing
    /// completed for as long as the plan says. A session runs once: a second
    /// run posts nothing.
    pub fn run(&mut self, stop: &AtomicBool) -> Ledger {
        let mut run = Run::new(self.job.count);
        let mut stopped = if std::mem::replace(&mut self.ran, true) {
            Some("this session has run already".to_owned())
        } else {
            self.drive(&mut run, stop)
        };
        let payload_verified = match self.verify(&run) {
            Ok(verified) => verified.filter(|_| run.completed > 0),
            Err(error) => {
                // It may be why the run ended, too: a responder that went away
                // does not answer.
                let silent = format!("the responder did not say what its memory holds: {error}");
                stopped = Some(match stopped {
                    Some(stopped) => format!("{stopped}; {silent}"),
                    None => silent,
                });
                None
            }
        };
        Ledger {
            endpoint: Some(self.endpoint.clone()),
            op: self.job.op,
            wanted: self.job.count,
            posted: run.posted,
            payload_verified,
            stopped,
            elapsed_ns: run.elapsed_ns,
        }
    }

    /// The loop; says why it ended early.
    fn drive(&mut self, run: &mut Run, stop: &AtomicBool) -> Option<String> {
        let mut patience = Patience::default();
        let mut stopping: Option<Instant> = None;
        let mut next_post = run.begun;
        let mut failed = None;
        loop {
            let mut now = Instant::now();
            if stopping.is_none() && stop.load(Ordering::Relaxed) {
                stopping = Some(now);
            }
            if let Far::Remote(conversation) = &mut self.far {
                conversation.keep_alive(now);
            }
            let open = stopping.is_none() && !run.failed && failed.is_none();
            while open && run.may_post(self.job.count, self.depth) && now >= next_post {
                if run.outstanding() == 0 {
                    run.progress = now;
                }
                if let Err(fault) = self.post(run) {
                    failed = Some(self.tell(fault));
                    break;
                }
                patience.reset();
                next_post = now + self.interval;
                now = Instant::now();
            }
            match self.poll(run) {
                Ok(0) => {}
                Ok(_) => {
                    patience.reset();
                    continue;
                }
                Err(fault) => failed = failed.or_else(|| Some(self.tell(fault))),
            }
            if run.outstanding() == 0 {
                let over = run.failed || failed.is_some() || stopping.is_some();
                if over || run.posted.len() as u32 == self.job.count {
                    break;
                }
                // Waiting for the next post only; not so long that a request
                // to stop goes unheard.
                let rest = next_post.saturating_duration_since(now);
                if rest > Duration::from_micros(200) {
                    thread::sleep((rest / 2).min(Duration::from_millis(20)));
                }
                continue;
            }
            let limit = stopping.map_or(self.timeout, |_| self.timeout.min(STOPPING));
            let since = stopping.map_or(run.progress, |at| at.max(run.progress));
            if now.saturating_duration_since(since) >= limit {
                failed = failed.or_else(|| Some(self.silence(run, limit)));
                break;
            }
            patience.wait();
        }
        match &mut self.far {
            Far::Itself(served) => served.receive_rest(&self.qp, run.completed),
            Far::Local(qp, served) => served.receive_rest(qp, run.completed),
            Far::Remote(_) => {}
        }
        failed.or_else(|| self.why(run, stopping.is_some()))
    }

    /// Puts a failed call into words for this path.
    fn tell(&self, fault: Fault) -> String {
        let facts = Facts {
            device: self.endpoint.device.clone(),
            port: self.endpoint.port,
            gid_index: self.endpoint.gid_index,
            gid: Some(self.endpoint.gid),
            dest: Some(self.endpoint.dest_gid),
            netdev: self.endpoint.netdev.clone(),
        };
        fault.explain(&facts).to_string()
    }

    fn silence(&self, run: &Run, limit: Duration) -> String {
        let state = self.qp.state().map_or("unknown", |state| state.words());
        format!(
            "no completion within {}: {} of {} posted operations are outstanding, QP state {state}",
            seconds(limit),
            run.outstanding(),
            run.posted.len()
        )
    }

    /// Why a run whose calls all worked ended early, if it did.
    fn why(&self, run: &Run, stopping: bool) -> Option<String> {
        if let Some((n, status)) = run.first_failure {
            let state = self.qp.state().map_or("unknown", |state| state.words());
            return Some(format!(
                "operation {n} failed: {status} (status {}), QP state {state}",
                status.0
            ));
        }
        let count = self.job.count;
        (stopping && run.completed < count)
            .then(|| format!("told to stop after {} of {count}", run.posted.len()))
    }

    fn post(&mut self, run: &mut Run) -> Result<(), Fault> {
        let n = run.posted.len() as u32;
        let job = self.job;
        if let Some(before) = n.checked_sub(job.slots) {
            self.check_slot(before, run);
        }
        let at = job.local_offset(n);
        match job.op {
            Op::Write | Op::WriteImm | Op::Send => {
                job.put(self.local.memory_mut(), at, n);
            }
            Op::Read if n >= job.slots => {
                let bytes = job.size as usize;
                self.local.memory_mut().fill(at, bytes, |_| 0);
            }
            Op::Read | Op::FetchAdd | Op::CmpSwap => {}
        }
        let va = self.window.va + job.remote_offset(n) as u64;
        let request = Request {
            id: u64::from(n),
            op: job.op,
            local: Stretch::of(&self.local, at, job.size),
            va,
            rkey: self.window.rkey,
            immediate: Job::immediate(n),
            add_or_compare: if job.op == Op::CmpSwap {
                job.before_atomic(n)
            } else {
                1
            },
            swap: job.before_atomic(n + 1),
        };
        let at_ns = run.now_ns();
        self.qp.post(&request)?;
        let psn_span = job.op.psn_span(job.size, self.endpoint.mtu);
        let named = job.op.names_memory();
        run.posted.push(Posted {
            n: n + 1,
            psn: self.first_psn.advance(run.psns),
            psn_span,
            va: VirtualAddr::new(if named { va } else { 0 }),
            rkey: RKey::new(if named { self.window.rkey } else { 0 }),
            len: job.size,
            completion: None,
        });
        run.posted_at.push(at_ns);
        run.psns = run.psns.wrapping_add(psn_span);
        Ok(())
    }

    /// Takes what has completed on either side; returns how much.
    fn poll(&mut self, run: &mut Run) -> Result<u32, Fault> {
        let mut done = [Done::EMPTY; POLLED];
        let count = self.qp.send_cq().poll(&mut done)?;
        if count > 0 {
            let now_ns = run.now_ns();
            for done in &done[..count] {
                run.complete(done, now_ns);
            }
        }
        let received = match &mut self.far {
            Far::Itself(served) => served.poll(&self.qp)?,
            Far::Local(qp, served) => served.poll(qp)?,
            Far::Remote(_) => 0,
        };
        Ok(count as u32 + received)
    }

    /// Checks what operation `n` left, before its slot is used again.
    fn check_slot(&mut self, n: u32, run: &mut Run) {
        match self.job.op {
            Op::Write | Op::WriteImm => match &mut self.far {
                Far::Itself(served) | Far::Local(_, served) => served.check(n),
                // Only the last write to each slot can be checked there.
                Far::Remote(_) => {}
            },
            // The responder looks before it posts the slot's next receive.
            Op::Send => {}
            Op::Read | Op::FetchAdd | Op::CmpSwap => run.wrong += u32::from(!self.arrived(n)),
        }
    }

    /// Whether the requester's memory holds what operation `n` fetched.
    fn arrived(&self, n: u32) -> bool {
        let job = self.job;
        let (memory, at) = (self.local.memory(), job.local_offset(n));
        if job.op.is_atomic() {
            memory.read(at) == job.before_atomic(n)
        } else {
            job.is_in(memory, at, n)
        }
    }

    /// Whether memory holds what it should, on either side; an error when a
    /// responder elsewhere cannot be asked.
    fn verify(&mut self, run: &Run) -> Result<Option<bool>, String> {
        let posted = run.posted.len() as u32;
        let here = (!matches!(self.job.op, Op::Write | Op::WriteImm | Op::Send)).then(|| {
            let mut slots = posted.saturating_sub(self.job.slots)..run.completed;
            run.wrong == 0 && slots.all(|n| self.arrived(n))
        });
        let there = match &mut self.far {
            Far::Itself(served) | Far::Local(_, served) => served.verify(run.completed, posted),
            Far::Remote(conversation) => conversation.verdict(run.completed, posted)?,
        };
        Ok(match (here, there) {
            (Some(here), Some(there)) => Some(here && there),
            (one, other) => one.or(other),
        })
    }
}
