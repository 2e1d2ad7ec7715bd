//! Unreliable connection (IBTA 9.8.3): messages are taken whole or not at all; nothing is answered.

use crate::event::Event;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::shared::Shared;
use crate::transport::receive::{self, Message, Refusal};
use crate::transport::{Cause, enter_error, explain, received};
use crate::work::Status;
use adverb_wire::{Instant, Packet};

/// Takes in a packet. A gap drops the message in progress, and everything up to the next message's
/// first packet; a receive that the dropped message held serves the next one.
pub(crate) fn on_request(qp: &mut Qp, sh: &mut Shared, now: Instant, packet: &Packet, payload: &Payload<'_>) {
    let in_order = packet.bth.psn == qp.responder.expected();
    qp.responder.expect_after(packet.bth.psn);
    let starts = packet.bth.opcode.operation().starts_message();
    if !in_order || (starts && qp.responder.message() != Message::None) {
        qp.responder.set_message(Message::None);
    }
    if qp.responder.message() == Message::None && !starts {
        sh.counters.drop_out_of_order += 1;
        return;
    }
    let Err(refusal) = receive::accept(qp, sh, now, packet, payload) else { return };
    qp.responder.set_message(Message::None);
    match refusal {
        Refusal::NotReady => sh.counters.drop_no_receive += 1,
        Refusal::Local(fault) => {
            let cause = Cause {
                status: Status::LocalProtection,
                rule: fault.rule(),
                packet: Some(received(packet)),
                timer: None,
            };
            explain(qp, sh, now, qp.scatter().wr_id, &cause);
            receive::fail_receive(qp, sh, now, Status::LocalProtection);
            sh.event(Event::QpFatal(qp.id));
            enter_error(qp, sh, now);
        }
        Refusal::TooLong => {
            // A local length error ends the receive and the connection (IBTA 9.8.3.1.2).
            let rule = "the receive is smaller than the message (IBTA 9.8.3.1.2)";
            let cause =
                Cause { status: Status::LocalLength, rule, packet: Some(received(packet)), timer: None };
            explain(qp, sh, now, qp.scatter().wr_id, &cause);
            receive::fail_receive(qp, sh, now, Status::LocalLength);
            enter_error(qp, sh, now);
        }
        Refusal::Invalid(_) | Refusal::Access(_) | Refusal::Rights => sh.counters.drop_length += 1,
    }
}
