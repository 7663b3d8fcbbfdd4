//! Conversations between two queue pairs made by hand, a packet every ten
//! microseconds: 192.0.2.1 asks QP 0x22 of 192.0.2.2, which answers to QP 0x11.

use super::flaws::{all_flaws, run_flaws};
use super::tracked::{Tracked, track};
use super::{
    capfile::{Capture, ETHERNET, Pkt},
    craft, run, write,
};
use roce_sniff::track::{EventKind, Flow, PsnCounts};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// Queue pair of the side that asks.
pub const CLIENT: u32 = 0x11;
/// Queue pair of the side that answers.
pub const SERVER: u32 = 0x22;

/// The packets of a conversation.
#[derive(Clone, Debug)]
pub struct Talk {
    /// What was said so far.
    pub packets: Vec<Pkt>,
    /// Time of the next packet.
    pub now_ns: u64,
    ids: [u16; 2],
}

impl Default for Talk {
    fn default() -> Self {
        Self {
            packets: Vec::new(),
            now_ns: 1_700_000_000_000_000_000,
            ids: [0x1000, 0x8000],
        }
    }
}

impl Talk {
    /// Lets time pass.
    pub fn wait_us(mut self, us: u64) -> Self {
        self.now_ns += us * 1000;
        self
    }

    fn push(mut self, answers: bool, transport: &[u8]) -> Self {
        let mut ip = craft::roce_v4(transport);
        let id = &mut self.ids[usize::from(answers)];
        *id += 1;
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        if answers {
            ip[15] = 2;
            ip[19] = 1;
        }
        craft::finish_v4(&mut ip);
        craft::seal(&mut ip);
        let frame = craft::ethernet(0x0800, &ip);
        self.packets.push(Pkt::whole(self.now_ns, frame));
        self.now_ns += 10_000;
        self
    }

    /// A request of any kind.
    pub fn ask(self, opcode: u8, psn: u32, ack_req: bool, ext: &[u8], payload: usize) -> Self {
        let mut bytes = craft::bth(opcode, 0, SERVER, ack_req, psn);
        bytes.extend(ext);
        bytes.extend(vec![psn as u8; payload]);
        self.push(false, &bytes)
    }

    /// An RDMA WRITE Only of 64 bytes that asks for an acknowledgement.
    pub fn write(self, psn: u32) -> Self {
        self.ask(0x0a, psn, true, &reth(0x1000, 64), 64)
    }

    /// A WRITE of several packets of 1024 bytes; the last asks.
    pub fn long_write(mut self, psn: u32, packets: u32) -> Self {
        self = self.ask(0x06, psn, false, &reth(0x1000, packets * 1024), 1024);
        for n in 1..packets - 1 {
            self = self.ask(0x07, psn + n, false, &[], 1024);
        }
        self.ask(0x08, psn + packets - 1, true, &[], 1024)
    }

    /// A READ of so many bytes.
    pub fn read(self, psn: u32, len: u32) -> Self {
        self.ask(0x0c, psn, true, &reth(0x2000, len), 0)
    }

    /// The responses to a READ, from one number to another: with a path MTU
    /// of 1024 and a whole number of packets in all.
    pub fn responses(mut self, first: u32, count: u32, from: u32, to: u32) -> Self {
        for n in from..to {
            let (opcode, ext) = match (n, n + 1 == count) {
                (0, true) => (0x10, true),
                (0, false) => (0x0d, true),
                (_, true) => (0x0f, true),
                (_, false) => (0x0e, false),
            };
            let mut bytes = craft::bth(opcode, 0, CLIENT, false, first + n);
            if ext {
                bytes.extend([31, 0, 0, 1]);
            }
            bytes.extend([n as u8; 1024]);
            self = self.push(true, &bytes);
        }
        self
    }

    /// An answer of any kind.
    pub fn reply(self, opcode: u8, psn: u32, ext: &[u8], payload: usize) -> Self {
        let mut bytes = craft::bth(opcode, 0, CLIENT, false, psn);
        bytes.extend(ext);
        bytes.extend(vec![psn as u8; payload]);
        self.push(true, &bytes)
    }

    /// An acknowledgement with this syndrome.
    pub fn answer(self, syndrome: u8, psn: u32) -> Self {
        self.reply(0x11, psn, &[syndrome, 0, 0, 1], 0)
    }

    /// A positive one.
    pub fn ack(self, psn: u32) -> Self {
        self.answer(31, psn)
    }

    /// A PSN sequence error.
    pub fn nak(self, psn: u32) -> Self {
        self.answer(0x60, psn)
    }

    /// A congestion notification to the side that asks.
    pub fn cnp(self) -> Self {
        let mut bytes = craft::bth(0x81, 0x40, CLIENT, false, 0);
        bytes.extend([0; 16]);
        self.push(true, &bytes)
    }

    /// A fetch and add.
    pub fn fetch_add(self, psn: u32) -> Self {
        let mut ext = vec![0; 28];
        ext[..16].copy_from_slice(&reth(0x3000, 0));
        self.ask(0x14, psn, true, &ext, 0)
    }

    /// The answer to it.
    pub fn atomic_answer(self, psn: u32) -> Self {
        self.reply(0x12, psn, &[31, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9], 0)
    }

    /// The same conversation between two other queue pairs of the same hosts.
    pub fn between(mut self, client: u32, server: u32) -> Self {
        for packet in &mut self.packets {
            let ip = &mut packet.data[14..];
            let bth = craft::udp_at(ip) + 8;
            let to = if ip[19] == 1 { client } else { server };
            ip[bth + 4..bth + 8].copy_from_slice(&to.to_be_bytes());
            craft::seal(ip);
        }
        self
    }

    /// The last packet again, byte for byte.
    pub fn copy(mut self) -> Self {
        let last = self.packets[self.packets.len() - 1].data.clone();
        self.packets.push(Pkt::whole(self.now_ns, last));
        self.now_ns += 10_000;
        self
    }

    /// The last packet never reached the sniffer.
    pub fn unseen(mut self) -> Self {
        self.packets.pop();
        self
    }

    /// The last packet with a byte of its payload flipped on the way.
    pub fn corrupted(mut self) -> Self {
        let last = self.packets.last_mut().unwrap();
        let at = last.data.len() - 6;
        last.data[at] ^= 0x10;
        self
    }
}

/// A RETH with a key that is always the same.
pub fn reth(va: u64, len: u32) -> Vec<u8> {
    let mut out = va.to_be_bytes().to_vec();
    out.extend(0x1234u32.to_be_bytes());
    out.extend(len.to_be_bytes());
    out
}

/// Writes packets down as a capture file.
pub fn capture_of(dir: &Path, name: &str, packets: impl IntoIterator<Item = Pkt>) -> PathBuf {
    let mut capture = Capture::of(ETHERNET, []);
    capture.packets = packets.into_iter().collect();
    write(dir, name, &capture.pcap_as(false, true))
}

/// What a command prints of a conversation.
pub fn printed(args: &[&str], talk: &Talk) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = capture_of(dir.path(), "a.pcap", talk.packets.clone());
    let mut all: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    all.push(path.as_os_str());
    run(&all).ok("a conversation").stdout
}

/// What the tracker makes of a conversation, if everything adds up.
pub fn follow(talk: &Talk) -> Tracked {
    let tracked = track(&talk.packets);
    let flaws = [all_flaws(&tracked), run_flaws(&tracked)].concat();
    assert!(flaws.is_empty(), "{flaws:#?}\n{:?}", kinds(&tracked));
    tracked
}

/// The only flow towards a queue pair.
pub fn flow(tracked: &Tracked, dest_qp: u32) -> &Flow {
    let mut own = tracked
        .tracker
        .flows()
        .filter(|f| f.key.dest_qp.get() == dest_qp);
    let flow = own.next().expect("a flow");
    assert!(own.next().is_none(), "one entry for QP {dest_qp:#x}");
    flow
}

/// The counts of what was asked.
pub fn requests(tracked: &Tracked) -> PsnCounts {
    flow(tracked, SERVER).requests
}

/// The counts of the READ responses.
pub fn responses(tracked: &Tracked) -> PsnCounts {
    flow(tracked, CLIENT).responses
}

/// The counts of a sequence in which nothing happened.
pub fn clean(packets: u64) -> PsnCounts {
    PsnCounts {
        packets,
        new: packets,
        ..PsnCounts::default()
    }
}

/// Events by the frame they happened at.
pub fn kinds(tracked: &Tracked) -> Vec<(u64, EventKind)> {
    tracked
        .log
        .events
        .iter()
        .map(|told| (told.frame, told.kind))
        .collect()
}
