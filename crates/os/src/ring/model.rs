//! The ring under loom: memory whose words are loom's atomics, and whose bytes tell loom of every access, so
//! that two sides that touch a byte at the same time are found.

use crate::sync::{AtomicU32, AtomicU64};
use loom::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a line, which an entry takes whole ones of.
const LINE: usize = 64;

/// The control page's words that the ring uses.
#[derive(Debug)]
pub struct Control {
    words: [(usize, AtomicU64); 2],
    flags: [(usize, AtomicU32); 2],
}

impl Control {
    pub(crate) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        self.words.iter().find(|(at, _)| *at == offset).map(|(_, word)| word).expect("a word of the ring's")
    }

    pub(crate) fn u32_at(&self, offset: usize) -> &AtomicU32 {
        self.flags.iter().find(|(at, _)| *at == offset).map(|(_, flag)| flag).expect("a flag of the ring's")
    }
}

/// Memory of few lines.
#[derive(Debug)]
struct Memory {
    control: Control,
    /// The first word of each line.
    words: Vec<AtomicU64>,
    /// The other bytes, line by line.
    lines: Vec<UnsafeCell<[u8; LINE]>>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

/// What stands for a mapped mirror.
#[derive(Clone, Debug)]
pub struct Mirror(Arc<Memory>);

impl Mirror {
    /// Zeroed memory of so many lines.
    pub(crate) fn of_lines(lines: usize) -> Mirror {
        assert!(lines.is_power_of_two());
        let control = Control {
            words: [super::TAIL_AT, super::HEAD_AT].map(|at| (at, AtomicU64::new(0))),
            flags: [super::WAITS_AT, super::SLEEPS_AT].map(|at| (at, AtomicU32::new(0))),
        };
        Mirror(Arc::new(Memory {
            control,
            words: (0..lines).map(|_| AtomicU64::new(0)).collect(),
            lines: (0..lines).map(|_| UnsafeCell::new([0; LINE])).collect(),
        }))
    }

    pub(crate) fn control(&self) -> &Control {
        &self.0.control
    }

    pub(crate) fn data_len(&self) -> usize {
        self.0.lines.len() * LINE
    }

    /// Only hints are given addresses.
    pub(crate) fn data(&self) -> *mut u8 {
        std::ptr::null_mut()
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index.is_multiple_of(LINE));
        &self.0.words[index / LINE]
    }

    /// The lines of a range that may wrap around: each with the range's part that lies in it, and where.
    fn lines(&self, index: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
        let lines = self.0.lines.len();
        let mut done = 0;
        std::iter::from_fn(move || {
            let (line, place) = ((index + done) / LINE % lines, (index + done) % LINE);
            let part = done..len.min(done + LINE - place);
            done = part.end;
            (!part.is_empty()).then_some((line, part, place))
        })
    }

    pub(crate) unsafe fn copy_in(&self, index: usize, bytes: &[u8]) {
        for (line, part, place) in self.lines(index, bytes.len()) {
            let bytes = &bytes[part];
            // SAFETY: loom has seen that nobody else is at this line.
            self.0.lines[line]
                .with_mut(|line| unsafe { (&mut *line)[place..][..bytes.len()].copy_from_slice(bytes) });
        }
    }

    pub(crate) unsafe fn copy_out(&self, index: usize, out: *mut u8, len: usize) {
        for (line, part, place) in self.lines(index, len) {
            self.0.lines[line].with(|line| {
                // SAFETY: loom has seen that nobody writes this line.
                let bytes = unsafe { &(&*line)[place..][..part.len()] };
                // SAFETY: the caller gives room for `len` bytes.
                unsafe { out.add(part.start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            });
        }
    }
}

#[cfg(test)]
mod loom_models {
    use super::super::*;
    use super::*;
    use crate::sync::{fence_at, with_planted};
    use loom::thread;

    fn pair(lines: usize) -> (Producer, Consumer) {
        let mirror = Mirror::of_lines(lines);
        (Producer::new(mirror.clone()), Consumer::new(mirror))
    }

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    /// The next frame's bytes, which are all alike.
    fn take(consumer: &mut Consumer) -> Option<u8> {
        let mut room = [0; 256];
        let (frame, taken) = consumer.peek().expect("an honest producer")?;
        let bytes = frame.copy_into(&mut room).expect("a short frame");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
        let first = bytes[0];
        consumer.skip(taken);
        Some(first)
    }

    /// Frames arrive whole and in order, in bursts of one and of two.
    fn frames_arrive() {
        model(|| {
            let (mut producer, mut consumer) = pair(4);
            let sender = thread::spawn(move || {
                for (number, publish) in [(1, true), (2, false), (3, true)] {
                    assert_eq!(producer.push_bytes(&[number; 4], 0), Ok(true));
                    if publish {
                        producer.publish();
                    }
                }
            });
            let mut seen = 0;
            for _ in 0..3 {
                match take(&mut consumer) {
                    Some(number) => {
                        assert_eq!(number, seen + 1);
                        seen = number;
                    }
                    None => thread::yield_now(),
                }
            }
            sender.join().unwrap();
            while let Some(number) = take(&mut consumer) {
                assert_eq!(number, seen + 1);
                seen = number;
            }
            assert_eq!(seen, 3);
        });
    }

    #[test]
    fn what_is_shown_is_whole() {
        frames_arrive();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_word_that_does_not_carry_its_bytes_is_found() {
        with_planted(Plant::Publish, frames_arrive);
    }

    /// Bytes of a frame that takes three lines.
    const THREE_LINES: usize = 3 * LINE - WORD;

    /// Room is written again only once it has been read. In a ring of four lines the second of two frames
    /// that take three each wraps around into the room of the first.
    fn room_is_reused() {
        model(|| {
            let (mut producer, mut consumer) = pair(4);
            let sender = thread::spawn(move || {
                let mut sent = 0;
                for _ in 0..3 {
                    if producer.push_bytes(&[sent + 1; THREE_LINES], 0).expect("an honest consumer") {
                        producer.publish();
                        sent += 1;
                    } else {
                        thread::yield_now();
                    }
                }
                sent
            });
            let mut seen = 0;
            for _ in 0..3 {
                match take(&mut consumer) {
                    Some(number) => {
                        assert_eq!(number, seen + 1);
                        seen = number;
                        consumer.release();
                    }
                    None => thread::yield_now(),
                }
            }
            let sent = sender.join().unwrap();
            assert!(sent >= seen && sent >= 1);
        });
    }

    #[test]
    fn room_is_not_reused_before_it_was_read() {
        room_is_reused();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_head_that_does_not_carry_the_reading_is_found() {
        with_planted(Plant::Release, room_is_reused);
    }

    /// A producer that was told to wait is told of room.
    fn who_waits_is_told() {
        model(|| {
            let (mut producer, mut consumer) = pair(2);
            assert_eq!(producer.push_bytes(&[1; 4], 0), Ok(true));
            producer.publish();
            let waiter = thread::spawn(move || producer.wait_for_room().expect("an honest consumer"));
            assert_eq!(take(&mut consumer), Some(1));
            let told = consumer.release();
            let waits = waiter.join().unwrap();
            assert!(told || !waits, "nobody tells it");
        });
    }

    #[test]
    fn no_waiting_producer_is_forgotten() {
        who_waits_is_told();
    }

    #[test]
    #[should_panic(expected = "nobody tells it")]
    fn a_producer_that_does_not_say_first_that_it_waits_is_found() {
        with_planted(Plant::Wait, who_waits_is_told);
    }

    #[test]
    #[should_panic(expected = "nobody tells it")]
    fn a_consumer_that_does_not_show_its_head_first_is_found() {
        with_planted(Plant::Room, who_waits_is_told);
    }

    /// A consumer that sleeps is woken for a frame. The fences are the callers': see `near` and `rings`.
    fn who_sleeps_is_woken() {
        model(|| {
            let (mut producer, consumer) = pair(2);
            let sender = thread::spawn(move || {
                assert_eq!(producer.push_bytes(&[1; 4], 0), Ok(true));
                producer.publish();
                fence_at(Plant::Room);
                producer.take_sleep()
            });
            consumer.set_sleeps(true);
            fence_at(Plant::Wait);
            let sleeps = !consumer.has_frames();
            let woken = sender.join().unwrap();
            assert!(woken || !sleeps, "it sleeps for ever");
        });
    }

    #[test]
    fn no_sleeping_consumer_is_forgotten() {
        who_sleeps_is_woken();
    }

    #[test]
    #[should_panic(expected = "it sleeps for ever")]
    fn a_producer_without_a_fence_is_found() {
        with_planted(Plant::Room, who_sleeps_is_woken);
    }

    #[test]
    #[should_panic(expected = "it sleeps for ever")]
    fn a_consumer_without_a_fence_is_found() {
        with_planted(Plant::Wait, who_sleeps_is_woken);
    }
}
