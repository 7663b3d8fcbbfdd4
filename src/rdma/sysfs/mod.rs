//! What `/sys/class/infiniband` and `/sys/class/net` say about devices,
//! without any library.
//!
//! The layout is Linux's (`Documentation/ABI/stable/sysfs-class-infiniband`
//! and `testing/sysfs-class-net`). Everything is read below a root that tests
//! replace; whatever is missing or unreadable is left out, never a failure,
//! because drivers differ and devices come and go while one reads.

mod counters;
mod gid;
#[cfg(test)]
mod tests;

pub use counters::Counters;
pub use gid::{Family, Gid, GidError, GidKind, GidWish, choose_gid};

use std::{
    fmt, fs, io,
    net::Ipv6Addr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// How long to wait before reading counters, so that none is older than what
/// it is to count: `rdma_rxe` (and the RDMA core for every driver with a
/// `lifespan`) answers from a copy for 10 ms, on a ticking clock for up to 12.
pub const COUNTERS_SETTLE: Duration = Duration::from_millis(30);

/// A sysfs, by default the one of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys")
    }
}

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Name, as `rxe0`.
    pub name: String,
    /// Ports in the order of their numbers.
    pub ports: Vec<Port>,
    /// Kernel module behind it as far as sysfs tells: `rdma_rxe`, `mlx5_core`.
    pub driver: Option<String>,
    /// GUID of the node, four groups of hexadecimal digits; empty when
    /// unreadable.
    pub node_guid: String,
}

impl Device {
    /// Whether this is Soft-RoCE.
    #[must_use]
    pub fn is_rxe(&self) -> bool {
        self.driver.as_deref() == Some(RXE)
    }

    /// A port by number.
    #[must_use]
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.iter().find(|port| port.number == number)
    }
}

/// Name of the Soft-RoCE module.
const RXE: &str = "rdma_rxe";

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// State of the link as the device sees it.
    pub state: PortState,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// Network device under the port, where there is one.
    pub netdev: Option<String>,
    /// GID table without its empty entries.
    pub gids: Vec<Gid>,
}

impl Port {
    /// A GID by its index.
    #[must_use]
    pub fn gid(&self, index: u8) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.index == index)
    }

    /// Whether the port speaks RoCE rather than InfiniBand.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }
}

/// State of a port (`enum ib_port_state`): 4 is ACTIVE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortState {
    /// The kernel's number; 0 when unreadable.
    pub code: u8,
    /// The kernel's word, as `ACTIVE`.
    pub name: String,
}

impl PortState {
    /// Whether packets can go out.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.code == 4
    }
}

/// A MAC address; prints as `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetDev {
    /// Name, as `eth0`.
    pub name: String,
    /// Number the kernel knows it by.
    pub ifindex: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Hardware address, where it is 6 bytes.
    pub mac: Option<Mac>,
    /// State of the link in the kernel's word (RFC 2863): `up`, `down`,
    /// `lowerlayerdown`; drivers that do not tell say `unknown`.
    pub operstate: String,
    /// Whether it was set up (`IFF_UP`), whatever the link does.
    pub up: bool,
    /// Whether the link carries; `None` while the device is down.
    pub carrier: Option<bool>,
    /// `loopback`, `physical`, `virtual`, or what the kernel calls it: `wlan`,
    /// `bridge`, `bond`, `vlan`.
    pub kind: String,
}

impl Sysfs {
    /// The sysfs below another root than `/sys`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn infiniband(&self) -> PathBuf {
        self.root.join("class/infiniband")
    }

    /// All RDMA devices by name; none where the kernel has no RDMA.
    ///
    /// # Errors
    /// What reading the directory returns, but for its absence.
    pub fn devices(&self) -> io::Result<Vec<Device>> {
        let mut names = match names(&self.infiniband()) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        names.sort();
        Ok(names.iter().filter_map(|name| self.device(name)).collect())
    }

    /// One RDMA device.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<Device> {
        let path = self.infiniband().join(plain(name)?);
        let mut numbers: Vec<u8> = names(&path.join("ports"))
            .ok()?
            .iter()
            .filter_map(|number| number.parse().ok())
            .collect();
        numbers.sort_unstable();
        let port = |number: u8| {
            let mut port = port(&path.join("ports").join(number.to_string()), number);
            port.netdev = port.netdev.or_else(|| parent_netdev(&path, number));
            port
        };
        Some(Device {
            name: name.to_owned(),
            ports: numbers.into_iter().map(port).collect(),
            driver: driver(&path),
            node_guid: read(path.join("node_guid")).unwrap_or_default(),
        })
    }

    /// The RDMA device and port on a network device: the port's own network
    /// device first, else one that holds a GID of the port (a VLAN, a bond).
    #[must_use]
    pub fn for_netdev(&self, netdev: &str) -> Option<(Device, u8)> {
        let devices = self.devices().ok()?;
        let own = |port: &Port| port.netdev.as_deref() == Some(netdev);
        let holds = |port: &Port| {
            let mut gids = port.gids.iter();
            gids.any(|gid| gid.netdev.as_deref() == Some(netdev))
        };
        let find = |fits: &dyn Fn(&Port) -> bool| {
            devices.iter().find_map(|device| {
                let port = device.ports.iter().find(|port| fits(port))?;
                Some((device.clone(), port.number))
            })
        };
        find(&own).or_else(|| find(&holds))
    }

    /// The driver's own counters of a port as they stand; see
    /// [`settled_counters`](Self::settled_counters). `None` where the driver
    /// has none.
    #[must_use]
    pub fn counters(&self, device: &str, port: u8) -> Option<Counters> {
        let path = self
            .infiniband()
            .join(plain(device)?)
            .join(format!("ports/{port}/hw_counters"));
        let counters = names(&path).ok()?.into_iter().filter_map(|name| {
            // A setting, not a counter: for how long values are cached.
            if name == "lifespan" {
                return None;
            }
            let value = read(path.join(&name))?.parse().ok()?;
            Some((name, value))
        });
        Some(counters.collect()).filter(|counters: &Counters| !counters.is_empty())
    }

    /// Waits [`COUNTERS_SETTLE`], then reads the counters. Both readings of a
    /// before and after pair need it: the earlier one too would otherwise be
    /// of some milliseconds before.
    #[must_use]
    pub fn settled_counters(&self, device: &str, port: u8) -> Option<Counters> {
        thread::sleep(COUNTERS_SETTLE);
        self.counters(device, port)
    }

    /// A network device.
    #[must_use]
    pub fn netdev(&self, name: &str) -> Option<NetDev> {
        let path = self.root.join("class/net").join(plain(name)?);
        let number = |file: &str| read(path.join(file))?.parse::<u32>().ok();
        let flags = read(path.join("flags")).and_then(|flags| {
            let digits = flags.strip_prefix("0x")?;
            u32::from_str_radix(digits, 16).ok()
        });
        Some(NetDev {
            name: name.to_owned(),
            ifindex: number("ifindex")?,
            mtu: number("mtu")?,
            mac: read(path.join("address")).and_then(|text| mac(&text)),
            operstate: read(path.join("operstate")).unwrap_or_default(),
            up: flags.is_some_and(|flags| flags & 1 != 0),
            carrier: number("carrier").map(|carrier| carrier == 1),
            kind: kind(&path, number("type")),
        })
    }

    /// Names of all network devices, sorted.
    #[must_use]
    pub fn netdevs(&self) -> Vec<String> {
        let mut names = names(&self.root.join("class/net")).unwrap_or_default();
        // Files of the bonding driver live there too.
        names.retain(|name| self.netdev(name).is_some());
        names.sort();
        names
    }
}

/// Names that could leave the directory are nobody's.
fn plain(name: &str) -> Option<&str> {
    (!name.is_empty() && name != "." && name != ".." && !name.contains('/')).then_some(name)
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect())
}

/// The text of an attribute; the kernel's refusal to tell is no text.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Last part of where a symbolic link points.
fn link_name(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

fn driver(device: &Path) -> Option<String> {
    // Only Soft-RoCE names its network device in a file "parent". Its node
    // description is "rxe" until some daemon writes the host's name there.
    let rxe = device.join("parent").exists()
        || read(device.join("node_desc")).is_some_and(|text| text == "rxe");
    let hardware = || {
        let driver = device.join("device/driver");
        link_name(&driver.join("module")).or_else(|| link_name(&driver))
    };
    if rxe {
        Some(RXE.to_owned())
    } else {
        hardware()
    }
}

/// The network device of a port whose GID table does not name one, as when the
/// network device is down.
fn parent_netdev(device: &Path, port: u8) -> Option<String> {
    let parent = read(device.join("parent")).filter(|name| plain(name).is_some());
    if parent.is_some() {
        return parent;
    }
    let net = device.join("device/net");
    let mut found = names(&net).ok()?;
    found.sort();
    if found.len() > 1 {
        let of_port = |name: &String| {
            read(net.join(name).join("dev_port")) == Some((port.saturating_sub(1)).to_string())
        };
        found.retain(of_port);
    }
    found.into_iter().next()
}

fn port(path: &Path, number: u8) -> Port {
    let link_layer = read(path.join("link_layer")).unwrap_or_default();
    let mut indices: Vec<u8> = names(&path.join("gids"))
        .unwrap_or_default()
        .iter()
        .filter_map(|index| index.parse().ok())
        .collect();
    indices.sort_unstable();
    let gids: Vec<Gid> = indices
        .into_iter()
        .filter_map(|index| gid(path, index, &link_layer))
        .collect();
    Port {
        number,
        state: state(read(path.join("state")).as_deref()),
        netdev: gids.iter().find_map(|gid| gid.netdev.clone()),
        link_layer,
        gids,
    }
}

/// "4: ACTIVE".
fn state(text: Option<&str>) -> PortState {
    let (code, name) = text
        .and_then(|text| text.split_once(':'))
        .unwrap_or(("0", "unknown"));
    PortState {
        code: code.trim().parse().unwrap_or(0),
        name: name.trim().to_owned(),
    }
}

fn gid(port: &Path, index: u8, link_layer: &str) -> Option<Gid> {
    let gid: Ipv6Addr = read(port.join(format!("gids/{index}")))?.parse().ok()?;
    // Empty entries are zero; their attributes read as EINVAL.
    if gid.is_unspecified() {
        return None;
    }
    let words = read(port.join(format!("gid_attrs/types/{index}")));
    let kind = match words.as_deref() {
        // The kernel has one word for both.
        Some("IB/RoCE v1") | None if link_layer == "InfiniBand" => GidKind::Ib,
        Some("IB/RoCE v1") => GidKind::RoceV1,
        Some("RoCE v2") => GidKind::RoceV2,
        Some(other) => GidKind::Other(other.to_owned()),
        None => return None,
    };
    Some(Gid {
        index,
        gid,
        kind,
        netdev: read(port.join(format!("gid_attrs/ndevs/{index}"))).filter(|name| !name.is_empty()),
    })
}

fn mac(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut groups = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(groups.next()?, 16).ok()?;
    }
    groups.next().is_none().then_some(Mac(bytes))
}

/// `ARPHRD_LOOPBACK` of `linux/if_arp.h`.
const LOOPBACK: u32 = 772;

fn kind(netdev: &Path, hardware: Option<u32>) -> String {
    if hardware == Some(LOOPBACK) {
        return "loopback".to_owned();
    }
    let uevent = read(netdev.join("uevent")).unwrap_or_default();
    let kind = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVTYPE="));
    kind.map_or_else(
        || {
            let physical = netdev.join("device").exists();
            if physical { "physical" } else { "virtual" }.to_owned()
        },
        str::to_owned,
    )
}
