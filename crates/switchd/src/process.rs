//! The loop: waits for processes and times, takes frames, gives them to the switch, and sends what leaves.

use crate::config::Config;
use crate::control;
use crate::line::{Line, Way};
use crate::members::{Members, Peer, Role};
use adverb_os::batch::Tally;
use adverb_os::capture::Capture;
use adverb_os::clock::{Clock, realtime_ns};
use adverb_os::folders::{FolderError, private_folder};
use adverb_os::framing::bth_offset;
use adverb_os::socket_file::SocketFile;
use adverb_os::sys::{self, WaitSet};
use adverb_os::via::{Hello, MESSAGE_MAX, Message, SEND_BUFFER, socket_path};
use adverb_os::wake::EventFd;
use adverb_switch::{PortId, Switch};
use adverb_wire::{Gid, Instant};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections at most, those that ask included.
const PEERS_MAX: usize = 1024;
/// Messages that are taken from one process before the others have their turn.
const TURN: usize = 16;
/// Turns that a process has before another may have its slot: more than its socket holds.
const TURNS_MAX: usize = 8;
/// A slot's number in a queue pair's number that is every process's: of the well-known queue pairs, and of
/// multicast.
const WELL_KNOWN: u8 = 0;
const MULTICAST: u8 = 0xff;

/// Why a switch cannot run.
#[derive(Debug)]
pub enum OpenError {
    /// The folder of its socket cannot be used.
    Folder(FolderError),
    /// Nobody can listen there.
    Socket {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file's programs do not go together.
    Config(String),
    /// The system refused something else.
    System(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Folder(source) => write!(f, "{source}"),
            OpenError::Socket { path, source } => {
                write!(f, "{}: {source}; end the switch of this name, or give yours another", path.display())
            }
            OpenError::Config(what) => write!(f, "{what}"),
            OpenError::System(source) => write!(f, "the switch cannot start: {source}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// A port that processes have, as this process keeps it.
pub(crate) struct Seat {
    pub address: Gid,
    pub members: Members,
    pub line: Line,
    /// Frames for a queue pair whose process is not there.
    pub nobody: u64,
    /// Frames for a process that does not read what waits for it.
    pub full: u64,
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
    pub(crate) switch: Switch,
    pub(crate) seats: Vec<Option<Seat>>,
    clock: Clock,
    socket: SocketFile,
    path: PathBuf,
    peers: Vec<Option<Peer>>,
    /// Hellos of this round. They come after the frames of those who may have ended.
    greetings: Vec<(usize, Hello)>,
    stopper: Stopper,
    set: WaitSet,
    /// Which connections the wait set's descriptors are, from the third on.
    waiting: Vec<usize>,
    inbox: Vec<u8>,
    pub(crate) tally: Tally,
    /// Messages that nobody sends who knows how.
    pub(crate) malformed: u64,
    seed: u64,
}

impl Process {
    /// Listens in a folder of this user's, under the name that the file says.
    pub fn open(config: Config, folder: &Path) -> Result<Process, OpenError> {
        private_folder(folder).map_err(OpenError::Folder)?;
        let path = socket_path(folder, Path::new(&config.name));
        let listen = SocketFile::bind(&path, 0o600);
        let socket = listen.map_err(|source| OpenError::Socket { path: path.clone(), source })?;
        let mut clock = Clock::start();
        let switch = config.switch(clock.now()).map_err(OpenError::Config)?;
        let bell = Arc::new(EventFd::new().map_err(OpenError::System)?);
        Ok(Process {
            config,
            switch,
            seats: Vec::new(),
            clock,
            socket,
            path,
            peers: Vec::new(),
            greetings: Vec::new(),
            stopper: Stopper { bell, stop: Arc::default() },
            set: WaitSet::default(),
            waiting: Vec::new(),
            inbox: vec![0; MESSAGE_MAX],
            tally: Tally::default(),
            malformed: 0,
            seed: sys::random_seed(),
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
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
    pub fn run(&mut self) {
        while !self.stopper.stop.load(Ordering::Acquire) {
            self.round();
        }
        let now = self.clock.now();
        self.seats.iter_mut().flatten().for_each(|seat| seat.line.flush(now, true));
    }

    fn round(&mut self) {
        self.wait();
        let now = self.clock.now();
        if self.set.is_ready(1) {
            self.accept(now);
        }
        for i in 0..self.waiting.len() {
            if self.set.is_ready(2 + i) {
                self.take(now, self.waiting[i]);
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
    }

    /// Waits until something can be done.
    fn wait(&mut self) {
        self.set.clear();
        self.waiting.clear();
        self.set.add(self.stopper.bell.fd(), false);
        self.set.add(self.socket.listener.fd(), false);
        for (at, peer) in self.peers.iter().enumerate() {
            if let Some(peer) = peer {
                self.set.add(peer.channel.fd(), !peer.packer.is_empty());
                self.waiting.push(at);
            }
        }
        let lines = self.seats.iter().flatten().filter_map(|seat| seat.line.next_deadline()).min();
        let silent = self.peers.iter().flatten().filter_map(Peer::silence_ends).min();
        let due = [lines, silent, self.switch.next_deadline()].into_iter().flatten().min();
        let now = self.clock.now();
        self.set.wait(due.map(|at| std::time::Duration::from_nanos(at.since(now).as_ns() + 1)));
    }

    fn accept(&mut self, now: Instant) {
        while let Ok(channel) = self.socket.listener.accept() {
            let free = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
            // Who is not of this user came through a folder that is open to others.
            if free == PEERS_MAX || !channel.is_of_own_user() {
                continue;
            }
            channel.ask_for_send_buffer(SEND_BUFFER);
            if free == self.peers.len() {
                self.peers.push(None);
            }
            self.peers[free] = Some(Peer::new(channel, now));
        }
    }

    /// Takes what a connection has sent.
    fn take(&mut self, now: Instant, at: usize) {
        let mut inbox = std::mem::take(&mut self.inbox);
        for _ in 0..TURN {
            let Some(peer) = self.peers[at].as_mut().filter(|peer| !peer.is_gone) else { break };
            let len = match peer.channel.receive(&mut inbox) {
                Ok(Some((len, _))) => len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    self.malformed += 1;
                    peer.is_gone |= peer.role == Role::Unknown;
                    continue;
                }
                Ok(None) | Err(_) => {
                    peer.is_gone = true;
                    break;
                }
            };
            match (Message::parse(&inbox[..len]), peer.role) {
                (Some(Message::Frames(frames)), Role::Member(port, _)) => {
                    for frame in frames {
                        self.take_frame(now, port, frame.to_vec());
                    }
                    self.drain(now);
                }
                (Some(Message::Hello(hello)), Role::Unknown) => {
                    self.greetings.push((at, hello));
                    // What it says next waits for its port.
                    break;
                }
                (Some(Message::Ask(text)), Role::Unknown) => self.answer(now, at, text),
                _ => {
                    self.malformed += 1;
                    peer.is_gone |= peer.role == Role::Unknown;
                }
            }
        }
        self.inbox = inbox;
    }

    fn take_frame(&mut self, now: Instant, port: PortId, bytes: Vec<u8>) {
        let Some(seat) = seat_of(&mut self.seats, port) else { return };
        if let Some(bytes) = seat.line.admit(now, Way::Rx, bytes) {
            self.switch.on_frame(now, port, bytes);
        }
    }

    /// Lets go what a port's faults have held back long enough.
    fn release(&mut self, now: Instant, at: usize, way: Way) {
        let port = PortId(at as u16);
        while let Some(bytes) = seat_of(&mut self.seats, port).and_then(|seat| seat.line.next(now, way)) {
            match way {
                Way::Rx => self.switch.on_frame(now, port, bytes),
                Way::Tx => self.hand_over(port, &bytes),
            }
        }
    }

    /// Gives what leaves the switch to the ports' lines.
    fn drain(&mut self, now: Instant) {
        while let Some((port, bytes)) = self.switch.next_frame() {
            let Some(seat) = seat_of(&mut self.seats, port) else { continue };
            if let Some(bytes) = seat.line.admit(now, Way::Tx, bytes) {
                self.hand_over(port, &bytes);
            }
        }
    }

    /// Queues a frame for the process whose queue pair it names.
    fn hand_over(&mut self, port: PortId, bytes: &[u8]) {
        let Some(seat) = seat_of(&mut self.seats, port) else { return };
        // The upper byte of the destination queue pair is the sixth of the BTH.
        let slot = bytes.get(bth_offset(bytes) + 5).copied().unwrap_or(WELL_KNOWN);
        let mut depth = 0;
        let mut give = |at: usize, full: &mut u64| {
            if let Some(peer) = &mut self.peers[at] {
                *full += u64::from(!peer.add(bytes));
                depth = depth.max(peer.packer.bytes());
            }
        };
        match slot {
            WELL_KNOWN | MULTICAST => {
                seat.members.all().collect::<Vec<_>>().into_iter().for_each(|at| give(at, &mut seat.full));
            }
            _ => match seat.members.of_slot(slot) {
                Some(at) => give(at, &mut seat.full),
                None => seat.nobody += 1,
            },
        }
        self.switch.set_depth(port, depth as u32);
    }

    fn flush(&mut self, now: Instant) {
        for peer in self.peers.iter_mut().flatten().filter(|peer| !peer.packer.is_empty()) {
            peer.flush(&mut self.tally);
            if let Role::Member(port, _) = peer.role {
                self.switch.set_depth(port, peer.packer.bytes() as u32);
            }
        }
        self.seats.iter_mut().flatten().for_each(|seat| seat.line.flush(now, false));
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

    fn forget(&mut self, now: Instant, at: usize) {
        let Some(Peer { role: Role::Member(port, slot), .. }) = self.peers[at].take() else { return };
        let is_last = seat_of(&mut self.seats, port).is_some_and(|seat| seat.members.remove(slot));
        if is_last {
            if let Some(mut seat) = self.seats[usize::from(port.0)].take() {
                seat.line.flush(now, true);
            }
            // The port was there as long as the seat.
            let _ = self.switch.remove_port(now, port);
            self.drain(now);
        }
    }

    /// Gives a process its port, or says why not.
    fn greet(&mut self, now: Instant, at: usize, hello: &Hello) {
        let claimed = self.claim(now, at, hello);
        let decides = self.switch.decides_for(hello.address);
        let Some(peer) = &mut self.peers[at] else { return };
        match claimed {
            Ok(port) => {
                peer.role = Role::Member(port, hello.slot);
                peer.packer.add_message(&Message::Welcome { port: port.0, decides });
            }
            Err(why) => {
                peer.role = Role::Leaving;
                peer.packer.add_message(&Message::Refused(&why));
            }
        }
    }

    fn claim(&mut self, now: Instant, at: usize, hello: &Hello) -> Result<PortId, String> {
        let address = hello.address.ip();
        if matches!(hello.slot, WELL_KNOWN | MULTICAST) {
            return Err(format!("{} is no process's slot", hello.slot));
        }
        self.notice_the_gone(now);
        let seats = self.seats.iter().enumerate();
        let found = seats.filter_map(|(n, seat)| Some((n, seat.as_ref()?)));
        let mut found = found.filter(|(_, seat)| seat.address == hello.address);
        let port = match found.next().map(|(n, _)| PortId(n as u16)) {
            Some(port) => port,
            None => self.open_seat(now, hello)?,
        };
        let Some(seat) = seat_of(&mut self.seats, port) else { return Err("no port".to_owned()) };
        if !seat.members.are_of(hello) {
            return Err(format!(
                "port {} has the address {address} for processes of another host or folder; choose another \
                 address",
                port.0
            ));
        }
        if seat.members.of_slot(hello.slot).is_some() {
            return Err(format!("a process with slot {} has the address {address} already", hello.slot));
        }
        seat.members.add(hello.slot, at);
        Ok(port)
    }

    /// Takes what processes have left that ended a moment ago, and forgets them: another may want their slot.
    fn notice_the_gone(&mut self, now: Instant) {
        for at in 0..self.peers.len() {
            for _ in 0..TURNS_MAX {
                match &self.peers[at] {
                    Some(peer) if matches!(peer.role, Role::Member(..)) && !peer.is_gone => {}
                    _ => break,
                }
                if !self.peers[at]
                    .as_ref()
                    .is_some_and(|p| sys::wait_readable(p.channel.fd(), Default::default()))
                {
                    break;
                }
                self.take(now, at);
            }
            if self.peers[at].as_ref().is_some_and(|peer| peer.is_gone) {
                self.forget(now, at);
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the edge")]
    fn open_seat(&mut self, now: Instant, hello: &Hello) -> Result<PortId, String> {
        let (faults, pcap) = self.config.line_of(hello.address);
        let epoch = realtime_ns().saturating_sub(now.since(Instant::ZERO).as_ns());
        let open = |path: &Path| {
            Capture::open(path, epoch).map_err(|e| format!("pcap {} of the switch: {e}", path.display()))
        };
        let capture = pcap.map(open).transpose()?;
        let port = self.switch.add_port().map_err(|e| e.to_string())?;
        if let Err(e) = self.switch.claim(port, hello.address) {
            // It was added just now.
            let _ = self.switch.remove_port(now, port);
            return Err(e.to_string());
        }
        let line = Line::new(&faults, capture, self.seed.wrapping_add(u64::from(port.0)));
        let seat = Seat { address: hello.address, members: Members::new(hello), line, nobody: 0, full: 0 };
        let at = usize::from(port.0);
        if at >= self.seats.len() {
            self.seats.resize_with(at + 1, || None);
        }
        self.seats[at] = Some(seat);
        Ok(port)
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

fn seat_of(seats: &mut [Option<Seat>], port: PortId) -> Option<&mut Seat> {
    seats.get_mut(usize::from(port.0)).and_then(Option::as_mut)
}
