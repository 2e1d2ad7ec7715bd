//! Reliable connection and XRC: PSNs in order, acknowledgements, retries (IBTA 9.7).
//!
//! A queue pair has a [`Mode`], and this is the only file that knows which modes there are. A mode decides
//! how lost packets are recovered, and with that what requests say on the wire; everything else is common to
//! all:
//!
//! | file | holds |
//! |---|---|
//! | [`go_back_n`] | IBTA's recovery: the requester goes back to the first gap and sends everything again |
//! | [`irn`] | selective recovery, where both NICs offer it; go-back-N until they have agreed |
//! | [`star`] | the peer's NIC keeps nothing of the connection, and this one keeps both sides' state |
//! | [`responder`] | requests in PSN order: executed, acknowledged, answered |
//! | [`direct`] | requests to a queue pair of the same NIC, without packets |
//! | `retry` | retry counts and what exhausts them |
//! | `read_answer` | answers to READs and atomics, at both ends |
//!
//! What lies below gets `&mut Qp` alone, and so cannot ask which mode the queue pair has. When it takes the
//! queue pair to ERR, the mode hears of it here, at the end of the call.

pub(crate) mod dialect;
pub(crate) mod direct;
mod go_back_n;
pub mod irn;
mod read_answer;
pub(crate) mod responder;
mod retry;
pub(crate) mod star;

use crate::attr::{QpState, QpType};
use crate::engine::step::SendStep;
use crate::frame::TxFrame;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::silence::{Overdue, Silence};
use crate::state::NicState;
use adverb_wire::{Instant, Packet, Service};
use dialect::Dialect;
use irn::Irn;
use irn::config::LossRecovery;
use star::Star;

/// How a queue pair recovers from loss: IBTA's go-back-N, whose state is the queue pair's own, or what it
/// keeps instead. Unreliable queue pairs stay with go-back-N, of which they use nothing.
#[derive(Debug, Default)]
pub(crate) struct Mode(Option<Box<Kept>>);

/// What a mode other than go-back-N keeps. Which one it is stands in the box with it: another mode is another
/// variant here, and adds nothing to the queue pairs that do not have it.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it stands in a box, and a queue pair has one or the other")]
enum Kept {
    /// IRN, from RTR on where the NIC offers it. Whether the peer knows it too is part of its state.
    Irn(Irn),
    /// StaR's stateful half.
    Star(Star),
}

const _: () = assert!(core::mem::size_of::<Mode>() == 8, "a plain queue pair pays one word, for all modes");

impl Mode {
    /// Whether packets of this service are the mode's, beside those of the queue pair's own service.
    #[inline]
    pub fn takes(&self, service: Service) -> bool {
        match self.0.as_deref() {
            None => false,
            Some(Kept::Irn(_)) => service == Service::Irn,
            Some(Kept::Star(_)) => service == Service::Star,
        }
    }

    /// Whether there is something to send that no request asked for: an acknowledgement, an answer, a hello.
    #[inline]
    pub fn owes(&mut self, qp: &Qp) -> bool {
        match self.0.as_deref_mut() {
            None => qp.responder.has_output(),
            Some(Kept::Irn(irn)) => qp.responder.has_output() || irn.has_output(),
            Some(Kept::Star(star)) => star.has_output(),
        }
    }

    /// Whether it is another mode than go-back-N, with state of its own.
    pub fn keeps_state(&self) -> bool {
        self.0.is_some()
    }

    /// The earliest of the queue pair's timers.
    #[inline]
    pub fn deadline(&self, qp: &Qp) -> Instant {
        match self.0.as_deref() {
            None => qp.deadline,
            Some(Kept::Star(star)) => qp.deadline.min(star.deadline()),
            Some(Kept::Irn(irn)) => qp.deadline.min(irn.at),
        }
    }

    /// What the two NICs have agreed on, as far as it is known.
    pub fn recovery(&self) -> LossRecovery {
        match self.0.as_deref() {
            None => LossRecovery::GoBackN,
            Some(Kept::Irn(irn)) => irn.recovery(),
            Some(Kept::Star(_)) => LossRecovery::Star,
        }
    }

    /// StaR's stateful half, from the first moment on.
    pub fn of_star(star: Star) -> Mode {
        Mode(Some(Box::new(Kept::Star(star))))
    }

    /// Whether it is StaR's stateful half.
    pub fn is_star(&self) -> bool {
        matches!(self.0.as_deref(), Some(Kept::Star(_)))
    }

    /// It, if it is that.
    pub fn star(&self) -> Option<&Star> {
        match self.0.as_deref() {
            Some(Kept::Star(star)) => Some(star),
            _ => None,
        }
    }

    /// Every invariant of its state.
    pub fn check_invariants(&self) {
        match self.0.as_deref() {
            None => {}
            Some(Kept::Irn(irn)) => irn.check_invariants(),
            Some(Kept::Star(star)) => star.check_invariants(),
        }
    }
}

/// Takes in a packet that was admitted.
#[inline]
pub(crate) fn on_packet(
    qp: &mut Qp,
    mode: &mut Mode,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    match mode.0.as_deref_mut() {
        None => go_back_n::on_packet(qp, nic, now, packet, payload),
        Some(Kept::Irn(irn)) => irn::on_packet(qp, irn, nic, now, packet, payload),
        Some(Kept::Star(star)) => star::on_packet(qp, star, nic, now, packet, payload),
    }
}

/// One step: something that is owed, or the next piece of work of the send queue. Unreliable queue pairs come
/// here too.
#[inline]
pub(crate) fn step(
    qp: &mut Qp,
    mode: &mut Mode,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> SendStep {
    match mode.0.as_deref_mut() {
        None => go_back_n::step(qp, nic, now, out),
        Some(Kept::Irn(irn)) => irn::step(qp, irn, nic, now, out),
        Some(Kept::Star(star)) => star::step(qp, star, nic, now, out),
    }
}

/// The acknowledgement that is overdue, if the queue pair's timer runs out because of one.
pub(crate) fn overdue(qp: &Qp, mode: &Mode, nic: &NicState, now: Instant) -> Option<Overdue> {
    if let Some(Kept::Star(star)) = mode.0.as_deref()
        && let Some((since, due)) = star.overdue(now)
    {
        return Some(Overdue { path: qp.path, dst: qp.dst, peer: qp.peer, since, due });
    }
    if qp.deadline > now || qp.requester.rnr_wait {
        return None;
    }
    let own = match mode.0.as_deref() {
        Some(Kept::Irn(irn)) if qp.dialect == Dialect::Irn => Some(irn::awaits_since(irn)?),
        Some(Kept::Star(star)) => Some(star.awaits_since()?),
        _ => None,
    };
    if own.is_none() && !qp.requester.awaits_acknowledgement() {
        return None;
    }
    let since = own.unwrap_or_else(|| qp.deadline.before(qp.rto(nic)));
    let due = qp.deadline.max(since);
    Some(Overdue { path: qp.path, dst: qp.dst, peer: qp.peer, since, due })
}

/// A timer may have run out. `silence` is what the driver knows of an overdue acknowledgement.
pub(crate) fn on_timer(qp: &mut Qp, mode: &mut Mode, nic: &mut NicState, now: Instant, silence: Silence) {
    match mode.0.as_deref_mut() {
        None if qp.deadline <= now => go_back_n::on_timeout(qp, nic, now, silence),
        None => {}
        Some(Kept::Irn(irn)) => irn::on_timer(qp, irn, nic, now, silence),
        Some(Kept::Star(star)) => star::on_timer(qp, star, nic, now, silence),
    }
}

/// The queue pair's rate lets answers go on.
pub(crate) fn end_wait(qp: &mut Qp, mode: &mut Mode) {
    qp.responder.held_back = false;
    match mode.0.as_deref_mut() {
        None => {}
        Some(Kept::Star(star)) => star.end_wait(),
        Some(Kept::Irn(irn)) => irn::end_wait(irn),
    }
}

/// The queue pair is new, but over queues that are further than RESET: it gets what it would have got on the
/// way to its state.
pub(crate) fn on_lent(qp: &mut Qp, mode: &mut Mode, nic: &mut NicState, offers_irn: bool) {
    let state = qp.state;
    let way = [(QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)];
    let steps = match state {
        QpState::Rtr => 1,
        QpState::Rts | QpState::Sqd => 2,
        _ => 0,
    };
    for (was, next) in way.into_iter().take(steps) {
        qp.state = next;
        on_transition(qp, mode, nic, was, offers_irn);
    }
    qp.state = state;
}

/// The queue pair has changed its state by its owner's hand. On the way to RTR it gets the mode that the NIC
/// offers.
pub(crate) fn on_transition(
    qp: &mut Qp,
    mode: &mut Mode,
    nic: &mut NicState,
    was: QpState,
    offers_irn: bool,
) {
    if offers_irn
        && qp.dialect != Dialect::PlainOnly
        && qp.qp_type == QpType::Rc
        && (was, qp.state) == (QpState::Init, QpState::Rtr)
    {
        mode.0 = Some(Box::new(Kept::Irn(Irn::new(qp.sq.ring.blocks()))));
    }
    match mode.0.as_deref_mut() {
        None => {}
        Some(Kept::Irn(irn)) => irn::on_transition(qp, irn, nic, was),
        Some(Kept::Star(star)) => star::on_transition(qp, star, was),
    }
}
