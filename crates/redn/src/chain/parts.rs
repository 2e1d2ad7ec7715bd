//! The parts that conditionals and loops are built of: where an operand stands, and how indices of a ring
//! that is executed again are kept.
//!
//! **Operands.** Six bytes of a conditional's control segment, in two pieces. A number is written there in
//! either byte order; the compare-and-swap's word then takes it in the other one, in two pieces as well,
//! because the NIC compares in the host's order and segments are big-endian.
//!
//! **Indices.** A WAIT or ENABLE of a recycled ring has to say more each lap. Its indices are big-endian, and
//! an ADD carries in the host's order, so a counter in memory has two lanes, and a READ takes single bytes of
//! it to where they belong. One counter serves all pairs of a loop whose queues take equal blocks and make
//! one completion a lap.

use super::{Field, Op, Piece, Place, WqeId};

/// Bits of a counter's lower lane, the WAITs' index.
const LANE: u32 = 48;

/// A number's six bytes as an operand, its highest byte first.
pub fn big(number: u64) -> [u8; 6] {
    let [_, _, bytes @ ..] = number.to_be_bytes();
    bytes
}

/// A number's six bytes as an operand, its lowest byte first: as the host stores it, if it is little-endian.
pub fn little(number: u64) -> [u8; 6] {
    let [bytes @ .., _, _] = number.to_le_bytes();
    bytes
}

/// Where a conditional's operand stands, in the order of its bytes.
pub fn operand(conditional: WqeId) -> [Piece; 2] {
    let at = |skip| Place::In(conditional, Field::Control, skip).piece(3);
    [at(0), at(4)]
}

/// Where a compare-and-swap takes the operand from that it looks for: its bytes in the opposite order.
pub fn compared(compare_swap: WqeId) -> [Piece; 2] {
    let at = |skip| Place::In(compare_swap, Field::Compare, skip).piece(3);
    [at(1), at(5)]
}

/// The same for an operand's bytes in its own order, one by one.
pub fn compared_reversed(compare_swap: WqeId) -> [Piece; 6] {
    [7, 6, 5, 3, 2, 1].map(|skip| Place::In(compare_swap, Field::Compare, skip).piece(1))
}

/// An operand's bytes in the opposite order, one by one.
pub fn operand_reversed(conditional: WqeId) -> [Piece; 6] {
    [6, 5, 4, 2, 1, 0].map(|skip| Place::In(conditional, Field::Control, skip).piece(1))
}

/// A big-endian field of so many bytes, in the order of a host that is little-endian.
pub fn reversed(wqe: WqeId, field: Field, bytes: u8) -> impl Iterator<Item = Piece> {
    (0..bytes).rev().map(move |skip| Place::In(wqe, field, skip).piece(1))
}

/// What a lap's counter holds: an index of completions, and one of blocks.
pub fn lanes(completions: u64, blocks: u32) -> u64 {
    u64::from(blocks) << LANE | completions
}

/// The lowest bytes of a WAIT's or ENABLE's index, in the order in which a counter has them.
pub fn index(wqe: WqeId, bytes: u8) -> impl Iterator<Item = Piece> {
    (0..bytes).map(move |n| Place::In(wqe, Field::Index, 3 - n).piece(1))
}

/// A READ that brings the indices of a pair to what a counter says. Bytes that nobody needs go to `dump`.
pub fn upkeep(counter: Place, wait: WqeId, enable: WqeId, dump: Place) -> Op {
    Op::Read(counter, index(wait, 3).chain([dump.piece(LANE / 8 - 3)]).chain(index(enable, 2)).collect())
}
