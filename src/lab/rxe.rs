//! Soft-RoCE on a network device for the length of a run.

use std::{
    fs, io,
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag, iterator, low_level,
};

use super::{
    LabError, Outcome, Undone,
    journal::{self, JournalError, Process},
    module, need_programs, need_root, steps,
};
use crate::host::Host;

/// Signals that end a run.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// How long the program may take to end by itself after one of them.
const GRACE: Duration = Duration::from_secs(3);

/// How long a new device may take to fill its GID table.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Soft-RoCE on a network device; removed when this is dropped, unless it was
/// there before.
///
/// Ctrl-C, SIGTERM and SIGHUP remove it too: a program that catches them has 3
/// seconds to drop this, then (or at the second signal) it is removed and the
/// program ended. What even that cannot catch is written down, and removed by
/// the next [`SetupRxe`] on the network device or by [`down`](super::down).
///
/// Close every verbs context on the device first: while one of this process is
/// open, the kernel puts the removal off until it ends. A device that another
/// program has open is left to [`down`](super::down). The module `rdma_rxe` stays loaded: unloading it
/// would take the devices of others away.
pub struct SetupRxe {
    host: Arc<Host>,
    record: Record,
    /// Whether it is this one's to remove.
    ours: bool,
    guard: Option<SignalGuard>,
}

/// What is written down of a device that has to be removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    boot: String,
    writer: Process,
    device: String,
    netdev: String,
}

/// Name of the Soft-RoCE device on a network device.
#[must_use]
pub fn name_for(netdev: &str) -> String {
    format!("rxe_{netdev}")
}

impl Record {
    fn path(host: &Host, netdev: &str) -> PathBuf {
        journal::directory(host).join(format!("rxe-{netdev}.json"))
    }

    /// What an earlier run of this boot left; whatever else is there is
    /// removed.
    fn load(host: &Host, netdev: &str) -> Option<Self> {
        let path = Self::path(host, netdev);
        let text = fs::read_to_string(&path).ok()?;
        let record: Option<Self> = serde_json::from_str(&text).ok();
        let current =
            record.filter(|record| record.boot == host.boot_id() && record.netdev == netdev);
        if current.is_none() {
            let _ = fs::remove_file(path);
        }
        current
    }

    fn save(&self, host: &Host) -> Result<(), JournalError> {
        let path = Self::path(host, &self.netdev);
        let new = journal::write_aside(host, &path, self)?;
        fs::rename(&new, &path).map_err(|error| JournalError::Io { path, error })
    }

    /// Removes the device, then what is written about it.
    fn remove(&self, host: &Host) -> Outcome {
        let users = host.users_of(&self.device);
        let (own, others): (Vec<_>, Vec<_>) = users
            .into_iter()
            .partition(|user| user.pid == process::id());
        let still = || steps::is_rxe_on(host, &self.device, &self.netdev) == Some(true);
        if !others.is_empty() {
            let others: Vec<_> = others.iter().map(ToString::to_string).collect();
            // What is written down stays too.
            return Outcome::LeftAlone(format!(
                "{} has it open; when it is done: sudo roce-sniff lab down",
                others.join(", ")
            ));
        }
        if !own.is_empty() && still() {
            // Ends when this process does; until then it stays written down.
            return match host.start("rdma", &["link", "delete", &self.device]) {
                Ok(()) => Outcome::Removed,
                Err(error) => Outcome::Failed(error.to_string()),
            };
        }
        let outcome = steps::undo_rxe(host, &self.device, &self.netdev);
        if !matches!(outcome, Outcome::Failed(_)) {
            let _ = fs::remove_file(Self::path(host, &self.netdev));
        }
        outcome
    }
}

impl SetupRxe {
    /// Puts Soft-RoCE on a network device, loading the module where needed; an
    /// RDMA device that is there already is taken as it is.
    ///
    /// # Errors
    /// [`LabError`]: not root, no such network device, a program or the module
    /// missing, or the kernel refuses.
    pub fn new(host: Host, netdev: &str) -> Result<Self, LabError> {
        let sysfs = host.sysfs();
        if sysfs.netdev(netdev).is_none() {
            return Err(LabError::NoNetdev {
                name: netdev.to_owned(),
                there: sysfs.netdevs().join(", "),
            });
        }
        let mut record = Record {
            boot: host.boot_id(),
            writer: Process::this(&host),
            device: name_for(netdev),
            netdev: netdev.to_owned(),
        };
        if let Some((device, _)) = sysfs.for_netdev(netdev) {
            // One that a killed run has left is this run's to remove.
            let left = Record::load(&host, netdev)
                .is_some_and(|left| left.device == device.name && !left.writer.is_alive(&host));
            let ours = left && host.is_root();
            record.device = device.name;
            if ours {
                record.save(&host)?;
            }
            return Ok(Self::guarded(host, record, ours));
        }
        need_root(&host, "roce-sniff … --setup-rxe")?;
        need_programs(&host)?;
        if sysfs.device(&record.device).is_some() {
            return Err(LabError::Step {
                what: format!("putting Soft-RoCE on {netdev}"),
                why: format!(
                    "the name {} is taken by a device on another network device; remove it \
                     with: sudo rdma link delete {}",
                    record.device, record.device
                ),
            });
        }
        module::load(&host)?;
        record.save(&host)?;
        let args = [
            "link",
            "add",
            &record.device,
            "type",
            "rxe",
            "netdev",
            netdev,
        ];
        if let Err(error) = steps::run(&host, "rdma", &args) {
            record.remove(&host);
            return Err(error);
        }
        let setup = Self::guarded(host, record, true);
        setup.wait_for_gids();
        Ok(setup)
    }

    fn guarded(host: Host, record: Record, ours: bool) -> Self {
        let host = Arc::new(host);
        let guard = ours.then(|| SignalGuard::new(&host, &record)).flatten();
        Self {
            host,
            record,
            ours,
            guard,
        }
    }

    /// Addresses get into the table a moment after the device is there. One
    /// that never does (a network device without address) is for others to
    /// complain about.
    fn wait_for_gids(&self) {
        let deadline = Instant::now() + READY_WITHIN;
        let has_gids = || {
            let device = self.host.sysfs().device(&self.record.device);
            device.is_some_and(|device| device.ports.iter().any(|port| !port.gids.is_empty()))
        };
        while !has_gids() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Name of the RDMA device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.record.device
    }

    /// Whether it was there before, so that it stays.
    #[must_use]
    pub const fn existed(&self) -> bool {
        !self.ours
    }

    /// Removes the device now, and says what became of it.
    #[must_use]
    pub fn close(mut self) -> Undone {
        Undone {
            what: format!("Soft-RoCE device {}", self.record.device),
            outcome: self.remove(),
        }
    }

    fn remove(&mut self) -> Outcome {
        if !self.ours {
            return Outcome::LeftAlone("it was there before".to_owned());
        }
        self.ours = false;
        // From here on a signal ends the program: rdma goes on without it.
        drop(self.guard.take());
        self.record.remove(&self.host)
    }
}

impl Drop for SetupRxe {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Removes every Soft-RoCE device that a killed run has left.
pub(super) fn sweep(host: &Host) -> Vec<Undone> {
    let entries = fs::read_dir(journal::directory(host));
    let files = entries.into_iter().flatten().flatten();
    let records = files.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let netdev = name.strip_prefix("rxe-")?.strip_suffix(".json")?;
        Record::load(host, netdev)
    });
    records
        .filter(|record| !record.writer.is_alive(host))
        .map(|record| Undone {
            what: format!("Soft-RoCE device {}", record.device),
            outcome: record.remove(host),
        })
        .filter(|undone| undone.outcome != Outcome::Absent)
        .collect()
}

/// Waits for a signal that ends the run, on a thread of its own.
struct SignalGuard {
    handle: iterator::Handle,
    done: Arc<AtomicBool>,
}

impl SignalGuard {
    fn new(host: &Arc<Host>, record: &Record) -> Option<Self> {
        let mut signals = iterator::Signals::new(ENDING).ok()?;
        let handle = signals.handle();
        let done = Arc::new(AtomicBool::new(false));
        let (host, record, finished) = (Arc::clone(host), record.clone(), Arc::clone(&done));
        thread::spawn(move || {
            let Some(signal) = signals.forever().next() else {
                return;
            };
            let deadline = Instant::now() + GRACE;
            while Instant::now() < deadline && signals.pending().next().is_none() {
                if finished.load(Ordering::Acquire) {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
            if !finished.load(Ordering::Acquire) {
                let _ = record.remove(&host);
                let _ = low_level::emulate_default_handler(signal);
            }
        });
        Some(Self { handle, done })
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        self.handle.close();
        // A signal nobody waits for would be ignored from now on.
        for signal in ENDING {
            let _: io::Result<_> =
                flag::register_conditional_default(signal, Arc::new(AtomicBool::new(true)));
        }
    }
}
