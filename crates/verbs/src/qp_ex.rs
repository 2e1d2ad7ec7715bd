//! The `ibv_wr_*` calls: work requests built piece by piece between `wr_start` and `wr_complete`, and
//! posted together under one lock.

use crate::abi::*;
use crate::ah::Ah;
use crate::handle::outcome;
use crate::host;
use crate::mw::bind_op;
use crate::post::send_flags;
use crate::qp::Qp;
use adverb_nic::{Error, Nic, QpCaps, QpType, SendData, SendFlags, SendOp, SendWr, Sge, UdAddress, limits};
use adverb_wire::{Instant, Key};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use std::sync::OnceLock;

/// The operations that may be asked for.
pub(crate) const SEND_OPS: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// Room that is set aside for requests being built; a longer batch makes it grow once.
const ROOM: usize = 64;

/// The requests being built, held by one thread from `wr_start` to `wr_complete` or `wr_abort`.
pub(crate) struct Builder {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    batch: UnsafeCell<Batch>,
    /// Words that the direct verbs keep with the queue pair, once they have asked for them.
    direct: OnceLock<Box<UnsafeCell<[u64; DIRECT_WORDS]>>>,
}

/// Words that the direct verbs may keep with a queue pair.
const DIRECT_WORDS: usize = 16;

/// The requests, and the data that they refer to.
struct Batch {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    /// Inline data, and WQEs that the program has built.
    inline: Vec<u8>,
    /// The first mistake, as errno.
    error: c_int,
    max_sge: usize,
    max_inline: usize,
}

/// One request.
struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    ud: Option<UdAddress>,
    xrc_srqn: u32,
}

/// Where a request's data is in its batch.
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
    /// It is all of a WQE; the request's other fields say nothing.
    Built(Range<usize>),
}

impl Builder {
    pub(crate) fn new(caps: &QpCaps) -> Self {
        let batch = Batch {
            requests: Vec::with_capacity(ROOM),
            sges: Vec::with_capacity(ROOM),
            inline: Vec::with_capacity(limits::MAX_INLINE as usize),
            error: 0,
            max_sge: caps.max_send_sge as usize,
            max_inline: caps.max_inline as usize,
        };
        Builder { mutex: crate::handle::MUTEX.into(), batch: batch.into(), direct: OnceLock::new() }
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = 0;
    }

    /// Notes a mistake; `wr_complete` reports the first one and posts nothing.
    fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }

    fn begin(&mut self, wr_id: u64, flags: u32, op: Result<SendOp, c_int>) {
        match (op, send_flags(flags)) {
            (Ok(op), Some(flags)) => {
                let data = Data::Sges(self.sges.len()..self.sges.len());
                self.requests.push(Request { wr_id, op, flags, data, ud: None, xrc_srqn: 0 });
            }
            (Err(errno), _) => self.fail(errno),
            (_, None) => self.fail(libc::EINVAL),
        }
    }

    /// The request begun last, if there is one.
    fn last(&mut self) -> Option<&mut Request> {
        if self.requests.is_empty() {
            self.fail(libc::EINVAL);
        }
        self.requests.last_mut()
    }

    fn set_sges(&mut self, pieces: impl ExactSizeIterator<Item = Sge>) {
        if pieces.len() > self.max_sge {
            return self.fail(libc::EINVAL);
        }
        let start = self.sges.len();
        self.sges.extend(pieces);
        let data = Data::Sges(start..self.sges.len());
        if let Some(request) = self.last() {
            request.data = data;
        }
    }

    /// Appends inline bytes of the pieces `(address, length)`.
    ///
    /// # Safety
    /// The pieces are readable.
    unsafe fn set_inline(&mut self, pieces: impl Iterator<Item = (*const u8, usize)>) {
        let start = self.inline.len();
        for (address, length) in pieces {
            if length > self.max_inline - (self.inline.len() - start) {
                return self.fail(libc::EINVAL);
            }
            self.inline.reserve(length);
            // SAFETY: room was reserved just above; the piece is readable by the caller's promise.
            unsafe {
                let end = self.inline.as_mut_ptr().add(self.inline.len());
                core::ptr::copy_nonoverlapping(address, end, length);
                self.inline.set_len(self.inline.len() + length);
            }
        }
        let data = Data::Inline(start..self.inline.len());
        if let Some(request) = self.last() {
            request.data = data;
        }
    }

    /// Adds a WQE that the program has built. Nothing may be set of it.
    fn add_built(&mut self, wr_id: u64, wqe: &[u8]) {
        let start = self.inline.len();
        self.inline.extend_from_slice(wqe);
        let data = Data::Built(start..self.inline.len());
        let flags = SendFlags::default();
        self.requests.push(Request { wr_id, op: SendOp::Nop, flags, data, ud: None, xrc_srqn: 0 });
    }

    /// The bytes of a request that the program has built.
    fn built(&self, request: &Request) -> Option<&[u8]> {
        match &request.data {
            Data::Built(range) => Some(&self.inline[range.clone()]),
            _ => None,
        }
    }

    /// Whether the NIC's queue has room for all.
    fn fits(&self, nic: &Nic, queue: &Qp) -> bool {
        let requests = self.requests.iter().filter(|request| self.built(request).is_none());
        let built = self.requests.iter().filter_map(|request| self.built(request));
        nic.has_room_among(queue.id, requests.map(|request| self.send_wr(request)), built).unwrap_or(true)
    }

    /// Posts a request.
    fn post(&self, nic: &mut Nic, now: Instant, queue: &Qp, request: &Request) -> Result<(), Error> {
        match self.built(request) {
            Some(wqe) => nic.post_built(now, queue.id, wqe, request.wr_id).map(|_| ()),
            None => nic.post_send(now, queue.id, &self.send_wr(request)),
        }
    }

    /// The request as the NIC takes it.
    fn send_wr(&self, request: &Request) -> SendWr<'_> {
        SendWr {
            wr_id: request.wr_id,
            op: request.op,
            flags: request.flags,
            data: match &request.data {
                Data::Sges(range) => SendData::Sges(&self.sges[range.clone()]),
                Data::Inline(range) => SendData::Inline(&self.inline[range.clone()]),
                Data::Built(_) => SendData::Sges(&[]),
            },
            ud: request.ud,
            xrc_srqn: request.xrc_srqn,
        }
    }
}

/// Sets the calls of a queue pair that was created with `send_ops_flags`. All that the NIC has are
/// there, whichever were asked for.
pub(crate) fn fill_calls(qp: &mut ibv_qp_ex, kind: QpType) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    if kind == QpType::Ud {
        qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    }
    if kind == QpType::XrcSend {
        qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    }
}

/// The builder of an extended queue pair. These calls exist only on queue pairs that have one.
///
/// # Safety
/// `qp` is alive.
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a Builder) {
    // SAFETY: by the caller's promise.
    let queue = unsafe { Qp::of(qp.cast()) };
    (queue, queue.builder.as_ref().expect("the wr_ calls are set with the builder"))
}

/// The batch being built.
///
/// # Safety
/// `qp` is alive, and the calling thread is between `wr_start` and `wr_complete`.
#[inline]
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a mut Batch {
    // SAFETY: by the caller's promise this thread holds the builder's mutex, and no other reference to
    // the batch outlives its call.
    unsafe { &mut *builder(qp).1.batch.get() }
}

/// Begins a request with the queue pair's public `wr_id` and `wr_flags`.
///
/// # Safety
/// As for `batch`.
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, op: Result<SendOp, c_int>) {
    // SAFETY: by the caller's promise; the two fields are public.
    unsafe { batch(qp).begin((*qp).wr_id, (*qp).wr_flags, op) };
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a live queue pair.
    let (_, builder) = unsafe { builder(qp) };
    // SAFETY: an initialised mutex, which stays in place as long as the boxed queue pair.
    unsafe { libc::pthread_mutex_lock(builder.mutex.get()) };
    // SAFETY: locked just now.
    unsafe { batch(qp) }.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller ends what its `wr_start` began.
    let ((queue, builder), batch) = unsafe { (builder(qp), &*batch(qp)) };
    let unaddressed = || queue.kind == QpType::Ud && batch.requests.iter().any(|r| r.ud.is_none());
    let result = if batch.error != 0 {
        batch.error
    } else if unaddressed() {
        libc::EINVAL
    } else if let Err((at, errno)) = host::grant_binds(queue.id, batch.requests.iter().map(|r| &r.op)) {
        host::retract_binds(queue.id, batch.requests[..at].iter().map(|r| &r.op));
        errno
    } else {
        let mut posted = 0;
        let result = host::post(|nic, now| {
            // All or none: what makes one of several fail is only the room, once `set_` has checked
            // the rest and the first was taken.
            if batch.requests.len() > 1 && !batch.fits(nic, queue) {
                return libc::ENOMEM;
            }
            for request in &batch.requests {
                if let Err(error) = batch.post(nic, now, queue, request) {
                    return error.errno();
                }
                posted += 1;
            }
            0
        });
        host::retract_binds(queue.id, batch.requests[posted..].iter().map(|r| &r.op));
        result
    };
    // SAFETY: locked by this thread in `wr_start`.
    unsafe { libc::pthread_mutex_unlock(builder.mutex.get()) };
    outcome(result)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller ends what its `wr_start` began.
    unsafe { libc::pthread_mutex_unlock(builder(qp).1.mutex.get()) };
}

/// Defines calls that begin a request.
macro_rules! begins {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) => $op:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) {
            // SAFETY: the caller is between `wr_start` and `wr_complete`.
            unsafe { begin(qp, Ok($op)) };
        }
    )*};
}

begins! {
    fn wr_send() => SendOp::Send;
    fn wr_send_imm(imm: u32) => SendOp::SendImm(u32::from_be(imm));
    fn wr_send_inv(rkey: u32) => SendOp::SendInv(Key(rkey));
    fn wr_rdma_write(rkey: u32, addr: u64) => SendOp::Write(addr, Key(rkey));
    fn wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) =>
        SendOp::WriteImm(addr, Key(rkey), u32::from_be(imm));
    fn wr_rdma_read(rkey: u32, addr: u64) => SendOp::Read(addr, Key(rkey));
    fn wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        SendOp::CompareSwap { addr, rkey: Key(rkey), compare, swap };
    fn wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) =>
        SendOp::FetchAdd { addr, rkey: Key(rkey), add };
    fn wr_local_inv(rkey: u32) => SendOp::LocalInv(Key(rkey));
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller passes a live window and valid bind information, and is between `wr_start` and
    // `wr_complete`.
    unsafe { begin(qp, bind_op(mw, rkey, &*info)) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller passes live objects, and is between `wr_start` and `wr_complete`.
    let (queue, ah, batch) = unsafe { (builder(qp).0, Ah::of(ah), batch(qp)) };
    if queue.pd != Some(ah.pd) {
        return batch.fail(libc::EINVAL);
    }
    if let Some(request) = batch.last() {
        request.ud = Some(ah.address(qpn, qkey));
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller is between `wr_start` and `wr_complete`.
    if let Some(request) = unsafe { batch(qp) }.last() {
        request.xrc_srqn = srqn;
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let piece = Sge { addr, len: length, lkey: Key(lkey) };
    // SAFETY: the caller is between `wr_start` and `wr_complete`.
    unsafe { batch(qp) }.set_sges(core::iter::once(piece));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller is between `wr_start` and `wr_complete`.
    let batch = unsafe { batch(qp) };
    if count > batch.max_sge {
        return batch.fail(libc::EINVAL);
    }
    batch.set_sges((0..count).map(|index| {
        // SAFETY: the caller passes `count` entries.
        let sge = unsafe { *list.add(index) };
        Sge { addr: sge.addr, len: sge.length, lkey: Key(sge.lkey) }
    }));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller passes a readable buffer, and is between `wr_start` and `wr_complete`.
    unsafe { batch(qp).set_inline(core::iter::once((addr.cast_const().cast(), length))) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the caller passes `count` readable buffers, and is between `wr_start` and `wr_complete`.
    unsafe {
        batch(qp).set_inline((0..count).map(|index| {
            let piece = *list.add(index);
            (piece.addr.cast_const().cast(), piece.length)
        }));
    }
}

/// Adds a WQE that the program has built to those being built.
///
/// # Safety
/// `qp` is alive, the calling thread is between `wr_start` and `wr_complete`, and the WQE is readable and as
/// long as its control segment says.
pub(crate) unsafe fn wr_built(qp: *mut ibv_qp_ex, wqe: *const c_void) {
    // SAFETY: by the caller's promise; the field is public.
    unsafe { batch(qp).add_built((*qp).wr_id, crate::xchannel::built(wqe)) };
}

/// The words that the direct verbs keep with an extended queue pair, which `begin` fills in once.
///
/// # Safety
/// `qp` is alive and an extended one.
pub(crate) unsafe fn direct_words(
    qp: *mut ibv_qp_ex,
    begin: unsafe extern "C" fn(*mut u64, *mut ibv_qp_ex),
) -> *mut u64 {
    // SAFETY: by the caller's promise.
    let (_, builder) = unsafe { builder(qp) };
    let words = builder.direct.get_or_init(|| {
        let words = Box::new(UnsafeCell::new([0; DIRECT_WORDS]));
        // SAFETY: so many words, which nobody else knows yet.
        unsafe { begin(words.get().cast(), qp) };
        words
    });
    words.get().cast()
}

/// The extended form of a queue pair, if it was created as one.
///
/// # Safety
/// C ABI: see `ibv_qp_to_qp_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller passes a live queue pair.
    if unsafe { Qp::of(qp) }.builder.is_some() { qp.cast() } else { core::ptr::null_mut() }
}
