//! Ways that packets take, and the queue pairs at their ends.

use super::*;

#[test]
fn loopback() {
    let tree = with_rxe();
    assert_eq!(
        found(&probe(&tree, &[]), "loopback"),
        ["note rxe0 to its own 10.0.0.1 never touches veth0"]
    );
    assert_eq!(
        repair(&probe(&tree, &[]), "loopback"),
        "sudo roce-sniff lab up"
    );
    assert_eq!(
        found(&probe(&with_hardware(), &[]), "loopback"),
        Vec::<String>::new()
    );
}

const ADDRESSES: &str = r#"[{"ifname":"lo","addr_info":[{"local":"127.0.0.1"}]},
    {"ifname":"veth0","addr_info":[{"local":"10.0.0.1"},{"local":"10.0.0.9"}]},
    {"ifname":"veth1","addr_info":[{"local":"10.0.0.2"}]}]"#;

/// Findings about packets to an address.
fn to(tree: &Tree, address: &str, says: &[(&'static str, i32, &str)]) -> String {
    let mut says = says.to_vec();
    says.push(("ip -j address show", 0, ADDRESSES));
    let to = Some(address.parse().unwrap());
    let probe = Probe::new(tree.host(Programs::new(&says)), None, to);
    assert_eq!(found(&probe, "loopback"), Vec::<String>::new());
    found(&probe, "destination").remove(0)
}

#[test]
fn destinations_on_this_machine() {
    let tree = with_rxe();
    let own = "warn LOOPED: 10.0.0.1 is rxe0's own address";
    assert_eq!(to(&tree, "10.0.0.1", &[]), own);
    // Not in the table (yet), and still an address of the netdev.
    assert!(to(&tree, "10.0.0.9", &[]).starts_with("warn LOOPED"));
    assert!(to(&tree, "127.0.0.1", &[]).starts_with("fail 127.0.0.1 is on lo"));
    tree.write("sys/class/net/veth1/ifindex", "4");
    assert_eq!(
        to(&tree, "10.0.0.2", &[]),
        "warn 10.0.0.2 is on veth1 of this machine: rxe0 sends it out of veth0"
    );
    tree.write("sys/class/net/veth0/iflink", "4");
    let dropped = "fail veth1 drops what comes from an address of this machine";
    assert_eq!(to(&tree, "10.0.0.2", &[]), dropped);
    tree.write("proc/sys/net/ipv4/conf/veth1/accept_local", "1");
    let wire = "ok on the wire: rxe0 reaches 10.0.0.2 from veth0 to veth1";
    assert_eq!(to(&tree, "10.0.0.2", &[]), wire);
    tree.write("proc/sys/net/ipv4/conf/all/rp_filter", "1");
    assert_eq!(to(&tree, "10.0.0.2", &[]), dropped);
    tree.write("proc/sys/net/ipv4/conf/veth1/rp_filter", "2");
    assert_eq!(to(&tree, "10.0.0.2", &[]), wire);
    assert_eq!(
        to(&with_hardware(), "192.0.2.7", &[]),
        "warn 192.0.2.7 is mlx5_0's own address"
    );
}

#[test]
fn destinations_elsewhere() {
    let tree = with_rxe();
    let route = "ip -j route get 192.0.2.1";
    for (says, words) in [
        (
            r#"[{"dst":"192.0.2.1","gateway":"10.0.0.254","dev":"veth0","flags":[]}]"#,
            "ok on the wire: rxe0 reaches 192.0.2.1 from veth0 through 10.0.0.254",
        ),
        (
            r#"[{"dst":"192.0.2.1","dev":"veth0"}]"#,
            "ok on the wire: rxe0 reaches 192.0.2.1 from veth0",
        ),
        (
            r#"[{"dst":"192.0.2.1","dev":"eth0"}]"#,
            "warn the way to 192.0.2.1 leaves through eth0, not veth0 of rxe0",
        ),
    ] {
        assert_eq!(to(&tree, "192.0.2.1", &[(route, 0, says)]), words);
    }
    assert_eq!(
        to(
            &tree,
            "192.0.2.1",
            &[(route, 2, "RTNETLINK answers: Network is unreachable")]
        ),
        "fail there is no way to 192.0.2.1: RTNETLINK answers: Network is unreachable"
    );
    assert!(to(&tree, "192.0.2.1", &[]).starts_with("note 192.0.2.1 is not this machine's"));
}

#[test]
fn firewalls() {
    let tree = with_rxe();
    let chain = |policy: &str, rule: &str| {
        format!(
            "table ip filter {{\n\tchain INPUT {{\n\t\ttype filter hook input priority filter; \
             policy {policy};\n\t\t{rule}\n\t}}\n}}"
        )
    };
    let check = |rules: &str| found(&probe(&tree, &[("nft list ruleset", 0, rules)]), "firewall");
    let fine = "ok no rule set drops what arrives by default";
    assert_eq!(check(""), [fine]);
    assert_eq!(check(&chain("accept", "")), [fine]);
    assert_eq!(
        check(&chain("drop", "")),
        ["warn incoming packets are dropped unless a rule names them; none names 4791"]
    );
    assert_eq!(
        check(&chain("drop", "udp dport 4791 accept")),
        ["ok the rules name port 4791"]
    );
    let firewalld = probe(
        &tree,
        &[("nft list ruleset", 0, "table inet firewalld {\n}")],
    );
    assert_eq!(
        repair(&firewalld, "firewall"),
        "sudo firewall-cmd --add-port=4791/udp"
    );
    assert_eq!(found(&probe(&tree, &[]), "firewall"), Vec::<String>::new());
}

#[test]
fn congestion() {
    let check = |tree: &Tree, says: &[(&'static str, i32, &str)]| {
        found(&probe(tree, says), "congestion-control").remove(0)
    };
    assert_eq!(
        check(&with_rxe(), &[]),
        "note not readable on veth0: rxe0 is software"
    );
    let tree = with_hardware();
    assert_eq!(check(&tree, &[]), "note not readable on eth0");
    let pfc = |text| ("dcb pfc show dev eth0", 0, text);
    let pause = |text| ("ethtool -a eth0", 0, text);
    let off = pfc("pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:off 3:off");
    let none = pause("Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\toff\nTX:\t\toff");
    assert_eq!(
        check(&tree, &[off, none]),
        "warn eth0: PFC off, global pause off"
    );
    let on = pfc("pfc-cap 8\nprio-pfc 0:off 1:off 3:on");
    assert_eq!(
        check(&tree, &[on, none]),
        "ok eth0: PFC on priority 3, global pause off"
    );
    tree.write("sys/class/net/eth0/ecn/roce_np/enable/3", "1");
    tree.write("sys/class/net/eth0/ecn/roce_np/enable/4", "0");
    assert_eq!(check(&tree, &[off]), "ok eth0: PFC off, ECN on priority 3");
}

const SHOW: &str = "rdma -j resource show qp";

fn queue_pair(device: &str, number: u32, state: &str) -> String {
    format!(
        r#"{{"ifindex":0,"ifname":"{device}","port":1,"lqpn":{number},"rqpn":0,"type":"RC",
            "state":"{state}","sq-psn":0,"pdn":1,"pid":366,"comm":"rc_pingpong"}}"#
    )
}

const KERNEL: &str = r#"{"ifindex":0,"ifname":"rxe0","port":1,"lqpn":1,"type":"GSI","state":"RTS",
    "sq-psn":0,"comm":"ib_core"}"#;

#[test]
fn queue_pairs() {
    let tree = with_rxe();
    let check = |says: &[&str]| {
        let says: Vec<_> = says.iter().map(|text| (SHOW, 0, *text)).collect();
        found(&probe(&tree, &says), "queue-pairs")
    };
    let none = "ok no program has one open";
    assert_eq!(check(&[""]), [none]);
    assert_eq!(check(&[&format!("[{KERNEL}]")]), [none]);
    let elsewhere = format!("[{}]", queue_pair("rxe7", 17, "INIT"));
    assert_eq!(
        check(&[&elsewhere]),
        [none],
        "of a device that is not looked at"
    );
    let stuck = format!(
        "[{KERNEL},{},{}]",
        queue_pair("rxe0", 17, "INIT"),
        queue_pair("rxe0", 18, "RTS")
    );
    assert_eq!(
        check(&[&stuck]),
        [
            "warn RC 17 of rc_pingpong (pid 366) on rxe0 is in INIT",
            "ok 1 queue pair of programs get on"
        ]
    );
    // On its way when looked at first.
    let later = format!("[{}]", queue_pair("rxe0", 17, "RTS"));
    let init = format!("[{}]", queue_pair("rxe0", 17, "INIT"));
    assert_eq!(
        check(&[&init, &later]),
        ["ok 1 queue pair of programs get on"]
    );
    assert_eq!(
        check(&[&format!("[{}]", queue_pair("rxe0", 17, "RTR"))]),
        ["warn RC 17 of rc_pingpong (pid 366) on rxe0 is in RTR"]
    );
    assert_eq!(
        found(&probe(&tree, &[]), "queue-pairs"),
        ["note not readable: `rdma resource show qp` does not work here"]
    );
    assert_eq!(
        found(&probe(&without(), &[]), "queue-pairs"),
        Vec::<String>::new()
    );
}
