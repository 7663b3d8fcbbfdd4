use super::*;

/// A sysfs in a temporary directory.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            tree.write(path, text);
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.0.path())
    }
}

const ZERO: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

/// Soft-RoCE on veth0 as Linux 6.1 shows it. Entry 3 is empty: its
/// attributes, EINVAL there, are missing here.
fn rxe() -> Tree {
    const PORT: &str = "class/infiniband/rxe0/ports/1";
    let tree = Tree::new(&[
        ("class/infiniband/rxe0/parent", "veth0"),
        ("class/infiniband/rxe0/node_desc", "some host"),
        ("class/infiniband/rxe0/node_guid", "0000:00ff:fe00:0001"),
    ]);
    for (file, text) in [
        ("state", "4: ACTIVE"),
        ("link_layer", "Ethernet"),
        ("gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001"),
        ("gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        ("gids/2", "2001:0db8:0000:0000:0000:0000:0000:0001"),
        ("gids/3", ZERO),
        ("gids/1023", ZERO),
        ("gid_attrs/types/0", "RoCE v2"),
        ("gid_attrs/types/1", "RoCE v2"),
        ("gid_attrs/types/2", "RoCE v2"),
        ("gid_attrs/ndevs/0", "veth0"),
        ("gid_attrs/ndevs/1", "veth0"),
        ("gid_attrs/ndevs/2", "veth0"),
        ("hw_counters/sent_pkts", "250"),
        ("hw_counters/rcvd_pkts", "250"),
        ("hw_counters/lifespan", "10"),
    ] {
        tree.write(&format!("{PORT}/{file}"), text);
    }
    tree
}

/// A port of a hardware device: each address as RoCE v1 and as v2, a VLAN.
fn hardware() -> Tree {
    const PORT: &str = "class/infiniband/mlx5_0/ports/1";
    let tree = Tree::new(&[("class/infiniband/mlx5_0/node_guid", "b859:9f03:00aa:bb00")]);
    tree.link(
        "class/infiniband/mlx5_0/device/driver",
        "../../../../bus/pci/drivers/mlx5_core",
    );
    tree.write("class/infiniband/mlx5_0/device/net/eth0/dev_port", "0");
    tree.write(&format!("{PORT}/state"), "1: DOWN");
    tree.write(&format!("{PORT}/link_layer"), "Ethernet");
    let gids = [
        ("fe80::1", "IB/RoCE v1", "eth0"),
        ("fe80::1", "RoCE v2", "eth0"),
        ("::ffff:192.0.2.7", "IB/RoCE v1", "eth0"),
        ("::ffff:192.0.2.7", "RoCE v2", "eth0"),
        ("::ffff:198.51.100.7", "RoCE v2", "eth0.100"),
    ];
    for (i, (gid, kind, netdev)) in gids.iter().enumerate() {
        tree.write(&format!("{PORT}/gids/{i}"), gid);
        tree.write(&format!("{PORT}/gid_attrs/types/{i}"), kind);
        tree.write(&format!("{PORT}/gid_attrs/ndevs/{i}"), netdev);
    }
    tree
}

fn index(port: &Port, netdev: Option<&str>, wanted: GidWish) -> Result<u8, String> {
    choose_gid(port, netdev, wanted)
        .map(|gid| gid.index)
        .map_err(|error| error.to_string())
}

#[test]
fn soft_roce() {
    let tree = rxe();
    let devices = tree.sysfs().devices().unwrap();
    let [device] = devices.as_slice() else {
        panic!("{devices:?}")
    };
    assert_eq!(device.name, "rxe0");
    assert!(device.is_rxe());
    assert_eq!(device.node_guid, "0000:00ff:fe00:0001");
    let port = device.port(1).unwrap();
    assert!(port.state.is_active() && port.is_ethernet());
    assert_eq!(port.state.name, "ACTIVE");
    assert_eq!(port.netdev.as_deref(), Some("veth0"));
    let gids: Vec<_> = port.gids.iter().map(|g| (g.index, g.ip())).collect();
    assert_eq!(
        gids,
        [
            (0, "fe80::ff:fe00:1".parse().unwrap()),
            (1, "10.0.0.1".parse().unwrap()),
            (2, "2001:db8::1".parse().unwrap()),
        ]
    );
    let (found, port) = tree.sysfs().for_netdev("veth0").unwrap();
    assert_eq!((found, port), (device.clone(), 1));
    assert_eq!(tree.sysfs().for_netdev("veth1"), None);
}

#[test]
fn hardware_with_a_vlan() {
    let sysfs = hardware();
    let sysfs = sysfs.sysfs();
    let device = sysfs.device("mlx5_0").unwrap();
    assert_eq!(device.driver.as_deref(), Some("mlx5_core"));
    assert!(!device.is_rxe());
    let port = device.port(1).unwrap();
    assert!(!port.state.is_active());
    assert_eq!(port.gid(0).unwrap().kind, GidKind::RoceV1);
    assert_eq!(sysfs.for_netdev("eth0.100").unwrap().1, 1);
    // RoCE v1 comes first in the table and is never chosen by itself.
    assert_eq!(index(port, None, GidWish::default()), Ok(3));
    assert_eq!(index(port, Some("eth0.100"), GidWish::default()), Ok(4));
}

#[test]
fn no_rdma_at_all() {
    let tree = Tree::new(&[]);
    assert_eq!(tree.sysfs().devices().unwrap(), []);
    assert_eq!(tree.sysfs().device("rxe0"), None);
    assert_eq!(tree.sysfs().for_netdev("eth0"), None);
    assert_eq!(tree.sysfs().counters("rxe0", 1), None);
    assert_eq!(tree.sysfs().netdevs(), Vec::<String>::new());
}

/// While the network device is down the table is empty; the port is still
/// that network device's.
#[test]
fn an_empty_gid_table() {
    let tree = Tree::new(&[
        ("class/infiniband/rxe0/parent", "veth0"),
        ("class/infiniband/rxe0/ports/1/state", "1: DOWN"),
        ("class/infiniband/rxe0/ports/1/gids/0", ZERO),
    ]);
    let (device, number) = tree.sysfs().for_netdev("veth0").unwrap();
    let port = device.port(number).unwrap();
    assert_eq!(
        index(port, None, GidWish::default()).unwrap_err(),
        "port 1 has no GID: veth0 is down or has no address; \
         try `ip link set veth0 up` and `ip addr add ADDRESS/24 dev veth0`"
    );
}

#[test]
fn two_ports_of_one_function() {
    let tree = Tree::new(&[
        ("class/infiniband/mlx4_0/ports/1/state", "4: ACTIVE"),
        ("class/infiniband/mlx4_0/ports/2/state", "4: ACTIVE"),
        ("class/infiniband/mlx4_0/device/net/eth2/dev_port", "0"),
        ("class/infiniband/mlx4_0/device/net/eth1/dev_port", "1"),
    ]);
    let device = tree.sysfs().device("mlx4_0").unwrap();
    let netdevs: Vec<_> = device.ports.iter().map(|p| p.netdev.as_deref()).collect();
    assert_eq!(netdevs, [Some("eth2"), Some("eth1")]);
    assert_eq!(tree.sysfs().for_netdev("eth1").unwrap().1, 2);
}

#[test]
fn infiniband_is_not_roce() {
    let tree = Tree::new(&[
        ("class/infiniband/ib0/ports/1/state", "4: ACTIVE"),
        ("class/infiniband/ib0/ports/1/link_layer", "InfiniBand"),
        ("class/infiniband/ib0/ports/1/gids/0", "fe80::1"),
        (
            "class/infiniband/ib0/ports/1/gid_attrs/types/0",
            "IB/RoCE v1",
        ),
    ]);
    let device = tree.sysfs().device("ib0").unwrap();
    assert_eq!(device.ports[0].gids[0].kind, GidKind::Ib);
    assert_eq!(
        index(&device.ports[0], None, GidWish::default()).unwrap_err(),
        "no RoCE v2 GID; filled: 0 fe80::1 (IB)"
    );
}

#[test]
fn gid_by_wish() {
    let tree = rxe();
    let device = tree.sysfs().device("rxe0").unwrap();
    let port = device.port(1).unwrap();
    let wish = |index, family| GidWish { index, family };
    for (wanted, chosen) in [
        (wish(None, None), 1),
        (wish(None, Some(Family::V4)), 1),
        (wish(None, Some(Family::V6)), 2),
        (wish(Some(0), None), 0),
        (wish(Some(2), Some(Family::V6)), 2),
    ] {
        assert_eq!(index(port, Some("veth0"), wanted), Ok(chosen), "{wanted:?}");
    }
    let table = "0 fe80::ff:fe00:1 (RoCE v2), 1 10.0.0.1 (RoCE v2), 2 2001:db8::1 (RoCE v2)";
    assert_eq!(
        index(port, None, wish(Some(9), None)).unwrap_err(),
        format!("GID index 9 is empty; filled: {table}")
    );
    assert_eq!(
        index(port, None, wish(Some(0), Some(Family::V4))).unwrap_err(),
        format!("no RoCE v2 GID at index 0 with an IPv4 address; filled: {table}")
    );
    assert_eq!(
        index(port, Some("eth9"), wish(None, None)).unwrap_err(),
        format!("no RoCE v2 GID on eth9; filled: {table}")
    );
}

#[test]
fn counters_and_what_changed() {
    let tree = rxe();
    let before = tree.sysfs().counters("rxe0", 1).unwrap();
    assert_eq!(before.get("lifespan"), None);
    assert_eq!((before.sent(), before.received()), (Some(250), Some(250)));
    tree.write("class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", "270");
    let after = tree.sysfs().settled_counters("rxe0", 1).unwrap();
    let changes: Vec<_> = after.since(&before).into_iter().collect();
    assert_eq!(changes, [("sent_pkts".to_owned(), 20)]);
    assert_eq!(before.since(&after)["sent_pkts"], -20);
}

#[test]
fn network_devices() {
    let tree = Tree::new(&[
        ("class/net/bonding_masters", "bond0"),
        ("class/net/veth0/ifindex", "3"),
        ("class/net/veth0/mtu", "1500"),
        ("class/net/veth0/address", "02:00:00:00:00:0a"),
        ("class/net/veth0/operstate", "up"),
        ("class/net/veth0/flags", "0x1003"),
        ("class/net/veth0/carrier", "1"),
        ("class/net/veth0/type", "1"),
        ("class/net/wlan0/ifindex", "4"),
        ("class/net/wlan0/mtu", "1500"),
        ("class/net/wlan0/flags", "0x1002"),
        ("class/net/wlan0/uevent", "DEVTYPE=wlan\nINTERFACE=wlan0"),
        ("class/net/lo/ifindex", "1"),
        ("class/net/lo/mtu", "65536"),
        ("class/net/lo/type", "772"),
    ]);
    let sysfs = tree.sysfs();
    assert_eq!(sysfs.netdevs(), ["lo", "veth0", "wlan0"]);
    let veth = sysfs.netdev("veth0").unwrap();
    assert_eq!(veth.mac.unwrap().to_string(), "02:00:00:00:00:0a");
    assert_eq!((veth.ifindex, veth.mtu, veth.up), (3, 1500, true));
    assert_eq!((veth.carrier, veth.kind.as_str()), (Some(true), "virtual"));
    let wlan = sysfs.netdev("wlan0").unwrap();
    assert_eq!((wlan.up, wlan.kind.as_str()), (false, "wlan"));
    assert_eq!(sysfs.netdev("lo").unwrap().kind, "loopback");
    for name in ["eth0", "", ".", "..", "../net/lo", "bonding_masters"] {
        assert_eq!(sysfs.netdev(name), None, "{name:?}");
    }
}
