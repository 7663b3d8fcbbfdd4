//! Words for the values of fields.

use std::borrow::Cow;

use super::{ip_service, mtu_bytes};

/// Words for the reason in a REJ (IBTA vol. 1, 12.6.7.2; Linux `ib_cm.h`).
#[must_use]
pub const fn reject_reason(reason: u16) -> Option<&'static str> {
    Some(match reason {
        1 => "no QP available",
        2 => "no EEC available",
        3 => "no resources available",
        4 => "timeout",
        5 => "unsupported request",
        6 => "invalid communication ID",
        7 => "invalid communication instance",
        8 => "invalid service ID: nothing listens there",
        9 => "invalid transport service type",
        10 => "stale connection",
        11 => "RDC does not exist",
        12 => "invalid primary GID",
        13 => "invalid primary LID",
        14 => "invalid primary SL",
        15 => "invalid primary traffic class",
        16 => "invalid primary hop limit",
        17 => "invalid primary packet rate",
        18 => "invalid alternate GID",
        19 => "invalid alternate LID",
        20 => "invalid alternate SL",
        21 => "invalid alternate traffic class",
        22 => "invalid alternate hop limit",
        23 => "invalid alternate packet rate",
        24 => "port and CM redirection",
        25 => "port redirection",
        26 => "invalid path MTU",
        27 => "insufficient responder resources",
        28 => "consumer reject: the application refused",
        29 => "invalid RNR retry count",
        30 => "duplicate local communication ID",
        31 => "invalid class version",
        32 => "invalid flow label",
        33 => "invalid alternate flow label",
        35 => "vendor option not supported",
        _ => return None,
    })
}

pub(super) fn reason_cow(value: u64) -> Option<Cow<'static, str>> {
    reject_reason(value as u16).map(Cow::Borrowed)
}

pub(super) fn mtu_words(value: u64) -> Option<Cow<'static, str>> {
    mtu_bytes(value).map(|bytes| format!("{bytes} bytes").into())
}

pub(super) fn timeout_words(value: u64) -> Option<Cow<'static, str>> {
    // IBTA: 4.096 µs × 2^code, code of five bits.
    let us = 4.096 * (1u64 << (value & 0x1f)) as f64;
    Some(if us < 10_000.0 {
        format!("{us:.1} µs").into()
    } else {
        format!("{:.1} ms", us / 1000.0).into()
    })
}

pub(super) fn service_words(value: u64) -> Option<Cow<'static, str>> {
    let (protocol, port) = ip_service(value)?;
    let protocol: Cow<'static, str> = match protocol {
        6 => "TCP port space".into(),
        17 => "UDP port space".into(),
        p => format!("protocol {p}").into(),
    };
    Some(format!("RDMA-CM, {protocol}, port {port}").into())
}

pub(super) fn transport_words(value: u64) -> Option<Cow<'static, str>> {
    ["RC", "UC", "RD"].get(value as usize).map(|&s| s.into())
}

pub(super) fn refers_words(value: u64) -> Option<Cow<'static, str>> {
    ["REQ", "REP", "no message or LAP"]
        .get(value as usize)
        .map(|&s| s.into())
}

pub(super) fn sidr_words(value: u64) -> Option<Cow<'static, str>> {
    [
        "valid",
        "service ID not supported",
        "rejected by the service",
        "no QP available",
        "redirected",
        "unsupported version",
    ]
    .get(value as usize)
    .map(|&s| s.into())
}

pub(super) fn apr_words(value: u64) -> Option<Cow<'static, str>> {
    [
        "alternate path loaded",
        "invalid communication ID",
        "alternate paths not supported",
        "rejected",
        "redirected",
        "already the current path",
        "invalid QPN or EECN",
        "invalid LID",
        "invalid GID",
        "invalid flow label",
        "invalid traffic class",
        "invalid hop limit",
        "invalid packet rate",
        "invalid SL",
    ]
    .get(value as usize)
    .map(|&s| s.into())
}
