//! What a client says, and when it says it again.

use super::super::Around;
use super::{Client, Clients, HELLOS, Outcome, Phase, Reached, Say, Timed};
use crate::frame::TxFrame;
use crate::memory::QueueMemory;
use adverb_wire::star::{Hello, Op, StarEth, Wish};
use adverb_wire::{Bth, Instant, Opcode, Operation, Packet, Psn, Reth, Service};
use core::cmp::Reverse;

impl Clients {
    /// The earliest of the timers.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Has the heap look in time.
    fn arm(&mut self, what: Timed) {
        let (at, heap_at) = match what {
            Timed::Client(place) => {
                let client = &mut self.list[place as usize];
                (client.at, &mut client.heap_at)
            }
            Timed::Request(slot) => {
                let request = &mut self.requests[slot as usize];
                (request.at, &mut request.heap_at)
            }
        };
        if at < *heap_at {
            *heap_at = at;
            self.timers.push(Reverse((at, what)));
        }
    }

    pub fn on_timer(&mut self, now: Instant) {
        while let Some(Reverse((at, what))) =
            self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.timers.pop();
            match what {
                Timed::Client(place) => {
                    let client = &mut self.list[place as usize];
                    if client.heap_at != at {
                        continue;
                    }
                    client.heap_at = Instant::NEVER;
                    if client.at <= now && client.is_open {
                        client.at = Instant::NEVER;
                        self.on_hello_timer(place as usize);
                    }
                }
                Timed::Request(slot) => {
                    let request = &mut self.requests[slot as usize];
                    if request.heap_at != at {
                        continue;
                    }
                    request.heap_at = Instant::NEVER;
                    if request.at <= now && request.is_used {
                        request.at = Instant::NEVER;
                        self.on_request_timer(slot, now);
                    }
                }
            }
            self.arm(what);
        }
    }

    /// Nobody has answered the hello.
    fn on_hello_timer(&mut self, place: usize) {
        let client = &mut self.list[place];
        if !matches!(client.phase, Phase::Asking | Phase::Renewing) {
            return;
        }
        if client.sent < HELLOS {
            return self.queue_hello(place);
        }
        if client.phase == Phase::Renewing {
            client.phase = Phase::Ready;
            return;
        }
        client.phase = Phase::Silent;
        let id = client.id(place);
        let mut held = client.held.take();
        let hello = Reached { client: id, tag: 0, outcome: Outcome::NoService };
        self.reached.push_back((hello, None));
        while let Some(slot) = held {
            held = self.requests[slot as usize].next.take();
            self.finish(slot, Outcome::NoService);
        }
    }

    /// A request was not replied to.
    fn on_request_timer(&mut self, slot: u32, now: Instant) {
        let request = &self.requests[slot as usize];
        let place = request.client as usize;
        let client = &mut self.list[place];
        let end = client.end(request);
        if now < request.first + client.lifetime {
            return self.queue_request(slot);
        }
        if now < end {
            self.requests[slot as usize].at = end;
            return;
        }
        // Its server may be another one by now, which knows nothing of the ticket.
        if client.phase == Phase::Ready {
            client.phase = Phase::Silent;
        }
        self.finish(slot, Outcome::ReplyLost);
    }

    pub fn next_frame(&mut self, now: Instant, around: &mut Around<'_>, out: &mut TxFrame) -> bool {
        while let Some(say) = self.say.pop_front() {
            let put = match say {
                Say::Hello(place) => self.put_hello(place as usize, now, around, out),
                Say::Request(slot) => self.put_request(slot, now, around, out),
                Say::Event { client, psn, token } => {
                    self.events -= 1;
                    self.put_event(client as usize, psn, token, around, out)
                }
            };
            if put {
                return true;
            }
        }
        false
    }

    fn put_hello(&mut self, place: usize, now: Instant, around: &mut Around<'_>, out: &mut TxFrame) -> bool {
        let client = &mut self.list[place];
        client.is_queued = false;
        if !client.is_open || !matches!(client.phase, Phase::Asking | Phase::Renewing) {
            return false;
        }
        if self.hello.is_none() {
            self.hello = QueueMemory::new(Hello::LEN).ok();
        }
        client.at = now + client.wait(client.sent);
        client.sent = client.sent.saturating_add(1);
        let hello = Hello {
            wish: Wish::Client,
            features: 0,
            window: 1,
            connections: 0,
            threshold: 0,
            capacity: 0,
            queues: (0, 0),
            clock: 0,
        };
        let (bth, flow) = (bth_of(client, Operation::Hello, client.nonce, true), client.flow(around.gids));
        let irn = StarEth::new(Op::Control, StarEth::POOL, 0, client.number.get()).into();
        self.arm(Timed::Client(place as u32));
        let Some(body) = &self.hello else { return false };
        around.counters.star_hellos_sent += 1;
        body.write(0, &hello.bytes());
        out.payload.clear();
        out.payload.push(body.span(0, Hello::LEN));
        out.packet = Packet { flow, bth, irn, payload_len: Hello::LEN as u32, ..Packet::default() };
        true
    }

    fn put_request(&mut self, slot: u32, now: Instant, around: &mut Around<'_>, out: &mut TxFrame) -> bool {
        let request = &mut self.requests[slot as usize];
        request.is_queued = false;
        // It has ended meanwhile; or another has the slot, which waits for a ticket.
        let client = &self.list[request.client as usize];
        if !request.is_used || !request.is_begun {
            return false;
        }
        request.at = (now + client.wait(request.sent)).min(client.end(request));
        around.counters.star_repeats += u64::from(request.sent > 0);
        let copy = request.sent;
        request.sent = request.sent.saturating_add(1);
        let psn = request.psn(slot, client);
        let len = usize::from(request.len);
        out.payload.clear();
        if len > 0 {
            out.payload.push(request.bytes.span(0, len));
        }
        out.packet = Packet {
            flow: client.flow(around.gids),
            bth: bth_of(client, Operation::RemoteData, psn, true),
            reth: Reth { len: request.deadline, ..Reth::default() },
            irn: StarEth { copy, ..StarEth::new(Op::Send, StarEth::POOL, 0, 0) }.into(),
            ticket: request.ticket,
            payload_len: len as u32,
            ..Packet::default()
        };
        self.arm(Timed::Request(slot));
        true
    }

    fn put_event(
        &mut self,
        place: usize,
        psn: Psn,
        token: u32,
        around: &mut Around<'_>,
        out: &mut TxFrame,
    ) -> bool {
        let client = &self.list[place];
        if !client.is_open {
            return false;
        }
        out.payload.clear();
        out.packet = Packet {
            flow: client.flow(around.gids),
            bth: bth_of(client, Operation::WqeEventAcknowledge, psn, false),
            irn: StarEth::new(Op::Send, StarEth::POOL, 1, token).into(),
            ticket: client.ticket,
            ..Packet::default()
        };
        true
    }
}

fn bth_of(client: &Client, operation: Operation, psn: Psn, ack_req: bool) -> Bth {
    let opcode = Opcode::new(Service::Star, operation);
    Bth { opcode, psn, dest_qp: client.config.service, ack_req, ..Bth::default() }
}
