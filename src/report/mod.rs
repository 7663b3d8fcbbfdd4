//! Printers: tables for people, JSON lines and CSV for programs, pcapng for
//! other analysers.
//!
//! Printers of packets and of messages append to a byte buffer, so that several
//! batches can be formatted at once and written in order; nothing is allocated
//! a row once the buffer has grown. Reports about flows and memory are made
//! when the capture ends, or every so often while it goes on.

mod capture;
mod compare;
mod compare_document;
mod compare_notes;
mod connections;
mod csv;
mod detail;
#[cfg(target_os = "linux")]
mod doctor;
mod extcap;
mod fields;
mod flows;
mod flows_document;
mod grid;
mod health;
mod hex;
mod interval;
mod json;
#[cfg(target_os = "linux")]
mod lab;
mod lines;
mod memory;
mod messages;
mod object;
mod panels;
mod pcapng;
mod record;
mod style;
mod summary;
mod table;
mod text;
mod write;
mod write_document;

pub use capture::Capture;
pub use compare::{CompareOptions, print as print_compare};
pub use compare_document::{print_csv as print_compare_csv, print_json as print_compare_json};
pub use csv::CsvPackets;
pub use detail::DetailPackets;
#[cfg(target_os = "linux")]
pub use doctor::{Verbosity, print as print_doctor};
pub use extcap::{Dlt, ExtcapOption, print_dlt, print_interfaces, print_options};
pub use flows::{
    FlowsReport, Layout, print_flows, print_flows_csv, print_flows_csv_header, print_flows_json,
};
pub use health::{
    HealthReport, print_health, print_health_csv, print_health_csv_header, print_health_json,
    print_kinds,
};
pub use hex::dump as hex_dump;
pub use interval::{Carried, Interval};
pub use json::JsonPackets;
#[cfg(target_os = "linux")]
pub use lab::{print_down, print_status, print_up};
pub use memory::{
    MemoryReport, print_memory, print_memory_csv, print_memory_csv_header, print_memory_json,
};
pub use messages::{
    CsvMessages, JsonMessages, MessagePrinter, MessagesReport, TableMessages, print_messages,
};
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
