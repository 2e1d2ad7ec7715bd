//! Which frames are injected: those that claim to come from an address of this host, but not from its port
//! 4791. A NIC of this host sends from nowhere else, and the kernel gives that port to one user, so any other
//! port is that of a program that wants to be taken for the NIC: 2^24 packet sequence numbers are tried in
//! seconds.
//!
//! Other hosts' adapters choose their source ports as they like (IBTA A17.9.1); what reaches them is the
//! network's to guard.

use adverb_os::interfaces::interface_addresses;
use adverb_os::say;
use adverb_os::say::Seldom;
use adverb_wire::{Duration, Flow, Gid, Instant, ROCE_UDP_PORT};
use std::net::IpAddr;

/// How long the list of addresses is believed.
const BELIEVED: Duration = Duration::from_ms(1000);

/// The addresses of this host.
#[derive(Debug)]
pub struct Locals {
    own: Gid,
    known: Vec<IpAddr>,
    looked: Option<Instant>,
}

impl Locals {
    /// `own` is the NIC's address.
    pub fn new(own: Gid) -> Locals {
        Locals { own, known: Vec::new(), looked: None }
    }

    /// Whether a datagram comes from a program of this host that is no NIC.
    #[inline]
    pub fn is_injected(&mut self, flow: &Flow, now: Instant) -> bool {
        flow.src_port != ROCE_UDP_PORT && self.has(flow.src, now, addresses)
    }

    fn has(&mut self, gid: Gid, now: Instant, look: impl FnOnce() -> Vec<IpAddr>) -> bool {
        // All of 127.0.0.0/8 is this host's.
        if gid == self.own || gid.ip().is_loopback() {
            return true;
        }
        if self.looked.is_none_or(|looked| now.since(looked) >= BELIEVED) {
            (self.known, self.looked) = (look(), Some(now));
        }
        self.known.contains(&gid.ip())
    }
}

/// None where the system does not tell: then only its own address and loopback are known to be here.
fn addresses() -> Vec<IpAddr> {
    let found = interface_addresses().unwrap_or_default();
    found.into_iter().map(|interface| interface.address).collect()
}

/// Says under a trace who tries to be taken for a NIC.
#[cold]
pub fn complain(complaints: Option<&mut Seldom>, flow: &Flow, now: Instant) {
    if let Some(more) = complaints.and_then(|complaints| complaints.allows(now)) {
        let (ip, port) = (flow.src.ip(), flow.src_port);
        say!(
            "adverb: dropped, with {more} more before it: a frame from port {port} of {ip}, which is this \
             host's; its NICs send from port {ROCE_UDP_PORT}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_host_is_told_from_its_nics_and_from_other_hosts() {
        let gid = |text: &str| Gid::from(text.parse::<IpAddr>().unwrap());
        let mut locals = Locals::new(gid("192.0.2.1"));
        let list = || vec!["192.0.2.9".parse().unwrap(), "2001:db8::9".parse().unwrap()];
        let at = |ms| Instant::ZERO + Duration::from_ms(ms);
        for here in ["192.0.2.1", "127.3.2.1", "::1", "192.0.2.9", "2001:db8::9"] {
            assert!(locals.has(gid(here), at(0), list), "{here}");
        }
        assert!(
            !locals.has(gid("192.0.2.10"), at(999), Vec::new)
                && locals.has(gid("192.0.2.9"), at(999), Vec::new)
        );
        assert!(!locals.has(gid("192.0.2.9"), at(1000), Vec::new), "the address has gone");
        let flow = |src_port| Flow { src: gid("127.0.0.1"), src_port, ..Flow::default() };
        assert!(locals.is_injected(&flow(40_000), at(0)) && !locals.is_injected(&flow(ROCE_UDP_PORT), at(0)));
    }
}
