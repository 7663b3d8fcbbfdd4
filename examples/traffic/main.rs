//! Writes a synthetic capture with known answers, for measuring.
//!
//! `traffic headers|full|qps FILE [PACKETS]`: *headers* is packets of
//! 1024-byte WRITEs cut at 128 bytes, 16 queue pairs; *full* is whole packets
//! of 4096 bytes with right invariant CRCs; *qps* is *headers* with a queue
//! pair of its own for every 5 packets. What an analyser must find is printed
//! as JSON. The same arguments give the same bytes everywhere.
//!
//! `traffic send NETDEV [PACKETS [PER_SECOND]]` sends such packets, the WRITEs
//! whole and of 1024 bytes, through a network device of Linux, and prints how
//! many seconds that took too.

#[cfg(target_os = "linux")]
mod wire;

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    process::ExitCode,
    time::Duration,
};

/// One message is four packets.
const MESSAGE: u32 = 4;
/// One message in so many loses a packet on its way to the capture.
const LOSS_EVERY: u64 = 500;
/// Nanoseconds between packets.
const PACE_NS: u64 = 400;

/// What is written, and how much of it.
struct Shape {
    payload: usize,
    snaplen: usize,
    qps: u64,
    packets: u64,
}

/// What an analyser must find.
#[derive(Default)]
struct Answers {
    packets: u64,
    flows: u64,
    messages: u64,
    acks: u64,
    sequence_naks: u64,
    gaps: u64,
    retransmitted: u64,
    payload_bytes: u64,
}

/// One of two ends that talk.
struct Pair {
    /// The requester's address ends in an odd byte, the responder's in the
    /// next even one.
    host: u32,
    requester_qp: u32,
    responder_qp: u32,
    psn: u32,
    va: u64,
    messages: u64,
}

/// Where frames go.
enum Out {
    File(BufWriter<File>),
    #[cfg(target_os = "linux")]
    Wire(Box<wire::Wire>),
}

struct Capture {
    out: Out,
    shape: Shape,
    now_ns: u64,
    ip_id: u16,
    frame: Vec<u8>,
    answers: Answers,
}

/// What a packet carries.
struct Packet {
    opcode: u8,
    psn: u32,
    ack_req: bool,
    reth: Option<(u64, u32, u32)>,
    aeth: Option<u8>,
    payload: usize,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("traffic: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> io::Result<()> {
    let usage = || {
        io::Error::other(
            "usage: traffic headers|full|qps FILE [PACKETS]\n       \
             traffic send NETDEV [PACKETS [PER_SECOND]]",
        )
    };
    let (kind, path) = (
        args.first().ok_or_else(usage)?,
        args.get(1).ok_or_else(usage)?,
    );
    let packets = match args.get(2) {
        Some(text) => Some(text.parse().map_err(|_| usage())?),
        None => None,
    };
    let per_second = match args.get(3) {
        Some(text) if kind == "send" => Some(text.parse().map_err(|_| usage())?),
        Some(_) => return Err(usage()),
        None => None,
    };
    let shape = match kind.as_str() {
        "headers" => Shape {
            payload: 1024,
            snaplen: 128,
            qps: 16,
            packets: packets.unwrap_or(5_000_000),
        },
        "full" => Shape {
            payload: 4096,
            snaplen: 65535,
            qps: 16,
            packets: packets.unwrap_or(375_000),
        },
        "qps" => {
            let packets = packets.unwrap_or(5_000_000);
            Shape {
                payload: 1024,
                snaplen: 128,
                qps: packets / 5,
                packets,
            }
        }
        "send" => Shape {
            payload: 1024,
            snaplen: 65535,
            qps: 16,
            packets: packets.unwrap_or(3_000_000),
        },
        _ => return Err(usage()),
    };
    let mut capture = Capture {
        out: Out::open(kind, path, per_second, shape.snaplen)?,
        shape,
        now_ns: 1_700_000_000_000_000_000,
        ip_id: 1,
        frame: Vec::new(),
        answers: Answers::default(),
    };
    capture.fill()?;
    let seconds = match capture.out.finish()? {
        Some(took) => format!(",\"seconds\":{:.6}", took.as_secs_f64()),
        None => String::new(),
    };
    let a = capture.answers;
    println!(
        "{{\"packets\":{},\"flows\":{},\"messages\":{},\"acks\":{},\"sequence_naks\":{},\"gaps\":{},\
         \"missing\":0,\"retransmitted\":{},\"payload_bytes\":{}{seconds}}}",
        a.packets,
        a.flows,
        a.messages,
        a.acks,
        a.sequence_naks,
        a.gaps,
        a.retransmitted,
        a.payload_bytes
    );
    Ok(())
}

/// A small generator of numbers that look random (splitmix64).
fn scatter(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Out {
    fn open(kind: &str, place: &str, per_second: Option<u32>, snaplen: usize) -> io::Result<Self> {
        if kind != "send" {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(place)?);
            file.write_all(&header(snaplen))?;
            return Ok(Self::File(file));
        }
        #[cfg(target_os = "linux")]
        return Ok(Self::Wire(Box::new(wire::Wire::open(place, per_second)?)));
        #[cfg(not(target_os = "linux"))]
        Err(io::Error::other("frames are sent on Linux only"))
    }

    /// Takes a frame of `len` bytes, or what is kept of it.
    fn frame(&mut self, now_ns: u64, frame: &[u8], len: usize) -> io::Result<()> {
        match self {
            Self::File(file) => {
                let (seconds, ns) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
                for word in [seconds as u32, ns as u32, frame.len() as u32, len as u32] {
                    file.write_all(&word.to_le_bytes())?;
                }
                file.write_all(frame)
            }
            #[cfg(target_os = "linux")]
            Self::Wire(wire) => wire.frame(frame),
        }
    }

    /// Ends; returns how long it took, where that tells something.
    fn finish(self) -> io::Result<Option<Duration>> {
        match self {
            Self::File(mut file) => file.flush().map(|()| None),
            #[cfg(target_os = "linux")]
            Self::Wire(mut wire) => wire.flush().map(|()| Some(wire.elapsed())),
        }
    }
}

/// What a pcap file begins with.
fn header(snaplen: usize) -> Vec<u8> {
    let mut header = 0xa1b2_3c4du32.to_le_bytes().to_vec();
    header.extend([2, 0, 4, 0]);
    header.extend([0; 8]);
    header.extend((snaplen as u32).to_le_bytes());
    header.extend(1u32.to_le_bytes());
    header
}

impl Capture {
    /// Takes turns among the queue pairs, a message each, until there are
    /// packets enough.
    fn fill(&mut self) -> io::Result<()> {
        let mut pairs: Vec<Pair> = (0..self.shape.qps)
            .map(|n| Pair {
                host: (n % 8) as u32,
                requester_qp: 0x1000 + n as u32,
                responder_qp: 0x80_0000 + n as u32,
                psn: scatter(n) as u32 & 0xff_ffff,
                va: 0x7f00_0000_0000 + (n << 24),
                messages: 0,
            })
            .collect();
        let mut turn = 0;
        'all: loop {
            for pair in &mut pairs {
                if self.answers.packets + 5 > self.shape.packets {
                    break 'all;
                }
                turn += 1;
                // A packet lost from a message leaves the rest, a NAK, and
                // the message from there on once more.
                let lost = (turn % LOSS_EVERY == 0
                    && self.answers.packets + 12 <= self.shape.packets)
                    .then(|| (scatter(turn) % 3) as u32);
                self.message(pair, lost)?;
            }
        }
        Ok(())
    }

    fn message(&mut self, pair: &mut Pair, lost: Option<u32>) -> io::Result<()> {
        let first = pair.psn;
        if pair.messages == 0 {
            // There and back; the packets may be used up before each pair's turn.
            self.answers.flows += 2;
        }
        for i in 0..MESSAGE {
            if Some(i) != lost {
                self.write(pair, first, i)?;
            }
        }
        if let Some(lost) = lost {
            self.answers.gaps += 1;
            self.answers.sequence_naks += 1;
            self.answer(pair, first + lost, 0x60)?;
            for i in lost..MESSAGE {
                self.answers.retransmitted += 1;
                self.write(pair, first, i)?;
            }
        }
        self.answers.acks += 1;
        self.answers.messages += 1;
        self.answer(pair, first + MESSAGE - 1, 0x1f)?;
        pair.psn = (first + MESSAGE) & 0xff_ffff;
        pair.messages += 1;
        pair.va += u64::from(MESSAGE) * self.shape.payload as u64;
        Ok(())
    }

    fn write(&mut self, pair: &Pair, first: u32, i: u32) -> io::Result<()> {
        let len = MESSAGE * self.shape.payload as u32;
        let packet = Packet {
            opcode: match i {
                0 => 0x06,
                3 => 0x08,
                _ => 0x07,
            },
            psn: first + i,
            ack_req: i == MESSAGE - 1,
            reth: (i == 0).then_some((pair.va, 0x1234, len)),
            aeth: None,
            payload: self.shape.payload,
        };
        self.answers.payload_bytes += packet.payload as u64;
        self.packet(pair, true, &packet)
    }

    fn answer(&mut self, pair: &Pair, psn: u32, syndrome: u8) -> io::Result<()> {
        let packet = Packet {
            opcode: 0x11,
            psn,
            ack_req: false,
            reth: None,
            aeth: Some(syndrome),
            payload: 0,
        };
        self.packet(pair, false, &packet)
    }

    fn packet(&mut self, pair: &Pair, forth: bool, packet: &Packet) -> io::Result<()> {
        let requester = 0x0a00_0001 + pair.host * 2;
        let (src, dst, dest_qp) = if forth {
            (requester, requester + 1, pair.responder_qp)
        } else {
            (requester + 1, requester, pair.requester_qp)
        };
        let ext =
            if packet.reth.is_some() { 16 } else { 0 } + if packet.aeth.is_some() { 4 } else { 0 };
        let ib = 12 + ext + packet.payload + 4;
        let frame = &mut self.frame;
        frame.clear();
        frame.extend([2, 0, 0, 0, 0, dst as u8, 2, 0, 0, 0, 0, src as u8, 8, 0]);
        self.ip_id = self.ip_id.wrapping_add(1).max(1);
        let ip = frame.len();
        frame.extend([0x45, 0x02]);
        frame.extend(((28 + ib) as u16).to_be_bytes());
        frame.extend(self.ip_id.to_be_bytes());
        frame.extend([0x40, 0, 64, 17, 0, 0]);
        frame.extend(src.to_be_bytes());
        frame.extend(dst.to_be_bytes());
        let sum = checksum(&frame[ip..]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        frame.extend((0xc000 | pair.requester_qp as u16 & 0x3fff).to_be_bytes());
        frame.extend(4791u16.to_be_bytes());
        frame.extend(((8 + ib) as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend([packet.opcode, 0x40, 0xff, 0xff]);
        frame.extend(dest_qp.to_be_bytes());
        let ack = if packet.ack_req { 0x8000_0000 } else { 0 };
        frame.extend((packet.psn & 0xff_ffff | ack).to_be_bytes());
        if let Some((va, rkey, len)) = packet.reth {
            frame.extend(va.to_be_bytes());
            frame.extend(rkey.to_be_bytes());
            frame.extend(len.to_be_bytes());
        }
        if let Some(syndrome) = packet.aeth {
            let msn = pair.messages as u32 & 0xff_ffff;
            frame.extend((u32::from(syndrome) << 24 | msn).to_be_bytes());
        }
        let len = frame.len() + packet.payload + 4;
        let kept = len.min(self.shape.snaplen);
        if kept == len {
            frame.resize(len - 4, packet.psn as u8);
            let icrc = icrc(&frame[ip..]);
            frame.extend(icrc.to_le_bytes());
        } else {
            frame.resize(kept, packet.psn as u8);
        }
        self.now_ns += PACE_NS;
        self.out.frame(self.now_ns, &self.frame, len)?;
        self.answers.packets += 1;
        Ok(())
    }
}

/// Internet checksum (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Invariant CRC over an IPv4 packet without it (IBTA annex A17.3.3).
fn icrc(packet: &[u8]) -> u32 {
    let mut masked = [0xff; 8 + 40];
    masked[8..].copy_from_slice(&packet[..40]);
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[8 + at] = 0xff;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&masked);
    crc.update(&packet[40..]);
    crc.finalize()
}
