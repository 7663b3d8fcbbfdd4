//! This machine as far as RDMA cares: files of the kernel, programs to run,
//! addresses and routes.
//!
//! A [`Host`] has a root below which all files are read and a way to run
//! programs; tests replace both.

pub mod addresses;
pub mod command;
pub mod packages;
pub mod users;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use addresses::{HostAddress, Network, Route};
pub use command::{Ran, Run, RunError, Runner};
pub use users::User;

use crate::rdma::sysfs::Sysfs;

/// A machine, by default this one.
pub struct Host {
    root: PathBuf,
    runner: Box<dyn Run>,
}

impl Default for Host {
    fn default() -> Self {
        Self::new("/", Box::new(Runner::default()))
    }
}

/// Capabilities of a process (`linux/capability.h`), by their bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability(pub u8, pub &'static str);

impl Capability {
    /// Set up network devices, addresses and RDMA links.
    pub const NET_ADMIN: Self = Self(12, "CAP_NET_ADMIN");
    /// Open capture sockets.
    pub const NET_RAW: Self = Self(13, "CAP_NET_RAW");
    /// Pin memory past `RLIMIT_MEMLOCK`.
    pub const IPC_LOCK: Self = Self(14, "CAP_IPC_LOCK");
    /// Attach to kernel functions.
    pub const PERFMON: Self = Self(38, "CAP_PERFMON");
    /// Load BPF programs.
    pub const BPF: Self = Self(39, "CAP_BPF");
}

impl Host {
    /// The machine with its files below `root`, where programs are run by
    /// `runner`.
    pub fn new(root: impl Into<PathBuf>, runner: Box<dyn Run>) -> Self {
        Self {
            root: root.into(),
            runner,
        }
    }

    /// Where a file is; `path` starts below the root, as `proc/modules`.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file without the white space around it; `None` where it
    /// is missing or the kernel refuses.
    #[must_use]
    pub fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Whether there is such a file or directory.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Its sysfs.
    #[must_use]
    pub fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.path("sys"))
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// [`RunError`] when it is not installed, did not end in time or could not
    /// be started; not when it fails by itself.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<Ran, RunError> {
        self.runner.run(program, args)
    }

    /// Starts a program and does not wait for it.
    ///
    /// # Errors
    /// [`RunError`] when it is not installed or could not be started.
    pub fn start(&self, program: &str, args: &[&str]) -> Result<(), RunError> {
        self.runner.start(program, args)
    }

    /// Where a program is installed.
    #[must_use]
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        self.runner.find(program)
    }

    /// Release of the running kernel, as `6.1.0-57-amd64`.
    #[must_use]
    pub fn kernel(&self) -> String {
        self.read("proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// What tells this boot from others.
    #[must_use]
    pub fn boot_id(&self) -> String {
        self.read("proc/sys/kernel/random/boot_id")
            .unwrap_or_default()
    }

    /// A field of the status of this process.
    fn status(&self, field: &str) -> Option<String> {
        let status = self.read("proc/self/status")?;
        let mut lines = status.lines();
        lines.find_map(|line| {
            Some(
                line.strip_prefix(field)?
                    .strip_prefix(':')?
                    .trim()
                    .to_owned(),
            )
        })
    }

    /// Whether this process runs as root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        // Real, effective, saved, file system.
        let uids = self.status("Uid").unwrap_or_default();
        uids.split_whitespace().nth(1) == Some("0")
    }

    /// Whether this process has a capability in effect.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        let effective = self
            .status("CapEff")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        effective.is_some_and(|mask| mask >> capability.0 & 1 == 1)
    }

    /// Whether a kernel module is there, loaded or built in.
    #[must_use]
    pub fn has_module(&self, module: &str) -> bool {
        self.exists(&format!("sys/module/{module}"))
    }

    /// Whether the running kernel has a module that could be loaded.
    #[must_use]
    pub fn can_load(&self, module: &str) -> bool {
        let release = self.kernel();
        let file = format!("/{module}.ko");
        ["modules.dep", "modules.builtin"].iter().any(|list| {
            let list = self.read(&format!("lib/modules/{release}/{list}"));
            list.is_some_and(|list| {
                // path/rdma_rxe.ko.zst: path/ib_core.ko.zst …
                list.lines().any(|line| {
                    let path = line.split(':').next().unwrap_or_default();
                    path.contains(&file)
                })
            })
        })
    }

    /// When a process was started, in the kernel's ticks; `None` when there is
    /// no such process. Numbers are given again to later processes, numbers
    /// and start times are not.
    #[must_use]
    pub fn process_start(&self, pid: u32) -> Option<u64> {
        let stat = self.read(&format!("proc/{pid}/stat"))?;
        // The name, in parentheses, may hold spaces; the start is field 22.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(19)?.parse().ok()
    }

    /// A value below `/proc/sys`, by its path there.
    #[must_use]
    pub fn sysctl(&self, path: &str) -> Option<String> {
        self.read(&format!("proc/sys/{path}"))
    }

    /// Sets a value below `/proc/sys`.
    ///
    /// # Errors
    /// What writing the file returns.
    pub fn set_sysctl(&self, path: &str, value: &str) -> std::io::Result<()> {
        fs::write(self.path(&format!("proc/sys/{path}")), format!("{value}\n"))
    }

    /// The root, as `/`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Files below a temporary root.
    pub(crate) struct Tree(tempfile::TempDir);

    impl Tree {
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for (path, text) in files {
                tree.write(path, text);
            }
            tree
        }

        pub(crate) fn root(&self) -> &Path {
            self.0.path()
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.root().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        pub(crate) fn host(&self, runner: impl Run + 'static) -> Host {
            Host::new(self.root(), Box::new(runner))
        }
    }

    /// No program is installed.
    pub(crate) struct NoPrograms;

    impl Run for NoPrograms {
        fn run(&self, program: &str, _: &[&str]) -> Result<Ran, RunError> {
            Err(RunError::Missing(program.to_owned()))
        }

        fn start(&self, program: &str, _: &[&str]) -> Result<(), RunError> {
            Err(RunError::Missing(program.to_owned()))
        }

        fn find(&self, _: &str) -> Option<PathBuf> {
            None
        }
    }

    #[test]
    fn process_and_kernel() {
        let tree = Tree::new(&[
            (
                "proc/self/status",
                "Name:\tx\nUid:\t1000\t0\t0\t0\nCapEff:\t0000008000003000",
            ),
            ("proc/sys/kernel/osrelease", "6.1.0"),
            (
                "lib/modules/6.1.0/modules.dep",
                "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/x/ib_core.ko.xz\n\
                 kernel/drivers/infiniband/sw/siw/siw.ko: kernel/x/ib_uverbs.ko",
            ),
            (
                "lib/modules/6.1.0/modules.builtin",
                "kernel/net/sched/sch_netem.ko",
            ),
            ("sys/module/siw/refcnt", "0"),
            (
                "proc/7/stat",
                "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 13 14 15 16 4242 18",
            ),
        ]);
        let host = tree.host(NoPrograms);
        assert!(host.is_root());
        assert!(host.has(Capability::NET_ADMIN) && host.has(Capability::NET_RAW));
        assert!(host.has(Capability::BPF) && !host.has(Capability::PERFMON));
        assert!(host.can_load("rdma_rxe") && host.can_load("siw"));
        assert!(host.can_load("sch_netem"));
        assert!(
            !host.can_load("ib_uverbs"),
            "named only as what another needs"
        );
        assert!(host.has_module("siw") && !host.has_module("rdma_rxe"));
        assert_eq!(host.process_start(7), Some(4242));
        assert_eq!(host.process_start(8), None);
    }

    #[test]
    fn nothing_there() {
        let tree = Tree::new(&[]);
        let host = tree.host(NoPrograms);
        assert!(!host.is_root() && !host.has(Capability::NET_RAW));
        assert!(!host.can_load("rdma_rxe"));
        assert_eq!(host.kernel(), "");
    }
}
