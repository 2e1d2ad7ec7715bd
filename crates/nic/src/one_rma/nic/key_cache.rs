//! Keys of peers' requests, set up: the same few processes ask again and again, and to derive K_d and to set
//! up AES-GCM with it costs more than all the rest of a small request.
//!
//! The cache is no state that a peer needs: of fixed size, whoever asks (`limits::ONE_RMA_KEY_CACHE`), and
//! what is not in it is derived anew. A key enters only with an authentic request, so that nobody without one
//! can drive others out; and leaves when its region's key changes or the region goes.

use super::keys::MessageKey;
use super::regions::RegionId;
use crate::limits;
use adverb_wire::Gid;
use adverb_wire::one_rma::Op;
use std::sync::Arc;

/// Everything that K_d is derived from, and which of the region's keys it was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub region: RegionId,
    pub key_epoch: u32,
    pub from: Gid,
    pub pid: u32,
    pub op: Op,
}

impl Origin {
    /// Its only place in the cache.
    fn place(&self) -> usize {
        let (high, low) = (u128::from_be_bytes(self.from.0) >> 64, u128::from_be_bytes(self.from.0));
        let parts =
            [high as u64, low as u64, self.region.wire() as u64, (self.pid as u64) << 2 | self.op as u64];
        let mixed = parts.iter().fold(0, |sum: u64, part| (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (mixed >> 32) as usize % limits::ONE_RMA_KEY_CACHE
    }
}

pub(super) struct KeyCache {
    lines: Vec<Option<(Origin, Arc<MessageKey>)>>,
}

impl KeyCache {
    pub fn new() -> KeyCache {
        KeyCache { lines: (0..limits::ONE_RMA_KEY_CACHE).map(|_| None).collect() }
    }

    #[inline]
    pub fn get(&self, origin: &Origin) -> Option<Arc<MessageKey>> {
        let line = self.lines[origin.place()].as_ref();
        line.filter(|(found, _)| found == origin).map(|(_, key)| key.clone())
    }

    /// Takes in the key of a request that was authentic.
    pub fn put(&mut self, origin: Origin, key: &Arc<MessageKey>) {
        self.lines[origin.place()] = Some((origin, key.clone()));
    }

    /// Forgets the keys of a region.
    pub fn forget(&mut self, region: RegionId) {
        for line in &mut self.lines {
            if line.as_ref().is_some_and(|(origin, _)| origin.region == region) {
                *line = None;
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.lines.fill_with(|| None);
    }
}
