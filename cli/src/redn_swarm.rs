//! `adverb swarm --redn`: random programs of the language, compiled, run in the NICs of random fabrics under
//! faults, and compared with an interpreter that knows no RDMA.

use adverb_rdma::{Duration, Rdma};
use adverb_redn::language::coverage::Coverage;
use adverb_redn::language::lower::{Bug, Options};
use adverb_redn::language::random::{LAST, program};
use adverb_redn::language::{Compiled, File, compile, parse};
use adverb_redn::trial::{Asked, Served, ask_once, differences, interpreted, serve_once};
use adverb_sim::Config;
use adverb_sim::host::hardware::{Profile, profiles};
use adverb_sim::program::{Doing, Mortal, Start};
use adverb_sim::swarm::programs::{Made, Run, System};
use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::rc::Rc;

/// Programs in NICs.
pub const REDN: System = System {
    name: "redn",
    about: "random programs in NICs, compared with an interpreter that knows no RDMA",
    bugs: &BUGS,
    one_rma: false,
    make,
    switch: None,
    tune,
};

/// Names and descriptions of the compiler's mistakes.
const BUGS: [(&str, &str); Bug::ALL.len()] = {
    let mut bugs = [("", ""); Bug::ALL.len()];
    let mut at = 0;
    while at < bugs.len() {
        bugs[at] = (Bug::ALL[at].0, Bug::ALL[at].2);
        at += 1;
    }
    bugs
};

/// Virtual time that a program may take, faults and stops included.
const PATIENCE: Duration = Duration::from_ms(100_000);

thread_local! {
    /// What the programs of the seed that this thread ran last had in them.
    static COVERED: RefCell<Coverage> = RefCell::default();
    /// Whether they are shown as they are made.
    static SHOWN: Cell<bool> = const { Cell::new(false) };
}

/// What the last seed's programs had in them, if they did what they should.
pub fn covered() -> Coverage {
    COVERED.take()
}

/// From now on programs of this thread's seeds are printed before they run.
pub fn show_programs() {
    SHOWN.set(true);
}

/// A program, and what was seen of its run.
struct Pair {
    text: String,
    file: File,
    compiled: Compiled,
    served: RefCell<Option<Served>>,
    asked: RefCell<Option<Asked>>,
}

/// One program or two, each with a server and a client of its own; NICs run several chains at once.
fn make(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let bug = bug.and_then(Bug::by_name);
    let (mut programs, mut pairs, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..if rng.u32(0..4) == 0 { 2 } else { 1 } {
        let text = program(rng.u64(..));
        if SHOWN.get() {
            // Whether stdout is still open is told by the trace behind it.
            let mut out = std::io::stdout();
            let _ = text.lines().try_for_each(|line| writeln!(out, "program {n}: {line}"));
        }
        let made = parse(&text).and_then(|file| {
            let compiled = compile(&file, Options { finish: true, bug })?;
            Ok((file, compiled))
        });
        let (server, client) = (rng.u32(0..hosts), rng.u32(0..hosts));
        let (file, compiled) = match made {
            Ok(made) => made,
            Err(error) => {
                refused.push(format!("program {n} is refused: {error}\n{text}"));
                continue;
            }
        };
        let (served, asked) = Default::default();
        let pair = Rc::new(Pair { text, file, compiled, served, asked });
        pairs.push(pair.clone());
        programs.extend(starts(n, &pair, server, client));
    }
    let judge = move |run: &Run<'_>| {
        let mut out = refused.clone();
        let mut covered = Coverage::default();
        for (n, pair) in pairs.iter().enumerate() {
            out.append(&mut judge(n, pair, run, &mut covered));
        }
        if out.is_empty() {
            COVERED.set(covered);
        }
        out
    };
    Made { programs, judge: Box::new(judge), settled: |_| true }
}

/// A program's server, and its client.
fn starts(n: u32, pair: &Rc<Pair>, server: u32, client: u32) -> [Start; 2] {
    let name = format!("redn {n}");
    let (copy, at) = (pair.clone(), name.clone());
    let serve = move |rdma: Rdma| {
        let (pair, name) = (copy.clone(), at.clone());
        async move {
            let keep = |served| *pair.served.borrow_mut() = Some(served);
            serve_once(&rdma, &name, pair.compiled.clone(), PATIENCE, keep).await
        }
    };
    let copy = pair.clone();
    let ask = move |rdma: Rdma| {
        let (pair, name) = (copy.clone(), name.clone());
        async move {
            let what = (&pair.file, &pair.compiled);
            let asked = ask_once(&rdma, &name, what, Some(LAST), PATIENCE).await?;
            *pair.asked.borrow_mut() = Some(asked);
            Ok::<(), String>(())
        }
    };
    [
        Start::new(format!("server {n}"), server, serve).mortal(Mortal::Never),
        Start::new(format!("client {n}"), client, ask).mortal(Mortal::Never),
    ]
}

/// What is wrong with a program's run, and the program.
fn judge(n: usize, pair: &Pair, run: &Run<'_>, covered: &mut Coverage) -> Vec<String> {
    let mut wrong = Vec::new();
    for (who, end) in ["server", "client"].iter().zip(&run.programs[2 * n..]) {
        if let (Doing::Ended(Err(why)), _) = end {
            wrong.push(format!("{who} {n}: {why}"));
        }
    }
    match (&*pair.served.borrow(), &*pair.asked.borrow()) {
        (Some(served), Some(asked)) => {
            let said = interpreted(&pair.file, served, asked);
            wrong.append(&mut differences(&said, served, asked));
            covered.add(&Coverage::of(&pair.file.program, &pair.compiled, &said));
        }
        (None, _) => wrong.push("the program did not end".to_owned()),
        (_, None) => wrong.push("its client waits for a reply".to_owned()),
    }
    if !wrong.is_empty() {
        wrong.push(format!("of program {n}:\n{}", pair.text));
    }
    wrong
}

/// NICs whose processing units take random times, and that prefetch 1 to 64 WQEs. Connections do not give up:
/// whatever the faults, each program has to come to its end.
fn tune(rng: &mut fastrand::Rng, config: &mut Config) {
    config.transport.retry_forever = true;
    let own = config.hardware;
    config.hardware = match rng.u32(0..6) {
        0 => Profile::NEUTRAL,
        1 => own,
        2 => profiles::PROFILES[rng.usize(0..profiles::PROFILES.len())].1,
        _ => units(rng),
    };
    if rng.bool() {
        config.transport.prefetch = Some([1, 2, 3, 4, 8, 16, 64][rng.usize(0..7)]);
    }
}

fn units(rng: &mut fastrand::Rng) -> Profile {
    let mut some = |most: u64| if rng.bool() { rng.u64(0..most) } else { 0 };
    Profile {
        doorbell: some(600_000),
        cross_start: some(300_000),
        cross_load: some(1_000_000),
        fetch: some(800_000),
        fetch_first: 1 + some(64),
        fetch_batch: 1 + some(64),
        units: some(9),
        execute: some(300_000),
        wait: some(50_000),
        enable: some(100_000),
        pcie_rate: some(200) * 1_000_000_000,
        pcie_read: some(600_000),
        pcie_write: some(600_000),
        responder: some(200_000),
        read_turn: some(600_000),
        calc: some(300_000),
        scatter: some(50_000),
        atomic_slots: some(3),
        atomic: some(300_000),
        atomic_turn: some(600_000),
        completion: some(500_000),
        ..Profile::NEUTRAL
    }
}
