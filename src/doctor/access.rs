//! What this process may do.

use std::fs::OpenOptions;

use super::{Finding, Probe, Status};
use crate::host::Capability;

/// Whether programs can open the RDMA devices.
pub(super) fn device_files(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    let mut findings = Vec::new();
    for device in &probe.devices {
        let Some(file) = host.verbs_file(&device.name) else {
            findings.push(
                Finding::fail(format!(
                    "the kernel offers no verbs file for {}",
                    device.name
                ))
                .repair("sudo modprobe ib_uverbs"),
            );
            continue;
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(host.path(&file));
        findings.push(match opened {
            Ok(_) => Finding::ok(format!("/{file} ({}) can be opened", device.name)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Finding::fail(format!("/{file} ({}) is missing", device.name))
                    .detail(
                        "The kernel has the device, /dev has not: as in a container without it, \
                         or where /dev is not kept by the kernel (devtmpfs) or udev.",
                    )
                    .repair("sudo udevadm trigger --subsystem-match=infiniband_verbs")
            }
            Err(error) => {
                let reason = error.to_string();
                Finding::fail(format!(
                    "/{file} ({}) cannot be opened: {reason}",
                    device.name
                ))
                .repair(format!("sudo chmod a+rw /{file}"))
            }
        });
    }
    if !probe.devices.is_empty() && !host.exists("dev/infiniband/rdma_cm") {
        findings.push(
            Finding::note("/dev/infiniband/rdma_cm is missing")
                .detail("Only programs that connect through RDMA-CM, as rping does, need it.")
                .repair("sudo modprobe rdma_ucm"),
        );
    }
    findings
}

/// Locked memory that suffices for anything small, in bytes: the default of
/// kernels since 5.16.
const MEMLOCK_USUAL: u64 = 8 << 20;

/// How much memory may be registered.
pub(super) fn memlock(probe: &Probe) -> Vec<Finding> {
    let limits = probe.host.read("proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return Vec::new();
    };
    let words = match soft.parse::<u64>() {
        Ok(bytes) => format!("{} KiB", bytes >> 10),
        Err(_) => "any amount".to_owned(),
    };
    if probe.host.has(Capability::IPC_LOCK) {
        return vec![
            Finding::ok(format!(
                "no limit for this process (without CAP_IPC_LOCK: {words})"
            ))
            .detail("Memory regions are pinned: other users are bound by their ulimit -l."),
        ];
    }
    let enough = soft
        .parse::<u64>()
        .map_or(true, |bytes| bytes >= MEMLOCK_USUAL);
    let finding = Finding::new(
        if enough { Status::Ok } else { Status::Warn },
        format!("{words} may be pinned"),
    );
    let finding = finding.detail(
        "Memory regions, queues and completion queues count; past the limit ibv_reg_mr returns \
         NULL with ENOMEM.",
    );
    vec![if enough {
        finding
    } else {
        finding.repair(
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf  # then log \
             in again",
        )
    }]
}

/// What each capability is for.
const PURPOSES: [(Capability, &str); 4] = [
    (Capability::NET_RAW, "capturing"),
    (Capability::NET_ADMIN, "lab and --setup-rxe"),
    (Capability::BPF, "--tap"),
    (Capability::PERFMON, "--tap"),
];

/// Which rights this process has.
pub(super) fn capabilities(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    let missing: Vec<_> = PURPOSES
        .iter()
        .filter(|(capability, _)| !host.has(*capability))
        .map(|(capability, purpose)| format!("{} ({purpose})", capability.1))
        .collect();
    let who = if host.is_root() { "root" } else { "not root" };
    vec![if missing.is_empty() {
        Finding::ok(format!("{who}, with everything that is needed"))
    } else {
        Finding::warn(format!("{who}; without {}", missing.join(", ")))
            .detail(
                "Programs use verbs without any of them. To capture without sudo: sudo setcap \
                 cap_net_raw+ep on the roce-sniff binary.",
            )
            .repair("sudo roce-sniff doctor")
    }]
}

/// Whether a capture can be opened.
pub(super) fn capture(probe: &Probe) -> Vec<Finding> {
    let Some(try_capture) = &probe.try_capture else {
        return vec![
            Finding::note("this roce-sniff was built without live capture")
                .repair("cargo install --path . --locked --features live"),
        ];
    };
    let netdev = probe.netdevs().first().copied().unwrap_or("any");
    if probe.iface.is_some() && probe.host.sysfs().netdev(netdev).is_none() {
        return Vec::new();
    }
    vec![match try_capture(netdev) {
        Ok(()) => Finding::ok(format!("a capture on {netdev} can be opened")),
        Err(error) => {
            let finding = Finding::fail(format!("no capture on {netdev} can be opened: {error}"));
            if probe.host.has(Capability::NET_RAW) {
                finding
            } else {
                finding.repair("sudo roce-sniff doctor")
            }
        }
    }]
}
