//! The NIC and the network: a [`OneRma`], its socket, its clock, its message counters.

use crate::counter_file::{CounterError, CounterFile};
use crate::counters::DriverCounters;
use crate::error::OpenError;
use crate::settings::Settings;
use crate::sys;
use crate::udp::Udp;
use adverb_nic::OneRma;
use adverb_nic::one_rma::OneRmaConfig;
use adverb_wire::one_rma::{GRAIN, HEAD_LEN, MAX_OP, TAG_LEN};
use adverb_wire::{Gid, Instant};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Largest window that is chosen where none is asked for.
const WINDOW_MAX: usize = 1 << 20;
/// Message counters left, below which more are reserved.
const COUNTERS_LOW: u64 = 1 << 34;
/// Bytes of an IPv6 and a UDP header.
const IP_UDP_LEN: u32 = 48;

/// See the top of this file.
pub(crate) struct Engine {
    pub nic: OneRma,
    pub counters: DriverCounters,
    /// Gone when the NIC is closed: address and counter file are others' to use, while memory of this NIC may live on.
    outside: Option<Outside>,
    /// No more message counters can be had; the next reservation is tried when these are used up.
    counters_low: u64,
}

struct Outside {
    udp: Udp,
    counter_file: CounterFile,
}

/// The NIC's clock: nanoseconds since the machine started, so that all processes agree.
#[inline]
pub(crate) fn clock() -> Instant {
    Instant::from_ns(adverb_io::sys::monotonic_ns())
}

impl Engine {
    pub fn open(settings: &Settings) -> Result<Engine, OpenError> {
        let address = settings.address;
        settings.faults.check().map_err(OpenError::Driver)?;
        let unbound = |source| OpenError::Address(address, source);
        if address.is_unspecified() || address.is_multicast() {
            return Err(unbound(io::ErrorKind::AddrNotAvailable.into()));
        }
        let udp = Udp::bind(address, &settings.faults).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::PortTaken(address),
            io::ErrorKind::AddrNotAvailable => unbound(source),
            _ => OpenError::System("binding the UDP port", source),
        })?;
        let window = settings.window.unwrap_or((udp.receive_buffer() / 4).clamp(MAX_OP, WINDOW_MAX) as u32);
        OpenError::check("solicitation window, in bytes,", window.into(), MAX_OP as u64..=u32::MAX.into())?;
        let max_piece = settings.max_piece.unwrap_or_else(|| max_piece(address));
        let config = OneRmaConfig { address: Gid::from(address), window, max_piece, ..settings.nic.clone() };
        let folder = settings.state_folder().ok_or(OpenError::NoState)?;
        let mut counter_file = CounterFile::open(&folder, address).map_err(counter_error)?;
        let range = counter_file.reserve(sys::seconds_since_1970()).map_err(counter_error)?;
        let seed = adverb_io::sys::random_seed();
        let nic = OneRma::new(config, range, seed).map_err(OpenError::Setting)?;
        let counters = DriverCounters::default();
        let outside = Some(Outside { udp, counter_file });
        Ok(Engine { nic, counters, outside, counters_low: COUNTERS_LOW })
    }

    /// Takes in what has come. If anything had: when it was taken.
    pub fn receive(&mut self) -> Option<Instant> {
        let Engine { nic, counters, outside, .. } = self;
        outside.as_mut()?.udp.receive(nic, counters, clock)
    }

    /// Sends what is to be sent. True if anything was.
    pub fn transmit(&mut self, now: Instant) -> bool {
        self.nic.on_timer(now);
        if self.nic.message_counters_left() < self.counters_low {
            self.reserve_counters();
        }
        let Engine { nic, counters, outside, .. } = self;
        outside.as_mut().is_some_and(|outside| outside.udp.transmit(nic, counters, now))
    }

    #[cold]
    fn reserve_counters(&mut self) {
        let Some(outside) = &mut self.outside else { return };
        let range = outside.counter_file.reserve(sys::seconds_since_1970());
        let added = range.is_ok_and(|range| self.nic.add_message_counters(range).is_ok());
        // When the disk is full, what is left is used up, with a few more attempts; without counters nothing is sent any more, and all ends with TIMEOUT.
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

    /// The socket, and whether its becoming writable matters too. `None` when it is closed.
    pub fn fd(&self) -> Option<(RawFd, bool)> {
        self.outside.as_ref().map(|outside| (outside.udp.fd(), outside.udp.has_staged()))
    }

    /// Leaves the network.
    pub fn close(&mut self) {
        self.outside = None;
    }
}

fn counter_error(error: CounterError) -> OpenError {
    match error {
        CounterError::Held(path) => OpenError::StateHeld(path),
        CounterError::Garbled(path) => OpenError::StateGarbled(path),
        CounterError::System(path, source) => OpenError::State(path, source),
    }
}

/// Payload of the largest message that the MTU of an address's interface bears.
fn max_piece(address: IpAddr) -> u16 {
    let settings = adverb_io::Settings { address: Some(address), ..adverb_io::Settings::default() };
    let mtu = adverb_io::devices(&settings).map_or(1500, |device| device.link_mtu);
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
