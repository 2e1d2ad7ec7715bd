//! The programs of `apps` by the roles that a scenario's `[programs]` gives them, with the keys of each.
//! `shared` has those that a switch's programs are made for: locks, chains, the tree.

mod shared;

use crate::systems::{all_taken, judge_catalog, judge_lock, judge_queue, judge_steps, judge_words};
use adverb_apps::words::{Ask, Step};
use adverb_apps::{catalog, lock, queue, words};
use adverb_rdma::{Connect, Duration, Rdma};
use adverb_sim::Error;
use adverb_sim::program::Start;
use adverb_sim::scenario::{Cast, Role};
use adverb_sim::swarm::programs::Made;
use adverb_sim::units::parse_time;
use std::ops::RangeInclusive;

/// Makes the programs of a scenario.
pub fn make(cast: &Cast) -> Result<Made, Error> {
    match cast.system.as_str() {
        "lock" => make_lock(cast),
        "queue" => make_queue(cast),
        "catalog" => make_catalog(cast),
        "words" => make_words(cast),
        "steps" => make_steps(cast),
        "locks" => shared::make_locks(cast),
        "chain" => shared::make_chain(cast),
        "tree" => shared::make_tree(cast),
        other => {
            let known = "lock, locks, queue, catalog, chain, tree, words, steps";
            let why = format!("`{other}` is not one of {known}");
            Err(Error::new("programs.system", why))
        }
    }
}

/// The keys of a role, as they are asked for: what nobody has asked for is refused.
struct Keys<'a> {
    role: &'a Role,
    asked: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    fn of(role: &'a Role) -> Keys<'a> {
        Keys { role, asked: Vec::new() }
    }

    fn place(&self, key: &str) -> String {
        format!("{}.{key}", self.role.place)
    }

    fn number(&mut self, key: &'static str, absent: u64, range: RangeInclusive<u64>) -> Result<u64, Error> {
        self.asked.push(key);
        let Some(value) = self.role.keys.get(key) else { return Ok(absent) };
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            Error::new(self.place(key), format!("is not a number from {range:?}").replace("..=", " to "))
        })
    }

    fn time(&mut self, key: &'static str, absent: Duration) -> Result<Duration, Error> {
        self.asked.push(key);
        let Some(value) = self.role.keys.get(key) else { return Ok(absent) };
        let text = value.as_str().ok_or_else(|| "is not text such as \"1ms\"".to_owned());
        let time = text.and_then(parse_time).map_err(|why| Error::new(self.place(key), why))?;
        if time == Duration::ZERO {
            return Err(Error::new(self.place(key), "is zero; give a time such as \"1ms\""));
        }
        Ok(time)
    }

    /// A time that may be absent, which is none.
    fn time_or_none(&mut self, key: &'static str) -> Result<Duration, Error> {
        self.time(key, Duration::ZERO)
    }

    fn is(&mut self, key: &'static str) -> Result<bool, Error> {
        self.asked.push(key);
        let Some(value) = self.role.keys.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| Error::new(self.place(key), "is not true or false"))
    }

    /// What a client does step by step, each of them text such as `example`.
    fn steps<S>(
        &mut self,
        key: &'static str,
        example: &str,
        step: impl Fn(&str) -> Result<S, String>,
    ) -> Result<Vec<S>, Error> {
        self.asked.push(key);
        let texts = self.role.keys.get(key).and_then(|value| value.as_array()).map_or(&[][..], |array| array);
        let steps = texts.iter().map(|text| text.as_str().ok_or("is not text".to_owned()).and_then(&step));
        let steps = steps
            .enumerate()
            .map(|(n, step)| step.map_err(|why| Error::new(self.place(&format!("{key}[{n}]")), why)));
        let steps: Vec<S> = steps.collect::<Result<_, _>>()?;
        match steps.is_empty() {
            true => Err(Error::new(self.place(key), format!("is a list of texts such as \"{example}\""))),
            false => Ok(steps),
        }
    }

    /// How the program's connections give up: after 7 ms, unless it says something else.
    fn connect(&mut self) -> Result<Connect, Error> {
        Ok(Connect { timeout: self.number("timeout", 8, 1..=20)? as u8, ..Connect::default() })
    }

    fn end(self) -> Result<(), Error> {
        match self.role.keys.keys().find(|key| !self.asked.contains(&key.as_str())) {
            Some(key) => {
                let why = format!("is no key of `{}`, which has {}", self.role.role, self.asked.join(", "));
                Err(Error::new(self.place(key), why))
            }
            None => Ok(()),
        }
    }
}

/// The one program that others need, which stands first.
fn first<'a>(cast: &'a Cast, role: &str) -> Result<&'a Role, Error> {
    let count = cast.roles.iter().filter(|other| other.role == role).count();
    match cast.roles.first() {
        Some(first) if first.role == role && count == 1 => Ok(first),
        _ => {
            let why =
                format!("system `{}` has one program with role `{role}`, which stands first", cast.system);
            Err(Error::new("programs.run", why))
        }
    }
}

fn no_such_role(role: &Role, known: &str) -> Error {
    Error::new(format!("{}.role", role.place), format!("`{}` is not one of {known}", role.role))
}

fn bug<B>(cast: &Cast, none: B, name: &str, bug: B) -> Result<B, Error> {
    match cast.bug.as_deref() {
        None => Ok(none),
        Some(asked) if asked == name => Ok(bug),
        Some(other) => Err(Error::new("programs.bug", format!("`{other}` is not one of {name}"))),
    }
}

fn at(role: &Role, start: Start) -> Start {
    Start { at: role.start_ps, ..start }
}

fn make_lock(cast: &Cast) -> Result<Made, Error> {
    let bug = bug(cast, lock::Bug::None, "early-release", lock::Bug::EarlyRelease)?;
    let home = first(cast, "serve")?;
    let mut keys = Keys::of(home);
    let lease = keys.time("lease", Duration::from_ms(1))?;
    let config = lock::HomeConfig { lease, connect: keys.connect()? };
    keys.end()?;
    let serve = move |rdma: Rdma| async move { lock::serve(&rdma, "lock", &config).await };
    let mut programs = vec![at(home, Start::new(home.name.clone(), home.host, serve).serving())];
    for role in &cast.roles[1..] {
        if role.role != "work" {
            return Err(no_such_role(role, "serve, work"));
        }
        let mut keys = Keys::of(role);
        let rounds = keys.number("rounds", 3, 1..=100_000)? as u32;
        let values = keys.number("values", 4, 1..=1 << 32)?;
        let work = lock::Work { rounds, values, connect: keys.connect()?, bug };
        keys.end()?;
        let run = move |rdma: Rdma| async move { lock::work(&rdma, "lock", &work).await };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    Ok(Made { programs, judge: Box::new(judge_lock), settled: |_| true })
}

fn make_queue(cast: &Cast) -> Result<Made, Error> {
    let bug = bug(cast, queue::Bug::None, "torn-header", queue::Bug::TornHeader)?;
    let consumer = first(cast, "consume")?;
    let mut keys = Keys::of(consumer);
    let slots = keys.number("slots", 8, 1..=1024)? as u32;
    let item_max = keys.number("item-max", 1000, 8..=65_536)? as u32;
    let patience = keys.time("patience", Duration::from_ms(5))?;
    let config = queue::QueueConfig { slots, item_max, patience, connect: keys.connect()?, bug };
    keys.end()?;
    let consume =
        move |rdma: Rdma| async move { queue::consume(&rdma, "queue", config, None).await.map(drop) };
    let mut programs =
        vec![at(consumer, Start::new(consumer.name.clone(), consumer.host, consume).serving())];
    for role in &cast.roles[1..] {
        if role.role != "produce" {
            return Err(no_such_role(role, "consume, produce"));
        }
        let mut keys = Keys::of(role);
        let items = keys.number("items", 10, 1..=100_000)? as u32;
        let values = keys.number("values", 4, 1..=1 << 32)?;
        let len_max = keys.number("len-max", item_max.into(), 8..=item_max.into())? as u32;
        let work = queue::Work { items, values, len_max, connect: keys.connect()?, bug };
        keys.end()?;
        let run = move |rdma: Rdma| async move { queue::produce(&rdma, "queue", &work).await };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    let judge = move |run: &adverb_sim::swarm::programs::Run<'_>| judge_queue(run, slots as usize);
    Ok(Made { programs, judge: Box::new(judge), settled: all_taken })
}

fn make_catalog(cast: &Cast) -> Result<Made, Error> {
    let bug = bug(cast, catalog::Bug::None, "early-head", catalog::Bug::EarlyHead)?;
    let home = first(cast, "serve")?;
    let mut keys = Keys::of(home);
    let connect = keys.connect()?;
    keys.end()?;
    let serve =
        move |rdma: Rdma| async move { catalog::serve(&rdma, "catalog", &connect, None).await.map(drop) };
    let mut programs = vec![at(home, Start::new(home.name.clone(), home.host, serve).serving())];
    for role in &cast.roles[1..] {
        if role.role != "work" {
            return Err(no_such_role(role, "serve, work"));
        }
        let mut keys = Keys::of(role);
        let rounds = keys.number("rounds", 10, 1..=100_000)? as u32;
        let values = keys.number("values", 100, 1..=1 << 32)?;
        let work = catalog::Work { rounds, values, connect: keys.connect()?, bug };
        keys.end()?;
        let run = move |rdma: Rdma| async move { catalog::work(&rdma, "catalog", &work).await };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    Ok(Made { programs, judge: Box::new(judge_catalog), settled: |_| true })
}

fn make_words(cast: &Cast) -> Result<Made, Error> {
    if let Some(bug) = &cast.bug {
        return Err(Error::new("programs.bug", format!("`{bug}`: these programs have none; remove it")));
    }
    let home = first(cast, "serve")?;
    let mut keys = Keys::of(home);
    let words = keys.number("words", 1, 1..=words::WORDS_MAX.into())? as u32;
    let connect = keys.connect()?;
    keys.end()?;
    let serve = move |rdma: Rdma| async move { words::serve(&rdma, "words", words, &connect).await };
    let mut programs = vec![at(home, Start::new(home.name.clone(), home.host, serve).serving())];
    for role in &cast.roles[1..] {
        if role.role != "work" {
            return Err(no_such_role(role, "serve, work"));
        }
        let mut keys = Keys::of(role);
        let work = words::Work {
            operations: keys.number("operations", 20, 1..=100_000)? as u32,
            words,
            values: keys.number("values", 3, 1..=1 << 32)?,
            depth: keys.number("depth", 1, 1..=words::DEPTH_MAX.into())? as u32,
            begins: 2,
            settle: keys.time("settle", Duration::from_ms(1001))?,
            mix: words::Mix::All,
            halves: keys.number("halves", 0, 0..=100)?,
            connect: keys.connect()?,
        };
        keys.end()?;
        let run = move |rdma: Rdma| async move { words::work(&rdma, "words", &work).await };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    Ok(Made { programs, judge: Box::new(judge_words), settled: |_| true })
}

fn make_steps(cast: &Cast) -> Result<Made, Error> {
    if let Some(bug) = &cast.bug {
        return Err(Error::new("programs.bug", format!("`{bug}`: these programs have none; remove it")));
    }
    let home = first(cast, "serve")?;
    let mut keys = Keys::of(home);
    let words = keys.number("words", 1, 1..=words::WORDS_MAX.into())? as u32;
    let connect = keys.connect()?;
    keys.end()?;
    let serve = move |rdma: Rdma| async move { words::serve(&rdma, "steps", words, &connect).await };
    let mut programs = vec![at(home, Start::new(home.name.clone(), home.host, serve).serving())];
    let mut may_fail = vec![false];
    for (who, role) in (0..).zip(&cast.roles[1..]) {
        if role.role != "client" {
            return Err(no_such_role(role, "serve, client"));
        }
        let mut keys = Keys::of(role);
        let (steps, connect) = (keys.steps("steps", "20ms: cas 0 0 1; read 1", step)?, keys.connect()?);
        may_fail.push(keys.is("may-fail")?);
        keys.end()?;
        if steps.iter().flat_map(|step| &step.list).any(|(word, ..)| *word >= words.into()) {
            let why = format!("name a word that is not there; there are {words}, from 0");
            return Err(Error::new(format!("{}.steps", role.place), why));
        }
        let run = move |rdma: Rdma| {
            let steps = steps.clone();
            async move { words::follow(&rdma, "steps", who, &connect, &steps).await }
        };
        programs.push(at(role, Start::new(role.name.clone(), role.host, run)));
    }
    let judge = move |run: &adverb_sim::swarm::programs::Run<'_>| judge_steps(run, &may_fail);
    Ok(Made { programs, judge: Box::new(judge), settled: |_| true })
}

/// A time, and requests that are posted together then.
fn step(text: &str) -> Result<Step, String> {
    let (at, requests) =
        text.split_once(':').ok_or("has no time before a colon, such as \"20ms: read 0\"")?;
    let list: Vec<_> = requests.split(';').map(request).collect::<Result<_, _>>()?;
    match list.len() <= words::DEPTH_MAX as usize {
        true => Ok(Step { at: parse_time(at.trim())?, list }),
        false => Err(format!("has more than {} requests", words::DEPTH_MAX)),
    }
}

/// A request for a word: `cas WORD COMPARE SWAP`, `add WORD MORE`, `read WORD`, `write WORD VALUE`; behind it
/// `wrong-key`, if it comes under a key that the home has not given.
fn request(text: &str) -> Result<(u64, Ask, bool), String> {
    let mut parts: Vec<&str> = text.split_whitespace().collect();
    let wrong = parts.pop_if(|last| *last == "wrong-key").is_some();
    let numbers = parts.iter().skip(1).map(|part| part.parse::<u64>());
    let numbers: Vec<u64> =
        numbers.collect::<Result<_, _>>().map_err(|e| format!("`{}`: {e}", text.trim()))?;
    let ask = match (parts.first().copied(), &numbers[..]) {
        (Some("cas"), [_, compare, swap]) => Ask::Cas(*compare, *swap),
        (Some("add"), [_, more]) => Ask::Add(*more),
        (Some("read"), [_]) => Ask::Read,
        (Some("write"), [_, value]) => Ask::Write(*value),
        _ => {
            let known = "cas WORD COMPARE SWAP, add WORD MORE, read WORD, write WORD VALUE";
            return Err(format!("`{}` is not one of {known}", text.trim()));
        }
    };
    Ok((numbers[0], ask, wrong))
}
