//! Memory of programs: it is mapped, registered, and unmapped when nothing can reach it any more. The
//! module's only unsafe code.
//!
//! A region that a program releases may still be named by work requests that it has posted. So it stays
//! until, for each of the program's queue pairs, all sends that were posted before have been polled as
//! complete, or the queue pair is gone; one that receives were posted into stays until the queues with
//! these receives are gone.
#![allow(unsafe_code)]

use adverb_nic::memory::{MrInit, QueueMemory, Span, dma};
use adverb_nic::{Access, MrInfo, Nic, PdId, QpId};
use adverb_os::mapping::Mapping;
use adverb_rdma::Error;
use adverb_rdma::seam::{MemoryInfo, RecvTarget};
use adverb_wire::Key;
use std::sync::Arc;

/// A registered region. Clones keep its bytes where they are, not its registration.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// Kept for its addresses to be valid; `None` for a queue's memory, which is never unmapped.
    mapping: Option<Arc<Mapping>>,
    /// Its addresses.
    start: u64,
    /// The one by which work requests name its first byte.
    iova: u64,
    len: usize,
    /// It counts as memory of the NIC's.
    on_device: bool,
    pd: PdId,
    mr: MrInfo,
    /// Where receives into it were posted to.
    pub received: Vec<RecvTarget>,
}

impl Memory {
    /// Registers a part of a mapping.
    pub fn register(
        nic: &mut Nic,
        pd: PdId,
        mapping: Mapping,
        (at, len): (usize, usize),
        access: Access,
        on_device: bool,
    ) -> Result<Memory, Error> {
        assert!(at <= mapping.len() && len <= mapping.len() - at, "a part of the mapping");
        let start = mapping.addr() + at as u64;
        let iova = if on_device { 0 } else { start };
        let init = MrInit { pd, addr: start, len: len as u64, iova, access };
        // SAFETY: the mapping is readable and writable, is kept in `mapping` until the driver has
        // deregistered the region (`Memories`), and nobody forms a reference to its bytes.
        let mr = unsafe { nic.memory().reg_mr(&init) }?;
        let mapping = Some(Arc::new(mapping));
        Ok(Memory { mapping, start, iova, len, on_device, pd, mr, received: Vec::new() })
    }

    /// Registers its bytes once more.
    pub fn register_again(&self, nic: &mut Nic, pd: PdId, access: Access) -> Result<Memory, Error> {
        let mapping = self.mapping.clone().ok_or(Error::Unsupported("a send queue's memory for that"))?;
        let Memory { start, iova, len, .. } = *self;
        let init = MrInit { pd, addr: start, len: len as u64, iova, access };
        // SAFETY: as when it was registered first; the new value keeps the same mapping.
        let mr = unsafe { nic.memory().reg_mr(&init) }?;
        // Its bytes are counted as long as they are there.
        let on_device = self.on_device;
        Ok(Memory { mapping: Some(mapping), start, iova, len, on_device, pd, mr, received: Vec::new() })
    }

    /// Registers the memory of a send queue.
    pub fn register_queue(nic: &mut Nic, pd: PdId, qp: QpId, access: Access) -> Result<Memory, Error> {
        let queue: &QueueMemory = nic.send_queue_memory(qp)?;
        let (start, len) = (queue.addr(), queue.len());
        let init = MrInit { pd, addr: start, len: len as u64, iova: start, access };
        // SAFETY: a queue's memory is never unmapped, and always accessed raw.
        let mr = unsafe { nic.memory().reg_mr(&init) }?;
        let (iova, on_device, received) = (start, false, Vec::new());
        Ok(Memory { mapping: None, start, iova, len, on_device, pd, mr, received })
    }

    pub fn info(&self, id: adverb_rdma::seam::MemoryId) -> MemoryInfo {
        let MrInfo { lkey, rkey, .. } = self.mr;
        MemoryInfo { id, addr: self.iova, len: self.len as u64, lkey, rkey }
    }

    /// Where it lies, and its bytes, if it counts as memory of the NIC's.
    pub fn device_bytes(&self) -> Option<(u64, u64)> {
        self.on_device.then_some((self.start, self.len as u64))
    }

    pub fn lkey(&self) -> Key {
        self.mr.lkey
    }

    fn deregister(&self, nic: &mut Nic) -> Result<(), adverb_nic::Error> {
        nic.memory().dereg_mr(self.mr.id)
    }

    /// Takes it from the NIC, when the program ends.
    pub fn end(self, nic: &mut Nic) {
        if self.deregister(nic) == Err(adverb_nic::Error::Busy) {
            // A window is bound to it, so that the NIC keeps it: it stays mapped.
            std::mem::forget(self);
        }
    }

    fn span(&self, at: u64, len: usize) -> Result<Span, Error> {
        let inside = usize::try_from(at).is_ok_and(|at| at <= self.len && len <= self.len - at);
        if !inside {
            return Err(Error::Range { at, len: len as u64, of: self.len as u64 });
        }
        // SAFETY: inside the bytes that `self.mapping` keeps mapped, whose address is exposed; the span is
        // used within this module's calls only, while `self` is borrowed.
        Ok(unsafe { Span::new(self.start + at, len) })
    }

    fn word(&self, at: u64) -> Result<Span, Error> {
        let span = self.span(at, 8)?;
        if at.is_multiple_of(8) { Ok(span) } else { Err(Error::Range { at, len: 8, of: self.len as u64 }) }
    }

    pub fn load_word(&self, at: u64) -> Result<u64, Error> {
        self.word(at).map(dma::load_word)
    }

    pub fn store_word(&self, at: u64, value: u64) -> Result<(), Error> {
        self.word(at).map(|word| dma::store_word(word, value))
    }

    pub fn load(&self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let span = self.span(at, len)?;
        let mut out = vec![0; len];
        dma::read_bytes(span, &mut out);
        Ok(out)
    }

    pub fn store(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let span = self.span(at, bytes.len())?;
        dma::write_bytes(span, bytes);
        Ok(())
    }
}

/// A region that was released, and what may still reach it.
#[derive(Debug)]
pub(super) struct Retired {
    memory: Memory,
    /// Queue pairs, and how far each had been posted to.
    sends: Vec<(QpId, u32)>,
}

impl Retired {
    /// `qps` are the program's queue pairs.
    pub fn new(nic: &Nic, memory: Memory, qps: &[QpId]) -> Retired {
        // A queue pair that the NIC does not know reaches nothing, and one of another domain not this.
        let reaches = |qp: &QpId| nic.query_qp(*qp).is_ok_and(|(_, init)| init.pd == Some(memory.pd));
        let posted =
            |qp: &QpId| nic.sends_posted(*qp).ok().filter(|_| reaches(qp)).map(|posted| (*qp, posted));
        let sends = qps.iter().filter_map(posted).collect();
        Retired { memory, sends }
    }

    /// Deregisters it if nothing reaches it any more. `alive` says whether a receive queue is there. True
    /// when it may be dropped.
    pub fn try_free(&mut self, nic: &mut Nic, alive: impl Fn(RecvTarget) -> bool) -> bool {
        self.sends.retain(|(qp, posted)| matches!(nic.has_sent(*qp, *posted), Ok(false)));
        if !self.sends.is_empty() || self.memory.received.iter().any(|to| alive(*to)) {
            return false;
        }
        // Busy while a window is bound to it: then it stays.
        !matches!(self.memory.deregister(nic), Err(adverb_nic::Error::Busy))
    }

    pub fn end(self, nic: &mut Nic) {
        self.memory.end(nic);
    }

    /// The region.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}
