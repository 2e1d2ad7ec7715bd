//! Walks of a tree by chains, beside the program that changes it, and a judgement of each.
//!
//! One program is the server: it writes the tree, a store at a time, and loads a chain for each get. Another
//! one gets keys: the chain replies a record, or that there is none. A record says its key and its version
//! and is whole or not, so that a walk that came into nodes that were used again is a miss, and never a wrong
//! value. Who misses calls: it asks the server's program, which knows what the tree holds.

use super::{LEVELS, Room, Store, Tree, Value};
use crate::chain::{Address, Memory};
use crate::language::lower::Options;
use crate::language::{self, Compiled, Data, compile, parse};
use crate::load::Loaded;
use crate::run::{Failure, admit, connect};
use adverb_rdma::record::{Record, hash, record_len};
use adverb_rdma::{Access, Asked, Connect, Duration, Error, On, Pd, Rdma, Region};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The program that walks: an example, whose data is not used here.
const PROGRAM: &str = include_str!("../../examples/programs/btree.redn");
/// Bytes of a record: a key and a serial number.
const RECORD: u64 = record_len(8, 8) as u64;
/// How long a client waits for a reply, and a server for a chain: on a host that has other work, too.
const PATIENCE: Duration = Duration::from_ms(3000);
/// What a client says that needs no more.
const LEAVES: &[u8] = b"!";

/// What a server and its clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Keys are 1 to this.
    pub keys: u32,
    /// Nodes of each level, entries and records that stand by before one is used again.
    pub spare: u32,
    /// Between two of the writer's stores while a chain walks.
    pub pace: Duration,
    /// Which keys are changed.
    pub seed: u64,
    /// On purpose: a client takes any record for its key's.
    pub careless: bool,
}

/// What the writer has done, for a judge of what others read: in one simulation, or in one process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// Keys, and the serial numbers of their values from then on.
    changes: Vec<(u64, Option<u64>)>,
    /// Changes whose last store has begun, and those whose last store is done.
    begun: usize,
    done: usize,
    /// Nodes that were split.
    pub splits: u32,
    /// Levels of the tree at most.
    pub levels: usize,
    /// Keys that found no room.
    pub refused: u32,
}

/// A history that another thread may have as well.
pub fn locked(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

impl History {
    /// Changes that were published.
    pub fn changes(&self) -> usize {
        self.done
    }

    /// Whether a key had this value when so many changes were done, or then until so many had begun.
    fn had(&self, key: u64, value: Option<u64>, from: usize, to: usize) -> bool {
        let of = |changes: &[(u64, Option<u64>)]| -> Vec<Option<u64>> {
            changes.iter().filter(|(other, _)| *other == key).map(|(_, value)| *value).collect()
        };
        let first = of(&self.changes[..from]).last().copied().flatten();
        value == first || of(&self.changes[from..to]).contains(&value)
    }
}

/// What came of gets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Gets that found the value.
    pub found: u32,
    /// Gets that found that there is none.
    pub absent: u32,
    /// Gets whose walk missed, or found a record of another key or a torn one: a call resolved them.
    pub called: u32,
    /// Of those the ones that found a record.
    pub torn: u32,
    /// From the message to the reply, for each get.
    pub took: Vec<Duration>,
    /// What is wrong.
    pub wrong: Vec<String>,
}

/// The program that walks. Its regions are given to it.
pub fn program(room: Room, values: u64) -> Result<Compiled, language::Error> {
    let mut file = parse(PROGRAM)?;
    let data = |name: &str, len| Data { name: name.to_owned(), len, items: Vec::new(), line: 1 };
    file.data = vec![data("tree", room.bytes()), data("values", values)];
    let mut compiled = compile(&file, Options { finish: true, bug: None })?;
    for (_, region) in &compiled.regions {
        compiled.chain.regions[usize::from(region.0)].memory = Memory::Given;
    }
    Ok(compiled)
}

impl Plan {
    /// The tree's room.
    pub fn room(&self) -> Room {
        Room::of(self.keys, self.spare)
    }

    /// Bytes of the records.
    pub fn values(&self) -> u64 {
        RECORD * u64::from(self.keys + 1 + self.spare)
    }
}

/// A store of the writer's.
enum Step {
    Value(Store),
    Tree(Store),
    /// The last one of a change, of this key to that value.
    Publish(Store, u64, Option<u64>),
}

struct Writer {
    tree: Tree,
    nodes: Region,
    values: Region,
    /// Places of records, the one that was freed first first.
    free: VecDeque<u64>,
    steps: VecDeque<Step>,
    serial: u64,
    random: u64,
    keys: u64,
    history: Arc<Mutex<History>>,
}

impl Writer {
    async fn new(pd: &Pd, plan: Plan, history: Arc<Mutex<History>>) -> Result<Writer, Error> {
        let nodes = pd.region(plan.room().bytes(), Access::LOCAL_WRITE | Access::REMOTE_READ).await?;
        let values = pd.region(plan.values(), Access::LOCAL_WRITE).await?;
        let (tree, begin) = Tree::new(nodes.addr(), plan.room());
        for Store { at, word } in begin {
            nodes.store(at, word).await?;
        }
        let free = (0..plan.values() / RECORD).map(|n| n * RECORD).collect();
        let (steps, random, keys) = (VecDeque::new(), plan.seed, u64::from(plan.keys));
        let mut this = Writer { tree, nodes, values, free, steps, serial: 0, random, keys, history };
        // Half of the keys, more or less.
        for _ in 0..keys {
            this.change();
            while !this.steps.is_empty() {
                this.step().await?;
            }
        }
        Ok(this)
    }

    /// The next random number.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        hash(self.random, b"writer")
    }

    /// Plans the next change.
    fn change(&mut self) {
        let key = self.next() % self.keys + 1;
        let (change, serial) = match self.next() % 3 {
            0 => (self.tree.remove(key), None),
            _ => {
                let Some(at) = self.free.pop_front() else { return };
                self.serial += 1;
                let record = Record {
                    version: self.serial,
                    hash: hash(0, &key.to_le_bytes()),
                    key: &key.to_le_bytes(),
                    value: &self.serial.to_le_bytes(),
                };
                let value = Value { addr: self.values.addr() + at, len: RECORD as u32 };
                let change = self.tree.insert(key, value);
                if change.is_ok() {
                    let mut bytes = [0; RECORD as usize];
                    record.emit(&mut bytes);
                    for (n, word) in (0u64..).zip(bytes.as_chunks::<8>().0) {
                        self.steps.push_back(Step::Value(Store {
                            at: at + 8 * n,
                            word: u64::from_ne_bytes(*word),
                        }));
                    }
                } else {
                    self.free.push_front(at);
                }
                (change, Some(self.serial))
            }
        };
        let mut history = locked(&self.history);
        history.levels = history.levels.max(self.tree.levels());
        let Ok(mut change) = change else {
            history.refused += 1;
            return;
        };
        history.splits += change.splits;
        if let Some(Value { addr, .. }) = change.before {
            self.free.push_back(addr - self.values.addr());
        }
        let last = change.stores.pop();
        self.steps.extend(change.stores.into_iter().map(Step::Tree));
        self.steps.extend(last.map(|last| Step::Publish(last, key, serial)));
    }

    /// Makes a store.
    async fn step(&mut self) -> Result<(), Error> {
        match self.steps.pop_front() {
            None => self.change(),
            Some(Step::Value(Store { at, word })) => self.values.store(at, word).await?,
            Some(Step::Tree(Store { at, word })) => self.nodes.store(at, word).await?,
            Some(Step::Publish(Store { at, word }, key, serial)) => {
                {
                    let mut history = locked(&self.history);
                    history.changes.push((key, serial));
                    history.begun += 1;
                }
                self.nodes.store(at, word).await?;
                locked(&self.history).done += 1;
            }
        }
        Ok(())
    }

    /// Answers a call: the key's record as it is.
    async fn answer(&self, asked: Asked) -> Result<(), Error> {
        let key = asked.attributes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let bytes = match self.published(key) {
            Some(Value { addr, len }) => self.values.read(addr - self.values.addr(), len as usize).await?,
            None => Vec::new(),
        };
        asked.reply(&bytes).await.map(drop)
    }

    /// What memory holds: a change that is planned is in the tree already.
    fn published(&self, key: u64) -> Option<Value> {
        debug_assert!(self.steps.is_empty());
        self.tree.get(key)
    }
}

/// Writes a tree, and has chains walk it for those who ask under this name, until one leaves.
pub async fn serve(
    rdma: Rdma,
    name: String,
    plan: Plan,
    history: Arc<Mutex<History>>,
) -> Result<(), Failure> {
    let pd = rdma.create_pd().await?;
    let compiled = program(plan.room(), plan.values())?;
    let mut writer = Writer::new(&pd, plan, history).await?;
    let listener = rdma.listen(&name).await?;
    loop {
        let asked = listener.accept().await?;
        match asked.attributes() {
            LEAVES => return asked.reply(&[]).await.map(drop).map_err(Failure::from),
            call if call.len() == 8 => {
                while !writer.steps.is_empty() {
                    writer.step().await?;
                }
                writer.answer(asked).await?;
            }
            _ => {
                let mut loaded = Loaded::create(&rdma, &pd, compiled.chain.clone()).await?;
                loaded.connect(&Connect::default()).await?;
                for (name, id) in &compiled.regions {
                    let region = if name == "tree" { &writer.nodes } else { &writer.values };
                    let address =
                        Address { addr: region.addr(), lkey: region.lkey(), rkey: region.remote().rkey };
                    loaded.give(*id, address);
                }
                let served = admit(asked, pd.clone(), loaded, compiled.clone()).await?;
                let deadline = rdma.now().await? + PATIENCE;
                let mut steps = 0u32;
                while !served.has_ended().await? {
                    steps += 1;
                    // Whether a WR has failed is asked for less often.
                    let failed = steps.is_multiple_of(256);
                    if failed
                        && served.ended(&rdma, Duration::ZERO).await?.is_none()
                        && rdma.now().await? > deadline
                    {
                        return Err(Failure::Rdma(Error::System("a walk does not end".to_owned())));
                    }
                    writer.step().await?;
                    rdma.sleep(plan.pace).await?;
                }
                rdma.until(&[On::Gone(&served.line)], Some(rdma.now().await? + PATIENCE)).await?;
            }
        }
    }
}

/// Gets keys, one after the other, and judges what came.
pub async fn get_all(
    rdma: Rdma,
    name: String,
    plan: Plan,
    (gets, history): (u32, Arc<Mutex<History>>),
) -> Result<Tally, Failure> {
    let compiled = program(plan.room(), plan.values())?;
    let mut tally = Tally::default();
    let mut got = Ok(());
    for n in 0..gets {
        let key = hash(plan.seed ^ u64::from(n), b"client") % u64::from(plan.keys) + 1;
        got = get(&rdma, (&name, plan), &compiled, key, &history, &mut tally).await;
        if got.is_err() {
            break;
        }
    }
    // The server serves until somebody leaves, whatever became of the gets.
    let left = rdma.ask(&name, LEAVES, Some(rdma.now().await? + PATIENCE)).await;
    got?;
    left?;
    Ok(tally)
}

async fn get(
    rdma: &Rdma,
    (name, plan): (&str, Plan),
    compiled: &Compiled,
    key: u64,
    history: &Mutex<History>,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let client = connect(rdma, name, PATIENCE).await?;
    let root = client.regions.get("tree").copied().unwrap_or(0);
    let from = locked(history).done;
    let begin = rdma.now().await?;
    client.ask(&compiled.message(&[key, root])).await?;
    let Some(reply) = client.reply(rdma, PATIENCE).await? else {
        tally.wrong.push(format!("key {key}: no reply"));
        return Ok(());
    };
    let to = locked(history).begun;
    tally.took.push(rdma.now().await?.since(begin));
    let bytes = client.buffer.read(0, reply.len as usize).await?;
    drop(client);
    if reply.imm == 0 {
        if locked(history).had(key, None, from, to) {
            tally.absent += 1;
            return Ok(());
        }
    } else if let Some(serial) = serial_of(&bytes, key, plan.careless) {
        match locked(history).had(key, Some(serial), from, to) {
            true => tally.found += 1,
            false => tally.wrong.push(format!("key {key}: value {serial}, which it did not have")),
        }
        return Ok(());
    } else {
        tally.torn += 1;
    }
    let deadline = rdma.now().await? + PATIENCE;
    let (_, bytes) = rdma.ask(name, &key.to_le_bytes(), Some(deadline)).await?;
    let (value, now) = (serial_of(&bytes, key, false), locked(history).done);
    match locked(history).had(key, value, to, now) {
        true => tally.called += 1,
        false => tally.wrong.push(format!("key {key}: a call says {value:?}, which it did not have")),
    }
    Ok(())
}

/// The serial number of a record, if it is whole and this key's, or `any` will do.
fn serial_of(bytes: &[u8], key: u64, any: bool) -> Option<u64> {
    let record = Record::parse(bytes)?;
    let serial = record.value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    serial.filter(|_| any || record.key == key.to_le_bytes())
}

impl Tally {
    /// The median of the times from message to reply.
    pub fn median(&self) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        took.get(took.len() / 2).copied().unwrap_or(Duration::ZERO)
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { found, absent, called, torn, wrong, .. } = self;
        let gets = found + absent + called + wrong.len() as u32;
        let share = 100.0 * f64::from(*called) / f64::from(gets.max(1));
        write!(
            f,
            "{gets} gets: {found} found, {absent} absent, {called} by a call ({share:.2}%; {torn} of a torn \
             or another key's record), {} wrong",
            wrong.len()
        )
    }
}

const _: () = assert!(LEVELS == 4, "the program unrolls four levels");
