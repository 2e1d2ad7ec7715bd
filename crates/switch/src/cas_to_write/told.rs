//! A program that is told something else while it runs, and goes on with all that it remembers: what it has
//! converted can be answered still, so that no queue pair fails of it.

use super::word::State;
use super::{CasConfig, CasToWrite};

impl CasConfig {
    /// Whether who was told this may go on as one that is told `next`.
    ///
    /// What it has sent must stay what it was when it is sent again: the same server's, in the same byte
    /// order, on the same carriers. Its tables keep what is in them, and so do not shrink. Another key or
    /// range is no matter: a word that does not belong any more is given to the server by the next atomic
    /// for it, as any address that is reached in a way that is not followed.
    pub fn may_become(&self, next: &CasConfig) -> bool {
        let stays = |config: &CasConfig| (config.server, config.byte_order, config.carry, config.mistake);
        stays(self) == stays(next)
            && next.words_max >= self.words_max
            && next.connections_max >= self.connections_max
    }
}

impl CasToWrite {
    /// It is told something else, with which nothing is wrong.
    ///
    /// # Panics
    /// If it may not become that (see [`CasConfig::may_become`]).
    pub fn is_told(&mut self, next: CasConfig) {
        assert!(self.config.may_become(&next), "{:?} does not become {next:?}", self.config);
        // Waits that have begun are to be as if these times had been known.
        let (life, flight) = (next.life.minus(self.config.life), next.flight.minus(self.config.flight));
        self.words.grow(next.words_max);
        for word in self.words.all_mut() {
            match &mut word.state {
                State::Unsure { until } => *until += life,
                State::Closed { until } => *until += flight,
                State::Learning { .. } | State::Pending { .. } | State::Carried { .. } | State::Known(_) => {}
            }
        }
        self.quiet_until += flight;
        self.connections.grow(next.connections_max);
        self.config = next;
    }
}
