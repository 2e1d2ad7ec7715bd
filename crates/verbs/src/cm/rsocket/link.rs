//! A connection's queue pair, queues and memory: posts what the stream says, and tells it what has come.

use super::completions::{BATCH, Completions, room};
use super::memory::Memory;
use super::options::Settings;
use super::stream::{Body, CONTROL_ROOM, Post, Sizes, Stream, TABLE};
use super::wire::{self, MAPPING_LEN, TARGET_LEN, Target};
use crate::abi::*;
use crate::cm::common_pd;
use crate::cm::queue_pair::{create_plain, rdma_destroy_qp};
use crate::handle::errno;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};
use crate::post::{post_recv, post_send};
use adverb_nic::memory::{Span, dma};
use core::ffi::c_int;
use core::ptr::null_mut;

/// `wr_id` of requests that write, and of receives.
const SEND: u64 = 1;
const RECEIVE: u64 = 0;
/// Inline bytes that a queue pair has at least: an entry of a table.
const INLINE_MIN: u32 = MAPPING_LEN as u32;
const FLUSHED: u32 = 5;
const RETRIES_EXCEEDED: u32 = 12;

/// What a connection needs before the peer is known.
pub(super) struct Parts {
    id: *mut rdma_cm_id,
    completions: Completions,
    send: Memory,
    receive: Memory,
    /// The table of the peer's buffers, and behind it that of its mappings.
    tables: Memory,
    settings: Settings,
    inline: u32,
}

// SAFETY: verbs objects may be used from any thread; the memory is only reached through spans.
unsafe impl Send for Parts {}

impl Parts {
    /// Makes the identifier's queue pair, its queues and its memory, with all receives posted.
    ///
    /// # Safety
    /// The identifier is alive, has a device, and outlives this.
    pub(super) unsafe fn new(id: *mut rdma_cm_id, settings: Settings) -> Result<Parts, c_int> {
        let pd = common_pd();
        let write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let tables = TABLE as usize * TARGET_LEN + settings.mappings as usize * MAPPING_LEN;
        // SAFETY: the domain lives as long as the process; the identifier by the caller's promise.
        unsafe {
            let receives = u32::from(settings.receive_queue) + CONTROL_ROOM;
            let entries = u32::from(settings.send_queue) + receives;
            let mut parts = Parts {
                id,
                completions: Completions::new((*id).verbs, entries)?,
                send: Memory::new(pd, settings.send as usize, 0)?,
                receive: Memory::new(pd, settings.receive as usize, write)?,
                tables: Memory::new(pd, tables, write)?,
                settings,
                inline: 0,
            };
            let mut init: ibv_qp_init_attr = core::mem::zeroed();
            init.send_cq = parts.completions.cq();
            init.recv_cq = parts.completions.cq();
            init.qp_type = IBV_QPT_RC;
            init.sq_sig_all = 1;
            init.cap.max_send_wr = settings.send_queue.into();
            init.cap.max_recv_wr = receives;
            init.cap.max_send_sge = 1;
            init.cap.max_recv_sge = 1;
            init.cap.max_inline_data = settings.inline.max(INLINE_MIN);
            create_plain(id, pd, &mut init)?;
            parts.inline = settings.inline;
            parts.post_receives(receives)?;
            Ok(parts)
        }
    }

    /// What the peer is told of this side.
    pub(super) fn connect(&self) -> wire::Connect {
        wire::Connect {
            net: cfg!(target_endian = "big"),
            credits: self.settings.receive_queue,
            mappings: self.settings.mappings,
            table: Target { addr: self.tables.addr(0), key: self.tables.rkey(), len: TABLE },
            buffer: Target {
                addr: self.receive.addr(0),
                key: self.receive.rkey(),
                len: self.settings.receive / 2,
            },
        }
    }

    /// Posts receives, which have no memory: only messages take them.
    fn post_receives(&self, count: u32) -> Result<(), c_int> {
        for _ in 0..count {
            let mut wr = ibv_recv_wr { wr_id: RECEIVE, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let mut bad = null_mut();
            // SAFETY: the queue pair is alive, the request valid.
            match unsafe { post_recv((*self.id).qp, &mut wr, &mut bad) } {
                0 => {}
                errno => return Err(errno),
            }
        }
        Ok(())
    }

    /// Empties an entry of this side's tables and says what it had. The length is read first and the address
    /// after it, as the peer's NIC writes the last word last.
    fn take_target(&self, entry: u32) -> Target {
        let at = entry as usize * TARGET_LEN;
        let (addr, rest) = (self.tables.span(at, 8), self.tables.span(at + 8, 8));
        let key_and_len = dma::load_word(rest);
        let target = Target::of_words(dma::load_word(addr), key_and_len);
        if target.len > 0 {
            dma::store_word(rest, 0);
        }
        target
    }

    /// Where the peer's mapping of an offset is, from there on.
    pub(super) fn mapping(&self, offset: u64) -> Option<Target> {
        (0..self.settings.mappings as usize).find_map(|index| {
            let at = TABLE as usize * TARGET_LEN + index * MAPPING_LEN;
            let word = |i: usize| dma::load_word(self.tables.span(at + 8 * i, 8));
            let (rest, begin) = (word(2), word(0));
            let found = Target::of_words(word(1), rest);
            let skip = offset.checked_sub(begin).filter(|skip| *skip < found.len.into())?;
            Some(Target { addr: found.addr.wrapping_add(skip), len: found.len - skip as u32, ..found })
        })
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: the identifier outlives this; what the queue pair uses goes after it.
        unsafe { rdma_destroy_qp(self.id) };
    }
}

/// Memory of the program's that the peer may write to.
struct Mapped {
    index: u32,
    mr: *mut ibv_mr,
    addr: u64,
    len: usize,
}

/// A connection.
pub(super) struct Link {
    pub(super) stream: Stream,
    /// Why the queue pair works no more.
    pub(super) broken: Option<c_int>,
    /// The peer is known to have what it needs. Where the answer to its request is lost, its queue pair takes
    /// nothing until that is repeated, which is later than ours would be given up for what it sent.
    confirmed: bool,
    mapped: Vec<Mapped>,
    pub(super) parts: Parts,
}

// SAFETY: as for `Parts`.
unsafe impl Send for Link {}

impl Link {
    /// The connection, when the peer has said what it is.
    pub(super) fn new(parts: Parts, peer: &wire::Connect, confirmed: bool) -> Link {
        let of = &parts.settings;
        let sizes = Sizes {
            send: of.send,
            receive: of.receive,
            send_queue: of.send_queue,
            receive_queue: of.receive_queue,
        };
        Link { stream: Stream::new(sizes, peer), broken: None, confirmed, mapped: Vec::new(), parts }
    }

    /// The peer has the answer to its request: it is told what was to be told.
    pub(super) fn confirm(&mut self) {
        self.confirmed = true;
        self.tell();
    }

    /// Posts a request of the stream's.
    fn post(&mut self, post: &Post) -> Result<(), c_int> {
        let mut entry = [0; MAPPING_LEN];
        let (of, len) = match &post.body {
            Body::Nothing => (None, 0),
            Body::Ring { at, len } => (Some(self.parts.send.addr(*at)), *len),
            Body::Half(at) => {
                let (addr, key) = (self.parts.receive.addr(*at), self.parts.receive.rkey());
                entry[..TARGET_LEN].copy_from_slice(&self.stream.half_entry(addr, key));
                (None, TARGET_LEN)
            }
            Body::Mapping(mapping) => {
                entry = self.stream.mapping_entry(mapping);
                (None, MAPPING_LEN)
            }
        };
        let inline = of.is_none() || len <= self.parts.inline as usize;
        let addr = of.unwrap_or((&raw const entry).expose_provenance() as u64);
        let mut piece = ibv_sge { addr, length: len as u32, lkey: self.parts.send.lkey() };
        // SAFETY: integers and pointers.
        let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
        wr.wr_id = SEND;
        wr.sg_list = &raw mut piece;
        wr.num_sge = (len > 0).into();
        wr.opcode = if post.message.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
        wr.send_flags = IBV_SEND_SIGNALED | if inline && len > 0 { IBV_SEND_INLINE } else { 0 };
        wr.imm_data = post.message.map_or(0, |message| message.emit().to_be());
        wr.wr.rdma = WrRdma { remote_addr: post.addr, rkey: post.key };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, the request valid; what is not inline stays until its completion.
        match unsafe { post_send((*self.parts.id).qp, &mut wr, &mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Notes that the queue pair works no more.
    fn fail(&mut self, errno: c_int) {
        if self.broken.is_none() && !self.stream.peer_closed() {
            self.broken = Some(errno);
        }
        self.stream.lost();
    }

    fn take(&mut self, wc: &ibv_wc) -> Result<(), c_int> {
        match (wc.status, wc.wr_id) {
            (0, RECEIVE) if wc.wc_flags & IBV_WC_WITH_IMM != 0 => {
                self.stream.received(u32::from_be(wc.imm_data)).map_err(|_| libc::EPROTO)
            }
            (0, RECEIVE) => Err(libc::EPROTO),
            (0, _) => {
                self.stream.completed();
                Ok(())
            }
            (RETRIES_EXCEEDED, _) => Err(libc::ETIMEDOUT),
            // The first error says more than those that follow from it.
            (FLUSHED, _) => Err(self.broken.unwrap_or(libc::ECONNRESET)),
            _ => Err(libc::ECONNRESET),
        }
    }

    /// Takes in what has come and tells the peer what is to be told; whether anything was new.
    pub(super) fn process(&mut self) -> bool {
        let (mut any, mut receives) = (false, 0);
        let mut wcs = room();
        loop {
            let found = match self.parts.completions.poll(&mut wcs) {
                Ok(found) => found,
                Err(errno) => {
                    self.fail(errno);
                    break;
                }
            };
            for wc in found {
                receives += u32::from(wc.wr_id == RECEIVE);
                if let Err(errno) = self.take(wc) {
                    self.fail(errno);
                }
            }
            any |= !found.is_empty();
            if found.len() < BATCH {
                break;
            }
        }
        if self.broken.is_none()
            && let Err(errno) = self.give(receives)
        {
            self.fail(errno);
            any = true;
        }
        any
    }

    /// Gives receives back, and tells the peer what it may send.
    fn give(&mut self, receives: u32) -> Result<(), c_int> {
        if self.stream.peer_closed() {
            return Ok(());
        }
        self.parts.post_receives(receives)?;
        if !self.confirmed {
            return Ok(());
        }
        self.look();
        while let Some(post) = self.stream.tell() {
            self.post(&post)?;
        }
        Ok(())
    }

    /// Tells the peer what is to be told.
    pub(super) fn tell(&mut self) {
        if self.broken.is_none()
            && let Err(errno) = self.give(0)
        {
            self.fail(errno);
        }
    }

    fn look(&mut self) {
        let parts = &self.parts;
        self.stream.look(|entry| parts.take_target(entry));
    }

    /// Sends what there is room for; says how many bytes.
    pub(super) fn write(&mut self, from: &mut Pieces<'_>) -> usize {
        let mut done = 0;
        while from.left() > 0 {
            self.look();
            let Some(post) = self.stream.write(from.left()) else { break };
            done += self.put(from, &post);
        }
        done
    }

    /// Sends to memory that the peer has mapped; `Err` is errno.
    pub(super) fn write_to(&mut self, offset: u64, from: &mut Pieces<'_>) -> Result<usize, c_int> {
        let mut done = 0;
        while from.left() > 0 {
            let target = self.parts.mapping(offset + done as u64).ok_or(libc::EINVAL)?;
            let Some(post) = self.stream.write_to(target, from.left()) else { break };
            done += self.put(from, &post);
        }
        Ok(done)
    }

    /// Copies a request's bytes into the ring and posts it; says how many they are.
    fn put(&mut self, from: &mut Pieces<'_>, post: &Post) -> usize {
        let Body::Ring { at, len } = post.body else { unreachable!("bytes go through the ring") };
        from.each(len, |done, piece| dma::copy(self.parts.send.span(at + done, piece.len()), piece));
        if let Err(errno) = self.post(post) {
            self.fail(errno);
        }
        len
    }

    /// Copies what there is to read, or leaves it there too (`peek`); says how many bytes.
    pub(super) fn read(&mut self, to: &mut Pieces<'_>, peek: bool) -> usize {
        let mut done = 0;
        while to.left() > 0 {
            let (at, there) = self.stream.readable(if peek { done } else { 0 });
            let len = there.min(to.left());
            if len == 0 {
                break;
            }
            to.each(len, |done, piece| dma::copy(piece, self.parts.receive.span(at + done, piece.len())));
            if !peek {
                self.stream.read(len);
            }
            done += len;
        }
        done
    }

    /// Has the next completion announced. Whether something came meanwhile, so that there is nothing to wait
    /// for.
    pub(super) fn arm(&mut self) -> bool {
        if let Err(errno) = self.parts.completions.arm() {
            self.fail(errno);
            return true;
        }
        self.process()
    }

    /// The descriptor that says that a completion came.
    pub(super) fn fd(&self) -> c_int {
        self.parts.completions.fd()
    }

    /// Lets the peer write to the program's memory.
    ///
    /// # Safety
    /// The memory is the program's to share until it takes it back.
    pub(super) unsafe fn map(&mut self, addr: u64, len: usize, offset: u64) -> Result<(), c_int> {
        let index = (0..self.stream.peer_mappings())
            .find(|index| self.mapped.iter().all(|mapped| mapped.index != *index))
            .ok_or(libc::ENOBUFS)?;
        let length = u32::try_from(len).map_err(|_| libc::EINVAL)?;
        let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) as c_int;
        let at = core::ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: the domain lives as long as the process; the memory by the caller's promise.
        let mr = unsafe { ibv_reg_mr(common_pd(), at, len, access) };
        if mr.is_null() {
            return Err(errno());
        }
        self.mapped.push(Mapped { index, mr, addr, len });
        // SAFETY: made just now.
        let target = Target { addr, key: unsafe { (*mr).rkey }, len: length };
        self.stream.mapped(wire::Mapping { index, offset, target });
        self.process();
        Ok(())
    }

    /// Takes memory back.
    pub(super) fn unmap(&mut self, addr: u64, len: usize) -> Result<(), c_int> {
        let at = self.mapped.iter().position(|mapped| (mapped.addr, mapped.len) == (addr, len));
        let mapped = self.mapped.swap_remove(at.ok_or(libc::EINVAL)?);
        // SAFETY: made in `map`, and only here.
        unsafe { ibv_dereg_mr(mapped.mr) };
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for mapped in &self.mapped {
            // SAFETY: made in `map`, and not taken back.
            unsafe { ibv_dereg_mr(mapped.mr) };
        }
    }
}

/// The program's buffers, in order, and how far they have been used.
pub(super) struct Pieces<'a> {
    buffers: &'a [libc::iovec],
    /// Bytes of the first one that have been used.
    used: usize,
    left: usize,
}

impl<'a> Pieces<'a> {
    /// All of them; EINVAL if they are more than a result can say.
    ///
    /// # Safety
    /// They can be read, or written, until this is dropped, and nobody has exclusive references to them.
    pub(super) unsafe fn new(buffers: &'a [libc::iovec]) -> Result<Pieces<'a>, c_int> {
        let total = buffers.iter().try_fold(0usize, |sum, buffer| sum.checked_add(buffer.iov_len));
        let left = total.filter(|total| *total <= isize::MAX as usize).ok_or(libc::EINVAL)?;
        Ok(Pieces { buffers, used: 0, left })
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Goes over the next bytes: each piece, with how many bytes were before it.
    pub(super) fn each(&mut self, bytes: usize, mut with: impl FnMut(usize, Span)) {
        let mut done = 0;
        while done < bytes {
            let buffer = self.buffers[0];
            let len = (buffer.iov_len - self.used).min(bytes - done);
            let addr = buffer.iov_base.expose_provenance() as u64 + self.used as u64;
            if len > 0 {
                // SAFETY: `new`'s caller promised that they can be used.
                with(done, unsafe { Span::new(addr, len) });
            }
            done += len;
            self.used += len;
            if self.used == buffer.iov_len {
                self.buffers = &self.buffers[1..];
                self.used = 0;
            }
        }
        self.left -= bytes;
    }
}
