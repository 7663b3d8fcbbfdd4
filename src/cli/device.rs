//! Which RDMA device a command is for: the one named, or the one on a netdev.

use anyhow::{Context, bail};
use roce_sniff::rdma::sysfs::{Device, Sysfs};

/// A device and the port of it to use, from 1.
pub type Port = (Device, u8);

/// The first port of a device.
pub fn first_port(device: Device) -> Port {
    let port = device.ports.first().map_or(1, |port| port.number);
    (device, port)
}

/// The device of this name.
pub fn named(name: &str, sysfs: &Sysfs) -> anyhow::Result<Port> {
    if let Some(device) = sysfs.device(name) {
        return Ok(first_port(device));
    }
    let devices = sysfs.devices().unwrap_or_default();
    let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
    let there = if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    };
    bail!("{name}: no such RDMA device; there are: {there}")
}

/// The device on this netdev; `otherwise` ends the advice where there is none.
pub fn on_netdev(iface: &str, sysfs: &Sysfs, otherwise: &str) -> anyhow::Result<Port> {
    sysfs.for_netdev(iface).with_context(|| {
        format!(
            "{iface} has no RDMA device; make one with `sudo modprobe rdma_rxe` and \
             `sudo rdma link add rxe0 type rxe netdev {iface}`{otherwise}"
        )
    })
}
