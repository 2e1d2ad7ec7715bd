//! What WQEs do to each other: ENABLE, WAIT, queues that go round, and WQEs that are executed, and sent
//! again, as they were fetched.

use super::bench::*;
use super::world::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::Duration;

#[test]
fn a_managed_queue_goes_as_far_as_it_is_enabled_and_as_its_wqes_are_then() {
    let mut b = Bench::new(1);
    let (starter, target) = (b.qp(false), b.qp(true));
    b.near.write(0, b"first---second--third---");
    for at in 0..3 {
        b.put(target, at, &write(b.far.at(8 * at), b.near.sge(8 * at, 8)));
    }
    b.ring(target, 3);
    b.nothing_more();
    assert_eq!(b.far.read(0, 8), [0; 8], "the doorbell of a managed queue lets nothing go");
    // Two of them go; the third one is changed before its ENABLE.
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(2, b.number(target))], 0));
    b.ring(starter, 1);
    b.w.completion(0);
    b.w.completion(0);
    b.nothing_more();
    assert_eq!(b.far.read(0, 24), *b"first---second--\0\0\0\0\0\0\0\0");
    b.put(target, 2, &write(b.far.at(16), b.near.sge(0, 8)));
    b.put(starter, 1, &wqe(WqeOp::SendEnable, &[queue(3, b.number(target))], SIGNALED));
    b.ring(starter, 2);
    b.w.completion(0);
    b.w.completion(0);
    b.nothing_more();
    assert_eq!(b.far.read(0, 24), *b"first---second--first---");
}

#[test]
fn an_unmanaged_queue_is_fetched_ahead_and_does_not_see_later_changes() {
    let mut b = Bench::new(2);
    let qp = b.qp(false);
    b.near.write(0, b"as it waas changed");
    b.put(qp, 0, &wqe(WqeOp::Nop, &[], 0));
    b.put(qp, 1, &write(b.far.at(0), b.near.sge(0, 8)));
    b.ring(qp, 2);
    let (mut out, now) = (TxFrame::default(), b.w.now);
    assert_eq!(b.w.nodes[0].nic.step_qp(now, qp, &mut out), Step::Fetched(qp, 2), "both in one transfer");
    b.put(qp, 1, &write(b.far.at(0), b.near.sge(8, 8)));
    assert_eq!(b.w.nodes[0].nic.step_qp(now, qp, &mut out), Step::Executed(qp, WqeOp::Nop));
    b.w.completion(0);
    assert_eq!(b.far.read(0, 8), *b"as it wa", "missing doorbell order fails as on hardware");
}

#[test]
fn whoever_is_enabled_goes_before_what_follows_the_enable() {
    let mut b = Bench::new(31);
    let (starter, target) = (b.qp(false), b.qp(true));
    b.put(target, 0, &write(b.far.at(0), b.near.sge(0, 8)));
    b.ring(target, 1);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(1, b.number(target))], 0));
    for at in 1..4 {
        b.put(starter, at, &wqe(WqeOp::Nop, &[], SIGNALED));
    }
    b.ring(starter, 4);
    let (mut out, now) = (TxFrame::default(), b.w.now);
    let node = &mut b.w.nodes[0];
    assert!(node.nic.next_frame(now, &mut out));
    assert_eq!(out.packet.payload_len, 8, "the WRITE");
    assert!(node.nic.poll_cq(node.cq).unwrap().is_none(), "NOPs behind the ENABLE went first");
    assert!(!node.nic.next_frame(now, &mut out));
    let done = std::iter::from_fn(|| node.nic.poll_cq(node.cq).unwrap());
    assert_eq!(done.count(), 3);
}

#[test]
fn a_wait_holds_its_queue_until_the_completion_with_its_index_has_come() {
    let mut b = Bench::new(3);
    let (worker, waiter) = (b.qp(false), b.qp(false));
    let cq = b.w.nodes[0].cq.index() as u32;
    b.near.write(0, b"payload.");
    b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(1, cq)], 0));
    b.put(waiter, 1, &write(b.far.at(0), b.near.sge(0, 8)));
    b.ring(waiter, 2);
    let (mut out, now) = (TxFrame::default(), b.w.now);
    assert_eq!(b.w.nodes[0].nic.step(now, &mut out), Step::Fetched(waiter, 2));
    assert_eq!(b.w.nodes[0].nic.step(now, &mut out), Step::Waiting(waiter));
    assert_eq!(b.w.nodes[0].nic.step(now, &mut out), Step::Idle, "its processing unit is free");
    // The WAIT is for the second completion: index 1. Polling does not matter.
    b.put(worker, 0, &wqe(WqeOp::Nop, &[], SIGNALED));
    b.ring(worker, 1);
    b.w.completion(0);
    b.nothing_more();
    assert_eq!(b.far.read(0, 8), [0; 8]);
    b.put(worker, 1, &wqe(WqeOp::Nop, &[], SIGNALED));
    b.ring(worker, 2);
    b.w.completion(0);
    b.w.completion(0);
    assert_eq!(b.far.read(0, 8), *b"payload.");
    // One that is met already does not stop at all, and a queue pair that waits can be destroyed.
    b.put(waiter, 2, &wqe(WqeOp::Wait, &[queue(2, cq)], 0));
    b.put(waiter, 3, &wqe(WqeOp::Wait, &[queue(77, cq)], SIGNALED));
    b.ring(waiter, 4);
    b.nothing_more();
    b.w.nodes[0].nic.destroy_qp(waiter).unwrap();
    for posted in 3..90 {
        b.put(worker, (posted as usize - 1) % 4, &wqe(WqeOp::Nop, &[], SIGNALED));
        b.ring(worker, posted);
        b.w.completion(0);
    }
}

#[test]
fn a_recycled_queue_executes_the_same_wqes_again() {
    let mut b = Bench::new(4);
    let (starter, looped) = (b.qp(false), b.qp(true));
    // Each round adds one to a word of the peer, and changes the next round's addend in its own ring.
    for at in 0..4 {
        b.put(looped, at, &fetch_add(b.far.at(0), 1 << (8 * at), b.near.sge(0, 8)));
    }
    b.ring(looped, 4);
    // Four rounds of four, 16 blocks: far more than were ever posted.
    for (place, end) in [6, 11, 16].into_iter().enumerate() {
        b.put(starter, place, &wqe(WqeOp::SendEnable, &[queue(end, b.number(looped))], 0));
    }
    b.ring(starter, 3);
    for _ in 0..16 {
        assert_eq!(b.w.completion(0).status, Status::Success);
    }
    b.nothing_more();
    assert_eq!(b.far.word(0), 0x0404_0404);
    // An ENABLE that says less than was said changes nothing.
    b.put(starter, 3, &wqe(WqeOp::SendEnable, &[queue(12, b.number(looped))], 0));
    b.ring(starter, 4);
    b.nothing_more();
    assert_eq!(b.far.word(0), 0x0404_0404);
}

#[test]
fn what_is_sent_again_is_what_was_sent_first() {
    let mut b = Bench::new(5);
    let qp = b.qp(false);
    b.near.write(0, b"the one.another.");
    let read = |place: usize, b: &Bench| write(b.far.at(0), b.near.sge(place, 8));
    b.put(qp, 0, &read(0, &b));
    b.ring(qp, 1);
    // It leaves and is lost; meanwhile the program writes its next request into the same place.
    let mut lost = 0;
    b.w.drop_if = Some(Box::new(move |from, p| {
        let first = from == 0 && p.bth.opcode.operation().is_write() && lost < 2;
        lost += u32::from(first);
        first
    }));
    b.w.transmit();
    let bad = [0xff; 64];
    b.put(qp, 0, &bad);
    let done = b.w.completion(0);
    assert_eq!((done.status, b.w.lost), (Status::Success, 2));
    assert_eq!(b.far.read(0, 8), *b"the one.");
    // A READ's answer lands where the request said as well.
    b.far.write(64, b"answered");
    b.put(
        qp,
        1,
        &wqe(WqeOp::Read, &[words(b.far.at(64).0, b.far.at(64).1.0, 0), data(b.near.sge(32, 8))], 8),
    );
    b.ring(qp, 2);
    b.w.transmit();
    b.put(qp, 1, &bad);
    assert_eq!(b.w.completion(0).status, Status::Success);
    assert_eq!(b.near.read(32, 8), *b"answered");
}

#[test]
fn a_round_that_is_still_in_flight_holds_up_the_next_one() {
    let mut b = Bench::new(6);
    let (starter, looped) = (b.qp(false), b.qp(true));
    for at in 0..4 {
        b.put(looped, at, &write(b.far.at(8 * at), b.near.sge(8 * at, 8)));
    }
    b.ring(looped, 4);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(12, b.number(looped))], 0));
    b.ring(starter, 1);
    // No acknowledgement comes: only as many go as the ring has places.
    b.w.transmit();
    let sent = b.w.counter(0, "tx_packets");
    assert_eq!(sent, 4);
    for _ in 0..12 {
        assert_eq!(b.w.completion(0).status, Status::Success);
    }
    b.nothing_more();
    assert_eq!(b.w.counter(0, "tx_packets"), 12);
}

#[test]
fn wqes_that_go_on_for_ever_let_the_driver_go_on_too() {
    let mut b = Bench::new(7);
    let looped = b.qp(true);
    let starter = b.qp(false);
    // Four ENABLEs of their own queue, each a quarter of the circle of 2^16 blocks further.
    for at in 0..4 {
        let end = (at as u32 + 1) << 14;
        b.put(looped, at, &wqe(WqeOp::SendEnable, &[queue(end, b.number(looped))], 0));
    }
    b.ring(looped, 4);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(4, b.number(looped))], 0));
    b.put(starter, 1, &write(b.far.at(0), b.near.sge(0, 8)));
    b.ring(starter, 2);
    let (mut out, now) = (TxFrame::default(), b.w.now);
    let nic = &mut b.w.nodes[0].nic;
    assert!(nic.next_frame(now, &mut out), "somebody else's frame is not held up");
    for _ in 0..50 {
        assert!(!nic.next_frame(now, &mut out));
        assert!(nic.has_work(), "which says that there is more to do");
    }
    nic.check_invariants();
    nic.destroy_qp(looped).unwrap();
    assert!(!nic.next_frame(now, &mut out));
    assert!(!nic.has_work());
}

#[test]
fn a_completion_queue_that_nobody_polls_goes_on_counting() {
    let mut b = Bench::new(8);
    let (worker, waiter) = (b.qp(false), b.qp(false));
    let nic = &mut b.w.nodes[0].nic;
    let small = nic.create_cq(2).unwrap();
    nic.ignore_overrun(small).unwrap();
    let pd = b.w.nodes[0].pd;
    let nic = &mut b.w.nodes[0].nic;
    let init = QpInit::rc(pd, small, SMALL);
    let unpolled = nic.create_cross_qp(&init, false).unwrap();
    let peer = b.w.qp(1, QpType::Rc, SMALL);
    b.w.connect((0, unpolled), (1, peer), &Link::default());
    b.w.connect((1, peer), (0, unpolled), &Link::default());
    b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(9, small.index() as u32)], SIGNALED));
    b.ring(waiter, 1);
    for posted in 1..=10 {
        assert!(b.w.poll(0).is_none());
        b.put(unpolled, (posted as usize - 1) % 4, &wqe(WqeOp::Nop, &[], SIGNALED));
        b.ring(unpolled, posted);
        b.w.run(Duration::from_us(10));
    }
    b.w.completion(0);
    assert_eq!(b.w.nodes[0].nic.cq_produced(small), Ok(10));
    assert_eq!(b.w.nodes[0].nic.cq_overrun(small), Ok(false));
    assert_eq!(b.w.counter(0, "cq_overruns"), 0);
    let _ = worker;
}

#[test]
fn wqes_that_name_no_queue_or_somebody_else_s_fail() {
    let mut b = Bench::new(9);
    let other = b.w.nodes[0].nic.memory().alloc_pd().unwrap();
    let plain = b.w.qp(0, QpType::Rc, SMALL);
    let target = b.qp(true);
    let numbers = [b.number(plain), 0x7f_ffff];
    let mut cases = Vec::new();
    for number in numbers {
        cases.push((
            WqeOp::SendEnable,
            number,
            "an ENABLE names no managed queue pair of its own protection domain",
        ));
    }
    cases.push((WqeOp::Wait, 0x1234, "a WAIT names no completion queue"));
    for (op, number, rule) in cases {
        let qp = b.qp(false);
        b.put(qp, 0, &wqe(op, &[queue(1, number)], 0));
        b.ring(qp, 1);
        assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
        assert_eq!(b.w.nodes[0].nic.next_explanation().unwrap().rule, rule);
    }
    // Another protection domain's managed queue.
    let cq = b.w.nodes[0].cq;
    let init = QpInit::rc(other, cq, SMALL);
    let stranger = b.w.nodes[0].nic.create_cross_qp(&init, false).unwrap();
    let peer = b.w.qp(1, QpType::Rc, SMALL);
    b.w.connect((0, stranger), (1, peer), &Link::default());
    b.put(stranger, 0, &wqe(WqeOp::SendEnable, &[queue(1, b.number(target))], 0));
    b.ring(stranger, 1);
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    b.w.nodes[0].nic.next_explanation();
    // A plain queue pair may not order others.
    let (plain, _) = b.w.pair(QpType::Rc, SMALL, &Link::default());
    b.put(plain, 0, &wqe(WqeOp::SendEnable, &[queue(1, b.number(target))], 0));
    b.ring(plain, 1);
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    let rule = b.w.nodes[0].nic.next_explanation().unwrap().rule;
    assert_eq!(rule, "WAIT and ENABLE need a cross-channel queue pair");
    let datagram = b.w.nodes[0].nic.create_cross_qp(&QpInit { qp_type: QpType::Ud, ..init }, false);
    assert!(matches!(datagram, Err(Error::Unsupported(_))));
}

/// A queue pair that fails flushes what was posted, once, whatever it was enabled for.
#[test]
fn an_error_flushes_what_was_posted() {
    let mut b = Bench::new(10);
    let (starter, target) = (b.qp(false), b.qp(true));
    for at in 0..4 {
        b.put(target, at, &write(b.far.at(0), b.near.sge(0, 8)));
    }
    b.put(target, 1, &[0xff; 64]);
    b.ring(target, 4);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(2, b.number(target))], 0));
    b.ring(starter, 1);
    let statuses: Vec<_> = (0..4).map(|_| b.w.completion(0).status).collect();
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(statuses, [Status::Success, Status::LocalQpOperation, flushed, flushed]);
    b.nothing_more();
    // A reset begins anew.
    let now = b.w.now;
    let nic = &mut b.w.nodes[0].nic;
    let (mut attr, _) = nic.query_qp(target).unwrap();
    attr.state = QpState::Reset;
    nic.modify_qp(now, target, &attr, QpAttrMask::STATE).unwrap();
    nic.check_invariants();
}
