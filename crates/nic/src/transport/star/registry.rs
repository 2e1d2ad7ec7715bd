//! The security registry of the stateful side's NIC (StaR, III-D and IV-B3): which data may leave for the
//! stateless sides that its connections have.
//!
//! The paper's stateless NIC checks nothing itself: each sender's NIC has a table of outbound rules, which
//! the server's side puts there when it sets a connection up or registers memory. What no rule allows is
//! dropped.
//! Here the stateless NIC checks all the same, and the registry is there in addition, where it is asked for.
//!
//! A rule is found by an exact match of server, queue pair and key; then the address must lie within its
//! bounds and the right be among its rights. Work that was posted names no key: for that there is one rule a
//! connection. With `carried` it has an address and a key: then the rule of a region that has both will do
//! instead, whose rights, being a peer's, say nothing of it. EA and CQEP need none.

use crate::error::Error;
use crate::explain::Cause;
use crate::limits::MAX_STAR_RULES;
use crate::work::Status;
use adverb_wire::{Gid, Key, QpNumber};
use std::collections::BTreeMap;

/// Why a WQE fails that no rule allows.
pub(crate) const REFUSED: Cause = Cause::local(
    Status::RemoteAccess,
    "this NIC's registry has no rule for the access: the server has not granted it, or has taken it back \
     (StaR, III-D)",
);

/// What a rule allows data to be for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleFor {
    /// What the server has posted.
    Posted,
    /// A part of its memory, by key.
    Region {
        /// The key.
        key: Key,
        /// The first address.
        va: u64,
        /// Bytes.
        len: u64,
        /// [`Grant::READ`](adverb_wire::star::Grant::READ) and the others.
        rights: u8,
    },
}

/// A rule: what may leave for one queue pair of a stateless side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The server's address.
    pub server: Gid,
    /// Its queue pair.
    pub number: QpNumber,
    /// What it allows.
    pub what: RuleFor,
}

/// Of a packet or a request that is to leave: what it names at the server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    Posted,
    Region {
        key: Key,
        va: u64,
        len: u64,
        right: u8,
    },
    /// Posted, by address and local key.
    Carried {
        key: Key,
        va: u64,
        len: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    va: u64,
    len: u64,
    rights: u8,
}

/// Found by server, queue pair and, but for posted work, key.
type Name = ([u8; 16], QpNumber, Option<u32>);

/// The table.
#[derive(Debug)]
pub(crate) struct Registry {
    rules: BTreeMap<Name, Bounds>,
    room: usize,
}

impl Registry {
    /// With room for so many rules, [`MAX_STAR_RULES`] at most.
    pub fn new(room: u32) -> Registry {
        Registry { rules: BTreeMap::new(), room: room.min(MAX_STAR_RULES) as usize }
    }

    /// Takes a rule in; one of the same name is replaced.
    pub fn put(&mut self, rule: &Rule) -> Result<(), Error> {
        let (key, bounds) = match rule.what {
            RuleFor::Posted => (None, Bounds { va: 0, len: 0, rights: 0 }),
            RuleFor::Region { key, va, len, rights } => (Some(key.0), Bounds { va, len, rights }),
        };
        let name = (rule.server.0, rule.number, key);
        if self.rules.len() >= self.room && !self.rules.contains_key(&name) {
            return Err(Error::TableFull);
        }
        self.rules.insert(name, bounds);
        Ok(())
    }

    /// Takes a region's rule out, or with no key all of a queue pair's.
    pub fn remove(&mut self, server: Gid, number: QpNumber, key: Option<Key>) {
        match key {
            Some(key) => drop(self.rules.remove(&(server.0, number, Some(key.0)))),
            None => self.rules.retain(|name, _| (name.0, name.1) != (server.0, number)),
        }
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether it may leave for this queue pair of the server's.
    pub fn allows(&self, server: Gid, number: QpNumber, access: Access) -> bool {
        match access {
            Access::Posted => self.rules.contains_key(&(server.0, number, None)),
            Access::Region { key, va, len, right } => {
                self.around(server, number, key, (va, len)).is_some_and(|rights| rights & right != 0)
            }
            Access::Carried { key, va, len } => {
                self.around(server, number, key, (va, len)).is_some()
                    || self.allows(server, number, Access::Posted)
            }
        }
    }

    /// Rights of the rule with this key, if these bytes lie within its bounds.
    fn around(&self, server: Gid, number: QpNumber, key: Key, (va, len): (u64, u64)) -> Option<u8> {
        let bounds = self.rules.get(&(server.0, number, Some(key.0)))?;
        let from = va.wrapping_sub(bounds.va);
        (len <= bounds.len && from <= bounds.len - len).then_some(bounds.rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::star::Grant;
    use std::net::Ipv4Addr;

    fn rule(last: u8, number: u32, key: u32, va: u64, len: u64, rights: u8) -> Rule {
        let server = Gid::from(Ipv4Addr::new(10, 0, 0, last));
        let what = RuleFor::Region { key: Key(key), va, len, rights };
        Rule { server, number: QpNumber::new(number), what }
    }

    fn allows(registry: &Registry, at: (u8, u32), key: u32, va: u64, len: u64, right: u8) -> bool {
        let access = Access::Region { key: Key(key), va, len, right };
        registry.allows(Gid::from(Ipv4Addr::new(10, 0, 0, at.0)), QpNumber::new(at.1), access)
    }

    #[test]
    fn names_match_exactly_and_addresses_lie_within() {
        let mut registry = Registry::new(8);
        registry.put(&rule(1, 5, 0x700, 4096, 100, Grant::WRITE)).unwrap();
        for (at, key, va, len, right, is_allowed) in [
            ((1, 5), 0x700, 4096, 100, Grant::WRITE, true),
            ((1, 5), 0x700, 4195, 1, Grant::WRITE, true),
            ((1, 5), 0x700, 4196, 0, Grant::WRITE, true),
            ((1, 5), 0x700, 4196, 1, Grant::WRITE, false),
            ((1, 5), 0x700, 4095, 1, Grant::WRITE, false),
            ((1, 5), 0x700, 4095, 2, Grant::WRITE, false),
            ((1, 5), 0x700, 4096, 101, Grant::WRITE, false),
            ((1, 5), 0x700, 4096, u64::MAX, Grant::WRITE, false),
            ((1, 5), 0x700, u64::MAX, 2, Grant::WRITE, false),
            ((1, 5), 0x700, 4096, 8, Grant::READ, false),
            ((1, 5), 0x701, 4096, 8, Grant::WRITE, false),
            ((1, 6), 0x700, 4096, 8, Grant::WRITE, false),
            ((2, 5), 0x700, 4096, 8, Grant::WRITE, false),
        ] {
            assert_eq!(allows(&registry, at, key, va, len, right), is_allowed, "{at:?} {key:x} {va} {len}");
        }
        // A region that ends with the last address.
        registry.put(&rule(1, 5, 0x800, u64::MAX - 7, 8, Grant::READ)).unwrap();
        assert!(allows(&registry, (1, 5), 0x800, u64::MAX, 1, Grant::READ));
        assert!(!allows(&registry, (1, 5), 0x800, u64::MAX, 2, Grant::READ));
    }

    #[test]
    fn what_is_carried_has_a_regions_rule_or_the_connections() {
        let mut registry = Registry::new(8);
        registry.put(&rule(1, 5, 0x700, 4096, 100, 0)).unwrap();
        let carried = |registry: &Registry, key: u32, va: u64, len: u64| {
            let (server, access) = (Gid::from(Ipv4Addr::new(10, 0, 0, 1)), Key(key));
            registry.allows(server, QpNumber::new(5), Access::Carried { key: access, va, len })
        };
        assert!(carried(&registry, 0x700, 4096, 100), "rights are a peer's");
        assert!(!allows(&registry, (1, 5), 0x700, 4096, 100, Grant::WRITE));
        for (key, va, len) in [(0x700, 4095, 2), (0x700, 4190, 7), (0x701, 4096, 1)] {
            assert!(!carried(&registry, key, va, len), "{key:x} {va} {len}");
        }
        let (server, number) = (Gid::from(Ipv4Addr::new(10, 0, 0, 1)), QpNumber::new(5));
        registry.put(&Rule { server, number, what: RuleFor::Posted }).unwrap();
        assert!(carried(&registry, 0x701, 4096, 1));
    }

    #[test]
    fn what_is_taken_out_allows_nothing_and_makes_room() {
        let mut registry = Registry::new(3);
        let (server, number) = (Gid::from(Ipv4Addr::new(10, 0, 0, 1)), QpNumber::new(5));
        let posted = Rule { server, number, what: RuleFor::Posted };
        registry.put(&posted).unwrap();
        registry.put(&rule(1, 5, 1, 0, 8, Grant::READ)).unwrap();
        registry.put(&rule(1, 6, 1, 0, 8, Grant::READ)).unwrap();
        assert_eq!(registry.put(&rule(1, 6, 2, 0, 8, Grant::READ)), Err(Error::TableFull));
        // One that is there is replaced.
        registry.put(&rule(1, 6, 1, 0, 16, Grant::READ)).unwrap();
        assert!(allows(&registry, (1, 6), 1, 0, 16, Grant::READ));
        registry.remove(server, number, Some(Key(1)));
        assert!(!allows(&registry, (1, 5), 1, 0, 8, Grant::READ));
        assert!(registry.allows(server, number, Access::Posted));
        registry.remove(server, number, None);
        assert!(!registry.allows(server, number, Access::Posted));
        assert!(allows(&registry, (1, 6), 1, 0, 16, Grant::READ));
        assert_eq!(registry.len(), 1);
        registry.clear();
        assert!(!allows(&registry, (1, 6), 1, 0, 16, Grant::READ));
    }
}
