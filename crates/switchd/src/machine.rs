//! The cable to a virtual machine: Ethernet frames over the Unix socket of QEMU's `-netdev stream`, each
//! behind its length in four bytes, the most significant first. QEMU listens; a machine that ends and comes
//! back is found again.

use adverb_os::unix::connect_stream;
use adverb_os::via::QUEUE_MAX;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Bytes of a frame's length.
const LENGTH_LEN: usize = 4;
/// No frame of Ethernet is longer, that of a card which leaves segmentation to others included.
const FRAME_MAX: usize = 68 << 10;
/// Bytes that are taken before others have their turn.
const TURN: usize = 256 << 10;

/// The machine's end.
pub struct Machine {
    path: PathBuf,
    stream: Option<UnixStream>,
    /// What came of a frame that is not whole yet.
    inbox: Vec<u8>,
    /// What the kernel has not taken yet begins at `sent`.
    outbox: Vec<u8>,
    sent: usize,
    /// Connections that were ended because of what came on them.
    pub malformed: u64,
}

impl Machine {
    /// The machine that listens at a path, now or later.
    pub fn new(path: &Path) -> Machine {
        Machine {
            path: path.to_owned(),
            stream: None,
            inbox: Vec::new(),
            outbox: Vec::new(),
            sent: 0,
            malformed: 0,
        }
    }

    /// Where the machine listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that wait for the machine.
    pub fn depth(&self) -> usize {
        self.outbox.len() - self.sent
    }

    /// To wait on, if a machine is there.
    pub fn fd(&self) -> Option<RawFd> {
        self.stream.as_ref().map(UnixStream::as_raw_fd)
    }

    /// Connects to the machine, if it is there.
    pub fn connect(&mut self) {
        self.stream = connect_stream(&self.path).ok();
    }

    /// Queues a frame. False, and nothing done, if too much waits already.
    pub fn add(&mut self, frame: &[u8]) -> bool {
        if self.depth() + frame.len() > QUEUE_MAX {
            return false;
        }
        self.outbox.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        self.outbox.extend_from_slice(frame);
        true
    }

    /// Sends what waits, as far as the kernel takes it.
    pub fn flush(&mut self) {
        while let Some(stream) = self.stream.as_mut().filter(|_| self.sent < self.outbox.len()) {
            match stream.write(&self.outbox[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.unplug(),
            }
        }
        // Moves little: what waits is bounded, and so is then what was sent before it.
        if self.sent == self.outbox.len() || self.sent > QUEUE_MAX {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Takes frames that have come.
    pub fn receive(&mut self, buffer: &mut [u8], mut take: impl FnMut(&[u8])) {
        let mut taken = 0;
        while taken < TURN {
            let Some(stream) = &mut self.stream else { return };
            match stream.read(buffer) {
                Ok(0) => return self.unplug(),
                Ok(len) => {
                    taken += len;
                    self.inbox.extend_from_slice(&buffer[..len]);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.unplug(),
            }
            let mut at = 0;
            while let Some((length, rest)) = self.inbox[at..].split_first_chunk::<LENGTH_LEN>() {
                let length = u32::from_be_bytes(*length) as usize;
                if length > FRAME_MAX {
                    self.malformed += 1;
                    return self.unplug();
                }
                let Some(frame) = rest.get(..length) else { break };
                take(frame);
                at += LENGTH_LEN + length;
            }
            self.inbox.drain(..at);
        }
    }

    /// The connection has ended. It is looked for anew after the usual time, so that one that ends at once
    /// costs little.
    fn unplug(&mut self) {
        self.stream = None;
        self.inbox.clear();
        self.outbox.clear();
        self.sent = 0;
    }
}
