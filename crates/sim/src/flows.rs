//! Flows: each is one message on a queue pair of its own, a WRITE, a SEND or a READ, from its start until the
//! receiver of its bytes has all of them and until the requester knows.

use crate::host::{NO_FLOW, Peer, RECEIVER};
use crate::sim::{SOURCE_FLOWS, Sim};
use crate::workload::Workload;
use adverb_nic::{Completion, Error, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Status};
use adverb_wire::{Instant, Psn, QpNumber};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// How a flow's bytes are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Op {
    /// The source writes.
    #[default]
    Write,
    /// The source sends, and the destination has posted a receive.
    Send,
    /// The destination reads.
    Read,
}

/// What a flow is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    pub op: Op,
}

impl FlowSpec {
    /// The host that posts the request, and the other one.
    pub(crate) fn ends(&self) -> (u32, u32) {
        if self.op == Op::Read { (self.dst, self.src) } else { (self.src, self.dst) }
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

const _: () = assert!(core::mem::size_of::<Flow>() <= 56);

/// The queue pairs of a flow under way.
#[derive(Clone, Copy, Debug)]
struct Active {
    flow: u32,
    requester: adverb_nic::QpId,
    responder: adverb_nic::QpId,
    /// What the responder of a WRITE or a SEND expects when it has all bytes.
    end: Psn,
}

/// All flows of a run.
#[derive(Default)]
pub struct Flows {
    /// In order of their creation.
    pub list: Vec<Flow>,
    /// Those that have not started: (start, number).
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Flows under way; their places are reused.
    active: Vec<Active>,
    free: Vec<u32>,
    /// Where the flow of a host's queue pair stands in `active`, kept in [`crate::host::Host`].
    running: u32,
    /// The most flows under way at once.
    pub running_max: u32,
    /// Flows that ended, with or without success.
    pub ended: u32,
    /// Creates flows as others end.
    pub workload: Workload,
}

impl Flows {
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
        for spec in flows {
            let number = self.flows.list.len() as u32;
            self.flows.list.push(Flow { spec, received: u64::MAX, completed: u64::MAX, failed: false });
            self.flows.waiting.push(Reverse((spec.start, number)));
        }
        self.schedule_flows();
    }

    /// Sets what creates flows while the simulation runs, and takes its first ones.
    pub fn set_workload(&mut self, mut workload: Workload) {
        let first = workload.first();
        self.flows.workload = workload;
        self.add_flows(first);
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
        if let Some(Reverse((at, _))) = self.flows.waiting.peek() {
            let at = (*at).max(self.now);
            let source = self.base_other + SOURCE_FLOWS;
            if at < self.events.timer(source) {
                self.events.set_timer(source, at);
            }
        }
    }

    pub(crate) fn start_due_flows(&mut self) {
        while let Some(&Reverse((at, number))) = self.flows.waiting.peek() {
            if at > self.now {
                break;
            }
            self.flows.waiting.pop();
            if self.start_flow(number).is_err() {
                self.flows.list[number as usize].failed = true;
                self.flows.ended += 1;
            }
        }
        self.schedule_flows();
    }

    fn start_flow(&mut self, number: u32) -> Result<(), Error> {
        if self.rma.is_some() {
            return self.start_transfer(number);
        }
        if self.config.transport.share_qp {
            return self.start_shared(number);
        }
        let spec = self.flows.list[number as usize].spec;
        let (near, far) = spec.ends();
        let (now, t) = (Instant::from_ps(self.now), self.config.transport);
        let requester = self.hosts[near as usize].take_qp(self.now, false)?;
        let responder = self.hosts[far as usize].take_qp(self.now, spec.op == Op::Send)?;
        let qpn_near = self.hosts[near as usize].nic.qp_number(requester)?;
        let qpn_far = self.hosts[far as usize].nic.qp_number(responder)?;
        let psn_near = self.hosts[near as usize].first_psn();
        let psn_far = self.hosts[far as usize].first_psn();
        let depth = u8::from(spec.op == Op::Read);
        let peer = |host, qpn: QpNumber, rq_psn: Psn, sq_psn: Psn| Peer { host, qpn, rq_psn, sq_psn, depth };
        self.hosts[near as usize].connect(now, requester, &peer(far, qpn_far, psn_far, psn_near), &t)?;
        self.hosts[far as usize].connect(now, responder, &peer(near, qpn_near, psn_near, psn_far), &t)?;
        let packets = spec.bytes.div_ceil(t.mtu.bytes()).max(1);
        let active = Active { flow: number, requester, responder, end: psn_near.add(packets) };
        let place = match self.flows.free.pop() {
            Some(place) => {
                self.flows.active[place as usize] = active;
                place
            }
            None => {
                self.flows.active.push(active);
                self.flows.active.len() as u32 - 1
            }
        };
        self.flows.running += 1;
        self.flows.running_max = self.flows.running_max.max(self.flows.running);
        self.hosts[near as usize].flow_of_qp[(qpn_near.get() & 0xffff) as usize] = place;
        self.hosts[far as usize].flow_of_qp[(qpn_far.get() & 0xffff) as usize] = place | RECEIVER;
        self.post_flow(number, spec, &active)?;
        self.after_nic(near, false);
        Ok(())
    }

    /// Posts a flow's request, and the receive that it takes.
    fn post_flow(&mut self, number: u32, spec: FlowSpec, active: &Active) -> Result<(), Error> {
        let (near, far) = spec.ends();
        let (now, addr) = (Instant::from_ps(self.now), self.region_addr());
        let far_host = &mut self.hosts[far as usize];
        let far_region = far_host.region.ok_or(Error::NoSuchObject)?;
        if spec.op == Op::Send {
            let sge = Sge { addr, len: spec.bytes, lkey: far_region.lkey };
            far_host.nic.post_recv(now, active.responder, &RecvWr { wr_id: 0, sges: &[sge] })?;
        }
        let host = &mut self.hosts[near as usize];
        let lkey = host.region.ok_or(Error::NoSuchObject)?.lkey;
        let wr = SendWr {
            wr_id: u64::from(number),
            op: match spec.op {
                Op::Write => SendOp::Write(addr, far_region.rkey),
                Op::Send => SendOp::Send,
                Op::Read => SendOp::Read(addr, far_region.rkey),
            },
            flags: SendFlags { signaled: true, ..SendFlags::default() },
            data: SendData::Sges(&[Sge { addr, len: spec.bytes, lkey }]),
            ud: None,
            xrc_srqn: 0,
        };
        host.nic.post_send(now, active.requester, &wr)
    }

    /// A packet that may have been the last one missing of a message was given to a NIC: whether the
    /// receiver has all bytes is what its responder expects next.
    pub(crate) fn on_message_end(&mut self, h: u32, qp: u32) {
        let host = &self.hosts[h as usize];
        let place = host.flow_of_qp.get(qp as usize).copied().unwrap_or(NO_FLOW);
        if place == NO_FLOW || place & RECEIVER == 0 {
            return;
        }
        let active = self.flows.active[(place & !RECEIVER) as usize];
        let flow = &mut self.flows.list[active.flow as usize];
        if flow.received != u64::MAX {
            return;
        }
        if host.nic.expected_psn(active.responder) == Ok(active.end) {
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
        let qp = (completion.qp.get() & 0xffff) as usize;
        let place = self.hosts[h as usize].flow_of_qp.get(qp).copied().unwrap_or(NO_FLOW);
        if place == NO_FLOW || place & RECEIVER != 0 {
            return;
        }
        let active = self.flows.active[place as usize];
        let flow = &mut self.flows.list[active.flow as usize];
        flow.completed = self.now;
        flow.failed = completion.status != Status::Success;
        if flow.spec.op == Op::Read && !flow.failed {
            flow.received = self.now;
        }
        let done = *flow;
        self.flows.ended += 1;
        self.flows.running -= 1;
        self.flows.free.push(place);
        let (now, spec) = (self.now, done.spec);
        // A queue pair that cannot be given back is not used again; nothing else depends on it.
        let (near, far) = spec.ends();
        let _ = self.hosts[near as usize].give_qp(now, active.requester, false);
        let _ = self.hosts[far as usize].give_qp(now, active.responder, spec.op == Op::Send);
        if let Some(next) = self.flows.workload.next(&done) {
            self.add_flows([next]);
        }
    }
}
