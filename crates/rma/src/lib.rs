//! 1RMA for programs: connection-free, encrypted, fail-fast reads and writes of a peer's memory (Singhvi et
//! al., SIGCOMM 2020), over UDP port 61113, or through shared memory between NICs of one host and user
//! ([`Settings::path`]).
//!
//! [`Rma`] is a NIC and this process's side of it. The NIC runs on a thread of the process, or in the
//! program's own [`block_on`](Rma::block_on). Its protocol is `adverb_nic::OneRma`, the same that the
//! simulator runs.
//!
//! ```no_run
//! use adverb_rma::{Grant, Retry, Rights, Rma, Settings};
//! use std::time::Duration;
//!
//! # fn authenticated() -> (std::net::IpAddr, u32) { unimplemented!() }
//! # fn from_the_owner() -> Grant { unimplemented!() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The owner: registers memory, and grants a peer's process the right to read it.
//! let rma = Rma::open(Settings::new("192.0.2.1".parse()?))?;
//! let memory = rma.allocate(1 << 20)?;
//! memory.write(0, b"hello");
//! let region = memory.register(0..1 << 20, Rights::READ)?;
//! let (peer, pid) = authenticated();
//! let grant = region.grant(peer, pid, Rights::READ)?; // to the peer, encrypted: grant.to_bytes()
//!
//! // The peer: reads any part of it, in one go.
//! let rma = Rma::open(Settings::new("192.0.2.2".parse()?))?;
//! let memory = rma.allocate(64 << 10)?;
//! let grant = from_the_owner();
//! let report = rma.block_on(async {
//!     let read = rma.read(&grant, 0, &memory, 0..64 << 10).within(Duration::from_millis(100));
//!     read.retry(Retry::times(2)).await
//! })?;
//! println!("{} bytes in {:?}", report.bytes, report.elapsed);
//! # Ok(())
//! # }
//! ```
//!
//! Transfers are futures for any executor, tokio's for instance; many at once are joined there. Each ends
//! with a [`Report`], or a [`TransferError`] that says how it ended: a peer that is gone is a TIMEOUT within
//! the NIC's bound, a wrong or rotated key a REMOTE_AUTHENTICATION_FAILURE after one round trip. What to do
//! then is the program's to decide; nothing is repeated by itself.
//!
//! ```text
//! lib settings error             what a program calls, chooses, and is told
//! memory grant transfer          memory, who may use it, and its use
//! shared core                    threads, and what they share
//! side attached                  this process's side of a NIC that is here, or in another process
//! nicd                           the NIC as a process of its own
//! program                        native programs: adverb_rdma's driver
//! engine udp counter_file        the NIC on its network; what survives restarts
//! near                           NICs of the same host, through shared memory
//! mapping                        memory as the NIC knows it: unsafe code
//! ```
//!
//! A process that forks must not use its NIC in the child.
#![deny(unsafe_code)]

mod attached;
mod core;
mod counter_file;
mod counters;
mod engine;
mod error;
mod mapping;
mod memory;
mod near;
pub mod nicd;
mod program;
mod settings;
mod shared;
mod side;
mod transfer;
mod udp;

pub use adverb_nic::one_rma::congestion::CongestionConfig;
pub use adverb_nic::one_rma::executor::{Direction, End, Report, Retry};
pub use adverb_nic::one_rma::{
    DerivedKey, ENCRYPTED, ExecutorConfig, OneRmaConfig, OneRmaCounters, Outcome, PRIORITIES, RegionId,
    RegionKey, Rights,
};
pub use adverb_os::choice::PathPolicy;
pub use adverb_os::faults::Faults;
pub use adverb_rdma::Grant;
pub use adverb_wire::one_rma::Op;
pub use counters::DriverCounters;
pub use error::{Error, OpenError, TransferError};
pub use memory::{Memory, Region};
pub use program::Programs;
pub use settings::Settings;
pub use transfer::Transfer;

use crate::core::Core;
use adverb_nic::one_rma::{CommandExecutor, CommandPortal, ProcessInit, SlotId};
use adverb_os::clock;
use adverb_os::signals::library_thread;
use adverb_os::sys::random_bytes;
use adverb_program::Waits;
use attached::Attached;
use engine::Engine;
use shared::Shared;
use side::{Embedded, Side};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use zeroize::Zeroize;

/// A NIC, and this process's side of it. It closes when it is dropped: transfers in progress end with
/// [`End::Abandoned`], regions are gone, and what peers do to them times out.
pub struct Rma {
    shared: Arc<Shared>,
    address: IpAddr,
    pid: u32,
    thread: Option<JoinHandle<()>>,
}

impl Rma {
    /// Opens a NIC in this process, or attaches to a daemon's where the settings say so.
    #[expect(clippy::disallowed_methods, reason = "the edge")]
    pub fn open(settings: Settings) -> Result<Rma, OpenError> {
        if settings.attach.is_some() {
            return Self::attach(settings);
        }
        settings.executor.check().map_err(OpenError::Setting)?;
        let mut engine = Engine::open(&settings, clock::realtime_ns(), clock::now())?;
        let pid = std::process::id();
        let nic = &mut engine.nic;
        let process = ProcessInit { pid, quota: settings.slots, priority: 0 };
        nic.attach(process).map_err(OpenError::Setting)?;
        let pd = nic.memory().alloc_pd().map_err(OpenError::Setting)?;
        let portal = CommandPortal::open(nic, pid, pd, settings.slots).map_err(OpenError::Setting)?;
        let (ring, slots) = (portal.completion_region(), portal.slots().to_vec());
        let side = Side::Embedded(Box::new(Embedded { engine, portal, pd, pid }));
        Self::start(&settings, side, ring, &slots)
    }

    /// Attaches to the NIC of a daemon.
    fn attach(settings: Settings) -> Result<Rma, OpenError> {
        settings.executor.check().map_err(OpenError::Setting)?;
        let Some(path) = &settings.attach else { return Err(OpenError::Driver("attach: no socket")) };
        let there = Attached::open(path, settings.slots, settings.daemon_patience)?;
        let (ring, slots) = (there.ring, there.slots.clone());
        Self::start(&settings, Side::Attached(Box::new(there)), ring, &slots)
    }

    #[expect(clippy::disallowed_methods, reason = "the edge")]
    fn start(settings: &Settings, side: Side, ring: RegionId, slots: &[SlotId]) -> Result<Rma, OpenError> {
        let mut executor = CommandExecutor::new(settings.executor, ring).map_err(OpenError::Setting)?;
        slots.iter().try_for_each(|slot| executor.add_slot(*slot)).map_err(OpenError::Setting)?;
        let (address, pid) = (side.address().ip(), side.pid());
        let core = Core::new(side, executor, clock::now());
        let shared =
            Shared::new(core, settings.spin).map_err(|e| OpenError::System("making an eventfd", e))?;
        let shared = Arc::new(shared);
        let serving = shared.clone();
        let serve = move || {
            serving.serve();
            serving.tell_end();
        };
        let thread = library_thread("adverb-1rma", serve)
            .map_err(|e| OpenError::System("starting the NIC's thread", e))?;
        Ok(Rma { shared, address, pid, thread: Some(thread) })
    }

    /// The NIC's address. Keys are granted for it and [`pid`](Rma::pid).
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number under which the NIC knows this process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Zeroed memory of `len` bytes that the NIC reaches.
    pub fn allocate(&self, len: usize) -> Result<Memory, Error> {
        Memory::allocate(&self.shared, len, false)
    }

    /// The first bytes of a sealed file that this process has open under a number.
    pub(crate) fn allocate_of_file(&self, file: i32, len: usize) -> Result<Memory, Error> {
        Memory::of_file(&self.shared, file, len)
    }

    /// Tells these waits, as long as anybody keeps them, when messages have come, which may have changed
    /// memory. False of a daemon's NIC: what that takes in is not told here.
    pub(crate) fn tell(&self, waits: &Arc<Waits>) -> bool {
        let mut core = self.shared.lock();
        let told = core.side.is_here();
        if told {
            core.tell(waits);
            self.shared.note_waits(core.waits());
        }
        told
    }

    /// A program has written to memory that the NIC knows. Its driver has looked at its own waits; `own` says
    /// that these are among those that are told.
    pub(crate) fn stored(&self, own: bool) {
        self.shared.stored(usize::from(own));
    }

    /// Reads from `offset` of a peer's region into a range of own memory, as many bytes as it has.
    pub fn read(&self, grant: &Grant, offset: u64, into: &Memory, range: Range<usize>) -> Transfer {
        Transfer::new(Op::Read, grant, offset, into.part(&self.shared, range))
    }

    /// Writes a range of own memory to a peer's region, from `offset` on.
    pub fn write(&self, grant: &Grant, offset: u64, from: &Memory, range: Range<usize>) -> Transfer {
        Transfer::new(Op::Write, grant, offset, from.part(&self.shared, range))
    }

    /// Gives a region, a peer's or an own one, another key. All keys granted for it before are worthless
    /// then.
    pub fn rekey(&self, grant: &Grant, key: &RegionKey) -> Transfer {
        let part = Memory::allocate(&self.shared, key.expose().len(), true).and_then(|memory| {
            memory.write(0, key.expose());
            memory.part(&self.shared, 0..key.expose().len())
        });
        Transfer::new(Op::Rekey, grant, 0, part)
    }

    /// A transfer of either kind between a range of own memory and a peer's region, from `offset` on.
    pub(crate) fn transfer(
        &self,
        op: Op,
        grant: &Grant,
        offset: u64,
        memory: &Memory,
        range: Range<usize>,
    ) -> Transfer {
        Transfer::new(op, grant, offset, memory.part(&self.shared, range))
    }

    /// What time it is for the NIC.
    pub(crate) fn now(&self) -> adverb_wire::Instant {
        self.shared.now()
    }

    /// Runs a future to its end on this thread, which makes the NIC's rounds meanwhile: the quickest way,
    /// without a switch of threads. Futures of other kinds work in it too.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.shared.block_on(future)
    }

    /// Waits for the end of the NIC, for so long at most: of one in this process there is none, a daemon may
    /// die or hang. True when it has ended. Then all transfers have too, and its regions and memory are
    /// good for nothing: what is left is to open another one.
    pub fn ended_within(&self, time: Option<std::time::Duration>) -> bool {
        self.shared.ended_within(time)
    }

    /// What has been counted.
    pub fn counters(&self) -> (OneRmaCounters, DriverCounters) {
        self.shared.lock().side.counters()
    }

    /// How many operations congestion control lets this process have outstanding at once: the local window,
    /// and the one for reads of this peer, if it is remembered; the smaller one counts. In operations of 4
    /// KB; below 1, one in several round trips.
    pub fn read_windows(&self, peer: IpAddr) -> (f64, Option<f64>) {
        self.shared.lock().read_windows(peer)
    }

    /// A random region key.
    pub fn random_key() -> Result<RegionKey, Error> {
        let mut bytes = random_bytes().map_err(|e| Error::System("drawing a region key", e))?;
        let key = RegionKey::new(bytes);
        bytes.zeroize();
        Ok(key)
    }
}

impl Drop for Rma {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell; a panic in it was reported by itself.
            let _ = thread.join();
        }
    }
}
