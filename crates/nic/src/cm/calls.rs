//! What programs ask of the connection manager.

use super::table::State;
use super::types::{CmError, Connect, ConnectionId, Cookie, Listen, ListenerId, Offer, Reason, What};
use super::{Cm, Listener, exponents};
use crate::limits;
use adverb_wire::cm::{Dreq, IP_HEADER_LEN, IpHeader, Message, Private, Rej, Rep, Req, Rtu, Side, Stage};
use adverb_wire::{Duration, Gid, Instant, QpNumber};

/// Retry counts have three bits.
const RETRY_MAX: u8 = 7;
/// The full partition.
const PKEY: u16 = 0xffff;
/// Hop limit of the path, as rdma_cm has it.
const HOP_LIMIT: u8 = 64;
/// Target ACK delay, as Linux's rxe says it.
const ACK_DELAY: u8 = 15;
/// A process that ends repeats its DREQs so soon, and so often.
const PARTING_INTERVAL: Duration = Duration::from_ms(20);
const PARTING_REPEATS: u8 = 9;
const TOO_LONG: CmError = CmError::Invalid("private data: longer than the message has room for");

/// rdma_cm's header, and the program's data behind it.
pub(super) fn with_header<const N: usize>(
    (src, src_port, dst): (Gid, u16, Gid),
    data: &[u8],
) -> Result<Private<N>, CmError> {
    let header = IpHeader { ipv4: dst.is_ipv4() && src.is_ipv4(), src_port, src, dst };
    let mut private = Private::default();
    private.0[..IP_HEADER_LEN].copy_from_slice(&header.emit());
    let room = private.0.get_mut(IP_HEADER_LEN..IP_HEADER_LEN + data.len()).ok_or(TOO_LONG)?;
    room.copy_from_slice(data);
    Ok(private)
}

impl Cm {
    /// Takes requests for a service from now on. Which ports are free is not asked here.
    pub fn listen(&mut self, now: Instant, listen: &Listen) -> Result<ListenerId, CmError> {
        let backlog = match listen.backlog {
            0 => limits::MAX_CM_BACKLOG,
            some => some.min(limits::MAX_CM_BACKLOG),
        };
        let listener = Listener { listen: Listen { backlog, ..*listen }, waiting: 0 };
        let id = self.listeners.insert(listener).map_err(|_| CmError::TableFull)?;
        self.by_service.entry(listen.service).or_default().push(id);
        self.give_kept(now, listen.service);
        Ok(id)
    }

    /// Takes no more. Its requests that nobody has taken or answered are rejected ([`Reason::CONSUMER`]).
    pub fn unlisten(&mut self, now: Instant, listener: ListenerId) -> Result<(), CmError> {
        let gone = self.listeners.remove(listener).ok_or(CmError::NoSuchObject)?;
        let service = gone.listen.service;
        if let Some(others) = self.by_service.get_mut(&service) {
            others.retain(|other| *other != listener);
            if others.is_empty() {
                self.by_service.remove(&service);
                self.expect_listener(now, service.port);
            }
        }
        if gone.waiting > 0 {
            for id in self.table.ids() {
                if self.table.get(id).is_some_and(|connection| connection.waits == Some(listener)) {
                    self.destroy(now, id)?;
                }
            }
        }
        Ok(())
    }

    /// Changes what events of a listener's later requests bring back.
    pub fn set_listener_cookie(&mut self, listener: ListenerId, cookie: Cookie) -> Result<(), CmError> {
        self.listeners.get_mut(listener).ok_or(CmError::NoSuchObject)?.listen.cookie = cookie;
        Ok(())
    }

    /// The program has taken a request: it no longer counts against its listener's backlog
    /// (`rdma_get_cm_event`). It still wants an answer.
    pub fn taken(&mut self, id: ConnectionId) {
        self.no_longer_waits(id);
    }

    /// Sends a REQ. Ends in [`What::Reply`], [`What::Rejected`] or [`What::Unreachable`].
    pub fn connect(&mut self, now: Instant, connect: &Connect<'_>) -> Result<ConnectionId, CmError> {
        let private = with_header((connect.src, connect.src_port, connect.dst), connect.private)?;
        if !(1..=5).contains(&connect.mtu) {
            return Err(CmError::Invalid("path MTU"));
        }
        let (ca_guid, response, agent) = (self.config.ca_guid, self.config.response, self.agent);
        let max_cm_retries = self.config.retries;
        let side = side_of(&connect.offer, ca_guid);
        let connection = self.table.insert(connect.dst, connect.cookie).ok_or(CmError::TableFull)?;
        let id = connection.id;
        connection.state = State::ReqSent;
        connection.transaction = u64::from(agent) << 32 | u64::from(id.0);
        connection.qpn = connect.offer.qpn;
        connection.interval = response;
        connection.retries = max_cm_retries;
        connection.asked = Some((connect.service.port, now));
        let req = Req {
            local_id: id.0,
            service_id: connect.service.id(),
            side,
            remote_timeout: exponents::RESPONSE,
            local_timeout: exponents::RESPONSE,
            retry_count: connect.retry_count.min(RETRY_MAX),
            pkey: PKEY,
            mtu: connect.mtu,
            max_cm_retries,
            local_gid: connect.src,
            remote_gid: connect.dst,
            traffic_class: connect.traffic_class,
            hop_limit: HOP_LIMIT,
            ack_timeout: connect.ack_timeout,
            private,
            ..Req::default()
        };
        self.send_repeated(now, id, Message::Req(req));
        Ok(id)
    }

    /// Answers a request with a REP. Ends in [`What::Established`], [`What::Rejected`] or
    /// [`What::Unreachable`]. The queue pair must be able to receive (and, as rdma_cm does it, to send).
    /// At most 196 bytes of private data: with more, the request is rejected, as rdma_cm does it.
    pub fn accept(
        &mut self,
        now: Instant,
        id: ConnectionId,
        offer: &Offer,
        private: &[u8],
    ) -> Result<(), CmError> {
        let ca_guid = self.config.ca_guid;
        let connection = self.table.get(id).ok_or(CmError::NoSuchObject)?;
        if connection.state != State::ReqReceived {
            return Err(CmError::WrongState);
        }
        let Some(private) = Private::of(private) else {
            self.reject(now, id, Reason::CONSUMER, &[])?;
            return Err(TOO_LONG);
        };
        connection.state = State::RepSent;
        let side = side_of(offer, ca_guid);
        let rep = Rep {
            local_id: id.0,
            remote_id: connection.remote,
            side,
            ack_delay: ACK_DELAY,
            failover: 0,
            private,
        };
        self.table.set_own(id, offer.qpn);
        self.no_longer_waits(id);
        self.send_repeated(now, id, Message::Rep(rep));
        Ok(())
    }

    /// Refuses a request, or a reply. At most 148 bytes of private data. The id lives until it is destroyed.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: Reason,
        private: &[u8],
    ) -> Result<(), CmError> {
        let private = Private::of(private).ok_or(TOO_LONG)?;
        let connection = self.table.get(id).ok_or(CmError::NoSuchObject)?;
        let stage = match connection.state {
            State::ReqReceived => Stage::Req,
            State::RepReceived => Stage::Rep,
            State::RepSent => Stage::Other,
            _ => return Err(CmError::WrongState),
        };
        let remote_id = connection.remote;
        connection.state = State::Refused;
        let rej = Rej { local_id: id.0, remote_id, stage, reason: reason.0, private, ..Rej::default() };
        self.no_longer_waits(id);
        self.send_kept(id, Message::Rej(rej));
        self.linger(now, id);
        Ok(())
    }

    /// Sends the RTU: after [`What::Reply`], when the queue pair can receive and send.
    pub fn establish(&mut self, _now: Instant, id: ConnectionId) -> Result<(), CmError> {
        let connection = self.table.get(id).ok_or(CmError::NoSuchObject)?;
        if connection.state != State::RepReceived {
            return Err(CmError::WrongState);
        }
        connection.state = State::Established;
        let rtu = Rtu { local_id: id.0, remote_id: connection.remote, private: Private::default() };
        self.counters.cm_established += 1;
        self.send_kept(id, Message::Rtu(rtu));
        Ok(())
    }

    /// Data has come over an accepted connection whose RTU has not: it is up (`rdma_notify`, COMM_EST).
    /// [`What::Established`] follows, unless it was told already.
    pub fn notify(&mut self, _now: Instant, id: ConnectionId) -> Result<(), CmError> {
        let connection = self.table.get(id).ok_or(CmError::NoSuchObject)?;
        match connection.state {
            State::RepSent => {
                self.is_up(id);
                Ok(())
            }
            State::Established | State::DreqSent | State::Timewait => Ok(()),
            _ => Err(CmError::WrongState),
        }
    }

    /// A message has come for this side's queue pair with this number, from its peer. A peer that sends has
    /// the REP: where its RTU was lost, or is late, the connection is up without it (IBTA 12.9).
    pub fn heard(&mut self, number: QpNumber) {
        if let Some(connection) = self.table.of_own(number)
            && connection.state == State::RepSent
        {
            let id = connection.id;
            self.counters.cm_implied += 1;
            self.is_up(id);
        }
    }

    /// An accepted connection is up.
    pub(super) fn is_up(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        connection.state = State::Established;
        connection.message = None;
        self.counters.cm_established += 1;
        self.table.set_deadline(id, Instant::NEVER);
        self.tell(id, What::Established);
    }

    /// Ends a connection that is up. [`What::Disconnected`] follows when the peer has answered, or has not
    /// for long enough, then [`What::TimewaitExit`]. Of one that is not up, or has ended, nothing is done.
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId) -> Result<(), CmError> {
        let connection = self.table.get(id).ok_or(CmError::NoSuchObject)?;
        if connection.state == State::Established {
            let dreq = Dreq {
                local_id: id.0,
                remote_id: connection.remote,
                qpn: connection.peer_qpn,
                private: Private::default(),
            };
            connection.state = State::DreqSent;
            self.send_repeated(now, id, Message::Dreq(dreq));
        }
        Ok(())
    }

    /// Forgets a connection or a request, in whatever state it is; its peer is told (a REJ, a DREQ) and what
    /// the wire still wants goes on without its owner. No event names it any more.
    pub fn destroy(&mut self, now: Instant, id: ConnectionId) -> Result<(), CmError> {
        let state = self.table.get(id).ok_or(CmError::NoSuchObject)?.state;
        self.events.retain(|event| event.id != id);
        match state {
            State::ReqSent => {
                self.give_up(id);
                self.table.remove(id);
            }
            State::ReqReceived | State::RepSent | State::RepReceived => {
                self.reject(now, id, Reason::CONSUMER, &[])?;
            }
            State::Established => self.disconnect(now, id)?,
            State::SidrReceived => self.refuse(now, id, &[])?,
            State::SidrSent | State::Idle => self.table.remove(id),
            State::DreqSent | State::Timewait | State::Refused | State::SidrAnswered => {}
        }
        if let Some(connection) = self.table.get(id) {
            connection.owned = false;
        }
        Ok(())
    }

    /// Tells the peer that nobody waits for its answer to a REQ or a REP: it has timed out.
    pub(super) fn give_up(&mut self, id: ConnectionId) {
        let ca_guid = self.config.ca_guid;
        let Some(connection) = self.table.get(id) else { return };
        let mut info = Private::default();
        info.0[..8].copy_from_slice(&ca_guid.to_be_bytes());
        let rej = Rej {
            local_id: id.0,
            remote_id: connection.remote,
            stage: Stage::Other,
            info_len: 8,
            reason: Reason::TIMEOUT.0,
            info,
            private: Private::default(),
        };
        self.send_kept(id, Message::Rej(rej));
    }

    /// Changes what events of a connection bring back, those that wait included.
    pub fn set_cookie(&mut self, id: ConnectionId, cookie: Cookie) -> Result<(), CmError> {
        self.table.get(id).ok_or(CmError::NoSuchObject)?.cookie = cookie;
        self.events.iter_mut().filter(|event| event.id == id).for_each(|event| event.cookie = cookie);
        Ok(())
    }

    /// The process ends: every peer is told. DREQs are repeated soon and not for long, since later nobody
    /// is there to do so: see [`Cm::is_parting`].
    pub fn close(&mut self, now: Instant) {
        for id in self.table.ids() {
            // They are there.
            let _ = self.destroy(now, id);
            if let Some(connection) = self.table.get(id)
                && connection.state == State::DreqSent
            {
                connection.interval = PARTING_INTERVAL;
                connection.tries = PARTING_REPEATS;
                self.table.set_deadline(id, now + PARTING_INTERVAL);
            }
        }
        self.refuse_all_kept(now);
    }

    /// Whether a DREQ has still to be answered. After [`Cm::close`] that lasts 200 ms at most.
    pub fn is_parting(&self) -> bool {
        self.table.any(|connection| connection.state == State::DreqSent)
    }
}

fn side_of(offer: &Offer, ca_guid: u64) -> Side {
    Side {
        ca_guid,
        qkey: 0,
        qpn: offer.qpn,
        psn: offer.psn,
        responder_resources: offer.responder_resources,
        initiator_depth: offer.initiator_depth,
        flow_control: offer.flow_control,
        rnr_retry: offer.rnr_retry.min(RETRY_MAX),
        srq: offer.srq,
    }
}
