//! Congestion control: how much a reliable queue pair may have unacknowledged.
//!
//! One enum says which scheme a NIC uses, and the functions here are the only place that matches on it: transports tell
//! them what happened. Loss recovery is another matter: each scheme goes with go-back-N and with IRN.

mod config;
mod window;

pub use config::CongestionControl;
pub(crate) use window::Window;

use crate::qp::Qp;
use crate::shared::Shared;

/// What every queue pair of a NIC goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub scheme: CongestionControl,
    /// Packets that may be unacknowledged at most.
    pub ceiling: u32,
    /// Packets for each acknowledgement asked for; 0 for a quarter of the window.
    pub ack_every: u32,
}

impl Rules {
    pub fn new(config: &crate::nic::NicConfig) -> Self {
        let ceiling = config.max_unacked_packets.max(window::FLOOR);
        Rules { scheme: config.congestion, ceiling, ack_every: config.ack_every }
    }

    /// How often a long message asks for an acknowledgement, in packets: often enough to keep the window moving.
    #[inline]
    pub fn ack_interval(&self, window: Window) -> u32 {
        if self.ack_every > 0 { self.ack_every } else { window.packets().div_ceil(4) }
    }
}

/// The queue pair begins anew.
pub(crate) fn begin(qp: &mut Qp, sh: &Shared) {
    qp.requester.window = Window::new(sh.congestion.ceiling);
}

/// `count` packets were acknowledged.
#[inline]
pub(crate) fn on_ack(qp: &mut Qp, sh: &Shared, count: u32) {
    qp.requester.window.on_ack(count, sh.congestion.ceiling);
}

/// Packets were lost, and are sent again.
pub(crate) fn on_loss(qp: &mut Qp, sh: &Shared) {
    match sh.congestion.scheme {
        CongestionControl::Halving => qp.requester.window.on_loss(),
        CongestionControl::Fixed => {}
    }
}
