//! What the lock guards: this process's side of a NIC, its executor, and the transfers that futures wait for.

use crate::memory::Part;
use crate::side::Side;
use adverb_nic::Error;
use adverb_nic::one_rma::CommandExecutor;
use adverb_nic::one_rma::executor::{Direction, Report, TransferId, TransferInit};
use adverb_program::Waits;
use adverb_wire::{Gid, Instant};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// A transfer that was submitted.
struct Submitted {
    id: TransferId,
    /// Whom to tell; nobody once the future is gone.
    waker: Option<Waker>,
    report: Option<Report>,
    /// The future was dropped: the entry ends with its transfer, and so does what the future kept registered.
    orphan: Option<Part>,
}

/// What is left to do when the lock has been given back: whom to wake, and which memory may be gone now.
#[derive(Default)]
pub(crate) struct Aftermath {
    wakers: Vec<Waker>,
    parts: Vec<Part>,
    /// Told of messages. Their end may be the end of memory too.
    waits: Vec<Arc<Waits>>,
}

impl Aftermath {
    /// Wakes them and lets memory go; never under the lock, which both may want.
    pub fn conclude(&mut self) {
        self.parts.clear();
        self.waits.clear();
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// A NIC's side, the executor of this process's commands, and the transfers that futures wait for.
pub(crate) struct Core {
    pub side: Side,
    executor: CommandExecutor,
    ops: Vec<Option<Submitted>>,
    free: Vec<usize>,
    /// Programs that wait for words of memory.
    waits: Vec<Weak<Waits>>,
    closed: bool,
    /// Time of the last round.
    now: Instant,
}

impl Core {
    pub fn new(side: Side, executor: CommandExecutor, now: Instant) -> Core {
        Core { side, executor, ops: Vec::new(), free: Vec::new(), waits: Vec::new(), closed: false, now }
    }

    /// Time of the last round: near enough for a transfer that the same thread's next round sends.
    pub fn last_round(&self) -> Instant {
        self.now
    }

    /// The local window, and the one for reads of a peer, in operations.
    pub fn read_windows(&self, peer: IpAddr) -> (f64, Option<f64>) {
        let remote = self.executor.remote_window(Gid::from(peer), Direction::Inbound);
        (self.executor.local_window(), remote)
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes in what has come, and sends what is to be sent. True if there was anything. `clock` is asked at
    /// the beginning, and again for messages that have come meanwhile.
    pub fn round(&mut self, clock: impl Fn() -> Instant, aftermath: &mut Aftermath) -> bool {
        let mut now = clock();
        if self.closed {
            // Who waits for something else all the same goes by this time.
            self.now = now;
            return false;
        }
        self.side.driver_counters().rounds += 1;
        // First what was submitted since the last round, or is due: to look for arrivals would hold it up.
        let sent = self.is_due(now) && self.push(now);
        let received = self.side.receive(&clock);
        now = received.unwrap_or(now);
        self.now = now;
        // Peers wait for answers to what has just come.
        if received.is_some() && self.side.has_work() {
            self.side.transmit(now);
        }
        if received.is_some() && !self.waits.is_empty() {
            self.tell_waits(aftermath);
        }
        let completed = self.complete(now, aftermath);
        // Answers, and what has waited for room.
        let answered = self.is_due(now) && self.push(now);
        sent || received.is_some() || completed || answered
    }

    /// From now on these are told when messages have come.
    pub fn tell(&mut self, waits: &Arc<Waits>) {
        self.waits.push(Arc::downgrade(waits));
    }

    /// How many are told.
    pub fn waits(&self) -> usize {
        self.waits.len()
    }

    /// Words of memory may have changed.
    #[cold]
    pub fn tell_waits(&mut self, aftermath: &mut Aftermath) {
        self.waits.retain(|waits| {
            let Some(waits) = waits.upgrade() else { return false };
            waits.collect_changed(&mut aftermath.wakers);
            aftermath.waits.push(waits);
            true
        });
    }

    /// Whether [`push`](Core::push) has anything to do.
    fn is_due(&self, now: Instant) -> bool {
        self.executor.has_ready() || self.side.has_work() || self.next_deadline().is_some_and(|at| at <= now)
    }

    /// Hands commands to the NIC, and its messages to the network. True if there were any.
    fn push(&mut self, now: Instant) -> bool {
        let mut posted = false;
        while let Some(posting) = self.executor.next_command(now) {
            posted = true;
            if let Err(error) = self.side.post(now, posting.slot, &posting.command) {
                self.executor.on_refused(now, posting.slot, error);
            }
        }
        self.side.transmit(now) || posted
    }

    /// The quick half of a round, for a transfer that was submitted just now.
    pub fn send(&mut self, now: Instant, aftermath: &mut Aftermath) {
        self.push(now);
        // What ended without the network: refusals, rekeys of the own regions, deadlines.
        self.complete(now, aftermath);
    }

    /// Hears what has ended. True if anything has.
    fn complete(&mut self, now: Instant, aftermath: &mut Aftermath) -> bool {
        let mut any = false;
        while let Some(completion) = self.side.next_completion() {
            self.executor.on_completion(now, &completion);
            any = true;
        }
        while let Some((slot, error)) = self.side.next_refusal() {
            self.executor.on_refused(now, slot, error);
            any = true;
        }
        self.executor.on_timer(now);
        while let Some(report) = self.executor.next_report() {
            any = true;
            let index = report.tag as usize;
            let Some(op) = self.ops.get_mut(index).and_then(Option::as_mut) else { continue };
            op.report = Some(report);
            aftermath.wakers.extend(op.waker.take());
            if let Some(part) = op.orphan.take() {
                aftermath.parts.push(part);
                self.ops[index] = None;
                self.free.push(index);
            }
        }
        any
    }

    /// Takes a transfer in, and whom to tell of its end; its number is for [`Core::poll`].
    pub fn submit(&mut self, now: Instant, init: TransferInit, waker: &Waker) -> Result<usize, Error> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        match self.executor.submit(now, TransferInit { tag: index as u64, ..init }) {
            Ok(id) => {
                self.ops[index] =
                    Some(Submitted { id, waker: Some(waker.clone()), report: None, orphan: None });
                Ok(index)
            }
            Err(error) => {
                self.free.push(index);
                Err(error)
            }
        }
    }

    /// The report of a transfer, which then is forgotten.
    pub fn poll(&mut self, index: usize, context: &Context<'_>) -> Poll<Report> {
        let Some(op) = &mut self.ops[index] else {
            unreachable!("a future's transfer stays until it is told")
        };
        if let Some(report) = op.report.take() {
            self.ops[index] = None;
            self.free.push(index);
            return Poll::Ready(report);
        }
        match &mut op.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// The future of a transfer is gone. Its own side stays registered until the transfer has ended.
    pub fn give_up(&mut self, now: Instant, index: usize, part: Part, aftermath: &mut Aftermath) {
        let Some(op) = &mut self.ops[index] else { return aftermath.parts.push(part) };
        op.waker = None;
        if op.report.is_some() {
            aftermath.parts.push(part);
            self.ops[index] = None;
            self.free.push(index);
        } else {
            op.orphan = Some(part);
            // The executor knows it: its report has not come.
            let _ = self.executor.cancel(now, op.id);
            self.complete(now, aftermath);
        }
    }

    /// When a round is due although nothing comes.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.side.next_deadline().into_iter().chain(self.executor.next_deadline()).min()
    }

    /// Ends everything.
    pub fn close(&mut self, now: Instant, aftermath: &mut Aftermath) {
        self.closed = true;
        self.side.close();
        self.executor.abandon(now);
        self.complete(now, aftermath);
    }
}
