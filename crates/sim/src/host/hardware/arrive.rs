//! The way of a packet that comes in through hardware that costs time: from the port to memory and the NIC.

use super::Need;
use super::drive::kept;
use super::profile::AtomicOp;
use super::responder::Request;
use super::unit::{Keeps, Work};
use crate::sim::Sim;
use adverb_nic::Nic;
use adverb_wire::irn::IrnEth;
use adverb_wire::star::StarEth;
use adverb_wire::{Operation, QpNumber, Service};

/// Index in what is kept for requests, and in what is kept for answers.
pub(super) const REQUEST: usize = 0;
const ANSWER: usize = 1;

impl Sim {
    /// A packet has reached the host's port.
    pub(crate) fn enter_hardware(&mut self, h: u32, id: u32) {
        let now = self.now;
        let bth = *self.fabric.packets.bth(id);
        let operation = bth.opcode.operation();
        let request = !operation.is_response() && operation != Operation::Acknowledge;
        let names_posted =
            bth.opcode.is_of(Service::Star) && is_for_posted(operation, self.fabric.packets.irn(id));
        let (nic, unit) = self.hardware(h);
        let mut place = place_of(nic, bth.dest_qp);
        if place.1 == Keeps::Nothing && unit.profile.stateless_state > 0 {
            place.1 = Keeps::Own;
        }
        let index = place.0;
        let mut at = unit.pass(now, place, true, unit.profile.receive);
        if names_posted && unit.profile.posted > 0 {
            at = unit.read_posted(at);
        }
        if request && unit.profile.late_chance > 0 && unit.rng.u64(0..1_000_000) < unit.profile.late_chance {
            at += unit.rng.u64(0..=unit.profile.late_by);
        }
        let kind = if request { REQUEST } else { ANSWER };
        let last = &mut unit.pair(index).entered[kind];
        at = at.max(*last);
        *last = at;
        if at > now {
            unit.put(at, Work::Entered(id, index));
            return self.arm_hardware(h);
        }
        self.on_entered(h, id, index);
        self.arm_hardware(h);
    }

    /// A packet of the own host, which does not pass the port.
    pub(super) fn enter_own(&mut self, h: u32, id: u32) {
        let number = self.fabric.packets.bth(id).dest_qp;
        let index = place_of(self.hardware(h).0, number).0;
        self.on_entered(h, id, index);
    }

    /// A packet for the queue pair at an index has been taken in: a request has its turn there, an answer
    /// goes to memory.
    pub(super) fn on_entered(&mut self, h: u32, id: u32, index: u32) {
        let now = self.now;
        let (bth, payload_len) = (*self.fabric.packets.bth(id), self.fabric.packets.payload_len(id));
        let operation = bth.opcode.operation();
        if operation.is_response() || operation == Operation::Acknowledge {
            // An atomic's answer carries a word.
            let word = operation == Operation::AtomicAcknowledge;
            return self.land(h, index, id, if word { 8 } else { payload_len }, ANSWER);
        }
        let (nic, unit) = self.hardware(h);
        let mut cost = unit.profile.responder;
        if unit.profile.scatter > 0 && operation.is_send() && operation.starts_message() {
            // Those that its first packet comes to; what a chain is asked for is one packet.
            let receiver = nic.find_qp(bth.dest_qp);
            let entries = receiver.map_or(0, |id| nic.receive_entries(id, payload_len));
            cost += unit.profile.scatter * u64::from(entries.saturating_sub(1));
        }
        let atomic = operation.is_atomic();
        let pair = unit.pair(index);
        if !atomic && (operation.starts_message() || operation == Operation::ReadRequest) {
            pair.busy = pair.busy.max(now) + cost;
        }
        let at = pair.busy.max(now);
        if at > now {
            return unit.put(at, Work::Turned(id, index));
        }
        self.ask_responder(h, id, index);
    }

    /// What a request needs of the responder.
    fn request(&mut self, h: u32, id: u32, qp: u32) -> Request {
        let packets = &self.fabric.packets;
        let operation = packets.bth(id).opcode.operation();
        let (addr, len, rkey) = match operation {
            _ if operation.is_atomic() => {
                let atomic = &packets.descriptor(id).atomic;
                (atomic.va, 8, atomic.rkey)
            }
            _ => (packets.reth(id).va, u64::from(packets.reth(id).len), packets.reth(id).rkey),
        };
        let host = &mut self.hosts.list[h as usize];
        // Memory on the NIC has addresses of its own, from 0 on.
        let chip = !host.chip.is_empty()
            && host.nic.memory().host_address(rkey, addr).is_some_and(|at| host.chip.contains(at));
        let p = &host.unit.as_ref().expect("only hosts with hardware come here").profile;
        let reads = operation == Operation::ReadRequest;
        let word = (reads || operation == Operation::WriteOnly) && len <= 8 && p.word(!reads, chip) > 0;
        let need = match operation {
            Operation::CompareSwap | Operation::MaskedCompareSwap => Need::Atomic(AtomicOp::CompareSwap),
            Operation::FetchAdd | Operation::MaskedFetchAdd => Need::Atomic(AtomicOp::FetchAdd),
            _ if word => Need::Word { writes: !reads },
            _ => Need::Turn,
        };
        Request { packet: id, qp, need, addr, len, chip }
    }

    pub(super) fn ask_responder(&mut self, h: u32, id: u32, index: u32) {
        let request = self.request(h, id, index);
        let (_, unit) = self.hardware(h);
        if request.need == Need::Turn && unit.responder.is_idle() {
            return self.go_to_memory(h, &request);
        }
        unit.responder.add(request);
        self.serve_responder(h);
    }

    /// Starts the requests that can start.
    fn serve_responder(&mut self, h: u32) {
        loop {
            let now = self.now;
            let (_, unit) = self.hardware(h);
            let p = unit.profile;
            let Some((request, hold)) = unit.responder.start(&p) else { return };
            if hold > 0 {
                unit.put(now + hold, Work::Ended(request.qp));
            }
            // Only an atomic takes effect when it lets go of its word.
            if hold == 0 || !request.need.is_atomic() {
                self.go_to_memory(h, &request);
            }
        }
    }

    /// A request lets go of its word; an atomic takes effect.
    pub(super) fn on_ended(&mut self, h: u32, index: u32) {
        let (_, unit) = self.hardware(h);
        let p = unit.profile;
        let request = unit.responder.end(index).expect("what ends has started");
        if let Need::Atomic(op) = request.need {
            unit.pair(index).turn = p.turn(op, request.chip);
            self.go_to_memory(h, &request);
        }
        self.serve_responder(h);
    }

    fn go_to_memory(&mut self, h: u32, request: &Request) {
        let packets = &self.fabric.packets;
        let operation = packets.bth(request.packet).opcode.operation();
        // WQEs stay on a stateful NIC, and what a CQEP brings is written as completions.
        let stays = matches!(operation, Operation::WqePacket | Operation::CqePacket);
        let bytes = if request.chip || stays { 0 } else { packets.payload_len(request.packet) };
        self.land(h, request.qp, request.packet, bytes, REQUEST);
    }

    /// A packet's bytes go to memory, and then the NIC has it.
    fn land(&mut self, h: u32, index: u32, id: u32, bytes: u32, kind: usize) {
        let now = self.now;
        let (_, unit) = self.hardware(h);
        let mut at = now;
        if bytes > 0 {
            at = unit.write(now, bytes);
        }
        let last = &mut unit.pair(index).landed[kind];
        at = at.max(*last);
        *last = at;
        if at > now {
            return unit.put(at, Work::Landed(id, index));
        }
        self.hand_over(h, id, index);
    }

    /// The NIC has a packet. What its queue pair owes then does not wait until a unit has done with a WQE of
    /// the same queue pair.
    pub(super) fn hand_over(&mut self, h: u32, id: u32, index: u32) {
        self.deliver(h, id);
        if self.hardware(h).1.pair(index).engaged {
            self.advance(h, index);
            self.take_frames(h);
            self.send_staged(h);
        }
    }
}

/// Where the state of a number's queue pair stands, and what there is of it. A packet for nobody takes its
/// way through the hardware like others, and the NIC drops it.
fn place_of(nic: &Nic, number: QpNumber) -> (u32, Keeps) {
    nic.find_qp(number).map_or((0, Keeps::Own), |id| kept(nic, id))
}

/// Whether a packet names something posted at a stateless side.
fn is_for_posted(operation: Operation, irn: IrnEth) -> bool {
    matches!(operation, Operation::RemoteData | Operation::GetData) && StarEth::from(irn).has(StarEth::POSTED)
}
