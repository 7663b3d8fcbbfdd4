//! The GID table of a port, and which entry to send from.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use super::Port;

/// An entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Place in the table; what verbs call `sgid_index`.
    pub index: u8,
    /// The GID; an IPv4 address shows as `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
    /// What packets sent from it look like.
    pub kind: GidKind,
    /// Network device that holds the address.
    pub netdev: Option<String>,
}

impl Gid {
    /// The address packets from this GID carry.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        self.gid.to_canonical()
    }

    /// How good a source it is; lower is better.
    fn rank(&self) -> u8 {
        match self.ip() {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
            IpAddr::V6(_) => 2,
        }
    }
}

/// What packets sent from a GID look like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// Ethernet with a GRH: no IP, no UDP.
    RoceV1,
    /// IP and UDP port 4791.
    RoceV2,
    /// InfiniBand.
    Ib,
    /// Something newer, in the kernel's words.
    Other(String),
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Ib => "IB",
            Self::Other(words) => words,
        })
    }
}

/// Family of the IP packets that carry RoCE v2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Which source GID is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GidWish {
    /// This entry and no other.
    pub index: Option<u8>,
    /// An address of this family.
    pub family: Option<Family>,
}

/// Why no GID fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    /// The port's table is empty.
    #[error(
        "port {port} has no GID: {netdev} is down or has no address; \
         try `ip link set {netdev} up` and `ip addr add ADDRESS/24 dev {netdev}`"
    )]
    Empty {
        /// Number of the port.
        port: u8,
        /// Network device under the port; `NETDEV` where it is not known.
        netdev: String,
    },
    /// The entry asked for is empty.
    #[error("GID index {index} is empty; filled: {filled}")]
    NoSuchIndex {
        /// Index asked for.
        index: u8,
        /// Entries there are, in words.
        filled: String,
    },
    /// No RoCE v2 entry has what was asked for.
    #[error("no RoCE v2 GID{wish}; filled: {filled}")]
    NoneFits {
        /// What was asked for, in words.
        wish: String,
        /// Entries there are, in words.
        filled: String,
    },
}

fn filled(port: &Port) -> String {
    let entries: Vec<_> = port
        .gids
        .iter()
        .map(|gid| format!("{} {} ({})", gid.index, gid.ip(), gid.kind))
        .collect();
    entries.join(", ")
}

/// The source GID to use: RoCE v2, an IPv4 address before a global IPv6 one
/// before a link-local one; of equals the first. An index that is asked for is
/// taken whatever its kind, as long as its entry is filled.
///
/// With `netdev`, entries of other network devices (a VLAN on the port) do not
/// fit.
///
/// # Errors
/// [`GidError`] says what the table holds instead.
pub fn choose_gid(port: &Port, netdev: Option<&str>, wanted: GidWish) -> Result<Gid, GidError> {
    if port.gids.is_empty() {
        return Err(GidError::Empty {
            port: port.number,
            netdev: port.netdev.as_deref().unwrap_or("NETDEV").to_owned(),
        });
    }
    let of_family = |gid: &Gid| {
        wanted
            .family
            .is_none_or(|family| (family == Family::V4) == gid.ip().is_ipv4())
    };
    let none_fits = || {
        let parts = [
            wanted.index.map(|index| format!(" at index {index}")),
            wanted
                .family
                .map(|family| format!(" with an {family} address")),
            netdev.map(|netdev| format!(" on {netdev}")),
        ];
        GidError::NoneFits {
            wish: parts.into_iter().flatten().collect(),
            filled: filled(port),
        }
    };
    if let Some(index) = wanted.index {
        let gid = port.gid(index).ok_or_else(|| GidError::NoSuchIndex {
            index,
            filled: filled(port),
        })?;
        return if of_family(gid) {
            Ok(gid.clone())
        } else {
            Err(none_fits())
        };
    }
    port.gids
        .iter()
        .filter(|gid| gid.kind == GidKind::RoceV2 && of_family(gid))
        .filter(|gid| match (netdev, gid.netdev.as_deref()) {
            (Some(wanted), Some(has)) => wanted == has,
            _ => true,
        })
        .min_by_key(|gid| (gid.rank(), gid.index))
        .cloned()
        .ok_or_else(none_fits)
}
