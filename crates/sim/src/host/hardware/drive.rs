//! A NIC driven through hardware that costs time: each step is charged in its order, and the NIC is called
//! when its time has come.
//!
//! ```text
//! post ─ doorbell ─ fetch ─ unit ─ payload ─ state ─ packet ─ port ─ link
//! link ─ port ─ state ─ receive ─ late ─ responder ─ word ─ memory ─ completion
//! ```
//! The port's latency is part of the link's delay.

use super::arrive::REQUEST;
use super::unit::{Core, Keeps, Unit, Work};
use crate::fabric::packet::Kind;
use crate::sim::Sim;
use crate::source::Source;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::{Intent, Nic, QpId, StarSide, Step};
use adverb_wire::star::StarEth;
use adverb_wire::{Instant, Operation};

/// In the place of a queue pair's index: a frame of none.
const STATELESS: u32 = u32::MAX;

impl Sim {
    /// WQEs that a host's hardware has executed; 0 of one whose hardware costs nothing.
    pub fn executed(&self, host: u32) -> u64 {
        self.hosts.list[host as usize].unit.as_ref().map_or(0, |unit| unit.executed())
    }

    /// A host's NIC and its hardware.
    #[inline]
    pub(super) fn hardware(&mut self, h: u32) -> (&mut Nic, &mut Unit) {
        let host = &mut self.hosts.list[h as usize];
        let unit = host.unit.as_deref_mut().expect("only hosts with hardware come here");
        (&mut host.nic, unit)
    }

    /// Lets the hardware of a host go on: what the NIC has ready, and what may leave.
    pub(crate) fn step_hardware(&mut self, h: u32) {
        self.go_on_hardware(h);
        self.arm_hardware(h);
        self.watch_timer(h);
    }

    /// Asks first whether there is anything: it is called after each piece of work.
    #[inline]
    fn go_on_hardware(&mut self, h: u32) {
        let now = self.now;
        let (nic, unit) = self.hardware(h);
        if nic.has_work() || !unit.sending.is_empty() || unit.next_staged(now).is_some() {
            self.go_on_with_work(h);
        }
    }

    #[inline(never)]
    fn go_on_with_work(&mut self, h: u32) {
        if self.hardware(h).0.has_work() {
            self.take_queue_pairs(h);
        }
        self.take_frames(h);
        self.send_staged(h);
    }

    /// What the NIC has, and the queue pairs that could do something.
    fn take_queue_pairs(&mut self, h: u32) {
        self.collect(h);
        while let Some(id) = self.hardware(h).0.take_ready() {
            let (nic, unit) = self.hardware(h);
            let (index, keeps) = kept(nic, id);
            let pair = unit.pair(index);
            (pair.id, pair.keeps) = (Some(id), keeps);
            self.advance(h, index);
        }
    }

    /// The hardware of a host is to be called when its next work is due, unless it is being called.
    #[inline]
    pub(super) fn arm_hardware(&mut self, h: u32) {
        let unit = self.hardware(h).1;
        if !unit.at_work
            && let Some(at) = unit.next_at()
        {
            self.wake_by(Source::Hardware(h), at);
        }
    }

    /// The time of some work has come.
    pub(crate) fn on_hardware(&mut self, h: u32) {
        self.hardware(h).1.at_work = true;
        loop {
            while let Some(work) = {
                let now = self.now;
                self.hardware(h).1.due(now)
            } {
                self.do_work(h, work);
            }
            self.go_on_hardware(h);
            self.watch_timer(h);
            let next = self.hardware(h).1.next_at();
            if !next.is_some_and(|at| self.goes_on(Source::Hardware(h), at)) {
                break;
            }
        }
        self.hardware(h).1.at_work = false;
        self.arm_hardware(h);
    }

    fn do_work(&mut self, h: u32, work: Work) {
        let now = self.now;
        match work {
            Work::Known(index) => {
                let pair = self.hardware(h).1.pair(index);
                (pair.known, pair.engaged) = (true, false);
                self.advance(h, index);
            }
            Work::Started(index) => {
                let pair = self.hardware(h).1.pair(index);
                (pair.started, pair.engaged) = (true, false);
                self.advance(h, index);
            }
            Work::Fetched(index, wqes) => {
                let pair = self.hardware(h).1.pair(index);
                (pair.at_hand, pair.engaged) = (wqes, false);
                self.advance(h, index);
            }
            Work::Executed(index) => self.on_executed(h, index),
            Work::Ready(index, packet, answer) => self.pass_out(h, index, packet, answer),
            Work::Leave => {}
            Work::Entered(packet, index) => self.on_entered(h, packet, index),
            Work::Turned(packet, index) => self.ask_responder(h, packet, index),
            Work::Ended(packet) => self.on_ended(h, packet),
            Work::Landed(packet, index) => self.hand_over(h, packet, index),
            Work::Visible(key) => {
                self.hardware(h).1.reveal(key);
                self.after_nic(h, true);
            }
        }
        debug_assert_eq!(now, self.now);
    }

    /// Finds out what a queue pair waits for next.
    pub(super) fn advance(&mut self, h: u32, index: u32) {
        let (nic, unit) = self.hardware(h);
        let pair = unit.pair(index);
        let Some(id) = pair.id else { return };
        let intent = nic.intent(id);
        match intent {
            Intent::Answer | Intent::Packet => {
                if !core::mem::replace(&mut pair.sending, true) {
                    unit.sending.push_back(index);
                }
            }
            _ if pair.engaged => {}
            Intent::Nothing | Intent::Execute { waits: true, .. } => self.rest(h, index),
            Intent::Execute { calculates, .. } if pair.paid => self.execute_paid(h, index, id, calculates),
            Intent::Execute { .. } => self.want_unit(h, index, intent),
            Intent::Fetch(_) if pair.at_hand > 0 => self.want_unit(h, index, intent),
            Intent::Fetch(posted) => self.fetch(h, index, posted),
            Intent::FetchAhead { managed, orders } => self.fetch_ahead(h, index, managed, orders),
        }
    }

    /// A queue has no WQE at hand: the NIC has to know of them, and then to read some.
    #[inline(never)]
    fn fetch(&mut self, h: u32, index: u32, posted: u32) {
        let now = self.now;
        let (_, unit) = self.hardware(h);
        let pair = unit.pair(index);
        pair.engaged = true;
        if !pair.known {
            let at = now + unit.profile.doorbell;
            return unit.put(at, Work::Known(index));
        }
        let was_active = core::mem::replace(&mut pair.active, true);
        let batch = if was_active { unit.profile.fetch_batch } else { unit.profile.fetch_first };
        let wqes = u64::from(posted).min(batch.max(1)) as u32;
        let at = unit.fetch(now, index, wqes);
        unit.put(at, Work::Fetched(index, wqes));
    }

    /// A cross-channel queue has no WQE at hand: those that a fetch brings are read as they are when it
    /// begins. A doorbell takes longer than a plain queue's; a managed queue is fetched as soon as it is
    /// enabled.
    fn fetch_ahead(&mut self, h: u32, index: u32, managed: bool, orders: bool) {
        let now = self.now;
        let (_, unit) = self.hardware(h);
        let p = unit.profile;
        let pair = unit.pair(index);
        let Some(id) = pair.id else { return };
        if !managed && !pair.known {
            let (started, load) = (pair.started, if orders { p.cross_load } else { 0 });
            if !started || load > 0 {
                pair.engaged = true;
                let (cost, work) = match started {
                    false => (p.doorbell + p.cross_start, Work::Started(index)),
                    true => (load, Work::Known(index)),
                };
                return unit.put(now + cost, work);
            }
            pair.known = true;
        }
        // In a queue that goes round, what is in flight may leave no room; its end brings the NIC back here.
        if let Step::Fetched(_, wqes) = self.step_beyond_frames(h, index, id) {
            let (_, unit) = self.hardware(h);
            unit.pair(index).engaged = true;
            let at = unit.fetch(now, index, wqes);
            unit.put(at, Work::Fetched(index, wqes));
        }
    }

    /// A queue pair has nothing that it could do now; the NIC says when that changes.
    fn rest(&mut self, h: u32, index: u32) {
        let now = Instant::from_ps(self.now);
        let host = &mut self.hosts.list[h as usize];
        let unit = host.unit.as_deref_mut().expect("only hosts with hardware come here");
        let Some(id) = unit.pair(index).id else { return };
        match host.nic.step_qp(now, id, &mut self.hosts.out) {
            Step::Frame(_) => self.on_frame_taken(h, index, false),
            Step::Answer(_) => self.on_frame_taken(h, index, true),
            Step::Idle => {
                let pair = unit.pair(index);
                if host.nic.unfetched(id) == 0 {
                    pair.rest();
                }
                return;
            }
            _ => {}
        }
        self.advance(h, index);
    }

    /// A queue pair waits for its processing unit, with what it would do there now.
    fn want_unit(&mut self, h: u32, index: u32, intent: Intent) {
        let (_, unit) = self.hardware(h);
        unit.pair(index).engaged = true;
        if unit.cores.is_empty() {
            return self.on_unit(h, index, None, intent);
        }
        let core = index as usize % unit.cores.len();
        let Core { busy, row } = &mut unit.cores[core];
        if *busy || !row.is_empty() {
            row.push_back(index);
            return;
        }
        self.on_unit(h, index, Some(core), intent);
        self.serve_unit(h, core);
    }

    /// A unit that is free takes the next queue pair that does not have to wait.
    #[inline]
    fn serve_unit(&mut self, h: u32, core: usize) {
        let Core { busy, row } = &self.hardware(h).1.cores[core];
        if !*busy && !row.is_empty() {
            self.serve_waiting(h, core);
        }
    }

    #[inline(never)]
    fn serve_waiting(&mut self, h: u32, core: usize) {
        loop {
            let (nic, unit) = self.hardware(h);
            let Core { busy, row } = &mut unit.cores[core];
            if *busy {
                return;
            }
            let Some(index) = row.pop_front() else { return };
            let Some(id) = unit.pair(index).id else { continue };
            let intent = nic.intent(id);
            self.on_unit(h, index, Some(core), intent);
        }
    }

    /// A queue pair has a unit. A WQE that has to wait leaves it free.
    fn on_unit(&mut self, h: u32, index: u32, core: Option<usize>, mut intent: Intent) {
        if let Intent::Fetch(_) = intent {
            let Some(id) = self.hardware(h).1.pair(index).id else { return };
            self.step_beyond_frames(h, index, id);
            intent = self.hardware(h).0.intent(id);
        }
        let now = self.now;
        let (_, unit) = self.hardware(h);
        let Intent::Execute { op, waits: false, .. } = intent else {
            unit.pair(index).engaged = false;
            return self.advance(h, index);
        };
        let cost = match op {
            WqeOp::Wait => unit.profile.wait,
            WqeOp::SendEnable | WqeOp::RecvEnable => unit.profile.enable,
            _ => unit.profile.execute,
        };
        if cost == 0 {
            return self.on_executed(h, index);
        }
        if let Some(core) = core {
            unit.cores[core].busy = true;
        }
        unit.put(now + cost, Work::Executed(index));
    }

    /// Steps a queue pair to fetch or execute. In some modes frames go before that which nothing has
    /// announced, such as what IRN sends again: they go their way first.
    fn step_beyond_frames(&mut self, h: u32, index: u32, id: QpId) -> Step {
        let at = Instant::from_ps(self.now);
        loop {
            let step = self.hosts.list[h as usize].nic.step_qp(at, id, &mut self.hosts.out);
            match step {
                Step::Frame(_) => self.on_frame_taken(h, index, false),
                Step::Answer(_) => self.on_frame_taken(h, index, true),
                step => return step,
            }
        }
    }

    /// A WQE has been paid for: it takes effect, as soon as its queue pair has sent what it owes.
    fn on_executed(&mut self, h: u32, index: u32) {
        let (_, unit) = self.hardware(h);
        let pair = unit.pair(index);
        (pair.engaged, pair.paid) = (false, true);
        self.collect(h);
        self.advance(h, index);
        let cores = &mut self.hardware(h).1.cores;
        if !cores.is_empty() {
            let core = index as usize % cores.len();
            cores[core].busy = false;
            self.serve_unit(h, core);
        }
    }

    /// A WQE takes effect that a unit has worked on; it computes over so many bytes.
    fn execute_paid(&mut self, h: u32, index: u32, id: QpId, calculates: u32) {
        let now = self.now;
        let (_, unit) = self.hardware(h);
        if calculates > 0 {
            // What it computes is in the WQE then, so that its frame reads nothing more.
            let known = unit.read(now, calculates) + unit.profile.calc;
            let last = &mut unit.pair(index).out[REQUEST];
            *last = known.max(*last);
        }
        let step = self.step_beyond_frames(h, index, id);
        let executed = matches!(step, Step::Executed(..));
        let (_, unit) = self.hardware(h);
        unit.executed += u64::from(executed);
        let pair = unit.pair(index);
        pair.paid = false;
        pair.at_hand = pair.at_hand.saturating_sub(u32::from(executed));
        self.collect(h);
        self.advance(h, index);
    }

    /// Takes frames from queue pairs in turns, as far as there is room for them.
    #[inline]
    pub(super) fn take_frames(&mut self, h: u32) {
        if !self.hardware(h).1.sending.is_empty() {
            self.take_some_frames(h);
        }
    }

    #[inline(never)]
    fn take_some_frames(&mut self, h: u32) {
        let now = self.now;
        loop {
            let host = &mut self.hosts.list[h as usize];
            let unit = host.unit.as_deref_mut().expect("only hosts with hardware come here");
            let Some(&index) = unit.sending.front() else { return };
            if !unit.has_room(now) {
                if let Some(at) = unit.read_ends() {
                    unit.put(at, Work::Leave);
                }
                return;
            }
            unit.sending.pop_front();
            let pair = unit.pair(index);
            pair.sending = false;
            let Some(id) = pair.id else { continue };
            if self.watch.journal.is_on() {
                self.watch.journal.look(&host.nic);
            }
            match host.nic.send_of_qp(Instant::from_ps(now), id, &mut self.hosts.out) {
                Some(Step::Frame(_)) => self.on_frame_taken(h, index, false),
                Some(Step::Answer(_)) => self.on_frame_taken(h, index, true),
                Some(Step::Idle) => {
                    // A request whose memory is not there ends here, with its completion.
                    self.collect(h);
                    self.note_rest(h, index);
                    continue;
                }
                _ => {}
            }
            self.advance(h, index);
        }
    }

    /// The NIC has put a queue pair to rest by itself.
    fn note_rest(&mut self, h: u32, index: u32) {
        let (nic, unit) = self.hardware(h);
        let pair = unit.pair(index);
        if pair.id.is_some_and(|id| nic.unfetched(id) == 0) && !pair.engaged {
            pair.rest();
        }
    }

    /// The NIC has given a frame: its payload is read, and an answer waits for its turn.
    fn on_frame_taken(&mut self, h: u32, index: u32, answer: bool) {
        let id = self.take_frame(h);
        if self.watch.journal.is_on() {
            self.tell_sent(h, id);
        }
        let (now, size) = (self.now, u64::from(self.fabric.packets.hot[id as usize].size));
        let (bth, bytes) = (&self.hosts.out.packet.bth, self.hosts.out.packet.payload_len);
        let operation = bth.opcode.operation();
        // Completions that travel are the NIC's own.
        let reads = bytes > 0 && operation != Operation::CqePacket && !self.is_near(h, index, answer);
        let (_, unit) = self.hardware(h);
        unit.taken += size;
        let mut at = now;
        if reads {
            at = unit.read(now, bytes);
        }
        if operation.is_read_response() {
            at += unit.profile.read_turn;
        } else if operation == Operation::AtomicAcknowledge {
            at += unit.pair(index).turn;
        }
        let last = &mut unit.pair(index).out[usize::from(answer)];
        at = at.max(*last);
        *last = at;
        let long = operation.is_read_response() || operation == Operation::AtomicAcknowledge;
        if at > now {
            return unit.put(at, Work::Ready(index, id, long));
        }
        self.pass_out(h, index, id, long);
    }

    /// Whether the payload of the frame in `out` is read without PCIe: it is on the NIC, or in its WQE.
    fn is_near(&self, h: u32, index: u32, answer: bool) -> bool {
        let host = &self.hosts.list[h as usize];
        let (chip, out) = (&host.chip, &self.hosts.out);
        if !chip.is_empty() && out.payload.spans().iter().all(|span| chip.contains(span.addr())) {
            return true;
        }
        // By the frame itself: a WQE that is sent again may have others executed behind it.
        let name = host.unit.as_deref().and_then(|unit| unit.pairs.get(index as usize)?.id);
        !answer && name.is_some_and(|id| host.nic.is_inline(id, out))
    }

    /// The NIC has given a frame of no queue pair: StaR's stateless half answers, or its host hands WQEs to
    /// the peer. Such frames are as many as what has come in and was posted, and so are taken at once.
    fn on_stateless_frame(&mut self, h: u32) {
        let id = self.take_frame(h);
        if self.watch.journal.is_on() {
            self.tell_sent(h, id);
        }
        let (now, size) = (self.now, u64::from(self.fabric.packets.hot[id as usize].size));
        let packet = &self.hosts.out.packet;
        let (operation, irn, bytes) = (packet.bth.opcode.operation(), packet.irn, packet.payload_len);
        let (_, unit) = self.hardware(h);
        unit.taken += size;
        let at = match operation {
            Operation::WqePacket => unit.fetch_for_peer(now, StarEth::from(irn).count.into()),
            Operation::GetDataAnswer => unit.read(now, bytes),
            _ => now,
        };
        let answer = operation == Operation::GetDataAnswer;
        if at > now {
            return unit.put(at, Work::Ready(STATELESS, id, answer));
        }
        self.pass_out(h, STATELESS, id, answer);
    }

    /// A frame goes through the port's pipeline.
    fn pass_out(&mut self, h: u32, index: u32, packet: u32, answer: bool) {
        let now = self.now;
        let checked = is_checked(self.fabric.packets.bth(packet).opcode.operation());
        let (_, unit) = self.hardware(h);
        let mut cost = unit.profile.send(answer);
        unit.to_stateless += u64::from(checked);
        if checked && unit.profile.registry > 0 {
            cost += unit.profile.registry;
            unit.rules += 1;
        }
        let keeps = if index == STATELESS { Keeps::Nothing } else { unit.pair(index).keeps };
        let at = unit.pass(now, (index, keeps), false, cost);
        unit.stage(at, packet);
        if at > now {
            unit.put(at, Work::Leave);
        }
    }

    /// Puts frames that may leave on the link, if that is free. What a host sends to itself does not see the
    /// link.
    #[inline]
    pub(super) fn send_staged(&mut self, h: u32) {
        let now = self.now;
        if self.hardware(h).1.next_staged(now).is_some() {
            self.send_some_staged(h);
        }
    }

    #[inline(never)]
    fn send_some_staged(&mut self, h: u32) {
        let (now, up) = (self.now, self.hosts.list[h as usize].up);
        while let Some(id) = self.hardware(h).1.next_staged(now) {
            let hot = self.fabric.packets.hot[id as usize];
            let own = hot.dst == h && hot.kind == Kind::Data;
            let link = &self.fabric.links[up as usize];
            if !own {
                if link.wakes || (self.fabric.classes == 1 && link.paused != 0) {
                    return;
                }
                if now < link.busy_until {
                    return self.wake(up);
                }
            }
            let (_, unit) = self.hardware(h);
            unit.unstage();
            unit.taken -= u64::from(hot.size);
            if own {
                self.enter_own(h, id)
            } else {
                self.transmit(up, id, false)
            }
            self.take_frames(h);
        }
    }

    /// Completions that the NIC has, and notifications of congestion.
    #[inline]
    fn collect(&mut self, h: u32) {
        if self.hardware(h).0.has_common_work() {
            self.collect_some(h);
        }
    }

    #[inline(never)]
    fn collect_some(&mut self, h: u32) {
        let at = Instant::from_ps(self.now);
        loop {
            let host = &mut self.hosts.list[h as usize];
            let unit = host.unit.as_deref_mut().expect("only hosts with hardware come here");
            match host.nic.step_common(at, &mut self.hosts.out) {
                Step::Completed(cq) => {
                    let visible = unit.complete(self.now);
                    let key = unit.cq_key(cq);
                    unit.put(visible, Work::Visible(key));
                }
                Step::Answer(id) | Step::Frame(id) => {
                    let index = kept(&host.nic, id).0;
                    self.on_frame_taken(h, index, true);
                }
                Step::Stateless => self.on_stateless_frame(h),
                Step::Idle => return,
                _ => {}
            }
        }
    }
}

/// Where the state of a queue pair stands, and what there is of it. On a NIC that offers StaR all of RC's are
/// endpoints, whose names begin beyond the others': there is room for both from 0 on, because no simulated
/// NIC has both.
pub(super) fn kept(nic: &Nic, id: QpId) -> (u32, Keeps) {
    if let Some(slot) = id.slot() {
        return (slot.into(), Keeps::Own);
    }
    let keeps = match nic.star_side(id) {
        Ok(StarSide::Stateful) => Keeps::Both,
        Ok(StarSide::Plain) => Keeps::Own,
        Ok(StarSide::Stateless | StarSide::Undecided) | Err(_) => Keeps::Nothing,
    };
    (id.index() as u32 & 0xffff, keeps)
}

/// Whether StaR's stateful side looks up a rule for a packet: all go to a stateless one (StaR III-D).
fn is_checked(operation: Operation) -> bool {
    use Operation::*;
    matches!(operation, RemoteData | GetData | CqePacket | WqeEventAcknowledge)
}
