//! Windows: binds, invalidations, ends.

use super::*;
use crate::error::Error;
use AccessFault::*;
use RemoteRight::{Atomic, Read, Write};

/// A memory with two domains and regions with different rights.
struct Room {
    m: Memory,
    pd: PdId,
    other: PdId,
    mr: MrInfo,
    read_only: MrInfo,
    unbindable: MrInfo,
    foreign: MrInfo,
}

const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

fn room() -> Room {
    let mut m = Memory::new(1);
    let (pd, other) = (m.alloc_pd().unwrap(), m.alloc_pd().unwrap());
    let mr = register(&mut m, pd, 0x10000, 100, 0x5000, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let read_only = register(&mut m, pd, 0x20000, 100, 0x20000, Access::MW_BIND).unwrap();
    let unbindable = register(&mut m, pd, 0x30000, 100, 0x30000, Access::LOCAL_WRITE).unwrap();
    let foreign = register(&mut m, other, 0x40000, 100, 0x40000, ALL).unwrap();
    Room { m, pd, other, mr, read_only, unbindable, foreign }
}

impl Room {
    fn bind(&self, mw: &MwInfo) -> MwBind {
        MwBind { mw: mw.id, rkey: mw.rkey, lkey: self.mr.lkey, addr: 0x5010, len: 32, access: REMOTE }
    }

    fn read(&self, qp: QpNumber, key: Key, va: u64, len: u32) -> Result<(u64, usize), AccessFault> {
        start(self.m.check_remote(self.pd, qp, key, va, len, Read))
    }
}

#[test]
fn a_type_1_window_serves_the_domain() {
    let mut r = room();
    let mw = r.m.alloc_mw(r.pd, MwType::One).unwrap();
    assert_eq!(r.read(QP, mw.rkey, 0x5010, 1), Err(Unbound));
    let bind = MwBind { rkey: Key(0), access: Access::REMOTE_READ, ..r.bind(&mw) };
    let key = r.m.bind_mw(r.pd, QP, &bind).unwrap();
    assert_eq!((key.0 >> 8, key.0 as u8), (mw.rkey.0 >> 8, (mw.rkey.0 as u8).wrapping_add(1)));
    assert_eq!(r.read(QP, mw.rkey, 0x5010, 1), Err(UnknownKey), "the old key is dead");
    assert_eq!(r.read(QP, key, 0x5010, 32), Ok((0x10010, 32)));
    assert_eq!(r.read(QP2, key, 0x502f, 1), Ok((0x1002f, 1)));
    assert_eq!(r.read(QP, key, 0x500f, 1), Err(OutOfBounds));
    assert_eq!(r.read(QP, key, 0x5010, 33), Err(OutOfBounds));
    assert_eq!(start(r.m.check_remote(r.pd, QP, key, 0x5010, 1, Write)), Err(MissingRight));
    assert_eq!(start(r.m.check_remote(r.other, QP, key, 0x5010, 1, Read)), Err(OtherDomain));
    assert_eq!(start(r.m.check_local(r.pd, key, 0x5010, 1, false)), Err(UnknownKey));

    // Bound again, elsewhere, with a key foretold by the caller.
    let foretold = Key(key.0 & !0xff | (key.0.wrapping_add(1) & 0xff));
    let again = MwBind { rkey: foretold, addr: 0x5000, len: 8, ..bind };
    assert_eq!(r.m.bind_mw(r.pd, QP2, &again), Ok(foretold));
    assert_eq!(r.read(QP, foretold, 0x5000, 8), Ok((0x10000, 8)));
    assert_eq!(r.m.invalidate_local(r.pd, QP, foretold), Err(NotInvalidatable));
    assert_eq!(r.m.invalidate_remote(r.pd, QP, foretold), Err(NotInvalidatable));

    // Length 0 unbinds, whatever the rest says.
    assert_eq!(r.m.dereg_mr(r.mr.id), Err(Error::Busy));
    let off = MwBind { rkey: Key(0), lkey: Key(3), addr: u64::MAX, len: 0, ..bind };
    let key = r.m.bind_mw(r.pd, QP, &off).unwrap();
    assert_eq!(r.read(QP, foretold, 0x5000, 8), Err(UnknownKey));
    assert_eq!(r.read(QP, key, 0x5000, 8), Err(Unbound));
    assert_eq!(r.m.dereg_mr(r.mr.id), Ok(()));
}

#[test]
fn a_type_2_window_serves_one_queue_pair() {
    let mut r = room();
    let mw = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
    let key = Key(mw.rkey.0 ^ 0x55);
    let bind = MwBind { rkey: key, ..r.bind(&mw) };
    assert!(!r.m.has_windows(QP));
    assert_eq!(r.m.invalidate_local(r.pd, QP, mw.rkey), Err(Unbound));
    assert_eq!(r.m.bind_mw(r.pd, QP, &bind), Ok(key));
    assert!(r.m.has_windows(QP) && !r.m.has_windows(QP2));
    assert_eq!(r.read(QP, key, 0x5010, 32), Ok((0x10010, 32)));
    assert_eq!(start(r.m.check_remote(r.pd, QP, key, 0x5010, 8, Atomic)), Ok((0x10010, 8)));
    assert_eq!(r.read(QP2, key, 0x5010, 32), Err(OtherQp));
    assert_eq!(r.read(QP, mw.rkey, 0x5010, 32), Err(UnknownKey));
    assert_eq!(r.m.bind_mw(r.pd, QP, &bind), Err(AlreadyBound));

    for invalidate in [Memory::invalidate_local, Memory::invalidate_remote] {
        assert_eq!(invalidate(&mut r.m, r.pd, QP2, key), Err(OtherQp));
        assert_eq!(invalidate(&mut r.m, r.other, QP, key), Err(OtherDomain));
        assert_eq!(invalidate(&mut r.m, r.pd, QP, mw.rkey), Err(UnknownKey));
        assert_eq!(invalidate(&mut r.m, r.pd, QP, r.mr.rkey), Err(NotInvalidatable));
        assert_eq!(r.read(QP, key, 0x5010, 32), Ok((0x10010, 32)), "a refused one changes nothing");
        assert_eq!(r.m.dereg_mr(r.mr.id), Err(Error::Busy));
        assert_eq!(invalidate(&mut r.m, r.pd, QP, key), Ok(()));
        assert_eq!(r.read(QP, key, 0x5010, 32), Err(Unbound));
        assert_eq!(invalidate(&mut r.m, r.pd, QP, key), Err(Unbound));
        assert!(!r.m.has_windows(QP));
        assert_eq!(r.m.bind_mw(r.pd, QP, &bind), Ok(key));
    }

    // A queue pair that ends takes its own windows off, and only them.
    let second = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
    let third = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
    for (qp, mw) in [(QP, &second), (QP2, &third)] {
        let bind = r.bind(mw);
        r.m.bind_mw(r.pd, qp, &bind).unwrap();
    }
    r.m.release_qp(QP);
    assert_eq!(r.read(QP, key, 0x5010, 32), Err(Unbound));
    assert_eq!(r.read(QP, second.rkey, 0x5010, 32), Err(Unbound));
    assert_eq!(r.read(QP2, third.rkey, 0x5010, 32), Ok((0x10010, 32)));
    assert_eq!(r.m.dereg_mr(r.mr.id), Err(Error::Busy));
    assert_eq!(r.m.dealloc_mw(third.id), Ok(()));
    assert!(!r.m.has_windows(QP2));
    assert_eq!(r.read(QP2, third.rkey, 0x5010, 32), Err(UnknownKey));
    assert_eq!(r.m.dealloc_mw(third.id), Err(Error::NoSuchObject));
    assert_eq!(r.m.dereg_mr(r.mr.id), Ok(()));
}

#[test]
fn only_the_low_byte_of_a_type_2_key_is_the_program_s() {
    for foreign in [0u32, 0x5a, 0x100, 0xffff_ff5a] {
        let mut r = room();
        let mw = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
        let bind = MwBind { rkey: Key((mw.rkey.0 ^ foreign) & !0xff | 0x5a), ..r.bind(&mw) };
        let key = r.m.bind_mw(r.pd, QP, &bind).unwrap();
        assert_eq!(key, Key(mw.rkey.0 & !0xff | 0x5a), "{foreign:#x}");
        assert_eq!(r.read(QP, key, 0x5010, 32), Ok((0x10010, 32)));
        if bind.rkey != key {
            assert_eq!(r.read(QP, bind.rkey, 0x5010, 32), Err(UnknownKey));
        }
    }
}

#[test]
fn binds_that_are_refused() {
    let r = room();
    let zero = Access::ZERO_BASED | Access::REMOTE_READ;
    type Change<'a> = Box<dyn Fn(MwBind) -> MwBind + 'a>;
    let table: Vec<(MwType, Change<'_>, Option<AccessFault>)> = vec![
        (MwType::One, Box::new(|b| b), None),
        (MwType::Two, Box::new(|b| b), None),
        (MwType::Two, Box::new(|b| MwBind { len: 0, ..b }), Some(EmptyBind)),
        (MwType::Two, Box::new(|b| MwBind { rkey: Key(b.rkey.0 ^ 0x100), ..b }), None),
        (MwType::Two, Box::new(|b| MwBind { rkey: Key(0), ..b }), None),
        (MwType::One, Box::new(|b| MwBind { rkey: Key(b.rkey.0 ^ 0x100), ..b }), Some(ForeignKey)),
        (MwType::Two, Box::new(|b| MwBind { lkey: Key(77), ..b }), Some(UnknownKey)),
        (MwType::Two, Box::new(|b| MwBind { lkey: b.rkey, ..b }), Some(UnknownKey)),
        (MwType::One, Box::new(|b| MwBind { lkey: r.foreign.lkey, ..b }), Some(OtherDomain)),
        (
            MwType::One,
            Box::new(|b| MwBind { lkey: r.unbindable.lkey, addr: 0x30000, ..b }),
            Some(NotBindable),
        ),
        (
            MwType::One,
            Box::new(|b| MwBind { lkey: r.read_only.lkey, addr: 0x20000, ..b }),
            Some(BadWindowRights),
        ),
        (
            MwType::One,
            Box::new(|b| MwBind {
                lkey: r.read_only.lkey,
                addr: 0x20000,
                access: Access::REMOTE_ATOMIC,
                ..b
            }),
            Some(BadWindowRights),
        ),
        (
            MwType::One,
            Box::new(|b| MwBind { lkey: r.read_only.lkey, addr: 0x20000, access: Access::REMOTE_READ, ..b }),
            None,
        ),
        (MwType::Two, Box::new(|b| MwBind { access: Access::LOCAL_WRITE, ..b }), Some(BadWindowRights)),
        (MwType::One, Box::new(move |b| MwBind { access: zero, ..b }), Some(BadWindowRights)),
        (MwType::Two, Box::new(move |b| MwBind { access: zero, ..b }), None),
        (MwType::Two, Box::new(|b| MwBind { addr: 0x4fff, ..b }), Some(OutOfBounds)),
        (MwType::Two, Box::new(|b| MwBind { addr: 0x5000, len: 101, ..b }), Some(OutOfBounds)),
        (MwType::Two, Box::new(|b| MwBind { addr: u64::MAX, len: 2, ..b }), Some(OutOfBounds)),
        (MwType::Two, Box::new(|b| MwBind { addr: 0x5001, len: u64::MAX, ..b }), Some(OutOfBounds)),
        (MwType::Two, Box::new(|b| MwBind { addr: 0x5000, len: 100, ..b }), None),
    ];
    for (i, (kind, change, fault)) in table.iter().enumerate() {
        let mut fresh = room();
        let mw = fresh.m.alloc_mw(fresh.pd, *kind).unwrap();
        let bind = change(fresh.bind(&mw));
        let got = fresh.m.bind_mw(fresh.pd, QP, &bind);
        assert_eq!(got.err(), *fault, "row {i}");
        // A refused bind holds nothing.
        if fault.is_some() {
            assert_eq!(fresh.read(QP, mw.rkey, 0x5010, 1), Err(Unbound));
            assert!(!fresh.m.has_windows(QP));
            for mr in [&fresh.mr, &fresh.read_only, &fresh.unbindable, &fresh.foreign] {
                assert_eq!(fresh.m.dereg_mr(mr.id), Ok(()), "row {i}");
            }
        }
    }
}

#[test]
fn other_domains_and_dead_windows_do_not_bind() {
    let mut r = room();
    let mw = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
    let bind = r.bind(&mw);
    assert_eq!(r.m.bind_mw(r.other, QP, &bind), Err(OtherDomain));
    let theirs = r.m.alloc_mw(r.other, MwType::Two).unwrap();
    let cross = r.bind(&theirs);
    assert_eq!(r.m.bind_mw(r.other, QP, &cross), Err(OtherDomain));
    r.m.dealloc_mw(mw.id).unwrap();
    assert_eq!(r.m.bind_mw(r.pd, QP, &bind), Err(UnknownKey));
}

#[test]
fn a_zero_based_window_counts_from_its_first_byte() {
    let mut r = room();
    let mw = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
    let bind = MwBind { access: REMOTE | Access::ZERO_BASED, ..r.bind(&mw) };
    let key = r.m.bind_mw(r.pd, QP, &bind).unwrap();
    assert_eq!(r.read(QP, key, 0, 32), Ok((0x10010, 32)));
    assert_eq!(r.read(QP, key, 1, 32), Err(OutOfBounds));
    assert_eq!(r.read(QP, key, 0x5010, 1), Err(OutOfBounds));
}

#[test]
fn a_region_with_a_window_does_not_change() {
    let mut r = room();
    let mw = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
    let bind = r.bind(&mw);
    r.m.bind_mw(r.pd, QP, &bind).unwrap();
    let change = Rereg { access: Some(ALL), ..Rereg::default() };
    // SAFETY: nothing accesses the addresses.
    assert_eq!(unsafe { r.m.rereg_mr(r.mr.id, &change) }, Err(Error::Busy));
    r.m.release_qp(QP);
    // SAFETY: as above.
    assert_eq!(unsafe { r.m.rereg_mr(r.mr.id, &change) }, Ok(r.mr));
}

/// Whoever asked to hear of it is told of each window that is not bound any more, by the key that it had.
#[test]
fn ends_of_windows_are_noted_for_who_asked() {
    let mut r = room();
    let one = r.m.alloc_mw(r.pd, MwType::One).unwrap();
    r.m.bind_mw(r.pd, QP, &MwBind { rkey: Key(0), access: Access::REMOTE_READ, ..r.bind(&one) }).unwrap();
    let again = MwBind { rkey: Key(0), access: Access::REMOTE_READ, ..r.bind(&one) };
    let first = r.m.bind_mw(r.pd, QP, &again).unwrap();
    assert!(!r.m.has_ended_windows() && r.m.take_ended_windows().is_empty(), "nobody had asked");
    r.m.watch_windows();
    assert_eq!(r.m.foretell(&again), Some((MwType::One, Key(first.0 & !0xff | (first.0 + 1) & 0xff))));
    let second = r.m.bind_mw(r.pd, QP, &again).unwrap();
    assert!(r.m.is_bound(second) && !r.m.is_bound(first));
    let two = r.m.alloc_mw(r.pd, MwType::Two).unwrap();
    let bind = MwBind { rkey: Key(7), ..r.bind(&two) };
    let (kind, key) = r.m.foretell(&bind).unwrap();
    for _ in 0..2 {
        assert_eq!((r.m.bind_mw(r.pd, QP, &bind), kind), (Ok(key), MwType::Two));
        r.m.invalidate_remote(r.pd, QP, key).unwrap();
    }
    r.m.bind_mw(r.pd, QP, &bind).unwrap();
    r.m.release_qp(QP);
    r.m.dealloc_mw(one.id).unwrap();
    // One that was not bound has no end.
    r.m.dealloc_mw(two.id).unwrap();
    let wanted = [(first.0, 1), (second.0, 1), (key.0, 3)];
    assert_eq!(r.m.take_ended_windows(), wanted.into_iter().collect());
    assert!(!r.m.has_ended_windows());
    assert_eq!(r.m.foretell(&bind), None);
}
