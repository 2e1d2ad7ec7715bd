//! A bounded table of objects with stable indices and generations.

use crate::error::Error;
use crate::memory::{prefetch, prefetch_whole};
use core::marker::PhantomData;

/// What a typed name must offer to index a [`Slab`].
pub(crate) trait Id: Copy {
    fn new(index: u32, generation: u32) -> Self;
    fn index(self) -> u32;
    fn generation(self) -> u32;
}

/// The name that no object has, for a role that a queue pair's type does not have.
pub(crate) fn nobody<I: Id>() -> I {
    I::new(u32::MAX, 0)
}

/// The name, unless it is [`nobody`]'s.
pub(crate) fn existing<I: Id>(id: I) -> Option<I> {
    (id.index() != u32::MAX).then_some(id)
}

/// Objects of one allocation. One by one they would each take the allocator's header and a pointer, and a
/// table of them that grows would move them and leave room for twice as many.
const CHUNK: usize = 8;

struct Chunk<T> {
    generations: [u32; CHUNK],
    values: [Option<T>; CHUNK],
}

/// Objects by index, in chunks that stay where they are. Freed slots are reused in first-freed, first-reused
/// order, so that an index (and a number made of it) stays unused for as long as possible.
#[repr(C)]
pub(crate) struct Slab<I, T> {
    chunks: Vec<Box<Chunk<T>>>,
    free: std::collections::VecDeque<u32>,
    limit: u32,
    used: u32,
    /// Slots that were ever used.
    slots: u32,
    /// Generation of a slot that was never used.
    first: u32,
    _id: PhantomData<fn() -> I>,
}

/// The name of an object that cannot go while it is named, because its users are counted: its index says all.
#[derive(Debug)]
pub(crate) struct Held<I>(u32, PhantomData<fn() -> I>);

impl<I> Clone for Held<I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Held<I> {}

impl<I: Id> Held<I> {
    /// Of an object that counts this user, or [`nobody`].
    pub fn new(id: I) -> Self {
        Held(id.index(), PhantomData)
    }

    /// The object's index.
    #[inline]
    pub fn index(self) -> u32 {
        self.0
    }
}

/// Where an index stands: its chunk, and its place there.
#[inline(always)]
fn place(index: u32) -> (usize, usize) {
    (index as usize / CHUNK, index as usize % CHUNK)
}

impl<I: Id, T> Slab<I, T> {
    /// An empty table that never holds more than `limit` objects.
    pub fn new(limit: u32) -> Self {
        let free = std::collections::VecDeque::new();
        Slab { chunks: Vec::new(), free, limit, used: 0, slots: 0, first: 0, _id: PhantomData }
    }

    /// Has generations begin elsewhere, before any object is stored: names of another table with as many
    /// objects, whose generations are not that far yet, are refused here.
    pub fn begin_at(&mut self, generation: u32) {
        assert!(self.chunks.is_empty(), "the table has had objects");
        self.first = generation;
    }

    /// Number of live objects.
    pub fn len(&self) -> usize {
        self.used as usize
    }

    /// Whether another object can be stored.
    pub fn has_room(&self) -> bool {
        self.used < self.limit
    }

    /// Stores an object. `Error::TableFull` at the limit.
    pub fn insert(&mut self, value: T) -> Result<I, Error> {
        if self.used == self.limit {
            return Err(Error::TableFull);
        }
        // Grow before reusing, until a quarter of the limit (at most 4096 slots) is in circulation:
        // a fresh index for each of many create/destroy cycles keeps late packets from strangers.
        let circulation = (self.limit / 4).clamp(1, 4096).min(self.limit);
        let index = match self.free.front() {
            Some(&index) if self.slots >= circulation => {
                self.free.pop_front();
                index
            }
            _ if self.slots < self.limit => self.grow(),
            _ => self.free.pop_front().ok_or(Error::TableFull)?,
        };
        let (chunk, at) = place(index);
        let chunk = &mut self.chunks[chunk];
        chunk.generations[at] = chunk.generations[at].wrapping_add(1);
        chunk.values[at] = Some(value);
        self.used += 1;
        Ok(I::new(index, chunk.generations[at]))
    }

    /// A slot that was never used.
    fn grow(&mut self) -> u32 {
        if self.slots as usize == self.chunks.len() * CHUNK {
            self.chunks
                .push(Box::new(Chunk { generations: [self.first; CHUNK], values: [const { None }; CHUNK] }));
        }
        self.slots += 1;
        self.slots - 1
    }

    /// The object, unless it is gone.
    #[inline]
    pub fn get(&self, id: I) -> Option<&T> {
        let (chunk, at) = place(id.index());
        match self.chunks.get(chunk) {
            Some(chunk) if chunk.generations[at] == id.generation() => chunk.values[at].as_ref(),
            _ => None,
        }
    }

    /// The object, unless it is gone.
    #[inline]
    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let (chunk, at) = place(id.index());
        match self.chunks.get_mut(chunk) {
            Some(chunk) if chunk.generations[at] == id.generation() => chunk.values[at].as_mut(),
            _ => None,
        }
    }

    /// The live object at an index, whatever its generation.
    #[inline]
    pub fn at(&mut self, index: u32) -> Option<&mut T> {
        let (chunk, at) = place(index);
        self.chunks.get_mut(chunk)?.values[at].as_mut()
    }

    /// The live object at an index, only to look at.
    #[inline]
    pub fn peek(&self, index: u32) -> Option<&T> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.values[at].as_ref()
    }

    /// Asks for where the object of an index is found.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        if let Some(chunk) = self.chunks.get(place(index).0) {
            prefetch(chunk);
        }
    }

    /// Asks for the slot of an index, and for what says whose it is, whether or not it has an object.
    #[inline]
    pub fn prefetch_slot(&self, index: u32) {
        let (chunk, at) = place(index);
        if let Some(chunk) = self.chunks.get(chunk) {
            prefetch(&chunk.generations);
            prefetch_whole(&chunk.values[at]);
        }
    }

    /// The name of the live object at an index.
    #[inline]
    pub fn id_at(&self, index: u32) -> Option<I> {
        let (chunk, at) = place(index);
        let chunk = self.chunks.get(chunk)?;
        chunk.values[at].as_ref().map(|_| I::new(index, chunk.generations[at]))
    }

    /// Takes the object out.
    pub fn remove(&mut self, id: I) -> Option<T> {
        let (chunk, at) = place(id.index());
        let chunk = self.chunks.get_mut(chunk)?;
        if chunk.generations[at] != id.generation() {
            return None;
        }
        let value = chunk.values[at].take()?;
        self.free.push_back(id.index());
        self.used -= 1;
        Some(value)
    }

    /// All live objects in index order.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            let first = (number * CHUNK) as u32;
            let named = chunk.generations.iter().zip(&chunk.values).enumerate();
            named.filter_map(move |(at, (generation, value))| {
                value.as_ref().map(|value| (I::new(first + at as u32, *generation), value))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PdId;

    #[test]
    fn stale_names_are_refused_and_the_bound_holds() {
        let mut slab: Slab<PdId, u32> = Slab::new(2);
        let a = slab.insert(1).unwrap();
        let b = slab.insert(2).unwrap();
        assert_eq!(slab.insert(3), Err(Error::TableFull));
        assert_eq!(slab.remove(a), Some(1));
        assert_eq!(slab.remove(a), None);
        let c = slab.insert(3).unwrap();
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.get(c), Some(&3));
        assert_eq!(slab.get(b), Some(&2));
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn names_of_another_table_are_refused() {
        let (mut parents, mut childs) = (Slab::<PdId, u32>::new(8), Slab::<PdId, u32>::new(8));
        childs.begin_at(1 << 24);
        let stale = parents.insert(1).unwrap();
        let own = childs.insert(2).unwrap();
        assert_eq!(childs.get(stale), None);
        assert_eq!(childs.remove(stale), None);
        assert_eq!(childs.get(own), Some(&2));
    }

    #[test]
    fn memory_does_not_grow_with_cycles() {
        let mut slab: Slab<PdId, u32> = Slab::new(1 << 20);
        for i in 0..100_000 {
            let id = slab.insert(i).unwrap();
            slab.remove(id).unwrap();
        }
        assert!(slab.slots <= 4096 && slab.chunks.len() <= 4096 / CHUNK);
    }
}
