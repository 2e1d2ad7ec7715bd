//! Some 1RMA NICs on one wire, in virtual time: faults by seed, every message kept, and whoever wants to may
//! change or hold each.
#![allow(dead_code, reason = "each test binary uses its part of the world")]

#[path = "../world/mod.rs"]
mod world;

use adverb_nic::one_rma::*;
use adverb_nic::{Access, OneRma, PdId};
use adverb_wire::one_rma::{Op, Request};
use adverb_wire::{Duration, Gid, Instant};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
pub use world::{Faults, Memory};

/// Layout of a host's memory: what peers may touch, its own side of operations, and its completion ring.
pub const TARGET: usize = 0;
pub const LOCAL: usize = 64 << 10;
pub const RING: usize = 128 << 10;
pub const PART: usize = 64 << 10;
/// The process of every host, unless a test attaches more.
pub const PID: u32 = 100;
pub const SLOTS: u32 = 64;
pub const LATENCY: Duration = Duration::from_us(2);

pub fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, (host >> 8) as u8, host as u8 + 1))
}

/// K_r of a host's target region at first.
pub fn region_key(host: usize) -> RegionKey {
    RegionKey::new([0x40 + host as u8; 16])
}

pub struct Host {
    pub nic: OneRma,
    pub gid: Gid,
    pub memory: Memory,
    pub pd: PdId,
    pub target: RegionId,
    pub local: RegionId,
    pub ring: RegionId,
    pub slots: Vec<SlotId>,
    /// Completion records taken.
    pub taken: u64,
}

/// What happens to a message: each entry is a copy, after this delay, with these bytes.
pub type Fate = Vec<(Duration, Vec<u8>)>;
/// Decides by number, sender and bytes.
pub type Meddler = Box<dyn FnMut(usize, usize, &[u8]) -> Fate>;

pub struct Rma {
    pub hosts: Vec<Host>,
    pub now: Instant,
    pub faults: Faults,
    pub rng: fastrand::Rng,
    pub meddler: Option<Meddler>,
    /// Everything sent: sender, receiver, bytes.
    pub log: Vec<(usize, usize, Vec<u8>)>,
    wire: BTreeMap<(Instant, u64), (Gid, usize, Vec<u8>)>,
    sequence: u64,
}

pub fn config(host: usize) -> OneRmaConfig {
    OneRmaConfig {
        address: gid(host),
        regions: 16,
        slots: SLOTS,
        slots_by_priority: [SLOTS; PRIORITIES],
        inbound_ops: 64,
        window: 64 << 10,
        max_piece: 1024,
        ..OneRmaConfig::default()
    }
}

pub fn host(index: usize, boot: u64, adjust: &dyn Fn(&mut OneRmaConfig)) -> Host {
    let mut config = config(index);
    adjust(&mut config);
    let quota = config.slots_by_priority[0];
    let mut nic = OneRma::new(config, boot << 32..(boot + 1) << 32, 7 + index as u64).unwrap();
    let pd = nic.memory().alloc_pd().unwrap();
    let memory = Memory::register(nic.memory(), pd, 3 * PART, Access::LOCAL_WRITE);
    nic.attach(ProcessInit { pid: PID, quota, priority: 0 }).unwrap();
    let region = |at: usize, len: usize, rights, key| RegionInit {
        owner: PID,
        pd,
        lkey: memory.mr.lkey,
        addr: memory.addr() + at as u64,
        len: len as u64,
        rights,
        key,
    };
    let own = || RegionKey::new([index as u8 + 1; 16]);
    let target = nic.register(&region(TARGET, PART, Rights::all(), region_key(index))).unwrap();
    let local = nic.register(&region(LOCAL, PART, Rights::empty(), own())).unwrap();
    let ring = nic.register(&region(RING, PART, Rights::empty(), own())).unwrap();
    let slots = (0..quota).map(|_| nic.allot_slot(PID).unwrap()).collect();
    Host { nic, gid: gid(index), memory, pd, target, local, ring, slots, taken: 0 }
}

impl Host {
    /// The next completion, as software finds it.
    pub fn completion(&mut self) -> Option<Completion> {
        let entries = (PART / COMPLETION_LEN) as u64;
        let at = RING + (self.taken % entries) as usize * COMPLETION_LEN;
        let record = Completion::decode(&self.memory.read(at, COMPLETION_LEN).try_into().unwrap())?;
        (record.number == self.taken + 1).then(|| {
            self.taken += 1;
            record
        })
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.nic.counters().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}")).1
    }

    /// Sum of everything dropped or refused.
    pub fn refused(&self) -> u64 {
        let refused =
            |name: &str| ["parse_", "drop_", "requests_"].iter().any(|prefix| name.starts_with(prefix));
        self.nic.counters().iter().filter(|(name, _)| refused(name)).map(|(_, n)| n).sum()
    }
}

impl Rma {
    pub fn new(hosts: usize, seed: u64) -> Rma {
        Self::with(hosts, seed, &|_| {})
    }

    pub fn with(hosts: usize, seed: u64, adjust: &dyn Fn(&mut OneRmaConfig)) -> Rma {
        Rma {
            hosts: (0..hosts).map(|index| host(index, 1, adjust)).collect(),
            now: Instant::from_ns(1000),
            faults: Faults::default(),
            rng: fastrand::Rng::with_seed(seed),
            meddler: None,
            log: Vec::new(),
            wire: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// K_d of the target region of `to` for the process of `from`, as its owner's software would hand it out.
    pub fn key(&self, from: usize, to: usize, op: Op) -> DerivedKey {
        let target = &self.hosts[to];
        target.nic.derive(target.target, gid(from), PID, op).unwrap()
    }

    /// A command of `from` on the target region of `to`, with the right key.
    pub fn command(&self, from: usize, to: usize, op: Op, len: usize) -> Command {
        Command {
            op,
            class: 0,
            len: len as u16,
            remote_region: self.hosts[to].target,
            local_region: self.hosts[from].local,
            completion_region: self.hosts[from].ring,
            target: gid(to),
            remote_offset: 0,
            local_offset: 0,
            key: self.key(from, to, op),
        }
    }

    pub fn post(&mut self, from: usize, slot: usize, command: &Command) {
        let host = &mut self.hosts[from];
        host.nic.post(self.now, host.slots[slot], &command.encode()).unwrap();
        host.nic.check_invariants();
    }

    /// Posts, runs to the completion, and gives it.
    pub fn run(&mut self, from: usize, command: &Command) -> Completion {
        self.post(from, 0, command);
        self.finish(from)
    }

    /// Runs until a completion comes at `host`.
    pub fn finish(&mut self, host: usize) -> Completion {
        loop {
            if let Some(completion) = self.hosts[host].completion() {
                return completion;
            }
            let goes_on = self.advance(Instant::NEVER);
            if !goes_on && let Some(completion) = self.hosts[host].completion() {
                return completion;
            }
            assert!(goes_on, "no completion at host {host}");
        }
    }

    /// Runs until nothing is left to happen.
    pub fn drain(&mut self) {
        while self.advance(Instant::NEVER) {}
        for host in &self.hosts {
            assert!(!host.nic.has_work() && host.nic.next_deadline().is_none(), "nothing is left");
        }
    }

    /// Puts bytes on the wire as if `from` had sent them.
    pub fn inject(&mut self, from: Gid, to: usize, bytes: Vec<u8>, delay: Duration) {
        self.sequence += 1;
        self.wire.insert((self.now + delay, self.sequence), (from, to, bytes));
    }

    fn transmit(&mut self) {
        let mut frame = OneRmaFrame::new();
        for from in 0..self.hosts.len() {
            while self.hosts[from].nic.next_frame(self.now, &mut frame) {
                self.hosts[from].nic.check_invariants();
                let bytes = frame.message().to_vec();
                let to = self.hosts.iter().position(|host| host.gid == frame.to);
                let Some(to) = to else { continue };
                self.log.push((from, to, bytes.clone()));
                let fate = match &mut self.meddler {
                    Some(meddler) => meddler(self.log.len() - 1, from, &bytes),
                    None => self.fate(bytes),
                };
                for (delay, bytes) in fate {
                    self.inject(gid(from), to, bytes, delay);
                }
            }
        }
    }

    fn fate(&mut self, bytes: Vec<u8>) -> Fate {
        let (faults, rng) = (self.faults, &mut self.rng);
        let mut fate = Vec::new();
        for copy in 0..2 {
            if copy == 1 && rng.f64() >= faults.duplicate || rng.f64() < faults.loss {
                continue;
            }
            let mut bytes = bytes.clone();
            if rng.f64() < faults.corrupt {
                let bit = rng.usize(..bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let mut delay = LATENCY;
            if rng.f64() < faults.reorder {
                delay = delay + Duration::from_ns(rng.u64(..8_000));
            }
            if rng.f64() < faults.late {
                delay = delay + Duration::from_ns(rng.u64(..60_000));
            }
            fate.push((delay, bytes));
        }
        fate
    }

    /// Sends what can be sent, then lets the next thing happen, unless that is after `end`. False when there
    /// is nothing.
    pub fn advance(&mut self, end: Instant) -> bool {
        self.transmit();
        let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
        let deadline = self.hosts.iter().filter_map(|host| host.nic.next_deadline()).min();
        let Some(next) = arrival.into_iter().chain(deadline).min().filter(|next| *next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        for host in &mut self.hosts {
            host.nic.on_timer(self.now);
            host.nic.check_invariants();
        }
        while let Some(first) = self.wire.first_entry() {
            if first.key().0 > self.now {
                break;
            }
            let (from, to, mut bytes) = first.remove();
            self.hosts[to].nic.on_frame(self.now, from, &mut bytes);
            self.hosts[to].nic.check_invariants();
        }
        true
    }
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// A request as it stands in a message, for tests that look inside.
pub fn request_of(bytes: &[u8]) -> Option<Request> {
    match adverb_wire::one_rma::Header::parse(bytes).ok()?.body {
        adverb_wire::one_rma::Body::Request(request) => Some(request),
        _ => None,
    }
}
