//! Domains, regions, and the two checks.

use super::*;
use crate::error::Error;
use crate::limits;

#[test]
fn a_domain_lives_until_its_last_user_is_gone() {
    let mut m = Memory::new(1);
    let pd = m.alloc_pd().unwrap();
    m.hold_pd(pd).unwrap();
    m.hold_pd(pd).unwrap();
    assert_eq!(m.dealloc_pd(pd), Err(Error::Busy));
    m.release_pd(pd);
    assert_eq!(m.dealloc_pd(pd), Err(Error::Busy));
    m.release_pd(pd);
    let mr = register(&mut m, pd, 4096, 16, 0, ALL).unwrap();
    assert_eq!(m.dealloc_pd(pd), Err(Error::Busy));
    m.dereg_mr(mr.id).unwrap();
    let mw = m.alloc_mw(pd, MwType::One).unwrap();
    assert_eq!(m.dealloc_pd(pd), Err(Error::Busy));
    m.dealloc_mw(mw.id).unwrap();
    assert_eq!(m.counts(), [1, 0, 0]);
    assert_eq!(m.dealloc_pd(pd), Ok(()));
    assert_eq!(m.dealloc_pd(pd), Err(Error::NoSuchObject));
    assert_eq!(m.hold_pd(pd), Err(Error::NoSuchObject));
    assert_eq!(register(&mut m, pd, 4096, 16, 0, ALL), Err(Error::NoSuchObject));
    assert_eq!(m.alloc_mw(pd, MwType::Two), Err(Error::NoSuchObject));
}

#[test]
fn a_registration_is_refused_or_not() {
    let max = limits::MAX_MR_SIZE;
    let iova = Err(Error::Invalid("iova of a region"));
    let addr = Err(Error::Invalid("address of a region"));
    let long = Err(Error::Invalid("length of a region: above the limit"));
    let zero = ALL | Access::ZERO_BASED;
    for (a, len, v, access, expected) in [
        (4096, 1, 4096, ALL, Ok(())),
        (1, 1, 1, ALL, Ok(())),
        (4096, 0, 4096, ALL, Ok(())),
        (0, 0, 0, ALL, Ok(())),
        (0, 1, 4096, ALL, addr),
        (4096, max, 0, ALL, Ok(())),
        (4096, max + 1, 0, ALL, long),
        (4096, u64::MAX, 0, Access::ON_DEMAND, long),
        (u64::MAX - 15, 15, 0, ALL, Ok(())),
        (u64::MAX - 15, 16, 0, ALL, addr),
        (u64::MAX, 2, 0, ALL, addr),
        (4096, 16, u64::MAX - 15, ALL, Ok(())),
        (4096, 17, u64::MAX - 15, ALL, iova),
        (4096, 17, u64::MAX - 15, zero, Ok(())),
        (4096, 1, 0, Access::REMOTE_WRITE, Err(Error::BadAccess)),
        (4096, 1, 0, Access::REMOTE_ATOMIC | Access::REMOTE_READ, Err(Error::BadAccess)),
        (4096, 1, 0, Access::FLUSH_GLOBAL, Err(Error::Unsupported("remote flush"))),
        (4096, 1, 0, Access::from_bits_retain(1 << 12), Err(Error::BadAccess)),
        (4096, 1, 0, Access::from_bits_retain(1 << 27), Ok(())),
        (4096, 1, 0, Access::ON_DEMAND | Access::HUGETLB | Access::RELAXED_ORDERING, Ok(())),
    ] {
        let mut m = Memory::new(1);
        let pd = m.alloc_pd().unwrap();
        let made = register(&mut m, pd, a, len, v, access);
        assert_eq!(made.map(|_| ()), expected, "{a:#x} {len:#x} {v:#x} {access:?}");
        if let Ok(mr) = made {
            assert_eq!(mr.lkey, mr.rkey);
            m.dereg_mr(mr.id).unwrap();
            assert_eq!(m.dereg_mr(mr.id), Err(Error::NoSuchObject));
        }
        // Nothing is left behind, whichever way it ended.
        assert_eq!(m.dealloc_pd(pd), Ok(()));
    }
}

#[test]
fn local_accesses() {
    let mut m = Memory::new(1);
    let (pd, other) = (m.alloc_pd().unwrap(), m.alloc_pd().unwrap());
    let rw = register(&mut m, pd, 0x10000, 100, 0x5000, Access::LOCAL_WRITE).unwrap().lkey;
    let ro = register(&mut m, pd, 0x20000, 100, 0x20000, Access::empty()).unwrap().lkey;
    let zb = register(&mut m, pd, 0x30000, 100, 0x30000, Access::ZERO_BASED).unwrap().lkey;
    let top = register(&mut m, pd, 0x40000, 100, u64::MAX - 99, Access::empty()).unwrap().lkey;
    let mw = m.alloc_mw(pd, MwType::One).unwrap().rkey;
    use AccessFault::*;
    for (d, key, addr, len, write, expected) in [
        (pd, rw, 0x5000, 100, true, Ok((0x10000, 100))),
        (pd, rw, 0x5063, 1, true, Ok((0x10063, 1))),
        (pd, rw, 0x5064, 1, true, Err(OutOfBounds)),
        (pd, rw, 0x5000, 101, true, Err(OutOfBounds)),
        (pd, rw, 0x4fff, 1, true, Err(OutOfBounds)),
        (pd, rw, 0x4fff, u32::MAX, true, Err(OutOfBounds)),
        (pd, rw, 0x10000, 1, true, Err(OutOfBounds)),
        (pd, rw, u64::MAX, u32::MAX, false, Err(OutOfBounds)),
        (other, rw, 0x5000, 1, false, Err(OtherDomain)),
        (pd, Key(rw.0 ^ 1), 0x5000, 1, false, Err(UnknownKey)),
        (pd, Key(rw.0 ^ 0x100), 0x5000, 1, false, Err(UnknownKey)),
        (pd, Key(0), 0x5000, 1, false, Err(UnknownKey)),
        (pd, mw, 0x5000, 1, false, Err(UnknownKey)),
        (pd, ro, 0x20000, 100, false, Ok((0x20000, 100))),
        (pd, ro, 0x20000, 100, true, Err(MissingRight)),
        (pd, zb, 0, 100, false, Ok((0x30000, 100))),
        (pd, zb, 1, 100, false, Err(OutOfBounds)),
        (pd, zb, 0x30000, 1, false, Err(OutOfBounds)),
        (pd, top, u64::MAX, 1, false, Ok((0x40063, 1))),
        (pd, top, u64::MAX - 99, 100, false, Ok((0x40000, 100))),
        (pd, top, u64::MAX, 2, false, Err(OutOfBounds)),
        (pd, top, 0, 1, false, Err(OutOfBounds)),
    ] {
        assert_eq!(start(m.check_local(d, key, addr, len, write)), expected, "{key:?} {addr:#x} {len}");
    }
    // No bytes: nothing is looked at.
    assert!(m.check_local(other, Key(7), u64::MAX, 0, true).unwrap().is_empty());
}

#[test]
fn remote_accesses() {
    let mut m = Memory::new(1);
    let (pd, other) = (m.alloc_pd().unwrap(), m.alloc_pd().unwrap());
    let all = register(&mut m, pd, 0x10000, 100, 0x5000, ALL).unwrap().rkey;
    let lo = register(&mut m, pd, 0x20000, 100, 0x20000, Access::LOCAL_WRITE).unwrap().rkey;
    let r = register(&mut m, pd, 0x30000, 100, 0x30000, Access::REMOTE_READ).unwrap().rkey;
    let odd = register(&mut m, pd, 0x40001, 100, 0x40000, ALL).unwrap().rkey;
    use AccessFault::*;
    use RemoteRight::*;
    for (d, key, va, len, right, expected) in [
        (pd, all, 0x5000, 100, Read, Ok((0x10000, 100))),
        (pd, all, 0x5000, 100, Write, Ok((0x10000, 100))),
        (pd, all, 0x5058, 8, Atomic, Ok((0x10058, 8))),
        (pd, all, 0x5060, 8, Atomic, Err(OutOfBounds)),
        (pd, all, 0x5004, 8, Atomic, Err(Misaligned)),
        (pd, all, 0x5000, 4, Atomic, Err(Misaligned)),
        (pd, all, 0x5000, 0, Atomic, Err(Misaligned)),
        (pd, Key(3), 0x5000, 0, Atomic, Err(UnknownKey)),
        (pd, odd, 0x40000, 8, Atomic, Err(Misaligned)),
        (pd, odd, 0x40007, 8, Atomic, Err(Misaligned)),
        (pd, odd, 0x40000, 8, Write, Ok((0x40001, 8))),
        (pd, all, 0x5001, 100, Write, Err(OutOfBounds)),
        (pd, all, u64::MAX - 3, 8, Write, Err(OutOfBounds)),
        (other, all, 0x5000, 1, Write, Err(OtherDomain)),
        (pd, Key(all.0 ^ 0x80), 0x5000, 1, Write, Err(UnknownKey)),
        (pd, lo, 0x20000, 1, Read, Err(MissingRight)),
        (pd, lo, 0x20000, 1, Write, Err(MissingRight)),
        (pd, lo, 0x20000, 8, Atomic, Err(MissingRight)),
        (pd, r, 0x30000, 1, Read, Ok((0x30000, 1))),
        (pd, r, 0x30000, 1, Write, Err(MissingRight)),
        (pd, r, 0x30000, 8, Atomic, Err(MissingRight)),
    ] {
        let got = start(m.check_remote(d, QP, key, va, len, right));
        assert_eq!(got, expected, "{key:?} {va:#x} {len} {right:?}");
    }
    //= IBTA C9-88
    for right in [Read, Write] {
        assert!(m.check_remote(other, QP, Key(7), u64::MAX, 0, right).unwrap().is_empty());
    }
}

fn rereg(m: &mut Memory, mr: &MrInfo, change: Rereg) -> Result<MrInfo, Error> {
    // SAFETY: nothing accesses the addresses.
    unsafe { m.rereg_mr(mr.id, &change) }
}

#[test]
fn a_region_changes_in_place() {
    let mut m = Memory::new(1);
    let (pd, other) = (m.alloc_pd().unwrap(), m.alloc_pd().unwrap());
    let mr = register(&mut m, pd, 0x10000, 100, 0x10000, Access::LOCAL_WRITE).unwrap();
    let none = Rereg::default();
    let access = |access| Rereg { access: Some(access), ..none };
    let translation = |t| Rereg { translation: Some(t), ..none };

    for (change, expected) in [
        (none, Error::Invalid("re-registration that changes nothing")),
        (access(Access::REMOTE_WRITE), Error::BadAccess),
        (translation((0x10000, 0, 0x10000)), Error::Invalid("re-registration of no bytes")),
        (translation((0, 100, 0)), Error::Invalid("address of a region")),
        (translation((u64::MAX, 100, 0)), Error::Invalid("address of a region")),
        (translation((0x10000, 100, u64::MAX)), Error::Invalid("iova of a region")),
        (Rereg { pd: Some(PdId { index: 9, generation: 9 }), ..access(ALL) }, Error::NoSuchObject),
    ] {
        assert_eq!(rereg(&mut m, &mr, change), Err(expected));
        // As before.
        assert_eq!(start(m.check_local(pd, mr.lkey, 0x10000, 100, true)), Ok((0x10000, 100)));
        let right = RemoteRight::Read;
        let remote = m.check_remote(pd, QP, mr.rkey, 0x10000, 1, right).map(|_| ());
        assert_eq!(remote, Err(AccessFault::MissingRight));
    }

    assert_eq!(rereg(&mut m, &mr, access(ALL)), Ok(mr));
    assert!(m.check_remote(pd, QP, mr.rkey, 0x10000, 100, RemoteRight::Read).is_ok());

    assert_eq!(rereg(&mut m, &mr, translation((0x20000, 50, 0x7000))), Ok(mr));
    assert_eq!(start(m.check_local(pd, mr.lkey, 0x7000, 50, true)), Ok((0x20000, 50)));
    assert!(m.check_local(pd, mr.lkey, 0x7000, 51, true).is_err());

    assert_eq!(rereg(&mut m, &mr, Rereg { pd: Some(other), ..none }), Ok(mr));
    assert!(m.check_local(pd, mr.lkey, 0x7000, 50, true).is_err());
    assert_eq!(start(m.check_local(other, mr.lkey, 0x7000, 50, true)), Ok((0x20000, 50)));
    assert_eq!(m.dealloc_pd(other), Err(Error::Busy));
    assert_eq!(m.dealloc_pd(pd), Ok(()));

    assert_eq!(rereg(&mut m, &mr, access(ALL | Access::ZERO_BASED)), Ok(mr));
    assert_eq!(start(m.check_local(other, mr.lkey, 1, 49, true)), Ok((0x20001, 49)));
    // Back to virtual addresses: the region's own, as nothing else is known.
    assert_eq!(rereg(&mut m, &mr, access(ALL)), Ok(mr));
    assert_eq!(start(m.check_local(other, mr.lkey, 0x20001, 49, true)), Ok((0x20001, 49)));

    m.dereg_mr(mr.id).unwrap();
    assert_eq!(rereg(&mut m, &mr, access(ALL)), Err(Error::NoSuchObject));
    assert_eq!(m.dealloc_pd(other), Ok(()));
}

#[test]
fn a_million_registrations_leave_nothing_behind() {
    let mut m = Memory::new(5);
    let pd = m.alloc_pd().unwrap();
    let rounds = if cfg!(miri) { 300 } else { 1_000_000 };
    let keep: Vec<MrInfo> = (0..100).map(|_| register(&mut m, pd, 4096, 64, 0, ALL).unwrap()).collect();
    let (lines, cells) = (m.lines.capacity(), m.keys.cells());
    let mut last = Key(0);
    for _ in 0..rounds {
        let mr = register(&mut m, pd, 4096, 64, 0, ALL).unwrap();
        assert_ne!(mr.lkey, last);
        m.dereg_mr(mr.id).unwrap();
        last = mr.lkey;
        assert!(m.check_local(pd, last, 0, 1, false).is_err());
    }
    assert_eq!((m.lines.capacity(), m.keys.cells()), (lines, cells));
    assert_eq!(m.lines.len(), 101);
    for mr in keep {
        assert!(m.check_local(pd, mr.lkey, 0, 64, true).is_ok());
        m.dereg_mr(mr.id).unwrap();
    }
    assert_eq!(m.counts(), [1, 0, 0]);
}

#[test]
fn tables_end_at_their_limits() {
    if cfg!(miri) {
        return;
    }
    let mut m = Memory::new(5);
    let pd = m.alloc_pd().unwrap();
    let mut last = None;
    for _ in 0..limits::MAX_MR {
        last = Some(register(&mut m, pd, 4096, 64, 0, ALL).unwrap());
    }
    let lines = m.lines.len();
    for _ in 0..3 {
        assert_eq!(register(&mut m, pd, 4096, 64, 0, ALL), Err(Error::TableFull));
    }
    assert!(m.lines.len() <= lines + 1, "a refused registration gives its line back");
    m.dereg_mr(last.unwrap().id).unwrap();
    assert!(register(&mut m, pd, 4096, 64, 0, ALL).is_ok());
}
