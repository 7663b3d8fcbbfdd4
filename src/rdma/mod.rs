//! RDMA devices of this machine: what they are, what they count, and a writer
//! that drives them.
//!
//! [`ledger`] and [`sysfs`] need no library; what calls verbs is behind the
//! feature `verbs` and is the only place that does.

pub mod ledger;
pub mod mtu;
#[cfg(target_os = "linux")]
pub mod sysfs;
#[cfg(all(target_os = "linux", feature = "verbs"))]
pub mod verbs;
