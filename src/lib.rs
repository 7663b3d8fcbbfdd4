//! Captures and dissects RoCEv2: RDMA over UDP port 4791.
//!
//! The path of the data is `source → frame → wire → track → report`; each
//! arrow is one function that can be called with bytes, and nothing to the
//! right is imported by anything to the left.
//!
//! | module | from | to |
//! |---|---|---|
//! | [`source`] | files, pipes | batches of [`source::RawPacket`] |
//! | [`frame`] | a raw packet | [`frame::Datagram`]: addresses and the InfiniBand bytes |
//! | [`wire`] | a datagram | [`wire::Packet`]: BTH, extension headers, payload, ICRC |
//! | [`track`] | packets in order | flows, messages, connections, memory |
//! | [`health`] | what a tracker tells and counts | findings: what is wrong, with evidence |
//! | [`compare`] | packets of several points | what was lost or changed between them |
//! | [`rdma`] | RDMA devices of this machine | a ledger of what was posted |
//! | `host`, `lab`, `doctor` | this machine (Linux) | what is set up, what is missing |
//! | [`report`] | packets, flows, messages, memory | tables, JSON, CSV |
//!
//! One packet at a time:
//!
//! ```
//! use roce_sniff::{dissect, source::LinkType};
//!
//! # let hex = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a";
//! # let frame: Vec<u8> = (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
//! let packet = dissect(&frame, LinkType::ETHERNET).expect("a RoCE packet");
//! assert_eq!(packet.bth.opcode.to_string(), "CNP");
//! assert_eq!(packet.bth.dest_qp.get(), 0x118);
//! assert_eq!(packet.icrc.name(), "valid");
//! ```

pub mod bypass;
pub mod compare;
#[cfg(target_os = "linux")]
pub mod doctor;
pub mod filter;
pub mod frame;
pub mod health;
#[cfg(target_os = "linux")]
pub mod host;
#[cfg(target_os = "linux")]
pub mod lab;
pub mod layout;
pub mod pipeline;
pub mod rdma;
pub mod report;
pub mod source;
pub mod track;
pub mod wire;
mod words;

use frame::{FrameOptions, Skip};
use source::{LinkType, RawPacket};
use wire::Packet;

/// Decodes one whole frame with default options and verifies its ICRC.
///
/// # Errors
/// [`Skip`] says why the frame holds no RoCE packet, or where it was cut or
/// malformed before the end of the BTH.
pub fn dissect(frame: &[u8], link: LinkType) -> Result<Packet<'_>, Skip> {
    let raw = RawPacket {
        input: 0,
        frame: 1,
        ts_ns: 0,
        len: frame.len() as u32,
        link,
        path: None,
        data: frame,
    };
    decode(&raw, &Options::default())
}

/// What to decode and how far.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What to take for RoCE.
    pub frame: FrameOptions,
    /// Whether to compute invariant CRCs.
    pub verify_icrc: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            frame: FrameOptions::default(),
            verify_icrc: true,
        }
    }
}

/// Decodes a captured packet.
///
/// # Errors
/// As [`dissect`].
#[inline]
pub fn decode<'a>(raw: &RawPacket<'a>, options: &Options) -> Result<Packet<'a>, Skip> {
    wire::parse(
        frame::walk(raw, options.frame, &mut ())?,
        options.verify_icrc,
    )
}
