//! The NIC as a process of its own (`adverb nicd`): it owns the slots, tables, keys and port, and
//! applications attach over a Unix socket.
//!
//! The kernel says who connects: its process number is the initiator's PID in every key, and cannot be
//! forged. Slots and completions lie in memory that the daemon made and sealed, applications' memory in
//! memfds that they sealed against shrinking, so that nothing they do afterwards takes a page away under the
//! daemon. Commands are posted and completions found without a system call; who sleeps says so, and is rung
//! awake. An application that breaks things hurts itself: nothing that it shares with the daemon can make a
//! call of the daemon wait, and what one asks for in a row is answered in turns with the others.
//!
//! The kernel closes a dead process's connection, whatever killed it; then its slots are free and its regions
//! gone, before anything else happens.

pub(crate) mod protocol;
mod share;
mod tenant;

pub use crate::counters::NicdCounters;
pub use share::NicdShare;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::settings::Settings;
use adverb_os::clock;
use adverb_os::say;
use adverb_os::say::Seldom;
use adverb_os::socket_file::SocketFile;
use adverb_os::spin::Spin;
use adverb_os::sys::{WaitSet, prefer_short_waits};
use adverb_os::unix::Channel;
use adverb_wire::{Duration, Instant};
use share::{Room, Used};
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;
use tenant::{Farewell, Tenant};

/// Rounds with work after which connections are looked at, so that a busy NIC hears of the dead.
const ROUNDS_PER_LOOK: u32 = 32;
/// Connections taken before those that are there have their turn.
const CONNECTIONS_PER_LOOK: usize = 16;
/// Connections of one process: the one that it uses, and one more, which is told so. Otherwise one process
/// could take all places.
const CONNECTIONS_PER_PROCESS: usize = 2;
/// Lines about applications that broke the protocol, in each minute: they can do it as often as they like.
const COMPLAINTS: u32 = 10;
/// Time from a connection to its HELLO. Who says nothing takes a place for no longer.
const FIRST_WORD: Duration = Duration::from_ms(1000);
/// Scheduling slice that the daemon asks for.
const SLICE: StdDuration = StdDuration::from_micros(100);

/// A reason for the application.
type Refused = String;

/// What a process may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicdQuota {
    /// Command slots.
    pub slots: u32,
    /// Business priority, 0 (highest) to 3.
    pub priority: u8,
    /// Memories and regions together.
    pub regions: u32,
}

/// How the daemon is set up.
#[derive(Clone, Debug)]
pub struct NicdSettings {
    /// The NIC: address, tables, times, state, faults. `slots`, `executor` and `attach` mean nothing here.
    pub nic: Settings,
    /// Where applications connect.
    pub socket: PathBuf,
    /// Permissions of the socket: who may write to it may attach.
    pub mode: u32,
    /// What a process may have.
    pub quota: NicdQuota,
    /// What processes of certain users may have instead.
    pub quota_by_user: Vec<(u32, NicdQuota)>,
    /// What all processes of one user may have together.
    pub share: NicdShare,
}

/// The daemon's loop is where its NIC is told the time.
#[expect(clippy::disallowed_methods, reason = "the edge")]
fn now() -> Instant {
    clock::now()
}

/// What a daemon, its driver and its NIC have counted, by name. No slots are taken for it: whoever may
/// connect may ask.
pub fn counters(socket: &Path) -> Result<Vec<(&'static str, u64)>, OpenError> {
    let (nic, driver, daemon) = crate::attached::counters_of(socket)?;
    Ok(nic.iter().chain(driver.iter()).chain(daemon.iter()).collect())
}

/// The daemon: a NIC, and the applications that are attached to it.
pub struct Nicd {
    engine: Engine,
    socket: SocketFile,
    settings: NicdSettings,
    tenants: Vec<Tenant>,
    counters: NicdCounters,
    spin: Duration,
    complaints: Seldom,
}

impl Nicd {
    /// Opens the NIC and its socket. A socket that nobody listens at any more is replaced.
    #[expect(clippy::disallowed_methods, reason = "the edge")]
    pub fn open(settings: NicdSettings) -> Result<Nicd, OpenError> {
        if !crate::ENCRYPTED && !cfg!(debug_assertions) {
            return Err(OpenError::Driver(
                "built with benchmark-only-cleartext, which a release build of the daemon does not serve \
                 with",
            ));
        }
        let quotas = settings.quota_by_user.iter().map(|(_, quota)| quota).chain([&settings.quota]);
        for quota in quotas {
            let nic = &settings.nic.nic;
            OpenError::check("slots of a process's quota", quota.slots.into(), 1..=nic.slots.into())?;
            OpenError::check(
                "priority of a process",
                quota.priority.into(),
                0..=crate::PRIORITIES as u64 - 1,
            )?;
            OpenError::check("regions of a process's quota", quota.regions.into(), 1..=nic.regions.into())?;
        }
        let NicdShare { connections, slots, regions, bytes } = settings.share;
        for (what, value) in [
            ("connections of a user", connections.into()),
            ("slots of a user", slots.into()),
            ("regions of a user", regions.into()),
            ("bytes of a user", bytes),
        ] {
            OpenError::check(what, value, 1..=u64::MAX)?;
        }
        let engine = Engine::open(&settings.nic, clock::realtime_ns(), clock::now())?;
        let unheard = |source| OpenError::Socket(settings.socket.clone(), source);
        let socket = SocketFile::bind(&settings.socket, settings.mode).map_err(unheard)?;
        let spin = u64::try_from(settings.nic.spin.as_nanos()).unwrap_or(u64::MAX).min(1 << 40);
        let (tenants, counters) = (Vec::new(), NicdCounters::default());
        let complaints = Seldom::new(COMPLAINTS, Duration::from_ms(60_000));
        let spin = Duration::from_ns(spin);
        Ok(Nicd { engine, socket, settings, tenants, counters, spin, complaints })
    }

    /// What has been counted.
    pub fn counters(&self) -> NicdCounters {
        self.counters
    }

    /// Serves for ever.
    pub fn serve(&mut self) -> ! {
        prefer_short_waits(SLICE);
        let mut waits = WaitSet::default();
        let mut spin = Spin::new(self.spin);
        let mut rounds = 0u32;
        loop {
            let moved = self.round();
            rounds += 1;
            if moved {
                spin.busy();
                if rounds.is_multiple_of(ROUNDS_PER_LOOK) {
                    self.hear_all();
                }
                continue;
            }
            if spin.idle(now()).looks() {
                if rounds.is_multiple_of(ROUNDS_PER_LOOK) {
                    self.hear_all();
                }
                continue;
            }
            self.sleep(&mut waits);
            self.hear_all();
            spin.busy();
        }
    }

    /// One round of the NIC. True if there was anything to do.
    fn round(&mut self) -> bool {
        let received = self.engine.receive(now);
        let now = received.unwrap_or_else(now);
        let mut moved = received.is_some();
        self.engine.nic.on_timer(now);
        for index in (0..self.tenants.len()).rev() {
            let refused = &mut self.counters.commands_refused;
            match self.tenants[index].take_commands(&mut self.engine.nic, now, refused) {
                Ok(any) => moved |= any,
                Err(farewell) => self.dismiss(index, farewell),
            }
        }
        moved |= self.engine.transmit(now);
        for tenant in &mut self.tenants {
            tenant.tell(&self.engine.nic);
        }
        moved
    }

    /// Answers who is there and lets go who is gone, then lets new applications in.
    fn hear_all(&mut self) {
        let now = now();
        let mut arrived = Vec::new();
        while arrived.len() < CONNECTIONS_PER_LOOK {
            let Ok(channel) = self.socket.listener.accept() else { break };
            arrived.push(channel);
        }
        // Whoever closed a connection before it made one of these no longer has it.
        self.answer_all(0, now);
        let known = self.tenants.len();
        arrived.into_iter().for_each(|channel| self.let_in(channel, now));
        self.answer_all(known, now);
    }

    /// A new connection, if its process, its user and the daemon have room for one.
    fn let_in(&mut self, channel: Channel, now: Instant) {
        self.counters.connections += 1;
        let Ok(peer) = channel.peer() else { return };
        let count = |which: &dyn Fn(&Tenant) -> bool| self.tenants.iter().filter(|one| which(one)).count();
        let full = self.tenants.len() == self.settings.nic.nic.processes as usize;
        let of_process = count(&|tenant| tenant.peer.pid == peer.pid);
        let of_user = count(&|tenant| tenant.peer.uid == peer.uid);
        if full
            || of_process >= CONNECTIONS_PER_PROCESS
            || of_user >= self.settings.share.connections as usize
        {
            self.counters.turned_away += 1;
            return;
        }
        let by_user = self.settings.quota_by_user.iter().find(|(uid, _)| *uid == peer.uid);
        let quota = by_user.map_or(self.settings.quota, |(_, quota)| *quota);
        self.tenants.push(Tenant::new(channel, peer, quota, now + FIRST_WORD));
    }

    /// Answers the tenants from this one on.
    fn answer_all(&mut self, first: usize, now: Instant) {
        for index in (first..self.tenants.len()).rev() {
            let share = self.settings.share;
            let (before, rest) = self.tenants.split_at_mut(index);
            let Some((tenant, after)) = rest.split_first_mut() else { continue };
            let uid = tenant.peer.uid;
            let room = || {
                let others = before.iter().chain(after.iter()).filter(|other| other.peer.uid == uid);
                Room { share, others: others.map(Tenant::used).fold(Used::default(), Used::and) }
            };
            if let Err(farewell) = tenant.answer(now, &mut self.engine, &self.counters, &room) {
                self.dismiss(index, farewell);
            }
        }
    }

    fn dismiss(&mut self, index: usize, farewell: Farewell) {
        let tenant = self.tenants.swap_remove(index);
        match farewell {
            Farewell::Gone => self.counters.gone += 1,
            Farewell::Silent => self.counters.silent += 1,
            Farewell::Misbehaved => {
                self.counters.misbehaved += 1;
                if let Some(more) = self.complaints.allows(now()) {
                    let unsaid =
                        if more > 0 { format!(", and {more} more before it") } else { String::new() };
                    let pid = tenant.peer.pid;
                    say!("adverb nicd: process {pid} broke the protocol and was let go{unsaid}");
                }
            }
        }
        tenant.leave(&mut self.engine.nic);
    }

    /// Sleeps until something is to be done.
    fn sleep(&mut self, waits: &mut WaitSet) {
        let quiet =
            self.tenants.iter_mut().all(|tenant| tenant.daemon_sleeps(true)) && self.engine.prepare_sleep();
        if quiet {
            waits.clear();
            waits.add(self.socket.listener.fd(), false);
            self.engine.fds().into_iter().flatten().for_each(|(fd, or_writable)| waits.add(fd, or_writable));
            self.tenants.iter().flat_map(Tenant::fds).for_each(|fd| waits.add(fd, false));
            let due = self.tenants.iter().filter_map(Tenant::patience_ends);
            let due = due.chain(self.engine.next_deadline()).min();
            self.engine.counters.sleeps += 1;
            waits.wait(due.map(|due| StdDuration::from_nanos(due.since(now()).as_ns())));
        }
        self.engine.after_sleep(now());
        self.tenants.iter_mut().for_each(|tenant| {
            tenant.daemon_sleeps(false);
        });
    }
}
