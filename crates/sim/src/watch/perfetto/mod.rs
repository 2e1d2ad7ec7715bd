//! A run as a trace for Perfetto's viewer: hosts and their queue pairs are tracks, messages slices on them,
//! packets flows from the NIC that sent them to the one that took them, windows and queues counters.
//!
//! What happens is noted while the run goes on, and written when it has ended, in the order of time.

mod proto;
pub mod trace;

use crate::fabric::packet::Kind as Travels;
use crate::sim::Sim;
use crate::workload::flows::Verb;
use adverb_nic::{Followed, Follower, Nic};
use adverb_wire::{Opcode, QpNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use trace::{Fate, Requests, Row, Slice, Trace, Written};

/// What is noted of packets at most (160 MB).
const NOTES_MAX: usize = 4 << 20;
/// And of requests (160 MB).
const STEPS_MAX: usize = 2 << 20;

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
    /// Packets, and steps of requests, that are not noted any more.
    missed: u64,
    /// By host, where requests are followed instead of flows; and what was told of them.
    followers: Vec<Follower>,
    steps: Vec<(u64, u32, Followed)>,
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

    /// The same, for work that is not flows: requests are seen by whoever calls [`Sim::follow`] after each
    /// event.
    pub fn follow_perfetto(&mut self) {
        let followers = self.hosts.list.iter().map(|_| Follower::default()).collect();
        self.watch.journal.recorder = Some(Box::new(Recorder { followers, ..Recorder::default() }));
        self.watch_links();
    }

    /// Notes what has become of requests.
    pub fn follow(&mut self) {
        let Some(Recorder { followers, steps, missed, .. }) = self.watch.journal.recorder.as_deref_mut()
        else {
            return;
        };
        for (h, (host, follower)) in self.hosts.list.iter().zip(followers).enumerate() {
            follower.look(&host.nic, &mut |step| {
                if steps.len() < STEPS_MAX {
                    steps.push((self.now, h as u32, step));
                } else {
                    *missed += 1;
                }
            });
        }
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
        let mut trace = Trace::new(self.hosts.list.len() as u32, recorder.missed);
        let making = Making { sim: self, recorder };
        if recorder.followers.is_empty() {
            trace.slices(making.messages());
        } else {
            making.requests(&mut trace);
        }
        making.packets(&mut trace);
        making.counters(&mut trace);
        trace.write(out, &|row| match row {
            Row::Link(l) => self.link_name(l),
            Row::Host(h) => format!("host {h}"),
            _ => unreachable!("only hosts and links have names of their own"),
        })
    }
}

/// What a trace is made of.
struct Making<'a> {
    sim: &'a Sim,
    recorder: &'a Recorder,
}

/// Perfetto's time is in ns; what happens at one has its order from the run.
fn ns(ps: u64) -> u64 {
    ps / 1000
}

impl Making<'_> {
    /// Messages as slices: at the requester from the post to the completion, and at the receiver of what is
    /// written or sent from its first packet until all of it is there.
    fn messages(&self) -> Vec<Slice> {
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
            let (order, words) =
                (pairs.flow.into(), [("bytes", u64::from(bytes)), ("flow", u64::from(pairs.flow))]);
            slices.push(Slice { span, pair: (near, pairs.near), order, name, words });
            let arrives = first.get(&(far, pairs.far, pairs.flow)).filter(|_| spec.op != Verb::Read);
            if let Some(from) = arrives {
                let open = if flow.received == u64::MAX { ", not all of it" } else { "" };
                let name = format!("receives {bytes} B from host {near}{open}");
                let span = (ns(*from), ns(end(flow.received.min(flow.completed))));
                slices.push(Slice { span, pair: (far, pairs.far), order, name, words });
            }
        }
        slices
    }

    /// Requests as slices, from the post until they are done.
    fn requests(&self, trace: &mut Trace) {
        let mut requests = Requests::default();
        for (at, host, step) in &self.recorder.steps {
            requests.see(trace, (ns(*at), *host), *step);
        }
        requests.finish(trace, ns(self.sim.now));
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
    fn packets(&self, trace: &mut Trace) {
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
            let opcode = Opcode::from_wire(note.opcode).map_or(String::new(), |opcode| format!("{opcode:?}"));
            let flow = ((note.fate == Fate::Sent).then_some(id), ends.then_some(id));
            trace.packet(ns(note.at), row, (note.fate, &format!("{opcode} {}", note.psn)), flow);
        }
    }

    /// Windows and rates of queue pairs, queues of links.
    fn counters(&self, trace: &mut Trace) {
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
            trace.value(at, Row::Window(host, qp), f64::from(sample.window));
            trace.value(at, Row::Rate(host, qp), sample.rate as f64 / 1e9);
        }
        let queued: BTreeSet<u32> = series.links.iter().filter(|s| s.queue > 0).map(|s| s.link).collect();
        for sample in series.links.iter().filter(|s| queued.contains(&s.link)) {
            trace.value(ns(sample.at), Row::Queue(sample.link), f64::from(sample.queue));
        }
    }
}
