//! Frames that are staged during a round and given to the kernel together: runs of equal length on one way
//! are one message, which the kernel cuts apart.

use crate::socket::{HOP_LIMIT, Run, Socket};
use std::io;
use std::net::SocketAddr;

/// Bytes staged before the kernel gets them: a few messages of the longest. The first frame of a READ answer
/// is as long as the last one of the answer before, so both are one message where they are staged together;
/// and the kernel copies them while the caches still hold them.
const STAGED_MAX: usize = 4 * 65_600;
/// Room for them and for one frame more.
const STAGE_LEN: usize = STAGED_MAX + (6 << 10);
/// Frames that the kernel cuts out of one message (UDP_MAX_SEGMENTS), and how many it did before Linux 6.9.
const RUN_FRAMES_MAX: usize = 128;
const RUN_FRAMES_MAX_BEFORE: usize = 64;
/// Bytes of one message, below what UDP over IPv4 carries.
const RUN_BYTES_MAX: usize = 65_000;
/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Messages staged before the kernel gets them.
const RUNS_MAX: usize = 64;

/// Where a frame goes, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// Destination.
    pub to: SocketAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl Way {
    /// To a destination, without a class.
    pub fn plain(to: SocketAddr) -> Way {
        Way { to, traffic_class: 0, hop_limit: HOP_LIMIT }
    }
}

/// What became of frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Messages that the kernel took.
    pub messages: u64,
    /// Frames in them.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Frames dropped: longer than the path's MTU.
    pub too_long: u64,
    /// Frames dropped: no way there, or nobody, or not allowed.
    pub unreachable: u64,
    /// Frames dropped for other reasons.
    pub failed: u64,
}

impl Tally {
    fn count(&mut self, run: &Run) {
        self.messages += 1;
        self.frames += run.frames as u64;
        self.bytes += run.len as u64;
    }

    fn count_failure(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => self.too_long += 1,
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::ECONNREFUSED
                | libc::EACCES
                | libc::EPERM
                | libc::EAFNOSUPPORT
                | libc::EINVAL
                | libc::EADDRNOTAVAIL,
            ) => self.unreachable += 1,
            _ => self.failed += 1,
        }
    }
}

/// The first place in a buffer from which on the byte after `header_len` ones begins a cache line.
pub fn before_line(buffer: &[u8], header_len: usize) -> usize {
    let misplaced = (buffer.as_ptr().addr() + header_len) % LINE;
    (LINE - misplaced) % LINE
}

/// Frames that wait for the kernel, in the order in which it gets them.
pub struct Batch {
    stage: Box<[u8]>,
    staged: usize,
    /// Where the first frame begins.
    origin: usize,
    runs: Vec<Run>,
    /// Frames may still join the last run.
    open_run: bool,
    /// Runs before this one were sent.
    sent: usize,
    segmentation: bool,
    frames_max: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty one.
    pub fn new() -> Batch {
        Batch {
            stage: vec![0; STAGE_LEN].into_boxed_slice(),
            staged: 0,
            origin: 0,
            runs: Vec::with_capacity(RUNS_MAX),
            open_run: false,
            sent: 0,
            segmentation: true,
            frames_max: RUN_FRAMES_MAX,
        }
    }

    /// An empty one, in which what follows the first `header_len` bytes of a frame that is alone begins a
    /// cache line: no access to it straddles two.
    pub fn with_header(header_len: usize) -> Batch {
        let mut batch = Batch::new();
        batch.origin = before_line(&batch.stage, header_len);
        batch.staged = batch.origin;
        batch
    }

    /// Whether frames wait for the kernel.
    #[inline]
    pub fn has_staged(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Whether another frame of `len` bytes may be staged. Not behind a message that is as long as they come:
    /// the little that would still fit would be a message too.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        let fits = self.stage.len() - self.staged >= len && self.runs.len() < RUNS_MAX;
        fits && self.staged < STAGED_MAX
            && !self.runs.last().is_some_and(|run| self.open_run && run.len + run.segment > RUN_BYTES_MAX)
    }

    /// Where the next frame's bytes lie: for who writes them before [`Batch::stage`] tells their length.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.stage[self.staged..]
    }

    /// Takes in a frame of `len` bytes, which are written to the slice returned if they do not stand there
    /// yet. With it its number in its message, from 0.
    ///
    /// # Panics
    /// If there is no room for it.
    #[inline]
    pub fn stage(&mut self, way: &Way, len: usize) -> (u16, &mut [u8]) {
        let number = self.join_run(way, len, self.segmentation);
        (number, self.take(len))
    }

    /// The same for a frame that must be a message of its own.
    pub fn stage_alone(&mut self, way: &Way, len: usize) -> &mut [u8] {
        self.join_run(way, len, false);
        self.take(len)
    }

    /// The next frame begins a message of its own, whatever it is.
    #[inline]
    pub fn end_run(&mut self) {
        self.open_run = false;
    }

    #[inline]
    fn take(&mut self, len: usize) -> &mut [u8] {
        let start = self.staged;
        self.staged += len;
        &mut self.stage[start..start + len]
    }

    #[inline]
    fn join_run(&mut self, way: &Way, len: usize, may_join: bool) -> u16 {
        if may_join
            && self.open_run
            && let Some(run) = self.runs.last_mut()
            && run.to == way.to
            && (run.traffic_class, run.hop_limit) == (way.traffic_class, way.hop_limit)
            && len <= run.segment
            && run.frames < self.frames_max
            && run.len + len <= RUN_BYTES_MAX
        {
            let number = run.frames as u16;
            run.frames += 1;
            run.len += len;
            // A shorter frame can only be the last.
            self.open_run = len == run.segment;
            return number;
        }
        let &Way { to, traffic_class, hop_limit } = way;
        self.runs.push(Run {
            to,
            start: self.staged,
            len,
            segment: len,
            frames: 1,
            traffic_class,
            hop_limit,
        });
        self.open_run = may_join;
        0
    }

    /// Whom all that waits is for, if it is one.
    pub fn only_peer(&self) -> Option<SocketAddr> {
        let waiting = &self.runs[self.sent..];
        let first = waiting.first()?.to;
        waiting.iter().all(|run| run.to == first).then_some(first)
    }

    /// Gives frames to the kernel until it takes no more. An error is about the first message that it did not
    /// take.
    pub fn push(&mut self, socket: &Socket, tally: &mut Tally) -> Option<io::Error> {
        let (taken, error) = socket.send(&self.runs[self.sent..], &self.stage);
        self.runs[self.sent..self.sent + taken].iter().for_each(|run| tally.count(run));
        self.sent += taken;
        error
    }

    /// Gives all frames to the kernel, and drops those that it refuses. False while it takes no more: they
    /// stay staged. `renew` is called for each frame of a message that has to be sent frame by frame, before
    /// it becomes a message of its own.
    pub fn flush(&mut self, socket: &Socket, tally: &mut Tally, renew: impl Fn(&Way, &mut [u8])) -> bool {
        while self.sent < self.runs.len() {
            let Some(error) = self.push(socket, tally) else { continue };
            match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                _ if self.runs[self.sent].frames > 1 => self.send_apart(socket, tally, &renew),
                _ => {
                    tally.count_failure(&error);
                    self.sent += 1;
                }
            }
        }
        self.clear();
        true
    }

    fn clear(&mut self) {
        self.runs.clear();
        (self.sent, self.staged, self.open_run) = (0, self.origin, false);
    }

    /// Forgets the frames that the kernel has not taken; how many these were.
    pub fn give_up(&mut self) -> u64 {
        let lost = self.runs[self.sent..].iter().map(|run| run.frames as u64).sum();
        self.clear();
        lost
    }

    /// Sends the frames of a refused message one by one.
    #[cold]
    fn send_apart(&mut self, socket: &Socket, tally: &mut Tally, renew: impl Fn(&Way, &mut [u8])) {
        let run = self.runs[self.sent];
        let Run { to, traffic_class, hop_limit, .. } = run;
        self.sent += 1;
        let mut delivered = false;
        for k in 0..run.frames {
            let start = run.start + k * run.segment;
            let len = run.segment.min(run.start + run.len - start);
            renew(&Way { to, traffic_class, hop_limit }, &mut self.stage[start..start + len]);
            let one = Run { start, len, segment: len, frames: 1, ..run };
            match socket.send(&[one], &self.stage) {
                (1.., _) => {
                    tally.count(&one);
                    delivered = true;
                }
                (0, Some(error)) => tally.count_failure(&error),
                (0, None) => {}
            }
        }
        if delivered && run.frames > RUN_FRAMES_MAX_BEFORE {
            self.frames_max = RUN_FRAMES_MAX_BEFORE;
        } else {
            // A kernel or adapter that cannot cut messages apart refuses them every time.
            self.segmentation &= !delivered;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Inbox;
    use std::net::IpAddr;

    fn address(last: u8) -> SocketAddr {
        let [.., high, low] = std::process::id().to_be_bytes();
        SocketAddr::from((IpAddr::from([127, 128 + high % 64, low, last]), 4999))
    }

    /// What the kernel has brought, message by message.
    fn heard(socket: &Socket, inbox: &mut Inbox) -> Vec<(usize, Vec<u8>)> {
        crate::sys::wait_readable(socket.fd(), std::time::Duration::from_secs(5));
        let mut all = Vec::new();
        while let Ok(1..) = socket.receive(inbox) {
            all.extend(inbox.messages().map(|m| (m.segment, m.bytes.to_vec())));
        }
        all
    }

    #[test]
    fn frames_of_one_way_and_length_are_one_message() {
        let [from, to, other] = [1, 2, 3].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        let mut batch = Batch::new();
        assert!(!batch.has_staged() && batch.only_peer().is_none());
        let way = Way::plain(to);
        // Two of ten bytes, a shorter last one, and one that cannot join behind it; then one that must be
        // alone.
        let numbers = [10, 10, 4, 10].map(|len| {
            batch.room()[..len].fill(len as u8);
            batch.stage(&way, len).0
        });
        batch.stage_alone(&way, 10).fill(7);
        assert_eq!(numbers, [0, 1, 2, 0]);
        assert_eq!(batch.only_peer(), Some(to));
        let mut tally = Tally::default();
        assert!(batch.flush(&a, &mut tally, |_, _| panic!("no message was refused")));
        assert_eq!(tally, Tally { messages: 3, frames: 5, bytes: 44, ..Tally::default() });
        assert!(!batch.has_staged());
        let first = [[10; 10].as_slice(), &[10; 10], &[4; 4]].concat();
        assert_eq!(heard(&b, &mut Inbox::new()), [(10, first), (10, vec![10; 10]), (10, vec![7; 10])]);

        batch.stage(&way, 1);
        batch.stage(&Way::plain(other), 1);
        assert_eq!(batch.only_peer(), None);
    }

    #[test]
    fn what_is_given_up_is_counted_and_does_not_leave() {
        let [from, to] = [21, 22].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        let (mut batch, mut tally, way) = (Batch::new(), Tally::default(), Way::plain(to));
        batch.stage(&way, 6).1.fill(1);
        assert!(batch.push(&a, &mut tally).is_none());
        // Two in one message, and one behind them; the first one of all has left.
        [10, 4, 8].into_iter().for_each(|len| batch.stage_alone(&way, len).fill(2));
        batch.end_run();
        [10, 10].into_iter().for_each(|len| batch.stage(&way, len).1.fill(3));
        assert_eq!((batch.give_up(), batch.has_staged(), batch.give_up()), (5, false, 0));
        batch.stage(&way, 7).1.fill(4);
        assert!(batch.flush(&a, &mut tally, |_, _| {}));
        assert_eq!((tally.messages, tally.frames), (2, 2));
        assert_eq!(heard(&b, &mut Inbox::new()), [(6, vec![1; 6]), (7, vec![4; 7])]);
    }

    #[test]
    fn what_is_too_long_is_dropped_and_counted() {
        let [from, to] = [4, 5].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        let mut batch = Batch::new();
        let way = Way::plain(to);
        batch.stage_alone(&way, 65_530);
        batch.stage(&way, 3).1.fill(1);
        let mut tally = Tally::default();
        assert!(batch.flush(&a, &mut tally, |_, _| {}));
        assert_eq!(tally, Tally { messages: 1, frames: 1, bytes: 3, too_long: 1, ..Tally::default() });
        assert_eq!(heard(&b, &mut Inbox::new()), [(3, vec![1; 3])]);
    }

    #[test]
    fn what_the_kernel_does_not_cut_apart_goes_frame_by_frame_and_is_renewed() {
        let [from, to] = [7, 8].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        // Without checksums Linux refuses to cut.
        a.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let mut batch = Batch::new();
        let way = Way { traffic_class: 0x68, ..Way::plain(to) };
        let stage = |batch: &mut Batch| {
            [8, 8, 5].map(|len| {
                let (number, frame) = batch.stage(&way, len);
                frame.fill(number as u8);
                number
            })
        };
        assert_eq!(stage(&mut batch), [0, 1, 2]);
        let mut tally = Tally::default();
        assert!(batch.flush(&a, &mut tally, |to, frame| {
            assert_eq!(*to, way);
            frame.fill(9);
        }));
        assert_eq!(tally, Tally { messages: 3, frames: 3, bytes: 21, ..Tally::default() });
        assert_eq!(heard(&b, &mut Inbox::new()), [8, 8, 5].map(|len| (len, vec![9; len])));
        // It has learned: no further message is one of several frames.
        assert_eq!(stage(&mut batch), [0; 3]);
    }

    #[test]
    fn an_older_kernel_teaches_how_many_frames_it_cuts_apart() {
        let [from, to] = [11, 12].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        let stage = |batch: &mut Batch| {
            (0..128).for_each(|_| batch.stage(&Way::plain(to), 8).1.fill(1));
            batch.runs.iter().map(|run| run.frames).collect::<Vec<_>>()
        };
        // This kernel cuts it apart, or it goes frame by frame.
        let mut batch = Batch::new();
        assert_eq!(stage(&mut batch), [128]);
        let mut tally = Tally::default();
        assert!(batch.flush(&a, &mut tally, |_, _| {}));
        assert_eq!((tally.frames, tally.failed), (128, 0));
        assert_eq!(heard(&b, &mut Inbox::new()).iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), 8 * 128);
        // One that refuses whatever it is given teaches less each time.
        a.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let mut batch = Batch::new();
        for expected in [vec![128], vec![64; 2], vec![1; 64]] {
            assert_eq!(stage(&mut batch)[..expected.len()], expected);
            assert!(batch.flush(&a, &mut Tally::default(), |_, _| {}));
        }
    }

    #[test]
    fn what_follows_the_header_begins_a_cache_line() {
        let [from, to] = [9, 10].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        for header_len in [0, 1, 20, 64, 100] {
            let (mut batch, mut inbox) = (Batch::with_header(header_len), Inbox::stepwise(header_len));
            for _ in 0..2 {
                let (_, frame) = batch.stage(&Way::plain(to), 200);
                assert_eq!((frame.as_ptr().addr() + header_len) % LINE, 0);
                frame.fill(header_len as u8);
                assert!(batch.flush(&a, &mut Tally::default(), |_, _| {}));
                assert!(crate::sys::wait_readable(b.fd(), std::time::Duration::from_secs(5)));
                assert_eq!(b.receive(&mut inbox).unwrap(), 1);
                let mut came = Vec::new();
                inbox.for_each_mut(|_, _, bytes| {
                    came.push(((bytes.as_ptr().addr() + header_len) % LINE, bytes.to_vec()));
                });
                assert_eq!(came, [(0, vec![header_len as u8; 200])]);
            }
        }
    }

    /// Stages frames of these lengths as long as there is room for the longest; how many bytes.
    fn fill(batch: &mut Batch, lengths: impl IntoIterator<Item = usize>, longest: usize) -> usize {
        let way = Way::plain(address(6));
        let mut staged = 0;
        for len in lengths {
            if !batch.has_room(longest) {
                break;
            }
            batch.stage(&way, len);
            staged += len;
        }
        staged
    }

    #[test]
    fn there_is_an_end_of_room() {
        let staged = fill(&mut Batch::new(), (0..).map(|i| if i % 10 == 0 { 4001 } else { 4000 }), 4001);
        assert!((STAGED_MAX..STAGED_MAX + 4001).contains(&staged), "{staged}");
        let way = Way::plain(address(6));
        let mut batch = Batch::new();
        let alone = std::iter::from_fn(|| batch.has_room(1).then(|| batch.stage_alone(&way, 1).len()));
        assert_eq!(alone.count(), RUNS_MAX);
    }

    #[test]
    fn room_ends_where_messages_do() {
        // WRITEs of 64 KB: the first frame is longer by a header.
        for (payload, frames) in [(4096, 16), (2048, 32)] {
            let lengths = (0..).map(|i| payload + if i % frames == 0 { 32 } else { 16 });
            let mut batch = Batch::new();
            let staged = fill(&mut batch, lengths, 4352);
            assert_eq!(staged, 4 * (frames * (payload + 16) + 16), "{payload}");
            let counts: Vec<usize> = batch.runs.iter().map(|run| run.frames).collect();
            assert_eq!(counts, [2, frames - 2].repeat(4), "{payload}");
        }
        // Of 1 KB a frame, what follows the second is as long a message as there is: one WRITE at a time.
        let lengths = (0..).map(|i| 1024 + if i % 64 == 0 { 32 } else { 16 });
        let mut batch = Batch::new();
        assert_eq!(fill(&mut batch, lengths, 4352), 64 * (1024 + 16) + 16);
        assert_eq!(batch.runs.iter().map(|run| run.frames).collect::<Vec<_>>(), [2, 62]);
        // READs' answers: the last frame is as long as the first of the next one.
        let lengths = (0..).map(|i| if i % 16 == 0 || i % 16 == 15 { 4116 } else { 4112 });
        let mut batch = Batch::new();
        assert_eq!(fill(&mut batch, lengths, 4352), 4 * (16 * 4112 + 8));
        let counts: Vec<usize> = batch.runs.iter().map(|run| run.frames).collect();
        assert_eq!(counts, [2, 13, 3, 13, 3, 13, 3, 13, 1]);
        // What follows in a long one: as long a message as there is, and nothing behind it.
        let mut batch = Batch::new();
        assert_eq!(fill(&mut batch, std::iter::repeat(4112), 4352), 15 * 4112);
        assert_eq!(batch.runs.len(), 1);
    }
}
