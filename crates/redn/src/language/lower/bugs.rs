//! Ways to make a program wrong on purpose, which a comparison with the interpreter has to find.

use crate::chain::{Chain, Done, Op, QueueId, Until, Word, WqeId, parts};

/// A mistake of the compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// No WQE waits for READs before it that bring what it uses.
    NoFence,
    /// What changes a WQE stands in the same stage.
    NoStage,
    /// The same, but for what the message changes: what a program that says `unordered` is made into.
    OneStage,
    /// A conditional of a loop stays as the last lap has left it.
    NoRestore,
    /// One WAIT between two stages is missing.
    NoWait,
    /// Each ENABLE of the worker lets one stage more be fetched than it should.
    Prefetch,
    /// The indices of a loop's WAITs and ENABLEs stay those of its first laps.
    NoUpkeep,
    /// The last reply is posted twice.
    ReplyTwice,
    /// Of two equal values the wrong one wins.
    Ties,
    /// Each `mov` is made as an indexed one, by 0 if the program names no index: right, and too long.
    Indexed,
}

impl Bug {
    /// Those that the swarm plants: name, and what is wrong.
    pub const ALL: [(&'static str, Bug, &'static str); 8] = [
        ("skip-wait", Bug::NoWait, "one WAIT between two stages is missing"),
        ("prefetch-managed", Bug::Prefetch, "each ENABLE lets one stage more be fetched than it should"),
        ("forget-restore", Bug::NoRestore, "a conditional of a loop stays as the last lap has left it"),
        ("forget-indices", Bug::NoUpkeep, "a loop's WAITs and ENABLEs keep the indices of the first laps"),
        ("no-fence", Bug::NoFence, "no WQE waits for READs before it that bring what it uses"),
        ("no-stage", Bug::NoStage, "what changes a WQE stands in the same stage as that WQE"),
        ("reply-twice", Bug::ReplyTwice, "the last reply is posted twice"),
        ("wrong-ties", Bug::Ties, "of two equal values the wrong one is the greater"),
    ];

    /// The mistake with a name.
    pub fn by_name(name: &str) -> Option<Bug> {
        Bug::ALL.iter().find(|(known, ..)| *known == name).map(|(_, bug, _)| *bug)
    }

    /// Makes it in a chain that is ready otherwise.
    pub(super) fn plant(self, chain: &mut Chain, (client, worker): (QueueId, QueueId)) {
        match self {
            Bug::NoFence | Bug::NoStage | Bug::OneStage | Bug::NoRestore | Bug::Ties | Bug::Indexed => {}
            Bug::NoWait => skip_wait(chain, worker),
            Bug::Prefetch => enable_more(chain, worker),
            Bug::NoUpkeep => forget_indices(chain),
            Bug::ReplyTwice => reply_twice(chain, client),
        }
    }
}

fn skip_wait(chain: &mut Chain, worker: QueueId) {
    let wqes = &mut chain.queues[usize::from(worker.0)].wqes;
    let waits = |op: &Op| matches!(op, Op::Wait(Done::Of(_)));
    let count = wqes.iter().filter(|wqe| waits(&wqe.op)).count();
    if let Some(wqe) = wqes.iter_mut().filter(|wqe| waits(&wqe.op)).nth(count / 2) {
        wqe.op = Op::Nop(1);
    }
}

fn enable_more(chain: &mut Chain, worker: QueueId) {
    let ends = |op: &Op| match op {
        Op::Enable(Until::Through(id)) if id.queue == worker => Some(id.at),
        _ => None,
    };
    let all = || chain.queues.iter().flat_map(|queue| &queue.wqes);
    let ends: Vec<u32> = all().filter_map(|wqe| ends(&wqe.op)).collect();
    for queue in &mut chain.queues {
        for wqe in &mut queue.wqes {
            if let Op::Enable(Until::Through(WqeId { queue, at })) = &mut wqe.op
                && *queue == worker
                && let Some(next) = ends.iter().filter(|end| **end > *at).min()
            {
                *at = *next;
            }
        }
    }
}

fn forget_indices(chain: &mut Chain) {
    for queue in chain.queues.iter_mut().filter(|queue| queue.recycled) {
        if let Some(wqe) = queue.wqes.first_mut()
            && matches!(wqe.op, Op::FetchAdd(_, Word::Is(lap), _) if lap >= parts::lanes(0, 1))
        {
            wqe.op = Op::Nop(1);
        }
    }
}

fn reply_twice(chain: &mut Chain, client: QueueId) {
    let replies = &mut chain.queues[usize::from(client.0)].wqes;
    let Some(again) = replies.last().cloned() else { return };
    replies.push(again);
    let last = replies.len() as u32 - 1;
    for wqe in chain.queues.iter_mut().flat_map(|queue| &mut queue.wqes) {
        if let Op::Enable(Until::Through(WqeId { queue, at })) = &mut wqe.op
            && *queue == client
            && *at + 1 == last
        {
            *at = last;
        }
    }
}
