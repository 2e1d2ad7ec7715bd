//! Objects, posting, polling and events through the C ABI, in one process against itself.

mod errno;
mod fixture;

use adverb_verbs::abi::*;
use core::mem::zeroed;
use core::ptr::null_mut;
use fixture::*;
use std::os::fd::AsRawFd;

#[test]
fn a_list_stops_at_the_first_bad_request_and_says_which() {
    let f = Fixture::new();
    let (a, b) = (f.qp(IBV_QPT_RC), f.qp(IBV_QPT_RC));
    f.connected_pair(a, b);
    assert_eq!(f.post_recv(b, 7, 4096, 64), 0);
    let (mut good_sge, mut bad_sge) = (f.sge(0, 16), f.sge(0, 16));
    let mut third = f.send_wr(3, &mut good_sge);
    let mut second = f.send_wr(2, &mut bad_sge);
    second.num_sge = 3; // one more than the queue pair takes
    second.next = &mut third;
    let mut first = f.send_wr(1, &mut good_sge);
    first.next = &mut second;
    let (result, bad) = f.post_send(a, &mut first);
    assert_eq!((result, bad), (libc::EINVAL, &raw mut second));
    // The first one was posted, the third one was not.
    let mut ids = [f.completion().wr_id, f.completion().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 7]);
    assert!(f.poll().is_none());
    // SAFETY: live objects.
    unsafe {
        assert_eq!(ibv_dealloc_pd(f.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(f.cq), libc::EBUSY);
        assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0));
    }
    f.close();
}

#[test]
fn inline_data_is_copied_when_posted() {
    let f = Fixture::new();
    let (a, b) = (f.qp(IBV_QPT_RC), f.qp(IBV_QPT_RC));
    f.connected_pair(a, b);
    let mut text = *b"inline";
    let mut sge = ibv_sge { addr: text.as_ptr() as u64, length: 6, lkey: 0 };
    let mut wr = f.send_wr(1, &mut sge);
    wr.send_flags |= IBV_SEND_INLINE;
    (wr.opcode, wr.imm_data) = (IBV_WR_SEND_WITH_IMM, 0x1234_5678u32.to_be());
    assert_eq!(f.post_recv(b, 2, 100, 64), 0);
    assert_eq!(f.post_send(a, &mut wr).0, 0);
    text.fill(b'-');
    let wcs = [f.completion(), f.completion()];
    let received = wcs.iter().find(|wc| wc.wr_id == 2).expect("the receive");
    assert_eq!((received.status, received.opcode, received.byte_len), (0, 128, 6));
    assert_eq!((received.wc_flags, u32::from_be(received.imm_data)), (IBV_WC_WITH_IMM, 0x1234_5678));
    assert_eq!(&f.memory[100..106], b"inline");
    // One byte more than asked for at creation may be refused, far more must be.
    let mut long = ibv_sge { addr: f.memory.as_ptr() as u64, length: 4096, lkey: 0 };
    wr.sg_list = &mut long;
    assert_eq!(f.post_send(a, &mut wr).0, libc::EINVAL);
    // SAFETY: live objects.
    unsafe { assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0)) };
    f.close();
}

#[test]
fn posting_in_the_wrong_state_is_refused_and_flushed_in_error() {
    let f = Fixture::new();
    let qp = f.qp(IBV_QPT_RC);
    let mut sge = f.sge(0, 8);
    let mut wr = f.send_wr(5, &mut sge);
    assert_eq!(f.post_send(qp, &mut wr).0, libc::EINVAL);
    assert_eq!(f.post_recv(qp, 1, 0, 8), libc::EINVAL);
    // SAFETY: live objects; integers.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = 6;
        assert_eq!(ibv_modify_qp(qp, &mut attr, 1), 0);
        assert_eq!((*qp).state, 6);
        assert_eq!(f.post_send(qp, &mut wr).0, 0);
        let wc = f.completion();
        assert_eq!((wc.wr_id, wc.status), (5, 5));
        attr.qp_state = 77;
        assert_eq!(ibv_modify_qp(qp, &mut attr, 1), libc::EINVAL);
        assert_eq!(ibv_modify_qp(qp, &mut attr, 1 << 30), libc::EINVAL);
        let mut init: ibv_qp_init_attr = zeroed();
        assert_eq!(ibv_query_qp(qp, &mut attr, 1, &mut init), 0);
        assert_eq!((attr.qp_state, init.send_cq, init.qp_type), (6, f.cq, IBV_QPT_RC));
        assert!(init.cap.max_send_wr >= 16);
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
    f.close();
}

#[test]
fn completion_events_are_delivered_once_and_waited_for() {
    let f = Fixture::new();
    // SAFETY: live objects throughout.
    unsafe {
        let channel = ibv_create_comp_channel(f.context);
        let mark = 0x55usize as *mut _;
        let cq = ibv_create_cq(f.context, 8, mark, channel, 0);
        assert_eq!(ibv_destroy_comp_channel(channel), libc::EBUSY);
        let mut init = f.qp_init(IBV_QPT_RC);
        init.recv_cq = cq;
        let qp = ibv_create_qp(f.pd, &mut init);
        let arm = |solicited| (*f.context).ops.req_notify_cq.expect("set")(cq, solicited);
        let mut wc: ibv_wc = zeroed();
        let poll = |wc: &mut ibv_wc| (*f.context).ops.poll_cq.expect("set")(cq, 1, wc);
        let (mut who, mut context) = (null_mut(), null_mut());
        assert_ne!(libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK), -1);
        assert_eq!(ibv_get_cq_event(channel, &mut who, &mut context), -1);
        assert_eq!(errno(), libc::EAGAIN);
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = 6;
        assert_eq!(ibv_modify_qp(qp, &mut attr, 1), 0);
        assert_eq!(arm(0), 0);
        assert_eq!(f.post_recv(qp, 1, 0, 8), 0); // flushed at once
        assert_eq!(f.post_recv(qp, 2, 0, 8), 0); // raises nothing: not armed any more
        assert_eq!(ibv_get_cq_event(channel, &mut who, &mut context), 0);
        assert_eq!((who, context), (cq, mark));
        assert_eq!(ibv_get_cq_event(channel, &mut who, &mut context), -1);
        while poll(&mut wc) == 1 {}
        // A second event that nobody takes must not outlive the queue.
        assert_eq!(arm(0), 0);
        assert_eq!(f.post_recv(qp, 3, 0, 8), 0);
        assert_eq!(ibv_destroy_qp(qp), 0);
        let (address, channel_address) = (cq as usize, channel as usize);
        let destroyed = std::thread::spawn(move || ibv_destroy_cq(address as *mut ibv_cq));
        // It waits for the event that was taken.
        while libc::poll(&mut libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 }, 1, 0) == 1
        {
            std::thread::yield_now();
        }
        assert!(!destroyed.is_finished());
        ibv_ack_cq_events(cq, 1);
        assert_eq!(destroyed.join().expect("no panic"), 0);
        let channel = channel_address as *mut ibv_comp_channel;
        assert_eq!(ibv_get_cq_event(channel, &mut who, &mut context), -1);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
    }
    f.close();
}

#[test]
fn queues_take_what_they_said_and_a_shared_one_changes_its_size() {
    let f = Fixture::new();
    // SAFETY: live objects throughout.
    unsafe {
        let mut init = f.qp_init(IBV_QPT_RC);
        init.cap.max_send_wr = 13;
        let (a, b) = (ibv_create_qp(f.pd, &mut init), f.qp(IBV_QPT_RC));
        f.connected_pair(a, b);
        let said = init.cap.max_send_wr;
        assert!(said >= 13);
        let mut sge = f.sge(0, 8);
        // Nobody has posted a receive: none completes.
        for wr_id in 0..said.into() {
            assert_eq!(f.post_send(a, &mut f.send_wr(wr_id, &mut sge)).0, 0, "request {wr_id} of {said}");
        }
        assert_eq!(f.post_send(a, &mut f.send_wr(99, &mut sge)).0, libc::ENOMEM);
        assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0));

        let mut init: ibv_srq_init_attr = zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (8, 1);
        let srq = ibv_create_srq(f.pd, &mut init);
        let (mut sge, mut bad) = (f.sge(0, 64), null_mut());
        let mut fill = |most: u32| {
            let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
            let post = (*f.context).ops.post_srq_recv.expect("set");
            (0..most).take_while(|_| post(srq, &mut wr, &mut bad) == 0).count() as u32
        };
        assert_eq!(fill(1000), init.attr.max_wr);
        let mut attr = ibv_srq_attr { max_wr: 100, max_sge: 0, srq_limit: 0 };
        assert_eq!(ibv_modify_srq(srq, &mut attr, IBV_SRQ_MAX_WR as i32), 0);
        assert_eq!(ibv_query_srq(srq, &mut attr), 0);
        assert!(attr.max_wr >= 100 && attr.max_sge == 1);
        assert_eq!(fill(1000), attr.max_wr - init.attr.max_wr, "what was posted before is still there");
        let mut fewer = ibv_srq_attr { max_wr: 50, max_sge: 0, srq_limit: 0 };
        assert_ne!(ibv_modify_srq(srq, &mut fewer, IBV_SRQ_MAX_WR as i32), 0, "more are posted");
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
    f.close();
}

#[test]
fn a_shared_queue_below_its_limit_raises_an_event() {
    let f = Fixture::new();
    // SAFETY: live objects throughout.
    unsafe {
        let mut init: ibv_srq_init_attr = zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (8, 1);
        let srq = ibv_create_srq(f.pd, &mut init);
        assert!(!srq.is_null() && init.attr.max_wr >= 8);
        let mut sge = f.sge(0, 64);
        let mut bad = null_mut();
        for wr_id in 0..4 {
            let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
            assert_eq!((*f.context).ops.post_srq_recv.expect("set")(srq, &mut wr, &mut bad), 0);
        }
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 4 };
        assert_eq!(ibv_modify_srq(srq, &mut attr, IBV_SRQ_LIMIT as i32), 0);
        assert_eq!(ibv_modify_srq(srq, &mut attr, 1 << 5), libc::EINVAL);
        let mut init = f.qp_init(IBV_QPT_RC);
        init.srq = srq;
        let (a, b) = (f.qp(IBV_QPT_RC), ibv_create_qp(f.pd, &mut init));
        f.connected_pair(a, b);
        assert_eq!(f.post_recv(b, 1, 0, 8), libc::EINVAL, "it has no receive queue of its own");
        let mut send_sge = f.sge(128, 8);
        assert_eq!(f.post_send(a, &mut f.send_wr(9, &mut send_sge)).0, 0);
        let mut event: ibv_async_event = zeroed();
        loop {
            assert_eq!(ibv_get_async_event(f.context, &mut event), 0);
            if event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED {
                break;
            }
            ibv_ack_async_event(&mut event);
        }
        assert_eq!(event.element, srq.cast());
        assert_eq!((f.completion().status, f.completion().status), (0, 0));
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
        assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0));
        ibv_ack_async_event(&mut event);
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
    f.close();
}

#[test]
fn datagrams_and_the_way_back() {
    let f = Fixture::new();
    let (a, b) = (f.qp(IBV_QPT_UD), f.qp(IBV_QPT_UD));
    f.activate(a);
    f.activate(b);
    // SAFETY: live objects throughout.
    unsafe {
        let ah = ibv_create_ah(f.pd, &mut f.ah_attr());
        assert!(!ah.is_null());
        let mut without_grh = f.ah_attr();
        without_grh.is_global = 0;
        assert!(ibv_create_ah(f.pd, &mut without_grh).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(f.post_recv(b, 2, 1024, 128), 0);
        let mut sge = f.sge(0, 20);
        let mut wr = f.send_wr(1, &mut sge);
        wr.wr.ud = WrUd { ah, remote_qpn: (*b).qp_num, remote_qkey: 0x1111 };
        assert_eq!(f.post_send(a, &mut wr).0, 0);
        let wcs = [f.completion(), f.completion()];
        let mut received = *wcs.iter().find(|wc| wc.wr_id == 2).expect("the receive");
        assert_eq!((received.byte_len, received.src_qp), (60, (*a).qp_num));
        assert_eq!((received.wc_flags & IBV_WC_GRH, received.sl & 7), (IBV_WC_GRH, 2));
        assert_eq!(f.memory[1024 + 20], 0x45, "an IPv4 header in the GRH area");
        let back = ibv_create_ah_from_wc(f.pd, &mut received, f.memory[1024..].as_mut_ptr().cast(), 1);
        assert!(!back.is_null());
        // An address of another domain is refused.
        let other = ibv_alloc_pd(f.context);
        let foreign = ibv_create_ah(other, &mut f.ah_attr());
        wr.wr.ud.ah = foreign;
        assert_eq!(f.post_send(a, &mut wr).0, libc::EINVAL);
        wr.wr.ud.ah = null_mut();
        assert_eq!(f.post_send(a, &mut wr).0, libc::EINVAL);
        assert_eq!(ibv_dealloc_pd(other), libc::EBUSY);
        for handle in [ah, back, foreign] {
            assert_eq!(ibv_destroy_ah(handle), 0);
        }
        assert_eq!(ibv_dealloc_pd(other), 0);
        assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0));
    }
    f.close();
}

#[test]
fn built_requests_are_posted_together_or_not_at_all() {
    const OPS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
    let f = Fixture::new();
    assert!(f.qp_ex(IBV_QPT_RC, OPS | 1 << 10).is_null(), "TSO is not offered");
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let (a, b) = (f.qp_ex(IBV_QPT_RC, OPS), f.qp(IBV_QPT_RC));
    f.connected_pair(a, b);
    // SAFETY: live objects throughout.
    unsafe {
        assert!(ibv_qp_to_qp_ex(b).is_null());
        let ex = ibv_qp_to_qp_ex(a);
        let calls = *ex;
        let (start, complete) = (calls.wr_start.expect("set"), calls.wr_complete.expect("set"));
        let (send, set_sge) = (calls.wr_send.expect("set"), calls.wr_set_sge.expect("set"));
        let sge = f.sge(0, 8);
        let build = |ids: core::ops::Range<u64>| {
            start(ex);
            for wr_id in ids {
                ((*ex).wr_id, (*ex).wr_flags) = (wr_id, IBV_SEND_SIGNALED);
                send(ex);
                set_sge(ex, sge.lkey, sge.addr, sge.length);
            }
        };
        for wr_id in 100..104 {
            assert_eq!(f.post_recv(b, wr_id, 1024, 64), 0);
        }
        build(1..3);
        calls.wr_set_inline_data.expect("set")(ex, f.memory.as_mut_ptr().cast(), 4096);
        assert_eq!(complete(ex), libc::EINVAL);
        build(3..4);
        calls.wr_abort.expect("set")(ex);
        build(5..100_000); // more than the queue holds
        assert_eq!(complete(ex), libc::ENOMEM);
        build(10..12);
        assert_eq!(complete(ex), 0);
        let mut ids: Vec<u64> = (0..4).map(|_| f.completion().wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [10, 11, 100, 101]);
        assert!(f.poll().is_none());
        assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0));
    }
    f.close();
}

#[test]
fn an_xrc_domain_is_shared_by_its_file_and_a_target_by_its_number() {
    let f = Fixture::new();
    let verbs = extended(f.context);
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    // SAFETY: live objects throughout; integers and pointers.
    unsafe {
        let mut attr = ibv_xrcd_init_attr { comp_mask: 3, fd: file.as_raw_fd(), oflags: 0 };
        let open = verbs.open_xrcd.expect("set");
        assert!(open(f.context, &mut attr).is_null());
        assert_eq!(errno(), libc::ENOENT);
        attr.oflags = libc::O_CREAT;
        let (one, two) = (open(f.context, &mut attr), open(f.context, &mut attr));
        attr.oflags |= libc::O_EXCL;
        assert!(!one.is_null() && !two.is_null() && open(f.context, &mut attr).is_null());
        let mut init: ibv_qp_init_attr_ex = zeroed();
        (init.qp_type, init.comp_mask, init.xrcd) = (IBV_QPT_XRC_RECV, IBV_QP_INIT_ATTR_XRCD, one);
        let target = verbs.create_qp_ex.expect("set")(f.context, &mut init);
        assert!(!target.is_null(), "{}", errno());
        let mut find = ibv_qp_open_attr {
            comp_mask: IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
            qp_num: (*target).qp_num,
            xrcd: two,
            qp_context: null_mut(),
            qp_type: IBV_QPT_XRC_RECV,
        };
        let again = verbs.open_qp.expect("set")(f.context, &mut find);
        assert!(!again.is_null() && again != target);
        find.qp_num ^= 1;
        assert!(verbs.open_qp.expect("set")(f.context, &mut find).is_null());
        // The target lives until its last handle goes; the domain, until the target does.
        let close = verbs.close_xrcd.expect("set");
        assert_eq!(close(two), 0);
        assert_eq!(ibv_destroy_qp(target), 0);
        assert_eq!(close(one), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(again), 0);
        assert_eq!(close(one), 0);
    }
    f.close();
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let f = Fixture::new();
    let memory = f.memory.as_mut_ptr();
    // SAFETY: live objects; the bad ranges are refused before anything touches them.
    unsafe {
        assert!(ibv_reg_mr(f.pd, 64usize as *mut _, 4096, 1).is_null());
        assert_eq!(errno(), libc::EFAULT);
        assert!(ibv_reg_mr(f.pd, memory.cast(), 16, 2).is_null(), "remote write without local write");
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(ibv_rereg_mr(f.mr, 1, null_mut(), null_mut(), 0, 0), -1);
        assert_eq!(ibv_rereg_mr(f.mr, 8, null_mut(), null_mut(), 0, 0), -1);
        assert_eq!(ibv_rereg_mr(f.mr, 4, null_mut(), null_mut(), 0, 2), -4);
        let other = ibv_alloc_pd(f.context);
        assert_eq!(ibv_rereg_mr(f.mr, 3, other, memory.add(64).cast(), 128, 0), 0);
        assert_eq!(((*f.mr).pd, (*f.mr).addr, (*f.mr).length), (other, memory.add(64).cast(), 128));
        assert_eq!(ibv_dealloc_pd(other), libc::EBUSY);
        assert_eq!(ibv_rereg_mr(f.mr, 2, f.pd, null_mut(), 0, 0), 0);
        assert_eq!(ibv_dealloc_pd(other), 0);
        let alloc_mw = (*f.context).ops.alloc_mw.expect("set");
        assert!(alloc_mw(f.pd, 3).is_null());
        let mw = alloc_mw(f.pd, IBV_MW_TYPE_2);
        assert!(!mw.is_null());
        assert_eq!((*f.context).ops.dealloc_mw.expect("set")(mw), 0);
    }
    f.close();
}

#[test]
fn domains_count_their_users() {
    let f = Fixture::new();
    let verbs = extended(f.context);
    // SAFETY: live objects throughout.
    unsafe {
        let td = verbs.alloc_td.expect("set")(f.context, &mut ibv_td_init_attr { comp_mask: 0 });
        let pd = ibv_alloc_pd(f.context);
        let mut attr: ibv_parent_domain_init_attr = zeroed();
        (attr.pd, attr.td) = (pd, td);
        let parent = verbs.alloc_parent_domain.expect("set")(f.context, &mut attr);
        assert!(!parent.is_null());
        let mr = ibv_reg_mr(parent, f.memory.as_mut_ptr().cast(), 64, 1);
        let dealloc_td = verbs.dealloc_td.expect("set");
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(parent), libc::EBUSY);
        assert_eq!(dealloc_td(td), libc::EBUSY);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(parent), 0);
        assert_eq!(dealloc_td(td), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
    f.close();
}

#[test]
fn device_memory_is_bounded_and_reached_by_offset() {
    let f = Fixture::new();
    let verbs = extended(f.context);
    // SAFETY: live objects throughout.
    unsafe {
        let mut attr = ibv_alloc_dm_attr { length: 64, log_align_req: 12, comp_mask: 0 };
        let dm = verbs.alloc_dm.expect("set")(f.context, &mut attr);
        assert!(!dm.is_null());
        let (to, from) = ((*dm).memcpy_to_dm.expect("set"), (*dm).memcpy_from_dm.expect("set"));
        let mut out = [0u8; 8];
        assert_eq!(to(dm, 56, b"adverbs!".as_ptr().cast(), 8), 0);
        assert_eq!(from(out.as_mut_ptr().cast(), dm, 56, 8), 0);
        assert_eq!(&out, b"adverbs!");
        for (offset, length) in [(60, 8), (1, 4), (0, 3), (u64::MAX - 3, 8)] {
            assert_eq!(to(dm, offset, out.as_ptr().cast(), length), libc::EINVAL, "{offset} {length}");
        }
        let reg = verbs.reg_dm_mr.expect("set");
        assert!(reg(f.pd, dm, 0, 68, 0x21).is_null());
        assert!(reg(f.pd, dm, 0, 64, 1).is_null(), "it must be zero-based");
        let mr = reg(f.pd, dm, 32, 32, 0x21);
        assert_eq!(verbs.free_dm.expect("set")(dm), libc::EBUSY);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(verbs.free_dm.expect("set")(dm), 0);
        attr.length = usize::MAX;
        assert!(verbs.alloc_dm.expect("set")(f.context, &mut attr).is_null());
    }
    f.close();
}

#[test]
fn objects_have_second_names_within_the_process() {
    let f = Fixture::new();
    let verbs = extended(f.context);
    // SAFETY: live objects throughout.
    unsafe {
        let stranger = std::fs::File::open("/dev/null").expect("a file");
        assert!(ibv_import_device(stranger.as_raw_fd()).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        let context = ibv_import_device(libc::dup((*f.context).cmd_fd));
        assert!(!context.is_null());
        assert!(ibv_import_pd(context, u32::MAX).is_null());
        let pd = ibv_import_pd(context, (*f.pd).handle);
        let mr = ibv_import_mr(pd, (*f.mr).handle);
        assert_eq!(((*mr).lkey, (*mr).rkey, (*mr).length), ((*f.mr).lkey, (*f.mr).rkey, 8192));
        let mut attr = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
        let dm = verbs.alloc_dm.expect("set")(f.context, &mut attr);
        let again = ibv_import_dm(context, (*dm).handle);
        let mut out = [0u8; 4];
        assert_eq!((*dm).memcpy_to_dm.expect("set")(dm, 8, b"same".as_ptr().cast(), 4), 0);
        assert_eq!((*again).memcpy_from_dm.expect("set")(out.as_mut_ptr().cast(), again, 8, 4), 0);
        assert_eq!(&out, b"same");
        // The memory stays for the name that is left.
        assert_eq!(verbs.free_dm.expect("set")(dm), 0);
        assert_eq!((*again).memcpy_from_dm.expect("set")(out.as_mut_ptr().cast(), again, 8, 4), 0);
        ibv_unimport_dm(again);
        ibv_unimport_mr(mr);
        ibv_unimport_pd(pd);
        assert_eq!(ibv_close_device(context), 0);
    }
    f.close();
}

#[test]
fn closing_takes_along_what_was_left() {
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/left-open");
    let file = std::fs::File::create(path).expect("a file");
    let f = Fixture::new();
    let _with_buffers = f.qp(IBV_QPT_RC);
    // SAFETY: live objects; the context is given up, with all that was left in it.
    let find = |f: &Fixture, oflags| unsafe {
        let mut attr = ibv_xrcd_init_attr { comp_mask: 3, fd: file.as_raw_fd(), oflags };
        extended(f.context).open_xrcd.expect("set")(f.context, &mut attr)
    };
    let xrcd = find(&f, libc::O_CREAT);
    // SAFETY: live objects; integers and pointers; the context is given up.
    unsafe {
        let mut init: ibv_qp_init_attr_ex = zeroed();
        (init.qp_type, init.comp_mask, init.xrcd) = (IBV_QPT_XRC_RECV, IBV_QP_INIT_ATTR_XRCD, xrcd);
        assert!(!extended(f.context).create_qp_ex.expect("set")(f.context, &mut init).is_null());
        assert_eq!(ibv_close_device(f.context), 0);
    }
    // The domain is gone, and so is the target, without whose end the domain would have stayed.
    let g = Fixture::new();
    assert!(find(&g, 0).is_null());
    assert_eq!(errno(), libc::ENOENT);
    g.close();
}
