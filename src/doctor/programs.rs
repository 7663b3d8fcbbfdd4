//! Libraries and programs.

use std::path::PathBuf;

use super::{Finding, Probe};
use crate::host::{
    Host,
    packages::{Package, install},
};

/// Directories that libraries are in, those of an architecture included.
fn library_directories(host: &Host) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for base in ["lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib"] {
        let base = host.path(base);
        let entries = std::fs::read_dir(&base).into_iter().flatten().flatten();
        // usr/lib/x86_64-linux-gnu
        let of_architecture = entries
            .filter(|entry| entry.file_name().to_string_lossy().contains("-linux-"))
            .map(|entry| entry.path());
        directories.extend(of_architecture);
        directories.push(base);
    }
    directories
}

/// A file below a library directory whose name begins and ends so.
fn library(host: &Host, below: &str, prefix: &str, contains: &str) -> Option<String> {
    library_directories(host).into_iter().find_map(|directory| {
        let entries = std::fs::read_dir(directory.join(below)).ok()?;
        let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.find(|name| name.starts_with(prefix) && name.contains(contains))
    })
}

/// Whether programs that use verbs can be run.
pub(super) fn verbs_library(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    let mut missing: Vec<_> = ["libibverbs.so.1", "librdmacm.so.1"]
        .into_iter()
        .filter(|name| library(host, "", name, "").is_none())
        .map(str::to_owned)
        .collect();
    // Where a module of the library for a driver is missing, programs see no
    // device.
    let rxe = probe.devices.iter().any(super::Device::is_rxe);
    if rxe && library(host, "libibverbs", "librxe-", ".so").is_none() {
        missing.push("librxe (libibverbs' half of Soft-RoCE)".to_owned());
    }
    let mut findings = vec![if missing.is_empty() {
        Finding::ok("libibverbs and librdmacm are installed")
    } else {
        let missing = missing.join(", ");
        let finding = Finding::warn(format!("missing: {missing}"))
            .detail("No program can use RDMA without; ibv_devinfo finds no device.");
        finding.repair(install(host, Package::Verbs))
    }];
    if !probe.has_verbs {
        findings.push(
            Finding::note("this roce-sniff was built without verbs: no --write")
                .repair("cargo install --path . --locked --features verbs"),
        );
    }
    findings
}

/// Whether programs that use verbs can be compiled.
pub(super) fn verbs_headers(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    let places = ["usr/include", "usr/local/include"];
    let found = places
        .iter()
        .map(|place| format!("{place}/infiniband/verbs.h"))
        .find(|path| host.exists(path));
    vec![match found {
        Some(path) => Finding::ok(format!("/{path} is there"))
            .detail("cc program.c $(pkg-config --cflags --libs libibverbs) compiles with it."),
        None => Finding::note("infiniband/verbs.h is not installed")
            .detail("Only to compile programs of your own.")
            .repair(install(host, Package::VerbsHeaders)),
    }]
}

/// The capture library.
pub(super) fn libpcap(probe: &Probe) -> Vec<Finding> {
    if probe.try_capture.is_none() {
        return Vec::new();
    }
    // libpcap.so.0.8 leads to libpcap.so.1.10.3: the longest name has the
    // version.
    let version = library(&probe.host, "", "libpcap.so.1.", "")
        .and_then(|name| Some(name.strip_prefix("libpcap.so.")?.to_owned()));
    vec![match version {
        Some(version) => Finding::ok(format!("version {version}")),
        None => Finding::note("linked into the program, or its version cannot be told"),
    }]
}

/// Whether devices can be set up.
pub(super) fn iproute(probe: &Probe) -> Vec<Finding> {
    let host = &probe.host;
    let missing: Vec<_> = ["ip", "rdma"]
        .into_iter()
        .filter(|program| host.find(program).is_none())
        .collect();
    vec![if missing.is_empty() {
        Finding::ok("ip and rdma are installed")
    } else {
        Finding::warn(format!("missing: {}", missing.join(", ")))
            .detail("lab and --setup-rxe need them, and so do some checks of the doctor.")
            .repair(install(host, Package::Iproute))
    }]
}

/// First version of Wireshark that decodes RoCE v2.
const WIRESHARK_MIN: u32 = 2;

/// What other programs make of RoCE.
pub(super) fn capture_tools(probe: &Probe) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(tshark(probe));
    findings.extend(tcpdump(probe));
    if findings.is_empty() {
        findings.push(Finding::note(
            "neither tshark nor tcpdump is installed; none is needed",
        ));
    }
    findings
}

/// What a program says with `--version`, without its own name.
fn version(host: &Host, program: &str, marker: &str) -> Option<String> {
    host.find(program)?;
    let ran = host.run(program, &["--version"]).ok()?;
    let text = format!("{}\n{}", ran.stdout, ran.stderr);
    let (_, rest) = text.split_once(marker)?;
    let version = rest.split_whitespace().next()?;
    Some(version.trim_end_matches(['.', ',']).to_owned())
}

fn tshark(probe: &Probe) -> Option<Finding> {
    let host = &probe.host;
    let program = ["tshark", "wireshark"]
        .into_iter()
        .find(|program| host.find(program).is_some())?;
    let version = version(host, program, "Wireshark) ")
        .or_else(|| version(host, program, "Wireshark "))
        .unwrap_or_default();
    let major: Option<u32> = version.split('.').next().and_then(|n| n.parse().ok());
    let Some(major) = major else {
        return Some(Finding::note(format!(
            "{program}: its version cannot be told"
        )));
    };
    if major < WIRESHARK_MIN {
        return Some(
            Finding::warn(format!("{program} {version} does not decode RoCE v2"))
                .repair(install(host, Package::Tshark)),
        );
    }
    if let Some(file) = disabled(host) {
        return Some(
            Finding::warn(format!("{program} {version} has InfiniBand disabled"))
                .detail(format!(
                    "{} lists the protocol: RoCE shows as mere UDP.",
                    file.display()
                ))
                .repair(format!("sed -i '/^infiniband$/d' {}", file.display())),
        );
    }
    Some(
        Finding::ok(format!(
            "{program} {version} decodes RoCE (filter: infiniband)"
        ))
        .detail("It sees what a capture on a network device sees: nothing that is looped."),
    )
}

/// The user's list of disabled protocols, if it has InfiniBand.
fn disabled(host: &Host) -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    let home = PathBuf::from(home);
    let below = home.strip_prefix("/").unwrap_or(&home);
    let places = [".config/wireshark", ".wireshark"];
    let mut files = places
        .iter()
        .map(|place| host.root().join(below).join(place).join("disabled_protos"));
    files.find(|file| {
        let list = std::fs::read_to_string(file).unwrap_or_default();
        list.lines().any(|line| line.trim() == "infiniband")
    })
}

fn tcpdump(probe: &Probe) -> Option<Finding> {
    probe.host.find("tcpdump")?;
    let version = version(&probe.host, "tcpdump", "tcpdump version ").unwrap_or_default();
    let name = format!("tcpdump {version}");
    Some(
        Finding::ok(format!(
            "{} captures RoCE, and does not decode it",
            name.trim()
        ))
        .detail("It prints RoCE as UDP to port 4791; roce-sniff reads what it writes with -w."),
    )
}
