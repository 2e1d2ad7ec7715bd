//! A program's polls of its completion queues: what is there, else what one round of progress brings. After a
//! row of them in vain, where processors are short, the caller lets others run (`vain`) and looks once more.

use crate::core::Core;
use crate::host::Host;
use crate::progress::{self, Call};
use crate::vain::{self, EmptyPolls};
use adverb_nic::{Completion, CqId, Error};
use adverb_os::lock::Guard;
use adverb_wire::Duration;

impl Host {
    /// Takes up to `max` completions: those already there, or, if there are none, those that one round of
    /// progress brings.
    #[inline]
    pub fn poll(&self, cq: CqId, max: usize, out: impl FnMut(Completion)) -> Result<usize, Error> {
        self.poll_letting((vain::sleeps, vain::rest), cq, max, out)
    }

    /// As [`poll`](Self::poll). After a row of polls in vain, `sleeps` is asked whether the caller wants to
    /// sleep until a frame comes; `others_ran` is called while the NIC is not locked, with what to wait for
    /// if it does and this program is one that may, and tells for how long it has let others run.
    #[inline]
    pub fn poll_letting(
        &self,
        (sleeps, others_ran): (impl Fn() -> bool, impl FnOnce(EmptyPolls<'_>) -> Option<Duration>),
        cq: CqId,
        max: usize,
        mut out: impl FnMut(Completion),
    ) -> Result<usize, Error> {
        let mut guard = self.shared().lock();
        let mut count = self.poll_locked(&mut guard, false, cq, max, &mut out)?;
        if guard.polls_in_vain >= guard.row_of_polls {
            (guard, count) = self.after_row(guard, (sleeps, others_ran), cq, max, &mut out)?;
        }
        let ended = self.registry().is_some() && guard.nic.memory().has_ended_windows();
        drop(guard);
        if ended {
            self.settle_windows();
        }
        Ok(count)
    }

    /// After a row of polls in vain: others run, if they want to, and one more poll.
    fn after_row<'a>(
        &'a self,
        mut guard: Guard<'a, Core>,
        (sleeps, others_ran): (impl Fn() -> bool, impl FnOnce(EmptyPolls<'_>) -> Option<Duration>),
        cq: CqId,
        max: usize,
        out: &mut impl FnMut(Completion),
    ) -> Result<(Guard<'a, Core>, usize), Error> {
        guard.polls_in_vain = 0;
        let for_one = guard.waits_for_one_datagram();
        let falls_asleep = for_one && sleeps();
        let mut set = if falls_asleep { progress::fall_asleep(self.shared(), &mut guard, cq) } else { None };
        let (clock, finds, by_memory) = (guard.clock, guard.guess.finds(), guard.polls_memory());
        drop(guard);
        let time = others_ran(EmptyPolls { clock, finds, until: set.as_mut(), by_memory });
        progress::note_crowded(self.shared(), time.is_some());
        let mut guard = self.shared().lock();
        guard.row_of_polls = if for_one && sleeps() { vain::ROW_FOR_ONE } else { vain::ROW };
        let ask_socket = set.is_some_and(|set| guard.has_slept(set));
        if time.is_none() && !ask_socket {
            return Ok((guard, 0));
        }
        let now = guard.clock.now();
        guard.hold.note_crowded(now);
        // What came meanwhile is found by this call. Were it left to the next one, a program could hear of
        // its peer's disconnection first, and destroy the queue pair before it polls again.
        let count = self.poll_locked(&mut guard, ask_socket, cq, max, out)?;
        if for_one && count > 0 && time.is_some_and(vain::was_answered_here) {
            guard.row_of_polls = vain::ROW_FOR_ONE;
        }
        Ok((guard, count))
    }

    #[inline]
    fn poll_locked(
        &self,
        core: &mut Core,
        ask_socket: bool,
        cq: CqId,
        max: usize,
        out: &mut impl FnMut(Completion),
    ) -> Result<usize, Error> {
        core.settle();
        core.poll_begins();
        let mut count = core.take(cq, max, out)?;
        if count == 0 {
            count = core.round_for(ask_socket, cq, max, out)?;
        }
        self.after(core, if count == 0 { Call::EmptyPoll } else { Call::FullPoll });
        core.polls_in_vain = if count == 0 { core.polls_in_vain + 1 } else { 0 };
        Ok(count)
    }
}
