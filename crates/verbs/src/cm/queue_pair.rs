//! Queue pairs and shared receive queues of identifiers, and the states that a connection moves them through.

use crate::abi::*;
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::cm::connect::device_limits;
use crate::cm::event::address_of;
use crate::cm::id::{Id, State};
use crate::cm::{common_pd, done};
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::handle::errno;
use crate::qp::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp};
use crate::query::PORT;
use crate::srq::{create_srq_ex, ibv_destroy_srq};
use core::ffi::c_int;

/// What peers of a connection may do; READs and atomics only if some are answered.
const WRITE: u32 = IBV_ACCESS_REMOTE_WRITE;
const ALL: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Inline data that a queue pair has room for at least, as rxe's: a work request holds it in place of the
/// address that it must have room for. rdma_xclient asks for none and sends 16 bytes.
const INLINE_MIN: u32 = 16;

/// Attributes of a state, as far as the identifier's connection has come. `None` if it has not come so far.
fn attributes(id: &Id, state: &State, qp_state: u32) -> Option<(ibv_qp_attr, u32)> {
    // SAFETY: integers only.
    let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
    attr.qp_state = qp_state;
    let datagram = id.is_datagram();
    let mask = match qp_state {
        IBV_QPS_INIT => {
            attr.port_num = PORT;
            if datagram {
                attr.qkey = RDMA_UDP_QKEY;
                IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
            } else {
                attr.qp_access_flags = match &state.peer {
                    None => 0,
                    Some(_) if state.responder_resources == 0 => WRITE,
                    Some(_) => ALL,
                };
                IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
            }
        }
        IBV_QPS_RTR if datagram => 0,
        IBV_QPS_RTR => {
            let peer = state.peer.as_ref()?;
            attr.ah_attr = address_of(peer.gid, peer.traffic_class);
            attr.path_mtu = peer.mtu.into();
            attr.dest_qp_num = peer.offer.qpn.get();
            attr.rq_psn = state.psn.get();
            attr.max_dest_rd_atomic = state.responder_resources.min(device_limits().0);
            attr.min_rnr_timer = 0;
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        IBV_QPS_RTS if datagram => IBV_QP_SQ_PSN,
        IBV_QPS_RTS => {
            let peer = state.peer.as_ref()?;
            attr.sq_psn = peer.offer.psn.get();
            attr.timeout = peer.ack_timeout;
            attr.retry_cnt = peer.retry_count;
            attr.rnr_retry = peer.offer.rnr_retry;
            // A peer may answer more at once than this device asks: rxe does 128.
            attr.max_rd_atomic = state.initiator_depth.min(device_limits().1);
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => return None,
    };
    Some((attr, mask | IBV_QP_STATE))
}

/// Moves the identifier's queue pair to a state.
///
/// # Safety
/// The identifier is alive, and so is its queue pair.
unsafe fn step(id: &Id, qp_state: u32) -> Result<(), c_int> {
    let (mut attr, mask) = attributes(id, &id.state(), qp_state).ok_or(libc::EINVAL)?;
    // SAFETY: by the caller's promise.
    match unsafe { ibv_modify_qp((*id.as_c()).qp, &mut attr, mask as c_int) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Moves the identifier's queue pair to where it can receive and send. What peers may do is known only now,
/// and belongs to INIT.
///
/// # Safety
/// As for `step`.
pub(super) unsafe fn to_rts(id: &Id) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    unsafe {
        step(id, IBV_QPS_INIT)?;
        step(id, IBV_QPS_RTR)?;
        step(id, IBV_QPS_RTS)
    }
}

/// Attributes with which a program moves a queue pair by itself.
///
/// # Safety
/// C ABI: see `rdma_init_qp_attr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    if id.is_null() || attr.is_null() || mask.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and places for both.
    unsafe {
        let id = Id::of(id);
        let found = attributes(id, &id.state(), (*attr).qp_state).ok_or(libc::EINVAL);
        done(found.map(|(found, which)| {
            *attr = found;
            *mask = which as c_int;
        }))
    }
}

/// A completion queue with a channel of its own.
///
/// # Safety
/// The identifier's context is open.
unsafe fn queue_with_channel(
    c: *mut rdma_cm_id,
    entries: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), c_int> {
    let entries = c_int::try_from(entries.max(1)).map_err(|_| libc::EINVAL)?;
    // SAFETY: by the caller's promise.
    unsafe {
        let channel = ibv_create_comp_channel((*c).verbs);
        if channel.is_null() {
            return Err(errno());
        }
        let cq = ibv_create_cq((*c).verbs, entries, c.cast(), channel, 0);
        if cq.is_null() {
            let cause = errno();
            ibv_destroy_comp_channel(channel);
            return Err(cause);
        }
        Ok((channel, cq))
    }
}

/// Destroys the completion queues that were made for an identifier.
///
/// # Safety
/// It is alive, and nothing uses them.
unsafe fn destroy_queues(c: *mut rdma_cm_id) {
    // SAFETY: by the caller's promise.
    unsafe {
        for (channel, cq) in [
            (&raw mut (*c).send_cq_channel, &raw mut (*c).send_cq),
            (&raw mut (*c).recv_cq_channel, &raw mut (*c).recv_cq),
        ] {
            // A queue with a channel is one of ours; a program's own is only named here.
            if !(*channel).is_null() {
                ibv_destroy_cq(*cq);
                ibv_destroy_comp_channel(*channel);
                *channel = core::ptr::null_mut();
            }
            *cq = core::ptr::null_mut();
        }
    }
}

/// Makes what completion queues a queue pair lacks.
///
/// # Safety
/// As for `create`.
unsafe fn add_queues(c: *mut rdma_cm_id, init: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    unsafe {
        if init.send_cq.is_null() {
            if (*c).send_cq.is_null() {
                ((*c).send_cq_channel, (*c).send_cq) = queue_with_channel(c, init.cap.max_send_wr)?;
            }
            init.send_cq = (*c).send_cq;
        }
        if init.recv_cq.is_null() {
            if (*c).recv_cq.is_null() {
                ((*c).recv_cq_channel, (*c).recv_cq) = queue_with_channel(c, init.cap.max_recv_wr)?;
            }
            init.recv_cq = (*c).recv_cq;
        }
    }
    Ok(())
}

/// Creates an identifier's queue pair, and moves it as far as it can go: datagrams to RTS, connections to
/// INIT, where receives may be posted.
///
/// # Safety
/// The identifier is alive, and the objects that the attributes name are, or are NULL.
unsafe fn create(c: *mut rdma_cm_id, init: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    unsafe {
        let id = Id::of(c);
        if (*c).verbs.is_null() || !(*c).qp.is_null() || init.qp_type != (*c).qp_type {
            return Err(libc::EINVAL);
        }
        if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.comp_mask |= IBV_QP_INIT_ATTR_PD;
            init.pd = if (*c).pd.is_null() { common_pd() } else { (*c).pd };
        }
        if (*init.pd).context != (*c).verbs {
            return Err(libc::EINVAL);
        }
        if init.srq.is_null() {
            init.srq = (*c).srq;
        }
        init.cap.max_inline_data = init.cap.max_inline_data.max(INLINE_MIN);
        let made = add_queues(c, init).and_then(|()| {
            let qp = create_qp_ex((*c).verbs, init);
            if qp.is_null() { Err(errno()) } else { Ok(qp) }
        });
        let qp = made.inspect_err(|_| destroy_queues(c))?;
        (*c).qp = qp;
        (*c).pd = init.pd;
        let moved = if id.is_datagram() { to_rts(id) } else { step(id, IBV_QPS_INIT) };
        moved.inspect_err(|_| rdma_destroy_qp(c))
    }
}

/// Creates the queue pair of an identifier.
///
/// # Safety
/// As for `rdma_create_qp`.
pub(super) unsafe fn create_plain(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: integers and pointers.
    let mut ex: ibv_qp_init_attr_ex = unsafe { core::mem::zeroed() };
    ex.qp_context = init.qp_context;
    ex.send_cq = init.send_cq;
    ex.recv_cq = init.recv_cq;
    ex.srq = init.srq;
    ex.cap = init.cap;
    ex.qp_type = init.qp_type;
    ex.sq_sig_all = init.sq_sig_all;
    if !pd.is_null() {
        ex.comp_mask = IBV_QP_INIT_ATTR_PD;
        ex.pd = pd;
    }
    // SAFETY: by the caller's promise.
    unsafe { create(c, &mut ex) }?;
    init.send_cq = ex.send_cq;
    init.recv_cq = ex.recv_cq;
    init.srq = ex.srq;
    init.cap = ex.cap;
    Ok(())
}

/// Creates the queue pair of an identifier, with completion queues and a domain where the program has none.
///
/// # Safety
/// C ABI: see `rdma_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() || init.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier, live objects and valid attributes.
    done(unsafe { create_plain(id, pd, &mut *init) })
}

/// Creates the queue pair of an identifier, from extended attributes.
///
/// # Safety
/// C ABI: see `rdma_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    if id.is_null() || init.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier, live objects and valid attributes.
    done(unsafe { create(id, &mut *init) })
}

/// Destroys the queue pair of an identifier, and the completion queues that were made for it.
///
/// # Safety
/// C ABI: see `rdma_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller passes a live identifier.
    unsafe {
        if id.is_null() || (*id).qp.is_null() {
            return;
        }
        super::multicast::leave_all(Id::of(id));
        ibv_destroy_qp((*id).qp);
        (*id).qp = core::ptr::null_mut();
        if (*id).srq.is_null() {
            destroy_queues(id);
        }
    }
}

/// Creates a shared receive queue for an identifier.
///
/// # Safety
/// The identifier is alive, and the objects that the attributes name are, or are NULL.
unsafe fn create_srq(c: *mut rdma_cm_id, init: &mut ibv_srq_init_attr_ex) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    unsafe {
        if (*c).verbs.is_null() || !(*c).srq.is_null() {
            return Err(libc::EINVAL);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            init.pd = if (*c).pd.is_null() { common_pd() } else { (*c).pd };
        }
        let typed = init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
        if typed && init.srq_type == IBV_SRQT_XRC && init.cq.is_null() {
            ((*c).recv_cq_channel, (*c).recv_cq) = queue_with_channel(c, init.attr.max_wr)?;
            init.cq = (*c).recv_cq;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        }
        let srq = create_srq_ex((*c).verbs, init);
        if srq.is_null() {
            let cause = errno();
            destroy_queues(c);
            return Err(cause);
        }
        (*c).srq = srq;
        (*c).pd = init.pd;
    }
    Ok(())
}

/// Creates a shared receive queue for an identifier.
///
/// # Safety
/// C ABI: see `rdma_create_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    if id.is_null() || init.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier, live objects and valid attributes.
    unsafe {
        let mut ex: ibv_srq_init_attr_ex = core::mem::zeroed();
        ex.srq_context = (*init).srq_context;
        ex.attr = (*init).attr;
        if !pd.is_null() {
            ex.comp_mask = IBV_SRQ_INIT_ATTR_PD;
            ex.pd = pd;
        }
        done(create_srq(id, &mut ex).map(|()| (*init).attr = ex.attr))
    }
}

/// Creates a shared receive queue for an identifier, from extended attributes.
///
/// # Safety
/// C ABI: see `rdma_create_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    if id.is_null() || init.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier, live objects and valid attributes.
    done(unsafe { create_srq(id, &mut *init) })
}

/// Destroys an identifier's shared receive queue.
///
/// # Safety
/// C ABI: see `rdma_destroy_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller passes a live identifier.
    unsafe {
        if id.is_null() || (*id).srq.is_null() {
            return;
        }
        ibv_destroy_srq((*id).srq);
        (*id).srq = core::ptr::null_mut();
        if (*id).qp.is_null() {
            destroy_queues(id);
        }
    }
}
