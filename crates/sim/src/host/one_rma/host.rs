//! A host with a 1RMA NIC: one process with its slots, its regions, and its executor.

use super::{Pcie, RmaConfig};
use crate::host::address;
use crate::host::memory::Buffer;
use crate::sim::Config;
use crate::watch::trace::{mix, seed_of};
use adverb_nic::one_rma::executor::Posting;
use adverb_nic::one_rma::{
    CommandExecutor, CommandPortal, DerivedKey, OneRmaConfig, PRIORITIES, ProcessInit, RegionId, RegionInit,
    RegionKey, Rights, derive,
};
use adverb_nic::{Access, Error, OneRma};
use adverb_wire::one_rma::{KEY_LEN, Op};
use adverb_wire::{Gid, Instant};
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// The process of every host.
pub(crate) const PID: u32 = 1;
/// Epochs of the keys of programs' memory begin there.
const LENT: u64 = 1 << 32;
/// Message counters of a host: more than any run sends.
const COUNTERS: core::ops::Range<u64> = 1 << 32..1 << 48;

/// One way between the NIC and memory, and what is under way on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// Busy until then, in ps.
    pub free_at: u64,
    /// Messages in order, each with the time when its payload is over, in ps.
    pub row: VecDeque<(u64, u32)>,
}

/// A command in a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Posted {
    pub target: u32,
    pub len: u16,
}

/// A host with a 1RMA NIC: its process, its regions, its executor.
pub struct RmaHost {
    /// Its NIC.
    pub nic: OneRma,
    /// Its software.
    pub executor: CommandExecutor,
    pub(super) portal: CommandPortal,
    /// What peers may use.
    pub(super) region: RegionId,
    /// Its own side of operations.
    pub(super) local: RegionId,
    /// Where a new region key lies for a Rekey.
    pub(super) secret: RegionId,
    pub(super) init: RegionInit,
    /// What PCIe costs it.
    pub(super) pcie: Pcie,
    pub(super) seed: u64,
    /// How often the region's key has changed, as its owner plans it.
    pub(super) epoch: u64,
    /// By peer and operation: since when it uses which key, in ps.
    keys: BTreeMap<(u32, u8), (u64, Grant)>,
    /// The software's processor is busy with commands until then, in ps, and with each for so long.
    software_free_at: u64,
    command_ps: u64,
    /// By the NIC's number of the slot.
    pub(super) posted: Vec<Posted>,
    /// Messages whose payload is being read from memory.
    pub(super) tx: Lane,
    /// Messages without payload, which wait for the port only.
    pub(super) direct: VecDeque<u32>,
    /// Messages whose payload is being written to memory.
    pub(super) rx: Lane,
    pub(super) safe: Buffer,
    memory: Option<Buffer>,
    /// Memory of programs. Dropped after the NIC, which names its address.
    lent: Vec<Rc<Buffer>>,
}

/// Memory of a program, as the NIC knows it.
pub(crate) struct Lent {
    /// The region that makes it the own side of transfers.
    pub local: RegionId,
    init: RegionInit,
}

/// A right to a region.
#[derive(Clone)]
pub(super) struct Grant {
    pub region: RegionId,
    pub key: DerivedKey,
}

/// K_r of a host at an epoch.
pub(super) fn region_key(seed: u64, epoch: u64) -> [u8; KEY_LEN] {
    let (a, b) = (mix(seed ^ epoch << 1), mix(seed ^ (epoch << 1 | 1)));
    let mut key = [0; KEY_LEN];
    key[..8].copy_from_slice(&a.to_le_bytes());
    key[8..].copy_from_slice(&b.to_le_bytes());
    key
}

impl RmaHost {
    pub(super) fn new(
        number: u32,
        rate: u64,
        config: &Config,
        rma: &RmaConfig,
        shared: &Buffer,
    ) -> Result<RmaHost, Error> {
        let seed = seed_of(config.seed, "one-rma", u64::from(number));
        let slots = rma.slots;
        let mut nic = OneRma::new(
            OneRmaConfig {
                address: address(number),
                slots,
                slots_by_priority: [slots; PRIORITIES],
                bandwidth: rate,
                ..rma.nic.clone()
            },
            COUNTERS,
            seed,
        )?;
        let memory = (rma.apart > 0).then(|| Buffer::new(shared.len()));
        let buffer = memory.as_ref().unwrap_or(shared);
        let pd = nic.memory().alloc_pd()?;
        let mr = buffer.register_for(nic.memory(), pd, Access::LOCAL_WRITE)?;
        nic.attach(ProcessInit { pid: PID, quota: slots, priority: 0 })?;
        let init = RegionInit {
            owner: PID,
            pd,
            lkey: mr.lkey,
            addr: buffer.addr(),
            len: buffer.len() as u64,
            rights: Rights::all(),
            key: RegionKey::new(region_key(seed, 0)),
        };
        let region = nic.register(&init)?;
        let local = nic.register(&RegionInit { rights: Rights::empty(), ..init.clone() })?;
        let safe = Buffer::new(KEY_LEN);
        let mr = safe.register_for(nic.memory(), pd, Access::LOCAL_WRITE)?;
        let own = RegionInit { lkey: mr.lkey, addr: safe.addr(), len: KEY_LEN as u64, ..init.clone() };
        let secret = nic.register(&RegionInit { rights: Rights::empty(), ..own })?;
        let portal = CommandPortal::open(&mut nic, PID, pd, slots)?;
        let mut executor = CommandExecutor::new(rma.executor, portal.completion_region())?;
        for slot in portal.slots() {
            executor.add_slot(*slot)?;
        }
        Ok(RmaHost {
            nic,
            executor,
            portal,
            region,
            local,
            secret,
            init,
            pcie: rma.pcie,
            seed,
            epoch: 0,
            keys: BTreeMap::new(),
            software_free_at: 0,
            command_ps: rma.command_ps,
            posted: vec![Posted::default(); slots as usize],
            tx: Lane::default(),
            direct: VecDeque::new(),
            rx: Lane::default(),
            safe,
            memory,
            lent: Vec::new(),
        })
    }

    /// The next command that software writes now: none while its processor is busy with those before.
    pub(super) fn next_command(&mut self, now: u64) -> Option<Posting> {
        if self.software_free_at > now {
            self.executor.on_timer(Instant::from_ps(now));
            return None;
        }
        let posting = self.executor.next_command(Instant::from_ps(now))?;
        self.software_free_at = now + self.command_ps;
        Some(posting)
    }

    /// When the software's processor is free for a command that waits for it.
    pub(super) fn busy_until(&self, now: u64) -> Option<u64> {
        (self.software_free_at > now && self.executor.has_ready()).then_some(self.software_free_at)
    }

    /// Takes in a part of a program's memory, which stays until the run ends.
    pub(crate) fn lend(&mut self, buffer: Rc<Buffer>, part: Range<u64>) -> Result<Lent, Error> {
        let mr = buffer.register_for(self.nic.memory(), self.init.pd, Access::LOCAL_WRITE)?;
        let init = RegionInit {
            lkey: mr.lkey,
            addr: buffer.addr() + part.start,
            len: part.end - part.start,
            rights: Rights::empty(),
            key: RegionKey::new(region_key(self.seed, LENT + self.lent.len() as u64)),
            ..self.init.clone()
        };
        let local = self.nic.register(&init)?;
        self.lent.push(buffer);
        Ok(Lent { local, init })
    }

    /// Makes a part of a program's memory a region that one process of a peer may use so.
    pub(crate) fn grant_part(
        &mut self,
        lent: &Lent,
        part: Range<u64>,
        rights: Rights,
        (peer, pid): (Gid, u32),
    ) -> Result<(RegionId, adverb_rdma::Grant), Error> {
        let len = part.end.saturating_sub(part.start);
        let init = RegionInit { addr: lent.init.addr + part.start, len, rights, ..lent.init.clone() };
        let region = self.nic.register(&init)?;
        let mut grant = adverb_rdma::Grant::new(self.nic.config().address, region, len);
        for (op, right) in adverb_rdma::GRANT_OPS {
            if rights.contains(right) {
                grant = grant.with_key(op, self.nic.derive(region, peer, pid, op)?);
            }
        }
        Ok((region, grant))
    }

    /// What the region's owner hands to a client: the region and K_d under the key that is planned, which
    /// need not be in place yet.
    pub(super) fn grant(&self, initiator: u32, op: Op) -> Grant {
        let key = RegionKey::new(region_key(self.seed, self.epoch));
        let address = self.nic.config().address;
        let key = derive(&key, address, self.region.wire(), crate::host::address(initiator), PID, op);
        Grant { region: self.region, key }
    }

    /// The key that this host uses for a peer's region, and since when.
    pub(super) fn key(&self, peer: u32, op: Op) -> Option<&(u64, Grant)> {
        self.keys.get(&(peer, op as u8))
    }

    /// Uses what it was handed from now on.
    pub(super) fn learn(&mut self, now: u64, peer: u32, op: Op, grant: Grant) {
        self.keys.insert((peer, op as u8), (now, grant));
    }

    /// The host's own memory, in fabrics whose hosts have some.
    pub fn memory(&self) -> Option<&Buffer> {
        self.memory.as_ref()
    }
}
