//! Public calls that came after v44 and that this device does not offer: handles of DMA buffers and hints
//! (IBVERBS_1.15, 1.16, 1.18), completion counters (1.18). Each fails as its page says, with EOPNOTSUPP.

use crate::handle::{fail, null, set_errno};
use core::ffi::{c_int, c_void};

macro_rules! no_object {
    ($($name:ident,)*) => {$(
        #[doc = "Not offered: NULL, EOPNOTSUPP."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            null(libc::EOPNOTSUPP)
        }
    )*};
}

no_object! {
    ibv_alloc_dmah,
    ibv_create_comp_cntr,
}

macro_rules! no_descriptor {
    ($($name:ident,)*) => {$(
        #[doc = "Not offered: -1, EOPNOTSUPP."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            set_errno(libc::EOPNOTSUPP);
            -1
        }
    )*};
}

no_descriptor! {
    ibv_dm_export_dmabuf_fd,
    ibv_export_buf_dmabuf_fd,
}

macro_rules! refused {
    ($($name:ident,)*) => {$(
        #[doc = "Not offered: EOPNOTSUPP."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            fail(libc::EOPNOTSUPP)
        }
    )*};
}

refused! {
    _ibv_query_comp_cntr_caps,
    ibv_dealloc_dmah,
    ibv_destroy_comp_cntr,
    ibv_inc_comp_cntr,
    ibv_inc_err_comp_cntr,
    ibv_qp_attach_comp_cntr,
    ibv_read_comp_cntr,
    ibv_read_err_comp_cntr,
    ibv_set_comp_cntr,
    ibv_set_err_comp_cntr,
}
