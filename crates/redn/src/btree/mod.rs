//! A B-tree that chains walk while one program changes it: sans-IO, as stores of words in their order.
//!
//! ```text
//! 0        where the root is
//! nodes    by level: level, then four times a least key and where its subtree is
//! entries  key (big-endian, as conditionals compare it), where the value is, its length
//! ```
//! A node is never changed but for where a subtree is: what is inserted makes new nodes beside the old ones,
//! up to the first that need not be split, and one store in the node above, or of the root's word, publishes
//! them all. So who walks sees the tree before or after it. A node that nobody can come to any more is used
//! again, the one that was freed first first, and for the same level: a walk that is that slow finds nodes
//! and entries still, though not its own. It ends at an entry of another key, or at a value that tells its
//! key. That is a miss, which a call to the writer resolves.
//!
//! The least key of a node's first subtree does not count: smaller keys go there too.

pub mod walk;

use std::collections::VecDeque;

/// Keys of a node.
pub const KEYS: usize = 4;
/// Levels of nodes at most.
pub const LEVELS: usize = 4;
/// The key of what a node does not use: no key of the tree.
pub const KEY_NONE: u64 = (1 << 48) - 1;
/// Bytes of a node: nine words, and one that nobody uses.
const NODE: u64 = 80;
/// Bytes of an entry.
const ENTRY: u64 = 32;
/// Where the first node is.
const NODES_AT: u64 = 64;

/// A word that the writer stores: who sees it sees what was stored before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Store {
    /// Its offset.
    pub at: u64,
    /// In the host's byte order.
    pub word: u64,
}

/// Where a key's value is, as the reply takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// What is stored, in this order, to change the tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The stores. The last one publishes.
    pub stores: Vec<Store>,
    /// The value that the key had.
    pub before: Option<Value>,
    /// Nodes that were split.
    pub splits: u32,
}

/// Why a tree takes no key more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// All four levels are full where the key belongs.
    Levels,
    /// There is no node left of this level.
    Nodes(usize),
    /// There is no entry left.
    Entries,
    /// It is no key: a key has 48 bits, not all of them 1.
    Key,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Full::Levels => {
                write!(f, "the tree has {LEVELS} levels, and those where the key belongs are full")
            }
            Full::Nodes(level) => write!(f, "the tree has no node left of level {level}"),
            Full::Entries => f.write_str("the tree has no entry left"),
            Full::Key => f.write_str("a key has 48 bits, not all of them 1"),
        }
    }
}

impl std::error::Error for Full {}

/// How many nodes of each level, the leaves first, and how many entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Nodes by level.
    pub nodes: [u32; LEVELS],
    /// Entries.
    pub entries: u32,
}

impl Room {
    /// For so many keys, with so many nodes of each level and entries that stand by before one is used again.
    pub fn of(keys: u32, spare: u32) -> Room {
        // A leaf has two keys at least unless keys were removed; a node above it two subtrees.
        let level = |below: u32| below.div_ceil(2) + 2 + spare;
        let leaves = level(keys);
        Room {
            nodes: [leaves, level(leaves), level(leaves / 2), level(leaves / 4)],
            entries: keys + 2 + spare,
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        NODES_AT
            + self.nodes.iter().map(|count| u64::from(*count) * NODE).sum::<u64>()
            + u64::from(self.entries) * ENTRY
    }
}

/// Places of one kind.
#[derive(Debug)]
struct Arena {
    /// The next one that was never used, and the end.
    fresh: u64,
    end: u64,
    bytes: u64,
    /// Those that nobody comes to, the longest first.
    freed: VecDeque<u64>,
}

impl Arena {
    fn new(at: u64, bytes: u64, count: u32) -> Arena {
        Arena { fresh: at, end: at + bytes * u64::from(count), bytes, freed: VecDeque::new() }
    }

    fn take(&mut self) -> Option<u64> {
        if self.fresh == self.end {
            return self.freed.pop_front();
        }
        self.fresh += self.bytes;
        Some(self.fresh - self.bytes)
    }
}

/// The writer's side of a tree: what is in memory when all stores are done.
#[derive(Debug)]
pub struct Tree {
    /// Address of the first byte.
    base: u64,
    words: Vec<u64>,
    /// Nodes by level, the leaves first, and entries.
    arenas: Vec<Arena>,
    /// The entry that has no key of the tree.
    nothing: u64,
}

/// A node or an entry that a change has taken, and of which arena.
type Taken = Vec<(usize, u64)>;

impl Tree {
    /// An empty tree in so much memory at an address, and what is stored there before anybody walks it.
    pub fn new(base: u64, room: Room) -> (Tree, Vec<Store>) {
        let mut at = NODES_AT;
        let mut arenas = Vec::new();
        for count in room.nodes {
            arenas.push(Arena::new(at, NODE, count));
            at += u64::from(count) * NODE;
        }
        arenas.push(Arena::new(at, ENTRY, room.entries));
        let words = vec![0; (room.bytes() / 8) as usize];
        let mut tree = Tree { base, words, arenas, nothing: at };
        let mut change = Change::default();
        // The first places are there: room is made for both.
        tree.arenas[LEVELS].fresh += ENTRY;
        tree.arenas[0].fresh += NODE;
        tree.write_entry(at, KEY_NONE, Value { addr: 0, len: 0 }, &mut change);
        tree.write_node(NODES_AT, 0, &[(KEY_NONE, base + at)], &mut change);
        tree.store(0, base + NODES_AT, &mut change);
        (tree, change.stores)
    }

    /// Levels of nodes.
    pub fn levels(&self) -> usize {
        self.word(self.place(0)) as usize + 1
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Option<Value> {
        walked(&self.words, self.base, key)
    }

    /// Inserts a key, or gives it another value.
    pub fn insert(&mut self, key: u64, value: Value) -> Result<Change, Full> {
        if key >= KEY_NONE {
            return Err(Full::Key);
        }
        let mut taken = Taken::new();
        let done = self.try_insert(key, value, &mut taken);
        if done.is_err() {
            for (arena, at) in taken.into_iter().rev() {
                self.arenas[arena].freed.push_front(at);
            }
        }
        done
    }

    fn try_insert(&mut self, key: u64, value: Value, taken: &mut Taken) -> Result<Change, Full> {
        let mut change = Change::default();
        let mut path = self.path(key);
        let Some((leaf, slot)) = path.pop() else { return Err(Full::Levels) };
        let entry = self.take(LEVELS, taken).ok_or(Full::Entries)?;
        self.write_entry(entry, key, value, &mut change);
        let mut pairs = self.pairs(leaf);
        if let Some((known, old)) = pairs.get(slot).copied()
            && known == key
        {
            change.before = Some(self.entry(old - self.base));
            self.store(subtree_at(leaf, slot), self.base + entry, &mut change);
            self.free(LEVELS, old - self.base);
            return Ok(change);
        }
        let at = pairs.partition_point(|(other, _)| *other < key);
        pairs.insert(at, (key, self.base + entry));
        // Nodes that are replaced, and their levels.
        let (mut old, mut replaced) = (leaf, Taken::new());
        let mut level = 0;
        loop {
            replaced.push((level, old));
            if pairs.len() <= KEYS {
                let new = self.make(level, &pairs, taken, &mut change)?;
                let to = path.last().map_or(0, |(above, slot)| subtree_at(*above, *slot));
                self.store(to, self.base + new, &mut change);
                break;
            }
            let (left, right) = pairs.split_at(KEYS / 2 + 1);
            let (least, middle) = (left[0].0, right[0].0);
            let left = self.make(level, left, taken, &mut change)?;
            let right = self.make(level, right, taken, &mut change)?;
            change.splits += 1;
            level += 1;
            if level == LEVELS {
                return Err(Full::Levels);
            }
            let (left, right) = (self.base + left, self.base + right);
            let Some((above, slot)) = path.pop() else {
                let root = self.make(level, &[(least, left), (middle, right)], taken, &mut change)?;
                self.store(0, self.base + root, &mut change);
                break;
            };
            pairs = self.pairs(above);
            pairs[slot] = (pairs[slot].0.min(least), left);
            pairs.insert(slot + 1, (middle, right));
            old = above;
        }
        for (level, node) in replaced {
            self.free(level, node);
        }
        Ok(change)
    }

    /// Removes a key, if it is there. Leaves that come to be empty stay.
    pub fn remove(&mut self, key: u64) -> Result<Change, Full> {
        let mut change = Change::default();
        let mut path = self.path(key);
        let Some((leaf, slot)) = path.pop() else { return Ok(change) };
        let mut pairs = self.pairs(leaf);
        if pairs.get(slot).is_none_or(|(known, _)| *known != key) {
            return Ok(change);
        }
        let (_, old) = pairs.remove(slot);
        if pairs.is_empty() {
            // What a leaf without keys leads to has no key of the tree.
            pairs.push((KEY_NONE, self.base + self.nothing));
        }
        let new = self.take(0, &mut Taken::new()).ok_or(Full::Nodes(0))?;
        self.write_node(new, 0, &pairs, &mut change);
        let to = path.last().map_or(0, |(above, slot)| subtree_at(*above, *slot));
        self.store(to, self.base + new, &mut change);
        change.before = Some(self.entry(old - self.base));
        self.free(0, leaf);
        self.free(LEVELS, old - self.base);
        Ok(change)
    }

    fn take(&mut self, arena: usize, taken: &mut Taken) -> Option<u64> {
        let at = self.arenas[arena].take()?;
        taken.push((arena, at));
        Some(at)
    }

    fn free(&mut self, arena: usize, at: u64) {
        self.arenas[arena].freed.push_back(at);
    }

    fn make(
        &mut self,
        level: usize,
        pairs: &[(u64, u64)],
        taken: &mut Taken,
        change: &mut Change,
    ) -> Result<u64, Full> {
        let node = self.take(level, taken).ok_or(Full::Nodes(level))?;
        self.write_node(node, level, pairs, change);
        Ok(node)
    }

    fn write_node(&mut self, at: u64, level: usize, pairs: &[(u64, u64)], change: &mut Change) {
        self.store(at, level as u64, change);
        for slot in 0..KEYS {
            // What is not used leads to where the first key does.
            let (key, to) = pairs.get(slot).copied().unwrap_or((KEY_NONE, pairs[0].1));
            self.store(subtree_at(at, slot) - 8, key, change);
            self.store(subtree_at(at, slot), to, change);
        }
    }

    fn write_entry(&mut self, at: u64, key: u64, value: Value, change: &mut Change) {
        self.store(at, key.to_be(), change);
        self.store(at + 8, value.addr.to_be(), change);
        self.store(at + 16, (u64::from(value.len) << 32).to_be(), change);
    }

    fn store(&mut self, at: u64, word: u64, change: &mut Change) {
        self.words[(at / 8) as usize] = word;
        change.stores.push(Store { at, word });
    }

    fn word(&self, at: u64) -> u64 {
        self.words[(at / 8) as usize]
    }

    /// The offset that a word says.
    fn place(&self, at: u64) -> u64 {
        self.word(at) - self.base
    }

    /// Keys of a node and where they lead, without what it does not use.
    fn pairs(&self, node: u64) -> Vec<(u64, u64)> {
        let pair = |slot| (self.word(subtree_at(node, slot) - 8), self.word(subtree_at(node, slot)));
        (0..KEYS).map(pair).filter(|(key, _)| *key != KEY_NONE).collect()
    }

    fn entry(&self, at: u64) -> Value {
        entry(&self.words, at).1
    }

    /// The nodes from the root to a leaf, and which slot is taken in each.
    fn path(&self, key: u64) -> Vec<(u64, usize)> {
        let mut node = self.place(0);
        let mut out = Vec::new();
        loop {
            let slot = slot(&self.words, node, key);
            out.push((node, slot));
            if self.word(node) == 0 {
                return out;
            }
            node = self.place(subtree_at(node, slot));
        }
    }
}

/// Offset of the word of a node that says where a slot's subtree is.
fn subtree_at(node: u64, slot: usize) -> u64 {
    node + 16 + 16 * slot as u64
}

/// The last slot whose key is not above this one, or the first.
fn slot(words: &[u64], node: u64, key: u64) -> usize {
    let below = |slot: &usize| words[(subtree_at(node, *slot) / 8) as usize - 1] <= key;
    (0..KEYS).rev().find(below).unwrap_or(0)
}

fn entry(words: &[u64], at: u64) -> (u64, Value) {
    let word = |n: u64| u64::from_be(words[(at / 8 + n) as usize]);
    (word(0), Value { addr: word(1), len: (word(2) >> 32) as u32 })
}

/// What a walk through these words at this address finds, as the chain walks.
pub fn walked(words: &[u64], base: u64, key: u64) -> Option<Value> {
    let place = |at: u64| words[(at / 8) as usize] - base;
    let mut node = place(0);
    for _ in 0..LEVELS {
        let level = words[(node / 8) as usize];
        node = place(subtree_at(node, slot(words, node, key)));
        if level == 0 {
            break;
        }
    }
    let (found, value) = entry(words, node);
    (found == key).then_some(value)
}

#[cfg(test)]
mod tests;
