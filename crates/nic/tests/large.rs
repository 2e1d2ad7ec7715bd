//! Messages of 2^31 bytes, the longest there are: carried whole by every operation, and refused beyond. The
//! memory is mapped and not touched: only packets at both ends of a message bring their bytes.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Opcode, Operation, Packet, Psn, Reth, Service};
use world::*;

/// The longest message (IBTA 9.7.7).
const MOST: usize = 1 << 31;
/// Bytes at each end of the memory that packets really bring.
const END: usize = 4096;
const WIDE: Link = Link { mtu: Mtu::M4096, psn: (Psn::new(100), Psn::new(0xff_fff0)), ..DEFAULT };
const DEFAULT: Link = Link {
    mtu: Mtu::M1024,
    psn: (Psn::new(0), Psn::new(0)),
    access: Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC),
    qkey: 0x1111,
    depth: 4,
    timeout: 20,
    retries: 7,
    rnr_retries: 7,
    rnr_timer: 1,
};

struct Big {
    w: World,
    a: QpId,
    b: QpId,
    ma: Memory,
    mb: Memory,
}

fn big(qp_type: QpType, irn: bool) -> Big {
    big_in_packets_of(Mtu::M4096, qp_type, irn)
}

fn big_in_packets_of(mtu: Mtu, qp_type: QpType, irn: bool) -> Big {
    let mut w = World::with_config(2, 1, |c| c.irn = irn.then(IrnConfig::paper));
    let (a, b) = w.pair(qp_type, CAPS, &Link { mtu, ..WIDE });
    w.run(Duration::from_us(100));
    let (ma, mb) = (w.memory(0, MOST + 8192), w.memory(1, MOST + 8192));
    Big { w, a, b, ma, mb }
}

impl Big {
    /// Hands frames over at once until there are none. Packets from the middle of a memory come without their
    /// bytes; how many bytes came in all.
    fn carry(&mut self) -> u64 {
        let ends = [self.ma.addr(), self.mb.addr()];
        let mut out = TxFrame::default();
        let mut carried = 0;
        loop {
            let mut any = false;
            for from in [0, 1] {
                while self.w.nodes[from].nic.next_frame(self.w.now, &mut out) {
                    any = true;
                    let len = out.payload.len();
                    carried += len as u64;
                    let near = |addr: u64| addr < END as u64 || addr > (MOST - 2 * END) as u64;
                    let real = out.payload.spans().first().is_some_and(|s| near(s.addr() - ends[from]));
                    let mut bytes = vec![0; if real { len } else { 0 }];
                    let mut at = 0;
                    for span in out.payload.spans().iter().filter(|_| real) {
                        adverb_nic::memory::dma::read_bytes(*span, &mut bytes[at..at + span.len()]);
                        at += span.len();
                    }
                    let payload = if real { Payload::from_slice(&bytes) } else { Payload::elided(len) };
                    self.w.nodes[1 - from].nic.on_frame(self.w.now, &out.packet, &payload);
                }
            }
            if !any {
                return carried;
            }
        }
    }

    /// One operation over `len` bytes; both ends of what moved must be there.
    fn moves(&mut self, what: &str, len: usize) {
        let (va, rkey) = self.mb.at(0);
        let sges = [self.ma.sge(0, len)];
        let (from, to) = if what == "read" { (&self.mb, &self.ma) } else { (&self.ma, &self.mb) };
        from.write(0, &pattern(len as u8, 64));
        from.write(len - 64, &pattern(!len as u8, 64));
        to.write(0, &[0; 64]);
        to.write(len - 64, &[0; 64]);
        let op = match what {
            "send" => SendOp::SendImm(9),
            "write" => SendOp::Write(va, rkey),
            "write with immediate" => SendOp::WriteImm(va, rkey, 9),
            _ => SendOp::Read(va, rkey),
        };
        let receives = matches!(what, "send" | "write with immediate");
        if receives {
            let into = [self.mb.sge(0, len)];
            self.w.recv(1, self.b, 77, if what == "send" { &into } else { &[] });
        }
        self.w.send(0, self.a, wr(5, op, &sges));
        assert_eq!(self.carry(), len as u64, "{what} of {len} bytes");
        let done = self.w.poll(0).expect("a completion");
        assert_eq!((done.wr_id, done.status), (5, Status::Success), "{what} of {len} bytes");
        if receives {
            let got = self.w.poll(1).expect("a receive");
            assert_eq!((got.wr_id, got.status, got.byte_len), (77, Status::Success, len as u32));
        }
        let to = if what == "read" { &self.ma } else { &self.mb };
        assert!(to.read(0, 64) == pattern(len as u8, 64), "{what} of {len} bytes: its beginning");
        assert!(to.read(len - 64, 64) == pattern(!len as u8, 64), "{what} of {len} bytes: its end");
    }
}

#[test]
fn reliable_connections_carry_the_longest_message() {
    let mut big = big(QpType::Rc, false);
    for what in ["send", "write", "write with immediate", "read"] {
        big.moves(what, MOST);
    }
    for what in ["send", "write", "read"] {
        big.moves(what, MOST - 1);
    }
}

#[test]
fn unreliable_connections_carry_the_longest_message() {
    let mut big = big(QpType::Uc, false);
    for what in ["send", "write"] {
        big.moves(what, MOST);
    }
}

#[test]
fn irn_carries_the_longest_message() {
    let mut big = big(QpType::Rc, true);
    assert_eq!(big.w.nodes[0].nic.recovery_of(big.a), Ok(LossRecovery::Irn));
    for what in ["send", "write", "read"] {
        big.moves(what, MOST);
    }
}

/// In the smallest packets it takes 2^23 PSNs, half of all there are: one more could not be told from an old
/// one.
#[test]
fn the_longest_message_in_the_smallest_packets_takes_half_of_all_psns() {
    for (qp_type, irn, operations) in [
        (QpType::Rc, false, &["write", "read"][..]),
        (QpType::Rc, true, &["write", "read"]),
        (QpType::Uc, false, &["send"]),
    ] {
        let mut big = big_in_packets_of(Mtu::M256, qp_type, irn);
        for what in operations {
            big.moves(what, MOST);
        }
    }
}

#[test]
fn two_entries_may_have_the_longest_message_between_them() {
    let mut big = big(QpType::Rc, false);
    let (va, rkey) = big.mb.at(0);
    let sges = [big.ma.sge(0, MOST - 4096), big.ma.sge(0, 4096)];
    big.w.send(0, big.a, wr(1, SendOp::Write(va, rkey), &sges));
    assert_eq!(big.carry(), MOST as u64);
    assert_eq!(big.w.poll(0).map(|c| c.status), Some(Status::Success));
    let sges = [big.ma.sge(0, MOST - 4096), big.ma.sge(0, 4097)];
    let refused = big.w.nodes[0].nic.post_send(big.w.now, big.a, &wr(2, SendOp::Write(va, rkey), &sges));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

#[test]
fn every_operation_and_receive_refuses_an_entry_beyond() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut big = big(qp_type, false);
        let (va, rkey) = big.mb.at(0);
        let sges = [big.ma.sge(0, MOST + 1)];
        let operations = [
            SendOp::Send,
            SendOp::SendImm(1),
            SendOp::SendInv(rkey),
            SendOp::Write(va, rkey),
            SendOp::WriteImm(va, rkey, 1),
            SendOp::Read(va, rkey),
            SendOp::FetchAdd { addr: va, rkey, add: 1 },
            SendOp::CompareSwap { addr: va, rkey, compare: 0, swap: 1 },
        ];
        let to = UdAddress {
            dgid: big.w.nodes[1].gid,
            qpn: big.w.nodes[1].nic.qp_number(big.b).unwrap(),
            qkey: 0x1111,
            traffic_class: 0,
            hop_limit: 0,
            path: PathId::DEFAULT,
        };
        for op in operations {
            let request = SendWr { ud: Some(to), ..wr(1, op, &sges) };
            let refused = big.w.nodes[0].nic.post_send(big.w.now, big.a, &request);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{op:?}: {refused:?}");
        }
        let into = [big.mb.sge(0, MOST + 1)];
        let receive = RecvWr { wr_id: 1, sges: &into };
        let refused = big.w.nodes[1].nic.post_recv(big.w.now, big.b, &receive);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        assert!(big.w.poll(0).is_none() && big.carry() == 0);
    }
    let mut big = big(QpType::Rc, false);
    let n = &mut big.w.nodes[1];
    let srq = n.nic.create_srq(&SrqInit { pd: n.pd, max_wr: 8, max_sge: 1, xrc: None }).unwrap();
    let into = [big.mb.sge(0, MOST + 1)];
    let refused = n.nic.post_srq_recv(srq, &RecvWr { wr_id: 1, sges: &into });
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    n.nic.post_srq_recv(srq, &RecvWr { wr_id: 2, sges: &[big.mb.sge(0, MOST)] }).unwrap();
}

#[test]
fn atomics_and_datagrams_say_that_it_is_too_long_for_them() {
    let mut rc = big(QpType::Rc, false);
    let (va, rkey) = rc.mb.at(0);
    let add = SendOp::FetchAdd { addr: va, rkey, add: 1 };
    rc.w.send(0, rc.a, wr(1, add, &[rc.ma.sge(0, MOST)]));
    rc.carry();
    assert_eq!(rc.w.poll(0).map(|c| c.status), Some(Status::LocalLength));
    assert_eq!(rc.mb.word(0), 0);
    let mut ud = big(QpType::Ud, false);
    let to = UdAddress {
        dgid: ud.w.nodes[1].gid,
        qpn: ud.w.nodes[1].nic.qp_number(ud.b).unwrap(),
        qkey: 0x1111,
        traffic_class: 0,
        hop_limit: 0,
        path: PathId::DEFAULT,
    };
    // A datagram fits into a receive of the longest entry.
    ud.w.recv(1, ud.b, 3, &[ud.mb.sge(0, MOST)]);
    ud.w.send(0, ud.a, SendWr { ud: Some(to), ..wr(1, SendOp::Send, &[ud.ma.sge(0, 64)]) });
    ud.carry();
    assert_eq!(ud.w.poll(0).map(|c| c.status), Some(Status::Success));
    assert_eq!(ud.w.poll(1).map(|c| (c.status, c.byte_len)), Some((Status::Success, 104)));
    ud.w.send(0, ud.a, SendWr { ud: Some(to), ..wr(1, SendOp::Send, &[ud.ma.sge(0, MOST)]) });
    assert_eq!(ud.carry(), 0);
    assert_eq!(ud.w.poll(0).map(|c| c.status), Some(Status::LocalLength));
}

#[test]
fn a_peer_s_write_beyond_is_an_invalid_request() {
    let mut big = big(QpType::Rc, false);
    let (va, rkey) = big.mb.at(0);
    let mut first = Packet::default();
    (first.flow.src, first.flow.dst) = (big.w.nodes[0].gid, big.w.nodes[1].gid);
    first.bth.opcode = Opcode::new(Service::Rc, Operation::WriteFirst);
    first.bth.dest_qp = big.w.nodes[1].nic.qp_number(big.b).unwrap();
    first.bth.psn = Psn::new(100);
    first.reth = Reth { va, rkey, len: MOST as u32 + 1 };
    first.payload_len = 4096;
    big.w.nodes[1].nic.on_frame(big.w.now, &first, &Payload::elided(4096));
    assert_eq!(big.w.nodes[1].nic.next_event(), Some(Event::QpRequestError(big.b)));
    let why = big.w.nodes[1].nic.next_explanation().expect("an explanation");
    assert!(why.rule.contains("2^31"), "{why}");
}
