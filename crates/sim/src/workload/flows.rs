//! Flows: each is one message on a queue pair of its own, a WRITE, a SEND or a READ, from its start until the
//! receiver of its bytes has all of them and until the requester knows.

use crate::host::{Device, NO_FLOW, Peer, RECEIVER, TransportConfig};
use crate::sim::Sim;
use crate::source::Source;
use crate::workload::Workload;
use crate::workload::connections::Connections;
use crate::workload::ways::Way;
use adverb_nic::{Completion, Error, QpId, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Status};
use adverb_wire::{Instant, Psn, QpNumber};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// How a flow's bytes are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verb {
    /// The source writes.
    #[default]
    Write,
    /// The source sends, and the destination has posted a receive.
    Send,
    /// The destination reads.
    Read,
}

/// Which of its host's NICs moves a flow's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Via {
    /// What the host has; queue pairs where it has both.
    #[default]
    Any,
    /// 1RMA's.
    OneRma,
}

/// What a flow is to do. Packed, because every flow of a run is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(Rust, packed(4))]
pub struct FlowSpec {
    /// When it starts, in ps.
    pub start: u64,
    /// From this host.
    pub src: u32,
    /// To this host.
    pub dst: u32,
    /// Bytes.
    pub bytes: u32,
    /// A word for the workload: which group or client it belongs to.
    pub tag: u32,
    /// How its bytes are moved.
    pub op: Verb,
    /// Which NIC moves them.
    pub via: Via,
}

impl FlowSpec {
    /// The host that posts the request, and the other one.
    pub(crate) fn ends(&self) -> (u32, u32) {
        if self.op == Verb::Read { (self.dst, self.src) } else { (self.src, self.dst) }
    }
}

/// A flow and how it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// What it was to do.
    pub spec: FlowSpec,
    /// When the receiver had all bytes, in ps; `u64::MAX` before.
    pub received: u64,
    /// When the requester had its completion, in ps; `u64::MAX` before.
    pub completed: u64,
    /// It ended in an error instead.
    pub failed: bool,
}

const _: () = assert!(core::mem::size_of::<Flow>() <= 48);

/// The queue pairs of a flow under way, by their indices.
#[derive(Clone, Copy, Debug)]
struct Active {
    /// In a place that is free: the next free one.
    flow: u32,
    /// What the responder of a WRITE or a SEND expects when it has all bytes.
    end: Psn,
    requester: u16,
    responder: u16,
}

const _: () = assert!(core::mem::size_of::<Active>() == 12);

/// No place.
const NOWHERE: u32 = u32::MAX;

/// Flows that have not started. Most are added in the order of their starts, and then this keeps nothing of
/// them but how far the list has been gone through.
#[derive(Default)]
struct Waiting {
    /// Number of the first flow that has not started of those in order.
    next: u32,
    /// Start of the flow in order that was added last, and of the one that was gone past last.
    added: u64,
    passed: u64,
    /// (start, number) of those that were added behind a later one.
    late: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Waiting {
    fn add(&mut self, start: u64, number: u32) {
        if start >= self.added {
            self.added = start;
        } else {
            self.late.push(Reverse((start, number)));
        }
    }

    /// (start, number) of the one that starts first, of several the one that was added first.
    fn first(&mut self, list: &[Flow]) -> Option<(u64, u32)> {
        while list.get(self.next as usize).is_some_and(|flow| flow.spec.start < self.passed) {
            self.next += 1;
        }
        let in_order = list.get(self.next as usize).map(|flow| (flow.spec.start, self.next));
        match (in_order, self.late.peek()) {
            (Some(one), Some(Reverse(other))) => Some(one.min(*other)),
            (one, other) => one.or(other.map(|Reverse(other)| *other)),
        }
    }

    /// The first one starts.
    fn take(&mut self, (start, number): (u64, u32)) {
        if number == self.next {
            (self.passed, self.next) = (start, number + 1);
        } else {
            self.late.pop();
        }
    }
}

/// All flows of a run.
pub struct Flows {
    /// In order of their creation.
    pub list: Vec<Flow>,
    waiting: Waiting,
    /// Flows under way; their places are reused, the one that became free last first. Where the flow of a
    /// host's queue pair stands is kept in [`crate::host::Host`].
    active: Vec<Active>,
    /// The first free place; the next one stands there.
    free: u32,
    running: u32,
    /// The most flows under way at once.
    pub running_max: u32,
    /// Flows that ended, with or without success.
    pub ended: u32,
    /// What workloads are called, by number.
    pub names: Vec<String>,
    /// How workloads' flows are moved, by number, where a scenario tells them apart; see
    /// [`Flows::way`].
    pub ways: Vec<Way>,
    /// Creates flows as others end.
    pub workload: Workload,
    /// Queue pairs that flows share, where they do.
    pub(crate) connections: Connections,
}

impl Default for Flows {
    fn default() -> Self {
        Flows {
            list: Vec::new(),
            waiting: Waiting::default(),
            active: Vec::new(),
            free: NOWHERE,
            running: 0,
            running_max: 0,
            ended: 0,
            names: Vec::new(),
            ways: Vec::new(),
            workload: Workload::default(),
            connections: Connections::default(),
        }
    }
}

impl Flows {
    /// The number of the workload whose flows have a tag.
    pub(crate) fn workload_of(&self, tag: u32) -> u32 {
        match &self.workload {
            Workload::Closed(closed) if tag >= closed.tags => closed.number,
            _ if self.names.len() == 1 => 0,
            _ => tag,
        }
    }

    /// The flow that a queue pair's use (see [`crate::host::Host::flow_of`]) is of.
    pub(crate) fn flow_at(&self, place: u32) -> Option<&Flow> {
        if place == NO_FLOW {
            return None;
        }
        let active = self.active.get((place & !RECEIVER) as usize)?;
        self.list.get(active.flow as usize)
    }

    /// A place for a flow that is under way.
    fn place(&mut self, active: Active) -> u32 {
        let place = self.free;
        match self.active.get_mut(place as usize) {
            Some(free) => {
                self.free = free.flow;
                *free = active;
                place
            }
            None => {
                self.active.push(active);
                self.active.len() as u32 - 1
            }
        }
    }

    /// The flow there has ended.
    fn give(&mut self, place: u32) {
        self.active[place as usize].flow = self.free;
        self.free = place;
    }

    /// The flow in a place, if it is under way and this queue pair of this host is its requester.
    pub(crate) fn asked_by(&self, place: u32, host: u32, qp: u16) -> Option<u32> {
        let active = self.active.get(place as usize).filter(|active| active.requester == qp)?;
        let flow = self.list.get(active.flow as usize)?;
        (flow.completed == u64::MAX && flow.spec.ends().0 == host).then_some(active.flow)
    }

    /// A transfer is under way.
    pub(crate) fn began(&mut self) {
        self.running += 1;
        self.running_max = self.running_max.max(self.running);
    }

    /// It is begun again.
    pub(crate) fn undone(&mut self) {
        self.running -= 1;
    }
}

impl Sim {
    /// Adds flows. Those whose start has passed start at once.
    pub fn add_flows(&mut self, flows: impl IntoIterator<Item = FlowSpec>) {
        let flows = flows.into_iter();
        self.flows.list.reserve(flows.size_hint().0);
        for spec in flows {
            let number = self.flows.list.len() as u32;
            self.flows.list.push(Flow { spec, received: u64::MAX, completed: u64::MAX, failed: false });
            self.flows.waiting.add(spec.start, number);
        }
        self.schedule_flows();
    }

    /// Sets what creates flows while the simulation runs, and takes its first ones.
    pub fn set_workload(&mut self, mut workload: Workload) {
        let first = workload.first();
        self.flows.workload = workload;
        self.add_flows(first);
        self.connect_persistent();
    }

    /// What creates flows while the simulation runs, and what it has kept of them.
    pub fn workload(&self) -> &Workload {
        &self.flows.workload
    }

    /// All flows, in order of their creation.
    pub fn flows(&self) -> &[Flow] {
        &self.flows.list
    }

    /// How many flows have ended.
    pub fn flows_ended(&self) -> u32 {
        self.flows.ended
    }

    /// The most flows that were under way at once.
    pub fn flows_at_once(&self) -> u32 {
        self.flows.running_max
    }

    /// Whether every flow has ended.
    pub fn flows_done(&self) -> bool {
        self.flows.ended as usize == self.flows.list.len()
    }

    fn schedule_flows(&mut self) {
        if let Some((at, _)) = self.flows.waiting.first(&self.flows.list) {
            self.wake_by(Source::Flows, at.max(self.now));
        }
    }

    pub(crate) fn start_due_flows(&mut self) {
        if let Workload::Persistent(_) = self.flows.workload {
            return self.start_due_calls();
        }
        while let Some((at, number)) = self.flows.waiting.first(&self.flows.list) {
            if at > self.now {
                break;
            }
            self.flows.waiting.take((at, number));
            if self.start_flow(number).is_err() {
                self.flows.list[number as usize].failed = true;
                self.flows.ended += 1;
            }
        }
        self.schedule_flows();
    }

    /// Whether a flow is a transfer of 1RMA.
    pub(crate) fn goes_by_one_rma(&self, spec: &FlowSpec) -> bool {
        match self.hosts.list[spec.ends().0 as usize].device {
            Device::Queues => false,
            Device::OneRma => true,
            Device::Both => spec.via == Via::OneRma,
        }
    }

    fn start_flow(&mut self, number: u32) -> Result<(), Error> {
        if self.goes_by_one_rma(&self.flows.list[number as usize].spec) {
            return self.start_transfer(number);
        }
        if self.config.transport.share_qp {
            return self.start_shared(number);
        }
        let spec = self.flows.list[number as usize].spec;
        let (near, far) = spec.ends();
        let (now, way) = (Instant::from_ps(self.now), self.flows.way(spec.tag));
        let t = TransportConfig {
            class: way.class.unwrap_or(self.config.transport.class),
            ..self.config.transport
        };
        let plain = way.plain || self.hosts.settled_plain((near, far));
        let requester = self.hosts.list[near as usize].take_qp(self.now, false)?;
        let responder = self.hosts.list[far as usize].take_qp(self.now, spec.op == Verb::Send)?;
        let qpn_near = self.hosts.list[near as usize].nic.qp_number(requester)?;
        let qpn_far = self.hosts.list[far as usize].nic.qp_number(responder)?;
        let psn_near = self.hosts.list[near as usize].first_psn();
        let psn_far = self.hosts.list[far as usize].first_psn();
        let depth = u8::from(spec.op == Verb::Read);
        let peer =
            |host, qpn: QpNumber, rq_psn: Psn, sq_psn: Psn| Peer { host, qpn, rq_psn, sq_psn, depth, plain };
        self.hosts.list[near as usize].connect(now, requester, &peer(far, qpn_far, psn_far, psn_near), &t)?;
        self.hosts.list[far as usize].connect(
            now,
            responder,
            &peer(near, qpn_near, psn_near, psn_far),
            &t,
        )?;
        let packets = spec.bytes.div_ceil(t.mtu.bytes()).max(1);
        let end = psn_near.add(packets);
        let [requester_at, responder_at] =
            [requester, responder].map(|qp| qp.slot().expect("a flow's queue pairs are no endpoints"));
        let active = Active { flow: number, end, requester: requester_at, responder: responder_at };
        let place = self.flows.place(active);
        self.flows.began();
        if self.watch.journal.is_on() {
            self.note_flow(number, (qpn_near, qpn_far), true);
        }
        self.hosts.list[near as usize].set_flow(requester, place);
        self.hosts.list[far as usize].set_flow(responder, place | RECEIVER);
        self.post_flow(number, spec, (requester, responder))?;
        self.after_nic(near, false);
        Ok(())
    }

    /// Posts a flow's request, and the receive that it takes.
    fn post_flow(
        &mut self,
        number: u32,
        spec: FlowSpec,
        (requester, responder): (QpId, QpId),
    ) -> Result<(), Error> {
        let (near, far) = spec.ends();
        let (now, addr) = (Instant::from_ps(self.now), self.region_addr());
        let far_host = &mut self.hosts.list[far as usize];
        let far_region = far_host.region.ok_or(Error::NoSuchObject)?;
        if spec.op == Verb::Send {
            let sge = Sge { addr, len: spec.bytes, lkey: far_region.lkey };
            far_host.nic.post_recv(now, responder, &RecvWr { wr_id: 0, sges: &[sge] })?;
        }
        let host = &mut self.hosts.list[near as usize];
        let lkey = host.region.ok_or(Error::NoSuchObject)?.lkey;
        let wr = SendWr {
            wr_id: u64::from(number),
            op: match spec.op {
                Verb::Write => SendOp::Write(addr, far_region.rkey),
                Verb::Send => SendOp::Send,
                Verb::Read => SendOp::Read(addr, far_region.rkey),
            },
            flags: SendFlags { signaled: true, ..SendFlags::default() },
            data: SendData::Sges(&[Sge { addr, len: spec.bytes, lkey }]),
            ud: None,
            xrc_srqn: 0,
        };
        host.nic.post_send(now, requester, &wr)
    }

    /// A packet that may have been the last one missing of a message was given to a NIC: whether the
    /// receiver has all bytes is what its responder expects next.
    pub(crate) fn on_message_end(&mut self, h: u32, qp: u32) {
        let host = &self.hosts.list[h as usize];
        let place = host.flow_of(qp);
        if place == NO_FLOW || place & RECEIVER == 0 {
            return;
        }
        let active = self.flows.active[(place & !RECEIVER) as usize];
        let flow = &mut self.flows.list[active.flow as usize];
        if flow.received != u64::MAX {
            return;
        }
        let expected = host.nic.qp_at(active.responder).map(|qp| host.nic.expected_psn(qp));
        if expected == Some(Ok(active.end)) {
            flow.received = self.now;
        }
    }

    /// A flow without a queue pair of its own has ended.
    pub(crate) fn end_transfer(&mut self, number: u32, ok: bool) {
        let flow = &mut self.flows.list[number as usize];
        (flow.completed, flow.failed) = (self.now, !ok);
        if ok {
            flow.received = self.now;
        }
        let done = *flow;
        self.flows.ended += 1;
        self.flows.running -= 1;
        if let Some(next) = self.flows.workload.next(&done) {
            self.add_flows([next]);
        }
    }

    pub(crate) fn on_flow_completion(&mut self, h: u32, completion: &Completion) {
        if self.config.transport.share_qp {
            return self.on_shared_completion(completion);
        }
        if let Workload::Persistent(_) = self.flows.workload {
            return self.on_call_completion(h, completion);
        }
        let host = &self.hosts.list[h as usize];
        let place = host.flow_of(host.nic.index_of(completion.qp));
        if place == NO_FLOW || place & RECEIVER != 0 {
            return;
        }
        let active = self.flows.active[place as usize];
        let flow = &mut self.flows.list[active.flow as usize];
        flow.completed = self.now;
        flow.failed = completion.status != Status::Success;
        if flow.spec.op == Verb::Read && !flow.failed {
            flow.received = self.now;
        }
        let done = *flow;
        self.flows.ended += 1;
        self.flows.running -= 1;
        self.flows.give(place);
        let (now, spec) = (self.now, done.spec);
        let (near, far) = spec.ends();
        self.hosts.list[near as usize].give_qp(now, active.requester, false);
        self.hosts.list[far as usize].give_qp(now, active.responder, spec.op == Verb::Send);
        if let Some(next) = self.flows.workload.next(&done) {
            self.add_flows([next]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a heap of all: flows start in the order of their starts, then of their numbers, however they
    /// were added.
    #[test]
    fn flows_wait_in_order() {
        let mut rng = fastrand::Rng::with_seed(5);
        let (mut waiting, mut list, mut model) = (Waiting::default(), Vec::new(), BinaryHeap::new());
        for step in 0..20_000u64 {
            if rng.u32(0..5) < 3 {
                // Mostly later and later; sometimes before others that were added already, or at the same
                // time.
                let start = if rng.u32(0..4) == 0 { rng.u64(..step + 1) } else { step / 4 * 4 };
                let spec =
                    FlowSpec { start, src: 0, dst: 1, bytes: 1, tag: 0, op: Verb::Write, via: Via::Any };
                let number = list.len() as u32;
                list.push(Flow { spec, received: u64::MAX, completed: u64::MAX, failed: false });
                waiting.add(start, number);
                model.push(Reverse((start, number)));
            } else {
                let first = waiting.first(&list);
                assert_eq!(first, model.pop().map(|Reverse(first)| first));
                if let Some(first) = first {
                    waiting.take(first);
                }
            }
        }
        assert!(!waiting.late.is_empty() && waiting.next > 1000, "both ways were gone");
    }
}
