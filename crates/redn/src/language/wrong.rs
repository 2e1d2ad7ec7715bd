//! Programs that are wrong on purpose, so that it can be seen what a trace says of them.

use super::Compiled;
use super::lower::Bug;
use crate::chain::{Done, Op, Until, WqeId};

/// How a program is made wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The compiler leaves something out.
    Compiled(Bug),
    /// The last ENABLE of the client's queue does nothing.
    NoEnable,
    /// The worker's last WAIT is for the completion of a WQE behind itself.
    WaitsForItself,
}

impl Wrong {
    /// By its name.
    pub fn by_name(name: &str) -> Result<Wrong, String> {
        Ok(match name {
            "no-fence" => Wrong::Compiled(Bug::NoFence),
            "no-stage" => Wrong::Compiled(Bug::NoStage),
            "one-stage" => Wrong::Compiled(Bug::OneStage),
            "no-restore" => Wrong::Compiled(Bug::NoRestore),
            "no-enable" => Wrong::NoEnable,
            "waits-for-itself" => Wrong::WaitsForItself,
            _ => {
                return Err("one of no-fence, no-stage, one-stage, no-restore, no-enable, waits-for-itself"
                    .to_owned());
            }
        })
    }

    /// What the compiler has to know of it.
    pub fn bug(self) -> Option<Bug> {
        match self {
            Wrong::Compiled(bug) => Some(bug),
            _ => None,
        }
    }

    /// Changes a program that was compiled.
    pub fn spoil(self, compiled: &mut Compiled) {
        let (client, worker) = (compiled.client, compiled.worker);
        let wqes = &mut compiled.chain.queues[usize::from(worker.0)].wqes;
        match self {
            Wrong::Compiled(_) => {}
            Wrong::NoEnable => {
                let client = |until: &Until| match until {
                    Until::Through(wqe) => wqe.queue == client,
                    Until::Blocks(queue, _) => *queue == client,
                };
                let last = wqes.iter_mut().rev().find(|wqe| matches!(&wqe.op, Op::Enable(to) if client(to)));
                if let Some(wqe) = last {
                    wqe.op = Op::Nop(1);
                }
            }
            Wrong::WaitsForItself => {
                let last = wqes.iter().rposition(|wqe| matches!(wqe.op, Op::Wait(_)));
                let Some(at) = last else { return };
                let mut behind = wqes.iter_mut().enumerate().skip(at + 1);
                let other = behind.find(|(_, wqe)| !matches!(wqe.op, Op::Wait(_)));
                let Some((maker, wqe)) = other else { return };
                wqe.signaled = true;
                let id = WqeId { queue: worker, at: maker as u32 };
                wqes[at].op = Op::Wait(Done::Of(id));
            }
        }
    }
}
