//! The registry of a stateful side's NIC: what no rule allows does not leave (StaR, III-D).

mod world;
use adverb_nic::*;
use adverb_wire::star::{Grant, Wish};
use adverb_wire::{Duration, Gid, Key, Operation, Packet, QpNumber};
use world::*;

const CLIENT: usize = 0;
const SERVER: usize = 1;
const ALL: u8 = Grant::WRITE | Grant::READ | Grant::ATOMIC;

fn world(seed: u64, room: u32) -> World {
    world_with(seed, room, false)
}

/// The same, where completions may ride in their data, and a GD may bring several GDAs.
fn world_with(seed: u64, room: u32, merges: bool) -> World {
    World::with_config(2, seed, |config| {
        let is_client = config.qpn_base == 1 << 16;
        let wish = if is_client { Wish::Client } else { Wish::Server };
        let registry = is_client.then_some(room);
        let merged = StarConfig { merge: merges, burst: merges, ..StarConfig::default() };
        config.star = Some(StarConfig { wish, registry, ..merged });
    })
}

/// Two sides with the rule for what is posted, and where the client's rules are for.
fn agreed(w: &mut World) -> ([QpId; 2], (Gid, QpNumber)) {
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful));
    let at = (w.nodes[SERVER].gid, w.nodes[SERVER].nic.qp_number(b).unwrap());
    put(w, at, RuleFor::Posted).unwrap();
    ([a, b], at)
}

fn put(w: &mut World, (server, number): (Gid, QpNumber), what: RuleFor) -> Result<(), Error> {
    w.nodes[CLIENT].nic.put_rule(&Rule { server, number, what })
}

fn region(memory: &Memory, from: usize, len: u64, rights: u8) -> RuleFor {
    let (va, key) = memory.at(from);
    RuleFor::Region { key, va, len, rights }
}

fn is_data(p: &Packet) -> bool {
    matches!(p.bth.opcode.operation(), Operation::RemoteData | Operation::GetData)
}

/// Data packets of the client's that have left since.
fn left(w: &mut World) -> usize {
    std::mem::take(&mut w.log).iter().filter(|(from, p)| *from == CLIENT && is_data(p)).count()
}

#[test]
fn what_rules_allow_passes_and_is_counted() {
    // Packets of data that are due: with merged ones a READ of three is one GD, and so is the server's SEND.
    for (merges, due) in [(false, 13), (true, 9)] {
        allowed(merges, due);
    }
}

fn allowed(merges: bool, due: u64) {
    let mut w = world_with(1, 8, merges);
    let ([a, b], at) = agreed(&mut w);
    let memory = [w.memory(CLIENT, 8192), w.memory(SERVER, 8192)];
    put(&mut w, at, region(&memory[SERVER], 0, 8192, ALL)).unwrap();
    w.keep_log = true;
    let bytes = pattern(1, 3000);
    memory[CLIENT].write(0, &bytes);
    let (va, rkey) = memory[SERVER].at(0);
    w.recv(SERVER, b, 50, &[memory[SERVER].sge(4096, 3000)]);
    let add = SendOp::FetchAdd { addr: va + 8184, rkey, add: 3 };
    let write = SendOp::Write(va, rkey);
    for (number, op, from, len) in [
        (1, SendOp::Send, 0, 3000),
        (2, write, 0, 3000),
        (3, SendOp::Read(va, rkey), 3000, 3000),
        (4, add, 0, 8),
    ] {
        w.send(CLIENT, a, wr(number, op, &[memory[CLIENT].sge(from, len)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success, "{number}");
    }
    assert_eq!(w.completion(SERVER).wr_id, 50);
    assert_eq!([0, 4096].map(|from| memory[SERVER].read(from, 3000)), [bytes.clone(), bytes.clone()]);
    assert_eq!(memory[CLIENT].read(3000, 3000), bytes);
    // The server's own requests are posted too.
    w.recv(CLIENT, a, 60, &[memory[CLIENT].sge(0, 3000)]);
    w.send(SERVER, b, wr(5, SendOp::Send, &[memory[SERVER].sge(0, 3000)]));
    assert_eq!((w.completion(SERVER).status, w.completion(CLIENT).wr_id), (Status::Success, 60));
    let sent = left(&mut w) as u64;
    assert_eq!(sent, due, "{merges}");
    assert_eq!(
        (w.counter(CLIENT, "star_egress_allowed"), w.counter(CLIENT, "star_egress_refused")),
        (sent, 0)
    );
}

/// A key without a rule, a place before or behind its bounds, a right that it lacks, a rule of another queue
/// pair: not a packet leaves, of long messages neither, and the request fails as by a NAK.
#[test]
fn of_what_no_rule_allows_no_packet_leaves() {
    let memory_of = |w: &mut World| [w.memory(CLIENT, 16384), w.memory(SERVER, 16384)];
    let cases = [(0, 8), (1, 8), (1, 9000), (2, 8), (3, 9000), (4, 8), (5, 8)];
    for ((case, len), merges) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let mut w = world_with(10 + case, 8, merges);
        let ([a, _], at) = agreed(&mut w);
        let memory = memory_of(&mut w);
        let (mut va, rkey) = memory[SERVER].at(4096);
        let rule = |rights| region(&memory[SERVER], 4096, 8192, rights);
        let mut op = SendOp::Write(va, rkey);
        match case {
            0 => {}
            1 => {
                put(&mut w, at, rule(ALL)).unwrap();
                // Its end lies behind the rule's by a byte.
                va = va + 8192 - u64::from(len.min(8192) as u32) + 1;
                op = SendOp::Write(va, rkey);
            }
            2 => {
                put(&mut w, at, rule(ALL)).unwrap();
                op = SendOp::Write(va - 1, rkey);
            }
            3 => {
                put(&mut w, at, rule(Grant::WRITE | Grant::ATOMIC)).unwrap();
                op = SendOp::Read(va, rkey);
            }
            4 => {
                put(&mut w, at, rule(Grant::WRITE | Grant::READ)).unwrap();
                op = SendOp::FetchAdd { addr: va, rkey, add: 1 };
            }
            _ => put(&mut w, (at.0, QpNumber::new(at.1.get() + 1)), rule(ALL)).unwrap(),
        }
        w.keep_log = true;
        w.send(CLIENT, a, wr(1, op, &[memory[CLIENT].sge(0, len)]));
        let failed = w.completion(CLIENT);
        assert_eq!((failed.wr_id, failed.status), (1, Status::RemoteAccess), "{case} {len}");
        assert_eq!(left(&mut w), 0, "{case} {len}");
        assert_eq!(w.counter(CLIENT, "star_egress_refused"), 1, "{case} {len}");
        assert_eq!(w.counter(SERVER, "star_nak_region"), 0, "the server has nothing to refuse");
        let why = w.nodes[CLIENT].nic.next_explanation().expect("a reason").rule;
        assert!(why.contains("registry has no rule"), "{why}");
        assert_eq!(memory[SERVER].read(0, 16384), vec![0; 16384]);
    }
}

/// A rule that is taken back while a message is on its way: what was lost is not sent again, and the request
/// fails, in its turn.
#[test]
fn what_is_taken_back_is_not_sent_again() {
    for lost in [0, 2] {
        let mut w = world(20 + lost, 8);
        let ([a, _], at) = agreed(&mut w);
        let memory = [w.memory(CLIENT, 16384), w.memory(SERVER, 16384)];
        put(&mut w, at, region(&memory[SERVER], 0, 16384, ALL)).unwrap();
        let (va, rkey) = memory[SERVER].at(0);
        memory[CLIENT].write(0, &pattern(2, 8192));
        let mut seen = 0;
        w.drop_if = Some(Box::new(move |from, p| {
            let hit = from == CLIENT && is_data(p);
            seen += u64::from(hit);
            hit && seen == lost + 1
        }));
        w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8192)]));
        w.transmit();
        w.nodes[CLIENT].nic.remove_rule(at.0, at.1, Some(rkey));
        w.keep_log = true;
        let failed = w.completion(CLIENT);
        assert_eq!((failed.wr_id, failed.status), (1, Status::RemoteAccess), "{lost}");
        w.run(Duration::from_ms(100));
        assert_eq!(left(&mut w), 0, "{lost}: nothing was sent again");
        assert!(w.counter(CLIENT, "star_egress_refused") >= 1);
    }
}

/// Without the rule of the connection nothing that was posted is carried either, of neither side.
#[test]
fn a_connection_without_rules_carries_nothing_and_both_sides_hear_it() {
    for asked in [CLIENT, SERVER] {
        let mut w = world(30 + asked as u64, 8);
        let (ids, _) = agreed(&mut w);
        let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
        w.nodes[CLIENT].nic.clear_rules();
        assert_eq!(w.nodes[CLIENT].nic.rules(), 0);
        w.keep_log = true;
        w.recv(1 - asked, ids[1 - asked], 50, &[memory[1 - asked].sge(0, 1000)]);
        w.send(asked, ids[asked], wr(1, SendOp::Send, &[memory[asked].sge(0, 1000)]));
        let failed = w.completion(asked);
        assert_eq!((failed.wr_id, failed.status), (1, Status::RemoteAccess), "{asked}");
        assert_eq!(left(&mut w), 0);
        assert_eq!(w.counter(CLIENT, "star_egress_refused"), 1);
    }
}

#[test]
fn a_full_registry_says_so_and_keeps_what_it_has() {
    let mut w = world(40, 2);
    let ([a, _], at) = agreed(&mut w);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64), w.memory(SERVER, 64)];
    put(&mut w, at, region(&memory[1], 0, 64, ALL)).unwrap();
    assert_eq!(put(&mut w, at, region(&memory[2], 0, 64, ALL)), Err(Error::TableFull));
    let (va, rkey) = memory[1].at(0);
    w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8)]));
    assert_eq!(w.completion(CLIENT).status, Status::Success);
    let rule = Rule { server: at.0, number: at.1, what: RuleFor::Posted };
    assert!(w.nodes[SERVER].nic.put_rule(&rule).is_err(), "a NIC without a registry takes no rule");
}

/// A server whose peer does not take its rules has plain RC there, from the beginning and for good.
#[test]
fn a_connection_that_is_kept_from_star_is_plain_rc_for_good() {
    let mut w = world(50, 8);
    let (a, b) = (w.qp(CLIENT, QpType::Rc, CAPS), w.qp(SERVER, QpType::Rc, CAPS));
    w.nodes[SERVER].nic.keep_from_star(b).unwrap();
    let link = Link { timeout: 14, ..Link::default() };
    w.connect((CLIENT, a), (SERVER, b), &link);
    w.connect((SERVER, b), (CLIENT, a), &link);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    let (va, rkey) = memory[SERVER].at(0);
    w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8)]));
    let done = w.completion(CLIENT);
    let why = w.nodes[CLIENT].nic.next_explanation().map(|why| why.rule);
    assert_eq!((done.status, why), (Status::Success, None), "plain RC needs no rule");
    assert_eq!(
        [w.nodes[CLIENT].nic.star_side(a), w.nodes[SERVER].nic.star_side(b)],
        [Ok(StarSide::Plain); 2]
    );
    let asked = w.nodes[SERVER].nic.star_switch(w.now, b, StarSide::Stateless);
    assert!(matches!(asked, Err(Error::Unsupported(_))), "{asked:?}");
    let asked = w.nodes[CLIENT].nic.star_switch(w.now, a, StarSide::Stateful);
    assert_eq!(asked, Ok(()));
    w.run(Duration::from_ms(500));
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Plain), "by the peer neither");
    assert!(w.counter(SERVER, "star_switch_refused") > 0);
    assert!(w.nodes[SERVER].nic.keep_from_star(b).is_err(), "too late");
}

/// What a program writes itself is seen when it is executed: too late to tell peers' registries of a window
/// that all connections of the domain may use. Such a bind fails in words, where there is a registry; a
/// window for this queue pair's peer, which speaks plain RC, is bound as ever, and so is one that is posted
/// elsewhere.
#[test]
fn binds_that_a_program_writes_itself_are_refused_where_peers_would_have_to_hear_of_them() {
    for (has_registry, kind, written) in [
        (true, MwType::One, true),
        (true, MwType::One, false),
        (true, MwType::Two, true),
        (false, MwType::One, true),
    ] {
        let mut w = World::with_config(2, 60, |config| {
            let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
            config.star =
                Some(StarConfig { wish, registry: has_registry.then_some(8), ..StarConfig::default() });
        });
        let (a, b) = (w.qp(CLIENT, QpType::Rc, CAPS), w.qp(SERVER, QpType::Rc, CAPS));
        if written {
            w.nodes[SERVER].nic.send_queue_memory(b).unwrap();
        }
        let link = Link { timeout: 14, ..Link::default() };
        w.connect((SERVER, b), (CLIENT, a), &link);
        w.connect((CLIENT, a), (SERVER, b), &link);
        w.run(Duration::from_ms(50));
        let memory =
            w.memory_with(SERVER, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND);
        let pd = w.nodes[SERVER].pd;
        let window = w.nodes[SERVER].nic.memory().alloc_mw(pd, kind).unwrap();
        let bind = SendOp::BindMw {
            mw: window.id,
            rkey: Key(window.rkey.0 & !0xff | 0x33),
            lkey: memory.mr.lkey,
            addr: memory.addr(),
            len: 4096,
            access: Access::REMOTE_WRITE,
        };
        w.send(SERVER, b, wr(1, bind, &[]));
        let done = w.completion(SERVER);
        let refused = has_registry && written && kind == MwType::One;
        let status = if refused { Status::MemoryWindowBind } else { Status::Success };
        assert_eq!((done.wr_id, done.status), (1, status), "{has_registry}, {kind:?}, {written}");
        assert_eq!(w.nodes[SERVER].nic.memory().take_ended_windows().len(), 0);
        let why = w.nodes[SERVER].nic.next_explanation().map(|why| why.rule);
        assert_eq!(why.is_some_and(|why| why.contains("writes itself")), refused, "{why:?}");
    }
}

/// A server's request whose data no rule lets the client ask for fails; what the server tells before it hears
/// so is not executed, though it brings its data along and needs no rule.
#[test]
fn behind_a_servers_request_that_was_refused_nothing_is_executed() {
    let mut w = world(70, 8);
    let ([a, b], _) = agreed(&mut w);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    w.nodes[CLIENT].nic.clear_rules();
    for wr_id in [50, 51] {
        w.recv(CLIENT, a, wr_id, &[memory[CLIENT].sge(0, 1000)]);
    }
    // The server does not hear of the failure yet.
    w.drop_if = Some(Box::new(|from, p| from == CLIENT && p.bth.opcode.operation() == Operation::CqePacket));
    w.send(SERVER, b, wr(1, SendOp::Send, &[memory[SERVER].sge(0, 1000)]));
    w.run(Duration::from_ms(1));
    assert_eq!(w.counter(CLIENT, "star_egress_refused"), 1);
    w.send(SERVER, b, SendWr { data: SendData::Inline(&[7; 16]), ..wr(2, SendOp::Send, &[]) });
    w.run(Duration::from_ms(1));
    w.drop_if = None;
    let ends = [w.completion(SERVER), w.completion(SERVER)].map(|done| (done.wr_id, done.status));
    assert_eq!(ends, [(1, Status::RemoteAccess), (2, Status::WorkRequestFlushed)]);
    while let Some(done) = w.poll(CLIENT) {
        assert_ne!(done.status, Status::Success, "receive {}", done.wr_id);
    }
    assert_eq!(memory[CLIENT].read(0, 16), [0; 16]);
}

/// A rule that is taken back while the server's requests are on their way: the one fails whose packet may not
/// leave any more, and what was asked for before still comes.
#[test]
fn the_request_fails_whose_packet_may_not_leave() {
    for len in [1000, 3000] {
        let mut w = world(71, 8);
        let ([a, b], _) = agreed(&mut w);
        let memory = [w.memory(CLIENT, 8192), w.memory(SERVER, 8192)];
        let bytes = pattern(3, len);
        memory[SERVER].write(0, &bytes);
        for wr_id in [50, 51] {
            w.recv(CLIENT, a, wr_id, &[memory[CLIENT].sge(0, len)]);
        }
        w.send(SERVER, b, wr(1, SendOp::Send, &[memory[SERVER].sge(0, len)]));
        // The client has asked for all of it, and has none of it yet.
        w.run(Duration::from_us(3));
        w.send(SERVER, b, wr(2, SendOp::Send, &[memory[SERVER].sge(0, len)]));
        w.transmit();
        w.nodes[CLIENT].nic.clear_rules();
        let ends = [w.completion(SERVER), w.completion(SERVER)].map(|done| (done.wr_id, done.status));
        assert_eq!(ends, [(1, Status::Success), (2, Status::RemoteAccess)], "{len}");
        let received = [w.completion(CLIENT), w.completion(CLIENT)].map(|done| (done.wr_id, done.status));
        assert_eq!(received, [(50, Status::Success), (51, Status::WorkRequestFlushed)], "{len}");
        assert_eq!(memory[CLIENT].read(0, len), bytes);
        assert_eq!(w.counter(CLIENT, "star_egress_refused"), 1, "{len}");
        assert_eq!(w.nodes[CLIENT].nic.query_qp(a).unwrap().0.state, QpState::Err);
        let told: Vec<_> = std::iter::from_fn(|| w.nodes[CLIENT].nic.next_event()).collect();
        assert!(told.contains(&Event::QpFatal(a)), "{told:?}");
        let why = w.nodes[CLIENT].nic.next_explanation().expect("a reason").rule;
        assert!(why.contains("registry has no rule"), "{why}");
    }
}

/// The same in the middle of a message: what was asked for before is received up to there, nothing is asked
/// for again, not even what was lost, and the message fails after the one before it is done.
#[test]
fn a_message_that_is_stopped_in_its_middle_fails_there() {
    const LEN: usize = 100_000;
    // No answer is lost; the one of the message before it; one in the middle of what was asked for.
    for lost in [None, Some(0), Some(9)] {
        let mut w = world(72, 8);
        let ([a, b], _) = agreed(&mut w);
        let memory = [w.memory(CLIENT, 2 * LEN), w.memory(SERVER, 2 * LEN)];
        let bytes = pattern(4, LEN);
        memory[SERVER].write(0, &bytes);
        w.recv(CLIENT, a, 50, &[memory[CLIENT].sge(LEN, 8)]);
        w.recv(CLIENT, a, 51, &[memory[CLIENT].sge(0, LEN)]);
        w.send(SERVER, b, wr(1, SendOp::Send, &[memory[SERVER].sge(0, 8)]));
        w.send(SERVER, b, wr(2, SendOp::Send, &[memory[SERVER].sge(0, LEN)]));
        // A window is asked for, and nothing of it has come yet.
        w.keep_log = true;
        w.run(Duration::from_us(3));
        let asked = left(&mut w);
        assert!((20..LEN / 1024).contains(&asked), "{asked} packets were asked for");
        w.nodes[CLIENT].nic.clear_rules();
        let mut seen = 0;
        w.drop_if = Some(Box::new(move |_, p| {
            let hit = p.bth.opcode.operation() == Operation::GetDataAnswer;
            seen += usize::from(hit);
            hit && Some(seen - 1) == lost
        }));
        let ends = [w.completion(SERVER), w.completion(SERVER)].map(|done| (done.wr_id, done.status));
        let received = [w.completion(CLIENT), w.completion(CLIENT)].map(|done| (done.wr_id, done.status));
        // Packets of the message that are received: all that were asked for, or those before the lost one.
        let (first, second, packets) = match lost {
            None => (Status::Success, Status::RemoteAccess, asked - 1),
            Some(0) => (Status::RemoteAccess, Status::WorkRequestFlushed, 0),
            Some(answer) => (Status::Success, Status::RemoteAccess, answer - 1),
        };
        assert_eq!(ends, [(1, first), (2, second)], "{lost:?}");
        // As with RC: what was received into is not the next message's.
        let into = if packets > 0 { Status::LocalAccess } else { Status::WorkRequestFlushed };
        let before = if first == Status::Success { first } else { Status::WorkRequestFlushed };
        assert_eq!(received, [(50, before), (51, into)], "{lost:?}");
        assert_eq!(left(&mut w), 0, "{lost:?}: something was asked for again");
        assert_eq!(memory[CLIENT].read(0, packets * 1024), bytes[..packets * 1024], "{lost:?}");
        assert!(memory[CLIENT].read(packets * 1024, LEN - packets * 1024).iter().all(|byte| *byte == 0));
    }
}
