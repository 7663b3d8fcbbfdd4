//! What a lab consists of.

use serde::{Deserialize, Serialize};

use crate::{
    host::Network,
    rdma::sysfs::{Mac, Port},
};

/// One end of the virtual wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Network device.
    pub netdev: String,
    /// Soft-RoCE device on it.
    pub device: String,
    /// Address of the network device.
    pub address: Network,
    /// Hardware address of the network device, as `02:72:73:00:00:00`.
    pub mac: String,
}

impl End {
    /// The entry of a port's GID table that holds the end's address.
    #[must_use]
    pub fn gid_index(&self, port: &Port) -> Option<u8> {
        let gid = port.gids.iter().find(|g| g.ip() == self.address.address)?;
        Some(gid.index)
    }
}

/// Names, addresses and size of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Both ends.
    pub ends: [End; 2],
    /// MTU of both network devices in bytes.
    pub mtu: u32,
}

/// Why a plan is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The prefix does not fit into the name of a network device.
    #[error(
        "`{0}` is no prefix for names: 1 to {PREFIX_MAX} letters, digits or `-`, a letter first"
    )]
    Prefix(String),
    /// A host cannot have the address.
    #[error("{0} is not an address that a host can have")]
    Address(Network),
    /// Not IPv4.
    #[error(
        "{0} is not IPv4: between two ends on one machine the kernel loops other IPv6 addresses \
         than link-local ones, and those every end has anyway (GID index 0)"
    )]
    NotV4(Network),
    /// The addresses are not two of one network.
    #[error("{0} and {1} are not two addresses of one network: both need the same prefix")]
    TwoNetworks(Network, Network),
    /// Smaller than any path MTU, or larger than IP.
    #[error(
        "an MTU of {0} is of no use: {MTU_MIN} bytes carry the smallest RoCE packets, 4176 the \
         largest, {MTU_MAX} is the most"
    )]
    Mtu(u32),
}

/// Characters of a prefix: the kernel allows 15 in the name of a network
/// device (`IFNAMSIZ`), `-veth0` takes six.
const PREFIX_MAX: usize = 9;

/// Room for 256 bytes of payload and the 80 bytes of headers that `rdma_rxe`
/// reckons with (`RXE_MAX_HDR_LENGTH`).
const MTU_MIN: u32 = 336;

/// Most that a veth device takes (`ETH_MAX_MTU`).
const MTU_MAX: u32 = 65535;

/// Prefix of the names, unless another is asked for.
pub const PREFIX: &str = "rs";

/// Addresses, unless others are asked for; both of a network that few use.
pub const ADDRESSES: [&str; 2] = ["10.99.0.1/24", "10.99.0.2/24"];

/// MTU, unless another is asked for.
pub const MTU: u32 = 1500;

impl Plan {
    /// A plan: network devices `PREFIX-veth0` and `-veth1`, Soft-RoCE devices
    /// `PREFIX_rxe0` and `_rxe1`.
    ///
    /// # Errors
    /// [`PlanError`] where the kernel would refuse it, or nothing would reach
    /// the other end.
    pub fn new(prefix: &str, addresses: [Network; 2], mtu: u32) -> Result<Self, PlanError> {
        let fits = prefix.len() <= PREFIX_MAX
            && prefix.starts_with(|c: char| c.is_ascii_alphabetic())
            && prefix
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !fits {
            return Err(PlanError::Prefix(prefix.to_owned()));
        }
        for address in &addresses {
            if address.address.is_ipv6() {
                return Err(PlanError::NotV4(*address));
            }
            if !address.is_host() {
                return Err(PlanError::Address(*address));
            }
        }
        let [a, b] = addresses;
        if a.address == b.address || a.prefix != b.prefix || !a.contains(b.address) {
            return Err(PlanError::TwoNetworks(a, b));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&mtu) {
            return Err(PlanError::Mtu(mtu));
        }
        let end = |number: u8, address| End {
            netdev: format!("{prefix}-veth{number}"),
            device: format!("{prefix}_rxe{number}"),
            address,
            mac: mac(number).to_string(),
        };
        Ok(Self {
            ends: [end(0, a), end(1, b)],
            mtu,
        })
    }

    /// The command that shows the lab at work.
    #[must_use]
    pub fn try_next(&self) -> String {
        let [a, b] = &self.ends;
        format!(
            "sudo roce-sniff --iface {} --write --peer-dev {}",
            a.netdev, b.device
        )
    }
}

/// Hardware address of an end: locally administered, "rs", the end's number.
/// Fixed, so that captures of two runs compare, and told from anybody else's.
const fn mac(number: u8) -> Mac {
    Mac([0x02, b'r', b's', 0, 0, number])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(prefix: &str, a: &str, b: &str, mtu: u32) -> Result<Plan, String> {
        let addresses = [a.parse().unwrap(), b.parse().unwrap()];
        Plan::new(prefix, addresses, mtu).map_err(|error| error.to_string())
    }

    #[test]
    fn names_and_addresses() {
        let plan = plan(PREFIX, ADDRESSES[0], ADDRESSES[1], MTU).unwrap();
        assert_eq!(
            plan.ends[1],
            End {
                netdev: "rs-veth1".into(),
                device: "rs_rxe1".into(),
                address: "10.99.0.2/24".parse().unwrap(),
                mac: "02:72:73:00:00:01".into(),
            }
        );
        assert_eq!(
            plan.try_next(),
            "sudo roce-sniff --iface rs-veth0 --write --peer-dev rs_rxe1"
        );
    }

    #[test]
    fn what_cannot_work() {
        for (prefix, a, b, mtu, why) in [
            ("", "10.0.0.1/24", "10.0.0.2/24", 1500, "no prefix"),
            ("0x", "10.0.0.1/24", "10.0.0.2/24", 1500, "no prefix"),
            ("a/b", "10.0.0.1/24", "10.0.0.2/24", 1500, "no prefix"),
            (
                "ten-chars-",
                "10.0.0.1/24",
                "10.0.0.2/24",
                1500,
                "no prefix",
            ),
            (
                "x",
                "10.0.0.0/24",
                "10.0.0.2/24",
                1500,
                "10.0.0.0/24 is not",
            ),
            (
                "x",
                "fd00::1/64",
                "fd00::2/64",
                1500,
                "fd00::1/64 is not IPv4",
            ),
            ("x", "10.0.0.1/24", "10.0.1.2/24", 1500, "one network"),
            ("x", "10.0.0.1/24", "10.0.0.2/25", 1500, "one network"),
            ("x", "10.0.0.1/24", "10.0.0.1/24", 1500, "one network"),
            (
                "x",
                "10.0.0.1/24",
                "fd00::2/24",
                1500,
                "fd00::2/24 is not IPv4",
            ),
            ("x", "10.0.0.1/24", "10.0.0.2/24", 100, "an MTU of 100"),
            ("x", "10.0.0.1/24", "10.0.0.2/24", 70000, "an MTU of 70000"),
        ] {
            let error = plan(prefix, a, b, mtu).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(plan("nine-char", "10.0.0.0/31", "10.0.0.1/31", 9000).is_ok());
    }
}
