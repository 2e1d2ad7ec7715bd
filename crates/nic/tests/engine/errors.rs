//! Work that cannot be done: each case ends as it says, with its rule in words.

use super::bench::*;
use super::world::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::Duration;

fn set_state(b: &mut Bench, qp: QpId, state: QpState) {
    let now = b.w.now;
    let nic = &mut b.w.nodes[0].nic;
    let (mut attr, _) = nic.query_qp(qp).unwrap();
    attr.state = state;
    nic.modify_qp(now, qp, &attr, QpAttrMask::STATE).unwrap();
}

/// Its own completion queue, which a worker's WQEs complete in.
fn worker(b: &mut Bench) -> (QpId, CqId) {
    let cq = b.w.nodes[0].nic.create_cq(16).unwrap();
    let init = QpInit { send_cq: Some(cq), ..b.init(SMALL) };
    let qp = b.w.nodes[0].nic.create_qp_with(&init, QpFlags::CROSS_CHANNEL).unwrap();
    let peer = b.w.qp(1, QpType::Rc, CAPS);
    b.w.connect((0, qp), (1, peer), &Link::default());
    b.w.connect((1, peer), (0, qp), &Link::default());
    (qp, cq)
}

/// Who waits for a completion that turns out to be an error fails too, and is told whose it was.
#[test]
fn an_awaited_error_fails_the_waiter_unless_it_is_to_be_released() {
    for release in [false, true] {
        let mut b = Bench::with_config(1, |config| {
            if release {
                config.wait_on_error = WaitOnError::Release;
            }
        });
        let (failing, cq) = worker(&mut b);
        let (early, late) = (b.qp(false), b.qp(false));
        for (waiter, index) in [(early, 0), (late, 1)] {
            b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(index, cq.index() as u32)], SIGNALED));
            b.ring(waiter, 1);
        }
        // The first completion is good, the second one an error.
        b.put(failing, 0, &wqe(WqeOp::Nop, &[], SIGNALED));
        b.ring(failing, 1);
        assert_eq!(b.w.completion(0).status, Status::Success);
        b.nothing_more();
        b.put(failing, 1, &[0xff; 64]);
        b.ring(failing, 2);
        let done = b.w.completion(0);
        assert_eq!(done.qp.get(), b.number(late));
        let number = b.number(failing);
        assert!(b.rule().contains("opcode"), "the first error");
        if release {
            assert_eq!(done.status, Status::Success);
            continue;
        }
        assert_eq!(done.status, Status::LocalQpOperation);
        let why = b.w.nodes[0].nic.next_explanation().unwrap();
        assert_eq!(why.after.map(|first| (first.qp.get(), first.status)), Some((number, done.status)));
        let words = why.to_string();
        assert!(words.contains("wait-on-error=release") && words.contains("had completed with"), "{words}");
        // A WAIT for what came before the error is met, one for what comes after is not.
        for (index, status) in [(0, Status::Success), (2, Status::LocalQpOperation)] {
            let waiter = b.qp(false);
            b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(index, cq.index() as u32)], SIGNALED));
            b.ring(waiter, 1);
            assert_eq!(b.w.completion(0).status, status);
        }
        // A queue pair that is reset takes its failure along.
        set_state(&mut b, failing, QpState::Reset);
        let waiter = b.qp(false);
        b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(40, cq.index() as u32)], SIGNALED));
        b.ring(waiter, 1);
        b.nothing_more();
    }
}

#[test]
fn a_completion_queue_that_somebody_waits_for_cannot_be_destroyed() {
    for end in [QpState::Err, QpState::Reset] {
        let mut b = Bench::new(2);
        let waiter = b.qp(false);
        let cq = b.w.nodes[0].nic.create_cq(4).unwrap();
        b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(0, cq.index() as u32)], SIGNALED));
        b.ring(waiter, 1);
        b.nothing_more();
        assert_eq!(b.w.nodes[0].nic.destroy_cq(cq), Err(Error::Busy));
        set_state(&mut b, waiter, end);
        // ERR ends the wait: the WAIT is flushed as any request. RESET forgets it.
        if end == QpState::Err {
            assert_eq!(b.w.completion(0).status, Status::WorkRequestFlushed);
        }
        b.w.nodes[0].nic.destroy_cq(cq).unwrap();
        b.nothing_more();
    }
}

#[test]
fn an_overrun_completion_queue_ends_waits_for_it() {
    let mut b = Bench::new(3);
    let small = b.w.nodes[0].nic.create_cq(2).unwrap();
    let init = QpInit { send_cq: Some(small), ..b.init(SMALL) };
    let qp = b.w.nodes[0].nic.create_qp_with(&init, QpFlags::CROSS_CHANNEL).unwrap();
    let peer = b.w.qp(1, QpType::Rc, CAPS);
    b.w.connect((0, qp), (1, peer), &Link::default());
    b.w.connect((1, peer), (0, qp), &Link::default());
    let waiter = b.qp(false);
    b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(2, small.index() as u32)], SIGNALED));
    b.ring(waiter, 1);
    for at in 0..3 {
        b.put(qp, at, &wqe(WqeOp::Nop, &[], SIGNALED));
    }
    b.ring(qp, 3);
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    assert!(b.rule().contains("overrun"));
}

#[test]
fn an_enable_needs_a_queue_pair_that_is_ready_to_send() {
    let mut b = Bench::new(4);
    let enable = |b: &mut Bench, target: QpId| {
        let starter = b.qp(false);
        let number = b.number(target);
        b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(1, number)], SIGNALED));
        b.ring(starter, 1);
        b.w.completion(0).status
    };
    let init = b.init(SMALL);
    let in_reset = b.w.nodes[0].nic.create_cross_qp(&init, true).unwrap();
    assert_eq!(enable(&mut b, in_reset), Status::LocalQpOperation);
    assert_eq!(b.rule(), "an ENABLE names a queue pair that is not ready to send");
    let failed = b.qp(true);
    set_state(&mut b, failed, QpState::Err);
    assert_eq!(enable(&mut b, failed), Status::LocalQpOperation);
    assert_eq!(b.rule(), "an ENABLE names a queue pair that is not ready to send");
    // In SQD it has no effect until the queue pair sends again.
    let drained = b.qp(true);
    b.near.write(0, b"later...");
    b.put(drained, 0, &write(b.far.at(0), b.near.sge(0, 8)));
    b.ring(drained, 1);
    set_state(&mut b, drained, QpState::Sqd);
    assert_eq!(enable(&mut b, drained), Status::Success);
    b.nothing_more();
    assert_eq!(b.far.read(0, 8), [0; 8]);
    set_state(&mut b, drained, QpState::Rts);
    assert_eq!(b.w.completion(0).status, Status::Success);
    assert_eq!(b.far.read(0, 8), *b"later...");
    // One that was destroyed is nobody's.
    let number = b.number(drained);
    b.w.nodes[0].nic.destroy_qp(drained).unwrap();
    let starter = b.qp(false);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(1, number)], SIGNALED));
    b.ring(starter, 1);
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
}

#[test]
fn an_enable_beyond_what_was_ever_written_finds_zeros() {
    let mut b = Bench::new(5);
    let (starter, target) = (b.qp(false), b.qp(true));
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(3, b.number(target))], 0));
    b.ring(starter, 1);
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    assert!(b.rule().contains("segment count"));
    b.nothing_more();
}

/// A WQE that claims more blocks than its ring has, in a queue that is enabled far beyond it, would never
/// find room: it fails.
#[test]
fn a_wqe_that_is_longer_than_its_ring_fails() {
    let mut b = Bench::new(8);
    let (starter, target) = (b.qp(false), b.qp(true));
    let mut long = wqe(WqeOp::Nop, &[], 0);
    long[7] = 0x3f;
    b.put(target, 0, &wqe(WqeOp::Nop, &[], SIGNALED));
    b.put(target, 1, &long);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(1 << 14, b.number(target))], 0));
    b.ring(starter, 1);
    assert_eq!(b.w.completion(0).status, Status::Success);
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    b.nothing_more();
}

#[test]
fn wqes_that_do_not_name_their_place_fail_where_that_is_checked() {
    for checks in [false, true] {
        let mut b = Bench::with_config(6, |config| config.wqe_checks = checks);
        for (index, number, rule) in
            [(0u16, true, None), (1, true, Some("index")), (0, false, Some("number"))]
        {
            let qp = b.qp(false);
            let mut block = wqe(WqeOp::Nop, &[], SIGNALED);
            block[1..3].copy_from_slice(&index.to_be_bytes());
            let named = if number { b.number(qp) } else { 0x12_3456 };
            block[4..7].copy_from_slice(&named.to_be_bytes()[1..]);
            b.put(qp, 0, &block);
            b.ring(qp, 1);
            let status = b.w.completion(0).status;
            match rule.filter(|_| checks) {
                None => assert_eq!(status, Status::Success),
                Some(word) => {
                    assert_eq!(status, Status::LocalQpOperation);
                    let rule = b.rule();
                    assert!(rule.contains(word) && rule.contains("wqe-checks=on"), "{rule}");
                }
            }
        }
        // What was posted passes; a second round of a recycled queue does not.
        let (starter, target) = (b.qp(false), b.qp(true));
        for _ in 0..4 {
            b.post(target, SendOp::Nop, &[]).unwrap();
        }
        let number = b.w.nodes[0].nic.qp_number(target).unwrap();
        b.post(starter, SendOp::SendEnable { qp: number, index: 5 }, &[]).unwrap();
        let statuses: Vec<_> = (0..6).map(|_| b.w.completion(0).status).collect();
        let bad = statuses.iter().filter(|status| **status != Status::Success).count();
        assert_eq!(bad, usize::from(checks), "{statuses:?}");
    }
}

/// A WAIT for memory or for a time, which mlx5 has by its modifier, is none that this NIC has.
#[test]
fn other_kinds_of_waits_are_unknown() {
    for modifier in [1, 2] {
        let mut b = Bench::new(7);
        let qp = b.qp(false);
        let mut block = wqe(WqeOp::Wait, &[queue(0, 0)], 0);
        block[0] = modifier;
        b.put(qp, 0, &block);
        b.ring(qp, 1);
        assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
        assert!(b.rule().contains("modifier"));
        b.w.run(Duration::from_us(1));
    }
}
