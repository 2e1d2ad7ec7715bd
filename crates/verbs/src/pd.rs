//! Protection domains, thread domains and parent domains (IBTA 11.2.3).
//!
//! A parent domain is another name of a protection domain, and may carry a thread domain. A thread
//! domain promises that its objects are used by one thread at a time; the NIC's lock is uncontended
//! then, so there is nothing to gain from it and it only counts its users.

use crate::abi::*;
use crate::context::{Context, Resource};
use crate::handle::{fail, handle, null, pointer_or_null};
use crate::{host, import};
use adverb_nic::PdId;
use adverb_nic::memory::Memory;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

/// A protection domain, or a parent domain that stands for one.
#[repr(C)]
pub(crate) struct Pd {
    ibv: core::cell::UnsafeCell<ibv_pd>,
    /// The NIC's domain.
    pub(crate) id: PdId,
    /// Objects made with this domain.
    users: AtomicU32,
    /// Of a parent domain: what it was made of.
    parent: Option<Parent>,
}

/// What a parent domain holds.
struct Parent {
    pd: *mut ibv_pd,
    td: *mut ibv_td,
}

handle!(Pd, ibv_pd);

impl Pd {
    /// A second name of a domain, which counts the objects made with it by itself.
    pub(crate) fn imported(context: *mut ibv_context, id: PdId) -> Self {
        Pd::new(context, id, None)
    }

    fn new(context: *mut ibv_context, id: PdId, parent: Option<Parent>) -> Self {
        let ibv = ibv_pd { context, handle: id.index() as u32 };
        Pd { ibv: ibv.into(), id, users: AtomicU32::new(0), parent }
    }

    /// The context that the domain belongs to.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: the field is written once, before the object is given to C.
        unsafe { (*self.ibv.get()).context }
    }

    /// Whether objects made with this domain are alive.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// Counts an object made with this domain.
    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back one `hold`.
    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A thread domain.
#[repr(C)]
pub(crate) struct Td {
    ibv: core::cell::UnsafeCell<ibv_td>,
    users: AtomicU32,
}

handle!(Td, ibv_td);

/// Creates a protection domain.
///
/// # Safety
/// C ABI: see `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context.
    let owner = unsafe { Context::of(context) };
    match host::memory(Memory::alloc_pd) {
        Ok(id) => {
            owner.add(Resource::Pd(id));
            import::offer_pd(id);
            Pd::new(context, id, None).give()
        }
        Err(errno) => null(errno),
    }
}

/// Destroys a protection domain or a parent domain. EBUSY while objects use it.
///
/// # Safety
/// C ABI: see `ibv_dealloc_pd(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller passes a live domain.
    let domain = unsafe { Pd::of(pd) };
    if domain.is_used() {
        return fail(libc::EBUSY);
    }
    if let Some(parent) = &domain.parent {
        // SAFETY: both were alive at creation, and cannot go while this domain counts as their user.
        unsafe {
            Pd::of(parent.pd).release();
            if !parent.td.is_null() {
                Td::of(parent.td).users.fetch_sub(1, Ordering::AcqRel);
            }
        }
    } else {
        let id = domain.id;
        match host::memory(|memory| memory.dealloc_pd(id)) {
            // It was of a process that this one was forked from.
            Ok(()) | Err(libc::ENOENT) => {}
            Err(errno) => return fail(errno),
        }
        // SAFETY: the domain's context outlives it.
        unsafe { Context::of(domain.context()) }.remove(&Resource::Pd(id));
        import::withdraw_pd(id);
    }
    // SAFETY: the caller gives the domain up.
    drop(unsafe { Pd::take(pd) });
    0
}

/// `ibv_alloc_parent_domain(3)`. Custom allocators are accepted and not needed: nothing that the
/// program could place is allocated per domain.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = 0b11; // ALLOCATORS | PD_CONTEXT
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { *attr };
    pointer_or_null((|| {
        if attr.pd.is_null() || attr.comp_mask & !KNOWN != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller passes a live domain, and a live thread domain or NULL.
        let id = unsafe {
            let original = Pd::of(attr.pd);
            original.hold();
            if !attr.td.is_null() {
                Td::of(attr.td).users.fetch_add(1, Ordering::AcqRel);
            }
            original.id
        };
        Ok(Pd::new(context, id, Some(Parent { pd: attr.pd, td: attr.td })).give())
    })())
}

/// `ibv_alloc_td(3)`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the caller passes valid attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    Td { ibv: ibv_td { context }.into(), users: AtomicU32::new(0) }.give()
}

/// `ibv_dealloc_td(3)`. EBUSY while a parent domain uses it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller passes a live thread domain.
    let domain = unsafe { Td::of(td) };
    if domain.users.load(Ordering::Acquire) > 0 {
        return fail(libc::EBUSY);
    }
    // SAFETY: the caller gives it up.
    drop(unsafe { Td::take(td) });
    0
}
