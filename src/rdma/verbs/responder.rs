//! The responder: lends its memory to writers on other hosts, one after the
//! other, and tells each what it found there.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    rdma::ledger::Op,
    wire::types::{Psn, QpNumber},
};

use super::{
    cm::{Link, Listening},
    connect::Side,
    error::{Facts, Fault, Step, VerbsError},
    exchange::{Channel, Connect, ExchangeError, QpRecord, Record, read_request, reply_data},
    job::{Job, random},
    plan::mtu_code,
    qp::{Path, Qp, Room},
    run::Patience,
    served::Served,
};

/// How long a peer may take to say what it wants.
const HELLO: Duration = Duration::from_secs(5);
/// How long a connecting peer may take to come through the manager.
const REQUEST: Duration = Duration::from_secs(10);
/// How long a peer may say nothing while it runs; writers say something each
/// second.
const SILENCE: Duration = Duration::from_secs(10);
/// How often the TCP connection is looked at while receives come in.
const LOOK: Duration = Duration::from_millis(2);
/// Receives posted at once: a TCP round trip must not run them out.
const RECEIVES: u32 = 1024;

/// Where a responder listens, and with which device it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponderPlan {
    /// RDMA device, as `rxe0`.
    pub device: String,
    /// Port of the device, from 1.
    pub port: u8,
    /// Index of its GID in the port's table.
    pub gid_index: u8,
    /// Its GID.
    pub gid: Ipv6Addr,
    /// Network device under the GID, where there is one.
    pub netdev: Option<String>,
    /// Where to listen for writers (TCP).
    pub listen: SocketAddr,
    /// Whether to serve one writer only.
    pub once: bool,
    /// Whether to serve only writers that connect through the RDMA connection
    /// manager.
    pub cm: bool,
}

/// What happened to a writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponderEvent {
    /// Its queue pair is connected to one of ours.
    Connected {
        /// Address of the writer.
        peer: SocketAddr,
        /// What it is going to do, how often and with how many bytes.
        op: Op,
        /// Operations.
        count: u32,
        /// Bytes of each.
        size: u32,
        /// Queue pair here.
        qp: QpNumber,
        /// GID of the writer.
        dest_gid: Ipv6Addr,
        /// Queue pair of the writer.
        dest_qp: QpNumber,
        /// Path MTU in bytes.
        mtu: u32,
        /// Whether the connection manager connected them.
        cm: bool,
    },
    /// It is done, and memory here was looked into.
    Finished {
        /// Address of the writer.
        peer: SocketAddr,
        /// Operations it posted.
        posted: u32,
        /// Operations that completed there.
        completed: u32,
        /// Receives taken up here.
        received: u32,
        /// Whether memory here holds what it should; `None` when it says
        /// nothing of the operation (a READ), or nothing completed.
        verified: Option<bool>,
    },
    /// It was refused, broke off or fell silent.
    Failed {
        /// Address of the writer.
        peer: SocketAddr,
        /// Why, in words.
        why: String,
    },
}

/// Serves writers on other hosts.
#[derive(Debug)]
pub struct Responder {
    plan: ResponderPlan,
    listener: TcpListener,
}

impl Responder {
    /// Opens the device, to know now whether it can be used, and listens.
    ///
    /// # Errors
    /// When the device cannot be used, or the address not be listened at.
    pub fn bind(plan: ResponderPlan) -> Result<Self, VerbsError> {
        let facts = facts(&plan);
        Side::open(facts.clone())?;
        if plan.cm {
            Listening::open(&facts)?;
        }
        let unusable = |error: io::Error| {
            let said = format!("cannot listen at {}: {error}", plan.listen);
            VerbsError::refused(&plan.device, Step::Exchange, said)
        };
        let listener = TcpListener::bind(plan.listen).map_err(unusable)?;
        listener.set_nonblocking(true).map_err(unusable)?;
        Ok(Self { plan, listener })
    }

    /// Where it listens: with the port that was chosen when 0 was asked for.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves one writer after the other until `stop` is set, or, where the
    /// plan says so, one. `tell` hears of each step. Connections that are not
    /// a writer's are told of and do not count as one.
    ///
    /// # Errors
    /// When listening itself breaks.
    pub fn serve(
        &self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&ResponderEvent),
    ) -> Result<(), VerbsError> {
        while !stop.load(Ordering::Relaxed) {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        thread::sleep(Duration::from_millis(20));
                        continue;
                    }
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => {
                        let said = format!("cannot accept connections: {error}");
                        let device = &self.plan.device;
                        return Err(VerbsError::refused(device, Step::Exchange, said));
                    }
                },
            };
            let mut visit = Visit {
                plan: &self.plan,
                // An IPv4 peer of an IPv6 socket is an IPv4 peer.
                peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
                stop,
                greeted: false,
            };
            let event = match visit.run(stream, tell) {
                Ok(event) => event,
                Err(Trouble(why)) => ResponderEvent::Failed {
                    peer: visit.peer,
                    why,
                },
            };
            tell(&event);
            if self.plan.once && visit.greeted {
                break;
            }
        }
        Ok(())
    }
}

fn facts(plan: &ResponderPlan) -> Facts {
    Facts {
        device: plan.device.clone(),
        port: plan.port,
        gid_index: plan.gid_index,
        gid: Some(plan.gid),
        dest: None,
        netdev: plan.netdev.clone(),
    }
}

/// Why a visit ended, in words.
struct Trouble(String);

impl From<ExchangeError> for Trouble {
    fn from(error: ExchangeError) -> Self {
        Self(error.to_string())
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self(ExchangeError::from(error).to_string())
    }
}

impl From<VerbsError> for Trouble {
    fn from(error: VerbsError) -> Self {
        Self(error.to_string())
    }
}

/// What a writer asks for.
struct Wish {
    job: Job,
    depth: u32,
    gid: Ipv6Addr,
    mtu: u32,
    connect: Connect,
}

/// A queue pair that serves a writer. Dropped in this order.
struct Serving {
    qp: Qp,
    /// Hangs up when dropped.
    _link: Option<Link>,
    served: Served,
    path: Path,
}

/// One writer's visit.
struct Visit<'a> {
    plan: &'a ResponderPlan,
    peer: SocketAddr,
    stop: &'a AtomicBool,
    /// Whether it said what a writer says.
    greeted: bool,
}

impl Visit<'_> {
    fn run(
        &mut self,
        stream: TcpStream,
        tell: &mut dyn FnMut(&ResponderEvent),
    ) -> Result<ResponderEvent, Trouble> {
        let mut channel = Channel::new(stream)?;
        let hello = self.hear(&mut channel, HELLO)?;
        let mut side = Side::open(facts(self.plan)).inspect_err(|error| {
            refuse(&mut channel, error.to_string());
        })?;
        let wish = self.wish(hello, &side).inspect_err(|Trouble(why)| {
            refuse(&mut channel, why.clone());
        })?;
        side.facts.dest = Some(wish.gid);
        let mut serving = match wish.connect {
            Connect::Qp(theirs) => self.by_hand(&mut channel, &side, &wish, theirs)?,
            Connect::Cm { token, .. } => self.by_manager(&mut channel, &side, &wish, token)?,
        };
        tell(&ResponderEvent::Connected {
            peer: self.peer,
            op: wish.job.op,
            count: wish.job.count,
            size: wish.job.size,
            qp: QpNumber::new(serving.qp.number()),
            dest_gid: wish.gid,
            dest_qp: QpNumber::new(serving.path.dest_qp),
            mtu: wish.mtu,
            cm: matches!(wish.connect, Connect::Cm { .. }),
        });
        let (posted, completed) = self.attend(&mut channel, &side, &mut serving)?;
        let Serving { qp, served, .. } = &mut serving;
        served.receive_rest(qp, completed);
        let verified = served.verify(completed, posted);
        let received = served.received();
        channel.say(&Record::Verdict { verified, received })?;
        Ok(ResponderEvent::Finished {
            peer: self.peer,
            posted,
            completed,
            received,
            verified,
        })
    }

    fn stopped(&self) -> Result<(), Trouble> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Trouble("told to stop".to_owned()));
        }
        Ok(())
    }

    /// The next record within `wait`; looks up now and then whether to stop.
    fn hear(&self, channel: &mut Channel, wait: Duration) -> Result<Record, Trouble> {
        let deadline = Instant::now() + wait;
        loop {
            self.stopped()?;
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(ExchangeError::Silent(wait).into());
            }
            if let Some(record) = channel.poll(rest.min(Duration::from_millis(100)))? {
                return Ok(record);
            }
        }
    }

    /// What the writer asks for, held against what this side can do.
    fn wish(&mut self, hello: Record, side: &Side) -> Result<Wish, Trouble> {
        let Record::Hello {
            job,
            depth,
            gid,
            mtu,
            mtu_fixed,
            connect,
        } = hello
        else {
            return Err(hello.instead_of("hello").into());
        };
        self.greeted = true;
        let job = Job::try_from(&job).map_err(Trouble)?;
        side.check(&job)?;
        if mtu_code(mtu).is_none() || (mtu_fixed && mtu > side.mtu) {
            return Err(Trouble(format!(
                "a path MTU of {mtu} bytes is not one that {} can do: its port allows {} now",
                self.plan.device, side.mtu
            )));
        }
        if self.plan.cm && matches!(connect, Connect::Qp(_)) {
            let why = "this responder serves only writers that come with --cm";
            return Err(Trouble(why.to_owned()));
        }
        Ok(Wish {
            job,
            depth,
            gid,
            mtu: mtu.min(side.mtu),
            connect,
        })
    }

    /// Our end of the path, as far as it is known before the queue pairs are.
    fn path(&self, side: &Side, wish: &Wish) -> Path {
        Path {
            port: self.plan.port,
            gid_index: self.plan.gid_index,
            dest_gid: wish.gid,
            dest_qp: 0,
            mtu: wish.mtu,
            send_psn: Psn::new(random() as u32),
            receive_psn: Psn::new(0),
            retry_count: 6,
            ack_timeout: 14,
            reads: side.reads(0),
            atomics: side.limits.atomics,
        }
    }

    /// Memory and queue pair for a job, in RESET.
    fn open(side: &Side, wish: &Wish) -> Result<(Qp, Served, u32), Fault> {
        let most = side.limits.work_requests.min(side.limits.completions);
        let receives = Served::receives(&wish.job, wish.depth.clamp(RECEIVES, 4 * RECEIVES), most);
        let served = Served::new(&side.pd, wish.job, side.limits.atomics)?;
        let qp = Qp::new(&side.pd, Room { sends: 1, receives })?;
        Ok((qp, served, receives))
    }

    /// Connects by the numbers that the records carry.
    fn by_hand(
        &self,
        channel: &mut Channel,
        side: &Side,
        wish: &Wish,
        theirs: QpRecord,
    ) -> Result<Serving, Trouble> {
        let path = Path {
            dest_qp: QpNumber::new(theirs.qpn).get(),
            receive_psn: Psn::new(theirs.psn),
            ..self.path(side, wish)
        };
        let prepare = || {
            let (qp, mut served, receives) = Self::open(side, wish)?;
            qp.connect(&path)?;
            served.open(&qp, receives)?;
            Ok((qp, served))
        };
        let (qp, served) = prepare().map_err(|fault: Fault| {
            let error = fault.explain(&side.facts);
            refuse(channel, error.to_string());
            error
        })?;
        channel.say(&Record::Ready {
            gid: self.plan.gid,
            mtu: wish.mtu,
            reads: path.reads.served,
            window: served.window(),
            connect: Connect::Qp(QpRecord {
                qpn: qp.number(),
                psn: path.send_psn.get(),
            }),
        })?;
        Ok(Serving {
            qp,
            _link: None,
            served,
            path,
        })
    }

    /// Has the connection manager connect: listens, and waits for the request
    /// that carries the writer's token.
    fn by_manager(
        &self,
        channel: &mut Channel,
        side: &Side,
        wish: &Wish,
        token: u64,
    ) -> Result<Serving, Trouble> {
        let prepare = || {
            let opened = Self::open(side, wish).map_err(side.explain())?;
            Ok((Listening::open(&side.facts)?, opened))
        };
        let (listening, (qp, mut served, receives)) =
            prepare().inspect_err(|error: &VerbsError| refuse(channel, error.to_string()))?;
        let path = self.path(side, wish);
        channel.say(&Record::Ready {
            gid: self.plan.gid,
            mtu: wish.mtu,
            reads: path.reads.served,
            window: served.window(),
            connect: Connect::Cm {
                port: listening.port,
                token,
            },
        })?;
        let deadline = Instant::now() + REQUEST;
        let request = loop {
            self.stopped()?;
            // Nothing is due here, but the peer may have hung up.
            channel.poll(Duration::ZERO)?;
            let wait = Duration::from_millis(50);
            match listening.poll(wait).map_err(side.explain())? {
                Some(request) if read_request(&request.private) == Some(token) => break request,
                Some(stranger) => stranger.reject(),
                None => {}
            }
            if Instant::now() >= deadline {
                let why = "the writer did not come through the RDMA connection manager";
                return Err(Trouble(why.to_owned()));
            }
        };
        let found = |step, state| request.link.attributes(step, state);
        let path = qp.follow(&path, found).map_err(side.explain())?;
        served.open(&qp, receives).map_err(side.explain())?;
        let reply = reply_data(&served.window());
        let link = request.accept(qp.number(), path.reads, &reply, &side.facts)?;
        Ok(Serving {
            qp,
            _link: Some(link),
            served,
            path,
        })
    }

    /// Takes up receives until the writer is done; returns what it posted and
    /// what of that completed.
    fn attend(
        &self,
        channel: &mut Channel,
        side: &Side,
        serving: &mut Serving,
    ) -> Result<(u32, u32), Trouble> {
        let mut patience = Patience::default();
        let mut heard = Instant::now();
        let mut looked = heard;
        loop {
            self.stopped()?;
            let received = serving.served.poll(&serving.qp).map_err(side.explain())?;
            let now = Instant::now();
            if now.saturating_duration_since(looked) >= LOOK {
                looked = now;
                match channel.poll(Duration::ZERO)? {
                    Some(Record::Done { posted, completed }) => return Ok((posted, completed)),
                    Some(Record::Alive) => heard = now,
                    Some(other) => return Err(other.instead_of("done").into()),
                    None if now.saturating_duration_since(heard) >= SILENCE => {
                        return Err(ExchangeError::Silent(SILENCE).into());
                    }
                    None => {}
                }
            }
            if received > 0 {
                patience.reset();
            } else {
                patience.wait();
            }
        }
    }
}

/// Tells a peer that it will not be served. Whether it hears it is its own
/// business.
fn refuse(channel: &mut Channel, why: String) {
    let _ = channel.say(&Record::Refused { why });
}
