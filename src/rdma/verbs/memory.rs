//! Memory that a device reads and writes behind the compiler's back.
#![allow(unsafe_code)]

use std::{
    ptr::{self, NonNull},
    sync::atomic::{Ordering, fence},
};

use super::error::{Fault, Step};

/// Zeroed memory of whole pages.
///
/// There is never a reference to its bytes: they are read and written a
/// volatile word at a time, through the pointer.
#[derive(Debug)]
pub(super) struct Memory {
    words: NonNull<u64>,
    /// Bytes, a whole number of words.
    len: usize,
}

// SAFETY: the memory belongs to this value alone, and writing it takes
// `&mut self`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Gets `len` bytes from the system, at least one word.
    pub fn new(len: usize) -> Result<Self, Fault> {
        let len = len.max(1).next_multiple_of(8);
        // SAFETY: an anonymous mapping where the system likes; nothing of
        // ours is touched.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let words = NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED);
        let words = words.ok_or_else(|| Fault::last(Step::Allocate))?;
        // A child process that shared these pages would have the device write
        // into its copy on older kernels. Nothing is lost where this fails.
        // SAFETY: exactly the mapping just made.
        unsafe { libc::madvise(memory, len, libc::MADV_DONTFORK) };
        Ok(Self { words, len })
    }

    pub const fn as_ptr(&self) -> *mut libc::c_void {
        self.words.as_ptr().cast()
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    fn word(&self, offset: usize, index: usize) -> *mut u64 {
        let at = offset / 8 + index;
        assert!(
            offset.is_multiple_of(8) && at < self.len / 8,
            "a word outside of the memory"
        );
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.words.as_ptr().add(at) }
    }

    /// Reads the word at `offset`, a multiple of 8.
    pub fn read(&self, offset: usize) -> u64 {
        // SAFETY: within the mapping and aligned.
        unsafe { self.word(offset, 0).read_volatile() }
    }

    /// Writes `len` bytes from `offset` on (a multiple of 8) and what is left
    /// of the last word; `value` gives each word by its number.
    pub fn fill(&mut self, offset: usize, len: usize, value: impl Fn(u64) -> u64) {
        for index in 0..len.div_ceil(8) {
            // SAFETY: within the mapping and aligned.
            unsafe { self.word(offset, index).write_volatile(value(index as u64)) };
        }
        // The device must not be told of the bytes before they are there.
        fence(Ordering::SeqCst);
    }

    /// Whether the `len` bytes from `offset` on (a multiple of 8) are those of
    /// `value`.
    pub fn holds(&self, offset: usize, len: usize, value: impl Fn(u64) -> u64) -> bool {
        fence(Ordering::SeqCst);
        let whole = len / 8;
        let same = |index: usize, bytes: usize| {
            // SAFETY: within the mapping and aligned.
            let found = unsafe { self.word(offset, index).read_volatile() };
            found.to_ne_bytes()[..bytes] == value(index as u64).to_ne_bytes()[..bytes]
        };
        (0..whole).all(|index| same(index, 8)) && (len.is_multiple_of(8) || same(whole, len % 8))
    }

    /// Leaves the memory to whoever may still write to it.
    pub fn abandon(&mut self) {
        self.len = 0;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping made by `new`.
            unsafe { libc::munmap(self.as_ptr(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_found_and_none_beyond() {
        let value = |index: u64| 0x0101_0101_0101_0101 * (index + 1);
        let mut memory = Memory::new(64).unwrap();
        assert!(!memory.holds(8, 21, value), "untouched");
        memory.fill(8, 21, value);
        assert!(memory.holds(8, 21, value));
        assert_eq!((memory.read(0), memory.read(32)), (0, 0));
        for (byte, good) in [(7, true), (8, false), (28, false), (29, true)] {
            let at = byte / 8 * 8;
            let was = memory.read(at);
            let mut bytes = was.to_ne_bytes();
            bytes[byte % 8] ^= 0x80;
            memory.fill(at, 8, |_| u64::from_ne_bytes(bytes));
            assert_eq!(memory.holds(8, 21, value), good, "byte {byte}");
            memory.fill(at, 8, |_| was);
        }
        assert!(memory.holds(64, 0, value), "nothing is always there");
    }

    #[test]
    #[should_panic(expected = "outside of the memory")]
    fn a_word_beyond_the_end_is_refused() {
        Memory::new(16).unwrap().read(16);
    }
}
