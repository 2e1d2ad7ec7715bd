//! Which processors threads may run on.
#![allow(unsafe_code)]

use crate::check;
use std::fs;
use std::io;
use std::mem::{size_of, zeroed};

/// The processors that this thread may run on, by number.
pub fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: all bits zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the kernel writes as many bytes as `set` has at most.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })?;
    // SAFETY: the number is below the set's size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
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
    use crate::sys::current_cpu;
    use std::process::{Command, Stdio};

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
