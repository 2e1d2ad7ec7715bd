//! What the NIC does for StaR outside of its two halves: which side of a connection keeps the state, and how
//! the two agree on it (StaR, III-C1).
//!
//! On a NIC that offers StaR every queue pair begins as an endpoint ([`crate::endpoint`]), in which no NIC
//! state is. From RTR on it says hello, and from RTS on once more, since a server may stay in RTR:
//!
//! ```text
//!             hello: stateless                     acknowledged
//!   asking  ------------------>  handing over  ---------------->  stateless
//!     | \
//!     |  `-- the peer's state -->  a queue pair has the queues, and both sides' state
//!     |
//!     `-- no answer, or plain -->  a queue pair has the queues: plain RC
//! ```
//!
//! Who does not know StaR drops the hellos, and the endpoint becomes plain RC when there is something to do:
//! when a request of plain RC comes, or when a send is posted and nobody has answered. A hello must tell
//! what the peer expects next, which is as hard to guess as any PSN.
//!
//! What is posted before waits in the queues, and is told to the peer once it has the state ([`library`]).

mod arrivals;
mod completions;
mod egress;
mod entries;
mod era;
mod frames;
mod library;
mod policy;
mod promised;
pub mod service;
mod silent;
mod stack;
mod switch;

use crate::admission::PKEY_BASE;
use crate::attr::{QpAttr, QpAttrMask, QpState};
use crate::endpoint::{Endpoint, Object, Place};
use crate::error::Error;
use crate::event::{Event, StarOutcome};
use crate::ids::QpId;
use crate::limits;
use crate::manager;
use crate::memory::{Access, QueueMemory};
use crate::nic::Nic;
use crate::random::Seed;
use crate::silence::{Overdue, Silence};
use crate::transport::rc::star::{Star, WINDOW};
use crate::transport::star::{Atomics, StarConfig, Stateless};
use adverb_wire::star::{Grant, Hello, Ticket, Wish, features};
use adverb_wire::{Instant, Packet, Psn};
use era::Era;
use library::Library;
use silent::SilentPeers;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far a hello's PSN lies before the peer's requests, as with IRN's.
const PSN_BACK: u32 = 1 << (Psn::BITS - 2);
/// Times that a connection's record is sent without an answer.
const RECORD_TRIES: u8 = 8;
/// Of the intervals after which it is sent again, the longest has so many doublings.
const DOUBLINGS_MAX: u8 = 6;

/// What a queue pair of a NIC that offers StaR is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StarSide {
    /// The peer is being asked, or the state is being handed over.
    Undecided,
    /// This NIC keeps nothing of the connection.
    Stateless,
    /// This NIC keeps both sides' state.
    Stateful,
    /// Plain RC, or another service.
    Plain,
}

/// A NIC's part in StaR. NICs that do not offer it have none.
pub(crate) struct StarNic {
    config: StarConfig,
    pub stateless: Stateless,
    /// Endpoints with something to say, by index; each at most once.
    due: VecDeque<u32>,
    /// What is known of connections' switches, by endpoint; those with a message to send; when and how many
    /// have begun lately.
    eras: BTreeMap<u32, Box<Era>>,
    says: VecDeque<u32>,
    begun: (Instant, u32),
    /// How far the look at the numbers of connections is.
    look: policy::Look,
    /// Endpoints whose rules their peers have not taken, until they come to RTR.
    unregistered: BTreeSet<u32>,
    /// Processes at whose queue pairs nobody has answered lately.
    silent: SilentPeers,
    /// What the frame that leaves carries.
    body: Option<QueueMemory>,
}

/// How far an endpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Asking,
    /// Nobody has answered.
    Silent,
    /// Decided, and leaves when the peer's hello is answered.
    Leaving(StarOutcome),
    /// The peer is to have the state.
    Handing,
    Stateless,
}

/// What an endpoint knows of StaR, from RTR on.
#[derive(Debug)]
pub(crate) struct Hosted {
    phase: Phase,
    /// A hello that asks is to be sent; one that answers is; the record is.
    ask: bool,
    answer: bool,
    hand_over: bool,
    /// Stands in the row of those with something to say.
    is_due: bool,
    sent: u8,
    /// When to ask again, to hand over again, or to repeat what nobody has acknowledged.
    at: Instant,
    /// The time at which the timers look at it.
    heap_at: Instant,
    /// The first hello that was told: repeats tell the same, or the sides could decide differently.
    told: Hello,
    /// Extensions that both sides want.
    features: u8,
    ticket: Ticket,
    atomics: Atomics,
    /// The PSN at which the numbers of this side's work requests begin: that of its first request, which the
    /// peer tells before this side's program does.
    base: Psn,
    /// No new send request is told: the connection changes its stack.
    held: bool,
    /// It comes of a switch, so that no peer can have missed it.
    switched: bool,
    library: Library,
}

impl Hosted {
    /// A connection that begins.
    fn new(told: Hello, library: Library) -> Hosted {
        Hosted {
            phase: Phase::Asking,
            ask: true,
            answer: false,
            hand_over: false,
            is_due: false,
            sent: 0,
            at: Instant::NEVER,
            heap_at: Instant::NEVER,
            told,
            features: 0,
            ticket: Ticket::default(),
            atomics: Atomics::default(),
            base: Psn::new(0),
            held: false,
            switched: false,
            library,
        }
    }

    /// The peer has the state.
    fn become_stateless(&mut self, now: Instant) {
        self.measure(now);
        self.phase = Phase::Stateless;
        (self.hand_over, self.at) = (false, Instant::NEVER);
        self.library.heard_at(now);
    }

    /// An answer came to a hello or record: if that was sent once, it tells the round trip.
    fn measure(&mut self, now: Instant) {
        if self.sent == 1 {
            self.library.measured(now.since(self.library.since));
        }
    }

    /// Whether it would take the peer's state.
    fn may_be_stateful(&self) -> bool {
        self.told.wish != Wish::Server && matches!(self.phase, Phase::Asking | Phase::Silent)
    }
}

impl Endpoint {
    /// Whether a program may write WQEs itself: not while the peer has the state, and reads them one by one.
    pub fn check_written(&self) -> Result<(), Error> {
        if self.is_handed_over() {
            return Err(Error::Unsupported(
                "a program's own WQEs at the stateless side of a StaR connection",
            ));
        }
        Ok(())
    }

    /// Whether the peer has its state, or is getting it.
    pub fn is_handed_over(&self) -> bool {
        let phase = self.star.as_deref().map(|hosted| hosted.phase);
        matches!(phase, Some(Phase::Handing | Phase::Stateless))
    }

    /// The peer's atomics that were executed last.
    fn atomics(&mut self) -> Option<&mut Atomics> {
        self.star.as_deref_mut().map(|hosted| &mut hosted.atomics)
    }

    /// A send request was posted at `block`, behind `end`.
    pub fn follow_post(&mut self, end: u32, block: u32) {
        if let Some(hosted) = self.star.as_deref_mut() {
            hosted.library.follow(end, block);
        }
    }
}

impl StarNic {
    pub fn new(config: StarConfig, seed: Seed) -> StarNic {
        let stateless = Stateless::new(seed, config.lifetime_us(), !config.single_answers);
        StarNic {
            config,
            stateless,
            due: VecDeque::new(),
            eras: BTreeMap::new(),
            says: VecDeque::new(),
            begun: (Instant::ZERO, 0),
            look: policy::Look::default(),
            unregistered: BTreeSet::new(),
            silent: SilentPeers::default(),
            body: None,
        }
    }

    /// The hello of an endpoint.
    fn hello(&self, endpoint: &Endpoint, connections: u32) -> Hello {
        let sizes = endpoint.query().caps;
        Hello {
            wish: self.config.wish,
            features: self.config.features(),
            window: WINDOW as u16,
            connections,
            threshold: self.config.threshold,
            capacity: (limits::MAX_QP - connections).min(u16::MAX.into()) as u16,
            queues: (sizes.max_send_wr as u16, sizes.max_recv_wr as u16),
            clock: 0,
        }
    }
}

/// Life of an endpoint under StaR.
impl Nic {
    /// What a queue pair is, as far as StaR goes.
    pub fn star_side(&self, qp: QpId) -> Result<StarSide, Error> {
        Ok(match self.object(qp)? {
            Object::On(pair) if pair.mode.is_star() => StarSide::Stateful,
            Object::On(_) => StarSide::Plain,
            Object::Off(endpoint) => match endpoint.star.as_deref().map(|hosted| hosted.phase) {
                Some(Phase::Stateless) => StarSide::Stateless,
                _ if self.star.is_some() => StarSide::Undecided,
                _ => StarSide::Plain,
            },
        })
    }

    /// Bytes that StaR's stateless half has allocated on this NIC: the same for any number of connections.
    pub fn stateless_bytes(&self) -> usize {
        self.star.as_ref().map_or(0, |star| star.stateless.allocated())
    }

    /// An endpoint has come to RTR, or to RTS.
    pub(crate) fn begin_star(&mut self, id: QpId) {
        let connections = self.qps.len() as u32;
        let Some(star) = &mut self.star else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        let peer = endpoint.expected();
        let era = star.eras.entry(id.index).or_insert_with(|| Box::new(Era::new(peer)));
        if endpoint.state == QpState::Rts {
            era.begins_at(endpoint.next_psn());
        }
        era.unregistered |= star.unregistered.remove(&id.index);
        let unregistered = era.unregistered;
        if let Some(hosted) = endpoint.star.as_deref_mut().filter(|_| !unregistered) {
            // What the state's keeper was told of the attributes is told again, now that they are known.
            match hosted.phase {
                Phase::Stateless | Phase::Handing => hosted.hand_over = true,
                Phase::Asking | Phase::Silent => {
                    (hosted.phase, hosted.ask, hosted.sent) = (Phase::Asking, true, 0);
                }
                Phase::Leaving(_) => {}
            }
            return self.star_due(id);
        }
        let told = star.hello(endpoint, connections);
        let plain = endpoint.sq.is_written_by_program();
        endpoint.star = Some(Box::new(Hosted::new(told, Library::new(endpoint.sq.posted))));
        if unregistered {
            self.leave_for(id, StarOutcome::Unregistered);
        } else if plain {
            self.leave_for(id, StarOutcome::Written);
        } else {
            self.star_due(id);
        }
    }

    /// An endpoint has nothing to do with StaR any more: its state is another one, or it goes.
    pub(crate) fn end_star(&mut self, id: QpId) {
        let Some(star) = &mut self.star else { return };
        if let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id)
            && endpoint.star.take().is_some()
        {
            star.stateless.revoke(endpoint.num);
        }
    }

    /// The peer has taken an endpoint to ERR: the peer is acknowledged all the same.
    fn close_star(&mut self, id: QpId) {
        let Some(star) = &mut self.star else { return };
        if let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id)
            && endpoint.star.take().is_some()
        {
            star.stateless.close(endpoint.num);
        }
    }

    /// An endpoint stands in the row of those with something to say.
    fn star_due(&mut self, id: QpId) {
        let Some(star) = &mut self.star else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        if let Some(hosted) = endpoint.star.as_deref_mut()
            && !core::mem::replace(&mut hosted.is_due, true)
        {
            star.due.push_back(id.index);
        }
        self.state.has_effects = true;
    }

    /// Something was posted: the peer is told, if it has the state; who has waited for an answer in vain and
    /// has something to send asks once more, and then waits no longer.
    pub(crate) fn after_post(&mut self, now: Instant, id: QpId) {
        let Some(Place::Off(endpoint)) = self.endpoints.get(id) else { return };
        match endpoint.star.as_deref().map(|hosted| hosted.phase) {
            Some(Phase::Stateless | Phase::Handing) => self.tell_posted(now, id),
            Some(Phase::Asking | Phase::Silent) if self.is_known_silent(now, endpoint) => {
                self.leave_for(id, StarOutcome::Unanswered);
            }
            Some(Phase::Silent) if endpoint.sq.has_unfetched() => self.ask_once_more(id),
            _ => {}
        }
    }

    /// Whether a request is not to wait for an answer: none has come to the last one for this peer.
    fn is_known_silent(&self, now: Instant, endpoint: &Endpoint) -> bool {
        let silent = self.star.as_ref().map(|star| &star.silent);
        endpoint.sq.has_unfetched()
            && silent.is_some_and(|silent| silent.has(now, (endpoint.dst, endpoint.peer)))
    }

    /// Something is to be sent, and nobody has answered: the peer may have come up meanwhile.
    fn ask_once_more(&mut self, id: QpId) {
        let tries = self.star.as_ref().map_or(0, |star| star.config.hello_tries);
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        if let Some(hosted) = endpoint.star.as_deref_mut() {
            (hosted.phase, hosted.ask) = (Phase::Asking, true);
            hosted.sent = tries.saturating_sub(1);
        }
        self.star_due(id);
    }

    /// A queue pair that StaR never carries was created.
    pub(crate) fn tell_excluded(&mut self, id: QpId) {
        if self.star.is_some() {
            self.state.event(Event::Star(id, StarOutcome::Excluded));
        }
    }

    /// An endpoint's queues go to a queue pair: plain RC. Where there is no room for one, it stays as it is,
    /// and the next request or post tries again.
    fn leave_for(&mut self, id: QpId, outcome: StarOutcome) {
        self.leave_in(id, outcome, None);
    }

    fn leave_in(&mut self, id: QpId, outcome: StarOutcome, mode: Option<Star>) {
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        let num = endpoint.num;
        let hosted = endpoint.star.take();
        if self.lend_in(id, mode).is_err() {
            if let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) {
                endpoint.star = hosted;
            }
            return;
        }
        let counter = match outcome {
            StarOutcome::Conflict => &mut self.state.counters.star_role_conflicts,
            StarOutcome::Stateful => &mut self.state.counters.star_agreed,
            StarOutcome::Switched(StarSide::Stateful, _) => &mut self.state.counters.star_to_stateful,
            StarOutcome::Switched(..) => &mut self.state.counters.star_to_rc,
            _ => &mut self.state.counters.star_fell_back,
        };
        *counter += 1;
        self.state.event(Event::Star(id, outcome));
        if let Some(star) = &mut self.star {
            star.stateless.revoke(num);
        }
    }

    /// An endpoint's timer ran out.
    #[cold]
    pub(crate) fn on_endpoint_timer(
        &mut self,
        index: u32,
        now: Instant,
        ask: &mut dyn FnMut(&Overdue) -> Silence,
    ) {
        if service::has_index(index) {
            return self.on_native_timer(now);
        }
        if index == policy::INDEX {
            return self.compare_all(now);
        }
        if index == manager::INDEX {
            return self.on_management_timer(now);
        }
        let Some(name) = self.endpoints.name_at(index) else { return };
        self.switch_timer(now, name);
        let Some(star) = &mut self.star else { return };
        let tries = star.config.hello_tries;
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        let posted = endpoint.sq.has_unfetched();
        let peer = (endpoint.dst, endpoint.peer);
        let Some(hosted) = endpoint.star.as_deref_mut() else { return };
        if hosted.heap_at <= now {
            hosted.heap_at = Instant::NEVER;
        }
        if hosted.at > now {
            return self.arm(name);
        }
        hosted.at = Instant::NEVER;
        match hosted.phase {
            Phase::Asking if hosted.sent < tries => hosted.ask = true,
            Phase::Asking => {
                hosted.phase = Phase::Silent;
                if posted {
                    star.silent.note(now, star.config.hello_interval, peer);
                    self.leave_for(name, StarOutcome::Unanswered);
                }
                return;
            }
            // The peer may have gone: what is posted finds out.
            Phase::Handing => hosted.hand_over = posted || hosted.sent < RECORD_TRIES,
            Phase::Stateless => {}
            _ => return,
        }
        let decided = matches!(hosted.phase, Phase::Stateless | Phase::Handing);
        if hosted.phase != Phase::Stateless {
            self.star_due(name);
        }
        if decided {
            self.library_timer(now, name, ask);
        }
    }

    /// Has the timers look at an endpoint in time.
    fn arm(&mut self, id: QpId) {
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        let Some(hosted) = endpoint.star.as_deref_mut() else { return };
        if hosted.at < hosted.heap_at {
            hosted.heap_at = hosted.at;
            self.timers.enter(hosted.at, id.index);
        }
    }
}

/// What a ticket of an endpoint grants its peer, with which it has agreed on these extensions.
fn grant_of(endpoint: &Endpoint, agreed: u8) -> Grant {
    let attr = endpoint.query();
    let mut rights = 0;
    for (access, right) in [
        (Access::REMOTE_WRITE, Grant::WRITE),
        (Access::REMOTE_READ, Grant::READ),
        (Access::REMOTE_ATOMIC, Grant::ATOMIC),
    ] {
        if attr.access.contains(access) {
            rights |= right;
        }
    }
    let (pd, mtu) = (endpoint.pd.index as u16, attr.path_mtu as u8);
    let carried = agreed & features::CARRIED != 0;
    Grant { epoch: 0, incarnation: 0, pd, rights, mtu, carried, peer: endpoint.peer }
}

/// Of connections that may change their stack.
impl Nic {
    /// An endpoint's queues are lent, and its attributes were changed there.
    pub(crate) fn follow_modified(&mut self, id: QpId, attr: &QpAttr, mask: QpAttrMask) {
        if mask.contains(QpAttrMask::STATE) && attr.state == QpState::Reset {
            return self.end_era(id);
        }
        if mask.contains(QpAttrMask::SQ_PSN)
            && let Some(era) = self.era(id.index)
        {
            era.begins_at(attr.sq_psn);
        }
    }

    /// A connection has ended.
    pub(crate) fn end_era(&mut self, id: QpId) {
        if let Some(star) = &mut self.star {
            star.eras.remove(&id.index);
            star.unregistered.remove(&id.index);
        }
    }
}

impl Endpoint {
    /// Whether a packet may be the peer's, by state, partition and source.
    fn takes(&self, packet: &Packet) -> bool {
        self.state.is_up() && packet.bth.pkey & PKEY_BASE == PKEY_BASE && packet.flow.src == self.dst
    }
}
