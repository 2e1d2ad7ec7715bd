//! In which order a server answers what has passed its switch: a program of the switch that numbers requests
//! as they pass, and looks at how far the numbers of two successive answers are apart. It changes nothing.

use adverb_sim::Sim;
use adverb_switch::frame::Frame;
use adverb_switch::program::{Context, Program};
use adverb_switch::{Making, Own, OwnConfig, ProgramConfig};
use adverb_wire::Instant;
use std::collections::BTreeMap;

/// Requests under way at most; those beyond are not followed, and counted.
const OPEN_MAX: usize = 1 << 12;
/// Its name in `in-switch`.
pub const NAME: &str = "order";

/// How the program is begun.
#[derive(Debug)]
struct Begin;

/// The program.
#[derive(Debug, Default)]
struct Order {
    /// Requests that have passed.
    passed: u64,
    /// The number of each that is not answered, by client and packet number: connections begin at random
    /// ones.
    open: BTreeMap<([u8; 16], u32), u64>,
    last: Option<u64>,
    seen: Seen,
    full: u64,
}

/// What it has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Answers behind another one.
    pub answers: u64,
    /// Of these, those to the request next to the other's.
    pub next: u64,
    /// The farthest that two were apart.
    pub farthest: u64,
}

/// What a switch is told.
pub fn config() -> ProgramConfig {
    ProgramConfig::Own(OwnConfig::new(Begin))
}

impl Seen {
    /// What a simulation's switch has counted, if this program runs there.
    pub fn of(sim: &Sim) -> Seen {
        let programs = sim.programmed_switch().map(|switch| switch.programs()).unwrap_or_default();
        let counts = programs.iter().find_map(|program| match program {
            Program::Own(NAME, own) => Some(own.counts()),
            _ => None,
        });
        let of = |name: &str| {
            let found = counts.iter().flatten().find(|(known, _)| *known == name);
            found.map_or(0, |(_, count)| *count)
        };
        Seen { answers: of("answers"), next: of("next"), farthest: of("farthest") }
    }
}

impl Making for Begin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&self, _: Instant) -> Result<Box<dyn Own>, &'static str> {
        Ok(Box::<Order>::default())
    }
}

impl Own for Order {
    fn on_frame(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let (flow, bth) = (frame.packet.flow, frame.packet.bth);
        if bth.opcode.operation().is_response() {
            if let Some(number) = self.open.remove(&(flow.dst.0, bth.psn.get()))
                && let Some(last) = self.last.replace(number)
            {
                let apart = number.abs_diff(last);
                self.seen.answers += 1;
                self.seen.next += u64::from(apart == 1);
                self.seen.farthest = self.seen.farthest.max(apart);
            }
        } else if self.open.len() < OPEN_MAX {
            self.passed += 1;
            self.open.insert((flow.src.0, bth.psn.get()), self.passed);
        } else {
            self.full += 1;
        }
        ctx.pass_on(frame);
    }

    fn digests(&self) -> Vec<(&'static str, u64)> {
        vec![("passed", self.passed)]
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let Seen { answers, next, farthest } = self.seen;
        vec![("answers", answers), ("next", next), ("farthest", farthest), ("full", self.full)]
    }
}
