//! Congestion control: how much a reliable queue pair may have unacknowledged, and when it may send.
//!
//! One enum says which scheme a NIC uses ([`CongestionControl`]), and the functions here are the only place
//! that matches on it: transports tell them what happened, and ask whether a packet may leave. Loss recovery
//! is another matter: each scheme goes with go-back-N and with IRN.
//!
//! | scheme | hears | does | state |
//! |---|---|---|---|
//! | halving | losses | window | the window |
//! | fixed | nothing | nothing | the window |
//! | DCQCN | notifications, time, bytes | rate | [`Control`] |
//! | TIMELY | round-trip times | rate | [`Control`] |
//! | TCP | acknowledgements, losses, timeouts | window | [`Control`] |
//!
//! A rate holds for all data of a queue pair: requests, and answers to READs, in the order in which they
//! come. A queue pair that has to wait leaves the row of those ready to send, and a timer brings it back. At
//! line rate nobody waits: the port itself is the limit.

pub(crate) mod config;
pub(crate) mod control;
mod dcqcn;
pub(crate) mod limit;
pub(crate) mod notify;
mod pacer;
mod tcp;
mod timely;
pub(crate) mod window;

pub use config::{CongestionControl, DcqcnConfig, TcpConfig, TimelyConfig};
pub(crate) use control::Sent;
pub use dcqcn::Dcqcn;
pub use limit::RateLimit;
pub use pacer::Pacer;
pub use tcp::Tcp;
pub use timely::Timely;

use crate::qp::Qp;
use crate::state::NicState;
use adverb_wire::{Instant, Packet, Psn};
use control::{Algorithm, Control};
use window::Window;

/// ECN field of a traffic class (RFC 3168): its bits, ECN-capable (0), congestion experienced.
const ECN: u8 = 3;
const ECT: u8 = 2;

/// The queue pair begins anew.
pub(crate) fn begin(qp: &mut Qp, nic: &mut NicState) {
    let rules = &nic.congestion;
    nic.notifier.forget(qp.index());
    qp.requester.window = Window::new(match rules.scheme {
        CongestionControl::Tcp(c) => c.initial.clamp(1, rules.ceiling),
        _ => rules.ceiling,
    });
    if !qp.is_reliable() {
        return;
    }
    qp.control = Control::new(rules);
    if matches!(rules.scheme, CongestionControl::Dcqcn(_)) && qp.traffic_class & ECN == 0 {
        qp.traffic_class |= ECT;
    }
}

/// Whether the rate lets a packet leave now. If it does not, the queue pair waits.
#[inline]
pub(crate) fn may_send(qp: &mut Qp, now: Instant) -> bool {
    match qp.control.as_deref_mut() {
        Some(control) if !control.is_open(now) => {
            control.pacer.waits = true;
            false
        }
        _ => true,
    }
}

/// Whether the limit that its program has set lets a request of no frame be executed now. If it does, the
/// request counts.
pub(crate) fn may_execute(qp: &mut Qp, now: Instant) -> bool {
    match qp.control.as_deref_mut() {
        Some(control) => control.may_execute(now),
        None => true,
    }
}

/// Sets the rate of a queue pair's requests, or takes the bound off. It holds until the queue pair is reset.
pub(crate) fn set_limit(qp: &mut Qp, nic: &NicState, limit: RateLimit) {
    if limit.kbps > 0 {
        let control = qp.control.get_or_insert_with(|| Control::limited(&nic.congestion));
        control.set_limit(Some(limit));
    } else if let Some(control) = qp.control.as_deref_mut() {
        control.set_limit(None);
        if matches!(control.algorithm, Algorithm::None) {
            qp.control = None;
        }
    }
}

/// The rate that was set for a queue pair.
pub(crate) fn limit_of(qp: &Qp) -> RateLimit {
    qp.control.as_deref().and_then(Control::limit).unwrap_or_default()
}

/// Whether a scheme governs the queue pair that needs more than a window.
#[inline]
pub(crate) fn is_governed(qp: &Qp) -> bool {
    qp.control.as_deref().is_some_and(|control| !matches!(control.algorithm, Algorithm::None))
}

/// A packet of data leaves, or the request for some. It may have to ask for an acknowledgement.
#[inline]
pub(crate) fn on_sent(qp: &mut Qp, nic: &NicState, packet: &mut Packet, sent: Sent, now: Instant) {
    if qp.control.is_some() {
        let timeout = qp.shortest_timeout(nic);
        let Some(control) = qp.control.as_deref_mut() else { return };
        control.on_sent(&nic.congestion, packet, sent, timeout, now);
    }
}

/// The oldest PSN not acknowledged was `before`, and has moved on.
#[inline]
pub(crate) fn on_ack(qp: &mut Qp, nic: &NicState, before: Psn, now: Instant) {
    let full = qp.requester.window.packets() == nic.congestion.ceiling;
    if qp.control.is_some() || !full {
        acknowledged(qp, nic, before, now);
    }
}

#[inline(never)]
fn acknowledged(qp: &mut Qp, nic: &NicState, before: Psn, now: Instant) {
    let r = &mut qp.requester;
    let count = r.una.since(before) as u32;
    match qp.control.as_deref_mut().filter(|control| !matches!(control.algorithm, Algorithm::None)) {
        Some(control) => control.on_ack(&nic.congestion, &mut r.window, count, r.una, now),
        None => r.window.on_ack(count, nic.congestion.ceiling),
    }
}

/// Packets were lost, and are sent again; `timeout` when the timer says so.
pub(crate) fn on_loss(qp: &mut Qp, nic: &NicState, timeout: bool) {
    let r = &mut qp.requester;
    let in_flight = r.sent.since(r.una).max(0) as u32;
    match (&nic.congestion.scheme, qp.control.as_deref_mut().map(|c| &mut c.algorithm)) {
        (CongestionControl::Halving, _) => r.window.on_loss(),
        (_, Some(Algorithm::Timely(timely))) => timely.on_loss(),
        (_, Some(Algorithm::Tcp(tcp))) if timeout => tcp.on_timeout(&mut r.window, in_flight, r.sent),
        (_, Some(Algorithm::Tcp(tcp))) => tcp.on_loss(&mut r.window, in_flight, r.sent),
        _ => {}
    }
}

/// A packet of data came that a switch had marked, if it did.
#[inline]
pub(crate) fn on_received(qp: &Qp, nic: &mut NicState, packet: &Packet, now: Instant) {
    if packet.flow.traffic_class & ECN == ECN {
        on_marked(qp, nic, packet, now);
    }
}

#[cold]
fn on_marked(qp: &Qp, nic: &mut NicState, packet: &Packet, now: Instant) {
    let operation = packet.bth.opcode.operation();
    if qp.is_reliable() && (operation.is_send() || operation.is_write() || operation.is_read_response()) {
        nic.counters.ecn_marked += 1;
        nic.notifier.on_marked(qp.index(), nic.congestion.cnp_interval, now);
    }
}

/// The peer of a reliable queue pair tells of congestion on the way to it.
#[cold]
pub(crate) fn on_cnp(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    if let CongestionControl::Dcqcn(c) = &nic.congestion.scheme
        && let Some(Control { algorithm: Algorithm::Dcqcn(dcqcn), .. }) = qp.control.as_deref_mut()
    {
        dcqcn.on_cnp(c, nic.congestion.line, now);
        nic.counters.cnp_handled += 1;
    }
}

/// The notification that a queue pair's peer is to get: not ECN-capable itself.
pub(crate) fn cnp(qp: &Qp, nic: &NicState) -> Packet {
    let flow = adverb_wire::Flow { traffic_class: qp.traffic_class & !ECN, ..qp.flow(nic) };
    Packet::cnp(flow, qp.peer)
}
