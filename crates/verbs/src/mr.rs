//! Memory regions (IBTA 11.2.8).

use crate::abi::*;
use crate::context::{Context, Resource};
use crate::dm::Block;
use crate::handle::{fail, handle, null, pointer_or_null, set_errno};
use crate::host;
use crate::import;
use crate::mapping;
use crate::pd::Pd;
use adverb_io::registry::rights;
use adverb_io::registry::words::Region;
use adverb_nic::memory::Rereg;
use adverb_nic::{Access, Error, MrId, MrInit};
use adverb_wire::Key;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    ibv: UnsafeCell<ibv_mr>,
    id: MrId,
    /// The domain that counts it; re-registration may change it.
    domain: AtomicPtr<ibv_pd>,
    /// Of device memory: what it is part of.
    dm: Option<Arc<Block>>,
}

handle!(Mr, ibv_mr);

impl Mr {
    /// Another name of a region.
    pub(crate) fn imported(domain: &Pd, pd: *mut ibv_pd, region: &import::Region) -> Mr {
        domain.hold();
        let ibv = ibv_mr {
            context: domain.context(),
            pd,
            addr: core::ptr::null_mut(),
            length: region.length,
            handle: region.info.id.index() as u32,
            lkey: region.info.lkey.0,
            rkey: region.info.rkey.0,
        };
        Mr { ibv: ibv.into(), id: region.info.id, domain: AtomicPtr::new(pd), dm: None }
    }

    /// Takes back the hold on the region's domain.
    pub(crate) fn release_domain(&self) {
        // SAFETY: it counts this region until now, so it is alive.
        unsafe { Pd::of(self.domain.load(Ordering::Acquire)) }.release();
    }

    /// The key for peers.
    fn rkey(&self) -> Key {
        // SAFETY: a field of the live object that nothing writes.
        Key(unsafe { (*self.ibv.get()).rkey })
    }

    /// The key for scatter/gather entries.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: a field of the live object that nothing writes.
        unsafe { (*self.ibv.get()).lkey }
    }
}

/// What a region is made of.
pub(crate) struct Piece {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) iova: u64,
    pub(crate) access: c_uint,
    pub(crate) dm: Option<Arc<Block>>,
}

/// Registers memory and makes the object.
///
/// # Safety
/// `pd` is alive, and the memory is the caller's to share until it deregisters it.
pub(crate) unsafe fn register(pd: *mut ibv_pd, piece: Piece) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: by the caller's promise.
    let domain = unsafe { Pd::of(pd) };
    let access = Access::from_verbs(piece.access).map_err(|error| error.errno())?;
    access.check_mr().map_err(|error| error.errno())?;
    let (addr, len) = (piece.addr as u64, piece.length as u64);
    mapping::check(addr, len, access.contains(Access::LOCAL_WRITE), access.contains(Access::ON_DEMAND))?;
    let init = MrInit { pd: domain.id, addr, len, iova: piece.iova, access };
    // SAFETY: `check` found the range mapped with these rights, and by the caller's promise it stays so
    // until it is deregistered.
    let info = host::memory(|memory| unsafe { memory.reg_mr(&init) })?;
    let va = if access.contains(Access::ZERO_BASED) { 0 } else { piece.iova };
    let region = Region { key: info.rkey, va, len, rights: rights(access) };
    if let Err(errno) = host::grant(domain.id, region) {
        host::memory(|memory| memory.dereg_mr(info.id))?;
        return Err(errno);
    }
    domain.hold();
    let context = domain.context();
    // SAFETY: the context outlives its objects.
    unsafe { Context::of(context) }.add(Resource::Mr(info.id, info.rkey.0));
    import::offer_mr(&info, domain.id, piece.length);
    let ibv = ibv_mr {
        context,
        pd,
        addr: piece.addr,
        length: piece.length,
        handle: info.id.index() as u32,
        lkey: info.lkey.0,
        rkey: info.rkey.0,
    };
    Ok(Mr { ibv: ibv.into(), id: info.id, domain: AtomicPtr::new(pd), dm: piece.dm }.give())
}

/// Registers memory, its addresses serving as names.
///
/// # Safety
/// C ABI: see `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as c_uint) }
}

/// Registers memory under another address.
///
/// # Safety
/// C ABI: see `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// Registers memory under another address, possibly with optional rights.
///
/// # Safety
/// C ABI: see `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    pointer_or_null(unsafe { register(pd, Piece { addr, length, iova, access, dm: None }) })
}

/// Registers memory of another device: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

/// The codes of `enum ibv_rereg_mr_err_code` that can happen here; in both the old region stays valid
/// with us, though the second does not promise it.
const REREG_ERR_INPUT: c_int = -1;
const REREG_ERR_CMD: c_int = -4;

/// Changes a region in place.
///
/// # Safety
/// C ABI: see `ibv_rereg_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = flags as u32;
    let has = |bit: u32| flags & bit != 0;
    let bad_translation = has(IBV_REREG_MR_CHANGE_TRANSLATION) && (length == 0 || addr.is_null());
    let bad_domain = has(IBV_REREG_MR_CHANGE_PD) && pd.is_null();
    if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || bad_translation || bad_domain {
        set_errno(libc::EINVAL);
        return REREG_ERR_INPUT;
    }
    // SAFETY: as the caller promises.
    match unsafe { reregister(mr, flags, pd, addr, length, access as c_uint) } {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            REREG_ERR_CMD
        }
    }
}

/// # Safety
/// `mr` is alive; `pd` is alive, and the memory is the caller's to share, if the flags name them.
unsafe fn reregister(
    mr: *mut ibv_mr,
    flags: u32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<(), c_int> {
    let has = |bit: u32| flags & bit != 0;
    // SAFETY: by the caller's promise.
    let (region, old) = unsafe { (Mr::of(mr), *mr) };
    if region.dm.is_some() {
        return Err(libc::EOPNOTSUPP);
    }
    let new_access = if has(IBV_REREG_MR_CHANGE_ACCESS) {
        Some(Access::from_verbs(access).map_err(|error| error.errno())?)
    } else {
        None
    };
    let translation =
        has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr as u64, length as u64, addr as u64));
    let (start, len) = translation.map_or((old.addr as u64, old.length as u64), |(a, l, _)| (a, l));
    let on_demand = new_access.is_some_and(|access| access.contains(Access::ON_DEMAND));
    if translation.is_some() || new_access.is_some() {
        let writable = new_access.is_none_or(|access| access.contains(Access::LOCAL_WRITE));
        mapping::check(start, len, writable, on_demand)?;
    }
    // SAFETY: by the caller's promise.
    let new_domain = has(IBV_REREG_MR_CHANGE_PD).then(|| unsafe { Pd::of(pd) });
    let change = Rereg { pd: new_domain.map(|domain| domain.id), translation, access: new_access };
    let before = host::memory(|memory| memory.region(region.id).ok_or(Error::NoSuchObject))?;
    // SAFETY: `check` found the range mapped with these rights, and the caller shares it.
    host::memory(|memory| unsafe { memory.rereg_mr(region.id, &change) })?;
    if let Err(errno) = tell(region) {
        let translation = Some((before.addr, before.len, before.iova));
        let back = Rereg { pd: Some(before.pd), translation, access: Some(before.access) };
        // SAFETY: as it was until now; the caller shares that until this call has returned.
        host::memory(|memory| unsafe { memory.rereg_mr(region.id, &back) })?;
        // Peers have no rule of it now. Those that take none either lose what they could reach, no more.
        let _ = tell(region);
        return Err(errno);
    }
    if let Some(domain) = new_domain {
        domain.hold();
        let before = region.domain.swap(pd, Ordering::AcqRel);
        // SAFETY: it counted this region until now, so it is alive.
        unsafe { Pd::of(before) }.release();
    }
    // SAFETY: public fields of the live object, which the caller uses from one thread meanwhile.
    unsafe {
        if new_domain.is_some() {
            (*mr).pd = pd;
        }
        if translation.is_some() {
            (*mr).addr = addr;
            (*mr).length = length;
        }
    }
    Ok(())
}

/// Tells StaR's registries what a region is now.
fn tell(region: &Mr) -> Result<(), c_int> {
    let now = host::memory(|memory| memory.region(region.id).ok_or(Error::NoSuchObject))?;
    let va = if now.access.contains(Access::ZERO_BASED) { 0 } else { now.iova };
    let granted = Region { key: region.rkey(), va, len: now.len, rights: rights(now.access) };
    host::grant_anew(now.pd, granted)
}

/// Deregisters memory. EBUSY while a window is bound to it.
///
/// # Safety
/// C ABI: see `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes a live region.
    let region = unsafe { Mr::of(mr) };
    host::withdraw(region.rkey());
    match host::memory(|memory| memory.dereg_mr(region.id)) {
        Ok(()) | Err(libc::ENOENT) => {}
        Err(errno) => {
            // A window is bound to it: it stays what it was, to peers too. Who takes its rule no more has
            // less than before.
            let _ = tell(region);
            return fail(errno);
        }
    }
    // SAFETY: context, domain and device memory outlive the region; the caller gives the region up.
    unsafe {
        Context::of((*mr).context).remove(&Resource::Mr(region.id, region.rkey().0));
        import::withdraw_mr(region.id);
        region.release_domain();
        if let Some(block) = &region.dm {
            block.release();
        }
        drop(Mr::take(mr));
    }
    0
}

/// `ibv_advise_mr(3)`: brings on-demand memory in. The region's bounds are not checked; the advice
/// about an address that is not mapped fails.
pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    sges: *mut ibv_sge,
    count: u32,
) -> c_int {
    const PREFETCH: u32 = 0;
    const PREFETCH_WRITE: u32 = 1;
    const PREFETCH_NO_FAULT: u32 = 2;
    const FLUSH: u32 = 1;
    if !matches!(advice, PREFETCH | PREFETCH_WRITE | PREFETCH_NO_FAULT) || flags & !FLUSH != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    for index in 0..count as usize {
        // SAFETY: the caller passes `count` entries.
        let sge = unsafe { *sges.add(index) };
        if advice == PREFETCH_NO_FAULT {
            continue;
        }
        if mapping::check(sge.addr, sge.length.into(), advice == PREFETCH_WRITE, false).is_err() {
            return fail(libc::EFAULT);
        }
    }
    0
}
