//! The kernel: Soft-RoCE, network namespace, what a tap needs.

use std::fs;

use super::{Finding, Probe};
use crate::host::packages::{Package, install};

/// Whether Soft-RoCE is there or can be had.
pub(super) fn module(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    let release = host.kernel();
    vec![if host.has_module("rdma_rxe") {
        Finding::ok("rdma_rxe (Soft-RoCE) is loaded")
    } else if let Some(device) = probe.devices.iter().find(|device| !device.is_rxe()) {
        Finding::ok(format!(
            "rdma_rxe is not loaded; {} needs none",
            device.name
        ))
    } else if !host.exists(&format!("lib/modules/{release}")) {
        no_modules(probe, &release)
    } else if host.can_load("rdma_rxe") {
        Finding::warn("rdma_rxe (Soft-RoCE) is there, but not loaded")
            .repair("sudo modprobe rdma_rxe")
    } else {
        Finding::fail(format!(
            "the kernel {release} has no module rdma_rxe (Soft-RoCE)"
        ))
        .repair(install(host, Package::RxeModule))
    }]
}

/// The running kernel's modules are not installed: in a container, or because
/// packages of a newer kernel have replaced them.
fn no_modules(probe: &Probe, release: &str) -> Finding {
    let finding = Finding::fail(format!(
        "no modules of the running kernel {release} are here"
    ));
    let entries = fs::read_dir(probe.host.path("lib/modules"));
    let mut others: Vec<_> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    others.sort();
    if others.is_empty() {
        finding.detail("In a container, rdma_rxe has to be loaded outside.")
    } else {
        finding
            .detail(format!(
                "rdma_rxe can be loaded after booting a kernel whose modules are: {}.",
                others.join(", ")
            ))
            .repair("sudo reboot")
    }
}

/// Whether this is the namespace that Soft-RoCE works in.
pub(super) fn namespace(probe: &Probe) -> Vec<Finding> {
    let link = |path: &str| fs::read_link(probe.host.path(path)).ok();
    let (own, first) = (link("proc/self/ns/net"), link("proc/1/ns/net"));
    // Others than root may not look at process 1.
    let (Some(own), Some(first)) = (own, first) else {
        return Vec::new();
    };
    if own == first {
        return vec![Finding::ok("the machine's own network namespace")];
    }
    vec![
        Finding::warn("another network namespace than the machine's own").detail(
            "Before the kernels of 2026 Soft-RoCE works in the first network namespace only; \
             its packets cannot be seen from this one.",
        ),
    ]
}

/// What attaching to the receive function of Soft-RoCE takes, but for the
/// rights.
pub(super) fn tap(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    let lockdown = host
        .read("sys/kernel/security/lockdown")
        .unwrap_or_default();
    let finding = if lockdown.contains("[confidentiality]") {
        Finding::warn("kernel lockdown (confidentiality) forbids BPF programs to read memory")
            .detail("--tap cannot see looped packets; the lab can make them visible.")
            .repair("sudo roce-sniff lab up")
    } else if !host.exists("sys/kernel/btf/vmlinux") {
        Finding::warn("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")
            .detail("--tap cannot see looped packets; the lab can make them visible.")
            .repair("sudo roce-sniff lab up")
    } else if !host.exists("sys/bus/event_source/devices/kprobe") {
        Finding::warn("the kernel has no kprobes (CONFIG_KPROBE_EVENTS)")
            .detail("--tap cannot see looped packets; the lab can make them visible.")
            .repair("sudo roce-sniff lab up")
    } else {
        Finding::ok("kprobes and BTF are there for --tap")
    };
    vec![finding]
}
