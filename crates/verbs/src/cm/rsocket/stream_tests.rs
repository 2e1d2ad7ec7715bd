//! Two streams over a model of a connection: requests arrive in order, completions later, and memory is what
//! the requests have written. What is read must be what was written, whatever the order of events.

use super::*;
use crate::cm::rsocket::wire::VALUE_MAX;

/// Where each side's memory is, for its peer.
const RING: u64 = 1 << 32;
const TABLE_AT: u64 = 1 << 20;
const KEY: u32 = 77;

/// A generator, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A mistake that the test must see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// A request counts as acknowledged when it is posted, so that its bytes are written over.
    EarlyCompletion,
    /// A half is granted under the other one's address.
    OtherHalf,
    /// A receive is not given back.
    LostReceive,
    /// Read bytes are granted twice.
    DoubleGrant,
}

struct Side {
    stream: Stream,
    out: Vec<u8>,
    ring: Vec<u8>,
    table: [Target; TABLE as usize],
    mapped: Vec<Option<Mapping>>,
    /// Posted and not yet executed; executed and not yet acknowledged.
    posted: VecDeque<Post>,
    executed: usize,
    /// Messages whose completions were not looked at; receives that are posted.
    arrived: VecDeque<u32>,
    receives: u32,
    written: u64,
    read: u64,
    to_write: u64,
    grants: u32,
}

fn byte(at: u64, side: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ (side as u8) << 7
}

impl Side {
    fn new(sizes: Sizes, peer: &Connect, to_write: u64) -> Side {
        Side {
            stream: Stream::new(sizes, peer),
            out: vec![0; sizes.send as usize],
            ring: vec![0; sizes.receive as usize],
            table: [Target::default(); TABLE as usize],
            mapped: vec![None; 4],
            posted: VecDeque::new(),
            executed: 0,
            arrived: VecDeque::new(),
            receives: u32::from(sizes.receive_queue) + CONTROL_ROOM,
            written: 0,
            read: 0,
            to_write,
            grants: 0,
        }
    }

    fn write(&mut self, side: usize, want: usize, bug: Bug) {
        let table = &mut self.table;
        self.stream.look(|entry| core::mem::take(&mut table[entry as usize]));
        let want = want.min((self.to_write - self.written) as usize);
        let Some(post) = self.stream.write(want) else { return };
        let Body::Ring { at, len } = post.body else { panic!("a write has bytes") };
        for byte_of in &mut self.out[at..at + len] {
            *byte_of = byte(self.written, side);
            self.written += 1;
        }
        self.posted.push_back(post);
        if bug == Bug::EarlyCompletion && self.posted.len() == 1 && self.executed == 0 {
            self.stream.completed();
            self.stream.under_way.push_back(Posted { control: false, bytes: 0 });
            self.stream.slots -= 1;
        }
    }

    fn tell(&mut self, bug: Bug) {
        while let Some(post) = self.stream.tell() {
            self.grants += u32::from(matches!(post.body, Body::Half(_)));
            if bug == Bug::DoubleGrant && matches!(post.body, Body::Half(_)) && self.read > 0 {
                self.stream.returned += self.stream.sizes.receive as usize / 2;
            }
            self.posted.push_back(post);
        }
    }

    fn take_completion(&mut self, bug: Bug) -> Result<(), String> {
        let Some(immediate) = self.arrived.pop_front() else { return Ok(()) };
        if bug != Bug::LostReceive {
            self.receives += 1;
        }
        self.stream.received(immediate).map_err(|why| format!("{why:?}"))
    }

    fn read(&mut self, side: usize, want: usize) -> Result<(), String> {
        let (at, len) = self.stream.readable(0);
        let len = len.min(want);
        for found in &self.ring[at..at + len] {
            if *found != byte(self.read, 1 - side) {
                return Err(format!("byte {} of side {side} is wrong", self.read));
            }
            self.read += 1;
        }
        self.stream.read(len);
        Ok(())
    }
}

/// Executes the oldest request of `from` at `to`; false if its message finds no receive.
fn execute(from: &mut Side, to: &mut Side, bug: Bug) -> bool {
    let Some(post) = from.posted.front().copied() else { return true };
    if post.message.is_some() {
        if to.receives == 0 {
            return false;
        }
        to.receives -= 1;
    }
    from.posted.pop_front();
    match post.body {
        Body::Nothing => {}
        Body::Ring { at, len } => {
            let to_at = (post.addr - RING) as usize;
            to.ring[to_at..to_at + len].copy_from_slice(&from.out[at..at + len]);
        }
        Body::Half(at) => {
            let entry = from.stream.half_entry(RING + at as u64, KEY);
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| entry[at + i]));
            let index = (post.addr - TABLE_AT) as usize / TARGET_LEN;
            let mut target = Target::of_words(word(0), word(8));
            if bug == Bug::OtherHalf {
                target.addr ^= u64::from(target.len);
            }
            to.table[index] = target;
        }
        Body::Mapping(mapping) => to.mapped[mapping.index as usize] = Some(mapping),
    }
    if let Some(message) = post.message {
        to.arrived.push_back(message.emit());
    }
    from.executed += 1;
    true
}

fn connect(sizes: Sizes) -> Connect {
    Connect {
        net: false,
        credits: sizes.receive_queue,
        mappings: 4,
        table: Target { addr: TABLE_AT, key: KEY, len: TABLE },
        buffer: Target { addr: RING, key: KEY, len: sizes.receive / 2 },
    }
}

/// Both directions at once; says how many steps it took, or what went wrong.
fn run(seed: u64, bug: Bug) -> Result<u64, String> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let sizes: [Sizes; 2] = core::array::from_fn(|_| Sizes {
        send: 4096 << random.below(4),
        receive: 4096 << random.below(4),
        send_queue: 4 << random.below(5),
        receive_queue: 2 << random.below(6),
    });
    let amounts: [u64; 2] = core::array::from_fn(|_| random.below(400_000));
    let mut sides: [Side; 2] =
        core::array::from_fn(|i| Side::new(sizes[i], &connect(sizes[1 - i]), amounts[i]));
    let mut said = [false; 2];
    for step in 0..4_000_000 {
        let i = random.below(2) as usize;
        let (a, b) = sides.split_at_mut(1);
        let (own, peer) = if i == 0 { (&mut a[0], &mut b[0]) } else { (&mut b[0], &mut a[0]) };
        match random.below(8) {
            0 | 1 => own.write(i, 1 + random.below(20_000) as usize, bug),
            2 => own.tell(bug),
            // A message without a receive waits, as after an RNR NAK.
            3 | 4 => drop(execute(own, peer, bug)),
            5 if own.executed > 0 => {
                own.executed -= 1;
                own.stream.completed();
            }
            6 => own.take_completion(bug)?,
            7 => own.read(i, 1 + random.below(9000) as usize)?,
            _ => {}
        }
        if own.written == own.to_write && !said[i] {
            said[i] = true;
            own.stream.stop_writing(false);
        }
        if sides.iter().all(|side| side.stream.ended() && side.stream.unread() == 0 && side.stream.all_sent())
        {
            if sides[0].read != amounts[1] || sides[1].read != amounts[0] {
                return Err("bytes are missing at the end".into());
            }
            let needed = amounts[1] >= sizes[0].receive.into();
            assert!(!needed || sides[0].grants > 0, "more than the first buffer took a grant");
            return Ok(step);
        }
    }
    Err(format!("no end: {:?}", sides.each_ref().map(|side| (side.written, side.read, side.receives))))
}

#[test]
fn what_is_read_is_what_was_written() {
    for seed in 1..=40 {
        run(seed, Bug::None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn planted_mistakes_are_seen() {
    for bug in [Bug::EarlyCompletion, Bug::OtherHalf, Bug::LostReceive, Bug::DoubleGrant] {
        let found = (1..=40).any(|seed| {
            // Some are found by an assertion of the stream itself.
            std::panic::catch_unwind(|| run(seed, bug)).map_or(true, |ran| ran.is_err())
        });
        assert!(found, "{bug:?} goes unseen");
    }
}

const SIZES: Sizes = Sizes { send: 8192, receive: 8192, send_queue: 16, receive_queue: 16 };

fn one() -> Stream {
    Stream::new(SIZES, &connect(SIZES))
}

#[test]
fn a_peer_cannot_say_that_it_wrote_more_than_it_may() {
    let mut stream = one();
    assert_eq!(stream.received(Message::Data(4097).emit()), Err(Malformed::TooMuch));
    let mut stream = one();
    assert_eq!(stream.received(Message::Data(4096).emit()), Ok(()));
    assert_eq!(stream.received(Message::Data(1).emit()), Err(Malformed::TooMuch));
    assert_eq!(stream.received(Message::Data(VALUE_MAX).emit()), Err(Malformed::TooMuch));
    let mut stream = one();
    assert_eq!(stream.received(Message::Shutdown.emit()), Ok(()));
    assert_eq!(stream.received(Message::Data(1).emit()), Err(Malformed::Message));
    assert_eq!(stream.received(Message::Disconnect.emit()), Ok(()));
    assert_eq!(stream.received(Message::Credit(9).emit()), Err(Malformed::Message));
    assert_eq!(stream.received(0x2000_0000), Err(Malformed::Message));
}

#[test]
fn the_first_thing_told_is_the_second_half() {
    let mut stream = one();
    let post = stream.tell().expect("a grant");
    assert_eq!((post.body, post.addr), (Body::Half(4096), TABLE_AT + TARGET_LEN as u64));
    assert_eq!(post.message, Some(Message::Credit(16)));
    assert_eq!(stream.tell(), None);
}

#[test]
fn the_end_comes_behind_the_bytes_and_only_once() {
    let mut stream = one();
    assert!(stream.tell().is_some());
    assert!(stream.write(10).is_some());
    stream.stop_writing(false);
    assert!(stream.cannot_write() && stream.write(1).is_none() && !stream.all_sent());
    assert_eq!(stream.tell().and_then(|post| post.message), Some(Message::Shutdown));
    assert_eq!(stream.tell(), None);
    stream.stop_writing(true);
    assert_eq!(stream.tell().and_then(|post| post.message), Some(Message::Disconnect));
    for _ in 0..4 {
        assert!(!stream.all_sent());
        stream.completed();
    }
    assert!(stream.all_sent() && !stream.over());
    assert_eq!(stream.received(Message::Disconnect.emit()), Ok(()));
    assert!(stream.over());
}

#[test]
fn what_comes_before_the_end_can_be_read() {
    let mut stream = one();
    assert_eq!(stream.received(Message::Data(5).emit()), Ok(()));
    assert_eq!(stream.received(Message::Disconnect.emit()), Ok(()));
    assert!(stream.ended() && stream.cannot_write());
    assert_eq!(stream.readable(0), (0, 5));
    assert_eq!(stream.readable(2), (2, 3));
    stream.read(5);
    assert_eq!(stream.unread(), 0);
}

#[test]
fn a_mapping_is_told_before_later_bytes() {
    let mut stream = one();
    assert!(stream.tell().is_some());
    let target = Target { addr: 5, key: 6, len: 7 };
    stream.mapped(Mapping { index: 1, offset: 9, target });
    assert!(stream.write(1).is_none(), "it waits for the mapping");
    let post = stream.tell().expect("the mapping");
    let at = TABLE_AT + u64::from(TABLE) * TARGET_LEN as u64 + MAPPING_LEN as u64;
    assert_eq!((post.addr, post.message), (at, Some(Message::Mapped(1))));
    assert!(stream.write(1).is_some());
    let direct = stream.write_to(target, 100).expect("a direct write");
    assert_eq!((direct.addr, direct.key, direct.message), (5, 6, None));
    assert_eq!(direct.body, Body::Ring { at: 1, len: 7 });
}
