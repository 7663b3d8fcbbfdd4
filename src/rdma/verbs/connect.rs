//! From a plan to a connected queue pair, by each of the ways there are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    rdma::ledger::{Endpoint, Peer},
    wire::types::{Psn, QpNumber},
};

use super::{
    cm::Link,
    device::{Context, Limits, Pd, PortState},
    error::{Facts, Fault, Step, VerbsError},
    exchange::{
        Channel, Connect, ExchangeError, QpRecord, Record, Remote, Window, read_reply, request_data,
    },
    job::{Job, random},
    plan::{Plan, Target, mtu_code},
    qp::{Path, Qp, Reads, Room},
    served::Served,
};

/// READs and atomics outstanding at once, where both devices allow as many.
const READS: u8 = 16;
/// How long a responder may take to get ready: address resolution alone can
/// take a second, and it may be busy with somebody else.
const READY: Duration = Duration::from_secs(20);
/// How often a running writer tells its responder that it lives.
const ALIVE: Duration = Duration::from_secs(1);
/// How long a responder may take to look into its memory.
const VERDICT: Duration = Duration::from_secs(10);

/// An opened device with one port of it.
pub(super) struct Side {
    pub facts: Facts,
    pub pd: Arc<Pd>,
    pub limits: Limits,
    port: PortState,
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
        let pd = Pd::new(&context).map_err(explain)?;
        Ok(Self {
            mtu: port.active_mtu.unwrap_or(256),
            facts,
            pd,
            limits,
            port,
        })
    }

    pub fn explain(&self) -> impl Fn(Fault) -> VerbsError + '_ {
        |fault| fault.explain(&self.facts)
    }

    pub fn refuse(&self, said: String) -> VerbsError {
        VerbsError::refused(&self.facts.device, Step::Plan, said)
    }

    fn disagree(&self, error: &ExchangeError) -> VerbsError {
        VerbsError::refused(&self.facts.device, Step::Exchange, error.to_string())
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

    /// Refuses more operations at once than the device's queues hold.
    fn check_depth(&self, depth: u32) -> Result<(), VerbsError> {
        let most = self.limits.work_requests.min(self.limits.completions);
        if depth > most {
            return Err(self.refuse(format!(
                "{depth} operations at once are over the device's {most}: \
                 ask for a smaller --depth"
            )));
        }
        Ok(())
    }

    /// The path MTU that was asked for, or the `most` that is possible.
    fn path_mtu(&self, wanted: Option<u32>, most: u32) -> Result<u32, VerbsError> {
        match wanted {
            Some(wanted) if wanted > most => Err(self.refuse(format!(
                "a path MTU of {wanted} bytes is over the {most} that the ports allow now; \
                 a port follows its network device: sudo ip link set {} mtu {}",
                self.facts.netdev.as_deref().unwrap_or("IF"),
                // Room for every header around the payload, rounded up as is
                // customary.
                wanted + 104
            ))),
            Some(wanted) => Ok(wanted),
            None => Ok(most),
        }
    }

    /// READs and atomics that this side serves, and may issue to a peer that
    /// serves `theirs`.
    pub fn reads(&self, theirs: u8) -> Reads {
        Reads {
            issued: READS.min(self.limits.issued_reads).min(theirs),
            served: READS.min(self.limits.served_reads),
        }
    }
}

/// The other side.
#[derive(Debug)]
pub(super) enum Far {
    Itself(Served),
    Local(Qp, Served),
    Remote(Conversation),
}

/// A queue pair in RTS, and whom it is connected to.
pub(super) struct Connected {
    pub qp: Qp,
    pub far: Far,
    pub window: Window,
    pub first_psn: Psn,
    pub endpoint: Endpoint,
}

/// A path as a queue pair took it.
struct Taken<'a> {
    qp: &'a Qp,
    path: &'a Path,
    peer: Peer,
}

impl Taken<'_> {
    fn endpoint(self, plan: &Plan) -> Endpoint {
        Endpoint {
            device: plan.device.clone(),
            port: plan.port,
            netdev: plan.netdev.clone(),
            gid_index: self.path.gid_index,
            gid: plan.gid,
            mtu: self.path.mtu,
            qp: QpNumber::new(self.qp.number()),
            dest_gid: self.path.dest_gid,
            dest_qp: QpNumber::new(self.path.dest_qp),
            peer: self.peer,
        }
    }
}

/// The facts of a plan's own side.
pub(super) fn facts(plan: &Plan) -> Facts {
    Facts {
        device: plan.device.clone(),
        port: plan.port,
        gid_index: plan.gid_index,
        gid: Some(plan.gid),
        dest: None,
        netdev: plan.netdev.clone(),
    }
}

/// Connects to the plan's target, with at most `depth` operations outstanding.
pub(super) fn connect(
    plan: &Plan,
    side: &mut Side,
    job: Job,
    depth: u32,
) -> Result<Connected, VerbsError> {
    side.check(&job)?;
    side.check_depth(depth)?;
    match &plan.target {
        Target::Itself => itself(plan, side, job, depth),
        Target::Local {
            device,
            port,
            gid_index,
            gid,
            netdev,
        } => {
            let other = Side::open(Facts {
                device: device.clone(),
                port: *port,
                gid_index: *gid_index,
                gid: Some(*gid),
                dest: Some(plan.gid),
                netdev: netdev.clone(),
            })?;
            other.check(&job)?;
            side.facts.dest = Some(*gid);
            pair(plan, side, &other, job, depth)
        }
        Target::Remote(remote) => across(plan, side, job, depth, remote),
    }
}

/// What both ends of every path have in common with the plan.
fn path(plan: &Plan, side: &Side, mtu: u32, theirs: u8) -> Path {
    Path {
        port: plan.port,
        gid_index: plan.gid_index,
        dest_gid: plan.gid,
        dest_qp: 0,
        mtu,
        send_psn: Psn::new(random() as u32),
        receive_psn: Psn::new(random() as u32),
        retry_count: plan.retry_count,
        ack_timeout: plan.ack_timeout,
        reads: side.reads(theirs),
        atomics: side.limits.atomics,
    }
}

/// Connects a queue pair to itself.
fn itself(plan: &Plan, side: &mut Side, job: Job, depth: u32) -> Result<Connected, VerbsError> {
    side.facts.dest = Some(plan.gid);
    let mtu = side.path_mtu(plan.mtu, side.mtu)?;
    let receives = Served::receives(&job, depth, side.limits.work_requests);
    let mut served = Served::new(&side.pd, job, side.limits.atomics).map_err(side.explain())?;
    let room = Room {
        sends: depth,
        receives,
    };
    let qp = Qp::new(&side.pd, room).map_err(side.explain())?;
    let path = path(plan, side, mtu, side.limits.served_reads);
    let path = Path {
        dest_qp: qp.number(),
        receive_psn: path.send_psn,
        ..path
    };
    qp.connect(&path).map_err(side.explain())?;
    served.open(&qp, receives).map_err(side.explain())?;
    let taken = Taken {
        qp: &qp,
        path: &path,
        peer: Peer::Itself,
    };
    Ok(Connected {
        endpoint: taken.endpoint(plan),
        window: served.window(),
        first_psn: path.send_psn,
        qp,
        far: Far::Itself(served),
    })
}

/// Connects two queue pairs of this machine.
fn pair(
    plan: &Plan,
    side: &Side,
    other: &Side,
    job: Job,
    depth: u32,
) -> Result<Connected, VerbsError> {
    let mtu = side.path_mtu(plan.mtu, side.mtu.min(other.mtu))?;
    let receives = Served::receives(&job, depth, other.limits.work_requests);
    let mut served = Served::new(&other.pd, job, other.limits.atomics).map_err(other.explain())?;
    let sends = Room {
        sends: depth,
        receives: 0,
    };
    let qp = Qp::new(&side.pd, sends).map_err(side.explain())?;
    let theirs = Qp::new(&other.pd, Room { sends: 1, receives }).map_err(other.explain())?;
    let path = Path {
        dest_gid: other.facts.gid.unwrap_or(plan.gid),
        dest_qp: theirs.number(),
        ..path(plan, side, mtu, other.limits.served_reads)
    };
    qp.connect(&path).map_err(side.explain())?;
    let back = Path {
        port: other.facts.port,
        gid_index: other.facts.gid_index,
        dest_gid: plan.gid,
        dest_qp: qp.number(),
        send_psn: path.receive_psn,
        receive_psn: path.send_psn,
        reads: other.reads(side.limits.served_reads),
        atomics: other.limits.atomics,
        ..path
    };
    theirs.connect(&back).map_err(other.explain())?;
    served.open(&theirs, receives).map_err(other.explain())?;
    let taken = Taken {
        qp: &qp,
        path: &path,
        peer: Peer::LocalDevice(other.facts.device.clone()),
    };
    Ok(Connected {
        endpoint: taken.endpoint(plan),
        window: served.window(),
        first_psn: path.send_psn,
        qp,
        far: Far::Local(theirs, served),
    })
}

/// Connects to a responder on another host.
fn across(
    plan: &Plan,
    side: &mut Side,
    job: Job,
    depth: u32,
    remote: &Remote,
) -> Result<Connected, VerbsError> {
    let mtu = side.path_mtu(plan.mtu, side.mtu)?;
    let sends = Room {
        sends: depth,
        receives: 0,
    };
    let qp = Qp::new(&side.pd, sends).map_err(side.explain())?;
    let path = path(plan, side, mtu, READS);
    let token = random();
    let connect = if remote.cm {
        Connect::Cm { port: 0, token }
    } else {
        Connect::Qp(QpRecord {
            qpn: qp.number(),
            psn: path.send_psn.get(),
        })
    };
    let mut conversation = Conversation::begin(remote).map_err(|error| side.disagree(&error))?;
    let offer = conversation
        .agree(plan, &job, depth, mtu, connect)
        .map_err(|error| side.disagree(&error))?;
    side.facts.dest = Some(offer.gid);
    let path = Path {
        dest_gid: offer.gid,
        mtu: offer.mtu,
        reads: side.reads(offer.reads),
        ..path
    };
    let (path, window) = match offer.connect {
        Connect::Qp(theirs) => {
            let path = Path {
                dest_qp: theirs.qpn,
                receive_psn: Psn::new(theirs.psn),
                ..path
            };
            qp.connect(&path).map_err(side.explain())?;
            (path, offer.window)
        }
        Connect::Cm { port, .. } => {
            let mut link = Link::resolve(&side.facts, port)?;
            let asked = request_data(token);
            let reply = link.request(qp.number(), path.reads, &asked, &side.facts)?;
            let window = read_reply(&reply).filter(|window| *window == offer.window);
            let window = window.ok_or_else(|| {
                let said = "a connection to another program than the responder".to_owned();
                side.disagree(&ExchangeError::Nonsense(said))
            })?;
            let found = |step, state| link.attributes(step, state);
            let path = qp.follow(&path, found).map_err(side.explain())?;
            link.establish().map_err(side.explain())?;
            conversation.link = Some(link);
            (path, window)
        }
    };
    let taken = Taken {
        qp: &qp,
        path: &path,
        peer: Peer::Host(remote.address.clone()),
    };
    Ok(Connected {
        endpoint: taken.endpoint(plan),
        window,
        first_psn: path.send_psn,
        qp,
        far: Far::Remote(conversation),
    })
}

/// What a responder offers.
struct Offer {
    gid: std::net::Ipv6Addr,
    mtu: u32,
    reads: u8,
    window: Window,
    connect: Connect,
}

/// The writer's end of the exchange with a responder.
#[derive(Debug)]
pub(super) struct Conversation {
    /// The connection manager's part, where it connected the queue pairs.
    link: Option<Link>,
    channel: Channel,
    spoke: Instant,
    /// Set when the connection broke: there is nobody to ask any more.
    broken: Option<String>,
}

impl Conversation {
    fn begin(remote: &Remote) -> Result<Self, ExchangeError> {
        Ok(Self {
            link: None,
            channel: Channel::connect(remote)?,
            spoke: Instant::now(),
            broken: None,
        })
    }

    /// Says what is going to happen, and hears whereto. What the responder
    /// offers is held against what was asked for: it is somebody else's word.
    fn agree(
        &mut self,
        plan: &Plan,
        job: &Job,
        depth: u32,
        mtu: u32,
        connect: Connect,
    ) -> Result<Offer, ExchangeError> {
        self.channel.say(&Record::Hello {
            job: job.record(),
            depth,
            gid: plan.gid,
            mtu,
            mtu_fixed: plan.mtu.is_some(),
            connect,
        })?;
        let ready = self.channel.poll(READY)?;
        let offer = match ready.ok_or(ExchangeError::Busy(READY))? {
            Record::Ready {
                gid,
                mtu,
                reads,
                window,
                connect,
            } => Offer {
                gid,
                mtu,
                reads,
                window,
                connect,
            },
            other => return Err(other.instead_of("ready")),
        };
        if mtu_code(offer.mtu).is_none() || offer.mtu > mtu {
            return Err(ExchangeError::Nonsense(format!(
                "a path MTU of {} bytes where at most {mtu} can be",
                offer.mtu
            )));
        }
        let end = offer.window.va.checked_add(offer.window.len);
        if offer.window.len < job.remote_len() as u64 || end.is_none() {
            return Err(ExchangeError::Nonsense(format!(
                "{} bytes of memory where {} are needed",
                offer.window.len,
                job.remote_len()
            )));
        }
        Ok(offer)
    }

    /// Lets the responder know that the run goes on.
    pub fn keep_alive(&mut self, now: Instant) {
        if self.broken.is_none() && now.saturating_duration_since(self.spoke) >= ALIVE {
            self.spoke = now;
            self.broken = self
                .channel
                .say(&Record::Alive)
                .err()
                .map(|error| error.to_string());
        }
    }

    /// Asks the responder what its memory holds; an error says why there is
    /// no answer.
    pub fn verdict(&mut self, completed: u32, posted: u32) -> Result<Option<bool>, String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let mut ask = || {
            self.channel.say(&Record::Done { posted, completed })?;
            match self.channel.hear(VERDICT)? {
                Record::Verdict { verified, .. } => Ok(verified),
                other => Err(other.instead_of("verdict")),
            }
        };
        ask().map_err(|error: ExchangeError| error.to_string())
    }
}
