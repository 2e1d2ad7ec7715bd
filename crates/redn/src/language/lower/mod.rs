//! Lowering: each statement becomes WRs, and each dependency an order.
//!
//! A *stage* is a run of WQEs of which none changes another: they are fetched together, and one that needs
//! what a READ or an atomic before it brought waits by its fence. Between two stages stand a WAIT for the
//! last of the one, and an ENABLE of the other: what the one changed is fetched only then.
//!
//! ```text
//! worker   WAIT message  stage 0  WAIT ENABLE  stage 1  WAIT ENABLE  stage 2 ..
//! reply    R0  R1 ..                               each enabled with the stage that it belongs to
//! loop     a queue for each stage, executed round and round; the last one enables the first one,
//!          or the worker's next stage
//! worker2  stages of statements that do not need those of the worker, enabled by it and waited for
//! ```
//! **Values.** Arguments and fields of what was read go from the message, or the READ, straight into the WQEs
//! that use them, if they are used once and the scatter entries suffice. Otherwise they go into a *cell*, a
//! word of memory in the host's order, and each use is a READ of the cell. Variables are cells.
//!
//! **Conditions.** A test is a compare-and-swap on the conditional's control segment. If a conditional is
//! one WR, that is it; otherwise the conditional sets a *guard*, bytes of memory that are the operation
//! codes of guarded WRs, or NOPs: each of those takes its operation from there before it is fetched.
//!
//! **Order.** `<` and its kin are one WR: a WRITE that calculates MAX or MIN of two entries, each a value and
//! what goes with it. What goes with them are the guard that holds and the one that does not, so that the
//! result is the guard. Of equal values the first entry wins: which one comes first makes a test strict.
//!
//! The same program is lowered twice. The first time it is counted how often each value is used.

mod beside;
mod bugs;
mod counts;
mod loops;
mod pick;
mod place;
mod queues;
mod test;
mod values;

use super::ast::*;
use super::{Error, File};
use crate::WqeOp;
use crate::chain::{
    Bytes, Chain, Field, Form, Memory, Op, Peer, Piece, Place, QueueId, RegionId, Source, Word, Wqe, WqeId,
};
use adverb_rdma::{Access, SendOrder};
pub use bugs::Bug;
pub use counts::Counts;
use std::collections::{BTreeMap, BTreeSet};
use values::{Binding, Value};

/// Scatter entries of a receive or a READ at most, as on the paper's adapter.
pub const SCATTER: usize = 16;
/// Bytes of a guard: operation codes if it holds, and at [`OTHERWISE`] that of an ENABLE if it does not. They
/// are as many as the location has that goes with a value of a calculation.
const GUARD: u64 = 8;
const HOLDS: [u8; 8] = [0x08, 0x10, 0x11, 0x12, 0x17, 0x09, 0, 0];
const FAILS: [u8; 8] = [0, 0, 0, 0, 0, 0, 0x17, 0];
const OTHERWISE: u64 = 6;
/// Queues of a virtual WQE name.
const VIRTUAL: QueueId = QueueId(u16::MAX);
/// WQEs that a program may be lowered to.
const NODES_MAX: usize = 20_000;
/// Bytes of the memory for cells and guards.
const CELLS: u64 = 1 << 20;

/// A part of the client's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which argument.
    pub param: usize,
    /// The highest byte first.
    pub big: bool,
    /// Bytes.
    pub bytes: u8,
}

/// A program as a chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// The chain.
    pub chain: Chain,
    /// The queue to the client: replies, and the receive that starts the program.
    pub client: QueueId,
    /// The queue that does the work.
    pub worker: QueueId,
    /// Queues that do some of it at the same time.
    pub beside: Vec<QueueId>,
    /// The client's buffer, which is to be given.
    pub buffer: RegionId,
    /// Cells of variables: where each is in [`Compiled::cells`].
    pub variables: Vec<(String, u64)>,
    /// Memory of cells and guards.
    pub cells: RegionId,
    /// The program's regions by name.
    pub regions: Vec<(String, RegionId)>,
    /// What the client sends.
    pub message: Vec<Part>,
    /// WRs by kind, of one lap.
    pub counts: Counts,
    /// The same of each line, with what the line needs around itself.
    pub lines: Vec<(u32, Counts)>,
    /// Stages: one more than doorbell orders.
    pub stages: u32,
    /// The word that is set to 1 at the end.
    pub finish: Option<u64>,
}

impl Compiled {
    /// The message that carries these arguments.
    pub fn message(&self, arguments: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in &self.message {
            let bytes = arguments[part.param].to_be_bytes();
            let bytes = &bytes[8 - usize::from(part.bytes)..];
            match part.big {
                true => out.extend_from_slice(bytes),
                false => out.extend(bytes.iter().rev()),
            }
        }
        out
    }
}

/// What a program is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// A word is set at the program's end, for whoever waits for it.
    pub finish: bool,
    /// How the program is made wrong on purpose.
    pub bug: Option<Bug>,
}

/// Makes a chain of a program.
pub fn compile(file: &File, options: Options) -> Result<Compiled, Error> {
    let bug = options.bug.or(file.program.unordered.then_some(Bug::OneStage));
    let options = Options { bug, ..options };
    let mut first = Lowering::new(file, options, BTreeSet::new())?;
    first.program()?;
    let spilled = first.spills();
    let mut second = Lowering::new(file, options, spilled)?;
    second.program()?;
    second.finish()
}

/// A WQE on its way.
struct Node {
    wqe: Wqe,
    /// On the client's queue.
    replies: bool,
    /// The last stage in which it is changed, if it is.
    changed: Option<usize>,
}

/// WQEs that are fetched together.
#[derive(Default)]
struct Stage {
    nodes: Vec<WqeId>,
    /// The loop whose stage it is.
    ring: Option<usize>,
    /// Of statements beside each other: whose stage it is, 0 for those that stay on the worker's queue.
    lane: Option<usize>,
    /// The next stage waits for its replies too.
    awaits_replies: bool,
}

/// A recycled loop.
struct Ring {
    /// The ENABLE of its next lap, and the one that ends it.
    next: WqeId,
    exit: Option<WqeId>,
    /// Where its counter is.
    laps: u64,
    line: u32,
}

struct Lowering<'a> {
    file: &'a File,
    options: Options,
    chain: Chain,
    client: QueueId,
    worker: QueueId,
    buffer: RegionId,
    cells: RegionId,
    /// A region by name: its number there, and what the program may do with it.
    regions: BTreeMap<String, (RegionId, Option<Right>)>,
    used: u64,
    nodes: Vec<Node>,
    stages: Vec<Stage>,
    rings: Vec<Ring>,
    /// The loop that is being lowered.
    ring: Option<usize>,
    /// Which of statements beside each other are being lowered.
    lane: Option<usize>,
    /// The current stage has WQEs of statements before.
    begun: bool,
    values: Vec<Value>,
    spilled: BTreeSet<usize>,
    registers: BTreeSet<String>,
    names: BTreeMap<String, Binding>,
    variables: Vec<(String, u64)>,
    /// Bytes that are a guard that holds, and one that does not, each behind two zeros, once they are needed.
    guards: Option<(u64, u64)>,
    /// Zeros, once they are needed.
    zeros: Option<u64>,
    /// Of each loop around: its guard, and those of the blocks around within it.
    leaves: Vec<Vec<u64>>,
    line: u32,
}

/// The guard of a statement: where it is.
type Guard = Option<u64>;

impl<'a> Lowering<'a> {
    fn new(file: &'a File, options: Options, spilled: BTreeSet<usize>) -> Result<Self, Error> {
        let mut chain = Chain::new();
        let client = chain.queue("reply", SendOrder::Managed, Peer::Client);
        let worker = chain.queue("worker", SendOrder::Managed, Peer::Itself);
        let buffer = chain.region("client", Memory::Given);
        let cells = chain.memory("cells", CELLS);
        let mut regions = BTreeMap::new();
        for data in &file.data {
            let declared = file.program.regions.iter().find(|region| region.name == data.name);
            let access = match declared.map(|region| region.right) {
                Some(Right::Read) => Access::REMOTE_READ,
                Some(Right::Memory) => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
                Some(Right::Source) | None => Access::empty(),
            };
            let id = chain.region(&data.name, Memory::New { len: data.len, access });
            if regions.insert(data.name.clone(), (id, declared.map(|region| region.right))).is_some() {
                return Err(Error::new(data.line, format!("region {} has data twice", data.name)));
            }
        }
        for region in &file.program.regions {
            if !regions.contains_key(&region.name) {
                let rule = format!("region {} has no `data` in the file", region.name);
                return Err(Error::new(region.line, rule));
            }
        }
        let line = file.program.line;
        let registers = values::registers(&file.program);
        Ok(Lowering {
            file,
            options,
            chain,
            client,
            worker,
            buffer,
            cells,
            regions,
            // The first bytes are where nobody looks.
            used: 64,
            nodes: Vec::new(),
            stages: vec![Stage::default()],
            rings: Vec::new(),
            ring: None,
            lane: None,
            begun: false,
            values: Vec::new(),
            spilled,
            registers,
            names: BTreeMap::new(),
            variables: Vec::new(),
            guards: None,
            zeros: None,
            leaves: Vec::new(),
            line,
        })
    }

    fn program(&mut self) -> Result<(), Error> {
        self.fill_regions()?;
        self.arguments()?;
        let body = &self.file.program.body;
        self.block(body, None)
    }

    fn error<T>(&self, rule: impl Into<String>) -> Result<T, Error> {
        Err(Error::new(self.line, rule))
    }

    /// New bytes among the cells, at a multiple of 8.
    fn cell(&mut self, bytes: u64) -> Result<u64, Error> {
        let at = self.used;
        self.used += bytes.next_multiple_of(8);
        if self.used > CELLS {
            return self.error(format!("the program's variables and guards take more than {CELLS} bytes"));
        }
        Ok(at)
    }

    fn at(&self, cell: u64) -> Place {
        Place::At(self.cells, cell)
    }

    /// Where nobody looks.
    fn dump(&self) -> Place {
        Place::At(self.cells, 0)
    }

    fn fill_regions(&mut self) -> Result<(), Error> {
        for data in &self.file.data {
            self.line = data.line;
            let (id, _) = self.regions[&data.name];
            for (at, item) in &data.items {
                match item {
                    Item::Text(text) => self.chain.data(id, *at, text.clone()),
                    Item::Word(value) => {
                        let word = self.fixed(value)?;
                        self.chain.word(id, *at, word);
                    }
                    Item::Field(ty, Atom::Number(number)) => {
                        if ty.cut(*number) != *number {
                            return self.error(format!("{number} has more than {} bytes", ty.bytes()));
                        }
                        let bytes = number.to_be_bytes();
                        self.chain.data(id, *at, &bytes[8 - usize::from(ty.bytes())..]);
                    }
                    Item::Field(Type::Addr | Type::U64, value) => {
                        let Word::AddressOf(place) = self.fixed(value)? else { continue };
                        self.chain.big(id, *at, place);
                    }
                    Item::Field(..) => return self.error("an address takes 8 bytes: `addr`"),
                }
            }
        }
        Ok(())
    }

    /// A value that is known before the program runs.
    fn fixed(&self, value: &Atom) -> Result<Word, Error> {
        match value {
            Atom::Number(number) => Ok(Word::Is(*number)),
            Atom::Address(region, at) => match self.regions.get(region) {
                Some((id, _)) => Ok(Word::AddressOf(Place::At(*id, *at))),
                None => self.error(format!("there is no region {region}")),
            },
            Atom::Name(name) => self.error(format!("{name} is not known before the program runs")),
            Atom::Field(name, _) => self.error(format!("{name} is not known before the program runs")),
        }
    }

    fn block(&mut self, body: &[Statement], guard: Guard) -> Result<(), Error> {
        let outer = self.names.clone();
        let mut at = 0;
        while let Some(statement) = body.get(at) {
            if let Some(lanes) = self.independent(&body[at..]) {
                at += lanes.iter().map(Vec::len).sum::<usize>();
                self.side_by_side(&lanes, guard)?;
                continue;
            }
            self.line = statement.line;
            self.begun |= !matches!(statement.kind, Kind::Var(..));
            self.statement(statement, guard)?;
            at += 1;
            if let (Kind::Break, Some(behind)) = (&statement.kind, body.get(at)) {
                return Err(Error::new(behind.line, "a statement behind `break` is never reached"));
            }
        }
        // What was read in the block has no name behind it; variables are the whole program's.
        let inner = core::mem::replace(&mut self.names, outer);
        for (name, binding) in inner {
            match self.names.get_mut(&name) {
                Some(known) => *known = binding,
                None if matches!(binding, Binding::Cell(..)) => drop(self.names.insert(name, binding)),
                None => {}
            }
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement, guard: Guard) -> Result<(), Error> {
        match &statement.kind {
            Kind::Let(name, region, at, fields) => self.reading(name, (region, at), fields, guard),
            Kind::Var(name, ty) => self.declare(name, *ty).map(drop),
            Kind::If(condition, then, otherwise) => self.conditional(condition, then, otherwise, guard),
            Kind::Loop(condition, times, body) => self.repeated(condition.as_ref(), *times, body, guard),
            // The value of a variable that is no cell is renamed, not moved.
            Kind::Set(name, Atom::Field(of, field)) if !self.registers.contains(name) => {
                let value = self.field(of, field)?;
                self.names.insert(name.clone(), Binding::Value(value));
                Ok(())
            }
            Kind::Break => self.leave(guard),
            Kind::Pick(name, key, pairs) => self.pick(name, key, pairs, guard),
            effect => {
                let node = self.effect(effect)?;
                self.guard(node, guard);
                self.place(node)
            }
        }
    }

    /// `break`: the guards of the loop and of all blocks around hold no more, this block's own last.
    fn leave(&mut self, guard: Guard) -> Result<(), Error> {
        let Some(guards) = self.leaves.last().filter(|guards| !guards.is_empty()).cloned() else {
            return self.error("`break` stands in no loop");
        };
        for cell in guards {
            let node = self.write(cell, &FAILS)?;
            self.guard(node, guard);
            self.place(node)?;
        }
        Ok(())
    }

    /// The WR that has a statement's effect, with its operands.
    fn effect(&mut self, kind: &Kind) -> Result<WqeId, Error> {
        match kind {
            Kind::Set(name, value) => self.set(name, value),
            Kind::Load(name, base, offset) => {
                let memory = self.memory()?;
                let cell = self.register(name)?;
                let node = self.node(Op::Read(Place::Of(memory), vec![self.at(cell).piece(8)]))?;
                self.pointer(base, offset.as_ref(), node, Field::RemoteAddress)?;
                Ok(node)
            }
            Kind::Store(base, offset, value) => {
                let memory = self.memory()?;
                let from = self.cell_of(value)?;
                let into = vec![Place::Of(memory).piece(8)];
                let node = self.node(Op::Read(self.at(from), into))?;
                self.pointer(base, offset.as_ref(), node, Field::LocalAddress(0))?;
                Ok(node)
            }
            Kind::Add(name, value) => {
                let cell = self.register(name)?;
                let old = self.dump().piece(8);
                let word = match value {
                    Atom::Number(_) | Atom::Address(..) => self.fixed(value)?,
                    _ => Word::Is(0),
                };
                let node = self.node(Op::FetchAdd(self.at(cell), word, old))?;
                if let Atom::Name(_) | Atom::Field(..) = value {
                    self.put(value, 0..8, &values::big_field(node, Field::Swap, 8), node)?;
                }
                Ok(node)
            }
            Kind::Reply(carries, imm) => self.reply(carries, *imm),
            Kind::Break => match self.leaves.last().and_then(|guards| guards.first().copied()) {
                Some(guard) => self.write(guard, &FAILS),
                None => self.error("`break` stands in no loop"),
            },
            _ => self.error("a statement that is more than one WR"),
        }
    }

    fn set(&mut self, name: &str, value: &Atom) -> Result<WqeId, Error> {
        let ty = self.type_of(value)?;
        let cell = self.register(name)?;
        if self.options.bug == Some(Bug::Indexed) {
            let old = self.dump().piece(8);
            let add = self.node(Op::FetchAdd(self.at(cell), Word::Is(0), old))?;
            self.place(add)?;
        }
        match value {
            Atom::Number(_) | Atom::Address(..) => {
                let source = Source::Inline(Bytes::Word(self.fixed(value)?));
                self.node(Op::Write(source, self.at(cell), None))
            }
            _ => {
                debug_assert!(ty.bytes() <= 8);
                let from = self.cell_of(value)?;
                self.node(Op::Read(self.at(from), vec![self.at(cell).piece(8)]))
            }
        }
    }

    /// The program's memory for `mov`.
    fn memory(&self) -> Result<RegionId, Error> {
        let mut found = self.file.program.regions.iter().filter(|region| region.right == Right::Memory);
        match (found.next(), found.next()) {
            (Some(region), None) => Ok(self.regions[&region.name].0),
            (None, _) => self.error("`[..]` needs a region that is declared as `memory`"),
            (Some(_), Some(_)) => self.error("a program has one region that is declared as `memory`"),
        }
    }

    /// Puts an address, or the sum of two values, into a field.
    fn pointer(
        &mut self,
        base: &Atom,
        offset: Option<&Atom>,
        node: WqeId,
        field: Field,
    ) -> Result<(), Error> {
        let to = values::big_field(node, field, 8);
        let by_nothing = (self.options.bug == Some(Bug::Indexed)).then_some(&Atom::Number(0));
        let Some(offset) = offset.or(by_nothing) else { return self.put(base, 0..8, &to, node) };
        let sum = self.cell(8)?;
        let from = self.cell_of(base)?;
        let copy = self.node(Op::Read(self.at(from), vec![self.at(sum).piece(8)]))?;
        self.place(copy)?;
        let old = self.dump().piece(8);
        let word = match offset {
            Atom::Number(_) | Atom::Address(..) => self.fixed(offset)?,
            _ => Word::Is(0),
        };
        let add = self.node(Op::FetchAdd(self.at(sum), word, old))?;
        if let Atom::Name(_) | Atom::Field(..) = offset {
            self.put(offset, 0..8, &values::big_field(add, Field::Swap, 8), add)?;
        }
        self.place(add)?;
        self.copy(sum, 0..8, &to, node)
    }

    fn reply(&mut self, carries: &Carries, imm: Option<u32>) -> Result<WqeId, Error> {
        if self.ring.is_some() {
            return self.error("`reply` in a recycled loop: leave it by `break`, and reply behind it");
        }
        let to = Place::At(self.buffer, 0);
        let reply = |pieces| Wqe::new(Op::Write(Source::Pieces(pieces), to, imm));
        let node = match carries {
            Carries::Nothing => self.add(reply(Vec::new()), true)?,
            Carries::Value(value) => {
                let cell = self.cell_of(value)?;
                let node = self.add(reply(vec![self.at(cell).piece(8)]), true)?;
                self.nodes[node.at as usize].changed = None;
                node
            }
            Carries::Piece(region, at, len) => {
                let Some((id, right)) = self.regions.get(region).copied() else {
                    return self.error(format!("there is no region {region}"));
                };
                if !matches!(right, Some(Right::Source | Right::Memory)) {
                    return self.error(format!("region {region} is not declared as `source`"));
                }
                let (place, fixed) = match at {
                    Atom::Address(of, at) if of == region => (Place::At(id, *at), true),
                    _ => (Place::Of(id), false),
                };
                let count = match len {
                    Atom::Number(len) => match u32::try_from(*len) {
                        Ok(len) => len,
                        Err(_) => return self.error("a reply has at most 2^32 - 1 bytes"),
                    },
                    _ => 0,
                };
                let node = self.add(reply(vec![place.piece(count)]), true)?;
                if !fixed {
                    let to = values::big_field(node, Field::LocalAddress(0), 8);
                    self.put(at, 0..8, &to, node)?;
                }
                if !matches!(len, Atom::Number(_)) {
                    if self.type_of(len)?.bytes() > 4 {
                        return self.error("a length is a number, or a field of type u16 or u32");
                    }
                    self.put(len, 0..4, &values::big_field(node, Field::Count(0), 4), node)?;
                }
                node
            }
        };
        let changes = match carries {
            Carries::Nothing => false,
            Carries::Value(_) => true,
            Carries::Piece(region, ..) => matches!(self.regions.get(region), Some((_, Some(Right::Memory)))),
        };
        if changes {
            // What it carries is not changed before it has left.
            self.nodes[node.at as usize].wqe.signaled = true;
        }
        Ok(node)
    }

    /// A WRITE of bytes to cells.
    fn write(&mut self, cell: u64, bytes: &[u8]) -> Result<WqeId, Error> {
        let source = Source::Inline(Bytes::Are(bytes.to_vec()));
        self.node(Op::Write(source, self.at(cell), None))
    }

    fn node(&mut self, op: Op) -> Result<WqeId, Error> {
        self.add(Wqe::new(op), false)
    }

    fn add(&mut self, wqe: Wqe, replies: bool) -> Result<WqeId, Error> {
        if self.nodes.len() == NODES_MAX {
            return self.error(format!("the program is too long: more than {NODES_MAX} WQEs"));
        }
        self.nodes.push(Node { wqe: Wqe { line: self.line, ..wqe }, replies, changed: None });
        Ok(WqeId { queue: VIRTUAL, at: self.nodes.len() as u32 - 1 })
    }

    fn wqe(&mut self, id: WqeId) -> &mut Wqe {
        &mut self.nodes[id.at as usize].wqe
    }

    /// The stage that WQEs are put into.
    fn stage(&self) -> usize {
        self.stages.len() - 1
    }

    /// A WQE takes its operation from a guard.
    fn guard(&mut self, node: WqeId, guard: Guard) {
        let Some(guard) = guard else { return };
        let code = self.wqe(node).op.code();
        let Some(at) = HOLDS.iter().position(|byte| *byte == code as u8) else { return };
        self.wqe(node).posted = Some(Form::of(WqeOp::Nop));
        let into = vec![Place::In(node, Field::Opcode, 0).piece(1)];
        self.hidden(Op::Read(self.at(guard + at as u64), into));
        self.nodes[node.at as usize].changed = Some(self.stage());
    }
}
