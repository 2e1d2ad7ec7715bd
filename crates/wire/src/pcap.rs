//! Classic pcap files: microsecond and nanosecond stamps, either byte order on reading; nanoseconds in
//! the host's little-endian order on writing. Wireshark and tcpdump read both.

use core::fmt;
use std::io::{self, Write};

/// Magic of a file with nanosecond stamps.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Magic of a file with microsecond stamps.
const MAGIC_US: u32 = 0xa1b2_c3d4;
const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
/// Longest record, the usual snapshot length of capture tools.
const SNAP_LEN: u32 = 262_144;

/// What each record starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum LinkType {
    /// An Ethernet header.
    Ethernet = 1,
    /// An IPv4 or IPv6 header.
    Raw = 101,
}

/// Why a file is not a capture that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PcapError {
    /// No known magic, or shorter than the file header.
    NotPcap,
    /// A link type other than Ethernet and raw IP; the value is the file's.
    LinkType(u32),
}

impl fmt::Display for PcapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPcap => f.write_str("not a classic pcap file"),
            Self::LinkType(value) => write!(f, "link type {value} is neither Ethernet nor raw IP"),
        }
    }
}

impl core::error::Error for PcapError {}

/// One captured frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Whole seconds of the stamp.
    pub seconds: u32,
    /// Nanoseconds within the second.
    pub nanos: u32,
    /// Length of the frame on the wire, of which `bytes` may be the beginning.
    pub original_len: u32,
    /// The bytes captured.
    pub bytes: &'a [u8],
}

/// Iterates over the records of a file in memory. A record that the file cuts short ends the iteration.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    link_type: LinkType,
    big_endian: bool,
    nanos_per_tick: u32,
}

impl<'a> Reader<'a> {
    /// Checks the file header.
    pub fn new(file: &'a [u8]) -> Result<Reader<'a>, PcapError> {
        let (header, rest) = file.split_first_chunk::<FILE_HEADER_LEN>().ok_or(PcapError::NotPcap)?;
        let words = header.as_chunks::<4>().0;
        let (big_endian, nanos_per_tick) = match (u32::from_le_bytes(words[0]), u32::from_be_bytes(words[0]))
        {
            (MAGIC_NS, _) => (false, 1),
            (MAGIC_US, _) => (false, 1_000),
            (_, MAGIC_NS) => (true, 1),
            (_, MAGIC_US) => (true, 1_000),
            _ => return Err(PcapError::NotPcap),
        };
        // The upper bits say whether frames carry a checksum; they do not matter here.
        let link_type = match word(words[5], big_endian) & 0x0fff_ffff {
            1 => LinkType::Ethernet,
            101 => LinkType::Raw,
            other => return Err(PcapError::LinkType(other)),
        };
        Ok(Reader { rest, link_type, big_endian, nanos_per_tick })
    }

    /// What each record starts with.
    pub fn link_type(&self) -> LinkType {
        self.link_type
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let (header, rest) = self.rest.split_first_chunk::<RECORD_HEADER_LEN>()?;
        let words = header.as_chunks::<4>().0;
        let [seconds, ticks, captured, original_len] = [0, 1, 2, 3].map(|i| word(words[i], self.big_endian));
        let (bytes, rest) = rest.split_at_checked(captured as usize)?;
        self.rest = rest;
        Some(Record { seconds, nanos: ticks.saturating_mul(self.nanos_per_tick), original_len, bytes })
    }
}

fn word(bytes: [u8; 4], big_endian: bool) -> u32 {
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

/// Writes a capture. Unbuffered: give it a `BufWriter` where that matters.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes the file header.
    pub fn new(mut out: W, link_type: LinkType) -> io::Result<Writer<W>> {
        let version = 2 | 4 << 16;
        for word in [MAGIC_NS, version, 0, 0, SNAP_LEN, link_type as u32] {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(Writer { out })
    }

    /// Writes one frame, given in pieces that follow one another.
    pub fn record(&mut self, seconds: u32, nanos: u32, pieces: &[&[u8]]) -> io::Result<()> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        self.record_cut(seconds, nanos, pieces, len)
    }

    /// Writes the beginning of a frame that has `original_len` bytes on the wire.
    pub fn record_cut(
        &mut self,
        seconds: u32,
        nanos: u32,
        pieces: &[&[u8]],
        original_len: usize,
    ) -> io::Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "frame longer than a pcap record");
        let captured = u32::try_from(len).ok().filter(|&len| len <= SNAP_LEN).ok_or_else(too_long)?;
        let original = u32::try_from(original_len.max(len)).map_err(|_| too_long())?;
        let mut header = [0; RECORD_HEADER_LEN];
        for (bytes, word) in
            header.as_chunks_mut::<4>().0.iter_mut().zip([seconds, nanos, captured, original])
        {
            *bytes = word.to_le_bytes();
        }
        self.out.write_all(&header)?;
        pieces.iter().try_for_each(|piece| self.out.write_all(piece))
    }

    /// Flushes what is below.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Gives back what is below.
    pub fn into_inner(self) -> W {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut writer = Writer::new(Vec::new(), LinkType::Raw).unwrap();
        writer.record(7, 999_999_999, &[b"ab", b"", b"c"]).unwrap();
        writer.record_cut(8, 1, &[b"de"], 100).unwrap();
        assert!(writer.record(9, 0, &[&vec![0; SNAP_LEN as usize + 1]]).is_err());
        let file = writer.into_inner();
        let reader = Reader::new(&file).unwrap();
        assert_eq!(reader.link_type(), LinkType::Raw);
        let records: Vec<_> = reader.collect();
        assert_eq!(
            records,
            [
                Record { seconds: 7, nanos: 999_999_999, original_len: 3, bytes: b"abc" },
                Record { seconds: 8, nanos: 1, original_len: 100, bytes: b"de" },
            ]
        );
        for cut in 0..file.len() {
            if let Ok(reader) = Reader::new(&file[..cut]) {
                assert!(reader.count() < 2);
            }
        }
    }

    #[test]
    fn other_byte_order_and_unit() {
        let mut file = Vec::new();
        for word in [MAGIC_US, 2 << 16 | 4, 0, 0, SNAP_LEN, 1, 5, 6, 1, 1] {
            file.extend(word.to_be_bytes());
        }
        file.push(0xaa);
        let mut reader = Reader::new(&file).unwrap();
        assert_eq!(reader.link_type(), LinkType::Ethernet);
        let record = reader.next().unwrap();
        assert_eq!((record.seconds, record.nanos, record.bytes), (5, 6_000, &[0xaa][..]));
        assert_eq!(Reader::new(&[0; 24]).err(), Some(PcapError::NotPcap));
        file[23] = 7;
        assert_eq!(Reader::new(&file).err(), Some(PcapError::LinkType(7)));
    }
}
