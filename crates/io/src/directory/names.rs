//! Names of the files in an address's folder, and who removes them.

use std::fs;
use std::path::Path;

/// What a ring's file name says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RingName {
    pub from: u8,
    pub from_generation: u64,
    pub to: u8,
    pub to_generation: u64,
}

impl RingName {
    pub fn parse(name: &str) -> Option<RingName> {
        let mut parts = name.strip_prefix("ring.")?.split('.');
        let (from, from_generation) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let (to, to_generation) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(RingName { from, from_generation, to, to_generation })
    }
}

/// A file of the folder that somebody may have to remove.
pub(super) enum Named {
    /// The bell or the board of a slot.
    Bell(u8),
    Ring(RingName),
}

/// Removes bells, boards and rings of which a dead slot is an end.
pub(super) fn remove_files_of(folder: &Path, is_dead: impl Fn(u8) -> bool) {
    remove_files(folder, |file| match file {
        Named::Bell(slot) => is_dead(slot),
        Named::Ring(ring) => is_dead(ring.from) || is_dead(ring.to),
    });
}

/// Removes bells, boards and rings. Failures leave files that the next one removes.
pub(super) fn remove_files(folder: &Path, goes: impl Fn(Named) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let own = || name.strip_prefix("bell.").or_else(|| name.strip_prefix("board."));
        let bell = || own()?.split('.').next()?.parse().ok().map(Named::Bell);
        if RingName::parse(name).map(Named::Ring).or_else(bell).is_some_and(&goes) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rings_say_whose_they_are() {
        let ring = RingName { from: 3, from_generation: 40, to: 254, to_generation: 7 };
        assert_eq!(RingName::parse("ring.3.40.254.7"), Some(ring));
        for name in ["ring.3.40.254", "ring.3.40.254.7.1", "ring.300.40.254.7", "bell.3.40", "table", ""] {
            assert_eq!(RingName::parse(name), None, "{name}");
        }
    }
}
