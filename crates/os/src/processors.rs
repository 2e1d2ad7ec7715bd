//! Which processors threads may run on.
#![allow(unsafe_code)]

use crate::check;
use crate::sys::current_cpu;
use std::fs;
use std::io;
use std::mem::{size_of, zeroed};

/// The processors that this thread may run on.
fn own_set() -> io::Result<libc::cpu_set_t> {
    // SAFETY: all bits zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the kernel writes as many bytes as `set` has at most.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })?;
    Ok(set)
}

/// Has this thread run on these only.
fn set_own(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as `set` has.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) }).map(|_| ())
}

/// The processors that this thread may run on, by number.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = own_set()?;
    // SAFETY: the number is below the set's size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// A thread that keeps off a processor for a while.
pub struct Aside {
    /// Where it might run before, and where it may now.
    before: libc::cpu_set_t,
    now: libc::cpu_set_t,
}

impl Aside {
    /// Moves this thread to another of the processors that it may run on, and keeps it off the one that it
    /// was on. None where there is no other.
    pub fn step() -> Option<Aside> {
        let (before, cpu) = (own_set().ok()?, current_cpu() as usize);
        let mut now = before;
        if cpu >= libc::CPU_SETSIZE as usize {
            return None;
        }
        // SAFETY: the number was checked.
        unsafe { libc::CPU_CLR(cpu, &mut now) };
        set_own(&now).ok()?;
        Some(Aside { before, now })
    }

    /// Lets this thread run where it might before, unless somebody else has decided on it meanwhile.
    pub fn end(self) {
        // SAFETY: both are whole sets.
        let untouched = own_set().is_ok_and(|set| unsafe { libc::CPU_EQUAL(&set, &self.now) });
        if untouched {
            // Nothing depends on it: the thread runs in any case.
            let _ = set_own(&self.before);
        }
    }
}

/// Has a thread run on one processor only, and what it starts from now on: its number, or 0 for the caller.
pub fn pin_thread(thread: u32, cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: all bits zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the number was checked, and the kernel reads as many bytes as `set` has.
    check(unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set)
    })
    .map(|_| ())
}

/// The same for all threads that a process has.
pub fn pin_process(process: u32, cpu: usize) -> io::Result<()> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = task?.file_name().to_string_lossy().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        match pin_thread(thread, cpu) {
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            pinned => pinned?,
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_thread_steps_aside_and_may_come_back() {
        std::thread::spawn(|| {
            let all = allowed().unwrap();
            let aside = Aside::step();
            assert_eq!(aside.is_some(), all.len() > 1);
            if let Some(aside) = aside {
                let there = allowed().unwrap();
                assert_eq!(there.len(), all.len() - 1);
                assert!(there.contains(&(current_cpu() as usize)));
                aside.end();
                assert_eq!(allowed().unwrap(), all);
            }
            if let Some(aside) = Aside::step() {
                let there = allowed().unwrap();
                let left = *all.iter().find(|cpu| !there.contains(cpu)).unwrap();
                pin_thread(0, left).unwrap();
                aside.end();
                assert_eq!(allowed().unwrap(), [left], "somebody else has decided");
            }
            pin_thread(0, all[0]).unwrap();
            assert!(Aside::step().is_none(), "there is no other");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_runs_where_it_is_pinned_and_so_does_what_it_starts() {
        let all = allowed().unwrap();
        let last = *all.last().unwrap();
        std::thread::spawn(move || {
            pin_thread(0, last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
            assert_eq!(current_cpu() as usize, last);
            assert_eq!(std::thread::spawn(allowed).join().unwrap().unwrap(), [last]);
        })
        .join()
        .unwrap();
        // Of other threads nothing has changed.
        assert_eq!(allowed().unwrap(), all);
        assert!(pin_thread(0, usize::MAX).is_err());
    }

    #[test]
    fn another_process_is_pinned() {
        let first = allowed().unwrap()[0];
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        pin_process(child.id(), first).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let found = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(found.trim(), first.to_string());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(pin_process(child.id(), first).is_err(), "it has ended");
    }
}
