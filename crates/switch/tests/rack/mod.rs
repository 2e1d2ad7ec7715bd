//! A rack in virtual time: real NICs behind a switch, with faults on every hop.
#![allow(dead_code, reason = "each test binary uses its part of the rack")]

#[path = "../../../nic/tests/world/mod.rs"]
pub mod world;

use adverb_nic::{Payload, TxFrame};
use adverb_switch::{PortId, Switch};
use adverb_wire::{Duration, Instant, Packet, WireExtra, verify_ip};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use world::World;

/// Chances, for each hop of each frame.
#[derive(Clone, Copy, Default, Debug)]
pub struct Chances {
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub corrupt: f64,
}

/// ECN-capable transport (RFC 3168).
const ECT0: u8 = 2;
/// One way of a cable.
const HOP: Duration = Duration::from_us(1);

/// When a frame arrives, and which of those that arrive then it is; the earliest one last.
type Moment = Reverse<(Instant, u64)>;

#[derive(Clone, Copy)]
enum Place {
    Switch(PortId),
    Node(usize),
}

/// Looks at each frame that leaves the switch, and may change it.
pub type Meddle = Box<dyn FnMut(&mut Vec<u8>)>;

pub struct Rack {
    pub w: World,
    pub switch: Switch,
    pub chances: Chances,
    pub meddle: Option<Meddle>,
    /// Frames leave the NICs as those of an ECN-capable transport.
    pub ecn_capable: bool,
    /// Node `i` is behind port `i`.
    on_way: BTreeMap<Moment, (Place, Vec<u8>)>,
    sequence: u64,
    out: TxFrame,
}

impl Rack {
    pub fn new(nodes: usize, seed: u64, mut switch: Switch) -> Rack {
        let w = World::new(nodes, seed);
        for node in &w.nodes {
            let port = switch.add_port().unwrap();
            switch.claim(port, node.gid).unwrap();
        }
        let on_way = BTreeMap::new();
        Rack {
            w,
            switch,
            chances: Chances::default(),
            meddle: None,
            ecn_capable: false,
            on_way,
            sequence: 0,
            out: TxFrame::default(),
        }
    }

    /// Puts another switch in the place of this one, which forgets all.
    pub fn restart(&mut self, mut switch: Switch) {
        for node in &self.w.nodes {
            let port = switch.add_port().unwrap();
            switch.claim(port, node.gid).unwrap();
        }
        self.switch = switch;
    }

    fn hop(&mut self, to: Place, mut bytes: Vec<u8>) {
        let (chances, rng) = (self.chances, &mut self.w.rng);
        if rng.f64() < chances.loss {
            return;
        }
        if rng.f64() < chances.corrupt {
            let at = rng.usize(..bytes.len());
            bytes[at] ^= 1 << rng.u8(..8);
        }
        for _ in 0..1 + usize::from(rng.f64() < chances.duplicate) {
            let late = if rng.f64() < chances.reorder {
                Duration::from_ns(rng.u64(..20_000))
            } else {
                Duration::ZERO
            };
            self.sequence += 1;
            self.on_way.insert(Reverse((self.w.now + HOP + late, self.sequence)), (to, bytes.clone()));
        }
    }

    fn transmit(&mut self) {
        for from in 0..self.w.nodes.len() {
            while self.w.nodes[from].nic.next_frame(self.w.now, &mut self.out) {
                let mut packet = self.out.packet;
                packet.flow.traffic_class |= if self.ecn_capable { ECT0 } else { 0 };
                let mut payload = vec![0u8; self.out.payload.len()];
                let mut at = 0;
                for span in self.out.payload.spans() {
                    adverb_nic::memory::dma::read_bytes(*span, &mut payload[at..at + span.len()]);
                    at += span.len();
                }
                let mut bytes = vec![0; packet.frame_len()];
                assert_eq!(packet.emit_frame(&WireExtra::default(), &payload, &mut bytes), bytes.len());
                self.hop(Place::Switch(PortId(from as u16)), bytes);
            }
        }
        while let Some((port, mut bytes)) = self.switch.next_frame() {
            if let Some(meddle) = &mut self.meddle {
                meddle(&mut bytes);
            }
            self.hop(Place::Node(usize::from(port.0)), bytes);
        }
    }

    /// Handles the next thing that happens before `end`. False when nothing does.
    pub fn advance(&mut self, end: Instant) -> bool {
        self.transmit();
        let frame = self.on_way.last_key_value().map_or(Instant::NEVER, |(Reverse((at, _)), _)| *at);
        let nics = self.w.nodes.iter().filter_map(|n| n.nic.next_deadline()).min().unwrap_or(Instant::NEVER);
        let switch = self.switch.next_deadline().unwrap_or(Instant::NEVER);
        let next = frame.min(nics).min(switch);
        if next > end || next == Instant::NEVER {
            self.w.now = self.w.now.max(end);
            return false;
        }
        self.w.now = self.w.now.max(next);
        let now = self.w.now;
        if frame == next {
            let (_, (place, bytes)) = self.on_way.pop_last().expect("a frame on its way");
            match place {
                Place::Switch(port) => self.switch.on_frame(now, port, bytes),
                Place::Node(node) => self.deliver(node, &bytes),
            }
        } else if switch == next {
            self.switch.on_timer(now);
        } else {
            self.w.nodes.iter_mut().for_each(|n| n.nic.on_timer(now));
        }
        self.switch.check_invariants();
        true
    }

    /// What a NIC's port does: checks the ICRC, then hands the packet over.
    fn deliver(&mut self, node: usize, bytes: &[u8]) {
        let Ok(parsed) = Packet::parse_ip(bytes) else { return };
        if verify_ip(&bytes[..parsed.frame_len], parsed.ip_header_len) {
            let nic = &mut self.w.nodes[node].nic;
            nic.on_frame(self.w.now, &parsed.packet, &Payload::from_slice(&bytes[parsed.payload]));
            nic.check_invariants();
        }
    }

    pub fn run(&mut self, limit: Duration) {
        let end = self.w.now + limit;
        while self.advance(end) {}
    }
}
