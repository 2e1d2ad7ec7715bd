//! Conditions: a compare-and-swap that turns one WR on, or a guard.

use super::{Bug, FAILS, GUARD, Guard, HOLDS, Lowering, values};
use crate::WqeOp;
use crate::chain::CALC_ENTRY;
use crate::chain::{Bytes, CalcOp, Field, Form, OPERAND, Op, Piece, Place, Source, Word, WqeId};
use crate::language::Error;
use crate::language::ast::*;
use std::ops::Range;

/// Whether a statement is one WR.
fn is_one(body: &[Statement]) -> bool {
    let one = |kind: &Kind| {
        matches!(kind, Kind::Set(..) | Kind::Add(..) | Kind::Load(..) | Kind::Store(..) | Kind::Break)
            || matches!(kind, Kind::Reply(Carries::Piece(..) | Carries::Nothing, _))
    };
    matches!(body, [statement] if one(&statement.kind))
}

impl Lowering<'_> {
    /// `if`.
    pub(super) fn conditional(
        &mut self,
        condition: &Condition,
        then: &[Statement],
        otherwise: &[Statement],
        guard: Guard,
    ) -> Result<(), Error> {
        // A `break` out of several blocks is several WRs.
        let nested = self.leaves.last().is_some_and(|guards| guards.len() > 1);
        let one = is_one(then) && !(nested && then[0].kind == Kind::Break);
        if condition.compare == Compare::Equal && !condition.wide && one && otherwise.is_empty() {
            let line = self.line;
            self.line = then[0].line;
            let node = self.effect(&then[0].kind)?;
            self.line = line;
            return self.test(condition, 0..6, guard, node);
        }
        let (holds, fails) = self.choose(condition, guard, !otherwise.is_empty())?;
        for (body, guard) in [(then, holds), (otherwise, fails)] {
            if let Some(guards) = self.leaves.last_mut() {
                guards.push(guard);
            }
            self.block(body, Some(guard))?;
            if let Some(guards) = self.leaves.last_mut() {
                guards.pop();
            }
        }
        Ok(())
    }

    /// Two guards: one that holds if the condition does, and one, if `both` are wanted, if it does not.
    pub(super) fn choose(
        &mut self,
        condition: &Condition,
        guard: Guard,
        both: bool,
    ) -> Result<(u64, u64), Error> {
        self.check_width(condition)?;
        match condition.compare {
            Compare::Equal => self.alike(condition, guard),
            Compare::NotEqual => self.alike(condition, guard).map(|(yes, no)| (no, yes)),
            _ => self.ordered(condition, guard, both),
        }
    }

    /// The guards of a test for equality: one that holds if the values are equal, and one if they are not.
    fn alike(&mut self, condition: &Condition, guard: Guard) -> Result<(u64, u64), Error> {
        let cells = self.cell(2 * GUARD)?;
        let (yes, no) = (cells, cells + GUARD);
        match guard {
            None => {
                let first = self.write(yes, &[FAILS, HOLDS].concat())?;
                self.place(first)?;
            }
            Some(outer) => {
                let first = self.write(yes, &FAILS)?;
                self.place(first)?;
                let rest = self.node(Op::Read(self.at(outer), vec![self.at(no).piece(GUARD as u32)]))?;
                self.place(rest)?;
            }
        }
        let lower = if condition.wide {
            // The lower 48 bits first; only if they agree the upper 16 are tested.
            let lower = self.cell(GUARD)?;
            let first = self.write(lower, &FAILS)?;
            self.place(first)?;
            let node = self.write(lower, &HOLDS)?;
            self.test(condition, 0..6, guard, node)?;
            Some(lower)
        } else {
            guard
        };
        let node = self.write(yes, &[HOLDS, FAILS].concat())?;
        self.test(condition, if condition.wide { 6..8 } else { 0..6 }, lower, node)?;
        Ok((yes, no))
    }

    /// The guards of an ordered comparison, of which the second is there if `both` are wanted. One
    /// calculation writes them.
    fn ordered(&mut self, condition: &Condition, guard: Guard, both: bool) -> Result<(u64, u64), Error> {
        let entry = CALC_ENTRY as u64;
        let width = if both { 2 } else { 1 };
        let result = self.cell(width * entry)?;
        let (yes, no) = (result + GUARD, result + entry + GUARD);
        if guard.is_some() {
            // If the outer guard does not hold, nothing is calculated.
            let fails = [[0; GUARD as usize], FAILS].concat().repeat(width as usize);
            let first = self.write(result, &fails)?;
            self.place(first)?;
        }
        let (left, right) = (self.cell_of(&condition.left)?, self.cell_of(&condition.right)?);
        let (op, strict) = match condition.compare {
            Compare::Less => (CalcOp::Max, true),
            Compare::LessEqual => (CalcOp::Max, false),
            Compare::Greater => (CalcOp::Min, true),
            _ => (CalcOp::Min, false),
        };
        // The right value wins if the condition holds. The left one does if both are equal and it is first.
        let (holds, fails) = self.guard_bytes()?;
        let (left, right) = ((left, [fails, holds]), (right, [holds, fails]));
        let strict = strict != (self.options.bug == Some(Bug::Ties));
        let rows = if strict { [left, right] } else { [right, left] };
        let bytes: u32 = if condition.wide { 8 } else { 6 };
        let mut from: Vec<Piece> = Vec::new();
        for (value, goes_with) in rows {
            for guard in &goes_with[..width as usize] {
                // What is cut off of a value is the zeros before the guard's bytes.
                let zeros = 8 - bytes;
                from.push(self.at(value).piece(bytes));
                from.push(self.at(guard + 2 - u64::from(zeros)).piece(zeros + GUARD as u32));
            }
        }
        self.calculate(op, 2, from, result, guard)?;
        Ok((yes, no))
    }

    /// Where the bytes are of a guard that holds, and of one that does not. Two zeros stand before each.
    fn guard_bytes(&mut self) -> Result<(u64, u64), Error> {
        if let Some(known) = self.guards {
            return Ok(known);
        }
        let (holds, fails) = (self.cell(2 + GUARD)?, self.cell(2 + GUARD)?);
        for (at, bytes) in [(holds, HOLDS), (fails, FAILS)] {
            let cells = self.cells;
            self.chain.data(cells, at + 2, bytes);
        }
        self.guards = Some((holds, fails));
        Ok((holds, fails))
    }

    fn check_width(&self, condition: &Condition) -> Result<(), Error> {
        for side in [&condition.left, &condition.right] {
            let ty = self.type_of(side)?;
            if !condition.wide && ty.compared() > 6 {
                return self.error(
                    "compares 64 bits: at most 48 in one test; write `wide`, or declare it `var NAME: u48`",
                );
            }
        }
        Ok(())
    }

    /// Compares bytes of two values, and turns a WR on if they are equal.
    fn test(
        &mut self,
        condition: &Condition,
        part: Range<u8>,
        guard: Guard,
        node: WqeId,
    ) -> Result<(), Error> {
        self.check_width(condition)?;
        let fixed = |value: &Atom| match value {
            Atom::Number(number) => Some(number >> (8 * part.start)),
            _ => None,
        };
        // What comes from a READ goes into the operand, where its order takes two pieces; else what is no
        // number.
        let (mut held, mut sought) = (&condition.left, &condition.right);
        if fixed(held).is_some() || (!self.comes_big(held) && self.comes_big(sought)) {
            (held, sought) = (sought, held);
        }
        let big = self.comes_big(held);
        let bytes = part.end - part.start;
        let spot = |n: u8| usize::from(if big { 5 - n } else { n });
        let number = |value: u64| {
            let mut operand = [0; 6];
            (0..bytes).for_each(|n| operand[spot(n)] = value.to_le_bytes()[usize::from(n)]);
            operand
        };
        let operand = |value: &Atom| fixed(value).map_or([0; 6], number);
        let code = self.wqe(node).op.code();
        let form = Form::nop(operand(held));
        self.wqe(node).posted = Some(form);
        let old = Word::Control(node, Form::nop(operand(sought)));
        let new = Word::Control(node, Form::of(code));
        let control = Place::In(node, Field::Control, 0);
        let test = self.node(Op::CompareSwap(control, (old, new), self.dump().piece(8)))?;
        if self.ring.is_some() && self.options.bug != Some(Bug::NoRestore) {
            // It may have been turned on the last time.
            let whole = self.type_of(held)?.compared() == 6;
            if big && !whole {
                // From a cell it comes when all of the operand has been restored.
                self.spill_later(held);
            }
            let restore = if big && whole {
                // The READ before has brought all of the operand.
                let nop = Source::Inline(Bytes::Are(vec![WqeOp::Nop as u8]));
                self.node(Op::Write(nop, Place::In(node, Field::Opcode, 0), None))?
            } else {
                self.node(Op::Write(Source::Inline(Bytes::Control(node, form)), control, None))?
            };
            self.place(restore)?;
        }
        if fixed(held).is_none() {
            let to: Vec<Place> =
                (0..bytes).map(|n| Place::In(node, Field::Control, OPERAND[spot(n)])).collect();
            self.put(held, part.clone(), &to, node)?;
        }
        if fixed(sought).is_none() {
            let to: Vec<Place> =
                (0..bytes).map(|n| Place::In(test, Field::Compare, 7 - OPERAND[spot(n)])).collect();
            self.put(sought, part.clone(), &to, test)?;
        }
        self.guard(test, guard);
        self.place(test)?;
        self.nodes[node.at as usize].changed = Some(self.stage());
        self.place(node)
    }

    /// A guard that holds if another one does, or always.
    pub(super) fn alive(&mut self, guard: Guard) -> Result<u64, Error> {
        let cell = self.cell(GUARD)?;
        let node = match guard {
            None => self.write(cell, &HOLDS)?,
            Some(outer) => self.node(Op::Read(self.at(outer), vec![self.at(cell).piece(GUARD as u32)]))?,
        };
        self.place(node)?;
        Ok(cell)
    }

    /// A WR takes a byte of a guard as its operation.
    pub(super) fn operation_from(&mut self, node: WqeId, guard: u64, at: u64) {
        self.wqe(node).posted = Some(Form::of(WqeOp::Nop));
        let into = values::big_field(node, Field::Opcode, 1)[0].piece(1);
        self.hidden(Op::Read(self.at(guard + at), vec![into]));
        self.nodes[node.at as usize].changed = Some(self.stage());
    }
}
