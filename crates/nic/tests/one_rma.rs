//! 1RMA's operations, outcomes, window, quotas and rekeys, between NICs in virtual time.

mod one_rma_world;

use adverb_nic::one_rma::*;
use adverb_nic::{Access, Error, OneRma};
use adverb_wire::one_rma::{Body, Header, Kind, Op, Piece};
use adverb_wire::{Duration, Instant};
use one_rma_world::*;

fn kinds(world: &Rma) -> Vec<Kind> {
    world.log.iter().map(|(_, _, bytes)| Header::parse(bytes).unwrap().kind()).collect()
}

#[test]
fn a_read_of_two_kilobytes() {
    let mut w = Rma::new(2, 1);
    let bytes = pattern(1, 2000);
    w.hosts[1].memory.write(TARGET + 100, &bytes);
    let mut command = w.command(0, 1, Op::Read, 2000);
    (command.remote_offset, command.local_offset) = (100, 7);
    let done = w.run(0, &command);
    assert_eq!((done.outcome, done.slot), (Outcome::Ok, w.hosts[0].slots[0]));
    assert_eq!((done.issue_delay, done.total_delay), (Duration::ZERO, LATENCY.times(2)));
    assert_eq!(w.hosts[0].memory.read(LOCAL + 7, 2000), bytes);
    assert_eq!(kinds(&w), [Kind::ReadRequest, Kind::ReadResponse, Kind::ReadResponse]);
    assert_eq!((w.hosts[1].counter("reads_served"), w.hosts[0].counter("ops_ok")), (1, 1));
    // What travels is not what is read.
    assert!(w.log.iter().all(|(_, _, message)| !message.windows(16).any(|part| part == &bytes[..16])));
    w.drain();
}

#[test]
fn a_write_takes_four_hops() {
    let mut w = Rma::new(2, 1);
    let bytes = pattern(2, 1500);
    w.hosts[0].memory.write(LOCAL + 50, &bytes);
    let mut command = w.command(0, 1, Op::Write, 1500);
    (command.remote_offset, command.local_offset) = (33, 50);
    let done = w.run(0, &command);
    assert_eq!((done.outcome, done.total_delay), (Outcome::Ok, LATENCY.times(4)));
    assert_eq!(w.hosts[1].memory.read(TARGET + 33, 1500), bytes);
    let data = Kind::WriteData;
    assert_eq!(kinds(&w), [Kind::WriteRequest, Kind::Solicitation, data, data, Kind::Completion]);
    assert!(w.log.iter().all(|(_, _, message)| !message.windows(16).any(|part| part == &bytes[..16])));
    w.drain();
}

#[test]
fn every_length_moves_exactly_its_bytes() {
    for op in [Op::Read, Op::Write] {
        for len in [1, 63, 64, 65, 127, 1023, 1024, 1025, 4032, 4095, 4096] {
            let mut w = Rma::new(2, 1);
            let (source, sink) = if op == Op::Read { (1, 0) } else { (0, 1) };
            let at = |host: usize| if host == 0 { LOCAL } else { TARGET };
            w.hosts[source].memory.write(at(source) + 5, &vec![0xee; 5000]);
            w.hosts[source].memory.write(at(source) + 100, &pattern(len as u64, len));
            let mut command = w.command(0, 1, op, len);
            (command.remote_offset, command.local_offset) = (100, 100);
            assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
            let landed = w.hosts[sink].memory.read(at(sink), 5000);
            assert_eq!(landed[100..100 + len], pattern(len as u64, len));
            let rest = landed[..100].iter().chain(&landed[100 + len..]);
            assert!(rest.into_iter().all(|byte| *byte == 0), "{op:?} of {len}");
        }
    }
}

#[test]
fn responses_come_in_any_order_and_twice() {
    let mut w = Rma::new(2, 1);
    w.hosts[1].memory.write(TARGET, &pattern(3, 4096));
    w.meddler = Some(Box::new(|number, _, bytes| {
        let late = LATENCY + Duration::from_ns(1000 - 100 * number as u64);
        vec![(late, bytes.to_vec()), (late + Duration::from_ns(50), bytes.to_vec())]
    }));
    let command = w.command(0, 1, Op::Read, 4096);
    assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
    assert_eq!(w.hosts[0].memory.read(LOCAL, 4096), pattern(3, 4096));
    assert!(w.hosts[0].counter("drop_duplicate") >= 3);
    w.drain();
    assert!(w.hosts[0].completion().is_none(), "one completion");
}

#[test]
fn an_unanswered_request_times_out() {
    let mut w = Rma::new(2, 1);
    for op in [Op::Read, Op::Write, Op::Rekey] {
        w.meddler = Some(Box::new(|_, _, _| Vec::new()));
        let command = w.command(0, 1, op, 16);
        let done = w.run(0, &command);
        assert_eq!((done.outcome, done.total_delay), (Outcome::Timeout, w.hosts[0].nic.config().timeout));
    }
    w.drain();
    assert_eq!(w.hosts[0].counter("ops_timeout"), 3);
}

#[test]
fn an_operation_enters_with_four_kilobytes_free_and_gives_back_what_it_took() {
    let mut w = Rma::with(2, 1, &|c| c.window = 8192);
    // Two of 2048 bytes leave exactly 4096; a third enters, and then a small one may not.
    for slot in 0..3 {
        w.post(0, slot, &w.command(0, 1, Op::Read, 2048));
    }
    w.post(0, 3, &w.command(0, 1, Op::Read, 1));
    assert!(w.advance(Instant::NEVER));
    assert_eq!(kinds(&w).len(), 3, "the small one waits");
    let done: Vec<_> = (0..4).map(|_| w.finish(0)).collect();
    assert!(done.iter().all(|done| done.outcome == Outcome::Ok));
    assert_eq!(done[3].slot, w.hosts[0].slots[3]);
    assert_eq!(done[3].issue_delay, LATENCY.times(2), "until the first came back");
    w.drain();
}

#[test]
fn who_waits_too_long_for_the_window_is_told() {
    let mut w = Rma::with(2, 1, &|c| c.window = 4096);
    // The peer never answers, so the first holds the window for longer than the second may wait.
    w.meddler = Some(Box::new(|_, _, _| Vec::new()));
    w.post(0, 0, &w.command(0, 1, Op::Read, 4096));
    w.post(0, 1, &w.command(0, 1, Op::Write, 64));
    let done = w.finish(0);
    let dispatch = w.hosts[0].nic.config().dispatch_timeout;
    assert_eq!((done.outcome, done.issue_delay), (Outcome::DispatchTimeout, dispatch));
    assert_eq!((done.slot, done.total_delay), (w.hosts[0].slots[1], dispatch));
    assert_eq!(w.finish(0).outcome, Outcome::Timeout);
    // The timeout gave the window back.
    w.meddler = None;
    let command = w.command(0, 1, Op::Read, 4096);
    assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
    w.drain();
}

#[test]
fn classes_of_service_take_turns() {
    let mut w = Rma::with(2, 1, &|c| {
        c.window = 4096;
        (c.dispatch_timeout, c.timeout) = (Duration::from_us(50), Duration::from_us(100));
    });
    for slot in 0..4 {
        w.post(0, slot, &w.command(0, 1, Op::Read, 4096));
    }
    let mut other = w.command(0, 1, Op::Read, 4096);
    other.class = 1;
    w.post(0, 4, &other);
    w.drain();
    let order: Vec<u32> = core::iter::from_fn(|| w.hosts[0].completion()).map(|c| c.slot.index()).collect();
    assert_eq!(order, [0, 4, 1, 2, 3], "the second class does not wait behind the first");
}

#[test]
fn a_queue_above_its_threshold_answers_nack() {
    let mut w = Rma::with(3, 1, &|c| {
        c.nack_threshold = Some(8192);
        c.window = 64 << 10;
    });
    // All arrive before any is served: three of 4096 pass 8192, so the fourth is refused.
    for from in [0, 1] {
        for slot in 0..4 {
            w.post(from, slot, &w.command(from, 2, Op::Read, 4096));
        }
    }
    w.drain();
    let outcomes: Vec<_> = (0..2)
        .flat_map(|from| core::iter::from_fn(|| w.hosts[from].completion()).collect::<Vec<_>>())
        .collect();
    let count = |outcome| outcomes.iter().filter(|done| done.outcome == outcome).count();
    assert_eq!((count(Outcome::Ok), count(Outcome::Nack)), (3, 5));
    assert!(outcomes.iter().all(|done| done.total_delay == LATENCY.times(2)), "told at once");
    assert_eq!(w.hosts[2].counter("nacks_queue"), 5);
    // NACKs gave the window back.
    let command = w.command(0, 2, Op::Read, 4096);
    assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
}

#[test]
fn a_full_table_and_a_full_window_of_the_target_answer_nack() {
    let mut w = Rma::with(2, 1, &|c| {
        c.inbound_ops = 2;
        c.window = 64 << 10;
    });
    for slot in 0..4 {
        w.post(0, slot, &w.command(0, 1, Op::Read, 64));
    }
    w.drain();
    assert_eq!((w.hosts[0].counter("ops_ok"), w.hosts[1].counter("nacks_table")), (2, 2));

    let mut w = Rma::with(2, 1, &|c| c.timeout = Duration::from_us(100));
    // The target's window is full of what never comes: the data are lost.
    w.meddler = Some(Box::new(|_, _, bytes| match Header::parse(bytes).unwrap().kind() {
        Kind::WriteData => Vec::new(),
        _ => vec![(LATENCY, bytes.to_vec())],
    }));
    for slot in 0..16 {
        w.post(0, slot, &w.command(0, 1, Op::Write, 4096));
    }
    while w.hosts[1].nic.counters().requests < 16 {
        assert!(w.advance(Instant::NEVER));
    }
    w.hosts[0].nic.detach(PID).unwrap();
    let again = host(0, 2, &|c| c.timeout = Duration::from_us(100));
    w.hosts[0] = again;
    let command = w.command(0, 1, Op::Write, 64);
    let done = w.run(0, &command);
    assert_eq!(done.outcome, Outcome::Nack);
    assert_eq!(done.total_delay, LATENCY.times(2) + w.hosts[1].nic.config().dispatch_timeout);
    assert_eq!(w.hosts[1].counter("nacks_window"), 1);
    w.drain();
    assert_eq!(w.hosts[1].counter("solicitations_expired"), 16);
}

#[test]
fn a_rekey_by_a_peer_changes_the_key_of_one_region() {
    let mut w = Rma::new(3, 1);
    let (old, other) = (w.command(0, 1, Op::Read, 64), w.command(0, 2, Op::Read, 64));
    // The third host, in possession of K_d, changes the key of the second one's region.
    w.hosts[2].memory.write(LOCAL, &[0x99; 16]);
    let rekey = w.command(2, 1, Op::Rekey, 16);
    assert_eq!(w.run(2, &rekey).outcome, Outcome::Ok);
    assert!(w.log.iter().all(|(_, _, message)| !message.windows(16).any(|part| part == [0x99; 16])));
    let done = w.run(0, &old);
    assert_eq!((done.outcome, done.total_delay), (Outcome::RemoteAuthenticationFailure, LATENCY.times(2)));
    assert_eq!(w.run(0, &other).outcome, Outcome::Ok, "another region does not notice");
    let mut new = old.clone();
    new.key = derive(&RegionKey::new([0x99; 16]), gid(1), new.remote_region.wire(), gid(0), PID, Op::Read);
    assert_eq!(w.run(0, &new).outcome, Outcome::Ok);
    assert_eq!(w.run(2, &rekey).outcome, Outcome::RemoteAuthenticationFailure);
    assert_eq!(w.hosts[1].counter("rekeys"), 1);
}

#[test]
fn a_rekey_of_an_own_region_needs_no_network() {
    let mut w = Rma::new(2, 1);
    w.hosts[1].memory.write(LOCAL, &[0x77; 16]);
    let rekey = w.command(1, 1, Op::Rekey, 16);
    let done = w.run(1, &rekey);
    assert_eq!((done.outcome, done.total_delay), (Outcome::Ok, Duration::ZERO));
    assert!(w.log.is_empty());
    // The old key proves nothing any more, here as elsewhere.
    assert_eq!(w.run(1, &rekey).outcome, Outcome::RemoteAuthenticationFailure);
    let mut stranger = rekey.clone();
    stranger.key = DerivedKey::new([0; 16]);
    assert_eq!(w.run(1, &stranger).outcome, Outcome::RemoteAuthenticationFailure);
    let expected =
        derive(&RegionKey::new([0x77; 16]), gid(1), rekey.remote_region.wire(), gid(0), PID, Op::Read);
    assert!(w.key(0, 1, Op::Read).equals(&expected));
}

#[test]
fn a_key_that_changes_halfway_ends_the_operation() {
    // Rotated before the data of a write land, and before a read is served.
    for op in [Op::Write, Op::Rekey, Op::Read] {
        for gone in [false, true] {
            let mut w = Rma::new(2, 1);
            w.hosts[0].memory.write(LOCAL, &pattern(1, 64));
            w.post(0, 0, &w.command(0, 1, op, if op == Op::Rekey { 16 } else { 64 }));
            while w.hosts[1].nic.counters().requests == 0 {
                w.advance(Instant::NEVER);
            }
            if op != Op::Read {
                assert!(w.advance(Instant::NEVER), "the solicitation arrives");
            }
            let region = w.hosts[1].target;
            match gone {
                true => w.hosts[1].nic.deregister(region).unwrap(),
                false => w.hosts[1].nic.rotate(region, &RegionKey::new([1; 16])).unwrap(),
            }
            assert_eq!(w.finish(0).outcome, Outcome::RemoteAuthenticationFailure, "{op:?} {gone}");
            assert_eq!((w.hosts[1].counter("revoked"), w.hosts[1].counter("rekeys")), (1, 0));
            assert_eq!(w.hosts[1].memory.read(TARGET, 64), [0; 64]);
            w.drain();
        }
    }
}

#[test]
fn an_authentic_request_that_the_region_does_not_allow_is_refused() {
    let mut w = Rma::new(2, 1);
    let owner = &mut w.hosts[1];
    let init = RegionInit {
        owner: PID,
        pd: owner.pd,
        lkey: owner.memory.mr.lkey,
        addr: owner.memory.addr(),
        len: 1000,
        rights: Rights::READ,
        key: region_key(1),
    };
    let region = owner.nic.register(&init).unwrap();
    let cases = [
        (Op::Read, 0, 1000, Outcome::Ok),
        (Op::Read, 999, 1, Outcome::Ok),
        (Op::Read, 0, 1001, Outcome::RemoteAuthenticationFailure),
        (Op::Read, 1000, 1, Outcome::RemoteAuthenticationFailure),
        (Op::Read, u64::MAX, 64, Outcome::RemoteAuthenticationFailure),
        (Op::Write, 0, 64, Outcome::RemoteAuthenticationFailure),
        (Op::Rekey, 0, 16, Outcome::RemoteAuthenticationFailure),
    ];
    for (op, offset, len, expected) in cases {
        let mut command = w.command(0, 1, op, len);
        command.remote_region = region;
        command.remote_offset = offset;
        command.key = w.hosts[1].nic.derive(region, gid(0), PID, op).unwrap();
        assert_eq!(w.run(0, &command).outcome, expected, "{op:?} {offset} {len}");
    }
    let count = |name| w.hosts[1].counter(name);
    assert_eq!((count("requests_out_of_bounds"), count("requests_without_right")), (3, 2));
    assert_eq!(count("requests_unauthentic"), 0);
}

#[test]
fn what_a_caller_gets_wrong_is_refused_and_changes_nothing() {
    let mut w = Rma::with(1, 1, &|c| c.slots_by_priority = [8; 4]);
    let pd = w.hosts[0].pd;
    let lkey = w.hosts[0].memory.mr.lkey;
    let addr = w.hosts[0].memory.addr();
    let read_only = w.hosts[0].nic.memory();
    let fixed = Memory::register(read_only, pd, 4096, Access::empty());
    let good = w.command(0, 0, Op::Read, 64);
    let now = w.now;
    let host = &mut w.hosts[0];
    let nic = &mut host.nic;
    assert_eq!(nic.allot_slot(PID), Err(Error::TableFull), "beyond the quota");
    assert_eq!(nic.allot_slot(1), Err(Error::NoSuchObject));
    assert_eq!(nic.attach(ProcessInit { pid: 7, quota: 1, priority: 0 }), Err(Error::TableFull));

    let init = |owner, lkey, addr, len, rights| {
        let key = RegionKey::new([0; 16]);
        RegionInit { owner, pd, lkey, addr, len, rights, key }
    };
    let outside = [
        init(PID, lkey, addr, 3 * PART as u64 + 1, Rights::READ),
        init(PID, lkey, addr - 1, 10, Rights::READ),
        init(PID, lkey, u64::MAX, 10, Rights::READ),
        init(PID, lkey, addr, 0, Rights::READ),
        init(PID, adverb_wire::Key(1), addr, 10, Rights::READ),
        init(PID, fixed.mr.lkey, fixed.addr(), 10, Rights::WRITE),
    ];
    for init in &outside {
        assert!(matches!(nic.register(init), Err(Error::Invalid(_))), "{init:?}");
    }
    assert_eq!(nic.register(&init(1, lkey, addr, 10, Rights::READ)), Err(Error::NoSuchObject));
    let constant = nic.register(&init(PID, fixed.mr.lkey, fixed.addr(), 4096, Rights::READ)).unwrap();
    let small = nic.register(&init(PID, lkey, addr, 8 * 32 - 1, Rights::empty())).unwrap();

    let wrong: [fn(&mut Command, RegionId, RegionId); 6] = [
        |c, _, _| c.local_offset = PART as u64 - 63,
        |c, _, _| c.local_offset = u64::MAX,
        |c, constant, _| c.local_region = constant,
        |c, constant, _| c.completion_region = constant,
        |c, _, small| c.completion_region = small,
        |c, _, _| c.local_region = RegionId::from_wire(12345),
    ];
    for (i, change) in wrong.iter().enumerate() {
        let mut command = good.clone();
        change(&mut command, constant, small);
        assert!(matches!(nic.post(now, host.slots[0], &command.encode()), Err(Error::Invalid(_))), "{i}");
    }
    assert!(matches!(nic.post(now, host.slots[0], &[0; COMMAND_LEN]), Err(Error::Invalid(_))));
    assert_eq!(nic.post(now, host.slots[0], &good.encode()), Ok(()));
    assert_eq!(nic.post(now, host.slots[0], &good.encode()), Err(Error::Busy));
    nic.release_slot(host.slots[0]).unwrap();
    assert_eq!(nic.post(now, host.slots[0], &good.encode()), Err(Error::NoSuchObject));
    nic.check_invariants();
    assert_eq!(nic.counters().ops_abandoned, 1);
    assert!(OneRma::new(OneRmaConfig { window: 4095, ..config(0) }, 0..10, 1).is_err());
    assert!(OneRma::new(config(0), 10..10, 1).is_err());
}

#[test]
fn processes_do_not_reach_one_anothers_regions() {
    let mut w = Rma::with(2, 1, &|c| c.slots = 64);
    // A second process beside the first, which gives up its promise of all slots.
    let mut crowded = host(0, 5, &|c| {
        c.slots = 64;
        c.slots_by_priority = [32; 4];
    });
    assert_eq!(crowded.nic.attach(ProcessInit { pid: 200, quota: 1, priority: 3 }), Err(Error::TableFull));
    crowded.nic.detach(PID).unwrap();
    assert_eq!(crowded.nic.detach(PID), Err(Error::NoSuchObject));
    crowded.nic.attach(ProcessInit { pid: PID, quota: 8, priority: 0 }).unwrap();
    crowded.nic.attach(ProcessInit { pid: 200, quota: 8, priority: 3 }).unwrap();
    let region = |owner, at: usize| RegionInit {
        owner,
        pd: crowded.pd,
        lkey: crowded.memory.mr.lkey,
        addr: crowded.memory.addr() + at as u64,
        len: PART as u64,
        rights: Rights::empty(),
        key: RegionKey::new([3; 16]),
    };
    let (mine, theirs) = (region(200, RING), region(PID, LOCAL));
    let ring = crowded.nic.register(&mine).unwrap();
    let local = crowded.nic.register(&theirs).unwrap();
    let slot = crowded.nic.allot_slot(200).unwrap();
    let mut command = w.command(0, 1, Op::Read, 64);
    command.completion_region = ring;
    command.local_region = local;
    assert!(matches!(crowded.nic.post(w.now, slot, &command.encode()), Err(Error::Invalid(_))));
    command.local_region = ring;
    // The other process's K_d is worth nothing in this process's slot: the NIC says who asks.
    assert_eq!(crowded.nic.post(w.now, slot, &command.encode()), Ok(()));
    crowded.ring = ring;
    w.hosts[0] = crowded;
    assert_eq!(w.finish(0).outcome, Outcome::RemoteAuthenticationFailure);
    assert_eq!(request_of(&w.log[0].2).unwrap().pid, 200);
    assert_eq!(w.hosts[1].counter("requests_unauthentic"), 1);
}

#[test]
fn a_process_that_goes_away_takes_everything_with_it() {
    let mut w = Rma::new(2, 1);
    for (slot, op) in [Op::Read, Op::Write, Op::Rekey].into_iter().enumerate() {
        w.post(0, slot, &w.command(0, 1, op, 16));
    }
    assert!(w.advance(Instant::NEVER));
    w.hosts[0].nic.detach(PID).unwrap();
    w.hosts[0].nic.check_invariants();
    w.drain();
    assert_eq!(w.hosts[0].counter("ops_abandoned"), 3);
    assert!(w.hosts[0].counter("drop_unexpected") >= 3, "late answers find nobody");
    assert_eq!(w.hosts[1].memory.read(TARGET, 64), [0; 64]);
    // A target that went away refuses at once.
    w.hosts[1].nic.detach(PID).unwrap();
    let fresh = host(0, 2, &|_| {});
    w.hosts[0] = fresh;
    let mut command = w.command(0, 0, Op::Read, 64);
    (command.target, command.remote_region) = (gid(1), w.hosts[1].target);
    assert_eq!(w.run(0, &command).outcome, Outcome::RemoteAuthenticationFailure);
    assert_eq!(w.hosts[1].counter("requests_unknown_region"), 1);
}

#[test]
fn nothing_is_sent_when_the_message_counters_are_used_up() {
    let mut w = Rma::new(2, 1);
    let mut short = OneRma::new(config(0), 5..6, 1).unwrap();
    assert_eq!(short.message_counters_left(), 1);
    assert!(short.add_message_counters(0..5).is_err(), "not again");
    w.hosts[0] = host(0, 9, &|_| {});
    w.hosts[0].nic.add_message_counters(u64::MAX - 1..u64::MAX).unwrap();
    // One counter is left: the first request takes it, and the second waits in vain.
    let command = w.command(0, 1, Op::Read, 64);
    assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
    assert_eq!(w.run(0, &command).outcome, Outcome::DispatchTimeout);
    assert!(!w.hosts[0].nic.has_work());
    w.drain();
}

#[test]
fn a_solicitation_that_holds_longer_than_allowed_is_not_answered() {
    let mut w = Rma::new(2, 1);
    let patient = host(1, 1, &|c| c.timeout = Duration::from_us(21));
    w.hosts[1] = patient;
    let command = w.command(0, 1, Op::Write, 64);
    assert_eq!(w.run(0, &command).outcome, Outcome::Timeout);
    w.drain();
    assert_eq!(w.hosts[0].counter("drop_solicitation"), 1);
    assert_eq!(w.hosts[1].memory.read(TARGET, 64), [0; 64]);
    // A target that is less patient than the initiator is no problem.
    let hasty = host(1, 1, &|c| c.timeout = Duration::from_us(16));
    w.hosts[1] = hasty;
    let command = w.command(0, 1, Op::Write, 64);
    assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
}

#[test]
fn message_counters_ascend_and_never_repeat() {
    let mut w = Rma::new(2, 1);
    for op in [Op::Read, Op::Write, Op::Rekey] {
        for len in [16, 16] {
            let command = w.command(0, 1, op, len);
            w.run(0, &command);
        }
    }
    w.drain();
    // A restart goes on in the next range.
    let restarted = host(0, 2, &|_| {});
    w.hosts[0] = restarted;
    let mut command = w.command(0, 1, Op::Read, 4096);
    command.key = w.key(0, 1, Op::Read);
    w.run(0, &command);
    for sender in 0..2 {
        let sent = w.log.iter().filter(|(from, ..)| *from == sender);
        let counters: Vec<u64> = sent.map(|(_, _, bytes)| Header::parse(bytes).unwrap().counter).collect();
        let mut sorted = counters.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), counters.len(), "host {sender}");
    }
}

#[test]
fn a_piece_names_where_it_belongs() {
    let mut w = Rma::with(2, 1, &|c| c.max_piece = 64);
    let command = w.command(0, 1, Op::Read, 200);
    w.run(0, &command);
    let pieces: Vec<Piece> =
        w.log.iter().filter_map(|(_, _, bytes)| Header::parse(bytes).unwrap().piece()).collect();
    let expected = [(0, 64), (64, 64), (128, 64), (192, 8)];
    assert_eq!(pieces, expected.map(|(offset, len)| Piece { offset, len }));
    let last = Header::parse(&w.log[1].2).unwrap();
    assert!(matches!(last.body, Body::ReadResponse { slot: 0, .. }));
}
