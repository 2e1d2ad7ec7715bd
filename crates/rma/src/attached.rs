//! This process's side of a NIC in another process, `adverb nicd`.

use crate::counters::{DriverCounters, NicdCounters};
use crate::error::{Error, OpenError};
use crate::mapping;
use crate::nicd::protocol::{
    Layout, PACKET_MAX, Reader, SLOTS_MAX, VERSION, Writer, place_of, refused, request,
};
use adverb_nic::one_rma::{
    COMMAND_LEN, COMPLETION_LEN, Completion, DerivedKey, OneRmaCounters, RegionId, RegionKey, Rights, SlotId,
};
use adverb_os::mapping::{Mapping, duplicate};
use adverb_os::shm::sealed_memory;
use adverb_os::unix::Channel;
use adverb_os::wake::BellSocket;
use adverb_wire::one_rma::Op;
use adverb_wire::{Duration, Gid, Instant};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration as StdDuration;
use zeroize::Zeroizing;

/// Seconds after which a daemon that does not answer counts as gone.
const PATIENCE_S: u32 = 5;
/// How often a process looks whether its commands end, within the time after which a daemon hangs.
const LOOKS: u32 = 3;

/// This process's end of a connection to the daemon, and what it shares with it.
pub(crate) struct Attached {
    channel: Channel,
    board: Mapping,
    layout: Layout,
    pub slots: Vec<SlotId>,
    pub ring: RegionId,
    pub pid: u32,
    pub address: Gid,
    /// Commands posted, completions and refusals taken.
    posted: u64,
    taken: u64,
    refusals: u64,
    /// Posted since the daemon's sleep was last thought of.
    fresh: bool,
    bell: BellSocket,
    gone: bool,
    pulse: Pulse,
    pub counters: DriverCounters,
}

/// Whether commands end. A daemon that was stopped, or hangs, keeps its connection.
struct Pulse {
    /// Time between two looks.
    every: Duration,
    next: Instant,
    /// Commands that had ended at the last one.
    ended: u64,
    /// Looks in a row at which commands were outstanding and none had ended.
    still: u32,
}

impl Pulse {
    fn new(patience: StdDuration) -> Pulse {
        let ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX).min(1 << 50) / u64::from(LOOKS);
        Pulse { every: Duration::from_ns(ns.max(1_000_000)), next: Instant::ZERO, ended: 0, still: 0 }
    }

    /// Looks, when it is time to. False when there was no sign of life for too long.
    fn beats(&mut self, now: Instant, posted: u64, ended: u64) -> bool {
        if now >= self.next {
            let still = posted > ended && ended == self.ended;
            self.still = if still { self.still + 1 } else { 0 };
            (self.next, self.ended) = (now + self.every, ended);
        }
        // At the first of them the command may have been posted just before.
        self.still <= LOOKS
    }
}

/// Why the daemon did not do what was asked.
enum Failure {
    Gone(io::Error),
    Refused(String),
}

impl Failure {
    fn opening(self, path: &Path) -> OpenError {
        match self {
            Failure::Gone(source) => OpenError::Daemon(path.to_owned(), source),
            Failure::Refused(why) => OpenError::Refused(why),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Gone(_) => Error::Closed,
            Failure::Refused(why) => Error::Refused(why),
        }
    }
}

fn garbled() -> Failure {
    Failure::Gone(io::ErrorKind::InvalidData.into())
}

/// An answer's bytes, which may hold a key, and its descriptors.
type Answer = (Zeroizing<Vec<u8>>, Vec<OwnedFd>);

fn ask(channel: &Channel, request: &Writer, fds: &[BorrowedFd<'_>]) -> Result<Answer, Failure> {
    channel.send(request.finish(), fds).map_err(Failure::Gone)?;
    let mut packet = Zeroizing::new(vec![0; PACKET_MAX]);
    let received = channel.receive(&mut packet).map_err(Failure::Gone)?;
    let (len, fds) = received.ok_or_else(|| Failure::Gone(io::ErrorKind::UnexpectedEof.into()))?;
    packet.truncate(len);
    match packet[0] {
        0 => Ok((packet, fds)),
        _ => Err(Failure::Refused(String::from_utf8_lossy(&packet[1..]).into_owned())),
    }
}

impl Attached {
    /// Connects, and is let in with up to `wanted` slots. A daemon that ends no command for `patience` hangs.
    pub fn open(path: &Path, wanted: u32, patience: StdDuration) -> Result<Attached, OpenError> {
        if wanted == 0 || wanted as usize > SLOTS_MAX {
            return Err(OpenError::Driver("slots of a process: 1 to 4096"));
        }
        let lost = |source| OpenError::Daemon(path.to_owned(), source);
        let channel = Channel::connect(path, PATIENCE_S).map_err(lost)?;
        let hello = Writer::new(request::HELLO).u32(VERSION).u32(wanted);
        let (answer, fds) = ask(&channel, &hello, &[]).map_err(|failure| failure.opening(path))?;
        let pulse = Pulse::new(patience);
        Self::enter(channel, &answer, fds, pulse).ok_or_else(|| lost(io::ErrorKind::InvalidData.into()))
    }

    /// `None` for what no daemon says.
    fn enter(channel: Channel, answer: &[u8], fds: Vec<OwnedFd>, pulse: Pulse) -> Option<Attached> {
        let mut words = Reader(&answer[1..]);
        let (pid, address, count, ring) = (words.u32()?, Gid(words.array()?), words.u32()?, words.u32()?);
        if count == 0 || count as usize > SLOTS_MAX {
            return None;
        }
        let slots: Option<Vec<_>> = (0..count).map(|_| words.u32().map(SlotId::from_index)).collect();
        words.end()?;
        let [board, bell] = <[OwnedFd; 2]>::try_from(fds).ok()?;
        let layout = Layout::new(count as usize);
        let board = Mapping::of_sealed(board.as_fd(), layout.len()).ok()?;
        let ring = RegionId::from_wire(ring);
        Some(Attached {
            channel,
            board,
            layout,
            slots: slots?,
            ring,
            pid,
            address,
            posted: 0,
            taken: 0,
            refusals: 0,
            fresh: false,
            bell: BellSocket::from_fd(bell),
            gone: false,
            pulse,
            counters: DriverCounters::default(),
        })
    }

    /// Writes a command into its slot.
    pub fn post(&mut self, slot: SlotId, command: &[u8; COMMAND_LEN]) -> Result<(), adverb_nic::Error> {
        let place = place_of(&self.slots, slot.index() as u64).ok_or(adverb_nic::Error::NoSuchObject)?;
        mapping::write(&self.board, self.layout.command(place), command);
        self.board.u64_at(self.layout.posted(self.posted)).store(slot.index() as u64, Ordering::Relaxed);
        self.posted += 1;
        self.board.u64_at(Layout::POSTED).store(self.posted, Ordering::Release);
        self.fresh = true;
        Ok(())
    }

    /// Whether something was posted that the daemon has not been told of.
    pub fn has_work(&self) -> bool {
        self.fresh
    }

    /// Rings the daemon awake if it sleeps and something was posted. True if something was.
    pub fn ring_bell(&mut self) -> bool {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh {
            // It says that it sleeps before it looks for the last time; this looks after the post.
            fence(Ordering::SeqCst);
            if self.board.u64_at(Layout::DAEMON_SLEEPS).load(Ordering::Relaxed) != 0 {
                self.bell.ring();
            }
        }
        fresh
    }

    /// The next completion.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let at = self.layout.completion(self.taken);
        // The number comes last.
        let number = self.board.u64_at(at + COMPLETION_LEN - 8).load(Ordering::Acquire);
        if number != self.taken + 1 {
            return None;
        }
        let mut record = [0; COMPLETION_LEN];
        mapping::read(&self.board, at, &mut record);
        let completion = Completion::decode(&record)?;
        self.taken += 1;
        Some(completion)
    }

    /// The next command that the daemon's NIC refused.
    pub fn next_refusal(&mut self) -> Option<(SlotId, adverb_nic::Error)> {
        if self.board.u64_at(Layout::REFUSED).load(Ordering::Acquire) == self.refusals {
            return None;
        }
        let word = self.board.u64_at(self.layout.refused(self.refusals)).load(Ordering::Relaxed);
        self.refusals += 1;
        Some((SlotId::from_index(word as u32), refused((word >> 32) as u32)))
    }

    /// Asks for the bell to be rung. False if something has come meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        self.board.u64_at(Layout::APPLICATION_SLEEPS).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let at = self.layout.completion(self.taken) + COMPLETION_LEN - 8;
        let completed = self.board.u64_at(at).load(Ordering::Acquire) == self.taken + 1;
        !completed && self.board.u64_at(Layout::REFUSED).load(Ordering::Acquire) == self.refusals
    }

    /// When to look next whether the daemon lives.
    pub fn next_deadline(&self) -> Instant {
        self.pulse.next
    }

    /// Looks whether commands end, when it is time to. A daemon that hangs counts as gone.
    pub fn feel_pulse(&mut self, now: Instant) {
        if !self.pulse.beats(now, self.posted, self.taken + self.refusals) && !self.gone {
            self.gone = true;
            // Should it go on one day, it finds this process gone.
            self.channel.hang_up();
        }
    }

    /// After a sleep: whether the daemon is still there.
    pub fn after_sleep(&mut self, now: Instant) -> bool {
        self.board.u64_at(Layout::APPLICATION_SLEEPS).store(0, Ordering::Relaxed);
        self.bell.quieten();
        self.feel_pulse(now);
        self.gone |= self.channel.is_closed();
        !self.gone
    }

    /// What becomes readable when something comes, or the daemon goes.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.bell.fd(), self.channel.fd()]
    }

    /// Leaves, and waits until the daemon has taken everything of this process out of its NIC, or is gone.
    pub fn close(&mut self) {
        if !self.gone {
            self.gone = true;
            self.channel.finish();
        }
    }

    fn ask(&mut self, request: &Writer, fds: &[BorrowedFd<'_>]) -> Result<Zeroizing<Vec<u8>>, Failure> {
        if self.gone {
            return Err(Failure::Gone(io::ErrorKind::NotConnected.into()));
        }
        let answered = ask(&self.channel, request, fds);
        // A late answer would be taken for the next one's.
        self.gone |= matches!(answered, Err(Failure::Gone(_)));
        answered.map(|(answer, _)| answer)
    }

    /// Zeroed memory that the daemon reaches too: its number there, and its own region.
    pub fn allocate(&mut self, len: usize, file: Option<i32>) -> Result<(Mapping, u32, RegionId), Error> {
        let file = match file {
            None => sealed_memory(len),
            Some(number) => duplicate(number),
        };
        let file = file.map_err(|e| Error::System("allocating memory", e))?;
        let mapping =
            Mapping::of_sealed(file.as_fd(), len).map_err(|e| Error::System("mapping memory", e))?;
        let answer = self.ask(&Writer::new(request::ALLOCATE).u64(len as u64), &[file.as_fd()])?;
        let mut words = Reader(&answer[1..]);
        let found = words.u32().zip(words.u32()).ok_or_else(garbled)?;
        Ok((mapping, found.0, RegionId::from_wire(found.1)))
    }

    pub fn free(&mut self, number: u32) -> Result<(), Error> {
        Ok(self.ask(&Writer::new(request::FREE).u32(number), &[]).map(drop)?)
    }

    pub fn register(
        &mut self,
        number: u32,
        (offset, len): (u64, u64),
        rights: Rights,
        key: &RegionKey,
    ) -> Result<RegionId, Error> {
        let request = Writer::new(request::REGISTER).u32(number).u64(offset).u64(len);
        let answer = self.ask(&request.u8(rights.bits()).bytes(key.expose()), &[])?;
        Ok(RegionId::from_wire(Reader(&answer[1..]).u32().ok_or_else(garbled)?))
    }

    pub fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        Ok(self.ask(&Writer::new(request::DEREGISTER).u32(region.wire()), &[]).map(drop)?)
    }

    pub fn derive(&mut self, region: RegionId, peer: Gid, pid: u32, op: Op) -> Result<DerivedKey, Error> {
        let request = Writer::new(request::DERIVE).u32(region.wire()).bytes(&peer.0).u32(pid).u8(op as u8);
        let answer = self.ask(&request, &[])?;
        Ok(DerivedKey::new(Reader(&answer[1..]).array().ok_or_else(garbled)?))
    }

    pub fn rotate(&mut self, region: RegionId, key: &RegionKey) -> Result<(), Error> {
        let request = Writer::new(request::ROTATE).u32(region.wire()).bytes(key.expose());
        Ok(self.ask(&request, &[]).map(drop)?)
    }

    /// The daemon's counters; this process's where it is gone.
    pub fn all_counters(&mut self) -> (OneRmaCounters, DriverCounters) {
        let Ok(answer) = self.ask(&Writer::new(request::COUNTERS), &[]) else {
            return (OneRmaCounters::default(), self.counters);
        };
        let (nic, driver, _) = read_counters(&answer);
        (nic, driver)
    }
}

fn read_counters(answer: &[u8]) -> (OneRmaCounters, DriverCounters, NicdCounters) {
    let mut words = Reader(&answer[1..]);
    let mut next = || words.u64().unwrap_or(0);
    let nic = OneRmaCounters::from_values(&mut next);
    (nic, DriverCounters::from_values(&mut next), NicdCounters::from_values(&mut next))
}

/// The counters of the daemon at a socket.
pub(crate) fn counters_of(path: &Path) -> Result<(OneRmaCounters, DriverCounters, NicdCounters), OpenError> {
    let lost = |source| OpenError::Daemon(path.to_owned(), source);
    let channel = Channel::connect(path, PATIENCE_S).map_err(lost)?;
    let (answer, _) =
        ask(&channel, &Writer::new(request::COUNTERS), &[]).map_err(|failure| failure.opening(path))?;
    // Over at once, though a child that another thread forks may hold the descriptor until it has become a
    // program: it counts among the two connections that a process may have.
    channel.end();
    Ok(read_counters(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_stops_when_commands_are_out_and_none_ends() {
        let at = |ms| Instant::ZERO + Duration::from_ms(ms);
        let mut pulse = Pulse::new(StdDuration::from_millis(300));
        assert!(pulse.beats(at(0), 0, 0));
        // Nothing is outstanding: an hour passes.
        assert!(pulse.beats(at(3_600_000), 5, 5));
        let start = 3_600_000;
        // Slow, but alive: a command of many ends each time.
        assert!((1..50).all(|i| pulse.beats(at(start + 100 * i), 100, 5 + i)));
        let start = start + 5000;
        let silent = (0..10_000).find(|ms| !pulse.beats(at(start + ms), 100, 54)).unwrap();
        assert!((300..=400).contains(&silent), "{silent} ms");
        // It goes on when it is heard of again.
        assert!(pulse.beats(at(start + 5000), 100, 55));
    }
}
