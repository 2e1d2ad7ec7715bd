//! What wakes a process or a thread that sleeps.
//!
//! ```text
//! Bell        a FIFO with a name, for processes of one user
//! EventFd     for threads of one process
//! BellSocket  one of two ends, for processes that do not trust each other
//! Alarm       a time, which stays set over many waits
//! Epoll       several descriptors that are waited for as one
//! ```
#![allow(unsafe_code)]

use crate::{check, sys};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Either end of the bell of a process: a FIFO that peers write a byte to when its progress thread should
/// look.
///
/// A FIFO, because its wake-up puts the woken thread where the waker runs. Where all processors are busy that
/// is much quicker than a futex, which puts it where it ran last.
#[derive(Debug)]
pub struct Bell {
    fifo: File,
}

impl Bell {
    /// Makes the FIFO and opens it.
    pub fn create(path: &Path) -> io::Result<Bell> {
        sys::create_fifo(path)?;
        Bell::open(path)
    }

    /// Opens a FIFO. Both ends open it for reading and writing: so nobody waits for the other in the
    /// open, and a write after the reader's death raises no SIGPIPE.
    pub fn open(path: &Path) -> io::Result<Bell> {
        let fifo = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        Ok(Bell { fifo })
    }

    /// Wakes the owner. A FIFO that is full has woken it already.
    #[inline]
    pub fn ring(&self) {
        let _ = (&self.fifo).write(&[1]);
    }

    /// Forgets all rings so far.
    pub fn quieten(&self) {
        let mut bytes = [0; 256];
        while let Ok(256) = (&self.fifo).read(&mut bytes) {}
    }

    /// Readable while rung.
    pub fn fd(&self) -> RawFd {
        self.fifo.as_raw_fd()
    }
}

/// Something to wait for that another thread rings: an eventfd.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// One that nobody has rung.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: plain values; the descriptor returned is ours.
        unsafe {
            let fd = check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            Ok(EventFd(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Wakes whoever waits. One that was rung already stays so.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes that live here.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Forgets all rings so far.
    pub fn quieten(&self) {
        let mut count = 0u64;
        // SAFETY: room for eight bytes that live here.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Readable while rung.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// One of two ends that ring one another, for processes that do not trust each other: sockets, since an
/// eventfd's open file would be both's, and whoever has it can make the other's calls wait. Here no call
/// waits, whatever is done to the other end.
#[derive(Debug)]
pub struct BellSocket(OwnedFd);

impl BellSocket {
    /// Both ends.
    pub fn pair() -> io::Result<(BellSocket, OwnedFd)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors, which are ours when it succeeds.
        unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok((BellSocket(OwnedFd::from_raw_fd(ends[0])), OwnedFd::from_raw_fd(ends[1])))
        }
    }

    /// The end that another process gave.
    pub fn from_fd(fd: OwnedFd) -> BellSocket {
        BellSocket(fd)
    }

    /// Wakes whoever waits at the other end. One that was rung so often that there is no room for more is
    /// awake.
    pub fn ring(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one byte that lives here.
        unsafe { libc::send(self.0.as_raw_fd(), (&raw const flags).cast(), 1, flags) };
    }

    /// Forgets rings so far, up to 256. False when the other end is gone.
    pub fn quieten(&self) -> bool {
        let mut rings = [0u8; 256];
        let place = rings.as_mut_ptr().cast();
        // SAFETY: room for so many bytes that live here.
        unsafe { libc::recv(self.0.as_raw_fd(), place, rings.len(), libc::MSG_DONTWAIT) != 0 }
    }

    /// Readable while rung, and when the other end is gone.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A time to be woken at, which stays set over many waits: a timerfd. A wait with a timeout of its own sets
/// the processor's timer as it begins and again as it ends, which takes a virtual machine as long as the rest
/// of a wake.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    /// When it rings, by [`crate::clock::monotonic_ns`]; `u64::MAX` if it does not.
    rings_at: u64,
}

impl Alarm {
    /// One that does not ring.
    pub fn new() -> io::Result<Alarm> {
        // SAFETY: plain values; the descriptor returned is ours.
        unsafe {
            let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
            let fd = check(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))?;
            Ok(Alarm { timer: OwnedFd::from_raw_fd(fd), rings_at: u64::MAX })
        }
    }

    /// It rings at that time or before: if it was set to an earlier one, it stays so.
    pub fn by(&mut self, at_ns: u64) {
        if self.rings_at <= at_ns {
            return;
        }
        self.rings_at = at_ns;
        // All zeroes would mean never.
        let at_ns = at_ns.max(1);
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = libc::timespec {
            tv_sec: (at_ns / 1_000_000_000) as _,
            tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
        };
        let time = libc::itimerspec { it_interval: never, it_value };
        let (fd, flags) = (self.timer.as_raw_fd(), libc::TFD_TIMER_ABSTIME);
        // SAFETY: `time` lives here; the kernel writes nothing back.
        unsafe { libc::timerfd_settime(fd, flags, &raw const time, std::ptr::null_mut()) };
    }

    /// Has rung, and does not ring again until it is set.
    pub fn quieten(&mut self) {
        self.rings_at = u64::MAX;
        let mut count = 0u64;
        // SAFETY: room for eight bytes that live here.
        unsafe { libc::read(self.timer.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Readable since it rang.
    pub fn fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
}

/// Descriptors that are waited for together: an epoll instance, itself something to wait for.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// One that waits for nothing yet.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: plain values; the descriptor returned is ours.
        unsafe { Ok(Epoll(OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?))) }
    }

    /// Adds one, which `token` stands for.
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: the event lives here.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
    }

    /// Forgets one. That it is closed is not enough where a child has it too.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: plain values; kernels since 2.6.9 want no event.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// The tokens of those that are readable or closed now, as many as there is room for. Does not wait.
    pub fn ready(&self, tokens: &mut [u64]) -> usize {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let room = events.len().min(tokens.len()) as libc::c_int;
        // SAFETY: room for so many events that live here.
        let found = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, 0) };
        let found = usize::try_from(found).unwrap_or(0);
        tokens.iter_mut().zip(&events[..found]).for_each(|(token, event)| *token = event.u64);
        found
    }

    /// Readable while one of them is.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_until_it_is_quietened() {
        let path = crate::test_folder("bell").join("bell");
        let own = Bell::create(&path).unwrap();
        let peer = Bell::open(&path).unwrap();
        let rung = || sys::wait_readable(own.fd(), std::time::Duration::ZERO);
        assert!(!rung());
        for _ in 0..300 {
            peer.ring();
        }
        assert!(rung());
        own.quieten();
        assert!(!rung());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "when it rang")]
    fn an_alarm_rings_at_the_earliest_time_that_it_was_set_to() {
        let mut alarm = Alarm::new().unwrap();
        let rings = |alarm: &Alarm, within| sys::wait_readable(alarm.fd(), within);
        let (at_once, long) = (std::time::Duration::ZERO, std::time::Duration::from_secs(20));
        assert!(!rings(&alarm, at_once));
        let start = crate::clock::monotonic_ns();
        alarm.by(start + 3_000_000);
        alarm.by(start + 60_000_000_000);
        assert!(rings(&alarm, long));
        let rang = crate::clock::monotonic_ns();
        assert!((3_000_000..20_000_000_000).contains(&(rang - start)), "after {} ns", rang - start);
        alarm.quieten();
        assert!(!rings(&alarm, at_once));
        // What was set to a later time rings at an earlier one, and at one that has passed.
        alarm.by(rang + 60_000_000_000);
        alarm.by(rang);
        assert!(rings(&alarm, long));
        alarm.quieten();
        alarm.by(0);
        assert!(rings(&alarm, long));
    }

    #[test]
    fn what_is_ready_is_named() {
        let epoll = Epoll::new().unwrap();
        let (first, second) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        epoll.add(first.fd(), 7).unwrap();
        epoll.add(second.fd(), u64::MAX).unwrap();
        let mut tokens = [0; 4];
        assert_eq!(epoll.ready(&mut tokens), 0);
        second.ring();
        assert!(sys::wait_readable(epoll.fd(), std::time::Duration::ZERO));
        assert_eq!((epoll.ready(&mut tokens), tokens[0]), (1, u64::MAX));
        first.ring();
        assert_eq!((epoll.ready(&mut tokens), epoll.ready(&mut tokens[..1])), (2, 1));
        epoll.remove(second.fd());
        assert_eq!((epoll.ready(&mut tokens), tokens[0]), (1, 7));
        assert!(epoll.add(first.fd(), 7).is_err());
    }

    #[test]
    fn a_wire_never_waits() {
        let (near, far) = BellSocket::pair().unwrap();
        let far = BellSocket::from_fd(far);
        // SAFETY: plain values.
        let flags = unsafe { libc::fcntl(near.fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0, "calls would wait if they did not say otherwise");
        assert!(near.quieten() && far.quieten(), "nobody has rung");
        let rung = |wire: &BellSocket| sys::wait_readable(wire.fd(), std::time::Duration::ZERO);
        assert!(!rung(&far));
        for _ in 0..100_000 {
            near.ring();
        }
        assert!(rung(&far) && !rung(&near));
        while rung(&far) {
            assert!(far.quieten());
        }
        drop(far);
        assert!(rung(&near) && !near.quieten());
        near.ring();
    }
}
