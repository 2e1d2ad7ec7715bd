//! A process that stays beside the program that it has started, and is not noticed: whoever started it sees
//! the program's exit status or the signal that ended it, can signal it and stop it, and the program has the
//! terminal.
//!
//! Both are of one process group, so the terminal's signals reach the program without help. A signal that
//! somebody sends to this process alone goes on to the program. Where the program stops, this process stops
//! by the same signal, which is what a shell waits for; where this one is told to go on, so is the program.
//! Signals cannot be asked whether they were for one process or for its group; a second process of the group,
//! the witness, blocks all signals and so keeps those for the group. The kernel signals the youngest member
//! of a group first: when this process, the oldest, has the signal, the witness has it, too.
#![allow(unsafe_code)]

use crate::check;
use crate::signals::{Signal, dies_with_this_thread, send};
use crate::sys::parent_of;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Signals that go on to the program when they are sent to this process: those that a program may wait for,
/// but SIGCHLD, which tells of the program.
const FORWARDED: [libc::c_int; 15] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGVTALRM,
    libc::SIGWINCH,
    libc::SIGIO,
];
/// How many ancestors of a sender are looked at.
const GENERATIONS: usize = 64;

/// How the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// With this exit status.
    Status(u8),
    /// By this signal.
    Signal(i32),
}

/// What `waitpid` tells of the program.
enum Change {
    Ended(Ending),
    Stopped(i32),
    Nothing,
}

/// The program, and what its signals come to.
#[derive(Debug)]
pub struct Attendant {
    child: Child,
    signals: OwnedFd,
    /// All that this process has open.
    files: Vec<RawFd>,
    witness: Option<libc::pid_t>,
}

fn signal_set(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    // SAFETY: a set of zeros is the empty one on Linux; the pointer is to a local.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

fn set_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is a whole one.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

impl Attendant {
    /// Starts a program. To be called before this process has other threads. From now on this process has
    /// none of its files but standard error and `keep`: whoever waits for the end of a pipe waits for the
    /// program alone.
    pub fn start(command: &mut Command, keep: &[RawFd]) -> io::Result<Attendant> {
        let set = signal_set(FORWARDED.into_iter().chain([libc::SIGCHLD]));
        let mut before = signal_set([]);
        // SAFETY: whole sets; the descriptor returned is ours.
        let (signals, chld_was) = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            let signals = OwnedFd::from_raw_fd(check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC))?);
            // Who ignores it hears of no child.
            (signals, libc::signal(libc::SIGCHLD, libc::SIG_DFL))
        };
        let as_before = move || {
            if chld_was == libc::SIG_IGN {
                // SAFETY: plain values.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            }
            set_mask(libc::SIG_SETMASK, &before)
        };
        // SAFETY: between fork and exec, `as_before` makes two calls that are safe there.
        unsafe { command.pre_exec(as_before) };
        let child = dies_with_this_thread(command).spawn()?;
        // What is ignored here, as under nohup, is not told; the program may want it.
        for signal in FORWARDED {
            // SAFETY: plain values. It is blocked.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        let files: Vec<RawFd> = keep.iter().copied().chain([0, 1, 2, signals.as_raw_fd()]).collect();
        let_go_of_files(&files)?;
        let witness = witness(&files);
        Ok(Attendant { child, signals, files, witness })
    }

    /// The program's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the program's end.
    pub fn wait(&mut self) -> io::Result<Ending> {
        loop {
            match self.change()? {
                Change::Ended(ending) => {
                    self.dismiss();
                    return Ok(ending);
                }
                Change::Stopped(signal) => {
                    self.stop_too(signal)?;
                    continue;
                }
                Change::Nothing => {}
            }
            let Some(info) = self.next_signal()? else { continue };
            let number = info.ssi_signo as i32;
            if number != libc::SIGCHLD && self.is_for_this_process(&info) {
                self.pass_on(number);
            }
        }
    }

    fn next_signal(&self) -> io::Result<Option<libc::signalfd_siginfo>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let len = std::mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: room for `len` bytes in a local that is valid whatever its bytes are.
        let (got, info) = unsafe {
            let got = libc::read(self.signals.as_raw_fd(), info.as_mut_ptr().cast(), len);
            (got, info.assume_init())
        };
        if got >= 0 {
            return Ok((got as usize == len).then_some(info));
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        }
    }

    /// Whether a signal was sent to this process, and to it alone. The terminal signals the whole group, and
    /// so does the program, which does not know of this process.
    fn is_for_this_process(&mut self, info: &libc::signalfd_siginfo) -> bool {
        let number = info.ssi_signo as i32;
        if info.ssi_code > 0 || self.is_of_program(info.ssi_pid) {
            self.renew_witness(number);
            return false;
        }
        !self.renew_witness(number)
    }

    fn is_of_program(&self, sender: u32) -> bool {
        let ancestors = std::iter::successors(Some(sender), |pid| parent_of(*pid));
        ancestors.take(GENERATIONS).any(|pid| pid == self.child.id())
    }

    /// Whether the witness has the signal; then it is replaced by one that has none.
    fn renew_witness(&mut self, signal: i32) -> bool {
        let Some(pid) = self.witness else { return false };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
        let has = pending >> (signal - 1) & 1 == 1;
        if has {
            self.dismiss();
            self.witness = witness(&self.files);
        }
        has
    }

    fn dismiss(&mut self) {
        if let Some(pid) = self.witness.take() {
            // SAFETY: a child of this process that has not been waited for; nothing is written.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }

    fn pass_on(&self, signal: i32) {
        // SAFETY: plain values, of a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// What has become of the program. Does not wait.
    fn change(&self) -> io::Result<Change> {
        let mut status = 0;
        let pid = self.child.id() as libc::pid_t;
        // SAFETY: writes into the local.
        let found = check(unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::WUNTRACED) })?;
        Ok(match found {
            0 => Change::Nothing,
            _ if libc::WIFEXITED(status) => Change::Ended(Ending::Status(libc::WEXITSTATUS(status) as u8)),
            _ if libc::WIFSIGNALED(status) => Change::Ended(Ending::Signal(libc::WTERMSIG(status))),
            _ if libc::WIFSTOPPED(status) => Change::Stopped(libc::WSTOPSIG(status)),
            _ => Change::Nothing,
        })
    }

    /// The program has stopped: so does this process, until it is told to go on; then the program goes on.
    fn stop_too(&self, signal: i32) -> io::Result<()> {
        stop_by(signal)?;
        let pid = self.child.id();
        // A signal to the group has continued it already; a handler of its own must not be called twice.
        if is_stopped(pid) {
            send(pid, Signal::Continue)?;
        }
        // What has continued this process lies in the descriptor, and was meant for both.
        let set = signal_set([libc::SIGCONT]);
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: takes a pending signal of this process; all pointers are to locals.
        while unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &now) } > 0 {}
        Ok(())
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.dismiss();
    }
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Stops this process by a signal, whose default that is.
fn stop_by(signal: i32) -> io::Result<()> {
    // SIGSTOP cannot be blocked, and needs no more.
    let set = signal_set([signal]);
    // SAFETY: plain values; the signal is for this thread, which takes it as soon as it lets it in.
    unsafe { libc::raise(signal) };
    if signal == libc::SIGSTOP {
        return Ok(());
    }
    set_mask(libc::SIG_UNBLOCK, &set)?;
    set_mask(libc::SIG_BLOCK, &set)
}

/// A process of this group that keeps the signals for the group. `None` where there can be none: then a
/// signal for the group reaches the program twice.
fn witness(files: &[RawFd]) -> Option<libc::pid_t> {
    let parent = std::process::id();
    // SAFETY: the child makes only calls that are safe after a fork: it blocks all signals, closes its files,
    // which it has none to use of, and sleeps until it is killed.
    unsafe {
        let pid = libc::fork();
        if pid != 0 {
            return (pid > 0).then_some(pid);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        for fd in files {
            libc::close(*fd);
        }
        while libc::getppid() as u32 == parent {
            libc::pause();
        }
        libc::_exit(0)
    }
}

/// Gives up all files of this process but these; its standard input and output become `/dev/null`.
fn let_go_of_files(kept: &[RawFd]) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // The listing's own is among them, and closed by then.
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    // SAFETY: what is closed is what the program has inherited and this process never uses: it has opened
    // no file itself but those that are kept, and standard input and output are replaced.
    unsafe {
        check(libc::dup2(null.as_raw_fd(), 0))?;
        check(libc::dup2(null.as_raw_fd(), 1))?;
        for fd in open.into_iter().filter(|fd| *fd > 2 && *fd != null.as_raw_fd() && !kept.contains(fd)) {
            libc::close(fd);
        }
    }
    Ok(())
}

/// Ends this process by a signal, as the program ended. Returns if the signal does not do that.
pub fn end_by(signal: i32) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain values and pointers to locals. The program has left its own core, if any.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    // Best effort: the caller has a status to end with otherwise.
    let _ = set_mask(libc::SIG_UNBLOCK, &signal_set([signal]));
}
