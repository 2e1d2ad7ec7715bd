//! The exchange of attributes: programs listen under names, others ask there. Its way is apart from the
//! fabric's, as a TCP connection's over a management network is: it takes a fixed time, and loses nothing.
//!
//! ```text
//! ask ── delay ──► asked ── reply ── delay ──► told
//!  ▲                 │
//!  └── the listener is gone: asked again when somebody listens under the name
//! ```

use adverb_rdma::seam::{LineId, ListenerId, Ticket};
use std::collections::VecDeque;

/// A program in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Who {
    pub program: u32,
    pub life: u32,
}

struct Listener {
    who: Who,
    name: String,
    open: bool,
    /// Questions that were heard and not taken.
    heard: VecDeque<LineId>,
}

enum Stage {
    /// On its way to the name, or waiting for somebody to listen there.
    Asking,
    /// Heard by a listener.
    Heard,
    /// Taken by its program, which has not replied.
    Taken,
    /// The reply is on its way, or there.
    Told,
    /// The asker does not wait any more.
    Dropped,
}

struct Line {
    name: String,
    question: Vec<u8>,
    asker: Who,
    ticket: Ticket,
    answerer: Option<Who>,
    stage: Stage,
    /// Asker, answerer: has left, and the other knows it.
    left: [bool; 2],
    known: [bool; 2],
}

/// All listeners and lines of a run.
#[derive(Default)]
pub(super) struct Exchange {
    listeners: Vec<Listener>,
    lines: Vec<Line>,
}

/// Something to do after the exchange's delay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Message {
    /// A question arrives.
    Question(LineId),
    /// The end that the other left learns of it: 0 the asker, 1 the answerer.
    Left(LineId, usize),
}

impl Exchange {
    /// Listens under a name; `None` when another program does. Questions that nobody has heard so far are to
    /// be sent again.
    pub fn listen(&mut self, who: Who, name: &str) -> Option<(ListenerId, Vec<Message>)> {
        if self.listeners.iter().any(|l| l.open && l.name == name) {
            return None;
        }
        self.listeners.push(Listener { who, name: name.to_owned(), open: true, heard: VecDeque::new() });
        let waits = |line: &Line| matches!(line.stage, Stage::Asking) && line.name == name;
        let waiting = self.lines.iter().enumerate().filter(|(_, line)| waits(line));
        let again = waiting.map(|(n, _)| Message::Question(LineId(n as u32))).collect();
        Some((ListenerId(self.listeners.len() as u32 - 1), again))
    }

    fn listener(&self, who: Who, id: ListenerId) -> Option<&Listener> {
        self.listeners.get(id.0 as usize).filter(|l| l.who == who && l.open)
    }

    /// Whether a question waits to be taken; `None` if there is no such listener.
    pub fn has_question(&self, who: Who, id: ListenerId) -> Option<bool> {
        self.listener(who, id).map(|l| !l.heard.is_empty())
    }

    /// The oldest question; the outer `None` if there is no such listener.
    pub fn accept(&mut self, who: Who, id: ListenerId) -> Option<Option<(LineId, Vec<u8>)>> {
        self.listener(who, id)?;
        let line = self.listeners[id.0 as usize].heard.pop_front();
        Some(line.map(|id| {
            let line = &mut self.lines[id.0 as usize];
            line.stage = Stage::Taken;
            (id, line.question.clone())
        }))
    }

    /// A question is on its way.
    pub fn ask(&mut self, asker: Who, ticket: Ticket, name: &str, question: Vec<u8>) -> LineId {
        self.lines.push(Line {
            name: name.to_owned(),
            question,
            asker,
            ticket,
            answerer: None,
            stage: Stage::Asking,
            left: [false; 2],
            known: [false; 2],
        });
        LineId(self.lines.len() as u32 - 1)
    }

    /// A question arrives under its name; the program that hears it, if one listens.
    pub fn arrive(&mut self, id: LineId) -> Option<Who> {
        let line = &mut self.lines[id.0 as usize];
        if !matches!(line.stage, Stage::Asking) {
            return None;
        }
        let at = self.listeners.iter().position(|l| l.open && l.name == line.name)?;
        let listener = &mut self.listeners[at];
        line.stage = Stage::Heard;
        line.answerer = Some(listener.who);
        listener.heard.push_back(id);
        Some(listener.who)
    }

    /// A reply to a question that the program has taken. Says whom to tell; nobody, if the asker has left.
    /// `None` if there is no such question.
    pub fn reply(&mut self, who: Who, id: LineId) -> Option<Option<(Who, Ticket)>> {
        let line = self.lines.get_mut(id.0 as usize)?;
        match line.stage {
            Stage::Taken if line.answerer == Some(who) => {
                line.stage = Stage::Told;
                Some(Some((line.asker, line.ticket)))
            }
            Stage::Dropped if line.answerer == Some(who) => Some(None),
            _ => None,
        }
    }

    /// The asker waits no longer for a reply. True if it did.
    pub fn give_up(&mut self, who: Who, ticket: Ticket) -> bool {
        let waits = |line: &&mut Line| {
            (line.asker, line.ticket) == (who, ticket) && !matches!(line.stage, Stage::Told | Stage::Dropped)
        };
        let Some(line) = self.lines.iter_mut().find(waits) else { return false };
        line.stage = Stage::Dropped;
        line.left[0] = true;
        true
    }

    /// Whether the other end of the program's line is known to have left; `None` if it has no such line.
    pub fn is_gone(&self, who: Who, id: LineId) -> Option<bool> {
        let line = self.lines.get(id.0 as usize)?;
        let end = line.end_of(who)?;
        Some(line.known[1 - end])
    }

    /// A program leaves a line; the other end may be told.
    pub fn leave(&mut self, who: Who, id: LineId) -> Option<Message> {
        let line = self.lines.get_mut(id.0 as usize)?;
        let end = line.end_of(who)?;
        if end == 1 && matches!(line.stage, Stage::Taken) {
            // A question that was refused is asked again, as after a connection that was closed.
            (line.stage, line.answerer) = (Stage::Asking, None);
            return Some(Message::Question(id));
        }
        line.left[end] = true;
        Some(Message::Left(id, 1 - end))
    }

    /// An end learns that the other has left; who that is, if it is there.
    pub fn learn(&mut self, id: LineId, end: usize) -> Option<Who> {
        let line = &mut self.lines[id.0 as usize];
        line.known[1 - end] = true;
        if end == 0 { Some(line.asker) } else { line.answerer }
    }

    /// A program has no listener of this name any more.
    pub fn unlisten(&mut self, who: Who, id: ListenerId) -> Vec<Message> {
        match self.listeners.get_mut(id.0 as usize).filter(|l| l.who == who && l.open) {
            Some(listener) => {
                listener.open = false;
                let heard = core::mem::take(&mut listener.heard);
                heard.into_iter().filter_map(|line| self.ask_again(line)).collect()
            }
            None => Vec::new(),
        }
    }

    fn ask_again(&mut self, id: LineId) -> Option<Message> {
        let line = &mut self.lines[id.0 as usize];
        let open = matches!(line.stage, Stage::Heard | Stage::Taken);
        if open {
            (line.stage, line.answerer) = (Stage::Asking, None);
        }
        open.then_some(Message::Question(id))
    }

    /// A program has ended. Its peers learn of it, unless it is `silent`: its host crashed.
    pub fn end(&mut self, who: Who, silent: bool) -> Vec<Message> {
        let mut messages = Vec::new();
        let own = |(n, l): (usize, &Listener)| (l.who == who && l.open).then_some(ListenerId(n as u32));
        let listeners: Vec<ListenerId> = self.listeners.iter().enumerate().filter_map(own).collect();
        for id in listeners {
            messages.append(&mut self.unlisten(who, id));
        }
        for n in 0..self.lines.len() {
            let (id, line) = (LineId(n as u32), &mut self.lines[n]);
            let Some(end) = line.end_of(who) else { continue };
            if end == 0 && !matches!(line.stage, Stage::Told) {
                line.stage = Stage::Dropped;
            }
            if end == 1 && matches!(line.stage, Stage::Taken) {
                messages.extend(self.ask_again(id));
            } else if !core::mem::replace(&mut line.left[end], true) && !silent {
                messages.push(Message::Left(id, 1 - end));
            }
        }
        messages
    }
}

impl Line {
    fn end_of(&self, who: Who) -> Option<usize> {
        if self.asker == who { Some(0) } else { (self.answerer == Some(who)).then_some(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Who = Who { program: 0, life: 0 };
    const B: Who = Who { program: 1, life: 0 };

    #[test]
    fn a_question_is_heard_taken_and_answered() {
        let mut exchange = Exchange::default();
        let early = exchange.ask(A, Ticket(3), "b", vec![1]);
        assert_eq!(exchange.arrive(early), None, "nobody listens yet");
        let (listener, again) = exchange.listen(B, "b").unwrap();
        assert_eq!(again, [Message::Question(early)]);
        assert!(exchange.listen(A, "b").is_none(), "one program for a name");
        assert_eq!(exchange.has_question(B, listener), Some(false));
        assert_eq!(exchange.arrive(early), Some(B));
        assert_eq!(exchange.has_question(B, listener), Some(true));
        assert_eq!(exchange.has_question(A, listener), None, "another program's");
        assert_eq!(exchange.reply(B, early), None, "not taken yet");
        assert_eq!(exchange.accept(B, listener), Some(Some((early, vec![1]))));
        assert_eq!(exchange.accept(B, listener), Some(None));
        assert_eq!(exchange.reply(B, early), Some(Some((A, Ticket(3)))));
        assert_eq!(exchange.reply(B, early), None, "once");
        // Its end is learnt after a while, and only by the other.
        assert_eq!(exchange.is_gone(A, early), Some(false));
        assert_eq!(exchange.end(B, false), [Message::Left(early, 0)]);
        assert_eq!(exchange.is_gone(A, early), Some(false));
        assert_eq!(exchange.learn(early, 0), Some(A));
        assert_eq!((exchange.is_gone(A, early), exchange.is_gone(B, early)), (Some(true), Some(false)));
    }

    #[test]
    fn a_question_outlives_who_was_asked() {
        let mut exchange = Exchange::default();
        let (first, _) = exchange.listen(B, "b").unwrap();
        let lines = [0, 1].map(|n| exchange.ask(A, Ticket(n), "b", vec![]));
        for line in lines {
            exchange.arrive(line);
        }
        exchange.accept(B, first).unwrap().unwrap();
        // One was taken, one heard: both are asked again.
        assert_eq!(exchange.end(B, true).len(), 2);
        assert_eq!(exchange.arrive(lines[0]), None);
        let again = Who { life: 1, ..B };
        let (second, messages) = exchange.listen(again, "b").unwrap();
        assert_eq!(messages.len(), 2);
        assert_eq!(exchange.arrive(lines[0]), Some(again));
        // Who waits no longer is not told.
        assert!(exchange.give_up(A, Ticket(1)) && !exchange.give_up(A, Ticket(1)));
        assert_eq!(exchange.arrive(lines[1]), None);
        exchange.accept(again, second).unwrap().unwrap();
        assert!(exchange.give_up(A, Ticket(0)));
        assert_eq!(exchange.reply(again, lines[0]), Some(None));
    }

    #[test]
    fn a_host_that_crashed_says_nothing() {
        let mut exchange = Exchange::default();
        let (listener, _) = exchange.listen(B, "b").unwrap();
        let line = exchange.ask(A, Ticket(0), "b", vec![]);
        exchange.arrive(line);
        exchange.accept(B, listener);
        exchange.reply(B, line);
        assert_eq!(exchange.end(B, true), []);
        assert_eq!(exchange.leave(A, line), Some(Message::Left(line, 1)));
    }
}
