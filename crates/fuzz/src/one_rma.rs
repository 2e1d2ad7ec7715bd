//! 1RMA's NIC: messages of a peer that has the keys and says whatever the input says.
//!
//! Bytes by themselves never pass the tag of AES-GCM. So an input holds messages in the clear; where one
//! parses, it is sealed here with the key and the chained nonce that its place in an operation asks for, by
//! code that is not the NIC's. Every fourth kind of step leaves it as it is, so that forgeries are tried too.

use crate::frames::{Step, input, steps};
use crate::{Seen, Target};
use adverb_nic::one_rma::*;
use adverb_wire::Duration;
use adverb_wire::one_rma::{
    Body, Header, Kind, NONCE_LEN, Op, Piece, RESERVED_KEY, Request, Status, TAG_LEN,
};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

#[path = "../../nic/tests/one_rma_world/mod.rs"]
mod one_rma_world;
use one_rma_world::*;

/// The host under test, and its peer.
const TESTED: usize = 0;
const PEER: usize = 1;
/// Stands in an input for whatever region, process, slot or ticket it should be.
const RIGHT: u32 = 0;

type Key = [u8; 16];
type Previous = [u8; NONCE_LEN];

/// An operation of the tested host's own: what its peer must know to answer.
struct Asked {
    slot: u32,
    key: Key,
    request: Previous,
    solicitation: Option<Previous>,
}

/// An operation of the peer's that the tested host solicits data for.
struct Solicited {
    ticket: u32,
    key: Key,
    solicitation: Previous,
}

struct Scene {
    w: Rma,
    asked: Vec<Asked>,
    solicited: Vec<Solicited>,
    /// Keys of the peer's requests by slot number, for the solicitations that answer them.
    requests: Vec<(u32, Key)>,
    next_slot: usize,
}

impl Scene {
    fn new() -> Scene {
        let w = Rma::new(2, 1);
        Scene { w, asked: Vec::new(), solicited: Vec::new(), requests: Vec::new(), next_slot: 0 }
    }

    fn key_for_peer(&self, op: Op) -> Key {
        *self.w.key(PEER, TESTED, op).expose()
    }

    /// The tested host begins an operation on its peer.
    fn post(&mut self, op: Op, len: u8) {
        let host = &mut self.w.hosts[TESTED];
        if self.next_slot == host.slots.len() {
            return;
        }
        let slot = host.slots[self.next_slot];
        self.next_slot += 1;
        let len = if op == Op::Rekey { 16 } else { usize::from(len).max(1) };
        let command = self.w.command(TESTED, PEER, op, len);
        let host = &mut self.w.hosts[TESTED];
        host.nic.post(self.w.now, slot, &command.encode()).expect("a slot that is free");
        self.settle(Some(*command.key.expose()));
    }

    /// Takes what the tested host sends, and learns from it what its peer would learn.
    fn settle(&mut self, posted: Option<Key>) {
        let mut frame = OneRmaFrame::new();
        let host = &mut self.w.hosts[TESTED];
        while host.nic.next_frame(self.w.now, &mut frame) {
            let Ok(header) = Header::parse(frame.message()) else { panic!("what the NIC sends parses") };
            match header.body {
                Body::Request(request) => self.asked.extend(posted.map(|key| Asked {
                    slot: request.slot,
                    key,
                    request: header.nonce(),
                    solicitation: None,
                })),
                Body::Solicitation { slot, ticket, .. } => {
                    let key = self.requests.iter().rev().find(|(number, _)| *number == slot);
                    let solicitation = header.nonce();
                    self.solicited.extend(key.map(|(_, key)| Solicited { ticket, key: *key, solicitation }));
                }
                _ => {}
            }
        }
        while host.completion().is_some() {}
        host.nic.check_invariants();
    }

    /// The header with what stands for the right thing replaced, its key, and the nonce it is chained to.
    fn placed(&mut self, mut header: Header) -> Option<(Header, Key, Previous)> {
        let region = self.w.hosts[TESTED].target.wire();
        match &mut header.body {
            Body::Request(Request { op, region: named, pid, slot, .. }) => {
                *named = if *named == RIGHT { region } else { *named };
                *pid = if *pid == RIGHT { PID } else { *pid };
                let (op, slot) = (*op, *slot);
                let key = self.key_for_peer(op);
                self.requests.push((slot, key));
                Some((header, key, [0; NONCE_LEN]))
            }
            Body::WriteData { ticket, .. } => {
                let of = |number: u32| self.solicited.iter().find(|s| number == s.ticket);
                let found =
                    of(*ticket).or(self.solicited.last()).filter(|_| *ticket == RIGHT).or(of(*ticket))?;
                *ticket = found.ticket;
                Some((header, found.key, found.solicitation))
            }
            Body::ReadResponse { slot, .. }
            | Body::Solicitation { slot, .. }
            | Body::Nack { slot }
            | Body::AuthenticationFailure { slot }
            | Body::Completion { slot, .. } => {
                let number = *slot;
                let place = self.asked.iter().rposition(|a| number == RIGHT || number == a.slot)?;
                *slot = self.asked[place].slot;
                let kind = header.kind();
                let asked = &mut self.asked[place];
                let chained = if kind == Kind::Completion { asked.solicitation } else { None };
                if kind == Kind::Solicitation {
                    asked.solicitation = Some(header.nonce());
                }
                let key = if kind == Kind::AuthenticationFailure { RESERVED_KEY } else { asked.key };
                Some((header, key, chained.unwrap_or(asked.request)))
            }
        }
    }

    fn deliver(&mut self, bytes: &[u8], seen: &mut Seen) {
        let mut message = bytes.to_vec();
        let mut kind = None;
        if let Ok(header) = Header::parse(bytes) {
            kind = Some(header.kind());
            if let Some((header, key, previous)) = self.placed(header) {
                seal(&mut message, &header, &key, &previous);
            }
        }
        let before = self.w.hosts[TESTED].refused();
        self.w.hosts[TESTED].nic.on_frame(self.w.now, gid(PEER), &mut message);
        self.settle(None);
        if self.w.hosts[TESTED].refused() == before {
            let kind = kind.expect("what does not parse is refused");
            seen.accept(format!("{kind:?}"));
        }
    }

    fn wait(&mut self, time: Duration) {
        self.w.now += time;
        let now = self.w.now;
        self.w.hosts[TESTED].nic.on_timer(now);
        self.settle(None);
    }
}

/// Seals what follows the header, in place.
fn seal(message: &mut [u8], header: &Header, key: &Key, previous: &Previous) {
    let len = header.emit(message);
    let aad = [&message[..len], &previous[..]].concat();
    let body_end = message.len() - TAG_LEN;
    let (body, tag) = message[len..].split_at_mut(body_end - len);
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).expect("a key of that length"));
    let nonce = Nonce::assume_unique_for_key(header.nonce());
    let made = key.seal_in_place_separate_tag(nonce, Aad::from(aad), body).expect("a short message");
    tag.copy_from_slice(made.as_ref());
}

fn run(input: &[u8], seen: &mut Seen) {
    let mut scene = Scene::new();
    let before = scene.w.hosts[TESTED].memory.read(RING + PART - 64, 64);
    for step in steps(input) {
        match step {
            Step::Frame(bytes) => scene.deliver(bytes, seen),
            Step::Post([op, len, ..]) => scene.post([Op::Read, Op::Write, Op::Rekey][*op as usize % 3], *len),
            Step::Wait([time, ..]) => scene.wait(Duration::from_us(1 << (time % 12))),
            Step::Post(_) | Step::Wait(_) => {}
        }
        scene.wait(Duration::from_ns(500));
    }
    // The end of the ring of completions, which no input gets to, and which no peer may write.
    assert_eq!(scene.w.hosts[TESTED].memory.read(RING + PART - 64, 64), before);
}

fn message(counter: u64, body: Body) -> Vec<u8> {
    let header = Header { counter, body };
    let mut bytes = vec![0x5a; header.message_len()];
    header.emit(&mut bytes);
    bytes
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let request = |op, len| {
        let offset = if op == Op::Rekey { 0 } else { 64 };
        let request = Request { op, class: 0, slot: 0, pid: RIGHT, region: RIGHT, offset, len };
        message(1, Body::Request(request))
    };
    let piece = |len| Piece { offset: 0, len };
    let data = |len| message(2, Body::WriteData { ticket: RIGHT, piece: piece(len) });
    let answer = |len| message(3, Body::ReadResponse { slot: RIGHT, piece: piece(len) });
    let solicitation = message(4, Body::Solicitation { slot: RIGHT, ticket: 7, open_ns: 50_000 });
    let done = message(5, Body::Completion { slot: RIGHT, status: Status::Ok });
    let refused = message(6, Body::Completion { slot: RIGHT, status: Status::Refused });
    let nack = message(7, Body::Nack { slot: RIGHT });
    let failure = message(8, Body::AuthenticationFailure { slot: RIGHT });
    let (read, write, rekey) = (Step::Post(&[0, 64]), Step::Post(&[1, 64]), Step::Post(&[2, 16]));
    let frame = Step::Frame;
    let made = [
        ("read", input(&[frame(&request(Op::Read, 64))])),
        ("read-4k", input(&[frame(&request(Op::Read, 4096))])),
        ("write", input(&[frame(&request(Op::Write, 64)), frame(&data(64))])),
        ("rekey", input(&[frame(&request(Op::Rekey, 16)), frame(&data(16))])),
        ("own-read", input(&[read, frame(&answer(64))])),
        ("own-write", input(&[write, frame(&solicitation), frame(&done)])),
        ("own-rekey", input(&[rekey, frame(&solicitation), frame(&done)])),
        ("own-read-nack", input(&[read, frame(&nack)])),
        ("own-read-unauthentic", input(&[read, frame(&failure)])),
        ("own-write-refused", input(&[write, frame(&refused), Step::Wait(&[9])])),
    ];
    made.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

/// A host that is both target and initiator.
pub const NIC: Target = Target {
    name: "nic_one_rma",
    run,
    seeds,
    expected: || Kind::ALL.iter().map(|kind| format!("{kind:?}")).collect(),
    bounded: 20_000,
};
