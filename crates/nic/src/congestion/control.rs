//! What congestion control keeps: its rules for a NIC, and for a queue pair what a scheme needs beyond a
//! window.

use super::config::{CongestionControl, DcqcnConfig};
use super::dcqcn::Dcqcn;
use super::dctcp::Dctcp;
use super::hpcc::Hpcc;
use super::limit::{Limiter, RateLimit};
use super::pacer::{self, Pacer};
use super::swift::Swift;
use super::tcp::Tcp;
use super::telemetry::TELEMETRY_BYTES;
use super::timely::Timely;
use super::window::{self, Window};
use crate::config::NicConfig;
use adverb_wire::{Duration, Instant, Packet, Psn, Service};

/// What every queue pair of a NIC goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub scheme: CongestionControl,
    /// Packets that may be unacknowledged at most.
    pub ceiling: u32,
    /// Packets for each acknowledgement asked for; 0 for a quarter of the window.
    pub ack_every: u32,
    /// Bits/s.
    pub(super) line: f64,
    burst: u32,
    pub(super) cnp_interval: Duration,
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
                scheme if scheme.heeds_each_packet() => 1,
                _ => config.ack_every,
            },
            line: config.line_rate.max(1) as f64,
            burst: config.pacing_burst,
            cnp_interval,
        }
    }

    /// How often a long message asks for an acknowledgement, in packets: often enough to keep the window
    /// moving.
    #[inline]
    pub fn ack_interval(&self, window: Window) -> u32 {
        if self.ack_every > 0 { self.ack_every } else { window.packets().div_ceil(4) }
    }

    /// Bytes on a link of a full packet in the middle of a message: IPv4, UDP, BTH and ICRC around it.
    fn full_packet(&self, mtu: u32) -> u32 {
        mtu + 20 + 8 + 12 + 4 + pacer::FRAMING as u32 + self.telemetry_bytes()
    }

    fn telemetry_bytes(&self) -> u32 {
        if self.scheme.needs_telemetry() { TELEMETRY_BYTES } else { 0 }
    }
}

/// What a scheme with more than a window keeps for a queue pair, or one whose program has set a rate.
#[derive(Debug)]
pub(crate) struct Control {
    pub(super) pacer: Pacer,
    pub(super) algorithm: Algorithm,
    /// What its program has set.
    limit: Option<Box<Limiter>>,
    /// Bytes on a link of a full packet.
    full_packet: u32,
    /// DCTCP's receiver: a marked packet has come since the last acknowledgement.
    pub(super) marked: bool,
    /// DCTCP's sender: the acknowledgement that is being taken in says so.
    pub(super) echoed: bool,
}

/// How far a requester is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Packets newly acknowledged.
    pub count: u32,
    /// The oldest PSN not acknowledged, and the next new one.
    pub una: Psn,
    pub sent: Psn,
}

#[derive(Debug)]
pub(super) enum Algorithm {
    /// The scheme needs nothing here.
    None,
    Dcqcn(Dcqcn),
    Timely(Timely),
    Tcp(Tcp),
    Dctcp(Dctcp),
    Swift(Swift),
    Hpcc(Box<Hpcc>),
}

impl Control {
    pub(super) fn new(rules: &Rules, mtu: u32) -> Option<Box<Control>> {
        let full_packet = rules.full_packet(mtu);
        let algorithm = match rules.scheme {
            CongestionControl::Halving | CongestionControl::Fixed => return None,
            CongestionControl::Dcqcn(_) => Algorithm::Dcqcn(Dcqcn::new(rules.line)),
            CongestionControl::Timely(_) => Algorithm::Timely(Timely::new(rules.line)),
            CongestionControl::Tcp(c) => Algorithm::Tcp(Tcp::new(&c)),
            CongestionControl::Dctcp(c) => Algorithm::Dctcp(Dctcp::new(&c)),
            CongestionControl::Swift(c) => Algorithm::Swift(Swift::new(&c)),
            CongestionControl::Hpcc(c) => Algorithm::Hpcc(Box::new(Hpcc::new(&c, rules.line, full_packet))),
        };
        Some(Box::new(Control { full_packet, ..Control::with(rules, algorithm) }))
    }

    fn with(rules: &Rules, algorithm: Algorithm) -> Control {
        let pacer = Pacer::new(rules.line as u64);
        Control { pacer, algorithm, limit: None, full_packet: 0, marked: false, echoed: false }
    }

    /// The window that a queue pair begins with, in packets.
    pub(super) fn first_window(&self, rules: &Rules) -> u32 {
        match (&self.algorithm, &rules.scheme) {
            (_, CongestionControl::Tcp(c)) => c.initial.clamp(1, rules.ceiling),
            (_, CongestionControl::Dctcp(c)) => c.initial.clamp(1, rules.ceiling),
            (_, CongestionControl::Swift(c)) => c.initial.clamp(1, rules.ceiling),
            (Algorithm::Hpcc(hpcc), _) => hpcc.packets(rules.ceiling),
            _ => rules.ceiling,
        }
    }

    /// One for a rate alone.
    pub(super) fn limited(rules: &Rules) -> Box<Control> {
        Box::new(Control::with(rules, Algorithm::None))
    }

    /// Sets the rate of requests, or takes it off. The queue pair is to be woken.
    pub(super) fn set_limit(&mut self, limit: Option<RateLimit>) {
        self.limit = limit.map(|limit| Box::new(Limiter::new(limit)));
        (self.pacer.queued, self.pacer.waits) = (Instant::NEVER, false);
    }

    pub(super) fn limit(&self) -> Option<RateLimit> {
        Some(self.limit.as_deref()?.set)
    }

    /// Whether a packet may leave now.
    #[inline]
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.pacer.is_open(now) && self.limit.as_deref().is_none_or(|limit| limit.is_open(now))
    }

    /// Whether a request of no frame may be executed now; then it counts.
    pub(super) fn may_execute(&mut self, now: Instant) -> bool {
        let Some(limit) = self.limit.as_deref_mut() else { return true };
        let open = limit.is_open(now);
        if open {
            limit.on_local(now);
        } else {
            self.pacer.waits = true;
        }
        open
    }

    /// Bits per second.
    pub(super) fn rate(&self, rules: &Rules) -> f64 {
        match (&self.algorithm, &rules.scheme) {
            (Algorithm::Dcqcn(dcqcn), _) => dcqcn.rate(),
            (Algorithm::Timely(timely), _) => timely.rate(),
            (Algorithm::Swift(swift), _) => {
                swift.rate(f64::from(self.full_packet) * 8.0).unwrap_or(rules.line).min(rules.line)
            }
            (Algorithm::Hpcc(hpcc), CongestionControl::Hpcc(c)) => hpcc.rate(c).min(rules.line),
            _ => rules.line,
        }
    }

    #[inline(never)]
    pub(super) fn on_sent(
        &mut self,
        rules: &Rules,
        packet: &mut Packet,
        sent: Sent,
        timeout: Duration,
        now: Instant,
    ) {
        let bytes = packet.frame_len() as u64 + pacer::FRAMING + u64::from(rules.telemetry_bytes());
        if sent != Sent::Answer
            && let Some(limit) = self.limit.as_deref_mut()
        {
            limit.on_sent(now, packet);
            // Who waits for its rate wants to hear of each packet before the timer ends.
            packet.bth.ack_req |= timeout > Duration::ZERO;
        }
        let asked = sent != Sent::Answer || packet.bth.opcode.service() == Service::Irn;
        if asked && self.rate(rules) < rules.line && timeout > Duration::ZERO {
            // Slow packets would let the timer end before the next one that asks for an acknowledgement
            // leaves.
            let interval = if rules.ack_every > 0 { rules.ack_every } else { rules.ceiling.div_ceil(4) };
            let spread = bytes as f64 * 8e12 / self.rate(rules) * f64::from(interval);
            packet.bth.ack_req |= spread * 2.0 > timeout.as_ps() as f64;
        }
        match (&mut self.algorithm, &rules.scheme) {
            (Algorithm::Dcqcn(d), CongestionControl::Dcqcn(c)) => d.on_sent(c, rules.line, bytes, now),
            (Algorithm::Timely(t), CongestionControl::Timely(c)) if sent == Sent::New => {
                t.on_sent(c, packet.bth.psn, bytes as u32, packet.bth.ack_req, now);
            }
            (Algorithm::Swift(swift), _) if sent == Sent::New => swift.on_sent(packet.bth.psn, now),
            _ => {}
        }
        let rate = self.rate(rules);
        if rate < rules.line {
            self.pacer.set_rate(rate as u64);
            self.pacer.on_sent(now, bytes, rules.burst);
        }
    }

    /// Requests were acknowledged; how many acknowledgements with telemetry that were, 0 or 1, and how many
    /// with an echoed mark.
    #[inline(never)]
    pub(super) fn on_ack(
        &mut self,
        rules: &Rules,
        window: &mut Window,
        at: Progress,
        now: Instant,
    ) -> (bool, bool) {
        let Progress { count, una, sent } = at;
        let echoed = core::mem::take(&mut self.echoed);
        match (&mut self.algorithm, &rules.scheme) {
            (Algorithm::Timely(t), CongestionControl::Timely(c)) => t.on_ack(c, rules.line, una, now),
            (Algorithm::Tcp(t), _) => t.on_ack(window, rules.ceiling, count, una),
            (Algorithm::Dctcp(d), CongestionControl::Dctcp(c)) => {
                d.on_ack(c, window, (count, una, sent), echoed, rules.ceiling);
                return (false, echoed);
            }
            (Algorithm::Swift(s), CongestionControl::Swift(c)) => {
                s.on_ack(c, window, (count, una), rules.ceiling, now);
            }
            (Algorithm::Hpcc(h), CongestionControl::Hpcc(c)) => {
                return (h.on_ack(c, window, (una, sent), (rules.line, rules.ceiling)), false);
            }
            _ => {}
        }
        (false, false)
    }

    /// Packets were lost, and are sent again; `timeout` when the timer says so.
    pub(super) fn on_loss(
        &mut self,
        rules: &Rules,
        window: &mut Window,
        (in_flight, sent): (u32, Psn),
        timeout: bool,
        now: Instant,
    ) {
        match (&mut self.algorithm, &rules.scheme) {
            (Algorithm::Timely(timely), _) => timely.on_loss(),
            (Algorithm::Tcp(tcp), _) if timeout => tcp.on_timeout(window, in_flight, sent),
            (Algorithm::Tcp(tcp), _) => tcp.on_loss(window, in_flight, sent),
            (Algorithm::Dctcp(d), _) => d.on_loss(window, timeout, sent, rules.ceiling),
            (Algorithm::Swift(s), CongestionControl::Swift(c)) => {
                s.on_loss(c, window, timeout, rules.ceiling, now);
            }
            _ => {}
        }
    }

    /// Whether something has to wait.
    pub fn waits(&self) -> bool {
        self.pacer.waits
    }

    /// A packet has to wait; the time until which it does, if no timer stands for it.
    pub fn wait(&mut self) -> Option<Instant> {
        let wanted = self.pacer.waits && self.pacer.queued == Instant::NEVER;
        wanted.then(|| {
            let limit = self.limit.as_deref().map_or(Instant::ZERO, Limiter::next);
            self.pacer.queued = self.pacer.next().max(limit);
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
