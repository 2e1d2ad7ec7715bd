//! What programs of a switch need of its hardware: an experiment names the programs, with their keys, and
//! the hardware; nothing is run. Values are `adverb_switch::Needs`, an estimate of registers, stages and
//! abilities as `adverb switch check` prints it, and exact.

use crate::definition::Metrics;
use crate::measure::Measured;
use crate::points::{Asked, scenario};
use crate::rack::{keys_of, no_flows};
use crate::run::Seeds;
use crate::{Error, Experiment};
use adverb_switch::keys::configs;
use adverb_switch::{Misfit, Needs, Profile, ProgramConfig, Shares, Switch};
use adverb_wire::Instant;
use serde::Deserialize;
use toml::Value;

/// A figure of programs on a hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// What does not fit: registers that are too many or too wide, and what the hardware cannot do.
    Misfits,
    /// Of these, what the hardware cannot do.
    Unable,
    /// Bytes of all registers, in KB.
    Kilobytes,
    /// Stages that have a register.
    Stages,
    /// SRAM blocks.
    Blocks,
    /// Stateful ALUs.
    Alus,
    /// Percent of the SRAM blocks that the stages in use have.
    SramShare,
    /// Of their map RAMs.
    MapShare,
    /// Of their stateful ALUs.
    AluShare,
}

impl Metric {
    /// Its heading, with its unit, and its name in CSV files.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Metric::Misfits => ("does not fit", "misfits"),
            Metric::Unable => ("of it, cannot", "unable"),
            Metric::Kilobytes => ("registers (KB)", "kilobytes"),
            Metric::Stages => ("stages in use", "stages"),
            Metric::Blocks => ("SRAM blocks", "sram_blocks"),
            Metric::Alus => ("stateful ALUs", "stateful_alus"),
            Metric::SramShare => ("of their SRAM (%)", "sram_percent"),
            Metric::MapShare => ("of their map RAM (%)", "map_ram_percent"),
            Metric::AluShare => ("of their ALUs (%)", "alu_percent"),
        }
    }

    /// Its value. Shares of what is not scarce are 0.
    fn of(self, needs: &Needs, target: Profile) -> f64 {
        let (usage, misfits) = (needs.usage(), needs.misfits(target));
        let shares = usage.shares(target).unwrap_or_default();
        let Shares { sram, map_ram, stateful_alu } = shares;
        match self {
            Metric::Misfits => misfits.len() as f64,
            Metric::Unable => misfits.iter().filter(|it| matches!(it, Misfit::Unable(_))).count() as f64,
            Metric::Kilobytes => needs.bytes() as f64 / 1024.0,
            Metric::Stages => f64::from(usage.stages),
            Metric::Blocks => usage.sram_blocks as f64,
            Metric::Alus => usage.stateful_alus as f64,
            Metric::SramShare => sram,
            Metric::MapShare => map_ram,
            Metric::AluShare => stateful_alu,
        }
    }
}

/// What one place of a series asks for.
#[derive(Clone, Debug)]
pub struct Setup {
    programs: Vec<ProgramConfig>,
    target: Profile,
}

impl Setup {
    /// `in-switch`, one program or a row of them, and `target`; a paper's other tables say nothing of it.
    pub fn of(asked: &Asked) -> Result<Setup, Error> {
        let fail = |why: String| Error(format!("{}: {why}", asked.name));
        let mut table = asked.table.clone();
        let target = match table.remove("target") {
            Some(Value::String(name)) => Profile::named(&name),
            _ => None,
        };
        let names = Profile::ALL.map(Profile::name).join(", ");
        let target = target.ok_or_else(|| fail(format!("target: one of {names}")))?;
        let asked_for = match table.remove("in-switch") {
            Some(Value::Array(row)) => row,
            Some(one) => vec![one],
            None => return Err(fail("needs `in-switch`: a program, or a row of them".to_owned())),
        };
        let keys = asked_for.into_iter().map(|one| match one {
            Value::Table(keys) => keys_of(keys),
            _ => Err("in-switch: tables of programs".to_owned()),
        });
        let keys = keys.collect::<Result<Vec<_>, String>>().map_err(fail)?;
        let programs = configs(&keys).map_err(|why| fail(format!("in-switch: {why}")))?;
        // Keys that nothing knows are refused here as in every other kind.
        table.remove("time");
        no_flows(&mut table);
        scenario(&Asked { table, ..asked.clone() })?;
        Ok(Setup { programs, target })
    }

    /// What they need.
    pub fn needs(&self, name: &str) -> Result<Needs, Error> {
        let begun = self.programs.iter().map(|config| config.begin(Instant::ZERO));
        let begun = begun.collect::<Result<Vec<_>, _>>().map_err(|why| Error(format!("{name}: {why}")))?;
        let switch = Switch::new(begun, 0).map_err(|why| Error(format!("{name}: {why}")))?;
        Ok(switch.needs())
    }

    fn measure(&self, name: &str, metrics: &Metrics) -> Result<Measured, Error> {
        let Metrics::Budget(metrics) = metrics else { return Ok(Measured::default()) };
        let needs = self.needs(name)?;
        let values = metrics.iter().map(|metric| metric.of(&needs, self.target)).collect();
        Ok(Measured { values, exact: true, flows: (self.programs.len() as u32, 0), ..Measured::default() })
    }
}

/// What is asked for, the same for all seeds.
pub(crate) fn run(
    experiment: &Experiment,
    asked: &[Asked],
    (seeds, effort): (Seeds, &crate::Effort),
    progress: &mut dyn FnMut(crate::Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    let setups = asked.iter().map(Setup::of).collect::<Result<Vec<_>, _>>()?;
    let work = |point: usize, _: u64| setups[point].measure(&asked[point].name, &experiment.measured);
    crate::run::each(experiment, asked, (seeds, effort), &work, progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{Verdict, check};
    use crate::{Scale, mutation, registry, report};

    fn setup(text: &str) -> Result<Setup, Error> {
        let table = toml::from_str(text).unwrap();
        Setup::of(&Asked { series: 0, at: 0, name: "it".to_owned(), table })
    }

    const REST: &str = "[topology]\nkind = \"star\"\nhosts = 2\nrate = \"100G\"\ndelay = \"1us\"\n";

    #[test]
    fn what_it_cannot_read_is_refused() {
        let steer = "in-switch = { kind = \"steer\", entry = 128 }\n";
        let one = setup(&format!("target = \"tofino1\"\n{steer}{REST}")).unwrap();
        assert_eq!(one.needs("it").unwrap().usage().stages, 4);
        let row = "in-switch = [{ kind = \"ecn\", every = 9 }, { kind = \"steer\", entry = 128 }]\n";
        let row = setup(&format!("target = \"tofino1\"\n{row}{REST}")).unwrap();
        assert_eq!(row.needs("it").unwrap().usage().stages, 5);
        for (text, why) in [
            (format!("{steer}{REST}"), "target: one of software, tofino1, tofino2"),
            (format!("target = \"tofino9\"\n{steer}{REST}"), "target: one of"),
            (format!("target = \"tofino1\"\n{REST}"), "needs `in-switch`"),
            (format!("target = \"tofino1\"\nin-switch = 3\n{REST}"), "tables of programs"),
            (format!("target = \"tofino1\"\nin-switch = {{ kind = \"sort\" }}\n{REST}"), "sort"),
            (format!("target = \"tofino1\"\nhosts = 3\n{steer}{REST}"), "hosts"),
        ] {
            let said = setup(&text).unwrap_err().0;
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    /// Every gate holds, each mutation is caught, and the values are those of the switch.
    #[test]
    fn programs_fit_what_they_say_and_the_gates_can_fail() {
        let effort = crate::Effort {
            scale: Scale::Quick,
            seeds: None,
            first_seed: 1,
            jobs: 1,
            command: "adverb".into(),
            store: None,
        };
        let experiment = registry::find("swordbox/resources").unwrap_or_else(|e| panic!("{e}"));
        let outcome = crate::run::run(&experiment, &effort, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
        let checked = check(&experiment, &outcome);
        let text = report::text(&experiment, &outcome, &checked);
        let fails = checked.iter().filter(|c| matches!(c.verdict(), Verdict::Fails(_))).count();
        assert!(fails == 0 && checked.iter().any(|c| c.is_claim_that_holds()), "{text}");
        let trial = mutation::run(&experiment, &outcome, &effort, &mut |_| {}).unwrap();
        let said = mutation::text(&experiment, &outcome, &trial);
        assert!(trial.passed() && !trial.claims.is_empty() && trial.untouched().count() == 0, "{said}");
    }
}
