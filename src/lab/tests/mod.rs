//! The lab on a kernel of files.

mod kernel;
mod rxe;

use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    process,
    sync::{Arc, Mutex},
};

use kernel::{Accident, DEATH, Handle, Kernel};

use super::*;
use crate::host::tests::Tree;

fn machine() -> Tree {
    Tree::new(&[
        ("proc/self/status", "Uid:\t0\t0\t0\t0"),
        ("proc/sys/kernel/osrelease", "6.1.0"),
        ("proc/sys/kernel/random/boot_id", "this boot"),
        ("lib/modules/6.1.0/modules.dep", "x/rdma_rxe.ko:"),
    ])
}

fn kernel(tree: &Tree, accident: Option<(usize, Accident)>) -> (Host, Arc<Kernel>) {
    let kernel = Arc::new(Kernel {
        root: tree.root().to_owned(),
        accident,
        log: Mutex::default(),
        missing: None,
    });
    (tree.host(Handle(Arc::clone(&kernel))), kernel)
}

fn host(tree: &Tree) -> Host {
    kernel(tree, None).0
}

fn plan() -> Plan {
    Plan::new(PREFIX, ADDRESSES.map(|a| a.parse().unwrap()), MTU).unwrap()
}

fn raise(host: &Host) -> Result<Up, LabError> {
    up(host, &plan(), &|| false)
}

fn assert_clean(tree: &Tree) {
    for path in ["sys/class/net", "sys/class/infiniband", "run/roce-sniff"] {
        let entries = fs::read_dir(tree.root().join(path)).into_iter().flatten();
        let left: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
        assert_eq!(left, Vec::<PathBuf>::new());
    }
}

#[test]
fn up_and_down() {
    let tree = machine();
    let (host, kernel) = kernel(&tree, None);
    assert_eq!(status(&host).unwrap().state, State::Down);
    let lab = raise(&host).unwrap();
    assert!(!lab.already && lab.cleaned.is_empty());
    assert_eq!(lab.status.state, State::Up);
    assert_eq!(
        lab.status.next,
        "sudo roce-sniff --iface rs-veth0 --write --peer-dev rs_rxe1"
    );
    let end = &lab.status.ends[1];
    assert_eq!((end.gid_index, end.path_mtu), (Some(1), Some(1024)));
    for netdev in ["rs-veth0", "rs-veth1"] {
        let conf = format!("net/ipv4/conf/{netdev}");
        let values =
            ["rp_filter", "accept_local"].map(|name| host.sysctl(&format!("{conf}/{name}")));
        assert_eq!(values, [Some("2".into()), Some("1".into())]);
    }
    let commands = kernel.log.lock().unwrap().len();
    let again = raise(&host).unwrap();
    assert!(again.already);
    assert_eq!(again.status, lab.status);
    assert_eq!(
        kernel.log.lock().unwrap().len(),
        commands,
        "nothing was run"
    );

    let Down::Removed(undone) = down(&host).unwrap() else {
        panic!("there was a lab")
    };
    assert!(
        undone.iter().all(|u| u.outcome == Outcome::Removed),
        "{undone:?}"
    );
    assert_eq!(undone.len(), 3);
    assert_clean(&tree);
    assert_eq!(down(&host).unwrap(), Down::Nothing);
}

/// Whenever the program dies, `down` removes what there is, and so does the
/// next `up`.
#[test]
fn death_at_any_point() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&DEATH) {
            hook(info);
        }
    }));
    let mut deaths = 0;
    for number in 0.. {
        let mut died = false;
        for accident in [Accident::DeathBefore, Accident::DeathAfter] {
            for rise in [false, true] {
                let tree = machine();
                let (dying, _) = kernel(&tree, Some((number, accident)));
                died = panic::catch_unwind(AssertUnwindSafe(|| raise(&dying))).is_err();
                if !died {
                    continue;
                }
                deaths += 1;
                let host = host(&tree);
                if rise {
                    let lab = raise(&host).unwrap();
                    assert_eq!(lab.status.state, State::Up);
                }
                assert!(matches!(down(&host).unwrap(), Down::Removed(_)));
                assert_clean(&tree);
            }
        }
        if !died {
            break;
        }
    }
    // modprobe, the pair, and up, address, neighbour, rxe of two ends.
    assert_eq!(deaths, 10 * 2 * 2);
}

#[test]
fn failure_at_any_point() {
    for number in 0..10 {
        let tree = machine();
        let (host, kernel) = kernel(&tree, Some((number, Accident::Failure)));
        let error = raise(&host).unwrap_err().to_string();
        let command = kernel.log.lock().unwrap()[number].clone();
        assert_eq!(error, format!("{command}: no luck"));
        assert_clean(&tree);
    }
}

#[test]
fn an_interrupt_leaves_nothing() {
    let tree = machine();
    let calls = Mutex::new(0);
    let interrupted = || {
        *calls.lock().unwrap() += 1;
        *calls.lock().unwrap() > 6
    };
    let error = up(&host(&tree), &plan(), &interrupted).unwrap_err();
    assert!(matches!(error, LabError::Interrupted), "{error}");
    assert_clean(&tree);
}

#[test]
fn what_is_not_the_labs_is_left() {
    for (path, text, complaint) in [
        (
            "sys/class/net/rs-veth1/mtu",
            "1500",
            "the network device rs-veth1 exists",
        ),
        (
            "sys/class/infiniband/rs_rxe0/ports/1/state",
            "4: ACTIVE",
            "the RDMA device rs_rxe0 exists",
        ),
        (
            "addresses",
            r#"[{"ifname":"eth0","addr_info":[{"local":"10.99.0.2"}]}]"#,
            "10.99.0.2 is an address of this machine already (eth0)",
        ),
        (
            "proc/net/route",
            "Iface Destination Gateway Flags RefCnt Use Metric Mask\ntun0 0000000A 0 1 0 0 0 000000FF",
            "10.99.0.1/24 overlaps the route to 10.0.0.0/8 through tun0",
        ),
    ] {
        let tree = machine();
        tree.write(path, text);
        if path.contains("net/rs-veth1") {
            tree.write("sys/class/net/rs-veth1/ifindex", "3");
        }
        let (host, kernel) = kernel(&tree, None);
        let error = raise(&host).unwrap_err().to_string();
        assert!(error.starts_with(complaint), "{error}");
        assert!(kernel.log.lock().unwrap().is_empty());
        assert!(tree.root().join(path).exists());
        assert_eq!(down(&host).unwrap(), Down::Nothing);
    }
}

#[test]
fn what_became_somebody_elses_is_left() {
    let tree = machine();
    let host = host(&tree);
    raise(&host).unwrap();
    tree.write("sys/class/net/rs-veth0/address", "02:00:00:00:00:99");
    tree.write("sys/class/net/rs-veth1/address", "02:00:00:00:00:99");
    tree.write("sys/class/infiniband/rs_rxe0/parent", "eth0");
    tree.write(
        "sys/class/infiniband/rs_rxe0/ports/1/gid_attrs/ndevs/1",
        "eth0",
    );
    assert_eq!(status(&host).unwrap().state, State::Partial);
    let Down::Removed(undone) = down(&host).unwrap() else {
        panic!("there was a lab")
    };
    let left = |what: &str| {
        let undone = undone
            .iter()
            .find(|undone| undone.what.contains(what))
            .unwrap();
        matches!(undone.outcome, Outcome::LeftAlone(_))
    };
    assert!(left("rs_rxe0") && left("rs-veth0") && !left("rs_rxe1"));
    assert!(tree.root().join("sys/class/net/rs-veth0").exists());
    assert!(tree.root().join("sys/class/infiniband/rs_rxe0").exists());
    assert_eq!(down(&host).unwrap(), Down::Nothing);
}

#[test]
fn another_lab_and_half_a_lab() {
    let tree = machine();
    let host = host(&tree);
    raise(&host).unwrap();
    let other = Plan::new("other", plan().ends.map(|end| end.address), MTU).unwrap();
    let error = up(&host, &other, &|| false).unwrap_err().to_string();
    assert!(error.contains("(rs-veth0, rs-veth1)"), "{error}");
    // Somebody removed one device: the next up makes the whole lab again.
    fs::remove_dir_all(tree.root().join("sys/class/infiniband/rs_rxe1")).unwrap();
    let half = status(&host).unwrap();
    assert_eq!(
        (half.state, half.next.as_str()),
        (State::Partial, "sudo roce-sniff lab down")
    );
    let lab = raise(&host).unwrap();
    assert_eq!(lab.status.state, State::Up);
    assert!(!lab.cleaned.is_empty());
}

#[test]
fn a_reboot_takes_the_lab_away() {
    let tree = machine();
    let host = host(&tree);
    raise(&host).unwrap();
    tree.write("proc/sys/kernel/random/boot_id", "another boot");
    fs::remove_dir_all(tree.root().join("sys/class")).unwrap();
    assert_eq!(status(&host).unwrap().state, State::Down);
    assert_eq!(down(&host).unwrap(), Down::Rebooted);
    assert_eq!(down(&host).unwrap(), Down::Nothing);
    assert_eq!(raise(&host).unwrap().status.state, State::Up);
}

#[test]
fn a_device_in_use() {
    let tree = machine();
    let host = host(&tree);
    raise(&host).unwrap();
    tree.write("sys/class/infiniband_verbs/uverbs1/ibdev", "rs_rxe1");
    tree.write("proc/12/comm", "rping");
    fs::create_dir_all(tree.root().join("proc/12/fd")).unwrap();
    let fd = tree.root().join("proc/12/fd/5");
    std::os::unix::fs::symlink("/dev/infiniband/uverbs1", &fd).unwrap();
    let error = down(&host).unwrap_err().to_string();
    assert_eq!(
        error,
        "rs_rxe1 is in use by rping (pid 12): end it, then try again"
    );
    assert_eq!(
        status(&host).unwrap().state,
        State::Up,
        "nothing was removed"
    );
    fs::remove_file(fd).unwrap();
    down(&host).unwrap();
    assert_clean(&tree);
}

#[test]
fn who_may_and_with_what() {
    let tree = machine();
    tree.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000");
    let error = raise(&host(&tree)).unwrap_err().to_string();
    assert_eq!(
        error,
        "setting up and removing network and RDMA devices needs root: sudo roce-sniff lab up"
    );
    assert!(matches!(down(&host(&tree)), Err(LabError::NotRoot(_))));
    assert_eq!(status(&host(&tree)).unwrap().state, State::Down);

    let tree = machine();
    tree.write("etc/os-release", "ID=debian");
    let kernel = Kernel {
        root: tree.root().to_owned(),
        accident: None,
        log: Mutex::default(),
        missing: Some("rdma"),
    };
    let host = tree.host(Handle(Arc::new(kernel)));
    assert_eq!(
        raise(&host).unwrap_err().to_string(),
        "the program `rdma` is not installed: sudo apt-get install iproute2"
    );
}

#[test]
fn kernels_without_the_module() {
    let tree = machine();
    tree.write("lib/modules/6.1.0/modules.dep", "x/ib_core.ko:");
    tree.write("etc/os-release", "ID=ubuntu");
    let failing = || kernel(&tree, Some((0, Accident::Failure))).0;
    assert_eq!(
        raise(&failing()).unwrap_err().to_string(),
        "the kernel 6.1.0 has no module rdma_rxe (Soft-RoCE): \
         sudo apt-get install linux-modules-extra-$(uname -r)"
    );
    fs::remove_dir_all(tree.root().join("lib/modules")).unwrap();
    let error = raise(&failing()).unwrap_err().to_string();
    assert!(error.contains("sudo reboot"), "{error}");
}

#[test]
fn a_damaged_journal() {
    let tree = machine();
    tree.write("run/roce-sniff/lab.json", "{");
    let error = down(&host(&tree)).unwrap_err().to_string();
    assert!(error.contains("lab.json: not a journal"), "{error}");
    assert!(error.contains("sudo rm "), "{error}");
}

#[test]
fn two_at_a_time() {
    let tree = machine();
    let host = host(&tree);
    let mut journal = Journal::new(&host, plan());
    // This process, alive.
    let stat = format!("{} (x) S {}", process::id(), ["1"; 30].join(" "));
    tree.write(&format!("proc/{}/stat", process::id()), &stat);
    assert_eq!(journal.create(&host).unwrap(), None);
    assert_eq!(journal.create(&host).unwrap(), Some(process::id()));
    journal.writer = journal::Process::this(&host);
    journal.save(&host).unwrap();
    assert!(matches!(raise(&host), Err(LabError::Busy(_))));
    assert!(matches!(down(&host), Err(LabError::Busy(_))));
}
