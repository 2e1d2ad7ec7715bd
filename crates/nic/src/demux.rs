//! The way of a frame in: whose it is, told by its service and number before any queue pair is looked up, and
//! which transport takes it (IBTA 9.6).

use crate::admission::{admit, fits};
use crate::attr::{QpState, QpType};
use crate::congestion;
use crate::counters::Counters;
use crate::endpoint::Endpoints;
use crate::engine::wake::wake;
use crate::event::Event;
use crate::memory::Payload;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue_pair::QueuePair;
use crate::star::service;
use crate::transport::{rc, uc, ud};
use adverb_wire::{Bth, Instant, Packet, QpNumber, Service};

/// Whose a frame is.
enum Destination {
    /// The queue pair's with this index, if there is one.
    QueuePair(u32),
    /// Congestion control's of that queue pair.
    Notification(u32),
    /// StaR's, of the queue pair or the endpoint with this index, or of the half that knows neither.
    Star(u32),
    /// The same where nobody has a service or is a client of one: then whose it is need not be looked up.
    Stateless,
    /// The connection manager's.
    Manager,
    /// Every member's of a multicast group.
    Multicast,
    Nobody,
}

/// Whether the program at the other end speaks, so that its queue pair is up. Where PSNs are in order, only
/// who knows the next one is believed; IRN's hello, which is between the NICs, has one of the past.
fn is_peers_program(qp: &Qp, packet: &Packet) -> bool {
    let Bth { opcode, psn, .. } = packet.bth;
    let is_next = !qp.is_reliable() || psn == qp.responder.expected();
    is_next && !opcode.operation().is_response()
}

/// A frame came for a number whose owner is no queue pair: an endpoint without a transport takes in as little
/// as a queue pair in RESET does, and of everything else nothing is known.
#[cold]
fn drop_unowned(counters: &mut Counters, index: u32) {
    if Endpoints::has_index(index) {
        counters.drop_qp_state += 1;
    } else {
        counters.drop_unknown_qp += 1;
    }
}

impl Nic {
    /// Brings a frame to its transport.
    #[inline]
    pub(crate) fn demux(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        match self.destination(packet) {
            Destination::QueuePair(index) => self.deliver(index, now, packet, payload),
            Destination::Notification(index) => self.on_notification(index, now, packet),
            Destination::Star(index) if service::has_index(index) => {
                self.on_native_frame(index, now, packet, payload);
            }
            Destination::Star(index) => {
                if !self.on_star_frame(now, packet, payload) {
                    self.deliver_again(index, now, packet, payload);
                }
            }
            Destination::Stateless => {
                if !self.on_star_frame(now, packet, payload) {
                    self.deliver_again(self.numbers.owner(packet.bth.dest_qp), now, packet, payload);
                }
            }
            Destination::Manager => self.on_management(now, packet, payload),
            Destination::Multicast => self.on_multicast(now, packet, payload),
            Destination::Nobody => self.state.counters.drop_unknown_qp += 1,
        }
    }

    #[inline]
    fn destination(&self, packet: &Packet) -> Destination {
        let number = packet.bth.dest_qp;
        if number == QpNumber::MULTICAST {
            return Destination::Multicast;
        }
        let opcode = packet.bth.opcode;
        let index = if number == QpNumber::GSI {
            match self.gsi {
                Some(gsi) => gsi.index,
                None if self.manager.is_some() => return Destination::Manager,
                None => return Destination::Nobody,
            }
        } else if opcode.is_of(Service::Star) && self.native.is_none() {
            return Destination::Stateless;
        } else {
            self.numbers.owner(number)
        };
        // The upper half of the opcodes: XRC and IRN's are queue pairs' too.
        if opcode.wire() < 0x80 {
            Destination::QueuePair(index)
        } else if opcode.is_of(Service::Cnp) {
            Destination::Notification(index)
        } else if opcode.is_of(Service::Star) {
            Destination::Star(index)
        } else {
            Destination::QueuePair(index)
        }
    }

    /// Apart from the way of most frames.
    #[cold]
    fn deliver_again(&mut self, index: u32, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        self.deliver(index, now, packet, payload);
    }

    /// A frame for a number that no queue pair has. It may let an endpoint become one.
    #[cold]
    fn deliver_elsewhere(&mut self, index: u32, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        if self.on_plain_frame(index, packet) {
            self.deliver_again(self.numbers.owner(packet.bth.dest_qp), now, packet, payload);
        } else {
            drop_unowned(&mut self.state.counters, index);
        }
    }

    #[inline]
    fn deliver(&mut self, index: u32, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        self.prefetch_next_frame(index);
        let nic = &mut self.state;
        let Some(pair) = self.qps.at(index) else {
            return self.deliver_elsewhere(index, now, packet, payload);
        };
        if !admit(pair, &mut nic.counters, packet) || !fits(&pair.qp, &mut nic.counters, packet, payload) {
            return;
        }
        let QueuePair { qp, mode } = pair;
        congestion::on_received(qp, nic, packet, now);
        if !qp.responder.heard && is_peers_program(qp, packet) {
            qp.responder.heard = true;
            if qp.state == QpState::Rtr {
                nic.event(Event::CommunicationEstablished(qp.id));
            }
            if let Some(manager) = self.manager.as_deref_mut() {
                manager.heard(qp.num, nic);
            }
        }
        match qp.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                if qp.held {
                    return self.deliver_held(index, now, packet, payload);
                }
                rc::on_packet(qp, mode, nic, now, packet, payload);
                self.timers.track(pair);
                if self.answers_first && pair.owes() && !pair.qp.ready && !pair.qp.parked {
                    pair.qp.ready = true;
                    self.ready.push_first(index);
                }
                wake(pair, &mut self.ready);
            }
            QpType::Uc => uc::on_request(qp, nic, now, packet, payload),
            QpType::Ud | QpType::Gsi => ud::on_datagram(qp, nic, now, packet, payload),
        }
    }

    /// A frame for a queue pair that changes its stack: what it has waited for may have come.
    #[cold]
    fn deliver_held(&mut self, index: u32, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let Some(pair) = self.qps.at(index) else { return };
        let (name, number, is_star) = (pair.qp.id, pair.qp.num, pair.mode.is_star());
        let is_request = packet.bth.opcode.is_of(Service::Rc) && !packet.bth.opcode.operation().is_response();
        if is_star && is_request && self.awaits_plain(name) == Some(packet.bth.psn) {
            self.on_plain_instead(now, name);
            return self.deliver_again(self.numbers.owner(number), now, packet, payload);
        }
        let Some(pair) = self.qps.at(index) else { return };
        let QueuePair { qp, mode } = pair;
        rc::on_packet(qp, mode, &mut self.state, now, packet, payload);
        self.timers.track(pair);
        wake(pair, &mut self.ready);
        self.on_held_moved(now, name);
    }

    /// A notification of congestion came. It is heeded if it is from the peer of a connection that is up;
    /// whatever else it says does not matter (IBTA A17.9.3).
    #[cold]
    fn on_notification(&mut self, index: u32, now: Instant, packet: &Packet) {
        let nic = &mut self.state;
        let Some(pair) = self.qps.at(index) else { return drop_unowned(&mut nic.counters, index) };
        nic.counters.cnps_received += 1;
        if admit(pair, &mut nic.counters, packet) {
            congestion::on_cnp(&mut pair.qp, nic, now);
        }
    }

    fn on_multicast(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let count = self.groups.members(packet.flow.dst).len();
        if count == 0 {
            self.state.counters.drop_no_member += 1;
        }
        for at in 0..count {
            let id = self.groups.members(packet.flow.dst)[at];
            self.deliver(id.index, now, packet, payload);
        }
    }
}
