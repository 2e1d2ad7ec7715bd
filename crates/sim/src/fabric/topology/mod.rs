//! Topologies: hosts and switches, and the cables between them.

mod build;
mod routes;

pub use routes::Routes;

use crate::error::Error;
use adverb_wire::Duration;

/// An end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Node {
    /// A host, by number.
    Host(u32),
    /// A switch, by number.
    Switch(u32),
}

impl core::fmt::Display for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Node::Host(n) => write!(f, "host {n}"),
            Node::Switch(n) => write!(f, "switch {n}"),
        }
    }
}

/// A cable: two links, one each way, of the same rate and delay.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cable {
    /// Its ends. Link `2 * n` goes from the first to the second, link `2 * n + 1` back.
    pub ends: [Node; 2],
    /// Bits per second.
    pub rate: u64,
    /// Propagation delay; a switch's own latency is added to it.
    pub delay: Duration,
}

/// Rate and delay of a cable.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CableKind {
    /// Bits per second.
    pub rate: u64,
    /// Propagation delay.
    pub delay: Duration,
}

/// Hosts, switches and cables. A host has exactly one cable.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topology {
    /// Number of hosts.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// Cables, in the order that numbers their links.
    pub cables: Vec<Cable>,
}

impl Topology {
    /// Links, one way each.
    pub fn links(&self) -> usize {
        self.cables.len() * 2
    }

    /// The nodes that a link goes from and to.
    pub fn link_ends(&self, link: u32) -> (Node, Node) {
        let [a, b] = self.cables[link as usize / 2].ends;
        if link.is_multiple_of(2) { (a, b) } else { (b, a) }
    }

    /// The switch that a host's cable leads to, if it leads to one.
    pub fn switch_of(&self, host: u32) -> Option<u32> {
        self.cables.iter().find_map(|cable| match cable.ends {
            [Node::Host(h), Node::Switch(s)] | [Node::Switch(s), Node::Host(h)] if h == host => Some(s),
            _ => None,
        })
    }

    /// Longest delay of a cable.
    pub fn delay_max(&self) -> Duration {
        self.cables.iter().map(|cable| cable.delay).max().unwrap_or(Duration::ZERO)
    }

    /// Every node exists, every host has one cable, every cable has a rate.
    pub fn check(&self) -> Result<(), Error> {
        let mut cables_of_host = vec![0u32; self.hosts as usize];
        for (n, cable) in self.cables.iter().enumerate() {
            if cable.rate == 0 {
                return Err(Error::topology(format!("cable {n}: its rate is zero; give it bits per second")));
            }
            if cable.ends[0] == cable.ends[1] {
                return Err(Error::topology(format!("cable {n}: both ends are {:?}", cable.ends[0])));
            }
            for end in cable.ends {
                match end {
                    Node::Host(h) if h >= self.hosts => {
                        let why = format!("cable {n}: host {h} does not exist; there are {}", self.hosts);
                        return Err(Error::topology(why));
                    }
                    Node::Switch(s) if s >= self.switches => {
                        let why =
                            format!("cable {n}: switch {s} does not exist; there are {}", self.switches);
                        return Err(Error::topology(why));
                    }
                    Node::Host(h) => cables_of_host[h as usize] += 1,
                    Node::Switch(_) => {}
                }
            }
        }
        match cables_of_host.iter().position(|&n| n != 1) {
            Some(h) => Err(Error::topology(format!(
                "host {h} has {} cables; give it exactly one",
                cables_of_host[h]
            ))),
            None => Ok(()),
        }
    }
}
