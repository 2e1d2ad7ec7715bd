//! Which region WRITEs were executed lately: a history of constant size, so that a copy of one that is still
//! on its way does not land a second time.
//!
//! A packet is remembered until its own deadline, and after that it is refused by its deadline. So the table
//! holds what is executed in one lifetime, however many connections that comes from. It has places in groups;
//! a packet whose group has no free place is not executed, and its sender hears that there is no room.
//!
//! A group is four cache lines, of which the first is enough as long as few of its packets are remembered:
//! they lie in its lowest free places, and it is known how far they go.

use crate::memory::prefetch;

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
    /// The packet's number, of 24 bits, below one that tells the sequences of a connection apart.
    pub psn: u32,
    /// In microseconds of the stateless side's clock.
    pub deadline: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Entry {
    queue: u32,
    /// With a mark above it that the place is in use; between them, in a group's first entry, how many of the
    /// group's places were ever taken, but for those behind the last that is remembered.
    psn: u32,
    deadline: u32,
    order: u32,
}

const USED: u32 = 1 << 31;
/// Where the number of a group's places stands, and its bits.
const REACH_AT: u32 = 25;
const REACH: u32 = 0x1f << REACH_AT;
const VACANT: Entry = Entry { queue: 0, psn: 0, deadline: 0, order: 0 };
const _: () = assert!(core::mem::size_of::<Entry>() == 16);
const _: () = assert!(WAYS as u32 <= REACH >> REACH_AT && USED & REACH == 0 && REACH_AT > 24);

impl Entry {
    fn is_alive(&self, clock: u32) -> bool {
        self.psn & USED != 0 && self.deadline.wrapping_sub(clock) as i32 >= 0
    }

    /// Whether it is this packet's, dead or alive.
    fn is_of(&self, packet: Identity) -> bool {
        let psn = self.psn & !REACH;
        (self.queue, psn, self.deadline) == (packet.queue, packet.psn | USED, packet.deadline)
    }
}

/// Places that a packet may have.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Group([Entry; WAYS]);

impl Group {
    /// Its first places, behind which none is remembered.
    fn reach(&self) -> usize {
        ((self.0[0].psn & REACH) >> REACH_AT) as usize
    }

    /// Takes a place, and gives up those behind that are no longer remembered.
    fn take(&mut self, way: usize, packet: Identity, order: u32, clock: u32) {
        let mut reach = self.reach().max(way + 1);
        while reach > way + 1 && !self.0[reach - 1].is_alive(clock) {
            reach -= 1;
        }
        let Identity { queue, psn, deadline } = packet;
        self.0[way] = Entry { queue, psn: psn | USED, deadline, order };
        self.0[0].psn = self.0[0].psn & !REACH | (reach as u32) << REACH_AT;
    }
}

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
    groups: Box<[Group]>,
    secret: u64,
}

impl History {
    /// With this many places, rounded up to a power of two.
    pub fn new(secret: u64, places: usize) -> History {
        let places = places.clamp(WAYS, HISTORY_MAX).next_power_of_two();
        History { groups: vec![Group([VACANT; WAYS]); places / WAYS].into_boxed_slice(), secret }
    }

    /// Bytes that it has allocated.
    pub fn allocated(&self) -> usize {
        size_of_val(&*self.groups)
    }

    fn group(&self, packet: Identity) -> usize {
        let value = u64::from(packet.queue) << 32 | u64::from(packet.psn);
        // Two rounds of a multiply and fold under the secret.
        let mut mixed = value ^ self.secret;
        for factor in [0x9e37_79b9_7f4a_7c15_u64, 0xd1b5_4a32_d192_ed03] {
            let product = u128::from(mixed) * u128::from(factor ^ self.secret.rotate_left(32) | 1);
            mixed = product as u64 ^ (product >> 64) as u64;
        }
        mixed as usize & (self.groups.len() - 1)
    }

    /// Asks for what [`History::find`] reads first.
    #[inline]
    pub fn prefetch(&self, packet: Identity) {
        prefetch(&self.groups[self.group(packet)]);
    }

    /// What is known of a packet, at a time in microseconds.
    pub fn find(&self, packet: Identity, clock: u32) -> Found {
        let index = self.group(packet);
        let group = &self.groups[index];
        let reach = group.reach();
        let mut place = (reach < WAYS).then_some(reach);
        let mut shared = 0;
        for (way, entry) in group.0[..reach].iter().enumerate().rev() {
            if !entry.is_alive(clock) {
                place = Some(way);
                continue;
            }
            if entry.queue == packet.queue {
                shared += 1;
                if entry.is_of(packet) {
                    return Found::Executed(entry.order);
                }
            }
        }
        place.filter(|_| shared < SHARE).map_or(Found::Full, |way| Found::Place(index * WAYS + way))
    }

    /// Notes something else of a packet that is remembered than its order. False when it is not.
    pub fn note(&mut self, packet: Identity, what: u32, clock: u32) -> bool {
        let index = self.group(packet);
        let group = &mut self.groups[index];
        let reach = group.reach();
        let mut entries = group.0[..reach].iter_mut();
        let entry = entries.find(|entry| entry.is_of(packet) && entry.is_alive(clock));
        entry.map(|entry| entry.order = what).is_some()
    }

    /// Remembers a packet at the place that was found for it at this time.
    pub fn keep(&mut self, place: usize, packet: Identity, order: u32, clock: u32) {
        self.groups[place / WAYS].take(place % WAYS, packet, order, clock);
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
            history.keep(place, one, 77, clock);
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
                    history.keep(place, packet(queue, psn, 100), psn, 50);
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

    /// Against a list of all that was kept: of few groups, so that they are full, and empty again.
    #[test]
    fn what_is_found_is_what_was_kept() {
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut history = History::new(seed, 4 * WAYS);
            let (mut clock, mut kept) = (u32::MAX - 3000, Vec::<(Identity, u32)>::new());
            let (mut full, mut places) = (0, 0);
            for n in 0..4000_u32 {
                // Rows of packets at once, and silences in which all die.
                clock = clock.wrapping_add(if rng.u32(0..200) == 0 { 400 } else { rng.u32(0..3) });
                kept.retain(|(one, _)| one.deadline.wrapping_sub(clock) as i32 >= 0);
                let one = match rng.u32(0..3) {
                    0 if !kept.is_empty() => kept[rng.usize(0..kept.len())].0,
                    _ => packet(rng.u32(0..9), rng.u32(0..1 << 25), clock.wrapping_add(rng.u32(0..200))),
                };
                let known = kept.iter().find(|(other, _)| *other == one);
                match (history.find(one, clock), known) {
                    (Found::Executed(order), Some((_, kept))) => assert_eq!(order, *kept, "seed {seed}, {n}"),
                    (Found::Place(place), None) => {
                        history.keep(place, one, n, clock);
                        kept.push((one, n));
                        places += 1;
                    }
                    (Found::Full, None) => full += 1,
                    (found, known) => panic!("seed {seed}, {n}: {found:?} where {known:?} was kept"),
                }
                if let Some((other, order)) = kept.first_mut().filter(|_| n % 7 == 0) {
                    *order = n;
                    assert!(history.note(*other, n, clock), "seed {seed}, {n}");
                }
            }
            assert!(full > 10 && places > 500, "seed {seed}: {full} had no room, {places} had");
        }
    }

    #[test]
    fn a_group_reaches_only_as_far_as_what_it_remembers() {
        let mut history = History::new(1, WAYS);
        let keep = |history: &mut History, psn, deadline, clock| {
            let Found::Place(place) = history.find(packet(psn, psn, deadline), clock) else { panic!("room") };
            history.keep(place, packet(psn, psn, deadline), psn, clock);
            (place, history.groups[0].reach())
        };
        for n in 0..WAYS {
            assert_eq!(keep(&mut history, n as u32, 100 + n as u32, 50), (n, n + 1));
        }
        assert_eq!(history.find(packet(99, 99, 200), 50), Found::Full);
        // The lowest free place is taken; those behind the last that lives are given up.
        assert_eq!(keep(&mut history, 20, 300, 103), (0, WAYS));
        assert_eq!(keep(&mut history, 21, 300, 116), (1, 2));
        assert_eq!(history.find(packet(20, 20, 300), 116), Found::Executed(20));
        assert_eq!(keep(&mut history, 22, 400, 301), (0, 1));
    }
}
