//! Ordered parallel map and fold over the batches of a source.
//!
//! Every thread takes the next batch, works on it alone, then waits for its
//! turn to hand in the result: decoding runs in parallel, while everything
//! that keeps state sees the packets in capture order and needs no lock of
//! its own. With one thread it is a loop. Buffers are reused, so memory is
//! bounded by the number of threads.

use std::{
    num::NonZeroUsize,
    ops::ControlFlow,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::source::{Batch, PacketSource, SourceError};

/// More threads than this only wait for their turn.
const MAX_THREADS: usize = 64;

/// Runs `map` over every batch of `source`, on up to `threads` threads, and
/// `fold` over the results in order. A source that may block gets one thread.
///
/// `map` gets the scratch value its thread used before and must overwrite it.
/// `fold` also gets the errors of the source, at their place in the order, and
/// ends the run early by breaking.
pub fn run<S, T, M, F>(source: &mut S, threads: NonZeroUsize, map: M, fold: F)
where
    S: PacketSource + ?Sized,
    T: Default + Send,
    M: Fn(&Batch, &mut T) + Sync,
    F: FnMut(Result<&mut T, SourceError>) -> ControlFlow<()> + Send,
{
    let threads = if source.may_block() {
        1
    } else {
        threads.get().min(MAX_THREADS)
    };
    let shared = Shared {
        input: Mutex::new(Input {
            source,
            next: 0,
            ended: false,
        }),
        output: Mutex::new(Output { fold, next: 0 }),
        turn: Condvar::new(),
        stop: AtomicBool::new(false),
    };
    if threads == 1 {
        shared.work(&map);
        return;
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system has no thread to give, those there are do the
            // work.
            let spawned = std::thread::Builder::new().spawn_scoped(scope, || shared.work(&map));
            if spawned.is_err() {
                break;
            }
        }
        shared.work(&map);
    });
}

struct Input<'s, S: ?Sized> {
    source: &'s mut S,
    next: u64,
    ended: bool,
}

struct Output<F> {
    fold: F,
    next: u64,
}

struct Shared<'s, S: ?Sized, F> {
    input: Mutex<Input<'s, S>>,
    output: Mutex<Output<F>>,
    turn: Condvar,
    stop: AtomicBool,
}

/// A panic in one thread must not leave the others waiting for its turn.
struct StopOnPanic<'a>(&'a AtomicBool, &'a Condvar);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
            self.1.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: PacketSource + ?Sized, F> Shared<'_, S, F> {
    fn work<T, M>(&self, map: &M)
    where
        T: Default,
        M: Fn(&Batch, &mut T),
        F: FnMut(Result<&mut T, SourceError>) -> ControlFlow<()>,
    {
        let _guard = StopOnPanic(&self.stop, &self.turn);
        let mut batch = Batch::new();
        let mut scratch = T::default();
        while let Some((number, read)) = self.take(&mut batch) {
            if read.is_ok() {
                map(&batch, &mut scratch);
            }
            let mut output = lock(&self.output);
            while output.next != number {
                if self.stop.load(Ordering::SeqCst) {
                    return;
                }
                output = self
                    .turn
                    .wait(output)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let flow = (output.fold)(read.map(|()| &mut scratch));
            output.next += 1;
            if flow.is_break() {
                self.stop.store(true, Ordering::SeqCst);
            }
            drop(output);
            self.turn.notify_all();
        }
    }

    /// The next batch and its number, or `None` at the end.
    fn take(&self, batch: &mut Batch) -> Option<(u64, Result<(), SourceError>)> {
        let mut input = lock(&self.input);
        if input.ended || self.stop.load(Ordering::SeqCst) {
            return None;
        }
        let read = match input.source.next_batch(batch) {
            Ok(true) => Ok(()),
            Ok(false) => {
                input.ended = true;
                return None;
            }
            Err(error) => Err(error),
        };
        let number = input.next;
        input.next += 1;
        Some((number, read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{InputStatistics, LinkType, RawPacket};

    /// Yields one packet a batch; every tenth call fails.
    struct Numbers(u64);

    impl PacketSource for Numbers {
        fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
            if self.0 == 200 {
                return Ok(false);
            }
            self.0 += 1;
            if self.0.is_multiple_of(10) {
                return Err(SourceError::NotACapture {
                    name: self.0.to_string(),
                    reason: String::new(),
                });
            }
            *batch = Batch::new();
            batch.push(&RawPacket {
                input: 0,
                frame: self.0,
                ts_ns: 0,
                len: 0,
                link: LinkType::RAW,
                path: None,
                data: &[],
            });
            Ok(true)
        }

        fn statistics(&self) -> Vec<InputStatistics> {
            Vec::new()
        }
    }

    fn collect(threads: usize, limit: usize) -> Vec<u64> {
        let mut seen = Vec::new();
        run(
            &mut Numbers(0),
            NonZeroUsize::new(threads).unwrap(),
            |batch, out: &mut u64| {
                *out = batch.packets().next().unwrap().frame;
                // Uneven work, so that threads finish out of order.
                std::thread::sleep(std::time::Duration::from_micros(*out % 7 * 50));
            },
            |result| {
                seen.push(match result {
                    Ok(frame) => *frame,
                    Err(SourceError::NotACapture { name, .. }) => name.parse().unwrap(),
                    Err(error) => panic!("{error}"),
                });
                if seen.len() == limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        seen
    }

    #[test]
    fn order_holds_with_any_number_of_threads_errors_included() {
        let expected: Vec<u64> = (1..=200).collect();
        for threads in [1, 2, 3, 8] {
            assert_eq!(collect(threads, usize::MAX), expected, "{threads} threads");
            assert_eq!(collect(threads, 17), expected[..17], "{threads} threads");
        }
    }

    #[test]
    fn a_panic_does_not_leave_the_others_waiting() {
        let result = std::panic::catch_unwind(|| {
            run(
                &mut Numbers(0),
                NonZeroUsize::new(4).unwrap(),
                |batch, (): &mut ()| {
                    let frame = batch.packets().next().unwrap().frame;
                    assert!(frame != 25, "on purpose");
                },
                |_| ControlFlow::Continue(()),
            );
        });
        assert!(result.is_err());
    }
}
