//! The rings between this process and the others of its address, itself included.
//!
//! A ring is made by its sender at the first frame. When it is nearly full, its path is blocked until the
//! receiver has drained half of it, or has died. Frames to the dead vanish, as on a network.

pub mod unshown;

use crate::counters::IoCounters;
use crate::directory::{Member, Slot};
use crate::payload::push_packet;
use adverb_nic::memory::Gather;
use adverb_os::ring::{Broken, Consumer, Frame, Producer, RING_LEN};
use adverb_os::shm::{Mirror, anonymous_file};
use adverb_os::wake::Bell;
use adverb_os::{say, sys};
use adverb_wire::{Duration, Flow, Gid, ICRC_LEN, Instant, Packet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use unshown::{Unshown, is_urgent};

/// A burst is shown to the receiver after this many bytes, so that both work at the same time.
const PUBLISH_BYTES: usize = 16 << 10;
/// A receiver gives room back after this many bytes, at the latest at the end of its burst.
const RELEASE_BYTES: usize = RING_LEN / 16;
/// Frames taken from one ring before the next one has its turn.
const BURST: usize = 32;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;
/// How often the receiver of a full ring is checked for life.
const LIFE_CHECK: Duration = Duration::from_ms(10);
/// How long datagrams wait for a receiver that takes nothing out of its full ring, unless it wants a
/// processor and has none.
pub const PATIENCE: Duration = Duration::from_ms(2000);

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is in the ring.
    Queued,
    /// It is in the ring, and another may not fit: the path is blocked until [`Rings::unblocked`] says so.
    QueuedLast,
    /// It was dropped and counted.
    Dropped,
    /// There is no memory for a ring to that process: another way has to be found.
    NoRing,
}

/// The way to one other process.
#[derive(Debug)]
enum Outbound {
    Open(Box<OpenRing>),
    /// That process broke its ring's rules; it gets no frames any more.
    Refused {
        generation: u64,
    },
    /// There was no memory for a ring to it.
    Unmade {
        generation: u64,
    },
}

#[derive(Debug)]
struct OpenRing {
    producer: Producer,
    generation: u64,
    /// Opened when it is rung first.
    bell: Option<Bell>,
    dirty: bool,
    /// Frames other than plain acknowledgements have been appended since the bell was last thought of.
    urgent: bool,
    unsettled: bool,
    blocked: bool,
    idle: Idle,
    /// What had been put in at a time, for [`Rings::has_read`], and when all put in was known to be read.
    mark: Option<(Instant, u64)>,
    read_until: Instant,
}

/// Since when the receiver of a full ring has taken nothing out, as far as it was looked at.
#[derive(Debug, Default)]
struct Idle {
    since: Option<Instant>,
    head: u64,
    /// It was idle for too long.
    given_up: bool,
}

impl Idle {
    /// Whether it has been idle for too long, as is said once. `excused` is asked before.
    fn is_over(&mut self, now: Instant, head: u64, excused: impl FnOnce() -> bool) -> bool {
        if self.given_up {
            return false;
        }
        match self.since {
            Some(since) if self.head == head => {
                self.given_up = now.since(since) >= PATIENCE && !excused();
            }
            _ => (self.since, self.head) = (Some(now), head),
        }
        self.given_up
    }
}

#[derive(Debug)]
struct Inbound {
    from: Slot,
    generation: u64,
    consumer: Consumer,
    /// The way to wake a sender that waits for room.
    bell: Option<Bell>,
}

/// All rings of this process.
#[derive(Debug)]
pub struct Rings {
    member: Arc<Member>,
    /// The address of all its processes.
    own: Gid,
    outbound: Vec<Option<Outbound>>,
    inbound: Vec<Inbound>,
    /// Slots with frames that are not published.
    dirty: Vec<Slot>,
    /// What these are.
    unshown: Unshown,
    /// Slots whose frames are shown, but which may have fallen asleep just before.
    unsettled: Vec<Slot>,
    /// Slots whose rings are full.
    blocked: Vec<Slot>,
    life_checked: Instant,
    /// It has been said that there is no memory for a ring.
    said_unmade: bool,
}

/// A mailbox's word: nobody looks, and its owner wants to be woken for anything but plain acknowledgements.
pub const REQUESTS: u32 = 1;
/// The same, for acknowledgements too.
pub const ANYTHING: u32 = 2;

impl Rings {
    /// No rings yet.
    pub fn new(member: Arc<Member>, own: Gid) -> Rings {
        let outbound = (0..256).map(|_| None).collect();
        Rings {
            member,
            own,
            outbound,
            inbound: Vec::new(),
            dirty: Vec::new(),
            unshown: Unshown::default(),
            unsettled: Vec::new(),
            blocked: Vec::new(),
            life_checked: Instant::ZERO,
            said_unmade: false,
        }
    }

    /// The directory.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Puts a packet into a process's ring.
    #[inline]
    pub fn send_packet(
        &mut self,
        to: Slot,
        packet: &Packet,
        payload: &Gather,
        counters: &mut IoCounters,
    ) -> Sent {
        let (len, own) = (packet.frame_len(), self.own);
        self.unshown.note(packet);
        self.send(to, len, is_urgent(packet), counters, |producer| {
            push_packet(producer, own, packet, payload)
        })
    }

    /// Puts a complete frame into a process's ring.
    pub fn send_bytes(&mut self, to: Slot, frame: &[u8], counters: &mut IoCounters) -> Sent {
        self.unshown.note_other();
        self.send(to, frame.len(), true, counters, |producer| producer.push_bytes(frame, 0))
    }

    #[inline]
    fn send(
        &mut self,
        to: Slot,
        len: usize,
        urgent: bool,
        counters: &mut IoCounters,
        push: impl FnOnce(&mut Producer) -> Result<bool, Broken>,
    ) -> Sent {
        if self.outbound[to.index()].is_none() && !self.open(to, counters) {
            return Sent::Dropped;
        }
        let ring = match &mut self.outbound[to.index()] {
            Some(Outbound::Open(ring)) => ring,
            Some(Outbound::Unmade { .. }) => return Sent::NoRing,
            _ => {
                counters.drop_no_process += 1;
                return Sent::Dropped;
            }
        };
        match push(&mut ring.producer) {
            Ok(true) => {}
            Ok(false) => {
                counters.drop_ring_full += 1;
                return Sent::Dropped;
            }
            Err(Broken) => {
                self.refuse(to, counters);
                return Sent::Dropped;
            }
        }
        counters.shm_tx_frames += 1;
        counters.shm_tx_bytes += len as u64;
        ring.urgent |= urgent;
        if !ring.dirty {
            ring.dirty = true;
            self.dirty.push(to);
        }
        if ring.producer.unpublished() >= PUBLISH_BYTES && !self.publish_one(to, true, counters) {
            return Sent::Dropped;
        }
        self.after_push(to, counters)
    }

    /// Blocks the path if another frame may not fit.
    #[inline]
    fn after_push(&mut self, to: Slot, counters: &mut IoCounters) -> Sent {
        let Some(Outbound::Open(ring)) = &mut self.outbound[to.index()] else { return Sent::Dropped };
        match ring.producer.has_room_for_frame() {
            Ok(true) => return Sent::Queued,
            Ok(false) => {}
            Err(Broken) => {
                self.refuse(to, counters);
                return Sent::Dropped;
            }
        }
        if let Some(Outbound::Open(ring)) = &mut self.outbound[to.index()] {
            ring.urgent = true;
        }
        if !self.publish_one(to, true, counters) {
            return Sent::Dropped;
        }
        let Some(Outbound::Open(ring)) = &mut self.outbound[to.index()] else { return Sent::Dropped };
        match ring.producer.wait_for_room() {
            Ok(false) => Sent::Queued,
            Ok(true) => {
                counters.ring_full += 1;
                if !ring.blocked {
                    ring.blocked = true;
                    ring.idle = Idle::default();
                    self.blocked.push(to);
                }
                Sent::QueuedLast
            }
            Err(Broken) => {
                self.refuse(to, counters);
                Sent::Dropped
            }
        }
    }

    /// Makes the ring to a slot, or notes that it cannot be made. False if nobody lives there.
    #[cold]
    fn open(&mut self, to: Slot, counters: &mut IoCounters) -> bool {
        let generation = self.member.generation_of(to);
        if generation == 0 || !self.member.is_alive(to) {
            counters.drop_no_process += 1;
            return false;
        }
        let made = if to == self.member.slot() {
            self.open_own(generation)
        } else {
            self.member.create_ring(to, generation)
        };
        match made {
            Ok(mirror) => {
                counters.rings_opened_tx += 1;
                self.outbound[to.index()] = Some(Outbound::Open(Box::new(OpenRing {
                    producer: Producer::new(mirror),
                    generation,
                    bell: None,
                    dirty: false,
                    urgent: false,
                    unsettled: false,
                    blocked: false,
                    idle: Idle::default(),
                    mark: None,
                    read_until: Instant::ZERO,
                })));
                true
            }
            Err(error) => {
                counters.rings_unmade += 1;
                self.outbound[to.index()] = Some(Outbound::Unmade { generation });
                self.say_unmade(&error);
                true
            }
        }
    }

    /// Says once why this process is slower than it could be.
    #[cold]
    fn say_unmade(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.said_unmade, true) {
            say!(
                "adverb: no room in {} for shared memory to another process: {error}; its frames go over \
                 UDP, which is slower. Give that file system more room (Docker: --shm-size), or set \
                 directory= in ADVERB to another one in memory",
                self.member.folder().display()
            );
        }
    }

    /// The ring from this process to itself needs no name.
    fn open_own(&mut self, generation: u64) -> std::io::Result<Mirror> {
        let file = anonymous_file(Mirror::file_len(RING_LEN))?;
        let consumer = Consumer::new(Mirror::map(file.as_fd(), RING_LEN)?);
        self.inbound.push(Inbound { from: self.member.slot(), generation, consumer, bell: None });
        Mirror::map(file.as_fd(), RING_LEN)
    }

    /// Forgets a process that broke its ring.
    #[cold]
    fn refuse(&mut self, to: Slot, counters: &mut IoCounters) {
        counters.rings_broken += 1;
        if let Some(Outbound::Open(ring)) = &self.outbound[to.index()] {
            self.outbound[to.index()] = Some(Outbound::Refused { generation: ring.generation });
        }
    }

    /// Shows one receiver its frames and `wakes` it if it sleeps. False if another process has the slot now.
    fn publish_one(&mut self, to: Slot, wakes: bool, counters: &mut IoCounters) -> bool {
        let Some(Outbound::Open(ring)) = &mut self.outbound[to.index()] else { return false };
        if self.member.generation_of(to) != ring.generation {
            self.outbound[to.index()] = None;
            counters.drop_no_process += 1;
            return false;
        }
        ring.producer.publish();
        if wakes {
            ring_if_armed(&self.member, to, ring.urgent, ring.generation, &mut ring.bell, counters);
        }
        if !ring.unsettled {
            ring.unsettled = true;
            self.unsettled.push(to);
        }
        true
    }

    /// Whether all that receivers have not been shown is some plain acknowledgements.
    #[inline]
    pub fn has_acks_only(&self) -> bool {
        self.unshown.is_acks_only()
    }

    /// Shows all receivers their frames, and `wakes` those that sleep. A receiver that falls asleep at this
    /// very moment may be missed: [`settle`](Self::settle) has to follow soon, which wakes the others too.
    #[inline]
    pub fn publish(&mut self, wakes: bool, counters: &mut IoCounters) {
        self.unshown = Unshown::default();
        while let Some(to) = self.dirty.pop() {
            if let Some(Outbound::Open(ring)) = &mut self.outbound[to.index()] {
                ring.dirty = false;
                if ring.producer.unpublished() > 0 {
                    self.publish_one(to, wakes, counters);
                }
            }
        }
    }

    /// Makes sure that every receiver of frames shown so far is awake: either it saw them before it fell
    /// asleep, or this sees that it sleeps. The fence waits until the frames have left this processor's
    /// store buffer, about as long as handling another frame takes.
    #[inline]
    pub fn settle(&mut self, counters: &mut IoCounters) {
        if self.unsettled.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        while let Some(to) = self.unsettled.pop() {
            if let Some(Outbound::Open(ring)) = &mut self.outbound[to.index()] {
                ring.unsettled = false;
                ring_if_armed(&self.member, to, ring.urgent, ring.generation, &mut ring.bell, counters);
                ring.urgent = false;
            }
        }
    }

    /// Whether a receiver is known to have read everything that was put into its ring up to `since`, though
    /// it never finds it empty. That is known only when asked again; who has no ring has read nothing.
    pub fn has_read(&mut self, to: Slot, since: Instant, now: Instant) -> bool {
        let Some(Outbound::Open(ring)) = &mut self.outbound[to.index()] else { return false };
        let Ok((head, end)) = ring.producer.progress() else { return false };
        match ring.mark {
            Some((at, tail)) if head >= tail => (ring.read_until, ring.mark) = (at, None),
            _ => {}
        }
        if ring.mark.is_none() && head < end {
            ring.mark = Some((now, end));
        }
        ring.read_until >= since
    }

    /// Whether some ring is full.
    #[inline]
    pub fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// A slot whose path may go on, if there is one: its ring has drained, or its process is gone.
    pub fn unblocked(&mut self, now: Instant, counters: &mut IoCounters) -> Option<Slot> {
        let check_life = now.since(self.life_checked) >= LIFE_CHECK;
        for i in 0..self.blocked.len() {
            let slot = self.blocked[i];
            let free = match &mut self.outbound[slot.index()] {
                Some(Outbound::Open(ring)) => {
                    let gone = self.member.generation_of(slot) != ring.generation
                        || (check_life && !self.member.is_alive(slot));
                    match ring.producer.has_drained() {
                        _ if gone => {
                            self.outbound[slot.index()] = None;
                            true
                        }
                        Ok(drained) => {
                            ring.blocked = !drained;
                            drained
                        }
                        Err(Broken) => {
                            self.refuse(slot, counters);
                            true
                        }
                    }
                }
                _ => true,
            };
            if free {
                self.blocked.swap_remove(i);
                return Some(slot);
            }
        }
        if check_life {
            self.life_checked = now;
        }
        None
    }

    /// A slot whose full ring datagrams should wait for no longer, each once: its process has taken nothing
    /// out for [`PATIENCE`], and is not excused.
    pub fn idle(&mut self, now: Instant, excused: impl Fn(&Member, Slot) -> bool) -> Option<Slot> {
        let Rings { blocked, outbound, member, .. } = self;
        blocked.iter().copied().find(|slot| {
            let Some(Outbound::Open(ring)) = &mut outbound[slot.index()] else { return false };
            // A broken ring is let go when its path is unblocked.
            let Ok((head, _)) = ring.producer.progress() else { return false };
            ring.idle.is_over(now, head, || excused(member, *slot))
        })
    }

    /// When blocked paths want to be looked at again even if no bell rings.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.has_blocked().then(|| self.life_checked + LIFE_CHECK)
    }

    /// Whether something wants a round: frames in some ring, rings to be opened, room in a full one.
    #[inline]
    pub fn has_work(&self) -> bool {
        let drained = |slot: &Slot| match &self.outbound[slot.index()] {
            Some(Outbound::Open(ring)) => ring.producer.seems_drained(),
            _ => true,
        };
        self.inbound.iter().any(|ring| ring.consumer.has_frames())
            || self.member.has_announced_rings()
            || self.blocked.iter().any(drained)
    }

    /// Takes up to [`BURST`] frames from each ring, and returns how many in all.
    #[inline]
    pub fn receive(
        &mut self,
        counters: &mut IoCounters,
        mut each: impl FnMut(&Frame<'_>, &mut IoCounters),
    ) -> usize {
        if self.member.has_announced_rings() {
            self.open_announced(counters);
        }
        let left_out =
            Flow { src: self.own, dst: self.own, ..Flow::default() }.ip_header_len() + UDP_LEN + ICRC_LEN;
        let mut total = 0;
        let mut i = 0;
        while i < self.inbound.len() {
            let ring = &mut self.inbound[i];
            match drain(ring, &self.member, left_out, counters, &mut each) {
                Ok(count) => {
                    total += count;
                    i += 1;
                }
                Err(Broken) => {
                    counters.rings_broken += 1;
                    self.inbound.swap_remove(i);
                }
            }
        }
        total
    }

    #[cold]
    fn open_announced(&mut self, counters: &mut IoCounters) {
        for (from, generation, mirror) in self.member.take_announced_rings() {
            counters.rings_opened_rx += 1;
            self.inbound.push(Inbound { from, generation, consumer: Consumer::new(mirror), bell: None });
        }
        self.forget_the_gone();
    }

    /// Lets go of empty rings whose other end has died.
    pub fn forget_the_gone(&mut self) {
        let member = &self.member;
        let gone =
            |slot: Slot, generation: u64| member.generation_of(slot) != generation || !member.is_alive(slot);
        let ends = self.inbound.len();
        // In this order: what the dead sent was there before they died.
        self.inbound.retain(|ring| !gone(ring.from, ring.generation) || ring.consumer.has_frames());
        if self.inbound.len() < ends {
            // Who was killed has told nobody that its socket is closed.
            member.note_change();
        }
        for slot in Slot::all() {
            let generation = match &self.outbound[slot.index()] {
                None => continue,
                Some(Outbound::Open(ring)) => ring.generation,
                Some(Outbound::Refused { generation } | Outbound::Unmade { generation }) => *generation,
            };
            // A blocked path is let go by `unblocked`, which tells the NIC.
            if gone(slot, generation) && !self.blocked.contains(&slot) {
                self.outbound[slot.index()] = None;
            }
        }
    }
}

/// Rings a process's bell if it asked for that.
#[inline]
fn ring_if_armed(
    member: &Member,
    slot: Slot,
    urgent: bool,
    generation: u64,
    bell: &mut Option<Bell>,
    counters: &mut IoCounters,
) {
    let armed = member.armed(slot);
    let wants = armed.load(Ordering::Relaxed);
    if wants == 0 || (wants == REQUESTS && !urgent) || armed.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    counters.bells_rung += 1;
    member.waker_cpu(slot).store(sys::current_cpu(), Ordering::Relaxed);
    if slot == member.slot() {
        return member.bell().ring();
    }
    if bell.is_none() {
        *bell = member.open_bell(slot, generation).ok();
    }
    if let Some(bell) = bell {
        bell.ring();
    }
}

#[inline]
fn drain(
    ring: &mut Inbound,
    member: &Member,
    left_out: usize,
    counters: &mut IoCounters,
    each: &mut impl FnMut(&Frame<'_>, &mut IoCounters),
) -> Result<usize, Broken> {
    let mut count = 0;
    while count < BURST {
        let Some((frame, taken)) = ring.consumer.peek()? else { break };
        counters.shm_rx_frames += 1;
        counters.shm_rx_bytes += (frame.frame_len() + if frame.is_compact() { left_out } else { 0 }) as u64;
        each(&frame, counters);
        ring.consumer.skip(taken);
        count += 1;
        if ring.consumer.unreleased() >= RELEASE_BYTES && ring.consumer.release() {
            ring_if_armed(member, ring.from, true, ring.generation, &mut ring.bell, counters);
        }
    }
    if count > 0 && ring.consumer.release() {
        ring_if_armed(member, ring.from, true, ring.generation, &mut ring.bell, counters);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken_with_its_frames_or_when_a_row_of_them_has_settled() {
        let folder = std::env::temp_dir().join(format!("adverb-rings-{}", std::process::id()));
        let address: std::net::IpAddr = [127, 0, 3, 77].into();
        let (member, ()) = Member::claim(&folder, address, |_, _| Ok(())).unwrap();
        let member = Arc::new(member);
        let (own, counters) = (member.slot(), &mut IoCounters::default());
        let mut rings = Rings::new(Arc::clone(&member), Gid::from(address));
        // Whether it is woken with each of three frames, and how often it was by then, and after settling.
        for (wakes, rung, settled) in [(true, 1, 1), (false, 1, 2), (true, 3, 3)] {
            member.own_armed().store(ANYTHING, Ordering::Relaxed);
            for _ in 0..3 {
                assert_eq!(rings.send_bytes(own, &[7; 64], counters), Sent::Queued);
                rings.publish(wakes, counters);
            }
            assert_eq!(counters.bells_rung, rung);
            rings.settle(counters);
            assert_eq!(counters.bells_rung, settled);
            rings.settle(counters);
            assert_eq!(counters.bells_rung, settled, "once is enough");
        }
        let mut found = 0;
        rings.receive(counters, |_, _| found += 1);
        assert_eq!(found, 9);
        drop((rings, member));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_takes_nothing_out_is_given_up_once_and_not_while_it_is_excused() {
        let ms = |n: u64| Instant::from_ns(n * 1_000_000);
        let mut idle = Idle::default();
        // At a time, with the head there, excused; whether it is over.
        for (at, head, excused, expected) in [
            (5, 64, false, false),
            (2004, 64, false, false),
            // Something was taken out: it begins anew.
            (2005, 128, false, false),
            (4004, 128, false, false),
            (4005, 128, true, false),
            (4006, 128, false, true),
            (4007, 128, false, false),
        ] {
            assert_eq!(idle.is_over(ms(at), head, || excused), expected, "{at}");
        }
    }
}
