//! What became of each packet, and why: the last so many events, to be printed.

use crate::counters::Drop;
use crate::program::PortId;
use adverb_wire::{Instant, Opcode, Packet, Psn, QpNumber};
use std::fmt;

/// Something that a program did with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Dropped.
    Dropped(Drop),
    /// Marked as having met congestion.
    Marked,
    /// Cut down to its headers.
    Trimmed,
    /// A compare and swap was granted: this value is written.
    Granted(u64),
    /// A compare and swap was refused: the word has this value.
    Refused(u64),
    /// A fetch and add was done: this value is written.
    Added(u64),
    /// A WRITE of a tracked word.
    Stored(u64),
    /// The server decides.
    Passed,
    /// It waits for its word.
    Held,
    /// Sent again, and made again what it was.
    Repeated,
    /// An atomic acknowledgement with this original value.
    Answered(u64),
    /// The server's answer told the word's value.
    Learned(u64),
    /// The switch's own NAK: a request is missing before this one.
    GapNak,
    /// It goes to this address.
    Steered(u64),
    /// A chain's last entry is this one.
    Tail(u64),
    /// A chain's last entry is not known any more.
    TailForgotten,
    /// It waits for the link before it.
    Waits,
    /// What a program of somebody else says of it, with a number.
    Own(&'static str, u64),
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// The port on which the packet came.
    pub from: PortId,
    /// The port for which it is meant.
    pub to: PortId,
    /// Its opcode as it came.
    pub opcode: Opcode,
    /// The queue pair that it names.
    pub qpn: QpNumber,
    /// Its sequence number.
    pub psn: Psn,
    /// The address that it names, if it names one.
    pub va: Option<u64>,
    /// What became of it.
    pub note: Note,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (us, opcode) = (self.at.as_ps() / 1_000_000, format!("{:?}", self.opcode));
        write!(
            f,
            "{}.{:06}  in {}  {opcode:<22} qp {}",
            us / 1_000_000,
            us % 1_000_000,
            self.from.0,
            self.qpn
        )?;
        write!(f, "  psn {}", self.psn)?;
        if let Some(va) = self.va {
            write!(f, "  va {va:#x}")?;
        }
        let to = self.to.0;
        match self.note {
            Note::Dropped(reason) => write!(f, "  dropped: {}", reason.name()),
            Note::Marked => write!(f, "  marked; out {to}"),
            Note::Trimmed => write!(f, "  payload cut off; out {to}"),
            Note::Granted(value) => write!(f, "  granted; out {to} as WRITE of {value:#x}"),
            Note::Refused(value) => {
                write!(f, "  refused, the word is {value:#x}; out {to} as WRITE of 0 bytes")
            }
            Note::Added(value) => write!(f, "  done; out {to} as WRITE of {value:#x}"),
            Note::Stored(value) => write!(f, "  word becomes {value:#x}; out {to}"),
            Note::Passed => write!(f, "  the server decides; out {to}"),
            Note::Held => write!(f, "  waits for the word"),
            Note::Repeated => write!(f, "  again; out {to} as before"),
            Note::Answered(original) => write!(f, "  out {to} as atomic ACK, original {original:#x}"),
            Note::Learned(value) => write!(f, "  the word is {value:#x}; out {to}"),
            Note::Steered(place) => write!(f, "  steered to {place:#x}; out {to}"),
            Note::Tail(place) => write!(f, "  the chain ends with {place:#x}; out {to}"),
            Note::TailForgotten => write!(f, "  the chain's end is unknown; out {to}"),
            Note::Waits => write!(f, "  waits for the link before it"),
            Note::Own(what, number) => write!(f, "  {what} {number:#x}"),
            Note::GapNak => write!(f, "  a request is missing before it; NAK to {}", self.from.0),
        }
    }
}

/// The last events.
#[derive(Debug)]
pub struct Trace {
    /// The oldest stands at `oldest`, the ones before it are newer than those behind it.
    events: Vec<Event>,
    oldest: usize,
    room: usize,
    /// All that there were, those that are not kept any more included.
    noted: u64,
}

impl Trace {
    /// Keeps so many; none at zero.
    pub fn new(room: usize) -> Trace {
        Trace { events: Vec::new(), oldest: 0, room, noted: 0 }
    }

    /// Keeps so many from now on.
    pub fn set_room(&mut self, room: usize) {
        self.room = room;
        self.events.rotate_left(self.oldest);
        self.events.drain(..self.events.len().saturating_sub(room));
        self.oldest = 0;
    }

    /// Adds one.
    #[inline]
    pub fn add(&mut self, at: Instant, (from, to): (PortId, PortId), packet: &Packet, note: Note) {
        if self.room == 0 {
            return;
        }
        let operation = packet.bth.opcode.operation();
        let va = match operation.is_atomic() {
            true => Some(packet.atomic.va),
            false => (packet.reth.va != 0).then_some(packet.reth.va),
        };
        let (opcode, qpn, psn) = (packet.bth.opcode, packet.bth.dest_qp, packet.bth.psn);
        let event = Event { at, from, to, opcode, qpn, psn, va, note };
        self.noted += 1;
        if self.events.len() < self.room {
            return self.events.push(event);
        }
        self.events[self.oldest] = event;
        self.oldest += 1;
        if self.oldest == self.room {
            self.oldest = 0;
        }
    }

    /// Gives them away, from the oldest on.
    pub fn take(&mut self) -> impl Iterator<Item = Event> {
        self.events.rotate_left(self.oldest);
        self.oldest = 0;
        self.events.drain(..)
    }

    /// How many there were since the beginning, as far as any were to be kept.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// How many are kept: the last ones of those.
    pub fn kept(&self) -> usize {
        self.events.len()
    }

    /// From the oldest on.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        let (newer, older) = self.events.split_at(self.oldest);
        older.iter().chain(newer)
    }
}
