//! The private nodes of versions of rdma-core other than v44 (`IBVERBS_PRIVATE_25` to `_65`): the names of
//! `private.rs` once more, because a program that is linked with a device library asks for the node of that
//! library's version. Where a version has fewer names than its node here, nobody asks for the others.
//!
//! As in `compat.rs`, each is a trampoline in assembly beside its version.

use core::arch::global_asm;
use core::ffi::{c_char, c_int};

/// What drivers' registration and set-up calls do here.
#[unsafe(no_mangle)]
extern "C" fn adverb_verbs_node_nothing() {}

/// Words for an `enum ibv_wr_opcode`, which device libraries of v65 print.
#[unsafe(no_mangle)]
extern "C" fn adverb_verbs_node_opcode(opcode: c_int) -> *const c_char {
    crate::names::work_request(opcode)
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp "
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b "
    };
}

/// Trampolines to one target, each with its version.
macro_rules! to {
    ($node:literal, $target:literal; $($name:literal)*) => {
        concat!($(
            ".globl adverb_p", $node, "_", $name, "\n",
            ".type adverb_p", $node, "_", $name, ", @function\n",
            "adverb_p", $node, "_", $name, ":\n",
            jump!(), $target, "\n",
            ".symver adverb_p", $node, "_", $name, ", ", $name, "@IBVERBS_PRIVATE_", $node, "\n",
        )*)
    };
}

/// A driver's registration, whose name has the version in it.
macro_rules! registration {
    ($node:literal) => {
        concat!(
            ".globl adverb_p",
            $node,
            "_register\n",
            ".type adverb_p",
            $node,
            "_register, @function\n",
            "adverb_p",
            $node,
            "_register:\n",
            jump!(),
            "adverb_verbs_node_nothing\n",
            ".symver adverb_p",
            $node,
            "_register, verbs_register_driver_",
            $node,
            "@IBVERBS_PRIVATE_",
            $node,
            "\n",
        )
    };
}

/// The flag that drivers read: false.
macro_rules! flag {
    ($node:literal) => {
        concat!(
            ".section .rodata\n",
            ".globl adverb_p",
            $node,
            "_flag\n",
            ".type adverb_p",
            $node,
            "_flag, @object\n",
            ".size adverb_p",
            $node,
            "_flag, 1\n",
            "adverb_p",
            $node,
            "_flag:\n",
            ".byte 0\n",
            ".symver adverb_p",
            $node,
            "_flag, verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_",
            $node,
            "\n",
            ".text\n",
        )
    };
}

/// What the node of every version has.
macro_rules! node {
    ($node:literal) => {
        concat!(
            ".text\n",
            to!($node, "adverb_verbs_compat_refused";
                "execute_ioctl" "ibv_cmd_advise_mr" "ibv_cmd_alloc_dm" "ibv_cmd_alloc_mw"
                "ibv_cmd_alloc_pd" "ibv_cmd_attach_mcast" "ibv_cmd_close_xrcd" "ibv_cmd_create_ah"
                "ibv_cmd_create_counters" "ibv_cmd_create_cq" "ibv_cmd_create_cq_ex"
                "ibv_cmd_create_flow" "ibv_cmd_create_flow_action_esp" "ibv_cmd_create_qp"
                "ibv_cmd_create_qp_ex" "ibv_cmd_create_qp_ex2" "ibv_cmd_create_rwq_ind_table"
                "ibv_cmd_create_srq" "ibv_cmd_create_srq_ex" "ibv_cmd_create_wq"
                "ibv_cmd_dealloc_mw" "ibv_cmd_dealloc_pd" "ibv_cmd_dereg_mr" "ibv_cmd_destroy_ah"
                "ibv_cmd_destroy_counters" "ibv_cmd_destroy_cq" "ibv_cmd_destroy_flow"
                "ibv_cmd_destroy_flow_action" "ibv_cmd_destroy_qp" "ibv_cmd_destroy_rwq_ind_table"
                "ibv_cmd_destroy_srq" "ibv_cmd_destroy_wq" "ibv_cmd_detach_mcast" "ibv_cmd_free_dm"
                "ibv_cmd_get_context" "ibv_cmd_modify_cq" "ibv_cmd_modify_flow_action_esp"
                "ibv_cmd_modify_qp" "ibv_cmd_modify_qp_ex" "ibv_cmd_modify_srq" "ibv_cmd_modify_wq"
                "ibv_cmd_open_qp" "ibv_cmd_open_xrcd" "ibv_cmd_poll_cq" "ibv_cmd_post_recv"
                "ibv_cmd_post_send" "ibv_cmd_post_srq_recv" "ibv_cmd_query_context"
                "ibv_cmd_query_device_any" "ibv_cmd_query_mr" "ibv_cmd_query_port"
                "ibv_cmd_query_qp" "ibv_cmd_query_srq" "ibv_cmd_read_counters" "ibv_cmd_reg_dm_mr"
                "ibv_cmd_reg_dmabuf_mr" "ibv_cmd_reg_mr" "ibv_cmd_req_notify_cq" "ibv_cmd_rereg_mr"
                "ibv_cmd_resize_cq"
            ),
            to!($node, "adverb_verbs_compat_absent"; "_verbs_init_and_alloc_context" "verbs_open_device"),
            to!($node, "adverb_verbs_node_nothing";
                "__verbs_log" "verbs_init_cq" "verbs_set_ops" "verbs_uninit_context"),
            to!($node, "ibv_query_gid_type"; "ibv_query_gid_type"),
            to!($node, "ibv_read_ibdev_sysfs_file"; "ibv_read_ibdev_sysfs_file"),
            to!($node, "__ioctl_final_num_attrs"; "__ioctl_final_num_attrs"),
            registration!($node),
            flag!($node),
        )
    };
}

/// What v34 has no more.
macro_rules! before_34 {
    ($node:literal) => {
        to!(
            $node, "adverb_verbs_compat_refused";
            "ibv_cmd_query_device" "ibv_cmd_query_device_ex" "ibv_get_fw_ver"
        )
    };
}

/// What came later, v65's names throughout.
macro_rules! since_57 {
    ($node:literal) => {
        concat!(
            to!($node, "adverb_verbs_compat_refused";
                "ibv_cmd_alloc_dmah" "ibv_cmd_free_dmah" "ibv_cmd_reg_mr_ex" "ibv_cmd_create_cq_ex2"
                "ibv_cmd_export_dmabuf_fd" "ibv_cmd_query_port_speed" "ibv_cmd_create_comp_cntr"
                "ibv_cmd_destroy_comp_cntr" "ibv_cmd_inc_comp_cntr" "ibv_cmd_inc_err_comp_cntr"
                "ibv_cmd_set_comp_cntr" "ibv_cmd_set_err_comp_cntr" "ibv_cmd_read_comp_cntr"
                "ibv_cmd_read_err_comp_cntr" "ibv_cmd_qp_attach_comp_cntr"
                "ibv_cmd_query_comp_cntr_caps"
            ),
            to!($node, "adverb_verbs_compat_absent";
                "ibv_dmabuf_heap_alloc" "ibv_dmabuf_heap_cc_shared_init"),
            to!($node, "adverb_verbs_node_nothing"; "ibv_dmabuf_heap_free" "ibv_dmabuf_heap_destroy"),
            to!($node, "adverb_verbs_node_opcode"; "ibv_wr_opcode_str"),
        )
    };
}

global_asm!(
    node!("25"),
    before_34!("25"),
    node!("33"),
    before_34!("33"),
    node!("57"),
    since_57!("57"),
    node!("59"),
    since_57!("59"),
    node!("64"),
    since_57!("64"),
    node!("65"),
    since_57!("65"),
);
