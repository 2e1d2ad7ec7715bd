//! Retransmissions in the order in which they left, to find the ones that were lost too.
//!
//! The paper sends a lost packet once more and then waits for the timer, which on a real host is a hundred
//! round trips. But what arrives tells about what left before it: when a packet is acknowledged that was
//! sent, or sent again, after a retransmission that is still missing, the retransmission is lost (as TCP's
//! RACK has it, by order instead of time).

use super::WINDOW;
use super::bitmap::Bitmap;
use adverb_wire::Psn;
use std::collections::VecDeque;

/// A packet that was sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    psn: Psn,
    /// What had been sent by then: the first new packet behind it has this PSN.
    next: Psn,
}

/// Packets that were sent again and are not known to have arrived; at most one entry for each packet of a
/// window. Memory is taken when the first loss is repaired.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Again {
    /// Oldest first.
    left: VecDeque<Left>,
    /// So many of them, the oldest, are lost again.
    lost: u16,
}

impl Again {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The oldest that is lost again; those that have arrived meanwhile are forgotten.
    #[inline]
    pub fn first_lost(&mut self, una: Psn, sacked: &Bitmap) -> Option<Psn> {
        if self.lost == 0 { None } else { self.next_missing(una, sacked) }
    }

    #[inline(never)]
    fn next_missing(&mut self, una: Psn, sacked: &Bitmap) -> Option<Psn> {
        while self.lost > 0
            && let Some(at) = self.left.front()
        {
            if !at.psn.is_before(una) && !sacked.get(at.psn) {
                return Some(at.psn);
            }
            self.left.pop_front();
            self.lost -= 1;
        }
        None
    }

    /// A packet leaves again, before the new packet `next`. Two rounds of a window are not in flight at once:
    /// should they be, those that find no room wait for the timer.
    #[inline(never)]
    pub fn on_resent(&mut self, psn: Psn, next: Psn) {
        if self.lost > 0 && self.left.front().is_some_and(|at| at.psn == psn) {
            self.left.pop_front();
            self.lost -= 1;
        }
        if self.left.len() < WINDOW as usize {
            self.left.push_back(Left { psn, next });
        }
    }

    /// Packets from `from` to before `to` have arrived. Everything that was sent again `slack` packets or
    /// more before one of them is lost, unless it has arrived too. True if that is news.
    #[inline(never)]
    pub fn on_arrived(&mut self, from: Psn, to: Psn, slack: u32) -> bool {
        let slack = slack as i32;
        // By the newest of them to be sent again, and by the newest to be sent at all.
        let again = |at: &Left| !at.psn.is_before(from) && at.psn.is_before(to);
        let witness = self.left.iter().rposition(again).map(|place| (place, self.left[place].next));
        let overtaken = |(place, at): &(usize, &Left)| {
            let by_new = to.since(at.next) > slack;
            let by_old =
                witness.is_some_and(|(j, next)| j as i32 - *place as i32 + next.since(at.next) > slack);
            by_new || by_old
        };
        let lost = self.left.iter().enumerate().take_while(overtaken).count() as u16;
        let news = lost > self.lost;
        self.lost = self.lost.max(lost);
        news
    }

    /// Nothing is being sent again, or all of it is.
    #[inline]
    pub fn clear(&mut self) {
        if !self.left.is_empty() {
            self.left.clear();
            self.lost = 0;
        }
    }

    pub fn check_invariants(&self, next: Psn) {
        assert!(self.lost as usize <= self.left.len(), "lost more than was sent again");
        assert!(self.left.len() <= WINDOW as usize);
        let mut before = None;
        for at in &self.left {
            assert!(at.psn.is_before(at.next) && !next.is_before(at.next), "sent again before it was sent");
            assert!(before.is_none_or(|b| !at.next.is_before(b)), "out of order");
            before = Some(at.next);
        }
    }
}
