//! What a thread does on its core: steps of the call that it has taken, the next call, its future, sleep.

use super::cpu::Thread;
use super::exec::Outcome;
use super::{CALLS_AT_ONCE, Current, Doing, Due, Noted, Programs};
use crate::sim::Sim;
use adverb_rdma::seam::{Call, Note, Object};
use adverb_rdma::{CALLS_UNWAITED, without_progress};
use core::task::{Context, Poll};

impl Sim {
    /// The thread of a host is idle on its core: goes on until it has work that takes time, or sleeps.
    pub(super) fn turn(&mut self, programs: &mut Programs, host: usize, thread: Thread) {
        let here = |p: &super::Program| {
            p.start.host as usize == host && p.life.as_ref().is_some_and(|life| life.thread == thread)
        };
        let Some(n) = programs.list.iter().position(here).map(|n| n as u32) else { return };
        while programs.stations[host].cpu.is_idle(thread) {
            let Some(life) = programs.list[n as usize].life.as_deref_mut() else { return };
            if let Some(current) = life.current.take() {
                self.take_step(programs, n, current);
            } else if let Some(found) = life.found.pop_front() {
                self.take_up(programs, n, found);
            } else if let Some((ticket, call)) = life.mailbox.next_call() {
                if self.makes_no_progress(programs, n) {
                    return;
                }
                self.take_up(programs, n, Current { ticket, call, progress: 0, bytes: Vec::new() });
            } else if life.flag.lower() {
                self.poll_program(programs, n);
            } else {
                programs.stations[host].cpu.sleep(self.now, thread);
                return;
            }
        }
    }

    /// The program's thread works on a step of a call; its effect is the work's end.
    pub(super) fn take_up(&mut self, programs: &mut Programs, n: u32, current: Current) {
        let (host, who) = (programs.host(n), programs.who(n));
        let cost = programs.cost(host, &current);
        let Some(life) = programs.life(who) else { return };
        life.current = Some(current);
        let thread = life.thread;
        let cpu = &mut programs.stations[host].cpu;
        cpu.work(self.now, thread, cost);
        let Some(stalls) = programs.stalls else { return };
        if programs.rng.f64() < stalls.chance {
            let for_ps = programs.rng.u64(0..=stalls.most_ps);
            programs.stations[host].cpu.stop(self.now, thread);
            programs.at(self.now + for_ps, Due::Continue(who));
        }
    }

    /// A step whose time is paid has its effect.
    fn take_step(&mut self, programs: &mut Programs, n: u32, current: Current) {
        let program = &mut programs.list[n as usize];
        let step = program.steps;
        program.steps += 1;
        if let Some(cut) = programs.cuts.iter().find(|cut| (cut.program, cut.step) == (n, step)) {
            let again = cut.again;
            if self.watch.journal.is_on() {
                self.tell_cut(programs, n, &current);
            }
            return self.kill_program(programs, n, again);
        }
        programs.calls += 1;
        let posts =
            matches!(current.call, Call::PostSend { .. } | Call::PostRecv { .. } | Call::Doorbell { .. });
        programs.posts += u64::from(posts);
        self.watch.trace.add(self.now, 1 << 19 | n, step);
        let ticket = current.ticket;
        let told = self.watch.journal.is_on().then(|| super::words::call(&current.call));
        let outcome = self.execute(programs, n, current);
        if let (Some(told), Outcome::Answer(answer)) = (told, &outcome) {
            let what = format!("{told} -> {}", super::words::answer(answer));
            self.tell_program(programs, n, &what);
        }
        let who = programs.who(n);
        match outcome {
            Outcome::Answer(answer) => {
                if let Some(life) = programs.life(who) {
                    life.mailbox.answer(ticket, answer);
                }
            }
            Outcome::More(current) => self.take_up(programs, n, current),
            Outcome::Wait(waiting) => {
                if let Some(life) = programs.life(who) {
                    (life.unwaited, life.at_once) = (0, 0);
                    life.waits.push(waiting);
                }
            }
        }
    }

    /// Counts a call; a program that calls and calls and never waits is killed and reported.
    fn makes_no_progress(&mut self, programs: &mut Programs, n: u32) -> bool {
        let (now, who) = (self.now, programs.who(n));
        let Some(life) = programs.life(who) else { return true };
        if life.moment != now {
            (life.moment, life.at_once) = (now, 0);
        }
        life.at_once += 1;
        life.unwaited += 1;
        let (at_once, unwaited) = (life.at_once, life.unwaited);
        if at_once < CALLS_AT_ONCE && unwaited < CALLS_UNWAITED {
            return false;
        }
        let name = &programs.list[n as usize].start.name;
        let (calls, how) =
            if unwaited < CALLS_UNWAITED { (at_once, "at one moment") } else { (unwaited, "in a row") };
        programs.failures.push(without_progress(name, calls, how));
        self.kill_program(programs, n, None);
        true
    }

    fn poll_program(&mut self, programs: &mut Programs, n: u32) {
        let Some(life) = programs.list[n as usize].life.as_deref_mut() else { return };
        let waker = life.waker.clone();
        let polled = life.future.as_mut().poll(&mut Context::from_waker(&waker));
        self.take_aside(programs, n);
        if let Poll::Ready(result) = polled {
            let said = match &result {
                Ok(()) => "ends".to_owned(),
                Err(why) => format!("ends: {why}"),
            };
            self.tell_program(programs, n, &said);
            let process = self.end_life(programs, n, false);
            let host = programs.host(n);
            self.end_one_rma(host, &process);
            process.end(self.now, &mut self.hosts.list[host], &mut programs.stations[host].left);
            self.after_nic(host as u32, false);
            programs.list[n as usize].doing = Doing::Ended(result);
        }
    }

    /// What a program did while it was polled, beside its calls: notes, calls that it forgot, handles that it
    /// dropped.
    fn take_aside(&mut self, programs: &mut Programs, n: u32) {
        let (host, who) = (programs.host(n), programs.who(n));
        let Some(life) = programs.life(who) else { return };
        let (forgotten, released, notes) = life.mailbox.take_aside();
        life.waits.retain(|waiting| !forgotten.contains(&waiting.ticket));
        if life.current.as_ref().is_some_and(|current| forgotten.contains(&current.ticket)) {
            life.current = None;
        }
        life.found.retain(|found| !forgotten.contains(&found.ticket));
        for ticket in forgotten {
            programs.exchange.give_up(who, ticket);
        }
        for note in notes {
            if self.watch.journal.is_on() {
                self.tell_note(programs, n, &note);
            }
            programs.notes.push(Noted { at: self.now, program: who.program, life: who.life, note });
        }
        let stopped = !released.is_empty();
        for object in released {
            let messages = match object {
                Object::Listener(id) => programs.exchange.unlisten(who, id),
                Object::Line(id) => programs.exchange.leave(who, id).into_iter().collect(),
                _ => Vec::new(),
            };
            programs.send(self.now, messages);
            let Programs { list, stations, .. } = programs;
            if let Some(life) = list[n as usize].life.as_deref_mut() {
                life.process.release(self.now, object, &mut self.hosts.list[host], &mut stations[host].left);
            }
        }
        if stopped {
            self.after_nic(host as u32, false);
        }
    }

    /// Tells of a program, in its place.
    pub(super) fn tell_program(&mut self, programs: &Programs, n: u32, what: &str) {
        if self.watch.journal.is_on() {
            let start = &programs.list[n as usize].start;
            self.watch.journal.add(self.now, format_args!("{} (host {})", start.name, start.host), what);
        }
    }

    #[cold]
    fn tell_cut(&mut self, programs: &Programs, n: u32, current: &Current) {
        let what = super::words::call(&current.call);
        let done = match current.progress {
            0 => "before it".to_owned(),
            n if matches!(current.call, Call::PostSend { .. } | Call::PostRecv { .. }) => {
                format!("when {n} of the list are posted")
            }
            n => format!("when {n} bytes are copied"),
        };
        self.tell_program(programs, n, &format!("{what}: is cut off {done}"));
    }

    #[cold]
    fn tell_note(&mut self, programs: &Programs, n: u32, note: &Note) {
        self.tell_program(programs, n, &super::words::note(note));
    }
}
