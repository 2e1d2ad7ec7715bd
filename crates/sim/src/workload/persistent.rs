//! Connections that last: each has a queue pair at either end from the start on, and calls follow one another
//! on it without a pause (StaR, V; ScaleRPC's groups). What is counted are calls, not flows.

use crate::host::{Hosts, Peer, TransportConfig};
use crate::sim::Sim;
use crate::source::Source;
use crate::workload::Workload;
use adverb_nic::{Completion, Error, QpCaps, QpId, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Status};
use adverb_wire::Instant;

/// READs outstanding, the most that adapters commonly offer.
const READS: u8 = 16;
/// Messages of a call at most.
pub const REQUESTS_MAX: u32 = 64;
/// Words of work requests: the connection, and in the low bits what it was.
const KIND_BITS: u32 = 2;
const ONE_SIDED: u64 = 0;
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
    /// How many.
    pub connections: u32,
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
    /// No call begins after it.
    pub until_ps: u64,
    /// The first call of each connection begins at random within this time.
    pub spread_ps: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Connection {
    client: (u32, QpId),
    server: QpId,
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
enum Part {
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
    list: Vec<Connection>,
    /// First calls that have not begun, the last one first.
    starts: Vec<(u64, u32)>,
    /// `Barrier`: connections whose messages have all come.
    assembled: u32,
    turn: Option<Turn>,
    lost: Vec<bool>,
    /// Hosts that something was posted at.
    posted: Vec<u32>,
}

impl Persistent {
    /// Connections that have not been made. `rng` draws when each begins.
    pub fn new(asked: Asked, rng: &mut fastrand::Rng) -> Persistent {
        let start = |n: u32, rng: &mut fastrand::Rng| (rng.u64(0..=asked.spread_ps), n);
        let mut starts: Vec<(u64, u32)> = (0..asked.connections).map(|n| start(n, rng)).collect();
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
        let lost = vec![false; asked.connections as usize];
        Persistent { asked, starts, turn, lost, ..Persistent::default() }
    }

    /// Makes them all, with receives posted.
    fn connect(&mut self, now: u64, hosts: &mut Hosts, t: &TransportConfig) -> Result<(), Error> {
        let Asked { server, connections, requests, .. } = self.asked;
        let entries = (connections * (2 * requests + 4)).next_power_of_two();
        for h in core::iter::once(server).chain(self.asked.clients.iter().copied()) {
            let host = &mut hosts.list[h as usize];
            host.cq = host.nic.create_cq(entries)?;
        }
        for n in 0..connections {
            let client = self.asked.clients[n as usize % self.asked.clients.len()];
            let (own, at_server) = connect_pair(now, hosts, (client, server), requests, t)?;
            let (client, server) = ((client, own), at_server);
            self.list.push(Connection { client, server, since: 0, arrived: 0, last: None });
            if self.is_two_sided() {
                self.expect(hosts, now, n, requests)?;
            }
        }
        Ok(())
    }

    /// Connections that could not be made, on which something has failed, or of which no call has ended from
    /// a time on.
    pub fn stalled(&self, from: u64) -> u32 {
        let ends = |connection: &Connection| connection.last.is_some_and(|at| at >= from);
        let well = self.list.iter().zip(&self.lost).filter(|(connection, lost)| ends(connection) && !**lost);
        self.asked.connections - well.count() as u32
    }

    fn is_two_sided(&self) -> bool {
        matches!(self.asked.pattern, Pattern::Rpc | Pattern::Barrier)
    }

    /// The server posts receives for a connection.
    fn expect(&mut self, hosts: &mut Hosts, now: u64, n: u32, count: u32) -> Result<(), Error> {
        let (host, addr) = (&mut hosts.list[self.asked.server as usize], hosts.region.addr());
        let lkey = host.region.ok_or(Error::NoSuchObject)?.lkey;
        let sges = [Sge { addr, len: self.asked.bytes, lkey }];
        let wr = RecvWr { wr_id: u64::from(n) << KIND_BITS | RECEIVE, sges: &sges };
        (0..count).try_for_each(|_| host.nic.post_recv(now_at(now), self.list[n as usize].server, &wr))
    }

    /// A connection begins half of a call, in its group's slot.
    fn begin(&mut self, hosts: &mut Hosts, now: u64, n: u32, part: Part) {
        if let Some(turn) = &mut self.turn {
            let group = (n / turn.groups.size) as usize;
            if group != turn.active || now >= turn.slot_end || turn.next_at.is_some() {
                return turn.parked[group].push((n, part));
            }
            turn.running += 1;
        }
        let posted = match part {
            Part::Request if now >= self.asked.until_ps => Ok(()),
            Part::Request => self.ask(hosts, now, n),
            Part::Response => self.respond(hosts, now, n),
        };
        if posted.is_err() {
            self.lose(n);
        }
    }

    fn ask(&mut self, hosts: &mut Hosts, now: u64, n: u32) -> Result<(), Error> {
        let Asked { server, by_server, requests, bytes, response, pattern, .. } = self.asked;
        let connection = &mut self.list[n as usize];
        connection.since = now;
        let (client, qp) = connection.client;
        let (near, far) = if by_server { (server, client) } else { (client, server) };
        let requester = if by_server { connection.server } else { qp };
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
            post(hosts, now, (near, requester), (op, bytes), u64::from(n) << KIND_BITS | kind, k == count)?;
        }
        self.posted.push(near);
        Ok(())
    }

    /// The server sends what comes back.
    fn respond(&mut self, hosts: &mut Hosts, now: u64, n: u32) -> Result<(), Error> {
        let Asked { server, requests, response, .. } = self.asked;
        self.expect(hosts, now, n, requests)?;
        let qp = self.list[n as usize].server;
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
        match completion.wr_id & ((1 << KIND_BITS) - 1) {
            RECEIVE if h == self.asked.server => {
                let connection = &mut self.list[n as usize];
                connection.arrived += 1;
                if connection.arrived == self.asked.requests {
                    connection.arrived = 0;
                    self.on_asked(hosts, now, n);
                }
            }
            RECEIVE | ONE_SIDED => {
                let connection = &mut self.list[n as usize];
                connection.last = Some(now);
                self.ended.push(Call { connection: n, start: connection.since, end: now });
                self.end_part(now);
                self.begin(hosts, now, n, Part::Request);
            }
            _ => {}
        }
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

    fn lose(&mut self, n: u32) {
        if !core::mem::replace(&mut self.lost[n as usize], true) {
            self.failed += 1;
        }
    }

    /// Begins what is due: first calls, and slots. When the next is.
    fn on_time(&mut self, hosts: &mut Hosts, now: u64) -> Option<u64> {
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
            self.begin(hosts, now, n, Part::Request);
        }
        let first = self.starts.last().map(|(at, _)| *at);
        let slot = self.next_slot(now);
        first.into_iter().chain(slot).min()
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
    requests: u32,
    t: &TransportConfig,
) -> Result<(QpId, QpId), Error> {
    // Requests of the call before may wait for their acknowledgement.
    let caps = QpCaps {
        max_send_wr: 4 * requests,
        max_send_sge: 1,
        max_recv_wr: 2 * requests,
        max_recv_sge: 1,
        ..QpCaps::default()
    };
    let mut make = |h: u32| -> Result<_, Error> {
        let host = &mut hosts.list[h as usize];
        let qp = host.create_rc(caps)?;
        Ok((qp, host.nic.qp_number(qp)?, host.first_psn()))
    };
    let ((own, own_qpn, own_psn), (other, other_qpn, other_psn)) = (make(near)?, make(far)?);
    let peer = |host, qpn, rq_psn, sq_psn| Peer { host, qpn, rq_psn, sq_psn, depth: READS };
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
            work.failed = work.asked.connections;
            work.starts.clear();
        }
        for h in 0..self.hosts.list.len() as u32 {
            self.after_nic(h, false);
        }
        self.wake_by(Source::Flows, self.now);
    }

    /// Begins what the workload has due.
    pub(crate) fn start_due_calls(&mut self) {
        let Workload::Persistent(work) = &mut self.flows.workload else { return };
        let next = work.on_time(&mut self.hosts, self.now);
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
        work.posted.clear();
        if let Some(at) = work.next_slot(self.now) {
            self.wake_by(Source::Flows, at);
        }
    }
}
