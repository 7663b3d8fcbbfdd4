//! What was begun, written down before it is begun.
//!
//! A journal outlives the process that wrote it, however that ended, so that
//! `lab down` knows what to remove. It does not outlive a reboot (it is below
//! `/run`, and names the boot it belongs to), and neither does what it lists.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use serde::{Deserialize, Serialize};

use super::{Plan, steps::Step};
use crate::host::Host;

/// Where journals are, below the root.
const DIRECTORY: &str = "run/roce-sniff";

/// Version of the layout.
const VERSION: u32 = 1;

/// A process, told from later ones with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub pid: u32,
    /// In the kernel's ticks.
    start: u64,
}

impl Process {
    pub(super) fn this(host: &Host) -> Self {
        let pid = process::id();
        Self {
            pid,
            start: host.process_start(pid).unwrap_or(0),
        }
    }

    pub(super) fn is_alive(&self, host: &Host) -> bool {
        host.process_start(self.pid) == Some(self.start)
    }
}

/// The journal of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    /// The boot it was written in.
    boot: String,
    /// Who writes or wrote it.
    pub writer: Process,
    pub plan: Plan,
    /// Steps that were begun, in order.
    pub begun: Vec<Step>,
    /// Whether the last of them was done.
    pub complete: bool,
}

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Reading or writing failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Not what this program writes.
    #[error(
        "{}: not a journal of this version of roce-sniff ({error}); if no lab is up, \
         remove it: sudo rm {}", path.display(), path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
}

fn path(host: &Host) -> PathBuf {
    directory(host).join("lab.json")
}

impl Journal {
    /// A journal with nothing begun.
    pub(super) fn new(host: &Host, plan: Plan) -> Self {
        Self {
            version: VERSION,
            boot: host.boot_id(),
            writer: Process::this(host),
            plan,
            begun: Vec::new(),
            complete: false,
        }
    }

    /// The journal there is, if any.
    pub(super) fn load(host: &Host) -> Result<Option<Self>, JournalError> {
        let path = path(host);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(JournalError::Io { path, error }),
        };
        match serde_json::from_str::<Self>(&text) {
            Ok(journal) if journal.version == VERSION => Ok(Some(journal)),
            Ok(journal) => Err(JournalError::Damaged {
                path,
                error: format!("version {}", journal.version),
            }),
            Err(error) => Err(JournalError::Damaged {
                path,
                error: error.to_string(),
            }),
        }
    }

    /// Whether what it lists is of this boot.
    pub(super) fn is_current(&self, host: &Host) -> bool {
        self.boot == host.boot_id()
    }

    /// Writes it for the first time; the process that has been faster, if one
    /// has.
    pub(super) fn create(&self, host: &Host) -> Result<Option<u32>, JournalError> {
        let path = path(host);
        let new = write_aside(host, &path, self)?;
        // Unlike renaming, linking fails where there is one already.
        let linked = fs::hard_link(&new, &path);
        let _ = fs::remove_file(&new);
        match linked {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let other = Self::load(host)?;
                Ok(Some(other.map_or(0, |journal| journal.writer.pid)))
            }
            Err(error) => Err(JournalError::Io { path, error }),
        }
    }

    /// Writes it; whole or not at all.
    pub(super) fn save(&self, host: &Host) -> Result<(), JournalError> {
        let path = path(host);
        let new = write_aside(host, &path, self)?;
        fs::rename(&new, &path).map_err(|error| JournalError::Io { path, error })
    }

    /// Removes it.
    pub(super) fn remove(host: &Host) -> Result<(), JournalError> {
        let path = path(host);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(JournalError::Io { path, error })
            }
            _ => Ok(()),
        }
    }
}

/// Where journals are, below the root.
pub(super) fn directory(host: &Host) -> PathBuf {
    host.path(DIRECTORY)
}

/// Writes a record to a file of this process beside `path`.
pub(super) fn write_aside(
    host: &Host,
    path: &Path,
    record: &impl Serialize,
) -> Result<PathBuf, JournalError> {
    let new = path.with_extension(process::id().to_string());
    let write = || {
        fs::create_dir_all(directory(host))?;
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
        let mut file = File::create(&new)?;
        file.write_all(&text)?;
        file.sync_all()
    };
    match write() {
        Ok(()) => Ok(new),
        Err(error) => Err(JournalError::Io {
            path: path.to_owned(),
            error,
        }),
    }
}
