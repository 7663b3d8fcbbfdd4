//! Compressed captures, recognised by their first bytes.

use std::io::{self, BufRead, Read};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Zstandard skippable frames, 0x184d2a50 to 0x184d2a5f, may come first.
const ZSTD_SKIPPABLE: &[u8] = &[0x2a, 0x4d, 0x18];

/// Puts the right decompressor in front of `input`; the flag says whether
/// there is one.
///
/// # Errors
/// When the first bytes cannot be read or a decompressor cannot be set up.
pub(super) fn decompress(
    mut input: Box<dyn BufRead + Send>,
) -> io::Result<(Box<dyn Read + Send>, bool)> {
    // A pipe may deliver less at a time than it takes to tell.
    let mut head = Vec::new();
    input.by_ref().take(4).read_to_end(&mut head)?;
    let input = io::Cursor::new(head.clone()).chain(input);
    if head.starts_with(GZIP) {
        // Several members one after the other are one stream (RFC 1952, 2.2).
        return Ok((Box::new(flate2::bufread::MultiGzDecoder::new(input)), true));
    }
    if head.starts_with(ZSTD)
        || head.len() > 3 && head[0] & 0xf0 == 0x50 && head[1..4] == *ZSTD_SKIPPABLE
    {
        return Ok((zstd_reader(input)?, true));
    }
    Ok((Box::new(input), false))
}

#[cfg(feature = "zstd-c")]
fn zstd_reader(input: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(zstd::Decoder::with_buffer(input)?))
}

#[cfg(not(feature = "zstd-c"))]
fn zstd_reader(input: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(frames::Frames::new(Box::new(input))))
}

/// Concatenated Zstandard frames through the pure-Rust decoder, which on its
/// own stops after one frame.
#[cfg(any(test, not(feature = "zstd-c")))]
mod frames {
    use std::io::{self, BufRead, Read};

    use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, errors};

    pub(super) struct Frames {
        input: Box<dyn BufRead + Send>,
        decoder: FrameDecoder,
        open: bool,
        /// Reported once everything decoded before it was handed out.
        failed: Option<io::Error>,
    }

    impl Frames {
        pub(super) fn new(input: Box<dyn BufRead + Send>) -> Self {
            Self {
                input,
                decoder: FrameDecoder::new(),
                open: false,
                failed: None,
            }
        }

        /// The decoder holds back as many bytes as later blocks may refer to.
        /// After a failure there are no later blocks: an empty last one (and
        /// room for a checksum) makes it let go of them.
        fn release(&mut self) {
            let empty_last_block = [1, 0, 0, 0, 0, 0, 0];
            let _ = self
                .decoder
                .decode_blocks(&empty_last_block[..], BlockDecodingStrategy::All);
        }
    }

    impl Read for Frames {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            use errors::{FrameDecoderError, ReadFrameHeaderError};
            loop {
                if self.open {
                    let n = self.decoder.read(out)?;
                    if n > 0 || out.is_empty() {
                        return Ok(n);
                    }
                    if !self.decoder.is_finished() {
                        let want = BlockDecodingStrategy::UptoBytes(out.len());
                        if let Err(error) = self.decoder.decode_blocks(&mut self.input, want) {
                            self.failed = Some(io::Error::other(error));
                            self.release();
                        }
                        continue;
                    }
                    self.open = false;
                }
                if let Some(error) = self.failed.take() {
                    return Err(error);
                }
                if self.input.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                match self.decoder.reset(&mut self.input) {
                    Ok(()) => self.open = true,
                    Err(FrameDecoderError::ReadFrameHeaderError(
                        ReadFrameHeaderError::SkipFrame { length, .. },
                    )) => {
                        let skipped = io::copy(
                            &mut self.input.by_ref().take(length.into()),
                            &mut io::sink(),
                        )?;
                        if skipped < u64::from(length) {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                    }
                    Err(error) => return Err(io::Error::other(error)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(mut reader: impl Read) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        reader.read_to_end(&mut out).map(|_| out)
    }

    /// Two frames with a skippable one between, as `zstd` and `pzstd` write.
    #[cfg(feature = "zstd-c")]
    fn two_frames() -> (Vec<u8>, Vec<u8>) {
        let (a, b) = (
            vec![7u8; 300_000],
            (0..200_000u32).map(|i| (i * 31) as u8).collect::<Vec<_>>(),
        );
        let mut packed = zstd::encode_all(&a[..], 3).unwrap();
        packed.extend([0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        packed.extend(zstd::encode_all(&b[..], 3).unwrap());
        ([a, b].concat(), packed)
    }

    #[cfg(feature = "zstd-c")]
    #[test]
    fn both_zstd_decoders_read_several_frames() {
        let (plain, packed) = two_frames();
        let fast = decompress(Box::new(io::Cursor::new(packed.clone())))
            .unwrap()
            .0;
        assert!(read_all(fast).unwrap() == plain);
        let slow = frames::Frames::new(Box::new(io::Cursor::new(packed.clone())));
        assert!(read_all(slow).unwrap() == plain);
        for cut in [5, 100, packed.len() - 1] {
            let slow = frames::Frames::new(Box::new(io::Cursor::new(packed[..cut].to_vec())));
            assert!(
                read_all(slow).is_err(),
                "cut at {cut} is an error, not an end"
            );
        }
    }

    /// A reader that delivers one byte at a time, as a slow pipe does.
    struct Drip(Vec<u8>);

    impl Read for Drip {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() || out.is_empty() {
                return Ok(0);
            }
            out[0] = self.0.remove(0);
            Ok(1)
        }
    }

    #[test]
    fn gzip_on_a_slow_pipe_is_recognised() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut packed, b"plain").unwrap();
        let packed = packed.finish().unwrap();
        let (reader, compressed) =
            decompress(Box::new(io::BufReader::with_capacity(1, Drip(packed)))).unwrap();
        assert!(compressed);
        assert_eq!(read_all(reader).unwrap(), b"plain");
    }

    #[test]
    fn plain_input_passes_through() {
        for plain in [&b""[..], b"\x1f", b"plain"] {
            let (reader, packed) = decompress(Box::new(io::Cursor::new(plain.to_vec()))).unwrap();
            assert!(!packed);
            assert_eq!(read_all(reader).unwrap(), plain);
        }
    }
}
