//! Why a peer on this host is silent: the directory's table and `/proc` tell a process that has ended, one
//! that is stopped, one that has had no processor, and one that has dealt with all it was sent.
//!
//! Each process leaves word in its entry of the table: as of when it had dealt with everything in its rings,
//! and in its socket; and whether its progress thread rests, which a datagram would end. What was sent before
//! such a time and has no answer is lost. A process that is runnable but does not run leaves no word.
//!
//! A switch's process between the two may lack a processor as well, and then all that is under way waits for
//! it, whatever the peer does.

use crate::directory::{Member, Neighbour, Slot, View, Word};
use crate::rings::Rings;
use adverb_nic::{Overdue, Silence};
use adverb_os::sys::{ThreadState, thread_ran, thread_state};
use adverb_wire::{Duration, Gid, Instant};
use std::path::PathBuf;

/// Addresses of this host whose tables are kept at hand.
const NEIGHBOURS_MAX: usize = 16;
/// How long it is believed that an address has no table here.
const ABSENT: Duration = Duration::from_ms(1000);
/// How long what the kernel said of a process is believed.
const FRESH: Duration = Duration::from_ms(2);
/// A word counts that was left so long after the peer was sent something, or a quarter of the timeout if that
/// is less: a burst takes time to leave.
const SLACK: Duration = Duration::from_ms(1);

/// What the kernel says of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It has ended.
    Gone,
    /// Its progress thread's.
    Lives(ThreadState),
}

/// What there is to judge by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Signs {
    state: State,
    /// The peer has left word since.
    answered: bool,
    /// It rests, and something to do would have woken it.
    rests: bool,
    /// The way is a socket's: frames can be lost there, and be late to leave.
    by_socket: bool,
    /// This process came late to its timer, or the switch between the two had no processor.
    way_late: bool,
}

impl Signs {
    fn judge(self) -> Silence {
        let thread = match self.state {
            State::Gone => return Silence::Gone,
            State::Lives(ThreadState::Stopped) => return Silence::Stopped,
            State::Lives(thread) => thread,
        };
        match (self.by_socket, self.rests) {
            (true, _) if self.way_late => Silence::Late,
            _ if self.answered => Silence::Heard,
            (false, true) => Silence::Heard,
            (false, false) => Silence::Unread,
            // Woken, but not there yet.
            (true, true) if thread == ThreadState::Runnable => Silence::Late,
            (true, true) => Silence::Heard,
            (true, false) => Silence::Late,
        }
    }
}

/// Whether this process came so late to its timer that nothing can be said of the peer.
fn is_late(now: Instant, overdue: &Overdue) -> bool {
    let timeout = overdue.due.since(overdue.since);
    now.since(overdue.due) > SLACK.max(Duration::from_ps(timeout.as_ps() / 2))
}

/// What was seen last of a switch's thread: how long it has had a processor, and by when it had it all.
#[derive(Clone, Copy, Debug)]
struct Between {
    tid: u32,
    ran_ns: u64,
    by: Instant,
}

impl Between {
    /// What a look finds at this time. Of one that nobody has looked at, it is not known when it ran.
    fn look(last: Option<Between>, tid: u32, ran_ns: u64, now: Instant) -> Between {
        let by = match last {
            Some(last) if last.tid == tid && last.ran_ns == ran_ns => last.by,
            Some(last) if last.tid == tid => now,
            _ => Instant::ZERO,
        };
        Between { tid, ran_ns, by }
    }

    /// Whether it wants a processor, and had none after this time.
    fn is_late(self, state: ThreadState, since: Instant) -> bool {
        state == ThreadState::Runnable && self.by <= since
    }
}

/// What is known of the processes that peers live in.
#[derive(Debug)]
pub struct Lives {
    own: Gid,
    directory: PathBuf,
    /// When `now` was zero, by the clock that all processes of the host share.
    epoch_ns: u64,
    neighbours: Vec<(Gid, Instant, Option<Neighbour>)>,
    /// What the kernel said last, of whom, and when.
    last: Option<(Gid, Slot, Instant, State)>,
    between: Option<Between>,
}

impl Lives {
    /// Of processes that meet in a directory.
    pub fn new(own: Gid, directory: PathBuf, epoch_ns: u64) -> Lives {
        Lives { own, directory, epoch_ns, neighbours: Vec::new(), last: None, between: None }
    }

    /// A time of this process as every process of the host knows it.
    #[inline]
    pub fn host_ns(&self, at: Instant) -> u64 {
        self.epoch_ns + at.since(Instant::ZERO).as_ns()
    }

    /// Whether a process of this address would go on if it had a processor.
    pub fn wants_processor(member: &Member, slot: Slot) -> bool {
        state_of(&member.view(), slot) == State::Lives(ThreadState::Runnable)
    }

    /// Whether the thread of a switch's process that takes frames wants a processor and had none since.
    fn waits_for_processor(&mut self, (pid, tid): (u32, u32), now: Instant, since: Instant) -> bool {
        self.between = thread_ran(pid, tid).map(|ran_ns| Between::look(self.between, tid, ran_ns, now));
        self.between.is_some_and(|between| between.is_late(thread_state(pid, tid), since))
    }

    /// Why an acknowledgement is overdue. `switch` is the one that the frames go through, by its process and
    /// thread.
    pub fn judge(
        &mut self,
        rings: &mut Rings,
        now: Instant,
        overdue: &Overdue,
        by_socket: bool,
        switch: Option<(u32, u32)>,
    ) -> Silence {
        let is_held = switch.is_some_and(|thread| self.waits_for_processor(thread, now, overdue.since));
        let way_late = is_held || is_late(now, overdue);
        let nothing = if by_socket && way_late { Silence::Late } else { Silence::Unknown };
        let Some(slot) = Slot::new((overdue.peer.get() >> 16) as u8) else { return nothing };
        let slack = SLACK.min(Duration::from_ps(overdue.due.since(overdue.since).as_ps() / 4));
        let since_ns = self.host_ns(overdue.since + slack);
        let Lives { own, directory, neighbours, last, .. } = self;
        let member = rings.member().clone();
        let view = if overdue.dst == *own {
            Some(member.view())
        } else {
            neighbour(neighbours, directory, overdue.dst, now).map(Neighbour::view)
        };
        let Some(view) = view else { return nothing };
        let state = match *last {
            Some((gid, of, at, state)) if (gid, of) == (overdue.dst, slot) && now.since(at) < FRESH => state,
            _ => {
                let state = state_of(&view, slot);
                *last = Some((overdue.dst, slot, now, state));
                state
            }
        };
        let word_ns = view.word(slot, if by_socket { Word::Socket } else { Word::Rings });
        if word_ns == 0 && state != State::Gone {
            // A process of an older version leaves none.
            return nothing;
        }
        let rests = if by_socket { view.word(slot, Word::Rests) != 0 } else { view.is_armed(slot) };
        let read = !by_socket && rings.has_read(slot, overdue.since, now);
        Signs { state, answered: word_ns >= since_ns || read, rests, by_socket, way_late }.judge()
    }
}

/// The table of another address of this host, if it has one.
fn neighbour<'a>(
    known: &'a mut Vec<(Gid, Instant, Option<Neighbour>)>,
    directory: &std::path::Path,
    gid: Gid,
    now: Instant,
) -> Option<&'a Neighbour> {
    let at = match known.iter().position(|(of, ..)| *of == gid) {
        Some(at) => at,
        None if known.len() < NEIGHBOURS_MAX => {
            known.push((gid, now, Neighbour::open(directory, gid.ip())));
            known.len() - 1
        }
        None => return None,
    };
    let (_, asked, found) = &mut known[at];
    let is_stale = found.as_ref().map_or(now.since(*asked) >= ABSENT, Neighbour::is_removed);
    if is_stale {
        (*asked, *found) = (now, Neighbour::open(directory, gid.ip()));
    }
    found.as_ref()
}

fn state_of(view: &View<'_>, slot: Slot) -> State {
    if view.generation_of(slot) == 0 || !view.is_alive(slot) {
        return State::Gone;
    }
    State::Lives(view.thread_of(slot).map_or(ThreadState::Unknown, |(pid, tid)| thread_state(pid, tid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_nic::PathId;
    use adverb_wire::QpNumber;

    #[test]
    fn signs_and_what_they_mean() {
        use Silence::{Gone, Heard, Late, Stopped, Unread};
        use ThreadState::{Runnable, Sleeping, Unknown};
        let lives = State::Lives;
        // By the socket, answered, rests, late itself or held up by the switch.
        let (ring, socket) = (false, true);
        for (state, by_socket, answered, rests, way_late, expected) in [
            // What the kernel says goes before all.
            (State::Gone, ring, true, true, true, Gone),
            (State::Gone, socket, false, false, true, Gone),
            (lives(ThreadState::Stopped), ring, true, false, false, Stopped),
            (lives(ThreadState::Stopped), socket, false, true, true, Stopped),
            // A ring loses nothing: it is either read or not.
            (lives(Runnable), ring, true, false, true, Heard),
            (lives(Runnable), ring, false, false, false, Unread),
            (lives(Sleeping), ring, false, false, true, Unread),
            (lives(Unknown), ring, false, false, false, Unread),
            (lives(Sleeping), ring, false, true, false, Heard),
            // A datagram would have woken a thread that rests.
            (lives(Runnable), socket, true, false, false, Heard),
            (lives(Runnable), socket, false, false, false, Late),
            (lives(Runnable), socket, false, true, false, Late),
            (lives(Sleeping), socket, false, true, false, Heard),
            (lives(Unknown), socket, false, true, false, Heard),
            (lives(Unknown), socket, false, false, false, Late),
            // Who was late has perhaps sent late.
            (lives(Runnable), socket, true, false, true, Late),
        ] {
            let signs = Signs { state, answered, rests, by_socket, way_late };
            assert_eq!(signs.judge(), expected, "{signs:?}");
        }
    }

    #[test]
    fn a_switch_that_runs_excuses_nothing() {
        use ThreadState::{Runnable, Sleeping, Stopped, Unknown};
        let ms = |n: u64| Instant::from_ns(n * 1_000_000);
        // Looks at a switch: when, its process, and how long that has run.
        let looks = |looks: &[(u64, u32, u64)]| {
            let each = |last, &(at, pid, ran)| Some(Between::look(last, pid, ran, ms(at)));
            looks.iter().fold(None, each).unwrap()
        };
        for (seen, state, since, expected) in [
            // Nobody has looked before.
            (&[(10, 7, 5)][..], Runnable, 3, true),
            (&[(10, 7, 5)], Sleeping, 3, false),
            // It has not run since.
            (&[(10, 7, 5), (77, 7, 5)], Runnable, 10, true),
            (&[(10, 7, 5), (77, 7, 6), (150, 7, 6)], Runnable, 80, true),
            (&[(10, 7, 5), (77, 7, 5)], Stopped, 10, false),
            (&[(10, 7, 5), (77, 7, 5)], Unknown, 10, false),
            // It has.
            (&[(10, 7, 5), (77, 7, 6)], Runnable, 10, false),
            (&[(10, 7, 5), (77, 7, 6), (90, 7, 6)], Runnable, 30, false),
            // Another's process.
            (&[(10, 7, 5), (77, 8, 6)], Runnable, 30, true),
        ] {
            assert_eq!(looks(seen).is_late(state, ms(since)), expected, "{seen:?} {state:?} {since}");
        }
    }

    #[test]
    fn who_comes_late_to_a_timer_knows_it() {
        let ms = |n: u64| Instant::from_ns(n * 1_000_000);
        let overdue = |since, due| Overdue {
            path: PathId::DEFAULT,
            dst: Gid::default(),
            peer: QpNumber::new(1),
            since: ms(since),
            due: ms(due),
        };
        for (since, due, now, expected) in [
            (10, 30, 30, false),
            (10, 30, 40, false),
            (10, 30, 41, true),
            (10, 11, 12, false),
            (10, 11, 13, true),
        ] {
            assert_eq!(is_late(ms(now), &overdue(since, due)), expected, "{since} {due} {now}");
        }
    }
}
