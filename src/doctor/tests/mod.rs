//! Every check on machines of files, good and bad.

mod path;

use std::{collections::BTreeMap, os::unix::fs::symlink, path::PathBuf, sync::Mutex};

use super::*;
use crate::host::{Ran, Run, RunError, tests::Tree};

/// What programs say; one that says nothing is not installed.
#[derive(Default)]
struct Programs {
    /// By command line; several answers are given one after the other.
    says: Mutex<BTreeMap<String, Vec<Ran>>>,
    installed: Vec<&'static str>,
}

impl Programs {
    fn new(says: &[(&'static str, i32, &str)]) -> Self {
        let mut programs = Self::default();
        for (command, status, stdout) in says {
            programs
                .installed
                .push(command.split(' ').next().unwrap_or_default());
            let mut says = programs.says.lock().unwrap();
            says.entry((*command).to_owned()).or_default().push(Ran {
                status: Some(*status),
                stdout: (*stdout).to_owned(),
                stderr: String::new(),
            });
        }
        programs
    }
}

impl Run for Programs {
    fn run(&self, program: &str, args: &[&str]) -> Result<Ran, RunError> {
        let command = [&[program], args].concat().join(" ");
        let mut says = self.says.lock().unwrap();
        match says.get_mut(&command) {
            Some(answers) if answers.len() > 1 => Ok(answers.remove(0)),
            Some(answers) => Ok(answers[0].clone()),
            None => Err(RunError::Missing(program.to_owned())),
        }
    }

    fn start(&self, program: &str, _: &[&str]) -> Result<(), RunError> {
        panic!("the doctor started {program}")
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        let found = self.installed.contains(&program);
        found.then(|| PathBuf::from("/bin").join(program))
    }
}

const ROOT: &str = "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff";
const USER: &str = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000";

/// Soft-RoCE rxe0 on veth0, 10.0.0.1.
fn with_rxe() -> Tree {
    let tree = Tree::new(&[
        ("proc/self/status", ROOT),
        ("proc/sys/kernel/osrelease", "6.1.0"),
        ("etc/os-release", "ID=debian"),
        ("sys/module/rdma_rxe/refcnt", "0"),
        ("dev/infiniband/uverbs0", ""),
        ("dev/infiniband/rdma_cm", ""),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0"),
    ]);
    rxe(&tree, "rxe0", "veth0", 3, "10.0.0.1");
    tree
}

fn rxe(tree: &Tree, device: &str, netdev: &str, ifindex: u32, address: &str) {
    let port = format!("sys/class/infiniband/{device}/ports/1");
    let net = format!("sys/class/net/{netdev}");
    for (path, text) in [
        (format!("sys/class/infiniband/{device}/parent"), netdev),
        (format!("{port}/state"), "4: ACTIVE"),
        (format!("{port}/link_layer"), "Ethernet"),
        (format!("{port}/gids/0"), "fe80::1"),
        (format!("{port}/gids/1"), &format!("::ffff:{address}")),
        (format!("{port}/gid_attrs/types/0"), "RoCE v2"),
        (format!("{port}/gid_attrs/types/1"), "RoCE v2"),
        (format!("{port}/gid_attrs/ndevs/0"), netdev),
        (format!("{port}/gid_attrs/ndevs/1"), netdev),
        (format!("{port}/hw_counters/sent_pkts"), "5"),
        (format!("{port}/hw_counters/rcvd_pkts"), "5"),
        (format!("{net}/ifindex"), &ifindex.to_string()),
        (format!("{net}/mtu"), "1500"),
        (format!("{net}/flags"), "0x1003"),
        (format!("{net}/carrier"), "1"),
    ] {
        tree.write(&path, text);
    }
}

/// A machine without any RDMA.
fn without() -> Tree {
    Tree::new(&[
        ("proc/self/status", ROOT),
        ("proc/sys/kernel/osrelease", "6.1.0"),
        ("etc/os-release", "ID=debian"),
        ("sys/class/net/eth0/ifindex", "2"),
        ("sys/class/net/eth0/mtu", "1500"),
        ("sys/class/net/eth0/flags", "0x1003"),
    ])
}

/// An adapter with RoCE v1 and v2 on eth0.
fn with_hardware() -> Tree {
    let tree = without();
    tree.write("sys/class/net/eth0/carrier", "1");
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    for (file, text) in [
        ("state", "4: ACTIVE"),
        ("link_layer", "Ethernet"),
        ("gids/0", "::ffff:192.0.2.7"),
        ("gids/1", "::ffff:192.0.2.7"),
        ("gid_attrs/types/0", "IB/RoCE v1"),
        ("gid_attrs/types/1", "RoCE v2"),
        ("gid_attrs/ndevs/0", "eth0"),
        ("gid_attrs/ndevs/1", "eth0"),
    ] {
        tree.write(&format!("{port}/{file}"), text);
    }
    tree
}

fn probe(tree: &Tree, says: &[(&'static str, i32, &str)]) -> Probe {
    let mut probe = Probe::new(tree.host(Programs::new(says)), None, None);
    probe.idle = Duration::ZERO;
    probe
}

/// Findings of one check as "status summary".
fn found(probe: &Probe, id: &str) -> Vec<String> {
    let check = CHECKS.iter().find(|check| check.id == id).unwrap();
    let findings = (check.run)(probe);
    let words = |f: &Finding| format!("{} {}", f.status.word(), f.summary);
    findings.iter().map(words).collect()
}

/// What repairs the first finding of a check.
fn repair(probe: &Probe, id: &str) -> String {
    let check = CHECKS.iter().find(|check| check.id == id).unwrap();
    let findings = (check.run)(probe);
    findings[0].repair.clone().unwrap_or_default()
}

#[test]
fn the_table() {
    let mut ids: Vec<_> = CHECKS.iter().map(|check| check.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), CHECKS.len());
    assert!(CHECKS.iter().all(|check| check.title.len() <= 14));
}

#[test]
fn kernel_module() {
    let tree = with_rxe();
    let check = |tree: &Tree| {
        let probe = probe(tree, &[]);
        (
            found(&probe, "kernel-module").remove(0),
            repair(&probe, "kernel-module"),
        )
    };
    assert_eq!(check(&tree).0, "ok rdma_rxe (Soft-RoCE) is loaded");
    assert_eq!(
        check(&with_hardware()).0,
        "ok rdma_rxe is not loaded; mlx5_0 needs none"
    );
    let tree = without();
    assert_eq!(
        check(&tree),
        (
            "fail no modules of the running kernel 6.1.0 are here".into(),
            String::new()
        )
    );
    tree.write("lib/modules/6.1.1/modules.dep", "");
    assert_eq!(check(&tree).1, "sudo reboot");
    tree.write("lib/modules/6.1.0/modules.dep", "x/rdma_rxe.ko.xz:");
    assert_eq!(
        check(&tree),
        (
            "warn rdma_rxe (Soft-RoCE) is there, but not loaded".into(),
            "sudo modprobe rdma_rxe".into()
        )
    );
    tree.write("lib/modules/6.1.0/modules.dep", "x/siw.ko.xz:");
    let (words, repair) = check(&tree);
    assert_eq!(
        words,
        "fail the kernel 6.1.0 has no module rdma_rxe (Soft-RoCE)"
    );
    assert!(
        repair.starts_with("sudo apt-get install linux-image-"),
        "{repair}"
    );
}

#[test]
fn namespace() {
    let tree = with_rxe();
    assert_eq!(
        found(&probe(&tree, &[]), "network-namespace"),
        Vec::<String>::new()
    );
    for (own, words) in [
        ("net:[1]", "ok the machine's own network namespace"),
        (
            "net:[2]",
            "warn another network namespace than the machine's own",
        ),
    ] {
        let tree = Tree::new(&[("proc/self/ns/x", ""), ("proc/1/ns/x", "")]);
        symlink(own, tree.root().join("proc/self/ns/net")).unwrap();
        symlink("net:[1]", tree.root().join("proc/1/ns/net")).unwrap();
        assert_eq!(found(&probe(&tree, &[]), "network-namespace"), [words]);
    }
}

#[test]
fn netdevs() {
    let tree = with_rxe();
    let check = || found(&probe(&tree, &[]), "netdev").remove(0);
    assert_eq!(check(), "ok veth0 (virtual, MTU 1500) is up");
    tree.write("sys/class/net/veth0/carrier", "0");
    assert_eq!(check(), "fail veth0 (virtual, MTU 1500) has no carrier");
    tree.write("sys/class/net/veth0/flags", "0x1002");
    assert_eq!(check(), "fail veth0 (virtual, MTU 1500) is down");
    assert_eq!(
        repair(&probe(&tree, &[]), "netdev"),
        "sudo ip link set veth0 up"
    );
    let host = tree.host(Programs::default());
    let probe = Probe::new(host, Some("eth9".into()), None);
    assert_eq!(
        found(&probe, "netdev"),
        ["fail there is no network device eth9"]
    );
    // Once is enough.
    assert_eq!(found(&probe, "rdma-device"), Vec::<String>::new());
}

#[test]
fn devices() {
    let tree = with_rxe();
    assert_eq!(
        found(&probe(&tree, &[]), "rdma-device"),
        ["ok rxe0 (Soft-RoCE) on veth0 is ACTIVE"]
    );
    tree.write("sys/class/infiniband/rxe0/ports/1/state", "1: DOWN");
    assert_eq!(
        found(&probe(&tree, &[]), "rdma-device"),
        ["fail rxe0 (Soft-RoCE) on veth0 is DOWN"]
    );
    assert_eq!(repair(&probe(&tree, &[]), "rdma-device"), "");
    tree.write("sys/class/net/veth0/flags", "0x1002");
    assert_eq!(
        repair(&probe(&tree, &[]), "rdma-device"),
        "sudo ip link set veth0 up"
    );
    tree.write("sys/class/infiniband/ib0/ports/1/link_layer", "InfiniBand");
    assert_eq!(
        found(&probe(&tree, &[]), "rdma-device")[0],
        "note ib0 is InfiniBand, not RoCE"
    );
    assert_eq!(
        found(&probe(&without(), &[]), "rdma-device"),
        ["fail there is none"]
    );
    assert_eq!(
        repair(&probe(&without(), &[]), "rdma-device"),
        "sudo roce-sniff lab up"
    );
    tree.write("sys/class/net/eth0/ifindex", "2");
    tree.write("sys/class/net/eth0/mtu", "1500");
    let other = Probe::new(tree.host(Programs::default()), Some("eth0".into()), None);
    assert_eq!(found(&other, "rdma-device"), ["fail eth0 has none"]);
    assert_eq!(
        repair(&other, "rdma-device"),
        "sudo rdma link add rxe_eth0 type rxe netdev eth0"
    );
}

#[test]
fn gid_tables() {
    let tree = with_rxe();
    assert_eq!(
        found(&probe(&tree, &[]), "gid-table"),
        ["ok rxe0: use index 1, 10.0.0.1 (RoCE v2); index 0 is link-local"]
    );
    assert_eq!(
        found(&probe(&with_hardware(), &[]), "gid-table"),
        ["ok mlx5_0: use index 1, 192.0.2.7 (RoCE v2); index 0 is RoCE v1"]
    );
    let gids = "sys/class/infiniband/rxe0/ports/1/gids";
    tree.write(&format!("{gids}/1"), "::");
    let only_link_local = probe(&tree, &[]);
    assert_eq!(
        found(&only_link_local, "gid-table"),
        ["warn rxe0 has link-local addresses only (index 0: fe80::1)"]
    );
    assert_eq!(
        repair(&only_link_local, "gid-table"),
        "sudo ip address add ADDRESS/24 dev veth0"
    );
    tree.write(&format!("{gids}/0"), "::");
    let empty = found(&probe(&tree, &[]), "gid-table").remove(0);
    assert!(empty.starts_with("fail rxe0: port 1 has no GID"), "{empty}");
}

#[test]
fn path_mtus() {
    let tree = with_rxe();
    let mut probe = probe(&tree, &[]);
    let words = |active| format!("rxe0: {active} bytes a packet (reckoned from the netdev's)");
    assert_eq!(found(&probe, "path-mtu"), [format!("ok {}", words(1024))]);
    tree.write("sys/class/net/veth0/mtu", "1000");
    assert_eq!(found(&probe, "path-mtu"), [format!("warn {}", words(512))]);
    assert_eq!(
        repair(&probe, "path-mtu"),
        "sudo ip link set veth0 mtu 1500"
    );
    probe.ask_mtu = Some(Box::new(|device, port| {
        assert_eq!((device, port), ("rxe0", 1));
        Some(2048)
    }));
    assert_eq!(found(&probe, "path-mtu"), ["ok rxe0: 2048 bytes a packet"]);
    let tree = with_hardware();
    tree.write("sys/class/net/eth0/mtu", "300");
    assert_eq!(
        found(&super::tests::probe(&tree, &[]), "path-mtu"),
        ["fail the MTU of eth0, 300, is too small for RoCE"]
    );
}

#[test]
fn device_files() {
    let tree = with_rxe();
    let check = || found(&probe(&tree, &[]), "device-files");
    assert_eq!(check(), ["ok /dev/infiniband/uverbs0 (rxe0) can be opened"]);
    std::fs::remove_dir_all(tree.root().join("dev")).unwrap();
    assert_eq!(
        check(),
        [
            "fail /dev/infiniband/uverbs0 (rxe0) is missing",
            "note /dev/infiniband/rdma_cm is missing"
        ]
    );
    // Even root cannot open a directory.
    std::fs::create_dir_all(tree.root().join("dev/infiniband/uverbs0")).unwrap();
    assert!(check()[0].starts_with("fail /dev/infiniband/uverbs0 (rxe0) cannot be opened"));
    std::fs::remove_dir_all(tree.root().join("sys/class/infiniband_verbs")).unwrap();
    assert_eq!(check()[0], "fail the kernel offers no verbs file for rxe0");
}

#[test]
fn verbs_library_and_headers() {
    let tree = with_rxe();
    let mut probe = probe(&tree, &[]);
    probe.has_verbs = true;
    let missing = found(&probe, "verbs-library");
    assert_eq!(
        missing,
        ["warn missing: libibverbs.so.1, librdmacm.so.1, librxe (libibverbs' half of Soft-RoCE)"]
    );
    assert_eq!(
        repair(&probe, "verbs-library"),
        "sudo apt-get install libibverbs1 librdmacm1 ibverbs-providers"
    );
    let lib = "usr/lib/x86_64-linux-gnu";
    for file in [
        "libibverbs.so.1",
        "librdmacm.so.1.3.44.0",
        "libibverbs/librxe-rdmav34.so",
    ] {
        tree.write(&format!("{lib}/{file}"), "");
    }
    let there = "ok libibverbs and librdmacm are installed";
    assert_eq!(found(&probe, "verbs-library"), [there]);
    probe.has_verbs = false;
    assert_eq!(
        found(&probe, "verbs-library")[1],
        "note this roce-sniff was built without verbs: no --write"
    );

    assert_eq!(
        found(&probe, "verbs-headers"),
        ["note infiniband/verbs.h is not installed"]
    );
    assert_eq!(
        repair(&probe, "verbs-headers"),
        "sudo apt-get install libibverbs-dev librdmacm-dev"
    );
    tree.write("usr/include/infiniband/verbs.h", "");
    assert_eq!(
        found(&probe, "verbs-headers"),
        ["ok /usr/include/infiniband/verbs.h is there"]
    );
}

#[test]
fn locked_memory() {
    let limits = |value: &str| format!("Limit\nMax locked memory         {value} {value} bytes");
    for (status, limit, words) in [
        (
            ROOT,
            "65536",
            "ok no limit for this process (without CAP_IPC_LOCK: 64 KiB)",
        ),
        (USER, "65536", "warn 64 KiB may be pinned"),
        (USER, "8388608", "ok 8192 KiB may be pinned"),
        (USER, "unlimited", "ok any amount may be pinned"),
    ] {
        let tree = Tree::new(&[
            ("proc/self/status", status),
            ("proc/self/limits", &limits(limit)),
        ]);
        assert_eq!(found(&probe(&tree, &[]), "memlock"), [words]);
    }
}

#[test]
fn rights() {
    for (status, words) in [
        (ROOT, "ok root, with everything that is needed"),
        (
            USER,
            "warn not root; without CAP_NET_RAW (capturing), CAP_NET_ADMIN (lab and \
             --setup-rxe), CAP_BPF (--tap), CAP_PERFMON (--tap)",
        ),
        (
            "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb",
            "warn root; without CAP_NET_ADMIN (lab and --setup-rxe), CAP_BPF (--tap), \
             CAP_PERFMON (--tap)",
        ),
    ] {
        let tree = Tree::new(&[("proc/self/status", status)]);
        assert_eq!(found(&probe(&tree, &[]), "capabilities"), [words]);
    }
}

#[test]
fn captures() {
    let tree = with_rxe();
    let mut probe = probe(&tree, &[]);
    assert_eq!(
        found(&probe, "capture"),
        ["note this roce-sniff was built without live capture"]
    );
    assert_eq!(found(&probe, "libpcap"), Vec::<String>::new());
    probe.try_capture = Some(Box::new(|netdev| {
        assert_eq!(netdev, "veth0");
        Ok(())
    }));
    assert_eq!(
        found(&probe, "capture"),
        ["ok a capture on veth0 can be opened"]
    );
    probe.try_capture = Some(Box::new(|_| Err("no".into())));
    assert_eq!(
        found(&probe, "capture"),
        ["fail no capture on veth0 can be opened: no"]
    );
    assert_eq!(repair(&probe, "capture"), "", "root needs no sudo");
    tree.write("proc/self/status", USER);
    assert_eq!(repair(&probe, "capture"), "sudo roce-sniff doctor");

    assert!(found(&probe, "libpcap")[0].starts_with("note linked into"));
    tree.write("usr/lib64/libpcap.so.0.8", "");
    tree.write("usr/lib64/libpcap.so.1.10.3", "");
    assert_eq!(found(&probe, "libpcap"), ["ok version 1.10.3"]);
}

#[test]
fn kernel_tap() {
    let tree = with_rxe();
    let check = || found(&probe(&tree, &[]), "kernel-tap").remove(0);
    assert!(check().starts_with("warn the kernel has no BTF"));
    tree.write("sys/kernel/btf/vmlinux", "");
    assert!(check().starts_with("warn the kernel has no kprobes"));
    tree.write("sys/bus/event_source/devices/kprobe/type", "8");
    assert_eq!(check(), "ok kprobes and BTF are there for --tap");
    tree.write(
        "sys/kernel/security/lockdown",
        "none integrity [confidentiality]",
    );
    assert!(check().starts_with("warn kernel lockdown"));
}

#[test]
fn programs() {
    let tree = with_rxe();
    let both = probe(&tree, &[("ip", 0, ""), ("rdma", 0, "")]);
    assert_eq!(found(&both, "programs"), ["ok ip and rdma are installed"]);
    let one = probe(&tree, &[("ip", 0, "")]);
    assert_eq!(found(&one, "programs"), ["warn missing: rdma"]);
    assert_eq!(repair(&one, "programs"), "sudo apt-get install iproute2");
}

#[test]
fn other_tools() {
    let tree = with_rxe();
    let check = |says: &[(&'static str, i32, &str)]| found(&probe(&tree, says), "capture-tools");
    assert_eq!(
        check(&[]),
        ["note neither tshark nor tcpdump is installed; none is needed"]
    );
    assert_eq!(
        check(&[
            (
                "tshark --version",
                0,
                "TShark (Wireshark) 4.0.17 (Git v4.0.17 packaged as x).\n"
            ),
            (
                "tcpdump --version",
                0,
                "tcpdump version 4.99.3\nlibpcap version 1.10.3"
            ),
        ]),
        [
            "ok tshark 4.0.17 decodes RoCE (filter: infiniband)",
            "ok tcpdump 4.99.3 captures RoCE, and does not decode it"
        ]
    );
    assert_eq!(
        check(&[("tshark --version", 0, "TShark 1.12.1 (Git Rev Unknown)")]),
        ["note tshark: its version cannot be told"]
    );
    assert_eq!(
        check(&[(
            "wireshark --version",
            0,
            "Wireshark 1.12.1 (Git Rev Unknown)"
        )]),
        ["warn wireshark 1.12.1 does not decode RoCE v2"]
    );
    let home = std::env::var("HOME").unwrap_or_default();
    let list = format!(
        "{}/.config/wireshark/disabled_protos",
        &home[1.min(home.len())..]
    );
    tree.write(&list, "cip\ninfiniband");
    assert_eq!(
        check(&[("tshark --version", 0, "TShark (Wireshark) 4.0.17.")]),
        ["warn tshark 4.0.17 has InfiniBand disabled"]
    );
}

#[test]
fn examinations() {
    let good = examine(&probe(&with_rxe(), &[]));
    assert!(good.ok, "{good:?}");
    let bad = examine(&probe(&without(), &[]));
    assert!(!bad.ok);
    assert_eq!(bad.count(Status::Fail), 2);
    let json = serde_json::to_value(&bad).unwrap();
    assert_eq!(json["ok"], false);
    let first = &json["checks"][0];
    assert_eq!(first["id"], "kernel-module");
    assert_eq!(first["status"], "fail");
    for key in ["summary", "detail", "repair"] {
        assert!(first.get(key).is_some(), "{key}");
    }
}
