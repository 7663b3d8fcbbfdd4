//! The writer: connects a queue pair, drives it, and keeps the ledger.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    rdma::ledger::{Completion, Endpoint, Ledger, Op, Peer, Posted, WcStatus},
    wire::types::{Psn, QpNumber, RKey, VirtualAddr},
};

use super::{
    device::{Context, Done, Limits, Mr, POLLED, Pd, PortState},
    error::{Facts, Fault, Step, VerbsError},
    job::{Job, random},
    plan::{Plan, Target},
    qp::{Path, Qp, Reads, Request, Room, Stretch},
    served::Served,
};

/// READs and atomics outstanding at once, where both devices allow as many.
const READS: u8 = 16;
/// How long a run that was told to stop waits for what is outstanding.
const STOPPING: Duration = Duration::from_millis(500);

/// A connected queue pair with its memory, ready to run.
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: queue pairs before the memory they act on.
    qp: Qp,
    responder: Responder,
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

/// The other side.
#[derive(Debug)]
enum Responder {
    Itself(Served),
    Local(Qp, Served),
}

/// Memory of the responder.
#[derive(Debug, Clone, Copy)]
struct Window {
    va: u64,
    rkey: u32,
}

/// An opened device with one port of it.
pub(super) struct Side {
    pub facts: Facts,
    pub pd: Arc<Pd>,
    pub limits: Limits,
    pub port: PortState,
    /// Active MTU in bytes.
    pub mtu: u32,
}

impl Side {
    pub fn open(facts: Facts) -> Result<Self, VerbsError> {
        let context = Context::open(&facts.device)?;
        let explain = |fault: Fault| fault.explain(&facts);
        let limits = context.limits().map_err(explain)?;
        let port = context.port(facts.port).map_err(explain)?;
        if port.state != PortState::ACTIVE {
            let netdev = facts.netdev.as_deref().unwrap_or("IF");
            return Err(VerbsError {
                cause: format!(
                    "its network device is likely down or without carrier: \
                     sudo ip link set {netdev} up"
                ),
                ..VerbsError::refused(
                    &facts.device,
                    Step::QueryPort,
                    format!("port {} is {}, not ACTIVE", facts.port, port.words()),
                )
            });
        }
        let mtu = port.active_mtu.unwrap_or(256);
        let pd = Pd::new(&context).map_err(explain)?;
        Ok(Self {
            facts,
            pd,
            limits,
            port,
            mtu,
        })
    }

    pub fn explain(&self) -> impl Fn(Fault) -> VerbsError + '_ {
        |fault| fault.explain(&self.facts)
    }

    pub fn refuse(&self, said: String) -> VerbsError {
        VerbsError::refused(&self.facts.device, Step::Plan, said)
    }

    /// Refuses a job that this device cannot do.
    pub fn check(&self, job: &Job) -> Result<(), VerbsError> {
        if job.op.is_atomic() && !self.limits.atomics {
            return Err(self.refuse("the device knows no atomics".to_owned()));
        }
        if job.size > self.port.max_message {
            return Err(self.refuse(format!(
                "a message of {} bytes is over the port's {}",
                job.size, self.port.max_message
            )));
        }
        Ok(())
    }
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
        let mut side = Side::open(Facts {
            device: plan.device.clone(),
            port: plan.port,
            gid_index: plan.gid_index,
            gid: Some(plan.gid),
            dest: None,
            netdev: plan.netdev.clone(),
        })?;
        let depth = plan.depth.min(plan.count);
        let job =
            Job::new(plan.op, plan.count, plan.size, depth).map_err(|said| side.refuse(said))?;
        side.check(&job)?;
        if depth > side.limits.work_requests.min(side.limits.completions) {
            return Err(side.refuse(format!(
                "{depth} operations at once are over the device's {}: ask for a smaller --depth",
                side.limits.work_requests.min(side.limits.completions)
            )));
        }
        let local =
            Mr::new(&side.pd, job.local_len(), side.limits.atomics).map_err(side.explain())?;
        let first_psn = Psn::new(random() as u32);
        let (qp, responder, dest, mtu) = match &plan.target {
            Target::Itself => {
                let mtu = path_mtu(plan, &side, side.mtu)?;
                let (qp, served) = itself(plan, &mut side, job, depth, first_psn, mtu)?;
                let dest = Destination {
                    gid: plan.gid,
                    qp: qp.number(),
                    peer: Peer::Itself,
                };
                (qp, Responder::Itself(served), dest, mtu)
            }
            Target::Local {
                device,
                port,
                gid_index,
                gid,
                netdev,
            } => {
                let mut other = Side::open(Facts {
                    device: device.clone(),
                    port: *port,
                    gid_index: *gid_index,
                    gid: Some(*gid),
                    dest: Some(plan.gid),
                    netdev: netdev.clone(),
                })?;
                other.check(&job)?;
                side.facts.dest = Some(*gid);
                let mtu = path_mtu(plan, &side, side.mtu.min(other.mtu))?;
                let (qp, theirs, served) =
                    pair(plan, &side, &mut other, job, depth, first_psn, mtu)?;
                let dest = Destination {
                    gid: *gid,
                    qp: theirs.number(),
                    peer: Peer::LocalDevice(device.clone()),
                };
                (qp, Responder::Local(theirs, served), dest, mtu)
            }
            Target::Remote(remote) => {
                return Err(side.refuse(format!("{}: not yet", remote.address)));
            }
        };
        let window = match &responder {
            Responder::Itself(served) | Responder::Local(_, served) => Window {
                va: served.memory().va(),
                rkey: served.memory().rkey(),
            },
        };
        Ok(Self {
            endpoint: Endpoint {
                device: plan.device.clone(),
                port: plan.port,
                netdev: plan.netdev.clone(),
                gid_index: plan.gid_index,
                gid: plan.gid,
                mtu,
                qp: QpNumber::new(qp.number()),
                dest_gid: dest.gid,
                dest_qp: QpNumber::new(dest.qp),
                peer: dest.peer,
            },
            qp,
            responder,
            local,
            job,
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
        let stopped = if std::mem::replace(&mut self.ran, true) {
            Some("this session has run already".to_owned())
        } else {
            self.drive(&mut run, stop)
        };
        let completed = run.completed;
        let payload_verified = self.verify(&run);
        Ledger {
            endpoint: Some(self.endpoint.clone()),
            op: self.job.op,
            wanted: self.job.count,
            posted: run.posted,
            payload_verified: payload_verified.filter(|_| completed > 0),
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
        self.receive_the_rest(run.completed);
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
        let bytes = job.size as usize;
        match job.op {
            Op::Write | Op::WriteImm | Op::Send => {
                self.local.fill(at, bytes, |index| job.word(n, index));
            }
            Op::Read if n >= job.slots => self.local.fill(at, bytes, |_| 0),
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
        let received = match &mut self.responder {
            Responder::Itself(served) => served.poll(&self.qp)?,
            Responder::Local(qp, served) => served.poll(qp)?,
        };
        Ok(count as u32 + received)
    }

    /// A receive may be found a moment after the SEND was acknowledged.
    fn receive_the_rest(&mut self, completed: u32) {
        if !self.job.takes_receives() {
            return;
        }
        let deadline = Instant::now() + Duration::from_millis(200);
        let (qp, served) = match &mut self.responder {
            Responder::Itself(served) => (&self.qp, served),
            Responder::Local(qp, served) => (&*qp, served),
        };
        while served.received() < completed && Instant::now() < deadline {
            match served.poll(qp) {
                Ok(0) => thread::sleep(Duration::from_micros(100)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Checks what operation `n` left, before its slot is used again.
    fn check_slot(&mut self, n: u32, run: &mut Run) {
        match self.job.op {
            Op::Write | Op::WriteImm => match &mut self.responder {
                Responder::Itself(served) | Responder::Local(_, served) => served.check(n),
            },
            // The responder looks before it posts the slot's next receive.
            Op::Send => {}
            Op::Read | Op::FetchAdd | Op::CmpSwap => run.wrong += u32::from(!self.arrived(n)),
        }
    }

    /// Whether the requester's memory holds what operation `n` fetched.
    fn arrived(&self, n: u32) -> bool {
        let job = self.job;
        let at = job.local_offset(n);
        if job.op.is_atomic() {
            self.local.read(at) == job.before_atomic(n)
        } else {
            self.local
                .holds(at, job.size as usize, |index| job.word(n, index))
        }
    }

    fn verify(&mut self, run: &Run) -> Option<bool> {
        let posted = run.posted.len() as u32;
        let here = (!matches!(self.job.op, Op::Write | Op::WriteImm | Op::Send)).then(|| {
            let mut slots = posted.saturating_sub(self.job.slots)..run.completed;
            run.wrong == 0 && slots.all(|n| self.arrived(n))
        });
        let there = match &mut self.responder {
            Responder::Itself(served) | Responder::Local(_, served) => {
                served.verify(run.completed, posted)
            }
        };
        match (here, there) {
            (Some(here), Some(there)) => Some(here && there),
            (one, other) => one.or(other),
        }
    }
}

/// Where a queue pair was connected to.
struct Destination {
    gid: std::net::Ipv6Addr,
    qp: u32,
    peer: Peer,
}

/// The path MTU that was asked for, or the most that is possible.
fn path_mtu(plan: &Plan, side: &Side, most: u32) -> Result<u32, VerbsError> {
    match plan.mtu {
        Some(wanted) if wanted > most => Err(side.refuse(format!(
            "a path MTU of {wanted} bytes is over the {most} that the path allows now; \
             rxe follows its network device: sudo ip link set {} mtu {}",
            plan.netdev.as_deref().unwrap_or("IF"),
            // Room for the headers around it, as ibverbs counts them.
            wanted + 204
        ))),
        Some(wanted) => Ok(wanted),
        None => Ok(most),
    }
}

/// READs and atomics between two devices.
fn reads(from: &Limits, to: &Limits) -> Reads {
    let served = READS.min(to.served_reads);
    Reads {
        issued: READS.min(from.issued_reads).min(served),
        served,
    }
}

/// Connects a queue pair to itself.
fn itself(
    plan: &Plan,
    side: &mut Side,
    job: Job,
    depth: u32,
    psn: Psn,
    mtu: u32,
) -> Result<(Qp, Served), VerbsError> {
    side.facts.dest = Some(plan.gid);
    let receives = Served::receives(&job, depth, side.limits.work_requests);
    let explain = side.explain();
    let mut served = Served::new(&side.pd, job, side.limits.atomics).map_err(&explain)?;
    let room = Room {
        sends: depth,
        receives,
    };
    let qp = Qp::new(&side.pd, room).map_err(&explain)?;
    qp.connect(&Path {
        port: plan.port,
        gid_index: plan.gid_index,
        dest_gid: plan.gid,
        dest_qp: qp.number(),
        mtu,
        send_psn: psn,
        receive_psn: psn,
        retry_count: plan.retry_count,
        ack_timeout: plan.ack_timeout,
        reads: reads(&side.limits, &side.limits),
        atomics: side.limits.atomics,
    })
    .map_err(&explain)?;
    served.open(&qp, receives).map_err(&explain)?;
    Ok((qp, served))
}

/// Connects two queue pairs of this machine.
fn pair(
    plan: &Plan,
    side: &Side,
    other: &mut Side,
    job: Job,
    depth: u32,
    psn: Psn,
    mtu: u32,
) -> Result<(Qp, Qp, Served), VerbsError> {
    let receives = Served::receives(&job, depth, other.limits.work_requests);
    let mut served = Served::new(&other.pd, job, other.limits.atomics).map_err(other.explain())?;
    let sends = Room {
        sends: depth,
        receives: 0,
    };
    let mine = Qp::new(&side.pd, sends).map_err(side.explain())?;
    let theirs = Qp::new(&other.pd, Room { sends: 1, receives }).map_err(other.explain())?;
    let answers = Psn::new(random() as u32);
    let path = Path {
        port: plan.port,
        gid_index: plan.gid_index,
        dest_gid: other.facts.gid.unwrap_or(plan.gid),
        dest_qp: theirs.number(),
        mtu,
        send_psn: psn,
        receive_psn: answers,
        retry_count: plan.retry_count,
        ack_timeout: plan.ack_timeout,
        reads: reads(&side.limits, &other.limits),
        atomics: side.limits.atomics,
    };
    mine.connect(&path).map_err(side.explain())?;
    theirs
        .connect(&Path {
            port: other.facts.port,
            gid_index: other.facts.gid_index,
            dest_gid: plan.gid,
            dest_qp: mine.number(),
            send_psn: answers,
            receive_psn: psn,
            atomics: other.limits.atomics,
            ..path
        })
        .map_err(other.explain())?;
    served.open(&theirs, receives).map_err(other.explain())?;
    Ok((mine, theirs, served))
}

/// A run under way. Everything is allocated before the first post.
struct Run {
    begun: Instant,
    posted: Vec<Posted>,
    /// When each was posted, in nanoseconds since `begun`.
    posted_at: Vec<u64>,
    /// Packet sequence numbers used so far.
    psns: u32,
    /// Completions, good and bad.
    done: u32,
    /// Good ones: always the first so many, as queue pairs complete in order.
    completed: u32,
    failed: bool,
    /// The first failure that is not a flush.
    first_failure: Option<(u32, WcStatus)>,
    /// The last sign of life.
    progress: Instant,
    elapsed_ns: u64,
    /// Operations that fetched something wrong.
    wrong: u32,
}

impl Run {
    fn new(count: u32) -> Self {
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

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn outstanding(&self) -> u32 {
        self.posted.len() as u32 - self.done
    }

    fn may_post(&self, count: u32, depth: u32) -> bool {
        (self.posted.len() as u32) < count && self.outstanding() < depth
    }

    fn complete(&mut self, done: &Done, now_ns: u64) {
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
struct Patience {
    idle: u32,
}

impl Patience {
    fn reset(&mut self) {
        self.idle = 0;
    }

    fn wait(&mut self) {
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
fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{} ms", time.as_millis())
    }
}
