//! Each message's fields and where they stand in the class's data (IBTA 12.6.5 to 12.6.9, 12.11.1).

use super::bytes::{Reader, Writer};
use crate::units::{Gid, Psn, QpNumber};
use core::fmt;

/// Private data: always the full room, zero-padded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Private<const N: usize>(pub [u8; N]);

impl<const N: usize> Private<N> {
    /// Zero-padded. `None` if it is longer than the room.
    pub fn of(data: &[u8]) -> Option<Self> {
        let mut all = [0; N];
        all.get_mut(..data.len())?.copy_from_slice(data);
        Some(Private(all))
    }
}

impl<const N: usize> Default for Private<N> {
    fn default() -> Self {
        Private([0; N])
    }
}

impl<const N: usize> fmt::Debug for Private<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = N - self.0.iter().rev().take_while(|byte| **byte == 0).count();
        write!(f, "{:02x?} of {N}", &self.0[..used])
    }
}

/// Which transport a REQ asks for: two bits, and three more of extended transports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServiceType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, which nobody has.
    Rd,
    /// Extended: 1 is XRC.
    Extended(u8),
}

impl ServiceType {
    fn of(bits: u8, extended: u8) -> ServiceType {
        match bits {
            0 => ServiceType::Rc,
            1 => ServiceType::Uc,
            2 => ServiceType::Rd,
            _ => ServiceType::Extended(extended),
        }
    }

    fn bits(self) -> (u8, u8) {
        match self {
            ServiceType::Rc => (0, 0),
            ServiceType::Uc => (1, 0),
            ServiceType::Rd => (2, 0),
            ServiceType::Extended(extended) => (3, extended),
        }
    }
}

/// What the sender of a REQ or a REP says of its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Side {
    /// The channel adapter.
    pub ca_guid: u64,
    /// Queue key, of datagrams.
    pub qkey: u32,
    /// Its number.
    pub qpn: QpNumber,
    /// The PSN that the *receiver* of this message shall begin with.
    pub psn: Psn,
    /// READs and atomics that it answers at once.
    pub responder_resources: u8,
    /// READs and atomics that it has under way.
    pub initiator_depth: u8,
    /// End-to-end credits.
    pub flow_control: bool,
    /// How often the receiver shall repeat when this side is not ready.
    pub rnr_retry: u8,
    /// It has a shared receive queue.
    pub srq: bool,
}

/// ConnectRequest. Times are exponents: 4.096 us * 2^n.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Req {
    /// The sender's communication id.
    pub local_id: u32,
    /// What is asked for.
    pub service_id: u64,
    /// The sender's queue pair.
    pub side: Side,
    /// Time that the receiver's CM may take to answer.
    pub remote_timeout: u8,
    /// Transport.
    pub service: ServiceType,
    /// Time that the sender's CM may take to answer.
    pub local_timeout: u8,
    /// How often both sides repeat what is not acknowledged.
    pub retry_count: u8,
    /// Partition.
    pub pkey: u16,
    /// Path MTU: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// How often CM messages are repeated.
    pub max_cm_retries: u8,
    /// The sender's address.
    pub local_gid: Gid,
    /// The receiver's.
    pub remote_gid: Gid,
    /// Of the path.
    pub flow_label: u32,
    /// Static rate.
    pub rate: u8,
    /// Of the path.
    pub traffic_class: u8,
    /// Of the path.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Both ends are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout of the queue pairs.
    pub ack_timeout: u8,
    /// Of the program, behind rdma_cm's header.
    pub private: Private<92>,
}

/// LIDs of RoCE: none.
const NO_LID: u16 = 0xffff;

impl Req {
    pub(super) fn read(d: Reader<'_>) -> Req {
        Req {
            local_id: d.u32(0),
            service_id: d.u64(8),
            side: Side {
                ca_guid: d.u64(16),
                qkey: d.u32(28),
                qpn: QpNumber::new(d.u24(32)),
                psn: Psn::new(d.u24(44)),
                responder_resources: d.u8(35),
                initiator_depth: d.u8(39),
                flow_control: d.bits(43, 0, 1) != 0,
                rnr_retry: d.bits(50, 0, 3),
                srq: d.bits(51, 3, 1) != 0,
            },
            remote_timeout: d.bits(43, 3, 5),
            service: ServiceType::of(d.bits(43, 1, 2), d.bits(51, 0, 3)),
            local_timeout: d.bits(47, 3, 5),
            retry_count: d.bits(47, 0, 3),
            pkey: d.u16(48),
            mtu: d.bits(50, 4, 4),
            max_cm_retries: d.bits(51, 4, 4),
            local_gid: Gid(d.bytes(56)),
            remote_gid: Gid(d.bytes(72)),
            flow_label: d.u32(88) >> 12,
            rate: d.bits(91, 0, 6),
            traffic_class: d.u8(92),
            hop_limit: d.u8(93),
            sl: d.bits(94, 4, 4),
            subnet_local: d.bits(94, 3, 1) != 0,
            ack_timeout: d.bits(95, 3, 5),
            private: Private(d.bytes(140)),
        }
    }

    pub(super) fn write(&self, mut d: Writer<'_>) {
        let side = &self.side;
        let (service, extended) = self.service.bits();
        d.u32(0, self.local_id);
        d.u64(8, self.service_id);
        d.u64(16, side.ca_guid);
        d.u32(28, side.qkey);
        d.u24(32, side.qpn.get());
        d.u8(35, side.responder_resources);
        d.u8(39, side.initiator_depth);
        d.bits(43, 3, 5, self.remote_timeout);
        d.bits(43, 1, 2, service);
        d.bits(43, 0, 1, side.flow_control.into());
        d.u24(44, side.psn.get());
        d.bits(47, 3, 5, self.local_timeout);
        d.bits(47, 0, 3, self.retry_count);
        d.u16(48, self.pkey);
        d.bits(50, 4, 4, self.mtu);
        d.bits(50, 0, 3, side.rnr_retry);
        d.bits(51, 4, 4, self.max_cm_retries);
        d.bits(51, 3, 1, side.srq.into());
        d.bits(51, 0, 3, extended);
        d.u16(52, NO_LID);
        d.u16(54, NO_LID);
        d.bytes(56, &self.local_gid.0);
        d.bytes(72, &self.remote_gid.0);
        d.u32(88, self.flow_label << 12);
        d.bits(91, 0, 6, self.rate);
        d.u8(92, self.traffic_class);
        d.u8(93, self.hop_limit);
        d.bits(94, 4, 4, self.sl);
        d.bits(94, 3, 1, self.subnet_local.into());
        d.bits(95, 3, 5, self.ack_timeout);
        d.bytes(140, &self.private.0);
    }
}

/// Which message a MRA or a REJ is about: two bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stage {
    /// A REQ.
    #[default]
    Req,
    /// A REP.
    Rep,
    /// Another message; in a MRA, a LAP.
    Other,
    /// The number 3, which no message has.
    None,
}

impl Stage {
    fn of(bits: u8) -> Stage {
        match bits {
            0 => Stage::Req,
            1 => Stage::Rep,
            2 => Stage::Other,
            _ => Stage::None,
        }
    }
}

/// MsgRcptAck.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mra {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// What has come.
    pub stage: Stage,
    /// Time that the answer may take: 4.096 us * 2^n.
    pub timeout: u8,
    /// Of the program.
    pub private: Private<222>,
}

impl Mra {
    pub(super) fn read(d: Reader<'_>) -> Mra {
        Mra {
            local_id: d.u32(0),
            remote_id: d.u32(4),
            stage: Stage::of(d.bits(8, 6, 2)),
            timeout: d.bits(9, 3, 5),
            private: Private(d.bytes(10)),
        }
    }

    pub(super) fn write(&self, mut d: Writer<'_>) {
        d.u32(0, self.local_id);
        d.u32(4, self.remote_id);
        d.bits(8, 6, 2, self.stage as u8);
        d.bits(9, 3, 5, self.timeout);
        d.bytes(10, &self.private.0);
    }
}

/// ConnectReject.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rej {
    /// The sender's communication id; 0 if it has none.
    pub local_id: u32,
    /// The receiver's; 0 if the sender does not know it.
    pub remote_id: u32,
    /// What is refused.
    pub stage: Stage,
    /// Bytes of `info` that mean something.
    pub info_len: u8,
    /// Why (IBTA 12.6.7.2).
    pub reason: u16,
    /// More about it.
    pub info: Private<72>,
    /// Of the program.
    pub private: Private<148>,
}

impl Rej {
    pub(super) fn read(d: Reader<'_>) -> Rej {
        Rej {
            local_id: d.u32(0),
            remote_id: d.u32(4),
            stage: Stage::of(d.bits(8, 6, 2)),
            info_len: d.bits(9, 1, 7),
            reason: d.u16(10),
            info: Private(d.bytes(12)),
            private: Private(d.bytes(84)),
        }
    }

    pub(super) fn write(&self, mut d: Writer<'_>) {
        d.u32(0, self.local_id);
        d.u32(4, self.remote_id);
        d.bits(8, 6, 2, self.stage as u8);
        d.bits(9, 1, 7, self.info_len);
        d.u16(10, self.reason);
        d.bytes(12, &self.info.0);
        d.bytes(84, &self.private.0);
    }
}

/// ConnectReply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rep {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The sender's queue pair.
    pub side: Side,
    /// Target ACK delay: 4.096 us * 2^n.
    pub ack_delay: u8,
    /// Whether the alternate path was taken.
    pub failover: u8,
    /// Of the program.
    pub private: Private<196>,
}

impl Rep {
    pub(super) fn read(d: Reader<'_>) -> Rep {
        Rep {
            local_id: d.u32(0),
            remote_id: d.u32(4),
            side: Side {
                ca_guid: d.u64(28),
                qkey: d.u32(8),
                qpn: QpNumber::new(d.u24(12)),
                psn: Psn::new(d.u24(20)),
                responder_resources: d.u8(24),
                initiator_depth: d.u8(25),
                flow_control: d.bits(26, 0, 1) != 0,
                rnr_retry: d.bits(27, 5, 3),
                srq: d.bits(27, 4, 1) != 0,
            },
            ack_delay: d.bits(26, 3, 5),
            failover: d.bits(26, 1, 2),
            private: Private(d.bytes(36)),
        }
    }

    pub(super) fn write(&self, mut d: Writer<'_>) {
        let side = &self.side;
        d.u32(0, self.local_id);
        d.u32(4, self.remote_id);
        d.u32(8, side.qkey);
        d.u24(12, side.qpn.get());
        d.u24(20, side.psn.get());
        d.u8(24, side.responder_resources);
        d.u8(25, side.initiator_depth);
        d.bits(26, 3, 5, self.ack_delay);
        d.bits(26, 1, 2, self.failover);
        d.bits(26, 0, 1, side.flow_control.into());
        d.bits(27, 5, 3, side.rnr_retry);
        d.bits(27, 4, 1, side.srq.into());
        d.u64(28, side.ca_guid);
        d.bytes(36, &self.private.0);
    }
}

macro_rules! answer {
    ($(#[doc = $doc:literal])* $name:ident) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            /// The sender's communication id.
            pub local_id: u32,
            /// The receiver's.
            pub remote_id: u32,
            /// Of the program.
            pub private: Private<224>,
        }

        impl $name {
            pub(super) fn read(d: Reader<'_>) -> Self {
                $name { local_id: d.u32(0), remote_id: d.u32(4), private: Private(d.bytes(8)) }
            }

            pub(super) fn write(&self, mut d: Writer<'_>) {
                d.u32(0, self.local_id);
                d.u32(4, self.remote_id);
                d.bytes(8, &self.private.0);
            }
        }
    };
}

answer!(
    /// ReadyToUse.
    Rtu
);
answer!(
    /// DisconnectReply.
    Drep
);

/// DisconnectRequest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The receiver's queue pair.
    pub qpn: QpNumber,
    /// Of the program.
    pub private: Private<220>,
}

impl Dreq {
    pub(super) fn read(d: Reader<'_>) -> Dreq {
        Dreq {
            local_id: d.u32(0),
            remote_id: d.u32(4),
            qpn: QpNumber::new(d.u24(8)),
            private: Private(d.bytes(12)),
        }
    }

    pub(super) fn write(&self, mut d: Writer<'_>) {
        d.u32(0, self.local_id);
        d.u32(4, self.remote_id);
        d.u24(8, self.qpn.get());
        d.bytes(12, &self.private.0);
    }
}

/// ServiceIDResReq.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SidrReq {
    /// The request's id, which the answer repeats.
    pub request_id: u32,
    /// Partition.
    pub pkey: u16,
    /// What is asked for.
    pub service_id: u64,
    /// Of the program, behind rdma_cm's header.
    pub private: Private<216>,
}

impl SidrReq {
    pub(super) fn read(d: Reader<'_>) -> SidrReq {
        SidrReq { request_id: d.u32(0), pkey: d.u16(4), service_id: d.u64(8), private: Private(d.bytes(16)) }
    }

    pub(super) fn write(&self, mut d: Writer<'_>) {
        d.u32(0, self.request_id);
        d.u16(4, self.pkey);
        d.u64(8, self.service_id);
        d.bytes(16, &self.private.0);
    }
}

/// ServiceIDResReqResp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SidrRep {
    /// The request's id.
    pub request_id: u32,
    /// 0 for a queue pair, 1 for a service that is not there or refuses.
    pub status: u8,
    /// Bytes of `info` that mean something.
    pub info_len: u8,
    /// The service's queue pair.
    pub qpn: QpNumber,
    /// What was asked for.
    pub service_id: u64,
    /// The queue pair's key.
    pub qkey: u32,
    /// More about a refusal.
    pub info: Private<72>,
    /// Of the program.
    pub private: Private<136>,
}

impl SidrRep {
    pub(super) fn read(d: Reader<'_>) -> SidrRep {
        SidrRep {
            request_id: d.u32(0),
            status: d.u8(4),
            info_len: d.u8(5),
            qpn: QpNumber::new(d.u24(8)),
            service_id: d.u64(12),
            qkey: d.u32(20),
            info: Private(d.bytes(24)),
            private: Private(d.bytes(96)),
        }
    }

    pub(super) fn write(&self, mut d: Writer<'_>) {
        d.u32(0, self.request_id);
        d.u8(4, self.status);
        d.u8(5, self.info_len);
        d.u24(8, self.qpn.get());
        d.u64(12, self.service_id);
        d.u32(20, self.qkey);
        d.bytes(24, &self.info.0);
        d.bytes(96, &self.private.0);
    }
}
