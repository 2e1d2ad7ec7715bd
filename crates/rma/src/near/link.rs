//! The way to one near peer and back.
//!
//! Either end makes the ring that it reads, as long as its own solicitation window asks for, and gives it to
//! the other with its introduction, the first packet on the connection: who knocked introduces itself first.
//! All other packets are rings of the bell. The end of the connection is the end of the link.
//!
//! ```text
//! introduction:  | "1RMA" | version:32 | address:128 |   and the descriptor of a ring's memory
//! bell:          | 1 |
//! ```
//! Neither end trusts the other's memory: it must be sealed against shrinking, and what stands in a ring is
//! checked as it is read ([`adverb_os::ring`]).

use adverb_nic::memory::Ahead;
use adverb_os::ring::{Broken, Consumer, LAYOUT, Producer};
use adverb_os::shm::{Mirror, PAGE, check_sealed, sealed_memory};
use adverb_os::unix::Channel;
use adverb_wire::{Duration, Gid, Instant};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

/// What both ends have to agree on: the first byte is to be counted up with every change here, the second is
/// the rings' own.
pub(super) const VERSION: u32 = u32::from_le_bytes([1, LAYOUT, 0, 0]);
const MAGIC: [u8; 4] = *b"1RMA";
const INTRODUCTION_LEN: usize = 24;
/// Shortest and longest ring.
const RING_LEN_MIN: usize = 256 << 10;
const RING_LEN_MAX: usize = 64 << 20;
/// A reader gives room back after so many bytes, at the latest at the end of its burst.
const RELEASED_BYTES: usize = 32 << 10;
/// Entries of at least this many bytes, which are likely to be followed by others of their kind, are worth a
/// look ahead.
const LARGE: usize = 1024;
/// A peer that leaves its messages lying for so long is gone, or as good as gone: a child that it forked may
/// hold the connection open.
const STUCK: Duration = Duration::from_ms(200);

/// Bytes of the ring that takes what a solicitation window lets be under way: twice as much, since messages
/// have headers, and small ones take whole lines.
pub(super) fn ring_len(window: u32) -> usize {
    (2 * window as usize).next_power_of_two().clamp(RING_LEN_MIN, RING_LEN_MAX)
}

/// What a peer has said.
pub(super) enum Heard {
    /// Nothing that matters.
    Nothing,
    /// Who has been knocked at answers: messages may be sent.
    Answer(Gid),
    /// Who has knocked says who it is, and waits for [`Link::welcome`].
    Visitor(Gid, Producer),
    /// The connection has ended, and all messages have been taken.
    Gone,
}

/// A message that has come.
pub(super) struct Arrived<'a> {
    pub from: Gid,
    pub message: &'a mut [u8],
    /// Where the next one may lie.
    pub ahead: Ahead,
}

/// The way in.
struct Inward {
    consumer: Consumer,
    /// The address that messages come from.
    peer: Gid,
}

/// The two rings and the bell between this NIC and a near peer.
pub(super) struct Link {
    channel: Channel,
    /// Gone until whoever knocked here has introduced itself.
    inward: Option<Inward>,
    /// Gone until the peer has introduced itself.
    outward: Option<Producer>,
    /// Whether this end has knocked.
    knocked: bool,
    /// Where the peer was in its ring, and since when it has not moved on.
    seen: (u64, Option<Instant>),
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Makes the ring that this end reads, and tells the other of it.
fn introduce(channel: &Channel, own: Gid, ring_len: usize) -> io::Result<Consumer> {
    let len = Mirror::file_len(ring_len) as usize;
    let memory = sealed_memory(len)?;
    let consumer = Consumer::new(Mirror::map(memory.as_fd(), ring_len)?);
    let mut words = [0; INTRODUCTION_LEN];
    words[..4].copy_from_slice(&MAGIC);
    words[4..8].copy_from_slice(&VERSION.to_le_bytes());
    words[8..].copy_from_slice(&own.0);
    channel.send(&words, &[memory.as_fd()])?;
    Ok(consumer)
}

/// The address, and the ring that the peer reads.
fn read_introduction(words: &[u8], fds: Vec<OwnedFd>) -> io::Result<(Gid, Producer)> {
    let words: &[u8; INTRODUCTION_LEN] = words.try_into().map_err(|_| invalid("an introduction's length"))?;
    if words[..4] != MAGIC || words[4..8] != VERSION.to_le_bytes() {
        return Err(invalid("another version of adverb"));
    }
    let mut address = [0; 16];
    address.copy_from_slice(&words[8..]);
    let [memory] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| invalid("one ring is given"))?;
    check_sealed(memory.as_fd(), PAGE as u64)?;
    let file = std::fs::File::from(memory);
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(0).saturating_sub(PAGE);
    if !len.is_power_of_two() || !(RING_LEN_MIN..=RING_LEN_MAX).contains(&len) {
        return Err(invalid("a ring's length"));
    }
    Ok((Gid(address), Producer::new(Mirror::map(file.as_fd(), len)?)))
}

impl Link {
    /// Introduces this NIC where it has knocked.
    pub fn introduce(channel: Channel, own: Gid, peer: Gid, ring_len: usize) -> io::Result<Link> {
        let consumer = introduce(&channel, own, ring_len)?;
        let inward = Some(Inward { consumer, peer });
        Ok(Link { channel, inward, outward: None, knocked: true, seen: (0, None) })
    }

    /// Somebody has knocked.
    pub fn at_the_door(channel: Channel) -> Link {
        Link { channel, inward: None, outward: None, knocked: false, seen: (0, None) }
    }

    pub fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    /// Whether this end has knocked, and the other is still there.
    pub fn is_mine(&self) -> bool {
        self.knocked && !self.channel.is_closed()
    }

    /// Whether messages may be sent.
    pub fn is_open(&self) -> bool {
        self.outward.is_some()
    }

    /// Whether it is the peer's, or will be.
    pub fn leads_to(&self, peer: Gid) -> bool {
        self.inward.as_ref().is_some_and(|inward| inward.peer == peer)
    }

    /// Whether messages may be sent to the peer.
    pub fn is_open_to(&self, peer: Gid) -> bool {
        self.is_open() && self.leads_to(peer)
    }

    /// The ring to the peer.
    #[inline]
    pub fn producer(&mut self) -> Option<&mut Producer> {
        self.outward.as_mut()
    }

    /// Takes the next message, copied to `room`, and says who it is from, and what may lie ahead. A message
    /// that is longer breaks the rules.
    #[inline]
    pub fn next_message<'a>(&mut self, room: &'a mut [u8]) -> Result<Option<Arrived<'a>>, Broken> {
        let Some(Inward { consumer, peer }) = &mut self.inward else { return Ok(None) };
        let Some((frame, taken)) = consumer.peek()? else { return Ok(None) };
        let message = frame.copy_into(room).ok_or(Broken)?;
        consumer.skip(taken);
        let ahead = if taken < LARGE { Ahead::NOTHING } else { Ahead::new(consumer.next_entry(), taken) };
        if consumer.unreleased() >= RELEASED_BYTES {
            consumer.release();
        }
        Ok(Some(Arrived { from: *peer, message, ahead }))
    }

    /// Gives the room of all messages that were taken back to the peer.
    #[inline]
    pub fn release(&mut self) {
        if let Some(inward) = &mut self.inward {
            inward.consumer.release();
        }
    }

    /// Wakes the peer if it sleeps. True if it had to.
    pub fn wake(&mut self) -> bool {
        let sleeps = self.outward.as_ref().is_some_and(Producer::take_sleep);
        if sleeps {
            // A connection that takes no more has rung often enough; one that has ended says so when it is
            // heard.
            let _ = self.channel.send(&[1], &[]);
        }
        sleeps
    }

    /// Reads what the peer has said.
    pub fn hear(&mut self) -> io::Result<Heard> {
        let mut words = [0; INTRODUCTION_LEN];
        loop {
            let (len, fds) = match self.channel.receive(&mut words) {
                Ok(Some(packet)) => packet,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Heard::Nothing),
                Ok(None) => return Ok(self.gone()),
                // It has gone without hearing the bell.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(self.gone()),
                Err(error) => return Err(error),
            };
            if self.is_open() {
                continue;
            }
            let (peer, producer) = read_introduction(&words[..len], fds)?;
            return match &self.inward {
                Some(inward) if inward.peer != peer => Err(invalid("another NIC's door")),
                Some(_) => {
                    self.open(producer);
                    Ok(Heard::Answer(peer))
                }
                None => Ok(Heard::Visitor(peer, producer)),
            };
        }
    }

    /// Answers a visitor: messages may be sent. Before this, it sends none, and loses none when it is turned
    /// away.
    pub fn welcome(&mut self, own: Gid, peer: Gid, producer: Producer, ring_len: usize) -> io::Result<()> {
        let consumer = introduce(&self.channel, own, ring_len)?;
        self.inward = Some(Inward { consumer, peer });
        self.open(producer);
        Ok(())
    }

    fn open(&mut self, producer: Producer) {
        (self.outward, self.seen) = (Some(producer), (0, None));
    }

    /// The peer has gone: nothing more is sent to it, but what it has sent before is still to be taken.
    fn gone(&mut self) -> Heard {
        self.outward = None;
        if self.has_messages() { Heard::Nothing } else { Heard::Gone }
    }

    /// Whether the peer has left its messages lying, or has not introduced itself, for too long.
    pub fn is_stuck(&mut self, now: Instant) -> Result<bool, Broken> {
        let Some(producer) = &mut self.outward else {
            let since = *self.seen.1.get_or_insert(now);
            return Ok(now.since(since) >= STUCK);
        };
        let (head, end) = producer.progress()?;
        if head == end || head != self.seen.0 {
            self.seen = (head, None);
            return Ok(false);
        }
        let since = *self.seen.1.get_or_insert(now);
        Ok(now.since(since) >= STUCK)
    }

    /// Tells the peer whether it has to ring.
    pub fn set_sleeps(&self, sleeps: bool) {
        if let Some(inward) = &self.inward {
            inward.consumer.set_sleeps(sleeps);
        }
    }

    /// Whether messages wait here.
    pub fn has_messages(&self) -> bool {
        self.inward.as_ref().is_some_and(|inward| inward.consumer.has_frames())
    }
}
