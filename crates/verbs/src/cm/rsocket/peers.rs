//! Sockets of datagrams that have said which queue pair is theirs: a bounded table, without a clock.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Entries of a socket. One more puts out the one that was used least recently; it is found again by UDP.
pub(super) const PEERS_MAX: usize = 1024;
/// After so long without a word from a peer, the next datagram goes by UDP: who is alive answers that, with
/// another queue pair if it was started again.
pub(super) const ASK_AGAIN_NS: u64 = 2_000_000_000;

/// One of them.
struct Peer<A> {
    qpn: u32,
    handle: A,
    /// When it was last heard, or asked.
    heard: u64,
    used: u64,
}

/// Those that a socket knows, by address; `A` is a handle for where the NIC sends.
pub(super) struct Peers<A> {
    known: BTreeMap<SocketAddr, Peer<A>>,
}

impl<A> Peers<A> {
    pub(super) fn new() -> Peers<A> {
        Peers { known: BTreeMap::new() }
    }

    /// Where a peer's queue pair is. `None` if it is to be asked: it is not known, or has been silent.
    pub(super) fn route(&mut self, who: SocketAddr, now: u64) -> Option<(&A, u32)> {
        let peer = self.known.get_mut(&who)?;
        peer.used = now;
        if now.saturating_sub(peer.heard) >= ASK_AGAIN_NS {
            peer.heard = now;
            return None;
        }
        Some((&peer.handle, peer.qpn))
    }

    /// A datagram came from a peer's queue pair.
    pub(super) fn heard(&mut self, who: SocketAddr, now: u64) {
        if let Some(peer) = self.known.get_mut(&who) {
            peer.heard = now;
        }
    }

    /// A peer has said which queue pair is its. A handle is made for one that was not known.
    pub(super) fn learn<E>(
        &mut self,
        who: SocketAddr,
        qpn: u32,
        now: u64,
        make: impl FnOnce() -> Result<A, E>,
    ) -> Result<(), E> {
        if let Some(peer) = self.known.get_mut(&who) {
            (peer.qpn, peer.heard) = (qpn, now);
            return Ok(());
        }
        let handle = make()?;
        if self.known.len() >= PEERS_MAX
            && let Some(oldest) = self.known.iter().min_by_key(|(_, peer)| peer.used).map(|(who, _)| *who)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(who, Peer { qpn, handle, heard: now, used: now });
        Ok(())
    }

    /// Nobody is at an address.
    pub(super) fn forget(&mut self, who: SocketAddr) {
        self.known.remove(&who);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn a_peer_that_is_silent_is_asked_now_and_then() {
        let mut peers = Peers::new();
        assert_eq!(peers.route(at(1), 0), None);
        peers.learn(at(1), 7, 0, || Ok::<_, ()>('a')).unwrap();
        assert_eq!(peers.route(at(1), ASK_AGAIN_NS - 1), Some((&'a', 7)));
        assert_eq!(peers.route(at(1), ASK_AGAIN_NS), None);
        // Until it answers, its datagrams go where they went.
        assert_eq!(peers.route(at(1), ASK_AGAIN_NS + 1), Some((&'a', 7)));
        peers.learn(at(1), 8, ASK_AGAIN_NS + 2, || Err("it has one")).unwrap();
        assert_eq!(peers.route(at(1), 2 * ASK_AGAIN_NS), Some((&'a', 8)));
        peers.heard(at(1), 2 * ASK_AGAIN_NS);
        assert_eq!(peers.route(at(1), 3 * ASK_AGAIN_NS - 1), Some((&'a', 8)));
        peers.forget(at(1));
        assert_eq!(peers.route(at(1), 3 * ASK_AGAIN_NS), None);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_who_is_used() {
        let mut peers = Peers::new();
        for port in 0..PEERS_MAX as u16 {
            peers.learn(at(port), 1, 0, || Ok::<_, ()>(())).unwrap();
        }
        assert!((1..PEERS_MAX as u16).all(|port| peers.route(at(port), 5).is_some()));
        peers.learn(at(60000), 1, 6, || Ok::<_, ()>(())).unwrap();
        assert_eq!(peers.known.len(), PEERS_MAX);
        assert!(peers.route(at(0), 7).is_none());
        assert!(peers.route(at(1), 7).is_some() && peers.route(at(60000), 7).is_some());
        assert_eq!(peers.learn(at(0), 1, 8, || Err("no room")), Err("no room"));
    }
}
