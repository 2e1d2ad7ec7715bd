//! Makes progress: in the application's calls, and on a thread of this process. [`Guess`] says which of the
//! two, and when; here are the locks, the bell's word in shared memory, the thread and its waits.

use crate::aside::Aside;
use crate::core::Core;
use crate::counters::IoCounters;
use crate::directory::Word;
use crate::guess::{Found, Guess, Look, Next, Ringing, SPIN, TICK, Woken};
use crate::hold::Keep;
use crate::host::Shared;
use crate::port::Port;
use crate::rings::{ANYTHING, REQUESTS};
use adverb_nic::CqId;
use adverb_os::clock::Clock;
use adverb_os::wake::Alarm;
use adverb_os::{clock, sys};
use adverb_wire::{Duration, Instant};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Duration as StdDuration;

pub use crate::guess::Call;

/// Polls within a tick after which the thread leaves its look out: each has made a round, or found what one
/// before it brought.
const POLLS_OF_TICK: u32 = 10;
/// Looks that are left out in a row.
const TICKS_LEFT_OUT: u32 = 15;
/// Scheduling slice of the thread.
const SLICE: StdDuration = StdDuration::from_micros(100);

/// What the thread is told without the NIC's lock.
#[derive(Debug, Default)]
pub struct State {
    /// It ends.
    stop: AtomicBool,
    /// Polls that the application has made. Written with the lock held.
    polls: AtomicU32,
    /// Its last row of polls in vain let others run, who want the processor too.
    crowded: AtomicBool,
}

/// To be called at the start of a post, with the lock held.
#[inline]
pub fn before_post(shared: &Shared, core: &mut Core) {
    if core.guess.before_post(is_armed(shared)) == Ringing::Silence {
        silence(shared, &mut core.guess);
    }
}

/// Whether the call before this one was a post too.
#[inline]
pub fn in_a_row(core: &Core) -> bool {
    core.guess.in_a_row()
}

/// To be called at the end of every application call, with the lock held.
#[inline]
pub fn after_call(shared: &Shared, core: &mut Core, call: Call) {
    let (bell, tell_thread) = core.guess.after_call(call, is_armed(shared));
    shared.state.polls.store(core.guess.polls(), Ordering::Relaxed);
    if tell_thread {
        shared.member.bell().ring();
    }
    set_bell(shared, core, bell);
    let has_more = core.has_more();
    if core.guess.wakes_thread(has_more) {
        shared.member.bell().ring();
    }
}

/// Whether peers would ring now.
#[inline]
fn is_armed(shared: &Shared) -> bool {
    shared.member.own_armed().load(Ordering::Relaxed) != 0
}

/// Notes whether others want the processor of a caller that polls in vain.
pub fn note_crowded(shared: &Shared, crowded: bool) {
    shared.state.crowded.store(crowded, Ordering::Relaxed);
}

/// Asks peers not to ring.
#[inline]
fn silence(shared: &Shared, guess: &mut Guess) {
    shared.member.own_armed().store(0, Ordering::Relaxed);
    guess.note_bell(false);
}

/// False if more frames keep coming: then the bell is not armed, and the thread was told to look.
#[inline]
fn set_bell(shared: &Shared, core: &mut Core, bell: Ringing) -> bool {
    match bell {
        Ringing::Keep => true,
        Ringing::Arm => arm(shared, core),
        Ringing::Silence => {
            silence(shared, &mut core.guess);
            true
        }
    }
}

/// Asks peers to ring the bell, and deals with the frames that came just before. False if more keep coming.
fn arm(shared: &Shared, core: &mut Core) -> bool {
    for _ in 0..3 {
        core.guess.note_bell(true);
        let wants = if core.nic.awaits_acknowledgement() { ANYTHING } else { REQUESTS };
        shared.member.own_armed().store(wants, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !core.has_ring_work() {
            return true;
        }
        silence(shared, &mut core.guess);
        core.round(false);
    }
    shared.member.bell().ring();
    false
}

/// A caller that polls is about to sleep until a datagram or the bell comes, in place of the thread: what it
/// waits for. `None` if frames keep coming, or the last ones have brought a completion.
pub fn fall_asleep(shared: &Shared, core: &mut Core, cq: CqId) -> Option<sys::WaitSet> {
    if !arm(shared, core) || core.nic.holds_completion(cq).unwrap_or(true) {
        return None;
    }
    let mut set = std::mem::take(&mut core.wait_set);
    wait_for(&mut set, shared, core.port.as_mut()?, true);
    core.guess.caller_sleeps();
    Some(set)
}

/// The NIC closes: takes leave of peers that connections are with, which takes a moment, and longer where
/// frames are lost. With the lock held: the thread waits meanwhile.
pub fn part(shared: &Shared, core: &mut Core) {
    let mut set = sys::WaitSet::default();
    core.round(true);
    while core.nic.is_parting() {
        if !arm(shared, core) {
            continue;
        }
        let deadline = core.next_deadline();
        let now = core.clock.now();
        let Some(port) = &mut core.port else { return };
        wait_for(&mut set, shared, port, true);
        set.wait(deadline.map(|until| StdDuration::from_nanos(until.since(now).as_ns())));
        shared.member.bell().quieten();
        core.round(true);
    }
}

/// Tells the thread to end.
pub fn stop(shared: &Shared) {
    shared.state.stop.store(true, Ordering::SeqCst);
    shared.member.bell().ring();
}

/// What there is to wait for: the bell, first, and the sockets where they are asked for.
fn wait_for(set: &mut sys::WaitSet, shared: &Shared, port: &mut Port, socket: bool) {
    set.clear();
    set.add(shared.member.bell().fd(), false);
    if socket {
        let waits_for_room = port.udp_waits_for_room();
        set.add(port.udp().fd(), waits_for_room);
        port.udp().group_fds().for_each(|fd| set.add(fd, false));
    }
}

/// The progress thread.
pub fn run(shared: &Shared) {
    sys::prefer_short_waits(SLICE);
    shared.member.note_thread();
    let mut load = AppLoad::new();
    let mut woken = Woken::default();
    let mut set = sys::WaitSet::default();
    // Where there is no descriptor for it, waits have timeouts of their own.
    let mut alarm = Alarm::new().ok();
    while !shared.state.stop.load(Ordering::Relaxed) {
        let (next, mut clock, now) = {
            let mut core = shared.core.visit();
            let now = core.clock.now();
            let next = look(shared, &mut core, now, woken, &mut load);
            core.answer_board();
            let Some(port) = core.port.as_mut() else { return };
            let socket = matches!(next, Next::Wait { socket: true, .. });
            wait_for(&mut set, shared, port, socket);
            (next, core.clock, now)
        };
        let by = woken;
        woken = Woken::default();
        match next {
            Next::Again | Next::Rest(_) => {}
            Next::Spin => {
                // Of who rings, but not of who sends a datagram, it is known whether its processor was
                // shared: a spin elsewhere that finds nothing is none that the sender was kept from ending.
                let spun = spin(shared, &mut load);
                load.fruitful = spun == Some(true);
                if let Some(found) = spun
                    && (found || by.socket)
                {
                    load.has_spun(found);
                }
            }
            Next::Wait { until, socket } => {
                load.rests_since = now;
                shared.member.leave_word(Word::Rests, socket.into());
                let polls = || shared.state.polls.load(Ordering::Relaxed);
                let crowded = || shared.state.crowded.load(Ordering::Relaxed);
                woken = rest((polls, crowded), &mut set, &mut alarm, &mut clock, (now, until));
                shared.member.leave_word(Word::Rests, 0);
                if woken.bell {
                    shared.member.bell().quieten();
                }
            }
        }
    }
}

/// Waits from `now` until one of the set is ready, or until then; and on, a few ticks more, while the
/// application polls so often that a look would find nothing, but take the lock from it. `polls` counts how
/// often it did. Where others want the processor these ticks are waited for at once: to look whether it still
/// polls takes the application off its own.
fn rest(
    (mut polls, crowded): (impl FnMut() -> u32, impl Fn() -> bool),
    set: &mut sys::WaitSet,
    alarm: &mut Option<Alarm>,
    clock: &mut Clock,
    (mut now, mut until): (Instant, Option<Instant>),
) -> Woken {
    let mut left = TICKS_LEFT_OUT;
    loop {
        let before = polls();
        match (&mut *alarm, until) {
            (Some(alarm), Some(until)) => wait_until(set, alarm, clock, until),
            _ => set.wait(until.map(|until| StdDuration::from_nanos(until.since(now).as_ns()))),
        }
        let woken = Woken { bell: set.is_ready(0), socket: set.is_any_ready(1) };
        if woken.bell || woken.socket || left == 0 || polls().wrapping_sub(before) < POLLS_OF_TICK {
            return woken;
        }
        let ticks = if crowded() { left } else { 1 };
        left -= ticks;
        now = clock.now();
        until = Some(now + Duration::from_ps(TICK.as_ps() * u64::from(ticks)));
    }
}

/// Waits until one of the set is ready, or until then. The alarm may ring for an earlier wait's end, which is
/// none of this one's.
fn wait_until(set: &mut sys::WaitSet, alarm: &mut Alarm, clock: &mut Clock, until: Instant) {
    loop {
        alarm.by(clock.epoch_ns() + until.as_ps().div_ceil(1_000));
        set.add(alarm.fd(), false);
        set.wait(None);
        let rang = set.take_last();
        if rang {
            alarm.quieten();
        }
        if !rang || set.is_any_ready(0) || clock.now() >= until {
            return;
        }
    }
}

/// One look of the thread, with the lock held.
fn look(shared: &Shared, core: &mut Core, now: Instant, woken: Woken, load: &mut AppLoad) -> Next {
    core.settle();
    if core.hold.thread_looks(now) {
        core.send_waiting(now);
    }
    match core.guess.look(now, woken) {
        Look::Round { ask_socket } => round(shared, core, now, (woken, ask_socket), load),
        Look::Glance => {
            count(core, |counters| counters.ticks += 1);
            if core.next_deadline().is_some_and(|deadline| deadline <= now) {
                core.round(false);
            }
            let frames_wait = core.has_ring_work() || socket_is_readable(core);
            if !frames_wait && let Some(port) = &mut core.port {
                port.found_empty(now);
            }
            let deadline = core.next_deadline();
            match core.guess.glanced(now, frames_wait, deadline) {
                Some(next) => next,
                None => look(shared, core, now, Woken { bell: false, socket: true }, load),
            }
        }
    }
}

/// A look that takes frames in.
fn round(
    shared: &Shared,
    core: &mut Core,
    now: Instant,
    (woken, ask_socket): (Woken, bool),
    load: &mut AppLoad,
) -> Next {
    let cpu = sys::current_cpu();
    let ticked = core.guess.has_ticked();
    // What waits already waits on, but nothing more with it.
    let waited = core.is_waiting();
    let keep = if waited { Keep::Acks } else { core.hold.for_arrivals() };
    let (done, acknowledged) = core.round_keeping(ask_socket, keep);
    if done.events > 0 || (waited && acknowledged) {
        core.send_waiting(now);
    }
    let shares_cpu = shared.member.waker_cpu(shared.member.slot()).load(Ordering::Relaxed) == cpu;
    let found = Found { frames: done.frames, events: done.events, more: core.has_more(), shares_cpu };
    let useless = core.guess.was_useless(found);
    count(core, |counters| {
        counters.ticks += u64::from(ticked);
        counters.note_round_of_thread(done.frames);
        counters.wakes += u64::from(woken.bell || woken.socket);
        counters.wakes_useless += u64::from(useless);
        counters.thread_moves = load.aside.moves;
    });
    // One frame is a request that its sender waits for. Streams fare better on its processor; of those that
    // have a bell rung for each frame, few are answered.
    let is_request = done.frames == 1 && (woken.socket || (woken.bell && done.answered));
    // Of datagrams it is not known whose processor they wake the thread on; spins in vain tell, one by one.
    if done.frames > 1 && !woken.socket {
        load.aside.is_stream();
    }
    let (next, silenced) = core.guess.found(now, found, |shares| load.may_spin(now, is_request, shares));
    if silenced || next == Next::Spin {
        silence(shared, &mut core.guess);
    }
    if matches!(next, Next::Spin | Next::Again) {
        core.send_waiting(now);
    }
    if acknowledged {
        core.hold.acknowledges(now, core.is_waiting(), true);
    }
    let Next::Rest(bell) = next else { return next };
    if !set_bell(shared, core, bell) {
        return Next::Again;
    }
    let deadline = core.next_deadline();
    let in_use = core.port.as_mut().is_some_and(|port| port.udp().in_use(now));
    let (next, sleeps) = core.guess.rest(now, deadline, in_use);
    if sleeps && let Some(port) = &mut core.port {
        port.rest();
    }
    next
}

fn socket_is_readable(core: &mut Core) -> bool {
    let Some(port) = &mut core.port else { return false };
    sys::wait_readable(port.udp().fd(), StdDuration::ZERO)
}

fn count(core: &mut Core, add: impl FnOnce(&mut IoCounters)) {
    if let Some(port) = &mut core.port {
        add(&mut port.counters);
    }
}

/// Takes frames as they come, until none has come for a while or the application is back. Whether any came,
/// if it had the time.
fn spin(shared: &Shared, load: &mut AppLoad) -> Option<bool> {
    let mut found = false;
    // Whether any came since the load was looked at.
    let mut fruitful = false;
    let mut last_frame = None;
    // The last look, if it found nothing.
    let mut vain_since: Option<Instant> = None;
    let mut looks = 0u32;
    let mut pauses = 0;
    while !shared.state.stop.load(Ordering::Relaxed) {
        for _ in 0..pauses {
            spin_loop();
        }
        let Some(mut core) = shared.core.try_visit() else { continue };
        looks = looks.wrapping_add(1);
        let now = core.clock.now();
        let mut last = *last_frame.get_or_insert(now);
        let done = core.round(false);
        count(&mut core, |counters| {
            counters.note_round_of_thread(done.frames);
            counters.thread_vain_ns += vain_since.map_or(0, |since| now.since(since).as_ns());
        });
        vain_since = (done.frames == 0).then_some(now);
        if done.frames > 0 {
            // However long ago the one before was: this thread may have lost its processor meanwhile.
            last = now;
            last_frame = Some(now);
            (found, fruitful) = (true, true);
        }
        // Another thread gets the lock between two looks; and looking for every single small frame would take
        // the cache line back from the sender each time.
        pauses = if done.frames > 0 { 8 } else { 4 };
        if !core.guess.spins_on(last, now, done.events) {
            return (found || core.guess.has_spun(last, now)).then_some(found);
        }
        if looks.is_multiple_of(1024) && load.is_busy(std::mem::take(&mut fruitful)) {
            return None;
        }
    }
    None
}

/// Whether the application's threads need the processor, by the process's own clocks: they use much of one,
/// or were taken off theirs, by this thread as it woke or because the host has more to do than it can.
struct AppLoad {
    last: Usage,
    busy: bool,
    /// The application uses much of a processor: on that one, or on the sender's, the thread is in its way.
    works: bool,
    /// With one processor, spinning takes it from everyone else.
    alone: bool,
    aside: Aside,
    /// When this thread last began to wait.
    rests_since: Instant,
    /// Its last spin found frames.
    fruitful: bool,
}

/// What the process had used at a time.
#[derive(Clone, Copy, Debug)]
struct Usage {
    wall_ns: u64,
    /// By threads other than this one.
    cpu_ns: u64,
    /// Times that a thread was taken off its processor.
    taken_off: u64,
}

#[expect(clippy::disallowed_methods, reason = "the process's own clocks say what its threads use")]
impl Usage {
    fn now(wall_ns: u64) -> Usage {
        let cpu_ns = clock::other_threads_cpu_ns();
        Usage { wall_ns, cpu_ns, taken_off: sys::involuntary_switches_of_all() }
    }

    /// Other threads have used more than a quarter of a processor.
    fn works_since(self, before: Usage) -> bool {
        let used_ns = self.cpu_ns.saturating_sub(before.cpu_ns);
        used_ns * 4 > self.wall_ns - before.wall_ns
    }

    /// Threads were taken off theirs more often than is borne.
    fn is_disturbed_since(self, before: Usage, borne: u64) -> bool {
        self.taken_off > before.taken_off + borne
    }
}

#[expect(clippy::disallowed_methods, reason = "the process's own clocks say what its threads use")]
impl AppLoad {
    /// Shortest time over which the load is taken.
    const WINDOW_NS: u64 = 500_000;

    fn new() -> AppLoad {
        let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        let last = Usage::now(clock::monotonic_ns());
        AppLoad {
            last,
            busy: true,
            works: true,
            alone,
            aside: Aside::default(),
            rests_since: Instant::ZERO,
            fruitful: false,
        }
    }

    /// Whether this thread, woken by one request or not, may spin for what comes next. On the processor of
    /// who rang it would only keep that one from going on. Where others want the processor time and again
    /// when a spin would have found something, it moves to another.
    fn may_spin(&mut self, now: Instant, by_request: bool, on_senders: bool) -> bool {
        let is_free = !self.is_busy(self.fruitful) && !on_senders;
        let in_vain = by_request && now.since(self.rests_since) < SPIN;
        is_free || (in_vain && self.has_spun(false))
    }

    /// After a spin, found to be in vain or not, or where there should be none. Whether this thread has
    /// moved.
    fn has_spun(&mut self, found: bool) -> bool {
        if self.alone || self.works || !self.aside.spun(found) {
            return false;
        }
        // What was so on the other processor says nothing of this one.
        self.last = Usage::now(clock::monotonic_ns());
        self.busy = false;
        true
    }

    /// Who spins and finds frames bears to be interrupted once in that time, and once more: another's thread
    /// that looks by the clock takes microseconds.
    fn is_busy(&mut self, fruitful: bool) -> bool {
        let wall_ns = clock::monotonic_ns();
        let windows = wall_ns.saturating_sub(self.last.wall_ns) / Self::WINDOW_NS;
        if windows > 0 {
            let now = Usage::now(wall_ns);
            self.works = now.works_since(self.last);
            self.busy =
                self.works || now.is_disturbed_since(self.last, if fruitful { windows + 1 } else { 0 });
            self.last = now;
        }
        self.busy || self.alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_application_needs_the_processor_if_it_uses_it_or_has_lost_it() {
        let before = Usage { wall_ns: 1_000_000, cpu_ns: 300_000, taken_off: 5 };
        for (cpu_ns, taken_off, borne, expected) in [
            (300_000, 5, 0, false),
            (425_000, 5, 1, false),
            (425_001, 5, 1, true),
            (300_000, 6, 0, true),
            (300_000, 6, 1, false),
            (300_000, 7, 1, true),
            (0, 5, 0, false),
        ] {
            let now = Usage { wall_ns: 1_500_000, cpu_ns, taken_off };
            assert_eq!(now.works_since(before) || now.is_disturbed_since(before, borne), expected, "{now:?}");
        }
    }

    /// Waits with an eventfd in place of the bell while each tick counts so many polls more; returns what
    /// ended it and the ticks that went by.
    fn rest_beside(
        (polls_of_tick, crowded): (u32, bool),
        rings: bool,
        with_alarm: bool,
    ) -> (Woken, u32, StdDuration) {
        let bell = adverb_os::wake::EventFd::new().unwrap();
        if rings {
            bell.ring();
        }
        let mut set = sys::WaitSet::default();
        set.add(bell.fd(), false);
        let mut alarm = with_alarm.then(|| Alarm::new().unwrap());
        let mut clock = Clock::start();
        let now = clock.now();
        let mut looks = 0;
        let polls = || {
            looks += 1;
            looks / 2 * polls_of_tick
        };
        let until = Some(now + TICK);
        let woken = rest((polls, || crowded), &mut set, &mut alarm, &mut clock, (now, until));
        (woken, looks.div_ceil(2), StdDuration::from_nanos(clock.now().since(now).as_ns()))
    }

    #[test]
    fn the_thread_leaves_looks_out_while_the_application_polls_but_not_for_ever() {
        for with_alarm in [false, true] {
            let most = TICKS_LEFT_OUT + 1;
            for (polls, expected) in [(0, 1), (POLLS_OF_TICK - 1, 1), (POLLS_OF_TICK, most), (1_000, most)] {
                let (woken, ticks, _) = rest_beside((polls, false), false, with_alarm);
                assert!(!woken.bell && !woken.socket);
                assert_eq!(ticks, expected, "{polls} polls a tick, alarm {with_alarm}");
            }
            // Where others want the processor it leaves as many out, and wakes for few of them.
            let (_, wakes, time) = rest_beside((1_000, true), false, with_alarm);
            assert_eq!(wakes, 2, "after one tick, and the others");
            assert!(time >= StdDuration::from_nanos(TICK.as_ns()) * (most - 1), "{time:?}");
            let (woken, ..) = rest_beside((1_000, false), true, with_alarm);
            assert!(woken.bell && !woken.socket);
        }
    }

    #[test]
    fn the_thread_leaves_a_senders_processor_that_it_was_woken_on_time_and_again() {
        // Taken for ever to be as it is here: the load is not looked at again.
        let for_ever = Usage { wall_ns: u64::MAX, cpu_ns: 0, taken_off: 0 };
        let load = |works| AppLoad {
            last: for_ever,
            busy: works,
            works,
            alone: false,
            aside: Aside::default(),
            rests_since: Instant::ZERO,
            fruitful: false,
        };
        let (soon, late) = (Instant::from_ns(SPIN.as_ns() / 2), Instant::ZERO + SPIN);
        let others = adverb_os::processors::allowed().unwrap().len() > 1;
        let four =
            |mut load: AppLoad, now, by_request| [(); 4].map(|()| load.may_spin(now, by_request, true));
        let ends = |moves| [false, false, false, moves];
        // The application works, which it does there too; several frames came; the sender was long away.
        assert_eq!(four(load(true), soon, true), ends(false));
        assert_eq!(four(load(false), soon, false), ends(false));
        assert_eq!(four(load(false), late, true), ends(false));
        assert_eq!(four(load(false), soon, true), ends(others));
        assert!(load(false).may_spin(late, false, false), "on its own processor");
    }
}
