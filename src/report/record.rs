//! A recording: captured batches written to a pcapng file on a thread of its
//! own, so that a slow disk does not keep the capture from its buffer.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::pcapng::{Blocks, Counted, Interface};
use crate::source::Batch;

/// Batches that may wait to be written. A batch has about a megabyte.
const QUEUE: usize = 64;

/// Writes batches to a pcapng file.
///
/// Nothing is left out: when the file is slower than the capture for long, the
/// capture waits, and [`Recorded`] says for how long.
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    stalled: Duration,
    packets: u64,
}

/// What became of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Packets written.
    pub packets: u64,
    /// How long the capture had to wait for the file, in all.
    pub stalled: Duration,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Buffers on their way to the file and, emptied, back.
#[derive(Default)]
struct Queue {
    full: VecDeque<Vec<u8>>,
    empty: Vec<Vec<u8>>,
    closed: bool,
    /// The thread writes no more; the error, until it was taken.
    ended: bool,
    error: Option<io::Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// Begins a file with these interfaces; a packet's input is the number of
    /// its interface.
    ///
    /// # Errors
    /// When the file does not take its first bytes, or no thread can be had.
    pub fn start(mut out: Box<dyn Write + Send>, interfaces: &[Interface]) -> io::Result<Self> {
        let mut head = Vec::new();
        Blocks(&mut head).begin(interfaces);
        out.write_all(&head)?;
        out.flush()?;
        let shared = Arc::<Shared>::default();
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("recorder".into())
                .spawn(move || write(out, &shared))?
        };
        Ok(Self {
            shared,
            thread: Some(thread),
            stalled: Duration::ZERO,
            packets: 0,
        })
    }

    /// Takes a copy of the packets of a batch. False when the file has not
    /// kept up and still does not after `patience`: call again.
    ///
    /// # Errors
    /// When the file could not be written.
    pub fn record(&mut self, batch: &Batch, patience: Duration) -> io::Result<bool> {
        if batch.is_empty() {
            return Ok(true);
        }
        let Some(mut buffer) = self.buffer(patience)? else {
            return Ok(false);
        };
        buffer.clear();
        for packet in batch.packets() {
            Blocks(&mut buffer).packet(&packet);
        }
        self.packets += batch.len() as u64;
        self.shared.lock().full.push_back(buffer);
        self.shared.changed.notify_all();
        Ok(true)
    }

    /// A buffer to fill, once the queue has room.
    fn buffer(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut queue = self.shared.lock();
        if queue.full.len() >= QUEUE {
            let start = Instant::now();
            let woken = self
                .shared
                .changed
                .wait_timeout_while(queue, patience, |queue| {
                    queue.full.len() >= QUEUE && !queue.ended
                });
            (queue, _) = woken.unwrap_or_else(PoisonError::into_inner);
            self.stalled += start.elapsed();
        }
        if queue.ended {
            let gone = || io::Error::other("the file is no longer being written");
            return Err(queue.error.take().unwrap_or_else(gone));
        }
        if queue.full.len() >= QUEUE {
            return Ok(None);
        }
        Ok(Some(queue.empty.pop().unwrap_or_default()))
    }

    /// Writes what waits, what was counted on each interface, and closes the
    /// file.
    ///
    /// # Errors
    /// When the file could not be written.
    pub fn finish(mut self, counted: &[Counted]) -> io::Result<Recorded> {
        let mut tail = Vec::new();
        for (number, counted) in (0..).zip(counted) {
            Blocks(&mut tail).statistics(number, counted);
        }
        let mut queue = self.shared.lock();
        queue.full.push_back(tail);
        drop(queue);
        self.close();
        match self.shared.lock().error.take() {
            Some(error) => Err(error),
            None => Ok(Recorded {
                packets: self.packets,
                stalled: self.stalled,
            }),
        }
    }

    fn close(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
    }
}

/// Says that nothing is written any more, however the thread ends.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

/// The thread: writes whole batches until the queue is closed and empty.
fn write(mut out: Box<dyn Write + Send>, shared: &Shared) {
    let _ended = Ended(shared);
    let mut queue = shared.lock();
    loop {
        let Some(buffer) = queue.full.pop_front() else {
            if queue.closed {
                return;
            }
            let woken = shared.changed.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(queue);
        let written = out.write_all(&buffer).and_then(|()| out.flush());
        queue = shared.lock();
        if let Err(error) = written {
            queue.error = Some(error);
            return;
        }
        queue.empty.push(buffer);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{LinkType, RawPacket};

    /// Takes nothing until told to, then everything; fails after `limit`
    /// bytes.
    #[derive(Clone)]
    struct Slow {
        gate: Arc<(Mutex<bool>, Condvar)>,
        taken: Arc<Mutex<Vec<u8>>>,
        limit: usize,
    }

    impl Slow {
        fn new(limit: usize) -> Self {
            Self {
                gate: Arc::default(),
                taken: Arc::default(),
                limit,
            }
        }

        fn open(&self) {
            *self.gate.0.lock().unwrap() = true;
            self.gate.1.notify_all();
        }
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut taken = self.taken.lock().unwrap();
            // The head of the file passes.
            if !taken.is_empty() {
                let closed = self.gate.0.lock().unwrap();
                drop(self.gate.1.wait_while(closed, |open| !*open).unwrap());
            }
            if taken.len() + bytes.len() > self.limit {
                return Err(io::ErrorKind::StorageFull.into());
            }
            taken.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn batch() -> Batch {
        let mut batch = Batch::new();
        batch.push(&RawPacket {
            input: 0,
            frame: 1,
            ts_ns: 1,
            len: 60,
            link: LinkType::ETHERNET,
            path: None,
            data: &[7; 60],
        });
        batch
    }

    fn interfaces() -> [Interface; 1] {
        [Interface {
            name: "veth0".into(),
            link: LinkType::ETHERNET,
            snaplen: 0,
            filter: None,
        }]
    }

    const BRIEF: Duration = Duration::from_millis(20);

    #[test]
    fn a_slow_file_makes_the_capture_wait_and_loses_nothing() {
        let slow = Slow::new(usize::MAX);
        let mut recorder = Recorder::start(Box::new(slow.clone()), &interfaces()).unwrap();
        let batch = batch();
        let mut packets = 0;
        while recorder.record(&batch, BRIEF).unwrap() {
            packets += 1;
            assert!(packets <= QUEUE as u64 + 1, "bounded");
        }
        slow.open();
        assert!(recorder.record(&batch, Duration::from_secs(10)).unwrap());
        let recorded = recorder.finish(&[Counted::default()]).unwrap();
        assert_eq!(recorded.packets, packets + 1);
        assert!(recorded.stalled >= BRIEF, "{recorded:?}");
        // 32 bytes of block around the 60 of each packet.
        let taken = slow.taken.lock().unwrap().len() as u64;
        assert!(taken > recorded.packets * 92, "{taken} bytes");
    }

    #[test]
    fn a_full_disk_is_an_error_at_the_next_call() {
        let slow = Slow::new(400);
        slow.open();
        let mut recorder = Recorder::start(Box::new(slow), &interfaces()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let error = loop {
            match recorder.record(&batch(), BRIEF) {
                Ok(_) => assert!(Instant::now() < deadline, "no error"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
