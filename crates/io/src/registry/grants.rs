//! What a stateless side grants, told to its agent as connections and regions come and go.

use super::words::{Ask, Region, Said};
use crate::host::Host;
use adverb_nic::{Error, PdId, QpAttr, QpAttrMask, QpId, QpState, StarSide};
use adverb_wire::Key;

/// Why memory cannot be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A peer's registry has no room for its rule.
    Full,
    /// The agent of this address does not answer.
    NoAgent,
}

impl Host {
    /// Whether there is a registry.
    pub fn has_registry(&self) -> bool {
        self.registry().is_some()
    }

    /// Changes a queue pair's attributes. Where there is a registry, one that may become stateless has its
    /// rules at its peer before it comes to RTR, from which on the peer may get its state; or it is plain RC.
    pub fn modify_qp(&self, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        if self.registry().is_none() || !mask.contains(QpAttrMask::STATE) {
            return self.control(|nic, now| nic.modify_qp(now, qp, attr, mask));
        }
        let connects = attr.state == QpState::Rtr && self.grant_connection(qp, attr, mask)?;
        let changed = self.control(|nic, now| nic.modify_qp(now, qp, attr, mask));
        let ends = matches!(attr.state, QpState::Reset | QpState::Err);
        if changed.is_ok() && ends || changed.is_err() && connects {
            self.end_connection(qp);
        }
        if changed.is_ok()
            && ends
            && let Ok(number) = self.inspect(|nic| nic.qp_number(qp))
        {
            self.end_binds(number);
        }
        changed
    }

    /// Destroys a queue pair, and takes its rules back from its peer.
    pub fn destroy_qp(&self, qp: QpId) -> Result<(), Error> {
        let number = self.control(|nic, _| {
            let number = nic.qp_number(qp)?;
            nic.destroy_qp(qp).map(|()| number)
        })?;
        if let Some(registry) = self.registry() {
            registry.ask(&Ask::EndConnect { number });
            self.end_binds(number);
        }
        Ok(())
    }

    /// Has a connection's rules put at its peer. True if StaR may carry it.
    fn grant_connection(&self, qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<bool, Error> {
        let asked = self.inspect(|nic| {
            let undecided = nic.star_side(qp)? == StarSide::Undecided;
            let pd = nic.query_qp(qp)?.1.pd;
            Ok((nic.qp_number(qp)?, pd.filter(|_| undecided)))
        })?;
        let (number, Some(pd)) = asked else { return Ok(false) };
        if !mask.contains(QpAttrMask::AV | QpAttrMask::DEST_QPN) {
            // It will be refused.
            return Ok(false);
        }
        let (peer, peer_number, pd) = (attr.av.dgid, attr.dest_qpn, pd.index() as u32);
        let Some(registry) = self.registry() else { return Ok(false) };
        if registry.ask(&Ask::Connect { number, pd, peer, peer_number }) == Said::Done {
            return Ok(true);
        }
        self.control(|nic, _| nic.keep_from_star(qp))?;
        Ok(false)
    }

    fn end_connection(&self, qp: QpId) {
        if let (Some(registry), Ok(number)) = (self.registry(), self.inspect(|nic| nic.qp_number(qp))) {
            // An agent that is gone has no rules any more, and neither have its peers.
            registry.ask(&Ask::EndConnect { number });
        }
    }

    /// Tells the peers' registries of memory. When this returns they know, but those that are dead.
    pub fn grant(&self, pd: PdId, region: Region) -> Result<(), Refusal> {
        let Some(registry) = self.registry().filter(|_| region.rights != 0) else {
            return Ok(());
        };
        match registry.ask(&Ask::Region { pd: pd.index() as u32, region }) {
            Said::Done => Ok(()),
            Said::Full => Err(Refusal::Full),
            Said::Refused(_) => Err(Refusal::NoAgent),
        }
    }

    /// Tells them what a region is now, which was something else before. When this returns they know, but
    /// those that are dead; after a refusal nobody has a rule of it.
    pub fn grant_anew(&self, pd: PdId, region: Region) -> Result<(), Refusal> {
        if region.rights == 0 {
            self.withdraw(region.key);
        }
        self.grant(pd, region)
    }

    /// Takes memory back from them. When this returns nothing leaves for it any more, but from who is dead.
    pub fn withdraw(&self, key: Key) {
        if let Some(registry) = self.registry() {
            // As for connections.
            registry.ask(&Ask::EndRegion { key });
        }
    }
}
