//! A network of their own for tests that capture: a veth pair in a new
//! network namespace, frames sent through one end, the command on the other.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::Run;

/// The end of the pair that tests send through.
pub const NEAR: &str = "v0";
/// The end of the pair that tests listen on.
pub const FAR: &str = "v1";

/// The network of the calling thread and of what it starts; it goes away with
/// them.
pub struct Net {
    sender: pcap::Capture<pcap::Active>,
    pub dir: tempfile::TempDir,
}

impl Net {
    /// Moves this thread to a new network. `None`, with the reason printed,
    /// where the system does not let it.
    pub fn new() -> Option<Self> {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("skipped: no network namespace ({error}); run the tests as root");
            return None;
        }
        ip("link set lo up");
        ip(&format!("link add {NEAR} type veth peer name {FAR}"));
        for end in [NEAR, FAR] {
            ip(&format!("link set {end} up mtu 9000"));
        }
        ip(&format!("addr add 10.0.0.9/24 dev {FAR}"));
        let sender = pcap::Capture::from_device(NEAR).unwrap().open().unwrap();
        Some(Self {
            sender,
            dir: tempfile::tempdir().unwrap(),
        })
    }

    /// Sends frames through the near end.
    pub fn send<'f>(&mut self, frames: impl IntoIterator<Item = &'f [u8]>) {
        for frame in frames {
            self.sender.sendpacket(frame).unwrap();
        }
    }

    /// A path in the test's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the command and waits until it listens.
    pub fn capture(&self, args: &[&str]) -> Capturing {
        let stdout = self.path("stdout");
        let mut child = Command::new(env!("CARGO_BIN_EXE_roce-sniff"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("listening on"), "{args:?}: {line}");
        Capturing {
            child,
            stderr,
            stdout,
        }
    }
}

/// Runs `ip` with these arguments.
pub fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status();
    assert!(status.is_ok_and(|status| status.success()), "ip {args}");
}

/// The command, capturing.
pub struct Capturing {
    child: Child,
    stderr: BufReader<ChildStderr>,
    stdout: PathBuf,
}

impl Capturing {
    /// Sends a signal to the command.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// What the command has printed so far.
    pub fn printed(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap()
    }

    /// Standard output, where it is not text.
    pub fn stdout(&self) -> &Path {
        &self.stdout
    }

    /// Waits until the command has printed this.
    pub fn wait_for(&self, what: &str) {
        wait_until(what, || self.printed().contains(what));
    }

    /// Ends the command once it has printed this many lines; whatever else was
    /// captured by then is printed too.
    pub fn finish_after(self, lines: usize) -> Run {
        wait_until("lines", || self.printed().lines().count() >= lines);
        self.signal(Signal::SIGINT);
        self.finish()
    }

    /// Waits for the end; the status is -1 where a signal killed it.
    pub fn end(&mut self) -> (i32, String) {
        let mut status = None;
        wait_until("the end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).unwrap();
        (status.and_then(|s| s.code()).unwrap_or(-1), stderr)
    }

    /// Waits for the end, and keeps what the command printed.
    pub fn finish(mut self) -> Run {
        let (status, stderr) = self.end();
        Run {
            stdout: self.printed(),
            stderr,
            status,
        }
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something holds, for 20 seconds at most.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "waited for {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
