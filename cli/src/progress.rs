//! A line on standard error that says how far a long run is, when somebody sees it.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Runs shorter than this show nothing.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two drawings.
const PACE: Duration = Duration::from_millis(200);
const WIDTH: usize = 30;

/// A progress bar, or nothing where standard error is no terminal.
pub struct Progress {
    shown: bool,
    begun: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// A bar that is drawn when there is a terminal and `quiet` was not asked for.
    pub fn new(quiet: bool) -> Progress {
        Progress { shown: !quiet && std::io::stderr().is_terminal(), begun: now(), drawn: None }
    }

    /// Draws it, if it is time to. `share` is from 0 to 1; `text` follows the bar.
    pub fn show(&mut self, share: f64, text: impl FnOnce() -> String) {
        let at = now();
        if !self.shown || at - self.begun < QUIET || self.drawn.is_some_and(|last| at - last < PACE) {
            return;
        }
        self.drawn = Some(at);
        // Nobody is harmed if the line cannot be drawn.
        let _ = write!(std::io::stderr(), "\r{} {}\x1b[K", bar(share), text());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(share: f64) -> String {
    let share = share.clamp(0.0, 1.0);
    let full = (share * WIDTH as f64) as usize;
    format!("[{}{}] {:3.0}%", "#".repeat(full), " ".repeat(WIDTH - full), share * 100.0)
}

/// The machine's clock, for people.
#[allow(clippy::disallowed_methods, reason = "the command shows real time to people")]
fn now() -> Instant {
    Instant::now()
}

/// Processor time that this thread has had, in seconds, which other programs on the machine do not add to;
/// real time where the system does not say.
pub fn thread_seconds() -> f64 {
    let spent = adverb_os::sys::thread_ran(std::process::id(), adverb_os::sys::thread_id());
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    spent.map_or_else(|| BEGUN.get_or_init(now).elapsed().as_secs_f64(), |ns| ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_the_share() {
        assert_eq!(bar(0.5), format!("[{}{}]  50%", "#".repeat(15), " ".repeat(15)));
        assert_eq!(bar(7.0), format!("[{}] 100%", "#".repeat(30)));
        assert_eq!(bar(f64::NAN).len(), bar(0.0).len());
    }
}
