//! placeholder

use crate::sim::Sim;
use adverb_nic::Completion;

/// placeholder
pub struct Oracle {}

impl Sim {
    pub(crate) fn on_oracle(&mut self) {}
    pub(crate) fn on_oracle_completion(&mut self, _h: u32, _c: &Completion) {}
}
