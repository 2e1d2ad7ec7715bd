//! Posting work requests (IBTA 11.4.1): from C's lists to the NIC, without allocation, all requests of
//! one call under one lock.

use crate::abi::*;
use crate::ah::Ah;
use crate::handle::outcome;
use crate::host;
use crate::mw::{self, bind_op};
use crate::qp::Qp;
use crate::srq::Srq;
use adverb_nic::{Error, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdAddress, limits};
use adverb_wire::Key;
use core::ffi::c_int;
use core::mem::{MaybeUninit, align_of, offset_of, size_of};

// A C scatter/gather list is handed to the NIC as it stands.
const _: () = assert!(
    size_of::<ibv_sge>() == size_of::<Sge>()
        && align_of::<ibv_sge>() == align_of::<Sge>()
        && offset_of!(ibv_sge, addr) == offset_of!(Sge, addr)
        && offset_of!(ibv_sge, length) == offset_of!(Sge, len)
        && offset_of!(ibv_sge, lkey) == offset_of!(Sge, lkey)
);

/// `enum ibv_send_flags`, without `IBV_SEND_INLINE`, which says where data is and not what to do.
/// `None` for bits that this NIC does not know.
#[inline]
pub(crate) fn send_flags(bits: u32) -> Option<SendFlags> {
    const KNOWN: u32 = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
    (bits & !KNOWN == 0).then_some(SendFlags {
        signaled: bits & IBV_SEND_SIGNALED != 0,
        solicited: bits & IBV_SEND_SOLICITED != 0,
        fence: bits & IBV_SEND_FENCE != 0,
    })
}

/// A C scatter/gather list.
///
/// # Safety
/// `list` holds `count` entries that stay unchanged while the result is used.
#[inline]
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= limits::MAX_SGE as usize => {
            // SAFETY: by the caller's promise; the layouts are the same, see above.
            Ok(unsafe { core::slice::from_raw_parts(list.cast::<Sge>(), count) })
        }
        _ => Err(libc::EINVAL),
    }
}

/// What a work request does.
///
/// # Safety
/// The request is valid for its opcode.
#[inline]
unsafe fn send_op(wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    let immediate = u32::from_be(wr.imm_data);
    // SAFETY: every member of the union is made of integers and pointers, and the opcode names it.
    unsafe {
        let rdma = wr.wr.rdma;
        Ok(match wr.opcode {
            IBV_WR_RDMA_WRITE => SendOp::Write(rdma.remote_addr, Key(rdma.rkey)),
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(rdma.remote_addr, Key(rdma.rkey), immediate),
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(immediate),
            IBV_WR_SEND_WITH_INV => SendOp::SendInv(Key(wr.imm_data)),
            IBV_WR_RDMA_READ => SendOp::Read(rdma.remote_addr, Key(rdma.rkey)),
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                let a = wr.wr.atomic;
                SendOp::CompareSwap {
                    addr: a.remote_addr,
                    rkey: Key(a.rkey),
                    compare: a.compare_add,
                    swap: a.swap,
                }
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let a = wr.wr.atomic;
                SendOp::FetchAdd { addr: a.remote_addr, rkey: Key(a.rkey), add: a.compare_add }
            }
            IBV_WR_LOCAL_INV => SendOp::LocalInv(Key(wr.imm_data)),
            IBV_WR_BIND_MW => {
                // Only a plain number says which window; a missing one must not be looked into.
                if wr.bind_mw.mw.is_null() {
                    return Err(libc::EINVAL);
                }
                bind_op(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info)?
            }
            _ => return Err(libc::EINVAL),
        })
    }
}

/// The destination of a datagram. An address of another domain is refused (IBTA 11.4.1.1).
///
/// # Safety
/// The request is valid for a datagram queue pair.
#[inline]
unsafe fn datagram_address(qp: &Qp, wr: &ibv_send_wr) -> Result<UdAddress, c_int> {
    // SAFETY: by the caller's promise this is the member that counts.
    let ud = unsafe { wr.wr.ud };
    if ud.ah.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the caller's promise the handle is alive.
    let ah = unsafe { Ah::of(ud.ah) };
    if qp.pd != Some(ah.pd) {
        return Err(libc::EINVAL);
    }
    Ok(ah.address(ud.remote_qpn, ud.remote_qkey))
}

/// Copies the pieces of an inline request into a buffer.
///
/// # Safety
/// The pieces are readable.
#[inline]
unsafe fn gather_inline<'a>(
    pieces: &[Sge],
    buffer: &'a mut [MaybeUninit<u8>; limits::MAX_INLINE as usize],
) -> Result<&'a [u8], c_int> {
    let mut len = 0usize;
    for piece in pieces {
        let size = piece.len as usize;
        if size > buffer.len() - len {
            return Err(libc::EINVAL);
        }
        // SAFETY: the buffer has room for `size` more bytes; the piece is readable by the caller's
        // promise.
        unsafe {
            core::ptr::copy_nonoverlapping(piece.addr as *const u8, buffer[len..].as_mut_ptr().cast(), size);
        }
        len += size;
    }
    // SAFETY: the first `len` bytes were written above.
    Ok(unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast(), len) })
}

/// Translates one request and hands it to `post`.
///
/// # Safety
/// The request, its lists and the objects that it names are valid.
#[inline]
unsafe fn post_one(
    qp: &Qp,
    wr: &ibv_send_wr,
    post: impl FnOnce(&SendWr<'_>) -> Result<(), Error>,
) -> Result<(), c_int> {
    let flags = send_flags(wr.send_flags).ok_or(libc::EINVAL)?;
    // SAFETY: by the caller's promise, for all of these.
    let (op, pieces, ud) = unsafe {
        let ud = if qp.kind == QpType::Ud { Some(datagram_address(qp, wr)?) } else { None };
        (send_op(wr)?, sges(wr.sg_list, wr.num_sge)?, ud)
    };
    let xrc_srqn = if qp.kind == QpType::XrcSend { wr.qp_type.remote_srqn } else { 0 };
    let mut request = SendWr { wr_id: wr.wr_id, op, flags, data: SendData::Sges(pieces), ud, xrc_srqn };
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return post(&request).map_err(Error::errno);
    }
    let mut buffer = [MaybeUninit::uninit(); limits::MAX_INLINE as usize];
    // SAFETY: by the caller's promise the pieces are readable.
    request.data = SendData::Inline(unsafe { gather_inline(pieces, &mut buffer) }?);
    post(&request).map_err(Error::errno)
}

/// `ibv_post_send(3)`: stops at the first request that fails, and says which it was.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    let queue = unsafe { Qp::of(qp) };
    // SAFETY: the caller passes a list of valid requests.
    let (refused, refusal) = unsafe { mw::grant_listed(queue, wr) };
    let result = host::post(|nic, now| {
        let mut at = wr;
        while !at.is_null() {
            if at == refused {
                // SAFETY: the caller passes a place for the failed request.
                unsafe { *bad = at };
                return refusal;
            }
            // SAFETY: the caller passes a list of valid requests.
            let request = unsafe { &*at };
            // SAFETY: as above.
            let posted = unsafe { post_one(queue, request, |wr| nic.post_send(now, queue.id, wr)) };
            if let Err(errno) = posted {
                // SAFETY: the caller passes a place for the failed request.
                unsafe { *bad = at };
                return errno;
            }
            at = request.next;
        }
        0
    });
    if result != 0 {
        // SAFETY: the list is valid, and its failed request was named.
        unsafe { mw::retract_listed(queue, *bad, refused) };
    }
    outcome(result)
}

/// Posts a list of receives with `post`.
///
/// # Safety
/// The list is valid, and `bad` is a place for a failed request.
#[inline]
unsafe fn post_receives(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvWr<'_>) -> Result<(), Error>,
) -> c_int {
    let mut at = wr;
    while !at.is_null() {
        // SAFETY: by the caller's promise.
        let request = unsafe { &*at };
        // SAFETY: as above.
        let posted = unsafe { sges(request.sg_list, request.num_sge) }
            .and_then(|sges| post(&RecvWr { wr_id: request.wr_id, sges }).map_err(Error::errno));
        if let Err(errno) = posted {
            // SAFETY: by the caller's promise.
            unsafe { *bad = at };
            return errno;
        }
        at = request.next;
    }
    0
}

/// `ibv_post_recv(3)`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    let queue = unsafe { Qp::of(qp) };
    outcome(host::post(|nic, now| {
        // SAFETY: the caller passes a valid list and a place for the failed request.
        unsafe { post_receives(wr, bad, |wr| nic.post_recv(now, queue.id, wr)) }
    }))
}

/// `ibv_post_srq_recv(3)`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Srq::of(srq) };
    outcome(host::post(|nic, _now| {
        // SAFETY: the caller passes a valid list and a place for the failed request.
        unsafe { post_receives(wr, bad, |wr| nic.post_srq_recv(queue.id, wr)) }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_known_or_refused() {
        let flags = send_flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE | IBV_SEND_FENCE).expect("known");
        assert!(flags.signaled && flags.fence && !flags.solicited);
        assert_eq!(send_flags(1 << 4), None);
    }

    #[test]
    fn inline_pieces_are_joined_and_bounded() {
        let (a, b) = ([1u8, 2, 3], [4u8, 5]);
        let piece = |p: &[u8]| Sge { addr: p.as_ptr() as u64, len: p.len() as u32, lkey: Key(0) };
        let mut buffer = [MaybeUninit::uninit(); limits::MAX_INLINE as usize];
        // SAFETY: both pieces are live arrays.
        let joined = unsafe { gather_inline(&[piece(&a), piece(&b)], &mut buffer) };
        assert_eq!(joined, Ok(&[1u8, 2, 3, 4, 5][..]));
        let long = Sge { addr: a.as_ptr() as u64, len: limits::MAX_INLINE + 1, lkey: Key(0) };
        // SAFETY: refused before anything is read.
        assert_eq!(unsafe { gather_inline(&[long], &mut buffer) }, Err(libc::EINVAL));
    }

    #[test]
    fn lists_are_bounded() {
        // SAFETY: nothing is read of an empty list, nor of one that is too long.
        unsafe {
            assert_eq!(sges(core::ptr::null(), 0), Ok(&[][..]));
            assert_eq!(sges(core::ptr::null(), -1), Err(libc::EINVAL));
            assert_eq!(sges(core::ptr::null(), limits::MAX_SGE as c_int + 1), Err(libc::EINVAL));
        }
    }
}
