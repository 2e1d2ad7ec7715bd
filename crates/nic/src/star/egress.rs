//! The registry of what may leave for stateless peers ([`crate::transport::star::registry`]), as the driver
//! keeps it.

use crate::endpoint::Place;
use crate::error::Error;
use crate::ids::QpId;
use crate::nic::Nic;
use crate::transport::star::registry::Rule;
use adverb_wire::{Gid, Key, QpNumber};

/// A NIC that was configured with a registry.
impl Nic {
    /// Takes a rule in. From now on what it allows may leave.
    pub fn put_rule(&mut self, rule: &Rule) -> Result<(), Error> {
        let registry = self.state.registry.as_deref_mut();
        registry.ok_or(Error::Unsupported("a rule at a NIC without a registry"))?.put(rule)
    }

    /// Takes a region's rule out, or with no key all of a queue pair's. Nothing that is not sent yet leaves
    /// under it.
    pub fn remove_rule(&mut self, server: Gid, number: QpNumber, key: Option<Key>) {
        if let Some(registry) = self.state.registry.as_deref_mut() {
            registry.remove(server, number, key);
        }
    }

    /// Takes all rules out: nothing leaves for a stateless peer until there are others.
    pub fn clear_rules(&mut self) {
        if let Some(registry) = self.state.registry.as_deref_mut() {
            registry.clear();
        }
    }

    /// Rules that it has.
    pub fn rules(&self) -> usize {
        self.state.registry.as_deref().map_or(0, |registry| registry.len())
    }

    /// Has a queue pair become plain RC when it comes to RTR, and stay it: its peer's registry has not taken
    /// the rules that it needs. Only before that.
    pub fn keep_from_star(&mut self, qp: QpId) -> Result<(), Error> {
        match (self.endpoints.get(qp), &mut self.star) {
            (Some(Place::Off(endpoint)), Some(star)) if endpoint.star.is_none() => {
                star.unregistered.insert(qp.index);
                Ok(())
            }
            _ => Err(Error::WrongState),
        }
    }
}
