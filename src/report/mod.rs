//! Printers: tables for people, JSON lines and CSV for programs, pcapng for
//! other analysers.
//!
//! Packet printers append to a byte buffer, so that several batches can be
//! formatted at once and written in order; nothing is allocated a packet once
//! the buffer has grown.

mod compare;
mod compare_document;
mod compare_notes;
mod csv;
mod detail;
#[cfg(target_os = "linux")]
mod doctor;
mod extcap;
mod hex;
mod json;
#[cfg(target_os = "linux")]
mod lab;
mod pcapng;
mod record;
mod style;
mod summary;
mod table;
mod text;
mod write;
mod write_document;

pub use compare::{CompareOptions, print as print_compare};
pub use compare_document::{print_csv as print_compare_csv, print_json as print_compare_json};
pub use csv::CsvPackets;
pub use detail::DetailPackets;
#[cfg(target_os = "linux")]
pub use doctor::{Verbosity, print as print_doctor};
pub use extcap::{Dlt, ExtcapOption, print_dlt, print_interfaces, print_options};
pub use hex::dump as hex_dump;
pub use json::JsonPackets;
#[cfg(target_os = "linux")]
pub use lab::{print_down, print_status, print_up};
pub use pcapng::{Counted, Interface, PcapngWriter};
pub use record::{Recorded, Recorder};
pub use style::Style;
pub use summary::print as print_summary;
pub use table::{TablePackets, Widths};
pub use write::{print_write, print_write_plan};
pub use write_document::WriteDocument;

use crate::{source::RawPacket, wire::Packet};

/// Turns packets into text, one after the other.
pub trait PacketPrinter: Sync {
    /// What comes before the first packet.
    fn header(&self, _out: &mut Vec<u8>) {}

    /// Appends one packet.
    fn packet(&self, raw: &RawPacket<'_>, packet: &Packet<'_>, out: &mut Vec<u8>);
}
