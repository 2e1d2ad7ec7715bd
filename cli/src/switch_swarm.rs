//! `adverb swarm --switch`: clients that change words of a server as they like, through a switch that decides
//! their atomics, on random fabrics, with every fault of networks, programs, hosts and of the switch itself.
//! What they are answered must be linearizable, word by word.

use crate::systems::{CHAIN_VALUE_MAX, connect_within, judge_words};
use adverb_apps::{chain, words};
use adverb_rdma::{Duration, Rdma};
use adverb_sim::Config;
use adverb_sim::program::Start;
use adverb_sim::programmed::{Restarts, address_of};
use adverb_sim::swarm::Outcome;
use adverb_sim::swarm::programs::{Made, System};
use adverb_switch::cas_to_write::Mistake;
use adverb_switch::cas_to_write::carry::CarryConfig;
use adverb_switch::steer::Hot;
use adverb_switch::{
    CasConfig, Counter, Counters, Drop, LinksWait, ProgramConfig, SteerConfig, SteerMistake,
};

/// Words behind a switch.
pub const SWITCH: System = System {
    name: "switch",
    about: "words that clients change through a switch that decides their atomics",
    bugs: &BUGS,
    one_rma: false,
    make,
    switch: Some(programs),
    tune: plain,
};

/// The server's host, at whose switch the program runs.
pub const SERVER: u32 = 0;
/// What a switch's program may rely on: a sender has given up by then.
const LIFE: Duration = Duration::from_ms(10);
/// Seeds in which everything must have happened that is counted here.
const SHOWN_BY: u64 = 200;
/// Seeds in which what is seldom must have happened.
const SELDOM_BY: u64 = 1000;

/// Names and descriptions of the program's mistakes.
const BUGS: [(&str, &str); Mistake::ALL.len()] = {
    let mut bugs = [("", ""); Mistake::ALL.len()];
    let mut at = 0;
    while at < bugs.len() {
        bugs[at] = (Mistake::ALL[at].1, Mistake::ALL[at].2);
        at += 1;
    }
    bugs
};

fn programs(rng: &mut fastrand::Rng, bug: Option<&str>) -> Vec<ProgramConfig> {
    let mistake = Mistake::ALL.into_iter().find(|(_, name, _)| Some(*name) == bug).map(|(kind, ..)| kind);
    let mut config = CasConfig {
        hold: Duration::from_us([200, 500, 2_000][rng.usize(0..3)]),
        flight: Duration::from_us(300),
        life: LIFE,
        mistake,
        ..CasConfig::new(address_of(SERVER))
    };
    if rng.u32(0..6) == 0 {
        // Tables that are too small for all.
        (config.words_max, config.connections_max) = (rng.usize(1..3), rng.usize(1..4));
    }
    if rng.bool() {
        // All that a carrier does to be heard fits into the senders' patience.
        config.carry = Some(CarryConfig {
            carriers: rng.usize(1..=3),
            ring: [1, 3, 16][rng.usize(0..3)],
            resend: Duration::from_us(100),
            tries: 2,
            proof: Duration::from_us([100, 1_000, 10_000][rng.usize(0..3)]),
        });
    }
    vec![ProgramConfig::CasToWrite(config)]
}

fn make(rng: &mut fastrand::Rng, hosts: u32, _: Option<&str>) -> Made {
    let connect = connect_within(rng, 5..=6);
    let words = rng.u32(1..=3);
    let serve = move |rdma: Rdma| async move { words::serve(&rdma, "words", words, &connect).await };
    let mut programs = vec![Start::new("home", SERVER, serve).serving()];
    let halves = if rng.u32(0..3) == 0 { 3 } else { 0 };
    // In some seeds all work, and much, before and while the words may be learned: no word is at rest then.
    let early = rng.u32(0..5) < 2;
    let (begins, settle) = match early {
        true => (1, Duration::from_us(rng.u64(9_600..=10_000))),
        false => (2, LIFE + Duration::from_ms(1)),
    };
    let (operations, depth) = if early { (60..=120, 2..=5) } else { (20..=60, 1..=5) };
    // In some of these one client writes, a value at a time, and the others add: beside others a WRITE that
    // is late counts as overwritten, and nothing may count so here.
    let apart = early && rng.u32(0..3) == 0;
    for n in 0..rng.u32(if early { 4..=6 } else { 2..=5 }) {
        let mix = match n {
            _ if !apart => words::Mix::All,
            0 => words::Mix::Writes,
            _ => words::Mix::Adds,
        };
        let depth = if mix == words::Mix::Writes { 1 } else { rng.u32(depth.clone()) };
        let work = words::Work {
            operations: rng.u32(operations.clone()),
            words,
            values: rng.u64(2..=4),
            depth,
            begins,
            settle,
            halves: if apart { 0 } else { halves },
            mix,
            connect,
        };
        let run = move |rdma: Rdma| async move { words::work(&rdma, "words", &work).await };
        // What a program does to words of its own host no switch sees.
        programs.push(Start::new(format!("client {n}"), rng.u32(1..hosts), run));
    }
    Made { programs, judge: Box::new(judge_words), settled: |_| true }
}

/// The same beside a system that also stands without a switch.
pub fn beside(rng: &mut fastrand::Rng, _: Option<&str>) -> Vec<ProgramConfig> {
    if rng.bool() { programs(rng, None) } else { Vec::new() }
}

/// A switch that steers, in half of the seeds; in all of them, if it is to be wrong.
pub fn steering(rng: &mut fastrand::Rng, bug: Option<&str>) -> Vec<ProgramConfig> {
    let mistakes = SteerMistake::ALL.into_iter();
    let mistake = mistakes.filter(|(_, name, _)| Some(*name) == bug).map(|(kind, ..)| kind).next();
    let entry = chain::entry_len(CHAIN_VALUE_MAX) as u32;
    let mut config = SteerConfig {
        hold: Duration::from_us([10, 50, 200, 500][rng.usize(0..4)]),
        mistake,
        ..SteerConfig::new(address_of(SERVER), entry)
    };
    if rng.u32(0..4) == 0 {
        // Tables that are too small for all.
        (config.keys_max, config.entries_max) = (rng.usize(1..3), rng.usize(1..20));
        config.connections_max = rng.usize(1..6);
    }
    if rng.u32(0..4) == 0 {
        config.hot = Some(Hot { above: rng.u32(1..4), decay: Duration::from_us(rng.u64(50..5_000)) });
    }
    config.read_hold = [Duration::ZERO, Duration::from_us(20), config.hold][rng.usize(0..3)];
    config.link_hold = [Duration::ZERO, Duration::from_us(20), config.hold][rng.usize(0..3)];
    config.links_wait = [LinksWait::Overtaken, LinksWait::Always][rng.usize(0..2)];
    if rng.bool() || mistake.is_some() { vec![ProgramConfig::Steer(config)] } else { Vec::new() }
}

/// The program follows plain RC; the timeouts are those of the connections.
pub fn plain(_: &mut fastrand::Rng, config: &mut Config) {
    config.transport.irn = None;
    config.transport.rto = None;
}

/// What the switches of a swarm did.
#[derive(Default)]
pub struct Shown {
    seeds: u64,
    counters: Counters,
    /// Of the switches alone that moved nothing to a carrier: a carrier's answers are all made apart.
    in_place: Counters,
    restarts: Restarts,
    /// Of the switches that others' frames pass.
    second: Counters,
    second_restarts: u64,
}

impl Shown {
    /// What the switch of one more seed did.
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.counters.add_all(&outcome.switch);
        if outcome.switch.get(Counter::Moved) == 0 {
            self.in_place.add_all(&outcome.switch);
        }
        self.restarts.all += outcome.restarts.all;
        self.restarts.busy += outcome.restarts.busy;
        self.second.add_all(&outcome.second.0);
        self.second_restarts += outcome.second.1.all;
    }

    /// What must have happened in so many seeds of a system, and did not.
    pub fn missing(&self, system: &System) -> Vec<&'static str> {
        let (counters, drops, seldom) = match system.name {
            name if name == SWITCH.name => (&WORDS[..], &DROPS[..], &WORDS_SELDOM[..]),
            CHAIN => (&CHAINS[..], &[][..], &CHAINS_SELDOM[..]),
            _ => (&LOCKS[..], &[][..], &[][..]),
        };
        let counters = counters.iter().map(|counter| (counter.name(), self.counters.get(*counter)));
        let drops = drops.iter().map(|reason| (reason.name(), self.counters.dropped(*reason)));
        let coalesced = ("de_coalesced in place", self.in_place.get(Counter::DeCoalesced));
        let rest = [
            ("restarts while answers were awaited", self.restarts.busy),
            ("frames through a second switch", self.second.get(Counter::TxFrames)),
            ("restarts of a second switch", self.second_restarts),
            ("marks of a second switch", self.second.get(Counter::Marked)),
        ];
        let rest = rest.into_iter().chain((system.name == SWITCH.name).then_some(coalesced));
        let all = counters.chain(drops).chain(rest);
        let missing = all.filter(|(_, count)| *count == 0 && self.seeds >= SHOWN_BY);
        let seldom = seldom.iter().filter(|_| self.seeds >= SELDOM_BY);
        let seldom = seldom.filter(|counter| self.counters.get(**counter) == 0);
        missing.map(|(name, _)| name).chain(seldom.map(|counter| counter.name())).collect()
    }

    /// What the switches of a system did, in words.
    pub fn of(&self, system: &System) -> String {
        let mut text = match system.name {
            CHAIN => self.steered(),
            _ => self.converted(),
        };
        let drops = self.counters.iter().filter(|(name, _)| name.starts_with("drop"));
        for (name, count) in drops.filter(|(_, count)| *count > 0) {
            text += &format!("\n{count:>9} {name}");
        }
        text
    }

    fn restarted(&self) -> String {
        let Restarts { all, busy } = self.restarts;
        format!(
            "{all} restarts, {busy} of them while answers were awaited; second switches: {} frames, {} \
             marked, {} restarts",
            self.second.get(Counter::TxFrames),
            self.second.get(Counter::Marked),
            self.second_restarts
        )
    }

    fn steered(&self) -> String {
        let get = |counter| self.counters.get(counter);
        format!(
            "switches: {} compare and swaps and {} READs steered, {} and {} were to the last entry, {} \
             compare and swaps passed, {} requests held, {} waits overdue, {} READs held, {} of them \
             overdue, {} links held for READs, {} of them overdue, {} READs overtaken, {} made again, \
             {} entries seen linked, {} ends forgotten, {} keys without a place; {}",
            get(Counter::SteeredCas),
            get(Counter::SteeredReads),
            get(Counter::CurrentCas),
            get(Counter::CurrentReads),
            get(Counter::ChainsPassed),
            get(Counter::Held),
            get(Counter::Overdue),
            get(Counter::HeldReads),
            get(Counter::OverdueReads),
            get(Counter::HeldLinks),
            get(Counter::OverdueLinks),
            get(Counter::OvertakenReads),
            get(Counter::Repeated),
            get(Counter::TailsLearned),
            get(Counter::TailsForgotten),
            get(Counter::KeysFull),
            self.restarted()
        )
    }

    fn converted(&self) -> String {
        let get = |counter| self.counters.get(counter);
        let converted = [Counter::CasGranted, Counter::CasRefused, Counter::FetchAdded].map(get);
        let rest = [Counter::Stores, Counter::AtomicsPassed, Counter::Held, Counter::Repeated].map(get);
        format!(
            "switches: {} atomics converted ({} granted, {} refused, {} added), {} WRITEs of words \
             followed, {} passed, {} words learned by one, {} by an atomic, {} atomics passed, {} of them \
             answered by implication, {} requests held, {} waits in vain, {} made again, {} of them before \
             what waits, {} answers made, {} of them de-coalesced, {} moved to carriers, {} sent again by \
             these, {} given on; {}",
            converted.iter().sum::<u64>(),
            converted[0],
            converted[1],
            converted[2],
            rest[0],
            get(Counter::StoresPassed),
            get(Counter::LearnedByStore),
            get(Counter::LearnedByAtomic),
            rest[1],
            get(Counter::AnswersImplied),
            rest[2],
            get(Counter::WaitsInVain),
            rest[3],
            get(Counter::RepeatedFirst),
            get(Counter::Answered),
            get(Counter::DeCoalesced),
            get(Counter::Moved),
            get(Counter::Resent),
            get(Counter::MovedOn),
            self.restarted()
        )
    }
}

/// The system whose switch steers.
const CHAIN: &str = "chain";
/// What clients of words must bring about.
const WORDS: [Counter; 20] = [
    Counter::CasGranted,
    Counter::CasRefused,
    Counter::FetchAdded,
    Counter::Stores,
    Counter::StoresPassed,
    Counter::LearnedByStore,
    Counter::LearnedByAtomic,
    Counter::AtomicsPassed,
    Counter::Held,
    Counter::Repeated,
    Counter::RepeatedFirst,
    Counter::Answered,
    Counter::GapNaks,
    Counter::WordsUnsure,
    Counter::WordsFull,
    Counter::ConnectionsFull,
    Counter::Moved,
    Counter::Resent,
    Counter::MovedOn,
    Counter::RingFull,
];
/// For these a word has to be shared, or an answer to be lost, at the right moment.
const WORDS_SELDOM: [Counter; 2] = [Counter::WaitsInVain, Counter::AnswersImplied];
const DROPS: [Drop; 7] =
    [Drop::Icrc, Drop::Starting, Drop::Gap, Drop::HoldTime, Drop::AckUnseen, Drop::UnderWay, Drop::Shifted];
/// What clients of locks must, who add nothing, and wait for what they have asked.
const LOCKS: [Counter; 10] = [
    Counter::CasGranted,
    Counter::CasRefused,
    Counter::Stores,
    Counter::StoresPassed,
    Counter::AtomicsPassed,
    Counter::Held,
    Counter::Repeated,
    Counter::Answered,
    Counter::WordsUnsure,
    Counter::Moved,
];
/// A link is lost, and another one waits behind it.
const CHAINS_SELDOM: [Counter; 1] = [Counter::Overdue];
/// What clients of chains must.
const CHAINS: [Counter; 17] = [
    Counter::SteeredCas,
    Counter::SteeredReads,
    Counter::CurrentCas,
    Counter::CurrentReads,
    Counter::ChainsPassed,
    Counter::Held,
    Counter::HeldReads,
    Counter::OverdueReads,
    Counter::HeldLinks,
    Counter::OverdueLinks,
    Counter::OvertakenReads,
    Counter::Repeated,
    Counter::TailsLearned,
    Counter::TailsForgotten,
    Counter::KeysFull,
    Counter::ConnectionsFull,
    Counter::Paired,
];
