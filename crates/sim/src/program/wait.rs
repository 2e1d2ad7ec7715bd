//! Calls that wait for something to happen: conditions, deadlines, answers of other programs.

use super::exchange::{Message, Who};
use super::{Current, Due, Programs};
use crate::host::Host;
use crate::sim::Sim;
use adverb_rdma::Error;
use adverb_rdma::seam::{Answer, Call, Ticket, Wait};

/// A call that waits. Its thread may sleep meanwhile.
pub(super) struct Waiting {
    pub ticket: Ticket,
    /// Conditions; none of a question, which waits for its answer.
    pub waits: Vec<Wait>,
    /// The NIC has written an awaited word, and a processor sees that then.
    pub seen_at: Option<u64>,
}

/// In [`Current::progress`] of a call that waited: the deadline has come.
pub(super) const LATE: usize = usize::MAX;

impl Sim {
    /// Something of a host has changed: which of its programs have waited for that? What the NIC has written
    /// takes so long to be seen (`pcie-write`); what a program has stored is seen at once.
    pub(super) fn look_at_waits(&mut self, programs: &mut Programs, h: u32, late: u64) {
        for n in 0..programs.list.len() as u32 {
            if programs.host(n) != h as usize {
                continue;
            }
            let who = programs.who(n);
            let Some(life) = programs.life(who) else { continue };
            let mut waits = core::mem::take(&mut life.waits);
            let mut met = Vec::new();
            let now = self.now;
            waits.retain_mut(|waiting| match self.first_that_holds(programs, n, &waiting.waits) {
                Ok(None) => {
                    waiting.seen_at = None;
                    true
                }
                Ok(Some(at))
                    if matches!(waiting.waits[at], Wait::Word { .. })
                        && waiting.seen_at.map_or(late > 0, |seen| seen > now) =>
                {
                    if waiting.seen_at.is_none() {
                        waiting.seen_at = Some(now + late);
                        programs.at(now + late, Due::Look(h));
                    }
                    true
                }
                found => {
                    met.push((waiting.ticket, core::mem::take(&mut waiting.waits), found));
                    false
                }
            });
            if let Some(life) = programs.life(who) {
                life.waits = waits;
            }
            for (ticket, waits, found) in met {
                match found {
                    Ok(found) => self.find(programs, who, ticket, (waits, found.map_or(LATE, |at| at + 1))),
                    Err(error) => self.answer(programs, who, ticket, Err(error)),
                }
            }
        }
    }

    /// A call's condition holds, as its program finds out when it runs again.
    fn find(
        &mut self,
        programs: &mut Programs,
        who: Who,
        ticket: Ticket,
        (waits, progress): (Vec<Wait>, usize),
    ) {
        programs.due.retain(|_, due| !matches!(due, Due::Deadline(w, t) if (*w, *t) == (who, ticket)));
        if let Some(life) = programs.life(who) {
            let call = Call::Until { waits, deadline: None };
            life.found.push_back(Current { ticket, call, progress, bytes: Vec::new() });
        }
        self.who_wakes(programs, who);
    }

    /// The first condition that holds.
    pub(super) fn first_that_holds(
        &mut self,
        programs: &mut Programs,
        n: u32,
        waits: &[Wait],
    ) -> Result<Option<usize>, Error> {
        for (index, wait) in waits.iter().enumerate() {
            if self.holds(programs, n, wait)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn holds(&mut self, programs: &mut Programs, n: u32, wait: &Wait) -> Result<bool, Error> {
        let (host, who) = (programs.host(n), programs.who(n));
        let Host { nic, unit, .. } = &mut self.hosts.list[host];
        let left = Error::NoSuchObject("line");
        match *wait {
            Wait::Asked(id) => programs.exchange.has_question(who, id).ok_or(Error::NoSuchObject("listener")),
            Wait::Gone(id) => programs.exchange.is_gone(who, id).ok_or(left),
            Wait::Stop => Ok(programs.life(who).is_some_and(|life| life.stop_asked)),
            Wait::Cq(cq) => {
                let Some(life) = programs.life(who) else { return Ok(false) };
                let cq = super::process::Process::own(&life.process.cqs, cq, "completion queue")?;
                // With hardware, a completion is written before a processor can find it.
                let found = unit.as_deref().is_none_or(|unit| unit.has_visible(cq));
                Ok(nic.holds_completion(cq)? && found)
            }
            Wait::Word { memory, at, seen } => {
                let Some(life) = programs.life(who) else { return Ok(false) };
                let piece = life.process.memory(memory, at, 8)?;
                Ok(piece.word(nic, at)? != seen)
            }
        }
    }

    pub(super) fn on_wait_deadline(&mut self, programs: &mut Programs, who: Who, ticket: Ticket) {
        let Some(life) = programs.life(who) else { return };
        let Some(at) = life.waits.iter().position(|waiting| waiting.ticket == ticket) else { return };
        let waiting = life.waits.remove(at);
        if programs.exchange.give_up(who, ticket) {
            return self.answer(programs, who, ticket, Err(Error::NoAnswer));
        }
        self.find(programs, who, ticket, (waiting.waits, LATE));
    }

    /// Something arrives in the exchange.
    pub(super) fn carry(&mut self, programs: &mut Programs, message: Message) {
        let to = match message {
            Message::Question(line) => programs.exchange.arrive(line),
            Message::Left(line, end) => programs.exchange.learn(line, end),
        };
        if let Some(who) = to {
            let host = programs.host(who.program) as u32;
            if !self.programs.changed.contains(&host) {
                self.programs.changed.push(host);
            }
        }
    }

    /// Answers a call that waited.
    pub(super) fn answer(
        &mut self,
        programs: &mut Programs,
        who: Who,
        ticket: Ticket,
        answer: Result<Answer, Error>,
    ) {
        let Some(life) = programs.life(who) else { return };
        life.waits.retain(|waiting| waiting.ticket != ticket);
        let mailbox = life.mailbox.clone();
        if self.watch.journal.is_on() {
            let what = format!("is answered: {}", super::words::answer(&answer));
            self.tell_program(programs, who.program, &what);
        }
        mailbox.answer(ticket, answer);
        self.who_wakes(programs, who);
    }
}
