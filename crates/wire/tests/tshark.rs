//! A second reader: Wireshark's dissector takes apart one packet of every opcode, over IPv4 and IPv6,
//! and agrees with the descriptor on every field it knows.

mod common;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use adverb_wire::star::{Cqe, Grant, Hello, Merged, Op, Record, Sge, Stamp, StarEth, Ticket, Wish, Wqe};
use adverb_wire::{Headers, Opcode, Operation, Packet, QpNumber, Service, WireExtra, WriteLength, pcap};

/// Fields asked for, in order. Numbers are compared by value, whatever base they are printed in.
const FIELDS: [&str; 26] = [
    "_ws.malformed",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
    "udp.srcport",
    "udp.length",
    "ip.checksum.status",
];

/// Number that tshark prints for a good checksum.
const CHECKSUM_GOOD: u64 = 1;

/// What the dissector should print for a packet, by field; `None` for a field that is absent.
fn expected(packet: &Packet, icrc: u32) -> [Option<u64>; FIELDS.len()] {
    let Packet { flow, bth, deth, reth, atomic, aeth, .. } = packet;
    let headers = bth.opcode.headers();
    let when = |header, value: u64| headers.contains(header).then_some(value);
    let either = |a: Option<u64>, b| a.or(b);
    let (reth_there, atomic_there) = (Headers::RETH, Headers::ATOMIC_ETH);
    [
        None,
        Some(bth.opcode.wire() as u64),
        Some(bth.solicited as u64),
        Some(bth.migrated as u64),
        Some(packet.pad() as u64),
        Some(0),
        Some(bth.pkey as u64),
        Some(bth.dest_qp.get() as u64),
        Some(bth.ack_req as u64),
        Some(bth.psn.get() as u64),
        when(Headers::DETH, deth.qkey as u64),
        when(Headers::DETH, deth.src_qp.get() as u64),
        // The dissector gives an atomic's address and key the names that a RETH's have.
        either(when(reth_there, reth.va), when(atomic_there, atomic.va)),
        either(when(reth_there, reth.rkey.0 as u64), when(atomic_there, atomic.rkey.0 as u64)),
        when(reth_there, reth.len as u64),
        when(atomic_there, atomic.swap_add),
        when(atomic_there, atomic.compare),
        when(Headers::AETH, aeth.syndrome.wire() as u64),
        when(Headers::AETH, aeth.msn as u64),
        when(Headers::ATOMIC_ACK_ETH, packet.atomic_original),
        when(Headers::IMM_DT, packet.immediate as u64),
        when(Headers::IETH, packet.invalidate as u64),
        Some(icrc as u64),
        Some(flow.src_port as u64),
        Some((packet.wire_len() + 8) as u64),
        flow.is_ipv4().then_some(CHECKSUM_GOOD),
    ]
}

/// Fields that the dissector shows as bytes.
const BYTES: [&str; 3] = ["infiniband.invariant.crc", "infiniband.immdt", "infiniband.ieth"];

/// The value of a field, `None` when it is absent.
fn number(field: &str, text: &str) -> Option<u64> {
    let parsed = match (text, text.strip_prefix("0x")) {
        ("", _) => return None,
        ("True", _) => Ok(1),
        ("False", _) => Ok(0),
        (_, Some(hex)) => u64::from_str_radix(hex, 16),
        _ if BYTES.contains(&field) => u64::from_str_radix(text, 16),
        _ => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{field}: {text}")))
}

/// A length that needs a pad, or zero where the dissector expects no payload.
fn payload_len(opcode: Opcode) -> u32 {
    let operation = opcode.operation();
    let bare =
        matches!(operation, Operation::ReadRequest | Operation::Acknowledge | Operation::AtomicAcknowledge);
    match opcode.service() {
        Service::Star => star_body(operation).len() as u32,
        _ if bare || operation.is_atomic() => 0,
        _ => 21,
    }
}

/// The payload of a packet of StaR's.
fn star_body(operation: Operation) -> Vec<u8> {
    let numbers = |from: u32| from.wrapping_mul(0x0101_0101);
    match operation {
        Operation::RemoteData | Operation::GetDataAnswer => vec![0; 21],
        Operation::Hello => {
            let (wish, queues) = (Wish::Auto, (0x0708, 0x090a));
            let (connections, threshold, clock) = (numbers(2), numbers(3), numbers(4));
            let hello =
                Hello { wish, features: 5, window: 77, connections, threshold, capacity: 78, queues, clock };
            hello.bytes().to_vec()
        }
        Operation::WqePacket => {
            let wqe = |index, flags| Wqe {
                op: Op::Write,
                flags,
                index,
                len: numbers(5),
                va: 0x1234_5678_9abc,
                rkey: numbers(6),
                immediate: numbers(7),
            };
            let sge = Sge { len: numbers(5), lkey: numbers(10), addr: 0x2345_6789_abcd };
            let carried = wqe(8, Wqe::SIGNALED | Wqe::CARRIED);
            [&carried.bytes()[..], &sge.bytes(), &wqe(9, Wqe::SIGNALED).bytes()].concat()
        }
        Operation::CqePacket => {
            let (op, flags) = (Op::Recv, Cqe::RECV_QUEUE);
            Cqe { flags, status: 10, op, index: 11, len: numbers(12), immediate: numbers(13) }
                .bytes()
                .to_vec()
        }
        _ => Vec::new(),
    }
}

/// A WQEP that carries a connection's record.
fn migration(ipv4: bool) -> (Packet, Vec<u8>) {
    let opcode = Opcode::new(Service::Star, Operation::WqePacket);
    let mut packet = common::packet(opcode, common::flow(ipv4), Record::LEN as u32, 5);
    packet.irn = StarEth::new(Op::Control, StarEth::MIGRATION, 0, 0).into();
    let (rnr_timer, depths, queues) = (4, (5, 6), (0x0708, 0x090a));
    let ticket = Ticket { word: 21, seal: 22 };
    let record = Record {
        timeout: 1,
        retries: 2,
        rnr_retries: 3,
        rnr_timer,
        depths,
        features: 3,
        psn: 0x0b_0c0d,
        queues,
        clock: 31,
        lifetime: 32,
        receives: 33,
        ticket,
    };
    (packet, record.bytes().to_vec())
}

/// Packets of every opcode over both IP versions.
fn packets() -> Vec<Packet> {
    let mut packets = Vec::new();
    for ipv4 in [true, false] {
        for opcode in Opcode::all() {
            let flow = common::flow(ipv4);
            packets.push(match opcode {
                Opcode::CNP => Packet::cnp(flow, adverb_wire::QpNumber::new(0x77)),
                _ => common::packet(opcode, flow, payload_len(opcode), opcode.wire() as u64),
            });
        }
    }
    packets
}

#[test]
fn dissects_every_opcode() {
    if let Err(e) = Command::new("tshark").arg("--version").output() {
        // Past the test harness, which hides what a passing test prints.
        writeln!(std::io::stdout(), "SKIPPED: tshark cannot be run: {e}").unwrap();
        return;
    }
    let packets = packets();
    let mut writer = pcap::Writer::new(Vec::new(), pcap::LinkType::Raw).unwrap();
    let mut icrcs = Vec::new();
    for (i, packet) in packets.iter().enumerate() {
        let mut frame = vec![0; packet.frame_len()];
        let mut payload = vec![0; packet.payload_len as usize];
        if packet.bth.opcode.is_of(Service::Star) {
            payload = star_body(packet.bth.opcode.operation());
        }
        assert_eq!(packet.emit_frame(&WireExtra::default(), &payload, &mut frame), frame.len());
        // The dissector shows the sum in the order of the bytes on the wire.
        icrcs.push(u32::from_be_bytes(*frame.last_chunk().unwrap()));
        writer.record(i as u32, 0, &[&frame]).unwrap();
    }
    let path = std::env::temp_dir().join(format!("adverb-wire-{}.pcap", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(&writer.into_inner()).unwrap();
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(&path).args([
        "-o",
        "ip.check_checksum:TRUE",
        "-T",
        "fields",
        "-E",
        "occurrence=f",
    ]);
    FIELDS.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), packets.len());

    let mut complaints = String::new();
    for ((packet, icrc), line) in packets.iter().zip(icrcs).zip(lines) {
        let shown: Vec<&str> = line.split('\t').collect();
        assert_eq!(shown.len(), FIELDS.len(), "{line}");
        let expected = expected(packet, icrc);
        for ((field, shown), expected) in FIELDS.iter().zip(shown).zip(expected) {
            if number(field, shown) != expected && !beyond_dissector(packet.bth.opcode, field, shown) {
                writeln!(complaints, "{:?} {field}: {shown:?}, not {expected:x?}", packet.bth.opcode)
                    .unwrap();
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints}");
}

/// Wireshark 4.0 stops after the BTH of XRC packets, of CNPs, and of opcodes that IBTA does not know.
fn beyond_dissector(opcode: Opcode, field: &str, shown: &str) -> bool {
    let service = matches!(opcode.service(), Service::Xrc | Service::Cnp | Service::Irn | Service::Star);
    (service || opcode.operation().is_masked())
        && shown.is_empty()
        && field.starts_with("infiniband.")
        && !field.starts_with("infiniband.bth.")
}

/// What `scripts/adverb_irn.lua` should show of an IRN packet, by field.
fn expected_irn(packet: &Packet) -> Vec<(&'static str, Option<u64>)> {
    let (headers, operation) = (packet.bth.opcode.headers(), packet.bth.opcode.operation());
    let when = |there: bool, value: u64| there.then_some(value);
    let has = |header| headers.contains(header);
    let (reth, atomic, irn) = (has(Headers::RETH), has(Headers::ATOMIC_ETH), has(Headers::IRN_ETH));
    let read = operation == Operation::ReadRequest || operation.is_atomic() && atomic;
    let hello = operation == Operation::Hello;
    let message = irn && !read && !hello;
    let (sn, offset) = (packet.irn.sn() as u64, packet.irn.offset as u64);
    let length = WriteLength::from_wire(packet.reth.len);
    let write = reth && operation.is_write();
    let va = when(reth, packet.reth.va).or(when(atomic, packet.atomic.va));
    let rkey = when(reth, packet.reth.rkey.0 as u64).or(when(atomic, packet.atomic.rkey.0 as u64));
    vec![
        ("_ws.malformed", None),
        ("adverb_irn.reth.va", va),
        ("adverb_irn.reth.rkey", rkey),
        ("adverb_irn.reth.length", when(reth && !write, packet.reth.len as u64)),
        ("adverb_irn.reth.following", when(write, length.following as u64)),
        ("adverb_irn.reth.ordered", when(write, length.ordered as u64)),
        ("adverb_irn.immediate", when(has(Headers::IMM_DT), packet.immediate as u64)),
        ("adverb_irn.invalidate", when(has(Headers::IETH), packet.invalidate as u64)),
        ("adverb_irn.ordered", when(message, packet.irn.is_ordered() as u64)),
        ("adverb_irn.receive_sn", when(message, sn)),
        ("adverb_irn.offset", when(message, offset)),
        ("adverb_irn.read_sn", when(read, sn)),
        ("adverb_irn.awaited", when(read, offset)),
        ("adverb_irn.hello.runs", when(hello, packet.irn.flags() as u64 & 1)),
        ("adverb_irn.hello.masked", when(hello, packet.irn.flags() as u64 >> 1 & 1)),
        ("adverb_irn.hello.version", when(hello, sn)),
        ("adverb_irn.hello.window", when(hello, offset)),
        ("adverb_irn.atomic.swap_add", when(atomic, packet.atomic.swap_add)),
        ("adverb_irn.atomic.compare", when(atomic, packet.atomic.compare)),
        ("adverb_irn.atomic.original", when(has(Headers::ATOMIC_ACK_ETH), packet.atomic_original)),
        ("adverb_irn.aeth.syndrome", when(has(Headers::AETH), packet.aeth.syndrome.wire() as u64)),
        ("adverb_irn.aeth.msn", when(has(Headers::AETH), packet.aeth.msn as u64)),
        ("adverb_irn.ack.cumulative", when(has(Headers::SACK_ETH), packet.bth.psn.get() as u64)),
        ("adverb_irn.sack.not_kept", when(has(Headers::SACK_ETH), !packet.sack.is_kept() as u64)),
        ("adverb_irn.sack.more", when(has(Headers::SACK_ETH), packet.sack.more() as u64)),
        ("adverb_irn.sack.psn", when(has(Headers::SACK_ETH), packet.sack.psn().get() as u64)),
    ]
}

/// Our own script for Wireshark reads every field behind the BTH of every IRN packet.
#[test]
fn the_script_reads_every_irn_opcode() {
    if let Err(e) = Command::new("tshark").arg("--version").output() {
        writeln!(std::io::stdout(), "SKIPPED: tshark cannot be run: {e}").unwrap();
        return;
    }
    let packets: Vec<Packet> =
        packets().into_iter().filter(|p| p.bth.opcode.service() == Service::Irn).collect();
    assert_eq!(packets.len(), 2 * 27, "every operation over IPv4 and IPv6");
    let mut writer = pcap::Writer::new(Vec::new(), pcap::LinkType::Raw).unwrap();
    for (i, packet) in packets.iter().enumerate() {
        let mut frame = vec![0; packet.frame_len()];
        let payload = vec![0; packet.payload_len as usize];
        assert_eq!(packet.emit_frame(&WireExtra::default(), &payload, &mut frame), frame.len());
        writer.record(i as u32, 0, &[&frame]).unwrap();
    }
    let path = std::env::temp_dir().join(format!("adverb-wire-irn-{}.pcap", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(&writer.into_inner()).unwrap();
    let script = concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../../scripts/adverb_irn.lua");
    let mut command = Command::new("tshark");
    command.args(["-n", "-X", script, "-T", "fields", "-E", "occurrence=f", "-r"]).arg(&path);
    for (field, _) in expected_irn(&packets[0]) {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), packets.len());
    for (packet, line) in packets.iter().zip(lines) {
        let shown: Vec<&str> = line.split('\t').collect();
        for ((field, value), shown) in expected_irn(packet).into_iter().zip(shown) {
            assert_eq!(number(field, shown), value, "{:?} {field}", packet.bth.opcode);
        }
    }
}

/// What it should show of a WQEP's first entry.
fn expected_entry(body: &[u8], plain: bool) -> Vec<(&'static str, Option<u64>)> {
    let wqe = body.first_chunk().and_then(Wqe::read).filter(|_| plain);
    let follows = wqe.filter(|wqe| wqe.flags & Wqe::CARRIED != 0).and_then(|_| body.get(Wqe::LEN..));
    let sge = follows.and_then(|rest| rest.first_chunk()).and_then(Sge::read);
    vec![
        ("adverb_star.wqe.carried", wqe.map(|wqe| u64::from(wqe.flags & Wqe::CARRIED != 0))),
        ("adverb_star.sge.length", sge.map(|sge| sge.len.into())),
        ("adverb_star.sge.lkey", sge.map(|sge| sge.lkey.into())),
        ("adverb_star.sge.addr", sge.map(|sge| sge.addr)),
        ("adverb_star.wqe.op", wqe.map(|wqe| wqe.op as u64)),
        ("adverb_star.wqe.flags", wqe.map(|wqe| wqe.flags.into())),
        ("adverb_star.wqe.index", wqe.map(|wqe| wqe.index.into())),
        ("adverb_star.wqe.length", wqe.map(|wqe| wqe.len.into())),
        ("adverb_star.wqe.va", wqe.map(|wqe| wqe.va)),
        ("adverb_star.wqe.rkey", wqe.map(|wqe| wqe.rkey.into())),
        ("adverb_star.wqe.immediate", wqe.map(|wqe| wqe.immediate.into())),
    ]
}

/// What `scripts/adverb_star.lua` should show of a packet of StaR's, by field.
fn expected_star(packet: &Packet, body: &[u8]) -> Vec<(&'static str, Option<u64>)> {
    let (headers, operation) = (packet.bth.opcode.headers(), packet.bth.opcode.operation());
    let eth = StarEth::from(packet.irn);
    let is = |one: Operation| operation == one;
    let when = |there: bool, value: u64| there.then_some(value);
    let (reth, ticket) = (headers.contains(Headers::RETH), headers.contains(Headers::TICKET));
    let posted = reth && eth.has(StarEth::POSTED);
    let merged = Merged::of(packet).map(|_| packet.reth);
    let bit = u64::from(eth.op_flags & 1);
    let (data, asks, completes) =
        (is(Operation::RemoteData), is(Operation::GetData), is(Operation::CqePacket));
    let answer = is(Operation::RemoteDataAnswer) || is(Operation::GetDataAnswer);
    let acknowledge = is(Operation::WqeEventAcknowledge);
    let events = !reth && !answer && !is(Operation::Hello) && !is(Operation::CqeEventAcknowledge);
    let grant = Grant::of_word(packet.ticket.word);
    let hello = Hello::read(body).filter(|_| is(Operation::Hello));
    let record = Record::read(body).filter(|_| is(Operation::WqePacket) && eth.has(StarEth::MIGRATION));
    let plain = is(Operation::WqePacket) && !eth.has(StarEth::MIGRATION);
    let cqe = body.first_chunk().and_then(Cqe::read).filter(|_| is(Operation::CqePacket));
    let mut fields = vec![
        ("_ws.malformed", None),
        ("adverb_star.op", when(!answer, u64::from(eth.op_flags >> 4))),
        ("adverb_star.migration", when(!answer && !data && !asks && !completes, bit)),
        ("adverb_star.merged", when(data, bit)),
        ("adverb_star.burst", when(asks, bit)),
        ("adverb_star.final", when(completes, bit)),
        ("adverb_star.merged.number", merged.map(|reth| reth.va & 0xff_ffff)),
        ("adverb_star.merged.immediate", merged.map(|reth| reth.rkey.0.into())),
        ("adverb_star.merged.flags", merged.map(|_| eth.value.into())),
        ("adverb_star.recv_queue", when(!answer, eth.has(StarEth::RECV_QUEUE).into())),
        ("adverb_star.posted", when(!answer, eth.has(StarEth::POSTED).into())),
        ("adverb_star.copy", when(!answer, eth.copy.into())),
        ("adverb_star.clock", when(answer, Stamp::from(packet.irn).clock.into())),
        ("adverb_star.asked", when(is(Operation::GetData), eth.count.into())),
        ("adverb_star.entries", when(events, eth.count.into())),
        ("adverb_star.following", when(reth && merged.is_none(), eth.value.into())),
        ("adverb_star.order", when(answer, Stamp::from(packet.irn).order.into())),
        ("adverb_star.refusal", when(acknowledge && bit == 1, eth.value.into())),
        ("adverb_star.completions", when(acknowledge && bit == 0, eth.value.into())),
        ("adverb_star.receives", when(is(Operation::CqeEventAcknowledge), eth.value.into())),
        ("adverb_star.closing", when(is(Operation::CqePacket), eth.value.into())),
        ("adverb_star.va", when(reth && !posted, packet.reth.va)),
        ("adverb_star.index", when(posted, packet.reth.va >> 32 & 0xff_ffff)),
        ("adverb_star.offset", when(posted && merged.is_none(), packet.reth.va & 0xffff_ffff)),
        ("adverb_star.rkey", when(reth && merged.is_none(), packet.reth.rkey.0.into())),
        ("adverb_star.deadline", when(reth, packet.reth.len.into())),
        ("adverb_star.syndrome", when(answer, packet.aeth.syndrome.wire().into())),
        ("adverb_star.answered_copy", when(answer, u64::from(packet.aeth.msn >> 16))),
        ("adverb_star.congested", when(answer, u64::from(packet.aeth.msn >> 8 & 1))),
        ("adverb_star.of_sends", when(answer, u64::from(packet.aeth.msn >> 9 & 1))),
        ("adverb_star.run", when(answer, u64::from(packet.aeth.msn & 0xff))),
        ("adverb_star.ticket.epoch", when(ticket, grant.epoch.into())),
        ("adverb_star.ticket.incarnation", when(ticket, grant.incarnation.into())),
        ("adverb_star.ticket.pd", when(ticket, grant.pd.into())),
        ("adverb_star.ticket.mtu", when(ticket, grant.mtu.into())),
        ("adverb_star.ticket.write", when(ticket, u64::from(grant.rights & 1))),
        ("adverb_star.ticket.read", when(ticket, u64::from(grant.rights >> 1 & 1))),
        ("adverb_star.ticket.atomic", when(ticket, u64::from(grant.rights >> 2 & 1))),
        ("adverb_star.ticket.peer", when(ticket, grant.peer.get().into())),
        ("adverb_star.ticket.seal", when(ticket, packet.ticket.seal)),
        ("adverb_star.hello.wish", hello.map(|hello| hello.wish as u64)),
        ("adverb_star.hello.features", hello.map(|hello| hello.features.into())),
        ("adverb_star.hello.window", hello.map(|hello| hello.window.into())),
        ("adverb_star.hello.connections", hello.map(|hello| hello.connections.into())),
        ("adverb_star.hello.threshold", hello.map(|hello| hello.threshold.into())),
        ("adverb_star.hello.capacity", hello.map(|hello| hello.capacity.into())),
        ("adverb_star.hello.send_queue", hello.map(|hello| hello.queues.0.into())),
        ("adverb_star.hello.recv_queue", hello.map(|hello| hello.queues.1.into())),
        ("adverb_star.hello.clock", hello.map(|hello| hello.clock.into())),
        ("adverb_star.ticket.carried", when(ticket, grant.carried.into())),
        ("adverb_star.cqe.flags", cqe.map(|cqe| cqe.flags.into())),
        ("adverb_star.cqe.status", cqe.map(|cqe| cqe.status.into())),
        ("adverb_star.cqe.op", cqe.map(|cqe| cqe.op as u64)),
        ("adverb_star.cqe.index", cqe.map(|cqe| cqe.index.into())),
        ("adverb_star.cqe.length", cqe.map(|cqe| cqe.len.into())),
        ("adverb_star.cqe.immediate", cqe.map(|cqe| cqe.immediate.into())),
        ("adverb_star.record.timeout", record.map(|record| record.timeout.into())),
        ("adverb_star.record.retries", record.map(|record| record.retries.into())),
        ("adverb_star.record.rnr_retries", record.map(|record| record.rnr_retries.into())),
        ("adverb_star.record.rnr_timer", record.map(|record| record.rnr_timer.into())),
        ("adverb_star.record.depth", record.map(|record| record.depths.0.into())),
        ("adverb_star.record.dest_depth", record.map(|record| record.depths.1.into())),
        ("adverb_star.record.features", record.map(|record| record.features.into())),
        ("adverb_star.record.psn", record.map(|record| record.psn.into())),
        ("adverb_star.record.send_queue", record.map(|record| record.queues.0.into())),
        ("adverb_star.record.recv_queue", record.map(|record| record.queues.1.into())),
        ("adverb_star.record.clock", record.map(|record| record.clock.into())),
        ("adverb_star.record.lifetime", record.map(|record| record.lifetime.into())),
        ("adverb_star.record.receives", record.map(|record| record.receives.into())),
        ("adverb_star.record.ticket", record.map(|record| record.ticket.word)),
        ("adverb_star.record.seal", record.map(|record| record.ticket.seal)),
    ];
    fields.extend(expected_entry(body, plain));
    fields
}

/// Our own script for Wireshark reads every field behind the BTH of every packet of StaR's.
#[test]
fn the_script_reads_every_star_opcode() {
    if let Err(e) = Command::new("tshark").arg("--version").output() {
        writeln!(std::io::stdout(), "SKIPPED: tshark cannot be run: {e}").unwrap();
        return;
    }
    let plain = |mut packet: Packet| {
        let operation = packet.bth.opcode.operation();
        let mut eth = StarEth::from(packet.irn);
        eth.op_flags &= !StarEth::MIGRATION;
        packet.irn = eth.into();
        (packet, star_body(operation))
    };
    let mut all: Vec<_> =
        packets().into_iter().filter(|p| p.bth.opcode.is_of(Service::Star)).map(plain).collect();
    assert_eq!(all.len(), 2 * 9, "every operation over IPv4 and IPv6");
    all.extend([migration(true), migration(false)]);
    // Both ways to say where and all that the lowest flag says, whatever the packets above have drawn.
    for flags in [0, StarEth::POSTED, 1, StarEth::POSTED | 1] {
        for operation in [Operation::GetData, Operation::RemoteData, Operation::CqePacket] {
            let opcode = Opcode::new(Service::Star, operation);
            let body = star_body(operation);
            let packet = common::packet(opcode, common::flow(true), body.len() as u32, 9);
            all.push((Packet { irn: StarEth::new(Op::Read, flags, 512, 77).into(), ..packet }, body));
        }
    }
    // An acknowledgement of a record says why it is refused.
    let opcode = Opcode::new(Service::Star, Operation::WqeEventAcknowledge);
    let packet = common::packet(opcode, common::flow(true), 0, 9);
    let refused = StarEth::new(Op::Read, StarEth::MIGRATION, 0, 2);
    all.push((Packet { irn: refused.into(), ..packet }, Vec::new()));
    assert!(all.iter().all(|(packet, _)| packet.bth.dest_qp != QpNumber::MULTICAST));
    let mut writer = pcap::Writer::new(Vec::new(), pcap::LinkType::Raw).unwrap();
    for (i, (packet, body)) in all.iter().enumerate() {
        let mut frame = vec![0; packet.frame_len()];
        assert_eq!(packet.emit_frame(&WireExtra::default(), body, &mut frame), frame.len());
        writer.record(i as u32, 0, &[&frame]).unwrap();
    }
    let path = std::env::temp_dir().join(format!("adverb-wire-star-{}.pcap", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(&writer.into_inner()).unwrap();
    let script = concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../../scripts/adverb_star.lua");
    let mut command = Command::new("tshark");
    command.args(["-n", "-X", script, "-T", "fields", "-E", "occurrence=f", "-r"]).arg(&path);
    for (field, _) in expected_star(&all[0].0, &all[0].1) {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), all.len());
    let mut seen = std::collections::BTreeSet::new();
    for ((packet, body), line) in all.iter().zip(lines) {
        let shown: Vec<&str> = line.split('\t').collect();
        for ((field, value), shown) in expected_star(packet, body).into_iter().zip(shown) {
            assert_eq!(number(field, shown), value, "{:?} {field}", packet.bth.opcode);
            value.inspect(|_| _ = seen.insert(field));
        }
    }
    let missing: Vec<_> =
        expected_star(&all[0].0, &all[0].1).into_iter().filter(|(field, _)| !seen.contains(field)).collect();
    assert_eq!(missing, [("_ws.malformed", None)], "every field stands in some packet");
}
