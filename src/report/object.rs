//! JSON objects appended to a byte buffer, without allocating.

use std::net::IpAddr;

use super::text::{Number, dec, hex, ip};
use crate::wire::types::RKey;

/// The name of a member as it stands in front of its value: `,"name":`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(&'static str);

impl Key {
    #[inline]
    pub(super) const fn quoted(text: &'static str) -> Self {
        Self(text)
    }
}

/// A [`Key`], put together while compiling: a copy of known length.
macro_rules! key {
    ($name:literal) => {
        $crate::report::object::Key::quoted(concat!(",\"", $name, "\":"))
    };
}
pub(super) use key;

/// Writes the members of one object: remembers only whether a comma is due.
pub(super) struct Object<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl<'o> Object<'o> {
    pub(super) fn open(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    #[inline]
    fn key(&mut self, key: Key) {
        let text = key.0.as_bytes();
        if self.first {
            self.first = false;
            self.out.extend_from_slice(&text[1..]);
        } else {
            self.out.extend_from_slice(text);
        }
    }

    #[inline]
    pub(super) fn num(&mut self, key: Key, value: impl Number) {
        self.key(key);
        dec(self.out, value);
    }

    /// A number, or null.
    #[inline]
    pub(super) fn opt_num(&mut self, key: Key, value: Option<impl Number>) {
        match value {
            Some(value) => self.num(key, value),
            None => self.null(key),
        }
    }

    #[inline]
    pub(super) fn null(&mut self, key: Key) {
        self.key(key);
        self.out.extend_from_slice(b"null");
    }

    #[inline]
    pub(super) fn flag(&mut self, key: Key, value: bool) {
        self.key(key);
        self.out
            .extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// A string that needs no escaping.
    #[inline]
    pub(super) fn word(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) {
        self.key(key);
        self.out.push(b'"');
        write(self.out);
        self.out.push(b'"');
    }

    #[inline]
    pub(super) fn str(&mut self, key: Key, value: &str) {
        self.word(key, |out| out.extend_from_slice(value.as_bytes()));
    }

    #[inline]
    pub(super) fn hex64(&mut self, key: Key, value: u64) {
        self.word(key, |out| hex(out, value, 16));
    }

    #[inline]
    pub(super) fn rkey(&mut self, key: Key, value: RKey) {
        self.word(key, |out| hex(out, value.get().into(), 8));
    }

    #[inline]
    pub(super) fn address(&mut self, key: Key, value: IpAddr) {
        self.word(key, |out| ip(out, value));
    }

    /// Any string, escaped as RFC 8259 asks.
    pub(super) fn text(&mut self, key: Key, value: &str) {
        self.word(key, |out| {
            for c in value.chars() {
                match c {
                    '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
                    c if u32::from(c) < 0x20 => {
                        out.extend_from_slice(b"\\u00");
                        out.extend_from_slice(format!("{:02x}", u32::from(c)).as_bytes());
                    }
                    c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        });
    }

    #[inline]
    pub(super) fn object(&mut self, key: Key, write: impl FnOnce(&mut Object<'_>)) {
        self.key(key);
        let mut inner = Object::open(self.out);
        write(&mut inner);
        inner.close();
    }

    pub(super) fn list<T: Copy>(&mut self, key: Key, items: &[T], write: impl Fn(&mut Vec<u8>, T)) {
        self.key(key);
        self.out.push(b'[');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push(b',');
            }
            write(self.out, *item);
        }
        self.out.push(b']');
    }

    pub(super) fn close(self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let mut out = Vec::new();
        let mut o = Object::open(&mut out);
        o.text(key!("file"), "a\"b\\c\nd→");
        o.close();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["file"], "a\"b\\c\nd→");
    }
}
