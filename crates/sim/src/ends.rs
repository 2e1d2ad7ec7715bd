//! The ends of a packet's way: the NIC gives a frame, the NIC takes a frame, and what follows.

use crate::host::host_of;
use crate::link::{FRAME_MIN, FRAMING, HOST};
use crate::memory::gather;
use crate::packet::{FLAG_CE, FLAG_ECT, FLAG_PAYLOAD, Kind};
use crate::sim::Sim;
use adverb_nic::{Payload, Step};
use adverb_wire::{Instant, Operation};

/// An acknowledgement on a link: IPv4, UDP, BTH, AETH, ICRC and framing.
const ACK_SIZE: u16 = 20 + 8 + 12 + 4 + 4 + FRAMING as u16;

/// Congestion experienced, in the traffic class (RFC 3168).
const CE: u8 = 3;

impl Sim {
    /// Lets a host's NIC send, if its link is free and not paused.
    #[inline]
    pub(crate) fn host_send(&mut self, h: u32) {
        let host = &mut self.hosts[h as usize];
        let up = host.up;
        let link = &self.links[up as usize];
        if host.unit.is_some() {
            return self.step_hardware(h);
        }
        // A port that is busy calls again when it is free; one that is paused, when the pause ends.
        if link.wakes || (self.switches.classes == 1 && link.paused != 0) {
            return;
        }
        if self.now < link.busy_until {
            if host.nic.has_work() {
                self.wake(up);
            }
            return;
        }
        if self.journal.is_on() {
            self.journal.look(&host.nic);
        }
        if !host.nic.next_frame(Instant::from_ps(self.now), &mut self.out) {
            // A queue pair whose rate makes it wait has a timer that nobody knows of yet.
            return self.watch_timer(h);
        }
        let id = self.take_frame(h);
        if self.journal.is_on() {
            self.tell_sent(h, id);
        }
        let more = self.hosts[h as usize].nic.has_work();
        self.transmit(up, id, more);
        self.watch_timer(h);
    }

    /// Makes the frame in `out` a packet.
    #[inline]
    fn take_frame(&mut self, h: u32) -> u32 {
        let id = self.packets.take();
        let packet = &self.out.packet;
        let dst = host_of(&packet.flow.dst);
        let hot = &mut self.packets.hot[id as usize];
        let free = if self.config.transport.free_irn_headers { packet.bth.opcode.irn_overhead() } else { 0 };
        hot.size = ((packet.frame_len() - free) as u32 + FRAMING).max(FRAME_MIN) as u16;
        hot.dst = dst;
        hot.hash = flow_hash(self.hash_seed, h, dst, packet.flow.src_port);
        let opcode = u64::from(packet.bth.opcode.wire()) << 24;
        hot.digest = self.stats.injected << 32 | opcode | u64::from(packet.bth.psn.get());
        let class = packet.flow.traffic_class;
        hot.class = (class >> 2).min(self.switches.classes as u8 - 1);
        hot.flags = if class & 3 != 0 { FLAG_ECT } else { 0 };
        hot.kind = Kind::Data;
        hot.lane = match hot.size {
            size if u32::from(size) == self.size_full => 0,
            ACK_SIZE => 1,
            _ => 2,
        };
        self.stats.injected += 1;
        self.packets.keep(id, &self.out.packet);
        if self.config.payload && !self.out.payload.is_empty() {
            self.packets.hot[id as usize].flags |= FLAG_PAYLOAD;
            gather(&self.out.payload, self.packets.payload_mut(id));
        }
        if self.config.through_bytes {
            self.packets.through_bytes(id);
        }
        id
    }

    /// A packet reaches its host.
    #[inline]
    pub(crate) fn on_host_arrival(&mut self, h: u32, id: u32) {
        if self.hosts[h as usize].unit.is_some() {
            return self.enter_hardware(h, id);
        }
        self.deliver(h, id);
    }

    /// The NIC takes a packet in, and the host looks what came of it.
    #[inline]
    fn deliver(&mut self, h: u32, id: u32) {
        let now = Instant::from_ps(self.now);
        let mut packet = self.packets.descriptor(id);
        if self.packets.hot[id as usize].flags & FLAG_CE != 0 {
            packet.flow.traffic_class |= CE;
        }
        let payload = match self.packets.payload(id) {
            Some(bytes) => Payload::from_slice(bytes),
            None => Payload::elided(packet.payload_len as usize),
        };
        let host = &mut self.hosts[h as usize];
        if self.journal.is_on() {
            self.journal.look(&host.nic);
        }
        host.nic.on_frame(now, &packet, &payload);
        let operation = packet.bth.opcode.operation();
        // With IRN the last packet may come before others of its message.
        let any = self.config.transport.irn.is_some() || operation.ends_message();
        let ends = any && (operation.is_write() || operation.is_send());
        let qp = packet.bth.dest_qp.get() & 0xffff;
        self.packets.give(id);
        self.stats.delivered += 1;
        if self.journal.is_on() {
            self.tell_nic(h, "takes it");
        }
        if ends && self.oracle.is_none() {
            self.on_message_end(h, qp);
        }
        let completes = operation == Operation::Acknowledge || operation.is_response() || operation.is_send();
        self.after_nic(h, completes);
    }

    /// After the NIC was called: its completions, its frames, its timer.
    #[inline]
    pub(crate) fn after_nic(&mut self, h: u32, completions: bool) {
        if completions || self.oracle.is_some() {
            self.take_completions(h);
        }
        self.host_send(h);
        self.watch_timer(h);
    }

    fn take_completions(&mut self, h: u32) {
        loop {
            let host = &mut self.hosts[h as usize];
            let cq = host.cq;
            match host.nic.poll_cq(cq) {
                Ok(Some(completion)) if self.oracle.is_some() => self.on_oracle_completion(h, &completion),
                Ok(Some(completion)) => self.on_flow_completion(h, &completion),
                _ => break,
            }
        }
        while self.hosts[h as usize].nic.next_event().is_some() {}
    }

    #[inline]
    fn watch_timer(&mut self, h: u32) {
        if let Some(deadline) = self.hosts[h as usize].nic.next_deadline() {
            let source = self.base_timer + h;
            let at = deadline.as_ps().max(self.now);
            if at < self.events.timer(source) {
                self.events.set_timer(source, at);
            }
        }
    }

    pub(crate) fn on_nic_timer(&mut self, h: u32) {
        if self.rma.is_some() {
            return self.on_rma_timer(h);
        }
        if self.journal.is_on() {
            self.journal.look(&self.hosts[h as usize].nic);
        }
        self.hosts[h as usize].nic.on_timer(Instant::from_ps(self.now));
        self.tell_nic(h, "timer");
        self.after_nic(h, true);
    }
}

/// Hash of a flow: its addresses and UDP source port, seeded.
#[inline]
pub(crate) fn flow_hash(seed: u32, src: u32, dst: u32, port: u16) -> u32 {
    let key = u64::from(src) << 40 ^ u64::from(dst) << 16 ^ u64::from(port);
    let wide = (key ^ u64::from(seed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (wide ^ wide >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_shr(32) as u32
}

/// The way through hardware that costs time.
impl Sim {
    /// Sends what hardware has ready, and does the NIC's next pieces of work: as many as cost nothing,
    /// and one that has to be paid for. Work goes on while the link is busy, one frame ahead of it.
    fn step_hardware(&mut self, h: u32) {
        // A host with 1RMA counts as one whose hardware costs time, so that others need not ask twice.
        if self.rma.is_some() {
            return self.rma_send(h);
        }
        let source = self.base_tx + h;
        let now = Instant::from_ps(self.now);
        loop {
            self.send_ready(h);
            if self.events.timer(source) != u64::MAX {
                break;
            }
            let host = &mut self.hosts[h as usize];
            let Some(unit) = host.unit.as_mut() else { return };
            if !unit.tx.row.is_empty() {
                break;
            }
            if self.journal.is_on() {
                self.journal.look(&host.nic);
            }
            let step = host.nic.step(now, &mut self.out);
            let qp = match step {
                Step::Fetched(id) | Step::Executed(id) | Step::Frame(id) => {
                    host.nic.qp_number(id).map_or(0, |n| n.get() & 0xffff)
                }
                Step::Completed(_) => 0,
                Step::Idle => break,
            };
            let cost = unit.step_cost(step, qp);
            if let Step::Frame(_) = step {
                let id = self.take_frame(h);
                if self.journal.is_on() {
                    self.tell_sent(h, id);
                }
                if let Some(unit) = &mut self.hosts[h as usize].unit {
                    unit.tx.row.push_back((self.now + cost, id));
                }
            }
            if cost > 0 {
                self.events.set_timer(source, self.now + cost);
            } else if let Step::Completed(_) = step {
                self.take_completions(h);
            }
        }
        self.watch_timer(h);
    }

    /// Puts the frame that hardware is done with on the link, if that is free.
    fn send_ready(&mut self, h: u32) {
        let up = self.hosts[h as usize].up;
        let link = &self.links[up as usize];
        if link.wakes || (self.switches.classes == 1 && link.paused != 0) {
            return;
        }
        let sending = self.now < link.busy_until;
        let Some(unit) = self.hosts[h as usize].unit.as_mut() else { return };
        if let Some(&(at, id)) = unit.tx.row.front()
            && at <= self.now
        {
            if sending {
                return self.wake(up);
            }
            unit.tx.row.pop_front();
            self.transmit(up, id, false);
        }
    }

    /// A piece of work is paid for.
    pub(crate) fn on_hardware_sent(&mut self, h: u32) {
        if self.rma.is_some() {
            return self.rma_send(h);
        }
        self.after_nic(h, true);
    }

    fn enter_hardware(&mut self, h: u32, id: u32) {
        if self.rma.is_some() {
            return self.on_message_arrival(h, id);
        }
        let bth = self.packets.bth(id);
        let atomic = matches!(bth.opcode.operation(), Operation::CompareSwap | Operation::FetchAdd);
        let qp = bth.dest_qp.get() & 0xffff;
        let Some(unit) = self.hosts[h as usize].unit.as_mut() else { return };
        let cost = unit.receive_cost(qp, atomic);
        unit.rx.free_at = unit.rx.free_at.max(self.now) + cost;
        unit.rx.row.push_back((unit.rx.free_at, id));
        if unit.rx.row.len() == 1 {
            self.events.set_timer(self.base_rx + h, unit.rx.free_at);
        }
    }

    pub(crate) fn on_hardware_received(&mut self, h: u32) {
        if self.rma.is_some() {
            return self.on_message_written(h);
        }
        let Some(unit) = self.hosts[h as usize].unit.as_mut() else { return };
        let Some((_, id)) = unit.rx.row.pop_front() else { return };
        if let Some((at, _)) = unit.rx.row.front() {
            self.events.set_timer(self.base_rx + h, *at);
        }
        self.deliver(h, id);
    }
}

impl Sim {
    /// Whether a link ends at a host; for captures and reports.
    pub fn ends_at_host(&self, link: u32) -> bool {
        self.links.get(link as usize).is_some_and(|l| l.to & HOST != 0)
    }
}
