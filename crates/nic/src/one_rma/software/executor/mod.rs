//! CommandExecutor (section 4.4): transfers of any size, carried out as commands of up to 4 KB that are
//! pipelined, paced, and bounded by congestion control (section 6). It is the software above a NIC, as free
//! of IO as the NIC itself: it says which command goes into which slot and when, and hears the completions.
//! Who carries the commands there is a [`CommandPortal`](super::CommandPortal), a driver in another process,
//! or a simulated host:
//!
//! ```text
//! submit ─► transfers ─► flows: one for each remote NIC and direction ─► next_command ─► a slot of the NIC
//!              │           │ window, pacing; transfers take turns                            │
//!         next_report ◄────┴──────────────── on_completion ◄───────────────── its completion ring
//! ```
//!
//! The driver's round: `next_command` until there is none, then wait for a completion or for `next_deadline`.
//! After a time that was waited for, `next_command` alone will do: it looks at the clock itself.
//!
//! A flow may have as many commands outstanding as the smaller of its own window and the local one says, and
//! issues them at that many operations of 4 KB for each round trip; below one operation it issues one and
//! waits that much longer. The local window is one number for all flows, as in the paper: it bounds each, so
//! that flows that meet at this NIC get the same.
//!
//! **Nothing is done twice unless asked for** ([`Retry`]). The first command that fails for good ends its
//! transfer; so do a deadline and [`cancel`](CommandExecutor::cancel). Then no further command is issued, but
//! those in the NIC cannot be called back: the report waits for them, at most the NIC's
//! [`bound`](crate::one_rma::OneRmaConfig::bound), so that nothing touches the own memory, or the peer's,
//! after it.
//!
//! Every table is bounded: transfers (reports that were not taken count), flows, and what is in flight by the
//! slots.

mod deadlines;
mod flows;
mod transfer;

pub use transfer::{Direction, End, Report, Retry, TransferId, TransferInit};

use super::congestion::{self, Allowance, CongestionConfig, CongestionWindow, Sample};
use crate::error::Error;
use crate::limits;
use crate::one_rma::{COMMAND_LEN, Command, Completion, Outcome, RegionId, SlotId};
use adverb_wire::one_rma::MAX_OP;
use adverb_wire::{Duration, Gid, Instant};
use deadlines::Deadlines;
use flows::Flows;
use std::collections::VecDeque;
use transfer::{Chunk, Transfer};

/// What an executor is made with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExecutorConfig {
    /// Congestion control.
    pub congestion: CongestionConfig,
    /// Bytes of a command at most, 1 to 4096 (section 6.1: small ones for frequent feedback, large ones for
    /// less work).
    pub op_size: u16,
    /// Transfers at once, those whose report was not taken included.
    pub transfers: u32,
    /// Pairs of remote NIC and direction whose windows are remembered.
    pub flows: u32,
    /// By how much a late command may let the next ones follow sooner. Zero paces strictly, as in the paper;
    /// where calls come late, as between processes, the rate suffers without some.
    pub pacing_slack: Duration,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        ExecutorConfig {
            congestion: CongestionConfig::default(),
            op_size: MAX_OP as u16,
            transfers: 1024,
            flows: 1024,
            pacing_slack: Duration::ZERO,
        }
    }
}

impl ExecutorConfig {
    /// Whether the values go together.
    pub fn check(&self) -> Result<(), Error> {
        self.congestion.check()?;
        if self.op_size == 0 || self.op_size as usize > MAX_OP {
            return Err(Error::Invalid("size of a command: 1 to 4096 bytes"));
        }
        if self.transfers == 0 || self.transfers > limits::MAX_ONE_RMA_TRANSFERS {
            return Err(Error::Invalid("number of transfers"));
        }
        if self.flows == 0 || self.flows > limits::MAX_ONE_RMA_FLOWS {
            return Err(Error::Invalid("number of flows"));
        }
        Ok(())
    }
}

/// A command on its way to its slot.
pub struct Posting {
    /// The slot, which is free.
    pub slot: SlotId,
    /// The command's bytes. They hold the key.
    pub command: [u8; COMMAND_LEN],
}

/// A command in the NIC.
#[derive(Clone, Copy)]
struct Flight {
    transfer: u32,
    chunk: Chunk,
}

struct Slot {
    id: SlotId,
    flight: Option<Flight>,
}

struct Entry {
    generation: u32,
    transfer: Option<Transfer>,
}

/// No place in a table.
const NOWHERE: u32 = u32::MAX;

/// Carries out transfers of any size as commands to a 1RMA NIC.
pub struct CommandExecutor {
    config: ExecutorConfig,
    completion_region: RegionId,
    slots: Vec<Slot>,
    /// Positions in `slots`.
    free: Vec<u32>,
    /// Positions in `slots`, by the NIC's number of the slot.
    places: Vec<u32>,
    transfers: Vec<Entry>,
    /// Entries of `transfers` without one.
    vacant: Vec<u32>,
    flows: Flows,
    local: CongestionWindow,
    /// Flows that had a command to issue when they were last looked at; they take turns.
    ready: VecDeque<u32>,
    /// When flows may issue their next command.
    paces: Deadlines,
    /// Of transfers.
    deadlines: Deadlines,
    reports: VecDeque<Report>,
}

impl CommandExecutor {
    /// One without slots, whose commands have their completions written to `completion_region`.
    pub fn new(config: ExecutorConfig, completion_region: RegionId) -> Result<CommandExecutor, Error> {
        config.check()?;
        Ok(CommandExecutor {
            completion_region,
            slots: Vec::new(),
            free: Vec::new(),
            places: Vec::new(),
            transfers: Vec::new(),
            vacant: Vec::new(),
            flows: Flows::new(config.flows),
            local: CongestionWindow::new(&config.congestion),
            ready: VecDeque::new(),
            paces: Deadlines::new(config.flows as usize),
            deadlines: Deadlines::new(config.transfers as usize),
            reports: VecDeque::new(),
            config,
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &ExecutorConfig {
        &self.config
    }

    /// Hands over a slot that is free. `Busy` when it was handed over before.
    pub fn add_slot(&mut self, id: SlotId) -> Result<(), Error> {
        let index = id.index() as usize;
        if index >= limits::MAX_ONE_RMA_SLOTS as usize {
            return Err(Error::Invalid("command slot"));
        }
        if self.places.len() <= index {
            self.places.resize(index + 1, NOWHERE);
        }
        if self.places[index] != NOWHERE {
            return Err(Error::Busy);
        }
        let place = self.slots.len() as u32;
        self.places[index] = place;
        self.slots.push(Slot { id, flight: None });
        self.free.push(place);
        Ok(())
    }

    /// Takes a transfer in. `Invalid` for what no NIC could do; `TableFull` when as many transfers are in
    /// progress as may be, or as many flows in use.
    pub fn submit(&mut self, now: Instant, init: TransferInit) -> Result<TransferId, Error> {
        init.check()?;
        if self.vacant.is_empty() && self.transfers.len() == self.config.transfers as usize {
            return Err(Error::TableFull);
        }
        let flow = self.flows.open(&self.config.congestion, now, init.target, init.direction())?;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.transfers.push(Entry { generation: 0, transfer: None });
            self.transfers.len() as u32 - 1
        });
        if let Some(deadline) = init.deadline {
            self.deadlines.set(index as usize, deadline);
        }
        let entry = &mut self.transfers[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.transfer = Some(Transfer::new(init, flow, now));
        let id = TransferId { index, generation: entry.generation };
        self.join_row(index);
        self.wake(flow, now);
        Ok(id)
    }

    /// Ends a transfer; its report says [`End::Cancelled`], unless it had ended otherwise before.
    /// `NoSuchObject` when its report is there.
    pub fn cancel(&mut self, now: Instant, id: TransferId) -> Result<(), Error> {
        let entry = self.transfers.get(id.index as usize).ok_or(Error::NoSuchObject)?;
        if entry.generation != id.generation || entry.transfer.is_none() {
            return Err(Error::NoSuchObject);
        }
        self.end(now, id.index, End::Cancelled);
        Ok(())
    }

    /// The next command to write into a slot, if there is one to be issued now.
    pub fn next_command(&mut self, now: Instant) -> Option<Posting> {
        self.on_timer(now);
        let place = *self.free.last()?;
        while let Some(flow) = self.ready.pop_front() {
            self.flows.get_mut(flow).in_ready = false;
            if self.may_issue(flow, now) {
                self.free.pop();
                let posting = self.issue(now, flow, place);
                self.wake(flow, now);
                return Some(posting);
            }
            self.wake(flow, now);
        }
        None
    }

    /// Whether [`next_command`](Self::next_command) could have one now.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() && !self.free.is_empty()
    }

    /// When [`next_command`](Self::next_command) or [`on_timer`](Self::on_timer) should be called next, if no
    /// completion comes first.
    pub fn next_deadline(&self) -> Option<Instant> {
        let pace = self.paces.first().filter(|_| !self.free.is_empty());
        let deadline = self.deadlines.first();
        pace.into_iter().chain(deadline).map(|(at, _)| at).min()
    }

    /// Ends transfers whose deadline has come, and wakes flows whose pace allows their next command.
    pub fn on_timer(&mut self, now: Instant) {
        while let Some((at, index)) = self.deadlines.first()
            && at <= now
        {
            self.end(now, index as u32, End::Deadline);
        }
        while let Some((at, flow)) = self.paces.first()
            && at <= now
        {
            self.paces.clear(flow);
            self.make_ready(flow as u32);
        }
    }

    /// Hears of a command's end. False for a slot that has none, which a NIC never completes.
    pub fn on_completion(&mut self, now: Instant, completion: &Completion) -> bool {
        let Some(flight) = self.land(completion.slot) else { return false };
        let &Completion { outcome, issue_delay, total_delay, .. } = completion;
        let Some(transfer) = &mut self.transfers[flight.transfer as usize].transfer else {
            unreachable!("a transfer stays while its commands are in flight");
        };
        let flow = self.flows.get_mut(transfer.flow);
        let sample = Sample { outcome, issue_delay, total_delay };
        congestion::on_completion(&self.config.congestion, now, &sample, &mut self.local, &mut flow.window);
        transfer.issue_delay = transfer.issue_delay.max(issue_delay);
        transfer.total_delay = transfer.total_delay.max(total_delay);
        if outcome == Outcome::Ok {
            transfer.bytes += flight.chunk.len as u64;
        } else if transfer.end.is_none() {
            if transfer.init.retry.allows(outcome, flight.chunk.attempts) {
                transfer.again.push(Chunk { attempts: flight.chunk.attempts + 1, ..flight.chunk });
            } else {
                transfer.end = Some(End::Outcome(outcome));
            }
        }
        self.after(now, flight.transfer);
        true
    }

    /// Hears that the NIC refused the command for a slot: nothing was done, and the transfer ends. False as
    /// above.
    pub fn on_refused(&mut self, now: Instant, slot: SlotId, error: Error) -> bool {
        let Some(flight) = self.land(slot) else { return false };
        if let Some(transfer) = &mut self.transfers[flight.transfer as usize].transfer {
            transfer.end.get_or_insert(End::Refused(error));
        }
        self.after(now, flight.transfer);
        true
    }

    /// Ends everything at once: the NIC is gone, and nothing more will come from it.
    pub fn abandon(&mut self, now: Instant) {
        for place in 0..self.slots.len() {
            self.land(self.slots[place].id);
        }
        for index in 0..self.transfers.len() as u32 {
            self.end(now, index, End::Abandoned);
        }
    }

    /// The next transfer that has ended.
    pub fn next_report(&mut self) -> Option<Report> {
        let report = self.reports.pop_front()?;
        self.vacant.push(report.id.index);
        Some(report)
    }

    /// Commands in the NIC.
    pub fn outstanding(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Transfers in progress, those whose report was not taken included.
    pub fn transfers(&self) -> u32 {
        (self.transfers.len() - self.vacant.len()) as u32
    }

    /// The local window, in operations.
    pub fn local_window(&self) -> f64 {
        self.local.operations()
    }

    /// The window of a remote NIC and direction, in operations, if it is remembered.
    pub fn remote_window(&self, target: Gid, direction: Direction) -> Option<f64> {
        self.flows.find(target, direction).map(|flow| self.flows.get(flow).window.operations())
    }

    /// Asserts that the tables agree with one another; for tests, after every call.
    pub fn check_invariants(&self) {
        let flights = self.slots.iter().filter_map(|slot| slot.flight);
        assert_eq!(flights.clone().count(), self.slots.len() - self.free.len(), "free slots");
        let transfers = || self.transfers.iter().filter_map(|entry| entry.transfer.as_ref());
        let in_flight: u32 = transfers().map(|transfer| transfer.in_flight).sum();
        assert_eq!(in_flight, self.outstanding(), "commands of transfers");
        let outstanding: u32 = self.flows.iter().map(|flow| flow.outstanding).sum();
        assert_eq!(outstanding, self.outstanding(), "commands of flows");
        let rows: usize = self.flows.iter().map(|flow| flow.row.len()).sum();
        assert_eq!(rows, transfers().filter(|transfer| transfer.in_row).count(), "rows of flows");
        assert!(transfers().all(|t| t.in_row == t.wants_more()), "who wants more is in a row");
        assert!(transfers().all(|t| t.ended().is_none()), "who has ended has a report");
        let known = transfers().count() + self.reports.len() + self.vacant.len();
        assert_eq!(known, self.transfers.len(), "entries of transfers");
        assert!(self.flows.len() <= self.config.flows as usize, "the table of flows");
        assert_eq!(
            self.ready.len(),
            self.flows.iter().filter(|flow| flow.in_ready).count(),
            "flows that are ready"
        );
    }
}

/// Leaves.
impl CommandExecutor {
    fn allowance(&self, flow: u32) -> Allowance {
        Allowance::new(&self.config.congestion, &self.local, &self.flows.get(flow).window)
    }

    fn may_issue(&self, flow: u32, now: Instant) -> bool {
        let (allowance, flow) = (self.allowance(flow), self.flows.get(flow));
        !flow.row.is_empty()
            && flow.outstanding < allowance.outstanding()
            && flow.next_issue(&allowance) <= now
    }

    /// Puts a flow where it will be looked at again: in the row, among the paces, or nowhere when a
    /// completion comes before anything else.
    fn wake(&mut self, index: u32, now: Instant) {
        let (allowance, flow) = (self.allowance(index), self.flows.get(index));
        if flow.in_ready {
            return;
        }
        if flow.row.is_empty() || flow.outstanding >= allowance.outstanding() {
            return self.paces.clear(index as usize);
        }
        let at = flow.next_issue(&allowance);
        if at > now {
            return self.paces.set(index as usize, at);
        }
        self.paces.clear(index as usize);
        self.make_ready(index);
    }

    fn make_ready(&mut self, index: u32) {
        let flow = self.flows.get_mut(index);
        if !flow.in_ready {
            flow.in_ready = true;
            self.ready.push_back(index);
        }
    }

    /// Issues a command of the transfer whose turn it is.
    fn issue(&mut self, now: Instant, index: u32, place: u32) -> Posting {
        let allowance = self.allowance(index);
        let flow = self.flows.get_mut(index);
        let Some(turn) = flow.row.pop_front() else { unreachable!("the caller has looked at the row") };
        let Some(transfer) = &mut self.transfers[turn as usize].transfer else {
            unreachable!("who is in a row is in the table");
        };
        let chunk = transfer.cut(self.config.op_size);
        transfer.in_flight += 1;
        transfer.commands += 1;
        transfer.repeats += (chunk.attempts > 0) as u64;
        transfer.in_row = transfer.wants_more();
        if transfer.in_row {
            flow.row.push_back(turn);
        }
        flow.on_issued(now, &allowance, chunk.len, self.config.pacing_slack);
        let slot = &mut self.slots[place as usize];
        slot.flight = Some(Flight { transfer: turn, chunk });
        let init = &transfer.init;
        let command = Command {
            op: init.op,
            class: init.class,
            len: chunk.len,
            remote_region: init.remote_region,
            local_region: init.local_region,
            completion_region: self.completion_region,
            target: init.target,
            remote_offset: init.remote_offset + chunk.offset,
            local_offset: init.local_offset + chunk.offset,
            key: init.key.clone(),
        };
        Posting { slot: slot.id, command: command.encode() }
    }

    /// Takes the command out of a slot.
    fn land(&mut self, slot: SlotId) -> Option<Flight> {
        let place = self.places.get(slot.index() as usize).copied().filter(|place| *place != NOWHERE)?;
        let flight = self.slots[place as usize].flight.take()?;
        self.free.push(place);
        if let Some(transfer) = &mut self.transfers[flight.transfer as usize].transfer {
            transfer.in_flight -= 1;
            self.flows.get_mut(transfer.flow).outstanding -= 1;
        }
        Some(flight)
    }

    /// Lets no further command of a transfer be issued.
    fn end(&mut self, now: Instant, index: u32, end: End) {
        self.deadlines.clear(index as usize);
        let Some(transfer) = &mut self.transfers[index as usize].transfer else { return };
        transfer.end.get_or_insert(end);
        self.after(now, index);
    }

    fn join_row(&mut self, index: u32) {
        if let Some(transfer) = &mut self.transfers[index as usize].transfer
            && !transfer.in_row
        {
            transfer.in_row = true;
            self.flows.get_mut(transfer.flow).row.push_back(index);
        }
    }

    /// Puts a transfer that has changed, and its flow, where they belong.
    fn after(&mut self, now: Instant, index: u32) {
        let entry = &mut self.transfers[index as usize];
        let Some(transfer) = &mut entry.transfer else { return };
        let flow = transfer.flow;
        if !transfer.wants_more() && transfer.in_row {
            transfer.in_row = false;
            crate::one_rma::leave_row(&mut self.flows.get_mut(flow).row, index);
        } else if transfer.wants_more() {
            self.join_row(index);
        }
        self.report(now, index);
        self.wake(flow, now);
    }

    fn report(&mut self, now: Instant, index: u32) {
        let entry = &mut self.transfers[index as usize];
        let Some(end) = entry.transfer.as_ref().and_then(Transfer::ended) else { return };
        let Some(transfer) = entry.transfer.take() else { return };
        self.deadlines.clear(index as usize);
        self.reports.push_back(Report {
            id: TransferId { index, generation: entry.generation },
            tag: transfer.init.tag,
            end,
            bytes: transfer.bytes,
            commands: transfer.commands,
            repeats: transfer.repeats,
            issue_delay: transfer.issue_delay,
            total_delay: transfer.total_delay,
            elapsed: now.since(transfer.submitted),
        });
    }
}
