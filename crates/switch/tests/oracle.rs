//! Words that several clients change through the switch are linearizable, whatever is lost, doubled,
//! overtaken or damaged on any hop, and while the switch is restarted. The ends are real NICs.
//!
//! `ADVERB_SEEDS=n` sets how many seeds are run, `ADVERB_SEED=s` replays one of them.
#![allow(clippy::print_stdout, reason = "a test")]

mod rack;

use adverb_nic::{CompletionOp, QpId, SendOp, Status};
use adverb_switch::cas_to_write::Mistake;
use adverb_switch::cas_to_write::carry::CarryConfig;
use adverb_switch::{
    ByteOrder, CasConfig, CasToWrite, Counter, Counters, MarkConfig, Next, Program, ProgramConfig, Switch,
    WordRange,
};
use adverb_wire::{Duration, Psn, QpNumber};
use rack::world::{CAPS, Link, Memory, wr};
use rack::{Chances, Rack};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

const SERVER: usize = 3;
const CLIENTS: usize = 3;
const WORDS: u64 = 2;
const LIFE: Duration = Duration::from_ms(40);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Cas {
        compare: u64,
        swap: u64,
    },
    Add(u64),
    /// A WRITE of the lower half of the word, which the switch does not follow.
    WriteHalf(u32),
    Read,
    Write(u64),
}

/// An operation on a word: when it was called, when it returned, and what.
#[derive(Clone, Copy, Debug)]
struct Op {
    call: Call,
    called: u64,
    /// The place of its return, and the word's value before it. Without one it may have happened or not.
    returned: Option<(u64, u64)>,
}

/// The word's value after an operation, if the operation may have had its answer at this value.
fn step(op: &Op, value: u64) -> Option<u64> {
    let fits = |seen| op.returned.is_none_or(|(_, original)| original == seen);
    match op.call {
        Call::Cas { compare, swap } => fits(value).then_some(if value == compare { swap } else { value }),
        Call::Add(operand) => fits(value).then_some(value.wrapping_add(operand)),
        Call::Read => fits(value).then_some(value),
        Call::Write(value) => Some(value),
        Call::WriteHalf(half) => Some(value >> 32 << 32 | u64::from(half)),
    }
}

/// Whether the operations of a word, which was 0, can have happened one after another (Wing and Gong 1993).
fn is_linearizable(ops: &[Op]) -> bool {
    assert!(ops.len() <= 128);
    let answered: u128 =
        (0..ops.len()).filter(|i| ops[*i].returned.is_some()).fold(0, |mask, i| mask | 1 << i);
    let mut seen = BTreeSet::new();
    let mut open = vec![(0u128, 0u64)];
    while let Some((done, value)) = open.pop() {
        if done & answered == answered {
            return true;
        }
        if !seen.insert((done, value)) {
            continue;
        }
        assert!(seen.len() < 2_000_000, "the history is too wide to be judged");
        let left = || (0..ops.len()).filter(|i| done >> i & 1 == 0);
        let first_return = left().filter_map(|i| ops[i].returned).map(|(at, _)| at).min().unwrap_or(u64::MAX);
        let may = || left().filter(|i| ops[*i].called < first_return);
        // What only looks, and fits, may take place now: nothing else depends on when it does.
        let looks = may().find(|i| ops[*i].returned.is_some() && step(&ops[*i], value) == Some(value));
        if let Some(i) = looks.filter(|i| !matches!(ops[*i].call, Call::Write(_) | Call::WriteHalf(_))) {
            open.push((done | 1 << i, value));
            continue;
        }
        for i in may() {
            if let Some(value) = step(&ops[i], value) {
                open.push((done | 1 << i, value));
            }
        }
    }
    false
}

struct Client {
    node: usize,
    qp: QpId,
    qpn: QpNumber,
    memory: Memory,
    posted: usize,
    open: usize,
    failed: bool,
}

struct Run {
    rack: Rack,
    rng: fastrand::Rng,
    server: Memory,
    clients: Vec<Client>,
    /// By word.
    history: BTreeMap<u64, Vec<Op>>,
    /// By client and work request: its word, and its place there.
    open: BTreeMap<(usize, u64), (u64, usize)>,
    clock: u64,
    counters: Vec<Counters>,
    halves: bool,
    /// By client: the place of its last operation on word 0.
    latest: BTreeMap<usize, usize>,
    /// What the switch did before it was restarted.
    before: String,
}

/// What a test changes of the configuration.
type Adjust = fn(&mut CasConfig);

fn switch(rack: &rack::world::World, adjust: Adjust) -> Switch {
    let mut config = CasConfig {
        life: LIFE,
        hold: Duration::from_us(200),
        // A packet is overtaken for 20 us at most.
        flight: Duration::from_us(25),
        words_max: 64,
        ..CasConfig::new(rack.nodes[SERVER].gid)
    };
    adjust(&mut config);
    let program = CasToWrite::new(config, rack.now).unwrap();
    Switch::new(vec![Program::CasToWrite(Box::new(program))], 4096).unwrap()
}

impl Run {
    fn new(seed: u64) -> Run {
        Run::with(seed, |_| {})
    }

    fn with(seed: u64, adjust: Adjust) -> Run {
        let mut rng = fastrand::Rng::with_seed(seed);
        let empty = Switch::new(Vec::new(), 0).unwrap();
        let mut rack = Rack::new(CLIENTS + 1, seed, empty);
        rack.restart(switch(&rack.w, adjust));
        let server = rack.w.memory(SERVER, 4096);
        let mut clients = Vec::new();
        for node in (0..CLIENTS).flat_map(|node| [node; 2]) {
            let memory = rack.w.memory(node, 4096);
            let (qp, peer) = (
                rack.w.qp(node, adverb_nic::QpType::Rc, CAPS),
                rack.w.qp(SERVER, adverb_nic::QpType::Rc, CAPS),
            );
            let psn = Psn::new(if rng.bool() { 0xff_fffa } else { rng.u32(..) });
            let link = Link { psn: (psn, Psn::new(rng.u32(..))), timeout: 6, ..Link::default() };
            rack.w.connect((node, qp), (SERVER, peer), &link);
            rack.w.connect((SERVER, peer), (node, qp), &link);
            let qpn = rack.w.nodes[node].nic.qp_number(qp).unwrap();
            clients.push(Client { node, qp, qpn, memory, posted: 0, open: 0, failed: false });
        }
        let (history, open, counters) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Run {
            rack,
            rng,
            server,
            clients,
            history,
            open,
            clock: 0,
            counters,
            halves: false,
            latest: BTreeMap::new(),
            before: String::new(),
        }
    }

    fn post(&mut self, who: usize, word: u64, call: Call) {
        let (addr, rkey) = self.server.at(word as usize * 8);
        let client = &mut self.clients[who];
        let (wr_id, slot) = (client.posted as u64, client.posted % 500 * 8);
        let mut sge = [client.memory.sge(slot, 8)];
        let op = match call {
            Call::Cas { compare, swap } => SendOp::CompareSwap { addr, rkey, compare, swap },
            Call::Add(add) => SendOp::FetchAdd { addr, rkey, add },
            Call::Read => SendOp::Read(addr, rkey),
            Call::Write(value) => {
                client.memory.write(slot, &value.to_ne_bytes());
                SendOp::Write(addr, rkey)
            }
            Call::WriteHalf(half) => {
                client.memory.write(slot, &half.to_le_bytes());
                sge[0].len = 4;
                SendOp::Write(addr, rkey)
            }
        };
        client.posted += 1;
        client.open += 1;
        let (node, qp) = (client.node, client.qp);
        self.clock += 1;
        let ops = self.history.entry(word).or_default();
        ops.push(Op { call, called: self.clock, returned: None });
        self.open.insert((who, wr_id), (word, ops.len() - 1));
        self.rack.w.send(node, qp, wr(wr_id, op, &sge));
    }

    fn poll(&mut self) {
        for node in 0..CLIENTS {
            while let Some(done) = self.rack.w.poll(node) {
                let Some(who) = self.clients.iter().position(|c| c.node == node && c.qpn == done.qp) else {
                    panic!("a completion of nobody's");
                };
                let client = &mut self.clients[who];
                client.open -= 1;
                let (word, place) = self.open.remove(&(who, done.wr_id)).expect("each completes once");
                self.clock += 1;
                if done.status != Status::Success {
                    client.failed = true;
                    continue;
                }
                let value = match done.op {
                    CompletionOp::Write => 0,
                    _ => client.memory.word(done.wr_id as usize % 500 * 8),
                };
                self.history.get_mut(&word).unwrap()[place].returned = Some((self.clock, value));
            }
        }
    }

    fn random_call(&mut self) -> Call {
        let small = |rng: &mut fastrand::Rng| rng.u64(..3);
        if self.halves && self.rng.u8(..60) == 0 {
            return Call::WriteHalf(self.rng.u32(..3));
        }
        match self.rng.u8(..10) {
            0 | 1 => Call::Add(1),
            2 => Call::Read,
            3 => Call::Write(small(&mut self.rng)),
            _ => Call::Cas { compare: small(&mut self.rng), swap: small(&mut self.rng) },
        }
    }

    /// So many operations in all, each client with up to `depth` at once.
    fn work(&mut self, mut left: usize, depth: usize) {
        let end = self.rack.w.now + Duration::from_ms(2_000);
        loop {
            for who in 0..self.clients.len() {
                while left > 0 && !self.clients[who].failed && self.clients[who].open < depth {
                    if self.rng.u8(..3) == 0 {
                        break;
                    }
                    let (word, call) = (self.rng.u64(..WORDS), self.random_call());
                    self.post(who, word, call);
                    left -= 1;
                }
            }
            if left > 0 && self.clients.iter().all(|c| c.open == 0) && self.clients.iter().any(|c| !c.failed)
            {
                continue;
            }
            let all_failed = self.clients.iter().all(|c| c.failed);
            let goes_on = self.rack.advance(end);
            self.poll();
            let idle = self.clients.iter().all(|c| c.open == 0 || c.failed);
            if idle && (left == 0 || all_failed) {
                return;
            }
            assert!(goes_on || left > 0, "something waits for ever");
            assert!(self.rack.w.now < end, "no end: {left} left");
        }
    }

    /// Each client asks for each word once, and what the switch cannot know of is over.
    fn warm_up(&mut self) {
        for _ in 0..2 {
            for who in 0..self.clients.len() {
                for word in 0..WORDS {
                    self.post(who, word, Call::Add(0));
                    self.rack.run(Duration::from_us(200));
                    self.poll();
                }
            }
            self.rack.run(LIFE + Duration::from_ms(1));
            self.poll();
        }
        assert!(self.open.is_empty(), "without faults all is answered");
    }

    /// What a client has asked of word 0 last.
    fn last_of(&self, who: usize) -> Option<Op> {
        self.latest.get(&who).map(|place| self.history[&0][*place])
    }

    fn trace(&self) -> String {
        self.rack.switch.trace().events().map(|e| format!("{e}\n")).collect()
    }

    /// What is in memory at the end is a READ that came last.
    fn check(&mut self) -> Result<(), String> {
        self.counters.push(self.rack.switch.counters().clone());
        self.rack.run(Duration::from_ms(100));
        self.poll();
        for (word, ops) in &self.history {
            let mut ops = ops.clone();
            let value = self.server.word(*word as usize * 8);
            ops.push(Op {
                call: Call::Read,
                called: self.clock + 1,
                returned: Some((self.clock + 2, value)),
            });
            if !is_linearizable(&ops) {
                let trace = format!("{}restarted\n{}", self.before, self.trace());
                let ops = ops.iter().map(|op| format!("{op:?}\n")).collect::<String>();
                return Err(format!("word {word} is not linearizable:\n{ops}{trace}"));
            }
        }
        Ok(())
    }
}

fn chances(seed: u64) -> Chances {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let mut one = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
    Chances { loss: one(0.05), duplicate: one(0.1), reorder: one(0.2), corrupt: one(0.03) }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    match number("ADVERB_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ADVERB_SEEDS").unwrap_or(usual),
    }
}

fn sum(all: &[Counters], counter: Counter) -> u64 {
    all.iter().map(|counters| counters.get(counter)).sum()
}

#[test]
fn words_are_linearizable_under_faults() {
    let mut all = Vec::new();
    for seed in seeds(150) {
        let mut run = Run::new(seed);
        run.warm_up();
        run.rack.chances = chances(seed);
        run.halves = seed % 3 == 0;
        let depth = 1 + (seed % 4) as usize;
        run.work(140, depth);
        run.rack.chances = Chances::default();
        run.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        all.append(&mut run.counters);
    }
    for counter in Counter::ALL {
        println!("{:>9} {}", sum(&all, *counter), counter.name());
    }
    for counter in [
        Counter::CasGranted,
        Counter::CasRefused,
        Counter::FetchAdded,
        Counter::Stores,
        Counter::Held,
        Counter::Repeated,
        Counter::Answered,
        Counter::DeCoalesced,
        Counter::GapNaks,
        Counter::AtomicsPassed,
        Counter::WordsUnsure,
    ] {
        assert!(sum(&all, counter) > 0, "no run had {}", counter.name());
    }
}

/// Atomics of all queue pairs share a few, over the wrap of their numbers and with rings of one to eight.
#[test]
fn carried_words_are_linearizable_under_faults() {
    const RINGS: [Adjust; 3] = [
        |config| config.carry = Some(carriers(1, 1)),
        |config| config.carry = Some(carriers(1, 8)),
        |config| config.carry = Some(carriers(2, 3)),
    ];
    fn carriers(carriers: usize, ring: usize) -> CarryConfig {
        let (resend, proof) = (Duration::from_us(60), Duration::from_us(200));
        CarryConfig { carriers, ring, resend, tries: 3, proof }
    }
    let mut all = Vec::new();
    for seed in seeds(150) {
        let mut run = Run::with(seed, RINGS[seed as usize % 3]);
        run.warm_up();
        run.rack.chances = chances(seed);
        run.halves = seed % 4 == 0;
        run.work(140, 1 + (seed % 4) as usize);
        run.rack.chances = Chances::default();
        run.check().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        all.append(&mut run.counters);
    }
    for counter in [
        Counter::CasGranted,
        Counter::CasRefused,
        Counter::FetchAdded,
        Counter::Moved,
        Counter::DeCoalesced,
        Counter::Resent,
        Counter::RingFull,
        Counter::Held,
        Counter::Repeated,
        Counter::Stores,
    ] {
        println!("{:>9} {}", sum(&all, counter), counter.name());
        assert!(sum(&all, counter) > 0, "no run had {}", counter.name());
    }
}

#[test]
fn without_faults_nearly_all_atomics_are_converted() {
    let mut run = Run::new(7);
    run.warm_up();
    let before = run.rack.switch.counters().get(Counter::AtomicsPassed);
    run.work(140, 1);
    let counters = run.rack.switch.counters();
    let converted = [Counter::CasGranted, Counter::CasRefused, Counter::FetchAdded].map(|c| counters.get(c));
    let (converted, passed) = (converted.iter().sum::<u64>(), counters.get(Counter::AtomicsPassed) - before);
    println!("{converted} converted, {passed} passed");
    assert!(converted >= 99 * passed && converted > 80, "{converted} converted, {passed} passed");
    run.check().unwrap();
}

/// Words that several clients ask for without a pause, from shortly before they may be learned on: by answers
/// and by WRITEs, while WRITEs from before that are late.
fn without_a_pause(seed: u64, adjust: Adjust) -> (Counters, Result<(), String>) {
    let mut run = Run::with(seed, adjust);
    for who in 0..run.clients.len() {
        for word in 0..WORDS {
            run.post(who, word, Call::Add(0));
        }
    }
    // The first ones are sent again when the switch has begun, which takes 262 us.
    run.rack.run(LIFE + Duration::from_us(240 + seed % 25));
    run.poll();
    run.rack.chances = Chances { reorder: 0.1 + (seed % 4) as f64 / 10.0, ..Chances::default() };
    run.work(180, 3);
    run.rack.chances = Chances::default();
    let counters = run.rack.switch.counters().clone();
    (counters, run.check())
}

#[test]
fn words_that_never_rest_are_learned_and_linearizable() {
    let mut all = Vec::new();
    for seed in seeds(100) {
        let (counters, judged) = without_a_pause(seed, |_| {});
        judged.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        all.push(counters);
    }
    for counter in
        [Counter::CasGranted, Counter::AtomicsPassed, Counter::StoresPassed, Counter::LearnedByStore]
    {
        println!("{:>9} {}", sum(&all, counter), counter.name());
        assert!(sum(&all, counter) > 0, "no run had {}", counter.name());
    }
}

/// A switch that learns a word while a WRITE is on its way to it takes an old value for the word's.
#[test]
fn a_word_that_is_learned_beside_a_write_is_found() {
    let unwatched: Adjust = |config| config.mistake = Some(Mistake::Unwatched);
    let found = (0..1000).find(|seed| without_a_pause(*seed, unwatched).1.is_err());
    println!("seed {found:?}");
    assert!(found.is_some());
}

/// What came of such a run.
struct Decided {
    counters: Counters,
    /// Of the atomics after the first lives of packets, the switch's share.
    share: f64,
    /// Queue pairs that have failed.
    failed: usize,
}

/// Six queue pairs that add to two words without a pause, while packets are lost; as long as a packet lives
/// its sender sends eight times.
fn adds_under_loss(seed: u64, adjust: Adjust) -> Decided {
    let mut run = Run::with(seed, adjust);
    run.rack.chances = Chances { loss: 0.02, ..Chances::default() };
    let [learned, end] = [12, 50].map(|ms| run.rack.w.now + Duration::from_ms(ms));
    let (mut posted, mut before) = (0, None);
    while run.rack.w.now < end || run.clients.iter().any(|client| client.open > 0 && !client.failed) {
        for who in 0..run.clients.len() {
            while run.rack.w.now < end && !run.clients[who].failed && run.clients[who].open < 8 {
                run.post(who, posted % WORDS, Call::Add(1));
                posted += 1;
            }
        }
        if run.rack.w.now > learned {
            before.get_or_insert(run.rack.switch.counters().clone());
        }
        let goes_on = run.rack.advance(end + Duration::from_ms(1000));
        run.poll();
        if !goes_on {
            assert!(run.clients.iter().all(|client| client.failed), "something waits for ever");
            break;
        }
    }
    run.rack.chances = Chances::default();
    run.rack.run(Duration::from_ms(100));
    run.poll();
    for (word, ops) in &run.history {
        let found: Vec<u64> = ops.iter().filter_map(|op| op.returned.map(|(_, value)| value)).collect();
        let (answered, value) = (found.len(), run.server.word(*word as usize * 8));
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>().len(), answered, "seed {seed}: a value twice");
        assert!((answered as u64..=ops.len() as u64).contains(&value), "seed {seed}: {value} of {answered}");
    }
    let counters = run.rack.switch.counters().clone();
    let since = |counter| counters.get(counter) - before.as_ref().map_or(0, |before| before.get(counter));
    let (added, passed) = (since(Counter::FetchAdded), since(Counter::AtomicsPassed));
    let share = added as f64 / (added + passed).max(1) as f64;
    Decided { share, failed: run.clients.iter().filter(|client| client.failed).count(), counters }
}

#[test]
fn words_become_the_switchs_though_atomics_are_lost_time_and_again() {
    // Senders' timeouts, 262 us, are longer than a request waits for a word's last change, or shorter.
    const HOLDS: [Adjust; 2] = [
        |config| (config.life, config.hold) = (Duration::from_us(2_800), Duration::from_us(50)),
        |config| (config.life, config.hold) = (Duration::from_us(2_800), Duration::from_us(800)),
    ];
    let mut all = Vec::new();
    for seed in seeds(4) {
        for adjust in HOLDS {
            let Decided { counters, share, failed } = adds_under_loss(seed, adjust);
            println!("seed {seed}: {share:.3} decided, {failed} queue pairs failed");
            // A change that is lost again and again may still cost one that waits for it.
            assert!(share > 0.9 && failed < 3, "seed {seed}: {share:.3} decided, {failed} failed");
            all.push(counters);
        }
    }
    for counter in
        [Counter::LearnedByAtomic, Counter::RepeatedFirst, Counter::WaitsInVain, Counter::AnswersImplied]
    {
        println!("{:>9} {}", sum(&all, counter), counter.name());
        assert!(sum(&all, counter) > 0, "no run had {}", counter.name());
    }
}

/// A switch that learns a word while another atomic is on its way to it takes an old value for the word's.
#[test]
fn a_word_that_is_learned_beside_an_atomic_is_found() {
    let hasty: Adjust = |config| config.mistake = Some(Mistake::Hasty);
    let found = (0..1000).find(|seed| without_a_pause(*seed, hasty).1.is_err());
    println!("seed {found:?}");
    assert!(found.is_some());
}

/// Queue pairs that wait for what they have sent themselves fail.
#[test]
fn what_is_sent_again_must_not_wait() {
    let stuck: Adjust = |config| {
        (config.life, config.hold) = (Duration::from_us(2_800), Duration::from_us(800));
        config.mistake = Some(Mistake::Stuck);
    };
    let failed: usize = (0..5).map(|seed| adds_under_loss(seed, stuck).failed).sum();
    println!("{failed} queue pairs failed");
    assert!(failed > 0);
}

/// Six clients spin for one lock, with a WRITE as its release: no two hold it, and soon the switch decides.
#[test]
fn a_lock_that_never_rests_becomes_the_switchs() {
    // Nothing is lost, so what is on its way is soon over.
    let short: Adjust =
        |config| (config.life, config.hold) = (Duration::from_us(300), Duration::from_us(250));
    let mut run = Run::with(3, short);
    let (mut holder, mut acquired, mut middle) = (None, 0, None);
    while acquired < 300 {
        for who in (0..run.clients.len()).filter(|who| run.clients[*who].open == 0).collect::<Vec<_>>() {
            let last = run.last_of(who);
            let was_cas = last.is_some_and(|op| matches!(op.call, Call::Cas { .. }));
            if was_cas && last.is_some_and(|op| op.returned.is_some_and(|(_, was)| was == 0)) {
                assert_eq!(holder, Some(who));
                (holder, acquired) = (None, acquired + 1);
                run.post(who, 0, Call::Write(0));
            } else {
                run.post(who, 0, Call::Cas { compare: 0, swap: who as u64 + 1 });
            }
            run.latest.insert(who, run.history[&0].len() - 1);
        }
        if acquired == 150 && middle.is_none() {
            middle = Some(run.rack.switch.counters().clone());
        }
        assert!(run.rack.advance(run.rack.w.now + Duration::from_ms(10)), "somebody waits for ever");
        run.poll();
        for who in 0..run.clients.len() {
            let granted = run.last_of(who).is_some_and(|op| {
                matches!(op.call, Call::Cas { .. }) && op.returned.is_some_and(|(_, was)| was == 0)
            });
            if granted && run.clients[who].open == 0 && holder != Some(who) {
                assert_eq!(holder, None, "two hold the lock");
                holder = Some(who);
            }
        }
    }
    let (now, then) = (run.rack.switch.counters(), middle.unwrap());
    let since = |counter| now.get(counter) - then.get(counter);
    let converted = since(Counter::CasGranted) + since(Counter::CasRefused);
    let passed = since(Counter::AtomicsPassed);
    println!("{converted} converted, {passed} passed; {} learned", now.get(Counter::LearnedByStore));
    assert!(converted > 99 * passed && converted >= 150, "{converted} converted, {passed} passed");
}

/// Restarts the switch under load; whether requests were on their way, and what the oracle says.
fn restart_under_load(seed: u64, adjust: Adjust) -> (bool, Result<(), String>) {
    under_load(seed, adjust, |run| {
        run.counters.push(run.rack.switch.counters().clone());
        run.before = run.trace();
        let again = switch(&run.rack.w, adjust);
        run.rack.restart(again);
    })
}

/// Does something to the switch under load; whether requests were on their way, and what the oracle says.
fn under_load(seed: u64, adjust: Adjust, disturb: impl Fn(&mut Run)) -> (bool, Result<(), String>) {
    let mut run = Run::with(seed, adjust);
    run.warm_up();
    run.rack.chances = chances(seed);
    run.work(60, 3);
    // Requests are on their way, and the switch forgets all.
    for who in 0..run.clients.len() {
        if !run.clients[who].failed {
            let (word, call) = (run.rng.u64(..WORDS), run.random_call());
            run.post(who, word, call);
        }
    }
    let steps = run.rng.usize(4..30);
    for _ in 0..steps {
        run.rack.advance(run.rack.w.now + Duration::from_us(50));
    }
    run.poll();
    let under_load = !run.open.is_empty();
    disturb(&mut run);
    run.work(50, 2);
    run.rack.chances = Chances::default();
    (under_load, run.check())
}

#[test]
fn a_restarted_switch_gives_no_wrong_value() {
    let mut restarted_under_load = 0;
    for seed in seeds(100) {
        let (under_load, judged) = restart_under_load(seed, |_| {});
        judged.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        restarted_under_load += u64::from(under_load);
    }
    println!("{restarted_under_load} restarts met requests on their way");
    assert!(restarted_under_load > 0, "no restart met a request");
}

/// What came of other rows in the place of the one that runs.
#[derive(Default)]
struct Reloads {
    /// Requests were on their way.
    met: u64,
    /// The program awaited answers, and so could not go.
    could_not_go: u64,
    /// Of these, times that it stayed with what it knew; else another one began.
    kept: u64,
    /// Of these, times that it was told something else as it stayed.
    changed: u64,
}

/// What a program may be told while it runs: other times and more room, and for a time one word less.
fn told(rng: &mut fastrand::Rng, was: CasConfig, first: u64) -> CasConfig {
    CasConfig {
        words_max: was.words_max + rng.usize(..9),
        connections_max: was.connections_max + rng.usize(..9),
        hold: Duration::from_us(150 + rng.u64(..200)),
        life: LIFE + Duration::from_ms(rng.u64(..9)),
        flight: was.flight + Duration::from_us(rng.u64(..9)),
        words: if rng.bool() { WordRange::Any } else { WordRange::Range { va: first, len: 8 } },
        ..was
    }
}

/// Gives the switch other rows under load: its program stays where others come and go around it, may be told
/// something else as it stays, or another one begins.
fn reload_under_load(seed: u64, adjust: Adjust, reloads: &mut Reloads) -> Result<(), String> {
    let counted = std::cell::Cell::new((0, 0, 0));
    let (is_under_load, judged) = under_load(seed, adjust, |run| {
        for _ in 0..3 {
            let (mut row, programs) = (Vec::new(), run.rack.switch.programs());
            let place = programs.iter().position(|program| program.server().is_some()).unwrap();
            let Program::CasToWrite(cas) = &programs[place] else { unreachable!() };
            let was = *cas.config();
            let config = CasConfig { words_max: 64 + run.rng.usize(..9), ..was };
            let (is_kept, is_changed) = (config == was || run.rng.bool(), run.rng.bool());
            row.push(match is_kept {
                true if is_changed => {
                    let config = told(&mut run.rng, was, run.server.at(0).0);
                    Next::Changed(place, ProgramConfig::CasToWrite(config))
                }
                true => Next::Kept(place),
                false => Next::New(ProgramConfig::CasToWrite(config)),
            });
            let ecn = MarkConfig { above: None, every: NonZeroU32::new(2) };
            for _ in 0..run.rng.usize(..3) {
                row.insert(run.rng.usize(..=row.len()), Next::New(ProgramConfig::Ecn(ecn)));
            }
            let now = run.rack.w.now;
            let could_not_go = run.rack.switch.reload(now, &[], 4096).is_err();
            if !could_not_go {
                // It has gone, and another one begins.
                row = vec![Next::New(ProgramConfig::CasToWrite(config))];
            }
            run.rack.switch.reload(now, &row, 4096).unwrap();
            let (kept, changed, all) = counted.get();
            counted.set((
                kept + u64::from(could_not_go && is_kept),
                changed + u64::from(could_not_go && is_kept && is_changed),
                all + u64::from(could_not_go),
            ));
            // At once, so that they meet what is on its way.
            for who in 0..run.clients.len() {
                if !run.clients[who].failed && run.clients[who].open < 2 {
                    let (word, call) = (run.rng.u64(..WORDS), run.random_call());
                    run.post(who, word, call);
                }
            }
            for _ in 0..run.rng.usize(..20) {
                run.rack.advance(run.rack.w.now + Duration::from_us(50));
            }
            run.poll();
        }
    });
    reloads.met += u64::from(is_under_load);
    reloads.kept += counted.get().0;
    reloads.changed += counted.get().1;
    reloads.could_not_go += counted.get().2;
    judged
}

#[test]
fn a_switch_that_is_reloaded_gives_no_wrong_value() {
    let mut reloads = Reloads::default();
    for seed in seeds(300) {
        reload_under_load(seed, |_| {}, &mut reloads).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    let Reloads { met, could_not_go, kept, changed } = reloads;
    println!(
        "{met} met requests on their way; {could_not_go} times the program could not go, {kept} it stayed, \
         {changed} of these told something else"
    );
    assert!(met > 0 && changed > 0 && kept > changed && could_not_go > kept);
}

/// A program that begins anew must be as one of a switch that starts: it waits, and believes nobody.
#[test]
fn a_reload_that_begins_at_once_is_found() {
    let hasty: Adjust = |config| config.flight = Duration::from_ps(1);
    let found = (0..1000).find(|seed| reload_under_load(*seed, hasty, &mut Reloads::default()).is_err());
    println!("seed {found:?}");
    assert!(found.is_some());
}

/// What another instance has converted must have left the path before anything changes a word again: with a
/// switch that does not wait for that, the oracle finds a lost change.
#[test]
fn a_restart_that_does_not_wait_is_found() {
    let found = (0..1000)
        .find(|seed| restart_under_load(*seed, |config| config.flight = Duration::from_ps(1)).1.is_err());
    println!("seed {found:?}");
    assert!(found.is_some());
}

/// A payload in the wrong byte order is another value.
#[test]
fn a_wrong_byte_order_is_found() {
    let mut run = Run::with(1, |config| config.byte_order = ByteOrder::Big);
    run.warm_up();
    run.work(100, 1);
    assert!(run.check().is_err());
}

/// The oracle sees a wrong answer: what it finds above means something.
#[test]
fn a_wrong_original_is_found() {
    let found = (0..5).filter(|seed| {
        let mut run = Run::new(*seed);
        run.warm_up();
        let mut count = 0;
        run.rack.meddle = Some(Box::new(move |bytes| {
            let mut view = adverb_wire::FrameMut::new(bytes).unwrap();
            let original = view.packet().atomic_original;
            if view.set_atomic_original(original + 1).is_ok() {
                count += 1;
                match count % 10 {
                    0 => view.refresh_icrc(),
                    _ => view.set_atomic_original(original).unwrap(),
                }
            }
        }));
        run.work(120, 2);
        run.check().is_err()
    });
    assert_eq!(found.count(), 5);
}
