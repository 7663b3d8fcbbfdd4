//! InfiniBand headers as RoCE carries them: one header, one file.
//!
//! [`parse`] turns a [`crate::frame::Datagram`] into a [`Packet`]. The lengths
//! are checked once, when a header is parsed; its fields are plain values
//! after that. Codes that no specification assigns stay values.

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod cm;
pub mod cnp;
pub mod deth;
pub mod feth;
pub mod icrc;
pub mod ieth;
pub mod immdt;
pub mod mad;
pub mod opcode;
mod packet;
pub mod rdeth;
pub mod reth;
pub mod types;
pub mod xrceth;

pub use packet::{Extensions, Packet, parse};

use crate::layout::Field;
use opcode::Ext;

/// Name and fields of an extension header.
#[must_use]
pub const fn ext_layout(ext: Ext) -> (&'static str, &'static [Field]) {
    match ext {
        Ext::Rdeth => ("RDETH", rdeth::Rdeth::FIELDS),
        Ext::Deth => ("DETH", deth::Deth::FIELDS),
        Ext::Xrceth => ("XRCETH", xrceth::Xrceth::FIELDS),
        Ext::Feth => ("FETH", feth::Feth::FIELDS),
        Ext::Reth => ("RETH", reth::Reth::FIELDS),
        Ext::AtomicEth => ("AtomicETH", atomic::AtomicEth::FIELDS),
        Ext::Aeth => ("AETH", aeth::Aeth::FIELDS),
        Ext::AtomicAckEth => ("AtomicAckETH", atomic::AtomicAckEth::FIELDS),
        Ext::ImmDt => ("ImmDt", immdt::ImmDt::FIELDS),
        Ext::Ieth => ("IETH", ieth::Ieth::FIELDS),
        Ext::CnpReserved => ("CNP", cnp::FIELDS),
    }
}
