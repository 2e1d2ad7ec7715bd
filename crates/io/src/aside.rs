//! When the progress thread moves to another processor.
//!
//! A datagram wakes the thread on the processor of who sent it, and so does the bell: the kernel takes a
//! sender for one that is about to sleep. A sender that polls is not. The thread then has its processor,
//! answers, and spins in vain for a next request that only the sender could make; or, where it knows that
//! the processor is the sender's, it sleeps and is woken for each request. So it moves to another processor,
//! where its spinning finds what comes, and while it spins no wake moves it back.

use adverb_os::processors;

/// Spins in vain, one after another, before the thread moves.
const FIRST: u32 = 4;
/// The same where moving has been of no use.
const LAST: u32 = 1024;

/// Counts spins that found nothing.
#[derive(Debug)]
struct Vain {
    in_vain: u32,
    /// So many, and the thread moves.
    patience: u32,
}

impl Default for Vain {
    fn default() -> Vain {
        Vain { in_vain: 0, patience: FIRST }
    }
}

impl Vain {
    /// After a spin. Whether the thread is to move.
    fn spun(&mut self, found: bool) -> bool {
        if found {
            *self = Vain::default();
            return false;
        }
        self.in_vain += 1;
        if self.in_vain < self.patience {
            return false;
        }
        // Whoever asks less often than spins last makes all of them vain, wherever the thread is.
        *self = Vain { in_vain: 0, patience: (self.patience * 2).min(LAST) };
        true
    }
}

/// Where the thread runs.
#[derive(Default)]
pub struct Aside {
    vain: Vain,
    /// Times that it moved.
    pub moves: u64,
}

impl Aside {
    /// After a spin, and where a spin would have found something but the processor is wanted. Whether the
    /// thread has moved. It may come back at once: as long as it spins no wake moves it.
    pub fn spun(&mut self, found: bool) -> bool {
        let moved = self.vain.spun(found) && processors::Aside::step().map(processors::Aside::end).is_some();
        self.moves += u64::from(moved);
        moved
    }

    /// Several frames have come at once: whoever sends them does not wait for an answer to each.
    #[inline]
    pub fn is_stream(&mut self) {
        self.vain = Vain::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_after_spins_in_vain_and_ever_more_seldom_where_that_is_of_no_use() {
        let mut vain = Vain::default();
        let moves: Vec<u32> = (1..=2100).filter(|_| vain.spun(false)).collect();
        assert_eq!(moves, [4, 12, 28, 60, 124, 252, 508, 1020, 2044]);
        assert!((0..LAST - 57).all(|_| !vain.spun(false)));
        assert!(!vain.spun(true));
        assert_eq!(
            [(); 4].map(|()| vain.spun(false)),
            [false, false, false, true],
            "a spin that found something"
        );
        // One in vain now and then is no reason.
        let mut vain = Vain::default();
        assert!((0..100).all(|n| !vain.spun(n % 4 == 3)));
    }
}
