//! A recording of a switch's whole input, and of what left it, as a file: entries, one behind the other.
//!
//! ```text
//! file    ADVERB-SWITCH-1\n, then entries
//! entry   kind 1, length of the body 4, check of these 2, body, check of all since the last Begin 4
//! ```
//! Numbers are little-endian. Each life of a switch begins with a [`Entry::Begin`]; the next one goes on in
//! the same file. What a killed process has not written whole is cut off by the next life, and skipped by a
//! reader, if it is the last that there is. Any other byte that is not what was written is found.

use crate::shifted::Name;
use adverb_os::folders::private_file;
use adverb_switch::PortId;
use adverb_switch::switch::PORTS_MAX;
use adverb_wire::{Gid, Instant, QpNumber};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// What a file begins with.
const MAGIC: &[u8; 16] = b"ADVERB-SWITCH-1\n";
/// Bytes of a body at most: of the queue pairs that a file of shifted ones may name, and a switch's file.
const BODY_MAX: usize = 4 << 20;
/// Kind, length, and the check of both.
const HEAD_LEN: usize = 7;
/// The check of an entry.
const SUM_LEN: usize = 4;
/// Bytes of a recording at least: one that holds nothing shows nothing.
pub const BYTES_MIN: u64 = 4 << 20;
/// What stays free for an end that says what the switch was.
const RESERVE: u64 = 1 << 20;

/// Why a life's recording ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The switch was stopped.
    Stopped,
    /// The recording has as many bytes as it may have.
    Full,
}

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A switch begins.
    Begin {
        /// When.
        now: Instant,
        /// The text of its file.
        config: String,
        /// Queue pairs whose numbers a switch in this place had shifted: what it read at its start.
        shifted: Vec<Name>,
    },
    /// A new port.
    AddPort,
    /// An address is behind a port now.
    Claim(PortId, Gid),
    /// A port has gone.
    RemovePort(Instant, PortId),
    /// So many bytes wait at a port.
    Depth(PortId, u32),
    /// A frame came in at a port.
    Frame(Instant, PortId, Vec<u8>),
    /// What was due was done.
    Timer(Instant),
    /// Somebody changed a program: the question, in JSON.
    Control(Instant, String),
    /// Another file took the place of the one before: its text.
    Reload(Instant, String),
    /// A frame left by a port.
    Out(PortId, Vec<u8>),
    /// No more is to leave for what was done so far.
    Drained,
    /// Counts and digests of registers, by name.
    State(Vec<(String, u64)>),
    /// Nothing more was recorded of this life.
    End(End),
}

/// Why an entry cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file does not begin as a recording does.
    NotARecording,
    /// Bytes are not what was written, from this place in the file on.
    Damaged(u64),
    /// The file cannot be read.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NotARecording => f.write_str("this is no recording of a switch"),
            ReadError::Damaged(at) => {
                write!(f, "the recording is not what was written, from its byte {at} on")
            }
            ReadError::Io(source) => write!(f, "{source}"),
        }
    }
}

impl std::error::Error for ReadError {}

/// FNV-1a, 32 bits, over some bytes more.
fn sum(before: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(before, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

const SUM_START: u32 = 0x811c_9dc5;

impl Entry {
    fn kind(&self) -> u8 {
        match self {
            Entry::Begin { .. } => Kind::BEGIN,
            Entry::AddPort => Kind::ADD_PORT,
            Entry::Claim(..) => Kind::CLAIM,
            Entry::RemovePort(..) => Kind::REMOVE_PORT,
            Entry::Depth(..) => Kind::DEPTH,
            Entry::Frame(..) => Kind::FRAME,
            Entry::Timer(_) => Kind::TIMER,
            Entry::Control(..) => Kind::CONTROL,
            Entry::Reload(..) => Kind::RELOAD,
            Entry::Out(..) => Kind::OUT,
            Entry::Drained => Kind::DRAINED,
            Entry::State(_) => Kind::STATE,
            Entry::End(_) => Kind::END,
        }
    }

    fn put_body(&self, body: &mut Vec<u8>) {
        let put_time = |body: &mut Vec<u8>, at: &Instant| body.extend_from_slice(&at.as_ps().to_le_bytes());
        let put_port = |body: &mut Vec<u8>, port: &PortId| body.extend_from_slice(&port.0.to_le_bytes());
        match self {
            Entry::Begin { now, config, shifted } => {
                put_time(body, now);
                body.extend_from_slice(&(shifted.len() as u32).to_le_bytes());
                for Name { server, client, qpn } in shifted {
                    body.extend_from_slice(&server.0);
                    body.extend_from_slice(&client.0);
                    body.extend_from_slice(&qpn.get().to_le_bytes());
                }
                body.extend_from_slice(config.as_bytes());
            }
            Entry::AddPort | Entry::Drained => {}
            Entry::Claim(port, address) => {
                put_port(body, port);
                body.extend_from_slice(&address.0);
            }
            Entry::RemovePort(now, port) => {
                put_time(body, now);
                put_port(body, port);
            }
            Entry::Depth(port, bytes) => {
                put_port(body, port);
                body.extend_from_slice(&bytes.to_le_bytes());
            }
            Entry::Frame(now, port, bytes) => {
                put_time(body, now);
                put_port(body, port);
                body.extend_from_slice(bytes);
            }
            Entry::Timer(now) => put_time(body, now),
            Entry::Control(now, text) | Entry::Reload(now, text) => {
                put_time(body, now);
                body.extend_from_slice(text.as_bytes());
            }
            Entry::Out(port, bytes) => {
                put_port(body, port);
                body.extend_from_slice(bytes);
            }
            Entry::State(counts) => {
                for (name, count) in counts {
                    // Names are this program's own.
                    body.push(name.len() as u8);
                    body.extend_from_slice(name.as_bytes());
                    body.extend_from_slice(&count.to_le_bytes());
                }
            }
            Entry::End(end) => body.push(u8::from(*end == End::Full)),
        }
    }

    /// What a body of a kind says. None if it says nothing that could have been written.
    fn parse(kind: u8, body: &[u8]) -> Option<Entry> {
        let mut rest = Rest(body);
        let entry = match kind {
            Kind::BEGIN => {
                let (now, count) = (rest.time()?, rest.u32()? as usize);
                let mut shifted = Vec::new();
                for _ in 0..count {
                    let (server, client) = (Gid(rest.array()?), Gid(rest.array()?));
                    shifted.push(Name { server, client, qpn: QpNumber::new(rest.u32()?) });
                }
                Entry::Begin { now, config: rest.text()?, shifted }
            }
            Kind::ADD_PORT => Entry::AddPort,
            Kind::CLAIM => Entry::Claim(rest.port()?, Gid(rest.array()?)),
            Kind::REMOVE_PORT => Entry::RemovePort(rest.time()?, rest.port()?),
            Kind::DEPTH => Entry::Depth(rest.port()?, rest.u32()?),
            Kind::FRAME => Entry::Frame(rest.time()?, rest.port()?, rest.all()),
            Kind::TIMER => Entry::Timer(rest.time()?),
            Kind::CONTROL => Entry::Control(rest.time()?, rest.text()?),
            Kind::RELOAD => Entry::Reload(rest.time()?, rest.text()?),
            Kind::OUT => Entry::Out(rest.port()?, rest.all()),
            Kind::DRAINED => Entry::Drained,
            Kind::STATE => {
                let mut counts = Vec::new();
                while !rest.0.is_empty() {
                    let [len] = rest.array()?;
                    let name = rest.take(usize::from(len))?;
                    let name = String::from_utf8(name.to_vec()).ok()?;
                    counts.push((name, u64::from_le_bytes(rest.array()?)));
                }
                Entry::State(counts)
            }
            Kind::END => match rest.array()? {
                [0] => Entry::End(End::Stopped),
                [1] => Entry::End(End::Full),
                _ => return None,
            },
            _ => return None,
        };
        rest.0.is_empty().then_some(entry)
    }
}

/// Numbers of kinds in the file.
struct Kind;

impl Kind {
    const BEGIN: u8 = 1;
    const ADD_PORT: u8 = 2;
    const CLAIM: u8 = 3;
    const REMOVE_PORT: u8 = 4;
    const DEPTH: u8 = 5;
    const FRAME: u8 = 6;
    const TIMER: u8 = 7;
    const CONTROL: u8 = 8;
    const OUT: u8 = 9;
    const STATE: u8 = 10;
    const END: u8 = 11;
    const DRAINED: u8 = 12;
    const RELOAD: u8 = 13;
}

/// What of a body was not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn time(&mut self) -> Option<Instant> {
        self.array().map(u64::from_le_bytes).map(Instant::from_ps)
    }

    fn port(&mut self) -> Option<PortId> {
        let port = self.array().map(u16::from_le_bytes)?;
        (usize::from(port) < PORTS_MAX).then_some(PortId(port))
    }

    fn all(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.all()).ok()
    }
}

/// The way into a recording.
#[derive(Debug)]
pub struct Tape {
    file: BufWriter<File>,
    sum: u32,
    bytes: u64,
    bytes_max: u64,
    body: Vec<u8>,
}

impl Tape {
    /// Begins a recording of at most so many bytes, or goes on behind the last life in one that is there.
    ///
    /// # Errors
    /// Something else is there, another process writes to it, or it is full.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Tape> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let mut file = private_file().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.try_lock().is_err() {
            return wrong("another process writes to this recording; give another file");
        }
        let mut end = file.metadata()?.len();
        if end > 0 {
            let mut reader = match Reader::new(BufReader::new(&mut file)) {
                Err(ReadError::NotARecording) => return wrong("something else is there, and stays"),
                reader => reader.map_err(io::Error::other)?,
            };
            while reader.next().map_err(io::Error::other)?.is_some() {}
            end = reader.at;
        }
        if end + RESERVE >= bytes_max {
            return wrong("the recording is full; give another file, or more bytes");
        }
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        let mut tape = Tape {
            file: BufWriter::with_capacity(1 << 18, file),
            sum: SUM_START,
            bytes: end,
            bytes_max,
            body: Vec::new(),
        };
        if end == 0 {
            tape.file.write_all(MAGIC)?;
            tape.bytes = MAGIC.len() as u64;
        }
        Ok(tape)
    }

    /// Whether only the end has room.
    pub fn is_full(&self) -> bool {
        self.bytes + RESERVE > self.bytes_max
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// It cannot be written, so the recording has ended.
    pub fn add(&mut self, entry: &Entry) -> io::Result<()> {
        self.body.clear();
        entry.put_body(&mut self.body);
        if self.body.len() > BODY_MAX {
            return Err(io::Error::other("an entry is longer than an entry may be"));
        }
        if matches!(entry, Entry::Begin { .. }) {
            self.sum = SUM_START;
        }
        let head = head(entry.kind(), self.body.len() as u32);
        self.sum = sum(sum(self.sum, &head), &self.body);
        for part in [&head[..], &self.body, &self.sum.to_le_bytes()] {
            self.file.write_all(part)?;
        }
        self.bytes += (HEAD_LEN + self.body.len() + SUM_LEN) as u64;
        Ok(())
    }

    /// Hands all of it to the system.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The head of an entry: a length that is not what was written must not pass for an entry that is cut short.
fn head(kind: u8, len: u32) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[0] = kind;
    head[1..5].copy_from_slice(&len.to_le_bytes());
    let check = sum(SUM_START, &head[..5]);
    head[5..].copy_from_slice(&((check ^ check >> 16) as u16).to_le_bytes());
    head
}

/// The way out of one.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    sum: u32,
    /// Where the next entry begins.
    pub at: u64,
    /// Whether the last entry was cut short.
    pub is_cut: bool,
}

impl<R: Read> Reader<R> {
    /// Reads a recording from its beginning on.
    ///
    /// # Errors
    /// It is none.
    pub fn new(mut input: R) -> Result<Reader<R>, ReadError> {
        let mut magic = [0; MAGIC.len()];
        match fill(&mut input, &mut magic)? {
            true if magic == *MAGIC => {
                Ok(Reader { input, sum: SUM_START, at: magic.len() as u64, is_cut: false })
            }
            _ => Err(ReadError::NotARecording),
        }
    }

    /// The next entry; none at the end.
    ///
    /// # Errors
    /// What is there was not written so.
    #[expect(clippy::should_implement_trait, reason = "it fails")]
    pub fn next(&mut self) -> Result<Option<Entry>, ReadError> {
        let mut first = [0; HEAD_LEN];
        let damaged = ReadError::Damaged(self.at);
        if !fill(&mut self.input, &mut first[..1])? {
            return Ok(None);
        }
        self.is_cut = true;
        if !fill(&mut self.input, &mut first[1..])? {
            return Ok(None);
        }
        let len = u32::from_le_bytes([first[1], first[2], first[3], first[4]]);
        if first != head(first[0], len) || len as usize > BODY_MAX {
            return Err(damaged);
        }
        let mut body = vec![0; len as usize + SUM_LEN];
        if !fill(&mut self.input, &mut body)? {
            return Ok(None);
        }
        let (body, written) = body.split_at(len as usize);
        let before = if first[0] == Kind::BEGIN { SUM_START } else { self.sum };
        self.sum = sum(sum(before, &first), body);
        if written != self.sum.to_le_bytes() {
            return Err(damaged);
        }
        let entry = Entry::parse(first[0], body).ok_or(damaged)?;
        self.is_cut = false;
        self.at += (HEAD_LEN + body.len() + SUM_LEN) as u64;
        Ok(Some(entry))
    }
}

/// Fills a buffer. False if the input ends before.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<bool, ReadError> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(ReadError::Io(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let (at, port) = (Instant::from_ps(0x0102_0304_0506), PortId(3));
        let begin = |config: &str| Entry::Begin {
            now: at,
            config: config.to_owned(),
            shifted: vec![Name { server: Gid([6; 16]), client: Gid([7; 16]), qpn: QpNumber::new(0x12_3456) }],
        };
        vec![
            begin("name = 'a'"),
            Entry::AddPort,
            Entry::Claim(port, Gid([9; 16])),
            Entry::Depth(port, 77),
            Entry::Frame(at, port, vec![1; 100]),
            Entry::Timer(at),
            Entry::Control(at, "{}".to_owned()),
            Entry::Reload(at, "name = 'b'".to_owned()),
            Entry::Out(port, vec![2; 60]),
            Entry::Drained,
            Entry::RemovePort(at, port),
            Entry::State(vec![("rx_frames".to_owned(), u64::MAX), (String::new(), 0)]),
            Entry::End(End::Stopped),
            begin(""),
            Entry::End(End::Full),
        ]
    }

    fn all(bytes: &[u8]) -> Result<(Vec<Entry>, bool), ReadError> {
        let mut reader = Reader::new(bytes)?;
        let mut found = Vec::new();
        while let Some(entry) = reader.next()? {
            found.push(entry);
        }
        Ok((found, reader.is_cut))
    }

    fn write(test: &str) -> (std::path::PathBuf, Vec<u8>) {
        let path = std::env::temp_dir().join(format!("adverb-tape-{}-{test}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut tape = Tape::open(&path, BYTES_MIN).unwrap();
        entries().iter().for_each(|entry| tape.add(entry).unwrap());
        tape.flush().unwrap();
        drop(tape);
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    }

    #[test]
    fn what_was_written_is_read_and_no_byte_of_it_may_be_another() {
        let (path, bytes) = write("bytes");
        assert_eq!(all(&bytes).unwrap(), (entries(), false));
        for at in 0..bytes.len() {
            for bit in [1, 0x80] {
                let mut other = bytes.clone();
                other[at] ^= bit;
                assert!(all(&other).is_err(), "byte {at}");
            }
        }
        // What a killed process leaves.
        let mut cuts = 0;
        for len in MAGIC.len()..bytes.len() {
            let (found, is_cut) = all(&bytes[..len]).unwrap();
            assert_eq!(found, entries()[..found.len()]);
            cuts += usize::from(is_cut);
        }
        assert_eq!(cuts, bytes.len() - MAGIC.len() - entries().len(), "all places but ends of entries");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_next_life_goes_on_behind_the_last_whole_entry() {
        let (path, bytes) = write("again");
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let mut tape = Tape::open(&path, BYTES_MIN).unwrap();
        assert!(Tape::open(&path, BYTES_MIN).unwrap_err().to_string().contains("another process"));
        let more = entries();
        more.iter().for_each(|entry| tape.add(entry).unwrap());
        tape.flush().unwrap();
        drop(tape);
        let (found, is_cut) = all(&std::fs::read(&path).unwrap()).unwrap();
        let first = &entries()[..entries().len() - 1];
        assert_eq!((found, is_cut), ([first, &more].concat(), false));
        // Full, damaged, and somebody else's.
        assert!(Tape::open(&path, RESERVE).unwrap_err().to_string().contains("full"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(Tape::open(&path, BYTES_MIN).unwrap_err().to_string().contains("not what was written"));
        std::fs::write(&path, "a letter to somebody").unwrap();
        assert!(Tape::open(&path, BYTES_MIN).unwrap_err().to_string().contains("something else"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_recording_has_room_for_its_end() {
        let path = std::env::temp_dir().join(format!("adverb-tape-{}-full", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut tape = Tape::open(&path, BYTES_MIN).unwrap();
        while !tape.is_full() {
            tape.add(&Entry::Out(PortId(0), vec![5; 60_000])).unwrap();
        }
        tape.add(&Entry::State(vec![("rx_frames".to_owned(), 1); 3000])).unwrap();
        tape.add(&Entry::End(End::Full)).unwrap();
        tape.flush().unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < BYTES_MIN);
        std::fs::remove_file(path).unwrap();
    }
}
