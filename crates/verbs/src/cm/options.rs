//! Options of identifiers, the devices, names of events, enhanced connection options.

use crate::abi::*;
use crate::cm::id::{Id, Phase};
use crate::cm::{common_context, done, open};
use crate::handle::null;
use core::ffi::{CStr, c_char, c_int, c_void};

const EVENT: [&CStr; 20] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    c"RDMA_CM_EVENT_USER",
    c"RDMA_CM_EVENT_INTERNAL",
];

/// An event's name.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    EVENT.get(event as usize).map_or(c"UNKNOWN EVENT", |name| *name).as_ptr()
}

/// Longest local ACK timeout: 5 bits on the wire.
const ACK_TIMEOUT_MAX: u8 = 31;

/// Sets an option of the identifier.
///
/// # Safety
/// `value` has `length` bytes.
unsafe fn set(id: &Id, level: c_int, name: c_int, value: *const c_void, length: usize) -> Result<(), c_int> {
    if level as u32 != RDMA_OPTION_ID {
        // Paths (RDMA_OPTION_IB): on RoCE the address is the path.
        return Err(libc::ENOSYS);
    }
    if value.is_null() {
        return Err(libc::EINVAL);
    }
    let byte = || {
        // SAFETY: the length was compared; by the caller's promise it is readable.
        if length == 1 { Ok(unsafe { value.cast::<u8>().read() }) } else { Err(libc::EINVAL) }
    };
    let flag = || {
        let fits = length == size_of::<c_int>();
        // SAFETY: as above; it need not be aligned.
        if fits { Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0) } else { Err(libc::EINVAL) }
    };
    let mut state = id.state();
    let unbound = state.phase == Phase::Idle;
    match name as u32 {
        RDMA_OPTION_ID_TOS => state.options.traffic_class = byte()?,
        RDMA_OPTION_ID_ACK_TIMEOUT => {
            let timeout = byte()?;
            if timeout > ACK_TIMEOUT_MAX || id.is_datagram() {
                return Err(libc::EINVAL);
            }
            state.options.ack_timeout = Some(timeout);
        }
        RDMA_OPTION_ID_REUSEADDR => {
            let reuse = flag()?;
            if !unbound && reuse {
                return Err(libc::EINVAL);
            }
            state.options.reuse = reuse;
        }
        RDMA_OPTION_ID_AFONLY => {
            let af_only = flag()?;
            if !unbound {
                return Err(libc::EINVAL);
            }
            state.options.af_only = af_only;
        }
        _ => return Err(libc::ENOSYS),
    }
    Ok(())
}

/// Sets an option.
///
/// # Safety
/// C ABI: see `rdma_set_option(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and a value of that length.
    done(unsafe { set(Id::of(id), level, name, value, length) })
}

/// The open devices: the context that identifiers share.
///
/// # Safety
/// C ABI: see `rdma_get_devices(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    if let Err(errno) = open() {
        return null(errno);
    }
    // SAFETY: room for a pointer and the NULL at the end, which calloc writes.
    unsafe {
        let list: *mut *mut ibv_context = libc::calloc(2, size_of::<*mut ibv_context>()).cast();
        if list.is_null() {
            return null(libc::ENOMEM);
        }
        *list = common_context();
        if !count.is_null() {
            *count = 1;
        }
        list
    }
}

/// Frees a list of devices, not the devices.
///
/// # Safety
/// C ABI: see `rdma_free_devices(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the list came from calloc in `rdma_get_devices`.
    unsafe { libc::free(list.cast()) };
}

/// The peer's enhanced connection options: this NIC has none, and asks for none.
///
/// # Safety
/// C ABI: see `rdma_get_remote_ece(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    if id.is_null() || ece.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a place for the options.
    unsafe { *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 } };
    0
}

/// Own options are only accepted if there are none.
///
/// # Safety
/// C ABI: see `rdma_set_local_ece(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    if id.is_null() || ece.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes valid options.
    let ece = unsafe { *ece };
    done(match ece {
        ibv_ece { comp_mask: 1.., .. } => Err(libc::EINVAL),
        ibv_ece { vendor_id: 0, options: 0, .. } => Ok(()),
        _ => Err(libc::EOPNOTSUPP),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_names_that_programs_print() {
        let name = |event| {
            // SAFETY: a static C string.
            unsafe { CStr::from_ptr(rdma_event_str(event)) }.to_str().expect("ASCII")
        };
        assert_eq!(name(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(name(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
        assert_eq!(name(20), "UNKNOWN EVENT");
    }
}
