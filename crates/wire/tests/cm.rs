//! Each message of the connection manager as Linux 6.1's rdma_cm sends it over rxe, whole: read, and written
//! back to the last bit.

use adverb_wire::cm::{Attribute, IpHeader, MAD_LEN, Mad, Message, ServiceType, Stage};
use adverb_wire::{Gid, QpNumber};

/// The messages, by the titles that stand in the file; zeroes at their ends are left out there.
fn captured() -> Vec<(&'static str, [u8; MAD_LEN])> {
    let mut messages: Vec<(&str, Vec<u8>)> = Vec::new();
    for row in include_str!("data/rxe-6.1-cm.txt").lines() {
        match row.strip_prefix("    ") {
            None => messages.push((row, Vec::new())),
            Some(digits) => {
                let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
                let (_, bytes) = messages.last_mut().unwrap();
                bytes.extend(pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()));
            }
        }
    }
    let padded = |(title, mut bytes): (&'static str, Vec<u8>)| {
        bytes.resize(MAD_LEN, 0);
        (title, bytes.try_into().unwrap())
    };
    messages.into_iter().map(padded).collect()
}

fn message(title: &str) -> Message {
    let (_, bytes) = captured().into_iter().find(|(known, _)| *known == title).unwrap();
    Mad::parse(&bytes).unwrap().message
}

#[test]
fn all_that_linux_sends_is_read_and_written_back() {
    let mut kinds = Vec::new();
    for (title, bytes) in captured() {
        let mad = Mad::parse(&bytes).unwrap();
        assert_eq!(mad.emit(), bytes, "{title}: {mad:?}");
        kinds.push(mad.message.attribute());
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, Attribute::ALL);
}

#[test]
fn what_linux_says_in_a_request_and_its_answer() {
    let Message::Req(req) = message("REQ") else { panic!() };
    let of = |last| Gid::from(core::net::Ipv4Addr::new(10, 77, 0, last));
    assert_eq!((req.local_gid, req.remote_gid), (of(11), of(1)));
    assert_eq!((req.service, req.service_id, req.pkey, req.mtu), (ServiceType::Rc, 0x0106_1f45, 0xffff, 3));
    assert_eq!(
        (req.remote_timeout, req.local_timeout, req.max_cm_retries, req.ack_timeout),
        (20, 20, 15, 19)
    );
    assert_eq!((req.side.responder_resources, req.side.initiator_depth), (4, 2));
    assert_eq!((req.retry_count, req.side.rnr_retry, req.side.flow_control), (6, 5, true));
    assert_eq!((req.hop_limit, req.traffic_class, req.rate, req.flow_label), (64, 0, 0, 0xb7601));
    let header = IpHeader::parse(&req.private.0).unwrap();
    assert_eq!((header.src, header.dst, header.src_port, header.ipv4), (of(11), of(1), 0xe1c4, true));
    assert_eq!(&req.private.0[36..44], b"question");

    let Message::Rep(rep) = message("REP") else { panic!() };
    assert_eq!(
        (rep.side.qpn, rep.side.responder_resources, rep.side.initiator_depth),
        (QpNumber::new(0x11), 4, 2)
    );
    assert_eq!((rep.ack_delay, rep.side.rnr_retry, &rep.private.0[..6]), (15, 5, b"answer".as_slice()));
}

#[test]
fn how_linux_refuses_and_asks_for_patience() {
    let Message::Rej(by_program) = message("REJ of a program") else { panic!() };
    assert_eq!(
        (by_program.reason, by_program.stage, &by_program.private.0[..2]),
        (28, Stage::Req, b"no".as_slice())
    );
    let Message::Rej(nobody) = message("REJ without a listener") else { panic!() };
    assert_eq!((nobody.reason, nobody.stage, nobody.local_id), (8, Stage::Req, 0));
    let Message::Mra(mra) = message("MRA") else { panic!() };
    assert_eq!((mra.stage, mra.timeout), (Stage::Req, 24));
    let Message::SidrRep(found) = message("SIDR_REP") else { panic!() };
    assert_eq!((found.status, found.qkey, found.qpn), (0, 0x0123_4567, QpNumber::new(0x12)));
    let Message::SidrRep(refused) = message("SIDR_REP of a program that refuses") else { panic!() };
    assert_eq!((refused.status, &refused.private.0[..2]), (2, b"no".as_slice()));
}
