//! From the NIC's ids to the C objects, for the events that the NIC raises.
//!
//! Lock order: this table's lock, then an event queue's. Neither is held while the NIC is called.

use crate::abi::*;
use crate::cq::Cq;
use crate::event::lock;
use crate::qp::Qp;
use crate::srq::Srq;
use adverb_nic::{CqId, Event, QpId, SrqId};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A live object's C pointer, kept in a table that all threads share.
#[derive(PartialEq, Eq)]
struct Shared<T>(*mut T);

// SAFETY: the objects are made for use by several threads (see `handle`), and the table's entry goes
// before the object does.
unsafe impl<T> Send for Shared<T> {}

struct Tables {
    cqs: BTreeMap<CqId, Shared<ibv_cq>>,
    /// An XRC target may have several C objects (`ibv_open_qp`); all get its events.
    qps: BTreeMap<QpId, Vec<Shared<ibv_qp>>>,
    srqs: BTreeMap<SrqId, Shared<ibv_srq>>,
}

static TABLES: Mutex<Tables> =
    Mutex::new(Tables { cqs: BTreeMap::new(), qps: BTreeMap::new(), srqs: BTreeMap::new() });

/// Forgets all objects: they are a parent's.
pub(crate) fn clear() {
    let mut tables = lock(&TABLES);
    tables.cqs.clear();
    tables.qps.clear();
    tables.srqs.clear();
}

pub(crate) fn add_cq(id: CqId, cq: *mut ibv_cq) {
    lock(&TABLES).cqs.insert(id, Shared(cq));
}

pub(crate) fn remove_cq(id: CqId) {
    lock(&TABLES).cqs.remove(&id);
}

pub(crate) fn add_srq(id: SrqId, srq: *mut ibv_srq) {
    lock(&TABLES).srqs.insert(id, Shared(srq));
}

pub(crate) fn remove_srq(id: SrqId) {
    lock(&TABLES).srqs.remove(&id);
}

pub(crate) fn add_qp(id: QpId, qp: *mut ibv_qp) {
    lock(&TABLES).qps.entry(id).or_default().push(Shared(qp));
}

pub(crate) fn remove_qp(id: QpId, qp: *mut ibv_qp) {
    let mut tables = lock(&TABLES);
    if let Some(handles) = tables.qps.get_mut(&id) {
        handles.retain(|handle| handle.0 != qp);
        if handles.is_empty() {
            tables.qps.remove(&id);
        }
    }
}

/// Removes all C objects of a queue pair.
pub(crate) fn forget_qp(id: QpId) {
    lock(&TABLES).qps.remove(&id);
}

/// How many C objects stand for a queue pair.
pub(crate) fn qp_handles(id: QpId) -> usize {
    lock(&TABLES).qps.get(&id).map_or(0, Vec::len)
}

/// The first C object of a queue pair that `wanted` accepts.
pub(crate) fn find_qp<R>(wanted: impl Fn(&Qp) -> Option<R>) -> Option<R> {
    let tables = lock(&TABLES);
    tables.qps.values().flatten().find_map(|handle| {
        // SAFETY: an object leaves the table before it is destroyed, and the table is locked.
        wanted(unsafe { Qp::of(handle.0) })
    })
}

/// Takes an event from the NIC to the channel or context of its object. Called by whichever thread
/// drives the NIC.
pub(crate) fn on_event(event: Event) {
    let tables = lock(&TABLES);
    let cq = |id: CqId| {
        // SAFETY: an object leaves the table before it is destroyed, and the table is locked.
        tables.cqs.get(&id).map(|cq| unsafe { Cq::of(cq.0) })
    };
    let qp = |id: QpId, kind: u32| {
        for handle in tables.qps.get(&id).into_iter().flatten() {
            // SAFETY: see above.
            unsafe { Qp::of(handle.0) }.raise(kind);
        }
    };
    match event {
        Event::Completion(id) => {
            if let Some(cq) = cq(id) {
                cq.notify();
            }
        }
        Event::CqError(id) => {
            if let Some(cq) = cq(id) {
                cq.raise(IBV_EVENT_CQ_ERR);
            }
        }
        Event::SrqLimitReached(id) => {
            if let Some(srq) = tables.srqs.get(&id) {
                // SAFETY: see above.
                unsafe { Srq::of(srq.0) }.raise(IBV_EVENT_SRQ_LIMIT_REACHED);
            }
        }
        Event::QpFatal(id) => qp(id, IBV_EVENT_QP_FATAL),
        Event::QpRequestError(id) => qp(id, IBV_EVENT_QP_REQ_ERR),
        Event::QpAccessError(id) => qp(id, IBV_EVENT_QP_ACCESS_ERR),
        Event::CommunicationEstablished(id) => qp(id, IBV_EVENT_COMM_EST),
        Event::SqDrained(id) => qp(id, IBV_EVENT_SQ_DRAINED),
        Event::LastWqeReached(id) => qp(id, IBV_EVENT_QP_LAST_WQE_REACHED),
        // Between the NICs; verbs has no event for it.
        Event::IrnAgreed(_) | Event::IrnUnanswered(_) | Event::Star(..) | Event::ConnectionManager => {}
    }
}
