//! What a client hears: records, replies, and what became of a request that has none.

use super::super::Around;
use super::{Clients, Outcome, Phase, Reached, Say};
use crate::counters::Counters;
use crate::limits::MAX_STAR_ANSWERS;
use crate::memory::{Payload, QueueMemory, dma};
use adverb_wire::star::{Answer, Grant, Op, Record, Stamp, StarEth, Ticket, Verdict, Wqe};
use adverb_wire::{Duration, Instant, Operation, Packet, Psn};

impl Clients {
    pub fn on_frame(
        &mut self,
        place: usize,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        around: &mut Around<'_>,
    ) {
        let counters = &mut *around.counters;
        let Some(client) = self.list.get_mut(place).filter(|client| client.is_open) else {
            counters.drop_unknown_qp += 1;
            return;
        };
        if packet.flow.src != client.config.server {
            counters.drop_source += 1;
            return;
        }
        let eth = StarEth::from(packet.irn);
        match packet.bth.opcode.operation() {
            Operation::WqePacket if !eth.has(StarEth::POOL) => counters.drop_wrong_service += 1,
            Operation::WqePacket if eth.has(StarEth::MIGRATION) => {
                self.on_record(place, now, packet, payload, counters);
            }
            Operation::WqePacket => self.on_reply(place, now, packet, payload, counters),
            Operation::RemoteDataAnswer => self.on_answer(place, now, packet, counters),
            _ => counters.drop_wrong_service += 1,
        }
    }

    /// The hello is answered.
    fn on_record(
        &mut self,
        place: usize,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        counters: &mut Counters,
    ) {
        let mut bytes = [0; Record::LEN];
        if payload.len() == Record::LEN && !payload.is_elided() {
            payload.read(0, &mut bytes);
        }
        let client = &mut self.list[place];
        let asks = matches!(client.phase, Phase::Asking | Phase::Renewing) && client.sent > 0;
        let record = Record::read(&bytes).filter(|record| {
            let own = Grant::of_word(record.ticket.word);
            own.peer == client.number && (1..=5).contains(&own.mtu) && record.lifetime > 0
        });
        let Some(record) = record.filter(|_| asks && packet.bth.psn == client.nonce) else {
            counters.drop_hello += 1;
            return;
        };
        let is_first = client.phase == Phase::Asking;
        client.phase = Phase::Ready;
        client.ticket = record.ticket;
        client.lifetime = Duration::from_us(record.lifetime.min(i32::MAX as u32 / 4).into());
        (client.told, client.issued, client.at) = ((record.clock, now), now, Instant::NEVER);
        if is_first {
            let reached = Reached { client: client.id(place), tag: 0, outcome: Outcome::Ready };
            self.reached.push_back((reached, None));
        }
        let room = 128 << Grant::of_word(record.ticket.word).mtu;
        let mut held = self.list[place].held.take();
        while let Some(slot) = held {
            held = self.requests[slot as usize].next.take();
            if usize::from(self.requests[slot as usize].len) > room {
                self.finish(slot, Outcome::Refused);
            } else {
                self.begin(now, slot);
            }
        }
    }

    /// The slot of a request of this client with this number.
    fn slot(&self, place: usize, psn: Psn) -> Option<u32> {
        let slot = (psn.get() ^ self.list[place].mask) & 0xffff;
        let request = self.requests.get(slot as usize)?;
        let is_it = request.is_used
            && request.sent > 0
            && request.client as usize == place
            && request.psn(slot, &self.list[place]) == psn;
        is_it.then_some(slot)
    }

    /// A reply. It is acknowledged each time, or the server would keep it.
    fn on_reply(
        &mut self,
        place: usize,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        counters: &mut Counters,
    ) {
        let mut entry = [0; Wqe::LEN];
        if payload.len() < Wqe::LEN || payload.is_elided() {
            counters.star_wqe_gap += 1;
            return;
        }
        payload.read(0, &mut entry);
        let (psn, eth) = (packet.bth.psn, StarEth::from(packet.irn));
        let len = payload.len() - Wqe::LEN;
        let is_whole = Wqe::read(&entry)
            .is_some_and(|entry| (entry.op, entry.index, entry.len as usize) == (Op::Send, psn.get(), len));
        if !is_whole {
            counters.star_wqe_gap += 1;
            return;
        }
        if self.events < MAX_STAR_ANSWERS && self.list[place].ticket != Ticket::default() {
            self.events += 1;
            self.say.push_back(Say::Event { client: place as u32, psn, token: eth.value });
        }
        let Some(slot) = self.slot(place, psn) else {
            counters.star_wqe_duplicate += 1;
            return;
        };
        let request = &mut self.requests[slot as usize];
        if request.bytes.len() < len {
            match QueueMemory::new(len.next_power_of_two()) {
                Ok(bytes) => request.bytes = bytes,
                // Its copy may find some.
                Err(_) => return,
            }
        }
        if len > 0 {
            dma::write(request.bytes.span(0, len), &payload.slice(Wqe::LEN, len), 0, len);
        }
        if request.sent == 1 {
            let took = (now.since(request.first).as_ps() / 1_000_000).clamp(1, 1_000_000) as u32;
            let client = &mut self.list[place];
            client.round_trip = match client.round_trip {
                0 => took,
                known => (known * 7 + took).div_ceil(8),
            };
        }
        self.finish(slot, Outcome::Reply(len));
    }

    /// The server has the request already, or does not take it.
    fn on_answer(&mut self, place: usize, now: Instant, packet: &Packet, counters: &mut Counters) {
        let Some(answer) = Answer::of_aeth(packet.aeth) else {
            counters.drop_syndrome += 1;
            return;
        };
        let Some(slot) = self.slot(place, packet.bth.psn) else {
            counters.star_wqe_duplicate += 1;
            return;
        };
        let told = Stamp::from(packet.irn).clock;
        let request = &self.requests[slot as usize];
        // By then, so much time had passed since the first copy left, by a clock that may be a little slow.
        let since = now.since(request.first).as_ps() / 1_000_000;
        let past = told.wrapping_sub(request.deadline) as i32;
        self.list[place].hear_clock(told, now);
        match answer.verdict {
            Verdict::Done => {}
            Verdict::Busy => counters.star_deferred += 1,
            Verdict::Expired => {
                counters.star_deferred += 1;
                // The deadline had passed before the first copy left: none was executed.
                if past > 0 && i64::from(past) > (since + since / 512 + 2) as i64 {
                    let request = &mut self.requests[slot as usize];
                    request.uses = request.uses.wrapping_add(1);
                    self.begin(now, slot);
                }
            }
            Verdict::Invalid | Verdict::Access | Verdict::NotPosted => self.finish(slot, Outcome::Refused),
        }
    }
}
