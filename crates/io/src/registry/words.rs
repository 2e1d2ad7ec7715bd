//! What a process, its agent and other agents say to one another: a line of text each.
//!
//! ```text
//! a process, at its agent's socket: `asks`, or `takes SLOT`; then
//!   asks:   connect NUMBER PD PEER PEERS_NUMBER | end-connect NUMBER
//!           region PD KEY VA LEN RIGHTS | end-region KEY            <- done | full | refused WORDS
//!           window NUMBER PD KEY VA LEN RIGHTS: a region of one queue pair's peer only
//!   takes:  the agent says an order                                 <- done | full | refused WORDS
//! an agent, to another one: `server ADDRESS`, then `CLIENTS_NUMBER ORDER` or `ping`, answered alike
//! an order: put SERVER NUMBER posted | put SERVER NUMBER KEY VA LEN RIGHTS
//!           remove SERVER NUMBER KEY | remove SERVER NUMBER *
//! ```
//! Numbers are decimal.

use adverb_nic::{Rule, RuleFor};
use adverb_wire::{Gid, Key, QpNumber};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Bytes of a line at most.
pub const LINE: usize = 256;
/// A process speaks first: it has questions, or takes rules for the NIC of a slot.
pub const ASKS: &str = "asks";
/// See [`ASKS`].
pub const TAKES: &str = "takes";

/// Where the agent of an address listens for this user's processes: in the abstract namespace, which goes
/// with it.
pub fn socket(address: IpAddr) -> PathBuf {
    PathBuf::from(format!("\0adverb-star-registry-{address}"))
}

/// What a server's process tells its agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// A queue pair is to be connected.
    Connect {
        /// Its number.
        number: QpNumber,
        /// Its protection domain.
        pd: u32,
        /// The peer's address.
        peer: Gid,
        /// Its queue pair.
        peer_number: QpNumber,
    },
    /// It is connected no more.
    EndConnect {
        /// Its number.
        number: QpNumber,
    },
    /// Memory was registered, or is something else now, or a window of type 1 is to be bound.
    Region {
        /// Its protection domain.
        pd: u32,
        /// What peers may do with it.
        region: Region,
    },
    /// A window of type 2 is to be bound: it is for one queue pair's peer.
    Window {
        /// The queue pair's number.
        number: QpNumber,
        /// Its protection domain.
        pd: u32,
        /// What the peer may do with it.
        region: Region,
    },
    /// A region is to be registered no more, or a window is bound no more.
    EndRegion {
        /// Its key.
        key: Key,
    },
}

/// What peers may do with a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The key.
    pub key: Key,
    /// The first address.
    pub va: u64,
    /// Bytes.
    pub len: u64,
    /// [`Grant::READ`](adverb_wire::star::Grant::READ) and the others.
    pub rights: u8,
}

impl Region {
    /// As a rule says it.
    pub fn rule(self) -> RuleFor {
        let Region { key, va, len, rights } = self;
        RuleFor::Region { key, va, len, rights }
    }
}

/// A change of a client's registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Take a rule in.
    Put(Rule),
    /// Take a region's rule out, or all of a queue pair's.
    Remove(Gid, QpNumber, Option<Key>),
}

impl Order {
    /// Whose rules it is about.
    pub fn server(&self) -> Gid {
        match self {
            Order::Put(rule) => rule.server,
            Order::Remove(server, ..) => *server,
        }
    }

    /// The server's queue pair.
    pub fn number(&self) -> QpNumber {
        match self {
            Order::Put(rule) => rule.number,
            Order::Remove(_, number, _) => *number,
        }
    }
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// It is done.
    Done,
    /// A registry has no room.
    Full,
    /// It is not, for this reason.
    Refused(String),
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Connect { number, pd, peer, peer_number } => {
                write!(f, "connect {} {pd} {peer} {}", number.get(), peer_number.get())
            }
            Ask::EndConnect { number } => write!(f, "end-connect {}", number.get()),
            Ask::Region { pd, region: Region { key, va, len, rights } } => {
                write!(f, "region {pd} {} {va} {len} {rights}", key.0)
            }
            Ask::Window { number, pd, region: Region { key, va, len, rights } } => {
                write!(f, "window {} {pd} {} {va} {len} {rights}", number.get(), key.0)
            }
            Ask::EndRegion { key } => write!(f, "end-region {}", key.0),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, number) = (self.server(), self.number().get());
        match self {
            Order::Put(Rule { what: RuleFor::Posted, .. }) => write!(f, "put {server} {number} posted"),
            Order::Put(Rule { what: RuleFor::Region { key, va, len, rights }, .. }) => {
                write!(f, "put {server} {number} {} {va} {len} {rights}", key.0)
            }
            Order::Remove(_, _, Some(key)) => write!(f, "remove {server} {number} {}", key.0),
            Order::Remove(..) => write!(f, "remove {server} {number} *"),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Done => f.write_str("done"),
            Said::Full => f.write_str("full"),
            Said::Refused(why) => write!(f, "refused {}", why.replace('\n', " ")),
        }
    }
}

fn number(word: &str) -> Option<QpNumber> {
    word.parse().ok().filter(|number| *number < 1 << 24).map(QpNumber::new)
}

fn address(word: &str) -> Option<Gid> {
    word.parse::<IpAddr>().ok().map(Gid::from)
}

fn region(words: &[&str]) -> Option<Region> {
    let [key, va, len, rights] = words else { return None };
    let key = Key(key.parse().ok()?);
    Some(Region { key, va: va.parse().ok()?, len: len.parse().ok()?, rights: rights.parse().ok()? })
}

impl Ask {
    /// The inverse of its text.
    pub fn parse(line: &str) -> Option<Ask> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["connect", own, pd, peer, peers] => Some(Ask::Connect {
                number: number(own)?,
                pd: pd.parse().ok()?,
                peer: address(peer)?,
                peer_number: number(peers)?,
            }),
            ["end-connect", own] => Some(Ask::EndConnect { number: number(own)? }),
            ["region", pd, ref rest @ ..] => {
                Some(Ask::Region { pd: pd.parse().ok()?, region: region(rest)? })
            }
            ["window", of, pd, ref rest @ ..] => {
                Some(Ask::Window { number: number(of)?, pd: pd.parse().ok()?, region: region(rest)? })
            }
            ["end-region", key] => Some(Ask::EndRegion { key: Key(key.parse().ok()?) }),
            _ => None,
        }
    }
}

impl Order {
    /// The inverse of its text.
    pub fn parse(line: &str) -> Option<Order> {
        let words = line.split(' ').collect::<Vec<_>>();
        let [what, server, of, ref rest @ ..] = words[..] else { return None };
        let (server, number) = (address(server)?, number(of)?);
        match (what, rest) {
            ("put", ["posted"]) => Some(Order::Put(Rule { server, number, what: RuleFor::Posted })),
            ("put", rest) => Some(Order::Put(Rule { server, number, what: region(rest)?.rule() })),
            ("remove", ["*"]) => Some(Order::Remove(server, number, None)),
            ("remove", [key]) => Some(Order::Remove(server, number, Some(Key(key.parse().ok()?)))),
            _ => None,
        }
    }
}

impl Said {
    /// The inverse of its text.
    pub fn parse(line: &str) -> Option<Said> {
        match line.split_once(' ') {
            None if line == "done" => Some(Said::Done),
            None if line == "full" => Some(Said::Full),
            Some(("refused", why)) => Some(Said::Refused(why.to_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn what_is_said_is_understood() {
        let (peer, key) = (Gid::from(Ipv4Addr::new(10, 0, 0, 7)), Key(u32::MAX));
        let (number, peer_number) = (QpNumber::new(0xff_fffe), QpNumber::new(0x1_0002));
        let region = Region { key, va: u64::MAX, len: 1 << 60, rights: 7 };
        for ask in [
            Ask::Connect { number, pd: 3, peer, peer_number },
            Ask::EndConnect { number },
            Ask::Region { pd: 3, region },
            Ask::Window { number, pd: 3, region },
            Ask::EndRegion { key },
        ] {
            assert_eq!(Ask::parse(&ask.to_string()), Some(ask));
            assert!(ask.to_string().len() <= LINE);
        }
        let server = Gid::from("fd00::ffff:1234:5678:9abc".parse::<IpAddr>().unwrap());
        for order in [
            Order::Put(Rule { server, number, what: RuleFor::Posted }),
            Order::Put(Rule { server, number, what: region.rule() }),
            Order::Remove(server, number, Some(key)),
            Order::Remove(server, number, None),
        ] {
            assert_eq!(Order::parse(&order.to_string()), Some(order));
            assert_eq!((order.server(), order.number()), (server, number));
            assert!(order.to_string().len() + 10 <= LINE);
        }
        for said in [Said::Done, Said::Full, Said::Refused("no such process".to_owned())] {
            assert_eq!(Said::parse(&said.to_string()), Some(said));
        }
    }

    #[test]
    fn what_is_garbled_is_refused() {
        for line in [
            "",
            "connect",
            "connect 1 2 3 4",
            "connect 16777216 0 10.0.0.1 1",
            "region 1 2 3 4",
            "region 1 2 3 4 300",
            "window 16777216 1 2 3 4 5",
            "window 1 2 3 4 5",
            "end-region",
            "end-region x",
            "end-connect 1 2",
        ] {
            assert_eq!(Ask::parse(line), None, "{line}");
        }
        for line in [
            "",
            "put",
            "put 10.0.0.1",
            "put 10.0.0.1 1",
            "put 10.0.0.1 1 2 3 4",
            "remove x 1 *",
            "remove 10.0.0.1 1",
            "put 10.0.0.1 1 posted 2",
            "clear 10.0.0.1 1",
        ] {
            assert_eq!(Order::parse(line), None, "{line}");
        }
        for line in ["", "Done", "done it", "refused"] {
            assert_eq!(Said::parse(line), None, "{line}");
        }
    }
}
