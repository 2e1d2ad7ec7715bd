//! Statements that do not need each other, on queues of their own: processing units work on them at once.
//!
//! A run of statements is parted by what they need of each other: a variable, a field, the memory that `mov`
//! works on. Parts of which each takes a doorbell order at least are laid out beside each other; the first
//! one stays on the worker's queue. Others have a queue each, which is enabled when all before the run is
//! done, and what stands behind the run waits for all of them. Replies leave in the program's order: a part
//! enables its own when the part before has enabled its replies.

use super::{Bug, Guard, Lowering, values};
use crate::language::Error;
use crate::language::ast::*;
use std::collections::BTreeSet;

/// Parts at most: the adapter of the paper has as many processing units.
const PARTS_MAX: usize = 8;
/// Statements of a run at most.
const RUN_MAX: usize = 64;
/// Stands for the memory that `mov` works on: no name has this sign.
const WORDS: &str = "[]";

/// What a statement needs and changes.
#[derive(Clone, Debug, Default)]
struct Uses {
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
    replies: bool,
    /// It cannot stand beside others: it leaves a loop, or never ends.
    alone: bool,
}

impl Uses {
    fn meets(&self, other: &Uses) -> bool {
        let common = |a: &BTreeSet<String>, b: &BTreeSet<String>| !a.is_disjoint(b);
        common(&self.writes, &other.writes)
            || common(&self.writes, &other.reads)
            || common(&self.reads, &other.writes)
    }

    fn read(&mut self, value: &Atom) {
        match value {
            Atom::Name(name) | Atom::Field(name, _) => drop(self.reads.insert(name.clone())),
            Atom::Number(_) | Atom::Address(..) => {}
        }
    }

    fn write(&mut self, name: &str) {
        self.writes.insert(name.to_owned());
    }

    fn block(&mut self, program: &Program, body: &[Statement], in_loop: bool) {
        body.iter().for_each(|statement| self.add(program, &statement.kind, in_loop));
    }

    fn add(&mut self, program: &Program, kind: &Kind, in_loop: bool) {
        match kind {
            Kind::Let(name, _, at, _) => {
                self.read(at);
                self.write(name);
            }
            Kind::Var(name, _) => self.write(name),
            Kind::If(condition, then, otherwise) => {
                self.read(&condition.left);
                self.read(&condition.right);
                self.block(program, then, in_loop);
                self.block(program, otherwise, in_loop);
            }
            Kind::Loop(condition, times, body) => {
                if let Some(condition) = condition {
                    self.read(&condition.left);
                    self.read(&condition.right);
                }
                self.alone |= *times == Times::Recycle && condition.is_none() && !values::leaves(body);
                self.block(program, body, true);
            }
            Kind::Break => self.alone |= !in_loop,
            Kind::Set(name, value) => {
                self.read(value);
                self.write(name);
            }
            Kind::Load(name, base, offset) => {
                [Some(base), offset.as_ref()].into_iter().flatten().for_each(|value| self.read(value));
                self.reads.insert(WORDS.to_owned());
                self.write(name);
            }
            Kind::Store(base, offset, value) => {
                [Some(base), offset.as_ref(), Some(value)].into_iter().flatten().for_each(|v| self.read(v));
                self.write(WORDS);
            }
            Kind::Add(name, value) => {
                self.read(value);
                self.reads.insert(name.clone());
                self.write(name);
            }
            Kind::Pick(name, key, pairs) => {
                self.read(key);
                for (key, value) in pairs {
                    self.read(key);
                    self.read(value);
                }
                self.write(name);
            }
            Kind::Reply(carries, _) => {
                self.replies = true;
                match carries {
                    Carries::Nothing => {}
                    Carries::Value(value) => self.read(value),
                    Carries::Piece(region, at, len) => {
                        self.read(at);
                        self.read(len);
                        let memory = |r: &Region| r.name == *region && r.right == Right::Memory;
                        if program.regions.iter().any(memory) {
                            self.reads.insert(WORDS.to_owned());
                        }
                    }
                }
            }
        }
    }
}

/// Part of a run: which of its statements, and whether it takes a doorbell order.
struct Part {
    statements: Vec<usize>,
    orders: bool,
    /// The first of its statements that reply, and the last.
    replies: Option<(usize, usize)>,
}

/// Parts a run of statements by what they need of each other.
fn parts(uses: &[Uses], orders: &[bool]) -> Vec<Part> {
    // By statement: its part's number.
    let mut of: Vec<usize> = (0..uses.len()).collect();
    let join = |of: &mut Vec<usize>, a: usize, b: usize| {
        let (from, to) = (of[a].max(of[b]), of[a].min(of[b]));
        of.iter_mut().filter(|part| **part == from).for_each(|part| *part = to);
    };
    for (at, this) in uses.iter().enumerate() {
        for before in (0..at).filter(|before| uses[*before].meets(this)) {
            join(&mut of, before, at);
        }
    }
    loop {
        let mut parts: Vec<Part> = Vec::new();
        for number in of.iter().copied().collect::<BTreeSet<usize>>() {
            let statements: Vec<usize> = (0..of.len()).filter(|at| of[*at] == number).collect();
            let mut replying = statements.iter().copied().filter(|at| uses[*at].replies);
            let first = replying.next();
            let replies = first.map(|first| (first, replying.next_back().unwrap_or(first)));
            let orders = statements.iter().any(|at| orders[*at]);
            parts.push(Part { statements, orders, replies });
        }
        // Parts whose replies take turns are one.
        parts.sort_by_key(|part| part.replies.map_or(part.statements[0], |(first, _)| first));
        let replying: Vec<&Part> = parts.iter().filter(|part| part.replies.is_some()).collect();
        let turns = replying.windows(2).find_map(|two| {
            let ((_, last), (first, _)) = (two[0].replies?, two[1].replies?);
            (first < last).then_some((two[0].statements[0], two[1].statements[0]))
        });
        match turns {
            Some((a, b)) => join(&mut of, a, b),
            None => return parts,
        }
    }
}

impl Lowering<'_> {
    /// Statements at the beginning of a block that may stand beside each other: which ones, by queue.
    pub(super) fn independent<'s>(&self, body: &'s [Statement]) -> Option<Vec<Vec<&'s Statement>>> {
        if self.lane.is_some() || self.ring.is_some() || self.options.bug == Some(Bug::OneStage) {
            return None;
        }
        let (uses, orders) = self.run(body);
        let (len, parts) = best(&uses, &orders)?;
        let count = |parts: &[Part]| parts.iter().filter(|part| part.orders).count();
        // To come together before the run may cost a doorbell order that would not be there otherwise.
        if count(&parts) < if self.begun { 3 } else { 2 } {
            return None;
        }
        // What takes none may stand before the run.
        let later = uses.get(1..).and_then(|uses| best(uses, &orders[1..]));
        if !orders[0] && later.is_some_and(|(_, later)| count(&later) > count(&parts)) {
            return None;
        }
        debug_assert_eq!(parts.iter().map(|part| part.statements.len()).sum::<usize>(), len);
        let mut out: Vec<Vec<usize>> = Vec::new();
        let mut light = Vec::new();
        for part in parts {
            // One that takes no doorbell order goes along with another; its replies come when they have to.
            match (part.orders, part.replies, out.last_mut()) {
                (true, ..) => out.push(part.statements),
                (false, Some(_), Some(last)) => last.extend(part.statements),
                (false, ..) => light.extend(part.statements),
            }
        }
        out[0].extend(light);
        for part in &mut out {
            part.sort_unstable();
        }
        Some(out.into_iter().map(|part| part.into_iter().map(|at| &body[at]).collect()).collect())
    }

    /// What statements use until one that cannot stand beside others, and whether they take doorbell orders.
    fn run(&self, body: &[Statement]) -> (Vec<Uses>, Vec<bool>) {
        let (mut uses, mut orders) = (Vec::new(), Vec::new());
        for statement in body.iter().take(RUN_MAX) {
            let mut of = Uses::default();
            of.add(&self.file.program, &statement.kind, false);
            if of.alone {
                break;
            }
            uses.push(of);
            orders.push(self.takes_order(&statement.kind));
        }
        (uses, orders)
    }

    /// Whether a statement by itself fills in a WQE of its own.
    fn takes_order(&self, kind: &Kind) -> bool {
        let changes = |value: &Atom| match value {
            Atom::Number(_) | Atom::Address(..) => false,
            Atom::Name(name) => self.registers.contains(name),
            Atom::Field(..) => true,
        };
        match kind {
            Kind::If(..) | Kind::Loop(..) | Kind::Pick(..) => true,
            Kind::Let(_, _, at, _) => changes(at),
            Kind::Load(_, base, offset) | Kind::Store(base, offset, _) => offset.is_some() || changes(base),
            Kind::Add(_, value) => changes(value),
            Kind::Var(..) | Kind::Break | Kind::Set(..) | Kind::Reply(..) => false,
        }
    }

    /// Lowers statements beside each other.
    pub(super) fn side_by_side(&mut self, lanes: &[Vec<&Statement>], guard: Guard) -> Result<(), Error> {
        for (lane, statements) in lanes.iter().enumerate() {
            self.lane = Some(lane);
            self.boundary();
            for statement in statements {
                self.line = statement.line;
                self.statement(statement, guard)?;
            }
        }
        self.lane = None;
        self.boundary();
        self.begun = false;
        Ok(())
    }

    /// Whether the current stage is where queues have come together, and nothing else is in it.
    pub(super) fn is_join(&self) -> bool {
        match self.stages.as_slice() {
            [.., before, last] => before.lane.is_some() && last.lane.is_none() && last.nodes.is_empty(),
            _ => false,
        }
    }
}

/// The run from the first statement on whose parts take most queues, the shortest of them; and its parts.
fn best(uses: &[Uses], orders: &[bool]) -> Option<(usize, Vec<Part>)> {
    let mut best: Option<(usize, usize, Vec<Part>)> = None;
    for len in 2..=uses.len() {
        if !orders[len - 1] {
            continue;
        }
        let parts = parts(&uses[..len], &orders[..len]);
        let count = parts.iter().filter(|part| part.orders).count();
        if (2..=PARTS_MAX).contains(&count) && best.as_ref().is_none_or(|(most, ..)| count > *most) {
            best = Some((count, len, parts));
        }
    }
    best.map(|(_, len, parts)| (len, parts))
}
