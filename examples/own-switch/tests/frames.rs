//! The sequencer, frame by frame: whom it answers, in which order, and what it refuses.

use adverb_switch::{OwnConfig, PortId, Program, ProgramConfig, Switch};
use adverb_switchd::Config;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Flow, Gid, Instant, NakCode, Opcode, Operation, Packet, Psn, QpNumber, Reth,
    Service, Syndrome, WireExtra, verify_ip,
};
use own_switch::{AT_ONCE_MAX, COUNT_BITS, KIND, Told};
use std::net::IpAddr;

const SERVER: &str = "10.9.0.1";
const CLIENT: &str = "10.9.0.2";
const SERVER_QP: u32 = 0x01_0011;
const CLIENT_QP: u32 = 0x02_0022;
const EPOCH: u64 = 7;

fn gid(text: &str) -> Gid {
    Gid::from(text.parse::<IpAddr>().unwrap())
}

fn packet(from: &str, to: &str, qp: u32, operation: Operation, psn: u32) -> Packet {
    let flow = Flow { src: gid(from), dst: gid(to), traffic_class: 2, hop_limit: 64, src_port: 4791 };
    let opcode = Opcode::new(Service::Rc, operation);
    let bth = Bth { opcode, dest_qp: QpNumber::new(qp), psn: Psn::new(psn), ..Bth::default() };
    Packet { flow, bth, ..Packet::default() }
}

/// A client's request for so many numbers.
fn take(psn: u32, many: u64) -> Packet {
    let atomic = AtomicEth { va: 0x1000, swap_add: many, ..AtomicEth::default() };
    Packet { atomic, ..packet(CLIENT, SERVER, SERVER_QP, Operation::FetchAdd, psn) }
}

/// The server's answer, whose word is 5.
fn answer(psn: u32, msn: u32) -> Packet {
    let aeth = Aeth { msn, ..Aeth::default() };
    let like = packet(SERVER, CLIENT, CLIENT_QP, Operation::AtomicAcknowledge, psn);
    Packet { aeth, atomic_original: 5, ..like }
}

struct Bench(Switch);

impl Bench {
    fn new() -> Bench {
        let told = Told { server: gid(SERVER), epoch: EPOCH };
        let mut switch =
            Switch::begin(&[ProgramConfig::Own(OwnConfig::new(told))], 16, Instant::ZERO).unwrap();
        for address in [SERVER, CLIENT] {
            let port = switch.add_port().unwrap();
            switch.claim(port, gid(address)).unwrap();
        }
        Bench(switch)
    }

    /// What leaves for a frame: by which port, and what.
    fn give(&mut self, packet: Packet) -> Vec<(u16, Packet)> {
        let mut bytes = vec![0; packet.frame_len()];
        assert_eq!(packet.emit_frame(&WireExtra::default(), &[], &mut bytes), bytes.len());
        self.give_bytes(packet.flow.src, bytes)
    }

    fn give_bytes(&mut self, src: Gid, bytes: Vec<u8>) -> Vec<(u16, Packet)> {
        let from = self.0.port_of(src).unwrap();
        self.0.on_frame(Instant::ZERO, from, bytes);
        self.0.check_invariants();
        let left = std::iter::from_fn(|| self.0.next_frame());
        left.map(|(PortId(port), bytes)| {
            assert!(verify_ip(&bytes, 20), "its sum is right");
            (port, Packet::parse_ip(&bytes).unwrap().packet)
        })
        .collect()
    }

    /// Numbers of the answers that the client gets for a frame, each with its PSN.
    fn numbers(&mut self, packet: Packet) -> Vec<(u32, u64)> {
        let left = self.give(packet).into_iter();
        left.map(|(port, packet)| {
            assert_eq!((port, packet.bth.dest_qp.get()), (1, CLIENT_QP));
            assert_eq!(packet.bth.opcode.operation(), Operation::AtomicAcknowledge);
            assert_eq!(packet.atomic_original >> COUNT_BITS, EPOCH);
            (packet.bth.psn.get(), packet.atomic_original & ((1 << COUNT_BITS) - 1))
        })
        .collect()
    }

    fn count(&self, name: &str) -> u64 {
        let Program::Own(_, own) = &self.0.programs()[0] else { unreachable!() };
        own.counts().into_iter().find(|(known, _)| *known == name).unwrap().1
    }
}

#[test]
fn the_server_answers_first_and_then_the_switch_in_order() {
    let mut b = Bench::new();
    for psn in 100..103 {
        let passed = b.give(take(psn, 1));
        assert_eq!(
            passed.iter().map(|(port, packet)| (*port, *packet)).collect::<Vec<_>>(),
            [(0, take(psn, 1))]
        );
    }
    assert_eq!(b.numbers(answer(100, 1)), [(100, 0)]);
    // The switch knows whom to answer, and lets those before it have their answers first.
    assert_eq!(b.numbers(take(103, 2)), []);
    assert_eq!(b.numbers(take(104, 1)), []);
    assert_eq!(b.numbers(take(103, 2)), [], "again, and waits already");
    assert_eq!(b.numbers(answer(101, 2)), [(101, 1)]);
    assert_eq!(b.numbers(answer(102, 3)), [(102, 2), (103, 3), (104, 5)]);
    let left = b.give(take(105, 1));
    assert_eq!((left[0].1.atomic_original, left[0].1.aeth.msn), (EPOCH << COUNT_BITS | 6, 6));
    // Sent again: another number, which its client takes or does not.
    assert_eq!(b.numbers(take(105, 1)), [(105, 7)]);
    // What the server had answered it answers again.
    assert_eq!(b.give(take(101, 1))[0].0, 0);
    assert_eq!((b.count("answered"), b.count("answered_again"), b.count("answered_by_server")), (4, 1, 3));
}

#[test]
fn a_gap_is_told_once_and_other_requests_are_refused() {
    let mut b = Bench::new();
    b.give(take(0xff_ffff, 1));
    b.give(answer(0xff_ffff, 1));
    assert_eq!(b.numbers(take(0, 1)), [(0, 1)], "behind the last number comes 0");
    let told = b.give(take(2, 1));
    let (port, nak) = told[0];
    assert_eq!((port, nak.bth.psn.get(), nak.bth.dest_qp.get()), (1, 1, CLIENT_QP));
    assert_eq!(nak.aeth, Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequenceError), msn: 2 });
    assert!(b.give(take(3, 1)).is_empty());
    assert_eq!(b.numbers(take(1, 1)), [(1, 2)]);
    let read = Packet {
        reth: Reth { va: 0x1000, len: 8, ..Reth::default() },
        ..packet(CLIENT, SERVER, SERVER_QP, Operation::ReadRequest, 2)
    };
    for wrong in [read, take(2, 0), take(2, AT_ONCE_MAX + 1)] {
        let refused = b.give(wrong);
        assert_eq!((refused.len(), refused[0].0, refused[0].1.bth.psn.get()), (1, 1, 2));
        assert_eq!(refused[0].1.aeth.syndrome, Syndrome::Nak(NakCode::InvalidRequest));
    }
    assert_eq!((b.count("refused"), b.count("gaps")), (3, 1));
}

#[test]
fn a_damaged_request_is_not_believed() {
    let mut b = Bench::new();
    let mut bytes = vec![0; take(1, 1).frame_len()];
    take(1, 1).emit_frame(&WireExtra::default(), &[], &mut bytes);
    bytes[45] ^= 1;
    assert!(b.give_bytes(gid(CLIENT), bytes).is_empty());
    assert_eq!(b.count("connections"), 0);
}

#[test]
fn another_connection_of_the_same_number_begins_anew() {
    let mut b = Bench::new();
    b.give(take(1, 1));
    b.give(answer(1, 1));
    assert_eq!(b.numbers(take(2, 1)), [(2, 1)]);
    assert_eq!(b.give(take(0x80_0000, 1))[0].0, 0, "the server's again");
}

#[test]
fn a_file_has_it_among_the_built_in_ones() {
    let ecn = "[[program]]\nkind = 'ecn'\nevery = 9\n";
    let text = &format!("{ecn}[[program]]\nkind = 'sequencer'\nserver = '10.9.0.1'\nepoch = 3\n");
    let config = Config::parse_with(text, &[KIND]).unwrap();
    assert_eq!(config.program_names(), "ecn, sequencer");
    let switch = config.switch(Instant::ZERO).unwrap();
    assert!(matches!(switch.programs(), [Program::Ecn(_), Program::Own("sequencer", _)]));
    for (wrong, said) in [
        (text.replace("epoch = 3", "epoch = 16777216"), "[[program]] 2: epoch: below"),
        (text.replace("epoch = 3", "epochs = 3"), "no key epochs"),
        (text.replace("10.9.0.1", "here"), "server: the server's address"),
        (text.replace("every", "each"), "each"),
    ] {
        let found = Config::parse_with(&wrong, &[KIND]).unwrap_err();
        assert!(found.contains(said), "{found}");
    }
    assert!(Config::parse(text).unwrap_err().contains("sequencer"), "stock switches do not have it");
}
