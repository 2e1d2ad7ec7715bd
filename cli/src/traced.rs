//! `adverb run --perfetto`: what the processes of a program have noted becomes one trace for Perfetto's
//! viewer.

use crate::error::Error;
use crate::settings::absolute;
use crate::simulate::Traced;
use adverb_io::Settings;
use adverb_io::notes::{self, Note, Noted, Part};
use adverb_nic::Followed;
use adverb_os::folders::private_folder;
use adverb_os::say;
use adverb_sim::perfetto::trace::{Fate, Requests, Row, Trace, Written};
use adverb_wire::QpNumber;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

/// Notes that a trace is made of at most, over all processes.
const NOTES_MAX: u64 = 2 << 20;
/// A process's clock may be behind by as much as a reading of it serves.
const CLOCK_NS: u64 = 2_000;
/// And by as long as it had no processor between reading it and looking into its rings.
const STOPPED_NS: u64 = 10_000_000;

/// A run that is traced: the file, and the folder beside it that gets each process's notes.
pub struct Traces {
    path: PathBuf,
    folder: PathBuf,
}

/// Prepares it, and has the settings tell the program's processes.
pub fn prepare(path: &PathBuf, settings: &mut Settings) -> Result<Traces, Error> {
    let path = absolute("--perfetto", path)?;
    // What cannot be written is refused before the program runs.
    Traced::create(&path)?;
    let mut name = path.clone().into_os_string();
    name.push(format!(".notes-{}", std::process::id()));
    let folder = PathBuf::from(name);
    private_folder(&folder).map_err(|why| Error::Options(format!("--perfetto: {why}")))?;
    settings.perfetto = Some(folder.clone());
    Ok(Traces { path, folder })
}

impl Traces {
    /// Writes the trace when the program has ended, and removes the notes; false, and a line that says why,
    /// if that cannot be done.
    pub fn finish(self) -> bool {
        let written = self.write();
        self.remove();
        if let Err(why) = &written {
            say!("adverb: {why}");
        }
        written.is_ok()
    }

    /// Removes the notes.
    pub fn remove(&self) {
        if let Err(e) = std::fs::remove_dir_all(&self.folder) {
            say!("adverb: {}: {e}; it can be removed", self.folder.display());
        }
    }

    fn write(&self) -> Result<(), Error> {
        let refuse = |source| Error::File { option: "--perfetto", path: self.folder.clone(), source };
        let parts = notes::read(&self.folder, NOTES_MAX).map_err(refuse)?;
        Traced::create(&self.path)?.write(" for one trace", |out| written(&parts, out))?;
        if parts.is_empty() {
            say!("adverb: --perfetto: no process opened the device; the trace is empty");
        }
        Ok(())
    }
}

/// A packet on its way: between which addresses, for and (of datagrams) from which queue pair, its number and
/// what it is.
type Key = ([u8; 16], [u8; 16], QpNumber, QpNumber, u32, u8);

fn key(part: &Part, noted: &Noted) -> Option<Key> {
    let Noted::Packet { sent, to, from, psn, opcode, peer } = *noted else { return None };
    let (src, dst) = if sent { (part.address, peer) } else { (peer, part.address) };
    Some((src.0, dst.0, to, from, psn, opcode.wire()))
}

/// The flows of packets that were both given and taken here, by process and note: each is taken from the last
/// time that it was given before, since what is given again was probably lost.
fn flows(parts: &[Part]) -> BTreeMap<(usize, usize), (u64, u64)> {
    let mut given: BTreeMap<Key, Vec<(u64, usize, usize)>> = BTreeMap::new();
    let mut taken = Vec::new();
    for (p, part) in parts.iter().enumerate() {
        for (n, Note { at_ns, what }) in part.notes.iter().enumerate() {
            match (key(part, what), what) {
                (Some(key), Noted::Packet { sent: true, .. }) => {
                    given.entry(key).or_default().push((*at_ns, p, n));
                }
                (Some(key), _) => taken.push((*at_ns, p, n, key)),
                _ => {}
            }
        }
    }
    given.values_mut().for_each(|all| all.sort_unstable());
    taken.sort_unstable_by_key(|(at, p, n, _)| (*at, *p, *n));
    let mut flows = BTreeMap::new();
    for (id, (at, p, n, key)) in (1u64..).zip(taken) {
        let Some(all) = given.get_mut(&key) else { continue };
        let by = |ns: u64| all.partition_point(|(given, ..)| *given <= at + ns);
        let until = match by(CLOCK_NS) {
            0 => by(STOPPED_NS).min(1),
            until => until,
        };
        // What was given before this one is not taken any more: it would have come first.
        let Some((given_at, from, note)) = all.drain(..until).next_back() else { continue };
        flows.insert((from, note), (id, given_at));
        flows.insert((p, n), (id, given_at));
    }
    flows
}

/// The trace of what processes have noted.
fn written(parts: &[Part], out: &mut dyn io::Write) -> io::Result<Written> {
    let mut trace = Trace::new(parts.len() as u32, parts.iter().map(|part| part.missed).sum());
    let times = || parts.iter().flat_map(|part| &part.notes).map(|note| note.at_ns);
    let (begun, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let flows = flows(parts);
    let mut requests = Requests::default();
    for (p, part) in parts.iter().enumerate() {
        let host = p as u32;
        // Packets of connections name the queue pair that they are for only.
        let (mut own, mut by_peer) = (BTreeSet::new(), BTreeMap::new());
        for note in &part.notes {
            if let Noted::Request(Followed::Connected { qp, peer, at }) = note.what {
                own.insert(qp);
                by_peer.insert((at.0, peer), qp);
            }
        }
        for (n, Note { at_ns, what }) in part.notes.iter().enumerate() {
            match *what {
                Noted::Request(told) => requests.see(&mut trace, (at_ns - begun, host), told),
                Noted::Packet { sent, to, from, psn, opcode, peer } => {
                    let flow = flows.get(&(p, n));
                    let id = flow.map(|(id, _)| *id);
                    // Not before it was given, whatever the clocks say.
                    let at = flow.map_or(*at_ns, |(_, given)| (*at_ns).max(*given)) - begun;
                    let qp = match sent {
                        false => Some(to),
                        true if own.contains(&from) => Some(from),
                        true => by_peer.get(&(peer.0, to)).copied(),
                    };
                    let row = qp.map_or(Row::Host(host), |qp| Row::Pair(host, qp.get(), 0));
                    let (fate, flow) =
                        if sent { (Fate::Sent, (id, None)) } else { (Fate::Taken, (None, id)) };
                    trace.packet(at, row, (fate, &format!("{opcode:?} {psn}")), flow);
                }
            }
        }
    }
    requests.finish(&mut trace, last - begun);
    trace.write(out, &|row| match row {
        Row::Host(p) => {
            let Part { name, pid, address, .. } = &parts[p as usize];
            format!("{name} {pid} at {}", address.ip())
        }
        _ => unreachable!("only processes have names of their own"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::{Gid, Opcode};
    use std::net::IpAddr;

    fn part(pid: u32, last: u8, notes: Vec<Note>) -> Part {
        let address = Gid::from(IpAddr::from([10, 0, 0, last]));
        Part { pid, name: "program".to_owned(), address, notes, missed: 0 }
    }

    fn packet(at_ns: u64, sent: bool, peer: u8, psn: u32) -> Note {
        let (to, from) = (QpNumber::new(0x20_0001), QpNumber::default());
        let peer = Gid::from(IpAddr::from([10, 0, 0, peer]));
        let opcode = Opcode::from_wire(0x04).unwrap();
        Note { at_ns, what: Noted::Packet { sent, to, from, psn, opcode, peer } }
    }

    #[test]
    fn a_packet_is_taken_from_when_it_was_given_last() {
        let near = part(
            1,
            1,
            vec![packet(1_000, true, 2, 5), packet(90_000, true, 2, 5), packet(95_000, true, 2, 6)],
        );
        // The second time is the one that came, by a clock that is behind; its double has none to come from.
        let far = part(2, 2, vec![packet(89_000, false, 1, 5), packet(91_000, false, 1, 5)]);
        let found = flows(&[near.clone(), far.clone()]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[&(0, 1)], found[&(1, 0)]), ((1, 90_000), (1, 90_000)));
        // Who was stopped between its clock and its rings takes what is given later by the clock.
        let late = part(2, 2, vec![packet(94_000, false, 1, 6), packet(50_000, false, 1, 5)]);
        let found = flows(&[near.clone(), late]);
        assert_eq!((found[&(1, 0)].1, found[&(1, 1)].1), (95_000, 1_000));
        let never = part(2, 2, vec![packet(95_000, false, 1, 7)]);
        assert!(flows(&[near.clone(), never]).is_empty());
        // From elsewhere, or to another address, it is another packet.
        assert!(flows(&[near.clone(), part(2, 2, vec![packet(2_000, false, 3, 5)])]).is_empty());
        assert!(flows(&[near, part(2, 3, vec![packet(2_000, false, 1, 5)])]).is_empty());
    }

    #[test]
    fn what_is_noted_is_counted() {
        let qp = QpNumber::new(0x10_0001);
        let (peer, at) = (QpNumber::new(0x20_0001), Gid::from(IpAddr::from([10, 0, 0, 2])));
        let op = adverb_nic::queue::wqe::WqeOp::Send;
        let request = |at_ns, told| Note { at_ns, what: Noted::Request(told) };
        let near = part(
            1,
            1,
            vec![
                request(5, Followed::Connected { qp, peer, at }),
                request(6, Followed::Posted { qp, block: 0, op, bytes: 8, wr_id: 1 }),
                packet(6, true, 2, 5),
                request(7, Followed::Posted { qp, block: 1, op, bytes: 8, wr_id: 2 }),
                request(9, Followed::Done { qp, end: 1, in_error: false }),
            ],
        );
        let far = part(2, 2, vec![packet(8, false, 1, 5)]);
        let mut out = Vec::new();
        let found = written(&[near, far], &mut out).unwrap();
        let expected = Written {
            hosts: 2,
            queue_pairs: 2,
            messages: 2,
            packets: 1,
            taken: 1,
            samples: 3,
            ..Written::default()
        };
        assert_eq!(found, expected);
        let has = |text: &str| out.windows(text.len()).any(|bytes| bytes == text.as_bytes());
        assert!(has("program 1 at 10.0.0.1") && has("Send 8 B") && has("Send 8 B, unfinished"));
    }
}
