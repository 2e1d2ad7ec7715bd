//! Queues of the stages: the worker's, those of statements beside others, and the rings of recycled loops.
//!
//! ```text
//! worker    .. WAIT  ENABLE worker2  ENABLE  a's stages ..  WAIT a  WAIT b  ENABLE  what needs both ..
//! worker2                                    b's stages ..
//! ```

use super::{Lowering, Op, Peer, QueueId, Stage, Word, WqeId};
use crate::chain::{Done, NOP_BLOCKS_MAX, Until, blocks_of, parts};
use crate::language::Error;
use adverb_rdma::SendOrder;
use std::ops::Range;

/// Queues that a program's loops may take.
const STAGES_MAX: usize = 128;

/// A queue of stages one after the other.
struct Track {
    /// Which of the lists.
    list: usize,
    /// The ENABLE of the stage that is being laid out.
    open: Option<WqeId>,
}

/// What queues hold, by virtual names, while they are laid out.
pub(super) struct Queues<'a, 'b> {
    lowering: &'a mut Lowering<'b>,
    pub(super) lists: Vec<(QueueId, Vec<WqeId>)>,
    /// The worker's, and those beside it.
    tracks: Vec<Track>,
    /// The one that is being laid out.
    at: usize,
    /// Of statements beside each other: the last ENABLE of replies, and its track.
    replied: Option<(WqeId, usize)>,
}

impl<'a, 'b> Queues<'a, 'b> {
    pub(super) fn new(lowering: &'a mut Lowering<'b>) -> Self {
        let lists = vec![(lowering.client, Vec::new()), (lowering.worker, Vec::new())];
        let tracks = vec![Track { list: 1, open: None }];
        Queues { lowering, lists, tracks, at: 0, replied: None }
    }

    /// The queues beside the worker's.
    pub(super) fn beside(&self) -> Vec<QueueId> {
        self.tracks[1..].iter().map(|track| self.lists[track.list].0).collect()
    }

    fn list(&mut self) -> &mut Vec<WqeId> {
        &mut self.lists[self.tracks[self.at].list].1
    }

    fn work(&mut self, id: WqeId) {
        self.list().push(id);
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

    pub(super) fn lay_out(&mut self) -> Result<(), Error> {
        let starter = self.lowering.chain.queue("starter", SendOrder::Cross, Peer::Itself);
        let program = self.lowering.file.program.line;
        let start = self.lowering.order(Op::Enable(Until::Blocks(self.lowering.worker, 0)), program);
        self.tracks[0].open = Some(start);
        let client = self.lowering.client;
        let line = self.line(0);
        let message = self.lowering.order(Op::Wait(Done::Received(client, 0)), line);
        self.work(message);
        self.enable_replies(0);
        self.run(0..self.lowering.stages.len(), false)?;
        self.close();
        self.lists.push((starter, vec![start]));
        Ok(())
    }

    /// Lays out stages one after the other, of which the first one is enabled. With `more` other WQEs follow
    /// on the same queue.
    fn run(&mut self, stages: Range<usize>, more: bool) -> Result<(), Error> {
        let mut stage = stages.start;
        while stage < stages.end {
            if let Some(ring) = self.lowering.stages[stage].ring {
                let same = |s: &Stage| s.ring == Some(ring);
                let count = self.lowering.stages[stage..].iter().take_while(|s| same(s)).count();
                self.ring(ring, stage, count)?;
                stage += count;
                continue;
            }
            let (nodes, _) = self.of(stage);
            self.list().extend(nodes);
            let next = stage + 1;
            let beside = |s: &Stage| s.lane.is_some();
            let count = self.lowering.stages[next..stages.end].iter().take_while(|s| beside(s)).count();
            if next == stages.end {
                return Ok(());
            } else if count == 0 || beside(&self.lowering.stages[stage]) {
                self.wait_for_stage(stage, self.line(next));
                self.enter(next, stages.end, more);
                stage = next;
            } else {
                self.side_by_side(stage, next..next + count, stages.end)?;
                stage = next + count;
            }
        }
        Ok(())
    }

    /// The stage that is being laid out ends here, and its ENABLE says so.
    fn close(&mut self) {
        let last = self.list().last().copied();
        if let (Some(open), Some(last)) = (self.tracks[self.at].open.take(), last) {
            self.lowering.wqe(open).op = Op::Enable(Until::Through(last));
        }
    }

    fn wait_for(&mut self, id: WqeId, line: u32) {
        self.lowering.wqe(id).signaled = true;
        let wait = self.lowering.order(Op::Wait(Done::Of(id)), line);
        self.work(wait);
    }

    /// Waits for a stage's last WQE, and for the replies whose contents are changed from now on.
    fn wait_for_stage(&mut self, stage: usize, line: u32) {
        let (nodes, replies) = self.of(stage);
        let awaits = self.lowering.stages[stage].awaits_replies;
        for id in nodes.last().into_iter().chain(replies.last().filter(|_| awaits)) {
            self.wait_for(*id, line);
        }
    }

    fn enable_replies(&mut self, stage: usize) {
        let (_, replies) = self.of(stage);
        if let Some(last) = replies.last().copied() {
            let line = self.line(stage);
            // Replies leave in the program's order, whichever statement is done first.
            if let Some((before, track)) = self.replied
                && track != self.at
            {
                self.wait_for(before, line);
            }
            self.lists[0].1.extend(replies);
            let enable = self.lowering.order(Op::Enable(Until::Through(last)), line);
            self.work(enable);
            if self.lowering.stages[stage].lane.is_some() {
                self.replied = Some((enable, self.at));
            }
        }
    }

    /// Enables a stage, behind what it waits for. `end` is the track's, or with `more` the end of a part.
    fn enter(&mut self, stage: usize, end: usize, more: bool) {
        let line = self.line(stage);
        let is_ring = self.lowering.stages[stage].ring.is_some();
        if !is_ring {
            self.enable_replies(stage);
        }
        if is_ring || !self.of(stage).0.is_empty() || stage + 1 < end {
            // A ring says which queue that is.
            let enable = self.lowering.order(Op::Enable(Until::Blocks(QueueId(0), 0)), line);
            self.work(enable);
            self.close();
            self.tracks[self.at].open = Some(enable);
        } else if !more {
            self.close();
        }
    }

    /// Stages beside each other, and what leads from a stage to them and from them to the next one.
    fn side_by_side(&mut self, stage: usize, stages: Range<usize>, end: usize) -> Result<(), Error> {
        let lane = |at: usize| self.lowering.stages[at].lane;
        let mut lanes: Vec<Range<usize>> = Vec::new();
        for at in stages.clone() {
            match lanes.last_mut() {
                Some(last) if lane(last.start) == lane(at) => last.end = at + 1,
                _ => lanes.push(at..at + 1),
            }
        }
        self.wait_for_stage(stage, self.line(stages.start));
        for (n, own) in lanes.iter().enumerate().skip(1) {
            self.begin(n, own.start);
        }
        self.replied = None;
        self.enter(lanes[0].start, lanes[0].end, true);
        self.run(lanes[0].clone(), true)?;
        for (n, own) in lanes.iter().enumerate().skip(1) {
            self.at = n;
            self.enable_replies(own.start);
            self.run(own.clone(), false)?;
            self.close();
        }
        (self.at, self.replied) = (0, None);
        let join = stages.end;
        let (nodes, replies) = self.of(join);
        if join + 1 < end || !nodes.is_empty() || !replies.is_empty() {
            let line = self.line(join);
            self.wait_for_stage(lanes[0].end - 1, line);
            for (n, own) in lanes.iter().enumerate().skip(1) {
                if let Some(last) = self.lists[self.tracks[n].list].1.last().copied() {
                    self.wait_for(last, line);
                }
                let awaits = self.lowering.stages[own.end - 1].awaits_replies;
                if let Some(reply) = self.of(own.end - 1).1.last().filter(|_| awaits) {
                    self.wait_for(*reply, line);
                }
            }
        }
        self.enter(join, end, false);
        Ok(())
    }

    /// Enables a stage on a queue beside the worker's.
    fn begin(&mut self, n: usize, stage: usize) {
        if self.tracks.len() == n {
            let name = format!("worker{}", n + 1);
            let queue = self.lowering.chain.queue(&name, SendOrder::Managed, Peer::Itself);
            self.tracks.push(Track { list: self.lists.len(), open: None });
            self.lists.push((queue, Vec::new()));
        }
        let line = self.line(stage);
        let enable = self.lowering.order(Op::Enable(Until::Blocks(QueueId(0), 0)), line);
        self.work(enable);
        self.tracks[n].open = Some(enable);
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
        if let Some(enter) = self.tracks[self.at].open.take() {
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
                self.tracks[self.at].open = Some(exit);
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
