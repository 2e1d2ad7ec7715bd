//! Connections: listening, asking for one, accepting, refusing, ending; and the same of datagram services.

use crate::abi::*;
use crate::cm::address::{bind_any, own_mtu};
use crate::cm::id::{Id, Peer, Phase};
use crate::cm::{common_context, done, queue_pair};
use crate::host;
use crate::query::ibv_query_device;
use adverb_nic::cm::{Connect, Offer, PortSpace, Reason, Resolve, Resolved, Service};
use adverb_wire::{Gid, QpNumber};
use core::ffi::{c_int, c_void};

/// Repeats that the wire has room for.
const RETRY_MAX: u8 = 7;
/// Local ACK timeout of queue pairs, unless the program sets another: 2.1 s.
const ACK_TIMEOUT: u8 = 19;
/// Bytes of private data in a REP, and in a REJ.
const REPLY_PRIVATE: usize = 196;
const REJECT_PRIVATE: usize = 148;
/// A refusal of a SIDR request.
const REFUSE_PRIVATE: usize = 136;
/// "Vendor option is not supported": what `rdma_reject_ece` says (IBTA 12.6.7.2).
const VENDOR_OPTION: Reason = Reason(35);

/// What a program asks a connection to be.
struct Wanted {
    private: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    qp_num: u32,
}

/// A program's private data.
///
/// # Safety
/// `data` has `length` bytes.
unsafe fn private(data: *const c_void, length: u8, most: usize) -> Result<Vec<u8>, c_int> {
    if usize::from(length) > most || length > 0 && data.is_null() {
        return Err(libc::EINVAL);
    }
    if length == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec())
}

/// READs and atomics that the device has at once: those it answers, those it sends.
pub(super) fn device_limits() -> (u8, u8) {
    // SAFETY: integers; the context is open.
    let attr = unsafe {
        let mut attr: ibv_device_attr = core::mem::zeroed();
        ibv_query_device(common_context(), &mut attr);
        attr
    };
    let small = |n: c_int| u8::try_from(n).unwrap_or(u8::MAX - 1);
    (small(attr.max_qp_rd_atom), small(attr.max_qp_init_rd_atom))
}

/// Reads a program's parameters. `most` is what 0xff stands for: READs and atomics answered, and sent.
///
/// # Safety
/// The identifier is alive, `param` is NULL or valid.
unsafe fn wanted(
    id: &Id,
    param: *const rdma_conn_param,
    room: usize,
    most: (u8, u8),
) -> Result<Wanted, c_int> {
    let limits = device_limits();
    let bounded = |asked: u8, all: u8, limit: u8| match asked {
        u8::MAX => Ok(all.min(limit)),
        _ if asked > limit => Err(libc::EINVAL),
        _ => Ok(asked),
    };
    // SAFETY: a public field of the live object.
    let qp = unsafe { (*id.as_c()).qp };
    let mut wanted = if param.is_null() {
        Wanted {
            private: Vec::new(),
            responder_resources: most.0.min(limits.0),
            initiator_depth: most.1.min(limits.1),
            flow_control: false,
            retry_count: RETRY_MAX,
            rnr_retry_count: RETRY_MAX,
            srq: false,
            qp_num: 0,
        }
    } else {
        // SAFETY: the caller passes valid parameters.
        let param = unsafe { &*param };
        Wanted {
            // SAFETY: as above.
            private: unsafe { private(param.private_data, param.private_data_len, room) }?,
            responder_resources: bounded(param.responder_resources, most.0, limits.0)?,
            initiator_depth: bounded(param.initiator_depth, most.1, limits.1)?,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count.min(RETRY_MAX),
            rnr_retry_count: param.rnr_retry_count.min(RETRY_MAX),
            srq: param.srq != 0,
            qp_num: param.qp_num,
        }
    };
    if !qp.is_null() {
        // SAFETY: public fields of the live queue pair.
        unsafe {
            wanted.qp_num = (*qp).qp_num;
            wanted.srq = !(*qp).srq.is_null();
        }
    }
    Ok(wanted)
}

impl Wanted {
    fn offer(&self, psn: adverb_wire::Psn) -> Offer {
        Offer {
            qpn: QpNumber::new(self.qp_num),
            psn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control,
            rnr_retry: self.rnr_retry_count,
            srq: self.srq,
        }
    }
}

/// Takes requests for the port that the identifier is bound to.
///
/// # Safety
/// C ABI: see `rdma_listen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier.
    let id = unsafe { Id::of(id) };
    done((|| {
        if id.state().phase == Phase::Idle {
            bind_any(id)?;
        }
        let mut state = id.state();
        let Phase::Bound = state.phase else { return Err(libc::EINVAL) };
        let binding = state.binding.as_ref().ok_or(libc::EINVAL)?;
        let backlog = u32::try_from(backlog).unwrap_or(0);
        let listener = host::cm(|host| host.cm_listen(binding, backlog, id.cookie))?;
        state.listener = Some(listener);
        state.phase = Phase::Listening;
        Ok(())
    })())
}

/// The peer's address and service.
fn target(id: &Id) -> Result<(Gid, Gid, Service, u16), c_int> {
    let c = id.as_c();
    // SAFETY: public fields of the live object, which were set when its address was resolved.
    unsafe {
        let dst = super::address::read((&raw const (*c).route.addr.dst_storage).cast());
        let src = super::address::read((&raw const (*c).route.addr.src_storage).cast());
        let (dst, src) = dst.zip(src).ok_or(libc::EINVAL)?;
        let service = Service { space: id.space(), port: dst.port() };
        Ok((Gid((*c).route.addr.addr.sgid.0), Gid((*c).route.addr.addr.dgid.0), service, src.port()))
    }
}

/// Asks for a connection, or for a datagram service.
///
/// # Safety
/// The identifier is alive, the parameters are valid or NULL.
unsafe fn connect(id: &Id, param: *const rdma_conn_param) -> Result<(), c_int> {
    let (src, dst, service, src_port) = {
        let state = id.state();
        if state.phase != Phase::Route {
            return Err(libc::EINVAL);
        }
        target(id)?
    };
    let cookie = id.cookie;
    if id.space() == PortSpace::Udp {
        // SAFETY: by the caller's promise.
        let wanted = unsafe { wanted(id, param, Resolve::PRIVATE, (0, 0)) }?;
        let mut state = id.state();
        let resolve = Resolve { service, dst, src, src_port, private: &wanted.private, cookie };
        state.connection = Some(host::cm(|host| host.cm_resolve(&resolve))?);
        state.phase = Phase::Connecting;
        return Ok(());
    }
    // SAFETY: by the caller's promise.
    let wanted = unsafe { wanted(id, param, Connect::PRIVATE, (u8::MAX, u8::MAX)) }?;
    let mut state = id.state();
    let offer = wanted.offer(state.psn);
    let ack_timeout = state.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
    let traffic_class = state.options.traffic_class;
    let (retry_count, mtu) = (wanted.retry_count, own_mtu());
    state.responder_resources = wanted.responder_resources;
    state.initiator_depth = wanted.initiator_depth;
    state.peer = Some(Peer { gid: dst, offer, retry_count, mtu, ack_timeout, traffic_class });
    let connect = Connect {
        service,
        dst,
        src,
        src_port,
        offer,
        retry_count,
        mtu,
        ack_timeout,
        traffic_class,
        private: &wanted.private,
        cookie,
    };
    state.connection = Some(host::cm(|host| host.cm_connect(&connect))?);
    state.phase = Phase::Connecting;
    Ok(())
}

/// Asks for a connection.
///
/// # Safety
/// C ABI: see `rdma_connect(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier, and valid parameters or NULL.
    unsafe {
        let id = Id::of(id);
        done(connect(id, param).and_then(|()| id.complete()))
    }
}

/// Accepts a request. A queue pair of the identifier is moved first.
///
/// # Safety
/// As for `connect`.
unsafe fn accept(id: &Id, param: *const rdma_conn_param) -> Result<(), c_int> {
    let (connection, psn, most) = {
        let state = id.state();
        let Phase::Requested = state.phase else { return Err(libc::EINVAL) };
        let connection = state.connection.ok_or(libc::EINVAL)?;
        (connection, state.psn, (state.responder_resources, state.initiator_depth))
    };
    if id.is_datagram() {
        // SAFETY: by the caller's promise.
        let wanted = unsafe { wanted(id, param, Resolved::PRIVATE, (0, 0)) }?;
        let qpn = QpNumber::new(wanted.qp_num);
        let answer = Resolved { qpn, qkey: RDMA_UDP_QKEY, private: &wanted.private };
        host::cm(|host| host.cm_answer(connection, &answer))?;
        id.state().phase = Phase::Connected;
        return Ok(());
    }
    let accepted = (|| {
        // SAFETY: by the caller's promise.
        let wanted = unsafe { wanted(id, param, REPLY_PRIVATE, most) }?;
        {
            let mut state = id.state();
            state.responder_resources = wanted.responder_resources;
            state.initiator_depth = wanted.initiator_depth;
        }
        // SAFETY: by the caller's promise.
        unsafe {
            if !(*id.as_c()).qp.is_null() {
                queue_pair::to_rts(id)?;
            }
        }
        // Before the peer can answer, so that its answer finds the identifier in this state.
        id.state().phase = Phase::Accepted;
        host::cm(|host| host.cm_accept(connection, &wanted.offer(psn), &wanted.private))
    })();
    accepted.inspect_err(|_| {
        // Of no use where the peer has given up.
        let _ = host::cm(|host| host.cm_reject(connection, Reason::CONSUMER, &[]));
        // SAFETY: by the caller's promise.
        unsafe { super::id::fail(id) };
    })
}

/// Accepts a request.
///
/// # Safety
/// C ABI: see `rdma_accept(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier, and valid parameters or NULL.
    unsafe {
        let id = Id::of(id);
        let accepted = accept(id, param);
        // A datagram service is told nothing more.
        done(accepted.and_then(|()| if id.is_datagram() { Ok(()) } else { id.complete() }))
    }
}

/// Refuses a request, or a reply that the program is to confirm.
///
/// # Safety
/// The identifier is alive, `data` has `length` bytes.
unsafe fn reject(id: &Id, reason: Reason, data: *const c_void, length: u8) -> Result<(), c_int> {
    let most = if id.is_datagram() { REFUSE_PRIVATE } else { REJECT_PRIVATE };
    // SAFETY: by the caller's promise.
    let private = unsafe { private(data, length, most) }?;
    let mut state = id.state();
    let (Phase::Requested | Phase::Answered) = state.phase else { return Err(libc::EINVAL) };
    let connection = state.connection.ok_or(libc::EINVAL)?;
    if id.is_datagram() {
        host::cm(|host| host.cm_refuse(connection, &private))?;
    } else {
        host::cm(|host| host.cm_reject(connection, reason, &private))?;
    }
    state.phase = Phase::Ended;
    Ok(())
}

/// Refuses a request.
///
/// # Safety
/// C ABI: see `rdma_reject(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and its private data.
    done(unsafe { reject(Id::of(id), Reason::CONSUMER, data, length) })
}

/// Refuses a request because of its enhanced connection options.
///
/// # Safety
/// C ABI: see `rdma_reject(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and its private data.
    done(unsafe { reject(Id::of(id), VENDOR_OPTION, data, length) })
}

/// Confirms a reply, when the program has moved its own queue pair.
///
/// # Safety
/// C ABI: see `rdma_establish(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier.
    let id = unsafe { Id::of(id) };
    done((|| {
        let mut state = id.state();
        // SAFETY: a public field of the live object.
        if state.phase != Phase::Answered || !unsafe { (*id.as_c()).qp }.is_null() {
            return Err(libc::EINVAL);
        }
        let connection = state.connection.ok_or(libc::EINVAL)?;
        host::cm(|host| host.cm_establish(connection))?;
        state.phase = Phase::Connected;
        Ok(())
    })())
}

/// Tells of an asynchronous event of the queue pair: only that data has come matters.
///
/// # Safety
/// C ABI: see `rdma_notify(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier.
    let connection = unsafe { Id::of(id) }.state().connection;
    done(match (event, connection) {
        (IBV_EVENT_COMM_EST, Some(connection)) => host::cm(|host| host.cm_notify(connection)),
        _ => Err(libc::EINVAL),
    })
}

/// Puts an identifier's queue pair into error, so that its requests come back.
///
/// # Safety
/// The identifier is alive.
pub(super) unsafe fn flush(id: &Id) {
    // SAFETY: by the caller's promise.
    unsafe {
        let qp = (*id.as_c()).qp;
        if !qp.is_null() {
            let mut attr: ibv_qp_attr = core::mem::zeroed();
            attr.qp_state = IBV_QPS_ERR;
            // It fails only where the NIC's queue pair has gone already.
            crate::qp::ibv_modify_qp(qp, &mut attr, IBV_QP_STATE as c_int);
        }
    }
}

/// Ends a connection. Of one that has ended, nothing is done.
///
/// # Safety
/// C ABI: see `rdma_disconnect(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier.
    let id = unsafe { Id::of(id) };
    let connection = id.state().connection;
    let Some(connection) = connection else { return done(Err(libc::EINVAL)) };
    // SAFETY: as above.
    unsafe { flush(id) };
    if id.is_datagram() {
        return 0;
    }
    let ended = host::cm(|host| host.cm_disconnect(connection));
    // SAFETY: as above.
    done(ended.and_then(|()| unsafe { id.complete() }))
}
