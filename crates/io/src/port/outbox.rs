//! What the port has for the socket: staged frames, and acknowledgements beside them. Those are staged last,
//! behind requests to the same peer: a shorter frame ends a message that the kernel cuts apart, so that a
//! request and an acknowledgement are one message, in one system call. On the wire each is a frame of its
//! own. What may wait for the application's next call is `hold.rs`'s to say.

use super::{Port, UDP_PATH};
use crate::hold::Keep;
use crate::rings::unshown::is_plain_ack;
use adverb_nic::{Nic, PathId, TxFrame};
use adverb_wire::{Bth, Instant, Packet, QpNumber};

/// Acknowledgements that are put beside.
const ACKS_MAX: usize = 32;
/// Frames and bytes of a row of posts that wait at most: the receiver should not stand idle, which it does
/// with 64 (the notebook's "rows of small messages over UDP").
const ROW_FRAMES: usize = 48;
const ROW_BYTES: usize = 16 << 10;

/// Frames in rings at once that are a stream's: who waits for an answer has sent no more than the
/// acknowledgement of the one before, and what is to be answered.
const STREAM_FRAMES: usize = 4;

/// Frames for the socket that have not left.
#[derive(Default)]
pub(super) struct Outbox {
    acks: Vec<Packet>,
    /// Frames staged since the last flush, and their bytes.
    frames: usize,
    bytes: usize,
    /// Something waits for the application's next call: for the socket, in rings.
    waits: bool,
    rings_wait: bool,
    /// The rings had so many frames at once that their senders wait for room in their windows.
    is_stream: bool,
    /// Whom the last request in a ring was for, if it was a WRITE that only memory tells of.
    written: Option<QpNumber>,
    /// What may.
    pub(super) keep: Keep,
    /// Since this was last asked: requests or answers were staged, acknowledgements were due.
    sent: bool,
    acknowledged: bool,
}

impl Port {
    #[inline]
    pub(super) fn send_udp(&mut self, now: Instant, frame: &TxFrame) -> Option<PathId> {
        if is_plain_ack(&frame.packet) && self.outbox.acks.len() < ACKS_MAX {
            self.outbox.acknowledged = true;
            self.outbox.acks.push(frame.packet);
            return None;
        }
        if frame.packet.bth.opcode.operation().is_response() {
            // Answers of a queue pair stay in order.
            self.stage_acks(now);
        }
        (self.outbox.sent, self.outbox.frames) = (true, self.outbox.frames + 1);
        self.outbox.bytes += frame.packet.wire_len();
        if !self.udp_has_room() {
            self.counters.drop_send_failed += 1;
        } else if !self.udp.stage_packet(now, &frame.packet, &frame.payload) {
            self.counters.drop_too_long += 1;
        }
        self.udp_path_to_block()
    }

    /// Stages the acknowledgements behind what is staged.
    fn stage_acks(&mut self, now: Instant) {
        let mut acks = std::mem::take(&mut self.outbox.acks);
        for packet in acks.drain(..) {
            if !self.udp_has_room() {
                self.counters.drop_send_failed += 1;
            } else if !self.udp.stage_packet(now, &packet, &Default::default()) {
                self.counters.drop_too_long += 1;
            }
        }
        self.outbox.acks = acks;
    }

    pub(super) fn udp_has_room(&mut self) -> bool {
        self.udp.has_room() || (self.udp.flush(&mut self.counters) && self.udp.has_room())
    }

    /// The stage's path, if it takes nothing more for now.
    #[inline]
    pub(super) fn udp_path_to_block(&mut self) -> Option<PathId> {
        if self.udp_has_room() {
            return None;
        }
        self.udp_blocked = true;
        Some(UDP_PATH)
    }

    /// Stages what is put beside. False if the kernel gets nothing now: nothing is there, or it waits.
    #[inline]
    pub(super) fn is_socket_due(&mut self, now: Instant) -> bool {
        if self.outbox.acks.is_empty() && !self.udp.has_staged() {
            return false;
        }
        let Outbox { keep, frames, bytes, .. } = self.outbox;
        self.outbox.waits = match keep {
            Keep::Nothing => false,
            Keep::Acks => frames == 0,
            Keep::Row => frames < ROW_FRAMES && bytes < ROW_BYTES,
        } && !self.udp_blocked
            && self.slow.is_none();
        if self.outbox.waits {
            return false;
        }
        (self.outbox.frames, self.outbox.bytes) = (0, 0);
        self.stage_acks(now);
        true
    }

    /// Notes that a packet goes into a ring, which is asked for together with those for the socket.
    #[inline]
    pub(super) fn note_for_ring(&mut self, packet: &Packet) {
        let outbox = &mut self.outbox;
        *if is_plain_ack(packet) { &mut outbox.acknowledged } else { &mut outbox.sent } = true;
    }

    /// Notes what the rings had: how many frames, and the last request. Who polls for messages needs no
    /// thread for them, and would only take an acknowledgement in later than it could.
    #[inline]
    pub(super) fn note_from_rings(&mut self, frames: usize, request: Option<Bth>) {
        self.outbox.is_stream = frames > STREAM_FRAMES;
        if let Some(Bth { opcode, dest_qp, .. }) = request {
            let is_silent = opcode.operation().is_write() && !opcode.operation().has_immediate();
            self.outbox.written = is_silent.then_some(dest_qp);
        }
    }

    /// Whether the rings' receivers are shown nothing now: acknowledgements in them wait. Not where the queue
    /// pair waits for others itself: who spins on memory has seen all that it posted complete.
    #[inline]
    pub(super) fn let_rings_wait(&mut self, nic: &mut Nic) -> bool {
        let Outbox { keep, is_stream, written, rings_wait: waited, .. } = self.outbox;
        let may_wait = keep != Keep::Nothing && !is_stream && self.slow.is_none();
        self.outbox.rings_wait = may_wait
            && self.rings.has_acks_only()
            && written.is_some_and(|number| !nic.has_requests_out(number));
        self.counters.acks_held += u64::from(self.outbox.rings_wait && !waited);
        self.outbox.rings_wait
    }

    /// Whether requests for the socket, if there are any, may wait in their send queue.
    #[inline]
    pub fn lets_rows_wait(&self, now: Instant) -> bool {
        self.udp.in_use(now) && self.slow.is_none() && !self.udp_blocked
    }

    /// Whether something waits for the application's next call.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.outbox.waits || self.outbox.rings_wait
    }

    /// What may wait when frames have been sent, from now on.
    #[inline]
    pub fn keep(&mut self, keep: Keep) {
        self.outbox.keep = keep;
    }

    /// Whether requests or answers went to the socket since this was last asked, and whether
    /// acknowledgements did.
    #[inline]
    pub fn take_sent(&mut self) -> (bool, bool) {
        (std::mem::take(&mut self.outbox.sent), std::mem::take(&mut self.outbox.acknowledged))
    }
}
