//! Faults on demand: loss, duplication, reordering, corruption, delay and congestion marks of frames, decided
//! by a seed.
//!
//! The decisions about the n-th frame of a direction depend on the seed, the direction and n alone, so two
//! runs with one seed and the same sequence of frames harm the same frames in the same way.

use crate::choice::Choice;
use adverb_wire::{Duration, Flow, FrameMut, Instant};
use fastrand::Rng;
use std::collections::VecDeque;
use std::time::Duration as StdDuration;

/// Later frames that overtake a reordered one, at most.
const OVERTAKERS_MAX: u64 = 8;
/// A reordered frame leaves after this long even if nothing overtakes it.
const HELD_MAX: Duration = Duration::from_us(300);
/// Frames kept back per direction. Delayed frames beyond are lost, as in a full queue.
const KEPT_MAX: usize = 1 << 16;

/// Which way of frames the faults apply to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// Frames that arrive.
    Rx,
    /// Frames that leave.
    Tx,
    /// Both.
    #[default]
    Both,
}

impl Direction {
    /// Whether faults apply to arriving frames.
    pub fn rx(self) -> bool {
        self != Direction::Tx
    }

    /// Whether faults apply to leaving frames.
    pub fn tx(self) -> bool {
        self != Direction::Rx
    }
}

impl Choice for Direction {
    const ALL: &'static [Self] = &[Direction::Rx, Direction::Tx, Direction::Both];

    fn name(self) -> &'static str {
        match self {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
            Direction::Both => "both",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Direction::Rx => "Received packets",
            Direction::Tx => "Sent packets",
            Direction::Both => "Both",
        }
    }
}

/// What is done to frames. The default harms none.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// Probability that a frame is lost, `0.0..=1.0`.
    pub loss: f64,
    /// Probability that a frame comes twice.
    pub duplicate: f64,
    /// Probability that a frame is overtaken by up to eight later ones.
    pub reorder: f64,
    /// Probability that one to three bits of a frame flip.
    pub corrupt: f64,
    /// Probability that an ECN-capable frame is marked as having met congestion.
    pub mark: f64,
    /// Added to the way of every frame.
    pub delay: StdDuration,
    /// Which frames these faults apply to.
    pub direction: Direction,
    /// Decides which frames are harmed; by default another one each time.
    pub seed: Option<u64>,
}

impl Faults {
    /// The faults that are probabilities, by name.
    pub fn probabilities(&self) -> [(&'static str, f64); 5] {
        let Faults { loss, duplicate, reorder, corrupt, mark, .. } = *self;
        [("loss", loss), ("duplicate", duplicate), ("reorder", reorder), ("corrupt", corrupt), ("mark", mark)]
    }

    /// Whether any frame may be harmed.
    pub fn any(&self) -> bool {
        self.probabilities().iter().any(|(_, chance)| *chance > 0.0) || !self.delay.is_zero()
    }

    /// Whether each probability is one.
    pub fn are_probabilities(&self) -> bool {
        self.probabilities().iter().all(|(_, chance)| (0.0..=1.0).contains(chance))
    }
}

/// A frame on its way through the faults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parcel<T> {
    /// The packet from its IP header on.
    pub bytes: Vec<u8>,
    /// Offset of the BTH: bits before it are not flipped, so that corrupt frames still arrive.
    pub bth_at: usize,
    /// What the port wants to know when the frame goes on.
    pub tag: T,
    /// Its ICRC is known to be right.
    pub is_sound: bool,
}

impl<T> Parcel<T> {
    /// A frame of whose ICRC nothing is known.
    pub fn unchecked(bytes: Vec<u8>, bth_at: usize, tag: T) -> Parcel<T> {
        Parcel { bytes, bth_at, tag, is_sound: false }
    }
}

/// What was done to the frames of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Frames dropped.
    pub lost: u64,
    /// Frames sent on twice.
    pub duplicated: u64,
    /// Frames held back to be overtaken.
    pub reordered: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
    /// ECN-capable frames marked as having met congestion.
    pub marked: u64,
}

/// The faults of one direction.
#[derive(Debug)]
pub struct Lane<T> {
    /// None, where they are for the other direction.
    faults: Faults,
    delay: Duration,
    seed: u64,
    /// Frames seen.
    index: u64,
    /// Frames to be overtaken: until which frame, until when.
    held: Vec<(u64, Instant, Parcel<T>)>,
    /// Frames in order, with the time at which they go on.
    queue: VecDeque<(Instant, Parcel<T>)>,
    counts: FaultCounts,
}

impl<T: Clone> Lane<T> {
    /// The lane of arriving (`Rx`) or leaving (`Tx`) frames. `seed` decides where the faults name none.
    pub fn new(faults: &Faults, direction: Direction, seed: u64) -> Lane<T> {
        let is_rx = direction == Direction::Rx;
        let on = if is_rx { faults.direction.rx() } else { faults.direction.tx() };
        let seed = faults.seed.unwrap_or(seed);
        let faults = if on { *faults } else { Faults::default() };
        Lane {
            faults,
            delay: Duration::from_ns(faults.delay.as_nanos() as u64),
            seed: seed ^ if is_rx { 0x5851_f42d_4c95_7f2d } else { 0 },
            index: 0,
            held: Vec::new(),
            queue: VecDeque::new(),
            counts: FaultCounts::default(),
        }
    }

    /// Takes a frame in; what becomes of it comes out of [`next`](Self::next).
    pub fn admit(&mut self, now: Instant, mut parcel: Parcel<T>) {
        // Multiplying by an odd constant keeps neighbouring frames' generators apart.
        let mut rng = Rng::with_seed(self.seed ^ self.index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let Faults { loss, duplicate, reorder, corrupt, mark, .. } = self.faults;
        let [lost, twice, late, corrupt] = [loss, duplicate, reorder, corrupt].map(|p| rng.f64() < p);
        let overtakers = rng.u64(1..=OVERTAKERS_MAX);
        let marked = mark > 0.0 && rng.f64() < mark;
        let index = self.index;
        self.index += 1;
        if marked && mark_congestion(&mut parcel.bytes) {
            self.counts.marked += 1;
        }
        if lost || self.queue.len() >= KEPT_MAX {
            self.counts.lost += 1;
        } else {
            if twice {
                self.counts.duplicated += 1;
                self.queue.push_back((now + self.delay, parcel.clone()));
            }
            if corrupt {
                self.counts.corrupted += 1;
                flip_bits(&mut rng, &mut parcel);
            }
            if late && self.held.len() < KEPT_MAX {
                self.counts.reordered += 1;
                self.held.push((index + overtakers, now + HELD_MAX, parcel));
            } else {
                self.queue.push_back((now + self.delay, parcel));
            }
        }
        self.release(now);
    }

    /// Lets go of the held frames that enough others have overtaken, or that waited long enough.
    fn release(&mut self, now: Instant) {
        let last = self.index.saturating_sub(1);
        let mut i = 0;
        while i < self.held.len() {
            let (until, deadline, _) = &self.held[i];
            if *until <= last || *deadline <= now {
                let (_, _, parcel) = self.held.remove(i);
                self.queue.push_back((now + self.delay, parcel));
            } else {
                i += 1;
            }
        }
    }

    /// The next frame that goes on now.
    pub fn next(&mut self, now: Instant) -> Option<Parcel<T>> {
        if !self.held.is_empty() {
            self.release(now);
        }
        match self.queue.front() {
            Some((due, _)) if *due <= now => self.queue.pop_front().map(|(_, parcel)| parcel),
            _ => None,
        }
    }

    /// Lets everything go on at once, for a sender that ends: what it sent was on its way already.
    pub fn hurry(&mut self) {
        let held = self.held.drain(..).map(|(_, _, parcel)| (Instant::ZERO, parcel));
        self.queue.extend(held);
        for (due, _) in &mut self.queue {
            *due = Instant::ZERO;
        }
    }

    /// When [`next`](Self::next) will have a frame even if none is admitted before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let held = self.held.iter().map(|(_, deadline, _)| *deadline).min();
        let queued = self.queue.front().map(|(due, _)| *due);
        [held, queued].into_iter().flatten().min()
    }

    /// What was done so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }
}

/// Marks an ECN-capable packet as a congested switch does (RFC 3168). False when it is not ECN-capable.
fn mark_congestion(bytes: &mut [u8]) -> bool {
    let Ok(mut frame) = FrameMut::new(bytes) else { return false };
    let flow = frame.packet().flow;
    if flow.traffic_class & 3 == 0 {
        return false;
    }
    frame.set_flow(Flow { traffic_class: flow.traffic_class | 3, ..flow }).is_ok()
}

/// Flips one to three different bits from the BTH on.
fn flip_bits<T>(rng: &mut Rng, parcel: &mut Parcel<T>) {
    let Some(bytes) = parcel.bytes.get_mut(parcel.bth_at..).filter(|bytes| !bytes.is_empty()) else { return };
    parcel.is_sound = false;
    let bits = bytes.len() * 8;
    let mut flipped = [usize::MAX; 3];
    for i in 0..rng.usize(1..=3) {
        let bit = rng.usize(0..bits);
        if !flipped.contains(&bit) {
            flipped[i] = bit;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Faults = Faults {
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        corrupt: 0.0,
        mark: 0.0,
        delay: StdDuration::ZERO,
        direction: Direction::Both,
        seed: None,
    };

    fn at(us: u64) -> Instant {
        Instant::from_ns(us * 1000)
    }

    fn parcel(tag: u32) -> Parcel<u32> {
        Parcel { is_sound: true, ..Parcel::unchecked(vec![0; 40], 28, tag) }
    }

    /// What comes out, with how many bits are set, when `count` frames enter 1 us apart.
    fn run(faults: Faults, direction: Direction, seed: u64, count: u32) -> (Vec<(u32, u32)>, FaultCounts) {
        let mut lane = Lane::new(&faults, direction, seed);
        let mut out = Vec::new();
        for i in 0..count {
            lane.admit(at(u64::from(i)), parcel(i));
            while let Some(p) = lane.next(at(u64::from(i))) {
                assert_eq!(p.bytes[..28], [0; 28]);
                assert_eq!(p.is_sound, p.bytes == [0; 40]);
                out.push((p.tag, p.bytes.iter().map(|b| b.count_ones()).sum()));
            }
        }
        let end = at(u64::from(count)) + HELD_MAX;
        while let Some(p) = lane.next(end) {
            out.push((p.tag, p.bytes.iter().map(|b| b.count_ones()).sum()));
        }
        assert_eq!(lane.next_deadline(), None);
        (out, lane.counts())
    }

    #[test]
    fn an_ending_sender_lets_everything_go() {
        let mut lane = Lane::new(
            &Faults { delay: StdDuration::from_millis(10), reorder: 0.5, ..NONE },
            Direction::Tx,
            1,
        );
        for i in 0..20 {
            lane.admit(at(0), parcel(i));
        }
        assert!(lane.next(at(1)).is_none());
        lane.hurry();
        let mut tags: Vec<u32> = std::iter::from_fn(|| lane.next(at(1))).map(|p| p.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..20).collect::<Vec<_>>());
        assert_eq!(lane.next_deadline(), None);
    }

    #[test]
    fn any_fault_is_one_and_chances_are_bounded() {
        assert!(!NONE.any() && NONE == Faults::default());
        for harm in [
            Faults { mark: 0.1, ..NONE },
            Faults { corrupt: 1.0, ..NONE },
            Faults { delay: StdDuration::from_nanos(1), ..NONE },
        ] {
            assert!(harm.any() && harm.are_probabilities());
        }
        assert!(!Faults { loss: 1.5, ..NONE }.are_probabilities());
        assert!(!Faults { reorder: f64::NAN, ..NONE }.are_probabilities());
    }

    #[test]
    fn one_seed_makes_one_run() {
        let faults = Faults { loss: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, ..NONE };
        let first = run(faults, Direction::Tx, 7, 500);
        assert_eq!(first, run(faults, Direction::Tx, 7, 500));
        assert_eq!(first, run(Faults { seed: Some(7), ..faults }, Direction::Tx, 9, 500));
        assert_ne!(first, run(faults, Direction::Tx, 8, 500));
        assert_ne!(first, run(faults, Direction::Rx, 7, 500));
        for count in [first.1.lost, first.1.duplicated, first.1.reordered, first.1.corrupted] {
            assert!((25..100).contains(&count), "{:?}", first.1);
        }
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let all: Vec<_> = (0..100).map(|i| (i, 0)).collect();
        assert_eq!(run(NONE, Direction::Tx, 1, 100).0, all);
        assert_eq!(run(Faults { loss: 1.0, direction: Direction::Rx, ..NONE }, Direction::Tx, 1, 100).0, all);
        assert_eq!(run(Faults { loss: 1.0, ..NONE }, Direction::Tx, 1, 100).0, []);
        let (twice, _) = run(Faults { duplicate: 1.0, ..NONE }, Direction::Tx, 1, 100);
        assert_eq!(twice, all.iter().flat_map(|&f| [f, f]).collect::<Vec<_>>());
        let (corrupt, _) = run(Faults { corrupt: 1.0, ..NONE }, Direction::Tx, 1, 100);
        assert!(corrupt.iter().all(|&(_, bits)| (1..=3).contains(&bits)) && corrupt.len() == 100);
        let (late, _) = run(Faults { reorder: 0.2, ..NONE }, Direction::Tx, 1, 100);
        assert_ne!(late, all);
        let mut sorted = late.clone();
        sorted.sort();
        assert_eq!(sorted, all);
        for (place, &(tag, _)) in late.iter().enumerate() {
            assert!((place as i64 - i64::from(tag)).unsigned_abs() <= 2 * OVERTAKERS_MAX);
        }
    }

    #[test]
    fn only_ecn_capable_frames_are_marked_and_stay_valid() {
        use adverb_wire::{Gid, Packet, packet::WireExtra};
        use std::net::IpAddr;
        for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            for (class, after) in [(0, 0), (0x2e << 2, 0x2e << 2), (2, 3), (0x2e << 2 | 1, 0x2e << 2 | 3)] {
                let gid = |text: &str| Gid::from(text.parse::<IpAddr>().unwrap());
                let flow = Flow {
                    src: gid(from),
                    dst: gid(to),
                    traffic_class: class,
                    hop_limit: 64,
                    ..Flow::default()
                };
                let mut bytes = vec![0; 200];
                let len =
                    Packet { flow, ..Packet::default() }.emit_frame(&WireExtra::default(), &[], &mut bytes);
                bytes.truncate(len);
                let mut lane = Lane::new(&Faults { mark: 1.0, ..NONE }, Direction::Tx, 1);
                lane.admit(at(0), Parcel::unchecked(bytes, flow.ip_header_len() + 8, ()));
                let out = lane.next(at(0)).unwrap();
                let parsed = Packet::parse_ip(&out.bytes).unwrap();
                assert_eq!(parsed.packet.flow.traffic_class, after);
                assert!(adverb_wire::icrc::verify_ip(&out.bytes, parsed.ip_header_len));
                assert_eq!(lane.counts().marked, u64::from(class & 3 != 0));
            }
        }
    }

    #[test]
    fn delays_and_holds_end_by_the_clock() {
        let mut lane = Lane::new(&Faults { delay: StdDuration::from_micros(50), ..NONE }, Direction::Tx, 1);
        lane.admit(at(0), parcel(0));
        lane.admit(at(10), parcel(1));
        assert_eq!((lane.next(at(49)), lane.next_deadline()), (None, Some(at(50))));
        assert_eq!(lane.next(at(50)).map(|p| p.tag), Some(0));
        assert_eq!((lane.next(at(50)), lane.next_deadline()), (None, Some(at(60))));
        let mut lane = Lane::new(&Faults { reorder: 1.0, ..NONE }, Direction::Tx, 1);
        lane.admit(at(0), parcel(0));
        assert_eq!((lane.next(at(299)), lane.next_deadline()), (None, Some(at(300))));
        assert_eq!(lane.next(at(300)).map(|p| p.tag), Some(0));
    }
}
