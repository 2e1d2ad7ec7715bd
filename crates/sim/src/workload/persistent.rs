//! Connections that last: each has a queue pair at either end, from the start on or from when it comes
//! ([`super::comings`]), and calls follow one another on it without a pause (StaR, V; ScaleRPC's groups).
//! What is counted are calls, not flows.

use crate::host::{Hosts, Peer, TransportConfig};
use crate::sim::Sim;
use crate::source::Source;
use crate::workload::Workload;
use crate::workload::comings::{Changed, Coming, Life, Others, Step};
use crate::workload::drawn::{self, Drawn};
use adverb_nic::{Completion, Error, QpCaps, QpId, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Status};
use adverb_wire::Instant;
use std::collections::VecDeque;

/// READs outstanding, the most that adapters commonly offer.
const READS: u8 = 16;
/// Messages of a call at most.
pub const REQUESTS_MAX: u32 = 64;
/// Words of work requests: the connection, and in the low bits what it was.
pub(super) const KIND_BITS: u32 = 2;
pub(super) const ONE_SIDED: u64 = 0;
const RECEIVE: u64 = 1;
const REQUEST: u64 = 2;
const RESPONSE: u64 = 3;

/// What a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// The client sends; when the server has all of its messages, it sends one back.
    #[default]
    Rpc,
    /// The same, but the server answers all clients when all have sent.
    Barrier,
    /// One side reads from the other.
    Read,
    /// One side writes to the other.
    Write,
}

/// Connections take turns (ScaleRPC): those of one group begin something for the length of a slot. What they
/// have begun ends before the next group's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Groups {
    /// Connections of a group; a new one begins when the others are full.
    pub size: u32,
    /// For how long a group begins calls, in ps.
    pub slot_ps: u64,
    /// Time from the end of one slot's calls to the next slot, in ps.
    pub switch_ps: u64,
}

/// A call that has ended well, in ps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Its connection.
    pub connection: u32,
    /// Its first post.
    pub start: u64,
    /// Who has posted it knows.
    pub end: u64,
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// The one end of all connections.
    pub server: u32,
    /// The other ends, in turns.
    pub clients: Vec<u32>,
    /// How many; with `steps`, at the beginning.
    pub connections: u32,
    /// Those of a second server.
    pub others: Option<Others>,
    /// How their numbers change.
    pub steps: Vec<Step>,
    /// NICs have StaR's registry: each side is granted what it may name at the other.
    pub registry: bool,
    /// And what is posted is named by address: that needs the rules of regions only.
    pub by_address: bool,
    /// What is done on them.
    pub pattern: Pattern,
    /// READs and WRITEs are the server's.
    pub by_server: bool,
    /// Messages of a call from the client.
    pub requests: u32,
    /// Bytes of each of them; of a READ or WRITE.
    pub bytes: u32,
    /// Bytes of what comes back.
    pub response: u32,
    /// They take turns.
    pub groups: Option<Groups>,
    /// READs and WRITEs: so many are under way on all connections together, each on one that is drawn;
    /// otherwise one on each.
    pub outstanding: Option<u32>,
    /// No call begins after it.
    pub until_ps: u64,
    /// The first call of each connection begins at random within this time.
    pub spread_ps: u64,
    /// Calls that end from this time on are what is measured, in ps; as the lab has it, if absent.
    pub measured_ps: Option<u64>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub client: (u32, QpId),
    pub server: (u32, QpId),
    /// When it was made, and how far its life is.
    made: u64,
    pub life: Life,
    /// A call is under way, and requests are of which a completion will tell.
    pub calls: bool,
    pub unfinished: u32,
    /// When its call began.
    since: u64,
    /// Messages of it that the server has.
    arrived: u32,
    /// When its last call ended.
    last: Option<u64>,
}

/// Whose turn it is.
#[derive(Clone, Debug)]
struct Turn {
    groups: Groups,
    active: usize,
    slot_end: u64,
    /// When the next slot begins, once all of this one has ended.
    next_at: Option<u64>,
    /// What was begun in the slot and has not ended.
    running: u32,
    /// By group: what waits for its slot.
    parked: Vec<Vec<(u32, Part)>>,
}

/// Half of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Request,
    Response,
}

/// Connections, and what went on on them.
#[derive(Clone, Debug, Default)]
pub struct Persistent {
    /// What was asked for.
    pub asked: Asked,
    /// Calls that have ended well, in the order of their ends.
    pub ended: Vec<Call>,
    /// Connections that could not be made, or on which something has failed.
    pub failed: u32,
    /// Changes of StaR's roles, and those that came to nothing.
    pub changed: Vec<Changed>,
    /// See `changed`.
    pub not_changed: u32,
    pub(super) list: Vec<Connection>,
    /// By kind: those that are to stay, the oldest first; how many were made.
    pub(super) open: [VecDeque<u32>; 2],
    made: [u32; 2],
    /// Who comes or leaves, the last one first; who is to be closed.
    pub(super) comings: Vec<Coming>,
    pub(super) closing: Vec<u32>,
    /// First calls that have not begun, the last one first.
    starts: Vec<(u64, u32)>,
    /// `Barrier`: connections whose messages have all come.
    assembled: u32,
    turn: Option<Turn>,
    pub(super) drawn: Option<Drawn>,
    lost: Vec<bool>,
    /// Hosts that something was posted at.
    pub(super) posted: Vec<u32>,
}

impl Persistent {
    /// Connections that have not been made. `rng` draws when each begins.
    pub fn new(asked: Asked, rng: &mut fastrand::Rng) -> Persistent {
        let start = |n: u32, rng: &mut fastrand::Rng| (rng.u64(0..=asked.spread_ps), n);
        let all: u32 = asked.outstanding.unwrap_or(asked.at_first().iter().sum());
        let mut starts: Vec<(u64, u32)> = (0..all).map(|n| start(n, rng)).collect();
        starts.sort_unstable_by(|one, other| other.cmp(one));
        let count = asked.groups.map_or(1, |groups| asked.connections.div_ceil(groups.size));
        let turn = asked.groups.filter(|_| count > 1).map(|groups| Turn {
            groups,
            active: 0,
            slot_end: groups.slot_ps,
            next_at: None,
            running: 0,
            parked: vec![Vec::new(); count as usize],
        });
        let comings = asked.timetable(rng);
        let planned = asked.made_in_all()[0];
        let drawn = asked.outstanding.map(|calls| Drawn::new(calls, planned, rng));
        Persistent { asked, starts, turn, drawn, comings, ..Persistent::default() }
    }

    /// Makes them all, with receives posted.
    fn connect(&mut self, now: u64, hosts: &mut Hosts, t: &TransportConfig) -> Result<(), Error> {
        for host in &mut hosts.list {
            let ends = self.asked.ends_at(host.number);
            if ends > 0 {
                let each = ends * (2 * self.asked.requests + 4);
                let entries = self.asked.outstanding.unwrap_or(each).next_power_of_two();
                host.cq = host.nic.create_cq(entries)?;
            }
        }
        for (of, count) in self.asked.at_first().into_iter().enumerate() {
            (0..count).try_for_each(|_| self.open(hosts, now, of, t).map(|_| ()))?;
        }
        Ok(())
    }

    /// Makes one, of the server or of the other one. Its number.
    pub(super) fn open(
        &mut self,
        hosts: &mut Hosts,
        now: u64,
        of: usize,
        t: &TransportConfig,
    ) -> Result<u32, Error> {
        let (n, requests) = (self.list.len() as u32, self.asked.requests);
        // Requests of the call before may wait for their acknowledgement.
        let depth = self.asked.outstanding.map(|calls| drawn::depth(calls, self.planned()));
        let caps = QpCaps {
            max_send_wr: depth.unwrap_or(4 * requests),
            max_send_sge: 1,
            max_recv_wr: 2 * requests,
            max_recv_sge: 1,
            ..QpCaps::default()
        };
        let (server, clients) = self.asked.ends(of);
        let client = clients[self.made[of] as usize % clients.len()];
        let (own, at_server) = connect_pair(now, hosts, (client, server), caps, t)?;
        self.list.push(Connection {
            client: (client, own),
            server: (server, at_server),
            made: now,
            life: Life::Open,
            calls: false,
            unfinished: 0,
            since: 0,
            arrived: 0,
            last: None,
        });
        self.lost.push(false);
        self.made[of] += 1;
        self.open[of].push_back(n);
        if self.asked.registry {
            self.grant(hosts, n)?;
        }
        if self.is_two_sided() {
            self.expect(hosts, now, n, requests)?;
        }
        Ok(n)
    }

    /// The hosts of a connection, the client's first.
    pub(super) fn hosts_of(&self, n: u32) -> (u32, u32) {
        let connection = &self.list[n as usize];
        (connection.client.0, connection.server.0)
    }

    /// Connections there are to be in all.
    pub fn planned(&self) -> u32 {
        self.asked.made_in_all().iter().sum()
    }

    /// Connections that could not be made, on which something has failed, that were to leave and could not,
    /// or of which no call has ended from a time on.
    pub fn stalled(&self, from: u64) -> u32 {
        if self.drawn.is_some() {
            // Most have no call in a short time, so it is asked of all together.
            let goes_on = self.ended.iter().any(|call| call.end >= from);
            let lost = self.planned() - self.list.len() as u32 + self.failed;
            return if goes_on { lost.min(self.planned()) } else { self.planned() };
        }
        let goes_on = |connection: &Connection| match connection.life {
            Life::Open => connection.made > from || connection.last.is_some_and(|at| at >= from),
            Life::Leaving => false,
            Life::Closed => true,
        };
        let well =
            self.list.iter().zip(&self.lost).filter(|(connection, lost)| goes_on(connection) && !**lost);
        self.planned() - well.count() as u32
    }

    fn is_two_sided(&self) -> bool {
        matches!(self.asked.pattern, Pattern::Rpc | Pattern::Barrier)
    }

    /// The server posts receives for a connection.
    fn expect(&mut self, hosts: &mut Hosts, now: u64, n: u32, count: u32) -> Result<(), Error> {
        let (server, qp) = self.list[n as usize].server;
        let (host, addr) = (&mut hosts.list[server as usize], hosts.region.addr());
        let lkey = host.region.ok_or(Error::NoSuchObject)?.lkey;
        let sges = [Sge { addr, len: self.asked.bytes, lkey }];
        let wr = RecvWr { wr_id: u64::from(n) << KIND_BITS | RECEIVE, sges: &sges };
        (0..count).try_for_each(|_| host.nic.post_recv(now_at(now), qp, &wr))
    }

    /// A connection begins half of a call, in its group's slot.
    pub(super) fn begin(&mut self, hosts: &mut Hosts, now: u64, n: u32, part: Part) {
        if let Some(turn) = &mut self.turn {
            let group = (n / turn.groups.size) as usize;
            if group != turn.active || now >= turn.slot_end || turn.next_at.is_some() {
                return turn.parked[group].push((n, part));
            }
            turn.running += 1;
        }
        let posted = match part {
            Part::Request if now >= self.asked.until_ps || self.list[n as usize].life != Life::Open => Ok(()),
            Part::Request => self.ask(hosts, now, n, u64::from(n) << KIND_BITS),
            Part::Response => self.respond(hosts, now, n),
        };
        if posted.is_err() {
            self.lose(n);
        }
    }

    /// One of the calls that are under way on all connections together begins.
    fn begin_drawn(&mut self, hosts: &mut Hosts, now: u64, call: u32) {
        let Some(drawn) = self.drawn.as_mut().filter(|_| now < self.asked.until_ps) else { return };
        let (n, word) = drawn.begin(now, call, self.list.len() as u32);
        if self.ask(hosts, now, n, word).is_err() {
            self.lose(n);
        }
    }

    /// Posts a call's first half; `word` is what its requests are called, but for their kind.
    fn ask(&mut self, hosts: &mut Hosts, now: u64, n: u32, word: u64) -> Result<(), Error> {
        let Asked { by_server, requests, bytes, response, pattern, .. } = self.asked;
        let connection = &mut self.list[n as usize];
        (connection.since, connection.calls) = (now, true);
        connection.unfinished += 1;
        let ((client, qp), (server, at_server)) = (connection.client, connection.server);
        let (near, far) = if by_server { (server, client) } else { (client, server) };
        let requester = if by_server { at_server } else { qp };
        let addr = hosts.region.addr();
        let rkey = hosts.list[far as usize].region.ok_or(Error::NoSuchObject)?.rkey;
        let op = match pattern {
            Pattern::Rpc | Pattern::Barrier => SendOp::Send,
            Pattern::Read => SendOp::Read(addr, rkey),
            Pattern::Write => SendOp::Write(addr, rkey),
        };
        if op == SendOp::Send {
            let host = &mut hosts.list[client as usize];
            let sges = [Sge { addr, len: response, lkey: host.region.ok_or(Error::NoSuchObject)?.lkey }];
            let wr = RecvWr { wr_id: u64::from(n) << KIND_BITS | RECEIVE, sges: &sges };
            host.nic.post_recv(now_at(now), qp, &wr)?;
        }
        let (kind, count) = if op == SendOp::Send { (REQUEST, requests) } else { (ONE_SIDED, 1) };
        for k in 1..=count {
            post(hosts, now, (near, requester), (op, bytes), word | kind, k == count)?;
        }
        self.posted.push(near);
        Ok(())
    }

    /// The server sends what comes back.
    fn respond(&mut self, hosts: &mut Hosts, now: u64, n: u32) -> Result<(), Error> {
        let Asked { requests, response, .. } = self.asked;
        self.expect(hosts, now, n, requests)?;
        self.list[n as usize].unfinished += 1;
        let (server, qp) = self.list[n as usize].server;
        post(hosts, now, (server, qp), (SendOp::Send, response), u64::from(n) << KIND_BITS | RESPONSE, true)?;
        self.posted.push(server);
        Ok(())
    }

    /// A host has a completion.
    fn on_completion(&mut self, hosts: &mut Hosts, now: u64, h: u32, completion: &Completion) {
        let n = (completion.wr_id >> KIND_BITS) as u32;
        if completion.status != Status::Success {
            return self.lose(n);
        }
        let kind = completion.wr_id & ((1 << KIND_BITS) - 1);
        let connection = &mut self.list[n as usize];
        connection.unfinished -= u32::from(kind != RECEIVE);
        if let Some(drawn) = &mut self.drawn {
            let (call, start) = drawn.end(n, completion);
            self.ended.push(Call { connection: n, start, end: now });
            return self.begin_drawn(hosts, now, call);
        }
        match kind {
            RECEIVE if h == connection.server.0 => {
                connection.arrived += 1;
                if connection.arrived == self.asked.requests {
                    connection.arrived = 0;
                    self.on_asked(hosts, now, n);
                }
            }
            RECEIVE | ONE_SIDED => {
                (connection.last, connection.calls) = (Some(now), false);
                let stays = connection.life == Life::Open;
                self.ended.push(Call { connection: n, start: connection.since, end: now });
                self.end_part(now);
                if stays {
                    self.begin(hosts, now, n, Part::Request);
                }
            }
            _ => {}
        }
        self.close_if_done(n);
    }

    /// The server has all messages of a call.
    fn on_asked(&mut self, hosts: &mut Hosts, now: u64, n: u32) {
        if self.asked.pattern == Pattern::Rpc {
            if self.respond(hosts, now, n).is_err() {
                self.lose(n);
            }
            return;
        }
        self.end_part(now);
        self.assembled += 1;
        if self.assembled == self.asked.connections {
            self.assembled = 0;
            (0..self.asked.connections).for_each(|n| self.begin(hosts, now, n, Part::Response));
        }
    }

    /// Something that was begun in the slot has ended.
    fn end_part(&mut self, now: u64) {
        if let Some(turn) = &mut self.turn {
            turn.running = turn.running.saturating_sub(1);
            turn.end_slot(now);
        }
    }

    pub(super) fn lose(&mut self, n: u32) {
        if !core::mem::replace(&mut self.lost[n as usize], true) {
            self.failed += 1;
        }
    }

    /// Begins what is due: first calls, and slots. When the next is.
    fn on_time(&mut self, hosts: &mut Hosts, now: u64, t: &TransportConfig) -> Option<u64> {
        self.come_and_go(hosts, now, t);
        self.close(hosts);
        if let Some(turn) = &mut self.turn {
            turn.end_slot(now);
            if turn.next_at.is_some_and(|at| at <= now) {
                turn.next_at = None;
                turn.active = (turn.active + 1) % turn.parked.len();
                turn.slot_end = now + turn.groups.slot_ps;
                let parked = core::mem::take(&mut turn.parked[turn.active]);
                parked.into_iter().for_each(|(n, part)| self.begin(hosts, now, n, part));
            }
        }
        while let Some((_, n)) = self.starts.pop_if(|(at, _)| *at <= now) {
            match self.drawn {
                Some(_) => self.begin_drawn(hosts, now, n),
                None => self.begin(hosts, now, n, Part::Request),
            }
        }
        let first = self.starts.last().map(|(at, _)| *at);
        let slot = self.next_slot(now);
        let coming = self.comings.last().map(|coming| coming.at);
        first.into_iter().chain(slot).chain(coming).min()
    }

    /// When something happens to the slot, as long as calls begin.
    fn next_slot(&self, now: u64) -> Option<u64> {
        let turn = self.turn.as_ref().filter(|_| now < self.asked.until_ps)?;
        turn.next_at.or((turn.slot_end > now).then_some(turn.slot_end))
    }
}

impl Turn {
    /// The slot's time is over, and all that was begun in it has ended.
    fn end_slot(&mut self, now: u64) {
        if now >= self.slot_end && self.running == 0 && self.next_at.is_none() {
            self.next_at = Some(now + self.groups.switch_ps);
        }
    }
}

fn now_at(now: u64) -> Instant {
    Instant::from_ps(now)
}

/// A queue pair at either end of (client, server).
fn connect_pair(
    now: u64,
    hosts: &mut Hosts,
    (near, far): (u32, u32),
    caps: QpCaps,
    t: &TransportConfig,
) -> Result<(QpId, QpId), Error> {
    let mut make = |h: u32| -> Result<_, Error> {
        let host = &mut hosts.list[h as usize];
        let qp = host.create_rc(caps)?;
        Ok((qp, host.nic.qp_number(qp)?, host.first_psn()))
    };
    let ((own, own_qpn, own_psn), (other, other_qpn, other_psn)) = (make(near)?, make(far)?);
    let plain = hosts.settled_plain((near, far));
    let peer = |host, qpn, rq_psn, sq_psn| Peer { host, qpn, rq_psn, sq_psn, depth: READS, plain };
    let now = now_at(now);
    hosts.list[near as usize].connect(now, own, &peer(far, other_qpn, other_psn, own_psn), t)?;
    hosts.list[far as usize].connect(now, other, &peer(near, own_qpn, own_psn, other_psn), t)?;
    Ok((own, other))
}

fn post(
    hosts: &mut Hosts,
    now: u64,
    (h, qp): (u32, QpId),
    (op, len): (SendOp, u32),
    wr_id: u64,
    signaled: bool,
) -> Result<(), Error> {
    let addr = hosts.region.addr();
    let host = &mut hosts.list[h as usize];
    let lkey = host.region.ok_or(Error::NoSuchObject)?.lkey;
    let wr = SendWr {
        wr_id,
        op,
        flags: SendFlags { signaled, ..SendFlags::default() },
        data: SendData::Sges(&[Sge { addr, len, lkey }]),
        ud: None,
        xrc_srqn: 0,
    };
    host.nic.post_send(now_at(now), qp, &wr)
}

impl Sim {
    /// Makes the connections of the workload.
    pub(crate) fn connect_persistent(&mut self) {
        let Workload::Persistent(work) = &mut self.flows.workload else { return };
        if work.connect(self.now, &mut self.hosts, &self.config.transport).is_err() {
            // All of it is refused, rather than a part measured.
            work.failed = work.planned();
            work.starts.clear();
            work.comings.clear();
        }
        for h in 0..self.hosts.list.len() as u32 {
            self.after_nic(h, false);
        }
        self.wake_by(Source::Flows, self.now);
    }

    /// Begins what the workload has due.
    pub(crate) fn start_due_calls(&mut self) {
        let Workload::Persistent(work) = &mut self.flows.workload else { return };
        let next = work.on_time(&mut self.hosts, self.now, &self.config.transport);
        let mut posted = core::mem::take(&mut work.posted);
        posted.sort_unstable();
        posted.dedup();
        posted.iter().for_each(|h| self.after_nic(*h, false));
        if let Some(at) = next {
            self.wake_by(Source::Flows, at);
        }
    }

    /// A host has a completion of a call; its NIC is driven on by who has found it.
    pub(crate) fn on_call_completion(&mut self, h: u32, completion: &Completion) {
        let Workload::Persistent(work) = &mut self.flows.workload else { return };
        work.on_completion(&mut self.hosts, self.now, h, completion);
        // A call that is drawn may have been posted at another host, whose NIC is to hear of it.
        work.posted.retain(|other| *other != h);
        let due = (!work.closing.is_empty() || !work.posted.is_empty()).then_some(self.now);
        if let Some(at) = due.or(work.next_slot(self.now)) {
            self.wake_by(Source::Flows, at);
        }
    }
}
