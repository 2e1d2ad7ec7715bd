//! Which region WRITEs were executed lately: a history of constant size, so that a copy of one that is still
//! on its way does not land a second time.
//!
//! A packet is remembered until its own deadline, and after that it is refused by its deadline. So the table
//! holds what is executed in one lifetime, however many connections that comes from. It has places in groups;
//! a packet whose group has no free place is not executed, and its sender hears that there is no room.

/// Packets that are remembered at most.
pub(crate) const HISTORY: usize = 1 << 16;
/// Packets that a history of a native service remembers at most.
pub(crate) const HISTORY_MAX: usize = 1 << 20;
/// Places of a group.
const WAYS: usize = 16;
/// Places of a group that packets of one connection may take: the newest ones are refused, so that others'
/// find room.
const SHARE: usize = WAYS - 2;

/// A packet, as far as it matters: copies agree in all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The stateless side's queue pair, its incarnation above the number.
    pub queue: u32,
    /// The packet's number, below 2^24.
    pub psn: u32,
    /// In microseconds of the stateless side's clock.
    pub deadline: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    queue: u32,
    /// With a mark above it that the place is in use.
    psn: u32,
    deadline: u32,
    order: u32,
}

const USED: u32 = 1 << 31;
const VACANT: Entry = Entry { queue: 0, psn: 0, deadline: 0, order: 0 };
const _: () = assert!(core::mem::size_of::<Entry>() == 16);

/// What the history knows of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// It was executed, as so manieth of all, or with what was noted of it since.
    Executed(u32),
    /// It was not, and can be remembered here.
    Place(usize),
    /// It was not, and there is no room.
    Full,
}

/// The table. Where a packet stands cannot be foretold without the secret, so that nobody fills a group of
/// his choice.
pub(crate) struct History {
    /// A power of two.
    entries: Box<[Entry]>,
    secret: u64,
}

impl History {
    /// With this many places, rounded up to a power of two.
    pub fn new(secret: u64, places: usize) -> History {
        let places = places.clamp(WAYS, HISTORY_MAX).next_power_of_two();
        History { entries: vec![VACANT; places].into_boxed_slice(), secret }
    }

    /// Bytes that it has allocated.
    pub fn allocated(&self) -> usize {
        size_of_val(&*self.entries)
    }

    fn group(&self, packet: Identity) -> usize {
        let value = u64::from(packet.queue) << 32 | u64::from(packet.psn);
        // Two rounds of a multiply and fold under the secret.
        let mut mixed = value ^ self.secret;
        for factor in [0x9e37_79b9_7f4a_7c15_u64, 0xd1b5_4a32_d192_ed03] {
            let product = u128::from(mixed) * u128::from(factor ^ self.secret.rotate_left(32) | 1);
            mixed = product as u64 ^ (product >> 64) as u64;
        }
        mixed as usize & (self.entries.len() / WAYS - 1)
    }

    /// What is known of a packet, at a time in microseconds.
    pub fn find(&self, packet: Identity, clock: u32) -> Found {
        let first = self.group(packet) * WAYS;
        let mut place = None;
        let mut shared = 0;
        for at in first..first + WAYS {
            let entry = &self.entries[at];
            let alive = entry.psn & USED != 0 && entry.deadline.wrapping_sub(clock) as i32 >= 0;
            if !alive {
                place = Some(at);
                continue;
            }
            if entry.queue == packet.queue {
                shared += 1;
                if entry.psn == packet.psn | USED && entry.deadline == packet.deadline {
                    return Found::Executed(entry.order);
                }
            }
        }
        place.filter(|_| shared < SHARE).map_or(Found::Full, Found::Place)
    }

    /// Notes something else of a packet that is remembered than its order. False when it is not.
    pub fn note(&mut self, packet: Identity, what: u32, clock: u32) -> bool {
        let first = self.group(packet) * WAYS;
        let entry = self.entries[first..first + WAYS].iter_mut().find(|entry| {
            (entry.queue, entry.psn, entry.deadline) == (packet.queue, packet.psn | USED, packet.deadline)
                && entry.deadline.wrapping_sub(clock) as i32 >= 0
        });
        entry.map(|entry| entry.order = what).is_some()
    }

    /// Remembers a packet at the place that was found for it.
    pub fn keep(&mut self, place: usize, packet: Identity, order: u32) {
        let Identity { queue, psn, deadline } = packet;
        self.entries[place] = Entry { queue, psn: psn | USED, deadline, order };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(queue: u32, psn: u32, deadline: u32) -> Identity {
        Identity { queue, psn, deadline }
    }

    #[test]
    fn a_packet_is_remembered_until_its_deadline() {
        let mut history = History::new(7, HISTORY);
        // Over the end of the clock's circle.
        for clock in [1000, u32::MAX - 3] {
            let one = packet(1, 2, clock.wrapping_add(20));
            let Found::Place(place) = history.find(one, clock) else { panic!("there is room") };
            history.keep(place, one, 77);
            for later in [0, 19, 20] {
                assert_eq!(history.find(one, clock.wrapping_add(later)), Found::Executed(77));
            }
            assert!(matches!(history.find(one, clock.wrapping_add(21)), Found::Place(_)));
            for other in
                [packet(2, 2, one.deadline), packet(1, 3, one.deadline), packet(1, 2, one.deadline + 1)]
            {
                assert!(matches!(history.find(other, clock), Found::Place(_)), "{other:?}");
            }
        }
    }

    #[test]
    fn a_full_history_forgets_nothing_and_one_connection_does_not_fill_it() {
        let mut history = History::new(9, HISTORY);
        let mut kept = Vec::new();
        let mut fill = |queue: u32, kept: &mut Vec<Identity>| {
            for psn in 0..2 * HISTORY as u32 {
                if let Found::Place(place) = history.find(packet(queue, psn, 100), 50) {
                    history.keep(place, packet(queue, psn, 100), psn);
                    kept.push(packet(queue, psn, 100));
                }
            }
        };
        fill(1, &mut kept);
        assert!(kept.len() <= HISTORY / WAYS * SHARE, "{}", kept.len());
        fill(2, &mut kept);
        assert!(kept.len() > HISTORY * 9 / 10, "{}", kept.len());
        for one in &kept {
            assert_eq!(history.find(*one, 50), Found::Executed(one.psn));
        }
        // All of it is free again when the deadlines have passed.
        assert!(kept.iter().all(|one| matches!(history.find(*one, 101), Found::Place(_))));
    }
}
