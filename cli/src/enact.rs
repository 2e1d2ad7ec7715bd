//! The programs of a scenario, run and judged: what `adverb sim` says of them.

use crate::error::Error;
use crate::{cast, simulate};
use adverb_sim::program::{Doing, End, Operation};
use adverb_sim::swarm::programs::Made;
use adverb_sim::{Plan, ScenarioFile, Sim};
use std::fmt::Write as _;

/// How often it is looked whether programs have ended, in ps.
const LOOK_PS: u64 = 100_000_000;
/// Operations that are printed.
const SHOWN: usize = 200;

/// What the programs of a seed did.
#[derive(Default)]
pub struct Played {
    programs: Vec<(String, String)>,
    operations: Vec<Operation>,
    /// What is wrong.
    pub failures: Vec<String>,
}

/// The programs of a plan, if it has any.
pub fn made(file: &ScenarioFile, plan: &Plan) -> Result<Option<Made>, Error> {
    let made = plan.cast.as_ref().map(cast::make).transpose();
    made.map_err(|e| Error::Scenario(file.located(e)))
}

/// Runs a simulation with programs until all have ended that do not serve, and flows too.
pub fn play(plan: &Plan, sim: &mut Sim, mut made: Made, progress: &mut dyn FnMut(&Sim)) -> Played {
    let Some(cast) = &plan.cast else { return Played::default() };
    sim.set_programs(cast.setup(&mut made, plan.config.seed));
    let ended = loop {
        let until = sim.now().as_ps().saturating_add(LOOK_PS).min(plan.end_ps);
        while sim.run(until, 1_000_000) {
            progress(sim);
        }
        let settled = sim.programs_ended() && (made.settled)(&sim.program_run(false));
        if settled && sim.flows_done() || !sim.program_failures().is_empty() {
            break true;
        }
        if until == plan.end_ps {
            break settled;
        }
    };
    let mut failures = sim.program_verdict(&made.judge);
    let operations = sim.operations();
    if !ended && failures.is_empty() {
        let left = sim.programs().filter(|(_, doing, ..)| matches!(doing, Doing::Runs | Doing::Waits));
        let left: Vec<&str> = left.map(|(name, ..)| name).collect();
        failures.push(format!("at the scenario's end, not all has come that must: {} run", left.join(", ")));
    }
    if operations.is_empty() {
        failures.push("no operation was noted, so that there is nothing to judge".to_owned());
    }
    let programs = sim.programs().map(|(name, doing, lives, _)| (name.to_owned(), said(doing, lives)));
    Played { programs: programs.collect(), operations, failures }
}

fn said(doing: &Doing, lives: u32) -> String {
    let (what, killed) = match doing {
        Doing::Waits => ("not started".to_owned(), lives),
        Doing::Runs => ("runs".to_owned(), lives),
        Doing::Ended(Ok(())) => ("ended".to_owned(), lives - 1),
        Doing::Ended(Err(why)) => (format!("ended: {why}"), lives - 1),
        Doing::Killed => ("killed".to_owned(), lives - 1),
    };
    if killed > 0 { format!("{what}, after {killed} lives that were cut off") } else { what }
}

impl Played {
    /// The programs, their operations, and the verdict.
    pub fn tell(&self, out: &mut String) {
        for (name, said) in &self.programs {
            simulate::row(out, name, said);
        }
        for operation in self.operations.iter().take(SHOWN) {
            let Operation { program, life, name, arguments, begun_ps, ended } = operation;
            let who = self.programs.get(*program as usize).map_or("", |(name, _)| name);
            let life = if *life > 0 { format!(", life {}", life + 1) } else { String::new() };
            let came = match ended {
                Some((at, End::Results(results))) => {
                    format!("{results:x?} at {}", simulate::time(*at as f64))
                }
                Some((at, End::Void)) => format!("no effect at {}", simulate::time(*at as f64)),
                None => "never heard of".to_owned(),
            };
            // Writing to a `String` cannot fail.
            let begun = simulate::time(*begun_ps as f64);
            let _ = writeln!(out, "{begun:>14}  {who}{life}: {name} {arguments:x?} -> {came}");
        }
        if let Some(more) = self.operations.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(out, "{:>14}  and {more} operations more", "");
        }
        self.verdict(out);
    }

    /// The counts of operations, and the verdict.
    pub fn verdict(&self, out: &mut String) {
        let count = |which: fn(&Operation) -> bool| self.operations.iter().filter(|o| which(o)).count();
        let ended = count(|o| matches!(o.ended, Some((_, End::Results(_)))));
        let void = count(|o| matches!(o.ended, Some((_, End::Void))));
        let open = count(|o| o.ended.is_none());
        let all = self.operations.len();
        simulate::row(
            out,
            "operations",
            format_args!("{all}: {ended} ended, {void} without effect, {open} never heard of"),
        );
        if self.failures.is_empty() {
            simulate::row(out, "oracle", "an order of the operations explains every answer");
        }
        self.failures
            .iter()
            .for_each(|failure| simulate::row(out, "oracle", format_args!("FAILS: {failure}")));
    }
}
