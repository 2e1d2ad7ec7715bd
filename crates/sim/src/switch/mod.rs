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

use crate::link::{HOST, Link};
use crate::packet::{NONE, Packets};
use crate::topology::{Node, Topology};
use adverb_nic::memory::prefetch;
use ecn::Red;
use pfc::Pfc;

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

/// What all switches of a fabric are.
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

/// What is buffered on behalf of one incoming link and class.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ingress {
    pub bytes: u32,
    /// The other end was told to stop.
    pub pausing: bool,
}

/// What waits for one outgoing link in one class.
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

/// The state of all switches. Arrays are indexed by link, or by link and class.
pub(crate) struct Switches {
    pub config: SwitchConfig,
    pub input_queued: bool,
    pub classes: usize,
    /// By outgoing link and class.
    pub queues: Vec<Queue>,
    /// Input-queued: by outgoing link, the first of its virtual output queues.
    pub voq_base: Vec<u32>,
    pub voqs: Vec<iq::Voq>,
    /// By incoming link: its number among those of its switch.
    pub port: Vec<u16>,
    /// By incoming link and class.
    pub ingress: Vec<Ingress>,
    /// By switch: bytes buffered.
    pub used: Vec<u32>,
    pub counters: Vec<PortCounters>,
    /// By outgoing link and class: when it was paused, in ps.
    pub paused_since: Vec<u64>,
    pub rng: fastrand::Rng,
    pub drops: u64,
    pub marked: u64,
    pub pauses: u64,
}

impl Switches {
    pub fn new(t: &Topology, config: &SwitchConfig, seed: u64) -> Switches {
        let links = t.links();
        let classes = usize::from(config.classes.max(1));
        let mut ports = vec![0u16; t.switches as usize];
        let mut port = vec![0u16; links];
        let mut owner = vec![u32::MAX; links];
        for link in 0..links as u32 {
            let (from, to) = t.link_ends(link);
            if let Node::Switch(s) = to {
                port[link as usize] = ports[s as usize];
                ports[s as usize] += 1;
            }
            if let Node::Switch(s) = from {
                owner[link as usize] = s;
            }
        }
        let input_queued = matches!(config.discipline, Discipline::InputQueued { .. });
        let mut voq_base = Vec::new();
        let mut count = 0u32;
        if input_queued {
            for &s in &owner {
                voq_base.push(count);
                count += if s == u32::MAX { 0 } else { u32::from(ports[s as usize]) * classes as u32 };
            }
        }
        Switches {
            config: config.clone(),
            input_queued,
            classes,
            queues: vec![Queue { row: iq::Row::EMPTY, depth: 0, depth_max: 0 }; links * classes],
            voq_base,
            voqs: vec![iq::Voq::EMPTY; count as usize],
            port,
            ingress: vec![Ingress::default(); links * classes],
            used: vec![0; t.switches as usize],
            counters: vec![PortCounters::default(); links],
            paused_since: vec![0; links * classes],
            rng: fastrand::Rng::with_seed(seed),
            drops: 0,
            marked: 0,
            pauses: 0,
        }
    }

    /// Asks for the queues of a port.
    #[inline]
    pub fn prefetch(&self, out: u32) {
        if let Some(queue) = self.queues.get(out as usize * self.classes) {
            prefetch(queue);
        }
    }

    /// The packet that may leave a port next; of input queues, some number.
    #[inline]
    pub fn oldest(&self, out: u32) -> u32 {
        self.queues.get(out as usize * self.classes).map_or(NONE, |queue| queue.row.head)
    }

    /// Whether switch `s` has room for a packet that came on `entered` and waits for `out`.
    #[inline]
    pub fn admits(&self, s: u32, entered: u32, out: u32, class: usize, size: u32) -> bool {
        match self.config.discipline {
            Discipline::InputQueued { buffer } => {
                let limit = buffer + self.config.pfc[class].map_or(0, |pfc| pfc.headroom);
                let at = entered as usize * self.classes;
                let held: u32 = self.ingress[at..at + self.classes].iter().map(|i| i.bytes).sum();
                held + size <= limit
            }
            Discipline::SharedBuffer { buffer, alpha } => {
                let depth = self.queues[out as usize * self.classes + class].depth;
                let lossless = self.config.pfc[class].is_some();
                oq::admits(self.used[s as usize], buffer, alpha, depth, size, lossless)
            }
        }
    }

    /// Buffers a packet of switch `s` for `out`. The caller has asked [`Switches::admits`].
    #[inline]
    pub fn enqueue(&mut self, packets: &mut Packets, links: &mut [Link], s: u32, out: u32, id: u32) {
        let hot = &mut packets.hot[id as usize];
        let (class, size, entered) = (usize::from(hot.class), u32::from(hot.size), hot.via);
        let queue = &mut self.queues[out as usize * self.classes + class];
        queue.depth += size;
        queue.depth_max = queue.depth_max.max(queue.depth);
        if let Some(red) = &self.config.ecn
            && red.mark(&mut self.rng, queue.depth, &mut hot.flags)
        {
            self.counters[out as usize].marked += 1;
            self.marked += 1;
        }
        self.ingress[entered as usize * self.classes + class].bytes += size;
        self.used[s as usize] += size;
        if self.input_queued {
            let port = u32::from(self.port[entered as usize]);
            let voq = self.voq_base[out as usize] + port * self.classes as u32 + class as u32;
            iq::push(&mut queue.row, &mut self.voqs, packets, voq, id);
        } else {
            oq::push(&mut queue.row, packets, id);
        }
        let link = &mut links[out as usize];
        link.waiting += 1;
        link.queued |= 1 << class;
    }

    /// Takes the next packet for `out` from the classes in `ready` (bits), the highest first.
    #[inline]
    pub fn dequeue(&mut self, packets: &mut Packets, links: &mut [Link], out: u32, ready: u8) -> u32 {
        let class = ready.ilog2() as usize;
        let queue = &mut self.queues[out as usize * self.classes + class];
        let id = if self.input_queued {
            iq::pop(&mut queue.row, &mut self.voqs, packets)
        } else {
            oq::pop(&mut queue.row, packets)
        };
        let hot = &packets.hot[id as usize];
        let link = &mut links[out as usize];
        let size = u32::from(hot.size);
        queue.depth -= size;
        self.ingress[hot.via as usize * self.classes + class].bytes -= size;
        self.used[link.from as usize] -= size;
        link.waiting -= 1;
        if queue.row.is_empty() {
            link.queued &= !(1 << class);
        }
        id
    }

    /// Every account of the buffer agrees with what is queued. For tests: it walks all queues.
    pub fn check(&self, packets: &Packets, links: &[Link]) {
        let mut ingress = vec![0u32; self.ingress.len()];
        let mut used = vec![0u32; self.used.len()];
        for out in (0..links.len()).filter(|l| links[*l].from & HOST == 0) {
            let mut waiting = 0;
            for class in 0..self.classes {
                let row = out * self.classes + class;
                let mut depth = 0;
                self.for_each(packets, out as u32, class, |hot| {
                    depth += u32::from(hot.size);
                    waiting += 1;
                    ingress[hot.via as usize * self.classes + class] += u32::from(hot.size);
                });
                assert_eq!(depth, self.queues[row].depth, "bytes that wait for link {out}");
                used[links[out].from as usize] += depth;
                assert_eq!(links[out].queued >> class & 1 != 0, depth > 0, "class bits of link {out}");
            }
            assert_eq!(waiting, links[out].waiting, "packets that wait for link {out}");
            let stuck = links[out].queued & !links[out].paused != 0 && !links[out].wakes;
            assert!(!stuck, "link {out} has packets that may go, and nobody sends them");
        }
        assert_eq!(used, self.used, "bytes buffered by switch");
        for (at, bytes) in ingress.iter().enumerate() {
            assert_eq!(*bytes, self.ingress[at].bytes, "bytes that came on link {}", at / self.classes);
        }
    }

    /// Calls `f` for each packet that waits for `out` in `class`.
    pub fn for_each(
        &self,
        packets: &Packets,
        out: u32,
        class: usize,
        mut f: impl FnMut(&crate::packet::Hot),
    ) {
        let row = &self.queues[out as usize * self.classes + class].row;
        if self.input_queued {
            iq::for_each(row, &self.voqs, packets, &mut f);
        } else {
            oq::for_each(row, packets, &mut f);
        }
    }
}
