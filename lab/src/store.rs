//! Runs that have ended, each in a line of a file beside what an experiment writes: one that was interrupted
//! goes on from there (`--resume`). What comes out is the same to the bit.
//!
//! A line is words of 64 bits in hexadecimal: the program that made the run, what was run (a hash of the
//! scenario, what is measured of it, and the seed), its figures, and a hash of the line. A line that is cut
//! off or was changed is not taken, nor one of another build.

use crate::measure::Measured;
use crate::measure::operations::Slice;
use crate::points::Asked;
use crate::{Error, Experiment};
use adverb_sim::trace::mix;
use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Its name in an experiment's folder.
pub const FILE: &str = "finished.runs";
/// Runs that a file has at most.
const MAX_RUNS: usize = 1 << 20;
/// Words of a slice of time.
const SLICE: usize = 8;

/// What was run, as a hash.
type Key = (u64, u64);

/// The file, and the runs in it that may be taken.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    program: u64,
    kept: BTreeMap<Key, Measured>,
    /// How its runs were come by.
    pub tally: Tally,
}

/// How many runs were there, and how many were not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// They had ended before.
    pub taken: usize,
    /// They were run.
    pub run: usize,
    /// Lines that another build wrote, and those that are cut off or were changed.
    pub refused: usize,
}

/// What tells this build from others: a hash of the program's file.
pub fn program(command: &Path) -> Result<u64, Error> {
    let bytes = fs::read(command).map_err(|e| Error(format!("{}: {e}", command.display())))?;
    Ok(hash_bytes(1, &bytes))
}

fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let word = |part: &[u8]| part.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).fold(mix(seed ^ bytes.len() as u64), |state, part| mix(state ^ word(part)))
}

impl Store {
    /// The file of a folder, which is made: an empty one, or with `resume` the one that is there.
    pub fn open(folder: &Path, program: u64, resume: bool) -> Result<Store, Error> {
        let path = folder.join(FILE);
        let failed = |e: std::io::Error| Error(format!("{}: {e}", path.display()));
        fs::create_dir_all(folder).map_err(failed)?;
        let (mut kept, mut tally) = (BTreeMap::new(), Tally::default());
        let mut good = String::new();
        if resume && path.is_file() {
            let text = String::from_utf8_lossy(&fs::read(&path).map_err(failed)?).into_owned();
            for line in text.lines().take(MAX_RUNS) {
                match read(line).filter(|(of, ..)| *of == program) {
                    Some((_, key, run)) => {
                        kept.insert(key, run);
                        good.push_str(line);
                        good.push('\n');
                    }
                    None => tally.refused += 1,
                }
            }
        }
        // The old file stays whole until the new one is.
        let new = folder.join(format!("{FILE}.new"));
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(good.as_bytes()).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        Ok(Store { path, file, program, kept, tally })
    }

    /// What a seed's run of a point is known by.
    pub(crate) fn key(experiment: &Experiment, asked: &Asked, seed: u64) -> (u64, u64) {
        let text = format!(
            "{:?} {:?} {:?} {} {seed}\n{:?}",
            experiment.kind,
            experiment.measured,
            experiment.interval(),
            experiment.timeline_us,
            asked.table
        );
        (hash_bytes(2, text.as_bytes()), hash_bytes(3, text.as_bytes()))
    }

    /// A run that had ended before.
    pub(crate) fn take(&mut self, key: (u64, u64)) -> Option<Measured> {
        let run = self.kept.get(&key).cloned()?;
        self.tally.taken += 1;
        Some(run)
    }

    /// Keeps a run that has ended now.
    pub(crate) fn add(&mut self, key: (u64, u64), run: &Measured) -> Result<(), Error> {
        self.tally.run += 1;
        if self.kept.len() + self.tally.run > MAX_RUNS {
            return Err(Error(format!("{}: {MAX_RUNS} runs at most", self.path.display())));
        }
        let line = line(self.program, key, run);
        self.file.write_all(line.as_bytes()).map_err(|e| Error(format!("{}: {e}", self.path.display())))
    }
}

fn line(program: u64, key: Key, run: &Measured) -> String {
    let mut words = vec![program, key.0, key.1];
    words.extend([u64::from(run.flows.0), u64::from(run.flows.1), run.link_hops]);
    words.extend([u64::from(run.exact), run.trace]);
    for values in [&run.values, &run.halves[0], &run.halves[1], &run.tail] {
        words.push(values.len() as u64);
        words.extend(values.iter().map(|value| value.to_bits()));
    }
    words.push(run.timeline.len() as u64);
    for s in &run.timeline {
        words.extend([s.t_us.to_bits(), u64::from(s.initiator), u64::from(s.target), s.goodput.to_bits()]);
        words.extend([s.well, s.failed, s.issue_us.to_bits(), s.total_us.to_bits()]);
    }
    words.push(check(&words));
    let mut out = String::with_capacity(words.len() * 17);
    for word in &words {
        // Writing to a `String` cannot fail.
        let _ = write!(out, "{word:x} ");
    }
    out.pop();
    out.push('\n');
    out
}

fn check(words: &[u64]) -> u64 {
    words.iter().fold(mix(words.len() as u64), |state, word| mix(state ^ word))
}

/// The words of a line that are still to be read.
struct Words(std::vec::IntoIter<u64>);

impl Words {
    fn one(&mut self) -> Option<u64> {
        self.0.next()
    }

    fn number(&mut self) -> Option<u32> {
        self.one()?.try_into().ok()
    }

    fn count(&mut self, each: usize) -> Option<usize> {
        let count = usize::try_from(self.one()?).ok()?;
        (count <= self.0.len() / each).then_some(count)
    }

    fn floats(&mut self) -> Option<Vec<f64>> {
        let count = self.count(1)?;
        Some(self.0.by_ref().take(count).map(f64::from_bits).collect())
    }
}

/// The program, the key and the run of a line; none if it is not whole.
fn read(line: &str) -> Option<(u64, Key, Measured)> {
    let words: Option<Vec<u64>> = line.split(' ').map(|word| u64::from_str_radix(word, 16).ok()).collect();
    let mut words = words?;
    let said = words.pop()?;
    if said != check(&words) {
        return None;
    }
    let mut words = Words(words.into_iter());
    let (program, key) = (words.one()?, (words.one()?, words.one()?));
    let flows = (words.number()?, words.number()?);
    let (link_hops, exact, trace) = (words.one()?, words.one()? != 0, words.one()?);
    let (values, halves) = (words.floats()?, [words.floats()?, words.floats()?]);
    let tail = words.floats()?;
    let count = words.count(SLICE)?;
    let mut timeline = Vec::with_capacity(count);
    for _ in 0..count {
        let t_us = f64::from_bits(words.one()?);
        let (initiator, target) = (words.number()?, words.number()?);
        let goodput = f64::from_bits(words.one()?);
        let (well, failed) = (words.one()?, words.one()?);
        let (issue_us, total_us) = (f64::from_bits(words.one()?), f64::from_bits(words.one()?));
        timeline.push(Slice { t_us, initiator, target, goodput, well, failed, issue_us, total_us });
    }
    let run = Measured { values, halves, tail, timeline, flows, link_hops, exact, trace, served: None };
    words.one().is_none().then_some((program, key, run))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Measured {
        Measured {
            values: vec![1.5, f64::INFINITY, -0.0],
            halves: [vec![1.0, f64::NAN], vec![]],
            tail: vec![0.1],
            timeline: vec![Slice { t_us: 3.0, target: 7, well: 2, ..Slice::default() }; 2],
            flows: (10, 1),
            link_hops: 1 << 40,
            exact: true,
            trace: u64::MAX,
            served: None,
        }
    }

    /// Bit for bit, what is not a number and what is infinite too.
    #[test]
    fn a_run_is_read_as_it_was_written() {
        let text = line(9, (8, 7), &run());
        let (program, key, read) = read(text.trim_end()).unwrap();
        assert_eq!((program, key), (9, (8, 7)));
        assert_eq!(line(9, (8, 7), &read), text);
        assert!(read.halves[0][1].is_nan() && read.timeline[1].target == 7 && read.exact);
    }

    /// Wherever a line is cut, and whichever of its characters is another, it is not taken.
    #[test]
    fn a_line_that_is_not_whole_is_not_taken() {
        let text = line(9, (8, 7), &run());
        let text = text.trim_end();
        assert!((0..text.len()).all(|end| read(&text[..end]).is_none()));
        for at in 0..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
            assert!(read(std::str::from_utf8(&bytes).unwrap()).is_none(), "at {at}");
        }
        assert!(read("").is_none() && read("x").is_none() && read(&"ffffffffffffffff ".repeat(20)).is_none());
    }

    #[test]
    fn another_builds_runs_and_torn_ones_are_run_again() {
        let folder = std::env::temp_dir().join(format!("adverb-lab-store-{}", std::process::id()));
        let mut store = Store::open(&folder, 1, false).unwrap();
        store.add((1, 1), &run()).unwrap();
        store.add((2, 2), &run()).unwrap();
        assert_eq!(store.tally, Tally { run: 2, ..Tally::default() });
        drop(store);
        // As a process that is killed leaves it.
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        let mut store = Store::open(&folder, 1, true).unwrap();
        assert!(store.take((1, 1)).is_some() && store.take((2, 2)).is_none());
        store.add((2, 2), &run()).unwrap();
        assert_eq!(store.tally, Tally { taken: 1, run: 1, refused: 1 });
        drop(store);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        let other = Store::open(&folder, 2, true).unwrap();
        assert_eq!((other.tally.refused, other.kept.len()), (2, 0));
        fs::remove_dir_all(folder).unwrap();
    }
}
