//! What the registry lets leave for the stateless side, where this NIC has one
//! (`transport/star/registry.rs`).

use super::{Names, Sent};
use crate::qp::Qp;
use crate::queue::wqe::WqeOp;
use crate::state::NicState;
use crate::transport::star::registry::Access;
use adverb_wire::Key;
use adverb_wire::star::Grant;

/// Whether the registry lets a packet leave, if there is one: it, or the message that begins with it, has so
/// many bytes. What moves no bytes of a region needs no key.
pub(super) fn may_leave(qp: &Qp, nic: &mut NicState, sent: &Sent, op: WqeOp, len: u64) -> bool {
    let Some(registry) = nic.registry.as_deref() else { return true };
    let right = match (op.is_atomic(), sent.is_read) {
        (true, _) => Grant::ATOMIC,
        (false, true) => Grant::READ,
        (false, false) => Grant::WRITE,
    };
    let Sent { key, va, names, .. } = *sent;
    let access = match names {
        Names::Region if len > 0 => Access::Region { key, va, len, right },
        Names::Address if len > 0 => Access::Carried { key, va, len },
        _ => Access::Posted,
    };
    let allowed = registry.allows(qp.dst, qp.peer, access);
    nic.count_egress(allowed);
    allowed
}

/// Whether a packet for what the other side has posted may leave, and so many bytes of its message.
pub(super) fn posted_may_leave(
    qp: &Qp,
    nic: &mut NicState,
    (va, key, names): (u64, Key, Names),
    len: u32,
) -> bool {
    let Some(registry) = nic.registry.as_deref() else { return true };
    let access = match names {
        Names::Address => Access::Carried { key, va, len: len.into() },
        _ => Access::Posted,
    };
    let allowed = registry.allows(qp.dst, qp.peer, access);
    nic.count_egress(allowed);
    allowed
}
