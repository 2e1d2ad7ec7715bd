//! Asking for the memory of coming events: a fabric does not fit the processor's nearest caches, but lanes
//! tell what comes. Each step follows what the step before has asked for, a few events later. Hints without
//! effect on results.

use crate::events::Event;
use crate::fabric::link::HOST;
use crate::fabric::packet::NONE;
use crate::host::Host;
use crate::sim::Sim;
use crate::source::Source;
use adverb_nic::memory::prefetch;

/// Events between two steps.
const STEP: u32 = 2;

/// From so many hosts on, all of them do not fit a second-level cache, and it pays to follow an event to its
/// queue pair.
pub(crate) const FAR: usize = 256;

impl Sim {
    /// Takes a step each for some events further along the lane of the one that was taken out.
    #[inline(always)]
    pub(crate) fn look_ahead(&self) {
        if self.far {
            return self.look_far_ahead();
        }
        let (soon, later) = (self.events.ahead(STEP), self.events.ahead(2 * STEP));
        self.ask_for_names(later);
        if let Source::Arrival(_) = self.sources.unpack(soon.source) {
            self.ask_for_place(soon.word);
        }
    }

    /// With two steps more: to what finds a queue pair, and to the queue pair.
    #[inline(never)]
    fn look_far_ahead(&self) {
        self.ask_for_names(self.events.ahead(4 * STEP));
        let (next, soon) = (self.events.ahead(STEP), self.events.ahead(2 * STEP));
        let later = self.events.ahead(3 * STEP);
        match self.sources.unpack(later.source) {
            Source::Arrival(_) => self.ask_for_place(later.word),
            Source::PortFree(link) => self.ask_for_queue(link),
            _ => {}
        }
        match self.sources.unpack(soon.source) {
            Source::Arrival(_) => self.ask_for_way(soon.word),
            Source::PortFree(link) => self.ask_for_waiting(link),
            _ => {}
        }
        self.ask_for_queue_pair(next);
    }

    /// The link and the packet that an event names.
    #[inline(always)]
    fn ask_for_names(&self, event: Event) {
        let Event { source, word, .. } = event;
        let link = self.sources.link_of(source);
        if let Some(link) = self.fabric.links.get(link as usize) {
            prefetch(link);
        }
        if let Some(hot) = self.fabric.packets.hot.get(word as usize) {
            prefetch(hot);
        }
    }

    /// Where an arriving packet goes: its next link, or the host; then also what only that reads of it.
    #[inline(always)]
    fn ask_for_place(&self, id: u32) {
        let Some(hot) = self.fabric.packets.hot.get(id as usize) else { return };
        if let Some(link) = self.fabric.links.get(hot.via as usize) {
            return prefetch(link);
        }
        self.fabric.packets.prefetch(id);
        if let Some(host) = self.hosts.list.get(hot.dst as usize) {
            host.prefetch(self.far);
        }
    }

    /// What is behind a port that becomes free: its queue, or a host.
    #[inline(always)]
    fn ask_for_queue(&self, l: u32) {
        match self.sender(l) {
            Some(host) => host.prefetch(true),
            None => self.ask_for_ports(l),
        }
    }

    /// The queues of a switch's port.
    #[inline(always)]
    fn ask_for_ports(&self, l: u32) {
        if let Some(link) = self.fabric.links.get(l as usize)
            && let Some(switch) = self.fabric.switches.get(link.from as usize)
        {
            switch.prefetch(link.port_from);
        }
    }

    /// The route of an arriving packet from its next link's end, or where its queue pair is found.
    #[inline(always)]
    fn ask_for_way(&self, id: u32) {
        let Some(hot) = self.fabric.packets.hot.get(id as usize) else { return };
        if let Some(link) = self.fabric.links.get(hot.via as usize) {
            if link.to & HOST == 0 {
                self.fabric.routes.prefetch(link.to, hot.dst);
            }
        } else if let Some(host) = self.hosts.list.get(hot.dst as usize) {
            host.prefetch_tables(host.nic.index_of(self.fabric.packets.dest_qp(id)));
        }
    }

    /// What waits for a port that becomes free: a packet, or where the queue pair is found whose turn it is.
    #[inline(always)]
    fn ask_for_waiting(&self, l: u32) {
        match self.sender(l) {
            Some(host) => host.prefetch_tables(host.nic.next_ready().unwrap_or_default()),
            None => {
                if let Some(link) = self.fabric.links.get(l as usize)
                    && let Some(switch) = self.fabric.switches.get(link.from as usize)
                    && let Some(hot) = self.fabric.packets.hot.get(switch.oldest(link.port_from) as usize)
                {
                    prefetch(hot);
                }
            }
        }
    }

    /// The queue pair that an event leads to.
    #[inline(always)]
    fn ask_for_queue_pair(&self, event: Event) {
        if let Source::PortFree(link) = self.sources.unpack(event.source) {
            if let Some(host) = self.sender(link)
                && let Some(qp) = host.nic.next_ready()
            {
                host.prefetch_qp(qp);
            }
            return;
        }
        if let Some(hot) = self.fabric.packets.hot.get(event.word as usize)
            && hot.via == NONE
            && let Some(host) = self.hosts.list.get(hot.dst as usize)
        {
            host.prefetch_qp(host.nic.index_of(self.fabric.packets.dest_qp(event.word)));
        }
    }

    /// The host that sends on a link.
    #[inline(always)]
    fn sender(&self, l: u32) -> Option<&Host> {
        let from = self.fabric.links.get(l as usize)?.from;
        if from & HOST == 0 { None } else { self.hosts.list.get((from & !HOST) as usize) }
    }
}
