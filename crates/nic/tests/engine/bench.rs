//! WQEs written by hand, in the mlx5 layout, and the bench that executes them.

use super::world::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::{Duration, Key};

/// One block for each WQE.
pub const SMALL: QpCaps =
    QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };

pub const SIGNALED: u8 = 8;

/// A WQE of one block: operation, segments behind the control segment, flags.
pub fn wqe(op: WqeOp, segments: &[[u8; 16]], flags: u8) -> [u8; 64] {
    let mut block = [0; 64];
    block[3] = op as u8;
    block[7] = 1 + segments.len() as u8;
    block[11] = flags;
    for (at, segment) in segments.iter().enumerate() {
        block[16 * (at + 1)..16 * (at + 2)].copy_from_slice(segment);
    }
    block
}

/// The segment of a WAIT or ENABLE.
pub fn queue(index: u32, number: u32) -> [u8; 16] {
    let mut segment = [0xee; 16];
    segment[8..12].copy_from_slice(&index.to_be_bytes());
    segment[12..].copy_from_slice(&number.to_be_bytes());
    segment
}

pub fn words(a: u64, b: u32, c: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..8].copy_from_slice(&a.to_be_bytes());
    segment[8..12].copy_from_slice(&b.to_be_bytes());
    segment[12..].copy_from_slice(&c.to_be_bytes());
    segment
}

/// A data segment.
pub fn data(sge: Sge) -> [u8; 16] {
    words(u64::from(sge.len) << 32 | u64::from(sge.lkey.0), (sge.addr >> 32) as u32, sge.addr as u32)
}

pub fn write((va, rkey): (u64, Key), from: Sge) -> [u8; 64] {
    wqe(WqeOp::Write, &[words(va, rkey.0, 0), data(from)], SIGNALED)
}

pub fn fetch_add((va, rkey): (u64, Key), add: u64, into: Sge) -> [u8; 64] {
    wqe(WqeOp::FetchAdd, &[words(va, rkey.0, 0), words(add, 0, 0), data(into)], SIGNALED)
}

/// Two NICs, and on the first one cross-channel queue pairs that are connected to plain ones of the other.
pub struct Bench {
    pub w: World,
    pub near: Memory,
    pub far: Memory,
}

impl Bench {
    pub fn new(seed: u64) -> Bench {
        Self::with_config(seed, |_| {})
    }

    pub fn with_config(seed: u64, adjust: impl Fn(&mut NicConfig)) -> Bench {
        let mut w = World::with_config(2, seed, adjust);
        let (near, far) = (w.memory(0, 4096), w.memory(1, 4096));
        Bench { w, near, far }
    }

    /// What a queue pair of the first NIC is made of.
    pub fn init(&self, caps: QpCaps) -> QpInit {
        let node = &self.w.nodes[0];
        QpInit::rc(node.pd, node.cq, caps)
    }

    pub fn qp(&mut self, managed: bool) -> QpId {
        let flags = if managed { QpFlags::MANAGED_SEND } else { QpFlags::CROSS_CHANNEL };
        self.pair(flags, SMALL).0
    }

    /// A queue pair of the first NIC with these flags, connected to a plain one of the other.
    pub fn pair(&mut self, flags: QpFlags, caps: QpCaps) -> (QpId, QpId) {
        let init = self.init(caps);
        let qp = self.w.nodes[0].nic.create_qp_with(&init, flags).unwrap();
        let peer = self.w.qp(1, QpType::Rc, CAPS);
        self.w.connect((0, qp), (1, peer), &Link::default());
        self.w.connect((1, peer), (0, qp), &Link::default());
        (qp, peer)
    }

    /// A cross-channel queue pair of the first NIC that is connected to itself, and completes in `cq`.
    pub fn own(&mut self, flags: QpFlags, caps: QpCaps, cq: CqId) -> QpId {
        let init = QpInit { send_cq: Some(cq), recv_cq: Some(cq), ..self.init(caps) };
        let qp = self.w.nodes[0].nic.create_qp_with(&init, flags).unwrap();
        let same = adverb_wire::Psn::new(100);
        self.w.connect((0, qp), (0, qp), &Link { psn: (same, same), ..Link::default() });
        qp
    }

    /// A completion queue of the first NIC that nobody need poll.
    pub fn unpolled_cq(&mut self) -> CqId {
        let nic = &mut self.w.nodes[0].nic;
        let cq = nic.create_cq(16).unwrap();
        nic.ignore_overrun(cq).unwrap();
        cq
    }

    /// Registers a queue's own WQEs, so that others can change them: their address, and both
    /// keys.
    pub fn code(&mut self, qp: QpId) -> (u64, MrInfo) {
        let node = &mut self.w.nodes[0];
        let queue = node.nic.send_queue_memory(qp).unwrap();
        let (addr, len) = (queue.addr(), queue.len() as u64);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let init = MrInit { pd: node.pd, addr, len, iova: addr, access };
        // SAFETY: the queue's memory is never unmapped, and no reference to it exists.
        (addr, unsafe { node.nic.memory().reg_mr(&init) }.unwrap())
    }

    /// The rule of the oldest explanation.
    pub fn rule(&mut self) -> &'static str {
        self.w.nodes[0].nic.next_explanation().expect("an explanation").rule
    }

    /// Posts a request to a queue pair of the first NIC.
    pub fn post(&mut self, qp: QpId, op: SendOp, sges: &[Sge]) -> Result<(), Error> {
        let now = self.w.now;
        self.w.nodes[0].nic.post_send(now, qp, &wr(0, op, sges))
    }

    pub fn number(&self, qp: QpId) -> u32 {
        self.w.nodes[0].nic.qp_number(qp).unwrap().get()
    }

    pub fn put(&mut self, qp: QpId, block: usize, wqe: &[u8; 64]) {
        self.w.nodes[0].nic.send_queue_memory(qp).unwrap().write(block * 64, wqe);
    }

    pub fn ring(&mut self, qp: QpId, posted: u32) {
        self.w.nodes[0].nic.on_doorbell(self.w.now, qp, posted).unwrap();
    }

    pub fn nothing_more(&mut self) {
        self.w.run(Duration::from_ms(100));
        assert!(self.w.poll(0).is_none(), "nothing more completes");
        self.w.nodes[0].nic.check_invariants();
    }
}
