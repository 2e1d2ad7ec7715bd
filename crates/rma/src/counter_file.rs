//! The NIC's message counter on stable storage (appendix A): a range is written down, and on the disk, before
//! it is used, so that no nonce comes twice, however the process ends.
//!
//! One file for each address, `<folder>/<address>.counter`, holds the first number that was never handed out,
//! in decimal. It is locked while its NIC lives.
//!
//! Should the file be lost, the clock stands in: a life starts no lower than the time since 1970, in units of
//! 2^-32 s. That is above all that earlier lives have used, because no life uses numbers ahead of the clock:
//! no NIC sends a message in each such unit, and a life that would start ahead, since more is reserved than
//! is used, waits until the clock is there ([`CounterFile::ahead`]). A range is therefore short at first;
//! later ones reach as far as the clock does. A clock that was never set does not stand in for anything, nor
//! one that is behind the folder, which was changed when the file was lost: then a life without a file is
//! refused. So a number comes twice only if the folder is lost *and* the clock goes back to where it was at
//! an earlier life (`docs/design/one-rma.md` says why that is left).

use adverb_wire::Duration;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Numbers reserved at a time, at least: minutes of messages, and as many as the clock passes in a sixteenth
/// of a second.
pub(crate) const RANGE: u64 = 1 << 28;
/// 2025-01-01, in seconds since 1970: a clock that shows an earlier time was not set.
const CLOCK_SET: u64 = 1_735_689_600;
/// A folder may be this much newer than the time that its reader has, in seconds: others write to it too.
const BEHIND_MAX: u64 = 10;
/// A life that starts further ahead of the clock does not wait for it: the clock was set back, or an earlier
/// version, which reserved more, kept the file.
const AHEAD_MAX: Duration = Duration::from_ms(1000);

/// The file of one address's message counter, open and locked.
#[derive(Debug)]
pub(crate) struct CounterFile {
    path: PathBuf,
    file: File,
    /// Where the clock was when the file was opened.
    opened: u64,
    /// No number below is handed out: the above, or the end of the last range.
    floor: u64,
    /// Where the first range starts.
    first: Option<u64>,
    /// The clock was set back since somebody changed the folder.
    behind: bool,
}

/// Numbers that the clock passes.
fn numbers(ns: u64) -> Option<u64> {
    u64::try_from((u128::from(ns) << 32) / 1_000_000_000).ok()
}

/// Why there are no counters to be had.
#[derive(Debug)]
pub(crate) enum CounterError {
    /// Another NIC with this address holds the file.
    Held(PathBuf),
    /// The file holds something else than a number.
    Garbled(PathBuf),
    /// There is no number, and the clock cannot stand in.
    Lost(PathBuf),
    /// The system refused something.
    System(PathBuf, io::Error),
}

impl CounterFile {
    /// Opens and locks the file of an address; the folder is made where it is missing. `since_1970_ns` is the
    /// time.
    pub fn open(folder: &Path, address: IpAddr, since_1970_ns: u64) -> Result<CounterFile, CounterError> {
        // Before this life changes it.
        let changed = std::fs::metadata(folder).and_then(|folder| folder.modified()).ok();
        let changed = changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |at| at.as_secs());
        Self::open_changed(folder, address, since_1970_ns, changed)
    }

    /// The same; the folder was changed so many seconds after 1970.
    fn open_changed(
        folder: &Path,
        address: IpAddr,
        since_1970_ns: u64,
        changed: u64,
    ) -> Result<CounterFile, CounterError> {
        let behind = since_1970_ns / 1_000_000_000 + BEHIND_MAX < changed;
        let path = folder.join(format!("{address}.counter"));
        if behind && !path.exists() {
            // To make it would change the folder, and hide that from the next attempt.
            return Err(CounterError::Lost(path));
        }
        let system = |error| CounterError::System(path.clone(), error);
        std::fs::create_dir_all(folder).map_err(system)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(system)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(CounterError::Held(path)),
            Err(std::fs::TryLockError::Error(error)) => return Err(system(error)),
        }
        // A new file's name is to survive too.
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(system)?;
        let opened = numbers(since_1970_ns).ok_or_else(|| CounterError::Garbled(path.clone()))?;
        Ok(CounterFile { path, file, opened, floor: opened, first: None, behind })
    }

    /// How long the first range has to wait until the clock is there, counted from when the file was opened.
    pub fn ahead(&self) -> Option<Duration> {
        let ahead = self.first?.checked_sub(self.opened).filter(|ahead| *ahead > 0)?;
        let time = Duration::from_ns(u64::try_from((u128::from(ahead) * 1_000_000_000) >> 32).ok()? + 1);
        (time <= AHEAD_MAX).then_some(time)
    }

    /// A range that was never handed out, so long after the file was opened.
    pub fn reserve(&mut self, since_open: Duration) -> Result<Range<u64>, CounterError> {
        let system = |path: &Path, error| CounterError::System(path.to_owned(), error);
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text));
        read.map_err(|error| system(&self.path, error))?;
        let next = match text.trim_end() {
            "" if self.floor < CLOCK_SET << 32 || (self.first.is_none() && self.behind) => {
                return Err(CounterError::Lost(self.path.clone()));
            }
            "" => 0,
            digits => digits.parse().map_err(|_| CounterError::Garbled(self.path.clone()))?,
        };
        let garbled = || CounterError::Garbled(self.path.clone());
        let start = u64::max(next, self.floor);
        let clock = numbers(since_open.as_ns()).and_then(|passed| self.opened.checked_add(passed));
        let end = start.checked_add(RANGE).ok_or_else(garbled)?.max(clock.ok_or_else(garbled)?);
        // One short write over a number that is as long or shorter: numbers only grow, so no mix of the two
        // is lower than the old one's digits say.
        let written =
            self.file.rewind().and_then(|()| self.file.write_all(format!("{end:020}\n").as_bytes()));
        written.and_then(|()| self.file.sync_all()).map_err(|error| system(&self.path, error))?;
        self.floor = end;
        self.first.get_or_insert(start);
        Ok(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("adverb-counters-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    /// At a time that has nothing to do with the folder's.
    fn open_file(folder: &Path, address: IpAddr, at_ns: u64) -> Result<CounterFile, CounterError> {
        CounterFile::open_changed(folder, address, at_ns, 0)
    }

    /// Seconds since 1970 on a day of 2026.
    const DAY: u64 = 1_790_000_000;
    const SECOND: u64 = 1_000_000_000;
    const HERE: [u8; 4] = [127, 0, 0, 1];

    #[test]
    fn ranges_never_meet_whatever_the_clock_says() {
        let folder = folder("ranges");
        let address = IpAddr::from(HERE);
        let mut last = 0;
        for seconds in [DAY, DAY, 5, DAY + 1, DAY + 1000, 0] {
            let ns = seconds * SECOND;
            let mut file = open_file(&folder, address, ns).unwrap();
            assert!(matches!(open_file(&folder, address, ns), Err(CounterError::Held(_))));
            for later in 0..3 {
                let range = file.reserve(Duration::from_ms(100 * later)).unwrap();
                assert!(range.start >= last && range.start >= seconds << 32 && range.end > range.start);
                last = range.end;
            }
        }
        let path = folder.join("127.0.0.1.counter");
        for text in ["ninety\n", "-5", "18446744073709551615\n"] {
            std::fs::write(&path, text).unwrap();
            let reserved = open_file(&folder, address, 9).unwrap().reserve(Duration::ZERO);
            assert!(matches!(reserved, Err(CounterError::Garbled(_))), "{text}");
        }
        let later = (DAY + 9000) * SECOND;
        std::fs::remove_file(&path).unwrap();
        let mut file = open_file(&folder, address, later).unwrap();
        let before = file.reserve(Duration::ZERO).unwrap();
        assert!(before.start >= last, "the clock stands in for a lost file");
        std::fs::write(&path, "").unwrap();
        let after = file.reserve(Duration::from_ms(9)).unwrap();
        assert!(after.start >= before.end, "a file that lost its number while it was open");
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A life of a NIC that starts at a time, waits if it has to, and uses so many numbers. When it was over,
    /// and what it used.
    fn live(folder: &Path, at_ns: u64, messages: u64) -> (u64, Range<u64>) {
        let mut file = open_file(folder, IpAddr::from(HERE), at_ns).unwrap();
        let range = file.reserve(Duration::ZERO).unwrap();
        let waited = file.ahead().map_or(0, Duration::as_ns);
        assert!(range.start <= numbers(at_ns + waited).unwrap(), "no life is ahead of the clock");
        // No NIC sends more messages than one in a nanosecond.
        (at_ns + waited + messages, range.start..range.start + messages)
    }

    #[test]
    fn quick_restarts_and_a_lost_file_use_no_number_twice() {
        let folder = folder("lost");
        for lost_after in (0..200).step_by(8) {
            let mut now = (DAY + 1000 * lost_after) * SECOND;
            let mut used: Vec<Range<u64>> = Vec::new();
            let mut lives = |now: u64, messages| {
                let (over, range) = live(&folder, now, messages);
                for before in &used {
                    assert!(range.start >= before.end, "{range:?} after {before:?}");
                }
                used.push(range);
                over
            };
            for _ in 0..8 {
                // A millisecond, and the process is killed.
                now = lives(now, 1000) + SECOND / 1000;
            }
            std::fs::remove_file(folder.join("127.0.0.1.counter")).unwrap();
            // At once, and at each moment at which a life before it may have reserved its numbers.
            now = lives(now, 1000);
            lives(now + lost_after * SECOND, 1_000_000);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_busy_life_reserves_what_the_clock_has_passed_and_its_successor_does_not_wait() {
        let folder = folder("busy");
        let address = IpAddr::from(HERE);
        let mut file = open_file(&folder, address, DAY * SECOND).unwrap();
        file.reserve(Duration::ZERO).unwrap();
        assert_eq!(file.ahead(), None);
        let minutes = file.reserve(Duration::from_ms(60_000)).unwrap();
        assert_eq!(minutes.end, (DAY + 60) << 32);
        drop(file);
        let mut file = open_file(&folder, address, (DAY + 61) * SECOND).unwrap();
        file.reserve(Duration::ZERO).unwrap();
        assert_eq!(file.ahead(), None);
        drop(file);
        // The next one is quick, and waits; one whose clock was set back by an hour does not.
        let mut file = open_file(&folder, address, (DAY + 61) * SECOND + 1_000_000).unwrap();
        file.reserve(Duration::ZERO).unwrap();
        let wait = file.ahead().unwrap();
        assert!(wait > Duration::from_ms(61) && wait < Duration::from_ms(62), "{wait:?}");
        drop(file);
        let mut file = open_file(&folder, address, (DAY - 3600) * SECOND).unwrap();
        assert!(file.reserve(Duration::ZERO).unwrap().start > (DAY + 61) << 32);
        assert_eq!(file.ahead(), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_clock_that_was_not_set_stands_in_for_nothing() {
        let folder = folder("unset");
        let address = IpAddr::from(HERE);
        let open = |seconds: u64| open_file(&folder, address, seconds * SECOND).unwrap();
        assert!(matches!(open(90).reserve(Duration::ZERO), Err(CounterError::Lost(_))));
        open(DAY).reserve(Duration::ZERO).unwrap();
        assert!(open(90).reserve(Duration::ZERO).unwrap().start > DAY << 32, "the file is enough");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_clock_that_is_behind_the_folder_stands_in_for_nothing() {
        let folder = folder("behind");
        let address = IpAddr::from(HERE);
        let path = folder.join("127.0.0.1.counter");
        let open = |seconds: u64| CounterFile::open(&folder, address, seconds * SECOND).unwrap();
        // A folder that is made now is no sign of anything, whatever the time.
        let first = open(DAY).reserve(Duration::ZERO).unwrap();
        for lost in [true, false] {
            if lost {
                std::fs::remove_file(&path).unwrap();
            } else {
                std::fs::write(&path, "").unwrap();
            }
            let at = UNIX_EPOCH + std::time::Duration::from_secs(DAY + 100);
            File::open(&folder).unwrap().set_modified(at).unwrap();
            // The same time as the first life's: it would use the same numbers, at a second attempt too.
            for _ in 0..2 {
                let opened = CounterFile::open(&folder, address, DAY * SECOND);
                let reserved = opened.and_then(|mut file| file.reserve(Duration::ZERO));
                assert!(matches!(reserved, Err(CounterError::Lost(_))), "{lost}");
            }
            assert_eq!(path.exists(), !lost);
            std::fs::write(&path, "").unwrap();
        }
        File::open(&folder).unwrap().set_modified(UNIX_EPOCH + std::time::Duration::from_secs(DAY)).unwrap();
        let mut file = open(DAY + 200);
        assert!(file.reserve(Duration::ZERO).unwrap().start >= first.end);
        // With its number a file is enough, wherever the clock is.
        drop(file);
        assert!(open(DAY - 10_000).reserve(Duration::ZERO).unwrap().start >= first.end);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let error = CounterFile::open(Path::new("/proc/nowhere"), IpAddr::from([127, 0, 0, 1]), 0);
        assert!(matches!(error, Err(CounterError::System(..))));
    }
}
