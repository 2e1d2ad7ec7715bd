//! Who has a place at the owner's port. Whoever has not proved who it is gets one of few places, for a short
//! time, and loses it to who comes later; those who have proved it have places of their own, of which no
//! client and no address has all.
//!
//! ```text
//! arrive ──► arrival ── enter ──► client ── leave ──► gone
//!               └─ another one arrives and there is no room: the oldest is sent away
//! ```

use crate::error::Refusal;
use std::net::IpAddr;

/// Connections at once of clients that have proved who they are. A client with news takes two.
pub const MAX_CONNECTIONS: usize = 512;
/// Of them, those of one client, by the name in its certificate.
pub const MAX_CONNECTIONS_OF_CLIENT: usize = 128;
/// Of them, those from one address: an IPv4 address, or 64 bits of an IPv6 one.
pub const MAX_CONNECTIONS_OF_ADDRESS: usize = 256;
/// Connections at once that have not proved who they are.
pub const MAX_HANDSHAKES: usize = 128;
/// Of them, those from one address.
pub const MAX_HANDSHAKES_OF_ADDRESS: usize = 16;

/// A connection.
struct Place<H> {
    number: u64,
    from: IpAddr,
    /// Name of a client that has proved who it is.
    client: Option<String>,
    /// Ends it from outside.
    handle: H,
}

/// The connections at a port, oldest first.
pub(crate) struct Places<H> {
    all: Vec<Place<H>>,
    next: u64,
}

/// What counts as one address: whoever has one of IPv6 commonly has 2^64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => (address.to_bits() >> 64 << 64).to_be_bytes().into(),
    }
}

impl<H> Places<H> {
    pub fn new() -> Places<H> {
        Places { all: Vec::new(), next: 0 }
    }

    /// A connection from an address. Its number, and the connection that is to end for it: a handshake takes
    /// milliseconds, so the oldest one is the one that is least likely to come to an end.
    pub fn arrive(&mut self, from: IpAddr, handle: H) -> (u64, Option<H>) {
        let from = network(from);
        let arrivals = |place: &Place<H>| place.client.is_none();
        let of_address = |place: &Place<H>| place.client.is_none() && place.from == from;
        let count = |which: &dyn Fn(&Place<H>) -> bool| self.all.iter().filter(|place| which(place)).count();
        let oldest = if count(&of_address) >= MAX_HANDSHAKES_OF_ADDRESS {
            self.all.iter().position(of_address)
        } else if count(&arrivals) >= MAX_HANDSHAKES {
            self.all.iter().position(arrivals)
        } else {
            None
        };
        let ended = oldest.map(|at| self.all.remove(at).handle);
        let number = self.next;
        self.next += 1;
        self.all.push(Place { number, from, client: None, handle });
        (number, ended)
    }

    /// A connection has proved that it is this client's. An error when it may not stay.
    pub fn enter(&mut self, number: u64, client: &str) -> Result<(), Refusal> {
        let full = |what: &str, limit| Err(Refusal::Full { what: what.to_owned(), limit: limit as u64 });
        let Some(at) = self.all.iter().position(|place| place.number == number) else {
            // Sent away just now.
            return full("connections that have not said who they are", MAX_HANDSHAKES);
        };
        let from = self.all[at].from;
        let entered = || self.all.iter().filter(|place| place.client.is_some());
        if entered().filter(|place| place.client.as_deref() == Some(client)).count()
            >= MAX_CONNECTIONS_OF_CLIENT
        {
            return full("connections of this client", MAX_CONNECTIONS_OF_CLIENT);
        }
        if entered().filter(|place| place.from == from).count() >= MAX_CONNECTIONS_OF_ADDRESS {
            return full("connections from this address", MAX_CONNECTIONS_OF_ADDRESS);
        }
        if entered().count() >= MAX_CONNECTIONS {
            return full("connections", MAX_CONNECTIONS);
        }
        self.all[at].client = Some(client.to_owned());
        Ok(())
    }

    /// A connection is over.
    pub fn leave(&mut self, number: u64) {
        self.all.retain(|place| place.number != number);
    }

    /// All there are.
    pub fn handles(&self) -> impl Iterator<Item = &H> {
        self.all.iter().map(|place| &place.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::from([10, 0, (number >> 8) as u8, number as u8])
    }

    #[test]
    fn the_silent_lose_their_places_to_who_comes_later_and_clients_lose_none() {
        let mut places = Places::new();
        let (alice, none) = places.arrive(address(1), 0);
        assert_eq!(none, None);
        places.enter(alice, "alice").unwrap();
        // From one address.
        let ended: Vec<_> = (1..=40).filter_map(|i| places.arrive(address(2), i).1).collect();
        assert_eq!(ended, (1..=24).collect::<Vec<_>>());
        // From many.
        let ended: Vec<_> = (100..400).filter_map(|i| places.arrive(address(i), i).1).collect();
        assert_eq!(ended.len(), 300 - (MAX_HANDSHAKES - MAX_HANDSHAKES_OF_ADDRESS));
        assert_eq!(&ended[..17], &(25..=40).chain([100]).collect::<Vec<_>>()[..]);
        assert_eq!(places.handles().count(), MAX_HANDSHAKES + 1);
        assert!(places.handles().any(|handle| *handle == 0), "alice stays");
        // The next one finds a place all the same; who was sent away does not.
        let (bob, _) = places.arrive(address(3), 1000);
        places.enter(bob, "bob").unwrap();
        assert!(places.enter(alice + 1, "late").is_err());
        places.leave(alice);
        assert!(!places.handles().any(|handle| *handle == 0));
    }

    #[test]
    fn no_client_and_no_address_has_all() {
        let mut places = Places::new();
        let mut enter = |from: usize, client: &str| {
            let (number, _) = places.arrive(address(from), ());
            let entered = places.enter(number, client);
            if entered.is_err() {
                places.leave(number);
            }
            entered.map(|()| number).map_err(|refusal| refusal.to_string())
        };
        for i in 0..MAX_CONNECTIONS_OF_CLIENT {
            enter(i, "alice").unwrap();
        }
        assert!(enter(1, "alice").unwrap_err().contains("128 connections of this client"));
        let of_address = (0..MAX_CONNECTIONS).map(|i| enter(999, &i.to_string())).collect::<Vec<_>>();
        assert_eq!(of_address.iter().filter(|entered| entered.is_ok()).count(), MAX_CONNECTIONS_OF_ADDRESS);
        assert!(of_address[MAX_CONNECTIONS - 1].clone().unwrap_err().contains("256 connections from this"));
        for i in 0..MAX_CONNECTIONS - MAX_CONNECTIONS_OF_CLIENT - MAX_CONNECTIONS_OF_ADDRESS {
            enter(i, "bob").unwrap();
        }
        assert!(enter(5, "carol").unwrap_err().contains("512 connections already"));
        places.leave(0);
        let (number, _) = places.arrive(address(0), ());
        places.enter(number, "alice").unwrap();
    }

    #[test]
    fn an_address_is_what_one_has() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:9"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }
}
