//! Whether a packet may enter its queue pair (IBTA 9.6). One that fails a check is counted and dropped.

use crate::counters::Counters;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::queue_pair::QueuePair;
use adverb_wire::ext::MASKS_LEN;
use adverb_wire::{Operation, Packet, Service};

/// Partition key bits that must match; the top bit is membership (IBTA 10.9.3).
pub(crate) const PKEY_BASE: u16 = 0x7fff;

/// Checks that hold for every packet of a queue pair: state, service, partition, source. What services it
/// takes is not settled before it can receive.
#[inline]
pub(crate) fn admit(pair: &QueuePair, counters: &mut Counters, packet: &Packet) -> bool {
    let QueuePair { qp, mode } = pair;
    let opcode = packet.bth.opcode;
    if !qp.receives() {
        counters.drop_qp_state += 1;
        return false;
    }
    let other = !opcode.is_of(qp.service());
    if other && !mode.takes(opcode.service()) && !(opcode.is_of(Service::Cnp) && qp.is_reliable()) {
        counters.drop_wrong_service += 1;
        return false;
    }
    if packet.bth.pkey & PKEY_BASE != PKEY_BASE {
        counters.drop_pkey += 1;
        return false;
    }
    if !qp.is_datagram() && packet.flow.src != qp.dst {
        counters.drop_source += 1;
        return false;
    }
    true
}

/// Whether the payload has a length that the operation may have.
#[inline]
pub(crate) fn fits(qp: &Qp, counters: &mut Counters, packet: &Packet, payload: &Payload<'_>) -> bool {
    let operation = packet.bth.opcode.operation();
    let carries = operation.is_send() || operation.is_write() || operation.is_read_response();
    if payload.len() > qp.mtu() as usize || (!carries && !payload.is_empty()) {
        // An over-long request would earn a NAK (IBTA 9.7.4.1.6); the rest is noise.
        let masks = operation == Operation::MaskedCompareSwap && payload.len() == MASKS_LEN;
        // StaR's packets say by their kind what they carry.
        let star = packet.bth.opcode.is_of(Service::Star) && payload.len() <= qp.mtu() as usize;
        if !masks && !star && !(qp.is_reliable() && (operation.is_send() || operation.is_write())) {
            counters.drop_length += 1;
            return false;
        }
    }
    true
}
