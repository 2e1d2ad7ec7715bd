//! What every queue pair of a NIC shares: memory, completion and shared receive queues, events,
//! counters, explanations. Transports get one `&mut NicState` beside their one `&mut Qp`.

use crate::attr::QpState;
use crate::config::{NicConfig, WaitOnError};
use crate::congestion::control::Rules;
use crate::congestion::notify::Notifier;
use crate::counters::Counters;
use crate::engine::step::Effect;
use crate::engine::watch::Watch;
use crate::event::Event;
use crate::explain::{Awaited, Cause, Explanation};
use crate::ids::{CqId, PathId, PdId, SrqId, XrcdId};
use crate::limits;
use crate::memory::{AccessFault, Memory, Payload, dma};
use crate::queue::cq::{Added, Cq, Entry, Release};
use crate::queue::cross::CrossChannels;
use crate::queue::recv::Srq;
use crate::random::Seed;
use crate::silence::Tolerance;
use crate::slab::{Held, Slab};
use crate::transport::rc::irn::config::IrnConfig;
use crate::transport::star::registry::Registry;
use crate::work::{Completion, Posted, Sge, Status};
use adverb_wire::{Duration, Gid, QpNumber};
use std::collections::{BTreeMap, VecDeque};

/// What every call reads stands first.
#[repr(C, align(64))]
pub(crate) struct NicState {
    pub events: VecDeque<Event>,
    /// Completions held back for a driver that steps the NIC; written at once otherwise.
    pub pending: VecDeque<(CqId, Entry)>,
    /// Completion queues armed for an event.
    pub armed_cqs: u32,
    pub stepped: bool,
    /// There may be some in `effects`.
    pub has_effects: bool,
    /// The first source address, which nearly every packet has.
    pub gid: Gid,
    /// Transport retries are never used up.
    pub retry_forever: bool,
    /// What a frame does is told, to the watch or to the tally.
    pub attended: bool,
    /// What chains do, if that is to be told.
    pub watch: Option<Box<Watch>>,
    pub notifier: Notifier,
    pub qpn_base: u32,
    pub loopback: bool,
    /// The payload that requests move is counted.
    pub tallies: bool,
    pub rto: Option<Duration>,
    pub memory: Memory,
    pub counters: Counters,
    /// Congestion control's.
    pub congestion: Rules,
    pub cqs: Slab<CqId, Cq>,
    pub srqs: Slab<SrqId, Srq>,
    pub xrcds: Slab<XrcdId, u32>,
    pub explanations: VecDeque<Explanation>,
    /// As in [`NicConfig`].
    pub gids: Vec<Gid>,
    /// The shortest local ACK timeout.
    pub rto_min: Duration,
    pub tolerance: Tolerance,
    /// IRN's parameters; queue pairs have IRN state only on a NIC that offers it.
    pub irn: IrnConfig,
    /// What steps have done to other queue pairs, until the turn carries it out: at most one for each
    /// completion queue's waiter and for each request whose completion nobody polled, and one ENABLE.
    pub effects: VecDeque<Effect>,
    pub cross: CrossChannels,
    /// Managed queues by queue pair number.
    pub managed: BTreeMap<QpNumber, Managed>,
    /// Error completions release WAITs as all others.
    pub errors_release: bool,
    /// WQEs that programs write must name their place and their queue pair.
    pub wqe_checks: bool,
    /// A switch before this NIC makes WRITEs of atomics.
    pub words_by_write: bool,
    /// What may leave for stateless sides, where that is to be checked.
    pub registry: Option<Box<Registry>>,
    /// Since the driver last asked.
    pub posted: Posted,
}

// The second line ends with the row of who is to be notified; what finds a key is one line too.
const _: () = assert!(core::mem::offset_of!(NicState, notifier) == 96);
const _: () = assert!(core::mem::offset_of!(NicState, memory) == 192);

/// A queue pair with a managed queue, as those see it who enable it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Managed {
    pub pd: PdId,
    /// The queue pair's index.
    pub index: u32,
    /// Its send queue is managed, its receive queue is.
    pub sends: bool,
    pub receives: bool,
    pub state: QpState,
}

impl Managed {
    /// Whether its send queue may be enabled. In SQD that takes effect when the queue pair sends again.
    fn takes_sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// Whether its receive queue may: receives are posted from INIT on.
    fn takes_receives(&self) -> bool {
        !matches!(self.state, QpState::Reset | QpState::Err)
    }
}

fn refuse(rule: &'static str) -> Result<(), Cause> {
    Err(Cause::local(Status::LocalQpOperation, rule))
}

impl NicState {
    pub fn new(seed: Seed, config: &NicConfig) -> Self {
        NicState {
            congestion: Rules::new(config),
            notifier: Notifier::default(),
            irn: config.irn.unwrap_or_default(),
            retry_forever: config.retry_forever,
            gid: config.gids.first().copied().unwrap_or_default(),
            gids: config.gids.clone(),
            qpn_base: config.qpn_base,
            loopback: config.loopback,
            rto: config.rto,
            rto_min: config.tolerance.shortest_timeout(),
            tolerance: config.tolerance,
            memory: Memory::new(seed),
            cqs: Slab::new(limits::MAX_CQ),
            srqs: Slab::new(limits::MAX_SRQ),
            xrcds: Slab::new(limits::MAX_XRCD),
            events: VecDeque::new(),
            explanations: VecDeque::new(),
            counters: Counters::default(),
            pending: VecDeque::new(),
            stepped: config.stepped,
            posted: Posted::default(),
            has_effects: false,
            effects: VecDeque::new(),
            cross: CrossChannels::default(),
            attended: config.watch_chains || config.tally,
            tallies: config.tally,
            watch: config.watch_chains.then(Box::default),
            managed: BTreeMap::new(),
            errors_release: config.wait_on_error == WaitOnError::Release,
            wqe_checks: config.wqe_checks,
            words_by_write: false,
            registry: config.star.and_then(|star| star.registry).map(|room| Box::new(Registry::new(room))),
            armed_cqs: 0,
        }
    }

    /// Writes a completion, or queues it as a step of its own.
    #[inline]
    pub fn complete(&mut self, cq: Held<CqId>, completion: Completion, release: Option<Release>) {
        let entry = Entry { completion, release };
        if self.stepped {
            self.hold_back(cq, entry);
        } else {
            self.write_completion(cq, entry);
        }
    }

    #[cold]
    fn hold_back(&mut self, cq: Held<CqId>, entry: Entry) {
        self.pending.extend(self.cqs.id_at(cq.index()).map(|cq| (cq, entry)));
    }

    /// The completion step.
    #[inline]
    pub fn write_completion(&mut self, cq: Held<CqId>, entry: Entry) {
        if entry.completion.status == Status::Success {
            self.counters.completions += 1;
        } else {
            self.counters.error_completions += 1;
        }
        let Some(queue) = self.cqs.at(cq.index()) else { return };
        let added = queue.add(entry);
        if entry.completion.status != Status::Success && !self.errors_release {
            queue.note_error(Awaited { qp: entry.completion.qp, status: entry.completion.status });
        }
        if queue.is_awaited() {
            self.wake_waiters(cq);
        }
        match added {
            Added::Quiet => {}
            Added::Displaced(freed) => self.free(freed),
            Added::Event => {
                self.armed_cqs -= 1;
                self.event_of(cq, Event::Completion);
            }
            Added::Overrun { first, freed } => {
                if first {
                    self.counters.cq_overruns += 1;
                    self.event_of(cq, Event::CqError);
                }
                self.free(freed);
            }
        }
    }

    #[cold]
    fn wake_waiters(&mut self, cq: Held<CqId>) {
        if self.watch.is_some() {
            self.tell_completed(cq.index());
        }
        while let Some(index) = self.cqs.at(cq.index()).and_then(Cq::next_passed) {
            self.affect(Effect::Wake { index });
        }
    }

    /// A completion went that nobody polled: the turn makes room where its request was.
    #[cold]
    fn free(&mut self, freed: Option<Release>) {
        if let Some(release) = freed {
            self.affect(Effect::Release(release));
        }
    }

    /// Leaves something for the turn to do to another queue pair.
    pub fn affect(&mut self, effect: Effect) {
        self.has_effects = true;
        self.effects.push_back(effect);
    }

    /// Whether something goes before the steps of all queue pairs.
    #[inline]
    pub fn is_outside_due(&self) -> bool {
        self.stepped | self.has_effects | self.notifier.is_due()
    }

    /// An ENABLE: the managed queue with this number, of the same protection domain, may be fetched up to
    /// `end`.
    pub fn enable(&mut self, pd: PdId, number: u32, end: u32) -> Result<(), Cause> {
        match self.managed.get(&QpNumber::new(number)).filter(|queue| queue.pd == pd && queue.sends) {
            None => refuse("an ENABLE names no managed queue pair of its own protection domain"),
            Some(queue) if !queue.takes_sends() => {
                refuse("an ENABLE names a queue pair that is not ready to send")
            }
            Some(queue) => {
                let index = queue.index;
                self.affect(Effect::Enable { index, end: end as u16 });
                Ok(())
            }
        }
    }

    /// A RECV_ENABLE: messages may take requests of the managed receive queue with this number, of the same
    /// protection domain, up to `end`.
    pub fn enable_receives(&mut self, pd: PdId, number: u32, end: u32) -> Result<(), Cause> {
        match self.managed.get(&QpNumber::new(number)).filter(|queue| queue.pd == pd && queue.receives) {
            None => refuse("a RECV_ENABLE names no managed receive queue of its own protection domain"),
            Some(queue) if !queue.takes_receives() => {
                refuse("a RECV_ENABLE names a queue pair that is in RESET or ERR")
            }
            Some(queue) => {
                let index = queue.index;
                self.affect(Effect::EnableReceives { index, end: end as u16 });
                Ok(())
            }
        }
    }

    /// The queue pair at this index stops waiting for a completion queue, if it does.
    pub fn stop_waiting(&mut self, index: u32) {
        if let Some(cq) = self.cross.get_mut(index).and_then(|cross| cross.waits_for.take())
            && let Some(queue) = self.cqs.at(cq)
        {
            queue.forget_waiter(index);
        }
    }

    /// A queue pair is in this state now, so that ENABLEs of others know.
    #[inline]
    pub fn note_state(&mut self, number: QpNumber, state: QpState) {
        if !self.managed.is_empty()
            && let Some(queue) = self.managed.get_mut(&number)
        {
            queue.state = state;
        }
    }

    /// Whether an address and a queue pair number are this NIC's.
    pub fn is_own(&self, dst: Gid, number: QpNumber) -> bool {
        number.get() & !0xffff == self.qpn_base && self.gids.contains(&dst)
    }

    /// The way to a queue pair, for which the driver has named one: frames to an own queue pair stay inside.
    pub fn path_to(&self, dst: Gid, number: QpNumber, named: PathId) -> PathId {
        if self.loopback && self.is_own(dst, number) {
            return PathId::LOOPBACK;
        }
        if named == PathId::LOOPBACK { PathId::DEFAULT } else { named }
    }

    fn event_of(&mut self, cq: Held<CqId>, event: impl Fn(CqId) -> Event) {
        if let Some(id) = self.cqs.id_at(cq.index()) {
            self.event(event(id));
        }
    }

    /// The registry has been asked about a packet.
    pub fn count_egress(&mut self, allowed: bool) {
        match allowed {
            true => self.counters.star_egress_allowed += 1,
            false => self.counters.star_egress_refused += 1,
        }
    }

    /// Queues an event for the driver.
    pub fn event(&mut self, event: Event) {
        if self.events.len() == limits::MAX_PENDING_EVENTS {
            self.counters.events_lost += 1;
            return;
        }
        self.events.push_back(event);
    }

    /// Keeps the cause of an error completion; the oldest gives way.
    pub fn explain(&mut self, explanation: Explanation) {
        if self.explanations.len() == limits::MAX_PENDING_EXPLANATIONS {
            self.explanations.pop_front();
        }
        self.explanations.push_back(explanation);
    }

    /// Raises the limit event of a shared receive queue that fell below its limit (IBTA 10.2.9.3).
    #[inline]
    pub fn check_srq_limit(&mut self, id: SrqId) {
        if let Some(srq) = self.srqs.get_mut(id)
            && srq.limit > 0
            && srq.queue.len() < srq.limit
        {
            srq.limit = 0;
            self.event(Event::SrqLimitReached(id));
        }
    }

    /// Scatters `payload` over a list of local entries, starting `offset` bytes into the list.
    /// The list must have room; the caller has compared lengths.
    #[inline(always)]
    pub fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        payload: &Payload<'_>,
    ) -> Result<(), AccessFault> {
        let mut skip = offset;
        let mut done = 0usize;
        for sge in sges {
            if done == payload.len() {
                break;
            }
            if skip >= sge.len as u64 {
                skip -= sge.len as u64;
                continue;
            }
            let room = sge.len - skip as u32;
            let len = (room as usize).min(payload.len() - done) as u32;
            let addr = sge.addr.wrapping_add(skip);
            let span = self.memory.check_local(pd, sge.lkey, addr, len, true)?;
            if !payload.is_elided() {
                dma::write(span, payload, done, len as usize);
            }
            done += len as usize;
            skip = 0;
        }
        if done == payload.len() { Ok(()) } else { Err(AccessFault::OutOfBounds) }
    }
}
