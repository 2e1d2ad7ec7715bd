//! Queue pairs that flows share: all flows between two hosts, in the order of their starts, on one
//! connection, as programs do that cannot afford more (1RMA section 2.1). A flow waits for those before it:
//! that is what is to be seen.

use crate::host::Peer;
use crate::sim::Sim;
use crate::workload::flows::Verb;
use adverb_nic::{Completion, Error, QpCaps, QpId, SendData, SendFlags, SendOp, SendWr, Sge, Status};
use adverb_wire::{Instant, QpNumber};
use std::collections::{BTreeMap, VecDeque};

/// Requests on a queue pair at once; more wait in software.
const DEPTH: u32 = 128;
/// READs outstanding, the most that adapters commonly offer.
const READS: u8 = 16;

/// One way of a connection: requests of its first end.
struct Connection {
    requester: QpId,
    /// The requester's number and the responder's.
    numbers: (QpNumber, QpNumber),
    posted: u32,
    waiting: VecDeque<u32>,
}

/// Connections by requester and responder.
#[derive(Default)]
pub(crate) struct Connections {
    connections: BTreeMap<(u32, u32), Connection>,
}

impl Sim {
    /// Starts a flow on the connection of its hosts, which may have to be made.
    pub(crate) fn start_shared(&mut self, number: u32) -> Result<(), Error> {
        let ends = self.flows.list[number as usize].spec.ends();
        if !self.flows.connections.connections.contains_key(&ends) {
            let (requester, numbers) = self.connect_shared(ends)?;
            let connection = Connection { requester, numbers, posted: 0, waiting: VecDeque::new() };
            self.flows.connections.connections.insert(ends, connection);
        }
        let Some(connection) = self.flows.connections.connections.get_mut(&ends) else {
            return Err(Error::NoSuchObject);
        };
        connection.waiting.push_back(number);
        let numbers = connection.numbers;
        self.flows.began();
        if self.watch.journal.is_on() {
            self.note_flow(number, numbers, false);
        }
        self.post_shared(ends)?;
        self.after_nic(ends.0, false);
        Ok(())
    }

    fn connect_shared(&mut self, (near, far): (u32, u32)) -> Result<(QpId, (QpNumber, QpNumber)), Error> {
        let (now, t) = (Instant::from_ps(self.now), self.config.transport);
        let make = |sim: &mut Sim, h: u32| -> Result<_, Error> {
            let host = &mut sim.hosts.list[h as usize];
            let caps = QpCaps { max_send_wr: DEPTH, max_send_sge: 1, ..QpCaps::default() };
            let qp = host.create_rc(caps)?;
            Ok((qp, host.nic.qp_number(qp)?, host.first_psn()))
        };
        let (requester, qpn_near, psn_near) = make(self, near)?;
        let (responder, qpn_far, psn_far) = make(self, far)?;
        let plain = self.hosts.settled_plain((near, far));
        let peer = |host, qpn, rq_psn, sq_psn| Peer { host, qpn, rq_psn, sq_psn, depth: READS, plain };
        self.hosts.list[near as usize].connect(now, requester, &peer(far, qpn_far, psn_far, psn_near), &t)?;
        self.hosts.list[far as usize].connect(
            now,
            responder,
            &peer(near, qpn_near, psn_near, psn_far),
            &t,
        )?;
        Ok((requester, (qpn_near, qpn_far)))
    }

    /// Posts what waits, as far as the queue has room.
    fn post_shared(&mut self, ends: (u32, u32)) -> Result<(), Error> {
        let (now, addr) = (Instant::from_ps(self.now), self.region_addr());
        let rkey = self.hosts.list[ends.1 as usize].region.ok_or(Error::NoSuchObject)?.rkey;
        let Some(connection) = self.flows.connections.connections.get_mut(&ends) else { return Ok(()) };
        let host = &mut self.hosts.list[ends.0 as usize];
        let lkey = host.region.ok_or(Error::NoSuchObject)?.lkey;
        while connection.posted < DEPTH
            && let Some(number) = connection.waiting.pop_front()
        {
            let spec = self.flows.list[number as usize].spec;
            let wr = SendWr {
                wr_id: u64::from(number),
                op: if spec.op == Verb::Read { SendOp::Read(addr, rkey) } else { SendOp::Write(addr, rkey) },
                flags: SendFlags { signaled: true, ..SendFlags::default() },
                data: SendData::Sges(&[Sge { addr, len: spec.bytes, lkey }]),
                ud: None,
                xrc_srqn: 0,
            };
            host.nic.post_send(now, connection.requester, &wr)?;
            connection.posted += 1;
        }
        Ok(())
    }

    /// A flow on a shared queue pair has ended; for its bytes' arrival its completion counts.
    pub(crate) fn on_shared_completion(&mut self, completion: &Completion) {
        let number = completion.wr_id as u32;
        let ends = self.flows.list[number as usize].spec.ends();
        if let Some(connection) = self.flows.connections.connections.get_mut(&ends) {
            connection.posted -= 1;
        }
        self.end_transfer(number, completion.status == Status::Success);
        // A queue pair in error refuses posts, and flows that it was to carry do not end: they are counted as
        // unfinished.
        let _ = self.post_shared(ends);
    }
}
