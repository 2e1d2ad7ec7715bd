//! `pick`: the value of the last of some keys that is not greater than a key, by two calculations.
//!
//! The first one compares all pairs at once: it takes the less of each key and the one that is sought, and
//! with it an address, that of the pair's value or, if the pair's key is greater, that of the first pair's.
//! The second one takes the greatest of these addresses, which grow from pair to pair. A READ then brings the
//! value.

use super::{Guard, Lowering, values};
use crate::chain::{CALC_ENTRY, Calc, CalcOp, Field, Op, Piece, Place, Word};
use crate::language::Error;
use crate::language::ast::*;

/// Pairs at most: each takes four entries of the first calculation.
const PAIRS_MAX: usize = 7;
/// Bytes of a value, and of what goes with it.
const HALF: u64 = CALC_ENTRY as u64 / 2;

impl Lowering<'_> {
    pub(super) fn pick(
        &mut self,
        name: &str,
        key: &Atom,
        pairs: &[(Atom, Atom)],
        guard: Guard,
    ) -> Result<(), Error> {
        if !(1..=PAIRS_MAX).contains(&pairs.len()) {
            return self.error(format!("`pick` is among 1 to {PAIRS_MAX} pairs, not {}", pairs.len()));
        }
        let to = self.register(name)?;
        let sought = self.cell_of(key)?;
        let mut keys = Vec::new();
        for (key, _) in pairs {
            keys.push(self.cell_of(key)?);
        }
        let row = self.row(pairs)?;
        let addresses = self.cell(HALF * pairs.len() as u64)?;
        for (n, value) in (0u64..).zip(&row) {
            let (cells, address) = (self.cells, Word::AddressOf(self.at(*value)));
            self.chain.word(cells, addresses + HALF * n, address);
        }
        let half = |at: Place| at.piece(HALF as u32);
        let entry = |this: &Self, value: u64, address: u64| -> [Piece; 2] {
            [half(this.at(value)), half(this.at(addresses + HALF * address))]
        };
        let less: Vec<Piece> = (0u64..)
            .zip(&keys)
            .flat_map(|(n, key)| entry(self, *key, n))
            .chain(keys.iter().flat_map(|_| entry(self, sought, 0)))
            .collect();
        let compared = self.cell(CALC_ENTRY as u64 * pairs.len() as u64)?;
        self.calculate(CalcOp::Min, 2, less, compared, guard)?;
        let zeros = self.zeros()?;
        let found = self.cell(CALC_ENTRY as u64)?;
        let greatest: Vec<Piece> = (0..pairs.len() as u64)
            .map(|n| compared + CALC_ENTRY as u64 * n + HALF)
            .flat_map(|address| [half(self.at(address)), half(self.at(zeros))])
            .collect();
        self.calculate(CalcOp::Max, pairs.len() as u16, greatest, found, guard)?;
        let node = self.node(Op::Read(Place::Of(self.cells), vec![self.at(to).piece(8)]))?;
        self.copy(found, 0..8, &values::big_field(node, Field::RemoteAddress, 8), node)?;
        self.guard(node, guard);
        self.place(node)
    }

    /// Where the values of pairs are: cells whose addresses grow. Where they do not, the values are copied.
    fn row(&mut self, pairs: &[(Atom, Atom)]) -> Result<Vec<u64>, Error> {
        let mut cells = Vec::new();
        for (_, value) in pairs {
            cells.push(self.cell_of(value)?);
        }
        if cells.is_sorted_by(|a, b| a < b) {
            return Ok(cells);
        }
        let row = self.cell(8 * pairs.len() as u64)?;
        let places: Vec<u64> = (0..pairs.len() as u64).map(|n| row + 8 * n).collect();
        for (from, to) in cells.into_iter().zip(&places) {
            let copy = self.node(Op::Read(self.at(from), vec![self.at(*to).piece(8)]))?;
            self.place(copy)?;
        }
        Ok(places)
    }

    /// A WRITE of what is calculated out of cells to a cell.
    pub(super) fn calculate(
        &mut self,
        op: CalcOp,
        vectors: u16,
        from: Vec<Piece>,
        to: u64,
        guard: Guard,
    ) -> Result<(), Error> {
        let calc = Calc { op, signed: false, big_endian: cfg!(target_endian = "big"), vectors };
        let node = self.node(Op::Calc(calc, from, self.at(to)))?;
        self.guard(node, guard);
        self.place(node)
    }

    fn zeros(&mut self) -> Result<u64, Error> {
        if self.zeros.is_none() {
            self.zeros = Some(self.cell(HALF)?);
        }
        Ok(self.zeros.unwrap_or_default())
    }
}
