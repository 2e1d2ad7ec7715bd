//! The receiving half's state: the message in progress, the next PSN expected, and what the peer is owed.
//! [`super::rc::responder`] and [`super::uc`] tell how it moves.

use crate::ids::PdId;
use adverb_wire::{Key, Psn, Syndrome};
use std::collections::VecDeque;

/// The message in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Message {
    /// Between messages.
    #[default]
    None,
    /// A SEND, this many bytes in.
    Send { offset: u64 },
    /// A WRITE.
    Write { va: u64, rkey: Key, len: u32, offset: u32 },
}

/// What a READ asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    /// Protection domain that the memory is checked against.
    pub pd: PdId,
    pub va: u64,
    pub rkey: Key,
    pub len: u32,
}

/// Low 24 bits: the width of an MSN.
const MSN_MASK: u32 = 0xff_ffff;

/// An answer that has not left in full. A replay answers a duplicate; the first answer may have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Read { psn: Psn, asked: Asked, packets: u32, next: u32, msn: u32, replay: bool },
    Atomic { psn: Psn, original: u64, msn: u32, replay: bool },
}

impl Answer {
    /// Next PSN to leave.
    pub(super) fn psn(&self) -> Psn {
        match *self {
            Answer::Read { psn, next, .. } => psn.add(next),
            Answer::Atomic { psn, .. } => psn,
        }
    }

    /// One past its last PSN.
    pub(super) fn end(&self) -> Psn {
        match *self {
            Answer::Read { psn, packets, .. } => psn.add(packets),
            Answer::Atomic { psn, .. } => psn.next(),
        }
    }

    pub(super) fn is_replay(&self) -> bool {
        matches!(*self, Answer::Read { replay: true, .. } | Answer::Atomic { replay: true, .. })
    }
}

/// The receiving half of a queue pair. UC uses `expected`, `message` and the receive fields only.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// [`Message`], as it needs the fewest bytes: of a SEND its offset, of a WRITE its address; and of a
    /// WRITE the rest.
    message_at: u64,
    message_rkey: Key,
    message_len: u32,
    message_offset: u32,
    message_kind: Kind,
    pub(super) expected: Psn,
    pub(super) msn: u32,
    /// The peer's program has sent something.
    pub heard: bool,
    /// A posted receive is held for the message in progress.
    pub receive_taken: bool,
    /// Whether a packet is missing at `expected`, or one was lately.
    pub(super) gap: Gap,
    pub(super) depth: u8,
    /// READ responses wait for the queue pair's rate; a timer lets them go on.
    pub held_back: bool,
    /// What kind of acknowledgement is owed, if one is, and for which PSN: [`Responder::owe`].
    pub(super) acknowledge: Option<Syndrome>,
    acknowledge_at: u32,
    /// From the first READ or atomic on.
    pending: Option<Box<Pending>>,
}

const _: () = assert!(core::mem::size_of::<Responder>() == 48);

/// What was seen of packets that did not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Gap(u8);

impl Gap {
    /// A NAK for the packet expected has been sent.
    const OPEN: u8 = u8::MAX;
    /// Acknowledgements after it until the requester's window is a large one again: by a sixteenth in each,
    /// from 8 to 256, these are 45 windows of up to four.
    const AFTER: u8 = 180;

    #[inline]
    pub fn is_open(self) -> bool {
        self.0 == Self::OPEN
    }

    pub fn open(&mut self) {
        self.0 = Self::OPEN;
    }

    /// The packet expected has come.
    #[inline]
    pub fn close(&mut self) {
        if self.is_open() {
            self.0 = Self::AFTER;
        }
    }

    /// A packet has come again: an acknowledgement is lost, or was late.
    pub fn on_duplicate(&mut self) {
        if !self.is_open() {
            self.0 = Self::AFTER;
        }
    }

    /// Whether there was one lately, by so many acknowledgements, of which this is one.
    #[inline]
    fn was_lately(&mut self) -> bool {
        let lately = self.0 > 0 && !self.is_open();
        self.0 -= u8::from(lately);
        lately
    }
}

/// What kind of message is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Kind {
    #[default]
    None,
    Send,
    Write,
}

/// What READs and atomics leave behind.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub answers: VecDeque<Answer>,
    /// The responder resources (IBTA 9.7.4.1.8): the latest READs and atomics, whose duplicates are answered.
    pub resources: VecDeque<Resource>,
}

/// A READ or atomic that was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    Read { psn: Psn, asked: Asked },
    Atomic { psn: Psn, original: u64 },
}

/// Where a responder goes on after it was taken off, with nothing owed and no message in progress.
#[derive(Debug, Default)]
pub(crate) struct Resume {
    expected: Psn,
    msn: u32,
    heard: bool,
    depth: u8,
    /// Answers whose requests may come once more.
    pending: Option<Box<Pending>>,
}

impl Resume {
    /// Next PSN expected.
    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// READs and atomics that may be unanswered.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// The peer goes on at another PSN.
    pub fn go_on_at(&mut self, expected: Psn) {
        self.expected = expected;
    }
}

#[cold]
fn first_pending() -> Box<Pending> {
    Box::default()
}

impl Responder {
    /// One that goes on where another one was taken off.
    pub fn resume(from: Resume) -> Responder {
        let Resume { expected, msn, heard, depth, pending } = from;
        Responder { expected, msn, heard, depth, pending, ..Responder::default() }
    }

    /// What of it outlives it.
    pub fn into_resume(self) -> Resume {
        assert!(!self.has_output() && !self.receive_taken, "a responder that owes something cannot go");
        let Responder { expected, msn, heard, depth, pending, .. } = self;
        Resume { expected, msn, heard, depth, pending }
    }

    /// Sets the first PSN expected (transition to RTR).
    pub fn set_expected(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// Next PSN expected.
    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// The message in progress.
    #[inline]
    pub fn message(&self) -> Message {
        match self.message_kind {
            Kind::None => Message::None,
            Kind::Send => Message::Send { offset: self.message_at },
            Kind::Write => Message::Write {
                va: self.message_at,
                rkey: self.message_rkey,
                len: self.message_len,
                offset: self.message_offset,
            },
        }
    }

    /// So far the message in progress has come.
    #[inline]
    pub fn set_message(&mut self, message: Message) {
        match message {
            Message::None => self.message_kind = Kind::None,
            Message::Send { offset } => {
                self.message_kind = Kind::Send;
                self.message_at = offset;
            }
            Message::Write { va, rkey, len, offset } => {
                self.message_kind = Kind::Write;
                self.message_at = va;
                (self.message_rkey, self.message_len, self.message_offset) = (rkey, len, offset);
            }
        }
    }

    /// Sets how many READs and atomics may be unanswered.
    pub fn set_depth(&mut self, depth: u8) {
        self.depth = depth;
        if let Some(pending) = &mut self.pending {
            let extra = pending.resources.len().saturating_sub(depth.into());
            pending.resources.drain(..extra);
        }
    }

    /// The peer has all answers that it has asked for: what waits are copies that nobody needs.
    pub fn forget_output(&mut self) {
        self.acknowledge = None;
        if let Some(pending) = self.pending.as_deref_mut() {
            pending.answers.clear();
        }
    }

    /// Something is waiting to be sent.
    #[inline]
    pub fn has_output(&self) -> bool {
        self.acknowledge.is_some() || self.first_answer().is_some()
    }

    /// The oldest answer that has not left.
    #[inline]
    pub(super) fn first_answer(&self) -> Option<&Answer> {
        self.pending.as_deref()?.answers.front()
    }

    /// The answers that have not left.
    #[inline]
    pub(super) fn answers(&mut self) -> &mut VecDeque<Answer> {
        &mut self.pending().answers
    }

    #[inline]
    pub(super) fn pending(&mut self) -> &mut Pending {
        self.pending.get_or_insert_with(first_pending)
    }

    /// Keeps a READ or atomic for its duplicates; the oldest gives way.
    pub(super) fn keep(&mut self, resource: Resource) {
        let depth = usize::from(self.depth);
        let resources = &mut self.pending().resources;
        while resources.len() >= depth.max(1) {
            resources.pop_front();
        }
        resources.push_back(resource);
    }

    /// Forgets them all: their answers have arrived.
    #[inline]
    pub(super) fn forget_resources(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.resources.clear();
        }
    }

    /// READs and atomics whose duplicates are answered.
    fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.pending.as_deref().into_iter().flat_map(|pending| &pending.resources)
    }

    /// The result of an atomic, if it is still kept.
    pub(super) fn original_of(&self, psn: Psn) -> Option<u64> {
        self.resources().find_map(|resource| match *resource {
            Resource::Atomic { psn: at, original } if at == psn => Some(original),
            _ => None,
        })
    }

    /// The domain of the READ that this one repeats, from some packet on, if that is still kept. It must ask
    /// for bytes that the first one asked for, with the same key (IBTA 9.7.5.1.1).
    pub(super) fn read_again(&self, psn: Psn, va: u64, rkey: Key, len: u32, mtu: u32) -> Option<PdId> {
        let packets = |len: u32| len.div_ceil(mtu).max(1);
        self.resources().find_map(|resource| match *resource {
            Resource::Read { psn: first, asked } => {
                let skipped = u32::try_from(psn.since(first)).ok()?;
                let whole = packets(asked.len);
                let inside = skipped < whole && packets(len) <= whole - skipped;
                let offset = va.wrapping_sub(asked.va);
                let asked_for = offset <= asked.len.into() && u64::from(len) <= u64::from(asked.len) - offset;
                (inside && asked_for && rkey == asked.rkey).then_some(asked.pd)
            }
            Resource::Atomic { .. } => None,
        })
    }

    /// One packet further (UC).
    #[inline]
    pub fn expect_after(&mut self, psn: Psn) {
        self.expected = psn.next();
    }

    /// The PSN of the acknowledgement or NAK that leaves next.
    #[inline]
    pub(super) fn acknowledge_psn(&self) -> Psn {
        Psn::new(self.acknowledge_at.wrapping_sub(self.acknowledge_at >> Psn::BITS))
    }

    /// Takes the acknowledgement or NAK that leaves next.
    #[inline]
    pub fn take_acknowledge(&mut self) -> Option<(Psn, Syndrome)> {
        let (syndrome, psn) = (self.acknowledge?, self.acknowledge_psn());
        if self.acknowledge_at > Psn::MASK {
            self.acknowledge_at &= Psn::MASK;
        } else {
            self.acknowledge = None;
        }
        Some((psn, syndrome))
    }

    /// The peer is owed an acknowledgement, instead of one that was owed before. Where packets were lost
    /// lately, the last one before it leaves as well: while the window is small it goes to and fro as a
    /// whole, and the loss of a single acknowledgement would take a timeout. How far that one is behind
    /// stands above the 24 bits of the PSN; beyond 255 it does not leave.
    #[inline]
    pub(super) fn owe(&mut self, psn: Psn, syndrome: Syndrome) {
        let mut behind = 0;
        if let (Some(Syndrome::Ack { .. }), Syndrome::Ack { .. }) = (self.acknowledge, syndrome)
            && self.gap.was_lately()
        {
            let since = psn.since(Psn::new(self.acknowledge_at));
            behind = u8::try_from(since).unwrap_or(0).into();
        }
        (self.acknowledge, self.acknowledge_at) = (Some(syndrome), psn.get() | behind << Psn::BITS);
    }

    /// READs and atomics that may be unanswered.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Messages completed, 24 bits.
    pub fn msn(&self) -> u32 {
        self.msn
    }

    /// One message more is complete.
    pub fn end_message(&mut self) {
        self.msn = (self.msn + 1) & MSN_MASK;
    }

    /// Bounds that hold after every packet.
    pub fn check_invariants(&self) {
        let bound = self.depth as usize;
        let Some(pending) = &self.pending else { return };
        assert!(pending.answers.len() <= bound, "more answers than responder resources");
        assert!(pending.resources.len() <= bound, "more requests kept than responder resources");
    }
}
