//! A small deterministic world around some NICs: one wire between them with faults, virtual time, and
//! memory that tests read and write. Every frame is emitted to bytes and parsed again on its way, and
//! must come out as it went in.
#![allow(dead_code, reason = "each test binary uses its part of the world")]

use adverb_nic::*;
use adverb_wire::packet::WireExtra;
use adverb_wire::{Duration, Gid, Instant, Key, Packet, Psn, QpNumber};
use std::cell::UnsafeCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;

/// Chances of each fault, per frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub corrupt: f64,
    /// Held back for longer than any retransmission timeout.
    pub late: f64,
    /// An ECN-capable frame is marked.
    pub mark: f64,
}

/// Registered memory of one node. The NIC reads and writes it through its address, so it is a cell.
pub struct Memory {
    bytes: Box<[UnsafeCell<u64>]>,
    len: usize,
    pub mr: MrInfo,
}

impl Memory {
    /// Zeroed memory, registered.
    pub fn register(with: &mut adverb_nic::memory::Memory, pd: PdId, len: usize, access: Access) -> Memory {
        // Zeroed by the system, so that memory of gigabytes takes none before it is touched.
        let words = Box::into_raw(vec![0u64; len.div_ceil(8)].into_boxed_slice());
        // SAFETY: the box's own slice; a cell has the layout of what it holds.
        let bytes = unsafe { Box::from_raw(words as *mut [UnsafeCell<u64>]) };
        let addr = bytes.as_ptr() as u64;
        let init = MrInit { pd, addr, len: len as u64, iova: addr, access };
        // SAFETY: the memory outlives the last call into its NIC in every test.
        let mr = unsafe { with.reg_mr(&init) }.unwrap();
        Memory { bytes, len, mr }
    }

    pub fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let start = self.bytes.as_ptr().cast::<u8>();
        // SAFETY: inside the allocation (asserted); the NIC, the only other user, is not running now.
        (0..len).map(|i| unsafe { start.add(offset + i).read() }).collect()
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        let start = self.bytes.as_ptr().cast::<u8>().cast_mut();
        for (i, b) in bytes.iter().enumerate() {
            // SAFETY: as in `read`; the bytes are in cells, so writing through the pointer is allowed.
            unsafe { start.add(offset + i).write(*b) };
        }
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr() + offset as u64, len: len as u32, lkey: self.mr.lkey }
    }

    pub fn at(&self, offset: usize) -> (u64, Key) {
        (self.addr() + offset as u64, self.mr.rkey)
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().unwrap())
    }
}

/// One NIC with a protection domain and a completion queue.
pub struct Node {
    pub nic: Nic,
    pub pd: PdId,
    pub cq: CqId,
    pub gid: Gid,
}

/// Decides by sender and packet whether a frame is lost.
pub type DropRule = Box<dyn FnMut(usize, &Packet) -> bool>;

/// Says why an acknowledgement is overdue, by the node that waits for it.
pub type AskRule = Box<dyn FnMut(usize, &Overdue) -> Silence>;

struct Flight {
    packet: Packet,
    payload: Vec<u8>,
    to: usize,
}

/// Several NICs, the wire between them, and its clock.
pub struct World {
    pub nodes: Vec<Node>,
    pub now: Instant,
    pub faults: Faults,
    pub rng: fastrand::Rng,
    /// Drops the frames for which it answers true; looks at (sender, packet).
    pub drop_if: Option<DropRule>,
    /// What the driver of a node knows of a peer's silence.
    pub ask: Option<AskRule>,
    /// Everything sent, in order, dropped frames included.
    pub log: Vec<(usize, Packet)>,
    /// Their payloads, in the same order.
    pub log_payloads: Vec<Vec<u8>>,
    pub keep_log: bool,
    wire: BinaryHeap<Reverse<(Instant, u64)>>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    sequence: u64,
    out: TxFrame,
    pub lost: u64,
    /// Nodes without a processor, and the frames that wait for them.
    stopped: Vec<bool>,
    waiting: Vec<Flight>,
}

pub const LATENCY: Duration = Duration::from_us(2);

impl World {
    pub fn new(nodes: usize, seed: u64) -> World {
        Self::with_config(nodes, seed, |_| {})
    }

    pub fn with_config(nodes: usize, seed: u64, adjust: impl Fn(&mut NicConfig)) -> World {
        let make = |i: usize| {
            let gid = Gid::from(Ipv4Addr::new(10, 0, 0, i as u8 + 1));
            let mut config =
                NicConfig { gids: vec![gid], qpn_base: (i as u32 + 1) << 16, ..NicConfig::default() };
            adjust(&mut config);
            let mut nic = Nic::new(config, seed ^ i as u64);
            let pd = nic.memory().alloc_pd().unwrap();
            let cq = nic.create_cq(4096).unwrap();
            Node { nic, pd, cq, gid }
        };
        World {
            nodes: (0..nodes).map(make).collect(),
            now: Instant::from_ns(1000),
            faults: Faults::default(),
            rng: fastrand::Rng::with_seed(seed),
            drop_if: None,
            ask: None,
            log: Vec::new(),
            log_payloads: Vec::new(),
            keep_log: false,
            wire: BinaryHeap::new(),
            flights: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            out: TxFrame::default(),
            lost: 0,
            stopped: vec![false; nodes],
            waiting: Vec::new(),
        }
    }

    /// A node gets no processor from now on: its frames wait, its timers too.
    pub fn stop(&mut self, node: usize) {
        self.transmit();
        self.stopped[node] = true;
    }

    /// It has one again.
    pub fn go_on(&mut self, node: usize) {
        self.stopped[node] = false;
        let (ready, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|f| f.to == node);
        self.waiting = waiting;
        for Flight { packet, payload, .. } in ready {
            self.deliver_at(self.now, packet, payload);
        }
    }

    pub fn memory(&mut self, node: usize, len: usize) -> Memory {
        self.memory_with(
            node,
            len,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        )
    }

    pub fn memory_with(&mut self, node: usize, len: usize, access: Access) -> Memory {
        let n = &mut self.nodes[node];
        Memory::register(n.nic.memory(), n.pd, len, access)
    }

    pub fn qp(&mut self, node: usize, qp_type: QpType, caps: QpCaps) -> QpId {
        let n = &mut self.nodes[node];
        let init = QpInit {
            qp_type,
            pd: Some(n.pd),
            send_cq: Some(n.cq),
            recv_cq: Some(n.cq),
            srq: None,
            xrcd: None,
            sq_sig_all: false,
            caps,
        };
        n.nic.create_qp(&init).unwrap()
    }

    /// Takes a queue pair to RTS towards a peer.
    pub fn connect(&mut self, (node, qp): (usize, QpId), (peer, peer_qp): (usize, QpId), how: &Link) {
        let dest = self.nodes[peer].nic.qp_number(peer_qp).unwrap();
        let dgid = self.nodes[peer].gid;
        let nic = &mut self.nodes[node].nic;
        let (mut a, init) = nic.query_qp(qp).unwrap();
        use QpAttrMask as M;
        let connected = !matches!(init.qp_type, QpType::Ud | QpType::Gsi);
        let responds = matches!(init.qp_type, QpType::Rc | QpType::XrcRecv);
        let requests = matches!(init.qp_type, QpType::Rc | QpType::XrcSend);
        let when = |yes, m| if yes { m } else { M::empty() };
        a.state = QpState::Init;
        a.port = 1;
        a.qkey = how.qkey;
        a.access = how.access;
        let now = self.now;
        let identity = M::STATE | M::PORT | M::PKEY_INDEX;
        nic.modify_qp(now, qp, &a, identity | if connected { M::ACCESS_FLAGS } else { M::QKEY }).unwrap();
        a.state = QpState::Rtr;
        a.path_mtu = how.mtu;
        a.dest_qpn = dest;
        a.rq_psn = if node < peer { how.psn.1 } else { how.psn.0 };
        a.sq_psn = if node < peer { how.psn.0 } else { how.psn.1 };
        a.av.dgid = dgid;
        a.max_dest_rd_atomic = how.depth;
        a.max_rd_atomic = how.depth;
        a.min_rnr_timer = how.rnr_timer;
        let rtr = when(connected, M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN)
            | when(responds, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
        nic.modify_qp(now, qp, &a, M::STATE | rtr).unwrap();
        a.state = QpState::Rts;
        a.timeout = how.timeout;
        a.retry_cnt = how.retries;
        a.rnr_retry = how.rnr_retries;
        let rts = when(requests, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC)
            | when(init.qp_type == QpType::XrcRecv, M::TIMEOUT);
        nic.modify_qp(now, qp, &a, M::STATE | M::SQ_PSN | rts).unwrap();
    }

    /// A connected pair between nodes 0 and 1.
    pub fn pair(&mut self, qp_type: QpType, caps: QpCaps, how: &Link) -> (QpId, QpId) {
        let a = self.qp(0, qp_type, caps);
        let b = self.qp(1, qp_type, caps);
        self.connect((0, a), (1, b), how);
        self.connect((1, b), (0, a), how);
        (a, b)
    }

    pub fn send(&mut self, node: usize, qp: QpId, wr: SendWr<'_>) {
        self.nodes[node].nic.post_send(self.now, qp, &wr).unwrap();
    }

    pub fn recv(&mut self, node: usize, qp: QpId, wr_id: u64, sges: &[Sge]) {
        self.nodes[node].nic.post_recv(self.now, qp, &RecvWr { wr_id, sges }).unwrap();
    }

    pub fn poll(&mut self, node: usize) -> Option<Completion> {
        let n = &mut self.nodes[node];
        n.nic.poll_cq(n.cq).unwrap()
    }

    /// Runs until a completion comes at `node`; panics when none does within a second of virtual time.
    pub fn completion(&mut self, node: usize) -> Completion {
        let end = self.now + Duration::from_ms(10_000);
        loop {
            if let Some(c) = self.poll(node) {
                return c;
            }
            let goes_on = self.advance(end);
            if !goes_on && let Some(c) = self.poll(node) {
                return c;
            }
            assert!(goes_on, "no completion at node {node}");
        }
    }

    /// Moves every frame that the NICs have on to the wire.
    pub fn transmit(&mut self) {
        for from in (0..self.nodes.len()).filter(|from| !self.stopped[*from]).collect::<Vec<_>>() {
            while self.nodes[from].nic.next_frame(self.now, &mut self.out) {
                self.on_wire(from);
            }
        }
    }

    fn on_wire(&mut self, from: usize) {
        let packet = self.out.packet;
        if self.keep_log {
            self.log.push((from, packet));
        }
        let mut payload = vec![0u8; self.out.payload.len()];
        let mut at = 0;
        for span in self.out.payload.spans() {
            adverb_nic::memory::dma::read_bytes(*span, &mut payload[at..at + span.len()]);
            at += span.len();
        }
        assert_eq!(payload.len(), packet.payload_len as usize, "descriptor and payload agree");
        if self.keep_log {
            self.log_payloads.push(payload.clone());
        }
        self.through_bytes(&packet, &payload);
        let f = self.faults;
        let lost = self.rng.f64() < f.loss || self.rng.f64() < f.corrupt;
        if lost || self.drop_if.as_mut().is_some_and(|d| d(from, &packet)) {
            self.lost += 1;
            return;
        }
        let mut packet = packet;
        if f.mark > 0.0 && packet.flow.traffic_class & 3 != 0 && self.rng.f64() < f.mark {
            packet.flow.traffic_class |= 3;
        }
        let copies = 1 + (self.rng.f64() < f.duplicate) as usize;
        for _ in 0..copies {
            let late = if self.rng.f64() < f.reorder {
                Duration::from_ns(self.rng.u64(1..20_000))
            } else {
                Duration::ZERO
            };
            let late = if f.late > 0.0 && self.rng.f64() < f.late {
                Duration::from_us(self.rng.u64(100..3_000))
            } else {
                late
            };
            self.deliver_at(self.now + LATENCY + late, packet, payload.clone());
        }
    }

    /// Emits and parses the frame: the descriptor must survive, the ICRC must match.
    fn through_bytes(&self, packet: &Packet, payload: &[u8]) {
        let mut bytes = [0u8; 4096 + 200];
        let len = packet.emit_frame(&WireExtra::default(), payload, &mut bytes);
        let parsed = Packet::parse_ip(&bytes[..len]).expect("what the NIC sends parses");
        assert_eq!(parsed.packet, *packet);
        assert_eq!(&bytes[parsed.payload.clone()], payload);
        assert!(adverb_wire::icrc::verify_ip(&bytes[..len], parsed.ip_header_len));
    }

    /// Puts a frame on the wire by hand.
    pub fn inject(&mut self, packet: Packet, payload: &[u8]) {
        self.deliver_at(self.now + LATENCY, packet, payload.to_vec());
    }

    /// Gives a packet to a node's NIC at once; what that says then.
    pub fn give(&mut self, node: usize, packet: &Packet, payload: &[u8]) -> Vec<Packet> {
        let nic = &mut self.nodes[node].nic;
        nic.on_frame(self.now, packet, &Payload::from_slice(payload));
        let mut out = TxFrame::default();
        std::iter::from_fn(|| nic.next_frame(self.now, &mut out).then_some(out.packet)).collect()
    }

    fn deliver_at(&mut self, at: Instant, packet: Packet, payload: Vec<u8>) {
        let Some(to) = self.nodes.iter().position(|n| n.gid == packet.flow.dst) else { return };
        let flight = Flight { packet, payload, to };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.flights[slot] = Some(flight);
                slot
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() - 1
            }
        };
        self.sequence += 1;
        self.wire.push(Reverse((at, self.sequence << 24 | slot as u64)));
    }

    /// Handles the next thing that happens before `end`. False when nothing does.
    pub fn advance(&mut self, end: Instant) -> bool {
        self.transmit();
        let frame = self.wire.peek().map_or(Instant::NEVER, |Reverse((at, _))| *at);
        let running = self.nodes.iter().zip(&self.stopped).filter(|(_, stopped)| !**stopped);
        let timer = running.filter_map(|(n, _)| n.nic.next_deadline()).min().unwrap_or(Instant::NEVER);
        let next = frame.min(timer);
        if next > end || next == Instant::NEVER {
            self.now = self.now.max(if end == Instant::NEVER { self.now } else { end });
            return false;
        }
        self.now = self.now.max(next);
        // Who was late takes in what has arrived before it lets timers run out, as drivers do.
        if frame <= timer.max(self.now) {
            if let Some(Reverse((_, tag))) = self.wire.pop() {
                let slot = (tag & 0xff_ffff) as usize;
                let flight = self.flights[slot].take().expect("a frame on the wire");
                self.free.push(slot);
                if self.stopped[flight.to] {
                    self.waiting.push(flight);
                    return true;
                }
                let nic = &mut self.nodes[flight.to].nic;
                nic.on_frame(self.now, &flight.packet, &Payload::from_slice(&flight.payload));
            }
        } else {
            for (i, n) in self.nodes.iter_mut().enumerate().filter(|(i, _)| !self.stopped[*i]) {
                match &mut self.ask {
                    Some(ask) => n.nic.on_timer_asking(self.now, |overdue| ask(i, overdue)),
                    None => n.nic.on_timer(self.now),
                }
            }
        }
        for n in &self.nodes {
            n.nic.check_invariants();
        }
        true
    }

    /// Runs until nothing is left to happen, or for `limit`.
    pub fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.advance(end) {}
    }

    pub fn counter(&self, node: usize, name: &str) -> u64 {
        self.nodes[node].nic.counters().iter().find(|(n, _)| *n == name).expect("a counter of that name").1
    }
}

/// How two queue pairs are connected.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub mtu: Mtu,
    pub psn: (Psn, Psn),
    pub access: Access,
    pub qkey: u32,
    pub depth: u8,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rnr_timer: u8,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            mtu: Mtu::M1024,
            psn: (Psn::new(100), Psn::new(0xff_fff0)),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            qkey: 0x1111,
            depth: 4,
            timeout: 8,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: 1,
        }
    }
}

pub const CAPS: QpCaps =
    QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 };

/// A signalled work request.
pub fn wr<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    SendWr { wr_id, op, flags, data: SendData::Sges(sges), ud: None, xrc_srqn: 0 }
}

pub fn qpn(n: u32) -> QpNumber {
    QpNumber::new(n)
}

/// Bytes that tell where they come from.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed) ^ (i >> 8) as u8).collect()
}
