//! Chains that never end: nobody else is harmed, and they end when they are told to.

use super::bench::*;
use super::world::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::Duration;

/// What never ends.
#[derive(Clone, Copy, Debug)]
enum Endless {
    /// ENABLEs of their own queue, each a quarter of the circle of 2^16 blocks further.
    Enables,
    /// NOPs, and one ENABLE of their own queue.
    Nops,
    /// Two queues that enable each other, without a WAIT.
    EachOther,
    /// WRITEs to the own NIC.
    Writes,
    /// READs from the own NIC.
    Reads,
    /// Atomics on a word of the own NIC.
    Atomics,
    /// NOPs, and a WRITE of no bytes, which goes by packets.
    Mixed,
}

const ALL: [Endless; 7] = [
    Endless::Enables,
    Endless::Nops,
    Endless::EachOther,
    Endless::Writes,
    Endless::Reads,
    Endless::Atomics,
    Endless::Mixed,
];

/// Queues of four blocks that go round for ever, on one completion queue that nobody polls.
fn endless(b: &mut Bench, kind: Endless) -> Vec<QpId> {
    let cq = b.unpolled_cq();
    let looped = b.own(QpFlags::MANAGED_SEND, SMALL, cq);
    let number = b.number(looped);
    let further = |at: usize, number| wqe(WqeOp::SendEnable, &[queue((at as u32 + 1) << 14, number)], 0);
    let read = wqe(WqeOp::Read, &[words(b.near.at(8).0, b.near.at(8).1.0, 0), data(b.near.sge(16, 8))], 0);
    let mut add = fetch_add(b.near.at(0), 1, b.near.sge(8, 8));
    let mut write = write(b.near.at(16), b.near.sge(24, 8));
    // Nobody is told of their ends.
    (add[11], write[11]) = (0, 0);
    let mut queues = vec![looped];
    match kind {
        Endless::Enables => (0..4).for_each(|at| b.put(looped, at, &further(at, number))),
        Endless::EachOther => {
            let other = b.own(QpFlags::MANAGED_SEND, SMALL, cq);
            let others = b.number(other);
            for at in 0..4 {
                b.put(looped, at, &further(at, others));
                b.put(other, at, &further(at, number));
            }
            b.ring(other, 4);
            queues.push(other);
        }
        Endless::Nops | Endless::Writes | Endless::Reads | Endless::Atomics | Endless::Mixed => {
            let body = match kind {
                Endless::Writes => write,
                Endless::Reads => read,
                Endless::Atomics => add,
                _ => wqe(WqeOp::Nop, &[], 0),
            };
            (0..4).for_each(|at| b.put(looped, at, &body));
            if matches!(kind, Endless::Mixed) {
                b.put(looped, 3, &wqe(WqeOp::Write, &[words(b.near.at(16).0, b.near.at(16).1.0, 0)], 0));
            }
            // Somebody else keeps it enabled: a queue of ENABLEs that goes round too.
            let enabler = b.own(QpFlags::MANAGED_SEND, SMALL, cq);
            let own = b.number(enabler);
            for at in 0..4 {
                let target = if at % 2 == 0 { number } else { own };
                b.put(enabler, at, &further(at, target));
            }
            b.ring(enabler, 4);
            queues.push(enabler);
        }
    }
    b.ring(looped, 4);
    let starter = b.qp(false);
    for (at, queue_pair) in queues.clone().into_iter().enumerate() {
        let enable = wqe(WqeOp::SendEnable, &[queue(4, b.number(queue_pair))], 0);
        b.put(starter, at, &enable);
    }
    b.ring(starter, queues.len() as u32);
    queues
}

fn executed(b: &Bench, queues: &[QpId]) -> u64 {
    let next = |qp: &QpId| u64::from(b.w.nodes[0].nic.live_queue(*qp).unwrap().next);
    queues.iter().map(next).sum()
}

/// While a chain goes round for ever, another queue pair sends at no less than 80% of its rate: of all the
/// work that the NIC does, that much is its. A WQE without a frame costs about a quarter of a frame that is
/// sent, one that the NIC sends to itself as much again when it is taken in (`bench/profile nic`).
#[test]
fn a_chain_without_end_leaves_others_their_rate() {
    for kind in ALL {
        let mut b = Bench::new(1);
        let queues = endless(&mut b, kind);
        let (busy, _) = b.pair(QpFlags::empty(), CAPS);
        let (to, from) = (b.far.at(0), [b.near.sge(0, 8)]);
        let (mut frames, mut calls) = (0u64, 0u64);
        let (before, looped) = (executed(&b, &queues), b.w.counter(0, "loopback_packets"));
        let mut out = TxFrame::default();
        while frames < 4000 {
            while b.post(busy, SendOp::Write(to.0, to.1), &from).is_ok() {}
            let now = b.w.now;
            calls += 1;
            if b.w.nodes[0].nic.next_frame(now, &mut out) {
                assert_eq!(out.packet.bth.dest_qp, b.w.nodes[0].nic.query_qp(busy).unwrap().0.dest_qpn);
                frames += 1;
                // Its peer takes it, and acknowledges.
                let mut payload = [0; 8];
                out.payload.read(&mut payload);
                let nic = &mut b.w.nodes[1].nic;
                nic.on_frame(now, &out.packet, &Payload::from_slice(&payload));
                if nic.next_frame(now, &mut out) {
                    let packet = out.packet;
                    b.w.nodes[0].nic.on_frame(now, &packet, &Payload::from_slice(&[]));
                }
            }
            while b.w.poll(0).is_some() {}
        }
        let steps = executed(&b, &queues) - before;
        let looped = b.w.counter(0, "loopback_packets") - looped;
        assert!(steps > 400, "{kind:?}: the chain goes on too: {steps}");
        let others = steps as f64 / 4.0 + looped as f64 * 2.0;
        // A frame sent, and its acknowledgement taken in.
        let share = 2.0 * frames as f64 / (2.0 * frames as f64 + others);
        assert!(share >= 0.8, "{kind:?}: {frames} frames beside {steps} steps, {looped} looped: {share}");
        assert!(calls <= frames * 5 / 4, "{kind:?}: a call that others wait for gives a frame: {calls}");
        b.w.nodes[0].nic.check_invariants();
    }
}

/// A call returns within so many steps, whoever goes round; and what the caller asks for next is done at
/// once.
#[test]
fn a_chain_without_end_is_ended_at_once() {
    for kind in ALL {
        for destroy in [false, true] {
            let mut b = Bench::new(2);
            let queues = endless(&mut b, kind);
            let (mut out, now) = (TxFrame::default(), b.w.now);
            for _ in 0..10 {
                let before = executed(&b, &queues);
                assert!(!b.w.nodes[0].nic.next_frame(now, &mut out));
                let steps = executed(&b, &queues) - before;
                assert!(steps <= u64::from(limits::STEPS_WITHOUT_FRAME), "{kind:?}: {steps}");
                assert!(b.w.nodes[0].nic.has_work(), "{kind:?}: it goes on");
            }
            for qp in &queues {
                let nic = &mut b.w.nodes[0].nic;
                if destroy {
                    nic.destroy_qp(*qp).unwrap();
                    continue;
                }
                let (mut attr, _) = nic.query_qp(*qp).unwrap();
                attr.state = QpState::Err;
                nic.modify_qp(now, *qp, &attr, QpAttrMask::STATE).unwrap();
            }
            // What had been looped arrives, and nothing begins anew.
            b.w.nodes[0].nic.next_frame(now, &mut out);
            let end: Vec<_> = queues.iter().filter_map(|qp| b.w.nodes[0].nic.live_queue(*qp).ok()).collect();
            b.w.run(Duration::from_ms(1));
            let later: Vec<_> =
                queues.iter().filter_map(|qp| b.w.nodes[0].nic.live_queue(*qp).ok()).collect();
            assert_eq!(end, later, "{kind:?}");
            assert!(!b.w.nodes[0].nic.has_work(), "{kind:?}");
            b.w.nodes[0].nic.check_invariants();
        }
    }
}

/// Frames to the own NIC count for the rate of their queue pair, too.
#[test]
fn a_loop_with_frames_keeps_to_its_rate() {
    let mut b = Bench::new(3);
    let queues = endless(&mut b, Endless::Writes);
    // 51.2 Mb/s of 64 bytes: 100,000 requests per second, of each of the two queues.
    for qp in &queues {
        let limit = RateLimit { kbps: 51_200, ..RateLimit::default() };
        b.w.nodes[0].nic.set_rate_limit(*qp, limit).unwrap();
    }
    let before: Vec<u32> = queues.iter().map(|qp| b.w.nodes[0].nic.live_queue(*qp).unwrap().next).collect();
    b.w.run(Duration::from_ms(200));
    for (qp, before) in queues.iter().zip(before) {
        let done = b.w.nodes[0].nic.live_queue(*qp).unwrap().next - before;
        let rate = f64::from(done) / 0.2;
        assert!((rate / 100_000.0 - 1.0).abs() < 0.05, "{rate}");
    }
    assert!(!b.w.nodes[0].nic.has_work(), "between its turns the NIC is idle");
}

/// A WAIT for a completion that only the waiter could make, and a queue that nobody enables: nothing goes on,
/// nothing is spent on them, and it can be seen what they wait for.
#[test]
fn what_waits_for_itself_is_seen_to() {
    let mut b = Bench::new(4);
    let cq = b.unpolled_cq();
    let waiter = b.own(QpFlags::CROSS_CHANNEL, SMALL, cq);
    b.put(waiter, 0, &wqe(WqeOp::Wait, &[queue(0, cq.index() as u32)], SIGNALED));
    b.put(waiter, 1, &wqe(WqeOp::Nop, &[], SIGNALED));
    b.ring(waiter, 2);
    let never = b.own(QpFlags::MANAGED_SEND, SMALL, cq);
    b.put(never, 0, &wqe(WqeOp::Nop, &[], SIGNALED));
    b.ring(never, 1);
    b.w.run(Duration::from_ms(10));
    let nic = &b.w.nodes[0].nic;
    assert!(!nic.has_work());
    let live = nic.live_queue(waiter).unwrap();
    assert_eq!((live.next, live.waits), (0, Some(LiveWait::Completion { cq, index: 0, produced: 0 })));
    let live = nic.live_queue(never).unwrap();
    assert_eq!((live.next, live.enabled, live.posted, live.waits), (0, 0, 1, Some(LiveWait::Enable)));
    // It can be ended like any other.
    b.w.nodes[0].nic.destroy_qp(waiter).unwrap();
    b.w.nodes[0].nic.destroy_qp(never).unwrap();
    b.w.nodes[0].nic.destroy_cq(cq).unwrap();
}
