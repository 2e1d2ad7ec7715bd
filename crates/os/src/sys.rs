//! System calls that std does not offer, each behind a safe function: record locks, FIFOs, ppoll, scheduling,
//! randomness.
#![allow(unsafe_code)]

use crate::{check, clock};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The processor that this thread runs on, or was running on a moment ago.
pub fn current_cpu() -> u32 {
    // SAFETY: takes and returns plain values.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Bytes that the allocator has given to this process's programs and not had back.
#[cfg(target_env = "gnu")]
pub fn heap_in_use() -> Option<u64> {
    // Asked for by name: glibc has it from 2.33 on, and one command is to run with older ones too.
    // SAFETY: a name that ends in a zero byte, looked for in what is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
    if found.is_null() {
        return Some(heap_below_4_gb());
    }
    // SAFETY: glibc's only function of that name takes nothing, and returns plain values.
    let call: extern "C" fn() -> libc::mallinfo2 = unsafe { std::mem::transmute(found) };
    let info = call();
    Some((info.uordblks + info.hblkhd) as u64)
}

/// The same by the older call, whose two numbers begin anew at 4 GB.
#[cfg(target_env = "gnu")]
fn heap_below_4_gb() -> u64 {
    // SAFETY: takes nothing, and returns plain values.
    let info = unsafe { libc::mallinfo() };
    u64::from(info.uordblks as u32) + u64::from(info.hblkhd as u32)
}

/// Not every C library tells.
#[cfg(not(target_env = "gnu"))]
pub fn heap_in_use() -> Option<u64> {
    None
}

/// Effective user of this process.
pub fn effective_uid() -> u32 {
    // SAFETY: takes and returns plain values.
    unsafe { libc::geteuid() }
}

/// Bytes of memory that this host has; 0 where the system does not tell.
pub fn physical_memory() -> u64 {
    // SAFETY: takes and returns plain values.
    let (pages, bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(bytes).unwrap_or(0))
}

/// Eight bytes from the kernel's random generator; the clock, should it have none.
#[expect(clippy::disallowed_methods, reason = "a seed, on systems that filter getrandom(2)")]
pub fn random_seed() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is valid for its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { u64::from_ne_bytes(bytes) } else { clock::realtime_ns() }
}

/// Bytes from the kernel's random generator, for a key.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the buffer is valid for its length.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } {
        got if got == N as isize => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
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

/// Between two looks at a lock that another process holds: the kernel offers a wait without an end only.
const LOCK_TICK: Duration = Duration::from_millis(1);

/// Locks one byte of a file for this process, as [`lock_byte`] does, unless the same process holds it for all
/// of `patience`: that one is stopped, or hangs. `Some` is its number then, 0 if it cannot be seen from here.
#[expect(clippy::disallowed_methods, reason = "a record lock has no wait with an end")]
pub fn lock_byte_patiently(file: BorrowedFd<'_>, offset: u64, patience: Duration) -> io::Result<Option<u32>> {
    let (mut holder, mut since) = (None, Instant::now());
    loop {
        let lock = byte_lock(libc::F_WRLCK, offset);
        // SAFETY: `lock` is a valid record for the duration of the call.
        match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) }) {
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {}
            Err(e) => return Err(e),
        }
        let mut found = byte_lock(libc::F_WRLCK, offset);
        // SAFETY: `found` is a valid record that the call may change.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut found) })?;
        let pid = u32::try_from(found.l_pid).unwrap_or(0);
        if found.l_type != libc::F_UNLCK as libc::c_short && holder != Some(pid) {
            (holder, since) = (Some(pid), Instant::now());
        }
        if since.elapsed() >= patience {
            return Ok(Some(holder.unwrap_or(0)));
        }
        std::thread::sleep(LOCK_TICK);
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
            tv_sec: t.as_secs().min(1 << 30) as _,
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

    /// Forgets the one that was added last; whether it is ready.
    pub fn take_last(&mut self) -> bool {
        self.fds.pop().is_some_and(|fd| fd.revents != 0)
    }
}

/// Whether a descriptor becomes readable before `timeout` has passed.
pub fn wait_readable(fd: RawFd, timeout: Duration) -> bool {
    let mut set = WaitSet::default();
    set.add(fd, false);
    set.wait(Some(timeout));
    set.is_ready(0)
}

/// Whether a descriptor can be written to, or has an error to tell, before `timeout` has passed.
pub fn wait_writable(fd: RawFd, timeout: Duration) -> bool {
    let mut set = WaitSet { fds: vec![libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }] };
    set.wait(Some(timeout));
    set.is_ready(0)
}

/// Has the kernel ask the other end of an idle TCP connection whether it is there: after so many seconds, and
/// then three times more. A host that ended without a word ends the connection.
pub fn keep_alive(stream: BorrowedFd<'_>, idle_s: i32) -> io::Result<()> {
    let between_s = (idle_s / 3).max(1);
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle_s),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, between_s),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ] {
        set_option(stream, level, option, value)?;
    }
    Ok(())
}

/// Sets a socket's option whose value is an int.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let place = (&raw const value).cast();
    // SAFETY: the value is an int of that size.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, place, size) }).map(drop)
}

/// What the kernel keeps for a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Buffer {
    /// What the other end has not taken yet.
    Send,
    /// What this process has not taken yet.
    Receive,
}

/// Asks the kernel to keep so many bytes for a socket: beyond the system's limit where that is allowed, and
/// else as many as the limit lets it.
pub(crate) fn ask_for_buffer(socket: BorrowedFd<'_>, buffer: Buffer, bytes: usize) -> io::Result<()> {
    let (force, plain) = match buffer {
        Buffer::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        Buffer::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
    };
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let forced = set_option(socket, libc::SOL_SOCKET, force, bytes);
    forced.or_else(|_| set_option(socket, libc::SOL_SOCKET, plain, bytes))
}

/// Has a connection be reset when it is closed: the other end, if it has not yet read what was sent, learns
/// that nobody waits for it any more.
pub fn reset_on_close(stream: BorrowedFd<'_>) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    let value = (&raw const linger).cast();
    // SAFETY: the value is a linger of that size.
    check(unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size) })?;
    Ok(())
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

/// What a thread does, by `/proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadState {
    /// It runs, or waits for a processor or a disk.
    Runnable,
    /// It waits for something else.
    Sleeping,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It cannot be seen: it has ended, or `/proc` hides it.
    Unknown,
}

/// What a thread of a process does.
pub fn thread_state(pid: u32, tid: u32) -> ThreadState {
    std::fs::read(format!("/proc/{pid}/task/{tid}/stat")).map_or(ThreadState::Unknown, |stat| state_in(&stat))
}

/// The state in a line of `/proc/PID/stat`: behind the name, which may hold anything.
fn state_in(stat: &[u8]) -> ThreadState {
    let letter = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2));
    match letter {
        Some(b'R' | b'D') => ThreadState::Runnable,
        Some(b'S' | b'I') => ThreadState::Sleeping,
        Some(b'T' | b't') => ThreadState::Stopped,
        _ => ThreadState::Unknown,
    }
}

/// How long a thread has had a processor, in ns. None if it has ended, or the kernel does not say.
pub fn thread_ran(pid: u32, tid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// When a process was begun, in ticks since the machine was: with its number, no other process's. None if it
/// has ended, or `/proc` hides it.
pub fn process_begun(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    begun_in(&stat)
}

/// The parent of a process. None if it has ended, or `/proc` hides it.
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 0)
}

/// The 22nd word of `/proc/PID/stat`, of which the second is a name that may hold anything; none of a process
/// that has ended and was not waited for.
fn begun_in(stat: &str) -> Option<u64> {
    let mut words = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let is_over = matches!(words.next()?, "Z" | "X");
    words.nth(18)?.parse().ok().filter(|_| !is_over)
}

/// The calling thread's number.
pub fn thread_id() -> u32 {
    // SAFETY: takes nothing, and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// The number of this process's PID namespace, in which process numbers mean something.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| std::os::unix::fs::MetadataExt::ino(&found))
}

/// Asks for a short scheduling slice for the calling thread, so that its wake-up preempts a thread that
/// spins on memory, and for exact timers. Older kernels and sandboxes refuse; then it is slower.
pub fn prefer_short_waits(slice: Duration) {
    // SAFETY: plain values.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    prefer_short_turns(slice);
}

/// Times that the calling thread was taken off its processor though it could have gone on.
pub fn involuntary_switches() -> u64 {
    switches_of(libc::RUSAGE_THREAD)
}

/// Times that threads of this process were taken off their processors though they could have gone on.
pub fn involuntary_switches_of_all() -> u64 {
    switches_of(libc::RUSAGE_SELF)
}

fn switches_of(whose: libc::c_int) -> u64 {
    // SAFETY: all zeroes is a valid `rusage`, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &mut usage);
        usage
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// Asks for a short scheduling slice for the calling thread.
fn prefer_short_turns(slice: Duration) {
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
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            // The user chose how this process is scheduled.
            return;
        }
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        let attr = SchedAttr { nice, ..attr };
        libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_is_seen_to_run() {
        let (pid, tid) = (std::process::id(), thread_id());
        let before = thread_ran(pid, tid).expect("the kernel counts");
        // A thread that has a processor is counted at each tick.
        while thread_ran(pid, tid) == Some(before) {
            std::hint::spin_loop();
        }
        assert_eq!(thread_ran(pid, u32::MAX), None);
    }

    /// Under a sanitizer the heap is its own, of which glibc's calls tell nothing.
    #[test]
    #[cfg(all(target_env = "gnu", not(any(miri, adverb_portable_copy))))]
    fn the_heap_is_told_by_either_call() {
        // Far more than other tests have and give back meanwhile.
        const SIZE: u64 = 1 << 30;
        let told = || [heap_in_use().expect("glibc tells"), heap_below_4_gb()];
        let before = told();
        // Untouched: it takes no memory of the host's.
        let held = std::hint::black_box(Vec::<u8>::with_capacity(SIZE as usize));
        for (now, before) in told().into_iter().zip(before) {
            assert!((SIZE / 2..SIZE * 3 / 2).contains(&now.abs_diff(before)), "{now} after {before}");
        }
        drop(held);
        assert!(told().into_iter().zip(before).all(|(now, before)| now.abs_diff(before) < SIZE / 2));
    }

    #[test]
    fn a_connection_that_is_reset_tells_who_has_not_yet_read() {
        use std::io::Write;
        use std::os::fd::AsFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for resets in [false, true] {
            let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            keep_alive(far.as_fd(), 15).unwrap();
            near.write_all(b"do it").unwrap();
            if resets {
                reset_on_close(near.as_fd()).unwrap();
            }
            drop(near);
            assert!(wait_readable(far.as_raw_fd(), Duration::from_secs(10)));
            let error = far.take_error().unwrap().map(|error| error.kind());
            assert_eq!(error, resets.then_some(io::ErrorKind::ConnectionReset));
        }
        let pipe = io::pipe().unwrap().0;
        assert!(keep_alive(pipe.as_fd(), 15).is_err() && reset_on_close(pipe.as_fd()).is_err());
    }

    #[test]
    fn a_thread_is_seen_as_what_it_does() {
        assert_eq!(thread_state(std::process::id(), thread_id()), ThreadState::Runnable);
        assert_eq!(thread_state(u32::MAX, 1), ThreadState::Unknown);
        assert_ne!(pid_namespace(), 0);
        for (line, expected) in [
            ("7 (a) S 1", ThreadState::Sleeping),
            ("7 (a) R) T 1", ThreadState::Stopped),
            ("7 (a) t 1", ThreadState::Stopped),
            ("7 (a) D 1", ThreadState::Runnable),
            ("7 (a) Z 1", ThreadState::Unknown),
            ("7 (a)", ThreadState::Unknown),
            ("", ThreadState::Unknown),
        ] {
            assert_eq!(state_in(line.as_bytes()), expected, "{line}");
        }
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // SAFETY: signals a child that has not been waited for.
        let signal = |signal| unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        assert_eq!(signal(libc::SIGSTOP), 0);
        let mut status = 0;
        // SAFETY: waits for that child to stop; `status` is a place for the answer.
        unsafe { libc::waitpid(child.id() as libc::pid_t, &mut status, libc::WUNTRACED) };
        assert_eq!(thread_state(child.id(), child.id()), ThreadState::Stopped);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let own = process_begun(std::process::id());
        assert!(own.is_some() && own == process_begun(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(process_begun(child.id()) >= own);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process_begun(child.id()), None);
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 77 20";
        assert_eq!(begun_in(&format!("7 (a) b) S {rest}")), Some(77));
        for line in [format!("7 (a) Z {rest}"), "7 (a) S 1 2".to_owned(), "7 (a".to_owned(), String::new()] {
            assert_eq!(begun_in(&line), None, "{line}");
        }
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
}
