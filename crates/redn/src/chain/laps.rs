//! A loop of two stages, each a queue that is executed round and round: the shape in which the paper counts
//! what a lap costs (table 2).
//!
//! ```text
//! first    ADD to the counter, READ brings up the second's pair, what the lap does, WAIT, ENABLE second
//! second   what the lap does, READ brings up the first's pair, WAIT, ENABLE first: the next lap
//! starter  a completion on the second's queue, so that both WAITs have the same index; ENABLE first
//! ```

use super::{
    Chain, Done, Form, NOP_BLOCKS_MAX, Op, Peer, Place, QueueId, RegionId, Until, Word, Wqe, WqeId,
    blocks_of, parts,
};
use adverb_rdma::SendOrder;

/// WQEs of the first stage before those of the lap.
const BEFORE: u32 = 2;

/// The queues of a loop of two stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TwoStages {
    /// The stage that begins a lap.
    pub first: QueueId,
    /// The stage that ends it.
    pub second: QueueId,
    starter: QueueId,
}

/// What a loop of two stages does in each lap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lap {
    /// In the first stage. The last one's completion begins the second stage.
    pub first: Vec<Wqe>,
    /// In the second stage.
    pub second: Vec<Wqe>,
    /// How the ENABLE of the next lap is posted, if not as what it does.
    pub next: Option<Form>,
}

impl TwoStages {
    /// Makes the queues.
    pub fn new(chain: &mut Chain, [first, second]: [&str; 2]) -> TwoStages {
        let first = chain.queue(first, SendOrder::Managed, Peer::Itself);
        let second = chain.queue(second, SendOrder::Managed, Peer::Itself);
        let starter = chain.queue("starter", SendOrder::Cross, Peer::Itself);
        chain.recycle(first);
        chain.recycle(second);
        chain.complete_with(starter, second);
        TwoStages { first, second, starter }
    }

    /// Name of a WQE of [`Lap::first`].
    pub fn in_first(&self, at: u32) -> WqeId {
        WqeId { queue: self.first, at: BEFORE + at }
    }

    /// Name of a WQE of [`Lap::second`].
    pub fn in_second(&self, at: u32) -> WqeId {
        WqeId { queue: self.second, at }
    }

    /// Name of the ENABLE that begins the next lap, behind so many WQEs of [`Lap::second`].
    pub fn next(&self, second: u32) -> WqeId {
        WqeId { queue: self.second, at: second + 2 }
    }

    /// Fills the queues. The counter is a word of a region, whose lower lane counts laps; in `dump` nobody
    /// looks. Returns the blocks that each stage takes in a lap.
    pub fn lay_out(&self, chain: &mut Chain, lap: Lap, counter: (RegionId, u64), dump: Place) -> u32 {
        let Lap { mut first, second, next } = lap;
        let laps = Place::At(counter.0, counter.1);
        let (first_len, second_len) = (first.len() as u32, second.len() as u32);
        if let Some(last) = first.last_mut() {
            last.signaled = true;
        }
        let id = |queue: QueueId, at: u32| WqeId { queue, at };
        let begins = (id(self.first, BEFORE + first_len), id(self.first, BEFORE + first_len + 1));
        let ends = (id(self.second, second_len + 1), self.next(second_len));
        let mut queues = [first, second];
        // The number of blocks is known when all WQEs are.
        queues[0].splice(
            0..0,
            [
                Wqe::new(Op::FetchAdd(laps, Word::Is(0), dump.piece(8))),
                Wqe::new(parts::upkeep(laps, ends.0, ends.1, dump)),
            ],
        );
        queues[0].push(Wqe::new(Op::Wait(Done::Index(self.first, 0))));
        queues[0].push(Wqe::new(Op::Enable(Until::Blocks(self.second, 0))));
        queues[1].push(Wqe::new(parts::upkeep(laps, begins.0, begins.1, dump)).signaled());
        queues[1].push(Wqe::new(Op::Wait(Done::Index(self.second, 1))));
        queues[1].push(Wqe { posted: next, ..Wqe::new(Op::Enable(Until::Blocks(self.first, 0))) });
        let taken = |wqes: &[Wqe]| wqes.iter().map(blocks_of).sum::<u32>();
        let blocks = queues.iter().map(|wqes| taken(wqes)).max().unwrap_or(1).next_power_of_two();
        queues[0][0].op = Op::FetchAdd(laps, Word::Is(parts::lanes(1, blocks)), dump.piece(8));
        queues[0][begins.1.at as usize].op = Op::Enable(Until::Blocks(self.second, blocks));
        queues[1][ends.1.at as usize].op = Op::Enable(Until::Blocks(self.first, 2 * blocks));
        for (queue, wqes) in [self.first, self.second].into_iter().zip(queues) {
            let mut missing = blocks - taken(&wqes);
            for wqe in wqes {
                chain.push(queue, wqe);
            }
            while missing > 0 {
                let fill = missing.min(u32::from(NOP_BLOCKS_MAX));
                chain.push(queue, Wqe::new(Op::Nop(fill as u8)));
                missing -= fill;
            }
        }
        chain.word(counter.0, counter.1, Word::Is(parts::lanes(0, blocks)));
        chain.push(self.starter, Wqe::new(Op::Nop(1)).signaled());
        chain.push(self.starter, Wqe::new(Op::Wait(Done::Index(self.second, 0))));
        chain.push(self.starter, Wqe::new(Op::Enable(Until::Blocks(self.first, blocks))));
        blocks
    }
}
