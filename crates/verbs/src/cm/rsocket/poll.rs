//! Waiting for sockets and for descriptors of the kernel's together: `rpoll`, `rselect`.

use super::bell;
use super::socket::{Phase, Socket, State, find};
use crate::handle::{errno, set_errno};
use core::ffi::c_int;
use libc::{c_short, fd_set, nfds_t, pollfd, timeval};
use std::sync::Arc;

/// How often sockets are looked at before the thread sleeps.
const LOOKS: u32 = 200;
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;
/// What is told whether it was asked for or not.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP;

/// The calling process's clock, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into the local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Until when a call waits.
#[derive(Clone, Copy)]
enum Until {
    Once,
    At(u64),
    Ever,
}

impl Until {
    fn ms(timeout: c_int) -> Until {
        match timeout {
            0 => Until::Once,
            1.. => Until::At(now_ns() + timeout as u64 * 1_000_000),
            _ => Until::Ever,
        }
    }

    /// What is left, in milliseconds, rounded up.
    fn left(self) -> c_int {
        match self {
            Until::Once => 0,
            Until::Ever => -1,
            Until::At(end) => end.saturating_sub(now_ns()).div_ceil(1_000_000).min(i32::MAX as u64) as c_int,
        }
    }
}

/// What there is to tell of a socket.
fn told(state: &mut State) -> c_short {
    state.advance();
    let set = |condition: bool, bits: c_short| if condition { bits } else { 0 };
    if let Some(of) = &state.datagrams {
        return set(of.readable(), READ) | set(of.writable(), WRITE) | set(of.error != 0, libc::POLLERR);
    }
    match state.phase {
        Phase::Idle | Phase::Bound => WRITE | libc::POLLHUP,
        Phase::Listening => set(state.requested(), READ),
        Phase::Connecting => 0,
        Phase::Ended => READ | WRITE | libc::POLLHUP | set(state.error != 0, libc::POLLERR),
        Phase::Accepted | Phase::Connected => {
            let connected = state.phase == Phase::Connected;
            let Some(link) = &state.link else { return libc::POLLHUP };
            let stream = &link.stream;
            // Who reads to the end is told of it when there is nothing else to read.
            let drained = stream.unread() == 0;
            set(!drained || stream.ended(), READ)
                | set(connected && stream.writable() || stream.cannot_write(), WRITE)
                | set(stream.ended(), libc::POLLRDHUP)
                | set(drained && stream.over(), libc::POLLHUP)
                | set(drained && link.broken.is_some(), libc::POLLERR)
        }
    }
}

/// What is waited for.
struct Polling<'a> {
    fds: &'a mut [pollfd],
    /// Those of them that are sockets.
    sockets: Vec<Option<Arc<Socket>>>,
    /// Whether some are the kernel's.
    kernel: bool,
}

impl Polling<'_> {
    /// Looks at all; says how many have something to tell.
    fn look(&mut self) -> Result<c_int, c_int> {
        let mut ready = 0;
        for (fd, socket) in self.fds.iter_mut().zip(&self.sockets) {
            fd.revents = 0;
            if let Some(socket) = socket {
                fd.revents = told(&mut socket.lock()) & (fd.events | ALWAYS);
                ready += c_int::from(fd.revents != 0);
            }
        }
        if !self.kernel {
            return Ok(ready);
        }
        let mut theirs: Vec<pollfd> = self.fds.to_vec();
        for (fd, socket) in theirs.iter_mut().zip(&self.sockets) {
            if socket.is_some() {
                fd.fd = -1;
            }
        }
        // SAFETY: as many entries as it is told.
        let found = unsafe { libc::poll(theirs.as_mut_ptr(), theirs.len() as nfds_t, 0) };
        if found < 0 {
            return Err(errno());
        }
        for ((fd, their), socket) in self.fds.iter_mut().zip(&theirs).zip(&self.sockets) {
            if socket.is_none() {
                fd.revents = their.revents;
            }
        }
        Ok(ready + found)
    }

    /// Sleeps until something may be to tell; false if the time is over.
    fn sleep(&self, until: Until) -> Result<bool, c_int> {
        let bell = bell::own()?;
        let mut polled = vec![pollfd { fd: bell, events: libc::POLLIN, revents: 0 }];
        let mut watched = Vec::new();
        let mut news = false;
        for (fd, socket) in self.fds.iter().zip(&self.sockets) {
            let Some(socket) = socket else {
                polled.push(*fd);
                continue;
            };
            let mut state = socket.lock();
            match state.watch(bell) {
                // Under the lock: who takes something in from now on rings the bell.
                Some(fds) => {
                    watched.push(socket);
                    news |= told(&mut state) & (fd.events | ALWAYS) != 0;
                    polled.extend(fds.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 }));
                }
                None => news = true,
            }
        }
        let left = if news { 0 } else { until.left() };
        // SAFETY: as many entries as it is told.
        let woken = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as nfds_t, left) };
        let cause = errno();
        for socket in watched {
            socket.lock().unwatch(bell);
        }
        bell::silence(bell);
        match woken {
            ..0 => Err(cause),
            0 => Ok(news || until.left() != 0),
            _ => Ok(true),
        }
    }

    fn wait(&mut self, until: Until) -> Result<c_int, c_int> {
        let looks = if self.kernel || matches!(until, Until::Once) { 1 } else { LOOKS };
        loop {
            for _ in 0..looks {
                let ready = self.look()?;
                if ready > 0 {
                    return Ok(ready);
                }
            }
            if matches!(until, Until::Once) {
                return Ok(0);
            }
            if !self.sleep(until)? {
                return self.look();
            }
        }
    }
}

fn poll(fds: &mut [pollfd], until: Until) -> Result<c_int, c_int> {
    let sockets: Vec<_> = fds.iter().map(|fd| find(fd.fd)).collect();
    if sockets.iter().flatten().any(|socket| !socket.is_own()) {
        return Err(libc::ENODEV);
    }
    let kernel = fds.iter().zip(&sockets).any(|(fd, socket)| socket.is_none() && fd.fd >= 0);
    Polling { fds, sockets, kernel }.wait(until)
}

fn number(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Waits for sockets and other descriptors.
///
/// # Safety
/// C ABI: as `poll(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let fds = match count {
        0 => &mut [],
        _ if fds.is_null() => return number(Err(libc::EFAULT)),
        // SAFETY: the caller passes that many entries.
        _ => unsafe { core::slice::from_raw_parts_mut(fds, count as usize) },
    };
    number(poll(fds, Until::ms(timeout)))
}

/// Waits for sockets and other descriptors, in sets.
///
/// # Safety
/// C ABI: as `select(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
        return number(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes sets or NULL, and a time or NULL; the numbers are within a set's bounds.
    unsafe {
        let until = match timeout.as_ref() {
            None => Until::Ever,
            Some(timeval { tv_sec: 0, tv_usec: 0 }) => Until::Once,
            Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => return number(Err(libc::EINVAL)),
            Some(time) => {
                let ns = (time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_usec as u64 * 1000;
                Until::At(now_ns().saturating_add(ns))
            }
        };
        let sets = [(readable, READ), (writable, WRITE), (exceptional, libc::POLLPRI)];
        let mut fds = Vec::new();
        for fd in 0..count {
            let asked = sets.iter().filter(|(set, _)| !set.is_null() && libc::FD_ISSET(fd, *set));
            let events = asked.fold(0, |events, (_, bits)| events | bits);
            if events != 0 {
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        if let Err(errno) = poll(&mut fds, until) {
            return number(Err(errno));
        }
        if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return number(Err(libc::EBADF));
        }
        // As the kernel: an error, or the end, can be read and written.
        let told = [READ | ALWAYS, WRITE | libc::POLLERR, libc::POLLPRI];
        let mut ready = 0;
        for ((set, asked), bits) in sets.into_iter().zip(told).filter(|((set, _), _)| !set.is_null()) {
            for fd in &fds {
                if fd.events & asked != 0 && fd.revents & bits != 0 {
                    ready += 1;
                } else {
                    libc::FD_CLR(fd.fd, set);
                }
            }
        }
        ready
    }
}
