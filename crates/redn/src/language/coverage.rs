//! What programs have in them: which statements were executed, how WQEs that came of them were ordered, and
//! on how many queues.
//!
//! A statement's line tells its WQEs. Each of them stands in one of the paper's three orders: nothing but its
//! queue holds it (WQ order); it waits for what came before it (completion order: a fence, or a WAIT); or it
//! is fetched only then, too, because others change it (doorbell order: WAIT and ENABLE). Some stand on a
//! queue of their own beside the worker's, which does other statements meanwhile.

use super::Compiled;
use super::ast::*;
use super::interpret::Outcome;
use crate::chain::{Op, QueueId, Until, WqeId};
use crate::show::changed_by;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How a program's cells are counted: by order, by what is done meanwhile, and by number of queues.
pub const COLUMNS: [&str; 8] = ["WQ", "completion", "doorbell", "beside", "3 queues", "4-12", "13-24", "25-"];
/// Columns from here on are numbers of queues: these many at least.
const QUEUES: [usize; 4] = [3, 4, 13, 25];
const ORDERS: usize = COLUMNS.len() - QUEUES.len();
const BESIDE: usize = 3;

/// What is executed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the texts of `ALL` say it")]
pub enum Row {
    ReadFixed,
    ReadComputed,
    MoveNumber,
    MoveAddress,
    MoveVariable,
    MoveField,
    Load,
    LoadIndexed,
    Store,
    StoreIndexed,
    AddNumber,
    AddValue,
    Pick,
    Equal(bool),
    NotEqual(bool),
    Ordered(bool),
    Wide(bool),
    Nested,
    Else,
    Unrolled,
    Rounds,
    Recycled,
    Laps,
    Break,
    ReplyNothing,
    ReplyValue,
    ReplyBytes,
    ReplySilent,
}

impl Row {
    /// All of them that the generator makes, in words.
    pub const ALL: [(Row, &'static str); 32] = [
        (Row::ReadFixed, "read at an address"),
        (Row::ReadComputed, "read at a value"),
        (Row::MoveNumber, "mov r, number"),
        (Row::MoveAddress, "mov r, &region"),
        (Row::MoveVariable, "mov r, variable"),
        (Row::MoveField, "mov r, field"),
        (Row::Load, "mov r, [a]"),
        (Row::LoadIndexed, "mov r, [a + b]"),
        (Row::Store, "mov [a], r"),
        (Row::StoreIndexed, "mov [a + b], r"),
        (Row::AddNumber, "r += number"),
        (Row::AddValue, "r += value"),
        (Row::Pick, "pick"),
        (Row::Equal(true), "== holds"),
        (Row::Equal(false), "== fails"),
        (Row::NotEqual(true), "!= holds"),
        (Row::NotEqual(false), "!= fails"),
        (Row::Ordered(true), "< <= > >= holds"),
        (Row::Ordered(false), "< <= > >= fails"),
        (Row::Wide(true), "wide holds"),
        (Row::Wide(false), "wide fails"),
        (Row::Nested, "nested if"),
        (Row::Else, "else"),
        (Row::Unrolled, "while unroll"),
        (Row::Rounds, "loop unroll"),
        (Row::Recycled, "while recycle"),
        (Row::Laps, "loop recycle"),
        (Row::Break, "break"),
        (Row::ReplyNothing, "reply imm"),
        (Row::ReplyValue, "reply value imm"),
        (Row::ReplyBytes, "reply R[at; len] imm"),
        (Row::ReplySilent, "reply without imm"),
    ];

    /// Whether it can be had in a column at all.
    fn can_be(self, column: usize) -> bool {
        match (self, COLUMNS[column]) {
            // A recycled loop has queues of its own.
            (Row::Recycled | Row::Laps, "3 queues") => false,
            // A loop's guard is written before its first round.
            (Row::Break, "completion") => false,
            _ => true,
        }
    }
}

/// How many programs had each cell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    cells: BTreeMap<(Row, usize), u64>,
}

impl Coverage {
    /// What a program has in it, of which a run is known.
    pub fn of(program: &Program, compiled: &Compiled, said: &Outcome) -> Coverage {
        let mut lines = BTreeMap::new();
        rows(&program.body, &mut lines, (said, false));
        let orders = orders(compiled);
        let queues = compiled.chain.queues.len();
        let bin = ORDERS + QUEUES.iter().rposition(|least| queues >= *least).unwrap_or(0);
        let mut cells = BTreeMap::new();
        for (line, row) in lines.iter().flat_map(|(line, rows)| rows.iter().map(move |row| (line, row))) {
            cells.insert((*row, bin), 1);
            for order in orders.get(line).into_iter().flatten() {
                cells.insert((*row, *order), 1);
            }
        }
        Coverage { cells }
    }

    /// Counts another one's programs too.
    pub fn add(&mut self, other: &Coverage) {
        for (cell, count) in &other.cells {
            *self.cells.entry(*cell).or_default() += count;
        }
    }

    /// Cells that no program had, in words.
    pub fn missing(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (row, words) in Row::ALL {
            for (column, name) in COLUMNS.iter().enumerate() {
                if row.can_be(column) && !self.cells.contains_key(&(row, column)) {
                    out.push(format!("{words}: {name}"));
                }
            }
        }
        out
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<22}", "programs with")?;
        COLUMNS.iter().try_for_each(|name| write!(f, " {name:>10}"))?;
        for (row, words) in Row::ALL {
            write!(f, "\n{words:<22}")?;
            for column in 0..COLUMNS.len() {
                match row.can_be(column) {
                    true => write!(f, " {:>10}", self.cells.get(&(row, column)).unwrap_or(&0))?,
                    false => write!(f, " {:>10}", "-")?,
                }
            }
        }
        Ok(())
    }
}

/// What stands on the lines that were executed.
fn rows(body: &[Statement], out: &mut BTreeMap<u32, BTreeSet<Row>>, (said, conditional): (&Outcome, bool)) {
    for Statement { line, kind } in body {
        if !said.executed.contains(line) {
            continue;
        }
        let mut found = BTreeSet::new();
        let tests = |condition: &Condition, found: &mut BTreeSet<Row>| {
            for held in [true, false] {
                if said.tested.contains(&(*line, held)) {
                    found.extend(tested(condition, held));
                }
            }
        };
        match kind {
            Kind::If(condition, then, otherwise) => {
                tests(condition, &mut found);
                if conditional {
                    found.insert(Row::Nested);
                }
                if !otherwise.is_empty() && said.tested.contains(&(*line, false)) {
                    found.insert(Row::Else);
                }
                rows(then, out, (said, true));
                rows(otherwise, out, (said, true));
            }
            Kind::Loop(condition, times, inner) => {
                if let Some(condition) = condition {
                    tests(condition, &mut found);
                }
                found.insert(match (condition, times) {
                    (Some(_), Times::Unroll(_)) => Row::Unrolled,
                    (None, Times::Unroll(_)) => Row::Rounds,
                    (Some(_), Times::Recycle) => Row::Recycled,
                    (None, Times::Recycle) => Row::Laps,
                });
                rows(inner, out, (said, conditional));
            }
            other => found.extend(simple(other)),
        }
        out.entry(*line).or_default().extend(found);
    }
}

fn tested(condition: &Condition, held: bool) -> Vec<Row> {
    let mut out = vec![match condition.compare {
        Compare::Equal => Row::Equal(held),
        Compare::NotEqual => Row::NotEqual(held),
        _ => Row::Ordered(held),
    }];
    out.extend(condition.wide.then_some(Row::Wide(held)));
    out
}

fn simple(kind: &Kind) -> Option<Row> {
    Some(match kind {
        Kind::Let(_, _, Atom::Address(..), _) => Row::ReadFixed,
        Kind::Let(..) => Row::ReadComputed,
        Kind::Set(_, Atom::Number(_)) => Row::MoveNumber,
        Kind::Set(_, Atom::Address(..)) => Row::MoveAddress,
        Kind::Set(_, Atom::Name(_)) => Row::MoveVariable,
        Kind::Set(_, Atom::Field(..)) => Row::MoveField,
        Kind::Load(_, _, None) => Row::Load,
        Kind::Load(..) => Row::LoadIndexed,
        Kind::Store(_, None, _) => Row::Store,
        Kind::Store(..) => Row::StoreIndexed,
        Kind::Add(_, Atom::Number(_) | Atom::Address(..)) => Row::AddNumber,
        Kind::Add(..) => Row::AddValue,
        Kind::Pick(..) => Row::Pick,
        Kind::Break => Row::Break,
        Kind::Reply(_, None) => Row::ReplySilent,
        Kind::Reply(Carries::Nothing, _) => Row::ReplyNothing,
        Kind::Reply(Carries::Value(_), _) => Row::ReplyValue,
        Kind::Reply(Carries::Piece(..), _) => Row::ReplyBytes,
        Kind::Var(..) | Kind::If(..) | Kind::Loop(..) => return None,
    })
}

/// The orders, as columns, in which WQEs of each line stand.
fn orders(compiled: &Compiled) -> BTreeMap<u32, BTreeSet<usize>> {
    let chain = &compiled.chain;
    let changed = changed_by(chain);
    // Replies that begin what a stage enables.
    let enabled: BTreeSet<WqeId> = [compiled.worker]
        .iter()
        .chain(&compiled.beside)
        .flat_map(|queue| &chain.queue_of(*queue).wqes)
        .filter_map(|wqe| match wqe.op {
            Op::Enable(Until::Through(id)) if id.queue == compiled.client => {
                Some(WqeId { at: id.at + 1, ..id })
            }
            _ => None,
        })
        .chain([WqeId { queue: compiled.client, at: 0 }])
        .collect();
    let entered = entered(compiled);
    let mut out: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    for (q, queue) in chain.queues.iter().enumerate() {
        // A loop's stages are enabled behind a WAIT of the stage before.
        let mut before = if queue.recycled { 2 } else { 0 };
        for (at, wqe) in (0u32..).zip(&queue.wqes) {
            let id = WqeId { queue: QueueId(q as u16), at };
            match wqe.op {
                Op::Wait(_) => before = 1,
                // A stage's last WAIT may be followed by ENABLEs of replies too.
                Op::Enable(_) => before = if before > 0 { 2 } else { 0 },
                Op::Nop(_) => {}
                _ => {
                    let first = if enabled.contains(&id) { 1 } else { 0 };
                    let own = match changed.contains_key(&id) || entered.contains(&id) {
                        true => 2,
                        false => first.max(before).max(usize::from(wqe.fence)),
                    };
                    let cells = out.entry(wqe.line).or_default();
                    cells.insert(own);
                    if compiled.beside.contains(&id.queue) {
                        cells.insert(BESIDE);
                    }
                    before = 0;
                }
            }
        }
    }
    out
}

/// The first WQEs that the worker enables on each queue beside its own.
fn entered(compiled: &Compiled) -> BTreeSet<WqeId> {
    let chain = &compiled.chain;
    let ends = |queue: &crate::chain::Queue, of: QueueId| -> BTreeSet<u32> {
        let ends = queue.wqes.iter().filter_map(|wqe| match wqe.op {
            Op::Enable(Until::Through(id)) if id.queue == of => Some(id.at),
            _ => None,
        });
        ends.collect()
    };
    let mut out = BTreeSet::new();
    for queue in &compiled.beside {
        let own: BTreeSet<u32> = chain.queues.iter().flat_map(|other| ends(other, *queue)).collect();
        for end in ends(chain.queue_of(compiled.worker), *queue) {
            let at = own.range(..end).next_back().map_or(0, |before| before + 1);
            out.insert(WqeId { queue: *queue, at });
        }
    }
    out
}
