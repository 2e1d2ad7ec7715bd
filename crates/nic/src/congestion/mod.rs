//! Congestion control: how much a reliable queue pair may have unacknowledged, and when it may send.
//!
//! One enum says which scheme a NIC uses ([`CongestionControl`]), and the functions here are the only place that matches on it:
//! transports tell them what happened, and ask whether a packet may leave. Loss recovery is another matter: each scheme goes
//! with go-back-N and with IRN.
//!
//! | scheme | hears | does | state |
//! |---|---|---|---|
//! | halving | losses | window | the window |
//! | fixed | nothing | nothing | the window |
//! | DCQCN | notifications, time, bytes | rate | [`Control`] |
//! | TIMELY | round-trip times | rate | [`Control`] |
//! | TCP | acknowledgements, losses, timeouts | window | [`Control`] |
//!
//! A rate holds for all data of a queue pair: requests, and answers to READs, in the order in which they come. A queue pair
//! that has to wait leaves the row of those ready to send, and a timer brings it back. At line rate nobody waits: the port
//! itself is the limit.

mod config;
mod dcqcn;
mod notify;
mod pacer;
mod tcp;
mod timely;
mod window;

pub use config::{CongestionControl, DcqcnConfig, TcpConfig, TimelyConfig};
pub use dcqcn::Dcqcn;
pub(crate) use notify::Notifier;
pub use pacer::Pacer;
pub use tcp::Tcp;
pub use timely::Timely;
pub(crate) use window::Window;

use crate::nic::NicConfig;
use crate::qp::Qp;
use crate::shared::Shared;
use adverb_wire::{Duration, Instant, Packet, Psn, Service};

/// ECN field of a traffic class (RFC 3168): its bits, ECN-capable (0), congestion experienced.
const ECN: u8 = 3;
const ECT: u8 = 2;

/// What every queue pair of a NIC goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub scheme: CongestionControl,
    /// Packets that may be unacknowledged at most.
    pub ceiling: u32,
    /// Packets for each acknowledgement asked for; 0 for a quarter of the window.
    pub ack_every: u32,
    /// Bits/s.
    line: f64,
    burst: u32,
    cnp_interval: Duration,
}

impl Rules {
    pub fn new(config: &NicConfig) -> Self {
        let cnp_interval = match config.congestion {
            CongestionControl::Dcqcn(c) => c.cnp_interval,
            _ => DcqcnConfig::default().cnp_interval,
        };
        Rules {
            scheme: config.congestion,
            ceiling: config.max_unacked_packets.max(window::FLOOR),
            // A window that starts with a few packets moves by their acknowledgements.
            ack_every: match config.congestion {
                CongestionControl::Tcp(_) => config.ack_every.max(1),
                _ => config.ack_every,
            },
            line: config.line_rate.max(1) as f64,
            burst: config.pacing_burst,
            cnp_interval,
        }
    }

    /// How often a long message asks for an acknowledgement, in packets: often enough to keep the window moving.
    #[inline]
    pub fn ack_interval(&self, window: Window) -> u32 {
        if self.ack_every > 0 { self.ack_every } else { window.packets().div_ceil(4) }
    }
}

/// What a scheme with more than a window keeps for a queue pair.
#[derive(Debug)]
pub(crate) struct Control {
    pacer: Pacer,
    algorithm: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    Dcqcn(Dcqcn),
    Timely(Timely),
    Tcp(Tcp),
}

impl Control {
    fn new(rules: &Rules) -> Option<Box<Control>> {
        let algorithm = match rules.scheme {
            CongestionControl::Halving | CongestionControl::Fixed => return None,
            CongestionControl::Dcqcn(_) => Algorithm::Dcqcn(Dcqcn::new(rules.line)),
            CongestionControl::Timely(_) => Algorithm::Timely(Timely::new(rules.line)),
            CongestionControl::Tcp(_) => Algorithm::Tcp(Tcp::new()),
        };
        Some(Box::new(Control { pacer: Pacer::new(rules.line as u64), algorithm }))
    }

    fn rate(&self, rules: &Rules) -> f64 {
        match &self.algorithm {
            Algorithm::Dcqcn(dcqcn) => dcqcn.rate(),
            Algorithm::Timely(timely) => timely.rate(),
            Algorithm::Tcp(_) => rules.line,
        }
    }

    #[inline(never)]
    fn on_sent(&mut self, rules: &Rules, packet: &mut Packet, sent: Sent, timeout: Duration, now: Instant) {
        let bytes = packet.frame_len() as u64 + pacer::FRAMING;
        let asked = sent != Sent::Answer || packet.bth.opcode.service() == Service::Irn;
        if asked && self.rate(rules) < rules.line && timeout > Duration::ZERO {
            // Slow packets would let the timer end before the next one that asks for an acknowledgement leaves.
            let interval = if rules.ack_every > 0 { rules.ack_every } else { rules.ceiling.div_ceil(4) };
            let spread = bytes as f64 * 8e12 / self.rate(rules) * f64::from(interval);
            packet.bth.ack_req |= spread * 2.0 > timeout.as_ps() as f64;
        }
        match (&mut self.algorithm, &rules.scheme) {
            (Algorithm::Dcqcn(d), CongestionControl::Dcqcn(c)) => d.on_sent(c, rules.line, bytes, now),
            (Algorithm::Timely(t), CongestionControl::Timely(c)) if sent == Sent::New => {
                t.on_sent(c, packet.bth.psn, bytes as u32, packet.bth.ack_req, now);
            }
            _ => {}
        }
        let rate = self.rate(rules);
        if rate < rules.line {
            self.pacer.set_rate(rate as u64);
            self.pacer.on_sent(now, bytes, rules.burst);
        }
    }

    #[inline(never)]
    fn on_ack(&mut self, rules: &Rules, window: &mut Window, count: u32, una: Psn, now: Instant) {
        match (&mut self.algorithm, &rules.scheme) {
            (Algorithm::Timely(t), CongestionControl::Timely(c)) => t.on_ack(c, rules.line, una, now),
            (Algorithm::Tcp(t), _) => t.on_ack(window, rules.ceiling, count, una),
            _ => {}
        }
    }

    /// A packet has to wait; the time until which it does, if no timer stands for it.
    pub fn wait(&mut self) -> Option<Instant> {
        let wanted = self.pacer.waits && self.pacer.queued == Instant::NEVER;
        wanted.then(|| {
            self.pacer.queued = self.pacer.next();
            self.pacer.queued
        })
    }

    /// The timer of that time ended. False when it was another's.
    pub fn end_wait(&mut self, at: Instant) -> bool {
        if self.pacer.queued != at {
            return false;
        }
        (self.pacer.queued, self.pacer.waits) = (Instant::NEVER, false);
        true
    }
}

/// The queue pair begins anew.
pub(crate) fn begin(qp: &mut Qp, sh: &mut Shared) {
    let rules = &sh.congestion;
    sh.notifier.forget(qp.id);
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
        Some(control) if !control.pacer.is_open(now) => {
            control.pacer.waits = true;
            false
        }
        _ => true,
    }
}

/// What leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// A request's packet, for the first time.
    New,
    /// A request's packet that was sent before.
    Again,
    /// An answer to a READ or atomic.
    Answer,
}

/// A packet of data leaves, or the request for some. It may have to ask for an acknowledgement.
#[inline]
pub(crate) fn on_sent(qp: &mut Qp, sh: &Shared, packet: &mut Packet, sent: Sent, now: Instant) {
    if qp.control.is_some() {
        let timeout = qp.shortest_timeout(sh);
        let Some(control) = qp.control.as_deref_mut() else { return };
        control.on_sent(&sh.congestion, packet, sent, timeout, now);
    }
}

/// The oldest PSN not acknowledged was `before`, and has moved on.
#[inline]
pub(crate) fn on_ack(qp: &mut Qp, sh: &Shared, before: Psn, now: Instant) {
    let full = qp.requester.window.packets() == sh.congestion.ceiling;
    if qp.control.is_some() || !full {
        acknowledged(qp, sh, before, now);
    }
}

#[inline(never)]
fn acknowledged(qp: &mut Qp, sh: &Shared, before: Psn, now: Instant) {
    let r = &mut qp.requester;
    let count = r.una.since(before) as u32;
    match qp.control.as_deref_mut() {
        Some(control) => control.on_ack(&sh.congestion, &mut r.window, count, r.una, now),
        None => r.window.on_ack(count, sh.congestion.ceiling),
    }
}

/// Packets were lost, and are sent again; `timeout` when the timer says so.
pub(crate) fn on_loss(qp: &mut Qp, sh: &Shared, timeout: bool) {
    let r = &mut qp.requester;
    let in_flight = r.sent.since(r.una).max(0) as u32;
    match (&sh.congestion.scheme, qp.control.as_deref_mut().map(|c| &mut c.algorithm)) {
        (CongestionControl::Halving, _) => r.window.on_loss(),
        (_, Some(Algorithm::Timely(timely))) => timely.on_loss(),
        (_, Some(Algorithm::Tcp(tcp))) if timeout => tcp.on_timeout(&mut r.window, in_flight, r.sent),
        (_, Some(Algorithm::Tcp(tcp))) => tcp.on_loss(&mut r.window, in_flight, r.sent),
        _ => {}
    }
}

/// A packet of data came that a switch had marked, if it did.
#[inline]
pub(crate) fn on_received(qp: &Qp, sh: &mut Shared, packet: &Packet, now: Instant) {
    if packet.flow.traffic_class & ECN == ECN {
        on_marked(qp, sh, packet, now);
    }
}

#[cold]
fn on_marked(qp: &Qp, sh: &mut Shared, packet: &Packet, now: Instant) {
    let operation = packet.bth.opcode.operation();
    if qp.is_reliable() && (operation.is_send() || operation.is_write() || operation.is_read_response()) {
        sh.counters.ecn_marked += 1;
        sh.notifier.on_marked(qp.id, sh.congestion.cnp_interval, now);
    }
}

/// A notification came. It is heeded if it is from the peer of a connection that is up; whatever else it
/// says does not matter (IBTA A17.9.3).
#[cold]
pub(crate) fn on_cnp(qp: &mut Qp, sh: &mut Shared, packet: &Packet, now: Instant) {
    sh.counters.cnps_received += 1;
    if !qp.is_reliable() || !qp.receives() {
        sh.counters.drop_qp_state += 1;
    } else if packet.bth.pkey & crate::demux::PKEY_BASE != crate::demux::PKEY_BASE {
        sh.counters.drop_pkey += 1;
    } else if packet.flow.src != qp.dst {
        sh.counters.drop_source += 1;
    } else if let CongestionControl::Dcqcn(c) = &sh.congestion.scheme
        && let Some(Control { algorithm: Algorithm::Dcqcn(dcqcn), .. }) = qp.control.as_deref_mut()
    {
        dcqcn.on_cnp(c, sh.congestion.line, now);
        sh.counters.cnp_handled += 1;
    }
}

/// The notification that a queue pair's peer is to get: not ECN-capable itself.
pub(crate) fn cnp(qp: &Qp, sh: &Shared) -> Packet {
    let flow = adverb_wire::Flow { traffic_class: qp.traffic_class & !ECN, ..qp.flow(sh) };
    Packet::cnp(flow, qp.peer)
}
