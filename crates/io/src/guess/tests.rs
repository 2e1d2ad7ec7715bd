//! Tables of calls, frames and times, and what the machine makes of them.

use super::*;
use Call::{Arm, EmptyPoll, FullPoll, Post};

fn at(us: u64) -> Instant {
    Instant::from_ns(us * 1000)
}

const BY_BELL: Woken = Woken { bell: true, socket: false };
const BY_SOCKET: Woken = Woken { bell: false, socket: true };
const BY_TIME: Woken = Woken { bell: false, socket: false };
const ROUND: Look = Look::Round { ask_socket: false };
const NOTHING: Found = Found { frames: 0, events: 0, more: false, shares_cpu: false };

fn frames(frames: usize) -> Found {
    Found { frames, ..NOTHING }
}

fn wait(until_us: u64, socket: bool) -> Next {
    Next::Wait { until: Some(at(until_us)), socket }
}

/// The machine with the bell's word, which peers clear when they ring.
#[derive(Default)]
struct Table {
    guess: Guess,
    armed: bool,
}

impl Table {
    fn set(&mut self, bell: Ringing) {
        match bell {
            Ringing::Keep => {}
            Ringing::Arm => (self.armed, self.guess.armed) = (true, true),
            Ringing::Silence => (self.armed, self.guess.armed) = (false, false),
        }
    }

    /// A call; whether it rings the thread's bell.
    fn call(&mut self, call: Call) -> bool {
        if call == Post {
            let bell = self.guess.before_post(self.armed);
            self.set(bell);
        }
        let (bell, told) = self.guess.after_call(call, self.armed);
        self.set(bell);
        told | self.guess.wakes_thread(false)
    }

    fn calls(&mut self, calls: &[Call]) -> bool {
        calls.iter().fold(false, |rung, &call| rung | self.call(call))
    }

    /// A peer rings.
    fn ring(&mut self) -> bool {
        std::mem::take(&mut self.armed)
    }

    /// The thread wakes, looks by a round that finds this, and says what it does next.
    fn thread(&mut self, us: u64, woken: Woken, found: Found) -> Next {
        assert!(matches!(self.guess.look(at(us), woken), Look::Round { .. }), "no glance");
        let (next, silence) = self.guess.found(at(us), found, |_| false);
        if silence {
            self.set(Ringing::Silence);
        }
        let Next::Rest(bell) = next else { return next };
        self.set(bell);
        self.guess.rest(at(us), None, false).0
    }

    /// Until the bell is LAZY: it is rung for frames that the application polls away.
    fn make_lazy(&mut self) {
        for _ in 0..USELESS_MAX {
            self.call(FullPoll);
            assert!(self.ring());
        }
        self.call(FullPoll);
        assert!(self.guess.lazy && !self.armed);
    }
}

#[test]
fn the_bell_follows_the_last_call() {
    for (calls, armed) in [
        (&[EmptyPoll][..], false),
        (&[FullPoll], true),
        (&[FullPoll, EmptyPoll], false),
        (&[FullPoll, Post], false),
        (&[FullPoll, Post, FullPoll], true),
        (&[Arm], true),
        (&[EmptyPoll, Arm], true),
        (&[Arm, Post], false),
    ] {
        let mut table = Table::default();
        assert!(!table.calls(calls), "{calls:?}: the thread is awake");
        assert_eq!(table.armed, armed, "{calls:?}");
        assert_eq!(table.guess.in_a_row(), calls.last() == Some(&Post), "{calls:?}");
    }
}

#[test]
fn who_posts_and_never_polls_has_the_bell_armed() {
    let mut table = Table::default();
    table.calls(&[FullPoll, Post]);
    assert!(!table.armed, "polls are expected after a post");
    // A tick finds frames: they were not.
    assert_eq!(table.thread(600, BY_TIME, frames(1)), wait(1100, true));
    assert!(table.armed);
    table.call(Post);
    assert!(table.armed, "nor are they now");
    table.calls(&[EmptyPoll, Post]);
    assert!(!table.armed, "until one comes");
}

#[test]
fn a_tick_takes_over_from_an_application_that_did_not_come_back() {
    let mut table = Table::default();
    table.call(EmptyPoll);
    assert_eq!(table.thread(100, BY_TIME, NOTHING), wait(600, true));
    assert!(table.guess.has_ticked() && !table.armed);
    assert_eq!(table.thread(600, BY_TIME, frames(2)), wait(1100, true));
    assert!(table.armed, "a peer's next frame wakes the thread");
    table.call(EmptyPoll);
    assert!(!table.armed, "it has come back");
}

#[test]
fn a_deadline_ends_a_wait_before_the_tick_does() {
    let mut guess = Guess::default();
    guess.after_call(EmptyPoll, false);
    for (deadline_us, until_us) in [(100, 100), (499, 499), (501, 500), (90_000, 500)] {
        guess.look(at(0), BY_TIME);
        assert_eq!(guess.rest(at(0), Some(at(deadline_us)), false), (wait(until_us, true), false));
        assert_eq!(guess.glanced(at(0), false, Some(at(deadline_us))), Some(wait(until_us, false)));
    }
}

#[test]
fn without_calls_the_thread_sleeps_and_the_next_call_wakes_it() {
    let mut table = Table::default();
    table.call(EmptyPoll);
    assert_eq!(table.thread(0, BY_TIME, NOTHING), wait(500, true));
    assert_eq!(table.thread(9_999, BY_TIME, NOTHING), wait(10_499, true));
    assert!(!table.armed);
    assert_eq!(table.guess.look(at(10_000), BY_TIME), Look::Round { ask_socket: true });
    let (next, _) = table.guess.found(at(10_000), NOTHING, |_| false);
    assert_eq!(next, Next::Rest(Ringing::Arm));
    table.set(Ringing::Arm);
    let forever = Next::Wait { until: None, socket: true };
    assert_eq!(table.guess.rest(at(10_000), None, false), (forever, true));
    // The bell stays armed for a post: an answer must find the sleeper.
    assert_eq!(table.guess.before_post(table.armed), Ringing::Keep);
    assert!(table.call(EmptyPoll), "the thread ticks again");
    assert!(table.armed, "and silences the bell itself");
    assert!(!table.call(EmptyPoll));
    assert!(!table.armed);
    table.guess.look(at(20_000), BY_BELL);
    assert!(!table.guess.was_useless(NOTHING), "that wake was for the call itself");
    table.call(EmptyPoll);
    table.guess.look(at(20_100), BY_BELL);
    assert!(table.guess.was_useless(NOTHING), "this one was for a frame that the call had taken");
}

#[test]
fn useless_rings_in_a_row_make_the_bell_lazy() {
    let mut table = Table::default();
    table.call(FullPoll);
    for rings in 1..=USELESS_MAX {
        assert!(table.armed && !table.guess.lazy, "{rings}");
        assert!(table.ring());
        table.call(FullPoll);
    }
    assert!(!table.armed && table.guess.lazy);
    table.calls(&[FullPoll, Post, FullPoll]);
    assert!(!table.armed, "it stays silent");
    assert!(table.call(Arm), "the thread hears that it no longer need tick twice");
    assert!(table.armed && !table.guess.lazy);
}

#[test]
fn one_ring_that_was_of_use_begins_the_count_anew() {
    let mut table = Table::default();
    table.call(FullPoll);
    for rings in 1..3 * USELESS_MAX {
        table.ring();
        if rings % (USELESS_MAX - 1) == 0 {
            table.thread(u64::from(rings), BY_BELL, frames(1));
        }
        table.call(FullPoll);
    }
    assert!(!table.guess.lazy);
}

#[test]
fn useless_wakes_by_the_socket_count_as_rings_do() {
    let mut guess = Guess::default();
    for wakes in 1..=USELESS_MAX {
        guess.after_call(EmptyPoll, false);
        assert_eq!(guess.look(at(1), BY_SOCKET), Look::Round { ask_socket: true });
        let (next, silence) = guess.found(at(1), NOTHING, |_| false);
        assert_eq!(silence, wakes == USELESS_MAX, "{wakes}");
        assert_eq!(next == wait(501, false), silence);
    }
    assert_eq!(guess.look(at(501), BY_TIME), Look::Glance);
}

#[test]
fn a_lazy_thread_looks_twice_before_it_takes_frames() {
    let mut table = Table::default();
    table.make_lazy();
    let guess = &mut table.guess;
    // (us, a call before, frames wait, what next)
    for (us, call, waits, next) in [
        (100, true, false, Some(wait(600, false))),
        (600, false, true, Some(wait(630, false))),
        (630, false, false, Some(wait(1130, false))),
        (1130, false, true, Some(wait(1160, false))),
        (1160, true, true, Some(wait(1190, false))),
        (1190, false, true, None),
    ] {
        if call {
            guess.after_call(FullPoll, false);
        }
        assert_eq!(guess.look(at(us), BY_TIME), Look::Glance, "{us}");
        assert_eq!(guess.glanced(at(us), waits, None), next, "{us}");
    }
    assert!(!guess.lazy && !guess.polling);
    assert_eq!(guess.look(at(1190), BY_SOCKET), Look::Round { ask_socket: true });
    assert_eq!(guess.found(at(1190), frames(1), |_| false), (Next::Rest(Ringing::Arm), false));
}

#[test]
fn a_lazy_thread_takes_frames_of_an_application_that_only_posts() {
    let mut table = Table::default();
    table.make_lazy();
    let guess = &mut table.guess;
    // (us, calls before, what next)
    for (us, calls, next) in [
        (600, &[Post][..], Some(wait(630, false))),
        (630, &[Post, Post], Some(wait(1100, false))),
        // A poll may have taken what was seen: what waits now is looked at anew.
        (1100, &[Post, EmptyPoll], Some(wait(1130, false))),
        (1130, &[Post], Some(wait(1600, false))),
        (1600, &[Post], None),
    ] {
        for &call in calls {
            guess.after_call(call, false);
        }
        assert_eq!(guess.look(at(us), BY_TIME), Look::Glance, "{us}");
        assert_eq!(guess.glanced(at(us), true, None), next, "{us}");
    }
    assert_eq!(guess.look(at(1600), BY_SOCKET), Look::Round { ask_socket: true });
    assert_eq!(guess.found(at(1600), frames(3), |_| false), (wait(2100, false), false));
    assert!(guess.lazy, "it may poll again at any time");
    assert_eq!(guess.look(at(2100), BY_TIME), Look::Glance);
    // A timer that is due before the tick's end is not overslept.
    guess.after_call(Post, false);
    assert_eq!(guess.glanced(at(2100), true, None), Some(wait(2130, false)));
    guess.after_call(Post, false);
    assert_eq!(guess.glanced(at(2130), true, Some(at(2200))), Some(wait(2200, false)));
    // Posts that end are as good as no call: the application is elsewhere.
    assert_eq!(guess.glanced(at(2200), true, None), None);
    assert!(!guess.lazy);
}

#[test]
fn a_lazy_thread_whose_application_is_gone_sleeps_as_any_other() {
    let mut table = Table::default();
    table.make_lazy();
    assert_eq!(table.guess.look(at(0), BY_TIME), Look::Glance);
    assert_eq!(table.guess.look(at(10_000), BY_TIME), Look::Round { ask_socket: true });
    assert_eq!(table.guess.found(at(10_000), NOTHING, |_| false).0, Next::Rest(Ringing::Arm));
}

/// A tick of the thread, before which these calls came, as often as said: whether it asks the socket, and
/// whether it then leaves the socket to the application.
fn tick(
    guess: &mut Guess,
    us: u64,
    (calls, times): (&[Call], usize),
    found: Found,
    in_use: bool,
) -> (bool, bool) {
    for call in calls.repeat(times) {
        guess.after_call(call, false);
    }
    let Look::Round { ask_socket } = guess.look(at(us), BY_TIME) else { panic!("a glance") };
    guess.found(at(us), found, |_| false);
    (ask_socket, guess.rest(at(us), None, in_use).0 == wait(us + 500, false))
}

#[test]
fn an_application_that_calls_all_the_time_has_the_socket_to_itself() {
    const KEPT: (bool, bool) = (false, false);
    let dense: (&[Call], usize) = (&[FullPoll, Post, EmptyPoll], 17);
    // (calls within 500 us, the socket is in use, the application then has it)
    for (calls, in_use, owns) in [
        (dense, true, true),
        (dense, false, false),
        ((&[FullPoll, Post, EmptyPoll][..], 16), true, false),
        ((&[Post][..], 500), true, false),
        ((&[EmptyPoll, FullPoll][..], 500), true, false),
    ] {
        let mut guess = Guess::default();
        assert_eq!(tick(&mut guess, 500, (&[], 0), NOTHING, true), KEPT);
        assert_eq!(tick(&mut guess, 1000, calls, NOTHING, in_use), (false, owns), "{calls:?}");
    }
    // Until its calls are fewer.
    let mut guess = Guess::default();
    for n in 1..4 {
        assert_eq!(tick(&mut guess, n * 500, dense, NOTHING, true), (n > 1, true));
    }
    assert_eq!(tick(&mut guess, 2000, (&[EmptyPoll], 9), NOTHING, true), (true, false));
    assert_eq!(tick(&mut guess, 2500, (&[], 0), NOTHING, true), KEPT);
    // Or a caller slept for datagrams since, and has polled: the thread need not wait for them too.
    let mut guess = Guess::default();
    tick(&mut guess, 500, (&[], 0), NOTHING, true);
    guess.caller_sleeps();
    assert_eq!(tick(&mut guess, 1000, (&[EmptyPoll], 1), NOTHING, true), (false, true));
    assert_eq!(tick(&mut guess, 1500, (&[EmptyPoll], 1), NOTHING, true), (true, false));
    // Where a tick finds frames, not before it has called again.
    let mut guess = Guess::default();
    tick(&mut guess, 500, dense, NOTHING, true);
    assert_eq!(tick(&mut guess, 1000, dense, frames(1), true), (true, false));
    assert_eq!(tick(&mut guess, 1500, dense, NOTHING, true), (true, true));
    // Or until it asks for an event, of which the thread is told.
    let mut guess = Guess::default();
    tick(&mut guess, 500, dense, NOTHING, true);
    assert_eq!(guess.after_call(Arm, false), (Ringing::Arm, true));
    assert_eq!(guess.after_call(Arm, true), (Ringing::Keep, false));
    assert_eq!(tick(&mut guess, 550, (&[], 0), NOTHING, true), KEPT);
}

#[test]
fn what_a_round_found_decides_what_comes_next() {
    let near = |found| Found { shares_cpu: true, ..found };
    let rest = Next::Rest(Ringing::Arm);
    // (woken, found, the processor is free, what next)
    for (woken, found, free, next) in [
        (BY_BELL, NOTHING, true, rest),
        (BY_BELL, frames(1), true, Next::Spin),
        (BY_BELL, frames(1), false, rest),
        (BY_SOCKET, frames(1), true, Next::Spin),
        (BY_BELL, Found { events: 1, ..frames(1) }, true, rest),
        (BY_BELL, Found { more: true, ..frames(9) }, true, Next::Again),
        (BY_BELL, near(frames(1)), true, rest),
        (BY_BELL, near(frames(STREAM_FRAMES - 1)), true, rest),
        (BY_BELL, near(frames(STREAM_FRAMES)), true, wait(80, true)),
        // Whoever rang last did not end this wait.
        (BY_SOCKET, near(frames(STREAM_FRAMES)), true, Next::Spin),
        (BY_SOCKET, near(frames(STREAM_FRAMES)), false, rest),
    ] {
        let mut guess = Guess::default();
        guess.after_call(FullPoll, false);
        guess.look(at(50), woken);
        assert_eq!(
            guess.found(at(50), found, |senders| free && !senders),
            (next, false),
            "{woken:?} {found:?} {free}"
        );
    }
}

#[test]
fn the_processor_is_asked_for_only_where_it_matters() {
    let mut guess = Guess::default();
    guess.look(at(50), BY_BELL);
    for found in [NOTHING, Found { events: 1, ..frames(1) }, Found { more: true, ..frames(1) }] {
        guess.found(at(50), found, |_| panic!("asked for {found:?}"));
    }
}

#[test]
fn who_has_left_the_senders_processor_spins() {
    let mut guess = Guess::default();
    guess.look(at(50), BY_BELL);
    let near = Found { shares_cpu: true, ..frames(1) };
    assert_eq!(guess.found(at(50), near, |senders| senders), (Next::Spin, false));
}

#[test]
fn a_spin_ends_by_time_by_events_and_by_calls() {
    let mut guess = Guess::default();
    guess.look(at(0), BY_BELL);
    assert!(guess.spins_on(at(100), at(139), 0));
    assert!(!guess.spins_on(at(100), at(140), 0));
    assert!(!guess.spins_on(at(100), at(101), 1));
    guess.after_call(EmptyPoll, false);
    assert!(!guess.spins_on(at(100), at(101), 0));
}

#[test]
fn a_call_that_leaves_work_wakes_the_thread_each_time() {
    let mut guess = Guess::default();
    assert!(guess.wakes_thread(true) && guess.wakes_thread(true));
    assert!(!guess.wakes_thread(false));
}

#[test]
fn a_round_is_a_tick_only_by_the_clock_while_the_application_is_active() {
    for (woken, us, ticked) in [(BY_TIME, 10, true), (BY_BELL, 10, false), (BY_TIME, 10_010, false)] {
        let mut guess = Guess::default();
        guess.after_call(EmptyPoll, false);
        guess.look(at(10), BY_TIME);
        let look = guess.look(at(us), woken);
        assert_eq!(look, if us == 10 { ROUND } else { Look::Round { ask_socket: true } });
        assert_eq!(guess.has_ticked(), ticked);
    }
}

#[test]
fn who_posts_little_for_each_completion_waits_for_one() {
    let mut table = Table::default();
    table.calls(&[Post; POSTS_FOR_ONE as usize]);
    assert!(table.guess.waits_for_one() && table.guess.finds() == 0);
    table.calls(&[EmptyPoll, Post]);
    assert!(!table.guess.waits_for_one(), "one too many");
    table.call(EmptyPoll);
    assert!(!table.guess.waits_for_one());
    table.call(FullPoll);
    assert!(table.guess.waits_for_one() && table.guess.finds() == 1);
}
