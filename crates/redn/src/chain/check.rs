//! What a client may decide about: operands, addresses and lengths, never what a WQE does, how long it is,
//! or whose memory it may touch.
//!
//! What a client sends is followed from the receives: a READ that may see it, or that reads where it said,
//! passes it on to where it scatters.

use super::layout::{field_of, result_len};
use super::{Chain, Error, Field, OPERAND, Op, Piece, Place, RegionId, Source, WqeId};
use std::ops::Range;

/// Bytes of a region that hold what a client sent.
type Tainted = Vec<(RegionId, u64, u64)>;

/// Refuses a chain in which what a client sends reaches an operation code, a size, a key or a number that is
/// no operand.
pub fn check(chain: &Chain) -> Result<(), Error> {
    let mut tainted = Tainted::new();
    let mut told: Vec<WqeId> = Vec::new();
    for queue in &chain.queues {
        for piece in queue.receives.iter().flatten() {
            reach(chain, *piece, &mut tainted, &mut told)?;
        }
    }
    // Each round that finds something new takes at least one region's bytes or one WQE more.
    loop {
        let before = (tainted.len(), told.len());
        for (q, queue) in chain.queues.iter().enumerate() {
            for (at, wqe) in queue.wqes.iter().enumerate() {
                let id = WqeId { queue: super::QueueId(q as u16), at: at as u32 };
                match &wqe.op {
                    Op::Read(from, into) => {
                        let len: u32 = into.iter().map(|piece| piece.len).sum();
                        if is_tainted(from.piece(len), &tainted) || told.contains(&id) {
                            for piece in into {
                                reach(chain, *piece, &mut tainted, &mut told)?;
                            }
                        }
                    }
                    Op::Write(Source::Pieces(from), to, _)
                        if from.iter().any(|piece| is_tainted(*piece, &tainted)) =>
                    {
                        let len = from.iter().map(|piece| piece.len).sum();
                        reach(chain, to.piece(len), &mut tainted, &mut told)?;
                    }
                    Op::Calc(_, from, to) => {
                        for part in selected(&wqe.op, from, &tainted) {
                            let piece = to.plus(part.start.into()).piece(part.end - part.start);
                            reach(chain, piece, &mut tainted, &mut told)?;
                        }
                    }
                    _ => {}
                }
            }
        }
        if (tainted.len(), told.len()) == before {
            return Ok(());
        }
    }
}

/// The bytes of a calculation's result that may be a client's: those whose place in a row one of the rows
/// has from it.
fn selected(op: &Op, from: &[Piece], tainted: &Tainted) -> Vec<Range<u32>> {
    let width = result_len(op).max(1);
    let (mut out, mut at) = (Vec::new(), 0);
    for piece in from {
        let first = at % width;
        at += piece.len;
        if is_tainted(*piece, tainted) {
            let within = first + piece.len <= width;
            out.push(if within { first..first + piece.len } else { 0..width });
        }
    }
    out
}

fn is_tainted(piece: Piece, tainted: &Tainted) -> bool {
    let Place::At(region, at) = piece.place else { return false };
    tainted.iter().any(|(r, first, end)| *r == region && at < *end && *first < at + u64::from(piece.len))
}

/// What a client sent comes here.
fn reach(chain: &Chain, piece: Piece, tainted: &mut Tainted, told: &mut Vec<WqeId>) -> Result<(), Error> {
    match piece.place {
        Place::At(region, at) => {
            if !is_within(piece, tainted) {
                tainted.push((region, at, at + u64::from(piece.len)));
            }
        }
        Place::Of(region) => {
            if !tainted.contains(&(region, 0, u64::MAX)) {
                tainted.push((region, 0, u64::MAX));
            }
        }
        Place::In(id, field, skip) => {
            let wqe = chain.wqe(id);
            let (start, _) = field_of(wqe, field).unwrap_or_default();
            let first = start + usize::from(skip);
            for byte in first..first + piece.len as usize {
                if let Some(what) = forbidden(byte, field, wqe.posted.is_some()) {
                    return Err(Error::Reaches { wqe: chain.name(id), byte, what });
                }
            }
            // Where a READ reads is said by the client: so is what it finds.
            if field == Field::RemoteAddress && !told.contains(&id) {
                told.push(id);
            }
        }
    }
    Ok(())
}

fn is_within(piece: Piece, tainted: &Tainted) -> bool {
    let Place::At(region, at) = piece.place else { return false };
    let end = at + u64::from(piece.len);
    tainted.iter().any(|(r, first, last)| *r == region && *first <= at && end <= *last)
}

/// What stands at a byte that a client may not decide about.
fn forbidden(byte: usize, field: Field, conditional: bool) -> Option<&'static str> {
    match field {
        Field::Control | Field::Opcode | Field::Flags => match byte {
            3 => Some("the operation code"),
            7 => Some("the number of segments"),
            8..12 => Some("the flags"),
            _ if OPERAND.iter().any(|at| usize::from(*at) == byte) && conditional => None,
            0..7 => Some("the queue pair's number or the index of a WQE that is no conditional"),
            _ => None,
        },
        Field::RemoteKey | Field::LocalKey(_) => Some("a key"),
        Field::Index => Some("an index of a WAIT or ENABLE"),
        Field::RemoteAddress
        | Field::LocalAddress(_)
        | Field::Swap
        | Field::Compare
        | Field::Count(_)
        | Field::Immediate
        | Field::Inline => None,
    }
}
