//! A trace that is being made: tracks, what is on them, and the order in which it is written.

use super::proto::{self, Event, Kind};
use adverb_nic::Followed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Write};

/// What a trace has in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Tracks of hosts, or of a host's processes.
    pub hosts: usize,
    /// Tracks of queue pairs.
    pub queue_pairs: usize,
    /// Slices: of messages, at either end.
    pub messages: usize,
    /// Packets that NICs gave.
    pub packets: usize,
    /// Those that a NIC took.
    pub taken: usize,
    /// Those that were lost or dropped.
    pub lost: usize,
    /// Values of counters.
    pub samples: usize,
    /// Packets, and steps of requests, that came after too many others, and are not in it.
    pub missed: u64,
}

/// What a track is of. They are written in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "names say it")]
pub enum Row {
    /// A host, or a process of one.
    Host(u32),
    /// A queue pair by its number; messages that lie across one another have rows of their own.
    Pair(u32, u32, u32),
    Window(u32, u32),
    Unacked(u32, u32),
    /// Requests that were posted and have not ended.
    Requests(u32, u32),
    Rate(u32, u32),
    Links,
    Link(u32),
    Queue(u32),
}

impl Row {
    fn parent(self) -> Option<Row> {
        match self {
            Row::Host(_) | Row::Links => None,
            Row::Pair(h, ..) => Some(Row::Host(h)),
            Row::Window(h, qp) | Row::Unacked(h, qp) | Row::Requests(h, qp) | Row::Rate(h, qp) => {
                Some(Row::Pair(h, qp, 0))
            }
            Row::Link(_) => Some(Row::Links),
            Row::Queue(l) => Some(Row::Link(l)),
        }
    }

    /// Its name, and the unit of what it counts; `place` names hosts and links.
    fn name(self, place: &dyn Fn(Row) -> String) -> (String, Option<&'static str>) {
        match self {
            Row::Host(_) | Row::Link(_) => (place(self), None),
            Row::Pair(_, qp, 0) => (format!("qp {qp:#x}"), None),
            Row::Pair(_, qp, n) => (format!("qp {qp:#x} ({})", n + 1), None),
            Row::Window(..) => ("window".to_owned(), Some("packets")),
            Row::Unacked(..) => ("unacknowledged".to_owned(), Some("packets")),
            Row::Requests(..) => ("requests".to_owned(), Some("requests")),
            Row::Rate(..) => ("rate".to_owned(), Some("Gb/s")),
            Row::Links => ("links".to_owned(), None),
            Row::Queue(_) => ("queue".to_owned(), Some("bytes")),
        }
    }
}

/// What is written at a time. At the same time slices begin first and end last, and a flow ends after it has
/// begun.
#[derive(Clone, Debug)]
enum What {
    Begin { name: String, words: [(&'static str, u64); 2] },
    Instant { name: String, flow: (Option<u64>, Option<u64>) },
    Value(f64),
    End,
}

impl What {
    fn order(&self) -> u8 {
        match self {
            What::Begin { .. } => 0,
            What::Instant { flow: (_, None), .. } | What::Value(_) => 1,
            What::Instant { .. } => 2,
            What::End => 3,
        }
    }
}

/// A message, from when it was posted until it has ended, in ns.
#[derive(Clone, Debug)]
pub struct Slice {
    /// From and to.
    pub span: (u64, u64),
    /// Host and queue pair.
    pub pair: (u32, u32),
    /// What tells it from others that begin with it.
    pub order: u64,
    /// Its name.
    pub name: String,
    /// What else is said of it.
    pub words: [(&'static str, u64); 2],
}

/// A packet somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// A NIC gave it.
    Sent,
    /// A NIC took it.
    Taken,
    /// It ended at a link's end.
    Lost,
}

/// A trace that is being made.
#[derive(Debug, Default)]
pub struct Trace {
    rows: BTreeSet<Row>,
    /// (time in ns, what stands first at that time, row, what).
    events: Vec<(u64, u8, Row, What)>,
    written: Written,
}

impl Trace {
    /// One with so many hosts, or processes; so much is not in it.
    pub fn new(hosts: u32, missed: u64) -> Trace {
        let written = Written { missed, ..Written::default() };
        Trace { rows: (0..hosts).map(Row::Host).collect(), events: Vec::new(), written }
    }

    fn add(&mut self, at: u64, row: Row, what: What) {
        let mut needed = Some(row);
        while let Some(row) = needed.filter(|row| self.rows.insert(*row)) {
            needed = row.parent();
        }
        self.events.push((at, what.order(), row, what));
    }

    /// A counter has this value from now on.
    pub fn value(&mut self, at: u64, row: Row, value: f64) {
        self.add(at, row, What::Value(value));
        self.written.samples += 1;
    }

    /// A packet: `named` says what it is, `flow` the flow that begins here and the one that ends here.
    pub fn packet(
        &mut self,
        at: u64,
        row: Row,
        (fate, named): (Fate, &str),
        flow: (Option<u64>, Option<u64>),
    ) {
        let (verb, count) = match fate {
            Fate::Sent => ("sends", &mut self.written.packets),
            Fate::Taken => ("takes", &mut self.written.taken),
            Fate::Lost => ("loses", &mut self.written.lost),
        };
        *count += 1;
        self.add(at, row, What::Instant { name: format!("{verb} {named}"), flow });
    }

    /// Messages as slices: those of a queue pair that lie across one another come into rows of their own.
    pub fn slices(&mut self, mut slices: Vec<Slice>) {
        slices.sort_by_key(|slice| (slice.span, slice.order));
        // The end of the last slice of each row of a queue pair.
        let mut rows: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        for Slice { span: (from, to), pair: (host, qp), name, words, .. } in slices {
            let ends = rows.entry((host, qp)).or_default();
            let free = ends.iter().position(|end| *end < from);
            let at = free.unwrap_or(ends.len());
            match free {
                Some(at) => ends[at] = to,
                None => ends.push(to),
            }
            let row = Row::Pair(host, qp, at as u32);
            self.add(from, row, What::Begin { name, words });
            self.add(to, row, What::End);
            self.written.messages += 1;
        }
    }

    /// Writes it; `place` names hosts and links.
    pub fn write(mut self, out: &mut dyn Write, place: &dyn Fn(Row) -> String) -> io::Result<Written> {
        let uuids: BTreeMap<Row, u64> = self.rows.iter().copied().zip(1..).collect();
        for (row, uuid) in &uuids {
            let (name, unit) = row.name(place);
            let parent = row.parent().map(|parent| uuids[&parent]);
            out.write_all(&proto::track(*uuid, parent, &name, unit))?;
            match row {
                Row::Host(_) => self.written.hosts += 1,
                Row::Pair(.., 0) => self.written.queue_pairs += 1,
                _ => {}
            }
        }
        // Of one time and order, as it was noted.
        self.events.sort_by_key(|event| (event.0, event.1));
        for (at, _, row, what) in &self.events {
            let (none, blank) = (&[][..], (None, None));
            let (kind, name, annotations, flow, value) = match what {
                What::Begin { name, words } => (Kind::Begin, name.as_str(), &words[..], blank, 0.0),
                What::Instant { name, flow } => (Kind::Instant, name.as_str(), none, *flow, 0.0),
                What::Value(value) => (Kind::Counter, "", none, blank, *value),
                What::End => (Kind::End, "", none, blank, 0.0),
            };
            let event = Event { at: *at, track: uuids[row], kind, name, annotations, flow, value };
            out.write_all(&event.written())?;
        }
        out.flush()?;
        Ok(self.written)
    }
}

/// A request that has not ended.
#[derive(Clone, Debug)]
struct Open {
    at: u64,
    block: u32,
    name: String,
    words: [(&'static str, u64); 2],
}

/// Requests, from what a [`Follower`](adverb_nic::Follower) has told of them.
#[derive(Debug, Default)]
pub struct Requests {
    open: BTreeMap<(u32, u32), VecDeque<Open>>,
    slices: Vec<Slice>,
}

impl Requests {
    /// What was told of a host's NIC at a time, in ns.
    pub fn see(&mut self, trace: &mut Trace, (at, host): (u64, u32), told: Followed) {
        let ended = match told {
            Followed::Connected { .. } => return,
            Followed::Window { qp, allowed, unacked } => {
                trace.value(at, Row::Window(host, qp.get()), f64::from(allowed));
                return trace.value(at, Row::Unacked(host, qp.get()), f64::from(unacked));
            }
            Followed::Posted { qp, block, op, bytes, wr_id } => {
                let words = [("bytes", u64::from(bytes)), ("wr_id", wr_id)];
                let open = self.open.entry((host, qp.get())).or_default();
                open.push_back(Open { at, block, name: format!("{op:?} {bytes} B"), words });
                (qp, None, "")
            }
            Followed::Done { qp, end, in_error: false } => (qp, Some(end), ""),
            Followed::Done { qp, end, in_error: true } => (qp, Some(end), ", queue pair in error"),
            Followed::Gone { qp } => {
                self.end((host, qp.get()), at, &|_| true, ", queue pair gone");
                (qp, None, "")
            }
        };
        let (qp, end, how) = ended;
        let pair = (host, qp.get());
        if let Some(end) = end {
            self.end(pair, at, &|block| (block.wrapping_sub(end) as i32) < 0, how);
        }
        let open = self.open.get(&pair).map_or(0, VecDeque::len);
        trace.value(at, Row::Requests(host, qp.get()), open as f64);
    }

    fn end(&mut self, pair: (u32, u32), at: u64, is_of: &dyn Fn(u32) -> bool, how: &str) {
        let Some(open) = self.open.get_mut(&pair) else { return };
        while let Some(Open { at: from, name, words, .. }) = open.pop_front_if(|open| is_of(open.block)) {
            let (name, order) = (name + how, self.slices.len() as u64);
            self.slices.push(Slice { span: (from, at), pair, order, name, words });
        }
    }

    /// All that has not ended did not until now. The slices are in the trace then.
    pub fn finish(mut self, trace: &mut Trace, now: u64) {
        let pairs: Vec<(u32, u32)> = self.open.keys().copied().collect();
        pairs.into_iter().for_each(|pair| self.end(pair, now, &|_| true, ", unfinished"));
        trace.slices(self.slices);
    }
}
