//! What clients of a switch may try against each other (`docs/switch-attacks.md`): each attack is made with
//! frames, and what it comes to is counted. Beside the attacker a client works whose words, connections and
//! waits must be as without it.

use adverb_switch::cas_to_write::carry::CarryConfig;
use adverb_switch::*;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Duration, Flow, Gid, Instant, Key, NakCode, Opcode, Operation, Packet, Psn,
    QpNumber, Service, Syndrome, WireExtra,
};
use std::net::IpAddr;

const VICTIM: u8 = 1;
const SERVER: u8 = 2;
const ATTACKER: u8 = 3;
const VA: u64 = 0x7000_0000;
const RKEY: Key = Key(0x1234);
const QPN: u32 = 0x11_0001;
const LIFE: Duration = Duration::from_ms(15);

fn gid(last: u8) -> Gid {
    Gid::from(format!("10.9.0.{last}").parse::<IpAddr>().unwrap())
}

/// What left the switch: to whom, and what.
type Out = Vec<(u8, Packet)>;

struct Rack {
    switch: Switch,
    now: Instant,
    /// The victim's next number.
    psn: u32,
    value: u64,
}

impl Rack {
    fn new(adjust: impl FnOnce(&mut CasConfig)) -> Rack {
        let mut config = CasConfig { life: LIFE, words_max: 64, ..CasConfig::new(gid(SERVER)) };
        adjust(&mut config);
        let program = CasToWrite::new(config, Instant::ZERO).unwrap();
        let mut switch = Switch::new(vec![Program::CasToWrite(Box::new(program))], 64).unwrap();
        for last in 1..=3 {
            let port = switch.add_port().unwrap();
            switch.claim(port, gid(last)).unwrap();
        }
        let mut rack = Rack { switch, now: Instant::from_ns(20_000_000), psn: 100, value: 5 };
        for _ in 0..2 {
            rack.victim_adds(0, true);
            rack.now += LIFE;
        }
        assert_eq!(rack.known(), 1, "the victim's word");
        rack
    }

    fn program(&self) -> &CasToWrite {
        let Program::CasToWrite(program) = &self.switch.programs()[0] else { unreachable!() };
        program
    }

    fn known(&self) -> usize {
        self.program().count_words().known
    }

    fn packet(from: u8, to: u8, qpn: u32, operation: Operation, psn: u32) -> Packet {
        let flow = Flow { src: gid(from), dst: gid(to), src_port: 0xc123, traffic_class: 2, hop_limit: 1 };
        let opcode = Opcode::new(Service::Rc, operation);
        let bth = Bth { opcode, psn: Psn::new(psn), dest_qp: QpNumber::new(qpn), ..Bth::default() };
        Packet { flow, bth, ..Packet::default() }
    }

    fn atomic(from: u8, qpn: u32, psn: u32, (va, rkey): (u64, Key), (compare, swap): (u64, u64)) -> Packet {
        let mut packet = Rack::packet(from, SERVER, qpn, Operation::CompareSwap, psn);
        packet.atomic = AtomicEth { va, rkey, swap_add: swap, compare };
        packet
    }

    fn answer(to: u8, operation: Operation, psn: u32, syndrome: Syndrome, original: u64) -> Packet {
        let mut packet = Rack::packet(SERVER, to, 0x22_0000 + u32::from(to), operation, psn);
        packet.aeth = Aeth { syndrome, msn: psn - 59 };
        packet.atomic_original = original;
        packet
    }

    /// A frame at a port, which need not be that of its source.
    fn send_at(&mut self, port: u8, packet: &Packet) -> Out {
        let payload = vec![0; packet.payload_len as usize];
        let mut bytes = vec![0; packet.frame_len()];
        assert_eq!(packet.emit_frame(&WireExtra::default(), &payload, &mut bytes), bytes.len());
        self.now += Duration::from_ns(1000);
        self.switch.on_frame(self.now, PortId(u16::from(port) - 1), bytes);
        self.switch.check_invariants();
        let mut out = Vec::new();
        while let Some((port, bytes)) = self.switch.next_frame() {
            out.push((port.0 as u8 + 1, Packet::parse_ip(&bytes).unwrap().packet));
        }
        out
    }

    fn send(&mut self, packet: &Packet) -> Out {
        let from = (1..=3).find(|last| gid(*last) == packet.flow.src).unwrap();
        self.send_at(from, packet)
    }

    /// The victim adds to its word and is answered: by the switch, or by the server where that decides.
    fn victim_adds(&mut self, more: u64, natively: bool) {
        let psn = self.psn;
        self.psn += 1;
        let mut add = Rack::packet(VICTIM, SERVER, QPN, Operation::FetchAdd, psn);
        add.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add: more, compare: 0 };
        let out = self.send(&add);
        let becomes = if natively { Operation::FetchAdd } else { Operation::WriteOnly };
        assert_eq!((out.len(), out[0].1.bth.opcode.operation()), (1, becomes), "psn {psn}");
        let kind = if natively { Operation::AtomicAcknowledge } else { Operation::Acknowledge };
        let out = self.send(&Rack::answer(VICTIM, kind, psn, Syndrome::default(), self.value));
        let answers: Out =
            out.into_iter().filter(|(to, p)| *to == VICTIM && p.bth.psn == Psn::new(psn)).collect();
        assert_eq!((answers.len(), answers[0].1.atomic_original), (1, self.value));
        self.value += more;
    }

    /// The switch is told both numbers of a connection of the attacker.
    fn announce(&mut self, client_qpn: u32, server_qpn: u32, psn: u32) {
        let (client, server) = (gid(ATTACKER), gid(SERVER));
        let [client_qpn, server_qpn] = [client_qpn, server_qpn].map(QpNumber::new);
        let told =
            Announcement { client, client_qpn, server, server_qpn, psn: Psn::new(psn), path_mtu: 1024 };
        self.switch.announce(self.now, &told);
    }

    fn dropped(&self, reason: Drop) -> u64 {
        self.switch.counters().dropped(reason)
    }

    fn get(&self, counter: Counter) -> u64 {
        self.switch.counters().get(counter)
    }
}

/// A request in the victim's name, and an answer in the server's, from the attacker's port.
#[test]
fn others_names_are_not_taken() {
    let mut rack = Rack::new(|_| ());
    let forged = Rack::atomic(VICTIM, QPN, rack.psn, (VA, RKEY), (5, 666));
    assert!(rack.send_at(ATTACKER, &forged).is_empty());
    // A request of the victim is under way, and the attacker answers for the server.
    let request = Rack::atomic(VICTIM, QPN, rack.psn, (VA, RKEY), (5, 6));
    assert_eq!(rack.send(&request).len(), 1);
    for kind in [Operation::Acknowledge, Operation::AtomicAcknowledge] {
        for syndrome in [Syndrome::default(), Syndrome::Nak(NakCode::RemoteAccessError)] {
            let answer = Rack::answer(VICTIM, kind, rack.psn, syndrome, 666);
            assert!(rack.send_at(ATTACKER, &answer).is_empty());
        }
    }
    assert_eq!((rack.dropped(Drop::Source), rack.program().count_words().pending), (5, 1));
    let out = rack.send(&Rack::answer(VICTIM, Operation::Acknowledge, rack.psn, Syndrome::default(), 0));
    assert_eq!((out.len(), out[0].1.atomic_original), (1, 5), "the server's own answer counts");
    (rack.psn, rack.value) = (rack.psn + 1, 6);
    rack.victim_adds(1, false);
}

/// Answers and requests under the attacker's own address, which name what is the victim's: the ends refuse
/// them by their source; the switch must not have believed them either.
#[test]
fn answers_of_other_clients_say_nothing_of_words() {
    let mut rack = Rack::new(|_| ());
    let request = Rack::atomic(VICTIM, QPN, rack.psn, (VA, RKEY), (5, 6));
    assert_eq!(rack.send(&request).len(), 1);
    for syndrome in [Syndrome::default(), Syndrome::Nak(NakCode::RemoteAccessError)] {
        let mut answer = Rack::answer(VICTIM, Operation::Acknowledge, rack.psn, syndrome, 0);
        answer.flow.src = gid(ATTACKER);
        rack.send(&answer);
        // The victim's own queue pair as the attacker's: another connection for the switch.
        let mut request = Rack::packet(ATTACKER, SERVER, QPN, Operation::SendOnly, rack.psn);
        request.bth.ack_req = true;
        rack.send(&request);
    }
    assert_eq!((rack.program().count_words().pending, rack.get(Counter::Answered)), (1, 0));
    let out = rack.send(&Rack::answer(VICTIM, Operation::Acknowledge, rack.psn, Syndrome::default(), 0));
    assert_eq!((out.len(), out[0].1.atomic_original), (1, 5));
    (rack.psn, rack.value) = (rack.psn + 1, 6);
    rack.victim_adds(1, false);
}

/// A key that the server does not grant to a queue pair, be it a wrong one or a guess at the right one: the
/// switch never answers for it, so that even a compare and swap that fails tells nothing of the word.
#[test]
fn a_key_that_was_not_granted_learns_nothing() {
    let mut rack = Rack::new(|_| ());
    for (n, key) in [RKEY, Key(0x9999)].into_iter().enumerate() {
        let (client_qpn, server_qpn) = (0x33_0000 + n as u32, QPN + 1 + n as u32);
        rack.announce(client_qpn, server_qpn, 200);
        let answered = rack.get(Counter::Answered);
        let out = rack.send(&Rack::atomic(ATTACKER, server_qpn, 200, (VA, key), (0, 666)));
        assert_eq!((out.len(), out[0].1.bth.opcode.operation()), (1, Operation::CompareSwap), "the server's");
        assert_eq!(rack.get(Counter::Answered), answered);
        let nak = Syndrome::Nak(NakCode::RemoteAccessError);
        let mut answer = Rack::answer(ATTACKER, Operation::Acknowledge, 200, nak, 0);
        answer.bth.dest_qp = QpNumber::new(client_qpn);
        assert_eq!((rack.send(&answer).len(), rack.known()), (1, 1));
        rack.victim_adds(1, false);
    }
}

/// A wrong key at a word whose value is known, on a connection whose numbers are known: the word is known
/// again as soon as the server has refused, and the victim's next request is converted.
#[test]
fn a_refused_key_leaves_the_word_known() {
    let mut rack = Rack::new(|_| ());
    let client_qpn = QpNumber::new(0x33_0001);
    rack.announce(client_qpn.get(), QPN + 1, 200);
    for (psn, code) in [(200, NakCode::RemoteAccessError), (201, NakCode::InvalidRequest)] {
        assert_eq!(rack.send(&Rack::atomic(ATTACKER, QPN + 1, psn, (VA, Key(9)), (0, 666))).len(), 1);
        assert_eq!(rack.program().count_words().learning, 1);
        let mut nak = Rack::answer(ATTACKER, Operation::Acknowledge, psn, Syndrome::Nak(code), 0);
        nak.bth.dest_qp = client_qpn;
        assert_eq!(rack.send(&nak).len(), 1);
        assert_eq!(rack.known(), 1);
        rack.victim_adds(1, false);
    }
    // What failed while it was executed may have changed the word.
    assert_eq!(rack.send(&Rack::atomic(ATTACKER, QPN + 1, 202, (VA, Key(9)), (0, 666))).len(), 1);
    let code = Syndrome::Nak(NakCode::RemoteOperationalError);
    let mut nak = Rack::answer(ATTACKER, Operation::Acknowledge, 202, code, 0);
    nak.bth.dest_qp = client_qpn;
    rack.send(&nak);
    assert_eq!(rack.program().count_words().unsure, 1);
}

/// The table of connections is full of the attacker's: one that is there keeps its place and converts.
#[test]
fn a_client_that_names_many_queue_pairs_takes_nobodys_place() {
    let mut rack = Rack::new(|config| config.connections_max = 8);
    rack.victim_adds(1, false);
    for qp in 0..200 {
        rack.send(&Rack::packet(ATTACKER, SERVER, 0x10_0000 + qp, Operation::SendOnly, 7));
    }
    assert_eq!(rack.program().connections().filter(|c| c.client == gid(ATTACKER)).count(), 7);
    assert_eq!(rack.get(Counter::ConnectionsFull), 193);
    rack.victim_adds(1, false);
}

/// Requests that wait take room: one client's leave some for others.
#[test]
fn a_client_that_lets_many_requests_wait_leaves_room_for_others() {
    let mut rack = Rack::new(|_| ());
    // The victim's change is under way, and all that the attacker sends waits for that word.
    assert_eq!(rack.send(&Rack::atomic(VICTIM, QPN, rack.psn, (VA, RKEY), (5, 6))).len(), 1);
    for qp in 1..40 {
        for psn in 0..70 {
            rack.send(&Rack::atomic(ATTACKER, QPN + qp, psn, (VA, RKEY), (0, 666)));
        }
    }
    let most = adverb_switch::cas_to_write::HELD_MAX / 4;
    assert_eq!(rack.program().held(), most);
    assert!(rack.dropped(Drop::HoldRoom) > 0);
    assert!(rack.send(&Rack::atomic(VICTIM, QPN + 50, 7, (VA, RKEY), (0, 1))).is_empty());
    assert_eq!(rack.program().held(), most + 1, "the victim's waits, too");
}

/// Operands of a number are decided once: replays with others, and numbers far off, change nothing.
#[test]
fn replays_and_jumps_decide_nothing() {
    let mut rack = Rack::new(|_| ());
    let psn = rack.psn;
    assert_eq!(rack.send(&Rack::atomic(VICTIM, QPN, psn, (VA, RKEY), (5, 6))).len(), 1);
    for (compare, swap) in [(5, 7), (6, 6), (0, 666)] {
        assert!(rack.send(&Rack::atomic(VICTIM, QPN, psn, (VA, RKEY), (compare, swap))).is_empty());
    }
    for ahead in [1, 100, 60_000] {
        let out = rack.send(&Rack::atomic(VICTIM, QPN, psn + 1 + ahead, (VA, RKEY), (6, 666)));
        assert!(out.iter().all(|(to, _)| *to == VICTIM), "a NAK at most");
    }
    assert_eq!((rack.dropped(Drop::Replay), rack.dropped(Drop::Gap)), (3, 3));
    let out = rack.send(&Rack::answer(VICTIM, Operation::Acknowledge, psn, Syndrome::default(), 0));
    assert_eq!(out.last().unwrap().1.atomic_original, 5);
    assert_eq!((rack.known(), rack.get(Counter::CasGranted)), (1, 1));
}

/// A switch whose one carrier, the victim's queue pair, has so many requests under way at most.
fn carrying(ring: usize) -> Rack {
    let carry = CarryConfig { carriers: 1, ring, ..CarryConfig::default() };
    let mut rack = Rack::new(|config| config.carry = Some(carry));
    rack.victim_adds(1, false);
    assert_eq!(rack.program().carriers().count(), 1);
    rack
}

/// To whom the server's queue pairs what it gets, and under which numbers.
fn requests(out: &Out) -> Vec<(u32, u32, Operation)> {
    let to_server = out.iter().filter(|(to, _)| *to == SERVER);
    to_server.map(|(_, p)| (p.bth.dest_qp.get(), p.bth.psn.get(), p.bth.opcode.operation())).collect()
}

/// Rights of a carrier's queue pair are not its passengers': what the server has not granted to the
/// attacker's own queue pair goes there as it is, and the server refuses it.
#[test]
fn nobody_gains_a_carriers_rights() {
    let mut rack = carrying(8);
    rack.announce(0x33_0001, QPN + 1, 200);
    for (psn, key) in [(200, RKEY), (201, Key(9))] {
        let out = rack.send(&Rack::atomic(ATTACKER, QPN + 1, psn, (VA, key), (rack.value, 666)));
        assert_eq!(requests(&out), [(QPN + 1, psn, Operation::CompareSwap)], "on its own queue pair");
        let nak = Syndrome::Nak(NakCode::RemoteAccessError);
        let mut answer = Rack::answer(ATTACKER, Operation::Acknowledge, psn, nak, 0);
        answer.bth.dest_qp = QpNumber::new(0x33_0001);
        assert_eq!((rack.send(&answer).len(), rack.known()), (1, 1));
        rack.victim_adds(1, false);
    }
    assert_eq!(rack.get(Counter::Moved), 0);
}

/// Guesses into a carrier's window, from the attacker's port: a request to its queue pair at the server is
/// another connection's, and an answer for it counts in nobody's name.
#[test]
fn guesses_into_a_carriers_window_say_nothing() {
    let mut rack = carrying(8);
    let psn = rack.psn;
    let add = Rack::atomic(VICTIM, QPN, psn, (VA, RKEY), (rack.value, 7));
    assert_eq!(requests(&rack.send(&add)), [(QPN, psn, Operation::WriteOnly)]);
    for guess in psn - 4..psn + 4 {
        let mut request = Rack::packet(ATTACKER, SERVER, QPN, Operation::SendOnly, guess);
        request.bth.ack_req = true;
        rack.send(&request);
        for syndrome in [Syndrome::default(), Syndrome::Nak(NakCode::PsnSequenceError)] {
            let mut answer = Rack::answer(VICTIM, Operation::Acknowledge, guess, syndrome, 0);
            assert!(rack.send_at(ATTACKER, &answer).is_empty(), "in the server's name");
            answer.flow.src = gid(ATTACKER);
            assert_eq!(requests(&rack.send(&answer)), [], "nothing is sent again");
        }
    }
    assert_eq!((rack.dropped(Drop::Source), rack.get(Counter::Resent)), (16, 0));
    assert_eq!((rack.program().count_words().pending, rack.get(Counter::Answered)), (1, 1));
    let out = rack.send(&Rack::answer(VICTIM, Operation::Acknowledge, psn, Syndrome::default(), 0));
    assert_eq!((out.len(), out[0].1.atomic_original), (1, rack.value));
    (rack.psn, rack.value) = (psn + 1, 7);
    rack.victim_adds(1, false);
}

/// A client that fills a carrier's ring, and has ever more to send, leaves its next place to who waits.
#[test]
fn a_client_that_fills_a_ring_leaves_turns_to_others() {
    let mut rack = carrying(2);
    rack.announce(0x33_0001, QPN + 1, 200);
    let mut add = Rack::packet(ATTACKER, SERVER, QPN + 1, Operation::FetchAdd, 200);
    add.atomic = AtomicEth { va: VA + 8, rkey: RKEY, swap_add: 1, compare: 0 };
    for _ in 0..2 {
        // A word of its own, which its own queue pair has first.
        rack.now += LIFE;
        assert_eq!(rack.send(&add).len(), 1);
        let mut answer =
            Rack::answer(ATTACKER, Operation::AtomicAcknowledge, add.bth.psn.get(), Syndrome::default(), 0);
        answer.bth.dest_qp = QpNumber::new(0x33_0001);
        rack.send(&answer);
        add.bth.psn = add.bth.psn.next();
    }
    rack.victim_adds(1, false);
    let first = rack.psn;
    for _ in 0..12 {
        rack.send(&add);
        add.bth.psn = add.bth.psn.next();
    }
    assert!(rack.get(Counter::RingFull) > 0 && rack.program().held() == 10, "its others wait");
    let (psn, value) = (rack.psn, rack.value);
    assert!(rack.send(&Rack::atomic(VICTIM, QPN, psn, (VA, RKEY), (value, 666))).is_empty());
    let answered = |rack: &mut Rack, psn| {
        rack.send(&Rack::answer(VICTIM, Operation::Acknowledge, psn, Syndrome::default(), 0))
    };
    let next = answered(&mut rack, first);
    assert_eq!(next.iter().filter(|(to, _)| *to == SERVER).count(), 1, "the place that is free");
    let out = answered(&mut rack, first + 1);
    let sent: Vec<_> = out.iter().filter(|(to, _)| *to == SERVER).map(|(_, p)| p.reth.va).collect();
    assert_eq!(sent, [VA], "the victim's is the next");
}
