//! The layers below InfiniBand, with the table of fields of each.

use std::borrow::Cow;

use crate::layout::{Field, Show};

/// A layer of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The link layer as a whole, before any header was read.
    Link,
    /// Ethernet II.
    Ethernet,
    /// Linux cooked capture.
    LinuxSll,
    /// Linux cooked capture, version 2.
    LinuxSll2,
    /// BSD loopback.
    Loopback,
    /// 802.1Q or 802.1ad tag.
    Vlan,
    /// MPLS label.
    Mpls,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// IPv6 extension header.
    Ipv6Extension,
    /// UDP.
    Udp,
    /// VXLAN.
    Vxlan,
    /// GENEVE.
    Geneve,
    /// GRE.
    Gre,
    /// ERSPAN type II.
    Erspan2,
    /// ERSPAN type III.
    Erspan3,
    /// Platform-specific sub-header of ERSPAN type III.
    Erspan3Platform,
    /// Global route header.
    Grh,
    /// Base transport header: the first layer that is InfiniBand's.
    Bth,
}

impl Layer {
    /// Name of the layer.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Link => "link layer",
            Self::Ethernet => "Ethernet",
            Self::LinuxSll => "Linux cooked capture",
            Self::LinuxSll2 => "Linux cooked capture v2",
            Self::Loopback => "BSD loopback",
            Self::Vlan => "VLAN tag",
            Self::Mpls => "MPLS label",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv6Extension => "IPv6 extension header",
            Self::Udp => "UDP",
            Self::Vxlan => "VXLAN",
            Self::Geneve => "GENEVE",
            Self::Gre => "GRE",
            Self::Erspan2 => "ERSPAN II",
            Self::Erspan3 => "ERSPAN III",
            Self::Erspan3Platform => "ERSPAN III platform sub-header",
            Self::Grh => "Global route header",
            Self::Bth => "Base transport header",
        }
    }

    /// The fields of the layer's fixed part, from its start.
    #[must_use]
    pub const fn fields(self) -> &'static [Field] {
        match self {
            Self::Ethernet => ETHERNET,
            Self::LinuxSll => LINUX_SLL,
            Self::LinuxSll2 => LINUX_SLL2,
            Self::Loopback => LOOPBACK,
            Self::Vlan => VLAN,
            Self::Mpls => MPLS,
            Self::Ipv4 => IPV4,
            Self::Ipv6 | Self::Grh => IPV6,
            Self::Ipv6Extension => IPV6_EXTENSION,
            Self::Udp => UDP,
            Self::Vxlan => VXLAN,
            Self::Geneve => GENEVE,
            Self::Gre => GRE,
            Self::Erspan2 => ERSPAN2,
            Self::Erspan3 => ERSPAN3,
            Self::Bth => crate::wire::bth::Bth::FIELDS,
            Self::Link | Self::Erspan3Platform => &[],
        }
    }
}

const fn f(name: &'static str, bit: u16, width: u16, show: Show) -> Field {
    Field::new(name, bit, width, show)
}

const ETHERTYPE: Show = Show::Words(ethertype);

const ETHERNET: &[Field] = &[
    f("Destination", 0, 48, Show::Mac),
    f("Source", 48, 48, Show::Mac),
    f("Type", 96, 16, ETHERTYPE),
];
const LINUX_SLL: &[Field] = &[
    f("Packet type", 0, 16, Show::Dec),
    f("ARPHRD type", 16, 16, Show::Dec),
    f("Address length", 32, 16, Show::Dec),
    f("Address", 48, 64, Show::Bytes),
    f("Protocol", 112, 16, ETHERTYPE),
];
const LINUX_SLL2: &[Field] = &[
    f("Protocol", 0, 16, ETHERTYPE),
    f("Reserved", 16, 16, Show::Hex),
    f("Interface index", 32, 32, Show::Dec),
    f("ARPHRD type", 64, 16, Show::Dec),
    f("Packet type", 80, 8, Show::Dec),
    f("Address length", 88, 8, Show::Dec),
    f("Address", 96, 64, Show::Bytes),
];
const LOOPBACK: &[Field] = &[f("Address family", 0, 32, Show::Hex)];
const VLAN: &[Field] = &[
    f("Priority", 0, 3, Show::Dec),
    f("Drop eligible", 3, 1, Show::Flag),
    f("VLAN ID", 4, 12, Show::Dec),
    f("Type", 16, 16, ETHERTYPE),
];
const MPLS: &[Field] = &[
    f("Label", 0, 20, Show::Dec),
    f("Traffic class", 20, 3, Show::Dec),
    f("Bottom of stack", 23, 1, Show::Flag),
    f("TTL", 24, 8, Show::Dec),
];
const IPV4: &[Field] = &[
    f("Version", 0, 4, Show::Dec),
    f("Header length (words)", 4, 4, Show::Dec),
    f("DSCP", 8, 6, Show::Dec),
    f("ECN", 14, 2, Show::Words(ecn)),
    f("Total length", 16, 16, Show::Dec),
    f("Identification", 32, 16, Show::Hex),
    f("Reserved", 48, 1, Show::Flag),
    f("Don't fragment", 49, 1, Show::Flag),
    f("More fragments", 50, 1, Show::Flag),
    f("Fragment offset", 51, 13, Show::Dec),
    f("TTL", 64, 8, Show::Dec),
    f("Protocol", 72, 8, Show::Words(protocol)),
    f("Header checksum", 80, 16, Show::Hex),
    f("Source", 96, 32, Show::Ipv4),
    f("Destination", 128, 32, Show::Ipv4),
];
const IPV6: &[Field] = &[
    f("Version", 0, 4, Show::Dec),
    f("DSCP", 4, 6, Show::Dec),
    f("ECN", 10, 2, Show::Words(ecn)),
    f("Flow label", 12, 20, Show::Hex),
    f("Payload length", 32, 16, Show::Dec),
    f("Next header", 48, 8, Show::Words(protocol)),
    f("Hop limit", 56, 8, Show::Dec),
    f("Source", 64, 128, Show::Ipv6),
    f("Destination", 192, 128, Show::Ipv6),
];
const IPV6_EXTENSION: &[Field] = &[
    f("Next header", 0, 8, Show::Words(protocol)),
    f("Length code", 8, 8, Show::Dec),
];
const UDP: &[Field] = &[
    f("Source port", 0, 16, Show::Dec),
    f("Destination port", 16, 16, Show::Dec),
    f("Length", 32, 16, Show::Dec),
    f("Checksum", 48, 16, Show::Hex),
];
const VXLAN: &[Field] = &[
    f("Flags", 0, 8, Show::Hex),
    f("Reserved", 8, 24, Show::Hex),
    f("VNI", 32, 24, Show::Dec),
    f("Reserved", 56, 8, Show::Hex),
];
const GENEVE: &[Field] = &[
    f("Version", 0, 2, Show::Dec),
    f("Options length (words)", 2, 6, Show::Dec),
    f("Control packet", 8, 1, Show::Flag),
    f("Critical options", 9, 1, Show::Flag),
    f("Reserved", 10, 6, Show::Hex),
    f("Protocol type", 16, 16, ETHERTYPE),
    f("VNI", 32, 24, Show::Dec),
    f("Reserved", 56, 8, Show::Hex),
];
const GRE: &[Field] = &[
    f("Checksum present", 0, 1, Show::Flag),
    f("Key present", 2, 1, Show::Flag),
    f("Sequence present", 3, 1, Show::Flag),
    f("Version", 13, 3, Show::Dec),
    f("Protocol type", 16, 16, ETHERTYPE),
];
const ERSPAN2: &[Field] = &[
    f("Version", 0, 4, Show::Dec),
    f("VLAN", 4, 12, Show::Dec),
    f("Class of service", 16, 3, Show::Dec),
    f("Encapsulation type", 19, 2, Show::Dec),
    f("Truncated", 21, 1, Show::Flag),
    f("Session ID", 22, 10, Show::Dec),
    f("Reserved", 32, 12, Show::Hex),
    f("Index", 44, 20, Show::Hex),
];
const ERSPAN3: &[Field] = &[
    f("Version", 0, 4, Show::Dec),
    f("VLAN", 4, 12, Show::Dec),
    f("Class of service", 16, 3, Show::Dec),
    f("Bad/short/oversized", 19, 2, Show::Dec),
    f("Truncated", 21, 1, Show::Flag),
    f("Session ID", 22, 10, Show::Dec),
    f("Timestamp", 32, 32, Show::Hex),
    f("Security group tag", 64, 16, Show::Hex),
    f("PDU", 80, 1, Show::Flag),
    f("Frame type", 81, 5, Show::Dec),
    f("Hardware ID", 86, 6, Show::Dec),
    f("Egress", 92, 1, Show::Flag),
    f("Timestamp granularity", 93, 2, Show::Dec),
    f("Platform sub-header", 95, 1, Show::Flag),
];

fn ethertype(value: u64) -> Option<Cow<'static, str>> {
    let words = match value {
        0x0800 => "IPv4",
        0x86dd => "IPv6",
        0x8100 => "802.1Q VLAN",
        0x88a8 => "802.1ad VLAN",
        0x8847 | 0x8848 => "MPLS",
        0x8915 => "RoCE v1",
        0x6558 => "transparent Ethernet bridging",
        0x88be => "ERSPAN I or II",
        0x22eb => "ERSPAN III",
        _ => return None,
    };
    Some(words.into())
}

fn ecn(value: u64) -> Option<Cow<'static, str>> {
    ["not capable", "ECT(1)", "ECT(0)", "congestion experienced"]
        .get(value as usize)
        .map(|&words| words.into())
}

fn protocol(value: u64) -> Option<Cow<'static, str>> {
    let words = match value {
        0 => "hop-by-hop options",
        4 => "IPv4",
        17 => "UDP",
        0x1b => "InfiniBand transport",
        41 => "IPv6",
        43 => "routing header",
        44 => "fragment header",
        47 => "GRE",
        51 => "authentication header",
        60 => "destination options",
        137 => "MPLS",
        _ => return None,
    };
    Some(words.into())
}
