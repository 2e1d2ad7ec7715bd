//! `adverb switch holes`: what the draft's schemes for atomics and for chains lose, hole by hole. Each is a
//! scenario of one stated fault; it is run under the draft's scheme with and without that fault, and as a
//! switch decides atomics by default and with carriers, or steers by default.

use crate::error::Error;
use crate::{cast, enact, output};
use adverb_sim::{Scenario, Sim};
use adverb_switch::{Counter, Counters};
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;

/// `adverb switch holes`.
#[derive(Args, Debug)]
pub struct Holes {
    /// Which of them, such as H3 [default: all]
    #[arg(value_name = "HOLE", value_parser = hole)]
    pub holes: Vec<&'static Hole>,
}

/// Which of the draft's schemes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Scheme {
    /// Atomics that the switch decides.
    Atomics,
    /// Requests that it steers along chains.
    Chains,
}

/// A hole that was suspected in one of the draft's schemes.
#[derive(PartialEq, Debug)]
pub struct Hole {
    name: &'static str,
    of: Scheme,
    /// Its scenario. Lines that end with [`FAULT`] are the fault.
    text: &'static str,
    /// Whether its script fails under the draft's scheme.
    is_one: bool,
}

/// What marks the lines of a scenario's fault.
const FAULT: &str = "# fault";

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!("../../crates/sim/examples/holes/", $name, ".toml"))
    };
}

/// All that are scripted.
const HOLES: [Hole; 14] = [
    Hole { name: "H1", of: Scheme::Atomics, text: file!("h1"), is_one: true },
    Hole { name: "H2", of: Scheme::Atomics, text: file!("h2"), is_one: true },
    Hole { name: "H3", of: Scheme::Atomics, text: file!("h3"), is_one: true },
    Hole { name: "H4", of: Scheme::Chains, text: file!("h4"), is_one: true },
    Hole { name: "H5", of: Scheme::Chains, text: file!("h5"), is_one: true },
    Hole { name: "H6", of: Scheme::Chains, text: file!("h6"), is_one: true },
    Hole { name: "H7", of: Scheme::Atomics, text: file!("h7"), is_one: true },
    Hole { name: "H8", of: Scheme::Atomics, text: file!("h8"), is_one: true },
    Hole { name: "H9", of: Scheme::Atomics, text: file!("h9"), is_one: false },
    Hole { name: "H10", of: Scheme::Atomics, text: file!("h10"), is_one: true },
    Hole { name: "H11", of: Scheme::Atomics, text: file!("h11"), is_one: true },
    Hole { name: "H12", of: Scheme::Atomics, text: file!("h12"), is_one: false },
    Hole { name: "H13", of: Scheme::Atomics, text: file!("h13"), is_one: false },
    Hole { name: "H14", of: Scheme::Atomics, text: file!("h14"), is_one: true },
];
/// Where the draft's schemes have no fault.
const GROUNDS: [Hole; 2] = [
    Hole { name: "ground", of: Scheme::Atomics, text: file!("ground"), is_one: false },
    Hole { name: "ground-steer", of: Scheme::Chains, text: file!("ground-steer"), is_one: false },
];

fn hole(text: &str) -> Result<&'static Hole, String> {
    HOLES.iter().find(|hole| hole.name.eq_ignore_ascii_case(text)).ok_or_else(|| {
        let names: Vec<&str> = HOLES.iter().map(|hole| hole.name).collect();
        format!("not one of {}", names.join(", "))
    })
}

/// What a scenario gave.
struct Judged {
    failures: Vec<String>,
    counters: Counters,
}

impl Hole {
    /// What it is, in its scenario's words.
    fn about(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().map_while(|line| line.strip_prefix("# "))
    }

    fn without_fault(&self) -> String {
        self.text
            .lines()
            .filter(|line| !line.ends_with(FAULT))
            .fold(String::new(), |all, line| all + line + "\n")
    }

    /// Runs a scenario through a switch that runs this file.
    fn judge(text: &str, programs: &str) -> Result<Judged, Error> {
        let scenario = Scenario::parse(text).map_err(Error::Scenario)?;
        let mut plan = scenario.plan(&mut |_| Ok(programs.to_owned())).map_err(Error::Scenario)?;
        let made = plan.cast.as_ref().map(cast::make).transpose().map_err(Error::Scenario)?;
        let Some(made) = made else { unreachable!("a hole's scenario has programs") };
        let mut sim: Sim = plan.fabric().map_err(Error::Scenario)?;
        plan.begin(&mut sim);
        let failures = enact::play(&plan, &mut sim, made, &mut |_| {}).failures;
        let counters = sim.switch_counters().map(|(counters, _)| counters).unwrap_or_default();
        Ok(Judged { failures, counters })
    }

    /// Runs it in all ways, and says what came of them; whether that is what is known of it.
    fn show(&self, out: &mut String) -> Result<bool, Error> {
        let paper = self.of.paper();
        let mut ways = vec![
            ("paper, with the fault", Hole::judge(self.text, paper)?, self.is_one),
            ("paper, without it", Hole::judge(&self.without_fault(), paper)?, false),
        ];
        for (way, programs) in self.of.ours() {
            ways.push((way, Hole::judge(self.text, programs)?, false));
        }
        let about: Vec<&str> = self.about().collect();
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "{}", about.join("\n    "));
        let mut as_known = true;
        for (way, judged, fails) in ways {
            as_known &= judged.failures.is_empty() != fails;
            let said = match judged.failures.first() {
                None => "passes".to_owned(),
                Some(why) => format!("FAILS: {}", why.replace('\n', "\n    ")),
            };
            let _ = writeln!(out, "    {way:<27}{said}\n    {:<27}{}", "", self.of.told(&judged.counters));
        }
        Ok(as_known)
    }
}

impl Scheme {
    /// The draft's.
    fn paper(self) -> &'static str {
        match self {
            Scheme::Atomics => file!("paper"),
            Scheme::Chains => file!("paper-steer"),
        }
    }

    /// Ours.
    fn ours(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Scheme::Atomics => &[
                ("in-place, with the fault", file!("in-place")),
                ("multiplex, with the fault", file!("multiplex")),
            ],
            Scheme::Chains => &[("linked, with the fault", file!("steer"))],
        }
    }

    /// What a switch did.
    fn told(self, counters: &Counters) -> String {
        let sum = |all: &[Counter]| all.iter().map(|counter| counters.get(*counter)).sum::<u64>();
        let get = |counter| counters.get(counter);
        match self {
            Scheme::Atomics => format!(
                "({} converted, {} passed, {} held, {} de-coalesced, {} moved)",
                sum(&[Counter::CasGranted, Counter::CasRefused, Counter::FetchAdded]),
                get(Counter::AtomicsPassed),
                get(Counter::Held),
                get(Counter::DeCoalesced),
                get(Counter::Moved)
            ),
            Scheme::Chains => format!(
                "({} links and {} READs steered, {} and {} to the last entry, {} links passed, {} held)",
                get(Counter::SteeredCas),
                get(Counter::SteeredReads),
                get(Counter::CurrentCas),
                get(Counter::CurrentReads),
                get(Counter::ChainsPassed),
                get(Counter::Held)
            ),
        }
    }
}

/// Shows them; failure if one of them is not as it is known to be.
pub fn holes(arguments: &Holes) -> Result<ExitCode, Error> {
    let all: Vec<&Hole> = match arguments.holes.is_empty() {
        true => GROUNDS.iter().chain(&HOLES).collect(),
        false => arguments.holes.clone(),
    };
    let (mut out, mut wrong) = (String::new(), Vec::new());
    for hole in all {
        if !hole.show(&mut out)? {
            wrong.push(hole.name);
        }
    }
    output::print(&out)?;
    if wrong.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&format!("not as they are known to be: {}\n", wrong.join(", ")))?;
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_switch::{Mistake, ProgramConfig};
    use adverb_wire::Duration;

    /// Where nothing is lost, one request of each client is outstanding and releases are compare and swaps,
    /// the draft's scheme converts what it knows, moves it, and the oracle finds nothing.
    #[test]
    fn the_draft_passes_on_its_own_ground() {
        for (ground, some) in GROUNDS.iter().zip([
            [Counter::CasGranted, Counter::CasRefused, Counter::FetchAdded, Counter::Moved],
            [Counter::SteeredCas, Counter::CurrentCas, Counter::SteeredReads, Counter::CurrentReads],
        ]) {
            let judged = Hole::judge(ground.text, ground.of.paper()).unwrap();
            assert_eq!(judged.failures, [""; 0]);
            for counter in some {
                assert!(judged.counters.get(counter) > 10, "{}", ground.of.told(&judged.counters));
            }
        }
    }

    /// Each fails under the draft's scheme, in the oracle's words, for one fault, and not by default.
    #[test]
    fn holes_are_as_they_are_known() {
        for hole in &HOLES {
            let faults = hole.text.lines().filter(|line| line.ends_with(FAULT)).count();
            assert!(faults > 0, "{} has a fault", hole.name);
            assert!(hole.about().last().is_some_and(|line| line.starts_with("Fault: ")), "{}", hole.name);
            let mut out = String::new();
            assert!(hole.show(&mut out).unwrap(), "{}:\n{out}", hole.name);
        }
    }

    /// H1 with carriers, its lock on client 1's queue pair: what came of it.
    fn carried_release(mistake: Option<Mistake>) -> Vec<String> {
        let text = hole("H1").unwrap().text.replace("cas 0 ", "cas 1 ").replace("add 0 0", "add 1 0");
        // Behind the switch, which drops what comes behind a gap.
        let text = text.replace("drop write link=2", "drop write link=1 src=1");
        let text =
            text.replace("\"3ms: add 1 0\",", "\"3ms: add 1 0\", \"70ms: add 1 0\", \"300ms: read 7\",");
        let mut plan =
            Scenario::parse(&text).unwrap().plan(&mut |_| Ok(file!("multiplex").to_owned())).unwrap();
        for program in plan.config.programs.iter_mut().flat_map(|of| &mut of.programs) {
            let ProgramConfig::CasToWrite(config) = program else { continue };
            config.mistake = mistake;
            // Nobody is asked about the client's queue pair, so that its own requests alone are in the way.
            config.carry.iter_mut().for_each(|carry| carry.proof = Duration::from_ms(1000));
        }
        let made = cast::make(plan.cast.as_ref().unwrap()).unwrap();
        let mut sim = plan.fabric().unwrap();
        plan.begin(&mut sim);
        let failures = enact::play(&plan, &mut sim, made, &mut |_| {}).failures;
        let moved = sim.switch_counters().unwrap().0.get(Counter::Moved);
        assert!(moved > 2, "{moved} moved");
        failures
    }

    /// Carriers show H1 as soon as requests do not wait for their client's own ones.
    #[test]
    fn carriers_that_overtake_are_found() {
        assert_eq!(carried_release(None), [""; 0]);
        let failures = carried_release(Some(Mistake::Overtakes));
        assert!(failures.iter().any(|why| why.contains("word: 4, call: Read } -> 0")), "{failures:?}");
    }

    /// What the oracle says of them.
    #[test]
    fn the_oracle_says_what_is_wrong() {
        for (name, said) in [
            ("H1", "word: 4, call: Read } -> 0"),
            ("H2", "client 1 failed"),
            ("H3", "client 1 failed"),
            ("H4", "no order of its"),
            ("H5", "no order of its"),
            ("H6", "its chain leads to itself"),
            ("H7", "word: 4, call: Read } -> 0"),
            ("H8", "CompareSwap { compare: 1, swap:"),
            ("H10", "client 0 failed"),
            ("H11", "call: Read } -> 0"),
            ("H14", "client 0 failed"),
        ] {
            let hole = hole(name).unwrap();
            let judged = Hole::judge(hole.text, hole.of.paper()).unwrap();
            assert!(judged.failures.iter().any(|why| why.contains(said)), "{name}: {:?}", judged.failures);
        }
    }
}
