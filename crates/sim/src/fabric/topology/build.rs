//! The usual topologies.

use super::{Cable, CableKind, Node, Topology};
use crate::error::Error;

impl Topology {
    fn cable(&mut self, a: Node, b: Node, kind: CableKind) {
        self.cables.push(Cable { ends: [a, b], rate: kind.rate, delay: kind.delay });
    }

    /// Two hosts and a cable.
    pub fn two_hosts(kind: CableKind) -> Topology {
        let mut t = Topology { hosts: 2, ..Topology::default() };
        t.cable(Node::Host(0), Node::Host(1), kind);
        t
    }

    /// `hosts` hosts on one switch.
    pub fn star(hosts: u32, kind: CableKind) -> Topology {
        let mut t = Topology { hosts, switches: 1, ..Topology::default() };
        for h in 0..hosts {
            t.cable(Node::Host(h), Node::Switch(0), kind);
        }
        t
    }

    /// `left` and `right` hosts on two switches with one cable between them.
    pub fn dumbbell(left: u32, right: u32, kind: CableKind, middle: CableKind) -> Topology {
        let mut t = Topology { hosts: left + right, switches: 2, ..Topology::default() };
        for h in 0..left + right {
            t.cable(Node::Host(h), Node::Switch((h >= left) as u32), kind);
        }
        t.cable(Node::Switch(0), Node::Switch(1), middle);
        t
    }

    /// Two tiers: each of `leaves` switches has `hosts_per_leaf` hosts and a cable to each spine.
    pub fn leaf_spine(
        leaves: u32,
        spines: u32,
        hosts_per_leaf: u32,
        kind: CableKind,
        up: CableKind,
    ) -> Topology {
        let mut t =
            Topology { hosts: leaves * hosts_per_leaf, switches: leaves + spines, ..Topology::default() };
        for leaf in 0..leaves {
            for h in 0..hosts_per_leaf {
                t.cable(Node::Host(leaf * hosts_per_leaf + h), Node::Switch(leaf), kind);
            }
        }
        for leaf in 0..leaves {
            for spine in 0..spines {
                t.cable(Node::Switch(leaf), Node::Switch(leaves + spine), up);
            }
        }
        t
    }

    /// Three tiers of switches with `k` ports, full bisection: `k^3 / 4` hosts, `5 k^2 / 4` switches.
    /// Edge switches come first, then aggregation, then core. `k` is even, from 2 to 64.
    pub fn fat_tree(k: u32, kind: CableKind) -> Result<Topology, Error> {
        if !k.is_multiple_of(2) || !(2..=64).contains(&k) {
            return Err(Error::topology(format!("a fat-tree's k is even, from 2 to 64, not {k}")));
        }
        let half = k / 2;
        let edges = k * half;
        let mut t = Topology {
            hosts: edges * half,
            switches: edges * 2 + half * half,
            cables: Vec::with_capacity((edges * half * 3) as usize),
        };
        for edge in 0..edges {
            for h in 0..half {
                t.cable(Node::Host(edge * half + h), Node::Switch(edge), kind);
            }
        }
        for edge in 0..edges {
            for a in 0..half {
                t.cable(Node::Switch(edge), Node::Switch(edges + edge / half * half + a), kind);
            }
        }
        for aggregation in 0..edges {
            for c in 0..half {
                let core = aggregation % half * half + c;
                t.cable(Node::Switch(edges + aggregation), Node::Switch(2 * edges + core), kind);
            }
        }
        Ok(t)
    }

    /// `k` of the full-bisection fat-tree with this many hosts, if there is one.
    pub fn fat_tree_k(hosts: u32) -> Option<u32> {
        (2..=64).step_by(2).find(|k| k * k * k / 4 == hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::Duration;

    const KIND: CableKind = CableKind { rate: 100_000_000_000, delay: Duration::from_us(1) };

    #[test]
    fn fat_trees_have_the_textbook_sizes() {
        for (k, hosts, switches) in [(4, 16, 20), (6, 54, 45), (8, 128, 80), (16, 1024, 320)] {
            let t = Topology::fat_tree(k, KIND).unwrap();
            assert_eq!((t.hosts, t.switches), (hosts, switches));
            assert_eq!(t.cables.len() as u32, 3 * hosts, "full bisection: as many cables at each tier");
            t.check().unwrap();
            let mut ports = vec![0; switches as usize];
            for end in t.cables.iter().flat_map(|c| c.ends) {
                if let Node::Switch(s) = end {
                    ports[s as usize] += 1;
                }
            }
            assert!(ports.iter().all(|&n| n == k));
            assert_eq!(Topology::fat_tree_k(hosts), Some(k));
        }
        assert!(Topology::fat_tree(5, KIND).is_err());
    }

    #[test]
    fn bad_topologies_are_refused() {
        let mut t = Topology::star(3, KIND);
        t.cables[1].rate = 0;
        assert!(t.check().unwrap_err().to_string().contains("cable 1: its rate is zero"));
        let mut t = Topology::star(3, KIND);
        t.hosts = 4;
        assert!(t.check().unwrap_err().to_string().contains("host 3 has 0 cables"));
        let mut t = Topology::star(3, KIND);
        t.cables[2].ends[1] = Node::Switch(7);
        assert!(t.check().unwrap_err().to_string().contains("switch 7 does not exist"));
    }
}
