//! How two hosts tell each other of their queue pairs: a few records over TCP.
//!
//! Each record is 8 bytes of header, then JSON:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `RSNF` |
//! | 4..6 | version, big endian |
//! | 6..8 | length of the JSON, big endian; at most 4096 |
//!
//! The writer says [`Record::Hello`], the responder [`Record::Ready`] once its
//! queue pair can receive (or [`Record::Refused`]). While it runs, the writer
//! says [`Record::Alive`] each second, at the end [`Record::Done`]; the
//! responder looks into its memory and says [`Record::Verdict`]. Whoever hears
//! nothing for its time gives up; whoever's peer hangs up cleans up.

use std::{
    io::{self, Read, Write},
    net::{Ipv6Addr, TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::job::JobRecord;

/// TCP port on which a responder listens, unless told otherwise. Not 4791:
/// that is the port of the traffic itself, though in UDP.
pub const DEFAULT_PORT: u16 = 14791;

/// Version of the records; peers of another one are refused.
const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"RSNF";
const HEADER: usize = 8;
/// Bytes of JSON in a record at most.
const MAX_RECORD: usize = 4096;
/// How long a connection may take to come up, and a record to be taken.
const CONNECT: Duration = Duration::from_secs(5);

/// A responder on another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Where it listens: `host` or `host:port`, names and bare or bracketed
    /// IPv6 addresses too; [`DEFAULT_PORT`] where no port is given.
    pub address: String,
    /// Whether to connect the queue pairs through the RDMA connection manager.
    pub cm: bool,
}

impl Remote {
    /// Host and port.
    fn parts(&self) -> Result<(&str, u16), ExchangeError> {
        let address = self.address.as_str();
        let unusable = || ExchangeError::Address(address.to_owned());
        let (host, port) = if let Some(rest) = address.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(unusable)?;
            (
                host,
                rest.strip_prefix(':').or(rest.is_empty().then_some("")),
            )
        } else if address.matches(':').count() > 1 {
            (address, Some(""))
        } else {
            let (host, port) = address.split_once(':').unwrap_or((address, ""));
            (host, Some(port))
        };
        match port {
            _ if host.is_empty() => Err(unusable()),
            Some("") => Ok((host, DEFAULT_PORT)),
            Some(port) => Ok((host, port.parse().map_err(|_| unusable())?)),
            None => Err(unusable()),
        }
    }
}

/// Why two hosts could not agree.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("{0:?} is not HOST or HOST:PORT")]
    Address(String),
    #[error("cannot find {host}: {error}")]
    Resolve { host: String, error: io::Error },
    #[error(
        "no responder answers at {host} port {port}: {error}; start one there: \
         roce-sniff responder"
    )]
    Connect {
        host: String,
        port: u16,
        error: io::Error,
    },
    #[error("the peer hung up")]
    Closed,
    #[error("the peer said nothing for {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("the responder did not get ready within {:.0} s; it may be busy with another writer", .0.as_secs_f64())]
    Busy(Duration),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer is no roce-sniff: it began with \"{}\"", .0.escape_ascii())]
    Stranger([u8; 4]),
    #[error(
        "the peer speaks version {0} of the exchange, this program {VERSION}: use the same roce-sniff on both hosts"
    )]
    Version(u16),
    #[error("the peer announced a record of {0} bytes, over the limit of {MAX_RECORD}")]
    TooLong(usize),
    #[error("the peer's record is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the peer said {got} where {wanted} was due")]
    Unexpected {
        got: &'static str,
        wanted: &'static str,
    },
    #[error("the responder offers {0}")]
    Nonsense(String),
    #[error("the responder refused: {0}")]
    Refused(String),
}

/// A queue pair as its peer must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QpRecord {
    pub qpn: u32,
    /// First sequence number it sends.
    pub psn: u32,
}

/// Memory of the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Window {
    pub va: u64,
    pub rkey: u32,
    /// Bytes.
    pub len: u64,
}

/// How the queue pairs are to be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Connect {
    /// By hand: this queue pair of the sender.
    Qp(QpRecord),
    /// Through the connection manager.
    Cm {
        /// From the responder: it listens on this port of the manager's.
        port: u16,
        /// Chosen by the writer and told over the manager too, so that nobody
        /// else's request is taken for its.
        token: u64,
    },
}

/// What the two say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub(super) enum Record {
    /// The writer: what it is going to do, and with which queue pair.
    Hello {
        job: JobRecord,
        depth: u32,
        gid: Ipv6Addr,
        /// The path MTU it would like, in bytes.
        mtu: u32,
        /// Whether no smaller one will do.
        mtu_fixed: bool,
        connect: Connect,
    },
    /// The responder: ready to receive.
    Ready {
        gid: Ipv6Addr,
        /// The path MTU to use, in bytes.
        mtu: u32,
        /// READs and atomics that it serves at once.
        reads: u8,
        window: Window,
        connect: Connect,
    },
    /// The responder: it will not, and why.
    Refused { why: String },
    /// The writer: still at it.
    Alive,
    /// The writer: what it posted, and how many of that completed.
    Done { posted: u32, completed: u32 },
    /// The responder: whether its memory holds what it should, and how many
    /// receives were taken up.
    Verdict {
        verified: Option<bool>,
        received: u32,
    },
}

impl Record {
    const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Ready { .. } => "ready",
            Self::Refused { .. } => "refused",
            Self::Alive => "alive",
            Self::Done { .. } => "done",
            Self::Verdict { .. } => "verdict",
        }
    }

    /// The error of having got this record where another was due.
    pub fn instead_of(self, wanted: &'static str) -> ExchangeError {
        match self {
            // Somebody else's words: nothing in them may steer a terminal.
            Self::Refused { why } => {
                ExchangeError::Refused(why.chars().filter(|c| !c.is_control()).collect())
            }
            other => ExchangeError::Unexpected {
                got: other.name(),
                wanted,
            },
        }
    }

    fn encode(&self) -> Result<Vec<u8>, ExchangeError> {
        let json = serde_json::to_vec(self)?;
        let len = u16::try_from(json.len())
            .ok()
            .filter(|len| usize::from(*len) <= MAX_RECORD)
            .ok_or(ExchangeError::TooLong(json.len()))?;
        let mut bytes = preamble();
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&json);
        Ok(bytes)
    }

    /// The first record in `bytes` with its length, if it is all there.
    fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ExchangeError> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            // A stranger is recognised by what little it said.
            let known = bytes.len().min(MAGIC.len());
            if bytes[..known] != MAGIC[..known] {
                let mut said = [0; 4];
                said[..known].copy_from_slice(&bytes[..known]);
                return Err(ExchangeError::Stranger(said));
            }
            return Ok(None);
        };
        let [m0, m1, m2, m3, v0, v1, l0, l1] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(ExchangeError::Stranger([m0, m1, m2, m3]));
        }
        let version = u16::from_be_bytes([v0, v1]);
        if version != VERSION {
            return Err(ExchangeError::Version(version));
        }
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        if len > MAX_RECORD {
            return Err(ExchangeError::TooLong(len));
        }
        match bytes.get(HEADER..HEADER + len) {
            Some(json) => Ok(Some((serde_json::from_slice(json)?, HEADER + len))),
            None => Ok(None),
        }
    }
}

/// What the writer sends along with its request to the connection manager: the
/// magic, the version, the token of its [`Connect::Cm`].
pub(super) fn request_data(token: u64) -> Vec<u8> {
    let mut bytes = preamble();
    bytes.extend_from_slice(&token.to_be_bytes());
    bytes
}

/// The token in what came along with a request; `None` when it is not ours.
pub(super) fn read_request(bytes: &[u8]) -> Option<u64> {
    let rest = bytes.strip_prefix(preamble().as_slice())?;
    Some(u64::from_be_bytes(*rest.first_chunk()?))
}

/// What the responder sends along with its reply: the magic, the version, key,
/// address and length of its memory.
pub(super) fn reply_data(window: &Window) -> Vec<u8> {
    let mut bytes = preamble();
    bytes.extend_from_slice(&window.rkey.to_be_bytes());
    bytes.extend_from_slice(&window.va.to_be_bytes());
    bytes.extend_from_slice(&window.len.to_be_bytes());
    bytes
}

/// The memory in what came along with a reply; `None` when it is not ours.
pub(super) fn read_reply(bytes: &[u8]) -> Option<Window> {
    let rest = bytes.strip_prefix(preamble().as_slice())?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let (va, rest) = rest.split_first_chunk()?;
    Some(Window {
        rkey: u32::from_be_bytes(*rkey),
        va: u64::from_be_bytes(*va),
        len: u64::from_be_bytes(*rest.first_chunk()?),
    })
}

fn preamble() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes
}

/// A TCP connection that carries records.
#[derive(Debug)]
pub(super) struct Channel {
    stream: TcpStream,
    /// What was read and is not a whole record yet; never more than one
    /// record and one read.
    pending: Vec<u8>,
}

impl Channel {
    /// Connects to a responder, trying each of its addresses.
    pub fn connect(remote: &Remote) -> Result<Self, ExchangeError> {
        let (host, port) = remote.parts()?;
        let addresses = (host, port)
            .to_socket_addrs()
            .map_err(|error| ExchangeError::Resolve {
                host: host.to_owned(),
                error,
            })?;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Ok(Self::new(stream)?),
                Err(error) => last = error,
            }
        }
        Err(ExchangeError::Connect {
            host: host.to_owned(),
            port,
            error: last,
        })
    }

    /// Takes over a connection.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(CONNECT))?;
        Ok(Self {
            stream,
            pending: Vec::new(),
        })
    }

    /// Sends a record.
    pub fn say(&mut self, record: &Record) -> Result<(), ExchangeError> {
        Ok(self.stream.write_all(&record.encode()?)?)
    }

    /// A record if one arrives within `wait`; waits not at all when that is
    /// zero.
    pub fn poll(&mut self, wait: Duration) -> Result<Option<Record>, ExchangeError> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some((record, len)) = Record::decode(&self.pending)? {
                self.pending.drain(..len);
                return Ok(Some(record));
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            let mut bytes = [0; HEADER + MAX_RECORD];
            let read = if rest.is_zero() {
                self.stream.set_nonblocking(true)?;
                let read = self.stream.read(&mut bytes);
                self.stream.set_nonblocking(false)?;
                read
            } else {
                self.stream
                    .set_read_timeout(Some(rest.max(Duration::from_millis(1))))?;
                self.stream.read(&mut bytes)
            };
            match read {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(len) => self.pending.extend_from_slice(&bytes[..len]),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        if Instant::now() >= deadline {
                            return Ok(None);
                        }
                    }
                    io::ErrorKind::ConnectionReset => return Err(ExchangeError::Closed),
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// The next record, or an error when it is not there after `wait`.
    pub fn hear(&mut self, wait: Duration) -> Result<Record, ExchangeError> {
        self.poll(wait)?.ok_or(ExchangeError::Silent(wait))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use crate::rdma::{ledger::Op, verbs::job::Job};

    use super::*;

    /// Two ends of a connection; one speaks records, the other bytes.
    fn ends() -> (Channel, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        (Channel::new(other).unwrap(), stream)
    }

    const SHORT: Duration = Duration::from_millis(200);

    fn hello() -> Record {
        let job = Job {
            seed: 7,
            ..Job::new(Op::Write, 10, 64, 1).unwrap()
        };
        Record::Hello {
            job: job.record(),
            depth: 1,
            gid: "::ffff:10.0.0.1".parse().unwrap(),
            mtu: 1024,
            mtu_fixed: false,
            connect: Connect::Qp(QpRecord {
                qpn: 0x11,
                psn: 0xff_ffff,
            }),
        }
    }

    fn refusal(bytes: &[u8]) -> String {
        let (mut channel, mut stream) = ends();
        stream.write_all(bytes).unwrap();
        channel.hear(SHORT).unwrap_err().to_string()
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let (mut channel, stream) = ends();
        let mut other = Channel::new(stream).unwrap();
        let ready = Record::Ready {
            gid: "fe80::1".parse().unwrap(),
            mtu: 4096,
            reads: 16,
            window: Window {
                va: u64::MAX,
                rkey: u32::MAX,
                len: 640,
            },
            connect: Connect::Cm {
                port: 4000,
                token: 1,
            },
        };
        let verdict = Record::Verdict {
            verified: None,
            received: 3,
        };
        // Several at once, and one in the other direction.
        for record in [hello(), ready.clone(), Record::Alive, verdict.clone()] {
            other.say(&record).unwrap();
        }
        for record in [hello(), ready, Record::Alive, verdict] {
            assert_eq!(channel.hear(SHORT).unwrap(), record);
        }
        assert_eq!(channel.poll(Duration::ZERO).unwrap(), None);
        channel.say(&Record::Alive).unwrap();
        assert_eq!(other.hear(SHORT).unwrap(), Record::Alive);
    }

    #[test]
    fn a_slow_peer_is_heard_until_its_time_is_up() {
        let (mut channel, mut stream) = ends();
        let bytes = hello().encode().unwrap();
        let slow = thread::spawn(move || {
            for byte in bytes {
                stream.write_all(&[byte]).unwrap();
                thread::sleep(Duration::from_micros(100));
            }
            stream
        });
        assert_eq!(channel.hear(Duration::from_secs(20)).unwrap(), hello());
        let mut stream = slow.join().unwrap();
        // A drip does not extend the time.
        stream.write_all(b"RSNF").unwrap();
        let begun = Instant::now();
        let error = channel.hear(SHORT).unwrap_err();
        assert!(matches!(error, ExchangeError::Silent(_)), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(stream);
        assert!(matches!(channel.hear(SHORT), Err(ExchangeError::Closed)));
    }

    #[test]
    fn strangers_are_told_apart() {
        assert!(refusal(b"GET / HTTP/1.1\r\n").contains("no roce-sniff"));
        assert!(refusal(b"\x16\x03").contains("no roce-sniff"), "short, too");
        let error = refusal(b"RSNF\x00\x02\x00\x00");
        assert!(error.contains("version 2 of the exchange"), "{error}");
        let error = refusal(b"RSNF\x00\x01\xff\xff");
        assert!(
            error.contains("65535 bytes, over the limit of 4096"),
            "{error}"
        );
        assert!(refusal(b"RSNF\x00\x01\x00\x02{]").contains("malformed"));
        assert!(refusal(b"RSNF\x00\x01\x00\x00").contains("malformed"));
        let error = refusal(b"RSNF\x00\x01\x00\x14{\"record\":\"goodbye\"}");
        assert!(error.contains("unknown variant"), "{error}");
    }

    #[test]
    fn what_goes_along_with_the_managers_messages() {
        let window = Window {
            va: 0x7f00_1234_5000,
            rkey: 0x4d2,
            len: 640,
        };
        let mut reply = reply_data(&window);
        assert_eq!(reply.len(), 26);
        assert_eq!(read_reply(&reply[..25]), None, "cut");
        // The manager pads to the size of its field.
        reply.resize(196, 0);
        assert_eq!(read_reply(&reply), Some(window));
        let mut request = request_data(7);
        request.resize(56, 0);
        assert_eq!(read_request(&request), Some(7));
        assert_eq!(read_request(b""), None);
        assert_eq!(read_request(&[0; 56]), None, "somebody else's");
    }

    #[test]
    fn keys_of_later_versions_are_passed_over() {
        let (mut channel, mut stream) = ends();
        stream
            .write_all(b"RSNF\x00\x01\x00\x1c{\"record\":\"alive\",\"since\":1}")
            .unwrap();
        assert_eq!(channel.hear(SHORT).unwrap(), Record::Alive);
    }

    #[test]
    fn a_record_over_the_limit_is_not_sent() {
        let why = "x".repeat(5000);
        let error = Record::Refused { why }.encode().unwrap_err();
        assert!(matches!(error, ExchangeError::TooLong(5000..)), "{error}");
    }

    #[test]
    fn addresses_have_a_port_or_get_one() {
        let parts = |address: &str| {
            let remote = Remote {
                address: address.to_owned(),
                cm: false,
            };
            remote.parts().map(|(h, p)| (h.to_owned(), p)).ok()
        };
        let host = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(parts("10.0.0.2"), host("10.0.0.2", DEFAULT_PORT));
        assert_eq!(parts("node7:99"), host("node7", 99));
        assert_eq!(parts("fd00::2"), host("fd00::2", DEFAULT_PORT));
        assert_eq!(parts("[fd00::2]"), host("fd00::2", DEFAULT_PORT));
        assert_eq!(parts("[fd00::2]:99"), host("fd00::2", 99));
        assert_eq!(parts("fe80::2%eth0"), host("fe80::2%eth0", DEFAULT_PORT));
        for broken in ["", ":99", "node:port", "node:99999", "[fd00::2", "[::1]x"] {
            assert_eq!(parts(broken), None, "{broken}");
        }
    }

    #[test]
    fn nobody_there_says_what_to_start() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let remote = Remote { address, cm: false };
        let error = Channel::connect(&remote).unwrap_err().to_string();
        assert!(error.contains("roce-sniff responder"), "{error}");
    }
}
