//! What programs of WQEs need of the NIC's objects beyond plain verbs: queues that order each other or are
//! ordered, completion queues that nobody polls, rates.

use crate::attr::{QpFlags, QpInit, QpState, QpType};
use crate::congestion::{self, RateLimit};
use crate::endpoint::Object;
use crate::engine::wake::wake;
use crate::error::Error;
use crate::ids::{CqId, QpId};
use crate::limits;
use crate::nic::Nic;
use crate::queue::cross::CrossChannel;
use crate::queue_pair::QueuePair;
use crate::state::Managed;

impl Nic {
    /// Creates a queue pair whose send queue may hold WAITs and ENABLEs: a cross-channel queue, managed or
    /// not ([`QpFlags`]).
    pub fn create_cross_qp(&mut self, init: &QpInit, managed: bool) -> Result<QpId, Error> {
        let flags = if managed { QpFlags::MANAGED_SEND } else { QpFlags::empty() };
        self.create_qp_with(init, QpFlags::CROSS_CHANNEL | flags)
    }

    /// Creates a queue pair in RESET, with queues that are more than plain ones. A managed send queue is a
    /// cross-channel queue, whether that is said or not.
    pub fn create_qp_with(&mut self, init: &QpInit, flags: QpFlags) -> Result<QpId, Error> {
        use QpFlags as F;
        if !F::all().contains(flags) {
            return Err(Error::Invalid("creation flags"));
        }
        let cross = flags.intersects(F::CROSS_CHANNEL | F::MANAGED_SEND);
        let receives = flags.intersects(F::MANAGED_RECV | F::IGNORE_RQ_OVERFLOW);
        if flags.contains(F::IGNORE_SQ_OVERFLOW) && !cross {
            return Err(Error::Invalid(
                "creation flags: a send queue that overflows is a cross-channel queue",
            ));
        }
        if (cross || receives) && !matches!(init.qp_type, QpType::Rc | QpType::Uc) {
            return Err(Error::Unsupported("a cross-channel queue pair that is neither RC nor UC"));
        }
        if receives && (init.srq.is_some() || init.caps.max_recv_wr == 0) {
            return Err(Error::Unsupported("a managed receive queue that is shared, or of no size"));
        }
        if flags.is_empty() {
            return self.create_qp(init);
        }
        // Queues that programs write or order are read by their own NIC only.
        let id = self.create_without_endpoint(init)?;
        let made = if cross { self.make_cross(id, flags) } else { Ok(()) };
        if made.is_err() {
            self.destroy_qp(id)?;
        }
        made?;
        let QueuePair { qp, .. } = self.qps.get_mut(id).ok_or(Error::NoSuchObject)?;
        if let Some(receiver) = qp.receiver.as_deref_mut() {
            if flags.contains(F::MANAGED_RECV) {
                receiver.queue.manage();
            }
            if flags.contains(F::IGNORE_RQ_OVERFLOW) {
                receiver.queue.ignore_overflow();
            }
        }
        let (sends, receives) = (flags.contains(F::MANAGED_SEND), flags.contains(F::MANAGED_RECV));
        if sends || receives {
            let managed = Managed { pd: qp.pd, index: id.index, sends, receives, state: qp.state };
            self.state.managed.insert(qp.num, managed);
        }
        Ok(id)
    }

    fn make_cross(&mut self, id: QpId, flags: QpFlags) -> Result<(), Error> {
        let prefetch = self.config.prefetch;
        let managed = flags.contains(QpFlags::MANAGED_SEND);
        let QueuePair { qp, .. } = self.qps.get_mut(id).ok_or(Error::NoSuchObject)?;
        let blocks = qp.sq.ring.blocks();
        qp.sq.allocate()?;
        qp.requester.allocate(blocks);
        qp.sq.cross();
        let mut cross = CrossChannel::new(blocks, managed, prefetch)?;
        cross.ignores_overflow = flags.contains(QpFlags::IGNORE_SQ_OVERFLOW);
        let number = qp.num;
        let queues = [qp.send_cq, qp.recv_cq];
        if let Some(watch) = self.state.watch.as_deref_mut() {
            watch.add(id.index, number, &cross);
            for cq in queues {
                if let Some(queue) = self.state.cqs.at(cq.index()) {
                    queue.watch();
                }
            }
        }
        self.state.cross.insert(id.index, cross);
        Ok(())
    }

    /// Lets a completion queue that nobody polls go on counting when it is full: the oldest completion gives
    /// way.
    pub fn ignore_overrun(&mut self, cq: CqId) -> Result<(), Error> {
        self.state.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?.ignores_overrun = true;
        Ok(())
    }

    /// Completions ever written to a completion queue: what WAITs compare with.
    pub fn cq_produced(&self, cq: CqId) -> Result<u64, Error> {
        Ok(self.state.cqs.get(cq).ok_or(Error::NoSuchObject)?.produced)
    }

    /// Starts a completion queue's count, which WAITs compare with, as if so many had been written: for tests
    /// of what a long life reaches.
    pub fn start_produced_at(&mut self, cq: CqId, produced: u64) -> Result<(), Error> {
        self.state.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?.start_at(produced);
        Ok(())
    }

    /// Starts an unused cross-channel queue's indices as if so many blocks had been executed: for tests of
    /// what a long life reaches. `Busy` if anything was posted.
    pub fn start_blocks_at(&mut self, id: QpId, block: u32) -> Result<(), Error> {
        let QueuePair { qp, .. } = self.qps.get_mut(id).ok_or(Error::NoSuchObject)?;
        let cross = self.state.cross.get_mut(id.index).ok_or(Error::Unsupported("a plain send queue"))?;
        if cross.posted != qp.sq.fetched || qp.sq.has_unfetched() {
            return Err(Error::Busy);
        }
        (cross.posted, cross.cached) = (block, block);
        (qp.sq.posted, qp.sq.fetched, qp.sq.released) = (block, block, block);
        Ok(())
    }

    /// Bounds the rate of a queue pair's requests, or takes the bound off; it holds until the queue pair is
    /// reset. `WrongState` unless it is in RTS or SQD.
    pub fn set_rate_limit(&mut self, id: QpId, limit: RateLimit) -> Result<(), Error> {
        if usize::from(limit.typical_packet) > limits::MAX_MTU {
            return Err(Error::Invalid("typical packet size"));
        }
        let pair = match self.object(id)? {
            Object::On(_) => self.qps.get_mut(self.inner_name(id)).ok_or(Error::NoSuchObject)?,
            Object::Off(_) => return Err(Error::Unsupported("a rate limit of an endpoint that is not lent")),
        };
        if !matches!(pair.qp.state, QpState::Rts | QpState::Sqd) {
            return Err(Error::WrongState);
        }
        congestion::set_limit(&mut pair.qp, &self.state, limit);
        wake(pair, &mut self.ready);
        Ok(())
    }

    /// The rate that was set for a queue pair's requests.
    pub fn rate_limit(&self, id: QpId) -> Result<RateLimit, Error> {
        Ok(match self.object(id)? {
            Object::On(pair) => congestion::limit_of(&pair.qp),
            Object::Off(_) => RateLimit::default(),
        })
    }
}
