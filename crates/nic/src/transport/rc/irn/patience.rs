//! How long the requester waits: its timer, and what a silent peer costs.

use super::requester::{Requests, arm};
use super::timeout::{is_early, rearm, timeout};
use super::{Expiry, Irn};
use crate::congestion;
use crate::qp::Qp;
use crate::silence::Silence;
use crate::state::NicState;
use crate::transport::rc::retry;
use adverb_wire::{Duration, Instant};

impl Requests {
    /// When answers were last asked for, or came.
    pub(super) fn asked(&self) -> Instant {
        self.moved.max(self.probed)
    }

    /// Since when an acknowledgement or an answer has been awaited, if one is.
    pub(super) fn awaits_since(&self) -> Option<Instant> {
        if self.tx.in_flight() > 0 {
            Some(self.tx.armed)
        } else {
            (!self.reads.is_empty()).then(|| self.asked())
        }
    }
}

/// The queue pair's timer ran out. IRN's timeouts come often, and a silent peer may just be waiting for a
/// processor; a retry is spent only for each local ACK timeout of silence.
pub(super) fn on_timeout(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, silence: Silence) {
    qp.deadline = Instant::NEVER;
    let rto = qp.rto(nic);
    let r = &mut irn.requests;
    if qp.requester.rnr_wait {
        qp.requester.rnr_wait = false;
        rearm(&mut r.tx, &nic.irn, rto, now);
        return arm(qp, irn, nic);
    }
    if let Some(since) = r.awaits_since()
        && !is_early(&r.tx, &nic.irn, rto, now)
        && retry::is_excused(qp, nic, silence, now.since(since))
        && silence == Silence::Unread
    {
        rearm(&mut r.tx, &nic.irn, rto, now);
        r.probed = now;
        return arm(qp, irn, nic);
    }
    match timeout(&mut r.tx, &nic.irn, rto, now) {
        Expiry::Early => return arm(qp, irn, nic),
        Expiry::Probe => {
            // What lies unread is not lost; a probe would only lie behind it.
            if silence == Silence::Unread {
                r.tx.withhold_probe();
            }
            return arm(qp, irn, nic);
        }
        Expiry::Expired => {}
        Expiry::Idle if r.reads.is_empty() => return,
        Expiry::Idle => {
            r.probed = now;
            r.probes = r.probes.saturating_add(1);
            r.rx.probe();
            irn.stirred = true;
        }
    }
    nic.counters.timeouts += 1;
    if qp.control.is_some() {
        congestion::on_loss(qp, nic, true, now);
    }
    let rto = qp.rto(nic);
    let r = &mut irn.requests;
    let silent = now.since(r.moved).minus(qp.requester.excused.time());
    let una = r.tx.una;
    let share = nic.tolerance.share(qp.attr.retry_cnt);
    let patience = rto.max(share).times(qp.requester.expiries as u64 + 1);
    if rto > Duration::ZERO && silent >= patience {
        qp.requester.expiries = qp.requester.expiries.saturating_add(1);
        let cause = retry::unanswered(qp, nic, una, silence);
        if !retry::spend_retry(qp, nic, now, &cause) {
            return;
        }
    }
    arm(qp, irn, nic);
}
