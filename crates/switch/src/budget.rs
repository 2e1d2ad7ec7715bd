//! What a program needs of a switch's hardware, against what there is: an estimate of blocks, stateful ALUs,
//! stages and abilities. It is not a compiler: a program that fits here may still not compile.
//!
//! The numbers of `tofino1` are those of its compiler's resource log: a stage has 80 SRAM blocks of 16 KiB,
//! 48 map RAMs and 4 stateful ALUs, of up to two 32-bit words each; there are 12 stages. `tofino2` has 20.

use crate::register::Shape;
use std::fmt;

/// Bytes of an SRAM block.
const BLOCK_BYTES: u64 = 16 << 10;

/// A switch's hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// A process: nothing is scarce but memory.
    Software,
    /// 12 stages.
    Tofino1,
    /// 20 stages.
    Tofino2,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 3] = [Profile::Software, Profile::Tofino1, Profile::Tofino2];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Software => "software",
            Profile::Tofino1 => "tofino1",
            Profile::Tofino2 => "tofino2",
        }
    }

    /// The profile of a name.
    pub fn named(name: &str) -> Option<Profile> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    fn limits(self) -> Option<Limits> {
        let stages = match self {
            Profile::Software => return None,
            Profile::Tofino1 => 12,
            Profile::Tofino2 => 20,
        };
        Some(Limits { stages, sram_blocks: 80, map_rams: 48, stateful_alus: 4, width: 64 })
    }
}

/// What each stage has.
#[derive(Clone, Copy)]
struct Limits {
    stages: u32,
    sram_blocks: u64,
    map_rams: u64,
    stateful_alus: u64,
    width: u32,
}

/// What a program does that a pipeline of matches and actions cannot do to every packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ability {
    /// Makes packets of its own accord: several from one.
    Generates,
    /// Keeps packets until something happens.
    Holds,
    /// Sums a whole payload (ICRC).
    SumsPayload,
}

impl Ability {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Ability::Generates => "generates packets",
            Ability::Holds => "holds packets",
            Ability::SumsPayload => "sums payloads (ICRC)",
        }
    }
}

/// What a row of programs needs.
#[derive(Clone, Default, Debug)]
pub struct Needs {
    /// Its register arrays and tables.
    pub registers: Vec<Shape>,
    /// What else it must be able to do.
    pub abilities: Vec<Ability>,
}

impl Needs {
    /// Bytes of all registers.
    pub fn bytes(&self) -> u64 {
        self.registers.iter().map(bytes_of).sum()
    }

    /// Stages up to the last one in use.
    pub fn stages(&self) -> u32 {
        self.registers.iter().map(|shape| shape.stage + 1).max().unwrap_or(0)
    }

    /// What its registers take of a pipeline.
    pub fn usage(&self) -> Usage {
        let in_use = |stage: &u32| self.registers.iter().any(|shape| shape.stage == *stage);
        Usage {
            stages: (0..self.stages()).filter(in_use).count() as u32,
            sram_blocks: self.registers.iter().map(blocks_of).sum(),
            stateful_alus: self.registers.iter().map(|shape| u64::from(shape.width.div_ceil(64))).sum(),
        }
    }

    /// What does not fit, and by how much. Nothing, if all does.
    pub fn misfits(&self, profile: Profile) -> Vec<Misfit> {
        let Some(limits) = profile.limits() else { return Vec::new() };
        let mut misfits = Vec::new();
        let mut at_most = |resource: &'static str, at: String, needed: u64, there: u64| {
            if needed > there {
                misfits.push(Misfit::TooMany { resource, at, needed, there });
            }
        };
        at_most("stages", "the pipeline".to_owned(), self.stages().into(), limits.stages.into());
        for shape in &self.registers {
            at_most("bits of an entry", shape.name.to_owned(), shape.width.into(), limits.width.into());
        }
        for stage in 0..self.stages() {
            let here = || self.registers.iter().filter(|shape| shape.stage == stage);
            let blocks: u64 = here().map(blocks_of).sum();
            let at = || format!("stage {stage}");
            at_most("SRAM blocks", at(), blocks, limits.sram_blocks);
            at_most("map RAMs", at(), blocks, limits.map_rams);
            at_most("stateful ALUs", at(), here().count() as u64, limits.stateful_alus);
        }
        misfits.extend(self.abilities.iter().map(|ability| Misfit::Unable(*ability)));
        misfits
    }
}

/// What registers take of a pipeline, all stages together. Each SRAM block of a register takes a map RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Stages that have a register.
    pub stages: u32,
    /// SRAM blocks.
    pub sram_blocks: u64,
    /// Stateful ALUs: one for each 64 bits of an entry.
    pub stateful_alus: u64,
}

/// The same in percent of what the stages that have a register offer.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Shares {
    /// SRAM blocks.
    pub sram: f64,
    /// Map RAMs.
    pub map_ram: f64,
    /// Stateful ALUs.
    pub stateful_alu: f64,
}

impl Usage {
    /// Of a hardware's stages, as its compiler's log has them; none where nothing is scarce.
    pub fn shares(&self, profile: Profile) -> Option<Shares> {
        let limits = profile.limits()?;
        let percent = |needed: u64, there: u64| match self.stages {
            0 => 0.0,
            stages => 100.0 * needed as f64 / (there * u64::from(stages)) as f64,
        };
        Some(Shares {
            sram: percent(self.sram_blocks, limits.sram_blocks),
            map_ram: percent(self.sram_blocks, limits.map_rams),
            stateful_alu: percent(self.stateful_alus, limits.stateful_alus),
        })
    }
}

fn bytes_of(shape: &Shape) -> u64 {
    u64::from(shape.width).div_ceil(8) * shape.entries as u64
}

/// A register array takes the blocks of its bytes, and one more that the hardware keeps to write while it
/// reads.
fn blocks_of(shape: &Shape) -> u64 {
    bytes_of(shape).div_ceil(BLOCK_BYTES) + 1
}

/// Something that does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Misfit {
    /// More is needed than there is.
    TooMany {
        /// Of what.
        resource: &'static str,
        /// Where.
        at: String,
        /// How much is needed.
        needed: u64,
        /// How much there is.
        there: u64,
    },
    /// The hardware cannot do it at all.
    Unable(Ability),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::TooMany { resource, at, needed, there } => {
                write!(f, "{at}: {needed} {resource}, {there} there ({} too many)", needed - there)
            }
            Misfit::Unable(ability) => write!(f, "{}, which no stage can", ability.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(width: u32, entries: usize, stage: u32) -> Needs {
        Needs { registers: vec![Shape { name: "r", width, entries, stage }], abilities: Vec::new() }
    }

    #[test]
    fn the_published_register_takes_its_blocks() {
        // The READ table of the steering program: 2^19 entries of 8 bits took 33 blocks.
        assert_eq!(blocks_of(&Shape { name: "r", width: 8, entries: 1 << 19, stage: 0 }), 33);
        assert_eq!(needs(8, 1 << 19, 7).misfits(Profile::Tofino1), []);
    }

    #[test]
    fn shares_are_of_the_stages_in_use() {
        // The published program: 134 blocks and 16 ALUs in 9 stages are 18.6 and 44.4% of theirs.
        let published = Usage { stages: 9, sram_blocks: 134, stateful_alus: 16 };
        let shares = published.shares(Profile::Tofino1).unwrap();
        assert!((shares.sram - 18.6).abs() < 0.05 && (shares.stateful_alu - 44.4).abs() < 0.05, "{shares:?}");
        assert_eq!(published.shares(Profile::Software), None);
        assert_eq!(Needs::default().usage().shares(Profile::Tofino2), Some(Shares::default()));
        // A stage without a register counts as one before, and is not in use.
        let wide = needs(200, 1 << 13, 3);
        assert_eq!(wide.usage(), Usage { stages: 1, sram_blocks: 14, stateful_alus: 4 });
        assert_eq!(wide.stages(), 4);
    }

    #[test]
    fn misfits_say_what_and_by_how_much() {
        let said = |needs: Needs, profile| -> Vec<String> {
            needs.misfits(profile).iter().map(Misfit::to_string).collect()
        };
        assert_eq!(
            said(needs(64, 16, 12), Profile::Tofino1),
            ["the pipeline: 13 stages, 12 there (1 too many)"]
        );
        assert_eq!(said(needs(64, 16, 12), Profile::Tofino2), [""; 0]);
        assert_eq!(
            said(needs(96, 16, 0), Profile::Tofino1),
            ["r: 96 bits of an entry, 64 there (32 too many)"]
        );
        assert_eq!(
            said(needs(64, 100_000, 1), Profile::Tofino1),
            ["stage 1: 50 map RAMs, 48 there (2 too many)"]
        );
        assert_eq!(said(needs(640, 1 << 30, 99), Profile::Software), [""; 0]);
        let mut five = needs(8, 8, 0);
        five.registers = vec![five.registers[0]; 5];
        five.abilities.push(Ability::Holds);
        assert_eq!(
            said(five, Profile::Tofino2),
            ["stage 0: 5 stateful ALUs, 4 there (1 too many)", "holds packets, which no stage can"]
        );
    }
}
