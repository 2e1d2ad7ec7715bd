//! What each call does. A call is done in one step, but for lists, of which a step posts one request, and
//! copies, of which a step moves eight bytes, or more where there are many.

use super::process::{Piece, Process, address};
use super::wait::{LATE, Waiting};
use super::{Current, Due, Programs, Station};
use crate::host::Host;
use crate::host::memory::Buffer;
use crate::sim::Sim;
use adverb_nic::limits::MAX_DM_SIZE;
use adverb_nic::{Access, PathId, PdId, QpAttr, QpAttrMask, RecvWr, SendData, SendWr};
use adverb_rdma::Error;
use adverb_rdma::seam::{
    Answer, Backing, Call, Data, Device, FileId, MemoryId, MemoryInfo, RecvTarget, SendRequest, Wait,
};
use adverb_wire::Instant;
use core::ops::Range;
use std::rc::Rc;

/// Memory that a program may register in one piece, so that one that errs does not take the machine's.
const MEMORY_MAX: u64 = 1 << 30;
/// Steps of a copy at most.
const COPY_STEPS: usize = 64;

/// What came of a step.
pub(super) enum Outcome {
    /// The call is done.
    Answer(Result<Answer, Error>),
    /// There are more steps.
    More(Current),
    /// It waits, and its thread may do something else.
    Wait(Waiting),
}

impl Programs {
    /// Time on its core, on this host, that the next step of a call takes.
    pub(super) fn cost(&self, host: usize, current: &Current) -> u64 {
        let cpu = self.stations[host].cpu.profile();
        match &current.call {
            Call::PostSend { .. } | Call::PostRecv { .. } | Call::Doorbell { .. } => cpu.post_ps,
            Call::PollCq { .. } => cpu.poll_ps,
            Call::Think(time) => time.as_ps(),
            Call::LoadWord { .. } | Call::StoreWord { .. } => 8 * cpu.byte_ps,
            Call::Load { len, .. } => copy_step(*len, current.progress) as u64 * cpu.byte_ps,
            Call::Store { bytes, .. } => copy_step(bytes.len(), current.progress) as u64 * cpu.byte_ps,
            Call::Until { waits, .. } if current.progress > 0 && current.progress != LATE => {
                match waits.get(current.progress - 1) {
                    Some(Wait::Word { .. }) => cpu.spin_ps,
                    _ => 0,
                }
            }
            _ => 0,
        }
    }
}

/// Bytes that the next step of a copy of `len` moves.
fn copy_step(len: usize, done: usize) -> usize {
    let step = len.div_ceil(COPY_STEPS).next_multiple_of(8);
    step.min(len - done)
}

impl Sim {
    /// Does the next step of a call.
    pub(super) fn execute(&mut self, programs: &mut Programs, n: u32, mut current: Current) -> Outcome {
        let who = programs.who(n);
        let answer = match &current.call {
            Call::Until { .. } | Call::Ask { .. } => return self.wait(programs, n, current),
            Call::PostSend { .. } | Call::PostRecv { .. } => return self.post_next(programs, n, current),
            Call::Transfer(_) => return self.begin_transfer(programs, n, current),
            Call::Load { .. } | Call::Store { .. } => {
                return match self.copy_next(programs, n, &mut current) {
                    Ok(None) => Outcome::More(current),
                    Ok(Some(answer)) => Outcome::Answer(Ok(answer)),
                    Err(error) => Outcome::Answer(Err(error)),
                };
            }
            Call::Listen { name } => match programs.exchange.listen(who, name) {
                Some((id, again)) => {
                    programs.send(self.now, again);
                    Ok(Answer::Listener(id))
                }
                None => Err(Error::System(format!("another program listens at {name}"))),
            },
            Call::Accept(id) => {
                programs.exchange.accept(who, *id).map(Answer::Asked).ok_or(Error::NoSuchObject("listener"))
            }
            Call::Reply { line, attributes } => match programs.exchange.reply(who, *line) {
                Some(Some((to, ticket))) => {
                    let told = Ok(Answer::Told(*line, attributes.clone()));
                    programs.at(self.now + programs.exchange_ps, Due::Told(to, ticket, told));
                    Ok(Answer::Done)
                }
                Some(None) => Ok(Answer::Done),
                None => Err(Error::NoSuchObject("question")),
            },
            Call::Now => {
                let clock = programs.stations[programs.host(n)].clock;
                Ok(Answer::Time(Instant::from_ps(self.now + clock)))
            }
            Call::Random => Ok(Answer::Word(programs.life(who).map_or(0, |life| life.rng.u64(..)))),
            Call::Think(_) => Ok(Answer::Done),
            Call::Allocate { backing } => self.allocate(programs, n, *backing),
            Call::Grant { memory, at, len, rights, peer, pid } => {
                let part = (*memory, *at..at.saturating_add(*len));
                self.grant(programs, n, part, *rights, (*peer, *pid))
            }
            _ => self.on_objects(programs, n, &current.call),
        };
        Outcome::Answer(answer)
    }

    /// A call that waits: at first it looks whether it has to.
    fn wait(&mut self, programs: &mut Programs, n: u32, mut current: Current) -> Outcome {
        let (ticket, who) = (current.ticket, programs.who(n));
        let clock = programs.stations[programs.host(n)].clock;
        let until = |at: Instant| at.as_ps().saturating_sub(clock);
        match &mut current.call {
            Call::Until { .. } if current.progress == LATE => Outcome::Answer(Ok(Answer::Woken(None))),
            Call::Until { .. } if current.progress > 0 => {
                Outcome::Answer(Ok(Answer::Woken(Some(current.progress - 1))))
            }
            Call::Until { waits, deadline } => {
                let (waits, deadline) = (core::mem::take(waits), deadline.map(until));
                match self.first_that_holds(programs, n, &waits) {
                    Err(error) => return Outcome::Answer(Err(error)),
                    Ok(Some(index)) => {
                        current.call = Call::Until { waits, deadline: None };
                        current.progress = index + 1;
                        return Outcome::More(current);
                    }
                    Ok(None) => {}
                }
                if deadline.is_some_and(|at| at <= self.now) {
                    return Outcome::Answer(Ok(Answer::Woken(None)));
                }
                if let Some(at) = deadline {
                    programs.at(at, Due::Deadline(who, ticket));
                }
                if self.watch.journal.is_on() {
                    let what = super::words::waits(&waits, deadline);
                    self.tell_program(programs, n, &what);
                }
                Outcome::Wait(Waiting { ticket, waits, seen_at: None })
            }
            Call::Ask { name, attributes, deadline } => {
                let line = programs.exchange.ask(who, ticket, name, core::mem::take(attributes));
                programs.send(self.now, [super::Message::Question(line)]);
                if let Some(at) = deadline.map(until) {
                    programs.at(at.max(self.now), Due::Deadline(who, ticket));
                }
                if self.watch.journal.is_on() {
                    let what = format!("asks {name}");
                    self.tell_program(programs, n, &what);
                }
                Outcome::Wait(Waiting { ticket, waits: Vec::new(), seen_at: None })
            }
            _ => Outcome::Answer(Err(Error::Unsupported("waiting"))),
        }
    }

    /// Posts the next request of a list.
    fn post_next(&mut self, programs: &mut Programs, n: u32, mut current: Current) -> Outcome {
        let (host, who, now) = (programs.host(n), programs.who(n), Instant::from_ps(self.now));
        let Some(life) = programs.life(who) else { return Outcome::Answer(Err(Error::Left)) };
        let (process, nic, at) = (&life.process, &mut self.hosts.list[host].nic, current.progress);
        let (length, posted) = match &current.call {
            Call::PostSend { qp, list } => {
                let qp = match Process::own(&process.qps, *qp, "queue pair") {
                    Ok(qp) => qp,
                    Err(error) => return Outcome::Answer(Err(error)),
                };
                (list.len(), list.get(at).map(|wr| with_wr(wr, |wr| nic.post_send(now, qp, wr))))
            }
            Call::PostRecv { to, list } => {
                let own = match to {
                    RecvTarget::Qp(qp) => Process::own(&process.qps, *qp, "queue pair").map(drop),
                    RecvTarget::Srq(srq) => {
                        Process::own(&process.srqs, *srq, "shared receive queue").map(drop)
                    }
                };
                if let Err(error) = own {
                    return Outcome::Answer(Err(error));
                }
                let posted = list.get(at).map(|request| {
                    let wr = RecvWr { wr_id: request.wr_id, sges: &request.pieces };
                    match to {
                        RecvTarget::Qp(qp) => nic.post_recv(now, *qp, &wr),
                        RecvTarget::Srq(srq) => nic.post_srq_recv(*srq, &wr),
                    }
                });
                (list.len(), posted)
            }
            _ => return Outcome::Answer(Err(Error::Unsupported("posting"))),
        };
        self.after_nic(host as u32, false);
        match posted {
            Some(Err(refused)) => Outcome::Answer(Ok(Answer::Posted(at, Some(refused)))),
            Some(Ok(())) if at + 1 < length => {
                current.progress += 1;
                Outcome::More(current)
            }
            _ => Outcome::Answer(Ok(Answer::Posted(length, None))),
        }
    }

    /// Moves the next bytes of a copy; the answer when there are no more.
    fn copy_next(
        &mut self,
        programs: &mut Programs,
        n: u32,
        current: &mut Current,
    ) -> Result<Option<Answer>, Error> {
        let (host, who) = (programs.host(n), programs.who(n));
        let life = programs.life(who).ok_or(Error::Left)?;
        let (nic, done) = (&mut self.hosts.list[host].nic, current.progress);
        match &current.call {
            Call::Load { memory, at, len } => {
                let piece = life.process.memory(*memory, *at, *len as u64)?;
                let step = copy_step(*len, done);
                current.bytes.resize(done + step, 0);
                piece.load(nic, at + done as u64, &mut current.bytes[done..])?;
                current.progress += step;
                let all = current.progress == *len;
                Ok(all.then(|| Answer::Bytes(core::mem::take(&mut current.bytes))))
            }
            Call::Store { memory, at, bytes } => {
                let piece = life.process.memory(*memory, *at, bytes.len() as u64)?;
                let step = copy_step(bytes.len(), done);
                piece.store(nic, at + done as u64, &bytes[done..done + step])?;
                current.progress += step;
                let all = current.progress == bytes.len();
                self.memory_changed(host as u32);
                Ok(all.then_some(Answer::Done))
            }
            _ => Err(Error::Unsupported("copying")),
        }
    }

    /// Programs of the host may wait for a word that another of them has written.
    fn memory_changed(&mut self, host: u32) {
        if !self.programs.stored.contains(&host) {
            self.programs.stored.push(host);
        }
    }

    /// Calls about one object, which are done at once.
    // Long: one match over the calls, a few lines for each.
    fn on_objects(&mut self, programs: &mut Programs, n: u32, call: &Call) -> Result<Answer, Error> {
        let (h, who, now) = (programs.host(n), programs.who(n), Instant::from_ps(self.now));
        if let Call::CreateRegion { pd, backing, access } = call {
            return self.register(programs, n, (*pd, *backing, *access));
        }
        if let Call::CreateFile { len } = call {
            let files = &mut programs.stations[h].files;
            let number = files.last_key_value().map_or(3, |(last, _)| last + 1);
            files.insert(number, Rc::new(bytes(*len)?));
            return Ok(Answer::File(FileId(number)));
        }
        let (gid, mtu) = (self.hosts.list[h].gid, self.config.transport.mtu);
        let class = self.config.transport.class;
        let mark = if self.config.transport.ecn { 2 } else { 0 };
        let pid = self.one_rma_pid(h).unwrap_or((n + 1) << 8 | who.life & 0xff);
        let life = programs.life(who).ok_or(Error::Left)?;
        let process = &mut life.process;
        let Host { nic, unit, .. } = &mut self.hosts.list[h];
        let answer = match call {
            Call::Device => Answer::Device(Device { gid, mtu, pid }),
            Call::CreatePd => {
                let id = nic.memory().alloc_pd()?;
                process.pds.push(id);
                Answer::Pd(id)
            }
            Call::CreateCq { entries, endless } => {
                let id = nic.create_cq(*entries)?;
                if *endless {
                    nic.ignore_overrun(id)?;
                }
                process.cqs.push(id);
                Answer::Cq(id, id.index() as u32)
            }
            Call::CreateSrq(init) => {
                Process::own(&process.pds, init.pd, "protection domain")?;
                let id = nic.create_srq(init)?;
                process.srqs.push(id);
                Answer::Srq(id, nic.srq_number(id)?)
            }
            Call::CreateQp { init, flags } => {
                let pd = init.pd.map(|pd| Process::own(&process.pds, pd, "protection domain"));
                pd.transpose()?;
                for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
                    Process::own(&process.cqs, cq, "completion queue")?;
                }
                let id = nic.create_qp_with(init, *flags)?;
                process.qps.push(id);
                Answer::Qp(id, nic.qp_number(id)?, nic.qp_caps(id)?)
            }
            Call::ModifyQp { qp, attr, mask } => {
                let qp = Process::own(&process.qps, *qp, "queue pair")?;
                let mut attr: QpAttr = **attr;
                if mask.contains(QpAttrMask::AV) {
                    // What the fabric's configuration says of traffic, as a host's settings would.
                    attr.av.traffic_class = class << 2 | mark;
                    attr.path = PathId(u16::from(class));
                }
                nic.modify_qp(now, qp, &attr, *mask)?;
                Answer::Done
            }
            Call::QueryQp(qp) => {
                let qp = Process::own(&process.qps, *qp, "queue pair")?;
                Answer::Attributes(Box::new(nic.query_qp(qp)?.0))
            }
            Call::Live(qp) => Answer::Live(nic.live_queue(Process::own(&process.qps, *qp, "queue pair")?)?),
            Call::Doorbell { qp, posted } => {
                let qp = Process::own(&process.qps, *qp, "queue pair")?;
                nic.on_doorbell(now, qp, *posted)?;
                Answer::Done
            }
            Call::LimitRate { qp, limit } => {
                nic.set_rate_limit(Process::own(&process.qps, *qp, "queue pair")?, *limit)?;
                Answer::Done
            }
            Call::PollCq { cq, max } => {
                let cq = Process::own(&process.cqs, *cq, "completion queue")?;
                let mut taken = Vec::new();
                while taken.len() < *max
                    && unit.as_deref_mut().is_none_or(|unit| unit.take_visible(cq))
                    && let Some(completion) = nic.poll_cq(cq)?
                {
                    taken.push(completion);
                }
                // Nobody waits for what has been taken: the NIC has nothing new to do.
                return Ok(Answer::Completions(taken));
            }
            Call::LoadWord { memory, at } => {
                let piece = aligned(process, *memory, *at)?;
                return Ok(Answer::Word(piece.word(nic, *at)?));
            }
            Call::StoreWord { memory, at, value } => {
                aligned(process, *memory, *at)?.store(nic, *at, &value.to_ne_bytes())?;
                self.memory_changed(h as u32);
                return Ok(Answer::Done);
            }
            _ => return Err(Error::Unsupported("this call")),
        };
        self.after_nic(h as u32, false);
        Ok(answer)
    }

    fn register(
        &mut self,
        programs: &mut Programs,
        n: u32,
        (pd, backing, access): (PdId, Backing, Access),
    ) -> Result<Answer, Error> {
        let (h, who) = (programs.host(n), programs.who(n));
        let station = &mut programs.stations[h];
        let id = MemoryId(station.memories);
        let iova = address(id);
        let bytes_of = station.bytes_of(backing);
        station.memories += 1;
        let life = programs.life(who).ok_or(Error::Left)?;
        let process = &mut life.process;
        let Host { nic, chip, .. } = &mut self.hosts.list[h];
        Process::own(&process.pds, pd, "protection domain")?;
        if let Backing::SendQueue(qp) = backing {
            let qp = Process::own(&process.qps, qp, "queue pair")?;
            let (mr, len) = crate::host::memory::register_queue(nic, pd, qp, iova, access)?;
            let info = MemoryInfo { id, addr: iova, len, lkey: mr.lkey, rkey: mr.rkey };
            process.memories.insert(id, Piece { info, pd, mr: mr.id, bytes: None });
            return Ok(Answer::Memory(info));
        }
        let (iova, (buffer, part)) = match backing {
            Backing::Same(memory) => {
                let same = process.memories.get(&memory).ok_or(Error::NoSuchObject("memory"))?;
                let bytes = same.bytes.clone().ok_or(Error::Unsupported("a send queue's memory for that"))?;
                (same.info.addr, bytes)
            }
            Backing::Device { len } => {
                let free = MAX_DM_SIZE - chip.used();
                if len > free {
                    return Err(Error::DeviceMemory { len, free });
                }
                let buffer = Rc::new(bytes(len)?);
                chip.add(&buffer);
                (0, (buffer, 0..len))
            }
            _ => (iova, bytes_of?),
        };
        let len = part.end - part.start;
        let mr = buffer.register_part(nic.memory(), pd, access, part.clone(), iova)?;
        let info = MemoryInfo { id, addr: iova, len, lkey: mr.lkey, rkey: mr.rkey };
        process.memories.insert(id, Piece { info, pd, mr: mr.id, bytes: Some((buffer, part)) });
        Ok(Answer::Memory(info))
    }
}

impl Station {
    /// The bytes of a region that is to be, and which part of them it is.
    pub(super) fn bytes_of(&self, backing: Backing) -> Result<(Rc<Buffer>, Range<u64>), Error> {
        match backing {
            Backing::Zeros { len } => Ok((Rc::new(bytes(len)?), 0..len)),
            Backing::File { file, at, len } => {
                let file = self.files.get(&file.0).cloned().ok_or(Error::NoSuchObject("file"))?;
                let of = file.len() as u64;
                if at > of || len > of - at || !at.is_multiple_of(4096) {
                    return Err(Error::Range { at, len, of });
                }
                Ok((file, at..at + len))
            }
            Backing::Same(_) | Backing::SendQueue(_) => {
                Err(Error::Unsupported("memory that is registered already for that"))
            }
            Backing::Device { .. } => Err(Error::Unsupported("the NIC's own memory for that")),
        }
    }
}

fn bytes(len: u64) -> Result<Buffer, Error> {
    if len == 0 || len > MEMORY_MAX {
        return Err(Error::Range { at: 0, len, of: MEMORY_MAX });
    }
    Ok(Buffer::new(len as usize))
}

/// Memory with a whole word there.
fn aligned(process: &Process, memory: MemoryId, at: u64) -> Result<&Piece, Error> {
    let piece = process.memory(memory, at, 8)?;
    if at.is_multiple_of(8) { Ok(piece) } else { Err(Error::Range { at, len: 8, of: piece.info.len }) }
}

/// A request as the NIC takes it.
fn with_wr<R>(request: &SendRequest, f: impl FnOnce(&SendWr<'_>) -> R) -> R {
    let SendRequest { wr_id, op, flags, data, ud, xrc_srqn } = request;
    let data = match data {
        Data::Piece(piece) => SendData::Sges(core::slice::from_ref(piece)),
        Data::Pieces(pieces) => SendData::Sges(pieces),
        Data::Inline(bytes) => SendData::Inline(bytes),
    };
    f(&SendWr { wr_id: *wr_id, op: *op, flags: *flags, data, ud: *ud, xrc_srqn: *xrc_srqn })
}
