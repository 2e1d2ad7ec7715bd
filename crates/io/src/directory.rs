//! How processes of one user find each other: a table in shared memory per network namespace and address.
//!
//! Each live process owns one of 254 slots. What proves that it lives is a record lock on one byte of the
//! table's file, which the kernel drops when the process ends, even by SIGKILL, and which a child does not
//! inherit; it is right across PID namespaces too. Whoever claims a slot next cleans up behind the dead.
//!
//! ```text
//! <directory>/numbers                                        where a new table begins to count
//! <directory>/<netns>-<address>-v2/table                     this table
//!                                 /ports                     who has which port of rdma_cm (`ports.rs`)
//!                                 /board.<slot>.<generation> what is counted (`board.rs`)
//!                                 /bell.<slot>.<generation>  FIFO that wakes the slot's process
//!                                 /ring.<slot>.<generation>.<slot>.<generation>  frames from, to
//! ```
//! A ring's file is removed by its receiver as soon as it has mapped it. A sender that ends leaves those that
//! their receivers have not mapped yet: there are frames in them whose work requests have completed.
//!
//! The last process to leave removes the table. Processes that were killed leave it to the next one of the
//! address.
//!
//! The table's first word names the layout of all this, rings included. A process that knows another one is
//! refused while others live: each would take the other's frames for nonsense.

mod names;

use crate::error::OpenError;
use crate::ports::{self, Ports};
use adverb_os::folders::{namespace, private_file, private_folder};
use adverb_os::mapping::Mapping;
use adverb_os::ring::{LAYOUT, MAX_ENTRY, RING_LEN};
use adverb_os::shm::{Mirror, PAGE};
use adverb_os::sys;
use adverb_os::wake::Bell;
use names::{Named, RingName, remove_files, remove_files_of};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Number of a process within its host, the upper eight bits of its queue pair numbers. Zero is that of
/// the well-known queue pairs 0 and 1, and 255 that of multicast: no process has these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(u8);

impl Slot {
    /// Slots that processes take: `1..=LAST`.
    pub const LAST: u8 = 254;

    /// `None` for numbers that no process has.
    pub const fn new(number: u8) -> Option<Slot> {
        if number >= 1 && number <= Self::LAST { Some(Slot(number)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// For tables by slot; below 256.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Every slot.
    pub fn all() -> impl Iterator<Item = Slot> {
        (1..=Self::LAST).map(Slot)
    }
}

/// Says whose table this is, how it and rings are used, and in its last byte how rings are laid out.
const MAGIC: u64 = u64::from_le_bytes([b'a', b'd', b'v', b'e', b'r', b'b', 1, LAYOUT]);
const MAGIC_AT: usize = 0;
const NEXT_SLOT_AT: usize = 8;
const NEXT_GENERATION_AT: usize = 16;
/// Counts what may change which index a process's socket has: births, deaths, and what was found out.
const CHANGES_AT: usize = 24;
const ENTRY_LEN: usize = 256;
const PID_AT: usize = 0;
const GENERATION_AT: usize = 8;
const ARMED_AT: usize = 64;
const WAKER_AT: usize = 68;
/// The index of the process's socket among those of the port, plus one; 0 while it does not know.
const INDEX_AT: usize = 72;
const ANNOUNCED_AT: usize = 128;
const THREAD_AT: usize = 4;
const PID_NAMESPACE_AT: usize = 16;
const WORDS_AT: usize = 192;
/// The smallest ring that is made where memory is short: a few packets of 4 KB.
const RING_LEN_MIN: usize = 1 << 16;
const _: () = assert!(MAX_ENTRY * 8 <= RING_LEN_MIN && RING_LEN_MIN <= RING_LEN);
const TABLE_LEN: usize = PAGE + 256 * ENTRY_LEN;
/// Byte of the file that is locked while slots are given out.
const CLAIM_LOCK: u64 = 0;
/// Byte whose lock says that slot 0 lives; the others follow.
const LIFE_LOCKS: u64 = 1 << 20;
/// How long one process may hold the claim lock before it is taken to be stopped. It binds the port
/// meanwhile, which may take a second.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);
/// The same for one that leaves.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);

/// What a process leaves word of in its entry, for peers that have no answer from it. Zero of a process of a
/// version that leaves none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// As of when it had dealt with everything in its rings: nanoseconds of the host's monotonic clock.
    Rings,
    /// The same for its rings and its socket.
    Socket,
    /// Whether its progress thread waits for the socket, and does nothing else.
    Rests,
}

/// A table as everyone may look at it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    file: Option<&'a File>,
    table: &'a Mapping,
}

impl View<'_> {
    /// Which process a slot holds now; zero if none.
    pub fn generation_of(&self, slot: Slot) -> u64 {
        self.table.u64_at(entry_at(slot) + GENERATION_AT).load(Ordering::Acquire)
    }

    /// Whether a slot's process lives. Its own locks a process does not see.
    pub fn is_alive(&self, slot: Slot) -> bool {
        self.table.u32_at(entry_at(slot) + PID_AT).load(Ordering::Relaxed) == std::process::id()
            || self
                .file
                .is_some_and(|file| sys::is_locked_elsewhere(file.as_fd(), life_lock(slot)).unwrap_or(false))
    }

    /// Process and progress thread of a slot, if their numbers mean anything in this process's namespace.
    pub fn thread_of(&self, slot: Slot) -> Option<(u32, u32)> {
        let number = |at| self.table.u32_at(entry_at(slot) + at).load(Ordering::Relaxed);
        let namespace = self.table.u64_at(entry_at(slot) + PID_NAMESPACE_AT).load(Ordering::Relaxed);
        let (pid, tid) = (number(PID_AT), number(THREAD_AT));
        (tid != 0 && namespace == sys::pid_namespace()).then_some((pid, tid))
    }

    /// What a slot's process has left word of.
    pub fn word(&self, slot: Slot, word: Word) -> u64 {
        self.table.u64_at(word_at(slot, word)).load(Ordering::Acquire)
    }

    /// Whether a slot's process wants its bell rung.
    pub fn is_armed(&self, slot: Slot) -> bool {
        self.table.u32_at(entry_at(slot) + ARMED_AT).load(Ordering::Relaxed) != 0
    }
}

/// The table of another address of this host, only looked at.
#[derive(Debug)]
pub struct Neighbour {
    /// Not closed as long as it has a name: this process may have a NIC of that address too, whose locks a
    /// close would give up.
    file: Option<File>,
    table: Mapping,
}

impl Neighbour {
    /// Opens the table of an address, if there is one that this version understands.
    pub fn open(directory: &Path, address: IpAddr) -> Option<Neighbour> {
        let file = private_file().open(folder_of(directory, address).join("table")).ok()?;
        let found = Mapping::of_file(file.as_fd(), TABLE_LEN).ok().filter(|table| {
            let has_all = file.metadata().is_ok_and(|found| found.len() >= TABLE_LEN as u64);
            has_all && table.u64_at(MAGIC_AT).load(Ordering::Relaxed) == MAGIC
        });
        match found {
            Some(table) => Some(Neighbour { file: Some(file), table }),
            None => {
                std::mem::forget(file);
                None
            }
        }
    }

    /// Whether the address's last process has removed it since.
    pub fn is_removed(&self) -> bool {
        self.file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|found| found.nlink() == 0)
    }

    /// The table.
    pub fn view(&self) -> View<'_> {
        View { file: self.file.as_ref(), table: &self.table }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        if !self.is_removed() {
            std::mem::forget(self.file.take());
        }
    }
}

/// This process's place in the table, and its view of everyone else's.
#[derive(Debug)]
pub struct Member {
    folder: PathBuf,
    file: File,
    table: Mapping,
    slot: Slot,
    generation: u64,
    bell: Bell,
    ports: Ports,
}

/// The folder of one address in this network namespace.
pub fn folder_of(directory: &Path, address: IpAddr) -> PathBuf {
    directory.join(format!("{}-{address}-v2", namespace()))
}

impl Member {
    /// Takes a slot. `bind` is called while nobody else can take one, and is told whether this process is
    /// the address's only one.
    pub fn claim<R>(
        directory: &Path,
        address: IpAddr,
        bind: impl FnOnce(bool, &Path) -> Result<R, OpenError>,
    ) -> Result<(Member, R), OpenError> {
        private_folder(directory)?;
        let folder = folder_of(directory, address);
        let failed = |source| OpenError::Directory { path: folder.clone(), source };
        let file = open_table(&folder)?;
        // Closing the file drops the lock, so an early return does not keep it.
        sys::allocate(file.as_fd(), TABLE_LEN as u64).map_err(failed)?;
        let table = Mapping::of_file(file.as_fd(), TABLE_LEN).map_err(failed)?;
        let alive = |slot: Slot| sys::is_locked_elsewhere(file.as_fd(), life_lock(slot));
        let knows_us = table.u64_at(MAGIC_AT).load(Ordering::Relaxed) == MAGIC;
        let numbers = open_numbers(directory)?;
        let after = match knows_us {
            true => table.u32_at(NEXT_SLOT_AT).load(Ordering::Relaxed),
            false => (numbers.u64_at(0).load(Ordering::Relaxed) % u64::from(Slot::LAST)) as u32,
        } % u32::from(Slot::LAST);
        let (mut sole, mut free) = (true, None);
        for i in 0..u32::from(Slot::LAST) {
            let slot = Slot(((after + i) % u32::from(Slot::LAST) + 1) as u8);
            match alive(slot).map_err(failed)? {
                true => sole = false,
                false if free.is_none() => free = Some(slot),
                false => {}
            }
        }
        if !knows_us && !sole {
            return Err(OpenError::OtherVersion { address, path: folder.clone() });
        }
        let slot = free.ok_or_else(|| OpenError::Full { path: folder.clone() })?;
        let bound = bind(sole, &folder)?;

        remove_files_of(&folder, |owner| owner == slot.get() || (sole && owner != 0));
        if !knows_us {
            table.u64_at(NEXT_GENERATION_AT).store(1, Ordering::Relaxed);
            table.u64_at(MAGIC_AT).store(MAGIC, Ordering::Relaxed);
        }
        let further = (u32::from(slot.get()) + u32::from(Slot::LAST) - 1 - after) % u32::from(Slot::LAST) + 1;
        numbers.u64_at(0).fetch_add(u64::from(further), Ordering::Relaxed);
        let generation = table.u64_at(NEXT_GENERATION_AT).fetch_add(1, Ordering::Relaxed);
        table.u32_at(NEXT_SLOT_AT).store(u32::from(slot.get()), Ordering::Relaxed);
        let bell = Bell::create(&bell_path(&folder, slot, generation)).map_err(failed)?;
        let ports = Ports::of(&folder);
        for word in 0..ENTRY_LEN / 8 {
            table.u64_at(entry_at(slot) + word * 8).store(0, Ordering::Relaxed);
        }
        table.u32_at(entry_at(slot) + PID_AT).store(std::process::id(), Ordering::Relaxed);
        table.u64_at(entry_at(slot) + PID_NAMESPACE_AT).store(sys::pid_namespace(), Ordering::Relaxed);
        for word in [Word::Rings, Word::Socket] {
            // Long ago, but it leaves word.
            table.u64_at(word_at(slot, word)).store(1, Ordering::Relaxed);
        }
        table.u64_at(entry_at(slot) + GENERATION_AT).store(generation, Ordering::Release);
        sys::lock_byte(file.as_fd(), life_lock(slot)).map_err(failed)?;
        // Those who went before it may have moved others.
        table.u32_at(CHANGES_AT).fetch_add(1, Ordering::Release);
        sys::unlock_byte(file.as_fd(), CLAIM_LOCK);
        Ok((Member { folder, file, table, slot, generation, bell, ports }, bound))
    }

    /// The ports that processes of this address have.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Which process this is among those that ever had its slot.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// This process's slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The table.
    pub fn view(&self) -> View<'_> {
        View { file: Some(&self.file), table: &self.table }
    }

    /// Leaves word for peers.
    #[inline]
    pub fn leave_word(&self, word: Word, value: u64) {
        self.table.u64_at(word_at(self.slot, word)).store(value, Ordering::Release);
    }

    /// The calling thread is this process's progress thread.
    pub fn note_thread(&self) {
        self.table.u32_at(entry_at(self.slot) + THREAD_AT).store(sys::thread_id(), Ordering::Relaxed);
    }

    /// The folder of this address.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where that which wakes this process's progress thread has its name.
    pub fn bell_path(&self) -> PathBuf {
        bell_path(&self.folder, self.slot, self.generation)
    }

    /// Where this process's board is, unless it is asked for elsewhere.
    pub fn board_path(&self) -> PathBuf {
        self.folder.join(format!("board.{}.{}", self.slot.get(), self.generation))
    }

    /// What wakes this process's progress thread.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Which process a slot holds now; zero if none ever did.
    #[inline]
    pub fn generation_of(&self, slot: Slot) -> u64 {
        self.table.u64_at(entry_at(slot) + GENERATION_AT).load(Ordering::Acquire)
    }

    /// Whether a slot's process lives.
    pub fn is_alive(&self, slot: Slot) -> bool {
        slot == self.slot || sys::is_locked_elsewhere(self.file.as_fd(), life_lock(slot)).unwrap_or(false)
    }

    /// Slots of other processes that live.
    pub fn others(&self) -> impl Iterator<Item = Slot> {
        Slot::all().filter(|&slot| slot != self.slot && self.generation_of(slot) != 0 && self.is_alive(slot))
    }

    /// The word that is set while a slot's process wants its bell rung.
    #[inline]
    pub fn armed(&self, slot: Slot) -> &AtomicU32 {
        self.table.u32_at(entry_at(slot) + ARMED_AT)
    }

    /// The word that is set while this process wants its bell rung.
    #[inline]
    pub fn own_armed(&self) -> &AtomicU32 {
        self.armed(self.slot)
    }

    /// The processor from which a slot's bell was rung last.
    #[inline]
    pub fn waker_cpu(&self, slot: Slot) -> &AtomicU32 {
        self.table.u32_at(entry_at(slot) + WAKER_AT)
    }

    /// How often something changed that concerns who gets which datagrams.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.table.u32_at(CHANGES_AT).load(Ordering::Acquire)
    }

    /// Something changed, or a datagram went to the wrong process.
    pub fn note_change(&self) {
        self.table.u32_at(CHANGES_AT).fetch_add(1, Ordering::AcqRel);
    }

    /// Notes the index of this process's socket among those of the port.
    pub fn set_index(&self, index: u8) {
        self.table.u32_at(entry_at(self.slot) + INDEX_AT).store(u32::from(index) + 1, Ordering::Release);
    }

    /// What was noted last.
    pub fn own_index(&self) -> Option<u8> {
        let noted = self.table.u32_at(entry_at(self.slot) + INDEX_AT).load(Ordering::Acquire);
        u8::try_from(noted.checked_sub(1)?).ok()
    }

    /// Slots of processes that live, this one included, and the indexes of their sockets.
    pub fn indexes(&self) -> Vec<(u8, u8)> {
        let index = |slot: Slot| self.table.u32_at(entry_at(slot) + INDEX_AT).load(Ordering::Acquire);
        let known = Slot::all().filter(|&slot| index(slot) != 0 && self.generation_of(slot) != 0);
        let alive = known.filter(|&slot| self.is_alive(slot));
        alive.filter_map(|slot| Some((slot.get(), u8::try_from(index(slot) - 1).ok()?))).collect()
    }

    /// Wakes all other processes, to look after what changed.
    fn wake_others(&self) {
        for slot in self.others() {
            if let Ok(bell) = self.open_bell(slot, self.generation_of(slot)) {
                bell.ring();
            }
        }
    }

    fn announced(&self, slot: Slot, word: usize) -> &AtomicU64 {
        self.table.u64_at(entry_at(slot) + ANNOUNCED_AT + word * 8)
    }

    /// Opens a slot's bell.
    pub fn open_bell(&self, slot: Slot, generation: u64) -> io::Result<Bell> {
        Bell::open(&bell_path(&self.folder, slot, generation))
    }

    /// Makes the ring to a live process and announces it. Where the file system is full, a smaller one will
    /// do.
    pub fn create_ring(&self, to: Slot, generation: u64) -> io::Result<Mirror> {
        let path = self.ring_path(self.slot, self.generation, to, generation);
        let make = |len| {
            let made = private_file().create_new(true).open(&path).and_then(|file| {
                sys::allocate(file.as_fd(), Mirror::file_len(len))?;
                Mirror::map(file.as_fd(), len)
            });
            if made.is_err() {
                let _ = fs::remove_file(&path);
            }
            made
        };
        let mut len = RING_LEN;
        let mirror = loop {
            match make(len) {
                Ok(mirror) => break mirror,
                Err(e) if len == RING_LEN_MIN => return Err(e),
                Err(_) => len /= 2,
            }
        };
        self.announced(to, self.slot.index() / 64).fetch_or(1 << (self.slot.index() % 64), Ordering::Release);
        Ok(mirror)
    }

    /// Whether rings to this process have been announced.
    #[inline]
    pub fn has_announced_rings(&self) -> bool {
        (0..4).any(|word| self.announced(self.slot, word).load(Ordering::Relaxed) != 0)
    }

    /// Opens the rings that were announced since the last call: sender, its generation, the memory.
    pub fn take_announced_rings(&self) -> Vec<(Slot, u64, Mirror)> {
        let mut found = Vec::new();
        for word in 0..4 {
            let mut bits = self.announced(self.slot, word).swap(0, Ordering::Acquire);
            while bits != 0 {
                let number = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(from) = Slot::new(number as u8) else { continue };
                // The sender may have ended since, and another have its slot.
                for generation in self.rings_from(from) {
                    // One that was killed while it made the file leaves the wrong size.
                    if let Ok(mirror) = self.open_ring(from, generation) {
                        found.push((from, generation, mirror));
                    }
                }
            }
        }
        found
    }

    /// Generations of a slot that have made rings to this process which it has not opened, the oldest first.
    fn rings_from(&self, from: Slot) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let rings = entries.flatten().filter_map(|entry| RingName::parse(entry.file_name().to_str()?));
        let to_us = |ring: &RingName| ring.from == from.get() && ring.to == self.slot.get();
        let fresh = rings.filter(|ring| to_us(ring) && ring.to_generation == self.generation);
        let mut generations: Vec<u64> = fresh.map(|ring| ring.from_generation).collect();
        generations.sort_unstable();
        generations
    }

    fn open_ring(&self, from: Slot, generation: u64) -> io::Result<Mirror> {
        let path = self.ring_path(from, generation, self.slot, self.generation);
        let file = private_file().open(&path)?;
        fs::remove_file(&path)?;
        let size = file.metadata()?.len();
        let lengths = std::iter::successors(Some(RING_LEN), |len| Some(len / 2));
        let mut possible = lengths.take_while(|&len| len >= RING_LEN_MIN);
        let len = possible.find(|&len| Mirror::file_len(len) == size).ok_or(io::ErrorKind::InvalidData)?;
        Mirror::map(file.as_fd(), len)
    }

    fn ring_path(&self, from: Slot, from_generation: u64, to: Slot, to_generation: u64) -> PathBuf {
        self.folder.join(format!("ring.{}.{from_generation}.{}.{to_generation}", from.get(), to.get()))
    }

    /// Gives the slot back and removes its files. To be called once, by the process that claimed it.
    pub fn leave(&self) {
        self.table.u64_at(entry_at(self.slot) + GENERATION_AT).store(0, Ordering::Release);
        fence(Ordering::SeqCst);
        // Its socket is closed, and the last one of the port has its index.
        self.note_change();
        self.wake_others();
        // Who does not get the lock leaves its files to the next one that claims a slot.
        if matches!(sys::lock_byte_patiently(self.file.as_fd(), CLAIM_LOCK, LEAVE_PATIENCE), Ok(None)) {
            let own = self.slot.get();
            remove_files(&self.folder, |file| match file {
                Named::Bell(slot) => slot == own,
                Named::Ring(ring) => ring.to == own || (ring.from == own && !self.is_read(&ring)),
            });
            // Nobody else can have a slot, nor get one from this table: see `open_table`.
            // The table last: the next one of the address may have one of its own as soon as it is gone.
            if self.others().next().is_none() {
                let _ = fs::remove_file(self.folder.join(ports::NAME));
                if fs::remove_file(self.folder.join("table")).is_ok() {
                    let _ = fs::remove_dir(&self.folder);
                }
            }
            sys::unlock_byte(self.file.as_fd(), life_lock(self.slot));
            sys::unlock_byte(self.file.as_fd(), CLAIM_LOCK);
        }
    }
}

impl Member {
    /// Whether the process that a ring leads to lives and will open it.
    fn is_read(&self, ring: &RingName) -> bool {
        Slot::new(ring.to).is_some_and(|to| self.generation_of(to) == ring.to_generation && self.is_alive(to))
    }
}

/// How far slots have gone round, over all addresses of the directory: a process that is alone on its address
/// does not inherit the numbers of the one before it, whose table is gone.
fn open_numbers(directory: &Path) -> Result<Mapping, OpenError> {
    let path = directory.join("numbers");
    let opened = private_file().create(true).truncate(false).open(&path).and_then(|file| {
        sys::allocate(file.as_fd(), PAGE as u64)?;
        Mapping::of_file(file.as_fd(), PAGE)
    });
    opened.map_err(|source| OpenError::Directory { path, source })
}

/// Opens the table of a folder, which may have to be made, and takes its claim lock. The last process to
/// leave removes both under that lock, so a table that is not at its path any more is nobody's.
fn open_table(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join("table");
    let failed = |source| OpenError::Directory { path: folder.to_owned(), source };
    loop {
        private_folder(folder)?;
        let file = match private_file().create(true).truncate(false).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(failed)?,
        };
        let held = sys::lock_byte_patiently(file.as_fd(), CLAIM_LOCK, CLAIM_PATIENCE).map_err(failed)?;
        if let Some(holder) = held {
            return Err(OpenError::Held { path, holder });
        }
        let opened = file.metadata().map_err(failed)?;
        match fs::metadata(&path) {
            Ok(there) if there.ino() == opened.ino() => return Ok(file),
            // Closing it gives the lock back.
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
    }
}

const fn entry_at(slot: Slot) -> usize {
    PAGE + slot.index() * ENTRY_LEN
}

const fn word_at(slot: Slot, word: Word) -> usize {
    entry_at(slot) + WORDS_AT + 8 * word as usize
}

const fn life_lock(slot: Slot) -> u64 {
    LIFE_LOCKS + slot.0 as u64
}

fn bell_path(folder: &Path, slot: Slot, generation: u64) -> PathBuf {
    folder.join(format!("bell.{}.{generation}", slot.get()))
}
