//! Soft-RoCE for the length of a run.

use super::*;

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

#[test]
fn soft_roce_in_use_is_left_for_later() {
    let tree = with_eth0();
    let setup = SetupRxe::new(host(&tree), "eth0").unwrap();
    tree.write("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe_eth0");
    tree.write("proc/12/comm", "rping");
    fs::create_dir_all(tree.root().join("proc/12/fd")).unwrap();
    let fd = tree.root().join("proc/12/fd/5");
    std::os::unix::fs::symlink("/dev/infiniband/uverbs0", &fd).unwrap();
    let left = setup.close().outcome;
    assert_eq!(
        left,
        Outcome::LeftAlone(
            "rping (pid 12) has it open; when it is done: sudo roce-sniff lab down".into()
        )
    );
    fs::remove_file(fd).unwrap();
    assert!(matches!(down(&host(&tree)).unwrap(), Down::Removed(_)));
    assert_eq!(host(&tree).sysfs().devices().unwrap(), []);
    assert_eq!(down(&host(&tree)).unwrap(), Down::Nothing);
}
