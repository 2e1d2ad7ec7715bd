//! Who makes the rounds: the application in its own calls, or the progress thread. Nobody tells which of the
//! two the application will do next, so this guesses, by what it did last. It is a pure machine: it is told
//! of calls, frames and the time, and says what to do; `progress` does it.
//!
//! Two questions, each with its states. What do peers have to do who send frames here?
//!
//! ```text
//!              an empty poll, or a post that polls have followed:
//!              the application will come back
//!        ┌──────────────────────────────────────────────► SILENT  peers ring no bell;
//!      ARMED                                                │     the thread looks each TICK
//!  peers ring, the ◄────────────────────────────────────────┘
//!  thread comes         completions were found, an event was asked for, or a TICK found frames
//!                       that nobody had polled for
//! ```
//!
//! After completions the application may poll again or not. Is the bell worth ringing then?
//!
//! ```text
//!              USELESS_MAX wakes in a row for frames that the application had polled away
//!      EAGER ──────────────────────────────────────────────► LAZY  the bell stays silent;
//!   the bell is armed ◄─────────────────────────────────────┘      the thread looks twice each TICK
//!                       frames waited from one look to the next without a call, or an event was
//!                       asked for
//! ```
//!
//! An application that is LAZY and calls without polling has its frames taken a TICK after they were seen.
//!
//! A socket cannot be asked to be silent: each datagram wakes who waits for it, on the processor of its
//! sender, which has more to send. So an application that calls all the time (every DENSE and more) and
//! polls, or whose polls sleep until a datagram comes, has the socket to itself while it is expected to poll:
//! the thread looks each TICK.
//!
//! Without a call for IDLE the application is elsewhere: the bell is armed, and the thread sleeps until a
//! frame or a deadline comes. Its next call ends that. A thread that carries the load alone spins for a
//! moment after each frame, unless the application's threads need the processor.

use adverb_wire::{Duration, Instant};

/// How often the thread looks while the application is busy.
pub const TICK: Duration = Duration::from_us(500);
/// Between the two looks of a tick.
const SECOND_LOOK: Duration = Duration::from_us(30);
/// An application without calls for this long is elsewhere.
const IDLE: Duration = Duration::from_ms(10);
/// Useless wakes in a row after which the bell stays silent.
const USELESS_MAX: u32 = 64;
/// Whether the application has the socket to itself is found out no more often than this.
const STOCK: Duration = Duration::from_us(100);
/// Who calls as often does nothing else.
const DENSE: Duration = Duration::from_us(10);
/// Posts for each completion, at most, of an application that waits for answers one by one: its request, a
/// receive for the answer, and as much again.
const POSTS_FOR_ONE: u32 = 4;
/// A thread that finds so many frames at once, on the processor of their sender, lets more of them come
/// before it has its bell rung again: else each few frames would cost two thread switches.
const STREAM_FRAMES: usize = 4;
const MODERATION: Duration = Duration::from_us(30);
/// How long the thread spins after the last frame.
pub const SPIN: Duration = Duration::from_us(40);

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

/// What to do about the bell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ringing {
    /// Nothing.
    Keep,
    /// Have peers ring it, and deal with the frames that came just before.
    Arm,
    /// Ask peers not to ring it.
    Silence,
}

/// What ended the thread's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Woken {
    /// Its bell was rung.
    pub bell: bool,
    /// A socket is readable.
    pub socket: bool,
}

/// What a round of the thread found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Frames taken in.
    pub frames: usize,
    /// Events delivered: the application will be awake soon.
    pub events: usize,
    /// There is more to send than one round's budget.
    pub more: bool,
    /// The thread runs on the processor of who rang.
    pub shares_cpu: bool,
}

/// How the thread looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// By a round, whose outcome [`Guess::found`] wants to know.
    Round {
        /// Ask the kernel for datagrams even if none came lately.
        ask_socket: bool,
    },
    /// For frames that wait, without taking them unless a timer is due: [`Guess::glanced`] wants to know.
    Glance,
}

/// What the thread does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another look at once.
    Again,
    /// Take frames as they come, the bell silent, as long as [`Guess::spins_on`] says so.
    Spin,
    /// Wait for the bell, and for the sockets where that is said.
    Wait {
        /// No longer than until then.
        until: Option<Instant>,
        /// For the sockets too.
        socket: bool,
    },
    /// Do this about the bell; if frames keep coming, another look at once; else [`Guess::rest`] says how
    /// long to wait.
    Rest(Ringing),
}

/// The machine's state. Lives under the NIC's lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guess {
    /// Calls that made a round or may have left work.
    calls: u32,
    /// Those of them by which the application takes frames in, or asks for an event.
    polls: u32,
    /// The last call was one after which the application will poll.
    polling: bool,
    /// The last call was a post.
    posted: bool,
    /// The application does not poll after it posts.
    posts_alone: bool,
    /// LAZY: the bell stays silent while the application is active.
    lazy: bool,
    /// The bell was armed here, and not silenced here since: if it is silent now, it was rung.
    armed: bool,
    /// Rings in a row for frames that the application took by itself.
    useless: u32,
    /// When stock was taken of the calls, how many there had been, and polls among them.
    stock: (Instant, u32, u32),
    /// The application has the socket to itself while it polls.
    owns_socket: bool,
    /// A caller has slept until a datagram came since stock was taken.
    caller_slept: bool,
    /// Polls that found something, and posts by the last one of them.
    finds: u32,
    posts_then: u32,
    /// The thread sleeps without a tick.
    asleep: bool,
    /// A call rang the bell to end that sleep, and for nothing else.
    roused: bool,
    /// Calls when the thread last looked.
    seen_calls: u32,
    /// When the thread first saw the latest call.
    changed: Instant,
    /// The first of two looks, if it found frames.
    first_look: Option<FirstLook>,
    /// The next look takes frames, LAZY or not.
    takes: bool,
    /// What ended the wait before the round that is being made.
    woken: Woken,
    /// That wait was a tick.
    ticked: bool,
    /// A call came during that wait, but not one that rang the bell to end the thread's sleep.
    app_was_here: bool,
}

/// A look that saw frames, which the application may poll away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FirstLook {
    at: Instant,
    /// Calls, and polls among them, by the latest look.
    calls: u32,
    polls: u32,
}

/// The application's side: each call asks, with the lock held.
impl Guess {
    /// At the start of a post: an answer that comes before the application polls rings no bell. A woken peer
    /// may run, and answer, before the post returns.
    #[inline]
    pub fn before_post(&self, is_armed: bool) -> Ringing {
        let returns = !self.posts_alone && !self.asleep;
        if returns && is_armed { Ringing::Silence } else { Ringing::Keep }
    }

    /// Whether the call before this one was a post too.
    #[inline]
    pub fn in_a_row(&self) -> bool {
        self.posted
    }

    /// Calls so far by which the application takes frames in, or asks for an event.
    #[inline]
    pub fn polls(&self) -> u32 {
        self.polls
    }

    fn posts(&self) -> u32 {
        self.calls.wrapping_sub(self.polls)
    }

    /// Polls so far that found something.
    pub fn finds(&self) -> u32 {
        self.finds
    }

    /// Whether the application posts little for each completion, and then waits for the next one.
    pub fn waits_for_one(&self) -> bool {
        self.posts().wrapping_sub(self.posts_then) <= POSTS_FOR_ONE
    }

    /// A caller sleeps until a datagram comes: the thread has no need to wait for it too.
    pub fn caller_sleeps(&mut self) {
        self.caller_slept = true;
    }

    /// At the end of every call; `is_armed` says whether peers would ring now. What to do about the bell, and
    /// whether the thread is to be told that it may be armed again.
    #[inline]
    pub fn after_call(&mut self, call: Call, is_armed: bool) -> (Ringing, bool) {
        self.calls = self.calls.wrapping_add(1);
        self.polls = self.polls.wrapping_add(u32::from(call != Call::Post));
        let posted = std::mem::replace(&mut self.posted, call == Call::Post);
        let returns = match call {
            Call::EmptyPoll => true,
            Call::Post => !self.posts_alone,
            Call::FullPoll | Call::Arm => false,
        };
        if posted && matches!(call, Call::EmptyPoll | Call::FullPoll) {
            self.posts_alone = false;
        }
        self.polling = returns;
        if call == Call::FullPoll {
            self.finds = self.finds.wrapping_add(1);
            self.posts_then = self.posts();
        }
        let mut bell = Ringing::Keep;
        if !is_armed && self.armed {
            // It was rung, but the application is here before the thread.
            self.armed = false;
            if self.note_useless() {
                bell = Ringing::Silence;
            }
        }
        if returns {
            let silence = is_armed && !self.asleep;
            return (if silence { Ringing::Silence } else { bell }, false);
        }
        let eager_again =
            call == Call::Arm && (std::mem::take(&mut self.lazy) | std::mem::take(&mut self.owns_socket));
        let arm = !is_armed && !self.lazy;
        (if arm { Ringing::Arm } else { bell }, eager_again)
    }

    /// Whether a call rings the thread's bell as it ends: it left work, or the thread sleeps for want of
    /// calls.
    #[inline]
    pub fn wakes_thread(&mut self, has_more: bool) -> bool {
        let was_asleep = std::mem::take(&mut self.asleep);
        self.roused |= was_asleep;
        has_more || was_asleep
    }

    /// The bell was armed, or silenced.
    #[inline]
    pub fn note_bell(&mut self, armed: bool) {
        self.armed = armed;
    }

    /// Counts a bell that nobody needed. True if they are too many: then it is to be silenced.
    fn note_useless(&mut self) -> bool {
        self.useless += 1;
        if self.useless < USELESS_MAX {
            return false;
        }
        (self.useless, self.lazy) = (0, true);
        true
    }
}

/// The thread's side: each time that it wakes, with the lock held.
impl Guess {
    /// How to look.
    pub fn look(&mut self, now: Instant, woken: Woken) -> Look {
        let called = self.calls != self.seen_calls;
        if called {
            (self.seen_calls, self.changed) = (self.calls, now);
        }
        self.asleep = false;
        let roused = std::mem::take(&mut self.roused);
        let active = self.is_active(now);
        if active && self.lazy && !std::mem::take(&mut self.takes) {
            return Look::Glance;
        }
        self.first_look = None;
        self.woken = woken;
        self.ticked = !(woken.bell || woken.socket) && active;
        self.app_was_here = called && !roused;
        Look::Round { ask_socket: woken.socket || !active || self.owns_socket }
    }

    /// Whether the thread has looked by the clock, while the application was active.
    pub fn has_ticked(&self) -> bool {
        self.ticked
    }

    fn is_active(&self, now: Instant) -> bool {
        now.since(self.changed) < IDLE
    }

    /// After a glance: frames wait, or none do; and when the next timer is due. `None` if a round is to be
    /// made as if a socket had woken the thread: nobody called between two glances that saw frames, so the
    /// application is elsewhere; or it called without polling for a whole tick.
    pub fn glanced(&mut self, now: Instant, frames_wait: bool, deadline: Option<Instant>) -> Option<Next> {
        let first = self.first_look.take();
        if !frames_wait {
            return Some(Next::Wait { until: Some(tick_or(deadline, now)), socket: false });
        }
        let (calls, polls) = (self.calls, self.polls);
        let Some(first) = first.filter(|first| first.polls == polls) else {
            self.first_look = Some(FirstLook { at: now, calls, polls });
            return Some(Next::Wait { until: Some(now + SECOND_LOOK), socket: false });
        };
        if first.calls == calls {
            (self.lazy, self.polling, self.useless) = (false, false, 0);
            return None;
        }
        if now.since(first.at) < TICK {
            self.first_look = Some(FirstLook { calls, ..first });
            return Some(Next::Wait { until: Some(tick_or(deadline, first.at)), socket: false });
        }
        self.takes = true;
        None
    }

    /// Whether a wake, by what its round found, was useless.
    pub fn was_useless(&self, found: Found) -> bool {
        (self.woken.bell || self.woken.socket) && found.frames == 0 && self.app_was_here
    }

    /// After a round: what to do next. `may_spin` says whether the processor has nothing better to do. It is
    /// told whether that is the one of who rang, and asked only where it matters. If the bell turned out
    /// useless once too often, it is to be silenced in any case: the flag.
    pub fn found(&mut self, now: Instant, found: Found, may_spin: impl FnOnce(bool) -> bool) -> (Next, bool) {
        let active = self.is_active(now);
        if self.ticked && found.frames > 0 {
            // The application did not come back as expected.
            (self.polling, self.posts_alone) = (false, self.posted);
        }
        let mut silence = false;
        if (self.woken.bell || self.woken.socket) && found.frames > 0 {
            self.useless = 0;
        } else if self.was_useless(found) && !self.woken.bell {
            silence = self.note_useless();
        }
        if active && self.lazy {
            return (Next::Wait { until: Some(now + TICK), socket: false }, silence);
        }
        if found.more {
            return (Next::Again, silence);
        }
        let shares_cpu = self.woken.bell && found.shares_cpu;
        if found.frames > 0 && found.events == 0 && may_spin(shares_cpu) {
            return (Next::Spin, silence);
        }
        if shares_cpu && found.frames >= STREAM_FRAMES {
            return (Next::Wait { until: Some(now + MODERATION), socket: true }, silence);
        }
        let comes_back = active && self.polling;
        (Next::Rest(if comes_back { Ringing::Keep } else { Ringing::Arm }), silence)
    }

    /// How long to wait, the bell being as it should; `deadline` is when the next timer is due. The flag says
    /// that the application is elsewhere: the thread sleeps without ticks. `in_use` is the socket.
    pub fn rest(&mut self, now: Instant, deadline: Option<Instant>, in_use: bool) -> (Next, bool) {
        let active = self.is_active(now);
        self.asleep = !active;
        self.take_stock(now);
        let until = if active { Some(tick_or(deadline, now)) } else { deadline };
        // Where it is not in use, polls seldom ask it.
        let socket = !(active && self.polling && self.owns_socket && in_use);
        (Next::Wait { until, socket }, !active)
    }

    /// Whether the calls since the last stock were so many that the application has the socket to itself, or
    /// it slept for datagrams by itself.
    fn take_stock(&mut self, now: Instant) {
        let (at, calls, polls) = self.stock;
        let time = now.since(at);
        if time >= STOCK {
            let called = u64::from(self.calls.wrapping_sub(calls));
            let calls_all_the_time = called * DENSE.as_ns() >= time.as_ns();
            let slept = std::mem::take(&mut self.caller_slept);
            self.owns_socket = self.polls != polls && (calls_all_the_time || slept);
            self.stock = (now, self.calls, self.polls);
        }
    }

    /// Whether the thread goes on spinning; `last_frame` is when it took one before this look.
    #[inline]
    pub fn spins_on(&self, last_frame: Instant, now: Instant, events: usize) -> bool {
        !self.has_spun(last_frame, now) && events == 0 && self.calls == self.seen_calls
    }

    /// Whether it has spun for as long as it does.
    #[inline]
    pub fn has_spun(&self, last_frame: Instant, now: Instant) -> bool {
        now.since(last_frame) >= SPIN
    }
}

/// A tick from then on, or the deadline before it.
fn tick_or(deadline: Option<Instant>, now: Instant) -> Instant {
    deadline.map_or(now + TICK, |deadline| deadline.min(now + TICK))
}

#[cfg(test)]
mod tests;
