//! The hull's side of its worker: a process that is given the two files of memory and the socket on which
//! calls come, by a Unix socket, and that may stop, die and come again as it likes. There is one at a time.
//!
//! ```text
//! worker  connects                          the kernel says whose process it is
//! hull    "table .." with index and values, "calls" with the listening socket
//!         .. until the worker's process has ended; then, if so asked, another is started
//! ```
//! Code and receives of chains are in none of these files: nothing that a worker does reaches them.

use super::worker::Attach;
use crate::error::Error;
use crate::run::VARIABLE;
use adverb_os::socket_file::SocketFile;
use adverb_os::sys::{WaitSet, effective_uid};
use adverb_os::unix::{Channel, Peer};
use adverb_os::{clock, say, signals};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Between looks at a child that has not attached.
const LOOK: Duration = Duration::from_millis(100);
/// For a new child, if the last one ended before it had attached: it would do so again at once.
const PAUSE_MIN_NS: u64 = 1_000_000_000;

/// What a keeper has.
pub struct Keeper {
    /// Where workers attach.
    pub socket: Arc<SocketFile>,
    /// Its path.
    pub path: PathBuf,
    /// What workers are told.
    pub attach: Attach,
    /// Index and values, or one file with both.
    pub files: Vec<OwnedFd>,
    /// Where calls come.
    pub calls: TcpListener,
    /// Start another so long after one has ended.
    pub respawn: Option<Duration>,
    /// Settings of the NIC that workers open to answer gets by SEND and RECV, if they are to.
    pub two_sided: Option<String>,
    /// The hull's, which reads it: the process that is attached, or 0.
    pub attached: Arc<AtomicU32>,
}

/// A worker that is attached.
struct Attached {
    channel: Channel,
    life: Option<OwnedFd>,
    peer: Peer,
}

#[expect(clippy::disallowed_methods, reason = "the edge")]
fn now_ns() -> u64 {
    clock::monotonic_ns()
}

impl Keeper {
    /// Keeps workers, for ever. The first that attaches is announced by this.
    pub fn keep(self, first: impl FnOnce(u32)) -> Result<(), Error> {
        let mut child = Some(self.start()?);
        let mut attached: Option<Attached> = None;
        let (mut due, mut first) = (None, Some(first));
        let mut waits = WaitSet::default();
        loop {
            waits.clear();
            waits.add(self.socket.listener.fd(), false);
            if let Some(worker) = &attached {
                waits.add(worker.channel.fd(), false);
                worker.life.iter().for_each(|life| waits.add(life.as_raw_fd(), false));
            }
            let patience = match (due, &child) {
                (Some(due), _) => Some(Duration::from_nanos(u64::saturating_sub(due, now_ns()))),
                // A child that ends before it attaches tells nobody.
                (None, Some(_)) if attached.is_none() => Some(LOOK),
                _ => None,
            };
            waits.wait(patience);
            if attached.as_ref().is_some_and(|worker| worker.has_ended()) {
                let pid = attached.take().map_or(0, |worker| worker.peer.pid);
                if let Some(mut own) = child.take_if(|child| child.id() == pid) {
                    // It may have left without having ended, and nobody would take its place.
                    let _ = own.kill().and_then(|()| own.wait());
                }
                self.attached.store(0, Ordering::Relaxed);
                say!("worker {pid} has ended{}", self.what_next());
                due = self.after();
            }
            if let Some(ended) = child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                child = None;
                if attached.is_none() && due.is_none() {
                    say!("a worker ended before it was attached ({ended}){}", self.what_next());
                    due = self.after().map(|at| at.max(now_ns() + PAUSE_MIN_NS));
                }
            }
            if let Some(worker) = self.let_in(attached.is_some()) {
                let pid = worker.peer.pid;
                self.attached.store(pid, Ordering::Relaxed);
                (attached, due) = (Some(worker), None);
                match first.take() {
                    Some(first) => first(pid),
                    None => say!("worker {pid} serves"),
                }
            }
            if due.is_some_and(|due| now_ns() >= due) {
                due = None;
                if attached.is_none() && child.is_none() {
                    child = Some(self.start()?);
                }
            }
        }
    }

    fn after(&self) -> Option<u64> {
        let pause = u64::try_from(self.respawn?.as_nanos()).unwrap_or(u64::MAX);
        Some(now_ns().saturating_add(pause))
    }

    fn what_next(&self) -> String {
        match self.respawn {
            Some(pause) => format!("; another in {pause:?}"),
            None => format!("; another may attach: adverb redn worker --attach {}", self.path.display()),
        }
    }

    fn start(&self) -> Result<Child, Error> {
        let program = std::env::current_exe().map_err(|error| Error::Device(error.to_string()))?;
        let mut command = Command::new(program);
        command.args(["redn", "worker", "--attach"]).arg(&self.path).stdin(Stdio::null());
        if let Some(settings) = &self.two_sided {
            command.arg("--two-sided").env(VARIABLE, settings);
        }
        // This thread is there for as long as the hull.
        signals::dies_with_this_thread(signals::for_child(&mut command));
        command.spawn().map_err(|error| Error::Device(format!("starting a worker: {error}")))
    }

    /// A worker that has connected, if there is no other and it is of this user's.
    fn let_in(&self, taken: bool) -> Option<Attached> {
        let channel = self.socket.listener.accept().ok()?;
        let peer = channel.peer().ok()?;
        if peer.uid != effective_uid() {
            return None;
        }
        if taken {
            // It hears why, if it still listens.
            let _ = channel.send(b"refused there is a worker already", &[]);
            return None;
        }
        let files: Vec<_> = self.files.iter().map(AsFd::as_fd).collect();
        let told = channel.send(self.attach.to_string().as_bytes(), &files);
        told.and_then(|()| channel.send(b"calls", &[self.calls.as_fd()])).ok()?;
        Some(Attached { life: channel.peer_life(), channel, peer })
    }
}

impl Attached {
    /// Whether its process has ended, or has left.
    fn has_ended(&self) -> bool {
        let ended = |life: &OwnedFd| adverb_os::sys::wait_readable(life.as_raw_fd(), Duration::ZERO);
        self.channel.is_closed() || self.life.as_ref().is_some_and(ended)
    }
}
