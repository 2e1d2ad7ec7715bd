//! The file of queue pairs whose numbers a switch's programs have shifted. The next switch in its place has
//! to know them before its first frame: a server takes what it passes on under other numbers for
//! repetitions, acknowledges it, and does not execute it.
//!
//! A line is `SERVER CLIENT QPN PID BEGUN NAMESPACE`: the server's queue pair, and the process that has it,
//! if that is one of this host's. When it has ended, so has the queue pair, and the line is forgotten.

use adverb_os::folders::private_file;
use adverb_os::sys;
use adverb_switch::{Program, Switch};
use adverb_wire::{Gid, QpNumber};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Bytes of a file at most that is believed: of as many lines as programs may remember.
const BYTES_MAX: u64 = 8 << 20;

/// A queue pair of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The server.
    pub server: Gid,
    /// Whose requests it takes.
    pub client: Gid,
    /// Its number at the server.
    pub qpn: QpNumber,
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        let key = |name: &Name| (name.server.0, name.client.0, name.qpn.get());
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Queue pairs whose numbers a switch's programs have shifted.
pub fn shifted_of(switch: &Switch) -> BTreeSet<Name> {
    let mut all = BTreeSet::new();
    for program in switch.programs() {
        if let Program::CasToWrite(cas) = program {
            let server = cas.config().server;
            all.extend(cas.shifted().into_iter().map(|(client, qpn)| Name { server, client, qpn }));
        }
    }
    all
}

/// Tells a switch of those that one before it had shifted.
pub fn tell(switch: &mut Switch, names: &[Name]) {
    for program in switch.programs_mut() {
        if let Program::CasToWrite(cas) = program {
            let server = cas.config().server;
            let own = names.iter().filter(|name| name.server == server);
            cas.set_shifted(&own.map(|name| (name.client, name.qpn)).collect::<Vec<_>>());
        }
    }
}

/// A process, such that no later one of the same number is taken for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pid: u32,
    begun: u64,
    namespace: u64,
}

impl Owner {
    /// A process of this host that runs.
    pub fn of(pid: u32) -> Option<Owner> {
        Some(Owner { pid, begun: sys::process_begun(pid)?, namespace: sys::pid_namespace() })
    }

    /// Whether it has ended, as far as that can be told from here.
    fn is_gone(&self) -> bool {
        self.namespace == sys::pid_namespace() && sys::process_begun(self.pid) != Some(self.begun)
    }
}

/// The file.
pub struct ShiftedFile {
    path: PathBuf,
    kept: BTreeMap<Name, Option<Owner>>,
    /// Open from the first line on.
    file: Option<File>,
}

/// Writes one line.
fn put_line(text: &mut String, name: &Name, owner: &Option<Owner>) {
    let (server, client, qpn) = (name.server.ip(), name.client.ip(), name.qpn.get());
    let Owner { pid, begun, namespace } = owner.unwrap_or(Owner { pid: 0, begun: 0, namespace: 0 });
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{server} {client} {qpn} {pid} {begun} {namespace}");
}

fn parse_line(line: &str) -> Option<(Name, Option<Owner>)> {
    let mut words = line.split(' ');
    let mut gid = || Some(Gid::from(words.next()?.parse::<IpAddr>().ok()?));
    let (server, client) = (gid()?, gid()?);
    let qpn = QpNumber::new(words.next()?.parse().ok().filter(|qpn| *qpn < 1 << 24)?);
    let pid = words.next()?.parse().ok()?;
    let begun = words.next()?.parse().ok()?;
    let namespace = words.next()?.parse().ok()?;
    let owner = (pid != 0).then_some(Owner { pid, begun, namespace });
    words.next().is_none().then_some((Name { server, client, qpn }, owner))
}

impl ShiftedFile {
    /// Reads what a switch before this one has left, less those whose processes have ended.
    ///
    /// # Errors
    /// The file cannot be read, or says something else.
    pub fn open(path: PathBuf) -> io::Result<ShiftedFile> {
        let mut kept = BTreeMap::new();
        let text = match fs::metadata(&path) {
            Ok(about) if about.len() > BYTES_MAX => return Err(wrong(&path, "it is too long")),
            Ok(_) => fs::read_to_string(&path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        for line in text.split_inclusive('\n') {
            // A line that was not written whole was not there before a packet: that one never left.
            let Some(line) = line.strip_suffix('\n') else { continue };
            let Some((name, owner)) = parse_line(line) else {
                return Err(wrong(&path, &format!("`{line}` is no queue pair")));
            };
            if !owner.is_some_and(|owner| owner.is_gone()) {
                kept.insert(name, owner);
            }
        }
        let mut shifted = ShiftedFile { path, kept, file: None };
        if !text.is_empty() {
            shifted.write_anew()?;
        }
        Ok(shifted)
    }

    /// Those that are kept.
    pub fn kept(&self) -> impl Iterator<Item = &Name> {
        self.kept.keys()
    }

    /// Keeps these, and no others. When it returns, a switch that starts now would know them.
    ///
    /// # Errors
    /// They are not kept: nothing of theirs may leave.
    pub fn keep(&mut self, all: &BTreeSet<Name>, owner: impl Fn(&Name) -> Option<Owner>) -> io::Result<()> {
        let before = self.kept.len();
        self.kept.retain(|name, _| all.contains(name));
        let is_less = self.kept.len() < before;
        let mut more = String::new();
        for name in all {
            if !self.kept.contains_key(name) {
                let owner = owner(name);
                put_line(&mut more, name, &owner);
                self.kept.insert(*name, owner);
            }
        }
        match &mut self.file {
            _ if is_less => self.write_anew(),
            _ if more.is_empty() => Ok(()),
            Some(file) => file.write_all(more.as_bytes()),
            None => self.write_anew(),
        }
    }

    /// Puts a new file in the place of the old one, at once.
    fn write_anew(&mut self) -> io::Result<()> {
        let mut text = String::new();
        self.kept.iter().for_each(|(name, owner)| put_line(&mut text, name, owner));
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let mut file = private_file().create(true).truncate(true).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.seek(SeekFrom::End(0))?;
        fs::rename(&beside, &self.path)?;
        self.file = Some(file);
        Ok(())
    }
}

fn wrong(path: &Path, what: &str) -> io::Error {
    let what = format!(
        "{}: {what}; it names queue pairs that a switch must not mistake: end the programs that were behind \
         it, and remove the file",
        path.display()
    );
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(client: u8, qpn: u32) -> Name {
        let gid = |last| Gid::from(IpAddr::from([10, 9, 0, last]));
        Name { server: gid(1), client: gid(client), qpn: QpNumber::new(qpn) }
    }

    fn path(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("adverb-shifted-{}-{test}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    fn kept(path: &Path) -> Vec<Name> {
        ShiftedFile::open(path.to_owned()).unwrap().kept().copied().collect()
    }

    #[test]
    fn what_is_kept_is_there_at_the_next_start() {
        let path = path("kept");
        let own = Owner::of(std::process::id());
        assert!(own.is_some());
        let mut file = ShiftedFile::open(path.clone()).unwrap();
        assert!(!path.exists(), "nothing to keep, no file");
        let mut all = BTreeSet::from([name(2, 0x01_0011)]);
        file.keep(&all, |_| own).unwrap();
        assert_eq!(kept(&path), [name(2, 0x01_0011)]);
        let mut file = ShiftedFile::open(path.clone()).unwrap();
        all.insert(name(3, 0xff_ffff));
        file.keep(&all, |_| None).unwrap();
        assert_eq!(kept(&path), [name(2, 0x01_0011), name(3, 0xff_ffff)]);
        // One goes.
        all.pop_first();
        file.keep(&all, |_| own).unwrap();
        all.insert(name(4, 1));
        file.keep(&all, |_| own).unwrap();
        assert_eq!(kept(&path), [name(3, 0xff_ffff), name(4, 1)]);
        // A line that a killed switch has not written whole.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("10.9.0.1 10.9.0.9 7");
        fs::write(&path, &text).unwrap();
        assert_eq!(kept(&path), [name(3, 0xff_ffff), name(4, 1)]);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2, "it is gone");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn queue_pairs_of_processes_that_have_ended_are_forgotten() {
        let path = path("ended");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let owner = Owner::of(child.id());
        assert!(owner.is_some());
        let mut file = ShiftedFile::open(path.clone()).unwrap();
        let all = BTreeSet::from([name(2, 1), name(3, 2)]);
        file.keep(&all, |name| if name.qpn.get() == 1 { owner } else { None }).unwrap();
        assert_eq!(kept(&path), [name(2, 1), name(3, 2)]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(kept(&path), [name(3, 2)], "nobody knows whose the other one is");
        // One of another namespace cannot be looked for, and one of the same number is another.
        let own = Owner::of(std::process::id()).unwrap();
        assert!(!Owner { namespace: 1, begun: 1, ..own }.is_gone());
        assert!(Owner { begun: own.begun + 1, ..own }.is_gone() && !own.is_gone());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_nobody_has_written_is_refused() {
        let path = path("strange");
        for line in [
            "",
            "10.9.0.1 10.9.0.2 1 0 0",
            "10.9.0.1 10.9.0.2 1 0 0 0 0",
            "10.9.0.1 10.9.0.2 16777216 0 0 0",
            "server 10.9.0.2 1 0 0 0",
            "10.9.0.1 10.9.0.2 -1 0 0 0",
        ] {
            fs::write(&path, format!("10.9.0.1 10.9.0.2 1 0 0 0\n{line}\n")).unwrap();
            let refused = ShiftedFile::open(path.clone()).map(drop).unwrap_err().to_string();
            assert!(refused.contains("no queue pair") && refused.contains("remove the file"), "{refused}");
        }
        fs::write(&path, [0xff; 10]).unwrap();
        assert!(ShiftedFile::open(path.clone()).is_err());
        fs::remove_file(path).unwrap();
    }
}
