//! Files that are read where the system keeps them, without copying: the one
//! place of the program that maps a file.

use std::{
    fs::File,
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime},
};

use memmap2::{Mmap, MmapOptions};

/// A file that changed less long ago may be changing still.
const SETTLED: Duration = Duration::from_secs(2);

/// A mapped file; clones share the mapping.
#[derive(Debug, Clone)]
pub(super) struct Mapped(Arc<Mmap>);

impl Mapped {
    /// Maps a regular file. `None` where that cannot be done, or where the
    /// file changed a moment ago: such files are read instead.
    pub fn new(file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        let changed = metadata.modified().ok()?;
        let age = SystemTime::now().duration_since(changed).ok()?;
        if !metadata.is_file() || metadata.len() == 0 || age < SETTLED {
            return None;
        }
        // SAFETY: the mapping is private and read-only, and this program writes
        // to no file that it maps: `Output` refuses its inputs. Should another
        // program change the file meanwhile, bytes change under parsers that
        // check every length they read and never trust one read before.
        // Should it cut the file, reading past the new end ends this program
        // with SIGBUS; captures that are being written, where that happens
        // (rotation), are told by the time of their last change and not
        // mapped.
        #[allow(unsafe_code, reason = "mapping a file")]
        let map = unsafe { MmapOptions::new().map(file) }.ok()?;
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Sequential);
        Some(Self(Arc::new(map)))
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A stretch of a mapped file.
#[derive(Debug)]
pub(super) struct Window {
    pub map: Mapped,
    pub range: Range<usize>,
}

impl Window {
    /// The bytes of the stretch.
    pub fn bytes(&self) -> &[u8] {
        &self.map.bytes()[self.range.clone()]
    }

    /// Brings the stretch near: record headers are read one after the other,
    /// each telling where the next one is, and would be waited for one by one.
    pub fn fetch(&self) {
        let lines = self.bytes().iter().step_by(64);
        std::hint::black_box(lines.fold(0, |sum, byte| sum ^ byte));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_files_that_have_settled_are_mapped() {
        let mut file = tempfile::tempfile().unwrap();
        assert!(Mapped::new(&file).is_none(), "empty");
        file.write_all(b"capture").unwrap();
        assert!(Mapped::new(&file).is_none(), "changed just now");
        let earlier = SystemTime::now() - SETTLED * 2;
        file.set_modified(earlier).unwrap();
        let map = Mapped::new(&file).unwrap();
        assert_eq!(map.bytes(), b"capture");
        let window = Window { map, range: 1..4 };
        assert_eq!(window.bytes(), b"apt");
    }
}
