//! What befalls programs and hosts: they are stopped, killed, started again, crash.

use super::exchange::Who;
use super::mailbox::{Flag, Mailbox};
use super::process::{Leftovers, Process};
use super::{Doing, Due, Life, Programs};
use crate::sim::Sim;
use crate::watch::trace::seed_of;
use adverb_rdma::Rdma;
use adverb_rdma::seam::Driver;
use core::task::Waker;
use std::rc::Rc;
use std::sync::Arc;

/// Something that happens to a program or a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The program does not run until it is continued (SIGSTOP).
    Stop(u32),
    /// It runs again (SIGCONT).
    Continue(u32),
    /// It is ended where it is (SIGKILL); started again after so many ps, if at all.
    Kill(u32, Option<u64>),
    /// It is asked to end, as by Ctrl-C.
    Ask(u32),
    /// The host's programs end, its NIC forgets everything, and its peers hear nothing of it. It comes back
    /// after so many ps, and its programs with it.
    Crash(u32, u64),
}

/// Something that happens at a set time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When, in ps.
    pub at: u64,
    /// What.
    pub what: What,
}

/// A kill at a program's step, which may be in the middle of a posted list or of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The program.
    pub program: u32,
    /// Its step, counted over all its lives; that one is not taken.
    pub step: u64,
    /// When it is started again, in ps after that.
    pub again: Option<u64>,
}

/// How programs are held up, as by an operating system that has something else to do: before a step, with
/// this chance, for up to so many ps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stalls {
    /// The chance.
    pub chance: f64,
    /// The longest.
    pub most_ps: u64,
}

impl Sim {
    /// Lets happen what is due.
    pub(super) fn happen(&mut self, programs: &mut Programs) {
        while let Some(entry) = programs.due.first_entry().filter(|entry| entry.key().0 <= self.now) {
            match entry.remove() {
                Due::Start(program) => self.start_program(programs, program),
                Due::Fault(what) => self.befall(programs, what),
                Due::Message(message) => self.carry(programs, message),
                Due::Told(who, ticket, answer) => self.answer(programs, who, ticket, answer),
                Due::Deadline(who, ticket) => self.on_wait_deadline(programs, who, ticket),
                Due::Continue(who) => {
                    if let Some(thread) = programs.life(who).map(|life| life.thread) {
                        let host = programs.host(who.program);
                        programs.stations[host].cpu.cont(self.now, thread);
                    }
                }
                Due::Look(h) => self.look_at_waits(programs, h, 0),
            }
        }
    }

    fn start_program(&mut self, programs: &mut Programs, n: u32) {
        let (host, who) = (programs.host(n), programs.who(n));
        let station = &mut programs.stations[host];
        if programs.list[n as usize].life.is_some() {
            return;
        }
        if self.now < station.down_until {
            let at = station.down_until;
            return programs.at(at, Due::Start(n));
        }
        let thread = station.cpu.add();
        let program = &mut programs.list[n as usize];
        let mailbox = Rc::new(Mailbox::default());
        let flag = Arc::new(Flag::default());
        flag.raise();
        let seed = seed_of(programs.seed, "program", u64::from(n) << 32 | u64::from(who.life));
        let driver: Rc<dyn Driver> = mailbox.clone();
        program.life = Some(Box::new(Life {
            future: (program.start.run)(Rdma::new(driver)),
            mailbox,
            waker: Waker::from(flag.clone()),
            flag,
            thread,
            process: Process::default(),
            current: None,
            waits: Vec::new(),
            found: std::collections::VecDeque::new(),
            stop_asked: false,
            rng: fastrand::Rng::with_seed(seed),
            unwaited: 0,
            moment: self.now,
            at_once: 0,
        }));
        program.doing = Doing::Runs;
        self.tell_program(programs, n, "starts");
        programs.stations[host].cpu.wake(self.now, thread);
    }

    fn befall(&mut self, programs: &mut Programs, what: What) {
        match what {
            What::Stop(n) | What::Continue(n) | What::Ask(n) => {
                let (host, who) = (programs.host(n), programs.who(n));
                let Some(life) = programs.life(who) else { return };
                let thread = life.thread;
                let cpu = |programs: &mut Programs, stop: bool| {
                    let cpu = &mut programs.stations[host].cpu;
                    if stop { cpu.stop(self.now, thread) } else { cpu.cont(self.now, thread) }
                };
                match what {
                    What::Stop(_) => cpu(programs, true),
                    What::Continue(_) => cpu(programs, false),
                    _ => {
                        life.stop_asked = true;
                        self.programs.changed.push(host as u32);
                    }
                }
                let said = match what {
                    What::Stop(_) => "is stopped",
                    What::Continue(_) => "is continued",
                    _ => "is asked to end",
                };
                self.tell_program(programs, n, said);
            }
            What::Kill(n, again) => self.kill_program(programs, n, again),
            What::Crash(host, again) => self.crash_host(programs, host, again),
        }
    }

    /// Ends a program where it is; its objects are taken back.
    pub(super) fn kill_program(&mut self, programs: &mut Programs, n: u32, again: Option<u64>) {
        if programs.list[n as usize].life.is_some() {
            self.tell_program(programs, n, "is KILLED");
            let process = self.end_life(programs, n, false);
            let host = programs.host(n);
            self.end_one_rma(host, &process);
            process.end(self.now, &mut self.hosts.list[host], &mut programs.stations[host].left);
            // What its queue pairs owed is not owed any more.
            self.after_nic(host as u32, false);
            programs.list[n as usize].doing = Doing::Killed;
            self.start_again(programs, n, again);
        }
    }

    fn start_again(&mut self, programs: &mut Programs, n: u32, again: Option<u64>) {
        if let Some(after) = again {
            programs.list[n as usize].doing = Doing::Waits;
            programs.at(self.now + after, Due::Start(n));
        }
    }

    /// Ends a program's life. Whatever its destructors ask has no effect.
    pub(super) fn end_life(&mut self, programs: &mut Programs, n: u32, silent: bool) -> Process {
        let (host, who) = (programs.host(n), programs.who(n));
        let program = &mut programs.list[n as usize];
        let Some(life) = program.life.take() else { return Process::default() };
        program.lives += 1;
        life.mailbox.die();
        let Life { future, process, thread, .. } = *life;
        drop(future);
        programs.stations[host].cpu.kill(self.now, thread);
        let messages = programs.exchange.end(who, silent);
        programs.send(self.now, messages);
        process
    }

    fn crash_host(&mut self, programs: &mut Programs, host: u32, again: u64) {
        self.watch.journal.add(self.now, format_args!("host {host}"), "CRASHES");
        let here = |(n, p): (usize, &super::Program)| (p.start.host == host).then_some(n as u32);
        let all: Vec<u32> = programs.list.iter().enumerate().filter_map(here).collect();
        let mut gone = Vec::new();
        for n in all {
            let lived = programs.list[n as usize].life.is_some();
            if lived {
                gone.push(self.end_life(programs, n, true));
                programs.list[n as usize].doing = Doing::Killed;
                self.start_again(programs, n, Some(again));
            }
        }
        for process in &gone {
            self.end_one_rma(host as usize, process);
        }
        let hosts = self.hosts.list.len() as u32;
        let station = &mut programs.stations[host as usize];
        station.boots += 1;
        station.down_until = self.now + again;
        station.clock = programs.rng.u64(0..1_000_000_000_000);
        // The NIC goes before the memory that it knows of.
        let seed = seed_of(programs.seed, "boot", u64::from(host) << 32 | u64::from(station.boots));
        self.hosts.list[host as usize].reboot(seed, station.boots * hosts);
        self.forget_at_switch(host);
        if let Some(unit) = self.hosts.list[host as usize].unit.as_deref_mut() {
            unit.restart().into_iter().for_each(|packet| self.fabric.packets.give(packet));
        }
        let up = &self.fabric.links[self.hosts.list[host as usize].up as usize];
        let paused = if self.fabric.classes > 1 { up.paused } else { 0 };
        for class in (0..8).filter(|class| paused >> class & 1 != 0) {
            self.hosts.list[host as usize].nic.block_path(adverb_nic::PathId(class));
        }
        station.left = Leftovers::default();
        station.files.clear();
        drop(gone);
    }

    pub(super) fn who_wakes(&mut self, programs: &mut Programs, who: Who) {
        let host = programs.host(who.program);
        if let Some(thread) = programs.life(who).map(|life| life.thread) {
            programs.stations[host].cpu.wake(self.now, thread);
        }
    }
}
