//! The oracle: random work on queue pairs whose outcome is known beforehand, checked against what the
//! NICs did. Completions come exactly once and in order, SENDs arrive whole and in order, memory
//! equals a shadow copy (so no byte was written outside), atomics are linearizable.
//!
//! Each connection works both ways. A side writes and reads a slice of the other's memory that nobody
//! else uses, so that its content is known from the order of posting; requests that change memory
//! after a READ are fenced, because a READ's bytes may otherwise be fetched after them (IBTA 10.8.3.3).
//! All sides share words for atomics.

pub mod changes;
mod rules;
mod side;
mod windows;

use crate::host::Peer;
use crate::host::memory::Buffer;
use crate::linear::model::Word;
use crate::linear::{self, History};
use crate::sim::Sim;
use crate::source::Source;
use crate::watch::sabotage::Sabotage;
use adverb_nic::{Access, Completion, CompletionOp, MrInfo, QpCaps, RecvWr, SendOp, Status};
use adverb_wire::Instant;
use changes::{Change, Frozen};
use rules::Registries;
pub(crate) use side::RECV_SLOTS;
use side::{RECV_BYTES, Side, WANTED_MAX};
use std::collections::VecDeque;
use windows::Windows;

/// Bytes of a host's memory that are only ever read: what WRITEs and SENDs send.
const SOURCE_BYTES: usize = 16 << 10;
/// Bytes of a host's memory for shared atomics, after the source.
const SHARED_BYTES: usize = 64;

/// One host's memory and what it should hold.
struct Room {
    buffer: Buffer,
    mr: MrInfo,
    shadow: Vec<u8>,
    /// Bytes given away so far.
    used: usize,
}

impl Room {
    fn slice(&mut self, len: usize) -> usize {
        let at = self.used;
        self.used += len;
        assert!(self.used <= self.shadow.len(), "room for all connections");
        at
    }
}

/// Random work and its outcome.
pub struct Oracle {
    rooms: Vec<Room>,
    sides: Vec<Side>,
    /// By host and queue pair index: the side that sends there. Its peer is the side with the lowest bit
    /// flipped.
    side_of_qp: Vec<Vec<u32>>,
    /// What was done to the words that all share.
    atomics: History<Word>,
    rng: fastrand::Rng,
    /// Requests that each side posts in all.
    requests: u32,
    /// See [`Work::repost_ps`].
    repost_ps: u64,
    /// Completions told of, for sabotage.
    told: u64,
    /// One that sabotage holds back.
    held: Option<(u32, Completion)>,
    /// What was found wrong.
    failures: Vec<String>,
    /// Sides whose queue pair failed; not an error while there are faults.
    dead: u32,
    /// What befalls sides, earliest first; and what was the memory of those whose program was killed.
    changes: VecDeque<Change>,
    frozen: Vec<Frozen>,
    /// What sides have granted, where NICs have StaR's registry.
    registries: Registries,
    windows: Windows,
}

impl Oracle {
    /// What was found wrong so far.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Sides whose queue pair went into the error state.
    pub fn dead(&self) -> u32 {
        self.dead
    }

    /// Whether every request of every side that lives has completed, and every message has arrived: at a
    /// stateless side of StaR it does so after it has completed at its sender.
    pub fn is_done(&self) -> bool {
        let has_arrived = |n: usize| self.sides[n].has_arrived() || self.sides[n ^ 1].dead;
        let is_done = |s: &Side| s.posted == self.requests && s.wanted.is_empty();
        self.sides.iter().enumerate().all(|(n, s)| s.dead || (is_done(s) && has_arrived(n)))
    }

    /// Requests that completed well.
    pub fn completed(&self) -> u64 {
        self.sides.iter().map(|s| u64::from(s.completed)).sum()
    }

    fn fail(&mut self, what: String) {
        if self.failures.len() < 20 {
            self.failures.push(what);
        }
    }
}

/// What work an oracle makes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Connections, between random pairs of hosts.
    pub connections: u32,
    /// Requests of each side.
    pub requests: u32,
    /// Longest time between two requests of a side, in ps.
    pub gap_ps: u64,
    /// Longest time from a receive's completion until it is posted again, in ps: senders meet a receiver that
    /// is not ready.
    pub repost_ps: u64,
}

impl Sim {
    /// Puts the oracle's work on this fabric, which must carry payload.
    pub fn set_oracle(&mut self, work: &Work, seed: u64) -> Result<(), adverb_nic::Error> {
        assert!(self.config.payload, "the oracle compares bytes");
        let mut rng = fastrand::Rng::with_seed(seed);
        let per_side = side::SLICE_BYTES + side::LANDING_BYTES + RECV_SLOTS as usize * RECV_BYTES;
        let bytes = SOURCE_BYTES + SHARED_BYTES + per_side * 2 * work.connections as usize;
        let mut rooms = Vec::new();
        for host in &mut self.hosts.list {
            let buffer = Buffer::new(bytes);
            let mut shadow = vec![0u8; bytes];
            rng.fill(&mut shadow);
            shadow[SOURCE_BYTES..SOURCE_BYTES + SHARED_BYTES].fill(0);
            buffer.write(0, &shadow);
            let access = Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::MW_BIND;
            let mr = buffer.register(&mut host.nic, host.pd, access)?;
            rooms.push(Room { buffer, mr, shadow, used: SOURCE_BYTES + SHARED_BYTES });
        }
        let mut oracle = Oracle {
            rooms,
            sides: Vec::new(),
            side_of_qp: vec![Vec::new(); self.hosts.list.len()],
            atomics: History::default(),
            requests: work.requests,
            repost_ps: work.repost_ps,
            told: 0,
            held: None,
            failures: Vec::new(),
            dead: 0,
            changes: VecDeque::new(),
            frozen: Vec::new(),
            registries: Registries::new(seed),
            windows: Windows::new(seed),
            rng,
        };
        for _ in 0..work.connections {
            self.join_sides(&mut oracle, work)?;
        }
        self.watch.oracle = Some(Box::new(oracle));
        self.schedule_oracle();
        Ok(())
    }

    fn join_sides(&mut self, oracle: &mut Oracle, work: &Work) -> Result<(), adverb_nic::Error> {
        let hosts = self.hosts.list.len() as u32;
        let a = oracle.rng.u32(0..hosts);
        let b = (a + oracle.rng.u32(1..hosts)) % hosts;
        let ends = [a, b];
        let mut qps = [None; 2];
        for (end, h) in qps.iter_mut().zip(ends) {
            let host = &mut self.hosts.list[h as usize];
            let caps = QpCaps {
                max_send_wr: WANTED_MAX as u32,
                max_recv_wr: RECV_SLOTS,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline: side::INLINE_BYTES as u32,
            };
            let qp = host.create_rc(caps)?;
            *end = Some((qp, host.nic.qp_number(qp)?, host.first_psn()));
        }
        let [Some(first), Some(second)] = qps else { return Err(adverb_nic::Error::NoSuchObject) };
        let pairs = [(a, b, first, second), (b, a, second, first)];
        let first_side = oracle.sides.len() as u32;
        for (h, other, mine, _) in pairs {
            let number = oracle.sides.len() as u32;
            let index = (mine.1.get() & 0xffff) as usize;
            let row = &mut oracle.side_of_qp[h as usize];
            row.resize(row.len().max(index + 1), u32::MAX);
            row[index] = number;
            let slice = oracle.rooms[other as usize].slice(side::SLICE_BYTES);
            let landing = oracle.rooms[h as usize].slice(side::LANDING_BYTES);
            let inbox = oracle.rooms[h as usize].slice(RECV_SLOTS as usize * RECV_BYTES);
            let next_at = self.now + oracle.rng.u64(0..=work.gap_ps);
            oracle.sides.push(Side::new(h, other, mine.0, slice, landing, inbox, next_at, work.gap_ps));
        }
        let numbers = [first_side, first_side + 1];
        numbers.into_iter().try_for_each(|number| self.grant_rules(oracle, number))?;
        let (t, now) = (self.config.transport, Instant::from_ps(self.now));
        for (h, other, mine, theirs) in pairs {
            let peer =
                Peer { host: other, qpn: theirs.1, rq_psn: theirs.2, sq_psn: mine.2, depth: 4, plain: false };
            self.hosts.list[h as usize].connect(now, mine.0, &peer, &t)?;
        }
        for number in numbers {
            for slot in 0..u64::from(RECV_SLOTS) {
                self.post_inbox(oracle, number, slot)?;
            }
        }
        Ok(())
    }

    fn post_inbox(&mut self, oracle: &Oracle, number: u32, slot: u64) -> Result<(), adverb_nic::Error> {
        let side = &oracle.sides[number as usize];
        let room = &oracle.rooms[side.host as usize];
        let sge = room.buffer.sge(side.inbox + slot as usize * RECV_BYTES, RECV_BYTES, room.mr.lkey);
        let host = &mut self.hosts.list[side.host as usize];
        host.nic.post_recv(Instant::from_ps(self.now), side.qp, &RecvWr { wr_id: slot, sges: &[sge] })
    }

    fn schedule_oracle(&mut self) {
        let Some(oracle) = &self.watch.oracle else { return };
        let due = |s: &&Side| !s.dead && s.posted < oracle.requests && s.wanted.len() < WANTED_MAX;
        let posts = oracle.sides.iter().filter(due).map(|s| s.next_at);
        let receives = oracle.sides.iter().filter(|s| !s.dead).filter_map(|s| Some(s.owed.front()?.0));
        let changes = oracle.changes.front().map(|change| change.at);
        let next = posts.chain(receives).chain(changes).min();
        match next {
            Some(at) => self.set_timer(Source::Oracle, at.max(self.now)),
            None => self.events.cancel_timer(self.sources.pack(Source::Oracle)),
        }
    }

    /// Posts the requests whose time has come.
    pub(crate) fn on_oracle(&mut self) {
        let Some(mut oracle) = self.watch.oracle.take() else { return };
        let mut woken = self.befall_sides(&mut oracle);
        for number in 0..oracle.sides.len() as u32 {
            let side = &oracle.sides[number as usize];
            let ready = !side.dead && side.posted < oracle.requests && side.wanted.len() < WANTED_MAX;
            let h = side.host;
            let due = ready && side.next_at <= self.now;
            if due && self.post_window(&mut oracle, number) {
                woken.push(h);
            } else if due {
                let (wr_id, op, length) = oracle.post(number, self.now, &mut self.hosts.list[h as usize].nic);
                if self.watch.journal.is_on() {
                    let what = oracle.in_words(number, wr_id, op, length);
                    self.watch.journal.add(self.now, format_args!("host {h}"), what);
                }
                woken.push(h);
            }
            while let Some(&(at, slot)) = oracle.sides[number as usize].owed.front() {
                if at > self.now || oracle.sides[number as usize].dead {
                    break;
                }
                oracle.sides[number as usize].owed.pop_front();
                let reposted = self.post_inbox(&oracle, number, slot);
                if reposted.is_err() {
                    oracle.fail(format!("side {number}: a receive cannot be posted: {reposted:?}"));
                }
            }
        }
        self.watch.oracle = Some(oracle);
        self.schedule_oracle();
        for h in woken {
            self.after_nic(h, false);
        }
    }

    pub(crate) fn on_oracle_completion(&mut self, h: u32, completion: &Completion) {
        if self.watch.sabotage.is_some() {
            return self.on_spoilt_completion(h, completion);
        }
        self.check_completion(h, completion);
    }

    /// A completion of a NIC that is broken on purpose.
    #[cold]
    fn on_spoilt_completion(&mut self, h: u32, completion: &Completion) {
        let Some(oracle) = &mut self.watch.oracle else { return };
        oracle.told += 1;
        let (tenth, held) = (oracle.told.is_multiple_of(10), oracle.held.take());
        match self.watch.sabotage {
            Some(Sabotage::CompletionLost) if tenth => {}
            Some(Sabotage::CompletionsSwapped) if tenth => oracle.held = Some((h, *completion)),
            Some(Sabotage::AtomicTwice) if tenth => {
                let (buffer, at) = (&oracle.rooms[0].buffer, SOURCE_BYTES);
                buffer.write(at, &(buffer.word(at) + 1).to_ne_bytes());
                self.check_completion(h, completion);
            }
            Some(Sabotage::WriteOutside) if tenth => {
                oracle.damage(h, 77);
                self.check_completion(h, completion);
            }
            Some(Sabotage::CompletionTwice) if tenth => {
                self.check_completion(h, completion);
                self.check_completion(h, completion);
            }
            _ => self.check_completion(h, completion),
        }
        if let Some((h, completion)) = held {
            self.check_completion(h, &completion);
        }
    }

    fn check_completion(&mut self, h: u32, completion: &Completion) {
        let Some(mut oracle) = self.watch.oracle.take() else { return };
        if self.watch.journal.is_on() {
            let (op, wr, status) = (completion.op, completion.wr_id, completion.status);
            let what = format!("completion: {op:?} {wr} of qp {}, {status:?}", completion.qp);
            self.watch.journal.add(self.now, format_args!("host {h}"), what);
        }
        let known = oracle.failures.len();
        let index = (completion.qp.get() & 0xffff) as usize;
        match oracle.side_of_qp[h as usize].get(index).copied().filter(|s| *s != u32::MAX) {
            None => oracle.fail(format!(
                "host {h}: a completion for queue pair {:?}, which nobody uses",
                completion.qp
            )),
            // What a killed program's queue has left.
            Some(number) if oracle.sides[number as usize].killed => {}
            Some(number) if completion.status != Status::Success => {
                oracle.check_refusal(number, completion.status);
                let side = &mut oracle.sides[number as usize];
                if !side.dead {
                    side.dead = true;
                    oracle.dead += 1;
                    oracle.give_up(number);
                }
            }
            Some(number) if matches!(completion.op, CompletionOp::Recv | CompletionOp::RecvWriteImm) => {
                if oracle.on_message(number, completion) {
                    let at = self.now + oracle.rng.u64(0..=oracle.repost_ps);
                    let side = &mut oracle.sides[number as usize];
                    let after = side.owed.back().map_or(0, |(at, _)| *at);
                    side.owed.push_back((at.max(after), completion.wr_id));
                }
            }
            Some(number) => oracle.on_done(number, self.now, completion),
        }
        self.settle_windows(&mut oracle, h);
        for failure in &oracle.failures[known..] {
            self.watch.journal.add(self.now, format_args!("host {h}"), format_args!("WRONG: {failure}"));
        }
        self.watch.oracle = Some(oracle);
        self.schedule_oracle();
    }

    /// The oracle's findings at the end of a run: all of memory against the shadow, all atomics.
    pub fn oracle_verdict(&mut self) -> Vec<String> {
        let Some(mut oracle) = self.watch.oracle.take() else { return Vec::new() };
        oracle.check_memory();
        oracle.check_frozen();
        oracle.check_atomics();
        let failures = oracle.failures.clone();
        self.watch.oracle = Some(oracle);
        failures
    }

    /// The oracle, if there is one.
    pub fn oracle(&self) -> Option<&Oracle> {
        self.watch.oracle.as_deref()
    }
}

impl Oracle {
    /// The shared words, with what is still outstanding.
    fn check_atomics(&mut self) {
        let mut atomics = self.atomics.clone();
        for (number, side) in self.sides.iter().enumerate() {
            side.wanted.iter().filter_map(|(_, w)| w.pending(number as u32)).for_each(|o| atomics.add(o));
        }
        if let Some(failure) = atomics.check(&Word::default(), linear::WORK_MAX).failure() {
            self.fail(format!("atomics on {failure}"));
        }
    }

    /// Nothing more is wanted of a side whose queue pair failed. What it had outstanding may have been done.
    fn give_up(&mut self, number: u32) {
        for (_, wanted) in self.sides[number as usize].wanted.split_off(0) {
            wanted.pending(number).into_iter().for_each(|operation| self.atomics.add(operation));
        }
    }

    /// Every byte of every host, except what dead connections may have left half done.
    fn check_memory(&mut self) {
        for h in 0..self.rooms.len() {
            let room = &self.rooms[h];
            let mut bytes = vec![0; room.shadow.len()];
            room.buffer.read(0, &mut bytes);
            let mut skip = vec![(SOURCE_BYTES, SHARED_BYTES)];
            for (n, side) in self.sides.iter().enumerate() {
                let dead = side.dead || self.sides[n ^ 1].dead;
                if dead && side.peer as usize == h {
                    skip.push((side.slice, side::SLICE_BYTES));
                }
                if dead && side.host as usize == h {
                    skip.push((side.landing, side::LANDING_BYTES));
                    skip.push((side.inbox, RECV_SLOTS as usize * RECV_BYTES));
                }
            }
            let skipped = |at: usize| skip.iter().any(|(start, len)| (*start..start + len).contains(&at));
            let wrong = (0..bytes.len()).find(|&at| bytes[at] != room.shadow[at] && !skipped(at));
            if let Some(at) = wrong {
                let (got, want) = (bytes[at], room.shadow[at]);
                self.fail(format!("host {h}: byte {at} of its memory is {got:#04x}, not {want:#04x}"));
            }
        }
    }

    /// A request, for people: addresses, which differ from process to process, as offsets.
    fn in_words(&self, number: u32, wr_id: u64, op: SendOp, length: usize) -> String {
        let side = &self.sides[number as usize];
        let (index, peer) = (side.qp.index(), side.peer);
        let place = |addr: u64| {
            let offset = addr.wrapping_sub(self.rooms[peer as usize].buffer.addr());
            format!("offset {offset:#x} of host {peer}")
        };
        let what = match op {
            SendOp::Write(addr, _) => format!("WRITE of {length} B to {}", place(addr)),
            SendOp::WriteImm(addr, _, imm) => {
                format!("WRITE of {length} B with immediate {imm:#x} to {}", place(addr))
            }
            SendOp::Read(addr, _) => format!("READ of {length} B from {}", place(addr)),
            SendOp::Send => format!("SEND of {length} B"),
            SendOp::SendImm(imm) => format!("SEND of {length} B with immediate {imm:#x}"),
            SendOp::FetchAdd { addr, add, .. } => format!("fetch and add {add} at {}", place(addr)),
            SendOp::CompareSwap { addr, compare, swap, .. } => {
                format!("compare {compare:#x} and swap {swap:#x} at {}", place(addr))
            }
            other => format!("{other:?}"),
        };
        format!("posts request {wr_id} on queue pair {index}: {what}")
    }

    /// Changes a byte of a host's memory behind everybody's back, as a NIC that writes where it must not.
    pub fn damage(&self, host: u32, at: usize) {
        let mut byte = [0];
        let buffer = &self.rooms[host as usize].buffer;
        buffer.read(at, &mut byte);
        buffer.write(at, &[!byte[0]]);
    }
}
