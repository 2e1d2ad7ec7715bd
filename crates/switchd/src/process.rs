//! The loop: waits for processes and times, takes frames, gives them to the switch, and sends what leaves.

use crate::cable::Cable;
use crate::config::Config;
use crate::control;
use crate::error::OpenError;
use crate::gate::Gate;
use crate::line::{Line, Spare, Way};
use crate::members::{Members, Peer, Role};
use crate::recorded::Recorded;
use crate::shifted::{Name, Owner, ShiftedFile, shifted_of, tell};
use crate::tape::{End, Tape};
use adverb_os::batch::Tally;
use adverb_os::clock::Clock;
use adverb_os::folders::private_folder;
use adverb_os::framing::{bth_offset, is_roce, outer_flow};
use adverb_os::link::Link;
use adverb_os::socket_file::SocketFile;
use adverb_os::sys::{self, WaitSet};
use adverb_os::via::{Frames, Hello, MESSAGE_MAX, Message, SEND_BUFFER, socket_path};
use adverb_os::wake::EventFd;
use adverb_switch::{Counter, PortId, Switch};
use adverb_wire::{Gid, Instant};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections at most, those that ask included.
const PEERS_MAX: usize = 1024;
/// Of these, such as have not said the token yet.
const STRANGERS_MAX: usize = 64;
/// Messages that are taken from one process before the others have their turn.
const TURN: usize = 16;
/// A slot's number in a queue pair's number that is every process's: of the well-known queue pairs, and of
/// multicast.
pub(crate) const WELL_KNOWN: u8 = 0;
pub(crate) const MULTICAST: u8 = 0xff;

/// What is behind a port.
pub(crate) enum Behind {
    Members(Box<Members>),
    Cable(Box<Cable>),
}

/// A port, as this process keeps it.
pub(crate) struct Seat {
    pub address: Gid,
    pub behind: Behind,
    pub line: Line,
    /// Frames for a queue pair whose process is not there.
    pub nobody: u64,
    /// Frames for a process that does not read what waits for it.
    pub full: u64,
    /// Packets of other protocols, for an address that is not behind a cable.
    pub strange: u64,
}

/// What is waited for.
#[derive(Clone, Copy)]
enum Waiting {
    Peer(usize),
    Cable(PortId),
    Gate,
}

/// Ends a switch from another thread.
#[derive(Clone)]
pub struct Stopper {
    bell: Arc<EventFd>,
    stop: Arc<AtomicBool>,
}

impl Stopper {
    /// Has [`Process::run`] return.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// A switch with its sockets.
pub struct Process {
    pub(crate) config: Config,
    pub(crate) switch: Recorded,
    pub(crate) seats: Vec<Option<Seat>>,
    clock: Clock,
    socket: SocketFile,
    path: PathBuf,
    /// Where processes of other hosts come in.
    pub(crate) gate: Option<Gate>,
    pub(crate) peers: Vec<Option<Peer>>,
    /// Hellos of this round. They come after the frames of those who may have ended.
    greetings: Vec<(usize, Hello)>,
    stopper: Stopper,
    set: WaitSet,
    /// What the wait set's descriptors are, from the third on.
    waiting: Vec<Waiting>,
    inbox: Vec<u8>,
    spare: Spare,
    pub(crate) tally: Tally,
    /// Messages that nobody sends who knows how.
    pub(crate) malformed: u64,
    pub(crate) seed: u64,
    shifted: ShiftedFile,
    /// Queue pairs whose numbers were shifted when the file was written last.
    shifts: u64,
    /// Why the switch cannot go on.
    broken: Option<io::Error>,
}

impl Process {
    /// Listens in a folder of this user's, under the name that the file says.
    pub fn open(config: Config, folder: &Path) -> Result<Process, OpenError> {
        Process::open_recorded(config, folder, None)
    }

    /// The same, and records in a file of at most so many bytes all that the switch is given and gives.
    pub fn open_recorded(
        config: Config,
        folder: &Path,
        recording: Option<(&Path, u64)>,
    ) -> Result<Process, OpenError> {
        private_folder(folder).map_err(OpenError::Folder)?;
        let path = socket_path(folder, Path::new(&config.name));
        let listen = SocketFile::bind(&path, 0o600);
        let socket = listen.map_err(|source| OpenError::Socket { path: path.clone(), source })?;
        let gate = config.gate().map(|(address, token)| {
            let failed = |e| OpenError::Config(format!("listen = \"{address}\": {e}"));
            Gate::open(address, token).map_err(failed)
        });
        let shifted = ShiftedFile::open(path.with_extension("shifted"))
            .map_err(|source| OpenError::Shifted(source.to_string()))?;
        let tape = recording.map(|(path, bytes)| {
            Tape::open(path, bytes).map_err(|source| OpenError::Recording { path: path.to_owned(), source })
        });
        let tape = tape.transpose()?;
        let mut clock = Clock::start();
        let start = clock.now();
        let switch = begin(&config, start, &shifted)?;
        let switch = Recorded::new(start, switch, config.text(), tape);
        let bell = Arc::new(EventFd::new().map_err(OpenError::System)?);
        let mut cables = Vec::new();
        for (kind, hosts) in config.cables() {
            cables.push((Cable::open(kind, &hosts).map_err(OpenError::Config)?, hosts));
        }
        let mut process = Process {
            config,
            switch,
            seats: Vec::new(),
            clock,
            socket,
            path,
            gate: gate.transpose()?,
            peers: Vec::new(),
            greetings: Vec::new(),
            stopper: Stopper { bell, stop: Arc::default() },
            set: WaitSet::default(),
            waiting: Vec::new(),
            inbox: vec![0; MESSAGE_MAX],
            spare: Spare::default(),
            tally: Tally::default(),
            malformed: 0,
            seed: sys::random_seed(),
            shifted,
            shifts: 0,
            broken: None,
        };
        for (cable, hosts) in cables {
            let Some(first) = hosts.first().copied() else { continue };
            let opened = process.line_of(Instant::ZERO, first).and_then(|line| {
                process.open_seat(Instant::ZERO, first, Behind::Cable(Box::new(cable)), &hosts, line)
            });
            opened.map_err(OpenError::Config)?;
        }
        Ok(process)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where processes of other hosts come in, if they may.
    pub fn gate(&self) -> Option<SocketAddr> {
        self.gate.as_ref()?.address().ok()
    }

    /// What its programs need of hardware, and whatever else the switch can say.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// To end it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Moves frames until it is stopped.
    ///
    /// # Errors
    /// It cannot keep what the next switch in its place has to know, and so must not go on.
    pub fn run(&mut self) -> io::Result<()> {
        while !self.stopper.stop.load(Ordering::Acquire) && self.broken.is_none() {
            self.round();
        }
        let now = self.clock.now();
        self.seats.iter_mut().flatten().for_each(|seat| seat.line.flush(now, true));
        self.switch.end(End::Stopped);
        self.broken.take().map_or(Ok(()), Err)
    }

    fn round(&mut self) {
        self.wait();
        let now = self.clock.now();
        if self.set.is_ready(1) {
            self.accept(now);
        }
        for i in 0..self.waiting.len() {
            if self.set.is_ready(2 + i) {
                match self.waiting[i] {
                    Waiting::Peer(at) => self.take(now, at),
                    Waiting::Cable(port) => self.take_from_cable(now, port),
                    Waiting::Gate => self.admit_strangers(now),
                }
            }
        }
        for (at, hello) in std::mem::take(&mut self.greetings) {
            self.greet(now, at, &hello);
        }
        for at in 0..self.seats.len() {
            self.release(now, at, Way::Rx);
        }
        if self.switch.next_deadline().is_some_and(|at| at <= now) {
            self.switch.on_timer(now);
        }
        self.drain(now);
        for at in 0..self.seats.len() {
            self.release(now, at, Way::Tx);
        }
        self.flush(now);
        self.dismiss(now);
        self.switch.flush(now);
    }

    /// Waits until something can be done.
    fn wait(&mut self) {
        self.set.clear();
        self.waiting.clear();
        self.set.add(self.stopper.bell.fd(), false);
        self.set.add(self.socket.listener.fd(), false);
        for (at, peer) in self.peers.iter().enumerate() {
            if let Some(peer) = peer {
                self.set.add(peer.link.fd(), peer.has_waiting());
                self.waiting.push(Waiting::Peer(at));
            }
        }
        for (at, cable) in
            self.seats.iter().enumerate().filter_map(|(at, seat)| Some((at, seat.as_ref()?.cable()?)))
        {
            if let Some(fd) = cable.fd() {
                self.set.add(fd, cable.depth() > 0);
                self.waiting.push(Waiting::Cable(PortId(at as u16)));
            }
        }
        if let Some(gate) = &self.gate {
            self.set.add(gate.fd(), false);
            self.waiting.push(Waiting::Gate);
        }
        let lines = self.seats.iter().flatten().filter_map(|seat| seat.line.next_deadline()).min();
        let cables = self.seats.iter().flatten().filter_map(|seat| seat.cable()?.next_deadline()).min();
        let silent = self.peers.iter().flatten().filter_map(Peer::silence_ends).min();
        let due = [lines, cables, silent, self.switch.next_deadline()].into_iter().flatten().min();
        let now = self.clock.now();
        self.set.wait(due.map(|at| std::time::Duration::from_nanos(at.since(now).as_ns() + 1)));
    }

    fn accept(&mut self, now: Instant) {
        while let Ok(channel) = self.socket.listener.accept() {
            // Who is not of this user came through a folder that is open to others.
            if channel.is_of_own_user() {
                self.seat_peer(now, Link::Local(channel));
            }
        }
    }

    /// Lets in who has come from another host, to say the token. Of many who do not, the first has to go.
    fn admit_strangers(&mut self, now: Instant) {
        while let Some(Ok(link)) = self.gate.as_ref().map(Gate::accept) {
            let peers = self.peers.iter().enumerate();
            let strangers = peers.filter_map(|(at, peer)| {
                let peer = peer.as_ref().filter(|peer| peer.is_stranger())?;
                Some((peer.since, at))
            });
            let strangers: Vec<_> = strangers.collect();
            if let Some((_, first)) = strangers.iter().min().filter(|_| strangers.len() >= STRANGERS_MAX) {
                self.peers[*first] = None;
            }
            self.seat_peer(now, link);
        }
    }

    fn seat_peer(&mut self, now: Instant, link: Link) {
        let free = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        if free == PEERS_MAX {
            return;
        }
        link.ask_for_send_buffer(SEND_BUFFER);
        if free == self.peers.len() {
            self.peers.push(None);
        }
        self.peers[free] = Some(Peer::new(link, now));
    }

    /// Takes what a connection has sent.
    pub(crate) fn take(&mut self, now: Instant, at: usize) {
        let mut inbox = std::mem::take(&mut self.inbox);
        for _ in 0..TURN {
            let Some(peer) = self.peers[at].as_mut().filter(|peer| !peer.is_gone) else { break };
            let len = match peer.link.receive(&mut inbox) {
                Ok(Some(len)) => len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    self.malformed += 1;
                    peer.is_gone |= peer.is_new();
                    continue;
                }
                Ok(None) | Err(_) => {
                    peer.is_gone = true;
                    break;
                }
            };
            match (Message::parse(&inbox[..len]), peer.role) {
                (Some(Message::Frames(frames)), Role::Member(port, _)) => {
                    self.take_frames(now, port, frames);
                    self.drain(now);
                }
                (Some(Message::Hello(hello)), Role::Unknown) => {
                    self.greetings.push((at, hello));
                    // What it says next waits for its port.
                    break;
                }
                (Some(Message::Ask(text)), Role::Unknown) if peer.link.is_local() => {
                    self.answer(now, at, text);
                }
                (Some(Message::Token(said)), Role::Stranger) => {
                    let gate = self.gate.as_mut();
                    if gate.as_ref().is_some_and(|gate| gate.is_token(said)) {
                        peer.role = Role::Unknown;
                        peer.link.allow(MESSAGE_MAX);
                        continue;
                    }
                    gate.into_iter().for_each(|gate| gate.refused += 1);
                    peer.role = Role::Leaving;
                    peer.packer.add_message(&Message::Refused("this switch has another token"));
                }
                // What it has said since is not read, and its end is awaited.
                (_, Role::Leaving) => {}
                _ => {
                    self.malformed += 1;
                    peer.is_gone |= peer.is_new();
                }
            }
        }
        self.inbox = inbox;
    }

    /// Takes what has come on a cable. What is not RDMA's goes to the other cables as it is.
    fn take_from_cable(&mut self, now: Instant, port: PortId) {
        let Process { seats, switch, inbox, spare, .. } = self;
        let Some(cable) = seat_of(seats, port).and_then(Seat::cable_mut) else { return };
        let mut packets = Vec::new();
        cable.receive(inbox, |edge, frame| {
            let is_elsewhere = |address| switch.port_of(address).is_some_and(|there| there != port);
            packets.extend(edge.take(frame, is_elsewhere).map(|packet| spare.copy(packet)));
        });
        for packet in packets {
            match is_roce(&packet) {
                true => self.take_frame(now, port, packet),
                false => self.pass_by(now, port, &packet),
            }
        }
        self.drain(now);
    }

    /// Gives a packet of another protocol to the cable of its destination.
    fn pass_by(&mut self, now: Instant, from: PortId, packet: &[u8]) {
        let to = outer_flow(packet).and_then(|flow| self.switch.port_of(flow.dst)).filter(|to| *to != from);
        match to.and_then(|to| seat_of(&mut self.seats, to)).and_then(Seat::cable_mut) {
            Some(cable) => cable.put(now, packet),
            None => seat_of(&mut self.seats, from).into_iter().for_each(|seat| seat.strange += 1),
        }
    }

    /// Takes frames of one message. Where nobody looks at them they are copied once, from message to message.
    fn take_frames(&mut self, now: Instant, port: PortId, frames: Frames<'_>) {
        let is_plain = self.seats.iter().flatten().all(|seat| seat.line.is_plain());
        for frame in frames {
            if is_plain && let Some((to, len)) = self.switch.through(port, frame) {
                self.hand_over(now, to, &frame[..len]);
                continue;
            }
            let bytes = self.spare.copy(frame);
            self.take_frame(now, port, bytes);
        }
    }

    fn take_frame(&mut self, now: Instant, port: PortId, bytes: Vec<u8>) {
        let Some(seat) = seat_of(&mut self.seats, port) else { return };
        if let Some(bytes) = seat.line.admit(now, Way::Rx, bytes) {
            self.switch.on_frame(now, port, bytes);
        }
    }

    /// Lets go what a port's faults have held back long enough.
    fn release(&mut self, now: Instant, at: usize, way: Way) {
        self.let_go(now, now, at, way);
    }

    /// Lets go what a port's faults hold back until some time.
    pub(crate) fn let_go(&mut self, now: Instant, until: Instant, at: usize, way: Way) {
        let port = PortId(at as u16);
        while let Some(bytes) = seat_of(&mut self.seats, port).and_then(|seat| seat.line.next(until, way)) {
            match way {
                Way::Rx => self.switch.on_frame(now, port, bytes),
                Way::Tx => self.hand_over(now, port, &bytes),
            }
        }
    }

    /// Gives what leaves the switch to the ports' lines.
    pub(crate) fn drain(&mut self, now: Instant) {
        if self.switch.counters().get(Counter::Shifted) != self.shifts {
            self.keep_shifted();
        }
        if self.broken.is_some() {
            return;
        }
        while let Some((port, bytes)) = self.switch.next_frame() {
            let Some(seat) = seat_of(&mut self.seats, port) else { continue };
            if let Some(bytes) = seat.line.admit(now, Way::Tx, bytes) {
                self.hand_over(now, port, &bytes);
                self.spare.give(bytes);
            }
        }
    }

    /// Writes down whose numbers are shifted, before a packet leaves by which that would matter.
    pub(crate) fn keep_shifted(&mut self) {
        let all = shifted_of(&self.switch);
        let Process { shifted, seats, peers, switch, .. } = self;
        let owner = |name: &Name| {
            let seat = seats.get(usize::from(switch.port_of(name.server)?.0))?.as_ref()?;
            let Behind::Members(members) = &seat.behind else { return None };
            let peer = peers[members.of_slot((name.qpn.get() >> 16) as u8)?].as_ref()?;
            Owner::of(peer.link.pid()?)
        };
        if let Err(e) = shifted.keep(&all, owner) {
            let what = format!("the file of queue pairs whose numbers are shifted cannot be written: {e}");
            self.broken = Some(io::Error::new(e.kind(), what));
        }
        self.shifts = self.switch.counters().get(Counter::Shifted);
    }

    /// Queues a frame for the cable, or for the process whose queue pair it names.
    pub(crate) fn hand_over(&mut self, now: Instant, port: PortId, bytes: &[u8]) {
        let Some(seat) = seat_of(&mut self.seats, port) else { return };
        let members = match &mut seat.behind {
            Behind::Cable(cable) => {
                cable.put(now, bytes);
                return self.switch.set_depth(port, cable.depth() as u32);
            }
            Behind::Members(members) => members,
        };
        // The upper byte of the destination queue pair is the sixth of the BTH.
        let slot = bytes.get(bth_offset(bytes) + 5).copied().unwrap_or(WELL_KNOWN);
        let mut depth = 0;
        let mut give = |at: usize, full: &mut u64| {
            if let Some(peer) = &mut self.peers[at] {
                *full += u64::from(!peer.add(bytes, &mut self.tally));
                depth = depth.max(peer.packer.bytes());
            }
        };
        match slot {
            WELL_KNOWN | MULTICAST => {
                members.all().collect::<Vec<_>>().into_iter().for_each(|at| give(at, &mut seat.full));
            }
            _ => match members.of_slot(slot) {
                Some(at) => give(at, &mut seat.full),
                None => seat.nobody += 1,
            },
        }
        self.switch.set_depth(port, depth as u32);
    }

    fn flush(&mut self, now: Instant) {
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.has_waiting()) {
            peer.flush(&mut self.tally);
            if let Role::Member(port, _) = peer.role {
                self.switch.set_depth(port, peer.packer.bytes() as u32);
            }
        }
        for (at, seat) in self.seats.iter_mut().enumerate() {
            let Some(seat) = seat else { continue };
            seat.line.flush(now, false);
            if let Behind::Cable(cable) = &mut seat.behind {
                cable.tick(now);
                self.switch.set_depth(PortId(at as u16), cable.depth() as u32);
            }
        }
    }

    /// Forgets connections that have ended, and those that say nothing.
    fn dismiss(&mut self, now: Instant) {
        for at in 0..self.peers.len() {
            let Some(peer) = &self.peers[at] else { continue };
            if peer.is_gone || peer.silence_ends().is_some_and(|at| at <= now) {
                self.forget(now, at);
            }
        }
    }

    pub(crate) fn forget(&mut self, now: Instant, at: usize) {
        let Some(Peer { role: Role::Member(port, slot), .. }) = self.peers[at].take() else { return };
        let is_last = seat_of(&mut self.seats, port).is_some_and(|seat| match &mut seat.behind {
            Behind::Members(members) => members.remove(slot),
            Behind::Cable(_) => false,
        });
        if is_last {
            self.close_seat(now, port);
        }
    }

    /// Takes a port away.
    pub(crate) fn close_seat(&mut self, now: Instant, port: PortId) {
        if let Some(mut seat) = self.seats[usize::from(port.0)].take() {
            seat.line.flush(now, true);
        }
        // The port was there as long as the seat.
        let _ = self.switch.remove_port(now, port);
        self.keep_shifted();
        self.drain(now);
    }

    fn answer(&mut self, now: Instant, at: usize, text: &[u8]) {
        let answer = control::answer(self, now, text);
        let Some(peer) = &mut self.peers[at] else { return };
        peer.role = Role::Leaving;
        // At least one, so that an empty answer is one too.
        for part in answer.as_bytes().chunks(MESSAGE_MAX - 1) {
            peer.packer.add_message(&Message::Answer(part));
        }
    }
}

/// The file's switch, told of the queue pairs whose numbers one before it had shifted.
fn begin(config: &Config, start: Instant, shifted: &ShiftedFile) -> Result<Switch, OpenError> {
    let mut switch = config.switch(start).map_err(OpenError::Config)?;
    let known: Vec<Name> = shifted.kept().copied().collect();
    if let Some(name) = known.iter().find(|name| !switch.decides_for(name.server)) {
        return Err(OpenError::Shifted(format!(
            "programs still run whose atomics to {} went through a switch of this name with mode \
             \"multiplex\": their connections take a switch with cas_to_write for that server; end them, or \
             start that one",
            name.server.ip()
        )));
    }
    tell(&mut switch, &known);
    Ok(switch)
}

impl Seat {
    pub fn cable(&self) -> Option<&Cable> {
        match &self.behind {
            Behind::Cable(cable) => Some(cable),
            Behind::Members(_) => None,
        }
    }

    fn cable_mut(&mut self) -> Option<&mut Cable> {
        match &mut self.behind {
            Behind::Cable(cable) => Some(cable),
            Behind::Members(_) => None,
        }
    }
}

pub(crate) fn seat_of(seats: &mut [Option<Seat>], port: PortId) -> Option<&mut Seat> {
    seats.get_mut(usize::from(port.0)).and_then(Option::as_mut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_os::via::{Place, Via};
    use adverb_wire::{Bth, Flow, Opcode, Operation, Packet, Service, WireExtra};
    use std::net::IpAddr;

    fn gid(last: u8) -> Gid {
        Gid::from(IpAddr::from([10, 9, 0, last]))
    }

    /// Takes an address's first process in. Its bell ends the round behind that, and each one from then on.
    fn join(process: &mut Process, last: u8) -> Via {
        let hello = Hello { slot: 1, address: gid(last), host: [last; 16] };
        let (place, stopper) = (Place::Local(process.path().to_owned()), process.stopper());
        let joining = std::thread::spawn(move || {
            let joined = Via::open(place, hello);
            stopper.stop();
            joined
        });
        while !joining.is_finished() {
            process.round();
        }
        joining.join().unwrap().unwrap()
    }

    fn say(via: &mut Via, (from, to): (u8, u8), messages: usize) {
        let flow = Flow { src: gid(from), dst: gid(to), hop_limit: 64, ..Flow::default() };
        let bth = Bth { opcode: Opcode::new(Service::Rc, Operation::SendOnly), ..Bth::default() };
        for _ in 0..messages {
            assert!(via.stage_packet(Instant::ZERO, &Packet { flow, bth, ..Packet::default() }, |_| ()));
            assert!(via.flush(&mut Tally::default()), "there is room for it at the switch");
        }
    }

    /// Who has sent more than a turn's messages waits behind those who have sent one.
    #[test]
    fn a_row_of_messages_is_taken_in_turns() {
        let folder = std::env::temp_dir().join(format!("adverb-switchd-{}-turns", std::process::id()));
        let mut process = Process::open(Config::parse("").unwrap(), &folder).unwrap();
        let (mut noisy, mut quiet) = (join(&mut process, 1), join(&mut process, 2));
        say(&mut noisy, (1, 2), 3 * TURN);
        say(&mut quiet, (2, 1), 1);
        for taken in [TURN + 1, 2 * TURN + 1, 3 * TURN + 1] {
            process.round();
            assert_eq!(process.switch().counters().get(Counter::RxFrames), taken as u64);
        }
        drop(process);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// What many frames are packed into does not wait for the end of the round, but the last of it.
    #[test]
    fn a_message_that_takes_no_more_leaves_at_once() {
        let folder = std::env::temp_dir().join(format!("adverb-switchd-{}-whole", std::process::id()));
        let mut process = Process::open(Config::parse("").unwrap(), &folder).unwrap();
        let via = join(&mut process, 1);
        let port = process.switch.port_of(gid(1)).unwrap();
        let flow = Flow { src: gid(2), dst: gid(1), hop_limit: 64, ..Flow::default() };
        let bth = Bth { opcode: Opcode::new(Service::Rc, Operation::SendOnly), ..Bth::default() };
        let packet = Packet { flow, bth, payload_len: 4096, ..Packet::default() };
        let mut frame = vec![0; packet.frame_len()];
        assert_eq!(packet.emit_frame(&WireExtra::default(), &[7; 4096], &mut frame), frame.len());
        let (frames, before) = (3 * MESSAGE_MAX / frame.len() + 1, process.tally.messages);
        for _ in 0..frames {
            process.hand_over(Instant::ZERO, port, &frame);
        }
        let waiting = process.peers.iter().flatten().map(|peer| peer.packer.messages()).sum::<usize>();
        assert_eq!((waiting, process.tally.messages - before), (1, 3));
        drop((process, via));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
