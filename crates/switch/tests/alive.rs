//! Connections behind a switch go on while its row of programs is replaced at run time, and while it is
//! started anew: whatever is posted on RC queue pairs completes, under loss, reordering, duplication and
//! damage on every hop. The ends are real NICs. What values come out is `oracle.rs`'s matter.
//!
//! `ADVERB_SEEDS=n` sets how many seeds each composition is run with, `ADVERB_SEED=s` replays one of them.
#![allow(clippy::print_stdout, reason = "a test")]

mod rack;

use adverb_nic::{CompletionOp, QpId, QpType, SendOp, Status};
use adverb_switch::cas_to_write::carry::CarryConfig;
use adverb_switch::{
    CasConfig, Counter, Counters, Error, MarkConfig, Next, Program, ProgramConfig, SteerConfig, Switch,
    WordRange,
};
use adverb_wire::{Duration, Gid, Psn, QpNumber};
use rack::world::{CAPS, Link, Memory, wr};
use rack::{Chances, Rack};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

const SERVER: usize = 3;
const CLIENTS: usize = 3;
/// What a queue pair has under way at most.
const DEPTH: usize = 4;
/// In the server's memory: words, then heads of chains, fresh entries, and bytes that no program follows.
const WORDS: u64 = 3;
const KEYS: u64 = 2;
const ENTRY: usize = 128;
const NEXT_AT: usize = 16;
const KEY_AT: usize = 24;
const HEADS: usize = 4096;
const FRESH: usize = HEADS + KEYS as usize * ENTRY;
const ENTRIES: usize = 4096;
const PLAIN: usize = FRESH + ENTRIES * ENTRY;
/// Bytes of the longest operation, which takes three packets.
const LONG: usize = 3000;
/// A request waits for a word for longer than its sender's timeout of 262 us, and a packet lives for as long
/// as its sender sends it again.
const HOLD: Duration = Duration::from_us(600);
const LIFE: Duration = Duration::from_us(2_800);
/// A packet is overtaken for 20 us at most.
const FLIGHT: Duration = Duration::from_us(25);
/// Within which everything under way completes. A queue pair gives up after eight timeouts in a row, 2 ms,
/// and what waits behind others waits for theirs.
const ALIVE: Duration = Duration::from_ms(100);
/// Events that the switch keeps, for what is said of a failure.
const TRACE: usize = 512;
/// Times that the switch is disturbed in a run.
const ROUNDS: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Composition {
    Forward,
    Ecn,
    InPlace,
    Multiplex,
    Steer,
}

impl Composition {
    /// Its program; `forward` is none.
    fn program(self, server: Gid, told: usize) -> Option<ProgramConfig> {
        let cas = CasConfig {
            life: LIFE,
            hold: HOLD,
            flight: FLIGHT,
            words_max: 64 + told,
            ..CasConfig::new(server)
        };
        let (resend, proof) = (Duration::from_us(60), Duration::from_us(200));
        let carry = CarryConfig { carriers: 2, ring: 4, resend, tries: 3, proof };
        let every = NonZeroU32::new(3 + told as u32);
        let steer = SteerConfig {
            next_at: NEXT_AT as u32,
            key_at: KEY_AT as u32,
            keys_max: 8 + told,
            entries_max: 64,
            hold: HOLD,
            read_hold: HOLD,
            ..SteerConfig::new(server, ENTRY as u32)
        };
        match self {
            Composition::Forward => None,
            Composition::Ecn => Some(ProgramConfig::Ecn(MarkConfig { above: None, every })),
            Composition::InPlace => Some(ProgramConfig::CasToWrite(cas)),
            Composition::Multiplex => {
                Some(ProgramConfig::CasToWrite(CasConfig { carry: Some(carry), ..cas }))
            }
            Composition::Steer => Some(ProgramConfig::Steer(steer)),
        }
    }

    /// Whether a connection goes on whatever the switch forgets of it. Behind the others a queue pair fails
    /// that has lost an answer which only they could have given again (`docs/switch.md`).
    fn knows_nothing(self) -> bool {
        matches!(self, Composition::Forward | Composition::Ecn)
    }

    /// What must have been counted in some run.
    fn counted(self) -> &'static [Counter] {
        match self {
            Composition::Forward => &[Counter::TxFrames],
            Composition::Ecn => &[Counter::Marked],
            Composition::InPlace => &[
                Counter::CasGranted,
                Counter::CasRefused,
                Counter::FetchAdded,
                Counter::Held,
                Counter::Answered,
                Counter::Repeated,
            ],
            Composition::Multiplex => &[Counter::CasGranted, Counter::Moved, Counter::Resent],
            Composition::Steer => &[Counter::SteeredCas, Counter::SteeredReads, Counter::HeldReads],
        }
    }
}

/// What is done to the switch in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Disturbance {
    /// Other programs come and go around the one that is looked at, which stays.
    Around,
    /// That one is told something else, too, and goes on.
    Told,
    /// It also begins anew, goes for a time, or the whole switch is started again.
    Any,
    /// The switch is put in the place of another as one that has never run: a mistake, for the test to find.
    Careless,
}

/// An end of a connection at a client.
struct End {
    node: usize,
    qp: QpId,
    qpn: QpNumber,
    /// The server's queue pair.
    peer: QpId,
    memory: Memory,
    /// By work request: what was posted, for messages.
    open: BTreeMap<u64, SendOp>,
    posted: u64,
    /// An entry that is written, or is to be: its key, and its place in the server's memory.
    fresh: Option<(u64, usize)>,
    /// The work request that writes it, or links it.
    step: Option<u64>,
    is_written: bool,
    failed: bool,
}

/// What came of runs.
#[derive(Default, Debug)]
struct Told {
    /// Operations that succeeded, and others.
    done: u64,
    failed: u64,
    /// Queue pairs that were connected after another had failed.
    replaced: u64,
    /// Times that a row was taken, that its program went on and was told something else, that one was refused
    /// as a program could not go, and that the switch began anew.
    taken: u64,
    changed: u64,
    busy: u64,
    restarted: u64,
    /// Of these, times at which operations were under way.
    met: u64,
    /// The longest time after which all that was under way was complete.
    longest_us: u64,
}

/// What the program for words may be told while it goes on; `first` is where the first one is.
fn told_else(was: &CasConfig, rng: &mut fastrand::Rng, first: u64) -> CasConfig {
    CasConfig {
        words_max: was.words_max + rng.usize(..9),
        connections_max: was.connections_max + rng.usize(..9),
        hold: HOLD + Duration::from_us(rng.u64(..40)),
        life: LIFE + Duration::from_us(rng.u64(..400)),
        flight: FLIGHT + Duration::from_us(rng.u64(..3)),
        words: match rng.u8(..4) {
            // The last one of the words is not among these.
            0 => WordRange::Range { va: first, len: (WORDS - 1) * 8 },
            _ => WordRange::Any,
        },
        ..*was
    }
}

struct Run {
    rack: Rack,
    rng: fastrand::Rng,
    composition: Composition,
    server: Memory,
    ends: Vec<End>,
    /// Where in the row the program is that is looked at, while it is there.
    place: Option<usize>,
    /// By key: the entry that the clients know as the last one.
    tails: [usize; KEYS as usize],
    entries: usize,
    counters: Vec<Counters>,
    told: Told,
    /// A queue pair may fail: the switch has forgotten what only it knew.
    may_fail: bool,
}

impl Run {
    fn new(composition: Composition, seed: u64, how: Disturbance) -> Run {
        let mut rack = Rack::new(CLIENTS + 1, seed, Switch::new(Vec::new(), 0).unwrap());
        rack.ecn_capable = true;
        let server = rack.w.memory(SERVER, PLAIN + CLIENTS * LONG);
        for key in 0..KEYS as usize {
            server.write(HEADS + key * ENTRY + KEY_AT, &(key as u64 + 1).to_le_bytes());
        }
        let mut run = Run {
            rack,
            rng: fastrand::Rng::with_seed(seed),
            composition,
            server,
            ends: Vec::new(),
            place: None,
            tails: std::array::from_fn(|key| HEADS + key * ENTRY),
            entries: 0,
            counters: Vec::new(),
            told: Told::default(),
            may_fail: how == Disturbance::Any && !composition.knows_nothing(),
        };
        run.begin_switch();
        for node in (0..CLIENTS).flat_map(|node| [node; 2]) {
            let memory = run.rack.w.memory(node, 2 * LONG);
            let end = run.connect(node, memory);
            run.ends.push(end);
        }
        run
    }

    fn connect(&mut self, node: usize, memory: Memory) -> End {
        let w = &mut self.rack.w;
        let (qp, peer) = (w.qp(node, QpType::Rc, CAPS), w.qp(SERVER, QpType::Rc, CAPS));
        let psn = Psn::new(if self.rng.bool() { 0xff_fff0 } else { self.rng.u32(..) });
        let link = Link { psn: (psn, Psn::new(self.rng.u32(..))), timeout: 6, ..Link::default() };
        w.connect((node, qp), (SERVER, peer), &link);
        w.connect((SERVER, peer), (node, qp), &link);
        let qpn = w.nodes[node].nic.qp_number(qp).unwrap();
        End {
            node,
            qp,
            qpn,
            peer,
            memory,
            open: BTreeMap::new(),
            posted: 0,
            fresh: None,
            step: None,
            is_written: false,
            failed: false,
        }
    }

    /// A program of this composition, told something else each time.
    fn program(&mut self) -> Option<ProgramConfig> {
        self.composition.program(self.rack.w.nodes[SERVER].gid, self.rng.usize(..9))
    }

    /// A switch that has just been started takes the place of this one.
    fn begin_switch(&mut self) {
        self.counters.push(self.rack.switch.counters().clone());
        let program = self.program();
        let programs = program.iter().map(|config| config.begin(self.rack.w.now).unwrap()).collect();
        self.rack.restart(Switch::new(programs, TRACE).unwrap());
        self.place = program.is_some().then_some(0);
    }

    /// The program that is there, told something else as it goes on.
    fn changed(&mut self) -> Option<Next> {
        let (place, rng) = (self.place?, &mut self.rng);
        let (was, next) = match &self.rack.switch.programs()[place] {
            Program::Ecn(mark) => {
                let every = NonZeroU32::new(rng.u32(2..9));
                (ProgramConfig::Ecn(mark.config()), ProgramConfig::Ecn(MarkConfig { above: None, every }))
            }
            Program::Steer(steer) => {
                let hold = HOLD + Duration::from_us(rng.u64(..40));
                let [read_hold, link_hold] =
                    [(); 2].map(|()| if rng.bool() { HOLD } else { Duration::from_us(rng.u64(..40)) });
                let next = SteerConfig { hold, read_hold, link_hold, ..*steer.config() };
                (ProgramConfig::Steer(*steer.config()), ProgramConfig::Steer(next))
            }
            Program::CasToWrite(cas) => {
                let next = told_else(cas.config(), rng, self.server.at(0).0);
                (ProgramConfig::CasToWrite(*cas.config()), ProgramConfig::CasToWrite(next))
            }
            program => panic!("no program of these compositions: {}", program.name()),
        };
        self.told.changed += u64::from(next != was);
        Some(Next::Changed(place, next))
    }

    /// Gives the switch another row, if its program may go.
    fn reload(&mut self, next: Option<Next>) {
        let mut row = Vec::from_iter(next);
        let mut place = (!row.is_empty()).then_some(0);
        for _ in 0..self.rng.usize(..3) {
            let at = self.rng.usize(..=row.len());
            let marks = MarkConfig { above: None, every: NonZeroU32::new(2) };
            row.insert(at, Next::New(ProgramConfig::Ecn(marks)));
            place = place.map(|place| place + usize::from(at <= place));
        }
        match self.rack.switch.reload(self.rack.w.now, &row, TRACE) {
            Ok(()) => (self.place, self.told.taken) = (place, self.told.taken + 1),
            Err(Error::Busy(..)) => self.told.busy += 1,
            Err(error) => panic!("a row that is one: {error}"),
        }
    }

    fn disturb(&mut self, how: Disturbance) {
        self.told.met += u64::from(self.ends.iter().any(|end| !end.open.is_empty()));
        let any = how == Disturbance::Any;
        match self.rng.u8(..if any { 8 } else { 1 }) {
            _ if how == Disturbance::Careless => self.begin_switch(),
            0..2 if how != Disturbance::Around && self.place.is_some() => {
                let next = self.changed();
                self.reload(next);
            }
            0..5 => {
                // One that had gone comes back.
                let back = self.program().map(Next::New);
                self.reload(self.place.map(Next::Kept).or(back));
            }
            5 => {
                let next = self.program().map(Next::New);
                self.reload(next);
            }
            6 => self.reload(None),
            _ => {
                self.told.restarted += 1;
                let shifted = self.rack.switch.shifted();
                self.begin_switch();
                self.rack.switch.set_shifted(&shifted);
            }
        }
    }

    /// The next operation of a client.
    fn post(&mut self, who: usize) {
        let (key, dice) = (self.rng.u64(..KEYS), self.rng.u8(..20));
        let word = self.server.at(self.rng.usize(..WORDS as usize) * 8);
        let value = self.rng.u64(..3);
        let slot = PLAIN + self.ends[who].node * LONG;
        let wr_id = self.ends[who].posted;
        let (into, out) = (wr_id as usize % 64 * ENTRY % LONG, LONG);
        let mut len = 8;
        let op = match dice {
            0..5 => {
                SendOp::CompareSwap { addr: word.0, rkey: word.1, compare: value, swap: self.rng.u64(..3) }
            }
            5..8 => SendOp::FetchAdd { addr: word.0, rkey: word.1, add: 1 },
            8..10 => SendOp::Write(word.0, word.1),
            10 => {
                len = LONG;
                SendOp::Write(self.server.at(slot).0, self.server.mr.rkey)
            }
            // A READ of several packets whose path MTU the switch has not heard of ends what it decides for
            // the queue pair, so there are few.
            11 if value == 0 && self.rng.u8(..8) == 0 => {
                len = LONG;
                SendOp::Read(self.server.at(slot).0, self.server.mr.rkey)
            }
            11 | 12 => {
                (len, self.told.done) = (100, self.told.done);
                let (node, peer) = (SERVER, self.ends[who].peer);
                self.rack.w.recv(node, peer, 0, &[self.server.sge(slot, LONG)]);
                SendOp::Send
            }
            13..16 => {
                len = ENTRY;
                let from =
                    if self.rng.bool() { HEADS + key as usize * ENTRY } else { self.tails[key as usize] };
                SendOp::Read(self.server.at(from).0, self.server.mr.rkey)
            }
            _ => match self.put(who, key) {
                Some((op, bytes)) => {
                    len = bytes;
                    op
                }
                None => SendOp::Read(word.0, word.1),
            },
        };
        let end = &mut self.ends[who];
        let is_out = matches!(op, SendOp::Write(..) | SendOp::Send);
        let sge = [end.memory.sge(if is_out { out } else { into.min(2 * LONG - len) }, len)];
        end.posted += 1;
        end.open.insert(wr_id, op);
        self.rack.w.send(end.node, end.qp, wr(wr_id, op, &sge));
    }

    /// The next step of putting an entry behind the end of a chain: its WRITE, and when that is acknowledged
    /// the compare and swap.
    fn put(&mut self, who: usize, key: u64) -> Option<(SendOp, usize)> {
        let rkey = self.server.mr.rkey;
        let end = &mut self.ends[who];
        match end.fresh {
            None => {
                let place = FRESH + self.entries * ENTRY;
                assert!(self.entries < ENTRIES, "places are not used twice");
                self.entries += 1;
                (end.fresh, end.step, end.is_written) = (Some((key, place)), Some(end.posted), false);
                let mut entry = [0; ENTRY];
                entry[KEY_AT..KEY_AT + 8].copy_from_slice(&(key + 1).to_le_bytes());
                end.memory.write(LONG, &entry);
                Some((SendOp::Write(self.server.at(place).0, rkey), ENTRY))
            }
            Some((key, place)) if end.is_written && end.step.is_none() => {
                end.step = Some(end.posted);
                let addr = self.server.at(self.tails[key as usize] + NEXT_AT).0;
                let swap = self.server.at(place).0;
                Some((SendOp::CompareSwap { addr, rkey, compare: 0, swap }, 8))
            }
            Some(_) => None,
        }
    }

    fn poll(&mut self) {
        for node in 0..CLIENTS {
            while let Some(done) = self.rack.w.poll(node) {
                let Some(end) = self.ends.iter_mut().find(|end| end.node == node && end.qpn == done.qp)
                else {
                    panic!("a completion of nobody's");
                };
                assert!(end.open.remove(&done.wr_id).is_some(), "each completes once");
                if done.status != Status::Success {
                    (end.failed, self.told.failed) = (true, self.told.failed + 1);
                    continue;
                }
                self.told.done += 1;
                if end.step != Some(done.wr_id) {
                    continue;
                }
                end.step = None;
                match (done.op, end.fresh) {
                    (CompletionOp::Write, _) => end.is_written = true,
                    (_, Some((key, place))) => (self.tails[key as usize], end.fresh) = (place, None),
                    (_, None) => panic!("a link of nothing"),
                }
            }
        }
    }

    fn post_some(&mut self) {
        for who in 0..self.ends.len() {
            for _ in 0..self.rng.usize(1..=DEPTH) {
                if !self.ends[who].failed && self.ends[who].open.len() < DEPTH {
                    self.post(who);
                }
            }
        }
    }

    /// Connections, and what the switch has done lately to their packets.
    fn trace(&self, of: impl Fn(&End) -> bool) -> String {
        let mut text = String::new();
        for end in self.ends.iter().filter(|end| of(end)) {
            let peer = self.rack.w.nodes[SERVER].nic.qp_number(end.peer).unwrap();
            text += &format!("{:?} of node {}, to {peer:?}: {:?}\n", end.qpn, end.node, end.open);
            for event in self.rack.switch.trace().events().map(ToString::to_string) {
                let names = |qpn: QpNumber| event.contains(&format!("qp {:#08x} ", qpn.get()));
                if names(peer) || names(end.qpn) {
                    text += &format!("  {event}\n");
                }
            }
        }
        text
    }

    /// Goes on until all that is under way is complete, or says what is not.
    fn complete(&mut self) -> Result<(), String> {
        let begun = self.rack.w.now;
        loop {
            self.poll();
            if self.ends.iter().all(|end| end.open.is_empty()) {
                break;
            }
            if !self.rack.advance(begun + ALIVE) {
                return Err(format!("{ALIVE:?} on, open: {}", self.trace(|end| !end.open.is_empty())));
            }
        }
        if !self.may_fail && self.ends.iter().any(|end| end.failed) {
            return Err(format!("failed, though nothing was forgotten: {}", self.trace(|end| end.failed)));
        }
        self.told.longest_us = self.told.longest_us.max(self.rack.w.now.since(begun).as_ns() / 1000);
        // As programs do, who has failed connects anew.
        for who in 0..self.ends.len() {
            if self.ends[who].failed {
                let old = self.ends.remove(who);
                self.rack.w.nodes[old.node].nic.destroy_qp(old.qp).map_err(|e| format!("{e:?}"))?;
                self.rack.w.nodes[SERVER].nic.destroy_qp(old.peer).map_err(|e| format!("{e:?}"))?;
                let new = self.connect(old.node, old.memory);
                self.ends.insert(who, new);
                self.told.replaced += 1;
            }
        }
        Ok(())
    }

    /// Disturbs the switch time and again under load. What was posted before and after completes each time.
    fn disturbed(&mut self, how: Disturbance, chances: Chances) -> Result<(), String> {
        for _ in 0..3 {
            self.post_some();
            self.complete()?;
            self.rack.run(LIFE);
        }
        self.rack.chances = chances;
        for _ in 0..ROUNDS {
            for _ in 0..self.rng.usize(1..4) {
                self.post_some();
                self.complete()?;
            }
            self.post_some();
            for _ in 0..self.rng.usize(..40) {
                self.rack.advance(self.rack.w.now + Duration::from_us(50));
            }
            self.poll();
            self.disturb(how);
            self.post_some();
            self.complete()?;
            if self.rng.bool() {
                self.rack.run(LIFE);
            }
        }
        // In quiet, who was connected before and has not noticed yet may fail once; then nobody does.
        self.rack.chances = Chances::default();
        self.post_some();
        self.complete()?;
        let before = self.told.failed;
        for _ in 0..3 {
            self.post_some();
            self.complete()?;
        }
        self.counters.push(self.rack.switch.counters().clone());
        match self.told.failed - before {
            0 => Ok(()),
            failed => Err(format!("{failed} operations failed when nothing was lost any more")),
        }
    }
}

fn chances(seed: u64) -> Chances {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xa11e);
    let mut one = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
    Chances { loss: one(0.02), duplicate: one(0.1), reorder: one(0.2), corrupt: one(0.01) }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    match number("ADVERB_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ADVERB_SEEDS").unwrap_or(usual),
    }
}

/// One seed; what came of it is added.
fn run(
    composition: Composition,
    seed: u64,
    how: Disturbance,
    all: &mut (Told, Vec<Counters>),
) -> Result<(), String> {
    let mut run = Run::new(composition, seed, how);
    run.disturbed(how, chances(seed))?;
    let (told, more) = (&mut all.0, run.told);
    *told = Told {
        done: told.done + more.done,
        failed: told.failed + more.failed,
        replaced: told.replaced + more.replaced,
        taken: told.taken + more.taken,
        changed: told.changed + more.changed,
        busy: told.busy + more.busy,
        restarted: told.restarted + more.restarted,
        met: told.met + more.met,
        longest_us: told.longest_us.max(more.longest_us),
    };
    all.1.append(&mut run.counters);
    Ok(())
}

fn is_alive(composition: Composition) {
    let mut all = Default::default();
    for how in [Disturbance::Around, Disturbance::Told, Disturbance::Any] {
        for seed in seeds(80) {
            run(composition, seed, how, &mut all)
                .unwrap_or_else(|e| panic!("{composition:?}, seed {seed}, {how:?}: {e}"));
        }
    }
    let (told, counters) = all;
    println!("{composition:?}: {told:?}");
    let is_told = composition != Composition::Forward;
    assert_eq!(told.changed > 0, is_told, "{told:?}");
    assert!(told.taken > 0 && told.restarted > 0 && told.met > 0, "nothing was disturbed: {told:?}");
    // Most queue pairs outlive whatever is done.
    assert!(told.done > 20 * told.failed, "{told:?}");
    for counter in composition.counted() {
        let sum: u64 = counters.iter().map(|counters| counters.get(*counter)).sum();
        println!("{sum:>9} {}", counter.name());
        assert!(sum > 0, "no run had {}", counter.name());
    }
}

#[test]
fn connections_go_on_behind_forward() {
    is_alive(Composition::Forward);
}

#[test]
fn connections_go_on_behind_ecn() {
    is_alive(Composition::Ecn);
}

#[test]
fn connections_go_on_behind_cas_to_write() {
    is_alive(Composition::InPlace);
}

#[test]
fn connections_go_on_behind_carriers() {
    is_alive(Composition::Multiplex);
}

#[test]
fn connections_go_on_behind_steer() {
    is_alive(Composition::Steer);
}

/// A switch that loses at a reload what it needs takes connections with it: the runs above would find that.
#[test]
fn a_reload_that_forgets_is_found() {
    for composition in [Composition::InPlace, Composition::Multiplex] {
        let found = (0..200)
            .find(|seed| run(composition, *seed, Disturbance::Careless, &mut Default::default()).is_err());
        println!("{composition:?}: seed {found:?}");
        assert!(found.is_some(), "{composition:?}");
    }
}
