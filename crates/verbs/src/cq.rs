//! Completion queues (IBTA 11.2.8, 11.4.2): creation, polling, arming.

use crate::abi::*;
use crate::channel::Channel;
use crate::context::{AsyncEvent, Context, Resource};
use crate::event::{AckCount, Delivered};
use crate::handle::{COND, MUTEX, code, fail, handle, pointer_or_null};
use crate::pd::Pd;
use crate::{cq_ex, host, tables};
use adverb_nic::{Completion, CqId, Error, limits};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

/// Entries that a completion queue holds at least, as adapters round small ones up. perftest's event-driven
/// latency tests ask for one, and look at it once per event: a completion that a lost acknowledgement delayed
/// would overrun it.
const MIN_CQE: u32 = 16;

/// A completion queue, plain or extended: the plain C struct is a prefix of the extended one.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) ibv: UnsafeCell<ibv_cq_ex>,
    /// The NIC's queue.
    pub(crate) id: CqId,
    channel: *mut ibv_comp_channel,
    /// The parent domain that it was created with, if any.
    domain: *mut ibv_pd,
    pub(crate) comp_delivered: Delivered,
    pub(crate) async_delivered: Delivered,
    /// Polling through the extended calls.
    pub(crate) cursor: cq_ex::Cursor,
    /// The program's own (`adverb_cq_words`).
    pub(crate) words: UnsafeCell<[u64; 2]>,
}

handle!(Cq, ibv_cq);

/// What a queue is created with, from either call.
pub(crate) struct CqInit {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) domain: *mut ibv_pd,
    pub(crate) single_threaded: bool,
    /// When it is full, the oldest completion gives way.
    pub(crate) ignores_overrun: bool,
}

impl Cq {
    /// Creates the NIC's queue and the object; the extended part's pointers are still NULL.
    ///
    /// # Safety
    /// The pointers of `init` and `context` are live objects, or NULL where that is allowed.
    pub(crate) unsafe fn create(context: *mut ibv_context, init: &CqInit) -> Result<*mut ibv_cq, c_int> {
        // SAFETY: by the caller's promise.
        let vectors = unsafe { (*context).num_comp_vectors };
        if init.cqe == 0 || init.cqe > limits::MAX_CQE || i64::from(init.comp_vector) >= i64::from(vectors) {
            return Err(libc::EINVAL);
        }
        let (id, capacity) = host::control(|nic| {
            let id = nic.create_cq(init.cqe.max(MIN_CQE))?;
            if init.ignores_overrun {
                nic.ignore_overrun(id)?;
            }
            Ok((id, nic.cq_capacity(id)?))
        })?;
        // SAFETY: pointers, integers, optional functions.
        let mut ibv: ibv_cq_ex = unsafe { core::mem::zeroed() };
        ibv.context = context;
        ibv.channel = init.channel;
        ibv.cq_context = init.cq_context;
        ibv.handle = id.index() as u32;
        ibv.cqe = capacity as c_int;
        ibv.mutex = MUTEX;
        ibv.cond = COND;
        // SAFETY: by the caller's promise.
        unsafe {
            Context::of(context).add(Resource::Cq(id));
            if !init.channel.is_null() {
                Channel::of(init.channel).hold();
            }
            if !init.domain.is_null() {
                Pd::of(init.domain).hold();
            }
        }
        let cq = Cq {
            ibv: ibv.into(),
            id,
            channel: init.channel,
            domain: init.domain,
            comp_delivered: Delivered::default(),
            async_delivered: Delivered::default(),
            cursor: cq_ex::Cursor::new(init.single_threaded),
            words: [0; 2].into(),
        };
        let cq = cq.give();
        tables::add_cq(id, cq);
        Ok(cq)
    }

    fn as_c(&self) -> *mut ibv_cq {
        self.ibv.get().cast()
    }

    /// Tells the channel that a completion came.
    pub(crate) fn notify(&self) {
        if !self.channel.is_null() {
            // SAFETY: a channel outlives the queues that use it (EBUSY otherwise).
            unsafe { Channel::of(self.channel) }.announce(self.as_c());
        }
    }

    /// Tells the context about an asynchronous event.
    pub(crate) fn raise(&self, event_type: u32) {
        let event = ibv_async_event { element: self.as_c().cast(), event_type };
        // SAFETY: the context outlives the queue.
        unsafe { Context::of((*self.as_c()).context) }.events.push(AsyncEvent(event));
    }

    /// The count of acknowledged completion events.
    pub(crate) fn comp_acks(&self) -> AckCount {
        let ibv = self.as_c();
        // SAFETY: field addresses of the live object.
        unsafe {
            AckCount {
                mutex: &raw mut (*ibv).mutex,
                cond: &raw mut (*ibv).cond,
                completed: &raw mut (*ibv).comp_events_completed,
            }
        }
    }

    /// The count of acknowledged asynchronous events.
    pub(crate) fn async_acks(&self) -> AckCount {
        let ibv = self.as_c();
        // SAFETY: field address of the live object.
        AckCount { completed: unsafe { &raw mut (*ibv).async_events_completed }, ..self.comp_acks() }
    }
}

/// Creates a completion queue.
///
/// # Safety
/// C ABI: see `ibv_create_cq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer_or_null((|| {
        let init = CqInit {
            cqe: u32::try_from(cqe).map_err(|_| libc::EINVAL)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(|_| libc::EINVAL)?,
            domain: core::ptr::null_mut(),
            single_threaded: false,
            ignores_overrun: false,
        };
        // SAFETY: the caller passes an open context, and a live channel or NULL.
        unsafe { Cq::create(context, &init) }
    })())
}

/// Changes the capacity of a completion queue.
///
/// # Safety
/// C ABI: see `ibv_resize_cq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Cq::of(cq) };
    code((|| {
        let entries = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        if entries == 0 || entries > limits::MAX_CQE {
            return Err(libc::EINVAL);
        }
        let capacity = host::control(|nic| nic.resize_cq(queue.id, entries))?;
        // SAFETY: a public field of the live object.
        unsafe { (*cq).cqe = capacity as c_int };
        Ok(())
    })())
}

/// Destroys a completion queue, after its events have been acknowledged. EBUSY while queue pairs or
/// shared receive queues use it.
///
/// # Safety
/// C ABI: see `ibv_destroy_cq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Cq::of(cq) };
    match host::control(|nic| nic.destroy_cq(queue.id)) {
        // Closing the context in the meantime took the NIC's queue along.
        Ok(()) | Err(libc::ENOENT) => {}
        Err(errno) => return fail(errno),
    }
    // From here on no new event can come; those that nobody took go, and those taken are waited for.
    tables::remove_cq(queue.id);
    // SAFETY: channel, context and domain outlive the queue; the caller gives the queue up.
    unsafe {
        let context = Context::of((*cq).context);
        context.remove(&Resource::Cq(queue.id));
        context.events.remove(|event| event.is_about(cq.cast()));
        queue.async_acks().wait(queue.async_delivered.total());
        if !queue.channel.is_null() {
            let channel = Channel::of(queue.channel);
            channel.forget(cq);
            queue.comp_acks().wait(queue.comp_delivered.total());
            channel.release();
        }
        if !queue.domain.is_null() {
            Pd::of(queue.domain).release();
        }
        drop(Cq::take(cq));
    }
    0
}

/// A completion as `ibv_poll_cq` shows it.
#[inline]
pub(crate) fn work_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: completion.op as u32,
        vendor_err: completion.vendor,
        byte_len: completion.byte_len,
        imm_data: immediate(completion),
        qp_num: completion.qp.get(),
        src_qp: completion.src_qp.get(),
        wc_flags: flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: completion.sl,
        dlid_path_bits: 0,
    }
}

/// Immediate data in network order, or the invalidated key as it is.
#[inline]
pub(crate) fn immediate(completion: &Completion) -> u32 {
    if completion.has_immediate { completion.immediate.to_be() } else { completion.immediate }
}

/// `enum ibv_wc_flags` of a completion.
#[inline]
pub(crate) fn flags(completion: &Completion) -> u32 {
    let flag = |set: bool, bit: u32| if set { bit } else { 0 };
    flag(completion.has_grh, IBV_WC_GRH)
        | flag(completion.has_immediate, IBV_WC_WITH_IMM)
        | flag(completion.has_invalidate, IBV_WC_WITH_INV)
}

/// `ibv_poll_cq(3)`: the completions there are, at most `num_entries`; negative on an error.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Cq::of(cq) };
    let room = usize::try_from(num_entries).unwrap_or(0);
    let polled = host::poll(queue.id, room, |index, completion| {
        // SAFETY: the caller passes room for `num_entries`, and `index` is below that.
        unsafe { wc.add(index).write(work_completion(completion)) };
    });
    match polled {
        Ok(count) => count as c_int,
        Err(error) => -fail(error.errno()),
    }
}

/// `ibv_req_notify_cq(3)`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Cq::of(cq) };
    code(host::arm(queue.id, solicited_only != 0).map_err(Error::errno))
}

/// `ibv_modify_cq(3)`. Moderation would delay events, of which the NIC raises at most one per arming
/// anyway, so the counts are taken and have no effect.
pub(crate) unsafe extern "C" fn modify_cq(_cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the caller passes valid attributes.
    if unsafe { (*attr).attr_mask } & !IBV_CQ_ATTR_MODERATE != 0 { fail(libc::EINVAL) } else { 0 }
}
