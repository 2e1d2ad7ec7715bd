//! What `adverb redn trace` prints: what the server's NIC told, with the names of the program.

use super::{Job, Known};
use adverb_rdma::{Duration, Instant};
use adverb_redn::show::Names;
use adverb_redn::trace::{ChainEvent, Trace, words};
use adverb_sim::Sim;
use std::fmt::Write as _;

/// Steps that a trace tells at most.
const STEPS_MAX: usize = 2000;
/// Events of the simulator between two looks at how much has been told.
const SLICE: u64 = 10_000;
/// The server's host.
const SERVER: u32 = 0;
/// The client's.
const CLIENT: u32 = 1;

/// What was told so far.
#[derive(Default)]
pub struct Story {
    events: Vec<ChainEvent>,
    /// What the client's clock is ahead of the simulation's.
    ahead: Duration,
    /// How the run ended, as far as it concerns the story.
    pub ending: Ending,
}

/// How a traced run ended.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// It was cut off: there was too much to tell.
    #[default]
    Cut,
    /// The program came to its end, and the client got so many replies.
    Ended(usize),
    /// It did not.
    Stopped,
}

impl Story {
    /// Runs a simulation whose server is watched, until nothing is left to happen or there is too much to
    /// tell: false then.
    pub fn run(&mut self, sim: &mut Sim) -> bool {
        loop {
            self.ahead = sim.clock_ahead(CLIENT);
            let more = sim.run(u64::MAX, SLICE);
            self.events.extend(core::iter::from_fn(|| sim.next_chain_event(SERVER)));
            if self.events.len() > STEPS_MAX {
                return false;
            }
            if !more {
                return true;
            }
        }
    }

    /// It in words.
    pub fn words(&self, job: &Job) -> String {
        let mut out = String::new();
        let Some(Known { chain, layout, addresses }) = job.known.get() else { return out };
        let asked = job.asked.get().copied().unwrap_or(Instant::ZERO);
        let begin = Instant::from_ps(asked.since(Instant::ZERO + self.ahead).as_ps());
        let mut trace = Trace::new(Names { chain, layout, addresses });
        trace.tell(&self.events[..self.events.len().min(STEPS_MAX)]);
        let mut asked = false;
        for line in trace.lines() {
            if !asked && line.at >= begin {
                asked = true;
                let _ = writeln!(out, "{:>9.3}  {:<8} {:<8} sends its message", 0.0, "client", "");
            }
            let _ = writeln!(out, "{}", words(line, begin));
        }
        said(&mut out, trace.stale(begin));
        match self.ending {
            Ending::Cut => {
                let _ = writeln!(out, "the trace ends here: it tells {STEPS_MAX} steps");
            }
            Ending::Stopped => said(&mut out, trace.stuck(false)),
            Ending::Ended(0) => {
                said(&mut out, trace.stuck(true));
                let mut lines: Vec<String> = trace
                    .false_conditions(&job.file.program.body)
                    .into_iter()
                    .map(|line| format!("`if` at line {line} was false"))
                    .collect();
                if lines.is_empty() {
                    lines.extend(trace.silent().map(|line| format!("the one of line {line} was turned off")));
                }
                let why = if lines.is_empty() { String::new() } else { format!(": {}", lines.join(", ")) };
                let _ = writeln!(out, "no reply{why}");
            }
            Ending::Ended(_) => {}
        }
        out
    }
}

fn said(out: &mut String, lines: Vec<String>) {
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
}
