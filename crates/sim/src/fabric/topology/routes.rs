//! Routes: for each switch and each destination, the links on shortest paths.
//!
//! Hosts behind one switch share their routes, and equal sets of links are stored once, so that the
//! table of a fat-tree of 1,024 hosts stays in a core's cache.

use super::{Node, Topology};
use crate::error::Error;
use adverb_nic::memory::prefetch;

/// A set of links, all of which lead to the destination on shortest paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Set {
    start: u32,
    len: u32,
}

/// Routing tables of all switches.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Leaf switches (those with hosts) in order; a host's leaf is an index here.
    leaves: u32,
    /// By switch and leaf: the only link, or [`MANY`] and which set, or [`LOCAL`].
    table: Vec<u32>,
    sets: Vec<Set>,
    links: Vec<u32>,
    /// By host: its leaf (`u32::MAX` when it is cabled to a host), and the link to the host.
    pub leaf_of: Vec<u32>,
    /// By host: the link that ends there.
    pub down: Vec<u32>,
    /// By host: the link that starts there.
    pub up: Vec<u32>,
    /// By switch: its own number among the leaves, or `u32::MAX`.
    leaf_number: Vec<u32>,
    /// By host: links from it to the farthest host.
    distance: Vec<u16>,
}

/// Entry of a switch that cannot reach a leaf.
const UNREACHABLE: u32 = u32::MAX;
/// Entry of a leaf for itself: each host has its own link.
const LOCAL: u32 = u32::MAX - 1;
/// Set in the entry of several links.
const MANY: u32 = 1 << 31;

impl Routes {
    /// Shortest paths over all links. A host that another cannot reach is refused.
    pub fn build(t: &Topology) -> Result<Routes, Error> {
        t.check()?;
        let mut neighbours: Vec<Vec<(u32, u32)>> = vec![Vec::new(); t.switches as usize];
        let (hosts, switches) = (t.hosts as usize, t.switches as usize);
        let (mut down, mut up) = (vec![0; hosts], vec![0; hosts]);
        let mut attached = vec![None; hosts];
        for link in 0..t.links() as u32 {
            match t.link_ends(link) {
                (Node::Switch(a), Node::Switch(b)) => neighbours[a as usize].push((b, link)),
                (Node::Host(h), to) => {
                    up[h as usize] = link;
                    down[h as usize] = link ^ 1;
                    if let Node::Switch(s) = to {
                        attached[h as usize] = Some(s);
                    }
                }
                _ => {}
            }
        }
        let mut leaf_number = vec![u32::MAX; switches];
        let mut leaves = Vec::new();
        for s in attached.iter().flatten() {
            if leaf_number[*s as usize] == u32::MAX {
                leaf_number[*s as usize] = leaves.len() as u32;
                leaves.push(*s);
            }
        }
        let leaf_of = attached.iter().map(|s| s.map_or(u32::MAX, |s| leaf_number[s as usize])).collect();
        let mut routes = Routes {
            leaves: leaves.len() as u32,
            table: vec![UNREACHABLE; switches * leaves.len()],
            sets: Vec::new(),
            links: Vec::new(),
            leaf_of,
            down,
            up,
            leaf_number,
            distance: vec![0; leaves.len() * leaves.len()],
        };
        for (n, &leaf) in leaves.iter().enumerate() {
            routes.add_leaf(n, leaf, &neighbours);
        }
        routes.check_reachable(t)?;
        Ok(routes)
    }

    fn add_leaf(&mut self, n: usize, leaf: u32, neighbours: &[Vec<(u32, u32)>]) {
        let mut distance = vec![u16::MAX; neighbours.len()];
        distance[leaf as usize] = 0;
        let mut row = vec![leaf];
        let mut at = 0;
        while at < row.len() {
            let s = row[at] as usize;
            at += 1;
            for &(other, _) in &neighbours[s] {
                if distance[other as usize] == u16::MAX {
                    distance[other as usize] = distance[s] + 1;
                    row.push(other);
                }
            }
        }
        let mut links = Vec::new();
        self.table[leaf as usize * self.leaves as usize + n] = LOCAL;
        for (s, near) in neighbours.iter().enumerate() {
            if distance[s] == u16::MAX || distance[s] == 0 {
                continue;
            }
            if self.leaf_number[s] != u32::MAX {
                self.distance[self.leaf_number[s] as usize * self.leaves as usize + n] = distance[s];
            }
            links.clear();
            links.extend(near.iter().filter(|(o, _)| distance[*o as usize] + 1 == distance[s]).map(|p| p.1));
            self.table[s * self.leaves as usize + n] = match links.as_slice() {
                [only] => *only,
                several => MANY | self.intern(several),
            };
        }
    }

    /// The number of a set, stored once.
    fn intern(&mut self, links: &[u32]) -> u32 {
        let found = self.sets.iter().rposition(|set| {
            set.len as usize == links.len() && self.links[set.start as usize..][..links.len()] == *links
        });
        if let Some(at) = found {
            return at as u32;
        }
        self.sets.push(Set { start: self.links.len() as u32, len: links.len() as u32 });
        self.links.extend_from_slice(links);
        self.sets.len() as u32 - 1
    }

    fn check_reachable(&self, t: &Topology) -> Result<(), Error> {
        for h in 0..t.hosts {
            if self.leaf_of[h as usize] == u32::MAX && t.hosts > 2 {
                let why = format!("host {h} is cabled to a host; with more than two hosts, use a switch");
                return Err(Error::topology(why));
            }
        }
        for (s, &n) in self.leaf_number.iter().enumerate().filter(|(_, n)| **n != u32::MAX) {
            for other in 0..self.leaves {
                if other != n && self.table[s * self.leaves as usize + other as usize] == UNREACHABLE {
                    let host = |leaf| self.leaf_of.iter().position(|&l| l == leaf).unwrap_or(0);
                    let why = format!(
                        "host {} cannot reach host {}: add a cable between their switches",
                        host(n),
                        host(other)
                    );
                    return Err(Error::topology(why));
                }
            }
        }
        Ok(())
    }

    /// Asks for what [`Routes::next`] reads first.
    #[inline]
    pub(crate) fn prefetch(&self, s: u32, dst: u32) {
        if let Some(leaf) = self.leaf_of.get(dst as usize)
            && let Some(entry) = self.table.get((s * self.leaves).wrapping_add(*leaf) as usize)
        {
            prefetch(entry);
        }
    }

    /// The link on which switch `s` sends a packet for host `dst`, chosen by `hash` among equals.
    #[inline]
    pub fn next(&self, s: u32, dst: u32, hash: u32) -> u32 {
        let leaf = self.leaf_of[dst as usize];
        let entry = self.table[(s * self.leaves + leaf) as usize];
        if entry < MANY {
            return entry;
        }
        if entry == LOCAL {
            return self.down[dst as usize];
        }
        let set = self.sets[(entry & !MANY) as usize];
        // A switch of its own hash: the same bits at every tier would leave paths unused.
        let mixed = (hash ^ s.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0xc2b2_ae35);
        let pick = (u64::from(mixed) * u64::from(set.len)) >> 32;
        self.links[set.start as usize + pick as usize]
    }

    /// Links that a packet from one host to another crosses.
    pub fn hops(&self, src: u32, dst: u32) -> u32 {
        let (a, b) = (self.leaf_of[src as usize], self.leaf_of[dst as usize]);
        if a == u32::MAX {
            return 1;
        }
        if a == b { 2 } else { 2 + u32::from(self.distance[(a * self.leaves + b) as usize]) }
    }

    /// Links of the longest of all shortest paths between hosts.
    pub fn longest(&self) -> u32 {
        2 + self.distance.iter().copied().map(u32::from).max().unwrap_or(0)
    }

    /// A path between two hosts, as links, for a hash.
    pub fn path(&self, t: &Topology, src: u32, dst: u32, hash: u32) -> Vec<u32> {
        let mut path = vec![self.up[src as usize]];
        while let (_, Node::Switch(s)) = t.link_ends(path[path.len() - 1]) {
            path.push(self.next(s, dst, hash));
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::super::CableKind;
    use super::*;
    use adverb_wire::Duration;

    const KIND: CableKind = CableKind { rate: 100_000_000_000, delay: Duration::from_us(1) };

    #[test]
    fn every_pair_is_joined_by_its_shortest_path() {
        let t = Topology::fat_tree(6, KIND).unwrap();
        let routes = Routes::build(&t).unwrap();
        for src in 0..t.hosts {
            for dst in (0..t.hosts).filter(|d| *d != src) {
                let want = match (src / 3 == dst / 3, src / 9 == dst / 9) {
                    (true, _) => 2,
                    (_, true) => 4,
                    _ => 6,
                };
                for hash in 0..8 {
                    let path = routes.path(&t, src, dst, hash * 0x1234_5679);
                    assert_eq!(path.len() as u32, want);
                    assert_eq!(t.link_ends(*path.last().unwrap()).1, Node::Host(dst));
                }
                assert_eq!(routes.hops(src, dst), want);
            }
        }
    }

    #[test]
    fn all_equal_paths_are_used() {
        let t = Topology::fat_tree(8, KIND).unwrap();
        let routes = Routes::build(&t).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut cores = std::collections::BTreeSet::new();
        for _ in 0..400 {
            cores.insert(routes.path(&t, 0, 127, rng.u32(..))[2]);
        }
        assert_eq!(cores.len(), 16, "a pair in different pods has (k/2)^2 paths");
    }

    #[test]
    fn an_unreachable_host_is_refused() {
        let mut t = Topology::leaf_spine(2, 2, 2, KIND, KIND);
        t.cables.truncate(6);
        let error = Routes::build(&t).unwrap_err().to_string();
        assert!(error.contains("host 0 cannot reach host 2"), "{error}");
    }
}
