//! A run as a trace for Perfetto's viewer: hosts and their queue pairs are tracks, messages slices on them,
//! packets flows from the NIC that sent them to the one that took them, windows and queues counters.
//!
//! What happens is noted while the run goes on, and written when it has ended, in the order of time.

mod proto;

use crate::fabric::packet::Kind as Travels;
use crate::sim::Sim;
use crate::workload::flows::Verb;
use adverb_nic::Nic;
use adverb_wire::{Opcode, QpNumber};
use proto::{Event, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// What is noted of packets at most (160 MB).
const NOTES_MAX: usize = 4 << 20;

/// What became of a packet somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// A host's NIC gave it.
    Sent,
    /// A host's NIC took it.
    Taken,
    /// It ended at this link's end.
    Lost,
}

/// A packet, noted.
#[derive(Clone, Copy, Debug)]
struct Note {
    at: u64,
    /// In the order of injection.
    packet: u32,
    /// The host, or the link at whose end it was lost.
    place: u32,
    /// The queue pair there; 0 if that is not known.
    qp: u32,
    /// PSN and opcode.
    psn: u32,
    opcode: u8,
    fate: Fate,
}

/// The queue pairs of a flow, by their numbers: the requester's and the responder's.
#[derive(Clone, Copy, Debug)]
struct Pairs {
    flow: u32,
    near: u32,
    far: u32,
    /// The flow has them for itself.
    own: bool,
}

/// What is noted while a run goes on.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    notes: Vec<Note>,
    flows: Vec<Pairs>,
    /// Packets that are not noted any more.
    missed: u64,
}

/// What a trace has in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Tracks of hosts.
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
    /// Packets that came after too many others, and are not in it.
    pub missed: u64,
}

impl Recorder {
    fn note(&mut self, note: Note) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        } else if note.fate == Fate::Sent {
            self.missed += 1;
        }
    }
}

/// The number of the queue pair that a NIC's `number` is connected to; 0 if there is none.
fn peer_of(nic: &Nic, number: QpNumber) -> u32 {
    let index = u16::try_from(nic.index_of(number)).ok();
    let asked = index.and_then(|index| nic.qp_at(index)).and_then(|qp| nic.query_qp(qp).ok());
    asked.map_or(0, |(attributes, _)| attributes.dest_qpn.get())
}

impl Sim {
    /// Notes from now on what [`Sim::write_perfetto`] writes.
    pub fn record_perfetto(&mut self) {
        self.watch.journal.recorder = Some(Box::default());
        self.watch_links();
    }

    /// A host's NIC has given a frame.
    #[cold]
    pub(crate) fn note_sent(&mut self, h: u32, id: u32) {
        let dst = self.fabric.packets.hot[id as usize].dst;
        let number = self.fabric.packets.descriptor(id).bth.dest_qp;
        let qp = self.hosts.list.get(dst as usize).map_or(0, |host| peer_of(&host.nic, number));
        self.note_packet(id, Fate::Sent, h, qp);
    }

    /// A host's NIC takes a packet.
    #[cold]
    pub(crate) fn note_taken(&mut self, h: u32, id: u32) {
        let qp = self.fabric.packets.descriptor(id).bth.dest_qp.get();
        self.note_packet(id, Fate::Taken, h, qp);
    }

    /// A packet ended at the end of a link.
    #[cold]
    pub(crate) fn note_lost(&mut self, l: u32, id: u32) {
        self.note_packet(id, Fate::Lost, l, 0);
    }

    fn note_packet(&mut self, id: u32, fate: Fate, place: u32, qp: u32) {
        let hot = &self.fabric.packets.hot[id as usize];
        if hot.kind != Travels::Data {
            return;
        }
        let bth = self.fabric.packets.descriptor(id).bth;
        let (at, packet) = (self.now, (hot.digest >> 32) as u32);
        let (psn, opcode) = (bth.psn.get(), bth.opcode.wire());
        if let Some(recorder) = &mut self.watch.journal.recorder {
            recorder.note(Note { at, packet, place, qp, psn, opcode, fate });
        }
    }

    /// A flow has been given its queue pairs; `own` if nobody else uses them meanwhile.
    #[cold]
    pub(crate) fn note_flow(&mut self, flow: u32, (near, far): (QpNumber, QpNumber), own: bool) {
        if let Some(recorder) = &mut self.watch.journal.recorder {
            recorder.flows.push(Pairs { flow, near: near.get(), far: far.get(), own });
        }
    }

    /// Writes the trace of what was noted; what is in it.
    pub fn write_perfetto(&self, out: &mut dyn Write) -> io::Result<Written> {
        let nothing = Recorder::default();
        let recorder = self.watch.journal.recorder.as_deref().unwrap_or(&nothing);
        let mut trace = Trace::new(self, recorder);
        trace.messages();
        trace.packets();
        trace.counters();
        trace.write(out)
    }
}

/// What a track is of. They are written in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Row {
    Host(u32),
    /// A queue pair by its number; messages that lie across one another have rows of their own.
    Pair(u32, u32, u32),
    Window(u32, u32),
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
            Row::Window(h, qp) | Row::Rate(h, qp) => Some(Row::Pair(h, qp, 0)),
            Row::Link(_) => Some(Row::Links),
            Row::Queue(l) => Some(Row::Link(l)),
        }
    }
}

/// What is written at a time. At the same time slices begin first and end last.
#[derive(Clone, Debug)]
enum What {
    Begin { name: String, bytes: u64, flow: u32 },
    Instant { name: String, flow: (Option<u64>, Option<u64>) },
    Value(f64),
    End,
}

impl What {
    fn order(&self) -> u8 {
        match self {
            What::Begin { .. } => 0,
            What::Instant { .. } | What::Value(_) => 1,
            What::End => 2,
        }
    }
}

/// A trace that is being made.
struct Trace<'a> {
    sim: &'a Sim,
    recorder: &'a Recorder,
    rows: BTreeSet<Row>,
    /// (time in ns, what stands first at that time, row, what).
    events: Vec<(u64, u8, Row, What)>,
    written: Written,
}

/// Perfetto's time is in ns; what happens at one has its order from the run.
fn ns(ps: u64) -> u64 {
    ps / 1000
}

impl<'a> Trace<'a> {
    fn new(sim: &'a Sim, recorder: &'a Recorder) -> Trace<'a> {
        let rows = (0..sim.hosts.list.len() as u32).map(Row::Host).collect();
        let written = Written { missed: recorder.missed, ..Written::default() };
        Trace { sim, recorder, rows, events: Vec::new(), written }
    }

    fn add(&mut self, at: u64, row: Row, what: What) {
        let mut needed = Some(row);
        while let Some(row) = needed.filter(|row| self.rows.insert(*row)) {
            needed = row.parent();
        }
        self.events.push((at, what.order(), row, what));
    }

    /// Messages as slices: at the requester from the post to the completion, and at the receiver of what is
    /// written or sent from its first packet until all of it is there.
    fn messages(&mut self) {
        let first = self.first_taken();
        let mut slices = Vec::new();
        for pairs in &self.recorder.flows {
            let Some(flow) = self.sim.flows.list.get(pairs.flow as usize) else { continue };
            let (spec, end) = (flow.spec, |at: u64| if at == u64::MAX { self.sim.now } else { at });
            let (near, far) = spec.ends();
            let verb = match spec.op {
                Verb::Write => "WRITE",
                Verb::Send => "SEND",
                Verb::Read => "READ",
            };
            let how = match flow {
                flow if flow.failed => ", failed",
                flow if flow.completed == u64::MAX => ", unfinished",
                _ => "",
            };
            let bytes = { spec.bytes };
            let name = format!("{verb} {bytes} B, host {near} with {far}{how}");
            let span = (ns(spec.start), ns(end(flow.completed)));
            slices.push((span, (near, pairs.near), pairs.flow, name, u64::from(bytes)));
            let arrives = first.get(&(far, pairs.far, pairs.flow)).filter(|_| spec.op != Verb::Read);
            if let Some(from) = arrives {
                let open = if flow.received == u64::MAX { ", not all of it" } else { "" };
                let name = format!("receives {bytes} B from host {near}{open}");
                let span = (ns(*from), ns(end(flow.received.min(flow.completed))));
                slices.push((span, (far, pairs.far), pairs.flow, name, u64::from(bytes)));
            }
        }
        slices.sort_by_key(|slice| (slice.0, slice.2));
        // The end of the last slice of each row of a queue pair.
        let mut rows: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        for ((from, to), (host, qp), flow, name, bytes) in slices {
            let ends = rows.entry((host, qp)).or_default();
            let free = ends.iter().position(|end| *end < from);
            let at = free.unwrap_or(ends.len());
            match free {
                Some(at) => ends[at] = to,
                None => ends.push(to),
            }
            let row = Row::Pair(host, qp, at as u32);
            self.add(from, row, What::Begin { name, bytes, flow });
            self.add(to, row, What::End);
            self.written.messages += 1;
        }
    }

    /// When the first packet of a flow came to a queue pair that was its own: (host, queue pair, flow).
    fn first_taken(&self) -> BTreeMap<(u32, u32, u32), u64> {
        let mut of: BTreeMap<(u32, u32), Vec<(u64, u32)>> = BTreeMap::new();
        for pairs in self.recorder.flows.iter().filter(|pairs| pairs.own) {
            let spec = self.sim.flows.list[pairs.flow as usize].spec;
            of.entry((spec.ends().1, pairs.far)).or_default().push((spec.start, pairs.flow));
        }
        of.values_mut().for_each(|flows| flows.sort_unstable());
        let mut first = BTreeMap::new();
        for note in self.recorder.notes.iter().filter(|note| note.fate == Fate::Taken) {
            let Some(flows) = of.get(&(note.place, note.qp)) else { continue };
            let until = flows.partition_point(|(start, _)| *start <= note.at);
            if let Some((_, flow)) = until.checked_sub(1).map(|last| flows[last]) {
                first.entry((note.place, note.qp, flow)).or_insert(note.at);
            }
        }
        first
    }

    /// Packets as flows, from where they were given to where they were taken, or lost. A second copy of one
    /// ends nothing.
    fn packets(&mut self) {
        let notes = &self.recorder.notes;
        let with = |fate: Fate| notes.iter().filter(move |note| note.fate == fate);
        let sent: BTreeSet<u32> = with(Fate::Sent).map(|note| note.packet).collect();
        let taken: BTreeSet<u32> = with(Fate::Taken).map(|note| note.packet).collect();
        let mut ended = BTreeSet::new();
        for note in notes {
            // A flow's id is not 0.
            let id = u64::from(note.packet) + 1;
            let ends = match note.fate {
                Fate::Sent => false,
                Fate::Taken => sent.contains(&note.packet) && ended.insert(note.packet),
                Fate::Lost => {
                    sent.contains(&note.packet) && !taken.contains(&note.packet) && ended.insert(note.packet)
                }
            };
            let row = match note.fate {
                Fate::Lost => Row::Link(note.place),
                _ if note.qp == 0 => Row::Host(note.place),
                _ => Row::Pair(note.place, note.qp, 0),
            };
            let (verb, count) = match note.fate {
                Fate::Sent => ("sends", &mut self.written.packets),
                Fate::Taken => ("takes", &mut self.written.taken),
                Fate::Lost => ("loses", &mut self.written.lost),
            };
            *count += 1;
            let opcode = Opcode::from_wire(note.opcode).map_or(String::new(), |opcode| format!("{opcode:?}"));
            let name = format!("{verb} {opcode} {}", note.psn);
            let flow = ((note.fate == Fate::Sent).then_some(id), ends.then_some(id));
            self.add(ns(note.at), row, What::Instant { name, flow });
        }
    }

    /// Windows and rates of queue pairs, queues of links.
    fn counters(&mut self) {
        let own: BTreeMap<u32, (u32, u32)> = self
            .recorder
            .flows
            .iter()
            .filter(|pairs| pairs.own)
            .map(|pairs| (pairs.flow, (self.sim.flows.list[pairs.flow as usize].spec.ends().0, pairs.near)))
            .collect();
        let series = self.sim.series();
        for sample in &series.flows {
            let Some((host, qp)) = own.get(&sample.flow).copied() else { continue };
            let at = ns(sample.at);
            self.add(at, Row::Window(host, qp), What::Value(f64::from(sample.window)));
            self.add(at, Row::Rate(host, qp), What::Value(sample.rate as f64 / 1e9));
            self.written.samples += 2;
        }
        let queued: BTreeSet<u32> = series.links.iter().filter(|s| s.queue > 0).map(|s| s.link).collect();
        for sample in series.links.iter().filter(|s| queued.contains(&s.link)) {
            self.add(ns(sample.at), Row::Queue(sample.link), What::Value(f64::from(sample.queue)));
            self.written.samples += 1;
        }
    }

    fn name(&self, row: Row) -> (String, Option<&'static str>) {
        match row {
            Row::Host(h) => (format!("host {h}"), None),
            Row::Pair(_, qp, 0) => (format!("qp {qp:#x}"), None),
            Row::Pair(_, qp, n) => (format!("qp {qp:#x} ({})", n + 1), None),
            Row::Window(..) => ("window".to_owned(), Some("packets")),
            Row::Rate(..) => ("rate".to_owned(), Some("Gb/s")),
            Row::Links => ("links".to_owned(), None),
            Row::Link(l) => (self.sim.link_name(l), None),
            Row::Queue(_) => ("queue".to_owned(), Some("bytes")),
        }
    }

    fn write(mut self, out: &mut dyn Write) -> io::Result<Written> {
        let uuids: BTreeMap<Row, u64> = self.rows.iter().copied().zip(1..).collect();
        for (row, uuid) in &uuids {
            let (name, unit) = self.name(*row);
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
            let blank = ("", &[][..], (None, None), 0.0);
            let annotations;
            let (kind, (name, annotations, flow, value)) = match what {
                What::Begin { name, bytes, flow } => {
                    annotations = [("bytes", *bytes), ("flow", u64::from(*flow))];
                    (Kind::Begin, (name.as_str(), &annotations[..], (None, None), 0.0))
                }
                What::Instant { name, flow } => (Kind::Instant, (name.as_str(), &[][..], *flow, 0.0)),
                What::Value(value) => (Kind::Counter, ("", &[][..], (None, None), *value)),
                What::End => (Kind::End, blank),
            };
            let event = Event { at: *at, track: uuids[row], kind, name, annotations, flow, value };
            out.write_all(&event.written())?;
        }
        out.flush()?;
        Ok(self.written)
    }
}
