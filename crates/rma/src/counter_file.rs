//! The NIC's message counter on stable storage (appendix A): a range is written down, and on the disk, before
//! it is used, so that no nonce comes twice, however the process ends.
//!
//! One file for each address, `<folder>/<address>.counter`, holds the first number that was never handed out,
//! in decimal. It is locked while its NIC lives. Should the file be lost, the clock stands in: a range starts
//! no lower than the seconds since 1970 times 2^32, and no NIC sends that many messages in a second. So a
//! number comes twice only if the file is lost *and* the clock goes back.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Numbers reserved at a time: hours of messages.
const RANGE: u64 = 1 << 36;

/// The file of one address's message counter, open and locked.
#[derive(Debug)]
pub(crate) struct CounterFile {
    path: PathBuf,
    file: File,
    /// No number below is handed out: where the clock was when the file was opened, or the end of the last
    /// range.
    floor: u64,
}

/// Why there are no counters to be had.
#[derive(Debug)]
pub(crate) enum CounterError {
    /// Another NIC with this address holds the file.
    Held(PathBuf),
    /// The file holds something else than a number.
    Garbled(PathBuf),
    /// The system refused something.
    System(PathBuf, io::Error),
}

impl CounterFile {
    /// Opens and locks the file of an address; the folder is made where it is missing. `seconds` is the time
    /// since 1970.
    pub fn open(folder: &Path, address: IpAddr, seconds: u64) -> Result<CounterFile, CounterError> {
        let path = folder.join(format!("{address}.counter"));
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
        let floor = seconds.checked_mul(1 << 32).ok_or_else(|| CounterError::Garbled(path.clone()))?;
        Ok(CounterFile { path, file, floor })
    }

    /// A range that was never handed out.
    pub fn reserve(&mut self) -> Result<Range<u64>, CounterError> {
        let system = |path: &Path, error| CounterError::System(path.to_owned(), error);
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text));
        read.map_err(|error| system(&self.path, error))?;
        let next = match text.trim_end() {
            "" => 0,
            digits => digits.parse().map_err(|_| CounterError::Garbled(self.path.clone()))?,
        };
        let garbled = || CounterError::Garbled(self.path.clone());
        let start = u64::max(next, self.floor);
        let end = start.checked_add(RANGE).ok_or_else(garbled)?;
        // One short write over a number that is as long or shorter: numbers only grow, so no mix of the two
        // is lower than the old one's digits say.
        let written =
            self.file.rewind().and_then(|()| self.file.write_all(format!("{end:020}\n").as_bytes()));
        written.and_then(|()| self.file.sync_all()).map_err(|error| system(&self.path, error))?;
        self.floor = end;
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

    #[test]
    fn ranges_never_meet_whatever_the_clock_says() {
        let folder = folder("ranges");
        let address = IpAddr::from([127, 0, 0, 1]);
        let mut last = 0;
        for seconds in [1_700_000_000, 1_700_000_000, 5, 1_700_000_001, 1_800_000_000, 0] {
            let mut file = CounterFile::open(&folder, address, seconds).unwrap();
            assert!(matches!(CounterFile::open(&folder, address, seconds), Err(CounterError::Held(_))));
            for _ in 0..3 {
                let range = file.reserve().unwrap();
                assert!(range.start >= last && range.start >= seconds << 32 && range.end > range.start);
                last = range.end;
            }
        }
        assert!(
            CounterFile::open(&folder, IpAddr::from([127, 0, 0, 2]), 0).is_ok(),
            "another address, another file"
        );
        let path = folder.join("127.0.0.1.counter");
        for text in ["ninety\n", "-5", "18446744073709551615\n"] {
            std::fs::write(&path, text).unwrap();
            let reserved = CounterFile::open(&folder, address, 9).unwrap().reserve();
            assert!(matches!(reserved, Err(CounterError::Garbled(_))), "{text}");
        }
        std::fs::remove_file(&path).unwrap();
        let range = CounterFile::open(&folder, address, 1_900_000_000).unwrap().reserve().unwrap();
        assert!(range.start >= last, "the clock stands in for a lost file");
        let mut file = CounterFile::open(&folder, address, 1_900_000_000).unwrap();
        let before = file.reserve().unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(file.reserve().unwrap().start >= before.end, "a file that lost its number while it was open");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let error = CounterFile::open(Path::new("/proc/nowhere"), IpAddr::from([127, 0, 0, 1]), 0);
        assert!(matches!(error, Err(CounterError::System(..))));
    }
}
