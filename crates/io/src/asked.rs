//! Where a running process is asked from outside, by processes of the same user alone.
//!
//! It listens on a socket in the abstract namespace, which goes with it: `@adverb-<kind>-<pid>-<nth of the
//! process>`. A thread of its own answers, one asker after another; answers are files of text.

use crate::host::Shared;
use adverb_os::shm::anonymous_file;
use adverb_os::signals::library_thread;
use adverb_os::sys::WaitSet;
use adverb_os::unix::{Channel, Listener};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Seconds within which either side hears a first word of the other.
pub const PATIENCE_S: u32 = 5;
/// Sockets of this process so far.
static NTH: AtomicU32 = AtomicU32::new(0);

/// What is asked about.
#[derive(Clone, Copy)]
pub struct Kind {
    /// In the socket's and the thread's name.
    pub name: &'static str,
    /// Which of a NIC's sockets it is.
    pub socket: fn(&Shared) -> &Socket,
    /// Answers one asker. Who asked may be gone: an error goes no further.
    pub answer: fn(&Shared, &Channel) -> io::Result<()>,
}

/// A socket, once there is something to be asked.
#[derive(Default)]
pub struct Socket(OnceLock<Listener>);

impl Socket {
    /// Ends the thread, if there is one.
    pub fn close(&self) {
        if let Some(listener) = self.0.get() {
            listener.close();
        }
    }
}

fn path(kind: &str, pid: u32, nth: u32) -> PathBuf {
    PathBuf::from(format!("\0adverb-{kind}-{pid}-{nth}"))
}

/// Lets a NIC be asked, if it is not yet.
pub fn offer(shared: &'static Shared, kind: Kind) -> io::Result<()> {
    let socket = (kind.socket)(shared);
    if socket.0.get().is_some() {
        return Ok(());
    }
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    let listener = Listener::bind(&path(kind.name, std::process::id(), nth))?;
    if socket.0.set(listener).is_ok() {
        let name = format!("adverb-{}", kind.name);
        library_thread(&name, move || serve(shared, kind))?;
    }
    Ok(())
}

/// The thread.
fn serve(shared: &Shared, kind: Kind) {
    let Some(listener) = (kind.socket)(shared).0.get() else { return };
    let mut set = WaitSet::default();
    while shared.core.visit().port.is_some() {
        set.clear();
        set.add(listener.fd(), false);
        set.wait(None);
        let Ok(channel) = listener.accept() else { continue };
        if channel.is_of_own_user() {
            let _ = (kind.answer)(shared, &channel);
        }
    }
}

/// Sends text as a file, behind a word that says what it is.
pub fn give(channel: &Channel, word: &[u8], text: &str) -> io::Result<()> {
    let mut file = File::from(anonymous_file(text.len().max(1) as u64)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    channel.send(word, &[file.as_fd()])
}

/// The text of a file that came with an answer, if one did. An empty one has a zero.
pub fn text_of(files: Vec<OwnedFd>) -> io::Result<Option<String>> {
    let Some(file) = files.into_iter().next() else { return Ok(None) };
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// What came is no answer of this version.
pub fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the process speaks otherwise")
}

/// Connections to a process's sockets of a kind, one to each.
pub fn connect(pid: u32, kind: &str) -> io::Result<Vec<Channel>> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let prefix = format!("@adverb-{kind}-{pid}-");
    // A socket's connections have its name, too, and it must not be asked twice.
    let numbers: BTreeSet<u32> = sockets
        .lines()
        .filter_map(|line| line.split_once(&prefix))
        .filter_map(|(_, nth)| nth.trim_end_matches('@').parse().ok())
        .collect();
    let mut channels = Vec::new();
    for nth in numbers {
        // It may be gone by now.
        let Ok(channel) = Channel::connect(&path(kind, pid, nth), PATIENCE_S) else { continue };
        if !channel.is_of_own_user() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the process is another user's"));
        }
        channels.push(channel);
    }
    Ok(channels)
}
