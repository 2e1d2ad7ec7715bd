//! Words to the person who runs the program, on standard error: the one place that writes them.
//!
//! What is said is never worth the program: a full disk, a closed pipe or a descriptor that is not there lose
//! the line and nothing else. Standard macros panic there, and a pipe without a reader raises SIGPIPE, which
//! ends a C program that uses the library.

use crate::signals::without_sigpipe;
use adverb_wire::{Duration, Instant};
use std::fmt;
use std::io::{self, Write};

/// Says a line on standard error, as `eprintln!` does, and goes on whatever becomes of it.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        $crate::say::line(format_args!($($text)*))
    };
}

/// Says a line on standard error; see [`say!`](crate::say!).
#[cold]
pub fn line(text: fmt::Arguments<'_>) {
    write_whole(&mut io::stderr().lock(), text);
}

/// Says a line on standard output that nobody depends on, such as that a daemon is ready.
pub fn announce(text: fmt::Arguments<'_>) {
    write_whole(&mut io::stdout().lock(), text);
}

/// One call for the line, so that lines of several processes do not mix.
fn write_whole(to: &mut impl Write, text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    // The one place where the outcome does not matter.
    let _ = without_sigpipe(|| to.write_all(line.as_bytes()).and_then(|()| to.flush()));
}

/// Lets a row of lines through, and then few: for lines that a peer can cause as often as it likes.
#[derive(Clone, Debug)]
pub struct Seldom {
    /// Lines that may still be said in this window.
    left: u32,
    burst: u32,
    window: Duration,
    begun: Option<Instant>,
    /// Lines of earlier windows that were kept back.
    kept_back: u64,
}

impl Seldom {
    /// At most `burst` lines in each `window`.
    pub fn new(burst: u32, window: Duration) -> Seldom {
        Seldom { left: burst, burst, window, begun: None, kept_back: 0 }
    }

    /// Whether a line may be said now, and if so how many were kept back since the last one.
    pub fn allows(&mut self, now: Instant) -> Option<u64> {
        if self.begun.is_none_or(|begun| now.since(begun) >= self.window) {
            (self.begun, self.left) = (Some(now), self.burst);
        }
        if self.left == 0 {
            self.kept_back += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_fails_or_has_nobody_at_its_other_end_is_survived() {
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(full.write_all(b"x").is_err(), "this test needs a device that is full");
        write_whole(&mut full, format_args!("lost"));
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        write_whole(&mut writer, format_args!("lost"));
        let mut said = Vec::new();
        write_whole(&mut said, format_args!("a {}", 1));
        assert_eq!(said, b"a 1\n");
    }

    #[test]
    fn seldom_lets_a_burst_through_and_counts_the_rest() {
        let at = |ms| Instant::ZERO + Duration::from_ms(ms);
        let mut seldom = Seldom::new(2, Duration::from_ms(1000));
        assert_eq!([0, 1, 2, 999].map(|ms| seldom.allows(at(ms))), [Some(0), Some(0), None, None]);
        assert_eq!([1000, 1001, 1002].map(|ms| seldom.allows(at(ms))), [Some(2), Some(0), None]);
        assert_eq!(seldom.allows(at(5000)), Some(1));
    }
}
