//! Which process of the address a connection manager's message is for. All of them have queue pair 1, so its
//! number does not say; the message does: an answer by the communication id that it repeats, whose upper 8
//! bits are a slot, and a request by the listener of its service, or by who may soon listen there again.
//!
//! What is for nobody that lives stays here: this process's connection manager refuses it, or answers in the
//! place of the dead.

use crate::directory::{Member, Slot};
use adverb_nic::cm::Service;
use adverb_wire::cm::{Addressee, addressee};
use adverb_wire::{Packet, QpNumber};

/// Whose a datagram for a well-known queue pair is; `None` if it is no connection manager's message.
pub(super) fn owner(member: &Member, packet: &Packet, payload: &[u8]) -> Option<Slot> {
    if packet.bth.dest_qp != QpNumber::GSI {
        return None;
    }
    let found = match addressee(payload)? {
        Addressee::Id(id) => Slot::new((id >> 24) as u8).filter(|slot| member.is_alive(*slot)),
        Addressee::Service(id, dst) => Service::of(id).and_then(|service| {
            let (ports, lives) = (member.ports(), |owner| member.lives(owner));
            ports.listener(service, dst?, lives).or_else(|| ports.keeper(service.port, lives))
        }),
    };
    Some(found.unwrap_or(member.slot()))
}

/// The same of a whole frame of this process.
pub(super) fn owner_of_frame(member: &Member, frame: &[u8]) -> Option<Slot> {
    let parsed = Packet::parse_ip(frame).ok()?;
    owner(member, &parsed.packet, frame.get(parsed.payload)?)
}
