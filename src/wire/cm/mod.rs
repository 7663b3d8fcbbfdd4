//! Communication management messages: how connections are set up and torn
//! down (IBTA vol. 1, chapter 12; offsets as in Linux `ibta_vol1_c12.h`).
//!
//! Each message is one table: the fields in wire order, some with a [`Role`]
//! by which [`CmMessage`] answers questions that several messages share.

mod words;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use words::reject_reason;

use super::{
    mad::MadHeader,
    opcode::Opcode,
    types::{PKey, Psn, QpNumber},
};
use crate::layout::{Field, Show};
use words::{
    apr_words, mtu_words, reason_cow, refers_words, service_words, sidr_words, timeout_words,
    transport_words,
};

/// What a field means, whichever message it stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Communication ID of the sender (request ID in SIDR messages).
    LocalCommId,
    /// Communication ID of the receiver.
    RemoteCommId,
    /// Service the connection is for.
    ServiceId,
    /// The sender's queue pair (the receiver's in DREQ and LAP).
    Qpn,
    /// First PSN the sender expects to receive: it is what the *other* side
    /// will send with (Linux `cm.c`).
    StartingPsn,
    /// Partition key.
    PKey,
    /// Queue key.
    QKey,
    /// Path MTU code.
    PathMtu,
    /// GID of the sender.
    LocalGid,
    /// GID of the receiver.
    RemoteGid,
    /// Why a request was rejected.
    RejectReason,
    /// Which message was rejected or delayed.
    Refers,
    /// Status of a SIDR or alternate-path reply.
    Status,
    /// Retries on timeout.
    RetryCount,
    /// Retries on RNR.
    RnrRetryCount,
}

/// Layout of one message.
#[derive(Debug)]
pub struct CmLayout {
    /// Attribute ID in the MAD header.
    pub attribute_id: u16,
    /// Short name: REQ, REP, …
    pub name: &'static str,
    /// Fields in wire order, offsets from the end of the MAD header.
    pub fields: &'static [(Option<Role>, Field)],
    /// Where the private data begins, bytes from the end of the MAD header.
    pub private_data: usize,
}

/// A field without a role; offsets in bytes and bits.
const fn f(
    name: &'static str,
    byte: u16,
    bit: u16,
    width: u16,
    show: Show,
) -> (Option<Role>, Field) {
    (None, Field::new(name, byte * 8 + bit, width, show))
}

/// A field with a role, on a byte boundary.
const fn r(
    role: Role,
    name: &'static str,
    byte: u16,
    width: u16,
    show: Show,
) -> (Option<Role>, Field) {
    (Some(role), Field::new(name, byte * 8, width, show))
}

const LOCAL_ID: (Option<Role>, Field) = r(
    Role::LocalCommId,
    "Local communication ID",
    0,
    32,
    Show::Hex,
);
const REMOTE_ID: (Option<Role>, Field) = r(
    Role::RemoteCommId,
    "Remote communication ID",
    4,
    32,
    Show::Hex,
);
const TIMEOUT: Show = Show::Words(timeout_words);

#[rustfmt::skip]
static LAYOUTS: &[CmLayout] = &[
    CmLayout { attribute_id: 0x10, name: "REQ", private_data: 140, fields: &[
        LOCAL_ID,
        r(Role::ServiceId, "Service ID", 8, 64, Show::Words(service_words)),
        f("Local CA GUID", 16, 0, 64, Show::Hex),
        r(Role::QKey, "Local Q_Key", 28, 32, Show::Hex),
        r(Role::Qpn, "Local QPN", 32, 24, Show::Hex),
        f("Responder resources", 35, 0, 8, Show::Dec),
        f("Local EECN", 36, 0, 24, Show::Hex),
        f("Initiator depth", 39, 0, 8, Show::Dec),
        f("Remote EECN", 40, 0, 24, Show::Hex),
        f("Remote CM response timeout", 43, 0, 5, TIMEOUT),
        f("Transport service type", 43, 5, 2, Show::Words(transport_words)),
        f("End-to-end flow control", 43, 7, 1, Show::Flag),
        r(Role::StartingPsn, "Starting PSN", 44, 24, Show::Hex),
        f("Local CM response timeout", 47, 0, 5, TIMEOUT),
        (Some(Role::RetryCount), Field::new("Retry count", 47 * 8 + 5, 3, Show::Dec)),
        r(Role::PKey, "Partition key", 48, 16, Show::Hex),
        r(Role::PathMtu, "Path packet payload MTU", 50, 4, Show::Words(mtu_words)),
        f("RDC exists", 50, 4, 1, Show::Flag),
        (Some(Role::RnrRetryCount), Field::new("RNR retry count", 50 * 8 + 5, 3, Show::Dec)),
        f("Max CM retries", 51, 0, 4, Show::Dec),
        f("SRQ", 51, 4, 1, Show::Flag),
        f("Extended transport type", 51, 5, 3, Show::Dec),
        f("Primary local port LID", 52, 0, 16, Show::Hex),
        f("Primary remote port LID", 54, 0, 16, Show::Hex),
        r(Role::LocalGid, "Primary local port GID", 56, 128, Show::Ipv6),
        r(Role::RemoteGid, "Primary remote port GID", 72, 128, Show::Ipv6),
        f("Primary flow label", 88, 0, 20, Show::Hex),
        f("Primary packet rate", 91, 2, 6, Show::Dec),
        f("Primary traffic class", 92, 0, 8, Show::Hex),
        f("Primary hop limit", 93, 0, 8, Show::Dec),
        f("Primary SL", 94, 0, 4, Show::Dec),
        f("Primary subnet local", 94, 4, 1, Show::Flag),
        f("Primary local ACK timeout", 95, 0, 5, TIMEOUT),
        f("Alternate local port LID", 96, 0, 16, Show::Hex),
        f("Alternate remote port LID", 98, 0, 16, Show::Hex),
        f("Alternate local port GID", 100, 0, 128, Show::Ipv6),
        f("Alternate remote port GID", 116, 0, 128, Show::Ipv6),
        f("Alternate flow label", 132, 0, 20, Show::Hex),
        f("Alternate packet rate", 135, 2, 6, Show::Dec),
        f("Alternate traffic class", 136, 0, 8, Show::Hex),
        f("Alternate hop limit", 137, 0, 8, Show::Dec),
        f("Alternate SL", 138, 0, 4, Show::Dec),
        f("Alternate subnet local", 138, 4, 1, Show::Flag),
        f("Alternate local ACK timeout", 139, 0, 5, TIMEOUT),
    ]},
    CmLayout { attribute_id: 0x11, name: "MRA", private_data: 10, fields: &[
        LOCAL_ID, REMOTE_ID,
        r(Role::Refers, "Message MRAed", 8, 2, Show::Words(refers_words)),
        f("Service timeout", 9, 0, 5, TIMEOUT),
    ]},
    CmLayout { attribute_id: 0x12, name: "REJ", private_data: 84, fields: &[
        LOCAL_ID, REMOTE_ID,
        r(Role::Refers, "Message rejected", 8, 2, Show::Words(refers_words)),
        f("Reject info length", 9, 0, 7, Show::Dec),
        r(Role::RejectReason, "Reason", 10, 16, Show::Words(reason_cow)),
        f("Additional reject information", 12, 0, 576, Show::Bytes),
    ]},
    CmLayout { attribute_id: 0x13, name: "REP", private_data: 36, fields: &[
        LOCAL_ID, REMOTE_ID,
        r(Role::QKey, "Local Q_Key", 8, 32, Show::Hex),
        r(Role::Qpn, "Local QPN", 12, 24, Show::Hex),
        f("Local EE context", 16, 0, 24, Show::Hex),
        r(Role::StartingPsn, "Starting PSN", 20, 24, Show::Hex),
        f("Responder resources", 24, 0, 8, Show::Dec),
        f("Initiator depth", 25, 0, 8, Show::Dec),
        f("Target ACK delay", 26, 0, 5, TIMEOUT),
        f("Failover accepted", 26, 5, 2, Show::Dec),
        f("End-to-end flow control", 26, 7, 1, Show::Flag),
        r(Role::RnrRetryCount, "RNR retry count", 27, 3, Show::Dec),
        f("SRQ", 27, 3, 1, Show::Flag),
        f("Local CA GUID", 28, 0, 64, Show::Hex),
    ]},
    CmLayout { attribute_id: 0x14, name: "RTU", private_data: 8, fields: &[LOCAL_ID, REMOTE_ID] },
    CmLayout { attribute_id: 0x15, name: "DREQ", private_data: 12, fields: &[
        LOCAL_ID, REMOTE_ID,
        r(Role::Qpn, "Remote QPN", 8, 24, Show::Hex),
    ]},
    CmLayout { attribute_id: 0x16, name: "DREP", private_data: 8, fields: &[LOCAL_ID, REMOTE_ID] },
    CmLayout { attribute_id: 0x17, name: "SIDR REQ", private_data: 16, fields: &[
        r(Role::LocalCommId, "Request ID", 0, 32, Show::Hex),
        r(Role::PKey, "Partition key", 4, 16, Show::Hex),
        r(Role::ServiceId, "Service ID", 8, 64, Show::Words(service_words)),
    ]},
    CmLayout { attribute_id: 0x18, name: "SIDR REP", private_data: 96, fields: &[
        r(Role::LocalCommId, "Request ID", 0, 32, Show::Hex),
        r(Role::Status, "Status", 4, 8, Show::Words(sidr_words)),
        f("Additional information length", 5, 0, 8, Show::Dec),
        r(Role::Qpn, "QPN", 8, 24, Show::Hex),
        r(Role::ServiceId, "Service ID", 12, 64, Show::Words(service_words)),
        r(Role::QKey, "Q_Key", 20, 32, Show::Hex),
        f("Additional information", 24, 0, 576, Show::Bytes),
    ]},
    CmLayout { attribute_id: 0x19, name: "LAP", private_data: 64, fields: &[
        LOCAL_ID, REMOTE_ID,
        r(Role::Qpn, "Remote QPN", 12, 24, Show::Hex),
        f("Remote CM response timeout", 15, 0, 5, TIMEOUT),
        f("Alternate local port LID", 20, 0, 16, Show::Hex),
        f("Alternate remote port LID", 22, 0, 16, Show::Hex),
        r(Role::LocalGid, "Alternate local port GID", 24, 128, Show::Ipv6),
        r(Role::RemoteGid, "Alternate remote port GID", 40, 128, Show::Ipv6),
        f("Alternate flow label", 56, 0, 20, Show::Hex),
        f("Alternate traffic class", 59, 0, 8, Show::Hex),
        f("Alternate hop limit", 60, 0, 8, Show::Dec),
        f("Alternate packet rate", 61, 2, 6, Show::Dec),
        f("Alternate SL", 62, 0, 4, Show::Dec),
        f("Alternate subnet local", 62, 4, 1, Show::Flag),
        f("Alternate local ACK timeout", 63, 0, 5, TIMEOUT),
    ]},
    CmLayout { attribute_id: 0x1a, name: "APR", private_data: 84, fields: &[
        LOCAL_ID, REMOTE_ID,
        f("Additional information length", 8, 0, 8, Show::Dec),
        r(Role::Status, "AP status", 9, 8, Show::Words(apr_words)),
        f("Additional information", 12, 0, 576, Show::Bytes),
    ]},
];

/// A communication management message, borrowed from the packet. Cut
/// messages answer `None` for what was cut off.
#[derive(Debug, Clone, Copy)]
pub struct CmMessage<'a> {
    /// The MAD header in front of it.
    pub mad: MadHeader,
    body: &'a [u8],
}

/// The RDMA-CM header in the private data of a REQ or SIDR REQ whose service
/// ID names an IP port (IBTA annex A11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpCm {
    /// IP address of the side that connects.
    pub src: IpAddr,
    /// IP address it connects to.
    pub dst: IpAddr,
    /// Port of the side that connects.
    pub sport: u16,
}

impl<'a> CmMessage<'a> {
    /// Recognises a CM message in the payload of a packet: UD SEND Only to
    /// queue pair 1, MAD class 7.
    #[must_use]
    pub fn find(opcode: Opcode, dest_qp: QpNumber, payload: &'a [u8]) -> Option<Self> {
        if opcode != Opcode::UD_SEND_ONLY || dest_qp != QpNumber::GSI {
            return None;
        }
        let (body, mad) = MadHeader::parse(payload).ok()?;
        (mad.class == MadHeader::CLASS_CM).then_some(Self { mad, body })
    }

    /// The message's table, or `None` for an attribute this version does not
    /// know.
    #[must_use]
    pub fn layout(&self) -> Option<&'static CmLayout> {
        LAYOUTS
            .iter()
            .find(|layout| layout.attribute_id == self.mad.attribute_id)
    }

    /// Bytes after the MAD header.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    fn field(&self, role: Role) -> Option<&'static Field> {
        self.layout()?
            .fields
            .iter()
            .find(|(r, _)| *r == Some(role))
            .map(|(_, field)| field)
    }

    /// Value of the field with this role, if the message has one.
    #[must_use]
    pub fn get(&self, role: Role) -> Option<u64> {
        self.field(role)?.get(self.body)
    }

    /// GID with this role; IPv4 ones are mapped (`::ffff:a.b.c.d`).
    #[must_use]
    pub fn gid(&self, role: Role) -> Option<Ipv6Addr> {
        let bytes: [u8; 16] = self.field(role)?.bytes(self.body).try_into().ok()?;
        Some(bytes.into())
    }

    /// The sender's queue pair (the receiver's in DREQ and LAP).
    #[must_use]
    pub fn qpn(&self) -> Option<QpNumber> {
        self.get(Role::Qpn).map(|v| QpNumber::new(v as u32))
    }

    /// First PSN the sender of this message expects to *receive*.
    #[must_use]
    pub fn starting_psn(&self) -> Option<Psn> {
        self.get(Role::StartingPsn).map(|v| Psn::new(v as u32))
    }

    /// Partition key.
    #[must_use]
    pub fn pkey(&self) -> Option<PKey> {
        self.get(Role::PKey).map(|v| PKey::new(v as u16))
    }

    /// Path MTU in bytes; `None` too for a code no specification assigns.
    #[must_use]
    pub fn path_mtu(&self) -> Option<u16> {
        mtu_bytes(self.get(Role::PathMtu)?)
    }

    /// Private data, up to the end of what was captured.
    #[must_use]
    pub fn private_data(&self) -> &'a [u8] {
        let start = self.layout().map_or(0, |layout| layout.private_data);
        self.body.get(start..).unwrap_or_default()
    }

    /// The RDMA-CM header of a REQ or SIDR REQ, when its service ID is in the
    /// IP range.
    #[must_use]
    pub fn ip_cm(&self) -> Option<IpCm> {
        let name = self.layout()?.name;
        if !matches!(name, "REQ" | "SIDR REQ") || ip_service(self.get(Role::ServiceId)?).is_none() {
            return None;
        }
        let header: &[u8; 36] = self.private_data().first_chunk()?;
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 16] = header[at..at + 16].try_into().ok()?;
            match header[1] >> 4 {
                4 => Some(Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]).into()),
                6 => Some(Ipv6Addr::from(bytes).into()),
                _ => None,
            }
        };
        Some(IpCm {
            src: address(4)?,
            dst: address(20)?,
            sport: u16::from_be_bytes([header[2], header[3]]),
        })
    }

    /// Fields of the RDMA-CM header in the private data, offsets from its
    /// start; `None` where [`CmMessage::ip_cm`] finds no such header.
    #[must_use]
    pub fn ip_cm_fields(&self) -> Option<&'static [Field]> {
        Some(match self.ip_cm()?.src {
            IpAddr::V4(_) => IP_CM_V4,
            IpAddr::V6(_) => IP_CM_V6,
        })
    }
}

const IP_CM_V4: &[Field] = &[
    Field::new("Major version", 0, 4, Show::Dec),
    Field::new("Minor version", 4, 4, Show::Dec),
    Field::new("IP version", 8, 4, Show::Dec),
    Field::new("Source port", 16, 16, Show::Dec),
    Field::new("Source IP", 128, 32, Show::Ipv4),
    Field::new("Destination IP", 256, 32, Show::Ipv4),
];

const IP_CM_V6: &[Field] = &[
    Field::new("Major version", 0, 4, Show::Dec),
    Field::new("Minor version", 4, 4, Show::Dec),
    Field::new("IP version", 8, 4, Show::Dec),
    Field::new("Source port", 16, 16, Show::Dec),
    Field::new("Source IP", 32, 128, Show::Ipv6),
    Field::new("Destination IP", 160, 128, Show::Ipv6),
];

/// Splits a service ID of the RDMA IP CM service into IP protocol and
/// destination port: `0x0000000001PPDDDD` (IBTA annex A11).
#[must_use]
pub const fn ip_service(service_id: u64) -> Option<(u8, u16)> {
    if service_id >> 24 == 1 {
        Some(((service_id >> 16) as u8, service_id as u16))
    } else {
        None
    }
}

/// Bytes of a path MTU code (IBTA vol. 1, 12.7.26).
#[must_use]
pub const fn mtu_bytes(code: u64) -> Option<u16> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(attribute: u8, set: &[(usize, &[u8])]) -> Vec<u8> {
        let mut mad = vec![0u8; 256];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = attribute;
        for (at, bytes) in set {
            mad[24 + at..24 + at + bytes.len()].copy_from_slice(bytes);
        }
        mad
    }

    fn find(mad: &[u8]) -> CmMessage<'_> {
        CmMessage::find(Opcode::UD_SEND_ONLY, QpNumber::GSI, mad).unwrap()
    }

    #[test]
    fn fields_do_not_overlap_and_stay_inside() {
        for layout in LAYOUTS {
            let mut end = 0;
            for (_, field) in layout.fields {
                assert!(field.bit >= end, "{} {}", layout.name, field.name);
                end = field.bit + field.width;
            }
            assert!(
                usize::from(end) <= layout.private_data * 8,
                "{}",
                layout.name
            );
        }
    }

    #[test]
    fn req_of_the_rdma_cm() {
        let mut private = vec![0, 0x40, 0xc3, 0x51];
        private.extend([0; 12]);
        private.extend([10, 0, 0, 2]);
        private.extend([0; 12]);
        private.extend([10, 0, 0, 1]);
        let mad = message(
            0x10,
            &[
                (0, &[1, 2, 3, 4]),
                (8, &[0, 0, 0, 0, 1, 6, 0x1c, 0x23]),
                (32, &[0, 0, 0x1a]),
                (44, &[0xab, 0xcd, 0xef]),
                (50, &[0x37]),
                (140, &private),
            ],
        );
        let req = find(&mad);
        assert_eq!(req.layout().unwrap().name, "REQ");
        assert_eq!(req.get(Role::LocalCommId), Some(0x01020304));
        assert_eq!(req.get(Role::RemoteCommId), None);
        assert_eq!(req.qpn().unwrap().get(), 0x1a);
        assert_eq!(req.starting_psn().unwrap().get(), 0xabcdef);
        assert_eq!(req.path_mtu(), Some(1024));
        assert_eq!(req.get(Role::RnrRetryCount), Some(7));
        let ip = req.ip_cm().unwrap();
        assert_eq!(
            (ip.src.to_string(), ip.dst.to_string()),
            ("10.0.0.2".into(), "10.0.0.1".into())
        );
        assert_eq!(ip.sport, 0xc351);
        assert_eq!(
            service_words(0x0000_0000_0106_1c23).unwrap(),
            "RDMA-CM, TCP port space, port 7203"
        );
    }

    #[test]
    fn rej_has_its_reason_in_words() {
        let mad = message(0x12, &[(8, &[0x40]), (10, &[0, 8])]);
        let rej = find(&mad);
        assert_eq!(rej.get(Role::Refers), Some(1));
        assert_eq!(
            reject_reason(rej.get(Role::RejectReason).unwrap() as u16),
            Some("invalid service ID: nothing listens there")
        );
    }

    #[test]
    fn cut_and_unknown_messages_answer_none() {
        let mad = message(0x13, &[(12, &[0, 0, 0x1b])]);
        assert_eq!(find(&mad).qpn().unwrap().get(), 0x1b);
        assert_eq!(find(&mad[..24 + 14]).qpn(), None, "cut inside the QPN");
        assert!(find(&message(0x77, &[])).layout().is_none());
        assert!(find(&message(0x77, &[])).qpn().is_none());
        let other = QpNumber::new(2);
        assert!(CmMessage::find(Opcode::UD_SEND_ONLY, other, &mad).is_none());
        assert!(CmMessage::find(Opcode(0x04), QpNumber::GSI, &mad).is_none());
        for len in 0..mad.len() {
            if let Some(cm) = CmMessage::find(Opcode::UD_SEND_ONLY, QpNumber::GSI, &mad[..len]) {
                let _ = (cm.ip_cm(), cm.gid(Role::LocalGid), cm.private_data());
            }
        }
    }
}
