//! What a program does, said by an interpreter that knows no RDMA: what a run in the NIC is compared with.
//!
//! Regions are bytes at addresses; variables hold 64 bits. A program that reads where no region is fails, as
//! in the NIC.

use super::ast::*;
use std::collections::{BTreeMap, BTreeSet};

/// A region's bytes, and where they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Address of the first byte.
    pub addr: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What became of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Variables and registers.
    pub variables: BTreeMap<String, u64>,
    /// Regions.
    pub regions: BTreeMap<String, Memory>,
    /// Replies: bytes and immediate.
    pub replies: Vec<(Vec<u8>, Option<u32>)>,
    /// Why it stopped, if not at its end.
    pub stopped: Option<String>,
    /// Lines of statements that were executed.
    pub executed: BTreeSet<u32>,
    /// How conditions came out: their lines, and whether they held.
    pub tested: BTreeSet<(u32, bool)>,
}

/// How a statement ended.
enum Flow {
    On,
    Leave,
}

struct Machine<'a> {
    program: &'a Program,
    out: Outcome,
    /// What was read, by name and field.
    read: BTreeMap<(String, String), (u64, Type)>,
    types: BTreeMap<String, Type>,
    steps: u64,
}

/// Runs a program on these arguments and regions, for at most so many statements.
pub fn interpret(
    program: &Program,
    arguments: &[u64],
    regions: BTreeMap<String, Memory>,
    steps: u64,
) -> Outcome {
    let out = Outcome { regions, ..Outcome::default() };
    let mut machine = Machine { program, out, read: BTreeMap::new(), types: BTreeMap::new(), steps };
    for (param, value) in program.params.iter().zip(arguments) {
        machine.out.variables.insert(param.name.clone(), param.ty.cut(*value));
        machine.types.insert(param.name.clone(), param.ty);
    }
    if let Err(why) = machine.block(&program.body) {
        machine.out.stopped = Some(why);
    }
    machine.out
}

impl Machine<'_> {
    fn block(&mut self, body: &[Statement]) -> Result<Flow, String> {
        for statement in body {
            self.steps = self.steps.checked_sub(1).ok_or("too many steps")?;
            self.out.executed.insert(statement.line);
            if let Flow::Leave = self.statement(statement)? {
                return Ok(Flow::Leave);
            }
        }
        Ok(Flow::On)
    }

    fn statement(&mut self, Statement { line, kind }: &Statement) -> Result<Flow, String> {
        match kind {
            Kind::Let(name, region, at, fields) => {
                let mut at = self.value(at)?;
                for (field, ty) in fields {
                    let bytes = self.bytes(region, at, ty.bytes().into())?;
                    let big = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
                    let number = if *ty == Type::Word { u64::from_ne_bytes(big.to_be_bytes()) } else { big };
                    self.read.insert((name.clone(), field.clone()), (number, *ty));
                    at += u64::from(ty.bytes());
                }
            }
            Kind::Var(name, ty) => {
                self.types.insert(name.clone(), *ty);
                self.out.variables.entry(name.clone()).or_insert(0);
            }
            Kind::If(condition, then, otherwise) => {
                let holds = self.holds(condition)?;
                self.out.tested.insert((*line, holds));
                let body = if holds { then } else { otherwise };
                return self.block(body);
            }
            Kind::Loop(condition, times, body) => {
                let mut round = 0;
                while *times == Times::Recycle || matches!(times, Times::Unroll(times) if round < *times) {
                    if let Some(condition) = condition {
                        let holds = self.holds(condition)?;
                        self.out.tested.insert((*line, holds));
                        if !holds {
                            break;
                        }
                    }
                    if let Flow::Leave = self.block(body)? {
                        break;
                    }
                    self.steps = self.steps.checked_sub(1).ok_or("too many steps")?;
                    round += 1;
                }
            }
            Kind::Break => return Ok(Flow::Leave),
            Kind::Set(name, value) => {
                let value = self.value(value)?;
                self.out.variables.insert(name.clone(), value);
            }
            Kind::Load(name, base, offset) => self.load(name, self.address(base, offset.as_ref())?)?,
            Kind::Store(base, offset, value) => {
                self.store(self.address(base, offset.as_ref())?, self.value(value)?)?;
            }
            Kind::Add(name, value) => {
                let value = self.value(value)?;
                let sum = self.out.variables.entry(name.clone()).or_insert(0);
                *sum = sum.wrapping_add(value);
            }
            Kind::Pick(name, key, pairs) => self.pick(name, key, pairs)?,
            Kind::Reply(carries, imm) => {
                let bytes = match carries {
                    Carries::Nothing => Vec::new(),
                    Carries::Value(value) => self.value(value)?.to_ne_bytes().to_vec(),
                    Carries::Piece(region, at, len) => {
                        let (at, len) = (self.value(at)?, self.value(len)?);
                        self.bytes(region, at, len)?
                    }
                };
                self.out.replies.push((bytes, *imm));
            }
        }
        Ok(Flow::On)
    }

    fn pick(&mut self, name: &str, key: &Atom, pairs: &[(Atom, Atom)]) -> Result<(), String> {
        let key = self.value(key)?;
        let mut picked = None;
        for (other, value) in pairs {
            if self.value(other)? <= key || picked.is_none() {
                picked = Some(self.value(value)?);
            }
        }
        self.out.variables.insert(name.to_owned(), picked.unwrap_or(0));
        Ok(())
    }

    fn load(&mut self, name: &str, at: u64) -> Result<(), String> {
        let region = self.memory()?;
        let bytes = self.bytes(&region, at, 8)?;
        let word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        self.out.variables.insert(name.to_owned(), word);
        Ok(())
    }

    fn store(&mut self, at: u64, value: u64) -> Result<(), String> {
        let name = self.memory()?;
        self.bytes(&name, at, 8)?;
        if let Some(memory) = self.out.regions.get_mut(&name) {
            let at = (at - memory.addr) as usize;
            memory.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        Ok(())
    }

    fn memory(&self) -> Result<String, String> {
        let found = self.program.regions.iter().find(|region| region.right == Right::Memory);
        found.map(|region| region.name.clone()).ok_or_else(|| "no memory".to_owned())
    }

    fn address(&self, base: &Atom, offset: Option<&Atom>) -> Result<u64, String> {
        let offset = offset.map_or(Ok(0), |offset| self.value(offset))?;
        Ok(self.value(base)?.wrapping_add(offset))
    }

    fn bytes(&self, region: &str, at: u64, len: u64) -> Result<Vec<u8>, String> {
        let memory = self.out.regions.get(region).ok_or("no such region")?;
        let start = at.wrapping_sub(memory.addr);
        let end = start.checked_add(len).filter(|end| *end <= memory.bytes.len() as u64);
        let end = end.ok_or_else(|| format!("{len} bytes at {at:#x} are not in {region}"))?;
        Ok(memory.bytes[start as usize..end as usize].to_vec())
    }

    fn value(&self, value: &Atom) -> Result<u64, String> {
        match value {
            Atom::Number(number) => Ok(*number),
            Atom::Address(region, at) => {
                let memory = self.out.regions.get(region).ok_or("no such region")?;
                Ok(memory.addr + at)
            }
            Atom::Name(name) => Ok(self.out.variables.get(name).copied().unwrap_or(0)),
            Atom::Field(of, field) => {
                let found = self.read.get(&(of.clone(), field.clone()));
                found.map(|(number, _)| *number).ok_or_else(|| format!("{of} was not read"))
            }
        }
    }

    fn holds(&self, condition: &Condition) -> Result<bool, String> {
        let (mut left, mut right) = (self.value(&condition.left)?, self.value(&condition.right)?);
        if !condition.wide {
            // As much as one test compares.
            (left, right) = (Type::U48.cut(left), Type::U48.cut(right));
        }
        Ok(match condition.compare {
            Compare::Equal => left == right,
            Compare::NotEqual => left != right,
            Compare::Less => left < right,
            Compare::LessEqual => left <= right,
            Compare::Greater => left > right,
            Compare::GreaterEqual => left >= right,
        })
    }
}
