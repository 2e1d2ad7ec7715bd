//! What peers say: messages of 256 bytes that anybody may have made. A message is believed about a connection
//! only if it came from the connection's peer and names both ids, as far as both are known.

use super::table::State;
use super::types::{Address, ConnectionId, ListenerId, Offer, Reason, Reply, Request, Service, What};
use super::{Cm, exponents};
use adverb_wire::cm::{
    Drep, Dreq, IP_HEADER_LEN, IpHeader, Mad, Message, Mra, Private, Rej, Rep, Req, Rtu, ServiceType, Side,
    Stage,
};
use adverb_wire::{Duration, Gid, Instant};

/// A time as it is said on the wire: 4.096 us * 2^n.
pub(super) fn time(exponent: u8, max: u8) -> Duration {
    Duration::from_ns(4096 << exponent.min(max))
}

/// After how long the one who was asked repeats its REP and its DREQ: the time in which the requester says
/// that it answers (IBTA 12.7, Local CM Response Timeout), in milliseconds as Linux's ib_cm rounds it: 4096
/// for rdma_cm's 20, and at least one.
fn repeats_after(exponent: u8) -> Duration {
    Duration::from_ms(1 << exponent.min(exponents::RESPONSE_MAX).saturating_sub(8))
}

fn offer_of(side: &Side) -> Offer {
    Offer {
        qpn: side.qpn,
        psn: side.psn,
        responder_resources: side.responder_resources,
        initiator_depth: side.initiator_depth,
        flow_control: side.flow_control,
        rnr_retry: side.rnr_retry,
        srq: side.srq,
    }
}

impl Cm {
    /// Takes in a MAD that has come from an address.
    pub fn receive(&mut self, now: Instant, from: Gid, mad: &[u8]) {
        let Ok(mad) = Mad::parse(mad) else {
            self.counters.cm_drop_malformed += 1;
            return;
        };
        self.counters.cm_received += 1;
        self.take_in(now, from, mad);
    }

    /// The same of one that can be read.
    pub(super) fn take_in(&mut self, now: Instant, from: Gid, Mad { transaction, message }: Mad) {
        match message {
            Message::Req(req) => self.on_req(now, from, transaction, &req),
            Message::Mra(mra) => self.on_mra(now, from, &mra),
            Message::Rej(rej) => self.on_rej(now, from, &rej),
            Message::Rep(rep) => self.on_rep(from, transaction, &rep),
            Message::Rtu(rtu) => self.on_rtu(from, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now, from, transaction, &dreq),
            Message::Drep(drep) => self.on_drep(now, from, &drep),
            Message::SidrReq(req) => self.on_sidr_req(now, from, transaction, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(now, from, &rep),
        }
    }

    /// The listener for a service at an address. One that is bound to the address goes before one that is
    /// bound to any.
    pub(super) fn listener_of(&self, service: Service, dst: Gid) -> Option<ListenerId> {
        let all = self.by_service.get(&service)?;
        let address = |id: &ListenerId| self.listeners.get(*id).map(|listener| listener.listen.address);
        let takes = |id: &&ListenerId| address(id).is_some_and(|address| address.takes(dst));
        let is_exact = |id: &&ListenerId| address(id) == Some(Address::One(dst));
        all.iter().find(is_exact).or_else(|| all.iter().find(takes)).copied()
    }

    fn refuse_req(&mut self, from: Gid, transaction: u64, req: &Req, reason: Reason) {
        let rej = Rej { remote_id: req.local_id, stage: Stage::Req, reason: reason.0, ..Rej::default() };
        self.send(from, transaction, Message::Rej(rej));
    }

    fn on_req(&mut self, now: Instant, from: Gid, transaction: u64, req: &Req) {
        if let Some(connection) = self.table.of_peer((from.0, req.local_id, false)) {
            let id = connection.id;
            self.counters.cm_duplicates += 1;
            return self.on_req_again(id, transaction, req);
        }
        if let Some(other) = self.table.of_pair((req.side.ca_guid, req.side.qpn)) {
            // The peer knows nothing of that connection, or would not ask for another (IBTA 12.9.8.3.1).
            let (id, is_peers) = (other.id, other.peer == from);
            self.counters.cm_refused_stale += 1;
            self.refuse_req(from, transaction, req, Reason::STALE);
            if is_peers {
                // It is there.
                let _ = self.disconnect(now, id);
            }
            return;
        }
        match self.check_req(req) {
            Ok((service, header, listener)) => {
                self.take_req((from, transaction), req, service, &header, listener);
            }
            Err(Reason::INVALID_SERVICE) if self.keep_req(now, from, transaction, req) => {}
            Err(reason) => {
                match reason {
                    Reason::INVALID_SERVICE => self.counters.cm_refused_service += 1,
                    Reason::CONSUMER => self.counters.cm_refused_backlog += 1,
                    _ => self.counters.cm_refused_invalid += 1,
                }
                self.refuse_req(from, transaction, req, reason);
            }
        }
    }

    /// Keeps a request whose listener may come back.
    fn keep_req(&mut self, now: Instant, from: Gid, transaction: u64, req: &Req) -> bool {
        let mad = Mad { transaction, message: Message::Req(*req) };
        Service::of(req.service_id).is_some_and(|service| self.keep(now, from, service, mad))
    }

    /// Whether a request can be taken, and by whom.
    fn check_req(&self, req: &Req) -> Result<(Service, IpHeader, ListenerId), Reason> {
        if req.service != ServiceType::Rc {
            return Err(Reason::TRANSPORT);
        }
        let service = Service::of(req.service_id).ok_or(Reason::INVALID_SERVICE)?;
        let header = IpHeader::parse(&req.private.0).ok_or(Reason::INVALID_SERVICE)?;
        if !self.own.contains(&req.remote_gid) {
            return Err(Reason::INVALID_GID);
        }
        if !(1..=5).contains(&req.mtu) {
            return Err(Reason::INVALID_MTU);
        }
        let id = self.listener_of(service, header.dst).ok_or(Reason::INVALID_SERVICE)?;
        let listener = self.listeners.get(id).ok_or(Reason::INVALID_SERVICE)?;
        if listener.waiting >= listener.listen.backlog {
            return Err(Reason::CONSUMER);
        }
        Ok((service, header, id))
    }

    fn take_req(
        &mut self,
        (from, transaction): (Gid, u64),
        req: &Req,
        service: Service,
        header: &IpHeader,
        listener: ListenerId,
    ) {
        let Some(taker) = self.listeners.get_mut(listener) else { return };
        let Some(connection) = self.table.insert(from, taker.listen.cookie) else {
            self.counters.cm_refused_full += 1;
            return self.refuse_req(from, transaction, req, Reason::NO_RESOURCES);
        };
        taker.waiting += 1;
        let id = connection.id;
        connection.remote = req.local_id;
        connection.state = State::ReqReceived;
        connection.transaction = transaction;
        connection.waits = Some(listener);
        connection.interval = repeats_after(req.local_timeout);
        connection.retries = req.max_cm_retries;
        self.table.set_peer(id, false, Some((req.side.ca_guid, req.side.qpn)));
        self.counters.cm_requests += 1;
        let mut private = Private::default();
        private.0.copy_from_slice(&req.private.0[IP_HEADER_LEN..]);
        let request = Request {
            service,
            from,
            src: header.src,
            src_port: header.src_port,
            dst: header.dst,
            offer: offer_of(&req.side),
            retry_count: req.retry_count,
            mtu: req.mtu,
            ack_timeout: req.ack_timeout,
            traffic_class: req.traffic_class,
            private,
        };
        self.tell(id, What::Request(listener, request));
    }

    /// A REQ has come before: it is answered as it was, or the peer is asked for patience.
    fn on_req_again(&mut self, id: ConnectionId, transaction: u64, req: &Req) {
        let Some(connection) = self.table.get(id) else { return };
        let (peer, remote_id) = (connection.peer, connection.remote);
        match connection.state {
            State::ReqReceived => {
                let mra = Mra {
                    local_id: id.0,
                    remote_id,
                    stage: Stage::Req,
                    timeout: exponents::MRA,
                    private: Private::default(),
                };
                self.counters.cm_answered_again += 1;
                self.send(peer, transaction, Message::Mra(mra));
            }
            State::RepSent | State::Refused => self.send_again(id),
            State::Timewait => {
                self.counters.cm_refused_stale += 1;
                self.refuse_req(peer, transaction, req, Reason::STALE);
            }
            _ => self.counters.cm_drop_state += 1,
        }
    }

    /// The connection that a message names with both ids, if it came from its peer.
    pub(super) fn named(&mut self, from: Gid, own: u32, peers: u32) -> Option<ConnectionId> {
        let found = self.table.get(ConnectionId(own));
        let found = found.filter(|connection| {
            connection.peer == from && (connection.remote == peers || connection.remote == 0)
        });
        let id = found.map(|connection| connection.id);
        if id.is_none() {
            self.counters.cm_unknown += 1;
        }
        id
    }

    fn on_rep(&mut self, from: Gid, transaction: u64, rep: &Rep) {
        let Some(id) = self.named(from, rep.remote_id, rep.local_id) else {
            // Its sender would repeat it for a minute.
            let rej = Rej {
                local_id: rep.remote_id,
                remote_id: rep.local_id,
                stage: Stage::Rep,
                reason: Reason::INVALID_ID.0,
                ..Rej::default()
            };
            return self.send(from, transaction, Message::Rej(rej));
        };
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            State::ReqSent => {
                connection.remote = rep.local_id;
                connection.state = State::RepReceived;
                connection.message = None;
                self.table.set_deadline(id, Instant::NEVER);
                self.table.set_peer(id, false, Some((rep.side.ca_guid, rep.side.qpn)));
                self.tell(id, What::Reply(Reply { offer: offer_of(&rep.side), private: rep.private }));
            }
            // The RTU, or the refusal, was lost.
            State::Established | State::Refused => {
                self.counters.cm_duplicates += 1;
                self.send_again(id);
            }
            // The program has not seen it yet.
            State::RepReceived => {
                let mra = Mra {
                    local_id: id.0,
                    remote_id: rep.local_id,
                    stage: Stage::Rep,
                    timeout: exponents::MRA,
                    private: Private::default(),
                };
                self.counters.cm_duplicates += 1;
                self.counters.cm_answered_again += 1;
                self.send(from, transaction, Message::Mra(mra));
            }
            State::DreqSent | State::Timewait => self.counters.cm_duplicates += 1,
            _ => self.counters.cm_drop_state += 1,
        }
    }

    fn on_rtu(&mut self, from: Gid, rtu: &Rtu) {
        let Some(id) = self.named(from, rtu.remote_id, rtu.local_id) else { return };
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            State::RepSent => self.is_up(id),
            State::Established | State::DreqSent | State::Timewait => self.counters.cm_duplicates += 1,
            _ => self.counters.cm_drop_state += 1,
        }
    }

    fn on_mra(&mut self, now: Instant, from: Gid, mra: &Mra) {
        let Some(id) = self.named(from, mra.remote_id, mra.local_id) else { return };
        let Some(connection) = self.table.get(id) else { return };
        match (connection.state, mra.stage) {
            (State::ReqSent, Stage::Req) | (State::RepSent, Stage::Rep) => {
                let at = now + connection.interval + time(mra.timeout, exponents::MRA_MAX);
                self.table.set_deadline(id, at);
            }
            _ => self.counters.cm_drop_state += 1,
        }
    }

    fn on_rej(&mut self, now: Instant, from: Gid, rej: &Rej) {
        let found = if rej.remote_id == 0 {
            // From a requester that never heard of this side's id.
            let found = self.table.of_peer((from.0, rej.local_id, false)).map(|connection| connection.id);
            self.counters.cm_unknown += u64::from(found.is_none());
            found
        } else if rej.local_id == 0 {
            let found = self.table.get(ConnectionId(rej.remote_id)).filter(|c| c.peer == from);
            let found = found.filter(|c| c.state == State::ReqSent).map(|c| c.id);
            self.counters.cm_unknown += u64::from(found.is_none());
            found
        } else {
            self.named(from, rej.remote_id, rej.local_id)
        };
        let Some(id) = found else { return };
        if rej.local_id == 0 && rej.reason == Reason::INVALID_SERVICE.0 && self.asks_again(now, id) {
            return;
        }
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            State::ReqSent | State::ReqReceived | State::RepSent | State::RepReceived => {
                connection.state = State::Idle;
                connection.message = None;
                self.no_longer_waits(id);
                self.table.set_deadline(id, Instant::NEVER);
                self.table.forget_peer(id);
                self.tell(id, What::Rejected(Reason(rej.reason), rej.private));
            }
            State::Refused => self.counters.cm_duplicates += 1,
            _ => self.counters.cm_drop_state += 1,
        }
    }

    fn on_dreq(&mut self, now: Instant, from: Gid, transaction: u64, dreq: &Dreq) {
        let drep = Drep { local_id: dreq.remote_id, remote_id: dreq.local_id, private: Private::default() };
        let known = self.named(from, dreq.remote_id, dreq.local_id);
        let Some(id) = known else {
            // Its sender would repeat it for a minute.
            return self.send(from, transaction, Message::Drep(drep));
        };
        let Some(connection) = self.table.get(id) else { return };
        if connection.qpn != dreq.qpn {
            self.counters.cm_drop_state += 1;
            return;
        }
        match connection.state {
            State::Established | State::RepSent | State::RepReceived | State::DreqSent => {
                self.send(from, transaction, Message::Drep(drep));
                self.end(now, id, What::Disconnected);
            }
            State::Timewait => {
                self.counters.cm_duplicates += 1;
                self.counters.cm_answered_again += 1;
                self.send(from, transaction, Message::Drep(drep));
            }
            _ => self.counters.cm_drop_state += 1,
        }
    }

    fn on_drep(&mut self, now: Instant, from: Gid, drep: &Drep) {
        let Some(id) = self.named(from, drep.remote_id, drep.local_id) else { return };
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            State::DreqSent => self.end(now, id, What::Disconnected),
            State::Timewait => self.counters.cm_duplicates += 1,
            _ => self.counters.cm_drop_state += 1,
        }
    }

    /// A connection has ended; it waits until nothing of it is on its way.
    pub(super) fn end(&mut self, now: Instant, id: ConnectionId, what: What) {
        let Some(connection) = self.table.get(id) else { return };
        connection.state = State::Timewait;
        connection.message = None;
        self.counters.cm_disconnected += 1;
        self.table.set_deadline(id, now + self.config.timewait);
        self.tell(id, what);
    }
}
