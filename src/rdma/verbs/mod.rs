//! Verbs: opening devices, connecting queue pairs, driving them. The only
//! place that calls libibverbs and librdmacm.
//!
//! [`Session`] is the writer: a [`Plan`] prepared into a connected queue pair,
//! run into a [`Ledger`](super::ledger::Ledger). [`Responder`] lends memory to
//! writers on other hosts; the two agree over TCP, and connect by hand or
//! through the RDMA connection manager.
//!
//! What is known of the verbs and of rxe, and is built in here: nothing is
//! posted before RTS (rxe would keep it and send it later); the path MTU never
//! exceeds the port's (rxe would accept it and send nothing); retries are
//! finite (7 means for ever); every wait has a deadline; on an error only the
//! number and the status of a completion are looked at.

mod cm;
mod connect;
mod device;
mod error;
mod exchange;
mod job;
mod memory;
mod plan;
mod qp;
mod responder;
mod run;
mod served;
mod writer;

pub use device::active_mtu;
pub use error::{Step, VerbsError};
pub use exchange::{DEFAULT_PORT, Remote};
pub use plan::{MAX_COUNT, MAX_MEMORY, Plan, Target};
pub use responder::{Responder, ResponderEvent, ResponderPlan};
pub use writer::Session;
