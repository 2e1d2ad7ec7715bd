//! Device memory: on this device, ordinary memory that programs reach by offset.

use crate::abi::*;
use crate::handle::{fail, handle, null, pointer_or_null};
use crate::import;
use crate::mr::{self, Piece};
use crate::query::DM_SIZE;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

/// Copies start and end at multiples of this, as on the devices that have such memory.
const COPY_ALIGN: u64 = 4;
/// Least alignment of an allocation.
const ALIGN_MIN: usize = 64;
/// Largest alignment that can be asked for: 2^n bytes.
const LOG_ALIGN_MAX: u32 = 21;

/// Bytes that are allocated at present.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// The memory of one allocation, shared by its handles and its regions.
pub(crate) struct Block {
    memory: *mut u8,
    layout: Layout,
    /// Bytes asked for.
    length: u64,
    /// Regions of it.
    regions: AtomicU32,
}

// SAFETY: the pointer names memory that the block owns, and whose content is the program's business.
unsafe impl Send for Block {}
// SAFETY: as above; the count is atomic.
unsafe impl Sync for Block {}

impl Block {
    /// Zeroed memory. `Err` is errno.
    fn new(size: usize, align: usize) -> Result<Block, c_int> {
        let length = size as u64;
        let fits = |used: u64| used.checked_add(length).filter(|&sum| sum <= DM_SIZE);
        ALLOCATED.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).map_err(|_| libc::ENOMEM)?;
        let allocated = Layout::from_size_align(size, align).ok().and_then(|layout| {
            // SAFETY: the size is not zero.
            let memory = unsafe { alloc_zeroed(layout) };
            (!memory.is_null()).then_some((memory, layout))
        });
        let Some((memory, layout)) = allocated else {
            ALLOCATED.fetch_sub(length, Ordering::AcqRel);
            return Err(libc::ENOMEM);
        };
        Ok(Block { memory, layout, length, regions: AtomicU32::new(0) })
    }

    /// Takes back a region.
    pub(crate) fn release(&self) {
        self.regions.fetch_sub(1, Ordering::AcqRel);
    }

    /// The address of `[offset, offset + length)`, if it is within.
    fn part(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length as u64)?;
        // SAFETY: within the allocation.
        (end <= self.length).then(|| unsafe { self.memory.add(offset as usize) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.length, Ordering::AcqRel);
        // SAFETY: allocated with this layout, and no handle or region is left.
        unsafe { dealloc(self.memory, self.layout) };
    }
}

/// An allocation's handle.
#[repr(C)]
pub(crate) struct Dm {
    ibv: UnsafeCell<ibv_dm>,
    block: Arc<Block>,
}

handle!(Dm, ibv_dm);

impl Dm {
    /// A handle of a block.
    pub(crate) fn new(context: *mut ibv_context, handle: u32, block: Arc<Block>) -> Dm {
        let ibv = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle,
        };
        Dm { ibv: ibv.into(), block }
    }
}

/// `ibv_alloc_dm(3)`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    pointer_or_null((|| {
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > LOG_ALIGN_MAX {
            return Err(libc::EINVAL);
        }
        let block = Arc::new(Block::new(attr.length, ALIGN_MIN.max(1 << attr.log_align_req))?);
        let handle = import::offer_dm(block.clone());
        Ok(Dm::new(context, handle, block).give())
    })())
}

/// `ibv_free_dm(3)`. EBUSY while regions of it exist.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the caller passes live device memory.
    if unsafe { Dm::of(dm) }.block.regions.load(Ordering::Acquire) > 0 {
        return fail(libc::EBUSY);
    }
    // SAFETY: the caller gives it up; the handle is a public field.
    unsafe {
        import::withdraw_dm((*dm).handle);
        drop(Dm::take(dm));
    }
    0
}

/// `ibv_reg_dm_mr(3)`: addresses are offsets into the region, so it must be zero-based.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller passes live device memory.
    let block = unsafe { &Dm::of(dm).block };
    if access & IBV_ACCESS_ZERO_BASED == 0 {
        return null(libc::EINVAL);
    }
    let Some(start) = block.part(offset, length) else { return null(libc::EINVAL) };
    // Counted before it exists, so that it cannot be freed in between.
    block.regions.fetch_add(1, Ordering::AcqRel);
    let piece = Piece { addr: start.cast(), length, iova: 0, access, dm: Some(block.clone()) };
    // SAFETY: the memory stays until its regions are gone; the caller passes a live domain.
    match unsafe { mr::register(pd, piece) } {
        Ok(region) => region,
        Err(errno) => {
            block.release();
            null(errno)
        }
    }
}

fn copyable(offset: u64, length: usize) -> bool {
    offset.is_multiple_of(COPY_ALIGN) && (length as u64).is_multiple_of(COPY_ALIGN)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes live device memory.
    let Some(part) = unsafe { &Dm::of(dm).block }.part(offset, length).filter(|_| copyable(offset, length))
    else {
        return fail(libc::EINVAL);
    };
    // SAFETY: `part` has `length` bytes, and so has the caller's buffer.
    unsafe { core::ptr::copy(host_addr.cast::<u8>(), part, length) };
    0
}

unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes live device memory.
    let Some(part) = unsafe { &Dm::of(dm).block }.part(offset, length).filter(|_| copyable(offset, length))
    else {
        return fail(libc::EINVAL);
    };
    // SAFETY: `part` has `length` bytes, and so has the caller's buffer.
    unsafe { core::ptr::copy(part, host_addr.cast::<u8>(), length) };
    0
}
