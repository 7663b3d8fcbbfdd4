//! What keeps a capture from beginning, and what repairs it.

use pcap::Device;

use super::super::{SourceError, netdevs};

/// Whether the device is a network device; false for libpcap's own, as `any`.
pub(super) fn known(name: &str) -> Result<bool, SourceError> {
    let Ok(devices) = netdevs() else {
        return Ok(false);
    };
    if devices.iter().any(|device| device.name == name) {
        return Ok(true);
    }
    if Device::list().is_ok_and(|list| list.iter().any(|device| device.name == name)) {
        return Ok(false);
    }
    let rdma = std::path::Path::new("/sys/class/infiniband").join(name);
    let names: Vec<_> = devices.into_iter().map(|device| device.name).collect();
    Err(SourceError::NoSuchDevice {
        name: name.to_owned(),
        hint: if !name.contains('/') && rdma.exists() {
            " (an RDMA device has this name: name the network device under it, see `rdma link`)"
        } else {
            ""
        },
        there: names.join(", "),
    })
}

/// What libpcap could not do, and what repairs it.
pub(super) fn explain(name: &str, error: &pcap::Error) -> SourceError {
    let reason = words(error);
    let name = name.to_owned();
    // libpcap's codes do not get through the crate; its words do.
    if reason.contains("permission") || reason.contains("not permitted") {
        let program = std::env::current_exe();
        return SourceError::NotPermitted {
            name,
            program: program.map_or_else(|_| "roce-sniff".into(), |p| p.display().to_string()),
        };
    }
    if reason.contains("not up") || reason.contains("is down") {
        return SourceError::Down { name, is: "is" };
    }
    SourceError::Capture { name, reason }
}

pub(super) fn words(error: &pcap::Error) -> String {
    match error {
        pcap::Error::PcapError(words) => words.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{LiveOptions, LiveSource, Stop};

    #[test]
    fn names_of_devices_that_are_not_there() {
        let options = LiveOptions::new("no-such-dev0", 4791);
        let error = LiveSource::open(&options, Stop::default()).err().unwrap();
        let text = error.to_string();
        let begins = "no network device no-such-dev0; there are: ";
        assert!(text.starts_with(begins) && text.contains("lo"), "{text}");
    }

    #[test]
    fn words_of_libpcap_tell_what_repairs_it() {
        let explain = |words: &str| explain("eth0", &pcap::Error::PcapError(words.into()));
        let text = explain("socket: Operation not permitted").to_string();
        assert!(
            text.starts_with("eth0: capturing needs CAP_NET_RAW: run with sudo, or once: sudo setcap cap_net_raw+ep /"),
            "{text}"
        );
        let text = explain("That device is not up").to_string();
        assert_eq!(text, "eth0 is down: sudo ip link set eth0 up");
        let text = explain("The interface disappeared").to_string();
        assert_eq!(text, "eth0: cannot capture: The interface disappeared");
    }
}
