//! The way of a packet through the network: on to a link, off it, through a switch, pauses on the way.

use crate::events::{ARRIVALS, NO_LANE};
use crate::fabric::faults::Fate;
use crate::fabric::link::{
    HOST, LINK_CAPTURE, LINK_DOWN, LINK_FAULTS, LINK_PROGRAMS, LINK_STAMPS, PAUSE_BYTES,
};
use crate::fabric::packet::{FLAG_CORRUPT, FLAG_LOST, FLAG_UNSOUND, Kind, NONE};
use crate::fabric::switch::{DropReason, Verdict};
use crate::sim::Sim;
use crate::source::Source;
use adverb_nic::telemetry::Hop;

impl Sim {
    /// Puts a packet on a link, and enters its arrival; if there is `more` to send, also that the port
    /// becomes free.
    #[inline]
    pub(crate) fn transmit(&mut self, l: u32, id: u32, more: bool) {
        let hot = &mut self.fabric.packets.hot[id as usize];
        let link = &mut self.fabric.links[l as usize];
        // Behind another frame, neither event is in the order of its lane.
        let in_order = link.busy_until <= self.now && hot.lane <= 1;
        let at = link.send(self.now, u32::from(hot.size));
        hot.epoch = link.epoch;
        hot.via = NONE;
        if link.to & HOST == 0 && hot.kind == Kind::Data {
            let spray = if self.fabric.spray { self.fabric.rng.u32(..) } else { 0 };
            hot.via = self.fabric.routes.next(link.to, hot.dst, hot.hash ^ spray);
        }
        let lane = if in_order { u16::from(link.lanes) + u16::from(hot.lane) * 2 } else { NO_LANE.into() };
        if more && !link.wakes {
            link.wakes = true;
            self.events.push(lane, link.busy_until, self.sources.pack(Source::PortFree(l)), 0);
        }
        let flags = link.flags;
        if flags & (LINK_FAULTS | LINK_DOWN | LINK_STAMPS) != 0 {
            if flags & LINK_STAMPS != 0 {
                self.stamp(l, id);
            }
            if flags & (LINK_FAULTS | LINK_DOWN) != 0 {
                let late = self.suffer(l, id, at);
                return self.events.push(NO_LANE, at + late, l, id);
            }
        }
        self.events.push(usize::from(lane) + ARRIVALS, at, l, id);
    }

    /// Something waits for a port that is sending: enters that it becomes free, unless it is entered.
    #[inline]
    pub(crate) fn wake(&mut self, l: u32) {
        let link = &mut self.fabric.links[l as usize];
        if !link.wakes {
            link.wakes = true;
            self.events.push(NO_LANE, link.busy_until, self.sources.pack(Source::PortFree(l)), 0);
        }
    }

    /// A switch says of the link that it puts a packet on how much it has sent there before, and what waits
    /// for it still (HPCC, section 4.1).
    #[cold]
    fn stamp(&mut self, l: u32, id: u32) {
        let hot = &self.fabric.packets.hot[id as usize];
        if hot.kind != Kind::Data {
            return;
        }
        let link = &self.fabric.links[l as usize];
        let queue = self.queues_of(l).iter().map(|queue| queue.depth).sum();
        let hop = Hop { rate: link.rate(), at: self.now, sent: link.bytes - u64::from(hot.size), queue };
        self.fabric.packets.stamp(id, hop);
        self.watch.stats.stamped += 1;
    }

    /// What faults do to a packet that is put on a link; how late it will be, in ps.
    #[cold]
    fn suffer(&mut self, l: u32, id: u32, at: u64) -> u64 {
        let hot = self.fabric.packets.hot[id as usize];
        if self.fabric.links[l as usize].flags & LINK_DOWN != 0 {
            // An epoch that never was: lost, even if the link is repaired by then.
            self.fabric.packets.hot[id as usize].epoch = u16::MAX;
            return 0;
        }
        let fate = match hot.kind {
            Kind::Data => self.fabric.faults.fate(l, &hot, &self.fabric.packets.descriptor(id)),
            _ => Fate::default(),
        };
        if fate.twice {
            let copy = self.fabric.packets.copy(id);
            self.watch.stats.duplicated += 1;
            self.events.push(NO_LANE, at, l, copy);
        }
        let hot = &mut self.fabric.packets.hot[id as usize];
        if fate.lost {
            hot.flags |= FLAG_LOST;
        }
        if fate.corrupt {
            hot.flags |= FLAG_CORRUPT;
        }
        fate.late
    }

    /// A packet reaches the end of a link.
    #[inline]
    pub(crate) fn on_arrival(&mut self, l: u32, id: u32) {
        let link = &self.fabric.links[l as usize];
        let (to, flags, epoch) = (link.to, link.flags, link.epoch);
        let hot = &self.fabric.packets.hot[id as usize];
        let (kind, digest) = (hot.kind, hot.digest);
        let special = FLAG_LOST | FLAG_CORRUPT | FLAG_UNSOUND;
        if (flags & (LINK_CAPTURE | LINK_PROGRAMS) != 0 || hot.flags & special != 0 || hot.epoch != epoch)
            && !self.survives(l, id)
        {
            return;
        }
        if kind != Kind::Data {
            return self.on_pause(l, id);
        }
        self.watch.trace.add(self.now, l, digest);
        self.watch.stats.link_hops += 1;
        if to & HOST != 0 {
            self.on_host_arrival(to & !HOST, id);
        } else {
            self.on_switch_arrival(to, l, id);
        }
    }

    /// Captures the packet; whether it goes on as any does. Damaged ones are found where they arrive, and
    /// a switch's programs have a way of their own.
    #[cold]
    fn survives(&mut self, l: u32, id: u32) -> bool {
        let hot = self.fabric.packets.hot[id as usize];
        let down = hot.epoch != self.fabric.links[l as usize].epoch;
        let fate = match hot.flags & (FLAG_LOST | FLAG_CORRUPT) {
            _ if down => ": lost, the link was down",
            0 => "",
            FLAG_CORRUPT => ": damaged",
            _ => ": lost",
        };
        self.tell_arrival(l, id, fate);
        if hot.flags & FLAG_LOST != 0 || down {
            self.fabric.counters[l as usize].lost += 1;
            self.watch.stats.lost += 1;
            self.fabric.packets.give(id);
            return false;
        }
        if self.fabric.links[l as usize].flags & LINK_CAPTURE != 0 && hot.kind == Kind::Data {
            self.watch.captures.write(l, self.now, &self.fabric.packets, id);
        }
        let (to, flags) = (self.fabric.links[l as usize].to, self.fabric.links[l as usize].flags);
        if flags & LINK_PROGRAMS != 0 && hot.kind == Kind::Data {
            self.on_programmed_arrival(to, l, id);
            return false;
        }
        let unsound = hot.flags & FLAG_UNSOUND != 0 && to & HOST != 0;
        if unsound || (hot.flags & FLAG_CORRUPT != 0 && !self.damage_passes(id)) {
            self.fabric.counters[l as usize].corrupted += 1;
            self.watch.stats.corrupted += 1;
            self.fabric.packets.give(id);
            return false;
        }
        true
    }

    #[inline]
    fn on_switch_arrival(&mut self, s: u32, l: u32, id: u32) {
        match self.fabric.switches[s as usize].on_packet(&self.fabric.packets.hot[id as usize]) {
            Verdict::Forward(out) => self.leave_switch(s, l, out, id),
            Verdict::Drop(reason) => self.drop_in_switch(s, l, id, reason),
        }
    }

    /// A packet that came on link `l` leaves on link `out`, at once or in its turn.
    #[inline(always)]
    pub(crate) fn leave_switch(&mut self, s: u32, l: u32, out: u32, id: u32) {
        let hot = &self.fabric.packets.hot[id as usize];
        let (class, size) = (usize::from(hot.class), u32::from(hot.size));
        let entered = self.fabric.links[l as usize].port_to;
        let link = &mut self.fabric.links[out as usize];
        debug_assert_eq!(link.from, s, "a switch sends on its own links");
        let idle = !link.is_busy(self.now);
        if idle && link.waiting == 0 && link.paused >> class & 1 == 0 {
            return self.transmit(out, id, false);
        }
        let switch = &mut self.fabric.switches[s as usize];
        if !switch.admits(entered, link.port_from, class, size) {
            return self.drop_in_switch(s, l, id, DropReason::NoBuffer);
        }
        self.fabric.packets.hot[id as usize].via = u32::from(entered);
        if switch.enqueue(&mut self.fabric.packets, &mut self.fabric.rng, link, id) {
            self.fabric.counters[out as usize].marked += 1;
        }
        if switch.must_pause(entered, class) {
            self.fabric.counters[l as usize].pauses += 1;
            self.send_pause(l ^ 1, class as u8, Kind::Pause);
        }
        if idle {
            self.serve(out);
        } else {
            self.wake(out);
        }
    }

    #[cold]
    pub(crate) fn drop_in_switch(&mut self, s: u32, l: u32, id: u32, reason: DropReason) {
        self.fabric.switches[s as usize].drops += 1;
        self.fabric.counters[l as usize].drops += 1;
        self.tell_arrival(l, id, reason.in_words());
        self.fabric.packets.give(id);
    }

    /// A port has finished sending.
    #[inline]
    pub(crate) fn on_port_free(&mut self, out: u32) {
        let link = &mut self.fabric.links[out as usize];
        if link.busy_until > self.now {
            // A pause frame went behind what was sent.
            return self.events.push(NO_LANE, link.busy_until, self.sources.pack(Source::PortFree(out)), 0);
        }
        link.wakes = false;
        if link.from & HOST != 0 {
            let h = link.from & !HOST;
            return self.host_send(h);
        }
        self.serve(out);
    }

    /// Sends what waits for a free port of a switch, if its class is not paused.
    #[inline]
    fn serve(&mut self, out: u32) {
        let link = &mut self.fabric.links[out as usize];
        let ready = link.queued & !link.paused;
        if ready == 0 {
            return;
        }
        let s = link.from as usize;
        let id = self.fabric.switches[s].dequeue(&mut self.fabric.packets, link, ready);
        let more = link.waiting > 0;
        let hot = &self.fabric.packets.hot[id as usize];
        let (entered, class) = (hot.via as u16, hot.class);
        self.transmit(out, id, more);
        let switch = &mut self.fabric.switches[s];
        if switch.may_resume(entered, usize::from(class)) {
            let back = switch.link(usize::from(entered));
            self.send_pause(back, class, Kind::Resume);
        }
    }

    /// Sends a pause frame, or the end of a pause, ahead of what waits.
    fn send_pause(&mut self, l: u32, class: u8, kind: Kind) {
        let id = self.fabric.packets.take();
        let hot = &mut self.fabric.packets.hot[id as usize];
        hot.size = PAUSE_BYTES as u16;
        hot.class = class;
        hot.kind = kind;
        hot.lane = 2;
        hot.flags = 0;
        self.transmit(l, id, false);
    }

    fn on_pause(&mut self, l: u32, id: u32) {
        let hot = self.fabric.packets.hot[id as usize];
        self.fabric.packets.give(id);
        let e = l ^ 1;
        let bit = 1u8 << hot.class;
        let at = e as usize * self.fabric.classes + usize::from(hot.class);
        let link = &mut self.fabric.links[e as usize];
        if hot.kind == Kind::Resume {
            return self.end_pause(e, hot.class);
        }
        if link.paused & bit == 0 {
            link.paused |= bit;
            self.fabric.paused_since[at] = self.now;
        }
        if link.from & HOST != 0 && self.fabric.classes > 1 {
            let h = (link.from & !HOST) as usize;
            self.hosts.list[h].nic.block_path(adverb_nic::PathId(u16::from(hot.class)));
        }
    }

    /// The port of link `e` may send `class` again.
    fn end_pause(&mut self, e: u32, class: u8) {
        let at = e as usize * self.fabric.classes + usize::from(class);
        let link = &mut self.fabric.links[e as usize];
        if link.paused >> class & 1 == 0 {
            return;
        }
        link.paused &= !(1 << class);
        let (from, busy) = (link.from, link.is_busy(self.now));
        self.fabric.counters[e as usize].paused_ps += self.now - self.fabric.paused_since[at];
        if from & HOST != 0 {
            let h = from & !HOST;
            if self.fabric.classes > 1 {
                self.hosts.list[h as usize].nic.unblock_path(adverb_nic::PathId(u16::from(class)));
            }
            return self.host_send(h);
        }
        if !busy {
            self.serve(e);
        } else if self.fabric.links[e as usize].waiting > 0 {
            self.wake(e);
        }
    }

    /// A cable fails or is repaired.
    pub(crate) fn on_outage(&mut self) {
        while let Some(outage) = self.fabric.faults.outages.get(self.fabric.faults.outages_done).copied() {
            if outage.at > self.now {
                self.set_timer(Source::Faults, outage.at);
                return;
            }
            self.fabric.faults.outages_done += 1;
            for l in [outage.cable * 2, outage.cable * 2 + 1] {
                let what = if outage.repair { "is repaired" } else { "goes down" };
                let name = self.link_name(l);
                self.watch.journal.add(self.now, name, what);
                if outage.repair {
                    self.fabric.links[l as usize].flags &= !LINK_DOWN;
                } else {
                    self.fail_link(l);
                }
            }
        }
    }

    /// Ends all faults: every cable works.
    pub fn repair(&mut self) {
        self.set_faults(crate::fabric::faults::FaultPlan::default());
        self.fabric.programmed.iter_mut().for_each(|programmed| programmed.repair(self.now));
        for link in &mut self.fabric.links {
            link.flags &= !LINK_DOWN;
        }
    }

    /// What is on the link is lost, and so are pauses: both ends forget them, as hardware does when a
    /// link goes down.
    fn fail_link(&mut self, l: u32) {
        let link = &mut self.fabric.links[l as usize];
        link.flags |= LINK_DOWN;
        link.epoch = link.epoch.wrapping_add(1);
        let (to, port) = (link.to, link.port_to);
        if to & HOST == 0 {
            self.fabric.switches[to as usize].forget_pauses(port);
        }
        for class in 0..self.fabric.classes {
            self.end_pause(l, class as u8);
        }
    }
}
