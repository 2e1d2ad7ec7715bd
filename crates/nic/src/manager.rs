//! The NIC's side of the connection manager: its messages are datagrams of queue pair 1, of which no program
//! has the queues; its times are the NIC's.

use crate::cm::{Cm, CmConfig, CmCounters, CmEvent, Outgoing};
use crate::event::Event;
use crate::frame::TxFrame;
use crate::ids::PathId;
use crate::memory::{Payload, QueueMemory};
use crate::nic::Nic;
use crate::random::Seed;
use crate::state::NicState;
use adverb_wire::cm::{GSI_QKEY, MAD_LEN};
use adverb_wire::{
    Bth, Deth, Flow, Gid, Instant, Opcode, Operation, Packet, Psn, QpNumber, ROCE_UDP_PORT, Service,
};

/// Stands for the connection manager among the indexes of timers.
pub(crate) const INDEX: u32 = u32::MAX - 1;
/// Hop limit of its datagrams.
const HOP_LIMIT: u8 = 64;

/// A connection manager, and what its datagrams need.
pub(crate) struct Manager {
    pub cm: Cm,
    /// Where a datagram's payload stands until the driver has sent it; from the first one on.
    body: Option<QueueMemory>,
    psn: Psn,
    /// The earliest time that timers were entered for; `NEVER` for none.
    entered: Instant,
    /// The driver was told of events and has not taken them all.
    told: bool,
}

impl Manager {
    pub fn new(config: CmConfig, own: Vec<Gid>, seed: Seed) -> Manager {
        let cm = Cm::new(config, own, seed);
        Manager { cm, body: None, psn: Psn::default(), entered: Instant::NEVER, told: false }
    }

    /// The first message of a peer's program has come for a queue pair.
    #[cold]
    pub fn heard(&mut self, number: QpNumber, nic: &mut NicState) {
        self.cm.heard(number);
        self.announce(nic);
    }

    /// Tells the driver that there are events, once until it has taken them.
    fn announce(&mut self, nic: &mut NicState) {
        if self.cm.has_events() && !self.told {
            self.told = true;
            nic.event(Event::ConnectionManager);
        }
    }
}

/// The connection manager, where [`NicConfig::cm`](crate::NicConfig::cm) asks for one.
impl Nic {
    /// Calls the connection manager. `None` where there is none. Messages leave with
    /// [`Nic::next_frame`], events are announced by [`Event::ConnectionManager`].
    pub fn with_cm<R>(&mut self, call: impl FnOnce(&mut Cm) -> R) -> Option<R> {
        let manager = self.manager.as_deref_mut()?;
        let result = call(&mut manager.cm);
        self.after_management();
        Some(result)
    }

    /// See [`Cm::is_parting`].
    pub fn is_parting(&self) -> bool {
        self.manager.as_deref().is_some_and(|manager| manager.cm.is_parting())
    }

    /// The oldest event of the connection manager that has not been taken.
    pub fn next_cm_event(&mut self) -> Option<CmEvent> {
        let manager = self.manager.as_deref_mut()?;
        let event = manager.cm.next_event();
        manager.told &= manager.cm.has_events();
        event
    }

    /// What the connection manager has counted.
    pub fn cm_counters(&self) -> Option<&CmCounters> {
        self.manager.as_deref().map(|manager| manager.cm.counters())
    }

    /// A datagram for queue pair 1.
    #[cold]
    pub(crate) fn on_management(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let is_datagram = packet.bth.opcode == Opcode::new(Service::Ud, Operation::SendOnly);
        let counters = &mut self.state.counters;
        if !is_datagram {
            counters.drop_wrong_service += 1;
            return;
        }
        if packet.deth.qkey != GSI_QKEY {
            counters.drop_qkey += 1;
            return;
        }
        let Some(manager) = self.manager.as_deref_mut() else { return };
        let mut mad = [0; MAD_LEN];
        // Of another length it is counted there.
        let len = payload.len().min(MAD_LEN);
        payload.slice(0, len).read(0, &mut mad[..len]);
        let bytes = if payload.len() == MAD_LEN { &mad[..] } else { &[] };
        manager.cm.receive(now, packet.flow.src, bytes);
        self.after_management();
    }

    /// The connection manager's times.
    #[cold]
    pub(crate) fn on_management_timer(&mut self, now: Instant) {
        let Some(manager) = self.manager.as_deref_mut() else { return };
        manager.entered = Instant::NEVER;
        manager.cm.on_timer(now);
        self.after_management();
    }

    /// Whether its messages wait to be sent.
    pub(crate) fn has_mads(&self) -> bool {
        self.manager.as_deref().is_some_and(|manager| manager.cm.has_mads())
    }

    fn after_management(&mut self) {
        let Some(manager) = self.manager.as_deref_mut() else { return };
        self.state.has_effects |= manager.cm.has_mads();
        if let Some(at) = manager.cm.next_deadline()
            && at < manager.entered
        {
            manager.entered = at;
            self.timers.enter(at, INDEX);
        }
        manager.announce(&mut self.state);
    }

    /// Its next message as a frame.
    #[cold]
    pub(crate) fn next_management(&mut self, out: &mut TxFrame) -> bool {
        let Some(manager) = self.manager.as_deref_mut() else { return false };
        if self.paths.is_blocked(PathId::DEFAULT) || !manager.cm.has_mads() {
            return false;
        }
        if manager.body.is_none() {
            manager.body = QueueMemory::new(MAD_LEN).ok();
        }
        let Some(body) = &manager.body else { return false };
        let Some(Outgoing { to, bytes }) = manager.cm.next_mad() else { return false };
        body.write(0, &bytes);
        out.payload.clear();
        out.payload.push(body.span(0, MAD_LEN));
        let flow = Flow {
            src: self.state.gid,
            dst: to,
            src_port: ROCE_UDP_PORT,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
        };
        let bth = Bth {
            opcode: Opcode::new(Service::Ud, Operation::SendOnly),
            dest_qp: QpNumber::GSI,
            psn: manager.psn,
            ..Bth::default()
        };
        manager.psn = manager.psn.next();
        let deth = Deth { qkey: GSI_QKEY, src_qp: QpNumber::GSI };
        out.packet = Packet { flow, bth, deth, payload_len: MAD_LEN as u32, ..Packet::default() };
        out.path = PathId::DEFAULT;
        let counters = &mut self.state.counters;
        counters.tx_packets += 1;
        counters.tx_bytes += MAD_LEN as u64;
        true
    }
}
