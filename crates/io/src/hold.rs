//! Whether frames may wait for the application's next call. Over UDP a system call is what a small message
//! costs: two frames that leave together take little more time than one. In shared memory a peer that polls
//! for an acknowledgement stops looking when it has it; with the answer beside it, no thread need look.
//!
//! Two things may wait. An acknowledgement, after a poll that found something, a look that brought a native
//! program what it waits for, or a look of the progress thread: who answers a message posts at once, and its
//! request takes the acknowledgement along. And, for the socket, the requests of a row of posts: a poll or
//! another post follows. The first of a row only after a long one: alone it would be a message, and have an
//! acknowledgement, of its own.
//!
//! Nobody tells what the application will do, so it must have earned the trust: [`NEEDED`] times in a row it
//! came back within [`SOON`]. Where something waited and it did not come, it has to do so more often before
//! something waits again, twice as often each time; but not where it only posts late in a row, since it may
//! have lost its processor. A program that asks for events is not trusted: it will sleep. Whatever waits
//! leaves with the next empty poll, and after [`LATE`] the thread sends it.
//!
//! This is a pure machine: it is told of calls and times; `core` and `port` do what it says.

use adverb_wire::{Duration, Instant};

/// A call within this time was worth the wait.
const SOON: Duration = Duration::from_us(20);
/// The thread sends what has waited for so long since a call: its tick.
const LATE: Duration = crate::guess::TICK;
/// The same for what the thread itself let wait. It wakes for that, so it is longer than an answer takes.
const LATE_BY_THREAD: Duration = Duration::from_us(50);
/// Times that the application must have come back, in a row, before something waits.
const NEEDED: i32 = 4;
/// The same after something has waited in vain, at first and at most.
const PENALTY_MIN: i32 = 16;
const PENALTY_MAX: i32 = 4096;
/// The same after a row of posts has gone on late.
const PENALTY_OF_ROW: i32 = 32;
/// Posts that make a row long: so many messages' first frames wait for the second.
const LONG_ROW: u32 = 4;
/// Acknowledgements that left with an answer, or rows that ended with a poll, after which the penalty is
/// halved.
const WINS: u32 = 4;
/// A host that had too much to do probably has it for so much longer.
const CROWDED: Duration = Duration::from_ms(20);
/// Calls after one for an event, before something waits.
const AFTER_EVENT: i32 = 64;

/// What may stay with the port when a call ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keep {
    /// Nothing: all frames leave.
    #[default]
    Nothing,
    /// Acknowledgements, if nothing else leaves.
    Acks,
    /// A few frames of a row of posts, and acknowledgements with them.
    Row,
}

/// Which receivers in shared memory are woken as a transmission ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waking {
    /// All that sleep, which takes a fence.
    Surely,
    /// Those that are seen to sleep. One that falls asleep at this moment is left to a call that follows.
    Seen,
    /// None: a call follows, or the thread's tick.
    Later,
}

/// What waited, or could have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Acks,
    Row,
}

/// What a call, or the thread, left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Left {
    at: Instant,
    what: What,
    /// It waited; else it left at once, and the question is whether it could have waited.
    held: bool,
    by_thread: bool,
}

/// How far the application is trusted to come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Trust {
    credit: i32,
    penalty: i32,
    wins: u32,
}

impl Trust {
    fn is_enough(&self) -> bool {
        self.credit >= NEEDED
    }

    fn came(&mut self, is_win: bool) {
        self.credit = (self.credit + 1).min(NEEDED);
        self.wins += u32::from(is_win);
        if self.wins >= WINS {
            (self.wins, self.penalty) = (0, self.penalty / 2);
        }
    }

    fn failed(&mut self, held: bool) {
        if held {
            self.penalty = (2 * self.penalty).clamp(PENALTY_MIN, PENALTY_MAX);
            (self.credit, self.wins) = (-self.penalty, 0);
        } else {
            self.credit = self.credit.min(0);
        }
    }

    fn judge(&mut self, soon: bool, held: bool, is_crowded: bool) {
        if soon { self.came(held) } else { self.failed(held && !is_crowded) }
    }
}

/// The machine's state. Lives under the NIC's lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hold {
    acks: Trust,
    posts: Trust,
    left: Option<Left>,
    /// The last call that was not without effect on the socket was a post.
    row: bool,
    /// Posts with frames for the socket since the last poll.
    row_len: u32,
    /// The row before that poll was long, so the next one probably is.
    rows_are_long: bool,
    /// Until then the host is taken to have more to do than it can.
    crowded_until: Instant,
}

impl Hold {
    /// What a post may leave behind.
    #[inline]
    pub fn for_post(&self, now: Instant) -> Keep {
        if (self.row || self.rows_are_long) && self.posts.is_enough() {
            return Keep::Row;
        }
        match self.left {
            Some(Left { at, what: What::Acks, held: true, .. }) if now.since(at) < SOON => Keep::Acks,
            _ => Keep::Nothing,
        }
    }

    /// What a poll, or a look of the thread, may leave behind if it takes something in.
    #[inline]
    pub fn for_arrivals(&self) -> Keep {
        if self.acks.is_enough() { Keep::Acks } else { Keep::Nothing }
    }

    /// A post ends: whether it had frames for the socket, and whether any wait there. A post of receives has
    /// none, and changes nothing.
    #[inline]
    pub fn posted(&mut self, now: Instant, sent: bool, waits: bool) {
        let Some(left) = self.left else {
            return self.note_post(now, sent, waits);
        };
        let soon = now.since(left.at) < SOON;
        let is_crowded = self.is_crowded(now);
        match left.what {
            What::Acks if sent || !soon => self.acks.judge(soon, left.held, is_crowded),
            What::Row if sent && soon => self.posts.came(false),
            What::Row if left.held && !soon => self.posts.credit = -PENALTY_OF_ROW,
            What::Row if !soon => self.posts.failed(false),
            _ => return,
        }
        self.left = None;
        self.note_post(now, sent, waits);
    }

    /// A post of a row has ended: how long it took says nothing of when the program comes back.
    #[inline]
    pub fn ended(&mut self, now: Instant) {
        if let Some(left @ Left { what: What::Row, .. }) = &mut self.left {
            left.at = now;
        }
    }

    #[inline]
    fn note_post(&mut self, now: Instant, sent: bool, waits: bool) {
        if sent {
            self.row = true;
            self.row_len = self.row_len.saturating_add(1);
            self.left = Some(Left { at: now, what: What::Row, held: waits, by_thread: false });
        }
    }

    /// A poll begins. Whether what waits must leave before it looks: all but acknowledgements that have not
    /// waited long.
    #[inline]
    pub fn poll_begins(&mut self, now: Instant) -> bool {
        self.row = false;
        if self.row_len > 0 {
            (self.rows_are_long, self.row_len) = (self.row_len >= LONG_ROW, 0);
        }
        let Some(left) = self.left else { return true };
        let soon = now.since(left.at) < SOON;
        let is_crowded = self.is_crowded(now);
        match left.what {
            What::Row => self.posts.judge(soon, left.held, is_crowded),
            What::Acks if soon => return false,
            What::Acks => self.acks.failed(left.held && !is_crowded),
        }
        self.left = None;
        true
    }

    /// A poll has found something, or the thread has taken something in, and acknowledgements were due:
    /// whether they wait.
    #[inline]
    pub fn acknowledges(&mut self, now: Instant, waits: bool, by_thread: bool) {
        self.left = Some(Left { at: now, what: What::Acks, held: waits, by_thread });
    }

    /// All that waited has left, and what follows is not to be judged by it.
    #[inline]
    pub fn forget(&mut self) {
        self.left = None;
    }

    /// The thread looks: whether what waits must leave.
    #[inline]
    pub fn thread_looks(&mut self, now: Instant) -> bool {
        let Some(left) = self.left else { return true };
        if now.since(left.at) < SOON {
            return false;
        }
        let held = left.held && !self.is_crowded(now);
        match left.what {
            What::Acks => self.acks.failed(held),
            What::Row => self.posts.failed(held),
        }
        self.left = None;
        true
    }

    /// The host has more to do than its processors can.
    #[cold]
    pub fn note_crowded(&mut self, now: Instant) {
        self.crowded_until = now + CROWDED;
    }

    /// Whether it probably has that still.
    #[inline]
    fn is_crowded(&self, now: Instant) -> bool {
        now < self.crowded_until
    }

    /// How a post wakes receivers in shared memory, in a row of posts or not. Where processors are short, who
    /// is woken by one of a row takes the processor from the poster, and sleeps again before the next.
    #[inline]
    pub fn waking(&self, now: Instant, in_a_row: bool) -> Waking {
        if !in_a_row {
            return Waking::Surely;
        }
        if self.is_crowded(now) { Waking::Later } else { Waking::Seen }
    }

    /// The application asks for an event, or says that it will sleep.
    #[cold]
    pub fn expects_sleep(&mut self) {
        (self.left, self.row) = (None, false);
        (self.row_len, self.rows_are_long) = (0, false);
        for trust in [&mut self.acks, &mut self.posts] {
            trust.credit = -AFTER_EVENT;
        }
    }

    /// When the thread sends what waits. At once if nobody knows why it does.
    pub fn deadline(&self) -> Instant {
        match self.left {
            Some(Left { at, by_thread: true, .. }) => at + LATE_BY_THREAD,
            Some(Left { at, .. }) => at + LATE,
            None => Instant::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_ns(us * 1000)
    }

    /// A poll that finds a message, and a post that answers it some time later; whether the acknowledgement
    /// was let wait.
    fn answer(hold: &mut Hold, us: u64, later_us: u64) -> bool {
        hold.poll_begins(at(us));
        let waits = hold.for_arrivals() == Keep::Acks;
        hold.acknowledges(at(us), waits, false);
        // A receive is posted before the answer.
        hold.posted(at(us), false, waits);
        hold.posted(at(us + later_us), true, false);
        waits
    }

    /// A row of posts a microsecond apart, and a poll some time later; how many were let wait.
    fn row(hold: &mut Hold, us: u64, posts: u64, later_us: u64) -> usize {
        let mut held = 0;
        for i in 0..posts {
            let waits = hold.for_post(at(us + i)) == Keep::Row;
            hold.posted(at(us + i), true, waits);
            held += usize::from(waits);
        }
        if later_us >= 500 {
            assert!(hold.thread_looks(at(us + posts + 499)));
        }
        assert!(hold.poll_begins(at(us + posts + later_us)));
        held
    }

    #[test]
    fn an_acknowledgement_waits_for_who_answers_at_once() {
        let mut hold = Hold::default();
        let waited: Vec<bool> = (0..6).map(|i| answer(&mut hold, i * 100, 3)).collect();
        assert_eq!(waited, [false, false, false, false, true, true]);
        // It computes for a while: the acknowledgement left late, and so soon none waits again.
        assert!(answer(&mut hold, 1000, 300));
        let tries = (0..).take_while(|i| !answer(&mut hold, 2000 + i * 100, 3)).count();
        assert_eq!(tries as i32, PENALTY_MIN + NEEDED);
        assert!(answer(&mut hold, 10_000, 300));
        let tries = (0..).take_while(|i| !answer(&mut hold, 12_000 + i * 100, 3)).count();
        assert_eq!(tries as i32, 2 * PENALTY_MIN + NEEDED);
    }

    #[test]
    fn who_was_slow_while_nothing_waited_only_begins_anew() {
        let mut hold = Hold::default();
        (0..3).for_each(|i| assert!(!answer(&mut hold, i * 100, 3)));
        assert!(!answer(&mut hold, 300, 300));
        let tries = (0..).take_while(|i| !answer(&mut hold, 1000 + i * 100, 3)).count();
        assert_eq!(tries as i32, NEEDED);
    }

    #[test]
    fn who_was_late_on_a_crowded_host_only_begins_anew() {
        let tries = |hold: &mut Hold, us| (0..).take_while(|i| !answer(hold, us + i * 100, 3)).count() as i32;
        let mut hold = Hold::default();
        for us in (0..10).map(|round| round * 10_000) {
            assert_eq!(tries(&mut hold, us), NEEDED);
            // It answers late.
            hold.note_crowded(at(us + 2000));
            assert!(answer(&mut hold, us + 2000, 300));
            assert_eq!(tries(&mut hold, us + 3000), NEEDED);
            // The thread sends what it let wait.
            hold.acknowledges(at(us + 5000), true, true);
            assert!(hold.thread_looks(at(us + 5060)));
            // A poll comes late after a row of posts.
            assert!(row(&mut hold, us + 6000, 10, 1) > 0);
            hold.posted(at(us + 6100), true, true);
            assert!(hold.poll_begins(at(us + 6400)));
            assert_eq!((hold.acks.credit, hold.posts.credit), (0, 0));
        }
        // Where it is not crowded any more, that counts again.
        tries(&mut hold, 200_000);
        assert!(answer(&mut hold, 201_000, 300));
        assert_eq!(tries(&mut hold, 202_000), PENALTY_MIN + NEEDED);
    }

    #[test]
    fn a_row_wakes_its_receivers_when_it_ends_where_processors_are_short() {
        let mut hold = Hold::default();
        assert_eq!([false, true].map(|row| hold.waking(at(5), row)), [Waking::Surely, Waking::Seen]);
        hold.note_crowded(at(5));
        assert_eq!([false, true].map(|row| hold.waking(at(19_000), row)), [Waking::Surely, Waking::Later]);
        assert_eq!(hold.waking(at(5) + CROWDED, true), Waking::Seen);
    }

    #[test]
    fn a_poll_in_between_leaves_an_acknowledgement_waiting_for_a_moment() {
        let mut hold = Hold::default();
        (0..4).for_each(|i| assert!(!answer(&mut hold, i * 100, 3)));
        hold.poll_begins(at(1000));
        assert_eq!(hold.for_arrivals(), Keep::Acks);
        hold.acknowledges(at(1000), true, false);
        assert!(!hold.poll_begins(at(1001)), "it may wait on");
        assert!(!hold.thread_looks(at(1010)), "also for the thread");
        assert_eq!(hold.for_post(at(1011)), Keep::Acks, "a post without frames takes nothing along");
        assert_eq!(hold.deadline(), at(1500));
        assert!(hold.poll_begins(at(1030)), "now it is late");
        assert_eq!(hold.for_arrivals(), Keep::Nothing);
    }

    #[test]
    fn how_long_a_post_takes_is_not_the_programs_delay_but_an_acknowledgement_waits_no_longer_for_it() {
        let mut hold = Hold::default();
        row(&mut hold, 0, 10, 1);
        assert_eq!(hold.for_post(at(100)), Keep::Row);
        hold.posted(at(100), true, false);
        hold.ended(at(150));
        hold.posted(at(151), true, true);
        assert_eq!(hold.for_post(at(152)), Keep::Row, "still trusted");
        hold.poll_begins(at(152));
        hold.acknowledges(at(153), true, false);
        // A post of receives.
        hold.posted(at(160), false, true);
        hold.ended(at(170));
        assert_eq!(hold.deadline(), at(653));
        assert!(hold.thread_looks(at(174)));
    }

    #[test]
    fn what_the_thread_lets_wait_it_sends_soon() {
        let mut hold = Hold::default();
        hold.acknowledges(at(10), true, true);
        assert_eq!(hold.deadline(), at(60));
        assert!(hold.thread_looks(at(60)));
        assert_eq!(hold.acks.credit, -PENALTY_MIN);
    }

    #[test]
    fn a_row_of_posts_waits_and_its_first_after_a_long_one() {
        let mut hold = Hold::default();
        assert_eq!(row(&mut hold, 0, 10, 1), 5, "all that follow, once it is trusted");
        assert_eq!(row(&mut hold, 100, 10, 1), 10, "it is probably as long as the one before");
        assert_eq!(row(&mut hold, 200, u64::from(LONG_ROW) - 1, 1), LONG_ROW as usize - 1);
        assert_eq!(row(&mut hold, 300, 10, 1), 9, "not after a short one");
        // A poll that follows a poll says nothing of rows.
        assert!(hold.poll_begins(at(350)));
        assert_eq!(row(&mut hold, 400, 1, 1), 1);
        assert_eq!(row(&mut hold, 500, 1, 1), 0);
        // Who will sleep is not trusted, and begins anew.
        row(&mut hold, 600, 10, 1);
        hold.expects_sleep();
        assert_eq!(row(&mut hold, 700, 80, 1), 80 - AFTER_EVENT as usize - NEEDED as usize - 1);
    }

    #[test]
    fn who_posts_in_rows_and_goes_away_is_soon_distrusted_for_long() {
        let mut hold = Hold::default();
        let (mut late, mut us) = (0, 0);
        for _ in 0..2000 {
            late += usize::from(row(&mut hold, us, 8, 1000) > 0);
            us += 10_000;
        }
        assert!(late <= 14, "{late} of 2000 rows were late");
        // A program that polls again wins the trust back.
        let rows = (0..2000).take_while(|i| row(&mut hold, us + i * 1000, 8, 1) == 0).count();
        assert!(rows < 600, "{rows}");
    }

    #[test]
    fn a_row_that_goes_on_late_is_soon_trusted_again() {
        let mut hold = Hold::default();
        for round in 0..10 {
            let us = round * 1000;
            row(&mut hold, us, 40, 1);
            assert_eq!(hold.for_post(at(us + 100)), Keep::Row, "the first of a row");
            hold.posted(at(us + 100), true, true);
            assert_eq!(hold.for_post(at(us + 101)), Keep::Row);
            hold.posted(at(us + 101), true, true);
            // It lost its processor.
            hold.posted(at(us + 400), true, false);
            assert_eq!(hold.for_post(at(us + 401)), Keep::Nothing);
            hold.poll_begins(at(us + 402));
        }
    }

    #[test]
    fn what_was_not_waited_for_leaves_at_once_and_says_nothing_of_the_application() {
        let mut hold = Hold::default();
        (0..4).for_each(|i| assert!(!answer(&mut hold, i * 100, 3)));
        // A look brings something else than what the program waits for, again and again.
        for i in 0..100 {
            assert!(hold.poll_begins(at(1000 + i)), "nothing waits");
            assert_eq!(hold.for_arrivals(), Keep::Acks);
            hold.acknowledges(at(1000 + i), true, false);
            hold.forget();
            assert_eq!(hold.for_post(at(1000 + i)), Keep::Nothing);
        }
        assert!(answer(&mut hold, 2000, 3));
    }

    #[test]
    fn nothing_waits_for_who_sleeps() {
        let mut hold = Hold::default();
        row(&mut hold, 0, 10, 1);
        (0..4).for_each(|i| assert!(!answer(&mut hold, 100 + i * 100, 3)));
        hold.expects_sleep();
        assert_eq!(hold.for_arrivals(), Keep::Nothing);
        assert_eq!(row(&mut hold, 1000, 10, 1), 0);
    }
}
