//! Loops: unrolled, each round with WQEs of its own; or recycled, whose stages are rings.

use super::{Guard, Lowering, OTHERWISE, Ring, values};
use crate::chain::{Op, QueueId, Until};
use crate::language::Error;
use crate::language::ast::*;

impl Lowering<'_> {
    /// `while` and `loop`.
    pub(super) fn repeated(
        &mut self,
        condition: Option<&Condition>,
        times: Times,
        body: &[Statement],
        guard: Guard,
    ) -> Result<(), Error> {
        match times {
            Times::Unroll(times) => self.unrolled(condition, times, body, guard),
            Times::Recycle => self.recycled(condition, body, guard),
        }
    }

    fn unrolled(
        &mut self,
        condition: Option<&Condition>,
        times: u32,
        body: &[Statement],
        guard: Guard,
    ) -> Result<(), Error> {
        let line = self.line;
        let mut goes_on = match values::leaves(body) && condition.is_none() {
            true => Some(self.alive(guard)?),
            false => guard,
        };
        for _ in 0..times {
            self.line = line;
            if let Some(condition) = condition {
                goes_on = Some(self.choose(condition, goes_on, false)?.0);
            }
            self.leaves.push(goes_on.into_iter().collect());
            self.block(body, goes_on)?;
            self.leaves.pop();
        }
        Ok(())
    }

    fn recycled(
        &mut self,
        condition: Option<&Condition>,
        body: &[Statement],
        guard: Guard,
    ) -> Result<(), Error> {
        if self.ring.is_some() {
            return self.error("a recycled loop inside another one: unroll the inner one");
        }
        let line = self.line;
        let ends = condition.is_some() || guard.is_some() || values::leaves(body);
        let alive = if ends { Some(self.alive(guard)?) } else { None };
        let ring = self.rings.len();
        // Which queue, and how far, is known when all stages are.
        let next = self.node(Op::Enable(Until::Blocks(QueueId(0), 0)))?;
        let exit = match ends {
            true => Some(self.node(Op::Enable(Until::Blocks(QueueId(0), 0)))?),
            false => None,
        };
        let laps = self.cell(8)?;
        self.rings.push(Ring { next, exit, laps, line });
        self.ring = Some(ring);
        self.boundary();
        let goes_on = match condition {
            Some(condition) => Some(self.choose(condition, alive, false)?.0),
            None => alive,
        };
        self.leaves.push(goes_on.into_iter().collect());
        self.block(body, goes_on)?;
        self.leaves.pop();
        self.line = line;
        if let (Some(guard), Some(exit)) = (goes_on, exit) {
            self.operation_from(next, guard, 4);
            self.operation_from(exit, guard, OTHERWISE);
            self.boundary();
        } else if self.stages.iter().filter(|stage| stage.ring == self.ring).count() < 2 {
            // The last stage brings up the others' indices: it is another one.
            self.boundary();
        }
        self.ring = None;
        self.boundary();
        Ok(())
    }
}
