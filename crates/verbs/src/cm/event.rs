//! Events as programs see them. When a program gets the answer to its request, its queue pair is moved before
//! it sees it, as librdmacm does.

use crate::abi::*;
use crate::cm::address::{ROCE_GID_INDEX, source_gid_index};
use crate::cm::channel::{Told, Waiting};
use crate::cm::id::{Id, Phase, State, fail};
use crate::cm::queue_pair;
use crate::cm::registry::IdPointer;
use crate::handle::handle;
use crate::host;
use crate::query::PORT;
use adverb_nic::cm::{Offer, Reason, Reply, Request, What};
use adverb_wire::{Gid, QpNumber};
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// Most private data that an event has: a REP's.
const PRIVATE_MAX: usize = 196;

/// An event that a program has.
#[repr(C)]
pub(super) struct Event {
    c: UnsafeCell<rdma_cm_event>,
    private: [u8; PRIVATE_MAX],
    /// Whose destruction waits for its acknowledgement.
    pub(super) counted: IdPointer,
}

handle!(Event, rdma_cm_event);

/// What becomes of an event.
struct Seen {
    number: u32,
    status: c_int,
    param: rdma_cm_event_param,
}

/// An event's parameters when there are none.
fn nothing() -> rdma_cm_event_param {
    // SAFETY: integers and pointers.
    unsafe { core::mem::zeroed() }
}

fn plain(number: u32, status: c_int) -> Seen {
    Seen { number, status, param: nothing() }
}

/// The peer's queue pair, with its resources as they are for this side.
fn connection(offer: &Offer, retry_count: u8) -> rdma_cm_event_param {
    rdma_cm_event_param {
        conn: rdma_conn_param {
            private_data: core::ptr::null(),
            private_data_len: 0,
            responder_resources: offer.initiator_depth,
            initiator_depth: offer.responder_resources,
            flow_control: offer.flow_control.into(),
            retry_count,
            rnr_retry_count: offer.rnr_retry,
            srq: offer.srq.into(),
            qp_num: offer.qpn.get(),
        },
    }
}

/// How datagrams reach a queue pair.
pub(super) fn datagrams(gid: Gid, qpn: QpNumber, qkey: u32, traffic_class: u8) -> rdma_ud_param {
    // SAFETY: integers and pointers.
    let mut ud: rdma_ud_param = unsafe { core::mem::zeroed() };
    ud.ah_attr = address_of(gid, traffic_class);
    ud.qp_num = qpn.get();
    ud.qkey = qkey;
    ud
}

/// An address vector to a GID.
pub(super) fn address_of(gid: Gid, traffic_class: u8) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid(gid.0),
            flow_label: 0,
            sgid_index: source_gid_index(ROCE_GID_INDEX),
            hop_limit: super::address::HOP_LIMIT,
            traffic_class,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: PORT,
    }
}

/// Makes what the program sees of an event. `None` if it is to see nothing.
///
/// # Safety
/// The identifiers of the event are alive.
pub(super) unsafe fn deliver(waiting: Waiting) -> Option<*mut rdma_cm_event> {
    // SAFETY: by the caller's promise.
    let id = unsafe { Id::of(waiting.owner.0) };
    let (seen, private): (Seen, Vec<u8>) = match waiting.told {
        Told::Local(number, status) => (plain(number, status), Vec::new()),
        Told::Joined(ud) => {
            let param = rdma_cm_event_param { ud };
            (Seen { number: RDMA_CM_EVENT_MULTICAST_JOIN, status: 0, param }, Vec::new())
        }
        Told::Written(number, status, arg) => {
            (Seen { number, status, param: rdma_cm_event_param { arg } }, Vec::new())
        }
        // SAFETY: by the caller's promise.
        Told::Cm(what) => unsafe { told_by_cm(id, &what) }?,
    };
    Some(give(&waiting, seen, &private))
}

/// An event of the connection manager, and its private data.
///
/// # Safety
/// The identifier is alive.
unsafe fn told_by_cm(id: &Id, what: &What) -> Option<(Seen, Vec<u8>)> {
    if let (What::Request(..) | What::DatagramRequest(..), Some(connection)) = (what, id.state().connection) {
        // It makes room for another; of one that the peer has given up, there is nothing to say.
        let _ = host::cm(|host| host.cm_taken(connection));
    }
    Some(match what {
        What::Request(_, request) => (requested(request), request.private.0.to_vec()),
        What::DatagramRequest(_, request) => {
            (plain(RDMA_CM_EVENT_CONNECT_REQUEST, 0), request.private.0.to_vec())
        }
        What::Reply(reply) => {
            // SAFETY: by the caller's promise.
            let seen = unsafe { replied(id, reply) };
            let private = if seen.status == 0 { reply.private.0.to_vec() } else { Vec::new() };
            (seen, private)
        }
        What::Established => {
            let mut state = id.state();
            if state.phase != Phase::Accepted {
                return None;
            }
            state.phase = Phase::Connected;
            (plain(RDMA_CM_EVENT_ESTABLISHED, 0), Vec::new())
        }
        What::Rejected(Reason(reason), private) => {
            // SAFETY: by the caller's promise.
            unsafe { fail(id) };
            (plain(RDMA_CM_EVENT_REJECTED, (*reason).into()), private.0.to_vec())
        }
        What::Unreachable => {
            // SAFETY: by the caller's promise.
            unsafe { fail(id) };
            (plain(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT), Vec::new())
        }
        What::Disconnected | What::DisconnectedAlone => {
            id.state().phase = Phase::Ended;
            let status = if *what == What::Disconnected { 0 } else { -libc::ETIMEDOUT };
            (plain(RDMA_CM_EVENT_DISCONNECTED, status), Vec::new())
        }
        What::TimewaitExit => (plain(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0), Vec::new()),
        What::Resolved(qpn, qkey, private) => {
            let mut state = id.state();
            state.phase = Phase::Connected;
            let ud = datagrams(destination(id), *qpn, *qkey, state.options.traffic_class);
            let param = rdma_cm_event_param { ud };
            (Seen { number: RDMA_CM_EVENT_ESTABLISHED, status: 0, param }, private.0.to_vec())
        }
        What::Unresolved(status, private) => {
            id.state().phase = Phase::Ended;
            (plain(RDMA_CM_EVENT_UNREACHABLE, (*status).into()), private.0.to_vec())
        }
    })
}

/// The GID of an identifier's peer.
fn destination(id: &Id) -> Gid {
    // SAFETY: a public field of the live object, which programs do not write.
    Gid(unsafe { (*id.as_c()).route.addr.addr.dgid.0 })
}

fn requested(request: &Request) -> Seen {
    let param = connection(&request.offer, request.retry_count);
    Seen { number: RDMA_CM_EVENT_CONNECT_REQUEST, status: 0, param }
}

/// The peer has accepted: moves the identifier's queue pair, if it has one, and says so to the peer.
///
/// # Safety
/// The identifier is alive.
unsafe fn replied(id: &Id, reply: &Reply) -> Seen {
    let (connection_id, retry_count) = {
        let mut state = id.state();
        take_offer(&mut state, &reply.offer);
        (state.connection, state.peer.map_or(0, |peer| peer.retry_count))
    };
    let param = connection(&reply.offer, retry_count);
    // SAFETY: a public field of the live object.
    if unsafe { (*id.as_c()).qp }.is_null() {
        id.state().phase = Phase::Answered;
        return Seen { number: RDMA_CM_EVENT_CONNECT_RESPONSE, status: 0, param };
    }
    // SAFETY: by the caller's promise.
    let moved = unsafe { queue_pair::to_rts(id) };
    let told = moved.and_then(|()| {
        let connection = connection_id.ok_or(libc::EINVAL)?;
        host::cm(|host| host.cm_establish(connection))
    });
    match told {
        Ok(()) => {
            id.state().phase = Phase::Connected;
            Seen { number: RDMA_CM_EVENT_ESTABLISHED, status: 0, param }
        }
        Err(errno) => {
            // SAFETY: by the caller's promise.
            unsafe { fail(id) };
            if let Some(connection) = connection_id {
                // Of no use where the NIC has closed, or the peer has given up meanwhile.
                let _ = host::cm(|host| host.cm_reject(connection, Reason::CONSUMER, &[]));
            }
            plain(RDMA_CM_EVENT_CONNECT_ERROR, -errno)
        }
    }
}

/// The peer's queue pair is known: its resources bound this side's.
fn take_offer(state: &mut State, offer: &Offer) {
    state.responder_resources = offer.initiator_depth;
    state.initiator_depth = offer.responder_resources;
    if let Some(peer) = &mut state.peer {
        peer.offer = *offer;
    }
}

/// Hands an event to C.
fn give(waiting: &Waiting, seen: Seen, private: &[u8]) -> *mut rdma_cm_event {
    let datagram = matches!(waiting.told, Told::Joined(_))
        // SAFETY: the event's identifier is alive.
        || unsafe { Id::of(waiting.owner.0) }.is_datagram();
    let mut room = [0; PRIVATE_MAX];
    room[..private.len()].copy_from_slice(private);
    let listen_id = waiting.listener.map_or(core::ptr::null_mut(), |listener| listener.0);
    let c = rdma_cm_event {
        id: waiting.owner.0,
        listen_id,
        event: seen.number,
        status: seen.status,
        param: seen.param,
    };
    let event = Event { c: c.into(), private: room, counted: waiting.counted() }.give();
    if !private.is_empty() {
        // SAFETY: made just now; both forms begin with the pointer and the length. An address within the
        // object, which lives until the event is acknowledged.
        unsafe {
            let data = (&raw const (*event.cast::<Event>()).private).cast();
            let length = private.len() as u8;
            if datagram {
                (*event).param.ud.private_data = data;
                (*event).param.ud.private_data_len = length;
            } else {
                (*event).param.conn.private_data = data;
                (*event).param.conn.private_data_len = length;
            }
        }
    }
    event
}
