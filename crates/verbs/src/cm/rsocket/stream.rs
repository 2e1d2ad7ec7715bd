//! One connection's state, without memory, queue pair or clock: what may be sent, what is to be told to the
//! peer, what has come.
//!
//! Bytes are RDMA WRITEs into the peer's ring, in two halves that it grants one after the other, each by an
//! entry in this side's table of two. Immediate data says how many bytes a WRITE has brought. Such a message
//! takes a receive of the peer's, so each side also grants numbers of messages. What grants is not counted
//! against grants, and is bounded by itself: no more than four such messages are unacknowledged.

use super::ring::Ring;
use super::wire::{Connect, MAPPING_LEN, Malformed, Mapping, Message, TARGET_LEN, Target};
use std::collections::VecDeque;

/// Entries in this side's table of the peer's buffers.
pub(super) const TABLE: u32 = 2;
/// Messages that grant, or end the stream, which may be unacknowledged.
pub(super) const CONTROL: u32 = 4;
/// Receives beyond those that the peer has for bytes: four in flight and four more that come before the first
/// ones' receives are back.
pub(super) const CONTROL_ROOM: u32 = 2 * CONTROL;
/// Bytes of one message at most, so that a large write is under way before all of it is copied.
const PIECE: usize = 1 << 16;
/// Room below which a larger write waits: small pieces would cost a message each.
pub(super) const LOW_WATER: usize = 2048;

/// Sizes of one side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of the rings.
    pub(super) send: u32,
    pub(super) receive: u32,
    /// Requests of the send queue; messages that may come.
    pub(super) send_queue: u16,
    pub(super) receive_queue: u16,
}

/// Bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body {
    Nothing,
    /// A piece of the ring.
    Ring {
        at: usize,
        len: usize,
    },
    /// The entry that grants the half of this side's ring that begins there.
    Half(usize),
    /// The entry of a mapping.
    Mapping(Mapping),
}

/// A request to be posted: a WRITE, with a message if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Post {
    pub(super) body: Body,
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) message: Option<Message>,
}

/// A request that is under way.
#[derive(Clone, Copy)]
struct Posted {
    control: bool,
    /// Of the ring.
    bytes: usize,
}

/// How a side has said that it ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Said {
    Nothing,
    Shutdown,
    Disconnect,
}

/// One side of a connection.
pub(super) struct Stream {
    sizes: Sizes,
    /// The peer's host writes tables in network order.
    peer_net: bool,

    out: Ring,
    under_way: VecDeque<Posted>,
    /// Places left in the send queue, and those of them that are kept for messages of control.
    slots: u32,
    control: u32,
    /// Messages sent, and up to which one the peer allows; both wrap.
    sent: u16,
    allowed: u16,
    /// What is left of the peer's buffer that is being filled, and which entry has the one after it.
    target: Target,
    entry: u32,
    said: Said,
    to_say: Said,

    inward: Ring,
    /// Bytes that the peer may still write; those read that it was not given again.
    granted: usize,
    returned: usize,
    /// Which half it is given next, and where in its table.
    next_half: usize,
    peer_table: Target,
    peer_entry: u32,
    /// Messages that have come, and up to which one the peer was allowed; both wrap.
    came: u16,
    announced: u16,
    peer_said: Said,
    /// It has gone without a word.
    peer_gone: bool,
    /// This side reads no more.
    deaf: bool,

    /// The peer's table of mappings, and entries that are to be written into it.
    peer_mappings: Target,
    mappings: VecDeque<Mapping>,
}

impl Stream {
    /// The state in which both sides know each other's private data.
    pub(super) fn new(sizes: Sizes, peer: &Connect) -> Stream {
        let half = sizes.receive as usize / 2;
        let control = CONTROL.min(u32::from(sizes.send_queue) / 2);
        // Its table of mappings stands behind that of buffers.
        let behind = u64::from(peer.table.len) * TARGET_LEN as u64;
        let peer_mappings =
            Target { addr: peer.table.addr.wrapping_add(behind), key: peer.table.key, len: peer.mappings };
        Stream {
            sizes,
            peer_net: peer.net,
            out: Ring::new(sizes.send as usize),
            under_way: VecDeque::with_capacity(sizes.send_queue.into()),
            slots: u32::from(sizes.send_queue) - control,
            control,
            sent: 0,
            allowed: peer.credits,
            target: peer.buffer,
            entry: 1 % TABLE,
            said: Said::Nothing,
            to_say: Said::Nothing,
            inward: Ring::new(half * 2),
            granted: half,
            returned: half,
            next_half: half,
            peer_table: peer.table,
            peer_entry: 1 % peer.table.len,
            came: 0,
            announced: sizes.receive_queue,
            peer_said: Said::Nothing,
            peer_gone: false,
            deaf: false,
            peer_mappings,
            mappings: VecDeque::new(),
        }
    }

    /// Looks for the next buffer of the peer's, when the one before is full. `take` gives what an entry of
    /// the table has and empties it.
    pub(super) fn look(&mut self, mut take: impl FnMut(u32) -> Target) {
        if self.target.len == 0 {
            self.target = take(self.entry);
            if self.target.len > 0 {
                self.entry = (self.entry + 1) % TABLE;
            }
        }
    }

    /// Whether this side has ended its half, or the peer takes no more.
    pub(super) fn cannot_write(&self) -> bool {
        self.to_say > Said::Nothing || self.peer_closed()
    }

    /// Whether a request with a message may be posted now.
    fn may_post(&self) -> bool {
        !self.cannot_write() && self.slots > 0 && self.sent != self.allowed
    }

    /// Whether a write would take bytes now.
    pub(super) fn writable(&self) -> bool {
        self.may_post() && self.mappings.is_empty() && self.target.len > 0 && self.out.room() >= LOW_WATER
    }

    /// A piece of the ring for up to `want` bytes.
    fn piece(&self, want: usize) -> usize {
        if self.out.room() < want.min(LOW_WATER) { 0 } else { want.min(self.out.back().1).min(PIECE) }
    }

    /// The next piece of a write: its bytes are to be put into the ring, and the request posted.
    pub(super) fn write(&mut self, want: usize) -> Option<Post> {
        if !self.may_post() || !self.mappings.is_empty() {
            return None;
        }
        let len = self.piece(want).min(self.target.len as usize);
        if len == 0 {
            return None;
        }
        let post = Post {
            body: Body::Ring { at: self.out.back().0, len },
            addr: self.target.addr,
            key: self.target.key,
            message: Some(Message::Data(len as u32)),
        };
        self.target.addr = self.target.addr.wrapping_add(len as u64);
        self.target.len -= len as u32;
        self.sent = self.sent.wrapping_add(1);
        self.post(false, len);
        Some(post)
    }

    /// The next piece of a write into memory that the peer has mapped, of which nothing is told to it.
    pub(super) fn write_to(&mut self, target: Target, want: usize) -> Option<Post> {
        if self.cannot_write() || self.slots == 0 {
            return None;
        }
        let len = self.piece(want).min(target.len as usize);
        if len == 0 {
            return None;
        }
        let body = Body::Ring { at: self.out.back().0, len };
        self.post(false, len);
        Some(Post { body, addr: target.addr, key: target.key, message: None })
    }

    fn post(&mut self, control: bool, bytes: usize) {
        if control {
            self.control -= 1;
        } else {
            self.slots -= 1;
            self.out.push(bytes);
        }
        self.under_way.push_back(Posted { control, bytes });
    }

    /// The oldest request was acknowledged.
    pub(super) fn completed(&mut self) {
        let done = self.under_way.pop_front().expect("as many completions as requests");
        if done.control {
            self.control += 1;
        } else {
            self.slots += 1;
            self.out.pop(done.bytes);
        }
    }

    /// Whether the peer's NIC has all that was sent, the end included; or the peer wants nothing more.
    pub(super) fn all_sent(&self) -> bool {
        self.peer_closed() || self.under_way.is_empty() && self.to_say == self.said
    }

    /// Messages up to which the peer may send.
    fn allowance(&self) -> u16 {
        self.came.wrapping_add(self.sizes.receive_queue)
    }

    /// What is to be told to the peer now, in this order: buffers and numbers of messages, mappings, the end.
    pub(super) fn tell(&mut self) -> Option<Post> {
        if self.said == Said::Disconnect || self.peer_closed() {
            return None;
        }
        let half = self.sizes.receive as usize / 2;
        let behind = self.allowance().wrapping_sub(self.announced) >= self.sizes.receive_queue.div_ceil(2);
        // Who has ended its half needs no more.
        let due = self.peer_said == Said::Nothing && (self.returned >= half || behind);
        if self.control > 0 && due {
            return Some(self.grant(half));
        }
        if let Some(post) = self.map() {
            return Some(post);
        }
        if self.control > 0 && self.to_say > self.said {
            self.said = self.to_say;
            self.post(true, 0);
            let message = if self.said == Said::Disconnect { Message::Disconnect } else { Message::Shutdown };
            return Some(Post { body: Body::Nothing, addr: 0, key: 0, message: Some(message) });
        }
        None
    }

    fn grant(&mut self, half: usize) -> Post {
        self.announced = self.allowance();
        self.post(true, 0);
        let message = Some(Message::Credit(self.announced));
        if self.returned < half {
            return Post { body: Body::Nothing, addr: 0, key: 0, message };
        }
        let buffer = self.next_half;
        self.returned -= half;
        self.granted += half;
        self.next_half = half - self.next_half;
        let addr = self.peer_table.addr.wrapping_add(u64::from(self.peer_entry) * TARGET_LEN as u64);
        self.peer_entry = (self.peer_entry + 1) % self.peer_table.len;
        Post { body: Body::Half(buffer), addr, key: self.peer_table.key, message }
    }

    /// The bytes of the entry that grants a half, which begins at this address.
    pub(super) fn half_entry(&self, addr: u64, key: u32) -> [u8; TARGET_LEN] {
        Target { addr, key, len: self.sizes.receive / 2 }.entry(self.peer_net)
    }

    /// The bytes of the entry of a mapping.
    pub(super) fn mapping_entry(&self, mapping: &Mapping) -> [u8; MAPPING_LEN] {
        mapping.entry(self.peer_net)
    }

    fn map(&mut self) -> Option<Post> {
        if !self.may_post() {
            return None;
        }
        let mapping = self.mappings.pop_front()?;
        self.sent = self.sent.wrapping_add(1);
        self.post(false, 0);
        Some(Post {
            body: Body::Mapping(mapping),
            addr: self.peer_mappings.addr.wrapping_add(u64::from(mapping.index) * MAPPING_LEN as u64),
            key: self.peer_mappings.key,
            message: Some(Message::Mapped(mapping.index)),
        })
    }

    /// How many mappings the peer has room for.
    pub(super) fn peer_mappings(&self) -> u32 {
        self.peer_mappings.len
    }

    /// Has the peer told of memory that it may write to. Its index is below `peer_mappings`.
    pub(super) fn mapped(&mut self, mapping: Mapping) {
        assert!(mapping.index < self.peer_mappings.len, "the caller has looked");
        self.mappings.retain(|waiting| waiting.index != mapping.index);
        self.mappings.push_back(mapping);
    }

    /// A message has come.
    pub(super) fn received(&mut self, immediate: u32) -> Result<(), Malformed> {
        let message = Message::parse(immediate)?;
        if self.peer_said == Said::Disconnect {
            return Err(Malformed::Message);
        }
        match message {
            Message::Data(bytes) => {
                if self.peer_said == Said::Shutdown {
                    return Err(Malformed::Message);
                }
                let bytes = bytes as usize;
                self.granted = self.granted.checked_sub(bytes).ok_or(Malformed::TooMuch)?;
                self.inward.push(bytes);
                self.came = self.came.wrapping_add(1);
            }
            Message::Mapped(_) => self.came = self.came.wrapping_add(1),
            Message::Credit(up_to) => self.allowed = up_to,
            Message::Shutdown => self.peer_said = Said::Shutdown,
            Message::Disconnect => self.peer_said = Said::Disconnect,
            Message::Keepalive => {}
        }
        Ok(())
    }

    /// Bytes to be read.
    pub(super) fn unread(&self) -> usize {
        self.inward.len()
    }

    /// The piece of the ring that is to be read when `skip` bytes have been: where, and how many.
    pub(super) fn readable(&self, skip: usize) -> (usize, usize) {
        self.inward.piece(skip)
    }

    /// So many bytes have been read.
    pub(super) fn read(&mut self, bytes: usize) {
        self.inward.pop(bytes);
        self.returned += bytes;
    }

    /// Whether nothing comes behind what is unread.
    pub(super) fn ended(&self) -> bool {
        self.deaf || self.peer_said > Said::Nothing || self.peer_gone
    }

    /// Whether the peer has closed.
    pub(super) fn peer_closed(&self) -> bool {
        self.peer_said == Said::Disconnect || self.peer_gone
    }

    /// Whether neither side sends any more.
    pub(super) fn over(&self) -> bool {
        self.peer_closed() || self.cannot_write() && self.peer_said > Said::Nothing
    }

    /// The peer is known to be gone without a word: what it has sent can be read.
    pub(super) fn lost(&mut self) {
        self.peer_gone = true;
    }

    /// This side reads no more.
    pub(super) fn stop_reading(&mut self) {
        self.deaf = true;
    }

    /// This side sends no more; and takes no more either if it closes.
    pub(super) fn stop_writing(&mut self, close: bool) {
        self.to_say = self.to_say.max(if close { Said::Disconnect } else { Said::Shutdown });
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
