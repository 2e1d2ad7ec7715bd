//! The NIC with its port and clock: what one lock protects. A round takes in what has arrived, runs timers
//! that are due, sends what became ready, and delivers events.

use crate::board::Board;
use crate::cm::OnCmEvent;
use crate::doorbells::Doorbells;
use crate::guess::Guess;
use crate::hold::{Hold, Keep, Waking};
use crate::host::TOLERANCE;
use crate::port::{Port, UDP_PATH};
use crate::roles::{OnOutcome, hear};
use crate::row::{Row, Taken};
use crate::vain;
use adverb_nic::{
    Author, ChainEvent, ChainStep, Completion, Copied, CqId, Error, Event, Nic, PathId, TxFrame,
};
use adverb_os::clock::Clock;
use adverb_os::say;
use adverb_os::say::Seldom;
use adverb_os::sys::WaitSet;
use adverb_wire::{Duration, Instant};

/// Frames sent in one call before the caller gets its thread back; the progress thread goes on.
const SEND_BUDGET: usize = 512;
/// Bursts taken in one round.
const BURSTS: usize = 8;
/// After a burst of fewer frames, nothing more is expected yet.
const BURST_FULL: usize = 16;
/// Times that arrivals are asked for before an acknowledgement is said to be overdue, while some come.
const DRAIN_ROUNDS: usize = 64;
/// Rounds that a NIC makes at most before it closes, however many frames keep coming.
const FINAL_ROUNDS: usize = 64;
/// How long the port waits for the kernel to have room before it closes: as long as a peer bears silence at
/// least.
const CLOSE_PATIENCE: Duration = TOLERANCE.silence_min;
/// Lines about chains of WQEs in a second, under a trace.
const CHAIN_LINES: u32 = 200;

/// Receives events while the NIC is locked: it may only queue them and signal.
pub type OnEvent = Box<dyn Fn(Event) + Send + Sync>;
/// Hears that frames have come while the NIC is locked: it may only signal.
pub type OnFrames = Box<dyn Fn() + Send + Sync>;

/// What a round did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Frames taken in.
    pub frames: usize,
    /// Events delivered: the application will be awake soon.
    pub events: usize,
    /// More than acknowledgements has left for peers, as far as [`Core::round_keeping`] was asked.
    pub answered: bool,
}

/// What the NIC's lock protects.
pub struct Core {
    pub nic: Nic,
    /// `None` once the NIC is closed, and in a forked child.
    pub port: Option<Port>,
    /// Where others read what is counted. None in a forked child, either.
    pub board: Option<Board>,
    /// Counts from the opening of the NIC.
    pub clock: Clock,
    /// Who makes the next round.
    pub guess: Guess,
    /// What may wait for the application's next call.
    pub hold: Hold,
    /// Requests that wait in their send queue.
    row: Row,
    /// Send queues that programs ring through memory.
    pub doorbells: Doorbells,
    tx: TxFrame,
    on_event: OnEvent,
    /// Called, while the NIC is locked, after a round that took frames in: they may have changed memory.
    pub on_frames: Option<OnFrames>,
    /// Hears what StaR connections become, while somebody waits for that.
    pub on_outcome: Option<OnOutcome>,
    /// Hears the connection manager's events.
    pub on_cm_event: Option<OnCmEvent>,
    trace: bool,
    /// The board is written with each call, or requests are noted.
    is_counted: bool,
    /// Lines about chains of WQEs.
    chains: Seldom,
    /// The NIC has more to send than one call's budget.
    more: bool,
    /// Polls since one found something, or since others were let run.
    pub polls_in_vain: u32,
    /// How many of them are a row.
    pub row_of_polls: u32,
    /// What a caller that sleeps waits for; kept for the next one.
    pub wait_set: WaitSet,
}

impl Core {
    pub fn new(
        nic: Nic,
        port: Port,
        clock: Clock,
        on_event: OnEvent,
        trace: bool,
        board: Option<Board>,
    ) -> Core {
        Core {
            nic,
            is_counted: board.as_ref().is_some_and(Board::is_asked) || port.has_notes(),
            port: Some(port),
            board,
            clock,
            guess: Guess::default(),
            hold: Hold::default(),
            row: Row::default(),
            doorbells: Doorbells::default(),
            tx: TxFrame::default(),
            on_event,
            on_frames: None,
            on_outcome: None,
            on_cm_event: None,
            trace,
            chains: Seldom::new(CHAIN_LINES, Duration::from_ms(1000)),
            more: false,
            polls_in_vain: 0,
            row_of_polls: vain::ROW,
            wait_set: WaitSet::default(),
        }
    }

    /// Sends what is ready and delivers events.
    #[inline]
    pub fn transmit(&mut self, now: Instant) -> usize {
        self.row = Row::default();
        self.transmit_some(now, SEND_BUDGET)
    }

    /// As [`Core::transmit`], at most so many frames.
    #[inline(never)]
    fn transmit_some(&mut self, now: Instant, budget: usize) -> usize {
        let Core { nic, port, tx, doorbells, row, .. } = self;
        if !doorbells.is_empty() {
            doorbells.look(nic, now);
        }
        if let Some(port) = port {
            let looped = nic.counters().loopback_packets;
            port.unblock(now, nic);
            let (mut sent, mut looped_before) = (0, looped);
            while sent < budget && nic.next_frame(now, tx) {
                sent += 1;
                if let Some(path) = port.send(now, tx) {
                    block(nic, path, tx.path);
                }
                // A chain of WQEs is at work, which may go on for longer than its answer takes to the peer.
                if nic.counters().loopback_packets != looped_before {
                    looped_before = nic.counters().loopback_packets;
                    port.flush(now, nic);
                }
            }
            self.more = !row.waits() && (sent == budget || nic.has_work());
            port.flush(now, nic);
            if nic.counters().loopback_packets != looped
                && let Some(on_frames) = &self.on_frames
            {
                on_frames();
            }
        }
        if self.is_counted {
            self.note_counters(now);
        }
        self.deliver_events()
    }

    #[cold]
    fn note_counters(&mut self, now: Instant) {
        let Some(port) = &mut self.port else { return };
        port.note_requests(now, &self.nic);
        if let Some(board) = &mut self.board {
            board.note(now, &self.nic, &port.counters);
        }
    }

    /// Tells whoever wants to know what has been counted.
    pub fn answer_board(&mut self) {
        if let (Some(board), Some(port)) = (&mut self.board, &self.port) {
            board.answer(&self.nic, &port.counters);
        }
    }

    #[inline]
    fn deliver_events(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.nic.next_event() {
            if self.trace {
                say_recovery(&self.nic, event);
            }
            if self.on_outcome.is_some() {
                hear(self, event);
            }
            if event == Event::ConnectionManager {
                self.deliver_cm_events();
            }
            (self.on_event)(event);
            count += 1;
        }
        if self.trace {
            while let Some(explanation) = self.nic.next_explanation() {
                say!("adverb: {explanation}");
            }
            self.say_chains();
        }
        count
    }

    /// Nobody hears them who has not asked the connection manager for anything.
    #[cold]
    fn deliver_cm_events(&mut self) {
        while let Some(event) = self.nic.next_cm_event() {
            if let Some(hear) = &self.on_cm_event {
                hear(event);
            }
        }
    }

    /// Says who has changed which WQE, and which of these changes came too late.
    #[cold]
    fn say_chains(&mut self) {
        while let Some(event) = self.nic.next_chain_event() {
            let Some(line) = chain_words(&event) else { continue };
            match self.chains.allows(event.at) {
                Some(0) => say!("adverb: {line}"),
                Some(kept_back) => say!("adverb: {line} ({kept_back} lines before were kept back)"),
                None => {}
            }
        }
    }

    /// Wakes receivers that fell asleep while frames were on their way to them.
    #[inline]
    pub fn settle(&mut self) {
        if let Some(port) = &mut self.port {
            port.settle();
        }
    }

    /// How transmissions wake receivers beside rings from now on.
    #[inline]
    pub fn set_waking(&mut self, waking: Waking) {
        if let Some(port) = &mut self.port {
            port.waking = waking;
        }
    }

    /// One round of progress. `ask_socket` asks the kernel for datagrams even if none came lately.
    #[inline]
    pub fn round(&mut self, ask_socket: bool) -> Done {
        let mut done = Done::default();
        // A timer ends what somebody may wait for, as a frame does.
        let mut has_ended = false;
        for _ in 0..BURSTS {
            let now = self.clock.now();
            let Some(port) = &mut self.port else { break };
            let mut frames = port.receive(now, &mut self.nic, ask_socket);
            if self.nic.next_deadline().is_some_and(|deadline| deadline <= now) {
                frames += self.run_timers(now);
                has_ended = true;
            }
            done.events += self.transmit(now);
            done.frames += frames;
            if frames < BURST_FULL {
                self.leave_word(now);
                break;
            }
        }
        if (done.frames > 0 || has_ended)
            && let Some(on_frames) = &self.on_frames
        {
            on_frames();
        }
        done
    }

    /// Sends what a post made ready, as far as it need not wait for the next call.
    #[inline]
    pub fn transmit_post(&mut self, now: Instant) {
        let Core { nic, port, hold, row, more, .. } = self;
        let Some(port) = port else {
            self.deliver_events();
            return;
        };
        let posted = nic.take_posted();
        let mut keep = hold.for_post(now);
        // Not behind what the last call had no time for.
        let is_row = keep == Keep::Row && !*more && port.lets_rows_wait(now);
        if is_row && Row::suits(posted) && nic.only_sends_on(UDP_PATH) {
            keep = Keep::Nothing;
            match row.takes(posted) {
                Taken::Waits => return hold.posted(now, true, true),
                Taken::Full(frames) => {
                    self.transmit_some(now, frames);
                    self.hold.posted(now, true, true);
                    return self.hold.ended(self.clock.now());
                }
                Taken::Awaited => {}
            }
        }
        port.keep(keep);
        self.transmit(now);
        let Core { port: Some(port), hold, clock, .. } = self else { return };
        port.keep(Keep::Nothing);
        hold.posted(now, port.take_sent().0, port.is_waiting());
        if is_row {
            hold.ended(clock.now());
        }
    }

    /// To be called when a poll begins: sends what waited for that.
    #[inline]
    pub fn poll_begins(&mut self) {
        let now = self.clock.now();
        if self.hold.poll_begins(now) {
            self.send_waiting(now);
        }
        if !self.doorbells.is_empty() {
            self.transmit(now);
        }
    }

    /// The application posts a request or two and polls for its answer, which comes in a datagram, through no
    /// switch.
    pub fn waits_for_one_datagram(&mut self) -> bool {
        let now = self.clock.now();
        let by_socket = |port: &mut Port| !port.udp().is_via() && port.udp().in_use(now);
        self.guess.waits_for_one() && self.port.as_mut().is_some_and(by_socket)
    }

    /// What the application polls for comes through shared memory, as far as is known.
    pub fn polls_memory(&mut self) -> bool {
        let now = self.clock.now();
        self.port.as_mut().is_some_and(|port| !port.udp().in_use(now))
    }

    /// A caller has slept until one of the set came, or for long enough. Whether one of the sockets did.
    pub fn has_slept(&mut self, set: WaitSet) -> bool {
        let by_socket = set.is_any_ready(1);
        self.wait_set = set;
        if let Some(port) = &mut self.port {
            port.counters.caller_sleeps += 1;
        }
        by_socket
    }

    /// A round of a poll of `cq`, and the completions that it brings; `ask_socket` as of [`Core::round`]. If
    /// there are some, acknowledgements may wait: the caller probably answers.
    #[inline]
    pub fn round_for(
        &mut self,
        ask_socket: bool,
        cq: CqId,
        max: usize,
        out: &mut impl FnMut(Completion),
    ) -> Result<usize, Error> {
        let (done, acknowledged) = self.round_keeping(ask_socket, self.hold.for_arrivals());
        let count = self.take(cq, max, out)?;
        let now = self.clock.now();
        if count == 0 || done.events > 0 {
            self.send_waiting(now);
        }
        let Some(port) = &mut self.port else { return Ok(count) };
        port.counters.frames_by_calls += done.frames as u64;
        if acknowledged && count > 0 {
            self.hold.acknowledges(now, port.is_waiting(), false);
        }
        Ok(count)
    }

    /// A round of a caller that waits for something, and whether it had something to acknowledge: that may
    /// wait until the caller has seen whether this is what it waits for.
    pub fn round_for_waiting(&mut self) -> bool {
        let (done, acknowledged) = self.round_keeping(false, self.hold.for_arrivals());
        let now = self.clock.now();
        if done.frames == 0 || done.events > 0 {
            self.send_waiting(now);
        }
        let Some(port) = &mut self.port else { return false };
        port.counters.frames_by_calls += done.frames as u64;
        if acknowledged {
            self.hold.acknowledges(now, port.is_waiting(), false);
        }
        acknowledged
    }

    /// A round after which this may wait; and whether it had something to acknowledge.
    #[inline]
    pub fn round_keeping(&mut self, ask_socket: bool, keep: Keep) -> (Done, bool) {
        if let Some(port) = &mut self.port {
            port.take_sent();
            port.keep(keep);
        }
        let done = self.round(ask_socket);
        let Some(port) = &mut self.port else { return (done, false) };
        port.keep(Keep::Nothing);
        let (answered, acknowledged) = port.take_sent();
        (Done { answered, ..done }, acknowledged)
    }

    /// Sends what waits for the application's next call.
    #[inline]
    pub fn send_waiting(&mut self, now: Instant) {
        if self.row.waits() {
            self.transmit(now);
        }
        if let Some(port) = &mut self.port
            && port.is_waiting()
        {
            port.flush(now, &mut self.nic);
        }
    }

    /// Whether something waits for the application's next call.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.row.waits() || self.port.as_ref().is_some_and(Port::is_waiting)
    }

    /// Lets timers run out, after what has arrived: an acknowledgement that lies here unread is not overdue,
    /// however late this process is.
    #[cold]
    fn run_timers(&mut self, now: Instant) -> usize {
        let Core { nic, port: Some(port), .. } = self else { return 0 };
        let mut frames = 0;
        if nic.has_expired(now) {
            for _ in 0..DRAIN_ROUNDS {
                let more = port.receive(now, nic, true);
                frames += more;
                if more == 0 {
                    break;
                }
            }
        }
        nic.on_timer_asking(now, |overdue| port.judge(now, overdue));
        frames
    }

    /// Tells peers that all that had come by `now` has been dealt with, if it has.
    #[inline]
    fn leave_word(&mut self, now: Instant) {
        if let Some(port) = &mut self.port
            && !self.more
            && !self.row.waits()
            && !port.is_waiting()
        {
            port.leave_word(now);
        }
    }

    /// The last rounds before the port closes. What was sent is on its way, whatever delays it; and datagrams
    /// that the kernel holds may be for other processes of the address: nobody would repeat a peer's last
    /// acknowledgement, or a message without one, that this process took along.
    pub fn finish(&mut self) {
        let now = self.clock.now();
        for _ in 0..FINAL_ROUNDS {
            self.transmit(now);
            let Some(port) = &mut self.port else { return };
            port.hurry();
            port.flush(now, &mut self.nic);
            if port.receive(now, &mut self.nic, true) == 0 {
                break;
            }
        }
        self.transmit(now);
        self.settle();
        self.wait_for_room();
    }

    /// What the kernel has no room for would be lost with the port, and peers would miss their last answers:
    /// so room is waited for, and what waited behind those frames is sent, too.
    fn wait_for_room(&mut self) {
        let until = self.clock.now() + CLOSE_PATIENCE;
        loop {
            let now = self.clock.now();
            let Some(port) = &mut self.port else { return };
            if !port.wait_for_room(until.since(now)) {
                return;
            }
            if now >= until {
                break;
            }
            port.receive(now, &mut self.nic, true);
            self.transmit(now);
        }
        let lost = self.port.as_mut().map_or(0, Port::give_up_staged);
        if self.trace && lost > 0 {
            say!("adverb: {lost} frames are lost: the network had no room for them while the NIC closed");
        }
    }

    /// Takes completions that are there.
    #[inline]
    pub fn take(&mut self, cq: CqId, max: usize, out: &mut impl FnMut(Completion)) -> Result<usize, Error> {
        let mut count = 0;
        while count < max {
            let Some(completion) = self.nic.poll_cq(cq)? else { break };
            out(completion);
            count += 1;
        }
        Ok(count)
    }

    /// When this NIC wants a round even if nothing arrives; at once if a call ended with work left.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.more {
            return Some(Instant::ZERO);
        }
        let port = self.port.as_ref().and_then(Port::next_deadline);
        let waits = self.is_waiting().then(|| self.hold.deadline());
        [self.nic.next_deadline(), port, waits, self.doorbells.deadline()].into_iter().flatten().min()
    }

    /// The last call ended with work left.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Whether frames wait in shared memory, or room for blocked paths.
    #[inline]
    pub fn has_ring_work(&self) -> bool {
        self.port.as_ref().is_some_and(Port::has_ring_work)
    }
}

/// A change of a WQE in words: by whom, with which verb, and whether it came too late.
fn chain_words(event: &ChainEvent) -> Option<String> {
    let change = match &event.what {
        ChainStep::Changed(change) => change,
        ChainStep::Refused { wqe, rule } => {
            return Some(format!("qp {} block {}: refused: {rule}", wqe.qp, wqe.block));
        }
        _ => return None,
    };
    let by = match change.by {
        Author::Host => "a store of this process".to_owned(),
        Author::Message(qp) => format!("a message to qp {qp}"),
        Author::Peer(qp, operation) => format!("{operation:?} of the peer of qp {qp}"),
        Author::Wqe(wqe, operation) => format!("{operation:?} of qp {} block {}", wqe.qp, wqe.block),
    };
    let differs = |at: &usize| change.before[*at] != change.after[*at];
    let first = (0..change.after.len()).find(differs)?;
    let last = (0..change.after.len()).rfind(differs)?;
    let late = match change.copy {
        Copied::AtHand(_) => ": too late, it had been fetched",
        _ => "",
    };
    Some(format!("qp {} block {} bytes {first}..{} changed by {by}{late}", change.qp, change.block, last + 1))
}

/// Says how a queue pair recovers from loss, or what has become of it, once that is known.
#[cold]
fn say_recovery(nic: &Nic, event: Event) {
    let (id, how) = match event {
        Event::Star(id, outcome) => {
            if let Ok(number) = nic.qp_number(id) {
                say!("adverb: qp {number} is {}", outcome.words());
            }
            return;
        }
        Event::IrnAgreed(id) => (id, "IRN: the peer agreed"),
        Event::IrnUnanswered(id) => (id, "go-back-N: the peer did not answer whether it knows IRN"),
        _ => return,
    };
    // Without a number it was destroyed meanwhile.
    if let Ok(number) = nic.qp_number(id) {
        say!("adverb: qp {number} recovers by {how}");
    }
}

/// Blocks a path that is full. Frames on the default path are chosen one by one, and are dropped when
/// theirs is full.
fn block(nic: &mut Nic, full: PathId, used: PathId) {
    if used != PathId::DEFAULT || full == crate::port::UDP_PATH {
        nic.block_path(full);
    }
}
