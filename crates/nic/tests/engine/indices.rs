//! Indices that wrap: of completions at 2^24, of blocks at 2^16 and at 2^32.

use super::bench::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;

/// Several queues wait for completions around the end of the circle of 2^24, of one completion queue.
#[test]
fn waits_wrap_at_2_to_the_24() {
    let mut b = Bench::new(1);
    let cq = b.unpolled_cq();
    b.w.nodes[0].nic.start_produced_at(cq, (1 << 24) - 2).unwrap();
    let worker = b.own(QpFlags::CROSS_CHANNEL, SMALL, cq);
    let number = cq.index() as u32;
    let waiters: Vec<QpId> = [0xff_fffe, 0xff_ffff, 0, 1, 1]
        .into_iter()
        .map(|index| {
            let waiter = b.qp(false);
            // The bits above 24 do not matter.
            b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(0xab00_0000 | index, number)], SIGNALED));
            b.ring(waiter, 1);
            waiter
        })
        .collect();
    b.nothing_more();
    let mut expected = waiters.iter().map(|waiter| b.number(*waiter)).collect::<Vec<_>>().into_iter();
    for (posted, released) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
        b.put(worker, posted as usize - 1, &wqe(WqeOp::Nop, &[], SIGNALED));
        b.ring(worker, posted);
        for _ in 0..released {
            assert_eq!(Some(b.w.completion(0).qp.get()), expected.next());
        }
        b.nothing_more();
    }
    // One that lies behind is met at once.
    let late = b.qp(false);
    b.put(late, 0, &wqe(WqeOp::Wait, &[queue(0xff_0000, number)], SIGNALED));
    b.ring(late, 1);
    assert_eq!(b.w.completion(0).status, Status::Success);
}

/// Enables a managed ring of 4 blocks from an index on, each time by what `steps` says.
fn enables_from(start: u32, steps: &[(u32, u64)]) {
    let mut b = Bench::new(2);
    let cq = b.unpolled_cq();
    let target = b.own(QpFlags::MANAGED_SEND, SMALL, cq);
    let number = b.w.nodes[0].nic.qp_number(target).unwrap();
    b.w.nodes[0].nic.start_blocks_at(target, start).unwrap();
    for at in 0..4 {
        b.put(target, at, &wqe(WqeOp::Nop, &[], SIGNALED));
    }
    let starter = b.qp(false);
    let mut done = 0;
    for &(end, more) in steps {
        let index = start.wrapping_add(end) & 0xffff;
        b.post(starter, SendOp::SendEnable { qp: number, index }, &[]).unwrap();
        b.w.completion(0);
        while b.w.nodes[0].nic.has_work() {
            b.w.transmit();
        }
        b.nothing_more();
        done += more;
        assert_eq!(b.w.nodes[0].nic.cq_produced(cq).unwrap(), done, "{start:x} + {end}");
    }
}

#[test]
fn enables_wrap_at_2_to_the_16_and_blocks_at_2_to_the_32() {
    for start in [0, 0xfffe, 0xffff, 0x1_fffd, 0xffff_fff0, 0xffff_fffd, u32::MAX] {
        // One, the same again, one less, a whole ring, two rings at once.
        enables_from(start, &[(1, 1), (1, 0), (0, 0), (5, 4), (13, 8), (12, 0)]);
        // As far as the circle can tell, and half of it further, which is behind.
        enables_from(start, &[(1 << 15, 1 << 15), ((1 << 15) + 1, 1), (3, 0)]);
    }
}

/// 2^24 + 10 completions, one by one, and a WAIT for the last of them.
#[test]
#[ignore = "takes seconds; `make test-long` runs it"]
fn a_wait_for_completion_16_777_225_is_met_by_a_real_run() {
    let mut b = Bench::new(3);
    let cq = b.unpolled_cq();
    let caps = QpCaps { max_send_wr: 1 << 10, ..SMALL };
    let worker = b.own(QpFlags::MANAGED_SEND, caps, cq);
    let number = b.w.nodes[0].nic.qp_number(worker).unwrap();
    for at in 0..1 << 10 {
        b.put(worker, at, &wqe(WqeOp::Nop, &[], SIGNALED));
    }
    let starter = b.qp(false);
    let last = (1u32 << 24) + 10;
    let mut waiter = None;
    let mut enabled = 0;
    while enabled < last {
        enabled = (enabled + (1 << 14)).min(last);
        b.post(starter, SendOp::SendEnable { qp: number, index: enabled & 0xffff }, &[]).unwrap();
        assert_eq!(b.w.completion(0).status, Status::Success);
        while b.w.nodes[0].nic.has_work() {
            b.w.transmit();
        }
        if enabled > 1 << 23 && waiter.is_none() {
            let qp = b.qp(false);
            b.put(qp, 0, &wqe(WqeOp::Wait, &[queue(last - 1, cq.index() as u32)], SIGNALED));
            b.ring(qp, 1);
            waiter = Some(b.number(qp));
        }
    }
    assert_eq!(Some(b.w.completion(0).qp.get()), waiter);
    assert_eq!(b.w.nodes[0].nic.cq_produced(cq).unwrap(), u64::from(last));
}
