//! Stages: which WQEs are fetched together, and what waits by its fence.

use super::queues::Queues;
use super::{
    Bug, Bytes, Compiled, Counts, Lowering, Node, Op, Piece, Place, Source, Stage, VIRTUAL, Word, Wqe, WqeId,
    values::Origin,
};
use crate::chain::{Done, ENTRIES_MAX, Until, inline_len, result_len};
use crate::language::Error;
use adverb_rdma::SendOrder;
use std::collections::BTreeMap;

/// Bytes at the beginning of the cells in which nobody looks.
const DUMP: u64 = 64;

impl Lowering<'_> {
    /// Puts a WQE into the current stage, or into a new one if this one changes it.
    pub(super) fn place(&mut self, id: WqeId) -> Result<(), Error> {
        let stage = self.stage();
        let closed = self.stages[stage].awaits_replies;
        let changed = self.nodes[id.at as usize].changed == Some(stage) || self.gathers_too_early(id);
        let unordered = match self.options.bug {
            Some(Bug::NoStage) => true,
            Some(Bug::OneStage) => stage > 0,
            _ => false,
        };
        if changed && !unordered || closed {
            self.boundary();
        }
        self.push(id);
        Ok(())
    }

    /// Begins a new stage.
    pub(super) fn boundary(&mut self) {
        self.stages.push(Stage { ring: self.ring, lane: self.lane, ..Stage::default() });
    }

    pub(super) fn push(&mut self, id: WqeId) {
        let node = &self.nodes[id.at as usize];
        let (replies, signaled) = (node.replies, node.wqe.signaled);
        if !replies && self.options.bug != Some(Bug::NoFence) && self.needs_fence(id) {
            self.nodes[id.at as usize].wqe.fence = true;
        }
        let stage = self.stage();
        self.stages[stage].nodes.push(id);
        self.stages[stage].awaits_replies |= replies && signaled;
    }

    /// Whether a WQE of the current stage changes memory that this one gathers, and may come too late. A
    /// calculation's operands are gathered when it is executed, and a WRITE before it may be under way; for
    /// READs and atomics it waits by its fence. Replies are enabled before the stage begins.
    fn gathers_too_early(&self, id: WqeId) -> bool {
        let node = &self.nodes[id.at as usize];
        let gathered: Vec<Piece> = match &node.wqe.op {
            Op::Calc(_, from, _) => from.clone(),
            Op::Write(Source::Pieces(from), ..) if node.replies => {
                from.iter().copied().map(anywhere).collect()
            }
            _ => return false,
        };
        self.stages[self.stage()].nodes.iter().any(|id| {
            let other = &self.nodes[id.at as usize];
            let is_awaited = matches!(other.wqe.op, Op::Read(..) | Op::CompareSwap(..) | Op::FetchAdd(..));
            if other.replies || is_awaited && !node.replies {
                return false;
            }
            let landings = self.landings(*id);
            gathered.iter().any(|piece| landings.iter().any(|landing| self.meet(*landing, *piece)))
        })
    }

    /// What a WR changes, the fields that a `let` brings too.
    fn landings(&self, id: WqeId) -> Vec<Piece> {
        let fields = self.values.iter().filter(|value| value.origin == Origin::Read(id));
        let fields = fields.flat_map(|value| {
            let cell = value.cell.map(|cell| self.at(cell).piece(8));
            cell.into_iter().chain(value.uses.iter().flatten().map(|place| place.piece(1)))
        });
        landings(&self.nodes[id.at as usize].wqe.op).into_iter().chain(fields).collect()
    }

    /// Whether a READ before it in its stage brings what it uses.
    fn needs_fence(&self, id: WqeId) -> bool {
        let uses = used(&self.nodes[id.at as usize].wqe.op);
        for other in self.stages[self.stage()].nodes.iter().rev() {
            let node = &self.nodes[other.at as usize];
            if node.replies {
                continue;
            }
            if let (Op::Calc(_, from, _), Op::CompareSwap(at, ..) | Op::FetchAdd(at, ..)) =
                (&self.nodes[id.at as usize].wqe.op, &node.wqe.op)
                && from.iter().any(|piece| self.meet(at.piece(8), *piece))
            {
                return true;
            }
            if let Op::Read(..) = &node.wqe.op {
                let meets = |landing: Piece| uses.iter().any(|piece| self.meet(landing, *piece));
                if self.landings(*other).into_iter().any(meets) {
                    return true;
                }
            }
            if node.wqe.fence {
                return false;
            }
        }
        false
    }

    /// Whether two pieces may have bytes in common, where it matters.
    fn meet(&self, a: Piece, b: Piece) -> bool {
        let nobody_looks =
            |piece: Piece| matches!(piece.place, Place::At(r, at) if r == self.cells && at < DUMP);
        if nobody_looks(a) || nobody_looks(b) {
            return false;
        }
        match (a.place, b.place) {
            (Place::At(r, x), Place::At(s, y)) => {
                r == s && x < y + u64::from(b.len.max(1)) && y < x + u64::from(a.len.max(1))
            }
            (Place::Of(r) | Place::At(r, _), Place::Of(s) | Place::At(s, _)) => r == s,
            (Place::In(x, ..), Place::In(y, ..)) => x == y,
            _ => false,
        }
    }

    /// A WR that changes nothing but WQEs and cells of our own.
    pub(super) fn hidden(&mut self, op: Op) {
        // The bound is found by the next statement's WR.
        self.nodes.push(Node { wqe: Wqe { line: self.line, ..Wqe::new(op) }, replies: false, changed: None });
        let id = WqeId { queue: VIRTUAL, at: self.nodes.len() as u32 - 1 };
        self.push(id);
    }

    pub(super) fn order(&mut self, op: Op, line: u32) -> WqeId {
        let wqe = Wqe { line, ..Wqe::new(op) };
        self.nodes.push(Node { wqe, replies: false, changed: None });
        WqeId { queue: VIRTUAL, at: self.nodes.len() as u32 - 1 }
    }

    /// Makes queues of the stages, and a chain.
    pub(super) fn finish(mut self) -> Result<Compiled, Error> {
        let finish = match self.options.finish {
            true => {
                let cell = self.cell(8)?;
                // Where queues have come together, all is done that was begun.
                if !self.is_join() {
                    self.boundary();
                }
                let source = Source::Inline(Bytes::Word(Word::Is(1)));
                let node = self.node(Op::Write(source, self.at(cell), None))?;
                self.place(node)?;
                Some(cell)
            }
            false => None,
        };
        self.scatter_fields()?;
        let (message, pieces) = self.message();
        let stages = self.stages.iter().filter(|stage| !stage.nodes.is_empty()).count() as u32;
        let mut queues = Queues::new(&mut self);
        queues.lay_out()?;
        let beside = queues.beside();
        let lists = queues.lists;
        let (client, worker) = (self.client, self.worker);
        self.chain.receive(client, pieces);
        let mut names = BTreeMap::new();
        for (queue, list) in &lists {
            for (at, id) in (0u32..).zip(list) {
                names.insert(*id, WqeId { queue: *queue, at });
            }
        }
        let (mut counts, mut lines) = (Counts::default(), BTreeMap::<u32, Counts>::new());
        for (queue, list) in &lists {
            let counted = self.chain.queue_of(*queue).order == SendOrder::Managed;
            for id in list {
                let mut wqe = self.nodes[id.at as usize].wqe.clone();
                if counted {
                    counts.add(&wqe.op);
                    lines.entry(wqe.line).or_default().add(&wqe.op);
                }
                rename(&mut wqe.op, &names);
                self.chain.push(*queue, wqe);
            }
        }
        for queue in &mut self.chain.queues {
            for piece in queue.receives.iter_mut().flatten() {
                piece.place = renamed(piece.place, &names);
            }
        }
        if let Some(bug) = self.options.bug {
            bug.plant(&mut self.chain, (client, worker));
        }
        let regions = self.regions.into_iter().map(|(name, (id, _))| (name, id)).collect();
        Ok(Compiled {
            chain: self.chain,
            client,
            worker,
            beside,
            buffer: self.buffer,
            variables: self.variables,
            cells: self.cells,
            regions,
            message,
            counts,
            lines: lines.into_iter().collect(),
            stages,
            finish,
        })
    }

    /// Gives the READs of `let` their scatter entries.
    fn scatter_fields(&mut self) -> Result<(), Error> {
        let reads: std::collections::BTreeSet<u32> = self
            .values
            .iter()
            .filter_map(|value| match value.origin {
                Origin::Read(node) => Some(node.at),
                Origin::Message => None,
            })
            .collect();
        for at in reads {
            let pieces = self.scatter(WqeId { queue: VIRTUAL, at });
            let wqe = &mut self.nodes[at as usize].wqe;
            if pieces.len() > ENTRIES_MAX {
                let rule = format!(
                    "the fields take {} scatter entries: at most {ENTRIES_MAX} in one read",
                    pieces.len()
                );
                return Err(Error::new(wqe.line, rule));
            }
            if let Op::Read(_, into) = &mut wqe.op {
                *into = pieces;
            }
        }
        Ok(())
    }
}

/// A piece whose length is not known before the program runs may be anywhere in its region.
fn anywhere(piece: Piece) -> Piece {
    match piece.place {
        Place::At(region, _) if piece.len == 0 => Place::Of(region).piece(0),
        _ => piece,
    }
}

/// What a WR changes, beside itself.
fn landings(op: &Op) -> Vec<Piece> {
    match op {
        Op::Read(_, into) => into.clone(),
        Op::Write(Source::Pieces(pieces), to, _) => {
            vec![to.piece(pieces.iter().map(|piece| piece.len).sum())]
        }
        Op::Write(Source::Inline(bytes), to, _) => vec![to.piece(inline_len(bytes) as u32)],
        Op::CompareSwap(at, _, old) | Op::FetchAdd(at, _, old) => vec![at.piece(8), *old],
        Op::Calc(_, _, to) => vec![to.piece(result_len(op))],
        Op::Send(..) | Op::Nop(_) | Op::Wait(_) | Op::Enable(_) | Op::EnableReceives(..) => Vec::new(),
    }
}

/// What a WR reads and writes when it is executed, beside itself.
fn used(op: &Op) -> Vec<Piece> {
    let mut out = landings(op);
    match op {
        Op::Read(from, into) => out.push(from.piece(into.iter().map(|piece| piece.len).sum())),
        Op::Write(Source::Pieces(from), ..) | Op::Calc(_, from, _) => out.extend(from),
        _ => {}
    }
    out
}

fn renamed(place: Place, names: &BTreeMap<WqeId, WqeId>) -> Place {
    match place {
        Place::In(id, field, skip) => Place::In(names.get(&id).copied().unwrap_or(id), field, skip),
        other => other,
    }
}

/// Gives a WR's operands the names of WQEs on their queues.
fn rename(op: &mut Op, names: &BTreeMap<WqeId, WqeId>) {
    let id = |id: &mut WqeId| *id = names.get(id).copied().unwrap_or(*id);
    let place = |place: &mut Place| *place = renamed(*place, names);
    let word = |word: &mut Word| match word {
        Word::Control(wqe, _) => id(wqe),
        Word::AddressOf(at) => place(at),
        Word::Is(_) => {}
    };
    let pieces = |pieces: &mut Vec<Piece>| pieces.iter_mut().for_each(|piece| place(&mut piece.place));
    let source = |source: &mut Source| match source {
        Source::Pieces(list) => pieces(list),
        Source::Inline(Bytes::Control(wqe, _) | Bytes::ControlAndFlags(wqe, ..)) => id(wqe),
        Source::Inline(Bytes::Word(number)) => word(number),
        Source::Inline(Bytes::Address(at)) => place(at),
        Source::Inline(Bytes::Are(_)) => {}
    };
    match op {
        Op::Nop(_) => {}
        Op::Wait(Done::Of(wqe)) | Op::Enable(Until::Through(wqe)) => id(wqe),
        Op::Wait(_) | Op::Enable(_) | Op::EnableReceives(..) => {}
        Op::Write(from, to, _) => {
            source(from);
            place(to);
        }
        Op::Send(from, _) => source(from),
        Op::Calc(_, from, to) => {
            pieces(from);
            place(to);
        }
        Op::Read(from, into) => {
            place(from);
            pieces(into);
        }
        Op::CompareSwap(at, (compare, swap), old) => {
            place(at);
            word(compare);
            word(swap);
            place(&mut old.place);
        }
        Op::FetchAdd(at, add, old) => {
            place(at);
            word(add);
            place(&mut old.place);
        }
    }
}
