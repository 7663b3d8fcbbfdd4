//! Network devices of this machine: names, addresses, whether they are up.
//!
//! Asked of the system by `getifaddrs` rather than read from `/sys/class/net`,
//! which shows the devices of the network namespace it was mounted in.

use std::{collections::BTreeMap, io, net::IpAddr};

use nix::{
    ifaddrs::getifaddrs,
    net::if_::InterfaceFlags,
    sys::socket::{LinkAddr, SockaddrStorage},
};

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Netdev {
    /// Name, as `eth0`.
    pub name: String,
    /// Ethernet address; `None` where there is none, as on `lo`.
    pub mac: Option<[u8; 6]>,
    /// IPv4 and IPv6 addresses, in the order the system lists them.
    pub addresses: Vec<IpAddr>,
    /// Administratively up.
    pub up: bool,
    /// The loopback device.
    pub loopback: bool,
}

/// All network devices, by name.
///
/// # Errors
/// What `getifaddrs` returns.
pub fn netdevs() -> io::Result<Vec<Netdev>> {
    let mut devices: BTreeMap<String, Netdev> = BTreeMap::new();
    for entry in getifaddrs()? {
        let device = devices
            .entry(entry.interface_name)
            .or_insert_with_key(|name| Netdev {
                name: name.clone(),
                up: entry.flags.contains(InterfaceFlags::IFF_UP),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                ..Netdev::default()
            });
        let Some(address) = entry.address else {
            continue;
        };
        if let Some(address) = ip(&address) {
            device.addresses.push(address);
        } else if let Some(mac) = address.as_link_addr().and_then(LinkAddr::addr) {
            device.mac = Some(mac).filter(|mac| *mac != [0; 6]);
        }
    }
    Ok(devices.into_values().collect())
}

/// The network device of this name, if there is one.
///
/// # Errors
/// As [`netdevs`].
pub fn netdev(name: &str) -> io::Result<Option<Netdev>> {
    Ok(netdevs()?.into_iter().find(|device| device.name == name))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_loopback_device_without_an_ethernet_address() {
        let all = netdevs().unwrap();
        let lo = all.iter().find(|device| device.loopback).unwrap();
        assert_eq!(lo.mac, None);
        assert_eq!(netdev(&lo.name).unwrap().as_ref(), Some(lo));
        assert_eq!(netdev("no such device").unwrap(), None);
    }
}
