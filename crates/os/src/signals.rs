//! SIGINT and SIGTERM as something a program can wait for, and SIGTERM for a child.
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

/// Asks a child of this process that has not been waited for to end.
pub fn terminate(child: u32) {
    let Ok(child) = libc::pid_t::try_from(child) else { return };
    if child > 0 {
        // SAFETY: plain values. A child that has ended keeps its number until it is waited for.
        unsafe { libc::kill(child, libc::SIGTERM) };
    }
}
