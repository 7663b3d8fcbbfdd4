//! Frames put on a network device rather than into a file.

use std::{
    io::{self, IoSlice},
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, ControlMessage, LinkAddr, MsgFlags, MultiHeaders, SockFlag, SockType, bind,
        sendmmsg, socket,
    },
};

/// Frames handed to the kernel in one call.
const FRAMES: usize = 64;
/// Sleeping for less takes longer than that.
const NAP: Duration = Duration::from_micros(200);

/// A network device, and the frames on their way to it.
pub struct Wire {
    socket: OwnedFd,
    headers: MultiHeaders<LinkAddr>,
    bytes: Vec<u8>,
    /// Where each frame ends in them.
    ends: Vec<usize>,
    per_second: Option<f64>,
    began: Instant,
    sent: u64,
}

impl Wire {
    /// Frames for this device, not more of them in a second than said.
    pub fn open(device: &str, per_second: Option<u32>) -> io::Result<Self> {
        let found = getifaddrs()?.find_map(|found| {
            let link = found.address?.as_link_addr().copied();
            link.filter(|_| found.interface_name == device)
        });
        let Some(address) = found else {
            let words = format!("{device}: no such network device");
            return Err(io::Error::other(words));
        };
        let (family, kind) = (AddressFamily::Packet, SockType::Raw);
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
        bind(socket.as_raw_fd(), &address)?;
        Ok(Self {
            socket,
            headers: MultiHeaders::preallocate(FRAMES, None),
            bytes: Vec::new(),
            ends: Vec::new(),
            per_second: per_second.map(f64::from),
            began: Instant::now(),
            sent: 0,
        })
    }

    /// Takes one frame; it leaves with the others of its batch.
    pub fn frame(&mut self, frame: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
        if self.ends.len() == FRAMES {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut frames = Vec::with_capacity(FRAMES);
        let mut start = 0;
        for end in &self.ends {
            frames.push([IoSlice::new(&self.bytes[start..*end])]);
            start = *end;
        }
        if let Some(per_second) = self.per_second {
            let due = Duration::from_secs_f64(self.sent as f64 / per_second);
            let early = due.saturating_sub(self.began.elapsed());
            if early > NAP {
                std::thread::sleep(early);
            }
        }
        let addresses = [None; FRAMES];
        let nothing: [ControlMessage<'_>; 0] = [];
        let mut rest = frames.as_slice();
        while !rest.is_empty() {
            let sent = sendmmsg(
                self.socket.as_raw_fd(),
                &mut self.headers,
                rest,
                addresses,
                nothing,
                MsgFlags::empty(),
            )?;
            rest = &rest[sent.count()..];
        }
        self.sent += frames.len() as u64;
        self.bytes.clear();
        self.ends.clear();
        Ok(())
    }

    /// Time since the first frame could have left.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}
