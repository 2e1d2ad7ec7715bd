//! Switches: a packet comes in on one link and leaves on another, at once when that one is free.
//!
//! Two disciplines share the code of queues, accounting, PFC and ECN: [`iq`] holds packets at their
//! input port in virtual output queues, [`oq`] in one queue for each output over a shared buffer. Bytes count
//! as buffered from a packet's arrival to the start of its transmission; a packet that
//! finds its port free is never buffered.

mod check;
pub mod deadlock;
pub mod ecn;
pub mod iq;
pub mod oq;
pub mod pfc;

use crate::fabric::link::Link;
use crate::fabric::packet::{Hot, NONE, Packets};
use crate::fabric::topology::{Node, Topology};
use adverb_nic::memory::prefetch;
use ecn::Red;
use pfc::Pfc;
use std::sync::Arc;

/// Traffic classes that a fabric may have.
pub const CLASSES_MAX: usize = 8;

/// Where packets wait.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Discipline {
    /// At the input: each input port has a buffer of its own, and a virtual output queue for each
    /// output. An output serves the inputs round robin.
    InputQueued {
        /// Bytes for each input port.
        buffer: u32,
    },
    /// At the output, over one buffer. A queue may take `alpha` times what is free.
    SharedBuffer {
        /// Bytes for the whole switch.
        buffer: u32,
        /// Dynamic threshold; infinite for none.
        alpha: f64,
    },
}

/// How a switch chooses among equal paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balance {
    /// By a hash of the flow's addresses and UDP source port.
    #[default]
    Ecmp,
    /// Anew for each packet.
    Spray,
}

/// What a switch is.
#[derive(Clone, PartialEq, Debug)]
pub struct SwitchConfig {
    /// Where packets wait.
    pub discipline: Discipline,
    /// Traffic classes; higher ones go first.
    pub classes: u8,
    /// Priority flow control, by class.
    pub pfc: [Option<Pfc>; CLASSES_MAX],
    /// Marking of ECN-capable packets.
    pub ecn: Option<Red>,
    /// Choice among equal paths.
    pub balance: Balance,
    /// Time through the switch, in ps.
    pub latency_ps: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        SwitchConfig {
            discipline: Discipline::SharedBuffer { buffer: 16 << 20, alpha: f64::INFINITY },
            classes: 1,
            pfc: [None; CLASSES_MAX],
            ecn: None,
            balance: Balance::Ecmp,
            latency_ps: 0,
        }
    }
}

/// What is buffered of what came in at one port in one class.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ingress {
    pub bytes: u32,
    /// The other end was told to stop.
    pub pausing: bool,
}

/// What waits to leave at one port in one class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// Packets (shared buffer) or virtual output queues (input-queued).
    pub row: iq::Row,
    /// Bytes.
    pub depth: u32,
    /// Most bytes ever.
    pub depth_max: u32,
}

/// Counters of a port: its outgoing link, and the buffer behind its incoming one.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets dropped for want of buffer, by the link on which they came.
    pub drops: u64,
    /// Packets lost on the link: faults, or the link was down.
    pub lost: u64,
    /// Packets damaged on the link.
    pub corrupted: u64,
    /// Packets marked.
    pub marked: u64,
    /// Pause frames sent because of what came on the link.
    pub pauses: u64,
    /// Time during which a class of the outgoing link was paused, in ps.
    pub paused_ps: u64,
}

/// What a switch does with a packet that comes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It leaves on this link, when its turn comes.
    Forward(u32),
    /// It goes no further.
    Drop(DropReason),
}

/// Why a switch drops a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// There is no room to let it wait.
    NoBuffer,
    /// The switch is not up.
    Down,
}

impl DropReason {
    /// For people who watch.
    pub fn in_words(self) -> &'static str {
        match self {
            DropReason::NoBuffer => ": dropped by the switch, no buffer left",
            DropReason::Down => ": dropped by the switch, which is down",
        }
    }
}

/// One switch: its configuration, its ports, and what is buffered in it. Ports count from 0; a port is the
/// end of one cable, so packets come in and leave by it. What a hop needs is one cache line.
#[repr(C, align(64))]
pub(crate) struct Switch {
    /// Bytes buffered.
    used: u32,
    classes: u8,
    input_queued: bool,
    /// Many switches are configured alike, and share what says so.
    config: Arc<SwitchConfig>,
    /// By outgoing port and class.
    queues: Box<[Queue]>,
    /// By incoming port and class.
    ingress: Box<[Ingress]>,
    /// Packets marked, packets dropped for want of buffer, pauses begun.
    pub marked: u64,
    pub drops: u64,
    pub pauses: u64,
    /// By port: the link on which packets leave. They come in on its twin, `link ^ 1`.
    ports: Box<[u32]>,
    /// Input-queued: by outgoing port, incoming port and class.
    voqs: Box<[iq::Voq]>,
}

const _: () = assert!(core::mem::offset_of!(Switch, drops) == 56);

/// The switches of a topology. Each link learns the numbers of the ports at its ends.
pub(crate) fn build(t: &Topology, config: &SwitchConfig, links: &mut [Link]) -> Vec<Switch> {
    let mut ports: Vec<Vec<u32>> = vec![Vec::new(); t.switches as usize];
    for out in 0..t.links() as u32 {
        if let (Node::Switch(s), _) = t.link_ends(out) {
            let ports = &mut ports[s as usize];
            links[out as usize].port_from = ports.len() as u16;
            links[out as usize ^ 1].port_to = ports.len() as u16;
            ports.push(out);
        }
    }
    let config = Arc::new(config.clone());
    ports.into_iter().map(|ports| Switch::new(config.clone(), ports)).collect()
}

impl Switch {
    fn new(config: Arc<SwitchConfig>, ports: Vec<u32>) -> Switch {
        let classes = config.classes.max(1);
        let input_queued = matches!(config.discipline, Discipline::InputQueued { .. });
        let rows = ports.len() * usize::from(classes);
        Switch {
            input_queued,
            classes,
            queues: vec![Queue { row: iq::Row::EMPTY, depth: 0, depth_max: 0 }; rows].into(),
            voqs: vec![iq::Voq::EMPTY; if input_queued { rows * ports.len() } else { 0 }].into(),
            ingress: vec![Ingress::default(); rows].into(),
            used: 0,
            drops: 0,
            marked: 0,
            pauses: 0,
            ports: ports.into(),
            config,
        }
    }

    #[inline(always)]
    fn classes(&self) -> usize {
        usize::from(self.classes)
    }

    /// The link on which packets leave by a port.
    #[inline]
    pub fn link(&self, port: usize) -> u32 {
        self.ports[port]
    }

    /// What becomes of a packet that has come in. Every packet passes here, and only here: what a switch does
    /// beyond forwarding on shortest paths belongs in this place. Of those, the link that was foreseen when
    /// the packet was put on the last one is the choice still, because routes do not change.
    #[inline]
    pub fn on_packet(&self, packet: &Hot) -> Verdict {
        Verdict::Forward(packet.via)
    }

    /// Asks for the queues of a port.
    #[inline]
    pub fn prefetch(&self, port: u16) {
        if let Some(queue) = self.queues.get(usize::from(port) * self.classes()) {
            prefetch(queue);
        }
    }

    /// The packet that may leave by a port next; of input queues, some number.
    #[inline]
    pub fn oldest(&self, port: u16) -> u32 {
        self.queues.get(usize::from(port) * self.classes()).map_or(NONE, |queue| queue.row.head)
    }

    /// The queues of a port, by class.
    pub fn queues_of(&self, port: u16) -> &[Queue] {
        &self.queues[usize::from(port) * self.classes()..][..self.classes()]
    }

    /// Whether there is room for a packet that came in at `entered` and waits for `out`, two ports.
    #[inline]
    pub fn admits(&self, entered: u16, out: u16, class: usize, size: u32) -> bool {
        match self.config.discipline {
            Discipline::InputQueued { buffer } => {
                let at = usize::from(entered) * self.classes();
                let held: u32 = self.ingress[at..at + self.classes()].iter().map(|i| i.bytes).sum();
                held + size <= buffer
            }
            Discipline::SharedBuffer { buffer, alpha } => {
                let depth = self.queues[usize::from(out) * self.classes() + class].depth;
                let lossless = self.config.pfc[class].is_some();
                oq::admits(self.used, buffer, alpha, depth, size, lossless)
            }
        }
    }

    /// Buffers a packet, whose `via` names the port at which it came in, for the port that feeds `link`;
    /// whether it was marked. The caller has asked [`Switch::admits`].
    // Where a hop stands alone in its function, it takes 6 instructions less.
    #[inline(always)]
    pub fn enqueue(
        &mut self,
        packets: &mut Packets,
        rng: &mut fastrand::Rng,
        link: &mut Link,
        id: u32,
    ) -> bool {
        let hot = &mut packets.hot[id as usize];
        let (class, size, entered) = (usize::from(hot.class), u32::from(hot.size), hot.via as usize);
        let classes = self.classes();
        let row = usize::from(link.port_from) * classes + class;
        let queue = &mut self.queues[row];
        queue.depth += size;
        queue.depth_max = queue.depth_max.max(queue.depth);
        let marked = self.config.ecn.is_some_and(|red| red.mark(rng, queue.depth, &mut hot.flags));
        self.marked += u64::from(marked);
        self.ingress[entered * classes + class].bytes += size;
        self.used += size;
        if self.input_queued {
            let voq = (usize::from(link.port_from) * self.ports.len() + entered) * classes + class;
            iq::push(&mut queue.row, &mut self.voqs, packets, voq as u32, id);
        } else {
            oq::push(&mut queue.row, packets, id);
        }
        link.waiting += 1;
        link.queued |= 1 << class;
        marked
    }

    /// Takes the next packet for the port that feeds `link` from the classes in `ready` (bits), the highest
    /// first.
    #[inline]
    pub fn dequeue(&mut self, packets: &mut Packets, link: &mut Link, ready: u8) -> u32 {
        let (class, classes) = (ready.ilog2() as usize, self.classes());
        let queue = &mut self.queues[usize::from(link.port_from) * classes + class];
        let id = if self.input_queued {
            iq::pop(&mut queue.row, &mut self.voqs, packets)
        } else {
            oq::pop(&mut queue.row, packets)
        };
        let hot = &packets.hot[id as usize];
        let size = u32::from(hot.size);
        queue.depth -= size;
        self.ingress[hot.via as usize * classes + class].bytes -= size;
        self.used -= size;
        link.waiting -= 1;
        if queue.row.is_empty() {
            link.queued &= !(1 << class);
        }
        id
    }

    /// The cable of a port has failed: what it was told to pause is forgotten.
    pub fn forget_pauses(&mut self, port: u16) {
        let (at, classes) = (usize::from(port) * self.classes(), self.classes());
        self.ingress[at..at + classes].iter_mut().for_each(|ingress| ingress.pausing = false);
    }

    /// Every account of the buffer agrees with what is queued. For tests: it walks all queues.
    pub fn check(&self, packets: &Packets, links: &[Link]) {
        let mut ingress = vec![0u32; self.ingress.len()];
        let mut used = 0;
        for (port, &out) in self.ports.iter().enumerate() {
            let link = &links[out as usize];
            let mut waiting = 0;
            for class in 0..self.classes() {
                let mut depth = 0;
                self.for_each(packets, port, class, |hot| {
                    depth += u32::from(hot.size);
                    waiting += 1;
                    ingress[hot.via as usize * self.classes() + class] += u32::from(hot.size);
                });
                assert_eq!(
                    depth,
                    self.queues[port * self.classes() + class].depth,
                    "bytes that wait for link {out}"
                );
                used += depth;
                assert_eq!(link.queued >> class & 1 != 0, depth > 0, "class bits of link {out}");
            }
            assert_eq!(waiting, link.waiting, "packets that wait for link {out}");
            let stuck = link.queued & !link.paused != 0 && !link.wakes;
            assert!(!stuck, "link {out} has packets that may go, and nobody sends them");
        }
        assert_eq!(used, self.used, "bytes buffered by the switch");
        for (at, bytes) in ingress.iter().enumerate() {
            let entered = self.ports[at / self.classes()] ^ 1;
            assert_eq!(*bytes, self.ingress[at].bytes, "bytes that came on link {entered}");
        }
    }

    /// Calls `f` for each packet that waits for a port in `class`.
    pub fn for_each(&self, packets: &Packets, port: usize, class: usize, mut f: impl FnMut(&Hot)) {
        let row = &self.queues[port * self.classes() + class].row;
        if self.input_queued {
            iq::for_each(row, &self.voqs, packets, &mut f);
        } else {
            oq::for_each(row, packets, &mut f);
        }
    }
}
