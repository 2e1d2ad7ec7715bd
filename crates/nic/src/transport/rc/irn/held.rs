//! Packets that came early: their bytes have landed, what else they ask for waits for its turn.

use super::WINDOW;
use crate::memory::{Payload, Span, dma};
use adverb_wire::{AtomicEth, Bth, IrnEth, Opcode, Packet, Psn, Reth};

/// All of an early packet but its payload.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Host address of the bytes that a WRITE packet has written.
    addr: u64,
    /// RETH or AtomicETH; the RETH's length is in `swap_add`.
    eth: AtomicEth,
    irn: IrnEth,
    /// Immediate, or key to invalidate.
    word: u32,
    payload_len: u32,
    opcode: Opcode,
    solicited: bool,
}

/// A place for each packet of the window, in pages of [`WINDOW`] that are taken when the first one comes
/// early: one page, but for wide windows.
#[derive(Debug, Default)]
pub(super) struct HeldPackets {
    pages: Box<[Box<[Held]>]>,
}

const _: () = assert!(core::mem::size_of::<Held>() <= 72);

impl HeldPackets {
    /// Page and place, among so many pages.
    #[inline]
    fn place(psn: Psn, pages: usize) -> (usize, usize) {
        ((psn.get() / WINDOW) as usize & pages.wrapping_sub(1), (psn.get() & (WINDOW - 1)) as usize)
    }

    fn held(&self, psn: Psn) -> Option<&Held> {
        let (page, at) = Self::place(psn, self.pages.len());
        self.pages.get(page)?.get(at)
    }

    /// Keeps a packet of a window of `window` packets, whose WRITE landed at `landed`.
    pub fn put(&mut self, packet: &Packet, landed: Span, window: u32) {
        let pages = (window / WINDOW) as usize;
        if self.pages.len() != pages {
            self.pages = vec![Box::default(); pages].into_boxed_slice();
        }
        let (page, at) = Self::place(packet.bth.psn, pages);
        let page = &mut self.pages[page];
        if page.is_empty() {
            *page = vec![Held::default(); WINDOW as usize].into_boxed_slice();
        }
        let operation = packet.bth.opcode.operation();
        let eth = if operation.is_atomic() {
            packet.atomic
        } else {
            let Reth { va, rkey, len } = packet.reth;
            AtomicEth { va, rkey, swap_add: len as u64, compare: 0 }
        };
        page[at] = Held {
            addr: if landed.is_empty() { 0 } else { landed.addr() },
            eth,
            irn: packet.irn,
            word: if operation.has_immediate() { packet.immediate } else { packet.invalidate },
            payload_len: packet.payload_len,
            opcode: packet.bth.opcode,
            solicited: packet.bth.solicited,
        };
    }

    /// The packet that was kept at `psn`.
    pub fn packet(&self, psn: Psn) -> Packet {
        let Some(held) = self.held(psn) else { return Packet::default() };
        let Held { eth, word, .. } = *held;
        Packet {
            bth: Bth { opcode: held.opcode, psn, solicited: held.solicited, ..Bth::default() },
            reth: Reth { va: eth.va, rkey: eth.rkey, len: eth.swap_add as u32 },
            atomic: eth,
            irn: held.irn,
            immediate: word,
            invalidate: word,
            payload_len: held.payload_len,
            ..Packet::default()
        }
    }

    /// Writes a packet's bytes to `span`, except where packets of `newer` have written already.
    pub fn write_under(&self, newer: impl Iterator<Item = Psn> + Clone, span: Span, payload: &Payload<'_>) {
        let (start, end) = (span.addr(), span.addr().wrapping_add(span.len() as u64));
        let written = newer.filter_map(|psn| {
            let held = self.held(psn)?;
            let (from, to) = (held.addr, held.addr.wrapping_add(held.payload_len as u64));
            (held.addr != 0 && from < end && start < to).then_some((from, to))
        });
        let mut at = start;
        while at < end {
            // Past what covers `at`; else up to where the next one begins.
            if let Some((_, to)) = written.clone().find(|(from, to)| *from <= at && at < *to) {
                at = to;
                continue;
            }
            let next = written.clone().map(|(from, _)| from).filter(|from| *from > at).min();
            let until = next.unwrap_or(end).min(end);
            let (offset, len) = ((at - start) as usize, (until - at) as usize);
            dma::write(span.slice(offset, len), payload, offset, len);
            at = until;
        }
    }
}
