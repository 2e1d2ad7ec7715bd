//! Stages: which WQEs are fetched together, what waits by its fence, and the queues that come of it.

use super::{
    Bug, Bytes, Compiled, Counts, Lowering, Node, Op, Peer, Piece, Place, QueueId, Source, Stage, VIRTUAL,
    Word, Wqe, WqeId, values::Origin,
};
use crate::chain::{Done, ENTRIES_MAX, NOP_BLOCKS_MAX, Until, blocks_of, inline_len, parts, result_len};
use crate::language::Error;
use adverb_rdma::SendOrder;
use std::collections::BTreeMap;

/// Bytes at the beginning of the cells in which nobody looks.
const DUMP: u64 = 64;
/// Queues that a program's loops may take.
const STAGES_MAX: usize = 128;

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
        self.stages.push(Stage { ring: self.ring, ..Stage::default() });
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

    fn order(&mut self, op: Op, line: u32) -> WqeId {
        let wqe = Wqe { line, ..Wqe::new(op) };
        self.nodes.push(Node { wqe, replies: false, changed: None });
        WqeId { queue: VIRTUAL, at: self.nodes.len() as u32 - 1 }
    }

    /// Makes queues of the stages, and a chain.
    pub(super) fn finish(mut self) -> Result<Compiled, Error> {
        let finish = match self.options.finish {
            true => {
                let cell = self.cell(8)?;
                self.boundary();
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

/// What queues hold, by virtual names, while they are laid out.
struct Queues<'a, 'b> {
    lowering: &'a mut Lowering<'b>,
    lists: Vec<(QueueId, Vec<WqeId>)>,
    /// The ENABLE of the worker's stage that is being laid out.
    open: Option<WqeId>,
}

impl<'a, 'b> Queues<'a, 'b> {
    fn new(lowering: &'a mut Lowering<'b>) -> Self {
        let lists = vec![(lowering.client, Vec::new()), (lowering.worker, Vec::new())];
        Queues { lowering, lists, open: None }
    }

    fn work(&mut self, id: WqeId) {
        self.lists[1].1.push(id);
    }

    /// The worker's nodes of a stage, and its replies.
    fn of(&self, stage: usize) -> (Vec<WqeId>, Vec<WqeId>) {
        let nodes = &self.lowering.stages[stage].nodes;
        nodes.iter().partition(|id| !self.lowering.nodes[id.at as usize].replies)
    }

    /// The line that needs a stage.
    fn line(&self, stage: usize) -> u32 {
        let first = self.lowering.stages.get(stage).and_then(|stage| stage.nodes.last());
        first.map_or(self.lowering.line, |id| self.lowering.nodes[id.at as usize].wqe.line)
    }

    fn lay_out(&mut self) -> Result<(), Error> {
        let starter = self.lowering.chain.queue("starter", SendOrder::Cross, Peer::Itself);
        let program = self.lowering.file.program.line;
        let start = self.lowering.order(Op::Enable(Until::Blocks(self.lowering.worker, 0)), program);
        self.open = Some(start);
        let client = self.lowering.client;
        let line = self.line(0);
        let message = self.lowering.order(Op::Wait(Done::Received(client, 0)), line);
        self.work(message);
        self.enable_replies(0);
        let mut stage = 0;
        while stage < self.lowering.stages.len() {
            match self.lowering.stages[stage].ring {
                None => {
                    self.straight(stage);
                    stage += 1;
                }
                Some(ring) => {
                    let same = |s: &Stage| s.ring == Some(ring);
                    let count = self.lowering.stages[stage..].iter().take_while(|s| same(s)).count();
                    self.ring(ring, stage, count)?;
                    stage += count;
                }
            }
        }
        self.close();
        self.lists.push((starter, vec![start]));
        Ok(())
    }

    /// The worker's stage ends here, and its ENABLE says so.
    fn close(&mut self) {
        if let Some(open) = self.open.take()
            && let Some(last) = self.lists[1].1.last().copied()
        {
            self.lowering.wqe(open).op = Op::Enable(Until::Through(last));
        }
    }

    fn enable_replies(&mut self, stage: usize) {
        let (_, replies) = self.of(stage);
        if let Some(last) = replies.last().copied() {
            self.lists[0].1.extend(replies);
            let line = self.line(stage);
            let enable = self.lowering.order(Op::Enable(Until::Through(last)), line);
            self.work(enable);
        }
    }

    /// A stage of the worker, and what leads to the next one.
    fn straight(&mut self, stage: usize) {
        let (nodes, replies) = self.of(stage);
        self.lists[1].1.extend(&nodes);
        let Some(next) = self.lowering.stages.get(stage + 1) else { return };
        let (ring, awaits) = (next.ring, self.lowering.stages[stage].awaits_replies);
        let line = self.line(stage + 1);
        let awaited = nodes.last().into_iter().chain(replies.last().filter(|_| awaits));
        for id in awaited.copied().collect::<Vec<_>>() {
            self.lowering.wqe(id).signaled = true;
            let wait = self.lowering.order(Op::Wait(Done::Of(id)), line);
            self.work(wait);
        }
        if ring.is_some() {
            let enable = self.lowering.order(Op::Enable(Until::Blocks(QueueId(0), 0)), line);
            self.work(enable);
            self.close();
            // The ring says which queue that is.
            self.open = Some(enable);
            return;
        }
        self.enable_replies(stage + 1);
        let more = !self.of(stage + 1).0.is_empty() || stage + 2 < self.lowering.stages.len();
        if more {
            let enable = self.lowering.order(Op::Enable(Until::Blocks(QueueId(0), 0)), line);
            self.work(enable);
            self.close();
            self.open = Some(enable);
        } else {
            self.close();
        }
    }

    /// The stages of a recycled loop, each a queue.
    fn ring(&mut self, ring: usize, first: usize, count: usize) -> Result<(), Error> {
        let (line, laps) = (self.lowering.rings[ring].line, self.lowering.rings[ring].laps);
        if count > STAGES_MAX {
            let rule = format!("the recycled loop takes {count} queues: at most {STAGES_MAX}");
            return Err(Error::new(line, rule));
        }
        let name = |n: usize| format!("loop{}.{}", ring + 1, n + 1);
        let queues: Vec<QueueId> = (0..count)
            .map(|n| self.lowering.chain.queue(&name(n), SendOrder::Managed, Peer::Itself))
            .collect();
        let last = count - 1;
        // Each stage's pair; the last one's ENABLE has been made with the loop.
        let next = self.lowering.rings[ring].next;
        let pairs: Vec<(WqeId, WqeId)> = (0..count)
            .map(|n| {
                let index = u32::from(n == last);
                let wait = self.lowering.order(Op::Wait(Done::Index(queues[n], index)), line);
                let enable = Op::Enable(Until::Blocks(queues[(n + 1) % count], 0));
                (wait, if n == last { next } else { self.lowering.order(enable, line) })
            })
            .collect();
        let counter = self.lowering.at(laps);
        let dump = self.lowering.dump();
        let mut lists: Vec<Vec<WqeId>> = (0..count).map(|n| self.of(first + n).0).collect();
        let up = |pair: (WqeId, WqeId)| parts::upkeep(counter, pair.0, pair.1, dump);
        let add = self.lowering.order(Op::FetchAdd(counter, Word::Is(0), dump.piece(8)), line);
        let begin = self.lowering.order(up(pairs[last]), line);
        lists[0].splice(0..0, [add, begin]);
        for pair in &pairs[..last] {
            let upkeep = self.lowering.order(up(*pair), line);
            lists[last].push(upkeep);
        }
        for (n, list) in lists.iter_mut().enumerate() {
            if list.is_empty() {
                list.push(self.lowering.order(Op::Nop(1), line));
            }
            if let Some(end) = list.last().copied() {
                self.lowering.wqe(end).signaled = true;
            }
            list.extend([pairs[n].0, pairs[n].1]);
        }
        lists[last].extend(self.lowering.rings[ring].exit);
        let lap = self.fill(&mut lists, line);
        for (n, pair) in pairs.iter().enumerate() {
            let end = if n == last { 2 * lap } else { lap };
            self.lowering.wqe(pair.1).op = Op::Enable(Until::Blocks(queues[(n + 1) % count], end));
        }
        self.lowering.wqe(add).op = Op::FetchAdd(counter, Word::Is(parts::lanes(1, lap)), dump.piece(8));
        let cells = self.lowering.cells;
        self.lowering.chain.word(cells, laps, Word::Is(parts::lanes(0, lap)));
        for (queue, list) in queues.iter().zip(lists) {
            self.lowering.chain.recycle(*queue);
            self.lists.push((*queue, list));
        }
        // The completion before the loop's own, so that all pairs have the same numbers.
        let one = self.lowering.chain.queue(&format!("loop{}.0", ring + 1), SendOrder::Cross, Peer::Itself);
        self.lowering.chain.complete_with(one, queues[last]);
        let nop = self.lowering.order(Op::Nop(1), line);
        self.lowering.wqe(nop).signaled = true;
        self.lists.push((one, vec![nop]));
        if let Some(enter) = self.open.take() {
            self.lowering.wqe(enter).op = Op::Enable(Until::Blocks(queues[0], lap));
        }
        self.behind(ring, first + count)
    }

    /// Fills the stages of a loop with NOPs, until each lap takes as many blocks: a power of two.
    fn fill(&mut self, lists: &mut [Vec<WqeId>], line: u32) -> u32 {
        let blocks = |lowering: &Lowering<'_>, list: &[WqeId]| -> u32 {
            list.iter().map(|id| blocks_of(&lowering.nodes[id.at as usize].wqe)).sum()
        };
        let longest = lists.iter().map(|list| blocks(self.lowering, list)).max().unwrap_or(1);
        let lap = longest.next_power_of_two();
        for list in lists {
            let mut missing = lap - blocks(self.lowering, list);
            while missing > 0 {
                let fill = missing.min(u32::from(NOP_BLOCKS_MAX));
                list.push(self.lowering.order(Op::Nop(fill as u8), line));
                missing -= fill;
            }
        }
        lap
    }

    /// What stands behind a loop.
    fn behind(&mut self, ring: usize, stage: usize) -> Result<(), Error> {
        let (nodes, replies) = self.of(stage);
        match self.lowering.rings[ring].exit {
            Some(exit) => {
                self.open = Some(exit);
                self.enable_replies(stage);
                if nodes.is_empty() && replies.is_empty() {
                    let line = self.lowering.rings[ring].line;
                    let nop = self.lowering.order(Op::Nop(1), line);
                    self.work(nop);
                }
                Ok(())
            }
            None if nodes.is_empty() && replies.is_empty() => Ok(()),
            None if self.lowering.options.finish => Ok(()),
            None => {
                let rule = "the loop before never ends: what stands behind it is never reached";
                Err(Error::new(self.line(stage), rule))
            }
        }
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
