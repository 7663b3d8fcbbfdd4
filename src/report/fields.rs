//! Fields of a CSV row appended to a byte buffer (RFC 4180).

use std::{fmt::Display, io::Write, net::IpAddr};

use super::text::{Number, dec, hex, ip};
use crate::wire::types::RKey;

/// One row: every call writes one field and the comma before it.
pub(super) struct Fields<'o>(pub(super) &'o mut Vec<u8>);

impl Fields<'_> {
    #[inline]
    pub(super) fn num(&mut self, value: impl Number) {
        self.0.push(b',');
        dec(self.0, value);
    }

    #[inline]
    pub(super) fn opt_num(&mut self, value: Option<impl Number>) {
        self.0.push(b',');
        if let Some(value) = value {
            dec(self.0, value);
        }
    }

    pub(super) fn opt_float(&mut self, value: Option<f64>) {
        self.0.push(b',');
        if let Some(value) = value {
            let _ = write!(self.0, "{value}");
        }
    }

    /// `name=count` for each, semicolons between.
    pub(super) fn counts(&mut self, items: impl Iterator<Item = (impl Display, u64)>) {
        self.0.push(b',');
        for (i, (name, count)) in items.enumerate() {
            let comma = if i > 0 { ";" } else { "" };
            let _ = write!(self.0, "{comma}{name}={count}");
        }
    }

    #[inline]
    pub(super) fn hex64(&mut self, value: Option<u64>) {
        self.0.push(b',');
        if let Some(value) = value {
            hex(self.0, value, 16);
        }
    }

    #[inline]
    pub(super) fn rkey(&mut self, value: Option<RKey>) {
        self.0.push(b',');
        if let Some(value) = value {
            hex(self.0, value.get().into(), 8);
        }
    }

    #[inline]
    pub(super) fn flag(&mut self, value: bool) {
        self.0
            .extend_from_slice(if value { b",true" } else { b",false" });
    }

    #[inline]
    pub(super) fn str(&mut self, value: &str) {
        self.0.push(b',');
        if !value.is_empty() {
            self.0.extend_from_slice(value.as_bytes());
        }
    }

    pub(super) fn list<T: Copy>(&mut self, items: &[T], write: impl Fn(&mut Vec<u8>, T)) {
        self.0.push(b',');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.0.push(b' ');
            }
            write(self.0, *item);
        }
    }

    #[inline]
    pub(super) fn address(&mut self, address: IpAddr) {
        self.0.push(b',');
        ip(self.0, address);
    }

    /// Text that may hold anything: quoted when it must be.
    pub(super) fn text(&mut self, text: &str) {
        self.0.push(b',');
        if text.contains(['"', ',', '\n', '\r']) {
            self.0.push(b'"');
            self.0
                .extend_from_slice(text.replace('"', "\"\"").as_bytes());
            self.0.push(b'"');
        } else {
            self.0.extend_from_slice(text.as_bytes());
        }
    }
}
