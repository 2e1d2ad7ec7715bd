//! What programs of a scenario did, for people: each operation with its times, and the verdict on all of
//! them.

use super::Noted;
use crate::sim::Sim;
use crate::swarm::programs::{Judge, Run};
use adverb_rdma::seam::Note;
use std::collections::BTreeMap;

/// An operation that a program noted.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Whose, in the order of programs, and in which of its lives.
    pub program: u32,
    /// See `program`.
    pub life: u32,
    /// What was done.
    pub name: &'static str,
    /// With what.
    pub arguments: Vec<u64>,
    /// When it began, in ps.
    pub begun_ps: u64,
    /// When it ended and what came of it; `None` of one that was cut off.
    pub ended: Option<(u64, End)>,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// With these results.
    Results(Vec<u64>),
    /// It certainly had no effect.
    Void,
}

impl Sim {
    /// Operations that programs noted, in the order in which they began.
    pub fn operations(&self) -> Vec<Operation> {
        let (mut all, mut open) = (Vec::<Operation>::new(), BTreeMap::new());
        for Noted { at, program, life, note } in self.notes() {
            let end = match note {
                Note::Begin { operation, name, arguments, .. } => {
                    open.insert((*program, *life, *operation), all.len());
                    all.push(Operation {
                        program: *program,
                        life: *life,
                        name,
                        arguments: arguments.clone(),
                        begun_ps: *at,
                        ended: None,
                    });
                    continue;
                }
                Note::End { operation, results } => (*operation, End::Results(results.clone())),
                Note::Void { operation } => (*operation, End::Void),
                Note::Say(_) => continue,
            };
            if let Some(index) = open.remove(&(*program, *life, end.0)) {
                all[index].ended = Some((*at, end.1));
            }
        }
        all
    }

    /// The run of its programs so far, for a judge.
    pub fn program_run(&self, quiet: bool) -> Run<'_> {
        let programs = self.programs().map(|(_, doing, lives, _)| (doing, lives)).collect();
        Run { notes: self.notes(), programs, quiet }
    }

    /// What is wrong with what programs did; nothing, if all is well.
    pub fn program_verdict(&self, judge: &Judge) -> Vec<String> {
        let mut failures = self.program_failures().to_vec();
        failures.extend(judge(&self.program_run(false)));
        failures
    }
}
