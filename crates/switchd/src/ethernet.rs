//! The edge between a cable with Ethernet and the switch, which knows IP only: whose hardware address is
//! which, and who asks for it.
//!
//! Hosts behind the cable ask for the addresses of all other ports (ARP, neighbour solicitations) and are
//! told hardware addresses that are made of these. The edge asks in the same way, for whoever has sent
//! something, for a host of its own that it has not heard yet, and keeps what is for it until then.

use adverb_os::capture::mac_of;
use adverb_os::framing::outer_flow;
use adverb_os::via::QUEUE_MAX;
use adverb_wire::arp::{Arp, ArpKind};
use adverb_wire::eth::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Eth, Mac};
use adverb_wire::neighbour::{ALL_NODES, Neighbour, NeighbourKind, solicited_node};
use adverb_wire::{Duration, Flow, Gid, Instant};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Shorter frames are filled up (IEEE 802.3, 3.2.8).
const FRAME_MIN: usize = 60;
/// How often a host is asked for, and how many times before what waits is dropped (RFC 4861, 10).
const ASK_AGAIN: Duration = Duration::from_ms(1000);
const ASKED_MAX: u32 = 3;

/// One host behind the cable.
#[derive(Debug)]
struct Host {
    address: Gid,
    mac: Option<Mac>,
    ask: Option<Ask>,
    /// Packets until then, and their bytes.
    waiting: Vec<Vec<u8>>,
    bytes: usize,
}

/// A host is asked for.
#[derive(Clone, Copy, Debug)]
struct Ask {
    /// By whom.
    asker: Gid,
    /// When it is asked for again.
    due: Instant,
    /// How often it was.
    times: u32,
}

/// A port's edge.
#[derive(Debug)]
pub struct Edge {
    hosts: Vec<Host>,
    out: VecDeque<Vec<u8>>,
    /// Packets for hosts that did not answer, or beyond those that may wait.
    pub unanswered: u64,
    /// Frames for nobody here, and of protocols that nobody here speaks.
    pub ignored: u64,
}

impl Edge {
    /// The edge to these hosts.
    pub fn new(hosts: &[Gid]) -> Edge {
        let host =
            |address: &Gid| Host { address: *address, mac: None, ask: None, waiting: Vec::new(), bytes: 0 };
        Edge { hosts: hosts.iter().map(host).collect(), out: VecDeque::new(), unanswered: 0, ignored: 0 }
    }

    /// The hosts' addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Gid> + '_ {
        self.hosts.iter().map(|host| host.address)
    }

    /// Takes a frame of the cable; gives back the IP packet, if it carries one for another port.
    /// `is_elsewhere` says whether another port has an address.
    pub fn take<'a>(&mut self, frame: &'a [u8], is_elsewhere: impl Fn(Gid) -> bool) -> Option<&'a [u8]> {
        let taken = self.read(frame, is_elsewhere);
        self.ignored += u64::from(taken.is_none());
        taken?
    }

    /// None if nobody has a use for the frame; nothing inside, if it was for the edge itself.
    fn read<'a>(&mut self, frame: &'a [u8], is_elsewhere: impl Fn(Gid) -> bool) -> Option<Option<&'a [u8]>> {
        let (eth, at) = Eth::parse(frame)?;
        let rest = frame.get(at..)?;
        match eth.ethertype {
            ETHERTYPE_ARP => self.on_arp(&Arp::parse(rest)?, is_elsewhere),
            ETHERTYPE_IPV6 if Neighbour::is_one(rest) => {
                self.on_neighbour(&Neighbour::parse(rest)?, is_elsewhere);
            }
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {
                let flow = outer_flow(rest)?;
                if !eth.dst.is_group() && eth.dst != mac_of(flow.dst) {
                    return None;
                }
                self.learn(flow.src, eth.src);
                return Some(Some(rest));
            }
            _ => return None,
        }
        Some(None)
    }

    fn on_arp(&mut self, arp: &Arp, is_elsewhere: impl Fn(Gid) -> bool) {
        self.learn(arp.sender_gid(), arp.sender.0);
        let target = Gid::from(arp.target.1);
        if arp.kind == ArpKind::Request && is_elsewhere(target) {
            let answer =
                Arp { kind: ArpKind::Reply, sender: (mac_of(target), arp.target.1), target: arp.sender };
            self.send(target, arp.sender.0, ETHERTYPE_ARP, &answer.emit());
        }
    }

    fn on_neighbour(&mut self, message: &Neighbour, is_elsewhere: impl Fn(Gid) -> bool) {
        let Neighbour { kind, src, target, mac, .. } = *message;
        let whose = if kind == NeighbourKind::Solicitation { src } else { target };
        if let Some(mac) = mac {
            self.learn(whose, mac);
        }
        if kind == NeighbourKind::Solicitation && is_elsewhere(target) {
            // Who has no address yet wants to know whether somebody else has this one: all are told.
            let (dst, to) = match mac {
                Some(mac) if !src.is_zero() => (src, mac),
                _ => (ALL_NODES, Mac::of_group(ALL_NODES).unwrap_or(Mac::BROADCAST)),
            };
            let kind = NeighbourKind::Advertisement;
            let answer = Neighbour { kind, src: target, dst, target, mac: Some(mac_of(target)) };
            self.send(target, to, ETHERTYPE_IPV6, &answer.emit());
        }
    }

    /// Notes a host's hardware address, and sends what waited for it.
    fn learn(&mut self, address: Gid, mac: Mac) {
        let Some(host) = self.hosts.iter_mut().find(|host| host.address == address) else { return };
        (host.mac, host.ask, host.bytes) = (Some(mac), None, 0);
        for packet in std::mem::take(&mut host.waiting) {
            self.send_packet(mac, &packet);
        }
    }

    /// Sends an IP packet to its host or group, when its hardware address is known.
    pub fn put(&mut self, now: Instant, packet: &[u8]) {
        let Some(Flow { src, dst, .. }) = outer_flow(packet) else { return };
        if let Some(mac) = Mac::of_group(dst) {
            return self.send_packet(mac, packet);
        }
        let Some(host) = self.hosts.iter_mut().find(|host| host.address == dst) else { return };
        if let Some(mac) = host.mac {
            return self.send_packet(mac, packet);
        }
        if host.bytes + packet.len() > QUEUE_MAX {
            self.unanswered += 1;
            return;
        }
        host.bytes += packet.len();
        host.waiting.push(packet.to_vec());
        if host.ask.is_none() {
            host.ask = Some(Ask { asker: src, due: now, times: 0 });
            self.on_timer(now);
        }
    }

    /// Asks again for hosts that have not answered, and drops what waits for those that do not.
    pub fn on_timer(&mut self, now: Instant) {
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            let Some(ask) = host.ask.as_mut().filter(|ask| ask.due <= now) else { continue };
            if ask.times == ASKED_MAX {
                self.unanswered += std::mem::take(&mut host.waiting).len() as u64;
                (host.ask, host.bytes) = (None, 0);
                continue;
            }
            (ask.due, ask.times) = (now + ASK_AGAIN, ask.times + 1);
            let (asker, address) = (ask.asker, host.address);
            self.ask(asker, address);
        }
    }

    fn ask(&mut self, asker: Gid, address: Gid) {
        let mac = mac_of(asker);
        match (asker.ip(), address.ip()) {
            (IpAddr::V4(sender), IpAddr::V4(target)) => {
                let kind = ArpKind::Request;
                let request = Arp { kind, sender: (mac, sender), target: (Mac::default(), target) };
                self.send(asker, Mac::BROADCAST, ETHERTYPE_ARP, &request.emit());
            }
            _ => {
                let (kind, dst) = (NeighbourKind::Solicitation, solicited_node(address));
                let request = Neighbour { kind, src: asker, dst, target: address, mac: Some(mac) };
                let to = Mac::of_group(dst).unwrap_or(Mac::BROADCAST);
                self.send(asker, to, ETHERTYPE_IPV6, &request.emit());
            }
        }
    }

    /// When [`on_timer`](Self::on_timer) wants to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.hosts.iter().filter_map(|host| host.ask).map(|ask| ask.due).min()
    }

    /// The next frame for the cable.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    fn send_packet(&mut self, to: Mac, packet: &[u8]) {
        if let Some(Flow { src, .. }) = outer_flow(packet) {
            let ethertype = if src.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
            self.send(src, to, ethertype, packet);
        }
    }

    /// Queues a frame in the name of a host of another port.
    fn send(&mut self, from: Gid, to: Mac, ethertype: u16, body: &[u8]) {
        let mut frame = Eth { dst: to, src: mac_of(from), ethertype }.emit().to_vec();
        frame.extend_from_slice(body);
        frame.resize(frame.len().max(FRAME_MIN), 0);
        self.out.push_back(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Mac = Mac([0x52, 0x54, 0, 0, 0x77, 0x11]);

    fn gid(text: &str) -> Gid {
        text.parse::<IpAddr>().unwrap().into()
    }

    fn elsewhere(address: Gid) -> bool {
        [gid("10.9.0.1"), gid("fd09::1")].contains(&address)
    }

    fn frame(dst: Mac, ethertype: u16, body: &[u8]) -> Vec<u8> {
        [&Eth { dst, src: GUEST, ethertype }.emit()[..], body].concat()
    }

    /// An IP packet of which only the addresses count.
    fn packet(src: &str, dst: &str) -> Vec<u8> {
        let (src, dst) = (gid(src), gid(dst));
        match src.is_ipv4() {
            true => [&[0x45; 12][..], &src.0[12..], &dst.0[12..], &[7; 40]].concat(),
            false => [&[0x60, 0, 0, 0, 0, 40, 17, 64][..], &src.0, &dst.0, &[7; 40]].concat(),
        }
    }

    fn arp(kind: ArpKind, sender: &str, target: &str) -> Vec<u8> {
        let [sender, target] = [sender, target].map(|text| text.parse().unwrap());
        let message = Arp { kind, sender: (GUEST, sender), target: (Mac::default(), target) };
        frame(Mac::BROADCAST, ETHERTYPE_ARP, &message.emit())
    }

    #[test]
    fn who_asks_for_another_port_is_told_and_nobody_else() {
        let mut edge = Edge::new(&[gid("10.9.0.11"), gid("fd09::11")]);
        assert_eq!(edge.take(&arp(ArpKind::Request, "10.9.0.11", "10.9.0.1"), elsewhere), None);
        let answer = edge.next_frame().unwrap();
        let (eth, at) = Eth::parse(&answer).unwrap();
        assert_eq!((eth.dst, eth.src, answer.len()), (GUEST, mac_of(gid("10.9.0.1")), FRAME_MIN));
        let told = Arp::parse(&answer[at..]).unwrap();
        assert_eq!((told.kind, told.sender.0), (ArpKind::Reply, mac_of(gid("10.9.0.1"))));
        // Its own address, one that nobody has, and an answer.
        for (kind, target) in
            [(ArpKind::Request, "10.9.0.11"), (ArpKind::Request, "10.9.0.7"), (ArpKind::Reply, "10.9.0.1")]
        {
            assert_eq!(edge.take(&arp(kind, "10.9.0.11", target), elsewhere), None);
            assert_eq!(edge.next_frame(), None);
        }
        for (src, dst) in [("fd09::11", gid("fd09::11")), ("::", ALL_NODES)] {
            let target = gid("fd09::1");
            let kind = NeighbourKind::Solicitation;
            let mac = (src != "::").then_some(GUEST);
            let message = Neighbour { kind, src: gid(src), dst: solicited_node(target), target, mac };
            let asked = frame(Mac([0x33, 0x33, 0xff, 0, 0, 1]), ETHERTYPE_IPV6, &message.emit());
            assert_eq!(edge.take(&asked, elsewhere), None);
            let answer = edge.next_frame().unwrap();
            let told = Neighbour::parse(&answer[14..]).unwrap();
            assert_eq!((told.src, told.dst, told.mac), (target, dst, Some(mac_of(target))));
        }
        assert_eq!((edge.ignored, edge.next_frame()), (0, None));
    }

    #[test]
    fn packets_go_to_the_hardware_address_of_whom_they_name() {
        let mut edge = Edge::new(&[gid("10.9.0.11")]);
        let from_guest = packet("10.9.0.11", "10.9.0.1");
        let sent = frame(mac_of(gid("10.9.0.1")), ETHERTYPE_IPV4, &from_guest);
        assert_eq!(edge.take(&sent, elsewhere), Some(&from_guest[..]));
        // The host is known by what it sent.
        let back = packet("10.9.0.1", "10.9.0.11");
        edge.put(Instant::ZERO, &back);
        let got = edge.next_frame().unwrap();
        assert_eq!(
            got,
            [&Eth { dst: GUEST, src: mac_of(gid("10.9.0.1")), ethertype: 0x800 }.emit()[..], &back].concat()
        );
        edge.put(Instant::ZERO, &packet("10.9.0.1", "239.1.2.3"));
        assert_eq!(edge.next_frame().unwrap()[..6], [1, 0, 0x5e, 1, 2, 3]);
        // To another's hardware address, of another protocol, cut short.
        for strange in [
            frame(GUEST, ETHERTYPE_IPV4, &from_guest),
            frame(Mac::BROADCAST, 0x88cc, &[0; 40]),
            sent[..20].to_vec(),
            sent[..9].to_vec(),
        ] {
            assert_eq!(edge.take(&strange, elsewhere), None);
        }
        assert_eq!(edge.ignored, 4);
    }

    #[test]
    fn a_host_that_is_not_known_is_asked_for_and_what_is_for_it_waits() {
        for (from, to) in [("10.9.0.1", "10.9.0.11"), ("fd09::1", "fd09::11")] {
            let mut edge = Edge::new(&[gid("10.9.0.11"), gid("fd09::11")]);
            let at = |s: u64| Instant::ZERO + Duration::from_ms(1000 * s);
            let most = QUEUE_MAX / packet(from, to).len();
            for _ in 0..most + 2 {
                edge.put(at(0), &packet(from, to));
            }
            let asked = edge.next_frame().unwrap();
            assert_eq!((edge.next_frame(), edge.next_deadline(), edge.unanswered), (None, Some(at(1)), 2));
            edge.on_timer(at(1));
            assert_eq!(edge.next_frame(), Some(asked.clone()));
            let answer = match gid(to).ip() {
                IpAddr::V4(_) => {
                    let asked = Arp::parse(&asked[14..]).unwrap();
                    assert_eq!(asked.sender, (mac_of(gid(from)), from.parse().unwrap()));
                    arp(ArpKind::Reply, to, from)
                }
                IpAddr::V6(_) => {
                    let asked = Neighbour::parse(&asked[14..]).unwrap();
                    assert_eq!((asked.src, asked.target), (gid(from), gid(to)));
                    let kind = NeighbourKind::Advertisement;
                    let told =
                        Neighbour { kind, src: gid(to), dst: gid(from), target: gid(to), mac: Some(GUEST) };
                    frame(mac_of(gid(from)), ETHERTYPE_IPV6, &told.emit())
                }
            };
            assert_eq!(edge.take(&answer, elsewhere), None);
            let sent =
                std::iter::from_fn(|| edge.next_frame()).inspect(|frame| assert_eq!(frame[..6], GUEST.0));
            assert_eq!(sent.count(), most);
            assert_eq!(edge.next_deadline(), None);
        }
        let mut edge = Edge::new(&[gid("10.9.0.11")]);
        edge.put(Instant::ZERO, &packet("10.9.0.1", "10.9.0.11"));
        while let Some(at) = edge.next_deadline() {
            edge.on_timer(at);
        }
        assert_eq!(std::iter::from_fn(|| edge.next_frame()).count(), ASKED_MAX as usize);
        assert_eq!(edge.unanswered, 1, "nobody answered");
    }

    #[test]
    fn bytes_that_nobody_should_send_are_borne() {
        let mut edge = Edge::new(&[gid("10.9.0.11"), gid("fd09::11")]);
        let kind = NeighbourKind::Solicitation;
        let target = gid("fd09::1");
        let message =
            Neighbour { kind, src: gid("fd09::11"), dst: solicited_node(target), target, mac: Some(GUEST) };
        let good = [
            arp(ArpKind::Request, "10.9.0.11", "10.9.0.1"),
            frame(Mac([0x33, 0x33, 0xff, 0, 0, 1]), ETHERTYPE_IPV6, &message.emit()),
            frame(mac_of(gid("10.9.0.1")), ETHERTYPE_IPV4, &packet("10.9.0.11", "10.9.0.1")),
        ];
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let (mut taken, mut answers) = (0, 0);
        for _ in 0..30_000 {
            let mut bytes = good[random(3)].clone();
            for _ in 0..random(3) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            bytes.truncate(if random(4) == 0 { random(bytes.len() + 1) } else { bytes.len() });
            taken += usize::from(edge.take(&bytes, elsewhere).is_some());
            // At most one answer to a frame.
            let out = std::iter::from_fn(|| edge.next_frame()).count();
            assert!(out <= 1);
            answers += out;
        }
        assert!(taken > 1000 && answers > 1000 && edge.ignored > 1000, "{taken} {answers} {}", edge.ignored);
        assert_eq!(edge.addresses().count(), 2);
    }
}
