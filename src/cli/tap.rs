//! `--tap`: packets at the Soft-RoCE driver's receive function.

use clap::{Args, builder::RangedU64ValueParser};
use roce_sniff::wire::types::QpNumber;

use super::args::qp_number;

/// Whether and how to tap.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernel tap (Soft-RoCE)")]
pub struct TapArgs {
    /// Capture in the kernel what the Soft-RoCE driver receives, looped packets
    /// too, which no netdev ever sees; with --iface those that were looped,
    /// beside the netdev's own
    #[arg(long, group = "live", conflicts_with_all = ["files", "merge"])]
    pub tap: bool,

    /// Tap this RDMA device only
    #[arg(
        long,
        value_name = "DEVICE",
        requires = "tap",
        conflicts_with = "files"
    )]
    pub tap_dev: Option<String>,

    /// Tap packets to this queue pair only, decimal or 0x…
    #[arg(long, value_name = "QPN", requires = "tap", conflicts_with = "files", value_parser = qp_number)]
    pub tap_qp: Option<QpNumber>,

    /// Bytes to keep of a tapped packet, from its IP header on; by default all
    #[arg(long, value_name = "BYTES", default_value_t = 4224, requires = "tap", conflicts_with = "files",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=4224))]
    pub tap_snaplen: u32,

    /// Size of the tap's ring buffer in KiB
    #[arg(long, value_name = "KIB", default_value_t = 16384, requires = "tap", conflicts_with = "files",
        value_parser = RangedU64ValueParser::<u32>::new().range(4..=1_048_576))]
    pub tap_buffer: u32,
}

/// Why there is no tap.
#[cfg(not(all(feature = "tap", target_os = "linux")))]
#[cfg_attr(
    not(feature = "live"),
    allow(dead_code, reason = "then nothing is live")
)]
pub const NO_TAP: &str = "this roce-sniff has no kernel tap: it was built without the feature `tap`, \
                          for Linux only";

#[cfg(all(feature = "tap", target_os = "linux"))]
mod options {
    use anyhow::bail;
    use roce_sniff::{
        rdma::sysfs::{Device, Sysfs},
        source::tap::{TapDevice, TapOptions},
    };

    use super::{QpNumber, TapArgs};

    impl TapArgs {
        /// What to tap on this machine.
        pub fn options(&self, sysfs: &Sysfs) -> anyhow::Result<TapOptions> {
            let devices: Vec<_> = sysfs
                .devices()
                .unwrap_or_default()
                .into_iter()
                .filter(Device::is_rxe)
                .map(|device| TapDevice {
                    ifindexes: ifindexes(&device, sysfs),
                    name: device.name,
                })
                .collect();
            let mut options = TapOptions {
                qp: self.tap_qp.map(QpNumber::get),
                snaplen: self.tap_snaplen,
                buffer: self.tap_buffer << 10,
                ..TapOptions::new(devices)
            };
            if let Some(name) = &self.tap_dev {
                let named = options.devices.iter().find(|device| device.name == *name);
                let Some(device) = named else {
                    let names: Vec<_> = options.devices.iter().map(|d| d.name.as_str()).collect();
                    bail!(
                        "--tap-dev {name}: no such Soft-RoCE device; there are: {}",
                        if names.is_empty() {
                            "none".into()
                        } else {
                            names.join(", ")
                        }
                    );
                };
                options.ifindex = device.ifindexes.first().copied();
                options.devices = vec![device.clone()];
            }
            Ok(options)
        }

        /// What to tap beside a listener on `netdev`: packets that came over a
        /// netdev have passed its listeners before they reach the driver, so
        /// only the looped ones are new, and of these the ones of the device
        /// on that netdev where it has one.
        pub fn beside(&self, netdev: &str, sysfs: &Sysfs) -> anyhow::Result<TapOptions> {
            let mut options = self.options(sysfs)?;
            options.looped_only = true;
            if let (None, Some((device, _)), Some(index)) = (
                &self.tap_dev,
                sysfs
                    .for_netdev(netdev)
                    .filter(|(device, _)| device.is_rxe()),
                sysfs.netdev(netdev).map(|netdev| netdev.ifindex),
            ) {
                options.devices.retain(|known| known.name == device.name);
                options.ifindex = Some(index);
            }
            Ok(options)
        }
    }

    /// Netdevs that the device's GIDs are of, its own first.
    fn ifindexes(device: &Device, sysfs: &Sysfs) -> Vec<u32> {
        let ports = device.ports.iter();
        let names = ports.flat_map(|port| {
            let gids = port.gids.iter().filter_map(|gid| gid.netdev.as_ref());
            port.netdev.iter().chain(gids)
        });
        let mut indexes = Vec::new();
        for name in names {
            if let Some(netdev) = sysfs.netdev(name)
                && !indexes.contains(&netdev.ifindex)
            {
                indexes.push(netdev.ifindex);
            }
        }
        indexes
    }
}
