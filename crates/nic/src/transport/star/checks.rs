//! What a packet for the stateless half must meet beside its ticket: its form, and the rights of the region
//! that it names. What it does not meet is counted, and a verdict.

use super::posted::Misplaced;
use crate::counters::Counters;
use crate::ids::PdId;
use crate::memory::{AccessFault, Memory, Payload, RemoteRight, Span, dma};
use crate::qp::source_port;
use adverb_wire::star::{Grant, Op, StarEth, Verdict, features, names_carried};
use adverb_wire::{Flow, Key, Packet, QpNumber};

/// Executes an atomic.
pub(super) fn atomic(
    packet: &Packet,
    payload: &Payload<'_>,
    memory: &Memory,
    grant: Grant,
    counters: &mut Counters,
) -> Result<u64, Verdict> {
    let eth = StarEth::from(packet.irn);
    let mut bytes = [0; 16];
    if payload.len() != bytes.len() || payload.is_elided() || eth.count != 8 {
        counters.star_nak_invalid += 1;
        return Err(Verdict::Invalid);
    }
    payload.read(0, &mut bytes);
    if grant.rights & Grant::ATOMIC == 0 {
        return Err(refuse_region(counters));
    }
    let target = (packet.reth.va, packet.reth.rkey);
    let word = match region(memory, grant, packet.bth.dest_qp, target, 8, RemoteRight::Atomic) {
        Ok(word) => word,
        Err(AccessFault::Misaligned) => {
            counters.star_nak_invalid += 1;
            return Err(Verdict::Invalid);
        }
        Err(_) => return Err(refuse_region(counters)),
    };
    let operand = |half: &[u8]| half.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let (swap_add, compare) = (operand(&bytes[..8]), operand(&bytes[8..]));
    Ok(match eth.op() {
        Some(Op::FetchAdd) => dma::fetch_add(word, swap_add),
        _ => dma::compare_swap(word, compare, swap_add),
    })
}

/// Bytes of a packet's data at most.
pub(super) fn path_mtu(grant: Grant) -> u32 {
    128 << grant.mtu
}

/// Whether a packet is for a request of the send queue, not for a region or a receive.
pub(super) fn is_of_sends(packet: &Packet) -> bool {
    let eth = StarEth::from(packet.irn);
    !eth.has(StarEth::RECV_QUEUE) && (eth.has(StarEth::POSTED) || is_carried(packet))
}

/// Whether a packet names by address what is posted.
pub(super) fn is_carried(packet: &Packet) -> bool {
    names_carried(packet.bth.opcode.operation(), StarEth::from(packet.irn))
}

/// Whether a request has the form of one, and its ticket the right for it.
pub(super) fn check_form(
    packet: &Packet,
    grant: Grant,
    len: usize,
    op: Op,
    right: u8,
    counters: &mut Counters,
) -> Result<(), Verdict> {
    let eth = StarEth::from(packet.irn);
    let posted = eth.has(StarEth::POSTED) || grant.carried && is_carried(packet);
    let asks_for_several = op == Op::Read && eth.has(StarEth::BURST);
    let packets = if asks_for_several { features::BURST_MAX } else { 1 };
    if (!posted && eth.op() != Some(op)) || len > (packets * path_mtu(grant)) as usize {
        counters.star_nak_invalid += 1;
        return Err(Verdict::Invalid);
    }
    if posted {
        // What is posted is given away by posting it.
        return Ok(());
    }
    if grant.rights & right == 0 {
        return Err(refuse_region(counters));
    }
    Ok(())
}

pub(super) fn refuse_posted(counters: &mut Counters) -> Verdict {
    counters.star_nak_not_posted += 1;
    Verdict::NotPosted
}

/// An access verdict for something posted says that the stateless side's own buffers are at fault.
pub(super) fn misplaced(why: Misplaced, counters: &mut Counters) -> Verdict {
    match why {
        Misplaced::NotPosted => refuse_posted(counters),
        Misplaced::Local(_) => refuse_region(counters),
    }
}

pub(super) fn refuse_region(counters: &mut Counters) -> Verdict {
    counters.star_nak_region += 1;
    Verdict::Access
}

/// The own bytes that a packet names by address, where its ticket says that it may. They are checked as an
/// entry of a queue is, but that nothing says whether they are posted.
pub(super) fn carried(
    memory: &Memory,
    grant: Grant,
    (va, lkey): (u64, Key),
    len: u32,
    write: bool,
) -> Result<Span, AccessFault> {
    let pd = memory.pd_at(grant.pd).ok_or(AccessFault::OtherDomain)?;
    memory.check_local(pd, lkey, va, len, write)
}

/// The bytes of a region that a ticket lets in.
pub(super) fn region(
    memory: &Memory,
    grant: Grant,
    number: QpNumber,
    (va, rkey): (u64, Key),
    len: u32,
    right: RemoteRight,
) -> Result<Span, AccessFault> {
    let pd = memory.pd_at(grant.pd).ok_or(AccessFault::OtherDomain)?;
    allowed(memory, pd, number, (va, rkey), len, right)
}

/// One place for the check of all, so that others' copies of it stay where they are fast.
#[inline(never)]
pub(super) fn allowed(
    memory: &Memory,
    pd: PdId,
    number: QpNumber,
    (va, rkey): (u64, Key),
    len: u32,
    right: RemoteRight,
) -> Result<Span, AccessFault> {
    memory.check_remote(pd, number, rkey, va, len, right)
}

/// The way back to who sent a packet. An answer may be marked on its way if the request could.
pub(crate) fn back(packet: &Packet, number: QpNumber, peer: QpNumber) -> Flow {
    let Flow { src, dst, traffic_class, hop_limit: _, src_port: _ } = packet.flow;
    let capable = if traffic_class & 3 == 0 { 0 } else { 2 };
    Flow {
        src: dst,
        dst: src,
        src_port: source_port(number, peer),
        traffic_class: traffic_class & !3 | capable,
        hop_limit: 64,
    }
}
