//! The tap beside a write run: its packets are kept until the run is over.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use super::{TapError, TapOptions, TapSource};
use crate::source::{Batch, OwnedPacket, PacketPath, PacketSource, Stop, TapHeard};

/// Bytes of packets kept; later ones are counted.
const KEPT_BYTES: usize = 256 << 20;

impl TapHeard {
    fn hear(&mut self, batch: &Batch, kept: &mut usize) {
        for packet in batch.packets() {
            self.looped += u64::from(packet.path == Some(PacketPath::Looped));
            if *kept + packet.data.len() <= KEPT_BYTES {
                *kept += packet.data.len();
                self.packets.push(OwnedPacket::from(&packet));
            } else {
                self.not_kept += 1;
            }
        }
    }
}

/// Listens at the tap, on a thread of its own.
pub struct TapListener {
    stop: Stop,
    heard: Arc<Mutex<TapHeard>>,
    thread: Option<JoinHandle<()>>,
}

impl TapListener {
    /// Begins to listen; once this returns, every packet is heard.
    ///
    /// # Errors
    /// What stands in the way, with its repair.
    pub fn start(options: &TapOptions) -> Result<Self, TapError> {
        let stop = Stop::default();
        let source = TapSource::open(options, stop.clone())?;
        let heard = Arc::<Mutex<TapHeard>>::default();
        let thread = {
            let heard = Arc::clone(&heard);
            std::thread::Builder::new()
                .name("tap".into())
                .spawn(move || listen(source, &heard))
        };
        let thread = thread.map_err(|error| TapError::Refused {
            step: "read",
            reason: error.to_string(),
        })?;
        Ok(Self {
            stop,
            heard,
            thread: Some(thread),
        })
    }

    /// Takes the probe away, reads what the ring still holds, and returns
    /// everything.
    #[must_use]
    pub fn finish(mut self) -> TapHeard {
        self.end();
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *heard)
    }

    /// The source itself bounds how long its end may take.
    fn end(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for TapListener {
    fn drop(&mut self) {
        self.end();
    }
}

fn listen(mut source: TapSource, heard: &Mutex<TapHeard>) {
    let mut batch = Batch::new();
    let mut all = TapHeard {
        names: source.names().map(str::to_owned).collect(),
        ..TapHeard::default()
    };
    let mut kept = 0;
    while let Ok(true) = source.next_batch(&mut batch) {
        all.hear(&batch, &mut kept);
    }
    all.counters = source.counters();
    *heard.lock().unwrap_or_else(PoisonError::into_inner) = all;
}
