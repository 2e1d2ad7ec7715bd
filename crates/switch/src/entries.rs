//! Tables and registers of programs, read and written from outside the pipeline: by cases of packets, and
//! while a switch runs. An entry is a number under a number.

use crate::program::Program;
use adverb_wire::Instant;

/// Entries that are told at once, at most.
pub const ENTRIES_MAX: usize = 4096;

/// The register of `ecn` and `trim`: packets that could have been marked, by port.
const SEEN: &str = "seen";
/// The table of `cas_to_write`: values of words, by address, as far as they are known.
const WORDS: &str = "words";
/// The table of `steer`: addresses of last entries, by key, as far as they are known.
const TAILS: &str = "tails";

impl Program {
    /// What it has of tables and registers.
    pub fn tables(&self) -> Vec<&'static str> {
        match self {
            Program::Ecn(_) | Program::Trim(_) => vec![SEEN],
            Program::CasToWrite(_) => vec![WORDS],
            Program::Steer(_) => vec![TAILS],
            Program::Own(_, own) => own.tables(),
            Program::Paper(_) | Program::PaperSteer(_) => Vec::new(),
        }
    }

    /// The first entries of a table, in the order of their keys; those that are nothing are left out.
    ///
    /// # Errors
    /// There is no such table.
    pub fn entries(&self, table: &str) -> Result<Vec<(u64, u64)>, String> {
        self.check_table(table)?;
        let mut entries: Vec<(u64, u64)> = match self {
            Program::Ecn(mark) | Program::Trim(mark) => (0..)
                .zip(mark.seen())
                .filter(|(_, seen)| **seen > 0)
                .map(|(at, seen)| (at, (*seen).into()))
                .collect(),
            Program::CasToWrite(cas) => cas.known_words().collect(),
            Program::Steer(steer) => steer.known_tails(),
            Program::Own(_, own) => own.entries(table),
            Program::Paper(_) | Program::PaperSteer(_) => Vec::new(),
        };
        entries.truncate(ENTRIES_MAX);
        Ok(entries)
    }

    /// One entry, if there is something.
    ///
    /// # Errors
    /// There is no such table.
    pub fn entry(&self, table: &str, key: u64) -> Result<Option<u64>, String> {
        self.check_table(table)?;
        Ok(match self {
            Program::Ecn(mark) | Program::Trim(mark) => {
                let seen = usize::try_from(key).ok().and_then(|at| mark.seen().get(at));
                seen.map(|seen| u64::from(*seen)).filter(|seen| *seen > 0)
            }
            Program::CasToWrite(cas) => cas.known_word(key),
            Program::Steer(steer) => {
                steer.known_tails().into_iter().find(|(k, _)| *k == key).map(|(_, at)| at)
            }
            Program::Own(_, own) => own.entry(table, key),
            Program::Paper(_) | Program::PaperSteer(_) => None,
        })
    }

    /// Sets an entry, or takes it away.
    ///
    /// # Errors
    /// There is no such table or entry, or it cannot have this value now.
    pub fn set_entry(
        &mut self,
        now: Instant,
        table: &str,
        key: u64,
        value: Option<u64>,
    ) -> Result<(), String> {
        self.check_table(table)?;
        match self {
            Program::Ecn(mark) | Program::Trim(mark) => {
                let value = u32::try_from(value.unwrap_or(0)).map_err(|_| format!("{table} has 32 bits"))?;
                let entry = usize::try_from(key).ok().and_then(|at| mark.seen_mut().get_mut(at));
                *entry.ok_or_else(|| format!("{table} has no entry {key}"))? = value;
                Ok(())
            }
            Program::CasToWrite(cas) => match value {
                Some(value) if cas.set_known(key, value) => Ok(()),
                None if cas.forget_word(now, key) => Ok(()),
                Some(_) => Err(format!("the word {key:#x} is not known, and so cannot be set")),
                None => Err(format!("the word {key:#x} is not followed, or something is on its way to it")),
            },
            Program::Steer(steer) => match value {
                None if steer.forget_key(key) => Ok(()),
                None => Err(format!("the last entry of {key:#x} is not known")),
                Some(_) => {
                    Err("the server says which entry is a chain's last; it can only be forgotten".to_owned())
                }
            },
            Program::Own(_, own) => own.set_entry(table, key, value),
            Program::Paper(_) | Program::PaperSteer(_) => Err(format!("there is no table {table}")),
        }
    }

    fn check_table(&self, table: &str) -> Result<(), String> {
        let known = self.tables();
        match known.contains(&table) {
            true => Ok(()),
            false if known.is_empty() => Err(format!("{} has no tables", self.name())),
            false => Err(format!("{} has no table {table}; it has {}", self.name(), known.join(", "))),
        }
    }
}

/// The program of a row that a name means, or a number from 1 on.
///
/// # Errors
/// None is meant, or several.
pub fn named(programs: &[Program], name: &str) -> Result<usize, String> {
    let by_number = name.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let found: Vec<usize> = match by_number {
        Some(at) => (at < programs.len()).then_some(at).into_iter().collect(),
        None => (0..programs.len()).filter(|at| programs[*at].name() == name).collect(),
    };
    match found[..] {
        [at] => Ok(at),
        [] => Err(format!("the switch runs no program {name}")),
        _ => Err(format!("the switch runs {} programs {name}; give its number", found.len())),
    }
}
