//! The event queue: lanes of events that are in order already, and a heap for the rest.
//!
//! Nearly every event of a network lies a fixed time ahead: a packet's arrival by its serialization and
//! propagation, a port's becoming free by the serialization. So the events of one kind come in
//! the order in which they are entered, and a FIFO (a *lane*) sorts them for nothing: one each for full
//! packets and for acknowledgements, on each kind of link. The next event is the first of the earliest
//! lane. Lanes are rings of 16-byte entries that are read and written in sequence. What belongs to no
//! lane (odd sizes, late packets, timers) waits in a heap.
//!
//! The order is (time, source), then the order of entering: a total order that does not depend on which
//! lane an event went through.

use core::cmp::Ordering;
use std::collections::BinaryHeap;

/// Lanes at most.
pub const LANES: usize = 16;
/// Lanes come in pairs: one for ports that become free, and, so much further, one for arrivals.
pub const ARRIVALS: usize = 1;
/// An event that belongs to no lane, as to none beyond it.
pub const NO_LANE: u8 = u8::MAX;
/// Time of a timer that is not set.
const NEVER: u64 = u64::MAX;
/// First key of an empty lane.
const NO_KEY: u64 = u64::MAX;
/// Bits of a key that are the source.
const SOURCE_BITS: u32 = 20;
/// Times within a span of this many ps from the base have keys: 8.8 s.
const SPAN: u64 = 1 << (63 - SOURCE_BITS);

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Picoseconds.
    pub at: u64,
    /// Who it is about: a link's end, a port, a timer.
    pub source: u32,
    /// A word for it: the packet that arrives.
    pub word: u32,
}

/// A ring of events in order.
#[derive(Clone, Debug)]
struct Lane {
    ring: Box<[Event]>,
    head: u32,
    len: u32,
    /// Key of the last event ever entered.
    last: u64,
}

const BLANK: Event = Event { at: 0, source: 0, word: 0 };

/// What events are ordered by, time relative to a base in the upper bits. Later than [`SPAN`] after the
/// base, all keys are equal, and greater than all others.
#[inline]
fn key(base: u64, at: u64, source: u32) -> u64 {
    let ahead = at.saturating_sub(base);
    if ahead >= SPAN { NO_KEY - 1 } else { ahead << SOURCE_BITS | u64::from(source) }
}

impl Lane {
    fn new() -> Lane {
        Lane { ring: vec![BLANK; 1024].into_boxed_slice(), head: 0, len: 0, last: 0 }
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        (self.head.wrapping_add(index)) as usize & (self.ring.len() - 1)
    }

    /// Adds an event at the end, where it may belong before others of the same time.
    #[cold]
    fn sort_in(&mut self, event: Event) {
        let mut index = self.len;
        self.len += 1;
        while index > 0 {
            let (here, before) = (self.slot(index), self.slot(index - 1));
            let other = self.ring[before];
            if (other.at, other.source) <= (event.at, event.source) {
                break;
            }
            self.ring[here] = other;
            index -= 1;
        }
        let slot = self.slot(index);
        self.ring[slot] = event;
    }

    #[cold]
    fn grow(&mut self) {
        let mut ring = vec![BLANK; self.ring.len() * 2].into_boxed_slice();
        for index in 0..self.len {
            ring[index as usize] = self.ring[self.slot(index)];
        }
        self.ring = ring;
        self.head = 0;
    }
}

/// An event of the heap; the earliest is the greatest. Packed, because packets of odd sizes each have one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))]
struct Odd {
    at: u64,
    /// The source, and below it the place in the order of entering: 2^44 events are weeks of a run.
    order: u64,
    word: u32,
}

const _: () = assert!(core::mem::size_of::<Odd>() == 20);

impl Odd {
    fn event(&self) -> Event {
        Event { at: self.at, source: (self.order >> (64 - SOURCE_BITS)) as u32, word: self.word }
    }
}

impl Ord for Odd {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        // One number: its comparison has no branch in the middle.
        let key = |odd: &Odd| u128::from(odd.at) << 64 | u128::from(odd.order);
        key(other).cmp(&key(self))
    }
}

impl PartialOrd for Odd {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The event queue: what is to happen, in the order of its time.
pub struct Events {
    /// Key of each lane's first event.
    heads: [u64; LANES],
    lanes: [Lane; LANES],
    /// Lanes in use: a multiple of four.
    used: usize,
    /// What keys count from, in ps.
    base: u64,
    /// Key of the heap's first event, or an earlier one.
    heap_min: u64,
    heap: BinaryHeap<Odd>,
    sequence: u64,
    /// First source that is a timer, and when each timer is set to.
    timer_base: u32,
    timers: Vec<u64>,
    popped: u64,
    /// The lane that an event was taken from last.
    lane: usize,
}

impl Events {
    /// A queue of `lanes` lanes, in which the sources from `timer_base` on are timers, `timers` of them.
    pub fn new(lanes: usize, timer_base: u32, timers: u32) -> Events {
        assert!(timer_base as u64 + u64::from(timers) < 1 << SOURCE_BITS, "sources fit a key");
        assert!(lanes <= LANES, "no more lanes than there may be");
        Events {
            heads: [NO_KEY; LANES],
            lanes: core::array::from_fn(|_| Lane::new()),
            used: lanes.max(1).next_multiple_of(4),
            base: 0,
            heap_min: NO_KEY,
            heap: BinaryHeap::new(),
            sequence: 0,
            timer_base,
            timers: vec![NEVER; timers as usize],
            popped: 0,
            lane: 0,
        }
    }

    /// Events taken out so far.
    pub fn popped(&self) -> u64 {
        self.popped
    }

    /// An event of a source at a time would come before all that are entered.
    #[inline]
    pub fn would_be_first(&self, at: u64, source: u32) -> bool {
        let key = key(self.base, at, source);
        key < NO_KEY - 1 && key < self.heap_min && key < self.earliest().1
    }

    /// An event was handled that nobody entered, because it [was the next](Events::would_be_first).
    pub fn passed_by(&mut self) {
        self.popped += 1;
    }

    /// Enters an event that nobody takes back, into a lane whose events are not later, or into none.
    #[inline(always)]
    pub fn push(&mut self, lane: impl Into<usize>, at: u64, source: u32, word: u32) {
        let event = Event { at, source, word };
        let lane = lane.into();
        if lane >= self.used {
            return self.push_heap(event);
        }
        if at - self.base >= SPAN {
            return self.push_heap(event);
        }
        let this = (at - self.base) << SOURCE_BITS | u64::from(source);
        let row = &mut self.lanes[lane];
        if this < row.last || row.len as usize == row.ring.len() {
            return self.push_odd(lane, event);
        }
        row.last = this;
        let slot = row.slot(row.len);
        row.ring[slot] = event;
        row.len += 1;
        if row.len == 1 {
            self.heads[lane] = this;
        }
    }

    #[cold]
    fn push_odd(&mut self, lane: usize, event: Event) {
        let row = &mut self.lanes[lane];
        if row.len as usize == row.ring.len() {
            row.grow();
        }
        let this = key(self.base, event.at, event.source);
        if row.last >> SOURCE_BITS > this >> SOURCE_BITS {
            return self.push_heap(event);
        }
        row.last = row.last.max(this);
        row.sort_in(event);
        let first = row.ring[row.slot(0)];
        self.heads[lane] = key(self.base, first.at, first.source);
    }

    /// Counts keys from `at` on; no event is earlier.
    #[cold]
    fn rebase(&mut self, at: u64) {
        self.base = at;
        for (row, head) in self.lanes.iter_mut().zip(&mut self.heads) {
            row.last = 0;
            *head = NO_KEY;
            if row.len > 0 {
                let (first, last) = (row.ring[row.slot(0)], row.ring[row.slot(row.len - 1)]);
                *head = key(at, first.at, first.source);
                row.last = key(at, last.at, last.source);
            }
        }
        self.heap_min = self.heap.peek().map_or(NO_KEY, |odd| key(at, odd.at, odd.event().source));
    }

    #[cold]
    fn push_heap(&mut self, event: Event) {
        self.heap_min = self.heap_min.min(key(self.base, event.at, event.source));
        assert!(self.sequence < 1 << (64 - SOURCE_BITS), "events that fit no lane are counted in 44 bits");
        let order = u64::from(event.source) << (64 - SOURCE_BITS) | self.sequence;
        self.heap.push(Odd { at: event.at, order, word: event.word });
        self.sequence += 1;
    }

    /// When a timer is set to; `u64::MAX` when it is not.
    #[inline]
    pub fn timer(&self, source: u32) -> u64 {
        self.timers[(source - self.timer_base) as usize]
    }

    /// Sets a timer, or moves it.
    pub fn set_timer(&mut self, source: u32, at: u64) {
        let timer = &mut self.timers[(source - self.timer_base) as usize];
        if *timer != at {
            *timer = at;
            self.push_heap(Event { at, source, word: 0 });
        }
    }

    /// Unsets a timer. Its entry is found stale when its time comes.
    pub fn cancel_timer(&mut self, source: u32) {
        self.timers[(source - self.timer_base) as usize] = NEVER;
    }

    /// The lane whose first event is the earliest, and that event's key.
    #[inline]
    fn earliest(&self) -> (usize, u64) {
        let four = |base: usize| {
            let h = &self.heads[base..base + 4];
            let a = if h[1] < h[0] { (base + 1, h[1]) } else { (base, h[0]) };
            let b = if h[3] < h[2] { (base + 3, h[3]) } else { (base + 2, h[2]) };
            if b.1 < a.1 { b } else { a }
        };
        let mut first = four(0);
        let mut base = 4;
        while base < self.used {
            let other = four(base);
            if other.1 < first.1 {
                first = other;
            }
            base += 4;
        }
        first
    }

    /// Takes out the next event, if it is due by `end`.
    #[inline]
    pub fn pop(&mut self, end: u64) -> Option<Event> {
        let (lane, first) = self.earliest();
        if self.heap_min <= first {
            return self.pop_with_heap(lane, first, end);
        }
        self.take(lane, end)
    }

    /// Takes the first event out of a lane, if it is due by `end`.
    #[inline(always)]
    fn take(&mut self, lane: usize, end: u64) -> Option<Event> {
        let row = &mut self.lanes[lane];
        let Event { at, source, word } = row.ring[row.slot(0)];
        if at > end {
            return None;
        }
        row.head = row.head.wrapping_add(1);
        row.len -= 1;
        let next = row.ring[row.slot(0)];
        self.lane = lane;
        // What a lane holds lies within the span.
        let after = next.at.wrapping_sub(self.base) << SOURCE_BITS | u64::from(next.source);
        self.heads[lane] = if row.len == 0 { NO_KEY } else { after };
        self.popped += 1;
        Some(Event { at, source, word })
    }

    /// Whether the lane that an event was taken from last is one of arrivals.
    #[inline(always)]
    pub(crate) fn lane_has_arrivals(&self) -> bool {
        self.lane & 1 == ARRIVALS
    }

    /// The event so many places behind the one that was taken from a lane last; where the lane is shorter, an
    /// old one.
    #[inline(always)]
    pub(crate) fn ahead(&self, places: u32) -> Event {
        let row = &self.lanes[self.lane];
        row.ring[row.slot(places)]
    }

    /// Four of these, each so many places behind the one before.
    #[inline(always)]
    pub(crate) fn four_ahead(&self, step: u32) -> [Event; 4] {
        [self.ahead(step), self.ahead(2 * step), self.ahead(3 * step), self.ahead(4 * step)]
    }

    #[cold]
    fn pop_with_heap(&mut self, lane: usize, first: u64, end: u64) -> Option<Event> {
        while let Some(event) = self.heap.peek().map(Odd::event) {
            if event.source >= self.timer_base && self.timer(event.source) != event.at {
                self.heap.pop();
                continue;
            }
            self.heap_min = key(self.base, event.at, event.source);
            if first < self.heap_min {
                break;
            }
            if event.at > end {
                return None;
            }
            self.heap.pop();
            if event.source >= self.timer_base {
                self.cancel_timer(event.source);
            }
            self.popped += 1;
            // Far from the base, so that lanes can be used again.
            if event.at - self.base >= SPAN / 2 {
                self.rebase(event.at);
            } else {
                let next = self.heap.peek();
                self.heap_min = next.map_or(NO_KEY, |odd| key(self.base, odd.at, odd.event().source));
            }
            return Some(event);
        }
        if self.heap.is_empty() {
            self.heap_min = NO_KEY;
        }
        if first == NO_KEY {
            return None;
        }
        self.take(lane, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Against an ordered map: times near and far, equal and moved, events that do not fit their lane.
    #[test]
    fn comes_out_in_order_of_time_and_source() {
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (base, timers) = (1000, 20);
            let mut queue = Events::new(4, base, timers);
            let mut model: BTreeMap<(u64, u32, u64), u32> = BTreeMap::new();
            let (mut now, mut n) = (0, 0u64);
            for _ in 0..20_000 {
                n += 1;
                match rng.u32(0..8) {
                    0..=3 => {
                        let lane = rng.u8(0..6);
                        let ahead = match lane {
                            0 => 1_334_000,
                            1 => 334_000,
                            2 => 0,
                            _ if seed % 2 == 0 => rng.u64(0..2_000_000),
                            _ => 7_000,
                        };
                        let source = rng.u32(0..base);
                        queue.push(lane, now + ahead, source, n as u32);
                        model.insert((now + ahead, source, n), n as u32);
                    }
                    4 => {
                        let source = base + rng.u32(0..timers);
                        let at = now + rng.u64(0..9_000_000);
                        model.retain(|k, _| k.1 != source);
                        if rng.u32(0..3) == 0 {
                            queue.cancel_timer(source);
                        } else {
                            queue.set_timer(source, at);
                            model.insert((at, source, 0), 0);
                        }
                    }
                    _ => {
                        let end = now + rng.u64(0..3_000_000);
                        let want = model.first_key_value().map(|(k, v)| (*k, *v)).filter(|(k, _)| k.0 <= end);
                        let got = queue.pop(end);
                        // Two events of one source at one time may come in either order here: a real
                        // source has one.
                        assert_eq!(got.map(|e| (e.at, e.source)), want.map(|(k, _)| (k.0, k.1)));
                        if let Some(event) = got {
                            let key = model
                                .iter()
                                .find(|(k, w)| (k.0, k.1, **w) == (event.at, event.source, event.word))
                                .map(|(k, _)| *k);
                            model.remove(&key.expect("an event that was entered"));
                            now = event.at;
                        }
                    }
                }
            }
        }
    }

    /// Keys count from a base that moves on: lanes work across it, however far time jumps.
    #[test]
    fn time_may_jump_beyond_a_key() {
        let mut queue = Events::new(4, 10, 2);
        let mut now = 0;
        for round in 0..40u64 {
            queue.set_timer(10, now + round * SPAN / 7);
            queue.push(0u8, now + 5, 3, 1);
            queue.push(0u8, now + 5, 2, 2);
            queue.push(1u8, now + 7, 1, 3);
            let mut seen = Vec::new();
            while let Some(event) = queue.pop(u64::MAX) {
                assert!(event.at >= now);
                now = event.at;
                seen.push(event.source);
            }
            let timer_first = round == 0;
            assert_eq!(seen, if timer_first { [10, 2, 3, 1] } else { [2, 3, 1, 10] });
        }
        assert!(now > 50 * SPAN);
        // A pop that comes to nothing leaves the event where it is.
        queue.push(0u8, now + 5, 3, 1);
        assert_eq!(queue.pop(now + 4), None);
        assert_eq!(queue.pop(now + 5).map(|e| e.source), Some(3));
        assert_eq!(queue.pop(u64::MAX), None);
    }
}
