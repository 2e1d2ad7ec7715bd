//! Random lives of domains, regions and windows, against a model that does everything the slow way.

use super::*;
use crate::error::Error;
use crate::ids::{MrId, MwId};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Numbers that sit on the edges of the address space and of each other.
fn edge() -> impl Strategy<Value = u64> {
    let base =
        prop_oneof![Just(0), Just(1 << 12), Just(1 << 32), Just(1 << 63), Just(u64::MAX), any::<u64>()];
    (base, -40i64..40).prop_map(|(base, near)| base.wrapping_add_signed(near))
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..64, 1 => edge(), 1 => Just(crate::limits::MAX_MR_SIZE)]
}

fn rights() -> impl Strategy<Value = Access> {
    prop_oneof![
        4 => Just(ALL),
        2 => Just(ALL | Access::ZERO_BASED),
        4 => (0u32..64).prop_map(Access::from_bits_retain),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Register { pd: bool, addr: u64, len: u64, iova: u64, access: Access },
    Change { mr: usize, pd: Option<bool>, translation: Option<(u64, u64, u64)>, access: Option<Access> },
    Deregister { mr: usize },
    Allocate { pd: bool, two: bool },
    Free { mw: usize },
    Bind { pd: bool, qp: u8, mw: usize, mr: usize, low: u8, skew: i64, len: u64, access: Access },
    Invalidate { pd: bool, qp: u8, key: usize, remote: bool },
    EndQp { qp: u8 },
    Access { pd: bool, qp: u8, key: usize, skew: i64, far: Option<u64>, len: u32, how: u8 },
}

fn op() -> impl Strategy<Value = Op> {
    let any_mr = any::<usize>();
    let skew = -12i64..80;
    prop_oneof![
        3 => (any::<bool>(), edge(), length(), edge(), rights())
            .prop_map(|(pd, addr, len, iova, access)| Op::Register { pd, addr, len, iova, access }),
        1 => (
            any_mr,
            prop::option::of(any::<bool>()),
            prop::option::of((edge(), length(), edge())),
            prop::option::of(rights())
        )
            .prop_map(|(mr, pd, translation, access)| Op::Change { mr, pd, translation, access }),
        1 => any::<usize>().prop_map(|mr| Op::Deregister { mr }),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(pd, two)| Op::Allocate { pd, two }),
        1 => any::<usize>().prop_map(|mw| Op::Free { mw }),
        4 => (
            any::<bool>(), 0u8..3, any::<usize>(), any::<usize>(), any::<u8>(),
            skew.clone(), length(), rights()
        )
            .prop_map(|(pd, qp, mw, mr, low, skew, len, access)| Op::Bind {
                pd, qp, mw, mr, low, skew, len,
                access: access & Access::OF_WINDOW,
            }),
        2 => (any::<bool>(), 0u8..3, any::<usize>(), any::<bool>())
            .prop_map(|(pd, qp, key, remote)| Op::Invalidate { pd, qp, key, remote }),
        1 => (0u8..3).prop_map(|qp| Op::EndQp { qp }),
        12 => (
            any::<bool>(),
            0u8..3,
            any::<usize>(),
            skew,
            prop::option::weighted(0.1, edge()),
            prop_oneof![4 => 0u32..70, 4 => Just(8), 1 => any::<u32>()],
            0u8..5
        )
            .prop_map(|(pd, qp, key, skew, far, len, how)| Op::Access { pd, qp, key, skew, far, len, how }),
    ]
}

#[derive(Clone, Debug)]
struct Range {
    base: u128,
    len: u128,
    host: u128,
    access: Access,
}

impl Range {
    fn find(&self, va: u64, len: u64) -> Result<u128, AccessFault> {
        let (from, to) = (u128::from(va), u128::from(va) + u128::from(len));
        if from >= self.base && to <= self.base + self.len {
            Ok(self.host + (from - self.base))
        } else {
            Err(AccessFault::OutOfBounds)
        }
    }
}

#[derive(Clone, Debug)]
struct Mr {
    id: MrId,
    pd: PdId,
    range: Range,
}

#[derive(Clone, Debug)]
struct Mw {
    id: MwId,
    pd: PdId,
    two: bool,
    /// Range, region, queue pair.
    bound: Option<(Range, MrId, QpNumber)>,
}

#[derive(Default)]
struct Model {
    mrs: BTreeMap<u32, Mr>,
    mws: BTreeMap<u32, Mw>,
    dead: Vec<u32>,
}

fn nth<V>(map: &BTreeMap<u32, V>, n: usize) -> Option<(u32, &V)> {
    map.iter().nth(n % map.len().max(1)).map(|(&key, value)| (key, value))
}

fn range(addr: u64, len: u64, iova: u64, access: Access) -> Result<Range, Error> {
    let base = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    let top = u128::from(u64::MAX) + 1;
    let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::BadAccess);
    }
    if len > crate::limits::MAX_MR_SIZE {
        return Err(Error::Invalid("length of a region: above the limit"));
    }
    if (addr == 0 && len > 0) || u128::from(addr) + u128::from(len) >= top {
        return Err(Error::Invalid("address of a region"));
    }
    if u128::from(base) + u128::from(len) > top {
        return Err(Error::Invalid("iova of a region"));
    }
    Ok(Range { base: base.into(), len: len.into(), host: addr.into(), access })
}

impl Model {
    fn keys(&self) -> Vec<u32> {
        self.mrs.keys().chain(self.mws.keys()).chain(&self.dead).copied().collect()
    }

    fn windows_of(&self, mr: MrId) -> usize {
        self.mws.values().filter(|mw| mw.bound.as_ref().is_some_and(|b| b.1 == mr)).count()
    }

    fn bind(&self, pd: PdId, mw: &Mw, old: u32, bind: &MwBind) -> Result<Option<Range>, AccessFault> {
        use AccessFault::*;
        if mw.pd != pd {
            return Err(OtherDomain);
        }
        if !mw.two && bind.rkey.0 >> 8 != old >> 8 {
            return Err(ForeignKey);
        }
        if mw.two && mw.bound.is_some() {
            return Err(AlreadyBound);
        }
        if bind.len == 0 {
            return if mw.two { Err(EmptyBind) } else { Ok(None) };
        }
        let mr = self.mrs.get(&bind.lkey.0).ok_or(UnknownKey)?;
        if mr.pd != pd {
            return Err(OtherDomain);
        }
        if !mr.range.access.contains(Access::MW_BIND) {
            return Err(NotBindable);
        }
        let zero = bind.access.contains(Access::ZERO_BASED);
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if (zero && !mw.two) || (writes && !mr.range.access.contains(Access::LOCAL_WRITE)) {
            return Err(BadWindowRights);
        }
        let host = mr.range.find(bind.addr, bind.len)?;
        let base = if zero { 0 } else { bind.addr.into() };
        Ok(Some(Range { base, len: bind.len.into(), host, access: bind.access }))
    }

    fn local(&self, pd: PdId, key: u32, va: u64, len: u32, write: bool) -> Result<u128, AccessFault> {
        let mr = self.mrs.get(&key).ok_or(AccessFault::UnknownKey)?;
        if mr.pd != pd {
            return Err(AccessFault::OtherDomain);
        }
        if write && !mr.range.access.contains(Access::LOCAL_WRITE) {
            return Err(AccessFault::MissingRight);
        }
        mr.range.find(va, len.into())
    }

    fn remote(
        &self,
        pd: PdId,
        qp: QpNumber,
        key: u32,
        va: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<u128, AccessFault> {
        let (owner, range, only) = match (self.mrs.get(&key), self.mws.get(&key)) {
            (Some(mr), _) => (mr.pd, Some(&mr.range), None),
            (_, Some(mw)) => {
                let bound = mw.bound.as_ref();
                (mw.pd, bound.map(|b| &b.0), bound.map(|b| b.2).filter(|_| mw.two))
            }
            _ => return Err(AccessFault::UnknownKey),
        };
        if owner != pd {
            return Err(AccessFault::OtherDomain);
        }
        let range = range.ok_or(AccessFault::Unbound)?;
        if only.is_some_and(|only| only != qp) {
            return Err(AccessFault::OtherQp);
        }
        if !range.access.contains(right.access()) {
            return Err(AccessFault::MissingRight);
        }
        let host = range.find(va, len.into())?;
        if right == RemoteRight::Atomic && (len != 8 || !va.is_multiple_of(8) || host % 8 != 0) {
            return Err(AccessFault::Misaligned);
        }
        Ok(host)
    }
}

struct Pair {
    real: Memory,
    model: Model,
    pds: [PdId; 2],
}

impl Pair {
    fn step(&mut self, op: &Op) {
        match *op {
            Op::Register { pd, addr, len, iova, access } => {
                let pd = self.pds[usize::from(pd)];
                let real = register(&mut self.real, pd, addr, len, iova, access);
                match range(addr, len, iova, access) {
                    Ok(range) => {
                        let info = real.unwrap();
                        self.model.mrs.insert(info.lkey.0, Mr { id: info.id, pd, range });
                    }
                    Err(error) => assert_eq!(real, Err(error)),
                }
            }
            Op::Change { mr, pd, translation, access } => self.change(mr, pd, translation, access),
            Op::Deregister { mr } => {
                let Some((key, mr)) = nth(&self.model.mrs, mr) else { return };
                let expected = if self.model.windows_of(mr.id) > 0 { Err(Error::Busy) } else { Ok(()) };
                assert_eq!(self.real.dereg_mr(mr.id), expected);
                if expected.is_ok() {
                    self.model.mrs.remove(&key);
                    self.model.dead.push(key);
                }
            }
            Op::Allocate { pd, two } => {
                let pd = self.pds[usize::from(pd)];
                let kind = if two { MwType::Two } else { MwType::One };
                let mw = self.real.alloc_mw(pd, kind).unwrap();
                self.model.mws.insert(mw.rkey.0, Mw { id: mw.id, pd, two, bound: None });
            }
            Op::Free { mw } => {
                let Some((key, mw)) = nth(&self.model.mws, mw) else { return };
                assert_eq!(self.real.dealloc_mw(mw.id), Ok(()));
                self.model.mws.remove(&key);
                self.model.dead.push(key);
            }
            Op::Bind { .. } => self.bind(op),
            Op::Invalidate { pd, qp, key, remote } => self.invalidate(pd, qp, key, remote),
            Op::EndQp { qp } => {
                let qp = QpNumber::new(qp.into());
                let of_qp = |mw: &Mw| mw.two && mw.bound.as_ref().is_some_and(|b| b.2 == qp);
                assert_eq!(self.real.has_windows(qp), self.model.mws.values().any(of_qp));
                self.real.release_qp(qp);
                for mw in self.model.mws.values_mut().filter(|mw| of_qp(mw)) {
                    mw.bound = None;
                }
            }
            Op::Access { .. } => self.access(op),
        }
    }

    fn change(
        &mut self,
        mr: usize,
        pd: Option<bool>,
        translation: Option<(u64, u64, u64)>,
        access: Option<Access>,
    ) {
        let Some((key, mr)) = nth(&self.model.mrs, mr) else { return };
        let (id, mut new) = (mr.id, mr.clone());
        let change = Rereg { pd: pd.map(|pd| self.pds[usize::from(pd)]), translation, access };
        // SAFETY: nothing accesses the addresses.
        let real = unsafe { self.real.rereg_mr(id, &change) }.map(|_| ());
        let old = &new.range;
        let zero = old.access.contains(Access::ZERO_BASED);
        let kept = (old.host as u64, old.len as u64, if zero { old.host } else { old.base } as u64);
        let (addr, len, iova) = translation.unwrap_or(kept);
        let expected = if self.model.windows_of(id) > 0 {
            Err(Error::Busy)
        } else if change == Rereg::default() {
            Err(Error::Invalid("re-registration that changes nothing"))
        } else {
            range(addr, len, iova, access.unwrap_or(old.access))
        };
        if expected.is_ok() && translation.is_some() && len == 0 {
            assert_eq!(real, Err(Error::Invalid("re-registration of no bytes")));
            return;
        }
        match expected {
            Ok(range) => {
                assert_eq!(real, Ok(()));
                new.range = range;
                new.pd = change.pd.unwrap_or(new.pd);
                self.model.mrs.insert(key, new);
            }
            // Of two faults, either may be named.
            Err(Error::Invalid(_)) => assert!(matches!(real, Err(Error::Invalid(_)))),
            Err(error) if translation.is_some_and(|(_, len, _)| len == 0) => {
                assert!(real == Err(error) || real == Err(Error::Invalid("re-registration of no bytes")));
            }
            Err(error) => assert_eq!(real, Err(error)),
        }
    }

    fn bind(&mut self, op: &Op) {
        let &Op::Bind { pd, qp, mw, mr, low, skew, len, access } = op else { return };
        let Some((old, window)) = nth(&self.model.mws, mw) else { return };
        let (lkey, base, region) = match nth(&self.model.mrs, mr) {
            Some((key, mr)) => (Key(key), mr.range.base as u64, Some(mr.id)),
            None => (Key(old), 0, None),
        };
        let (pd, qp) = (self.pds[usize::from(pd)], QpNumber::new(qp.into()));
        // Now and then a stranger's key.
        let rkey = Key(if low == 255 { old ^ 0x100 } else { old & !0xff | u32::from(low) });
        let bind = MwBind { mw: window.id, rkey, lkey, addr: base.wrapping_add_signed(skew), len, access };
        let real = self.real.bind_mw(pd, qp, &bind);
        match self.model.bind(pd, window, old, &bind) {
            Ok(range) => {
                // Of type 2 only the low byte is the program's.
                let rkey = Key(old & !0xff | rkey.0 & 0xff);
                assert_eq!(real, Ok(rkey));
                let mut window = self.model.mws.remove(&old).unwrap();
                window.bound = range.zip(region).map(|(range, region)| (range, region, qp));
                self.model.mws.insert(rkey.0, window);
                if old != rkey.0 {
                    self.model.dead.push(old);
                    self.model.dead.retain(|&key| key != rkey.0);
                }
            }
            Err(fault) => assert_eq!(real, Err(fault)),
        }
    }

    fn invalidate(&mut self, pd: bool, qp: u8, key: usize, remote: bool) {
        let keys = self.model.keys();
        let Some(&key) = keys.get(key % keys.len().max(1)) else { return };
        let (pd, qp) = (self.pds[usize::from(pd)], QpNumber::new(qp.into()));
        let call = if remote { Memory::invalidate_remote } else { Memory::invalidate_local };
        let real = call(&mut self.real, pd, qp, Key(key));
        let expected = match (self.model.mrs.get(&key), self.model.mws.get_mut(&key)) {
            (Some(mr), _) if mr.pd != pd => Err(AccessFault::OtherDomain),
            (Some(_), _) => Err(AccessFault::NotInvalidatable),
            (_, Some(mw)) if mw.pd != pd => Err(AccessFault::OtherDomain),
            (_, Some(mw)) => match &mw.bound {
                None => Err(AccessFault::Unbound),
                Some(_) if !mw.two => Err(AccessFault::NotInvalidatable),
                Some(bound) if bound.2 != qp => Err(AccessFault::OtherQp),
                Some(_) => {
                    mw.bound = None;
                    Ok(())
                }
            },
            _ => Err(AccessFault::UnknownKey),
        };
        assert_eq!(real, expected);
    }

    fn access(&self, op: &Op) {
        let &Op::Access { pd, qp, key, skew, far, len, how } = op else { return };
        let keys = self.model.keys();
        let Some(&key) = keys.get(key % keys.len().max(1)) else { return };
        let (pd, qp) = (self.pds[usize::from(pd)], QpNumber::new(qp.into()));
        let bound = self.model.mws.get(&key).and_then(|mw| mw.bound.as_ref()).map(|b| &b.0);
        let range = self.model.mrs.get(&key).map(|mr| &mr.range).or(bound);
        // From before the start to past the end, or anywhere.
        let start = range.map_or(0, |range| range.base as u64);
        let va = far.unwrap_or(start.wrapping_add_signed(skew));
        let right = match how {
            0 | 1 => {
                let real = start_of(self.real.check_local(pd, Key(key), va, len, how == 1), len);
                if len > 0 {
                    assert_eq!(real, self.model.local(pd, key, va, len, how == 1));
                } else {
                    assert!(real.is_ok());
                }
                return;
            }
            2 => RemoteRight::Read,
            3 => RemoteRight::Write,
            _ => RemoteRight::Atomic,
        };
        let real = start_of(self.real.check_remote(pd, qp, Key(key), va, len, right), len);
        if len > 0 || right == RemoteRight::Atomic {
            assert_eq!(real, self.model.remote(pd, qp, key, va, len, right));
        } else {
            assert!(real.is_ok());
        }
    }

    /// Ends everything; nothing may be left.
    fn end(mut self) {
        for mw in self.model.mws.values() {
            assert_eq!(self.real.dealloc_mw(mw.id), Ok(()));
        }
        for mr in self.model.mrs.values() {
            assert_eq!(self.real.dereg_mr(mr.id), Ok(()));
        }
        for pd in self.pds {
            assert_eq!(self.real.dealloc_pd(pd), Ok(()));
        }
        assert_eq!(self.real.counts(), [0, 0, 0]);
        assert!(self.real.owned.is_empty());
        assert!((0..=u16::MAX).all(|key| self.real.keys.find(Key(u32::from(key) << 16)).is_none()));
    }
}

fn start_of(result: Result<Span, AccessFault>, len: u32) -> Result<u128, AccessFault> {
    result.map(|span| {
        assert_eq!(span.len(), len as usize);
        span.addr().into()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn agrees_with_the_model(seed: u64, ops in prop::collection::vec(op(), 1..120)) {
        let mut real = Memory::new(seed);
        let pds = [real.alloc_pd().unwrap(), real.alloc_pd().unwrap()];
        let mut pair = Pair { real, model: Model::default(), pds };
        for op in &ops {
            pair.step(op);
        }
        pair.end();
    }
}
