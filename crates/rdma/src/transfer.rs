//! 1RMA: transfers without connections.

use crate::error::Error;
use crate::grant::Grant;
use crate::memory::{File, Region};
use crate::seam::{Answer, Backing, Call, MemoryInfo, Transfer};
use crate::{Rdma, wrong};
use adverb_nic::one_rma::Rights;
use adverb_nic::one_rma::executor::{Report, Retry};
use adverb_wire::one_rma::Op;
use adverb_wire::{Duration, Gid};
use core::ops::Range;

/// Memory that 1RMA's transfers use, and that peers may be granted.
#[derive(Clone)]
pub struct Memory {
    region: Region,
    rdma: Rdma,
}

impl core::ops::Deref for Memory {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Rdma {
    /// Memory of zeros for 1RMA.
    pub async fn allocate(&self, len: u64) -> Result<Memory, Error> {
        self.allocate_of(Backing::Zeros { len }).await
    }

    /// A part of a file of memory for 1RMA. A [region](crate::Pd::region_of_file) of the same part is the
    /// same bytes: peers reach them through queue pairs and by transfers.
    pub async fn allocate_of_file(&self, file: &File, at: u64, len: u64) -> Result<Memory, Error> {
        self.allocate_of(Backing::File { file: file.id(), at, len }).await
    }

    async fn allocate_of(&self, backing: Backing) -> Result<Memory, Error> {
        match self.world.call(Call::Allocate { backing }).await? {
            Answer::Memory(info) => Ok(self.adopt(info)),
            other => wrong(&other),
        }
    }

    /// Memory that the process has already: for drivers.
    pub fn adopt(&self, info: MemoryInfo) -> Memory {
        Memory { region: Region::without_domain(self, info), rdma: self.clone() }
    }
}

impl Memory {
    /// Lets one process of a peer do this to a part of the memory.
    pub async fn grant(&self, part: Range<u64>, rights: Rights, peer: Gid, pid: u32) -> Result<Grant, Error> {
        let len = part.end.saturating_sub(part.start);
        let call = Call::Grant { memory: self.id(), at: part.start, len, rights, peer, pid };
        match self.rdma.world.call(call).await? {
            Answer::Granted(grant) => Ok(grant),
            other => wrong(&other),
        }
    }

    /// Reads from `offset` of a peer's memory into a part of this one. The report says how it ended.
    pub async fn get(
        &self,
        part: Range<u64>,
        grant: &Grant,
        offset: u64,
        within: Option<Duration>,
    ) -> Result<Report, Error> {
        self.transfer(Op::Read, part, grant, offset, within).await
    }

    /// Writes a part of this memory to `offset` of a peer's. The report says how it ended.
    pub async fn put(
        &self,
        part: Range<u64>,
        grant: &Grant,
        offset: u64,
        within: Option<Duration>,
    ) -> Result<Report, Error> {
        self.transfer(Op::Write, part, grant, offset, within).await
    }

    async fn transfer(
        &self,
        op: Op,
        part: Range<u64>,
        grant: &Grant,
        offset: u64,
        within: Option<Duration>,
    ) -> Result<Report, Error> {
        let transfer = Transfer {
            op,
            grant: grant.clone(),
            offset,
            memory: self.id(),
            at: part.start,
            len: part.end.saturating_sub(part.start),
            class: 0,
            within,
            retry: Retry::NEVER,
        };
        match self.rdma.world.call(Call::Transfer(Box::new(transfer))).await? {
            Answer::Report(report) => Ok(report),
            other => wrong(&other),
        }
    }
}
