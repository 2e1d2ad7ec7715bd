//! Runs of a scenario with connections that last.

use adverb_sim::workload::Workload;
use adverb_sim::workload::persistent::Persistent;
use adverb_sim::{Scenario, Sim};

pub fn run(text: &str) -> Sim {
    let plan = Scenario::parse(text).unwrap().plan(&mut |_| unreachable!()).unwrap();
    let mut sim = plan.start().unwrap();
    plan.run(&mut sim, &mut |_| {});
    sim.check_invariants();
    sim
}

pub fn work(sim: &Sim) -> &Persistent {
    let Workload::Persistent(work) = sim.workload() else { panic!("connections") };
    work
}
