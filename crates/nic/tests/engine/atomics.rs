//! Masked atomics and calculations.

use super::bench::*;
use super::world::*;
use adverb_nic::queue::wqe::{Calc, CalcOp, WqeOp};
use adverb_nic::*;
use adverb_wire::{Duration, Key};

const CROSS: QpFlags = QpFlags::CROSS_CHANNEL;

fn masked_swap((addr, rkey): (u64, Key), compare: (u64, u64), swap: (u64, u64)) -> SendOp {
    SendOp::MaskedCompareSwap {
        addr,
        rkey,
        compare: compare.0,
        swap: swap.0,
        compare_mask: compare.1,
        swap_mask: swap.1,
    }
}

fn with_irn(config: &mut NicConfig) {
    config.irn = Some(IrnConfig::default());
}

/// Within the NIC with either transport, and to a NIC that has agreed on IRN, with and without loss.
#[test]
fn masked_atomics_are_executed_where_the_peer_is_known() {
    for (irn, itself, loss) in [(false, true, 0.0), (true, true, 0.0), (true, false, 0.0), (true, false, 0.2)]
    {
        let mut b = Bench::with_config(1, |config| {
            if irn {
                with_irn(config)
            }
        });
        let qp = if itself {
            let cq = b.w.nodes[0].cq;
            b.own(CROSS, CAPS, cq)
        } else {
            b.pair(CROSS, CAPS).0
        };
        // Hellos go to and fro.
        b.w.run(Duration::from_ms(1));
        b.w.faults.loss = loss;
        b.w.faults.reorder = loss;
        let target = if itself { &b.near } else { &b.far };
        target.write(64, &0x1122_3344_5566_7788u64.to_ne_bytes());
        let (at, answer) = (target.at(64), [b.near.sge(0, 8)]);
        // The compared bits are equal, the others are not; only the masked bits are stored.
        let op = masked_swap(at, (0xffff_3344_ffff_ffff, 0x0000_ffff_0000_0000), (u64::MAX, 0xff00_00ff));
        b.post(qp, op, &answer).unwrap();
        assert_eq!(b.w.completion(0).status, Status::Success, "{irn} {itself} {loss}");
        assert_eq!(b.near.word(0), 0x1122_3344_5566_7788);
        let target = if itself { &b.near } else { &b.far };
        assert_eq!(target.word(64), 0x1122_3344_ff66_77ff);
        // They differ in one bit of the mask.
        let op = masked_swap(at, (0x0000_3345_0000_0000, 0x0000_ffff_0000_0000), (0, u64::MAX));
        b.post(qp, op, &answer).unwrap();
        let done = b.w.completion(0);
        assert_eq!((done.status, done.op), (Status::Success, CompletionOp::CompareSwap));
        let target = if itself { &b.near } else { &b.far };
        assert_eq!(target.word(64), 0x1122_3344_ff66_77ff);
        // Bytes that do not carry into each other.
        let boundary = 0x8080_8080_8080_8080;
        let op = SendOp::MaskedFetchAdd { addr: at.0, rkey: at.1, add: 0x0101_01ff_0101_0102, boundary };
        for _ in 0..3 {
            b.post(qp, op, &answer).unwrap();
        }
        for _ in 0..3 {
            assert_eq!(b.w.completion(0).status, Status::Success);
        }
        let target = if itself { &b.near } else { &b.far };
        assert_eq!(target.word(64), 0x1425_3641_0269_7a05);
    }
}

#[test]
fn a_peer_that_may_not_know_masked_atomics_gets_none() {
    let mut b = Bench::new(2);
    let (qp, _) = b.pair(CROSS, CAPS);
    let (addr, rkey) = b.far.at(64);
    b.post(qp, SendOp::MaskedFetchAdd { addr, rkey, add: 1, boundary: 0 }, &[b.near.sge(0, 8)]).unwrap();
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    let rule = b.rule();
    assert!(rule.starts_with("masked atomics need a peer that is known to execute them"), "{rule}");
    assert_eq!(b.far.word(64), 0);
    // Of 4 bytes, by the modifier, they are unknown.
    let cq = b.w.nodes[0].cq;
    let own = b.own(CROSS, SMALL, cq);
    let mut block = wqe(
        WqeOp::MaskedFetchAdd,
        &[words(addr, rkey.0, 0), words(1, 0, 0), data(b.near.sge(0, 8))],
        SIGNALED,
    );
    block[0] = 0x08;
    b.put(own, 0, &block);
    b.ring(own, 1);
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    assert!(b.rule().contains("operation modifier"));
}

fn entries(of: &[(u64, u64)]) -> Vec<u8> {
    of.iter().flat_map(|(value, at)| [value.to_le_bytes(), at.to_le_bytes()].concat()).collect()
}

#[test]
fn a_calculation_sends_the_greatest_or_the_least_with_its_location() {
    let mut b = Bench::new(3);
    let (qp, peer) = b.pair(CROSS, CAPS);
    let rows = [(7, 70), (5, 50), (9, 90)];
    b.near.write(0, &entries(&rows));
    let calc = Calc { op: CalcOp::Max, signed: false, big_endian: false, vectors: 3 };
    let (to, rkey) = b.far.at(0);
    b.post(qp, SendOp::WriteCalc(to, rkey, calc), &[b.near.sge(0, 48)]).unwrap();
    assert_eq!(b.w.completion(0).status, Status::Success);
    assert_eq!(b.far.read(0, 24), [entries(&[(9, 90)]), vec![0; 8]].concat());
    // As a message, of data in two pieces.
    b.w.recv(1, peer, 1, &[b.far.sge(100, 16)]);
    let min = Calc { op: CalcOp::Min, ..calc };
    b.post(qp, SendOp::SendCalc(min), &[b.near.sge(0, 16), b.near.sge(16, 32)]).unwrap();
    let (sent, got) = (b.w.completion(0), b.w.completion(1));
    assert_eq!((sent.status, got.status, got.byte_len), (Status::Success, Status::Success, 16));
    assert_eq!(b.far.read(100, 16), entries(&[(5, 50)]));
    // What is sent again is what was computed first.
    let mut lost = false;
    b.w.drop_if = Some(Box::new(move |from, p| {
        let first = from == 0 && p.bth.opcode.operation().is_write() && !lost;
        lost |= first;
        first
    }));
    b.post(qp, SendOp::WriteCalc(to, rkey, min), &[b.near.sge(0, 48)]).unwrap();
    b.w.transmit();
    b.near.write(0, &entries(&[(1, 10)]));
    assert_eq!((b.w.completion(0).status, b.w.lost), (Status::Success, 1));
    assert_eq!(b.far.read(0, 16), entries(&[(5, 50)]));
}

#[test]
fn a_calculation_that_cannot_be_made_fails_with_its_rule() {
    let max = Calc { op: CalcOp::Max, signed: true, big_endian: false, vectors: 2 };
    let cases: [(u32, Calc, &str); 3] = [
        (24, max, "a calculation's data is a row of vectors of 16-byte entries"),
        (128, max, "the result of a calculation takes more segments than its WQE has"),
        (3200, max, "the result of a calculation takes more segments than its WQE has"),
    ];
    for (len, calc, rule) in cases {
        let mut b = Bench::new(4);
        let (qp, _) = b.pair(CROSS, CAPS);
        b.post(qp, SendOp::WriteCalc(b.far.at(0).0, b.far.at(0).1, calc), &[b.near.sge(0, len as usize)])
            .unwrap();
        assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
        assert_eq!(b.rule(), rule);
    }
    // ADD, which mlx5 has; data that may not be read; a plain queue pair.
    let mut b = Bench::new(5);
    let qp = b.qp(false);
    let (to, rkey) = b.far.at(0);
    let mut block = wqe(WqeOp::Send, &[words(1 << 56, 0, 5 << 24 | 2), [0; 16], data(b.near.sge(0, 32))], 0);
    block[0] = 0xff;
    b.put(qp, 0, &block);
    b.ring(qp, 1);
    b.w.completion(0);
    assert!(b.rule().contains("MAX and MIN"));
    let (qp, _) = b.pair(CROSS, CAPS);
    b.post(qp, SendOp::WriteCalc(to, rkey, max), &[Sge { lkey: Key(1), ..b.near.sge(0, 32) }]).unwrap();
    assert_eq!(b.w.completion(0).status, Status::LocalProtection);
    b.rule();
    let (plain, _) = b.w.pair(QpType::Rc, CAPS, &Link::default());
    b.post(plain, SendOp::WriteCalc(to, rkey, max), &[b.near.sge(0, 32)]).unwrap();
    assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
    assert_eq!(b.rule(), "a calculation needs a cross-channel queue pair");
    assert_eq!(b.far.read(0, 16), [0; 16]);
}
