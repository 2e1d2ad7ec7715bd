//! XRC domains (IBTA annex A14). A domain opened with a file descriptor is shared by all that open the
//! same file, within this process.

use crate::abi::*;
use crate::context::{Context, Resource};
use crate::event::lock;
use crate::handle::{errno, fail, handle, pointer_or_null};
use crate::host;
use adverb_nic::XrcdId;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// An XRC domain.
#[repr(C)]
pub(crate) struct Xrcd {
    ibv: UnsafeCell<ibv_xrcd>,
    /// The NIC's domain.
    pub(crate) id: XrcdId,
}

handle!(Xrcd, ibv_xrcd);

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

/// An open domain of the NIC.
struct Open {
    file: Option<FileId>,
    users: u32,
}

static OPEN: Mutex<BTreeMap<XrcdId, Open>> = Mutex::new(BTreeMap::new());

/// Forgets all domains: they are a parent's.
pub(crate) fn clear() {
    lock(&OPEN).clear();
}

/// Which file a descriptor is open on. `Err` is errno.
pub(crate) fn file_id(fd: c_int) -> Result<FileId, c_int> {
    // SAFETY: integers.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writes into the local.
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return Err(errno());
    }
    Ok((stat.st_dev, stat.st_ino))
}

/// `ibv_open_xrcd(3)`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const NEEDED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    pointer_or_null((|| {
        if attr.comp_mask != NEEDED || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(libc::EINVAL);
        }
        let file = if attr.fd < 0 { None } else { Some(file_id(attr.fd)?) };
        if file.is_none() && attr.oflags & libc::O_CREAT == 0 {
            return Err(libc::EINVAL);
        }
        let mut open = lock(&OPEN);
        let found = open.iter_mut().find(|(_, entry)| file.is_some() && entry.file == file);
        let id = match found {
            Some(_) if attr.oflags & libc::O_EXCL != 0 => return Err(libc::EINVAL),
            Some((id, entry)) => {
                entry.users += 1;
                *id
            }
            None if attr.oflags & libc::O_CREAT == 0 => return Err(libc::ENOENT),
            None => {
                let id = host::control(|nic| nic.alloc_xrcd())?;
                open.insert(id, Open { file, users: 1 });
                id
            }
        };
        let xrcd = Xrcd { ibv: ibv_xrcd { context }.into(), id }.give();
        // SAFETY: the caller passes an open context.
        unsafe { Context::of(context) }.add(Resource::Xrcd(id, xrcd.addr()));
        Ok(xrcd)
    })())
}

/// Takes back one use of a domain; the last one destroys it.
pub(crate) fn release(id: XrcdId) -> Result<(), c_int> {
    let mut open = lock(&OPEN);
    let Some(entry) = open.get_mut(&id) else { return Err(libc::ENOENT) };
    if entry.users > 1 {
        entry.users -= 1;
        return Ok(());
    }
    host::control(|nic| nic.dealloc_xrcd(id))?;
    open.remove(&id);
    Ok(())
}

/// `ibv_close_xrcd(3)`. EBUSY while queues belong to it.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller passes a live domain.
    let domain = unsafe { Xrcd::of(xrcd) };
    match release(domain.id) {
        Ok(()) | Err(libc::ENOENT) => {}
        Err(errno) => return fail(errno),
    }
    // SAFETY: the context outlives the domain; the caller gives the domain up.
    unsafe {
        Context::of((*xrcd).context).remove(&Resource::Xrcd(domain.id, xrcd.addr()));
        drop(Xrcd::take(xrcd));
    }
    0
}
