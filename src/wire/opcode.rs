//! The BTH opcode: one row an operation, one table for all transports.
//!
//! An opcode is a transport (top three bits) and an operation (low five bits);
//! IBTA vol. 1, table 38. The table says which extension headers follow, so no
//! parser elsewhere needs to know an opcode by number.

use std::fmt;

/// Transport service: the top three bits of an opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection, 0x00.
    Rc,
    /// Unreliable connection, 0x20.
    Uc,
    /// Reliable datagram, 0x40.
    Rd,
    /// Unreliable datagram, 0x60.
    Ud,
    /// Congestion notification, 0x80.
    Cnp,
    /// Extended reliable connection, 0xa0.
    Xrc,
    /// 0xc0 to 0xff: left to manufacturers.
    Manufacturer,
}

impl Transport {
    /// Short name as used in front of an operation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
            Self::Manufacturer => "manufacturer",
        }
    }

    const fn of(opcode: u8) -> Self {
        match opcode >> 5 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            3 => Self::Ud,
            4 => Self::Cnp,
            5 => Self::Xrc,
            _ => Self::Manufacturer,
        }
    }
}

/// What an operation does, whichever packet of the message this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// SEND, with or without immediate data or invalidation.
    Send,
    /// RDMA WRITE, with or without immediate data.
    Write,
    /// RDMA READ request.
    Read,
    /// RDMA READ response; also answers FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// Acknowledge: ACK, RNR NAK or NAK.
    Acknowledge,
    /// Answer to an atomic, carrying the old value.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Reliable-datagram resynchronisation.
    Resync,
    /// Flush of written memory.
    Flush,
    /// Atomic write of 8 bytes.
    AtomicWrite,
    /// Congestion notification packet.
    Cnp,
    /// An opcode no specification known here assigns.
    Unknown,
}

/// Which packet of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The message is this packet.
    Only,
}

impl Position {
    /// True for the packet a message begins with.
    #[must_use]
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// True for the packet a message ends with.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// An extension header that may follow the BTH, in wire order: whatever set an
/// opcode has, its headers stand in the order of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ext {
    /// Reliable datagram extended transport header, 4 bytes.
    Rdeth,
    /// Datagram extended transport header, 8 bytes.
    Deth,
    /// XRC extended transport header, 4 bytes.
    Xrceth,
    /// Flush extended transport header, 4 bytes.
    Feth,
    /// RDMA extended transport header, 16 bytes.
    Reth,
    /// Atomic extended transport header, 28 bytes.
    AtomicEth,
    /// ACK extended transport header, 4 bytes.
    Aeth,
    /// Atomic acknowledge header, 8 bytes.
    AtomicAckEth,
    /// Immediate data, 4 bytes.
    ImmDt,
    /// Invalidate extended transport header, 4 bytes.
    Ieth,
    /// The 16 reserved bytes of a CNP.
    CnpReserved,
}

impl Ext {
    /// All of them, in wire order.
    pub const ALL: [Self; 11] = [
        Self::Rdeth,
        Self::Deth,
        Self::Xrceth,
        Self::Feth,
        Self::Reth,
        Self::AtomicEth,
        Self::Aeth,
        Self::AtomicAckEth,
        Self::ImmDt,
        Self::Ieth,
        Self::CnpReserved,
    ];

    /// Bytes on the wire.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Rdeth | Self::Xrceth | Self::Feth | Self::Aeth | Self::ImmDt | Self::Ieth => 4,
            Self::Deth | Self::AtomicAckEth => 8,
            Self::Reth | Self::CnpReserved => 16,
            Self::AtomicEth => 28,
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A set of extension headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtSet(u16);

impl ExtSet {
    const fn of(list: &[Ext]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < list.len() {
            bits |= list[i].bit();
            i += 1;
        }
        Self(bits)
    }

    const fn with(self, ext: Ext) -> Self {
        Self(self.0 | ext.bit())
    }

    /// Whether the set holds `ext`.
    #[must_use]
    pub const fn contains(self, ext: Ext) -> bool {
        self.0 & ext.bit() != 0
    }

    /// The headers of the set, in wire order.
    pub fn iter(self) -> impl Iterator<Item = Ext> {
        Ext::ALL.into_iter().filter(move |ext| self.contains(*ext))
    }

    /// Bytes all of them take.
    #[must_use]
    pub const fn size(self) -> usize {
        let mut sum = 0;
        let mut i = 0;
        while i < Ext::ALL.len() {
            if self.contains(Ext::ALL[i]) {
                sum += Ext::ALL[i].size();
            }
            i += 1;
        }
        sum
    }
}

/// What the table says about an opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// Transport service.
    pub transport: Transport,
    /// What it does.
    pub verb: Verb,
    /// Which packet of a message it is.
    pub position: Position,
    /// Name without the transport, as the specification prints it.
    pub name: &'static str,
    /// Extension headers between BTH and payload.
    pub ext: ExtSet,
    /// Bytes of `ext` together.
    pub ext_size: u8,
    /// Whether a payload may follow.
    pub payload: bool,
}

/// One operation: low five bits, name, verb, position, headers of a connected
/// transport, payload, and the transports that define it.
struct Row(u8, &'static str, Verb, Position, &'static [Ext], bool, u8);

const RC: u8 = 1;
const UC: u8 = 2;
const RD: u8 = 4;
const UD: u8 = 8;
const XRC: u8 = 16;
const RELIABLE: u8 = RC | RD | XRC;
const CONNECTED: u8 = RELIABLE | UC;

#[rustfmt::skip]
const ROWS: &[Row] = {
    use {Ext::*, Position::*, Verb::*};
    &[
        Row(0x00, "SEND First",                     Send,              First,  &[],                   true,  CONNECTED),
        Row(0x01, "SEND Middle",                    Send,              Middle, &[],                   true,  CONNECTED),
        Row(0x02, "SEND Last",                      Send,              Last,   &[],                   true,  CONNECTED),
        Row(0x03, "SEND Last with Immediate",       Send,              Last,   &[ImmDt],              true,  CONNECTED),
        Row(0x04, "SEND Only",                      Send,              Only,   &[],                   true,  CONNECTED | UD),
        Row(0x05, "SEND Only with Immediate",       Send,              Only,   &[ImmDt],              true,  CONNECTED | UD),
        Row(0x06, "RDMA WRITE First",               Write,             First,  &[Reth],               true,  CONNECTED),
        Row(0x07, "RDMA WRITE Middle",              Write,             Middle, &[],                   true,  CONNECTED),
        Row(0x08, "RDMA WRITE Last",                Write,             Last,   &[],                   true,  CONNECTED),
        Row(0x09, "RDMA WRITE Last with Immediate", Write,             Last,   &[ImmDt],              true,  CONNECTED),
        Row(0x0a, "RDMA WRITE Only",                Write,             Only,   &[Reth],               true,  CONNECTED),
        Row(0x0b, "RDMA WRITE Only with Immediate", Write,             Only,   &[Reth, ImmDt],        true,  CONNECTED),
        Row(0x0c, "RDMA READ Request",              Read,              Only,   &[Reth],               false, RELIABLE),
        Row(0x0d, "RDMA READ Response First",       ReadResponse,      First,  &[Aeth],               true,  RELIABLE),
        Row(0x0e, "RDMA READ Response Middle",      ReadResponse,      Middle, &[],                   true,  RELIABLE),
        Row(0x0f, "RDMA READ Response Last",        ReadResponse,      Last,   &[Aeth],               true,  RELIABLE),
        Row(0x10, "RDMA READ Response Only",        ReadResponse,      Only,   &[Aeth],               true,  RELIABLE),
        Row(0x11, "Acknowledge",                    Acknowledge,       Only,   &[Aeth],               false, RELIABLE),
        Row(0x12, "ATOMIC Acknowledge",             AtomicAcknowledge, Only,   &[Aeth, AtomicAckEth], false, RELIABLE),
        Row(0x13, "CmpSwap",                        CompareSwap,       Only,   &[AtomicEth],          false, RELIABLE),
        Row(0x14, "FetchAdd",                       FetchAdd,          Only,   &[AtomicEth],          false, RELIABLE),
        Row(0x15, "RESYNC",                         Resync,            Only,   &[],                   false, RD),
        Row(0x16, "SEND Last with Invalidate",      Send,              Last,   &[Ieth],               true,  RC | XRC),
        Row(0x17, "SEND Only with Invalidate",      Send,              Only,   &[Ieth],               true,  RC | XRC),
        Row(0x1c, "FLUSH",                          Flush,             Only,   &[Feth, Reth],         false, RC | RD),
        Row(0x1d, "ATOMIC WRITE",                   AtomicWrite,       Only,   &[Reth],               true,  RC),
    ]
};

const fn mask(transport: Transport) -> u8 {
    match transport {
        Transport::Rc => RC,
        Transport::Uc => UC,
        Transport::Rd => RD,
        Transport::Ud => UD,
        Transport::Xrc => XRC,
        Transport::Cnp | Transport::Manufacturer => 0,
    }
}

const fn info(transport: Transport, row: &Row) -> OpcodeInfo {
    let response = matches!(
        row.2,
        Verb::ReadResponse | Verb::Acknowledge | Verb::AtomicAcknowledge
    );
    let mut ext = ExtSet::of(row.4);
    match transport {
        // RDETH and DETH in front of a request, RDETH alone in front of a
        // response.
        Transport::Rd => {
            ext = ext.with(Ext::Rdeth);
            if !response {
                ext = ext.with(Ext::Deth);
            }
        }
        Transport::Ud => ext = ext.with(Ext::Deth),
        // IBTA annex A14: requests name the shared receive queue.
        Transport::Xrc if !response => ext = ext.with(Ext::Xrceth),
        _ => {}
    }
    OpcodeInfo {
        transport,
        verb: row.2,
        position: row.3,
        name: row.1,
        ext,
        ext_size: ext.size() as u8,
        payload: row.5,
    }
}

const fn lookup(opcode: u8) -> OpcodeInfo {
    let transport = Transport::of(opcode);
    if opcode == 0x81 {
        let ext = ExtSet::of(&[Ext::CnpReserved]);
        return OpcodeInfo {
            transport,
            verb: Verb::Cnp,
            position: Position::Only,
            name: "",
            ext,
            ext_size: ext.size() as u8,
            payload: false,
        };
    }
    let mut i = 0;
    while i < ROWS.len() {
        if ROWS[i].0 == opcode & 0x1f && ROWS[i].6 & mask(transport) != 0 {
            return info(transport, &ROWS[i]);
        }
        i += 1;
    }
    OpcodeInfo {
        transport,
        verb: Verb::Unknown,
        position: Position::Only,
        name: "unknown",
        ext: ExtSet(0),
        ext_size: 0,
        payload: true,
    }
}

static TABLE: [OpcodeInfo; 256] = {
    let mut table = [lookup(0); 256];
    let mut opcode = 1;
    while opcode < 256 {
        table[opcode] = lookup(opcode as u8);
        opcode += 1;
    }
    table
};

/// A BTH opcode. Every value is one: those no specification assigns keep
/// their number and say so.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// RC RDMA WRITE Only, the packet this program was first written to see.
    pub const RC_WRITE_ONLY: Self = Self(0x0a);
    /// RC Acknowledge.
    pub const RC_ACKNOWLEDGE: Self = Self(0x11);
    /// UD SEND Only, which carries management datagrams on queue pair 1.
    pub const UD_SEND_ONLY: Self = Self(0x64);
    /// Congestion notification packet as NICs send it.
    pub const CNP: Self = Self(0x81);

    /// The table's row.
    #[must_use]
    pub const fn info(self) -> &'static OpcodeInfo {
        &TABLE[self.0 as usize]
    }

    /// True for packets that answer a request (they travel from responder to
    /// requester): READ responses and acknowledgements of every kind.
    #[must_use]
    pub fn is_response(self) -> bool {
        matches!(
            self.info().verb,
            Verb::ReadResponse | Verb::Acknowledge | Verb::AtomicAcknowledge
        )
    }

    /// The name's two parts, transport and operation; either may be empty.
    /// Unknown opcodes are named by [`fmt::Display`] with their number.
    #[must_use]
    pub fn name_parts(self) -> (&'static str, &'static str) {
        let info = self.info();
        (info.transport.name(), info.name)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transport, name) = self.name_parts();
        match self.info().verb {
            Verb::Unknown => f.pad(&format!("{transport} unknown 0x{:02x}", self.0)),
            Verb::Cnp => f.pad(transport),
            _ if f.width().is_some() => f.pad(&format!("{transport} {name}")),
            _ => write!(f, "{transport} {name}"),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode(0x{:02x} {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_knows_every_assigned_opcode() {
        // Counted by hand from IBTA table 38, annex A14 and the flush and
        // atomic-write additions.
        let known = |t: Transport| {
            (0..=255u8)
                .filter(|o| {
                    let info = Opcode(*o).info();
                    info.transport == t && info.verb != Verb::Unknown
                })
                .count()
        };
        assert_eq!(known(Transport::Rc), 25);
        assert_eq!(known(Transport::Uc), 12);
        assert_eq!(known(Transport::Rd), 23);
        assert_eq!(known(Transport::Ud), 2);
        assert_eq!(known(Transport::Xrc), 23);
        assert_eq!(known(Transport::Cnp), 1);
        assert_eq!(known(Transport::Manufacturer), 0);
    }

    #[test]
    fn headers_follow_the_transport() {
        let ext = |o: u8| Opcode(o).info().ext.iter().collect::<Vec<_>>();
        assert_eq!(ext(0x0a), [Ext::Reth]);
        assert_eq!(ext(0x0b), [Ext::Reth, Ext::ImmDt]);
        assert_eq!(ext(0x2a), [Ext::Reth]);
        assert_eq!(ext(0x4a), [Ext::Rdeth, Ext::Deth, Ext::Reth]);
        assert_eq!(ext(0x50), [Ext::Rdeth, Ext::Aeth]);
        assert_eq!(ext(0x64), [Ext::Deth]);
        assert_eq!(ext(0x65), [Ext::Deth, Ext::ImmDt]);
        assert_eq!(ext(0xaa), [Ext::Xrceth, Ext::Reth]);
        assert_eq!(ext(0xb1), [Ext::Aeth]);
        assert_eq!(ext(0x12), [Ext::Aeth, Ext::AtomicAckEth]);
        assert_eq!(ext(0x1c), [Ext::Feth, Ext::Reth]);
        assert_eq!(Opcode(0x4a).info().ext_size, 28);
    }

    #[test]
    fn unknown_opcodes_keep_their_number() {
        assert_eq!(Opcode(0x15).to_string(), "RC unknown 0x15");
        assert_eq!(Opcode(0xc3).to_string(), "manufacturer unknown 0xc3");
        assert_eq!(Opcode(0x80).to_string(), "CNP unknown 0x80");
        assert_eq!(Opcode(0x0a).to_string(), "RC RDMA WRITE Only");
        assert_eq!(Opcode::CNP.to_string(), "CNP");
    }
}
