//! A laboratory: Soft-RoCE whose packets can be seen, on one machine.
//!
//! What a Soft-RoCE device sends to an address of its own never reaches a
//! network device. Between two of them, one at each end of a veth pair, every
//! packet does. [`up`] makes such a pair, [`down`] removes it; a journal below
//! `/run/roce-sniff`, written before each step, makes that work after a crash
//! too. Both touch nothing that the lab did not make: no setting of another
//! device, no address or route in use.
//!
//! [`SetupRxe`] puts one Soft-RoCE device on a network device for as long as
//! it lives.

mod journal;
mod module;
mod plan;
mod rxe;
mod status;
mod steps;
#[cfg(test)]
mod tests;

pub use journal::JournalError;
pub use plan::{ADDRESSES, End, MTU, PREFIX, Plan, PlanError};
pub use rxe::{SetupRxe, name_for};
pub use status::{EndStatus, State, Status, status};
pub use steps::{Outcome, Undone};

use std::{thread, time::Duration};

use journal::{Journal, Process};
use steps::Step;

use crate::host::{
    Host, Network, User,
    packages::{Package, install},
};

/// Why the lab could not be set up or removed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Only root may.
    #[error("setting up and removing network and RDMA devices needs root: sudo {0}")]
    NotRoot(&'static str),
    /// A program is missing.
    #[error("the program `{program}` is not installed: {repair}")]
    NoProgram {
        /// The program.
        program: &'static str,
        /// The command that installs it.
        repair: String,
    },
    /// The kernel has no Soft-RoCE.
    #[error("the kernel {kernel} has no module rdma_rxe (Soft-RoCE): {repair}")]
    NoModule {
        /// Its release.
        kernel: String,
        /// The command that installs it.
        repair: String,
    },
    /// The running kernel's modules are not installed any more.
    #[error(
        "the modules of the running kernel {kernel} are gone, as after an upgrade of the kernel: \
         sudo reboot"
    )]
    ModulesGone {
        /// Its release.
        kernel: String,
    },
    /// A name is taken.
    #[error("{what} {name} exists and is not the lab's: give other names with --prefix")]
    Taken {
        /// What it is the name of.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An address is taken.
    #[error(
        "{address} is an address of this machine already{}: give others with --addr-a and --addr-b",
        .netdev.as_deref().map(|netdev| format!(" ({netdev})")).unwrap_or_default()
    )]
    AddressTaken {
        /// The address.
        address: std::net::IpAddr,
        /// Network device that has it, where known.
        netdev: Option<String>,
    },
    /// The addresses would cut off others.
    #[error(
        "{network} overlaps the route to {route} through {netdev}: give other addresses with \
         --addr-a and --addr-b"
    )]
    RouteTaken {
        /// The lab's network.
        network: Network,
        /// Destination of the route.
        route: Network,
        /// Network device of the route.
        netdev: String,
    },
    /// There is no such network device.
    #[error("there is no network device {name}; there are: {there}")]
    NoNetdev {
        /// The name.
        name: String,
        /// Names there are.
        there: String,
    },
    /// Another process is at it.
    #[error("another roce-sniff (pid {0}) is setting up a lab: try again when it is done")]
    Busy(u32),
    /// Another lab is up.
    #[error(
        "a lab with other names, addresses or MTU is up ({0}): remove it first with: \
         sudo roce-sniff lab down"
    )]
    Other(String),
    /// A program has one of the devices open.
    #[error("{device} is in use by {}: end it, then try again", list(users))]
    InUse {
        /// RDMA device.
        device: String,
        /// Who uses it.
        users: Vec<User>,
    },
    /// A step failed.
    #[error("{what}: {why}")]
    Step {
        /// The command or action.
        what: String,
        /// What was said about it.
        why: String,
    },
    /// A step failed, and undoing those before it did too.
    #[error("{error}; what is left of the lab could not be removed: {left}")]
    Left {
        /// Why the step failed.
        error: Box<LabError>,
        /// Why undoing failed.
        left: String,
    },
    /// A Soft-RoCE device did not come up.
    #[error("{device} has not got the address {address} in time")]
    NotReady {
        /// The device.
        device: String,
        /// Its address.
        address: Network,
    },
    /// The user wanted to stop.
    #[error("interrupted; what had been set up was removed")]
    Interrupted,
    /// The journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

fn list(users: &[User]) -> String {
    let names: Vec<_> = users.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// What [`up`] found or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Up {
    /// The lab.
    pub status: Status,
    /// It was up before.
    pub already: bool,
    /// What an interrupted run had left, removed first.
    pub cleaned: Vec<Undone>,
}

/// What [`down`] found or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Down {
    /// There was no lab.
    Nothing,
    /// The lab went with the last reboot.
    Rebooted,
    /// It was removed.
    Removed(Vec<Undone>),
}

fn need_root(host: &Host, command: &'static str) -> Result<(), LabError> {
    if host.is_root() {
        Ok(())
    } else {
        Err(LabError::NotRoot(command))
    }
}

fn need_programs(host: &Host) -> Result<(), LabError> {
    for program in ["ip", "rdma"] {
        if host.find(program).is_none() {
            return Err(LabError::NoProgram {
                program,
                repair: install(host, Package::Iproute),
            });
        }
    }
    Ok(())
}

/// Sets the lab up; does nothing when it is.
///
/// `interrupted` is asked between steps; once it says so, what was done is
/// undone.
///
/// # Errors
/// [`LabError`]; nothing is left behind then, but for [`LabError::Left`].
pub fn up(host: &Host, plan: &Plan, interrupted: &dyn Fn() -> bool) -> Result<Up, LabError> {
    need_root(host, "roce-sniff lab up")?;
    need_programs(host)?;
    let mut cleaned = Vec::new();
    if let Some(journal) = Journal::load(host)? {
        if journal.is_current(host) {
            if !journal.complete && journal.writer.is_alive(host) {
                return Err(LabError::Busy(journal.writer.pid));
            }
            let status = status::of(host, &journal);
            if journal.complete && status.state == State::Up && journal.plan == *plan {
                return Ok(Up {
                    status,
                    already: true,
                    cleaned,
                });
            }
            if journal.complete && journal.plan != *plan && status.state != State::Down {
                let [a, b] = &journal.plan.ends;
                return Err(LabError::Other(format!("{}, {}", a.netdev, b.netdev)));
            }
            cleaned = take_down(host, &journal)?;
        }
        Journal::remove(host)?;
    }
    check(host, plan)?;
    let mut journal = Journal::new(host, plan.clone());
    if let Some(writer) = journal.create(host)? {
        return Err(LabError::Busy(writer));
    }
    if let Err(error) = build(host, &mut journal, interrupted) {
        return Err(match take_down(host, &journal) {
            Ok(_) => Journal::remove(host).err().map_or(error, Into::into),
            Err(left) => LabError::Left {
                error: Box::new(error),
                left: left.to_string(),
            },
        });
    }
    Ok(Up {
        status: status::of(host, &journal),
        already: false,
        cleaned,
    })
}

fn build(
    host: &Host,
    journal: &mut Journal,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), LabError> {
    for step in Step::all() {
        if interrupted() {
            return Err(LabError::Interrupted);
        }
        journal.begun.push(step);
        journal.save(host)?;
        step.perform(host, &journal.plan)?;
    }
    steps::wait_until_ready(host, &journal.plan)?;
    journal.complete = true;
    journal.save(host)?;
    Ok(())
}

/// Whether everything the plan names is free.
fn check(host: &Host, plan: &Plan) -> Result<(), LabError> {
    let sysfs = host.sysfs();
    for end in &plan.ends {
        if sysfs.netdev(&end.netdev).is_some() {
            return Err(LabError::Taken {
                what: "the network device",
                name: end.netdev.clone(),
            });
        }
        if sysfs.device(&end.device).is_some() {
            return Err(LabError::Taken {
                what: "the RDMA device",
                name: end.device.clone(),
            });
        }
    }
    let addresses = host.addresses();
    for end in &plan.ends {
        let taken = addresses
            .iter()
            .find(|taken| taken.address == end.address.address);
        if let Some(taken) = taken {
            return Err(LabError::AddressTaken {
                address: taken.address,
                netdev: taken.netdev.clone(),
            });
        }
    }
    let network = plan.ends[0].address;
    let overlap = host
        .routes()
        .into_iter()
        .find(|route| route.network.overlaps(&network));
    match overlap {
        Some(route) => Err(LabError::RouteTaken {
            network,
            route: route.network,
            netdev: route.netdev,
        }),
        None => Ok(()),
    }
}

/// Removes the lab, or what there is of it; does nothing when there is none.
///
/// # Errors
/// [`LabError`]; the journal is then kept, so that it can be tried again.
pub fn down(host: &Host) -> Result<Down, LabError> {
    need_root(host, "roce-sniff lab down")?;
    let mut undone = rxe::sweep(host);
    let Some(journal) = Journal::load(host)? else {
        return Ok(if undone.is_empty() {
            Down::Nothing
        } else {
            Down::Removed(undone)
        });
    };
    if !journal.is_current(host) {
        Journal::remove(host)?;
        return Ok(Down::Rebooted);
    }
    if !journal.complete && journal.writer.is_alive(host) {
        return Err(LabError::Busy(journal.writer.pid));
    }
    need_programs(host)?;
    undone.extend(take_down(host, &journal)?);
    Journal::remove(host)?;
    Ok(Down::Removed(undone))
}

/// How long a command of a killed run may still be at work.
const LAST_COMMAND: Duration = Duration::from_millis(300);

/// Undoes everything that was begun, last things first.
fn take_down(host: &Host, journal: &Journal) -> Result<Vec<Undone>, LabError> {
    let mut undone = undo(host, journal)?;
    if !journal.complete && journal.writer != Process::this(host) {
        // Killing a program does not kill the command that it has just given.
        thread::sleep(LAST_COMMAND);
        let later = undo(host, journal)?.into_iter();
        undone.extend(later.filter(|undone| undone.outcome == Outcome::Removed));
    }
    Ok(undone)
}

fn undo(host: &Host, journal: &Journal) -> Result<Vec<Undone>, LabError> {
    let plan = &journal.plan;
    // The kernel would wait for its users inside the removal, and nothing
    // could end that.
    for device in host.sysfs().devices().unwrap_or_default() {
        let on_ours = |end: &End| {
            let on = |port: &crate::rdma::sysfs::Port| port.netdev.as_ref() == Some(&end.netdev);
            steps::is_ours(host, end) && device.ports.iter().any(on)
        };
        let users = if plan.ends.iter().any(on_ours) {
            host.users_of(&device.name)
        } else {
            Vec::new()
        };
        if !users.is_empty() {
            return Err(LabError::InUse {
                device: device.name,
                users,
            });
        }
    }
    let mut undone = Vec::new();
    for step in journal.begun.iter().rev() {
        let Some(what) = step.undo(host, plan) else {
            continue;
        };
        if let Outcome::Failed(why) = what.outcome {
            return Err(LabError::Step {
                what: format!("removing the {}", what.what),
                why,
            });
        }
        undone.push(what);
    }
    Ok(undone)
}
