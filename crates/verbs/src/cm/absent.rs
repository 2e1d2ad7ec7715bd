//! Names of librdmacm that answer ENOSYS: epoll's for sockets over RDMA, and addresses by a subnet
//! administrator, which RoCE has not. And events that programs write themselves.

use crate::abi::*;
use crate::cm::channel::Told;
use crate::cm::done;
use crate::cm::id::Id;
use crate::handle::set_errno;
use core::ffi::c_int;

/// Refused with -1 and ENOSYS, whatever the arguments and the width of the result.
macro_rules! refused {
    ($($name:ident)*) => {
        $(
            /// Not offered.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                set_errno(libc::ENOSYS);
                -1
            }
        )*
    };
}

refused! {
    repoll_create repoll_ctl repoll_wait
    rdma_query_addrinfo rdma_resolve_addrinfo
}

/// Queues an event of the program's own.
///
/// # Safety
/// C ABI: `rdma_write_cm_event(3)` of rdma-core v60.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: u32,
    status: c_int,
    argument: u64,
) -> c_int {
    if id.is_null() || !matches!(event, RDMA_CM_EVENT_USER | RDMA_CM_EVENT_INTERNAL) {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier.
    unsafe { Id::of(id) }.tell(Told::Written(event, status, argument));
    0
}
