//! A host's processors: cores, one FIFO run queue, and threads that run, wait, sleep, and are stopped or
//! killed. A pure machine: it says when something happens next, and whose work is done then.
//!
//! ```text
//!            wake              latency               a free core
//! Asleep ──────────► Waking ───────────► Queued ───────────────────► Running
//!    ▲                                     ▲    the slice is over       │ │
//!    │                                     └───────────────────────────┘ │
//!    └────────────────────────── sleep ──────────────────────────────────┘
//! stop: Running, Waking or Queued ──► Held ── cont ──► Queued
//! ```
//! What a thread does takes work; the work is charged from its start, and its effect is its end.

use crate::host::hardware::Profile;
use std::collections::VecDeque;

/// What processors cost. Neutral by default: a core for each thread, and all work takes no time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuProfile {
    /// Cores of a host; `None` for one for each thread.
    pub cores: Option<u32>,
    /// How long a thread keeps its core while others wait; `None` until it sleeps.
    pub slice_ps: Option<u64>,
    /// A core takes up another thread than its last one.
    pub switch_ps: u64,
    /// From the cause of a wake until the thread is in the run queue. Holds no core.
    pub wake_ps: u64,
    /// A post of one work request.
    pub post_ps: u64,
    /// A look for completions.
    pub poll_ps: u64,
    /// Finding that awaited memory has changed.
    pub spin_ps: u64,
    /// Copying a byte.
    pub byte_ps: u64,
}

impl CpuProfile {
    /// What the processors of a host with this hardware cost its programs.
    pub fn of(hardware: &Profile) -> CpuProfile {
        CpuProfile {
            cores: (hardware.cpu_cores > 0).then_some(hardware.cpu_cores as u32),
            slice_ps: (hardware.cpu_slice > 0).then_some(hardware.cpu_slice),
            switch_ps: hardware.cpu_switch,
            wake_ps: hardware.cpu_wake,
            post_ps: hardware.cpu_post,
            poll_ps: hardware.cpu_poll,
            spin_ps: hardware.cpu_spin,
            byte_ps: 8_000_000_000_000u64.checked_div(hardware.cpu_copy).unwrap_or(0),
        }
    }
}

/// Names a thread of a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Thread(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Asleep,
    Waking {
        at: u64,
    },
    /// Has this much work before it.
    Queued {
        left: u64,
    },
    /// Its work ends at `until`; it is idle, about to say what is next, when there is none.
    Running {
        core: u32,
        until: Option<u64>,
        slice_end: u64,
    },
    Held {
        left: u64,
    },
    Gone,
}

/// The processors of one host.
#[derive(Clone, Debug)]
pub struct Cpu {
    profile: CpuProfile,
    threads: Vec<(State, Stopped)>,
    queue: VecDeque<Thread>,
    /// By core: who runs there, and who ran there last.
    cores: Vec<Core>,
}

type Stopped = bool;

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    busy: bool,
    last: Option<Thread>,
}

impl Cpu {
    /// What they cost.
    pub fn profile(&self) -> &CpuProfile {
        &self.profile
    }

    /// Idle processors.
    pub fn new(profile: CpuProfile) -> Cpu {
        let cores = vec![Core::default(); profile.cores.unwrap_or(0) as usize];
        Cpu { profile, threads: Vec::new(), queue: VecDeque::new(), cores }
    }

    /// A new thread, asleep.
    pub fn add(&mut self) -> Thread {
        if self.profile.cores.is_none() {
            self.cores.push(Core::default());
        }
        self.threads.push((State::Asleep, false));
        Thread(self.threads.len() as u32 - 1)
    }

    fn state(&mut self, thread: Thread) -> &mut State {
        &mut self.threads[thread.0 as usize].0
    }

    /// Whether the thread runs and has no work: it may say what is next.
    pub fn is_idle(&self, thread: Thread) -> bool {
        matches!(self.threads[thread.0 as usize].0, State::Running { until: None, .. })
    }

    /// The thread has a reason to run; nothing if it runs already, or is about to.
    pub fn wake(&mut self, now: u64, thread: Thread) {
        let (state, stopped) = self.threads[thread.0 as usize];
        if state != State::Asleep {
            return;
        }
        if stopped {
            *self.state(thread) = State::Held { left: 0 };
        } else if self.profile.wake_ps > 0 {
            *self.state(thread) = State::Waking { at: now + self.profile.wake_ps };
        } else {
            self.enqueue(now, thread, 0);
        }
    }

    /// The running thread has work. Of none it stays idle.
    ///
    /// # Panics
    /// If the thread is not idle.
    pub fn work(&mut self, now: u64, thread: Thread, work: u64) {
        let State::Running { until, .. } = self.state(thread) else { panic!("{thread:?} does not run") };
        assert!(until.is_none(), "{thread:?} has work already");
        if work > 0 {
            *until = Some(now + work);
        }
    }

    /// The idle thread waits for something and gives its core away.
    pub fn sleep(&mut self, now: u64, thread: Thread) {
        assert!(self.is_idle(thread), "{thread:?} has work");
        self.leave(thread);
        *self.state(thread) = State::Asleep;
        self.dispatch(now);
    }

    /// The thread does not run until [`Cpu::cont`], whatever happens.
    pub fn stop(&mut self, now: u64, thread: Thread) {
        let (state, stopped) = &mut self.threads[thread.0 as usize];
        *stopped = true;
        let left = match *state {
            State::Running { until, .. } => until.map_or(0, |until| until.saturating_sub(now)),
            State::Queued { left } => left,
            State::Waking { .. } => 0,
            State::Asleep | State::Held { .. } | State::Gone => return,
        };
        self.leave(thread);
        *self.state(thread) = State::Held { left };
        self.dispatch(now);
    }

    /// Lets a stopped thread go on.
    pub fn cont(&mut self, now: u64, thread: Thread) {
        let (state, stopped) = &mut self.threads[thread.0 as usize];
        *stopped = false;
        if let State::Held { left } = *state {
            self.enqueue(now, thread, left);
        }
    }

    /// The thread is no more.
    pub fn kill(&mut self, now: u64, thread: Thread) {
        self.leave(thread);
        *self.state(thread) = State::Gone;
        self.dispatch(now);
    }

    /// Takes a thread off its core or out of the queue.
    fn leave(&mut self, thread: Thread) {
        match *self.state(thread) {
            State::Running { core, .. } => self.cores[core as usize].busy = false,
            State::Queued { .. } => self.queue.retain(|other| *other != thread),
            _ => {}
        }
    }

    fn enqueue(&mut self, now: u64, thread: Thread, left: u64) {
        *self.state(thread) = State::Queued { left };
        self.queue.push_back(thread);
        self.dispatch(now);
        // Those who ran alone begin a slice anew each time that one is over.
        if let Some(slice) = self.profile.slice_ps.filter(|_| !self.queue.is_empty()) {
            for (state, _) in &mut self.threads {
                if let State::Running { slice_end, .. } = state
                    && *slice_end <= now
                {
                    *slice_end += (now - *slice_end) / slice * slice + slice;
                }
            }
        }
    }

    /// Gives free cores to those who wait. A core that the thread ran on last is better than another.
    fn dispatch(&mut self, now: u64) {
        while let Some(&thread) = self.queue.front() {
            let own = self.cores.iter().position(|core| !core.busy && core.last == Some(thread));
            let Some(at) = own.or_else(|| self.cores.iter().position(|core| !core.busy)) else { return };
            self.queue.pop_front();
            let core = &mut self.cores[at];
            let other = core.last.is_some_and(|last| last != thread);
            let from = now + if other { self.profile.switch_ps } else { 0 };
            *core = Core { busy: true, last: Some(thread) };
            let slice_end = self.profile.slice_ps.map_or(u64::MAX, |slice| from + slice);
            let State::Queued { left } = *self.state(thread) else { panic!("{thread:?} is not queued") };
            // A thread that has nothing to do but to say what is next, does so as soon as it is there.
            *self.state(thread) = State::Running { core: at as u32, until: Some(from + left), slice_end };
        }
    }

    /// When something happens next.
    pub fn next(&self) -> Option<u64> {
        self.threads.iter().filter_map(|(state, _)| self.event_of(*state)).min()
    }

    fn event_of(&self, state: State) -> Option<u64> {
        match state {
            State::Waking { at } => Some(at),
            State::Running { until: Some(until), slice_end, .. } if !self.queue.is_empty() => {
                Some(until.min(slice_end))
            }
            State::Running { until, .. } => until,
            State::Asleep | State::Queued { .. } | State::Held { .. } | State::Gone => None,
        }
    }

    /// Lets happen what is due, and says whose work is done: these are idle now.
    pub fn advance(&mut self, now: u64) -> Vec<Thread> {
        let mut done = Vec::new();
        loop {
            let due = |(n, (state, _)): (usize, &(State, Stopped))| {
                self.event_of(*state).filter(|at| *at <= now).map(|at| (at, n as u32))
            };
            let Some((at, n)) = self.threads.iter().enumerate().filter_map(due).min() else { return done };
            let thread = Thread(n);
            match *self.state(thread) {
                State::Running { until: Some(until), .. } if until <= at => {
                    if let State::Running { until, .. } = self.state(thread) {
                        *until = None;
                    }
                    done.push(thread);
                }
                State::Running { until: Some(until), .. } => {
                    self.leave(thread);
                    self.enqueue(at, thread, until - at);
                }
                State::Waking { .. } => self.enqueue(at, thread, 0),
                state => panic!("nothing happens to a thread that is {state:?}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs threads that each want some pieces of work, from time 0; when each piece of each ended.
    fn run(profile: CpuProfile, wanted: &[&[u64]]) -> Vec<Vec<u64>> {
        let mut cpu = Cpu::new(profile);
        let threads: Vec<Thread> = wanted.iter().map(|_| cpu.add()).collect();
        threads.iter().for_each(|t| cpu.wake(0, *t));
        let mut ends: Vec<Vec<u64>> = wanted.iter().map(|_| Vec::new()).collect();
        let mut begun = vec![0; wanted.len()];
        while let Some(now) = cpu.next() {
            for thread in cpu.advance(now) {
                let n = thread.0 as usize;
                if begun[n] > 0 {
                    ends[n].push(now);
                }
                match wanted[n].get(begun[n]) {
                    Some(work) => cpu.work(now, thread, *work),
                    None => cpu.sleep(now, thread),
                }
                begun[n] += 1;
            }
        }
        ends
    }

    #[test]
    fn a_core_for_each_takes_no_longer_than_the_work() {
        let ends = run(CpuProfile::default(), &[&[5, 6], &[7], &[1, 1, 1]]);
        assert_eq!(ends, [vec![5, 11], vec![7], vec![1, 2, 3]]);
    }

    /// Threads with the same work, more of them than cores: they run in batches, one after another.
    #[test]
    fn fewer_cores_than_threads_run_to_completion() {
        for (cores, threads) in [(1u32, 5), (2, 5), (3, 4), (4, 4)] {
            let profile = CpuProfile { cores: Some(cores), ..CpuProfile::default() };
            let work: Vec<&[u64]> = (0..threads).map(|_| &[100][..]).collect();
            for (n, ends) in run(profile, &work).iter().enumerate() {
                assert_eq!(ends, &[100 * (1 + n as u64 / u64::from(cores))]);
            }
            // Each batch but the first pays for the switch.
            let profile = CpuProfile { switch_ps: 7, ..profile };
            for (n, ends) in run(profile, &work).iter().enumerate() {
                let batch = n as u64 / u64::from(cores);
                assert_eq!(ends, &[100 * (1 + batch) + 7 * batch]);
            }
        }
    }

    /// Round robin: a thread of work w among k threads that want more has w / slice turns, and waits k - 1
    /// slices before each but the first.
    #[test]
    fn slices_are_taken_in_turns() {
        let profile = CpuProfile { cores: Some(1), slice_ps: Some(10), ..CpuProfile::default() };
        assert_eq!(run(profile, &[&[30], &[30], &[30]]), [[70], [80], [90]]);
        assert_eq!(run(profile, &[&[25], &[10], &[40]]), [[55], [20], [75]]);
        // Alone, a slice costs nothing.
        assert_eq!(run(CpuProfile { switch_ps: 3, ..profile }, &[&[95]]), [[95]]);
        assert_eq!(run(CpuProfile { switch_ps: 3, ..profile }, &[&[20], &[20]]), [[36], [49]]);
    }

    #[test]
    fn waking_takes_time_and_holds_no_core() {
        let profile = CpuProfile { cores: Some(1), wake_ps: 50, ..CpuProfile::default() };
        let mut cpu = Cpu::new(profile);
        let (a, b) = (cpu.add(), cpu.add());
        cpu.wake(0, a);
        cpu.wake(0, a);
        assert_eq!((cpu.next(), cpu.advance(50)), (Some(50), vec![a]));
        cpu.work(50, a, 100);
        cpu.wake(60, b);
        assert_eq!((cpu.next(), cpu.advance(110)), (Some(110), vec![]), "awake, but the core is taken");
        assert_eq!((cpu.next(), cpu.advance(150)), (Some(150), vec![a]));
        cpu.sleep(150, a);
        assert_eq!((cpu.next(), cpu.advance(150)), (Some(150), vec![b]));
        cpu.sleep(150, b);
        assert_eq!(cpu.next(), None);
    }

    #[test]
    fn stopped_threads_keep_their_work_and_their_place_is_free() {
        let mut cpu = Cpu::new(CpuProfile { cores: Some(1), ..CpuProfile::default() });
        let (a, b) = (cpu.add(), cpu.add());
        cpu.wake(0, a);
        assert_eq!(cpu.advance(0), [a]);
        cpu.work(0, a, 100);
        cpu.wake(10, b);
        cpu.stop(30, a);
        assert_eq!(cpu.advance(30), [b]);
        cpu.work(30, b, 5);
        cpu.cont(32, a);
        assert_eq!(cpu.advance(35), [b]);
        cpu.sleep(35, b);
        assert_eq!((cpu.next(), cpu.advance(105)), (Some(105), vec![a]), "70 were left");
        // Stopped in its sleep: what wakes it is not lost.
        cpu.sleep(105, a);
        cpu.stop(110, a);
        cpu.wake(120, a);
        assert_eq!(cpu.next(), None);
        cpu.cont(130, a);
        assert_eq!((cpu.next(), cpu.advance(130)), (Some(130), vec![a]));
        // Killed while others wait for its core.
        cpu.work(130, a, 1000);
        cpu.wake(131, b);
        cpu.kill(140, a);
        assert_eq!((cpu.next(), cpu.advance(140)), (Some(140), vec![b]));
    }
}
