//! Paths, and those that have no room: when they have some again, and when datagrams wait for it no longer.

use super::{Port, UDP_PATH};
use crate::directory::Slot;
use crate::life::Lives;
use crate::rings::PATIENCE;
use adverb_nic::{Nic, PathId};
use adverb_os::sys;
use adverb_wire::{Duration, Instant, QpNumber};
use std::time::Duration as StdDuration;

/// The kernel tells of room when half of a socket's buffer is free, which a slow network may take seconds
/// for: who has no time asks as often as this.
const ASK_FOR_ROOM: Duration = Duration::from_ms(5);

/// The way to an address, which a queue pair's number there makes a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the processes of this address, by rings.
    Rings,
    /// By the socket.
    Udp,
}

impl Way {
    /// The path to a queue pair there: the default path where it is chosen frame by frame.
    #[inline]
    pub fn path(self, qpn: QpNumber) -> PathId {
        match (self, Slot::new((qpn.get() >> 16) as u8)) {
            (Way::Udp, _) => UDP_PATH,
            (Way::Rings, Some(slot)) => PathId(u16::from(slot.get())),
            (Way::Rings, None) => PathId::DEFAULT,
        }
    }
}

impl Port {
    /// Unblocks the paths that have room again.
    #[inline]
    pub fn unblock(&mut self, now: Instant, nic: &mut Nic) {
        if self.rings.has_blocked() {
            while let Some(slot) = self.rings.unblocked(now, &mut self.counters) {
                nic.unblock_path(PathId(u16::from(slot.get())));
            }
            while let Some(slot) = self.rings.idle(now, Lives::wants_processor) {
                self.counters.paths_given_up += 1;
                nic.give_up_path(PathId(u16::from(slot.get())));
            }
        }
        if self.udp_blocked {
            self.unblock_udp(now, nic);
        }
    }

    /// The port is about to close. Whether frames wait for the kernel, or were told to; if so, it may have
    /// room now, or after so long at most.
    pub fn wait_for_room(&mut self, most: Duration) -> bool {
        let waits = self.udp.has_staged() || self.udp_blocked;
        if waits {
            let time = most.min(ASK_FOR_ROOM);
            sys::wait_writable(self.udp.fd(), StdDuration::from_nanos(time.as_ns()));
        }
        waits
    }

    /// Forgets and counts the staged frames that the kernel has had no room for; how many these were.
    pub fn give_up_staged(&mut self) -> u64 {
        let lost = self.udp.give_up();
        self.counters.drop_unsent += lost;
        lost
    }

    #[cold]
    fn unblock_udp(&mut self, now: Instant, nic: &mut Nic) {
        let paths = || self.diverted.iter().map(|slot| PathId(u16::from(slot.get()))).chain([UDP_PATH]);
        if self.udp.flush(&mut self.counters) {
            (self.udp_blocked, self.udp_waits_since) = (false, None);
            return paths().for_each(|path| nic.unblock_path(path));
        }
        let since = *self.udp_waits_since.get_or_insert(now);
        if since != Instant::NEVER && now.since(since) >= PATIENCE {
            self.udp_waits_since = Some(Instant::NEVER);
            self.counters.paths_given_up += 1;
            paths().for_each(|path| nic.give_up_path(path));
        }
    }
}
