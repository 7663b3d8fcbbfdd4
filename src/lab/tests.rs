//! The lab on a kernel of files: commands change a tree the way the kernel
//! would.

use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, PoisonError},
};

use super::*;
use crate::host::{Ran, Run, RunError, tests::Tree};

/// What happens to the n-th command that is to change something.
#[derive(Clone, Copy, PartialEq)]
enum Accident {
    /// The program dies before it.
    DeathBefore,
    /// The program dies after it.
    DeathAfter,
    /// The command fails.
    Failure,
}

struct Kernel {
    root: PathBuf,
    accident: Option<(usize, Accident)>,
    /// Changing commands so far.
    log: Mutex<Vec<String>>,
    missing: Option<&'static str>,
}

const DEATH: &str = "killed";

impl Kernel {
    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().into())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn remove(&self, path: &str) {
        fs::remove_dir_all(self.root.join(path)).unwrap();
    }

    fn add_netdev(&self, name: &str, mac: &str, mtu: &str, peer: &str) {
        for (file, text) in [
            ("ifindex", "7"),
            ("mtu", mtu),
            ("address", mac),
            ("flags", "0x1002"),
            ("peer", peer),
        ] {
            self.write(&format!("sys/class/net/{name}/{file}"), text);
        }
        self.write(&format!("proc/sys/net/ipv4/conf/{name}/rp_filter"), "0");
        self.write(&format!("proc/sys/net/ipv4/conf/{name}/accept_local"), "0");
    }

    fn delete_netdev(&self, name: &str) {
        for device in self.names("sys/class/infiniband") {
            let path = format!("sys/class/infiniband/{device}");
            if self.read(&format!("{path}/parent")).as_deref() == Some(name) {
                self.remove(&path);
            }
        }
        self.remove(&format!("sys/class/net/{name}"));
        self.remove(&format!("proc/sys/net/ipv4/conf/{name}"));
    }

    /// Whether the command works.
    fn change(&self, command: &[&str]) -> Result<(), &'static str> {
        let device = |name: &str| format!("sys/class/infiniband/{name}");
        let has = |path: &str| self.root.join(path).exists();
        match *command {
            ["modprobe", "rdma_rxe"] => self.write("sys/module/rdma_rxe/refcnt", "0"),
            [
                "ip",
                "link",
                "add",
                a,
                "address",
                mac_a,
                "mtu",
                mtu,
                "type",
                "veth",
                "peer",
                "name",
                b,
                "address",
                mac_b,
                "mtu",
                _,
            ] => {
                self.add_netdev(a, mac_a, mtu, b);
                self.add_netdev(b, mac_b, mtu, a);
            }
            ["ip", "link", "set", name, "up"] => {
                self.write(&format!("sys/class/net/{name}/flags"), "0x1003");
            }
            ["ip", "link", "delete", name] => {
                let peer = self.read(&format!("sys/class/net/{name}/peer")).unwrap();
                self.delete_netdev(name);
                self.delete_netdev(&peer);
            }
            ["ip", "address", "add", address, "dev", name] => {
                self.write(&format!("sys/class/net/{name}/ip"), address);
            }
            ["ip", "neighbour", "replace", ..] => {}
            ["rdma", "link", "add", name, "type", "rxe", "netdev", netdev] => {
                if has(&device(name)) {
                    return Err("error: File exists");
                }
                let path = device(name);
                self.write(&format!("{path}/parent"), netdev);
                self.write(&format!("{path}/ports/1/state"), "4: ACTIVE");
                let address = self.read(&format!("sys/class/net/{netdev}/ip"));
                let address = address.unwrap_or("192.0.2.1/24".into());
                let (address, _) = address.split_once('/').unwrap();
                self.write(
                    &format!("{path}/ports/1/gids/1"),
                    &format!("::ffff:{address}"),
                );
                self.write(&format!("{path}/ports/1/gid_attrs/types/1"), "RoCE v2");
                self.write(&format!("{path}/ports/1/gid_attrs/ndevs/1"), netdev);
            }
            ["rdma", "link", "delete", name] => self.remove(&device(name)),
            _ => panic!("{command:?}"),
        }
        Ok(())
    }
}

struct Handle(Arc<Kernel>);

impl Run for Handle {
    fn run(&self, program: &str, args: &[&str]) -> Result<Ran, RunError> {
        let mut ran = Ran {
            status: Some(0),
            ..Ran::default()
        };
        if (program, args) == ("ip", ["-j", "address", "show"].as_slice()) {
            ran.stdout = self.0.read("addresses").unwrap_or("[]".into());
            return Ok(ran);
        }
        let mut log = self.0.log.lock().unwrap_or_else(PoisonError::into_inner);
        let number = log.len();
        log.push(format!("{program} {}", args.join(" ")));
        drop(log);
        let accident = self.0.accident.filter(|(at, _)| *at == number);
        match accident {
            Some((_, Accident::DeathBefore)) => panic::panic_any(DEATH),
            Some((_, Accident::Failure)) => {
                ran.status = Some(2);
                ran.stderr = "no luck\n".into();
                return Ok(ran);
            }
            _ => {}
        }
        let command: Vec<_> = [program].iter().chain(args).copied().collect();
        if let Err(error) = self.0.change(&command) {
            ran.status = Some(1);
            ran.stderr = error.into();
        }
        if accident.is_some() {
            panic::panic_any(DEATH);
        }
        Ok(ran)
    }

    fn start(&self, program: &str, args: &[&str]) -> Result<(), RunError> {
        self.run(program, args).map(|_| ())
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        let there = program != "udevadm" && self.0.missing != Some(program);
        there.then(|| Path::new("/bin").join(program))
    }
}

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

fn with_eth0() -> Tree {
    let tree = machine();
    tree.write("sys/class/net/eth0/ifindex", "2");
    tree.write("sys/class/net/eth0/mtu", "1500");
    tree
}

#[test]
fn soft_roce_for_a_run() {
    let tree = with_eth0();
    let setup = SetupRxe::new(host(&tree), "eth0").unwrap();
    assert_eq!((setup.device(), setup.existed()), ("rxe_eth0", false));
    let another = SetupRxe::new(host(&tree), "eth0").unwrap();
    assert_eq!((another.device(), another.existed()), ("rxe_eth0", false));
    drop(another);
    drop(setup);
    assert_eq!(host(&tree).sysfs().devices().unwrap(), []);
    let error = SetupRxe::new(host(&tree), "eth9")
        .err()
        .unwrap()
        .to_string();
    assert_eq!(error, "there is no network device eth9; there are: eth0");
}

#[test]
fn soft_roce_that_was_there_stays() {
    let tree = with_eth0();
    host(&tree)
        .run(
            "rdma",
            &["link", "add", "mine", "type", "rxe", "netdev", "eth0"],
        )
        .unwrap();
    let setup = SetupRxe::new(host(&tree), "eth0").unwrap();
    assert_eq!((setup.device(), setup.existed()), ("mine", true));
    assert!(matches!(setup.close().outcome, Outcome::LeftAlone(_)));
    assert!(host(&tree).sysfs().device("mine").is_some());
}

#[test]
fn soft_roce_of_a_killed_run() {
    let tree = with_eth0();
    std::mem::forget(SetupRxe::new(host(&tree), "eth0").unwrap());
    let Down::Removed(undone) = down(&host(&tree)).unwrap() else {
        panic!("one was left")
    };
    assert_eq!(undone[0].outcome, Outcome::Removed);
    assert_eq!(host(&tree).sysfs().devices().unwrap(), []);
    assert_eq!(down(&host(&tree)).unwrap(), Down::Nothing);
    // The next run takes it over and removes it at its end.
    std::mem::forget(SetupRxe::new(host(&tree), "eth0").unwrap());
    let next = SetupRxe::new(host(&tree), "eth0").unwrap();
    assert!(!next.existed());
    assert_eq!(next.close().outcome, Outcome::Removed);
    assert_eq!(host(&tree).sysfs().devices().unwrap(), []);
}
