//! What keeps the kernel tap from running, and what repairs it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use aya::{EbpfError, programs::ProgramError};

/// Why packets cannot be tapped in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The program was built where there was no compiler for BPF.
    #[error(
        "built without the kernel tap: install clang and libbpf-dev (Fedora: libbpf-devel) and \
         build again"
    )]
    NotBuilt,
    /// The driver is not there, so nothing can be received by it.
    #[error(
        "the Soft-RoCE driver is not loaded: sudo modprobe rdma_rxe (the kernel tap sees what \
         this driver receives, and no adapter's packets)"
    )]
    NoDriver,
    /// The driver is there, its receive function is not.
    #[error(
        "the loaded rdma_rxe has no function rxe_rcv to probe: this kernel was built in a way \
         the tap does not know; use a kernel of the distribution"
    )]
    NoSymbol,
    /// The kernel does not describe its own types.
    #[error(
        "this kernel has no /sys/kernel/btf/vmlinux, without which the tap cannot know where a \
         packet's fields are: boot a kernel with CONFIG_DEBUG_INFO_BTF=y, as those of \
         distributions are"
    )]
    NoBtf,
    /// The kernel cannot probe functions.
    #[error(
        "this kernel cannot probe functions: boot one with CONFIG_KPROBE_EVENTS=y and \
         CONFIG_BPF_EVENTS=y, as those of distributions are (in a container, mount /sys)"
    )]
    NoKprobes,
    /// The user may not.
    #[error(
        "the kernel tap needs CAP_BPF and CAP_PERFMON: run with sudo, or once: \
         sudo setcap cap_bpf,cap_perfmon,cap_net_raw+ep {program}"
    )]
    NotPermitted {
        /// Path of the running program.
        program: String,
    },
    /// Kernel lockdown forbids reading kernel memory.
    #[error(
        "kernel lockdown is at confidentiality, which lets no one read packets in the kernel: \
         boot with lockdown=integrity or none"
    )]
    LockedDown,
    /// The ring buffer cannot be had.
    #[error(
        "no memory for a ring buffer of {bytes} bytes: give a smaller --tap-buffer, or on \
         kernels before 5.11 raise the limit: ulimit -l unlimited"
    )]
    NoMemory {
        /// Its size.
        bytes: u32,
    },
    /// Older than the tap's needs.
    #[error("Linux {release} has no BPF ring buffer, which is there from 5.8 on: boot a newer one")]
    TooOld {
        /// What `uname -r` says.
        release: String,
    },
    /// Anything else that the kernel refused.
    #[error("the kernel tap could not be {step}: {reason}")]
    Refused {
        /// What was tried: `loaded` or `attached`.
        step: &'static str,
        /// What the kernel said, on one line.
        reason: String,
    },
}

/// Bits of the effective capabilities (`linux/capability.h`).
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// The places of a system that tell what it can do, below a root that tests
/// replace.
pub(super) struct Machine {
    root: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl Machine {
    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self { root: root.into() }
    }

    fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    /// What stands in the way, the most basic first.
    pub(super) fn check(&self) -> Result<(), TapError> {
        let release = self.read("proc/sys/kernel/osrelease").trim().to_owned();
        if version(&release).is_some_and(|version| version < (5, 8)) {
            return Err(TapError::TooOld { release });
        }
        if !self.has("sys/kernel/btf/vmlinux") {
            return Err(TapError::NoBtf);
        }
        if !self.has("sys/bus/event_source/devices/kprobe")
            && !self.has("sys/kernel/tracing/kprobe_events")
            && !self.has("sys/kernel/debug/tracing/kprobe_events")
        {
            return Err(TapError::NoKprobes);
        }
        // A driver that is built in has a directory as well, for its version
        // or parameters; what counts is the function.
        let known = self.symbol("rxe_rcv");
        if known == Some(false) {
            return Err(if self.has("sys/module/rdma_rxe") {
                TapError::NoSymbol
            } else {
                TapError::NoDriver
            });
        }
        if !self.capable() {
            return Err(not_permitted());
        }
        if self
            .read("sys/kernel/security/lockdown")
            .contains("[confidentiality]")
        {
            return Err(TapError::LockedDown);
        }
        Ok(())
    }

    /// Whether the kernel has a function of this name; `None` where it does
    /// not tell.
    fn symbol(&self, name: &str) -> Option<bool> {
        let text = self.read("proc/kallsyms");
        (!text.is_empty()).then(|| {
            text.lines()
                .any(|line| line.split_ascii_whitespace().nth(2) == Some(name))
        })
    }

    /// True, too, where the system does not tell.
    fn capable(&self) -> bool {
        let status = self.read("proc/self/status");
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        let Some(effective) = effective else {
            return true;
        };
        let has = |bit: u32| effective >> bit & 1 == 1;
        has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn not_permitted() -> TapError {
    let program = std::env::current_exe();
    TapError::NotPermitted {
        program: program.map_or_else(
            |_| "roce-sniff".into(),
            |p: PathBuf| p.display().to_string(),
        ),
    }
}

/// What the kernel's refusal to load means.
pub(super) fn explain_load(error: &(dyn std::error::Error + 'static), bytes: u32) -> TapError {
    match cause(error) {
        // A user namespace grants capabilities that the kernel does not honour.
        Some(libc::EPERM) => not_permitted(),
        Some(libc::ENOMEM | libc::E2BIG) => TapError::NoMemory { bytes },
        _ => TapError::Refused {
            step: "loaded",
            reason: words(error),
        },
    }
}

/// What the kernel's refusal to attach means.
pub(super) fn explain_attach(error: &ProgramError) -> TapError {
    match cause(error) {
        Some(libc::EPERM | libc::EACCES) => not_permitted(),
        Some(libc::ENOENT | libc::EINVAL | libc::EADDRNOTAVAIL) => {
            // Unloaded since it was looked at.
            if Path::new("/sys/module/rdma_rxe").exists() {
                TapError::NoSymbol
            } else {
                TapError::NoDriver
            }
        }
        _ => TapError::Refused {
            step: "attached",
            reason: words(error),
        },
    }
}

/// The system's error number, however deep it lies.
fn cause(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        next = error.source();
    }
    None
}

/// An error and its causes on one line; the verifier's log is pages long.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        words.extend(lines.next().map(str::to_owned));
        // What the verifier objects to is its last word but for statistics.
        let objection = lines.rfind(|line| {
            let statistics = ["processed ", "stack depth", "verification time"];
            !statistics.iter().any(|word| line.starts_with(word))
        });
        words.extend(objection.map(str::to_owned));
        next = error.source();
    }
    words.join(": ")
}

/// For `?` on what the loader returns.
pub(super) fn load_error(bytes: u32) -> impl Fn(EbpfError) -> TapError {
    move |error| explain_load(&error, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which the tap runs, in a directory.
    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "6.1.0-57-amd64\n"),
            ("sys/kernel/btf/vmlinux", ""),
            ("sys/bus/event_source/devices/kprobe/type", "6\n"),
            ("sys/module/rdma_rxe/refcnt", "0\n"),
            (
                "proc/kallsyms",
                "0000000000000000 t rxe_rcv_pkt\t[rdma_rxe]\n\
                 0000000000000000 T rxe_rcv\t[rdma_rxe]\n",
            ),
            (
                "proc/self/status",
                "Name:\troce-sniff\nCapEff:\t000000c000002000\n",
            ),
            (
                "sys/kernel/security/lockdown",
                "[none] integrity confidentiality\n",
            ),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn check(change: impl FnOnce(&Path)) -> String {
        let dir = machine();
        change(dir.path());
        let checked = Machine::at(dir.path()).check();
        checked.map_or_else(|error| error.to_string(), |()| "runs".into())
    }

    #[test]
    fn what_is_missing_is_named_with_its_repair() {
        let write = |path: &'static str, text: &'static str| {
            move |root: &Path| fs::write(root.join(path), text).unwrap()
        };
        assert_eq!(check(|_| ()), "runs");
        let text = check(write("proc/sys/kernel/osrelease", "5.4.0-200-generic"));
        assert!(text.starts_with("Linux 5.4.0-200-generic has no"), "{text}");
        let text = check(|root| fs::remove_file(root.join("sys/kernel/btf/vmlinux")).unwrap());
        assert!(text.contains("CONFIG_DEBUG_INFO_BTF=y"), "{text}");
        let text = check(|root| fs::remove_dir_all(root.join("sys/bus")).unwrap());
        assert!(text.contains("CONFIG_KPROBE_EVENTS=y"), "{text}");
        let text = check(write("proc/kallsyms", "0 T rxe_rcv_pkt\t[rdma_rxe]\n"));
        assert!(text.contains("no function rxe_rcv"), "{text}");
        let text = check(|root| {
            fs::write(root.join("proc/kallsyms"), "0 T ip_rcv\n").unwrap();
            fs::remove_dir_all(root.join("sys/module")).unwrap();
        });
        assert!(text.contains("sudo modprobe rdma_rxe"), "{text}");
        let text = check(write("proc/self/status", "CapEff:\t0000000000002000\n"));
        assert!(text.contains("setcap cap_bpf,cap_perfmon"), "{text}");
        let text = check(write(
            "sys/kernel/security/lockdown",
            "none integrity [confidentiality]\n",
        ));
        assert!(text.contains("lockdown=integrity"), "{text}");
        let sys_admin = write("proc/self/status", "CapEff:\t0000000000200000\n");
        assert_eq!(check(sys_admin), "runs");
    }
}
