//! What a NIC notes for a trace of a run: packets that it gave and took, and what became of requests. Each
//! NIC writes a file of its own into the folder that [`Settings::perfetto`](crate::Settings) names; whoever
//! made the folder reads all of them when the program has ended.
//!
//! Memory is a buffer's, and a file has at most [`NOTES_MAX`] notes; what comes later is counted. What a
//! process notes is in its file a second later, or when nothing happens: one that is killed loses no more.

use crate::board::new_file;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::{Followed, Follower, Nic};
use adverb_os::say;
use adverb_os::signals::Quiet;
use adverb_wire::{Gid, Opcode, Packet, QpNumber};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Notes that a file has at most (48 MB).
pub const NOTES_MAX: u64 = 1 << 20;
const MAGIC: [u8; 8] = *b"adverbN1";
/// Magic, process, notes that had no room, address, name.
const HEAD: usize = 64;
const MISSED_AT: u64 = 16;
const NAME_AT: usize = 40;
const NOTE: usize = 48;
const BUFFER: usize = 1 << 16;

/// What was noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted {
    /// A packet was given to a peer, or taken from one.
    Packet {
        /// It was given.
        sent: bool,
        /// The queue pair that it is for, and the one that it says it is from (datagrams only; or 0).
        to: QpNumber,
        /// See `to`.
        from: QpNumber,
        /// Its number.
        psn: u32,
        /// What it is.
        opcode: Opcode,
        /// The peer's address.
        peer: Gid,
    },
    /// What became of requests.
    Request(Followed),
}

/// A note, with its time in nanoseconds of the clock that all processes of a host share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// When.
    pub at_ns: u64,
    /// What.
    pub what: Noted,
}

/// Words of a note beside its time and kind, as they stand in the file: two bytes, three words of 32 bits,
/// one of 64, an address.
type Words = (u8, [u8; 2], [u32; 3], u64, [u8; 16]);

impl Note {
    fn words(&self) -> Words {
        let none = [0; 16];
        match self.what {
            Noted::Packet { sent, to, from, psn, opcode, peer } => {
                (0, [sent.into(), opcode.wire()], [to.get(), from.get(), psn], 0, peer.0)
            }
            Noted::Request(Followed::Connected { qp, peer, at }) => {
                (1, [0; 2], [qp.get(), peer.get(), 0], 0, at.0)
            }
            Noted::Request(Followed::Posted { qp, block, op, bytes, wr_id }) => {
                (2, [op as u8, 0], [qp.get(), block, bytes], wr_id, none)
            }
            Noted::Request(Followed::Done { qp, end, in_error }) => {
                (3, [in_error.into(), 0], [qp.get(), end, 0], 0, none)
            }
            Noted::Request(Followed::Window { qp, allowed, unacked }) => {
                (4, [0; 2], [qp.get(), allowed, unacked], 0, none)
            }
            Noted::Request(Followed::Gone { qp }) => (5, [0; 2], [qp.get(), 0, 0], 0, none),
        }
    }

    fn bytes(&self) -> [u8; NOTE] {
        let (kind, [a, b], words, long, address) = self.words();
        let mut out = [0; NOTE];
        out[..8].copy_from_slice(&self.at_ns.to_le_bytes());
        (out[8], out[9], out[10]) = (kind, a, b);
        for (at, word) in words.into_iter().enumerate() {
            out[12 + 4 * at..16 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        out[24..32].copy_from_slice(&long.to_le_bytes());
        out[32..].copy_from_slice(&address);
        out
    }

    /// `None` for what no version of this library has written.
    fn read(bytes: &[u8; NOTE]) -> Option<Note> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (flag, [first, second, third]) = (bytes[9], [word(12), word(16), word(20)]);
        let mut address = [0; 16];
        address.copy_from_slice(&bytes[32..]);
        let (qp, gid) = (QpNumber::new(first), Gid(address));
        let request = match bytes[8] {
            0 => {
                let opcode = Opcode::from_wire(bytes[10])?;
                let (sent, to, from) = (flag != 0, qp, QpNumber::new(second));
                let what = Noted::Packet { sent, to, from, psn: third, opcode, peer: gid };
                return Some(Note { at_ns: long(0), what });
            }
            1 => Followed::Connected { qp, peer: QpNumber::new(second), at: gid },
            2 => {
                let op = WqeOp::from_byte(flag)?;
                Followed::Posted { qp, block: second, op, bytes: third, wr_id: long(24) }
            }
            3 => Followed::Done { qp, end: second, in_error: flag != 0 },
            4 => Followed::Window { qp, allowed: second, unacked: third },
            5 => Followed::Gone { qp },
            _ => return None,
        };
        Some(Note { at_ns: long(0), what: Noted::Request(request) })
    }
}

/// A NIC's own file of notes.
#[derive(Debug)]
pub struct Notes {
    file: BufWriter<Quiet<File>>,
    path: PathBuf,
    follower: Follower,
    count: u64,
    missed: u64,
    failed: bool,
}

impl Notes {
    /// Makes the file of this process's NIC in the folder.
    pub fn create(folder: &Path, address: IpAddr) -> io::Result<Notes> {
        let (mut file, path) = new_file(folder)?;
        let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let name = name.trim_end().as_bytes();
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        head[24..NAME_AT].copy_from_slice(&Gid::from(address).0);
        let len = name.len().min(HEAD - NAME_AT);
        head[NAME_AT..NAME_AT + len].copy_from_slice(&name[..len]);
        file.write_all(&head)?;
        let file = BufWriter::with_capacity(BUFFER, Quiet(file));
        Ok(Notes { file, path, follower: Follower::default(), count: 0, missed: 0, failed: false })
    }

    /// A packet was given, or taken.
    pub fn packet(&mut self, at_ns: u64, sent: bool, packet: &Packet) {
        let bth = &packet.bth;
        let peer = if sent { packet.flow.dst } else { packet.flow.src };
        let (to, from, psn, opcode) = (bth.dest_qp, packet.deth.src_qp, bth.psn.get(), bth.opcode);
        self.add(Note { at_ns, what: Noted::Packet { sent, to, from, psn, opcode, peer } });
    }

    /// After each call and each round: what became of requests.
    pub fn look(&mut self, at_ns: u64, nic: &Nic) {
        let mut follower = std::mem::take(&mut self.follower);
        follower.look(nic, &mut |told| self.add(Note { at_ns, what: Noted::Request(told) }));
        self.follower = follower;
    }

    fn add(&mut self, note: Note) {
        if self.count >= NOTES_MAX || self.failed {
            self.missed += 1;
            return;
        }
        self.count += 1;
        let written = self.file.write_all(&note.bytes());
        self.check(written);
    }

    /// Whether something has not reached the file yet.
    pub fn is_dirty(&self) -> bool {
        !self.failed && !self.file.buffer().is_empty()
    }

    /// Puts what was noted into the file.
    pub fn flush(&mut self) {
        if self.failed {
            return;
        }
        let flushed = self.file.flush();
        self.check(flushed);
        if self.missed > 0 {
            let missed = self.file.get_ref().0.write_all_at(&self.missed.to_le_bytes(), MISSED_AT);
            self.check(missed);
        }
    }

    fn check(&mut self, result: io::Result<()>) {
        if let Err(e) = result
            && !self.failed
        {
            self.failed = true;
            say!("adverb: the notes for the trace end here: {}: {e}", self.path.display());
        }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        self.flush();
    }
}

/// What a process has noted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Process, its name when it opened the NIC, and the NIC's address.
    pub pid: u32,
    /// See `pid`.
    pub name: String,
    /// See `pid`.
    pub address: Gid,
    /// In the order in which they were made.
    pub notes: Vec<Note>,
    /// Notes that had no room.
    pub missed: u64,
}

/// Reads what all processes have noted, `most` notes of them; the processes in the order of their first note.
pub fn read(folder: &Path, most: u64) -> io::Result<Vec<Part>> {
    let mut left = most;
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = File::open(entry?.path())?;
        parts.extend(read_part(file, &mut left)?);
    }
    parts.sort_by_key(|part| (part.notes.first().map_or(u64::MAX, |note| note.at_ns), part.pid));
    Ok(parts)
}

/// `None` for the file of a process that was killed before its head was written.
fn read_part(mut file: File, left: &mut u64) -> io::Result<Option<Part>> {
    let len = file.metadata()?.len();
    let mut head = [0; HEAD];
    match file.read_exact(&mut head) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    if head[..8] != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "notes of another version of adverb"));
    }
    let end = head[NAME_AT..].iter().position(|byte| *byte == 0).unwrap_or(HEAD - NAME_AT);
    let name = String::from_utf8_lossy(&head[NAME_AT..NAME_AT + end]).into_owned();
    let mut address = [0; 16];
    address.copy_from_slice(&head[24..NAME_AT]);
    let pid = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    let mut missed = [0; 8];
    missed.copy_from_slice(&head[16..24]);
    // A note that was cut off with its process is none.
    let whole = len.saturating_sub(HEAD as u64) / NOTE as u64;
    let count = whole.min(*left);
    *left -= count;
    let mut reader = io::BufReader::new(file);
    let mut notes = Vec::with_capacity(count as usize);
    let mut bytes = [0; NOTE];
    for _ in 0..count {
        reader.read_exact(&mut bytes)?;
        let note = Note::read(&bytes);
        notes.push(note.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no note"))?);
    }
    let missed = u64::from_le_bytes(missed) + (whole - count);
    Ok(Some(Part { pid, name, address: Gid(address), notes, missed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Note> {
        let (qp, peer) = (QpNumber::new(0xab_cdef), QpNumber::new(0x12_3456));
        let at = Gid::from(IpAddr::from([127, 0, 0, 2]));
        let opcode = Opcode::from_wire(0x04).unwrap();
        let packet = |sent| Noted::Packet { sent, to: qp, from: peer, psn: 0xff_ffff, opcode, peer: at };
        let requests = [
            Followed::Connected { qp, peer, at },
            Followed::Posted { qp, block: u32::MAX, op: WqeOp::Read, bytes: 1 << 31, wr_id: u64::MAX - 1 },
            Followed::Done { qp, end: 7, in_error: true },
            Followed::Done { qp, end: 8, in_error: false },
            Followed::Window { qp, allowed: 128, unacked: 3 },
            Followed::Gone { qp },
        ];
        let what = [packet(true), packet(false)].into_iter().chain(requests.map(Noted::Request));
        what.enumerate().map(|(n, what)| Note { at_ns: (n as u64) << 40, what }).collect()
    }

    #[test]
    fn notes_are_read_as_written() {
        for note in all() {
            assert_eq!(Note::read(&note.bytes()), Some(note));
        }
        let mut strange = all()[0].bytes();
        strange[8] = 9;
        assert_eq!(Note::read(&strange), None);
    }

    #[test]
    fn a_file_has_its_process_and_a_note_that_was_cut_off_is_none() {
        let folder = std::env::temp_dir().join(format!("adverb-notes-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let address = IpAddr::from([127, 0, 0, 1]);
        let mut notes = Notes::create(&folder, address).unwrap();
        assert!(!notes.is_dirty());
        all().into_iter().for_each(|note| notes.add(note));
        assert!(notes.is_dirty());
        notes.flush();
        assert!(!notes.is_dirty());
        notes.count = NOTES_MAX;
        notes.add(all()[0]);
        let path = notes.path.clone();
        drop(notes);
        let [part] = &read(&folder, 100).unwrap()[..] else { panic!("one part") };
        assert_eq!((part.pid, part.address, part.missed), (std::process::id(), Gid::from(address), 1));
        assert_eq!(part.notes, all());
        assert_eq!(read(&folder, 3).unwrap()[0].missed, 1 + all().len() as u64 - 3);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(read(&folder, 100).unwrap()[0].notes, all()[..all().len() - 1]);
        fs::write(&path, &bytes[..HEAD - 1]).unwrap();
        assert!(read(&folder, 100).unwrap().is_empty());
        fs::write(&path, [0; HEAD]).unwrap();
        assert!(read(&folder, 100).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
