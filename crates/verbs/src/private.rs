//! The private half of the ABI (`IBVERBS_PRIVATE_34`): what device drivers such as the system's libmlx5
//! and libefa import. Programs link those drivers, and are linked `-z now`, so every name must resolve;
//! but no driver ever finds a device here, so none of these is called with anything to do.

use core::ffi::{c_int, c_void};

macro_rules! unsupported {
    ($($name:ident,)*) => {$(
        #[doc = "A kernel command; there is no kernel device."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            crate::handle::fail(libc::EOPNOTSUPP)
        }
    )*};
}

unsupported! {
    execute_ioctl,
    ibv_cmd_advise_mr,
    ibv_cmd_alloc_dm,
    ibv_cmd_alloc_mw,
    ibv_cmd_alloc_pd,
    ibv_cmd_attach_mcast,
    ibv_cmd_close_xrcd,
    ibv_cmd_create_ah,
    ibv_cmd_create_counters,
    ibv_cmd_create_cq,
    ibv_cmd_create_cq_ex,
    ibv_cmd_create_flow,
    ibv_cmd_create_flow_action_esp,
    ibv_cmd_create_qp,
    ibv_cmd_create_qp_ex,
    ibv_cmd_create_qp_ex2,
    ibv_cmd_create_rwq_ind_table,
    ibv_cmd_create_srq,
    ibv_cmd_create_srq_ex,
    ibv_cmd_create_wq,
    ibv_cmd_dealloc_mw,
    ibv_cmd_dealloc_pd,
    ibv_cmd_dereg_mr,
    ibv_cmd_destroy_ah,
    ibv_cmd_destroy_counters,
    ibv_cmd_destroy_cq,
    ibv_cmd_destroy_flow,
    ibv_cmd_destroy_flow_action,
    ibv_cmd_destroy_qp,
    ibv_cmd_destroy_rwq_ind_table,
    ibv_cmd_destroy_srq,
    ibv_cmd_destroy_wq,
    ibv_cmd_detach_mcast,
    ibv_cmd_free_dm,
    ibv_cmd_get_context,
    ibv_cmd_modify_cq,
    ibv_cmd_modify_flow_action_esp,
    ibv_cmd_modify_qp,
    ibv_cmd_modify_qp_ex,
    ibv_cmd_modify_srq,
    ibv_cmd_modify_wq,
    ibv_cmd_open_qp,
    ibv_cmd_open_xrcd,
    ibv_cmd_poll_cq,
    ibv_cmd_post_recv,
    ibv_cmd_post_send,
    ibv_cmd_post_srq_recv,
    ibv_cmd_query_context,
    ibv_cmd_query_device_any,
    ibv_cmd_query_mr,
    ibv_cmd_query_port,
    ibv_cmd_query_qp,
    ibv_cmd_query_srq,
    ibv_cmd_read_counters,
    ibv_cmd_reg_dm_mr,
    ibv_cmd_reg_dmabuf_mr,
    ibv_cmd_reg_mr,
    ibv_cmd_req_notify_cq,
    ibv_cmd_rereg_mr,
    ibv_cmd_resize_cq,
}

macro_rules! no_op {
    ($($name:ident,)*) => {$(
        #[doc = "A driver's registration or set-up call, which has no effect here."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {}
    )*};
}

no_op! {
    __verbs_log,
    verbs_init_cq,
    verbs_register_driver_34,
    verbs_set_ops,
    verbs_uninit_context,
}

macro_rules! nothing {
    ($($name:ident,)*) => {$(
        #[doc = "A driver's allocation call, which finds no device here."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            crate::set_errno(libc::EOPNOTSUPP);
            core::ptr::null_mut()
        }
    )*};
}

nothing! {
    _verbs_init_and_alloc_context,
    verbs_open_device,
}

/// Attributes of an ioctl: none.
#[unsafe(no_mangle)]
pub extern "C" fn __ioctl_final_num_attrs(_num_attrs: u32) -> u32 {
    0
}

/// A flag that drivers read; objects of a removed device never exist here.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a C variable's name")]
pub static verbs_allow_disassociate_destroy: bool = false;
