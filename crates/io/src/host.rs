//! The process's NIC with its loop: what `verbs` and programs use.

use crate::asked;
use crate::board::Board;
use crate::core::{Core, OnEvent, OnFrames};
use crate::counters::{is_json, render};
use crate::device::{DeviceInfo, devices};
use crate::directory::{Member, folder_of};
use crate::error::OpenError;
use crate::fork;
use crate::hold::Waking;
use crate::life::Lives;
use crate::looks;
use crate::notes::Notes;
use crate::port::{Port, Way};
use crate::progress::{self, Call, State};
use crate::registry::{self, Registry};
use crate::rings::Rings;
use crate::roles;
use crate::settings::{Congestion, Settings, StarTrust, Transport};
use crate::udp::Udp;
use adverb_nic::cm::CmConfig;
use adverb_nic::{
    CongestionControl, CqId, DcqcnConfig, Error, IrnConfig, Nic, NicConfig, PathId, QpId, StarConfig,
    TcpConfig, TimelyConfig, Tolerance,
};
use adverb_os::capture::Capture;
use adverb_os::choice::PathPolicy;
use adverb_os::clock::{Clock, realtime_ns};
use adverb_os::folders::shared_directory;
use adverb_os::lock::{BiasedLock, Guard};
use adverb_os::signals::{library_thread, without_sigpipe};
use adverb_os::via::Hello;
use adverb_os::{say, sys};
use adverb_wire::star::Wish;
use adverb_wire::{Duration, Gid, Instant, QpNumber};
use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Packets in flight that a queue pair may have by default, at most: what a ring holds twice over.
const MAX_UNACKED: u32 = 128;
/// A peer's process that lives but has no processor is waited for so long; and so long a peer that nothing is
/// known of may be silent, whatever its queue pair's timeout is.
pub const TOLERANCE: Tolerance =
    Tolerance { excused_max: Duration::from_ms(10_000), silence_min: Duration::from_ms(500) };
/// Kernel memory that one received packet takes beside its payload.
const SOCKET_OVERHEAD: usize = 1024;

/// What all threads of the process share. Lives as long as the process: forks and its end come back to it.
pub struct Shared {
    pub core: BiasedLock<Core>,
    pub member: Arc<Member>,
    pub state: State,
    /// Where its queues are looked at, and where it is told what its connections are to be.
    pub looks: asked::Socket,
    pub roles: asked::Socket,
    /// StaR's registry, where that is asked for.
    pub registry: Option<Registry>,
    counters_file: Option<PathBuf>,
    forks: u32,
}

impl Shared {
    /// Locks the NIC for a call of the application.
    #[inline]
    pub fn lock(&self) -> Guard<'_, Core> {
        self.core.lock()
    }

    /// Ends the NIC's life on the network: sends what is ready, writes the counters, removes its files.
    /// Later calls still reach the NIC's objects, but move no frames.
    pub fn close(&self) {
        if self.forks != fork::epoch() {
            return;
        }
        let mut core = self.lock();
        let now = core.clock.now();
        core.nic.with_cm(|cm| cm.close(now));
        progress::part(self, &mut core);
        core.finish();
        let Some(port) = core.port.take() else { return };
        if let Some(board) = core.board.take() {
            board.close(&core.nic, &port.counters);
        }
        let text = self.counters_file.as_deref().map(|path| (path, counters(&core, &port, is_json(path))));
        drop(port);
        drop(core);
        progress::stop(self);
        self.looks.close();
        self.roles.close();
        if let Some(registry) = &self.registry {
            registry.close();
        }
        self.member.leave();
        fork::release(self.member.folder());
        if let Some((path, text)) = text
            && let Err(e) = without_sigpipe(|| std::fs::write(path, text))
        {
            say!("adverb: the counters file {} cannot be written: {e}", path.display());
        }
    }
}

fn counters(core: &Core, port: &Port, json: bool) -> String {
    let nic = core.nic.counters().iter().map(|(name, n)| (Cow::Borrowed(name), n));
    let io = port.counters.iter().map(|(name, n)| (Cow::Owned(name), n));
    let cm = core.nic.cm_counters().into_iter().flat_map(|cm| cm.iter());
    let cm = cm.map(|(name, n)| (Cow::Borrowed(name), n));
    render(nic.chain(cm).chain(io), json)
}

/// The process's NIC: opened once, used by all its threads.
pub struct Host {
    shared: &'static Shared,
    device: DeviceInfo,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Host {
    /// Opens the NIC and starts its progress thread. `on_event` is called while the NIC is locked: it may
    /// only queue the event and signal.
    pub fn open(settings: &Settings, on_event: OnEvent) -> Result<Arc<Host>, OpenError> {
        let mut device = devices(settings)?;
        let directory = settings.directory.clone().unwrap_or_else(shared_directory);
        let folder = folder_of(&directory, device.address);
        if !fork::reserve(&folder) {
            return Err(OpenError::AlreadyOpen { address: device.address });
        }
        let opened = open_parts(settings, &mut device, &directory, on_event);
        let shared: &'static Shared = match opened {
            // Never freed: a fork or the end of the process may come at any time.
            Ok(shared) => Box::leak(Box::new(shared)),
            Err(e) => {
                fork::release(&folder);
                return Err(e);
            }
        };
        fork::register(&folder, shared);
        let thread = library_thread("adverb", || progress::run(shared)).map_err(|source| {
            shared.close();
            OpenError::System { what: "starting the progress thread", source }
        })?;
        if shared.registry.is_some() {
            library_thread("adverb-registry", || registry::run(shared)).map_err(|source| {
                shared.close();
                OpenError::System { what: "starting the registry's thread", source }
            })?;
        }
        let star = star_config(settings);
        warn_of_carried(star.as_ref());
        if star.is_some()
            && let Err(error) = asked::offer(shared, roles::KIND)
        {
            say!("adverb: `adverb star switch` cannot reach this process: {error}");
        }
        Ok(Arc::new(Host { shared, device, thread: Mutex::new(Some(thread)) }))
    }

    /// Calls the NIC, then sends what became ready and delivers events. For creating, changing and
    /// destroying objects.
    pub fn control<R>(&self, f: impl FnOnce(&mut Nic, Instant) -> R) -> R {
        // What was posted before is sent before: a queue pair may be gone afterwards.
        self.call(Core::send_waiting, f, |core, now| {
            core.transmit(now);
        })
    }

    /// The same, for posting work requests.
    #[inline]
    pub fn post<R>(&self, f: impl FnOnce(&mut Nic, Instant) -> R) -> R {
        self.call(|_, _| (), f, Core::transmit_post)
    }

    #[inline]
    fn call<R>(
        &self,
        begin: impl FnOnce(&mut Core, Instant),
        f: impl FnOnce(&mut Nic, Instant) -> R,
        transmit: impl FnOnce(&mut Core, Instant),
    ) -> R {
        let core = &mut *self.shared.lock();
        let now = core.clock.now();
        begin(core, now);
        progress::before_post(self.shared, core);
        let result = f(&mut core.nic, now);
        // A row of posts settles with its first and with the poll, post or tick after its last.
        core.set_waking(core.hold.waking(now, progress::in_a_row(core)));
        transmit(core, now);
        core.set_waking(Waking::Surely);
        self.after(core, Call::Post);
        result
    }

    /// The address of a queue pair's doorbell records, two words of 4 bytes: the second one is the count,
    /// modulo 2^16, of the blocks that a program has written into its send queue. It is looked at in every
    /// call, and by the progress thread every few dozen microseconds from now on.
    pub fn doorbell_record(&self, qp: QpId) -> Result<u64, Error> {
        let core = &mut *self.shared.lock();
        let addr = core.doorbells.record(&mut core.nic, qp)?;
        core.round(false);
        self.after(core, Call::Post);
        Ok(addr)
    }

    /// A queue pair was reset: its doorbell records begin again at 0, if it has some.
    pub fn reset_doorbells(&self, qp: QpId) {
        self.shared.lock().doorbells.reset(qp);
    }

    /// Asks for an event at the next completion (or the next solicited one). The caller will probably
    /// sleep, so the progress thread takes over at once.
    pub fn arm(&self, cq: CqId, solicited_only: bool) -> Result<(), Error> {
        let core = &mut *self.shared.lock();
        core.nic.arm_cq(cq, solicited_only)?;
        core.hold.expects_sleep();
        core.round(false);
        self.after(core, Call::Arm);
        Ok(())
    }

    /// Looks at the NIC. Makes no progress.
    pub fn inspect<R>(&self, f: impl FnOnce(&Nic) -> R) -> R {
        f(&self.shared.lock().nic)
    }

    /// Whether polling this queue now would find something. Makes no progress.
    pub fn holds_completion(&self, cq: CqId) -> Result<bool, Error> {
        self.shared.lock().nic.holds_completion(cq)
    }

    /// One round of progress, for a caller that waits for something and will soon make another. True when it
    /// took in what is acknowledged: whoever goes on waiting then calls [`Host::let_go`].
    pub fn look(&self) -> bool {
        let core = &mut *self.shared.lock();
        core.settle();
        core.poll_begins();
        let acknowledged = core.round_for_waiting();
        self.after(core, Call::EmptyPoll);
        acknowledged
    }

    /// What a look took in is not what its caller waits for: acknowledgements leave at once.
    pub fn let_go(&self) {
        let core = &mut *self.shared.lock();
        core.hold.forget();
        let now = core.clock.now();
        core.send_waiting(now);
    }

    /// One round of progress, for a caller that will sleep: the progress thread takes over at once.
    pub fn rest(&self) {
        let core = &mut *self.shared.lock();
        core.settle();
        // What its looks let wait was judged by what it did next; that it sleeps says nothing.
        core.hold.forget();
        core.round(false);
        self.after(core, Call::Arm);
    }

    /// Has this called whenever frames have come, which may have changed memory, or timers have run out. The
    /// NIC is locked then: it may only signal.
    pub fn on_frames(&self, hear: OnFrames) {
        self.shared.lock().on_frames = Some(hear);
    }

    #[inline]
    pub(crate) fn after(&self, core: &mut Core, call: Call) {
        if core.port.is_some() {
            progress::after_call(self.shared, core, call);
        }
    }

    /// The path to a queue pair: for `QpAttr::path` and `UdAddress::path`.
    pub fn resolve(&self, dst: Gid, qpn: QpNumber) -> PathId {
        self.way_to(dst).path(qpn)
    }

    /// The way to an address, for [`resolve`](Self::resolve) without a lock once the number is known.
    pub fn way_to(&self, dst: Gid) -> Way {
        // Without a port nothing is sent.
        self.shared.lock().port.as_ref().map_or(Way::Udp, |port| port.way_to(dst))
    }

    /// The NIC's time: what completions are stamped with.
    pub fn now(&self) -> Instant {
        self.shared.lock().clock.now()
    }

    /// Nanoseconds since 1970 at a time of the NIC.
    #[expect(clippy::disallowed_methods, reason = "the edge")]
    pub fn wallclock_ns(&self, at: Instant) -> u64 {
        let age_ns = self.now().since(at).as_ns();
        realtime_ns().saturating_sub(age_ns)
    }

    /// What the process's threads share.
    pub(crate) fn shared(&self) -> &'static Shared {
        self.shared
    }

    /// StaR's registry, where that was asked for.
    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.shared.registry.as_ref()
    }

    /// Lets `adverb redn show --pid` look at the NIC's cross-channel queues. Where that cannot be had, the
    /// program goes on without it.
    pub fn offer_looks(&self) {
        if let Err(error) = asked::offer(self.shared, looks::KIND) {
            say!("adverb: `adverb redn show --pid` cannot look at this process: {error}");
        }
    }

    /// Whether this process opened it. A child that was forked since has a copy that moves no frames.
    pub fn is_own(&self) -> bool {
        self.shared.forks == fork::epoch()
    }

    /// What the NIC looks like.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Receives a multicast group's datagrams from now on. Each call wants a [`leave`](Self::leave).
    pub fn join(&self, group: Gid) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        let joined = self.shared.lock().port.as_mut().ok_or_else(closed)?.udp().join(group);
        self.shared.member.bell().ring();
        joined
    }

    /// Takes one [`join`](Self::join) back.
    pub fn leave(&self, group: Gid) {
        if let Some(port) = self.shared.lock().port.as_mut() {
            port.udp().leave(group);
        }
    }

    /// All counters, the NIC's own first, one `name value` per line. Empty once closed.
    pub fn counters_text(&self) -> String {
        let core = self.shared.lock();
        core.port.as_ref().map_or_else(String::new, |port| counters(&core, port, false))
    }

    /// Closes the NIC before the process ends; dropping the last handle does so too.
    pub fn close(&self) {
        self.shared.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && self.shared.forks == fork::epoch()
            && thread.thread().id() != std::thread::current().id()
        {
            // A progress thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.close();
    }
}

/// Everything of a NIC but its thread.
fn open_parts(
    settings: &Settings,
    device: &mut DeviceInfo,
    directory: &std::path::Path,
    on_event: OnEvent,
) -> Result<Shared, OpenError> {
    let clock = Clock::start();
    let (capture, notes) = files_of(settings, device)?;
    let (address, index) = (device.address, device.interface_index);
    let (member, bound) = Member::claim(directory, address, |sole, folder| match settings.via {
        Some(_) => Ok(None),
        None => Udp::bind(address, index, sole, folder).map(Some),
    })?;
    let member = Arc::new(member);
    let udp = match (bound, &settings.via) {
        (None, Some(switch)) => {
            let token = settings.via_token.as_deref();
            Udp::via(switch, token, directory, hello_of(&member, address)?).inspect_err(|_| member.leave())?
        }
        (Some(udp), _) => udp,
        (None, None) => unreachable!("a socket was bound, or a switch is named"),
    };
    device.slot = member.slot().get();
    let registry = registry_of(settings, address, device.slot).inspect_err(|_| member.leave())?;
    let seed = sys::random_seed();
    let max_unacked_packets = max_unacked(settings, device, udp.receive_buffer());
    let config = NicConfig {
        watch_chains: settings.trace,
        tally: settings.boards.is_some() || settings.counters.is_some(),
        gids: device.gids.clone(),
        qpn_base: u32::from(device.slot) << 16,
        max_unacked_packets,
        congestion: congestion(settings.congestion),
        // What is to be captured or noted, or to suffer faults, passes the port.
        loopback: settings.path != PathPolicy::Udp
            && !settings.faults.any()
            && capture.is_none()
            && notes.is_none(),
        tolerance: TOLERANCE,
        irn: (settings.transport == Transport::Irn).then(|| irn_config(max_unacked_packets)),
        star: star_config(settings),
        cm: Some(CmConfig { slot: device.slot, ca_guid: device.node_guid, ..CmConfig::default() }),
        prefetch: [settings.prefetch.unwrap_or(PREFETCH); 2].into(),
        wqe_checks: settings.wqe_checks,
        wait_on_error: settings.wait_on_error,
        ..NicConfig::default()
    };
    let secret = sys::random_bytes::<16>()
        .map_err(|source| OpenError::System { what: "asking for random bytes", source })?;
    let mut nic = Nic::new(config, secret);
    nic.set_words_by_write(udp.decides_atomics());
    nic.begin_names_at(fork::epoch());
    if registry.is_some() {
        nic.memory().watch_windows();
    }
    let rings = Rings::new(member.clone(), Gid::from(device.address));
    let lives = Lives::new(Gid::from(address), directory.to_owned(), clock.epoch_ns());
    let port = Port::new(settings, Gid::from(address), rings, lives, udp, (capture, notes), seed);
    let board = board_of(settings, &member, address, &nic);
    let core = Core::new(nic, port, clock, on_event, settings.trace, board);
    let forks = fork::epoch();
    let counters_file = settings.counters.clone();
    let (state, looks, roles) = (State::default(), asked::Socket::default(), asked::Socket::default());
    let core = BiasedLock::new(core);
    Ok(Shared { core, member, state, looks, roles, registry, counters_file, forks })
}

/// Where frames are captured, and where is noted what happens, if it is.
#[expect(clippy::disallowed_methods, reason = "the edge")]
fn files_of(settings: &Settings, device: &DeviceInfo) -> Result<(Option<Capture>, Option<Notes>), OpenError> {
    let capture = settings.pcap.as_deref().map(|path| {
        let failed = |source| OpenError::File { option: "pcap", path: path.to_owned(), source };
        Capture::open(path, realtime_ns()).map_err(failed)
    });
    let notes = settings.perfetto.as_deref().map(|folder| {
        let failed = |source| OpenError::File { option: "perfetto", path: folder.to_owned(), source };
        Notes::create(folder, device.address).map_err(failed)
    });
    Ok((capture.transpose()?, notes.transpose()?))
}

/// The NIC's board. The program is worth more: where there can be none, it goes on, and that is said.
fn board_of(settings: &Settings, member: &Member, address: IpAddr, nic: &Nic) -> Option<Board> {
    let (own, bell) = (member.board_path(), member.bell_path());
    let made = Board::create(settings.boards.as_deref(), &own, address, &bell, nic);
    match (made, &settings.boards) {
        (Ok(board), _) => return Some(board),
        (Err(e), Some(folder)) => {
            say!("adverb: what this process does is not counted: {}: {e}", folder.display());
        }
        (Err(e), None) => say!("adverb: `adverb top` cannot see this process: {e}"),
    }
    None
}

/// What a process says of itself to a switch. Which folder its slot is of names the host: processes that meet
/// in another folder, or in none, are another host's.
fn hello_of(member: &Member, address: IpAddr) -> Result<Hello, OpenError> {
    let failed = |source| OpenError::Directory { path: member.folder().to_owned(), source };
    let about = std::fs::metadata(member.folder()).map_err(failed)?;
    let mut host = [0; 16];
    host[..8].copy_from_slice(&about.dev().to_le_bytes());
    host[8..].copy_from_slice(&about.ino().to_le_bytes());
    // Folders of two hosts may be of one number. This one is a host's until it is started again.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).unwrap_or_default();
    host.iter_mut().zip(boot.to_le_bytes()).for_each(|(byte, of_boot)| *byte ^= of_boot);
    Ok(Hello { slot: member.slot().get(), address: Gid::from(address), host })
}

/// WQEs that a fetch of a cross-channel queue brings. Adapters fetch ahead by rules of their own; a program
/// that orders its WQEs rightly cannot tell.
const PREFETCH: u8 = 8;

/// Each scheme with its paper's parameters, but TIMELY's times, and with them its step, are ten times the
/// paper's, as IRN's are here: a packet of a process may wait for a processor.
fn congestion(scheme: Congestion) -> CongestionControl {
    match scheme {
        Congestion::Halving => CongestionControl::Halving,
        Congestion::Fixed => CongestionControl::Fixed,
        Congestion::Dcqcn => CongestionControl::Dcqcn(DcqcnConfig::default()),
        Congestion::Timely => CongestionControl::Timely(TimelyConfig {
            t_low: Duration::from_us(500),
            t_high: Duration::from_us(5000),
            min_rtt: Duration::from_us(200),
            delta: 100e6,
            ..TimelyConfig::default()
        }),
        Congestion::Tcp => CongestionControl::Tcp(TcpConfig::default()),
    }
}

/// How many packets a peer's socket can hold for us, taking its buffer to be like ours.
fn max_unacked(settings: &Settings, device: &DeviceInfo, receive_buffer: usize) -> u32 {
    let packet = device.active_mtu.bytes() as usize + SOCKET_OVERHEAD;
    let held = (receive_buffer / packet) as u32;
    settings.max_unacked.unwrap_or_else(|| held.clamp(16, MAX_UNACKED))
}

/// How often connections of StaR are looked at, whether others would suit their numbers better.
const COMPARE: Duration = Duration::from_ms(100);

/// What a NIC of the host wants to be under StaR, if anything.
fn star_config(settings: &Settings) -> Option<StarConfig> {
    let wish = match settings.transport {
        Transport::Rc | Transport::Irn => return None,
        Transport::StarServer => Wish::Server,
        Transport::StarClient => Wish::Client,
        Transport::Star => Wish::Auto,
    };
    let usual = StarConfig::default();
    let hold = settings.star_hold.map_or(usual.hold, |hold| Duration::from_ns(hold.as_nanos() as u64));
    let threshold = settings.star_threshold.unwrap_or(usual.threshold);
    let (merge, burst, registry) = (settings.star_merge, settings.star_burst, settings.star_registry);
    let carried = settings.star_trust == StarTrust::Carried;
    let single_answers = settings.star_single_answers;
    let usual = StarConfig { single_answers, compare: COMPARE, ..usual };
    Some(StarConfig { wish, threshold, hold, merge, burst, carried, registry, ..usual })
}

/// Says what is given up where addresses travel.
fn warn_of_carried(star: Option<&StarConfig>) {
    if star.is_some_and(|star| star.carried) {
        say!(
            "adverb: star_trust=carried: addresses and local keys of what is posted leave this host, and a \
             copy that comes late is stopped by its deadline and the history only, not by what is posted: \
             for laboratories (docs/star.md)"
        );
    }
}

/// Its registry, if one is asked for.
fn registry_of(settings: &Settings, address: IpAddr, slot: u8) -> Result<Option<Registry>, OpenError> {
    match (settings.star_registry, star_config(settings)) {
        (None, _) => Ok(None),
        (Some(_), None) => Err(OpenError::RegistryUse { what: "a NIC without StaR" }),
        // Whatever role it wishes for, it may be told to take the other one: both sides grant.
        (Some(_), Some(_)) => Registry::open(address, slot, settings.trace).map(Some),
    }
}

/// IRN's bandwidth-delay product is what a peer's socket can hold for us, and what ours holds we tell the
/// peer: on one host the round trip is a few microseconds, and the time that a packet waits for a processor
/// is all there is to cover. Frames in shared memory wait in a ring that blocks its sender when it is full;
/// there the same bound keeps two queue pairs' worth in it.
fn irn_config(max_unacked_packets: u32) -> IrnConfig {
    IrnConfig {
        bdp_packets: Some(max_unacked_packets),
        receive_packets: max_unacked_packets,
        ..IrnConfig::default()
    }
}
