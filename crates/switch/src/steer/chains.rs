//! What is known of chains: by key the last entry, and by address whose entry it is.

use crate::cas_to_write::word::Owner;
use crate::register::{Pass, Register, Shape};
use adverb_wire::{Instant, Psn};
use std::collections::BTreeMap;

/// Places that are looked at for one that may be given away.
const LOOKED_AT: usize = 16;

/// Where in its chain an entry stands. Two entries can be compared if they are of one segment: a part of a
/// chain of which each link was seen. In which order segments are is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// The segment.
    pub segment: u64,
    /// The how manieth entry of it.
    pub at: u64,
}

impl Position {
    /// Whether another entry is known to stand further back.
    pub fn is_before(self, other: Position) -> bool {
        self.segment == other.segment && self.at < other.at
    }

    /// That of the entry behind.
    pub fn next(self) -> Position {
        Position { at: self.at + 1, ..self }
    }
}

/// A link that is on its way to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    /// Whose compare and swap it is.
    pub connection: u32,
    /// Its number.
    pub psn: Psn,
    /// The entry that it is to put at the end.
    pub place: u64,
    /// When it left.
    pub since: Instant,
}

/// A link that waits for READs, and lets none go before it that came later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closing {
    /// Whose it is.
    pub connection: u32,
    /// Since when.
    pub since: Instant,
}

/// READs of a chain's last entries that were answered last, and what follows from them. Links that wait cost
/// each put of the key a round trip of a READ, which is worth it only where READs are overtaken again and
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overtaking {
    seen: u8,
    overtaken: u8,
    /// Links that wait from now on.
    waits: u8,
}

/// READs after which something is concluded. Single ones are overtaken anywhere.
const SEEN: u8 = 8;
/// Links that wait then, before it is looked at anew.
const WAITS: u8 = 32;

impl Overtaking {
    /// A READ was answered, which a link had overtaken, so that it mattered, or not.
    pub fn answered(&mut self, overtaken: bool) {
        if self.waits > 0 {
            return;
        }
        self.seen += 1;
        self.overtaken += u8::from(overtaken);
        if self.seen == SEEN {
            let waits = if 2 * self.overtaken > SEEN { WAITS } else { 0 };
            *self = Overtaking { waits, ..Overtaking::default() };
        }
    }

    /// Whether a link is to wait for READs.
    pub fn waits(self) -> bool {
        self.waits > 0
    }

    /// A link has left.
    pub fn linked(&mut self) {
        self.waits = self.waits.saturating_sub(1);
    }
}

/// A key's chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The key.
    pub key: u64,
    /// Under which key of the server, and in which process.
    pub owner: Owner,
    /// The last entry that the server has linked, as far as is known.
    pub tail: Option<u64>,
    /// Where that stands.
    pub position: Position,
    /// The one that is to come behind it.
    pub pending: Option<Pending>,
    /// READs of the last entry that are not answered.
    pub looks: u32,
    /// The link that waits for these.
    pub closing: Option<Closing>,
    /// Whether links are to wait for READs.
    pub overtaking: Overtaking,
    /// When something was done to it last.
    pub used: Instant,
}

/// A key, or an address, under a key of memory and in a process.
type Name = (u32, u8, u64);

fn name_of(owner: Owner, what: u64) -> Name {
    (owner.rkey.0, owner.process, what)
}

/// The chains that are followed.
#[derive(Debug)]
pub struct Chains {
    index: BTreeMap<Name, u32>,
    /// By the last entry.
    ends: BTreeMap<Name, u32>,
    register: Register<Option<Chain>>,
    used: usize,
    hand: usize,
}

impl Chains {
    /// Room for so many.
    pub fn new(entries: usize) -> Chains {
        // Key and owner, the last entry, its READs, and what is pending or waits behind it.
        let shape = Shape { name: "tails", width: 448, entries, stage: 3 };
        let (index, ends) = (BTreeMap::new(), BTreeMap::new());
        Chains { index, ends, register: Register::new(shape), used: 0, hand: 0 }
    }

    /// What they cost.
    pub fn shape(&self) -> Shape {
        self.register.shape()
    }

    /// Where a key's chain stands.
    pub fn find(&self, owner: Owner, key: u64) -> Option<u32> {
        self.index.get(&name_of(owner, key)).copied()
    }

    /// The one access of a pass.
    pub fn access(&mut self, pass: Pass, at: u32) -> Option<&mut Chain> {
        self.register.access(pass, at as usize).as_mut()
    }

    /// A chain, as who waits looks at it.
    pub fn get(&self, at: u32) -> Option<&Chain> {
        self.register.entries().get(at as usize)?.as_ref()
    }

    /// The chain that ends with an entry, as far as is known.
    pub fn ending_with(&self, owner: Owner, place: u64) -> Option<u32> {
        self.ends.get(&name_of(owner, place)).copied()
    }

    /// A chain ends with this entry, or it is not known with which. What it was before. An entry is the last
    /// one of one chain at most.
    pub fn set_tail(&mut self, at: u32, tail: Option<(u64, Position)>) -> Option<u64> {
        let chain = self.register.entries_mut().get_mut(at as usize)?.as_mut()?;
        chain.position = tail.map_or(Position::default(), |(_, position)| position);
        let tail = tail.map(|(place, _)| place);
        let (owner, before) = (chain.owner, core::mem::replace(&mut chain.tail, tail));
        if before != tail {
            chain.looks = 0;
        }
        if let Some(before) = before {
            self.ends.remove(&name_of(owner, before));
        }
        if let Some(tail) = tail
            && let Some(other) = self.ends.insert(name_of(owner, tail), at)
            && other != at
            && let Some(other) = self.get_mut(other)
        {
            other.tail = None;
            other.looks = 0;
        }
        before
    }

    /// For the control plane.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Chain> {
        self.register.entries_mut().get_mut(at as usize)?.as_mut()
    }

    /// Follows a key from now on, if there is room, or if one of some others `may_go`.
    pub fn follow(
        &mut self,
        owner: Owner,
        key: u64,
        now: Instant,
        may_go: impl Fn(&Chain) -> bool,
    ) -> Option<u32> {
        let at = if self.used < self.register.entries().len() {
            self.used += 1;
            self.used - 1
        } else {
            self.give_away(may_go)?
        };
        let position = Position::default();
        let chain = Chain {
            key,
            owner,
            tail: None,
            position,
            pending: None,
            looks: 0,
            closing: None,
            overtaking: Overtaking::default(),
            used: now,
        };
        self.register.entries_mut()[at] = Some(chain);
        self.index.insert(name_of(owner, key), at as u32);
        Some(at as u32)
    }

    fn give_away(&mut self, may_go: impl Fn(&Chain) -> bool) -> Option<usize> {
        let entries = self.register.entries();
        let mut at = (0..LOOKED_AT.min(entries.len())).map(|step| (self.hand + step) % entries.len());
        let at_rest = |chain: &Chain| chain.pending.is_none() && chain.closing.is_none();
        let gone = |at: &usize| entries[*at].is_none_or(|chain| at_rest(&chain) && may_go(&chain));
        let found = at.clone().find(gone);
        // The next look begins where this one ended.
        self.hand = found.or(at.next_back()).map_or(0, |at| at + 1);
        let found = found?;
        if let Some(chain) = entries[found] {
            self.set_tail(found as u32, None);
            self.index.remove(&name_of(chain.owner, chain.key));
        }
        Some(found)
    }

    /// Asserts that each last entry leads to its chain.
    pub fn check(&self) {
        let tails = self.all().filter(|(_, chain)| chain.tail.is_some()).count();
        assert_eq!(tails, self.ends.len(), "as many ends as chains that have one");
        for ((.., place), at) in &self.ends {
            assert_eq!(self.get(*at).and_then(|chain| chain.tail), Some(*place), "a chain's end is its own");
        }
    }

    /// All that are followed.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Chain)> {
        let at = self.index.values();
        at.filter_map(|at| self.get(*at).map(|chain| (*at, chain)))
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.index.clear();
        self.ends.clear();
        self.register.entries_mut().fill(None);
        self.used = 0;
    }
}

/// An entry that was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its address.
    pub place: u64,
    /// Under which key of the server, and in which process.
    pub owner: Owner,
    /// The key that it says.
    pub key: u64,
    /// Where it stands, if the server has linked it.
    pub linked: Option<Position>,
}

/// Entries by address. What comes later takes the place of what stands there, so that a key that is written
/// often has more of them.
#[derive(Debug)]
pub struct Entries(Register<Option<Seen>>);

impl Entries {
    /// Room for so many.
    pub fn new(entries: usize) -> Entries {
        Entries(Register::new(Shape { name: "entries", width: 256, entries, stage: 2 }))
    }

    /// What they cost.
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn at(&self, place: u64, owner: Owner) -> usize {
        let whose = u64::from(owner.rkey.0) << 8 | u64::from(owner.process);
        let both = (place >> 3).wrapping_add(whose.wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
        (mixed(both) % self.0.shape().entries as u64) as usize
    }

    /// The entry at an address. The one access of a pass.
    pub fn find(&mut self, pass: Pass, place: u64, owner: Owner) -> Option<Seen> {
        let at = self.at(place, owner);
        self.0.access(pass, at).filter(|seen| (seen.place, seen.owner) == (place, owner))
    }

    /// Remembers an entry; gives what was known of that address. The one access of a pass.
    pub fn put(&mut self, pass: Pass, seen: Seen) -> Option<Seen> {
        let at = self.at(seen.place, seen.owner);
        let before = self.0.access(pass, at).replace(seen);
        before.filter(|before| (before.place, before.owner) == (seen.place, seen.owner))
    }

    /// All that are remembered.
    pub fn all(&self) -> impl Iterator<Item = &Seen> {
        self.0.entries().iter().flatten()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.entries_mut().fill(None);
    }
}

/// A number whose every bit depends on every bit of another one (MurmurHash3's last step). Entries stand in
/// rows: what mixes less puts a sixth of them in one place with others, however large the table is.
fn mixed(mut bits: u64) -> u64 {
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::Passes;
    use adverb_wire::Key;

    /// Entries of 128 bytes, as a home with a hundred clients has them: in a table of so many places almost
    /// none takes another's.
    #[test]
    fn entries_in_rows_do_not_take_each_others_places() {
        for rkey in [0x123, 0x5b0d_5eec, 0xffff_ff07] {
            let owner = Owner { rkey: Key(rkey), process: 1 };
            let heads = 0..1024;
            let rows = (0..112).flat_map(|client| (0..60).map(move |n| 1024 + client * 512 + n));
            let places: Vec<u64> = heads.chain(rows).map(|n| (1 << 40) + n * 128).collect();
            for entries in [1 << 16, 1 << 19] {
                let (mut table, mut passes) = (Entries::new(entries), Passes::default());
                for place in &places {
                    let seen = Seen { place: *place, owner, key: 1, linked: None };
                    table.put(passes.first(), seen);
                }
                let left = table.all().count();
                // As many as chance leaves, and some.
                let chance = places.len() * places.len() / (2 * entries);
                let lost = places.len() - left;
                assert!(lost < chance + chance / 4 + 10, "{lost} of {} at {entries}", places.len());
            }
        }
    }
}
