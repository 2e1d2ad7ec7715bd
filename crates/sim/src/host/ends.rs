//! The ends of a packet's way: the NIC gives a frame, the NIC takes a frame, and what follows.

use crate::fabric::link::{FRAME_MIN, FRAMING, HOST};
use crate::fabric::packet::{FLAG_CE, FLAG_ECT, FLAG_MESSAGE, FLAG_PAYLOAD, Hot, Kind};
use crate::host::memory::gather;
use crate::host::{Device, host_of};
use crate::sim::Sim;
use crate::source::Source;
use crate::workload::Workload;
use adverb_nic::Payload;
use adverb_wire::{Instant, Operation, Packet};

/// An acknowledgement on a link: IPv4, UDP, BTH, AETH, ICRC and framing.
const ACK_SIZE: u16 = 20 + 8 + 12 + 4 + 4 + FRAMING as u16;

/// After so many ps, a NIC without costs that has worked on itself for long goes on.
const BREATH: u64 = 1_000_000;

/// Congestion experienced, in the traffic class (RFC 3168).
pub(crate) const CE: u8 = 3;

impl Sim {
    /// Lets a host's NIC send, if its link is free and not paused.
    #[inline]
    pub(crate) fn host_send(&mut self, h: u32) {
        if !self.hosts.list[h as usize].is_plain {
            return self.send_costly(h);
        }
        self.queues_send(h);
    }

    /// Lets a host's queue pairs send, at no cost.
    #[inline]
    fn queues_send(&mut self, h: u32) {
        let host = &mut self.hosts.list[h as usize];
        let up = host.up;
        let link = &self.fabric.links[up as usize];
        // A port that is busy calls again when it is free; one that is paused, when the pause ends.
        if link.wakes || (self.fabric.classes == 1 && link.paused != 0) {
            return;
        }
        if self.now < link.busy_until {
            if host.nic.has_work() {
                self.wake(up);
            }
            return;
        }
        if self.watch.journal.is_on() {
            self.watch.journal.look(&host.nic);
        }
        let looped = if self.programs.on { host.nic.counters().loopback_packets } else { 0 };
        let sends = host.nic.next_frame(Instant::from_ps(self.now), &mut self.hosts.out);
        if self.programs.on {
            self.note_loopback(h, looped, sends);
        }
        if !sends {
            let host = &self.hosts.list[h as usize];
            if host.nic.holds_completion(host.cq) == Ok(true) {
                // It came of the step itself (a request that failed before its first packet), and maybe
                // nothing else will come.
                self.wake_by(Source::Deadline(h), self.now);
            }
            // A queue pair whose rate makes it wait has a timer that nobody knows of yet.
            return self.watch_timer(h);
        }
        let id = self.take_frame(h);
        if self.watch.journal.is_on() {
            self.tell_sent(h, id);
        }
        let more = self.hosts.list[h as usize].nic.has_work();
        self.transmit(up, id, more);
        self.watch_timer(h);
    }

    /// After a host's NIC was asked for a frame: what it has sent to itself meanwhile may be what programs
    /// wait for, and if that kept it from its other work, it is asked again a little later.
    #[cold]
    fn note_loopback(&mut self, h: u32, before: u64, sends: bool) {
        let nic = &self.hosts.list[h as usize].nic;
        let (looped, more) = (nic.counters().loopback_packets - before, nic.has_work());
        if looped > 0 {
            if self.watch.journal.is_on() && !sends {
                self.tell_nic(h, "sends to itself");
            }
            self.host_changed(h);
        }
        if more && !sends {
            self.wake_by(Source::Deadline(h), self.now + BREATH);
        }
    }

    /// Makes the frame in `out` a packet.
    #[inline]
    pub(crate) fn take_frame(&mut self, h: u32) -> u32 {
        let id = self.fabric.packets.take();
        let packet = &self.hosts.out.packet;
        let (number, dst) = (self.watch.stats.injected, host_of(&packet.flow.dst));
        if self.watch.oracle.is_some() {
            self.check_leaving(h);
        }
        let packet = &self.hosts.out.packet;
        let dress = self.dress(number, (h, dst));
        dress.put_on(&mut self.fabric.packets.hot[id as usize], packet);
        self.watch.stats.injected += 1;
        if self.watch.recoveries.on {
            self.count_recovery(h, dst);
        }
        self.fabric.packets.keep(id, &self.hosts.out.packet);
        if self.hosts.stamps > 0 {
            // An acknowledgement brings back what its packet had; switches stamp everything else.
            let is_answer = self.hosts.out.packet.bth.opcode.operation().is_response();
            let brings = is_answer.then(|| self.hosts.out.telemetry.take().unwrap_or_default());
            self.fabric.packets.begin_stamps(id, brings);
        }
        if self.config.payload && !self.hosts.out.payload.is_empty() {
            self.fabric.packets.hot[id as usize].flags |= FLAG_PAYLOAD;
            gather(&self.hosts.out.payload, self.fabric.packets.payload_mut(id));
        }
        if self.config.through_bytes {
            self.fabric.packets.through_bytes(id);
        }
        id
    }

    /// What makes a packet, the `number`th, of its headers and these hosts.
    #[inline(always)]
    pub(crate) fn dress(&self, number: u64, (src, dst): (u32, u32)) -> Dress {
        Dress {
            number,
            src,
            dst,
            free_irn_headers: self.config.transport.free_irn_headers,
            hash_seed: self.fabric.hash_seed,
            classes: self.fabric.classes as u8,
            size_full: self.hosts.size_full,
            stamps: self.hosts.stamps,
        }
    }

    /// A packet reaches its host.
    #[inline]
    pub(crate) fn on_host_arrival(&mut self, h: u32, id: u32) {
        if !self.hosts.list[h as usize].is_plain {
            return self.arrive_costly(h, id);
        }
        self.deliver(h, id);
    }

    /// The NIC takes a packet in, and the host looks what came of it.
    #[inline]
    pub(crate) fn deliver(&mut self, h: u32, id: u32) {
        let now = Instant::from_ps(self.now);
        let mut packet = self.fabric.packets.descriptor(id);
        if self.fabric.packets.hot[id as usize].flags & FLAG_CE != 0 {
            packet.flow.traffic_class |= CE;
        }
        if self.watch.sabotage.is_some() {
            self.spoil(h, id, &mut packet);
        }
        if self.watch.journal.is_on() {
            self.note_taken(h, id);
        }
        let payload = match self.fabric.packets.payload(id) {
            Some(bytes) => Payload::from_slice(bytes),
            None => Payload::elided(packet.payload_len as usize),
        };
        let host = &mut self.hosts.list[h as usize];
        if self.watch.journal.is_on() {
            self.watch.journal.look(&host.nic);
        }
        if let Some(telemetry) = self.fabric.packets.telemetry(id) {
            host.nic.on_telemetry(&packet, telemetry);
        }
        host.nic.on_frame(now, &packet, &payload);
        let operation = packet.bth.opcode.operation();
        // With IRN the last packet may come before others of its message.
        let any = self.config.transport.irn.is_some() || operation.ends_message();
        let ends = any && (operation.is_write() || operation.is_send());
        self.fabric.packets.give(id);
        self.watch.stats.delivered += 1;
        if self.watch.journal.is_on() {
            self.tell_nic(h, "takes it");
        }
        if ends && self.watch.oracle.is_none() {
            let qp = self.hosts.list[h as usize].nic.index_of(packet.bth.dest_qp);
            self.on_message_end(h, qp);
        }
        let completes = operation == Operation::Acknowledge || operation.is_response() || operation.is_send();
        // With StaR other packets bring completions.
        self.after_nic(h, completes || self.config.offers_star());
    }

    /// After the NIC was called: its completions, its frames, its timer.
    #[inline]
    pub(crate) fn after_nic(&mut self, h: u32, completions: bool) {
        if completions || self.watch.oracle.is_some() {
            self.take_completions(h);
        }
        self.host_changed(h);
        self.host_send(h);
        self.watch_timer(h);
    }

    fn take_completions(&mut self, h: u32) {
        loop {
            let host = &mut self.hosts.list[h as usize];
            let cq = host.cq;
            if host.unit.as_deref_mut().is_some_and(|unit| !unit.take_visible(cq)) {
                break;
            }
            match host.nic.poll_cq(cq) {
                Ok(Some(completion)) if self.watch.oracle.is_some() => {
                    self.on_oracle_completion(h, &completion)
                }
                Ok(Some(completion)) => self.on_flow_completion(h, &completion),
                _ => break,
            }
        }
        while let Some(event) = self.hosts.list[h as usize].nic.next_event() {
            if let Workload::Persistent(work) = &mut self.flows.workload {
                work.on_event(self.now, h, &self.hosts.list[h as usize].nic, &event);
            }
        }
    }

    #[inline]
    pub(crate) fn watch_timer(&mut self, h: u32) {
        if let Some(deadline) = self.hosts.list[h as usize].nic.next_deadline() {
            self.wake_by(Source::Deadline(h), deadline.as_ps().max(self.now));
        }
    }

    /// A deadline of a host's NICs has come.
    pub(crate) fn on_deadline(&mut self, h: u32) {
        let device = self.hosts.list[h as usize].device;
        if device.has_queues() {
            self.on_nic_timer(h);
        }
        if device.has_one_rma() {
            self.on_rma_timer(h);
        }
    }

    fn on_nic_timer(&mut self, h: u32) {
        if self.watch.journal.is_on() {
            self.watch.journal.look(&self.hosts.list[h as usize].nic);
        }
        self.hosts.list[h as usize].nic.on_timer(Instant::from_ps(self.now));
        self.tell_nic(h, "timer");
        self.after_nic(h, true);
    }
}

/// What, beside its headers, makes up what every hop reads of a packet.
#[derive(Clone, Copy)]
pub(crate) struct Dress {
    /// In the order of injection.
    number: u64,
    src: u32,
    dst: u32,
    free_irn_headers: bool,
    hash_seed: u32,
    classes: u8,
    size_full: u32,
    /// Bytes of the header for what switches stamp.
    stamps: u16,
}

impl Dress {
    /// Fills in what every hop reads of a packet with these headers.
    #[inline(always)]
    pub fn put_on(&self, hot: &mut Hot, packet: &Packet) {
        let free = if self.free_irn_headers { packet.bth.opcode.irn_overhead() } else { 0 };
        hot.size = ((packet.frame_len() - free) as u32 + FRAMING).max(FRAME_MIN) as u16 + self.stamps;
        hot.dst = self.dst;
        hot.hash = flow_hash(self.hash_seed, self.src, self.dst, packet.flow.src_port);
        let opcode = u64::from(packet.bth.opcode.wire()) << 24;
        hot.digest = self.number << 32 | opcode | u64::from(packet.bth.psn.get());
        let class = packet.flow.traffic_class;
        hot.class = (class >> 2).min(self.classes - 1);
        hot.flags = if class & 3 != 0 { FLAG_ECT } else { 0 };
        hot.kind = Kind::Data;
        hot.lane = match hot.size {
            size if u32::from(size) == self.size_full => 0,
            size if size == ACK_SIZE + self.stamps => 1,
            _ => 2,
        };
    }
}

/// Hash of a flow: its addresses and UDP source port, seeded.
#[inline]
pub(crate) fn flow_hash(seed: u32, src: u32, dst: u32, port: u16) -> u32 {
    let key = u64::from(src) << 40 ^ u64::from(dst) << 16 ^ u64::from(port);
    let wide = (key ^ u64::from(seed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (wide ^ wide >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_shr(32) as u32
}

/// The ways of hosts that are not plain: 1RMA, and hardware that costs time.
impl Sim {
    #[inline(never)]
    fn send_costly(&mut self, h: u32) {
        match self.hosts.list[h as usize].device {
            Device::Queues => self.step_hardware(h),
            Device::OneRma => self.rma_send(h),
            Device::Both => self.send_in_turns(h),
        }
    }

    /// Lets both NICs of a host send. The one that sent last comes second when both have something.
    fn send_in_turns(&mut self, h: u32) {
        let up = self.hosts.list[h as usize].up as usize;
        let first = self.hosts.list[h as usize].one_rma_first;
        for one_rma in [first, !first] {
            let sent = self.fabric.links[up].packets;
            if one_rma {
                self.rma_send(h);
            } else if self.hosts.list[h as usize].unit.is_some() {
                self.step_hardware(h);
            } else {
                self.queues_send(h);
            }
            if self.fabric.links[up].packets != sent {
                self.hosts.list[h as usize].one_rma_first = !one_rma;
            }
        }
    }

    #[inline(never)]
    fn arrive_costly(&mut self, h: u32, id: u32) {
        if self.fabric.packets.hot[id as usize].flags & FLAG_MESSAGE != 0 {
            return self.on_message_arrival(h, id);
        }
        if self.hosts.list[h as usize].unit.is_some() {
            self.enter_hardware(h, id)
        } else {
            self.deliver(h, id)
        }
    }
}

impl Sim {
    /// Whether a link ends at a host; for captures and reports.
    pub fn ends_at_host(&self, link: u32) -> bool {
        self.fabric.links.get(link as usize).is_some_and(|l| l.to & HOST != 0)
    }
}
