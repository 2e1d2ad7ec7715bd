//! Golden bytes by their offsets as captured from Linux's rxe (rdma_cm over RoCE v2), and bytes of strangers.

use super::*;
use crate::units::{Psn, QpNumber};

fn set(bytes: &mut [u8; MAD_LEN], at: usize, value: &[u8]) {
    bytes[DATA_AT + at..DATA_AT + at + value.len()].copy_from_slice(value);
}

fn golden(attribute: u16) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[8..16].copy_from_slice(&0x1122_3344_a5a6_a7a8_u64.to_be_bytes());
    bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
    bytes
}

fn mapped(last: [u8; 4]) -> Gid {
    Gid::from(core::net::Ipv4Addr::from(last))
}

/// A REQ of rping to 10.0.0.2, port 7174, as rxe sends it.
fn rxe_req() -> ([u8; MAD_LEN], Req) {
    let mut bytes = golden(0x10);
    set(&mut bytes, 0, &0xa5a6_a7a8_u32.to_be_bytes());
    set(&mut bytes, 8, &0x0000_0000_0106_1c06_u64.to_be_bytes());
    set(&mut bytes, 16, &0x5054_00ff_fe77_0001_u64.to_be_bytes());
    set(&mut bytes, 32, &[0, 0, 0x11, 16]);
    set(&mut bytes, 39, &[1]);
    set(&mut bytes, 43, &[20 << 3 | 1]);
    set(&mut bytes, 44, &[0x30, 0x85, 0x2e, 20 << 3 | 7]);
    set(&mut bytes, 48, &[0xff, 0xff, 3 << 4 | 6, 15 << 4 | 1 << 3]);
    set(&mut bytes, 52, &[0xff; 4]);
    set(&mut bytes, 56, &mapped([10, 0, 0, 1]).0);
    set(&mut bytes, 72, &mapped([10, 0, 0, 2]).0);
    set(&mut bytes, 88, &[0x12, 0x34, 0x50, 2]);
    set(&mut bytes, 92, &[0x20, 64, 1 << 3, 19 << 3]);
    let mut private = [0; 92];
    private[1] = 0x40;
    private[2..4].copy_from_slice(&0xd872_u16.to_be_bytes());
    private[16..20].copy_from_slice(&[10, 0, 0, 1]);
    private[32..36].copy_from_slice(&[10, 0, 0, 2]);
    private[36..40].copy_from_slice(b"rpin");
    set(&mut bytes, 140, &private);
    let side = Side {
        ca_guid: 0x5054_00ff_fe77_0001,
        qkey: 0,
        qpn: QpNumber::new(0x11),
        psn: Psn::new(0x30_852e),
        responder_resources: 16,
        initiator_depth: 1,
        flow_control: true,
        rnr_retry: 6,
        srq: true,
    };
    let req = Req {
        local_id: 0xa5a6_a7a8,
        service_id: 0x0106_1c06,
        side,
        remote_timeout: 20,
        service: ServiceType::Rc,
        local_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        mtu: 3,
        max_cm_retries: 15,
        local_gid: mapped([10, 0, 0, 1]),
        remote_gid: mapped([10, 0, 0, 2]),
        flow_label: 0x12345,
        rate: 2,
        traffic_class: 0x20,
        hop_limit: 64,
        sl: 0,
        subnet_local: true,
        ack_timeout: 19,
        private: Private(private),
    };
    (bytes, req)
}

fn same(bytes: [u8; MAD_LEN], message: Message) {
    let mad = Mad { transaction: 0x1122_3344_a5a6_a7a8, message };
    assert_eq!(Mad::parse(&bytes), Ok(mad));
    assert_eq!(mad.emit(), bytes, "{message:?}");
}

#[test]
fn a_req_is_that_of_rxe() {
    let (bytes, req) = rxe_req();
    same(bytes, Message::Req(req));
    let header = IpHeader::parse(&req.private.0).unwrap();
    let (src, dst) = (mapped([10, 0, 0, 1]), mapped([10, 0, 0, 2]));
    assert_eq!(header, IpHeader { ipv4: true, src_port: 0xd872, src, dst });
    assert_eq!(header.emit(), req.private.0[..IP_HEADER_LEN]);
    assert_eq!(addressee(&bytes), Some(Addressee::Service(0x0106_1c06, Some(dst))));
}

#[test]
fn answers_stand_at_their_offsets() {
    let ids = |attribute| {
        let mut bytes = golden(attribute);
        set(&mut bytes, 0, &1u32.to_be_bytes());
        set(&mut bytes, 4, &0x0200_0003_u32.to_be_bytes());
        bytes
    };
    let (local_id, remote_id) = (1, 0x0200_0003);
    let mut mra = ids(0x11);
    set(&mut mra, 8, &[1 << 6, 24 << 3, 9]);
    let private = Private::of(&[9]).unwrap();
    same(mra, Message::Mra(Mra { local_id, remote_id, stage: Stage::Rep, timeout: 24, private }));

    let mut rej = ids(0x12);
    set(&mut rej, 8, &[2 << 6, 8 << 1, 0, 28, 0x50]);
    set(&mut rej, 84, b"no");
    let rejected = Rej {
        local_id,
        remote_id,
        stage: Stage::Other,
        info_len: 8,
        reason: 28,
        info: Private::of(&[0x50]).unwrap(),
        private: Private::of(b"no").unwrap(),
    };
    same(rej, Message::Rej(rejected));

    let mut rep = ids(0x13);
    set(&mut rep, 8, &[0, 0, 0, 5, 0, 0, 0x12]);
    set(&mut rep, 20, &[0xab, 0xcd, 0xef, 0, 4, 2, 15 << 3 | 1 << 1 | 1, 7 << 5 | 1 << 4]);
    set(&mut rep, 28, &7u64.to_be_bytes());
    set(&mut rep, 36, b"hello");
    let side = Side {
        ca_guid: 7,
        qkey: 5,
        qpn: QpNumber::new(0x12),
        psn: Psn::new(0xab_cdef),
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: true,
        rnr_retry: 7,
        srq: true,
    };
    let private = Private::of(b"hello").unwrap();
    same(rep, Message::Rep(Rep { local_id, remote_id, side, ack_delay: 15, failover: 1, private }));

    let private = Private::of(b"x").unwrap();
    let mut rtu = ids(0x14);
    set(&mut rtu, 8, b"x");
    same(rtu, Message::Rtu(Rtu { local_id, remote_id, private }));
    let mut drep = ids(0x16);
    set(&mut drep, 8, b"x");
    same(drep, Message::Drep(Drep { local_id, remote_id, private }));
    let mut dreq = ids(0x15);
    set(&mut dreq, 8, &[0, 0, 0x11]);
    set(&mut dreq, 12, b"x");
    let private = Private::of(b"x").unwrap();
    same(dreq, Message::Dreq(Dreq { local_id, remote_id, qpn: QpNumber::new(0x11), private }));
    for bytes in [mra, rej, rep, rtu, drep, dreq] {
        assert_eq!(addressee(&bytes), Some(Addressee::Id(remote_id)));
    }
}

#[test]
fn resolution_stands_at_its_offsets() {
    let mut req = golden(0x17);
    set(&mut req, 0, &0x0300_0001_u32.to_be_bytes());
    set(&mut req, 4, &[0xff, 0xff]);
    set(&mut req, 8, &0x0111_1c06_u64.to_be_bytes());
    let mut private = Private([0; 216]);
    let header = IpHeader { ipv4: false, src_port: 9, src: Gid([1; 16]), dst: Gid([2; 16]) };
    private.0[..IP_HEADER_LEN].copy_from_slice(&header.emit());
    set(&mut req, 16, &private.0);
    let asked = SidrReq { request_id: 0x0300_0001, pkey: 0xffff, service_id: 0x0111_1c06, private };
    same(req, Message::SidrReq(asked));
    assert_eq!(IpHeader::parse(&private.0), Some(header));
    assert_eq!(addressee(&req), Some(Addressee::Service(0x0111_1c06, Some(Gid([2; 16])))));

    let mut rep = golden(0x18);
    set(&mut rep, 0, &0x0300_0001_u32.to_be_bytes());
    set(&mut rep, 4, &[1, 2]);
    set(&mut rep, 8, &[0, 0, 0x13]);
    set(&mut rep, 12, &0x0111_1c06_u64.to_be_bytes());
    set(&mut rep, 20, &0x0123_4567_u32.to_be_bytes());
    set(&mut rep, 24, &[3]);
    set(&mut rep, 96, b"data");
    let answer = SidrRep {
        request_id: 0x0300_0001,
        status: 1,
        info_len: 2,
        qpn: QpNumber::new(0x13),
        service_id: 0x0111_1c06,
        qkey: 0x0123_4567,
        info: Private::of(&[3]).unwrap(),
        private: Private::of(b"data").unwrap(),
    };
    same(rep, Message::SidrRep(answer));
    assert_eq!(addressee(&rep), Some(Addressee::Id(0x0300_0001)));
}

#[test]
fn what_is_no_message_says_why() {
    let (good, _) = rxe_req();
    assert_eq!(Mad::parse(&good[..255]), Err(MadError::Length));
    assert_eq!(Mad::parse(&[good.as_slice(), &[0]].concat()), Err(MadError::Length));
    for (at, wrong, why) in [
        (0, 2, MadError::Header),
        (1, 3, MadError::Header),
        (2, 1, MadError::Header),
        (3, 0x81, MadError::Header),
        (5, 1, MadError::Header),
        (17, 0x19, MadError::Attribute),
        (17, 0x1a, MadError::Attribute),
        (17, 0x0f, MadError::Attribute),
        (16, 1, MadError::Attribute),
    ] {
        let mut bytes = good;
        bytes[at] = wrong;
        assert_eq!(Mad::parse(&bytes), Err(why), "byte {at}");
        assert_eq!(addressee(&bytes), None);
    }
    assert_eq!(Private::<4>::of(&[0; 5]), None);
    for (version, family) in [(1, 0x40), (0, 0x50), (0x10, 0x60)] {
        let mut header = [0; IP_HEADER_LEN];
        (header[0], header[1]) = (version, family);
        assert_eq!(IpHeader::parse(&header), None);
    }
    assert_eq!(IpHeader::parse(&[0, 0x40]), None);
}

/// Any bytes of the class are read, and what is read is written back so that it reads the same.
#[test]
fn bytes_of_strangers_are_read_and_written_back() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    for round in 0..20_000 {
        let mut bytes = [0; MAD_LEN];
        bytes.iter_mut().for_each(|byte| *byte = random());
        bytes[..4].copy_from_slice(&HEADER);
        bytes[4..6].fill(0);
        bytes[16..18].copy_from_slice(&(0x10 + round % 9u16).to_be_bytes());
        let mad = Mad::parse(&bytes).unwrap();
        assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
        assert!(addressee(&bytes).is_some());
    }
}
