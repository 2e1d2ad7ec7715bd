//! Answers to calls that never wait: objects, posts, polls, memory, the exchange.

use super::memory::{Memory, Retired};
use super::{Programs, State};
use adverb_nic::limits::MAX_DM_SIZE;
use adverb_nic::{CqId, PdId, QpAttrMask, QpId, RecvWr, SendData, SendWr};
use adverb_os::mapping::Mapping;
use adverb_os::{shm, sys};
use adverb_rdma::seam::{Backing, FileId, MemoryId, Object, RecvTarget};
use adverb_rdma::{Answer, Call, Data, Device, Error, RecvRequest, SendRequest};
use adverb_wire::Gid;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

/// Regions of a program at most.
const MEMORIES_MAX: usize = 1 << 16;

/// Objects.
impl Programs {
    /// Lets go what can go now.
    pub(super) fn sweep(&self) {
        let state = &mut *self.state.borrow_mut();
        if state.retired.is_empty() && state.leaving.is_empty() {
            return;
        }
        self.host.control(|nic, _| {
            let State { leaving, qps, srqs, cqs, pds, retired, .. } = state;
            // Users before what they use: queue pairs, then queues, regions, and domains last.
            for rank in 0..3 {
                leaving.retain(|object| {
                    let (of, gone) = match *object {
                        Object::Qp(qp) => (
                            0,
                            rank == 0 && {
                                let gone = nic.destroy_qp(qp) != Err(adverb_nic::Error::Busy);
                                qps.retain(|other| !gone || *other != qp);
                                gone
                            },
                        ),
                        Object::Srq(srq) => (
                            1,
                            rank == 1 && {
                                let gone = nic.destroy_srq(srq) != Err(adverb_nic::Error::Busy);
                                srqs.retain(|other| !gone || *other != srq);
                                gone
                            },
                        ),
                        Object::Cq(cq) => (
                            1,
                            rank == 1 && {
                                let gone = nic.destroy_cq(cq) != Err(adverb_nic::Error::Busy);
                                cqs.retain(|other| !gone || *other != cq);
                                gone
                            },
                        ),
                        Object::Pd(pd) => (
                            2,
                            rank == 2 && {
                                let gone = nic.memory().dealloc_pd(pd) != Err(adverb_nic::Error::Busy);
                                pds.retain(|other| !gone || *other != pd);
                                gone
                            },
                        ),
                        _ => (rank, true),
                    };
                    !(of == rank && gone)
                });
                if rank == 1 {
                    let alive = |to: RecvTarget| match to {
                        RecvTarget::Qp(qp) => qps.contains(&qp),
                        RecvTarget::Srq(srq) => srqs.contains(&srq),
                    };
                    retired.retain_mut(|memory| !memory.try_free(nic, alive));
                }
            }
        });
    }

    /// Answers a call that never waits.
    pub(super) fn answer(&self, call: Call) -> Result<Answer, Error> {
        if let Some(answer) = self.exchange.answer(&call) {
            return answer;
        }
        match call {
            Call::Device => {
                let gid = self.host.device().gids.first().copied().unwrap_or(Gid([0; 16]));
                Ok(Answer::Device(Device { gid, mtu: self.mtu, pid: std::process::id() }))
            }
            Call::CreatePd => {
                let pd = self.host.control(|nic, _| nic.memory().alloc_pd())?;
                self.state.borrow_mut().pds.push(pd);
                Ok(Answer::Pd(pd))
            }
            Call::CreateRegion { pd, backing, access } => self.create_region(pd, backing, access),
            Call::CreateFile { len } => {
                let len = usize::try_from(len).map_err(|_| Error::Unsupported("a file of that length"))?;
                let file = shm::sealed_memory(len)
                    .map_err(|error| Error::System(format!("making a file of memory: {error}")))?;
                let number = file.as_raw_fd();
                self.state.borrow_mut().files.insert(number, file);
                Ok(Answer::File(FileId(number)))
            }
            Call::Now => Ok(Answer::Time(self.host.now())),
            Call::Random => Ok(Answer::Word(sys::random_seed())),
            Call::Think(_) => Ok(Answer::Done),
            Call::LoadWord { memory, at } => {
                self.memory(memory, |memory| memory.load_word(at).map(Answer::Word))
            }
            Call::StoreWord { memory, at, value } => {
                let stored = self.memory(memory, |memory| memory.store_word(at, value));
                stored.map(|()| self.stored())
            }
            Call::Load { memory, at, len } => {
                self.memory(memory, |memory| memory.load(at, len).map(Answer::Bytes))
            }
            Call::Store { memory, at, bytes } => {
                let stored = self.memory(memory, |memory| memory.store(at, &bytes));
                stored.map(|()| self.stored())
            }
            Call::Allocate { .. } | Call::Grant { .. } | Call::Transfer(_) => {
                Err(Error::Unsupported("1RMA, which has a NIC of its own (adverb_rma)"))
            }
            Call::Until { .. } | Call::Ask { .. } => unreachable!("begun elsewhere"),
            call => self.verb(call),
        }
    }

    fn memory<R>(
        &self,
        MemoryId(memory): MemoryId,
        access: impl FnOnce(&Memory) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let state = self.state.borrow();
        access(state.memories.get(&memory).ok_or(Error::NoSuchObject("memory"))?)
    }

    /// The program has written to its memory, where another of its tasks may wait for a word.
    fn stored(&self) -> Answer {
        self.waits.on_wait();
        self.waits.on_words();
        Answer::Done
    }

    fn create_region(&self, pd: PdId, backing: Backing, access: adverb_nic::Access) -> Result<Answer, Error> {
        let state = &mut *self.state.borrow_mut();
        if state.memories.len() >= MEMORIES_MAX {
            return Err(Error::Refused(adverb_nic::Error::TableFull));
        }
        let size =
            |bytes: u64| usize::try_from(bytes).map_err(|_| Error::Unsupported("memory of that length"));
        let failed = |error: std::io::Error| Error::System(format!("mapping memory: {error}"));
        let memory = match backing {
            Backing::Zeros { len } => {
                let len = size(len)?;
                let mapping = Mapping::anonymous(len).map_err(failed)?;
                self.host.control(|nic, _| Memory::register(nic, pd, mapping, (0, len), access, false))?
            }
            Backing::File { file: FileId(file), at, len } => {
                let end = at.checked_add(len).ok_or(Error::Range { at, len, of: u64::MAX })?;
                let mapping = Mapping::of_number(file, size(end)?).map_err(failed)?;
                let part = (size(at)?, size(len)?);
                self.host.control(|nic, _| Memory::register(nic, pd, mapping, part, access, false))?
            }
            Backing::Device { len } => {
                let free = MAX_DM_SIZE - state.device_bytes();
                if len > free {
                    return Err(Error::DeviceMemory { len, free });
                }
                let len = size(len)?;
                let mapping = Mapping::anonymous(len).map_err(failed)?;
                self.host.control(|nic, _| Memory::register(nic, pd, mapping, (0, len), access, true))?
            }
            Backing::Same(MemoryId(memory)) => {
                let memory = state.memories.get(&memory).ok_or(Error::NoSuchObject("memory"))?;
                self.host.control(|nic, _| memory.register_again(nic, pd, access))?
            }
            Backing::SendQueue(qp) => {
                self.host.control(|nic, _| Memory::register_queue(nic, pd, qp, access))?
            }
        };
        state.last_memory = state.last_memory.checked_add(1).ok_or(adverb_nic::Error::TableFull)?;
        let id = MemoryId(state.last_memory);
        let info = memory.info(id);
        state.memories.insert(id.0, memory);
        Ok(Answer::Memory(info))
    }

    /// Answers a call to the NIC.
    fn verb(&self, call: Call) -> Result<Answer, Error> {
        match call {
            Call::CreateCq { entries, endless } => {
                let cq = self.host.control(|nic, _| {
                    let cq = nic.create_cq(entries)?;
                    if endless {
                        nic.ignore_overrun(cq)?;
                    }
                    Ok::<_, adverb_nic::Error>(cq)
                })?;
                self.state.borrow_mut().cqs.push(cq);
                Ok(Answer::Cq(cq, cq.index() as u32))
            }
            Call::CreateSrq(init) => {
                let (srq, number) = self.host.control(|nic, _| {
                    let srq = nic.create_srq(&init)?;
                    Ok::<_, adverb_nic::Error>((srq, nic.srq_number(srq)?))
                })?;
                self.state.borrow_mut().srqs.push(srq);
                Ok(Answer::Srq(srq, number))
            }
            Call::CreateQp { init, flags } => {
                let (qp, number, caps) = self.host.control(|nic, _| {
                    let qp = nic.create_qp_with(&init, flags)?;
                    Ok::<_, adverb_nic::Error>((qp, nic.qp_number(qp)?, nic.qp_caps(qp)?))
                })?;
                if !flags.is_empty() {
                    self.host.offer_looks();
                }
                self.state.borrow_mut().qps.push(qp);
                Ok(Answer::Qp(qp, number, caps))
            }
            Call::ModifyQp { qp, mut attr, mask } => {
                if mask.contains(QpAttrMask::AV) {
                    let dest = if mask.contains(QpAttrMask::DEST_QPN) {
                        attr.dest_qpn
                    } else {
                        self.host.control(|nic, _| nic.query_qp(qp))?.0.dest_qpn
                    };
                    attr.path = self.host.resolve(attr.av.dgid, dest);
                }
                self.host.control(|nic, now| nic.modify_qp(now, qp, &attr, mask))?;
                Ok(Answer::Done)
            }
            Call::QueryQp(qp) => {
                let (attr, _) = self.host.control(|nic, _| nic.query_qp(qp))?;
                Ok(Answer::Attributes(Box::new(attr)))
            }
            Call::Live(qp) => Ok(Answer::Live(self.host.control(|nic, _| nic.live_queue(qp))?)),
            Call::PostSend { qp, list } => Ok(self.post_send(qp, list)),
            Call::PostRecv { to, list } => Ok(self.post_recv(to, &list)),
            Call::Doorbell { qp, posted } => {
                self.host.post(|nic, now| nic.on_doorbell(now, qp, posted))?;
                Ok(Answer::Done)
            }
            Call::LimitRate { qp, limit } => {
                self.host.control(|nic, _| nic.set_rate_limit(qp, limit))?;
                Ok(Answer::Done)
            }
            Call::PollCq { cq, max } => self.poll_cq(cq, max),
            other => unreachable!("answered elsewhere: {other:?}"),
        }
    }

    fn post_send(&self, qp: QpId, mut list: Vec<SendRequest>) -> Answer {
        for ud in list.iter_mut().filter_map(|request| request.ud.as_mut()) {
            ud.path = self.host.resolve(ud.dgid, ud.qpn);
        }
        self.host.post(|nic, now| {
            for (posted, request) in list.iter().enumerate() {
                if let Err(refused) = nic.post_send(now, qp, &as_posted(request)) {
                    return Answer::Posted(posted, Some(refused));
                }
            }
            Answer::Posted(list.len(), None)
        })
    }

    fn post_recv(&self, to: RecvTarget, list: &[RecvRequest]) -> Answer {
        {
            let state = &mut *self.state.borrow_mut();
            for piece in list.iter().flat_map(|request| &request.pieces) {
                let named = state.memories.values_mut().find(|memory| memory.lkey() == piece.lkey);
                if let Some(memory) = named.filter(|memory| !memory.received.contains(&to)) {
                    memory.received.push(to);
                }
            }
        }
        self.host.post(|nic, now| {
            for (posted, request) in list.iter().enumerate() {
                let wr = RecvWr { wr_id: request.wr_id, sges: &request.pieces };
                let result = match to {
                    RecvTarget::Qp(qp) => nic.post_recv(now, qp, &wr),
                    RecvTarget::Srq(srq) => nic.post_srq_recv(srq, &wr),
                };
                if let Err(refused) = result {
                    return Answer::Posted(posted, Some(refused));
                }
            }
            Answer::Posted(list.len(), None)
        })
    }

    fn poll_cq(&self, cq: CqId, max: usize) -> Result<Answer, Error> {
        let mut completions = Vec::new();
        let taken = self.host.poll(cq, max, |completion| completions.push(completion))?;
        if taken > 0 && !self.state.borrow().retired.is_empty() {
            self.sweep();
        }
        Ok(Answer::Completions(completions))
    }
}

impl State {
    /// Bytes of the NIC's own memory that regions have, those that are to go too. What is registered twice
    /// counts once.
    fn device_bytes(&self) -> u64 {
        let retired = self.retired.iter().map(Retired::memory);
        let all = self.memories.values().chain(retired).filter_map(Memory::device_bytes);
        all.collect::<BTreeMap<u64, u64>>().values().sum()
    }
}

/// A work request as the NIC takes it.
fn as_posted(request: &SendRequest) -> SendWr<'_> {
    let data = match &request.data {
        Data::Piece(piece) if piece.len == 0 => SendData::Sges(&[]),
        Data::Piece(piece) => SendData::Sges(std::slice::from_ref(piece)),
        Data::Pieces(pieces) => SendData::Sges(pieces),
        Data::Inline(bytes) => SendData::Inline(bytes),
    };
    let SendRequest { wr_id, op, flags, ud, xrc_srqn, .. } = *request;
    SendWr { wr_id, op, flags, data, ud, xrc_srqn }
}
