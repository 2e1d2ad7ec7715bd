//! What stands between a port and the switch: the faults of both directions, and the capture; and memory of
//! frames that is used again.

use adverb_os::capture::Capture;
use adverb_os::faults::{Direction, FaultCounts, Faults, Lane, Parcel};
use adverb_os::framing::{bth_offset, outer_flow};
use adverb_wire::{Duration, Instant};

/// Captured frames reach the file after this long.
const CAPTURE_FLUSH: Duration = Duration::from_ms(1000);

/// One port's line. Frames that the process sends are `rx`, those that it gets `tx`: as the switch sees it.
pub struct Line {
    /// None where no frame can be harmed.
    lanes: Option<[Lane<()>; 2]>,
    capture: Option<Capture>,
    flushed: Instant,
}

/// Which of the two ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Into the switch.
    Rx = 0,
    /// Out of it.
    Tx = 1,
}

/// Memory of frames that have left, for those that come.
#[derive(Debug, Default)]
pub struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Frames whose memory is kept at most.
    const MAX: usize = 64;

    /// A frame's bytes in memory of their own.
    pub fn copy(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut bytes = self.0.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        bytes
    }

    /// A frame has left.
    pub fn give(&mut self, bytes: Vec<u8>) {
        if self.0.len() < Spare::MAX {
            self.0.push(bytes);
        }
    }
}

impl Line {
    /// A line with these faults. `seed` decides where they name none.
    pub fn new(faults: &Faults, capture: Option<Capture>, seed: u64) -> Line {
        Line { lanes: lanes_of(faults, seed), capture, flushed: Instant::ZERO }
    }

    /// Other faults from now on. What the old ones have held back is to have been taken.
    pub fn set_faults(&mut self, faults: &Faults, seed: u64) {
        self.lanes = lanes_of(faults, seed);
    }

    /// Another capture from now on, or none.
    pub fn set_capture(&mut self, now: Instant, capture: Option<Capture>) {
        self.flush(now, true);
        self.capture = capture;
    }

    /// Whether nothing happens to frames here, and nobody keeps them.
    pub fn is_plain(&self) -> bool {
        self.lanes.is_none() && self.capture.is_none()
    }

    /// Takes a frame in; gives it back where nothing can happen to it.
    pub fn admit(&mut self, now: Instant, way: Way, bytes: Vec<u8>) -> Option<Vec<u8>> {
        // What comes in is captured before the faults, what leaves behind them: as seen beside the port.
        if way == Way::Rx || self.lanes.is_none() {
            self.record(now, &bytes);
        }
        let Some(lanes) = &mut self.lanes else { return Some(bytes) };
        let bth_at = bth_offset(&bytes);
        lanes[way as usize].admit(now, Parcel::unchecked(bytes, bth_at, ()));
        None
    }

    /// The next frame that the faults let go.
    pub fn next(&mut self, now: Instant, way: Way) -> Option<Vec<u8>> {
        let bytes = self.lanes.as_mut()?[way as usize].next(now)?.bytes;
        if way == Way::Tx {
            self.record(now, &bytes);
        }
        Some(bytes)
    }

    fn record(&mut self, now: Instant, bytes: &[u8]) {
        if let Some(capture) = &mut self.capture {
            let flow = outer_flow(bytes).unwrap_or_default();
            capture.record(now, flow.src, flow.dst, bytes);
        }
    }

    /// Puts what was captured into the file, if it is time or `at_once` is said.
    pub fn flush(&mut self, now: Instant, at_once: bool) {
        if let Some(capture) = &mut self.capture
            && (at_once || now.since(self.flushed) >= CAPTURE_FLUSH)
        {
            self.flushed = now;
            capture.flush();
        }
    }

    /// When something is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let lanes = self.lanes.iter().flatten().filter_map(Lane::next_deadline).min();
        let dirty = self.capture.as_ref().is_some_and(Capture::is_dirty);
        let flush = dirty.then(|| self.flushed + CAPTURE_FLUSH);
        [lanes, flush].into_iter().flatten().min()
    }

    /// What the faults did: to frames that came in, and to those that left.
    pub fn counts(&self) -> [FaultCounts; 2] {
        self.lanes.as_ref().map_or_else(Default::default, |[rx, tx]| [rx.counts(), tx.counts()])
    }
}

/// None where no frame can be harmed.
fn lanes_of(faults: &Faults, seed: u64) -> Option<[Lane<()>; 2]> {
    let lane = |direction| Lane::new(faults, direction, seed);
    faults.any().then(|| [lane(Direction::Rx), lane(Direction::Tx)])
}
