//! A call that fails with a number leaves it in `errno` too: programs print that. The test walks every name
//! that the library exports: a new one has to find its place here.

use crate::fixture::*;
use adverb_verbs::abi::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use std::collections::BTreeSet;

const MAP: &str = include_str!("../../libibverbs.map");

unsafe extern "C" {
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int;
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int;
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context,
        attr: *mut ibv_ah_attr,
        mac: *mut u8,
        vid: *mut u16,
    ) -> c_int;
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        attr: *mut ibv_ah_attr,
    ) -> c_int;
    fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: u32, kind: *mut u32) -> c_int;
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        size: usize,
    ) -> c_int;
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        most: usize,
        flags: u32,
        size: usize,
    ) -> isize;
    fn adverb_post_wait(qp: *mut ibv_qp, cq: *mut ibv_cq, index: u32) -> c_int;
    fn adverb_post_enable(qp: *mut ibv_qp, target: *mut ibv_qp, index: u32) -> c_int;
    fn adverb_post_recv_enable(qp: *mut ibv_qp, target: *mut ibv_qp, index: u32) -> c_int;
    fn adverb_post_wqe(qp: *mut ibv_qp, wqe: *const c_void, wr_id: u64) -> c_int;
    fn adverb_ring(qp: *mut ibv_qp, next: u32) -> c_int;
    fn ibv_read_sysfs_file(
        folder: *const c_char,
        file: *const c_char,
        buffer: *mut c_char,
        size: usize,
    ) -> c_int;
    fn ibv_read_ibdev_sysfs_file(
        buffer: *mut c_char,
        size: usize,
        device: *mut ibv_device,
        file: *const c_char,
    ) -> c_int;
}

/// Declares kernel commands and later calls that are not offered, which take nothing here, and lists them.
macro_rules! commands {
    ($($name:ident,)*) => {
        unsafe extern "C" {
            $(fn $name() -> c_int;)*
        }
        /// Names and calls.
        const COMMANDS: &[(&str, unsafe extern "C" fn() -> c_int)] = &[$((stringify!($name), $name),)*];
    };
}

commands! {
    _ibv_query_comp_cntr_caps,
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
    ibv_dealloc_dmah,
    ibv_destroy_comp_cntr,
    ibv_dm_export_dmabuf_fd,
    ibv_export_buf_dmabuf_fd,
    ibv_inc_comp_cntr,
    ibv_inc_err_comp_cntr,
    ibv_qp_attach_comp_cntr,
    ibv_read_comp_cntr,
    ibv_read_err_comp_cntr,
    ibv_set_comp_cntr,
    ibv_set_err_comp_cntr,
}

/// Exported names that fail by a pointer, or cannot fail: words, rates, what has no effect here, and calls
/// whose only failures are a program's use of what it has destroyed.
const NO_NUMBER: &[&str] = &[
    "__ioctl_final_num_attrs",
    "__verbs_log",
    "_verbs_init_and_alloc_context",
    "adverb_cq_ignore_overrun",
    "adverb_cq_number",
    "adverb_cq_produced",
    "adverb_cq_words",
    "adverb_direct_create_cq",
    "adverb_direct_create_qp",
    "adverb_direct_doorbell",
    "adverb_direct_words",
    "adverb_direct_wr",
    "adverb_qp_flags",
    "adverb_qp_words",
    "adverb_sq_info",
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_alloc_buf",
    "ibv_alloc_dmah",
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_create_ah",
    "ibv_create_ah_from_wc",
    "ibv_create_comp_channel",
    "ibv_create_comp_cntr",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_create_srq",
    "ibv_destroy_ah",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_fork_init",
    "ibv_free_buf",
    "ibv_free_device_list",
    "ibv_get_device_guid",
    "ibv_get_device_index",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_get_sysfs_path",
    "ibv_import_device",
    "ibv_import_dm",
    "ibv_import_mr",
    "ibv_import_pd",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_open_device",
    "ibv_port_state_str",
    "ibv_qp_to_qp_ex",
    "ibv_query_device",
    "ibv_query_ece",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_query_srq",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_reg_buf_mr",
    "ibv_reg_mr_ex",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr",
    "ibv_reg_mr_iova",
    "ibv_reg_mr_iova2",
    "ibv_unimport_dm",
    "ibv_unimport_mr",
    "ibv_unimport_pd",
    "ibv_wc_status_str",
    "mbps_to_ibv_rate",
    "mult_to_ibv_rate",
    "verbs_allow_disassociate_destroy",
    "verbs_init_cq",
    "verbs_open_device",
    "verbs_register_driver_34",
    "verbs_set_ops",
    "verbs_uninit_context",
];

/// The calls of `adverb/xchannel.h`, of a plain queue pair that has not been connected.
///
/// # Safety
/// Both objects are alive.
unsafe fn of_xchannel(walk: &mut Walk, rc: *mut ibv_qp, cq: *mut ibv_cq) {
    let wqe = [0u8; 64];
    // SAFETY: by the caller's promise; a WQE without segments is one segment long.
    unsafe {
        walk.fails("adverb_post_wait", || adverb_post_wait(rc, cq, 0).into());
        walk.fails("adverb_post_enable", || adverb_post_enable(rc, rc, 0).into());
        walk.fails("adverb_post_recv_enable", || adverb_post_recv_enable(rc, rc, 0).into());
        walk.fails("adverb_post_wqe", || adverb_post_wqe(rc, wqe.as_ptr().cast(), 0).into());
        walk.fails("adverb_ring", || adverb_ring(rc, 1 << 20).into());
    }
}

/// Runs a call that must fail, and compares what it returns with errno: the number itself, or its negative,
/// or -1 where that is how the call says it.
struct Walk {
    seen: BTreeSet<&'static str>,
}

impl Walk {
    fn fails(&mut self, name: &'static str, call: impl FnOnce() -> i64) {
        self.seen.insert(name);
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = 0 };
        let returned = call();
        let errno = errno();
        assert_ne!(returned, 0, "{name} was to fail");
        assert_ne!(errno, 0, "{name} returned {returned} and left errno at 0");
        assert!(returned == -1 || returned.abs() == errno.into(), "{name}: {returned}, errno {errno}");
    }
}

fn nonblocking(fd: c_int) {
    // SAFETY: sets a flag of a descriptor that the test owns.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

/// Windows, and the calls that `verbs.h` makes through the context.
///
/// # Safety
/// Live objects of the fixture's.
unsafe fn through_the_context(
    walk: &mut Walk,
    f: &Fixture,
    rc: *mut ibv_qp,
    srq: *mut ibv_srq,
    cq: *mut ibv_cq,
) {
    let context = f.context;
    // SAFETY: live objects and valid structs, except where a call refuses them by their values.
    unsafe {
        let mut port = zeroed();
        // A region with a window bound to it stays.
        let memory = [0u8; 64];
        let bindable = ibv_reg_mr(f.pd, memory.as_ptr().cast_mut().cast(), 64, 0x11);
        let peer = f.qp(IBV_QPT_RC);
        f.connected_pair(rc, peer);
        let mw = (*context).ops.alloc_mw.expect("set")(f.pd, 1);
        let mut bind: ibv_mw_bind = zeroed();
        bind.send_flags = IBV_SEND_SIGNALED;
        bind.bind_info.mr = bindable;
        (bind.bind_info.addr, bind.bind_info.length) = (memory.as_ptr() as u64, 64);
        bind.bind_info.mw_access_flags = 4;
        let bind_mw = (*context).ops.bind_mw.expect("set");
        assert_eq!(bind_mw(rc, mw, &mut bind), 0);
        assert_eq!(f.completion().status, 0);
        walk.fails("ibv_dereg_mr", || ibv_dereg_mr(bindable).into());

        // Those that `verbs.h` calls through the context.
        bind.send_flags = 1 << 20;
        walk.fails("bind_mw", || bind_mw(rc, mw, &mut bind).into());
        let mut sge = f.sge(0, 8);
        let mut wr = f.send_wr(1, &mut sge);
        wr.num_sge = 9;
        walk.fails("post_send", || f.post_send(rc, &mut wr).0.into());
        for _ in 0..16 {
            assert_eq!(f.post_recv(rc, 1, 0, 8), 0);
        }
        walk.fails("post_recv", || f.post_recv(rc, 1, 0, 8).into());
        let mut receive = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &mut sge, num_sge: 9 };
        let mut bad = null_mut();
        let post = (*context).ops.post_srq_recv.expect("set");
        walk.fails("post_srq_recv", || post(srq, &mut receive, &mut bad).into());
        let verbs = extended(context);
        let mut moderation: ibv_modify_cq_attr = zeroed();
        moderation.attr_mask = 1 << 9;
        let mut rate: ibv_qp_rate_limit_attr = zeroed();
        rate.comp_mask = 1;
        let limit = verbs.modify_qp_rate_limit.expect("set");
        walk.fails("modify_qp_rate_limit", || limit(rc, &mut rate).into());
        walk.fails("modify_cq", || verbs.modify_cq.expect("set")(cq, &mut moderation).into());
        walk.fails("query_port", || {
            verbs.query_port.expect("set")(context, 9, &mut port, size_of::<ibv_port_attr>()).into()
        });

        assert_eq!((*context).ops.dealloc_mw.expect("set")(mw), 0);
        assert_eq!((ibv_destroy_qp(peer), ibv_dereg_mr(bindable)), (0, 0));
    }
}

#[test]
fn every_call_that_fails_with_a_number_leaves_it_in_errno() {
    let f = Fixture::new();
    let mut walk = Walk { seen: BTreeSet::new() };
    for (name, call) in COMMANDS {
        // SAFETY: they take and touch nothing.
        walk.fails(name, || unsafe { call() }.into());
    }
    // SAFETY: live objects and valid structs, except where a call refuses them by their values.
    unsafe {
        let channel = ibv_create_comp_channel(f.context);
        let cq = ibv_create_cq(f.context, 16, null_mut(), channel, 0);
        let mut srq_init: ibv_srq_init_attr = zeroed();
        (srq_init.attr.max_wr, srq_init.attr.max_sge) = (8, 1);
        let srq = ibv_create_srq(f.pd, &mut srq_init);
        let mut init = f.qp_init(IBV_QPT_UD);
        init.srq = srq;
        let ud = ibv_create_qp(f.pd, &mut init);
        let rc = f.qp(IBV_QPT_RC);
        assert!(!channel.is_null() && !cq.is_null() && !srq.is_null() && !ud.is_null());
        let mut group = ibv_gid([0; 16]);
        group.0[10..].copy_from_slice(&[0xff, 0xff, 239, 83, 7, 1]);
        let mut attr: ibv_qp_attr = zeroed();
        let (mut port, mut gid, mut pkey, mut kind) = (zeroed(), f.gid(), 0u16, 0u32);
        let (mut entry, mut wc, mut grh): (ibv_gid_entry, ibv_wc, ibv_grh) = (zeroed(), zeroed(), zeroed());
        let (mut ah, mut mac, mut vid, mut buffer) = (f.ah_attr(), [0u8; 6], 0u16, [0 as c_char; 64]);
        let mut ece = ibv_ece { vendor_id: 1, options: 1, comp_mask: 0 };
        let (context, size) = (f.context, size_of::<ibv_gid_entry>());

        walk.fails("ibv_destroy_comp_channel", || ibv_destroy_comp_channel(channel).into());
        walk.fails("ibv_destroy_cq", || ibv_destroy_cq(f.cq).into());
        walk.fails("ibv_destroy_srq", || ibv_destroy_srq(srq).into());
        walk.fails("ibv_dealloc_pd", || ibv_dealloc_pd(f.pd).into());
        walk.fails("ibv_attach_mcast", || ibv_attach_mcast(rc, &group, 0).into());
        walk.fails("ibv_detach_mcast", || ibv_detach_mcast(rc, &group, 0).into());
        walk.fails("ibv_modify_qp", || ibv_modify_qp(rc, &mut attr, 1 << 30).into());
        attr.qp_state = 3;
        walk.fails("ibv_modify_qp", || ibv_modify_qp(rc, &mut attr, 1).into());
        let mut size_of_srq: ibv_srq_attr = zeroed();
        walk.fails("ibv_modify_srq", || ibv_modify_srq(srq, &mut size_of_srq, 1).into());
        walk.fails("ibv_modify_srq", || ibv_modify_srq(srq, &mut size_of_srq, 1 << 5).into());
        walk.fails("ibv_resize_cq", || ibv_resize_cq(cq, 0).into());
        walk.fails("ibv_query_port", || ibv_query_port(context, 9, &mut port).into());
        let mut speed = 0u64;
        walk.fails("ibv_query_port_speed", || ibv_query_port_speed(context, 9, &mut speed).into());
        walk.fails("ibv_query_gid", || ibv_query_gid(context, 9, 0, &mut gid).into());
        walk.fails("ibv_query_gid_type", || ibv_query_gid_type(context, 9, 0, &mut kind).into());
        walk.fails("ibv_query_pkey", || ibv_query_pkey(context, 1, 77, &mut pkey).into());
        walk.fails("ibv_get_pkey_index", || ibv_get_pkey_index(context, 1, 0x1234).into());
        walk.fails("_ibv_query_gid_ex", || _ibv_query_gid_ex(context, 9, 0, &mut entry, 0, size).into());
        walk.fails("_ibv_query_gid_table", || _ibv_query_gid_table(context, &mut entry, 1, 1, size) as i64);
        walk.fails("ibv_set_ece", || ibv_set_ece(rc, &mut ece).into());
        walk.fails("ibv_resolve_eth_l2_from_gid", || {
            ibv_resolve_eth_l2_from_gid(context, &mut ah, mac.as_mut_ptr(), &mut vid).into()
        });
        walk.fails("ibv_init_ah_from_wc", || {
            ibv_init_ah_from_wc(context, 1, &mut wc, &mut grh, &mut ah).into()
        });
        walk.fails("ibv_read_sysfs_file", || {
            let (folder, file) = (c"/nowhere".as_ptr(), c"nothing".as_ptr());
            ibv_read_sysfs_file(folder, file, buffer.as_mut_ptr(), buffer.len()).into()
        });
        walk.fails("ibv_read_ibdev_sysfs_file", || {
            let file = c"nothing".as_ptr();
            ibv_read_ibdev_sysfs_file(buffer.as_mut_ptr(), buffer.len(), (*context).device, file).into()
        });
        walk.fails("ibv_rereg_mr", || ibv_rereg_mr(f.mr, 1 << 20, null_mut(), null_mut(), 0, 0).into());
        let (mut of, mut with) = (null_mut(), null_mut());
        nonblocking((*channel).fd);
        walk.fails("ibv_get_cq_event", || ibv_get_cq_event(channel, &mut of, &mut with).into());
        nonblocking((*context).async_fd);
        let mut event: ibv_async_event = zeroed();
        walk.fails("ibv_get_async_event", || ibv_get_async_event(context, &mut event).into());
        assert_eq!(ibv_attach_mcast(ud, &group, 0), 0);
        walk.fails("ibv_destroy_qp", || ibv_destroy_qp(ud).into());
        assert_eq!(ibv_detach_mcast(ud, &group, 0), 0);

        through_the_context(&mut walk, &f, rc, srq, cq);
        of_xchannel(&mut walk, rc, cq);
        assert_eq!((ibv_destroy_qp(ud), ibv_destroy_qp(rc)), (0, 0));
        assert_eq!((ibv_destroy_srq(srq), ibv_destroy_cq(cq)), (0, 0));
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
    }
    let exported = MAP.lines().filter_map(|line| line.strip_prefix("        ")?.strip_suffix(';'));
    let exported: Vec<_> = exported.filter(|name| *name != "*").collect();
    assert!(exported.len() > 130, "the map was read");
    for name in exported {
        let listed = NO_NUMBER.contains(&name);
        assert!(listed != walk.seen.contains(name), "{name}: does it fail with a number?");
    }
    f.close();
}
