//! A record of the ring buffer, as `tap.bpf.c` writes it.

use super::super::PacketPath;

/// Bytes before the packet's own.
const HEADER: usize = 24;
/// The packet never had a link-layer header: it crossed no netdev.
const LOOPED: u16 = 1;

/// One packet in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TapRecord<'r> {
    /// `CLOCK_MONOTONIC`.
    pub ktime_ns: u64,
    /// Bytes from the IP header to the end of the packet.
    pub len: u32,
    /// Netdev under the RDMA device.
    pub ifindex: u32,
    pub path: PacketPath,
    pub bytes: &'r [u8],
}

impl<'r> TapRecord<'r> {
    /// Reads a record; `None` when it is too short to be one.
    pub fn read(record: &'r [u8]) -> Option<Self> {
        let (header, bytes) = record.split_at_checked(HEADER)?;
        let u32_at = |at: usize| Some(u32::from_ne_bytes(header[at..at + 4].try_into().ok()?));
        let flags = u16::from_ne_bytes(header[22..24].try_into().ok()?);
        let caplen = u32_at(12)? as usize;
        let bytes = &bytes[..caplen.min(bytes.len())];
        Some(Self {
            ktime_ns: u64::from_ne_bytes(header[..8].try_into().ok()?),
            len: ip_length(bytes).unwrap_or(u32_at(8)?),
            ifindex: u32_at(16)?,
            path: if flags & LOOPED != 0 {
                PacketPath::Looped
            } else {
                PacketPath::Wire
            },
            bytes,
        })
    }
}

/// Length of the packet as its IP header has it.
fn ip_length(bytes: &[u8]) -> Option<u32> {
    let u16_at = |at: usize| {
        let bytes = bytes.get(at..at + 2)?;
        Some(u32::from(u16::from_be_bytes(bytes.try_into().ok()?)))
    };
    let len = match bytes.first()? >> 4 {
        4 => u16_at(2)?,
        6 => u16_at(4)? + 40,
        _ => return None,
    };
    (len as usize >= bytes.len()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(flags: u16, len: u32, bytes: &[u8], room: usize) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend(77u64.to_ne_bytes());
        record.extend(len.to_ne_bytes());
        record.extend((bytes.len() as u32).to_ne_bytes());
        record.extend(3u32.to_ne_bytes());
        record.extend(1u16.to_ne_bytes());
        record.extend(flags.to_ne_bytes());
        record.extend(bytes);
        record.resize(HEADER + room, 0xee);
        record
    }

    #[test]
    fn slots_are_larger_than_packets() {
        let mut ip = [0; 48];
        ip[0] = 0x45;
        ip[3] = 48;
        let bytes = record(LOOPED, 48, &ip, 88);
        let read = TapRecord::read(&bytes).unwrap();
        assert_eq!(read.bytes, ip);
        assert_eq!((read.ktime_ns, read.len, read.ifindex), (77, 48, 3));
        assert_eq!(read.path, PacketPath::Looped);
        let bytes = record(0, 48, &ip, 88);
        assert_eq!(TapRecord::read(&bytes).unwrap().path, PacketPath::Wire);
    }

    #[test]
    fn cut_packets_have_the_length_of_their_ip_header() {
        let mut ip = [0; 40];
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&1064u16.to_be_bytes());
        let bytes = record(0, 1104, &ip, 88);
        let read = TapRecord::read(&bytes).unwrap();
        assert_eq!((read.len, read.bytes.len()), (1104, 40));
        // Nonsense in the packet is the packet's; the record knows better.
        let bytes = record(0, 1104, &[0xff; 40], 88);
        assert_eq!(TapRecord::read(&bytes).unwrap().len, 1104);
        assert_eq!(TapRecord::read(&bytes[..20]), None);
        // A caplen beyond the record, which the kernel does not write.
        let mut long = record(0, 48, &ip, 88);
        long[12..16].copy_from_slice(&5000u32.to_ne_bytes());
        assert_eq!(TapRecord::read(&long).unwrap().bytes.len(), 88);
    }
}
