//! The NIC and the network: a [`OneRma`], its ways out, its clock, its message counters.

use crate::counter_file::{CounterError, CounterFile, RANGE};
use crate::counters::DriverCounters;
use crate::error::OpenError;
use crate::near::Near;
use crate::settings::Settings;
use crate::udp::Udp;
use adverb_nic::OneRma;
use adverb_nic::one_rma::OneRmaConfig;
use adverb_os::choice::PathPolicy;
use adverb_os::folders::shared_directory;
use adverb_os::interfaces::mtu_of;
use adverb_os::sys::random_seed;
use adverb_wire::one_rma::{GRAIN, HEAD_LEN, MAX_OP, TAG_LEN};
use adverb_wire::{Duration, Gid, Instant};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Largest window that is chosen where none is asked for.
const WINDOW_MAX: usize = 512 << 10;
/// Message counters left, below which more are reserved.
const COUNTERS_LOW: u64 = RANGE / 2;
/// Bytes of an IPv6 and a UDP header.
const IP_UDP_LEN: u32 = 48;

/// A NIC with its ways to the network.
pub(crate) struct Engine {
    pub nic: OneRma,
    pub counters: DriverCounters,
    /// Gone when the NIC is closed: address and counter file are others' to use, while memory of this NIC may
    /// live on.
    outside: Option<Outside>,
    /// No more message counters can be had; the next reservation is tried when these are used up.
    counters_low: u64,
    /// When the NIC was opened.
    opened: Instant,
}

struct Outside {
    /// Closed before the port, which makes the address this NIC's.
    near: Option<Near>,
    udp: Udp,
    /// Looks at the socket in a row that found nothing.
    udp_idle: u32,
    /// Looks since it was asked.
    udp_skipped: u32,
    counter_file: CounterFile,
}

/// After so many looks in vain the socket is idle,
const UDP_IDLE: u32 = 64;
/// and asked at every so many-th look only, while there are near peers.
const UDP_SKIP: u32 = 16;

impl Outside {
    /// Whether the socket is to be asked: that is a system call, which messages in shared memory would wait
    /// for.
    fn asks_udp(&mut self, near_came: bool) -> bool {
        self.udp_skipped += 1;
        let spare =
            near_came || (self.udp_idle >= UDP_IDLE && self.near.as_ref().is_some_and(Near::has_links));
        let asks = !spare || self.udp_skipped >= UDP_SKIP;
        if asks {
            self.udp_skipped = 0;
        }
        asks
    }
}

impl Engine {
    /// Opens the NIC of an address. `since_1970_ns` is the time, which a lost message counter starts from,
    /// and `now` the same moment as the NIC is told it. It may wait for less than a second, until the clock
    /// has passed what an earlier life of this address has reserved.
    pub fn open(settings: &Settings, since_1970_ns: u64, now: Instant) -> Result<Engine, OpenError> {
        let address = settings.address;
        if !settings.faults.are_probabilities() {
            return Err(OpenError::Driver("chance of a fault: from 0 to 1"));
        }
        let unbound = |source| OpenError::Address(address, source);
        if address.is_unspecified() || address.is_multicast() {
            return Err(unbound(io::ErrorKind::AddrNotAvailable.into()));
        }
        let seed = random_seed();
        let udp = Udp::bind(address, &settings.faults, seed).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::PortTaken(address),
            io::ErrorKind::AddrNotAvailable => unbound(source),
            _ => OpenError::System("binding the UDP port", source),
        })?;
        let window = settings.window.unwrap_or((udp.receive_buffer() / 4).clamp(MAX_OP, WINDOW_MAX) as u32);
        OpenError::check("solicitation window, in bytes,", window.into(), MAX_OP as u64..=u32::MAX.into())?;
        let max_piece = settings.max_piece.unwrap_or_else(|| max_piece(address));
        let config = OneRmaConfig { address: Gid::from(address), window, max_piece, ..settings.nic.clone() };
        let folder = settings.state_folder().ok_or(OpenError::NoState)?;
        let mut counter_file = CounterFile::open(&folder, address, since_1970_ns).map_err(counter_error)?;
        let range = counter_file.reserve(Duration::ZERO).map_err(counter_error)?;
        if let Some(ahead) = counter_file.ahead() {
            wait(ahead);
        }
        let nic = OneRma::new(config, range, seed).map_err(OpenError::Setting)?;
        let counters = DriverCounters::default();
        let wants_near = settings.path == PathPolicy::Auto && !settings.faults.any();
        let near = wants_near.then(|| Near::open(&shared_directory(), address, window)).transpose()?;
        let outside = Some(Outside { near, udp, udp_idle: 0, udp_skipped: 0, counter_file });
        Ok(Engine { nic, counters, outside, counters_low: COUNTERS_LOW, opened: now })
    }

    /// Takes in what has come. If anything had: when it was taken. `clock` is asked once messages are there,
    /// since none may be newer than the time that the NIC is told.
    pub fn receive(&mut self, clock: impl Fn() -> Instant) -> Option<Instant> {
        let Engine { nic, counters, outside, .. } = self;
        let outside = outside.as_mut()?;
        let near = outside.near.as_mut().and_then(|near| near.receive(nic, counters, &clock));
        if !outside.asks_udp(near.is_some()) {
            return near;
        }
        let udp = outside.udp.receive(nic, counters, clock);
        outside.udp_idle = if udp.is_some() { 0 } else { outside.udp_idle.saturating_add(1) };
        udp.or(near)
    }

    /// Sends what is to be sent. True if anything was.
    pub fn transmit(&mut self, now: Instant) -> bool {
        self.nic.on_timer(now);
        if self.nic.message_counters_left() < self.counters_low {
            self.reserve_counters(now);
        }
        let Engine { nic, counters, outside, .. } = self;
        outside
            .as_mut()
            .is_some_and(|outside| outside.udp.transmit(nic, outside.near.as_mut(), counters, now))
    }

    #[cold]
    fn reserve_counters(&mut self, now: Instant) {
        let Some(outside) = &mut self.outside else { return };
        let range = outside.counter_file.reserve(now.since(self.opened));
        let added = range.is_ok_and(|range| self.nic.add_message_counters(range).is_ok());
        // When the disk is full, what is left is used up, with a few more attempts; without counters nothing
        // is sent any more, and all ends with TIMEOUT.
        self.counters_low = if added { COUNTERS_LOW } else { self.counters_low / 2 };
        self.counters.counter_reservations_failed += !added as u64;
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let held = self.outside.as_ref().and_then(|outside| outside.udp.next_deadline());
        self.nic.next_deadline().into_iter().chain(held).min()
    }

    /// Whether there is anything to send.
    pub fn has_work(&self) -> bool {
        self.nic.has_work() || self.outside.as_ref().is_some_and(|outside| outside.udp.has_staged())
    }

    /// What to sleep on, and whether its becoming writable matters too. Nothing when it is closed.
    pub fn fds(&self) -> [Option<(RawFd, bool)>; 2] {
        let Some(outside) = &self.outside else { return [None; 2] };
        let udp = (outside.udp.fd(), outside.udp.has_staged());
        [Some(udp), outside.near.as_ref().map(|near| (near.fd(), false))]
    }

    /// Before a sleep. False if something has come meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        self.near().is_none_or(Near::prepare_sleep)
    }

    /// After a sleep.
    pub fn after_sleep(&mut self, now: Instant) {
        let Engine { counters, outside, .. } = self;
        if let Some(near) = outside.as_mut().and_then(|outside| outside.near.as_mut()) {
            near.after_sleep(now, counters);
        }
    }

    fn near(&mut self) -> Option<&mut Near> {
        self.outside.as_mut()?.near.as_mut()
    }

    /// Leaves the network.
    pub fn close(&mut self) {
        self.outside = None;
    }
}

/// Lets the clock catch up.
#[expect(clippy::disallowed_methods, reason = "the clock itself is what it waits for")]
fn wait(time: Duration) {
    std::thread::sleep(std::time::Duration::from_nanos(time.as_ns()));
}

fn counter_error(error: CounterError) -> OpenError {
    match error {
        CounterError::Held(path) => OpenError::StateHeld(path),
        CounterError::Garbled(path) => OpenError::StateGarbled(path),
        CounterError::Lost(path) => OpenError::StateLost(path),
        CounterError::System(path, source) => OpenError::State(path, source),
    }
}

/// Payload of the largest message that the MTU of an address's interface bears.
fn max_piece(address: IpAddr) -> u16 {
    let mtu = mtu_of(address).unwrap_or(1500);
    let overhead = IP_UDP_LEN + (HEAD_LEN + 4 + TAG_LEN) as u32;
    let piece = (mtu.saturating_sub(overhead) as usize).clamp(GRAIN, MAX_OP);
    (piece - piece % GRAIN) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_fits_the_interface() {
        assert_eq!(max_piece(IpAddr::from([127, 0, 0, 9])), 4096, "the loopback's MTU is 65536");
        // 1500 - 48 - 36 = 1416, of which 1408 are whole grains.
        assert_eq!(max_piece(IpAddr::from([192, 0, 2, 1])), 1408, "an address that is not here: Ethernet's");
    }
}
