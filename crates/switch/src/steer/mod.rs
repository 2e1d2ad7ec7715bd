//! Requests for chains of entries that go to another entry than the one they name (SwordBox, steering): a
//! client links an entry behind the last one that it knows, and reads from there; the switch, which sees all
//! of them, knows a later one, and rewrites the address. Operation, operands, queue pair and numbers stay.
//!
//! An entry has its key at one offset and the address of the next entry, or 0, at another. The switch reads
//! which key an entry is of when it is written, and which entry comes behind another from the compare and
//! swap of 0 for the entry's own address ([`chains`]).
//!
//! **One rule takes the place of all repair: a request is steered only to an entry that the server has said
//! it has linked, of the same key, in the same process and under the same key of memory.** Any such entry is
//! as good a place to go on from as any other: a compare and swap there succeeds only at the chain's end, and
//! a READ shows whether there is more. So whatever the switch forgets, mistakes for old or learns late costs
//! a client a way along the chain, and never a value. It follows that
//!
//! - a link waits until the one before it is acknowledged ([`hold`]), since it may not be steered behind what
//!   is not linked yet; answers of one key are in the order of its chain thereby;
//! - after a stated time it goes on all the same, to the entry that was linked last: who was before it may
//!   have died, and its link lost or not;
//! - a link that finds a follower makes the chain unknown: somebody has linked past the switch. Then clients
//!   find the end by themselves, and the first that succeeds tells it;
//! - a READ goes forward only: to an entry of which each link since the one that it names was seen. Who
//!   follows a chain would else be sent back, for ever, by an end that is older than where it is;
//! - a request that is sent again becomes what it was before ([`connection`]).
//!
//! What passes untouched: everything but RC to and from the server, IPv4 with options, WRITEs and READs that
//! are not of an entry's length, compare and swaps of anything but 0 for an entry that was seen.
//!
//! Deviations from the paper: it steers links behind pending ones, and READs to these. It takes a compare and
//! swap's key from the WRITE before it on the same queue pair; here the compare and swap names its entry.

mod answers;
pub mod chains;
pub mod config;
pub mod connection;
mod hold;
mod looks;
pub mod paper;
mod requests;
pub mod sketch;

use crate::budget::{Ability, Needs};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use crate::register::{Shape, digest};
use adverb_wire::{Duration, Gid, Instant, Key, Service};
use chains::{Chains, Entries};
pub use config::{LinksWait, SteerConfig, SteerMistake};
use connection::{Connection, Connections, DECISIONS};
use looks::Patience;
pub use sketch::Hot;
use sketch::Sketch;
use std::collections::VecDeque;

/// Frames that wait in one program, at most.
pub const HELD_MAX: usize = 1 << 10;
/// Of these, frames of one client: who waits with many connections leaves room for others.
const HELD_OF_CLIENT: usize = HELD_MAX / 4;
/// And of one connection.
const HELD_OF_CONNECTION: usize = 64;
/// What was silent for so long makes room for others.
const IDLE: Duration = Duration::from_ms(1000);

/// The program's state.
#[derive(Debug)]
pub struct Steer {
    config: SteerConfig,
    chains: Chains,
    entries: Entries,
    connections: Connections,
    sketch: Option<Sketch>,
    /// Connections whose requests wait, in the order in which they began to.
    waiting: Vec<u32>,
    /// Frames that wait.
    held: usize,
    /// Chains behind which nothing is pending any more.
    freed: VecDeque<u32>,
    /// Parts of chains that were begun.
    segments: u64,
    /// How long READs take.
    patience: Patience,
}

/// How many chains are in which state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChainCounts {
    /// Their last entry is known.
    pub known: usize,
    /// Of these, those that a link is on its way to.
    pub pending: usize,
    /// It is not known.
    pub unknown: usize,
}

impl Steer {
    /// A program that knows no chain yet.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: SteerConfig, start: Instant) -> Result<Steer, &'static str> {
        config.check()?;
        Ok(Steer {
            chains: Chains::new(config.keys_max),
            entries: Entries::new(config.entries_max),
            connections: Connections::new(config.connections_max),
            sketch: config.hot.map(|hot| Sketch::new(hot.decay, start)),
            waiting: Vec::new(),
            held: 0,
            freed: VecDeque::new(),
            segments: 0,
            patience: Patience::default(),
            config,
        })
    }

    /// What it was told.
    pub fn config(&self) -> &SteerConfig {
        &self.config
    }

    /// It is told something else, with which nothing is wrong. Who waits does so as if these times had been
    /// known: from when each has begun to.
    ///
    /// # Panics
    /// If it may not become that (see [`SteerConfig::may_become`]).
    pub fn is_told(&mut self, next: SteerConfig) {
        assert!(self.config.may_become(&next), "{:?} does not become {next:?}", self.config);
        self.config = next;
    }

    /// The connections that are followed.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.all().map(|(_, connection)| connection)
    }

    /// Frames that wait.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many chains are in which state.
    pub fn count_chains(&self) -> ChainCounts {
        let mut counts = ChainCounts::default();
        for (_, chain) in self.chains.all() {
            match chain.tail {
                Some(_) => counts.known += 1,
                None => counts.unknown += 1,
            }
            counts.pending += usize::from(chain.pending.is_some());
        }
        counts
    }

    /// The last entries that are known, by key, in the order of keys.
    pub fn known_tails(&self) -> Vec<(u64, u64)> {
        let known = self.chains.all().filter_map(|(_, chain)| Some((chain.key, chain.tail?)));
        let mut tails: Vec<(u64, u64)> = known.collect();
        tails.sort_unstable();
        tails
    }

    /// Forgets the last entries of all chains of a key; whether there were any. Clients find them by
    /// themselves again, and tell them thereby.
    pub fn forget_key(&mut self, key: u64) -> bool {
        let named = self.chains.all().filter(|(_, chain)| chain.key == key).map(|(at, _)| at);
        let named: Vec<u32> = named.collect();
        let known = named.into_iter().filter_map(|at| self.chains.set_tail(at, None));
        known.count() > 0
    }

    /// Digests of what it remembers, by name.
    pub fn digests(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("chains", digest(&self.chains.all().collect::<Vec<_>>())),
            ("entries", digest(&self.entries.all().collect::<Vec<_>>())),
            ("connections", digest(&self.connections.all().collect::<Vec<_>>())),
            ("rows", digest(&(&self.waiting, self.held, &self.freed, self.segments, &self.sketch))),
            ("patience", digest(&self.patience)),
        ]
    }

    /// What it needs of hardware.
    pub fn needs(&self, needs: &mut Needs) {
        let connections = self.config.connections_max;
        needs.registers.extend([
            // Both queue pairs, the next number, and the keys that the server has accepted.
            Shape { name: "connections", width: 200, entries: connections, stage: 0 },
            self.entries.shape(),
            self.chains.shape(),
            // The number, both addresses, the chain and flags of the last requests of each connection.
            Shape { name: "decisions", width: 256, entries: connections * DECISIONS, stage: 4 },
            // The number, the chain, the entry and the time of READs that are not answered.
            Shape { name: "looks", width: 192, entries: connections * DECISIONS, stage: 4 },
        ]);
        needs.registers.extend(self.sketch.iter().flat_map(Sketch::shapes));
        needs.abilities.extend([Ability::Holds, Ability::SumsPayload]);
    }

    /// Deals with one frame.
    pub fn on_frame(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>) {
        let packet = &frame.packet;
        let (src, dst) = (packet.flow.src, packet.flow.dst);
        let is_response = packet.bth.opcode.operation().is_response();
        let to_server = dst == self.config.server && !is_response;
        let from_server = src == self.config.server && is_response;
        if !packet.bth.opcode.is_of(Service::Rc) || !(to_server || from_server) || frame.has_options() {
            return ctx.pass_on(frame);
        }
        // A new sum would hide the damage, and a damaged address would be believed.
        if !frame.is_sound() {
            return ctx.drop(&frame.packet, Drop::Icrc);
        }
        match to_server {
            true => self.on_request(ctx, frame),
            false => self.on_answer(ctx, frame),
        }
        self.release(ctx);
    }

    /// Does what is due.
    pub fn on_timer(&mut self, ctx: &mut Context<'_>) {
        self.end_waits(ctx);
        self.release(ctx);
    }

    /// When something is due next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|at| self.wait_ends(*at)).min()
    }

    /// An address has left: what was known of it is gone. A server that comes again has other memory.
    pub fn on_gone(&mut self, ctx: &mut Context<'_>, address: Gid) {
        let is_server = address == self.config.server;
        let all = self.connections.all();
        let gone = all.filter(|(_, connection)| is_server || connection.client == address);
        let gone: Vec<u32> = gone.map(|(at, _)| at).collect();
        gone.into_iter().for_each(|at| self.forget_connection(ctx, at));
        if is_server {
            self.chains.clear();
            self.entries.clear();
            self.freed.clear();
        }
        self.release(ctx);
    }

    /// Forgets a connection, with what waits on it. Nobody waits for what it has under way any more.
    fn forget_connection(&mut self, ctx: &mut Context<'_>, at: u32) {
        let Some(gone) = self.connections.remove(at) else { return };
        self.held -= gone.held.len();
        self.waiting.retain(|other| *other != at);
        for waiting in gone.held {
            (ctx.from, ctx.to) = waiting.ports;
            ctx.drop(&waiting.frame.packet, Drop::HoldTime);
        }
        let of_it = |chain: &chains::Chain| {
            let pending = chain.pending.is_some_and(|link| link.connection == at);
            (pending, chain.closing.is_some_and(|link| link.connection == at))
        };
        let all = self.chains.all().map(|(chain, there)| (chain, of_it(there)));
        let left: Vec<_> = all.filter(|(_, of_it)| *of_it != (false, false)).collect();
        for (chain, (pending, closing)) in left {
            if pending {
                self.free(chain);
            }
            if closing {
                self.open(chain, at);
            }
        }
        for look in gone.looks {
            self.look_ends(ctx, look);
        }
    }

    /// Nothing is pending behind a chain any more.
    fn free(&mut self, chain: u32) {
        if let Some(there) = self.chains.get_mut(chain) {
            there.pending = None;
            self.freed.push_back(chain);
        }
    }

    /// The last entry of a chain is not known any more.
    fn forget_tail(&mut self, ctx: &mut Context<'_>, chain: u32) {
        if self.chains.set_tail(chain, None).is_some() {
            ctx.count(Counter::TailsForgotten);
            self.tail_moved(chain);
        }
    }

    /// Whether memory under this key may hold chains.
    fn may_hold(&self, rkey: Key) -> bool {
        self.config.rkey.is_none_or(|only| only == rkey)
    }

    /// Asserts what must hold between two frames.
    pub fn check_invariants(&self) {
        let held: usize = self.connections().map(|connection| connection.held.len()).sum();
        assert_eq!(held, self.held, "frames that wait are counted");
        for (at, connection) in self.connections.all() {
            assert_eq!(self.waiting.contains(&at), !connection.held.is_empty(), "who waits is in the row");
            assert!(connection.decisions.len() <= DECISIONS);
        }
        self.chains.check();
        for (_, chain) in self.chains.all() {
            if let Some(pending) = chain.pending {
                assert!(self.connections.get(pending.connection).is_some(), "whose link it is, is known");
                assert_ne!(Some(pending.place), chain.tail, "no entry is put behind itself");
            }
            if let Some(closing) = chain.closing {
                let who = self.connections.get(closing.connection);
                assert!(who.is_some_and(|it| !it.held.is_empty()), "who keeps READs back waits itself");
            }
        }
        assert!(self.freed.is_empty(), "who waited has been let go on");
    }
}
