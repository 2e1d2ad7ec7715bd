//! Memory windows that a stateless side grants. The rule of a bind is at the peers before the bind is posted;
//! it is taken back once the NIC has unbound the window, in the first call of the program after that: so
//! whoever has polled the completion of an invalidation knows that nothing leaves under the key any more.
//!
//! A key may be bound again before its last end was taken in, so binds and ends are counted.

use super::rights;
use super::words::{Ask, Region, Said};
use crate::host::Host;
use crate::registry::{Refusal, Registry};
use adverb_nic::memory::MwBind;
use adverb_nic::{Access, MwType, QpId, SendOp};
use adverb_wire::{Key, QpNumber};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// A key of a window that peers have the rule of.
struct Granted {
    /// Binds that were posted and have not ended.
    binds: u32,
    /// The queue pair of the last one.
    number: QpNumber,
}

/// Those of a process, by key: at most 256 of each window.
#[derive(Default)]
pub(super) struct Windows(BTreeMap<u32, Granted>);

impl Windows {
    /// So many binds of a key have ended: after the last one its rule goes.
    fn end(&mut self, registry: &Registry, key: u32, times: u32) {
        let Some(granted) = self.0.get_mut(&key) else { return };
        granted.binds = granted.binds.saturating_sub(times);
        if granted.binds == 0 {
            self.0.remove(&key);
            // An agent that is gone has no rules any more, and neither have its peers.
            registry.ask(&Ask::EndRegion { key: Key(key) });
        }
    }
}

impl Registry {
    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bind_of(op: &SendOp) -> Option<MwBind> {
    match *op {
        SendOp::BindMw { mw, rkey, lkey, addr, len, access } => {
            Some(MwBind { mw, rkey, lkey, addr, len, access })
        }
        _ => None,
    }
}

impl Host {
    /// Tells the peers' registries of the window that a work request is to bind, if it is to bind one. When
    /// this returns they know, but those that are dead.
    pub fn grant_bind(&self, qp: QpId, op: &SendOp) -> Result<(), Refusal> {
        let (Some(registry), Some((number, kind, pd, region))) = (self.registry(), self.window(qp, op))
        else {
            return Ok(());
        };
        let ask = match kind {
            MwType::One => Ask::Region { pd, region },
            MwType::Two => Ask::Window { number, pd, region },
        };
        let mut windows = registry.windows();
        match registry.ask(&ask) {
            Said::Done => {
                let granted = windows.0.entry(region.key.0).or_insert(Granted { binds: 0, number });
                (granted.binds, granted.number) = (granted.binds + 1, number);
                Ok(())
            }
            Said::Full => Err(Refusal::Full),
            Said::Refused(_) => Err(Refusal::NoAgent),
        }
    }

    /// A work request for which that was done was not posted.
    pub fn retract_bind(&self, qp: QpId, op: &SendOp) {
        if let (Some(registry), Some((_, _, _, region))) = (self.registry(), self.window(qp, op)) {
            registry.windows().end(registry, region.key.0, 1);
        }
    }

    /// Takes back what peers were told of windows that are not bound any more.
    pub fn settle_windows(&self) {
        let Some(registry) = self.registry() else { return };
        let mut windows = registry.windows();
        let ended = self.shared().lock().nic.memory().take_ended_windows();
        for (key, times) in ended {
            windows.end(registry, key, times);
        }
    }

    /// A queue pair has come to RESET or ERR, or is destroyed: none of its binds is still to be executed.
    pub(super) fn end_binds(&self, number: QpNumber) {
        self.settle_windows();
        let Some(registry) = self.registry() else { return };
        let mut windows = registry.windows();
        let of: Vec<_> =
            windows.0.iter().filter(|(_, granted)| granted.number == number).map(|(key, _)| *key).collect();
        for key in of {
            let bound = u32::from(self.shared().lock().nic.memory().is_bound(Key(key)));
            let binds = windows.0.get(&key).map_or(0, |granted| granted.binds);
            windows.end(registry, key, binds.saturating_sub(bound));
        }
    }

    /// What a work request is to grant by a window: nothing if it is no bind, or the NIC will refuse it.
    fn window(&self, qp: QpId, op: &SendOp) -> Option<(QpNumber, MwType, u32, Region)> {
        let bind = bind_of(op).filter(|bind| bind.len > 0)?;
        let rights = Some(rights(bind.access)).filter(|rights| *rights != 0)?;
        let va = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        let mut core = self.shared().lock();
        let number = core.nic.qp_number(qp).ok()?;
        let pd = core.nic.query_qp(qp).ok()?.1.pd?.index() as u32;
        let (kind, key) = core.nic.memory().foretell(&bind)?;
        Some((number, kind, pd, Region { key, va, len: bind.len, rights }))
    }
}
