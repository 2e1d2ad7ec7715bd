//! The solicitation window, and the row in which operations wait for it (sections 4.1 and 4.3).
//!
//! Whatever makes data flow towards somebody takes its bytes out of the window before the request leaves and
//! gives them back at its end: own reads; own writes and rekeys, from the request to the completion, so that
//! writes hold it for two round trips (section 7.1); and peers' writes and rekeys, from the solicitation
//! until their data are here. To enter, 4 KB must be free whatever the size is, so that small operations
//! never keep large ones out.

use adverb_wire::one_rma::MAX_OP;
use std::collections::VecDeque;

pub(super) struct SolicitationWindow {
    size: u32,
    free: u32,
}

impl SolicitationWindow {
    pub fn new(size: u32) -> SolicitationWindow {
        SolicitationWindow { size, free: size }
    }

    /// Whether an operation may enter.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.free as usize >= MAX_OP
    }

    #[inline]
    pub fn debit(&mut self, bytes: u16) {
        assert!(self.is_open(), "an operation enters with 4 KB free");
        self.free -= bytes as u32;
    }

    #[inline]
    pub fn refund(&mut self, bytes: u16) {
        self.free += bytes as u32;
        assert!(self.free <= self.size, "no more comes back than went");
    }

    pub fn taken(&self) -> u32 {
        self.size - self.free
    }
}

/// Who waits for the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiting {
    /// The command in this slot.
    Command(u32),
    /// A peer's four-hop operation.
    Inbound(u32),
}

/// A row for each class of service; the two are served in turns.
pub(super) struct Arbiter {
    rows: [VecDeque<Waiting>; 2],
    /// Class whose turn it is.
    turn: usize,
}

impl Arbiter {
    pub fn new(most: usize) -> Arbiter {
        Arbiter { rows: [VecDeque::with_capacity(most), VecDeque::with_capacity(most)], turn: 0 }
    }

    pub fn push(&mut self, class: u8, who: Waiting) {
        self.rows[(class & 1) as usize].push_back(who);
    }

    /// The head of the row whose turn it is.
    pub fn pop(&mut self) -> Option<Waiting> {
        if self.rows[self.turn].is_empty() {
            self.turn ^= 1;
        }
        let who = self.rows[self.turn].pop_front()?;
        self.turn ^= 1;
        Some(who)
    }

    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(VecDeque::is_empty)
    }

    /// Takes somebody out who waits no longer. Those whose time runs out are at the front, where this is
    /// quick: all wait equally long.
    pub fn remove(&mut self, class: u8, who: Waiting) {
        let row = &mut self.rows[(class & 1) as usize];
        if let Some(at) = row.iter().position(|waiting| *waiting == who) {
            row.remove(at);
        }
    }

    pub fn len(&self) -> usize {
        self.rows.iter().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_take_turns_and_each_is_first_in_first_out() {
        let mut arbiter = Arbiter::new(8);
        for i in 0..4 {
            arbiter.push(0, Waiting::Command(i));
        }
        arbiter.push(1, Waiting::Inbound(9));
        arbiter.push(1, Waiting::Command(8));
        arbiter.remove(0, Waiting::Command(1));
        let order: Vec<_> = core::iter::from_fn(|| arbiter.pop()).collect();
        use Waiting::*;
        assert_eq!(order, [Command(0), Inbound(9), Command(2), Command(8), Command(3)]);
        assert!(arbiter.is_empty());
    }

    #[test]
    fn four_kilobytes_must_be_free() {
        let mut window = SolicitationWindow::new(8192);
        window.debit(4096);
        window.debit(1);
        assert!(!window.is_open());
        window.refund(1);
        assert!(window.is_open());
        assert_eq!(window.taken(), 4096);
    }
}
