//! One application at the daemon: its slots, its memory, its regions. Nothing that it writes is believed:
//! commands are copied out once and checked by the NIC, slots must be its own, and what it says on the socket
//! is parsed. What it breaks is its own; what can only be malice or a bug ends it.

use super::protocol::{Layout, PACKET_MAX, Reader, SLOTS_MAX, VERSION, Writer, place_of, refusal, request};
use super::share::{Room, Used};
use super::{NicdQuota, Refused};
use crate::counters::NicdCounters;
use crate::engine::Engine;
use crate::mapping;
use adverb_nic::one_rma::{
    COMMAND_LEN, DerivedKey, ProcessInit, RegionId, RegionInit, RegionKey, Rights, SlotId,
};
use adverb_nic::{MrInfo, OneRma, PdId};
use adverb_os::mapping::Mapping;
use adverb_os::shm::sealed_memory;
use adverb_os::sys::wait_readable;
use adverb_os::unix::{Channel, Peer};
use adverb_os::wake::BellSocket;
use adverb_wire::one_rma::Op;
use adverb_wire::{Gid, Instant, Key};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration as StdDuration;
use zeroize::Zeroize;

/// Requests that one application is answered before the others have their turn.
const ANSWERS_PER_LOOK: usize = 16;

/// Why an application was let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    /// Its process ended, or closed the connection.
    Gone,
    /// It broke the protocol.
    Misbehaved,
    /// It did not say HELLO in time.
    Silent,
}

fn refuse(error: impl ToString) -> Refused {
    error.to_string()
}

struct Registered {
    // The registration refers to the mapping until `Tenant::leave` or `free` has removed it.
    mapping: Mapping,
    mr: MrInfo,
    local: RegionId,
}

/// What an application has once it has been let in.
struct Desk {
    board: Mapping,
    board_mr: MrInfo,
    layout: Layout,
    ring: RegionId,
    slots: Vec<SlotId>,
    /// Posted slots taken.
    taken: u64,
    /// Refusals and completions that the application has been told of.
    refused: u64,
    told: u64,
    bell: BellSocket,
    /// The application has closed its end, which would wake the daemon for ever.
    bell_gone: bool,
    pd: PdId,
    memories: Vec<Option<Registered>>,
    regions: Vec<RegionId>,
    used: Used,
}

/// An application at the daemon: its connection, and what it has there.
pub(super) struct Tenant {
    channel: Channel,
    /// Readable when its process has ended.
    life: Option<OwnedFd>,
    pub peer: Peer,
    quota: NicdQuota,
    /// When it must have been let in.
    patience: Instant,
    desk: Option<Desk>,
}

impl Tenant {
    pub fn new(channel: Channel, peer: Peer, quota: NicdQuota, patience: Instant) -> Tenant {
        let life = channel.peer_life();
        Tenant { channel, life, peer, quota, patience, desk: None }
    }

    /// What it has.
    pub fn used(&self) -> Used {
        self.desk.as_ref().map(|desk| desk.used).unwrap_or_default()
    }

    /// When it is let go unless it has said HELLO.
    pub fn patience_ends(&self) -> Option<Instant> {
        self.desk.is_none().then_some(self.patience)
    }

    /// Descriptors that become readable when it wants something.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let bell = self.desk.as_ref().map(|desk| desk.bell.fd());
        let life = self.life.as_ref().map(AsRawFd::as_raw_fd);
        bell.into_iter().chain(life).chain([self.channel.fd()])
    }

    /// Answers what it asked on the socket, some of it. `room` is asked for what its user's share leaves it.
    pub fn answer(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        counted: &NicdCounters,
        room: &dyn Fn() -> Room,
    ) -> Result<(), Farewell> {
        if self.life.as_ref().is_some_and(|life| wait_readable(life.as_raw_fd(), StdDuration::ZERO)) {
            return Err(Farewell::Gone);
        }
        if self.desk.as_ref().is_some_and(|desk| desk.bell_gone) {
            return Err(Farewell::Gone);
        }
        let mut packet = [0; 256];
        for _ in 0..ANSWERS_PER_LOOK {
            let (len, fds) = match self.channel.receive(&mut packet) {
                Ok(Some(received)) => received,
                Ok(None) => return Err(Farewell::Gone),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let late = self.patience_ends().is_some_and(|end| end <= now);
                    return if late { Err(Farewell::Silent) } else { Ok(()) };
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(Farewell::Misbehaved),
                Err(_) => return Err(Farewell::Gone),
            };
            let done = self.execute(engine, counted, room, &mut Reader(&packet[..len]), fds);
            packet.zeroize();
            let (answer, fds) = match done.ok_or(Farewell::Misbehaved)? {
                Ok(answer) => answer,
                Err(reason) => (Writer::new(1).bytes(reason.as_bytes()), Vec::new()),
            };
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            debug_assert!(answer.finish().len() <= PACKET_MAX);
            // One who does not read its answers has asked for more than it may.
            self.channel.send(answer.finish(), &fds).map_err(|_| Farewell::Gone)?;
        }
        Ok(())
    }

    /// `None` for what is no request.
    fn execute(
        &mut self,
        engine: &mut Engine,
        counted: &NicdCounters,
        room: &dyn Fn() -> Room,
        words: &mut Reader<'_>,
        fds: Vec<OwnedFd>,
    ) -> Option<Result<(Writer, Vec<OwnedFd>), Refused>> {
        let kind = words.u8()?;
        if kind == request::HELLO {
            let (version, slots) = (words.u32()?, words.u32()?);
            words.end()?;
            return Some(self.hello(&mut engine.nic, &room(), version, slots));
        }
        if kind == request::COUNTERS {
            words.end()?;
            let nic = engine.nic.counters().iter().map(|(_, count)| count);
            let driver = engine.counters.iter().map(|(_, count)| count);
            let all = nic.chain(driver).chain(counted.iter().map(|(_, count)| count));
            return Some(Ok((all.fold(Writer::new(0), Writer::u64), Vec::new())));
        }
        let owner = self.peer.pid;
        let quota = self.quota;
        let desk = self.desk.as_mut()?;
        let nic = &mut engine.nic;
        let done = match kind {
            request::ALLOCATE => {
                let len = words.u64()?;
                words.end()?;
                let [fd] = <[OwnedFd; 1]>::try_from(fds).ok()?;
                desk.allocate(nic, owner, &quota, &room(), &fd, len)
            }
            request::FREE => {
                let number = words.u32()?;
                words.end()?;
                desk.free(nic, number)
            }
            request::REGISTER => {
                let (number, offset, len) = (words.u32()?, words.u64()?, words.u64()?);
                let rights = Rights::from_bits(words.u8()?)?;
                let key = RegionKey::new(words.array()?);
                words.end()?;
                desk.may_have_region(&quota, &room())
                    .and_then(|()| desk.register(nic, owner, number, (offset, len), rights, key))
            }
            request::DEREGISTER => {
                let region = RegionId::from_wire(words.u32()?);
                words.end()?;
                desk.deregister(nic, region)
            }
            request::DERIVE => {
                let region = RegionId::from_wire(words.u32()?);
                let (initiator, pid) = (Gid(words.array()?), words.u32()?);
                let number = words.u8()?;
                words.end()?;
                let op = [Op::Read, Op::Write, Op::Rekey].into_iter().find(|op| *op as u8 == number)?;
                desk.derive(nic, region, initiator, pid, op)
            }
            request::ROTATE => {
                let (region, key) = (RegionId::from_wire(words.u32()?), RegionKey::new(words.array()?));
                words.end()?;
                desk.rotate(nic, region, &key)
            }
            _ => return None,
        };
        Some(done.map(|writer| (writer, Vec::new())))
    }

    /// Lets it in: slots, and the memory that they lie in.
    fn hello(
        &mut self,
        nic: &mut OneRma,
        room: &Room,
        version: u32,
        wanted: u32,
    ) -> Result<(Writer, Vec<OwnedFd>), Refused> {
        if version != VERSION {
            return Err(format!("the daemon speaks version {VERSION} of its protocol, not {version}"));
        }
        if self.desk.is_some() {
            return Err("this connection has been let in before".to_owned());
        }
        let count = room.slots(wanted.min(self.quota.slots).min(SLOTS_MAX as u32))?;
        let pid = self.peer.pid;
        let init = ProcessInit { pid, quota: count, priority: self.quota.priority };
        nic.attach(init).map_err(|error| match error {
            adverb_nic::Error::Busy => format!("process {pid} is attached already; a process attaches once"),
            adverb_nic::Error::TableFull => {
                "all command slots of this priority are promised to others".to_owned()
            }
            error => refuse(error),
        })?;
        match Desk::set_up(nic, pid, count) {
            Ok((desk, answer, fds)) => {
                self.desk = Some(desk);
                Ok((answer, fds))
            }
            Err(reason) => {
                // Attached just now.
                let _ = nic.detach(pid);
                Err(reason)
            }
        }
    }

    /// Takes its commands, and counts those that the NIC refuses. True if there were any.
    pub fn take_commands(
        &mut self,
        nic: &mut OneRma,
        now: Instant,
        refused: &mut u64,
    ) -> Result<bool, Farewell> {
        let Some(desk) = &mut self.desk else { return Ok(false) };
        let posted = desk.board.u64_at(Layout::POSTED).load(Ordering::Acquire);
        if posted == desk.taken {
            return Ok(false);
        }
        // More than it has slots for, or fewer than before.
        if posted.wrapping_sub(desk.taken) > desk.layout.entries() as u64 {
            return Err(Farewell::Misbehaved);
        }
        while desk.taken != posted {
            let word = desk.board.u64_at(desk.layout.posted(desk.taken)).load(Ordering::Relaxed);
            desk.taken += 1;
            let place = place_of(&desk.slots, word).ok_or(Farewell::Misbehaved)?;
            let slot = desk.slots[place];
            let mut command = [0; COMMAND_LEN];
            mapping::read(&desk.board, desk.layout.command(place), &mut command);
            let posted = nic.post(now, slot, &command);
            command.zeroize();
            if let Err(error) = posted {
                let word = (refusal(error) as u64) << 32 | slot.index() as u64;
                desk.board.u64_at(desk.layout.refused(desk.refused)).store(word, Ordering::Relaxed);
                desk.refused += 1;
                *refused += 1;
                desk.board.u64_at(Layout::REFUSED).store(desk.refused, Ordering::Release);
            }
        }
        Ok(true)
    }

    /// Rings its bell if it sleeps and something has ended.
    pub fn tell(&mut self, nic: &OneRma) {
        let Some(desk) = &mut self.desk else { return };
        let news = nic.completions(desk.ring).unwrap_or(0) + desk.refused;
        if news == desk.told {
            return;
        }
        desk.told = news;
        // It says that it sleeps before it looks for the last time; this looks after the completion was
        // written.
        fence(Ordering::SeqCst);
        let sleeps = desk.board.u64_at(Layout::APPLICATION_SLEEPS);
        if sleeps.load(Ordering::Relaxed) != 0 {
            sleeps.store(0, Ordering::Relaxed);
            desk.bell.ring();
        }
    }

    /// Asks to be rung awake from now on, or no longer. False if it has posted something meanwhile.
    pub fn daemon_sleeps(&mut self, sleeps: bool) -> bool {
        let Some(desk) = &mut self.desk else { return true };
        desk.board.u64_at(Layout::DAEMON_SLEEPS).store(sleeps as u64, Ordering::Relaxed);
        if !sleeps {
            desk.bell_gone |= !desk.bell.quieten();
            return true;
        }
        fence(Ordering::SeqCst);
        desk.board.u64_at(Layout::POSTED).load(Ordering::Acquire) == desk.taken
    }

    /// Takes everything of it out of the NIC.
    pub fn leave(mut self, nic: &mut OneRma) {
        let Some(mut desk) = self.desk.take() else { return };
        // It is attached, and nothing else refers to what it registered once its regions are gone.
        let _ = nic.detach(self.peer.pid);
        let _ = nic.memory().dereg_mr(desk.board_mr.id);
        for memory in desk.memories.iter_mut().filter_map(Option::take) {
            let _ = nic.memory().dereg_mr(memory.mr.id);
        }
        let _ = nic.memory().dealloc_pd(desk.pd);
    }
}

/// A region over registered memory.
fn region(
    owner: u32,
    pd: PdId,
    lkey: Key,
    (addr, len): (u64, u64),
    rights: Rights,
    key: RegionKey,
) -> RegionInit {
    RegionInit { owner, pd, lkey, addr, len, rights, key }
}

/// For regions that no peer has a right to.
fn no_key() -> RegionKey {
    RegionKey::new([0; 16])
}

impl Desk {
    fn set_up(nic: &mut OneRma, pid: u32, count: u32) -> Result<(Desk, Writer, Vec<OwnedFd>), Refused> {
        let layout = Layout::new(count as usize);
        let file = sealed_memory(layout.len()).map_err(refuse)?;
        let board = Mapping::of_sealed(file.as_fd(), layout.len()).map_err(refuse)?;
        let (bell, far_bell) = BellSocket::pair().map_err(refuse)?;
        let fds = vec![file, far_bell];
        let pd = nic.memory().alloc_pd().map_err(refuse)?;
        let board_mr = mapping::register(&board, nic, pd).map_err(|error| {
            let _ = nic.memory().dealloc_pd(pd);
            refuse(error)
        })?;
        let at = (board.addr() + layout.completion(0) as u64, (layout.len() - layout.completion(0)) as u64);
        let entered = nic.register(&region(pid, pd, board_mr.lkey, at, Rights::empty(), no_key()));
        let slots: Result<Vec<SlotId>, _> = (0..count).map(|_| nic.allot_slot(pid)).collect();
        let (ring, slots) = match (entered, slots) {
            (Ok(ring), Ok(slots)) => (ring, slots),
            (entered, slots) => {
                // The caller detaches, which takes back region and slots.
                let _ = nic.memory().dereg_mr(board_mr.id);
                let _ = nic.memory().dealloc_pd(pd);
                return Err(refuse(entered.err().or(slots.err()).unwrap_or(adverb_nic::Error::TableFull)));
            }
        };
        let answer = Writer::new(0).u32(pid).bytes(&nic.config().address.0).u32(count).u32(ring.wire());
        let answer = slots.iter().fold(answer, |answer, slot| answer.u32(slot.index()));
        let desk = Desk {
            board,
            board_mr,
            layout,
            ring,
            slots,
            taken: 0,
            refused: 0,
            told: 0,
            bell,
            bell_gone: false,
            pd,
            memories: Vec::new(),
            regions: Vec::new(),
            used: Used { slots: count, ..Used::default() },
        };
        Ok((desk, answer, fds))
    }

    /// Whether its own quota and its user's share leave it one more memory or region.
    fn may_have_region(&self, quota: &NicdQuota, room: &Room) -> Result<(), Refused> {
        if self.used.regions >= quota.regions {
            return Err(format!("the quota of {} regions and memories is used up", quota.regions));
        }
        room.region(self.used)
    }

    fn allocate(
        &mut self,
        nic: &mut OneRma,
        owner: u32,
        quota: &NicdQuota,
        room: &Room,
        file: &OwnedFd,
        len: u64,
    ) -> Result<Writer, Refused> {
        let free = self.memories.iter().position(Option::is_none).unwrap_or(self.memories.len());
        self.may_have_region(quota, room)?;
        // A file may have more bytes than the host: what counts is what the daemon would map.
        room.bytes(self.used, len)?;
        let len = usize::try_from(len).map_err(refuse)?;
        let mapping = Mapping::of_sealed(file.as_fd(), len).map_err(refuse)?;
        let mr = mapping::register(&mapping, nic, self.pd).map_err(refuse)?;
        let at = (mapping.addr(), len as u64);
        let local = match nic.register(&region(owner, self.pd, mr.lkey, at, Rights::empty(), no_key())) {
            Ok(local) => local,
            Err(error) => {
                let _ = nic.memory().dereg_mr(mr.id);
                return Err(refuse(error));
            }
        };
        let registered = Some(Registered { mapping, mr, local });
        match self.memories.get_mut(free) {
            Some(place) => *place = registered,
            None => self.memories.push(registered),
        }
        self.used.regions += 1;
        self.used.bytes += len as u64;
        Ok(Writer::new(0).u32(free as u32).u32(local.wire()))
    }

    fn memory(&self, number: u32) -> Result<&Registered, Refused> {
        let memory = self.memories.get(number as usize).and_then(Option::as_ref);
        memory.ok_or_else(|| "no such memory".to_owned())
    }

    fn free(&mut self, nic: &mut OneRma, number: u32) -> Result<Writer, Refused> {
        self.memory(number)?;
        let Some(memory) = self.memories[number as usize].take() else {
            return Err("no such memory".to_owned());
        };
        // Regions over it find no registered memory from now on: what peers do to them is refused.
        let _ = nic.deregister(memory.local);
        let _ = nic.memory().dereg_mr(memory.mr.id);
        self.used.regions -= 1;
        self.used.bytes -= memory.mapping.len() as u64;
        Ok(Writer::new(0))
    }

    fn register(
        &mut self,
        nic: &mut OneRma,
        owner: u32,
        number: u32,
        (offset, len): (u64, u64),
        rights: Rights,
        key: RegionKey,
    ) -> Result<Writer, Refused> {
        let memory = self.memory(number)?;
        let size = memory.mapping.len() as u64;
        if len == 0 || offset > size || len > size - offset {
            return Err(format!("{len} bytes from {offset} on, of a memory of {size}"));
        }
        let at = (memory.mapping.addr() + offset, len);
        let init = region(owner, self.pd, memory.mr.lkey, at, rights, key);
        let id = nic.register(&init).map_err(refuse)?;
        self.regions.push(id);
        self.used.regions += 1;
        Ok(Writer::new(0).u32(id.wire()))
    }

    fn own(&self, region: RegionId) -> Result<usize, Refused> {
        let place = self.regions.iter().position(|own| *own == region);
        place.ok_or_else(|| "no such region of this process".to_owned())
    }

    fn deregister(&mut self, nic: &mut OneRma, region: RegionId) -> Result<Writer, Refused> {
        let place = self.own(region)?;
        self.regions.swap_remove(place);
        self.used.regions -= 1;
        nic.deregister(region).map_err(refuse)?;
        Ok(Writer::new(0))
    }

    fn derive(
        &self,
        nic: &OneRma,
        region: RegionId,
        initiator: Gid,
        pid: u32,
        op: Op,
    ) -> Result<Writer, Refused> {
        self.own(region)?;
        let key: DerivedKey = nic.derive(region, initiator, pid, op).map_err(refuse)?;
        Ok(Writer::new(0).bytes(key.expose()))
    }

    fn rotate(&self, nic: &mut OneRma, region: RegionId, key: &RegionKey) -> Result<Writer, Refused> {
        self.own(region)?;
        nic.rotate(region, key).map_err(refuse)?;
        Ok(Writer::new(0))
    }
}
