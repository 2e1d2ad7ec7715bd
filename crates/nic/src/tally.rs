//! How much payload requests have moved, for those who ask whether RDMA happened: of own requests that
//! completed well, and of peers' requests that were carried out here. Only of a NIC that
//! [tallies](crate::NicConfig::tally); others pay nothing for it.
//!
//! An acknowledgement completes requests, and a request is carried out, within the call that takes the frame
//! in. So what stands in a queue pair before that call is compared with what stands there after it. What an
//! own queue pair sends to another one of this NIC is left out, and so are the connection manager's messages.
//! Datagrams, and messages of unreliable connections, are done when they have left.

use crate::attr::QpType;
use crate::ids::QpId;
use crate::memory::Payload;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue_pair::QueuePair;
use crate::state::NicState;
use crate::transport::inflight::Inflight;
use adverb_wire::{Gid, Instant, Packet, Psn, QpNumber};

/// Bytes of an atomic's word.
const WORD: u64 = 8;

/// What stood in a queue pair before a frame came to it.
struct Before {
    /// Where it stands: one that has become another's since is told by its name.
    index: u32,
    id: QpId,
    head: u32,
    in_flight: u32,
    expected: Psn,
}

/// What the NIC had counted before.
struct Counted {
    completions: u64,
    errors: u64,
    early: u64,
    star_executed: u64,
    dropped: u64,
}

impl Counted {
    fn now(nic: &NicState) -> Counted {
        let c = &nic.counters;
        Counted {
            completions: c.completions,
            errors: c.error_completions,
            early: c.early_packets,
            star_executed: c.star_executed,
            dropped: c.drop_out_of_order + c.drop_no_receive + c.drop_length,
        }
    }
}

/// Whether a queue pair with this number, at this address, is one of this NIC's.
fn is_own(nic: &NicState, number: QpNumber, at: Gid) -> bool {
    nic.gids.contains(&at) && number.get() >> 16 == nic.qpn_base >> 16
}

/// Payload of a request that was executed. Nothing if its WQE has been changed in memory since.
fn payload_of(qp: &Qp, entry: &Inflight) -> u64 {
    if entry.op.is_atomic() {
        return WORD;
    }
    let wqe = qp.sq.ring.decode(entry.block, entry.blocks.into(), qp.sq.layout());
    wqe.map_or(0, |wqe| u64::from(wqe.len))
}

/// A message without acknowledgement has left.
#[cold]
pub(crate) fn sent(qp: &Qp, nic: &mut NicState, entry: &Inflight) {
    let (number, at) = match qp.qp_type {
        QpType::Uc => (qp.peer, qp.dst),
        _ => match qp.sq.ring.decode(entry.block, entry.blocks.into(), qp.sq.layout()) {
            Ok(wqe) => {
                let to = qp.sq.ring.datagram(&wqe);
                (to.qpn, to.dgid)
            }
            Err(_) => return,
        },
    };
    if entry.packets > 0 && !is_own(nic, number, at) {
        nic.counters.requests_done += 1;
        nic.counters.payload_requested += payload_of(qp, entry);
    }
}

impl Nic {
    /// A queue pair, or an endpoint, has become ready to receive.
    pub(crate) fn note_connected(&mut self, id: QpId) {
        let Ok((attr, init)) = self.query_qp(id) else { return };
        let datagrams = matches!(init.qp_type, QpType::Ud | QpType::Gsi);
        if datagrams || !is_own(&self.state, attr.dest_qpn, attr.av.dgid) {
            self.state.counters.qps_connected += 1;
        }
    }

    /// Takes in a frame of which is told what it does.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_in_attended(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let before = self.state.tallies.then(|| (self.before(packet), Counted::now(&self.state)));
        if self.state.watch.is_some() {
            self.take_in_watched(now, packet, payload);
        } else {
            self.demux(now, packet, payload);
        }
        let Some((before, counted)) = before else { return };
        let Some(before) = before else { return self.tally_elsewhere(packet, payload, &counted) };
        let requested = self.newly_done(&before, packet, counted.errors);
        let served = self.newly_served(&before, packet, payload, &counted);
        let counters = &mut self.state.counters;
        if let Some((requests, bytes)) = requested {
            counters.requests_done += requests;
            counters.payload_requested += bytes;
        }
        counters.payload_served += served.unwrap_or(0);
    }

    fn before(&mut self, packet: &Packet) -> Option<Before> {
        let index = self.numbers.owner(packet.bth.dest_qp);
        let QueuePair { qp, .. } = self.qps.at(index)?;
        let r = &qp.requester;
        let (head, in_flight) = (r.head, r.in_flight());
        Some(Before { index, id: qp.id, head, in_flight, expected: qp.responder.expected() })
    }

    /// Requests of a connection that have completed well since, and their payload.
    fn newly_done(&mut self, before: &Before, packet: &Packet, errors: u64) -> Option<(u64, u64)> {
        let failed = self.state.counters.error_completions != errors;
        let QueuePair { qp, .. } = self.qps.at(before.index).filter(|pair| pair.qp.id == before.id)?;
        let r = &qp.requester;
        let moved = r.head.wrapping_sub(before.head);
        if moved == 0 || moved > before.in_flight || !qp.is_reliable() || is_own(&self.state, qp.peer, qp.dst)
        {
            return None;
        }
        let retired = (0..moved).filter_map(|at| r.retired(before.head.wrapping_add(at)));
        // Where the frame says that one failed, it names its PSN, and has acknowledged those before. A
        // request that ends the connection acknowledges nothing.
        let is_response = packet.bth.opcode.operation().is_response();
        let done = retired.filter(|entry| {
            let before_failure = is_response && !packet.bth.psn.is_before(entry.psn.add(entry.packets));
            entry.packets > 0 && (!failed || before_failure)
        });
        Some(done.fold((0, 0), |(n, bytes), entry| (n + 1, bytes + payload_of(qp, &entry))))
    }

    /// Payload of what a peer has asked for in this frame, if that was carried out, or kept until it is.
    fn newly_served(
        &mut self,
        before: &Before,
        packet: &Packet,
        payload: &Payload<'_>,
        counted: &Counted,
    ) -> Option<u64> {
        let now = Counted::now(&self.state);
        let QueuePair { qp, .. } = self.qps.at(before.index).filter(|pair| pair.qp.id == before.id)?;
        let operation = packet.bth.opcode.operation();
        let (taken, from) = match qp.qp_type {
            QpType::Ud | QpType::Gsi => (now.completions != counted.completions, packet.deth.src_qp),
            QpType::Uc => (now.dropped == counted.dropped && now.errors == counted.errors, qp.peer),
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                let moved = qp.responder.expected() != before.expected || now.early != counted.early;
                let star = now.star_executed != counted.star_executed;
                (!operation.is_response() && (moved || star), qp.peer)
            }
        };
        if !taken || is_own(&self.state, from, packet.flow.src) {
            return None;
        }
        Some(match operation {
            adverb_wire::Operation::ReadRequest => packet.reth.len.into(),
            op if op.is_atomic() => WORD,
            _ => payload.len() as u64,
        })
    }

    /// A frame for no queue pair: a multicast group's, or a connection's of which only the peer keeps state.
    fn tally_elsewhere(&mut self, packet: &Packet, payload: &Payload<'_>, counted: &Counted) {
        let now = Counted::now(&self.state);
        let multicast = packet.bth.dest_qp == QpNumber::MULTICAST && now.completions != counted.completions;
        let taken = multicast || now.star_executed != counted.star_executed;
        if taken && !is_own(&self.state, packet.deth.src_qp, packet.flow.src) {
            self.state.counters.payload_served += payload.len() as u64;
        }
    }
}
