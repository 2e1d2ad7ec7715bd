//! Queue pairs (IBTA 11.2.5): creation, attributes, destruction.

use crate::abi::*;
use crate::ah::check_route;
use crate::context::{AsyncEvent, Context, Resource, device_of};
use crate::cq::Cq;
use crate::event::{AckCount, Delivered, lock};
use crate::handle::{COND, MUTEX, code, fail, null, pointer_or_null};
use crate::pd::Pd;
use crate::qp_attr::{attr_from_c, attr_to_c, caps_from_c, caps_to_c, qp_type, with_room};
use crate::qp_ex::{Builder, fill_calls};
use crate::srq::Srq;
use crate::xrcd::Xrcd;
use crate::{host, tables, xchannel};
use adverb_nic::{Error, PdId, QpAttrMask, QpCaps, QpFlags, QpId, QpInit, QpState, QpType, XrcdId};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use std::sync::Mutex;

/// A queue pair. What is ours stands before the C struct, which is thus the plain one or the extended one, of
/// which the plain one is a prefix: a plain queue pair does without the 192 bytes of calls that it cannot
/// make.
pub(crate) struct Qp {
    /// C's part.
    ibv: *mut ibv_qp,
    /// The NIC's queue pair.
    pub(crate) id: QpId,
    /// The NIC's domain; an XRC target has none.
    pub(crate) pd: Option<PdId>,
    /// Transport type.
    pub(crate) kind: QpType,
    /// Sizes given.
    pub(crate) caps: QpCaps,
    xrcd: Option<XrcdId>,
    pub(crate) async_delivered: Delivered,
    /// Every request completes.
    pub(crate) signals_all: bool,
    /// The flags of `ibv_create_qp_ex`.
    pub(crate) create_flags: QpFlags,
    /// The program's own (`adverb_qp_words`).
    pub(crate) words: UnsafeCell<[u64; 2]>,
    /// Work requests being built by the `wr_*` calls; `None` for a plain queue pair.
    pub(crate) builder: Option<Box<Builder>>,
}

/// A queue pair as it lies in memory; C's pointer is to its second part.
#[repr(C)]
struct Laid<C> {
    qp: Qp,
    ibv: UnsafeCell<C>,
}

/// From a C pointer back to the object. The same for both kinds.
const C_OFFSET: usize = offset_of!(Laid<ibv_qp>, ibv);
const _: () = assert!(C_OFFSET == offset_of!(Laid<ibv_qp_ex>, ibv));

/// Serialises opening and closing of shared XRC targets.
static SHARING: Mutex<()> = Mutex::new(());

impl Qp {
    /// The object behind a C pointer.
    ///
    /// # Safety
    /// `pointer` came from one of this module's calls, and the object has not been destroyed and is not being
    /// destroyed meanwhile.
    #[inline]
    pub(crate) unsafe fn of<'a>(pointer: *mut ibv_qp) -> &'a Self {
        // SAFETY: by the caller's promise `give` laid it out, this many bytes before its C part.
        unsafe { &*pointer.byte_sub(C_OFFSET).cast::<Qp>() }
    }

    /// The queue pair's number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: a public field of the live object, never written after creation.
        unsafe { (*self.ibv).qp_num }
    }

    /// Whether its send queue may hold WAITs and ENABLEs.
    pub(crate) fn may_order(&self) -> bool {
        self.create_flags.contains(QpFlags::CROSS_CHANNEL)
    }

    /// Hands the object to C: as an extended queue pair if it has a builder, else as a plain one.
    fn give(self, plain: ibv_qp) -> *mut ibv_qp {
        fn lay<C>(qp: Qp, ibv: C) -> *mut ibv_qp {
            let laid = Box::into_raw(Box::new(Laid { qp, ibv: ibv.into() }));
            // SAFETY: just made, and nobody else knows it yet.
            unsafe {
                let pointer = laid.cast::<ibv_qp>().byte_add(C_OFFSET);
                (*laid).qp.ibv = pointer;
                pointer
            }
        }
        if self.builder.is_none() {
            return lay(self, plain);
        }
        // SAFETY: pointers, integers, optional functions.
        let mut extended: ibv_qp_ex = unsafe { core::mem::zeroed() };
        extended.qp_base = plain;
        fill_calls(&mut extended, self.kind);
        lay(self, extended)
    }

    /// Takes the object back and drops it.
    ///
    /// # Safety
    /// As for `of`; and nobody uses the pointer afterwards.
    unsafe fn free(pointer: *mut ibv_qp) {
        // SAFETY: by the caller's promise; whether there is a builder says how `give` laid it out.
        unsafe {
            let laid = pointer.byte_sub(C_OFFSET);
            if Qp::of(pointer).builder.is_none() {
                drop(Box::from_raw(laid.cast::<Laid<ibv_qp>>()));
            } else {
                drop(Box::from_raw(laid.cast::<Laid<ibv_qp_ex>>()));
            }
        }
    }

    /// C's part of the object.
    pub(crate) fn as_c(&self) -> *mut ibv_qp {
        self.ibv
    }

    /// Tells the context about an asynchronous event.
    pub(crate) fn raise(&self, event_type: u32) {
        let ibv = self.as_c();
        let event = ibv_async_event { element: ibv.cast(), event_type };
        // SAFETY: the context outlives the queue pair.
        unsafe { Context::of((*ibv).context) }.events.push(AsyncEvent(event));
    }

    /// The count of acknowledged asynchronous events.
    pub(crate) fn async_acks(&self) -> AckCount {
        let ibv = self.as_c();
        // SAFETY: field addresses of the live object.
        unsafe {
            AckCount {
                mutex: &raw mut (*ibv).mutex,
                cond: &raw mut (*ibv).cond,
                completed: &raw mut (*ibv).events_completed,
            }
        }
    }
}

/// What a queue pair is created with, from either call.
struct Request {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    send_ops: Option<u64>,
    create_flags: u32,
}

/// The NIC's part of a request.
///
/// # Safety
/// The objects that the request names are alive, or NULL.
unsafe fn nic_init(request: &Request, init: &ibv_qp_init_attr) -> Result<QpInit, c_int> {
    let kind = qp_type(init.qp_type).ok_or(libc::EOPNOTSUPP)?;
    let target = kind == QpType::XrcRecv;
    if target == request.xrcd.is_null() || !target && (request.pd.is_null() || init.send_cq.is_null()) {
        return Err(libc::EINVAL);
    }
    let receives = matches!(kind, QpType::Rc | QpType::Uc | QpType::Ud);
    if receives && init.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the caller's promise; each pointer was looked at just above or is here.
    unsafe {
        Ok(QpInit {
            qp_type: kind,
            pd: (!target).then(|| Pd::of(request.pd).id),
            send_cq: (!target).then(|| Cq::of(init.send_cq).id),
            recv_cq: receives.then(|| Cq::of(init.recv_cq).id),
            srq: (receives && !init.srq.is_null()).then(|| Srq::of(init.srq).id),
            xrcd: target.then(|| Xrcd::of(request.xrcd).id),
            sq_sig_all: init.sq_sig_all != 0,
            caps: with_room(caps_from_c(&init.cap)),
        })
    }
}

/// Creates the NIC's queue pair and the object, and writes back the sizes given.
///
/// # Safety
/// The context is open, and the objects that the request names are alive, or NULL.
unsafe fn create(request: &Request, init: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: by the caller's promise.
    let nic_init = unsafe { nic_init(request, init) }?;
    let flags = xchannel::creation(request.create_flags)?;
    let (id, number, caps) = host::control(|nic| {
        let id = nic.create_qp_with(&nic_init, flags)?;
        Ok((id, nic.qp_number(id)?, nic.qp_caps(id)?))
    })?;
    if !flags.is_empty() {
        host::offer_looks();
    }
    init.cap = caps_to_c(&caps);
    let plain = ibv_qp {
        context: request.context,
        qp_context: init.qp_context,
        pd: request.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: id.index() as u32,
        qp_num: number.get(),
        state: 0,
        qp_type: init.qp_type,
        mutex: MUTEX,
        cond: COND,
        events_completed: 0,
    };
    // SAFETY: by the caller's promise.
    unsafe {
        Context::of(request.context).add(Resource::Qp(id));
        if !request.pd.is_null() {
            Pd::of(request.pd).hold();
        }
    }
    let qp = Qp {
        ibv: core::ptr::null_mut(),
        id,
        pd: nic_init.pd,
        kind: nic_init.qp_type,
        caps,
        xrcd: nic_init.xrcd,
        async_delivered: Delivered::default(),
        signals_all: nic_init.sq_sig_all,
        create_flags: flags,
        words: [0; 2].into(),
        builder: request.send_ops.map(|_| Box::new(Builder::new(&caps))),
    };
    let qp = qp.give(plain);
    tables::add_qp(id, qp);
    Ok(qp)
}

/// Creates a queue pair.
///
/// # Safety
/// C ABI: see `ibv_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller passes a live domain and valid attributes.
    pointer_or_null(unsafe {
        let context = Pd::of(pd).context();
        let request = Request { context, pd, xrcd: core::ptr::null_mut(), send_ops: None, create_flags: 0 };
        create(&request, &mut *init)
    })
}

/// `ibv_create_qp_ex(3)`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the caller passes valid attributes, of which those count that the mask names.
    let ex = unsafe { &*init };
    let has = |bit: u32| ex.comp_mask & bit != 0;
    // A program calls the `wr_*` pointers without a look, so what is not known must fail here.
    let unknown_ops =
        has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && ex.send_ops_flags & !crate::qp_ex::SEND_OPS != 0;
    if ex.comp_mask & !KNOWN != 0 || unknown_ops {
        return null(libc::EOPNOTSUPP);
    }
    let request = Request {
        context,
        pd: if has(IBV_QP_INIT_ATTR_PD) { ex.pd } else { core::ptr::null_mut() },
        xrcd: if has(IBV_QP_INIT_ATTR_XRCD) { ex.xrcd } else { core::ptr::null_mut() },
        send_ops: has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(ex.send_ops_flags),
        create_flags: if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { ex.create_flags } else { 0 },
    };
    // SAFETY: the plain attributes are a prefix of the extended ones; the caller passes an open context
    // and live objects.
    pointer_or_null(unsafe { create(&request, &mut *init.cast()) })
}

/// As `create_qp_ex`, with an extended queue pair even if no operations are asked for: the direct verbs add
/// some of their own.
///
/// # Safety
/// As for `create_qp_ex`.
pub(crate) unsafe fn create_extended_qp(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller passes valid attributes, which are as they were when this returns, but for the
    // sizes.
    unsafe {
        let (mask, ops) = ((*init).comp_mask, (*init).send_ops_flags);
        if mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS == 0 {
            (*init).comp_mask = mask | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            (*init).send_ops_flags = 0;
        }
        let qp = create_qp_ex(context, init);
        ((*init).comp_mask, (*init).send_ops_flags) = (mask, ops);
        qp
    }
}

/// `ibv_open_qp(3)`: another object for an XRC target of this process.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    if attr.comp_mask & NEEDED != NEEDED || attr.comp_mask & !(NEEDED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: the mask says that a live domain was passed.
    let xrcd = unsafe { Xrcd::of(attr.xrcd) }.id;
    let _sharing = lock(&SHARING);
    let found = tables::find_qp(|qp| {
        // SAFETY: the table's objects are alive; the field is public and never written after creation.
        let plain = unsafe { *qp.as_c() };
        let same = plain.qp_num == attr.qp_num && plain.qp_type == attr.qp_type && qp.xrcd == Some(xrcd);
        same.then_some((qp.id, qp.caps, plain))
    });
    let Some((id, caps, mut plain)) = found else { return null(libc::EINVAL) };
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    plain.qp_context = if has_context { attr.qp_context } else { core::ptr::null_mut::<c_void>() };
    plain.context = context;
    plain.events_completed = 0;
    plain.mutex = MUTEX;
    plain.cond = COND;
    let qp = Qp {
        ibv: core::ptr::null_mut(),
        id,
        pd: None,
        kind: QpType::XrcRecv,
        caps,
        xrcd: Some(xrcd),
        async_delivered: Delivered::default(),
        signals_all: false,
        create_flags: QpFlags::empty(),
        words: [0; 2].into(),
        builder: None,
    };
    let qp = qp.give(plain);
    tables::add_qp(id, qp);
    qp
}

/// An XRC queue pair is half a connection, and has no use for the other half's attributes. Programs
/// that set up both halves alike (perftest) name them all the same; nothing is lost without them.
fn without_other_half(kind: QpType, mask: QpAttrMask) -> QpAttrMask {
    match kind {
        QpType::XrcSend => mask.difference(QpAttrMask::MIN_RNR_TIMER | QpAttrMask::MAX_DEST_RD_ATOMIC),
        QpType::XrcRecv => {
            mask.difference(QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC)
        }
        _ => mask,
    }
}

/// Changes attributes and state.
///
/// # Safety
/// C ABI: see `ibv_modify_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a live queue pair and valid attributes.
    let (queue, attr) = unsafe { (Qp::of(qp), &*attr) };
    code((|| {
        let mask = without_other_half(queue.kind, QpAttrMask::from_bits(mask as u32).ok_or(libc::EINVAL)?);
        let unsupported = QpAttrMask::ALT_PATH | QpAttrMask::CAP | QpAttrMask::RATE_LIMIT;
        if mask.intersects(unsupported) {
            return Err(libc::EOPNOTSUPP);
        }
        let mut nic_attr = attr_from_c(attr, mask).map_err(Error::errno)?;
        // SAFETY: the queue pair's context is open.
        let context = unsafe { (*qp).context };
        // SAFETY: as above.
        if mask.contains(QpAttrMask::PATH_MTU) && nic_attr.path_mtu > unsafe { device_of(context) }.mtu {
            return Err(libc::EINVAL);
        }
        if mask.contains(QpAttrMask::AV) {
            // SAFETY: as above.
            unsafe { check_route(context, &attr.ah_attr) }?;
            let peer = if mask.contains(QpAttrMask::DEST_QPN) {
                nic_attr.dest_qpn
            } else {
                host::control(|nic| nic.query_qp(queue.id))?.0.dest_qpn
            };
            nic_attr.path = host::resolve(nic_attr.av.dgid, peer);
        }
        host::modify_qp(queue.id, &nic_attr, mask)?;
        if mask.contains(QpAttrMask::STATE) {
            if nic_attr.state == QpState::Reset {
                host::reset_doorbells(queue.id);
            }
            // SAFETY: a public field of the live object.
            unsafe { (*qp).state = attr.qp_state };
        }
        Ok(())
    })())
}

/// Current attributes, all of them whatever the mask says, and what the queue pair was created with.
///
/// # Safety
/// C ABI: see `ibv_query_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    let queue = unsafe { Qp::of(qp) };
    let found = host::control(|nic| Ok((nic.query_qp(queue.id)?, nic.rate_limit(queue.id)?)));
    code(found.map(|((found, created), limit)| {
        // SAFETY: the caller passes places for both; the fields of the live object are public.
        unsafe {
            *attr = attr_to_c(&found);
            (*attr).rate_limit = limit.kbps;
            *init = ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: caps_to_c(&queue.caps),
                qp_type: (*qp).qp_type,
                sq_sig_all: created.sq_sig_all.into(),
            };
            (*qp).state = (*attr).qp_state;
        }
    }))
}

/// Destroys a queue pair, after its events have been acknowledged. EBUSY while it is in a multicast
/// group.
///
/// # Safety
/// C ABI: see `ibv_destroy_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    let queue = unsafe { Qp::of(qp) };
    {
        let _sharing = queue.xrcd.map(|_| lock(&SHARING));
        // The last object of an XRC target takes the target along.
        if queue.xrcd.is_none() || tables::qp_handles(queue.id) <= 1 {
            match host::destroy_qp(queue.id) {
                Ok(()) | Err(libc::ENOENT) => {}
                Err(errno) => return fail(errno),
            }
            // SAFETY: the context outlives the queue pair.
            unsafe { Context::of((*qp).context) }.remove(&Resource::Qp(queue.id));
        }
        tables::remove_qp(queue.id, qp);
    }
    // SAFETY: context and domain outlive the queue pair; the caller gives the queue pair up.
    unsafe {
        Context::of((*qp).context).events.remove(|event| event.is_about(qp.cast()));
        queue.async_acks().wait(queue.async_delivered.total());
        if !(*qp).pd.is_null() {
            Pd::of((*qp).pd).release();
        }
        Qp::free(qp);
    }
    0
}

/// Whether data arrives in order: it does, each packet's bytes are written before the next packet's,
/// but a reader is only promised that by acquiring loads; so, no promise.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: u32, _flags: u32) -> c_int {
    0
}

/// Enhanced connection establishment: this NIC has no options to offer.
///
/// # Safety
/// C ABI: a live queue pair, and a place for the options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a place for the options.
    unsafe { *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 } };
    0
}

/// Options are only accepted if there are none.
///
/// # Safety
/// C ABI: a live queue pair, and valid options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes valid options.
    let ece = unsafe { *ece };
    if ece.comp_mask != 0 {
        fail(libc::EINVAL)
    } else if ece.options != 0 || ece.vendor_id != 0 {
        fail(libc::EOPNOTSUPP)
    } else {
        0
    }
}
