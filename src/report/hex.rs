//! Bytes as a dump: offset, sixteen bytes in hexadecimal, the same as text.

use super::text::width;

/// Appends a dump of `bytes`, each line indented by `indent` spaces.
pub fn dump(out: &mut Vec<u8>, bytes: &[u8], indent: usize) {
    for (line, chunk) in bytes.chunks(16).enumerate() {
        let start = out.len();
        out.resize(start + indent, b' ');
        out.extend_from_slice(format!("{:04x} ", line * 16).as_bytes());
        for (i, byte) in chunk.iter().enumerate() {
            if i == 8 {
                out.push(b' ');
            }
            out.extend_from_slice(format!(" {byte:02x}").as_bytes());
        }
        let text = start + indent + 5 + 1 + 16 * 3 + 2;
        let written = width(&out[start..]);
        out.resize(out.len() + (text - start).saturating_sub(written), b' ');
        for byte in chunk {
            out.push(if (0x20..0x7f).contains(byte) {
                *byte
            } else {
                b'.'
            });
        }
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_align() {
        let mut out = Vec::new();
        super::dump(&mut out, b"0123456789abcdefXY\x00", 2);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  0000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef\n  \
             0010  58 59 00                                          XY.\n"
        );
    }
}
