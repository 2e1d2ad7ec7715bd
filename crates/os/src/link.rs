//! What carries messages between a process and its switch: a Unix socket, which keeps them apart, or TCP
//! from another host, where each message has its length in two bytes before it, the least significant first.
#![allow(unsafe_code)]

use crate::check;
use crate::socket::encode;
use crate::sys::{Buffer, WaitSet, ask_for_buffer, keep_alive};
use crate::unix::Channel;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Bytes of a message's length.
const LENGTH_LEN: usize = 2;
/// Seconds after which the kernel asks whether a host that says nothing is still there.
const IDLE_S: i32 = 15;

/// One end of a connection. No call waits.
#[derive(Debug)]
pub enum Link {
    /// Between processes of one user.
    Local(Channel),
    /// Between hosts.
    Remote(Stream),
}

/// A TCP connection with the message that is under way in each direction.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    /// What the kernel has not taken yet of messages that count as sent.
    rest: Vec<u8>,
    /// The message that is coming, its length before it.
    coming: Vec<u8>,
    /// Bytes of a message at most.
    longest: usize,
}

impl Stream {
    /// One that another host has opened. Its messages are of `longest` bytes at most until
    /// [`Link::allow`] says otherwise.
    pub fn accepted(tcp: TcpStream, longest: usize) -> io::Result<Stream> {
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        keep_alive(tcp.as_fd(), IDLE_S)?;
        Ok(Stream { tcp, rest: Vec::new(), coming: Vec::new(), longest })
    }

    /// Begins to connect. What is sent meanwhile goes when the other end has agreed; if it never does, the
    /// connection ends as any other.
    pub fn connect(to: SocketAddr, longest: usize) -> io::Result<Stream> {
        let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain values; the descriptor returned is ours.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, 0))?) };
        let (name, len) = encode(to);
        // SAFETY: the address lives here and has that length.
        let begun = check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const name).cast(), len) });
        match begun {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
            _ => Stream::accepted(TcpStream::from(fd), longest),
        }
    }

    /// Takes a message whole, or says that it would have to wait.
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if !self.flush()? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let Ok(len) = u16::try_from(message.len()) else { return Err(ErrorKind::InvalidInput.into()) };
        self.rest.extend_from_slice(&len.to_le_bytes());
        self.rest.extend_from_slice(message);
        self.flush().map(drop)
    }

    /// Gives the kernel what is left. False while it takes no more.
    fn flush(&mut self) -> io::Result<bool> {
        let mut sent = 0;
        while sent < self.rest.len() {
            match self.tcp.write(&self.rest[sent..]) {
                Ok(len) => sent += len,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        self.rest.drain(..sent);
        Ok(self.rest.is_empty())
    }

    /// The next message. What comes behind it stays with the kernel, so that the descriptor tells of it.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let had = self.coming.len();
            let wanted = match self.coming.first_chunk::<LENGTH_LEN>() {
                None => LENGTH_LEN,
                Some(len) => LENGTH_LEN + usize::from(u16::from_le_bytes(*len)),
            };
            let len = wanted - LENGTH_LEN;
            if had >= LENGTH_LEN && (len == 0 || len > self.longest.min(buffer.len())) {
                return Err(io::Error::other("a message of a length that none has"));
            }
            if had == wanted && had > LENGTH_LEN {
                buffer[..len].copy_from_slice(&self.coming[LENGTH_LEN..]);
                self.coming.clear();
                return Ok(Some(len));
            }
            self.coming.resize(wanted, 0);
            let got = self.tcp.read(&mut self.coming[had..]);
            self.coming.truncate(had + *got.as_ref().unwrap_or(&0));
            if got? == 0 {
                return Ok(None);
            }
        }
    }
}

impl Link {
    /// The process at the other end, if it is of this host and can be seen.
    pub fn process(&self) -> Option<u32> {
        match self {
            Link::Local(channel) => channel.peer().ok().map(|peer| peer.pid),
            Link::Remote(_) => None,
        }
    }

    /// Sends one message. Where the kernel takes no more, an error says so, and nothing is sent.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Link::Local(channel) => channel.send(message, &[]),
            Link::Remote(stream) => stream.send(message),
        }
    }

    /// Gives the kernel what is left of a message that counts as sent. False while it takes no more.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            Link::Local(_) => Ok(true),
            Link::Remote(stream) => stream.flush(),
        }
    }

    /// Whether something is left of a message that counts as sent.
    #[inline]
    pub fn has_rest(&self) -> bool {
        matches!(self, Link::Remote(stream) if !stream.rest.is_empty())
    }

    /// Receives one message; its length. `None` when the other end is closed.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Link::Local(channel) => Ok(channel.receive(buffer)?.map(|(len, _)| len)),
            Link::Remote(stream) => stream.receive(buffer),
        }
    }

    /// Waits for the next message, so long at most each time that something moves: what was sent has to
    /// leave first.
    pub fn wait_and_receive(&mut self, buffer: &mut [u8], patience: Duration) -> io::Result<Option<usize>> {
        let mut set = WaitSet::default();
        loop {
            self.flush()?;
            set.clear();
            set.add(self.fd(), self.has_rest());
            set.wait(Some(patience));
            if !set.is_ready(0) {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.receive(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    /// Says that nothing more will come. Whether the connection may be closed now: a stream with bytes that
    /// nobody has read would take back what was sent last.
    pub fn finish(&self) -> bool {
        match self {
            Link::Local(_) => true,
            Link::Remote(stream) => stream.tcp.shutdown(Shutdown::Write).is_err(),
        }
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        match self {
            Link::Local(channel) => channel.fd(),
            Link::Remote(stream) => stream.tcp.as_raw_fd(),
        }
    }

    /// From now on messages from another host may have so many bytes.
    pub fn allow(&mut self, longest: usize) {
        if let Link::Remote(stream) = self {
            stream.longest = longest;
        }
    }

    /// The process at the other end, if it is one of this host's.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Link::Local(channel) => Some(channel.peer().ok()?.pid),
            Link::Remote(_) => None,
        }
    }

    /// Whether the other end is a process of this host.
    pub fn is_local(&self) -> bool {
        matches!(self, Link::Local(_))
    }

    /// Asks the kernel to keep so many bytes that the other end has not read. It may keep fewer.
    pub fn ask_for_send_buffer(&self, bytes: usize) {
        match self {
            Link::Local(channel) => channel.ask_for_send_buffer(bytes),
            // As good as it gets: a small buffer costs turns, not frames.
            Link::Remote(stream) => drop(ask_for_buffer(stream.tcp.as_fd(), Buffer::Send, bytes)),
        }
    }
}

/// A connection from another host that waits, if there is one. A listener that waits makes this wait.
pub fn accept(listener: &TcpListener, longest: usize) -> io::Result<Stream> {
    let (tcp, _) = listener.accept()?;
    Stream::accepted(tcp, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(longest: usize) -> (TcpStream, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, Link::Remote(accept(&listener, longest).unwrap()))
    }

    /// The next message, when it has come.
    fn next(link: &mut Link, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match link.receive(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    assert!(crate::sys::wait_readable(link.fd(), Duration::from_secs(20)));
                }
                other => return other,
            }
        }
    }

    #[test]
    fn messages_are_whole_however_their_bytes_come() {
        let (mut near, mut far) = pair(300);
        let mut buffer = [0; 400];
        for byte in [3, 0, 1, 2] {
            near.write_all(&[byte]).unwrap();
            assert_eq!(far.receive(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        near.write_all(&[3]).unwrap();
        assert_eq!(next(&mut far, &mut buffer).unwrap(), Some(3));
        assert_eq!(buffer[..3], [1, 2, 3]);
        // Several at once are taken one by one, and the descriptor tells of the others.
        near.write_all(&[2, 0, 9, 8, 1, 0, 7, 1, 0, 6]).unwrap();
        assert_eq!(next(&mut far, &mut buffer).unwrap(), Some(2));
        assert_eq!(buffer[..2], [9, 8]);
        for byte in [7, 6] {
            assert_eq!(next(&mut far, &mut buffer).unwrap(), Some(1));
            assert_eq!(buffer[0], byte);
        }
        drop(near);
        assert_eq!(next(&mut far, &mut buffer).unwrap(), None);
    }

    #[test]
    fn lengths_that_no_message_has_end_the_connection() {
        for (bytes, longest) in [([0, 0], 300), ([45, 1], 300), ([17, 0], 16)] {
            let (mut near, mut far) = pair(longest);
            near.write_all(&bytes).unwrap();
            let error = next(&mut far, &mut [0; 400]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Other, "{bytes:?}");
        }
    }

    /// The reader stops; the sender's messages wait, whole, and come in order when it goes on.
    #[test]
    fn who_does_not_read_gets_all_of_it_later() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = Link::Remote(Stream::connect(listener.local_addr().unwrap(), 60_000).unwrap());
        let mut sent = 0u32;
        let mut message = vec![0; 50_000];
        let full = loop {
            message[..4].copy_from_slice(&sent.to_le_bytes());
            match near.send(&message) {
                Ok(()) => sent += 1,
                Err(e) => break e.kind(),
            }
            // Nobody has agreed to the connection yet.
            assert!(sent < 10_000);
        };
        assert_eq!(full, ErrorKind::WouldBlock);
        assert!(near.has_rest() && sent > 0);
        let mut far = Link::Remote(accept(&listener, 60_000).unwrap());
        let mut buffer = vec![0; 60_000];
        for n in 0..sent {
            loop {
                near.flush().unwrap();
                match far.receive(&mut buffer) {
                    Ok(len) => break assert_eq!(len, Some(50_000)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
                }
            }
            assert_eq!(buffer[..4], n.to_le_bytes());
        }
        assert!(!near.has_rest());
    }
}
