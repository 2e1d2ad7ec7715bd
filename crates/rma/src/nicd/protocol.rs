//! What an application and the daemon say to each other: packets on a Unix socket for what is rare, a shared
//! memory for what is not.
//!
//! Each request has one answer. Numbers are little-endian, as both run on one machine. An answer starts with
//! 0 and holds what was asked for, or with 1 and holds a reason in words.
//!
//! The shared memory, made and sealed by the daemon:
//!
//! | offset | what |
//! |---|---|
//! | 0 | 1 while the application sleeps and wants its bell rung |
//! | 64 | 1 while the daemon sleeps and wants its bell rung |
//! | 128 | commands posted so far, by the application |
//! | 192 | commands refused so far, by the daemon |
//! | 256 | ring of posted slots: a word each, the NIC's number of the slot; slots, up to a power of two |
//! | | ring of refused slots, as long: number of the slot, and why in the upper half |
//! | | commands, 64 bytes for each slot, in the order in which the slots were given |
//! | | completion ring, 32 bytes for each slot |

use adverb_nic::Error;
use adverb_nic::one_rma::{COMMAND_LEN, COMPLETION_LEN, SlotId};
use zeroize::Zeroizing;

/// Of this protocol.
pub(crate) const VERSION: u32 = 3;
/// Bytes of the longest packet: a welcome with as many slots as fit.
pub(crate) const PACKET_MAX: usize = 64 + 4 * SLOTS_MAX;
/// Slots of one process at most.
pub(crate) const SLOTS_MAX: usize = 4096;

/// Where things lie in the shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    slots: usize,
}

impl Layout {
    pub const APPLICATION_SLEEPS: usize = 0;
    pub const DAEMON_SLEEPS: usize = 64;
    pub const POSTED: usize = 128;
    pub const REFUSED: usize = 192;
    const RINGS: usize = 256;

    pub fn new(slots: usize) -> Layout {
        Layout { slots }
    }

    pub fn entries(&self) -> usize {
        self.slots.next_power_of_two()
    }

    pub fn posted(&self, number: u64) -> usize {
        Self::RINGS + (number as usize & (self.entries() - 1)) * 8
    }

    pub fn refused(&self, number: u64) -> usize {
        self.posted(number) + self.entries() * 8
    }

    pub fn command(&self, place: usize) -> usize {
        (Self::RINGS + 2 * self.entries() * 8).next_multiple_of(64) + place * COMMAND_LEN
    }

    pub fn completion(&self, number: u64) -> usize {
        self.command(self.slots) + (number % self.slots as u64) as usize * COMPLETION_LEN
    }

    pub fn len(&self) -> usize {
        self.command(self.slots) + self.slots * COMPLETION_LEN
    }
}

/// Place of the slot with this number. Slots are mostly given in a row, so that the place follows from the
/// number.
pub(crate) fn place_of(slots: &[SlotId], number: u64) -> Option<usize> {
    let at = |place: usize| slots.get(place).map(|slot| slot.index() as u64);
    let guess = usize::try_from(number.wrapping_sub(at(0)?)).ok().filter(|place| at(*place) == Some(number));
    guess.or_else(|| slots.iter().position(|slot| slot.index() as u64 == number))
}

/// Why a command was refused, as a number.
pub(crate) fn refusal(error: Error) -> u32 {
    match error {
        Error::NoSuchObject => 1,
        Error::Busy => 2,
        _ => 3,
    }
}

/// The error that such a number stands for.
pub(crate) fn refused(number: u32) -> Error {
    match number {
        1 => Error::NoSuchObject,
        2 => Error::Busy,
        _ => Error::Invalid(
            "command, as the NIC daemon finds: a range outside its region, or a region that is another's",
        ),
    }
}

/// A request, or an answer, while it is written. Erased at its end: some hold keys.
pub(crate) struct Writer(Zeroizing<Vec<u8>>);

impl Writer {
    pub fn new(first: u8) -> Writer {
        let mut bytes = Zeroizing::new(Vec::with_capacity(256));
        bytes.push(first);
        Writer(bytes)
    }

    pub fn u8(mut self, value: u8) -> Writer {
        self.0.push(value);
        self
    }

    pub fn u32(self, value: u32) -> Writer {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Writer {
        self.bytes(&value.to_le_bytes())
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn finish(&self) -> &[u8] {
        &self.0
    }
}

/// A request, or an answer, while it is read.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    /// Nothing is left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// First byte of each request.
pub(crate) mod request {
    /// Version, slots wanted. Answer: PID, address, slots granted, their numbers, the ring's region; and two
    /// descriptors: the memory, and a stream socket on which a byte wakes the other side.
    pub const HELLO: u8 = 1;
    /// Bytes; and the memory's descriptor. Answer: number of the memory, its own region.
    pub const ALLOCATE: u8 = 2;
    /// Number of a memory. Answer: nothing.
    pub const FREE: u8 = 3;
    /// Number of a memory, offset, bytes, rights, region key. Answer: region.
    pub const REGISTER: u8 = 4;
    /// Region. Answer: nothing.
    pub const DEREGISTER: u8 = 5;
    /// Region, initiator, PID, operation. Answer: K_d.
    pub const DERIVE: u8 = 6;
    /// Region, region key. Answer: nothing.
    pub const ROTATE: u8 = 7;
    /// Answer: the NIC's, the driver's and the daemon's counters, a word each. May be asked before HELLO.
    pub const COUNTERS: u8 = 8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for slots in [1, 2, 3, 64, 100, 4096] {
            let layout = Layout::new(slots);
            let last = layout.entries() as u64 - 1;
            assert!(layout.posted(0) >= Layout::REFUSED + 8);
            assert_eq!(layout.posted(last + 1), layout.posted(0));
            assert!(layout.refused(0) >= layout.posted(last) + 8);
            assert!(layout.command(0) >= layout.refused(last) + 8 && layout.command(0).is_multiple_of(64));
            assert!(layout.completion(0) >= layout.command(slots - 1) + COMMAND_LEN);
            assert!(layout.completion(0).is_multiple_of(8));
            assert_eq!(layout.completion(slots as u64), layout.completion(0));
            assert_eq!(layout.len(), layout.completion(slots as u64 - 1) + COMPLETION_LEN);
        }
    }

    #[test]
    fn slots_are_found_in_a_row_or_not() {
        let slots = [5, 6, 7, 2, 9].map(SlotId::from_index);
        for (place, slot) in slots.iter().enumerate() {
            assert_eq!(place_of(&slots, slot.index() as u64), Some(place));
        }
        for stranger in [0, 4, 8, 10, 5 | 1 << 32, u64::MAX] {
            assert_eq!(place_of(&slots, stranger), None);
        }
        assert_eq!(place_of(&[], 0), None);
    }

    #[test]
    fn what_is_written_is_read_and_no_more() {
        let written = Writer::new(7).u32(1).u64(2).u8(3).bytes(&[9; 16]);
        let mut reader = Reader(written.finish());
        assert_eq!(
            (reader.u8(), reader.u32(), reader.u64(), reader.u8()),
            (Some(7), Some(1), Some(2), Some(3))
        );
        assert_eq!(reader.end(), None);
        assert_eq!(reader.array::<16>(), Some([9; 16]));
        assert_eq!((reader.end(), reader.u8()), (Some(()), None));
    }
}
