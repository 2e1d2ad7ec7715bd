//! What a running chain did, in words: which WQE was fetched when, who changed it, what completed; and at the
//! end what went wrong: fetches that came too early, queues that nothing lets go on, conditions that were
//! false.
//!
//! A NIC that is watched tells it step by step ([`ChainEvent`]); here its numbers and bytes get the chain's
//! names.

use crate::WqeOp;
use crate::chain::{BLOCK, OPERAND, Peer, QueueId, WqeId, encode};
use crate::language::{Compare, Kind, Statement};
use crate::show::{self, Names, fields, short};
pub use adverb_nic::ChainEvent;
use adverb_nic::{Author, ChainStep, Change, Copied, WqePlace};
use adverb_rdma::{Instant, QpNumber, SendOrder, Status};
use std::collections::{BTreeMap, BTreeSet};

/// Something that was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// When.
    pub at: Instant,
    /// Who did it, or whom it concerns.
    pub who: String,
    /// The line of the program that it comes from, 0 for none.
    pub line: u32,
    /// What.
    pub what: String,
}

/// A story of a chain, as far as it was told.
pub struct Trace<'a> {
    names: Names<'a>,
    /// The WQEs' bytes as they are now.
    code: Vec<Vec<u8>>,
    lines: Vec<Line>,
    /// Who has changed a WQE since it was fetched last.
    changed: BTreeMap<(u16, u32), BTreeSet<String>>,
    stale: Vec<Stale>,
    /// By queue: the WAIT that it stands at, for which completion of which queue.
    waiting: BTreeMap<u16, (WqeId, u32, u32)>,
    /// By completion queue: how many completions it has had.
    produced: BTreeMap<u32, u64>,
    /// By queue: blocks that were fetched.
    fetched: BTreeMap<u16, u32>,
    /// Lines of WQEs that could have replied, and were NOPs.
    silent: BTreeSet<u32>,
    /// By line: whether the last comparison there found what it sought.
    compared: BTreeMap<u32, bool>,
}

/// A change that came after the fetch that should have seen it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stale {
    wqe: WqeId,
    fetched: Instant,
    changed: Instant,
    by: String,
    line: u32,
}

impl<'a> Trace<'a> {
    /// A chain that has been loaded and has done nothing yet.
    pub fn new(names: Names<'a>) -> Trace<'a> {
        let code = encode(names.chain, names.layout, names.addresses);
        Trace {
            names,
            code,
            lines: Vec::new(),
            changed: BTreeMap::new(),
            stale: Vec::new(),
            waiting: BTreeMap::new(),
            produced: BTreeMap::new(),
            fetched: BTreeMap::new(),
            silent: BTreeSet::new(),
            compared: BTreeMap::new(),
        }
    }

    /// What was seen, in its order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Takes in what the NIC has told.
    pub fn tell(&mut self, events: &[ChainEvent]) {
        let mut at = 0;
        while let Some(event) = events.get(at) {
            at += 1;
            let ChainStep::Changed(first) = &event.what else {
                self.step(event);
                continue;
            };
            // What one frame changes is one line.
            let mut changes = vec![&**first];
            while let Some(ChainEvent { at: when, what: ChainStep::Changed(next) }) = events.get(at)
                && *when == event.at
                && next.by == first.by
            {
                changes.push(next);
                at += 1;
            }
            self.change(event.at, first.by, &changes);
        }
    }

    fn step(&mut self, event: &ChainEvent) {
        let at = event.at;
        match &event.what {
            ChainStep::Fetched { first, blocks } => self.fetch(at, *first, *blocks),
            ChainStep::Executed { wqe, op } => self.execute(at, *wqe, *op),
            ChainStep::Refused { wqe, rule } => {
                if let Some(id) = self.wqe_at(*wqe) {
                    self.say(at, id, format!("refused: {rule}"));
                }
            }
            ChainStep::Waiting { wqe, cq, index, produced } => {
                let Some(id) = self.wqe_at(*wqe) else { return };
                self.produced.insert(*cq, *produced);
                self.waiting.insert(id.queue.0, (id, *cq, *index));
                let what = format!("waits for {}[{index}], which has had {produced}", self.names.cq(*cq));
                self.say(at, id, what);
            }
            ChainStep::Compared { by, qp, offset, found, compare, .. } => {
                self.compare(at, *by, (*qp, *offset), *found, *compare);
            }
            ChainStep::Completed { cq, index, qp, status, end } => {
                self.produced.insert(*cq, index + 1);
                self.complete(at, *qp, *status, *end);
            }
            ChainStep::Changed(_) => {}
        }
    }

    fn say(&mut self, at: Instant, wqe: WqeId, what: String) {
        let line = self.names.chain.wqe(wqe).line;
        self.lines.push(Line { at, who: short(self.names.chain, wqe), line, what });
    }

    /// The queue of a queue pair.
    fn queue(&self, qp: QpNumber) -> Option<QueueId> {
        let at = self.names.addresses.queues.iter().position(|(_, number, ..)| *number == qp.get())?;
        Some(QueueId(at as u16))
    }

    /// The WQE whose blocks a free-running one is among.
    fn wqe_at(&self, place: WqePlace) -> Option<WqeId> {
        let queue = self.queue(place.qp)?;
        self.wqe_of(queue, place.block)
    }

    fn wqe_of(&self, queue: QueueId, block: u32) -> Option<WqeId> {
        let layout = self.names.layout;
        let inside = match self.names.chain.queue_of(queue).recycled {
            true => block % layout.ring(queue).max(1),
            false => block,
        };
        (0..=inside).rev().find_map(|block| layout.wqe_at(queue, block))
    }

    fn bytes(&self, wqe: WqeId) -> &[u8] {
        let start = self.names.layout.block(wqe) as usize * BLOCK;
        self.code[usize::from(wqe.queue.0)].get(start..).unwrap_or_default()
    }

    fn fetch(&mut self, at: Instant, first: WqePlace, blocks: u32) {
        let Some(queue) = self.queue(first.qp) else { return };
        let end = first.block.wrapping_add(blocks);
        self.fetched.insert(queue.0, end);
        let mut last = None;
        for block in (0..blocks).map(|ahead| first.block.wrapping_add(ahead)) {
            let Some(wqe) = self.wqe_of(queue, block).filter(|wqe| last != Some(*wqe)) else { continue };
            last = Some(wqe);
            let chain = self.names.chain;
            let mut what = "fetched".to_owned();
            if chain.wqe(wqe).posted.is_some() {
                what += &format!(": {}", show::code_name(self.bytes(wqe).get(3).copied().unwrap_or(0)));
            }
            if let Some(by) = self.changed.remove(&(queue.0, wqe.at)) {
                what += &format!(" (as changed by {})", by.into_iter().collect::<Vec<_>>().join(", "));
            }
            self.say(at, wqe, what);
        }
    }

    fn execute(&mut self, at: Instant, place: WqePlace, op: WqeOp) {
        let Some(wqe) = self.wqe_at(place) else { return };
        let (chain, queue) = (self.names.chain, wqe.queue.0);
        if self.waiting.remove(&queue).is_some() {
            self.say(at, wqe, "goes on".to_owned());
            return;
        }
        match op {
            WqeOp::SendEnable | WqeOp::RecvEnable => {
                let text = show::words(self.bytes(wqe), 2, Some(self.names));
                let what = text.split_once(' ').map_or("", |(_, rest)| rest.trim()).to_owned();
                self.say(at, wqe, format!("enables {what}"));
            }
            _ if chain.wqe(wqe).posted.is_some() => {
                if op == WqeOp::Nop && chain.queue_of(wqe.queue).peer == Peer::Client {
                    self.silent.insert(chain.wqe(wqe).line);
                }
                self.say(at, wqe, format!("executed: {}", show::name(op)));
            }
            _ => {}
        }
    }

    fn author(&self, by: Author) -> (String, u32) {
        match by {
            Author::Host => ("host".to_owned(), 0),
            Author::Message(_) => ("recv".to_owned(), 0),
            Author::Peer(..) => ("peer".to_owned(), 0),
            Author::Wqe(place, _) => match self.wqe_at(place) {
                Some(wqe) => (short(self.names.chain, wqe), self.names.chain.wqe(wqe).line),
                None => (format!("qp {}", place.qp), 0),
            },
        }
    }

    fn change(&mut self, at: Instant, by: Author, changes: &[&Change]) {
        let (who, line) = self.author(by);
        let mut said = Vec::new();
        for change in changes {
            let Some(queue) = self.queue(change.qp) else { continue };
            let Some(wqe) = self.wqe_of(queue, change.block) else { continue };
            said.extend(self.fields(wqe, change));
            let from = change.block as usize * BLOCK;
            if let Some(block) = self.code[usize::from(queue.0)].get_mut(from..from + BLOCK) {
                block.copy_from_slice(&change.after);
            }
            self.changed.entry((queue.0, wqe.at)).or_default().insert(who.clone());
            let recycled = self.names.chain.queue_of(queue).recycled;
            let fetched = match change.copy {
                Copied::AtHand(fetched) => fetched,
                // In a ring the next lap sees it.
                Copied::Executed(fetched) if !recycled => fetched,
                _ => continue,
            };
            if self.stale.iter().all(|stale| stale.wqe != wqe || stale.by != who) {
                self.stale.push(Stale { wqe, fetched, changed: at, by: who.clone(), line });
            }
        }
        if !said.is_empty() {
            let verb = match by {
                Author::Wqe(place, _) => self.wqe_at(place).map_or("", |wqe| self.verb(wqe)),
                Author::Message(_) => "message",
                Author::Host => "stores",
                Author::Peer(..) => "request",
            };
            self.lines.push(Line { at, who, line, what: format!("{verb}: {}", said.join(", ")) });
        }
    }

    fn verb(&self, wqe: WqeId) -> &'static str {
        self.bytes(wqe).get(3).map_or("", |code| show::code_name(*code))
    }

    /// The fields that a change of a block has changed.
    fn fields(&self, wqe: WqeId, change: &Change) -> Vec<String> {
        let chain = self.names.chain;
        let name = short(chain, wqe);
        // Where the block begins within the WQE.
        let ring = self.names.layout.ring(wqe.queue).max(1);
        let start = ((change.block % ring) as usize * BLOCK)
            .saturating_sub(self.names.layout.block(wqe) as usize * BLOCK);
        let mut said = Vec::new();
        if start == 0 && OPERAND.iter().any(|at| differs(change, usize::from(*at)..usize::from(*at) + 1)) {
            let operand: Vec<u8> = OPERAND.iter().map(|at| change.after[usize::from(*at)]).collect();
            said.push(format!("{name}.operand = {}", show::hex(&operand)));
        }
        for (label, first, len) in fields(chain.wqe(wqe)) {
            let Some(first) = first.checked_sub(start).filter(|first| first + len <= BLOCK) else { continue };
            if label != "ctrl" && differs(change, first..first + len) {
                let value = self.names.value(label, &change.after[first..first + len]);
                said.push(format!("{name}.{label} = {value}"));
            }
        }
        said
    }

    fn compare(
        &mut self,
        at: Instant,
        by: Author,
        (qp, offset): (QpNumber, usize),
        found: u64,
        compare: u64,
    ) {
        let (who, line) = self.author(by);
        self.compared.insert(line, found == compare);
        if found == compare {
            return;
        }
        let Some(wqe) = self.queue(qp).and_then(|queue| self.wqe_of(queue, (offset / BLOCK) as u32)) else {
            return;
        };
        let (is, sought) = (show::control(found), show::control(compare));
        let name = short(self.names.chain, wqe);
        let what = format!("cas: {name}.ctrl is {is}, not {sought}: unchanged");
        self.lines.push(Line { at, who, line, what });
    }

    fn complete(&mut self, at: Instant, qp: QpNumber, status: Status, end: Option<u32>) {
        let Some(queue) = self.queue(qp) else { return };
        let Some(end) = end else {
            let name = &self.names.chain.queue_of(queue).name;
            let what = format!("{name}: a message has come");
            self.lines.push(Line { at, who: "server".to_owned(), line: 0, what });
            return;
        };
        let Some(wqe) = self.wqe_of(queue, end.wrapping_sub(1)) else { return };
        let what = match status {
            Status::Success => "done".to_owned(),
            status => format!("failed: {status:?}"),
        };
        self.say(at, wqe, what);
    }

    /// Changes that had no effect, in words, with times counted from `begin`.
    pub fn stale(&self, begin: Instant) -> Vec<String> {
        let chain = self.names.chain;
        let words = |stale: &Stale| {
            let Stale { wqe, by, .. } = stale;
            let advice = match chain.queue_of(wqe.queue).order {
                SendOrder::Managed => format!("its ENABLE came too early: it belongs behind a WAIT for {by}"),
                _ => format!("unmanaged queue; managed, or an ENABLE after {by}"),
            };
            let line = match (stale.line, chain.wqe(*wqe).line) {
                (0, 0) => String::new(),
                (0, line) | (line, _) => format!("line {line}: "),
            };
            format!(
                "{line}{} was fetched at {:.2} us, before {by} changed it at {:.2} us: the change has no \
                 effect ({advice})",
                short(chain, *wqe),
                micros(stale.fetched, begin),
                micros(stale.changed, begin),
            )
        };
        self.stale.iter().map(words).collect()
    }

    /// Queues that have not come to their end, and what each of them waits for. Where the program has
    /// `ended`, loops may stand at a WAIT that nobody will meet.
    pub fn stuck(&self, ended: bool) -> Vec<String> {
        let chain = self.names.chain;
        let mut out = Vec::new();
        for (q, queue) in chain.queues.iter().enumerate() {
            let id = QueueId(q as u16);
            if let Some((wqe, cq, index)) = self.waiting.get(&id.0).filter(|_| !ended) {
                out.push(self.waits(*wqe, *cq, *index));
                continue;
            }
            let (fetched, all) =
                (self.fetched.get(&id.0).copied().unwrap_or(0), self.names.layout.blocks(chain, id));
            if queue.order == SendOrder::Managed && fetched < all && !queue.recycled {
                let next = self.wqe_of(id, fetched).map_or_else(String::new, |wqe| short(chain, wqe));
                let far = if fetched == 0 { "was never enabled" } else { "is enabled no further" };
                out.push(format!("stuck: queue {} {far}: {next} stands at block {fetched}", queue.name));
            }
        }
        out
    }

    fn waits(&self, wqe: WqeId, cq: u32, index: u32) -> String {
        let chain = self.names.chain;
        let had = self.produced.get(&cq).copied().unwrap_or(0);
        let text = format!(
            "stuck: {} waits for {}[{index}], and that has had {had}",
            short(chain, wqe),
            self.names.cq(cq)
        );
        // Whose WQEs complete there.
        let queues = &self.names.addresses.queues;
        let mut makers = (0..queues.len()).filter(|q| queues[*q].2 == cq);
        let own = usize::from(wqe.queue.0);
        match (makers.next(), makers.next()) {
            (Some(one), None) if one == own => {
                let behind = chain.queues[own].wqes[wqe.at as usize..].iter().filter(|wqe| wqe.signaled);
                match behind.count() {
                    0 => format!("{text}: no WQE completes there any more"),
                    _ => format!("{text}: what is missing would come from behind it, so never"),
                }
            }
            _ => text,
        }
    }

    /// The lines of replies that were turned off.
    pub fn silent(&self) -> impl Iterator<Item = u32> {
        self.silent.iter().copied()
    }

    /// The lines whose conditions were false the last time that they were tested.
    pub fn false_conditions(&self, body: &[Statement]) -> Vec<u32> {
        let mut out = Vec::new();
        for statement in body {
            match &statement.kind {
                Kind::If(condition, then, otherwise) => {
                    let holds = match (condition.compare, self.compared.get(&statement.line)) {
                        (Compare::Equal, Some(equal)) => Some(*equal),
                        (Compare::NotEqual, Some(equal)) => Some(!equal),
                        _ => None,
                    };
                    if holds == Some(false) {
                        out.push(statement.line);
                    }
                    out.extend(self.false_conditions(then));
                    out.extend(self.false_conditions(otherwise));
                }
                Kind::Loop(_, _, body) => out.extend(self.false_conditions(body)),
                _ => {}
            }
        }
        out
    }
}

fn differs(change: &Change, bytes: std::ops::Range<usize>) -> bool {
    change.before[bytes.clone()] != change.after[bytes]
}

/// Microseconds since the beginning; below 0 for what came before.
fn micros(at: Instant, begin: Instant) -> f64 {
    (at.as_ps() as f64 - begin.as_ps() as f64) / 1e6
}

/// A line in words, at so long after the beginning.
pub fn words(line: &Line, begin: Instant) -> String {
    let place = if line.line > 0 { format!("line {}", line.line) } else { String::new() };
    format!("{:>9.3}  {:<8} {place:<8} {}", micros(line.at, begin), line.who, line.what)
}
