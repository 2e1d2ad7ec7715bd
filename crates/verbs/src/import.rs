//! Imports: second names for a context and its objects, found by the numbers that programs pass around.
//!
//! On hardware the kernel keeps the objects, and processes share them by passing a command descriptor.
//! Here they live in the process that made them, so imports work within it, and a descriptor from
//! another process answers EOPNOTSUPP.

use crate::abi::*;
use crate::context;
use crate::dm::{Block, Dm};
use crate::event::lock;
use crate::handle::{null, pointer_or_null};
use crate::mr::Mr;
use crate::pd::Pd;
use crate::xrcd::{FileId, file_id};
use adverb_nic::{MrId, MrInfo, PdId};
use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A region as an importer needs it.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) info: MrInfo,
    pub(crate) pd: PdId,
    pub(crate) length: usize,
}

/// What can be imported, by handle.
struct Offers {
    /// Devices (by address) of open contexts, by the file behind their command descriptor.
    contexts: BTreeMap<FileId, (usize, u32)>,
    pds: BTreeMap<u32, PdId>,
    regions: BTreeMap<u32, Region>,
    blocks: BTreeMap<u32, Arc<Block>>,
    next_block: u32,
}

static OFFERS: Mutex<Offers> = Mutex::new(Offers {
    contexts: BTreeMap::new(),
    pds: BTreeMap::new(),
    regions: BTreeMap::new(),
    blocks: BTreeMap::new(),
    next_block: 0,
});

/// A context was opened, or imported.
pub(crate) fn offer_context(cmd_fd: c_int, device: *mut ibv_device) {
    if let Ok(file) = file_id(cmd_fd) {
        lock(&OFFERS).contexts.entry(file).or_insert((device.expose_provenance(), 0)).1 += 1;
    }
}

/// A context is being closed.
pub(crate) fn withdraw_context(cmd_fd: c_int) {
    let Ok(file) = file_id(cmd_fd) else { return };
    let mut offers = lock(&OFFERS);
    if let Some((_, contexts)) = offers.contexts.get_mut(&file) {
        *contexts -= 1;
        if *contexts == 0 {
            offers.contexts.remove(&file);
        }
    }
}

pub(crate) fn offer_pd(id: PdId) {
    lock(&OFFERS).pds.insert(id.index() as u32, id);
}

pub(crate) fn withdraw_pd(id: PdId) {
    // Another NIC's object may have had the handle before a fork.
    lock(&OFFERS).pds.retain(|_, other| *other != id);
}

pub(crate) fn offer_mr(info: &MrInfo, pd: PdId, length: usize) {
    lock(&OFFERS).regions.insert(info.id.index() as u32, Region { info: *info, pd, length });
}

pub(crate) fn withdraw_mr(id: MrId) {
    lock(&OFFERS).regions.retain(|_, other| other.info.id != id);
}

/// Offers device memory, and gives it its handle.
pub(crate) fn offer_dm(block: Arc<Block>) -> u32 {
    let mut offers = lock(&OFFERS);
    let handle = offers.next_block;
    offers.next_block = handle.wrapping_add(1);
    offers.blocks.insert(handle, block);
    handle
}

pub(crate) fn withdraw_dm(handle: u32) {
    lock(&OFFERS).blocks.remove(&handle);
}

/// Another context for the device behind a command descriptor, which it takes over.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    let device = file_id(cmd_fd).map(|file| lock(&OFFERS).contexts.get(&file).map(|found| found.0));
    match device {
        Ok(Some(device)) => {
            pointer_or_null(context::open(core::ptr::with_exposed_provenance_mut(device), cmd_fd))
        }
        Ok(None) => null(libc::EOPNOTSUPP),
        Err(errno) => null(errno),
    }
}

/// Another name of a protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    let found = lock(&OFFERS).pds.get(&handle).copied();
    found.map_or_else(|| null(libc::ENOENT), |id| Pd::imported(context, id).give())
}

/// Frees an imported name. If objects made with it are alive, they keep it.
///
/// # Safety
/// C ABI: a domain from `ibv_import_pd`, which the caller gives up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: as the caller promises; objects made with it will take back their holds.
    unsafe {
        if !Pd::of(pd).is_used() {
            drop(Pd::take(pd));
        }
    }
}

/// Another name of a memory region of the domain. Its address is not known here, and NULL.
///
/// # Safety
/// C ABI: a live domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    let domain = unsafe { Pd::of(pd) };
    let found = lock(&OFFERS).regions.get(&handle).copied().filter(|region| region.pd == domain.id);
    found.map_or_else(|| null(libc::ENOENT), |region| Mr::imported(domain, pd, &region).give())
}

/// Frees an imported name.
///
/// # Safety
/// C ABI: a region from `ibv_import_mr`, which the caller gives up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: as the caller promises.
    unsafe {
        Mr::of(mr).release_domain();
        drop(Mr::take(mr));
    }
}

/// Another name of device memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    let found = lock(&OFFERS).blocks.get(&handle).cloned();
    found.map_or_else(|| null(libc::ENOENT), |block| Dm::new(context, handle, block).give())
}

/// Frees an imported name.
///
/// # Safety
/// C ABI: device memory from `ibv_import_dm`, which the caller gives up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: as the caller promises.
    drop(unsafe { Dm::take(dm) });
}
