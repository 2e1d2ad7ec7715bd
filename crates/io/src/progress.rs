//! Who makes progress, and when.
//!
//! An application that polls makes progress in its own calls and pays no thread switch. One that does
//! something else (sleeps, computes, or spins on memory that a peer writes) relies on the progress
//! thread. Nobody tells which of the two an application will do next; so, by what it did last:
//!
//! ```text
//! after an empty poll     it will come back: peers ring no bell, the thread looks every tick
//! after a post            the same, unless posts were not followed by polls lately
//! after completions       EAGER: the bell is armed at once; a peer's frame wakes the thread
//!                         LAZY: the thread looks twice in a row every tick
//! no call for IDLE        the bell is armed, and the thread sleeps until a frame or a deadline
//! ```
//! EAGER turns LAZY after [`USELESS_MAX`] wakes in a row for frames that the application had polled
//! away, and LAZY turns EAGER when frames waited that nobody polled. A thread that carries the load alone
//! spins for a moment after each frame, unless the application's threads need the processor.

use crate::core::{Core, Done};
use crate::host::Shared;
use crate::rings::{ANYTHING, REQUESTS};
use adverb_os::{clock, sys};
use adverb_wire::{Duration, Instant};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Duration as StdDuration;

/// How often the thread looks while the application is busy.
const TICK: Duration = Duration::from_us(500);
/// Between the two looks of a tick.
const SECOND_LOOK: Duration = Duration::from_us(30);
/// An application without calls for this long is elsewhere.
const IDLE: Duration = Duration::from_ms(10);
/// Useless wakes in a row after which the bell stays silent.
const USELESS_MAX: u32 = 64;
/// A thread that finds so many frames at once, on the processor of their sender, lets more of them come
/// before it has its bell rung again: else each few frames would cost two thread switches.
const STREAM_FRAMES: usize = 4;
const MODERATION: Duration = Duration::from_us(30);
/// How long the thread spins after the last frame.
const SPIN: Duration = Duration::from_us(40);
/// Scheduling slice of the thread.
const SLICE: StdDuration = StdDuration::from_micros(100);

/// What application threads and the progress thread tell each other. Written under the NIC's lock, except
/// by the thread's sleep itself.
#[derive(Debug, Default)]
pub struct State {
    /// Calls that made a round or may have left work.
    calls: AtomicU32,
    /// The last call was one after which the application will poll.
    polling: AtomicBool,
    /// The last call was a post.
    posted: AtomicBool,
    /// The application does not poll after it posts.
    posts_alone: AtomicBool,
    /// The bell stays silent while the application is active.
    lazy: AtomicBool,
    /// The bell was armed here, and not silenced here since: if it is silent now, it was rung.
    armed: AtomicBool,
    /// Rings in a row for frames that the application took by itself.
    useless: AtomicU32,
    /// The thread sleeps without a tick.
    asleep: AtomicBool,
    /// The thread ends.
    stop: AtomicBool,
}

/// What an application's call was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A poll that found nothing.
    EmptyPoll,
    /// A poll that found something.
    FullPoll,
    /// A post or a control call.
    Post,
    /// A request for an event: the caller will probably sleep.
    Arm,
}

/// To be called at the start of a post, with the lock held: an answer that comes before the application
/// polls rings no bell. A woken peer may run, and answer, before the post returns.
#[inline]
pub fn before_post(shared: &Shared) {
    let armed = shared.member.own_armed();
    let state = &shared.state;
    let returns = !state.posts_alone.load(Ordering::Relaxed) && !state.asleep.load(Ordering::Relaxed);
    if returns && armed.load(Ordering::Relaxed) != 0 {
        disarm(shared);
    }
}

/// Whether the call before this one was a post too.
#[inline]
pub fn in_a_row(shared: &Shared) -> bool {
    shared.state.posted.load(Ordering::Relaxed)
}

/// Asks peers not to ring.
#[inline]
fn disarm(shared: &Shared) {
    shared.member.own_armed().store(0, Ordering::Relaxed);
    shared.state.armed.store(false, Ordering::Relaxed);
}

/// Counts a bell that nobody needed, and silences it after too many of them.
fn note_useless(shared: &Shared) {
    let useless = shared.state.useless.load(Ordering::Relaxed) + 1;
    let lazy = useless >= USELESS_MAX;
    shared.state.useless.store(if lazy { 0 } else { useless }, Ordering::Relaxed);
    if lazy {
        shared.state.lazy.store(true, Ordering::Relaxed);
        disarm(shared);
    }
}

/// To be called at the end of every application call, with the lock held.
#[inline]
pub fn after_call(shared: &Shared, core: &mut Core, call: Call) {
    let state = &shared.state;
    state.calls.store(state.calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    let posted = state.posted.load(Ordering::Relaxed);
    if posted != (call == Call::Post) {
        state.posted.store(call == Call::Post, Ordering::Relaxed);
    }
    let returns = match call {
        Call::EmptyPoll => true,
        Call::Post => !state.posts_alone.load(Ordering::Relaxed),
        Call::FullPoll | Call::Arm => false,
    };
    if posted && matches!(call, Call::EmptyPoll | Call::FullPoll) {
        state.posts_alone.store(false, Ordering::Relaxed);
    }
    if state.polling.load(Ordering::Relaxed) != returns {
        state.polling.store(returns, Ordering::Relaxed);
    }
    let armed = shared.member.own_armed();
    let is_armed = armed.load(Ordering::Relaxed) != 0;
    if !is_armed && state.armed.load(Ordering::Relaxed) {
        // It was rung, but the application is here before the thread.
        state.armed.store(false, Ordering::Relaxed);
        note_useless(shared);
    }
    if returns {
        if is_armed && !state.asleep.load(Ordering::Relaxed) {
            disarm(shared);
        }
    } else {
        if call == Call::Arm && state.lazy.swap(false, Ordering::Relaxed) {
            shared.member.bell().ring();
        }
        if !is_armed && !state.lazy.load(Ordering::Relaxed) {
            arm(shared, core);
        }
    }
    if core.has_more() || state.asleep.load(Ordering::Relaxed) {
        state.asleep.store(false, Ordering::Relaxed);
        shared.member.bell().ring();
    }
}

/// Asks peers to ring the bell, and deals with the frames that came just before. False if more keep
/// coming: then the bell is not armed, and the thread was told to look.
fn arm(shared: &Shared, core: &mut Core) -> bool {
    let armed = shared.member.own_armed();
    for _ in 0..3 {
        shared.state.armed.store(true, Ordering::Relaxed);
        let wants = if core.nic.awaits_acknowledgement() { ANYTHING } else { REQUESTS };
        armed.store(wants, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !core.has_ring_work() {
            return true;
        }
        disarm(shared);
        core.round(false);
    }
    shared.member.bell().ring();
    false
}

/// Tells the thread to end.
pub fn stop(shared: &Shared) {
    shared.state.stop.store(true, Ordering::SeqCst);
    shared.member.bell().ring();
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    bell: bool,
    socket: bool,
}

/// What the thread does next.
enum Next {
    Wait { until: Option<Instant>, socket: bool },
    Again,
    Spin,
}

/// The thread's own view.
struct Watch {
    seen_calls: u32,
    changed: Instant,
    /// Calls counted at the first of two looks, if it found frames.
    first_look: Option<u32>,
    load: AppLoad,
}

/// The progress thread.
pub fn run(shared: &Shared) {
    sys::prefer_short_waits(SLICE);
    let mut watch = Watch { seen_calls: 0, changed: Instant::ZERO, first_look: None, load: AppLoad::new() };
    let mut woken = Woken::default();
    let mut set = sys::WaitSet::default();
    while !shared.state.stop.load(Ordering::Relaxed) {
        let (next, now) = {
            let mut core = shared.core.visit();
            let now = core.clock.now();
            let next = watch.step(shared, &mut core, now, woken);
            let Some(port) = core.port.as_mut() else { return };
            set.clear();
            set.add(shared.member.bell().fd(), false);
            if let Next::Wait { socket: true, .. } = next {
                let waits_for_room = port.udp_waits_for_room();
                set.add(port.udp().fd(), waits_for_room);
                port.udp().group_fds().for_each(|fd| set.add(fd, false));
            }
            (next, now)
        };
        woken = Woken::default();
        match next {
            Next::Again => {}
            Next::Spin => watch.spin(shared),
            Next::Wait { until, .. } => {
                set.wait(until.map(|until| StdDuration::from_nanos(until.since(now).as_ns())));
                woken = Woken { bell: set.is_ready(0), socket: set.is_any_ready(1) };
                if woken.bell {
                    shared.member.bell().quieten();
                }
            }
        }
    }
}

impl Watch {
    /// One look, with the lock held.
    fn step(&mut self, shared: &Shared, core: &mut Core, now: Instant, woken: Woken) -> Next {
        core.settle();
        let state = &shared.state;
        let calls = state.calls.load(Ordering::Relaxed);
        // An application that ended the thread's sleep rang the bell for that alone.
        let called = calls != self.seen_calls;
        if called {
            self.seen_calls = calls;
            self.changed = now;
        }
        let cpu = sys::current_cpu();
        let slot = shared.member.slot();
        let was_asleep = state.asleep.swap(false, Ordering::Relaxed);
        let active = now.since(self.changed) < IDLE;
        if active && state.lazy.load(Ordering::Relaxed) {
            return self.tick(shared, core, now, calls);
        }
        self.first_look = None;
        let ticked = !(woken.bell || woken.socket) && active;
        if ticked {
            self.note_tick(core);
        }
        let done = core.round(woken.socket || !active);
        if ticked && done.frames > 0 {
            // It did not come back as expected.
            state.polling.store(false, Ordering::Relaxed);
            state.posts_alone.store(state.posted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.note_wake(shared, core, done, woken, called && !was_asleep);
        if active && state.lazy.load(Ordering::Relaxed) {
            return Next::Wait { until: Some(now + TICK), socket: false };
        }
        if core.has_more() {
            return Next::Again;
        }
        // On the processor of who woke it, spinning would only keep that one from going on.
        let shares_cpu = woken.bell && shared.member.waker_cpu(slot).load(Ordering::Relaxed) == cpu;
        if done.frames > 0 && done.events == 0 && !shares_cpu && !self.load.is_busy() {
            return Next::Spin;
        }
        if shares_cpu && done.frames >= STREAM_FRAMES {
            return Next::Wait { until: Some(now + MODERATION), socket: true };
        }
        let polling = active && state.polling.load(Ordering::Relaxed);
        if !polling && !arm(shared, core) {
            return Next::Again;
        }
        let deadline = core.next_deadline();
        if active {
            let until = deadline.map_or(now + TICK, |deadline| deadline.min(now + TICK));
            return Next::Wait { until: Some(until), socket: true };
        }
        if let Some(port) = &mut core.port {
            port.rest();
        }
        state.asleep.store(true, Ordering::Relaxed);
        Next::Wait { until: deadline, socket: true }
    }

    /// A look while the application is active and the bell silent.
    fn tick(&mut self, shared: &Shared, core: &mut Core, now: Instant, calls: u32) -> Next {
        self.note_tick(core);
        let deadline = core.next_deadline();
        if deadline.is_some_and(|deadline| deadline <= now) {
            core.round(false);
        }
        if core.has_ring_work() || self.socket_is_readable(core) {
            match self.first_look {
                Some(first) if first == calls => {
                    // Nobody polled between the two looks: the application is elsewhere.
                    shared.state.lazy.store(false, Ordering::Relaxed);
                    shared.state.polling.store(false, Ordering::Relaxed);
                    self.first_look = None;
                    shared.state.useless.store(0, Ordering::Relaxed);
                    return self.step(shared, core, now, Woken { bell: false, socket: true });
                }
                _ => {
                    self.first_look = Some(calls);
                    return Next::Wait { until: Some(now + SECOND_LOOK), socket: false };
                }
            }
        }
        self.first_look = None;
        let until = core.next_deadline().map_or(now + TICK, |deadline| deadline.min(now + TICK));
        Next::Wait { until: Some(until), socket: false }
    }

    fn socket_is_readable(&self, core: &mut Core) -> bool {
        let Some(port) = &mut core.port else { return false };
        sys::wait_readable(port.udp().fd(), StdDuration::ZERO)
    }

    fn note_tick(&self, core: &mut Core) {
        if let Some(port) = &mut core.port {
            port.counters.ticks += 1;
        }
    }

    fn note_wake(&self, shared: &Shared, core: &mut Core, done: Done, woken: Woken, app_was_here: bool) {
        let Some(port) = &mut core.port else { return };
        port.counters.frames_by_thread += done.frames as u64;
        if !(woken.bell || woken.socket) {
            return;
        }
        port.counters.wakes += 1;
        if done.frames > 0 {
            shared.state.useless.store(0, Ordering::Relaxed);
        } else if app_was_here {
            port.counters.wakes_useless += 1;
            if woken.socket && !woken.bell {
                note_useless(shared);
            }
        }
    }

    /// Takes frames as they come, until none has come for a while or the application is back.
    fn spin(&mut self, shared: &Shared) {
        let state = &shared.state;
        disarm(shared);
        let mut last_frame = None;
        let mut looks = 0u32;
        let mut pauses = 0;
        while !state.stop.load(Ordering::Relaxed) {
            for _ in 0..pauses {
                spin_loop();
            }
            let Some(mut core) = shared.core.try_visit() else { continue };
            looks = looks.wrapping_add(1);
            let now = core.clock.now();
            let last = *last_frame.get_or_insert(now);
            let done = core.round(false);
            if let Some(port) = &mut core.port {
                port.counters.frames_by_thread += done.frames as u64;
            }
            if done.frames > 0 {
                last_frame = Some(now);
            }
            // Another thread gets the lock between two looks; and looking for every single small frame would
            // take the cache line back from the sender each time.
            pauses = if done.frames > 0 { 8 } else { 4 };
            let called = state.calls.load(Ordering::Relaxed) != self.seen_calls;
            let over = now.since(last) >= SPIN || done.events > 0 || called;
            if over || (looks.is_multiple_of(1024) && self.load.is_busy()) {
                return;
            }
        }
    }
}

/// Whether the application's threads use the processor, by the process's own clocks.
#[derive(Debug)]
struct AppLoad {
    wall_ns: u64,
    cpu_ns: u64,
    busy: bool,
    /// With one processor, spinning takes it from everyone else.
    alone: bool,
}

#[expect(clippy::disallowed_methods, reason = "the process's own clocks say what its threads use")]
impl AppLoad {
    /// Shortest time over which the load is taken.
    const WINDOW_NS: u64 = 500_000;

    fn new() -> AppLoad {
        let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        let cpu_ns = clock::other_threads_cpu_ns();
        AppLoad { wall_ns: clock::monotonic_ns(), cpu_ns, busy: true, alone }
    }

    fn is_busy(&mut self) -> bool {
        let wall_ns = clock::monotonic_ns();
        if wall_ns - self.wall_ns >= Self::WINDOW_NS {
            let cpu_ns = clock::other_threads_cpu_ns();
            self.busy = (cpu_ns.saturating_sub(self.cpu_ns)) * 4 > wall_ns - self.wall_ns;
            (self.wall_ns, self.cpu_ns) = (wall_ns, cpu_ns);
        }
        self.busy || self.alone
    }
}
