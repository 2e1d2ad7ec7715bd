//! 1RMA by programs: memory, grants, transfers, where hosts have 1RMA NICs beside their queue pairs.
//!
//! All programs of a host are one process to its 1RMA NIC, and share its slots and congestion control, as
//! flows do. A program's memory is registered with both NICs, since its own loads and stores go by the other
//! one's table. Its regions are gone when it is; what peers do to them then fails. The bytes stay until the
//! run ends. A host that crashes keeps its 1RMA NIC, without its programs' regions.

use super::exec::Outcome;
use super::process::{LOCAL, Piece, Process, address};
use super::wait::Waiting;
use super::{Current, Due, Programs};
use crate::host::one_rma::PID;
use crate::sim::Sim;
use adverb_nic::one_rma::Rights;
use adverb_nic::one_rma::executor::TransferInit;
use adverb_rdma::seam::{Answer, Backing, Call, MemoryId, MemoryInfo, Transfer};
use adverb_rdma::{Error, Gid};
use adverb_wire::Instant;
use core::ops::Range;

const ELSEWHERE: Error = Error::Unsupported("1RMA, in a fabric without 1RMA NICs");

impl Sim {
    /// Memory for transfers.
    pub(super) fn allocate(
        &mut self,
        programs: &mut Programs,
        n: u32,
        backing: Backing,
    ) -> Result<Answer, Error> {
        let (h, who) = (programs.host(n), programs.who(n));
        let host = self.hosts.one_rma.hosts.get_mut(h).ok_or(ELSEWHERE)?;
        let station = &mut programs.stations[h];
        let (buffer, part) = station.bytes_of(backing)?;
        let len = part.end - part.start;
        let lent = host.lend(buffer.clone(), part.clone())?;
        let id = MemoryId(station.memories);
        station.memories += 1;
        let process = &mut programs.life(who).ok_or(Error::Left)?.process;
        process.one_rma.insert(id, lent);
        let nic = &mut self.hosts.list[h].nic;
        let pd = nic.memory().alloc_pd()?;
        process.pds.push(pd);
        let mr = buffer.register_part(nic.memory(), pd, LOCAL, part.clone(), address(id))?;
        let info = MemoryInfo { id, addr: address(id), len, lkey: mr.lkey, rkey: mr.rkey };
        process.memories.insert(id, Piece { info, pd, mr: mr.id, bytes: Some((buffer, part)) });
        Ok(Answer::Memory(info))
    }

    /// Keys for a peer's process.
    pub(super) fn grant(
        &mut self,
        programs: &mut Programs,
        n: u32,
        (memory, part): (MemoryId, Range<u64>),
        rights: Rights,
        (peer, pid): (Gid, u32),
    ) -> Result<Answer, Error> {
        let (h, who) = (programs.host(n), programs.who(n));
        let host = self.hosts.one_rma.hosts.get_mut(h).ok_or(ELSEWHERE)?;
        let process = &mut programs.life(who).ok_or(Error::Left)?.process;
        process.memory(memory, part.start, part.end.saturating_sub(part.start))?;
        let lent = process.one_rma.get(&memory).ok_or(Error::NoSuchObject("memory of 1RMA"))?;
        let (region, grant) = host.grant_part(lent, part, rights, (peer, pid))?;
        process.granted.push(region);
        Ok(Answer::Granted(grant))
    }

    /// Hands a transfer to the host's executor.
    pub(super) fn begin_transfer(&mut self, programs: &mut Programs, n: u32, current: Current) -> Outcome {
        let Call::Transfer(transfer) = &current.call else { unreachable!("asked for a transfer") };
        match self.submit_transfer(programs, n, transfer) {
            Err(error) => Outcome::Answer(Err(error)),
            Ok(number) => {
                programs.transfers.insert(number, (programs.who(n), current.ticket));
                self.after_rma(programs.host(n) as u32);
                Outcome::Wait(Waiting { ticket: current.ticket, waits: Vec::new(), seen_at: None })
            }
        }
    }

    fn submit_transfer(&mut self, programs: &mut Programs, n: u32, of: &Transfer) -> Result<u64, Error> {
        let (h, who) = (programs.host(n), programs.who(n));
        let host = self.hosts.one_rma.hosts.get_mut(h).ok_or(ELSEWHERE)?;
        let number = programs.last_transfer + 1;
        let process = &programs.life(who).ok_or(Error::Left)?.process;
        process.memory(of.memory, of.at, of.len)?;
        let lent = process.one_rma.get(&of.memory).ok_or(Error::NoSuchObject("memory of 1RMA"))?;
        let key =
            of.grant.key(of.op).ok_or(Error::System("the grant has no key for this operation".into()))?;
        if of.offset > of.grant.len() || of.len > of.grant.len() - of.offset {
            return Err(Error::Range { at: of.offset, len: of.len, of: of.grant.len() });
        }
        let now = Instant::from_ps(self.now);
        let init = TransferInit {
            op: of.op,
            class: of.class,
            len: of.len,
            target: Gid::from(of.grant.target()),
            remote_region: of.grant.region(),
            remote_offset: of.offset,
            local_region: lent.local,
            local_offset: of.at,
            key: key.clone(),
            deadline: of.within.map(|within| now + within),
            retry: of.retry,
            tag: crate::host::one_rma::PROGRAMS | number,
        };
        host.executor.submit(now, init)?;
        programs.last_transfer = number;
        Ok(number)
    }

    /// Transfers have ended since the last time.
    pub(super) fn hear_reports(&mut self, programs: &mut Programs) {
        for (number, report) in core::mem::take(&mut self.programs.reports) {
            if let Some((who, ticket)) = programs.transfers.remove(&number) {
                programs.at(self.now, Due::Told(who, ticket, Ok(Answer::Report(report))));
            }
        }
    }

    /// The program is no more, and neither are its regions.
    pub(super) fn end_one_rma(&mut self, host: usize, process: &Process) {
        let regions = process.one_rma.values().map(|lent| lent.local).chain(process.granted.iter().copied());
        let regions: Vec<_> = regions.collect();
        if regions.is_empty() {
            return;
        }
        for region in regions {
            let gone = self.hosts.one_rma.hosts[host].nic.deregister(region);
            assert!(gone.is_ok(), "a region of a program is there: {gone:?}");
        }
        self.after_rma(host as u32);
    }

    /// The process that a host's programs are to 1RMA's owners, if the host has such a NIC.
    pub(super) fn one_rma_pid(&self, host: usize) -> Option<u32> {
        self.hosts.one_rma.hosts.get(host).map(|_| PID)
    }
}
