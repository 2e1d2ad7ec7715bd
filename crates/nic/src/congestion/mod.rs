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
//! | DCTCP | marks that acknowledgements echo, losses | window | [`Control`] |
//! | Swift | round-trip times, losses | window, or a rate below one packet | [`Control`] |
//! | HPCC | what switches stamp, echoed by acknowledgements | window and rate | [`Control`] |
//!
//! A rate holds for all data of a queue pair: requests, and answers to READs, in the order in which they
//! come. A queue pair that has to wait leaves the row of those ready to send, and a timer brings it back. At
//! line rate nobody waits: the port itself is the limit.

pub(crate) mod config;
pub(crate) mod control;
mod dcqcn;
mod dctcp;
mod hpcc;
pub(crate) mod limit;
pub(crate) mod notify;
mod pacer;
mod swift;
mod tcp;
pub mod telemetry;
mod timely;
pub(crate) mod window;

pub use config::{
    CongestionControl, DcqcnConfig, DctcpConfig, HpccConfig, SwiftConfig, TcpConfig, TimelyConfig,
};
pub(crate) use control::Sent;
pub use dcqcn::Dcqcn;
pub use dctcp::Dctcp;
pub use hpcc::Hpcc;
pub use limit::RateLimit;
pub use pacer::Pacer;
pub use swift::Swift;
pub use tcp::Tcp;
pub use timely::Timely;

use crate::frame::TxFrame;
use crate::qp::Qp;
use crate::state::NicState;
use adverb_wire::{Instant, Operation, Packet, Psn};
use control::{Algorithm, Control, Progress};
use telemetry::Telemetry;
use window::Window;

/// ECN field of a traffic class (RFC 3168): its bits, ECN-capable (0), congestion experienced.
const ECN: u8 = 3;
const ECT: u8 = 2;

/// The queue pair begins anew.
pub(crate) fn begin(qp: &mut Qp, nic: &mut NicState) {
    let rules = &nic.congestion;
    nic.notifier.forget(qp.index());
    qp.requester.window = Window::new(rules.ceiling);
    if !qp.is_reliable() {
        return;
    }
    qp.control = Control::new(rules, qp.mtu());
    if let Some(control) = qp.control.as_deref() {
        qp.requester.window = Window::new(control.first_window(rules));
    }
    let marks = matches!(rules.scheme, CongestionControl::Dcqcn(_) | CongestionControl::Dctcp(_));
    if marks && qp.traffic_class & ECN == 0 {
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
pub(crate) fn on_ack(qp: &mut Qp, nic: &mut NicState, before: Psn, now: Instant) {
    let full = qp.requester.window.packets() == nic.congestion.ceiling;
    if qp.control.is_some() || !full {
        acknowledged(qp, nic, before, now);
    }
}

#[inline(never)]
fn acknowledged(qp: &mut Qp, nic: &mut NicState, before: Psn, now: Instant) {
    let r = &mut qp.requester;
    let at = Progress { count: r.una.since(before) as u32, una: r.una, sent: r.sent };
    match qp.control.as_deref_mut().filter(|control| !matches!(control.algorithm, Algorithm::None)) {
        Some(control) => {
            let (stamped, marked) = control.on_ack(&nic.congestion, &mut r.window, at, now);
            nic.counters.telemetry_handled += u64::from(stamped);
            nic.counters.ecn_echo_handled += u64::from(marked);
        }
        None => r.window.on_ack(at.count, nic.congestion.ceiling),
    }
}

/// Packets were lost, and are sent again; `timeout` when the timer says so.
pub(crate) fn on_loss(qp: &mut Qp, nic: &NicState, timeout: bool, now: Instant) {
    let r = &mut qp.requester;
    let in_flight = r.sent.since(r.una).max(0) as u32;
    match (&nic.congestion.scheme, qp.control.as_deref_mut()) {
        (CongestionControl::Halving, _) => r.window.on_loss(),
        (_, Some(control)) => {
            control.on_loss(&nic.congestion, &mut r.window, (in_flight, r.sent), timeout, now);
        }
        _ => {}
    }
}

/// An acknowledgement leaves, dressed otherwise: it echoes what packets have brought.
#[inline]
pub(crate) fn echo(qp: &mut Qp, nic: &mut NicState, out: &mut TxFrame) {
    if qp.control.is_some() {
        echo_feedback(qp, nic, out);
    }
}

#[inline(never)]
fn echo_feedback(qp: &mut Qp, nic: &mut NicState, out: &mut TxFrame) {
    let Some(control) = qp.control.as_deref_mut() else { return };
    if core::mem::take(&mut control.marked) {
        out.packet.bth.becn = true;
        nic.counters.ecn_echo_sent += 1;
    }
    if let Algorithm::Hpcc(hpcc) = &mut control.algorithm {
        out.telemetry = hpcc.echo.take();
    }
}

/// An acknowledgement came that echoes a mark: heeded with what it acknowledges.
#[cold]
pub(crate) fn on_echo(qp: &mut Qp) {
    if let Some(control) = qp.control.as_deref_mut() {
        control.echoed = matches!(control.algorithm, Algorithm::Dctcp(_));
    }
}

/// What switches have stamped on a packet that comes in next: kept for its acknowledgement or, if it is one,
/// until it has been taken in.
pub(crate) fn on_telemetry(qp: &mut Qp, packet: &Packet, telemetry: &Telemetry) {
    if let Some(Control { algorithm: Algorithm::Hpcc(hpcc), .. }) = qp.control.as_deref_mut() {
        match packet.bth.opcode.operation() {
            Operation::Acknowledge => hpcc.arrived = Some(*telemetry),
            operation if operation.is_response() => {}
            _ => hpcc.echo = Some(*telemetry),
        }
    }
}

/// A packet of data came that a switch had marked, if it did.
#[inline]
pub(crate) fn on_received(qp: &mut Qp, nic: &mut NicState, packet: &Packet, now: Instant) {
    if packet.flow.traffic_class & ECN == ECN {
        on_marked(qp, nic, packet, now);
    }
}

#[cold]
fn on_marked(qp: &mut Qp, nic: &mut NicState, packet: &Packet, now: Instant) {
    let operation = packet.bth.opcode.operation();
    if qp.is_reliable() && (operation.is_send() || operation.is_write() || operation.is_read_response()) {
        nic.counters.ecn_marked += 1;
        if let Some(control) = qp.control.as_deref_mut()
            && matches!(control.algorithm, Algorithm::Dctcp(_))
            && !operation.is_read_response()
        {
            // Its acknowledgement says so; a notification would say it again.
            control.marked = true;
            return;
        }
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

/// What the sender of a queue pair is allowed: packets that may be unacknowledged, and bits/s.
pub(crate) fn allowed(qp: &Qp, nic: &NicState) -> (u32, u64) {
    let rate = qp.control.as_deref().map_or(nic.congestion.line, |control| control.rate(&nic.congestion));
    (qp.requester.window.packets(), rate as u64)
}
