//! Queue pairs of one NIC that talk to each other, or to themselves: their frames never reach the driver.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Instant};
use world::*;

/// A NIC whose driver must see no frame, with two queue pairs that are connected to each other.
struct Alone {
    w: World,
    memory: Memory,
}

impl Alone {
    fn new(seed: u64, adjust: impl Fn(&mut NicConfig)) -> Alone {
        let mut w = World::with_config(1, seed, adjust);
        w.keep_log = true;
        let memory = w.memory(0, 1 << 17);
        Alone { w, memory }
    }

    fn pair(&mut self, qp_type: QpType) -> (QpId, QpId) {
        let link = Link { psn: (psn(100), psn(100)), ..Link::default() };
        let (a, b) = (self.w.qp(0, qp_type, CAPS), self.w.qp(0, qp_type, CAPS));
        self.w.connect((0, a), (0, b), &link);
        self.w.connect((0, b), (0, a), &link);
        (a, b)
    }

    fn self_connected(&mut self) -> QpId {
        let qp = self.w.qp(0, QpType::Rc, CAPS);
        self.w.connect((0, qp), (0, qp), &Link { psn: (psn(100), psn(100)), ..Link::default() });
        qp
    }

    /// One call into the NIC, which must do all that there is to do without a frame.
    fn once(&mut self) -> Vec<Completion> {
        self.w.transmit();
        assert!(
            self.w.log.is_empty(),
            "a frame to an own queue pair reached the driver: {:?}",
            self.w.log[0]
        );
        std::iter::from_fn(|| self.w.poll(0)).collect()
    }
}

fn psn(n: u32) -> adverb_wire::Psn {
    adverb_wire::Psn::new(n)
}

fn irn(config: &mut NicConfig) {
    config.irn = Some(IrnConfig::default());
}

/// Every operation between two queue pairs, and of one with itself, with plain RC and with IRN.
#[test]
fn every_operation_is_done_within_one_call() {
    for (transport, itself) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut alone = Alone::new(7, |config| {
            if transport {
                irn(config);
            }
        });
        let (a, b) = if itself {
            let qp = alone.self_connected();
            (qp, qp)
        } else {
            alone.pair(QpType::Rc)
        };
        let m = &alone.memory;
        m.write(0, &pattern(3, 50_000));
        let from = [m.sge(0, 50_000)];
        let (to, word) = (m.at(60_000), m.at(120_000));
        let answer = [m.sge(120_008, 8)];
        alone.w.send(0, a, wr(1, SendOp::Write(to.0, to.1), &from));
        assert_eq!(alone.once().len(), 1);
        assert_eq!(alone.memory.read(60_000, 50_000), pattern(3, 50_000));

        let landing = [alone.memory.sge(60_000, 50_000)];
        alone.w.recv(0, b, 2, &landing);
        alone.w.send(0, a, wr(3, SendOp::SendImm(9), &from[..1]));
        let done = alone.once();
        assert_eq!(done.len(), 2, "{done:?}");
        assert!(done.iter().all(|c| c.status == Status::Success && c.byte_len == 50_000 || c.wr_id == 3));

        alone.memory.write(60_000, &pattern(5, 50_000));
        let into = [alone.memory.sge(0, 50_000)];
        alone.w.send(0, a, wr(4, SendOp::Read(to.0, to.1), &into));
        alone.w.send(0, a, wr(5, SendOp::FetchAdd { addr: word.0, rkey: word.1, add: 5 }, &answer));
        let swap = SendOp::CompareSwap { addr: word.0, rkey: word.1, compare: 5, swap: 8 };
        alone.w.send(0, a, wr(6, swap, &answer));
        let done: Vec<_> = alone.once().iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, [4, 5, 6].map(|id| (id, Status::Success)));
        assert_eq!(alone.memory.read(0, 50_000), pattern(5, 50_000));
        assert_eq!((alone.memory.word(120_000), alone.memory.word(120_008)), (8, 5));

        let packets = alone.w.counter(0, "loopback_packets");
        assert!(packets > 150 && packets == alone.w.counter(0, "tx_packets"), "{packets}");
        assert_eq!(packets, alone.w.counter(0, "rx_packets"));
        assert_eq!(alone.w.counter(0, "retransmitted_packets"), 0);
        if transport {
            assert_eq!(alone.w.nodes[0].nic.recovery_of(a).unwrap(), LossRecovery::Irn);
        }
        alone.w.nodes[0].nic.check_invariants();
    }
}

/// A message to memory that overlaps where it comes from arrives as it was, packet by packet.
#[test]
fn a_packet_is_copied_before_it_lands() {
    let mut alone = Alone::new(8, |_| {});
    let (a, _) = alone.pair(QpType::Rc);
    alone.memory.write(0, &pattern(1, 1024));
    let (from, to) = ([alone.memory.sge(0, 1024)], alone.memory.at(8));
    alone.w.send(0, a, wr(1, SendOp::Write(to.0, to.1), &from));
    assert_eq!(alone.once()[0].status, Status::Success);
    assert_eq!(alone.memory.read(8, 1024), pattern(1, 1024));
}

#[test]
fn unreliable_queue_pairs_loop_too() {
    let mut alone = Alone::new(9, |_| {});
    let (a, b) = alone.pair(QpType::Uc);
    let (c, d) = (alone.w.qp(0, QpType::Ud, CAPS), alone.w.qp(0, QpType::Ud, CAPS));
    for qp in [c, d] {
        alone.w.connect((0, qp), (0, qp), &Link::default());
    }
    alone.memory.write(0, &pattern(2, 3000));
    let (long, short) = ([alone.memory.sge(0, 3000)], [alone.memory.sge(0, 500)]);
    let (one, other) = ([alone.memory.sge(4096, 3000)], [alone.memory.sge(8192, 540)]);
    alone.w.recv(0, b, 1, &one);
    alone.w.recv(0, d, 2, &other);
    alone.w.send(0, a, wr(3, SendOp::Send, &long));
    let to = UdAddress {
        dgid: alone.w.nodes[0].gid,
        qpn: alone.w.nodes[0].nic.qp_number(d).unwrap(),
        qkey: 0x1111,
        traffic_class: 0,
        hop_limit: 0,
        path: PathId::DEFAULT,
    };
    alone.w.send(0, c, SendWr { ud: Some(to), ..wr(4, SendOp::Send, &short) });
    let mut done: Vec<_> = alone.once().iter().map(|c| (c.wr_id, c.status)).collect();
    done.sort_by_key(|(id, _)| *id);
    assert_eq!(done, [1, 2, 3, 4].map(|id| (id, Status::Success)));
    assert_eq!(alone.memory.read(4096, 3000), pattern(2, 3000));
    assert_eq!(alone.memory.read(8192 + 40, 500), pattern(2, 500));
}

/// What goes to an own address but not to an own number, and everything where the driver wants none of this,
/// leaves as before.
#[test]
fn other_numbers_and_other_settings_leave() {
    let mut alone = Alone::new(10, |_| {});
    let (a, _) = alone.pair(QpType::Rc);
    let nic = &mut alone.w.nodes[0].nic;
    let (mut attr, _) = nic.query_qp(a).unwrap();
    assert_eq!(attr.path, PathId::LOOPBACK, "which no driver needs to know");
    // Towards another process of the same address.
    let stranger = alone.w.qp(0, QpType::Rc, CAPS);
    use QpAttrMask as M;
    let nic = &mut alone.w.nodes[0].nic;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        attr.state = state;
        attr.dest_qpn = qpn(0x05_0000);
        attr.path = PathId(5);
        let mask = match state {
            QpState::Init => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            QpState::Rtr => {
                let peer = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
                peer | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER
            }
            _ => M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
        };
        nic.modify_qp(Instant::ZERO, stranger, &attr, M::STATE | mask).unwrap();
    }
    let (to, from) = (alone.memory.at(64), [alone.memory.sge(0, 8)]);
    alone.w.send(0, stranger, wr(1, SendOp::Write(to.0, to.1), &from));
    let mut out = TxFrame::default();
    assert!(alone.w.nodes[0].nic.next_frame(Instant::ZERO, &mut out));
    assert_eq!((out.path, out.packet.bth.dest_qp), (PathId(5), qpn(0x05_0000)));

    let mut alone = Alone::new(11, |config| config.loopback = false);
    let (a, _) = alone.pair(QpType::Rc);
    let (to, from) = (alone.memory.at(64), [alone.memory.sge(0, 8)]);
    alone.w.send(0, a, wr(1, SendOp::Write(to.0, to.1), &from));
    assert_eq!(alone.w.completion(0).status, Status::Success);
    assert_eq!(alone.w.log.len(), 2, "the request and its acknowledgement were on the wire");
    assert_eq!(alone.w.counter(0, "loopback_packets"), 0);
}

/// A receiver that is not ready has its sender wait for its timer, in virtual time.
#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    for with_irn in [false, true] {
        let mut alone = Alone::new(12, |config| {
            if with_irn {
                irn(config);
            }
        });
        let (a, b) = alone.pair(QpType::Rc);
        let (from, to) = ([alone.memory.sge(0, 64)], [alone.memory.sge(64, 64)]);
        alone.w.send(0, a, wr(1, SendOp::Send, &from));
        assert_eq!(alone.once(), []);
        assert_eq!(alone.w.counter(0, "rnr_naks_received"), 1);
        alone.w.recv(0, b, 2, &to);
        let first = alone.w.completion(0);
        assert_eq!(first.status, Status::Success);
        assert!(alone.w.log.is_empty());
    }
}

/// However much there is to do between own queue pairs, one call has an end, and says that there is more.
#[test]
fn one_call_has_an_end() {
    let mut alone = Alone::new(13, |config| config.ack_every = 1);
    let (a, _) = alone.pair(QpType::Rc);
    let big = 1 << 16;
    let (to, from) = (alone.memory.at(big), [alone.memory.sge(0, big)]);
    for id in 0..40 {
        alone.w.send(0, a, wr(id, SendOp::Write(to.0, to.1), &from));
    }
    let nic = &mut alone.w.nodes[0].nic;
    let (mut out, mut calls) = (TxFrame::default(), 0);
    let mut before = 0;
    while nic.has_work() {
        assert!(!nic.next_frame(Instant::from_ns(1000), &mut out));
        let looped = nic.counters().loopback_packets;
        assert!(looped - before <= 512, "{}", looped - before);
        (before, calls) = (looped, calls + 1);
    }
    // 64 packets a WRITE, and some answers, of which one may stand for several.
    assert!(before > 40 * 64 && calls > before / 512, "{calls} calls for {before} packets");
    assert_eq!(std::iter::from_fn(|| alone.w.poll(0)).count(), 40);
    alone.w.run(Duration::from_ms(1));
    assert!(alone.w.log.is_empty());
}
