//! Transfers as futures.

use crate::core::Aftermath;
use crate::error::{Error, TransferError};
use crate::memory::Part;
use crate::shared::Shared;
use adverb_nic::one_rma::executor::{Report, Retry, TransferInit};
use adverb_rdma::Grant;
use adverb_wire::Duration;
use adverb_wire::one_rma::Op;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration as StdDuration;

enum State {
    /// Not begun; begins when it is first polled.
    New(TransferInit, Part),
    Refused(Error),
    /// Its number in the core, and its own side.
    Submitted(usize, Part),
    Done,
}

/// A read, write or rekey of any size. It begins when it is first polled, and works with any executor.
/// Dropped before its end, it is cancelled: no further command is issued, and the own memory stays registered
/// until what is under way has ended.
///
/// Nothing is repeated unless [`retry`](Transfer::retry) asks for it. Each command ends within the NIC's
/// bound; but a transfer may wait for its turn, the longer the more congestion control holds a peer's
/// transfers back, so that many at a silent peer fail one after the other: [`within`](Transfer::within)
/// bounds the whole.
#[must_use = "a transfer begins when it is polled"]
pub struct Transfer {
    state: State,
}

impl Transfer {
    pub(crate) fn new(op: Op, grant: &Grant, offset: u64, part: Result<Part, Error>) -> Self {
        let state = match Self::init(op, grant, offset, part) {
            Ok((init, part)) => State::New(init, part),
            Err(error) => State::Refused(error),
        };
        Transfer { state }
    }

    fn init(
        op: Op,
        grant: &Grant,
        offset: u64,
        part: Result<Part, Error>,
    ) -> Result<(TransferInit, Part), Error> {
        let part = part?;
        let key = grant.key(op).ok_or(Error::NoKey(op))?.clone();
        // What is beyond the region now may be inside when its owner has made it anew; but then the grant is
        // another too.
        if op != Op::Rekey && (offset > grant.len() || part.len > grant.len() - offset) {
            return Err(Error::Range { start: offset, len: part.len, of: grant.len() });
        }
        let init = TransferInit {
            op,
            class: 0,
            len: part.len,
            target: grant.target().into(),
            remote_region: grant.region(),
            remote_offset: offset,
            local_region: part.memory.local,
            local_offset: part.offset,
            key,
            deadline: None,
            retry: Retry::NEVER,
            tag: 0,
        };
        Ok((init, part))
    }

    fn change(mut self, change: impl FnOnce(&mut TransferInit, &Shared)) -> Self {
        if let State::New(init, part) = &mut self.state {
            change(init, &part.memory.shared);
        }
        self
    }

    /// Ends it, unless it is done by itself, when this time has passed from now on. Commands that are under
    /// way are waited for; the NIC's timeouts bound that.
    pub fn within(self, time: StdDuration) -> Self {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(1 << 53);
        self.change(|init, shared| init.deadline = Some(shared.now() + Duration::from_ns(ns)))
    }

    /// Issues commands that failed again, up to so many times each.
    pub fn retry(self, retry: Retry) -> Self {
        self.change(|init, _| init.retry = retry)
    }

    /// Class of service, 0 or 1; the NIC serves the two in turns.
    pub fn class(self, class: u8) -> Self {
        self.change(|init, _| init.class = class)
    }
}

fn submit(shared: &Shared, init: TransferInit, context: &Context<'_>) -> Result<usize, Error> {
    let mut core = shared.open()?;
    let now = if shared.is_driven_here() { core.last_round() } else { shared.now() };
    let index = core.submit(now, init, context.waker())?;
    shared.submitted(core);
    Ok(index)
}

impl Future for Transfer {
    type Output = Result<Report, TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::New(..) = self.state {
            let State::New(init, part) = std::mem::replace(&mut self.state, State::Done) else {
                unreachable!("looked at just now");
            };
            match submit(&part.memory.shared, init, context) {
                Ok(index) => {
                    // Even if it has ended meanwhile: its waker has been called.
                    self.state = State::Submitted(index, part);
                    return Poll::Pending;
                }
                Err(error) => self.state = State::Refused(error),
            }
        }
        match &self.state {
            State::Submitted(index, part) => {
                let Poll::Ready(report) = part.memory.shared.lock().poll(*index, context) else {
                    return Poll::Pending;
                };
                self.state = State::Done;
                Poll::Ready(if report.end.is_ok() { Ok(report) } else { Err(TransferError::Ended(report)) })
            }
            State::Refused(_) => {
                let State::Refused(error) = std::mem::replace(&mut self.state, State::Done) else {
                    unreachable!("looked at just now");
                };
                Poll::Ready(Err(TransferError::Refused(error)))
            }
            State::Done | State::New(..) => panic!("a transfer that has ended was polled again"),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let State::Submitted(index, part) = std::mem::replace(&mut self.state, State::Done) {
            let shared = part.memory.shared.clone();
            let mut aftermath = Aftermath::default();
            shared.lock().give_up(shared.now(), index, part, &mut aftermath);
            aftermath.conclude();
        }
    }
}
