//! Addresses and routes of a machine.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize, de};

use super::Host;

/// An address with the length of its network's prefix: `10.99.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    /// The address.
    pub address: IpAddr,
    /// Leading bits that name the network.
    pub prefix: u8,
}

/// Why a text names no [`Network`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not ADDRESS/PREFIX, as 10.99.0.1/24")]
pub struct NotANetwork(String);

impl Network {
    const fn bits(address: IpAddr) -> (u128, u8) {
        match address {
            IpAddr::V4(v4) => (v4.to_bits() as u128, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        }
    }

    /// Bits of an address that a prefix leaves to hosts.
    const fn host_mask(width: u8, prefix: u8) -> u128 {
        match width.saturating_sub(prefix) {
            128 => u128::MAX,
            bits => (1 << bits) - 1,
        }
    }

    /// Whether two networks have an address in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let ((a, width), (b, other_width)) = (Self::bits(self.address), Self::bits(other.address));
        let mask = Self::host_mask(width, self.prefix.min(other.prefix));
        width == other_width && (a | mask) == (b | mask)
    }

    /// Whether an address is one of the network's.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (_, width) = Self::bits(address);
        self.overlaps(&Self {
            address,
            prefix: width,
        })
    }

    /// Whether a host can have the address: not the network itself, not its
    /// broadcast address, no multicast, not the loopback network.
    #[must_use]
    pub fn is_host(&self) -> bool {
        let (bits, width) = Self::bits(self.address);
        let mask = Self::host_mask(width, self.prefix);
        let host = bits & mask;
        let special = self.address.is_multicast()
            || self.address.is_loopback()
            || self.address.is_unspecified();
        let broadcast = self.address.is_ipv4() && host == mask;
        !special && (mask <= 1 || (host != 0 && !broadcast))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let parse = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let prefix: u8 = prefix.parse().ok()?;
            (prefix <= Self::bits(address).1).then_some(Self { address, prefix })
        };
        parse().ok_or_else(|| NotANetwork(text.to_owned()))
    }
}

impl Serialize for Network {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// An address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAddress {
    /// The address.
    pub address: IpAddr,
    /// Network device that has it, where that could be found out.
    pub netdev: Option<String>,
}

/// A route to a network; default routes are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Where it leads.
    pub network: Network,
    /// Network device it leaves through.
    pub netdev: String,
}

#[derive(Deserialize)]
struct IpLink {
    ifname: String,
    #[serde(default)]
    addr_info: Vec<IpAddress>,
}

#[derive(Deserialize)]
struct IpAddress {
    local: Option<IpAddr>,
}

impl Host {
    /// All addresses of the machine, from `ip` where there is one; else from
    /// `/proc/net`, which does not tell the network device of an IPv4 address.
    #[must_use]
    pub fn addresses(&self) -> Vec<HostAddress> {
        self.addresses_of_ip()
            .unwrap_or_else(|| self.addresses_of_proc())
    }

    fn addresses_of_ip(&self) -> Option<Vec<HostAddress>> {
        let ran = self.run("ip", &["-j", "address", "show"]).ok()?;
        if !ran.success() {
            return None;
        }
        let links: Vec<IpLink> = serde_json::from_str(&ran.stdout).ok()?;
        let mut addresses = Vec::new();
        for link in &links {
            for address in link.addr_info.iter().filter_map(|info| info.local) {
                addresses.push(HostAddress {
                    address,
                    netdev: Some(link.ifname.clone()),
                });
            }
        }
        Some(addresses)
    }

    fn addresses_of_proc(&self) -> Vec<HostAddress> {
        let mut addresses: Vec<HostAddress> = Vec::new();
        let trie = self.read("proc/net/fib_trie").unwrap_or_default();
        let mut last: Option<Ipv4Addr> = None;
        for line in trie.lines() {
            if let Some((_, address)) = line.split_once("|-- ") {
                last = address.trim().parse().ok();
            } else if line.trim() == "/32 host LOCAL"
                && let Some(address) = last.map(IpAddr::V4)
                // Every table of the trie shows it again.
                && addresses.iter().all(|known| known.address != address)
            {
                addresses.push(HostAddress {
                    address,
                    netdev: None,
                });
            }
        }
        let v6 = self.read("proc/net/if_inet6").unwrap_or_default();
        addresses.extend(v6.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let bits = u128::from_str_radix(fields.next()?, 16).ok()?;
            Some(HostAddress {
                address: Ipv6Addr::from_bits(bits).into(),
                netdev: fields.nth(4).map(str::to_owned),
            })
        }));
        addresses
    }

    /// Routes of the main tables, without default routes and without those
    /// that every IPv6 device has (`fe80::/64`, `ff00::/8`).
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let v4 = self.read("proc/net/route").unwrap_or_default();
        let v6 = self.read("proc/net/ipv6_route").unwrap_or_default();
        let mut routes: Vec<Route> = v4.lines().skip(1).filter_map(route_v4).collect();
        routes.extend(v6.lines().filter_map(route_v6));
        routes.retain(|route| {
            let link_local = matches!(route.network.address, IpAddr::V6(v6)
                if v6.is_unicast_link_local() || v6.is_multicast());
            route.network.prefix > 0 && !link_local && route.netdev != "lo"
        });
        routes
    }
}

/// "eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0": addresses are numbers
/// in this machine's byte order whose bytes are in the network's.
fn route_v4(line: &str) -> Option<Route> {
    let mut fields = line.split_whitespace();
    let netdev = fields.next()?.to_owned();
    let address = |field: &str| {
        let number = u32::from_str_radix(field, 16).ok()?;
        Some(Ipv4Addr::from(number.to_ne_bytes()))
    };
    let destination = address(fields.next()?)?;
    let mask = address(fields.nth(5)?)?;
    Some(Route {
        network: Network {
            address: destination.into(),
            prefix: mask.to_bits().count_ones() as u8,
        },
        netdev,
    })
}

/// Destination, length, source, length, next hop, metric, two counters, flags,
/// device; all hexadecimal.
fn route_v6(line: &str) -> Option<Route> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let [destination, prefix, .., netdev] = fields.as_slice() else {
        return None;
    };
    let bits = u128::from_str_radix(destination, 16).ok()?;
    Some(Route {
        network: Network {
            address: Ipv6Addr::from_bits(bits).into(),
            prefix: u8::from_str_radix(prefix, 16).ok()?,
        },
        netdev: (*netdev).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{
        super::{
            command::{Ran, Run, RunError},
            tests::{NoPrograms, Tree},
        },
        *,
    };

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn overlapping_networks() {
        for (a, b, overlap) in [
            ("10.99.0.1/24", "10.99.0.2/24", true),
            ("10.99.0.1/24", "10.0.0.0/8", true),
            ("10.0.0.0/8", "10.99.0.1/24", true),
            ("10.99.0.1/24", "10.99.1.1/24", false),
            ("10.99.0.1/24", "0.0.0.0/0", true),
            ("10.99.0.1/24", "::/0", false),
            ("fd00::1/64", "fd00::/8", true),
            ("::/0", "fd00::/8", true),
            ("10.99.0.1/32", "10.99.0.2/32", false),
        ] {
            assert_eq!(network(a).overlaps(&network(b)), overlap, "{a} {b}");
        }
        assert!(network("10.99.0.1/24").contains("10.99.0.7".parse().unwrap()));
        assert!(!network("10.99.0.1/24").contains("10.98.0.7".parse().unwrap()));
    }

    #[test]
    fn host_addresses() {
        for (text, host) in [
            ("10.99.0.1/24", true),
            ("10.99.0.0/24", false),
            ("10.99.0.255/24", false),
            ("10.99.0.0/31", true),
            ("127.0.0.1/8", false),
            ("224.0.0.1/24", false),
            ("fd00::/64", false),
            ("fd00::1/64", true),
            ("::1/128", false),
        ] {
            assert_eq!(network(text).is_host(), host, "{text}");
        }
        for text in ["10.0.0.1", "10.0.0.1/33", "x/24", "10.0.0.1/-1", "::1/129"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    const TRIE: &str = "Main:
  +-- 0.0.0.0/1 2 0 2
        +-- 10.0.0.0/30 2 0 1
           |-- 10.0.0.0
              /24 link UNICAST
           |-- 10.0.0.1
              /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
Local:
           |-- 10.0.0.1
              /32 host LOCAL";

    #[test]
    fn addresses_without_ip() {
        let tree = Tree::new(&[
            ("proc/net/fib_trie", TRIE),
            (
                "proc/net/if_inet6",
                "00000000000000000000000000000001 01 80 10 80       lo\n\
                 20010db8000000000000000000000001 03 40 00 80    veth0",
            ),
        ]);
        let found: Vec<_> = tree
            .host(NoPrograms)
            .addresses()
            .into_iter()
            .map(|a| (a.address.to_string(), a.netdev.unwrap_or_default()))
            .collect();
        let found: Vec<_> = found
            .iter()
            .map(|(a, n)| (a.as_str(), n.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("10.0.0.1", ""),
                ("127.0.0.1", ""),
                ("::1", "lo"),
                ("2001:db8::1", "veth0")
            ]
        );
    }

    #[test]
    fn addresses_with_ip() {
        struct Ip;
        impl Run for Ip {
            fn run(&self, program: &str, args: &[&str]) -> Result<Ran, RunError> {
                assert_eq!(
                    (program, args),
                    ("ip", ["-j", "address", "show"].as_slice())
                );
                Ok(Ran {
                    status: Some(0),
                    stdout:
                        r#"[{"ifname":"lo","addr_info":[{"family":"inet","local":"127.0.0.1"}]},
                        {"ifname":"tun0","addr_info":[{"family":"inet","label":"x"}]}]"#
                            .to_owned(),
                    stderr: String::new(),
                })
            }
            fn start(&self, _: &str, _: &[&str]) -> Result<(), RunError> {
                unreachable!()
            }
            fn find(&self, _: &str) -> Option<PathBuf> {
                None
            }
        }
        let tree = Tree::new(&[]);
        assert_eq!(
            tree.host(Ip).addresses(),
            [HostAddress {
                address: "127.0.0.1".parse().unwrap(),
                netdev: Some("lo".into())
            }]
        );
    }

    #[test]
    fn routes() {
        let tree = Tree::new(&[
            (
                "proc/net/route",
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                 eth0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                 veth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
            ),
            (
                "proc/net/ipv6_route",
                "fd000000000000000000000000000000 08 00000000000000000000000000000000 00 \
                 00000000000000000000000000000000 00000100 00000001 00000000 00000001     tun0\n\
                 fe800000000000000000000000000000 40 00000000000000000000000000000000 00 \
                 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0",
            ),
        ]);
        let routes: Vec<_> = tree
            .host(NoPrograms)
            .routes()
            .into_iter()
            .map(|route| format!("{} {}", route.network, route.netdev))
            .collect();
        if cfg!(target_endian = "little") {
            assert_eq!(routes, ["10.0.0.0/24 veth0", "fd00::/8 tun0"]);
        }
    }
}
