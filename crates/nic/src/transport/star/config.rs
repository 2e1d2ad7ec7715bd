//! What a NIC that offers StaR is configured with, and which role its connections get.

use adverb_wire::star::{Hello, Wish, features};
use adverb_wire::{Duration, Gid, QpNumber};

/// StaR's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StarConfig {
    /// Which side of its connections the NIC wants to be.
    pub wish: Wish,
    /// [`Wish::Auto`]: with more connections than these in the NIC, the new one among them, it would rather
    /// be stateless.
    pub threshold: u32,
    /// For how long a region's WRITE or READ may be on its way to the stateless side, which remembers WRITEs
    /// for as long. At least 10 us, at most 10 s.
    pub lifetime: Duration,
    /// Time after which a hello that was not answered is sent again.
    pub hello_interval: Duration,
    /// After so many of them the peer is taken for one that does not know StaR.
    pub hello_tries: u8,
    /// How long the two sides may take to finish what is in flight before a switch.
    pub drain: Duration,
    /// [`Wish::Auto`]: how often the numbers of connections are compared while connections last; zero for
    /// never. What they say must have held for ten times as long.
    pub compare: Duration,
    /// And how long a connection stays what it has become, at least.
    pub hold: Duration,
    /// Changes of stacks and roles that the NIC begins in a second, at most.
    pub changes: u32,
    /// Data leave for a stateless side only where a rule allows it: room for so many rules
    /// ([`Nic::put_rule`](crate::Nic::put_rule)). `None` for no such check.
    pub registry: Option<u32>,
    /// Work requests of a peer's queue that the NIC takes on as its stateful side. A peer with a longer send
    /// or receive queue gets plain RC.
    pub queue_max: u32,
    /// Completions come with their data, and data acknowledge requests, where a message has one packet and
    /// the peer wants it too: fewer packets for small messages.
    pub merge: bool,
    /// One GD asks for the data of up to 16 packets, where the peer knows it too.
    pub burst: bool,
    /// WRITEs executed one right after another get an answer each, not one together: what each costs can be
    /// compared then, whoever they are of.
    pub single_answers: bool,
    /// Addresses and local keys of what the stateless side posts travel, as in the paper, where the peer
    /// wants it too. For laboratories: what is done with is protected by deadline and history only.
    pub carried: bool,
}

impl Default for StarConfig {
    fn default() -> Self {
        StarConfig {
            wish: Wish::Auto,
            threshold: 128,
            lifetime: Duration::from_ms(20),
            hello_interval: Duration::from_ms(10),
            hello_tries: 2,
            drain: Duration::from_ms(100),
            compare: Duration::ZERO,
            hold: Duration::from_ms(5000),
            changes: 100,
            registry: None,
            queue_max: 8192,
            merge: false,
            burst: false,
            single_answers: false,
            carried: false,
        }
    }
}

impl StarConfig {
    /// Whether a peer has longer queues than this NIC keeps for it.
    pub(crate) fn refuses(&self, peer: &Hello) -> bool {
        u32::from(peer.queues.0.max(peer.queues.1)) > self.queue_max
    }

    /// Extensions that it wants.
    pub(crate) fn features(&self) -> u8 {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        bit(self.merge, features::MERGE)
            | bit(self.burst, features::BURST)
            | bit(self.carried, features::CARRIED)
    }

    /// The lifetime in microseconds, within its bounds.
    pub(crate) fn lifetime_us(&self) -> u32 {
        (self.lifetime.as_ps() / 1_000_000).clamp(10, 10_000_000) as u32
    }
}

/// What becomes of one side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Its NIC keeps nothing of the connection.
    Stateless,
    /// Its NIC keeps both sides' state.
    Stateful,
    /// Plain RC suits both.
    Plain,
    /// Plain RC, because both sides insist on the same.
    Conflict,
}

/// A side's role (StaR, III-C1): what the two hellos say decides it, and the names of the ends where they say
/// the same. Both sides come to the same result.
pub(crate) fn role(own: (&Hello, Gid, QpNumber), other: (&Hello, Gid, QpNumber)) -> Role {
    // A hello counts the connections there are; the one that it is about comes on top of them.
    let is_over = |hello: &Hello| hello.connections >= hello.threshold;
    match (own.0.wish, other.0.wish) {
        (Wish::Server, Wish::Client | Wish::Auto) | (Wish::Auto, Wish::Client) => Role::Stateless,
        (Wish::Client, Wish::Server | Wish::Auto) | (Wish::Auto, Wish::Server) => Role::Stateful,
        (Wish::Server, Wish::Server) | (Wish::Client, Wish::Client) => Role::Conflict,
        (Wish::Auto, Wish::Auto) if !is_over(own.0) && !is_over(other.0) => Role::Plain,
        (Wish::Auto, Wish::Auto) => {
            let key = |end: (&Hello, Gid, QpNumber)| (end.0.connections, end.1.0, end.2);
            if key(own) < key(other) { Role::Stateful } else { Role::Stateless }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn hello(wish: Wish, connections: u32, threshold: u32) -> Hello {
        let (features, window, capacity, queues, clock) = (0, 512, 0, (64, 64), 0);
        Hello { wish, features, window, connections, threshold, capacity, queues, clock }
    }

    #[test]
    fn both_sides_come_to_the_same() {
        let ends = [(1, 0x11), (2, 0x10)]
            .map(|(last, number)| (Gid::from(Ipv4Addr::new(10, 0, 0, last)), QpNumber::new(number)));
        let wishes = [Wish::Server, Wish::Client, Wish::Auto];
        for (a, b) in wishes.iter().flat_map(|a| wishes.iter().map(move |b| (*a, *b))) {
            for (many, few) in [(0, 0), (5, 5), (128, 5), (128, 129), (128, 128)] {
                let (one, two) = (hello(a, many, 128), hello(b, few, 128));
                let (one, two) = ((&one, ends[0].0, ends[0].1), (&two, ends[1].0, ends[1].1));
                let (first, second) = (role(one, two), role(two, one));
                let expected = match first {
                    Role::Stateless => Role::Stateful,
                    Role::Stateful => Role::Stateless,
                    same => same,
                };
                assert_eq!(second, expected, "{a:?} {b:?} {many} {few}");
            }
        }
    }

    #[test]
    fn wishes_go_before_numbers_and_the_fuller_side_becomes_stateless() {
        let gid = |last| Gid::from(Ipv4Addr::new(10, 0, 0, last));
        let own = |hello: &Hello, other: &Hello| {
            role((hello, gid(1), QpNumber::new(1)), (other, gid(2), QpNumber::new(1)))
        };
        let auto = |count| hello(Wish::Auto, count, 128);
        assert_eq!(own(&hello(Wish::Server, 0, 128), &auto(1000)), Role::Stateless);
        assert_eq!(own(&auto(1000), &hello(Wish::Server, 0, 128)), Role::Stateful);
        assert_eq!(own(&hello(Wish::Client, 0, 1), &hello(Wish::Client, 9, 1)), Role::Conflict);
        // The 129th connection is the one that is too many.
        assert_eq!(own(&auto(127), &auto(127)), Role::Plain);
        assert_eq!(own(&auto(128), &auto(3)), Role::Stateless);
        assert_eq!(own(&auto(3), &auto(128)), Role::Stateful);
        // As many at both: the lower name is stateful.
        assert_eq!(own(&auto(128), &auto(128)), Role::Stateful);
        // With a threshold of 0 the first connection is.
        let none = hello(Wish::Auto, 0, 0);
        assert_eq!(own(&none, &auto(0)), Role::Stateful);
        assert_eq!(own(&hello(Wish::Auto, 1, 0), &none), Role::Stateless);
    }
}
