//! A cable with Ethernet, and its edge: behind a port there is a virtual machine, or an interface. One that
//! goes is found again when it is back, and frames meanwhile are lost, as on a cable that is pulled.

use crate::config::CableKind;
use crate::ethernet::Edge;
use crate::interface::Interface;
use crate::machine::Machine;
use adverb_wire::{Duration, Gid, Instant};
use std::fmt;
use std::os::fd::RawFd;

/// How often what is not there is looked for.
const LOOK: Duration = Duration::from_ms(100);

/// What is at the other end.
pub enum Far {
    /// A virtual machine.
    Machine(Machine),
    /// Whatever hangs on an interface.
    Interface(Interface),
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Far::Machine(machine) => write!(f, "{}", machine.path().display()),
            Far::Interface(interface) => write!(f, "{}", interface.name()),
        }
    }
}

/// The cable.
pub struct Cable {
    /// What is at its other end.
    pub far: Far,
    /// Whose hardware address is which.
    pub edge: Edge,
    /// When what is not there is looked for next.
    look: Instant,
    /// Frames that were lost because nothing is there.
    pub unplugged: u64,
    /// Frames that were lost because what is there does not read what waits for it.
    pub full: u64,
}

impl Cable {
    /// The cable of a file's port.
    pub fn open(kind: CableKind<'_>, hosts: &[Gid]) -> Result<Cable, String> {
        let far = match kind {
            CableKind::Qemu(path) => Far::Machine(Machine::new(path)),
            CableKind::Interface(name) => Far::Interface(Interface::open(name).map_err(|e| {
                format!("the interface {name}: {e}; it takes CAP_NET_RAW over its namespace")
            })?),
        };
        Ok(Cable::new(far, Edge::new(hosts)))
    }

    /// A cable to `far`.
    pub fn new(far: Far, edge: Edge) -> Cable {
        Cable { far, edge, look: Instant::ZERO, unplugged: 0, full: 0 }
    }

    /// Whether something is there.
    pub fn is_plugged(&self) -> bool {
        self.fd().is_some()
    }

    /// Bytes that wait.
    pub fn depth(&self) -> usize {
        match &self.far {
            Far::Machine(machine) => machine.depth(),
            Far::Interface(interface) => interface.depth(),
        }
    }

    /// To wait on, if something is there.
    pub fn fd(&self) -> Option<RawFd> {
        match &self.far {
            Far::Machine(machine) => machine.fd(),
            Far::Interface(interface) => interface.fd(),
        }
    }

    /// When something is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let look = (!self.is_plugged()).then_some(self.look);
        [look, self.edge.next_deadline()].into_iter().flatten().min()
    }

    /// Queues an IP packet for its host.
    pub fn put(&mut self, now: Instant, packet: &[u8]) {
        self.edge.put(now, packet);
        self.queue();
    }

    /// Does what is due, and sends what can be sent.
    pub fn tick(&mut self, now: Instant) {
        if !self.is_plugged() && self.look <= now {
            self.look = now + LOOK;
            match &mut self.far {
                Far::Machine(machine) => machine.connect(),
                Far::Interface(interface) => interface.reopen(),
            }
        }
        self.edge.on_timer(now);
        self.queue();
        match &mut self.far {
            Far::Machine(machine) => machine.flush(),
            Far::Interface(interface) => interface.flush(),
        }
    }

    /// Queues the edge's frames, as far as there is room.
    fn queue(&mut self) {
        while let Some(frame) = self.edge.next_frame() {
            if !self.is_plugged() {
                self.unplugged += 1;
                continue;
            }
            let is_queued = match &mut self.far {
                Far::Machine(machine) => machine.add(&frame),
                Far::Interface(interface) => interface.add(frame),
            };
            self.full += u64::from(!is_queued);
        }
    }

    /// Takes frames that have come. The edge stands beside each, so that it can read it.
    pub fn receive(&mut self, buffer: &mut [u8], mut take: impl FnMut(&mut Edge, &[u8])) {
        let Cable { far, edge, .. } = self;
        match far {
            Far::Machine(machine) => machine.receive(buffer, |frame| take(edge, frame)),
            Far::Interface(interface) => interface.receive(|frame| take(edge, frame)),
        }
    }
}
