//! Live capture from a network device, through libpcap.
//!
//! Without immediate mode libpcap uses the kernel's third ring format
//! (`TPACKET_V3`), whose slots are as long as their frames: a large snapshot
//! length costs nothing and a burst fills the ring with frames rather than
//! with padding. The price is that frames arrive up to the timeout late, which
//! is why the end of a capture waits for what the ring still holds.

mod filter;
mod trouble;

use std::{
    cell::RefCell,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pcap::{Active, Capture, Precision, Stat};

use self::{
    filter::set_filter,
    trouble::{explain, known, words},
};
use super::{Batch, InputStatistics, LinkType, LiveCounters, PacketSource, SourceError, netdev};

/// Bytes in a batch before it is handed out.
const BATCH_BYTES: usize = 1 << 20;
/// Packets in a batch before it is handed out.
const BATCH_PACKETS: usize = 4096;
/// Packets taken from the ring before the limits are looked at again.
const STEP: usize = 64;
/// Longest time for which frames are taken from the ring once the capture is
/// to end; it is short unless the ring is full.
const DRAIN: Duration = Duration::from_secs(5);
/// How often counters are read while frames arrive, and the device is looked
/// at while none do. The kernel's counters have 32 bits: at a hundred million
/// frames a second they wrap after 40 s.
const CHECK: Duration = Duration::from_secs(1);

/// Asks a capture to end; clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for the end.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// The flag itself, for a signal handler to set.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// What to capture, and how.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// Network device.
    pub netdev: String,
    /// UDP destination port that carries RoCEv2.
    pub port: u16,
    /// Further condition on the frames, in the language of pcap-filter(7).
    pub bpf: Option<String>,
    /// Take tunnels too, whatever is inside; else RoCE in a tunnel passes
    /// unseen.
    pub tunnels: bool,
    /// Take frames to other hosts too, where the device sees them.
    pub promisc: bool,
    /// Bytes kept of a frame.
    pub snaplen: u32,
    /// Bytes of the kernel's buffer.
    pub buffer: u32,
    /// Longest time a frame waits in the kernel's buffer. Never zero: libpcap
    /// would then wait for ever for a buffer that fills slowly.
    pub timeout: Duration,
    /// Time after which the capture ends.
    pub duration: Option<Duration>,
    /// Captured frames after which the capture ends.
    pub count: Option<u64>,
}

impl LiveOptions {
    /// Whole frames of any size in use: the largest jumbo frame. RoCE's own
    /// end at 4096 bytes of payload and some hundred of headers; the limit
    /// bounds what a batch can grow to.
    pub const SNAPLEN: u32 = 9216;
    /// Half a second of 1 Gbit/s, which lost nothing at the rates measured.
    pub const BUFFER: u32 = 64 << 20;
    /// Seldom enough to cost nothing, often enough to look immediate.
    pub const TIMEOUT: Duration = Duration::from_millis(100);

    /// Everything RoCE on a network device, until stopped.
    #[must_use]
    pub fn new(netdev: impl Into<String>, port: u16) -> Self {
        Self {
            netdev: netdev.into(),
            port,
            bpf: None,
            tunnels: false,
            promisc: false,
            snaplen: Self::SNAPLEN,
            buffer: Self::BUFFER,
            timeout: Self::TIMEOUT,
            duration: None,
            count: None,
        }
    }
}

/// A network device being listened to.
///
/// Batches come as the kernel hands frames out, and an empty one each time
/// nothing arrived within the timeout.
pub struct LiveSource {
    name: String,
    /// In a cell because reading counters changes the handle, and
    /// [`PacketSource::statistics`] reads them at any time.
    handle: RefCell<Handle>,
    link: LinkType,
    filter: String,
    snaplen: u32,
    timeout: Duration,
    stop: Stop,
    started_ns: i64,
    /// When the capture ends by itself, by both clocks.
    deadline: Option<Moment>,
    /// Frames that may still be captured.
    left: Option<u64>,
    packets: u64,
    /// Whether the device is one that can be asked for its state; `any` is
    /// not.
    watched: bool,
    checked: Instant,
    ending: Option<Ending>,
    ended: bool,
}

/// A point in time: for waiting, and for comparison with timestamps.
#[derive(Debug, Clone, Copy)]
struct Moment {
    instant: Instant,
    wall_ns: i64,
}

impl Moment {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            instant: Instant::now(),
            wall_ns: since.map_or(0, nanoseconds),
        }
    }

    fn after(self, duration: Duration) -> Option<Self> {
        Some(Self {
            instant: self.instant.checked_add(duration)?,
            wall_ns: self.wall_ns.saturating_add(nanoseconds(duration)),
        })
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The capture is to end: frames up to `at` are still in the ring.
struct Ending {
    at: Moment,
    error: Option<SourceError>,
}

/// The libpcap handle and its counters, widened to 64 bits.
struct Handle {
    capture: Capture<Active>,
    last: Stat,
    totals: LiveCounters,
}

impl Handle {
    fn count(&mut self) -> LiveCounters {
        // A device that is gone has no counters; the last ones stand.
        if let Ok(now) = self.capture.stats() {
            let add = |total: &mut u64, now: u32, last: u32| {
                *total += u64::from(now.wrapping_sub(last));
            };
            let (last, totals) = (&self.last, &mut self.totals);
            add(&mut totals.received, now.received, last.received);
            add(&mut totals.dropped, now.dropped, last.dropped);
            add(&mut totals.if_dropped, now.if_dropped, last.if_dropped);
            self.last = now;
        }
        self.totals
    }
}

impl LiveSource {
    /// Begins to listen; frames are captured from here on. The capture ends
    /// when `stop` is set, or as the options say.
    ///
    /// # Errors
    /// When there is no such device, it is down, the user may not capture, or
    /// the filter does not compile.
    pub fn open(options: &LiveOptions, stop: Stop) -> Result<Self, SourceError> {
        let name = options.netdev.clone();
        let failed = |error: &pcap::Error| SourceError::Capture {
            name: name.clone(),
            reason: words(error),
        };
        let known = known(&name)?;
        let timeout = options.timeout.max(Duration::from_millis(1));
        let limit = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let inactive = Capture::from_device(name.as_str())
            .map_err(|error| failed(&error))?
            .timeout(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
            .snaplen(limit(options.snaplen.max(1)))
            .buffer_size(limit(options.buffer))
            .promisc(options.promisc)
            .precision(PRECISION);
        let mut capture = inactive
            .open()
            .map_err(|error| explain(&name, &error))?
            // libpcap's own waiting ends with a frame or not at all: a quiet
            // device would keep it from ever looking at `stop`.
            .setnonblock()
            .map_err(|error| failed(&error))?;
        let link = link_type(capture.get_datalink().0);
        let filter = set_filter(&mut capture, &name, link, options)?;
        let start = Moment::now();
        Ok(Self {
            name,
            handle: RefCell::new(Handle {
                capture,
                last: Stat {
                    received: 0,
                    dropped: 0,
                    if_dropped: 0,
                },
                totals: LiveCounters::default(),
            }),
            link,
            filter,
            snaplen: options.snaplen,
            timeout,
            stop,
            started_ns: start.wall_ns,
            deadline: options.duration.and_then(|duration| start.after(duration)),
            left: options.count,
            packets: 0,
            watched: known,
            checked: start.instant,
            ending: None,
            ended: options.count == Some(0),
        })
    }

    /// Name of the network device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Link type of every frame.
    #[must_use]
    pub const fn link(&self) -> LinkType {
        self.link
    }

    /// The filter in the kernel, in the language of pcap-filter(7).
    #[must_use]
    pub fn filter(&self) -> &str {
        &self.filter
    }

    /// Bytes kept of a frame.
    #[must_use]
    pub const fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// When the capture began, in nanoseconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn started_ns(&self) -> i64 {
        self.started_ns
    }

    /// What the kernel counted so far.
    #[must_use]
    pub fn counters(&self) -> LiveCounters {
        self.handle.borrow_mut().count()
    }

    /// Takes what the ring holds, up to the limits of a batch. True when a
    /// frame from after the end of the capture was met.
    fn take(&mut self, batch: &mut Batch) -> Result<bool, pcap::Error> {
        let last = self.ending.as_ref().map(|ending| ending.at.wall_ns);
        let (capture, link) = (&mut self.handle.get_mut().capture, self.link);
        let mut past = false;
        while !past && batch.bytes.len() < BATCH_BYTES && batch.records.len() < BATCH_PACKETS {
            let taken = batch.records.len() as u64;
            let step = self.left.map_or(STEP, |left| {
                usize::try_from(left.saturating_sub(taken)).map_or(STEP, |left| left.min(STEP))
            });
            let got = capture.dispatch(Some(step), |packet| {
                let ts_ns = timestamp(packet.header);
                if last.is_some_and(|last| ts_ns > last) {
                    past = true;
                } else {
                    batch.append(ts_ns, packet.header.len, link, packet.data);
                }
            })?;
            if got < STEP {
                break;
            }
        }
        Ok(past)
    }

    /// Waits until frames are there, at most until the timeout, the deadline,
    /// or a signal.
    fn wait(&mut self) {
        let mut timeout = self.timeout;
        if let (Some(deadline), None) = (self.deadline, &self.ending) {
            timeout = timeout.min(deadline.instant.saturating_duration_since(Instant::now()));
        }
        // Rounded up, so that the deadline has passed afterwards.
        let timeout = u16::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        let handle = self.handle.get_mut();
        let mut fd = [PollFd::new(handle.capture.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fd, PollTimeout::from(timeout));
        let trouble = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        let troubled = fd[0].revents().is_some_and(|it| it.intersects(trouble));
        // A failure of poll itself shows as one of the next dispatch.
        if troubled || (ready == Ok(0) && self.checked.elapsed() >= CHECK) {
            self.check();
        }
    }

    /// Ends the capture when the device went down: libpcap goes on waiting
    /// for it to come back.
    fn check(&mut self) {
        self.checked = Instant::now();
        self.handle.get_mut().count();
        if self.watched
            && self.ending.is_none()
            && let Ok(Some(device)) = netdev(&self.name)
            && !device.up
        {
            self.end(Some(SourceError::Down {
                name: self.name.clone(),
                is: "went",
            }));
        }
    }

    fn end(&mut self, error: Option<SourceError>) {
        let mut at = Moment::now();
        if let (Some(deadline), None) = (self.deadline, &error)
            && deadline.instant <= at.instant
        {
            at.wall_ns = at.wall_ns.min(deadline.wall_ns);
        }
        self.ending = Some(Ending { at, error });
    }

    /// Reads once, waiting for frames if there are none.
    fn read(&mut self, batch: &mut Batch) -> Result<bool, pcap::Error> {
        let past = self.take(batch)?;
        if past || !batch.is_empty() {
            return Ok(past);
        }
        self.wait();
        self.take(batch)
    }
}

impl PacketSource for LiveSource {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        batch.clear();
        batch.input = 0;
        batch.first_frame = self.packets + 1;
        if self.ended {
            let error = self.ending.take().and_then(|ending| ending.error);
            return error.map_or(Ok(false), Err);
        }
        let due = self.deadline.is_some_and(|d| d.instant <= Instant::now());
        if self.ending.is_none() && (due || self.stop.is_set()) {
            self.end(None);
        }
        match self.read(batch) {
            Ok(past) => self.ended |= past,
            // The device is gone, and libpcap lets nothing more be read.
            Err(error) => {
                self.end(Some(explain(&self.name, &error)));
                self.ended = true;
            }
        }
        let taken = batch.records.len() as u64;
        self.packets += taken;
        if let Some(left) = &mut self.left {
            *left -= taken;
            self.ended |= *left == 0;
        }
        if taken > 0 && self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            self.handle.get_mut().count();
        }
        if let Some(ending) = &self.ending {
            let since = ending.at.instant.elapsed();
            // A slot that was open when the end came is handed out one timeout
            // later at the latest.
            self.ended |= (taken == 0 && since >= self.timeout * 2) || since >= DRAIN;
        }
        if self.ended && batch.is_empty() {
            return self.next_batch(batch);
        }
        Ok(true)
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        let live = self.counters();
        vec![InputStatistics {
            name: self.name.clone(),
            packets: self.packets,
            dropped: Some(live.dropped),
            live: Some(live),
        }]
    }
}

/// Nanoseconds where the system's libpcap has them for certain; others may
/// count in microseconds without saying so.
const PRECISION: Precision = if cfg!(target_os = "linux") {
    Precision::Nano
} else {
    Precision::Micro
};

/// Nanoseconds since 1970; the second field of the header counts what was
/// asked for.
// The fields are narrower on some systems.
#[allow(clippy::useless_conversion)]
fn timestamp(header: &pcap::PacketHeader) -> i64 {
    let unit = if cfg!(target_os = "linux") { 1 } else { 1000 };
    let (seconds, fraction) = (i64::from(header.ts.tv_sec), i64::from(header.ts.tv_usec));
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(fraction * unit)
}

/// Link type as files have it, from what libpcap calls it at run time.
fn link_type(dlt: i32) -> LinkType {
    match dlt {
        // DLT_RAW, by system.
        12 | 14 => LinkType::RAW,
        other => LinkType(u16::try_from(other).unwrap_or(u16::MAX)),
    }
}
