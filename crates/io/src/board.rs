//! What a NIC has counted, where others of this user read it: while its process runs, and after that has
//! ended, however it did. Each NIC has a file in memory, its board, with the names and the values of all
//! counters.
//!
//! ```text
//! <directory>/<netns>-<address>-v2/board.<slot>.<generation>  a NIC's that nobody asked to be counted
//! <directory>/runs/<pid namespace>-<pid>-<number>/   the NICs' of one `adverb run` that asked; in there, the
//!                                                    folders of those that run within it
//! ```
//! The process that looks may ask for the latest values: it counts `WANTED` up and rings the bell of the NIC,
//! whose progress thread writes them and sets `TOLD` to the same. On a board that was asked for, what tells
//! whether RDMA happened is written with each call and each round, and the rest every 10 ms: so a process
//! that is killed has told it. Values are words of 8 bytes, each whole; together they are no snapshot.

use crate::counters::IoCounters;
use adverb_nic::{Counters, Nic};
use adverb_os::folders::{private_file, private_folder};
use adverb_os::mapping::Mapping;
use adverb_os::sys;
use adverb_wire::{Duration, Instant};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Says what a file is, and how it is laid out.
const MAGIC: u64 = u64::from_le_bytes(*b"adverbB1");
/// Words of the head.
const MAGIC_AT: usize = 0;
const PID_AT: usize = 1;
const BEGUN_AT: usize = 2;
const NAMESPACE_AT: usize = 3;
const CLOSED_AT: usize = 4;
const WANTED_AT: usize = 5;
const TOLD_AT: usize = 6;
/// Counters, and bytes of the text.
const COUNT_AT: usize = 7;
const TEXT_LEN_AT: usize = 8;
/// Values of what is written with each call.
const LIVE_AT: usize = 16;
/// Values of all counters, in the order of their names.
const VALUES_AT: usize = 64;
const VALUES_MAX: usize = 448;
const TEXT_AT: usize = (VALUES_AT + VALUES_MAX) * 8;
const TEXT_MAX: usize = 12 * 1024;
const LEN: usize = TEXT_AT + TEXT_MAX;
/// Boards in a folder at most; a NIC beyond them is not counted, and says so.
pub const BOARDS_MAX: u32 = 16_384;
/// How deep one run may lie in others.
const DEPTH_MAX: u32 = 8;
/// How old the other counters may be on a board that was asked for.
const REST: Duration = Duration::from_ms(10);

/// What is written with each call, by name; [`live`] has the values.
const LIVE: [&str; 14] = [
    "requests_done",
    "payload_requested",
    "payload_served",
    "completions",
    "error_completions",
    "tx_packets",
    "tx_bytes",
    "rx_packets",
    "rx_bytes",
    "retransmitted_packets",
    "timeouts",
    "qps_created",
    "qps_connected",
    "qps_destroyed",
];

fn live(c: &Counters) -> [u64; LIVE.len()] {
    [
        c.requests_done,
        c.payload_requested,
        c.payload_served,
        c.completions,
        c.error_completions,
        c.tx_packets,
        c.tx_bytes,
        c.rx_packets,
        c.rx_bytes,
        c.retransmitted_packets,
        c.timeouts,
        c.qps_created,
        c.qps_connected,
        c.qps_destroyed,
    ]
}

/// A NIC's own board.
#[derive(Debug)]
pub struct Board {
    memory: Mapping,
    path: PathBuf,
    /// Written with each call.
    asked: bool,
    rest_due: Instant,
}

impl Board {
    /// Makes one in a folder, or at its own path where none is asked for.
    pub fn create(
        asked: Option<&Path>,
        own: &Path,
        address: IpAddr,
        bell: &Path,
        nic: &Nic,
    ) -> io::Result<Board> {
        let (file, path) = match asked {
            Some(folder) => new_file(folder)?,
            None => (private_file().create_new(true).open(own)?, own.to_owned()),
        };
        let made = Self::fill(&file, address, bell, nic);
        let memory = made.inspect_err(|_| remove(&path))?;
        Ok(Board { memory, path, asked: asked.is_some(), rest_due: Instant::ZERO })
    }

    fn fill(file: &File, address: IpAddr, bell: &Path, nic: &Nic) -> io::Result<Mapping> {
        sys::allocate(file.as_fd(), LEN as u64)?;
        let memory = Mapping::of_file(file.as_fd(), LEN)?;
        let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let bell = bell.to_str().ok_or_else(|| io::Error::other("a path that is no UTF-8"))?;
        let mut text = format!("{}\n{address}\n{bell}\n", name.trim_end().replace('\n', " "));
        let mut count = 0;
        for name in names(nic) {
            text += &name;
            text.push('\n');
            count += 1;
        }
        assert!(count <= VALUES_MAX && text.len() <= TEXT_MAX, "a board has room for every counter");
        let mut bytes = text.into_bytes();
        let len = bytes.len();
        bytes.resize(len.next_multiple_of(8), 0);
        let word = |at: usize, value: u64| memory.u64_at(at * 8).store(value, Ordering::Relaxed);
        for (at, eight) in bytes.chunks_exact(8).enumerate() {
            word(TEXT_AT / 8 + at, u64::from_le_bytes(eight.try_into().unwrap_or_default()));
        }
        let pid = std::process::id();
        word(PID_AT, pid.into());
        word(BEGUN_AT, sys::process_begun(pid).unwrap_or(0));
        word(NAMESPACE_AT, sys::pid_namespace());
        word(COUNT_AT, count as u64);
        word(TEXT_LEN_AT, len as u64);
        memory.u64_at(MAGIC_AT * 8).store(MAGIC, Ordering::Release);
        Ok(memory)
    }

    fn word(&self, at: usize) -> &std::sync::atomic::AtomicU64 {
        self.memory.u64_at(at * 8)
    }

    /// After a call or a round, on a board that was asked for.
    #[cold]
    pub fn note(&mut self, now: Instant, nic: &Nic, io: &IoCounters) {
        if !self.asked {
            return;
        }
        self.write_live(nic);
        if now >= self.rest_due {
            self.write_all(nic, io);
            self.rest_due = now + REST;
        }
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Writes everything if somebody wants it.
    pub fn answer(&mut self, nic: &Nic, io: &IoCounters) {
        let wanted = self.word(WANTED_AT).load(Ordering::Acquire);
        if wanted != self.word(TOLD_AT).load(Ordering::Relaxed) {
            self.write_live(nic);
            self.write_all(nic, io);
            self.word(TOLD_AT).store(wanted, Ordering::Release);
        }
    }

    fn write_live(&self, nic: &Nic) {
        for (at, value) in live(nic.counters()).into_iter().enumerate() {
            self.word(LIVE_AT + at).store(value, Ordering::Relaxed);
        }
    }

    fn write_all(&self, nic: &Nic, io: &IoCounters) {
        let own = nic.counters().iter().map(|(_, value)| value);
        let cm = nic.cm_counters().into_iter().flat_map(|cm| cm.iter().map(|(_, value)| value));
        for (at, value) in own.chain(cm).chain(io.iter().map(|(_, value)| value)).enumerate() {
            self.word(VALUES_AT + at).store(value, Ordering::Relaxed);
        }
    }

    /// The NIC is closed: the last values. One that nobody asked for goes.
    pub fn close(self, nic: &Nic, io: &IoCounters) {
        self.write_live(nic);
        self.write_all(nic, io);
        self.word(CLOSED_AT).store(1, Ordering::Release);
        if !self.asked {
            remove(&self.path);
        }
    }
}

fn names(nic: &Nic) -> impl Iterator<Item = String> {
    let own = nic.counters().iter().map(|(name, _)| name.to_owned());
    let cm = nic.cm_counters().into_iter().flat_map(|cm| cm.iter().map(|(name, _)| name.to_owned()));
    own.chain(cm).chain(IoCounters::default().iter().map(|(name, _)| name).collect::<Vec<_>>())
}

fn remove(path: &Path) {
    // Best effort: what is left is removed with its folder, or by the next NIC.
    let _ = fs::remove_file(path);
}

/// A file of this process in a folder of several. A program may become another one, and has the same number
/// then.
pub(crate) fn new_file(folder: &Path) -> io::Result<(File, PathBuf)> {
    for n in 0..BOARDS_MAX {
        let path = folder.join(format!("{}-{}-{n}", sys::pid_namespace(), std::process::id()));
        match private_file().create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("this process has as many boards as there may be"))
}

/// The process in the name of a file or folder that one of this process's namespace has made.
fn owner(name: &str) -> Option<u32> {
    let (namespace, rest) = name.split_once('-')?;
    let (pid, _) = rest.split_once('-')?;
    (namespace.parse() == Ok(sys::pid_namespace())).then(|| pid.parse().ok())?
}

/// Removes what processes have left that were killed.
fn remove_dead(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let dead =
            entry.file_name().to_str().and_then(owner).is_some_and(|p| sys::process_begun(p).is_none());
        if dead {
            remove(&entry.path());
            // Of a run: only files are in there, and folders of the same kind.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The folder of one `adverb run`.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    /// It lies in the folder of another one, which counts it as well.
    is_inner: bool,
}

impl Run {
    /// Makes it: in the directory where processes meet, or in the folder of the run that this one is part of.
    pub fn create(directory: &Path, within: Option<&Path>) -> io::Result<Run> {
        let runs = match within {
            Some(folder) => folder.to_owned(),
            None => {
                private_folder(directory).map_err(io::Error::other)?;
                let runs = directory.join("runs");
                private_folder(&runs).map_err(io::Error::other)?;
                remove_dead(&runs);
                runs
            }
        };
        let name =
            format!("{}-{}-{:08x}", sys::pid_namespace(), std::process::id(), sys::random_seed() as u32);
        let folder = runs.join(name);
        private_folder(&folder).map_err(io::Error::other)?;
        Ok(Run { folder, is_inner: within.is_some() })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes it, unless another run counts what is in it.
    pub fn remove(self) {
        if !self.is_inner {
            // Best effort: the next run removes what is left.
            let _ = fs::remove_dir_all(self.folder);
        }
    }
}

/// What a board says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Process.
    pub pid: u32,
    /// Its name when it opened the NIC.
    pub name: String,
    /// Address of the NIC.
    pub address: String,
    /// The NIC was closed, or its process has ended.
    pub ended: bool,
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
    path: PathBuf,
    bell: PathBuf,
    wanted: u64,
    told: u64,
}

impl Told {
    /// A counter; 0 where that version of the library has none of this name.
    pub fn get(&self, name: &str) -> u64 {
        self.counters.iter().find(|(own, _)| own == name).map_or(0, |(_, value)| *value)
    }

    /// What tells its NIC from all others.
    pub fn key(&self) -> &Path {
        &self.path
    }

    /// Queue pairs that it has.
    pub fn live_qps(&self) -> u64 {
        if self.ended { 0 } else { self.get("qps_created").saturating_sub(self.get("qps_destroyed")) }
    }

    /// Whether what was asked for is here.
    pub fn is_fresh(&self) -> bool {
        self.ended || self.told == self.wanted
    }

    /// Asks for the latest values.
    pub fn ask(&self) {
        if self.ended {
            return;
        }
        let ask = || -> io::Result<()> {
            let file = File::options().write(true).open(&self.path)?;
            file.write_all_at(&(self.wanted + 1).to_le_bytes(), WANTED_AT as u64 * 8)?;
            adverb_os::wake::Bell::open(&self.bell)?.ring();
            Ok(())
        };
        // It may have ended since; then the board tells so.
        let _ = ask();
    }
}

/// Reads the boards in a folder, and in the folders of runs in it, by number of the process.
pub fn read(folder: &Path) -> io::Result<Vec<Told>> {
    let mut told = Vec::new();
    read_into(folder, 0, &mut told)?;
    told.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    Ok(told)
}

/// Reads the boards of all NICs of this user.
pub fn read_all(directory: &Path) -> io::Result<Vec<Told>> {
    let mut told = Vec::new();
    match read_into(directory, 0, &mut told) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    told.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    Ok(told)
}

fn read_into(folder: &Path, depth: u32, told: &mut Vec<Told>) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.take(BOARDS_MAX as usize) {
        let entry = entry?;
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => match read_into(&path, depth + 1, told) {
                // A run within this one that has ended since.
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            },
            Ok(kind) if kind.is_file() && is_named_so(&path) => {
                told.extend(fs::read(&path).ok().and_then(|b| parse(&b, path)))
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a file may be a board: others are not read, of which some are large.
fn is_named_so(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("board.") || name.split('-').count() == 3)
}

/// What a board's bytes say; `None` of one that is not whole yet, or of another layout.
fn parse(bytes: &[u8], path: PathBuf) -> Option<Told> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at * 8..at * 8 + 8)?.try_into().ok()?));
    if bytes.len() != LEN || word(MAGIC_AT)? != MAGIC {
        return None;
    }
    let (count, len) = (word(COUNT_AT)? as usize, word(TEXT_LEN_AT)? as usize);
    let text = std::str::from_utf8(bytes.get(TEXT_AT..TEXT_AT.checked_add(len)?)?).ok()?;
    let mut lines = text.lines();
    let (name, address, bell) = (lines.next()?.to_owned(), lines.next()?.to_owned(), lines.next()?.into());
    let names: Vec<&str> = lines.collect();
    if names.len() != count || count > VALUES_MAX {
        return None;
    }
    let counters = names.into_iter().enumerate().map(|(at, name)| {
        let at = LIVE.iter().position(|live| *live == name).map_or(VALUES_AT + at, |live| LIVE_AT + live);
        Some((name.to_owned(), word(at)?))
    });
    let pid = word(PID_AT)? as u32;
    let gone = word(NAMESPACE_AT)? == sys::pid_namespace() && sys::process_begun(pid) != word(BEGUN_AT);
    Some(Told {
        pid,
        name,
        address,
        ended: word(CLOSED_AT)? != 0 || gone,
        counters: counters.collect::<Option<_>>()?,
        bell,
        wanted: word(WANTED_AT)?,
        told: word(TOLD_AT)?,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_nic::NicConfig;

    fn nic() -> Nic {
        Nic::new(NicConfig { cm: Some(Default::default()), ..NicConfig::default() }, 1u64)
    }

    #[test]
    fn what_is_read_is_what_was_counted_live_and_at_the_end() {
        let directory = std::env::temp_dir().join(format!("adverb-boards-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let run = Run::create(&directory, None).unwrap();
        let inner = Run::create(&directory, Some(run.folder())).unwrap();
        let (address, nic, mut io) = ("127.0.0.1".parse().unwrap(), nic(), IoCounters::default());
        io.wakes = 7;
        let own = directory.join("board.1.1");
        let make = |asked| Board::create(asked, &own, address, Path::new("/bell"), &nic).unwrap();
        let (mut outer, within, unasked) = (make(Some(run.folder())), make(Some(inner.folder())), make(None));
        outer.note(Instant::ZERO, &nic, &io);
        io.wakes = 8;
        outer.note(Instant::ZERO + Duration::from_ms(1), &nic, &io);
        let of_run = read(run.folder()).unwrap();
        assert_eq!(of_run.iter().map(|told| told.get("wakes")).collect::<Vec<_>>(), [7, 0], "every 10 ms");
        assert!(of_run.iter().all(|told| told.pid == std::process::id() && !told.ended));
        assert_eq!(of_run[0].counters.len(), names(&nic).count());
        outer.note(Instant::ZERO + Duration::from_ms(10), &nic, &io);
        assert_eq!(read(run.folder()).unwrap()[0].get("wakes"), 8);
        assert_eq!(read_all(&directory).unwrap().len(), 3);
        for board in [outer, within, unasked] {
            board.close(&nic, &io);
        }
        let all = read_all(&directory).unwrap();
        assert_eq!(
            all.iter().map(|told| (told.ended, told.get("wakes"))).collect::<Vec<_>>(),
            [(true, 8); 2]
        );
        inner.remove();
        assert_eq!(read(run.folder()).unwrap().len(), 2, "the outer one still counts what was in it");
        run.remove();
        assert_eq!(read_all(&directory).unwrap(), []);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn whoever_wants_the_latest_is_told_once() {
        let directory = std::env::temp_dir().join(format!("adverb-wanted-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        private_folder(&directory).unwrap();
        let (address, nic, mut io) = ("127.0.0.1".parse().unwrap(), nic(), IoCounters::default());
        let mut board =
            Board::create(None, &directory.join("board.1.1"), address, Path::new("/no/bell"), &nic).unwrap();
        io.wakes = 3;
        board.note(Instant::ZERO, &nic, &io);
        board.answer(&nic, &io);
        let told = || read_all(&directory).unwrap().remove(0);
        assert_eq!((told().get("wakes"), told().is_fresh()), (0, true), "nobody has asked");
        told().ask();
        assert!(!told().is_fresh());
        board.answer(&nic, &io);
        assert_eq!((told().get("wakes"), told().is_fresh()), (3, true));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_dead_are_swept_and_what_is_no_board_is_left_out() {
        let directory = std::env::temp_dir().join(format!("adverb-swept-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        private_folder(&directory).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let dead = directory.join(format!("{}-{}-0", sys::pid_namespace(), child.id()));
        let elsewhere = directory.join(format!("1-{}-0", child.id()));
        let own = directory.join(format!("{}-{}-0", sys::pid_namespace(), std::process::id()));
        for path in [&dead, &elsewhere, &own] {
            fs::write(path, "no board").unwrap();
        }
        remove_dead(&directory);
        assert_eq!([&dead, &elsewhere, &own].map(|path| path.exists()), [false, true, true]);
        assert_eq!(read(&directory).unwrap(), []);
        fs::write(&own, vec![0xff; LEN]).unwrap();
        assert_eq!(read(&directory).unwrap(), []);
        fs::remove_dir_all(directory).unwrap();
    }
}
