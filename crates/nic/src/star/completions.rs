//! Completions of the stateless side: what its host takes out of CQEPs, each once and in order, and how a
//! connection ends that the peer has failed (StaR, III-B).

use super::library::{RECEIVES, SENDS};
use super::{Hosted, Phase};
use crate::endpoint::{Endpoint, Place};
use crate::event::{Event, StarOutcome};
use crate::explain::{Cause, received};
use crate::ids::QpId;
use crate::memory::Payload;
use crate::nic::Nic;
use crate::queue::cq::Release;
use crate::queue::wqe::WqeOp;
use crate::state::NicState;
use crate::transport::failure::enter_error;
use crate::transport::report::completion_of;
use crate::transport::report::{completion, explain};
use crate::transport::star::posted::outstanding;
use crate::work::{CompletionOp, Status};
use adverb_wire::star::{self, Cqe, Merged, Op, StarEth, features};
use adverb_wire::{Instant, Key, Packet};

/// Rule of what it says went wrong.
const TOLD: &str = "the stateful side completed the request with this status (StaR CQEP)";
const UNANSWERED: &str = "the stateful side had no answer to what the request takes within its timeout, \
                          retry count times over (StaR CQEP)";
const UNKNOWN: &str = "the stateful side completed what is not outstanding (StaR CQEP)";
const TOO_LONG: &str =
    "the stateful side completed a receive with more bytes than it has room for (StaR CQEP)";

/// Why a completion was not taken: the queue pair goes to ERR.
enum Broken {
    /// The request that it is for fails of this.
    Fails(Queue, Cause),
    /// It is for nothing that is outstanding.
    Unknown,
}

/// A queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Sends,
    Receives,
}

/// Acknowledgements and completions in.
impl Nic {
    /// The peer acknowledges what it was told, or that it has the state.
    pub(super) fn on_work_acknowledged(&mut self, now: Instant, packet: &Packet) {
        let Some(star) = &self.star else { return };
        if star.stateless.admit(packet, &mut self.state.counters).is_none() {
            return;
        }
        let Some(name) = self.endpoints.name_at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        let eth = StarEth::from(packet.irn);
        let hands = endpoint.star.as_deref().is_some_and(|hosted| hosted.phase == Phase::Handing);
        if hands && eth.has(StarEth::MIGRATION) && eth.value != 0 {
            return self.leave_for(name, StarOutcome::Refused);
        }
        let Some(mut hosted) = endpoint.star.take() else { return };
        let base = hosted.base;
        let mut became = None;
        if hosted.phase == Phase::Handing {
            hosted.become_stateless(now);
            became = Some(hosted.switched);
        } else if hosted.phase == Phase::Stateless && !eth.has(StarEth::MIGRATION) {
            let queue = usize::from(eth.has(StarEth::RECV_QUEUE));
            let library = &mut hosted.library;
            library.promised.hear(now, eth.value, library.completions);
            let known = library.acknowledged[queue];
            let more = packet.bth.psn.since(library.number(base, queue, known));
            if (0..=library.told[queue].wrapping_sub(known) as i32).contains(&more) {
                let count = known.wrapping_add(more as u32);
                library.acknowledge(queue, count, endpoint);
                library.heard_at(now);
                if more > 0 {
                    library.on_acknowledged(now);
                }
            }
        }
        endpoint.star = Some(hosted);
        self.star_due(name);
        if let Some(switched) = became {
            self.tell_stateless(name, switched);
            self.pursue_on(now, name);
        }
    }

    /// The peer completes requests of this side. Each completion is taken once, in order.
    pub(super) fn on_completions(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let Some(star) = &mut self.star else {
            self.state.counters.drop_wrong_service += 1;
            return;
        };
        let counters = &mut self.state.counters;
        let Some(grant) = star.stateless.admit(packet, counters) else { return };
        if !star.stateless.has_room() {
            counters.star_answers_full += 1;
            return;
        }
        let eth = StarEth::from(packet.irn);
        let count = payload.len() / Cqe::LEN;
        if payload.is_elided() && count > 0 || payload.len() != usize::from(eth.count) * Cqe::LEN {
            counters.star_cqe_unknown += 1;
            return;
        }
        let Some(name) = self.endpoints.name_at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        let Some(mut hosted) = endpoint.star.take() else { return };
        let is_first = hosted.phase == Phase::Handing;
        if is_first {
            hosted.become_stateless(now);
        }
        let switched = hosted.switched;
        let taken = take_all(endpoint, &mut hosted, &mut self.state, now, packet, payload);
        hosted.library.heard_at(now);
        let expected = hosted.next_completion();
        let receives = endpoint.receives_posted();
        let all = packet.bth.psn.add(count as u32) == expected;
        endpoint.star = Some(hosted);
        star.stateless.acknowledge_event(packet, grant, expected, receives);
        self.state.has_effects = true;
        if is_first {
            // The record's acknowledgement may be lost: what was posted before has waited for it.
            self.star_due(name);
            self.tell_stateless(name, switched);
            self.pursue_on(now, name);
        }
        match taken {
            Err(why) => self.fail_broken(now, name, packet, why),
            // As a responder that has refused a request does (IBTA 9.7.5.2.4).
            Ok(()) if eth.value != 0 && all => {
                self.state.event(match Status::of_wire(eth.value as u8) {
                    Status::RemoteAccess => Event::QpAccessError(name),
                    _ => Event::QpRequestError(name),
                });
                self.fail_hosted(now, name, None);
            }
            Ok(()) => {}
        }
    }

    /// Data came for, or of, a request of this side: the peer has all requests up to that (`merge`).
    pub(super) fn on_request_heard(&mut self, now: Instant, packet: &Packet) {
        let Some(name) = self.endpoints.name_at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        let merges = |hosted: &mut Box<Hosted>| hosted.features & features::MERGE != 0;
        if StarEth::from(packet.irn).has(StarEth::RECV_QUEUE) {
            return;
        }
        let Some(mut hosted) = endpoint.star.take_if(merges) else { return };
        let library = &mut hosted.library;
        let more = library.hear_request(star::Place::of_va(packet.reth.va).index, endpoint);
        if more > 0 {
            library.heard_at(now);
            library.on_acknowledged(now);
            self.state.counters.star_heard_by_data += u64::from(more);
        }
        endpoint.star = Some(hosted);
    }

    /// Data came whose completion they bring along, and are where they belong (`merge`).
    pub(super) fn on_merged(&mut self, now: Instant, packet: &Packet, merged: Merged, len: u32) {
        self.on_request_heard(now, packet);
        let Some(name) = self.endpoints.name_at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        let Some(mut hosted) = endpoint.star.take() else { return };
        let op = StarEth::from(packet.irn).op().unwrap_or(Op::Read);
        hosted.library.take_completions(1);
        hosted.library.heard_at(now);
        let cqe = merged.completion(op, len);
        let taken = take(endpoint, &mut hosted, &mut self.state, now, packet, &cqe);
        endpoint.star = Some(hosted);
        self.state.counters.star_merged += 1;
        self.state.has_effects = true;
        if let Err(why) = taken {
            self.fail_broken(now, name, packet, why);
        }
    }

    /// A completion could not be taken.
    fn fail_broken(&mut self, now: Instant, id: QpId, packet: &Packet, why: Broken) {
        match why {
            Broken::Fails(queue, cause) => {
                if queue == Queue::Receives {
                    // Whose own buffers were at fault has nobody else to blame (IBTA 9.9.3).
                    self.state.event(match cause.status {
                        Status::LocalProtection => Event::QpFatal(id),
                        _ => Event::QpRequestError(id),
                    });
                }
                self.fail_hosted(now, id, Some((queue, cause)));
            }
            Broken::Unknown => {
                self.state.counters.star_cqe_unknown += 1;
                self.state.event(Event::QpFatal(id));
                let cause = Cause::local(Status::BadResponse, UNKNOWN);
                let cause = Cause { packet: Some(received(packet)), ..cause };
                self.fail_hosted(now, id, Some((Queue::Sends, cause)));
            }
        }
    }

    /// The queue pair of an endpoint goes to ERR: its oldest request of a queue with its cause, the others
    /// flushed. No packet reaches it from then on, and its answers go.
    pub(super) fn fail_hosted(&mut self, now: Instant, id: QpId, cause: Option<(Queue, Cause)>) {
        // Its answers have to leave all the same: the peer is to know that the completion has come.
        let acted = self.as_qp(id, |qp, nic| {
            match cause {
                Some((Queue::Sends, cause)) if qp.sq.has_unfetched() => {
                    let block = qp.sq.fetched;
                    let available = qp.sq.posted.wrapping_sub(block);
                    let (op, blocks) = match qp.sq.ring.decode(block, available, qp.sq.layout()) {
                        Ok(wqe) => (wqe.op, wqe.blocks()),
                        Err(_) => (WqeOp::Nop, 1),
                    };
                    let wr_id = qp.requester.wr_id(block);
                    explain(qp, nic, now, wr_id, &cause);
                    qp.sq.fetched = block.wrapping_add(blocks);
                    let done = completion(qp, now, wr_id, op.completion(), cause.status);
                    let end = qp.sq.fetched;
                    nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end }));
                }
                Some((Queue::Receives, cause)) if qp.take_receive() => {
                    let wr_id = qp.scatter().wr_id;
                    explain(qp, nic, now, wr_id, &cause);
                    let done = completion(qp, now, wr_id, CompletionOp::Recv, cause.status);
                    nic.complete(qp.recv_cq, done, Some(Release::Receive(qp.id)));
                }
                _ => {}
            }
            enter_error(qp, nic, now);
        });
        if acted.is_ok() {
            self.close_star(id);
        }
    }
}

/// Takes the completions of a packet that were not taken before.
fn take_all(
    endpoint: &mut Endpoint,
    hosted: &mut Hosted,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Broken> {
    let merges = hosted.features & features::MERGE != 0;
    let ahead = packet.bth.psn.since(hosted.next_completion());
    if merges && ahead > 0 && StarEth::from(packet.irn).has(StarEth::FINAL) {
        // Those that were to come with their data do not come any more.
        hosted.library.take_completions(ahead as u32);
    }
    for at in 0..payload.len() / Cqe::LEN {
        let expected = hosted.next_completion();
        let number = packet.bth.psn.add(at as u32);
        if number.is_before(expected) {
            nic.counters.star_cqe_duplicate += 1;
            continue;
        }
        if number != expected {
            let early =
                if merges { &mut nic.counters.star_merge_early } else { &mut nic.counters.star_cqe_unknown };
            *early += 1;
            break;
        }
        let mut bytes = [0; Cqe::LEN];
        payload.read(at * Cqe::LEN, &mut bytes);
        hosted.library.take_completions(1);
        let cqe = Cqe::read(&bytes).ok_or(Broken::Unknown)?;
        take(endpoint, hosted, nic, now, packet, &cqe)?;
    }
    Ok(())
}

/// Takes one completion.
fn take(
    endpoint: &mut Endpoint,
    hosted: &mut Hosted,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    cqe: &Cqe,
) -> Result<(), Broken> {
    let has = |flag: u8| cqe.flags & flag != 0;
    let told = |status| {
        let rule = if status == Status::TransportRetryExceeded { UNANSWERED } else { TOLD };
        Cause { packet: Some(received(packet)), ..Cause::local(status, rule) }
    };
    let status = Status::of_wire(cqe.status);
    if !has(Cqe::RECV_QUEUE) {
        return take_send(endpoint, hosted, nic, now, cqe, told(status));
    }
    let name = endpoint.id;
    let Some(receiver) = endpoint.receiver.as_deref_mut() else { return Err(Broken::Unknown) };
    let (oldest, _) = receiver.queue.waiting();
    if outstanding(cqe.index, receiver.queue.waiting()) != Some(oldest) {
        return Err(Broken::Unknown);
    }
    if status != Status::Success {
        return Err(Broken::Fails(Queue::Receives, told(status)));
    }
    let op = if cqe.op == Op::Write { CompletionOp::RecvWriteImm } else { CompletionOp::Recv };
    if op == CompletionOp::Recv && u64::from(cqe.len) > receiver.queue.capacity_of(oldest) {
        nic.counters.star_cqe_length += 1;
        return Err(Broken::Fails(Queue::Receives, Cause::local(Status::LocalLength, TOO_LONG)));
    }
    if has(Cqe::INVALIDATED) {
        let done = nic.memory.invalidate_remote(endpoint.pd, endpoint.num, Key(cqe.immediate));
        done.map_err(|f| Broken::Fails(Queue::Receives, Cause::local(Status::LocalAccess, f.rule())))?;
    }
    let wr_id = receiver.queue.pass();
    let count = oldest.wrapping_add(1);
    if (hosted.library.acknowledged[RECEIVES].wrapping_sub(count) as i32) < 0 {
        hosted.library.acknowledge(RECEIVES, count, endpoint);
    }
    let mut done = completion_of(endpoint.num, now, wr_id, op, Status::Success);
    (done.byte_len, done.immediate, done.src_qp) = (cqe.len, cqe.immediate, endpoint.peer);
    done.solicited = has(Cqe::SOLICITED);
    (done.has_immediate, done.has_invalidate) = (has(Cqe::IMMEDIATE), has(Cqe::INVALIDATED));
    nic.complete(endpoint.cqs.1, done, Some(Release::Receive(name)));
    Ok(())
}

/// Takes the completion of a send request.
fn take_send(
    endpoint: &mut Endpoint,
    hosted: &mut Hosted,
    nic: &mut NicState,
    now: Instant,
    cqe: &Cqe,
    told: Cause,
) -> Result<(), Broken> {
    let (block, posted) = (endpoint.sq.fetched, endpoint.sq.posted);
    if outstanding(cqe.index, (block, posted)) != Some(block) {
        return Err(Broken::Unknown);
    }
    if let Some((_, cause)) = hosted.library.failed.take_if(|failed| failed.0 == block).as_deref() {
        return Err(Broken::Fails(Queue::Sends, *cause));
    }
    if told.status != Status::Success {
        return Err(Broken::Fails(Queue::Sends, told));
    }
    let Ok(wqe) = endpoint.sq.ring.decode(block, posted.wrapping_sub(block), endpoint.sq.layout()) else {
        return Err(Broken::Unknown);
    };
    let library = &mut hosted.library;
    let count = library.done.wrapping_add(1);
    if (library.acknowledged[SENDS].wrapping_sub(count) as i32) < 0 {
        library.acknowledge(SENDS, count, endpoint);
    }
    library.done = count;
    let end = block.wrapping_add(wqe.blocks());
    endpoint.sq.fetched = end;
    if nic.tallies {
        nic.counters.requests_done += 1;
        nic.counters.payload_requested += u64::from(wqe.len);
    }
    if wqe.signaled {
        let wr_id = endpoint.starts().wr_id(block);
        let mut done = completion_of(endpoint.num, now, wr_id, wqe.op.completion(), Status::Success);
        done.byte_len = if wqe.op.awaits_response() { wqe.len } else { 0 };
        nic.complete(endpoint.cqs.0, done, Some(Release::Send { qp: endpoint.id, end }));
    }
    Ok(())
}
