//! The kernel tap: every packet that the Soft-RoCE driver receives, looped or
//! not, from a BPF program on its receive function.
//!
//! A packet to an address of the sending device itself never touches a
//! netdev: the driver hands it from its transmit path to `rxe_rcv()`, through
//! which packets from a netdev go as well. The program (`tap.bpf.c`) copies
//! what passes there into a ring buffer. A looped request and its looped
//! answer both pass, so one probe shows the whole conversation.
//!
//! Packets begin with their IP header ([`LinkType::RAW`]): a looped one never
//! had any other. The probe lives as long as the process: it hangs on a file
//! descriptor, and the kernel takes it away with that, however the process
//! ends.

mod beside;
mod clock;
mod listener;
mod record;
mod trouble;

use std::{
    os::fd::AsFd,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData, PerCpuHashMap, PerCpuValues, RingBuf},
    programs::{KProbe, ProgramError},
    util::nr_cpus,
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit},
};

pub use beside::Beside;
pub use listener::TapListener;
pub use trouble::TapError;

use self::{
    clock::WallClock,
    record::TapRecord,
    trouble::{Machine, explain_attach, load_error},
};
use super::{
    Batch, InputStatistics, LinkType, LiveCounters, PacketSource, RawPacket, SourceError, Stop,
    TapCounters,
};

/// The compiled program, at an address fit for its tables; `None` where the
/// build had no compiler for it.
fn program() -> Option<&'static [u8]> {
    #[cfg(tap_program)]
    return Some(aya::include_bytes_aligned!(env!("TAP_PROGRAM")));
    #[cfg(not(tap_program))]
    None
}

/// The driver's receive function, in every version.
const FUNCTION: &str = "rxe_rcv";
/// How long records may lie in the ring, where there are too few of them to
/// wake the reader.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for packets that were in the program's hands when the probe
/// went.
const DRAIN: Duration = Duration::from_secs(1);
/// Bytes in a batch before it is handed out.
const BATCH_BYTES: usize = 1 << 20;
/// Packets in a batch before it is handed out.
const BATCH_PACKETS: usize = 4096;
/// Key of the counts of packets without a netdev.
const NO_NETDEV: u32 = 0;
/// The filter's word for every queue pair.
const EVERY_QP: u32 = u32::MAX;

/// A Soft-RoCE device to tell the packets of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TapDevice {
    /// Name, as `rxe0`.
    pub name: String,
    /// Indexes of the netdevs under it: its own, and VLANs on that.
    pub ifindexes: Vec<u32>,
}

/// What to tap, and how.
#[derive(Debug, Clone)]
pub struct TapOptions {
    /// Soft-RoCE devices there are, each an input of its own; packets of
    /// devices that come later are one input after these.
    pub devices: Vec<TapDevice>,
    /// Only packets over the netdev of this index.
    pub ifindex: Option<u32>,
    /// Only packets to this queue pair.
    pub qp: Option<u32>,
    /// Only packets that never touched a netdev.
    pub looped_only: bool,
    /// Bytes kept of a packet, from its IP header on.
    pub snaplen: u32,
    /// Bytes of the ring buffer; rounded up to a power of two of pages.
    pub buffer: u32,
    /// Time after which the capture ends.
    pub duration: Option<Duration>,
    /// Packets after which the capture ends.
    pub count: Option<u64>,
}

impl TapOptions {
    /// Whole packets: the largest RoCE packet has 4096 bytes of payload and
    /// less than 128 of headers. The program keeps no more.
    pub const SNAPLEN: u32 = 4224;
    /// Some 3,500 of the largest packets.
    pub const BUFFER: u32 = 16 << 20;

    /// Everything that these devices receive, until stopped.
    #[must_use]
    pub const fn new(devices: Vec<TapDevice>) -> Self {
        Self {
            devices,
            ifindex: None,
            qp: None,
            looped_only: false,
            snaplen: Self::SNAPLEN,
            buffer: Self::BUFFER,
            duration: None,
            count: None,
        }
    }

    /// Size that the kernel takes for the ring.
    fn ring_bytes(&self) -> u32 {
        // Pages have 4 KiB, or 16 or 64 on other processors.
        self.buffer
            .clamp(1 << 12, 1 << 30)
            .next_power_of_two()
            .max(u32::try_from(page_size()).unwrap_or(1 << 16))
    }
}

fn page_size() -> i64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .unwrap_or(1 << 12)
}

/// Whether packets can be tapped here.
///
/// # Errors
/// What is missing, with its repair.
pub fn can_run() -> Result<(), TapError> {
    if program().is_none() {
        return Err(TapError::NotBuilt);
    }
    Machine::default().check()
}

/// Whether this build has the tap at all.
#[must_use]
pub const fn is_built() -> bool {
    cfg!(tap_program)
}

/// One input: a device, or what belongs to none that was known.
struct Input {
    name: String,
    ifindexes: Vec<u32>,
    packets: u64,
}

/// The packets that pass the driver's receive function.
///
/// Batches come as the ring is looked at, and an empty one each time nothing
/// was in it for a while.
pub struct TapSource {
    /// `None` once the probe is gone. Holds program and link; the maps live
    /// on in what follows.
    probe: Option<Ebpf>,
    ring: RingBuf<MapData>,
    counters: PerCpuHashMap<MapData, u32, [u64; 4]>,
    inputs: Vec<Input>,
    snaplen: u32,
    clock: WallClock,
    stop: Stop,
    started_ns: i64,
    deadline: Option<Instant>,
    left: Option<u64>,
    ending: Option<Instant>,
    delivered: u64,
}

impl TapSource {
    /// Puts the probe in place; packets are captured from here on. The
    /// capture ends when `stop` is set, or as the options say.
    ///
    /// # Errors
    /// What stands in the way, with its repair.
    pub fn open(options: &TapOptions, stop: Stop) -> Result<Self, TapError> {
        let program = program().ok_or(TapError::NotBuilt)?;
        Machine::default().check()?;
        unlimit_memory();
        let bytes = options.ring_bytes();
        let (ifindex, qp) = (options.ifindex.unwrap_or(0), options.qp.unwrap_or(EVERY_QP));
        let looped_only = u32::from(options.looped_only);
        let wake_at = bytes / 8;
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("ring", bytes)
            .override_global("snaplen", &options.snaplen, true)
            .override_global("only_ifindex", &ifindex, true)
            .override_global("only_qp", &qp, true)
            .override_global("only_looped", &looped_only, true)
            .override_global("wake_at", &wake_at, true)
            .load(program)
            .map_err(load_error(bytes))?;
        let map = |ebpf: &mut Ebpf, name| {
            let taken = ebpf.take_map(name);
            taken.ok_or_else(|| refused("loaded", format!("it has no map {name}")))
        };
        let ring = map(&mut ebpf, "ring")?;
        let ring = RingBuf::try_from(ring).map_err(|e| load_error(bytes)(e.into()))?;
        let counters = map(&mut ebpf, "counters")?;
        let counters = counters_map(counters).map_err(|e| load_error(bytes)(e.into()))?;
        let probe: &mut KProbe = ebpf
            .program_mut("tap")
            .ok_or_else(|| refused("loaded", "it has no program".into()))?
            .try_into()
            .map_err(|error: ProgramError| load_error(bytes)(error.into()))?;
        probe
            .load()
            .map_err(|error| load_error(bytes)(error.into()))?;
        let clock = WallClock::new();
        let start = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        probe
            .attach(FUNCTION, 0)
            .map_err(|error| explain_attach(&error))?;
        let known = options.devices.iter().map(|device| Input {
            name: format!("{} kernel tap", device.name),
            ifindexes: device.ifindexes.clone(),
            packets: 0,
        });
        let other = Input {
            name: "kernel tap".into(),
            ifindexes: Vec::new(),
            packets: 0,
        };
        Ok(Self {
            probe: Some(ebpf),
            ring,
            counters,
            inputs: known.chain([other]).collect(),
            snaplen: options.snaplen,
            clock,
            stop,
            started_ns: since.map_or(0, |since| since.as_nanos() as i64),
            deadline: options.duration.and_then(|time| start.checked_add(time)),
            left: options.count,
            ending: None,
            delivered: 0,
        })
    }

    /// Names of the inputs by their numbers; the last is that of packets of
    /// devices which were not known at the start.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|input| input.name.as_str())
    }

    /// When the capture began, in nanoseconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn started_ns(&self) -> i64 {
        self.started_ns
    }

    /// Bytes kept of a packet.
    #[must_use]
    pub const fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// What the program counted so far, by input.
    #[must_use]
    pub fn counters(&self) -> Vec<TapCounters> {
        let mut counters = vec![TapCounters::default(); self.inputs.len()];
        for (ifindex, counts) in self.counters.iter().filter_map(Result::ok) {
            let input = find(&self.inputs, ifindex);
            for counts in counts.iter() {
                counters[input].add(*counts);
            }
        }
        counters
    }

    /// Takes the probe away. What is in the ring can still be read.
    fn detach(&mut self) {
        self.probe = None;
        self.ending.get_or_insert_with(Instant::now);
    }

    /// Takes what the ring holds, up to the limits of a batch.
    fn take(&mut self, batch: &mut Batch) {
        self.clock.refresh();
        let room = self.left.map_or(BATCH_PACKETS, |left| {
            usize::try_from(left).map_or(BATCH_PACKETS, |left| left.min(BATCH_PACKETS))
        });
        while batch.records.len() < room && batch.bytes.len() < BATCH_BYTES {
            let Some(item) = self.ring.next() else { break };
            let Some(record) = TapRecord::read(&item) else {
                continue;
            };
            let number = find(&self.inputs, record.ifindex);
            let input = &mut self.inputs[number];
            input.packets += 1;
            batch.push(&RawPacket {
                input: number as u16,
                frame: input.packets,
                ts_ns: self.clock.wall_ns(record.ktime_ns),
                len: record.len.max(record.bytes.len() as u32),
                link: LinkType::RAW,
                path: Some(record.path),
                data: record.bytes,
            });
        }
        let taken = batch.records.len() as u64;
        self.delivered += taken;
        if let Some(left) = &mut self.left {
            *left -= taken;
        }
    }

    /// Waits until the ring fills up, at most until it is to be looked at
    /// anyway, the deadline, or a signal.
    fn wait(&self) {
        let left = self.deadline.map_or(LOOK, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(LOOK)
        });
        let left = u16::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        let mut fd = [PollFd::new(self.ring.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fd, PollTimeout::from(left));
    }

    /// The next packets, for which it may `wait`; false at the end.
    fn next(&mut self, batch: &mut Batch, wait: bool) -> bool {
        batch.clear();
        let due = self.deadline.is_some_and(|d| d <= Instant::now());
        if self.ending.is_none() && (due || self.stop.is_set()) {
            self.detach();
        }
        if self.left == Some(0) {
            self.detach();
            return false;
        }
        self.take(batch);
        if !batch.is_empty() {
            return true;
        }
        match self.ending {
            Some(since) if self.drained(since) => return false,
            Some(_) => std::thread::sleep(Duration::from_millis(1)),
            None if wait => self.wait(),
            None => return true,
        }
        self.take(batch);
        true
    }

    /// Whether everything that was put into the ring has been taken out.
    fn drained(&self, since: Instant) -> bool {
        let submitted: u64 = self.counters().iter().map(TapCounters::submitted).sum();
        self.delivered >= submitted || since.elapsed() >= DRAIN
    }
}

fn find(inputs: &[Input], ifindex: u32) -> usize {
    let known = inputs
        .iter()
        .position(|input| input.ifindexes.contains(&ifindex));
    known.unwrap_or(inputs.len() - 1)
}

fn refused(step: &'static str, reason: String) -> TapError {
    TapError::Refused { step, reason }
}

/// The map of counts, with an entry for packets without a netdev.
fn counters_map(map: Map) -> Result<PerCpuHashMap<MapData, u32, [u64; 4]>, aya::maps::MapError> {
    let mut counters = PerCpuHashMap::try_from(map)?;
    let cpus = nr_cpus().unwrap_or(1);
    if let Ok(zeros) = PerCpuValues::try_from(vec![[0; 4]; cpus]) {
        counters.insert(NO_NETDEV, zeros, 0)?;
    }
    Ok(counters)
}

/// Before 5.11 maps count as locked memory, of which 64 KiB are allowed.
fn unlimit_memory() {
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_MEMLOCK)
        && soft != RLIM_INFINITY
    {
        // Where it may not be raised, a later kernel does not mind.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    }
}

impl PacketSource for TapSource {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        Ok(self.next(batch, true))
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        let counters = self.counters();
        let inputs = self.inputs.iter().zip(counters);
        inputs
            .map(|(input, counters)| InputStatistics {
                name: input.name.clone(),
                packets: input.packets,
                dropped: Some(counters.lost),
                live: Some(LiveCounters {
                    received: counters.seen.saturating_sub(counters.filtered),
                    dropped: counters.lost,
                    if_dropped: 0,
                }),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_sizes_the_kernel_takes() {
        let ring = |buffer| {
            TapOptions {
                buffer,
                ..TapOptions::new(Vec::new())
            }
            .ring_bytes()
        };
        assert_eq!(ring(TapOptions::BUFFER), TapOptions::BUFFER);
        for buffer in [0, 1, 5000, (1 << 20) + 1, u32::MAX] {
            let bytes = ring(buffer);
            assert!(bytes.is_power_of_two(), "{bytes}");
            assert_eq!(i64::from(bytes) % page_size(), 0);
        }
    }

    #[test]
    fn packets_find_the_device_on_their_netdev() {
        let input = |name: &str, ifindexes: &[u32]| Input {
            name: name.into(),
            ifindexes: ifindexes.to_vec(),
            packets: 0,
        };
        let inputs = [input("rxe0", &[3, 7]), input("rxe1", &[4]), input("", &[])];
        assert_eq!(find(&inputs, 7), 0);
        assert_eq!(find(&inputs, 4), 1);
        assert_eq!(find(&inputs, 9), 2);
        assert_eq!(find(&inputs, NO_NETDEV), 2);
    }

    /// Machines without the driver say so, and nothing is left behind.
    #[test]
    fn a_tap_that_cannot_run_says_why() {
        let opened = TapSource::open(&TapOptions::new(Vec::new()), Stop::default());
        match (can_run(), opened) {
            (Ok(()), _) | (Err(_), Err(_)) => {}
            (Err(why), Ok(_)) => panic!("it does run: {why}"),
        }
    }
}
