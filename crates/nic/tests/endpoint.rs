//! Endpoints: queues that exist without a transport, are lent to a queue pair and taken back.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Psn};
use world::*;

fn init_of(w: &World, node: usize) -> QpInit {
    let n = &w.nodes[node];
    QpInit::rc(n.pd, n.cq, CAPS)
}

fn endpoint(w: &mut World, node: usize) -> QpId {
    let init = init_of(w, node);
    w.nodes[node].nic.create_endpoint(&init).unwrap()
}

/// An endpoint of node 0 and a queue pair of node 1, connected.
fn connected(w: &mut World) -> (QpId, QpId) {
    let a = endpoint(w, 0);
    let b = w.qp(1, QpType::Rc, CAPS);
    w.connect((0, a), (1, b), &Link::default());
    w.connect((1, b), (0, a), &Link::default());
    (a, b)
}

fn to_state(w: &mut World, node: usize, qp: QpId, state: QpState) -> Result<(), Error> {
    let (mut attr, _) = w.nodes[node].nic.query_qp(qp).unwrap();
    attr.state = state;
    w.nodes[node].nic.modify_qp(w.now, qp, &attr, QpAttrMask::STATE)
}

fn ids_of(w: &mut World, node: usize) -> Vec<(u64, Status)> {
    std::iter::from_fn(|| w.poll(node)).map(|done| (done.wr_id, done.status)).collect()
}

#[test]
fn what_was_posted_before_is_executed_in_order_once_the_queues_are_lent() {
    let mut w = World::new(2, 1);
    let (a, b) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    let (va, rkey) = mb.at(0);
    ma.write(0, b"onetwothree");
    // Overlapping WRITEs leave the last one's bytes, so the order shows in memory too.
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 3)]));
    w.send(0, a, wr(2, SendOp::Write(va, rkey), &[ma.sge(3, 3)]));
    w.send(0, a, wr(3, SendOp::Send, &[ma.sge(6, 5)]));
    w.recv(0, a, 9, &[ma.sge(100, 50)]);
    w.recv(1, b, 4, &[mb.sge(100, 50)]);
    w.run(Duration::from_ms(50));
    assert_eq!((ids_of(&mut w, 0), ids_of(&mut w, 1)), (vec![], vec![]), "nobody works on them");
    assert_eq!(w.nodes[0].nic.unfetched(a), 3);
    assert!(!w.nodes[0].nic.has_work());

    w.nodes[0].nic.lend(a).unwrap();
    w.run(Duration::from_ms(1));
    let good = |ids: &[u64]| ids.iter().map(|id| (*id, Status::Success)).collect::<Vec<_>>();
    assert_eq!(ids_of(&mut w, 0), good(&[1, 2, 3]));
    assert_eq!(ids_of(&mut w, 1), good(&[4]));
    assert_eq!((mb.read(0, 3), mb.read(100, 5)), (b"two".to_vec(), b"three".to_vec()));
    // A receive that was posted before is there, too, and events say the endpoint's name.
    w.send(1, b, wr(5, SendOp::Send, &[mb.sge(100, 5)]));
    w.run(Duration::from_ms(1));
    assert_eq!((ids_of(&mut w, 0), ma.read(100, 5)), (good(&[9]), b"three".to_vec()));
}

#[test]
fn queues_taken_back_keep_what_is_posted_and_what_completions_owe() {
    let mut w = World::new(2, 2);
    let (a, b) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    let (va, rkey) = mb.at(0);
    let mut next = 0u64;
    for round in 0..50u64 {
        let nic = &mut w.nodes[0].nic;
        nic.lend(a).unwrap();
        assert_eq!(nic.is_lent(a), Ok(true));
        // A full queue each time: its places come back only when completions are polled.
        for _ in 0..CAPS.max_send_wr / 2 {
            w.send(0, a, wr(next, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
            next += 1;
        }
        w.recv(0, a, 10_000 + round, &[ma.sge(64, 8)]);
        w.send(1, b, wr(20_000 + round, SendOp::Send, &[mb.sge(0, 8)]));
        w.run(Duration::from_us(200));
        let nic = &mut w.nodes[0].nic;
        let before = nic.query_qp(a).unwrap().0;
        assert_eq!(nic.take_back(a), Ok(()), "round {round}");
        assert_eq!((nic.is_lent(a), nic.query_qp(a).unwrap().0), (Ok(false), before));
        // The other half is posted while nobody works on it: then the queue is full.
        for _ in 0..CAPS.max_send_wr / 2 {
            w.send(0, a, wr(next, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
            next += 1;
        }
        let one_more = wr(0, SendOp::Write(va, rkey), &[]);
        assert_eq!(w.nodes[0].nic.post_send(w.now, a, &one_more), Err(Error::QueueFull));
        // Completions that were owed when the queues were taken back are polled now.
        let done = ids_of(&mut w, 0);
        assert_eq!(done.len() as u32, CAPS.max_send_wr / 2 + 1);
        assert!(done.contains(&(10_000 + round, Status::Success)));
        let nic = &mut w.nodes[0].nic;
        assert_eq!(nic.has_send_room(a, std::iter::repeat_n(one_more, 32)), Ok(true));
        assert_eq!(nic.has_send_room(a, std::iter::repeat_n(one_more, 33)), Ok(false));
        nic.lend(a).unwrap();
        w.run(Duration::from_us(200));
        w.nodes[0].nic.take_back(a).unwrap();
        let done = ids_of(&mut w, 0);
        assert_eq!(done.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (next - 32..next).collect::<Vec<_>>());
        assert!(done.iter().all(|(_, status)| *status == Status::Success));
        assert_eq!(ids_of(&mut w, 1), [(20_000 + round, Status::Success)]);
    }
}

#[test]
fn a_request_that_comes_once_more_is_answered_by_the_next_queue_pair() {
    let mut w = World::new(2, 3);
    let (a, b) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    let (va, rkey) = ma.at(0);
    w.nodes[0].nic.lend(a).unwrap();
    let mut lose = true;
    w.drop_if = Some(Box::new(move |from, _| from == 0 && std::mem::take(&mut lose)));
    w.send(1, b, wr(1, SendOp::FetchAdd { addr: va, rkey, add: 5 }, &[mb.sge(0, 8)]));
    w.run(Duration::from_us(10));
    assert_eq!((ma.word(0), ids_of(&mut w, 1)), (5, vec![]), "executed, and the answer was lost");
    w.nodes[0].nic.take_back(a).unwrap();
    w.nodes[0].nic.lend(a).unwrap();
    assert_eq!(w.completion(1).status, Status::Success);
    assert_eq!((ma.word(0), mb.word(0)), (5, 0), "the original, and not a second time");
}

#[test]
fn a_peer_tries_again_until_the_queues_are_lent() {
    let mut w = World::new(2, 4);
    let (a, b) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    w.recv(0, a, 1, &[ma.sge(0, 8)]);
    mb.write(0, b"hello...");
    w.send(1, b, wr(2, SendOp::Send, &[mb.sge(0, 8)]));
    w.run(Duration::from_ms(2));
    assert!(w.counter(0, "drop_qp_state") > 0);
    assert_eq!(w.counter(0, "drop_unknown_qp"), 0);
    w.nodes[0].nic.lend(a).unwrap();
    assert_eq!((w.completion(1).wr_id, w.completion(0).wr_id), (2, 1));
    assert_eq!(ma.read(0, 8), b"hello...");
    let events: Vec<_> = std::iter::from_fn(|| w.nodes[0].nic.next_event()).collect();
    assert_eq!(events, [], "it was in RTS already");
}

#[test]
fn a_number_and_a_name_stay_until_the_object_goes() {
    let mut w = World::new(2, 5);
    let names: Vec<_> = (0..100).map(|_| endpoint(&mut w, 0)).collect();
    let plain = w.qp(0, QpType::Rc, CAPS);
    assert_eq!(plain.index(), 0, "endpoints take no place among queue pairs");
    let (a, nic) = (names[40], &mut w.nodes[0].nic);
    let number = nic.qp_number(a).unwrap();
    for _ in 0..3 {
        assert_eq!((nic.qp_number(a), nic.find_qp(number)), (Ok(number), Some(a)));
        nic.lend(a).unwrap();
        assert_eq!((nic.qp_number(a), nic.find_qp(number)), (Ok(number), Some(a)));
        nic.check_invariants();
        nic.take_back(a).unwrap();
    }
    nic.destroy_qp(a).unwrap();
    assert_eq!((nic.qp_number(a), nic.find_qp(number)), (Err(Error::NoSuchObject), None));
    for gone in [nic.lend(a), nic.take_back(a), nic.destroy_qp(a), nic.is_lent(a).map(|_| ())] {
        assert_eq!(gone, Err(Error::NoSuchObject));
    }
    let others: Vec<_> = (0..1000).map(|_| endpoint(&mut w, 0)).collect();
    for id in &others {
        assert_ne!((w.nodes[0].nic.qp_number(*id).unwrap(), *id), (number, a), "a number rests");
    }
}

#[test]
fn a_drivers_tables_by_place_have_queue_pairs_only() {
    let mut w = World::new(1, 1);
    let (qp, name) = (w.qp(0, QpType::Rc, CAPS), endpoint(&mut w, 0));
    assert_eq!(qp.slot().map(usize::from), Some(qp.index()));
    let places = limits::MAX_QP as usize;
    assert!(name.slot().is_none() && (places..2 * places).contains(&name.index()), "{name:?}");
    // Lent, its queues have a place among queue pairs, but the name stays what it was.
    w.nodes[0].nic.lend(name).unwrap();
    assert!(name.slot().is_none() && name.index() >= places);
    let another = w.qp(0, QpType::Rc, CAPS);
    assert!(another.slot().is_some_and(|slot| usize::from(slot) > qp.index() + 1), "the lent queues' place");
}

#[test]
fn attributes_are_the_same_with_a_queue_pair_and_without_and_it_goes_in_every_state() {
    use QpState::*;
    for state in [Reset, Init, Rtr, Rts, Sqd, Err] {
        for lent in [false, true] {
            for lent_first in [false, true] {
                let mut w = World::new(2, 6);
                let (cq, pd) = (w.nodes[0].cq, w.nodes[0].pd);
                let (a, b) = (endpoint(&mut w, 0), w.qp(1, QpType::Rc, CAPS));
                if lent_first {
                    w.nodes[0].nic.lend(a).unwrap();
                }
                reach(&mut w, a, b, state);
                let (attr, init) = w.nodes[0].nic.query_qp(a).unwrap();
                assert_eq!((attr.state, init.qp_type, attr.caps), (state, QpType::Rc, CAPS));
                let psn = w.nodes[0].nic.expected_psn(a);
                let nic = &mut w.nodes[0].nic;
                for _ in 0..2 {
                    if nic.is_lent(a).unwrap() { nic.take_back(a) } else { nic.lend(a) }.unwrap();
                    assert_eq!((nic.query_qp(a).unwrap().0, nic.expected_psn(a)), (attr, psn));
                    nic.check_invariants();
                }
                if nic.is_lent(a).unwrap() != lent {
                    if lent { nic.lend(a) } else { nic.take_back(a) }.unwrap();
                }
                let _ = nic.post_recv(w.now, a, &RecvWr { wr_id: 1, sges: &[] });
                let _ = nic.post_send(w.now, a, &wr(2, SendOp::Send, &[]));
                let number = nic.qp_number(a).unwrap();
                nic.destroy_qp(a).unwrap();
                nic.check_invariants();
                assert_eq!((nic.find_qp(number), nic.qp_number(a)), (None, Result::Err(Error::NoSuchObject)));
                // Nothing holds what it used any more.
                assert_eq!(nic.destroy_cq(cq), Ok(()), "{state:?}, lent: {lent}");
                assert_eq!(nic.memory().dealloc_pd(pd), Ok(()));
                assert!(!nic.has_work());
            }
        }
    }
}

/// Takes the endpoint of node 0 to a state.
fn reach(w: &mut World, a: QpId, b: QpId, state: QpState) {
    use QpAttrMask as M;
    if matches!(state, QpState::Rts | QpState::Sqd | QpState::Err) {
        w.connect((0, a), (1, b), &Link::default());
    }
    match state {
        QpState::Reset | QpState::Rts => return,
        QpState::Sqd | QpState::Err => return to_state(w, 0, a, state).unwrap(),
        _ => {}
    }
    let dest = w.nodes[1].nic.qp_number(b).unwrap();
    let dgid = w.nodes[1].gid;
    let (mut attr, _) = w.nodes[0].nic.query_qp(a).unwrap();
    (attr.state, attr.port, attr.access) = (QpState::Init, 1, Access::REMOTE_READ);
    let identity = M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, identity).unwrap();
    if state == QpState::Rtr {
        (attr.state, attr.path_mtu, attr.dest_qpn, attr.rq_psn) = (state, Mtu::M4096, dest, Psn::new(77));
        (attr.av.dgid, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (dgid, 3, 5);
        (attr.av.traffic_class, attr.av.flow_label) = (8, 12);
        let mask = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        w.nodes[0].nic.modify_qp(w.now, a, &attr, M::STATE | mask).unwrap();
    }
}

#[test]
fn in_err_everything_posted_is_flushed_without_a_queue_pair_too() {
    let mut w = World::new(2, 7);
    let (a, _) = connected(&mut w);
    let m = w.memory(0, 64);
    w.send(0, a, wr(1, SendOp::Send, &[m.sge(0, 8)]));
    w.recv(0, a, 2, &[m.sge(0, 8)]);
    to_state(&mut w, 0, a, QpState::Err).unwrap();
    // Posted afterwards, flushed at once.
    w.send(0, a, wr(3, SendOp::Send, &[m.sge(0, 8)]));
    w.recv(0, a, 4, &[m.sge(0, 8)]);
    let flushed = |ids: &[u64]| ids.iter().map(|id| (*id, Status::WorkRequestFlushed)).collect::<Vec<_>>();
    assert_eq!(ids_of(&mut w, 0), flushed(&[1, 2, 3, 4]));
    w.nodes[0].nic.lend(a).unwrap();
    w.send(0, a, wr(5, SendOp::Send, &[m.sge(0, 8)]));
    w.nodes[0].nic.take_back(a).unwrap();
    assert_eq!(ids_of(&mut w, 0), flushed(&[5]));
    // RESET forgets completions, and the way up begins again.
    w.send(0, a, wr(6, SendOp::Send, &[m.sge(0, 8)]));
    to_state(&mut w, 0, a, QpState::Reset).unwrap();
    assert_eq!(ids_of(&mut w, 0), []);
    assert_eq!(w.nodes[0].nic.post_recv(w.now, a, &RecvWr { wr_id: 7, sges: &[] }), Err(Error::WrongState));
    assert_eq!(w.nodes[0].nic.post_send(w.now, a, &wr(7, SendOp::Send, &[])), Err(Error::WrongState));
    let b = w.qp(1, QpType::Rc, CAPS);
    w.connect((0, a), (1, b), &Link::default());
    w.connect((1, b), (0, a), &Link::default());
    w.nodes[0].nic.lend(a).unwrap();
    w.recv(1, b, 8, &[]);
    w.send(0, a, wr(9, SendOp::Send, &[]));
    assert_eq!((w.completion(0).wr_id, w.completion(1).wr_id), (9, 8));
}

#[test]
fn a_send_queue_drains_at_once_without_a_queue_pair() {
    let mut w = World::new(2, 8);
    let (a, _) = connected(&mut w);
    w.send(0, a, wr(1, SendOp::Send, &[]));
    let (mut attr, _) = w.nodes[0].nic.query_qp(a).unwrap();
    (attr.state, attr.sqd_notify) = (QpState::Sqd, true);
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, mask).unwrap();
    assert_eq!(w.nodes[0].nic.next_event(), Some(Event::SqDrained(a)));
    w.nodes[0].nic.lend(a).unwrap();
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[0].nic.unfetched(a), 1, "in SQD nothing new begins");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut w = World::new(2, 9);
    let init = init_of(&w, 0);
    let nic = &mut w.nodes[0].nic;
    for qp_type in [QpType::Uc, QpType::Ud, QpType::Gsi] {
        let refused = nic.create_endpoint(&QpInit { qp_type, ..init });
        assert!(matches!(refused, Err(Error::Unsupported(_))));
    }
    let srq = nic.create_srq(&SrqInit { pd: init.pd.unwrap(), max_wr: 4, max_sge: 1, xrc: None }).unwrap();
    let refused = nic.create_endpoint(&QpInit { srq: Some(srq), ..init });
    assert!(matches!(refused, Err(Error::Unsupported(_))));
    let plain = w.qp(0, QpType::Rc, CAPS);
    let nic = &mut w.nodes[0].nic;
    for refused in [nic.lend(plain), nic.take_back(plain), nic.is_lent(plain).map(|_| ())] {
        assert!(matches!(refused, Err(Error::Invalid(_))));
    }
    let (a, b) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 8192), w.memory(1, 8192));
    let nic = &mut w.nodes[0].nic;
    assert_eq!(nic.take_back(a), Err(Error::WrongState));
    nic.lend(a).unwrap();
    assert_eq!(nic.lend(a), Err(Error::Busy));
    // In flight.
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.nodes[0].nic.take_back(a).unwrap();
    w.nodes[0].nic.lend(a).unwrap();
    w.transmit();
    assert_eq!(w.nodes[0].nic.take_back(a), Err(Error::Busy));
    assert_eq!(w.completion(0).status, Status::Success);
    // A message of three packets is coming in: its middle is late.
    let (va, rkey) = ma.at(0);
    let mut lose = true;
    w.drop_if = Some(Box::new(move |from, packet| {
        let middle = packet.bth.opcode.operation() == adverb_wire::Operation::WriteMiddle;
        from == 1 && middle && std::mem::take(&mut lose)
    }));
    w.send(1, b, wr(2, SendOp::Write(va, rkey), &[mb.sge(0, 3000)]));
    w.run(Duration::from_us(3));
    assert_eq!(w.nodes[0].nic.take_back(a), Err(Error::Busy));
    assert_eq!(w.completion(1).status, Status::Success);
    assert_eq!(w.nodes[0].nic.take_back(a), Ok(()));
}

#[test]
fn queues_stay_with_a_queue_pair_that_may_speak_irn() {
    let mut w = World::with_config(2, 10, |c| c.irn = Some(IrnConfig::default()));
    let (a, b) = connected(&mut w);
    w.nodes[0].nic.lend(a).unwrap();
    w.run(Duration::from_ms(1));
    // It agreed as a queue pair does that was never anything else.
    assert_eq!(w.nodes[0].nic.recovery_of(a), w.nodes[1].nic.recovery_of(b));
    assert_ne!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::GoBackN));
    assert!(matches!(w.nodes[0].nic.take_back(a), Err(Error::Unsupported(_))));
    w.recv(1, b, 1, &[]);
    w.send(0, a, wr(2, SendOp::Send, &[]));
    assert_eq!((w.completion(0).wr_id, w.completion(1).wr_id), (2, 1));
    to_state(&mut w, 0, a, QpState::Err).unwrap();
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[0].nic.take_back(a), Ok(()));
}

#[test]
fn a_driver_that_steps_sees_the_endpoints_name() {
    let mut w = World::with_config(2, 11, |c| c.stepped = true);
    let (a, _) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    let (now, mut out) = (w.now, TxFrame::default());
    let nic = &mut w.nodes[0].nic;
    assert_eq!((nic.ready().count(), nic.step_qp(now, a, &mut out)), (0, Step::Idle));
    assert_eq!(nic.intent(a), Intent::Nothing);
    nic.lend(a).unwrap();
    assert_eq!(nic.ready().collect::<Vec<_>>(), [a]);
    assert_eq!(nic.intent(a), Intent::Fetch(1));
    assert_eq!(nic.take_ready(), Some(a));
    assert_eq!(nic.step_qp(now, a, &mut out), Step::Fetched(a, 1));
    // What was fetched and not executed is fetched again, and a change to it counts.
    nic.take_back(a).unwrap();
    assert_eq!(nic.step_qp(now, a, &mut out), Step::Idle, "it belongs to nobody's turn");
    nic.lend(a).unwrap();
    assert_eq!(nic.step(now, &mut out), Step::Fetched(a, 1));
    assert_eq!(nic.step(now, &mut out), Step::Executed(a, queue::wqe::WqeOp::Write));
    assert_eq!(nic.step(now, &mut out), Step::Frame(a));
}

#[test]
fn queues_are_taken_back_from_one_that_waits_for_its_path_or_its_rate() {
    let dcqcn = CongestionControl::Dcqcn(DcqcnConfig::default());
    let mut w = World::with_config(2, 13, |c| c.congestion = dcqcn);
    let (a, b) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    let (va, rkey) = mb.at(0);
    for round in 0..20 {
        let nic = &mut w.nodes[0].nic;
        nic.lend(a).unwrap();
        nic.block_path(PathId::DEFAULT);
        w.send(0, a, wr(round, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
        w.transmit();
        w.nodes[0].nic.take_back(a).unwrap();
        // Another queue pair takes the place, and is not taken for the one that waited.
        let other = w.qp(0, QpType::Rc, CAPS);
        w.nodes[0].nic.unblock_path(PathId::DEFAULT);
        assert!(!w.nodes[0].nic.has_work() && !w.nodes[0].nic.awaits_acknowledgement());
        w.run(Duration::from_ms(3));
        w.nodes[0].nic.lend(a).unwrap();
        w.send(1, b, wr(100 + round, SendOp::Read(ma.at(0).0, ma.at(0).1), &[mb.sge(8, 8)]));
        assert_eq!((w.completion(0).wr_id, w.completion(1).wr_id), (round, 100 + round));
        w.run(Duration::from_us(50));
        w.nodes[0].nic.take_back(a).unwrap();
        w.nodes[0].nic.destroy_qp(other).unwrap();
    }
}

#[test]
fn wqes_written_through_memory_count_without_a_queue_pair() {
    let mut w = World::new(2, 12);
    let (a, b) = connected(&mut w);
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    let (va, rkey) = mb.at(0);
    ma.write(0, b"by hand.");
    // Somebody else's queue has the WQE; its bytes go into the endpoint's own memory, and the doorbell rings.
    let c = endpoint(&mut w, 0);
    w.connect((0, c), (1, b), &Link::default());
    let (from, to) = {
        let nic = &mut w.nodes[0].nic;
        let from = nic.send_queue_memory(c).unwrap().addr();
        (from, nic.send_queue_memory(a).unwrap().addr())
    };
    w.send(0, c, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    for at in 0..64 {
        // SAFETY: the first block of either queue, whose memory lives as long as the endpoints.
        unsafe { ((to + at) as *mut u8).write(((from + at) as *const u8).read()) };
    }
    assert_eq!(w.nodes[0].nic.on_doorbell(w.now, a, 1 << 20), Err(Error::QueueFull));
    w.nodes[0].nic.on_doorbell(w.now, a, 1).unwrap();
    w.nodes[0].nic.lend(a).unwrap();
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 8), b"by hand.");
}

/// Both ends' queues are lent and taken back at any time, while frames are lost, doubled and reordered: every
/// request completes once, in order, with the bytes that were sent.
#[test]
fn queues_that_come_and_go_lose_and_double_nothing() {
    for seed in 0..200 {
        let mut w = World::new(2, 1000 + seed);
        w.faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.05, ..Faults::default() };
        let ends = [endpoint(&mut w, 0), endpoint(&mut w, 1)];
        w.connect((0, ends[0]), (1, ends[1]), &Link::default());
        w.connect((1, ends[1]), (0, ends[0]), &Link::default());
        let memory = [w.memory(0, 1 << 16), w.memory(1, 1 << 16)];
        let mut posted = [0u64; 2];
        let mut done = [[0u64; 2]; 2];
        let (mut rounds, mut taken_back) = (0, 0);
        let total = 300;
        while done.iter().flatten().any(|count| *count < total) {
            rounds += 1;
            assert!(rounds < 200_000, "seed {seed}: {done:?}");
            let node = w.rng.usize(0..2);
            let (qp, peer) = (ends[node], 1 - node);
            match w.rng.u32(0..8) {
                0..=3 if posted[node] < total && posted[node] < done[node][0].min(done[peer][1]) + 16 => {
                    let id = posted[node];
                    let at = (id % 16) as usize * 64;
                    // The receive first, so that the peer has one whenever its queues are lent.
                    w.recv(peer, ends[peer], id, &[memory[peer].sge(8192 + at, 64)]);
                    memory[node].write(at, &pattern(id as u8, 64));
                    w.send(node, qp, wr(id, SendOp::Send, &[memory[node].sge(at, 64)]));
                    posted[node] += 1;
                }
                4 => taken_back += u64::from(w.nodes[node].nic.take_back(qp).is_ok()),
                5 | 6 => drop(w.nodes[node].nic.lend(qp)),
                _ => w.run(Duration::from_us(20)),
            }
            for node in 0..2 {
                w.nodes[node].nic.check_invariants();
                while let Some(completion) = w.poll(node) {
                    assert_eq!(completion.status, Status::Success, "seed {seed}");
                    let kind = usize::from(completion.op == CompletionOp::Recv);
                    assert_eq!(completion.wr_id, done[node][kind], "seed {seed}: out of turn");
                    done[node][kind] += 1;
                    if kind == 1 {
                        let at = 8192 + (completion.wr_id % 16) as usize * 64;
                        let bytes = memory[node].read(at, 64);
                        assert_eq!(bytes, pattern(completion.wr_id as u8, 64), "seed {seed}");
                    }
                }
            }
        }
        assert!(taken_back > 20, "seed {seed}: taken back {taken_back} times");
    }
}
