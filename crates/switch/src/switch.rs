//! The switch: ports, which address is behind which of them, and the row of programs that each frame passes.

use crate::budget::Needs;
use crate::counters::{Counter, Counters, Drop};
use crate::frame::Frame;
use crate::program::{Context, Hop, PortId, Program, ProgramConfig};
use crate::register::{Passes, digest};
use crate::trace::{Event, Note, Trace};
use adverb_wire::{Gid, Instant, Psn, QpNumber};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Ports at most.
pub const PORTS_MAX: usize = 256;
/// Addresses of a port at most.
pub const ADDRESSES_MAX: usize = 16;
/// Programs in a row at most.
pub const PROGRAMS_MAX: usize = 8;
/// Places of frames that are kept to be used again.
const SPARE_MAX: usize = 64;

/// What one end of a reliable connection tells of it, so that nothing has to be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The end that sends the requests in question.
    pub client: Gid,
    /// Its queue pair.
    pub client_qpn: QpNumber,
    /// The end that answers them.
    pub server: Gid,
    /// Its queue pair.
    pub server_qpn: QpNumber,
    /// The client's first sequence number.
    pub psn: Psn,
    /// Payload bytes of a packet.
    pub path_mtu: u32,
}

/// What a caller may have done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// All ports are in use.
    TooManyPorts,
    /// The port has as many addresses as it may.
    TooManyAddresses,
    /// There is no such port.
    NoPort(PortId),
    /// Another port has the address.
    AddressTaken(Gid, PortId),
    /// No host can have this address.
    NotAHost(Gid),
    /// The row of programs is full.
    TooManyPrograms,
    /// Two programs would know the words or chains of one server.
    ServerTwice(Gid),
    /// A program cannot be as it was told.
    Program(&'static str),
    /// A program cannot be taken out of the row now.
    Busy(&'static str, &'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::TooManyPorts => write!(f, "the switch has {PORTS_MAX} ports, and all are in use"),
            Error::TooManyAddresses => write!(f, "a port has at most {ADDRESSES_MAX} addresses"),
            Error::NoPort(port) => write!(f, "there is no port {}", port.0),
            Error::AddressTaken(address, port) => {
                write!(f, "port {} has the address {address} already; choose another address", port.0)
            }
            Error::NotAHost(address) => write!(f, "{address} is not the address of a host"),
            Error::TooManyPrograms => write!(f, "a switch runs at most {PROGRAMS_MAX} programs"),
            Error::Program(why) => f.write_str(why),
            Error::Busy(name, why) => write!(f, "{name} cannot go now: {why}"),
            Error::ServerTwice(server) => {
                write!(f, "two programs are for the atomics to {server}, and each has to see all of them")
            }
        }
    }
}

impl std::error::Error for Error {}

/// What a port has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounts {
    /// Frames that came in on it.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that left by it.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Of these, frames that a program had changed or made.
    pub changed: u64,
    /// Frames that came in on it and went no further at once.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Port {
    addresses: Vec<Gid>,
    depth: u32,
    counts: PortCounts,
}

/// A program of a row that takes the place of another row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// One of the old row, by its place there, with all that it remembers.
    Kept(usize),
    /// The same, told something else. It must be one that may go on so ([`ProgramConfig::may_become`]).
    Changed(usize, ProgramConfig),
    /// One that begins.
    New(ProgramConfig),
}

impl Next {
    /// The place in the old row of one that stays.
    pub fn place(&self) -> Option<usize> {
        match self {
            Next::Kept(at) | Next::Changed(at, _) => Some(*at),
            Next::New(_) => None,
        }
    }
}

/// A frame that leaves. In this order, or it is copied in pieces that are not those that were written, which
/// costs as much as all else that is done with it here.
#[repr(C)]
struct Leaving {
    bytes: Vec<u8>,
    to: PortId,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<Option<Port>>,
    /// By address.
    routes: BTreeMap<u128, PortId>,
    programs: Vec<Program>,
    passes: Passes,
    counters: Counters,
    trace: Trace,
    out: VecDeque<(PortId, Box<Frame>)>,
    /// What waits for a program, and what one lets go on; both empty between two frames.
    row: [Vec<Hop>; 2],
    /// Places of frames that have left.
    #[allow(clippy::vec_box, reason = "frames stay where they are while they pass the programs")]
    spare: Vec<Box<Frame>>,
    /// The headers of one that no program sees.
    looked_at: Box<Frame>,
}

impl Switch {
    /// A switch without ports that runs these programs, in this order, and remembers so many events.
    pub fn new(programs: Vec<Program>, trace: usize) -> Result<Switch, Error> {
        check_row(programs.len(), programs.iter().filter_map(Program::server))?;
        Ok(Switch {
            ports: Vec::new(),
            routes: BTreeMap::new(),
            programs,
            passes: Passes::default(),
            counters: Counters::default(),
            trace: Trace::new(trace),
            out: VecDeque::new(),
            row: Default::default(),
            spare: Vec::new(),
            looked_at: Box::default(),
        })
    }

    /// A switch without ports whose programs begin now.
    pub fn begin(configs: &[ProgramConfig], trace: usize, now: Instant) -> Result<Switch, Error> {
        let programs = configs.iter().map(|config| config.begin(now)).collect::<Result<_, _>>();
        Switch::new(programs.map_err(Error::Program)?, trace)
    }

    /// Runs other programs from now on, and remembers so many events. Ports and counters stay.
    ///
    /// # Errors
    /// The new row cannot be, or a program of the old one cannot go. Then all is as it was.
    ///
    /// # Panics
    /// If a program of the old row is named that is not there, or twice, or is told what it cannot become.
    pub fn reload(&mut self, now: Instant, row: &[Next], trace: usize) -> Result<(), Error> {
        let server = |next: &Next| match next {
            Next::Kept(at) => self.programs[*at].server(),
            Next::New(config) | Next::Changed(_, config) => config.server(),
        };
        let servers: Vec<Gid> = row.iter().filter_map(server).collect();
        check_row(row.len(), servers.iter().copied())?;
        for (at, program) in self.programs.iter().enumerate() {
            if row.iter().all(|next| next.place() != Some(at)) {
                let is_replaced = program.server().is_some_and(|server| servers.contains(&server));
                program.may_go(is_replaced).map_err(|why| Error::Busy(program.name(), why))?;
            }
        }
        let mut begun = Vec::new();
        for next in row {
            begun.push(match next {
                Next::Kept(_) => None,
                Next::Changed(_, config) => config.check().map(|()| None).map_err(Error::Program)?,
                Next::New(config) => Some(config.begin(now).map_err(Error::Program)?),
            });
        }
        let mut old: Vec<Option<Program>> = self.programs.drain(..).map(Some).collect();
        for (next, begun) in row.iter().zip(begun) {
            let stays = next.place().and_then(|at| old[at].take());
            let Some(mut program) = begun.or(stays) else { panic!("a program stays once: {row:?}") };
            if let Next::Changed(_, config) = next {
                program.is_told(config);
            }
            self.programs.push(program);
        }
        self.trace.set_room(trace);
        Ok(())
    }

    /// A new port, without addresses.
    pub fn add_port(&mut self) -> Result<PortId, Error> {
        let free = self.ports.iter().position(Option::is_none);
        if free.is_none() && self.ports.len() == PORTS_MAX {
            return Err(Error::TooManyPorts);
        }
        let at = free.unwrap_or(self.ports.len());
        if free.is_none() {
            self.ports.push(None);
        }
        self.ports[at] = Some(Port::default());
        Ok(PortId(at as u16))
    }

    /// Takes a port away, with its addresses and what programs knew of them.
    pub fn remove_port(&mut self, now: Instant, port: PortId) -> Result<(), Error> {
        let gone =
            self.ports.get_mut(usize::from(port.0)).and_then(Option::take).ok_or(Error::NoPort(port))?;
        for address in gone.addresses {
            self.routes.remove(&address.bits());
            for at in 0..self.programs.len() {
                self.with_program(now, at, |program, ctx| program.on_gone(ctx, address));
            }
        }
        Ok(())
    }

    /// Puts an address behind a port. Frames from it are taken from that port only.
    pub fn claim(&mut self, port: PortId, address: Gid) -> Result<(), Error> {
        if address.is_zero() || address.is_multicast() || address.ip().is_unspecified() {
            return Err(Error::NotAHost(address));
        }
        let there =
            self.ports.get_mut(usize::from(port.0)).and_then(Option::as_mut).ok_or(Error::NoPort(port))?;
        match self.routes.get(&address.bits()) {
            Some(owner) if *owner == port => return Ok(()),
            Some(owner) => return Err(Error::AddressTaken(address, *owner)),
            None if there.addresses.len() == ADDRESSES_MAX => return Err(Error::TooManyAddresses),
            None => {}
        }
        there.addresses.push(address);
        self.routes.insert(address.bits(), port);
        Ok(())
    }

    /// The port behind which an address is.
    pub fn port_of(&self, address: Gid) -> Option<PortId> {
        self.routes.get(&address.bits()).copied()
    }

    /// Says how many bytes wait at a port, for programs that act on it.
    pub fn set_depth(&mut self, port: PortId, bytes: u32) {
        if let Some(Some(port)) = self.ports.get_mut(usize::from(port.0)) {
            port.depth = bytes;
        }
    }

    /// Takes a frame, which starts at its IP header. What leaves for it stands ready in
    /// [`next_frame`](Self::next_frame).
    pub fn on_frame(&mut self, now: Instant, from: PortId, bytes: Vec<u8>) {
        let Some(Some(port)) = self.ports.get_mut(usize::from(from.0)) else {
            return self.counters.drop(Drop::NoPort);
        };
        port.counts.rx_frames += 1;
        port.counts.rx_bytes += bytes.len() as u64;
        self.counters.add(Counter::RxFrames);
        let mut frame = self.spare.pop().unwrap_or_default();
        let dropped = match frame.refill(bytes) {
            Err(_) => Some(Drop::Parse),
            Ok(()) if !port.addresses.contains(&frame.packet.flow.src) => {
                self.trace.add(now, (from, from), &frame.packet, Note::Dropped(Drop::Source));
                Some(Drop::Source)
            }
            Ok(()) => self.forward(now, from, frame),
        };
        if let Some(reason) = dropped {
            self.counters.drop(reason);
            if let Some(Some(port)) = self.ports.get_mut(usize::from(from.0)) {
                port.counts.dropped += 1;
            }
        }
    }

    /// Where a frame goes that no program sees, and how long it is: counted as one that came and has left.
    /// None where it is not as simple as that, and nothing done: then it is for
    /// [`on_frame`](Self::on_frame).
    pub fn through(&mut self, from: PortId, bytes: &[u8]) -> Option<(PortId, usize)> {
        if !self.programs.is_empty() || !self.out.is_empty() {
            return None;
        }
        let Frame { packet, extra, .. } = &mut *self.looked_at;
        let len = packet.parse_ip_into(extra, bytes, bytes.len()).ok()?.frame_len;
        let to = *self.routes.get(&packet.flow.dst.bits())?;
        let port = self.ports.get_mut(usize::from(from.0))?.as_mut()?;
        if !port.addresses.contains(&packet.flow.src) {
            return None;
        }
        port.counts.rx_frames += 1;
        port.counts.rx_bytes += bytes.len() as u64;
        // A route leads to a port that is there.
        if let Some(Some(port)) = self.ports.get_mut(usize::from(to.0)) {
            port.counts.tx_frames += 1;
            port.counts.tx_bytes += len as u64;
        }
        self.counters.add(Counter::RxFrames);
        self.counters.add(Counter::TxFrames);
        Some((to, len))
    }

    /// Sends a frame to the port of its destination; to all others, if that is a group.
    fn forward(&mut self, now: Instant, from: PortId, frame: Box<Frame>) -> Option<Drop> {
        if frame.packet.flow.dst.is_multicast() {
            let others = (0..self.ports.len()).filter(|at| self.ports[*at].is_some());
            let others: Vec<PortId> = others.map(|at| PortId(at as u16)).filter(|to| *to != from).collect();
            for to in others {
                self.row[0].push((from, to, frame.clone()));
            }
            self.run(now, 0);
            return None;
        }
        let to = match self.routes.get(&frame.packet.flow.dst.bits()) {
            Some(to) => *to,
            // The connection of somebody who has gone may carry others' requests: what the server says of
            // them is for the program.
            None if self.decides_for(frame.packet.flow.src) => PortId::NONE,
            None => {
                self.trace.add(now, (from, from), &frame.packet, Note::Dropped(Drop::NoRoute));
                return Some(Drop::NoRoute);
            }
        };
        // A frame that comes alone goes to the first program without a place in the row.
        if self.programs.is_empty() {
            self.leave(to, frame);
            return None;
        }
        self.pass(now, (from, to), 0, frame);
        // One frame behind one program is the usual, and needs no row. Its port is read as it was written:
        // with its neighbour it would have to leave the store buffer first.
        if let ([_], [(_, to, _)]) = (&*self.programs, &*self.row[0]) {
            let to = *to;
            if let Some((.., frame)) = self.row[0].pop() {
                self.leave(to, frame);
            }
        } else {
            self.run(now, 1);
        }
        None
    }

    /// Lets a frame pass one program, which says what stands in the row behind it.
    #[inline]
    fn pass(&mut self, now: Instant, (from, to): (PortId, PortId), at: usize, frame: Box<Frame>) {
        let depth = self.ports.get(usize::from(to.0)).and_then(Option::as_ref).map_or(0, |port| port.depth);
        let Switch { programs, passes, counters, trace, row: [out, _], .. } = self;
        let pass = passes.first();
        let mut ctx = Context { now, from, to, depth, pass, passes, counters, trace, out };
        programs[at].on_frame(&mut ctx, frame);
    }

    /// A frame is behind the last program.
    #[inline]
    fn leave(&mut self, to: PortId, frame: Box<Frame>) {
        match self.ports.get(usize::from(to.0)) {
            Some(Some(_)) => self.out.push_back((to, frame)),
            _ if to == PortId::NONE => self.counters.drop(Drop::NoRoute),
            _ => self.counters.drop(Drop::NoPort),
        }
    }

    /// Lets the frames of the row pass the programs from one of them on.
    fn run(&mut self, now: Instant, first: usize) {
        for at in first..self.programs.len() {
            self.row.swap(0, 1);
            let mut frames = std::mem::take(&mut self.row[1]);
            for (from, to, frame) in frames.drain(..) {
                self.pass(now, (from, to), at, frame);
            }
            self.row[1] = frames;
        }
        let mut frames = std::mem::take(&mut self.row[0]);
        for (_, to, frame) in frames.drain(..) {
            self.leave(to, frame);
        }
        self.row[0] = frames;
    }

    /// Calls a program outside of a frame's way; what it sends passes the programs behind it.
    fn with_program(&mut self, now: Instant, at: usize, f: impl FnOnce(&mut Program, &mut Context<'_>)) {
        let mut out = std::mem::take(&mut self.row[0]);
        let pass = self.passes.first();
        let Switch { programs, passes, counters, trace, .. } = self;
        let (from, to) = (PortId::default(), PortId::default());
        let mut ctx = Context { now, from, to, depth: 0, pass, passes, counters, trace, out: &mut out };
        f(&mut programs[at], &mut ctx);
        self.row[0] = out;
        self.run(now, at + 1);
    }

    /// Tells the programs of a connection.
    pub fn announce(&mut self, now: Instant, announcement: &Announcement) {
        for at in 0..self.programs.len() {
            self.with_program(now, at, |program, ctx| program.announce(ctx, announcement));
        }
    }

    /// Does what is due.
    pub fn on_timer(&mut self, now: Instant) {
        for at in 0..self.programs.len() {
            self.with_program(now, at, Program::on_timer);
        }
    }

    /// When [`on_timer`](Self::on_timer) wants to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.programs.iter().filter_map(Program::next_deadline).min()
    }

    /// The next frame that leaves, and by which port.
    #[inline]
    pub fn next_frame(&mut self) -> Option<(PortId, Vec<u8>)> {
        // Who asks asks until there is none.
        if self.out.is_empty() {
            return None;
        }
        self.take_frame().map(|Leaving { bytes, to }| (to, bytes))
    }

    fn take_frame(&mut self) -> Option<Leaving> {
        let (to, mut frame) = self.out.pop_front()?;
        let changed = frame.is_changed();
        let bytes = frame.take_bytes();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
        self.counters.add(Counter::TxFrames);
        if changed {
            self.counters.add(Counter::Changed);
        }
        if let Some(Some(port)) = self.ports.get_mut(usize::from(to.0)) {
            port.counts.tx_frames += 1;
            port.counts.tx_bytes += bytes.len() as u64;
            port.counts.changed += u64::from(changed);
        }
        Some(Leaving { bytes, to })
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Ways through the pipeline beyond the first one of each packet.
    pub fn recirculated(&self) -> u64 {
        self.passes.recirculated
    }

    /// The last events.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The last events, which are not kept any longer.
    pub fn take_trace(&mut self) -> impl Iterator<Item = Event> {
        self.trace.take()
    }

    /// The ports that there are, with their addresses and what they counted.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &[Gid], PortCounts)> {
        self.ports.iter().enumerate().filter_map(|(at, port)| {
            port.as_ref().map(|port| (PortId(at as u16), &*port.addresses, port.counts))
        })
    }

    /// The programs, to be read and set at run time.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The programs, to be set at run time.
    pub fn programs_mut(&mut self) -> &mut [Program] {
        &mut self.programs
    }

    /// Whether a program decides atomics to an address, whose WRITEs may then stand for atomics.
    pub fn decides_for(&self, address: Gid) -> bool {
        self.programs.iter().any(|program| program.decides_for() == Some(address))
    }

    /// Queue pairs whose numbers programs have shifted: what another switch in this place has to be told
    /// before its first frame.
    pub fn shifted(&self) -> Vec<(Gid, QpNumber)> {
        let programs = self.programs.iter();
        programs
            .flat_map(
                |program| if let Program::CasToWrite(cas) = program { cas.shifted() } else { Vec::new() },
            )
            .collect()
    }

    /// Tells of queue pairs whose numbers a switch in this place had shifted before.
    pub fn set_shifted(&mut self, all: &[(Gid, QpNumber)]) {
        for program in &mut self.programs {
            if let Program::CasToWrite(cas) = program {
                cas.set_shifted(all);
            }
        }
    }

    /// Digests of what programs remember and of the last events, by name: two switches that were given the
    /// same have the same.
    pub fn digests(&self) -> Vec<(String, u64)> {
        let programs = self.programs.iter().zip(1..);
        let of_programs = programs.flat_map(|(program, number)| {
            let digests = program.digests().into_iter();
            digests.map(move |(name, sum)| (format!("program {number} {} {name}", program.name()), sum))
        });
        let events = self.trace.events().collect::<Vec<_>>();
        of_programs.chain([("trace".to_owned(), digest(&events))]).collect()
    }

    /// What all programs together need of hardware. Each begins behind the stages of the one before it.
    pub fn needs(&self) -> Needs {
        let mut all = Needs::default();
        for program in &self.programs {
            let (mut needs, before) = (Needs::default(), all.stages());
            program.needs(&mut needs);
            needs.registers.iter_mut().for_each(|shape| shape.stage += before);
            all.registers.append(&mut needs.registers);
            all.abilities.extend(needs.abilities);
        }
        all
    }

    /// Asserts what must hold between two frames.
    pub fn check_invariants(&self) {
        for (address, port) in &self.routes {
            let there = self.ports.get(usize::from(port.0)).and_then(Option::as_ref);
            assert!(
                there.is_some_and(|port| port.addresses.contains(&Gid(address.to_be_bytes()))),
                "a route leads to its port"
            );
        }
        self.programs.iter().for_each(Program::check_invariants);
    }
}

/// Whether so many programs, and those that decide for these servers, go together.
fn check_row(programs: usize, servers: impl Iterator<Item = Gid>) -> Result<(), Error> {
    if programs > PROGRAMS_MAX {
        return Err(Error::TooManyPrograms);
    }
    let mut before: Vec<Gid> = Vec::new();
    for server in servers {
        if before.contains(&server) {
            return Err(Error::ServerTwice(server));
        }
        before.push(server);
    }
    Ok(())
}
