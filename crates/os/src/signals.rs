//! SIGINT and SIGTERM as something a program can wait for, SIGTERM for a child, and writing to pipes without
//! SIGPIPE.
#![allow(unsafe_code)]

use crate::check;
use std::io;

/// From now on SIGINT and SIGTERM end this process no more: the first of them has `stop` called, on a
/// thread of its own; a second one ends the process as before. To be called before other threads are
/// started, which would take the signals otherwise.
pub fn on_stop(stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: a `sigset_t` of zeros is a place for the next calls to fill; all pointers are to locals.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        check(libc::sigemptyset(&mut set))?;
        check(libc::sigaddset(&mut set, libc::SIGINT))?;
        check(libc::sigaddset(&mut set, libc::SIGTERM))?;
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => set,
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    };
    let builder = std::thread::Builder::new().name("adverb-signals".to_owned());
    builder.spawn(move || {
        let mut signal = 0;
        // SAFETY: waits for a signal of the set; both pointers are to locals.
        if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
            stop();
        }
        // SAFETY: lets this thread, and so the process, have the next one as usual.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
        loop {
            std::thread::park();
        }
    })?;
    Ok(())
}

/// What a thread brings about itself: blocked, they would end the process without its handler.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread of a library's, which takes none of its program's signals. A program that waits for one
/// (`sigwait(3)`, `signalfd(2)`) has blocked it in the threads that it knows of: a further one that took the
/// signal would end the process. And a handler that ran in it could wait for what the thread itself holds.
pub fn library_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<std::thread::JoinHandle<T>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    // SAFETY: sets of zeros are places for the calls to fill, all pointers are to locals. The mask is this
    // thread's own and is set back; the new thread begins with it.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in FAULTS {
            libc::sigdelset(&mut all, fault);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        let started = builder.spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}

/// Calls `write`; a pipe without a reader is the error that it returns, and not SIGPIPE, which ends a program
/// that does not ask for it. A library must not change how its program takes signals, so the signal is kept
/// from this thread and taken away.
pub fn without_sigpipe<R>(write: impl FnOnce() -> R) -> R {
    // SAFETY: sets of zeros are places for the calls to fill, and all pointers are to locals. The mask and
    // the pending signal are this thread's own: SIGPIPE is raised in the thread that writes.
    unsafe {
        let (mut pipe, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        // One that waits already is the program's own.
        let was_pending = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        if was_pending || libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before) != 0 {
            return write();
        }
        let result = write();
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        while libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now) < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// A writer whose pipe may lose its reader: see [`without_sigpipe`].
#[derive(Debug)]
pub struct Quiet<W>(pub W);

impl<W: io::Write> io::Write for Quiet<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        without_sigpipe(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        without_sigpipe(|| self.0.flush())
    }
}

/// Lets a program that is started from here have the signals that [`on_stop`] keeps from this one. For
/// `CommandExt::pre_exec`: nothing but one system call.
pub fn unblock() -> io::Result<()> {
    // SAFETY: a `sigset_t` of zeros is the empty set on Linux; the pointer is to a local.
    unsafe {
        let set: libc::sigset_t = std::mem::zeroed();
        match libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Has the child of a command begin with no signal blocked.
pub fn for_child(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec, `unblock` makes one call that is safe there, and allocates nothing.
    unsafe { command.pre_exec(unblock) }
}

/// Has the child of a command be killed when the thread that starts it ends, however that comes, even if the
/// child is stopped.
pub fn dies_with_this_thread(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    let parent = std::process::id();
    let ask = move || {
        // SAFETY: two system calls with plain values.
        let here = unsafe {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            libc::getppid()
        };
        // It may have ended before it was asked about.
        if u32::try_from(here) == Ok(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: between fork and exec, `ask` makes two calls that are safe there, and allocates nothing.
    unsafe { command.pre_exec(ask) }
}

/// Asks a child of this process that has not been waited for to end.
pub fn terminate(child: u32) {
    let Ok(child) = libc::pid_t::try_from(child) else { return };
    if child > 0 {
        // SAFETY: plain values. A child that has ended keeps its number until it is waited for.
        unsafe { libc::kill(child, libc::SIGTERM) };
    }
}

/// What a process of this user's is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Stand still.
    Stop,
    /// Go on.
    Continue,
    /// End at once.
    Kill,
}

/// Tells a process.
pub fn send(process: u32, signal: Signal) -> io::Result<()> {
    let number = match signal {
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
        Signal::Kill => libc::SIGKILL,
    };
    let process = libc::pid_t::try_from(process).ok().filter(|process| *process > 0);
    let process = process.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: plain values, and one process is named.
    check(unsafe { libc::kill(process, number) }).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn a_child_is_stopped_continued_and_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let until = |stopped: bool| {
            while state().contains(") T ") != stopped {
                std::thread::yield_now();
            }
        };
        send(child.id(), Signal::Stop).unwrap();
        until(true);
        send(child.id(), Signal::Continue).unwrap();
        until(false);
        send(child.id(), Signal::Kill).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(send(0, Signal::Kill).is_err(), "that would be a group");
    }

    /// The signals that the calling thread blocks, as the kernel says them: a bit each.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    #[test]
    fn a_librarys_thread_takes_faults_only_and_its_starter_what_it_took_before() {
        let before = blocked();
        let theirs = library_thread("test", blocked).unwrap().join().unwrap();
        assert_eq!(blocked(), before);
        let is_in = |signal: i32| (theirs >> (signal - 1)) & 1 == 1;
        for signal in
            [libc::SIGUSR1, libc::SIGUSR2, libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGRTMIN()]
        {
            assert!(is_in(signal), "{signal}");
        }
        assert!(FAULTS.iter().all(|fault| !is_in(*fault)));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("1000");
            dies_with_this_thread(for_child(&mut command)).spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
