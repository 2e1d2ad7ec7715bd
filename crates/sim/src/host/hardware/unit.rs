//! The hardware of one host's NIC at work: who waits for what, what is under way, and until when each station
//! is taken. It holds no packets and calls no NIC; `drive` does.

use super::profile::Profile;
use super::responder::Responder;
use super::state::{ConnectionState, Found};
use adverb_nic::{CqId, QpId};
use core::cell::Cell;
use core::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

/// What is done at a later time. Packets by number, behind which stands the index of their queue pair; others
/// by the latter alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// The NIC knows of a post.
    Known(u32),
    /// The NIC knows of a post to a cross-channel queue, and has started it.
    Started(u32),
    /// So many WQEs are there.
    Fetched(u32, u32),
    /// A unit has executed a WQE of this queue pair.
    Executed(u32),
    /// A frame of this queue pair has all that it needs for the port's pipeline, which takes it as an answer,
    /// or not.
    Ready(u32, u32, bool),
    /// A frame may go on the link.
    Leave,
    /// A packet for a queue pair has been taken in.
    Entered(u32, u32),
    /// A request has had its turn at its queue pair.
    Turned(u32, u32),
    /// The request of this queue pair that holds a word lets it go.
    Ended(u32),
    /// A packet's bytes are in memory, or it has none.
    Landed(u32, u32),
    /// A processor can find a completion.
    Visible(CqKey),
}

/// Work, and when; the earliest is the greatest.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: u64,
    /// Place in the order of entering.
    order: u64,
    work: Work,
}

impl Due {
    #[inline]
    fn key(&self) -> Reverse<u128> {
        // One number: its comparison has no branch in the middle.
        Reverse(u128::from(self.at) << 64 | u128::from(self.order))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    #[inline]
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    #[inline]
    fn cmp(&self, other: &Due) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// What a NIC keeps of the connection that a packet is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Keeps {
    /// Nothing: it is StaR's stateless side.
    Nothing,
    /// Its own side's state.
    #[default]
    Own,
    /// Both sides', each an entry: it is StaR's stateful side.
    Both,
}

/// Added to a queue pair's index, the entry of the other side's state.
const OTHER_SIDE: u32 = 1 << 16;

/// A completion queue, by its place among those that have been seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct CqKey(pub u32);

/// A queue pair as the hardware sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub id: Option<QpId>,
    /// What the NIC keeps of its connection.
    pub keeps: Keeps,
    /// WQEs on the NIC that have not been executed.
    pub at_hand: u32,
    /// The NIC knows of its posts.
    pub known: bool,
    /// It is a cross-channel queue that has been started.
    pub started: bool,
    /// It has fetched since it was idle.
    pub active: bool,
    /// It waits for a doorbell, a fetch or a unit, or is on one.
    pub engaged: bool,
    /// A unit has worked on its next WQE, which takes effect when nothing goes before it.
    pub paid: bool,
    /// It stands in the row of those that have frames.
    pub sending: bool,
    /// What the answer to its last atomic waits for, in ps.
    pub turn: u64,
    /// Until then its messages take their turns.
    pub busy: u64,
    /// The last of its requests, and of its answers, is ready to leave then.
    pub out: [u64; 2],
    /// The last request to it, and the last answer, has entered then.
    pub entered: [u64; 2],
    /// The last request to it, and the last answer, is in memory then.
    pub landed: [u64; 2],
}

impl Pair {
    /// All that was posted has been executed.
    pub fn rest(&mut self) {
        (self.known, self.started, self.active, self.paid, self.at_hand) = (false, false, false, false, 0);
    }
}

/// Entries of the cache that a packet of a queue pair needs.
fn entries(index: u32, keeps: Keeps) -> impl Iterator<Item = u32> {
    let own = (keeps != Keeps::Nothing).then_some(index);
    let other = (keeps == Keeps::Both).then(|| index + OTHER_SIDE);
    own.into_iter().chain(other)
}

/// A processing unit, and who waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Core {
    pub busy: bool,
    pub row: VecDeque<u32>,
}

/// One way over PCIe: until when it is taken. NICs of a group share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way(Rc<Cell<u64>>);

impl Way {
    /// Takes it, from a time on or when it is free; until when.
    pub fn take(&self, from: u64, takes: u64) -> u64 {
        self.0.set(self.0.get().max(from) + takes);
        self.0.get()
    }
}

/// The hardware of one NIC.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its parameters.
    pub profile: Profile,
    /// Picoseconds that a byte holds PCIe, where that is a whole number; otherwise 0.
    byte_ps: u64,
    work: BinaryHeap<Due>,
    order: u64,
    /// Work that is due is being done.
    pub(super) at_work: bool,
    pub(super) pairs: Vec<Pair>,
    pub(super) cores: Vec<Core>,
    /// Queue pairs that have frames, in turns.
    pub(super) sending: VecDeque<u32>,
    /// PCIe is taken until then: towards the NIC, and towards memory. The host's 1RMA NIC takes it too.
    pub(crate) to_nic: Way,
    pub(crate) to_memory: Way,
    /// Ends of payload reads under way.
    reads: VecDeque<u64>,
    /// Bytes of frames that were taken from the NIC and are not on the link, and how many there may be.
    pub(super) taken: u64,
    taken_max: u64,
    /// Frames that may leave: when, and which. The port's pipeline lets them through one after another.
    staged: VecDeque<(u64, u32)>,
    /// The port's pipelines are taken until then: sending, receiving. A single one is the first.
    pipelines: [u64; 2],
    state: Option<ConnectionState>,
    pub(super) responder: Responder,
    /// WQEs that were executed.
    pub(super) executed: u64,
    /// Rules that were looked up.
    pub(super) rules: u64,
    /// Packets for stateless sides.
    pub(super) to_stateless: u64,
    /// Packets for which a posted WQE was read.
    pub(super) posted_reads: u64,
    /// Completion queues that have been seen, and the completions in each that a processor may find.
    cqs: Vec<(CqId, u32)>,
    pub(super) rng: fastrand::Rng,
}

impl Unit {
    /// Idle hardware on a link of a rate; `frame` is the largest frame there.
    pub fn new(profile: Profile, line_rate: u64, frame: u32, seed: u64) -> Unit {
        let ahead = u128::from(profile.pcie_read) * u128::from(line_rate) * 2 / 8_000_000_000_000;
        let byte_ps = profile.transfer(1);
        // A product with a number of 32 bits does not overflow.
        let is_whole = byte_ps < 1 << 31 && byte_ps * profile.pcie_rate == 8_000_000_000_000;
        Unit {
            byte_ps: if is_whole { byte_ps } else { 0 },
            work: BinaryHeap::new(),
            order: 0,
            at_work: false,
            pairs: Vec::new(),
            cores: vec![Core::default(); profile.units as usize],
            sending: VecDeque::new(),
            to_nic: Way::default(),
            to_memory: Way::default(),
            reads: VecDeque::new(),
            taken: 0,
            taken_max: ahead as u64 + 2 * u64::from(frame),
            staged: VecDeque::new(),
            pipelines: [0; 2],
            state: ConnectionState::new(&profile),
            responder: Responder::default(),
            executed: 0,
            rules: 0,
            to_stateless: 0,
            posted_reads: 0,
            cqs: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            profile,
        }
    }

    /// Times that a connection's state had to be read.
    pub fn misses(&self) -> u64 {
        self.state.as_ref().map_or(0, ConnectionState::misses)
    }

    /// Rules that StaR's stateful side has looked up.
    pub fn rules(&self) -> u64 {
        self.rules
    }

    /// Packets to StaR's stateless sides.
    pub fn to_stateless(&self) -> u64 {
        self.to_stateless
    }

    /// Packets for which StaR's stateless side has read a posted WQE.
    pub fn posted_reads(&self) -> u64 {
        self.posted_reads
    }

    /// WQEs that were executed.
    pub(crate) fn executed(&self) -> u64 {
        self.executed
    }

    /// Enters work for a time.
    #[inline(never)]
    pub(super) fn put(&mut self, at: u64, work: Work) {
        self.order += 1;
        self.work.push(Due { at, order: self.order, work });
    }

    /// When there is work next.
    #[inline]
    pub(super) fn next_at(&self) -> Option<u64> {
        self.work.peek().map(|due| due.at)
    }

    /// Takes out work that is due.
    #[inline]
    pub(super) fn due(&mut self, now: u64) -> Option<Work> {
        self.next_at().filter(|at| *at <= now)?;
        self.work.pop().map(|due| due.work)
    }

    /// A queue pair by its index.
    #[inline]
    pub(super) fn pair(&mut self, index: u32) -> &mut Pair {
        if self.pairs.len() <= index as usize {
            self.make_pairs(index);
        }
        &mut self.pairs[index as usize]
    }

    #[cold]
    fn make_pairs(&mut self, last: u32) {
        self.pairs.resize(last as usize + 1, Pair::default());
    }

    /// Whether a frame may be taken from the NIC now.
    pub(super) fn has_room(&mut self, now: u64) -> bool {
        while self.reads.front().is_some_and(|end| *end <= now) {
            self.reads.pop_front();
        }
        let reads = self.profile.pcie_reads;
        self.taken < self.taken_max && (reads == 0 || (self.reads.len() as u64) < reads)
    }

    /// When room comes back that reads take, if they are what is missing.
    pub(super) fn read_ends(&self) -> Option<u64> {
        let reads = self.profile.pcie_reads;
        self.reads.front().copied().filter(|_| reads > 0 && self.reads.len() as u64 >= reads)
    }

    /// Time that bytes hold PCIe, as [`Profile::transfer`] says.
    #[inline]
    fn transfer(&self, bytes: u64) -> u64 {
        if self.byte_ps > 0 { bytes * self.byte_ps } else { self.profile.transfer(bytes) }
    }

    /// Starts a WQE fetch; when it ends.
    pub(super) fn fetch(&mut self, now: u64, index: u32, wqes: u32) -> u64 {
        let keeps = self.pair(index).keeps;
        let (at, hold) = self.find_state(now, index, keeps);
        let takes = self.transfer(64 * u64::from(wqes));
        let start = self.to_nic.take(at, takes) - takes;
        self.leave_state(start, index, keeps);
        start + hold + self.profile.fetch
    }

    /// Reads WQEs that a stateless side hands to its peer, of which the NIC keeps nothing; when they are
    /// there.
    pub(super) fn fetch_for_peer(&mut self, now: u64, wqes: u32) -> u64 {
        let known = now + self.profile.doorbell;
        self.to_nic.take(known, self.transfer(64 * u64::from(wqes))) + self.profile.fetch
    }

    /// Reads a posted WQE of 64 bytes, and 16 that say what is outstanding; when they are there.
    pub(super) fn read_posted(&mut self, now: u64) -> u64 {
        self.posted_reads += 1;
        self.to_nic.take(now, self.transfer(64 + 16)) + self.profile.posted
    }

    /// Reads payload; when the NIC has it.
    pub(super) fn read(&mut self, now: u64, bytes: u32) -> u64 {
        let transferred = self.to_nic.take(now, self.transfer(u64::from(bytes)));
        let end = transferred + self.profile.pcie_read;
        self.reads.push_back(end);
        end
    }

    /// Writes to memory; when the last byte is there.
    pub(super) fn write(&mut self, now: u64, bytes: u32) -> u64 {
        self.to_memory.take(now, self.transfer(u64::from(bytes)))
    }

    /// Writes a completion; when a processor can find it.
    pub(super) fn complete(&mut self, now: u64) -> u64 {
        let takes = self.transfer(64);
        self.to_memory.take(now, takes) - takes + self.profile.completion
    }

    /// Looks a connection's state up: when it is there, and for how long the pipeline waits besides.
    fn find_state(&mut self, now: u64, index: u32, keeps: Keeps) -> (u64, u64) {
        let Some(state) = &mut self.state else { return (now, 0) };
        let (mut there, mut holds) = (now, 0);
        for entry in entries(index, keeps) {
            match state.look_up(now, entry, &mut self.rng) {
                Found::Here => continue,
                Found::At(at) => there = there.max(at),
                Found::Holds(time) => holds += time,
            }
            let bytes = self.profile.transfer(self.profile.cache_bytes);
            self.to_nic.take(now, bytes);
            self.to_memory.take(now, bytes);
        }
        (there, holds)
    }

    /// What has looked a connection's state up goes on at a time.
    fn leave_state(&mut self, at: u64, index: u32, keeps: Keeps) {
        if let Some(state) = &mut self.state {
            entries(index, keeps).for_each(|entry| state.passed(at, entry));
        }
    }

    /// A packet of a queue pair goes through a pipeline that it holds for `cost`; when it is through.
    pub(super) fn pass(&mut self, now: u64, (index, keeps): (u32, Keeps), receives: bool, cost: u64) -> u64 {
        let (at, hold) = self.find_state(now, index, keeps);
        let free = &mut self.pipelines[usize::from(receives && self.profile.pipelines != 1)];
        *free = (*free).max(at) + hold + cost;
        let through = *free;
        self.leave_state(through, index, keeps);
        through
    }

    /// A frame may leave from a time on.
    pub(super) fn stage(&mut self, at: u64, packet: u32) {
        debug_assert!(self.staged.back().is_none_or(|(last, _)| *last <= at), "pipelines keep the order");
        self.staged.push_back((at, packet));
    }

    /// The frame that may leave next, if it may leave now.
    #[inline]
    pub(super) fn next_staged(&self, now: u64) -> Option<u32> {
        self.staged.front().filter(|(at, _)| *at <= now).map(|(_, packet)| *packet)
    }

    /// Takes that frame out.
    pub(super) fn unstage(&mut self) {
        self.staged.pop_front();
    }

    /// The place of a completion queue.
    pub(super) fn cq_key(&mut self, cq: CqId) -> CqKey {
        let at = self.cqs.iter().position(|(known, _)| *known == cq).unwrap_or_else(|| {
            self.cqs.push((cq, 0));
            self.cqs.len() - 1
        });
        CqKey(at as u32)
    }

    /// One completion more can be found.
    pub(super) fn reveal(&mut self, key: CqKey) {
        self.cqs[key.0 as usize].1 += 1;
    }

    /// The host starts anew: nothing is under way. The packets that were.
    pub(crate) fn restart(&mut self) -> Vec<u32> {
        let mut packets: Vec<u32> = self.staged.drain(..).map(|(_, packet)| packet).collect();
        packets.extend(self.responder.restart());
        packets.extend(self.work.drain().filter_map(|due| match due.work {
            Work::Ready(_, packet, _)
            | Work::Entered(packet, _)
            | Work::Turned(packet, _)
            | Work::Landed(packet, _) => Some(packet),
            _ => None,
        }));
        self.pairs.clear();
        self.cores.iter_mut().for_each(|core| *core = Core::default());
        self.sending.clear();
        self.reads.clear();
        self.taken = 0;
        self.cqs.clear();
        packets
    }

    /// Whether a completion can be found.
    pub(crate) fn has_visible(&self, cq: CqId) -> bool {
        self.cqs.iter().any(|(known, count)| *known == cq && *count > 0)
    }

    /// Takes one of the completions that can be found; false when there is none.
    pub(crate) fn take_visible(&mut self, cq: CqId) -> bool {
        match self.cqs.iter_mut().find(|(known, _)| *known == cq) {
            Some((_, count)) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }
}
