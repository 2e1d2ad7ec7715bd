//! Service resolution for datagrams (IBTA 12.11): SIDR_REQ and SIDR_REP, one of each.

use super::Cm;
use super::calls::with_header;
use super::table::State;
use super::types::{CmError, ConnectionId, DatagramRequest, Resolve, Resolved, Service, What};
use adverb_wire::cm::{IP_HEADER_LEN, IpHeader, Mad, Message, Private, SidrRep, SidrReq};
use adverb_wire::{Gid, Instant, QpNumber};

/// Status of a queue pair that is there.
const VALID: u8 = 0;
/// Status of a service that is not there.
pub(super) const UNSUPPORTED: u8 = 1;
/// Status of a service that refuses (IBTA 12.11.2).
const REJECTED: u8 = 2;
/// The full partition.
const PKEY: u16 = 0xffff;

impl Cm {
    /// Asks for a datagram service (SIDR_REQ). Ends in [`What::Resolved`], [`What::Unresolved`] or
    /// [`What::Unreachable`].
    pub fn resolve(&mut self, now: Instant, resolve: &Resolve<'_>) -> Result<ConnectionId, CmError> {
        let private = with_header((resolve.src, resolve.src_port, resolve.dst), resolve.private)?;
        let (agent, response, retries) = (self.agent, self.config.response, self.config.retries);
        let connection = self.table.insert(resolve.dst, resolve.cookie).ok_or(CmError::TableFull)?;
        let id = connection.id;
        connection.state = State::SidrSent;
        connection.transaction = u64::from(agent) << 32 | u64::from(id.0);
        connection.interval = response;
        connection.retries = retries;
        connection.asked = Some((resolve.service.port, now));
        let service_id = resolve.service.id();
        let req = SidrReq { request_id: id.0, pkey: PKEY, service_id, private };
        self.send_repeated(now, id, Message::SidrReq(req));
        Ok(id)
    }

    /// Answers a [`What::DatagramRequest`] with a queue pair. At most 136 bytes of private data: with more,
    /// the request is refused.
    pub fn answer(&mut self, now: Instant, id: ConnectionId, answer: &Resolved<'_>) -> Result<(), CmError> {
        match Private::of(answer.private) {
            Some(private) => self.answer_with(now, id, (VALID, answer.qpn, answer.qkey), private),
            None => {
                self.refuse(now, id, &[])?;
                Err(CmError::Invalid("private data: longer than the message has room for"))
            }
        }
    }

    /// Refuses a [`What::DatagramRequest`]. At most 136 bytes of private data.
    pub fn refuse(&mut self, now: Instant, id: ConnectionId, private: &[u8]) -> Result<(), CmError> {
        let too_long = CmError::Invalid("private data: longer than the message has room for");
        let private = Private::of(private).ok_or(too_long)?;
        self.answer_with(now, id, (REJECTED, QpNumber::default(), 0), private)
    }

    fn answer_with(
        &mut self,
        now: Instant,
        id: ConnectionId,
        (status, qpn, qkey): (u8, QpNumber, u32),
        private: Private<136>,
    ) -> Result<(), CmError> {
        let connection = self.table.get(id).ok_or(CmError::NoSuchObject)?;
        if connection.state != State::SidrReceived {
            return Err(CmError::WrongState);
        }
        connection.state = State::SidrAnswered;
        let rep = SidrRep { request_id: connection.remote, status, qpn, qkey, private, ..SidrRep::default() };
        self.no_longer_waits(id);
        self.send_kept(id, Message::SidrRep(rep));
        self.linger(now, id);
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, now: Instant, from: Gid, transaction: u64, req: &SidrReq) {
        if let Some(connection) = self.table.of_peer((from.0, req.request_id, true)) {
            let (id, answered) = (connection.id, connection.state == State::SidrAnswered);
            self.counters.cm_duplicates += 1;
            if answered {
                self.send_again(id);
            }
            return;
        }
        let refused = |status| {
            let (request_id, service_id) = (req.request_id, req.service_id);
            Message::SidrRep(SidrRep { request_id, status, service_id, ..SidrRep::default() })
        };
        let asked = Service::of(req.service_id).zip(IpHeader::parse(&req.private.0));
        let found = asked.and_then(|(service, header)| {
            self.listener_of(service, header.dst).map(|listener| (service, header, listener))
        });
        let Some((service, header, listener)) = found else {
            let mad = Mad { transaction, message: Message::SidrReq(*req) };
            if let Some((service, _)) = asked
                && self.keep(now, from, service, mad)
            {
                return;
            }
            self.counters.cm_refused_service += 1;
            return self.send(from, transaction, refused(UNSUPPORTED));
        };
        let Some(taker) = self.listeners.get_mut(listener) else { return };
        if taker.waiting >= taker.listen.backlog {
            self.counters.cm_refused_backlog += 1;
            return self.send(from, transaction, refused(REJECTED));
        }
        let Some(connection) = self.table.insert(from, taker.listen.cookie) else {
            self.counters.cm_refused_full += 1;
            return self.send(from, transaction, refused(REJECTED));
        };
        taker.waiting += 1;
        let id = connection.id;
        connection.remote = req.request_id;
        connection.state = State::SidrReceived;
        connection.transaction = transaction;
        connection.waits = Some(listener);
        self.table.set_peer(id, true, None);
        self.counters.cm_requests += 1;
        let mut private = Private::default();
        private.0.copy_from_slice(&req.private.0[IP_HEADER_LEN..]);
        let request = DatagramRequest {
            service,
            from,
            src: header.src,
            src_port: header.src_port,
            dst: header.dst,
            private,
        };
        self.tell(id, What::DatagramRequest(listener, request));
    }

    pub(super) fn on_sidr_rep(&mut self, now: Instant, from: Gid, rep: &SidrRep) {
        let Some(id) = self.named(from, rep.request_id, 0) else { return };
        let Some(connection) = self.table.get(id) else { return };
        if connection.state != State::SidrSent {
            self.counters.cm_duplicates += 1;
            return;
        }
        if rep.status == UNSUPPORTED && self.asks_again(now, id) {
            return;
        }
        let Some(connection) = self.table.get(id) else { return };
        connection.state = State::Idle;
        connection.message = None;
        self.table.set_deadline(id, Instant::NEVER);
        let what = match rep.status {
            VALID => What::Resolved(rep.qpn, rep.qkey, rep.private),
            status => What::Unresolved(status, rep.private),
        };
        self.tell(id, what);
    }
}
