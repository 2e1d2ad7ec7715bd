//! Unreliable connection (IBTA 9.8.3): messages are taken whole or not at all; nothing is answered.

use crate::event::Event;
use crate::explain::{Cause, received};
use crate::memory::Payload;
use crate::qp::Qp;
use crate::state::NicState;
use crate::transport::failure::enter_error;
use crate::transport::incoming::Message;
use crate::transport::receive::{self, Refusal};
use crate::transport::report::explain;
use crate::work::Status;
use adverb_wire::{Instant, Packet};

/// Takes in a packet. A gap drops the message in progress, and everything up to the next message's
/// first packet; a receive that the dropped message held serves the next one.
pub(crate) fn on_request(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    let in_order = packet.bth.psn == qp.responder.expected();
    qp.responder.expect_after(packet.bth.psn);
    let starts = packet.bth.opcode.operation().starts_message();
    if !in_order || (starts && qp.responder.message() != Message::None) {
        qp.responder.set_message(Message::None);
    }
    if qp.responder.message() == Message::None && !starts {
        nic.counters.drop_out_of_order += 1;
        return;
    }
    let Err(refusal) = receive::accept(qp, nic, now, packet, payload) else { return };
    qp.responder.set_message(Message::None);
    match refusal {
        Refusal::NotReady => nic.counters.drop_no_receive += 1,
        Refusal::Local(fault) => {
            let cause = Cause::local(Status::LocalProtection, fault.rule());
            let cause = Cause { packet: Some(received(packet)), ..cause };
            explain(qp, nic, now, qp.scatter().wr_id, &cause);
            receive::fail_receive(qp, nic, now, Status::LocalProtection);
            nic.event(Event::QpFatal(qp.id));
            enter_error(qp, nic, now);
        }
        Refusal::TooLong => {
            // A local length error ends the receive and the connection (IBTA 9.8.3.1.2).
            let rule = "the receive is smaller than the message (IBTA 9.8.3.1.2)";
            let cause = Cause { packet: Some(received(packet)), ..Cause::local(Status::LocalLength, rule) };
            explain(qp, nic, now, qp.scatter().wr_id, &cause);
            receive::fail_receive(qp, nic, now, Status::LocalLength);
            enter_error(qp, nic, now);
        }
        Refusal::Invalid(_)
        | Refusal::Access(_)
        | Refusal::Rights
        | Refusal::Invalidate(_)
        | Refusal::Unruled => {
            nic.counters.drop_length += 1;
        }
    }
}
