//! 1RMA's messages: whatever can be said comes back as it was said, and hostile bytes are refused with a
//! reason or read as exactly what they hold.

use adverb_wire::one_rma::*;
use proptest::prelude::*;

fn request() -> impl Strategy<Value = Body> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Rekey)];
    let fields = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>());
    (op, 0u8..2, fields, 1u16..=4096).prop_map(|(op, class, (slot, pid, region, offset), len)| {
        let len = if op == Op::Rekey { KEY_LEN as u16 } else { len };
        Body::Request(Request { op, class, slot, pid, region, offset, len })
    })
}

fn piece() -> impl Strategy<Value = Piece> {
    (0u16..64)
        .prop_flat_map(|grain| (1..=4096 - grain * 64).prop_map(move |len| Piece { offset: grain * 64, len }))
}

fn header() -> impl Strategy<Value = Header> {
    let body = prop_oneof![
        request(),
        (any::<u32>(), piece()).prop_map(|(slot, piece)| Body::ReadResponse { slot, piece }),
        (any::<u32>(), piece()).prop_map(|(ticket, piece)| Body::WriteData { ticket, piece }),
        any::<[u32; 3]>().prop_map(|[slot, ticket, open_ns]| Body::Solicitation { slot, ticket, open_ns }),
        (any::<u32>(), any::<bool>()).prop_map(|(slot, ok)| {
            Body::Completion { slot, status: if ok { Status::Ok } else { Status::Refused } }
        }),
        any::<u32>().prop_map(|slot| Body::Nack { slot }),
        any::<u32>().prop_map(|slot| Body::AuthenticationFailure { slot }),
    ];
    (any::<u64>(), body).prop_map(|(counter, body)| Header { counter, body })
}

/// The message with an arbitrary payload and tag.
fn message(header: &Header, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; header.message_len()];
    header.emit(&mut bytes);
    bytes
}

/// Whatever was read says where its bytes lie, and is what emitting it writes.
fn reads_as_written(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(header) = Header::parse(bytes) {
        prop_assert_eq!(header.message_len(), bytes.len());
        let mut again = [0; MAX_HEADER_LEN];
        let len = header.emit(&mut again);
        prop_assert_eq!(&again[..len], &bytes[..len]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn parse_gives_what_was_emitted(header in header(), fill: u8) {
        let bytes = message(&header, fill);
        prop_assert!(bytes.len() <= MAX_MESSAGE);
        prop_assert_eq!(Header::parse(&bytes), Ok(header));
    }

    #[test]
    fn another_length_is_refused(header in header(), cut in 1usize..5000, longer in 1usize..100) {
        let mut bytes = message(&header, 0);
        let shorter = &bytes[..bytes.len() - cut.min(bytes.len())];
        prop_assert!(matches!(Header::parse(shorter), Err(MessageError::Truncated | MessageError::Length)));
        bytes.resize(bytes.len() + longer, 0);
        prop_assert_eq!(Header::parse(&bytes), Err(MessageError::Length));
    }

    #[test]
    fn a_changed_byte_is_refused_or_read(header in header(), at in 0usize..MAX_HEADER_LEN, value: u8) {
        let mut bytes = message(&header, 0);
        let at = at % header.len();
        bytes[at] = value;
        reads_as_written(&bytes)?;
    }

    #[test]
    fn hostile_bytes_do_no_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..200), known: bool) {
        if known && bytes.len() > 3 {
            bytes[0] = VERSION;
            bytes[1] %= 11;
            bytes[2] &= 3;
            bytes[3] = 0;
        }
        reads_as_written(&bytes)?;
    }

    #[test]
    fn nonces_of_two_messages_differ(a in header(), b in header()) {
        let place = |header: &Header| (header.counter, header.kind(), header.piece().map(|p| p.offset));
        let same = place(&a) == place(&b);
        prop_assert_eq!(a.nonce() == b.nonce(), same);
    }
}

#[test]
fn every_check_has_its_reason() {
    use MessageError as E;
    type Case<'a> = (&'a [u8], &'a [(usize, u8)], E);
    let body =
        Body::Request(Request { op: Op::Read, class: 0, slot: 1, pid: 2, region: 3, offset: 4, len: 5 });
    let request = message(&Header { counter: 1, body }, 0);
    let rekey =
        Body::Request(Request { op: Op::Rekey, class: 0, slot: 1, pid: 2, region: 3, offset: 0, len: 16 });
    let rekey = message(&Header { counter: 1, body: rekey }, 0);
    let piece = Piece { offset: 64, len: 10 };
    let response = message(&Header { counter: 1, body: Body::ReadResponse { slot: 1, piece } }, 0);
    let completion =
        message(&Header { counter: 1, body: Body::Completion { slot: 1, status: Status::Ok } }, 0);
    let cases: [Case<'_>; 16] = [
        (&request[..31], &[], E::Truncated),
        (&request[..51], &[], E::Truncated),
        (&request, &[(0, 0)], E::Version),
        (&request, &[(0, 2)], E::Version),
        (&request, &[(1, 0)], E::Kind),
        (&request, &[(1, 10)], E::Kind),
        (&request, &[(3, 1)], E::Reserved),
        (&request, &[(35, 1)], E::Reserved),
        (&request, &[(2, 2)], E::Detail),
        (&completion, &[(2, 2)], E::Detail),
        (&response, &[(2, 1)], E::Reserved),
        (&request, &[(33, 0)], E::OpLength),
        (&request, &[(32, 0x10), (33, 1)], E::OpLength),
        (&rekey, &[(33, 15)], E::OpLength),
        (&response, &[(17, 65)], E::Piece),
        (&response, &[(19, 11)], E::Length),
    ];
    for (bytes, changes, reason) in cases {
        let mut bytes = bytes.to_vec();
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        assert_eq!(Header::parse(&bytes), Err(reason), "{changes:?}");
    }
    let mut beyond = response.clone();
    beyond[16..20].copy_from_slice(&[0x0f, 0xc0, 0, 65]);
    assert_eq!(Header::parse(&beyond), Err(E::Piece));
    beyond[16..20].copy_from_slice(&[0, 0, 0, 0]);
    assert_eq!(Header::parse(&beyond), Err(E::Piece));
}
