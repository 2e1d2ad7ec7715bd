//! Where processes of other hosts come in: a TCP listener, and the token that they have to know.
//!
//! The token keeps out who does not know it. It and all frames cross the network as they are, as RoCE does:
//! who can read that network can read them.

use adverb_os::link::{Link, accept};
use adverb_os::via::{STRANGER_MAX, read_token};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

/// A listener with its token.
pub struct Gate {
    listener: TcpListener,
    token: Vec<u8>,
    /// Who said another token, or something else.
    pub refused: u64,
}

impl Gate {
    /// Listens at an address, for whoever knows what a file has.
    pub fn open(address: SocketAddr, token: &Path) -> io::Result<Gate> {
        let token = read_token(token)?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Gate { listener, token, refused: 0 })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// A connection that waits, if there is one. It may say a token and no more.
    pub fn accept(&self) -> io::Result<Link> {
        accept(&self.listener, STRANGER_MAX).map(Link::Remote)
    }

    /// Whether that is the token. The time that this takes tells nothing of it but its length.
    pub fn is_token(&self, said: &[u8]) -> bool {
        let differ = said.iter().zip(&self.token).fold(0, |all, (a, b)| all | (a ^ b));
        said.len() == self.token.len() && std::hint::black_box(differ) == 0
    }
}
