//! Capture of the frames of one process to a pcap file: both directions, with a synthetic Ethernet header
//! and a right ICRC, whatever path they took.
//!
//! A file that another process is writing stays its own: this process then writes to `FILE.PID`.

use crate::say;
use crate::signals::Quiet;
use adverb_wire::eth::{ETH_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Mac};
use adverb_wire::pcap::{LinkType, Writer};
use adverb_wire::{Gid, Instant};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};

use std::path::{Path, PathBuf};

/// An open capture file.
#[derive(Debug)]
pub struct Capture {
    writer: Writer<BufWriter<Quiet<File>>>,
    path: PathBuf,
    /// Wall-clock nanoseconds at the driver's epoch.
    epoch_ns: u64,
    dirty: bool,
    failed: bool,
}

/// A link-layer address for a synthetic header: the group's mapping, or a local one made of the address.
pub fn mac_of(gid: Gid) -> Mac {
    let b = gid.0;
    let of_host = match gid.is_ipv4() {
        true => [0x02, 0xad, b[12], b[13], b[14], b[15]],
        false => [0x06, b[11], b[12], b[13], b[14], b[15]],
    };
    Mac::of_group(gid).unwrap_or(Mac(of_host))
}

impl Capture {
    /// Opens the file, or the one beside it if another process writes to it.
    pub fn open(path: &Path, epoch_realtime_ns: u64) -> io::Result<Capture> {
        let open = |path: &Path| OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let mut path_used = path.to_owned();
        let mut file = open(path)?;
        if file.try_lock().is_err() {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}", std::process::id()));
            path_used = PathBuf::from(name);
            file = open(&path_used)?;
            // The name is this process's own; who else holds it has a file of a process that is gone.
            let _ = file.try_lock();
        }
        // Devices such as /dev/null and pipes have no length to set.
        let _ = file.set_len(0);
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 16, Quiet(file)), LinkType::Ethernet)?;
        writer.flush()?;
        Ok(Capture { writer, path: path_used, epoch_ns: epoch_realtime_ns, dirty: false, failed: false })
    }

    /// Writes one frame, which starts at its IP header. A disk that is full ends the capture with one line
    /// on standard error.
    pub fn record(&mut self, now: Instant, src: Gid, dst: Gid, frame: &[u8]) {
        if self.failed {
            return;
        }
        let ethertype =
            if frame.first().is_some_and(|b| b >> 4 == 6) { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
        let mut eth = [0; ETH_LEN];
        eth[..6].copy_from_slice(&mac_of(dst).0);
        eth[6..12].copy_from_slice(&mac_of(src).0);
        eth[12..].copy_from_slice(&ethertype.to_be_bytes());
        let at = self.epoch_ns + now.as_ps() / 1000;
        let (seconds, nanos) = ((at / 1_000_000_000) as u32, (at % 1_000_000_000) as u32);
        let written = self.writer.record(seconds, nanos, &[&eth, frame]);
        self.dirty = true;
        self.note(written);
    }

    /// Puts what was captured into the file.
    pub fn flush(&mut self) {
        if self.dirty {
            self.dirty = false;
            let flushed = self.writer.flush();
            self.note(flushed);
        }
    }

    /// Whether captured frames have not reached the file yet.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(e) = result
            && !self.failed
        {
            self.failed = true;
            say!("adverb: the capture {} ends here: {e}", self.path.display());
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::pcap::Reader;
    use std::net::IpAddr;

    #[test]
    fn frames_are_written_and_files_not_shared() {
        let folder = crate::test_folder("capture");
        let path = folder.join("a.pcap");
        let mut first = Capture::open(&path, 5_000_000_000).unwrap();
        let second = Capture::open(&path, 0).unwrap();
        assert_eq!(second.path, folder.join(format!("a.pcap.{}", std::process::id())));
        let gid = |last| Gid::from(IpAddr::from([127, 0, 0, last]));
        first.record(Instant::from_ns(7), gid(1), gid(2), &[0x45, 1, 2]);
        assert!(first.is_dirty());
        first.flush();
        let bytes = std::fs::read(&path).unwrap();
        let records: Vec<_> = Reader::new(&bytes).unwrap().collect();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].seconds, records[0].nanos), (5, 7));
        assert_eq!(records[0].bytes[..6], [2, 0xad, 127, 0, 0, 2]);
        assert_eq!(records[0].bytes[6..12], [2, 0xad, 127, 0, 0, 1]);
        assert_eq!(records[0].bytes[12..], [8, 0, 0x45, 1, 2]);
        drop(first);
        assert_eq!(Capture::open(&path, 0).unwrap().path, path);
        let missing = Capture::open(Path::new("/nonexistent/x.pcap"), 0).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
