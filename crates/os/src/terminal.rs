//! A terminal that a program draws on: keys one by one, its size, and when that changes.
#![allow(unsafe_code)]

use crate::check;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Another screen, without a cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";
/// What a terminal has that does not say.
const USUAL: (usize, usize) = (80, 24);

/// What happened at the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happened {
    /// This key.
    Key(u8),
    /// Its size is another one.
    Resized,
    /// Somebody asks the program to end.
    Stop,
    /// Nobody is at the other end any more.
    Gone,
    /// Nothing, for as long as was waited.
    Nothing,
}

/// The terminal at standard input and output, as it was before when this is dropped.
pub struct Terminal {
    before: libc::termios,
    signals: OwnedFd,
}

impl Terminal {
    /// Takes the terminal: keys come at once and are not shown. To be called before there are other threads.
    pub fn take() -> io::Result<Terminal> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(io::Error::other("standard input and output are no terminal"));
        }
        // SAFETY: zeros are a valid `termios` and an empty set; all pointers are to locals; the descriptor
        // returned is ours.
        let terminal = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            for signal in [libc::SIGWINCH, libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let signals = OwnedFd::from_raw_fd(check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC))?);
            let mut before: libc::termios = std::mem::zeroed();
            check(libc::tcgetattr(0, &mut before))?;
            let mut raw = before;
            raw.c_lflag &= !(libc::ICANON | libc::ECHO);
            check(libc::tcsetattr(0, libc::TCSADRAIN, &raw))?;
            Terminal { before, signals }
        };
        io::stdout().write_all(ENTER)?;
        io::stdout().flush()?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        // SAFETY: zeros are a valid `winsize`, which the call fills.
        let size = unsafe {
            let mut size: libc::winsize = std::mem::zeroed();
            libc::ioctl(1, libc::TIOCGWINSZ, &raw mut size);
            size
        };
        match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => USUAL,
            (columns, rows) => (columns.into(), rows.into()),
        }
    }

    /// Shows lines from the upper left corner on, and nothing else. They fit.
    pub fn show(&self, lines: &[String]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            if at > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        let mut out = io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Waits until something happens.
    pub fn wait(&self, longest: Duration) -> io::Result<Happened> {
        let mut fds =
            [0, self.signals.as_raw_fd()].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let ms = i32::try_from(longest.as_millis().max(1)).unwrap_or(i32::MAX);
        // SAFETY: two places that live here.
        let ready = check(unsafe { libc::poll(fds.as_mut_ptr(), 2, ms) });
        match ready {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Happened::Nothing),
            Err(e) => return Err(e),
            Ok(0) => return Ok(Happened::Nothing),
            Ok(_) => {}
        }
        if fds[1].revents != 0 {
            return self.signal();
        }
        let mut key = [0];
        match io::stdin().read(&mut key) {
            Ok(1) => Ok(Happened::Key(key[0])),
            _ => Ok(Happened::Gone),
        }
    }

    fn signal(&self) -> io::Result<Happened> {
        // SAFETY: zeros are a valid `signalfd_siginfo`; there is room for one.
        let number = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let len = std::mem::size_of::<libc::signalfd_siginfo>();
            if libc::read(self.signals.as_raw_fd(), (&raw mut info).cast(), len) < 0 {
                return Err(io::Error::last_os_error());
            }
            info.ssi_signo as i32
        };
        Ok(if number == libc::SIGWINCH { Happened::Resized } else { Happened::Stop })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Best effort: the terminal may be gone.
        let _ = io::stdout().write_all(LEAVE).and_then(|()| io::stdout().flush());
        // SAFETY: what was read when the terminal was taken.
        unsafe { libc::tcsetattr(0, libc::TCSADRAIN, &self.before) };
    }
}
