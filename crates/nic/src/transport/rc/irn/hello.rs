//! Finding out whether the peer knows IRN, without a connection manager.
//!
//! A queue pair says hello when it reaches RTR, and again at RTS if the peer has not answered: from RTR on it
//! takes IRN's packets, so who hears a hello may speak IRN at once. A hello that asks is repeated a few times
//! with growing intervals, then no more; a peer that does not know IRN drops them all. Every order and loss
//! is harmless:
//! - A hello that comes before this side's RTR is lost; this side's own hello, sent then, brings the answer.
//! - A hello that comes late changes nothing for what is in flight: requests switch when nothing is.
//! - Who gets IRN's packets without having heard a hello knows enough.
//!
//! Anybody can send a hello, and who believed a forged one would speak IRN to a peer that drops it. So a
//! hello must tell what the peer expects next, which is as hard to guess as any PSN; and none is believed any
//! more when nobody has answered and the peer's packets are plain RC's.
//!
//! Where connection set-up has settled it ([`IrnConfig::agreed`](super::IrnConfig::agreed)), nobody says
//! hello.
//!
//! A peer that does not know the opcode may do worse than drop it. Linux's rxe of 6.1 does drop it; older
//! ones, by their source, took every opcode that they did not know for a response, and looked at the PSN
//! first: one beyond their requests would complete them, one among them would fail the queue pair, and only
//! one from before them was dropped without a look at the opcode. So a hello's PSN is [`PSN_BACK`] before
//! what this side expects.

use super::{Irn, LossRecovery};
use crate::attr::QpState;
use crate::event::Event;
use crate::ids::QpId;
use crate::qp::Qp;
use crate::state::NicState;
use adverb_wire::{Instant, IrnEth, Operation, Packet, Psn, irn::VERSION};

/// Hellos that ask, after each of the transitions to RTR and RTS.
const TRIES: u8 = 6;

/// How far a hello's PSN lies before the peer's requests: in the middle of the half circle that counts as the
/// past.
const PSN_BACK: u32 = 1 << (Psn::BITS - 2);

/// State of the agreement.
#[derive(Debug)]
pub(crate) struct Hello {
    /// Packets that the peer can keep; 0 as long as nothing was heard of it.
    peer_window: u16,
    /// The peer reads runs, and this side offers them.
    runs: bool,
    /// The peer executes masked atomics.
    masked: bool,
    /// A hello that asks is to be sent.
    ask: bool,
    /// One that answers is.
    answer: bool,
    tries: u8,
    sent: u8,
    /// What a hello that came in RTR takes for this side's first PSN, which is not known before RTS.
    unproven: Option<Psn>,
    /// When to ask again.
    pub(super) at: Instant,
}

impl Default for Hello {
    fn default() -> Self {
        Hello {
            peer_window: 0,
            runs: false,
            masked: false,
            ask: false,
            answer: false,
            tries: 0,
            sent: 0,
            unproven: None,
            at: Instant::NEVER,
        }
    }
}

impl Hello {
    /// Whether the peer knows IRN.
    #[inline]
    pub fn is_agreed(&self) -> bool {
        self.peer_window > 0
    }

    /// Packets that the peer can keep.
    #[inline]
    pub fn peer_window(&self) -> u32 {
        self.peer_window.into()
    }

    /// Whether the peer executes masked atomics.
    #[inline]
    pub fn has_masked_atomics(&self) -> bool {
        self.masked
    }

    /// Whether a NACK may name a run.
    #[inline]
    pub fn has_runs(&self) -> bool {
        self.runs
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.ask || self.answer
    }

    pub(super) fn recovery(&self) -> LossRecovery {
        match (self.is_agreed(), self.ask || self.at != Instant::NEVER) {
            (true, _) => LossRecovery::Irn,
            (false, true) => LossRecovery::Undecided,
            (false, false) => LossRecovery::GoBackN,
        }
    }

    pub(super) fn on_timer(&mut self, id: QpId, nic: &mut NicState, now: Instant) {
        if self.at > now {
            return;
        }
        self.at = Instant::NEVER;
        if self.tries > 0 {
            self.ask = true;
        } else {
            nic.counters.irn_unanswered += 1;
            nic.event(Event::IrnUnanswered(id));
        }
    }

    fn heard(&mut self, window: u32) -> bool {
        let news = self.peer_window == 0;
        self.peer_window = window as u16;
        self.ask = false;
        self.at = Instant::NEVER;
        news
    }
}

/// Begins to ask: the queue pair has come to RTR, or to RTS and heard nothing.
pub(super) fn begin(irn: &mut Irn) {
    if !irn.hello.is_agreed() {
        irn.hello.ask = true;
        irn.hello.tries = TRIES;
        irn.hello.sent = 0;
        irn.hello.at = Instant::NEVER;
    }
}

/// Puts the hello that is due into `packet`.
pub(super) fn send(qp: &Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, packet: &mut Packet) {
    let past = qp.responder.expected().add(Psn::MASK + 1 - PSN_BACK);
    packet.bth = super::bth(qp, Operation::Hello, past);
    let flags = IrnEth::MASKED_ATOMICS | if nic.irn.runs { IrnEth::RUNS } else { 0 };
    packet.irn = IrnEth::new(flags, VERSION, nic.irn.receive_packets.clamp(1, nic.irn.window()));
    let hello = &mut irn.hello;
    nic.counters.irn_hellos_sent += 1;
    if core::mem::take(&mut hello.answer) && !hello.ask {
        return;
    }
    hello.ask = false;
    packet.bth.ack_req = true;
    let interval = nic.irn.hello_interval;
    hello.at = now + interval.times(1 << hello.sent.min(TRIES));
    hello.sent = hello.sent.saturating_add(1);
    hello.tries = hello.tries.saturating_sub(1);
}

/// The peer says hello.
pub(super) fn receive(qp: &Qp, irn: &mut Irn, nic: &mut NicState, packet: &Packet) {
    let window = packet.irn.offset.min(nic.irn.window());
    if packet.irn.sn() != VERSION || window == 0 {
        nic.counters.drop_wrong_service += 1;
        return;
    }
    let next = packet.bth.psn.add(PSN_BACK);
    if qp.state == QpState::Rtr {
        irn.hello.unproven = Some(next);
    } else if !is_expected(qp, next) || (irn.plain_heard && irn.hello.recovery() == LossRecovery::GoBackN) {
        nic.counters.drop_hello += 1;
        return;
    }
    let flags = packet.irn.flags();
    irn.hello.masked = flags & IrnEth::MASKED_ATOMICS != 0;
    agree(qp, irn, nic, window, flags & IrnEth::RUNS != 0);
    irn.hello.answer |= packet.bth.ack_req;
}

/// Whether a peer may expect this PSN next: it is one of those not acknowledged, or the one behind them. A
/// hello that acknowledgements have overtaken is repeated.
fn is_expected(qp: &Qp, next: Psn) -> bool {
    let requester = &qp.requester;
    next.since(requester.una) >= 0 && next.since(requester.sent) <= 0
}

/// The own first PSN is known now: what a hello said before must fit it.
pub(super) fn prove(qp: &Qp, irn: &mut Irn, nic: &NicState) {
    let fits = irn.hello.unproven.take().is_none_or(|next| next == qp.requester.next_psn());
    if !fits && nic.irn.agreed.is_none() {
        // The peer's own requests may have told that it speaks IRN; which extensions it knows, it says again.
        let (peer_window, receiving) = (irn.hello.peer_window, irn.receiving);
        irn.hello = Hello { peer_window: if receiving { peer_window } else { 0 }, ..Hello::default() };
    }
}

/// The peer sent a request of IRN's: it has heard us, though we have not heard it.
#[inline]
pub(super) fn implied(qp: &Qp, irn: &mut Irn, nic: &mut NicState) {
    if !irn.hello.is_agreed() {
        // How much it can take in it has not said: as much as this host, then.
        let window = nic.irn.receive_packets.clamp(1, nic.irn.window());
        agree(qp, irn, nic, window, false);
    }
}

/// Connection set-up says that the peer speaks IRN as this NIC does.
pub(super) fn agree_all(qp: &Qp, irn: &mut Irn, nic: &mut NicState, window: u32) {
    irn.hello.masked = true;
    agree(qp, irn, nic, window, true);
}

/// The peer is known to speak IRN and to take in so many packets, and whether it reads runs.
pub(super) fn agree(qp: &Qp, irn: &mut Irn, nic: &mut NicState, window: u32, reads_runs: bool) {
    irn.hello.runs = nic.irn.runs && reads_runs;
    if irn.hello.heard(window) {
        nic.counters.irn_agreed += 1;
        nic.event(Event::IrnAgreed(qp.id));
    }
}
