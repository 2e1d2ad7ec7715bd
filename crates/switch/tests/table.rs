//! Packets in, packets out: what each program makes of each kind, byte by byte.

use adverb_switch::cas_to_write::Mistake;
use adverb_switch::cas_to_write::carry::CarryConfig;
use adverb_switch::*;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Duration, Flow, Gid, Instant, Key, NakCode, Opcode, Operation, Packet, Psn,
    QpNumber, Reth, Service, Syndrome, WireExtra, verify_ip,
};
use std::net::IpAddr;
use std::num::NonZeroU32;

const CLIENT: PortId = PortId(0);
const SERVER: PortId = PortId(1);
const OTHER: PortId = PortId(2);
const VA: u64 = 0x7000_0000;
const RKEY: Key = Key(0x1234);
const SERVER_QPN: u32 = 0x11_0001;
const CLIENT_QPN: u32 = 0x22_0002;
const LIFE: Duration = Duration::from_ms(15);
const FLIGHT: Duration = Duration::from_ms(10);

fn gid(last: u8, v4: bool) -> Gid {
    let text = if v4 { format!("10.9.0.{last}") } else { format!("fd00::{last}") };
    Gid::from(text.parse::<IpAddr>().unwrap())
}

struct Bench {
    switch: Switch,
    now: Instant,
    v4: bool,
}

type Out = Vec<(PortId, Packet, Vec<u8>, Vec<u8>)>;

impl Bench {
    fn of(programs: Vec<Program>, v4: bool) -> Bench {
        let mut switch = Switch::new(programs, 64).unwrap();
        for last in 1..=3 {
            let port = switch.add_port().unwrap();
            switch.claim(port, gid(last, v4)).unwrap();
        }
        Bench { switch, now: Instant::from_ns(20_000_000), v4 }
    }

    fn cas(v4: bool, adjust: impl FnOnce(&mut CasConfig)) -> Bench {
        let mut config = CasConfig { life: LIFE, words_max: 16, ..CasConfig::new(gid(2, v4)) };
        adjust(&mut config);
        Bench::of(vec![Program::CasToWrite(Box::new(CasToWrite::new(config, Instant::ZERO).unwrap()))], v4)
    }

    fn emit(&self, packet: &Packet, payload: &[u8]) -> Vec<u8> {
        let extra = WireExtra { ipv4_id: if self.v4 { 0xabcd } else { 0 }, ..WireExtra::default() };
        let mut bytes = vec![0; packet.frame_len()];
        assert_eq!(packet.emit_frame(&extra, payload, &mut bytes), bytes.len());
        bytes
    }

    fn raw(&mut self, port: PortId, bytes: Vec<u8>) -> Out {
        self.now += Duration::from_ns(1000);
        self.switch.on_frame(self.now, port, bytes);
        self.drain()
    }

    fn drain(&mut self) -> Out {
        self.switch.check_invariants();
        let mut out = Vec::new();
        while let Some((port, bytes)) = self.switch.next_frame() {
            let parsed = Packet::parse_ip(&bytes).unwrap();
            assert!(verify_ip(&bytes, parsed.ip_header_len), "what leaves has a right ICRC");
            out.push((port, parsed.packet, bytes[parsed.payload].to_vec(), bytes));
        }
        out
    }

    fn flow(&self, from: u8, to: u8) -> Flow {
        let (src, dst) = (gid(from, self.v4), gid(to, self.v4));
        Flow { src, dst, src_port: 0xc123, traffic_class: 2, hop_limit: 1 }
    }

    fn packet(&self, from: u8, to: u8, operation: Operation, psn: u32) -> Packet {
        let qpn = if to == 2 { SERVER_QPN } else { CLIENT_QPN };
        let opcode = Opcode::new(Service::Rc, operation);
        let bth = Bth { opcode, psn: Psn::new(psn), dest_qp: QpNumber::new(qpn), ..Bth::default() };
        Packet { flow: self.flow(from, to), bth, ..Packet::default() }
    }

    fn send(&mut self, port: PortId, packet: &Packet, payload: &[u8]) -> Out {
        let packet = Packet { payload_len: payload.len() as u32, ..*packet };
        let bytes = self.emit(&packet, payload);
        self.raw(port, bytes)
    }

    fn atomic(&mut self, psn: u32, operation: Operation, swap_add: u64, compare: u64) -> Out {
        let mut packet = self.packet(1, 2, operation, psn);
        packet.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add, compare };
        self.send(CLIENT, &packet, &[])
    }

    fn compare_swap(&mut self, psn: u32, compare: u64, swap: u64) -> Out {
        self.atomic(psn, Operation::CompareSwap, swap, compare)
    }

    fn answer(&mut self, psn: u32, msn: u32, original: u64) -> Out {
        let mut packet = self.packet(2, 1, Operation::AtomicAcknowledge, psn);
        packet.aeth = Aeth { syndrome: Syndrome::default(), msn };
        packet.atomic_original = original;
        self.send(SERVER, &packet, &[])
    }

    fn acknowledge(&mut self, psn: u32, msn: u32, syndrome: Syndrome) -> Out {
        let mut packet = self.packet(2, 1, Operation::Acknowledge, psn);
        packet.aeth = Aeth { syndrome, msn };
        self.send(SERVER, &packet, &[])
    }

    fn ack(&mut self, psn: u32, msn: u32) -> Out {
        self.acknowledge(psn, msn, Syndrome::default())
    }

    fn get(&self, counter: Counter) -> u64 {
        self.switch.counters().get(counter)
    }

    fn dropped(&self, reason: Drop) -> u64 {
        self.switch.counters().dropped(reason)
    }

    /// Two atomics of 0 with PSNs 100 and 101: the word is known to hold `value` then, and the next PSN is
    /// 102.
    fn known(&mut self, value: u64) {
        for psn in [100, 101] {
            let out = self.atomic(psn, Operation::FetchAdd, 0, 0);
            assert_eq!((out.len(), out[0].1.bth.opcode.operation()), (1, Operation::FetchAdd));
            assert_eq!(self.answer(psn, psn - 99 + 40, value).len(), 1);
            self.now += LIFE;
        }
        let Program::CasToWrite(program) = &self.switch.programs()[0] else { unreachable!() };
        assert_eq!(program.count_words().known, 1);
    }
}

/// A client is killed before its atomic is answered: the word is learned again without it.
#[test]
fn a_connection_that_fell_silent_does_not_keep_its_word() {
    let mut b = Bench::cas(true, |_| ());
    let mut lost = b.packet(3, 2, Operation::FetchAdd, 7);
    lost.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add: 0, compare: 0 };
    assert_eq!(b.send(OTHER, &lost, &[]).len(), 1);
    for psn in 100..103 {
        b.now += LIFE;
        let mut out = b.atomic(psn, Operation::FetchAdd, 0, 0);
        if out.is_empty() {
            b.now = b.switch.next_deadline().unwrap();
            b.switch.on_timer(b.now);
            out = b.drain();
        }
        // The first one has waited for the lost one, of which nothing is under way any more: it learns the
        // word.
        let converted = psn > 100;
        let becomes = if converted { Operation::WriteOnly } else { Operation::FetchAdd };
        assert_eq!((out.len(), operation(&out[0].1)), (1, becomes), "{psn}");
        let answered = if converted { b.ack(psn, psn - 59) } else { b.answer(psn, psn - 59, 5) };
        assert_eq!((answered.len(), answered[0].1.atomic_original), (1, 5));
    }
    assert_eq!((b.get(Counter::Held), b.get(Counter::FetchAdded)), (1, 2));
}

/// An atomic that the server was to decide is lost, and the next one of its queue pair waits until it is
/// answered: when it is sent again, it goes before that one.
#[test]
fn what_is_sent_again_goes_before_what_waits_for_its_answer() {
    for stuck in [false, true] {
        let mut b = Bench::cas(true, |config| config.mistake = stuck.then_some(Mistake::Stuck));
        assert_eq!(b.atomic(100, Operation::FetchAdd, 1, 0).len(), 1, "it is lost behind the switch");
        b.now += LIFE;
        let send = b.packet(1, 2, Operation::SendOnly, 102);
        for _ in 0..2 {
            assert_eq!(b.atomic(101, Operation::FetchAdd, 1, 0).len(), 0, "it waits");
            assert_eq!(b.send(CLIENT, &send, &[1]).len(), 0, "and so does all that is behind it");
        }
        assert_eq!((b.get(Counter::Held), b.dropped(Drop::UnderWay)), (2, 2));
        let out = b.atomic(100, Operation::FetchAdd, 1, 0);
        if stuck {
            assert!(out.is_empty(), "it waits for what waits for it");
            continue;
        }
        assert_eq!((out.len(), operation(&out[0].1), out[0].1.bth.psn.get()), (1, Operation::FetchAdd, 100));
        let out = b.answer(100, 41, 5);
        let said: Vec<_> = out.iter().map(|(_, p, ..)| (operation(p), p.bth.psn.get())).collect();
        use Operation::{AtomicAcknowledge, FetchAdd, SendOnly};
        assert_eq!(said, [(AtomicAcknowledge, 100), (FetchAdd, 101), (SendOnly, 102)]);
        b.answer(101, 42, 6);
        assert_eq!(
            b.compare_swap(103, 7, 9)[0].2,
            9u64.to_le_bytes(),
            "it was alone, so its answer has told"
        );
        assert_eq!((b.get(Counter::RepeatedFirst), b.get(Counter::LearnedByAtomic)), (1, 1));
    }
}

/// The answer to a later request says that an atomic was executed whose own answer is lost: nobody waits for
/// that, and when it comes at last it tells the client, and nothing of the word.
#[test]
fn an_answer_to_a_later_request_ends_the_wait_for_a_lost_one() {
    let mut b = Bench::cas(true, |_| {});
    for psn in [100, 101] {
        assert_eq!(b.atomic(psn, Operation::FetchAdd, 1, 0).len(), 1);
    }
    b.answer(101, 42, 6);
    b.now += LIFE;
    assert_eq!((b.atomic(102, Operation::FetchAdd, 1, 0).len(), b.get(Counter::AnswersImplied)), (1, 1));
    b.answer(102, 43, 7);
    // The client asks for the lost answer, and all behind it.
    assert_eq!(operation(&b.atomic(100, Operation::FetchAdd, 1, 0)[0].1), Operation::FetchAdd);
    assert_eq!(b.answer(100, 41, 5)[0].1.atomic_original, 5);
    assert_eq!(b.compare_swap(103, 8, 9)[0].2, 9u64.to_le_bytes());
    assert_eq!((b.get(Counter::WordsUnsure), b.get(Counter::Held)), (0, 0));
}

/// Who waits to be alone with a word that another client's lost atomic keeps from him goes on after `hold`,
/// and then for as long nobody waits. The next wait is twice as long, up to a quarter of `life`; who has
/// asked again three times does not wait for longer than `hold`.
#[test]
fn waits_in_vain_grow_to_a_bound_and_with_its_sender_patience() {
    let mut b = Bench::cas(true, |_| {});
    let mut lost = b.packet(3, 2, Operation::FetchAdd, 7);
    lost.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add: 0, compare: 0 };
    b.send(OTHER, &lost, &[]);
    b.now += LIFE;
    let (mut psn, quarter) = (100, LIFE.as_ps() / 4);
    for wait in [1, 2, 4, 8].map(|ms| Duration::from_ms(ms).as_ps().min(quarter)).map(Duration::from_ps) {
        // Its client asks again before its own patience ends, so it lives.
        assert_eq!(b.send(OTHER, &lost, &[]).len(), 1);
        assert_eq!(b.atomic(psn, Operation::FetchAdd, 1, 0).len(), 0, "{wait:?}");
        assert_eq!(b.switch.next_deadline(), Some(b.now + wait));
        b.now += wait;
        b.switch.on_timer(b.now);
        assert_eq!(operation(&b.drain()[0].1), Operation::FetchAdd);
        b.answer(psn, psn - 59, 5);
        assert_eq!(b.atomic(psn + 1, Operation::FetchAdd, 1, 0).len(), 1, "for a while nobody waits");
        b.answer(psn + 1, psn - 58, 5);
        (b.now, psn) = (b.now + wait, psn + 2);
    }
    assert_eq!((b.get(Counter::WaitsInVain), b.get(Counter::Held)), (4, 4));
    let began = b.now;
    for _ in 0..4 {
        assert_eq!(b.atomic(psn, Operation::FetchAdd, 1, 0).len(), 0);
    }
    let hold = CasConfig::new(gid(2, true)).hold;
    assert_eq!(b.switch.next_deadline(), Some(began + hold + Duration::from_us(1)));
    // The lost one comes through, and the word is learned.
    b.send(OTHER, &lost, &[]);
    let mut answer = b.packet(2, 3, Operation::AtomicAcknowledge, 7);
    answer.atomic_original = 5;
    assert_eq!(b.send(SERVER, &answer, &[]).len(), 2);
    b.answer(psn, psn - 59, 5);
    assert_eq!(b.compare_swap(psn + 1, 6, 7)[0].2, 7u64.to_le_bytes());
}

fn operation(packet: &Packet) -> Operation {
    packet.bth.opcode.operation()
}

#[test]
fn a_granted_atomic_becomes_a_write_and_its_ack_an_atomic_ack() {
    for v4 in [true, false] {
        for (byte_order, bytes) in
            [(ByteOrder::Little, [8, 7, 6, 5, 4, 3, 2, 1]), (ByteOrder::Big, [1, 2, 3, 4, 5, 6, 7, 8])]
        {
            let mut b = Bench::cas(v4, |config| config.byte_order = byte_order);
            b.known(9);
            let out = b.compare_swap(102, 9, 0x0102_0304_0506_0708);
            let (port, packet, payload, frame) = &out[0];
            assert_eq!((out.len(), *port, operation(packet)), (1, SERVER, Operation::WriteOnly));
            assert_eq!((packet.reth, packet.bth.ack_req), (Reth { va: VA, rkey: RKEY, len: 8 }, true));
            assert_eq!((packet.bth.psn, packet.flow), (Psn::new(102), b.flow(1, 2)));
            assert_eq!(*payload, bytes);
            if v4 {
                // Lengths of IP and UDP, and the identification as it came.
                assert_eq!(
                    (frame.len(), &frame[2..6], &frame[24..26]),
                    (68, &[0, 68, 0xab, 0xcd][..], &[0, 48][..])
                );
                assert_eq!((frame[28], frame[36] & 0x80), (0x0a, 0x80));
            }
            let out = b.ack(102, 43);
            let (port, packet, _, frame) = &out[0];
            assert_eq!((out.len(), *port, operation(packet)), (1, CLIENT, Operation::AtomicAcknowledge));
            assert_eq!((packet.atomic_original, packet.aeth.msn), (9, 43));
            assert_eq!((packet.bth.psn, packet.bth.dest_qp.get()), (Psn::new(102), CLIENT_QPN));
            if v4 {
                assert_eq!((frame.len(), &frame[24..26], frame[28]), (56, &[0, 36][..], 0x12));
            }
        }
    }
}

/// Of any operands: what the server is sent leaves in the word what the atomic would have, and the answer
/// tells what was there before, under the numbers of the atomic.
#[test]
fn any_operands_come_back_as_the_atomics_answer() {
    let both = [ByteOrder::Little, ByteOrder::Big];
    for (v4, byte_order) in both.into_iter().flat_map(|order| [(true, order), (false, order)]) {
        let mut rng = fastrand::Rng::with_seed(0x5eed);
        let mut b = Bench::cas(v4, |config| config.byte_order = byte_order);
        let mut memory = rng.u64(..);
        b.known(memory);
        for psn in 102..1102 {
            let adds = rng.bool();
            let compare = if rng.bool() { memory } else { rng.u64(..) };
            let (before, operand) = (memory, rng.u64(..));
            let after = match adds {
                true => before.wrapping_add(operand),
                false if compare == before => operand,
                false => before,
            };
            let asked = if adds { Operation::FetchAdd } else { Operation::CompareSwap };
            let out = b.atomic(psn, asked, operand, compare);
            let (port, sent, payload, _) = &out[0];
            assert_eq!((out.len(), *port, operation(sent)), (1, SERVER, Operation::WriteOnly));
            assert_eq!(
                (sent.reth.va, sent.reth.rkey, sent.bth.psn.get(), sent.bth.ack_req),
                (VA, RKEY, psn, true)
            );
            assert_eq!(sent.reth.len as usize, payload.len());
            if let Ok(bytes) = <[u8; 8]>::try_from(&payload[..]) {
                memory = match byte_order {
                    ByteOrder::Little => u64::from_le_bytes(bytes),
                    ByteOrder::Big => u64::from_be_bytes(bytes),
                };
            }
            assert_eq!(memory, after, "{asked:?} of {operand:#x}, {compare:#x} at {before:#x}");
            let out = b.ack(psn, psn - 59);
            let answer = &out[0].1;
            assert_eq!((out.len(), operation(answer)), (1, Operation::AtomicAcknowledge));
            let said = (answer.atomic_original, answer.bth.psn.get(), answer.aeth.msn);
            assert_eq!(said, (before, psn, psn - 59));
        }
    }
}

#[test]
fn a_refused_one_becomes_a_write_of_nothing() {
    let mut b = Bench::cas(true, |_| {});
    b.known(9);
    let out = b.compare_swap(102, 8, 1);
    assert_eq!((out.len(), out[0].1.reth.len, out[0].3.len()), (1, 0, 60));
    assert_eq!((operation(&out[0].1), out[0].1.bth.ack_req), (Operation::WriteOnly, true));
    // Nothing was changed, so the next one need not wait.
    assert_eq!(b.compare_swap(103, 9, 1)[0].2, [1, 0, 0, 0, 0, 0, 0, 0]);
    let out = b.ack(102, 43);
    assert_eq!((out.len(), out[0].1.atomic_original), (1, 9));
    let out = b.ack(103, 44);
    assert_eq!((out.len(), out[0].1.atomic_original), (1, 9));
    assert_eq!((b.get(Counter::CasRefused), b.get(Counter::CasGranted)), (1, 1));
}

#[test]
fn one_ack_for_several_is_several_answers_in_order() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    for psn in [102, 103, 104] {
        assert_eq!(b.compare_swap(psn, 0, 1).len(), 1);
    }
    let mut write = b.packet(1, 2, Operation::WriteOnly, 105);
    write.reth = Reth { va: 0x100, rkey: RKEY, len: 4 };
    assert_eq!(b.send(CLIENT, &write, &[1; 4]).len(), 1);
    let out = b.ack(105, 46);
    let said: Vec<_> = out.iter().map(|(_, p, ..)| (operation(p), p.bth.psn.get(), p.aeth.msn)).collect();
    use Operation::{Acknowledge, AtomicAcknowledge as Atomic};
    assert_eq!(said, [(Atomic, 102, 43), (Atomic, 103, 44), (Atomic, 104, 45), (Acknowledge, 105, 46)]);
    assert_eq!((b.get(Counter::Answered), b.get(Counter::DeCoalesced)), (3, 3));
}

#[test]
fn a_second_change_waits_for_the_first_and_all_behind_it() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    assert_eq!(b.atomic(102, Operation::FetchAdd, 2, 0)[0].2, 7u64.to_le_bytes());
    assert_eq!(b.atomic(103, Operation::FetchAdd, 3, 0).len(), 0);
    let send = b.packet(1, 2, Operation::SendOnly, 104);
    assert_eq!(b.send(CLIENT, &send, &[1]).len(), 0);
    let out = b.ack(102, 43);
    let said: Vec<_> = out.iter().map(|(port, p, ..)| (*port, operation(p), p.bth.psn.get())).collect();
    assert_eq!(
        said,
        [
            (CLIENT, Operation::AtomicAcknowledge, 102),
            (SERVER, Operation::WriteOnly, 103),
            (SERVER, Operation::SendOnly, 104)
        ]
    );
    assert_eq!(out[1].2, 10u64.to_le_bytes());
    assert_eq!(b.ack(103, 44)[0].1.atomic_original, 7);
    assert_eq!(b.get(Counter::Held), 2);
}

/// Who has more requests for a word than it may change at once does not keep it from others: those who wait
/// for it have it in turns.
#[test]
fn who_always_has_another_change_leaves_the_word_to_who_waits() {
    let mut b = Bench::cas(true, |_| {});
    b.known(9);
    let mut others = b.packet(3, 2, Operation::FetchAdd, 7);
    others.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add: 5, compare: 0 };
    assert_eq!(b.atomic(102, Operation::FetchAdd, 1, 0).len(), 1);
    for psn in 103..106 {
        assert_eq!(b.atomic(psn, Operation::FetchAdd, 1, 0).len(), 0, "it waits for the one before it");
    }
    assert_eq!(b.send(OTHER, &others, &[]).len(), 0, "and the other client's for all of them");
    let left = |out: Out| {
        let requests = out.into_iter().filter(|(port, ..)| *port == SERVER);
        requests.map(|(_, packet, ..)| packet.bth.psn.get()).collect::<Vec<_>>()
    };
    assert_eq!(left(b.ack(102, 43)), [103], "the first turn is the first one's");
    assert_eq!(b.atomic(106, Operation::FetchAdd, 1, 0).len(), 0, "who goes on to ask");
    assert_eq!(left(b.ack(103, 44)), [7], "the next is who waited");
    let mut answer = b.packet(2, 3, Operation::AtomicAcknowledge, 7);
    answer.atomic_original = 11;
    assert_eq!(left(b.send(SERVER, &answer, &[])), [104]);
    assert_eq!((b.dropped(Drop::HoldTime), b.get(Counter::Held)), (0, 5));
}

#[test]
fn who_waits_for_too_long_is_dropped_and_decided_anew() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    b.compare_swap(102, 5, 6);
    assert_eq!(b.compare_swap(103, 6, 7).len(), 0);
    let due = b.switch.next_deadline().unwrap();
    assert!(due > b.now && due <= b.now + Duration::from_ms(1));
    b.now = due;
    b.switch.on_timer(due);
    assert_eq!((b.drain().len(), b.dropped(Drop::HoldTime)), (0, 1));
    assert_eq!(b.switch.next_deadline(), None);
    b.ack(102, 43);
    assert_eq!(b.compare_swap(103, 6, 7)[0].2, 7u64.to_le_bytes());
}

#[test]
fn a_repetition_is_what_it_was_and_never_another() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    let first = b.compare_swap(102, 5, 6);
    assert_eq!(b.compare_swap(102, 5, 6)[0].3, first[0].3, "bit for bit");
    assert_eq!((b.compare_swap(102, 5, 9).len(), b.dropped(Drop::Replay)), (0, 1));
    assert_eq!(b.ack(102, 43).len(), 1);
    // Its answer was lost: it comes again, though the word has changed.
    assert_eq!(b.compare_swap(102, 5, 6)[0].3, first[0].3);
    assert_eq!(b.ack(102, 43)[0].1.atomic_original, 5);
    assert_eq!(b.compare_swap(103, 6, 7)[0].2, 7u64.to_le_bytes());
}

#[test]
fn behind_a_gap_nothing_is_decided() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    let out = b.compare_swap(103, 5, 6);
    let (port, packet, ..) = &out[0];
    assert_eq!((out.len(), *port, packet.bth.psn.get()), (1, CLIENT, 102));
    assert_eq!(packet.aeth, Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequenceError), msn: 42 });
    assert_eq!(packet.flow, Flow { src: gid(2, true), dst: gid(1, true), ..b.flow(1, 2) });
    assert_eq!(b.compare_swap(104, 5, 6).len(), 0, "told once");
    assert_eq!(b.dropped(Drop::Gap), 2);
    assert_eq!(b.compare_swap(102, 5, 6)[0].2, 6u64.to_le_bytes());
}

#[test]
fn a_store_changes_what_is_known() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    let mut write = b.packet(1, 2, Operation::WriteOnly, 102);
    write.reth = Reth { va: VA, rkey: RKEY, len: 8 };
    let out = b.send(CLIENT, &write, &77u64.to_le_bytes());
    assert_eq!((out.len(), out[0].1.bth.ack_req, &*out[0].2), (1, true, &77u64.to_le_bytes()[..]));
    assert_eq!(b.compare_swap(103, 77, 78).len(), 0, "it waits");
    let out = b.ack(102, 43);
    assert_eq!((operation(&out[0].1), operation(&out[1].1)), (Operation::Acknowledge, Operation::WriteOnly));
    assert_eq!(b.ack(103, 44)[0].1.atomic_original, 77);
}

/// The word is not known, so the server has the WRITE as it is; its acknowledgement is asked for, and until
/// it comes nobody learns the word: the WRITE may be late.
#[test]
fn a_store_to_a_word_that_the_server_decides_is_waited_for() {
    let mut b = Bench::cas(true, |_| {});
    assert_eq!(operation(&b.compare_swap(100, 0, 1)[0].1), Operation::CompareSwap);
    b.answer(100, 41, 0);
    let mut write = b.packet(1, 2, Operation::WriteOnly, 101);
    write.reth = Reth { va: VA, rkey: RKEY, len: 8 };
    let out = b.send(CLIENT, &write, &7u64.to_le_bytes());
    assert_eq!((out.len(), operation(&out[0].1), out[0].1.bth.ack_req), (1, Operation::WriteOnly, true));
    assert_eq!(out[0].2, 7u64.to_le_bytes());
    // What was there before the switch looked has arrived by now; the WRITE need not have.
    b.now += LIFE;
    assert_eq!(b.compare_swap(102, 7, 8).len(), 0, "it waits");
    let out = b.ack(101, 42);
    assert_eq!(
        (operation(&out[0].1), operation(&out[1].1)),
        (Operation::Acknowledge, Operation::CompareSwap)
    );
    b.answer(102, 43, 7);
    assert_eq!(b.compare_swap(103, 8, 9)[0].2, 9u64.to_le_bytes(), "its answer has told");
    assert_eq!((b.get(Counter::StoresPassed), b.get(Counter::LearnedByStore)), (1, 0));
}

/// A lock that is never at rest: a release tells what the word is, as nothing else is on its way.
#[test]
fn a_store_that_is_alone_makes_a_word_known() {
    let mut b = Bench::cas(true, |_| {});
    b.compare_swap(100, 0, 1);
    b.answer(100, 41, 0);
    b.now += LIFE;
    let mut write = b.packet(1, 2, Operation::WriteOnly, 101);
    write.reth = Reth { va: VA, rkey: RKEY, len: 8 };
    assert_eq!(b.send(CLIENT, &write, &0u64.to_le_bytes()).len(), 1);
    assert_eq!(b.compare_swap(102, 0, 5).len(), 0, "until the server has acknowledged it");
    let out = b.ack(101, 42);
    assert_eq!((operation(&out[1].1), &*out[1].2), (Operation::WriteOnly, &5u64.to_le_bytes()[..]));
    assert_eq!(b.ack(102, 43)[0].1.atomic_original, 0);
    assert_eq!((b.get(Counter::AtomicsPassed), b.get(Counter::LearnedByStore)), (1, 1));
}

/// The server refuses the WRITE that was to tell: the word is its own, and is not what the WRITE says.
#[test]
fn a_store_that_is_refused_tells_nothing() {
    let mut b = Bench::cas(true, |_| {});
    b.compare_swap(100, 0, 1);
    b.answer(100, 41, 0);
    b.now += LIFE;
    let mut write = b.packet(1, 2, Operation::WriteOnly, 101);
    write.reth = Reth { va: VA, rkey: RKEY, len: 8 };
    b.send(CLIENT, &write, &0u64.to_le_bytes());
    b.acknowledge(101, 41, Syndrome::Nak(NakCode::RemoteAccessError));
    let Program::CasToWrite(program) = &b.switch.programs()[0] else { unreachable!() };
    assert_eq!(program.known_word(VA), None);
    assert_eq!(b.get(Counter::KeysRefused), 1);
}

#[test]
fn what_is_not_followed_leaves_the_word_to_the_server() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    let mut write = b.packet(1, 2, Operation::WriteOnly, 102);
    write.reth = Reth { va: VA - 4, rkey: RKEY, len: 16 };
    assert_eq!(b.send(CLIENT, &write, &[1; 16]).len(), 1);
    assert_eq!(operation(&b.compare_swap(103, 5, 6)[0].1), Operation::CompareSwap);
    assert_eq!(b.get(Counter::WordsUnsure), 1);
    // A packet's life later an answer tells it again.
    b.answer(103, 44, 5);
    b.now += LIFE;
    assert_eq!(operation(&b.compare_swap(104, 0, 0)[0].1), Operation::CompareSwap);
    b.answer(104, 45, 6);
    assert_eq!(b.compare_swap(105, 6, 1)[0].2, 1u64.to_le_bytes());
}

/// A WRITE, or an atomic of the word, of a third host by another service.
fn foreign(
    b: &mut Bench,
    opcode: (Service, Operation),
    psn: u32,
    (va, len): (u64, u32),
    payload: usize,
) -> bool {
    let mut packet = b.packet(3, 2, opcode.1, psn);
    packet.bth.opcode = Opcode::new(opcode.0, opcode.1);
    packet.reth = Reth { va, rkey: RKEY, len };
    packet.atomic = AtomicEth { va, rkey: RKEY, swap_add: 1, compare: 0 };
    b.send(OTHER, &packet, &vec![1; payload]).len() == 1
}

#[test]
fn what_other_services_change_is_left_to_the_server() {
    let write = Operation::WriteOnly;
    let all = [
        (Service::Uc, write),
        (Service::Xrc, write),
        (Service::Irn, write),
        (Service::Irn, Operation::WriteLast),
        (Service::Xrc, Operation::CompareSwap),
        (Service::Irn, Operation::FetchAdd),
    ];
    for opcode in all {
        let mut b = Bench::cas(true, |_| {});
        let payload = if opcode.1.is_write() { 8 } else { 0 };
        b.known(5);
        assert!(foreign(&mut b, opcode, 7, (VA + 8, 8), payload), "{opcode:?}: beside the word");
        assert_eq!(operation(&b.compare_swap(102, 5, 6)[0].1), Operation::WriteOnly, "{opcode:?}");
        // It must not meet what is on its way.
        assert!(!foreign(&mut b, opcode, 8, (VA, 8), payload), "{opcode:?}");
        assert_eq!((b.dropped(Drop::HoldRoom), b.get(Counter::WordsUnsure)), (1, 0));
        b.ack(102, 43);
        assert!(foreign(&mut b, opcode, 8, (VA, 8), payload), "{opcode:?}");
        assert_eq!(b.get(Counter::WordsUnsure), 1);
        assert_eq!(operation(&b.compare_swap(103, 6, 7)[0].1), Operation::CompareSwap, "{opcode:?}");
        // Nor what another instance has converted.
        let mut b = Bench::cas(true, |_| {});
        b.now = Instant::from_ns(1000);
        assert!(!foreign(&mut b, opcode, 8, (VA, 8), payload), "{opcode:?}");
        assert_eq!(b.dropped(Drop::Starting), 1);
    }
}

#[test]
fn later_packets_of_other_services_write_where_their_first_one_said() {
    for service in [Service::Uc, Service::Xrc] {
        let mut b = Bench::cas(true, |_| {});
        let middle = (service, Operation::WriteMiddle);
        b.known(5);
        // Nobody has seen the first packet: the server of UC drops this one, that of XRC may have had it.
        let unknown = u64::from(service == Service::Xrc);
        assert!(foreign(&mut b, middle, 20, (0, 0), 256));
        assert_eq!(b.get(Counter::WordsUnsure), unknown);
        // Elsewhere.
        foreign(&mut b, (service, Operation::WriteFirst), 30, (VA + 8, 512), 256);
        foreign(&mut b, middle, 31, (0, 0), 256);
        assert_eq!(b.get(Counter::WordsUnsure), unknown);
        // Over the word, and once more when that has been learned meanwhile.
        let mut psn = 102;
        for (operation, number) in [(Operation::WriteFirst, 40), (Operation::WriteMiddle, 41)] {
            foreign(&mut b, (service, operation), number, (VA - 256, 512), 256);
            b.now += LIFE;
            assert_eq!(operation_of_next(&mut b, psn), Operation::CompareSwap, "{service:?} {operation:?}");
            b.answer(psn, psn - 59, 5);
            assert_eq!(operation_of_next(&mut b, psn + 1), Operation::WriteOnly, "{service:?} {operation:?}");
            b.ack(psn + 1, psn - 58);
            psn += 2;
        }
        // Damage does not move it.
        let mut first = b.packet(3, 2, Operation::WriteFirst, 42);
        first.bth.opcode = Opcode::new(service, Operation::WriteFirst);
        (first.reth, first.payload_len) = (Reth { va: VA + 8, rkey: RKEY, len: 512 }, 256);
        let mut bytes = b.emit(&first, &[1; 256]);
        bytes[100] ^= 1;
        b.switch.on_frame(b.now, OTHER, bytes.clone());
        assert_eq!(b.switch.next_frame(), Some((SERVER, bytes)), "the server's to drop");
        let before = b.get(Counter::WordsUnsure);
        foreign(&mut b, middle, 43, (0, 0), 256);
        assert_eq!(b.get(Counter::WordsUnsure), before + 1, "{service:?}");
        // What comes again from before that message is of one that nobody remembers.
        let before = b.get(Counter::WordsUnsure);
        foreign(&mut b, middle, 31, (0, 0), 256);
        assert_eq!(b.get(Counter::WordsUnsure), before + unknown, "{service:?}");
    }
}

/// What a compare and swap that fails, or would, becomes.
fn operation_of_next(b: &mut Bench, psn: u32) -> Operation {
    operation(&b.compare_swap(psn, 0, 9)[0].1)
}

#[test]
fn a_refused_write_ends_conversion_under_its_key() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    b.compare_swap(102, 5, 6);
    let out = b.acknowledge(102, 42, Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!((out.len(), operation(&out[0].1)), (1, Operation::Acknowledge));
    assert_eq!(b.get(Counter::KeysRefused), 1);
    b.now += FLIGHT;
    assert_eq!(operation(&b.compare_swap(103, 6, 7)[0].1), Operation::CompareSwap);
}

#[test]
fn answers_that_no_client_should_see_are_dropped() {
    let mut b = Bench::cas(true, |_| {});
    // From before this switch: it may be the answer to an atomic that another switch converted.
    assert_eq!((b.ack(99, 39).len(), b.dropped(Drop::AckUnseen)), (0, 1));
    b.known(5);
    assert_eq!((b.ack(99, 39).len(), b.dropped(Drop::AckUnseen)), (0, 2));
    assert_eq!((b.ack(102, 43).len(), b.dropped(Drop::AckUnseen)), (0, 3), "not asked yet");
    assert_eq!((b.ack(101, 42).len(), b.dropped(Drop::AckBare)), (0, 1), "an atomic's, without its value");
    b.compare_swap(102, 5, 6);
    assert_eq!((b.answer(102, 43, 1).len(), b.dropped(Drop::AckBare)), (0, 2), "a WRITE has no such answer");
}

#[test]
fn nothing_meets_what_may_still_be_on_its_way() {
    // What another switch has converted.
    let mut b = Bench::cas(true, |_| {});
    b.now = Instant::from_ns(1000);
    assert_eq!((b.compare_swap(100, 0, 1).len(), b.dropped(Drop::Starting)), (0, 1));
    let mut read = b.packet(1, 2, Operation::ReadRequest, 100);
    read.reth = Reth { va: VA, rkey: RKEY, len: 8 };
    assert_eq!(b.send(CLIENT, &read, &[]).len(), 1);
    // What a client that has gone has left.
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    b.compare_swap(102, 5, 6);
    b.switch.remove_port(b.now, CLIENT).unwrap();
    let other = |b: &mut Bench, psn| {
        let mut packet = b.packet(3, 2, Operation::FetchAdd, psn);
        packet.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add: 1, compare: 0 };
        b.send(OTHER, &packet, &[]).len()
    };
    assert_eq!(other(&mut b, 7), 0, "it waits");
    b.now += FLIGHT;
    b.switch.on_timer(b.now);
    assert_eq!(b.drain().len(), 1, "now the server decides");
}

#[test]
fn results_are_kept_for_16_and_no_more_are_decided() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    let sent: usize = (102..120).map(|psn| b.compare_swap(psn, 0, 1).len()).sum();
    // The two that taught the word have been answered, and make room.
    assert_eq!((sent, b.dropped(Drop::Depth)), (16 + 1, 1), "16 as WRITEs, then a NAK for the gap");
    assert_eq!(b.get(Counter::CasRefused), 16);
    assert_eq!(b.ack(117, 58).len(), 16);
    assert_eq!(b.compare_swap(118, 0, 1).len(), 1);
}

#[test]
fn what_comes_too_late_does_not_reach_a_word_that_was_given_back() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    b.compare_swap(102, 5, 6);
    // No acknowledgement for longer than a packet's life: the server decides the next one.
    b.now += LIFE + Duration::from_ms(1);
    assert_eq!(operation(&b.compare_swap(103, 5, 7)[0].1), Operation::CompareSwap);
    assert_eq!((b.compare_swap(102, 5, 6).len(), b.dropped(Drop::Late)), (0, 1));
}

#[test]
fn words_without_a_place_are_the_servers() {
    let mut b = Bench::cas(true, |config| config.words_max = 1);
    b.known(5);
    b.compare_swap(102, 5, 6);
    let mut other = b.packet(1, 2, Operation::FetchAdd, 103);
    other.atomic = AtomicEth { va: VA + 8, rkey: RKEY, swap_add: 1, compare: 0 };
    let out = b.send(CLIENT, &other, &[]);
    assert_eq!((operation(&out[0].1), b.get(Counter::WordsFull)), (Operation::FetchAdd, 1));
    // Its answer is nobody's that the switch knows, and passes; it also says that the WRITE was done.
    let out = b.answer(103, 44, 0);
    let said: Vec<_> = out.iter().map(|(_, p, ..)| (operation(p), p.bth.psn.get())).collect();
    assert_eq!(said, [(Operation::AtomicAcknowledge, 102), (Operation::AtomicAcknowledge, 103)]);
}

#[test]
fn damage_is_not_hidden() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    let mut packet = b.packet(1, 2, Operation::CompareSwap, 102);
    packet.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add: 1, compare: 5 };
    let mut bytes = b.emit(&packet, &[]);
    bytes[60] ^= 1;
    assert_eq!((b.raw(CLIENT, bytes).len(), b.dropped(Drop::Icrc)), (0, 1));
}

#[test]
fn two_connections_that_fit_one_answer_are_not_guessed() {
    let mut b = Bench::cas(true, |_| {});
    for qpn in [SERVER_QPN, SERVER_QPN + 1] {
        let mut packet = b.packet(1, 2, Operation::FetchAdd, 100);
        packet.bth.dest_qp = QpNumber::new(qpn);
        packet.atomic = AtomicEth { va: VA + u64::from(qpn) * 8, rkey: RKEY, swap_add: 0, compare: 0 };
        b.send(CLIENT, &packet, &[]);
    }
    assert_eq!(b.answer(100, 1, 5).len(), 1);
    assert_eq!((b.get(Counter::Ambiguous), b.get(Counter::Paired)), (1, 0));
}

/// What its connection carried is still acknowledged, to an address that nobody has any more.
#[test]
fn a_client_that_has_gone_leaves_its_carrier_to_others() {
    let carry = Some(CarryConfig { carriers: 1, ..CarryConfig::default() });
    let every = NonZeroU32::new(1);
    let config = CasConfig { life: LIFE, words_max: 16, carry, ..CasConfig::new(gid(2, true)) };
    let ecn = ProgramConfig::Ecn(MarkConfig { above: None, every });
    let programs = [ecn, ProgramConfig::CasToWrite(config)].map(|p| p.begin(Instant::ZERO).unwrap());
    let mut b = Bench::of(programs.into(), true);
    let words = |b: &Bench| match &b.switch.programs()[1] {
        Program::CasToWrite(cas) => (cas.count_words(), cas.carriers().count(), cas.shifted().len()),
        _ => unreachable!(),
    };
    for psn in [100, 101] {
        b.atomic(psn, Operation::FetchAdd, 0, 0);
        b.answer(psn, psn - 59, 5);
        b.now += LIFE;
    }
    assert_eq!(operation(&b.atomic(102, Operation::FetchAdd, 1, 0)[0].1), Operation::WriteOnly);
    assert_eq!((words(&b).0.pending, words(&b).1, words(&b).2, b.get(Counter::Shifted)), (1, 1, 1, 1));
    b.switch.remove_port(b.now, CLIENT).unwrap();
    assert_eq!((words(&b).0.pending, words(&b).1), (1, 1), "it is still to be acknowledged");
    assert!(b.ack(102, 43).is_empty());
    assert_eq!((words(&b).0.known, b.dropped(Drop::NoRoute)), (1, 0));
    // Nothing is carried for others: it is for nobody.
    b.switch.on_timer(b.now);
    assert!(b.ack(102, 43).is_empty());
    // Late packets of the queue pair are dropped until its address leaves again.
    assert_eq!((words(&b).1, words(&b).2), (0, 1));
    let packet = b.packet(3, 1, Operation::SendOnly, 1);
    assert!(b.send(OTHER, &packet, &[]).is_empty());
    assert_eq!((b.dropped(Drop::NoRoute), b.dropped(Drop::AckUnseen)), (1, 1));
}

/// A compare and swap of the third host's, whose queue pair at the server is another one.
fn other_swaps(b: &mut Bench, psn: u32, compare: u64, swap: u64) -> Out {
    others_swap(b, SERVER_QPN + 1, (psn, VA), compare, swap)
}

/// The same of any queue pair of that host's, for any word.
fn others_swap(b: &mut Bench, qpn: u32, (psn, va): (u32, u64), compare: u64, swap: u64) -> Out {
    let mut packet = b.packet(3, 2, Operation::CompareSwap, psn);
    packet.bth.dest_qp = QpNumber::new(qpn);
    packet.atomic = AtomicEth { va, rkey: RKEY, swap_add: swap, compare };
    b.send(OTHER, &packet, &[])
}

/// The server answers that queue pair.
fn other_is_answered(b: &mut Bench, operation: Operation, psn: u32, msn: u32, original: u64) -> Out {
    others_are_answered(b, (CLIENT_QPN, operation, psn), msn, original)
}

/// The same, to any queue pair of that host's.
fn others_are_answered(
    b: &mut Bench,
    (qpn, operation, psn): (u32, Operation, u32),
    msn: u32,
    original: u64,
) -> Out {
    let mut packet = b.packet(2, 3, operation, psn);
    packet.bth.dest_qp = QpNumber::new(qpn);
    packet.aeth = Aeth { syndrome: Syndrome::default(), msn };
    packet.atomic_original = original;
    b.send(SERVER, &packet, &[])
}

/// What goes to the server: queue pair, number and bytes of each WRITE.
fn writes(out: &Out) -> Vec<(u32, u32, usize)> {
    let to_server = out.iter().filter(|o| o.0 == SERVER && operation(&o.1) == Operation::WriteOnly);
    to_server.map(|o| (o.1.bth.dest_qp.get(), o.1.bth.psn.get(), o.2.len())).collect()
}

/// A server that destroys a queue pair keeps its client out: what that asks for is carried under another
/// client's rights only as long as the server has lately answered its own queue pair.
#[test]
fn what_a_destroyed_queue_pairs_client_asks_for_is_not_carried() {
    let proof = Duration::from_ms(10);
    for is_destroyed in [false, true] {
        let carry = Some(CarryConfig { carriers: 1, proof, ..CarryConfig::default() });
        let mut b = Bench::cas(true, |config| config.carry = carry);
        b.known(5);
        assert_eq!(writes(&b.compare_swap(102, 5, 6)), [(SERVER_QPN, 102, 8)], "its client's own");
        assert_eq!(b.ack(102, 43).len(), 1);
        // The other one's first goes to the server as it is: the answer says that the key is accepted.
        assert_eq!(operation(&other_swaps(&mut b, 500, 0, 1)[0].1), Operation::CompareSwap);
        assert_eq!(other_is_answered(&mut b, Operation::AtomicAcknowledge, 500, 1, 6).len(), 1);
        assert_eq!(writes(&other_swaps(&mut b, 501, 6, 7)), [(SERVER_QPN, 103, 8)], "carried");
        let out = b.ack(103, 44);
        assert_eq!((out.len(), out[0].0, operation(&out[0].1)), (1, OTHER, Operation::AtomicAcknowledge));
        b.now += proof;
        // For long nothing has come for the other one's own queue pair: the server is asked.
        assert_eq!(writes(&other_swaps(&mut b, 502, 7, 8)), [(SERVER_QPN + 1, 501, 0)]);
        assert_eq!((b.get(Counter::Proofs), b.get(Counter::Moved)), (1, 1));
        if is_destroyed {
            // No answer: it is asked again, and rests when its client does.
            for round in 1..4 {
                for _ in 0..20 {
                    b.now += Duration::from_us(500);
                    b.switch.on_timer(b.now);
                    assert!(writes(&b.drain()).iter().all(|write| *write == (SERVER_QPN + 1, 501, 0)));
                }
                assert_eq!((b.dropped(Drop::HoldTime), b.switch.next_deadline()), (round, None));
                assert_eq!(writes(&other_swaps(&mut b, 502, 7, 8)), [(SERVER_QPN + 1, 501, 0)]);
            }
            assert_eq!(b.get(Counter::Resent), 3 * 5);
            assert_eq!((b.get(Counter::Proofs), b.get(Counter::Moved)), (1, 1));
            // The word is what it was, and others go on.
            assert_eq!(b.compare_swap(103, 7, 9)[0].2, 9u64.to_le_bytes());
            assert_eq!(b.ack(104, 45)[0].1.atomic_original, 7);
            continue;
        }
        let out = other_is_answered(&mut b, Operation::Acknowledge, 501, 2, 0);
        assert_eq!((out.len(), writes(&out)), (1, vec![(SERVER_QPN, 104, 8)]), "carried again");
        let answered = b.ack(104, 45);
        assert_eq!((answered[0].0, answered[0].1.atomic_original, answered[0].1.aeth.msn), (OTHER, 7, 3));
        // Its own next request has the numbers that the server counts.
        let mut packet = b.packet(3, 2, Operation::SendOnly, 503);
        packet.bth.dest_qp = QpNumber::new(SERVER_QPN + 1);
        assert_eq!(b.send(OTHER, &packet, &[])[0].1.bth.psn, Psn::new(502));
        let answer = other_is_answered(&mut b, Operation::Acknowledge, 502, 3, 0);
        assert_eq!((answer[0].1.bth.psn, answer[0].1.aeth.msn), (Psn::new(503), 4));
    }
}

/// After a carrier has failed, the client whose request it had carries the word itself. The next carrier may
/// have been silent for as long, and to find that out takes as much time again.
#[test]
fn a_failed_carriers_words_go_to_who_waits_and_not_to_the_next_one() {
    let carry = Some(CarryConfig { carriers: 2, ..CarryConfig::default() });
    let mut b = Bench::cas(true, |config| config.carry = carry);
    b.known(5);
    assert_eq!(writes(&b.compare_swap(102, 5, 6)), [(SERVER_QPN, 102, 8)], "the first carrier");
    b.ack(102, 43);
    // Two more queue pairs of which the server accepts the key. The first of them is the second carrier.
    let (next, waits) = (SERVER_QPN + 1, SERVER_QPN + 2);
    for (qpn, client) in [(next, CLIENT_QPN), (waits, CLIENT_QPN + 1)] {
        others_swap(&mut b, qpn, (500, VA), 0, 1);
        others_are_answered(&mut b, (client, Operation::AtomicAcknowledge, 500), 1, 6);
    }
    assert_eq!(writes(&others_swap(&mut b, next, (501, VA), 6, 7)), [(SERVER_QPN, 103, 8)]);
    assert_eq!(b.ack(103, 44).len(), 1);
    // Then nobody answers any more for the first one.
    assert_eq!(writes(&others_swap(&mut b, waits, (501, VA), 7, 8)), [(SERVER_QPN, 104, 8)]);
    let mut moved = Vec::new();
    while moved.is_empty() {
        b.now = b.switch.next_deadline().expect("it is sent again, and given on");
        b.switch.on_timer(b.now);
        moved = writes(&b.drain());
        moved.retain(|write| write.0 != SERVER_QPN);
    }
    assert_eq!((moved, b.get(Counter::MovedOn)), (vec![(waits, 501, 8)], 1), "its own queue pair");
    let out = others_are_answered(&mut b, (CLIENT_QPN + 1, Operation::Acknowledge, 501), 2, 0);
    assert_eq!((out.len(), operation(&out[0].1)), (1, Operation::AtomicAcknowledge));
    // What comes for the word now goes there too.
    let out = others_swap(&mut b, waits, (502, VA), 8, 9);
    assert_eq!(writes(&out), [(waits, 502, 8)], "not to the second carrier");
}

/// What the last instance let go under a shifted number may be answered after this one has begun. At the
/// client that number is another request's: the answer would complete that one with a value not its own.
#[test]
fn answers_under_numbers_that_another_instance_has_shifted_reach_nobody() {
    use Operation::{AtomicAcknowledge, ReadResponseOnly};
    for shifted in [false, true] {
        let carry = Some(CarryConfig::default());
        let mut b = Bench::cas(true, |config| config.carry = carry);
        // The bench's clock stands behind the quiet time of a start at 0, and before the end of that flight.
        b.now = Instant::ZERO + FLIGHT;
        if shifted {
            b.switch.set_shifted(&[(gid(1, true), QpNumber::new(SERVER_QPN))]);
        }
        let mut passed = 0;
        for operation in [AtomicAcknowledge, ReadResponseOnly] {
            let mut packet = b.packet(2, 1, operation, 500);
            packet.aeth = Aeth { syndrome: Syndrome::default(), msn: 1 };
            packet.atomic_original = 4;
            passed +=
                b.send(SERVER, &packet, &[0; 8][..if operation == ReadResponseOnly { 8 } else { 0 }]).len();
        }
        assert_eq!((passed, b.dropped(Drop::AckUnseen)), if shifted { (0, 2) } else { (2, 0) });
        // Another client's, and this one's when all of that has arrived, are not held up.
        assert_eq!(other_is_answered(&mut b, AtomicAcknowledge, 500, 1, 4).len(), 1);
        b.now = b.now + FLIGHT + FLIGHT;
        assert_eq!(b.answer(500, 1, 4).len(), 1);
    }
}

#[test]
fn announced_connections_need_no_guess() {
    let mut b = Bench::cas(true, |_| {});
    let (client, server) = (gid(1, true), gid(2, true));
    let announcement = Announcement {
        client,
        client_qpn: QpNumber::new(CLIENT_QPN),
        server,
        server_qpn: QpNumber::new(SERVER_QPN),
        psn: Psn::new(7),
        path_mtu: 1024,
    };
    b.switch.announce(b.now, &announcement);
    // A READ of three packets, then an atomic in its turn.
    let mut read = b.packet(1, 2, Operation::ReadRequest, 7);
    read.reth = Reth { va: 0, rkey: RKEY, len: 3000 };
    b.send(CLIENT, &read, &[]);
    assert_eq!(b.atomic(10, Operation::FetchAdd, 0, 0).len(), 1);
    b.answer(10, 2, 5);
    b.now += LIFE;
    b.atomic(11, Operation::FetchAdd, 0, 0);
    b.answer(11, 3, 5);
    assert_eq!(b.compare_swap(12, 5, 6)[0].2, 6u64.to_le_bytes());
    assert_eq!(b.ack(12, 4)[0].1.aeth.msn, 4);
}

#[test]
fn what_no_rule_touches_leaves_bit_for_bit() {
    for cas in [false, true] {
        for opcode in Opcode::all() {
            let mut b = if cas { Bench::cas(true, |_| {}) } else { Bench::of(Vec::new(), true) };
            let mut packet = Packet { flow: b.flow(1, 3), ..Packet::default() };
            packet.bth.opcode = opcode;
            packet.payload_len = 21;
            let mut bytes = b.emit(&packet, &[7; 21]);
            bytes[32] |= 0x15; // Reserved bits of the BTH, which the ICRC does not cover.
            let last = bytes.len() - 1;
            bytes[last] ^= 1; // A wrong ICRC is the receiver's to count.
            let mut padded = bytes.clone();
            padded.extend([0; 6]);
            b.switch.on_frame(b.now, CLIENT, padded);
            assert_eq!(b.switch.next_frame(), Some((OTHER, bytes)), "{opcode:?}");
        }
    }
}

/// What is not RC, IRN and XRC among it, passes untouched where words are the switch's, too, both ways.
#[test]
fn what_is_not_rc_passes_to_the_server_and_back_bit_for_bit() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    for opcode in Opcode::all().filter(|opcode| !opcode.is_of(Service::Rc)) {
        for (port, from, to, out) in [(CLIENT, 1, 2, SERVER), (SERVER, 2, 1, CLIENT)] {
            let mut packet = b.packet(from, to, Operation::SendOnly, 102);
            packet.bth.opcode = opcode;
            packet.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add: 1, compare: 5 };
            packet.reth = Reth { va: VA, rkey: RKEY, len: 8 };
            packet.payload_len = 8;
            let bytes = b.emit(&packet, &[7; 8]);
            b.switch.on_frame(b.now, port, bytes.clone());
            assert_eq!(b.switch.next_frame(), Some((out, bytes)), "{opcode:?}");
        }
    }
    assert_eq!((b.get(Counter::Changed), b.get(Counter::Generated), b.get(Counter::Held)), (0, 0, 0));
}

#[test]
fn frames_are_taken_from_their_port_only() {
    let mut b = Bench::of(Vec::new(), true);
    let packet = b.packet(1, 2, Operation::SendOnly, 1);
    assert_eq!((b.send(OTHER, &packet, &[]).len(), b.dropped(Drop::Source)), (0, 1));
    let mut stray = packet;
    stray.flow.dst = gid(9, true);
    assert_eq!((b.send(CLIENT, &stray, &[]).len(), b.dropped(Drop::NoRoute)), (0, 1));
    assert_eq!((b.raw(CLIENT, vec![0x45; 30]).len(), b.dropped(Drop::Parse)), (0, 1));
    assert_eq!((b.raw(PortId(9), vec![]).len(), b.dropped(Drop::NoPort)), (0, 1));
    let (one, two) = (gid(1, true), gid(2, true));
    assert_eq!(b.switch.claim(OTHER, one), Err(Error::AddressTaken(one, CLIENT)));
    assert_eq!(b.switch.claim(CLIENT, one), Ok(()));
    let group = Gid::from("224.0.0.9".parse::<IpAddr>().unwrap());
    assert_eq!(b.switch.claim(CLIENT, group), Err(Error::NotAHost(group)));
    // A group's frames go everywhere else.
    let mut many = packet;
    many.flow.dst = group;
    assert_eq!(b.send(CLIENT, &many, &[]).iter().map(|o| o.0).collect::<Vec<_>>(), [SERVER, OTHER]);
    b.switch.remove_port(b.now, SERVER).unwrap();
    assert_eq!((b.send(CLIENT, &packet, &[]).len(), b.dropped(Drop::NoRoute)), (0, 2));
    assert_eq!(b.switch.claim(OTHER, two), Ok(()));
    assert_eq!(b.send(CLIENT, &packet, &[])[0].0, OTHER);
}

#[test]
fn ecn_marks_and_trim_cuts() {
    let every = |n| MarkConfig { every: NonZeroU32::new(n), above: None };
    let mut b = Bench::of(vec![Program::Ecn(Mark::new(every(2)))], true);
    let packet = b.packet(1, 2, Operation::SendOnly, 1);
    let marks: Vec<u8> = (0..4).map(|_| b.send(CLIENT, &packet, &[1])[0].1.flow.traffic_class).collect();
    assert_eq!(marks, [2, 3, 2, 3]);
    let mut plain = packet;
    plain.flow.traffic_class = 0;
    assert_eq!((0..4).filter(|_| b.send(CLIENT, &plain, &[1])[0].1.flow.traffic_class != 0).count(), 0);

    let above = MarkConfig { every: None, above: Some(1000) };
    let mut b = Bench::of(vec![Program::Trim(Mark::new(above))], true);
    assert_eq!(b.send(CLIENT, &packet, &[1; 64])[0].2.len(), 64);
    b.switch.set_depth(SERVER, 1000);
    let bytes = b.emit(&Packet { payload_len: 64, ..packet }, &[1; 64]);
    b.switch.on_frame(b.now, CLIENT, bytes);
    let (_, cut) = b.switch.next_frame().unwrap();
    let parsed = Packet::parse_ip(&cut).unwrap();
    assert_eq!((parsed.packet, cut.len()), (packet, packet.frame_len()));
    assert!(!verify_ip(&cut, parsed.ip_header_len), "its receiver drops it");
    assert_eq!(b.get(Counter::Trimmed), 1);
}

/// Told something else, they go on with what they have counted of each port.
#[test]
fn ecn_and_trim_that_are_told_something_else_go_on() {
    let every = |n| MarkConfig { every: NonZeroU32::new(n), above: None };
    let above = MarkConfig { every: None, above: Some(1000) };
    let mut b = Bench::of(vec![Program::Ecn(Mark::new(every(3))), Program::Trim(Mark::new(every(3)))], true);
    let packet = b.packet(1, 2, Operation::SendOnly, 1);
    let marks = |b: &mut Bench, count: u32| -> Vec<u8> {
        (0..count).map(|_| b.send(CLIENT, &packet, &[])[0].1.flow.traffic_class).collect()
    };
    assert_eq!(marks(&mut b, 2), [2, 2]);
    let row = [Next::Changed(0, ProgramConfig::Ecn(every(5))), Next::Kept(1)];
    b.switch.reload(b.now, &row, 8).unwrap();
    // The third would have been one; the fifth of the port is.
    assert_eq!(marks(&mut b, 4), [2, 2, 3, 2]);
    let row = [Next::Changed(1, ProgramConfig::Trim(above)), Next::Changed(0, ProgramConfig::Ecn(above))];
    b.switch.reload(b.now, &row, 8).unwrap();
    let seen = b.switch.programs().iter().map(|program| match program {
        Program::Ecn(mark) | Program::Trim(mark) => (program.name(), mark.config(), mark.seen().iter().sum()),
        _ => unreachable!(),
    });
    let seen: Vec<(&str, MarkConfig, u32)> = seen.collect();
    assert_eq!(seen, [("trim", above, 0), ("ecn", above, 6)], "trim does not count what has no payload");
    assert_eq!(marks(&mut b, 2), [2, 2]);
    b.switch.set_depth(SERVER, 1000);
    assert_eq!(marks(&mut b, 1), [3]);
    for (from, to, may) in [
        (ProgramConfig::Ecn(above), ProgramConfig::Ecn(every(2)), true),
        (ProgramConfig::Trim(above), ProgramConfig::Trim(every(2)), true),
        (ProgramConfig::Ecn(above), ProgramConfig::Trim(above), false),
        (ProgramConfig::Trim(above), ProgramConfig::Ecn(above), false),
    ] {
        assert_eq!(from.may_become(&to), may, "{from:?} {to:?}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let config = CasConfig::new(gid(2, true));
    let refused = |config| CasToWrite::new(config, Instant::ZERO).err().is_some();
    assert!(!refused(config));
    assert!(refused(CasConfig { words: WordRange::Range { va: 4, len: 8 }, ..config }));
    assert!(refused(CasConfig { words: WordRange::Range { va: 8, len: 0 }, ..config }));
    assert!(refused(CasConfig { words: WordRange::Range { va: u64::MAX - 7, len: 16 }, ..config }));
    assert!(refused(CasConfig { words_max: 0, ..config }));
    assert!(refused(CasConfig { hold: LIFE, life: LIFE, ..config }));
    let twice =
        [0; 2].map(|_| Program::CasToWrite(Box::new(CasToWrite::new(config, Instant::ZERO).unwrap())));
    assert_eq!(Switch::new(twice.into(), 0).err(), Some(Error::ServerTwice(gid(2, true))));
}

#[test]
fn the_program_fits_software_only_and_says_why() {
    let b = Bench::cas(true, |_| {});
    let needs = b.switch.needs();
    assert_eq!(needs.misfits(Profile::Software), []);
    let said: Vec<String> = needs.misfits(Profile::Tofino1).iter().map(Misfit::to_string).collect();
    assert!(said.contains(&"holds packets, which no stage can".to_owned()), "{said:?}");
    assert!(said.contains(&"words: 192 bits of an entry, 64 there (128 too many)".to_owned()), "{said:?}");
}

#[test]
fn the_trace_says_why() {
    let mut b = Bench::cas(true, |_| {});
    b.known(5);
    b.compare_swap(102, 5, 6);
    b.ack(102, 43);
    let said: Vec<String> = b.switch.trace().events().map(Event::to_string).collect();
    let last = &said[said.len() - 2..];
    assert!(last[0].ends_with("psn 0x000066  va 0x70000000  granted; out 1 as WRITE of 0x6"), "{last:?}");
    assert!(last[1].ends_with("out 0 as atomic ACK, original 0x5"), "{last:?}");
}

/// Other programs in the place of those that run: one that stays knows what it knew, one that has to answer
/// does not go, and where something is wrong all is as it was.
#[test]
fn a_row_takes_the_place_of_another() {
    let config = CasConfig { life: LIFE, words_max: 16, ..CasConfig::new(gid(2, true)) };
    let mut b = Bench::cas(true, |_| ());
    let ecn = || Next::New(ProgramConfig::Ecn(MarkConfig { above: None, every: NonZeroU32::new(1) }));
    let another = |config| Next::New(ProgramConfig::CasToWrite(config));
    b.known(9);
    b.switch.reload(b.now, &[ecn(), Next::Kept(0)], 8).unwrap();
    let names = |b: &Bench| b.switch.programs().iter().map(Program::name).collect::<Vec<_>>();
    assert_eq!(names(&b), ["ecn", "cas_to_write"]);
    let out = b.compare_swap(102, 9, 10);
    assert_eq!(operation(&out[0].1), Operation::WriteOnly, "its word is still known");
    assert_eq!(out[0].1.flow.traffic_class & 3, 3, "and ecn sees it before");
    // Its answer is awaited.
    let refused = b.switch.reload(b.now, &[Next::Kept(0)], 8).unwrap_err().to_string();
    assert!(refused.contains("atomics are under way"), "{refused}");
    let twice = [Next::Kept(1), another(config)];
    assert_eq!(b.switch.reload(b.now, &twice, 8), Err(Error::ServerTwice(gid(2, true))));
    let wrong = [another(CasConfig { words_max: 0, ..config })];
    assert!(matches!(b.switch.reload(b.now, &wrong, 8), Err(Error::Program(_))));
    assert_eq!(b.switch.reload(b.now, &vec![ecn(); 9], 8), Err(Error::TooManyPrograms));
    assert_eq!((names(&b).len(), b.ack(102, 43)[0].1.atomic_original), (2, 9));
    // Now it may go. Told something else it is as one that starts, and believes only what it has seen asked.
    b.compare_swap(103, 10, 11);
    b.switch.reload(b.now, &[Next::Kept(0), another(CasConfig { words_max: 8, ..config })], 8).unwrap();
    assert!(b.ack(103, 44).is_empty());
    assert_eq!(b.dropped(Drop::AckUnseen), 1);
    b.switch.reload(b.now, &[], 2).unwrap();
    assert_eq!((names(&b).len(), b.switch.trace().events().count()), (0, 2));
    assert_eq!(operation(&b.compare_swap(104, 11, 12)[0].1), Operation::CompareSwap);
    assert!(b.get(Counter::CasGranted) == 2 && b.switch.ports().count() == 3, "counters and ports stay");
}

/// A program that is told something else as it runs has converted what it has converted: it gives answers,
/// repeats what is sent again, and knows its words.
#[test]
fn a_program_that_is_told_something_else_goes_on() {
    let config = CasConfig { life: LIFE, words_max: 16, ..CasConfig::new(gid(2, true)) };
    let mut b = Bench::cas(true, |_| ());
    let tell = |b: &mut Bench, next: CasConfig| {
        let row = [Next::Changed(0, ProgramConfig::CasToWrite(next))];
        b.switch.reload(b.now, &row, 64)
    };
    b.known(9);
    assert_eq!(operation(&b.compare_swap(102, 9, 10)[0].1), Operation::WriteOnly);
    let more = CasConfig { words_max: 17, connections_max: 1 << 11, hold: FLIGHT, ..config };
    tell(&mut b, more).unwrap();
    let again = b.compare_swap(102, 9, 10);
    assert_eq!((operation(&again[0].1), &*again[0].2), (Operation::WriteOnly, &10u64.to_le_bytes()[..]));
    assert_eq!((b.ack(102, 43)[0].1.atomic_original, b.dropped(Drop::AckUnseen)), (9, 0));
    assert_eq!(operation(&b.compare_swap(103, 10, 11)[0].1), Operation::WriteOnly, "its word is known");
    assert_eq!(b.ack(103, 44)[0].1.atomic_original, 10);
    assert!(b.switch.needs().registers.iter().any(|shape| (shape.name, shape.entries) == ("words", 17)));
    // What is wrong changes nothing.
    let wrong = CasConfig { hold: LIFE, ..more };
    assert!(matches!(tell(&mut b, wrong), Err(Error::Program(_))));
    let Program::CasToWrite(program) = &b.switch.programs()[0] else { unreachable!() };
    assert_eq!(*program.config(), more);
    // Of the other words that it is told of this one is none: the server's, from now on.
    tell(&mut b, CasConfig { words: WordRange::Range { va: VA + 8, len: 8 }, ..more }).unwrap();
    for psn in 104..108 {
        assert_eq!(operation(&b.compare_swap(psn, 11, 11)[0].1), Operation::CompareSwap);
        assert_eq!(b.answer(psn, psn - 59, 11).len(), 1);
        b.now += LIFE;
    }
    let other = |words_max, connections_max, byte_order, last| CasConfig {
        words_max,
        connections_max,
        byte_order,
        ..CasConfig { server: gid(last, true), ..config }
    };
    let (words, connections) = (config.words_max, config.connections_max);
    assert!(config.may_become(&other(words, connections, ByteOrder::Little, 2)));
    for next in [
        other(words - 1, connections, ByteOrder::Little, 2),
        other(words, connections - 1, ByteOrder::Little, 2),
        other(words, connections, ByteOrder::Big, 2),
        other(words, connections, ByteOrder::Little, 3),
        CasConfig { carry: Some(CarryConfig::default()), ..config },
    ] {
        assert!(!config.may_become(&next), "{next:?}");
    }
}

/// Told of a longer life, and a longer flight, a program waits for as long as if it had known.
#[test]
fn what_waits_for_a_packets_life_waits_for_a_longer_one() {
    for factor in [1, 2] {
        let mut b = Bench::cas(true, |_| ());
        let config = CasConfig { life: LIFE.times(factor), words_max: 16, ..CasConfig::new(gid(2, true)) };
        b.atomic(100, Operation::FetchAdd, 0, 0);
        b.answer(100, 41, 5);
        let row = [Next::Changed(0, ProgramConfig::CasToWrite(config))];
        b.switch.reload(b.now, &row, 64).unwrap();
        let known = [101, 102, 103].map(|psn| {
            b.now += LIFE;
            let out = b.atomic(psn, Operation::FetchAdd, 0, 0);
            if operation(&out[0].1) == Operation::FetchAdd {
                b.answer(psn, psn - 59, 5);
            } else {
                b.ack(psn, psn - 59);
            }
            let Program::CasToWrite(program) = &b.switch.programs()[0] else { unreachable!() };
            program.count_words().known == 1
        });
        assert_eq!(known, [factor == 1, true, true], "{factor}");
        // A program's flight from its start on nothing passes that changes memory.
        let late = Duration::from_ms(1);
        let flight = b.now.since(Instant::ZERO) + late;
        let config = CasConfig { flight, life: flight + LIFE, ..config };
        b.switch.reload(b.now, &[Next::Changed(0, ProgramConfig::CasToWrite(config))], 64).unwrap();
        assert!(b.atomic(104, Operation::FetchAdd, 0, 0).is_empty());
        assert_eq!(b.dropped(Drop::Starting), 1);
        b.now += late;
        assert_eq!(b.atomic(104, Operation::FetchAdd, 0, 0).len(), 1);
    }
}

/// Only the program that has shifted a queue pair's numbers can map them.
#[test]
fn a_row_without_a_carriers_program_is_refused() {
    let carry = Some(CarryConfig { carriers: 1, ..CarryConfig::default() });
    let config = CasConfig { life: LIFE, words_max: 16, carry, ..CasConfig::new(gid(2, true)) };
    let mut b = Bench::of(vec![ProgramConfig::CasToWrite(config).begin(Instant::ZERO).unwrap()], true);
    for psn in [100, 101] {
        b.atomic(psn, Operation::FetchAdd, 0, 0);
        b.answer(psn, psn - 59, 5);
        b.now += LIFE;
    }
    assert_eq!(operation(&b.atomic(102, Operation::FetchAdd, 1, 0)[0].1), Operation::WriteOnly);
    assert_eq!((b.ack(102, 43).len(), b.get(Counter::Shifted)), (1, 1));
    for row in [vec![], vec![Next::New(ProgramConfig::CasToWrite(CasConfig { words_max: 8, ..config }))]] {
        let refused = b.switch.reload(b.now, &row, 8).unwrap_err().to_string();
        assert!(refused.contains("numbers are shifted"), "{refused}");
    }
    b.switch.reload(b.now, &[Next::Kept(0)], 8).unwrap();
    assert_eq!(operation(&b.atomic(103, Operation::FetchAdd, 1, 0)[0].1), Operation::WriteOnly);
    assert_eq!(b.ack(103, 44).len(), 1);
    // The same program maps them still when it is told something else.
    let more = CasConfig { words_max: 32, ..config };
    b.switch.reload(b.now, &[Next::Changed(0, ProgramConfig::CasToWrite(more))], 8).unwrap();
    assert_eq!(operation(&b.atomic(104, Operation::FetchAdd, 1, 0)[0].1), Operation::WriteOnly);
    assert_eq!(b.ack(104, 45).len(), 1);
}

/// A READ overtakes another request on its way to the switch, and is overtaken by it on its way to the
/// server, which answers both. The client goes on behind it, and so must the switch.
#[test]
fn a_request_that_is_overtaken_twice_leaves_no_gap() {
    for is_paired in [false, true] {
        let mut b = Bench::cas(true, |_| {});
        if is_paired {
            b.known(5);
        }
        let look = |b: &mut Bench, psn| {
            let mut read = b.packet(1, 2, Operation::ReadRequest, psn);
            read.reth = Reth { va: VA, rkey: RKEY, len: 8 };
            b.send(CLIENT, &read, &[]).len()
        };
        let send = b.packet(1, 2, Operation::SendOnly, 102);
        if !is_paired {
            look(&mut b, 101);
        }
        assert_eq!(look(&mut b, 103), 1, "the server will find the gap, too");
        assert_eq!(b.send(CLIENT, &send, &[1]).len(), 1);
        let answer = b.packet(2, 1, Operation::ReadResponseOnly, 103);
        let reaches_client = b.send(SERVER, &answer, &[0; 8]).len() == 1;
        assert_eq!(reaches_client, !is_paired, "an answer to what has not come in its turn");
        if !reaches_client {
            assert_eq!(look(&mut b, 103), 1, "it is asked again");
            assert_eq!(b.send(SERVER, &answer, &[0; 8]).len(), 1);
        }
        let out = b.compare_swap(104, 5, 6);
        assert_eq!(out.len(), 1, "it is next");
        let becomes = if is_paired { Operation::WriteOnly } else { Operation::CompareSwap };
        assert_eq!((operation(&out[0].1), b.dropped(Drop::Gap)), (becomes, 0));
    }
}
