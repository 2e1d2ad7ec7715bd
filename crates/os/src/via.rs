//! The way to a port of a switch's process: messages over a [`Link`], each of which carries several frames.
//!
//! A process says who it is in a [`Hello`], and is welcomed or refused in words. After that, frames go both
//! ways. A frame begins at its IP header and has its ICRC, as on a wire without Ethernet. The same socket
//! takes questions for the switch (`Ask`), which its process answers and then hangs up.
//!
//! ```text
//! 1 Hello    version, slot, address (16 bytes), which host's table the slot is of (16 bytes)
//! 2 Welcome  the port's number (2 bytes), whether atomics to the address become WRITEs (1 byte)
//! 3 Refused  why, in words
//! 4 Frames   length (2 bytes), frame; length, frame; ...
//! 5 Ask      a question
//! 6 Answer   a part of the answer
//! 7 Token    what a process of another host knows, before its hello
//! 8 Thread   the switch's process and its thread that takes frames (4 bytes each), by their numbers there
//! ```
//! Numbers have their least significant byte first. A switch that ends and comes back is found again: until
//! then frames are lost, as on a cable that is pulled.

use crate::batch::Tally;
use crate::folders::is_of_this_user_alone;
use crate::framing::{Datagram, UDP_LEN, bth_offset, outer_flow};
use crate::link::{Link, Stream};
use crate::roce::Received;
use crate::say;
use crate::unix::Channel;
use adverb_wire::{
    Bth, Duration, Flow, Gid, Instant, Opcode, Operation, Packet, ROCE_UDP_PORT, Service, seal,
};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 60 << 10;
/// Bytes of a frame at most: the largest path MTU with all its headers.
pub const FRAME_MAX: usize = 4096 + 320;
/// What either side asks the kernel to keep of messages that the other has not read.
pub const SEND_BUFFER: usize = 1 << 20;
/// Bytes that the switch keeps for a process that does not read.
pub const QUEUE_MAX: usize = 1 << 20;

/// The version of the messages.
const VERSION: u8 = 1;
const HELLO_LEN: usize = 35;
/// Bytes that wait in a process for the kernel at most.
const STAGED_MAX: usize = 256 << 10;
/// Messages whose memory is kept to be used again: one process stages no more at once.
const SPARE_MAX: usize = STAGED_MAX.div_ceil(MESSAGE_MAX);
/// Messages that one call takes at most.
const MESSAGES_MAX: usize = 16;
/// How long a switch has to answer the first hello.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
/// How often a switch that is gone is looked for, and one that refuses is asked again.
const LOOK: Duration = Duration::from_ms(10);
const ASK_AGAIN: Duration = Duration::from_ms(1000);
/// The port counts as in use, and is asked at every poll, for this long after its last frame.
const IN_USE: Duration = Duration::from_ms(100);

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const FRAMES: u8 = 4;
const ASK: u8 = 5;
const ANSWER: u8 = 6;
const TOKEN: u8 = 7;
const THREAD: u8 = 8;

/// Bytes of a token.
const TOKEN_LENS: std::ops::RangeInclusive<usize> = 16..=128;
/// Bytes of a message at most from one that has not said the token yet.
pub const STRANGER_MAX: usize = 1 + *TOKEN_LENS.end();

/// Who a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its number among the processes of its address: the upper byte of its queue pairs' numbers.
    pub slot: u8,
    /// The address that it claims.
    pub address: Gid,
    /// Which table the number is of: processes that share an address share the table.
    pub host: [u8; 16],
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A process's first.
    Hello(Hello),
    /// The process has this port.
    Welcome {
        /// Its number.
        port: u16,
        /// The switch decides atomics to this address, and sends them on as WRITEs.
        decides: bool,
    },
    /// The process has no port.
    Refused(&'a str),
    /// Frames in a row.
    Frames(Frames<'a>),
    /// A question.
    Ask(&'a [u8]),
    /// A part of the answer.
    Answer(&'a [u8]),
    /// What shows that a process of another host may come.
    Token(&'a [u8]),
    /// Who takes frames. It follows a welcome: an older NIC counts it as a message that nobody sends.
    Thread {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
}

impl<'a> Message<'a> {
    /// Reads a message. `None` for what nobody sends who speaks this version.
    pub fn parse(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            HELLO => {
                let rest: &[u8; HELLO_LEN - 1] = rest.try_into().ok()?;
                let [address, host] = [2, 18].map(|at| rest[at..at + 16].try_into().ok());
                let hello = Hello { slot: rest[1], address: Gid(address?), host: host? };
                (rest[0] == VERSION).then_some(Message::Hello(hello))
            }
            WELCOME => {
                let Ok([low, high, decides @ (0 | 1)]) = <[u8; 3]>::try_from(rest) else { return None };
                Some(Message::Welcome { port: u16::from_le_bytes([low, high]), decides: decides == 1 })
            }
            REFUSED => std::str::from_utf8(rest).ok().map(Message::Refused),
            FRAMES => Some(Message::Frames(Frames(rest))),
            ASK => Some(Message::Ask(rest)),
            ANSWER => Some(Message::Answer(rest)),
            TOKEN => Some(Message::Token(rest)),
            THREAD => {
                let (pid, tid) = <&[u8; 8]>::try_from(rest).ok()?.split_at(4);
                let [pid, tid] = [pid, tid].map(|number| number.try_into().ok().map(u32::from_le_bytes));
                Some(Message::Thread { pid: pid?, tid: tid? })
            }
            _ => None,
        }
    }

    /// The bytes of a message; those of frames are made by [`Packer`].
    pub fn emit(&self) -> Vec<u8> {
        let with = |kind: u8, rest: &[u8]| [&[kind], rest].concat();
        match self {
            Message::Hello(hello) => {
                [&[HELLO, VERSION, hello.slot][..], &hello.address.0, &hello.host].concat()
            }
            Message::Welcome { port, decides } => {
                let [low, high] = port.to_le_bytes();
                with(WELCOME, &[low, high, u8::from(*decides)])
            }
            Message::Refused(why) => with(REFUSED, why.as_bytes()),
            Message::Frames(frames) => with(FRAMES, frames.0),
            Message::Ask(text) => with(ASK, text),
            Message::Answer(text) => with(ANSWER, text),
            Message::Token(token) => with(TOKEN, token),
            Message::Thread { pid, tid } => with(THREAD, &[pid.to_le_bytes(), tid.to_le_bytes()].concat()),
        }
    }
}

/// Frames in a row. What is left where a length is wrong is no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk::<2>()?;
        let found = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)));
        let (frame, rest) = found.unwrap_or_default();
        self.0 = rest;
        (!frame.is_empty() && frame.len() <= FRAME_MAX).then_some(frame)
    }
}

/// Frames on their way into messages, and those to the kernel.
#[derive(Debug, Default)]
pub struct Packer {
    /// In order; the last one may take more frames.
    messages: VecDeque<Outgoing>,
    bytes: usize,
    /// Memory of messages of frames that have left: all of [`MESSAGE_MAX`] bytes, none of which needs to be
    /// cleared or moved again.
    spare: Vec<Vec<u8>>,
}

/// A message on its way to the kernel.
#[derive(Debug)]
struct Outgoing {
    memory: Vec<u8>,
    len: usize,
    frames: u32,
}

impl Packer {
    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Room for a frame of `len` bytes, of at most [`FRAME_MAX`], at the end. What is there is of frames
    /// before it: all of it is to be written.
    pub fn add(&mut self, len: usize) -> &mut [u8] {
        assert!((1..=FRAME_MAX).contains(&len), "a frame that a message takes");
        let fits = |last: &Outgoing| last.frames > 0 && last.len + 2 + len <= MESSAGE_MAX;
        if !self.messages.back().is_some_and(fits) {
            let mut memory = self.spare.pop().unwrap_or_else(|| vec![0; MESSAGE_MAX]);
            memory[0] = FRAMES;
            self.messages.push_back(Outgoing { memory, len: 1, frames: 0 });
        }
        self.bytes += len;
        let at = self.messages.len() - 1;
        let last = &mut self.messages[at];
        last.frames += 1;
        let start = last.len + 2;
        last.memory[last.len..start].copy_from_slice(&(len as u16).to_le_bytes());
        last.len = start + len;
        &mut last.memory[start..start + len]
    }

    /// A message that is no frames.
    pub fn add_message(&mut self, message: &Message<'_>) {
        let memory = message.emit();
        self.messages.push_back(Outgoing { len: memory.len(), memory, frames: 0 });
    }

    /// How many messages wait, the one that may take more frames included.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Gives the kernel what waits. False while it takes no more.
    pub fn flush(&mut self, link: &mut Link, tally: &mut Tally) -> io::Result<bool> {
        Ok(self.send(link, tally, 0)? && link.flush()?)
    }

    /// The same of all messages but the last, which may take more frames.
    pub fn flush_whole(&mut self, link: &mut Link, tally: &mut Tally) -> io::Result<bool> {
        self.send(link, tally, 1)
    }

    /// Gives the kernel what waits but so many messages.
    fn send(&mut self, link: &mut Link, tally: &mut Tally, but: usize) -> io::Result<bool> {
        while let Some(first) = self.messages.front().filter(|_| self.messages.len() > but) {
            match link.send(&first.memory[..first.len]) {
                Ok(()) => {
                    let (bytes, frames) = (first.len - 1 - 2 * first.frames as usize, first.frames);
                    tally.messages += 1;
                    tally.frames += u64::from(frames);
                    let sent = self.messages.pop_front();
                    if frames > 0 {
                        tally.bytes += bytes as u64;
                        self.bytes -= bytes;
                        self.spare.extend(sent.map(|sent| sent.memory));
                        self.spare.truncate(SPARE_MAX);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Forgets everything; returns how many frames that were.
    pub fn clear(&mut self) -> u64 {
        self.bytes = 0;
        self.messages.drain(..).map(|message| u64::from(message.frames)).sum()
    }
}

/// Where a switch of a name listens.
pub fn socket_path(directory: &Path, name: &Path) -> PathBuf {
    if is_path(name) {
        return name.to_owned();
    }
    let mut file = name.as_os_str().to_owned();
    file.push(".switch");
    directory.join(file)
}

/// Whether what names a switch is its socket's path already: it has a slash.
pub fn is_path(name: &Path) -> bool {
    name.is_absolute() || name.components().count() > 1
}

/// What names a switch on another host: HOST:PORT.
pub fn is_remote(name: &Path) -> bool {
    let port = name.to_str().filter(|_| !is_path(name)).and_then(|name| name.rsplit_once(':'));
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// What a file has that only this user may read: the token of a switch that other hosts may come to.
pub fn read_token(path: &Path) -> io::Result<Vec<u8>> {
    let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let about = |e: io::Error| io::Error::new(e.kind(), format!("the token {}: {e}", path.display()));
    let mut file = std::fs::File::open(path).map_err(about)?;
    if !is_of_this_user_alone(&file.metadata()?) {
        return wrong("the token's file must be this user's, and nobody else's to read: chmod 600");
    }
    let mut bytes = Vec::new();
    file.by_ref().take(1 << 10).read_to_end(&mut bytes).map_err(about)?;
    let token = bytes.trim_ascii();
    match TOKEN_LENS.contains(&token.len()) {
        true => Ok(token.to_vec()),
        false => wrong("a token has 16 to 128 bytes; `openssl rand -hex 32` makes one"),
    }
}

/// Where a switch listens.
#[derive(Clone, Debug)]
pub enum Place {
    /// At this host.
    Local(PathBuf),
    /// At another, where the token is asked for.
    Remote(SocketAddr, Vec<u8>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Local(path) => write!(f, "{}", path.display()),
            Place::Remote(address, _) => write!(f, "{address}"),
        }
    }
}

/// A process's way to its port.
#[derive(Debug)]
pub struct Via {
    place: Place,
    hello: Hello,
    /// None while the switch is gone.
    link: Option<Link>,
    packer: Packer,
    inbox: Vec<u8>,
    last_used: Option<Instant>,
    /// When a switch that is gone is looked for again.
    look_at: Instant,
    /// A refusal has been said.
    said: bool,
    /// Atomics to this address may come as WRITEs.
    decides: bool,
    /// The switch's process and its thread that takes frames, as it has said.
    thread: Option<(u32, u32)>,
}

impl Via {
    /// Claims an address at the switch that listens there. The error says why that cannot be.
    pub fn open(place: Place, hello: Hello) -> io::Result<Via> {
        let mut via = Via {
            place,
            hello,
            link: None,
            packer: Packer::default(),
            inbox: vec![0; MESSAGE_MAX],
            last_used: None,
            look_at: Instant::ZERO,
            said: false,
            decides: false,
            thread: None,
        };
        via.connect()?;
        let Some(link) = &mut via.link else { return Err(io::ErrorKind::NotConnected.into()) };
        let answer = link.wait_and_receive(&mut via.inbox, PATIENCE).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => io::Error::new(e.kind(), "the switch does not answer"),
            _ => e,
        })?;
        let answer = answer.unwrap_or(0);
        match Message::parse(&via.inbox[..answer]) {
            Some(Message::Welcome { decides, .. }) => {
                via.decides = decides;
                Ok(via)
            }
            Some(Message::Refused(why)) => Err(io::Error::new(io::ErrorKind::AddrInUse, why)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "what listens there is no switch")),
        }
    }

    fn connect(&mut self) -> io::Result<()> {
        let hello = Message::Hello(self.hello).emit();
        let mut link = match &self.place {
            Place::Local(path) => {
                let channel = Channel::connect_at_once(path)?;
                if !channel.is_of_own_user() {
                    let what = "the switch is another user's";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
                }
                Link::Local(channel)
            }
            Place::Remote(address, token) => {
                let mut link = Link::Remote(Stream::connect(*address, MESSAGE_MAX)?);
                link.send(&Message::Token(token).emit())?;
                link
            }
        };
        link.ask_for_send_buffer(SEND_BUFFER);
        link.send(&hello)?;
        (self.link, self.thread) = (Some(link), None);
        Ok(())
    }

    /// Whether the switch said last that it decides atomics to this address.
    pub fn decides(&self) -> bool {
        self.decides
    }

    /// The descriptor to wait on; -1, which nothing ever comes from, while the switch is gone.
    pub fn fd(&self) -> RawFd {
        self.link.as_ref().map_or(-1, Link::fd)
    }

    /// The switch's process, if it is on this host, can be seen and is there, and its thread that takes
    /// frames: the first one, unless it has said another. What it says is not used where its numbers are of
    /// another PID namespace.
    pub fn process(&self) -> Option<(u32, u32)> {
        let pid = self.link.as_ref()?.process()?;
        let said = self.thread.filter(|(of, _)| *of == pid);
        Some((pid, said.map_or(pid, |(_, tid)| tid)))
    }

    /// When a switch that is gone is to be looked for.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.link.is_none().then_some(self.look_at)
    }

    /// Whether frames came or went lately, or it is time to look for the switch.
    #[inline]
    pub fn in_use(&self, now: Instant) -> bool {
        self.last_used.is_some_and(|last| now.since(last) < IN_USE)
            || self.next_deadline().is_some_and(|at| at <= now)
    }

    /// Whether another frame may be staged.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.packer.bytes() + FRAME_MAX <= STAGED_MAX
    }

    /// Whether frames wait for the kernel.
    #[inline]
    pub fn has_staged(&self) -> bool {
        !self.packer.is_empty() || self.link.as_ref().is_some_and(Link::has_rest)
    }

    /// Stages a packet, whose payload `write` puts where it is told. False, and nothing staged, when it is
    /// longer than any path MTU allows.
    pub fn stage_packet(&mut self, now: Instant, packet: &Packet, write: impl FnOnce(&mut [u8])) -> bool {
        let flow = Flow { src_port: ROCE_UDP_PORT, ..packet.flow };
        let packet = Packet { flow, ..*packet };
        let len = packet.frame_len();
        if len > FRAME_MAX {
            return false;
        }
        let frame = self.packer.add(len);
        let header_len = packet.emit_ip(frame);
        assert!(header_len > 0, "a frame that IP carries");
        let (payload, tail) = frame[header_len..].split_at_mut(packet.payload_len as usize);
        write(payload);
        tail.fill(0);
        seal(frame, flow.ip_header_len());
        self.last_used = Some(now);
        true
    }

    /// Stages a complete frame as it is, without its IP and UDP headers, which `flow` describes. False where
    /// it is no frame's length.
    pub fn stage_bytes(&mut self, now: Instant, flow: &Flow, bytes: &[u8]) -> bool {
        // Headers and payload are a multiple of 4 bytes, whatever they say: those of a SEND of this length
        // stand for them.
        let Some(payload_len) = bytes.len().checked_sub(BARE_LEN).filter(|len| len.is_multiple_of(4)) else {
            return false;
        };
        let bth = Bth { opcode: Opcode::new(Service::Rc, Operation::SendMiddle), ..Bth::default() };
        let flow = Flow { src_port: ROCE_UDP_PORT, ..*flow };
        let packet = Packet { flow, bth, payload_len: payload_len as u32, ..Packet::default() };
        let outer_len = flow.ip_header_len() + UDP_LEN;
        if outer_len + bytes.len() > FRAME_MAX {
            return false;
        }
        let frame = self.packer.add(outer_len + bytes.len());
        packet.emit_ip(frame);
        frame[outer_len..].copy_from_slice(bytes);
        self.last_used = Some(now);
        true
    }

    /// Gives staged frames to the kernel. False while it takes no more: they stay staged. Where the switch is
    /// gone they are lost.
    pub fn flush(&mut self, tally: &mut Tally) -> bool {
        let done = match &mut self.link {
            Some(link) => self.packer.flush(link, tally),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        done.unwrap_or_else(|_| {
            // What the switch said before it ended is still there to be read, and its end behind it.
            tally.failed += self.packer.clear();
            true
        })
    }

    /// Forgets the staged frames that the kernel has not taken; how many these were. Of a message that was
    /// begun nobody knows how many it has: one at least.
    pub fn give_up(&mut self) -> u64 {
        self.packer.clear() + u64::from(self.has_staged())
    }

    /// Takes what has arrived, some messages at most; and looks for the switch if that is gone and it is
    /// time.
    pub fn receive(&mut self, now: Instant, mut each: impl FnMut(Datagram<'_>)) -> Received {
        let mut total = Received::default();
        if self.link.is_none() && now >= self.look_at {
            self.look_at = now + LOOK;
            let _ = self.connect();
        }
        for _ in 0..MESSAGES_MAX {
            let Some(link) = &mut self.link else { break };
            let len = match link.receive(&mut self.inbox) {
                Ok(Some(len)) => len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Ok(None) | Err(_) => {
                    total.errors += 1;
                    self.link = None;
                    self.look_at = self.look_at.max(now + LOOK);
                    break;
                }
            };
            match Message::parse(&self.inbox[..len]) {
                Some(Message::Frames(frames)) => {
                    self.last_used = Some(now);
                    total.messages += 1;
                    for datagram in frames.filter_map(datagram_of) {
                        total.frames += 1;
                        total.bytes += datagram.bytes.len() as u64;
                        each(datagram);
                    }
                }
                Some(Message::Refused(why)) => {
                    if !self.said {
                        say!("adverb: the switch at {} came back and says: {why}", self.place);
                    }
                    (self.said, self.look_at) = (true, now + ASK_AGAIN);
                    self.link = None;
                }
                Some(Message::Welcome { decides, .. }) => (self.said, self.decides) = (false, decides),
                Some(Message::Thread { pid, tid }) => self.thread = Some((pid, tid)),
                _ => total.errors += 1,
            }
        }
        total
    }
}

/// Bytes of a frame from its BTH on, without extended headers and payload.
const BARE_LEN: usize = 16;

/// A frame as a UDP socket would show it. `None` where it is no UDP datagram to RoCE's port.
fn datagram_of(frame: &[u8]) -> Option<Datagram<'_>> {
    let bth_at = bth_offset(frame);
    let flow = outer_flow(frame)?;
    let (headers, bytes) = frame.split_at_checked(bth_at)?;
    let [from, to] = [8, 6].map(|before| {
        let at = bth_at.checked_sub(before)?;
        Some(u16::from_be_bytes(headers.get(at..at + 2)?.try_into().ok()?))
    });
    (to? == ROCE_UDP_PORT).then_some(Datagram {
        flow: Flow { src_port: from?, ..flow },
        bytes,
        likely_id: 0,
        behind: &[],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use crate::unix::Listener;
    use adverb_wire::{Psn, verify_ip, verify_udp};
    use std::net::IpAddr;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    const HOST: [u8; 16] = [9; 16];

    #[test]
    fn messages_are_read_as_they_were_written() {
        let hello = Hello { slot: 7, address: gid("fd00::7"), host: HOST };
        for message in [
            Message::Hello(hello),
            Message::Welcome { port: 513, decides: false },
            Message::Welcome { port: 7, decides: true },
            Message::Refused("no"),
            Message::Ask(b"show"),
            Message::Answer(b""),
            Message::Token(b"0123456789abcdef"),
            Message::Thread { pid: 70_000, tid: 70_001 },
        ] {
            assert_eq!(Message::parse(&message.emit()), Some(message));
        }
        let mut other = Message::Hello(hello).emit();
        other[1] = VERSION + 1;
        assert_eq!(Message::parse(&other), None);
        for bytes in [
            &[][..],
            &[HELLO],
            &[WELCOME, 1],
            &[WELCOME, 1, 0, 2],
            &[REFUSED, 0xff],
            &[99, 1, 2],
            &[THREAD, 1],
        ] {
            assert_eq!(Message::parse(bytes), None);
        }
        let frames = |bytes: &[u8]| Frames(bytes).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(frames(&[2, 0, 5, 6, 1, 0, 7]), [vec![5, 6], vec![7]]);
        assert_eq!(frames(&[1, 0, 7, 9, 0, 1]), [vec![7]], "a length beyond the end");
        assert_eq!(frames(&[0, 0, 1, 0, 7]), [[0u8; 0]; 0], "a frame of nothing");
        assert_eq!(frames(&[0xff; 3]), [[0u8; 0]; 0]);
    }

    #[test]
    fn a_name_is_a_file_of_the_folder_and_a_path_is_itself() {
        let path = |name| socket_path(Path::new("/dev/shm/x"), Path::new(name));
        assert_eq!(path("sw0"), Path::new("/dev/shm/x/sw0.switch"));
        assert_eq!(path("/tmp/sw0"), Path::new("/tmp/sw0"));
        assert_eq!(path("./sw0"), Path::new("./sw0"));
        let remote = ["host:7471", "10.0.0.1:1", "[fd00::1]:7471"];
        assert!(remote.iter().all(|name| is_remote(Path::new(name))));
        assert!(
            !["sw0", "./host:7471", "/tmp/a:1", "host:", "host:70000"]
                .iter()
                .any(|n| is_remote(Path::new(n)))
        );
    }

    #[test]
    fn a_token_is_one_users_and_long_enough() {
        use std::os::unix::fs::PermissionsExt;
        let path = crate::test_folder("token").join("token");
        let say = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_token(&path).map_err(|e| e.to_string())
        };
        assert_eq!(say(" 0123456789abcdef\n", 0o600), Ok(b"0123456789abcdef".to_vec()));
        assert!(say("0123456789abcdef", 0o640).unwrap_err().contains("chmod 600"));
        assert!(say("0123456789abcde", 0o600).unwrap_err().contains("16 to 128 bytes"));
        assert!(say(&"x".repeat(129), 0o600).unwrap_err().contains("16 to 128 bytes"));
        std::fs::remove_file(&path).unwrap();
        assert!(read_token(&path).unwrap_err().to_string().contains("the token "));
    }

    fn packet(src: &str, dst: &str, psn: u32, payload_len: u32) -> Packet {
        let (src, dst) = (gid(src), gid(dst));
        let flow = Flow { src, dst, src_port: ROCE_UDP_PORT, traffic_class: 2, hop_limit: 64 };
        let opcode = Opcode::new(Service::Rc, Operation::SendMiddle);
        let bth = Bth { opcode, psn: Psn::new(psn), ..Bth::default() };
        Packet { flow, bth, payload_len, ..Packet::default() }
    }

    /// A switch with one port that sends everything back, is ended, and comes again.
    #[test]
    fn frames_go_both_ways_and_a_switch_that_comes_back_is_found() {
        let folder = crate::test_folder("via");
        let path = folder.join("sw0.switch");
        let hello = Hello { slot: 1, address: gid("10.9.0.1"), host: HOST };
        assert!(Via::open(Place::Local(path.clone()), hello).is_err(), "nobody listens");
        let listener = Listener::bind(&path).unwrap();
        let accept = |listener: &Listener, answer: Message<'_>| {
            assert!(sys::wait_readable(listener.fd(), PATIENCE));
            let channel = listener.accept().unwrap();
            let mut buffer = vec![0; MESSAGE_MAX];
            assert!(sys::wait_readable(channel.fd(), PATIENCE));
            let (len, _) = channel.receive(&mut buffer).unwrap().unwrap();
            assert_eq!(Message::parse(&buffer[..len]), Some(Message::Hello(hello)));
            channel.send(&answer.emit(), &[]).unwrap();
            channel
        };
        let (mut via, far) = std::thread::scope(|scope| {
            let opening =
                scope.spawn(|| Via::open(Place::Local(path.clone()), hello).unwrap_err().to_string());
            accept(&listener, Message::Refused("it is taken"));
            assert_eq!(opening.join().unwrap(), "it is taken");
            let opening = scope.spawn(|| Via::open(Place::Local(path.clone()), hello).unwrap());
            let far = accept(&listener, Message::Welcome { port: 1, decides: true });
            (opening.join().unwrap(), far)
        });
        assert!(via.decides());
        // Both ends are in this process. Who says nothing of its threads takes frames with the first one.
        let pid = std::process::id();
        assert_eq!(via.process(), Some((pid, pid)));
        for (of, tid) in [(pid, pid + 7), (pid + 1, 5)] {
            far.send(&Message::Thread { pid: of, tid }.emit(), &[]).unwrap();
            assert_eq!(via.receive(Instant::ZERO, |_| panic!("no frame")).errors, 0);
            assert_eq!(via.process(), Some((pid, if of == pid { tid } else { pid })));
        }
        let (mut tally, mut buffer) = (Tally::default(), vec![0; MESSAGE_MAX]);
        for psn in 0..20 {
            let sent = packet("10.9.0.1", "10.9.0.2", psn, 4096);
            assert!(via.stage_packet(Instant::ZERO, &sent, |at| at.fill(psn as u8)));
        }
        assert!(via.has_staged() && via.flush(&mut tally) && !via.has_staged());
        assert_eq!((tally.messages, tally.frames, tally.failed), (2, 20, 0));
        let mut psn = 0;
        for _ in 0..tally.messages {
            let (len, _) = far.receive(&mut buffer).unwrap().unwrap();
            let Some(Message::Frames(frames)) = Message::parse(&buffer[..len]) else { panic!("frames") };
            for frame in frames {
                assert!(verify_ip(frame, 20));
                assert_eq!(frame[20 + UDP_LEN + 12], psn);
                psn += 1;
            }
            far.send(&buffer[..len], &[]).unwrap();
        }
        let mut heard = 0;
        while heard < 20 {
            let received = via.receive(Instant::ZERO, |datagram| {
                assert_eq!(datagram.flow.src, gid("10.9.0.1"));
                assert_eq!(verify_udp(&datagram.flow, datagram.bytes), Some(0));
            });
            heard += received.frames;
        }
        drop(far);
        via.receive(Instant::ZERO, |_| panic!("no frame"));
        assert_eq!((via.fd(), via.next_deadline()), (-1, Some(Instant::ZERO + LOOK)));
        assert!(via.stage_packet(Instant::ZERO, &packet("10.9.0.1", "10.9.0.2", 0, 4), |_| {}));
        assert!(via.flush(&mut tally));
        assert_eq!(tally.failed, 1);
        via.receive(Instant::ZERO + LOOK, |_| panic!("no frame"));
        assert_eq!(via.next_deadline(), None);
        accept(&listener, Message::Refused("taken meanwhile"));
        via.receive(Instant::ZERO + LOOK, |_| panic!("no frame"));
        assert_eq!(via.next_deadline(), Some(Instant::ZERO + LOOK + ASK_AGAIN));
    }

    /// Faults flip bits of the headers that a frame's length does not depend on.
    #[test]
    fn a_damaged_frame_leaves_as_it_is() {
        for (src, dst) in [("10.9.0.1", "10.9.0.2"), ("fd00::1", "fd00::2")] {
            let sent = packet(src, dst, 3, 5);
            let mut frame = vec![0; sent.frame_len()];
            let at = sent.emit_ip(&mut frame);
            frame[at..at + 5].copy_from_slice(b"hello");
            seal(&mut frame, sent.flow.ip_header_len());
            let bth_at = bth_offset(&frame);
            frame[bth_at] ^= 0x40;
            let hello = Hello { slot: 1, address: gid(src), host: HOST };
            let mut via = Via {
                place: Place::Local(PathBuf::new()),
                hello,
                link: None,
                packer: Packer::default(),
                inbox: Vec::new(),
                last_used: None,
                look_at: Instant::ZERO,
                said: false,
                decides: false,
                thread: None,
            };
            assert!(via.stage_bytes(Instant::ZERO, &sent.flow, &frame[bth_at..]));
            assert!(!via.stage_bytes(Instant::ZERO, &sent.flow, &frame[bth_at + 1..]));
            assert!(!via.stage_bytes(Instant::ZERO, &sent.flow, &[0; 12]));
            let Outgoing { memory, len, .. } = via.packer.messages.pop_front().unwrap();
            let Some(Message::Frames(mut frames)) = Message::parse(&memory[..len]) else { panic!("frames") };
            let found = frames.next().unwrap();
            assert_eq!(found, frame);
            let datagram = datagram_of(found).unwrap();
            assert_eq!((datagram.flow.src, datagram.bytes), (gid(src), &frame[bth_at..]));
        }
    }
}
