//! What a watched NIC tells of its chains.

use super::bench::*;
use super::world::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::{Duration, Operation, QpNumber};

fn watched(seed: u64) -> Bench {
    Bench::with_config(seed, |config| config.watch_chains = true)
}

fn told(b: &mut Bench) -> Vec<ChainStep> {
    let nic = &mut b.w.nodes[0].nic;
    core::iter::from_fn(|| nic.next_chain_event()).map(|event| event.what).collect()
}

fn place(b: &Bench, qp: QpId, block: u32) -> WqePlace {
    WqePlace { qp: QpNumber::new(b.number(qp)), block }
}

/// A WQE that another one changes after it was fetched: the change is told with who made it, and that the
/// copy at hand is older.
#[test]
fn a_change_that_comes_after_the_fetch_is_told_with_its_author() {
    for managed in [false, true] {
        let mut b = watched(1);
        let cq = b.unpolled_cq();
        let worker = b.own(QpFlags::CROSS_CHANNEL, SMALL, cq);
        let flags = if managed { QpFlags::MANAGED_SEND } else { QpFlags::CROSS_CHANNEL };
        let target = b.own(flags, SMALL, cq);
        let (code, mr) = b.code(target);
        // The worker writes the target's second WQE, for whose completion that one's first WQE waits.
        let wait = wqe(WqeOp::Wait, &[queue(0, cq.index() as u32)], 0);
        let changed = write(b.near.at(64), b.near.sge(0, 8));
        b.near.write(128, &changed);
        b.put(target, 0, &wait);
        b.put(target, 1, &wqe(WqeOp::Nop, &[], 0));
        b.ring(target, 2);
        let first = wqe(WqeOp::SendEnable, &[queue(1, b.number(target))], 0);
        b.put(worker, 0, &if managed { first } else { wqe(WqeOp::Nop, &[], 0) });
        b.put(worker, 1, &write((code + 64, mr.rkey), b.near.sge(128, 64)));
        b.put(worker, 2, &wait);
        let second = wqe(WqeOp::SendEnable, &[queue(2, b.number(target))], 0);
        b.put(worker, 3, &if managed { second } else { wqe(WqeOp::Nop, &[], 0) });
        b.w.run(Duration::from_us(10));
        let early = told(&mut b);
        b.ring(worker, 4);
        b.w.run(Duration::from_us(10));
        let steps = told(&mut b);
        let change = steps.iter().find_map(|step| match step {
            ChainStep::Changed(change) => Some(change),
            _ => None,
        });
        let change = change.expect("a change is told");
        assert_eq!(change.by, Author::Wqe(place(&b, worker, 1), Operation::WriteOnly));
        assert_eq!((change.qp.get(), change.block), (b.number(target), 1));
        assert_eq!((change.before[3], change.after), (WqeOp::Nop as u8, changed));
        let executed = |op: WqeOp| steps.contains(&ChainStep::Executed { wqe: place(&b, target, 1), op });
        let fetched = |steps: &[ChainStep], block, blocks| {
            steps.contains(&ChainStep::Fetched { first: place(&b, target, block), blocks })
        };
        if managed {
            assert!(early.is_empty() && fetched(&steps, 0, 1) && fetched(&steps, 1, 1));
            assert_eq!(change.copy, Copied::Never);
            assert!(executed(WqeOp::Write), "what was changed before its ENABLE is executed changed");
        } else {
            assert!(fetched(&early, 0, 2), "both in one fetch: {early:?}");
            assert!(matches!(change.copy, Copied::AtHand(_)), "{change:?}");
            assert!(executed(WqeOp::Nop), "and executed as it was then");
        }
        // The target's WAIT comes first only where nobody has to enable it.
        let wait = |step: &ChainStep| matches!(step, ChainStep::Waiting { index: 0, produced: 0, .. });
        assert_eq!(early.iter().any(wait), !managed);
        let (qp, end) = (QpNumber::new(b.number(worker)), Some(2));
        let cq = cq.index() as u32;
        let done = ChainStep::Completed { cq, index: 0, qp, status: Status::Success, end };
        assert!(steps.contains(&done), "{steps:?}");
    }
}

/// A compare-and-swap on a WQE tells what it found; a READ's answer and a message have their authors.
#[test]
fn comparisons_answers_and_messages_are_told() {
    let mut b = watched(2);
    let cq = b.unpolled_cq();
    let worker = b.own(QpFlags::CROSS_CHANNEL, SMALL, cq);
    let (client, peer) = b.pair(QpFlags::MANAGED_SEND, SMALL);
    let (code, mr) = b.code(client);
    let own = |at: u64, len| Sge { addr: code + at, len, lkey: mr.lkey };
    let word = |at: u64| words(code + at, mr.rkey.0, 0);
    let operands = |compare: u64, swap: u64| words(swap, (compare >> 32) as u32, compare as u32);
    b.near.write(0, &[7; 8]);
    let old = data(b.near.sge(32, 8));
    let swap = |compare| wqe(WqeOp::CompareSwap, &[word(0), operands(compare, 5), old], SIGNALED);
    b.put(worker, 0, &swap(1));
    b.put(worker, 1, &swap(0));
    let read = wqe(WqeOp::Read, &[words(b.near.at(0).0, b.near.at(0).1.0, 0), data(own(128, 8))], 0);
    b.put(worker, 2, &read);
    b.ring(worker, 3);
    b.w.run(Duration::from_us(10));
    let own_number = QpNumber::new(b.number(worker));
    let by = |block, operation| Author::Wqe(WqePlace { qp: own_number, block }, operation);
    let qp = QpNumber::new(b.number(client));
    let steps = told(&mut b);
    for (block, found, compare) in [(0, 0, 1), (1, 0, 0)] {
        let by = by(block, Operation::CompareSwap);
        let compared = ChainStep::Compared { by, qp, offset: 0, found, compare, swap: 5 };
        assert!(steps.contains(&compared), "{steps:?}");
    }
    let changes = |steps: &[ChainStep]| -> Vec<(Author, u32)> {
        let change = |step: &ChainStep| match step {
            ChainStep::Changed(change) => Some((change.by, change.block)),
            _ => None,
        };
        steps.iter().filter_map(change).collect()
    };
    let expected = [(by(1, Operation::CompareSwap), 0), (by(2, Operation::ReadResponseOnly), 2)];
    assert_eq!(changes(&steps), expected);
    // A message that is scattered into a WQE, and a WRITE of the peer's.
    b.w.recv(0, client, 0, &[own(64, 8)]);
    b.far.write(0, b"argument");
    let sges = [b.far.sge(0, 8)];
    b.w.send(1, peer, wr(0, SendOp::Send, &sges));
    b.w.send(1, peer, wr(0, SendOp::Write(code + 192, mr.rkey), &sges));
    b.w.run(Duration::from_us(100));
    let steps = told(&mut b);
    let expected = [(Author::Message(qp), 1), (Author::Peer(qp, Operation::WriteOnly), 3)];
    assert_eq!(changes(&steps), expected);
}

/// What a program of the host writes is told only where a copy is at hand that is older.
#[test]
fn a_host_s_store_is_told_if_it_comes_too_late() {
    let mut b = watched(3);
    let qp = b.qp(false);
    let cq = b.w.nodes[0].cq.index() as u32;
    b.put(qp, 0, &wqe(WqeOp::Wait, &[queue(0, cq)], 0));
    b.put(qp, 1, &wqe(WqeOp::Nop, &[], 0));
    b.ring(qp, 2);
    b.w.run(Duration::from_us(10));
    b.put(qp, 1, &wqe(WqeOp::Nop, &[], SIGNALED));
    b.put(qp, 2, &wqe(WqeOp::Nop, &[], 0));
    b.ring(qp, 3);
    let other = b.qp(false);
    b.put(other, 0, &wqe(WqeOp::Nop, &[], SIGNALED));
    b.ring(other, 1);
    b.w.run(Duration::from_us(10));
    let late: Vec<_> = told(&mut b)
        .into_iter()
        .filter_map(|step| match step {
            ChainStep::Changed(change) => Some((change.by, change.block, change.copy)),
            _ => None,
        })
        .collect();
    assert!(matches!(late[..], [(Author::Host, 1, Copied::AtHand(_))]), "{late:?}");
}

/// What nobody takes is bounded, and counted.
#[test]
fn events_that_nobody_takes_are_bounded() {
    let mut b = watched(4);
    let cq = b.unpolled_cq();
    let looped = b.own(QpFlags::MANAGED_SEND, SMALL, cq);
    let number = b.number(looped);
    for at in 0..4 {
        b.put(looped, at, &wqe(WqeOp::SendEnable, &[queue((at as u32 + 1) << 14, number)], 0));
    }
    b.ring(looped, 4);
    let starter = b.qp(false);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(4, number)], 0));
    b.ring(starter, 1);
    let (mut out, now) = (TxFrame::default(), b.w.now);
    let nic = &mut b.w.nodes[0].nic;
    for _ in 0..20 {
        nic.next_frame(now, &mut out);
    }
    assert_eq!(nic.chain_events(), limits::MAX_CHAIN_EVENTS);
    assert!(nic.chain_events_lost() > 0);
    nic.check_invariants();
}
