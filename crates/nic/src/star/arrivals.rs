//! Frames of StaR that are no queue pair's mode's: what is for the stateless half, for an endpoint, or for
//! whoever is about to become something else. Which of them a packet is for, its kind says.

use super::{Hosted, PSN_BACK, Phase, StarNic, grant_of, library};
use crate::attr::QpState;
use crate::endpoint::Place;
use crate::event::StarOutcome;
use crate::memory::Payload;
use crate::nic::Nic;
use crate::transport::rc::star::{Star, record};
use crate::transport::star::{Atomics, News, Role, role};
use adverb_wire::star::{Hello, Op, StarEth, features};
use adverb_wire::{Gid, Instant, Operation, Packet, Psn, QpNumber, Service};

impl StarNic {
    /// A peer has said hello to an endpoint.
    fn on_spoken(&mut self, index: u32, peer: (Gid, QpNumber), hello: &Hello) {
        self.silent.forget(peer);
        if let Some(era) = self.eras.get_mut(&index) {
            (era.speaks, era.features) = (true, hello.features);
            era.is_too_large = self.config.refuses(hello);
        }
    }
}

impl Hosted {
    /// The peer is to have the state of a connection whose requests begin at `base`.
    fn hand_over_from(&mut self, now: Instant, base: Psn, peer: &Hello) {
        self.phase = Phase::Handing;
        self.hand_over = true;
        self.base = base;
        self.features = features::agreed(self.told.features, peer.features);
        self.library.heard_at(now);
    }
}

/// Frames of StaR.
impl Nic {
    /// Takes in a packet that is not for a queue pair's mode. False for one that is.
    #[cold]
    pub(crate) fn on_star_frame(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) -> bool {
        let operation = packet.bth.opcode.operation();
        match operation {
            Operation::RemoteData | Operation::GetData => {
                let Some(star) = &mut self.star else {
                    self.state.counters.drop_wrong_service += 1;
                    return true;
                };
                star.stateless.prefetch_history(packet);
                let state = &mut self.state;
                let eth = StarEth::from(packet.irn);
                if operation == Operation::GetData
                    && matches!(eth.op(), Some(Op::CompareSwap | Op::FetchAdd))
                    && !eth.has(StarEth::POSTED)
                {
                    let owner = self.numbers.owner(packet.bth.dest_qp);
                    let name = self.endpoints.name_at(owner);
                    // Without an endpoint the number does not live, and no ticket lets the packet in.
                    let mut none = Atomics::default();
                    let record = match name.and_then(|name| self.endpoints.get_mut(name)) {
                        Some(Place::Off(endpoint)) => endpoint.atomics(),
                        _ => None,
                    };
                    let record = record.unwrap_or(&mut none);
                    star.stateless.on_atomic(packet, payload, &state.memory, record, &mut state.counters);
                    state.has_effects |= star.stateless.has_answers();
                    return true;
                }
                let posted = eth.has(StarEth::POSTED);
                let host = match posted {
                    true => library::queues_of(&self.endpoints, &self.numbers, packet.bth.dest_qp),
                    false => None,
                };
                let stateless = &mut star.stateless;
                let news = stateless.on_request(
                    now,
                    packet,
                    payload,
                    &state.memory,
                    host.as_ref(),
                    &mut state.counters,
                );
                state.has_effects |= stateless.has_answers();
                match news {
                    News::Nothing => {}
                    News::Heard => self.on_request_heard(now, packet),
                    News::Complete(merged) => self.on_merged(now, packet, merged, payload.len() as u32),
                }
            }
            Operation::WqeEventAcknowledge => self.on_work_acknowledged(now, packet),
            Operation::WqePacket => {
                if self.on_record(now, packet, payload) || self.refuse_record(packet, payload) {
                    return true;
                }
                if !self.is_no_star(packet) {
                    return false;
                }
                self.state.counters.star_drop_earlier += 1;
            }
            Operation::CqePacket => self.on_completions(now, packet, payload),
            Operation::Hello if StarEth::from(packet.irn).has(StarEth::MIGRATION) => {
                self.on_switch(now, packet, payload);
            }
            Operation::Hello => self.on_hello(now, packet, payload),
            // Of a StaR that the connection was before.
            _ if self.is_no_star(packet) => self.state.counters.star_drop_earlier += 1,
            _ => return false,
        }
        true
    }

    /// Whether a packet of StaR came for a queue pair that is plain RC now, and has been asked for StaR.
    fn is_no_star(&self, packet: &Packet) -> bool {
        let pair = self.qps.peek(self.numbers.owner(packet.bth.dest_qp));
        self.star.is_some() && pair.is_some_and(|pair| !pair.mode.is_star() && pair.qp.dst == packet.flow.src)
    }

    /// The peer says hello.
    fn on_hello(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let index = self.numbers.owner(packet.bth.dest_qp);
        let mut bytes = [0; Hello::LEN];
        if payload.len() == Hello::LEN && !payload.is_elided() {
            payload.read(0, &mut bytes);
        }
        let (Some(hello), Some(star)) = (Hello::read(&bytes), &mut self.star) else {
            self.state.counters.drop_wrong_service += 1;
            return;
        };
        let next = packet.bth.psn.add(PSN_BACK);
        if self.qps.at(index).is_some() {
            // It is decided.
            self.state.counters.drop_hello += 1;
            return;
        }
        let Some(name) = self.endpoints.name_at(index) else {
            self.state.counters.drop_unknown_qp += 1;
            return;
        };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        // Before RTS its program has not said yet where it begins.
        let is_known = endpoint.state != QpState::Rtr;
        let fits = endpoint.takes(packet) && (next == endpoint.next_psn() || !is_known);
        let ends = ((endpoint.num, packet.flow.dst), (endpoint.peer, packet.flow.src));
        let Some(hosted) = endpoint.star.as_deref_mut().filter(|_| fits) else {
            self.state.counters.drop_hello += 1;
            return;
        };
        star.on_spoken(index, (endpoint.dst, endpoint.peer), &hello);
        hosted.answer |= packet.bth.ack_req;
        if let Phase::Asking | Phase::Silent = hosted.phase {
            if !packet.bth.ack_req {
                hosted.measure(now);
            }
            let ((own, here), (peer, there)) = ends;
            let decided = role((&hosted.told, here, own), (&hello, there, peer));
            if decided == Role::Stateful && !star.config.refuses(&hello) {
                // The peer's state comes next; until then, this side goes on asking.
                if hosted.phase == Phase::Silent {
                    (hosted.phase, hosted.ask) = (Phase::Asking, true);
                }
                hosted.sent = 0;
                return self.star_due(name);
            }
            (hosted.ask, hosted.at, hosted.sent) = (false, Instant::NEVER, 0);
            if decided == Role::Stateless {
                hosted.hand_over_from(now, next, &hello);
                let agreed = hosted.features;
                let ticket = star.stateless.bring_to_life(own, there, grant_of(endpoint, agreed));
                if let Some(hosted) = endpoint.star.as_deref_mut() {
                    hosted.ticket = ticket;
                }
            } else {
                let outcome = match decided {
                    Role::Conflict => StarOutcome::Conflict,
                    Role::Stateful => StarOutcome::TooLarge,
                    _ => StarOutcome::Few,
                };
                hosted.phase = Phase::Leaving(outcome);
                if !hosted.answer {
                    return self.leave_for(name, outcome);
                }
            }
        }
        self.star_due(name);
    }

    /// Extensions that this NIC has offered: a peer may not ask for others.
    fn own_features(&self) -> u8 {
        self.star.as_ref().map_or(0, |star| star.config.features())
    }

    /// The peer hands its state over to an endpoint: a queue pair gets the queues, and keeps it. False for a
    /// queue pair, which knows.
    fn on_record(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) -> bool {
        let index = self.numbers.owner(packet.bth.dest_qp);
        let Some(name) = self.endpoints.name_at(index) else {
            return self.on_record_of_switch(now, index, packet, payload);
        };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return false };
        let (first, peer_psn) = (endpoint.next_psn(), endpoint.expected());
        let waits = endpoint.star.as_deref().is_some_and(Hosted::may_be_stateful) && endpoint.takes(packet);
        match record(packet, payload, peer_psn).filter(|_| waits) {
            Some(mut record) => {
                record.features = features::agreed(record.features, self.own_features());
                let star = Star::new(first, peer_psn, &record, &self.state, now);
                self.leave_in(name, StarOutcome::Stateful, Some(star));
            }
            None => self.state.counters.drop_hello += 1,
        }
        true
    }

    /// The peer hands its state over to who has become plain RC because that is too much: it hears so.
    fn refuse_record(&mut self, packet: &Packet, payload: &Payload<'_>) -> bool {
        let index = self.numbers.owner(packet.bth.dest_qp);
        let Some(pair) = self.qps.at(index).filter(|pair| !pair.mode.is_star()) else { return false };
        let (name, dst) = (pair.qp.id, pair.qp.dst);
        let Some(star) = &mut self.star else { return false };
        let Some(era) = star.eras.get_mut(&name.index) else { return false };
        let is_of_peer = era.is_too_large && packet.flow.src == dst;
        let Some(record) = record(packet, payload, era.first.1).filter(|_| is_of_peer) else { return false };
        if era.refuses.replace(record.ticket).is_none() {
            self.say(name);
        }
        true
    }

    /// The same, for a queue pair of plain RC that has committed to a switch: it gets the peer's state.
    fn on_record_of_switch(
        &mut self,
        now: Instant,
        index: u32,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> bool {
        let Some(pair) = self.qps.at(index).filter(|pair| !pair.mode.is_star()) else { return false };
        let (name, dst) = (pair.qp.id, pair.qp.dst);
        let (first, peer_psn) = (pair.qp.requester.next_psn(), pair.qp.responder.expected());
        if !self.awaits_record(name) || packet.flow.src != dst {
            return false;
        }
        let Some(mut record) = record(packet, payload, peer_psn) else { return false };
        record.features = features::agreed(record.features, self.own_features());
        let began = |nic: &Nic| Star::new(first, peer_psn, &record, &nic.state, now);
        self.become_stateful(now, name, began)
    }

    /// A request of plain RC came for an endpoint: if it fits the connection, the endpoint's queues go to a
    /// queue pair, which takes it. Not any more when the peer has the state.
    #[cold]
    pub(crate) fn on_plain_frame(&mut self, index: u32, packet: &Packet) -> bool {
        let Some(name) = self.endpoints.name_at(index).filter(|_| self.star.is_some()) else { return false };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return false };
        let fits = packet.bth.opcode.is_of(Service::Rc)
            && !packet.bth.opcode.operation().is_response()
            && endpoint.takes(packet)
            && packet.bth.psn == endpoint.expected();
        let decided = endpoint
            .star
            .as_deref()
            .is_some_and(|hosted| hosted.phase == Phase::Stateless || hosted.switched);
        if !fits || decided {
            return false;
        }
        self.leave_for(name, StarOutcome::PlainRequest);
        matches!(self.endpoints.get(name), Some(Place::On(_)))
    }
}
