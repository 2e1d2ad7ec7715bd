//! A thousand networks with loss, doubling, reordering, damage, crashes, kills and a switch that is started
//! anew, each from its seed; and one of them step by step:
//!
//!     SEED=17 cargo test replay -- --nocapture
//!
//! With `BUG=same-epoch` the replay is of a switch that begins anew with the epoch of the one before it.

use adverb_rdma::seam::Note;
use adverb_rdma::{Access, Caps, Connect, Error, On, Qp, Rdma, Region, Remote};
use adverb_sim::program::{Doing, Noted, Start};
use adverb_sim::programmed::address_of;
use adverb_sim::swarm::programs::{Made, Run, System};
use adverb_switch::{Counter, Making, Own, OwnConfig, ProgramConfig};
use adverb_wire::Instant;
use own_switch::{COUNT_BITS, Sequencer, Told};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The server's host, at whose switch the program runs.
const SERVER: u32 = 0;
const BUG: &str = "same-epoch";

const NUMBERS: System = System {
    name: "sequencer",
    about: "numbers that a switch hands out",
    bugs: &[(BUG, "a switch that is started anew has the epoch of the one before it")],
    one_rma: false,
    make,
    switch: Some(programs),
    tune: |_, config| {
        // The program follows plain RC; the timeouts are those of the connections.
        config.transport.irn = None;
        config.transport.rto = None;
    },
};

/// What a switch's starts are told: the file of epochs, as it were.
#[derive(Debug)]
struct Starts {
    next: AtomicU64,
    is_broken: bool,
}

impl Making for Starts {
    fn name(&self) -> &'static str {
        "sequencer"
    }

    fn begin(&self, _now: Instant) -> Result<Box<dyn Own>, &'static str> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let epoch = if self.is_broken { 1 } else { next };
        Ok(Box::new(Sequencer::new(Told { server: address_of(SERVER), epoch })?))
    }
}

fn programs(_rng: &mut fastrand::Rng, bug: Option<&str>) -> Vec<ProgramConfig> {
    let starts = Starts { next: AtomicU64::new(1), is_broken: bug == Some(BUG) };
    vec![ProgramConfig::Own(OwnConfig::new(starts))]
}

/// A server, which believes that its word is what clients count up, and clients on other hosts.
fn make(rng: &mut fastrand::Rng, hosts: u32, _bug: Option<&str>) -> Made {
    let connect = Connect { timeout: rng.u8(5..=6), ..Connect::default() };
    let serve = move |rdma: Rdma| async move { serve(rdma, connect).await };
    let mut programs = vec![Start::new("home", SERVER, serve).serving()];
    for n in 0..rng.u32(2..=5) {
        let (count, many) = (rng.u32(20..60), rng.u64(1..=3));
        let client = move |rdma: Rdma| async move { take(rdma, count, many, connect).await };
        programs.push(Start::new(format!("client {n}"), rng.u32(1..hosts), client));
    }
    Made { programs, judge: Box::new(judge), settled: |_| true }
}

async fn serve(rdma: Rdma, connect: Connect) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let word = pd.region(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC).await?;
    let listener = rdma.listen("numbers").await?;
    // A connection lasts as long as its queue pair is kept.
    let mut clients = Vec::new();
    while rdma.until(&[On::Stop, On::Asked(&listener)], None).await? != Some(0) {
        let Some(asked) = listener.try_accept().await? else { continue };
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let line = asked.accept(&qp, &word.remote().to_bytes(), &connect).await?;
        clients.push((qp, line));
    }
    Ok(())
}

/// Takes so many times `many` numbers. When the connection fails it makes a new one: what it was about to
/// take is in doubt, which is noted.
async fn take(rdma: Rdma, count: u32, many: u64, connect: Connect) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let landing = pd.region(8, Access::LOCAL_WRITE).await?;
    let mut tried = 0;
    while tried < count {
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect("numbers", &[], &connect, None).await?;
        let word = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        while tried < count {
            tried += 1;
            match take_some(&rdma, &qp, &word, &landing, many).await {
                Ok(()) => {}
                Err(Error::Failed { .. }) => {
                    rdma.operation(1, "in doubt", &[]).end(&[]);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

async fn take_some(rdma: &Rdma, qp: &Qp, word: &Remote, landing: &Region, many: u64) -> Result<(), Error> {
    let operation = rdma.operation(1, "take", &[many]);
    let first = qp.fetch_add((word, 0), many, (landing, 0)).await?;
    operation.end(&[first]);
    Ok(())
}

/// Each number went to one client only. Of a program that was not killed, each taking has ended, or its
/// program was told that it is in doubt.
fn judge(run: &Run<'_>) -> Vec<String> {
    let mut failures = Vec::new();
    // By program, life and operation: how many numbers it wants.
    let mut open: BTreeMap<(u32, u32, u64), u64> = BTreeMap::new();
    // By first number: whose it is, and how many it stands for.
    let mut ranges: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
    let mut doubted: BTreeMap<u32, usize> = BTreeMap::new();
    for Noted { program, life, note, .. } in run.notes {
        match note {
            Note::Begin { operation, name: "take", arguments, .. } => {
                open.insert((*program, *life, *operation), arguments[0]);
            }
            Note::Begin { .. } => *doubted.entry(*program).or_default() += 1,
            Note::End { operation, results } => {
                let Some(many) = open.remove(&(*program, *life, *operation)) else { continue };
                let first = results[0];
                if first >> COUNT_BITS == 0 {
                    failures.push(format!("program {program} got {first:#x}, the server's own word"));
                }
                if let Some((other, _)) = ranges.insert(first, (*program, many)) {
                    failures.push(format!("{first:#x} was handed out to the programs {other} and {program}"));
                }
            }
            Note::Void { .. } | Note::Say(_) => {}
        }
    }
    for ((first, (whose, many)), (second, (other, _))) in ranges.iter().zip(ranges.iter().skip(1)) {
        if first + many > *second {
            failures.push(format!("{second:#x} is among {many} from {first:#x}: programs {whose}, {other}"));
        }
    }
    for (program, (doing, lives)) in (0..).zip(&run.programs) {
        let lost = open.keys().filter(|(whose, ..)| *whose == program).count();
        let told = doubted.get(&program).copied().unwrap_or(0);
        if matches!(doing, Doing::Ended(Ok(()))) && *lives == 1 && lost != told {
            failures.push(format!("program {program} ended; {lost} takings did not, it was told of {told}"));
        }
    }
    failures
}

/// How to see a seed step by step.
fn replay_line(seed: u64, bug: Option<&str>) -> String {
    let bug = bug.map_or(String::new(), |bug| format!("BUG={bug} "));
    format!("{bug}SEED={seed} cargo test replay -- --nocapture")
}

#[test]
fn a_thousand_seeds_pass() {
    let (mut killed, mut faults, mut answered, mut again) = (0, 0, 0, 0);
    for seed in 0..1_000 {
        let outcome = NUMBERS.run_seed(seed, None);
        let failures = outcome.failures.join("\n");
        assert!(failures.is_empty(), "seed {seed}: {failures}\nreplay: {}", replay_line(seed, None));
        killed += outcome.dead;
        faults += outcome.faults;
        answered += outcome.switch.get(Counter::Generated);
        again += outcome.restarts.all;
    }
    assert!(killed > 100 && faults > 1_000, "{killed} programs killed, {faults} packets lost or damaged");
    assert!(answered > 10_000 && again > 500, "{answered} answers of the switch, {again} times started anew");
    println!(
        "1000 seeds pass; {answered} answers of the switch, which was started anew {again} times; {killed} \
         programs killed, {faults} packets lost, damaged, doubled or dropped"
    );
    println!("replay: {}", replay_line(0, None));
}

#[test]
fn an_epoch_that_comes_twice_is_found() {
    let broken = |seed| NUMBERS.run_seed(seed, Some(BUG));
    let found = (0..1_000).map(broken).find(|outcome| !outcome.failures.is_empty());
    let found = found.expect("two clients that get the same number");
    assert!(found.failures.iter().any(|why| why.contains("handed out to") || why.contains("is among")));
    println!("seed {}: {}", found.seed, found.failures.join("\n"));
    println!("replay: {}", replay_line(found.seed, Some(BUG)));
}

#[test]
fn replay() {
    let Ok(seed) = std::env::var("SEED") else { return };
    let bug = std::env::var("BUG").ok();
    let seed = seed.parse().expect("SEED is a number");
    let outcome = NUMBERS.replay(seed, bug.as_deref(), &mut |line| println!("{line}"));
    let failures = outcome.failures.join("\n");
    println!("seed {seed}: {}", if failures.is_empty() { "nothing wrong" } else { &failures });
}
