//! The queue pair of a socket for datagrams, with the memory that they come to and leave from, in places of
//! one size. Each place is posted, or in use, or free.

use super::completions::Completions;
use super::heads::Head;
use super::link::Pieces;
use super::memory::Memory;
use super::options::Settings;
use crate::abi::*;
use crate::ah::{ibv_create_ah, ibv_destroy_ah, received};
use crate::cm::event::address_of;
use crate::cm::{common_context, common_pd};
use crate::handle::errno;
use crate::post::{post_recv, post_send};
use crate::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::query::PORT;
use adverb_nic::memory::dma;
use adverb_wire::Gid;
use core::ffi::c_int;
use core::ptr::null_mut;
use std::net::IpAddr;

/// Bytes of a datagram with its head, at most: what rdma-core's sockets have room for.
pub(super) const PLACE: usize = 2048;
/// What stands before a datagram that was received: the room for a global route header (IBTA 11.4.1.1).
const GRH: usize = 40;
/// From one received datagram to the next; places begin at cache lines.
const STRIDE: usize = (GRH + PLACE).next_multiple_of(64);
/// In `wr_id`, what tells requests that send from receives; below it is the place.
const SENDS: u64 = 1 << 32;

/// Where the NIC sends to.
pub(super) struct Handle(*mut ibv_ah);

impl Handle {
    /// For an address.
    ///
    /// # Safety
    /// The domain that identifiers share is there.
    pub(super) unsafe fn new(of: IpAddr) -> Result<Handle, c_int> {
        // SAFETY: by the caller's promise; the attributes are valid.
        let handle = unsafe { ibv_create_ah(common_pd(), &mut address_of(Gid::from(of), 0)) };
        if handle.is_null() { Err(errno()) } else { Ok(Handle(handle)) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made in `new`; requests that were posted have what they need of it.
        unsafe { ibv_destroy_ah(self.0) };
    }
}

/// What a completion says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// A place is free to send from.
    Sent(u32),
    /// A datagram of so many bytes, with its head, is at a place.
    Came(u32, usize),
    /// A place whose receive failed.
    Failed(u32),
}

/// A queue pair, its queues and its memory.
pub(super) struct Queue {
    qp: *mut ibv_qp,
    pub(super) completions: Completions,
    send: Memory,
    receive: Memory,
    inline: u32,
    /// Places to send from that are free.
    free: Vec<u32>,
    /// All of them, and those to receive in.
    sends: u32,
    pub(super) receives: u32,
}

// SAFETY: verbs objects may be used from any thread; the memory is only reached through spans.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Send for Handle {}

/// Places that a buffer's size and a queue's come to.
fn places(bytes: u32, requests: u16) -> u32 {
    (bytes / PLACE as u32).clamp(1, requests.into())
}

impl Queue {
    /// Makes the queue pair, ready to send, and posts all receives.
    ///
    /// # Safety
    /// What identifiers share is open.
    pub(super) unsafe fn new(settings: &Settings) -> Result<Queue, c_int> {
        let pd = common_pd();
        let sends = places(settings.send, settings.send_queue);
        let receives = places(settings.receive, settings.receive_queue);
        // SAFETY: by the caller's promise, and integers and pointers.
        unsafe {
            let mut queue = Queue {
                qp: null_mut(),
                completions: Completions::new(common_context(), sends + receives)?,
                send: Memory::new(pd, sends as usize * PLACE, 0)?,
                receive: Memory::new(pd, receives as usize * STRIDE, IBV_ACCESS_LOCAL_WRITE)?,
                inline: settings.inline,
                free: (0..sends).rev().collect(),
                sends,
                receives,
            };
            let mut init: ibv_qp_init_attr = core::mem::zeroed();
            init.send_cq = queue.completions.cq();
            init.recv_cq = queue.completions.cq();
            init.qp_type = IBV_QPT_UD;
            init.sq_sig_all = 1;
            init.cap.max_send_wr = sends;
            init.cap.max_recv_wr = receives;
            init.cap.max_send_sge = 1;
            init.cap.max_recv_sge = 1;
            init.cap.max_inline_data = settings.inline;
            queue.qp = ibv_create_qp(pd, &mut init);
            if queue.qp.is_null() {
                return Err(errno());
            }
            queue.start()?;
            (0..receives).try_for_each(|place| queue.give_back(place))?;
            Ok(queue)
        }
    }

    /// Moves the queue pair to where it sends and receives (IBTA 10.3.1).
    fn start(&self) -> Result<(), c_int> {
        // SAFETY: integers.
        let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
        attr.port_num = PORT;
        attr.qkey = RDMA_UDP_QKEY;
        let steps = [
            (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (IBV_QPS_RTR, 0),
            (IBV_QPS_RTS, IBV_QP_SQ_PSN),
        ];
        for (state, mask) in steps {
            attr.qp_state = state;
            // SAFETY: the queue pair is alive, the attributes valid.
            match unsafe { ibv_modify_qp(self.qp, &mut attr, (mask | IBV_QP_STATE) as c_int) } {
                0 => {}
                errno => return Err(errno),
            }
        }
        Ok(())
    }

    /// The queue pair's number.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: a public field of the live queue pair.
        unsafe { (*self.qp).qp_num }
    }

    /// Posts a place again, for the next datagram.
    pub(super) fn give_back(&self, place: u32) -> Result<(), c_int> {
        let at = place as usize * STRIDE;
        let length = (GRH + PLACE) as u32;
        let mut piece = ibv_sge { addr: self.receive.addr(at), length, lkey: self.receive.lkey() };
        let mut wr =
            ibv_recv_wr { wr_id: place.into(), next: null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, the request valid; the place stays until its completion.
        match unsafe { post_recv(self.qp, &mut wr, &mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// What a completion says; a place that was sent from is free again.
    pub(super) fn done(&mut self, wc: &ibv_wc) -> Done {
        let place = wc.wr_id as u32;
        if wc.wr_id & SENDS != 0 {
            // One that could not be sent is lost, as datagrams may be.
            self.free.push(place);
            return Done::Sent(place);
        }
        match (wc.byte_len as usize).checked_sub(GRH) {
            Some(len) if wc.status == 0 => Done::Came(place, len),
            _ => Done::Failed(place),
        }
    }

    /// Reads from a datagram at a place.
    pub(super) fn read(&self, place: u32, at: usize, out: &mut [u8]) {
        dma::read_bytes(self.receive.span(place as usize * STRIDE + GRH + at, out.len()), out);
    }

    /// The address that a datagram at a place came from, as the network has it.
    pub(super) fn sender(&self, place: u32) -> IpAddr {
        let mut area = [0; GRH];
        dma::read_bytes(self.receive.span(place as usize * STRIDE, GRH), &mut area);
        received(&area).from.ip()
    }

    /// Copies from a datagram at a place into the program's buffers.
    pub(super) fn copy(&self, place: u32, at: usize, len: usize, to: &mut Pieces<'_>) {
        let begin = place as usize * STRIDE + GRH + at;
        to.each(len, |done, piece| dma::copy(piece, self.receive.span(begin + done, piece.len())));
    }

    /// Whether there is a place to send from.
    pub(super) fn writable(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether something waits to be sent.
    pub(super) fn sending(&self) -> bool {
        self.free.len() < self.sends as usize
    }

    /// Sends a datagram, all of `from` behind its head; EAGAIN if no place is free.
    pub(super) fn send(
        &mut self,
        head: &Head,
        from: &mut Pieces<'_>,
        to: (&Handle, u32),
    ) -> Result<(), c_int> {
        let place = *self.free.last().ok_or(libc::EAGAIN)?;
        let (at, head) = (place as usize * PLACE, head.bytes());
        let len = head.len() + from.left();
        dma::write_bytes(self.send.span(at, head.len()), head);
        let begin = at + head.len();
        from.each(from.left(), |done, piece| dma::copy(self.send.span(begin + done, piece.len()), piece));
        let mut piece = ibv_sge { addr: self.send.addr(at), length: len as u32, lkey: self.send.lkey() };
        let (handle, qpn) = to;
        // SAFETY: integers and pointers.
        let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
        wr.wr_id = SENDS | u64::from(place);
        wr.sg_list = &raw mut piece;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED | if len <= self.inline as usize { IBV_SEND_INLINE } else { 0 };
        wr.wr.ud = WrUd { ah: handle.0, remote_qpn: qpn, remote_qkey: RDMA_UDP_QKEY };
        let mut bad = null_mut();
        // SAFETY: the queue pair and the handle are alive, the request valid; the place stays until its
        // completion.
        match unsafe { post_send(self.qp, &mut wr, &mut bad) } {
            0 => {
                self.free.pop();
                Ok(())
            }
            errno => Err(errno),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.qp.is_null() {
            // SAFETY: this one's own; what it uses goes after it.
            unsafe { ibv_destroy_qp(self.qp) };
        }
    }
}
