//! The capture filter: what the kernel passes on.

use pcap::{Active, Capture};

use super::{
    super::{LinkType, SourceError},
    LiveOptions,
    trouble::words,
};

/// Compiles and installs the filter; returns it.
pub(super) fn set_filter(
    capture: &mut Capture<Active>,
    name: &str,
    link: LinkType,
    options: &LiveOptions,
) -> Result<String, SourceError> {
    let bad = |expression: &str, error: &pcap::Error| SourceError::CaptureFilter {
        name: name.to_owned(),
        expression: expression.to_owned(),
        reason: words(error),
    };
    if let Some(bpf) = &options.bpf {
        // Alone first, so that a complaint is about what the user wrote.
        capture
            .compile(bpf, true)
            .map_err(|error| bad(bpf, &error))?;
    }
    let filter = kernel_filter(link, options);
    capture
        .filter(&filter, true)
        .map_err(|error| bad(options.bpf.as_deref().unwrap_or(&filter), &error))?;
    Ok(filter)
}

/// What may have a RoCE packet inside, by UDP port (VXLAN, its older port,
/// GENEVE) and IP protocol (GRE with ERSPAN, IPv4 and IPv6 in IP).
const TUNNELS: &str = " or udp dst port 4789 or udp dst port 8472 or udp dst port 6081 or proto 47 \
                       or proto 4 or proto 41";
/// The same by Ethernet type: MPLS.
const MPLS: &str = " or ether proto 0x8847";

/// What the kernel passes on: UDP to the port, RoCEv1, tunnels if asked for,
/// all behind up to two VLAN tags; and the user's condition.
fn kernel_filter(link: LinkType, options: &LiveOptions) -> String {
    let mut level = format!("udp dst port {}", options.port);
    let has_types = matches!(link, LinkType::ETHERNET | LinkType::LINUX_SLL);
    for (part, wanted) in [
        (" or ether proto 0x8915", has_types),
        (TUNNELS, options.tunnels),
        (MPLS, options.tunnels && has_types),
    ] {
        level.push_str(if wanted { part } else { "" });
    }
    if level.contains(" or ") {
        level = format!("({level})");
    }
    let bpf = options.bpf.as_deref();
    if let Some(bpf) = bpf {
        level = format!("({bpf}) and {level}");
    }
    // The word `vlan` moves everything behind it by one tag, so the condition
    // is repeated for each depth. One that says `vlan` itself has chosen its
    // depth.
    let own_depth = bpf.is_some_and(|bpf| bpf.contains("vlan"));
    if link != LinkType::ETHERNET || own_depth {
        return level;
    }
    format!("{level} or (vlan and ({level} or (vlan and {level})))")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(bpf: Option<&str>, tunnels: bool) -> LiveOptions {
        LiveOptions {
            bpf: bpf.map(str::to_owned),
            tunnels,
            ..LiveOptions::new("eth0", 4791)
        }
    }

    #[test]
    fn filters_by_link_type() {
        let filter = |link, bpf| kernel_filter(link, &options(bpf, false));
        assert_eq!(filter(LinkType::RAW, None), "udp dst port 4791");
        assert_eq!(
            filter(LinkType::LINUX_SLL, None),
            "(udp dst port 4791 or ether proto 0x8915)"
        );
        assert_eq!(
            filter(LinkType::RAW, Some("host 10.0.0.1 or arp")),
            "(host 10.0.0.1 or arp) and udp dst port 4791"
        );
        let level = "(host 10.0.0.1) and (udp dst port 4791 or ether proto 0x8915)";
        assert_eq!(
            filter(LinkType::ETHERNET, Some("host 10.0.0.1")),
            format!("{level} or (vlan and ({level} or (vlan and {level})))")
        );
        assert_eq!(
            filter(LinkType::ETHERNET, Some("vlan 5")),
            "(vlan 5) and (udp dst port 4791 or ether proto 0x8915)"
        );
    }

    /// libpcap compiles every filter, wherever it runs.
    #[test]
    fn filters_compile() {
        for (dlt, link) in [
            (1, LinkType::ETHERNET),
            (113, LinkType::LINUX_SLL),
            (12, LinkType::RAW),
        ] {
            let dead = Capture::dead(pcap::Linktype(dlt)).unwrap();
            for bpf in [None, Some("host 10.0.0.1 and greater 100")] {
                for tunnels in [false, true] {
                    let filter = kernel_filter(link, &options(bpf, tunnels));
                    assert!(dead.compile(&filter, true).is_ok(), "{filter}");
                }
            }
        }
    }
}
