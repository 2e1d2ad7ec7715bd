//! Messages between the NICs of one host and one user, through shared memory instead of the kernel's UDP.
//!
//! What travels is what would travel over UDP, sealed all the same: the NIC does not know the difference, and
//! nobody is believed for being near. What is spared is the kernel: a message is copied into a ring by one
//! process and out of it by the other, and nobody who is awake makes a system call.
//!
//! ```text
//! door    a Unix socket by which peers find this NIC, and what is said there
//! link    the way to one peer and back: two rings, and a bell for who sleeps
//! ```
//!
//! A peer that [`FAITHFUL`] messages went to is looked for once a second; until it is found, and whenever it
//! is lost, messages go over UDP. A ring takes what the reader's solicitation window lets be under way; what
//! does not fit all the same is dropped, as a network would, and counted.

mod door;
mod link;

use crate::counters::DriverCounters;
use crate::error::OpenError;
use crate::udp::PAYLOAD_AT;
use adverb_nic::OneRma;
use adverb_os::batch::{LINE, before_line};
use adverb_os::ring::{Broken, Producer};
use adverb_os::wake::Epoll;
use adverb_wire::one_rma::MAX_MESSAGE;
use adverb_wire::{Duration, Gid, Instant};
use door::Door;
use link::{Heard, Link};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

/// Messages to a peer after which it is looked for.
const FAITHFUL: u32 = 16;
/// For how long it is not looked for again.
const PATIENCE: Duration = Duration::from_ms(1000);
/// Peers that are near at once, those at the door included.
const LINKS_MAX: usize = 64;
/// Peers whose way is remembered, by a hash of their address.
const WAYS: usize = 256;
/// Looks at the rings after which the door and the bells are looked at too.
const LOOKS_PER_TEND: u32 = 256;
/// Messages that are taken from one ring before the next one has its turn.
const BURST: usize = 32;
/// A burst is shown to its reader after so many bytes, so that both work at the same time.
const SHOWN_BYTES: usize = 16 << 10;

/// The token of the door among the descriptors that are waited for.
const DOOR: u64 = u64::MAX;

/// How a peer is reached.
#[derive(Clone, Copy, Default)]
struct Way {
    peer: Gid,
    link: Option<usize>,
    /// Messages over UDP since it was looked for.
    sent: u32,
    /// Not to be looked for before.
    again_at: Instant,
}

/// This NIC's door, its links, and which way each peer is reached.
pub(crate) struct Near {
    own: Gid,
    door: Door,
    /// As many as there were at once; places are reused.
    links: Vec<Option<Link>>,
    /// Links that messages may be sent on.
    open: usize,
    ways: Box<[Way; WAYS]>,
    /// Links whose readers may have to be woken.
    dirty: Vec<usize>,
    /// Everything to wait for.
    interest: Epoll,
    /// Where a message is opened, and where it begins, so that its payload begins a cache line.
    arrived: Box<[u8]>,
    origin: usize,
    looks: u32,
    /// Bytes of the rings that this NIC reads.
    ring_len: usize,
}

impl Near {
    /// Opens a door in this user's directory, for a NIC with this solicitation window, in bytes. The NIC has
    /// the address already.
    pub fn open(directory: &Path, address: IpAddr, window: u32) -> Result<Near, OpenError> {
        let door = Door::open(directory, address)?;
        let failed = |source| OpenError::System("watching the door of this host's NICs", source);
        let interest = Epoll::new().map_err(failed)?;
        interest.add(door.fd(), DOOR).map_err(failed)?;
        let arrived = vec![0; MAX_MESSAGE + LINE].into_boxed_slice();
        Ok(Near {
            own: Gid::from(address),
            door,
            links: Vec::new(),
            open: 0,
            ways: Box::new([Way::default(); WAYS]),
            dirty: Vec::with_capacity(LINKS_MAX),
            interest,
            origin: before_line(&arrived, PAYLOAD_AT),
            arrived,
            looks: 0,
            ring_len: link::ring_len(window),
        })
    }

    /// Readable when somebody is at the door, rings, or has gone.
    pub fn fd(&self) -> RawFd {
        self.interest.fd()
    }

    /// Whether any peer is near.
    #[inline]
    pub fn has_links(&self) -> bool {
        self.open > 0
    }

    /// Gives the NIC what has arrived, if anything has: then returns the time of the last message. `clock` is
    /// asked after each message has been taken: none is newer than that.
    pub fn receive(
        &mut self,
        nic: &mut OneRma,
        counters: &mut DriverCounters,
        clock: impl Fn() -> Instant,
    ) -> Option<Instant> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_TEND) {
            self.tend(clock(), counters);
        }
        let mut last = None;
        for index in 0..self.links.len() {
            match self.drain(index, nic, counters, &clock) {
                Ok(came) => last = came.or(last),
                Err(Broken) => self.break_off(index, counters),
            }
        }
        last
    }

    /// The same from one link.
    fn drain(
        &mut self,
        index: usize,
        nic: &mut OneRma,
        counters: &mut DriverCounters,
        clock: impl Fn() -> Instant,
    ) -> Result<Option<Instant>, Broken> {
        // A link that was broken off may have been the last.
        let Some(link) = self.links.get_mut(index).and_then(Option::as_mut) else { return Ok(None) };
        let mut last = None;
        for _ in 0..BURST {
            let Some(arrived) = link.next_message(&mut self.arrived[self.origin..])? else { break };
            let now = clock();
            counters.near_rx_messages += 1;
            nic.on_frame_before(arrived.ahead, now, arrived.from, arrived.message);
            last = Some(now);
        }
        link.release();
        Ok(last)
    }

    /// Takes a message for a peer that is near. False when it is not: then UDP is the way.
    #[inline]
    pub fn send(&mut self, now: Instant, to: Gid, message: &[u8], counters: &mut DriverCounters) -> bool {
        let Some(index) = self.way(now, to, counters) else { return false };
        let Some(producer) = self.links[index].as_mut().and_then(Link::producer) else { return false };
        match producer.push_bytes(message, PAYLOAD_AT) {
            Ok(true) => counters.near_tx_messages += 1,
            Ok(false) => counters.near_drop_full += 1,
            Err(Broken) => {
                self.break_off(index, counters);
                return false;
            }
        }
        if producer.unpublished() >= SHOWN_BYTES {
            producer.publish();
        }
        if self.dirty.last() != Some(&index) && !self.dirty.contains(&index) {
            self.dirty.push(index);
        }
        true
    }

    /// Shows all readers their messages, and wakes those that sleep.
    pub fn flush(&mut self, counters: &mut DriverCounters) {
        if self.dirty.is_empty() {
            return;
        }
        for index in &self.dirty {
            if let Some(producer) = self.links[*index].as_mut().and_then(Link::producer) {
                producer.publish();
            }
        }
        // A reader that says that it sleeps looks once more after it has said so; this looks whether it has
        // after the messages are there.
        fence(Ordering::SeqCst);
        for index in self.dirty.drain(..) {
            if let Some(link) = &mut self.links[index] {
                counters.near_bells += link.wake() as u64;
            }
        }
    }

    /// The link to a peer, if there is one. Looks for the peer if it is time to.
    #[inline]
    fn way(&mut self, now: Instant, to: Gid, counters: &mut DriverCounters) -> Option<usize> {
        let way = &mut self.ways[place(to)];
        if way.peer == to && way.link.is_some() {
            return way.link;
        }
        if way.peer != to {
            let open = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.is_open_to(to));
            *way = Way { peer: to, link: self.links.iter().position(open), ..Way::default() };
        }
        way.sent = way.sent.saturating_add(way.link.is_none().into());
        if way.sent >= FAITHFUL && now >= way.again_at && to != self.own {
            (way.sent, way.again_at) = (0, now + PATIENCE);
            self.look_for(to, counters);
        }
        self.ways[place(to)].link
    }

    /// Knocks at a peer's door, if it has one.
    #[cold]
    fn look_for(&mut self, peer: Gid, counters: &mut DriverCounters) {
        let known = self.links.iter().flatten().any(|link| link.leads_to(peer));
        if known {
            return;
        }
        // Nobody there is what it is with most peers.
        let Ok(channel) = self.door.knock(peer) else { return };
        match Link::introduce(channel, self.own, peer, self.ring_len) {
            Ok(link) => self.enter(link, counters),
            Err(_) => counters.near_failed += 1,
        }
    }

    /// Finds a place for a link. With none left, the peer is let go, and goes on over UDP.
    fn enter(&mut self, link: Link, counters: &mut DriverCounters) {
        let free = self.links.iter().position(Option::is_none);
        let index = free.unwrap_or(self.links.len());
        if index == LINKS_MAX || self.interest.add(link.fd(), index as u64).is_err() {
            counters.near_failed += 1;
            return;
        }
        if free.is_none() {
            self.links.push(None);
        }
        self.links[index] = Some(link);
    }

    /// Sees to the door and the bells, and to who has gone.
    #[cold]
    pub fn tend(&mut self, now: Instant, counters: &mut DriverCounters) {
        let mut ready = [0; 16];
        let count = self.interest.ready(&mut ready);
        for token in &ready[..count] {
            match *token {
                DOOR => self.open_door(counters),
                index => self.hear(index as usize, counters),
            }
        }
        for index in 0..self.links.len() {
            match self.links.get_mut(index).and_then(Option::as_mut).map(|link| link.is_stuck(now)) {
                Some(Ok(true)) => self.part(index),
                Some(Err(Broken)) => self.break_off(index, counters),
                Some(Ok(false)) | None => {}
            }
        }
        self.count();
    }

    fn open_door(&mut self, counters: &mut DriverCounters) {
        while let Ok(channel) = self.door.accept() {
            self.enter(Link::at_the_door(channel), counters);
        }
    }

    /// What a link's other end has said.
    fn hear(&mut self, index: usize, counters: &mut DriverCounters) {
        let Some(link) = self.links.get_mut(index).and_then(Option::as_mut) else { return };
        match link.hear() {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Answer(peer)) => self.opened(index, peer, counters),
            Ok(Heard::Visitor(peer, producer)) => self.meet(index, peer, producer, counters),
            Ok(Heard::Gone) => self.part(index),
            Err(_) => {
                counters.near_failed += 1;
                self.part(index);
            }
        }
    }

    /// Lets a visitor in. Of two NICs that have knocked at the same time, the one with the smaller address
    /// turns the other away; a visitor that is known otherwise has begun anew.
    fn meet(&mut self, index: usize, peer: Gid, producer: Producer, counters: &mut DriverCounters) {
        let known = self.links.iter().position(|link| link.as_ref().is_some_and(|link| link.leads_to(peer)));
        if let Some(known) = known {
            let mine = self.links[known].as_ref().is_some_and(Link::is_mine);
            if mine && self.own.0 < peer.0 {
                return self.part(index);
            }
            self.part(known);
        }
        let Some(link) = &mut self.links[index] else { return };
        if peer != self.own && link.welcome(self.own, peer, producer, self.ring_len).is_ok() {
            return self.opened(index, peer, counters);
        }
        counters.near_failed += 1;
        self.part(index);
    }

    fn opened(&mut self, index: usize, peer: Gid, counters: &mut DriverCounters) {
        counters.near_links += 1;
        self.count();
        self.ways[place(peer)] = Way { peer, link: Some(index), ..Way::default() };
    }

    /// A peer has broken the rules of its ring.
    #[cold]
    fn break_off(&mut self, index: usize, counters: &mut DriverCounters) {
        counters.near_broken += 1;
        self.part(index);
    }

    /// Lets a link go; what is under way in it is lost.
    fn part(&mut self, index: usize) {
        if let Some(link) = self.links[index].take() {
            self.interest.remove(link.fd());
        }
        while self.links.last().is_some_and(Option::is_none) {
            self.links.pop();
        }
        self.count();
        self.dirty.retain(|dirty| *dirty != index);
        self.ways.iter_mut().filter(|way| way.link == Some(index)).for_each(|way| way.link = None);
    }

    fn count(&mut self) {
        self.open = self.links.iter().flatten().filter(|link| link.is_open()).count();
    }

    /// Before a sleep: peers have to ring from now on. False if something has come meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        let links = || self.links.iter().flatten();
        links().for_each(|link| link.set_sleeps(true));
        fence(Ordering::SeqCst);
        let quiet = !links().any(Link::has_messages);
        if !quiet {
            links().for_each(|link| link.set_sleeps(false));
        }
        quiet
    }

    /// After a sleep: peers need not ring any more, and whoever rang is heard.
    pub fn after_sleep(&mut self, now: Instant, counters: &mut DriverCounters) {
        self.links.iter().flatten().for_each(|link| link.set_sleeps(false));
        self.tend(now, counters);
    }
}

/// Where a peer's way is remembered.
#[inline]
fn place(peer: Gid) -> usize {
    let low = peer.0.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    // Fibonacci hashing: neighbouring addresses lie apart.
    (low.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

#[cfg(test)]
mod tests;
