//! The kernel module of Soft-RoCE.

use super::{LabError, steps::run};
use crate::host::{
    Host,
    packages::{Package, install},
};

/// Its name.
pub(super) const MODULE: &str = "rdma_rxe";

/// Loads the module unless it is there.
pub(super) fn load(host: &Host) -> Result<(), LabError> {
    if host.has_module(MODULE) {
        return Ok(());
    }
    if host.find("modprobe").is_none() {
        return Err(LabError::NoProgram {
            program: "modprobe",
            repair: "install the package kmod".to_owned(),
        });
    }
    run(host, "modprobe", &[MODULE]).map_err(|error| {
        let kernel = host.kernel();
        if !host.exists(&format!("lib/modules/{kernel}")) {
            // Packages of a new kernel take the old one's modules away.
            LabError::ModulesGone { kernel }
        } else if host.can_load(MODULE) {
            error
        } else {
            LabError::NoModule {
                kernel,
                repair: install(host, Package::RxeModule),
            }
        }
    })
}
