//! The same packets inside tunnels, mirror headers and tags, over other link
//! types and with other IP headers: all must read like the plain ones.

mod common;

use common::capfile::{Capture, ETHERNET};
use common::{
    VARIED, assert_icrc_valid, assert_same, assert_same_wire, capture, craft, encap, number,
    numbers, plain, rows_of, summary_of, text, truncated, tunnel,
};
use serde_json::Value;

/// Rewrites every frame of every varied fixture and compares with the plain
/// rows; the rows come back for further questions.
fn variants(
    what: &str,
    link: u16,
    only: fn(&str) -> bool,
    rewrite: impl Fn(&[u8]) -> Vec<u8>,
) -> Vec<Value> {
    let mut all = Vec::new();
    for name in VARIED.into_iter().filter(|name| only(name)) {
        let what = format!("{what}: {name}");
        let rows = rows_of("a.pcap", &capture(name).map(link, &rewrite).pcap());
        assert_same_wire(&what, &plain(name), &rows);
        assert_icrc_valid(&what, &rows);
        all.extend(rows);
    }
    assert!(!all.is_empty());
    all
}

fn any(_: &str) -> bool {
    true
}

fn v4(name: &str) -> bool {
    !v6(name)
}

fn v6(name: &str) -> bool {
    name.starts_with("v6")
}

/// Wraps frames and expects these names in `encap`, outermost first.
fn wrapped(names: &[&str], only: fn(&str) -> bool, wrap: impl Fn(&[u8]) -> Vec<u8>) {
    let what = names.join(" in ");
    for row in variants(&what, ETHERNET, only, wrap) {
        assert_eq!(encap(&row), names, "{what}: encap of {row}");
    }
}

/// VXLAN over IPv4 and over IPv6.
#[test]
fn vxlan() {
    wrapped(&["vxlan"], any, tunnel::vxlan);
    wrapped(&["vxlan"], any, tunnel::vxlan_v6);
}

/// GENEVE with an option in front of the inner frame.
#[test]
fn geneve() {
    wrapped(&["geneve"], any, tunnel::geneve);
}

/// GRE with and without its optional fields, around Ethernet and around IP.
#[test]
fn gre() {
    for flags in [0, 0x2000, 0x8000, 0x1000, 0xb000] {
        wrapped(&["gre"], any, |f| tunnel::gre_bridged(flags, f));
        wrapped(&["gre"], any, |f| tunnel::gre_ip(flags, craft::ip_part(f)));
    }
}

/// ERSPAN II, and I, which has no header at all; the GRE under them has no
/// name of its own.
#[test]
fn erspan() {
    wrapped(&["erspan1"], any, |f| tunnel::gre(0, 0x88be, f));
    wrapped(&["erspan2"], any, tunnel::erspan2);
}

/// ERSPAN III, without and with the platform-specific sub-header.
#[test]
fn erspan3() {
    for platform in [false, true] {
        wrapped(&["erspan3"], any, |f| tunnel::erspan3(platform, f));
    }
}

/// IPv4 in IPv4 and IPv4 in IPv6.
#[test]
fn ip_in_ip() {
    wrapped(&["ipip"], v4, |f| tunnel::ip_in_ipv4(craft::ip_part(f)));
    wrapped(&["ipip"], v4, |f| tunnel::ip_in_ipv6(craft::ip_part(f)));
}

/// IPv6 in IPv4 and IPv6 in IPv6.
#[test]
fn ipv6_in_ip() {
    wrapped(&["ipip"], v6, |f| tunnel::ip_in_ipv4(craft::ip_part(f)));
    wrapped(&["ipip"], v6, |f| tunnel::ip_in_ipv6(craft::ip_part(f)));
}

/// Two MPLS labels over Ethernet.
#[test]
fn mpls() {
    wrapped(&["mpls"], any, |f| tunnel::mpls(craft::ip_part(f)));
}

/// Tunnels in tunnels are named outermost first.
#[test]
fn nested_tunnels() {
    wrapped(&["erspan2", "vxlan"], any, |f| {
        tunnel::erspan2(&tunnel::vxlan(f))
    });
    wrapped(&["vxlan", "vxlan"], any, |f| {
        tunnel::vxlan(&tunnel::vxlan(f))
    });
    wrapped(&["mpls", "gre"], any, |f| {
        let gre = tunnel::gre_bridged(0, f);
        tunnel::mpls(craft::ip_part(&gre))
    });
}

/// VLAN tags are listed outermost first: 802.1Q, `QinQ`, and a tag on the
/// outside of a VXLAN tunnel.
#[test]
fn vlan_tags() {
    for row in variants("802.1Q", ETHERNET, any, |f| craft::tag(0x8100, 300, f)) {
        assert_eq!(numbers(&row, "vlan"), [300]);
        assert!(encap(&row).is_empty(), "a tag is no tunnel: {row}");
    }
    let qinq = |f: &[u8]| craft::tag(0x88a8, 200, &craft::tag(0x8100, 100, f));
    for row in variants("QinQ", ETHERNET, any, qinq) {
        assert_eq!(numbers(&row, "vlan"), [200, 100]);
    }
    let tagged_vxlan = |f: &[u8]| craft::tag(0x8100, 300, &tunnel::vxlan(f));
    for row in variants("VXLAN in a VLAN", ETHERNET, any, tagged_vxlan) {
        assert_eq!(numbers(&row, "vlan"), [300]);
        assert_eq!(encap(&row), ["vxlan"]);
    }
    let inner_tag = |f: &[u8]| tunnel::vxlan(&craft::tag(0x8100, 77, f));
    for row in variants("VLAN in VXLAN", ETHERNET, any, inner_tag) {
        assert!(numbers(&row, "vlan").contains(&77), "{row}");
    }
}

/// A mirror port that wraps and also cuts: what was cut is said, and the
/// tunnel does not hide it.
#[test]
fn tunnel_and_snapshot_length() {
    let whole = plain("write_1k");
    let capture = capture("write_1k").map(ETHERNET, tunnel::vxlan);
    let rows = rows_of("a.pcap", &capture.cut(128).pcap());
    let fields = ["op", "dest_qp", "psn", "reth", "aeth", "payload_len"];
    assert_same("VXLAN cut at 128", &fields, &whole, &rows);
    for row in &rows {
        let cut = number(row, "len").unwrap() > 128;
        assert_eq!(truncated(row), cut, "{row}");
        let icrc = if cut { "unverifiable" } else { "valid" };
        assert_eq!(text(row, "icrc"), icrc, "{row}");
    }
}

/// IPv4 options move the UDP header; the ICRC covers them.
#[test]
fn ipv4_options() {
    // A router alert, and a timestamp option with its end-of-list padding.
    let long = [0x44, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let options: [&[u8]; 2] = [&[0x94, 4, 0, 0], &long];
    for options in options {
        variants("IPv4 options", ETHERNET, v4, |f| {
            let ip = craft::with_ipv4_options(craft::ip_part(f), options);
            craft::ethernet(0x0800, &ip)
        });
    }
}

/// IPv6 hop-by-hop and destination options stand between IP and UDP.
#[test]
fn ipv6_extension_headers() {
    variants("IPv6 options", ETHERNET, v6, |f| {
        let ip = craft::with_ipv6_options(craft::ip_part(f));
        craft::ethernet(0x86dd, &ip)
    });
}

/// Link types without Ethernet.
#[test]
fn link_types() {
    let sll = |f: &[u8]| tunnel::sll(craft::ip_part(f));
    variants("LINUX_SLL", 113, any, sll);
    let sll2 = |f: &[u8]| tunnel::sll2(craft::ip_part(f));
    variants("LINUX_SLL2", 276, any, sll2);
    let raw = |f: &[u8]| craft::ip_part(f).to_vec();
    variants("RAW", 101, any, raw);
    variants("IPV4", 228, v4, raw);
    variants("IPV6", 229, v6, raw);
    // BSD systems have three numbers for IPv6, Linux has a fourth.
    for family in [24, 28, 30, 10] {
        variants("LOOP", 108, any, |f| {
            tunnel::null(true, family, craft::ip_part(f))
        });
        variants("NULL", 0, any, |f| {
            tunnel::null(false, family, craft::ip_part(f))
        });
    }
}

/// The address family of link type NULL has the byte order of the machine
/// that captured, so a big-endian file holds it big-endian.
#[test]
fn null_of_a_big_endian_machine() {
    let capture = capture("v6_write").map(0, |f| tunnel::null(true, 30, craft::ip_part(f)));
    let rows = rows_of("a.pcap", &capture.pcap_as(true, false));
    assert_same_wire("NULL", &plain("v6_write"), &rows);
    assert_icrc_valid("NULL", &rows);
}

/// `RoCEv1`: the GRH in place of IP and UDP, the same transport after it.
#[test]
fn roce_v1() {
    let plain = plain("v6_write");
    for row in &plain {
        assert_eq!(number(row, "roce"), Some(2), "{row}");
    }
    let v1 = |f: &[u8]| craft::roce_v1(craft::ip_part(f));
    let tagged = |f: &[u8]| craft::tag(0x8100, 300, &v1(f));
    for vlan in [vec![], vec![300]] {
        let rewrite = |f: &[u8]| if vlan.is_empty() { v1(f) } else { tagged(f) };
        let capture = capture("v6_write").map(ETHERNET, rewrite);
        let rows = rows_of("a.pcap", &capture.pcap());
        let fields: Vec<&str> = common::WIRE_FIELDS
            .into_iter()
            .filter(|field| !matches!(*field, "roce" | "sport"))
            .collect();
        assert_same("RoCEv1", &fields, &plain, &rows);
        assert_icrc_valid("RoCEv1", &rows);
        for row in &rows {
            assert_eq!(number(row, "roce"), Some(1), "{row}");
            assert_eq!(numbers(row, "vlan"), vlan, "{row}");
            // There is no UDP, hence no source port to show.
            assert_eq!(number(row, "sport").unwrap_or(0), 0, "{row}");
        }
    }
}

/// A damaged byte under the ICRC is found in every wrapping.
#[test]
fn damage_is_found_in_tunnels() {
    type Wrap = fn(&[u8]) -> Vec<u8>;
    let damaged = |f: &[u8]| {
        let mut frame = f.to_vec();
        let last = frame.len() - 5;
        frame[last] ^= 1;
        frame
    };
    let wraps: [Wrap; 3] = [|f| f.to_vec(), tunnel::vxlan, tunnel::erspan2];
    for wrap in wraps {
        let capture = capture("v6_write").map(ETHERNET, |f| wrap(&damaged(f)));
        for row in rows_of("a.pcap", &capture.pcap()) {
            assert_eq!(text(&row, "icrc"), "invalid", "{row}");
        }
    }
}

/// UDP port 4791 only as the source is somebody else's traffic.
#[test]
fn source_port_alone_is_not_roce() {
    let swapped = capture("write_1k").map(ETHERNET, |f| {
        let mut frame = f.to_vec();
        frame[34..36].copy_from_slice(&craft::ROCE.to_be_bytes());
        frame[36..38].copy_from_slice(&50_000u16.to_be_bytes());
        frame
    });
    assert_eq!(rows_of("a.pcap", &swapped.pcap()).len(), 0);
}

/// Link types without Ethernet or IP are no error: nothing is listed, and the
/// summary says why.
#[test]
fn unsupported_link_types() {
    for link in [197, 247] {
        let mut capture = capture("write_1k");
        capture.link = link;
        assert_eq!(rows_of("a.pcap", &capture.pcap()).len(), 0);
        let summary = summary_of(&capture.pcap());
        assert!(summary.contains("unsupported link type"), "{summary}");
    }
}

/// The first fragment of an IP packet has the headers but not the ICRC; later
/// ones have neither and are counted.
#[test]
fn ip_fragments() {
    let fields = [
        "src",
        "dst",
        "op",
        "dest_qp",
        "psn",
        "pkey",
        "reth",
        "aeth",
        "payload_len",
    ];
    for name in ["write_1k", "v6_write"] {
        // Long packets only: routers would not split the short ones.
        let long = |len: usize| len > 600;
        let packets = capture(name).packets.into_iter();
        let [first, later]: [Vec<Vec<u8>>; 2] = {
            let halves = packets
                .filter(|p| long(p.data.len()))
                .map(|p| craft::fragments(craft::ip_part(&p.data), 512))
                .map(|halves| halves.map(|ip| craft::ethernet(craft::ethertype(&ip), &ip)));
            let (first, later) = halves.map(|[a, b]| (a, b)).unzip();
            [first, later]
        };
        let later_count = later.len();
        let rows = rows_of("a.pcap", &Capture::of(ETHERNET, first).pcap());
        let mut expected = plain(name);
        expected.retain(|row| long(number(row, "len").unwrap() as usize));
        assert_same(name, &fields, &expected, &rows);
        for row in &rows {
            assert_eq!(text(row, "icrc"), "unverifiable", "{row}");
        }
        let later = Capture::of(ETHERNET, later).pcap();
        assert_eq!(rows_of("a.pcap", &later).len(), 0, "{name}");
        let summary = summary_of(&later);
        let counted = summary
            .lines()
            .any(|line| line.contains("IP fragment") && line.contains(&later_count.to_string()));
        assert!(counted, "{later_count} of them in: {summary}");
    }
}

/// Frames that claim to be whole while the lengths in their headers say more:
/// tools that cut packets and rewrite the record, or leave out the ICRC. What
/// is missing is missing, and the payload has the length it had on the wire.
#[test]
fn cut_by_a_tool_that_hides_it() {
    type Wrap = fn(&[u8]) -> Vec<u8>;
    const WRAPS: [Wrap; 4] = [<[u8]>::to_vec, tunnel::vxlan, tunnel::erspan2, |f| {
        tunnel::gre_ip(0, craft::ip_part(f))
    }];
    let headers = ["op", "dest_qp", "psn", "payload_len", "reth", "aeth"];
    for name in ["write_1k", "send_3k", "v6_write", "badrkey"] {
        for (wrap, missing) in WRAPS.into_iter().flat_map(|w| [(w, 1), (w, 4), (w, 8)]) {
            let cut = capture(name).map(ETHERNET, |f| {
                let mut frame = wrap(f);
                frame.truncate(frame.len() - missing);
                frame
            });
            let rows = rows_of("a.pcap", &cut.pcap());
            let whole = plain(name);
            let fields = if missing <= 4 {
                &headers[..]
            } else {
                &headers[..4]
            };
            assert_same(&format!("{name} less {missing}"), fields, &whole, &rows);
            for row in &rows {
                assert_eq!(text(row, "icrc"), "unverifiable", "{row}");
                assert!(truncated(row), "{row}");
            }
        }
    }
}

/// The same for `RoCEv1`, whose GRH has the length.
#[test]
fn roce_v1_cut_by_a_tool_that_hides_it() {
    let cut = capture("v6_write").map(ETHERNET, |f| {
        let mut frame = craft::roce_v1(craft::ip_part(f));
        frame.truncate(frame.len() - 4);
        frame
    });
    let rows = rows_of("a.pcap", &cut.pcap());
    let fields = ["op", "dest_qp", "psn", "payload_len", "reth", "aeth"];
    assert_same("RoCEv1", &fields, &plain("v6_write"), &rows);
    for row in &rows {
        assert_eq!(text(row, "icrc"), "unverifiable", "{row}");
        assert!(truncated(row), "{row}");
    }
}

/// A UDP length beyond the end of its IP packet is a contradiction: whatever
/// stands there, it is no ICRC to judge by.
#[test]
fn udp_length_beyond_the_ip_packet() {
    for more in [1u16, 4, 200] {
        let capture = capture("write_1k").map(ETHERNET, |f| {
            let mut frame = f.to_vec();
            let udp_len = u16::from_be_bytes([frame[38], frame[39]]) + more;
            frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
            // Enough behind the IP packet to be taken for its rest.
            frame.resize(frame.len() + 300, 0x5a);
            frame
        });
        let rows = rows_of("a.pcap", &capture.pcap());
        assert_same(
            "headers",
            &["op", "dest_qp", "psn"],
            &plain("write_1k"),
            &rows,
        );
        for row in &rows {
            assert_eq!(text(row, "icrc"), "unverifiable", "{row}");
        }
    }
}
