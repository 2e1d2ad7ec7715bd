//! Switches of the fabric that run programs: the same [`adverb_switch::Switch`] that carries real frames.
//!
//! A packet that comes to it becomes bytes with an ICRC, as on a wire, and passes the programs; what leaves
//! them becomes packets again, and goes on as in any switch: routes, queues, marks and pauses are the
//! fabric's. A port of the programs is a host, wherever its cables lead, so that a host's address has one
//! port by every path. Their timers are events of the simulation.
//!
//! What was damaged on its way to this switch reaches the programs with a wrong bit: damage that Ethernet's
//! sum did not find is what the check of the ICRC is for. What leaves them with a wrong ICRC has one at the
//! next switch with programs, and is dropped by the host that it reaches. Messages of 1RMA pass untouched.

use crate::error::Error;
use crate::fabric::link::{LINK_PROGRAMS, Link};
use crate::fabric::packet::{FLAG_CE, FLAG_CORRUPT, FLAG_MESSAGE, FLAG_PAYLOAD, FLAG_UNSOUND, Hot, Packets};
use crate::fabric::switch::DropReason;
use crate::host::ends::CE;
use crate::host::{address, host_of};
use crate::sim::{Config, Sim};
use crate::source::Source;
use crate::watch::trace::seed_of;
use adverb_switch::switch::PORTS_MAX;
use adverb_switch::{Counters, PortId, Program, ProgramConfig, Switch};
use adverb_wire::{Gid, Instant, Packet, WireExtra, verify_ip};
use std::collections::BTreeMap;

/// Events that the programs keep for the journal.
const TRACE: usize = 64;

/// A switch with programs, as a simulation is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchPrograms {
    /// Which switch.
    pub at: u32,
    /// What its programs are told, in their order.
    pub programs: Vec<ProgramConfig>,
    /// When it is started anew; sorted by time.
    pub restarts: Vec<Restart>,
    /// Also behind frames: the how manieth of those behind which the switch awaits an answer that tells of a
    /// word, and for how long it is down then, in ps; sorted.
    pub cuts: Vec<(u64, u64)>,
    /// What sending a frame takes of a processor core, in ps; 0: nothing. All frames to one queue pair leave
    /// by one core, as SwordBox's prototype has it, and each queue pair has its own.
    pub core: u64,
}

/// A switch forgets everything, and drops what comes until it is up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restart {
    /// When it goes down, in ps.
    pub at: u64,
    /// For how long, in ps.
    pub length: u64,
}

/// How often a switch was started anew.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Restarts {
    /// In all.
    pub all: u64,
    /// Of these, while an answer was awaited that tells of a word.
    pub busy: u64,
}

/// A switch with programs.
pub(crate) struct Programmed {
    config: SwitchPrograms,
    hosts: u32,
    switch: Switch,
    /// What instances before this one counted.
    before: Counters,
    restarts_done: usize,
    cuts_done: usize,
    /// Frames behind which an answer was awaited that told of a word.
    awaiting: u64,
    /// Restarts while an answer was awaited that told of a word.
    busy_restarts: u64,
    /// Until then it is not there, in ps.
    down_until: u64,
    /// Of the place of damage.
    rng: fastrand::Rng,
    /// Packets that it has sent.
    sent: u64,
    /// Until when the core of a host's queue pair is busy, in ps.
    cores: BTreeMap<(u32, u32), u64>,
    /// Packets that a core is busy with, by when they leave and in their order: link that they came by, link
    /// that they leave by, packet.
    leaving: BTreeMap<(u64, u64), (u32, u32, u32)>,
}

/// Cores that are remembered; what was free for longest is forgotten, as it is free.
const CORES_MAX: usize = 1 << 12;

fn begin(config: &SwitchPrograms, hosts: u32, now: u64) -> Result<Switch, adverb_switch::switch::Error> {
    let mut switch = Switch::begin(&config.programs, TRACE, Instant::from_ps(now))?;
    for host in 0..hosts {
        let port = switch.add_port()?;
        switch.claim(port, address(host))?;
    }
    Ok(switch)
}

impl Programmed {
    /// The switches that a configuration has; links learn which of them lead to one.
    pub fn all(config: &Config, links: &mut [Link]) -> Result<Vec<Programmed>, Error> {
        let mut all = Vec::new();
        for (n, of) in config.programs.iter().enumerate() {
            let others = || config.programs[..n].iter();
            if others().any(|other| other.at == of.at) {
                return Err(Error::new(
                    "switch.program-at",
                    format!("switch {} has programs already", of.at),
                ));
            }
            let servers =
                |of: &SwitchPrograms| of.programs.iter().filter_map(ProgramConfig::server).collect();
            let own: Vec<Gid> = servers(of);
            // Neither would see what the other has made of a request.
            if others().any(|other| servers(other).iter().any(|server| own.contains(server))) {
                return Err(Error::new(
                    "switch.program",
                    "decides for a server that another switch decides for",
                ));
            }
            all.push(Programmed::new(config, of, n as u64, links)?);
        }
        Ok(all)
    }

    /// The `n`th of them.
    fn new(config: &Config, of: &SwitchPrograms, n: u64, links: &mut [Link]) -> Result<Programmed, Error> {
        let hosts = config.topology.hosts;
        if of.at >= config.topology.switches {
            let why =
                format!("switch {} does not exist; there are {}, from 0", of.at, config.topology.switches);
            return Err(Error::new("switch.program-at", why));
        }
        if hosts as usize > PORTS_MAX {
            let why = format!("goes with at most {PORTS_MAX} hosts; there are {hosts}");
            return Err(Error::new("switch.program", why));
        }
        if !config.payload {
            return Err(Error::new("payload", "is off, and programs of a switch look at bytes; give true"));
        }
        let switch = begin(of, hosts, 0).map_err(|why| Error::new("switch.program", why.to_string()))?;
        links.iter_mut().filter(|link| link.to == of.at).for_each(|link| link.flags |= LINK_PROGRAMS);
        let rng = fastrand::Rng::with_seed(seed_of(config.seed, "damage", n));
        let (config, before) = (of.clone(), Counters::default());
        Ok(Programmed {
            config,
            hosts,
            switch,
            before,
            restarts_done: 0,
            cuts_done: 0,
            awaiting: 0,
            busy_restarts: 0,
            down_until: 0,
            rng,
            sent: 0,
            cores: BTreeMap::new(),
            leaving: BTreeMap::new(),
        })
    }

    /// What all instances have counted.
    pub fn counters(&self) -> Counters {
        let mut counters = self.before.clone();
        counters.add_all(self.switch.counters());
        counters
    }

    /// Whether it decides atomics to a host.
    pub fn decides_for(&self, host: u32) -> bool {
        self.switch.decides_for(address(host))
    }

    /// How often it was started anew.
    pub fn restarts(&self) -> Restarts {
        Restarts { all: (self.restarts_done + self.cuts_done) as u64, busy: self.busy_restarts }
    }

    /// Asserts what must hold between two events.
    pub fn check(&self) {
        self.switch.check_invariants();
    }

    /// No more restarts, and if it is down, it comes back now.
    pub fn repair(&mut self, now: u64) {
        self.config.restarts.truncate(self.restarts_done);
        self.config.cuts.truncate(self.cuts_done);
        self.down_until = self.down_until.min(now);
    }

    /// When something is due: a restart, or what a program waits for.
    fn next_deadline(&self) -> Option<u64> {
        let restart = self.config.restarts.get(self.restarts_done).map(|restart| restart.at);
        let program = self.switch.next_deadline().map(|at| at.as_ps().max(self.down_until));
        let leaving = self.leaving.first_key_value().map(|((at, _), _)| *at);
        restart.into_iter().chain(program).chain(leaving).min()
    }

    /// When a packet to a host's queue pair leaves, whose core takes it up when it is free.
    fn leaves_at(&mut self, now: u64, to: (u32, u32)) -> u64 {
        if self.cores.len() >= CORES_MAX {
            self.cores.retain(|_, free| *free > now);
        }
        let free = self.cores.entry(to).or_insert(now);
        *free = (*free).max(now) + self.config.core;
        *free
    }

    /// Goes down if it is time; whether it did.
    fn restart(&mut self, now: u64) -> bool {
        let Some(restart) = self.config.restarts.get(self.restarts_done).copied() else { return false };
        if restart.at > now {
            return false;
        }
        self.restarts_done += 1;
        self.begin_again(now, restart.length);
        true
    }

    /// A frame has come; whether the switch goes down behind it.
    fn cut(&mut self, now: u64) -> bool {
        let Some((frame, length)) = self.config.cuts.get(self.cuts_done).copied() else { return false };
        self.awaiting += u64::from(self.awaits());
        if self.awaiting < frame {
            return false;
        }
        self.cuts_done += 1;
        self.begin_again(now, length);
        true
    }

    /// Whether an answer is awaited that tells of a word.
    fn awaits(&self) -> bool {
        self.switch.programs().iter().any(Program::awaits)
    }

    /// Another instance, which remembers nothing, takes the place of this one after a time.
    fn begin_again(&mut self, now: u64, length: u64) {
        self.busy_restarts += u64::from(self.awaits());
        self.before.add_all(self.switch.counters());
        self.down_until = now + length;
        let shifted = self.switch.shifted();
        match begin(&self.config, self.hosts, self.down_until) {
            Ok(mut switch) => {
                // The driver's file of them.
                switch.set_shifted(&shifted);
                self.switch = switch;
            }
            Err(why) => unreachable!("it could begin before: {why}"),
        }
    }
}

/// A packet's bytes from the IP header on, as the switch sees them; with a wrong bit, if it was damaged, and
/// with a wrong sum, if another switch with programs has let it go so.
fn bytes_of(packets: &Packets, id: u32, rng: &mut fastrand::Rng) -> Vec<u8> {
    let hot = &packets.hot[id as usize];
    let mut packet = packets.descriptor(id);
    if hot.flags & FLAG_CE != 0 {
        packet.flow.traffic_class |= CE;
    }
    let mut bytes = vec![0; packet.frame_len()];
    let len = packet.emit_frame(&WireExtra::default(), packets.payload(id).unwrap_or_default(), &mut bytes);
    assert_eq!(len, bytes.len(), "a frame that a NIC gave is emitted");
    if hot.flags & FLAG_CORRUPT != 0 {
        let at = rng.usize(..len);
        bytes[at] ^= 1 << rng.u8(..8);
    }
    if hot.flags & FLAG_UNSOUND != 0 {
        // Two bits, so that damage of one does not mend it.
        bytes[len - 1] ^= 3;
    }
    bytes
}

impl Sim {
    /// A packet reaches the switch that runs programs.
    #[cold]
    pub(crate) fn on_programmed_arrival(&mut self, s: u32, l: u32, id: u32) {
        let hot = self.fabric.packets.hot[id as usize];
        self.watch.trace.add(self.now, l, hot.digest);
        self.watch.stats.link_hops += 1;
        let mut all = std::mem::take(&mut self.fabric.programmed);
        let Some(programmed) = all.iter_mut().find(|programmed| programmed.config.at == s) else {
            unreachable!("links lead to it only where it is")
        };
        if self.now < programmed.down_until {
            self.drop_in_switch(s, l, id, DropReason::Down);
        } else if hot.flags & FLAG_MESSAGE != 0 {
            let out = self.fabric.routes.next(s, hot.dst, hot.hash);
            self.leave_switch(s, l, out, id);
        } else {
            let src = host_of(&self.fabric.packets.descriptor(id).flow.src);
            let out = &self.fabric.links[self.fabric.routes.next(s, hot.dst, hot.hash) as usize];
            let waiting = self.fabric.switches[s as usize].queues_of(out.port_from).iter().map(|q| q.depth);
            programmed.switch.set_depth(PortId(hot.dst as u16), waiting.sum());
            let bytes = bytes_of(&self.fabric.packets, id, &mut programmed.rng);
            self.fabric.packets.give(id);
            programmed.switch.on_frame(Instant::from_ps(self.now), PortId(src as u16), bytes);
            self.leave_programs(programmed, Some((l, hot)));
            if programmed.cut(self.now) {
                self.tell_restart(programmed);
            }
        }
        self.fabric.programmed = all;
    }

    /// Sends what the programs have given; `came` is the packet that they were shown, and its link.
    fn leave_programs(&mut self, programmed: &mut Programmed, came: Option<(u32, Hot)>) {
        if self.watch.journal.is_on() {
            for event in programmed.switch.take_trace() {
                let name = format_args!("switch {}", programmed.config.at);
                self.watch.journal.add(self.now, name, event);
            }
        }
        let s = programmed.config.at;
        while let Some((port, bytes)) = programmed.switch.next_frame() {
            let parsed = match Packet::parse_ip(&bytes) {
                Ok(parsed) => parsed,
                Err(why) => unreachable!("programs give packets: {why:?}"),
            };
            let (packet, dst) = (parsed.packet, u32::from(port.0));
            let src = host_of(&packet.flow.src);
            programmed.sent += 1;
            // The number of the packet that it was, or one that no NIC gives.
            let number = match came {
                Some((_, hot)) if hot.digest & 0xff_ffff == u64::from(packet.bth.psn.get()) => {
                    hot.digest >> 32
                }
                _ => 1 << 31 | programmed.sent,
            };
            let id = self.fabric.packets.take();
            let dress = self.dress(number, (src, dst));
            dress.put_on(&mut self.fabric.packets.hot[id as usize], &packet);
            self.fabric.packets.keep(id, &packet);
            let hot = &mut self.fabric.packets.hot[id as usize];
            let hash = hot.hash;
            if !verify_ip(&bytes[..parsed.frame_len], parsed.ip_header_len) {
                hot.flags |= FLAG_UNSOUND;
            }
            if packet.payload_len > 0 {
                hot.flags |= FLAG_PAYLOAD;
                let room = self.fabric.packets.payload_mut(id);
                room.clear();
                room.extend_from_slice(&bytes[parsed.payload]);
            }
            let out = self.fabric.routes.next(s, dst, hash);
            // What a program has kept or made counts as come from where its source's packets come from.
            let entered = came.map_or_else(|| self.fabric.routes.next(s, src, hash) ^ 1, |(l, _)| l);
            if programmed.config.core == 0 {
                self.leave_switch(s, entered, out, id);
            } else {
                let at = programmed.leaves_at(self.now, (dst, packet.bth.dest_qp.get()));
                programmed.leaving.insert((at, programmed.sent), (entered, out, id));
            }
        }
        while let Some(first) = programmed.leaving.first_entry()
            && first.key().0 <= self.now
        {
            let (entered, out, id) = first.remove();
            self.leave_switch(s, entered, out, id);
        }
        if let Some(at) = programmed.next_deadline() {
            self.wake_by(Source::SwitchPrograms, at.max(self.now));
        }
    }

    /// Something is due at a switch with programs.
    #[cold]
    pub(crate) fn on_switch_programs(&mut self) {
        let mut all = std::mem::take(&mut self.fabric.programmed);
        for programmed in &mut all {
            if programmed.restart(self.now) {
                self.tell_restart(programmed);
            }
            let now = Instant::from_ps(self.now);
            let due = programmed.switch.next_deadline().is_some_and(|at| at <= now);
            if self.now >= programmed.down_until && due {
                programmed.switch.on_timer(now);
            }
            self.leave_programs(programmed, None);
        }
        self.fabric.programmed = all;
    }

    fn tell_restart(&mut self, programmed: &Programmed) {
        self.watch.journal.add(self.now, format_args!("switch {}", programmed.config.at), "is started anew");
    }

    /// The programs begin: their first deadlines, and the hosts that are told whose atomics come as WRITEs.
    pub(crate) fn begin_switch_programs(&mut self) {
        let deadline = self.fabric.programmed.iter().filter_map(Programmed::next_deadline).min();
        for host in 0..self.hosts.list.len() as u32 {
            self.tell_decided(host);
        }
        if let Some(at) = deadline {
            self.wake_by(Source::SwitchPrograms, at);
        }
    }

    /// Tells a host's NIC whether a switch decides its atomics.
    fn tell_decided(&mut self, host: u32) {
        if self.fabric.programmed.iter().any(|programmed| programmed.decides_for(host)) {
            self.hosts.list[host as usize].nic.set_words_by_write(true);
        }
    }

    /// A host has gone and comes back with another NIC: the programs forget it, as when its port goes down.
    pub(crate) fn forget_at_switch(&mut self, host: u32) {
        let mut all = std::mem::take(&mut self.fabric.programmed);
        let (now, port) = (Instant::from_ps(self.now), PortId(host as u16));
        for programmed in &mut all {
            let again = programmed.switch.remove_port(now, port).and_then(|()| programmed.switch.add_port());
            let claimed = again.and_then(|again| {
                assert_eq!(again, port, "the only one that is free");
                programmed.switch.claim(again, address(host))
            });
            assert_eq!(claimed, Ok(()), "host {host} had its address before");
            self.leave_programs(programmed, None);
        }
        self.fabric.programmed = all;
        self.tell_decided(host);
    }

    /// What the first switch with programs has counted over all its starts, and how often it was started
    /// anew.
    pub fn switch_counters(&self) -> Option<(Counters, Restarts)> {
        self.all_switch_counters().next()
    }

    /// The same of each.
    pub fn all_switch_counters(&self) -> impl Iterator<Item = (Counters, Restarts)> + '_ {
        self.fabric.programmed.iter().map(|programmed| (programmed.counters(), programmed.restarts()))
    }

    /// The first switch that runs programs.
    pub fn programmed_switch(&self) -> Option<&Switch> {
        self.fabric.programmed.first().map(|programmed| &programmed.switch)
    }
}

/// The address of a simulated host, for programs that name a server.
pub fn address_of(host: u32) -> Gid {
    address(host)
}
