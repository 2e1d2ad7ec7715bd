//! Hosts: the real NIC on one link, its queue pairs, and what they are used for.

pub(crate) mod ends;
pub mod hardware;
#[allow(unsafe_code, reason = "hosts' memory is accessed through its address, as NICs do")]
pub mod memory;
pub mod one_rma;

use crate::fabric::link::FRAMING;
use crate::fabric::topology::Routes;
use crate::host::hardware::{Profile, Unit};
use crate::host::memory::{Buffer, Chip};
use crate::host::one_rma::Rma;
use crate::sim::Config;
use crate::watch::trace::seed_of;
use adverb_nic::memory::prefetch;
use adverb_nic::telemetry::TELEMETRY_BYTES;
use adverb_nic::*;
use adverb_wire::{Duration, Gid, Instant, Opcode, Operation, Psn, QpNumber, Service};
use std::collections::BTreeMap;

/// How queue pairs of a fabric are set up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TransportConfig {
    /// Path MTU.
    pub mtu: Mtu,
    /// Packets that a queue pair may have unacknowledged.
    pub window: u32,
    /// Packets for each acknowledgement asked for; 0 leaves it to the NIC.
    pub ack_every: u32,
    /// Local ACK timeout: 4.096 us * 2^n, 0 for none.
    pub timeout: u8,
    /// Transport retries, up to 7.
    pub retries: u8,
    /// The local ACK timeout of plain RC, if it is not a power of two.
    pub rto: Option<Duration>,
    /// Retries do not run out.
    pub retry_forever: bool,
    /// Frames that a queue pair sends before the next one's turn.
    pub quantum: u32,
    /// WQEs that a fetch of a cross-channel queue brings; what its hardware does, or the NIC's own way, if
    /// none.
    pub prefetch: Option<u8>,
    /// WQEs that programs write must name their place and their queue pair.
    pub wqe_checks: bool,
    /// NICs tell what chains of WQEs do: [`Sim::next_chain_event`](crate::Sim::next_chain_event).
    pub watch_chains: bool,
    /// What an error completion does to WAITs.
    pub wait_on_error: WaitOnError,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Packets may be marked by ECN.
    pub ecn: bool,
    /// Traffic class of flows.
    pub class: u8,
    /// Selective recovery and BDP flow control; `None` for plain RC.
    pub irn: Option<IrnConfig>,
    /// StaR: what hosts offer that have no choice of their own in [`Config::star_of`]. The oracle's work
    /// takes any; flows find their queue pairs by index, and so are for NICs without it.
    pub star: Option<StarConfig>,
    /// Flows between the same two hosts share a queue pair, and wait for one another.
    pub share_qp: bool,
    /// The headers that IRN adds take no time on links, as in the paper's own simulations.
    pub free_irn_headers: bool,
}

impl Default for TransportConfig {
    fn default() -> Self {
        TransportConfig {
            mtu: Mtu::M1024,
            window: 1 << 20,
            ack_every: 1,
            timeout: 7,
            retries: 7,
            rto: None,
            retry_forever: false,
            quantum: 1,
            prefetch: None,
            wqe_checks: false,
            watch_chains: false,
            wait_on_error: WaitOnError::default(),
            congestion: CongestionControl::Fixed,
            ecn: false,
            class: 0,
            irn: None,
            star: None,
            share_qp: false,
            free_irn_headers: false,
        }
    }
}

/// Queue pairs rest for this long before they are used for another flow, so that late packets of the
/// one before are not taken for its own.
pub const QP_REST: Duration = Duration::from_us(500);

/// Completion queue entries of a host: it polls whenever something has happened.
const CQ_ENTRIES: u32 = 64;

/// Marks what [`Host::flow_of`] says as the receiving end.
pub const RECEIVER: u32 = 1 << 31;
/// No flow.
pub const NO_FLOW: u32 = u32::MAX;

/// What a queue pair is used for.
#[derive(Clone, Copy)]
#[repr(Rust, packed(4))]
struct Use {
    /// The flow that uses it, with [`RECEIVER`] set at the receiving end; when it has none, the next one in
    /// its row.
    word: u32,
    /// When its flow ended; [`IN_USE`] while it has one.
    since: u64,
}

const _: () = assert!(core::mem::size_of::<Use>() == 12);

const IN_USE: u64 = u64::MAX;

/// A row of queue pairs without a flow, the longest without one first, by index; linked through
/// [`Use::word`].
#[derive(Clone, Copy)]
struct Idle {
    first: u32,
    last: u32,
}

/// No queue pair.
const NOBODY: u32 = u32::MAX;

/// Packets with which a queue pair that is paced makes up for a port that was busy.
const PACING_BURST: u32 = 2;

/// What stands in a host's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Device {
    /// A NIC with queue pairs.
    Queues,
    /// A 1RMA NIC.
    OneRma,
    /// Both, on one link.
    Both,
}

impl Device {
    /// What the hosts of a configuration have.
    pub fn of(config: &Config) -> Device {
        match &config.one_rma {
            None => Device::Queues,
            Some(rma) if rma.beside_queues => Device::Both,
            Some(_) => Device::OneRma,
        }
    }

    /// It has queue pairs.
    pub fn has_queues(self) -> bool {
        self != Device::OneRma
    }

    /// It speaks 1RMA.
    pub fn has_one_rma(self) -> bool {
        self != Device::Queues
    }
}

/// All hosts, and what they share.
pub(crate) struct Hosts {
    pub list: Vec<Host>,
    /// Their 1RMA halves, where they have one.
    pub one_rma: Rma,
    /// The frame that a NIC gives.
    pub out: TxFrame,
    /// Bytes on a link of a full packet in the middle of a message.
    pub size_full: u32,
    /// Bytes on a link of the header for what switches stamp; 0 where they do not.
    pub stamps: u16,
    /// Dropped after the hosts, whose NICs name its address.
    pub region: Buffer,
}

impl Hosts {
    /// The hosts of a fabric.
    pub fn new(config: &Config, routes: &Routes) -> Result<Hosts, crate::Error> {
        let t = &config.topology;
        let region = Buffer::new(config.flow_bytes_max.max(8) as usize);
        let device = Device::of(config);
        let rates: Vec<u64> = routes.up.iter().map(|up| t.cables[*up as usize / 2].rate).collect();
        let mut list = Vec::with_capacity(t.hosts as usize);
        let mut groups = BTreeMap::new();
        for h in 0..t.hosts {
            let up = routes.up[h as usize];
            let seed = seed_of(config.seed, "host", u64::from(h));
            let refuse = |e: Error| crate::Error::new("hosts", format!("host {h}: {e:?}"));
            let is_plain = config.plain_hosts.contains(&h);
            let own_star = config.star_of.get(h as usize).copied();
            let transport = &TransportConfig {
                irn: config.transport.irn.filter(|_| !is_plain),
                star: own_star.unwrap_or(config.transport.star),
                ..config.transport
            };
            let hardware = config.hardware_of(h);
            let stepped = device.has_queues() && !hardware.is_neutral();
            let costs = stepped.then_some(&hardware);
            let mut host = Host::new(h, (up, rates[h as usize]), transport, costs, seed).map_err(refuse)?;
            host.register(&region).map_err(refuse)?;
            if stepped {
                let frame = config.transport.mtu.bytes() + 82;
                let seed = seed_of(config.seed, "hardware", u64::from(h));
                let mut unit = Unit::new(hardware, rates[h as usize], frame, seed);
                if hardware.pcie_group > 0 {
                    let first = || (unit.to_nic.clone(), unit.to_memory.clone());
                    let (to_nic, to_memory) = groups.entry(hardware.pcie_group).or_insert_with(first).clone();
                    (unit.to_nic, unit.to_memory) = (to_nic, to_memory);
                }
                host.unit = Some(Box::new(unit));
            }
            host.device = device;
            host.is_plain = device == Device::Queues && !stepped;
            list.push(host);
        }
        let one_rma = match &config.one_rma {
            Some(rma) => Rma::new(config, rma, &rates, &region)?,
            None => Rma::default(),
        };
        let stamped = config.transport.congestion.needs_telemetry();
        let stamps = if stamped { TELEMETRY_BYTES as u16 } else { 0 };
        let size_full = full_size(&config.transport) + u32::from(stamps);
        Ok(Hosts { list, one_rma, out: TxFrame::default(), size_full, stamps, region })
    }
}

/// Bytes on a link of a packet in the middle of a long WRITE.
fn full_size(t: &TransportConfig) -> u32 {
    let service = if t.irn.is_some() { Service::Irn } else { Service::Rc };
    let opcode = Opcode::new(service, Operation::WriteMiddle);
    let free = if t.free_irn_headers { opcode.irn_overhead() } else { 0 };
    t.mtu.bytes() + 20 + 8 + 12 + 4 + (opcode.ext_len() - free) as u32 + FRAMING
}

/// A host. What every frame needs stands first, in one cache line before the NIC's own.
#[repr(C, align(64))]
pub struct Host {
    /// Link that it sends on.
    pub up: u32,
    /// Its number.
    pub number: u32,
    /// Its protection domain.
    pub pd: PdId,
    /// Its completion queue.
    pub cq: CqId,
    /// Region for flows.
    pub region: Option<MrInfo>,
    /// What stands in its slot.
    pub device: Device,
    /// It has queue pairs only, and they cost nothing: what the data path asks first.
    pub is_plain: bool,
    /// It has both NICs, and the turn is 1RMA's.
    pub(crate) one_rma_first: bool,
    /// Its cost model, when it is not neutral.
    pub unit: Option<Box<Unit>>,
    /// Memory on its NIC, which is reached without PCIe.
    pub chip: Chip,
    /// Its NIC.
    pub nic: Nic,
    /// Its address.
    pub gid: Gid,
    /// By queue pair index.
    uses: Vec<Use>,
    /// Queue pairs without a flow. The second row is of those that can receive SENDs.
    idle: [Idle; 2],
    rng: fastrand::Rng,
    /// What its NIC is made with when it starts.
    config: NicConfig,
}

/// The address of a host: 10.0.0.0/8 plus its number plus one, as an IPv4-mapped GID.
#[inline]
pub fn address(host: u32) -> Gid {
    Gid((0xffff_0a00_0000 | u128::from((host + 1) & 0xff_ffff)).to_be_bytes())
}

/// The host that has an address.
#[inline]
pub fn host_of(gid: &Gid) -> u32 {
    (u128::from_be_bytes(gid.0) as u32 & 0xff_ffff).wrapping_sub(1)
}

impl Host {
    /// A host with its NIC on a link with its rate in bits/s, not connected to anything. Of a NIC that costs
    /// something, each step is taken singly.
    pub fn new(
        number: u32,
        (up, line_rate): (u32, u64),
        transport: &TransportConfig,
        costs: Option<&Profile>,
        seed: u64,
    ) -> Result<Host, Error> {
        let gid = address(number);
        let config = NicConfig {
            gids: vec![gid],
            qpn_base: (number % 255 + 1) << 16,
            qpns_in_order: true,
            max_unacked_packets: transport.window,
            ack_every: transport.ack_every,
            stepped: costs.is_some(),
            prefetch: transport
                .prefetch
                .map(|wqes| (wqes, wqes))
                .unwrap_or_else(|| costs.map_or(NicConfig::default().prefetch, Profile::prefetch)),
            wqe_checks: transport.wqe_checks,
            watch_chains: transport.watch_chains,
            wait_on_error: transport.wait_on_error,
            irn: transport.irn,
            star: transport.star,
            rto: transport.rto,
            retry_forever: transport.retry_forever,
            quantum: transport.quantum,
            congestion: transport.congestion,
            line_rate,
            pacing_burst: PACING_BURST,
            ..NicConfig::default()
        };
        let mut nic = Nic::new(config.clone(), seed);
        let pd = nic.memory().alloc_pd()?;
        let cq = nic.create_cq(CQ_ENTRIES)?;
        Ok(Host {
            nic,
            up,
            number,
            pd,
            cq,
            gid,
            region: None,
            device: Device::Queues,
            is_plain: true,
            one_rma_first: false,
            chip: Chip::default(),
            uses: Vec::new(),
            idle: [Idle { first: NOBODY, last: NOBODY }; 2],
            unit: None,
            rng: fastrand::Rng::with_seed(crate::watch::trace::mix(seed)),
            config,
        })
    }

    /// Asks for what a frame needs first; for `all` of the NIC that it needs, if none of it is near.
    #[inline(always)]
    pub(crate) fn prefetch(&self, all: bool) {
        prefetch(&self.up);
        if all { self.nic.prefetch() } else { prefetch(&self.nic) }
    }

    /// Asks for whose a queue pair number is, where it is likely to be found, and the flows' region.
    #[inline]
    pub(crate) fn prefetch_owner(&self, number: QpNumber) {
        self.nic.prefetch_owner(number, self.region.map(|region| region.lkey));
    }

    /// Asks for where a queue pair is found, and the flows' region.
    #[inline]
    pub(crate) fn prefetch_tables(&self, qp: u32) {
        self.nic.prefetch_tables(qp, self.region.map(|region| region.lkey));
    }

    /// Asks for a queue pair, when where it is found has come.
    #[inline]
    pub(crate) fn prefetch_qp(&self, qp: u32) {
        self.nic.prefetch_qp(qp, self.region.map(|region| region.lkey));
    }

    /// Registers the region that flows read and write.
    pub fn register(&mut self, buffer: &Buffer) -> Result<(), Error> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        self.region = Some(buffer.register(&mut self.nic, self.pd, access)?);
        Ok(())
    }

    /// The host starts anew with a NIC that knows nothing. Its queue pair numbers are others than before,
    /// `after` further, so that nobody takes late packets of connections that are gone for those of new ones.
    /// Flows do not survive this.
    pub(crate) fn reboot(&mut self, seed: u64, after: u32) {
        let qpn_base = ((self.number + after) % 255 + 1) << 16;
        let mut nic = Nic::new(NicConfig { qpn_base, ..self.config.clone() }, seed);
        // A NIC without objects has room for the first ones.
        if let (Ok(pd), Ok(cq)) = (nic.memory().alloc_pd(), nic.create_cq(CQ_ENTRIES)) {
            (self.pd, self.cq) = (pd, cq);
        }
        self.nic = nic;
        (self.region, self.uses) = (None, Vec::new());
        self.idle = [Idle { first: NOBODY, last: NOBODY }; 2];
    }

    /// A queue pair for a flow, which may have to receive a SEND: one that has rested, or a new one.
    pub fn take_qp(&mut self, now: u64, receives: bool) -> Result<QpId, Error> {
        let idle = &mut self.idle[usize::from(receives)];
        if let Some(first) = self.uses.get(idle.first as usize).copied()
            && now.saturating_sub(first.since) >= QP_REST.as_ps()
        {
            let index = idle.first;
            idle.first = first.word;
            self.uses[index as usize] = Use { word: NO_FLOW, since: IN_USE };
            return self.nic.qp_at(index as u16).ok_or(Error::NoSuchObject);
        }
        let receives = u32::from(receives);
        let caps = QpCaps {
            max_send_wr: 1,
            max_send_sge: 1,
            max_recv_wr: receives,
            max_recv_sge: receives,
            ..QpCaps::default()
        };
        let qp = self.create_rc(caps)?;
        if self.uses.len() <= qp.index() {
            self.uses.resize(qp.index() + 1, Use { word: NO_FLOW, since: IN_USE });
        }
        Ok(qp)
    }

    /// The flow of a queue pair, with [`RECEIVER`] set at the receiving end; [`NO_FLOW`] if it has none.
    #[inline]
    pub fn flow_of(&self, qp: u32) -> u32 {
        match self.uses.get(qp as usize) {
            Some(of) if of.since == IN_USE => of.word,
            _ => NO_FLOW,
        }
    }

    /// Queue pairs that have a flow, by index, and the flow's place.
    pub(crate) fn with_flows(&self) -> Vec<(u16, u32)> {
        let has = |of: &Use| of.since == IN_USE && { of.word } != NO_FLOW;
        let used = self.uses.iter().enumerate().filter(|(_, of)| has(of));
        used.map(|(index, of)| (index as u16, of.word & !RECEIVER)).collect()
    }

    /// The queue pair is a flow's.
    pub(crate) fn set_flow(&mut self, qp: QpId, flow: u32) {
        self.uses[qp.index()].word = flow;
    }

    /// The flow of the queue pair with this index is done.
    pub fn give_qp(&mut self, now: u64, index: u16, receives: bool) {
        let index = u32::from(index);
        self.uses[index as usize] = Use { word: NOBODY, since: now };
        let idle = &mut self.idle[usize::from(receives)];
        match self.uses.get_mut(idle.last as usize).filter(|_| idle.first != NOBODY) {
            Some(last) => last.word = index,
            None => idle.first = index,
        }
        idle.last = index;
    }

    /// An RC queue pair of the host's one domain and completion queue, in RESET.
    pub fn create_rc(&mut self, caps: QpCaps) -> Result<QpId, Error> {
        self.nic.create_qp(&QpInit::rc(self.pd, self.cq, caps))
    }

    /// A first PSN.
    pub fn first_psn(&mut self) -> Psn {
        Psn::new(self.rng.u32(..))
    }

    /// It offers IRN to its peers.
    pub(crate) fn offers_irn(&self) -> bool {
        self.config.irn.is_some()
    }

    /// Connection set-up tells it whether a peer offers IRN; otherwise hellos do.
    pub(crate) fn settles_irn(&self) -> bool {
        self.config.irn.is_some_and(|irn| irn.agreed.is_some())
    }

    /// Takes a queue pair to RTS towards a peer.
    pub fn connect(&mut self, now: Instant, qp: QpId, peer: &Peer, t: &TransportConfig) -> Result<(), Error> {
        use QpAttrMask as M;
        let (mut a, _) = self.nic.query_qp(qp)?;
        if a.state != QpState::Reset {
            a.state = QpState::Reset;
            self.nic.modify_qp(now, qp, &a, M::STATE)?;
        }
        a.state = QpState::Init;
        a.port = 1;
        a.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        self.nic.modify_qp(now, qp, &a, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS)?;
        if peer.plain {
            self.nic.offer_irn(qp, false)?;
        }
        a.state = QpState::Rtr;
        a.path_mtu = t.mtu;
        a.dest_qpn = peer.qpn;
        a.rq_psn = peer.rq_psn;
        a.sq_psn = peer.sq_psn;
        a.av.dgid = address(peer.host);
        a.av.traffic_class = t.class << 2 | if t.ecn { 2 } else { 0 };
        a.path = PathId(u16::from(t.class));
        a.max_dest_rd_atomic = peer.depth;
        a.max_rd_atomic = peer.depth;
        a.min_rnr_timer = 1;
        let rtr = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        self.nic.modify_qp(now, qp, &a, rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER)?;
        a.state = QpState::Rts;
        a.timeout = t.timeout;
        a.retry_cnt = t.retries;
        a.rnr_retry = 7;
        let rts = M::STATE | M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        self.nic.modify_qp(now, qp, &a, rts)
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its host.
    pub host: u32,
    /// Its queue pair.
    pub qpn: adverb_wire::QpNumber,
    /// First PSN that it sends.
    pub rq_psn: Psn,
    /// First PSN that it expects.
    pub sq_psn: Psn,
    /// READs and atomics outstanding, each way.
    pub depth: u8,
    /// The connection is not to speak IRN, whatever this host offers: its program wants plain RC, or
    /// connection set-up has told that the peer does not know it.
    pub plain: bool,
}
