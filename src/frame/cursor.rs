//! A place in a frame that knows two ends: where the captured bytes of the
//! current packet end, and where its length fields say it ends.

use super::{Layer, Reason, Skip};

pub(super) struct Cursor<'a> {
    pub frame: &'a [u8],
    /// Offset of the next byte; never past `frame.len()`.
    pub at: usize,
    /// End of the captured bytes that belong to the current packet: link-layer
    /// padding and what follows an outer packet are not part of an inner one.
    captured: usize,
    /// End of the current packet by its own length fields; past `captured`
    /// when something cut it: the capture, a mirror port before it, or a tool
    /// that rewrote the record's length afterwards.
    pub end: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(frame: &'a [u8], wire_len: usize) -> Self {
        Self {
            frame,
            at: 0,
            captured: frame.len(),
            end: wire_len.max(frame.len()),
        }
    }

    /// Captured bytes of the current packet from here on.
    pub fn rest(&self) -> &'a [u8] {
        &self.frame[self.at..self.captured.max(self.at)]
    }

    pub fn skip(&self, reason: Reason, layer: Layer) -> Skip {
        Skip {
            reason,
            layer,
            offset: self.at,
        }
    }

    /// The next `n` bytes without passing them.
    pub fn peek(&self, layer: Layer, n: usize) -> Result<&'a [u8], Skip> {
        self.rest().get(..n).ok_or_else(|| {
            // The capture is to blame when the packet itself is long enough.
            let cut = self.end >= self.at + n;
            let reason = if cut {
                Reason::Truncated
            } else {
                Reason::Malformed
            };
            self.skip(reason, layer)
        })
    }

    /// The next `n` bytes, passed.
    pub fn take(&mut self, layer: Layer, n: usize) -> Result<&'a [u8], Skip> {
        let bytes = self.peek(layer, n)?;
        self.at += n;
        Ok(bytes)
    }

    /// The current packet is `len` bytes from `start` on, by its own length
    /// field.
    pub fn limit(&mut self, start: usize, len: usize) {
        self.end = start + len;
        self.captured = self.captured.min(self.end);
    }
}
