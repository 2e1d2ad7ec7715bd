//! The C ABI as a program sees it: exported names, and calls through the context.

use adverb_verbs::abi::*;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, zeroed};
use core::ptr::null_mut;
use std::sync::Once;

unsafe extern "C" {
    pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    pub fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int;
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> c_int;
    pub fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    pub fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port: u8,
    ) -> *mut ibv_ah;
    pub fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    pub fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context;
    pub fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd;
    pub fn ibv_unimport_pd(pd: *mut ibv_pd);
    pub fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr;
    pub fn ibv_unimport_mr(mr: *mut ibv_mr);
    pub fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm;
    pub fn ibv_unimport_dm(dm: *mut ibv_dm);
    pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    pub fn ibv_ack_async_event(event: *mut ibv_async_event);
}

/// The NIC's own address for these tests, and a directory of their own, so that they meet no other NIC.
fn environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let directory = concat!(env!("CARGO_TARGET_TMPDIR"), "/objects-nic");
        // SAFETY: before the first look at the environment; all tests come through here first.
        unsafe { std::env::set_var("ADVERB", format!("address=127.83.7.1,directory={directory}")) };
    });
}

pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub fn open() -> *mut ibv_context {
    environment();
    // SAFETY: the list is freed after the device was opened, as the manual says.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&mut count);
        assert!(!list.is_null() && count == 1, "one device");
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        assert!(!context.is_null(), "open: {}", std::io::Error::last_os_error());
        context
    }
}

pub fn extended(context: *mut ibv_context) -> &'static verbs_context {
    // SAFETY: what `verbs.h` does inline.
    unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// A device, a domain, a completion queue and registered memory.
pub struct Fixture {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub mr: *mut ibv_mr,
    pub memory: &'static mut [u8],
}

impl Fixture {
    pub fn new() -> Self {
        let context = open();
        let memory = Box::leak(vec![0u8; 8192].into_boxed_slice());
        // SAFETY: live objects; the memory is never freed.
        unsafe {
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 64, null_mut(), null_mut(), 0);
            let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), 0xf);
            assert!(!pd.is_null() && !cq.is_null() && !mr.is_null());
            Fixture { context, pd, cq, mr, memory }
        }
    }

    pub fn qp_init(&self, qp_type: u32) -> ibv_qp_init_attr {
        // SAFETY: pointers and integers.
        let mut init: ibv_qp_init_attr = unsafe { zeroed() };
        (init.send_cq, init.recv_cq, init.qp_type) = (self.cq, self.cq, qp_type);
        init.cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        init
    }

    pub fn qp(&self, qp_type: u32) -> *mut ibv_qp {
        // SAFETY: live objects.
        let qp = unsafe { ibv_create_qp(self.pd, &mut self.qp_init(qp_type)) };
        assert!(!qp.is_null());
        qp
    }

    /// An extended queue pair with all operations that there are.
    pub fn qp_ex(&self, qp_type: u32, ops: u64) -> *mut ibv_qp {
        // SAFETY: pointers and integers; the plain attributes are a prefix; live objects.
        unsafe {
            let mut init: ibv_qp_init_attr_ex = zeroed();
            (&raw mut init).cast::<ibv_qp_init_attr>().write(self.qp_init(qp_type));
            init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.pd = self.pd;
            init.send_ops_flags = ops;
            extended(self.context).create_qp_ex.expect("set")(self.context, &mut init)
        }
    }

    pub fn gid(&self) -> ibv_gid {
        let mut gid = ibv_gid([0; 16]);
        // SAFETY: an open context.
        assert_eq!(unsafe { ibv_query_gid(self.context, 1, 0, &mut gid) }, 0);
        gid
    }

    pub fn ah_attr(&self) -> ibv_ah_attr {
        // SAFETY: integers.
        let mut attr: ibv_ah_attr = unsafe { zeroed() };
        (attr.grh.dgid, attr.is_global, attr.port_num, attr.grh.hop_limit) = (self.gid(), 1, 1, 64);
        attr
    }

    /// Takes a connected queue pair to RTS.
    pub fn connect(&self, qp: *mut ibv_qp, peer: u32) {
        // SAFETY: integers; a live queue pair.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            (attr.qp_state, attr.port_num, attr.qp_access_flags) = (1, 1, 0xf);
            assert_eq!(ibv_modify_qp(qp, &mut attr, 0x39), 0, "to INIT");
            (attr.qp_state, attr.path_mtu, attr.dest_qp_num) = (2, 3, peer);
            (attr.max_dest_rd_atomic, attr.min_rnr_timer, attr.ah_attr) = (4, 12, self.ah_attr());
            assert_eq!(ibv_modify_qp(qp, &mut attr, 0x12_9181), 0, "to RTR");
            (attr.qp_state, attr.timeout, attr.retry_cnt, attr.rnr_retry) = (3, 14, 7, 7);
            attr.max_rd_atomic = 4;
            assert_eq!(ibv_modify_qp(qp, &mut attr, 0x1_2e01), 0, "to RTS");
        }
    }

    /// Takes a datagram queue pair to RTS.
    pub fn activate(&self, qp: *mut ibv_qp) {
        // SAFETY: integers; a live queue pair.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            (attr.qp_state, attr.port_num, attr.qkey) = (1, 1, 0x1111);
            assert_eq!(ibv_modify_qp(qp, &mut attr, 0x71), 0, "to INIT");
            attr.qp_state = 2;
            assert_eq!(ibv_modify_qp(qp, &mut attr, 1), 0, "to RTR");
            attr.qp_state = 3;
            assert_eq!(ibv_modify_qp(qp, &mut attr, 0x1_0001), 0, "to RTS");
        }
    }

    pub fn connected_pair(&self, a: *mut ibv_qp, b: *mut ibv_qp) {
        // SAFETY: live queue pairs; a public field.
        let (qpn_a, qpn_b) = unsafe { ((*a).qp_num, (*b).qp_num) };
        self.connect(a, qpn_b);
        self.connect(b, qpn_a);
    }

    pub fn sge(&self, at: usize, length: u32) -> ibv_sge {
        // SAFETY: a public field of a live region.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: self.memory.as_ptr() as u64 + at as u64, length, lkey }
    }

    pub fn send_wr(&self, wr_id: u64, sge: &mut ibv_sge) -> ibv_send_wr {
        // SAFETY: pointers and integers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, sge, 1);
        (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
        wr
    }

    pub fn post_send(&self, qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
        let mut bad = null_mut();
        // SAFETY: a live queue pair and a valid list.
        let result = unsafe { (*self.context).ops.post_send.expect("set")(qp, wr, &mut bad) };
        (result, bad)
    }

    pub fn post_recv(&self, qp: *mut ibv_qp, wr_id: u64, at: usize, length: u32) -> c_int {
        let mut sge = self.sge(at, length);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a live queue pair and a valid list.
        unsafe { (*self.context).ops.post_recv.expect("set")(qp, &mut wr, &mut bad) }
    }

    pub fn poll(&self) -> Option<ibv_wc> {
        // SAFETY: integers; a live completion queue.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            match (*self.context).ops.poll_cq.expect("set")(self.cq, 1, &mut wc) {
                0 => None,
                1 => Some(wc),
                error => panic!("poll: {error}"),
            }
        }
    }

    /// The next completion.
    pub fn completion(&self) -> ibv_wc {
        for _ in 0..50_000_000u64 {
            if let Some(wc) = self.poll() {
                return wc;
            }
        }
        panic!("no completion came")
    }

    /// Destroys what `new` made.
    pub fn close(self) {
        // SAFETY: live objects that nothing uses any more.
        unsafe {
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}
