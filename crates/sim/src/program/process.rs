//! What a program has of its host's NIC: objects that it made, memory that it registered. A program reaches
//! no object but its own.
//!
//! An object whose handle was dropped, or whose program was killed, goes when nothing needs it any more:
//! memory, when the program has no queue left that could have a request for it. A queue pair stops at once,
//! but its number rests before another can have it, so that late packets of its connection are not taken for
//! another's (IBTA leaves that to the consumer; adapters' drivers cycle through numbers).

use crate::host::Host;
use crate::host::memory::Buffer;
use crate::host::one_rma::Lent;
use adverb_nic::memory::{AccessFault, Span, dma};
use adverb_nic::one_rma::RegionId;
use adverb_nic::{Access, CqId, Error as Refused, MrId, Nic, PdId, QpAttrMask, QpId, QpState, SrqId};
use adverb_rdma::Error;
use adverb_rdma::seam::{MemoryId, MemoryInfo, Object};
use adverb_wire::Instant;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// How long a queue pair's number rests: longer than a packet lives in a fabric.
pub(super) const REST_PS: u64 = 2_000_000_000;

/// A program's objects.
#[derive(Default)]
pub(super) struct Process {
    pub pds: Vec<PdId>,
    pub cqs: Vec<CqId>,
    pub srqs: Vec<SrqId>,
    pub qps: Vec<QpId>,
    pub memories: BTreeMap<MemoryId, Piece>,
    /// Of it, what is for 1RMA.
    pub one_rma: BTreeMap<MemoryId, Lent>,
    /// 1RMA regions that peers were granted.
    pub granted: Vec<RegionId>,
    /// Memory that waits for the program's last queue.
    dropped: Vec<Piece>,
}

/// Registered memory.
#[derive(Clone)]
pub(super) struct Piece {
    pub info: MemoryInfo,
    pub pd: PdId,
    pub mr: MrId,
    /// What it is a part of, kept for as long as the NIC names its address, and which part; `None` for a
    /// queue's own memory, which stays as long as the process that simulates.
    pub bytes: Option<(Rc<Buffer>, Range<u64>)>,
}

/// A host's objects that belong to nobody any more.
#[derive(Default)]
pub(super) struct Leftovers {
    /// Queue pairs, and when their numbers have rested.
    qps: Vec<(u64, QpId)>,
    srqs: Vec<SrqId>,
    cqs: Vec<CqId>,
    pieces: Vec<Piece>,
    pds: Vec<PdId>,
}

impl Process {
    /// The program's own object with this name.
    pub fn own<T: Copy + PartialEq>(list: &[T], id: T, what: &'static str) -> Result<T, Error> {
        if list.contains(&id) { Ok(id) } else { Err(Error::NoSuchObject(what)) }
    }

    /// The program's memory with this name, and that a part of it lies inside.
    pub fn memory(&self, id: MemoryId, at: u64, len: u64) -> Result<&Piece, Error> {
        let piece = self.memories.get(&id).ok_or(Error::NoSuchObject("memory"))?;
        let of = piece.info.len;
        if at > of || len > of - at { Err(Error::Range { at, len, of }) } else { Ok(piece) }
    }

    /// A handle was dropped. Objects that do not belong to the NIC are not looked at.
    pub fn release(&mut self, now: u64, object: Object, host: &mut Host, left: &mut Leftovers) {
        match object {
            Object::Pd(id) => take(&mut self.pds, id, &mut left.pds),
            Object::Cq(id) => take(&mut self.cqs, id, &mut left.cqs),
            Object::Srq(id) => take(&mut self.srqs, id, &mut left.srqs),
            Object::Qp(id) => {
                if let Some(at) = self.qps.iter().position(|own| *own == id) {
                    self.qps.swap_remove(at);
                    left.qps.push((now + REST_PS, id));
                    stop(now, id, &mut host.nic);
                }
            }
            Object::Memory(id) => self.dropped.extend(self.memories.remove(&id)),
            Object::File(_) | Object::Listener(_) | Object::Line(_) => {}
        }
        if self.qps.is_empty() && self.srqs.is_empty() {
            left.pieces.append(&mut self.dropped);
        }
        left.sweep(now, &mut host.nic);
    }

    /// The program is no more, and all that it had belongs to nobody.
    pub fn end(mut self, now: u64, host: &mut Host, left: &mut Leftovers) {
        for id in core::mem::take(&mut self.qps) {
            left.qps.push((now + REST_PS, id));
            stop(now, id, &mut host.nic);
        }
        left.srqs.append(&mut self.srqs);
        left.cqs.append(&mut self.cqs);
        left.pieces.append(&mut self.dropped);
        left.pieces.extend(core::mem::take(&mut self.memories).into_values());
        left.pds.append(&mut self.pds);
        left.sweep(now, &mut host.nic);
    }
}

fn take<T: PartialEq>(own: &mut Vec<T>, id: T, left: &mut Vec<T>) {
    if let Some(at) = own.iter().position(|other| *other == id) {
        left.push(own.swap_remove(at));
    }
}

/// The queue pair sends and takes nothing more.
fn stop(now: u64, id: QpId, nic: &mut Nic) {
    if let Ok((mut attr, _)) = nic.query_qp(id) {
        attr.state = QpState::Reset;
        let stopped = nic.modify_qp(Instant::from_ps(now), id, &attr, QpAttrMask::STATE);
        assert!(stopped.is_ok(), "any queue pair may be reset");
    }
}

impl Leftovers {
    /// When a queue pair's number has rested next.
    pub fn next(&self) -> Option<u64> {
        self.qps.iter().map(|(at, _)| *at).min()
    }

    /// Destroys what nothing needs any more.
    pub fn sweep(&mut self, now: u64, nic: &mut Nic) {
        self.qps.retain(|(at, id)| *at > now || is_busy(nic.destroy_qp(*id)));
        self.srqs.retain(|id| is_busy(nic.destroy_srq(*id)));
        self.cqs.retain(|id| is_busy(nic.destroy_cq(*id)));
        self.pieces.retain(|piece| is_busy(nic.memory().dereg_mr(piece.mr)));
        self.pds.retain(|id| is_busy(nic.memory().dealloc_pd(*id)));
    }
}

fn is_busy(destroyed: Result<(), Refused>) -> bool {
    match destroyed {
        Ok(()) => false,
        Err(Refused::Busy) => true,
        Err(error) => panic!("an object that a program had is there: {error}"),
    }
}

impl Piece {
    /// Copies bytes out, as a program's own loads do.
    pub fn load(&self, nic: &mut Nic, at: u64, out: &mut [u8]) -> Result<(), Error> {
        dma::read_bytes(self.span(nic, at, out.len())?, out);
        Ok(())
    }

    /// Copies bytes in.
    pub fn store(&self, nic: &mut Nic, at: u64, bytes: &[u8]) -> Result<(), Error> {
        dma::write_bytes(self.span(nic, at, bytes.len())?, bytes);
        Ok(())
    }

    /// An aligned word in host order.
    pub fn word(&self, nic: &mut Nic, at: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.load(nic, at, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn span(&self, nic: &mut Nic, at: u64, len: usize) -> Result<Span, Error> {
        let range = || Error::Range { at, len: len as u64, of: self.info.len };
        let short = u32::try_from(len).map_err(|_| range())?;
        // What peers and work requests may do is no matter of the program's own loads and stores.
        let found = nic.memory().check_local(self.pd, self.info.lkey, self.info.addr + at, short, false);
        found.map_err(|_: AccessFault| range())
    }
}

/// Where a program's memory begins, as work requests name it. Not where it is on the machine that simulates,
/// so that a seed replays a run.
pub(super) fn address(memory: MemoryId) -> u64 {
    (u64::from(memory.0) + 1) << 40
}

/// Rights of memory that a program registers for itself alone.
pub(super) const LOCAL: Access = Access::LOCAL_WRITE;
