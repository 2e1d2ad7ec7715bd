//! The disassembler: any send queue's bytes in words, with names where a chain knows them.
//!
//! ```text
//! W2  read   table[?]   -> R0.ctrl+0:3  R0.ctrl+4:3  R0.addr:8
//! ```
//! Without a chain, addresses and numbers are shown as they are. Bytes that are no WQE are shown as such.

use crate::WqeOp;
use crate::chain::{
    Address, Addresses, BLOCK, Calc, CalcOp, Chain, Field, Layout, Memory, OPERAND, Op, Place, QueueId,
    Region, Wqe, WqeId, field_of,
};
use adverb_nic::queue::wqe::OPMOD_CALC;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Bytes of a segment.
const SEGMENT: usize = 16;

/// What a disassembler knows of names.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// The chain.
    pub chain: &'a Chain,
    /// Where its WQEs stand.
    pub layout: &'a Layout,
    /// Addresses and numbers that it was loaded with.
    pub addresses: &'a Addresses,
}

/// A WQE that was read from memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its first block.
    pub block: u32,
    /// Its blocks.
    pub blocks: u32,
    /// What it is, in words.
    pub text: String,
}

/// The WQEs of a send queue's bytes, up to so many blocks.
pub fn show(code: &[u8], blocks: u32, names: Option<Names<'_>>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut block = 0;
    let end = blocks.min((code.len() / BLOCK) as u32);
    while block < end {
        let wqe = &code[block as usize * BLOCK..];
        let segments = usize::from(wqe[7] & 0x3f);
        let taken = (segments.div_ceil(4) as u32).max(1).min(end - block);
        let wqe = &wqe[..taken as usize * BLOCK];
        lines.push(Line { block, blocks: taken, text: words(wqe, segments, names) });
        block += taken;
    }
    lines
}

/// A WQE in words.
pub fn words(wqe: &[u8], segments: usize, names: Option<Names<'_>>) -> String {
    let speaker = Speaker { names };
    let Some(op) = op_of(wqe[3]) else { return format!("opcode {:#04x}: no WQE", wqe[3]) };
    if segments == 0 || segments * SEGMENT > wqe.len() {
        return format!("{} of {segments} segments: no WQE", name(op));
    }
    let mut text = format!("{:<6} ", name(op));
    let segment = |n: usize| (n < segments).then(|| &wqe[n * SEGMENT..(n + 1) * SEGMENT]);
    match op {
        WqeOp::Nop => held(&speaker, wqe, segments, &mut text),
        WqeOp::Wait | WqeOp::SendEnable | WqeOp::RecvEnable => {
            let Some(segment) = segment(1) else { return text + "without a segment: no WQE" };
            speaker.order(op, be32(&segment[8..]), be32(&segment[12..]), &mut text);
        }
        WqeOp::Write | WqeOp::WriteImm => {
            speaker.remote(segment(1), &mut text);
            let first = calculated(wqe, 2, segments, &mut text);
            speaker.data(wqe, first..segments, &mut text, if first == 2 { " from " } else { "  " });
        }
        WqeOp::Read => {
            speaker.remote(segment(1), &mut text);
            speaker.data(wqe, 2..segments, &mut text, " -> ");
        }
        WqeOp::CompareSwap | WqeOp::MaskedCompareSwap => {
            speaker.remote(segment(1), &mut text);
            if let Some(words) = segment(2) {
                let (swap, compare) = (be64(words), be64(&words[8..]));
                let _ = write!(text, " {} -> {}", control(compare), control(swap));
            }
            if let (WqeOp::MaskedCompareSwap, Some(masks)) = (op, segment(3)) {
                let _ = write!(text, "  bits {:#x} -> {:#x}", be64(&masks[8..]), be64(masks));
            }
        }
        WqeOp::FetchAdd | WqeOp::MaskedFetchAdd => {
            speaker.remote(segment(1), &mut text);
            if let Some(words) = segment(2) {
                let _ = write!(text, " += {:#x}", be64(words));
                if op == WqeOp::MaskedFetchAdd {
                    let _ = write!(text, "  no carry out of {:#x}", be64(&words[8..]));
                }
            }
        }
        WqeOp::Send | WqeOp::SendImm | WqeOp::SendInv => {
            let first = calculated(wqe, 1, segments, &mut text);
            speaker.data(wqe, first..segments, &mut text, if first == 1 { "from " } else { "  " });
        }
        other => {
            let _ = write!(text, "({other:?})");
        }
    }
    if matches!(op, WqeOp::WriteImm | WqeOp::SendImm) {
        let _ = write!(text, "  imm {}", be32(&wqe[12..]));
    }
    if wqe[11] & 0xc0 != 0 {
        text.push_str("  fence");
    }
    if wqe[11] & 0x08 != 0 {
        text.push_str("  signaled");
    }
    text.truncate(text.trim_end().len());
    text
}

/// What a NOP holds, and what it may become.
fn held(speaker: &Speaker<'_>, wqe: &[u8], segments: usize, text: &mut String) {
    let operand: Vec<u8> = OPERAND.iter().map(|at| wqe[usize::from(*at)]).collect();
    if segments > 1 && wqe[SEGMENT..segments * SEGMENT].iter().any(|byte| *byte != 0) {
        let _ = write!(text, "|{} ", hex(&operand));
        speaker.remote(Some(&wqe[SEGMENT..2 * SEGMENT]), text);
        // An operand may look as the modifier of a calculation does.
        let first = if calc_of(wqe, 2, segments).is_some() { calculated(wqe, 2, segments, text) } else { 2 };
        speaker.data(wqe, first..segments, text, if first == 2 { " from " } else { "  " });
    } else if segments > 4 {
        let _ = write!(text, "of {} blocks", segments.div_ceil(4));
    }
}

/// What a message computes of its data, said by two segments.
fn calc_of(wqe: &[u8], first: usize, segments: usize) -> Option<Calc> {
    let segment = |n: usize| wqe.get(n * SEGMENT..)?.first_chunk::<SEGMENT>();
    let (a, b) = segment(first).zip(segment(first + 1))?;
    let marked = wqe[0] == OPMOD_CALC && segments >= first + 2;
    Calc::read(a, b).filter(|_| marked)
}

/// What a message computes of its data, in words; the number of its first data segment.
fn calculated(wqe: &[u8], first: usize, segments: usize, out: &mut String) -> usize {
    if wqe[0] != OPMOD_CALC || segments < first + 2 {
        return first;
    }
    let _ = match calc_of(wqe, first, segments) {
        Some(Calc { op: CalcOp::Max, vectors, .. }) => write!(out, " max of {vectors}:"),
        Some(Calc { op: CalcOp::Min, vectors, .. }) => write!(out, " min of {vectors}:"),
        None => write!(out, " (a calculation that this NIC does not make)"),
    };
    first + 2
}

/// An operation's name.
pub fn name(op: WqeOp) -> &'static str {
    match op {
        WqeOp::Nop => "nop",
        WqeOp::SendInv => "send_inv",
        WqeOp::Write => "write",
        WqeOp::WriteImm => "write_imm",
        WqeOp::Send => "send",
        WqeOp::SendImm => "send_imm",
        WqeOp::Wait => "wait",
        WqeOp::Read => "read",
        WqeOp::CompareSwap => "cas",
        WqeOp::FetchAdd => "add",
        WqeOp::MaskedCompareSwap => "masked_cas",
        WqeOp::MaskedFetchAdd => "masked_add",
        WqeOp::RecvEnable => "recv_en",
        WqeOp::SendEnable => "enable",
        WqeOp::LocalInv => "local_inv",
        WqeOp::BindMw => "bind_mw",
    }
}

/// The name of the operation with this code.
pub(crate) fn code_name(code: u8) -> &'static str {
    op_of(code).map_or("no WQE", name)
}

/// The operation with this code.
fn op_of(code: u8) -> Option<WqeOp> {
    const ALL: [WqeOp; 16] = [
        WqeOp::Nop,
        WqeOp::SendInv,
        WqeOp::Write,
        WqeOp::WriteImm,
        WqeOp::Send,
        WqeOp::SendImm,
        WqeOp::Wait,
        WqeOp::Read,
        WqeOp::CompareSwap,
        WqeOp::FetchAdd,
        WqeOp::MaskedCompareSwap,
        WqeOp::MaskedFetchAdd,
        WqeOp::RecvEnable,
        WqeOp::SendEnable,
        WqeOp::LocalInv,
        WqeOp::BindMw,
    ];
    ALL.into_iter().find(|op| *op as u8 == code)
}

/// A WQE's short name: the initial of the worker's and the client's queue, or its queue, and its number.
pub fn short(chain: &Chain, id: WqeId) -> String {
    match chain.queue_of(id.queue).name.as_str() {
        "worker" => format!("W{}", id.at),
        "reply" => format!("R{}", id.at),
        name => format!("{name}[{}]", id.at),
    }
}

/// The fields of a WQE: name, first byte, bytes. The operand's bytes are those around the operation code.
pub fn fields(wqe: &Wqe) -> Vec<(&'static str, usize, usize)> {
    const DATA: [(&str, &str, &str); 30] = [("len", "lkey", "local"); 30];
    let mut out = vec![("ctrl", 0, 3), ("opcode", 3, 1), ("ctrl", 4, 3), ("flags", 11, 1), ("imm", 12, 4)];
    let swap = if matches!(wqe.op, Op::FetchAdd(..)) { "add" } else { "swap" };
    let one = [
        ("addr", Field::RemoteAddress),
        ("rkey", Field::RemoteKey),
        (swap, Field::Swap),
        ("compare", Field::Compare),
        ("inline", Field::Inline),
        ("index", Field::Index),
    ];
    out.extend(
        one.into_iter()
            .filter_map(|(label, field)| field_of(wqe, field).map(|(first, len)| (label, first, len))),
    );
    for (n, (len, lkey, local)) in (0u8..).zip(DATA) {
        let entries = [(len, Field::Count(n)), (lkey, Field::LocalKey(n)), (local, Field::LocalAddress(n))];
        out.extend(
            entries
                .into_iter()
                .filter_map(|(label, field)| field_of(wqe, field).map(|(first, len)| (label, first, len))),
        );
    }
    out
}

/// Who changes a WQE while the chain runs: receives, by the bytes of the message, and other WQEs.
pub fn changed_by(chain: &Chain) -> BTreeMap<WqeId, BTreeSet<String>> {
    let mut out: BTreeMap<WqeId, BTreeSet<String>> = BTreeMap::new();
    let mut note = |place: Place, who: String| {
        if let Place::In(id, ..) = place {
            out.entry(id).or_default().insert(who);
        }
    };
    for (q, queue) in chain.queues.iter().enumerate() {
        for pieces in &queue.receives {
            let mut at = 0;
            for piece in pieces {
                note(piece.place, format!("recv:{at}..{}", at + piece.len));
                at += piece.len;
            }
        }
        for (at, wqe) in queue.wqes.iter().enumerate() {
            let who = short(chain, WqeId { queue: QueueId(q as u16), at: at as u32 });
            match &wqe.op {
                Op::Read(_, into) => into.iter().for_each(|piece| note(piece.place, who.clone())),
                Op::Write(_, to, _) | Op::CompareSwap(to, ..) | Op::FetchAdd(to, ..) | Op::Calc(_, _, to) => {
                    note(*to, who)
                }
                _ => {}
            }
        }
    }
    out
}

impl Names<'_> {
    /// A field's bytes in words.
    pub fn value(&self, label: &str, bytes: &[u8]) -> String {
        match label {
            "addr" | "local" => match be64(bytes) {
                0 => "?".to_owned(),
                addr => self.address(addr).unwrap_or_else(|| format!("{addr:#x}")),
            },
            "opcode" => op_of(bytes[0]).map_or_else(|| hex(bytes), |op| name(op).to_owned()),
            "len" | "imm" | "index" => be32(bytes).to_string(),
            _ => hex(bytes),
        }
    }

    /// The name of a completion queue.
    pub fn cq(&self, number: u32) -> String {
        let queues = &self.addresses.queues;
        let found = |at: Option<usize>, what: &str| Some(format!("{}.{what}", self.chain.queues[at?].name));
        found(queues.iter().position(|(_, _, sends, _)| *sends == number), "done")
            .or_else(|| found(queues.iter().position(|(.., receives)| *receives == number), "recv"))
            .unwrap_or_else(|| format!("cq {number}"))
    }

    /// The region that an address is in.
    fn address(&self, addr: u64) -> Option<String> {
        let regions = self.chain.regions.iter().zip(&self.addresses.regions);
        let found = |(region, address): (&Region, &Address)| match region.memory {
            Memory::New { len, .. } if addr.wrapping_sub(address.addr) < len => {
                Some(format!("{}+{}", region.name, addr - address.addr))
            }
            _ => None,
        };
        regions.filter_map(found).next()
    }
}

struct Speaker<'a> {
    names: Option<Names<'a>>,
}

impl Speaker<'_> {
    fn remote(&self, segment: Option<&[u8]>, out: &mut String) {
        let Some(segment) = segment else { return };
        out.push_str(&self.place(be64(segment), be32(&segment[8..])));
    }

    fn data(&self, wqe: &[u8], segments: core::ops::Range<usize>, out: &mut String, before: &str) {
        let mut before = before;
        for n in segments {
            let segment = &wqe[n * SEGMENT..(n + 1) * SEGMENT];
            let count = be32(segment);
            if count > 1 << 31 {
                let len = (count & !(1 << 31)) as usize;
                let bytes = &wqe[n * SEGMENT + 4..];
                let _ = write!(out, "{before}{}", hex(&bytes[..len.min(bytes.len())]));
                return;
            }
            let place = self.place(be64(&segment[8..]), be32(&segment[4..]));
            let _ = write!(out, "{before}{place}:{count}");
            before = "  ";
        }
    }

    /// An address as a place that the chain knows.
    fn place(&self, addr: u64, key: u32) -> String {
        let Some(Names { chain, layout, addresses }) = self.names else { return format!("[{addr:#x}]") };
        for (q, (code, ..)) in addresses.queues.iter().enumerate() {
            let id = QueueId(q as u16);
            let len = u64::from(layout.ring(id)) * BLOCK as u64;
            if addr.wrapping_sub(code.addr) < len && (key == code.lkey.0 || key == code.rkey.0) {
                let offset = (addr - code.addr) as usize;
                let mut block = (offset / BLOCK) as u32;
                while block > 0 && layout.wqe_at(id, block).is_none() {
                    block -= 1;
                }
                let inside = offset - block as usize * BLOCK;
                let Some(wqe) = layout.wqe_at(id, block) else {
                    return format!("{}+{offset}", chain.queues[q].name);
                };
                let label = fields(chain.wqe(wqe))
                    .into_iter()
                    .find(|(_, first, len)| inside >= *first && inside < first + len);
                return match label {
                    // An operand's bytes are counted from the segment's first.
                    Some(("ctrl", ..)) => format!("{}.ctrl+{inside}", short(chain, wqe)),
                    Some((label, first, _)) => format!("{}.{label}+{}", short(chain, wqe), inside - first),
                    None => format!("{}+{inside}", short(chain, wqe)),
                };
            }
        }
        for (region, address) in chain.regions.iter().zip(&addresses.regions) {
            if key == address.lkey.0 || key == address.rkey.0 {
                return match addr {
                    0 => format!("{}[?]", region.name),
                    _ => format!("{}+{}", region.name, addr.wrapping_sub(address.addr) as i64),
                };
            }
        }
        format!("[{addr:#x}]")
    }

    fn order(&self, op: WqeOp, index: u32, number: u32, out: &mut String) {
        let named = self.names.and_then(|Names { chain, addresses, .. }| {
            let found = |(_, qpn, sends, receives): &(_, u32, u32, u32)| match op {
                WqeOp::SendEnable => (*qpn == number).then_some(""),
                WqeOp::RecvEnable => (*qpn == number).then_some(".recv"),
                _ if *sends == number => Some(".done"),
                _ if *receives == number => Some(".recv"),
                _ => None,
            };
            let at = addresses.queues.iter().position(|queue| found(queue).is_some())?;
            Some(format!("{}{}", chain.queues[at].name, found(&addresses.queues[at])?))
        });
        let _ = match (op, named) {
            (WqeOp::SendEnable | WqeOp::RecvEnable, Some(queue)) => write!(out, "{queue} <{index}"),
            (WqeOp::SendEnable | WqeOp::RecvEnable, None) => write!(out, "qp {number:#x} <{index}"),
            (_, Some(queue)) => write!(out, "{queue}[{index}]"),
            (_, None) => write!(out, "cq {number}[{index}]"),
        };
    }
}

/// What a compare-and-swap takes for a control segment.
pub(crate) fn control(word: u64) -> String {
    let bytes = word.to_ne_bytes();
    let operand: Vec<u8> = OPERAND.iter().map(|at| bytes[usize::from(*at)]).collect();
    match op_of(bytes[3]) {
        Some(op) if bytes[7] & 0x3f != 0 => format!("{}|{}", name(op), hex(&operand)),
        _ => format!("{word:#x}"),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn be32(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn be64(bytes: &[u8]) -> u64 {
    bytes[..8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
