//! Programs that share a home's memory, with a switch before it or without: locks, chains, the tree. Each has
//! a home (`serve`) and clients (`work`), as in the swarms, whose oracles judge them here, too.

use super::{Keys, at, first, no_such_role};
use crate::systems::{CHAIN_VALUE_MAX, judge_chain, judge_locks};
use crate::tree_swarm;
use adverb_apps::chain::Ask;
use adverb_apps::{chain, locks, tree};
use adverb_rdma::{Duration, Rdma};
use adverb_sim::Error;
use adverb_sim::program::Start;
use adverb_sim::scenario::{Cast, Role};
use adverb_sim::swarm::programs::Made;
use adverb_sim::units::parse_time;

/// The mistake that a scenario asks for, of those that there are.
fn bug<B: Copy>(cast: &Cast, none: B, known: &[(&str, B)]) -> Result<B, Error> {
    let Some(asked) = cast.bug.as_deref() else { return Ok(none) };
    known.iter().find(|(name, _)| *name == asked).map(|(_, bug)| *bug).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Error::new("programs.bug", format!("`{asked}` is not one of {}", names.join(", ")))
    })
}

/// The clients of a system, whose only role is `work`.
fn clients(cast: &Cast) -> Result<&[Role], Error> {
    match cast.roles[1..].iter().find(|role| role.role != "work") {
        Some(other) => Err(no_such_role(other, "serve, work")),
        None => Ok(&cast.roles[1..]),
    }
}

/// How a client releases: by a WRITE, unless it says otherwise.
fn release(keys: &mut Keys<'_>) -> Result<locks::Release, Error> {
    let by_cas = keys.is("release-by-cas")?;
    Ok(if by_cas { locks::Release::CompareSwap } else { locks::Release::Write })
}

pub fn make_locks(cast: &Cast) -> Result<Made, Error> {
    use locks::Bug;
    let known =
        [("early-release", Bug::EarlyRelease), ("no-fence", Bug::NoFence), ("no-recovery", Bug::NoRecovery)];
    let bug = bug(cast, Bug::None, &known)?;
    let home = first(cast, "serve")?;
    let mut keys = Keys::of(home);
    let config = locks::HomeConfig {
        locks: keys.number("locks", 1, 1..=locks::LOCKS_MAX.into())? as u32,
        value_max: keys.number("value-max", 64, 8..=locks::VALUE_MAX.into())? as u32,
        lease: keys.time("lease", Duration::from_ms(2))?,
        connect: keys.connect()?,
    };
    keys.end()?;
    let serve = move |rdma: Rdma| async move { locks::serve(&rdma, "locks", &config).await };
    let mut programs = vec![at(home, Start::new(home.name.clone(), home.host, serve).serving())];
    for role in clients(cast)? {
        let mut keys = Keys::of(role);
        let work = locks::Work {
            rounds: keys.number("rounds", 5, 1..=100_000)? as u32,
            locks: config.locks,
            values: keys.number("values", 4, 1..=1 << 32)?,
            len: keys.number("len", 8, 8..=config.value_max.into())? as u32,
            settle: keys.time_or_none("settle")?,
            release: release(&mut keys)?,
            connect: keys.connect()?,
            bug,
        };
        keys.end()?;
        let run = move |rdma: Rdma| async move { locks::work(&rdma, "locks", &work).await };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    Ok(Made { programs, judge: Box::new(judge_locks), settled: |_| true })
}

pub fn make_chain(cast: &Cast) -> Result<Made, Error> {
    use chain::Bug;
    let known =
        [("unlinked-ack", Bug::UnlinkedAck), ("torn-entry", Bug::TornEntry), ("stale-tail", Bug::StaleTail)];
    let bug = bug(cast, Bug::None, &known)?;
    let home = first(cast, "serve")?;
    let mut keys = Keys::of(home);
    let config = chain::HomeConfig {
        keys: keys.number("keys", 1, 1..=chain::KEYS_MAX.into())? as u32,
        entries: keys.number("entries", 4096, 0..=1 << 20)? as u32,
        share: keys.number("share", 16, 1..=1 << 16)? as u32,
        value_max: keys.number("value-max", 80, 8..=CHAIN_VALUE_MAX.into())? as u32,
        connect: keys.connect()?,
    };
    keys.end()?;
    let serve = move |rdma: Rdma| async move { chain::serve(&rdma, "chain", &config).await };
    let mut programs = vec![at(home, Start::new(home.name.clone(), home.host, serve).serving())];
    for role in &cast.roles[1..] {
        let mut keys = Keys::of(role);
        if role.role == "client" {
            programs.push(at(role, chain_client(role, keys, config.keys)?));
            continue;
        }
        if role.role != "work" {
            return Err(no_such_role(role, "serve, work, client"));
        }
        let work = chain::Work {
            rounds: keys.number("rounds", 20, 1..=100_000)? as u32,
            keys: config.keys,
            values: keys.number("values", 4, 1..=1 << 32)?,
            len: keys.number("len", 8, 8..=config.value_max.into())? as u32,
            pause: keys.time_or_none("pause")?,
            connect: keys.connect()?,
            bug,
        };
        keys.end()?;
        let run = move |rdma: Rdma| async move { chain::work(&rdma, "chain", &work).await };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    Ok(Made { programs, judge: Box::new(judge_chain), settled: |_| true })
}

/// A client of chains that follows steps.
fn chain_client(role: &Role, mut keys: Keys<'_>, known: u32) -> Result<Start, Error> {
    let (steps, connect) = (keys.steps("steps", "20ms: put 0 7", chain_step)?, keys.connect()?);
    keys.end()?;
    let strange = |step: &chain::Step| {
        let (Ask::Put(key, _) | Ask::Get(key) | Ask::Along(key)) = step.ask;
        key >= known
    };
    if steps.iter().any(strange) {
        let why = format!("name a key that is not there; there are {known}, from 0");
        return Err(Error::new(format!("{}.steps", role.place), why));
    }
    let run = move |rdma: Rdma| {
        let steps = steps.clone();
        async move { chain::follow(&rdma, "chain", &connect, &steps).await }
    };
    Ok(Start::new(role.name.clone(), role.host, run))
}

/// A time, and what a client of chains does then: `put KEY VALUE`, `get KEY`, `get-along KEY`.
fn chain_step(text: &str) -> Result<chain::Step, String> {
    let (at, asked) = text.split_once(':').ok_or("has no time before a colon, such as \"20ms: get 0\"")?;
    let parts: Vec<&str> = asked.split_whitespace().collect();
    let number = |part: &str| part.parse::<u64>().map_err(|e| format!("`{part}`: {e}"));
    let key = |part: &str| part.parse::<u32>().map_err(|e| format!("`{part}`: {e}"));
    let ask = match parts[..] {
        ["put", of, value] => Ask::Put(key(of)?, number(value)?),
        ["get", of] => Ask::Get(key(of)?),
        ["get-along", of] => Ask::Along(key(of)?),
        _ => return Err(format!("`{}` is not one of put KEY VALUE, get KEY, get-along KEY", asked.trim())),
    };
    Ok(chain::Step { at: parse_time(at.trim())?, ask })
}

pub fn make_tree(cast: &Cast) -> Result<Made, Error> {
    use tree::Bug;
    let known = [
        ("early-release", Bug::EarlyRelease),
        ("no-fence", Bug::NoFence),
        ("no-sibling", Bug::NoSibling),
        ("torn-entry", Bug::TornEntry),
    ];
    let bug = bug(cast, Bug::None, &known)?;
    let home = first(cast, "serve")?;
    let mut keys = Keys::of(home);
    let loaded = keys.number("keys", 20, 0..=1 << 16)?;
    let config = tree::HomeConfig {
        locks: keys.number("locks", 64, 1..=locks::LOCKS_MAX.into())? as u32,
        pages: keys.number("pages", 1024, 16..=1 << 16)?,
        fanout: keys.number("fanout", 4, tree::FANOUT_MIN.into()..=tree::ENTRIES as u64)? as u32,
        keys: (loaded, 1),
        lease: keys.time("lease", Duration::from_ms(2))?,
        connect: keys.connect()?,
    };
    keys.end()?;
    let serve = move |rdma: Rdma| async move { tree::serve(&rdma, "tree", &config).await };
    let mut programs = vec![at(home, Start::new(home.name.clone(), home.host, serve).serving())];
    for role in clients(cast)? {
        let mut keys = Keys::of(role);
        let range = keys.number("range", loaded.max(8) + 12, 3..=1 << 20)?;
        let work = tree::Work {
            rounds: keys.number("rounds", 20, 1..=100_000)? as u32,
            keys: range,
            hot: [0, range / 3, 2 * range / 3],
            heat: keys.number("heat", 30, 0..=100)?,
            values: keys.number("values", 4, 1..=1 << 32)?,
            settle: keys.time_or_none("settle")?,
            short_reads: keys.is("short-reads")?,
            release: release(&mut keys)?,
            connect: keys.connect()?,
            bug,
        };
        keys.end()?;
        let run = move |rdma: Rdma| async move { tree::work(&rdma, "tree", &work).await };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    Ok(Made { programs, judge: Box::new(tree_swarm::judge), settled: |_| true })
}
