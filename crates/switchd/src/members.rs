//! Who is at the other ends of the sockets, and the processes behind one port.

use adverb_os::batch::Tally;
use adverb_os::link::Link;
use adverb_os::via::{Hello, Packer, QUEUE_MAX};
use adverb_switch::PortId;
use adverb_wire::{Duration, Instant};

/// How long who has connected may take to say something.
const SILENCE_MAX: Duration = Duration::from_ms(10_000);

/// What a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It is of another host, and has not said the token yet.
    Stranger,
    /// It has said nothing yet.
    Unknown,
    /// A process behind a port, and its slot.
    Member(PortId, u8),
    /// It was answered or refused, and is to be closed when it has been told.
    Leaving,
}

/// One end of a connection.
pub struct Peer {
    pub link: Link,
    pub role: Role,
    /// When it connected.
    pub since: Instant,
    /// What it has not been sent yet.
    pub packer: Packer,
    /// The connection has ended.
    pub is_gone: bool,
}

impl Peer {
    pub fn new(link: Link, now: Instant) -> Peer {
        let role = if link.is_local() { Role::Unknown } else { Role::Stranger };
        Peer { link, role, since: now, packer: Packer::default(), is_gone: false }
    }

    /// Whether something waits for the kernel to take it.
    pub fn has_waiting(&self) -> bool {
        !self.packer.is_empty() || self.link.has_rest()
    }

    /// Whether it has nothing to say here but who it is.
    pub fn is_new(&self) -> bool {
        matches!(self.role, Role::Stranger | Role::Unknown)
    }

    /// Whether it is of another host, and has not shown that it may come.
    pub fn is_stranger(&self) -> bool {
        !self.link.is_local() && matches!(self.role, Role::Stranger | Role::Leaving)
    }

    /// When one that has said nothing yet, or does not hang up, is to be forgotten.
    pub fn silence_ends(&self) -> Option<Instant> {
        (self.is_new() || self.role == Role::Leaving).then(|| self.since + SILENCE_MAX)
    }

    /// Queues a frame. False, and nothing done, if too much waits already. A message that takes no more
    /// leaves at once: its memory serves for the next one while the processor still has it, and who gets it
    /// begins to read.
    pub fn add(&mut self, frame: &[u8], tally: &mut Tally) -> bool {
        if self.packer.bytes() + frame.len() > QUEUE_MAX {
            return false;
        }
        let before = self.packer.messages();
        self.packer.add(frame.len()).copy_from_slice(frame);
        let is_begun = before > 0 && self.packer.messages() > before;
        if is_begun && self.packer.flush_whole(&mut self.link, tally).is_err() {
            self.is_gone = true;
        }
        true
    }

    /// Sends what waits, as far as the kernel takes it.
    pub fn flush(&mut self, tally: &mut Tally) {
        if !self.has_waiting() {
            return;
        }
        match self.packer.flush(&mut self.link, tally) {
            Ok(true) if self.role == Role::Leaving => self.is_gone |= self.link.finish(),
            Ok(_) => {}
            Err(_) => self.is_gone = true,
        }
    }
}

/// The processes of one address.
pub struct Members {
    /// Which table their slots are of.
    host: [u8; 16],
    /// By slot, the connection's place plus one.
    places: [u32; 256],
}

impl Members {
    /// Nobody yet, of the host of a first process.
    pub fn new(hello: &Hello) -> Members {
        Members { host: hello.host, places: [0; 256] }
    }

    /// Whether a process is of the host whose processes these are.
    pub fn are_of(&self, hello: &Hello) -> bool {
        self.host == hello.host
    }

    /// The place of a slot's process.
    pub fn of_slot(&self, slot: u8) -> Option<usize> {
        self.places[usize::from(slot)].checked_sub(1).map(|at| at as usize)
    }

    /// Notes a process.
    pub fn add(&mut self, slot: u8, at: usize) {
        self.places[usize::from(slot)] = at as u32 + 1;
    }

    /// Forgets one. Whether none is left.
    pub fn remove(&mut self, slot: u8) -> bool {
        self.places[usize::from(slot)] = 0;
        self.all().next().is_none()
    }

    /// All places.
    pub fn all(&self) -> impl Iterator<Item = usize> + '_ {
        self.places.iter().filter_map(|at| at.checked_sub(1)).map(|at| at as usize)
    }
}
