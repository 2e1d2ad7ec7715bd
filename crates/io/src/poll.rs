//! A program's polls of its completion queues: what is there, else what one round of progress brings. After a
//! row of them in vain, where processors are short, the caller lets others run (`vain`) and looks once more.

use crate::core::Core;
use crate::host::Host;
use crate::progress::Call;
use crate::vain;
use adverb_nic::{Completion, CqId, Error};

impl Host {
    /// Takes up to `max` completions: those already there, or, if there are none, those that one round of
    /// progress brings.
    #[inline]
    pub fn poll(&self, cq: CqId, max: usize, out: impl FnMut(Completion)) -> Result<usize, Error> {
        self.poll_letting(vain::row, cq, max, out)
    }

    /// As [`poll`](Self::poll); `others_ran` is called after a row of polls in vain, while the NIC is not
    /// locked, and tells whether it has let others run.
    #[inline]
    pub fn poll_letting(
        &self,
        others_ran: impl FnOnce() -> bool,
        cq: CqId,
        max: usize,
        mut out: impl FnMut(Completion),
    ) -> Result<usize, Error> {
        let mut guard = self.shared().lock();
        let mut count = self.poll_locked(&mut guard, cq, max, &mut out)?;
        if guard.polls_in_vain == vain::ROW {
            guard.polls_in_vain = 0;
            drop(guard);
            let is_crowded = others_ran();
            guard = self.shared().lock();
            if is_crowded {
                let now = guard.clock.now();
                guard.hold.note_crowded(now);
                // What came meanwhile is found by this call. Were it left to the next one, a program could
                // hear of its peer's disconnection first, and destroy the queue pair before it polls again.
                count = self.poll_locked(&mut guard, cq, max, &mut out)?;
            }
        }
        let ended = self.registry().is_some() && guard.nic.memory().has_ended_windows();
        drop(guard);
        if ended {
            self.settle_windows();
        }
        Ok(count)
    }

    #[inline]
    fn poll_locked(
        &self,
        core: &mut Core,
        cq: CqId,
        max: usize,
        out: &mut impl FnMut(Completion),
    ) -> Result<usize, Error> {
        core.settle();
        core.poll_begins();
        let mut count = core.take(cq, max, out)?;
        if count == 0 {
            count = core.round_for(cq, max, out)?;
        }
        self.after(core, if count == 0 { Call::EmptyPoll } else { Call::FullPoll });
        core.polls_in_vain = if count == 0 { core.polls_in_vain + 1 } else { 0 };
        Ok(count)
    }
}
