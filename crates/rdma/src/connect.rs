//! How two programs meet: one listens under a name, the other asks there, and both tell their queue
//! pair's address in the exchange. Its way is apart from the data's: on a host it is a TCP connection,
//! whose end also tells that the other process has ended.
//!
//! ```text
//! listen(name)                     RESET ─► INIT
//! until(asked) ◄──── attributes ── ask(name)
//! INIT ─► RTR ─► RTS
//! reply ──────────── attributes ─► RTR ─► RTS
//! ```

use crate::error::Error;
use crate::queue::Qp;
use crate::seam::{Answer, Call, LineId, ListenerId, Object};
use crate::{On, Rdma, done, wrong};
use adverb_nic::{Access, AddressVector, Mtu, PathId, QpAttr, QpAttrMask as M, QpCaps, QpState};
use adverb_wire::{Gid, Instant, Psn, QpNumber};
use std::rc::Rc;

/// First byte of attributes that this module tells.
const VERSION: u8 = 1;
/// Bytes before the program's own.
const HEAD_LEN: usize = 27;

/// A name under which the program can be asked.
pub struct Listener {
    rdma: Rdma,
    id: ListenerId,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.rdma.world.release(Object::Listener(self.id));
    }
}

/// One exchange of attributes, for as long as both programs keep it.
#[derive(Clone)]
pub struct Line {
    inner: Rc<LineInner>,
}

struct LineInner {
    rdma: Rdma,
    id: LineId,
}

impl Drop for LineInner {
    fn drop(&mut self) {
        self.rdma.world.release(Object::Line(self.id));
    }
}

/// A question that waits for its answer. Dropped, it is refused.
pub struct Asked {
    line: Line,
    attributes: Vec<u8>,
}

/// How a reliable connection is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect {
    /// What the peer may do, within what regions allow.
    pub access: Access,
    /// Local ACK timeout: 4.096 us * 2^n.
    pub timeout: u8,
    /// Transport retries, up to 7.
    pub retries: u8,
    /// Retries while the peer has no receive posted; 7 is without limit.
    pub rnr_retries: u8,
    /// How long the peer waits with a message that finds no receive here, as RNR NAKs say it (IBTA table 45):
    /// 1 is 10 us, the least, and 12 is 640 us.
    pub rnr_timer: u8,
    /// READs and atomics outstanding, each way.
    pub reads: u8,
}

impl Default for Connect {
    /// A peer that says nothing for half a second is given up.
    fn default() -> Self {
        Connect {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            timeout: 14,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: 1,
            reads: 16,
        }
    }
}

/// Where a queue pair is, as peers tell each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Its NIC's address.
    pub gid: Gid,
    /// Its number.
    pub qpn: QpNumber,
    /// The first PSN that it sends.
    pub psn: Psn,
    /// Path MTU that its port can carry.
    pub mtu: Mtu,
    /// READs and atomics that it answers at once.
    pub reads: u8,
}

impl Endpoint {
    fn to_bytes(self, own: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_LEN + own.len());
        out.push(VERSION);
        out.extend_from_slice(&self.gid.0);
        out.extend_from_slice(&self.qpn.get().to_be_bytes());
        out.extend_from_slice(&self.psn.get().to_be_bytes());
        out.push(self.mtu as u8);
        out.push(self.reads);
        out.extend_from_slice(own);
        out
    }

    /// The endpoint, and the program's own bytes.
    fn from_bytes(bytes: &[u8]) -> Result<(Endpoint, &[u8]), Error> {
        const WRONG: Error = Error::Garbled("an address of a queue pair");
        let (head, own) = bytes.split_first_chunk::<HEAD_LEN>().ok_or(WRONG)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&head[1..17]);
        let (qpn, psn) = (word(17), word(21));
        if head[0] != VERSION || qpn >> 24 != 0 || psn > Psn::MASK {
            return Err(WRONG);
        }
        let mtu = Mtu::from_code(head[25].into()).ok_or(WRONG)?;
        Ok((
            Endpoint { gid: Gid(gid), qpn: QpNumber::new(qpn), psn: Psn::new(psn), mtu, reads: head[26] },
            own,
        ))
    }
}

impl Listener {
    pub(crate) fn new(rdma: &Rdma, id: ListenerId) -> Listener {
        Listener { rdma: rdma.clone(), id }
    }

    pub(crate) fn id(&self) -> ListenerId {
        self.id
    }

    /// The oldest question that nobody has taken, if there is one.
    pub async fn try_accept(&self) -> Result<Option<Asked>, Error> {
        match self.rdma.world.call(Call::Accept(self.id)).await? {
            Answer::Asked(asked) => {
                Ok(asked.map(|(line, attributes)| Asked { line: Line::new(&self.rdma, line), attributes }))
            }
            other => wrong(&other),
        }
    }

    /// The next question.
    pub async fn accept(&self) -> Result<Asked, Error> {
        loop {
            if let Some(asked) = self.try_accept().await? {
                return Ok(asked);
            }
            self.rdma.until(&[On::Asked(self)], None).await?;
        }
    }
}

impl Line {
    pub(crate) fn new(rdma: &Rdma, id: LineId) -> Line {
        Line { inner: Rc::new(LineInner { rdma: rdma.clone(), id }) }
    }

    pub(crate) fn id(&self) -> LineId {
        self.inner.id
    }
}

impl Asked {
    /// What was given with the question.
    pub fn attributes(&self) -> &[u8] {
        &self.attributes
    }

    /// Of a question that [`Qp::connect`] asks: the program's own part.
    pub fn own(&self) -> Result<&[u8], Error> {
        Endpoint::from_bytes(&self.attributes).map(|(_, own)| own)
    }

    /// Answers.
    pub async fn reply(self, attributes: &[u8]) -> Result<Line, Error> {
        let call = Call::Reply { line: self.line.id(), attributes: attributes.to_vec() };
        done(self.line.inner.rdma.world.call(call).await?)?;
        Ok(self.line)
    }

    /// Connects a queue pair to the one that asks, and answers with its address and these bytes.
    pub async fn accept(self, qp: &Qp, own: &[u8], how: &Connect) -> Result<Line, Error> {
        let (peer, _) = Endpoint::from_bytes(&self.attributes)?;
        let here = qp.endpoint(how).await?;
        qp.begin(how).await?;
        qp.bring_up(&here, &peer, how).await?;
        self.reply(&here.to_bytes(own)).await
    }
}

impl Qp {
    /// Connects to the queue pair that is offered under this name, telling these bytes. Returns the bytes
    /// that it tells, and the line. Until the deadline it tries again while nobody listens.
    pub async fn connect(
        &self,
        name: &str,
        own: &[u8],
        how: &Connect,
        deadline: Option<Instant>,
    ) -> Result<(Line, Vec<u8>), Error> {
        let here = self.endpoint(how).await?;
        self.begin(how).await?;
        let (line, told) = self.rdma().ask(name, &here.to_bytes(own), deadline).await?;
        let (peer, own) = Endpoint::from_bytes(&told)?;
        self.bring_up(&here, &peer, how).await?;
        Ok((line, own.to_vec()))
    }

    /// Connects it to itself: what it sends it receives.
    pub async fn connect_to_itself(&self, how: &Connect) -> Result<(), Error> {
        let here = self.endpoint(how).await?;
        self.begin(how).await?;
        self.bring_up(&here, &here, how).await
    }

    /// Connects it, as this endpoint of its own, to a peer's: for programs that have told each other by an
    /// exchange of their own.
    pub async fn connect_to(&self, here: &Endpoint, peer: &Endpoint, how: &Connect) -> Result<(), Error> {
        self.begin(how).await?;
        self.bring_up(here, peer, how).await
    }

    /// Where it is, with a PSN to begin with that nobody knows in advance.
    pub async fn endpoint(&self, how: &Connect) -> Result<Endpoint, Error> {
        let device = self.rdma().device().await?;
        let psn = Psn::new(self.rdma().random().await? as u32);
        Ok(Endpoint { gid: device.gid, qpn: self.number(), psn, mtu: device.mtu, reads: how.reads })
    }

    /// To INIT, where receives may be posted.
    async fn begin(&self, how: &Connect) -> Result<(), Error> {
        let attr = QpAttr { access: how.access, ..blank(QpState::Init) };
        self.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).await
    }

    /// From INIT to RTR and RTS.
    async fn bring_up(&self, here: &Endpoint, peer: &Endpoint, how: &Connect) -> Result<(), Error> {
        let attr = QpAttr {
            av: AddressVector { dgid: peer.gid, hop_limit: 64, ..AddressVector::default() },
            path_mtu: here.mtu.min(peer.mtu),
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: how.reads,
            min_rnr_timer: how.rnr_timer,
            ..blank(QpState::Rtr)
        };
        let mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        self.modify(&attr, mask | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER).await?;
        let attr = QpAttr {
            timeout: how.timeout,
            retry_cnt: how.retries,
            rnr_retry: how.rnr_retries,
            sq_psn: here.psn,
            max_rd_atomic: how.reads.min(peer.reads),
            ..blank(QpState::Rts)
        };
        let mask = M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN;
        self.modify(&attr, mask | M::MAX_QP_RD_ATOMIC).await
    }
}

/// Attributes of which a mask names some.
fn blank(state: QpState) -> QpAttr {
    QpAttr {
        state,
        cur_state: QpState::Reset,
        access: Access::empty(),
        pkey_index: 0,
        port: 1,
        qkey: 0,
        av: AddressVector::default(),
        path: PathId::DEFAULT,
        path_mtu: Mtu::default(),
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        rq_psn: Psn::default(),
        sq_psn: Psn::default(),
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        dest_qpn: QpNumber::default(),
        sqd_notify: false,
        sq_draining: false,
        caps: QpCaps::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_told_and_nothing_else_is_taken_for_one() {
        let endpoint = Endpoint {
            gid: Gid([7; 16]),
            qpn: QpNumber::new(0x01_0203),
            psn: Psn::new(0xff_fffe),
            mtu: Mtu::M4096,
            reads: 3,
        };
        let bytes = endpoint.to_bytes(b"own");
        assert_eq!(Endpoint::from_bytes(&bytes), Ok((endpoint, &b"own"[..])));
        for len in 0..HEAD_LEN {
            assert!(Endpoint::from_bytes(&bytes[..len]).is_err());
        }
        for (at, value) in [(0, 2), (17, 1), (21, 1), (25, 0), (25, 6)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert!(Endpoint::from_bytes(&wrong).is_err(), "byte {at} as {value}");
        }
    }
}
