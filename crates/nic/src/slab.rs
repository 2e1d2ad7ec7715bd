//! A bounded table of objects with stable indices and generations.

use crate::error::Error;
use crate::memory::prefetch;
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

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Objects by index. Freed slots are reused in first-freed, first-reused order, so that an index
/// (and a number made of it) stays unused for as long as possible.
#[repr(C)]
pub(crate) struct Slab<I, T> {
    slots: Vec<Slot<T>>,
    free: std::collections::VecDeque<u32>,
    limit: u32,
    used: u32,
    _id: PhantomData<fn() -> I>,
}

impl<I: Id, T> Slab<I, T> {
    /// An empty table that never holds more than `limit` objects.
    pub fn new(limit: u32) -> Self {
        Slab { slots: Vec::new(), free: std::collections::VecDeque::new(), limit, used: 0, _id: PhantomData }
    }

    /// Number of live objects.
    pub fn len(&self) -> usize {
        self.used as usize
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
            Some(&index) if self.slots.len() as u32 >= circulation => {
                self.free.pop_front();
                index
            }
            _ if (self.slots.len() as u32) < self.limit => {
                self.slots.push(Slot { generation: 0, value: None });
                self.slots.len() as u32 - 1
            }
            _ => self.free.pop_front().ok_or(Error::TableFull)?,
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        self.used += 1;
        Ok(I::new(index, slot.generation))
    }

    /// The object, unless it is gone.
    #[inline]
    pub fn get(&self, id: I) -> Option<&T> {
        match self.slots.get(id.index() as usize) {
            Some(slot) if slot.generation == id.generation() => slot.value.as_ref(),
            _ => None,
        }
    }

    /// The object, unless it is gone.
    #[inline]
    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        match self.slots.get_mut(id.index() as usize) {
            Some(slot) if slot.generation == id.generation() => slot.value.as_mut(),
            _ => None,
        }
    }

    /// The live object at an index, whatever its generation, with its full name.
    #[inline]
    pub fn at(&mut self, index: u32) -> Option<(I, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        let generation = slot.generation;
        slot.value.as_mut().map(|v| (I::new(index, generation), v))
    }

    /// The live object at an index, only to look at.
    #[inline]
    pub fn peek(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    /// Asks for the slot of an index.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        if let Some(slot) = self.slots.get(index as usize) {
            prefetch(slot);
        }
    }

    /// The name of the live object at an index.
    #[inline]
    pub fn id_at(&self, index: u32) -> Option<I> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().map(|_| I::new(index, slot.generation))
    }

    /// Takes the object out.
    pub fn remove(&mut self, id: I) -> Option<T> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.generation != id.generation() {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push_back(id.index());
        self.used -= 1;
        Some(value)
    }

    /// All live objects in index order.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(i, s)| s.value.as_ref().map(|v| (I::new(i as u32, s.generation), v)))
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
    fn memory_does_not_grow_with_cycles() {
        let mut slab: Slab<PdId, u32> = Slab::new(1 << 20);
        for i in 0..100_000 {
            let id = slab.insert(i).unwrap();
            slab.remove(id).unwrap();
        }
        assert!(slab.slots.len() <= 4096);
    }
}
