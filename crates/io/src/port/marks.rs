//! How a port finds and tells its place among the sockets of its address, of which `steering.rs` says when;
//! and which paths take the socket for want of a ring.

use super::Port;
use crate::directory::{Member, Slot};
use crate::steering::Order;
use adverb_os::steer::{INDEXES, LISTENERS, Mark};

/// Indexes that are asked for beyond the processes that the table knows.
const SPARE_INDEXES: usize = 8;
/// Programs attached in a row, while others change the table at the same time. Each of them attaches one too.
const PROGRAMS_MAX: usize = 4;
impl Port {
    /// Sends this process the datagrams by which it finds its place among those of the port.
    #[cold]
    pub(super) fn send_marks(&mut self, order: Order) {
        let byte = self.slot.get();
        let Some(sockets) = self.udp.sockets() else { return self.steering.refused() };
        let sent = match order {
            Order::Check(nonce) => sockets.send_marks([Mark { index: None, byte, nonce }].into_iter()),
            Order::Search { nonce, all } => {
                // Without a program marks mean nothing. Those of the dead may still be in the kernel, and
                // sockets that children inherited among the indexes.
                let known = self.rings.member().indexes();
                let other = known.first().map_or(0, |&(_, index)| index);
                let likely = self.rings.member().others().count() + 1 + SPARE_INDEXES;
                let last = if all { usize::from(INDEXES) } else { likely.min(INDEXES.into()) };
                let marks = (0..last as u8).map(|i| Mark { index: Some(i), byte, nonce });
                sockets
                    .steer(&known, &listeners(self.rings.member(), &known), other)
                    .and_then(|()| sockets.send_marks(marks))
            }
        };
        self.steering.set_shared(self.rings.member().others().next().is_some());
        if sent.is_err() {
            self.counters.steering_refused += 1;
            self.steering.refused();
        }
    }

    /// Tells the others, and the kernel, which index this process has.
    #[cold]
    pub(super) fn take_index(&mut self, index: u8) {
        let member = self.rings.member();
        member.set_index(index);
        member.note_change();
        let Some(sockets) = self.udp.sockets() else { return self.steering.refused() };
        for _ in 0..PROGRAMS_MAX {
            let seen = member.changes();
            let indexes = member.indexes();
            match sockets.steer(&indexes, &listeners(member, &indexes), index) {
                Ok(()) => self.counters.steering_programs += 1,
                Err(_) => {
                    self.counters.steering_refused += 1;
                    return self.steering.refused();
                }
            }
            // Another may have attached one that does not know this index, just after.
            if member.changes() == seen {
                return;
            }
        }
    }

    /// A listener of this process came or went: the kernel is told, where it steers. Who does not know its
    /// own place yet tells it when it does.
    #[cold]
    pub fn listeners_changed(&mut self) {
        if let Some(index) = self.rings.member().own_index() {
            self.take_index(index);
        }
    }

    /// From now on the path of a slot waits for room in the socket too.
    #[cold]
    pub(super) fn divert(&mut self, slot: Slot) {
        if !self.diverted.contains(&slot) {
            self.diverted.push(slot);
        }
    }
}

/// Services that processes of the address listen for, and the indexes of their sockets.
fn listeners(member: &Member, indexes: &[(u8, u8)]) -> Vec<(u32, u8)> {
    let all = member.ports().listeners(LISTENERS, |owner| member.lives(owner));
    let index = |slot: Slot| indexes.iter().find(|(of, _)| *of == slot.get()).map(|(_, index)| *index);
    all.into_iter().filter_map(|(service, slot)| Some((service.id() as u32, index(slot)?))).collect()
}
