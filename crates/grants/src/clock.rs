//! Real time: this crate is a driver, not protocol code.

use std::time::{Instant, SystemTime};

#[expect(clippy::disallowed_methods, reason = "leases end by the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A number above all that were given out by an earlier process: microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "numbers that do not come again after a restart")]
pub(crate) fn unlike_before() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64)
}
