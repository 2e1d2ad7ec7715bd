//! Where the WQEs of a chain stand: blocks by queue, completions by index, fields by offset.

use super::{
    BLOCK, BLOCKS_MAX, Bytes, Chain, Done, ENTRIES_MAX, Error, Field, Form, NOP_BLOCKS_MAX, Op, Piece, Place,
    Queue, QueueId, Source, Until, With, Word, Wqe, WqeId,
};
use crate::WqeOp;
use adverb_rdma::SendOrder;

/// Bytes of a segment.
const SEGMENT: usize = 16;

/// Where everything stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// By queue: the first block of each WQE.
    first: Vec<Vec<u32>>,
    /// By queue: completions that its WQEs before make.
    done: Vec<Vec<u32>>,
    /// By queue: blocks of its WQEs, and of its ring.
    blocks: Vec<(u32, u32)>,
}

impl Layout {
    /// Of a chain, whose operands are checked.
    pub fn of(chain: &Chain) -> Result<Layout, Error> {
        let mut layout = Layout { first: Vec::new(), done: Vec::new(), blocks: Vec::new() };
        for (q, queue) in chain.queues.iter().enumerate() {
            let (mut first, mut done) = (Vec::new(), Vec::new());
            let (mut block, mut completions) = (0u32, 0u32);
            for (at, wqe) in queue.wqes.iter().enumerate() {
                let id = WqeId { queue: QueueId(q as u16), at: at as u32 };
                check_shape(chain, id, wqe)?;
                first.push(block);
                done.push(completions);
                block += blocks_of(wqe);
                completions += u32::from(wqe.signaled);
            }
            if block > BLOCKS_MAX {
                return Err(Error::QueueTooLong { queue: queue.name.clone(), blocks: block });
            }
            layout.blocks.push((block, block.max(1).next_power_of_two()));
            layout.first.push(first);
            layout.done.push(done);
        }
        layout.check(chain)?;
        Ok(layout)
    }

    /// Blocks that a queue's WQEs take; of a recycled queue those of its ring.
    pub fn blocks(&self, chain: &Chain, queue: QueueId) -> u32 {
        let (used, ring) = self.blocks[usize::from(queue.0)];
        if chain.queue_of(queue).recycled { ring } else { used }
    }

    /// Blocks of a queue's ring.
    pub fn ring(&self, queue: QueueId) -> u32 {
        self.blocks[usize::from(queue.0)].1
    }

    /// Completions that come to a queue's completion queue, in a lap.
    pub fn completions(&self, chain: &Chain, queue: QueueId) -> u32 {
        let here = |(q, other): &(usize, &Queue)| {
            *q == usize::from(queue.0) || other.completes_with == Some(With::Sends(queue))
        };
        let queues = chain.queues.iter().enumerate().filter(here);
        queues.flat_map(|(_, queue)| &queue.wqes).map(|wqe| u32::from(wqe.signaled)).sum()
    }

    /// First block of a WQE.
    pub fn block(&self, wqe: WqeId) -> u32 {
        self.first[usize::from(wqe.queue.0)][wqe.at as usize]
    }

    /// The WQE at a block.
    pub fn wqe_at(&self, queue: QueueId, block: u32) -> Option<WqeId> {
        let at = self.first[usize::from(queue.0)].binary_search(&block).ok()?;
        Some(WqeId { queue, at: at as u32 })
    }

    /// Offset in its queue's ring of a byte of a field.
    pub fn offset(&self, chain: &Chain, wqe: WqeId, field: Field, skip: u8) -> usize {
        let (start, _) = field_of(chain.wqe(wqe), field).unwrap_or_default();
        self.block(wqe) as usize * BLOCK + start + usize::from(skip)
    }

    /// Index of the completion that a WAIT is for.
    pub fn index_of(&self, done: Done) -> u32 {
        match done {
            Done::Of(wqe) => self.done[usize::from(wqe.queue.0)][wqe.at as usize],
            Done::Received(_, index) | Done::Index(_, index) => index,
        }
    }

    /// Index that an ENABLE says: blocks, the end.
    pub fn end_of(&self, chain: &Chain, until: Until) -> u32 {
        match until {
            Until::Through(wqe) => self.block(wqe) + blocks_of(chain.wqe(wqe)),
            Until::Blocks(_, blocks) => blocks,
        }
    }

    fn check(&self, chain: &Chain) -> Result<(), Error> {
        for queue in &chain.queues {
            queue
                .receives
                .iter()
                .flatten()
                .try_for_each(|piece| check_place(chain, piece.place, piece.len))?;
            for wqe in &queue.wqes {
                check_operands(chain, wqe)?;
                check_modifiers(chain, wqe)?;
            }
            queue.receives.iter().flatten().try_for_each(|piece| check_landing(chain, *piece))?;
            for pieces in &queue.receives {
                if pieces.len() > ENTRIES_MAX {
                    let wqe = format!("a receive of {}", queue.name);
                    return Err(Error::TooManyEntries { wqe, entries: pieces.len() });
                }
            }
        }
        Ok(())
    }
}

/// Segments of a WQE.
pub(super) fn segments_of(wqe: &Wqe) -> usize {
    let source = |source: &Source| match source {
        Source::Pieces(pieces) => pieces.len(),
        Source::Inline(bytes) => (4 + inline_len(bytes)).div_ceil(SEGMENT),
    };
    match &wqe.op {
        Op::Nop(blocks) => usize::from(*blocks) * 4,
        Op::Wait(_) | Op::Enable(_) | Op::EnableReceives(..) => 2,
        Op::Write(from, ..) => 2 + source(from),
        Op::Send(from, _) => 1 + source(from),
        Op::Read(_, into) => 2 + into.len(),
        Op::CompareSwap(..) | Op::FetchAdd(..) => 4,
        Op::Calc(_, from, _) => 4 + from.len(),
    }
}

/// Blocks of a WQE.
pub(crate) fn blocks_of(wqe: &Wqe) -> u32 {
    (segments_of(wqe) as u32).div_ceil(4).max(1)
}

pub(crate) fn inline_len(bytes: &Bytes) -> usize {
    match bytes {
        Bytes::Are(bytes) => bytes.len(),
        Bytes::Control(..) | Bytes::Word(_) | Bytes::Address(_) => 8,
        Bytes::ControlAndFlags(..) => 12,
    }
}

/// Offset of a field in its WQE, and how many bytes from there on are its own.
pub(crate) fn field_of(wqe: &Wqe, field: Field) -> Option<(usize, usize)> {
    let has_address = matches!(
        wqe.op,
        Op::Write(..) | Op::Read(..) | Op::CompareSwap(..) | Op::FetchAdd(..) | Op::Calc(..)
    );
    let is_atomic = matches!(wqe.op, Op::CompareSwap(..) | Op::FetchAdd(..));
    let (data, entries, inline) = match &wqe.op {
        Op::Write(Source::Pieces(pieces), ..) => (32, pieces.len(), 0),
        Op::Read(_, pieces) => (32, pieces.len(), 0),
        Op::Calc(_, pieces, _) => (64, pieces.len(), 0),
        Op::Send(Source::Pieces(pieces), _) => (16, pieces.len(), 0),
        Op::Write(Source::Inline(bytes), ..) => (32, 0, inline_len(bytes)),
        Op::Send(Source::Inline(bytes), _) => (16, 0, inline_len(bytes)),
        Op::CompareSwap(..) | Op::FetchAdd(..) => (48, 1, 0),
        Op::Nop(_) | Op::Wait(_) | Op::Enable(_) | Op::EnableReceives(..) => (16, 0, 0),
    };
    let entry = |n: u8| (usize::from(n) < entries).then(|| data + SEGMENT * usize::from(n));
    match field {
        Field::Control => Some((0, 16)),
        Field::Opcode => Some((3, 1)),
        Field::Flags => Some((11, 1)),
        Field::Immediate => Some((12, 4)),
        Field::RemoteAddress => has_address.then_some((16, 8)),
        Field::RemoteKey => has_address.then_some((24, 4)),
        Field::Swap => is_atomic.then_some((32, 8)),
        Field::Compare => matches!(wqe.op, Op::CompareSwap(..)).then_some((40, 8)),
        Field::Count(n) => entry(n).map(|at| (at, 4)),
        Field::LocalKey(n) => entry(n).map(|at| (at + 4, 4)),
        Field::LocalAddress(n) => entry(n).map(|at| (at + 8, 8)),
        Field::Inline => (inline > 0).then_some((data + 4, inline)),
        Field::Index => {
            matches!(wqe.op, Op::Wait(_) | Op::Enable(_) | Op::EnableReceives(..)).then_some((24, 4))
        }
    }
}

fn check_shape(chain: &Chain, id: WqeId, wqe: &Wqe) -> Result<(), Error> {
    if let Op::Nop(blocks) = wqe.op
        && !(1..=NOP_BLOCKS_MAX).contains(&blocks)
    {
        return Err(Error::NopBlocks(blocks));
    }
    if let Some(form) = wqe.posted {
        check_form(chain, id, form)?;
    }
    let entries = match &wqe.op {
        Op::Write(Source::Pieces(pieces), ..) | Op::Send(Source::Pieces(pieces), _) => pieces.len(),
        Op::Read(_, pieces) | Op::Calc(_, pieces, _) => pieces.len(),
        _ => 0,
    };
    if entries > ENTRIES_MAX || segments_of(wqe) > 63 {
        return Err(Error::TooManyEntries { wqe: chain.name(id), entries });
    }
    Ok(())
}

/// Bytes that a calculation writes.
pub(crate) fn result_len(op: &Op) -> u32 {
    match op {
        Op::Calc(calc, from, _) => {
            from.iter().map(|piece| piece.len).sum::<u32>() / u32::from(calc.vectors.max(1))
        }
        _ => 0,
    }
}

fn check_wqe(chain: &Chain, id: WqeId) -> Result<&Wqe, Error> {
    let queue = chain.queues.get(usize::from(id.queue.0));
    queue.and_then(|queue: &Queue| queue.wqes.get(id.at as usize)).ok_or_else(|| Error::NoSuchWqe {
        queue: queue.map_or_else(|| "?".to_owned(), |queue| queue.name.clone()),
        at: id.at,
    })
}

/// Refuses a form in which an operand would be the operation modifier of a WQE that is executed.
fn check_form(chain: &Chain, id: WqeId, form: Form) -> Result<(), Error> {
    match form.operand {
        Some([modifier, ..]) if modifier != 0 && has_modifier(form.op) => {
            Err(Error::Modifier { wqe: chain.name(id), line: chain.wqe(id).line, op: form.op })
        }
        _ => Ok(()),
    }
}

/// Whether the NIC looks at the operation modifier of such a WQE.
fn has_modifier(op: WqeOp) -> bool {
    op.is_message() || op.is_atomic() || op == WqeOp::Wait
}

/// The same of all forms that a WQE gives others, and of where it puts bytes.
fn check_modifiers(chain: &Chain, wqe: &Wqe) -> Result<(), Error> {
    match &wqe.op {
        Op::CompareSwap(_, (_, Word::Control(id, form)), _) => check_form(chain, *id, *form),
        Op::Write(
            Source::Inline(
                Bytes::Control(id, form)
                | Bytes::ControlAndFlags(id, form, _)
                | Bytes::Word(Word::Control(id, form)),
            ),
            ..,
        ) => check_form(chain, *id, *form),
        Op::Read(_, into) => into.iter().try_for_each(|piece| check_landing(chain, *piece)),
        _ => Ok(()),
    }
}

/// Refuses bytes that would come to be the operation modifier of a WQE that is posted as what it does. With
/// the operation code they bring another operation.
fn check_landing(chain: &Chain, piece: Piece) -> Result<(), Error> {
    let Place::In(id, Field::Control, 0) = piece.place else { return Ok(()) };
    let wqe = chain.wqe(id);
    let op = wqe.posted.map_or(wqe.op.code(), |form| form.op);
    if piece.len <= 3 && has_modifier(op) {
        return Err(Error::Modifier { wqe: chain.name(id), line: wqe.line, op });
    }
    Ok(())
}

fn check_place(chain: &Chain, place: Place, len: u32) -> Result<(), Error> {
    let Place::In(id, field, skip) = place else { return Ok(()) };
    let wqe = check_wqe(chain, id)?;
    match field_of(wqe, field) {
        Some((_, bytes)) if usize::from(skip) + len as usize <= bytes => Ok(()),
        _ => Err(Error::NoSuchField { wqe: chain.name(id), field }),
    }
}

fn check_operands(chain: &Chain, wqe: &Wqe) -> Result<(), Error> {
    let word = |word: &Word| match word {
        Word::Control(id, _) => check_wqe(chain, *id).map(drop),
        Word::AddressOf(place) => check_place(chain, *place, 0),
        Word::Is(_) => Ok(()),
    };
    let control = |bytes: &Bytes| match bytes {
        Bytes::Are(_) => Ok(()),
        Bytes::Word(number) => word(number),
        Bytes::Address(place) => check_place(chain, *place, 0),
        Bytes::Control(id, _) | Bytes::ControlAndFlags(id, ..) => check_wqe(chain, *id).map(drop),
    };
    let source = |source: &Source| match source {
        Source::Pieces(pieces) => {
            pieces.iter().try_for_each(|piece| check_place(chain, piece.place, piece.len))
        }
        Source::Inline(bytes) => control(bytes),
    };
    match &wqe.op {
        Op::Nop(_) => Ok(()),
        Op::Wait(Done::Of(id)) => match check_wqe(chain, *id)?.signaled {
            true => Ok(()),
            false => Err(Error::NotSignaled { wqe: chain.name(*id) }),
        },
        Op::Wait(_) => Ok(()),
        Op::Enable(until) => {
            let queue = match until {
                Until::Through(id) => check_wqe(chain, *id).map(|_| id.queue)?,
                Until::Blocks(queue, _) => *queue,
            };
            let queue = chain.queue_of(queue);
            let managed = queue.order == SendOrder::Managed;
            if managed { Ok(()) } else { Err(Error::NotManaged { queue: queue.name.clone() }) }
        }
        Op::EnableReceives(queue, _) => {
            let queue = chain.queue_of(*queue);
            if queue.managed_receives { Ok(()) } else { Err(Error::NotManaged { queue: queue.name.clone() }) }
        }
        Op::Write(from, to, _) => {
            let len = match from {
                Source::Pieces(pieces) => pieces.iter().map(|piece| piece.len).sum(),
                Source::Inline(bytes) => inline_len(bytes) as u32,
            };
            source(from).and_then(|()| check_place(chain, *to, len))
        }
        Op::Send(from, _) => source(from),
        Op::Calc(_, from, to) => {
            from.iter().try_for_each(|piece| check_place(chain, piece.place, piece.len))?;
            check_place(chain, *to, result_len(&wqe.op))
        }
        Op::Read(from, into) => {
            check_place(chain, *from, into.iter().map(|piece| piece.len).sum())?;
            into.iter().try_for_each(|piece| check_place(chain, piece.place, piece.len))
        }
        Op::CompareSwap(at, (compare, swap), old) => {
            check_place(chain, *at, 8)?;
            word(compare)?;
            word(swap)?;
            check_place(chain, old.place, old.len)
        }
        Op::FetchAdd(at, add, old) => {
            check_place(chain, *at, 8)?;
            word(add)?;
            check_place(chain, old.place, old.len)
        }
    }
}
