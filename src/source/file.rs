//! Capture files and standard input: pcap and pcapng, plain or compressed.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Batch, InputStatistics, PacketSource, Record, SourceError,
    mapped::{Mapped, Window},
    pcap::{self, MAX_CAPTURED, Pcap, Walk},
    pcapng::PcapNg,
};

/// Bytes read before a batch is handed out, unless asked otherwise.
pub const BATCH_BYTES: usize = 1 << 18;

/// Where bytes come from.
enum Input {
    /// Read, decompressed where need be; and the bytes read, before that.
    Stream(Box<dyn Read + Send>, Arc<AtomicU64>),
    /// Left where they are.
    Mapped(Mapped),
}

/// Counts the bytes that are read.
struct Counted {
    input: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(out)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A capture file, or standard input.
pub struct FileSource {
    name: String,
    input: Input,
    /// Empty, or a note for error messages that offsets count decompressed
    /// bytes.
    stream: &'static str,
    /// A pipe: hand packets out as they arrive rather than in full batches.
    eager: bool,
    format: Format,
    index: u16,
    batch_bytes: usize,
    /// Bytes of a record whose rest has not been read.
    carry: Vec<u8>,
    /// Offset of `carry` in the (decompressed) input.
    offset: u64,
    packets: u64,
    ended: bool,
    /// Damage met behind the packets of the batch that was last handed out.
    pending: Option<SourceError>,
}

enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

impl Format {
    fn walk(&mut self, bytes: &[u8], out: &mut Vec<Record>) -> Walk {
        match self {
            Self::Pcap(pcap) => pcap.walk(bytes, out),
            Self::PcapNg(ng) => ng.walk(bytes, out),
        }
    }

    fn explain_rest(&self, rest: &[u8]) -> String {
        match self {
            Self::Pcap(pcap) => pcap.explain_rest(rest),
            Self::PcapNg(ng) => ng.explain_rest(rest),
        }
    }
}

/// Opens a capture file; `-` is standard input. `index` is the number of the
/// input among all inputs, from 0.
///
/// # Errors
/// When the file cannot be opened or is not a capture.
pub fn open(path: &Path, index: u16) -> Result<FileSource, SourceError> {
    if path.as_os_str() == "-" {
        return FileSource::new("standard input".into(), index, Box::new(io::stdin()), true);
    }
    let name = path.display().to_string();
    let failed = |error| SourceError::Open {
        name: name.clone(),
        error,
    };
    let file = File::open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if kind.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if let Some(map) = Mapped::new(&file)
        && let Some(source) = FileSource::mapped(name.clone(), index, map)
    {
        return Ok(source);
    }
    FileSource::new(name, index, Box::new(file), !kind.is_file())
}

/// A capture file that is opened when its turn comes: a list of files may be
/// longer than the number of files a process can have open.
pub struct InputFile {
    path: PathBuf,
    index: u16,
    batch_bytes: usize,
    state: State,
    /// Bytes read before the file was closed.
    bytes: u64,
}

enum State {
    Closed,
    Open(Box<FileSource>),
    /// Read to its end, or failed; the statistics stay, where it was opened.
    Done(Option<InputStatistics>),
}

impl InputFile {
    /// Names a file; `index` is its number among all inputs, from 0.
    #[must_use]
    pub const fn new(path: PathBuf, index: u16, batch_bytes: usize) -> Self {
        Self {
            path,
            index,
            batch_bytes,
            state: State::Closed,
            bytes: 0,
        }
    }

    fn close(&mut self) {
        self.bytes = self.bytes_read();
        let statistics = match &self.state {
            State::Open(source) => source.statistics().pop(),
            State::Closed | State::Done(_) => None,
        };
        self.state = State::Done(statistics);
    }
}

impl PacketSource for InputFile {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        batch.clear();
        if matches!(self.state, State::Closed) {
            match open(&self.path, self.index) {
                Ok(source) => {
                    let source = source.with_batch_bytes(self.batch_bytes);
                    self.state = State::Open(Box::new(source));
                }
                Err(error) => {
                    self.state = State::Done(None);
                    return Err(error);
                }
            }
        }
        let State::Open(source) = &mut self.state else {
            return Ok(false);
        };
        let more = source.next_batch(batch);
        if !matches!(more, Ok(true)) {
            self.close();
        }
        more
    }

    fn may_block(&self) -> bool {
        match &self.state {
            State::Open(source) => source.may_block(),
            State::Done(_) => false,
            // Pipes, and what cannot be told, may.
            State::Closed => !self.path.is_file(),
        }
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        match &self.state {
            State::Open(source) => source.statistics(),
            State::Done(statistics) => statistics.iter().cloned().collect(),
            State::Closed => Vec::new(),
        }
    }

    fn bytes_read(&self) -> u64 {
        match &self.state {
            State::Open(source) => source.bytes_read(),
            State::Closed | State::Done(_) => self.bytes,
        }
    }
}

impl FileSource {
    /// Reads a capture from any stream. `eager` hands packets out as they
    /// arrive; set it for pipes.
    ///
    /// # Errors
    /// When the stream cannot be read or is not a capture.
    pub fn new(
        name: String,
        index: u16,
        input: Box<dyn Read + Send>,
        eager: bool,
    ) -> Result<Self, SourceError> {
        let bytes = Arc::default();
        let input = Counted {
            input,
            bytes: Arc::clone(&bytes),
        };
        let input = Box::new(BufReader::with_capacity(1 << 16, input));
        let (mut input, compressed) =
            super::compress::decompress(input).map_err(|error| SourceError::Open {
                name: name.clone(),
                error,
            })?;
        let mut carry = Vec::new();
        let header = input
            .by_ref()
            .take(pcap::HEADER as u64)
            .read_to_end(&mut carry);
        let stream = if compressed {
            " of the decompressed stream"
        } else {
            ""
        };
        if let Err(error) = header {
            return Err(SourceError::Read {
                name,
                record: 0,
                offset: carry.len() as u64,
                stream,
                error,
            });
        }
        let format = match recognise(&carry) {
            Ok(format) => format,
            Err(reason) => return Err(SourceError::NotACapture { name, reason }),
        };
        let mut offset = 0;
        if matches!(format, Format::Pcap(_)) {
            carry.clear();
            offset = pcap::HEADER as u64;
        }
        Ok(Self {
            name,
            input: Input::Stream(input, bytes),
            stream,
            eager,
            format,
            index,
            batch_bytes: BATCH_BYTES,
            carry,
            offset,
            packets: 0,
            ended: false,
            pending: None,
        })
    }

    /// Reads a capture where it is mapped. `None` where it is compressed, or no
    /// capture, which reading it tells better.
    fn mapped(name: String, index: u16, map: Mapped) -> Option<Self> {
        let format = recognise(map.bytes()).ok()?;
        let offset = match format {
            Format::Pcap(_) => pcap::HEADER as u64,
            Format::PcapNg(_) => 0,
        };
        Some(Self {
            name,
            input: Input::Mapped(map),
            stream: "",
            eager: false,
            format,
            index,
            batch_bytes: BATCH_BYTES,
            carry: Vec::new(),
            offset,
            packets: 0,
            ended: false,
            pending: None,
        })
    }

    /// Hands out batches of about this many bytes: smaller ones where much is
    /// made of every byte.
    #[must_use]
    pub const fn with_batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// Puts a batch's worth of bytes into `batch`, or what is left.
    fn fill(&mut self, batch: &mut Batch) -> io::Result<()> {
        let most = self.batch_bytes;
        let input = match &mut self.input {
            Input::Stream(input, _) => input,
            Input::Mapped(map) => {
                let from = self.offset as usize;
                // What was left over is part of the file still.
                let to = (from + most.max(self.carry.len() + most / 2)).min(map.bytes().len());
                self.ended = to == map.bytes().len();
                let window = Window {
                    map: map.clone(),
                    range: from..to,
                };
                window.fetch();
                batch.window = Some(window);
                return Ok(());
            }
        };
        let bytes = &mut batch.bytes;
        bytes.extend_from_slice(&self.carry);
        let want = most.saturating_sub(bytes.len()).max(most / 2);
        if self.eager {
            let start = bytes.len();
            bytes.resize(start + want, 0);
            let read = loop {
                match input.read(&mut bytes[start..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            bytes.truncate(start + read.as_ref().map_or(0, |n| *n));
            self.ended = read? == 0;
            return Ok(());
        }
        let read = input.by_ref().take(want as u64).read_to_end(bytes)?;
        self.ended = read < want;
        Ok(())
    }

    fn damaged(&self, at: usize, reason: String) -> SourceError {
        SourceError::Damaged {
            name: self.name.clone(),
            record: self.packets + 1,
            offset: self.offset + at as u64,
            stream: self.stream,
            reason,
        }
    }
}

impl PacketSource for FileSource {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
        batch.clear();
        if let Some(error) = self.pending.take() {
            self.ended = true;
            return Err(error);
        }
        if self.ended {
            return Ok(false);
        }
        batch.input = self.index;
        batch.first_frame = self.packets + 1;
        let read = self.fill(batch);
        let Batch {
            bytes,
            window,
            records,
            ..
        } = batch;
        let bytes = window.as_ref().map_or(&**bytes, Window::bytes);
        let (used, damage) = self.format.walk(bytes, records);
        self.packets += records.len() as u64;
        self.carry.clear();
        let rest = &bytes[used..];
        self.pending = if let Some(damage) = damage {
            Some(self.damaged(damage.at, damage.reason))
        } else if let Err(error) = read {
            Some(SourceError::Read {
                name: self.name.clone(),
                record: self.packets,
                offset: self.offset + bytes.len() as u64,
                stream: self.stream,
                error,
            })
        } else if self.ended && !rest.is_empty() {
            Some(self.damaged(used, self.format.explain_rest(rest)))
        } else if rest.len() > MAX_CAPTURED as usize * 2 {
            // Cannot happen while the walkers bound a record's size; a guard
            // against reading a whole file into memory.
            Some(self.damaged(used, "a record does not end".into()))
        } else {
            self.carry.extend_from_slice(rest);
            None
        };
        self.offset += used as u64;
        if let Some(error) = self.pending.take_if(|_| batch.records.is_empty()) {
            self.ended = true;
            return Err(error);
        }
        if self.pending.is_some() {
            self.ended = false;
        }
        Ok(!(self.ended && batch.records.is_empty()))
    }

    fn may_block(&self) -> bool {
        self.eager
    }

    fn statistics(&self) -> Vec<InputStatistics> {
        vec![InputStatistics {
            name: self.name.clone(),
            packets: self.packets,
            dropped: match &self.format {
                Format::Pcap(_) => None,
                Format::PcapNg(ng) => ng.dropped(),
            },
            live: None,
        }]
    }

    fn bytes_read(&self) -> u64 {
        match &self.input {
            Input::Stream(_, bytes) => bytes.load(Ordering::Relaxed),
            Input::Mapped(_) => self.offset,
        }
    }
}

fn recognise(head: &[u8]) -> Result<Format, String> {
    let Some(magic) = head.first_chunk::<4>() else {
        return Err(match head.len() {
            0 => "the file is empty".into(),
            n => format!("the file has only {n} bytes"),
        });
    };
    if PcapNg::recognises(*magic) {
        return Ok(Format::PcapNg(PcapNg::default()));
    }
    if Pcap::recognises(*magic) {
        if head.len() < pcap::HEADER {
            return Err(format!(
                "the file ends inside the pcap header ({} of {} bytes)",
                head.len(),
                pcap::HEADER
            ));
        }
        return Ok(Format::Pcap(Pcap::new(head)));
    }
    Err(format!(
        "it begins with {:02x} {:02x} {:02x} {:02x}, which neither pcap nor pcapng does",
        magic[0], magic[1], magic[2], magic[3]
    ))
}
