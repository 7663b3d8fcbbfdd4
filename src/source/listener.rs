//! A listener on a netdev that can prove it hears.
//!
//! A thread owns the capture. Control frames sent through the same netdev
//! show before a run that the capture is live, and after it, as frames come
//! out of the kernel's buffer in the order they went in, that everything
//! before has been heard.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pcap::{Active, Capture};

use super::{
    Batch, ControlFrame, LinkType, LiveCounters, LiveOptions, LiveSource, Netdev, Nonce,
    PacketPath, PacketSource, RawPacket, SourceError, Stop, netdev, recognise,
};

/// Bytes of packets kept; later ones are counted.
const KEPT_BYTES: usize = 256 << 20;
/// How long a frame may wait in the kernel's buffer. Shorter than for a
/// capture that people watch: every proof waits for it.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Time after which a control frame that was not seen is sent again.
const RETRY: Duration = Duration::from_millis(100);
/// Longest time to wait for the thread to end once it was told to; it takes
/// two timeouts unless the kernel's buffer is full.
const JOIN: Duration = Duration::from_secs(6);

/// Sends control frames through a netdev.
pub struct Injector {
    capture: Capture<Active>,
    frame: ControlFrame,
    next: u32,
}

impl Injector {
    /// Opens the netdev for sending. A handle never sees what it sent itself,
    /// so this is not the listener's.
    ///
    /// # Errors
    /// When there is no such device, it is not Ethernet, or the user may not
    /// send through it.
    pub fn open(name: &str, port: u16, nonce: Nonce) -> Result<Self, SourceError> {
        let failed = |reason: String| SourceError::Capture {
            name: name.to_owned(),
            reason: format!("no control frame can be sent: {reason}"),
        };
        let capture = Capture::from_device(name)
            .and_then(|inactive| {
                inactive
                    .snaplen(64)
                    .buffer_size(1 << 18)
                    .timeout(1000)
                    .open()
            })
            .and_then(|mut capture| {
                // Nothing is this long: the handle only sends.
                capture.filter("greater 1000000", true)?;
                capture.setnonblock()
            })
            .map_err(|error| failed(error.to_string()))?;
        let link = LinkType(u16::try_from(capture.get_datalink().0).unwrap_or(u16::MAX));
        if link != LinkType::ETHERNET {
            return Err(failed(format!("its link type is {link}, not Ethernet")));
        }
        let device = netdev(name).ok().flatten().unwrap_or_default();
        Ok(Self {
            capture,
            frame: ControlFrame::new(device.mac, address(&device), port, nonce),
            next: 1,
        })
    }

    /// Sends the next control frame; returns its number, from 1.
    ///
    /// # Errors
    /// When the netdev does not take it.
    pub fn send(&mut self) -> Result<u32, String> {
        let seq = self.next;
        let sent = self.capture.sendpacket(self.frame.encode(seq));
        sent.map_err(|error| format!("a control frame could not be sent: {error}"))?;
        self.next += 1;
        Ok(seq)
    }
}

/// The address a control frame is from and to: the netdev's IPv4 address if
/// it has one, as most RoCE traffic.
fn address(device: &Netdev) -> IpAddr {
    let v4 = device.addresses.iter().find(|address| address.is_ipv4());
    let any = v4.or_else(|| device.addresses.first());
    any.copied().unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

/// A packet on its own, with the bytes that were captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPacket {
    /// Number of the input, from 0.
    pub input: u16,
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub ts_ns: i64,
    /// Number of the frame in its capture, from 1.
    pub frame: u64,
    /// Bytes the packet had on the wire.
    pub len: u32,
    /// Link-layer type of `bytes`.
    pub link: LinkType,
    /// How it came, where the kernel tap was there to see.
    pub path: Option<PacketPath>,
    /// The bytes that were captured.
    pub bytes: Box<[u8]>,
}

impl OwnedPacket {
    /// The packet as decoders take it.
    #[must_use]
    pub fn raw(&self) -> RawPacket<'_> {
        RawPacket {
            input: self.input,
            frame: self.frame,
            ts_ns: self.ts_ns,
            len: self.len,
            link: self.link,
            path: self.path,
            data: &self.bytes,
        }
    }
}

impl From<&RawPacket<'_>> for OwnedPacket {
    fn from(packet: &RawPacket<'_>) -> Self {
        Self {
            input: packet.input,
            ts_ns: packet.ts_ns,
            frame: packet.frame,
            len: packet.len,
            link: packet.link,
            path: packet.path,
            bytes: packet.data.into(),
        }
    }
}

/// How many control frames were sent and seen again so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// Sent.
    pub sent: u32,
    /// Of these, seen by the listener.
    pub seen: u32,
    /// Why control frames could not be sent, or the listener ended early; in
    /// words.
    pub trouble: Option<String>,
}

/// What a listener heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// The netdev.
    pub netdev: String,
    /// Packets, control frames left out, as many as there was room for.
    pub packets: Vec<OwnedPacket>,
    /// RoCE packets, those of which the bytes were not kept included, control
    /// frames not.
    pub roce_packets: u64,
    /// Control frames sent.
    pub control_sent: u32,
    /// Control frames seen.
    pub control_seen: u32,
    /// Whether the last control frame was seen: everything before it was
    /// heard.
    pub complete: bool,
    /// Frames that passed the capture filter, control frames and dropped ones
    /// included.
    pub received: u64,
    /// Frames the kernel dropped because the buffer was full.
    pub kernel_dropped: u64,
    /// As [`Proof::trouble`].
    pub trouble: Option<String>,
}

/// What the thread has heard so far.
#[derive(Default)]
struct State {
    packets: Vec<OwnedPacket>,
    kept: usize,
    roce_packets: u64,
    /// Numbers of our control frames that were seen; a few.
    seen: BTreeSet<u32>,
    counters: LiveCounters,
    error: Option<String>,
    ended: bool,
}

impl State {
    fn hear(&mut self, batch: &Batch, ours: Nonce) {
        for packet in batch.packets() {
            match recognise(&packet) {
                Some((nonce, seq)) if nonce == ours => _ = self.seen.insert(seq),
                Some(_) => {}
                None => {
                    self.roce_packets += 1;
                    if self.kept + packet.data.len() <= KEPT_BYTES {
                        self.kept += packet.data.len();
                        self.packets.push(OwnedPacket::from(&packet));
                    }
                }
            }
        }
    }
}

/// State of the thread, and word of every change.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` holds or the time is up.
    fn wait(&self, timeout: Duration, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !done(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.changed.wait_timeout(state, left);
            (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state
    }
}

/// Listens to a netdev on a thread of its own.
pub struct Listener {
    netdev: String,
    nonce: Nonce,
    injector: Option<Injector>,
    sent: u32,
    trouble: Option<String>,
    stop: Stop,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Begins to listen. With `control`, control frames will prove that it
    /// hears; where they cannot be sent, [`Proof::trouble`] says why.
    ///
    /// # Errors
    /// When the netdev cannot be listened to.
    pub fn start(netdev: &str, port: u16, control: bool) -> Result<Self, SourceError> {
        let stop = Stop::default();
        let source = LiveSource::open(
            &LiveOptions {
                timeout: TIMEOUT,
                ..LiveOptions::new(netdev, port)
            },
            stop.clone(),
        )?;
        let nonce = Nonce::random();
        let (injector, trouble) = if control {
            match Injector::open(netdev, port, nonce) {
                Ok(injector) => (Some(injector), None),
                Err(error) => (None, Some(error.to_string())),
            }
        } else {
            (None, None)
        };
        let shared = Arc::<Shared>::default();
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("listener".into())
                .spawn(move || listen(source, nonce, &shared))
        };
        let thread = thread.map_err(|error| SourceError::Capture {
            name: netdev.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            netdev: netdev.to_owned(),
            nonce,
            injector,
            sent: 0,
            trouble,
            stop,
            shared,
            thread: Some(thread),
        })
    }

    /// The nonce of this listener's control frames.
    #[must_use]
    pub const fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Sends control frames until one is seen, for at most `timeout`. Without
    /// control frames it returns at once.
    pub fn prove(&mut self, timeout: Duration) -> Proof {
        self.barrier(timeout);
        self.proof()
    }

    fn proof(&self) -> Proof {
        let state = self.shared.lock();
        Proof {
            sent: self.sent,
            seen: state.seen.len() as u32,
            trouble: state.error.clone().or_else(|| self.trouble.clone()),
        }
    }

    /// Sends control frames until one of them is seen; false when none was.
    fn barrier(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut first = None;
        while let Some(injector) = &mut self.injector {
            match injector.send() {
                Ok(seq) => {
                    self.sent += 1;
                    self.trouble = None;
                    first.get_or_insert(seq);
                }
                Err(error) => self.trouble = Some(error),
            }
            let seen = |state: &State| {
                first.is_some_and(|first| state.seen.range(first..).next().is_some())
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let state = self
                .shared
                .wait(left.min(RETRY), |state| state.ended || seen(state));
            if seen(&state) {
                return true;
            }
            if state.ended || Instant::now() >= deadline {
                return false;
            }
        }
        false
    }

    /// Stops listening once everything up to now has been heard: once a last
    /// control frame is seen, at most after `timeout`; without control frames
    /// once the kernel has handed out what its buffer holds.
    #[must_use]
    pub fn finish(mut self, timeout: Duration) -> Heard {
        let barrier = self.barrier(timeout);
        self.stop.set();
        // The capture itself waits for what the buffer still holds.
        drop(self.shared.wait(JOIN, |state| state.ended));
        let proof = self.proof();
        let mut state = self.shared.lock();
        Heard {
            netdev: self.netdev.clone(),
            packets: std::mem::take(&mut state.packets),
            roce_packets: state.roce_packets,
            control_sent: proof.sent,
            control_seen: proof.seen,
            complete: barrier,
            received: state.counters.received,
            kernel_dropped: state.counters.dropped,
            trouble: proof.trouble,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.set();
        let ended = self.shared.wait(JOIN, |state| state.ended).ended;
        if let Some(thread) = self.thread.take()
            && ended
        {
            let _ = thread.join();
        }
    }
}

/// Marks the end for those who wait, however the thread ends.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

/// The thread: hears until told to stop.
fn listen(mut source: LiveSource, nonce: Nonce, shared: &Shared) {
    let _ended = Ended(shared);
    let mut batch = Batch::new();
    loop {
        let more = source.next_batch(&mut batch);
        let mut state = shared.lock();
        match more {
            Ok(true) if batch.is_empty() => continue,
            Ok(true) => state.hear(&batch, nonce),
            Ok(false) => {
                drop(state);
                let counters = source.counters();
                shared.lock().counters = counters;
                return;
            }
            // The end follows.
            Err(error) => state.error = Some(error.to_string()),
        }
        drop(state);
        shared.changed.notify_all();
    }
}
