//! System calls that std does not offer, each behind a safe function: clocks, record locks, FIFOs,
//! ppoll, scheduling, the list of network interfaces.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Turns the `-1` of a system call into the error it stands for.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer, and the clocks used here always exist on Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// The processor's cycle counter. Where there is none to read, a number that never seems fresh.
#[inline]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register that every x86-64 processor has.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::atomic::{AtomicU64, Ordering};
        static STEPS: AtomicU64 = AtomicU64::new(0);
        STEPS.fetch_add(1 << 32, Ordering::Relaxed)
    }
}

/// Nanoseconds of CLOCK_REALTIME.
pub fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Processor time that the other threads of this process have used, in nanoseconds.
pub fn other_threads_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(clock_ns(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// The processor that this thread runs on, or was running on a moment ago.
pub fn current_cpu() -> u32 {
    // SAFETY: takes and returns plain values.
    unsafe { libc::sched_getcpu() as u32 }
}

/// `enum membarrier_cmd` of the kernel.
const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: takes plain values; what it does to other threads no program can notice but by their order of memory.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks for [`barrier_in_all_threads`] to work in this process. False where it does not.
pub fn register_barrier() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED).is_ok()
        && membarrier(MEMBARRIER_PRIVATE_EXPEDITED).is_ok()
}

/// A full memory barrier in every thread of this process that runs, before this returns. The process has registered.
pub fn barrier_in_all_threads() {
    while let Err(error) = membarrier(MEMBARRIER_PRIVATE_EXPEDITED) {
        // The kernel may lack memory for a moment. Otherwise a filter of system calls was put in place meanwhile, and
        // there is no safe way to go on.
        if error.raw_os_error() != Some(libc::ENOMEM) {
            eprintln!(
                "adverb: membarrier(2) failed: {error}; let system call filters allow it, or set them before \
                       the device is opened"
            );
            std::process::abort();
        }
    }
}

/// Effective user of this process.
pub fn effective_uid() -> u32 {
    // SAFETY: takes and returns plain values.
    unsafe { libc::geteuid() }
}

/// Eight bytes from the kernel's random generator; the clock, should it have none.
pub fn random_seed() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is valid for its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { u64::from_ne_bytes(bytes) } else { realtime_ns() }
}

fn byte_lock(kind: libc::c_int, offset: u64) -> libc::flock {
    // SAFETY: all zeroes is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    lock
}

/// Locks one byte of a file for this process, waiting for its holder. The kernel drops the lock when
/// the process ends, however it ends; a child does not inherit it.
pub fn lock_byte(file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    loop {
        let lock = byte_lock(libc::F_WRLCK, offset);
        // SAFETY: `lock` is a valid record for the duration of the call.
        match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &lock) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => return other.map(drop),
        }
    }
}

/// Unlocks one byte.
pub fn unlock_byte(file: BorrowedFd<'_>, offset: u64) {
    let lock = byte_lock(libc::F_UNLCK, offset);
    // SAFETY: as above.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) };
}

/// Whether another process holds a lock on the byte.
pub fn is_locked_elsewhere(file: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    let mut lock = byte_lock(libc::F_WRLCK, offset);
    // SAFETY: `lock` is a valid record that the call may change.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Gives a file its size and the memory for it, so that a full file system is an error here and not
/// a SIGBUS later.
pub fn allocate(file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    // SAFETY: plain values and an open descriptor.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len as libc::off_t) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Creates a FIFO that only its owner may open.
pub fn create_fifo(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a valid C string.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).map(drop)
}

/// Descriptors to wait on.
#[derive(Default)]
pub struct WaitSet {
    fds: Vec<libc::pollfd>,
}

impl WaitSet {
    /// Forgets all descriptors.
    pub fn clear(&mut self) {
        self.fds.clear();
    }

    /// Adds one that should become readable or, where asked, writable.
    pub fn add(&mut self, fd: RawFd, or_writable: bool) {
        let events = libc::POLLIN | if or_writable { libc::POLLOUT } else { 0 };
        self.fds.push(libc::pollfd { fd, events, revents: 0 });
    }

    /// Waits until one of them is ready or `timeout` has passed. An interrupted wait finds nothing ready.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        let time = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: t.subsec_nanos() as libc::c_long,
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.fds.len() as libc::nfds_t;
        // SAFETY: the array is valid for its length; `time` is null or points to a timespec that lives here.
        let ready = unsafe { libc::ppoll(self.fds.as_mut_ptr(), count, time, std::ptr::null()) };
        if ready < 0 {
            self.fds.iter_mut().for_each(|fd| fd.revents = 0);
        }
    }

    /// Whether the descriptor added as the `index`-th is ready.
    pub fn is_ready(&self, index: usize) -> bool {
        self.fds.get(index).is_some_and(|fd| fd.revents != 0)
    }

    /// Whether one of those added from the `first`-th on is ready.
    pub fn is_any_ready(&self, first: usize) -> bool {
        self.fds.iter().skip(first).any(|fd| fd.revents != 0)
    }
}

/// Whether a descriptor becomes readable before `timeout` has passed.
pub fn wait_readable(fd: RawFd, timeout: Duration) -> bool {
    let mut set = WaitSet::default();
    set.add(fd, false);
    set.wait(Some(timeout));
    set.is_ready(0)
}

/// `struct sched_attr` of sched_setattr(2), first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for a short scheduling slice for the calling thread, so that its wake-up preempts a thread that
/// spins on memory, and for exact timers. Older kernels and sandboxes refuse; then it is slower.
pub fn prefer_short_waits(slice: Duration) {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: slice.as_nanos() as u64,
        deadline: 0,
        period: 0,
    };
    // SAFETY: `attr` is a valid record of the size it states; thread 0 is the caller. The other calls
    // take plain values.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            // The user chose how this process is scheduled.
            return;
        }
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        let attr = SchedAttr { nice, ..attr };
        libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0);
    }
}

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// Its netmask.
    pub netmask: IpAddr,
    /// The interface is up.
    pub up: bool,
    /// The interface is a loopback.
    pub loopback: bool,
}

/// Addresses of this network namespace's interfaces.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the answer.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is a node of the list, which lives until freeifaddrs below; its name is a C string,
        // and its addresses are null or valid for their family.
        unsafe {
            let node = &*at;
            at = node.ifa_next;
            if let (Some(address), Some(netmask)) =
                (sockaddr_ip(node.ifa_addr), sockaddr_ip(node.ifa_netmask))
            {
                found.push(InterfaceAddress {
                    name: CStr::from_ptr(node.ifa_name).to_string_lossy().into_owned(),
                    index: libc::if_nametoindex(node.ifa_name),
                    address,
                    netmask,
                    up: node.ifa_flags & libc::IFF_UP as u32 != 0,
                    loopback: node.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
                });
            }
        }
    }
    // SAFETY: the list came from getifaddrs and is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Reads the address out of a socket address.
///
/// # Safety
/// `address` is null, or points to a socket address that is as long as its family says.
unsafe fn sockaddr_ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller vouches for the pointer; each cast is to the type its family names.
    unsafe {
        match libc::c_int::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = &*address.cast::<libc::sockaddr_in6>();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

/// MTU and link-layer address of an interface.
pub fn interface_link(socket: BorrowedFd<'_>, name: &str) -> io::Result<(u32, [u8; 6])> {
    // SAFETY: all zeroes is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: `request` is a valid record with a terminated name; each call fills the union's field that
    // is read after it.
    unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request))?;
        let mtu = request.ifr_ifru.ifru_mtu.max(0) as u32;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request))?;
        let data = request.ifr_ifru.ifru_hwaddr.sa_data;
        Ok((mtu, [data[0], data[1], data[2], data[3], data[4], data[5]].map(|b| b as u8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_loopback_is_found() {
        let addresses = interface_addresses().unwrap();
        let lo = addresses.iter().find(|a| a.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(lo.loopback && lo.up && lo.index > 0);
        assert_eq!(lo.netmask, IpAddr::V4(Ipv4Addr::new(255, 0, 0, 0)));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mtu, mac) = interface_link(socket.as_fd(), &lo.name).unwrap();
        assert!(mtu >= 1280);
        assert_eq!(mac, [0; 6]);
        assert!(interface_link(socket.as_fd(), "a name that is too long").is_err());
    }

    #[test]
    fn waits_end_by_time_and_by_data() {
        let mut set = WaitSet::default();
        set.wait(Some(Duration::from_millis(1)));
        assert!(!set.is_any_ready(0));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        assert!(!wait_readable(fd, Duration::ZERO));
        set.add(fd, true);
        set.wait(None);
        assert!(set.is_ready(0) && !set.is_any_ready(1));
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        assert!(wait_readable(fd, Duration::from_secs(5)));
        set.clear();
        assert!(!set.is_ready(0));
    }

    #[test]
    fn clocks_advance() {
        let start = monotonic_ns();
        while monotonic_ns() == start {}
        assert!(realtime_ns() > 1_600_000_000_000_000_000);
    }
}
