//! The port: where frames leave the NIC and enter it. Chooses the path of each, and applies faults and
//! capture. The short way copies payloads once, from registered memory to the ring or the stage; with
//! faults or a capture, every frame is built whole first.

mod managing;
mod marks;
mod outbox;
mod room;
mod slow;

use crate::counters::IoCounters;
use crate::directory::{Slot, Word};
use crate::hold::Waking;
use crate::life::Lives;
use crate::locals::{Locals, complain};
use crate::notes::Notes;
use crate::payload::{copy_payload, payload_in_ring};
use crate::rings::{PATIENCE, Rings, Sent};
use crate::settings::Settings;
use crate::steering::Steering;
use crate::udp::{Udp, prefetch_coming};
use adverb_nic::memory::Payload;
use adverb_nic::{Nic, Overdue, PathId, Silence, TxFrame};
use adverb_os::capture::Capture;
use adverb_os::choice::PathPolicy;
use adverb_os::faults::{Direction, Lane, Parcel};
use adverb_os::framing::{Datagram, UDP_LEN, bth_offset, outer_flow, rebuild, whole_frame};
use adverb_os::ring::Frame;
use adverb_os::say::Seldom;
use adverb_os::steer::Mark;
use adverb_wire::{
    Bth, Duration, Flow, Gid, Instant, Packet, ParseError, Parsed, ROCE_UDP_PORT, seal, verify_ip,
    verify_udp_as,
};
use outbox::Outbox;
pub use room::Way;
use slow::Slow;

/// The path that leaves this host. Paths 1 to 254 are those of the slots.
pub const UDP_PATH: PathId = PathId(256);
/// Word is left so often at most: often enough for the shortest timeout.
const WORD_EVERY: Duration = Duration::from_us(100);
/// What faults let go within this time counts as not dealt with.
const HELD_BACK: Duration = Duration::from_ms(1);
/// What is captured and noted reaches its file after this long.
const CAPTURE_FLUSH: Duration = Duration::from_ms(1000);

/// Lines in a second about frames that a program of this host injects.
const COMPLAINTS: u32 = 1;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    /// To one process of this address.
    Slot(Slot),
    /// To every process of this address: frames for the well-known queue pairs, which all of them have. Of
    /// these, messages of connection managers go to the one that they are for.
    Everyone,
    /// To the network.
    Udp,
}

/// All paths of one process.
pub struct Port {
    own: Gid,
    slot: Slot,
    policy: PathPolicy,
    rings: Rings,
    lives: Lives,
    udp: Udp,
    outbox: Outbox,
    udp_blocked: bool,
    /// When it was first seen to be, until datagrams have waited long enough.
    udp_waits_since: Option<Instant>,
    /// Slots without a ring, whose frames go through the socket.
    diverted: Vec<Slot>,
    /// Calls since the idle socket was last asked.
    udp_skipped: u32,
    /// When word was left last.
    word_left: Instant,
    /// The socket was asked last time, and had nothing; and nothing has left through it since.
    udp_empty: bool,
    /// How a transmission wakes who sleeps beside a ring.
    pub waking: Waking,
    locals: Locals,
    steering: Steering,
    /// Lines about injected frames, where a trace was asked for.
    complaints: Option<Seldom>,
    slow: Option<Box<Slow>>,
    scratch: Vec<u8>,
    /// What this port counts.
    pub counters: IoCounters,
}

/// An idle socket is asked at every so many-th call.
const UDP_SKIP: u32 = 64;

impl Port {
    /// A port over what the process has opened.
    pub fn new(
        settings: &Settings,
        own: Gid,
        rings: Rings,
        lives: Lives,
        udp: Udp,
        (capture, notes): (Option<Capture>, Option<Notes>),
        seed: u64,
    ) -> Port {
        let slow = (settings.faults.any() || capture.is_some() || notes.is_some()).then(|| {
            Box::new(Slow {
                rx: Lane::new(&settings.faults, Direction::Rx, seed),
                tx: Lane::new(&settings.faults, Direction::Tx, seed),
                capture,
                notes,
                flushed: Instant::ZERO,
            })
        });
        let slot = rings.member().slot();
        let mut steering = Steering::new(seed, rings.member().changes());
        if udp.is_via() {
            // The switch knows each process by its slot.
            steering.refused();
        }
        Port {
            own,
            slot,
            policy: settings.path,
            rings,
            lives,
            udp,
            outbox: Outbox::default(),
            udp_blocked: false,
            udp_waits_since: None,
            diverted: Vec::new(),
            udp_skipped: 0,
            word_left: Instant::ZERO,
            udp_empty: false,
            waking: Waking::Surely,
            locals: Locals::new(own),
            steering,
            complaints: settings.trace.then(|| Seldom::new(COMPLAINTS, Duration::from_ms(1000))),
            slow,
            scratch: Vec::new(),
            counters: IoCounters::default(),
        }
    }

    /// The sockets.
    pub fn udp(&mut self) -> &mut Udp {
        &mut self.udp
    }

    /// The way to an address.
    #[inline]
    pub fn way_to(&self, dst: Gid) -> Way {
        if dst != self.own || self.policy == PathPolicy::Udp { Way::Udp } else { Way::Rings }
    }

    #[inline]
    fn route_of(&self, path: PathId, packet: &Packet) -> Route {
        match path {
            UDP_PATH => Route::Udp,
            PathId(slot @ 1..=254) => Slot::new(slot as u8).map_or(Route::Udp, Route::Slot),
            _ => match (self.way_to(packet.flow.dst), Slot::new((packet.bth.dest_qp.get() >> 16) as u8)) {
                (Way::Udp, _) => Route::Udp,
                (Way::Rings, slot) => slot.map_or(Route::Everyone, Route::Slot),
            },
        }
    }

    /// Sends a frame, or stages it until [`flush`](Self::flush). Returns the path to block, if that
    /// has no room for another.
    #[inline]
    pub fn send(&mut self, now: Instant, frame: &TxFrame) -> Option<PathId> {
        let route = self.route_of(frame.path, &frame.packet);
        if self.slow.is_some() {
            return self.send_slow(now, frame, route);
        }
        match route {
            Route::Slot(slot) => {
                self.note_for_ring(&frame.packet);
                match self.rings.send_packet(slot, &frame.packet, &frame.payload, &mut self.counters) {
                    Sent::QueuedLast => Some(PathId(u16::from(slot.get()))),
                    Sent::NoRing => {
                        self.divert(slot);
                        self.send_udp(now, frame).map(|_| PathId(u16::from(slot.get())))
                    }
                    Sent::Queued | Sent::Dropped => None,
                }
            }
            Route::Udp => self.send_udp(now, frame),
            Route::Everyone => {
                let mut bytes = std::mem::take(&mut self.scratch);
                build(frame, &mut bytes);
                self.send_everyone(&bytes);
                self.scratch = bytes;
                None
            }
        }
    }

    /// Builds the whole frame, captures it, and lets the faults decide.
    fn send_slow(&mut self, now: Instant, frame: &TxFrame, route: Route) -> Option<PathId> {
        let mut bytes = Vec::new();
        let flow = build(frame, &mut bytes);
        let slow = self.slow.as_mut()?;
        if let Some(capture) = &mut slow.capture {
            capture.record(now, flow.src, flow.dst, &bytes);
        }
        if let Some(notes) = &mut slow.notes {
            notes.packet(self.lives.host_ns(now), true, &frame.packet);
        }
        let bth_at = flow.ip_header_len() + UDP_LEN;
        slow.tx.admit(now, Parcel { bytes, bth_at, tag: route, is_sound: true });
        self.send_released(now)
    }

    /// Sends what the faults have let go. Of the paths to block the last one is returned: a burst of
    /// released frames goes to few, and a full ring drops.
    fn send_released(&mut self, now: Instant) -> Option<PathId> {
        let mut block = None;
        while let Some(parcel) = self.slow.as_mut().and_then(|slow| slow.tx.next(now)) {
            let blocked = match parcel.tag {
                Route::Slot(slot) => match self.rings.send_bytes(slot, &parcel.bytes, &mut self.counters) {
                    Sent::QueuedLast => Some(PathId(u16::from(slot.get()))),
                    Sent::NoRing => {
                        self.divert(slot);
                        self.send_parcel(now, &parcel).map(|_| PathId(u16::from(slot.get())))
                    }
                    Sent::Queued | Sent::Dropped => None,
                },
                Route::Everyone => {
                    self.send_everyone(&parcel.bytes);
                    None
                }
                Route::Udp => self.send_parcel(now, &parcel),
            };
            block = blocked.or(block);
        }
        block
    }

    /// Gives what the faults let go to the socket.
    fn send_parcel(&mut self, now: Instant, parcel: &Parcel<Route>) -> Option<PathId> {
        let flow = outer_flow(&parcel.bytes);
        let room = self.udp_has_room();
        let body = parcel.bytes.get(parcel.bth_at..).unwrap_or_default();
        match flow {
            Some(flow) if room && self.udp.stage_bytes(now, &flow, body, parcel.is_sound) => {}
            _ => self.counters.drop_send_failed += 1,
        }
        self.udp_path_to_block()
    }

    fn send_everyone(&mut self, bytes: &[u8]) {
        if let Some(owner) = managing::owner_of_frame(self.rings.member(), bytes) {
            return hand_over(&mut self.rings, owner, bytes, &mut self.counters);
        }
        let others: Vec<Slot> = self.rings.member().others().collect();
        for slot in others.into_iter().chain([self.slot]) {
            hand_over(&mut self.rings, slot, bytes, &mut self.counters);
        }
    }

    /// Shows receivers what was sent, and gives the kernel what was staged.
    #[inline]
    pub fn flush(&mut self, now: Instant, nic: &mut Nic) {
        if self.slow.is_some() {
            self.flush_slow(now, nic);
        }
        if !self.let_rings_wait(nic) {
            self.rings.publish(self.waking != Waking::Later, &mut self.counters);
        }
        if self.waking == Waking::Surely {
            self.settle();
        }
        if !self.is_socket_due(now) {
            return;
        }
        // It may come back: who shares the address gets some of what this process sends to another.
        self.udp_empty = false;
        if !self.udp.flush(&mut self.counters) && !self.udp_blocked {
            self.udp_blocked = true;
            nic.block_path(UDP_PATH);
            self.diverted.iter().for_each(|slot| nic.block_path(PathId(u16::from(slot.get()))));
        }
    }

    /// Wakes receivers that fell asleep while frames were on their way to them.
    #[inline]
    pub fn settle(&mut self) {
        self.rings.settle(&mut self.counters);
    }

    fn flush_slow(&mut self, now: Instant, nic: &mut Nic) {
        if let Some(path) = self.send_released(now) {
            nic.block_path(path);
        }
        if let Some(slow) = &mut self.slow {
            self.counters.rx_faults = slow.rx.counts();
            self.counters.tx_faults = slow.tx.counts();
            if now.since(slow.flushed) >= CAPTURE_FLUSH {
                slow.flushed = now;
                slow.flush();
            }
        }
    }

    /// Sends at once what the faults hold back.
    pub fn hurry(&mut self) {
        if let Some(slow) = &mut self.slow {
            slow.tx.hurry();
        }
    }

    /// The kernel's send buffer is full: the socket should be watched for room.
    pub fn udp_waits_for_room(&self) -> bool {
        self.udp_blocked
    }

    /// Whether frames wait in rings, or room for blocked paths.
    #[inline]
    pub fn has_ring_work(&self) -> bool {
        self.rings.has_work()
    }

    /// When something here is due even if nothing arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        let slow = self.slow.as_ref().and_then(|slow| slow.next_deadline());
        let steering = self.steering.next_deadline(self.rings.member().changes());
        let patience = self.udp_waits_since.filter(|since| *since != Instant::NEVER).map(|at| at + PATIENCE);
        [slow, self.rings.next_deadline(), steering, self.udp.next_deadline(), patience]
            .into_iter()
            .flatten()
            .min()
    }

    /// Leaves word, now and then, that all that had come by `now` has been dealt with.
    #[inline]
    pub fn leave_word(&mut self, now: Instant) {
        if now.since(self.word_left) >= WORD_EVERY {
            self.word_left = now;
            self.leave_word_now(now);
        }
    }

    /// Nothing waits in the socket, nor in the rings.
    pub fn found_empty(&mut self, now: Instant) {
        self.udp_empty = true;
        self.leave_word(now);
    }

    /// Not while faults hold back something that is about to be let go: a peer waits for that, too.
    #[cold]
    fn leave_word_now(&self, now: Instant) {
        if self.slow.as_ref().is_some_and(|slow| slow.is_due(now + HELD_BACK)) {
            return;
        }
        let (member, now_ns) = (self.rings.member(), self.lives.host_ns(now));
        member.leave_word(Word::Rings, now_ns);
        if self.udp_empty {
            member.leave_word(Word::Socket, now_ns);
        }
    }

    /// Why an acknowledgement is overdue, as far as this host can tell.
    pub fn judge(&mut self, now: Instant, overdue: &Overdue) -> Silence {
        if self.slow.as_ref().is_some_and(|slow| slow.tx.next_deadline().is_some_and(|at| at <= now)) {
            // It may not even have left.
            return Silence::Unread;
        }
        let by_socket = match overdue.path {
            UDP_PATH => true,
            // Without a ring it takes the socket.
            PathId(slot @ 1..=254) => self.diverted.iter().any(|of| u16::from(of.get()) == slot),
            _ => return Silence::Unknown,
        };
        let switch = if by_socket { self.udp.switch() } else { None };
        self.lives.judge(&mut self.rings, now, overdue, by_socket, switch)
    }

    /// To be called when nothing happens: puts capture and notes on disk, lets go of dead processes' rings.
    pub fn rest(&mut self) {
        self.slow.iter_mut().for_each(|slow| slow.flush());
        self.rings.forget_the_gone();
    }

    /// Takes a burst of frames from every path into the NIC; returns how many. `ask_socket` asks the
    /// kernel even if nothing came from it lately.
    #[inline]
    pub fn receive(&mut self, now: Instant, nic: &mut Nic, ask_socket: bool) -> usize {
        let Port { own, rings, slow, scratch, counters, .. } = self;
        let mut request = None;
        let mut total = match slow {
            None => rings.receive(counters, |frame, counters| {
                let bth = take_ring_frame(now, nic, *own, frame, scratch, counters);
                request = bth.filter(|bth| !bth.opcode.operation().is_response()).or(request);
            }),
            Some(slow) => rings.receive(counters, |frame, counters| {
                let mut bytes = Vec::new();
                if let Err(e) = whole_frame(*own, frame, scratch, &mut bytes) {
                    return counters.drop_parse[e as usize] += 1;
                }
                let bth_at = bth_offset(&bytes);
                slow.rx.admit(now, Parcel::unchecked(bytes, bth_at, ()));
            }),
        };
        self.note_from_rings(total, request);
        self.udp_skipped += 1;
        self.udp_empty = false;
        let in_use = self.udp.in_use(now);
        let marks = self.steering.awaits_mark();
        if ask_socket || self.udp_skipped >= UDP_SKIP || in_use || marks {
            self.udp_skipped = 0;
            if ask_socket || marks {
                self.udp.ask_for_all();
            }
            let frames = self.receive_udp(now, nic);
            // Marks may have been all that the batch held, and frames be behind them.
            self.udp_empty = frames == 0 && !marks;
            total += frames;
        }
        // After marks were taken, which may have waited longer than they should because nobody looked.
        if let Some(order) = self.steering.due(now, in_use, self.rings.member().changes()) {
            self.send_marks(order);
        }
        // What a fault has held back comes in a round in which nothing else may.
        let released = if self.slow.is_some() { self.deliver_released(now, nic) } else { 0 };
        total.max(released)
    }

    fn receive_udp(&mut self, now: Instant, nic: &mut Nic) -> usize {
        let Port { udp, rings, slow, scratch, counters, slot, locals, complaints, steering, .. } = self;
        let (mut handed_on, mut astray) = (false, false);
        let mut parsed = Parsed::default();
        let is_guarded = udp.is_via();
        let each = |datagram: Datagram<'_>, counters: &mut IoCounters| {
            if !is_guarded && locals.is_injected(&datagram.flow, now) {
                counters.drop_injected += 1;
                return complain(complaints.as_mut(), &datagram.flow, now);
            }
            if let Err(e) = Packet::parse_bth_into(&mut parsed, datagram.flow, datagram.bytes) {
                return counters.drop_parse[e as usize] += 1;
            }
            prefetch_coming(nic, &datagram);
            let id = verify_udp_as(&datagram.flow, datagram.likely_id, datagram.bytes);
            let Some(id) = id else { return counters.drop_icrc += 1 };
            let qpn = parsed.packet.bth.dest_qp;
            let is_known = qpn.get() >> 16 == 0;
            let manager = is_known.then(|| {
                managing::owner(rings.member(), &parsed.packet, &datagram.bytes[parsed.payload.clone()])
            });
            let manager = manager.flatten();
            let everyone = is_known && manager.is_none();
            let named = manager.or_else(|| Slot::new((qpn.get() >> 16) as u8));
            let owner = named.filter(|owner| owner != slot);
            if owner.is_some() || everyone {
                rebuild(&parsed.packet, id, &datagram, scratch);
                handed_on = true;
                let others = rings.member().others().filter(|_| everyone).collect::<Vec<_>>();
                astray |= owner.is_some();
                for to in owner.into_iter().chain(others) {
                    counters.forwarded_frames += 1;
                    hand_over(rings, to, scratch, counters);
                }
            }
            if owner.is_some() {
                return;
            }
            match slow {
                None => {
                    let payload = &datagram.bytes[parsed.payload.clone()];
                    nic.on_frame(now, &parsed.packet, &Payload::from_slice(payload));
                }
                Some(slow) => {
                    let mut bytes = Vec::new();
                    rebuild(&parsed.packet, id, &datagram, &mut bytes);
                    let bth_at = bth_offset(&bytes);
                    slow.rx.admit(now, Parcel { bytes, bth_at, tag: (), is_sound: true });
                }
            }
        };
        let mut found = None;
        let on_mark = |mark: Mark| found = steering.on_mark(now, mark.index, mark.nonce).or(found);
        let total = udp.receive(now, counters, each, on_mark);
        if is_guarded {
            // A switch that came back may run other programs.
            nic.set_words_by_write(udp.decides_atomics());
        }
        if handed_on {
            self.rings.publish(true, &mut self.counters);
        }
        if astray {
            // Its owner looks after its way when it takes the frame.
            self.rings.member().note_change();
        }
        if let Some(index) = found {
            self.take_index(index);
        }
        total
    }

    /// Gives the NIC what the faults have let go; how many frames that were.
    fn deliver_released(&mut self, now: Instant, nic: &mut Nic) -> usize {
        let Some(slow) = &mut self.slow else { return 0 };
        let mut count = 0;
        while let Some(parcel) = slow.rx.next(now) {
            count += 1;
            let damaged = self.counters.drop_icrc;
            let found = deliver(now, nic, &parcel.bytes, parcel.is_sound, &mut self.counters);
            if let Some(notes) = &mut slow.notes
                && self.counters.drop_icrc == damaged
                && let Ok(parsed) = Packet::parse_ip(&parcel.bytes)
            {
                notes.packet(self.lives.host_ns(now), false, &parsed.packet);
            }
            if let Some(capture) = &mut slow.capture {
                let flow = found.or_else(|| outer_flow(&parcel.bytes)).unwrap_or_default();
                capture.record(now, flow.src, flow.dst, &parcel.bytes);
            }
        }
        count
    }
}

/// Gives a process a frame that only a ring can take there.
fn hand_over(rings: &mut Rings, to: Slot, frame: &[u8], counters: &mut IoCounters) {
    if rings.send_bytes(to, frame, counters) == Sent::NoRing {
        counters.drop_ring_failed += 1;
    }
}

/// Takes one frame out of a ring on the short way; what its BTH says, if it is a packet.
#[inline]
fn take_ring_frame(
    now: Instant,
    nic: &mut Nic,
    own: Gid,
    frame: &Frame<'_>,
    scratch: &mut Vec<u8>,
    counters: &mut IoCounters,
) -> Option<Bth> {
    if !frame.elides_icrc() {
        // Checked bytes must be the ones that are used: the sender could change them in the ring.
        frame.copy_to(scratch);
        deliver(now, nic, scratch, false, counters);
        return None;
    }
    counters.shm_rx_icrc_elided += 1;
    let headers = frame.parse_headers(own).map_err(|e| counters.drop_parse[e as usize] += 1).ok()?;
    match payload_in_ring(frame, headers.payload_offset, headers.packet.payload_len as usize) {
        Some(payload) => nic.on_frame(now, &headers.packet, &payload),
        None => counters.drop_parse[ParseError::Truncated as usize] += 1,
    }
    Some(headers.packet.bth)
}

/// Verifies, unless it is known to be sound, parses and delivers a whole frame. Returns its flow if it is a
/// packet.
fn deliver(
    now: Instant,
    nic: &mut Nic,
    bytes: &[u8],
    is_sound: bool,
    counters: &mut IoCounters,
) -> Option<Flow> {
    let parsed = match Packet::parse_ip(bytes) {
        Ok(parsed) => parsed,
        Err(e) => {
            counters.drop_parse[e as usize] += 1;
            return None;
        }
    };
    let verify = |frame: &[u8]| is_sound || verify_ip(frame, parsed.ip_header_len);
    match bytes.get(parsed.payload) {
        Some(payload) if bytes.get(..parsed.frame_len).is_some_and(verify) => {
            nic.on_frame(now, &parsed.packet, &Payload::from_slice(payload))
        }
        _ => counters.drop_icrc += 1,
    }
    Some(parsed.packet.flow)
}

/// Writes the whole frame with its ICRC, as it is on the wire; returns its flow.
fn build(frame: &TxFrame, out: &mut Vec<u8>) -> Flow {
    // What a socket would send: its own port, whatever the NIC chose.
    let flow = Flow { src_port: ROCE_UDP_PORT, ..frame.packet.flow };
    let packet = Packet { flow, ..frame.packet };
    let len = packet.frame_len();
    out.clear();
    out.resize(len, 0);
    let header_len = packet.emit_ip(out);
    assert!(header_len > 0 && frame.payload.len() == packet.payload_len as usize, "a frame that IP carries");
    copy_payload(&frame.payload, &mut out[header_len..header_len + frame.payload.len()]);
    seal(out, flow.ip_header_len());
    flow
}
