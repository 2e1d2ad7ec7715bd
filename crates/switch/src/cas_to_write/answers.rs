//! Answers on their way to the client: whose they are, what they tell of words, and the answers that the
//! switch makes for what it has converted.
//!
//! An acknowledgement speaks for all requests before it, but each converted atomic needs an answer of its
//! own; so does one that a READ's answer, an atomic's or a NAK implies.

use super::connection::{Connection, Entry, Kind};
use super::word::State;
use super::{CasToWrite, Mistake, make_unsure};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::{Aeth, Instant, NakCode, Opcode, Operation, Packet, Psn, Service, Syndrome};

/// Message numbers have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// Whose an answer is.
enum Whose {
    /// A connection's.
    Of(u32),
    /// Unknown, but it does no harm.
    Anybody,
    /// Nobody's that this switch has seen ask.
    Nobody,
}

/// What an answer says of its connection's tracked requests.
struct Told {
    /// The place of the one that it names.
    own: Option<usize>,
    /// Bit by bit the places of those that it speaks for.
    covered: u32,
    /// It implies that the server has executed atomics that it has as they are.
    implies: bool,
}

impl Told {
    /// What an answer to this number says; whether it is a plain acknowledgement. `shares`: what is converted
    /// is answered by who carries it.
    #[inline]
    fn by(connection: &Connection, (psn, plain): (Psn, bool), shares: bool) -> Told {
        let mut told = Told { own: None, covered: 0, implies: false };
        for (place, entry) in connection.unanswered() {
            let (is_own, is_before) = (entry.psn == psn, entry.psn.is_before(psn));
            told.own = if is_own { Some(place) } else { told.own };
            match entry.kind {
                _ if entry.answered => {}
                Kind::Native => told.implies |= is_before && entry.is_native(),
                _ if shares && entry.is_converted() => {}
                _ => told.covered |= u32::from(is_before || (plain && is_own)) << place,
            }
        }
        told.own = told.own.or_else(|| connection.place_of(psn));
        told
    }
}

impl CasToWrite {
    /// An answer has come.
    pub(super) fn on_answer(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let (client, qpn) = (frame.packet.flow.dst, frame.packet.bth.dest_qp);
        let whose = match self.connections.of_answer(client, qpn) {
            Some(at) => Whose::Of(at),
            None => self.guess(ctx, &frame.packet),
        };
        let at = match whose {
            Whose::Of(at) => at,
            Whose::Anybody => return ctx.pass_on(frame),
            Whose::Nobody if self.config.mistake == Some(Mistake::Forgetful) => return ctx.pass_on(frame),
            Whose::Nobody => return ctx.drop(&frame.packet, Drop::AckUnseen),
        };
        self.proves(ctx.now, at, &frame.packet);
        let Some(frame) = self.own_answer(ctx, at, frame) else { return };
        let packet = &frame.packet;
        let connection = self.connections.get_mut(at);
        let (psn, operation) = (packet.bth.psn, packet.bth.opcode.operation());
        let outside = psn.is_before(connection.first) || !psn.is_before(connection.expected);
        let is_trusted = connection.uncounted || self.config.mistake == Some(Mistake::Forgetful);
        // From before this switch's time it may be the answer to an atomic that another one converted.
        let may_be_converted = is_plain_ack(packet) && outside;
        if (may_be_converted || connection.is_beyond(packet)) && !is_trusted {
            return ctx.drop(packet, Drop::AckUnseen);
        }
        if operation.is_read_response() && operation.is_middle() {
            connection.learn_mtu(packet.payload_len);
        }
        self.settle(ctx, at, frame);
    }

    /// Matches an answer with one of the client's connections whose own number is not known yet. Only an
    /// atomic's answer tells, and only if its number fits one of them.
    fn guess(&mut self, ctx: &mut Context<'_>, packet: &Packet) -> Whose {
        let (client, qpn, psn) = (packet.flow.dst, packet.bth.dest_qp, packet.bth.psn);
        let late = self.may_be_of_shifted(ctx.now, client);
        let mut unpaired = self.connections.of_client(client).filter(|at| {
            let connection = self.connections.get(*at);
            connection.client_qpn.is_none()
        });
        if packet.bth.opcode.operation() == Operation::AtomicAcknowledge {
            let fits = |at: &u32| {
                let mut entries = self.connections.get(*at).entries.iter();
                entries.any(|entry| entry.psn == psn && entry.kind == Kind::Native && !entry.answered)
            };
            let unpaired: Vec<u32> = unpaired.collect();
            let fitting: Vec<u32> = unpaired.iter().copied().filter(fits).collect();
            let untracked = |at: &u32| self.connections.get(*at).may_have_asked(psn);
            let is_ambiguous = fitting.len() > 1 || unpaired.iter().any(untracked);
            return match fitting.first() {
                Some(at) if !is_ambiguous => {
                    self.connections.pair(*at, qpn);
                    ctx.count(Counter::Paired);
                    Whose::Of(*at)
                }
                Some(_) => {
                    ctx.count(Counter::Ambiguous);
                    fitting.into_iter().for_each(|at| self.is_not_awaited(ctx, at, psn));
                    Whose::Anybody
                }
                None if late => Whose::Nobody,
                None => Whose::Anybody,
            };
        }
        // An answer to something that was seen, and that was no atomic.
        let asked = |at: u32| {
            let connection = self.connections.get(at);
            let inside = !psn.is_before(connection.first) && psn.is_before(connection.expected);
            connection.uncounted || (inside && !connection.entries.iter().any(|entry| entry.psn == psn))
        };
        let harmless = !late && (!is_plain_ack(packet) || self.connections.overflowed);
        match harmless || unpaired.any(asked) {
            true => Whose::Anybody,
            false => Whose::Nobody,
        }
    }

    /// An atomic's answer may have gone to its client unseen, among those of others, and will not come again.
    /// A word that was to be learned from it is the server's for a packet's life: nobody waits for it.
    fn is_not_awaited(&mut self, ctx: &mut Context<'_>, at: u32, psn: Psn) {
        let Some(Entry { word, va, .. }) = self.connections.get_mut(at).entry(psn).copied() else { return };
        let until = ctx.now + self.config.life;
        let word = self.words.get_mut(word);
        if matches!(word.state, State::Learning { connection, psn: of, .. } if (connection, of) == (at, psn))
        {
            make_unsure(word, until);
            ctx.count(Counter::WordsUnsure);
            self.freed.push_back(va);
        }
    }

    /// Tells the words what an answer says, answers for what was converted, and lets the answer go on if it
    /// is one that its client can read.
    fn settle(&mut self, ctx: &mut Context<'_>, at: u32, mut frame: Box<Frame>) {
        let (psn, plain) = (frame.packet.bth.psn, is_plain_ack(&frame.packet));
        let operation = frame.packet.bth.opcode.operation();
        let before = if plain || operation == Operation::AtomicAcknowledge { psn.next() } else { psn };
        self.connections.get_mut(at).advance(before, frame.packet.aeth.msn);
        self.own_is_answered(at, &frame.packet, before);
        let told = Told::by(self.connections.get(at), (psn, plain), self.config.carry.is_some());
        if told.implies {
            self.are_executed(ctx, at, psn);
        }
        let mut covered = told.covered;
        let mut own_answer = false;
        while covered != 0 {
            let place = covered.trailing_zeros() as usize;
            covered &= covered - 1;
            let entries = &mut self.connections.get_mut(at).entries;
            // Copied before it is changed: what was just written in part is slow to read as a whole.
            let entry = entries[place];
            entries[place].answered = true;
            self.acknowledged(ctx, at, &entry);
            match entry.is_converted() {
                true if entry.psn == psn => own_answer = true,
                true if self.config.mistake != Some(Mistake::Coalesced) => {
                    let mut answer = frame.packet;
                    self.answer(ctx, at, &mut answer, &entry);
                    ctx.count(Counter::DeCoalesced);
                    ctx.pass_on(frame.made_like(answer, &[]));
                }
                _ => {}
            }
        }
        self.connections.get_mut(at).are_answered();
        let packet = &frame.packet;
        if let (Syndrome::Nak(code), Some(place)) = (packet.aeth.syndrome, told.own)
            && operation == Operation::Acknowledge
            && code != NakCode::PsnSequenceError
        {
            let entry = self.connections.get(at).entries[place];
            self.on_refusal(ctx, at, &entry, code);
        }
        let own = told.own.map(|place| &self.connections.get(at).entries[place]);
        match own {
            // Its client gets the atomic acknowledgement in its place, unless it has had that.
            Some(entry) if plain && entry.is_converted() => {
                if own_answer {
                    frame.change_with([], |packet| self.answer(ctx, at, packet, entry));
                    ctx.pass_on(frame);
                }
                return;
            }
            Some(entry) if plain && entry.kind == Kind::Native => {
                return ctx.drop(packet, Drop::AckBare);
            }
            Some(entry) if operation == Operation::AtomicAcknowledge => {
                match entry.kind {
                    Kind::Native if !entry.answered => {
                        let entry = *entry;
                        self.learn(ctx, at, &entry, packet);
                    }
                    Kind::Native => {}
                    // The server was sent a WRITE.
                    _ => return ctx.drop(packet, Drop::AckBare),
                }
            }
            _ => {}
        }
        ctx.pass_on(frame);
    }

    /// The answer to a later request says that the server has executed atomics that it has as they are. Their
    /// own answers are lost, or late; nothing of them is on its way to their words.
    fn are_executed(&mut self, ctx: &mut Context<'_>, at: u32, before: Psn) {
        let connection = self.connections.get(at);
        for place in connection.first_open..connection.entries.len() {
            let entry = &mut self.connections.get_mut(at).entries[place];
            if entry.kind != Kind::Native || !entry.is_native() || !entry.psn.is_before(before) {
                continue;
            }
            entry.executed = true;
            let (word, va) = (entry.word, entry.va);
            let pass = ctx.again();
            let word = self.words.access(pass, word);
            assert_eq!(word.va, va, "a word stays while an atomic is on its way to it");
            word.natives -= 1;
            ctx.count(Counter::AnswersImplied);
            self.freed.push_back(va);
        }
    }

    /// The server has executed a change.
    fn acknowledged(&mut self, ctx: &mut Context<'_>, at: u32, entry: &Entry) {
        if entry.kind == Kind::Nothing {
            return;
        }
        let owner = self.connections.get(at).owner(entry.rkey);
        let pass = ctx.again();
        let word = self.words.access(pass, entry.word);
        if entry.kind == Kind::Written {
            assert_eq!(word.va, entry.va, "a word stays while a WRITE is on its way to it");
            word.natives -= 1;
            self.freed.push_back(entry.va);
        } else if let State::Pending { value, connection, psn, .. } = word.state
            && word.va == entry.va
            && (connection, psn) == (at, entry.psn)
        {
            word.is_known(value);
            // The server has taken its WRITE: of a word that was learned so, this is the first to tell.
            word.owner.get_or_insert(owner);
            self.freed.push_back(entry.va);
        }
    }

    /// Makes an atomic's answer of what an acknowledgement says, or another answer that implies it.
    pub(super) fn answer(&self, ctx: &mut Context<'_>, at: u32, packet: &mut Packet, entry: &Entry) {
        let Some(base) = self.connections.get(at).msn_base else {
            unreachable!("nothing was converted before")
        };
        packet.bth.opcode = Opcode::new(Service::Rc, Operation::AtomicAcknowledge);
        packet.bth.psn = entry.psn;
        let syndrome = match packet.aeth.syndrome {
            syndrome @ Syndrome::Ack { .. } => syndrome,
            _ => Syndrome::default(),
        };
        packet.aeth = Aeth { syndrome, msn: base.wrapping_add(entry.message) & MSN_MASK };
        packet.atomic_original = entry.original;
        packet.payload_len = 0;
        ctx.count(Counter::Answered);
        ctx.count(Counter::Generated);
        ctx.note(packet, Note::Answered(entry.original));
    }

    /// The server's own answer to an atomic tells the word's value.
    fn learn(&mut self, ctx: &mut Context<'_>, at: u32, entry: &Entry, packet: &Packet) {
        let original = packet.atomic_original;
        let connection = self.connections.get_mut(at);
        connection.accept(entry.rkey);
        connection.msn_base = Some(packet.aeth.msn.wrapping_sub(entry.message) & MSN_MASK);
        let owner = connection.owner(entry.rkey);
        if let Some(entry) = connection.entry(entry.psn) {
            entry.answered = true;
        }
        let (operand, compare) = entry.operands;
        let value = match entry.operation {
            Operation::FetchAdd => original.wrapping_add(operand),
            _ if original == compare => operand,
            _ => original,
        };
        let pass = ctx.again();
        let word = self.words.access(pass, entry.word);
        if entry.executed && word.va != entry.va {
            // The word has had to make room since.
            return;
        }
        assert_eq!(word.va, entry.va, "a word stays while an atomic is on its way to it");
        word.natives -= u16::from(!entry.executed);
        if word.owner.is_some_and(|before| before != owner) {
            // Two keys, or two processes, for one address: it is not known whether that is one word.
            make_unsure(word, Instant::NEVER);
            ctx.count(Counter::WordsUnsure);
        } else if let State::Learning { connection, psn, .. } = word.state
            && (connection, psn) == (at, entry.psn)
        {
            word.is_known(value);
            word.owner = Some(owner);
            ctx.count(Counter::LearnedByAtomic);
            ctx.note(packet, Note::Learned(value));
        }
        self.freed.push_back(entry.va);
    }

    /// An atomic that the server was to decide was not executed: its word is what it was, if that is known.
    fn roll_back(&mut self, at: u32, entry: &Entry) -> bool {
        let word = self.words.get_mut(entry.word);
        let State::Learning { connection, psn, before: Some(value), .. } = word.state else { return false };
        if entry.executed || (connection, psn, word.va) != (at, entry.psn, entry.va) {
            return false;
        }
        word.natives -= 1;
        word.is_known(value);
        self.freed.push_back(entry.va);
        true
    }

    /// The server has refused a tracked request: its queue pair takes no more. What it has under way to words
    /// is unsure.
    fn on_refusal(&mut self, ctx: &mut Context<'_>, at: u32, refused: &Entry, code: NakCode) {
        // Its queue pair takes nothing more, and so carries nothing more.
        let lane = &mut self.connections.get_mut(at).lane;
        (lane.closed, lane.tries) = (true, u32::MAX);
        self.freed.push_back(super::carry::carrier_key(at));
        let wrote = matches!(refused.kind, Kind::Change(_) | Kind::Store(_) | Kind::Written);
        if wrote && code == NakCode::RemoteAccessError {
            self.refuse_key(ctx, refused.rkey);
        }
        for place in 0..self.connections.get(at).entries.len() {
            let entry = self.connections.get(at).entries[place];
            if entry.answered || entry.psn.is_before(refused.psn) {
                continue;
            }
            // The server has executed neither what it has refused nor anything behind it: its queue pair has
            // failed. Of what went wrong while it was executed, nothing is known.
            let refused = matches!(code, NakCode::RemoteAccessError | NakCode::InvalidRequest);
            if !refused || !self.roll_back(at, &entry) {
                self.settle_for_good(ctx, at, &entry);
            }
            let entry = &mut self.connections.get_mut(at).entries[place];
            entry.answered = true;
            entry.dead = true;
        }
    }
}

/// Whether a packet says no more than that all was well until there.
fn is_plain_ack(packet: &Packet) -> bool {
    packet.bth.opcode.operation() == Operation::Acknowledge
        && matches!(packet.aeth.syndrome, Syndrome::Ack { .. })
}
