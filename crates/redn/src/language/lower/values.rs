//! Values: where arguments, fields and variables are, and how their bytes come into WQEs.

use super::{Lowering, Part, SCATTER, Type};
use crate::chain::{Field, Op, Piece, Place, WqeId};
use crate::language::ast::*;
use crate::language::{Error, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Binding {
    /// An argument, or a field that a variable was set to.
    Value(usize),
    /// A variable.
    Cell(u64, Type),
    /// What was read.
    Read(BTreeMap<String, usize>),
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The client's message.
    Message,
    /// A READ.
    Read(WqeId),
}

/// An argument or a field.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub ty: Type,
    pub origin: Origin,
    /// In which loop it is read.
    ring: Option<usize>,
    /// The stage from which on it is there.
    stage: usize,
    /// Where its bytes go, the lowest first, for each use.
    pub uses: Vec<Vec<Place>>,
    /// It has to be in a cell.
    must_spill: bool,
    /// Its cell.
    pub cell: Option<u64>,
}

/// A big-endian field's bytes, the lowest first.
pub(super) fn big_field(wqe: WqeId, field: Field, bytes: u8) -> Vec<Place> {
    (0..bytes).rev().map(|skip| Place::In(wqe, field, skip)).collect()
}

/// Names that are assigned to where it cannot be said once and for all what they are: their values are cells.
pub(super) fn registers(program: &Program) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    collect(&program.body, true, &mut out);
    out
}

fn collect(body: &[Statement], straight: bool, out: &mut BTreeSet<String>) {
    for statement in body {
        match &statement.kind {
            Kind::Set(_, Atom::Field(..)) if straight => {}
            Kind::Set(name, _)
            | Kind::Add(name, _)
            | Kind::Load(name, ..)
            | Kind::Var(name, _)
            | Kind::Pick(name, ..) => {
                out.insert(name.clone());
            }
            Kind::If(_, then, otherwise) => {
                collect(then, false, out);
                collect(otherwise, false, out);
            }
            Kind::Loop(condition, times, body) => {
                let plain = condition.is_none() && *times != Times::Recycle && !leaves(body);
                collect(body, straight && plain, out);
            }
            _ => {}
        }
    }
}

/// Whether a body has a `break` of its loop.
pub(super) fn leaves(body: &[Statement]) -> bool {
    body.iter().any(|statement| match &statement.kind {
        Kind::Break => true,
        Kind::If(_, then, otherwise) => leaves(then) || leaves(otherwise),
        _ => false,
    })
}

impl Lowering<'_> {
    /// The program's arguments.
    pub(super) fn arguments(&mut self) -> Result<(), Error> {
        let file = self.file;
        for param in &file.program.params {
            self.line = param.line;
            let value = self.value(param.ty, Origin::Message)?;
            let binding = match self.registers.contains(&param.name) {
                true => {
                    self.values[value].must_spill = true;
                    let cell = self.spill(value)?;
                    self.variables.push((param.name.clone(), cell));
                    Binding::Cell(cell, param.ty)
                }
                false => Binding::Value(value),
            };
            if self.names.insert(param.name.clone(), binding).is_some() {
                return self.error(format!("{} is declared twice", param.name));
            }
        }
        Ok(())
    }

    fn value(&mut self, ty: Type, origin: Origin) -> Result<usize, Error> {
        let id = self.values.len();
        let (ring, stage) = (self.ring, self.stage());
        let value = Value { ty, origin, ring, stage, uses: Vec::new(), must_spill: false, cell: None };
        self.values.push(value);
        // A word's bytes stand as in a cell.
        if self.spilled.contains(&id) || ty == Type::Word {
            self.values[id].must_spill = true;
            self.spill(id)?;
        }
        Ok(id)
    }

    fn spill(&mut self, id: usize) -> Result<u64, Error> {
        if let Some(cell) = self.values[id].cell {
            return Ok(cell);
        }
        let cell = self.cell(8)?;
        self.values[id].cell = Some(cell);
        Ok(cell)
    }

    /// A variable.
    pub(super) fn declare(&mut self, name: &str, ty: Type) -> Result<u64, Error> {
        match self.names.get(name) {
            // Once more in another round, or another block: it is the same one.
            Some(Binding::Cell(cell, known)) if *known == ty => return Ok(*cell),
            Some(_) => return self.error(format!("{name} is declared twice")),
            None => {}
        }
        if self.regions.contains_key(name) {
            return self.error(format!("{name} is a region"));
        }
        let cell = self.cell(8)?;
        self.names.insert(name.to_owned(), Binding::Cell(cell, ty));
        self.variables.push((name.to_owned(), cell));
        Ok(cell)
    }

    /// The cell of a variable, which is declared by being assigned to.
    pub(super) fn register(&mut self, name: &str) -> Result<u64, Error> {
        match self.names.get(name) {
            Some(Binding::Cell(cell, _)) => Ok(*cell),
            Some(_) => self.error(format!("{name} is not a variable")),
            None => self.declare(name, Type::U64),
        }
    }

    /// A field of what was read.
    pub(super) fn field(&self, of: &str, field: &str) -> Result<usize, Error> {
        match self.names.get(of) {
            Some(Binding::Read(fields)) => match fields.get(field) {
                Some(value) => Ok(*value),
                None => self.error(format!("{of} was not read with a field {field}")),
            },
            Some(_) => self.error(format!("{of} has no fields")),
            None => self.error(format!("there is no {of}")),
        }
    }

    fn binding(&self, value: &Atom) -> Result<Option<Binding>, Error> {
        match value {
            Atom::Number(_) | Atom::Address(..) => Ok(None),
            Atom::Field(of, field) => self.field(of, field).map(|value| Some(Binding::Value(value))),
            Atom::Name(name) => match self.names.get(name) {
                Some(Binding::Read(_)) => self.error(format!("{name} is read: name a field of it")),
                Some(binding) => Ok(Some(binding.clone())),
                None => self.error(format!("there is no variable or argument {name}")),
            },
        }
    }

    /// The type of a value; a number has the narrowest that holds it.
    pub(super) fn type_of(&self, value: &Atom) -> Result<Type, Error> {
        Ok(match (self.binding(value)?, value) {
            (Some(Binding::Value(id)), _) => self.values[id].ty,
            (Some(Binding::Cell(_, ty)), _) => ty,
            (_, Atom::Number(number)) if *number < 1 << 48 => Type::U48,
            (_, Atom::Address(..)) => Type::Addr,
            _ => Type::U64,
        })
    }

    /// Whether its bytes come from a READ or the message straight away, the highest first.
    pub(super) fn comes_big(&self, value: &Atom) -> bool {
        match self.binding(value) {
            Ok(Some(Binding::Value(id))) => {
                let value = &self.values[id];
                value.cell.is_none() && value.origin != Origin::Message
            }
            _ => false,
        }
    }

    /// A value has to be in a cell when the program is lowered for the second time.
    pub(super) fn spill_later(&mut self, value: &Atom) {
        if let Ok(Some(Binding::Value(id))) = self.binding(value) {
            self.values[id].must_spill = true;
        }
    }

    /// A cell that holds a value.
    pub(super) fn cell_of(&mut self, value: &Atom) -> Result<u64, Error> {
        match self.binding(value)? {
            Some(Binding::Cell(cell, _)) => Ok(cell),
            Some(Binding::Value(id)) => {
                self.values[id].must_spill = true;
                self.spill(id)
            }
            _ => {
                let cell = self.cell(8)?;
                let word = self.fixed(value)?;
                let (cells, at) = (self.cells, cell);
                self.chain.word(cells, at, word);
                Ok(cell)
            }
        }
    }

    /// Brings bytes of a value to places in a WQE, the lowest first.
    pub(super) fn put(
        &mut self,
        value: &Atom,
        part: Range<u8>,
        to: &[Place],
        node: WqeId,
    ) -> Result<(), Error> {
        match self.binding(value)? {
            Some(Binding::Value(id)) if self.values[id].cell.is_none() => {
                let value = &mut self.values[id];
                let whole = part.start == 0 && part.end >= value.ty.compared();
                let bytes = usize::from(value.ty.bytes());
                let used = bytes.min(to.len());
                if !whole || used < bytes || value.ring != self.ring {
                    value.must_spill = true;
                }
                value.uses.push(to[..used].to_vec());
                let from = value.stage;
                let changed = &mut self.nodes[node.at as usize].changed;
                *changed = Some(changed.map_or(from, |stage| stage.max(from)));
                Ok(())
            }
            Some(Binding::Value(id)) => {
                let cell = self.spill(id)?;
                self.copy(cell, part, to, node)
            }
            Some(Binding::Cell(cell, _)) => self.copy(cell, part, to, node),
            _ => {
                let cell = self.cell_of(value)?;
                self.copy(cell, part, to, node)
            }
        }
    }

    /// A READ that brings bytes of a cell to places in a WQE.
    pub(super) fn copy(
        &mut self,
        cell: u64,
        part: Range<u8>,
        to: &[Place],
        node: WqeId,
    ) -> Result<(), Error> {
        let bytes = usize::from(part.end - part.start).min(to.len());
        let from = self.at(cell + u64::from(part.start));
        let read = self.node(Op::Read(from, runs(&to[..bytes])))?;
        self.place(read)?;
        self.nodes[node.at as usize].changed = Some(self.stage());
        Ok(())
    }

    /// `let`.
    pub(super) fn reading(
        &mut self,
        name: &str,
        (region, at): (&str, &Atom),
        fields: &[(String, Type)],
        guard: Option<u64>,
    ) -> Result<(), Error> {
        let Some((id, right)) = self.regions.get(region).copied() else {
            return self.error(format!("there is no region {region}"));
        };
        if !matches!(right, Some(Right::Read)) {
            return self.error(format!("region {region} is not declared as `read`"));
        }
        if fields.is_empty() {
            return self.error("nothing is read: name at least one field");
        }
        let from = match at {
            Atom::Address(of, at) if of == region => Place::At(id, *at),
            _ => Place::Of(id),
        };
        let node = self.node(Op::Read(from, Vec::new()))?;
        if from == Place::Of(id) {
            self.put(at, 0..8, &big_field(node, Field::RemoteAddress, 8), node)?;
        }
        self.guard(node, guard);
        self.place(node)?;
        let mut bound = BTreeMap::new();
        for (field, ty) in fields {
            let value = self.value(*ty, Origin::Read(node))?;
            if bound.insert(field.clone(), value).is_some() {
                return self.error(format!("field {field} is named twice"));
            }
        }
        self.names.insert(name.to_owned(), Binding::Read(bound));
        Ok(())
    }

    /// The values that have to be in cells: those that are used more than once, or in another loop, and so
    /// many arguments that the others' entries suffice.
    pub(super) fn spills(&self) -> BTreeSet<usize> {
        let mut out = BTreeSet::new();
        let entries = |value: &Value| value.uses.iter().map(|to| by_order(to).1.len()).sum::<usize>();
        for (id, value) in self.values.iter().enumerate() {
            let often = value.origin != Origin::Message && value.uses.len() > 1;
            if value.must_spill || often {
                out.insert(id);
            }
        }
        let arguments = || self.values.iter().enumerate().filter(|(_, v)| v.origin == Origin::Message);
        loop {
            let of = |(id, value): (usize, &Value)| if out.contains(&id) { 1 } else { entries(value) };
            if arguments().map(of).sum::<usize>() <= SCATTER {
                return out;
            }
            let widest = arguments().filter(|(id, _)| !out.contains(id)).max_by_key(|(_, v)| entries(v));
            let Some((id, _)) = widest else { return out };
            out.insert(id);
        }
    }

    /// The client's message, and the pieces that it is scattered to.
    pub(super) fn message(&self) -> (Vec<Part>, Vec<Piece>) {
        let (mut parts, mut pieces) = (Vec::new(), Vec::new());
        let arguments = self.values.iter().filter(|value| value.origin == Origin::Message);
        for (param, value) in arguments.enumerate() {
            if let Some(cell) = value.cell {
                let bytes = value.ty.bytes();
                parts.push(Part { param, big: false, bytes });
                pieces.push(self.at(cell).piece(bytes.into()));
                continue;
            }
            for to in &value.uses {
                let (big, into) = by_order(to);
                parts.push(Part { param, big, bytes: to.len() as u8 });
                pieces.extend(into);
            }
        }
        (parts, pieces)
    }

    /// Where a READ scatters the fields that it brings.
    pub(super) fn scatter(&self, node: WqeId) -> Vec<Piece> {
        let mut bytes: Vec<Place> = Vec::new();
        let mut dumped = 0;
        for value in self.values.iter().filter(|value| value.origin == Origin::Read(node)) {
            let to: Vec<Place> = match (value.cell, value.uses.first()) {
                (Some(cell), _) => (0..value.ty.bytes()).map(|n| self.at(cell + u64::from(n))).collect(),
                (None, Some(to)) => to.clone(),
                (None, None) => {
                    let dump = (0..value.ty.bytes()).map(|n| self.dump().plus(dumped + u64::from(n)));
                    bytes.extend(dump);
                    dumped = (dumped + u64::from(value.ty.bytes())) % 48;
                    continue;
                }
            };
            match value.ty {
                Type::Word => bytes.extend(to),
                _ => bytes.extend(to.iter().rev()),
            }
        }
        runs(&bytes)
    }
}

/// The order of a value's bytes that takes fewer pieces, and these.
fn by_order(to: &[Place]) -> (bool, Vec<Piece>) {
    let backwards: Vec<Place> = to.iter().rev().copied().collect();
    let (little, big) = (runs(to), runs(&backwards));
    if big.len() < little.len() { (true, big) } else { (false, little) }
}

/// A piece of so many bytes, or one for each run of neighbours.
pub(super) fn runs(bytes: &[Place]) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for place in bytes {
        match out.last_mut() {
            Some(last) if last.place.plus(last.len.into()) == *place => last.len += 1,
            _ => out.push(place.piece(1)),
        }
    }
    out
}
