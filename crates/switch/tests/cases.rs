//! Cases of packets as users write them: tables and registers in STF, and pairs of captures.

use adverb_switch::{MarkConfig, PortId, ProgramConfig, Switch, entries, pairs, stf};
use adverb_wire::eth::{ETHERTYPE_ARP, ETHERTYPE_IPV4, Eth};
use adverb_wire::pcap::{LinkType, Writer};
use adverb_wire::{Bth, Flow, Gid, Instant, Opcode, Operation, Packet, Psn, Service, WireExtra};
use std::net::IpAddr;
use std::num::NonZeroU32;

fn gid(last: u8) -> Gid {
    Gid::from(IpAddr::from([10, 9, 0, last]))
}

/// Two hosts, and a program that marks every third packet of a port.
fn switch() -> (Switch, Vec<PortId>) {
    let mark = MarkConfig { above: None, every: NonZeroU32::new(3) };
    let mut switch = Switch::begin(&[ProgramConfig::Ecn(mark)], 8, Instant::ZERO).unwrap();
    let ports = [1, 2].map(|last| {
        let port = switch.add_port().unwrap();
        switch.claim(port, gid(last)).unwrap();
        port
    });
    (switch, ports.to_vec())
}

/// A SEND from one host to the other, marked or not.
fn frame(from: u8, to: u8, psn: u32, class: u8) -> Vec<u8> {
    let (src, dst) = (gid(from), gid(to));
    let flow = Flow { src, dst, traffic_class: class, hop_limit: 64, src_port: 0xc000 };
    let opcode = Opcode::new(Service::Rc, Operation::SendOnly);
    let bth = Bth { opcode, psn: Psn::new(psn), ..Bth::default() };
    let packet = Packet { flow, bth, payload_len: 4, ..Packet::default() };
    let mut bytes = vec![0; packet.frame_len()];
    assert_eq!(packet.emit_frame(&WireExtra::default(), &[1, 2, 3, 4], &mut bytes), bytes.len());
    bytes
}

fn capture(link: LinkType, frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), link).unwrap();
    for (millis, bytes) in frames {
        writer.record(millis / 1000, millis % 1000 * 1_000_000, &[bytes]).unwrap();
    }
    writer.into_inner()
}

fn raw(frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
    capture(LinkType::Raw, frames)
}

fn pair(came: &[u8], leaves: &[u8]) -> Result<stf::Passed, String> {
    pairs::run(&mut switch().0, Instant::ZERO, came, leaves)
}

#[test]
fn a_case_sets_registers_and_reads_them() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let run = |text: &str| {
        let (mut switch, ports) = switch();
        stf::run(&mut switch, &ports, Instant::ZERO, text)
    };
    let case = format!(
        "register_read ecn seen 1 -\nregister_write ecn seen 1 0x2\npacket 0 {}\nexpect 1 {}\n\
         register_read 1 seen 1 3\nregister_write ecn seen 1 -\nregister_read ecn seen 1 - # nothing\n",
        hex(frame(1, 2, 7, 2)),
        hex(frame(1, 2, 7, 3))
    );
    assert_eq!(run(&case), Ok(stf::Passed { packets: 1, expected: 1 }));
    for (line, said) in [
        ("register_read ecn seen 1 3", "seen has nothing under 0x1"),
        ("register_read ecn words 1 3", "ecn has no table words; it has seen"),
        ("register_read trim seen 1 3", "the switch runs no program trim"),
        ("register_read ecn seen 1", "a value is missing"),
        ("register_read ecn seen", "a key is missing"),
        ("register_write ecn seen 256 1", "seen has no entry 256"),
        ("register_write ecn seen 1 0x100000000", "seen has 32 bits"),
        ("register_write ecn seen x 1", "`x` is no number"),
    ] {
        let failure = run(&format!("# A comment.\n{line}\n")).unwrap_err();
        assert_eq!((failure.line, failure.what.as_str()), (2, said));
    }
    let failure = run("register_write ecn seen 0 5\nregister_read ecn seen 0 6\n").unwrap_err();
    assert_eq!(failure.to_string(), "line 2: seen has 0x5 under 0x0");
}

#[test]
fn entries_are_told_and_a_row_is_named() {
    let (mut switch, _) = switch();
    let program = &mut switch.programs_mut()[0];
    assert_eq!((program.tables(), program.entries("seen")), (vec!["seen"], Ok(vec![])));
    program.set_entry(Instant::ZERO, "seen", 9, Some(4)).unwrap();
    assert_eq!((program.entries("seen"), program.entry("seen", 9)), (Ok(vec![(9, 4)]), Ok(Some(4))));
    assert_eq!(program.entry("seen", u64::MAX), Ok(None));
    let programs = switch.programs();
    assert_eq!((entries::named(programs, "ecn"), entries::named(programs, "1")), (Ok(0), Ok(0)));
    assert!(["0", "2", "trim", ""].iter().all(|name| entries::named(programs, name).is_err()));
}

#[test]
fn a_pair_of_captures_is_a_case() {
    let came =
        [(5, frame(1, 2, 0, 2)), (6, frame(2, 1, 0, 2)), (7, frame(1, 2, 1, 2)), (900, frame(1, 2, 2, 2))];
    // In an order of their own, as far as they leave by several ports.
    let leaves =
        [(0, frame(2, 1, 0, 2)), (0, frame(1, 2, 0, 2)), (0, frame(1, 2, 1, 2)), (0, frame(1, 2, 2, 3))];
    assert_eq!(pair(&raw(&came), &raw(&leaves)), Ok(stf::Passed { packets: 4, expected: 4 }));
    let failed = |came: &[(u32, Vec<u8>)], leaves: &[(u32, Vec<u8>)], said: &str| {
        let why = pair(&raw(came), &raw(leaves)).unwrap_err();
        assert!(why.starts_with(said), "{why}");
    };
    let mut other = leaves.clone();
    other[3].1 = frame(1, 2, 2, 2);
    failed(&came, &other, "frame 4: by port 1 left 4503");
    other[3].1 = frame(1, 2, 2, 3);
    other.swap(1, 2);
    failed(&came, &other, "frame 1: by port 1 left");
    failed(&came, &leaves[..3], "frame 4: by port 1 left 4503");
    failed(&came[..3], &leaves, "at the end: by port 1 has to leave 4503");
    failed(&[(0, frame(3, 1, 0, 2))], &[], "frame 1: 10.9.0.3 is no port's address");
    failed(&[], &[(0, frame(1, 3, 0, 2))], "what leaves, frame 1: 10.9.0.3 is no port's address");
    failed(&[(0, vec![0x45; 30])], &[], "frame 1: no RoCE packet");
    assert_eq!(pair(b"a letter", &raw(&[])).unwrap_err(), "what comes in: not a classic pcap file");
    let mut cut = Writer::new(Vec::new(), LinkType::Raw).unwrap();
    cut.record_cut(0, 0, &[&frame(1, 2, 0, 2)[..40]], 90).unwrap();
    assert_eq!(
        pair(&cut.into_inner(), &raw(&[])).unwrap_err(),
        "what comes in: frame 1 was not captured whole"
    );
}

#[test]
fn a_capture_of_ethernet_is_as_good() {
    let on_ethernet = |ethertype: u16, packet: Vec<u8>| {
        let mut bytes = Eth { ethertype, ..Eth::default() }.emit().to_vec();
        bytes.extend(packet);
        // Padded to what Ethernet carries at least, and further.
        bytes.resize(90, 0);
        (0, bytes)
    };
    let came = [on_ethernet(ETHERTYPE_ARP, vec![1; 28]), on_ethernet(ETHERTYPE_IPV4, frame(1, 2, 0, 2))];
    let came = capture(LinkType::Ethernet, &came);
    assert_eq!(pair(&came, &raw(&[(0, frame(1, 2, 0, 2))])), Ok(stf::Passed { packets: 1, expected: 1 }));
}
