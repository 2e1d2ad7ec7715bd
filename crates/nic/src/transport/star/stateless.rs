//! The stateless half: executes what packets say and answers from what stands in them (StaR, III-B).
//!
//! ```text
//!   RD, GD -> ticket -> live? -> deadline -> seen before? -> region's rights -> memory
//!                                                          or what is posted        |
//!                                                               RDA, GDA <- row of answers
//! ```
//!
//! It is one struct of fixed size, whatever the number of connections: it is given the packet, the memory's
//! tables and, for what is posted, its host's queues to read; it has no way to a queue pair or an endpoint.
//! What a NIC would keep of a connection stands in the packet's ticket instead; the only table by queue pair
//! number says whether the number lives.
//!
//! Beyond the paper: tickets, keys of regions, deadlines, the history and the order stamps. Without them a
//! copy that the network delivers late would overwrite memory that has a new use, and nobody could tell.

use super::checks::{
    allowed, atomic, back, carried, check_form, is_carried, is_of_sends, misplaced, path_mtu, refuse_posted,
    refuse_region, region,
};
use super::history::{Found, HISTORY, History, Identity};
use super::posted::{HostQueues, Turn};
use super::seal::Sealer;
use crate::admission::PKEY_BASE;
use crate::counters::Counters;
use crate::frame::TxFrame;
use crate::ids::PdId;
use crate::limits::{MAX_QP, MAX_STAR_ANSWERS, MAX_STAR_ATOMICS};
use crate::memory::{Memory, Payload, QueueMemory, RemoteRight, dma, prefetch};
use crate::random::{Generator, Purpose, Seed};
use adverb_wire::star::{self, Answer, Grant, Merged, Op, Place, Stamp, StarEth, Ticket, Verdict};
use adverb_wire::{Bth, Flow, Gid, Instant, Key, Opcode, Operation, Packet, Psn, QpNumber, Service};
use std::collections::VecDeque;

/// An answer acknowledges so many packets at most.
const RUN_MAX: u8 = u8::MAX;

/// History's mark of packets for the send queue, whose numbers are a sequence of their own.
const OF_SENDS: u32 = 1 << 24;

/// An RDA, GDA or EA that has not left.
#[derive(Clone, Copy, Debug)]
struct Owed {
    flow: Flow,
    number: QpNumber,
    peer: QpNumber,
    psn: Psn,
    answer: Answer,
    /// Of the first packet that it answers; a GDA gets its own when it leaves. An EA's number.
    order: u32,
    brings: Brings,
    /// An answer's data at most: what it brings beyond these are further answers.
    part: u16,
}

impl Owed {
    /// Takes the next packet's part off it: what is left for others, if anything.
    fn take_part(&mut self) -> Option<Owed> {
        let mut rest = *self;
        let part = u32::from(self.part);
        match (&mut self.brings, &mut rest.brings) {
            (Brings::Region { len, .. }, Brings::Region { va, len: left, .. }) if *len > part => {
                (*len, *left, *va) = (part, *left - part, va.wrapping_add(part.into()));
            }
            (Brings::Posted { len, .. }, Brings::Posted { place, len: left }) if *len > part => {
                (*len, *left, place.offset) = (part, *left - part, place.offset.wrapping_add(part));
            }
            _ => return None,
        }
        rest.psn = self.psn.next();
        Some(rest)
    }
}

/// What an answer brings beside its verdict.
#[derive(Clone, Copy, Debug)]
enum Brings {
    Nothing,
    /// Bytes of a region.
    Region {
        pd: PdId,
        va: u64,
        key: Key,
        len: u32,
        /// They are of what is posted, by address and local key.
        is_carried: bool,
    },
    /// Bytes of what is posted.
    Posted {
        place: Place,
        len: u32,
    },
    /// What an atomic has found.
    Original(u64),
    /// It is an EA, not an RDA.
    Event,
}

/// What a packet that was taken in has told the host of the queues that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    Nothing,
    /// The peer has the request.
    Heard,
    /// And it is complete.
    Complete(Merged),
}

/// A connection's atomics, in its record in host memory: the number of the one that was executed last, and
/// what the last ones have found, by number.
#[derive(Debug, Default)]
pub(crate) struct Atomics {
    last: u32,
    found: [u64; MAX_STAR_ATOMICS],
}

/// The stateless half of a NIC.
pub(crate) struct Stateless {
    sealer: Sealer,
    history: History,
    /// By the low 16 bits of a queue pair number: which life it had last, and [`ALIVE`] if it lives that.
    lives: Box<[u32; MAX_QP as usize]>,
    /// In the order in which they leave; never more than it has had room for from the start.
    answers: VecDeque<Owed>,
    /// Packets executed so far.
    order: u32,
    /// How far ahead a deadline is half believed, in microseconds.
    lifetime: u32,
    /// One answer may be for packets executed one right after another.
    joins: bool,
    /// What the atomic's answer that leaves carries.
    original: Option<QueueMemory>,
}

/// The number lives.
const ALIVE: u32 = 1 << 31;

// What it allocates has a fixed size as well, given when it is made.
const _: () = assert!(core::mem::size_of::<Stateless>() <= 1024);

/// The clock that deadlines are told in: microseconds, modulo 2^32.
pub(crate) fn clock(now: Instant) -> u32 {
    (now.as_ps() / 1_000_000) as u32
}

fn slot(number: QpNumber) -> usize {
    (number.get() & (MAX_QP - 1)) as usize
}

fn no_lives() -> Box<[u32; MAX_QP as usize]> {
    let lives = vec![0; MAX_QP as usize].into_boxed_slice();
    lives.try_into().unwrap_or_else(|_| unreachable!("a slice of {MAX_QP} words"))
}

/// What tells an RD from all others, by the incarnation that its ticket shows.
fn identity(packet: &Packet, incarnation: u8) -> Identity {
    let sequence = if is_of_sends(packet) { OF_SENDS } else { 0 };
    Identity {
        queue: u32::from(incarnation) << 24 | packet.bth.dest_qp.get(),
        psn: packet.bth.psn.get() | sequence,
        deadline: star::deadline(&packet.reth),
    }
}

/// Of a number's lives, as its tickets tell them: a byte that they show, never 0, and the rest, which their
/// seal covers. So a ticket is not good again when the byte comes round.
fn told(lives: u32) -> (u8, u32) {
    (lives as u8, (lives & !ALIVE) >> 8)
}

impl Stateless {
    pub fn new(seed: Seed, lifetime: u32, joins: bool) -> Stateless {
        let mut drawn = Generator::new(seed, Purpose::History);
        Stateless {
            sealer: Sealer::new(seed),
            history: History::new(u64::from(drawn.word()) << 32 | u64::from(drawn.word()), HISTORY),
            lives: no_lives(),
            answers: VecDeque::with_capacity(MAX_STAR_ANSWERS),
            order: 0,
            lifetime,
            joins,
            original: QueueMemory::new(8).ok(),
        }
    }

    /// Bytes that it has allocated. Named one by one, so that a field that grows is not forgotten.
    pub fn allocated(&self) -> usize {
        let Stateless { sealer: _, history, lives, answers, order: _, lifetime: _, joins: _, original } =
            self;
        size_of_val(&**lives)
            + history.allocated()
            + answers.capacity() * size_of::<Owed>()
            + original.as_ref().map_or(0, QueueMemory::len)
    }

    /// A queue pair number comes to life for a peer: the ticket that the peer is to show.
    pub fn bring_to_life(&mut self, number: QpNumber, peer: Gid, grant: Grant) -> Ticket {
        let life = &mut self.lives[slot(number)];
        let next = (*life & !ALIVE).wrapping_add(1);
        *life = ALIVE | if next as u8 == 0 { next + 1 } else { next };
        let (incarnation, era) = told(*life);
        self.sealer.seal(Grant { incarnation, ..grant }, number, era, peer)
    }

    /// The queue pair number dies: from now on nothing lands in its name, and nothing that it owes leaves.
    pub fn revoke(&mut self, number: QpNumber) {
        self.lives[slot(number)] &= !ALIVE;
        self.answers.retain(|owed| owed.number != number);
    }

    /// The queue pair number dies because of what its peer said: of what is owed, only the acknowledgement of
    /// that leaves.
    pub fn close(&mut self, number: QpNumber) {
        self.lives[slot(number)] &= !ALIVE;
        self.answers.retain(|owed| owed.number != number || matches!(owed.brings, Brings::Event));
    }

    /// What the packet's ticket grants. `None`, counted, when it may not come in.
    pub fn admit(&self, packet: &Packet, counters: &mut Counters) -> Option<Grant> {
        if packet.bth.pkey & PKEY_BASE != PKEY_BASE {
            counters.drop_pkey += 1;
            return None;
        }
        let number = packet.bth.dest_qp;
        let life = self.lives[slot(number)];
        let (incarnation, era) = told(life);
        let Some(grant) = self.sealer.open(packet.ticket, number, era, packet.flow.src) else {
            counters.star_drop_ticket += 1;
            return None;
        };
        if life & ALIVE == 0 || grant.incarnation != incarnation {
            counters.star_drop_not_live += 1;
            return None;
        }
        Some(grant)
    }

    /// Asks for what [`Stateless::admit`] reads of a number.
    #[inline]
    pub fn prefetch_life(&self, number: QpNumber) {
        prefetch(&self.lives[slot(number)]);
    }

    /// Asks for the packet's place in the history, where memory is far and the ticket is to be opened first.
    #[inline]
    pub fn prefetch_history(&self, packet: &Packet) {
        if packet.bth.opcode.operation() == Operation::RemoteData {
            let shown = Grant::of_word(packet.ticket.word);
            self.history.prefetch(identity(packet, shown.incarnation));
        }
    }

    /// Takes in an RD or GD: executes it, and has an answer ready for it, whatever came of it. `host` are the
    /// queues of the number, for a packet that names something posted; what it says of that is for them.
    pub fn on_request(
        &mut self,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        memory: &Memory,
        host: Option<&HostQueues<'_>>,
        counters: &mut Counters,
    ) -> News {
        let Some(grant) = self.admit(packet, counters) else { return News::Nothing };
        if !self.has_room() {
            counters.star_answers_full += 1;
            return News::Nothing;
        }
        let before = self.order;
        let is_data = packet.bth.opcode.operation() == Operation::RemoteData;
        let done = if is_data {
            let done = self.remote_data(now, packet, payload, grant, memory, host, counters);
            done.map(|order| (order, Brings::Nothing))
        } else {
            self.get_data(now, packet, payload, grant, memory, counters).map(|brings| (0, brings))
        };
        counters.star_host_bytes += host.map_or(0, |host| u64::from(host.read()));
        let (verdict, order, brings) = match done {
            Ok((order, brings)) => (Verdict::Done, order, brings),
            Err(verdict) => (verdict, self.order, Brings::Nothing),
        };
        let eth = StarEth::from(packet.irn);
        let news = match Merged::of(packet) {
            _ if verdict != Verdict::Done || !eth.has(StarEth::POSTED) => News::Nothing,
            // Not a copy of one that was executed.
            Some(merged) if self.order != before => News::Complete(merged),
            _ => News::Heard,
        };
        let congested = packet.flow.traffic_class & 3 == 3;
        let number = packet.bth.dest_qp;
        let answer = Answer { verdict, copy: eth.copy, congested, of_sends: is_of_sends(packet), run: 1 };
        let owed = Owed {
            flow: back(packet, number, grant.peer),
            number,
            peer: grant.peer,
            psn: packet.bth.psn,
            answer,
            order,
            brings,
            part: path_mtu(grant) as u16,
        };
        if !(is_data && self.joins && self.joins_run(&owed)) {
            self.answers.push_back(owed);
        }
        news
    }

    /// Takes in an atomic. The connection's record in its host's memory says which were executed: so no copy
    /// is, however late, and none before its turn.
    pub fn on_atomic(
        &mut self,
        packet: &Packet,
        payload: &Payload<'_>,
        memory: &Memory,
        record: &mut Atomics,
        counters: &mut Counters,
    ) {
        const REMEMBERED: i32 = MAX_STAR_ATOMICS as i32;
        let Some(grant) = self.admit(packet, counters) else { return };
        if !self.has_room() {
            counters.star_answers_full += 1;
            return;
        }
        let eth = StarEth::from(packet.irn);
        let found = &mut record.found[eth.value as usize % MAX_STAR_ATOMICS];
        let done = match eth.value.wrapping_sub(record.last) as i32 {
            1 => atomic(packet, payload, memory, grant, counters).inspect(|original| {
                (record.last, *found) = (eth.value, *original);
                self.order = self.order.wrapping_add(1);
                counters.star_executed += 1;
            }),
            2.. => {
                counters.star_atomic_early += 1;
                Err(Verdict::Busy)
            }
            ahead => {
                counters.star_duplicate += 1;
                if ahead <= -REMEMBERED {
                    return;
                }
                Ok(*found)
            }
        };
        let congested = packet.flow.traffic_class & 3 == 3;
        let verdict = done.err().unwrap_or(Verdict::Done);
        let number = packet.bth.dest_qp;
        self.answers.push_back(Owed {
            flow: back(packet, number, grant.peer),
            number,
            peer: grant.peer,
            psn: packet.bth.psn,
            answer: Answer { verdict, copy: eth.copy, congested, of_sends: false, run: 1 },
            order: self.order,
            brings: done.map_or(Brings::Nothing, Brings::Original),
            part: 0,
        });
    }

    /// Whether one answer more has a place.
    pub fn has_room(&self) -> bool {
        self.answers.len() < MAX_STAR_ANSWERS
    }

    /// Acknowledges a CQEP that was admitted: its host has taken all completions before `expected`, and has
    /// posted so many receives.
    pub fn acknowledge_event(&mut self, packet: &Packet, grant: Grant, expected: Psn, receives: u32) {
        let (number, copy) = (packet.bth.dest_qp, StarEth::from(packet.irn).copy);
        let answer = Answer { verdict: Verdict::Done, copy, congested: false, of_sends: false, run: 1 };
        self.answers.push_back(Owed {
            flow: back(packet, number, grant.peer),
            number,
            peer: grant.peer,
            psn: expected,
            answer,
            order: receives,
            brings: Brings::Event,
            part: 0,
        });
    }

    /// Lets the last answer of the row answer for this packet too, if the two were executed one right after
    /// the other.
    fn joins_run(&mut self, owed: &Owed) -> bool {
        let Some(last) = self.answers.back_mut() else { return false };
        let run = last.answer.run;
        let same = last.number == owed.number && last.peer == owed.peer && last.flow == owed.flow;
        let next = last.psn.add(run.into()) == owed.psn && last.order.wrapping_add(run.into()) == owed.order;
        let joins = same
            && next
            && matches!(last.brings, Brings::Nothing)
            && run < RUN_MAX
            && owed.answer == Answer { run: 1, ..last.answer }
            && owed.answer.verdict == Verdict::Done;
        last.answer.run += u8::from(joins);
        joins
    }

    /// Whether a region's packet comes in time.
    fn is_timely(&self, now: Instant, packet: &Packet, counters: &mut Counters) -> Result<(), Verdict> {
        let ahead = star::deadline(&packet.reth).wrapping_sub(clock(now)) as i32;
        if ahead < 0 || ahead as u32 > 2 * self.lifetime {
            counters.star_drop_expired += 1;
            return Err(Verdict::Expired);
        }
        Ok(())
    }

    /// Executes an RD; its place among all that were executed.
    #[allow(clippy::too_many_arguments, reason = "all that an RD is executed with")]
    fn remote_data(
        &mut self,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        grant: Grant,
        memory: &Memory,
        host: Option<&HostQueues<'_>>,
        counters: &mut Counters,
    ) -> Result<u32, Verdict> {
        let eth = StarEth::from(packet.irn);
        check_form(packet, grant, payload.len(), Op::Write, Grant::WRITE, counters)?;
        self.is_timely(now, packet, counters)?;
        let number = packet.bth.dest_qp;
        let identity = identity(packet, grant.incarnation);
        let found = match self.history.find(identity, clock(now)) {
            Found::Executed(order) => {
                counters.star_duplicate += 1;
                return Ok(order);
            }
            Found::Full => {
                counters.star_history_full += 1;
                return Err(Verdict::Busy);
            }
            Found::Place(place) => place,
        };
        let (va, rkey) = (packet.reth.va, packet.reth.rkey);
        if eth.has(StarEth::POSTED) {
            let host = host.ok_or_else(|| refuse_posted(counters))?;
            let mut place = Place::of_va(va);
            if let Some(merged) = Merged::of(packet) {
                match host.turn(&merged) {
                    Turn::Now => {}
                    Turn::Past => {
                        counters.star_duplicate += 1;
                        return Ok(self.order);
                    }
                    Turn::Early => {
                        counters.star_merge_early += 1;
                        return Err(Verdict::Busy);
                    }
                    Turn::Never => return Err(refuse_posted(counters)),
                }
                place.offset = 0;
            }
            host.place(memory, eth.has(StarEth::RECV_QUEUE), place, payload)
                .map_err(|why| misplaced(why, counters))?;
        } else {
            let (len, is_carried) = (payload.len() as u32, is_carried(packet));
            let span = match is_carried {
                true => carried(memory, grant, (va, rkey), len, true),
                false => region(memory, grant, number, (va, rkey), len, RemoteRight::Write),
            };
            let span = span.map_err(|_| refuse_region(counters))?;
            counters.star_carried += u64::from(is_carried);
            if !payload.is_empty() && !payload.is_elided() {
                dma::write(span, payload, 0, payload.len());
            }
        }
        self.order = self.order.wrapping_add(1);
        self.history.keep(found, identity, self.order, clock(now));
        counters.star_executed += 1;
        Ok(self.order)
    }

    /// Takes a GD for what can be answered: what it wants.
    fn get_data(
        &mut self,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        grant: Grant,
        memory: &Memory,
        counters: &mut Counters,
    ) -> Result<Brings, Verdict> {
        let eth = StarEth::from(packet.irn);
        let len = eth.asked();
        if !payload.is_empty() {
            counters.star_nak_invalid += 1;
            return Err(Verdict::Invalid);
        }
        check_form(packet, grant, len as usize, Op::Read, Grant::READ, counters)?;
        self.is_timely(now, packet, counters)?;
        let (va, rkey, number) = (packet.reth.va, packet.reth.rkey, packet.bth.dest_qp);
        if eth.has(StarEth::POSTED) {
            return Ok(Brings::Posted { place: Place::of_va(va), len });
        }
        let is_carried = is_carried(packet);
        let span = match is_carried {
            true => carried(memory, grant, (va, rkey), len, false),
            false => region(memory, grant, number, (va, rkey), len, RemoteRight::Read),
        };
        span.map_err(|_| refuse_region(counters))?;
        let pd = memory.pd_at(grant.pd).ok_or(Verdict::Access)?;
        Ok(Brings::Region { pd, va, key: rkey, len, is_carried })
    }

    /// Whether an answer waits.
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Puts the next answer into `out`. Memory is read, and its rights or what is posted are looked at, only
    /// now. `host` finds the queues of a number.
    pub fn next_answer<'a>(
        &mut self,
        now: Instant,
        memory: &Memory,
        host: impl Fn(QpNumber) -> Option<HostQueues<'a>>,
        counters: &mut Counters,
        out: &mut TxFrame,
    ) -> bool {
        let Some(mut owed) = self.answers.pop_front() else { return false };
        if let Some(rest) = owed.take_part() {
            self.answers.push_front(rest);
        }
        out.payload.clear();
        let Owed { flow, number, peer, psn, mut answer, mut order, brings, .. } = owed;
        let got = match brings {
            Brings::Nothing => Ok(Operation::RemoteDataAnswer),
            Brings::Event => {
                let opcode = Opcode::new(Service::Star, Operation::CqeEventAcknowledge);
                let eth = StarEth { copy: answer.copy, ..StarEth::new(Op::Control, 0, 0, order) };
                let bth = Bth { opcode, psn, dest_qp: peer, ..Bth::default() };
                out.packet = Packet { flow, bth, irn: eth.into(), ..Packet::default() };
                return true;
            }
            Brings::Original(original) => match &self.original {
                Some(memory) => {
                    // As it stands in memory there, the least significant byte first.
                    memory.write(0, &original.to_le_bytes());
                    out.payload.push(memory.span(0, 8));
                    Ok(Operation::GetDataAnswer)
                }
                None => Err(Verdict::Busy),
            },
            Brings::Region { pd, va, key, len, is_carried } => {
                let span = match is_carried {
                    true => memory.check_local(pd, key, va, len, false),
                    false => allowed(memory, pd, number, (va, key), len, RemoteRight::Read),
                };
                let span = span.map_err(|_| refuse_region(counters));
                span.map(|span| {
                    counters.star_carried += u64::from(is_carried);
                    out.payload.push(span);
                    Operation::GetDataAnswer
                })
            }
            Brings::Posted { place, len } => match host(number) {
                Some(host) => posted(&host, memory, place, len, counters, out),
                None => Err(refuse_posted(counters)),
            },
        };
        let operation = got.unwrap_or_else(|verdict| {
            answer.verdict = verdict;
            out.payload.clear();
            Operation::RemoteDataAnswer
        });
        if operation == Operation::GetDataAnswer && !matches!(brings, Brings::Original(_)) {
            self.order = self.order.wrapping_add(1);
            order = self.order;
            counters.star_executed += 1;
        }
        let opcode = Opcode::new(Service::Star, operation);
        out.packet = Packet {
            flow,
            bth: Bth { opcode, psn, dest_qp: peer, ..Bth::default() },
            aeth: answer.aeth(),
            irn: Stamp { clock: clock(now), order }.into(),
            payload_len: out.payload.len() as u32,
            ..Packet::default()
        };
        true
    }
}

/// Collects what a GD for something posted has asked for.
fn posted(
    host: &HostQueues<'_>,
    memory: &Memory,
    place: Place,
    len: u32,
    counters: &mut Counters,
    out: &mut TxFrame,
) -> Result<Operation, Verdict> {
    let gathered = host.gather(memory, place, len, &mut out.payload);
    counters.star_host_bytes += u64::from(host.read());
    gathered.map_err(|why| misplaced(why, counters))?;
    Ok(Operation::GetDataAnswer)
}
