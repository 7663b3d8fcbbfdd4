//! How each distribution calls what is missing.

use super::Host;

/// Something that a package brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Package {
    /// `ip` and `rdma`.
    Iproute,
    /// The kernel module `rdma_rxe`.
    RxeModule,
    /// `libibverbs`, `librdmacm` and the drivers' user-space halves.
    Verbs,
    /// Headers to compile programs against verbs.
    VerbsHeaders,
    /// `tshark`.
    Tshark,
}

/// Families of distributions: names in `ID` and `ID_LIKE` of `os-release`,
/// the command before the package names, packages in the order of
/// [`PACKAGES`].
struct Family {
    ids: &'static [&'static str],
    install: &'static str,
    packages: [&'static str; PACKAGES.len()],
}

const PACKAGES: [Package; 5] = [
    Package::Iproute,
    Package::RxeModule,
    Package::Verbs,
    Package::VerbsHeaders,
    Package::Tshark,
];

const FAMILIES: &[Family] = &[
    // Before Debian, which it says it is like.
    Family {
        ids: &["ubuntu"],
        install: "sudo apt-get install",
        packages: [
            "iproute2",
            "linux-modules-extra-$(uname -r)",
            "libibverbs1 librdmacm1 ibverbs-providers",
            "libibverbs-dev librdmacm-dev",
            "tshark",
        ],
    },
    Family {
        ids: &["debian"],
        install: "sudo apt-get install",
        packages: [
            "iproute2",
            // Kernels for clouds come without.
            "linux-image-$(dpkg --print-architecture)",
            "libibverbs1 librdmacm1 ibverbs-providers",
            "libibverbs-dev librdmacm-dev",
            "tshark",
        ],
    },
    Family {
        ids: &["fedora", "rhel", "centos"],
        install: "sudo dnf install",
        packages: [
            "iproute",
            "kernel-modules-extra-$(uname -r)",
            "libibverbs librdmacm",
            "rdma-core-devel",
            "wireshark-cli",
        ],
    },
    Family {
        ids: &["suse", "opensuse"],
        install: "sudo zypper install",
        packages: [
            "iproute2",
            "kernel-default",
            "libibverbs1 librdmacm1 libibverbs",
            "rdma-core-devel",
            "wireshark",
        ],
    },
    Family {
        ids: &["arch"],
        install: "sudo pacman -S",
        packages: [
            "iproute2",
            "linux",
            "rdma-core",
            "rdma-core",
            "wireshark-cli",
        ],
    },
];

/// The command that installs a package on this distribution; on one that is
/// not known, what to look for.
#[must_use]
pub fn install(host: &Host, package: Package) -> String {
    let release = host
        .read("etc/os-release")
        .or_else(|| host.read("usr/lib/os-release"))
        .unwrap_or_default();
    let words = |key: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(key));
        value.unwrap_or_default().trim_matches('"').to_owned()
    };
    let ids = format!("{} {}", words("ID="), words("ID_LIKE="));
    let family = FAMILIES
        .iter()
        .find(|family| ids.split_whitespace().any(|id| family.ids.contains(&id)));
    let index = PACKAGES.iter().position(|p| *p == package).unwrap_or(0);
    match family {
        Some(family) => format!("{} {}", family.install, family.packages[index]),
        None => format!("install {}", UNKNOWN[index]),
    }
}

const UNKNOWN: [&str; PACKAGES.len()] = [
    "iproute2",
    "a kernel with the module rdma_rxe (CONFIG_RDMA_RXE)",
    "rdma-core",
    "the development package of rdma-core",
    "tshark",
];

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{NoPrograms, Tree},
        *,
    };

    #[test]
    fn by_distribution() {
        for (release, command) in [
            (
                "ID=debian\nVERSION_ID=\"13\"",
                "sudo apt-get install iproute2",
            ),
            (
                "NAME=x\nID=linuxmint\nID_LIKE=\"ubuntu debian\"",
                "sudo apt-get install iproute2",
            ),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"",
                "sudo dnf install iproute",
            ),
            (
                "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"",
                "sudo zypper install iproute2",
            ),
            ("ID=arch", "sudo pacman -S iproute2"),
            ("ID=unheard-of", "install iproute2"),
        ] {
            let tree = Tree::new(&[("etc/os-release", release)]);
            let host = tree.host(NoPrograms);
            assert_eq!(install(&host, Package::Iproute), command, "{release}");
        }
        let tree = Tree::new(&[("usr/lib/os-release", "ID_LIKE=debian\nID=ubuntu")]);
        assert_eq!(
            install(&tree.host(NoPrograms), Package::RxeModule),
            "sudo apt-get install linux-modules-extra-$(uname -r)"
        );
    }
}
