//! System calls that std and `adverb_io::sys` do not offer.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Seconds since 1970.
pub(crate) fn seconds_since_1970() -> u64 {
    adverb_io::sys::realtime_ns() / 1_000_000_000
}

/// Sixteen bytes from the kernel's random generator, for a key.
pub(crate) fn random_key() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: the buffer is valid for its length.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
        16 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Seals that keep a file's mappings whole.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Zeroed memory without a name that other processes may map, of a length that nobody can change.
pub(crate) fn sealed_memory(len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string and plain values; the descriptor returned is ours.
    let fd = match unsafe { libc::memfd_create(c"adverb-1rma".as_ptr(), flags) } {
        fd if fd < 0 => return Err(io::Error::last_os_error()),
        // SAFETY: as above.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: plain values.
    let sized = unsafe { libc::ftruncate(fd.as_raw_fd(), len) };
    // SAFETY: plain values.
    if sized < 0 || unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Whether a file that another process gave is memory that it cannot take away from a mapping: a memfd of ordinary pages, sealed against shrinking, of at least
/// `len` bytes. Accesses to anything else could raise SIGBUS.
pub(crate) fn check_sealed(file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    // First: a file system of the other process's own making, which may take its time with an answer, is not asked anything else.
    // SAFETY: plain values.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return refused("memory that is no memfd");
    }
    // SAFETY: all zeroes is a valid `statfs` and a valid `stat`; both calls fill what they are given.
    let (system, status) = unsafe {
        let (mut system, mut status): (libc::statfs, libc::stat) = std::mem::zeroed();
        if libc::fstatfs(file.as_raw_fd(), &mut system) < 0 || libc::fstat(file.as_raw_fd(), &mut status) < 0
        {
            return Err(io::Error::last_os_error());
        }
        (system, status)
    };
    if system.f_type != libc::TMPFS_MAGIC {
        return refused("memory that is no memfd");
    }
    if seals & libc::F_SEAL_SHRINK == 0 {
        return refused("memory that is not sealed against shrinking");
    }
    if u64::try_from(status.st_size).is_ok_and(|size| size >= len) && len > 0 {
        return Ok(());
    }
    refused("memory that is shorter than said")
}

/// Something to wait for that another thread rings: an eventfd.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        // SAFETY: plain values; the descriptor returned is ours.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            // SAFETY: as above.
            fd => Ok(Bell(unsafe { OwnedFd::from_raw_fd(fd) })),
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

/// One of two ends that ring one another, for processes that do not trust each other: sockets, since an eventfd's open file would be both's, and whoever
/// has it can make the other's calls wait. Here no call waits, whatever is done to the other end.
#[derive(Debug)]
pub(crate) struct Wire(OwnedFd);

impl Wire {
    /// Both ends.
    pub fn pair() -> io::Result<(Wire, OwnedFd)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors, which are ours when it succeeds.
        unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok((Wire(OwnedFd::from_raw_fd(ends[0])), OwnedFd::from_raw_fd(ends[1])))
        }
    }

    /// The end that another process gave.
    pub fn from_fd(fd: OwnedFd) -> Wire {
        Wire(fd)
    }

    /// Wakes whoever waits at the other end. One that was rung so often that there is no room for more is awake.
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

/// Descriptors that are waited for together: an epoll instance, itself something to wait for.
#[derive(Debug)]
pub(crate) struct Interest(OwnedFd);

impl Interest {
    pub fn new() -> io::Result<Interest> {
        // SAFETY: plain values; the descriptor returned is ours.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            // SAFETY: as above.
            fd => Ok(Interest(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// Adds one, which `token` stands for.
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: the event lives here.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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
    use std::os::fd::AsFd;

    #[test]
    fn only_memory_that_stays_is_taken() {
        let good = sealed_memory(8192).unwrap();
        assert!(check_sealed(good.as_fd(), 8192).is_ok());
        assert!(check_sealed(good.as_fd(), 8193).is_err());
        assert!(check_sealed(good.as_fd(), 0).is_err());
        // SAFETY: plain values.
        assert!(unsafe { libc::ftruncate(good.as_raw_fd(), 1) } < 0, "it cannot shrink");
        // SAFETY: a C string and plain values.
        let raw =
            unsafe { libc::memfd_create(c"loose".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        // SAFETY: the descriptor is ours.
        let loose = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: plain values.
        assert_eq!(unsafe { libc::ftruncate(loose.as_raw_fd(), 8192) }, 0);
        assert!(check_sealed(loose.as_fd(), 4096).unwrap_err().to_string().contains("not sealed"));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(check_sealed(file.as_fd(), 1).unwrap_err().to_string().contains("no memfd"));
    }

    #[test]
    fn what_is_ready_is_named() {
        let interest = Interest::new().unwrap();
        let (first, second) = (Bell::new().unwrap(), Bell::new().unwrap());
        interest.add(first.fd(), 7).unwrap();
        interest.add(second.fd(), u64::MAX).unwrap();
        let mut tokens = [0; 4];
        assert_eq!(interest.ready(&mut tokens), 0);
        second.ring();
        assert!(adverb_io::sys::wait_readable(interest.fd(), std::time::Duration::ZERO));
        assert_eq!((interest.ready(&mut tokens), tokens[0]), (1, u64::MAX));
        first.ring();
        assert_eq!((interest.ready(&mut tokens), interest.ready(&mut tokens[..1])), (2, 1));
        interest.remove(second.fd());
        assert_eq!((interest.ready(&mut tokens), tokens[0]), (1, 7));
        assert!(interest.add(first.fd(), 7).is_err());
    }

    #[test]
    fn a_wire_never_waits() {
        let (near, far) = Wire::pair().unwrap();
        let far = Wire::from_fd(far);
        // SAFETY: plain values.
        let flags = unsafe { libc::fcntl(near.fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0, "calls would wait if they did not say otherwise");
        assert!(near.quieten() && far.quieten(), "nobody has rung");
        let rung = |wire: &Wire| adverb_io::sys::wait_readable(wire.fd(), std::time::Duration::ZERO);
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
