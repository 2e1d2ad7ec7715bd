//! How packets name what the other side has posted: by its place in a queue, by its address where that has
//! travelled, or, with the completion that comes along, by both of place and completion.

use super::{Names, Star};
use crate::limits::MAX_STAR_MERGED;
use crate::queue::wqe::{Wqe, WqeOp};
use adverb_wire::star::{Cqe, Merged, Place, Sge};
use adverb_wire::{Key, Psn};

/// Address, key and what they are of the bytes from `offset` on of something posted.
pub(super) fn of_posted(index: u32, at: Option<Sge>, offset: u32) -> (u64, Key, Names) {
    match at {
        Some(sge) => (sge.addr.wrapping_add(offset.into()), Key(sge.lkey), Names::Address),
        None => (Place { index, offset }.va(), Key(0), Names::Place),
    }
}

impl Star {
    /// A SEND's packet goes into the receive that the SEND has taken.
    pub(super) fn place(&mut self, psn: Psn, request: u32, wqe: &Wqe, offset: u32) {
        let taken = self.peer.taken.iter().rev().find(|taken| taken.request == request);
        if let Some(taken) = taken.filter(|_| wqe.op != WqeOp::WriteImm) {
            let place = of_posted(taken.cqe.index, taken.at, offset);
            let sent = self.packet_mut(psn);
            (sent.va, sent.key, sent.names) = place;
        }
    }

    /// The completion of a SEND of one packet goes with it if nothing is before it but others like it: the
    /// other side takes them in the order of their numbers. One that names a key to invalidate waits, since
    /// what is before it may need the key.
    pub(super) fn merge(&mut self, psn: Psn, request: u32, wqe: &Wqe, packets: u32) {
        let in_flight = self.tx.in_flight() as usize;
        let in_row = in_flight == 0 || self.awaits_merged && in_flight < MAX_STAR_MERGED;
        let fits = packets == 1 && matches!(wqe.op, WqeOp::Send | WqeOp::SendImm);
        self.awaits_merged = in_row && fits && self.peer.may_merge();
        if !self.awaits_merged {
            return;
        }
        let Some(taken) = self.peer.taken.iter_mut().rev().find(|taken| taken.request == request) else {
            self.awaits_merged = false;
            return;
        };
        taken.merged = true;
        let Cqe { index, immediate, .. } = taken.cqe;
        let va = Merged::va(index, self.peer.number_merged());
        let sent = self.packet_mut(psn);
        (sent.va, sent.key, sent.is_merged) = (va, Key(immediate), true);
    }
}
