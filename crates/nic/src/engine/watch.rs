//! What chains of WQEs do, told step by step: which WQEs were fetched and when, who changed which, which WAIT
//! was reached. Only of a NIC that is [watched](crate::NicConfig::watch_chains); others keep nothing.
//!
//! WQEs are plain memory, and nobody is told of a store. So the memory of each cross-channel queue is
//! compared with a shadow of it around each frame that arrives: what differs after it, the frame has changed.
//! What differs before, a program of the host did.

use crate::limits;
use crate::memory::{Payload, RemoteRight};
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue::cq::{Entry, Release};
use crate::queue::cross::{CrossChannel, CrossChannels};
use crate::queue::wqe::{BLOCK, Wqe, WqeOp};
use crate::queue_pair::QueuePair;
use crate::state::NicState;
use crate::work::Status;
use adverb_wire::{Instant, Operation, Packet, Psn, QpNumber};
use std::collections::{BTreeMap, VecDeque};

/// Something that a chain did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainEvent {
    /// When.
    pub at: Instant,
    /// What.
    pub what: ChainStep,
}

/// A WQE: its queue pair, and its first block, counted freely from the first one ever posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WqePlace {
    /// Number of the queue pair.
    pub qp: QpNumber,
    /// Its first block.
    pub block: u32,
}

/// What a chain did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChainStep {
    /// WQEs were read from memory, from this one on.
    Fetched {
        /// The first of them.
        first: WqePlace,
        /// Blocks of all of them.
        blocks: u32,
    },
    /// A WQE was executed; one that sends has its frames to send now.
    Executed {
        /// Which.
        wqe: WqePlace,
        /// What it was when it was fetched.
        op: WqeOp,
    },
    /// A WQE was refused as none.
    Refused {
        /// Which.
        wqe: WqePlace,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// A WAIT was reached whose completion has not come.
    Waiting {
        /// Which.
        wqe: WqePlace,
        /// The completion queue that it is for.
        cq: u32,
        /// Index of the completion.
        index: u32,
        /// Completions that were ever written there.
        produced: u64,
    },
    /// A compare-and-swap came to a word of a WQE.
    Compared {
        /// Whose it is.
        by: Author,
        /// The WQE's queue pair.
        qp: QpNumber,
        /// First byte of the word in the queue's memory.
        offset: usize,
        /// The word there, what was compared with it, and what would take its place; in the host's order.
        found: u64,
        /// What was compared with it.
        compare: u64,
        /// What takes its place if they are equal.
        swap: u64,
    },
    /// A block of a queue was changed.
    Changed(Box<Change>),
    /// A completion was written that may be waited for.
    Completed {
        /// The completion queue.
        cq: u32,
        /// Index of the completion.
        index: u64,
        /// Whose it is.
        qp: QpNumber,
        /// Its outcome.
        status: Status,
        /// Of a request: the end of its WQE's blocks.
        end: Option<u32>,
    },
}

/// A change of a block of a cross-channel queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Whose queue.
    pub qp: QpNumber,
    /// Which block of its memory.
    pub block: u32,
    /// Who did it.
    pub by: Author,
    /// What had been fetched of it before.
    pub copy: Copied,
    /// The block before.
    pub before: [u8; BLOCK],
    /// The block now.
    pub after: [u8; BLOCK],
}

/// What became of the last copy of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// It was never fetched.
    Never,
    /// It is at hand, as it was at this time, and has not been executed.
    AtHand(Instant),
    /// It was fetched at this time, and has been executed.
    Executed(Instant),
}

/// Who changes a WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Author {
    /// A program of the host: by a post, or by a store.
    Host,
    /// A WQE of this NIC.
    Wqe(WqePlace, Operation),
    /// A message that this queue pair has received.
    Message(QpNumber),
    /// A request of the peer of this queue pair.
    Peer(QpNumber, Operation),
}

/// What a watched NIC keeps.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub events: VecDeque<ChainEvent>,
    /// Events that found no place.
    pub lost: u64,
    /// By queue pair index.
    shadows: BTreeMap<u32, Shadow>,
}

/// A queue's memory as it was seen last.
#[derive(Debug)]
struct Shadow {
    qp: QpNumber,
    blocks: Vec<[u8; BLOCK]>,
    /// By block: when it was fetched last.
    fetched: Vec<Option<Instant>>,
    /// WQEs before this block have been executed.
    next: u32,
}

impl Shadow {
    fn mask(&self) -> u32 {
        (self.blocks.len() as u32).wrapping_sub(1)
    }

    /// What became of the last copy of a block.
    fn copied(&self, block: u32, cached: u32) -> Copied {
        let Some(at) = self.fetched[block as usize] else { return Copied::Never };
        let ahead = block.wrapping_sub(self.next) & self.mask();
        let at_hand = (cached.wrapping_sub(self.next) as i32).max(0) as u32;
        if ahead < at_hand { Copied::AtHand(at) } else { Copied::Executed(at) }
    }
}

impl Watch {
    fn tell(&mut self, at: Instant, what: ChainStep) {
        if self.events.len() == limits::MAX_CHAIN_EVENTS {
            self.lost += 1;
            return;
        }
        self.events.push_back(ChainEvent { at, what });
    }

    /// A cross-channel queue pair was made.
    pub fn add(&mut self, index: u32, qp: QpNumber, cross: &CrossChannel) {
        let blocks = cross.host.blocks() as usize;
        let mut shadow = Shadow {
            qp,
            blocks: Vec::with_capacity(blocks),
            fetched: vec![None; blocks],
            next: cross.cached,
        };
        let memory = cross.host.memory();
        shadow.blocks.extend((0..blocks).map(|block| memory.read_block(block * BLOCK)));
        self.shadows.insert(index, shadow);
    }

    /// Finds what has been changed since the last look. A host fills blocks that nobody has fetched, or that
    /// are done: only what it changes of a copy at hand is worth telling.
    fn look(&mut self, queues: &CrossChannels, by: Author, at: Instant) {
        self.shadows.retain(|index, _| queues.get(*index).is_some());
        let mut found = Vec::new();
        for (index, shadow) in &mut self.shadows {
            let Some(cross) = queues.get(*index) else { continue };
            if (cross.cached.wrapping_sub(shadow.next) as i32) < 0 {
                shadow.next = cross.cached;
            }
            let memory = cross.host.memory();
            for block in 0..shadow.blocks.len() {
                let after = memory.read_block(block * BLOCK);
                let before = core::mem::replace(&mut shadow.blocks[block], after);
                if before == after {
                    continue;
                }
                let copy = shadow.copied(block as u32, cross.cached);
                if by != Author::Host || matches!(copy, Copied::AtHand(_)) {
                    found.push(Change { qp: shadow.qp, block: block as u32, by, copy, before, after });
                }
            }
        }
        found.into_iter().for_each(|change| self.tell(at, ChainStep::Changed(Box::new(change))));
    }

    /// The queue and offset of an address.
    fn place(&self, queues: &CrossChannels, addr: u64) -> Option<(u32, usize)> {
        self.shadows.keys().find_map(|index| {
            let memory = queues.get(*index)?.host.memory();
            let offset = addr.wrapping_sub(memory.addr());
            (offset < memory.len() as u64).then_some((*index, offset as usize))
        })
    }

    /// A compare-and-swap that is about to be executed.
    fn compare(&mut self, queues: &CrossChannels, addr: u64, packet: &Packet, by: Author, at: Instant) {
        let Some((index, offset)) = self.place(queues, addr) else { return };
        let Some(shadow) = self.shadows.get(&index) else { return };
        let inside = offset % BLOCK;
        let Some(bytes) = shadow.blocks[offset / BLOCK].get(inside..inside + 8) else { return };
        let found = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let (compare, swap) = (packet.atomic.compare, packet.atomic.swap_add);
        self.tell(at, ChainStep::Compared { by, qp: shadow.qp, offset, found, compare, swap });
    }
}

/// What the engine tells while it is watched.
impl NicState {
    /// Looks for changes that a program of the host has made.
    #[cold]
    pub fn look(&mut self, by: Author, now: Instant) {
        if let Some(watch) = self.watch.as_deref_mut() {
            watch.look(&self.cross, by, now);
        }
    }

    /// WQEs of a queue were read, up to where they are at hand now.
    #[cold]
    pub fn tell_fetched(&mut self, qp: &Qp, first: u32, now: Instant) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        let Some(cross) = self.cross.get(qp.index()) else { return };
        let blocks = cross.cached.wrapping_sub(first);
        if let Some(shadow) = watch.shadows.get_mut(&qp.index()) {
            for ahead in 0..blocks {
                let place = first.wrapping_add(ahead) & shadow.mask();
                shadow.fetched[place as usize] = Some(now);
            }
        }
        watch.tell(now, ChainStep::Fetched { first: WqePlace { qp: qp.num, block: first }, blocks });
    }

    /// How many events have been told and not taken.
    pub fn told(&self) -> usize {
        self.watch.as_deref().map_or(0, |watch| watch.events.len())
    }

    /// A WQE was executed. That comes before what has been told since there were `place` events.
    #[cold]
    pub fn tell_executed(&mut self, qp: &Qp, wqe: &Wqe, place: usize, now: Instant) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        if let Some(shadow) = watch.shadows.get_mut(&qp.index()) {
            shadow.next = qp.sq.fetched;
        }
        let name = WqePlace { qp: qp.num, block: wqe.block };
        watch.tell(now, ChainStep::Executed { wqe: name, op: wqe.op });
        // What its execution has led to comes behind it.
        let last = watch.events.len().saturating_sub(1);
        for at in (place..last).rev() {
            watch.events.swap(at, at + 1);
        }
    }

    /// A WQE was refused.
    #[cold]
    pub fn tell_refused(&mut self, qp: &Qp, block: u32, rule: &'static str, now: Instant) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        if let Some(shadow) = watch.shadows.get_mut(&qp.index()) {
            shadow.next = block.wrapping_add(1);
        }
        watch.tell(now, ChainStep::Refused { wqe: WqePlace { qp: qp.num, block }, rule });
    }

    /// A WAIT was reached.
    #[cold]
    pub fn tell_waiting(&mut self, qp: &Qp, wqe: &Wqe, now: Instant) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        let (cq, index) = (wqe.queue_number(), wqe.queue_index());
        let Some(queue) = self.cqs.at(cq) else { return };
        queue.watch();
        let produced = queue.produced;
        let place = WqePlace { qp: qp.num, block: wqe.block };
        watch.tell(now, ChainStep::Waiting { wqe: place, cq, index, produced });
    }

    /// A completion was written.
    #[cold]
    pub fn tell_completed(&mut self, cq: u32) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        let Some(queue) = self.cqs.at(cq) else { return };
        let Some(Entry { completion, release }) = queue.newest() else { return };
        let end = match release {
            Some(Release::Send { end, .. }) => Some(*end),
            _ => None,
        };
        let (qp, status) = (completion.qp, completion.status);
        let at = Instant::from_ps(completion.timestamp_ns.saturating_mul(1000));
        let index = queue.produced.wrapping_sub(1);
        watch.tell(at, ChainStep::Completed { cq, index, qp, status, end });
    }
}

impl Nic {
    /// What chains of WQEs have done, the oldest first, if [`NicConfig`](crate::NicConfig) says that it is
    /// told.
    pub fn next_chain_event(&mut self) -> Option<ChainEvent> {
        self.state.watch.as_deref_mut()?.events.pop_front()
    }

    /// Events that were not kept, because too many had not been taken.
    pub fn chain_events_lost(&self) -> u64 {
        self.state.watch.as_deref().map_or(0, |watch| watch.lost)
    }

    /// How many events wait to be taken.
    pub fn chain_events(&self) -> usize {
        self.state.told()
    }

    /// Takes in a frame of which is told what it changes.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_in_watched(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let by = self.author(packet);
        self.state.look(Author::Host, now);
        if packet.bth.opcode.operation() == Operation::CompareSwap {
            self.before_swap(now, packet, by);
        }
        self.demux(now, packet, payload);
        self.state.look(by, now);
    }

    /// A compare-and-swap arrives: if it is for a WQE, what it finds is told.
    fn before_swap(&mut self, now: Instant, packet: &Packet, by: Author) {
        let Some(QueuePair { qp, .. }) = self.qps.at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        let (pd, number, eth) = (qp.pd, qp.num, &packet.atomic);
        let right = RemoteRight::Atomic;
        let Ok(word) = self.state.memory.check_remote(pd, number, eth.rkey, eth.va, 8, right) else { return };
        if let Some(watch) = self.state.watch.as_deref_mut() {
            watch.compare(&self.state.cross, word.addr(), packet, by, now);
        }
    }

    /// Who is behind what a frame changes.
    fn author(&mut self, packet: &Packet) -> Author {
        let (number, operation) = (packet.bth.dest_qp, packet.bth.opcode.operation());
        let Some(QueuePair { qp, .. }) = self.qps.at(self.numbers.owner(number)) else {
            return Author::Peer(number, operation);
        };
        if operation.is_response() || operation == Operation::AtomicAcknowledge {
            return sender(qp, packet.bth.psn, operation).unwrap_or(Author::Peer(number, operation));
        }
        let (number, peer, dst) = (qp.num, qp.peer, qp.dst);
        if operation.is_send() {
            return Author::Message(number);
        }
        let own = self.state.is_own(dst, peer);
        let source = self.qps.at(self.numbers.owner(peer)).filter(|_| own);
        let found = source.and_then(|QueuePair { qp, .. }| sender(qp, packet.bth.psn, operation));
        found.unwrap_or(Author::Peer(number, operation))
    }
}

/// The WQE that a packet number of a queue pair's belongs to.
fn sender(qp: &Qp, psn: Psn, operation: Operation) -> Option<Author> {
    let entry = qp.requester.entry(qp.requester.find(psn)?);
    Some(Author::Wqe(WqePlace { qp: qp.num, block: entry.block }, operation))
}
