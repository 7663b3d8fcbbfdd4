//! Several inputs as one: one after the other, or merged by time.

use super::{Batch, InputStatistics, PacketSource, RawPacket, SourceError};

/// Inputs one after the other. An input that fails is reported and the next
/// one begun.
pub struct Chain<S> {
    inputs: Vec<S>,
    current: usize,
}

impl<S: PacketSource> Chain<S> {
    /// Reads `inputs` in order.
    #[must_use]
    pub const fn new(inputs: Vec<S>) -> Self {
        Self { inputs, current: 0 }
    }
}

impl<S: PacketSource> PacketSource for Chain<S> {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        while let Some(input) = self.inputs.get_mut(self.current) {
            match input.next_batch(batch) {
                Ok(false) => self.current += 1,
                Ok(true) => return Ok(true),
                Err(error) => {
                    self.current += 1;
                    return Err(error);
                }
            }
        }
        batch.clear();
        Ok(false)
    }

    fn may_block(&self) -> bool {
        self.inputs.iter().any(S::may_block)
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        self.inputs.iter().flat_map(S::statistics).collect()
    }

    fn bytes_read(&self) -> u64 {
        self.inputs.iter().map(S::bytes_read).sum()
    }
}

/// Packets in a merged batch.
const MERGE_PACKETS: usize = 4096;
/// Bytes in a merged batch: whichever comes first.
const MERGE_BYTES: usize = 1 << 20;

/// Inputs merged by timestamp. Within one input the order stays as captured,
/// even where its clock steps back; equal times go by the order of inputs.
pub struct Merge<S> {
    inputs: Vec<Lane<S>>,
    /// An input failed; reported once the packets before it are delivered.
    pending: Option<SourceError>,
}

struct Lane<S> {
    source: S,
    batch: Batch,
    next: usize,
    ended: bool,
}

impl<S: PacketSource> Lane<S> {
    /// Makes sure a packet is at hand unless the input has ended.
    fn refill(&mut self) -> Result<(), SourceError> {
        while !self.ended && self.next >= self.batch.len() {
            self.next = 0;
            match self.source.next_batch(&mut self.batch) {
                Ok(more) => self.ended = !more,
                Err(error) => {
                    self.ended = true;
                    self.batch.clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn head(&self) -> Option<RawPacket<'_>> {
        (self.next < self.batch.len()).then(|| self.batch.packet(self.next))
    }
}

impl<S: PacketSource> Merge<S> {
    /// Merges `inputs`.
    #[must_use]
    pub fn new(inputs: Vec<S>) -> Self {
        let lane = |source| Lane {
            source,
            batch: Batch::new(),
            next: 0,
            ended: false,
        };
        Self {
            inputs: inputs.into_iter().map(lane).collect(),
            pending: None,
        }
    }
}

impl<S: PacketSource> PacketSource for Merge<S> {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        batch.clear();
        if let Some(error) = self.pending.take() {
            return Err(error);
        }
        while batch.len() < MERGE_PACKETS && batch.bytes.len() < MERGE_BYTES {
            for lane in &mut self.inputs {
                if let Err(error) = lane.refill() {
                    if batch.is_empty() {
                        return Err(error);
                    }
                    self.pending = Some(error);
                    return Ok(true);
                }
            }
            let earliest = self
                .inputs
                .iter_mut()
                .filter_map(|lane| lane.head().map(|head| head.ts_ns).map(|ts| (ts, lane)))
                .min_by_key(|(ts, _)| *ts);
            let Some((_, lane)) = earliest else {
                return Ok(!batch.is_empty());
            };
            if let Some(packet) = lane.head() {
                batch.push(&packet);
            }
            lane.next += 1;
        }
        Ok(true)
    }

    fn may_block(&self) -> bool {
        self.inputs.iter().any(|lane| lane.source.may_block())
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        self.inputs
            .iter()
            .flat_map(|lane| lane.source.statistics())
            .collect()
    }

    fn bytes_read(&self) -> u64 {
        self.inputs
            .iter()
            .map(|lane| lane.source.bytes_read())
            .sum()
    }
}
