//! Asking for the memory of coming events: a fabric does not fit the processor's nearest caches, but lanes
//! tell what comes. Each step follows what the step before has asked for, a few events later. Hints without
//! effect on results.

use crate::events::Event;
use crate::fabric::link::{HOST, Link};
use crate::fabric::packet::NONE;
use crate::fabric::switch::Switch;
use crate::host::Host;
use crate::sim::Sim;
use adverb_nic::memory::prefetch;

/// Events between two steps.
const STEP: u32 = 2;

/// From so many hosts on, all of them do not fit a second-level cache, and it pays to follow an event to its
/// queue pair.
pub(crate) const FAR: usize = 256;

impl Sim {
    /// Takes a step each for some events further along the lane of the one that was taken out. A lane holds
    /// arrivals or ports that become free, not both.
    #[inline(always)]
    pub(crate) fn look_ahead(&self) {
        if self.far {
            return self.look_far_ahead();
        }
        let later = self.events.ahead(2 * STEP);
        if !self.events.lane_has_arrivals() {
            return self.ask_for_link(self.sources.link_of(later.source));
        }
        self.ask_for_names(later);
        self.ask_for_place(self.events.ahead(STEP));
    }

    /// With two steps more: to what finds a queue pair, and to the queue pair.
    #[inline(never)]
    fn look_far_ahead(&self) {
        let [next, soon, later, last] = self.events.four_ahead(STEP);
        if self.events.lane_has_arrivals() {
            self.ask_for_names(last);
            self.ask_for_place(later);
            self.ask_for_way(soon);
            self.ask_for_queue_pair(next);
        } else {
            self.ask_for_link(self.sources.link_of(last.source));
            self.ask_for_queue(self.sources.link_of(later.source));
            self.ask_for_waiting(self.sources.link_of(soon.source));
            self.ask_for_turn(self.sources.link_of(next.source));
        }
    }

    #[inline(always)]
    fn ask_for_link(&self, link: u32) {
        if let Some(link) = self.fabric.links.get(link as usize) {
            prefetch(link);
        }
    }

    /// The link and the packet that an arrival names.
    #[inline(always)]
    fn ask_for_names(&self, event: Event) {
        self.ask_for_link(event.source);
        if let Some(hot) = self.fabric.packets.hot.get(event.word as usize) {
            prefetch(hot);
        }
    }

    /// Where an arriving packet goes: its next link, or the host with its link; then also what only that
    /// reads of the packet.
    #[inline(always)]
    fn ask_for_place(&self, event: Event) {
        let Some(hot) = self.fabric.packets.hot.get(event.word as usize) else { return };
        if let Some(link) = self.fabric.links.get(hot.via as usize) {
            return prefetch(link);
        }
        self.fabric.packets.prefetch(event.word);
        self.ask_for_link(event.source ^ 1);
        if let Some(host) = self.hosts.list.get(hot.dst as usize) {
            host.prefetch(self.far);
        }
    }

    /// The route of an arriving packet from its next link's end; or where its queue pair is found, and the
    /// route of an answer.
    #[inline(always)]
    fn ask_for_way(&self, event: Event) {
        let Some(hot) = self.fabric.packets.hot.get(event.word as usize) else { return };
        if let Some(link) = self.fabric.links.get(hot.via as usize) {
            if link.to & HOST == 0 {
                self.fabric.routes.prefetch(link.to, hot.dst);
            }
        } else if let Some(host) = self.hosts.list.get(hot.dst as usize)
            && let Some(link) = self.fabric.links.get(event.source as usize)
            && let Some((from, number)) = self.fabric.packets.names(event.word)
        {
            host.prefetch_owner(number);
            self.fabric.routes.prefetch(link.from, from);
        }
    }

    /// The queue pair that a packet which arrives at a host is for.
    #[inline(always)]
    fn ask_for_queue_pair(&self, event: Event) {
        if let Some(hot) = self.fabric.packets.hot.get(event.word as usize)
            && hot.via == NONE
            && let Some(host) = self.hosts.list.get(hot.dst as usize)
            && let Some((_, number)) = self.fabric.packets.names(event.word)
        {
            host.prefetch_qp(host.nic.index_of(number));
        }
    }

    /// What is behind a port that becomes free: its queue, or a host.
    #[inline(always)]
    fn ask_for_queue(&self, l: u32) {
        let Some(link) = self.fabric.links.get(l as usize) else { return };
        match self.sender(link) {
            Sender::Host(host) => host.prefetch(true),
            Sender::Switch(switch) => switch.prefetch(link.port_from),
            Sender::Nobody => {}
        }
    }

    /// What waits for a port that becomes free: a packet, or where the queue pair is found whose turn it is.
    #[inline(always)]
    fn ask_for_waiting(&self, l: u32) {
        let Some(link) = self.fabric.links.get(l as usize) else { return };
        match self.sender(link) {
            Sender::Host(host) => host.prefetch_tables(host.nic.next_ready().unwrap_or_default()),
            Sender::Switch(switch) => {
                if let Some(hot) = self.fabric.packets.hot.get(switch.oldest(link.port_from) as usize) {
                    prefetch(hot);
                }
            }
            Sender::Nobody => {}
        }
    }

    /// The queue pair whose turn it is, or the route of the packet that waits.
    #[inline(always)]
    fn ask_for_turn(&self, l: u32) {
        let Some(link) = self.fabric.links.get(l as usize) else { return };
        match self.sender(link) {
            Sender::Host(host) => {
                if let Some(qp) = host.nic.next_ready() {
                    host.prefetch_qp(qp);
                }
            }
            Sender::Switch(switch) => {
                if link.to & HOST == 0
                    && let Some(hot) = self.fabric.packets.hot.get(switch.oldest(link.port_from) as usize)
                {
                    self.fabric.routes.prefetch(link.to, hot.dst);
                }
            }
            Sender::Nobody => {}
        }
    }

    #[inline(always)]
    fn sender(&self, link: &Link) -> Sender<'_> {
        if link.from & HOST == 0 {
            self.fabric.switches.get(link.from as usize).map_or(Sender::Nobody, Sender::Switch)
        } else {
            self.hosts.list.get((link.from & !HOST) as usize).map_or(Sender::Nobody, Sender::Host)
        }
    }
}

/// Who sends on a link.
enum Sender<'a> {
    Host(&'a Host),
    Switch(&'a Switch),
    Nobody,
}
