//! Carriers that have failed: what they have under way is sent again, and in the end given to another one.

use super::CasToWrite;
use super::carry::{Carried, carrier_key, lane_key};
use super::word::State;
use crate::counters::Counter;
use crate::frame::Frame;
use crate::program::Context;
use adverb_wire::{Flow, Instant, NakCode, Psn};
use std::collections::BTreeMap;

impl CasToWrite {
    /// The server's queue pair has failed by a request that it carried. That one's client is told.
    pub(super) fn on_carrier_refused(
        &mut self,
        ctx: &mut Context<'_>,
        carrier: u32,
        psn: Psn,
        code: NakCode,
        nak: &Frame,
    ) {
        let lane = &mut self.connections.get_mut(carrier).lane;
        lane.closed = true;
        // It is not sent any more, and gives what it has to another carrier.
        lane.tries = u32::MAX;
        let Some(refused) = lane.ring.front().filter(|first| first.out == psn).cloned() else { return };
        let Some(at) = refused.of else { return };
        let connection = self.connections.get_mut(at);
        let (client, port, qpn) = (connection.client, connection.port, connection.client_qpn);
        let (Some(entry), Some(qpn)) = (connection.entry(refused.psn), qpn) else { return };
        let rkey = entry.rkey;
        if code == NakCode::RemoteAccessError {
            self.refuse_key(ctx, rkey);
        }
        let mut packet = nak.packet;
        packet.flow.dst = client;
        (packet.bth.dest_qp, packet.bth.psn) = (qpn, refused.psn);
        ctx.count(Counter::Generated);
        ctx.again();
        let to = std::mem::replace(&mut ctx.to, port);
        ctx.pass_on(nak.made_like(packet, &[]));
        ctx.to = to;
    }

    /// Sends again what was not acknowledged in time; gives what a failed carrier has to another one.
    pub(super) fn tend_carriers(&mut self, ctx: &mut Context<'_>) {
        let Some(config) = self.config.carry else { return };
        let tended: Vec<u32> = self.tended().collect();
        for carrier in tended {
            if self.carrier_due(carrier).is_none_or(|at| at > ctx.now) {
                continue;
            }
            let lane = &mut self.connections.get_mut(carrier).lane;
            if lane.tries < config.tries {
                lane.tries += 1;
                self.send_again(ctx, carrier);
                continue;
            }
            lane.closed = true;
            self.move_on(ctx, carrier);
        }
        self.forget_orphans(ctx);
    }

    /// When something is due for a carrier.
    fn carrier_due(&self, carrier: u32) -> Option<Instant> {
        let config = self.config.carry?;
        let lane = &self.connections.get(carrier).lane;
        let wait = match lane.tries < config.tries {
            true => config.resend,
            // It is asked again when its client is heard again.
            false if lane.ring.iter().all(|carried| carried.is_proof) => return None,
            // What it has sent must have left the path.
            false => self.config.flight.max(config.resend),
        };
        (!lane.ring.is_empty()).then(|| lane.sent + wait)
    }

    /// When something is due for some carrier.
    pub(super) fn carriers_due(&self) -> Option<Instant> {
        self.tended().filter_map(|carrier| self.carrier_due(carrier)).min()
    }

    /// Gives what a failed carrier has under way to others. What finds no room there now waits for the next
    /// time; without any other carrier it is lost.
    fn move_on(&mut self, ctx: &mut Context<'_>, carrier: u32) {
        let Some(config) = self.config.carry else { return };
        let lane = &mut self.connections.get_mut(carrier).lane;
        lane.sent = ctx.now;
        let mut left: Vec<Carried> = lane.ring.drain(..).filter(|carried| !carried.is_proof).collect();
        // A word's last value goes with the first request for it.
        for at in 0..left.len() {
            let word = left[at].word;
            let is_first = left[..at].iter().all(|before| before.word != word);
            let last = left.iter().rev().filter(|other| other.word == word).find_map(|other| other.value);
            let value = last.filter(|_| is_first);
            if left[at].value != value {
                self.becomes(&mut left[at], value);
            }
        }
        let (mut full, mut chosen) = (false, BTreeMap::new());
        for carried in left {
            let to = match chosen.get(&carried.word) {
                Some(to) => *to,
                None => self.next_carrier(carrier, &carried),
            };
            chosen.insert(carried.word, to);
            match to {
                None => self.is_lost(ctx, carrier, &carried),
                Some(to) => {
                    let lane = &self.connections.get(to).lane;
                    full |= !lane.own_is_over() || lane.ring.len() >= config.ring;
                    match full {
                        true => self.connections.get_mut(carrier).lane.ring.push_back(carried),
                        false => self.give_on(ctx, (carrier, to), carried),
                    }
                }
            }
        }
        self.freed.push_back(carrier_key(carrier));
    }

    /// Who carries a word's requests from now on: the connection of the first one, whose client still waits;
    /// else another carrier.
    fn next_carrier(&mut self, failed: u32, first: &Carried) -> Option<u32> {
        let rkey = first.frame.packet.reth.rkey;
        let lives = |at: &u32| {
            let connection = self.connections.get(*at);
            !connection.lane.closed && !connection.uncounted && connection.accepts(rkey)
        };
        match first.of.filter(lives) {
            Some(at) => {
                if !self.carriers.contains(&at) {
                    // In the failed one's place: those behind that may have been silent for as long, and to
                    // find out takes as much time again.
                    let place = self.carriers.iter().position(|other| *other == failed);
                    self.carriers.insert(place.unwrap_or(0), at);
                }
                Some(at)
            }
            None => self.carrier_for(failed, first.va, rkey),
        }
    }

    /// Gives one request to another carrier.
    fn give_on(&mut self, ctx: &mut Context<'_>, (carrier, to): (u32, u32), mut carried: Carried) {
        self.shift(ctx, to);
        let connection = self.connections.get_mut(to);
        let out = connection.lane.take_carried();
        if connection.lane.ring.is_empty() {
            (connection.lane.sent, connection.lane.tries) = (ctx.now, 0);
        }
        let mut packet = carried.frame.packet;
        packet.flow = Flow { traffic_class: packet.flow.traffic_class, ..connection.flow };
        (packet.bth.dest_qp, packet.bth.psn) = (connection.server_qpn, out);
        carried.frame.readdress(packet);
        let word = self.words.get_mut(carried.word);
        // The request that makes the word known is the last one of those that change it: by then, so have the
        // others been executed.
        if let State::Carried { value, carrier: on, out: last } = word.state
            && (word.va, on, last) == (carried.va, carrier, carried.out)
        {
            word.state = State::Carried { value, carrier: to, out };
        }
        carried.out = out;
        ctx.count(Counter::MovedOn);
        let (from, before) = (ctx.from, ctx.to);
        (ctx.from, ctx.to) = (connection.port, self.server_port);
        ctx.again();
        ctx.pass_on(carried.frame.clone());
        (ctx.from, ctx.to) = (from, before);
        connection.lane.ring.push_back(carried);
    }

    /// Has a request that is carried write another value, or nothing.
    fn becomes(&self, carried: &mut Carried, value: Option<u64>) {
        let mut packet = carried.frame.packet;
        let len = if value.is_some() { 8 } else { 0 };
        (packet.reth.len, packet.payload_len) = (len, len);
        let bytes = value.map(|value| self.config.bytes(value));
        carried.frame.change(packet, bytes.as_ref().map_or(&[], |bytes| bytes));
        carried.value = value;
    }

    /// Nobody can carry a request any more: its client runs out of retries, and the word is the server's.
    fn is_lost(&mut self, ctx: &mut Context<'_>, carrier: u32, carried: &Carried) {
        let until = ctx.now + self.config.flight;
        let word = self.words.get_mut(carried.word);
        if let State::Carried { carrier: on, .. } = word.state
            && (word.va, on) == (carried.va, carrier)
        {
            word.state = State::Closed { until };
            ctx.count(Counter::WordsUnsure);
            self.freed.push_back(carried.va);
        }
        let Some(at) = carried.of else { return };
        let connection = self.connections.get_mut(at);
        connection.lane.carried -= 1;
        connection.lane.broken = true;
        if let Some(entry) = connection.entry(carried.psn) {
            entry.dead = true;
        }
        self.freed.push_back(lane_key(at));
    }
}
