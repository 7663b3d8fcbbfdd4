//! Where packets come from: capture files, standard input, network devices.
//!
//! A [`PacketSource`] yields [`Batch`]es of raw records. A batch owns one
//! stretch of bytes and an index of the packets in it, so that it can travel
//! to a worker thread and be used again without allocating.

mod compress;
#[cfg(all(feature = "live", unix))]
mod control;
mod file;
#[cfg(all(feature = "live", unix))]
mod listener;
#[cfg(all(feature = "live", unix))]
mod live;
mod mapped;
mod merge;
#[cfg(all(feature = "live", unix))]
mod netdev;
mod pcap;
mod pcapng;
#[cfg(all(feature = "tap", target_os = "linux"))]
pub mod tap;
#[cfg(all(feature = "live", unix))]
mod tapped;

use std::fmt;

use mapped::Window;

#[cfg(all(feature = "live", unix))]
pub use control::{ControlFrame, Nonce, recognise};
pub use file::{BATCH_BYTES, FileSource, InputFile, open};
#[cfg(all(feature = "live", unix))]
pub use listener::{Heard, Injector, Listener, OwnedPacket, Proof};
#[cfg(all(feature = "live", unix))]
pub use live::{LiveOptions, LiveSource, Stop};
pub use merge::{Chain, Merge};
#[cfg(all(feature = "live", unix))]
pub use netdev::{Netdev, netdev, netdevs};
#[cfg(all(feature = "live", unix))]
pub use tapped::{TapCounters, TapHeard};

/// Link-layer type of a packet, by its number in the registry of the pcap
/// formats (LINKTYPE_ values).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: 4 bytes of address family in the capturing host's order.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// Bare IPv4 or IPv6, told apart by the version nibble.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: like NULL in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture.
    pub const LINUX_SLL: Self = Self(113);
    /// Endace extensible record format (not supported).
    pub const ERF: Self = Self(197);
    /// Bare IPv4.
    pub const IPV4: Self = Self(228);
    /// Bare IPv6.
    pub const IPV6: Self = Self(229);
    /// InfiniBand from the local route header on (not supported).
    pub const INFINIBAND: Self = Self(247);
    /// Linux cooked capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);

    /// Name as the registry has it, for those this crate has heard of.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NULL => "NULL",
            Self::ETHERNET => "ETHERNET",
            // 12 and 14 are what some BSDs write for RAW.
            Self(12 | 14) | Self::RAW => "RAW",
            Self::LOOP => "LOOP",
            Self::LINUX_SLL => "LINUX_SLL",
            Self::ERF => "ERF",
            Self::IPV4 => "IPV4",
            Self::IPV6 => "IPV6",
            Self::INFINIBAND => "INFINIBAND",
            Self::LINUX_SLL2 => "LINUX_SLL2",
            Self(105) => "IEEE802_11",
            Self(127) => "IEEE802_11_RADIOTAP",
            _ => return None,
        })
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

/// How a packet reached the driver, where that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PacketPath {
    /// Handed back by the driver to itself: it never touched a netdev.
    Looped,
    /// Over a netdev.
    Wire,
}

impl PacketPath {
    /// The word for it in tables and machine-readable output.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Looped => "looped",
            Self::Wire => "wire",
        }
    }
}

/// Comment on looped packets in recordings.
pub const LOOPED_COMMENT: &str = "loopback-bypassed";

/// First bytes of the payload of a control frame, which a write run's listener
/// sends to itself.
pub const CONTROL_MARK: &[u8; 18] = b"roce-sniff control";

/// One captured packet, borrowed from its batch.
#[derive(Debug, Clone, Copy)]
pub struct RawPacket<'a> {
    /// Number of the input, from 0, in the order the inputs were named.
    pub input: u16,
    /// Number of the packet in its input, from 1.
    pub frame: u64,
    /// Nanoseconds since 1970-01-01 00:00 UTC; may be negative, and may run
    /// backwards from packet to packet.
    pub ts_ns: i64,
    /// Bytes the packet had on the wire; never less than `data.len()`.
    pub len: u32,
    /// Link-layer type of `data`.
    pub link: LinkType,
    /// How it came, where the kernel tap was there to see.
    pub path: Option<PacketPath>,
    /// The bytes that were captured.
    pub data: &'a [u8],
}

/// Index entry of one packet within a batch's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub ts_ns: i64,
    pub offset: u32,
    pub caplen: u32,
    pub len: u32,
    pub link: LinkType,
    pub path: Option<PacketPath>,
}

/// Where a record of a merged batch came from.
#[derive(Debug, Clone, Copy)]
struct Origin {
    input: u16,
    frame: u64,
}

/// A stretch of captured bytes and the packets in it.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Stands in for `bytes` where the packets are left where a file is
    /// mapped.
    window: Option<Window>,
    records: Vec<Record>,
    input: u16,
    first_frame: u64,
    /// Filled only where records of several inputs are interleaved.
    origins: Vec<Origin>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Packets in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True when no packet is in the batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The packets, in capture order.
    #[inline]
    pub fn packets(&self) -> impl Iterator<Item = RawPacket<'_>> {
        let bytes = self.bytes();
        let records = self.records.iter().enumerate();
        records.map(move |(index, record)| self.made(index, record, bytes))
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match &self.window {
            Some(window) => window.bytes(),
            None => &self.bytes,
        }
    }

    fn packet(&self, index: usize) -> RawPacket<'_> {
        self.made(index, &self.records[index], self.bytes())
    }

    #[inline]
    fn made<'a>(&self, index: usize, record: &Record, bytes: &'a [u8]) -> RawPacket<'a> {
        let (input, frame) = match self.origins.get(index) {
            Some(origin) => (origin.input, origin.frame),
            None => (self.input, self.first_frame + index as u64),
        };
        let start = record.offset as usize;
        RawPacket {
            input,
            frame,
            ts_ns: record.ts_ns,
            len: record.len.max(record.caplen),
            link: record.link,
            path: record.path,
            data: &bytes[start..start + record.caplen as usize],
        }
    }

    /// Appends a copy of a packet, with its origin.
    pub fn push(&mut self, packet: &RawPacket<'_>) {
        self.records.push(Record {
            ts_ns: packet.ts_ns,
            offset: self.bytes.len() as u32,
            caplen: packet.data.len() as u32,
            len: packet.len,
            link: packet.link,
            path: packet.path,
        });
        self.origins.push(Origin {
            input: packet.input,
            frame: packet.frame,
        });
        self.bytes.extend_from_slice(packet.data);
    }

    /// Appends a copy of a packet of the batch's own input, in the order of
    /// its frames.
    #[cfg(all(feature = "live", unix))]
    fn append(&mut self, ts_ns: i64, len: u32, link: LinkType, data: &[u8]) {
        self.records.push(Record {
            ts_ns,
            offset: self.bytes.len() as u32,
            caplen: data.len() as u32,
            len,
            link,
            path: None,
        });
        self.bytes.extend_from_slice(data);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.window = None;
        self.records.clear();
        self.origins.clear();
    }
}

/// Something that yields packets, a batch at a time.
pub trait PacketSource: Send {
    /// Replaces the contents of `batch` by the next packets. `Ok(false)` is
    /// the end; a batch may be empty before the end.
    ///
    /// # Errors
    /// When the input cannot be read or is damaged. Every packet before the
    /// damage has been delivered by earlier calls; later calls continue with
    /// the next input, if there is one.
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError>;

    /// Whether reading may block for as long as it likes, as a pipe does. Such
    /// a source is read by the thread that hands its packets on, so that the
    /// end of the output ends the reading.
    fn may_block(&self) -> bool {
        false
    }

    /// What the inputs that were opened said about themselves, as far as they
    /// were read.
    fn statistics(&self) -> Vec<InputStatistics>;

    /// Bytes of files read so far, compressed as they are.
    fn bytes_read(&self) -> u64 {
        0
    }
}

impl<S: PacketSource + ?Sized> PacketSource for Box<S> {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        (**self).next_batch(batch)
    }

    fn may_block(&self) -> bool {
        (**self).may_block()
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        (**self).statistics()
    }

    fn bytes_read(&self) -> u64 {
        (**self).bytes_read()
    }
}

/// What an input said about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputStatistics {
    /// Name of the file or device.
    pub name: String,
    /// Packets delivered so far.
    pub packets: u64,
    /// Packets that the capturing program reported as dropped, summed over
    /// interfaces; `None` when it reported nothing.
    pub dropped: Option<u64>,
    /// What the kernel counted, where the input is a network device.
    pub live: Option<LiveCounters>,
}

/// What the kernel counted since a live capture began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveCounters {
    /// Frames that passed the capture filter, those dropped afterwards
    /// included.
    pub received: u64,
    /// Of these, dropped because the buffer was full.
    pub dropped: u64,
    /// Dropped by the network device or its driver before any filter, whatever
    /// they were.
    pub if_dropped: u64,
}

/// An input that could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file could not be opened.
    #[error("{name}: cannot open: {error}")]
    Open {
        /// Name of the input.
        name: String,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// Reading failed; a broken compressed stream shows here.
    #[error("{name}: after record {record}, at byte {offset}{stream}: cannot read on: {error}")]
    Read {
        /// Name of the input.
        name: String,
        /// Packets read before the failure.
        record: u64,
        /// Byte offset, in the decompressed stream.
        offset: u64,
        /// Says so when the offset is one of decompressed bytes.
        stream: &'static str,
        /// What the system or the decompressor said.
        #[source]
        error: std::io::Error,
    },
    /// The bytes are not a capture in a known format.
    #[error("{name}: not a capture file: {reason}")]
    NotACapture {
        /// Name of the input.
        name: String,
        /// What was found instead.
        reason: String,
    },
    /// The capture is damaged from here on.
    #[error("{name}: damaged at record {record}, byte offset {offset}{stream}: {reason}")]
    Damaged {
        /// Name of the input.
        name: String,
        /// Number of the record that could not be read, from 1.
        record: u64,
        /// Byte offset of that record, in the decompressed stream.
        offset: u64,
        /// Says so when the offset is one of decompressed bytes.
        stream: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// No network device has this name.
    #[error("no network device {name}{hint}; there are: {there}")]
    NoSuchDevice {
        /// The name.
        name: String,
        /// Empty, or what the name stands for instead.
        hint: &'static str,
        /// Names of the devices there are.
        there: String,
    },
    /// The system does not let this user capture.
    #[error(
        "{name}: capturing needs CAP_NET_RAW: run with sudo, or once: \
         sudo setcap cap_net_raw+ep {program}"
    )]
    NotPermitted {
        /// Name of the network device.
        name: String,
        /// Path of the running program.
        program: String,
    },
    /// The network device is down, or went down.
    #[error("{name} {is} down: sudo ip link set {name} up")]
    Down {
        /// Name of the network device.
        name: String,
        /// Whether it was so from the start: `is` or `went`.
        is: &'static str,
    },
    /// A capture filter does not compile.
    #[error("{name}: capture filter '{expression}': {reason}")]
    CaptureFilter {
        /// Name of the network device; what an expression means depends on its
        /// link type.
        name: String,
        /// The expression.
        expression: String,
        /// What libpcap said.
        reason: String,
    },
    /// Live capture failed in another way.
    #[error("{name}: cannot capture: {reason}")]
    Capture {
        /// Name of the network device.
        name: String,
        /// What libpcap said.
        reason: String,
    },
}
