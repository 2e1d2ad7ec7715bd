//! The ends of a message's way: the NIC gives it, the NIC takes it, and what moving its payload to and from
//! memory costs.

use super::Rma;
use super::host::RmaHost;
use crate::fabric::link::{FRAME_MIN, FRAMING};
use crate::fabric::packet::{FLAG_MESSAGE, FLAG_PAYLOAD, Kind};
use crate::host::hardware::Way;
use crate::host::{address, host_of};
use crate::sim::Sim;
use crate::source::Source;
use adverb_wire::one_rma::{HEAD_LEN, Header, TAG_LEN, UDP_PORT};
use adverb_wire::{Flow, Instant, Packet};

/// IPv4 and UDP headers of a message.
const IP_UDP: u32 = 20 + 8;
/// Messages with payload that a NIC holds between memory and port: enough to keep a link of 400 Gb/s busy
/// over a read of a microsecond.
const STAGED: usize = 16;

/// Bytes that a message of so many takes on a link.
pub(super) fn on_link(message: u32) -> u32 {
    (message + IP_UDP + FRAMING).max(FRAME_MIN)
}

impl RmaHost {
    /// Takes a message out that may go on the link now.
    fn take_ready(&mut self, now: u64) -> Option<u32> {
        if let Some(id) = self.direct.pop_front() {
            return Some(id);
        }
        let ready = self.tx.row.front().is_some_and(|(at, _)| *at <= now);
        if ready { self.tx.row.pop_front().map(|(_, id)| id) } else { None }
    }

    fn has_ready(&self, now: u64) -> bool {
        !self.direct.is_empty() || self.tx.row.front().is_some_and(|(at, _)| *at <= now)
    }

    /// Whether the NIC may be asked for a message: the path from memory is free.
    fn may_fetch(&self, now: u64) -> bool {
        self.tx.free_at <= now && self.tx.row.len() + self.direct.len() < STAGED
    }
}

impl Sim {
    /// Lets a host's 1RMA NIC send, if its link is free and not paused.
    pub(crate) fn rma_send(&mut self, h: u32) {
        let up = self.hosts.list[h as usize].up;
        let rma = &mut self.hosts.one_rma;
        if !rma.hosts[h as usize].pcie.is_neutral() {
            return self.rma_send_through_pcie(h, up);
        }
        let link = &self.fabric.links[up as usize];
        // A port that is busy calls again when it is free; one that is paused, when the pause ends.
        if link.wakes || link.paused >> rma.config.class & 1 != 0 {
            return;
        }
        let nic = &mut rma.hosts[h as usize].nic;
        if self.now < link.busy_until {
            if nic.has_work() {
                self.wake(up);
            }
            return;
        }
        if nic.next_frame(Instant::from_ps(self.now), &mut rma.out) {
            let id = self.take_message(h);
            let more = self.hosts.one_rma.hosts[h as usize].nic.has_work();
            self.transmit(up, id, more);
        }
    }

    /// The same where payload is read from memory before it can leave. While it is read, the NIC decides
    /// nothing: so what waits to be served waits in its queue, which the NACK threshold is about.
    fn rma_send_through_pcie(&mut self, h: u32, up: u32) {
        let now = self.now;
        loop {
            let rma = &mut self.hosts.one_rma;
            let class = rma.config.class;
            let link = &self.fabric.links[up as usize];
            let host = &mut rma.hosts[h as usize];
            let pcie = host.pcie;
            let free = !link.wakes && link.paused >> class & 1 == 0 && link.busy_until <= now;
            if free && let Some(id) = host.take_ready(now) {
                self.transmit(up, id, false);
                continue;
            }
            if !host.may_fetch(now) || !host.nic.next_frame(Instant::from_ps(now), &mut rma.out) {
                break;
            }
            let payload = payload_len(rma.out.message());
            let id = self.take_message(h);
            let rma = &mut self.hosts.one_rma;
            let host = &mut rma.hosts[h as usize];
            if payload == 0 {
                host.direct.push_back(id);
            } else {
                let shared = self.hosts.list[h as usize].unit.as_deref().map(|unit| &unit.to_nic);
                host.tx.free_at = transfer(shared, now, u64::from(payload) * pcie.byte_ps);
                host.tx.row.push_back((host.tx.free_at + pcie.read_ps, id));
            }
        }
        let rma = &mut self.hosts.one_rma;
        let host = &rma.hosts[h as usize];
        let fetch = (host.nic.has_work() && host.tx.row.len() + host.direct.len() < STAGED)
            .then_some(host.tx.free_at);
        let next = host.tx.row.front().map(|(at, _)| *at);
        let next = next.into_iter().chain(fetch).filter(|at| *at > now).min();
        let ready = host.has_ready(now);
        if ready && self.fabric.links[up as usize].busy_until > now {
            self.wake(up);
        }
        if let Some(at) = next {
            self.wake_by(Source::Sent(h), at);
        }
    }

    /// Makes the message that the NIC has given a packet.
    fn take_message(&mut self, h: u32) -> u32 {
        let id = self.fabric.packets.take();
        let Rma { out, config, .. } = &self.hosts.one_rma;
        let (message, dst) = (out.message(), host_of(&out.to));
        let hot = &mut self.fabric.packets.hot[id as usize];
        hot.size = on_link(message.len() as u32) as u16;
        hot.dst = dst;
        hot.hash = crate::host::ends::flow_hash(self.fabric.hash_seed, h, dst, UDP_PORT);
        // Kind and counter: what is encrypted, or would be, is none of the trace's business.
        let counter = u64::from(u32::from_be_bytes([0, message[13], message[14], message[15]]));
        hot.digest = self.watch.stats.injected << 32 | u64::from(message[1]) << 24 | counter;
        hot.class = config.class;
        hot.flags = FLAG_MESSAGE | FLAG_PAYLOAD;
        hot.kind = Kind::Data;
        hot.lane = 2;
        let flow = Flow { src: address(h), dst: out.to, src_port: UDP_PORT, traffic_class: 0, hop_limit: 64 };
        let packet = Packet { flow, payload_len: message.len() as u32, ..Packet::default() };
        let bytes = self.fabric.packets.payload_mut(id);
        bytes.clear();
        bytes.extend_from_slice(message);
        self.fabric.packets.keep(id, &packet);
        self.watch.stats.injected += 1;
        if self.watch.journal.is_on() {
            self.tell_message(h, "sends ", id);
        }
        id
    }

    /// A message reaches its host.
    pub(crate) fn on_message_arrival(&mut self, h: u32, id: u32) {
        let pcie = self.hosts.one_rma.hosts[h as usize].pcie;
        let payload = payload_len(self.fabric.packets.payload(id).unwrap_or_default());
        let rma = &mut self.hosts.one_rma;
        if pcie.is_neutral() || payload == 0 {
            return self.deliver_message(h, id);
        }
        let rx = &mut rma.hosts[h as usize].rx;
        let shared = self.hosts.list[h as usize].unit.as_deref().map(|unit| &unit.to_memory);
        rx.free_at = transfer(shared, rx.free_at.max(self.now), u64::from(payload) * pcie.byte_ps);
        rx.row.push_back((rx.free_at + pcie.write_ps, id));
        if rx.row.len() == 1 {
            let at = rx.free_at + pcie.write_ps;
            self.set_timer(Source::Received(h), at);
        }
    }

    /// A message's payload is in memory.
    pub(crate) fn on_message_written(&mut self, h: u32) {
        let rma = &mut self.hosts.one_rma;
        let rx = &mut rma.hosts[h as usize].rx;
        let Some((_, id)) = rx.row.pop_front() else { return };
        if let Some((at, _)) = rx.row.front().copied() {
            self.set_timer(Source::Received(h), at);
        }
        self.deliver_message(h, id);
    }

    fn deliver_message(&mut self, h: u32, id: u32) {
        let from = self.fabric.packets.descriptor(id).flow.src;
        if self.watch.journal.is_on() {
            self.tell_message(h, "takes ", id);
        }
        let mut message = core::mem::take(self.fabric.packets.payload_mut(id));
        let host = &mut self.hosts.one_rma.hosts[h as usize];
        host.nic.on_frame(Instant::from_ps(self.now), from, &mut message);
        *self.fabric.packets.payload_mut(id) = message;
        self.fabric.packets.give(id);
        self.watch.stats.delivered += 1;
        self.after_rma(h);
    }

    /// After the NIC was called: its completions, the software's next commands, its messages, its timer.
    pub(crate) fn after_rma(&mut self, h: u32) {
        // A Rekey of an own region ends when it enters service, so sending may complete something.
        loop {
            while self.run_software(h) {}
            self.host_send(h);
            if !self.run_software(h) {
                break;
            }
        }
        let host = &self.hosts.one_rma.hosts[h as usize];
        let deadlines = host.nic.next_deadline().into_iter().chain(host.executor.next_deadline());
        let deadlines = deadlines.map(|at| at.as_ps()).chain(host.busy_until(self.now));
        if let Some(deadline) = deadlines.min() {
            self.wake_by(Source::Deadline(h), deadline.max(self.now));
        }
    }

    /// A deadline of a host's NIC or software has come.
    pub(crate) fn on_rma_timer(&mut self, h: u32) {
        self.hosts.one_rma.hosts[h as usize].nic.on_timer(Instant::from_ps(self.now));
        self.after_rma(h);
    }

    /// Flips a bit of a message that was damaged on the way: its NIC must find that.
    #[cold]
    pub(crate) fn damage_message(&mut self, id: u32) {
        let digest = self.fabric.packets.hot[id as usize].digest;
        let bytes = self.fabric.packets.payload_mut(id);
        let bit = (crate::watch::trace::mix(digest) % (bytes.len() as u64 * 8)) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.watch.stats.corrupted += 1;
    }

    #[cold]
    fn tell_message(&mut self, h: u32, what: &str, id: u32) {
        let text = describe(self.fabric.packets.payload(id).unwrap_or_default());
        self.watch.journal.add(self.now, format_args!("host {h}"), format_args!("{what}{text}"));
    }

    /// Time that an operation of a flow takes in an idle network, in ps: see
    /// [`Sim::ideal_ps`](crate::Sim::ideal_ps).
    pub(crate) fn rma_ideal_ps(&self, flow: &crate::Flow) -> u64 {
        let rma = &self.hosts.one_rma;
        let spec = flow.spec;
        // Whoever asks for it: bytes leave the one's memory for the other's.
        let (source, sink) = (rma.hosts[spec.src as usize].pcie, rma.hosts[spec.dst as usize].pcie);
        let byte_ps = source.byte_ps.max(sink.byte_ps);
        let way = |from: u32, to: u32, bytes: u32| -> u64 {
            let path = self.fabric.routes.path(&self.config.topology, from, to, 0);
            path.into_iter()
                .map(|l| {
                    self.fabric.links[l as usize].delay + self.fabric.links[l as usize].serialization(bytes)
                })
                .sum()
        };
        let op = u32::from(rma.config.executor.op_size);
        let ops = u64::from(spec.bytes.div_ceil(op).max(1));
        let first = spec.bytes.min(op);
        let wire = |payload: u32| on_link(payload + (HEAD_LEN + 4 + TAG_LEN) as u32);
        let rate = |l: u32| self.fabric.links[l as usize].serialization(wire(first));
        let path = || self.fabric.routes.path(&self.config.topology, spec.src, spec.dst, 0);
        let slowest = path().into_iter().map(rate).max().unwrap_or(0).max(u64::from(first) * byte_ps);
        let data = way(spec.src, spec.dst, wire(first)) + slowest * (ops - 1);
        let memory = u64::from(first) * (source.byte_ps + sink.byte_ps) + source.read_ps + sink.write_ps;
        let request = on_link((HEAD_LEN + 20 + TAG_LEN) as u32);
        match spec.op {
            crate::Verb::Read => way(spec.dst, spec.src, request) + data + memory,
            _ => {
                let solicitation = on_link((HEAD_LEN + 8 + TAG_LEN) as u32);
                let completion = on_link((HEAD_LEN + TAG_LEN) as u32);
                way(spec.src, spec.dst, request)
                    + way(spec.dst, spec.src, solicitation)
                    + data
                    + memory
                    + way(spec.dst, spec.src, completion)
            }
        }
    }
}

/// When a transfer ends that may begin at a time. Where the host's other NIC has costs too, the two share one
/// PCIe, in the order in which they ask for it.
fn transfer(shared: Option<&Way>, from: u64, takes: u64) -> u64 {
    shared.map_or(from + takes, |way| way.take(from, takes))
}

/// A message, as replays show it.
pub(crate) fn describe(message: &[u8]) -> String {
    Header::parse(message)
        .map_or_else(|error| format!("no message: {error}"), |h| format!("{} {:?}", h.counter, h.body))
}

/// Bytes of a message's payload; none of what is no message.
fn payload_len(message: &[u8]) -> u32 {
    Header::parse(message).map_or(0, |header| (message.len() - header.len() - TAG_LEN) as u32)
}
